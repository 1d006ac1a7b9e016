package client

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// memberState is where a member of a consumer group (KIP-848) is. Names and transitions are Kafka's.
type memberState uint8

const (
	memberUnsubscribed   memberState = iota // not in a group
	memberJoining                           // the next heartbeat joins, with epoch 0
	memberReconciling                       // gives up and takes over partitions; heartbeats go on
	memberAcknowledging                     // done with that; the next heartbeat says so
	memberStable                            // has what it was given
	memberFenced                            // was thrown out; gives all up and joins again
	memberPrepareLeaving                    // gives all up; heartbeats go on
	memberLeaving                           // the next heartbeat leaves, with epoch -1 or -2
	memberStale                             // left because the caller stayed away from Poll
	memberFatal                             // can't go on
)

var memberStateNames = [...]string{
	"UNSUBSCRIBED", "JOINING", "RECONCILING", "ACKNOWLEDGING", "STABLE", "FENCED", "PREPARE_LEAVING", "LEAVING", "STALE", "FATAL",
}

func (s memberState) String() string { return memberStateNames[s] }

// memberTransitions says from where a state can be reached.
var memberTransitions = [...][]memberState{
	memberUnsubscribed:  {memberPrepareLeaving, memberLeaving, memberFenced},
	memberJoining:       {memberFenced, memberUnsubscribed, memberStale},
	memberReconciling:   {memberStable, memberJoining, memberAcknowledging, memberReconciling},
	memberAcknowledging: {memberReconciling},
	memberStable:        {memberJoining, memberAcknowledging, memberReconciling},
	memberFenced: {
		memberJoining, memberStable, memberReconciling, memberAcknowledging, memberPrepareLeaving, memberLeaving,
	},
	memberPrepareLeaving: {memberJoining, memberStable, memberReconciling, memberAcknowledging, memberUnsubscribed},
	memberLeaving:        {memberPrepareLeaving},
	memberStale:          {memberLeaving},
	memberFatal: {
		memberJoining, memberStable, memberReconciling, memberAcknowledging, memberPrepareLeaving, memberLeaving, memberUnsubscribed,
	},
}

// The special member epochs.
const (
	epochJoin        int32 = 0
	epochLeave       int32 = -1
	epochLeaveStatic int32 = -2 // and come back
)

// localAssignment is an assignment with a number of its own, which tells it from an earlier one with the same partitions. The
// number is -1 for none.
type localAssignment struct {
	epoch int64
	parts map[UUID][]int32 // sorted
}

var noAssignment = localAssignment{epoch: -1}

func (a localAssignment) same(b map[UUID][]int32) bool {
	return maps.EqualFunc(a.parts, b, slices.Equal)
}
func (a localAssignment) equal(b localAssignment) bool { return a.epoch == b.epoch && a.same(b.parts) }

// consumerMember is a member of a group whose coordinator assigns (group.protocol=consumer).
type consumerMember struct {
	k       *core
	state   memberState
	id      string
	epoch   int32
	pattern string // for the server to match topics with

	target  localAssignment
	current localAssignment
	names   map[UUID]string // of the topics assigned, should metadata forget them
	// reconciling is the number of the reconciliation under way; a member that joins anew abandons it.
	reconciling uint64
	abandoned   bool
	releasing   bool // what a stale member had

	sent     sentFields
	request  uint64 // the heartbeat under way, 0 for none
	interval time.Duration
	next     time.Time // when the next heartbeat is due
	failures int
	expired  bool // the caller stayed away from Poll
	left     func()
	how      Leave
}

// sentFields is what the last heartbeat said: only what has changed since is said again.
type sentFields struct {
	timeout  time.Duration
	topics   []string
	pattern  *string
	assignor string
	local    localAssignment
	any      bool
}

func newConsumerMember(k *core) *consumerMember {
	return &consumerMember{k: k, id: k.newID(), target: noAssignment, current: noAssignment, names: map[UUID]string{}}
}

// to changes the state.
func (m *consumerMember) to(s memberState) bool {
	if !slices.Contains(memberTransitions[s], m.state) {
		m.k.emit(effectError{fmt.Errorf("group %q: a member that is %v can't become %v", m.k.o.Group, m.state, s), true})
		return false
	}
	m.k.log.Debug("member", "group", m.k.o.Group, "from", m.state.String(), "to", s.String(), "epoch", m.epoch)
	m.state = s
	return true
}

