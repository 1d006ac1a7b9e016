package client

import (
	"cmp"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Assignor hands out partitions in a classic group, on whichever member leads it.
type Assignor interface {
	// Name is what members agree on ("range").
	Name() string
	// Cooperative assignors let members keep what they have during a rebalance (KIP-429).
	Cooperative() bool
	// Assign gives every partition of the topics to a member subscribed to its topic. partitions is the count by topic; topics
	// that don't exist are missing. It must be deterministic.
	Assign(members []AssignMember, partitions map[string]int32) map[string][]TopicPartition
}

// AssignMember is a member as an Assignor sees it.
type AssignMember struct {
	ID         string
	InstanceID string
	Topics     []string
	// Owned is what the member says it has, and in which generation it got it (-1 unknown).
	Owned      []TopicPartition
	Generation int32
	// UserData is what the member's own assignor of this name has to say.
	UserData []byte
}

// key orders members as Java does: static ones by instance id, before the others.
func (m *AssignMember) less(o *AssignMember) int {
	switch {
	case m.InstanceID != "" && o.InstanceID != "":
		return cmp.Compare(m.InstanceID, o.InstanceID)
	case m.InstanceID != "":
		return -1
	case o.InstanceID != "":
		return 1
	}
	return cmp.Compare(m.ID, o.ID)
}

// RangeAssignor gives each member a run of each topic's partitions, the first members one more where it doesn't divide.
type RangeAssignor struct{}

func (RangeAssignor) Name() string      { return "range" }
func (RangeAssignor) Cooperative() bool { return false }

// Assign implements Assignor.
func (RangeAssignor) Assign(members []AssignMember, partitions map[string]int32) map[string][]TopicPartition {
	out := map[string][]TopicPartition{}
	for _, m := range members {
		out[m.ID] = nil
	}
	subscribers := bySubscription(members)
	for _, topic := range sortedKeys(partitions) {
		ms := subscribers[topic]
		n, k := int(partitions[topic]), len(ms)
		if k == 0 {
			continue
		}
		next := 0
		for i, m := range ms {
			size := n / k
			if i < n%k {
				size++
			}
			for range size {
				out[m.ID] = append(out[m.ID], TopicPartition{topic, int32(next)})
				next++
			}
		}
	}
	return out
}

func bySubscription(members []AssignMember) map[string][]*AssignMember {
	sorted := make([]*AssignMember, len(members))
	for i := range members {
		sorted[i] = &members[i]
	}
	slices.SortFunc(sorted, (*AssignMember).less)
	out := map[string][]*AssignMember{}
	for _, m := range sorted {
		for _, t := range slices.Compact(slices.Sorted(slices.Values(m.Topics))) {
			out[t] = append(out[t], m)
		}
	}
	return out
}

// CooperativeStickyAssignor balances counts and moves as little as it can. What has to move is first given to nobody: its
// owner lets go of it, and the rebalance that follows hands it on.
type CooperativeStickyAssignor struct{}

func (CooperativeStickyAssignor) Name() string      { return "cooperative-sticky" }
func (CooperativeStickyAssignor) Cooperative() bool { return true }

// Assign implements Assignor.
func (CooperativeStickyAssignor) Assign(members []AssignMember, partitions map[string]int32) map[string][]TopicPartition {
	out := balance(members, partitions)
	owner := currentOwners(members, partitions)
	for id, tps := range out {
		out[id] = slices.DeleteFunc(tps, func(tp TopicPartition) bool { o, ok := owner[tp]; return ok && o != id })
	}
	return out
}

// currentOwners believes, of several members that claim a partition, the one of the latest generation; if there are several,
// none.
func currentOwners(members []AssignMember, partitions map[string]int32) map[TopicPartition]string {
	type claim struct {
		id         string
		generation int32
	}
	claims := map[TopicPartition]claim{}
	for _, m := range members {
		for _, tp := range m.Owned {
			if tp.Partition >= partitions[tp.Topic] || !slices.Contains(m.Topics, tp.Topic) {
				continue
			}
			c, ok := claims[tp]
			switch {
			case !ok || m.Generation > c.generation:
				claims[tp] = claim{m.ID, m.Generation}
			case m.Generation == c.generation && c.id != m.ID:
				claims[tp] = claim{"", c.generation}
			}
		}
	}
	out := map[TopicPartition]string{}
	for tp, c := range claims {
		if c.id != "" {
			out[tp] = c.id
		}
	}
	return out
}

// balance gives every partition to a subscriber: owners keep what they have up to their share, the rest goes to whoever has
// least, and then single partitions move from the fullest to the emptiest as long as that evens out.
func balance(members []AssignMember, partitions map[string]int32) map[string][]TopicPartition {
	out := map[string][]TopicPartition{}
	for _, m := range members {
		out[m.ID] = nil
	}
	subscribers := bySubscription(members)
	owner := currentOwners(members, partitions)
	var rest []TopicPartition
	for _, topic := range sortedKeys(partitions) {
		for p := range partitions[topic] {
			tp := TopicPartition{topic, p}
			if id, ok := owner[tp]; ok {
				out[id] = append(out[id], tp)
			} else if len(subscribers[topic]) > 0 {
				rest = append(rest, tp)
			}
		}
	}
	least := func(topic string) *AssignMember {
		var best *AssignMember
		for _, m := range subscribers[topic] {
			if best == nil || len(out[m.ID]) < len(out[best.ID]) {
				best = m
			}
		}
		return best
	}
	for _, tp := range rest {
		m := least(tp.Topic)
		out[m.ID] = append(out[m.ID], tp)
	}
	for moved := true; moved; {
		moved = false
		ids := slices.Sorted(maps.Keys(out))
		slices.SortStableFunc(ids, func(a, b string) int { return cmp.Compare(len(out[b]), len(out[a])) })
		for _, id := range ids {
			for i := len(out[id]) - 1; i >= 0; i-- {
				tp := out[id][i]
				if m := least(tp.Topic); len(out[m.ID])+1 < len(out[id]) {
					out[id] = slices.Delete(out[id], i, i+1)
					out[m.ID] = append(out[m.ID], tp)
					moved = true
				}
			}
		}
	}
	for id := range out {
		slices.SortFunc(out[id], compareTP)
	}
	return out
}

// userDataAssignor has something to say to whichever member assigns next time.
type userDataAssignor interface {
	Assignor
	UserData(assigned []TopicPartition, generation int32) []byte
}

// RoundRobinAssignor deals all partitions of all topics out to the members in turn.
type RoundRobinAssignor struct{}

func (RoundRobinAssignor) Name() string      { return "roundrobin" }
func (RoundRobinAssignor) Cooperative() bool { return false }

// Assign implements Assignor.
func (RoundRobinAssignor) Assign(members []AssignMember, partitions map[string]int32) map[string][]TopicPartition {
	out := map[string][]TopicPartition{}
	var ring []*AssignMember
	for i := range members {
		out[members[i].ID] = nil
		ring = append(ring, &members[i])
	}
	slices.SortFunc(ring, (*AssignMember).less)
	wanted := bySubscription(members)
	next := 0
	for _, topic := range sortedKeys(partitions) {
		if len(wanted[topic]) == 0 {
			continue
		}
		for p := range partitions[topic] {
			for !slices.Contains(ring[next%len(ring)].Topics, topic) {
				next++
			}
			m := ring[next%len(ring)]
			out[m.ID] = append(out[m.ID], TopicPartition{topic, p})
			next++
		}
	}
	return out
}

// StickyAssignor balances counts and moves as little as it can. It is eager: members give all up first, and tell the next
// assignment what they had.
type StickyAssignor struct{}

func (StickyAssignor) Name() string      { return "sticky" }
func (StickyAssignor) Cooperative() bool { return false }

// UserData is what a member had, in the form of Java's assignor.
func (StickyAssignor) UserData(assigned []TopicPartition, generation int32) []byte {
	m := kmsg.NewStickyMemberMetadata()
	m.Generation = generation
	topics := byTopic(assigned)
	for _, t := range sortedKeys(topics) {
		m.CurrentAssignment = append(m.CurrentAssignment, kmsg.StickyMemberMetadataCurrentAssignment{Topic: t, Partitions: topics[t]})
	}
	return m.AppendTo(nil)
}

// Assign implements Assignor.
func (StickyAssignor) Assign(members []AssignMember, partitions map[string]int32) map[string][]TopicPartition {
	members = slices.Clone(members)
	for i := range members {
		m := &members[i]
		had := kmsg.NewStickyMemberMetadata()
		if len(m.UserData) == 0 || had.ReadFrom(m.UserData) != nil {
			continue
		}
		m.Owned, m.Generation = nil, had.Generation
		for _, t := range had.CurrentAssignment {
			for _, p := range t.Partitions {
				m.Owned = append(m.Owned, TopicPartition{t.Topic, p})
			}
		}
	}
	return balance(members, partitions)
}
