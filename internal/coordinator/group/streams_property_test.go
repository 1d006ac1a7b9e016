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
	"gregor/internal/message"
	"gregor/internal/timeline"
)

// wordCount is a topology that counts words: "0" reads lines and writes words to a repartition topic, "1" counts them in a store.
func wordCount() *kmsg.StreamsGroupHeartbeatRequestTopology {
	return &kmsg.StreamsGroupHeartbeatRequestTopology{Epoch: 0, Subtopologies: []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{
		{SubtopologyID: "0", SourceTopics: []string{"lines"}, RepartitionSinkTopics: []string{"words"}},
		{
			SubtopologyID: "1", RepartitionSourceTopics: []kmsg.TopicInfo{{Topic: "words"}},
			StateChangelogTopics: []kmsg.TopicInfo{{Topic: "counts", Configs: []kmsg.TopicInfoConfig{{Key: "cleanup.policy", Value: "compact"}}}},
		},
	}}
}

// simThread is a member as KIP-1071 wants it: it gives up what it isn't told to have before it takes anything new.
type simThread struct {
	id, process string
	instance    *string
	epoch       int32
	// owned is what it runs; told what the coordinator last told it to run.
	owned, told roleTasks
	// unsure says that an answer was lost, so that the next heartbeat says everything.
	unsure bool
}

// keep takes out of what it was told to run what it doesn't run yet.
func (c *simThread) keep() {
	for r := range taskRoles {
		c.told[r], _ = c.told[r].split(c.owned[r].has)
	}
}

// application is a streams group and its members, with faults.
type application struct {
	*machine
	t       *rapid.T
	threads []*simThread
	count   int
}

func (a *application) group() *streamsGroup {
	g, _ := a.core.groups.Get(societyGroup)
	sg, _ := g.(*streamsGroup)
	return sg
}

func (a *application) some() *simThread {
	if len(a.threads) == 0 {
		return nil
	}
	return rapid.SampledFrom(a.threads).Draw(a.t, "thread")
}

// bare are tasks without epochs, as clients know them.
func bare(ids []kmsg.TaskIDs) tasks { return tasksFromIDs(ids) }

// heartbeat sends one and takes the answer in, unless it gets lost.
func (a *application) heartbeat(c *simThread, lost bool) {
	r := kmsg.NewPtrStreamsGroupHeartbeatRequest()
	r.Group, r.MemberID, r.MemberEpoch, r.InstanceID = societyGroup, c.id, c.epoch, c.instance
	r.ActiveTasks, r.StandbyTasks, r.WarmupTasks = c.owned[active].ids(), c.owned[standby].ids(), c.owned[warmup].ids()
	if c.epoch == joinEpoch || c.unsure {
		r.RebalanceTimeoutMillis, r.ProcessID = 20_000, &c.process
	}
	if c.epoch == joinEpoch {
		r.Topology = wordCount()
	}
	if err := checkStreamsHeartbeat(r); err != nil {
		a.t.Fatal(err)
	}
	res, answer, err := a.core.streamsHeartbeat(&Context{ClientID: "c", ClientHost: "/h", Version: 1}, r, a.now)
	if err == nil {
		err = a.apply(res, -1)
	}
	if err == nil {
		for _, t := range answer.missing {
			a.topics(map[string]int{t.Topic: int(t.NumPartitions)})
		}
	}
	if lost {
		c.keep()
		c.unsure = true
		return
	}
	switch api.CodeOf(err) {
	case api.CodeNone:
		c.unsure = false
		c.epoch = max(answer.resp.MemberEpoch, joinEpoch) // what compaction has left may have it at no epoch
		if answer.resp.ActiveTasks != nil {
			c.told = roleTasks{bare(answer.resp.ActiveTasks), bare(answer.resp.StandbyTasks), bare(answer.resp.WarmupTasks)}
		}
	case api.ErrFencedMemberEpoch.Code, api.ErrUnknownMemberID.Code, api.ErrGroupIDNotFound.Code:
		c.epoch, c.owned, c.told = joinEpoch, roleTasks{}, roleTasks{}
	case api.ErrNotEnoughReplicas.Code:
		c.keep()
		c.unsure = true
	case api.ErrFencedInstanceID.Code, api.ErrUnreleasedInstanceID.Code:
		a.drop(c) // fatal to it
	case api.ErrInvalidRequest.Code:
		// Topics are others now, and it runs tasks that there aren't any more.
		c.epoch, c.owned, c.told = joinEpoch, roleTasks{}, roleTasks{}
	default:
		a.t.Fatalf("%s <- %v", c.id, err)
	}
}

