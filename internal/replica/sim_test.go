package replica

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/config"
	"gregor/internal/log"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/record"
	"gregor/internal/sim"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

var (
	simSeeds = flag.Uint64("seeds", 40, "how many seeds TestSimulation tries")
	simSeed  = flag.Uint64("seed", 0, "the one seed that TestSimulation tries, 0 for many")
	simLog   = flag.Bool("simlog", false, "print what happens")
)

// A simulated cluster: brokers with this package's partitions on logs on simulated disks, joined by bad links in virtual time, and
// a controller that is a model of the real one, with eligible leader replicas (KIP-966). Brokers die and lose what was not
// synced, are fenced though they live, learn of the metadata late; requests arrive late, twice, or from an earlier life.

const (
	simBrokers    = 3
	simPartitions = 2
	simMinISR     = 2
	controllerID  = 0
)

var (
	simTopic   = uuid.UUID{15: 77}
	simStart   = time.Unix(1_700_000_000, 0)
	simTimeout = 150 * time.Millisecond
)

type simWorld struct {
	t       *testing.T
	loop    *sim.Loop
	links   *sim.Links
	clock   *clock.Manual
	live    *config.Live
	out     *slog.Logger
	decomp  *record.Decompressor
	c       simController
	brokers [simBrokers + 1]*simBroker // by id
	calm    bool                       // no more faults
	broken  string                     // a rule that is broken on purpose, "" for none
	err     error                      // the first thing found wrong

	produced int
	acked    [simPartitions]map[int64]string // by offset, since the last check
	seen     [simPartitions]map[int64]string // what was below a high watermark
	nAcked   int
}

type simBroker struct {
	id      int32
	disk    *vfs.Mem
	life    int
	up      bool
	m       *Manager
	logs    *log.Manager
	epoch   int64
	applied int // entries of the controller's log
	image   *metadata.Image

	fetchers map[int32]*fetcher
	underWay map[int32]int // by leader: number of the request, 0 for none
	nextID   int
	where    map[*Partition]int32
	checked  [simPartitions]int64
	hw       [simPartitions]int64
}

// simController is a model of the controller.
type simController struct {
	image *metadata.Image
	log   []simEntry
	elr   [simPartitions][]int32
	dirty [simBrokers + 1]bool // the broker is down and has lost records, which the controller doesn't know yet
}

type simEntry struct {
	delta []message.Message
	at    int64 // offset
}

func newSimWorld(t *testing.T, seed uint64, broken string) *simWorld {
	t.Helper()
	cfg, err := config.Load(config.NewProperties(map[string]string{"process.roles": "broker", "node.id": "1",
		"log.dirs": "/d", "listeners": "PLAINTEXT://127.0.0.1:0", "controller.listener.names": "CONTROLLER",
		"controller.quorum.voters": "9@127.0.0.1:9093", "replica.lag.time.max.ms": "300", "replica.fetch.wait.max.ms": "10",
		"replica.fetch.backoff.ms": "50", "min.insync.replicas": fmt.Sprint(simMinISR), "log.segment.bytes": "1048576"}))
	if err != nil {
		t.Fatal(err)
	}
	w := &simWorld{t: t, loop: sim.NewLoop(seed), clock: clock.NewManual(simStart), live: config.NewLive(cfg), broken: broken,
		decomp: record.NewDecompressor(record.DecompressorOptions{})}
	w.links = &sim.Links{Loop: w.loop, Evil: w.loop.Rand.Float64() * 0.1, Latency: 200 * time.Microsecond}
	w.out = slog.New(slog.DiscardHandler)
	if *simLog {
		w.out = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if broken == brokenMinISR {
		one := *cfg
		one.Topic.MinInsyncReplicas = 1
		w.live = config.NewLive(&one)
	}
	for i := range simPartitions {
		w.acked[i], w.seen[i] = map[int64]string{}, map[int64]string{}
	}
	w.c.image = metadata.EmptyImage()
	for id := int32(1); id <= simBrokers; id++ {
		b := &simBroker{id: id, disk: vfs.NewMem()}
		w.brokers[id] = b
		if err := b.disk.MkdirAll("/d"); err != nil {
			t.Fatal(err)
		}
		if err := log.WriteMetaProperties(b.disk, "/d", log.MetaProperties{Version: 1, ClusterID: "c", NodeID: id,
			DirectoryID: uuid.UUID{15: 200 + byte(id)}}, simStart); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(b.disk.SyncAll("/d"), b.disk.SyncDir("/")); err != nil {
			t.Fatal(err)
		}
		w.start(b)
	}
	records := []message.Message{&message.TopicRecord{Name: "t", TopicID: simTopic}}
	for p := range int32(simPartitions) {
		replicas := []int32{1 + p%3, 1 + (p+1)%3, 1 + (p+2)%3}
		records = append(records, &message.PartitionRecord{PartitionID: p, TopicID: simTopic, Replicas: replicas, ISR: replicas, Leader: replicas[0]})
	}
	w.c.commit(records...)
	return w
}

func (w *simWorld) logf(format string, args ...any) {
	if *simLog {
		w.out.Info(fmt.Sprintf("%v "+format, append([]any{w.loop.Now()}, args...)...))
	}
}

func (w *simWorld) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("%v: %s", w.loop.Now(), fmt.Sprintf(format, args...))
	}
}

