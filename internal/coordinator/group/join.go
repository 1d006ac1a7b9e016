package group

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/coordinator"
)

// Versions of JoinGroup from which a behaviour differs.
const (
	// joinNeedsMemberID: a member without an id is told one and comes back with it (KIP-394).
	joinNeedsMemberID = 4
	// joinMaySkipAssignment: a static leader who comes back is told not to assign (KIP-814).
	joinMaySkipAssignment = 9
)

// joinRequest is a JoinGroup with its answer, of which only the first counts.
type joinRequest struct {
	*kmsg.JoinGroupRequest
	ctx   *Context
	reply func(*kmsg.JoinGroupResponse)
}

func (r *joinRequest) fail(memberID string, err error) { r.reply(joinError(memberID, err)) }

func (r *joinRequest) sessionTimeout() time.Duration {
	return time.Duration(r.SessionTimeoutMillis) * time.Millisecond
}

// rebalanceTimeout is the session timeout for the version that has none.
func (r *joinRequest) rebalanceTimeout() time.Duration {
	if r.ctx.Version == 0 {
		return r.sessionTimeout()
	}
	return time.Duration(r.RebalanceTimeoutMillis) * time.Millisecond
}

// protocols copies what the request offers.
func (r *joinRequest) protocols() []protocolMetadata {
	ps := make([]protocolMetadata, len(r.Protocols))
	for i, p := range r.Protocols {
		ps[i] = protocolMetadata{strings.Clone(p.Name), bytes.Clone(p.Metadata)}
	}
	return ps
}

func (r *joinRequest) reason(what string) string {
	if r.Reason != nil && *r.Reason != "" {
		return what + "; client reason: " + *r.Reason
	}
	return what + "; client reason: not provided"
}

func joinError(memberID string, err error) *kmsg.JoinGroupResponse {
	resp := kmsg.NewPtrJoinGroupResponse()
	resp.Generation = -1
	resp.MemberID = memberID
	resp.ErrorCode = api.CodeOf(err)
	return resp
}

// join answers JoinGroup, at once or when the group has gathered.
func (c *core) join(r *joinRequest, now time.Time) result {
	existing, ok := c.groups.Get(r.Group)
	g, classic := existing.(*classicGroup)
	if ok && !classic {
		return c.joinModern(r, existing, now)
	}
	if !ok && r.MemberID != "" {
		r.fail(r.MemberID, api.ErrUnknownMemberID)
		return result{}
	}
	isNew := !ok
	if isNew {
		g = newClassicGroup(strings.Clone(r.Group), now)
		c.groups.Set(g.id, g)
	}
	return c.joinClassic(r, g, isNew, nil, now)
}

// joinClassic joins g. A group that isNew is written down empty together with records, which remove what was there before.
func (c *core) joinClassic(r *joinRequest, g *classicGroup, isNew bool, records []Record, now time.Time) result {
	var res result
	switch {
	case !c.accepts(g, r.MemberID):
		if m := g.member(r.MemberID); m != nil {
			c.drop(g, m)
		}
		c.dropPending(g, r.MemberID)
		r.fail("", api.ErrGroupMaxSizeReached)
		// Differs from Kafka: the others don't wait for the timeout if they were only waiting for this one.
		res = c.maybeCompleteJoin(g, now)
	case r.MemberID == "":
		res = c.joinUnknown(r, g, now)
	default:
		res = c.joinKnown(r, g, now)
	}
	if isNew && len(res.Records) == 0 {
		// The map has the group already; the record makes that last.
		return result{
			Records: append(records, g.emptyRecord()),
			Applied: true,
			Committed: func(_ time.Time, err error) {
				if err != nil {
					c.log.Warn("group could not be stored", "group", g.id, "err", err)
					r.fail("", coordinator.OperationError(err))
					if !c.live(g) { // gone with the append, not only slow to be stored
						for _, m := range g.members {
							c.answerJoin(g, m, joinError("", coordinator.OperationError(err)))
						}
					}
				}
			},
		}
	}
	return res
}

// accepts says whether the group may have one more member, or knows this one.
func (c *core) accepts(g *classicGroup, memberID string) bool {
	switch g.state {
	case statePreparing:
		// Counting who waits, not who is a member, lets the last of too many be the ones who go.
		m := g.member(memberID)
		return m != nil && m.awaitingJoin != nil || g.joining < c.cfg.MaxSize
	case stateCompleting, stateStable:
		return g.member(memberID) != nil || len(g.members) < c.cfg.MaxSize
	default:
		return true
	}
}

