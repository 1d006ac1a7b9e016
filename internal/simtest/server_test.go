package simtest

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	gbroker "gregor/internal/broker"
	"gregor/internal/config"
	"gregor/internal/log"
	"gregor/internal/metadata"
	"gregor/internal/replica"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// disks are the log directories of a node: what survives a crash.
type disks struct {
	mem     *vfs.Mem
	dirs    []string
	ids     map[string]uuid.UUID
	failing map[string]bool // operations in the directory fail
	fuse    int             // changes until the process dies in the middle; negative is never
	blown   bool            // it has died, and nothing leaves it any more
	wiped   int             // how often the directories were lost
}

// format makes directories as a new machine has them.
func (n *node) format() {
	d := n.disks
	d.mem, d.ids, d.failing = vfs.NewMem(), map[string]uuid.UUID{}, map[string]bool{}
	d.mem.SetClock(func() time.Time { return start })
	for i, dir := range d.dirs {
		d.ids[dir] = uuid.UUID{0: 0xd1, 12: byte(d.wiped), 13: byte(n.id), 15: byte(i + 1)}
		must(d.mem.MkdirAll(dir))
		must(log.WriteMetaProperties(d.mem, dir, log.MetaProperties{Version: 1, ClusterID: clusterID, NodeID: n.id, DirectoryID: d.ids[dir]}, start))
		must(d.mem.SyncAll(dir))
	}
	must(d.mem.SyncDir("/"))
}

func (n *node) beforeData(op vfs.Op) error {
	d := n.disks
	if d.blown {
		return errCrash
	}
	for dir := range d.failing {
		if len(op.Path) >= len(dir) && op.Path[:len(dir)] == dir {
			return errDisk
		}
	}
	if d.fuse >= 0 && op.Kind.Changes() {
		if d.fuse == 0 {
			d.blown = true
			return errCrash
		}
		d.fuse--
	}
	return nil
}

// server is what a broker's process has: the lifecycle's core, and from its recovery on logs and replicas.
type server struct {
	w      *world
	p      *proc
	config *config.Live
	life   *gbroker.LifecycleCore
	logs   *log.Manager
	m      *replica.Manager
	parts  []*replica.Partition // that were online at the last check
	beatAt time.Time            // when the lifecycle is to be asked next
	moving map[assigned]placed
	told   bool // the assigner has a request under way
}

// placed is the directory of a replica, of which the controller must be told.
type placed struct {
	dir  uuid.UUID
	done func()
}

type assigned struct {
	topic     uuid.UUID
	partition int32
}

func newServer(p *proc) *server {
	s := &server{w: p.w, p: p, config: config.NewLive(p.w.brokerConfig(p.n)), moving: map[assigned]placed{}}
	p.n.disks.fuse, p.n.disks.blown = -1, false
	s.poll()
	return s
}

// run does something in the process that concerns the data and not the quorum.
func (s *server) run(f func()) {
	p := s.p
	if !p.alive() || p.server != s {
		return
	}
	if p.frozen > s.w.Now() {
		s.w.After(p.frozen-s.w.Now(), func() { s.run(f) })
		return
	}
	p.tickClock()
	f()
	s.settle()
}

// settle follows every step of the process.
func (s *server) settle() {
	if !s.p.alive() {
		return
	}
	if s.p.n.disks.blown {
		s.w.ledger.torn(s.p.n)
		s.p.n.die("in the middle of writing", s.w.survival(s.p.n))
		return
	}
	s.check()
}

// in has something done in d of the process's time.
func (s *server) in(d time.Duration, f func()) {
	s.w.After(s.p.lasts(d), func() { s.run(f) })
}

// timer is a replica.Timer in the world's time.
type timer struct {
	s   *server
	f   func()
	set int // the setting that counts, 0 for none
	n   int
}

func (s *server) afterFunc(d time.Duration, f func()) replica.Timer {
	t := &timer{s: s, f: f}
	t.Reset(d)
	return t
}

func (t *timer) Stop() bool {
	was := t.set != 0
	t.set = 0
	return was
}

