package raft

import (
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/clock"
	"gregor/internal/message"
	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// The simulation runs whole quorums of replicas (core, store, accumulator) on simulated disks and a simulated network in one
// goroutine. Everything that happens follows from the seed. After each event the checkers look at all nodes.
//
//	go test -run TestSimulation ./internal/raft -sim.seed=4711 -sim.log     one seed with its log
//	go test -run TestSimulation ./internal/raft -sim.runs=100000            many seeds
var (
	simSeed = flag.Uint64("sim.seed", 0, "run this seed only")
	simRuns = flag.Int("sim.runs", 300, "how many seeds to run")
	simLog  = flag.Bool("sim.log", false, "print what happens")
	simReal = flag.Bool("sim.real", false, "use the storage engine for every seed, not only for some")
)

// errCrash is what a disk returns once its node has crashed.
var errCrash = errors.New("simulated crash")

// violation is what a checker found.
type violation string

func (v violation) Error() string { return string(v) }

type simEvent struct {
	at  time.Duration
	seq int
	do  func()
}

type simQueue []simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(simEvent)) }
func (q *simQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

// world is one simulated quorum.
type world struct {
	seed       uint64
	rng        *rand.Rand
	now        time.Duration
	seq        int
	queue      simQueue
	nodes      []*simNode // by id-1
	out        io.Writer
	real       bool // storage engine instead of memLog
	codec      bool // messages go through their encoding
	static     []Voter
	evil       float64
	slowSync   time.Duration
	fetchBytes int32
	healing    bool
	cut        map[[2]int32]bool // one-way

	// What the checkers know.
	leaders     map[int32]int32        // epoch -> who led it
	votes       map[voteKey]ReplicaKey // who voted for whom
	batches     map[batchID]batchFact  // every batch that was ever in a log
	committed   []batchID              // the batches below the highest high watermark known, in order
	committedIn []int32                // the epochs in which they were committed
	states      map[int64]uint64       // state machine by offset
	acked       map[int64]uint64       // what clients were told is committed
	value       uint64                 // next value that a client writes
	maxHW       int64
	mutation    string // a rule that is broken on purpose
	elections   int
	changes     int
	installs    int
	truncates   int
}

type voteKey struct {
	voter ReplicaKey
	epoch int32
}

type batchID struct {
	base  int64
	epoch int32
}

type batchFact struct {
	hash uint64
	last int64
	prev batchID
}

var simStart = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// simNode is a node: what of it survives a crash, and the replica while it is up.
type simNode struct {
	w     *world
	key   ReplicaKey
	ep    Endpoint
	disk  *vfs.Mem
	mem   *memLog
	alive int // counts starts; messages for an earlier one are lost
	up    bool

	clock    *clock.Manual
	rate     float64 // of its clock
	r        *replica
	rlog     Log
	fuse     int // operations of the disk until it crashes; negative is never
	syncing  bool
	wake     time.Duration // when the next tick is scheduled
	inbox    map[uint64]func(kmsg.Response)
	nextReq  uint64
	observer bool // started without being one of the first voters

	// The state machine: a hash over all records applied.
	applied int64
	state   uint64
	hw      int64
	waiting []simWrite
}

type simWrite struct {
	last  int64
	epoch int32
	value uint64
}

func (w *world) logf(format string, args ...any) {
	if w.out != nil {
		fmt.Fprintf(w.out, "%10.3fms "+format+"\n", append([]any{float64(w.now.Microseconds()) / 1000}, args...)...)
	}
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.queue, simEvent{w.now + d, w.seq, do})
}

func (w *world) fail(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.rng.Int64N(int64(b-a)+1))
}

// newWorld makes a quorum of voters and some observers that are not started as voters.
func newWorld(seed uint64, mutation string) *world { return newWorldTo(seed, mutation, nil) }