func (w *simWorld) now() time.Time { return simStart.Add(w.loop.Now()) }

// in has something done in the life that a broker has now.
func (w *simWorld) in(b *simBroker, d time.Duration, f func()) {
	life := b.life
	w.loop.After(d, func() {
		if b.up && b.life == life {
			f()
		}
	})
}

// start gives a broker its next life.
func (w *simWorld) start(b *simBroker) {
	b.life++
	b.up = true
	b.epoch = w.c.register(b.id)
	logs, err := log.Open(context.Background(), log.Options{FS: b.disk, Clock: w.clock, Dirs: []string{"/d"}, NodeID: b.id, ClusterID: "c",
		NoBackground: true, Rand: w.loop.Rand, TopicConfig: func(string) log.Config { t := w.live.Current().Topic; return LogConfig(&t) }})
	if err != nil {
		w.t.Fatal(err)
	}
	b.logs = logs
	for l := range logs.Logs() {
		_, _, hw, end := l.Offsets()
		w.logf("broker %d: starts with %s: high watermark %d and end %d", b.id, l.TopicPartition(), hw, end)
	}
	life := b.life
	b.m = New(Options{NodeID: b.id, Logs: logs, Config: w.live, Clock: w.clock, Logger: w.out.With("broker", b.id), Rand: w.loop.Rand,
		BrokerEpoch: func() int64 { return b.epoch },
		AlterPartition: func(q *kmsg.AlterPartitionRequest, done func(*kmsg.AlterPartitionResponse, error)) {
			w.alterPartition(b, life, q, done)
		}})
	b.m.alter.after = func(d time.Duration, f func()) Timer {
		w.in(b, d, f)
		return simTimer{}
	}
	b.fetchers, b.underWay, b.where = map[int32]*fetcher{}, map[int32]int{}, map[*Partition]int32{}
	b.checked, b.hw = [simPartitions]int64{}, [simPartitions]int64{}
	b.applied, b.image = 0, metadata.EmptyImage()
	for b.applied < len(w.c.log) { // it catches up before it does anything
		w.apply(b, false)
	}
	b.publish(w, nil)
	w.in(b, w.loop.Between(0, 20*time.Millisecond), func() { w.unfence(b) })
	w.in(b, 0, func() { w.catchUp(b) })
	w.in(b, 150*time.Millisecond, func() { w.checkISRs(b) })
}

// crash ends a broker's life; survive is how likely what was not synced is still there.
func (w *simWorld) crash(b *simBroker, survive float64) {
	for _, p := range b.partitions() {
		_, _, hw, end := p.log().Offsets()
		w.logf("broker %d: partition %d has high watermark %d and end %d", b.id, p.tp.Partition, hw, end)
	}
	w.logf("broker %d crashes, survive %v", b.id, survive)
	b.up = false
	b.m.Close()
	b.disk = b.disk.CrashClone(w.loop.Rand, survive)
	id, epoch := b.id, b.epoch
	w.loop.After(w.loop.Between(time.Millisecond, 200*time.Millisecond), func() {
		if r := w.c.image.Cluster.Broker(id); r.Epoch == epoch && !r.Fenced {
			w.c.fence(id)
		}
	})
}

