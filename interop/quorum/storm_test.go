package quorum

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestStorm: nodes of gregor that are broker and controller are killed, frozen, cut off and cut from each other, in one direction
// or both, so that connections are refused or silent, while idempotent producers write with acks=all and groups read. Whatever
// happens, what was acknowledged is there once and in order, nobody ever sees another record at an offset, and in the end all
// replicas hold the same bytes. QUORUM_ROUNDS is for how long, QUORUM_SEED repeats a run, as far as processes can be made to.
func TestStorm(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if s := os.Getenv("QUORUM_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	rounds, _ := strconv.Atoi(os.Getenv("QUORUM_ROUNDS"))
	if rounds == 0 {
		rounds = 6
	}
	t.Logf("QUORUM_SEED=%d QUORUM_ROUNDS=%d", seed, rounds)
	const partitions = 6
	c := newMeshed(t, []kind{gregorKind, gregorKind, gregorKind}, "min.insync.replicas=2", "offsets.topic.replication.factor=3", "log.cleaner.enable=false",
		"replica.lag.time.max.ms=3000", "group.consumer.session.timeout.ms=6000", "group.consumer.min.session.timeout.ms=6000", "group.consumer.heartbeat.interval.ms=500",
		"group.consumer.min.heartbeat.interval.ms=500")
	s := &storm{cluster: c, rng: rand.New(rand.NewPCG(seed, 0))}
	c.run(c.members...)
	c.create("storm", c.rotated(partitions), nil)
	s.load = c.load("storm", loadOptions{partitions: partitions, producers: 2, inFlight: 4, pace: 5 * time.Millisecond, groups: []string{"older", "next"}, members: 2})
	s.load.progress(20)
	for round := range rounds {
		begin := time.Now()
		what := s.round(round)
		s.load.progress(5)
		c.logf("round %d: %s: all partitions are written to after %v", round, what, time.Since(begin).Round(time.Millisecond))
		if s.synced = s.rng.IntN(2) == 0 || round == rounds-1; s.synced {
			c.inSync("storm", "__consumer_offsets")
			c.logf("round %d: all in sync after %v", round, time.Since(begin).Round(time.Millisecond))
		}
		if s.rng.IntN(5) == 0 {
			s.load.groups[s.rng.IntN(2)].change()
		}
	}
	s.load.finish()
	c.inSync("storm", "__consumer_offsets")
	hw := int64(-1)
	c.await("a high watermark", func() (string, bool) {
		q, _, ok := c.quorum()
		hw = q.HighWatermark
		return "none is known", ok && hw >= 0
	})
	c.caughtUp(c.members...)
	for _, m := range c.members {
		m.kill()
	}
	c.sameReplicas("storm", partitions)
	c.sameReplicas("__consumer_offsets", 2)
	c.compareDirectories(hw)
}

// storm decides what happens.
type storm struct {
	*cluster
	rng    *rand.Rand
	load   *load
	synced bool // all replicas were in sync after the last round
	kills  int
}

// pause is how long a fault lasts: mostly shorter than the time after which a node is given up, sometimes longer.
func (s *storm) pause() time.Duration {
	longest := 1500
	if s.rng.IntN(3) == 0 {
		longest = 6000
	}
	return time.Duration(s.rng.IntN(longest)) * time.Millisecond
}

// victim is any node, or the active controller.
func (s *storm) victim() *member {
	m := s.members[s.rng.IntN(len(s.members))]
	if s.rng.IntN(3) == 0 {
		m, _ = s.leader()
	}
	return m
}

// round makes a fault, lets it last, and ends it.
func (s *storm) round(round int) (what string) {
	switch s.rng.IntN(10) {
	case 0, 1:
		m := s.victim()
		if s.synced {
			s.kill(m)
		} else {
			m.kill()
		}
		time.Sleep(s.pause())
		s.run(m)
		return fmt.Sprintf("kill %s", m)
	case 2:
		// A crash of more than one: nothing is written meanwhile, and nothing lost.
		n := 2 + s.rng.IntN(2)
		order := s.rng.Perm(len(s.members))[:n]
		for _, i := range order {
			s.members[i].kill()
		}
		for _, i := range order {
			s.members[i].launch()
			time.Sleep(s.pause() / 4)
		}
		for _, i := range order {
			s.members[i].proc.Await(s.tb)
		}
		return fmt.Sprintf("kill %d nodes", n)
	case 3:
		m := s.victim()
		m.stop()
		time.Sleep(s.pause() / 2)
		s.run(m)
		return fmt.Sprintf("stop %s", m)
	case 4, 5:
		m, pause := s.victim(), s.pause()
		s.freeze(m)
		time.Sleep(pause)
		s.thaw(m)
		return fmt.Sprintf("freeze %s for %v", m, pause)
	default:
		cuts, what := s.cuts()
		s.mesh.cut(cuts)
		s.disturbed.Add(1)
		pause := s.pause()
		time.Sleep(pause)
		var victim *member
		if s.rng.IntN(4) == 0 {
			victim = s.members[s.rng.IntN(len(s.members))]
			victim.kill()
			time.Sleep(s.pause() / 4)
			s.mesh.cut(nil)
			s.run(victim)
			what += fmt.Sprintf(", kill %s", victim)
		}
		s.mesh.cut(nil)
		return fmt.Sprintf("%s, for %v", what, pause)
	}
}

// kill kills a node that the others can do without, and waits until they do: until a topic is created, and until every producer
// has had a record acknowledged in every partition.
func (s *storm) kill(m *member) {
	s.tb.Helper()
	active, _ := s.leader()
	other := s.members[m.id%int32(len(s.members))]
	s.kills++
	name := fmt.Sprintf("kill-%d", s.kills)
	begin := time.Now()
	m.kill()
	created := make(chan time.Duration, 1)
	go func() {
		for end := begin.Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if code, _, err := createTopic(other.addr, name, nil); err == nil && (code == noError || code == topicAlreadyExists) {
				break
			}
		}
		created <- time.Since(begin)
	}()
	s.load.progress(1)
	written := time.Since(begin)
	s.logf("%s is dead, the active controller was %d: a topic is created after %v, all partitions are written to after %v", m, active.id,
		(<-created).Round(time.Millisecond), written.Round(time.Millisecond))
}