// newWorldTo is newWorld with a log of what happens.
func newWorldTo(seed uint64, mutation string, out io.Writer) *world {
	w := &world{
		out: out, seed: seed, rng: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)), mutation: mutation,
		cut: map[[2]int32]bool{}, leaders: map[int32]int32{}, votes: map[voteKey]ReplicaKey{},
		batches: map[batchID]batchFact{}, states: map[int64]uint64{0: 0}, acked: map[int64]uint64{}, value: 1,
	}
	w.real = *simReal || seed%64 == 7
	w.codec = seed%8 == 3
	w.slowSync = []time.Duration{time.Millisecond, 5 * time.Millisecond, 60 * time.Millisecond}[w.rng.IntN(3)]
	w.evil = []float64{0, 0.01, 0.05, 0.15}[w.rng.IntN(4)]
	w.fetchBytes = []int32{1, 600}[w.rng.IntN(2)]
	voters := 1 + w.rng.IntN(5)
	observers := w.rng.IntN(3)
	dynamic := w.rng.IntN(4) > 0
	var set []Voter
	for i := range voters + observers {
		id := int32(i + 1)
		n := &simNode{w: w, key: ReplicaKey{id, uuid.UUID{0: 1, 8: 1, 15: byte(id)}}, ep: Endpoint{"CONTROLLER", "node", uint16(9000 + id)},
			fuse: -1, observer: i >= voters, disk: vfs.NewMem()}
		n.disk.SetClock(func() time.Time { return simStart })
		n.clock = clock.NewManual(simStart)
		n.rate = 0.9 + 0.2*w.rng.Float64()
		if !w.real {
			n.mem = &memLog{}
		}
		w.nodes = append(w.nodes, n)
		if i < voters {
			v := Voter{ReplicaKey: n.key, Endpoints: []Endpoint{n.ep}, KRaftVersions: KRaftVersions}
			if !dynamic {
				v.DirectoryID = uuid.Zero
			}
			set = append(set, v)
		}
	}
	for _, n := range w.nodes {
		o := BootstrapOptions{FS: n.disk, Dir: "/d", Now: simStart, Records: []message.Versioned{feature("metadata.version", 33)}}
		if dynamic {
			o.KRaftVersion = 1
			if !n.observer {
				o.Voters = set
			}
		}
		must(n.disk.MkdirAll("/d"))
		must(n.disk.SyncDir("/"))
		must(WriteBootstrapSnapshot(o))
		must(n.disk.SyncDir("/d"))
	}
	w.logf("seed %d: %d voters, %d observers, dynamic %v, evil %.2f, real log %v", seed, voters, observers, dynamic, w.evil, w.real)
	var static []Voter
	if !dynamic {
		static = set
	}
	w.static = static
	for _, n := range w.nodes {
		n.start(static)
	}
	return w
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (n *simNode) logf(format string, args ...any) {
	n.w.logf("node %d "+format, append([]any{n.key.ID}, args...)...)
}

