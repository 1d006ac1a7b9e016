package group

import (
	"fmt"
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

// simClient is a consumer as KIP-848 wants it: it gives up what it isn't told to have before it takes anything new.
type simClient struct {
	id       string
	instance *string
	reads    []string
	regex    string
	epoch    int32
	// owned is what it reads; told what the coordinator last told it to have.
	owned, told partitions
	// unsure says that an answer was lost, so that the next heartbeat says everything.
	unsure bool
}

// society is a consumer group and its members, with faults.
type society struct {
	*machine
	t       *rapid.T
	clients []*simClient
	count   int
}

const societyGroup = "g"

func (s *society) group() *consumerGroup {
	g, _ := s.core.groups.Get(societyGroup)
	cg, _ := g.(*consumerGroup)
	return cg
}

func (s *society) someClient() *simClient {
	if len(s.clients) == 0 {
		return nil
	}
	return rapid.SampledFrom(s.clients).Draw(s.t, "client")
}

// heartbeat sends one and takes the answer in, unless it gets lost.
func (s *society) heartbeat(c *simClient, lost bool) {
	r := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	r.Group, r.MemberID, r.MemberEpoch, r.InstanceID = societyGroup, c.id, c.epoch, c.instance
	r.RebalanceTimeoutMillis = -1
	r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	for _, tp := range c.owned {
		r.Topics = append(r.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: tp.topic, Partitions: tp.partitions})
	}
	if c.epoch == joinEpoch || c.unsure {
		r.RebalanceTimeoutMillis = 20_000
		r.SubscribedTopicNames, r.SubscribedTopicRegex = append([]string{}, c.reads...), &c.regex
	}
	res, resp, err := s.core.consumerHeartbeat(&Context{ClientID: "c", ClientHost: "/h", Version: 1}, r, s.now)
	if err == nil {
		err = s.apply(res, -1)
	}
	if lost {
		// It has said what it has, so it may not take any more before it hears what the coordinator made of that.
		c.told, _ = c.told.split(c.owned.has)
		c.unsure = true
		return
	}
	switch api.CodeOf(err) {
	case api.CodeNone:
		c.unsure = false
		c.epoch = resp.MemberEpoch
		if resp.Assignment != nil {
			var tps []topicPartitions
			for _, t := range resp.Assignment.Topics {
				tps = append(tps, topicPartitions{topic: t.TopicID, partitions: t.Partitions})
			}
			c.told = normalize(tps)
		}
	case api.ErrFencedMemberEpoch.Code, api.ErrUnknownMemberID.Code, api.ErrGroupIDNotFound.Code:
		c.epoch, c.owned, c.told = joinEpoch, nil, nil
	case api.ErrNotEnoughReplicas.Code:
		c.told, _ = c.told.split(c.owned.has)
		c.unsure = true
	case api.ErrFencedInstanceID.Code, api.ErrUnreleasedInstanceID.Code:
		s.drop(c) // fatal to it
	default:
		s.t.Fatalf("%s <- %v", c.id, err)
	}
}

// settle gives up and then takes what the client was told.
func (s *society) settle(c *simClient) {
	kept, rest := c.owned.split(c.told.has)
	if len(rest) > 0 {
		c.owned = kept // the next heartbeat says so
		return
	}
	c.owned = c.told
}

func (s *society) drop(c *simClient) {
	s.clients = slices.DeleteFunc(s.clients, func(o *simClient) bool { return o == c })
}

func (s *society) draw(c *simClient) {
	c.reads, c.regex = nil, ""
	for _, topic := range []string{"orders", "payments", "late"} {
		if rapid.IntRange(0, 2).Draw(s.t, "reads") > 0 {
			c.reads = append(c.reads, topic)
		}
	}
	if rapid.IntRange(0, 3).Draw(s.t, "regex") == 0 {
		c.regex = rapid.SampledFrom([]string{"orders|payments", "l.*"}).Draw(s.t, "pattern")
	}
}