func (m *consumerMember) identity() memberIdentity {
	if m.epoch <= 0 && m.state != memberPrepareLeaving {
		return memberIdentity{generation: -1, instance: m.k.instance(), id: m.id}
	}
	return memberIdentity{m.id, m.epoch, m.k.instance()}
}

func (m *consumerMember) failedCommit(error) {}

func (m *consumerMember) subscribed(pattern string) {
	m.pattern = pattern
	switch m.state {
	case memberUnsubscribed:
		m.join()
	case memberStable, memberReconciling, memberAcknowledging, memberJoining:
		m.next = m.k.now
	}
}

func (m *consumerMember) polled() {
	m.expired = false
	if m.state == memberStale && !m.releasing {
		m.join()
	}
}

func (m *consumerMember) metadataChanged() {}

// join has the next heartbeat join.
func (m *consumerMember) join() {
	if m.state == memberFatal {
		return
	}
	m.abandoned = m.reconciling != 0
	m.epoch = epochJoin
	if m.to(memberJoining) {
		m.target, m.names = noAssignment, map[UUID]string{}
		m.next = m.k.now
	}
}

// tick goes on with the assignment, and sends a heartbeat if one is due.
func (m *consumerMember) tick() {
	if m.state == memberReconciling {
		m.reconcile()
	}
	switch m.state {
	case memberUnsubscribed, memberFatal, memberStale, memberFenced:
		return
	}
	node, ok := m.k.coord.get()
	if !ok {
		if m.state == memberLeaving {
			// Nobody to tell; the session will end by itself.
			m.to(memberUnsubscribed)
			m.hasLeft()
		}
		return
	}
	if m.state == memberLeaving {
		if m.silent() {
			m.to(memberUnsubscribed)
			m.hasLeft()
			return
		}
		m.beat(node)
		return
	}
	if m.state != memberPrepareLeaving && m.k.pollExpired() {
		m.expire(node)
		return
	}
	if m.request != 0 {
		return
	}
	if m.state == memberAcknowledging || m.k.due(m.next) {
		m.beat(node)
	}
}

// expire leaves because the caller stayed away too long.
func (m *consumerMember) expire(node int32) {
	m.k.log.Warn("the caller has been away from Poll for longer than max.poll.interval.ms: the member leaves the group until it is back",
		"group", m.k.o.Group, "interval", m.k.o.MaxPollInterval)
	m.expired, m.how = true, LeaveDefault
	m.to(memberPrepareLeaving)
	m.toLeaving()
	m.beat(node)
}

func (m *consumerMember) leaveEpoch() int32 {
	switch {
	case m.k.o.InstanceID == "":
		return epochLeave
	case m.how == LeaveGroup:
		return epochLeave
	}
	return epochLeaveStatic
}

// silent says that the group isn't to be told that a member goes.
func (m *consumerMember) silent() bool { return m.how == RemainInGroup && m.k.o.InstanceID == "" }

// toLeaving has the next heartbeat leave.
func (m *consumerMember) toLeaving() {
	m.epoch = m.leaveEpoch()
	m.current = noAssignment
	m.to(memberLeaving)
}

// leave gives all up and leaves.
func (m *consumerMember) leave(how Leave, then func()) {
	m.how = how
	switch m.state {
	case memberFenced:
		m.k.drop(m.k.all())
		m.to(memberUnsubscribed)
		then()
		return
	case memberUnsubscribed, memberFatal, memberStale:
		m.k.drop(m.k.all())
		then()
		return
	case memberPrepareLeaving, memberLeaving:
		before := m.left
		m.left = func() {
			if before != nil {
				before()
			}
			then()
		}
		return
	}
	m.left = then
	m.to(memberPrepareLeaving)
	m.k.release(m.k.all(), false, func() {
		m.target, m.names = noAssignment, map[UUID]string{}
		if m.state == memberPrepareLeaving {
			m.toLeaving()
		}
	})
}

func (m *consumerMember) hasLeft() {
	if f := m.left; f != nil {
		m.left = nil
		f()
	}
}