// start brings the node up on what its disk holds.
func (n *simNode) start(static []Voter) {
	w := n.w
	n.alive++
	n.up, n.syncing, n.fuse, n.wake = true, false, -1, -1
	n.inbox = map[uint64]func(kmsg.Response){}
	n.waiting = nil
	n.hw = -1
	n.tickClock()
	hooked := vfs.Hook(n.disk, func(op vfs.Op) error {
		if n.fuse == 0 {
			return errCrash
		}
		if n.fuse > 0 && op.Kind.Changes() {
			n.fuse--
		}
		return nil
	})
	lg := slog.New(slog.DiscardHandler)
	if w.out != nil {
		lg = slog.New(slog.NewTextHandler(w.out, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}})).With("node", n.key.ID)
	}
	must(hooked.MkdirAll("/d/" + DirName))
	if w.real {
		l, err := openLog(context.Background(), Options{FS: hooked, Clock: n.clock, Logger: slog.New(slog.DiscardHandler), Dir: "/d",
			SegmentBytes: 1 << 20, SegmentAge: time.Hour})
		must(err)
		n.rlog = l
	} else {
		n.rlog = &fusedLog{n.mem, n}
	}
	rng := rand.New(rand.NewPCG(w.seed, uint64(n.key.ID)<<32|uint64(n.alive)))
	st := &store{fs: hooked, dir: "/d/" + DirName, log: n.rlog, lg: lg, now: n.clock.Now, rand: rng}
	must(st.loadSnapshots())
	must(st.verifyLatest())
	must(st.recover())
	var boot []Peer
	if static == nil {
		for i, p := range w.nodes {
			boot = append(boot, Peer{ID: int32(-2 - i), Host: p.ep.Host, Port: p.ep.Port})
		}
	}
	n.mutateStart(st)
	core := NewCore(CoreConfig{
		NodeID: n.key.ID, ReplicaKey: n.key, ClusterID: "sim", CanVote: true, Listener: "CONTROLLER", Endpoints: []Endpoint{n.ep},
		KRaftVersions: KRaftVersions, StaticVoters: static, Bootstrap: boot,
		ElectionTimeout: 100 * time.Millisecond, ElectionBackoffMax: 100 * time.Millisecond, FetchTimeout: 200 * time.Millisecond,
		RequestTimeout: 200 * time.Millisecond, RetryBackoff: 20 * time.Millisecond,
		FetchMaxWait: 50 * time.Millisecond, FetchMaxBytes: w.fetchBytes, FetchSnapshotMaxBytes: 150, AutoJoin: n.observer && w.seed%3 == 0,
	}, rng, lg)
	n.r = &replica{core: core, store: st, lg: lg, env: n, now: n.clock.Now}
	n.r.acc = newAccumulator(func() {})
	n.applied, n.state = 0, 0
	n.loadSnapshot()
	n.logf("starts, log %d to %d", n.rlog.StartOffset(), n.rlog.EndOffset())
	if err := n.r.start(n.clock.Now()); err != nil {
		w.fail("node %d can't start: %v", n.key.ID, err)
	}
	n.settle()
}

// fusedLog is a memLog that crashes with its node's disk.
type fusedLog struct {
	*memLog
	n *simNode
}

func (l *fusedLog) burn() error {
	if l.n.fuse == 0 {
		return errCrash
	}
	if l.n.fuse > 0 {
		l.n.fuse--
	}
	return nil
}

func (l *fusedLog) Append(b []byte) error {
	if err := l.burn(); err != nil {
		return err
	}
	return l.memLog.Append(b)
}

func (l *fusedLog) Sync() error {
	if err := l.burn(); err != nil {
		return err
	}
	if l.n.w.mutation == "follower fetches before it synced" && l.n.r.core.role == Follower {
		return nil
	}
	return l.memLog.Sync()
}

func (l *fusedLog) TruncateTo(o int64) error {
	if err := l.burn(); err != nil {
		return err
	}
	return l.memLog.TruncateTo(o)
}

func (l *fusedLog) Restart(o int64) error {
	if err := l.burn(); err != nil {
		return err
	}
	return l.memLog.Restart(o)
}

// crash stops the node at once. What was not synced may be lost.
func (n *simNode) crash(why string) {
	if !n.up {
		return
	}
	n.logf("crashes: %s", why)
	n.up = false
	n.alive++
	if n.w.real {
		survive := []float64{0, 0.5, 1}[n.w.rng.IntN(3)]
		n.disk = n.disk.CrashClone(n.w.rng, survive)
		_ = n.rlog.Close()
	} else {
		n.disk = n.disk.CrashClone(n.w.rng, 0)
		// A part of what was not synced may have reached the disk.
		if lost := len(n.mem.batches) - n.mem.synced; lost > 0 {
			n.mem.synced += n.w.rng.IntN(lost + 1)
		}
		n.mem.crash()
		n.mem = &memLog{batches: n.mem.batches, start: n.mem.start, base: n.mem.base, synced: len(n.mem.batches)}
		n.mem.start = min(n.mem.start, n.mem.firstBase())
	}
	n.r = nil
}

