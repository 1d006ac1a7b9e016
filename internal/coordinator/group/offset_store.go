package group

import (
	"iter"

	"gregor/internal/message"
	"gregor/internal/timeline"
)

// topicPartition names a partition.
type topicPartition struct {
	topic     string
	partition int32
}

// groupPartition names an offset of a group.
type groupPartition struct {
	group string
	topicPartition
}

// pendingOffsets are those of one open transaction, and the groups that it has committed offsets of, which stay in there even
// if the offsets are removed meanwhile.
type pendingOffsets struct {
	offsets *timeline.Map[groupPartition, offset]
	groups  *timeline.Set[string]
}

// offsetStore has the offsets of all groups of a shard, and those that transactions have yet to commit. All of it is on the
// timeline.
type offsetStore struct {
	r *timeline.Registry
	// committed has them by group. Groups without offsets have no entry.
	committed *timeline.Map[string, *timeline.Map[topicPartition, offset]]
	// pending has them by producer id, until the transaction's marker moves them to committed or drops them.
	pending *timeline.Map[int64, *pendingOffsets]
	// open has the producers with pending offsets by group.
	open *timeline.Map[string, *timeline.Set[int64]]
}

func newOffsetStore(r *timeline.Registry) offsetStore {
	return offsetStore{
		r:         r,
		committed: timeline.NewMap[string, *timeline.Map[topicPartition, offset]](r),
		pending:   timeline.NewMap[int64, *pendingOffsets](r),
		open:      timeline.NewMap[string, *timeline.Set[int64]](r),
	}
}

// at returns the offset that a group had committed for tp as of a log offset.
func (s *offsetStore) at(asOf int64, group string, tp topicPartition) (offset, bool) {
	if m, ok := s.committed.At(asOf, group); ok {
		return m.At(asOf, tp)
	}
	return offset{}, false
}

// has says whether a group has committed an offset for tp.
func (s *offsetStore) has(group string, tp topicPartition) bool {
	_, ok := s.at(timeline.Latest, group, tp)
	return ok
}

// allAt has all offsets that a group had committed as of a log offset.
func (s *offsetStore) allAt(asOf int64, group string) iter.Seq2[topicPartition, offset] {
	m, ok := s.committed.At(asOf, group)
	if !ok {
		return func(func(topicPartition, offset) bool) {}
	}
	return m.AllAt(asOf)
}

// hasPending says whether a transaction is about to change the group's offset for tp.
func (s *offsetStore) hasPending(group string, tp topicPartition) bool {
	producers, ok := s.open.Get(group)
	if !ok {
		return false
	}
	for id := range producers.All() {
		if p, ok := s.pending.Get(id); ok {
			if _, ok := p.offsets.Get(groupPartition{group, tp}); ok {
				return true
			}
		}
	}
	return false
}

// hasOpenTransactions says whether transactions are about to change offsets of the group.
func (s *offsetStore) hasOpenTransactions(group string) bool {
	_, ok := s.open.Get(group)
	return ok
}

// tombstones appends the removal of all of a group's offsets, pending ones included, and returns how many they are.
func (s *offsetStore) tombstones(records []Record, group string) ([]Record, int) {
	n := len(records)
	for tp := range s.allAt(timeline.Latest, group) {
		records = append(records, offsetCommitTombstone(group, tp.topic, tp.partition))
	}
	if producers, ok := s.open.Get(group); ok {
		for id := range producers.All() {
			p, ok := s.pending.Get(id)
			if !ok {
				continue
			}
			for gp := range p.offsets.All() {
				// One tombstone removes both.
				if gp.group == group && !s.has(group, gp.topicPartition) {
					records = append(records, offsetCommitTombstone(group, gp.topic, gp.partition))
				}
			}
		}
	}
	return records, len(records) - n
}

// topicTombstones appends the removal of all offsets of deleted topics.
func (s *offsetStore) topicTombstones(records []Record, deleted map[string]bool) []Record {
	for group, m := range s.committed.All() {
		for tp := range m.All() {
			if deleted[tp.topic] {
				records = append(records, offsetCommitTombstone(group, tp.topic, tp.partition))
			}
		}
	}
	for _, p := range s.pending.All() {
		for gp := range p.offsets.All() {
			if deleted[gp.topic] {
				records = append(records, offsetCommitTombstone(gp.group, gp.topic, gp.partition))
			}
		}
	}
	return records
}

// replay applies a commit or, with a nil value, a removal. group and topic are kept.
func (s *offsetStore) replay(at, producerID int64, group, topic string, partition int32, v *message.OffsetCommitValue) {
	tp := topicPartition{topic, partition}
	switch {
	case v == nil:
		s.remove(group, tp)
	case producerID < 0:
		s.put(group, tp, offsetFromRecord(at, v))
	default:
		p, ok := s.pending.Get(producerID)
		if !ok {
			p = &pendingOffsets{
				offsets: timeline.NewMap[groupPartition, offset](s.r),
				groups:  timeline.NewSet[string](s.r),
			}
			s.pending.Set(producerID, p)
		}
		p.offsets.Set(groupPartition{group, tp}, offsetFromRecord(at, v))
		p.groups.Add(group)
		producers, ok := s.open.Get(group)
		if !ok {
			producers = timeline.NewSet[int64](s.r)
			s.open.Set(group, producers)
		}
		producers.Add(producerID)
	}
}

func (s *offsetStore) put(group string, tp topicPartition, o offset) {
	m, ok := s.committed.Get(group)
	if !ok {
		m = timeline.NewMap[topicPartition, offset](s.r)
		s.committed.Set(group, m)
	}
	m.Set(tp, o)
}

func (s *offsetStore) remove(group string, tp topicPartition) {
	if m, ok := s.committed.Get(group); ok {
		m.Delete(tp)
		if m.Len() == 0 {
			s.committed.Delete(group)
		}
	}
	if producers, ok := s.open.Get(group); ok {
		for id := range producers.All() {
			if p, ok := s.pending.Get(id); ok {
				p.offsets.Delete(groupPartition{group, tp})
			}
		}
	}
}

// endTransaction applies a marker: the producer's pending offsets become committed, or are forgotten.
func (s *offsetStore) endTransaction(producerID int64, commit bool) {
	p, ok := s.pending.Delete(producerID)
	if !ok {
		return
	}
	for group := range p.groups.All() {
		if producers, ok := s.open.Get(group); ok && producers.Remove(producerID) && producers.Len() == 0 {
			s.open.Delete(group)
		}
	}
	if !commit {
		return
	}
	for gp, o := range p.offsets.All() {
		// Where transactional and plain commits mix, the later record in the log wins, as it would when compaction has
		// removed the earlier one.
		if old, ok := s.at(timeline.Latest, gp.group, gp.topicPartition); !ok || o.recordOffset > old.recordOffset {
			s.put(gp.group, gp.topicPartition, o)
		}
	}
}
