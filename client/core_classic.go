package client

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// classicMember is a member of a group whose members assign (group.protocol=classic).
//
//	unjoined -> preparing -> joining -> syncing -> completing -> stable -> (rebalance) preparing …
//
// With an eager assignor everything is given up in preparing; with a cooperative one only what the new assignment lacks, in
// completing, after which the member joins once more so that it can be handed on.
type classicMember struct {
	k          *core
	state      classicState
	id         string
	generation int32
	protocol   string // of the generation

	rejoin   bool // as soon as possible
	sent     bool // the request of joining or syncing is under way
	reply    *joinReply
	counts   map[string]int32 // of partitions, when this member assigned them
	userData map[string][]byte

	beating   bool
	nextBeat  time.Time
	lastBeat  time.Time // answered
	notBefore time.Time
	failures  int
}

type classicState uint8

const (
	classicUnjoined classicState = iota
	classicPreparing
	classicJoining
	classicSyncing
	classicCompleting
	classicStable
	classicStale // left because the caller stayed away from Poll
	classicStopped
)

// joinReply is what JoinGroup answered.
type joinReply struct {
	leader  bool
	skip    bool // KIP-814: the leader keeps the assignment that the group has
	members []AssignMember
}

func newClassicMember(k *core) *classicMember { return &classicMember{k: k, generation: -1} }

func (m *classicMember) identity() memberIdentity {
	return memberIdentity{m.id, m.generation, m.k.instance()}
}

func (m *classicMember) subscribed(string) {
	if m.state != classicUnjoined {
		m.rejoin = true
	}
}

func (m *classicMember) polled() {
	if m.state == classicStale {
		m.state = classicUnjoined
	}
}

// cooperative says whether the current protocol lets members keep partitions while rebalancing. Before the first generation the
// configured assignors decide: one that isn't cooperative makes it eager.
func (m *classicMember) cooperative() bool {
	for _, a := range m.k.o.Assignors {
		if m.protocol == "" && !a.Cooperative() || m.protocol == a.Name() {
			return a.Cooperative()
		}
	}
	return m.protocol == ""
}

func (m *classicMember) tick() {
	k := m.k
	if m.state == classicStopped || m.state == classicStale || k.closing {
		return
	}
	if m.state != classicUnjoined && k.pollExpired() {
		m.expire()
		return
	}
	m.heartbeats()
	switch m.state {
	case classicUnjoined:
		if len(k.topics) > 0 && k.due(m.notBefore) {
			m.prepare()
		}
	case classicStable:
		if m.rejoin {
			m.prepare()
		}
	}
	switch m.state {
	case classicJoining:
		if !m.sent {
			m.join()
		}
	case classicSyncing:
		if !m.sent {
			m.sync()
		}
	}
}

// prepare gives up what may not be kept during a rebalance.
func (m *classicMember) prepare() {
	k := m.k
	m.state, m.rejoin = classicPreparing, false
	var gone []TopicPartition
	lost := m.generation < 0
	for _, tp := range k.all() {
		if lost || !m.cooperative() || !slices.Contains(k.topics, tp.Topic) {
			gone = append(gone, tp)
		}
	}
	k.release(gone, lost, func() {
		if m.state == classicPreparing {
			m.state, m.sent = classicJoining, false
		}
	})
}

// expire leaves because the caller stayed away too long.
func (m *classicMember) expire() {
	k := m.k
	k.log.Warn("the caller has been away from Poll for longer than max.poll.interval.ms: the member leaves the group until it is back",
		"group", k.o.Group, "interval", k.o.MaxPollInterval)
	if k.o.InstanceID == "" {
		m.sendLeave(func() {})
	}
	m.reset()
	m.id, m.state = "", classicStale
}

// reset forgets the generation: what was owned may be someone else's.
func (m *classicMember) reset() {
	m.generation, m.protocol, m.beating, m.sent, m.reply, m.counts = -1, "", false, false, nil, nil
	m.state, m.k.meta.extra = classicUnjoined, nil
}

