package group

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gregor/internal/uuid"
)

// assignee is what an assignor has to know of a member.
type assignee struct {
	id string
	// instance is the instance id of a static member.
	instance *string
	// topics that it reads, rising; topics that don't exist are not among them.
	topics []uuid.UUID
	// now is its target so far.
	now partitions
}

// assignment is the task of an assignor.
type assignment struct {
	// members in rising order of their ids, so that the same members always get the same.
	members []assignee
	// alike says that all members read the same topics.
	alike bool
	// size is how many partitions a topic has.
	size func(topic uuid.UUID) int
}

// assignor computes the new target of each member, in their order. Every partition of a topic that somebody reads goes to one
// of its readers. Rack ids are not looked at, as Kafka's assignors don't.
type assignor func(*assignment) []partitions

// assignors are those that there are, by their names.
var assignors = map[string]assignor{"uniform": uniform, "range": ranges}

// ParseAssignors turns "group.consumer.assignors", names or the class names of Kafka's own, into names.
func ParseAssignors(list []string) ([]string, error) {
	classes := map[string]string{
		"org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
		"org.apache.kafka.coordinator.group.assignor.RangeAssignor":   "range",
	}
	var names []string
	for _, s := range list {
		name := s
		if c, ok := classes[s]; ok {
			name = c
		}
		if assignors[name] == nil {
			return nil, fmt.Errorf("group.consumer.assignors: there is no assignor %q, only uniform and range", s)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("group.consumer.assignors: no assignor")
	}
	return names, nil
}

// ranges gives each member a range of each of its topics. Members that read topics of the same size get the same partitions
// of all of them. Static members come first, so that their ranges stay where they are as dynamic ones come and go.
func ranges(a *assignment) []partitions {
	order := make([]int, len(a.members))
	readers := make(map[uuid.UUID]int)
	for i := range a.members {
		order[i] = i
		for _, t := range a.members[i].topics {
			readers[t]++
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		mi, mj := &a.members[i], &a.members[j]
		switch {
		case mi.instance != nil && mj.instance != nil:
			return strings.Compare(*mi.instance, *mj.instance)
		case mi.instance != nil:
			return -1
		case mj.instance != nil:
			return 1
		}
		return strings.Compare(mi.id, mj.id)
	})
	type progress struct{ next, quota, extra, size int }
	topics := make(map[uuid.UUID]*progress, len(readers))
	for t, n := range readers {
		size := a.size(t)
		topics[t] = &progress{quota: size / n, extra: size % n, size: size}
	}
	targets := make([]partitions, len(a.members))
	for _, i := range order {
		var target partitions
		for _, t := range a.members[i].topics {
			p := topics[t]
			n := p.quota
			if p.extra > 0 {
				n++
				p.extra--
			}
			n = min(n, p.size-p.next)
			if n == 0 {
				continue
			}
			tp := topicPartitions{topic: t, partitions: make([]int32, n)}
			for k := range tp.partitions {
				tp.partitions[k] = int32(p.next + k)
			}
			p.next += n
			target = append(target, tp)
		}
		targets[i] = target
	}
	return targets
}

// uniform gives members the same number of partitions, as far as what they read allows it, and moves as few as it takes.
func uniform(a *assignment) []partitions {
	if len(a.members) == 0 {
		return nil
	}
	if a.alike {
		return uniformAlike(a)
	}
	return uniformMixed(a)
}

// topicPartition with the topic by its id.
type partitionID struct {
	topic     uuid.UUID
	partition int32
}

// uniformAlike is for members who all read the same topics: each has a quota, and some have one more.
func uniformAlike(a *assignment) []partitions {
	topics := a.members[0].topics
	targets := make([]partitions, len(a.members))
	total := 0
	taken := make(map[uuid.UUID][]bool, len(topics))
	for _, t := range topics {
		n := a.size(t)
		total += n
		taken[t] = make([]bool, n)
	}
	// First, who keeps what. A member that has one more than the quota keeps it while there are such places.
	quota, extra := total/len(a.members), total%len(a.members)
	room := make([]int, len(a.members))
	for i := range a.members {
		left, favoured := quota, extra > 0
		if favoured {
			left++
		}
		kept, _ := a.members[i].now.split(func(t uuid.UUID, p int32) bool {
			own, ok := taken[t]
			if !ok || int(p) >= len(own) || own[p] || left == 0 {
				return false
			}
			own[p] = true
			left--
			return true
		})
		targets[i] = kept
		if favoured && left > 0 && len(a.members)-i > extra {
			// It doesn't need its extra place, and others can still use it.
			left--
			favoured = false
		}
		if favoured {
			extra--
		}
		room[i] = left
	}
	// Then the rest goes to those with room.
	var free []partitionID
	for _, t := range topics {
		for p, is := range taken[t] {
			if !is {
				free = append(free, partitionID{t, int32(p)})
			}
		}
	}
	for i := range a.members {
		n := min(room[i], len(free))
		if n == 0 {
			continue
		}
		targets[i] = targets[i].union(collect(free[:n]))
		free = free[n:]
	}
	return targets
}

// collect makes a set of partitions.
func collect(ids []partitionID) partitions {
	slices.SortFunc(ids, func(a, b partitionID) int {
		return cmp.Or(a.topic.Compare(b.topic), cmp.Compare(a.partition, b.partition))
	})
	var ps partitions
	for _, id := range ids {
		if n := len(ps); n == 0 || ps[n-1].topic != id.topic {
			ps = append(ps, topicPartitions{topic: id.topic})
		}
		tp := &ps[len(ps)-1]
		tp.partitions = append(tp.partitions, id.partition)
	}
	return ps
}

// maxBalanceRounds bounds how often uniformMixed goes over all topics. Usually two or three rounds do.
const maxBalanceRounds = 16

// uniformMixed is for members who read different topics. Everybody keeps what it has and still reads; what is free goes to
// the least loaded reader; then partitions move, topic by topic, from the most to the least loaded of its readers.
func uniformMixed(a *assignment) []partitions {
	u := &mixed{a: a, load: make([]int, len(a.members)), owner: map[uuid.UUID][]int32{}, readers: map[uuid.UUID][]int32{}}
	for i := range a.members {
		for _, t := range a.members[i].topics {
			u.readers[t] = append(u.readers[t], int32(i))
			if u.owner[t] == nil {
				u.owner[t] = slices.Repeat([]int32{-1}, a.size(t))
				u.topics = append(u.topics, t)
			}
		}
	}
	for i := range a.members {
		m := &a.members[i]
		for _, tp := range m.now {
			if _, reads := slices.BinarySearchFunc(m.topics, tp.topic, uuid.UUID.Compare); !reads {
				continue
			}
			for _, p := range tp.partitions {
				if own := u.owner[tp.topic]; int(p) < len(own) && own[p] < 0 {
					own[p] = int32(i)
					u.load[i]++
				}
			}
		}
	}
	// Topics with the most partitions for each reader first; among equals those with the fewest readers, who have the least choice.
	slices.SortFunc(u.topics, func(s, t uuid.UUID) int {
		ns, nt := len(u.readers[s]), len(u.readers[t])
		return cmp.Or(cmp.Compare(len(u.owner[t])*ns, len(u.owner[s])*nt), cmp.Compare(ns, nt), s.Compare(t))
	})
	for _, t := range u.topics {
		u.fill(t)
	}
	for range maxBalanceRounds {
		moved := false
		for _, t := range u.topics {
			moved = u.balance(t) || moved
		}
		if !moved {
			break
		}
	}
	return u.targets()
}

// mixed is the state of uniformMixed. Members go by their place in the task.
type mixed struct {
	a       *assignment
	topics  []uuid.UUID
	readers map[uuid.UUID][]int32
	owner   map[uuid.UUID][]int32 // -1 is nobody
	load    []int
}

// fill gives the free partitions of a topic to its least loaded readers.
func (u *mixed) fill(t uuid.UUID) {
	var least *loadHeap
	for p, o := range u.owner[t] {
		if o >= 0 {
			continue
		}
		if least == nil {
			least = newLoadHeap(u.readers[t], func(a, b int32) bool { return u.load[a] < u.load[b] || u.load[a] == u.load[b] && a < b })
		}
		i := least.top()
		u.owner[t][p] = i
		u.load[i]++
		least.fix(i)
	}
}

// balance moves partitions of a topic between its readers until no move makes them more even, and says whether it moved any.
func (u *mixed) balance(t uuid.UUID) bool {
	readers := u.readers[t]
	if len(readers) < 2 {
		return false
	}
	lowest, highest := u.load[readers[0]], u.load[readers[0]]
	for _, i := range readers {
		lowest, highest = min(lowest, u.load[i]), max(highest, u.load[i])
	}
	if highest-lowest <= 1 {
		return false
	}
	owned := make(map[int32][]int32)
	for p, o := range u.owner[t] {
		if o >= 0 {
			owned[o] = append(owned[o], int32(p))
		}
	}
	least := newLoadHeap(readers, func(a, b int32) bool { return u.load[a] < u.load[b] || u.load[a] == u.load[b] && a < b })
	most := newLoadHeap(readers, func(a, b int32) bool { return u.load[a] > u.load[b] || u.load[a] == u.load[b] && a > b })
	moved := false
	for len(most.members) > 0 {
		from := most.top()
		if len(owned[from]) == 0 {
			most.remove(from) // it has nothing of this topic to give
			continue
		}
		to := least.top()
		if u.load[from]-u.load[to] <= 1 {
			break
		}
		n := len(owned[from]) - 1
		p := owned[from][n]
		owned[from], owned[to] = owned[from][:n], append(owned[to], p)
		u.owner[t][p] = to
		u.load[from]--
		u.load[to]++
		least.fix(from)
		least.fix(to)
		most.fix(from)
		most.fix(to)
		moved = true
	}
	return moved
}

// targets are the sets of the members.
func (u *mixed) targets() []partitions {
	targets := make([]partitions, len(u.a.members))
	slices.SortFunc(u.topics, uuid.UUID.Compare)
	for _, t := range u.topics {
		for p, o := range u.owner[t] {
			if o < 0 {
				continue
			}
			target := &targets[o]
			if n := len(*target); n == 0 || (*target)[n-1].topic != t {
				*target = append(*target, topicPartitions{topic: t})
			}
			tp := &(*target)[len(*target)-1]
			tp.partitions = append(tp.partitions, int32(p))
		}
	}
	return targets
}

// loadHeap keeps members in order of their load, the first on top.
type loadHeap struct {
	members []int32
	at      map[int32]int
	before  func(a, b int32) bool
}

func newLoadHeap(members []int32, before func(a, b int32) bool) *loadHeap {
	h := &loadHeap{members: slices.Clone(members), at: make(map[int32]int, len(members)), before: before}
	for i, m := range h.members {
		h.at[m] = i
	}
	for i := len(h.members)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
	return h
}

func (h *loadHeap) top() int32 { return h.members[0] }

// fix puts a member, whose load has changed, in its place.
func (h *loadHeap) fix(m int32) {
	if i, ok := h.at[m]; ok {
		h.down(i)
		h.up(h.at[m])
	}
}

func (h *loadHeap) remove(m int32) {
	i, last := h.at[m], len(h.members)-1
	h.swap(i, last)
	h.members = h.members[:last]
	delete(h.at, m)
	if i < last {
		h.fix(h.members[i])
	}
}

func (h *loadHeap) swap(i, j int) {
	h.members[i], h.members[j] = h.members[j], h.members[i]
	h.at[h.members[i]], h.at[h.members[j]] = i, j
}

func (h *loadHeap) up(i int) {
	for i > 0 && h.before(h.members[i], h.members[(i-1)/2]) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h *loadHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h.members) {
			return
		}
		if c+1 < len(h.members) && h.before(h.members[c+1], h.members[c]) {
			c++
		}
		if !h.before(h.members[c], h.members[i]) {
			return
		}
		h.swap(i, c)
		i = c
	}
}
