package group

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/coordinator/memlog"
	"gregor/internal/record"
	"gregor/internal/timeline"
)

// node is a coordinator over a log in memory, in a bubble.
type node struct {
	*testing.T
	*Coordinator
	memlog *memlog.Log
}

const nodePartitions = 4

func inNode(t *testing.T, f func(n *node)) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{T: t, memlog: &memlog.Log{}}
		n.Coordinator = New(Options{Log: n.memlog, Clock: clock.System, Rand: newRand(1), Config: DefaultConfig(), Linger: -1})
		n.memlog.Committed = n.HighWatermarkUpdated
		f(n)
		n.Close()
	})
}

// lead starts the coordinator with all its partitions.
func (n *node) lead() {
	n.Start(nodePartitions)
	for p := range int32(nodePartitions) {
		n.Elected(p, 1)
	}
	synctest.Wait()
}

// answer waits for one.
func answer[R any](n *node, ask func(reply func(R))) R {
	n.Helper()
	c := make(chan R, 1)
	ask(func(r R) { c <- r })
	synctest.Wait()
	select {
	case r := <-c:
		return r
	default:
		n.Fatal("no answer")
		panic("unreachable")
	}
}

func (n *node) commit(group string) int16 {
	n.Helper()
	q := commitOf(group, "", 1)
	q.Generation = -1
	return answer(n, func(reply func(*kmsg.OffsetCommitResponse)) {
		n.OffsetCommit(&Context{Version: 9}, q, reply)
	}).Topics[0].Partitions[0].ErrorCode
}

func (n *node) fetch(group string, stable bool) (offset int64, code int16) {
	n.Helper()
	q := kmsg.NewOffsetFetchRequestGroup()
	q.Group = group
	q.Topics = []kmsg.OffsetFetchRequestGroupTopic{{Topic: "orders", Partitions: []int32{0}}}
	g := answer(n, func(reply func(kmsg.OffsetFetchResponseGroup)) {
		n.OffsetFetch(&Context{Version: 9}, &q, false, stable, reply)
	})
	if g.ErrorCode != 0 {
		return -2, g.ErrorCode
	}
	return g.Topics[0].Partitions[0].Offset, g.Topics[0].Partitions[0].ErrorCode
}

func (n *node) list() (ids []string, code int16) {
	n.Helper()
	r := answer(n, func(reply func(*kmsg.ListGroupsResponse)) {
		n.ListGroups(&Context{Version: 5}, kmsg.NewPtrListGroupsRequest(), reply)
	})
	for _, g := range r.Groups {
		ids = append(ids, g.Group)
	}
	slices.Sort(ids)
	return ids, r.ErrorCode
}

// everything asks for one of each, and returns the errors by request.
func (n *node) everything(group string) map[string]int16 {
	n.Helper()
	codes := map[string]int16{}
	j := kmsg.NewPtrJoinGroupRequest()
	j.Group, j.SessionTimeoutMillis = group, 10_000
	codes["join"] = answer(n, func(r func(*kmsg.JoinGroupResponse)) { n.JoinGroup(&Context{Version: 9}, j, r) }).ErrorCode
	s := kmsg.NewPtrSyncGroupRequest()
	s.Group = group
	codes["sync"] = answer(n, func(r func(*kmsg.SyncGroupResponse)) { n.SyncGroup(&Context{Version: 5}, s, r) }).ErrorCode
	h := kmsg.NewPtrHeartbeatRequest()
	h.Group = group
	codes["heartbeat"] = answer(n, func(r func(*kmsg.HeartbeatResponse)) { n.Heartbeat(&Context{Version: 4}, h, r) }).ErrorCode
	l := kmsg.NewPtrLeaveGroupRequest()
	l.Group = group
	codes["leave"] = answer(n, func(r func(*kmsg.LeaveGroupResponse)) { n.LeaveGroup(&Context{Version: 2}, l, r) }).ErrorCode
	codes["commit"] = n.commit(group)
	_, codes["fetch"] = n.fetch(group, false)
	_, codes["fetch stable"] = n.fetch(group, true)
	d := kmsg.NewPtrOffsetDeleteRequest()
	d.Group = group
	codes["delete offsets"] = answer(n, func(r func(*kmsg.OffsetDeleteResponse)) { n.OffsetDelete(&Context{}, d, r) }).ErrorCode
	codes["describe"] = answer(n, func(r func([]kmsg.DescribeGroupsResponseGroup)) {
		n.DescribeGroups(&Context{Version: 6}, []string{group}, r)
	})[0].ErrorCode
	codes["delete"] = answer(n, func(r func([]kmsg.DeleteGroupsResponseGroup)) {
		n.DeleteGroups(&Context{Version: 2}, []string{group}, r)
	})[0].ErrorCode
	return codes
}