// firstBase is where the log begins when its start isn't remembered: at its first batch.
func (l *memLog) firstBase() int64 {
	if len(l.batches) > 0 {
		return l.batches[0].BaseOffset()
	}
	return l.base
}

// local is what the node's clock shows at a time of the world: clocks run at different rates.
func (n *simNode) local(at time.Duration) time.Time {
	return simStart.Add(time.Duration(float64(at) * n.rate))
}

// world is when the node's clock shows a time.
func (n *simNode) world(t time.Time) time.Duration {
	return time.Duration(float64(t.Sub(simStart))/n.rate) + 1
}

func (n *simNode) tickClock() {
	t := n.local(n.w.now)
	if d := t.Sub(n.clock.Now()); d > 0 {
		n.clock.Advance(d)
	}
}

// step feeds an event, and does what a driver does after it.
func (n *simNode) step(ev Event) {
	if !n.up {
		return
	}
	n.tickClock()
	n.mutate(ev)
	n.r.step(n.clock.Now(), ev)
	n.settle()
}

func (n *simNode) settle() {
	if n.r.failed == nil && !n.syncing {
		n.r.drain(n.clock.Now())
	}
	if n.r.failed != nil {
		if !errors.Is(n.r.failed, errCrash) {
			n.w.fail("node %d failed: %v", n.key.ID, n.r.failed)
		}
		n.crash("disk")
		return
	}
	if n.r.dirty && !n.syncing {
		n.r.dirty, n.syncing = false, true
		end, gen, alive := n.rlog.EndOffset(), n.r.gen, n.alive
		n.w.after(n.w.between(100*time.Microsecond, n.w.slowSync), func() {
			if n.alive != alive {
				return
			}
			n.syncing = false
			if err := n.rlog.Sync(); err != nil {
				n.crash("disk")
				return
			}
			if gen == n.r.gen {
				n.step(Synced{end})
			} else {
				n.settle()
			}
		})
	}
	if d := n.r.deadline(); !d.IsZero() {
		at := max(n.world(d), n.w.now)
		if n.wake < 0 || at < n.wake {
			n.wake = at
			alive := n.alive
			n.w.after(at-n.w.now, func() {
				if n.alive == alive && n.wake == at {
					n.wake = -1
					n.step(Ticked{})
				}
			})
		}
	}
	n.w.check(n)
}

// The environment of a replica.

func (n *simNode) send(s Send) {
	w := n.w
	w.observeRequest(n, s.Request)
	var to *simNode
	for _, o := range w.nodes {
		if o.ep.Port == s.To.Port {
			to = o
		}
	}
	from, alive := n, n.alive
	respond := func(ev Responded) {
		ev.Correlation = s.Correlation
		w.deliver(to.key.ID, from.key.ID, func() {
			if from.alive == alive {
				from.step(ev)
			}
		})
	}
	req := w.transcodeRequest(s.Request)
	w.deliver(n.key.ID, to.key.ID, func() {
		if !to.up {
			respond(Responded{Err: errors.New("refused"), Refused: true})
			return
		}
		if _, ok := req.(*kmsg.ApiVersionsRequest); ok {
			resp := kmsg.NewPtrApiVersionsResponse()
			resp.Version = 4
			resp.SupportedFeatures = []kmsg.ApiVersionsResponseSupportedFeature{{Name: kraftVersionFeature, MinVersion: 0, MaxVersion: 1}}
			respond(Responded{Response: resp})
			return
		}
		to.ask(req, func(resp kmsg.Response) { respond(Responded{Response: w.transcodeResponse(resp)}) })
	})
}

// ask gives the node a request.
func (n *simNode) ask(req kmsg.Request, reply func(kmsg.Response)) {
	n.nextReq++
	n.inbox[n.nextReq] = reply
	n.step(Requested{ID: n.nextReq, Listener: "CONTROLLER", Request: req})
}

