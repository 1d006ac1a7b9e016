package group

import (
	"bytes"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/coordinator"
)

func syncError(err error) *kmsg.SyncGroupResponse {
	resp := kmsg.NewPtrSyncGroupResponse()
	resp.ErrorCode = api.CodeOf(err)
	return resp
}

// sync answers SyncGroup: with the member's assignment, once the leader has sent it and it is stored.
func (c *core) sync(r *kmsg.SyncGroupRequest, reply func(*kmsg.SyncGroupResponse), now time.Time) result {
	existing, _ := c.groups.Get(r.Group)
	if g, ok := existing.(*consumerGroup); ok && !g.empty() {
		return c.syncConsumer(r, g, reply, now)
	}
	g, classic := existing.(*classicGroup)
	if !classic || g.empty() {
		reply(syncError(api.ErrUnknownMemberID))
		return result{}
	}
	if err := checkSync(g, r); err != nil {
		reply(syncError(err))
		return result{}
	}
	m := g.member(r.MemberID)
	switch g.state {
	case statePreparing:
		reply(syncError(api.ErrRebalanceInProgress))
	case stateCompleting:
		c.answerSync(m, syncError(api.ErrRebalanceInProgress)) // repeated; see rejoin
		m.awaitingSync = reply
		c.synced(g, m)
		// Differs from Kafka, which writes the assignment of a repeated request as well, hands the first one out, and leaves the second
		// in the log, for the next coordinator to hand out in the same generation.
		if g.isLeader(m.id) && g.assigned != g.generation {
			g.assigned = g.generation
			return c.assign(g, r)
		}
	case stateStable:
		c.synced(g, m)
		reply(g.syncResponse(m))
	}
	return result{}
}

func checkSync(g *classicGroup, r *kmsg.SyncGroupRequest) error {
	if g.state == stateDead {
		return api.ErrCoordinatorNotAvailable
	}
	if err := g.checkMember(r.MemberID, r.InstanceID); err != nil {
		return err
	}
	differ := func(a, b *string) bool { return a != nil && b != nil && *a != *b }
	switch {
	case r.Generation != g.generation:
		return api.ErrIllegalGeneration
	case differ(r.ProtocolType, g.protocolType), differ(r.Protocol, g.protocol):
		return api.ErrInconsistentGroupProtocol
	}
	return nil
}

func (g *classicGroup) syncResponse(m *classicMember) *kmsg.SyncGroupResponse {
	resp := kmsg.NewPtrSyncGroupResponse()
	resp.ProtocolType, resp.Protocol = g.protocolType, g.protocol
	resp.MemberAssignment = m.assignment
	return resp
}

// assign stores what the leader has decided and then hands it out.
func (c *core) assign(g *classicGroup, r *kmsg.SyncGroupRequest) result {
	assignment := make(map[string][]byte, len(g.members))
	for _, a := range r.GroupAssignment {
		assignment[a.MemberID] = bytes.Clone(a.MemberAssignment)
	}
	for _, m := range g.members {
		if assignment[m.id] == nil {
			assignment[m.id] = []byte{}
		}
	}
	generation, leader := g.generation, r.MemberID
	return result{
		Records: []Record{g.record(assignment)},
		Applied: true,
		Committed: func(now time.Time, err error) {
			if g.state != stateCompleting || g.generation != generation {
				return // somebody joined or left meanwhile, and this assignment is void
			}
			if err != nil {
				answer := coordinator.OperationError(err)
				c.resetAssignment(g, answer, now)
				c.rebalance(g, fmt.Sprintf("could not store the assignment of leader %s: %v", leader, err), now)
				return
			}
			for _, m := range g.members {
				m.assignment = assignment[m.id]
			}
			for _, m := range g.members {
				if c.answerSync(m, g.syncResponse(m)) {
					// While it was parked its session may have ended without effect.
					c.prolong(g, m, m.sessionTimeout, now)
				}
			}
			g.transition(stateStable, now)
			c.counters.rebalances.Add(1)
		},
	}
}

// resetAssignment takes the assignments back and tells those who wait for one.
func (c *core) resetAssignment(g *classicGroup, err error, now time.Time) {
	for _, m := range g.members {
		m.assignment = nil
	}
	for _, m := range g.members {
		if c.answerSync(m, syncError(err)) {
			c.prolong(g, m, m.sessionTimeout, now)
		}
	}
}

// answerSync answers a member that is parked in SyncGroup and says whether it was.
func (c *core) answerSync(m *classicMember, resp *kmsg.SyncGroupResponse) bool {
	reply := m.awaitingSync
	if reply == nil {
		return false
	}
	m.awaitingSync = nil
	reply(resp)
	return true
}