// beat sends a heartbeat.
func (m *consumerMember) beat(node int32) {
	k := m.k
	req := m.heartbeat()
	m.next = k.now.Add(m.interval)
	leaving := m.state == memberLeaving
	switch m.state {
	case memberAcknowledging:
		if m.current.equal(m.target) {
			m.to(memberStable)
		} else {
			m.to(memberReconciling)
		}
	case memberLeaving:
		if m.expired {
			m.to(memberStale)
			m.sent = sentFields{}
			m.releasing = true
			k.release(k.all(), true, func() {
				m.releasing = false
				m.target, m.current, m.names = noAssignment, noAssignment, map[UUID]string{}
				if m.state == memberStale && k.polling {
					m.join()
				}
			})
		} else {
			m.to(memberUnsubscribed)
		}
	}
	timeout := k.o.requestTimeout
	if leaving {
		timeout = min(timeout, 5*time.Second)
	}
	var id uint64
	id = k.send(effectSend{node: node, lane: laneGroup, req: req, timeout: timeout}, func(resp kmsg.Response, err error) {
		if leaving {
			m.hasLeft()
			return
		}
		if m.request == id {
			m.request = 0
			m.answered(req.MemberEpoch, resp, err)
		}
	})
	m.request = id
	if leaving {
		m.request = 0
	}
}

// heartbeat makes a request that says what has changed since the last one, or everything when joining.
func (m *consumerMember) heartbeat() *kmsg.ConsumerGroupHeartbeatRequest {
	k := m.k
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch, req.InstanceID = k.o.Group, m.id, m.epoch, k.instance()
	req.RebalanceTimeoutMillis = -1
	if m.state == memberLeaving {
		return req
	}
	all := m.state == memberJoining || !m.sent.any
	if all && k.o.Rack != "" {
		req.RackID = &k.o.Rack
	}
	if all || m.sent.timeout != k.o.MaxPollInterval {
		req.RebalanceTimeoutMillis = int32(k.o.MaxPollInterval.Milliseconds())
	}
	if all || !slices.Equal(m.sent.topics, k.topics) {
		req.SubscribedTopicNames = append([]string{}, k.topics...)
	}
	if m.pattern != "" && (all || m.sent.pattern == nil || *m.sent.pattern != m.pattern) ||
		m.pattern == "" && !all && m.sent.pattern != nil && *m.sent.pattern != "" {
		req.SubscribedTopicRegex = &m.pattern
	}
	if k.o.ServerAssignor != "" && (all || m.sent.assignor != k.o.ServerAssignor) {
		req.ServerAssignor = &k.o.ServerAssignor
	}
	if all || !m.sent.local.equal(m.current) {
		req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		for _, id := range sortedIDs(m.current.parts) {
			req.Topics = append(req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: id, Partitions: m.current.parts[id]})
		}
	}
	pattern := m.pattern
	m.sent = sentFields{k.o.MaxPollInterval, slices.Clone(k.topics), &pattern, k.o.ServerAssignor, m.current, true}
	return req
}

func sortedIDs(parts map[UUID][]int32) []UUID {
	return slices.SortedFunc(maps.Keys(parts), func(a, b UUID) int { return slices.Compare(a[:], b[:]) })
}

// answered takes the answer to a heartbeat.
func (m *consumerMember) answered(epoch int32, resp kmsg.Response, err error) {
	k := m.k
	r, err := respondError(resp, err, func(r *kmsg.ConsumerGroupHeartbeatResponse) error { return errorOf(r.ErrorCode, r.ErrorMessage) })
	switch m.state {
	case memberUnsubscribed, memberLeaving, memberStale, memberFatal, memberFenced:
		return // it speaks of a membership that is over
	}
	if err != nil {
		m.refused(err)
		return
	}
	m.failures = 0
	m.interval = time.Duration(r.HeartbeatIntervalMillis) * time.Millisecond
	m.next = k.now.Add(m.interval)
	if m.state == memberJoining && epoch != epochJoin {
		return // of before it was thrown out
	}
	if r.MemberID != nil && *r.MemberID != "" {
		m.id = *r.MemberID
	}
	m.epoch = r.MemberEpoch
	if r.Assignment == nil {
		return
	}
	if !slices.Contains(memberTransitions[memberReconciling], m.state) {
		return
	}
	parts := map[UUID][]int32{}
	for _, t := range r.Assignment.Topics {
		parts[UUID(t.TopicID)] = slices.Sorted(slices.Values(t.Partitions))
	}
	if m.target.epoch < 0 || !m.target.same(parts) {
		m.target = localAssignment{m.target.epoch + 1, parts}
	}
	if !m.current.equal(m.target) {
		m.to(memberReconciling)
		m.reconcile()
	} else if m.state == memberReconciling || m.state == memberJoining {
		m.to(memberStable)
	}
}