func (n *simNode) reply(id uint64, resp kmsg.Response) {
	f := n.inbox[id]
	if f == nil {
		n.w.fail("node %d answers request %d twice", n.key.ID, id)
	}
	delete(n.inbox, id)
	f(resp)
}

func (n *simNode) appended(int32, []pendingBatch) {}

func (n *simNode) truncated(offset int64, restarted bool) {
	if restarted {
		n.w.installs++
		n.logf("restarts its log at %d", offset)
		n.loadSnapshot()
		return
	}
	n.w.truncates++
	n.logf("truncates to %d", offset)
	if offset < n.w.committedEndIn(n) {
		n.w.fail("node %d truncates committed records: to %d, high watermark %d", n.key.ID, offset, n.w.maxHW)
	}
}

func (n *simNode) committed(offset int64) {
	if offset < n.hw {
		n.w.fail("node %d: high watermark fell from %d to %d", n.key.ID, n.hw, offset)
	}
	n.hw = offset
	n.apply()
}

func (n *simNode) leaderChanged(l LeaderChanged) {
	n.logf("sees leader %d in epoch %d", l.LeaderID, l.Epoch)
	if l.LeaderID != n.key.ID {
		n.waiting = nil
	}
}

// loadSnapshot sets the state machine to the latest snapshot.
func (n *simNode) loadSnapshot() {
	id, ok := n.r.store.latestSnapshot()
	if !ok || id == bootstrapID || id.Offset <= n.applied {
		return
	}
	r, err := n.r.store.openSnapshot(id)
	if errors.Is(err, errCrash) {
		return
	}
	must(err)
	records, err := r.Next()
	if errors.Is(err, errCrash) {
		return
	}
	must(err)
	must(r.Close())
	f := records[0].Message.(*message.FeatureLevelRecord)
	fmt.Sscanf(f.Name, "%x", &n.state)
	n.applied = id.Offset
	n.w.checkState(n)
}

// apply runs the committed records through the state machine.
func (n *simNode) apply() {
	for n.applied < n.hw {
		data, err := n.rlog.Read(max(n.applied, n.rlog.StartOffset()), 1<<20)
		if errors.Is(err, errCrash) {
			return
		}
		must(err)
		if n.applied < n.rlog.StartOffset() || len(data) == 0 {
			if n.fuse != 0 { // else the snapshot could not be read
				n.w.fail("node %d: nothing to apply at %d, high watermark %d", n.key.ID, n.applied, n.hw)
			}
			return
		}
		for len(data) > 0 {
			b, rest, err := record.Next(data)
			must(err)
			data = rest
			if b.LastOffset() < n.applied {
				continue
			}
			if b.NextOffset() > n.hw {
				return
			}
			n.state = mix(n.state, uint64(b.BaseOffset()), uint64(uint32(b.PartitionLeaderEpoch())), hashOf(b.Payload()))
			n.applied = b.NextOffset()
			n.w.checkState(n)
			n.w.commit(n, b)
		}
	}
	for len(n.waiting) > 0 && n.waiting[0].last < n.hw {
		wr := n.waiting[0]
		n.waiting = n.waiting[1:]
		n.w.acked[wr.last] = wr.value
	}
}

func mix(h uint64, more ...uint64) uint64 {
	f := fnv.New64a()
	var b [8]byte
	for _, v := range append([]uint64{h}, more...) {
		binary.BigEndian.PutUint64(b[:], v)
		f.Write(b[:])
	}
	return f.Sum64()
}

func hashOf(b []byte) uint64 {
	f := fnv.New64a()
	f.Write(b)
	return f.Sum64()
}

