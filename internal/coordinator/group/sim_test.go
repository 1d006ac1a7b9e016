package group

import (
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	simSeed  = flag.Uint64("seed", 0, "run this seed of the simulation only")
	simFrom  = flag.Uint64("from", 1, "the first seed of the simulation")
	simSeeds = flag.Uint64("seeds", 150, "how many seeds of the simulation to run")
	simPrint = flag.Bool("log", false, "print what happens, with -seed")
)

// population sets groups, topics and members up, and lets members come, go and change.
func (s *simulation) population() {
	crowd := s.seed%97 == 0
	sizes := map[string]int{}
	for range 1 + s.rand.IntN(3) {
		s.made++
		sizes[fmt.Sprintf("t%d", s.made)] = 1 + s.rand.IntN(8)
	}
	if crowd {
		sizes["t1"] = 120
	}
	s.setTopics(sizes)
	s.elect(s.rand.IntN(len(s.nodes)))
	for i := range 1 + s.rand.IntN(3) {
		g := &simGroup{id: fmt.Sprintf("g%d", i), cooperative: s.chance(50), counted: map[int32]string{}}
		switch s.rand.IntN(4) {
		case 0:
			g.classic = true
		case 1:
			g.classic, g.modern = true, true
		default:
			g.modern = true
		}
		s.groups = append(s.groups, g)
		n := s.rand.IntN(6)
		if crowd && i == 0 {
			n = 100 + s.rand.IntN(150)
		}
		for range n {
			s.after(s.between(0, 15*time.Second), func() { s.join(g, nil) })
		}
	}
	s.after(s.between(5*time.Second, 10*time.Second), s.faults)
	s.after(s.between(5*time.Second, 10*time.Second), s.lives)
}

// join brings a new member; after another, it is one that takes its place.
func (s *simulation) join(g *simGroup, after *peer) {
	s.named++
	p := &peer{s: s, group: g, name: fmt.Sprintf("c%d", s.named), parts: map[partitionID]*simPart{}, node: s.rand.IntN(len(s.nodes))}
	if after != nil {
		p.instance = after.instance
	} else if s.chance(30) {
		g.statics++
		id := fmt.Sprintf("i%d", g.statics)
		p.instance = &id
	}
	modern := g.modern && (!g.classic || s.chance(50))
	s.subscribe(p, modern)
	if modern {
		p.id = fmt.Sprintf("m%d", s.named)
		p.self = &modernMember{peer: p}
	} else {
		m := &classicSim{peer: p}
		p.self = m
		if after != nil && after.reads != nil {
			// A static member that comes back is taken for its former self: in the classic protocol nobody assigns anew for it.
			p.reads = after.reads
			if former, ok := after.self.(*classicSim); ok && former.known != nil {
				p.reads, m.known = former.known, former.known
			}
		}
	}
	s.print("%s joins %s, instance %v, reads %v and %q, modern %v", p.name, g.id, p.instance != nil, p.reads, p.regex, modern)
	s.peers = append(s.peers, p.self)
	p.later(0, p.self.tick)
}

// subscribe draws what a member reads, topics that are yet to come among it.
func (s *simulation) subscribe(p *peer, modern bool) {
	p.reads, p.regex = nil, ""
	for i := range s.made + 1 {
		if i == 0 || s.chance(70) {
			p.reads = append(p.reads, fmt.Sprintf("t%d", i+1))
		}
	}
	if modern && s.chance(25) {
		p.regex = []string{"t[2-4]", "t.*", "x"}[s.rand.IntN(3)]
		if s.chance(50) {
			p.reads = nil
		}
	}
}

// lives draws what happens to a member next.
func (s *simulation) lives() {
	if s.healed {
		return
	}
	s.after(s.between(500*time.Millisecond, 8*time.Second), s.lives)
	if len(s.peers) == 0 || s.chance(30) && len(s.peers) < 12 {
		s.join(s.groups[s.rand.IntN(len(s.groups))], nil)
		return
	}
	m := s.peers[s.rand.IntN(len(s.peers))]
	p := m.base()
	switch s.rand.IntN(6) {
	case 0:
		s.print("%s leaves", p.name)
		m.leave()
	case 1:
		s.print("%s crashes", p.name)
		p.die()
		if p.instance != nil || s.chance(50) {
			s.after(s.between(0, 15*time.Second), func() { s.join(p.group, p) })
		}
	case 2, 3:
		p.paused = s.now() + s.between(0, 25*time.Second)
		s.print("%s pauses until %v", p.name, p.paused)
	case 4, 5:
		s.print("%s changes what it reads", p.name)
		switch m := m.(type) {
		case *modernMember:
			s.subscribe(p, true)
			m.unsure = true
		case *classicSim:
			s.subscribe(p, false)
			m.again = true
		}
	}
}

