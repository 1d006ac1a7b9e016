package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"gregor/internal/broker"
	"gregor/internal/config"
	"gregor/internal/coordinator/group"
	"gregor/internal/log"
	"gregor/internal/metadata"
	"gregor/internal/record"
	"gregor/internal/replica"
	"gregor/internal/telemetry"
	"gregor/internal/uuid"
)

// startBroker registers the broker, opens its logs and connects everything that serves clients.
func (n *Node) startBroker(ctx context.Context) error {
	// As in Kafka, one bound for all that needs a controller: without a leader of the quorum there is nobody to register with.
	bound, cancel := context.WithTimeoutCause(ctx, n.cfg.InitialRegistrationTimeout,
		fmt.Errorf("no controller has let this broker register within %v (initial.broker.registration.timeout.ms)", n.cfg.InitialRegistrationTimeout))
	defer cancel()
	if err := n.await(bound, n.caughtUp()); err != nil {
		return err
	}
	n.enter(telemetry.Registration)
	if err := n.startLifecycle(); err != nil {
		return err
	}
	if err := n.await(bound, n.lifecycle.CaughtUp()); err != nil {
		return err
	}
	n.enter(telemetry.Recovery)
	if err := n.openLogs(ctx); err != nil {
		return err
	}
	n.enter(telemetry.Registration)
	n.assigner = broker.NewDirectoryAssigner(n.cfg.NodeID, n.lifecycle.Epoch, forwarder{n}, n.o.Clock, n.logger)
	n.replicas = replica.New(replica.Options{NodeID: n.cfg.NodeID, Logs: n.logs, Config: n.live, Clock: n.o.Clock, Logger: n.logger,
		Rand: n.rand.generator(), AssignDirectory: n.assigner.Assign, BrokerEpoch: n.lifecycle.Epoch, AlterPartition: n.alterPartition,
		Connect: func() replica.Connections { return n.fetcherConnections() }})
	n.replicas.Start()
	close(n.storageUp)
	groups, err := n.groupOptions()
	if err != nil {
		return err
	}
	n.groups = group.New(groups)
	b := broker.New(broker.Options{NodeID: n.cfg.NodeID, ClusterID: n.clusterID, Config: n.live, Replicas: n.replicas, Clock: n.o.Clock,
		Logger: n.logger, Controller: forwarder{n}, Groups: n.groups, Table: n.brokerTable, Authorizer: n.authorizer, KRaftVersion: n.raft.KRaftVersion})
	n.broker.Store(b)
	n.groups.Start(n.cfg.GroupCoordinator.OffsetsPartitions)
	if err := n.loader.Install(&brokerPublisher{n: n, b: b}); err != nil {
		return err
	}
	served := &unfenced{node: n.cfg.NodeID, ch: make(chan struct{})}
	if err := n.loader.Install(served, &n.published); err != nil {
		return err
	}
	n.lifecycle.ReadyToUnfence()
	if err := n.await(ctx, n.lifecycle.Unfenced()); err != nil {
		return err
	}
	// The controller's word comes before the metadata that it rests on: clients would be told of no broker and no leaders.
	return n.await(ctx, served.ch)
}

// alterPartition asks the active controller for changes of ISRs.
func (n *Node) alterPartition(q *kmsg.AlterPartitionRequest, done func(*kmsg.AlterPartitionResponse, error)) {
	forwarder{n}.Forward(broker.Client{}, q, n.o.Clock.Now().Add(n.cfg.RequestTimeout), func(resp kmsg.Response, err error) {
		r, _ := resp.(*kmsg.AlterPartitionResponse)
		if r == nil && err == nil {
			err = fmt.Errorf("answer to AlterPartition is a %T", resp)
		}
		done(r, err)
	})
}

// unfenced closes a channel when the metadata that has been published knows the broker as in service.
type unfenced struct {
	node int32
	ch   chan struct{}
	once sync.Once
}

func (u *unfenced) Name() string { return "broker in service" }

func (u *unfenced) Publish(_ *metadata.Delta, img *metadata.Image, _ metadata.Manifest) {
	if b := img.Cluster.Broker(u.node); b != nil && !b.Fenced {
		u.once.Do(func() { close(u.ch) })
	}
}

