package group

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/timeline"
)

// parseTopology reads a topology: a line for each subtopology, "ID SOURCE... repartition=NAME[:N],.. sink=NAME,.. store=NAME,..
// with=SOURCE|NAME,..", where with names topics that are joined.
func parseTopology(t *testing.T, text string) *topology {
	t.Helper()
	v := &message.StreamsGroupTopologyValue{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		s := message.StreamsGroupTopologyValueSubtopology{SubtopologyID: fields[0]}
		var with []string
		for _, f := range fields[1:] {
			key, list, ok := strings.Cut(f, "=")
			if !ok {
				s.SourceTopics = append(s.SourceTopics, f)
				continue
			}
			for _, name := range strings.Split(list, ",") {
				info := message.StreamsGroupTopologyValueTopicInfo{}
				var n string
				info.Name, n, _ = strings.Cut(name, ":")
				_, _ = fmt.Sscan(n, &info.Partitions)
				switch key {
				case "repartition":
					s.RepartitionSourceTopics = append(s.RepartitionSourceTopics, info)
				case "sink":
					s.RepartitionSinkTopics = append(s.RepartitionSinkTopics, name)
				case "store":
					s.StateChangelogTopics = append(s.StateChangelogTopics, info)
				case "with":
					with = append(with, name)
				}
			}
		}
		if with != nil {
			var g message.StreamsGroupTopologyValueCopartitionGroup
			for _, name := range with {
				if i := slices.Index(s.SourceTopics, name); i >= 0 {
					g.SourceTopics = append(g.SourceTopics, int16(i))
				}
				for i := range s.RepartitionSourceTopics {
					if s.RepartitionSourceTopics[i].Name == name {
						g.RepartitionSourceTopics = append(g.RepartitionSourceTopics, int16(i))
					}
				}
			}
			s.CopartitionGroups = append(s.CopartitionGroups, g)
		}
		v.Subtopologies = append(v.Subtopologies, s)
	}
	return newTopology(v)
}