func TestNotStartedIsNotAvailable(t *testing.T) {
	inNode(t, func(n *node) {
		for what, code := range n.everything("g") {
			if code != api.ErrCoordinatorNotAvailable.Code {
				t.Errorf("%s: error %d", what, code)
			}
		}
		if _, code := n.list(); code != api.ErrCoordinatorNotAvailable.Code {
			t.Errorf("list: error %d", code)
		}
	})
}

func TestOthersPartitionsAreNotCoordinated(t *testing.T) {
	inNode(t, func(n *node) {
		n.Start(nodePartitions)
		for what, code := range n.everything("g") {
			if code != api.ErrNotCoordinator.Code {
				t.Errorf("%s: error %d", what, code)
			}
		}
		if ids, code := n.list(); code != 0 || len(ids) != 0 {
			t.Errorf("list: %v, error %d", ids, code)
		}
	})
}

func TestLoadingAnswers(t *testing.T) {
	inNode(t, func(n *node) {
		release := make(chan struct{})
		slow := &slowLog{Log: n.memlog, release: release}
		c := New(Options{Log: slow, Clock: clock.System, Rand: newRand(1), Config: DefaultConfig(), Linger: -1})
		n.memlog.Committed = c.HighWatermarkUpdated
		c.Start(1)
		c.Elected(0, 1)
		m := &node{T: t, Coordinator: c, memlog: n.memlog}
		for what, code := range m.everything("g") {
			want := api.ErrCoordinatorLoadInProgress.Code
			if what == "heartbeat" {
				want = 0 // it may be a member
			}
			if code != want {
				t.Errorf("%s: error %d, want %d", what, code, want)
			}
		}
		if _, code := m.list(); code != api.ErrCoordinatorLoadInProgress.Code {
			t.Errorf("list: error %d", code)
		}
		if s := c.Stats(); s.Partitions["loading"] != 1 {
			t.Errorf("partitions %v", s.Partitions)
		}
		close(release)
		synctest.Wait()
		if code := m.commit("g"); code != 0 {
			t.Errorf("after loading: error %d", code)
		}
		c.Close()
	})
}

// slowLog keeps a load waiting.
type slowLog struct {
	*memlog.Log
	release chan struct{}
}

func (s *slowLog) Offsets(p int32) (start, hw, end int64, err error) {
	<-s.release
	return s.Log.Offsets(p)
}

func TestGroupsOfAllPartitions(t *testing.T) {
	inNode(t, func(n *node) {
		n.lead()
		var want []string
		for i := range 10 {
			id := fmt.Sprint("g", i)
			want = append(want, id)
			if code := n.commit(id); code != 0 {
				t.Fatalf("commit: error %d", code)
			}
		}
		if ids, code := n.list(); code != 0 || !slices.Equal(ids, want) {
			t.Fatalf("list: %v, error %d", ids, code)
		}
		if s := n.Stats(); s.Offsets != 10 || s.Groups[[2]string{"Classic", "Empty"}] != 10 || s.Commits != 10 || s.Partitions["active"] != nodePartitions {
			t.Fatalf("stats %+v", s)
		}
		described := answer(n, func(r func([]kmsg.DescribeGroupsResponseGroup)) { n.DescribeGroups(&Context{Version: 6}, want, r) })
		for i, d := range described {
			if d.Group != want[i] || d.ErrorCode != 0 {
				t.Fatalf("described %+v, want %s", d, want[i])
			}
		}
		// One partition moves to another node.
		p, _ := n.PartitionFor("g3")
		n.Resigned(p, 2)
		if code := n.commit("g3"); code != api.ErrNotCoordinator.Code {
			t.Fatalf("commit: error %d", code)
		}
		deleted := answer(n, func(r func([]kmsg.DeleteGroupsResponseGroup)) { n.DeleteGroups(&Context{}, want, r) })
		if len(deleted) != len(want) {
			t.Fatalf("deleted %v", deleted)
		}
		for _, d := range deleted {
			q, _ := n.PartitionFor(d.Group)
			want := int16(0)
			if q == p {
				want = api.ErrNotCoordinator.Code
			}
			if d.ErrorCode != want {
				t.Errorf("delete %s: error %d, want %d", d.Group, d.ErrorCode, want)
			}
		}
		n.Elected(p, 3)
		synctest.Wait()
		if offset, code := n.fetch("g3", false); offset != 1000 || code != 0 {
			t.Fatalf("after the return: offset %d, error %d", offset, code)
		}
		n.TopicsDeleted([]string{"orders"})
		synctest.Wait()
		if offset, _ := n.fetch("g3", false); offset != -1 {
			t.Fatalf("offset %d of a deleted topic", offset)
		}
	})
}