// run lives through a seed.
func (s *simulation) run() error {
	s.population()
	s.runUntil(s.between(20*time.Second, 90*time.Second))
	s.heal()
	const rest, patience = 40 * time.Second, 6 * time.Minute
	end := s.now() + patience
	s.runUntil(s.now() + rest)
	for s.failed == nil {
		missing := s.converged()
		if missing == "" {
			break
		}
		if s.now() > end {
			s.fail("after healing: %s", missing)
		}
		s.runUntil(s.now() + 5*time.Second)
	}
	if s.failed == nil {
		s.audit()
		s.checkAnswered()
	}
	s.stats.failures = s.log.failures
	for _, n := range s.nodes {
		n.c.Close()
	}
	synctest.Wait()
	s.mu.Lock()
	for _, a := range s.inbox {
		a.r.answered = true
	}
	s.mu.Unlock()
	if i := slices.IndexFunc(s.asked, func(r *simRequest) bool { return !r.answered }); i >= 0 {
		s.fail("request %d (%s) was not even answered by closing", i, s.asked[i].what)
	}
	return s.failed
}

// runSim runs a seed in a bubble. What panics is an error of the seed.
func runSim(t *testing.T, seed uint64, out io.Writer) (stats simStats, err error) {
	synctest.Test(t, func(*testing.T) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		s := newSimulation(seed, out)
		err = s.run()
		stats = s.stats
	})
	return stats, err
}

// TestSim runs many seeds of the simulation, on all processors.
//
//	go test ./internal/coordinator/group -run TestSim -seeds 20000       many
//	go test ./internal/coordinator/group -run TestSim -seed 4711 -log    one again, with what happens
func TestSim(t *testing.T) {
	if *simSeed != 0 {
		var out io.Writer
		if *simPrint {
			out = os.Stderr
		}
		stats, err := runSim(t, *simSeed, out)
		if err != nil {
			t.Fatalf("seed %d: %v", *simSeed, err)
		}
		t.Logf("%+v", stats)
		return
	}
	var (
		next  atomic.Uint64
		mu    sync.Mutex // guards total, fails
		total simStats
		fails int
		begin = time.Now()
	)
	next.Store(*simFrom)
	t.Run("seeds", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for {
					seed := next.Add(1) - 1
					if seed >= *simFrom+*simSeeds {
						return
					}
					stats, err := runSim(t, seed, nil)
					mu.Lock()
					total.add(stats)
					if err != nil {
						fails++
						t.Errorf("seed %d: %v", seed, err)
					}
					stop := fails > 10
					mu.Unlock()
					if stop {
						return
					}
				}
			})
		}
	})
	t.Logf("%d seeds, %.0f a second: %+v", *simSeeds, float64(*simSeeds)/time.Since(begin).Seconds(), total)
	if *simSeeds >= 100 && (total.moves == 0 || total.cuts == 0 || total.failures == 0 || total.timeouts == 0 || total.rebalances == 0 ||
		total.fenced == 0 || total.upgrades == 0 || total.downgrades == 0 || total.refused == 0) {
		t.Error("the runs did not reach everything that they should")
	}
}

// A seed gives the same run every time.
func TestSimReplays(t *testing.T) {
	for seed := uint64(1); seed <= 4; seed++ {
		run := func() uint64 {
			h := fnv.New64a()
			if _, err := runSim(t, seed, h); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			return h.Sum64()
		}
		if a, b := run(), run(); a != b {
			t.Errorf("seed %d: %x, and %x", seed, a, b)
		}
	}
}

// Seeds that have found something once. What they did then they may not do any more when the simulation has changed.
func TestSimRegressions(t *testing.T) {
	for _, seed := range []uint64{
		5354,  // a join that came twice was assigned partitions the second time, and nobody was told
		10825, // the leader of a classic group didn't see that a topic had come while it was away
		16621, // the log was compacted before the reference had seen it
	} {
		if _, err := runSim(t, seed, nil); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}