// deliver carries something over a link, or doesn't.
func (w *world) deliver(from, to int32, do func()) {
	if from == to {
		w.after(0, do)
		return
	}
	if w.cut[[2]int32{from, to}] {
		return
	}
	if !w.healing {
		if w.rng.Float64() < w.evil {
			return
		}
		if w.rng.Float64() < w.evil/2 {
			w.after(w.between(time.Millisecond, 400*time.Millisecond), do) // again, later
		}
	}
	d := w.between(200*time.Microsecond, 3*time.Millisecond)
	if !w.healing && w.rng.Float64() < w.evil {
		d = w.between(time.Millisecond, 300*time.Millisecond)
	}
	w.after(d, do)
}

// transcode passes messages through their bytes, in some version that can say what is meant.
func (w *world) transcodeRequest(r kmsg.Request) kmsg.Request {
	if !w.codec {
		return r
	}
	c := kmsg.RequestForKey(r.Key())
	c.SetVersion(r.GetVersion())
	must(c.ReadFrom(r.AppendTo(nil)))
	return c
}

func (w *world) transcodeResponse(r kmsg.Response) kmsg.Response {
	if !w.codec {
		return r
	}
	c := kmsg.ResponseForKey(r.Key())
	c.SetVersion(r.GetVersion())
	must(c.ReadFrom(r.AppendTo(nil)))
	return c
}

// What happens

func (w *world) upNodes() []*simNode {
	var list []*simNode
	for _, n := range w.nodes {
		if n.up {
			list = append(list, n)
		}
	}
	return list
}

func (w *world) leaderNode() *simNode {
	var best *simNode
	for _, n := range w.upNodes() {
		if n.r.core.role == Leader && (best == nil || n.r.core.epoch > best.r.core.epoch) {
			best = n
		}
	}
	return best
}

// clientWrite appends at a random node that thinks that it leads.
func (w *world) clientWrite() {
	for _, i := range w.rng.Perm(len(w.nodes)) {
		n := w.nodes[i]
		if !n.up || n.r.core.role != Leader {
			continue
		}
		n.tickClock()
		w.value++
		last, err := n.r.acc.prepare(n.r.core.epoch, n.clock.Now().UnixMilli(), []message.Versioned{feature(fmt.Sprintf("v%d", w.value), 1)})
		if err != nil {
			return
		}
		n.r.acc.schedule()
		n.waiting = append(n.waiting, simWrite{last, n.r.core.epoch, w.value})
		n.settle()
		return
	}
}

// snapshot has a node make a snapshot of what it has applied, and perhaps trim its log.
func (w *world) snapshot() {
	up := w.upNodes()
	if len(up) == 0 {
		return
	}
	n := up[w.rng.IntN(len(up))]
	if n.applied == 0 || n.applied < n.rlog.StartOffset() {
		return
	}
	epoch := int32(-1)
	for _, id := range w.committed {
		if f, ok := w.batches[id]; ok && f.last+1 == n.applied {
			epoch = id.epoch
		}
	}
	if epoch < 0 {
		if i, ok := slices.BinarySearchFunc(w.committed, n.applied, func(a batchID, o int64) int { return int(a.base - o) }); ok && i > 0 {
			epoch = w.committed[i-1].epoch
		} else {
			return
		}
	}
	id := OffsetAndEpoch{n.applied, epoch}
	var wr *SnapshotWriter
	n.step(snapshotAsked{id, func(ok bool, err error, version int16, voters VoterSet) {
		if err != nil {
			w.fail("node %d: snapshot %s: %v", n.key.ID, id, err)
		}
		if !ok {
			return
		}
		st := n.r.store
		wr, err = newSnapshotWriter(st.fs, st.dir, id, st.nonce(), 0, version, voters, st.now, nil)
		if err != nil {
			wr = nil
		}
	}})
	if wr == nil || !n.up {
		return
	}
	err := wr.Append([]message.Versioned{feature(fmt.Sprintf("%x", n.state), 1)})
	if err == nil {
		err = wr.Freeze()
	}
	if err != nil {
		if !errors.Is(err, errCrash) {
			must(err)
		}
		n.crash("disk")
		return
	}
	n.logf("makes snapshot %s", id)
	n.r.store.addSnapshot(id, wr.Bytes())
	n.step(SnapshotTaken{id})
	if n.up && w.rng.IntN(2) == 0 {
		before := n.rlog.StartOffset()
		err := n.r.store.clean(0, -1)
		if err != nil {
			n.crash("disk")
			return
		}
		if start := n.rlog.StartOffset(); start > before {
			n.logf("trims its log to %d", start)
			n.step(LogTrimmed{start})
		}
	}
}