func (t *timer) Reset(d time.Duration) bool {
	was := t.set != 0
	t.n++
	n := t.n
	t.set = n
	t.s.w.After(t.s.p.lasts(d), func() {
		if t.set == n {
			t.s.run(func() {
				if t.set == n {
					t.set = 0
					t.f()
				}
			})
		}
	})
	return was
}

// poll begins the life of the broker once the node knows the metadata.
func (s *server) poll() {
	if !s.p.loader.CaughtUp() {
		s.in(5*time.Millisecond, s.poll)
		return
	}
	if c, b := s.p.core, s.p.loader.Image().Cluster.Broker(s.p.n.id); c != nil && b != nil && s.holds(b) {
		s.p.do(func() { c.Lost(s.p.clock.Now(), b.ID, b.Epoch) }) // as the node does: it has the locks of the directories
	}
	n := s.p.n
	var dirs []uuid.UUID
	for _, d := range n.disks.dirs {
		dirs = append(dirs, n.disks.ids[d])
	}
	o := gbroker.LifecycleOptions{NodeID: n.id, ClusterID: clusterID, Incarnation: n.incarnation(1), LogDirs: dirs,
		Listeners:    []config.Listener{{Name: "PLAINTEXT", Host: "broker", Port: 9100 + int(n.id)}},
		CordonedDirs: func() []uuid.UUID { return nil }, PreviousEpoch: log.PreviousBrokerEpoch(n.disks.mem, n.disks.dirs),
		MetadataOffset: s.p.loader.LastAppliedOffset, HeartbeatInterval: 150 * time.Millisecond, SessionTimeout: sessionTimeout,
		Rand: s.w.rng(n, 11), Logger: s.w.logger(n)}
	if n.id%3 > 0 {
		o.Rack = "r" + strconv.Itoa(int(n.id%3))
	}
	s.life = gbroker.NewLifecycleCore(o)
	must(s.p.loader.Install(&waker{s}))
	s.beat()
}

// holds says whether a registration has just the directories of this node.
func (s *server) holds(b *metadata.Broker) bool {
	d := s.p.n.disks
	return len(b.LogDirs) > 0 && !slices.ContainsFunc(b.LogDirs, func(id uuid.UUID) bool {
		return !slices.ContainsFunc(d.dirs, func(dir string) bool { return d.ids[dir] == id })
	})
}

// waker tells the lifecycle of new metadata.
type waker struct{ s *server }

func (*waker) Name() string { return "lifecycle" }

func (k *waker) Publish(*metadata.Delta, *metadata.Image, metadata.Manifest) {
	k.s.life.MetadataAdvanced(k.s.p.clock.Now())
	k.s.soon()
}

// soon has the lifecycle asked after what is being done.
func (s *server) soon() { s.in(0, s.beat) }

// beat sends what the lifecycle wants to send.
func (s *server) beat() {
	now := s.p.clock.Now()
	q, at := s.life.Next(now)
	if q == nil {
		if !at.IsZero() && !at.Equal(s.beatAt) {
			s.beatAt = at
			s.in(at.Sub(now), func() {
				if s.beatAt.Equal(at) {
					s.beatAt = time.Time{}
				}
				s.beat()
			})
		}
		s.moveOn()
		return
	}
	state := s.life.State()
	s.ask(q, sessionTimeout, func(resp kmsg.Response, err error) {
		s.life.Answered(s.p.clock.Now(), resp, err)
		if s.life.State() != state {
			s.p.n.logf("broker is %v with epoch %d", s.life.State(), s.life.Epoch())
		}
		s.moveOn()
		s.beat()
	})
}

// moveOn does what a new state of the lifecycle asks for.
func (s *server) moveOn() {
	switch {
	case s.life.State() == gbroker.Recovery && s.m == nil:
		s.open()
	case s.life.State() == gbroker.ShuttingDown:
		s.stop(true)
	}
}

