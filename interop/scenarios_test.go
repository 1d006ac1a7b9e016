package interop

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/kafka"
)

// scenarioServers says who is asked: both take twice as long, and must come to the same.
var scenarioServers = flag.String("scenarios", "gregor", "run the scenarios of groups against these: gregor, kafka or gregor,kafka")

// lives are the settings of the scenarios: members are missed after a few seconds.
var lives = []string{
	"group.min.session.timeout.ms=1000",
	"group.consumer.min.session.timeout.ms=1000",
	"group.consumer.session.timeout.ms=4000",
	"group.consumer.min.heartbeat.interval.ms=100",
	"group.consumer.heartbeat.interval.ms=300",
}

// member is a member of a group in some client.
type member struct {
	name string
	mu   sync.Mutex // guards the rest
	has  []string   // partitions
	lost []string   // those that it has had to give up, since forget
	err  error
	gone bool

	// leave says goodbye, crash doesn't; stalled it doesn't poll.
	leave, crash, stall, resume func()
}

func (m *member) set(has []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.has = has
}

func (m *member) gaveUp(ps []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = append(m.lost, ps...)
}

func (m *member) failed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *member) partitions() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.has)
}

func (m *member) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = nil
}

func (m *member) losses() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.lost)
}

// memberOptions is what is asked of a member.
type memberOptions struct {
	group        string
	subscription string // topics separated by commas, or ^ and a regular expression
	instance     string
	cooperative  bool
	poll         time.Duration // the longest time between two polls; 0 is long
}

// cast is a client with a protocol: it brings members.
type cast struct {
	name  string
	start func(name string, o memberOptions) *member
	// cannot has the scenarios that there are no means for.
	cannot []string
}

// scene is what a scenario has to do with.
type scene struct {
	*testing.T
	admin *administrator
	cast  cast
	name  string // of its topics and group
	count int
}

// scenarioPatience is how long a group may take to settle; the machine may be slow.
const scenarioPatience = 2 * time.Minute

func (s *scene) member(o memberOptions) *member {
	s.count++
	o.group = s.name
	return s.cast.start(fmt.Sprintf("%s-%d", s.name, s.count), o)
}

