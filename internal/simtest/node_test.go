package simtest

import (
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/clock"
	"gregor/internal/controller"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/raft"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// errCrash is what a disk returns once its node has crashed.
var errCrash = errors.New("simulated crash")

// node is what of a node survives a crash, and its process while there is one.
type node struct {
	w          *world
	id         int32
	key        raft.ReplicaKey
	ep         raft.Endpoint
	observer   bool // is not among the first voters
	controller bool // has the controller role
	broker     bool // has the broker role
	rate       float64
	disk       *vfs.Mem
	fuse       int   // changes of the disk until it fails; negative is never
	fuseErr    error // what it fails with: errCrash for all time, anything else once
	lives      int
	disks      *disks  // log directories, nil where there are none
	survive    float64 // how likely they keep what isn't synced when the process dies
	lastEpoch  int64   // broker epoch at the last clean stop, -1 after any other end
	proc       *proc
}

// proc is the process of a node, from a start to a crash.
type proc struct {
	w      *world
	n      *node
	clock  *clock.Manual
	m      *raft.Manual
	tap    *logTap
	core   *controller.Core // nil without the controller role
	ctl    *follower
	loader *metadata.Loader
	load   *follower
	broker *broker       // nil without the broker role, and with data
	server *server       // nil without the broker role, and without data
	frozen time.Duration // until when nothing happens in the process

	wake   time.Duration // when the next Move is scheduled, negative for never
	tick   time.Duration // and the core's next Tick
	hw     int64         // highest high watermark seen
	active bool          // the core was active when it was looked at last
	news   news          // as of the last look
}

// news is what listeners are told of, beside what is committed.
type news struct {
	raft.LeaderAndEpoch
	role raft.Role
}

// follower is a listener of the quorum, and whether it is about to be handed something.
type follower struct {
	p    *proc
	l    raft.Listener
	busy bool
}

func (n *node) logf(format string, args ...any) {
	if n.w.out != nil {
		n.w.logf("node %d "+format, append([]any{n.id}, args...)...)
	}
}

// start brings the node up on what its disk holds. It stays down when the disk doesn't let it.
func (n *node) start() {
	w := n.w
	n.lives++
	n.fuse = -1
	p := &proc{w: w, n: n, wake: -1, tick: -1, hw: -1, clock: clock.NewManual(start)}
	n.proc = p
	p.tickClock()
	disk := vfs.Hook(n.disk, n.beforeDisk)
	logger := w.logger(n)
	o := raft.Options{
		FS: disk, Clock: p.clock, Logger: logger, Rand: w.rng(n, 1), Dir: dataDir, ClusterID: clusterID, NodeID: n.id,
		DirectoryID: n.key.DirectoryID, Controller: n.controller, StaticVoters: w.static, Listener: listener,
		ElectionTimeout: 100 * time.Millisecond, ElectionBackoffMax: 100 * time.Millisecond, FetchTimeout: 200 * time.Millisecond,
		RequestTimeout: 200 * time.Millisecond, RetryBackoff: 20 * time.Millisecond, AppendLinger: 5 * time.Millisecond,
		FetchMaxWait: 50 * time.Millisecond, FetchMaxBytes: pick[int32](w, 1, 900, 1<<20), FetchSnapshotMaxBytes: 400,
		SegmentBytes: 2000, RetentionBytes: 1, RetentionAge: -1,
		AutoJoin: n.observer && n.controller && w.seed%3 == 0,
	}
	if n.controller {
		o.Endpoints = []raft.Endpoint{n.ep}
	}
	if w.dynamic {
		for _, x := range w.nodes {
			if x.controller {
				o.BootstrapServers = append(o.BootstrapServers, x.ep.Host+":"+strconv.Itoa(int(x.ep.Port)))
			}
		}
	}
	m, err := raft.OpenManual(o, p, func(l raft.Log) raft.Log {
		p.tap = newLogTap(p, l)
		return p.tap
	})
	if err != nil {
		n.proc = nil
		n.logDisk()
		if !errors.Is(err, syscall.ENOSPC) {
			w.fail("node %d can't start: %v", n.id, err)
		}
		n.logf("can't start: %v", err)
		return
	}
	p.m = m
	n.logf("starts, log %d to %d", m.LogStartOffset(), m.LogEndOffset())
	if n.controller {
		p.core = controller.NewCore(p.coreOptions(w.fail), m)
		p.ctl = &follower{p: p, l: &coreListener{p}}
		m.Register(p.ctl.l)
	}
	p.loader = metadata.NewLoader(metadata.LoaderOptions{Logger: logger, HighWatermark: m.HighWatermark, OnFault: p.loaderFault})
	must(p.loader.Install(&imageChecker{p}))
	p.load = &follower{p: p, l: metadata.RaftListener{Loader: p.loader}}
	m.Register(p.load.l)
	switch {
	case n.broker && w.data:
		p.server = newServer(p)
	case n.broker:
		p.broker = newBroker(p)
	}
	p.settle()
	p.tell()
}

// logDisk shows what is on the disk.
func (n *node) logDisk() {
	if n.w.out == nil {
		return
	}
	dir := dataDir + "/" + raft.DirName
	entries, err := n.disk.ReadDir(dir)
	must(err)
	for _, e := range entries {
		f, err := n.disk.Open(dir + "/" + e.Name())
		must(err)
		size, err := f.Size()
		must(err)
		text := make([]byte, size)
		_, _ = f.ReadAt(text, 0)
		if strings.HasSuffix(e.Name(), ".log") || strings.Contains(e.Name(), "index") || strings.Contains(e.Name(), ".checkpoint") {
			text = nil
		}
		n.logf("%s: %d bytes %q", e.Name(), size, text)
	}
}

// coreOptions are those of the node's controller core.
func (p *proc) coreOptions(fatal func(string, ...any)) controller.Options {
	w, n := p.w, p.n
	opts := controller.Options{
		NodeID: n.id, ClusterID: clusterID, Logger: w.logger(n), Rand: w.rng(n, 2), IDs: idSource{w.rng(n, 3)},
		Configs: controller.NewConfigSchema(brokerConfig), Bootstrap: w.bootstrap(), Authorizer: true,
		Registration:   controller.Registration{Incarnation: n.incarnation(2)},
		SessionTimeout: sessionTimeout, IdleInterval: 100 * time.Millisecond, BalanceInterval: 700 * time.Millisecond,
		UncleanInterval: 500 * time.Millisecond, MaxRecordsPerBatch: w.batchMax, Probe: p.probe,
		Fatal: func(err error) { fatal("controller %d: %v", n.id, err) },
	}
	for _, v := range w.static {
		opts.StaticVoters = append(opts.StaticVoters, v.ID)
	}
	l := kmsg.NewControllerRegistrationRequestListener()
	l.Name, l.Host, l.Port = n.ep.Name, n.ep.Host, n.ep.Port
	opts.Registration.Listeners = append(opts.Registration.Listeners, l)
	return opts
}

// incarnation is an id of this life of the node.
func (n *node) incarnation(of byte) uuid.UUID {
	return uuid.UUID{0: 7, 1: of, 12: byte(n.id), 14: byte(n.lives >> 8), 15: byte(n.lives)}
}

type idSource struct{ r *rand.Rand }

func (s idSource) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(s.r.Uint32())
	}
	return len(b), nil
}

