package metadata

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"slices"

	"gregor/internal/message"
	"gregor/internal/pmap"
	"gregor/internal/uuid"
)

// Topic is one topic with its partitions. It is immutable.
type Topic struct {
	Name       string
	ID         uuid.UUID
	partitions vector
}

// Partition returns the partition with that id, or nil.
func (t *Topic) Partition(id int32) *Partition {
	if t == nil {
		return nil
	}
	return t.partitions.get(id)
}

// Len is the number of partitions.
func (t *Topic) Len() int { return t.partitions.count }

// Partitions goes through the partitions in rising order of ids.
func (t *Topic) Partitions() iter.Seq2[int32, *Partition] { return t.partitions.all() }

// TopicsImage is all topics. It is immutable.
type TopicsImage struct {
	byID       pmap.Map[uuid.UUID, *Topic]
	byName     pmap.Map[string, *Topic]
	partitions int
	intern     *interner
}

func newTopicsImage() *TopicsImage {
	return &TopicsImage{byID: pmap.New[uuid.UUID, *Topic](hashUUID), byName: pmap.New[string, *Topic](pmap.HashString), intern: newInterner()}
}

func hashUUID(u uuid.UUID) uint64 {
	return pmap.Mix(binary.BigEndian.Uint64(u[:8]) ^ pmap.Mix(binary.BigEndian.Uint64(u[8:])))
}

// ByID returns the topic with that id, or nil.
func (t *TopicsImage) ByID(id uuid.UUID) *Topic {
	topic, _ := t.byID.Get(id)
	return topic
}

// ByName returns the topic of that name, or nil.
func (t *TopicsImage) ByName(name string) *Topic {
	topic, _ := t.byName.Get(name)
	return topic
}

// Partition returns a partition by the name of its topic, or nil.
func (t *TopicsImage) Partition(topic string, id int32) *Partition {
	return t.ByName(topic).Partition(id)
}

// Len is the number of topics.
func (t *TopicsImage) Len() int { return t.byID.Len() }

// PartitionCount is the number of partitions of all topics.
func (t *TopicsImage) PartitionCount() int { return t.partitions }

// All goes through the topics in an order that depends on their ids alone.
func (t *TopicsImage) All() iter.Seq[*Topic] {
	return func(yield func(*Topic) bool) {
		for _, topic := range t.byID.All() {
			if !yield(topic) {
				return
			}
		}
	}
}

func (t *TopicsImage) write(w func(message.Versioned) error, o *WriteOptions) error {
	for topic := range t.All() {
		if err := w(message.Versioned{Message: &message.TopicRecord{Name: topic.Name, TopicID: topic.ID}}); err != nil {
			return err
		}
		for id, p := range topic.Partitions() {
			r := p.record(topic.ID, id, o)
			if err := w(message.Versioned{Message: r, Version: o.MetadataVersion.PartitionRecordVersion()}); err != nil {
				return err
			}
		}
	}
	return nil
}

// TopicDelta is what changed in one topic.
type TopicDelta struct {
	// Name and ID are the topic's.
	Name string
	ID   uuid.UUID
	// Old is the topic in the delta's base image; nil when the delta creates it.
	Old *Topic
	// New is the topic after the delta; it is set by Delta.Apply.
	New *Topic

	base    vector // what the changes go on top of: Old's partitions, unless a TopicRecord began the topic anew
	changed map[int32]Partition
	all     bool // every partition of New counts as changed; changed is not used
}

// Created says whether the topic isn't in the delta's base image.
func (d *TopicDelta) Created() bool { return d.Old == nil }

// Changed goes through the partitions that the delta changes, in rising order of ids. Use it after Delta.Apply.
func (d *TopicDelta) Changed() iter.Seq2[int32, *Partition] {
	if d.all {
		return d.New.Partitions()
	}
	return func(yield func(int32, *Partition) bool) {
		for _, id := range slices.Sorted(maps.Keys(d.changed)) {
			if !yield(id, d.New.Partition(id)) {
				return
			}
		}
	}
}

func (d *TopicDelta) partition(id int32) *Partition {
	if p, ok := d.changed[id]; ok {
		return &p
	}
	return d.base.get(id)
}

func (d *TopicDelta) apply() *Topic {
	if d.all {
		return d.New
	}
	changes := make([]change, 0, len(d.changed))
	for _, id := range slices.Sorted(maps.Keys(d.changed)) {
		changes = append(changes, change{id, d.changed[id]})
	}
	d.New = &Topic{Name: d.Name, ID: d.ID, partitions: d.base.set(changes)}
	return d.New
}