// settled waits until the members have all partitions among them, evenly.
func (s *scene) settled(what string, total int, ms ...*member) {
	s.Helper()
	begun := time.Now()
	for {
		all := map[string]bool{}
		n, least, most := 0, total, 0
		var picture []string
		for _, m := range ms {
			m.mu.Lock()
			has, err := slices.Clone(m.has), m.err
			m.mu.Unlock()
			if err != nil {
				s.Fatalf("%s: %s: %v", what, m.name, err)
			}
			for _, p := range has {
				all[p] = true
			}
			n, least, most = n+len(has), min(least, len(has)), max(most, len(has))
			picture = append(picture, fmt.Sprintf("%s has %v", m.name, has))
		}
		if n == total && len(all) == total && most-least <= 1 {
			s.Logf("%s after %v", what, time.Since(begun).Round(time.Millisecond))
			return
		}
		if time.Since(begun) > scenarioPatience {
			s.Fatalf("%s: not after %v\n%s", what, scenarioPatience, strings.Join(picture, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// grow gives a topic more partitions.
func (a *administrator) grow(tb testing.TB, topic string, partitions int32) {
	tb.Helper()
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.Version, req.TimeoutMillis = 2, 20000
	req.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: topic, Count: partitions}}
	for _, t := range a.must(tb, req).(*kmsg.CreatePartitionsResponse).Topics {
		if t.ErrorCode != 0 {
			tb.Fatalf("grow %s: error %d", t.Topic, t.ErrorCode)
		}
	}
}

// scenarios are what members do.
var scenarios = []struct {
	name string
	run  func(s *scene)
}{
	{"join and leave", func(s *scene) {
		s.admin.create(s.T, s.name, 6)
		o := memberOptions{subscription: s.name}
		x := s.member(o)
		s.settled("one", 6, x)
		y, z := s.member(o), s.member(o)
		s.settled("three", 6, x, y, z)
		y.leave()
		s.settled("two", 6, x, z)
		x.leave()
		s.settled("the last", 6, z)
		z.leave()
	}},
	{"crash", func(s *scene) {
		s.admin.create(s.T, s.name, 4)
		o := memberOptions{subscription: s.name}
		x, y := s.member(o), s.member(o)
		s.settled("two", 4, x, y)
		y.crash()
		s.settled("the other is missed", 4, x)
		x.leave()
	}},
	{"static restart", func(s *scene) {
		s.admin.create(s.T, s.name, 4)
		x := s.member(memberOptions{subscription: s.name, instance: "i1"})
		y := s.member(memberOptions{subscription: s.name, instance: "i2"})
		s.settled("two", 4, x, y)
		had := y.partitions()
		x.forget()
		y.leave()
		again := s.member(memberOptions{subscription: s.name, instance: "i2"})
		s.settled("it is back", 4, x, again)
		if got := again.partitions(); !slices.Equal(got, had) {
			s.Errorf("it has %v and had %v", got, had)
		}
		if lost := x.losses(); len(lost) > 0 {
			s.Errorf("the other one had to give up %v meanwhile", lost)
		}
		x.leave()
		again.leave()
	}},
	{"no poll for too long", func(s *scene) {
		s.admin.create(s.T, s.name, 4)
		o := memberOptions{subscription: s.name, poll: 5 * time.Second}
		x, y := s.member(o), s.member(o)
		s.settled("two", 4, x, y)
		y.stall()
		s.settled("one that polls", 4, x)
		y.resume()
		s.settled("it polls again", 4, x, y)
		x.leave()
		y.leave()
	}},
	{"topic growth", func(s *scene) {
		s.admin.create(s.T, s.name, 3)
		o := memberOptions{subscription: s.name}
		x, y := s.member(o), s.member(o)
		s.settled("three partitions", 3, x, y)
		s.admin.grow(s.T, s.name, 7)
		s.settled("seven partitions", 7, x, y)
		x.leave()
		y.leave()
	}},
	{"regular expression", func(s *scene) {
		s.admin.create(s.T, s.name+".a", 2)
		o := memberOptions{subscription: "^" + s.name + `\..*`}
		x, y := s.member(o), s.member(o)
		s.settled("one topic", 2, x, y)
		s.admin.create(s.T, s.name+".b", 4)
		s.admin.create(s.T, "not."+s.name, 4)
		s.settled("a topic that matches", 6, x, y)
		x.leave()
		y.leave()
	}},
	{"cooperative", func(s *scene) {
		s.admin.create(s.T, s.name, 6)
		o := memberOptions{subscription: s.name, cooperative: true}
		x, y := s.member(o), s.member(o)
		s.settled("two", 6, x, y)
		x.forget()
		y.forget()
		z := s.member(o)
		s.settled("three", 6, x, y, z)
		if lost := slices.Concat(x.losses(), y.losses()); len(lost) != 2 {
			s.Errorf("%v had to be given up for the third member's two", lost)
		}
		x.leave()
		y.leave()
		z.leave()
	}},
}

// TestGroupScenarios runs every scenario with every client and protocol: Kafka's Java client, librdkafka and franz-go with both,
// sarama with the one that it has.
func TestGroupScenarios(t *testing.T) {
	for server := range strings.SplitSeq(*scenarioServers, ",") {
		t.Run(server, func(t *testing.T) {
			var addr string
			if server == "kafka" {
				n, _ := startKafka(t, lives...)
				addr = n.Addr
			} else {
				n, _ := startGregor(t, lives...)
				addr = n.Addr
			}
			a := admin(t, addr)
			a.create(t, "first", 1)
			// All at once, however few the processors: they mostly wait.
			var all sync.WaitGroup
			for _, c := range casts(t, addr) {
				all.Go(func() {
					t.Run(c.name, func(t *testing.T) {
						for i, sc := range scenarios {
							t.Run(sc.name, func(t *testing.T) {
								if slices.Contains(c.cannot, sc.name) {
									t.Skip("not a thing that this client does")
								}
								s := &scene{T: t, admin: admin(t, addr), cast: c, name: fmt.Sprintf("%s.%d", c.name, i)}
								sc.run(s)
							})
						}
					})
				})
			}
			all.Wait()
		})
	}
}

// casts are the clients, each with a process of its own or in this one.
func casts(t *testing.T, addr string) []cast {
	kafka.Setup(t)
	classes := compileMembers(t)
	javaStage := func() *stage {
		return newStage(t, kafka.Command(t.Context(), classes, "160m", "Members", addr))
	}
	bin := filepath.Join(kafka.Root(), ".cache", "interop", "venv", "bin", "python")
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("no confluent-kafka for Python (scripts/setup-interop installs it): %v", err)
	}
	pythonStage := func() *stage {
		return newStage(t, exec.CommandContext(t.Context(), bin, filepath.Join(kafka.Root(), "interop", "python", "members.py"), addr))
	}
	// The two protocols share a process, and members that are to crash have their own.
	java, python := sync.OnceValue(javaStage), sync.OnceValue(pythonStage)
	settings := func(o memberOptions, protocol, cooperative string) []string {
		s := []string{"group.protocol=" + protocol}
		if protocol == "classic" {
			s = append(s, "session.timeout.ms=4000", "heartbeat.interval.ms=300")
			if o.cooperative {
				s = append(s, "partition.assignment.strategy="+cooperative)
			}
		}
		if o.instance != "" {
			s = append(s, "group.instance.id="+o.instance)
		}
		if o.poll > 0 {
			s = append(s, fmt.Sprintf("max.poll.interval.ms=%d", o.poll.Milliseconds()))
		}
		return s
	}
	of := func(common func() *stage, own func() *stage, protocol, cooperative string) func(string, memberOptions) *member {
		return func(name string, o memberOptions) *member {
			// The second of a group that crashes: it gets a process that can be killed.
			if strings.HasSuffix(name, ".1-2") {
				st := own()
				m := st.start(name, o, settings(o, protocol, cooperative))
				m.crash = st.kill
				return m
			}
			return common().start(name, o, settings(o, protocol, cooperative))
		}
	}
	const noPoll = "no poll for too long"
	return []cast{
		{name: "java-classic", start: of(java, javaStage, "classic", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor")},
		{name: "java-consumer", start: of(java, javaStage, "consumer", "")},
		{name: "librdkafka-classic", start: of(python, pythonStage, "classic", "cooperative-sticky")},
		{name: "librdkafka-consumer", start: of(python, pythonStage, "consumer", "")},
		{name: "franz-go-classic", start: franzMember(t, addr, false), cannot: []string{noPoll}},
		// Its static members can't leave: the heartbeat with which they would lacks their name, and the broker refuses it.
		{name: "franz-go-consumer", start: franzMember(t, addr, true), cannot: []string{noPoll, "static restart"}},
		{name: "sarama", start: saramaMembers(t, addr), cannot: []string{noPoll, "regular expression", "cooperative"}},
	}
}

func compileMembers(tb testing.TB) string {
	tb.Helper()
	classes := filepath.Join(kafka.Root(), ".cache", "interop", "members")
	if err := os.MkdirAll(classes, 0o755); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command("javac", "-d", classes, "-cp", filepath.Join(kafka.Home(), "libs", "*"), filepath.Join(kafka.Root(), "interop", "java", "Members.java"))
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("compile the Java members (scripts/setup-interop installs a JDK): %v\n%s", err, out)
	}
	return classes
}

// stage is a process with members in it, which is spoken to in lines.
type stage struct {
	cmd     *exec.Cmd
	mu      sync.Mutex // guards in and members
	in      io.Writer
	members map[string]*member
}

func newStage(tb testing.TB, cmd *exec.Cmd) *stage {
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	st := &stage{cmd: cmd, in: in, members: map[string]*member{}}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			st.hear(lines.Text())
		}
	}()
	tb.Cleanup(func() {
		st.kill()
		<-heard
		cmd.Wait()
	})
	return st
}

func (st *stage) kill() { st.cmd.Process.Kill() }

func (st *stage) say(words ...string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	fmt.Fprintln(st.in, strings.Join(words, " "))
}

func (st *stage) hear(line string) {
	word, rest, _ := strings.Cut(line, " ")
	name, rest, _ := strings.Cut(rest, " ")
	st.mu.Lock()
	m := st.members[name]
	st.mu.Unlock()
	if m == nil {
		return
	}
	var ps []string
	if rest != "-" {
		ps = strings.Split(rest, ",")
	}
	switch word {
	case "has":
		m.set(ps)
	case "lost":
		m.gaveUp(ps)
	case "error":
		m.failed(errors.New(rest))
	case "gone":
		m.set(nil)
		m.mu.Lock()
		m.gone = true
		m.mu.Unlock()
	}
}

func (st *stage) start(name string, o memberOptions, settings []string) *member {
	m := &member{name: name}
	m.leave = func() {
		st.say("leave", name)
		for begun := time.Now(); time.Since(begun) < scenarioPatience; time.Sleep(20 * time.Millisecond) {
			m.mu.Lock()
			gone := m.gone
			m.mu.Unlock()
			if gone {
				return
			}
		}
	}
	m.stall = func() { st.say("stall", name) }
	m.resume = func() { st.say("resume", name) }
	st.mu.Lock()
	st.members[name] = m
	st.mu.Unlock()
	st.say(append([]string{"start", name, o.group, o.subscription}, settings...)...)
	return m
}

// cable is a dialer whose connections can be cut for good: a member behind it is gone without a word.
type cable struct {
	mu    sync.Mutex // guards the rest
	cut   bool
	conns []net.Conn
}

func (c *cable) Dial(network, addr string) (net.Conn, error) {
	conn, err := net.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		conn.Close()
		return nil, errors.New("the cable is cut")
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

func (c *cable) sever() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
	for _, conn := range c.conns {
		conn.Close()
	}
}

func franzMember(t *testing.T, addr string, consumer bool) func(string, memberOptions) *member {
	return func(name string, o memberOptions) *member {
		m := &member{name: name}
		wire := &cable{}
		var mu sync.Mutex // guards has
		has := map[string]bool{}
		change := func(ps map[string][]int32, add bool) {
			mu.Lock()
			defer mu.Unlock()
			var names []string
			for topic, parts := range ps {
				for _, p := range parts {
					names = append(names, fmt.Sprintf("%s-%d", topic, p))
				}
			}
			for _, n := range names {
				if add {
					has[n] = true
				} else {
					delete(has, n)
				}
			}
			var all []string
			for n := range has {
				all = append(all, n)
			}
			slices.Sort(all)
			m.set(all)
			if !add {
				m.gaveUp(names)
			}
		}
		opts := []kgo.Opt{kgo.ClientID(name), kgo.ConsumerGroup(o.group), kgo.MetadataMaxAge(500 * time.Millisecond), kgo.MetadataMinAge(100 * time.Millisecond),
			kgo.SessionTimeout(4 * time.Second), kgo.HeartbeatInterval(300 * time.Millisecond),
			kgo.Dialer(func(_ context.Context, network, addr string) (net.Conn, error) { return wire.Dial(network, addr) }),
			kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { change(ps, true) }),
			kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { change(ps, false) }),
			kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { change(ps, false) })}
		switch {
		case consumer:
			opts = append(opts, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
		case o.cooperative:
			opts = append(opts, kgo.Balancers(kgo.CooperativeStickyBalancer()))
		default:
			opts = append(opts, kgo.Balancers(kgo.RangeBalancer()))
		}
		if o.instance != "" {
			opts = append(opts, kgo.InstanceID(o.instance))
		}
		if regex, ok := strings.CutPrefix(o.subscription, "^"); ok {
			opts = append(opts, kgo.ConsumeRegex(), kgo.ConsumeTopics("^"+regex+"$"))
		} else {
			opts = append(opts, kgo.ConsumeTopics(strings.Split(o.subscription, ",")...))
		}
		c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addr)}, opts...)...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
		// Who has crashed would try for long to say goodbye.
		t.Cleanup(func() { wire.sever(); end(); go c.Close() })
		go func() {
			for ctx.Err() == nil {
				c.PollFetches(ctx)
			}
		}()
		m.leave = func() {
			if err := c.LeaveGroupContext(ctx); err != nil {
				t.Logf("%s leaves: %v", name, err)
			}
			end()
			c.Close()
		}
		m.crash = func() { wire.sever(); end() }
		return m
	}
}