func (p *proc) loaderFault(err error) {
	if p.n.fuse != 0 {
		p.w.fail("node %d: loader: %v", p.n.id, err)
	}
}

// beforeDisk is asked before every operation of the disk.
func (n *node) beforeDisk(op vfs.Op) error {
	if n.fuse < 0 || n.fuse > 0 && !op.Kind.Changes() {
		return nil
	}
	if n.fuse > 0 {
		n.fuse--
		return nil
	}
	return n.fuseErr
}

func (p *proc) alive() bool { return p.n.proc == p }

// after has something done, unless the process dies before.
func (p *proc) after(d time.Duration, do func()) {
	p.w.After(d, func() {
		if p.alive() {
			p.do(do)
		}
	})
}

// do does something in the process.
func (p *proc) do(what func()) {
	if p.frozen > p.w.Now() {
		p.w.After(p.frozen-p.w.Now(), func() {
			if p.alive() {
				p.do(what)
			}
		})
		return
	}
	p.tickClock()
	what()
	p.settle()
}

// local is what the node's clock shows at a time of the world: clocks run at different rates.
func (p *proc) local(at time.Duration) time.Time {
	return start.Add(time.Duration(float64(at) * p.n.rate))
}

// world is when the node's clock will show a time.
func (p *proc) world(t time.Time) time.Duration {
	return max(time.Duration(float64(t.Sub(start))/p.n.rate)+1, p.w.Now())
}

