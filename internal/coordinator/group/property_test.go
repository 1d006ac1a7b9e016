package group

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"gregor/internal/api"
	"gregor/internal/coordinator"
	"gregor/internal/timeline"
)

// life drives a machine with requests at random, and checks after each that the machine is sound and that its log tells what
// it has lived.
type life struct {
	*machine
	t *rapid.T
	// unsaid are groups whose last state couldn't be written: their log is behind.
	unsaid map[string]bool
	// parked has the requests that haven't been answered, by number.
	parked map[int]string
	count  int
}

var (
	someGroups    = rapid.SampledFrom([]string{"g", "h"})
	someInstances = rapid.SampledFrom([]string{"", "", "i1", "i2"})
	someTopics    = rapid.SampledFrom([]string{"orders", "payments"})
	someErrors    = rapid.SampledFrom([]*api.Error{api.ErrNotEnoughReplicas, api.ErrNotLeaderOrFollower})
)

func (l *life) group() string { return someGroups.Draw(l.t, "group") }

// someMember is a member's id, a pending one or none, with the instance that belongs to it.
func (l *life) someMember(group string) (id string, instance *string, generation int32) {
	generation = -1
	ids := []string{""}
	g, _ := l.core.groups.Get(group)
	cg, _ := g.(*classicGroup)
	if cg != nil {
		for _, m := range cg.members {
			ids = append(ids, m.id)
		}
		ids = append(ids, slices.Sorted(maps.Keys(cg.pending))...)
		generation = cg.generation
	}
	id = rapid.SampledFrom(ids).Draw(l.t, "member")
	if cg != nil {
		if m := cg.member(id); m != nil {
			instance = m.instanceID
		}
	}
	return id, instance, generation
}

// ask registers a request that may be parked and returns what its answer has to call.
func (l *life) ask(what string) func() {
	l.count++
	n := l.count
	l.parked[n] = what
	return func() {
		if _, ok := l.parked[n]; !ok {
			l.t.Fatalf("request %d (%s) answered twice", n, what)
		}
		delete(l.parked, n)
	}
}

func (l *life) do(group string, res result, producer int64) {
	if l.apply(res, producer) != nil {
		l.unsaid[group] = true
	}
}

func (l *life) Join(t *rapid.T) {
	l.t = t
	group := l.group()
	r := kmsg.NewPtrJoinGroupRequest()
	r.Group, r.ProtocolType = group, "consumer"
	r.MemberID, r.InstanceID, _ = l.someMember(group)
	if r.MemberID == "" {
		if i := someInstances.Draw(t, "instance"); i != "" {
			r.InstanceID = &i
		}
	}
	r.SessionTimeoutMillis = rapid.SampledFrom([]int32{6000, 30000}).Draw(t, "session")
	r.RebalanceTimeoutMillis = rapid.SampledFrom([]int32{5000, 20000}).Draw(t, "rebalance")
	for _, p := range rapid.SampledFrom([][]string{{"range"}, {"range", "sticky"}, {"sticky", "range"}}).Draw(t, "protocols") {
		r.Protocols = append(r.Protocols, kmsg.JoinGroupRequestProtocol{Name: p, Metadata: subscription(someTopics.Draw(t, "topic"))})
	}
	version := rapid.SampledFrom([]int16{3, 8, 9}).Draw(t, "version")
	answered := l.ask("join")
	once := false
	l.do(group, l.core.join(&joinRequest{
		JoinGroupRequest: r, ctx: &Context{ClientID: "c", ClientHost: "/h", Version: version},
		reply: func(*kmsg.JoinGroupResponse) {
			if !once { // the driver's guard: a failed append may follow an answer
				once = true
				answered()
			}
		},
	}, l.now), -1)
}

func (l *life) Sync(t *rapid.T) {
	l.t = t
	group := l.group()
	r := kmsg.NewPtrSyncGroupRequest()
	r.Group = group
	r.MemberID, r.InstanceID, r.Generation = l.someMember(group)
	if r.MemberID != "" {
		r.GroupAssignment = append(r.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: r.MemberID, MemberAssignment: []byte("mine")})
	}
	answered := l.ask("sync")
	l.do(group, l.core.sync(r, func(*kmsg.SyncGroupResponse) { answered() }, l.now), -1)
}

// Settle brings a group's members together as far as they let it: all rejoin, and the leader assigns.
func (l *life) Settle(t *rapid.T) {
	l.t = t
	group := l.group()
	if l.failNext != nil {
		l.unsaid["g"], l.unsaid["h"] = true, true
	}
	l.advance(4 * time.Second)
	g, _ := l.core.groups.Get(group)
	cg, _ := g.(*classicGroup)
	if cg == nil {
		return
	}
	for _, m := range slices.Clone(cg.members) {
		if cg.member(m.id) != m || m.awaitingSync != nil {
			continue
		}
		r := kmsg.NewPtrSyncGroupRequest()
		r.Group, r.MemberID, r.InstanceID, r.Generation = group, m.id, m.instanceID, cg.generation
		r.GroupAssignment = append(r.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: m.id, MemberAssignment: []byte("settled")})
		answered := l.ask("sync")
		l.do(group, l.core.sync(r, func(*kmsg.SyncGroupResponse) { answered() }, l.now), -1)
	}
}