// membership asks the leader to add or remove a voter.
func (w *world) membership() {
	l := w.leaderNode()
	if l == nil {
		return
	}
	if l.r.core.view.lastVersion() < 1 {
		l.step(UpgradeAsked{Epoch: l.r.core.epoch, Version: 1, Done: func(last int64, err error) {
			w.logf("upgrade: %d %v", last, err)
			if err == nil && last >= 0 {
				w.changes++
			}
		}})
		return
	}
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	voters := l.r.core.view.lastVoters()
	done := func(what string) func(kmsg.Response) {
		return func(resp kmsg.Response) {
			var code int16
			switch r := resp.(type) {
			case *kmsg.AddRaftVoterResponse:
				code = r.ErrorCode
			case *kmsg.RemoveRaftVoterResponse:
				code = r.ErrorCode
			}
			if code == 0 {
				w.changes++
			}
			w.logf("%s node %d: code %d", what, n.key.ID, code)
		}
	}
	if voters.Has(n.key) {
		if len(voters) < 2 {
			return
		}
		r := kmsg.NewPtrRemoveRaftVoterRequest()
		r.VoterID, r.VoterDirectoryID = n.key.ID, n.key.DirectoryID
		l.ask(r, done("remove"))
		return
	}
	r := kmsg.NewPtrAddRaftVoterRequest()
	r.Version = 1
	r.VoterID, r.VoterDirectoryID = n.key.ID, n.key.DirectoryID
	r.AckWhenCommitted = w.rng.IntN(2) == 0
	r.Listeners = []kmsg.AddRaftVoterRequestListener{{Name: n.ep.Name, Host: n.ep.Host, Port: n.ep.Port}}
	l.ask(r, done("add"))
}

// fault does one bad thing.
func (w *world) fault() {
	if w.healing {
		return
	}
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	switch w.rng.IntN(13) {
	case 10, 11, 12: // the leader's process dies and comes back at once
		if l := w.leaderNode(); l != nil {
			l.crash("fault, leader")
			alive := l.alive
			w.after(w.between(time.Millisecond, 40*time.Millisecond), func() {
				if l.alive == alive && !l.up {
					l.start(w.static)
				}
			})
		}
	case 0, 1:
		n.crash("fault")
	case 2:
		if n.up {
			n.fuse = w.rng.IntN(30)
		}
	case 3, 4, 5:
		if !n.up {
			n.start(w.static)
		}
	case 6:
		o := w.nodes[w.rng.IntN(len(w.nodes))]
		w.logf("link %d to %d is cut", n.key.ID, o.key.ID)
		w.cut[[2]int32{n.key.ID, o.key.ID}] = true
	case 7:
		for _, o := range w.nodes {
			w.cut[[2]int32{n.key.ID, o.key.ID}] = true
			w.cut[[2]int32{o.key.ID, n.key.ID}] = true
		}
		w.logf("node %d is cut off", n.key.ID)
	case 8:
		w.logf("all links heal")
		clear(w.cut)
	case 9:
		if l := w.leaderNode(); l != nil {
			l.step(ResignAsked{l.r.core.epoch})
		}
	}
}

func (w *world) runUntil(end time.Duration, stop func() bool) {
	for len(w.queue) > 0 && w.queue[0].at <= end {
		if stop != nil && stop() {
			return
		}
		e := heap.Pop(&w.queue).(simEvent)
		w.now = max(w.now, e.at)
		e.do()
	}
	w.now = max(w.now, end)
}