func (s *society) Join(t *rapid.T) {
	s.t = t
	if len(s.clients) >= 5 {
		return
	}
	s.count++
	c := &simClient{id: fmt.Sprintf("c%d", s.count)}
	if i := rapid.SampledFrom([]string{"", "", "i1", "i2"}).Draw(t, "instance"); i != "" {
		c.instance = &i
	}
	s.draw(c)
	s.clients = append(s.clients, c)
	s.heartbeat(c, rapid.IntRange(0, 5).Draw(t, "lost") == 0)
}

func (s *society) Heartbeat(t *rapid.T) {
	s.t = t
	if c := s.someClient(); c != nil {
		s.heartbeat(c, rapid.IntRange(0, 5).Draw(t, "lost") == 0)
	}
}

func (s *society) Settle(t *rapid.T) {
	s.t = t
	if c := s.someClient(); c != nil {
		s.settle(c)
	}
}

func (s *society) Subscribe(t *rapid.T) {
	s.t = t
	if c := s.someClient(); c != nil {
		s.draw(c)
		c.unsure = true
		s.heartbeat(c, false)
	}
}

func (s *society) Leave(t *rapid.T) {
	s.t = t
	c := s.someClient()
	if c == nil {
		return
	}
	// A client stops reading before it says goodbye.
	c.owned, c.told = nil, nil
	r := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	r.Group, r.MemberID, r.InstanceID, r.MemberEpoch = societyGroup, c.id, c.instance, leaveEpoch
	if c.instance != nil && rapid.Bool().Draw(t, "for a while") {
		r.MemberEpoch = leaveStaticEpoch
	}
	res, _, err := s.core.consumerHeartbeat(&Context{Version: 1}, r, s.now)
	if err == nil {
		_ = s.apply(res, -1)
	}
	s.drop(c)
}

func (s *society) Crash(t *rapid.T) {
	s.t = t
	if c := s.someClient(); c != nil {
		s.drop(c)
	}
}

func (s *society) Topics(t *rapid.T) {
	s.t = t
	topic := rapid.SampledFrom([]string{"orders", "payments", "late"}).Draw(t, "topic")
	size := rapid.IntRange(0, 6).Draw(t, "size")
	if old := s.world.img.Topics.ByName(topic); old != nil && size > 0 && size < old.Len() {
		return
	}
	s.topics(map[string]int{topic: size})
}

func (s *society) FailNextAppend(t *rapid.T) {
	s.t = t
	s.failNext = api.ErrNotEnoughReplicas
}

func (s *society) Work(t *rapid.T) {
	s.t = t
	s.work()
}

func (s *society) Advance(t *rapid.T) {
	s.t = t
	s.advance(rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second, 15 * time.Second, 50 * time.Second}).Draw(t, "time"))
}

func (s *society) Reload(t *rapid.T) {
	s.t = t
	s.core.Unloaded(s.now)
	s.reload()
}