// joinUnknown is for those who don't have a member id yet.
func (c *core) joinUnknown(r *joinRequest, g *classicGroup, now time.Time) result {
	if g.state == stateDead {
		r.fail("", api.ErrCoordinatorNotAvailable)
		return result{}
	}
	if !g.supports(r.ProtocolType, r.Protocols) {
		r.fail("", api.ErrInconsistentGroupProtocol)
		return result{}
	}
	if r.InstanceID != nil {
		id := *r.InstanceID + "-" + c.uuid()
		if old, ok := g.static[*r.InstanceID]; ok {
			c.log.Info("static member returns without its id and gets a new one", "group", g.id,
				"instance", *r.InstanceID, "old_member", old, "member", id, "state", g.state.String())
			return c.replaceStatic(r, g, g.member(old), id, now)
		}
		return c.addMember(r, g, id, now)
	}
	id := r.ctx.ClientID + "-" + c.uuid()
	if r.ctx.Version < joinNeedsMemberID {
		return c.addMember(r, g, id, now)
	}
	p := &pendingMember{}
	p.session.Fire = func(now time.Time) (result, error) { return c.pendingExpired(g, id, p, now), nil }
	if g.pending == nil {
		g.pending = make(map[string]*pendingMember, 1)
	}
	g.pending[id] = p
	c.env.Timers.Set(&p.session, now.Add(r.sessionTimeout()))
	r.fail(id, api.ErrMemberIDRequired)
	return result{}
}

// joinKnown is for those who say that they have a member id.
func (c *core) joinKnown(r *joinRequest, g *classicGroup, now time.Time) result {
	id := r.MemberID
	switch {
	case g.state == stateDead:
		r.fail(id, api.ErrCoordinatorNotAvailable)
		return result{}
	case !g.supports(r.ProtocolType, r.Protocols):
		r.fail(id, api.ErrInconsistentGroupProtocol)
		return result{}
	}
	if _, ok := g.pending[id]; ok {
		if r.InstanceID != nil {
			// Only dynamic members are pending; Kafka fails on its own assertion here.
			r.fail(id, api.ErrUnknownServerError)
			return result{}
		}
		return c.addMember(r, g, strings.Clone(id), now)
	}
	if err := g.checkMember(id, r.InstanceID); err != nil {
		r.fail(id, err)
		return result{}
	}
	m := g.member(id)
	switch g.state {
	case statePreparing:
		return c.rejoin(r, g, m, "member "+id+" is joining during PreparingRebalance", now)
	case stateCompleting:
		if !m.matches(r.Protocols) {
			return c.rejoin(r, g, m, "updating metadata for member "+id+" during CompletingRebalance", now)
		}
		// It seems to have missed the answer to its JoinGroup, which still holds.
		r.reply(g.joinResponse(m, g.isLeader(id)))
	case stateStable:
		switch {
		case g.isLeader(id):
			// The leader rejoins for reasons that its metadata doesn't show, such as more partitions.
			return c.rejoin(r, g, m, "leader "+id+" is rejoining during Stable", now)
		case !m.matches(r.Protocols):
			return c.rejoin(r, g, m, "updating metadata for member "+id+" during Stable", now)
		}
		r.reply(g.joinResponse(m, false))
	default:
		r.fail(id, api.ErrUnknownMemberID)
	}
	return result{}
}

// joinResponse is the answer for a member of the present generation, the list of members in it for its leader.
func (g *classicGroup) joinResponse(m *classicMember, withMembers bool) *kmsg.JoinGroupResponse {
	resp := kmsg.NewPtrJoinGroupResponse()
	resp.Generation = g.generation
	resp.ProtocolType = g.protocolType
	resp.Protocol = g.protocol
	resp.LeaderID = g.leaderID()
	resp.MemberID = m.id
	if withMembers {
		resp.Members = make([]kmsg.JoinGroupResponseMember, len(g.members))
		for i, o := range g.members {
			resp.Members[i] = kmsg.JoinGroupResponseMember{
				MemberID: o.id, InstanceID: o.instanceID, ProtocolMetadata: o.metadata(g.protocol),
			}
		}
	}
	return resp
}