func TestConfigureTopology(t *testing.T) {
	for _, c := range []struct {
		name, topology string
		topics         map[string]int
		want           string
	}{
		{"plain", "0 a b", map[string]int{"a": 2, "b": 3}, "0:3"},
		{"no source topic", "0 a b", map[string]int{"a": 2}, "status 1 Source topics b are missing."},
		{"many missing", "0 a b c\n1 d e", nil, "status 1 Source topics a, b, c and 2 additional topics are missing."},
		{"repartition", "0 a sink=r\n1 repartition=r store=s", map[string]int{"a": 4}, "0:4 1:4 | create r:4 s:4 | status 3 Internal topics are missing: r, s"},
		{"internal topics are there", "0 a sink=r\n1 repartition=r store=s", map[string]int{"a": 4, "r": 4, "s": 4}, "0:4 1:4"},
		{"some are there", "0 a sink=r\n1 repartition=r store=s", map[string]int{"a": 4, "r": 4}, "0:4 1:4 | create s:4 | status 3 Internal topics are missing: s"},
		{"an internal topic is too small", "0 a sink=r\n1 repartition=r store=s", map[string]int{"a": 4, "s": 3},
			"status 2 Existing topic s has different number of partitions: expected 4, found 3"},
		{"fixed", "0 a sink=r\n1 repartition=r:7", map[string]int{"a": 4}, "0:4 1:7 | create r:7 | status 3 Internal topics are missing: r"},
		{"a chain, last first", "0 repartition=q sink=x\n1 repartition=r sink=q\n2 a b sink=r\n3 repartition=x", map[string]int{"a": 2, "b": 5},
			"0:5 1:5 2:5 3:5 | create q:5 r:5 x:5 | status 3 Internal topics are missing: q, r, x"},
		{"joined with a source", "0 a repartition=r with=a,r\n1 b sink=r", map[string]int{"a": 6, "b": 2},
			"0:6 1:2 | create r:6 | status 3 Internal topics are missing: r"},
		{"joined sources of two sizes", "0 a b with=a,b", map[string]int{"a": 6, "b": 2},
			"status 2 Following topics do not have the same number of partitions: [{a=6, b=2}]"},
		{"joined with a fixed one that doesn't fit", "0 a repartition=r:3 with=a,r\n1 b sink=r", map[string]int{"a": 6, "b": 2},
			"status 2 Number of partitions [3] of repartition topic [r] doesn't match number of partitions [6] of the source topic."},
		{"joined repartition topics", "0 repartition=q,r with=q,r\n1 a sink=q\n2 b sink=r", map[string]int{"a": 2, "b": 5},
			"0:5 1:2 2:5 | create q:5 r:5 | status 3 Internal topics are missing: q, r"},
		{"joined, one fixed", "0 repartition=q:3,r with=q,r\n1 a sink=q\n2 b sink=r", map[string]int{"a": 2, "b": 5},
			"0:3 1:2 2:5 | create q:3 r:3 | status 3 Internal topics are missing: q, r"},
		{"joined, two fixed", "0 repartition=q:3,r:4 with=q,r\n1 a sink=q\n2 b sink=r", map[string]int{"a": 2, "b": 5},
			"status 2 Following topics do not have the same number of partitions: [{q=3, r=4}]"},
		{"a loop", "0 repartition=r sink=q\n1 repartition=q sink=r", nil,
			"STREAMS_INVALID_TOPOLOGY: Failed to compute number of partitions for all repartition topics. There may be loops in the topology that cannot be resolved."},
		{"nobody writes", "0 a repartition=r", map[string]int{"a": 1},
			"STREAMS_INVALID_TOPOLOGY: Failed to compute number of partitions for all repartition topics, because a repartition source topic is never used as a sink topic."},
		{"reads nothing", "0 store=s", nil, "STREAMS_INVALID_TOPOLOGY: No source topics found for subtopology 0"},
		{"nothing", "", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := world{img: metadata.EmptyImage()}
			w.set(c.topics)
			got, err := configureTopology(parseTopology(t, c.topology), w.img.Topics)
			var parts []string
			switch {
			case err != nil:
				parts = append(parts, err.Error())
			default:
				var sizes []string
				for _, s := range got.subtopologies {
					sizes = append(sizes, fmt.Sprintf("%s:%d", s.of.SubtopologyID, s.tasks))
				}
				if sizes != nil {
					parts = append(parts, strings.Join(sizes, " "))
				}
				var create []string
				for _, m := range got.missing {
					create = append(create, fmt.Sprintf("%s:%d", m.Topic, m.NumPartitions))
				}
				if create != nil {
					parts = append(parts, "create "+strings.Join(create, " "))
				}
				if got.status != nil {
					parts = append(parts, fmt.Sprintf("status %d %s", got.status.StatusCode, got.status.StatusDetail))
				}
				if got.ready() != (got.status == nil) {
					t.Error("ready and status contradict each other")
				}
			}
			if text := strings.Join(parts, " | "); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
		})
	}
}

// parseTasks reads "0_1 0_2".
func parseTasks(text string) tasks {
	var ts tasks
	for _, f := range strings.Fields(text) {
		sub, p, _ := strings.Cut(f, "_")
		id := task{taskID: taskID{subtopology: sub}}
		_, _ = fmt.Sscan(p, &id.partition)
		ts = append(ts, id)
	}
	return normalTasks(ts)
}

func (ts tasks) String() string {
	var s []string
	for _, t := range ts {
		s = append(s, fmt.Sprintf("%s_%d", t.subtopology, t.partition))
	}
	return strings.Join(s, " ")
}

