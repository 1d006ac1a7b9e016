package broker

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/coordinator/group"
	"gregor/internal/network"
)

// allGroupOperations are the operations that a client may do on a group when nothing restricts it, as bits (KIP-430): read,
// delete, describe, describe and alter configs.
const allGroupOperations int32 = 1<<3 | 1<<6 | 1<<8 | 1<<10 | 1<<11

// groupContext is what the group coordinator gets to know of a request.
func groupContext(r *network.Request) *group.Context {
	return &group.Context{ClientID: r.ClientID, ClientHost: javaAddress(r.Conn.ClientAddr().Addr()), Version: r.Version}
}

// javaAddress is InetAddress.toString of an address without a host name: a slash and, for IPv6, all eight groups. That is how
// Kafka stores and shows where a member runs.
func javaAddress(a netip.Addr) string {
	a = a.Unmap()
	if !a.Is6() {
		return "/" + a.String()
	}
	var s strings.Builder
	b := a.As16()
	for i := 0; i < len(b); i += 2 {
		s.WriteByte("/:"[min(i, 1)])
		s.WriteString(strconv.FormatUint(uint64(b[i])<<8|uint64(b[i+1]), 16))
	}
	if z := a.Zone(); z != "" {
		s.WriteString("%" + z)
	}
	return s.String()
}

func (b *Broker) joinGroup(r *network.Request, q *kmsg.JoinGroupRequest, reply func(kmsg.Response)) {
	b.groups.JoinGroup(groupContext(r), q, func(resp *kmsg.JoinGroupResponse) { reply(resp) })
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
	b.groups.SyncGroup(groupContext(r), q, func(resp *kmsg.SyncGroupResponse) { reply(resp) })
}

func (b *Broker) heartbeat(r *network.Request, q *kmsg.HeartbeatRequest, reply func(kmsg.Response)) {
	b.groups.Heartbeat(groupContext(r), q, func(resp *kmsg.HeartbeatResponse) { reply(resp) })
}

func (b *Broker) leaveGroup(r *network.Request, q *kmsg.LeaveGroupRequest, reply func(kmsg.Response)) {
	b.groups.LeaveGroup(groupContext(r), q, func(resp *kmsg.LeaveGroupResponse) { reply(resp) })
}

func (b *Broker) listGroups(r *network.Request, q *kmsg.ListGroupsRequest, reply func(kmsg.Response)) {
	b.groups.ListGroups(groupContext(r), q, func(resp *kmsg.ListGroupsResponse) { reply(resp) })
}

func (b *Broker) describeGroups(r *network.Request, q *kmsg.DescribeGroupsRequest, reply func(kmsg.Response)) {
	resp := kmsg.NewPtrDescribeGroupsResponse()
	b.groups.DescribeGroups(groupContext(r), q.Groups, func(groups []kmsg.DescribeGroupsResponseGroup) {
		if q.IncludeAuthorizedOperations {
			for i := range groups {
				if groups[i].ErrorCode == api.CodeNone {
					groups[i].AuthorizedOperations = allGroupOperations
				}
			}
		}
		resp.Groups = groups
		reply(resp)
	})
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
	b.groups.ConsumerGroupHeartbeat(groupContext(r), q, func(resp *kmsg.ConsumerGroupHeartbeatResponse) { reply(resp) })
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
	b.groups.ConsumerGroupDescribe(groupContext(r), q.Groups, func(groups []kmsg.ConsumerGroupDescribeResponseGroup) {
		if q.IncludeAuthorizedOperations {
			for i := range groups {
				if groups[i].ErrorCode == api.CodeNone {
					groups[i].AuthorizedOperations = allGroupOperations
				}
			}
		}
		resp.Groups = groups
		reply(resp)
	})
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
	b.groups.DeleteGroups(groupContext(r), ids, func(groups []kmsg.DeleteGroupsResponseGroup) {
		resp := kmsg.NewPtrDeleteGroupsResponse()
		resp.Groups = groups
		reply(resp)
	})
}

func (b *Broker) offsetDelete(r *network.Request, q *kmsg.OffsetDeleteRequest, reply func(kmsg.Response)) {
	resp := kmsg.NewPtrOffsetDeleteResponse()
	known := *q
	known.Topics = nil
	for _, t := range q.Topics {
		refused := kmsg.OffsetDeleteResponseTopic{Topic: t.Topic}
		kept := kmsg.OffsetDeleteRequestTopic{Topic: t.Topic}
		for _, p := range t.Partitions {
			if b.hasPartition(t.Topic, p.Partition) {
				kept.Partitions = append(kept.Partitions, p)
				continue
			}
			refused.Partitions = append(refused.Partitions, kmsg.OffsetDeleteResponseTopicPartition{
				Partition: p.Partition, ErrorCode: api.ErrUnknownTopicOrPartition.Code,
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