// lasts is how long a duration of the node's clock is in the world.
func (p *proc) lasts(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(float64(d)/p.n.rate) + 1
}

func (p *proc) tickClock() {
	if d := p.local(p.w.Now()).Sub(p.clock.Now()); d > 0 {
		p.clock.Advance(d)
	}
}

// settle follows every step of the process: it does what the loops of a real one do.
func (p *proc) settle() {
	if !p.alive() || p.m == nil {
		return
	}
	if err := p.m.Err(); err != nil {
		p.broke(err)
		return
	}
	if p.server != nil {
		p.server.settle()
		if !p.alive() {
			return
		}
	}
	p.check()
	if sync, done, due := p.m.StartSync(); due {
		p.sync(sync, done)
	}
	if d := p.m.Deadline(); !d.IsZero() {
		p.moveAt(p.world(d))
	}
	if p.core != nil {
		if d := p.core.Deadline(); !d.IsZero() {
			if at := p.world(d); p.tick < 0 || at < p.tick {
				p.tick = at
				p.after(at-p.w.Now(), func() {
					if p.tick == at {
						p.tick = -1
						if d := p.core.Deadline(); !d.IsZero() && !d.After(p.clock.Now()) {
							p.core.Tick(p.clock.Now())
						}
					}
				})
			}
		}
	}
	c := p.m.Core()
	if now := (news{c.LeaderAndEpoch(), c.Role()}); now != p.news {
		p.news = now
		p.w.Note(uint64(p.n.id), uint64(now.Epoch), uint64(now.role), uint64(p.w.Now()))
		p.tell()
	}
}

// tell has the listeners look for news.
func (p *proc) tell() {
	for _, f := range []*follower{p.ctl, p.load} {
		if f != nil && !f.busy {
			f.busy = true
			p.after(f.delay(), f.handOver)
		}
	}
}

// delay is how long a listener's goroutine takes to get to it.
func (f *follower) delay() time.Duration {
	w := f.p.w
	switch {
	case w.healing:
	case w.Chance(w.evil / 12):
		return w.Between(100*time.Millisecond, 2*time.Second)
	case w.Chance(w.evil / 3):
		return w.Between(time.Millisecond, 150*time.Millisecond)
	}
	return w.Between(0, time.Millisecond)
}

func (f *follower) handOver() {
	if f.p.m.HandOver(f.l) {
		f.p.after(f.delay(), f.handOver)
		return
	}
	f.busy = false
}

func (p *proc) sync(sync func() error, done func(error)) {
	w := p.w
	d := w.Between(50*time.Microsecond, w.slowSync)
	if w.Rand.IntN(2) == 0 {
		err := sync()
		p.after(d, func() { done(err) })
		return
	}
	p.after(d, func() { done(sync()) })
}

func (p *proc) moveAt(at time.Duration) {
	if p.wake >= 0 && p.wake <= at {
		return
	}
	p.wake = at
	p.after(at-p.w.Now(), func() {
		if p.wake == at {
			p.wake = -1
			p.m.Move()
		}
	})
}

