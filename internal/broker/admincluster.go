package broker

import (
	"cmp"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/metadata"
	"gregor/internal/network"
	"gregor/internal/security"
)

// The kinds of endpoint that DescribeCluster can be asked about.
const (
	brokerEndpoint     int8 = 1
	controllerEndpoint int8 = 2
)

func (b *Broker) describeCluster(r *network.Request, q *kmsg.DescribeClusterRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.DescribeClusterResponse)
	// Version 0 can't name a kind; kmsg gives it the default.
	if kind := q.EndpointType; q.Version >= 1 && kind != brokerEndpoint {
		err := api.WithMessage(api.ErrUnsupportedEndpointType, "Unsupported endpoint type %d", kind)
		if kind == controllerEndpoint {
			err = api.WithMessage(api.ErrMismatchedEndpointType, "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER")
		}
		resp.ErrorCode, resp.ErrorMessage = api.CodeAndMessage(err)
		return resp
	}
	image, listener := b.image(), r.Conn.Listener()
	resp.ClusterID, resp.EndpointType, resp.ControllerID = b.clusterID, brokerEndpoint, -1
	resp.ClusterAuthorizedOperations = noAuthorizedOperations
	if q.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = b.clusterOperations(r)
	}
	controllerID := b.anyAliveBroker(image)
	for _, id := range image.Cluster.BrokerIDs() {
		node := image.Cluster.Broker(id)
		ep, ok := node.Listeners[listener]
		if !ok || node.Fenced && !q.IncludeFencedBrokers {
			continue
		}
		x := kmsg.NewDescribeClusterResponseBroker()
		x.NodeID, x.Host, x.Port, x.Rack, x.IsFenced = id, ep.Host, int32(ep.Port), node.Rack, node.Fenced
		resp.Brokers = append(resp.Brokers, x)
		if id == controllerID {
			resp.ControllerID = id
		}
	}
	return resp
}

func (b *Broker) describeTopicPartitions(r *network.Request, q *kmsg.DescribeTopicPartitionsRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.DescribeTopicPartitionsResponse)
	image := b.image()
	from, start := "", int32(0)
	if q.Cursor != nil {
		from, start = q.Cursor.Topic, q.Cursor.Partition
	}
	all := len(q.Topics) == 0
	wanted := make(map[string]bool)
	for _, t := range q.Topics {
		if t.Topic >= from {
			wanted[t.Topic] = true
		}
	}
	if all {
		for t := range image.Topics.All() {
			if t.Name >= from {
				wanted[t.Name] = true
			}
		}
	}
	if q.Cursor != nil && (!all && !wanted[from] || start < 0) {
		return describeTopicPartitionsFailed(q, resp)
	}
	names := slices.Sorted(maps.Keys(wanted))
	allowed := b.allows
	if all {
		allowed = b.allowsQuietly
	}
	var refused []kmsg.DescribeTopicPartitionsResponseTopic
	names = slices.DeleteFunc(names, func(name string) bool {
		if allowed(r, security.Describe, security.Topic, name) {
			return false
		}
		if !all {
			out := kmsg.NewDescribeTopicPartitionsResponseTopic()
			out.ErrorCode, out.Topic = api.ErrTopicAuthorizationFailed.Code, &name
			out.AuthorizedOperations = noAuthorizedOperations
			refused = append(refused, out)
		}
		return true
	})
	left := max(min(b.config.Current().MaxRequestPartitions, q.ResponsePartitionLimit), 1)
	view := topicView{img: image, listener: r.Conn.Listener(), version: 12}
	next := func(topic string, partition int32) {
		c := kmsg.NewDescribeTopicPartitionsResponseNextCursor()
		c.Topic, c.Partition = topic, partition
		resp.NextCursor = &c
	}
	for _, name := range names {
		if left == 0 {
			next(name, 0)
			break
		}
		out := kmsg.NewDescribeTopicPartitionsResponseTopic()
		out.Topic, out.IsInternal = &name, isInternalTopic(name)
		out.AuthorizedOperations = b.operations(r, security.Topic, name)
		t := image.Topics.ByName(name)
		if t == nil {
			if all {
				continue
			}
			out.ErrorCode = api.ErrUnknownTopicOrPartition.Code
			if api.CheckTopicName(name) != nil {
				out.ErrorCode = api.ErrInvalidTopicException.Code
			}
			resp.Topics = append(resp.Topics, out)
			continue
		}
		out.TopicID = t.ID
		begin := int32(0)
		if name == from {
			begin = start
		}
		end := int32(min(int64(t.Len()), int64(begin)+int64(left)))
		for i := begin; i < end; i++ {
			out.Partitions = append(out.Partitions, describedPartition(&view, i, t.Partition(i)))
		}
		resp.Topics = append(resp.Topics, out)
		if end < int32(t.Len()) {
			next(name, end)
			break
		}
		left -= int32(len(out.Partitions))
	}
	resp.Topics = append(resp.Topics, refused...)
	return resp
}

