package group

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/uuid"
)

// memberState is where a member is on its way to its target, with Kafka's numbers.
type memberState int8

const (
	// memberStable has all of its target.
	memberStable memberState = 0
	// memberUnrevoked has been told to give partitions up and hasn't yet said that it did.
	memberUnrevoked memberState = 1
	// memberUnreleased waits for partitions that others have yet to give up.
	memberUnreleased memberState = 2
	// memberUnknown is a state that a later version has written.
	memberUnknown memberState = 127
)

// reconciliation is one step of a member towards its target (KIP-848). A partition goes from one member to another in three
// steps: the first is told to give it up, says that it did, and only then the second gets it. It is a pure function.
type reconciliation struct {
	member      *consumerMember
	targetEpoch int32
	target      partitions
	// subscribes says whether the member reads a topic, which must exist.
	subscribes func(topic uuid.UUID) bool
	// changed says that what it reads has just changed: it must not keep partitions that it doesn't read until there is a new
	// target.
	changed bool
	// taken says whether another member holds a partition.
	taken func(topic uuid.UUID, partition int32) bool
	// owned is what the member says it has; nil if it doesn't say.
	owned []kmsg.ConsumerGroupHeartbeatRequestTopic
}

// next is the member after the step, the same one if there is none to be taken.
func (r *reconciliation) next() (*consumerMember, error) {
	m := r.member
	switch m.state {
	case memberStable:
		switch {
		case m.epoch != r.targetEpoch:
			return r.advance(), nil
		case r.changed:
			return r.unsubscribe(), nil
		}
		return m, nil
	case memberUnrevoked:
		switch {
		case !r.owns(m.revoking):
			return r.advance(), nil
		case r.changed:
			return r.unsubscribe(), nil
		}
		return m, nil
	case memberUnreleased:
		return r.advance(), nil
	default:
		if r.owned == nil || len(r.owned) > 0 {
			return nil, api.WithMessage(api.ErrFencedMemberEpoch,
				"The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.")
		}
		return r.advance(), nil
	}
}

// owns says whether the member still has any of the partitions, which it does if it doesn't say.
func (r *reconciliation) owns(ps partitions) bool {
	if r.owned == nil {
		return true
	}
	for i := range r.owned {
		for _, p := range r.owned[i].Partitions {
			if ps.has(r.owned[i].TopicID, p) {
				return true
			}
		}
	}
	return false
}

// advance goes towards the target as far as others let it.
func (r *reconciliation) advance() *consumerMember {
	m := r.member
	wanted, _ := r.target.split(func(t uuid.UUID, _ int32) bool { return r.subscribes(t) })
	kept, revoking := m.assigned.split(wanted.has)
	if len(revoking) > 0 && r.owns(revoking) {
		return m.moved(m.epoch, memberUnrevoked, kept, revoking)
	}
	missing, _ := wanted.split(func(t uuid.UUID, p int32) bool { return !kept.has(t, p) })
	unreleased, available := missing.split(r.taken)
	state := memberStable
	if len(unreleased) > 0 {
		state = memberUnreleased
	}
	return m.moved(r.targetEpoch, state, kept.union(available.since(r.targetEpoch)), nil)
}

// unsubscribe takes away what the member doesn't read any more, without waiting for a new target.
func (r *reconciliation) unsubscribe() *consumerMember {
	m := r.member
	kept, dropped := m.assigned.split(func(t uuid.UUID, _ int32) bool { return r.subscribes(t) })
	if len(dropped) == 0 {
		return m
	}
	revoking := m.revoking.union(dropped)
	if r.owns(revoking) {
		return m.moved(m.epoch, memberUnrevoked, kept, revoking)
	}
	return m.moved(m.epoch, m.state, kept, m.revoking)
}
