package replica

import (
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/config"
	"gregor/internal/log"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// sessionEvictAge is after how long an unused fetch session may give way to any other; Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS.
const sessionEvictAge = 2 * time.Minute

// Options make a Manager.
type Options struct {
	NodeID int32
	Logs   *log.Manager
	Config *config.Live
	Clock  clock.Clock // nil: the system's
	Logger *slog.Logger
	Rand   *rand.Rand
	// AssignDirectory is told, while Publish runs, of a replica whose log directory is not the one that the metadata names, so
	// that the controller can be told (KIP-858). Nil: nobody is told.
	//
	// done, unless nil, is called once the controller has taken it, from any goroutine. A later call for the replica replaces one
	// that is not through yet, whose done is then never called.
	AssignDirectory func(topicID uuid.UUID, partition int32, dir uuid.UUID, done func())
	// BrokerEpoch is this broker's, -1 before it is registered. Needed with the fields below.
	BrokerEpoch func() int64
	// AlterPartition sends a request to the active controller and calls done once. Nil: no ISR is ever asked for.
	AlterPartition func(q *kmsg.AlterPartitionRequest, done func(*kmsg.AlterPartitionResponse, error))
	// Connect makes connections to other brokers, for fetchers. Nil: nothing is fetched.
	Connect func() Connections
	// AfterFunc makes the manager's timers; nil: time.AfterFunc.
	AfterFunc AfterFunc
	// OneThread has everything done in calls of the manager's methods and of AfterFunc's functions, in an order that follows
	// from theirs: for simulations.
	OneThread bool
}

// Manager owns the partitions of this broker.
type Manager struct {
	nodeID    int32
	logs      *log.Manager
	config    *config.Live
	clock     clock.Clock
	logger    *slog.Logger
	assign    func(topicID uuid.UUID, partition int32, dir uuid.UUID, done func())
	sessions  *FetchSessions
	lag       time.Duration // replica.lag.time.max.ms
	rackAware bool
	after     AfterFunc
	oneThread bool
	alter     *isrChanges // nil when there is nobody to ask
	fetchers  *fetchers   // nil when nothing is fetched
	hurried   hurried
	moves     *moves

	// Quotas of throttled replicas: as leader, as follower, and between log directories.
	leaderQuota, followerQuota, logDirQuota *quota

	image  atomic.Pointer[metadata.Image]
	topics *topicTable

	publishMu sync.Mutex // one Publish or config change at a time
	reopening bool       // a look at replicas that could not be opened is due; guarded by publishMu

	// ISRCounts counts what became of changes of ISRs; telemetry reads it.
	ISRCounts ISRCounts

	lagTimer Timer // nil before Start; guarded by lagMu
	lagMu    sync.Mutex
	closed   bool // guarded by lagMu
}

// Topic is a topic of which this broker has replicas.
type Topic struct {
	name   string
	id     uuid.UUID
	config atomic.Pointer[config.Topic]
	// parts is indexed by partition; nil where this broker has no replica. It is replaced as a whole.
	parts atomic.Pointer[[]*Partition]
	// offline lists partitions whose log could not be opened, true where that may work later; guarded by Manager.publishMu for
	// writing.
	offline atomic.Pointer[map[int32]bool]
}

// Name is the topic's name, ID its id.
func (t *Topic) Name() string { return t.name }

// ID is the topic's id.
func (t *Topic) ID() uuid.UUID { return t.id }

// Config is the topic's effective configuration.
func (t *Topic) Config() *config.Topic { return t.config.Load() }

// Partition is the replica with that number, or nil when this broker has none.
func (t *Topic) Partition(id int32) *Partition {
	if t == nil {
		return nil
	}
	if ps := *t.parts.Load(); id >= 0 && int(id) < len(ps) {
		return ps[id]
	}
	return nil
}

// New makes a manager without partitions; Publish gives it what the metadata says.
func New(o Options) *Manager {
	cfg := o.Config.Current()
	m := &Manager{nodeID: o.NodeID, logs: o.Logs, config: o.Config, clock: o.Clock, logger: o.Logger, assign: o.AssignDirectory,
		lag: cfg.ReplicaLagTimeMax, after: o.AfterFunc, oneThread: o.OneThread, topics: newTopicTable(),
		sessions: NewFetchSessions(int(cfg.FetchSessionSlots), sessionEvictAge, o.Rand)}
	if m.clock == nil {
		m.clock = clock.System
	}
	if m.after == nil {
		m.after = systemAfterFunc
	}
	switch class := cfg.Value("replica.selector.class").Text(); {
	case class == "", strings.HasSuffix(class, ".LeaderSelector"):
	case strings.HasSuffix(class, ".RackAwareReplicaSelector"):
		m.rackAware = true
	default:
		m.logger.Warn("replica.selector.class names a class that is not here: consumers read from leaders", "class", class)
	}
	m.leaderQuota = newQuota(m.clock, cfg.LeaderThrottledRate, int(cfg.ReplicationQuotaSamples), cfg.ReplicationQuotaSample)
	m.followerQuota = newQuota(m.clock, cfg.FollowerThrottledRate, int(cfg.ReplicationQuotaSamples), cfg.ReplicationQuotaSample)
	m.logDirQuota = newQuota(m.clock, cfg.LogDirsThrottledRate, int(cfg.LogDirsQuotaSamples), cfg.LogDirsQuotaSample)
	m.moves = newMoves(m, int(cfg.LogDirMovers), int(cfg.ReplicaFetchMaxBytes))
	m.image.Store(metadata.EmptyImage())
	if o.AlterPartition != nil {
		m.alter = &isrChanges{nodeID: o.NodeID, brokerEpoch: o.BrokerEpoch, send: o.AlterPartition, logger: o.Logger,
			counts: &m.ISRCounts, after: m.after, pending: make(map[*Partition]*proposal)}
	}
	if o.Connect != nil {
		m.fetchers = newFetchers(int(cfg.ReplicaFetchers), o.Connect, m.leaderAddress, func() fetcherOptions {
			return fetcherOptions{nodeID: m.nodeID, brokerEpoch: o.BrokerEpoch, maxWait: cfg.ReplicaFetchWaitMax,
				minBytes: cfg.ReplicaFetchMinBytes, maxBytes: cfg.ReplicaFetchResponseMax, partitionMaxBytes: cfg.ReplicaFetchMaxBytes,
				backoff: cfg.ReplicaFetchBackoff, quota: m.followerQuota, logger: o.Logger}
		}, cfg.ReplicaSocketTimeout, m.clock.Now, o.Logger)
		m.fetchers.after, m.fetchers.oneThread = m.after, m.oneThread
	}
	o.Config.OnChange(func(_, now *config.Broker) {
		m.leaderQuota.bound.Store(now.LeaderThrottledRate)
		m.followerQuota.bound.Store(now.FollowerThrottledRate)
		m.logDirQuota.bound.Store(now.LogDirsThrottledRate)
		m.reconfigureAll(now)
		m.resizeFetchers(int(now.ReplicaFetchers))
	})
	return m
}

// Start begins to look for followers that lag.
func (m *Manager) Start() {
	m.lagMu.Lock()
	defer m.lagMu.Unlock()
	every := max(m.lag/2, time.Millisecond)
	m.lagTimer = m.after(every, func() {
		m.CheckISRs()
		m.lagMu.Lock()
		defer m.lagMu.Unlock()
		if !m.closed {
			m.lagTimer.Reset(every)
		}
	})
}

// CheckISRs proposes to take followers that lag out of the ISRs of the partitions that this broker leads.
func (m *Manager) CheckISRs() {
	if m.alter == nil {
		return
	}
	for _, p := range m.All() {
		p.checkISR()
	}
}

// leaderAddress is where another broker takes requests of brokers, if it is in service.
func (m *Manager) leaderAddress(id int32) (addr string, ok bool) {
	b := m.image.Load().Cluster.Broker(id)
	if b == nil || b.Fenced {
		return "", false
	}
	e, ok := b.Listeners[m.config.Current().InterBrokerListener]
	return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))), ok
}