func (l *life) Heartbeat(t *rapid.T) {
	l.t = t
	r := kmsg.NewPtrHeartbeatRequest()
	r.Group = l.group()
	r.MemberID, r.InstanceID, r.Generation = l.someMember(r.Group)
	_ = l.core.heartbeat(r, l.now)
}

func (l *life) Leave(t *rapid.T) {
	l.t = t
	r := kmsg.NewPtrLeaveGroupRequest()
	r.Group = l.group()
	for range rapid.IntRange(1, 2).Draw(t, "leavers") {
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID, m.InstanceID, _ = l.someMember(r.Group)
		r.Members = append(r.Members, m)
	}
	res, _ := l.core.leave(r, l.now)
	l.do(r.Group, res, -1)
}

func (l *life) Commit(t *rapid.T) {
	l.t = t
	r := &commitRequest{group: l.group(), retention: -1}
	r.check.memberID, r.check.instanceID, r.check.generation = l.someMember(r.group)
	r.check.version = 9
	if r.check.memberID == "" {
		r.check.generation = -1
	}
	producer := rapid.SampledFrom([]int64{-1, -1, 1, 2}).Draw(t, "producer")
	r.check.transactional = producer >= 0
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = someTopics.Draw(t, "topic")
	for p := range rapid.IntRange(1, 3).Draw(t, "partitions") {
		cp := kmsg.NewOffsetCommitRequestTopicPartition()
		cp.Partition, cp.Offset = int32(p), rapid.Int64Range(0, 100).Draw(t, "offset")
		topic.Partitions = append(topic.Partitions, cp)
	}
	r.topics = append(r.topics, topic)
	if res, _, err := l.core.commit(r, l.now); err == nil {
		l.do(r.group, res, producer)
	}
}

func (l *life) EndTransaction(t *rapid.T) {
	l.t = t
	l.endTransaction(rapid.SampledFrom([]int64{1, 2}).Draw(t, "producer"), rapid.Bool().Draw(t, "commit"))
}

func (l *life) Delete(t *rapid.T) {
	l.t = t
	g := l.group()
	if rapid.Bool().Draw(t, "offsets only") {
		r := kmsg.NewPtrOffsetDeleteRequest()
		r.Group = g
		r.Topics = append(r.Topics, kmsg.OffsetDeleteRequestTopic{
			Topic: someTopics.Draw(t, "topic"), Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}, {Partition: 1}},
		})
		if res, _, err := l.core.deleteOffsets(r); err == nil {
			_ = l.apply(res, -1)
		}
		return
	}
	res, _ := l.core.deleteGroups([]string{g})
	if err := l.apply(res, -1); err == nil && len(res.Records) > 0 {
		delete(l.unsaid, g)
	}
}

func (l *life) DeleteTopic(t *rapid.T) {
	l.t = t
	_ = l.apply(l.core.topicsDeleted(map[string]bool{someTopics.Draw(t, "topic"): true}), -1)
}

func (l *life) FailNextAppend(t *rapid.T) {
	l.t = t
	l.failNext = someErrors.Draw(t, "error")
}

func (l *life) Advance(t *rapid.T) {
	l.t = t
	// A timer's append may fail too.
	if l.failNext != nil {
		l.unsaid["g"], l.unsaid["h"] = true, true
	}
	l.advance(rapid.SampledFrom([]time.Duration{time.Second, 4 * time.Second, 7 * time.Second, time.Minute, time.Hour}).Draw(t, "time"))
}

func (l *life) Reload(t *rapid.T) {
	l.t = t
	old := l.core
	old.Unloaded(l.now)
	if len(l.parked) > 0 {
		t.Fatalf("%d requests were not answered by unloading: %v", len(l.parked), l.parked)
	}
	l.reload()
	clear(l.unsaid)
}

// picture is everything of a core that its log must tell.
func (l *life) picture(c *core) []string {
	var lines []string
	for id, g := range c.groups.All() {
		cg := g.(*classicGroup)
		line := "group " + id
		// A rebalance under way isn't stored, and a group that can't say so is behind. Neither is a group without members
		// whose only record is its offsets.
		if !l.unsaid[id] && (cg.state == stateStable || cg.state == stateEmpty) {
			if cg, ok := l.core.groups.Get(id); ok && (cg.stateAt(0) == "Stable" || cg.stateAt(0) == "Empty") {
				line += pictureGroup(g.(*classicGroup))
			}
		}
		lines = append(lines, line)
	}
	for group, m := range c.offsets.committed.All() {
		for tp, o := range m.All() {
			lines = append(lines, fmt.Sprintf("offset %s %v %+v", group, tp, o))
		}
	}
	for producer, p := range c.offsets.pending.All() {
		for gp, o := range p.offsets.All() {
			lines = append(lines, fmt.Sprintf("pending %d %v %+v", producer, gp, o))
		}
	}
	for group, producers := range c.offsets.open.All() {
		for id := range producers.All() {
			lines = append(lines, fmt.Sprintf("open %s %d", group, id))
		}
	}
	slices.Sort(lines)
	return lines
}