// rejoin parks a member with what it says now and goes on with the rebalance.
func (c *core) rejoin(r *joinRequest, g *classicGroup, m *classicMember, why string, now time.Time) result {
	// Differs from Kafka, which never answers a JoinGroup that was repeated while it was parked. Its connection is usually
	// gone; if it isn't, it would be stuck.
	c.answerJoin(g, m, joinError(m.id, api.ErrRebalanceInProgress))
	g.update(m, r.protocols(), r.rebalanceTimeout(), r.sessionTimeout())
	g.park(m, r.reply)
	return c.rebalance(g, r.reason(why), now)
}

// addMember takes in somebody new and goes on with the rebalance.
func (c *core) addMember(r *joinRequest, g *classicGroup, id string, now time.Time) result {
	m := &classicMember{
		id:               id,
		clientID:         strings.Clone(r.ctx.ClientID),
		clientHost:       r.ctx.ClientHost,
		rebalanceTimeout: r.rebalanceTimeout(),
		sessionTimeout:   r.sessionTimeout(),
		protocols:        r.protocols(),
		isNew:            true,
		awaitingJoin:     r.reply,
	}
	if r.InstanceID != nil {
		instance := strings.Clone(*r.InstanceID)
		m.instanceID = &instance
	}
	if g.state == statePreparing && g.previous == stateEmpty {
		g.newcomers = true
	}
	c.dropPending(g, id)
	g.add(strings.Clone(r.ProtocolType), m)
	// It can't send heartbeats yet. If its connection breaks it will come again under another id, so those who are
	// parked here for too long are taken for gone.
	c.prolong(g, m, c.cfg.NewMemberJoinTimeout, now)
	return c.rebalance(g, r.reason("adding new member "+id), now)
}

// replaceStatic gives a static member that has come back a new id, and rebalances only if it has to.
func (c *core) replaceStatic(r *joinRequest, g *classicGroup, m *classicMember, id string, now time.Time) result {
	var (
		leader       = g.leader
		oldID        = m.id
		oldProtocols = m.protocols
		oldRebalance = m.rebalanceTimeout
		oldSession   = m.sessionTimeout
	)
	if leader != nil {
		l := *leader // rename changes it in place
		leader = &l
	}
	// Whoever still waits under the old id is a duplicate.
	c.answerJoin(g, m, joinError(oldID, api.ErrFencedInstanceID))
	c.answerSync(m, syncError(api.ErrFencedInstanceID))
	g.rename(m, id)
	g.update(m, r.protocols(), r.rebalanceTimeout(), r.sessionTimeout())
	g.park(m, r.reply)
	c.prolong(g, m, oldSession, now)

	switch g.state {
	case stateStable:
		if g.protocol == nil || g.selectProtocol() != *g.protocol {
			return c.rebalance(g, r.reason("the protocol changes with static member "+*m.instanceID), now)
		}
		return result{
			Records: []Record{g.record(nil)},
			Applied: true,
			Committed: func(now time.Time, err error) {
				if g.member(id) != m {
					return // replaced again, or gone
				}
				if err != nil {
					c.log.Warn("static member could not be stored, its old id stays", "group", g.id,
						"instance", *m.instanceID, "member", oldID, "err", err)
					answer := joinError("", coordinator.OperationError(err))
					answer.Generation = g.generation
					answer.ProtocolType, answer.Protocol = g.protocolType, g.protocol
					if leader != nil {
						answer.LeaderID = *leader
					}
					c.answerJoin(g, m, answer)
					g.update(m, oldProtocols, oldRebalance, oldSession)
					g.rename(m, oldID)
					c.prolong(g, m, m.sessionTimeout, now)
					return
				}
				if m.awaitingJoin == nil {
					return
				}
				answer := g.joinResponse(m, false)
				if r.ctx.Version >= joinMaySkipAssignment {
					lead := g.isLeader(id)
					answer = g.joinResponse(m, lead)
					answer.SkipAssignment = lead
				} else if leader != nil {
					// These versions would assign if they were told that they lead. The old id doesn't exist any more.
					answer.LeaderID = *leader
				}
				c.answerJoin(g, m, answer)
			},
		}
	case stateCompleting:
		// The old id may be in what the leader has been told, and then the assignment would miss the new one.
		return c.prepareRebalance(g, r.reason("static member "+*m.instanceID+" has a new id"), now)
	default:
		return c.maybeCompleteJoin(g, now)
	}
}

