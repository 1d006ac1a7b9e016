package broker

import (
	"net/netip"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/coordinator/group"
	"gregor/internal/network"
	"gregor/internal/security"
)

// groupContext is what the group coordinator gets to know of a request.
func groupContext(r *network.Request) *group.Context {
	return &group.Context{ClientID: r.ClientID, ClientHost: javaAddress(r.Conn.ClientAddr().Addr()), Version: r.Version}
}

// memberContext is groupContext for requests that may lead to looking up what regular expressions match.
func (b *Broker) memberContext(r *network.Request) *group.Context {
	ctx := groupContext(r)
	if b.authorizer != nil {
		who := requester(r)
		ctx.Describes = func(topic string) bool { return b.authorizer.Would(who, security.Describe, security.Topic, topic) }
	}
	return ctx
}

// javaAddress is InetAddress.toString of an address without a host name: a slash and, for IPv6, all eight groups. That is how
// Kafka stores and shows where a member runs.
func javaAddress(a netip.Addr) string {
	return "/" + security.HostText(a)
}

func (b *Broker) joinGroup(r *network.Request, q *kmsg.JoinGroupRequest, reply func(kmsg.Response)) {
	if !b.allowsGroup(r, security.Read, q.Group) {
		resp := kmsg.NewPtrJoinGroupResponse()
		resp.ErrorCode, resp.Generation = api.ErrGroupAuthorizationFailed.Code, -1
		reply(resp)
		return
	}
	b.groups.JoinGroup(b.memberContext(r), q, func(resp *kmsg.JoinGroupResponse) { reply(resp) })
}

// syncNamesProtocol is the version of SyncGroup that must say which protocol it is about (KIP-559).
const syncNamesProtocol = 5

func (b *Broker) syncGroup(r *network.Request, q *kmsg.SyncGroupRequest, reply func(kmsg.Response)) {
	if r.Version >= syncNamesProtocol && (q.ProtocolType == nil || q.Protocol == nil) {
		resp := kmsg.NewPtrSyncGroupResponse()
		resp.ErrorCode = api.ErrInconsistentGroupProtocol.Code
		reply(resp)
		return
	}
	if !b.allowsGroup(r, security.Read, q.Group) {
		resp := kmsg.NewPtrSyncGroupResponse()
		resp.ErrorCode = api.ErrGroupAuthorizationFailed.Code
		reply(resp)
		return
	}
	b.groups.SyncGroup(groupContext(r), q, func(resp *kmsg.SyncGroupResponse) { reply(resp) })
}

func (b *Broker) heartbeat(r *network.Request, q *kmsg.HeartbeatRequest, reply func(kmsg.Response)) {
	if !b.allowsGroup(r, security.Read, q.Group) {
		resp := kmsg.NewPtrHeartbeatResponse()
		resp.ErrorCode = api.ErrGroupAuthorizationFailed.Code
		reply(resp)
		return
	}
	b.groups.Heartbeat(groupContext(r), q, func(resp *kmsg.HeartbeatResponse) { reply(resp) })
}

func (b *Broker) leaveGroup(r *network.Request, q *kmsg.LeaveGroupRequest, reply func(kmsg.Response)) {
	if !b.allowsGroup(r, security.Read, q.Group) {
		resp := kmsg.NewPtrLeaveGroupResponse()
		resp.ErrorCode = api.ErrGroupAuthorizationFailed.Code
		reply(resp)
		return
	}
	b.groups.LeaveGroup(groupContext(r), q, func(resp *kmsg.LeaveGroupResponse) { reply(resp) })
}

func (b *Broker) listGroups(r *network.Request, q *kmsg.ListGroupsRequest, reply func(kmsg.Response)) {
	all := b.allowsQuietly(r, security.Describe, security.Cluster, security.ClusterName)
	b.groups.ListGroups(groupContext(r), q, func(resp *kmsg.ListGroupsResponse) {
		if !all {
			resp.Groups = slices.DeleteFunc(resp.Groups, func(g kmsg.ListGroupsResponseGroup) bool {
				return !b.allowsQuietly(r, security.Describe, security.Group, g.Group)
			})
		}
		reply(resp)
	})
}

