package group

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/coordinator"
	"gregor/internal/message"
)

// classicState is where a classic group is in its cycle.
type classicState uint8

const (
	// stateEmpty: no members, at most offsets.
	stateEmpty classicState = iota
	// statePreparing: waiting for all members to join.
	statePreparing
	// stateCompleting: all have joined, the leader has yet to hand out the assignment.
	stateCompleting
	// stateStable: every member has its assignment, or can get it.
	stateStable
	// stateDead: the shard was unloaded.
	stateDead
)

var classicStateNames = [...]string{"Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"}

func (s classicState) String() string { return classicStateNames[s] }

// consumerProtocol is the protocol type of consumers, whose member metadata names the topics that they read.
const consumerProtocol = "consumer"

// classicGroup is a group of the protocol before KIP-848, and any group that only stores offsets.
//
// Its membership is soft state: joining changes it at once and nothing is written until the leader's assignment arrives.
// Only the whole group, at the end of a rebalance or when it becomes empty, is a record. So it isn't on the timeline, other
// than the map that holds it, and an append that fails is mended by hand where it was called for.
type classicGroup struct {
	id       string
	state    classicState
	previous classicState
	// stateSince is when the state changed last, in ms; noTimestamp for groups loaded from records that don't say.
	stateSince int64

	protocolType *string // nil until a member has joined
	protocol     *string // chosen for this generation
	generation   int32
	leader       *string

	// members are in the order in which they joined; byID finds them. static has the ids of the static ones by instance.
	members []*classicMember
	byID    map[string]*classicMember
	static  map[string]string
	// pending have been given an id and are expected to join with it.
	pending map[string]*pendingMember
	// votes counts for each protocol how many members support it.
	votes map[string]int
	// joining counts the members that are parked in JoinGroup.
	joining int
	// unsynced are those that have yet to send SyncGroup in this generation.
	unsynced map[string]struct{}
	// assigned is the last generation whose leader has assigned, though perhaps that is not yet stored.
	assigned int32
	// topics that the members read; nil when that isn't known.
	topics map[string]struct{}
	// newcomers says that members came during the initial rebalance, so that it is prolonged.
	newcomers bool

	joinTimer coordinator.Timer[Record]
	syncTimer coordinator.Timer[Record]
}

// protocolMetadata is a protocol that a member supports, most preferred first in its list.
type protocolMetadata struct {
	name     string
	metadata []byte
}

// classicMember is a member of a classic group.
type classicMember struct {
	id               string
	instanceID       *string
	clientID         string
	clientHost       string
	rebalanceTimeout time.Duration
	sessionTimeout   time.Duration
	protocols        []protocolMetadata
	assignment       []byte
	// isNew until its first JoinGroup has been answered: it doesn't know its id, so it can't send heartbeats.
	isNew bool
	// awaitingJoin and awaitingSync answer the request that it is parked in.
	awaitingJoin func(*kmsg.JoinGroupResponse)
	awaitingSync func(*kmsg.SyncGroupResponse)

	session coordinator.Timer[Record]
}

// pendingMember was told its id with MEMBER_ID_REQUIRED.
type pendingMember struct {
	session coordinator.Timer[Record]
}

func newClassicGroup(id string, now time.Time) *classicGroup {
	return &classicGroup{id: id, previous: stateDead, stateSince: now.UnixMilli()}
}

// loadClassicGroup makes a group from its record.
func loadClassicGroup(id string, v *message.GroupMetadataValue) *classicGroup {
	g := &classicGroup{
		id:         id,
		previous:   stateDead,
		stateSince: v.CurrentStateTimestamp,
		protocol:   v.Protocol,
		generation: v.Generation,
		leader:     v.Leader,
	}
	if v.ProtocolType != "" {
		g.protocolType = &v.ProtocolType
	}
	for i := range v.Members {
		m := &v.Members[i]
		rebalance := m.RebalanceTimeout
		if rebalance == -1 {
			rebalance = m.SessionTimeout
		}
		var name string
		if v.Protocol != nil {
			name = *v.Protocol
		}
		g.add(v.ProtocolType, &classicMember{
			id:               m.MemberID,
			instanceID:       m.GroupInstanceID,
			clientID:         m.ClientID,
			clientHost:       m.ClientHost,
			rebalanceTimeout: time.Duration(rebalance) * time.Millisecond,
			sessionTimeout:   time.Duration(m.SessionTimeout) * time.Millisecond,
			protocols:        []protocolMetadata{{name, m.Subscription}},
			assignment:       m.Assignment,
		})
	}
	if len(g.members) > 0 {
		g.state = stateStable
	}
	g.topics = g.subscribedTopics()
	return g
}