// cuts are cuts of a node from all others, or of one from another.
func (s *storm) cuts() (cuts map[lane]fault, what string) {
	f := fault(1 + s.rng.IntN(3))
	a := s.members[s.rng.IntN(len(s.members))]
	if s.rng.IntN(3) == 0 {
		a = s.victim()
	}
	others := slices.DeleteFunc(slices.Clone(s.members), func(m *member) bool { return m == a })
	whom := "all others"
	if s.rng.IntN(2) == 0 {
		others = others[:1]
		if s.rng.IntN(2) == 0 {
			others = []*member{s.members[a.id%int32(len(s.members))]}
		}
		whom = others[0].String()
	}
	listeners, kinds := []string{"INTERNAL", "CONTROLLER"}, "everything"
	switch s.rng.IntN(4) {
	case 0:
		listeners, kinds = listeners[:1], "brokers"
	case 1:
		listeners, kinds = listeners[1:], "controllers"
	}
	direction := s.rng.IntN(4) // 0 and 1: both
	cuts = map[lane]fault{}
	for _, o := range others {
		for _, l := range listeners {
			if direction != 2 {
				cuts[lane{a.id, o.id, l}] = f
			}
			if direction != 3 {
				cuts[lane{o.id, a.id, l}] = f
			}
		}
	}
	withClients := s.rng.IntN(4) == 0
	if withClients {
		cuts[lane{clients, a.id, "PLAINTEXT"}] = f
		if s.rng.IntN(2) == 0 {
			cuts[lane{a.id, clients, "PLAINTEXT"}] = f
		}
	}
	return cuts, fmt.Sprintf("cut %s between %s and %s (%v, direction %d, clients %v)", kinds, a, whom, f, direction, withClients)
}