func (b *Broker) describeGroups(r *network.Request, q *kmsg.DescribeGroupsRequest, reply func(kmsg.Response)) {
	resp := kmsg.NewPtrDescribeGroupsResponse()
	ids := b.allowedGroups(r, security.Describe, q.Groups, func(id string) {
		g := kmsg.NewDescribeGroupsResponseGroup()
		g.Group, g.ErrorCode = id, api.ErrGroupAuthorizationFailed.Code
		resp.Groups = append(resp.Groups, g)
	})
	b.groups.DescribeGroups(groupContext(r), ids, func(groups []kmsg.DescribeGroupsResponseGroup) {
		if q.IncludeAuthorizedOperations {
			for i := range groups {
				if groups[i].ErrorCode == api.CodeNone {
					groups[i].AuthorizedOperations = b.operations(r, security.Group, groups[i].Group)
				}
			}
		}
		resp.Groups = append(resp.Groups, groups...)
		reply(resp)
	})
}

// allowedGroups are the groups that the client may do an operation on; refuse is called for the others.
func (b *Broker) allowedGroups(r *network.Request, op security.Operation, ids []string, refuse func(id string)) []string {
	if b.authorizer == nil {
		return ids
	}
	var out []string
	for _, id := range ids {
		if b.allowsGroup(r, op, id) {
			out = append(out, id)
		} else {
			refuse(id)
		}
	}
	return out
}

// consumerGroups says whether the cluster has consumer groups (KIP-848) and this broker lets them in.
func (b *Broker) consumerGroups() bool {
	return b.image().Features.Levels["group.version"] >= 1 &&
		slices.Contains(b.config.Current().GroupCoordinator.RebalanceProtocols, "consumer")
}

func (b *Broker) consumerGroupHeartbeat(r *network.Request, q *kmsg.ConsumerGroupHeartbeatRequest, reply func(kmsg.Response)) {
	if !b.consumerGroups() {
		resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
		resp.ErrorCode = api.ErrUnsupportedVersion.Code
		reply(resp)
		return
	}
	refused := api.CodeNone
	switch {
	case !b.allowsGroup(r, security.Read, q.Group):
		refused = api.ErrGroupAuthorizationFailed.Code
	case slices.ContainsFunc(q.SubscribedTopicNames, func(t string) bool { return !b.allowsTopic(r, security.Describe, t) }):
		refused = api.ErrTopicAuthorizationFailed.Code
	}
	if refused != api.CodeNone {
		resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
		resp.ErrorCode = refused
		reply(resp)
		return
	}
	b.groups.ConsumerGroupHeartbeat(b.memberContext(r), q, func(resp *kmsg.ConsumerGroupHeartbeatResponse) { reply(resp) })
}

func (b *Broker) consumerGroupDescribe(r *network.Request, q *kmsg.ConsumerGroupDescribeRequest, reply func(kmsg.Response)) {
	resp := kmsg.NewPtrConsumerGroupDescribeResponse()
	if !b.consumerGroups() {
		for _, id := range q.Groups {
			g := kmsg.NewConsumerGroupDescribeResponseGroup()
			g.Group, g.ErrorCode = id, api.ErrUnsupportedVersion.Code
			resp.Groups = append(resp.Groups, g)
		}
		reply(resp)
		return
	}
	ids := b.allowedGroups(r, security.Describe, q.Groups, func(id string) {
		g := kmsg.NewConsumerGroupDescribeResponseGroup()
		g.Group, g.ErrorCode = id, api.ErrGroupAuthorizationFailed.Code
		resp.Groups = append(resp.Groups, g)
	})
	b.groups.ConsumerGroupDescribe(groupContext(r), ids, func(groups []kmsg.ConsumerGroupDescribeResponseGroup) {
		if q.IncludeAuthorizedOperations {
			for i := range groups {
				if groups[i].ErrorCode == api.CodeNone {
					groups[i].AuthorizedOperations = b.operations(r, security.Group, groups[i].Group)
				}
			}
		}
		for i := range groups {
			if b.authorizer != nil && !b.allowsAssigned(r, &groups[i]) {
				hidden := kmsg.NewConsumerGroupDescribeResponseGroup()
				hidden.Group = groups[i].Group
				hidden.ErrorCode, hidden.ErrorMessage = api.CodeAndMessage(api.WithMessage(api.ErrTopicAuthorizationFailed,
					"The group has described topic(s) that the client is not authorized to describe."))
				groups[i] = hidden
			}
		}
		resp.Groups = append(resp.Groups, groups...)
		reply(resp)
	})
}