// buryPredecessor tells the controller of this process that the broker's life before this one is over. After a crash its
// session would last for seconds, and registering be refused as long; but holding the locks of its directories is proof that
// no other process lives that life.
func (n *Node) buryPredecessor() {
	if b := n.loader.Image().Cluster.Broker(n.cfg.NodeID); b != nil && n.holdsDirectories(b) {
		n.logger.Info("the broker's last life ended without a goodbye", "broker_epoch", b.Epoch)
		n.controller.Lost(b.ID, b.Epoch)
	}
}

// holdsDirectories says whether this process has the locks of all directories that a broker registered with. A broker of the
// same id and other directories is another broker, and may live.
func (n *Node) holdsDirectories(b *metadata.Broker) bool {
	if len(b.LogDirs) == 0 {
		return false // the metadata.version is older than directories in registrations
	}
	locked := slices.Collect(maps.Values(n.dirIDs))
	return !slices.ContainsFunc(b.LogDirs, func(d uuid.UUID) bool { return !slices.Contains(locked, d) })
}

func (n *Node) startLifecycle() error {
	incarnation, err := uuid.New(n.rand)
	if err != nil {
		return err
	}
	var dirs []uuid.UUID
	for _, d := range n.cfg.LogDirs {
		dirs = append(dirs, n.dirIDs[d])
	}
	n.lifecycle = broker.NewLifecycle(broker.LifecycleOptions{
		NodeID: n.cfg.NodeID, ClusterID: n.clusterID, Incarnation: incarnation, Rack: n.cfg.Rack, Listeners: n.advertised(),
		Unstable: n.cfg.UnstableFeatureVersions, LogDirs: dirs, CordonedDirs: n.cordoned,
		PreviousEpoch: log.PreviousBrokerEpoch(n.o.FS, n.cfg.LogDirs), Controller: forwarder{n}, MetadataOffset: n.loader.LastAppliedOffset,
		HeartbeatInterval: n.cfg.BrokerHeartbeatInterval, SessionTimeout: n.cfg.BrokerSessionTimeout, Rand: n.rand.generator(), Logger: n.logger,
	})
	// The lifecycle asks for itself what is cordoned; a change before this is in its next heartbeat.
	n.live.OnChange(func(was, now *config.Broker) {
		if !slices.Equal(was.CordonedLogDirs, now.CordonedLogDirs) {
			n.lifecycle.Hurry()
		}
	})
	return n.loader.Install(&lifecycleWaker{n.lifecycle})
}

// cordoned are the ids of the log directories that take no new replicas.
func (n *Node) cordoned() []uuid.UUID {
	c := n.live.Current()
	var ids []uuid.UUID
	for _, d := range c.LogDirs {
		if n.isCordoned(d) {
			ids = append(ids, n.dirIDs[d])
		}
	}
	return ids
}

// isCordoned says whether a log directory takes no new replicas.
func (n *Node) isCordoned(dir string) bool {
	c := n.live.Current()
	return slices.ContainsFunc(c.CordonedLogDirs, func(d string) bool { return d == "*" || filepath.Clean(d) == filepath.Clean(dir) })
}

// lifecycleWaker tells the lifecycle of new metadata.
type lifecycleWaker struct{ l *broker.Lifecycle }

func (w *lifecycleWaker) Name() string { return "broker lifecycle" }

func (w *lifecycleWaker) Publish(*metadata.Delta, *metadata.Image, metadata.Manifest) {
	w.l.MetadataAdvanced()
}

// brokerPublisher gives new metadata to what serves clients: replicas first, because handlers that know a partition must find
// its replica.
type brokerPublisher struct {
	n *Node
	b *broker.Broker
}

func (p *brokerPublisher) Name() string { return "broker" }

func (p *brokerPublisher) Publish(d *metadata.Delta, img *metadata.Image, _ metadata.Manifest) {
	p.n.replicas.Publish(d, img)
	p.b.Publish(d, img)
	if othersStop(d, p.n.cfg.NodeID) {
		// The controller lets them go when all brokers know who leads now.
		p.n.lifecycle.Hurry()
	}
}

// othersStop says whether other brokers than this one have begun to stop with these changes.
func othersStop(d *metadata.Delta, self int32) bool {
	if d.Cluster == nil {
		return false
	}
	for id, b := range d.Cluster.Brokers {
		if b == nil || id == self || b.Fenced || !b.InControlledShutdown {
			continue
		}
		if was := d.Base().Cluster.Broker(id); was == nil || !was.InControlledShutdown {
			return true
		}
	}
	return false
}