// describeTopicPartitionsFailed says INVALID_REQUEST for each topic that was asked about; the response has no other place.
func describeTopicPartitionsFailed(q *kmsg.DescribeTopicPartitionsRequest, resp *kmsg.DescribeTopicPartitionsResponse) kmsg.Response {
	for _, t := range q.Topics {
		out := kmsg.NewDescribeTopicPartitionsResponseTopic()
		out.ErrorCode, out.Topic = api.ErrInvalidRequest.Code, &t.Topic
		out.AuthorizedOperations = noAuthorizedOperations
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func describedPartition(v *topicView, index int32, p *metadata.Partition) kmsg.DescribeTopicPartitionsResponseTopicPartition {
	out := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
	out.Partition, out.LeaderID, out.LeaderEpoch = index, p.Leader, p.LeaderEpoch
	if _, ok := aliveEndpoint(v.img, p.Leader, v.listener); !ok {
		out.LeaderID = metadata.NoLeader
	}
	out.Replicas, out.ISR, out.OfflineReplicas = p.Replicas, p.ISR, offlineReplicas(v.img, p, v.listener)
	// Empty, not null: a null would say that the cluster doesn't keep them.
	out.EligibleLeaderReplicas, out.LastKnownELR = append([]int32{}, p.ELR...), append([]int32{}, p.LastKnownELR...)
	return out
}

func (b *Broker) describeUserScramCredentials(r *network.Request, q *kmsg.DescribeUserSCRAMCredentialsRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.DescribeUserSCRAMCredentialsResponse)
	if !b.allowsCluster(r, security.Describe) {
		out := kmsg.NewDescribeUserSCRAMCredentialsResponseResult() // of nobody, as Kafka says it
		out.ErrorCode = api.ErrClusterAuthorizationFailed.Code
		resp.ErrorCode, resp.Results = out.ErrorCode, append(resp.Results, out)
		return resp
	}
	resp.ErrorMessage = nothingToSay()
	known := make(map[string][]kmsg.DescribeUserSCRAMCredentialsResponseResultCredentialInfo)
	for key, c := range b.image().SCRAM.All() {
		x := kmsg.NewDescribeUserSCRAMCredentialsResponseResultCredentialInfo()
		x.Mechanism, x.Iterations = key.Mechanism, c.Iterations
		known[key.User] = append(known[key.User], x)
	}
	times := make(map[string]int)
	for _, u := range q.Users {
		times[u.Name]++
	}
	if len(q.Users) == 0 {
		for user := range known {
			times[user] = 1
		}
	}
	for _, user := range slices.Sorted(maps.Keys(times)) {
		out := kmsg.NewDescribeUserSCRAMCredentialsResponseResult()
		out.User, out.ErrorMessage = user, nothingToSay()
		switch {
		case times[user] > 1:
			out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(api.WithMessage(api.ErrDuplicateResource,
				"Cannot describe SCRAM credentials for the same user twice in a single request: %s", user))
		case known[user] == nil:
			out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(api.WithMessage(api.ErrResourceNotFound,
				"Attempt to describe a user credential that does not exist: %s", user))
		default:
			out.CredentialInfos = known[user]
			slices.SortFunc(out.CredentialInfos, func(x, y kmsg.DescribeUserSCRAMCredentialsResponseResultCredentialInfo) int {
				return cmp.Compare(x.Mechanism, y.Mechanism)
			})
		}
		resp.Results = append(resp.Results, out)
	}
	return resp
}

// The ways in which a component of DescribeClientQuotas matches.
const (
	matchExact     = 0
	matchDefault   = 1
	matchSpecified = 2
)

func (b *Broker) describeClientQuotas(r *network.Request, q *kmsg.DescribeClientQuotasRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.DescribeClientQuotasResponse)
	if !b.allowsCluster(r, security.DescribeConfigs) {
		resp.ErrorCode = api.ErrClusterAuthorizationFailed.Code
		return resp
	}
	exact, specified, err := quotaFilter(q)
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage = api.CodeAndMessage(err)
		return resp
	}
	resp.ErrorMessage = nothingToSay()
	resp.Entries = []kmsg.DescribeClientQuotasResponseEntry{} // null would say that it failed
	for quota := range b.image().ClientQuotas.All() {
		if !quotaMatches(quota.Entity, exact, specified, q.Strict) {
			continue
		}
		out := kmsg.NewDescribeClientQuotasResponseEntry()
		for _, p := range quota.Entity {
			x := kmsg.NewDescribeClientQuotasResponseEntryEntity()
			x.Type, x.Name = p.Type, p.Name
			out.Entity = append(out.Entity, x)
		}
		for _, key := range slices.Sorted(maps.Keys(quota.Quotas)) {
			x := kmsg.NewDescribeClientQuotasResponseEntryValue()
			x.Key, x.Value = key, quota.Quotas[key]
			out.Values = append(out.Values, x)
		}
		resp.Entries = append(resp.Entries, out)
	}
	return resp
}

