package group

import (
	"slices"

	"gregor/internal/uuid"
)

// partitions is a set of partitions: topics in rising order of their ids, none without partitions, and the partitions of each
// rising. It is immutable; whatever changes one makes another.
type partitions []topicPartitions

// topicPartitions are the partitions of one topic.
type topicPartitions struct {
	topic      uuid.UUID
	partitions []int32
	// epochs has, of partitions that a member holds, for each the member epoch as of which it does. It is nil in a target.
	epochs []int32
}

// find returns a topic's partitions, nil if there are none.
func (ps partitions) find(topic uuid.UUID) *topicPartitions {
	i, ok := slices.BinarySearchFunc(ps, topic, func(tp topicPartitions, id uuid.UUID) int { return tp.topic.Compare(id) })
	if !ok {
		return nil
	}
	return &ps[i]
}

// has says whether the partition is in the set.
func (ps partitions) has(topic uuid.UUID, partition int32) bool {
	tp := ps.find(topic)
	if tp == nil {
		return false
	}
	_, ok := slices.BinarySearch(tp.partitions, partition)
	return ok
}

// epoch is the epoch as of which a partition is held; ok false if it isn't.
func (ps partitions) epoch(topic uuid.UUID, partition int32) (epoch int32, ok bool) {
	tp := ps.find(topic)
	if tp == nil {
		return 0, false
	}
	i, ok := slices.BinarySearch(tp.partitions, partition)
	if !ok {
		return 0, false
	}
	return tp.epochs[i], true
}

// count is how many partitions there are.
func (ps partitions) count() int {
	n := 0
	for i := range ps {
		n += len(ps[i].partitions)
	}
	return n
}

// equal compares partitions and their epochs. What hasn't changed is usually the same memory.
func (ps partitions) equal(o partitions) bool {
	if len(ps) == len(o) && (len(ps) == 0 || &ps[0] == &o[0]) {
		return true
	}
	return slices.EqualFunc(ps, o, func(a, b topicPartitions) bool {
		return a.topic == b.topic && slices.Equal(a.partitions, b.partitions) && slices.Equal(a.epochs, b.epochs)
	})
}

// split divides the set in two: what keep says yes to, and the rest.
func (ps partitions) split(keep func(topic uuid.UUID, partition int32) bool) (kept, rest partitions) {
	for i := range ps {
		tp := &ps[i]
		in, out := topicPartitions{topic: tp.topic}, topicPartitions{topic: tp.topic}
		for j, p := range tp.partitions {
			to := &out
			if keep(tp.topic, p) {
				to = &in
			}
			to.partitions = append(to.partitions, p)
			if tp.epochs != nil {
				to.epochs = append(to.epochs, tp.epochs[j])
			}
		}
		switch {
		case out.partitions == nil:
			kept = append(kept, *tp)
		case in.partitions == nil:
			rest = append(rest, *tp)
		default:
			kept, rest = append(kept, in), append(rest, out)
		}
	}
	return kept, rest
}

// union is the partitions of either. Those that are in both have the epochs that o has.
func (ps partitions) union(o partitions) partitions {
	if len(ps) == 0 {
		return o
	}
	if len(o) == 0 {
		return ps
	}
	var u partitions
	for len(ps) > 0 && len(o) > 0 {
		switch c := ps[0].topic.Compare(o[0].topic); {
		case c < 0:
			u, ps = append(u, ps[0]), ps[1:]
		case c > 0:
			u, o = append(u, o[0]), o[1:]
		default:
			u = append(u, ps[0].merge(&o[0]))
			ps, o = ps[1:], o[1:]
		}
	}
	return append(append(u, ps...), o...)
}

func (tp *topicPartitions) merge(o *topicPartitions) topicPartitions {
	m := topicPartitions{topic: tp.topic}
	i, j := 0, 0
	for i < len(tp.partitions) || j < len(o.partitions) {
		from, at := tp, i
		if i == len(tp.partitions) || j < len(o.partitions) && o.partitions[j] <= tp.partitions[i] {
			if i < len(tp.partitions) && o.partitions[j] == tp.partitions[i] {
				i++
			}
			from, at = o, j
			j++
		} else {
			i++
		}
		m.partitions = append(m.partitions, from.partitions[at])
		if from.epochs != nil {
			m.epochs = append(m.epochs, from.epochs[at])
		}
	}
	return m
}

// since is the same set, all held as of one epoch.
func (ps partitions) since(epoch int32) partitions {
	if len(ps) == 0 {
		return nil
	}
	s := make(partitions, len(ps))
	for i, tp := range ps {
		s[i] = topicPartitions{tp.topic, tp.partitions, slices.Repeat([]int32{epoch}, len(tp.partitions))}
	}
	return s
}

// plain is the same set without epochs.
func (ps partitions) plain() partitions {
	if len(ps) == 0 {
		return nil
	}
	s := make(partitions, len(ps))
	for i, tp := range ps {
		s[i] = topicPartitions{topic: tp.topic, partitions: tp.partitions}
	}
	return s
}

// normalize makes a set of partitions that came in any order. It takes tps over. Of those that are there twice one stays.
func normalize(tps []topicPartitions) partitions {
	slices.SortStableFunc(tps, func(a, b topicPartitions) int { return a.topic.Compare(b.topic) })
	var ps partitions
	for i := range tps {
		tp := &tps[i]
		if len(tp.partitions) == 0 {
			continue
		}
		tp.sort()
		if n := len(ps); n > 0 && ps[n-1].topic == tp.topic {
			ps[n-1] = ps[n-1].merge(tp)
			continue
		}
		ps = append(ps, *tp)
	}
	return ps
}

// sort orders the partitions, with their epochs, and drops repetitions.
func (tp *topicPartitions) sort() {
	sorted := true
	for i := 1; i < len(tp.partitions); i++ {
		sorted = sorted && tp.partitions[i-1] < tp.partitions[i]
	}
	if sorted {
		return
	}
	if tp.epochs == nil {
		tp.partitions = slices.Clone(tp.partitions)
		slices.Sort(tp.partitions)
		tp.partitions = slices.Compact(tp.partitions)
		return
	}
	order := make([]int, len(tp.partitions))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(tp.partitions[a]) - int(tp.partitions[b]) })
	var s topicPartitions
	for _, i := range order {
		if n := len(s.partitions); n > 0 && s.partitions[n-1] == tp.partitions[i] {
			continue
		}
		s.partitions, s.epochs = append(s.partitions, tp.partitions[i]), append(s.epochs, tp.epochs[i])
	}
	tp.partitions, tp.epochs = s.partitions, s.epochs
}