// pictureConsumer is everything of a group that its log must tell.
func pictureConsumer(g *consumerGroup) string {
	if g == nil {
		return "none"
	}
	lines := []string{fmt.Sprintf("epoch %d hash %d target %+v state %s", g.epoch.Get(), g.hash.Get(), g.target.Get(), g.stateAt(timeline.Latest))}
	for id, m := range g.members.All() {
		lines = append(lines, fmt.Sprintf("member %s %v %v %q %d %d %d %v %v", id, m.instanceID != nil, m.topics, m.regex, m.epoch, m.previous, m.state, m.assigned, m.revoking))
	}
	for id, ps := range g.targets.All() {
		lines = append(lines, fmt.Sprintf("target %s %v", id, ps))
	}
	for i, id := range g.static.All() {
		lines = append(lines, fmt.Sprintf("static %s %s", i, id))
	}
	for p, id := range g.owners.All() {
		lines = append(lines, fmt.Sprintf("owner %v %s", p, id))
	}
	for r, v := range g.regexes.All() {
		lines = append(lines, fmt.Sprintf("regex %s %v", r, v))
	}
	for k, n := range g.tallies.All() {
		lines = append(lines, fmt.Sprintf("tally %v %d", k, n))
	}
	for topic, n := range g.topics.All() {
		lines = append(lines, fmt.Sprintf("topic %s %v", topic, n))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Check is run after each step: no partition has two owners, neither among the clients that are members nor in the coordinator's
// book, the book is right, and the log tells all of it.
func (s *society) Check(t *rapid.T) {
	s.t = t
	g := s.group()
	if g == nil {
		return
	}
	reading := map[partitionID]string{}
	for _, c := range s.clients {
		if m, ok := g.members.Get(c.id); !ok || m.epoch < 0 || c.epoch == joinEpoch {
			continue // it doesn't know yet that it isn't one any more, or that it is one
		}
		for _, tp := range c.owned {
			for _, p := range tp.partitions {
				id := partitionID{tp.topic, p}
				if o, ok := reading[id]; ok {
					t.Fatalf("%s[%d] is read by %s and %s\n%s", s.name(id.topic), p, o, c.id, strings.Join(s.trace, "\n"))
				}
				reading[id] = c.id
			}
		}
	}
	book := map[partitionID]string{}
	for id, m := range g.members.All() {
		for _, ps := range []partitions{m.assigned, m.revoking} {
			for _, tp := range ps {
				for _, p := range tp.partitions {
					pid := partitionID{tp.topic, p}
					if o, ok := book[pid]; ok {
						t.Fatalf("%s[%d] belongs to %s and %s\n%s", s.name(tp.topic), p, o, id, strings.Join(s.trace, "\n"))
					}
					book[pid] = id
					if o, _ := g.owners.Get(pid); o != id {
						t.Fatalf("%s[%d] belongs to %s and not to %q", s.name(tp.topic), p, id, o)
					}
				}
			}
		}
		if ts := s.core.timers[memberKey{societyGroup, id}]; ts == nil || !ts.session.Active() {
			t.Fatalf("nothing ends the session of %s", id)
		}
		if target, ok := g.targets.Get(id); ok && m.state == memberUnrevoked && !s.core.timers[memberKey{societyGroup, id}].rebalance.Active() {
			t.Fatalf("nothing ends the wait for %s to give up %v, target %v", id, m.revoking, target)
		}
	}
	for pid := range g.owners.All() {
		if _, ok := book[pid]; !ok {
			t.Fatalf("%v has an owner in the book only", pid)
		}
	}
	for id, o := range reading {
		if book[id] != o {
			t.Fatalf("%s[%d] is read by %s but belongs to %q\n%s", s.name(id.topic), id.partition, o, book[id], strings.Join(s.trace, "\n"))
		}
	}
	twin := newCore(&s.cfg, coordinator.Env[Record]{
		Registry: timeline.NewRegistry(), Timers: &coordinator.Timers[Record]{}, Logger: s.core.log, Later: func(f func()) { f() },
	}, func() string { return "" }, &counters{})
	live := s.core
	s.core = twin
	for i, l := range s.log {
		if err := s.replayLogged(i, l); err != nil {
			t.Fatal(err)
		}
	}
	replayed := pictureConsumer(s.group())
	s.core = live
	if lived := pictureConsumer(g); lived != replayed {
		t.Fatalf("lived:\n%s\nreplayed:\n%s", lived, replayed)
	}
}

// converge lets everything rest but the protocol, and checks that everybody gets there.
func (s *society) converge(t *rapid.T) {
	s.t = t
	s.failNext = nil
	if len(s.clients) == 0 {
		return
	}
	for range 30 {
		for _, c := range slices.Clone(s.clients) {
			s.heartbeat(c, false)
			s.settle(c)
		}
		s.work()
		s.advance(5 * time.Second)
		s.Check(t)
	}
	g := s.group()
	if len(s.clients) == 0 {
		return
	}
	if state := g.stateAt(timeline.Latest); state != "Stable" {
		t.Fatalf("the group is %s\n%s", state, strings.Join(s.trace, "\n"))
	}
	want := map[partitionID]bool{}
	var count int
	for _, c := range s.clients {
		m, err := g.member(c.id)
		if err != nil {
			t.Fatal(err)
		}
		target, _ := g.targets.Get(c.id)
		if !c.owned.equal(target) || m.epoch != c.epoch {
			t.Fatalf("%s has %s as of %d and should have %s as of %d", c.id, s.show(c.owned), c.epoch, s.show(target), m.epoch)
		}
		count += target.count()
		for _, id := range s.core.topicIDs(g, m) {
			for p := range s.core.topicSize(id) {
				want[partitionID{id, int32(p)}] = true
			}
		}
	}
	if g.members.Len() == len(s.clients) && count != len(want) {
		t.Fatalf("%d of %d partitions are read", count, len(want))
	}
}

func TestConsumerGroupLife(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &society{machine: newMachine(), t: t}
		s.topics(map[string]int{"orders": 4, "payments": 3})
		if rapid.Bool().Draw(t, "range") {
			s.cfg.Assignors = []string{"range"}
		}
		t.Repeat(map[string]func(*rapid.T){
			"":               s.Check,
			"Join":           s.Join,
			"Heartbeat":      s.Heartbeat,
			"Heartbeat2":     s.Heartbeat,
			"Settle":         s.Settle,
			"Subscribe":      s.Subscribe,
			"Leave":          s.Leave,
			"Crash":          s.Crash,
			"Topics":         s.Topics,
			"FailNextAppend": s.FailNextAppend,
			"Work":           s.Work,
			"Advance":        s.Advance,
			"Reload":         s.Reload,
		})
		s.converge(t)
	})
}

