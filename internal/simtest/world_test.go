package simtest

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"gregor/internal/config"
	"gregor/internal/message"
	"gregor/internal/raft"
	"gregor/internal/sim"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// violation is what a checker found.
type violation string

func (v violation) Error() string { return string(v) }

// world is one simulated cluster.
type world struct {
	*sim.Loop
	seed  uint64
	links sim.Links
	nodes []*node // by id-1
	out   io.Writer

	codec    bool // requests and responses go through their bytes
	static   []raft.Voter
	dynamic  bool
	bootMV   int16
	elr      int16
	evil     float64
	slowSync time.Duration
	length   time.Duration // of the part with faults
	batchMax int           // controller.max.records.per.batch
	quorum   bool          // more of elections and voters, and less of what controllers do
	healing  bool

	// Of the second level.
	data                        bool
	power                       float64 // the part of crashes that are power failures
	anyLoss                     bool    // power fails also where it may cost what was acknowledged
	uncleanTopics, uncleanAsked bool    // some topics allow unclean elections, administrators ask for them
	segmentBytes, fetchBytes    int32
	lag, checkpoints            time.Duration
	quiet                       bool // no more traffic
	problem                     string
	pids                        int64
	values                      uint64
	ledger                      *ledger
	admin                       *admin
	consumers                   []*consumer

	ref    *reference
	facts  facts
	client *client
	stats  stats
}

// stats is what a run reached.
type stats struct {
	elections, activations, reverts, voterChanges, installs, snapshots, trims, truncations, crashes, replies int
	appended, produced, acked, consumed, sessions, resets, unclean, powerLosses                              int
	committed                                                                                                int64
}

func (s *stats) add(o stats) {
	s.elections += o.elections
	s.activations += o.activations
	s.reverts += o.reverts
	s.voterChanges += o.voterChanges
	s.installs += o.installs
	s.snapshots += o.snapshots
	s.trims += o.trims
	s.truncations += o.truncations
	s.crashes += o.crashes
	s.replies += o.replies
	s.committed += o.committed
	s.appended += o.appended
	s.produced += o.produced
	s.acked += o.acked
	s.consumed += o.consumed
	s.sessions += o.sessions
	s.resets += o.resets
	s.unclean += o.unclean
	s.powerLosses += o.powerLosses
}

func (s stats) String() string {
	text := fmt.Sprintf("%d records committed, %d replies; %d elections, %d activations, %d reverts, %d voter changes, %d snapshots made and %d fetched, %d logs cut behind, %d truncations, %d crashes",
		s.committed, s.replies, s.elections, s.activations, s.reverts, s.voterChanges, s.snapshots, s.installs, s.trims, s.truncations, s.crashes)
	if s.produced > 0 {
		text += fmt.Sprintf("; %d batches produced, %d appended, %d acknowledged, %d consumed, %d producers begun anew, %d power failures, %d unclean elections, history begun anew %d times",
			s.produced, s.appended, s.acked, s.consumed, s.sessions, s.powerLosses, s.unclean, s.resets)
	}
	return text
}

const (
	clusterID = "sim"
	dataDir   = "/d"
	listener  = "CONTROLLER"

	sessionTimeout = 600 * time.Millisecond
)

// start is what all clocks show at the beginning.
var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

var brokerConfig = func() *config.Broker {
	b, err := config.Load(config.NewProperties(map[string]string{
		"process.roles": "broker,controller", "node.id": "1", "controller.listener.names": listener,
		"controller.quorum.voters": "1@localhost:9093", "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
		"advertised.listeners": "PLAINTEXT://localhost:9092",
	}))
	must(err)
	return b
}()

// emptyWorld has no nodes. What happens in it is written to out, unless that is nil.
func emptyWorld(seed uint64, out io.Writer) *world {
	w := &world{Loop: sim.NewLoop(seed), seed: seed, out: out}
	w.ref = newReference(w)
	w.facts.init()
	w.codec = seed%8 == 3
	w.links = sim.Links{Loop: w.Loop}
	w.client = &client{w: w, kept: map[string]uuid.UUID{}, deleted: map[string]bool{}}
	return w
}