// allowsAssigned says whether the client may describe all topics that members of the group have or are to have.
func (b *Broker) allowsAssigned(r *network.Request, g *kmsg.ConsumerGroupDescribeResponseGroup) bool {
	known := make(map[string]bool)
	for _, m := range g.Members {
		for _, a := range []kmsg.Assignment{m.Assignment, m.TargetAssignment} {
			for _, t := range a.TopicPartitions {
				ok, asked := known[t.Topic]
				if !asked {
					ok = b.allowsTopic(r, security.Describe, t.Topic)
					known[t.Topic] = ok
				}
				if !ok {
					return false
				}
			}
		}
	}
	return true
}

func (b *Broker) deleteGroups(r *network.Request, q *kmsg.DeleteGroupsRequest, reply func(kmsg.Response)) {
	seen := make(map[string]bool, len(q.Groups))
	var ids []string
	for _, id := range q.Groups {
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	resp := kmsg.NewPtrDeleteGroupsResponse()
	ids = b.allowedGroups(r, security.Delete, ids, func(id string) {
		resp.Groups = append(resp.Groups, kmsg.DeleteGroupsResponseGroup{Group: id, ErrorCode: api.ErrGroupAuthorizationFailed.Code})
	})
	b.groups.DeleteGroups(groupContext(r), ids, func(groups []kmsg.DeleteGroupsResponseGroup) {
		resp.Groups = append(groups, resp.Groups...)
		reply(resp)
	})
}

func (b *Broker) offsetDelete(r *network.Request, q *kmsg.OffsetDeleteRequest, reply func(kmsg.Response)) {
	resp := kmsg.NewPtrOffsetDeleteResponse()
	if !b.allowsGroup(r, security.Delete, q.Group) {
		resp.ErrorCode = api.ErrGroupAuthorizationFailed.Code
		reply(resp)
		return
	}
	known := *q
	known.Topics = nil
	for _, t := range q.Topics {
		refused := kmsg.OffsetDeleteResponseTopic{Topic: t.Topic}
		kept := kmsg.OffsetDeleteRequestTopic{Topic: t.Topic}
		missing := api.ErrUnknownTopicOrPartition
		allowed := b.allowsTopic(r, security.Read, t.Topic)
		if !allowed {
			missing = api.ErrTopicAuthorizationFailed
		}
		for _, p := range t.Partitions {
			if allowed && b.hasPartition(t.Topic, p.Partition) {
				kept.Partitions = append(kept.Partitions, p)
				continue
			}
			refused.Partitions = append(refused.Partitions, kmsg.OffsetDeleteResponseTopicPartition{
				Partition: p.Partition, ErrorCode: missing.Code,
			})
		}
		if refused.Partitions != nil {
			resp.Topics = append(resp.Topics, refused)
		}
		if kept.Partitions != nil {
			known.Topics = append(known.Topics, kept)
		}
	}
	b.groups.OffsetDelete(groupContext(r), &known, func(done *kmsg.OffsetDeleteResponse) {
		if done.ErrorCode != api.CodeNone {
			reply(done)
			return
		}
		for _, t := range done.Topics {
			i := 0
			for i < len(resp.Topics) && resp.Topics[i].Topic != t.Topic {
				i++
			}
			if i == len(resp.Topics) {
				resp.Topics = append(resp.Topics, t)
			} else {
				resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, t.Partitions...)
			}
		}
		reply(resp)
	})
}