// Plain fetches see what is committed, stable ones wait for what isn't.
func TestFetchAndReplication(t *testing.T) {
	inNode(t, func(n *node) {
		n.lead()
		n.memlog.Hold = true
		p, _ := n.PartitionFor("g")
		q := commitOf("g", "", 1)
		q.Generation = -1
		committed := make(chan int16, 1)
		n.OffsetCommit(&Context{Version: 9}, q, func(r *kmsg.OffsetCommitResponse) { committed <- r.Topics[0].Partitions[0].ErrorCode })
		if offset, code := n.fetch("g", false); offset != -1 || code != 0 {
			t.Fatalf("plain: %d, error %d", offset, code)
		}
		of := kmsg.NewOffsetFetchRequestGroup()
		of.Group = "g"
		stable := make(chan kmsg.OffsetFetchResponseGroup, 1)
		n.OffsetFetch(&Context{Version: 9}, &of, true, true, func(r kmsg.OffsetFetchResponseGroup) { stable <- r })
		synctest.Wait()
		if len(stable) != 0 || len(committed) != 0 {
			t.Fatal("answered before it was replicated")
		}
		n.memlog.Commit(p, 100)
		synctest.Wait()
		if r := <-stable; r.ErrorCode != 0 || r.Topics[0].Partitions[0].Offset != 1000 {
			t.Fatalf("stable: %+v", r)
		}
		if code := <-committed; code != 0 {
			t.Fatalf("commit: error %d", code)
		}
		// Followers that don't come: the client is sent to look for another coordinator.
		n.OffsetCommit(&Context{Version: 9}, q, func(r *kmsg.OffsetCommitResponse) { committed <- r.Topics[0].Partitions[0].ErrorCode })
		n.OffsetFetch(&Context{Version: 9}, &of, true, true, func(r kmsg.OffsetFetchResponseGroup) { stable <- r })
		time.Sleep(5001 * time.Millisecond)
		synctest.Wait()
		if code := <-committed; code != api.ErrCoordinatorNotAvailable.Code {
			t.Fatalf("commit: error %d", code)
		}
		if r := <-stable; r.ErrorCode != api.ErrNotCoordinator.Code {
			t.Fatalf("stable: error %d", r.ErrorCode)
		}
	})
}

func TestAppendErrorsAreTheCoordinators(t *testing.T) {
	f := func(failure, want *api.Error) {
		t.Helper()
		inNode(t, func(n *node) {
			n.lead()
			n.memlog.Fail = func(int32, record.Batch) error { return failure }
			if code := n.commit("g"); code != want.Code {
				t.Errorf("%s becomes error %d, want %d", failure.Name, code, want.Code)
			}
			n.memlog.Fail = nil
			if ids, _ := n.list(); len(ids) != 0 {
				t.Errorf("groups %v", ids)
			}
		})
	}
	f(api.ErrNotEnoughReplicas, api.ErrCoordinatorNotAvailable)
	f(api.ErrUnknownTopicOrPartition, api.ErrCoordinatorNotAvailable)
	f(api.ErrNotLeaderOrFollower, api.ErrNotCoordinator)
	f(api.ErrKafkaStorageError, api.ErrNotCoordinator)
	f(api.ErrMessageTooLarge, api.ErrUnknownServerError)
}