// newWorld makes a cluster as the seed says.
func newWorld(seed uint64, out io.Writer) *world {
	w := emptyWorld(seed, out)
	w.slowSync = pick(w, time.Millisecond, 5*time.Millisecond, 60*time.Millisecond)
	w.evil = pick(w, 0, 0.01, 0.05, 0.15)
	w.links.Evil, w.links.Latency = w.evil, 300*time.Microsecond
	w.length = pick(w, time.Second, time.Second, 1500*time.Millisecond, 4*time.Second)
	if w.quorum = w.Chance(0.3); w.quorum {
		w.length = 5 * time.Second
	}
	w.batchMax = pick(w, 2, 2, 5, 10_000)
	w.bootMV = pick[int16](w, 33, 33, 33, 30, 24, 13, 7)
	if w.bootMV >= 24 {
		w.elr = int16(w.Rand.IntN(2))
	}
	voters, observers := pick(w, 1, 2, 3, 3, 3, 3, 4, 5, 5, 7), w.Rand.IntN(3)
	w.dynamic = !w.Chance(0.25)
	brokers := 0
	for i := range voters + observers {
		n := w.addNode(i < voters)
		n.controller = !n.observer || w.dynamic && (w.quorum || w.Chance(0.5))
		n.broker = !w.quorum && (n.observer || w.Chance(0.6)) || i == voters-1 && brokers == 0
		if n.broker {
			brokers++
		}
	}
	w.logf("seed %d: %d voters, %d observers, %d brokers, dynamic %v, evil %.2f, metadata.version %d, elr %d, at most %d records a batch",
		seed, voters, observers, brokers, w.dynamic, w.evil, w.bootMV, w.elr, w.batchMax)
	w.begin()
	return w
}

// addNode adds a node, whose roles the caller sets.
func (w *world) addNode(voter bool) *node {
	n := &node{w: w, id: int32(len(w.nodes) + 1), fuse: -1, disk: vfs.NewMem(), observer: !voter}
	n.key = raft.ReplicaKey{ID: n.id, DirectoryID: uuid.UUID{0: 1, 8: 1, 15: byte(n.id)}}
	n.ep = raft.Endpoint{Name: listener, Host: "node", Port: uint16(9000 + n.id)}
	n.rate = 0.95 + 0.1*w.Rand.Float64()
	n.disk.SetClock(func() time.Time { return start })
	w.nodes = append(w.nodes, n)
	if voter {
		v := raft.Voter{ReplicaKey: n.key, Endpoints: []raft.Endpoint{n.ep}, KRaftVersions: raft.KRaftVersions}
		if !w.dynamic {
			v.DirectoryID = uuid.Zero
		}
		w.static = append(w.static, v)
	}
	return n
}

// begin formats and starts the nodes.
func (w *world) begin() {
	for _, n := range w.nodes {
		o := raft.BootstrapOptions{FS: n.disk, Dir: dataDir, Now: start, Records: w.bootstrap()}
		if w.dynamic {
			o.KRaftVersion = 1
			if !n.observer {
				o.Voters = w.static
			}
		}
		must(n.disk.MkdirAll(dataDir))
		must(n.disk.SyncDir("/"))
		must(raft.WriteBootstrapSnapshot(o))
		must(n.disk.SyncDir(dataDir))
	}
	if w.dynamic {
		w.static = nil
	}
	for _, n := range w.nodes {
		n.start()
	}
}

func (w *world) bootstrap() []message.Versioned {
	var out []message.Versioned
	add := func(name string, level int16) {
		r := message.NewFeatureLevelRecord()
		r.Name, r.FeatureLevel = name, level
		out = append(out, message.Versioned{Message: r})
	}
	add("metadata.version", w.bootMV)
	if w.elr > 0 {
		add("eligible.leader.replicas.version", w.elr)
	}
	return out
}

func pick[T any](w *world, of ...T) T { return of[w.Rand.IntN(len(of))] }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (w *world) logf(format string, args ...any) {
	if w.out != nil {
		fmt.Fprintf(w.out, "%10.3fms "+format+"\n", append([]any{float64(w.Now().Microseconds()) / 1000}, args...)...)
	}
}

func (w *world) fail(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

// logger is what the code under test logs to.
func (w *world) logger(n *node) *slog.Logger {
	if w.out == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(w.out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})).With("node", n.id)
}

// rng is a generator of its own for one user, so that its draws don't shift those of others.
func (w *world) rng(n *node, use uint64) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, uint64(n.id)<<40|uint64(n.lives)<<8|use))
}

