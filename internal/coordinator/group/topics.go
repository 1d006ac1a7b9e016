package group

import (
	"encoding/binary"
	"slices"
	"time"
	"unicode/utf16"

	"gregor/internal/metadata"
	"gregor/internal/uuid"
	"gregor/internal/xxh3"
)

// topicHash is what is remembered of a topic.
type topicHash struct {
	of   *metadata.Topic
	hash uint64
}

// metadataHash is the hash of topics, which need not exist: their ids, sizes and racks. It is Kafka's (KIP-1101), and decides
// whether something has changed that the target depends on.
func (c *core) metadataHash(topics []string) int64 {
	slices.Sort(topics)
	var b []byte
	for _, name := range topics {
		if t := c.image.Topics.ByName(name); t != nil {
			b = binary.LittleEndian.AppendUint64(b, c.topicHash(t))
		}
	}
	if len(b) == 0 {
		return 0
	}
	return int64(xxh3.Sum64(b))
}

// topicHash hashes one topic and remembers the result while the topic doesn't change. As in Kafka, a broker that moves to
// another rack is only noticed then.
func (c *core) topicHash(t *metadata.Topic) uint64 {
	if h, ok := c.topicHashes[t.ID]; ok && h.of == t {
		return h.hash
	}
	h := xxh3.Sum64(appendTopic(nil, t, c.image.Cluster))
	c.topicHashes[t.ID] = topicHash{t, h}
	return h
}

// appendTopic appends what the hash is of: a zero, the id as two numbers, the name, the number of partitions, and for each
// its number and the racks of its replicas in order.
func appendTopic(b []byte, t *metadata.Topic, cluster *metadata.ClusterImage) []byte {
	b = append(b, 0)
	b = binary.LittleEndian.AppendUint64(b, binary.BigEndian.Uint64(t.ID[:8]))
	b = binary.LittleEndian.AppendUint64(b, binary.BigEndian.Uint64(t.ID[8:]))
	b = appendJavaString(b, t.Name)
	b = binary.LittleEndian.AppendUint32(b, uint32(t.Len()))
	for i := range t.Len() {
		b = binary.LittleEndian.AppendUint32(b, uint32(i))
		p := t.Partition(int32(i))
		if p == nil {
			continue
		}
		var racks []string
		for _, r := range p.Replicas {
			if broker := cluster.Broker(r); broker != nil && broker.Rack != nil {
				racks = append(racks, *broker.Rack)
			}
		}
		slices.Sort(racks)
		for _, r := range racks {
			b = binary.LittleEndian.AppendUint32(b, uint32(javaLength(r)))
			b = appendJavaString(b, r)
		}
	}
	return b
}