// A rebalance from the first JoinGroup to the assignment and to the end of the sessions, in the runtime's own time.
func TestRebalanceOverTheRuntime(t *testing.T) {
	inNode(t, func(n *node) {
		n.lead()
		join := func(session int32) <-chan *kmsg.JoinGroupResponse {
			j := kmsg.NewPtrJoinGroupRequest()
			j.Group, j.SessionTimeoutMillis, j.RebalanceTimeoutMillis, j.ProtocolType = "g", session, 60_000, "consumer"
			j.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: subscription("orders")}}
			c := make(chan *kmsg.JoinGroupResponse, 1)
			n.JoinGroup(&Context{ClientID: "c", Version: 3}, j, func(r *kmsg.JoinGroupResponse) { c <- r })
			return c
		}
		begin := time.Now()
		a, b := join(10_000), join(30_000)
		ra, rb := <-a, <-b
		if took := time.Since(begin); took != 6*time.Second || ra.Generation != 1 || len(ra.Members) != 2 || len(rb.Members) != 0 {
			t.Fatalf("after %v: %+v, %+v", took, ra, rb)
		}
		sync := func(member string, assignment ...kmsg.SyncGroupRequestGroupAssignment) <-chan *kmsg.SyncGroupResponse {
			s := kmsg.NewPtrSyncGroupRequest()
			s.Group, s.MemberID, s.Generation, s.GroupAssignment = "g", member, 1, assignment
			c := make(chan *kmsg.SyncGroupResponse, 1)
			n.SyncGroup(&Context{Version: 3}, s, func(r *kmsg.SyncGroupResponse) { c <- r })
			return c
		}
		waiting := sync(rb.MemberID)
		synctest.Wait()
		if len(waiting) != 0 {
			t.Fatal("assigned before the leader has")
		}
		<-sync(ra.MemberID, kmsg.SyncGroupRequestGroupAssignment{MemberID: rb.MemberID, MemberAssignment: []byte("b")})
		if r := <-waiting; string(r.MemberAssignment) != "b" {
			t.Fatalf("assignment %q", r.MemberAssignment)
		}
		beat := func() int16 {
			h := kmsg.NewPtrHeartbeatRequest()
			h.Group, h.MemberID, h.Generation = "g", rb.MemberID, 1
			return answer(n, func(r func(*kmsg.HeartbeatResponse)) { n.Heartbeat(&Context{Version: 4}, h, r) }).ErrorCode
		}
		time.Sleep(9 * time.Second)
		if code := beat(); code != 0 {
			t.Fatalf("heartbeat: error %d", code)
		}
		time.Sleep(2 * time.Second)
		if code := beat(); code != api.ErrRebalanceInProgress.Code {
			t.Fatalf("heartbeat after the other's session: error %d", code)
		}
	})
}

// A leader that repeats its SyncGroup while the assignment waits for its commit, by then with another one, doesn't change what is stored.
func TestRepeatedAssignment(t *testing.T) {
	m := newMachine()
	m.cfg.InitialRebalanceDelay = 0
	j := kmsg.NewPtrJoinGroupRequest()
	j.Group, j.SessionTimeoutMillis, j.RebalanceTimeoutMillis, j.ProtocolType = "g", 10_000, 60_000, "consumer"
	j.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: subscription("orders")}}
	m.join(3, "a", j)
	m.advance(0)
	g, err := m.core.classicGroup("g", timeline.Latest)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	sync := func(assignment string) result {
		s := kmsg.NewPtrSyncGroupRequest()
		s.Group, s.MemberID, s.Generation = "g", *g.leader, g.generation
		s.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: *g.leader, MemberAssignment: []byte(assignment)}}
		return m.core.sync(s, func(r *kmsg.SyncGroupResponse) {
			got = append(got, fmt.Sprintf("%s: %s %q", assignment, codeName(r.ErrorCode), r.MemberAssignment))
		}, m.now)
	}
	first := sync("first")
	if second := sync("second"); len(second.Records) > 0 {
		t.Errorf("the repeated request writes %v", second.Records)
	}
	first.Committed(m.now, nil)
	// The first request is answered when the second comes, which gets what is stored.
	want := []string{`first: REBALANCE_IN_PROGRESS ""`, `second: ok "first"`}
	if !slices.Equal(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
}

// The members' keys and values come from the network: nothing in them may take the coordinator down.
func FuzzDecodeRecord(f *testing.F) {
	for _, segment := range [][]byte{[]byte("\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00"), []byte("\x00\x02\x00\x01g")} {
		f.Add(segment, []byte("\x00\x03"))
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		m := newMachine()
		r, ok, err := Codec{}.Decode(key, value)
		if err != nil || !ok {
			return
		}
		if err := m.core.Replay(0, -1, 0, r); err != nil {
			return
		}
		for _, g := range m.core.groups.All() {
			g.list(0x7fffffffffffffff)
			g.subscribes("orders")
			g.expiry()
			g.tombstones(nil)
		}
		if _, err := (Codec{}).AppendKey(nil, r); err != nil {
			t.Fatalf("a key that was read can't be written: %v", err)
		}
		if _, _, err := (Codec{}).AppendValue(nil, r); err != nil {
			t.Fatalf("a value that was read can't be written: %v", err)
		}
	})
}

func FuzzReadSubscription(f *testing.F) {
	f.Add(subscription("orders+payments"))
	f.Fuzz(func(t *testing.T, b []byte) {
		topics := map[string]struct{}{}
		readSubscription(topics, b)
		if len(topics) > len(b) {
			t.Fatalf("%d topics in %d bytes", len(topics), len(b))
		}
	})
}
