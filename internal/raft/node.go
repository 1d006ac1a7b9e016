package raft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/telemetry"
)

// mailboxSize bounds the events that wait for the driver. Whoever has another one waits: the driver never waits for anybody
// but the disk.
const mailboxSize = 1024

// cleanInterval is how often the driver looks whether snapshots and log have grown too big or too old, and for how long a
// deleted snapshot stays on disk.
const cleanInterval = time.Minute

// Node drives one replica of the metadata log.
type Node struct {
	o    Options
	lg   *slog.Logger
	r    *replica
	feed *feed

	mailbox chan Event
	wake    chan struct{} // the accumulator has something; holds at most one
	syncs   chan syncJob
	synced  chan syncResult
	quit    chan struct{} // closed to end the driver
	ended   chan struct{} // closed when the driver has ended
	syncEnd chan struct{} // closed when the syncer has ended
	left    chan struct{} // closed when the node may go after ShutdownAsked

	state atomic.Pointer[nodeState]
	stats stats

	mu       sync.Mutex // guards the rest
	nextID   uint64
	replies  map[uint64]func(kmsg.Response)
	fatal    error
	shutdown bool
	stopped  bool
}

// nodeState is what others may look at, as of the last step.
type nodeState struct {
	leader    LeaderAndEpoch
	role      Role
	hw        int64
	version   int16
	voters    VoterSet
	endpoints []Endpoint
}

type syncJob struct {
	end int64
	gen int
}

type syncResult struct {
	syncJob
	err error
}

// stats is what a node counts.
type stats struct {
	appended, elections, syncs atomic.Int64
	commit                     telemetry.Histogram
	waiting                    []writtenAt // the driver's: what this leader wrote and is not committed
}

// writtenAt is when the log's end was written.
type writtenAt struct {
	end int64
	at  time.Time
}

// Stats is what a node has counted since it started.
type Stats struct {
	Role            Role
	Voters          int
	AppendedRecords int64 // as a leader
	Elections       int64 // that this node won
	Syncs           int64 // of the log
	CommitLatency   *telemetry.Histogram
}

// Stats tells what the node has counted since it started.
func (n *Node) Stats() Stats {
	s := n.state.Load()
	return Stats{
		Role: s.role, Voters: len(s.voters), AppendedRecords: n.stats.appended.Load(), Elections: n.stats.elections.Load(),
		Syncs: n.stats.syncs.Load(), CommitLatency: &n.stats.commit,
	}
}

// withDefaults fills in Kafka's defaults.
func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.ElectionTimeout, time.Second)
	def(&o.ElectionBackoffMax, time.Second)
	def(&o.FetchTimeout, 2*time.Second)
	def(&o.RequestTimeout, 2*time.Second)
	def(&o.RetryBackoff, 20*time.Millisecond)
	def(&o.AppendLinger, 25*time.Millisecond)
	def(&o.FetchMaxWait, 500*time.Millisecond)
	def(&o.SegmentAge, 7*24*time.Hour)
	def(&o.RetentionAge, 7*24*time.Hour)
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 1 << 30
	}
	if o.FetchMaxBytes == 0 {
		o.FetchMaxBytes = MaxBatchBytes
	}
	if o.FetchSnapshotMaxBytes == 0 {
		o.FetchSnapshotMaxBytes = 1 << 20
	}
	if o.RetentionBytes == 0 {
		o.RetentionBytes = 100 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnFatal == nil {
		o.OnFatal = func(error) {}
	}
	if o.Listener == "" && len(o.Endpoints) > 0 {
		o.Listener = o.Endpoints[0].Name
	}
	return o
}

// Open opens or makes the log, recovers it, and starts the node. A lone voter leads when Open returns.
func Open(ctx context.Context, o Options) (*Node, error) {
	o = o.withDefaults()
	lg := o.Logger.With("component", "raft")
	dir := filepath.Join(o.Dir, DirName)
	if err := o.FS.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("raft: make %s: %w", dir, err)
	}
	log, err := openLog(ctx, o)
	if err != nil {
		return nil, err
	}
	n, err := newNode(o, lg, dir, log)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return n, nil
}