// saramaGroupMember tells a member what a session of sarama's brings.
type saramaGroupMember struct{ m *member }

func (g saramaGroupMember) Setup(s sarama.ConsumerGroupSession) error {
	var all []string
	for topic, parts := range s.Claims() {
		for _, p := range parts {
			all = append(all, fmt.Sprintf("%s-%d", topic, p))
		}
	}
	slices.Sort(all)
	g.m.set(all)
	return nil
}

func (g saramaGroupMember) Cleanup(sarama.ConsumerGroupSession) error {
	g.m.gaveUp(g.m.partitions())
	g.m.set(nil)
	return nil
}

func (g saramaGroupMember) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case _, ok := <-claim.Messages():
			if !ok {
				return nil
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func saramaMembers(t *testing.T, addr string) func(string, memberOptions) *member {
	return func(name string, o memberOptions) *member {
		m := &member{name: name}
		wire := &cable{}
		cfg := saramaConfig()
		cfg.ClientID = name
		cfg.Net.Proxy.Enable, cfg.Net.Proxy.Dialer = true, wire
		cfg.Consumer.Group.Session.Timeout, cfg.Consumer.Group.Heartbeat.Interval = 4*time.Second, 300*time.Millisecond
		cfg.Consumer.Group.InstanceId = o.instance
		cfg.Metadata.RefreshFrequency = 500 * time.Millisecond
		g, err := sarama.NewConsumerGroup([]string{addr}, o.group, cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				// It comes back after each rebalance, and with errors that pass.
				_ = g.Consume(ctx, strings.Split(o.subscription, ","), saramaGroupMember{m})
			}
		}()
		once := sync.OnceFunc(func() {
			end()
			<-ended
			g.Close()
		})
		m.leave = once
		m.crash = func() { wire.sever(); end() }
		t.Cleanup(func() { wire.sever(); end(); go once() })
		return m
	}
}