// rebalance begins a rebalance, or goes on with the one that is under way.
func (c *core) rebalance(g *classicGroup, reason string, now time.Time) result {
	switch g.state {
	case stateStable, stateCompleting, stateEmpty:
		return c.prepareRebalance(g, reason, now)
	default:
		return c.maybeCompleteJoin(g, now)
	}
}

// prepareRebalance makes all members join again.
func (c *core) prepareRebalance(g *classicGroup, reason string, now time.Time) result {
	if g.state == stateCompleting {
		c.resetAssignment(g, api.ErrRebalanceInProgress, now)
	}
	g.unsynced = nil
	c.env.Timers.Stop(&g.syncTimer)

	initial := g.state == stateEmpty
	g.transition(statePreparing, now)
	c.log.Info("group prepares to rebalance", "group", g.id, "generation", g.generation, "members", len(g.members),
		"reason", reason)
	switch {
	case initial:
		delay := c.cfg.InitialRebalanceDelay
		remaining := max(g.rebalanceTimeout()-delay, 0)
		c.delayInitial(g, delay, remaining, now)
		return result{}
	case g.allJoined():
		return c.completeJoin(g, now)
	}
	c.awaitJoins(g, now)
	return result{}
}

// unlessGone is what a timer does whose group isn't there. It may have become a group of another kind, and if that can't be
// written it comes back, and needs the timer.
func (c *core) unlessGone(g *classicGroup, t *timer) result {
	return result{Committed: func(now time.Time, err error) {
		if err != nil && c.live(g) && !t.Active() {
			c.env.Timers.Set(t, now)
		}
	}}
}

// delayInitial gives the members of a new group time to come together.
func (c *core) delayInitial(g *classicGroup, delay, remaining time.Duration, now time.Time) {
	g.joinTimer.Fire = func(now time.Time) (result, error) {
		switch {
		case !c.live(g):
			return c.unlessGone(g, &g.joinTimer), nil
		case g.newcomers && remaining > 0:
			g.newcomers = false
			c.delayInitial(g, min(c.cfg.InitialRebalanceDelay, remaining), max(remaining-delay, 0), now)
			return result{}, nil
		}
		return c.completeJoin(g, now), nil
	}
	c.env.Timers.Set(&g.joinTimer, now.Add(delay))
}

// awaitJoins gives the members their rebalance timeout to join.
func (c *core) awaitJoins(g *classicGroup, now time.Time) {
	g.joinTimer.Fire = func(now time.Time) (result, error) {
		if !c.live(g) {
			return c.unlessGone(g, &g.joinTimer), nil
		}
		return c.completeJoin(g, now), nil
	}
	c.env.Timers.Set(&g.joinTimer, now.Add(g.rebalanceTimeout()))
}

// maybeCompleteJoin ends the gathering if everyone is there, except that a new group takes its time.
func (c *core) maybeCompleteJoin(g *classicGroup, now time.Time) result {
	if g.state == statePreparing && g.previous != stateEmpty && g.allJoined() {
		return c.completeJoin(g, now)
	}
	return result{}
}

// completeJoin ends the gathering: who hasn't come is out (static members excepted, who have until their session ends), and
// the rest is the next generation.
func (c *core) completeJoin(g *classicGroup, now time.Time) result {
	c.env.Timers.Stop(&g.joinTimer)
	var late []*classicMember
	for _, m := range g.members {
		if m.awaitingJoin == nil && m.instanceID == nil {
			late = append(late, m)
		}
	}
	for _, m := range late {
		c.log.Info("group member did not rejoin in time", "group", g.id, "member", m.id)
		c.drop(g, m)
	}
	if !g.electLeader() && len(g.members) > 0 {
		c.log.Error("group can't rebalance because no member has rejoined", "group", g.id, "members", len(g.members))
		c.awaitJoins(g, now)
		return result{}
	}
	g.beginGeneration(now)
	if g.state == stateEmpty {
		c.log.Info("group is empty", "group", g.id, "generation", g.generation)
		return result{
			Records: []Record{g.record(nil)},
			Applied: true,
			Committed: func(_ time.Time, err error) {
				if err != nil {
					// The stored generation comes back with a restart, without members who live, and ends by their timeouts.
					c.log.Warn("empty group could not be stored", "group", g.id, "err", err)
				}
			},
		}
	}
	c.log.Info("group stabilized", "group", g.id, "generation", g.generation, "members", len(g.members))
	g.unsynced = make(map[string]struct{}, len(g.members))
	for _, m := range g.members {
		c.answerJoin(g, m, g.joinResponse(m, g.isLeader(m.id)))
		m.isNew = false
		c.prolong(g, m, m.sessionTimeout, now)
		g.unsynced[m.id] = struct{}{}
	}
	c.awaitSyncs(g, now)
	return result{}
}