// settle gives up and then takes what the thread was told. What changes its role is given up and taken at once.
func (a *application) settle(c *simThread) {
	gives := false
	for r := range taskRoles {
		kept, rest := c.owned[r].split(c.told[r].has)
		if len(rest) > 0 {
			c.owned[r] = kept
			gives = true
		}
	}
	if !gives {
		c.owned = c.told
	}
}

func (a *application) drop(c *simThread) {
	a.threads = slices.DeleteFunc(a.threads, func(o *simThread) bool { return o == c })
}

func (a *application) Join(t *rapid.T) {
	a.t = t
	if len(a.threads) >= 5 {
		return
	}
	a.count++
	c := &simThread{id: fmt.Sprintf("c%d", a.count), process: rapid.SampledFrom([]string{"p", "q", "r"}).Draw(t, "process")}
	if i := rapid.SampledFrom([]string{"", "", "i1", "i2"}).Draw(t, "instance"); i != "" {
		c.instance = &i
	}
	a.threads = append(a.threads, c)
	a.heartbeat(c, rapid.IntRange(0, 5).Draw(t, "lost") == 0)
}

func (a *application) Heartbeat(t *rapid.T) {
	a.t = t
	if c := a.some(); c != nil {
		a.heartbeat(c, rapid.IntRange(0, 5).Draw(t, "lost") == 0)
	}
}

func (a *application) Settle(t *rapid.T) {
	a.t = t
	if c := a.some(); c != nil {
		a.settle(c)
	}
}

func (a *application) Leave(t *rapid.T) {
	a.t = t
	c := a.some()
	if c == nil {
		return
	}
	c.owned, c.told = roleTasks{}, roleTasks{} // it closes its tasks before it says goodbye
	r := kmsg.NewPtrStreamsGroupHeartbeatRequest()
	r.Group, r.MemberID, r.InstanceID, r.MemberEpoch = societyGroup, c.id, c.instance, leaveEpoch
	if c.instance != nil && rapid.Bool().Draw(t, "for a while") {
		r.MemberEpoch = leaveStaticEpoch
	}
	res, _, err := a.core.streamsHeartbeat(&Context{Version: 1}, r, a.now)
	if err == nil {
		_ = a.apply(res, -1)
	}
	a.drop(c)
}

func (a *application) Crash(t *rapid.T) {
	a.t = t
	if c := a.some(); c != nil {
		a.drop(c)
	}
}

func (a *application) Standbys(t *rapid.T) {
	a.t = t
	a.cfg.Streams.StandbyReplicas = rapid.IntRange(0, 2).Draw(t, "standbys")
}

func (a *application) Topics(t *rapid.T) {
	a.t = t
	if rapid.Bool().Draw(t, "rebuild") {
		// All topics are deleted and made anew, as the reset tool and an operator would.
		a.topics(map[string]int{"lines": 0, "words": 0, "counts": 0})
		a.topics(map[string]int{"lines": rapid.IntRange(1, 5).Draw(t, "size")})
	}
}

func (a *application) FailNextAppend(t *rapid.T) {
	a.t = t
	a.failNext = api.ErrNotEnoughReplicas
}

func (a *application) Advance(t *rapid.T) {
	a.t = t
	a.advance(rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second, 15 * time.Second, 50 * time.Second}).Draw(t, "time"))
}

func (a *application) Reload(t *rapid.T) {
	a.t = t
	a.core.Unloaded(a.now)
	a.reload()
}