func (m *Manager) resizeFetchers(n int) {
	if m.fetchers == nil || !m.fetchers.resize(n) {
		return
	}
	m.publishMu.Lock() // or a role would be arranged for that is another meanwhile
	defer m.publishMu.Unlock()
	for _, p := range m.All() {
		m.arrange(p)
	}
}

// Sessions is the cache of fetch sessions.
func (m *Manager) Sessions() *FetchSessions { return m.sessions }

// Logs are the log directories.
func (m *Manager) Logs() *log.Manager { return m.logs }

// Topic finds a topic of which this broker has replicas by name; nil when there is none.
func (m *Manager) Topic(name []byte) *Topic { return m.topics.named(name) }

// TopicByID finds a topic of which this broker has replicas by id; nil when there is none.
func (m *Manager) TopicByID(id uuid.UUID) *Topic { return m.topics.withID(id) }

// Partition finds a replica by topic name.
//
// Errors: UNKNOWN_TOPIC_OR_PARTITION when the metadata has no such partition, NOT_LEADER_OR_FOLLOWER when it has but not on
// this broker, KAFKA_STORAGE_ERROR when its log directory is offline.
func (m *Manager) Partition(topic string, id int32) (*Partition, error) {
	t := m.Topic([]byte(topic))
	if p := t.Partition(id); p != nil {
		if err := p.gone.Load(); err != nil {
			return nil, err
		}
		return p, nil
	}
	if t != nil {
		if _, offline := (*t.offline.Load())[id]; offline {
			return nil, api.ErrKafkaStorageError
		}
	}
	if m.image.Load().Topics.Partition(topic, id) != nil {
		return nil, api.ErrNotLeaderOrFollower
	}
	return nil, api.ErrUnknownTopicOrPartition
}