// broke ends a process whose disk failed. Any other failure is a fault.
func (p *proc) broke(err error) {
	switch {
	case errors.Is(err, errCrash):
		p.n.crash("power lost")
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ENOSPC):
		p.n.crash("disk error: " + err.Error())
	default:
		p.w.fail("node %d failed: %v", p.n.id, err)
	}
}

// crash ends the process at once. What was not synced may be lost.
func (n *node) crash(why string) {
	p := n.proc
	if p == nil {
		return
	}
	n.logf("crashes: %s", why)
	n.w.stats.crashes++
	n.proc = nil
	n.lastEpoch = -1
	n.disk = n.disk.CrashClone(n.w.Rand, pick(n.w, 0, 0.5, 1))
	_ = p.m.Close()
	n.loseData()
	if n.w.data {
		lives := n.lives
		n.w.After(n.w.Between(time.Millisecond, pick(n.w, 20*time.Millisecond, 500*time.Millisecond)), func() {
			if n.proc == nil && n.lives == lives {
				n.start()
			}
		})
	}
	for _, o := range n.w.procs() { // most connections break, and the other end hears of it
		if o.core != nil && n.w.Chance(0.7) {
			o.after(n.w.Between(0, 3*time.Millisecond), func() { o.core.LinkBroken(o.clock.Now(), controller.Link(n.id)) })
		}
		if n.w.Chance(0.5) {
			o.after(n.w.Between(0, 3*time.Millisecond), func() { o.m.Step(raft.PeerLost{ID: n.id}) })
		}
	}
}

// stop ends the process in order: a leader hands over first.
func (n *node) stop() {
	p := n.proc
	if p == nil {
		return
	}
	n.logf("is told to stop")
	p.do(func() { p.m.Step(raft.ShutdownAsked{}) })
	p.after(n.w.Between(20*time.Millisecond, 300*time.Millisecond), func() { n.crash("stopped") })
}

// Wake implements raft.World.
func (p *proc) Wake() { p.moveAt(p.w.Now() + p.w.Between(0, 300*time.Microsecond)) }

// Send implements raft.World.
func (p *proc) Send(s raft.Send) {
	w := p.w
	w.sawRequest(p.n, s.Request)
	to := w.nodes[s.To.Port-9001]
	req := w.transcodeRequest(s.Request)
	respond := func(ev raft.Responded) {
		ev.Correlation = s.Correlation
		w.links.Send(to.id, p.n.id, func() {
			if p.alive() {
				p.do(func() { p.m.Step(ev) })
			}
		})
	}
	w.links.Send(p.n.id, to.id, func() {
		if to.proc == nil || !to.controller {
			respond(raft.Responded{Err: errors.New("refused"), Refused: true})
			return
		}
		if _, ok := req.(*kmsg.ApiVersionsRequest); ok {
			resp := kmsg.NewPtrApiVersionsResponse()
			resp.Version = 4
			resp.SupportedFeatures = []kmsg.ApiVersionsResponseSupportedFeature{{Name: "kraft.version", MinVersion: 0, MaxVersion: 1}}
			respond(raft.Responded{Response: resp})
			return
		}
		to.proc.do(func() {
			to.proc.m.HandleRequest(raft.RequestContext{Listener: listener}, req, func(resp kmsg.Response) {
				respond(raft.Responded{Response: w.transcodeResponse(resp)})
			})
		})
	})
}

// transcodeRequest passes a request through its bytes.
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

// submit gives the node's controller a request from another node. answer gets nil when the request can't have reached anybody.
// It may never be called.
func (n *node) submit(from int32, req kmsg.Request, answer func(resp kmsg.Response, err error)) {
	w := n.w
	w.links.Send(from, n.id, func() {
		p := n.proc
		if p == nil || p.core == nil {
			w.links.Send(n.id, from, func() { answer(nil, errors.New("refused")) })
			return
		}
		p.do(func() {
			p.handle(from, req, func(resp kmsg.Response, err error) {
				w.links.Send(n.id, from, func() { answer(resp, err) })
			})
		})
	})
}