func (w *world) procs() []*proc {
	var list []*proc
	for _, n := range w.nodes {
		if n.proc != nil {
			list = append(list, n.proc)
		}
	}
	return list
}

// leader is the node that leads the latest epoch that has a leader.
func (w *world) leader() *proc {
	var best *proc
	for _, p := range w.procs() {
		c := p.m.Core()
		if c.Role() == raft.Leader && (best == nil || c.LeaderAndEpoch().Epoch > best.m.Core().LeaderAndEpoch().Epoch) {
			best = p
		}
	}
	return best
}

// every has something done at random intervals during the time of faults.
func (w *world) every(from, to time.Duration, do func()) {
	var again func()
	again = func() {
		if w.Now() < w.length {
			do()
			w.After(w.Between(from, to), again)
		}
	}
	w.After(w.Between(0, to), again)
}

// run is one whole simulation.
func (w *world) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			v, ok := p.(violation)
			if !ok {
				panic(fmt.Sprintf("seed %d: %v", w.seed, p))
			}
			err = v
		}
	}()
	if w.data {
		w.play()
		w.heal()
		return nil
	}
	if w.quorum {
		w.every(5*time.Millisecond, 250*time.Millisecond, w.client.act)
		w.every(50*time.Millisecond, 300*time.Millisecond, w.membership)
	} else {
		w.every(5*time.Millisecond, 60*time.Millisecond, w.client.act)
		w.every(100*time.Millisecond, 800*time.Millisecond, w.membership)
	}
	w.every(50*time.Millisecond, 500*time.Millisecond, w.snapshot)
	if w.evil > 0 {
		w.every(10*time.Millisecond, 350*time.Millisecond, w.fault)
	}
	w.Run(w.length, nil)
	w.heal()
	return nil
}

// heal ends the faults and asks for what must follow.
func (w *world) heal() {
	w.logf("healing")
	w.healing = true
	w.links.Heal()
	w.links.Evil = 0
	revive := func() { // a process may end after the faults by an error from before
		for _, n := range w.nodes {
			n.fuse = -1
			n.disk.SetCapacity(-1)
			if n.disks != nil {
				n.disks.mem.SetCapacity(-1)
				n.disks.fuse = -1
				if n.offline() {
					n.crash("its disk is repaired")
					clear(n.disks.failing)
				}
			}
			if n.proc == nil {
				n.start()
			}
		}
	}
	revive()
	limit := w.Now() + 20*time.Second
	until := func(what string, step func(), done func() bool) {
		for !done() {
			if w.Now() > limit {
				for _, b := range w.ref.image().Cluster.Brokers {
					w.logf("broker %+v", *b)
				}
				for _, p := range w.procs() {
					c := p.m.Core()
					w.logf("node %d: %v, leader %v, log to %d, high watermark %d, voters %v, image at %d, broker %+v", p.n.id, c.Role(), c.LeaderAndEpoch(),
						p.m.LogEndOffset(), c.HighWatermark(), c.Voters(), p.loader.LastAppliedOffset(), p.broker)
				}
				w.fail("after healing: %s %s", what, w.problem)
			}
			if step != nil {
				step()
			}
			w.Run(w.Now()+20*time.Millisecond, nil)
			revive()
		}
	}
	until("no leader, or no active controller", nil, func() bool {
		l := w.leader()
		return l != nil && l.core != nil && l.core.Active()
	})
	if w.data {
		w.dataHeal(until)
		w.checkEnd()
		w.ledger.checkEnd()
		w.stats.committed = w.ref.next
		return
	}
	until("brokers are not in service", nil, func() bool {
		for _, n := range w.nodes {
			if n.broker {
				if b := w.ref.image().Cluster.Broker(n.id); b == nil || b.Fenced || n.proc.broker.epoch != b.Epoch {
					return false
				}
			}
		}
		return true
	})
	w.client.created = ""
	until("no topic can be created", w.client.createLast, func() bool { return w.client.created != "" })
	until("nodes do not come to the same image", nil, func() bool {
		end := w.ref.image().Offset
		for _, p := range w.procs() {
			if p.loader.LastAppliedOffset() < end-5 || !p.loader.CaughtUp() || p.loader.Image().Topics.ByName(w.client.created) == nil {
				return false
			}
		}
		return true
	})
	w.checkEnd()
	w.stats.committed = w.ref.next
}