// run is one whole simulation.
func (w *world) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			if v, ok := p.(violation); ok {
				err = v
				return
			}
			panic(p)
		}
	}()
	const length = 8 * time.Second
	for t := time.Duration(0); t < length; {
		t += w.between(0, 20*time.Millisecond)
		w.after(t, w.clientWrite)
	}
	for t := time.Duration(0); t < length; {
		t += w.between(50*time.Millisecond, 600*time.Millisecond)
		w.after(t, w.snapshot)
	}
	for t := time.Duration(0); t < length; {
		t += w.between(50*time.Millisecond, 700*time.Millisecond)
		w.after(t, w.membership)
	}
	if w.evil > 0 {
		for t := time.Duration(0); t < length; {
			t += w.between(10*time.Millisecond, 400*time.Millisecond)
			w.after(t, w.fault)
		}
	}
	w.runUntil(length, nil)
	// The faults are over: whoever is down comes back, all links heal. A leader must be found and commit something new.
	w.logf("healing")
	w.healing = true
	clear(w.cut)
	for _, n := range w.nodes {
		n.fuse = -1
		if !n.up {
			n.start(w.static)
		}
	}
	before := w.maxHW
	limit := w.now + 20*time.Second
	for w.now < limit && (w.maxHW <= before+5 || !w.converged()) {
		w.clientWrite()
		w.runUntil(w.now+50*time.Millisecond, nil)
	}
	if w.maxHW <= before+5 {
		w.fail("no progress after healing: high watermark %d", w.maxHW)
	}
	if !w.converged() {
		for _, n := range w.nodes {
			c := n.r.core
			n.logf("%v epoch %d leader %d log %d to %v hw %d voters %v", c.role, c.epoch, c.leader, c.view.start, c.view.endPoint(), c.hw, c.view.lastVoters())
		}
		w.fail("replicas do not catch up after healing: high watermark %d", w.maxHW)
	}
	w.checkAcked()
	return nil
}

// converged says whether every node knows of all but the last few records.
func (w *world) converged() bool {
	for _, n := range w.nodes {
		if n.hw < w.maxHW-10 {
			return false
		}
	}
	return true
}

func TestSimulation(t *testing.T) {
	t.Parallel()
	if *simSeed != 0 {
		w := newWorldLogged(*simSeed, "")
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: %v", *simSeed, err)
		}
		t.Logf("%d elections, %d voter changes, %d snapshots installed, %d truncations, %d committed", w.elections, w.changes, w.installs, w.truncates, w.maxHW)
		return
	}
	var total world
	for seed := uint64(1); seed <= uint64(*simRuns); seed++ {
		w := newWorld(seed, "")
		if err := w.run(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
			if t.Failed() && seed > 2000 {
				return
			}
		}
		total.elections += w.elections
		total.changes += w.changes
		total.installs += w.installs
		total.truncates += w.truncates
		total.maxHW += w.maxHW
	}
	t.Logf("%d runs: %d elections, %d voter changes, %d snapshots installed, %d truncations, %d committed",
		*simRuns, total.elections, total.changes, total.installs, total.truncates, total.maxHW)
	if *simRuns >= 100 && (total.elections == 0 || total.changes == 0 || total.installs == 0 || total.truncates == 0) {
		t.Error("the simulation did not reach everything that it should")
	}
}

// A seed gives the same run every time.
func TestSimulationIsReproducible(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 12; seed++ {
		run := func() (uint64, error) {
			h := fnv.New64a()
			w := newWorldTo(seed, "", h)
			err := w.run()
			return h.Sum64(), err
		}
		a, err1 := run()
		b, err2 := run()
		if a != b || err1 != nil || err2 != nil {
			t.Errorf("seed %d: %x and %x, %v and %v", seed, a, b, err1, err2)
		}
	}
}

func newWorldLogged(seed uint64, mutation string) *world {
	if *simLog {
		return newWorldTo(seed, mutation, os.Stderr)
	}
	return newWorld(seed, mutation)
}
