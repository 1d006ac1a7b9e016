package broker

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/network"
	"gregor/internal/security"
	"gregor/internal/uuid"
)

// Versions of OffsetCommit and OffsetFetch from which something differs.
const (
	// offsetsByTopicID: topics are named by id (KIP-848).
	offsetsByTopicID = 10
	// offsetsOfGroups: OffsetFetch is for several groups (KIP-709).
	offsetsOfGroups = 8
	// offsetFetchHasError: OffsetFetch has an error for the whole group.
	offsetFetchHasError = 2
)

// offsetCommit passes on what names existing partitions and answers for the rest.
func (b *Broker) offsetCommit(r *network.Request, q *kmsg.OffsetCommitRequest, reply func(kmsg.Response)) {
	if !b.allowsGroup(r, security.Read, q.Group) {
		reply(commitRefused(q, api.ErrGroupAuthorizationFailed))
		return
	}
	refused := b.checkCommit(r, q)
	if len(q.Topics) == 0 {
		if refused == nil {
			refused = kmsg.NewPtrOffsetCommitResponse()
		}
		reply(refused)
		return
	}
	b.groups.OffsetCommit(groupContext(r), q, func(resp *kmsg.OffsetCommitResponse) {
		if refused == nil {
			reply(resp)
			return
		}
		// Partitions of one topic are together, those that were refused first.
		at := make(map[string]int, len(refused.Topics))
		for i, t := range refused.Topics {
			at[t.Topic] = i
		}
		for _, t := range resp.Topics {
			if i, ok := at[t.Topic]; ok {
				refused.Topics[i].Partitions = append(refused.Topics[i].Partitions, t.Partitions...)
				continue
			}
			at[t.Topic] = len(refused.Topics)
			refused.Topics = append(refused.Topics, t)
		}
		reply(refused)
	})
}