// apply moves a broker on by one entry of the metadata log.
func (w *simWorld) apply(b *simBroker, publish bool) {
	d := metadata.NewDelta(b.image)
	for _, r := range w.c.log[b.applied].delta {
		if err := d.Replay(r); err != nil {
			w.t.Fatal(err)
		}
	}
	b.image = d.Apply(metadata.Provenance{Offset: w.c.log[b.applied].at, BatchAligned: true})
	b.applied++
	if publish {
		b.publish(w, d)
	}
}

// publish gives the manager a change, or everything when d is nil, and has fetchers follow.
func (b *simBroker) publish(w *simWorld, d *metadata.Delta) {
	if d == nil {
		d = metadata.NewDelta(metadata.EmptyImage())
		for _, e := range w.c.log[:b.applied] {
			for _, r := range e.delta {
				if err := d.Replay(r); err != nil {
					w.t.Fatal(err)
				}
			}
		}
		b.image = d.Apply(metadata.Provenance{Offset: w.c.log[b.applied-1].at, BatchAligned: true})
	}
	b.m.Publish(d, b.image)
	for _, p := range b.partitions() {
		r := p.role.Load()
		leader := r.leaderID
		if r.leader {
			leader = metadata.NoLeader
		}
		if old, ok := b.where[p]; ok && old != leader {
			b.fetchers[old].unfollow(p)
			delete(b.where, p)
		}
		if leader == metadata.NoLeader {
			continue
		}
		f := b.fetchers[leader]
		if f == nil {
			f = newFetcher(fetcherOptions{nodeID: b.id, brokerEpoch: func() int64 { return b.epoch }, maxWait: 10 * time.Millisecond,
				minBytes: 1, maxBytes: 1 << 20, partitionMaxBytes: 1 << 20, backoff: 50 * time.Millisecond, logger: w.out.With("broker", b.id)})
			b.fetchers[leader] = f
			w.in(b, 0, func() { w.pump(b, leader) })
		}
		if w.broken == brokenTruncation && b.where[p] != leader {
			_ = p.log().TruncateTo(p.log().HighWatermark())
		}
		f.follow(p, r.leaderEpoch)
		b.where[p] = leader
	}
}