func pictureGroup(g *classicGroup) string {
	s := fmt.Sprintf(" gen=%d", g.generation)
	if g.state == stateEmpty {
		return s
	}
	s += fmt.Sprintf(" type=%s protocol=%s leader=%s", *g.protocolType, *g.protocol, *g.leader)
	for _, m := range g.members {
		s += fmt.Sprintf(" [%s %v %q %q %v %v]", m.id, m.instanceID != nil, m.assignment, m.metadata(g.protocol), m.sessionTimeout, m.rebalanceTimeout)
	}
	return s
}

// Check is run after each step.
func (l *life) Check(t *rapid.T) {
	l.t = t
	l.sound()
	// Groups that someone committed to before the group's own tombstone was written come back by replay alone, so the
	// pictures must be equal as they are.
	twin := newCore(&l.cfg, coordinator.Env[Record]{
		Registry: timeline.NewRegistry(), Timers: &coordinator.Timers[Record]{}, Logger: l.core.log, Later: func(f func()) { f() },
	}, func() string { return "" }, &counters{})
	for i, rec := range l.log {
		live := l.core
		l.core = twin
		err := l.replayLogged(i, rec)
		l.core = live
		if err != nil {
			t.Fatal(err)
		}
	}
	lived, replayed := l.picture(l.core), l.picture(twin)
	if !slices.Equal(lived, replayed) {
		t.Fatalf("lived:\n%s\nreplayed:\n%s", strings.Join(lived, "\n"), strings.Join(replayed, "\n"))
	}
}

// sound checks the numbers that a classic group keeps against what they count.
func (l *life) sound() {
	parked := 0
	for id, g := range l.core.groups.All() {
		cg := g.(*classicGroup)
		joining := 0
		votes := map[string]int{}
		for _, m := range cg.members {
			if m.awaitingJoin != nil {
				joining++
				parked++
			}
			if m.awaitingSync != nil {
				parked++
				if cg.state != stateCompleting {
					l.t.Fatalf("group %s: %s waits for an assignment in state %s", id, m.id, cg.state)
				}
			}
			for _, p := range m.protocols {
				votes[p.name]++
			}
			if cg.byID[m.id] != m {
				l.t.Fatalf("group %s: %s isn't found", id, m.id)
			}
			if m.instanceID != nil && cg.static[*m.instanceID] != m.id {
				l.t.Fatalf("group %s: instance %s belongs to %s, not %s", id, *m.instanceID, cg.static[*m.instanceID], m.id)
			}
			if cg.state != stateEmpty && !m.session.Active() && !m.excused() {
				l.t.Fatalf("group %s: nothing ends the session of %s", id, m.id)
			}
		}
		switch {
		case joining != cg.joining:
			l.t.Fatalf("group %s: %d are joining, counted %d", id, joining, cg.joining)
		case !maps.Equal(votes, cg.votes) && len(votes)+len(cg.votes) > 0:
			l.t.Fatalf("group %s: votes %v, counted %v", id, votes, cg.votes)
		case len(cg.byID) != len(cg.members):
			l.t.Fatalf("group %s: %d members, %d found", id, len(cg.members), len(cg.byID))
		case cg.state == stateEmpty && len(cg.members) > 0:
			l.t.Fatalf("group %s is empty with %d members", id, len(cg.members))
		case (cg.state == stateStable || cg.state == stateCompleting) && (len(cg.members) == 0 || cg.leader == nil || cg.member(*cg.leader) == nil):
			l.t.Fatalf("group %s in state %s has no leader", id, cg.state)
		case cg.state == statePreparing && !cg.joinTimer.Active():
			l.t.Fatalf("group %s: nothing ends the gathering", id)
		case cg.state == stateCompleting && len(cg.unsynced) > 0 && !cg.syncTimer.Active():
			l.t.Fatalf("group %s: nothing ends the wait for the assignment", id)
		}
		for m := range cg.unsynced {
			if cg.member(m) == nil {
				l.t.Fatalf("group %s waits for the sync of %s, who isn't there", id, m)
			}
		}
	}
	if parked < len(l.parked) {
		l.t.Fatalf("%d requests are parked but %d unanswered: %v", parked, len(l.parked), l.parked)
	}
}

func TestReplayEqualsHavingLived(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &life{machine: newMachine(), t: t, unsaid: map[string]bool{}, parked: map[int]string{}}
		l.cfg.OffsetsRetention = 30 * time.Minute
		l.cfg.MaxSize = 3
		t.Repeat(map[string]func(*rapid.T){
			"":               l.Check,
			"Join":           l.Join,
			"Sync":           l.Sync,
			"Settle":         l.Settle,
			"Heartbeat":      l.Heartbeat,
			"Leave":          l.Leave,
			"Commit":         l.Commit,
			"EndTransaction": l.EndTransaction,
			"Delete":         l.Delete,
			"DeleteTopic":    l.DeleteTopic,
			"FailNextAppend": l.FailNextAppend,
			"Advance":        l.Advance,
			"Reload":         l.Reload,
		})
	})
}