// handle gives a request to the controller core as its driver does.
func (p *proc) handle(from int32, req kmsg.Request, reply controller.Reply) {
	if hb, ok := req.(*kmsg.BrokerHeartbeatRequest); ok {
		handled := p.core.Tracker().Arrived(hb.BrokerID, hb.BrokerEpoch, p.clock.Now(), controller.Link(from))
		var d time.Duration // the controller may be busy
		if !p.w.healing && p.w.Chance(p.w.evil/2) {
			d = p.w.Between(0, 2*sessionTimeout)
		}
		p.after(d, func() {
			p.submit(req, reply)
			handled(p.clock.Now(), p.core.Active())
		})
		return
	}
	p.submit(req, reply)
}

func (p *proc) submit(req kmsg.Request, reply controller.Reply) {
	now := p.clock.Now()
	req.SetVersion(req.MaxVersion())
	end, answered := p.m.LogEndOffset(), false
	p.core.Submit(now, &controller.RequestContext{Principal: "User:sim", Forwarded: true}, req, func(resp kmsg.Response, err error) {
		if answered {
			p.w.fail("controller %d answers a %T twice", p.n.id, req)
		}
		answered = true
		p.w.stats.replies++
		if err == nil {
			p.w.checkReply(p, req, resp, end)
		}
		reply(resp, err)
	})
	if at := p.core.Deadline(); !at.IsZero() && !at.After(now) {
		p.core.Tick(now)
	}
}

// probe looks whether a broker's process is there.
func (p *proc) probe(s controller.Suspect, done func(controller.Verdict)) {
	o := p.w.nodes[s.ID-1]
	verdict := func(v controller.Verdict) {
		p.after(0, func() { p.core.Probed(p.clock.Now(), done, v) })
	}
	answered := false
	p.w.links.Send(p.n.id, o.id, func() {
		v := controller.Listening
		if o.proc == nil {
			v = controller.Refusing
		}
		p.w.links.Send(o.id, p.n.id, func() {
			if !answered && p.alive() {
				answered = true
				verdict(v)
			}
		})
	})
	p.after(300*time.Millisecond, func() {
		if !answered {
			answered = true
			verdict(controller.Unknown)
		}
	})
}

// coreListener gives the controller core what the quorum commits.
type coreListener struct{ p *proc }

func (l *coreListener) HandleCommit(b raft.CommittedBatch) {
	if l.p.w.out != nil {
		var names []string
		for _, r := range b.Records {
			names = append(names, r.Message.MessageName())
		}
		l.p.n.logf("controller gets %d to %d of epoch %d: %v", b.BaseOffset, b.LastOffset, b.Epoch, names)
	}
	l.p.core.HandleCommit(l.p.clock.Now(), b.BaseOffset, b.LastOffset, b.Records)
	l.p.lookAtCore()
}

func (l *coreListener) HandleSnapshot(r *raft.SnapshotReader) {
	l.p.core.LoadSnapshot(l.p.clock.Now(), r.ID().Offset, snapshotRecords(r))
	l.p.lookAtCore()
}

func (l *coreListener) HandleLeaderChange(e raft.LeaderAndEpoch) {
	l.p.n.logf("controller hears of leader %d in epoch %d", e.LeaderID, e.Epoch)
	l.p.core.HandleLeaderChange(l.p.clock.Now(), e.LeaderID, e.Epoch)
	l.p.lookAtCore()
}

func (l *coreListener) BeginShutdown() {}

func snapshotRecords(r *raft.SnapshotReader) func(yield func(message.Versioned) bool) {
	return func(yield func(message.Versioned) bool) {
		for {
			records, err := r.Next()
			if err != nil {
				if err != io.EOF && !errors.Is(err, errCrash) && !errors.Is(err, syscall.EIO) {
					panic(err)
				}
				return // the reader remembers any other error, and the node ends with it
			}
			for _, v := range records {
				if !yield(v) {
					return
				}
			}
		}
	}
}