// appendJavaString appends a string as Java's hash streams see it: its UTF-16 units and how many they are.
func appendJavaString(b []byte, s string) []byte {
	units := utf16.Encode([]rune(s))
	for _, u := range units {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return binary.LittleEndian.AppendUint32(b, uint32(len(units)))
}

// topicChanges is what happened to topics between two images.
type topicChanges struct {
	// created says that there are topics that regular expressions may match now.
	created bool
	// touched are the names of topics that were created, deleted, or whose partitions or replicas are others now.
	touched []string
	// gone are the ids of topics that were deleted.
	gone []uuid.UUID
}

// changesOf reads them from a delta that was applied.
func changesOf(d *metadata.TopicsDelta) topicChanges {
	var tc topicChanges
	for t := range d.ChangedTopics() {
		switch {
		case t.Created():
			tc.created = true
			tc.touched = append(tc.touched, t.Name)
		case sameLayout(t.Old, t.New, t):
		default:
			tc.touched = append(tc.touched, t.Name)
		}
	}
	for t := range d.DeletedTopics() {
		tc.touched = append(tc.touched, t.Name)
		tc.gone = append(tc.gone, t.ID)
	}
	return tc
}

// sameLayout says whether a topic has the same partitions on the same brokers as before: leaders and ISRs come and go without
// any effect on assignments.
func sameLayout(old, now *metadata.Topic, d *metadata.TopicDelta) bool {
	if old.Len() != now.Len() {
		return false
	}
	for id, p := range d.Changed() {
		o := old.Partition(id)
		if (o == nil) != (p == nil) || p != nil && !slices.Equal(o.Replicas, p.Replicas) {
			return false
		}
	}
	return true
}

// metadataUpdated lets the groups that read changed topics see for themselves with their next heartbeat.
func (c *core) metadataUpdated(img *metadata.Image, tc topicChanges) {
	if img.Offset < c.image.Offset {
		return // the shard was loaded with a later one meanwhile
	}
	c.image = img
	if tc.created {
		c.newTopics = img.Offset
	}
	for _, id := range tc.gone {
		delete(c.topicHashes, id)
	}
	if len(tc.touched) == 0 {
		return
	}
	for _, g := range c.groups.All() {
		switch g := g.(type) {
		case *consumerGroup:
			g.fresh = g.fresh && !slices.ContainsFunc(tc.touched, g.subscribes)
		case *streamsGroup:
			if t := g.topology.Get(); t != nil && slices.ContainsFunc(tc.touched, t.needs) {
				g.touched++
			}
		}
	}
}

// memberTimers are the deadlines of a member of a consumer or streams group. They belong to its group and member id and not to the group,
// which the timeline may replace, and what they do looks first whether the member is still there.
type memberTimers struct {
	// session ends when the member isn't heard of; rebalance when it takes too long to give partitions up; join and sync when
	// a member of the classic protocol takes too long to take part.
	session, rebalance, join, sync timer
}

// memberKey names a member of a group.
type memberKey struct{ group, member string }

// timersOf returns a member's timers.
func (c *core) timersOf(group, member string) *memberTimers {
	k := memberKey{group, member}
	ts := c.timers[k]
	if ts != nil {
		return ts
	}
	ts = &memberTimers{}
	c.timers[k] = ts
	fence := func(why string) func(time.Time) (result, error) {
		return func(now time.Time) (result, error) { return c.fenceOverdue(k, why, now), nil }
	}
	ts.session.Fire = fence("its session expired")
	ts.join.Fire = fence("it failed to join within the rebalance timeout")
	ts.sync.Fire = fence("it failed to sync within the rebalance timeout")
	return ts
}

// startSession lets a member's session end in d from now.
func (c *core) startSession(group, member string, d time.Duration, now time.Time) {
	c.env.Timers.Set(&c.timersOf(group, member).session, now.Add(d))
}

// startRebalance gives a member its rebalance timeout to give up partitions. Nothing stops the timer, since the append of what
// would might fail; but it does nothing to a member that has moved on.
func (c *core) startRebalance(group string, m *consumerMember, now time.Time) {
	k, epoch := memberKey{group, m.id}, m.epoch
	ts := c.timersOf(group, m.id)
	ts.rebalance.Fire = func(now time.Time) (result, error) {
		existing, _ := c.groups.Get(k.group)
		if g, ok := existing.(*consumerGroup); ok {
			if m, ok := g.members.Get(k.member); ok && (m.epoch != epoch || m.state != memberUnrevoked) {
				return result{}, nil
			}
		}
		return c.fenceOverdue(k, "it did not give up its partitions within the rebalance timeout", now), nil
	}
	c.env.Timers.Set(&ts.rebalance, now.Add(time.Duration(m.rebalanceTimeout)*time.Millisecond))
}

// stopTimers forgets a member's timers.
func (c *core) stopTimers(k memberKey) {
	if ts := c.timers[k]; ts != nil {
		for _, t := range []*timer{&ts.session, &ts.rebalance, &ts.join, &ts.sync} {
			c.env.Timers.Stop(t)
		}
		delete(c.timers, k)
	}
}

// fenceOverdue takes a member out of its group, if it is still there.
func (c *core) fenceOverdue(k memberKey, why string, now time.Time) result {
	c.stopTimers(k)
	existing, _ := c.groups.Get(k.group)
	var res result
	found := false
	switch g := existing.(type) {
	case *consumerGroup:
		var m *consumerMember
		if m, found = g.members.Get(k.member); found {
			res = c.fence(g, []*consumerMember{m}, now)
		}
	case *streamsGroup:
		var m *streamsMember
		if m, found = g.members.Get(k.member); found {
			res = c.fenceStreams(g, m)
		}
	}
	if found {
		c.log.Info("group member is fenced", "group", k.group, "member", k.member, "reason", why)
	}
	// A member that isn't there may come back: perhaps it has left, and that is not yet committed.
	then := res.Committed
	res.Committed = func(now time.Time, err error) {
		if then != nil {
			then(now, err)
		}
		if err != nil {
			c.revive(k, now)
		}
	}
	return res
}

// revive gives a member that is still there, since it couldn't be written that it isn't, all the time that it had.
func (c *core) revive(k memberKey, now time.Time) {
	existing, _ := c.groups.Get(k.group)
	switch g := existing.(type) {
	case *consumerGroup:
		if m, ok := g.members.Get(k.member); ok {
			c.startSession(k.group, k.member, c.sessionTimeout(g.id, m), now)
			if m.state == memberUnrevoked && m.classic == nil {
				c.startRebalance(k.group, m, now)
			}
		}
	case *streamsGroup:
		if m, ok := g.members.Get(k.member); ok {
			c.startSession(k.group, k.member, c.streamsSettings(g.id).SessionTimeout, now)
			if m.state == memberUnrevoked {
				c.startTaskRevocation(k.group, m, now)
			}
		}
	}
}