// awaitSyncs gives the members their rebalance timeout to ask for their assignment.
func (c *core) awaitSyncs(g *classicGroup, now time.Time) {
	generation := g.generation
	g.syncTimer.Fire = func(now time.Time) (result, error) { return c.syncExpired(g, generation, now), nil }
	c.env.Timers.Set(&g.syncTimer, now.Add(g.rebalanceTimeout()))
}

// synced notes that a member has asked for its assignment.
func (c *core) synced(g *classicGroup, m *classicMember) {
	delete(g.unsynced, m.id)
	if len(g.unsynced) == 0 {
		c.env.Timers.Stop(&g.syncTimer)
	}
}

// syncExpired takes those out who haven't asked for their assignment.
func (c *core) syncExpired(g *classicGroup, generation int32, now time.Time) result {
	if !c.live(g) {
		return c.unlessGone(g, &g.syncTimer)
	}
	if g.generation != generation || len(g.unsynced) == 0 ||
		(g.state != stateCompleting && g.state != stateStable) {
		return result{}
	}
	var late []*classicMember
	for _, m := range g.members {
		if _, ok := g.unsynced[m.id]; ok {
			late = append(late, m)
		}
	}
	for _, m := range late {
		c.drop(g, m)
	}
	return c.prepareRebalance(g, fmt.Sprintf("removing %d members who did not sync in time", len(late)), now)
}

// heartbeat answers Heartbeat and prolongs the session.
func (c *core) heartbeat(r *kmsg.HeartbeatRequest, now time.Time) error {
	existing, _ := c.groups.Get(r.Group)
	if g, ok := existing.(*consumerGroup); ok {
		return c.heartbeatConsumer(r, g, now)
	}
	g, classic := existing.(*classicGroup)
	if !classic {
		return api.ErrUnknownMemberID
	}
	if g.state == stateDead {
		return api.ErrCoordinatorNotAvailable
	}
	if err := g.checkMember(r.MemberID, r.InstanceID); err != nil {
		return err
	}
	if r.Generation != g.generation {
		return api.ErrIllegalGeneration
	}
	if g.state == stateEmpty {
		return api.ErrUnknownMemberID
	}
	m := g.member(r.MemberID)
	c.prolong(g, m, m.sessionTimeout, now)
	if g.state == statePreparing {
		return api.ErrRebalanceInProgress
	}
	return nil
}

// leave answers LeaveGroup for each of its members.
func (c *core) leave(r *kmsg.LeaveGroupRequest, now time.Time) (result, *kmsg.LeaveGroupResponse) {
	resp := kmsg.NewPtrLeaveGroupResponse()
	existing, _ := c.groups.Get(r.Group)
	if g, ok := existing.(*consumerGroup); ok {
		return c.leaveConsumer(r, g, now)
	}
	g, classic := existing.(*classicGroup)
	if classic && g.state == stateDead {
		resp.ErrorCode = api.ErrCoordinatorNotAvailable.Code
		return result{}, resp
	}
	left := 0
	for _, rm := range r.Members {
		a := kmsg.NewLeaveGroupResponseMember()
		a.MemberID, a.InstanceID = rm.MemberID, rm.InstanceID
		var err error = api.ErrUnknownMemberID
		if classic {
			err = c.leaveOne(g, &rm)
		}
		if err == nil {
			left++
		}
		a.ErrorCode = api.CodeOf(err)
		resp.Members = append(resp.Members, a)
	}
	if left == 0 {
		return result{}, resp
	}
	switch g.state {
	case stateStable, stateCompleting:
		return c.rebalance(g, fmt.Sprintf("%d members left", left), now), resp
	case statePreparing:
		return c.maybeCompleteJoin(g, now), resp
	}
	return result{}, resp
}

// leaveOne takes a member out that says so itself, or that an administrator names by its instance id alone.
func (c *core) leaveOne(g *classicGroup, rm *kmsg.LeaveGroupRequestMember) error {
	id := rm.MemberID
	if id == "" {
		var ok bool
		if rm.InstanceID != nil {
			id, ok = g.static[*rm.InstanceID]
		}
		if !ok {
			return api.ErrUnknownMemberID
		}
	} else if _, ok := g.pending[id]; ok {
		c.dropPending(g, id)
		return nil
	} else if err := g.checkMember(id, rm.InstanceID); err != nil {
		return err
	}
	reason := "not provided"
	if rm.Reason != nil {
		reason = *rm.Reason
	}
	m := g.member(id)
	c.log.Info("group member left", "group", g.id, "member", id, "reason", reason)
	c.answerJoin(g, m, joinError("", api.ErrUnknownMemberID))
	c.drop(g, m)
	return nil
}