// All lists the partitions whose logs are online, by topic id and partition.
func (m *Manager) All() []*Partition {
	var out []*Partition
	for _, t := range m.topics.all() {
		for _, p := range *t.parts.Load() {
			if p != nil && p.gone.Load() == nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// Publish makes the partitions what img says, d being how it came about. It must be called from one goroutine, in order.
func (m *Manager) Publish(d *metadata.Delta, img *metadata.Image) {
	m.publishMu.Lock()
	defer m.publishMu.Unlock()
	m.image.Store(img)
	if d.Topics != nil {
		changes := d.Topics.LocalChanges(m.nodeID)
		m.remove(changes.Deleted)
		m.apply(img, changes.Leaders)
		m.apply(img, changes.Followers)
	}
	if d.Cluster != nil {
		m.brokersChanged()
	}
	if d.Configs != nil {
		for res := range d.Configs.Changed {
			if res.Type == metadata.TopicResource {
				m.reconfigure(res.Name, m.config.Current())
			}
		}
	}
}

// eachTopic calls f with the changes of one topic after another. They are neighbours, so that a topic's table of partitions is
// copied once.
func eachTopic(changed []metadata.LocalPartition, f func(ofTopic []metadata.LocalPartition)) {
	for len(changed) > 0 {
		n := 1
		for n < len(changed) && changed[n].TopicID == changed[0].TopicID {
			n++
		}
		f(changed[:n])
		changed = changed[n:]
	}
}

// remove drops the replicas.
func (m *Manager) remove(gone []metadata.LocalPartition) { eachTopic(gone, m.removeFromTopic) }

func (m *Manager) removeFromTopic(gone []metadata.LocalPartition) {
	t := m.TopicByID(gone[0].TopicID)
	if t == nil {
		return
	}
	parts, offline := slices.Clone(*t.parts.Load()), maps.Clone(*t.offline.Load())
	var dropped []log.TopicPartition
	for _, lp := range gone {
		delete(offline, lp.Partition)
		tp := log.TopicPartition{Topic: t.name, Partition: lp.Partition}
		if p := t.Partition(lp.Partition); p != nil {
			p.drop(api.ErrUnknownTopicOrPartition)
			m.unfollow(p)
			m.moves.giveUp(p, "the replica is deleted")
			parts[lp.Partition] = nil
			dropped = append(dropped, tp)
		} else if m.logs.Future(tp) != nil {
			dropped = append(dropped, tp) // it was on its way from a directory that is offline
		}
	}
	t.parts.Store(&parts)
	t.offline.Store(&offline)
	if len(offline) == 0 && !slices.ContainsFunc(parts, func(p *Partition) bool { return p != nil }) {
		m.topics.remove(t)
	}
	for _, tp := range dropped {
		if err := m.logs.Delete(tp); err != nil {
			m.logger.Error("delete replica", slog.String("topic", t.name), slog.Int("partition", int(tp.Partition)), slog.Any("err", err))
		}
	}
}

// apply makes the replicas that are not here yet and gives each its role.
func (m *Manager) apply(img *metadata.Image, changed []metadata.LocalPartition) {
	eachTopic(changed, func(ofTopic []metadata.LocalPartition) { m.applyTopic(img, ofTopic) })
}

func (m *Manager) applyTopic(img *metadata.Image, changed []metadata.LocalPartition) {
	name, id := changed[0].Topic, changed[0].TopicID
	t := m.TopicByID(id)
	if t == nil {
		t = &Topic{name: name, id: id}
		t.parts.Store(&[]*Partition{})
		t.offline.Store(&map[int32]bool{})
		cfg := m.config.Current().TopicWith(img.Configs.Topic(name))
		t.config.Store(&cfg)
	}
	parts := slices.Clone(*t.parts.Load())
	offline := maps.Clone(*t.offline.Load())
	for _, lp := range changed {
		if int(lp.Partition) >= len(parts) {
			parts = append(parts, make([]*Partition, int(lp.Partition)+1-len(parts))...)
		}
		p := parts[lp.Partition]
		if p == nil {
			l, err := m.open(t, lp)
			if err != nil {
				m.logger.Error("open replica", slog.String("topic", name), slog.Int("partition", int(lp.Partition)), slog.Any("err", err))
				if offline[lp.Partition] = log.Passing(err); offline[lp.Partition] {
					m.reopenLater()
				}
				continue
			}
			delete(offline, lp.Partition)
			p = newPartition(m, t, l)
			parts[lp.Partition] = p
			m.resume(p, lp)
		}
		if err := p.setRole(roleOf(lp.State, m.nodeID)); err != nil {
			m.logger.Error("change role", slog.String("topic", name), slog.Int("partition", int(lp.Partition)), slog.Any("err", err))
		}
		m.arrange(p)
	}
	t.offline.Store(&offline)
	t.parts.Store(&parts)
	m.topics.add(t)
}

// reopenAfter is the pause before replicas are opened again that could not be, on a disk that is full, say. Nobody else would: their
// directory is online, and the controller knows of nothing.
const reopenAfter = time.Second

// reopenLater has replicas looked at again that could not be opened. publishMu is held.
func (m *Manager) reopenLater() {
	if !m.reopening {
		m.reopening = true
		m.after(reopenAfter, m.reopen)
	}
}

func (m *Manager) reopen() {
	m.lagMu.Lock()
	closed := m.closed
	m.lagMu.Unlock()
	if closed {
		return
	}
	m.publishMu.Lock()
	defer m.publishMu.Unlock()
	m.reopening = false
	img := m.image.Load()
	for _, t := range m.topics.all() {
		var again []metadata.LocalPartition
		topic := img.Topics.ByID(t.id)
		if topic == nil {
			continue
		}
		for id, p := range topic.Partitions() {
			if (*t.offline.Load())[id] && p.HasReplica(m.nodeID) {
				again = append(again, metadata.LocalPartition{Topic: t.name, TopicID: t.id, Partition: id, State: p})
			}
		}
		m.apply(img, again)
	}
}

// brokersChanged looks again at what depends on which brokers are in service.
func (m *Manager) brokersChanged() {
	if m.fetchers != nil {
		m.fetchers.poke()
	}
	if m.alter == nil {
		return
	}
	for _, p := range m.All() {
		p.letIn()
	}
}

// arrange makes fetchers follow the partition, or no longer, as its role is.
func (m *Manager) arrange(p *Partition) {
	if m.fetchers == nil {
		return
	}
	if r := p.role.Load(); r.leader || p.gone.Load() != nil {
		m.fetchers.unfollow(p)
	} else {
		m.fetchers.follow(p, r.leaderID, r.leaderEpoch)
	}
}

func (m *Manager) unfollow(p *Partition) {
	if m.fetchers != nil {
		m.fetchers.unfollow(p)
	}
}

// reconfigureAll gives every topic its configuration anew, after the broker's own has changed.
func (m *Manager) reconfigureAll(now *config.Broker) {
	m.publishMu.Lock()
	defer m.publishMu.Unlock()
	for _, t := range m.topics.all() {
		m.reconfigure(t.name, now)
	}
}

func (m *Manager) reconfigure(topic string, now *config.Broker) {
	t := m.Topic([]byte(topic))
	if t == nil {
		return
	}
	cfg := now.TopicWith(m.image.Load().Configs.Topic(topic))
	t.config.Store(&cfg)
	for _, p := range *t.parts.Load() {
		if p != nil {
			p.reconfigure(&cfg)
		}
	}
}

// FailDirectory takes the replicas of a log directory offline, after an I/O error in it: also those that a Publish under way
// has opened there and not shown yet.
func (m *Manager) FailDirectory(dir string) {
	m.publishMu.Lock()
	defer m.publishMu.Unlock()
	for _, p := range m.All() {
		lost := false
		if future := p.Moving(); future != nil && future.ParentDir() == dir {
			m.moves.giveUp(p, "the new log directory is offline")
			lost = m.logs.Log(p.tp) == nil // the old log has gone
		}
		// A move may have come to its end meanwhile, to there or from there.
		if p.dropIf(func() bool { return lost || p.log().ParentDir() == dir }, api.ErrKafkaStorageError) {
			m.unfollow(p)
			m.moves.suspend(p)
		}
	}
}

// Close ends fetching and fails all who wait. The logs are closed by their own manager.
func (m *Manager) Close() {
	m.lagMu.Lock()
	m.closed = true
	if m.lagTimer != nil {
		m.lagTimer.Stop()
	}
	m.lagMu.Unlock()
	if m.alter != nil {
		m.alter.close()
	}
	if m.fetchers != nil {
		m.fetchers.close()
	}
	m.moves.close()
	for _, p := range m.All() {
		p.drop(api.ErrNotLeaderOrFollower)
	}
}