func (b *simBroker) partitions() (out []*Partition) {
	for i := range int32(simPartitions) {
		if p := b.m.TopicByID(simTopic).Partition(i); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// catchUp lets a broker learn of the metadata, now and then late.
func (w *simWorld) catchUp(b *simBroker) {
	if b.applied < len(w.c.log) {
		w.apply(b, true)
	}
	d := w.loop.Between(0, 3*time.Millisecond)
	if !w.calm && w.loop.Chance(0.02) {
		d = w.loop.Between(0, 300*time.Millisecond)
	}
	w.in(b, d, func() { w.catchUp(b) })
}

func (w *simWorld) unfence(b *simBroker) {
	if w.c.image.Cluster.Broker(b.id).Fenced {
		w.c.unfence(b.id)
	}
	w.in(b, w.loop.Between(20*time.Millisecond, 200*time.Millisecond), func() { w.unfence(b) })
}

func (w *simWorld) checkISRs(b *simBroker) {
	b.m.CheckISRs()
	w.in(b, 150*time.Millisecond, func() { w.checkISRs(b) })
}

// pump lets a fetcher go on.
func (w *simWorld) pump(b *simBroker, leader int32) {
	if b.underWay[leader] != 0 {
		return
	}
	f := b.fetchers[leader]
	q, _ := f.next(w.now())
	if q == nil {
		w.in(b, 10*time.Millisecond, func() { w.pump(b, leader) })
		return
	}
	b.nextID++
	id := b.nextID
	b.underWay[leader] = id
	answered := func(resp kmsg.Response, err error) {
		if b.underWay[leader] != id {
			return
		}
		b.underWay[leader] = 0
		f.answered(w.now(), q, resp, err)
		w.in(b, w.loop.Between(0, 2*time.Millisecond), func() { w.pump(b, leader) })
	}
	w.in(b, simTimeout, func() { answered(nil, errors.New("timeout")) })
	back := func(resp kmsg.Response) {
		life := b.life
		w.links.Send(leader, b.id, func() {
			if b.up && b.life == life {
				answered(resp, nil)
			}
		})
	}
	life := b.life
	w.links.Send(b.id, leader, func() {
		l := w.brokers[leader]
		if !l.up {
			return
		}
		resp := w.serve(l, q)
		if b.life == life {
			back(resp)
		}
	})
}

// alterPartition carries a request to the controller and its answer back.
func (w *simWorld) alterPartition(b *simBroker, life int, q *kmsg.AlterPartitionRequest, done func(*kmsg.AlterPartitionResponse, error)) {
	over := false
	finish := func(r *kmsg.AlterPartitionResponse, err error) {
		if !over && b.up && b.life == life {
			over = true
			done(r, err)
		}
	}
	w.loop.After(2*simTimeout, func() { finish(nil, errors.New("timeout")) })
	w.links.Send(b.id, controllerID, func() {
		resp := w.c.alterPartition(w, q)
		w.links.Send(controllerID, b.id, func() { finish(resp, nil) })
	})
}

// produce appends to whoever takes itself for the leader.
func (w *simWorld) produce() {
	w.loop.After(w.loop.Between(0, 4*time.Millisecond), w.produce)
	if w.calm && w.loop.Now() > 8*time.Second {
		return
	}
	b := w.brokers[1+w.loop.Rand.IntN(simBrokers)]
	if !b.up {
		return
	}
	id := int32(w.loop.Rand.IntN(simPartitions))
	p := b.m.TopicByID(simTopic).Partition(id)
	if p == nil || !p.IsLeader() {
		return
	}
	w.produced++
	value := fmt.Sprintf("%d", w.produced)
	bld := record.NewBuilder(record.BuilderOptions{ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1, LeaderEpoch: -1})
	bld.Append(w.now().UnixMilli(), nil, []byte(value), nil)
	batch, err := bld.Build()
	if err != nil {
		w.t.Fatal(err)
	}
	info, err := p.Append(batch, AppendOptions{Origin: log.Client, RequiredAcks: -1, LeaderEpoch: -1})
	if err != nil {
		return
	}
	w.logf("broker %d appends %s to %d at %d, epoch %d", b.id, value, id, info.FirstOffset, p.role.Load().leaderEpoch)
	w.breakState(p)
	op := NewAckOp(1, func(errs []*api.Error) {
		if errs[0] == nil {
			w.acked[id][info.FirstOffset] = value
			w.nAcked++
		}
	})
	op.Wait(0, p, info.LeaderEpoch, info.LastOffset+1)
	op.Start(time.Hour)
	p.Wake()
}

// faults happen now and then until it is calm.
func (w *simWorld) faults() {
	if w.calm {
		return
	}
	w.loop.After(w.loop.Between(0, 250*time.Millisecond), w.faults)
	b := w.brokers[1+w.loop.Rand.IntN(simBrokers)]
	switch w.loop.Rand.IntN(5) {
	case 0, 1:
		if !b.up {
			return
		}
		survive := 1.0
		if w.c.spare(b.id) && !slices.Contains(w.c.dirty[:], true) {
			survive = w.loop.Rand.Float64() // a power failure, and the cluster can afford it
			w.c.dirty[b.id] = true
		}
		w.crash(b, survive)
		w.loop.After(w.loop.Between(time.Millisecond, 400*time.Millisecond), func() {
			if !b.up {
				w.start(b)
			}
		})
	case 2:
		if r := w.c.image.Cluster.Broker(b.id); !r.Fenced {
			w.c.fence(b.id) // its heartbeats are late
		}
	case 3:
		to := int32(1 + w.loop.Rand.IntN(simBrokers))
		w.links.Cut(b.id, to)
		w.loop.After(w.loop.Between(0, 700*time.Millisecond), w.links.Heal)
	case 4:
		if b.up {
			_ = b.logs.CheckpointHighWatermarks()
		}
	}
}

// run runs the world: faults for a time, then none, after which everything must be well.
func (w *simWorld) run() error {
	w.loop.After(0, w.produce)
	w.loop.After(50*time.Millisecond, w.faults)
	step := func() bool {
		w.clock.Advance(w.now().Sub(w.clock.Now()))
		w.check()
		return w.err != nil
	}
	w.loop.Run(6*time.Second, step)
	w.calm = true
	w.links.Heal()
	w.links.Evil = 0
	for _, b := range w.brokers[1:] {
		if !b.up {
			w.start(b)
		}
	}
	w.loop.Run(30*time.Second, func() bool { return step() || w.loop.Now() > 9*time.Second && w.well() == nil })
	if w.err == nil {
		w.err = w.well()
	}
	for _, b := range w.brokers[1:] {
		b.m.Close()
	}
	return w.err
}