// quotaFilter reads a request: by type of entity the name that it must have, nil for the default, and the types that it must
// have with any name.
func quotaFilter(q *kmsg.DescribeClientQuotasRequest) (exact map[string]*string, specified map[string]bool, err error) {
	exact, specified = make(map[string]*string), make(map[string]bool)
	for _, c := range q.Components {
		_, twice := exact[c.EntityType]
		switch {
		case c.EntityType == "":
			return nil, nil, invalidRequest("Invalid empty entity type.")
		case twice || specified[c.EntityType]:
			return nil, nil, invalidRequest("Entity type %s cannot appear more than once in the filter.", c.EntityType)
		case c.EntityType != "user" && c.EntityType != "client-id" && c.EntityType != "ip":
			return nil, nil, api.WithMessage(api.ErrUnsupportedVersion, "Unsupported entity type %s", c.EntityType)
		}
		switch c.MatchType {
		case matchExact:
			if c.Match == nil {
				return nil, nil, invalidRequest("Request specified MATCH_TYPE_EXACT, but set match string to null.")
			}
			exact[c.EntityType] = c.Match
		case matchDefault:
			if c.Match != nil {
				return nil, nil, invalidRequest("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
			}
			exact[c.EntityType] = nil
		case matchSpecified:
			if c.Match != nil {
				return nil, nil, invalidRequest("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
			}
			specified[c.EntityType] = true
		default:
			return nil, nil, invalidRequest("Unknown match type %d", int8(c.MatchType))
		}
	}
	has := func(t string) bool {
		_, ok := exact[t]
		return ok || specified[t]
	}
	if has("ip") && (has("user") || has("client-id")) {
		return nil, nil, invalidRequest("Invalid entity filter component combination. IP filter component should not be used with user or clientId filter component.")
	}
	return exact, specified, nil
}

func quotaMatches(e metadata.QuotaEntity, exact map[string]*string, specified map[string]bool, strict bool) bool {
	if strict && len(e) != len(exact)+len(specified) {
		return false
	}
	parts := make(map[string]*string, len(e))
	for _, p := range e {
		parts[p.Type] = p.Name
	}
	for t, want := range exact {
		got, ok := parts[t]
		if !ok || (got == nil) != (want == nil) || got != nil && *got != *want {
			return false
		}
	}
	for t := range specified {
		if _, ok := parts[t]; !ok {
			return false
		}
	}
	return true
}

// ErrNoAuthorizer is what Kafka says to who asks for access control entries where there is no authorizer. They may be in the
// metadata log, but they have no effect.
var ErrNoAuthorizer = api.WithMessage(api.ErrSecurityDisabled, "No Authorizer is configured on the broker")

// ACLsRefused is the answer to who may not see the access control entries.
func ACLsRefused(q *kmsg.DescribeACLsRequest, err error) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.DescribeACLsResponse)
	resp.ErrorCode, resp.ErrorMessage = api.CodeAndMessage(err)
	return resp
}

// DescribeACLs answers from the metadata.
func DescribeACLs(q *kmsg.DescribeACLsRequest, img *metadata.Image) kmsg.Response {
	filter := security.Filter{ResourceType: int8(q.ResourceType), ResourceName: q.ResourceName, PatternType: int8(q.ResourcePatternType),
		Principal: q.Principal, Host: q.Host, Operation: int8(q.Operation), PermissionType: int8(q.PermissionType)}
	resp := q.ResponseKind().(*kmsg.DescribeACLsResponse)
	resp.ErrorMessage = nothingToSay()
	type pattern struct {
		kind int8
		name string
		is   int8
	}
	at := make(map[pattern]int)
	for _, a := range img.ACLs.All() {
		if !filter.Matches(&a) {
			continue
		}
		p := pattern{a.ResourceType, a.ResourceName, a.PatternType}
		i, ok := at[p]
		if !ok {
			i = len(resp.Resources)
			at[p] = i
			r := kmsg.NewDescribeACLsResponseResource()
			r.ResourceType, r.ResourceName, r.ResourcePatternType = kmsg.ACLResourceType(p.kind), p.name, kmsg.ACLResourcePatternType(p.is)
			resp.Resources = append(resp.Resources, r)
		}
		x := kmsg.NewDescribeACLsResponseResourceACL()
		x.Principal, x.Host, x.Operation, x.PermissionType = a.Principal, a.Host, kmsg.ACLOperation(a.Operation), kmsg.ACLPermissionType(a.PermissionType)
		resp.Resources[i].ACLs = append(resp.Resources[i].ACLs, x)
	}
	return resp
}