// record is the group as it is stored. assignment has what each member is to get; nil means what they have.
func (g *classicGroup) record(assignment map[string][]byte) Record {
	v := &message.GroupMetadataValue{
		Protocol:              g.protocol,
		Generation:            g.generation,
		Leader:                g.leader,
		CurrentStateTimestamp: g.stateSince,
		Members:               make([]message.GroupMetadataValueMemberMetadata, len(g.members)),
	}
	if g.protocolType != nil {
		v.ProtocolType = *g.protocolType
	}
	for i, m := range g.members {
		a := m.assignment
		if assignment != nil {
			a = assignment[m.id]
		}
		v.Members[i] = message.GroupMetadataValueMemberMetadata{
			MemberID:         m.id,
			GroupInstanceID:  m.instanceID,
			ClientID:         m.clientID,
			ClientHost:       m.clientHost,
			RebalanceTimeout: int32(m.rebalanceTimeout.Milliseconds()),
			SessionTimeout:   int32(m.sessionTimeout.Milliseconds()),
			Subscription:     m.metadata(g.protocol),
			Assignment:       a,
		}
	}
	return Record{Key: &message.GroupMetadataKey{Group: g.id}, Value: v, Version: groupMetadataVersion}
}

// emptyRecord is what is stored of a group that was just made.
func (g *classicGroup) emptyRecord() Record {
	return Record{
		Key:     &message.GroupMetadataKey{Group: g.id},
		Value:   &message.GroupMetadataValue{CurrentStateTimestamp: g.stateSince},
		Version: groupMetadataVersion,
	}
}

func (g *classicGroup) groupID() string      { return g.id }
func (g *classicGroup) kind() Kind           { return Classic }
func (g *classicGroup) stateAt(int64) string { return g.state.String() }
func (g *classicGroup) empty() bool          { return g.state == stateEmpty }
func (g *classicGroup) tombstones(records []Record) []Record {
	return append(records, groupTombstone(g.id))
}
func (g *classicGroup) speaksConsumerProtocol() bool {
	return g.protocolType != nil && *g.protocolType == consumerProtocol
}

func (g *classicGroup) list(int64) kmsg.ListGroupsResponseGroup {
	l := kmsg.NewListGroupsResponseGroup()
	l.Group, l.GroupState, l.GroupType = g.id, g.state.String(), Classic.listed()
	if g.protocolType != nil {
		l.ProtocolType = *g.protocolType
	}
	return l
}

// subscribes falls back to yes for consumers whose subscription can't be read: better an offset kept than one lost.
func (g *classicGroup) subscribes(topic string) bool {
	if g.topics == nil {
		return g.speaksConsumerProtocol()
	}
	_, ok := g.topics[topic]
	return ok
}

// transition changes the state.
func (g *classicGroup) transition(to classicState, now time.Time) {
	g.previous, g.state = g.state, to
	g.stateSince = now.UnixMilli()
}

// member returns a member by id, nil if there is none.
func (g *classicGroup) member(id string) *classicMember { return g.byID[id] }

func (g *classicGroup) isLeader(id string) bool { return g.leader != nil && *g.leader == id }

func (g *classicGroup) leaderID() string {
	if g.leader == nil {
		return ""
	}
	return *g.leader
}

// add takes a member in. Its protocols have been checked against those of the others.
func (g *classicGroup) add(protocolType string, m *classicMember) {
	if g.byID == nil {
		g.byID = make(map[string]*classicMember, 1)
	}
	if m.instanceID != nil {
		if g.static == nil {
			g.static = make(map[string]string, 1)
		}
		g.static[*m.instanceID] = m.id
	}
	if len(g.members) == 0 && protocolType != "" {
		g.protocolType = &protocolType
	}
	if g.leader == nil {
		g.leader = &m.id
	}
	g.members = append(g.members, m)
	g.byID[m.id] = m
	g.count(m.protocols, 1)
	if m.awaitingJoin != nil {
		g.joining++
	}
}

// count adds n to the votes of each protocol.
func (g *classicGroup) count(protocols []protocolMetadata, n int) {
	if g.votes == nil {
		g.votes = make(map[string]int, len(protocols))
	}
	for _, p := range protocols {
		if g.votes[p.name] += n; g.votes[p.name] == 0 {
			delete(g.votes, p.name)
		}
	}
}