func TestStickyTasks(t *testing.T) {
	two := []assignableSubtopology{{"0", 2, false}, {"1", 2, true}}
	for _, c := range []struct {
		name     string
		in       taskAssignment
		active   []string
		standbys []string
	}{
		{
			"alone", taskAssignment{members: []taskAssignee{{id: "a", process: "p"}}, subtopologies: two, standbys: 1},
			[]string{"0_0 0_1 1_0 1_1"}, []string{""},
		},
		{
			"ranges at first", taskAssignment{members: []taskAssignee{{id: "a", process: "p"}, {id: "b", process: "q"}}, subtopologies: two},
			[]string{"0_0 1_0", "0_1 1_1"}, []string{"", ""},
		},
		{
			"a newcomer gets its share", taskAssignment{members: []taskAssignee{
				{id: "a", process: "p", now: roleTasks{active: parseTasks("0_0 0_1 1_0 1_1")}}, {id: "b", process: "q"},
			}, subtopologies: two},
			[]string{"0_0 1_0", "0_1 1_1"}, []string{"", ""},
		},
		{
			"who has a copy takes over", taskAssignment{members: []taskAssignee{
				{id: "a", process: "p"}, {id: "b", process: "q", now: roleTasks{standby: parseTasks("1_0")}},
				{id: "c", process: "r", now: roleTasks{standby: parseTasks("1_1")}},
			}, subtopologies: []assignableSubtopology{{"1", 2, true}}},
			[]string{"", "1_0", "1_1"}, []string{"", "", ""},
		},
		{
			"who has more of the state takes over", taskAssignment{members: []taskAssignee{
				{id: "a", process: "p", positions: taskPositions{{"1", 0}: 5}}, {id: "b", process: "q", positions: taskPositions{{"1", 0}: 9}},
			}, subtopologies: []assignableSubtopology{{"1", 1, true}}},
			[]string{"", "1_0"}, []string{"", ""},
		},
		{
			"copies are elsewhere", taskAssignment{members: []taskAssignee{{id: "a", process: "p"}, {id: "b", process: "q"}}, subtopologies: two, standbys: 1},
			[]string{"0_0 1_0", "0_1 1_1"}, []string{"1_1", "1_0"},
		},
		{
			"no copies within a process", taskAssignment{members: []taskAssignee{{id: "a", process: "p"}, {id: "b", process: "p"}}, subtopologies: two, standbys: 2},
			[]string{"0_0 1_0", "0_1 1_1"}, []string{"", ""},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i, got := range stickyTasks(&c.in) {
				if a, s := got[active].String(), got[standby].String(); a != c.active[i] || s != c.standbys[i] {
					t.Errorf("%s gets %q and copies %q, not %q and %q", c.in.members[i].id, a, s, c.active[i], c.standbys[i])
				}
			}
		})
	}
}

// Every task has one owner and as many copies as there can be; active tasks are spread evenly; what was assigned once stays, and a
// member that comes or goes moves no more than it must.
func TestStickyTasksProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := &taskAssignment{standbys: rapid.IntRange(0, 3).Draw(t, "standbys")}
		total := 0
		for i := range rapid.IntRange(1, 4).Draw(t, "subtopologies") {
			s := assignableSubtopology{fmt.Sprint(i), rapid.IntRange(1, 8).Draw(t, "tasks"), rapid.Bool().Draw(t, "stateful")}
			in.subtopologies = append(in.subtopologies, s)
			total += s.tasks
		}
		join := func() {
			in.members = append(in.members, taskAssignee{id: fmt.Sprintf("m%02d", len(in.members)), process: rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(t, "process")})
		}
		for range rapid.IntRange(1, 6).Draw(t, "members") {
			join()
		}
		take := func(targets []roleTasks) {
			for i := range targets {
				in.members[i].now = targets[i]
			}
		}
		check := func(targets []roleTasks) {
			owner, holders := map[taskID]int{}, map[taskID]map[string]bool{}
			processes := map[string]bool{}
			for i, target := range targets {
				processes[in.members[i].process] = true
				for r := range taskRoles {
					for _, task := range target[r] {
						if r == active {
							owner[task.taskID]++
						}
						if holders[task.taskID] == nil {
							holders[task.taskID] = map[string]bool{}
						}
						if holders[task.taskID][in.members[i].process] {
							t.Fatalf("a process has %v twice", task.taskID)
						}
						holders[task.taskID][in.members[i].process] = true
					}
				}
			}
			for _, s := range in.subtopologies {
				want := 1
				if s.stateful {
					want = min(1+in.standbys, len(processes))
				}
				for p := range s.tasks {
					id := taskID{s.id, int32(p)}
					if owner[id] != 1 || len(holders[id]) != want {
						t.Fatalf("%v has %d owners and %d holders, not %d", id, owner[id], len(holders[id]), want)
					}
				}
			}
			if len(owner) != total {
				t.Fatalf("%d tasks were assigned of %d", len(owner), total)
			}
		}
		first := stickyTasks(in)
		check(first)
		take(first)
		again := stickyTasks(in)
		check(again)
		for i := range first {
			if !slices.Equal(first[i][active], again[i][active]) && balanced(first) {
				t.Fatalf("%s had %v and now has %v", in.members[i].id, first[i][active], again[i][active])
			}
		}
		join()
		check(stickyTasks(in))
	})
}