// TopicsDelta is what changed in the topics.
type TopicsDelta struct {
	// Changed is the topics that were created or have changed partitions.
	Changed map[uuid.UUID]*TopicDelta
	// Deleted is the topics of the base image that are gone. A topic of the same name may be in Changed with another id.
	Deleted map[uuid.UUID]*Topic

	base  *TopicsImage
	names map[string]uuid.UUID // of the topics that a TopicRecord named
}

func newTopicsDelta(base *TopicsImage) *TopicsDelta {
	return &TopicsDelta{Changed: map[uuid.UUID]*TopicDelta{}, Deleted: map[uuid.UUID]*Topic{}, base: base, names: map[string]uuid.UUID{}}
}

// topic finds or begins the delta of a topic that there is.
func (d *TopicsDelta) topic(id uuid.UUID) (*TopicDelta, error) {
	if t := d.Changed[id]; t != nil {
		return t, nil
	}
	old := d.base.ByID(id)
	if old == nil || d.Deleted[id] != nil {
		return nil, fmt.Errorf("no topic with id %v", id)
	}
	t := &TopicDelta{Name: old.Name, ID: id, Old: old, base: old.partitions, changed: map[int32]Partition{}}
	d.Changed[id] = t
	return t, nil
}

func (d *TopicsDelta) replayTopic(r *message.TopicRecord) {
	// A snapshot that is loaded over an older image names topics that are there: they begin anew.
	d.Changed[r.TopicID] = &TopicDelta{Name: r.Name, ID: r.TopicID, Old: d.base.ByID(r.TopicID), changed: map[int32]Partition{}}
	d.names[r.Name] = r.TopicID
	delete(d.Deleted, r.TopicID)
}

func (d *TopicsDelta) replayPartition(r *message.PartitionRecord) error {
	t, err := d.topic(r.TopicID)
	if err != nil {
		return err
	}
	if r.PartitionID < 0 {
		return fmt.Errorf("topic %s: partition id %d", t.Name, r.PartitionID)
	}
	p, err := d.base.intern.fromRecord(r)
	if err != nil {
		return fmt.Errorf("partition %s-%d: %w", t.Name, r.PartitionID, err)
	}
	t.changed[r.PartitionID] = p
	return nil
}

func (d *TopicsDelta) replayChange(r *message.PartitionChangeRecord) error {
	t, err := d.topic(r.TopicID)
	if err != nil {
		return err
	}
	old := t.partition(r.PartitionID)
	if old == nil {
		return fmt.Errorf("topic %s has no partition %d", t.Name, r.PartitionID)
	}
	p, err := d.base.intern.merge(old, r)
	if err != nil {
		return fmt.Errorf("partition %s-%d: %w", t.Name, r.PartitionID, err)
	}
	t.changed[r.PartitionID] = p
	return nil
}

// replayRemove returns the topic's name.
func (d *TopicsDelta) replayRemove(id uuid.UUID) (string, error) {
	t, err := d.topic(id)
	if err != nil {
		return "", err
	}
	delete(d.Changed, id)
	if d.names[t.Name] == id {
		delete(d.names, t.Name)
	}
	if t.Old != nil {
		d.Deleted[id] = t.Old
	}
	return t.Name, nil
}

func (d *TopicsDelta) replayClearELR(r *message.ClearElrRecord) error {
	if r.TopicName != "" {
		id, ok := d.names[r.TopicName]
		if !ok {
			t := d.base.ByName(r.TopicName)
			if t == nil || d.Deleted[t.ID] != nil {
				return fmt.Errorf("no topic %q", r.TopicName)
			}
			id = t.ID
		}
		t, err := d.topic(id)
		if err != nil {
			return err
		}
		return d.clearELR(t)
	}
	for topic := range d.base.All() {
		if d.Deleted[topic.ID] != nil || d.Changed[topic.ID] != nil {
			continue
		}
		// Topics without anything to clear must not show up as changed.
		for _, p := range topic.Partitions() {
			if len(p.ELR) > 0 || len(p.LastKnownELR) > 0 {
				t, err := d.topic(topic.ID)
				if err != nil {
					return err
				}
				d.Changed[topic.ID] = t
				break
			}
		}
	}
	for _, t := range d.Changed {
		if err := d.clearELR(t); err != nil {
			return err
		}
	}
	return nil
}