// The errors that end a membership, or more.
const (
	groupAuthorizationFailed = 30
	groupMaxSizeReached      = 81
	fencedMemberEpoch        = 110
	unreleasedInstanceID     = 111
	unsupportedAssignor      = 112
	invalidRegularExpression = 128
)

// refused deals with an error of a heartbeat.
func (m *consumerMember) refused(err error) {
	k := m.k
	m.sent = sentFields{}
	k.coord.failed(err)
	code, known := Code(err)
	switch {
	case known && (code == fencedMemberEpoch || code == UnknownMemberID.Code):
		m.fenced(err)
	case known && needsRefresh(err):
		m.next = k.now // as soon as the coordinator is found
	case known && code == topicAuthorizationFailed:
		k.fail(fmt.Errorf("group %q: %w", k.o.Group, err))
		m.later()
	case Retriable(err):
		m.later()
	default:
		m.fatal(err)
	}
}

func (m *consumerMember) later() {
	m.next = m.k.now.Add(m.k.backoff(m.failures))
	m.failures++
}

// fenced gives everything up, without a commit, and joins again.
func (m *consumerMember) fenced(err error) {
	k := m.k
	if m.state == memberPrepareLeaving {
		// It is out already, which is what it wanted.
		m.toLeaving()
		m.to(memberUnsubscribed)
		m.hasLeft()
		return
	}
	k.log.Info("member was fenced", "group", k.o.Group, "epoch", m.epoch, "err", err)
	m.to(memberFenced)
	m.epoch = epochJoin
	k.release(k.all(), true, func() {
		m.current, m.target, m.names = noAssignment, noAssignment, map[UUID]string{}
		if m.state == memberFenced {
			m.join()
		}
	})
}

// fatal ends the membership for good.
func (m *consumerMember) fatal(err error) {
	k := m.k
	before := m.state
	m.to(memberFatal)
	if code, known := Code(err); known && code == UnsupportedVersion.Code {
		err = fmt.Errorf("the cluster doesn't know group.protocol=consumer: %w", err)
	}
	k.emit(effectError{fmt.Errorf("group %q: %w", k.o.Group, err), true})
	if before == memberPrepareLeaving {
		m.hasLeft()
		return
	}
	k.release(k.all(), true, func() { m.current, m.target = noAssignment, noAssignment })
}

// reconcile goes from what the member has to what it should have, as far as the topics' names are known: it commits, gives up,
// then takes over.
func (m *consumerMember) reconcile() {
	k := m.k
	if m.current.equal(m.target) || m.reconciling != 0 {
		return
	}
	clear(k.meta.ids)
	resolved := localAssignment{m.target.epoch, map[UUID][]int32{}}
	want := map[TopicPartition]bool{}
	for id, parts := range m.target.parts {
		name := k.meta.name(id)
		if name == "" {
			name = m.names[id]
		}
		if name == "" {
			continue
		}
		m.names[id] = name
		resolved.parts[id] = parts
		for _, p := range parts {
			want[TopicPartition{name, p}] = true
		}
	}
	if m.current.equal(resolved) {
		return // said already; the rest waits for the topics' names
	}
	if m.current.epoch >= 0 && m.current.same(resolved.parts) {
		m.current = resolved
		m.to(memberAcknowledging)
		return
	}
	k.last++
	number := k.last
	m.reconciling, m.abandoned = number, false
	var revoked, added []TopicPartition
	for _, tp := range k.all() {
		if !want[tp] {
			revoked = append(revoked, tp)
		}
	}
	for tp := range want {
		if k.parts[tp] == nil {
			added = append(added, tp)
		}
	}
	slices.SortFunc(added, compareTP)
	over := func() bool {
		if m.state == memberReconciling && !m.abandoned {
			return false
		}
		m.reconciling = 0
		return true
	}
	adopt := func() {
		if over() {
			return
		}
		k.adopt(added, func() {
			if over() {
				return
			}
			m.reconciling = 0
			m.current = resolved
			m.to(memberAcknowledging)
		})
	}
	k.release(revoked, false, adopt)
}