// balanced says whether no member has two active tasks more than another.
func balanced(targets []roleTasks) bool {
	least, most := len(targets[0][active]), 0
	for _, t := range targets {
		least, most = min(least, len(t[active])), max(most, len(t[active]))
	}
	return most-least <= 1
}

func TestParseTaskAssignors(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want []string
	}{
		{[]string{"sticky"}, []string{"sticky"}},
		{[]string{"org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor", "sticky"}, []string{"sticky"}},
		{nil, nil},
		{[]string{"sticky", "com.example.Mine"}, nil},
	} {
		if got, err := ParseTaskAssignors(c.in); !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%v: %v, %v", c.in, got, err)
		}
	}
}

// A task that changes its role within a member keeps its state: it isn't given up in between.
func TestTaskRoleChanges(t *testing.T) {
	hold := func(a, s string) roleTasks { return roleTasks{parseTasks(a), parseTasks(s)} }
	for _, c := range []struct {
		name                         string
		now, target                  roleTasks
		says                         *roleTasks
		others                       string // active elsewhere
		wantEpoch                    int32
		wantState                    memberState
		wantAssigned, wantPendingOut string
	}{
		{"takes what is free", hold("", ""), hold("0_0", "1_1"), nil, "", 5, memberStable, "0_0|1_1", "|"},
		{"waits for an owner", hold("", ""), hold("0_0 0_1", ""), nil, "0_1", 5, memberUnreleased, "0_0|", "|"},
		{"gives up first", hold("0_0 0_1", ""), hold("0_0 0_2", ""), nil, "", 4, memberUnrevoked, "0_0|", "0_1|"},
		{"has given up already", hold("0_0 0_1", ""), hold("0_0 0_2", ""), &roleTasks{parseTasks("0_0")}, "", 5, memberStable, "0_0 0_2|", "|"},
		{"a copy becomes the task", hold("", "1_0"), hold("1_0", ""), nil, "", 5, memberStable, "1_0|", "|"},
		{"a copy stays while another has the task", hold("", "1_0"), hold("1_0", ""), nil, "1_0", 5, memberUnreleased, "|1_0", "|"},
		{"a copy stays while something else is given up", hold("0_1", "1_0"), hold("1_0", ""), nil, "", 4, memberUnrevoked, "|1_0", "0_1|"},
		{"the task becomes a copy", hold("1_0", ""), hold("", "1_0"), nil, "", 4, memberUnrevoked, "|1_0", "1_0|"},
		{"the task has become a copy", hold("1_0", ""), hold("", "1_0"), &roleTasks{nil, parseTasks("1_0")}, "", 5, memberStable, "|1_0", "|"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newStreamsMember("m")
			m.processID, m.epoch, m.previous, m.assigned = "p", 4, 4, c.now
			others := parseTasks(c.others)
			r := taskReconciliation{
				member: m, targetEpoch: 5, target: &c.target, says: c.says,
				owned: func(id taskID) bool { return others.has(id) || m.assigned[active].has(id) },
				here:  func(role taskRole, id taskID) bool { return m.assigned[role].has(id) },
			}
			n, err := r.next()
			if err != nil {
				t.Fatal(err)
			}
			show := func(ts roleTasks) string { return ts[active].String() + "|" + ts[standby].String() }
			if n.epoch != c.wantEpoch || n.state != c.wantState || show(n.assigned) != c.wantAssigned || show(n.revoking) != c.wantPendingOut {
				t.Errorf("epoch %d, state %d, has %s, gives up %s", n.epoch, n.state, show(n.assigned), show(n.revoking))
			}
			for _, task := range n.assigned[active] {
				if want := map[bool]int32{true: 0, false: 5}[c.now[active].has(task.taskID)]; task.epoch != want {
					t.Errorf("%v is held as of %d", task.taskID, task.epoch)
				}
			}
		})
	}
}