func (m *classicMember) heartbeats() {
	k := m.k
	switch m.state {
	case classicStable, classicCompleting, classicPreparing:
	default:
		return
	}
	if m.generation < 0 {
		return
	}
	if k.due(m.lastBeat.Add(k.o.Session)) {
		k.coord.failed(NotCoordinator) // it is silent: perhaps another is it by now
		m.lastBeat = k.now
	}
	if m.beating || !k.due(m.nextBeat) {
		return
	}
	node, ok := k.coord.get()
	if !ok {
		return
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.InstanceID, req.Generation = k.o.Group, m.id, k.instance(), m.generation
	m.beating, m.nextBeat = true, k.now.Add(k.o.Heartbeat)
	generation := m.generation
	k.send(effectSend{node: node, lane: laneGroup, req: req, timeout: min(k.o.requestTimeout, k.o.Session)}, func(resp kmsg.Response, err error) {
		_, err = respondError(resp, err, func(r *kmsg.HeartbeatResponse) error { return errorOf(r.ErrorCode, nil) })
		if m.generation == generation {
			m.beating = false
			m.beaten(err)
		}
	})
}

func (m *classicMember) beaten(err error) {
	k := m.k
	k.coord.failed(err)
	code, known := Code(err)
	switch {
	case err == nil:
		m.lastBeat = k.now
	case known && code == RebalanceInProgress.Code:
		m.lastBeat = k.now
		if m.state == classicStable || m.state == classicCompleting {
			m.rejoin = true
		}
	case Retriable(err):
		m.nextBeat = k.now.Add(min(k.backoff(0), k.o.Heartbeat))
	case m.state == classicPreparing:
		// The join that follows will say the same; but nothing is to be committed any more.
		m.failed("", err)
	default:
		m.failed("", err)
	}
}

// join joins. The answer comes when all members have joined, which may take the rebalance timeout.
func (m *classicMember) join() {
	k := m.k
	node, ok := k.coord.get()
	if !ok || !k.due(m.notBefore) {
		return
	}
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.InstanceID, req.ProtocolType = k.o.Group, m.id, k.instance(), "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(k.o.Session.Milliseconds()), int32(k.o.MaxPollInterval.Milliseconds())
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics, meta.Generation = 3, k.topics, m.generation
	if k.o.Rack != "" {
		meta.Rack = &k.o.Rack
	}
	owned := byTopic(k.all())
	for _, t := range sortedKeys(owned) {
		meta.OwnedPartitions = append(meta.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: t, Partitions: owned[t]})
	}
	for _, a := range k.o.Assignors {
		meta.UserData = nil
		if d, ok := a.(userDataAssignor); ok {
			meta.UserData = m.userData[d.Name()]
		}
		req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: a.Name(), Metadata: meta.AppendTo(nil)})
	}
	m.sent, m.rejoin = true, false
	var reply *joinReply
	k.send(effectSend{node: node, lane: laneGroup, req: req, timeout: k.o.MaxPollInterval + 5*time.Second}, func(resp kmsg.Response, err error) {
		r, err := respondError(resp, err, func(r *kmsg.JoinGroupResponse) error {
			err := errorOf(r.ErrorCode, nil)
			if err == nil {
				reply, err = joinReplyOf(r)
			}
			return err
		})
		if m.state != classicJoining {
			return
		}
		m.sent = false
		k.coord.failed(err)
		if err == nil && m.assignor(*r.Protocol) == nil {
			err = fmt.Errorf("the group uses assignor %q, which this member doesn't have", *r.Protocol)
		}
		if err != nil {
			id := ""
			if r != nil {
				id = r.MemberID
			}
			m.failed(id, err)
			return
		}
		m.id, m.generation, m.protocol, m.reply, m.failures = r.MemberID, r.Generation, *r.Protocol, reply, 0
		m.state, m.counts, k.meta.extra = classicSyncing, nil, nil
		if reply.leader {
			k.meta.extra = topicsOf(reply.members)
		}
	})
}

func (m *classicMember) assignor(name string) Assignor {
	i := slices.IndexFunc(m.k.o.Assignors, func(a Assignor) bool { return a.Name() == name })
	if i < 0 {
		return nil
	}
	return m.k.o.Assignors[i]
}

