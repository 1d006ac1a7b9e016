package broker

import (
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/metadata"
	"gregor/internal/network"
	"gregor/internal/security"
	"gregor/internal/uuid"
)

// noAuthorizedOperations stands for "not asked for" in responses that may list what a client is allowed to do.
const noAuthorizedOperations int32 = math.MinInt32

func (b *Broker) metadata(r *network.Request, q *kmsg.MetadataRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.MetadataResponse)
	if err := checkMetadataTopics(q); err != nil {
		resp.ErrorCode, resp.ControllerID, resp.AuthorizedOperations = err.Code, -1, noAuthorizedOperations
		resp.Topics = failedTopics(q, err)
		return resp
	}
	img, listener := b.image(), r.Conn.Listener()
	resp.ClusterID = &b.clusterID
	resp.ControllerID = b.anyAliveBroker(img)
	resp.AuthorizedOperations = noAuthorizedOperations
	if q.Version >= 8 && q.Version <= 10 && q.IncludeClusterAuthorizedOperations {
		resp.AuthorizedOperations = b.clusterOperations(r)
	}
	for _, id := range img.Cluster.BrokerIDs() {
		if n, ok := aliveEndpoint(img, id, listener); ok {
			resp.Brokers = append(resp.Brokers, kmsg.MetadataResponseBroker{NodeID: id, Host: n.Host, Port: int32(n.Port),
				Rack: img.Cluster.Broker(id).Rack})
		}
	}
	view := topicView{img: img, listener: listener, version: q.Version}
	if q.Version >= 8 && q.IncludeTopicAuthorizedOperations {
		view.operations = func(topic string) int32 { return b.operations(r, security.Topic, topic) }
	}
	switch {
	case q.Topics == nil || q.Version == 0 && len(q.Topics) == 0:
		for t := range img.Topics.All() {
			if b.allowsQuietly(r, security.Describe, security.Topic, t.Name) {
				resp.Topics = append(resp.Topics, view.topic(t))
			}
		}
	default:
		b.requestedTopics(r, q, &view, resp)
	}
	return resp
}

// checkMetadataTopics refuses what versions before 12 cannot mean, topics by id, and topics with neither name nor id.
func checkMetadataTopics(q *kmsg.MetadataRequest) *api.Error {
	byID := slices.ContainsFunc(q.Topics, func(t kmsg.MetadataRequestTopic) bool { return uuid.UUID(t.TopicID) != uuid.Zero })
	for _, t := range q.Topics {
		switch {
		case q.Version < 12 && (t.Topic == nil || uuid.UUID(t.TopicID) != uuid.Zero):
			return api.ErrInvalidRequest
		case t.Topic == nil && !byID:
			return api.ErrUnknownServerError
		}
	}
	return nil
}

func failedTopics(q *kmsg.MetadataRequest, err *api.Error) []kmsg.MetadataResponseTopic {
	out := make([]kmsg.MetadataResponseTopic, 0, len(q.Topics))
	for _, t := range q.Topics {
		name := t.Topic
		if name == nil {
			name = kmsg.StringPtr("")
		}
		out = append(out, kmsg.MetadataResponseTopic{ErrorCode: err.Code, Topic: name, TopicID: t.TopicID, AuthorizedOperations: noAuthorizedOperations})
	}
	return out
}

// requestedTopics answers for the topics that the request names. When one is named by id, all are: Kafka looks at ids first.
func (b *Broker) requestedTopics(r *network.Request, q *kmsg.MetadataRequest, view *topicView, resp *kmsg.MetadataResponse) {
	byID := slices.ContainsFunc(q.Topics, func(t kmsg.MetadataRequestTopic) bool { return uuid.UUID(t.TopicID) != uuid.Zero })
	seen := make(map[string]bool, len(q.Topics))
	seenID := make(map[uuid.UUID]bool)
	var unknown []string
	for _, t := range q.Topics {
		if byID {
			id := uuid.UUID(t.TopicID)
			if id == uuid.Zero || seenID[id] {
				continue
			}
			seenID[id] = true
			topic := view.img.Topics.ByID(id)
			if topic != nil && b.allowsTopic(r, security.Describe, topic.Name) {
				resp.Topics = append(resp.Topics, view.topic(topic))
				continue
			}
			err := api.ErrUnknownTopicID
			if topic != nil {
				err = api.ErrTopicAuthorizationFailed
			}
			resp.Topics = append(resp.Topics, kmsg.MetadataResponseTopic{ErrorCode: err.Code, TopicID: id, AuthorizedOperations: noAuthorizedOperations})
			continue
		}
		if t.Topic == nil || seen[*t.Topic] {
			continue
		}
		seen[*t.Topic] = true
		if !b.allowsTopic(r, security.Describe, *t.Topic) {
			// Whether it exists is not to be told.
			resp.Topics = append(resp.Topics, kmsg.MetadataResponseTopic{ErrorCode: api.ErrTopicAuthorizationFailed.Code, Topic: t.Topic,
				AuthorizedOperations: noAuthorizedOperations})
			continue
		}
		if topic := view.img.Topics.ByName(*t.Topic); topic != nil {
			resp.Topics = append(resp.Topics, view.topic(topic))
		} else {
			unknown = append(unknown, *t.Topic)
		}
	}
	create := b.config.Current().AutoCreateTopics && (q.AllowAutoTopicCreation || q.Version < 4)
	mayCreate := len(unknown) == 0 || !create || b.allowsQuietly(r, security.Create, security.Cluster, security.ClusterName)
	for _, name := range unknown {
		err, operations := api.ErrUnknownTopicOrPartition, view.authorized(name)
		switch {
		case !mayCreate && !b.allowsTopic(r, security.Create, name):
			err, operations = api.ErrTopicAuthorizationFailed, noAuthorizedOperations
		case api.CheckTopicName(name) != nil:
			err = api.ErrInvalidTopicException
		case create:
			b.creations.create(clientOf(r), name)
		}
		resp.Topics = append(resp.Topics, kmsg.MetadataResponseTopic{ErrorCode: err.Code, Topic: &name,
			IsInternal: isInternalTopic(name), AuthorizedOperations: operations})
	}
}