func newNode(o Options, lg *slog.Logger, dir string, log Log) (*Node, error) {
	r, err := newReplica(o, lg, dir, log)
	if err != nil {
		return nil, err
	}
	n := &Node{
		o: o, lg: lg,
		mailbox: make(chan Event, mailboxSize), wake: make(chan struct{}, 1),
		syncs: make(chan syncJob, 1), synced: make(chan syncResult, 1),
		quit: make(chan struct{}), ended: make(chan struct{}), syncEnd: make(chan struct{}), left: make(chan struct{}),
		replies: map[uint64]func(kmsg.Response){},
	}
	n.feed = newFeed(r.store, n.fail)
	n.r = r
	n.r.env = n
	n.r.acc = newAccumulator(n.poke)
	n.publish()
	if err := n.r.start(o.Clock.Now()); err != nil {
		return nil, err
	}
	n.publish()
	go n.runSyncer()
	go n.run()
	return n, nil
}

// newReplica recovers what the disk holds and makes the replica on it. Its environment and accumulator are still missing.
func newReplica(o Options, lg *slog.Logger, dir string, log Log) (*replica, error) {
	st := &store{
		fs: o.FS, dir: dir, log: log, lg: lg, now: o.Clock.Now,
		rand: rand.New(rand.NewPCG(o.Rand.Uint64(), o.Rand.Uint64())),
	}
	if err := st.loadSnapshots(); err != nil {
		return nil, err
	}
	if err := st.verifyLatest(); err != nil {
		return nil, err
	}
	if err := st.recover(); err != nil {
		return nil, err
	}
	static, err := NewVoterSet(o.StaticVoters)
	if err != nil {
		return nil, err
	}
	bootstrap, err := bootstrapPeers(o.BootstrapServers)
	if err != nil {
		return nil, err
	}
	core := NewCore(CoreConfig{
		NodeID: o.NodeID, ReplicaKey: ReplicaKey{o.NodeID, o.DirectoryID}, ClusterID: o.ClusterID, CanVote: o.Controller,
		Listener: o.Listener, Endpoints: o.Endpoints, KRaftVersions: KRaftVersions, StaticVoters: static, Bootstrap: bootstrap,
		ElectionTimeout: o.ElectionTimeout, ElectionBackoffMax: o.ElectionBackoffMax, FetchTimeout: o.FetchTimeout,
		RequestTimeout: o.RequestTimeout, RetryBackoff: o.RetryBackoff,
		FetchMaxWait: o.FetchMaxWait, FetchMaxBytes: o.FetchMaxBytes, FetchSnapshotMaxBytes: o.FetchSnapshotMaxBytes,
		AutoJoin: o.AutoJoin,
	}, o.Rand, lg)
	return &replica{core: core, store: st, lg: lg, now: o.Clock.Now}, nil
}

// bootstrapPeers gives the servers negative ids, as their real ones are not known.
func bootstrapPeers(servers []string) ([]Peer, error) {
	var peers []Peer
	for i, s := range servers {
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			return nil, fmt.Errorf("raft: bootstrap server %q: %w", s, err)
		}
		p, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("raft: bootstrap server %q: port: %w", s, err)
		}
		peers = append(peers, Peer{ID: int32(-2 - i), Host: host, Port: uint16(p)})
	}
	return peers, nil
}