// Whatever is in a log, in whatever order compaction has left it, can be replayed and goes on working.
func TestConsumerReplayTakesAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		m.topics(map[string]int{"orders": 4})
		id := m.world.last["orders"]
		for range rapid.IntRange(1, 20).Draw(t, "records") {
			member := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "member")
			epoch := rapid.Int32Range(-2, 4).Draw(t, "epoch")
			var r Record
			switch rapid.IntRange(0, 6).Draw(t, "kind") {
			case 0:
				r = epochRecord("g", epoch, 1)
			case 1:
				r = (&consumerMember{id: member, topics: []string{"orders"}}).selfRecord("g")
			case 2:
				r = (&consumerMember{
					id: member, epoch: epoch, state: memberState(rapid.SampledFrom([]int8{0, 1, 2, 9}).Draw(t, "state")),
					assigned: partitions{{topic: id, partitions: []int32{rapid.Int32Range(0, 3).Draw(t, "partition")}}}.since(1),
				}).placeRecord("g")
			case 3:
				r = targetRecord("g", member, partitions{{topic: id, partitions: []int32{0}}})
			case 4:
				r = targetEpochRecord("g", epoch, 0)
			case 5:
				r = Record{Key: &message.ConsumerGroupRegularExpressionKey{GroupID: "g", RegularExpression: "o"},
					Value: &message.ConsumerGroupRegularExpressionValue{Topics: []string{"orders"}}}
			default:
				r = Record{Key: &message.ConsumerGroupPartitionMetadataKey{GroupID: "g"}, Value: message.NewConsumerGroupPartitionMetadataValue()}
			}
			if rapid.Bool().Draw(t, "tombstone") {
				r.Value = nil
			}
			_ = m.apply(result{Records: []Record{r}}, -1)
		}
		m.reload()
		s := &society{machine: m, t: t, clients: []*simClient{{id: "c", reads: []string{"orders"}}}}
		for range 3 {
			s.heartbeat(s.clients[0], false)
		}
		m.advance(time.Hour)
		if g, ok := m.core.groups.Get("g"); ok && !g.empty() {
			t.Fatalf("members without life are still there")
		}
	})
}