// commitRefused says of each partition that its offset wasn't stored.
func commitRefused(q *kmsg.OffsetCommitRequest, err *api.Error) *kmsg.OffsetCommitResponse {
	resp := kmsg.NewPtrOffsetCommitResponse()
	for _, t := range q.Topics {
		out := kmsg.OffsetCommitResponseTopic{Topic: t.Topic, TopicID: t.TopicID}
		for _, p := range t.Partitions {
			out.Partitions = append(out.Partitions, kmsg.OffsetCommitResponseTopicPartition{Partition: p.Partition, ErrorCode: err.Code})
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// checkCommit gives the topics of q both name and id, and takes out what doesn't exist or is not the client's to read. That is in the response that it returns,
// which is nil in the usual case that all is well.
func (b *Broker) checkCommit(r *network.Request, q *kmsg.OffsetCommitRequest) *kmsg.OffsetCommitResponse {
	img, good := b.image(), true
	for i := range q.Topics {
		t := &q.Topics[i]
		topic := img.Topics.ByName(t.Topic)
		if q.Version >= offsetsByTopicID {
			topic = img.Topics.ByID(uuid.UUID(t.TopicID))
		}
		if topic == nil {
			good = false
			continue
		}
		t.Topic, t.TopicID = topic.Name, topic.ID
		good = good && (b.authorizer == nil || b.allowsQuietly(r, security.Read, security.Topic, t.Topic))
		for _, p := range t.Partitions {
			good = good && topic.Partition(p.Partition) != nil
		}
	}
	if good {
		return nil
	}
	refused := kmsg.NewPtrOffsetCommitResponse()
	at := make(map[string]int)
	known := make([]kmsg.OffsetCommitRequestTopic, 0, len(q.Topics))
	for _, t := range q.Topics {
		missing := api.ErrUnknownTopicOrPartition
		topic := img.Topics.ByName(t.Topic)
		key := t.Topic
		if q.Version >= offsetsByTopicID && topic == nil {
			missing, key = api.ErrUnknownTopicID, string(t.TopicID[:])
		} else if !b.allowsTopic(r, security.Read, t.Topic) {
			missing, topic = api.ErrTopicAuthorizationFailed, nil
		}
		kept := t
		kept.Partitions = nil
		for _, p := range t.Partitions {
			if topic != nil && topic.Partition(p.Partition) != nil {
				kept.Partitions = append(kept.Partitions, p)
				continue
			}
			i, ok := at[key]
			if !ok {
				i = len(refused.Topics)
				at[key] = i
				refused.Topics = append(refused.Topics, kmsg.OffsetCommitResponseTopic{Topic: t.Topic, TopicID: t.TopicID})
			}
			refused.Topics[i].Partitions = append(refused.Topics[i].Partitions, kmsg.OffsetCommitResponseTopicPartition{
				Partition: p.Partition, ErrorCode: missing.Code,
			})
		}
		if kept.Partitions != nil {
			known = append(known, kept)
		}
	}
	q.Topics = known
	return refused
}

// offsetFetch answers for each group of the request; the versions with a single one are treated like the others.
func (b *Broker) offsetFetch(r *network.Request, q *kmsg.OffsetFetchRequest, reply func(kmsg.Response)) {
	resp := kmsg.NewPtrOffsetFetchResponse()
	if q.Version < offsetsOfGroups {
		one := kmsg.NewOffsetFetchRequestGroup()
		one.Group = q.Group
		if q.Topics != nil {
			one.Topics = make([]kmsg.OffsetFetchRequestGroupTopic, len(q.Topics))
		}
		for i, t := range q.Topics {
			one.Topics[i].Topic, one.Topics[i].Partitions = t.Topic, t.Partitions
		}
		b.offsetFetchGroup(r, &one, q.RequireStable, func(g kmsg.OffsetFetchResponseGroup) {
			single(q, resp, &g)
			reply(resp)
		})
		return
	}
	resp.Groups = make([]kmsg.OffsetFetchResponseGroup, len(q.Groups))
	if len(q.Groups) == 0 {
		reply(resp)
		return
	}
	var mu sync.Mutex // guards left and resp
	left := len(q.Groups)
	for i := range q.Groups {
		b.offsetFetchGroup(r, &q.Groups[i], q.RequireStable, func(g kmsg.OffsetFetchResponseGroup) {
			mu.Lock()
			resp.Groups[i] = g
			left--
			last := left == 0
			mu.Unlock()
			if last {
				reply(resp)
			}
		})
	}
}

// single turns the answer for a group into that of a version that has one only.
func single(q *kmsg.OffsetFetchRequest, resp *kmsg.OffsetFetchResponse, g *kmsg.OffsetFetchResponseGroup) {
	resp.ErrorCode = g.ErrorCode
	for _, t := range g.Topics {
		rt := kmsg.OffsetFetchResponseTopic{Topic: t.Topic}
		for _, p := range t.Partitions {
			rt.Partitions = append(rt.Partitions, kmsg.OffsetFetchResponseTopicPartition{
				Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata, ErrorCode: p.ErrorCode,
			})
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if g.ErrorCode == api.CodeNone || q.Version >= offsetFetchHasError {
		return
	}
	// Version 1 can only say it of each partition.
	for _, t := range q.Topics {
		rt := kmsg.OffsetFetchResponseTopic{Topic: t.Topic}
		for _, p := range t.Partitions {
			rt.Partitions = append(rt.Partitions, kmsg.OffsetFetchResponseTopicPartition{
				Partition: p, Offset: -1, LeaderEpoch: -1, Metadata: new(string), ErrorCode: g.ErrorCode,
			})
		}
		resp.Topics = append(resp.Topics, rt)
	}
}

// offsetFetchGroup answers for one group. Names need not be those of topics that exist, ids do.
func (b *Broker) offsetFetchGroup(r *network.Request, g *kmsg.OffsetFetchRequestGroup, stable bool,
	reply func(kmsg.OffsetFetchResponseGroup),
) {
	all := g.Topics == nil
	if !b.allowsGroup(r, security.Describe, g.Group) {
		reply(kmsg.OffsetFetchResponseGroup{Group: g.Group, ErrorCode: api.ErrGroupAuthorizationFailed.Code})
		return
	}
	byID := r.Version >= offsetsByTopicID
	if !byID && b.authorizer == nil {
		b.groups.OffsetFetch(groupContext(r), g, all, stable, reply)
		return
	}
	img := b.image()
	var unknown []kmsg.OffsetFetchResponseGroupTopic
	known := make([]kmsg.OffsetFetchRequestGroupTopic, 0, len(g.Topics))
	for _, t := range g.Topics {
		err := api.ErrUnknownTopicID
		topic := img.Topics.ByID(uuid.UUID(t.TopicID))
		if topic != nil {
			t.Topic = topic.Name
		}
		if topic != nil || !byID {
			if b.allowsTopic(r, security.Describe, t.Topic) {
				known = append(known, t)
				continue
			}
			err = api.ErrTopicAuthorizationFailed
		}
		rt := kmsg.OffsetFetchResponseGroupTopic{Topic: t.Topic, TopicID: t.TopicID}
		for _, p := range t.Partitions {
			rt.Partitions = append(rt.Partitions, kmsg.OffsetFetchResponseGroupTopicPartition{
				Partition: p, Offset: -1, LeaderEpoch: -1, Metadata: new(string), ErrorCode: err.Code,
			})
		}
		unknown = append(unknown, rt)
	}
	g.Topics = known
	b.groups.OffsetFetch(groupContext(r), g, all, stable, func(resp kmsg.OffsetFetchResponseGroup) {
		topics := unknown
		for _, t := range resp.Topics {
			if all && !b.allowsTopic(r, security.Describe, t.Topic) {
				continue
			}
			if all && byID {
				// Offsets may be left of a topic that is just being deleted.
				topic := img.Topics.ByName(t.Topic)
				if topic == nil {
					continue
				}
				t.TopicID = topic.ID
			}
			topics = append(topics, t)
		}
		if resp.ErrorCode == api.CodeNone {
			resp.Topics = topics
		}
		reply(resp)
	})
}
