package client

import (
	"cmp"
	"slices"
	"time"
)

// groupCore is the membership of one consumer in a classic group, as a state machine: it is told what happened and says what to
// do. It has no goroutine, no clock and no network.
//
//	unjoined -> joining -> syncing -> stable -> (rebalance) joining …
//
// With an eager assignor everything is revoked before joining; with a cooperative one only what the new assignment lacks, after
// which the member joins once more so that it can be handed on.
type groupCore struct {
	assignors []Assignor
	instance  string
	session   time.Duration
	heartbeat time.Duration

	state      groupState
	memberID   string
	generation int32
	protocol   string // of the generation
	owned      []TopicPartition
	subscribed []string
	rejoin     bool // join as soon as possible
	nextBeat   time.Time
	lastBeat   time.Time // of the last heartbeat answered
	beating    bool
	notBefore  time.Time
	failures   int
}

type groupState uint8

const (
	unjoined groupState = iota
	joining
	syncing
	stable
	left
)

// groupEffects say what the driver has to do, in the order of the fields.
type groupEffects struct {
	revoke    []TopicPartition // stop, commit and give up
	lost      []TopicPartition // as revoke, but they may be someone else's already: no commit
	assign    []TopicPartition // begin
	join      bool             // JoinGroup with joinRequest
	sync      bool             // SyncGroup; the leader hands in assignments
	heartbeat bool
	// fatal ends the consumer.
	fatal error
	// wake is when to step again if nothing happens.
	wake time.Time
}

// cooperative says whether the current protocol lets members keep partitions while rebalancing. Before the first generation the
// configured assignors decide: one that isn't cooperative makes it eager.
func (g *groupCore) cooperative() bool {
	for _, a := range g.assignors {
		if g.protocol == "" && !a.Cooperative() || g.protocol == a.Name() {
			return a.Cooperative()
		}
	}
	return g.protocol == ""
}

// tick lets time pass.
func (g *groupCore) tick(now time.Time) groupEffects {
	var e groupEffects
	switch g.state {
	case unjoined:
		g.maybeJoin(now, &e)
	case stable:
		if !g.lastBeat.IsZero() && now.Sub(g.lastBeat) >= g.session {
			// The coordinator must have thrown this member out by now.
			g.drop(&e)
			g.maybeJoin(now, &e)
			break
		}
		if g.rejoin {
			g.beginJoin(now, &e)
			break
		}
		if !g.beating && !now.Before(g.nextBeat) {
			g.beating, e.heartbeat = true, true
			g.nextBeat = now.Add(g.heartbeat)
		}
		e.wake = g.nextBeat
		if g.beating {
			e.wake = g.lastBeat.Add(g.session)
		}
	}
	return e
}

func (g *groupCore) maybeJoin(now time.Time, e *groupEffects) {
	if now.Before(g.notBefore) {
		e.wake = g.notBefore
		return
	}
	g.beginJoin(now, e)
}

func (g *groupCore) beginJoin(_ time.Time, e *groupEffects) {
	if !g.cooperative() {
		e.revoke = append(e.revoke, g.owned...)
		g.owned = nil
	}
	g.state, g.rejoin, g.beating = joining, false, false
	e.join = true
}

// drop forgets the membership: what was owned may be someone else's.
func (g *groupCore) drop(e *groupEffects) {
	e.lost = append(e.lost, g.owned...)
	g.owned, g.generation, g.state, g.beating, g.protocol = nil, -1, unjoined, false, ""
	g.lastBeat = time.Time{}
}

// subscribe changes the topics; the group is told by joining again.
func (g *groupCore) subscribe(topics []string) {
	if slices.Equal(g.subscribed, topics) {
		return
	}
	g.subscribed, g.rejoin = topics, true
}

// joined takes the answer to JoinGroup.
func (g *groupCore) joined(now time.Time, memberID string, generation int32, protocol string, err error, backoff time.Duration) groupEffects {
	var e groupEffects
	if g.state != joining {
		return e
	}
	if err != nil {
		g.failed(now, memberID, err, backoff, &e)
		return e
	}
	g.memberID, g.generation, g.protocol, g.failures = memberID, generation, protocol, 0
	g.state, e.sync = syncing, true
	return e
}

// synced takes the answer to SyncGroup.
func (g *groupCore) synced(now time.Time, assigned []TopicPartition, err error, backoff time.Duration) groupEffects {
	var e groupEffects
	if g.state != syncing {
		return e
	}
	if err != nil {
		g.failed(now, "", err, backoff, &e)
		return e
	}
	g.state, g.lastBeat, g.nextBeat, g.failures = stable, now, now.Add(g.heartbeat), 0
	slices.SortFunc(assigned, compareTP)
	for _, tp := range g.owned {
		if !slices.Contains(assigned, tp) {
			e.revoke = append(e.revoke, tp)
		}
	}
	for _, tp := range assigned {
		if !slices.Contains(g.owned, tp) {
			e.assign = append(e.assign, tp)
		}
	}
	g.owned = assigned
	if len(e.revoke) > 0 && g.cooperative() {
		g.rejoin = true
	}
	e.wake = now
	return e
}

// beat takes the answer to a heartbeat.
func (g *groupCore) beat(now time.Time, generation int32, err error, backoff time.Duration) groupEffects {
	var e groupEffects
	if g.state != stable || generation != g.generation {
		return e
	}
	g.beating = false
	code, known := Code(err)
	switch {
	case err == nil:
		g.lastBeat = now
	case known && code == RebalanceInProgress.Code:
		g.lastBeat, g.rejoin = now, true
	case Retriable(err):
		g.nextBeat = now.Add(min(backoff, g.heartbeat))
	default:
		g.failed(now, "", err, backoff, &e)
		return e
	}
	e.wake = now
	return e
}

// failed deals with what a coordinator refused, in any request.
func (g *groupCore) failed(now time.Time, memberID string, err error, backoff time.Duration, e *groupEffects) {
	code, known := Code(err)
	g.notBefore = now
	switch {
	case known && code == MemberIDRequired.Code:
		// KIP-394: the id is given first, and the join repeated with it.
		g.memberID, g.state = memberID, unjoined
	case known && code == RebalanceInProgress.Code:
		g.state = unjoined
	case known && code == UnknownMemberID.Code:
		g.memberID = ""
		g.drop(e)
	case known && code == IllegalGeneration.Code:
		g.drop(e)
	case Retriable(err):
		g.state, g.notBefore = unjoined, now.Add(backoff)
		g.failures++
	default:
		g.drop(e)
		g.state, e.fatal = left, err
	}
	e.wake = g.notBefore
}

// leave ends the membership.
func (g *groupCore) leave() groupEffects {
	e := groupEffects{revoke: g.owned}
	g.owned, g.state = nil, left
	return e
}

// joinReply is what JoinGroup answered, as the driver needs it for SyncGroup.
type joinReply struct {
	memberID   string
	generation int32
	protocol   string
	leader     bool
	skip       bool // KIP-814: the leader keeps the assignment that the group has
	members    []AssignMember
}

func (g *groupCore) assignor(name string) Assignor {
	i := slices.IndexFunc(g.assignors, func(a Assignor) bool { return a.Name() == name })
	if i < 0 {
		return nil
	}
	return g.assignors[i]
}

// topicsOf are the topics that any member wants.
func topicsOf(members []AssignMember) []string {
	var out []string
	for _, m := range members {
		out = append(out, m.Topics...)
	}
	slices.SortFunc(out, cmp.Compare)
	return slices.Compact(out)
}