// ask sends a request to the active controller; done is called once, as the node's forwarder calls it.
func (s *server) ask(q kmsg.Request, timeout time.Duration, done func(kmsg.Response, error)) {
	over := false
	finish := func(resp kmsg.Response, err error) {
		s.run(func() {
			if !over {
				over = true
				done(resp, err)
			}
		})
	}
	s.in(timeout, func() { finish(nil, api.ErrRequestTimedOut) })
	to := s.w.activeNode()
	if to == nil {
		s.in(20*time.Millisecond, func() { finish(nil, api.ErrNotController) })
		return
	}
	if s.p.n.disks.blown {
		return
	}
	to.submit(s.p.n.id, s.w.transcodeRequest(q), finish)
}

func (s *server) topicConfig(img *metadata.Image, topic string) config.Topic {
	return s.config.Current().TopicWith(img.Configs.Topic(topic))
}

// open opens the logs and begins to be a replica.
func (s *server) open() {
	n, img := s.p.n, s.p.loader.Image()
	for dir := range n.disks.failing {
		delete(n.disks.failing, dir) // it was repaired before the start
	}
	logs, err := log.Open(context.Background(), log.Options{FS: vfs.Hook(n.disks.mem, n.beforeData), Clock: s.p.clock, Logger: s.w.logger(n),
		Dirs: n.disks.dirs, NodeID: n.id, ClusterID: clusterID, NoBackground: true, RecoveryThreads: 1, Rand: s.w.rng(n, 12),
		TopicConfig: func(topic string) log.Config { t := s.topicConfig(img, topic); return replica.LogConfig(&t) },
		Known: func(tp log.TopicPartition, id uuid.UUID) bool {
			t := img.Topics.ByID(id)
			p := t.Partition(tp.Partition)
			return t != nil && t.Name == tp.Topic && p != nil && slices.Contains(p.Replicas, n.id)
		},
		Placed: func(tp log.TopicPartition, id uuid.UUID) (dir uuid.UUID) {
			if p := img.Topics.ByID(id).Partition(tp.Partition); p != nil {
				dir, _ = p.Directory(n.id)
			}
			return dir
		},
		DeleteDelay: 100 * time.Millisecond, CleanerBufferBytes: 1 << 16, OnDirFailure: s.dirFailed,
		Intervals: log.Intervals{RecoveryPoint: s.w.checkpoints, LogStart: s.w.checkpoints, HighWatermark: s.w.checkpoints, Flush: 100 * time.Millisecond},
	})
	if err != nil {
		if !errors.Is(err, errDisk) && !errors.Is(err, errCrash) && !full(err) {
			s.w.fail("node %d: %v", n.id, err)
		}
		n.logf("can't open its logs: %v", err)
		n.die("no logs", s.w.survival(n))
		return
	}
	if n.disks.blown {
		return
	}
	s.logs = logs
	s.w.ledger.opened(n, logs)
	s.m = replica.New(replica.Options{NodeID: n.id, Logs: logs, Config: s.config, Clock: s.p.clock, Logger: s.w.logger(n), Rand: s.w.rng(n, 13),
		AssignDirectory: s.assign, BrokerEpoch: s.life.Epoch, AlterPartition: s.alterPartition,
		Connect: func() replica.Connections { return &conn{s: s, calls: map[int]*call{}} }, AfterFunc: s.afterFunc, OneThread: true})
	s.m.Start()
	s.tick()
	must(s.p.loader.Install(&dataPublisher{s}))
	s.life.ReadyToUnfence(s.p.clock.Now())
	s.soon()
}

// tick does the work that the log manager's own goroutine does.
func (s *server) tick() {
	s.logs.Tick()
	s.in(40*time.Millisecond, s.tick)
}

// dataPublisher gives the replicas what is new in the metadata.
type dataPublisher struct{ s *server }

func (*dataPublisher) Name() string { return "replicas" }

func (d *dataPublisher) Publish(delta *metadata.Delta, img *metadata.Image, _ metadata.Manifest) {
	s := d.s
	s.m.Publish(delta, img)
	if delta.Cluster == nil {
		return
	}
	for id, b := range delta.Cluster.Brokers {
		if b != nil && id != s.p.n.id && !b.Fenced && b.InControlledShutdown {
			s.life.Hurry(s.p.clock.Now())
			s.soon()
			return
		}
	}
}