// play sends heartbeats of streams groups to a machine.
type play struct {
	*machine
	t *testing.T
}

func (p play) beat(r *kmsg.StreamsGroupHeartbeatRequest) *kmsg.StreamsGroupHeartbeatResponse {
	p.t.Helper()
	resp, err := p.try(r)
	if err != nil {
		p.t.Fatalf("%s: %v", r.MemberID, err)
	}
	return resp
}

func (p play) try(r *kmsg.StreamsGroupHeartbeatRequest) (*kmsg.StreamsGroupHeartbeatResponse, error) {
	if err := checkStreamsHeartbeat(r); err != nil {
		return nil, err
	}
	res, answer, err := p.core.streamsHeartbeat(&Context{ClientID: "c", ClientHost: "/h", Version: 1}, r, p.now)
	if err == nil {
		err = p.apply(res, -1)
	}
	return answer.resp, err
}

func streamsJoin(group, member, process string) *kmsg.StreamsGroupHeartbeatRequest {
	r := kmsg.NewPtrStreamsGroupHeartbeatRequest()
	r.Group, r.MemberID, r.ProcessID, r.RebalanceTimeoutMillis, r.Topology = group, member, &process, 10_000, wordCount()
	r.ActiveTasks, r.StandbyTasks, r.WarmupTasks = []kmsg.TaskIDs{}, []kmsg.TaskIDs{}, []kmsg.TaskIDs{}
	return r
}

func streamsBeat(group, member string, epoch int32) *kmsg.StreamsGroupHeartbeatRequest {
	r := kmsg.NewPtrStreamsGroupHeartbeatRequest()
	r.Group, r.MemberID, r.MemberEpoch = group, member, epoch
	return r
}

func statuses(resp *kmsg.StreamsGroupHeartbeatResponse) []int8 {
	var codes []int8
	for _, s := range resp.Status {
		codes = append(codes, s.StatusCode)
	}
	return codes
}

// The first assignment of a group waits for members, until its delay is over; members that fall silent are out.
func TestStreamsDelayAndSession(t *testing.T) {
	p := play{newMachine(), t}
	p.topics(map[string]int{"lines": 2, "words": 2, "counts": 2})
	if got := statuses(p.beat(streamsJoin("g", "a", "p"))); !slices.Equal(got, []int8{statusAssignmentDelayed}) {
		t.Errorf("the first member is told %v", got)
	}
	resp := p.beat(streamsJoin("g", "b", "q"))
	if len(resp.ActiveTasks) != 0 || !slices.Equal(statuses(resp), []int8{statusAssignmentDelayed}) {
		t.Errorf("the second member gets %v and is told %v", resp.ActiveTasks, statuses(resp))
	}
	p.advance(p.cfg.Streams.InitialDelay)
	for id, want := range map[string]string{"a": "0_0 1_0", "b": "0_1 1_1"} {
		resp := p.beat(streamsBeat("g", id, 1))
		if got := tasksFromIDs(resp.ActiveTasks).String(); got != want || len(resp.Status) != 0 || resp.MemberEpoch != 3 {
			t.Errorf("%s gets %s at epoch %d and is told %v", id, got, resp.MemberEpoch, resp.Status)
		}
	}
	p.advance(p.cfg.Streams.SessionTimeout / 2)
	p.beat(streamsBeat("g", "a", 3))
	p.advance(p.cfg.Streams.SessionTimeout/2 + 1)
	if _, err := p.try(streamsBeat("g", "b", 3)); api.CodeOf(err) != api.ErrUnknownMemberID.Code {
		t.Errorf("the member that fell silent gets %v", err)
	}
	if got := tasksFromIDs(p.beat(streamsBeat("g", "a", 3)).ActiveTasks).String(); got != "0_0 0_1 1_0 1_1" {
		t.Errorf("the one that is left has %s", got)
	}
	// A member that doesn't give up in time is out, too.
	p.advance(p.cfg.Streams.AssignmentInterval)
	p.beat(streamsJoin("g", "c", "r"))
	resp = p.beat(streamsBeat("g", "a", 4))
	if resp.MemberEpoch != 4 || tasksFromIDs(resp.ActiveTasks).String() == "0_0 0_1 1_0 1_1" {
		t.Fatalf("a is to keep %v at epoch %d", resp.ActiveTasks, resp.MemberEpoch)
	}
	for range 3 {
		p.advance(p.cfg.Streams.SessionTimeout / 10)
		if resp, err := p.try(streamsBeat("g", "a", 4)); err == nil && resp.MemberEpoch != 4 {
			t.Fatalf("a has moved on to %d without giving up", resp.MemberEpoch)
		}
		p.beat(streamsBeat("g", "c", 5))
	}
	if _, err := p.try(streamsBeat("g", "a", 4)); api.CodeOf(err) != api.ErrUnknownMemberID.Code {
		t.Errorf("the member that kept its tasks gets %v", err)
	}
}