// run is the driver.
func (n *Node) run() {
	defer close(n.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	clean := time.NewTicker(cleanInterval)
	defer clean.Stop()
	var deleted []string
	var syncing bool
	pace := pace{linger: n.o.AppendLinger}
	for {
		now := n.o.Clock.Now()
		pace.drain(n.r, now, syncing)
		if n.r.dirty && !syncing && n.r.failed == nil {
			n.r.dirty = false
			syncing = true
			n.syncs <- syncJob{end: n.r.store.log.EndOffset(), gen: n.r.gen}
		}
		n.publish()
		if n.r.failed != nil {
			n.fail(n.r.failed)
			n.drop()
			return
		}
		if n.r.core.mayLeave() {
			select {
			case <-n.left:
			default:
				close(n.left)
			}
		}
		deadline := n.r.deadline()
		if !pace.until.IsZero() && (deadline.IsZero() || pace.until.Before(deadline)) {
			deadline = pace.until
		}
		wait := time.Hour
		if !deadline.IsZero() {
			wait = max(0, deadline.Sub(now))
		}
		timer.Reset(wait)
		select {
		case ev := <-n.mailbox:
			n.r.step(n.o.Clock.Now(), ev)
		case <-n.wake:
		case res := <-n.synced:
			syncing = false
			switch {
			case res.err != nil:
				n.r.failed = fmt.Errorf("raft: sync the log: %w", res.err)
			case res.gen == n.r.gen:
				n.r.step(n.o.Clock.Now(), Synced{res.end})
			}
		case <-timer.C:
			n.r.step(n.o.Clock.Now(), Ticked{})
		case <-clean.C:
			var err error
			if deleted, err = n.r.clean(n.o.Clock.Now(), n.o.RetentionBytes, n.o.RetentionAge, deleted); err != nil {
				n.lg.Error("can't clean the metadata log", "err", err)
			}
		case <-n.quit:
			n.drop()
			return
		}
	}
}

// pace decides when a leader writes what has gathered. A lone voter, or an idle log, waits for nothing. While a sync is under
// way, what comes in gathers to share the next one; but followers should not wait for it longer than the linger.
type pace struct {
	linger time.Duration
	until  time.Time // while a sync is under way: when to write what has gathered all the same
}

func (p *pace) drain(r *replica, now time.Time, syncing bool) {
	switch {
	case !r.acc.waiting() && r.stalled == nil:
		p.until = time.Time{}
	case !syncing, !p.until.IsZero() && !now.Before(p.until):
		p.until = time.Time{}
		r.drain(now)
	case p.until.IsZero():
		p.until = now.Add(p.linger)
	}
}

// runSyncer syncs the log beside the driver, so that others may fetch meanwhile.
func (n *Node) runSyncer() {
	defer close(n.syncEnd)
	for job := range n.syncs {
		n.stats.syncs.Add(1)
		n.synced <- syncResult{job, n.r.store.log.Sync()}
	}
}

// drop answers nobody any more.
func (n *Node) drop() {
	close(n.syncs)
	n.r.acc.close()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped = true
	clear(n.replies)
}

// post gives the driver an event; false when it has ended.
func (n *Node) post(ev Event) bool {
	select {
	case <-n.ended:
		return false
	default:
	}
	select {
	case n.mailbox <- ev:
		return true
	case <-n.ended:
		return false
	}
}

func (n *Node) poke() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// fail reports, once, what the node can't go on after.
func (n *Node) fail(err error) {
	n.mu.Lock()
	first := n.fatal == nil
	if first {
		n.fatal = err
	}
	n.mu.Unlock()
	if first {
		n.lg.Error("the metadata log has failed", "err", err)
		n.o.OnFatal(err)
	}
}

// publish lets others see the state.
func (n *Node) publish() {
	c := n.r.core
	s := nodeState{
		leader: c.LeaderAndEpoch(), role: c.Role(), hw: c.HighWatermark(), version: c.KRaftVersion(),
		voters: c.Voters(), endpoints: c.LeaderEndpoints(),
	}
	if old := n.state.Load(); old != nil && old.leader == s.leader && old.role == s.role && old.hw == s.hw &&
		old.version == s.version && sameVoters(old.voters, s.voters) && len(old.endpoints) == len(s.endpoints) {
		return
	}
	n.state.Store(&s)
}

// sameVoters compares by identity: voter sets don't change.
func sameVoters(a, b VoterSet) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// The environment of the replica.

func (n *Node) send(s Send) {
	if n.o.Transport == nil {
		n.r.then(Responded{Correlation: s.Correlation, Err: errNoTransport})
		return
	}
	n.o.Transport.Send(s.To, s.Request, s.Timeout, func(resp kmsg.Response, err error) {
		ev := Responded{Correlation: s.Correlation, Response: resp, Err: err, Refused: errors.Is(err, ErrRefused)}
		// The transport may call at once, on the driver's own goroutine, which must not wait for itself.
		select {
		case n.mailbox <- ev:
		default:
			go n.post(ev)
		}
	})
}

func (n *Node) reply(id uint64, resp kmsg.Response) {
	n.mu.Lock()
	f := n.replies[id]
	delete(n.replies, id)
	n.mu.Unlock()
	if f != nil {
		f(resp)
	}
}

func (n *Node) appended(epoch int32, batches []pendingBatch) {
	last := batches[len(batches)-1].data
	n.stats.appended.Add(last.NextOffset() - batches[0].data.BaseOffset())
	n.stats.waiting = append(n.stats.waiting, writtenAt{last.NextOffset(), n.o.Clock.Now()})
	n.feed.appended(epoch, batches)
}

func (n *Node) truncated(offset int64, restarted bool) { n.feed.truncated(offset, restarted) }

func (n *Node) leaderChanged(l LeaderChanged) {
	n.stats.waiting = nil
	if l.EpochStart >= 0 {
		n.stats.elections.Add(1)
	}
	n.publish()
	n.feed.leaderChanged(l)
}

func (n *Node) committed(offset int64) {
	now := n.o.Clock.Now()
	w := n.stats.waiting
	for len(w) > 0 && w[0].end <= offset {
		n.stats.commit.Observe(now.Sub(w[0].at))
		w = w[1:]
	}
	n.stats.waiting = w
	n.publish()
	n.feed.committed(offset)
}

// Register starts to tell l of what is committed, from the latest snapshot on.
func (n *Node) Register(l Listener) { n.feed.register(l) }

// Unregister stops telling l; when it returns, no call to l is under way. It must not be called from l.
func (n *Node) Unregister(l Listener) { n.feed.unregister(l) }

// Append appends records as one batch: they are committed together or not at all. It returns the offset of the last one at
// once; the records are not yet written, let alone committed. Records must not be changed afterwards. It fails with
// NOT_LEADER_OR_FOLLOWER unless this node leads in epoch, and with RECORD_LIST_TOO_LARGE beyond MaxBatchBytes.
func (n *Node) Append(epoch int32, records []message.Versioned) (lastOffset int64, err error) {
	last, err := n.PrepareAppend(epoch, records)
	if err == nil {
		n.SchedulePreparedAppend()
	}
	return last, err
}

// PrepareAppend is Append, but nothing is written before SchedulePreparedAppend: the caller learns the offsets first, applies
// the records to its own state, and only then lets them go. One goroutine at a time may prepare and schedule.
func (n *Node) PrepareAppend(epoch int32, records []message.Versioned) (lastOffset int64, err error) {
	return n.r.acc.prepare(epoch, n.o.Clock.Now().UnixMilli(), records)
}

// SchedulePreparedAppend lets all that was prepared be written.
func (n *Node) SchedulePreparedAppend() { n.r.acc.schedule() }

// Resign gives up leadership of epoch; nothing happens when the node leads no longer.
func (n *Node) Resign(epoch int32) { n.post(ResignAsked{epoch}) }

// NodeID is the node's id.
func (n *Node) NodeID() int32 { return n.o.NodeID }

// LeaderAndEpoch is what the node knows at the moment. A node that has resigned names no leader.
func (n *Node) LeaderAndEpoch() LeaderAndEpoch {
	s := n.state.Load()
	if s.role == Resigned {
		return LeaderAndEpoch{NoLeader, s.leader.Epoch}
	}
	return s.leader
}

// Role is the node's part at the moment.
func (n *Node) Role() Role { return n.state.Load().role }

// HighWatermark is the offset below which everything is committed, -1 as long as that is not known.
func (n *Node) HighWatermark() int64 { return n.state.Load().hw }

// LogEndOffset is the offset of the next record.
func (n *Node) LogEndOffset() int64 { return n.r.store.log.EndOffset() }

// LogStartOffset is the first offset in the log.
func (n *Node) LogStartOffset() int64 { return n.r.store.log.StartOffset() }

// Voters is the set of voters in force.
func (n *Node) Voters() VoterSet { return n.state.Load().voters }

// LeaderEndpoint is where to reach the leader by a controller listener's name; ok is false while that is not known.
func (n *Node) LeaderEndpoint(listener string) (e Endpoint, ok bool) {
	s := n.state.Load()
	if s.leader.LeaderID < 0 || s.role == Resigned {
		return Endpoint{}, false
	}
	return endpoint(s.endpoints, listener)
}

// KRaftVersion is the level of the feature kraft.version in force.
func (n *Node) KRaftVersion() int16 { return n.state.Load().version }

// UpgradeKRaftVersion raises the feature kraft.version, as UpdateFeatures asks for. It returns the offset of the last record of
// the change, which is done when that is committed; -1 when there was nothing to do.
func (n *Node) UpgradeKRaftVersion(ctx context.Context, epoch int32, version int16, validateOnly bool) (offset int64, err error) {
	type result struct {
		last int64
		err  error
	}
	done := make(chan result, 1)
	if !n.post(UpgradeAsked{Epoch: epoch, Version: version, ValidateOnly: validateOnly, Done: func(last int64, err error) {
		done <- result{last, err}
	}}) {
		return -1, errStopped
	}
	select {
	case r := <-done:
		return r.last, r.err
	case <-n.ended:
		return -1, errStopped
	case <-ctx.Done():
		return -1, ctx.Err()
	}
}

var errStopped = fmt.Errorf("raft: the node has stopped: %w", api.ErrBrokerNotAvailable)

// CreateSnapshot begins a snapshot of all records before id.Offset, the last of which has epoch id.Epoch. The writer is nil
// without an error when there is no need: a snapshot of that id exists, or the log begins after it. lastContainedLogTime is the
// append time of the last record inside, in ms.
func (n *Node) CreateSnapshot(id OffsetAndEpoch, lastContainedLogTime int64) (*SnapshotWriter, error) {
	type answer struct {
		ok      bool
		err     error
		version int16
		voters  VoterSet
	}
	done := make(chan answer, 1)
	if !n.post(snapshotAsked{id, func(ok bool, err error, version int16, voters VoterSet) {
		done <- answer{ok, err, version, voters}
	}}) {
		return nil, errStopped
	}
	var a answer
	select {
	case a = <-done:
	case <-n.ended:
		return nil, errStopped
	}
	if a.err != nil || !a.ok {
		return nil, a.err
	}
	return n.r.store.writeSnapshot(id, lastContainedLogTime, a.version, a.voters, func() { n.post(SnapshotTaken{id}) })
}

// LatestSnapshot opens the newest snapshot; nil without an error when there is none. The caller closes it.
func (n *Node) LatestSnapshot() (*SnapshotReader, error) {
	id, ok := n.r.store.latestSnapshot()
	if !ok {
		return nil, nil
	}
	return n.r.store.openSnapshot(id)
}

// LatestSnapshotID names the newest snapshot.
func (n *Node) LatestSnapshotID() (id OffsetAndEpoch, ok bool) { return n.r.store.latestSnapshot() }

// HandleRequest answers Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch (of the metadata log), FetchSnapshot, DescribeQuorum,
// AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter. reply is called once, from any goroutine, at once or later; it is not
// called when the node stops first.
func (n *Node) HandleRequest(from RequestContext, req kmsg.Request, reply func(kmsg.Response)) {
	n.mu.Lock()
	if n.stopped {
		n.mu.Unlock()
		return
	}
	n.nextID++
	id := n.nextID
	n.replies[id] = reply
	n.mu.Unlock()
	n.post(Requested{ID: id, Listener: from.Listener, Request: req})
}

// PeerLost tells the node that a connection to or from the node id was reset or refused: evidence that its process is gone.
func (n *Node) PeerLost(id int32) { n.post(PeerLost{id}) }

// Shutdown stops the node: a leader resigns and tells the others, listeners are told and waited for, the log is synced and
// closed. It returns ctx's error when the resignation takes too long; the node is stopped in any case.
func (n *Node) Shutdown(ctx context.Context) error {
	n.mu.Lock()
	if n.shutdown {
		n.mu.Unlock()
		<-n.syncEnd
		return nil
	}
	n.shutdown = true
	n.mu.Unlock()
	var late error
	if n.post(ShutdownAsked{}) {
		select {
		case <-n.left:
		case <-n.ended:
		case <-ctx.Done():
			late = ctx.Err()
		}
	}
	n.feed.close()
	close(n.quit)
	<-n.ended
	<-n.syncEnd
	var err error
	if n.r.failed == nil {
		if e := n.r.store.log.Sync(); e != nil {
			err = fmt.Errorf("raft: sync the log: %w", e)
		}
	}
	n.r.store.dropDownload()
	if e := n.r.store.log.Close(); e != nil && err == nil {
		err = fmt.Errorf("raft: close the log: %w", e)
	}
	return errors.Join(late, err)
}