// dirFailed takes the news that a log directory is offline.
func (s *server) dirFailed(dir string, err error) {
	n := s.p.n
	if n.disks.blown {
		return
	}
	if !errors.Is(err, errDisk) {
		s.w.fail("node %d: %s goes offline: %v", n.id, dir, err)
	}
	n.logf("%s is offline: %v", dir, err)
	s.life.DirectoryFailed(s.p.clock.Now(), n.disks.ids[dir])
	s.soon()
	if s.m == nil {
		return // FailDirectory finds nothing before there are replicas
	}
	s.m.FailDirectory(dir)
	for _, d := range s.logs.Dirs() {
		if d.Offline == nil {
			return
		}
	}
	s.in(0, func() { n.die("all log directories are offline", 1) })
}

// assign tells the controller where a replica lies.
func (s *server) assign(topic uuid.UUID, partition int32, dir uuid.UUID, done func()) {
	s.moving[assigned{topic, partition}] = placed{dir, done}
	s.in(0, s.sendAssignments)
}

func (s *server) sendAssignments() {
	if s.told || len(s.moving) == 0 {
		return
	}
	s.told = true
	q := kmsg.NewPtrAssignReplicasToDirsRequest()
	q.BrokerID, q.BrokerEpoch = s.p.n.id, s.life.Epoch()
	sent := map[assigned]uuid.UUID{}
	for _, dir := range s.p.n.disks.dirs {
		d := kmsg.NewAssignReplicasToDirsRequestDirectory()
		d.ID = s.p.n.disks.ids[dir]
		for _, p := range s.w.sortedAssignments(s.moving) {
			if s.moving[p].dir == d.ID {
				sent[p] = d.ID
				t := kmsg.NewAssignReplicasToDirsRequestDirectoryTopic()
				t.TopicID = p.topic
				x := kmsg.NewAssignReplicasToDirsRequestDirectoryTopicPartition()
				x.Partition = p.partition
				t.Partitions = append(t.Partitions, x)
				d.Topics = append(d.Topics, t)
			}
		}
		if len(d.Topics) > 0 {
			q.Directories = append(q.Directories, d)
		}
	}
	s.ask(q, 300*time.Millisecond, func(resp kmsg.Response, err error) {
		s.told = false
		if err == nil {
			err = api.FromCode(resp.(*kmsg.AssignReplicasToDirsResponse).ErrorCode)
		}
		if err != nil {
			s.in(50*time.Millisecond, s.sendAssignments)
			return
		}
		for _, p := range s.w.sortedAssignments(s.moving) {
			d, ok := sent[p]
			if !ok {
				continue
			}
			if x := s.moving[p]; x.dir == d {
				delete(s.moving, p)
				if x.done != nil {
					x.done()
				}
			}
		}
		s.sendAssignments()
	})
}

func (w *world) sortedAssignments(m map[assigned]placed) []assigned {
	var out []assigned
	for p := range m {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b assigned) int {
		if c := a.topic.Compare(b.topic); c != 0 {
			return c
		}
		return int(a.partition - b.partition)
	})
	return out
}

func (s *server) alterPartition(q *kmsg.AlterPartitionRequest, done func(*kmsg.AlterPartitionResponse, error)) {
	s.ask(q, 300*time.Millisecond, func(resp kmsg.Response, err error) {
		r, _ := resp.(*kmsg.AlterPartitionResponse)
		done(r, err)
	})
}

// stop ends the broker in order. The node's process goes with it.
func (s *server) stop(asked bool) {
	n := s.p.n
	n.logf("broker stops in order, let go %v", asked)
	if s.m != nil {
		s.m.Close()
		s.check()
		if err := s.logs.Close(context.Background(), s.life.Epoch()); err != nil && !full(err) && !errors.Is(err, errDisk) && !errors.Is(err, errCrash) {
			s.w.fail("node %d: %v", n.id, err)
		}
	}
	s.m, s.parts = nil, nil
	n.die("stopped", 1)
}