// An answer that got lost is told again.
func TestStreamsLostAnswer(t *testing.T) {
	p := play{newMachine(), t}
	p.cfg.Streams.InitialDelay = 0
	p.topics(map[string]int{"lines": 1, "words": 1, "counts": 1})
	p.beat(streamsJoin("g", "a", "p"))
	all := tasksFromIDs(p.beat(streamsJoin("g", "a", "p")).ActiveTasks).String()
	if all != "0_0 1_0" {
		t.Fatalf("a has %s", all)
	}
	r := streamsBeat("g", "a", 2)
	r.RebalanceTimeoutMillis, r.ActiveTasks, r.StandbyTasks, r.WarmupTasks = 10_000, []kmsg.TaskIDs{}, []kmsg.TaskIDs{}, []kmsg.TaskIDs{}
	if got := tasksFromIDs(p.beat(r).ActiveTasks).String(); got != all {
		t.Errorf("who says everything is told %s", got)
	}
	if resp := p.beat(streamsBeat("g", "a", 2)); resp.ActiveTasks != nil {
		t.Errorf("who says nothing is told %v", resp.ActiveTasks)
	}
}

// A heartbeat that is the first to see other topics, and is refused, leaves it to the next to tell the group.
func TestStreamsChangeSeenByRefused(t *testing.T) {
	p := play{newMachine(), t}
	p.cfg.Streams.InitialDelay, p.cfg.Streams.AssignmentInterval = 0, 0
	p.topics(map[string]int{"lines": 2, "words": 2, "counts": 2})
	p.beat(streamsJoin("g", "a", "p"))
	resp := p.beat(streamsJoin("g", "a", "p"))
	if got := tasksFromIDs(resp.ActiveTasks).String(); got != "0_0 0_1 1_0 1_1" {
		t.Fatalf("a has %s", got)
	}
	p.topics(map[string]int{"lines": 0, "words": 0, "counts": 0})
	p.topics(map[string]int{"lines": 1, "words": 1, "counts": 1})
	r := streamsBeat("g", "a", resp.MemberEpoch)
	r.ActiveTasks, r.StandbyTasks, r.WarmupTasks = resp.ActiveTasks, resp.StandbyTasks, resp.WarmupTasks
	if _, err := p.try(r); api.CodeOf(err) != api.ErrInvalidRequest.Code {
		t.Fatalf("tasks that there aren't any more: %v", err)
	}
	if got := tasksFromIDs(p.beat(streamsJoin("g", "a", "p")).ActiveTasks).String(); got != "0_0 1_0" {
		t.Errorf("a has %s then", got)
	}
}

// What members say of tasks that there aren't is not kept.
func TestStreamsTaskOffsets(t *testing.T) {
	p := play{newMachine(), t}
	p.cfg.Streams.InitialDelay = 0
	p.topics(map[string]int{"lines": 2, "words": 2, "counts": 2})
	p.beat(streamsJoin("g", "a", "p"))
	r := streamsJoin("g", "a", "p")
	for _, sub := range []string{"0", "1", "2"} {
		for n := int32(-1); n <= 2; n++ {
			r.TaskOffsets = append(r.TaskOffsets, kmsg.TaskOffset{SubtopologyID: sub, Partition: n, Offset: 7})
		}
	}
	p.beat(r)
	g, _ := p.core.groups.Get("g")
	var kept []string
	for _, o := range g.(*streamsGroup).positions["a"].now.list() {
		kept = append(kept, fmt.Sprintf("%s_%d", o.SubtopologyID, o.Partition))
	}
	if want := []string{"0_0", "0_1", "1_0", "1_1"}; !slices.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
}