func (n *Node) openLogs(ctx context.Context) error {
	c, img := n.cfg, n.loader.Image()
	progress := &recoveryProgress{n: n, dirs: map[string]log.Progress{}}
	var err error
	n.logs, err = log.Open(ctx, log.Options{
		FS: n.o.FS, Clock: n.o.Clock, Logger: n.logger, Dirs: c.LogDirs, Locks: n.locks, NodeID: c.NodeID, ClusterID: n.clusterID,
		RecoveryThreads:      int(c.RecoveryThreadsPerDir),
		TopicConfig:          func(topic string) log.Config { t := n.topicConfig(img, topic); return replica.LogConfig(&t) },
		Known:                func(tp log.TopicPartition, id uuid.UUID) bool { return known(img, c.NodeID, tp, id) },
		Placed:               func(tp log.TopicPartition, id uuid.UUID) uuid.UUID { return placed(img, c.NodeID, tp, id) },
		ProducerIDExpiration: c.ProducerIDExpiration,
		MaxRecordBytes:       c.Topic.MaxDecompressedMessageBytes,
		DeleteDelay:          c.Topic.FileDeleteDelay,
		MaxOpenFiles:         openFiles(),
		CleanerBufferBytes:   c.CleanerDedupeBufferBytes,
		Intervals: log.Intervals{RecoveryPoint: c.FlushOffsetCheckpoint, LogStart: c.FlushStartOffsetCheckpoint, HighWatermark: c.HighWatermarkCheckpoint,
			Retention: c.RetentionCheckInterval, InitialDelay: c.InitialTaskDelay, ProducerExpiry: c.ProducerIDExpirationInterval, Clean: c.CleanerBackoff},
		Rand: n.rand.generator(), Progress: progress.update, OnDirFailure: n.dirFailed, Cordoned: n.isCordoned,
	})
	return err
}

// openFiles bounds the segment files that are kept open: most of what the system allows this process, but not more than is
// worth having. The rest is for connections, and for the files of the moment.
func openFiles() int {
	const most, least = 10_000, 128
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return most
	}
	return int(max(least, min(most, r.Cur/2)))
}

func (n *Node) topicConfig(img *metadata.Image, topic string) config.Topic {
	return n.live.Current().TopicWith(img.Configs.Topic(topic))
}

// known says whether the metadata has a replica of the partition, with that topic id, on this node.
func known(img *metadata.Image, node int32, tp log.TopicPartition, id uuid.UUID) bool {
	t := img.Topics.ByID(id)
	if id == uuid.Zero {
		t = img.Topics.ByName(tp.Topic)
	}
	if t == nil || t.Name != tp.Topic {
		return false
	}
	p := t.Partition(tp.Partition)
	return p != nil && slices.Contains(p.Replicas, node)
}

// placed is the log directory that the metadata names for a replica on this node.
func placed(img *metadata.Image, node int32, tp log.TopicPartition, id uuid.UUID) uuid.UUID {
	p := img.Topics.ByID(id).Partition(tp.Partition)
	if p == nil {
		return uuid.Zero
	}
	dir, _ := p.Directory(node)
	return dir
}

// recoveryProgress adds up the progress of the directories.
type recoveryProgress struct {
	n    *Node
	mu   sync.Mutex // guards dirs, logged
	dirs map[string]log.Progress
	last time.Time
}

// progressInterval is how often a long recovery is heard of in the log.
const progressInterval = 2 * time.Second

func (r *recoveryProgress) update(p log.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirs[p.Dir] = p
	var logs, loaded int
	var bytes, done int64
	for _, d := range r.dirs {
		logs, loaded = logs+d.Logs, loaded+d.Loaded
		bytes, done = bytes+d.RecoverBytes, done+d.RecoveredBytes
	}
	r.n.o.Phases.Progress(int64(loaded), int64(logs), "logs")
	now := r.n.o.Clock.Now()
	if r.last.IsZero() {
		r.last = now // a start that nobody notices needs no lines
	}
	if now.Sub(r.last) >= progressInterval {
		r.last = now
		r.n.logger.Info("loading logs", "loaded", loaded, "of", logs, "recovered_bytes", done, "of_bytes", bytes)
	}
}