// pictureStreams is everything of a group that its log must tell.
func pictureStreams(g *streamsGroup) string {
	if g == nil {
		return "none"
	}
	lines := []string{fmt.Sprintf("%+v target %+v state %s", g.meta.Get(), g.target.Get(), g.stateAt(timeline.Latest))}
	if t := g.topology.Get(); t != nil {
		lines = append(lines, fmt.Sprintf("topology %x %v %v", t.encoded, t.sources, t.required))
	}
	for id, m := range g.members.All() {
		lines = append(lines, fmt.Sprintf("member %s %s %v %d %d %d %d %v %v", id, m.processID, m.instanceID != nil, m.topologyEpoch, m.epoch,
			m.previous, m.state, m.assigned, m.revoking))
	}
	for id, ts := range g.targets.All() {
		lines = append(lines, fmt.Sprintf("target %s %v", id, *ts))
	}
	for i, id := range g.static.All() {
		lines = append(lines, fmt.Sprintf("static %s %s", i, id))
	}
	for p, id := range g.owners.All() {
		lines = append(lines, fmt.Sprintf("owner %v %s", p, id))
	}
	for h, n := range g.holders.All() {
		lines = append(lines, fmt.Sprintf("holder %v %d", h, n))
	}
	for e, n := range g.settled.All() {
		lines = append(lines, fmt.Sprintf("settled %d %d", e, n))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Check is run after each step: no active task has two owners, neither among the threads that are members nor in the coordinator's
// book; no process has a task twice; the book is right, and the log tells all of it.
func (a *application) Check(t *rapid.T) {
	a.t = t
	g := a.group()
	if g == nil {
		return
	}
	runs := map[taskID]string{}
	for _, c := range a.threads {
		if m, ok := g.members.Get(c.id); !ok || m.epoch < 0 || c.epoch == joinEpoch {
			continue // it doesn't know yet that it isn't one any more, or that it is one
		}
		for _, task := range c.owned[active] {
			if o, ok := runs[task.taskID]; ok {
				t.Fatalf("%v is run by %s and %s\n%s", task.taskID, o, c.id, strings.Join(a.trace, "\n"))
			}
			runs[task.taskID] = c.id
		}
	}
	book := map[taskID]string{}
	for id, m := range g.members.All() {
		for _, held := range []roleTasks{m.assigned, m.revoking} {
			for _, task := range held[active] {
				if o, ok := book[task.taskID]; ok {
					t.Fatalf("%v belongs to %s and %s\n%s", task.taskID, o, id, strings.Join(a.trace, "\n"))
				}
				book[task.taskID] = id
				if o, _ := g.owners.Get(task.taskID); o != id {
					t.Fatalf("%v belongs to %s and not to %q", task.taskID, id, o)
				}
			}
		}
		ts := a.core.timers[memberKey{societyGroup, id}]
		if ts == nil || !ts.session.Active() {
			t.Fatalf("nothing ends the session of %s", id)
		}
		if m.state == memberUnrevoked && !ts.rebalance.Active() {
			t.Fatalf("nothing ends the wait for %s to give up %v", id, m.revoking)
		}
	}
	if len(book) != g.owners.Len() {
		t.Fatalf("%d tasks have owners and %d in the book", len(book), g.owners.Len())
	}
	for id, o := range runs {
		if book[id] != o {
			t.Fatalf("%v is run by %s but belongs to %q\n%s", id, o, book[id], strings.Join(a.trace, "\n"))
		}
	}
	twin := newCore(&a.cfg, coordinator.Env[Record]{
		Registry: timeline.NewRegistry(), Timers: &coordinator.Timers[Record]{}, Logger: a.core.log, Later: func(f func()) { f() },
	}, func() string { return "" }, &counters{})
	live := a.core
	a.core = twin
	for i, l := range a.log {
		if err := a.replayLogged(i, l); err != nil {
			t.Fatal(err)
		}
	}
	replayed := pictureStreams(a.group())
	a.core = live
	if lived := pictureStreams(g); lived != replayed {
		t.Fatalf("lived:\n%s\nreplayed:\n%s", lived, replayed)
	}
}

// converge lets everything rest but the protocol, and checks that everybody gets there: each task is run once, and has the copies
// that it should as far as there are processes for them.
func (a *application) converge(t *rapid.T) {
	a.t = t
	a.failNext = nil
	if len(a.threads) == 0 {
		return
	}
	for range 30 {
		for _, c := range slices.Clone(a.threads) {
			a.heartbeat(c, false)
			a.settle(c)
		}
		a.advance(5 * time.Second)
		a.Check(t)
	}
	g := a.group()
	if len(a.threads) == 0 {
		return
	}
	if state := g.stateAt(timeline.Latest); state != "Stable" {
		t.Fatalf("the group is %s\n%s", state, strings.Join(a.trace, "\n"))
	}
	runs, copies, processes := 0, map[taskID]int{}, map[string]bool{}
	held := map[string]map[taskID]bool{}
	for _, c := range a.threads {
		m, err := g.member(c.id)
		if err != nil {
			t.Fatal(err)
		}
		target, _ := g.targets.Get(c.id)
		if !c.owned.equal(target) || m.epoch != c.epoch {
			t.Fatalf("%s has %v as of %d and should have %v as of %d", c.id, c.owned, c.epoch, *target, m.epoch)
		}
		runs += len(c.owned[active])
		processes[c.process] = true
		if held[c.process] == nil {
			held[c.process] = map[taskID]bool{}
		}
		for r := range taskRoles {
			for _, task := range c.owned[r] {
				if held[c.process][task.taskID] {
					t.Fatalf("process %s has %v twice", c.process, task.taskID)
				}
				held[c.process][task.taskID] = true
			}
		}
		for _, task := range c.owned[standby] {
			copies[task.taskID]++
		}
	}
	if g.members.Len() != len(a.threads) {
		return // one is away for a while
	}
	n := a.world.img.Topics.ByName("lines").Len()
	if runs != 2*n {
		t.Fatalf("%d of %d tasks are run", runs, 2*n)
	}
	want := min(a.cfg.Streams.StandbyReplicas, len(processes)-1)
	for p := range n {
		if got := copies[taskID{"1", int32(p)}]; got != want {
			t.Fatalf("task 1_%d has %d copies and should have %d", p, got, want)
		}
	}
	if len(copies) > n {
		t.Fatalf("there are copies of tasks without state: %v", slices.Collect(maps.Keys(copies)))
	}
}

func TestStreamsGroupLife(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := &application{machine: newMachine(), t: t}
		a.topics(map[string]int{"lines": 3})
		t.Repeat(map[string]func(*rapid.T){
			"":               a.Check,
			"Join":           a.Join,
			"Heartbeat":      a.Heartbeat,
			"Heartbeat2":     a.Heartbeat,
			"Settle":         a.Settle,
			"Leave":          a.Leave,
			"Crash":          a.Crash,
			"Standbys":       a.Standbys,
			"Topics":         a.Topics,
			"FailNextAppend": a.FailNextAppend,
			"Advance":        a.Advance,
			"Reload":         a.Reload,
		})
		a.converge(t)
	})
}