// Offsets of a streams group are guarded by its members' epochs, and by the tasks that they have had since.
func TestStreamsOffsetChecks(t *testing.T) {
	p := play{newMachine(), t}
	p.cfg.Streams.InitialDelay, p.cfg.Streams.AssignmentInterval = 0, 0
	p.topics(map[string]int{"lines": 2, "words": 2, "counts": 2, "other": 1})
	p.beat(streamsJoin("g", "a", "p"))
	p.beat(streamsJoin("g", "b", "q"))
	r := streamsBeat("g", "a", 2)
	r.ActiveTasks, r.StandbyTasks, r.WarmupTasks = parseTasks("0_0 1_0").ids(), []kmsg.TaskIDs{}, []kmsg.TaskIDs{}
	p.beat(r) // is told to give up what it has given up already
	p.beat(streamsBeat("g", "b", 3))
	g, _ := p.core.groups.Get("g")
	sg := g.(*streamsGroup)
	a, _ := sg.member("a")
	b, _ := sg.member("b")
	if a.epoch != 3 || b.epoch != 3 || len(b.assigned[active]) != 2 {
		t.Fatalf("a is at %d, b at %d with %v", a.epoch, b.epoch, b.assigned)
	}
	for _, c := range []struct {
		name      string
		check     commitCheck
		topic     string
		partition int32
		want      *api.Error
	}{
		{"of its epoch", commitCheck{memberID: "a", generation: 3, version: 9}, "lines", 0, nil},
		{"of an epoch behind, for a task it had then", commitCheck{memberID: "a", generation: 2, version: 9}, "lines", 0, nil},
		{"of an epoch behind, for a repartition topic", commitCheck{memberID: "a", generation: 2, version: 9}, "words", 0, nil},
		{"of an epoch behind, for a task that it has no more", commitCheck{memberID: "a", generation: 2, version: 9}, "lines", 1, api.ErrStaleMemberEpoch},
		{"of an epoch behind, for a task that it got later", commitCheck{memberID: "b", generation: 2, version: 9}, "lines", 1, api.ErrStaleMemberEpoch},
		{"of an epoch behind, for a topic of others", commitCheck{memberID: "a", generation: 2, version: 9}, "other", 0, api.ErrStaleMemberEpoch},
		{"of an epoch ahead", commitCheck{memberID: "a", generation: 4, version: 9}, "lines", 0, api.ErrStaleMemberEpoch},
		{"of nobody", commitCheck{memberID: "z", generation: 3, version: 9}, "lines", 0, api.ErrUnknownMemberID},
		{"in an old version", commitCheck{memberID: "a", generation: 3, version: 8}, "lines", 0, api.ErrUnsupportedVersion},
		{"in a transaction of somebody", commitCheck{memberID: "a", generation: 3, version: 3, transactional: true}, "lines", 0, nil},
		{"in a transaction of nobody in particular", commitCheck{generation: -1, transactional: true}, "lines", 0, nil},
		{"without member", commitCheck{generation: -1, version: 9}, "lines", 0, api.ErrUnknownMemberID},
	} {
		check, err := sg.checkOffsetCommit(&c.check)
		if err == nil && check != nil {
			err = check(c.topic, p.world.last[c.topic], c.partition)
		}
		if want := codeOf(c.want); api.CodeOf(err) != want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if !sg.subscribes("lines") || !sg.subscribes("words") || sg.subscribes("counts") || sg.subscribes("other") {
		t.Error("the group reads other topics than those of its topology")
	}
	for _, m := range slices.Sorted(maps.Keys(map[string]bool{"a": true, "b": true})) {
		p.beat(streamsBeat("g", m, -1))
	}
	if sg.subscribes("lines") {
		t.Error("an empty group reads topics")
	}
	if _, err := sg.checkOffsetCommit(&commitCheck{generation: -1, version: 9}); err != nil {
		t.Errorf("commit to an empty group: %v", err)
	}
}

func codeOf(e *api.Error) int16 {
	if e == nil {
		return api.CodeNone
	}
	return e.Code
}

// Records of streams groups that Kafka 4.4.0 has written are read, are written back byte for byte, and tell what they told Kafka.
// TestStreamsGroups of the interoperability tests makes them anew.
func TestStreamsGolden(t *testing.T) {
	golden, err := os.ReadFile("testdata/streams.hex")
	if err != nil {
		t.Fatal(err)
	}
	p := play{newMachine(), t}
	n := 0
	for line := range strings.Lines(string(golden)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		k, err := hex.DecodeString(key)
		if err != nil {
			t.Fatal(err)
		}
		v, err := hex.DecodeString(value)
		if err != nil {
			t.Fatal(err)
		}
		if len(v) == 0 {
			v = nil
		}
		r, known, err := Codec{}.Decode(k, v)
		if err != nil || !known {
			t.Fatalf("%s: known %v, %v", line, known, err)
		}
		ourKey, _ := Codec{}.AppendKey(nil, r)
		ourValue, tombstone, err := Codec{}.AppendValue(nil, r)
		if err != nil || tombstone != (v == nil) || !bytes.Equal(ourKey, k) || !bytes.Equal(ourValue, v) {
			t.Errorf("%s: written as %x %x, %v", line, ourKey, ourValue, err)
		}
		if err := p.core.Replay(int64(n), -1, 0, r); err != nil {
			t.Fatal(err)
		}
		// What the records say of members and tasks goes through our types and comes out the same.
		g, _ := p.core.groups.Get(groupOf(r.Key))
		if sg, ok := g.(*streamsGroup); ok && r.Value != nil {
			var again Record
			switch k := r.Key.(type) {
			case *message.StreamsGroupMetadataKey:
				again = sg.meta.Get().record(sg.id)
			case *message.StreamsGroupMemberMetadataKey:
				m, _ := sg.members.Get(k.MemberID)
				again = m.selfRecord(sg.id)
			case *message.StreamsGroupCurrentMemberAssignmentKey:
				m, _ := sg.members.Get(k.MemberID)
				again = m.placeRecord(sg.id)
			case *message.StreamsGroupTargetAssignmentMemberKey:
				target, _ := sg.targets.Get(k.MemberID)
				again = streamsTargetRecord(sg.id, k.MemberID, target)
			case *message.StreamsGroupTargetAssignmentMetadataKey:
				again = streamsTargetEpochRecord(sg.id, sg.target.Get().epoch, sg.target.Get().at)
			}
			if again.Key != nil {
				if b, _, err := (Codec{}).AppendValue(nil, again); err != nil || !bytes.Equal(b, v) {
					t.Errorf("%s: our own record is %x, %v", line, b, err)
				}
			}
		}
		n++
	}
	p.core.Loaded(p.now)
	var lines []string
	for id, g := range p.core.groups.All() {
		sg := g.(*streamsGroup)
		var members []string
		for m := range sg.members.All() {
			members = append(members, m)
		}
		slices.Sort(members)
		lines = append(lines, fmt.Sprintf("%s %s epoch=%d target=%d %v", id, sg.stateAt(timeline.Latest), sg.meta.Get().epoch, sg.target.Get().epoch, members))
	}
	slices.Sort(lines)
	if want := strings.TrimSpace(goldenGroups); strings.Join(lines, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), want)
	}
}

// groupOf is the group of a streams record.
func groupOf(key message.Message) string {
	id, _ := streamsRecordOf(key)
	return id
}

// goldenGroups are the groups at the end of testdata/streams.hex.
const goldenGroups = `
copies Stable epoch=7 target=7 [m2]
delayed Assigning epoch=4 target=1 [m1 m2]
life Stable epoch=11 target=11 [m4]
static Empty epoch=5 target=5 []
topology-1 Empty epoch=3 target=3 []
topology-2 Empty epoch=3 target=3 []
topology-3 Empty epoch=3 target=3 []
topology-7 Empty epoch=3 target=3 []
topology-8 Empty epoch=3 target=3 []
uncreatable NotReady epoch=2 target=2 [m]
`