// topicView turns topics of the image into what one client is told of them.
type topicView struct {
	img        *metadata.Image
	listener   string
	version    int16
	operations func(topic string) int32 // nil when they weren't asked for
}

// authorized is what the client may do on a topic, or that it didn't ask.
func (v *topicView) authorized(topic string) int32 {
	if v.operations == nil {
		return noAuthorizedOperations
	}
	return v.operations(topic)
}

func (v *topicView) topic(t *metadata.Topic) kmsg.MetadataResponseTopic {
	out := kmsg.MetadataResponseTopic{Topic: &t.Name, TopicID: t.ID, IsInternal: isInternalTopic(t.Name),
		AuthorizedOperations: v.authorized(t.Name), Partitions: make([]kmsg.MetadataResponseTopicPartition, 0, t.Len())}
	for id, p := range t.Partitions() {
		out.Partitions = append(out.Partitions, v.partition(id, p))
	}
	return out
}

func (v *topicView) partition(id int32, p *metadata.Partition) kmsg.MetadataResponseTopicPartition {
	out := kmsg.MetadataResponseTopicPartition{Partition: id, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch,
		Replicas: p.Replicas, ISR: p.ISR, OfflineReplicas: offlineReplicas(v.img, p, v.listener)}
	if v.version == 0 {
		// Version 0 cannot say that a replica is offline; it leaves it out and says so in the error.
		out.Replicas, out.ISR = v.alive(p.Replicas), v.alive(p.ISR)
	}
	if _, ok := aliveEndpoint(v.img, p.Leader, v.listener); !ok {
		out.Leader = metadata.NoLeader
		out.ErrorCode = api.ErrLeaderNotAvailable.Code
		if v.version >= 6 && v.img.Cluster.Broker(p.Leader) != nil {
			out.ErrorCode = api.ErrListenerNotFound.Code
		}
	} else if len(out.Replicas) < len(p.Replicas) || len(out.ISR) < len(p.ISR) {
		out.ErrorCode = api.ErrReplicaNotAvailable.Code
	}
	return out
}

func (v *topicView) alive(ids []int32) []int32 {
	out := make([]int32, 0, len(ids))
	for _, id := range ids {
		if _, ok := aliveEndpoint(v.img, id, v.listener); ok {
			out = append(out, id)
		}
	}
	return out
}

// aliveEndpoint is where clients of a listener reach a broker; ok is false when it is fenced or has no such listener.
func aliveEndpoint(img *metadata.Image, id int32, listener string) (metadata.Endpoint, bool) {
	b := img.Cluster.Broker(id)
	if b == nil || b.Fenced {
		return metadata.Endpoint{}, false
	}
	ep, ok := b.Listeners[listener]
	return ep, ok
}

// offlineReplicas lists the replicas whose broker is not alive or whose log directory is offline.
func offlineReplicas(img *metadata.Image, p *metadata.Partition, listener string) []int32 {
	out := []int32{}
	for _, id := range p.Replicas {
		_, alive := aliveEndpoint(img, id, listener)
		dir, _ := p.Directory(id)
		if !alive || !img.Cluster.Broker(id).HasOnlineDir(dir) {
			out = append(out, id)
		}
	}
	return out
}

// anyAliveBroker is the node that clients are told to be the controller: any broker that is alive, since brokers forward.
func (b *Broker) anyAliveBroker(img *metadata.Image) int32 {
	if me := img.Cluster.Broker(b.nodeID); me != nil && !me.Fenced {
		return b.nodeID
	}
	for _, id := range img.Cluster.BrokerIDs() {
		if !img.Cluster.Broker(id).Fenced {
			return id
		}
	}
	return -1
}