// dirFailed takes the news that a log directory is offline.
func (n *Node) dirFailed(dir string, err error) {
	n.logger.Error("log directory is offline", "dir", dir, "err", err)
	if n.lifecycle != nil {
		id := n.dirIDs[dir]
		n.lifecycle.DirectoryFailed(id)
		time.AfterFunc(n.cfg.LogDirFailureTimeout, func() {
			if n.bgCtx.Err() == nil && !n.lifecycle.DirectoryFailureKnown(id) {
				n.fail(fmt.Errorf("the controller could not be told within %v that %s is offline (log.dir.failure.timeout.ms)", n.cfg.LogDirFailureTimeout, dir))
			}
		})
	}
	// The directory may fail while the logs are still being opened.
	select {
	case <-n.storageUp:
	case <-n.bgCtx.Done():
		return
	}
	n.replicas.FailDirectory(dir)
	for _, d := range n.logs.Dirs() {
		if d.Offline == nil {
			return
		}
	}
	n.fail(fmt.Errorf("all log directories are offline, the last of them %s: %w", dir, err))
}

func (n *Node) groupOptions() (group.Options, error) {
	g := n.cfg.GroupCoordinator
	linger := g.AppendLinger
	assignors, err := group.ParseAssignors(g.ConsumerAssignors)
	if err != nil {
		return group.Options{}, err
	}
	settings := func(own map[string]string) group.Settings {
		s := n.live.Current().GroupWith(own)
		return group.Settings{
			SessionTimeout: s.ConsumerSessionTimeout, HeartbeatInterval: s.ConsumerHeartbeatInterval,
			AssignmentInterval: s.ConsumerAssignmentInterval,
		}
	}
	taskAssignors, err := group.ParseTaskAssignors(g.StreamsAssignors)
	if err != nil {
		return group.Options{}, err
	}
	streams := func(own map[string]string) group.StreamsSettings {
		s := n.live.Current().GroupWith(own)
		return group.StreamsSettings{
			SessionTimeout: s.StreamsSessionTimeout, HeartbeatInterval: s.StreamsHeartbeatInterval,
			AssignmentInterval: s.StreamsAssignmentInterval, InitialDelay: s.StreamsInitialDelay,
			TaskOffsetInterval: s.StreamsTaskOffsetInterval, StandbyReplicas: int(s.StreamsStandbyReplicas),
			AcceptableRecoveryLag: s.StreamsAcceptableRecoveryLag, RackAwareTags: s.StreamsRackAwareTags, Assignor: s.StreamsAssignor,
		}
	}
	return group.Options{
		Log: n.replicas.CoordinatorLog(group.Topic), Clock: n.o.Clock, Logger: n.logger, Rand: n.rand,
		Config: group.Config{
			MinSessionTimeout: g.MinSessionTimeout, MaxSessionTimeout: g.MaxSessionTimeout, InitialRebalanceDelay: g.InitialRebalanceDelay,
			MaxSize: int(g.MaxSize), NewMemberJoinTimeout: group.DefaultConfig().NewMemberJoinTimeout,
			OffsetsRetention: g.OffsetsRetention, OffsetsRetentionCheckInterval: g.OffsetsRetentionCheck,
			OffsetMetadataMaxSize: int(g.OffsetMetadataMaxBytes), CommitTimeout: g.OffsetsCommitTimeout,
			Assignors: assignors, ConsumerMaxSize: int(g.ConsumerMaxSize), Group: settings,
			Migration: group.ParseMigrationPolicy(g.ConsumerMigrationPolicy), RegexRefreshInterval: g.ConsumerRegexRefresh,
			StreamsMaxSize: int(g.StreamsMaxSize), TaskAssignors: taskAssignors, StreamsGroup: streams,
		},
		Linger: linger, Compression: record.Codec(g.OffsetsCompression), CachedBufferBytes: int(g.CachedBufferMaxBytes), LoadBufferBytes: int(g.OffsetsLoadBuffer),
	}, nil
}

// hostname is the machine's name, for listeners without a host.
func (n *Node) hostname() string {
	h, err := os.Hostname()
	if err != nil {
		n.logger.Warn("the machine's host name is not known", "err", err)
		return "localhost"
	}
	return h
}