func (d *TopicsDelta) clearELR(t *TopicDelta) error {
	empty := []int32{}
	r := message.NewPartitionChangeRecord()
	r.TopicID, r.EligibleLeaderReplicas, r.LastKnownELR = t.ID, empty, empty
	clearOne := func(id int32, p *Partition) error {
		if len(p.ELR) == 0 && len(p.LastKnownELR) == 0 {
			return nil
		}
		n, err := d.base.intern.merge(p, r)
		if err != nil {
			return err
		}
		t.changed[id] = n
		return nil
	}
	for id, p := range t.changed {
		if err := clearOne(id, &p); err != nil {
			return err
		}
	}
	for id, p := range t.base.all() {
		if _, ok := t.changed[id]; ok {
			continue
		}
		if err := clearOne(id, p); err != nil {
			return err
		}
	}
	return nil
}

// finishSnapshot deletes what the snapshot did not name.
func (d *TopicsDelta) finishSnapshot() {
	for t := range d.base.All() {
		if d.Changed[t.ID] == nil {
			d.Deleted[t.ID] = t
		}
	}
}

func (d *TopicsDelta) apply() *TopicsImage {
	byID, byName := d.base.byID.Builder(), d.base.byName.Builder()
	n := d.base.partitions
	for id, t := range d.Deleted {
		byID.Delete(id)
		byName.Delete(t.Name)
		n -= t.Len()
	}
	for id, t := range d.Changed {
		topic := t.apply()
		if t.Old != nil {
			n -= t.Old.Len()
		}
		n += topic.Len()
		byID.Set(id, topic)
		byName.Set(topic.Name, topic)
	}
	return &TopicsImage{byID: byID.Map(), byName: byName.Map(), partitions: n, intern: d.base.intern}
}

// fullTopicsDelta is the delta from no topics to t.
func fullTopicsDelta(t *TopicsImage) *TopicsDelta {
	d := newTopicsDelta(newTopicsImage())
	for topic := range t.All() {
		d.Changed[topic.ID] = &TopicDelta{Name: topic.Name, ID: topic.ID, New: topic, all: true}
	}
	return d
}

// LocalPartition is one partition as a broker sees it change.
type LocalPartition struct {
	Topic     string
	TopicID   uuid.UUID
	Partition int32
	// State is the new state, or the last one when the topic is deleted.
	State *Partition
}

// LocalChanges is what a delta means for the replicas of one broker.
type LocalChanges struct {
	// Deleted is the partitions that the broker no longer has a replica of, because the replica moved away or the topic
	// is gone.
	Deleted []LocalPartition
	// Leaders is the partitions that the broker leads and whose partition epoch rose.
	Leaders []LocalPartition
	// Elected is those of Leaders whose leader epoch rose.
	Elected []LocalPartition
	// Followers is the partitions that the broker has a replica of, doesn't lead, and whose partition epoch rose.
	Followers []LocalPartition
	// Directories is the partitions of the broker whose replica got another log directory.
	Directories []LocalPartition
}

// ChangedTopics goes through Changed in the order of the topic ids.
func (d *TopicsDelta) ChangedTopics() iter.Seq[*TopicDelta] { return inOrder(d.Changed) }

// DeletedTopics goes through Deleted in the order of the topic ids.
func (d *TopicsDelta) DeletedTopics() iter.Seq[*Topic] { return inOrder(d.Deleted) }

func inOrder[V any](m map[uuid.UUID]V) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, id := range slices.SortedFunc(maps.Keys(m), uuid.UUID.Compare) {
			if !yield(m[id]) {
				return
			}
		}
	}
}

// LocalChanges says what the delta means for one broker. Use it after Delta.Apply. The order is that of topic ids and
// partitions.
func (d *TopicsDelta) LocalChanges(broker int32) LocalChanges {
	var c LocalChanges
	for t := range d.ChangedTopics() {
		for id, p := range t.Changed() {
			lp := LocalPartition{t.Name, t.ID, id, p}
			prev := t.Old.Partition(id)
			dir, mine := p.Directory(broker)
			if !mine {
				if prev != nil && prev.HasReplica(broker) {
					c.Deleted = append(c.Deleted, lp)
				}
				continue
			}
			if prev == nil || prev.PartitionEpoch != p.PartitionEpoch {
				if p.Leader == broker {
					c.Leaders = append(c.Leaders, lp)
					if prev == nil || prev.LeaderEpoch != p.LeaderEpoch {
						c.Elected = append(c.Elected, lp)
					}
				} else {
					c.Followers = append(c.Followers, lp)
				}
			}
			var before uuid.UUID
			had := false
			if prev != nil {
				before, had = prev.Directory(broker)
			}
			if !had || before != dir {
				c.Directories = append(c.Directories, lp)
			}
		}
	}
	for t := range d.DeletedTopics() {
		for id, p := range t.Partitions() {
			if p.HasReplica(broker) {
				c.Deleted = append(c.Deleted, LocalPartition{t.Name, t.ID, id, p})
			}
		}
	}
	return c
}