// remove takes a member out; another one leads if it was the leader.
func (g *classicGroup) remove(m *classicMember) {
	delete(g.byID, m.id)
	for i := range g.members {
		if g.members[i] == m {
			g.members = append(g.members[:i], g.members[i+1:]...)
			break
		}
	}
	g.count(m.protocols, -1)
	if m.awaitingJoin != nil {
		g.joining--
	}
	if m.instanceID != nil {
		delete(g.static, *m.instanceID)
	}
	if g.isLeader(m.id) {
		g.leader = nil
		if len(g.members) > 0 {
			g.leader = &g.members[0].id
		}
	}
	delete(g.unsynced, m.id)
}

// park keeps a member waiting in JoinGroup; nil stops waiting without an answer.
func (g *classicGroup) park(m *classicMember, reply func(*kmsg.JoinGroupResponse)) {
	if m.awaitingJoin != nil {
		g.joining--
	}
	m.awaitingJoin = reply
	if reply != nil {
		g.joining++
	}
}

// update replaces what a member said in its last JoinGroup.
func (g *classicGroup) update(m *classicMember, protocols []protocolMetadata, rebalance, session time.Duration) {
	g.count(m.protocols, -1)
	m.protocols = protocols
	g.count(m.protocols, 1)
	m.rebalanceTimeout, m.sessionTimeout = rebalance, session
}

// rename gives a static member a new id, in its place among the members.
func (g *classicGroup) rename(m *classicMember, id string) {
	lead := g.isLeader(m.id)
	delete(g.byID, m.id)
	delete(g.unsynced, m.id)
	m.id = id
	g.byID[id] = m
	g.static[*m.instanceID] = id
	if lead {
		g.leader = &m.id
	}
}

// allJoined says that everyone who is expected is parked in JoinGroup.
func (g *classicGroup) allJoined() bool { return len(g.members) == g.joining && len(g.pending) == 0 }

// rebalanceTimeout is the longest of the members'.
func (g *classicGroup) rebalanceTimeout() time.Duration {
	var longest time.Duration
	for _, m := range g.members {
		longest = max(longest, m.rebalanceTimeout)
	}
	return longest
}

// supports says whether a member with these protocols can be in the group: of the same type, and with one that all others
// have.
func (g *classicGroup) supports(protocolType string, protocols []kmsg.JoinGroupRequestProtocol) bool {
	if g.state == stateEmpty {
		return protocolType != "" && len(protocols) > 0
	}
	if g.protocolType == nil || *g.protocolType != protocolType {
		return false
	}
	for _, p := range protocols {
		if g.votes[p.Name] == len(g.members) {
			return true
		}
	}
	return false
}

// selectProtocol is the one that most members like best among those that all have; on a draw the one that the earliest
// member prefers.
func (g *classicGroup) selectProtocol() string {
	tally := make(map[string]int)
	var best string
	for _, m := range g.members {
		if name := m.vote(g); name != "" {
			tally[name]++
		}
	}
	for _, m := range g.members {
		if name := m.vote(g); best == "" || tally[name] > tally[best] {
			best = name
		}
	}
	return best
}

// vote is the first of the member's protocols that all members have.
func (m *classicMember) vote(g *classicGroup) string {
	for _, p := range m.protocols {
		if g.votes[p.name] == len(g.members) {
			return p.name
		}
	}
	return ""
}

// metadata is what the member said for a protocol.
func (m *classicMember) metadata(protocol *string) []byte {
	if protocol != nil {
		for _, p := range m.protocols {
			if p.name == *protocol {
				return p.metadata
			}
		}
	}
	return nil
}

// matches says whether a JoinGroup has the same protocols, in the same order, as the member's last one.
func (m *classicMember) matches(protocols []kmsg.JoinGroupRequestProtocol) bool {
	if len(protocols) != len(m.protocols) {
		return false
	}
	for i, p := range protocols {
		if p.Name != m.protocols[i].name || !bytes.Equal(p.Metadata, m.protocols[i].metadata) {
			return false
		}
	}
	return true
}

// excused says that the member needn't send heartbeats: it is parked in a request.
func (m *classicMember) excused() bool {
	return !m.isNew && (m.awaitingJoin != nil || m.awaitingSync != nil)
}

// beginGeneration starts the next generation with those who are there.
func (g *classicGroup) beginGeneration(now time.Time) {
	g.generation++
	g.unsynced = nil
	if len(g.members) == 0 {
		g.protocol = nil
		g.topics = g.subscribedTopics()
		g.transition(stateEmpty, now)
		return
	}
	name := g.selectProtocol()
	g.protocol = &name
	g.topics = g.subscribedTopics()
	g.transition(stateCompleting, now)
}