// Whatever is in a log, in whatever order compaction has left it, can be replayed and goes on working.
func TestStreamsReplayTakesAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		m.topics(map[string]int{"lines": 3, "words": 3, "counts": 3})
		someTasks := func() tasks {
			var ts tasks
			for range rapid.IntRange(0, 3).Draw(t, "tasks") {
				ts = append(ts, task{taskID: taskID{rapid.SampledFrom([]string{"0", "1", "gone"}).Draw(t, "subtopology"), rapid.Int32Range(0, 3).Draw(t, "partition")}})
			}
			return normalTasks(ts)
		}
		for range rapid.IntRange(1, 20).Draw(t, "records") {
			member := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "member")
			epoch := rapid.Int32Range(-2, 4).Draw(t, "epoch")
			var r Record
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				r = streamsMetadata{epoch: epoch, validated: epoch}.record("g")
			case 1:
				r = (&streamsMember{id: member, processID: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "process")}).selfRecord("g")
			case 2:
				r = (&streamsMember{
					id: member, epoch: epoch, state: memberState(rapid.SampledFrom([]int8{-1, 0, 1, 2, 9}).Draw(t, "state")),
					assigned: roleTasks{someTasks().since(1), someTasks(), someTasks()}, revoking: roleTasks{someTasks().since(1), someTasks()},
				}).placeRecord("g")
			case 3:
				r = streamsTargetRecord("g", member, &roleTasks{someTasks(), someTasks()})
			case 4:
				r = streamsTargetEpochRecord("g", epoch, 0)
			default:
				v := topologyRecord(wordCount())
				index := []int16{rapid.Int16Range(-1, 1).Draw(t, "index")}
				v.Subtopologies[rapid.IntRange(0, 1).Draw(t, "which")].CopartitionGroups = []message.StreamsGroupTopologyValueCopartitionGroup{
					{SourceTopics: index, RepartitionSourceTopics: index},
				}
				r = Record{Key: &message.StreamsGroupTopologyKey{GroupID: "g"}, Value: v}
			}
			if rapid.Bool().Draw(t, "tombstone") {
				r.Value = nil
			}
			_ = m.apply(result{Records: []Record{r}}, -1)
		}
		m.reload()
		a := &application{machine: m, t: t, threads: []*simThread{{id: "c", process: "p"}}}
		for range 3 {
			a.heartbeat(a.threads[0], false)
		}
		m.advance(time.Hour)
		if g, ok := m.core.groups.Get("g"); ok && !g.empty() {
			t.Fatalf("members without life are still there")
		}
	})
}
