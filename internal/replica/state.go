package replica

import (
	"slices"
	"time"

	"gregor/internal/api"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// role is what this broker is for a partition, as far as it is committed: by the cluster metadata or by the controller's
// answer to a change that this broker proposed. It is immutable.
type role struct {
	leader         bool
	leaderID       int32
	leaderEpoch    int32
	partitionEpoch int32
	replicas       []int32
	directories    []uuid.UUID // of replicas, in their order; none when they are not known
	isr            []int32
}

var noRole = &role{leaderID: metadata.NoLeader, leaderEpoch: -1, partitionEpoch: -1}

func roleOf(p *metadata.Partition, nodeID int32) *role {
	return &role{leader: p.Leader == nodeID, leaderID: p.Leader, leaderEpoch: p.LeaderEpoch, partitionEpoch: p.PartitionEpoch,
		replicas: p.Replicas, directories: p.Directories, isr: p.ISR}
}

// leadsIn says whether this broker leads in that leader epoch.
func (r *role) leadsIn(leaderEpoch int32) bool { return r.leader && r.leaderEpoch == leaderEpoch }

// directory is where the metadata says that a replica lies.
func (r *role) directory(id int32) uuid.UUID {
	if i := slices.Index(r.replicas, id); i >= 0 && i < len(r.directories) {
		return r.directories[i]
	}
	return uuid.Unassigned
}

// alone says whether the leader is the only replica that there is, so that all it has is committed.
func (r *role) alone() bool { return len(r.replicas) == 1 && len(r.isr) == 1 }

// minISR is how many in-sync replicas the partition must have, given the topic's min.insync.replicas.
func (r *role) minISR(configured int) int { return min(configured, len(r.replicas)) }

// unknownEnd is the end offset of a follower that hasn't fetched yet.
const unknownEnd int64 = -1

// follower is what a leader knows of another replica, all of it from the follower's fetches.
type follower struct {
	id    int32
	end   int64 // has everything below, unknownEnd before its first fetch
	start int64 // log start offset, -1 before its first fetch
	// leaderEnd was the leader's end offset at the last fetch, which came at fetchedAt.
	leaderEnd int64
	fetchedAt time.Time
	// caughtUpAt is the latest time of which it is known that the follower now has all that the leader had then.
	caughtUpAt time.Time
	// brokerEpoch is that of the last fetch, -1 when it gave none; known says whether there was one.
	brokerEpoch int64
	known       bool
}

// caughtUp says whether the follower has everything or had it not longer than lag ago.
func (f *follower) caughtUp(now time.Time, leaderEnd int64, lag time.Duration) bool {
	return f.end == leaderEnd || !f.caughtUpAt.IsZero() && now.Sub(f.caughtUpAt) <= lag
}

// proposal is a change of the ISR that the controller is asked for.
type proposal struct {
	leaderEpoch, partitionEpoch int32
	isr                         []int32
	epochs                      []int64 // broker epochs of isr, -1 where none is known
	joining                     int32   // the replica that enters, noReplica when some leave
}

const noReplica int32 = -1

// state decides what a partition's leader may count on. It is deterministic and owns no clock and no lock: it is told of role
// changes, fetches of followers, passing time and answers of the controller, and says where the high watermark may go and which
// change of the ISR is to be asked for.
//
// The high watermark goes by the maximal ISR (KIP-497): the committed one and, while a replica's entry is being asked for, that
// replica as well, because the controller may have let it in already. While replicas' leaving is asked for, they still count,
// because the controller may refuse.
type state struct {
	local int32
	role  *role
	// epochStart is the leader's end offset when its epoch began.
	epochStart int64
	followers  []follower // of a leader; in the order of the assignment
	pending    *proposal  // asked for and not answered
}

func newState(local int32) state { return state{local: local, role: noRole} }

// become takes a role that the metadata gives. It returns false when the state is that new already, or newer: the metadata may
// arrive after the controller's answer that told of the same change.
func (s *state) become(now time.Time, next *role, logEnd int64) bool {
	prev := s.role
	if next.partitionEpoch < prev.partitionEpoch || next.leaderEpoch < prev.leaderEpoch ||
		next.partitionEpoch == prev.partitionEpoch && next.leaderEpoch == prev.leaderEpoch {
		return false
	}
	// Whatever was asked for was asked for in an older partition epoch: either this is the outcome, or it is refused.
	s.role, s.pending = next, nil
	if !next.leader {
		s.followers = nil
		return true
	}
	old := s.followers
	if next.leaderEpoch > prev.leaderEpoch+1 {
		old = nil // another broker may have led between, and the followers may have cut their logs
	}
	s.followers = make([]follower, 0, len(next.replicas))
	for _, id := range next.replicas {
		if id == s.local {
			continue
		}
		f := follower{id: id, end: unknownEnd, start: -1, leaderEnd: -1, brokerEpoch: -1}
		if i := slices.IndexFunc(old, func(f follower) bool { return f.id == id }); i >= 0 {
			f = old[i]
		}
		s.followers = append(s.followers, f)
	}
	if next.leaderEpoch > prev.leaderEpoch {
		s.epochStart = logEnd
		for i := range s.followers {
			// Who is in the ISR gets the full time to show itself; who isn't must not hold the high watermark back.
			f := &s.followers[i]
			f.leaderEnd, f.fetchedAt, f.caughtUpAt = logEnd, time.Time{}, time.Time{}
			if slices.Contains(next.isr, f.id) {
				f.fetchedAt, f.caughtUpAt = now, now
			}
			if !prev.leader {
				f.leaderEnd, f.fetchedAt = -1, time.Time{}
			}
		}
	}
	return true
}

func (s *state) follower(id int32) *follower {
	for i := range s.followers {
		if s.followers[i].id == id {
			return &s.followers[i]
		}
	}
	return nil
}

// fetched notes a fetch by a follower: it has everything below offset. leaderEnd is the leader's end offset from before the
// fetch was read.
func (s *state) fetched(now time.Time, id int32, brokerEpoch, offset, start, leaderEnd int64, cluster *metadata.ClusterImage) *api.Error {
	f := s.follower(id)
	if f == nil {
		return api.ErrUnknownLeaderEpoch
	}
	if b := cluster.Broker(id); b != nil && !b.Fenced && brokerEpoch != -1 && b.Epoch > brokerEpoch {
		// Sent by an earlier life of the broker, which may have had records that this one lost (KIP-903).
		return api.ErrNotLeaderOrFollower
	}
	switch {
	case offset >= leaderEnd:
		f.caughtUpAt = later(f.caughtUpAt, now)
	case offset >= f.leaderEnd:
		f.caughtUpAt = later(f.caughtUpAt, f.fetchedAt)
	}
	f.end, f.start, f.fetchedAt = offset, start, now
	f.leaderEnd = max(f.leaderEnd, leaderEnd)
	f.brokerEpoch, f.known = brokerEpoch, true
	return nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// eligible says whether the metadata lets a follower into the ISR: it is in service, so is the directory of its replica, and what
// is known of it comes from the life that the metadata knows.
func (s *state) eligible(f *follower, cluster *metadata.ClusterImage) bool {
	b := cluster.Broker(f.id)
	return b != nil && b.Active() && b.HasOnlineDir(s.role.directory(f.id)) && f.known && (f.brokerEpoch == -1 || f.brokerEpoch == b.Epoch)
}

// expand proposes that the follower enter the ISR, if it may: it must have all that is committed, and all that an earlier leader
// may have committed, which ends at the beginning of this epoch.
func (s *state) expand(id int32, highWatermark int64, cluster *metadata.ClusterImage) *proposal {
	f := s.follower(id)
	if f == nil || s.pending != nil || !s.role.leader || slices.Contains(s.role.isr, id) ||
		f.end < highWatermark || f.end < s.epochStart || !s.eligible(f, cluster) {
		return nil
	}
	return s.propose(append(slices.Clone(s.role.isr), id), id)
}

// shrink proposes that the followers that lag leave the ISR, if there are any.
func (s *state) shrink(now time.Time, leaderEnd int64, lag time.Duration) *proposal {
	if !s.role.leader || s.pending != nil || len(s.role.isr) < 2 {
		return nil
	}
	var left []int32
	for _, id := range s.role.isr {
		if id == s.local {
			left = append(left, id)
		} else if f := s.follower(id); f != nil && f.caughtUp(now, leaderEnd, lag) {
			left = append(left, id)
		}
	}
	if len(left) == len(s.role.isr) {
		return nil
	}
	return s.propose(left, noReplica)
}

func (s *state) propose(isr []int32, joining int32) *proposal {
	slices.Sort(isr) // as Kafka's leaders name them, and so as tools show them
	p := &proposal{leaderEpoch: s.role.leaderEpoch, partitionEpoch: s.role.partitionEpoch, isr: isr, joining: joining}
	for _, id := range isr {
		epoch := int64(-1)
		if f := s.follower(id); f != nil && f.known {
			epoch = f.brokerEpoch
		}
		p.epochs = append(p.epochs, epoch)
	}
	s.pending = p
	return p
}

// inMaximalISR says whether a replica is in the ISR, or may be by now.
func (s *state) inMaximalISR(id int32) bool {
	return slices.Contains(s.role.isr, id) || s.pending != nil && s.pending.joining == id
}

// maximalISR is how many replicas are in the ISR or may be by now.
func (s *state) maximalISR() int {
	n := len(s.role.isr)
	if s.pending != nil && s.pending.joining != noReplica {
		n++
	}
	return n
}

// highWatermark is how far the leader may move the high watermark: to the smallest end offset in the maximal ISR. A replica
// that keeps up and may enter counts as well, or it would have to run after a high watermark that never waits. ok is false when
// it must stay where it is: fewer replicas are in sync than min.insync.replicas asks for (KIP-966).
func (s *state) highWatermark(now time.Time, leaderEnd int64, minISR int, lag time.Duration, cluster *metadata.ClusterImage) (hw int64, ok bool) {
	if !s.role.leader || len(s.role.isr) < s.role.minISR(minISR) {
		return 0, false
	}
	hw = leaderEnd
	for i := range s.followers {
		f := &s.followers[i]
		if f.end < hw && (s.inMaximalISR(f.id) || f.caughtUp(now, leaderEnd, lag) && s.eligible(f, cluster)) {
			hw = f.end
		}
	}
	return hw, hw >= 0
}

// isrAnswer is what the controller says of a proposal that it took.
type isrAnswer struct {
	leaderEpoch, partitionEpoch int32
	isr                         []int32
}

// answered takes the controller's answer to a proposal: the committed state, or an error. retry says that it must be asked for
// again as it is, since nobody knows whether it was done; changed that the ISR is another one now.
func (s *state) answered(p *proposal, a isrAnswer, err *api.Error) (retry, changed bool) {
	if s.pending != p {
		return false, false // the metadata has overtaken the answer
	}
	if err == nil {
		if a.leaderEpoch != s.role.leaderEpoch || a.partitionEpoch < s.role.partitionEpoch {
			return false, false // there is news on its way that settles it
		}
		next := *s.role
		next.partitionEpoch, next.isr = a.partitionEpoch, a.isr
		s.role, s.pending = &next, nil
		return false, true
	}
	switch err {
	case api.ErrIneligibleReplica, api.ErrOperationNotAttempted:
		// The controller knows our partition epoch and has done nothing, nor can it later.
		s.pending = nil
		return false, true
	case api.ErrUnknownTopicOrPartition, api.ErrUnknownTopicID, api.ErrFencedLeaderEpoch, api.ErrInvalidUpdateVersion,
		api.ErrInvalidRequest, api.ErrNewLeaderElected:
		// Something newer is on its way; until it comes, what may have been done must be reckoned with.
		return false, false
	}
	return true, false
}

// lowWatermark is the smallest log start offset of the replicas that are in service.
func (s *state) lowWatermark(leaderStart int64, cluster *metadata.ClusterImage) int64 {
	low := leaderStart
	for i := range s.followers {
		if b := cluster.Broker(s.followers[i].id); b != nil && !b.Fenced {
			low = min(low, s.followers[i].start)
		}
	}
	return low
}