func joinReplyOf(r *kmsg.JoinGroupResponse) (*joinReply, error) {
	if r.Protocol == nil {
		return nil, errors.New("the group has no protocol")
	}
	out := &joinReply{leader: r.LeaderID == r.MemberID, skip: r.SkipAssignment}
	for _, m := range r.Members {
		am := AssignMember{ID: m.MemberID, Generation: -1}
		if m.InstanceID != nil {
			am.InstanceID = *m.InstanceID
		}
		var meta kmsg.ConsumerMemberMetadata
		if err := meta.ReadFrom(m.ProtocolMetadata); err != nil {
			return nil, fmt.Errorf("metadata of member %s: %w", m.MemberID, err)
		}
		am.Topics, am.UserData = meta.Topics, meta.UserData
		for _, t := range meta.OwnedPartitions {
			for _, p := range t.Partitions {
				am.Owned = append(am.Owned, TopicPartition{t.Topic, p})
			}
		}
		if meta.Version >= 2 {
			am.Generation = meta.Generation
		}
		out.members = append(out.members, am)
	}
	return out, nil
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

// sync hands in the assignments, if this member leads, and gets its own.
func (m *classicMember) sync() {
	k := m.k
	node, ok := k.coord.get()
	if !ok {
		return
	}
	req := kmsg.NewPtrSyncGroupRequest()
	protocolType, protocol := "consumer", m.protocol
	req.Group, req.MemberID, req.InstanceID, req.Generation = k.o.Group, m.id, k.instance(), m.generation
	req.ProtocolType, req.Protocol = &protocolType, &protocol
	if m.reply.leader {
		counts, known := k.meta.counts(k.meta.extra)
		if !known {
			return // metadata is on its way
		}
		m.counts = counts
		if !m.reply.skip {
			req.GroupAssignment = assignmentsOf(m.assignor(protocol).Assign(m.reply.members, counts))
		}
	}
	m.sent = true
	var assigned []TopicPartition
	k.send(effectSend{node: node, lane: laneGroup, req: req, timeout: k.o.MaxPollInterval + 5*time.Second}, func(resp kmsg.Response, err error) {
		_, err = respondError(resp, err, func(r *kmsg.SyncGroupResponse) error {
			err := errorOf(r.ErrorCode, nil)
			if err == nil {
				assigned, err = readAssignment(r.MemberAssignment)
			}
			return err
		})
		if m.state != classicSyncing {
			return
		}
		m.sent = false
		k.coord.failed(err)
		if err != nil {
			m.failed("", err)
			return
		}
		m.complete(assigned)
	})
}

// complete goes over to a new assignment.
func (m *classicMember) complete(assigned []TopicPartition) {
	k := m.k
	m.state, m.failures, m.reply = classicCompleting, 0, nil
	m.lastBeat, m.nextBeat = k.now, k.now.Add(k.o.Heartbeat)
	if d, ok := m.assignor(m.protocol).(userDataAssignor); ok {
		if m.userData == nil {
			m.userData = map[string][]byte{}
		}
		m.userData[d.Name()] = d.UserData(assigned, m.generation)
	}
	var revoked, added []TopicPartition
	for _, tp := range k.all() {
		if !slices.Contains(assigned, tp) {
			revoked = append(revoked, tp)
		}
	}
	for _, tp := range assigned {
		if k.parts[tp] == nil {
			added = append(added, tp)
		}
	}
	generation := m.generation
	over := func() bool { return m.state != classicCompleting || m.generation != generation }
	k.release(revoked, false, func() {
		if over() {
			return
		}
		k.adopt(added, func() {
			if over() {
				return
			}
			m.state = classicStable
			if len(revoked) > 0 && m.cooperative() {
				m.rejoin = true
			}
		})
	})
}

func assignmentsOf(plan map[string][]TopicPartition) []kmsg.SyncGroupRequestGroupAssignment {
	var out []kmsg.SyncGroupRequestGroupAssignment
	for _, id := range sortedKeys(plan) {
		a := kmsg.NewConsumerMemberAssignment()
		a.Version = 3
		topics := byTopic(plan[id])
		for _, t := range sortedKeys(topics) {
			a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: t, Partitions: topics[t]})
		}
		out = append(out, kmsg.SyncGroupRequestGroupAssignment{MemberID: id, MemberAssignment: a.AppendTo(nil)})
	}
	return out
}

// failed deals with what a coordinator refused, in any request.
func (m *classicMember) failed(memberID string, err error) {
	k := m.k
	code, known := Code(err)
	m.notBefore = k.now
	again := func() {
		// With the generation, so that what is owned stays so until it is known to be lost.
		m.state, m.sent, m.reply, m.rejoin = classicUnjoined, false, nil, false
	}
	switch {
	case known && code == MemberIDRequired.Code:
		// KIP-394: the id is given first, and the join repeated with it.
		m.id, m.sent = memberID, false
	case known && code == RebalanceInProgress.Code:
		again()
	case known && code == UnknownMemberID.Code:
		m.reset()
		m.id = ""
	case known && code == IllegalGeneration.Code:
		m.reset()
	case Retriable(err):
		if m.state == classicJoining || m.state == classicSyncing {
			again()
		}
		m.notBefore = k.now.Add(k.backoff(m.failures))
		m.failures++
	default:
		m.reset()
		m.state = classicStopped
		k.emit(effectError{fmt.Errorf("group %q: %w", k.o.Group, err), true})
		k.release(k.all(), true, func() {})
	}
}

func (m *classicMember) failedCommit(err error) {
	code, known := Code(err)
	if known && (code == IllegalGeneration.Code || code == UnknownMemberID.Code || code == RebalanceInProgress.Code) && m.state == classicStable {
		m.rejoin = true // whatever is wrong, the join will tell
	}
}

// metadataChanged has the group's leader look whether topics have more partitions than it handed out.
func (m *classicMember) metadataChanged() {
	if m.counts == nil || m.state != classicStable {
		return
	}
	if counts, known := m.k.meta.counts(m.k.meta.extra); known && !maps.Equal(counts, m.counts) {
		m.rejoin = true
	}
}

// leave gives all up and leaves the group.
func (m *classicMember) leave(how Leave, then func()) {
	k := m.k
	tell := m.id != "" && (how == LeaveGroup || how == LeaveDefault && k.o.InstanceID == "")
	lost := m.generation < 0
	m.state = classicStopped
	k.release(k.all(), lost, func() {
		k.meta.extra = nil
		if !tell {
			then()
			return
		}
		m.sendLeave(then)
	})
}

func (m *classicMember) sendLeave(then func()) {
	k := m.k
	node, ok := k.coord.get()
	if !ok || m.id == "" {
		then() // nobody to tell; the session will end by itself
		return
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	reason := "the consumer is being closed"
	req.Group, req.MemberID = k.o.Group, m.id
	req.Members = []kmsg.LeaveGroupRequestMember{{MemberID: m.id, InstanceID: k.instance(), Reason: &reason}}
	k.send(effectSend{node: node, lane: laneGroup, req: req, timeout: min(5*time.Second, k.o.requestTimeout)}, func(kmsg.Response, error) { then() })
}