// answerJoin answers a member that is parked in JoinGroup.
func (c *core) answerJoin(g *classicGroup, m *classicMember, resp *kmsg.JoinGroupResponse) {
	if reply := m.awaitingJoin; reply != nil {
		g.park(m, nil)
		reply(resp)
	}
}

// prolong lets a member's session end in d from now.
func (c *core) prolong(g *classicGroup, m *classicMember, d time.Duration, now time.Time) {
	if m.session.Fire == nil {
		m.session.Fire = func(now time.Time) (result, error) { return c.sessionExpired(g, m, now), nil }
	}
	c.env.Timers.Set(&m.session, now.Add(d))
}

// drop takes a member out. If it is parked in SyncGroup, perhaps by a repeated request whose first copy it went on from, it is told.
func (c *core) drop(g *classicGroup, m *classicMember) {
	c.answerSync(m, syncError(api.ErrUnknownMemberID))
	c.env.Timers.Stop(&m.session)
	g.remove(m)
}

// dropPending forgets the id of somebody who was to come back with it.
func (c *core) dropPending(g *classicGroup, id string) {
	if p, ok := g.pending[id]; ok {
		c.env.Timers.Stop(&p.session)
		delete(g.pending, id)
	}
}

// sessionExpired is for members who haven't been heard of.
func (c *core) sessionExpired(g *classicGroup, m *classicMember, now time.Time) result {
	if !c.live(g) {
		return c.unlessGone(g, &m.session)
	}
	if g.member(m.id) != m || m.excused() {
		return result{}
	}
	c.log.Info("group member has failed", "group", g.id, "member", m.id, "session", m.sessionTimeout)
	return c.removeMember(g, m, "removing member "+m.id+" on session expiration", now)
}

// pendingExpired is for those who didn't come back with their id.
func (c *core) pendingExpired(g *classicGroup, id string, p *pendingMember, now time.Time) result {
	if !c.live(g) {
		return c.unlessGone(g, &p.session)
	}
	if g.pending[id] != p {
		return result{}
	}
	delete(g.pending, id)
	if g.state == statePreparing && g.allJoined() {
		return c.completeJoin(g, now)
	}
	return result{}
}

// removeMember takes a member out and lets the others rebalance.
func (c *core) removeMember(g *classicGroup, m *classicMember, reason string, now time.Time) result {
	// A new one may be parked while the group takes its time. If it lives it will try again.
	c.answerJoin(g, m, joinError("", api.ErrUnknownMemberID))
	c.drop(g, m)
	switch g.state {
	case stateStable, stateCompleting:
		return c.rebalance(g, reason, now)
	case statePreparing:
		if g.allJoined() {
			return c.completeJoin(g, now)
		}
	}
	return result{}
}

// joinModern is for groups of other kinds. A consumer or streams group without members becomes a classic group.
func (c *core) joinModern(r *joinRequest, existing group, now time.Time) result {
	if g, ok := existing.(*consumerGroup); ok && !g.empty() {
		return c.joinConsumer(r, g, now)
	}
	if existing.kind() == Share || !existing.empty() {
		r.fail("", api.ErrInconsistentGroupProtocol)
		return result{}
	}
	if r.MemberID != "" {
		r.fail(r.MemberID, api.ErrUnknownMemberID)
		return result{}
	}
	records := existing.tombstones(nil)
	c.groups.Delete(existing.groupID())
	g := newClassicGroup(existing.groupID(), now)
	c.groups.Set(g.id, g)
	c.log.Info(fmt.Sprintf("empty %s group becomes a classic group", existing.kind()), "group", g.id)
	return c.joinClassic(r, g, true, records, now)
}