// conn carries requests to other brokers, as peers do.
type conn struct {
	s     *server
	calls map[int]*call
	next  int
}

type call struct {
	to   int32
	done func(kmsg.Response, error)
}

var (
	errReset   = errors.New("connection reset")
	errTimeout = errors.New("no answer in time")
)

// Send implements replica.Connections.
func (c *conn) Send(addr string, q kmsg.Request, _ int16, timeout time.Duration, done func(kmsg.Response, error)) {
	_, port, err := net.SplitHostPort(addr)
	must(err)
	id, err := strconv.Atoi(port)
	must(err)
	to := c.s.w.nodes[id-9101]
	c.next++
	n := c.next
	c.calls[n] = &call{to.id, done}
	c.s.in(timeout, func() { c.finish(n, nil, errTimeout) })
	c.s.transmit(to, func(o *server) {
		o.serve(c.s.p.n.id, c.s.w.transcodeRequest(q), func(resp kmsg.Response) {
			o.back(c.s, func() { c.finish(n, c.s.w.transcodeResponse(resp), nil) })
		})
	}, func() { c.finish(n, nil, errReset) })
}

// transmit has something done at another broker, or refused: it isn't listening. Neither may happen.
func (s *server) transmit(to *node, arrived func(o *server), refused func()) {
	if s.p.n.disks.blown {
		return
	}
	w, from := s.w, s.p.n.id
	w.links.Send(from, to.id, func() {
		if to.proc == nil || to.proc.server == nil || to.proc.server.m == nil {
			w.links.Send(to.id, from, func() { s.run(refused) })
			return
		}
		o := to.proc.server
		o.run(func() {
			if o.m != nil {
				arrived(o)
			}
		})
	})
}

// back sends an answer to who asked.
func (s *server) back(to *server, f func()) {
	if !s.p.n.disks.blown {
		s.w.links.Send(s.p.n.id, to.p.n.id, func() { to.run(f) })
	}
}

func (c *conn) finish(n int, resp kmsg.Response, err error) {
	if x := c.calls[n]; x != nil {
		delete(c.calls, n)
		x.done(resp, err)
	}
}

// Forget implements replica.Connections.
func (c *conn) Forget(addr string) {
	for _, n := range c.numbers() {
		if net.JoinHostPort("broker", strconv.Itoa(9100+int(c.calls[n].to))) == addr {
			c.s.in(0, func() { c.finish(n, nil, errReset) })
		}
	}
}

func (c *conn) numbers() []int {
	var out []int
	for n := range c.calls {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// Close implements replica.Connections.
func (c *conn) Close() { clear(c.calls) }

// die ends the process; survive is how likely what was not synced is still on the disks.
func (n *node) die(why string, survive float64) {
	if n.proc == nil {
		return
	}
	n.survive = survive
	n.crash(why)
}

// loseData makes the disks what they are after a crash.
func (n *node) loseData() {
	d := n.disks
	if d == nil {
		return
	}
	d.mem = d.mem.CrashClone(n.w.Rand, n.survive)
	n.w.ledger.crashed(n, n.survive)
	n.survive = 1
}

// survival draws how the next death of a node is: mostly its process is killed and all that was written is still there.
func (w *world) survival(n *node) float64 {
	if !w.Chance(w.power) {
		return 1
	}
	if !w.anyLoss && !w.ledger.spare(n) {
		return 1
	}
	w.stats.powerLosses++
	return pick(w, 0, 0.3, 0.7, 0.9)
}

func full(err error) bool { return errors.Is(err, errFull) }

// logFiles shows what is in a directory.
func (n *node) logFiles(dir string) {
	entries, _ := n.disks.mem.ReadDir(dir)
	for _, e := range entries {
		i, err := e.Info()
		must(err)
		n.logf("%s/%s: %d bytes", dir, e.Name(), i.Size())
	}
}