// electLeader sees to it that the leader is a member who has joined; false if nobody has.
func (g *classicGroup) electLeader() bool {
	if g.leader == nil {
		return false
	}
	if m := g.member(*g.leader); m != nil && m.awaitingJoin != nil {
		return true
	}
	for _, m := range g.members {
		if m.awaitingJoin != nil {
			g.leader = &m.id
			return true
		}
	}
	return false
}

// checkMember says why a request with these ids isn't one of a member's.
func (g *classicGroup) checkMember(memberID string, instanceID *string) error {
	if instanceID != nil {
		switch id, ok := g.static[*instanceID]; {
		case !ok:
			return api.ErrUnknownMemberID
		case id != memberID:
			return api.ErrFencedInstanceID
		}
	}
	if g.member(memberID) == nil {
		return api.ErrUnknownMemberID
	}
	return nil
}

func (g *classicGroup) checkOffsetCommit(c *commitCheck) (partitionCheck, error) {
	switch {
	case g.state == stateDead:
		return nil, api.ErrCoordinatorNotAvailable
	case c.generation < 0 && g.state == stateEmpty:
		// No group management: a consumer with partitions of its own choice, or an administrator.
		return nil, nil
	case c.generation >= 0 || c.memberID != "" || c.instanceID != nil:
		if err := g.checkMember(c.memberID, c.instanceID); err != nil {
			return nil, err
		}
		if c.generation != g.generation {
			return nil, api.ErrIllegalGeneration
		}
	case !c.transactional && g.state != stateEmpty:
		return nil, api.ErrUnknownMemberID
	}
	if !c.transactional && g.state == stateCompleting {
		return nil, api.ErrRebalanceInProgress
	}
	return nil, nil
}

func (g *classicGroup) checkOffsetFetch(*string, int32, int64) error {
	if g.state == stateDead {
		return api.WithMessage(api.ErrGroupIDNotFound, "Group %s is in dead state.", g.id)
	}
	return nil
}

func (g *classicGroup) checkOffsetDelete() error {
	switch g.state {
	case stateDead:
		return api.WithMessage(api.ErrGroupIDNotFound, "Group %s is in dead state.", g.id)
	case stateEmpty:
		return nil
	default:
		if g.speaksConsumerProtocol() {
			return nil // topic by topic, as the members have subscribed
		}
		return api.ErrNonEmptyGroup
	}
}

func (g *classicGroup) checkDelete() error {
	switch g.state {
	case stateDead:
		return api.WithMessage(api.ErrGroupIDNotFound, "Group %s is in dead state.", g.id)
	case stateEmpty:
		return nil
	default:
		return api.ErrNonEmptyGroup
	}
}

// expiry follows KIP-211.
func (g *classicGroup) expiry() (from func(*offset) int64, ok bool) {
	byCommit := func(o *offset) int64 { return o.commitTimestamp }
	switch {
	case g.protocolType == nil:
		// Only used to store offsets: each counts from its own commit.
		return byCommit, true
	case g.state == stateEmpty:
		// From when the last member left, or from the commit if that isn't known.
		if since := g.stateSince; since != noTimestamp {
			return func(*offset) int64 { return since }, true
		}
		return byCommit, true
	case g.state == stateStable && g.speaksConsumerProtocol() && g.topics != nil:
		// In use, but perhaps no longer for all topics.
		return byCommit, true
	default:
		return nil, false
	}
}

// subscribedTopics are the topics that consumers read; nil when the group has other members or they don't say.
func (g *classicGroup) subscribedTopics() map[string]struct{} {
	if !g.speaksConsumerProtocol() {
		return nil
	}
	topics := make(map[string]struct{})
	if len(g.members) == 0 {
		return topics
	}
	if g.protocol == nil {
		return nil
	}
	for _, m := range g.members {
		if !readSubscription(topics, m.metadata(g.protocol)) {
			return nil
		}
	}
	return topics
}

// readSubscription adds the topics of a consumer protocol subscription to topics. All versions begin as version 0 does: an
// int16 version and an array of topic names. false means that it isn't one.
func readSubscription(topics map[string]struct{}, b []byte) bool {
	if len(b) < 6 || int16(binary.BigEndian.Uint16(b)) < 0 {
		return false
	}
	n := int32(binary.BigEndian.Uint32(b[2:]))
	b = b[6:]
	if n < 0 {
		return false
	}
	for ; n > 0; n-- {
		if len(b) < 2 {
			return false
		}
		size := int(int16(binary.BigEndian.Uint16(b)))
		b = b[2:]
		if size < 0 || size > len(b) {
			return false
		}
		topics[string(b[:size])] = struct{}{}
		b = b[size:]
	}
	return true
}
