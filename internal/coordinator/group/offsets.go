package group

import (
	"strings"
	"time"
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// commitNamesGroup is the version of OffsetCommit from which a group that isn't there is called that.
const commitNamesGroup = 9

// defaultRetention in an OffsetCommit means the broker's.
const defaultRetention = -1

// commitRequest is an OffsetCommit or a TxnOffsetCommit.
type commitRequest struct {
	group     string
	check     commitCheck
	retention int64 // ms, defaultRetention but for OffsetCommit v2 to v4
	topics    []kmsg.OffsetCommitRequestTopic
}

// commit stores offsets. codes has for each topic and partition of the request, in its order, what has become of it.
func (c *core) commit(r *commitRequest, now time.Time) (res result, codes [][]int16, err error) {
	g, ok := c.groups.Get(r.group)
	var check partitionCheck
	switch {
	case ok:
		if check, err = g.checkOffsetCommit(&r.check); err != nil {
			return result{}, nil, err
		}
	case r.check.generation >= 0:
		if !r.check.transactional && r.check.version >= commitNamesGroup {
			_, err := c.group(r.group, timeline.Latest)
			return result{}, nil, err
		}
		return result{}, nil, api.ErrIllegalGeneration
	}
	id := r.group
	if ok {
		id = g.groupID()
	} else {
		// Replaying the first record makes the group.
		id = strings.Clone(id)
	}
	if cg, ok := g.(*classicGroup); ok && !r.check.transactional && (cg.state == stateStable || cg.state == statePreparing) {
		if m := cg.member(r.check.memberID); m != nil {
			c.prolong(cg, m, m.sessionTimeout, now)
		}
	}

	total := 0
	for i := range r.topics {
		total += len(r.topics[i].Partitions)
	}
	var (
		nowMs   = now.UnixMilli()
		keys    = make([]message.OffsetCommitKey, 0, total)
		values  = make([]message.OffsetCommitValue, 0, total)
		results = make([]int16, total)
		expire  = int64(noTimestamp)
		version = int16(offsetCommitVersion)
	)
	if r.retention != defaultRetention {
		expire, version = nowMs+r.retention, offsetCommitExpireVersion
	}
	res.Records = make([]Record, 0, total)
	codes = make([][]int16, len(r.topics))
	for i := range r.topics {
		t := &r.topics[i]
		codes[i], results = results[:len(t.Partitions):len(t.Partitions)], results[len(t.Partitions):]
		topic := c.intern(t.Topic)
		for j := range t.Partitions {
			p := &t.Partitions[j]
			var metadata string
			if p.Metadata != nil {
				if javaLength(*p.Metadata) > c.cfg.OffsetMetadataMaxSize {
					codes[i][j] = api.ErrOffsetMetadataTooLarge.Code
					continue
				}
				metadata = strings.Clone(*p.Metadata)
			}
			if check != nil {
				if err := check(topic, t.TopicID, p.Partition); err != nil {
					return result{}, nil, err
				}
			}
			keys = append(keys, message.OffsetCommitKey{Group: id, Topic: topic, Partition: p.Partition})
			values = append(values, message.OffsetCommitValue{
				Offset:          p.Offset,
				LeaderEpoch:     p.LeaderEpoch,
				Metadata:        metadata,
				CommitTimestamp: nowMs,
				ExpireTimestamp: expire,
				TopicID:         uuid.UUID(t.TopicID),
			})
			res.Records = append(res.Records, Record{
				Key: &keys[len(keys)-1], Value: &values[len(values)-1], Version: version,
			})
		}
	}
	if !r.check.transactional {
		c.counters.commits.Add(int64(len(res.Records)))
	}
	return res, codes, nil
}

// javaLength is String.length: UTF-16 units.
func javaLength(s string) int {
	n := 0
	for _, r := range s {
		n += max(utf16.RuneLen(r), 1)
	}
	return n
}

// fetchOffsets answers OffsetFetch for one group: the partitions asked for, or all that it has if topics is nil. With stable
// the answer is of the present state, unless a transaction is about to change it.
func (c *core) fetchOffsets(r *kmsg.OffsetFetchRequestGroup, all, stable bool, asOf int64) (kmsg.OffsetFetchResponseGroup, error) {
	resp := kmsg.NewOffsetFetchResponseGroup()
	resp.Group = r.Group
	found := true
	if g, ok := c.groups.At(asOf, r.Group); !ok {
		found = false
	} else if err := g.checkOffsetFetch(r.MemberID, r.MemberEpoch, asOf); api.CodeOf(err) == api.ErrGroupIDNotFound.Code {
		found = false
	} else if err != nil {
		return resp, err
	}
	answer := func(tp topicPartition, id uuid.UUID) kmsg.OffsetFetchResponseGroupTopicPartition {
		p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = tp.partition, -1, -1, new(string)
		if stable && c.offsets.hasPending(r.Group, tp) {
			p.ErrorCode = api.ErrUnstableOffsetCommit.Code
			return p
		}
		if !found {
			return p
		}
		o, ok := c.offsets.at(asOf, r.Group, tp)
		// An offset of a topic of that name that was deleted meanwhile isn't one of the present topic.
		if ok && (o.topicID == uuid.Zero || id == uuid.Zero || o.topicID == id) {
			p.Offset, p.LeaderEpoch, p.Metadata = o.offset, o.leaderEpoch, &o.metadata
		}
		return p
	}
	if !all {
		resp.Topics = make([]kmsg.OffsetFetchResponseGroupTopic, len(r.Topics))
		for i := range r.Topics {
			rt, t := &r.Topics[i], &resp.Topics[i]
			t.Topic, t.TopicID = rt.Topic, rt.TopicID
			t.Partitions = make([]kmsg.OffsetFetchResponseGroupTopicPartition, len(rt.Partitions))
			for j, p := range rt.Partitions {
				t.Partitions[j] = answer(topicPartition{rt.Topic, p}, rt.TopicID)
			}
		}
		return resp, nil
	}
	if !found {
		return resp, nil
	}
	byTopic := make(map[string]int)
	for tp, o := range c.offsets.allAt(asOf, r.Group) {
		i, ok := byTopic[tp.topic]
		if !ok {
			i = len(resp.Topics)
			byTopic[tp.topic] = i
			t := kmsg.NewOffsetFetchResponseGroupTopic()
			t.Topic, t.TopicID = tp.topic, o.topicID
			resp.Topics = append(resp.Topics, t)
		}
		t := &resp.Topics[i]
		t.Partitions = append(t.Partitions, answer(tp, uuid.Zero))
	}
	return resp, nil
}

// deleteOffsets answers OffsetDelete.
func (c *core) deleteOffsets(r *kmsg.OffsetDeleteRequest) (result, *kmsg.OffsetDeleteResponse, error) {
	g, err := c.group(r.Group, timeline.Latest)
	if err == nil {
		err = g.checkOffsetDelete()
	}
	if err != nil {
		return result{}, nil, err
	}
	var res result
	resp := kmsg.NewPtrOffsetDeleteResponse()
	for i := range r.Topics {
		rt := &r.Topics[i]
		t := kmsg.NewOffsetDeleteResponseTopic()
		t.Topic = rt.Topic
		subscribed := g.subscribes(rt.Topic)
		for _, rp := range rt.Partitions {
			p := kmsg.NewOffsetDeleteResponseTopicPartition()
			p.Partition = rp.Partition
			tp := topicPartition{rt.Topic, rp.Partition}
			if subscribed {
				p.ErrorCode = api.ErrGroupSubscribedToTopic.Code
			} else if c.offsets.has(r.Group, tp) || c.offsets.hasPending(r.Group, tp) {
				res.Records = append(res.Records, offsetCommitTombstone(g.groupID(), c.intern(rt.Topic), rp.Partition))
			}
			t.Partitions = append(t.Partitions, p)
		}
		resp.Topics = append(resp.Topics, t)
	}
	c.counters.deleted.Add(int64(len(res.Records)))
	return res, resp, nil
}

// expireOffsets removes offsets that nobody has use for any more, and groups that have nothing left. It is the
// expiration timer's.
func (c *core) expireOffsets(now time.Time) (result, error) {
	c.env.Timers.Set(&c.expiration, now.Add(c.cfg.OffsetsRetentionCheckInterval))
	res := result{Splittable: true}
	for id, g := range c.groups.All() {
		before := len(res.Records)
		var left bool
		res.Records, left = c.expireGroup(res.Records, g, now)
		c.counters.expired.Add(int64(len(res.Records) - before))
		if !left && !c.offsets.hasOpenTransactions(id) && g.empty() && g.kind() != Share {
			res.Records = g.tombstones(res.Records)
		}
		if n := len(res.Records) - before; n > 0 {
			c.log.Debug("offsets expired", "group", id, "records", n)
		}
	}
	if len(res.Records) > 0 {
		c.log.Info("removing expired offsets and groups", "records", len(res.Records))
	}
	return res, nil
}

// expireGroup appends the removal of a group's expired offsets and says whether any are left.
func (c *core) expireGroup(records []Record, g group, now time.Time) (_ []Record, left bool) {
	m, ok := c.offsets.committed.Get(g.groupID())
	if !ok {
		return records, false
	}
	from, ok := g.expiry()
	if !ok {
		return records, true
	}
	nowMs, retention := now.UnixMilli(), c.cfg.OffsetsRetention.Milliseconds()
	subscribed := make(map[string]bool)
	for tp, o := range m.All() {
		s, known := subscribed[tp.topic]
		if !known {
			s = g.subscribes(tp.topic)
			subscribed[tp.topic] = s
		}
		expired := nowMs-from(&o) >= retention
		if o.expireTimestamp != noTimestamp {
			expired = nowMs >= o.expireTimestamp
		}
		// Differs from Kafka: when a topic is deleted its offsets go with it, but that may fail or come while the partition is loading.
		// The metadata are not so far behind that the topic could be newer than they.
		gone := o.topicID != uuid.Zero && nowMs-o.commitTimestamp >= c.cfg.OffsetsRetentionCheckInterval.Milliseconds() &&
			c.image.Topics.ByID(o.topicID) == nil
		if !gone && (s || !expired) || c.offsets.hasPending(g.groupID(), tp) {
			left = true
			continue
		}
		records = append(records, offsetCommitTombstone(g.groupID(), tp.topic, tp.partition))
	}
	return records, left
}

// topicsDeleted removes the offsets of topics that don't exist any more.
func (c *core) topicsDeleted(topics map[string]bool) result {
	return result{Records: c.offsets.topicTombstones(nil, topics), Splittable: true}
}
