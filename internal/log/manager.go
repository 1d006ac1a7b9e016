package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"math/rand/v2"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// Options make a Manager.
type Options struct {
	FS     vfs.FS
	Clock  clock.Clock
	Logger *slog.Logger
	// Dirs are Kafka's log.dirs, in order. Each needs its meta.properties.
	Dirs []string
	// Locks are locks of Dirs that the caller holds already; the Manager takes them over. Others it takes itself.
	Locks Locks
	// NodeID and ClusterID must be those in every meta.properties; an empty ClusterID takes what is there.
	NodeID    int32
	ClusterID string
	// RecoveryThreads is num.recovery.threads.per.data.dir: how many logs of a directory are loaded at once. 0 means as many
	// as there are cores.
	RecoveryThreads int
	// TopicConfig is the effective configuration of a topic; nil gives every topic Kafka's defaults.
	TopicConfig func(topic string) Config
	// Known says whether this node should have the replica; the directories of others become strays. nil knows all.
	Known func(tp TopicPartition, topicID uuid.UUID) bool
	// Placed is the directory that the metadata names for a replica, Zero if none. It decides between two of one partition; nil
	// can't, and they stop the start.
	Placed func(tp TopicPartition, topicID uuid.UUID) uuid.UUID
	// ProducerIDExpiration is producer.id.expiration.ms; 0 is a day.
	ProducerIDExpiration time.Duration
	// VerifyTransactions refuses transactional appends that were not verified with the coordinator
	// (transaction.partition.verification.enable).
	VerifyTransactions bool
	// MaxRecordBytes is max.decompressed.message.bytes; 0 is its default.
	MaxRecordBytes int32
	// MaxOpenFiles bounds the segment files that are held open; 0 is 10,000.
	MaxOpenFiles int
	// CleanerBufferBytes is log.cleaner.dedupe.buffer.size; 0 is 128 MiB. It is taken only as far as a cleaning needs it.
	CleanerBufferBytes int64
	// Intervals are those of the periodic work.
	Intervals Intervals
	// DeleteDelay is how long a deleted replica's directory stays (log.segment.delete.delay.ms); 0 is a minute.
	DeleteDelay time.Duration
	// NoBackground leaves the periodic work to calls of Tick and CleanOnce, and does one thing at a time also while opening
	// and closing: for tests and simulations.
	NoBackground bool
	// Decompressor and Compressor may be shared with the rest of the node; nil makes some.
	Decompressor *record.Decompressor
	Compressor   *record.Compressor
	// Rand draws the jitter of segments and the ids of directories; nil seeds one.
	Rand *rand.Rand
	// Progress is told how far loading is, from several goroutines; may be nil.
	Progress func(Progress)
	// Cordoned says whether a directory takes no new replicas, as long as there are others; nil takes them all.
	Cordoned func(dir string) bool
	// OnDirFailure is called once for each directory that goes offline, on a goroutine of its own; may be nil.
	OnDirFailure func(dir string, err error)
}

// Intervals are how often the periodic work of a Manager is done; zero fields get Kafka's defaults.
type Intervals struct {
	RecoveryPoint  time.Duration // log.flush.offset.checkpoint.interval.ms, 1 min
	LogStart       time.Duration // log.flush.start.offset.checkpoint.interval.ms, 1 min
	HighWatermark  time.Duration // replica.high.watermark.checkpoint.interval.ms, 5 s
	Retention      time.Duration // log.retention.check.interval.ms, 5 min
	InitialDelay   time.Duration // log.initial.task.delay.ms, 30 s: before retention first runs
	ProducerExpiry time.Duration // producer.id.expiration.check.interval.ms, 10 min
	Flush          time.Duration // how often flush.ms is looked at, 3 s
	Clean          time.Duration // log.cleaner.backoff.ms, 15 s
}

func (i *Intervals) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&i.RecoveryPoint, time.Minute)
	set(&i.LogStart, time.Minute)
	set(&i.HighWatermark, 5*time.Second)
	set(&i.Retention, 5*time.Minute)
	set(&i.InitialDelay, 30*time.Second)
	set(&i.ProducerExpiry, 10*time.Minute)
	set(&i.Flush, 3*time.Second)
	set(&i.Clean, 15*time.Second)
}

// Progress tells how far the loading of a directory is.
type Progress struct {
	Dir string
	// Logs is how many there are, Loaded how many of them are done.
	Logs, Loaded int
	// Clean says that the directory was closed cleanly, so that nothing is scanned.
	Clean bool
	// RecoverBytes is how much has been found to need scanning so far, RecoveredBytes how much of it was scanned.
	RecoverBytes, RecoveredBytes int64
}

// DirInfo describes a log directory.
type DirInfo struct {
	Path string
	ID   uuid.UUID
	// Offline is why the directory can't be used, or nil.
	Offline error
	// Total and Usable are the size of its file system and what is free on it, in bytes; -1 when unknown.
	Total, Usable int64
}

// Manager owns the log directories and the logs in them.
type Manager struct {
	o    Options
	e    *engine
	dirs []*logDir
	logs sync.Map // TopicPartition -> *Log
	// futures are the logs that replicas move to.
	futures sync.Map // TopicPartition -> *Log

	create    sync.Mutex                // one creation, deletion or move of a replica at a time; before logDir.mu
	preferred map[TopicPartition]string // where replicas that don't exist yet are wanted; guarded by create

	bg background
}

// fatalError stops the start; other errors only take a directory offline.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

func fatalf(format string, args ...any) error { return &fatalError{fmt.Errorf(format, args...)} }

func newEngine(o *Options) *engine {
	if o.Clock == nil {
		o.Clock = clock.System
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(uint64(o.Clock.Now().UnixNano()), uint64(o.NodeID)))
	}
	if o.ProducerIDExpiration <= 0 {
		o.ProducerIDExpiration = 24 * time.Hour
	}
	if o.Decompressor == nil {
		o.Decompressor = record.NewDecompressor(record.DecompressorOptions{})
	}
	if o.Compressor == nil {
		o.Compressor = record.NewCompressor()
	}
	return &engine{
		fs: o.FS, clock: o.Clock, logger: o.Logger, files: newFileCache(o.FS, o.MaxOpenFiles), decomp: o.Decompressor, comp: o.Compressor,
		producerExpiration: o.ProducerIDExpiration, verifyTransactions: o.VerifyTransactions, maxRecordBytes: o.MaxRecordBytes, rand: o.Rand,
	}
}

// Open locks and loads the log directories: it checks their meta.properties, takes away the clean-shutdown markers and loads
// every replica. A directory that fails is offline afterwards and the others are used; if none is left, or something says that
// the directories aren't this node's, Open fails and changes nothing more.
func Open(ctx context.Context, o Options) (*Manager, error) {
	if len(o.Dirs) == 0 {
		return nil, errors.New("open log directories: there are none")
	}
	o.Intervals.defaults()
	if o.DeleteDelay <= 0 {
		o.DeleteDelay = time.Minute
	}
	if o.CleanerBufferBytes <= 0 {
		o.CleanerBufferBytes = 128 << 20
	}
	if o.TopicConfig == nil {
		o.TopicConfig = func(string) Config { return DefaultConfig() }
	}
	m := &Manager{e: newEngine(&o)}
	m.o = o
	m.bg.init(m)
	m.e.later = m.later
	m.e.unlinkAfter = m.unlinkAfter
	if err := m.open(ctx); err != nil {
		for _, d := range m.dirs {
			if d.lock != nil {
				d.lock.Close()
			}
		}
		return nil, fmt.Errorf("open log directories: %w", err)
	}
	if !o.NoBackground {
		m.bg.start()
		m.bg.startCleaner()
	}
	return m, nil
}

func (m *Manager) open(ctx context.Context) error {
	for _, p := range m.o.Dirs {
		m.dirs = append(m.dirs, &logDir{m: m, path: path.Clean(p), prevEpoch: -1, allGood: true,
			logs: make(map[TopicPartition]*Log), futures: make(map[TopicPartition]*Log)})
	}
	for _, d := range m.dirs {
		if err := m.identify(d); err != nil {
			return err
		}
	}
	for _, d := range m.dirs {
		if d.offline() != nil {
			continue
		}
		lock, err := m.o.Locks.take(d.path), error(nil)
		if lock == nil {
			lock, err = m.e.fs.Lock(d.file(lockFile))
		}
		if errors.Is(err, vfs.ErrLocked) {
			return fatalf("%s is in use by another process: %w", d.path, err)
		}
		if err != nil {
			d.fail(err)
			continue
		}
		d.lock = lock
		if err := d.takeMarker(); err != nil {
			d.fail(err)
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, len(m.dirs))
	for i, d := range m.dirs {
		if d.offline() != nil {
			continue
		}
		m.fork(&wg, func() { errs[i] = m.loadDir(ctx, d) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, d := range m.dirs {
		for _, l := range d.each(false) {
			if other, dup := m.logs.LoadOrStore(l.tp, l); dup {
				if err := m.settleTwice(other.(*Log), l); err != nil {
					return err
				}
			}
		}
	}
	if err := m.settleFutures(); err != nil {
		return err
	}
	var offline []error
	for _, d := range m.dirs {
		if err := d.offline(); err != nil {
			offline = append(offline, err)
		}
	}
	if len(offline) == len(m.dirs) {
		return fmt.Errorf("all are offline: %w", errors.Join(offline...))
	}
	return nil
}

// fork runs f on a goroutine of its own, or at once with NoBackground: simulations want every operation on the disk in a fixed
// order.
func (m *Manager) fork(wg *sync.WaitGroup, f func()) {
	if m.o.NoBackground {
		f()
		return
	}
	wg.Go(f)
}

// identify reads and checks a directory's meta.properties. A missing directory id is drawn and written.
func (m *Manager) identify(d *logDir) error {
	mp, err := ReadMetaProperties(m.e.fs, d.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fatalf("%s has no %s: format it first (gregor storage format)", d.path, MetaPropertiesFile)
	case err != nil:
		if _, ok := errors.AsType[*fs.PathError](err); ok {
			d.fail(err)
			return nil
		}
		return &fatalError{err}
	case mp.NodeID != m.o.NodeID:
		return fatalf("%s belongs to node %d, and this is node %d", d.path, mp.NodeID, m.o.NodeID)
	case m.o.ClusterID != "" && mp.ClusterID != m.o.ClusterID:
		return fatalf("%s belongs to cluster %q, and this is cluster %q", d.path, mp.ClusterID, m.o.ClusterID)
	}
	m.o.ClusterID = mp.ClusterID
	if mp.DirectoryID == uuid.Zero {
		if mp.DirectoryID, err = uuid.New(randReader{m.e}); err != nil {
			return err
		}
		if err := WriteMetaProperties(m.e.fs, d.path, mp, m.e.clock.Now()); err != nil {
			d.fail(err)
			return nil
		}
	}
	d.id = mp.DirectoryID
	for _, o := range m.dirs {
		if o != d && o.id == d.id {
			return fatalf("%s and %s have the same directory id %s", d.path, o.path, d.id)
		}
	}
	return nil
}

// randReader makes bytes from the engine's generator.
type randReader struct{ e *engine }

func (r randReader) Read(b []byte) (int, error) {
	r.e.randMu.Lock()
	defer r.e.randMu.Unlock()
	for i := range b {
		b[i] = byte(r.e.rand.Int64N(256))
	}
	return len(b), nil
}

// loading is one replica directory to load.
type loading struct {
	name string
	tp   TopicPartition
	kind dirKind
}

// loadDir loads every replica of a directory. Only a fatal error is returned; others take the directory offline.
func (m *Manager) loadDir(ctx context.Context, d *logDir) error {
	began := m.e.clock.Now()
	points, err := readOffsets(m.e.fs, d.file(recoveryPointFile))
	if err != nil {
		d.fail(err)
		return nil
	}
	starts, err := readOffsets(m.e.fs, d.file(logStartFile))
	if err != nil {
		d.fail(err)
		return nil
	}
	hws, err := readOffsets(m.e.fs, d.file(highWatermarkFile))
	if err != nil {
		d.fail(err)
		return nil
	}
	cleaned, err := readOffsets(m.e.fs, d.file(cleanerFile))
	if err != nil {
		d.fail(err)
		return nil
	}
	known := checkpoints{points: points, starts: starts, hws: hws, cleaned: cleaned}
	entries, err := m.e.fs.ReadDir(d.path)
	if err != nil {
		d.fail(err)
		return nil
	}
	if !d.clean && len(entries) > 0 {
		// Names that a process has given and not made durable before it was killed must not go back on a power failure.
		if err := m.e.fs.SyncDir(d.path); err != nil {
			d.fail(err)
			return nil
		}
	}
	var work []loading
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || name == "remote-log-index-cache" || name == "lost+found" || name == MetadataTopic+"-0" {
			continue
		}
		tp, kind, err := parseDirName(name)
		if err != nil {
			return &fatalError{fmt.Errorf("%s: %w", d.path, err)}
		}
		switch kind {
		case kindDelete:
			m.removeAfter(d, d.file(name))
		case kindStray:
		default:
			work = append(work, loading{name, tp, kind})
		}
	}
	if !d.clean && len(work) > 0 {
		m.e.logger.Info("recovering after an unclean stop", "dir", d.path, "logs", len(work))
	}

	p := progress{m: m, now: Progress{Dir: d.path, Logs: len(work), Clean: d.clean}}
	threads := m.o.RecoveryThreads
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	var firstFatal atomic.Pointer[error]
	for range min(threads, len(work)) {
		m.fork(&wg, func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(work) || firstFatal.Load() != nil || d.offline() != nil {
					return
				}
				err := context.Cause(ctx)
				if err == nil {
					err = m.loadOne(d, work[i], &known, &p)
				}
				if err == nil {
					continue
				}
				if _, ok := errors.AsType[*fatalError](err); ok || ctx.Err() != nil {
					firstFatal.CompareAndSwap(nil, &err)
				} else {
					d.fail(fmt.Errorf("load %s: %w", d.file(work[i].name), err))
				}
				return
			}
		})
	}
	wg.Wait()
	if err := firstFatal.Load(); err != nil {
		return *err
	}
	d.noteLines(&known)
	if slices.ContainsFunc(d.each(false), func(l *Log) bool { return known.hws[l.tp] > l.HighWatermark() }) {
		// It was of records that a crash took, and would be believed of what is appended in their place.
		m.warn(d.checkpointHighWatermarks(), "checkpoint high watermarks")
	}
	if d.offline() == nil {
		m.e.logger.Info("log directory loaded", "dir", d.path, "logs", len(work), "clean", d.clean,
			"recovered_bytes", p.now.RecoveredBytes, "took", m.e.clock.Now().Sub(began))
	}
	return nil
}

// progress collects what several loaders report.
type progress struct {
	m   *Manager
	mu  sync.Mutex // guards now
	now Progress
}

func (p *progress) add(loaded int, total, done int64) {
	p.mu.Lock()
	p.now.Loaded += loaded
	p.now.RecoverBytes += total
	p.now.RecoveredBytes += done
	now := p.now
	p.mu.Unlock()
	if p.m.o.Progress != nil {
		p.m.o.Progress(now)
	}
}

// checkpoints are the offsets that a directory's checkpoint files name.
type checkpoints struct {
	points, starts, hws, cleaned map[TopicPartition]int64
}

func (m *Manager) loadOne(d *logDir, w loading, known *checkpoints, p *progress) error {
	dir := d.file(w.name)
	var id uuid.UUID
	if m.o.Known != nil {
		var err error
		if id, err = readPartitionMetadata(m.e.fs, dir); err != nil {
			return err
		}
		if id == uuid.Zero || !m.o.Known(w.tp, id) {
			return m.straying(d, w, id, p)
		}
	}
	o := loadOptions{cfg: m.o.TopicConfig(w.tp.Topic), topicID: id, clean: d.clean, recoveryPoint: known.points[w.tp], start: -1, firstDirty: known.cleaned[w.tp],
		recovering: func(total, done int64) { p.add(0, total, done) }}
	if s, ok := known.starts[w.tp]; ok {
		o.start = s
	}
	l, err := m.e.load(w.tp, dir, d, o)
	if err != nil {
		return err
	}
	l.SetHighWatermark(known.hws[w.tp])
	l.firstDirty, l.cleaned = known.cleaned[w.tp]
	d.mu.Lock()
	if w.kind == kindFuture {
		d.futures[w.tp] = l
	} else if other := d.logs[w.tp]; other != nil {
		d.mu.Unlock()
		return fatalf("partition %s is in %s twice", w.tp, d.path)
	} else {
		d.logs[w.tp] = l
	}
	d.mu.Unlock()
	p.add(1, 0, 0)
	return nil
}

// straying sets a directory aside that doesn't belong to any replica of this node. It is kept: someone may want the data.
func (m *Manager) straying(d *logDir, w loading, id uuid.UUID, p *progress) error {
	if id == uuid.Zero {
		unborn, err := m.unborn(d.file(w.name))
		if err != nil {
			return err
		}
		if unborn {
			m.e.logger.Info("a replica whose creation was interrupted is removed", "dir", d.file(w.name))
			p.add(1, 0, 0)
			return m.e.fs.RemoveAll(d.file(w.name))
		}
	}
	u, err := uuid.New(randReader{m.e})
	if err != nil {
		return err
	}
	to := d.file(suffixedDirName(w.tp, u, kindStray))
	m.e.logger.Warn("a directory belongs to no replica of this node and is set aside", "dir", d.file(w.name), "to", to, "topic_id", id.String())
	if err := m.e.fs.Rename(d.file(w.name), to); err != nil {
		return err
	}
	d.mu.Lock()
	d.noteStaleLocked(w.tp)
	d.mu.Unlock()
	p.add(1, 0, 0)
	return nil
}

// unborn says whether a directory without a topic id is a replica that was about to be made: its topic id still has the
// temporary name, and nothing was ever appended.
func (m *Manager) unborn(dir string) (bool, error) {
	entries, err := m.e.fs.ReadDir(dir)
	if err != nil {
		return false, err
	}
	tmp := false
	for _, e := range entries {
		switch {
		case e.Name() == partitionMetadataFile+suffixTmp:
			tmp = true
		case strings.HasSuffix(e.Name(), suffixLog):
			st, err := e.Info()
			if err != nil {
				return false, err
			}
			if st.Size() > 0 {
				return false, nil
			}
		}
	}
	return tmp, nil
}

func (d *logDir) noteStaleLocked(tp TopicPartition) {
	if d.stale == nil {
		d.stale = make(map[TopicPartition]bool)
	}
	d.stale[tp] = true
	d.recoveryDirty.Store(true)
	d.startDirty.Store(true)
	d.hwDirty.Store(true)
	d.cleanerDirty.Store(true)
}

// noteLines notes the lines of the checkpoints that were read and are of no log here: of replicas that were deleted, or set aside,
// shortly before the process ended.
func (d *logDir) noteLines(known *checkpoints) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, lines := range []map[TopicPartition]int64{known.points, known.starts, known.hws, known.cleaned} {
		for tp := range lines {
			if d.logs[tp] == nil && d.futures[tp] == nil && tp.Topic != MetadataTopic {
				d.noteStaleLocked(tp)
			}
		}
	}
}

// Log is the partition's log, nil when the node has none (or its directory is offline).
func (m *Manager) Log(tp TopicPartition) *Log {
	if l, ok := m.logs.Load(tp); ok {
		return l.(*Log)
	}
	return nil
}

// Logs iterates over the logs, in no order.
func (m *Manager) Logs() iter.Seq[*Log] {
	return func(yield func(*Log) bool) {
		m.logs.Range(func(_, l any) bool { return yield(l.(*Log)) })
	}
}

// GetOrCreate returns the partition's log, making one in the online directory with the fewest logs when there is none.
func (m *Manager) GetOrCreate(tp TopicPartition, topicID uuid.UUID, cfg Config) (*Log, error) {
	return m.GetOrCreateIn(tp, topicID, cfg, uuid.Zero)
}

// GetOrCreateIn is GetOrCreate with a wish for the directory; Zero and ids that this node doesn't have wish for none.
//
// A log of another topic id is refused with INCONSISTENT_TOPIC_ID. A log that has no topic id yet gets this one.
func (m *Manager) GetOrCreateIn(tp TopicPartition, topicID uuid.UUID, cfg Config, dirID uuid.UUID) (*Log, error) {
	if l := m.Log(tp); l != nil {
		return l, m.adoptTopicID(l, topicID)
	}
	m.create.Lock()
	defer m.create.Unlock()
	if l := m.Log(tp); l != nil {
		return l, m.adoptTopicID(l, topicID)
	}
	d := m.chooseDir(dirID)
	if want, ok := m.preferred[tp]; ok {
		d = m.dirAt(want)
		if err := m.CheckDir(want); err != nil {
			return nil, fmt.Errorf("create %s: %w", tp, err)
		}
	}
	if d == nil {
		return nil, &storageError{fmt.Errorf("create %s: no log directory is online", tp)}
	}
	m.settleNames(tp, d)
	if err := d.settle(tp); err != nil {
		return nil, &storageError{fmt.Errorf("create %s: %w", tp, err)}
	}
	l, err := m.e.create(tp, d.file(tp.String()), d, topicID, cfg)
	if err != nil {
		err = &storageError{fmt.Errorf("create %s in %s: %w", tp, d.path, err)}
		if !passing(err) {
			d.fail(err)
		}
		return nil, err
	}
	d.mu.Lock()
	d.logs[tp] = l
	d.mu.Unlock()
	d.recoveryDirty.Store(true)
	d.hwDirty.Store(true)
	m.logs.Store(tp, l)
	delete(m.preferred, tp)
	m.bg.identityLater(l)
	return l, nil
}

// settleNames makes durable that earlier replicas of the partition have lost their names in other directories than d: one that had
// it again after a power failure would be a second one of the partition.
func (m *Manager) settleNames(tp TopicPartition, d *logDir) {
	for _, o := range m.dirs {
		o.mu.Lock()
		stale := o.stale[tp]
		o.mu.Unlock()
		if o == d || !stale || o.offline() != nil {
			continue
		}
		if err := m.e.fs.SyncDir(o.path); err != nil && !passing(err) {
			o.fail(fmt.Errorf("sync %s: %w", o.path, err))
		}
	}
}

func (m *Manager) adoptTopicID(l *Log, id uuid.UUID) error {
	have := l.TopicID()
	switch {
	case id == uuid.Zero || have == id:
		return nil
	case have != uuid.Zero:
		return api.WithMessage(api.ErrInconsistentTopicID, "the log of %s is of topic id %s, not %s", l.tp, have, id)
	}
	l.mu.Lock()
	l.topicID.Store(&id)
	l.metaDirty = true
	l.mu.Unlock()
	return l.ioError("write the topic id of", l.syncIdentity())
}

func (m *Manager) chooseDir(id uuid.UUID) *logDir {
	var best *logDir
	least, bestCordoned := 0, false
	for _, d := range m.dirs {
		if d.offline() != nil {
			continue
		}
		if id != uuid.Zero && d.id == id {
			return d
		}
		d.mu.Lock()
		n := len(d.logs) + len(d.futures)
		d.mu.Unlock()
		cordoned := m.Cordoned(d.path)
		if best == nil || bestCordoned && !cordoned || bestCordoned == cordoned && n < least {
			best, least, bestCordoned = d, n, cordoned
		}
	}
	return best
}

// create makes a new replica's directory. Nothing is synced, and the topic id waits under a temporary name: Kafka takes a whole
// log directory offline for one partition.metadata that doesn't parse, so the file must be durable before it gets its name. That
// happens for many new replicas at once in the background a moment later, or for one before its first append.
func (e *engine) create(tp TopicPartition, dir string, parent *logDir, topicID uuid.UUID, cfg Config) (*Log, error) {
	l := &Log{e: e, tp: tp, name: tp.String(), parent: parent, cutTo: -1, meta: tp.Topic == MetadataTopic}
	l.dir.set(dir)
	l.cfg.Store(&cfg)
	if err := e.fs.MkdirAll(dir); err != nil {
		return nil, err
	}
	if topicID != uuid.Zero {
		l.topicID.Store(&topicID)
		l.metaDirty = true
		if err := writeFile(e.fs, dir+"/"+partitionMetadataFile+suffixTmp, encodePartitionMetadata(topicID), false); err != nil {
			return nil, err
		}
	}
	seg, err := l.firstSegment(0)
	if err != nil {
		return nil, err
	}
	l.segments.Store(&[]*segment{seg})
	l.end = position{seg: seg}
	l.hw = l.end
	l.lastFlush = e.clock.Now()
	return l, nil
}

// Delete removes a replica, and the future log that it moves to: its directory is renamed at once and removed after the delay.
// Slices that were handed out stay readable.
func (m *Manager) Delete(tp TopicPartition) error {
	m.create.Lock()
	defer m.create.Unlock()
	l := m.Log(tp)
	switch {
	case l == nil && m.Future(tp) != nil:
		return m.dropFuture(tp)
	case l == nil:
		return fmt.Errorf("delete %s: %w", tp, ErrNoSuchReplica)
	}
	m.logs.Delete(tp)
	d := l.parent
	d.mu.Lock()
	delete(d.logs, tp)
	d.noteStaleLocked(tp)
	d.mu.Unlock()
	return errors.Join(m.dropFuture(tp), m.retire(l))
}

// retire renames a log's directory for deletion and closes it.
func (m *Manager) retire(l *Log) error { return m.retireAs(l, kindDelete) }

// settleTwice decides between two logs of one partition. A directory that was offline for a time may come back with a replica
// that has been moved away meanwhile and made anew in another: the one counts that the metadata names, the other is set aside.
func (m *Manager) settleTwice(a, b *Log) error {
	var named uuid.UUID
	if m.o.Placed != nil {
		named = m.o.Placed(b.tp, b.TopicID())
	}
	keep, other := a, b
	if b.DirID() == named {
		keep, other = b, a
	}
	if keep.DirID() != named {
		return fatalf("partition %s is both in %s and in %s", b.tp, b.Dir(), a.Dir())
	}
	m.logs.Store(keep.tp, keep)
	m.e.logger.Warn("a partition is in two directories; the one that the metadata doesn't name is set aside", "partition", keep.tp.String(),
		"kept", keep.Dir(), "set_aside", other.Dir())
	d := other.parent
	d.mu.Lock()
	delete(d.logs, other.tp)
	d.noteStaleLocked(other.tp)
	d.mu.Unlock()
	return m.retireAs(other, kindStray)
}

func (m *Manager) retireAs(l *Log, kind dirKind) error {
	d := l.parent
	u, err := uuid.New(randReader{m.e})
	if err != nil {
		return err
	}
	to := d.file(suffixedDirName(l.tp, u, kind))
	// Flushes and readers open files by their names: one that finds the directory gone would take the disk for broken.
	l.flushing.Lock()
	defer l.flushing.Unlock()
	l.mu.Lock()
	defer l.unlock()
	if l.closed == nil {
		l.closed = errClosed
	}
	if err := d.offline(); err != nil {
		return nil // the directory is gone for now; its contents will be found stray
	}
	l.shape.Lock()
	err = m.e.fs.Rename(l.dir.get(), to)
	if err == nil {
		l.dir.set(to)
	}
	l.shape.Unlock()
	if err != nil {
		return l.ioError("delete", err)
	}
	for _, s := range l.segs() {
		s.close(m.e.files, true) // with the last slice, or a file that is removed would keep its room on the disk
	}
	if kind == kindDelete {
		m.removeAfter(d, to)
	}
	return nil
}

// Dirs describes the log directories in the order of the options.
func (m *Manager) Dirs() []DirInfo {
	out := make([]DirInfo, 0, len(m.dirs))
	for _, d := range m.dirs {
		i := DirInfo{Path: d.path, ID: d.id, Offline: d.offline(), Total: -1, Usable: -1}
		if free, total, err := m.e.fs.Free(d.path); err == nil {
			i.Total, i.Usable = total, free
		}
		out = append(out, i)
	}
	return out
}

// ClusterID is that of the directories.
func (m *Manager) ClusterID() string { return m.o.ClusterID }

// OpenFiles is how many segment files are open.
func (m *Manager) OpenFiles() int { return m.e.files.openFiles() }

// PreviousBrokerEpoch is the broker epoch that the clean-shutdown markers named, or -1 when one was missing, said something else
// than the others, or couldn't be read (KIP-966).
func (m *Manager) PreviousBrokerEpoch() int64 {
	epoch := int64(-1)
	for i, d := range m.dirs {
		if !d.clean || (i > 0 && d.prevEpoch != epoch) {
			return -1
		}
		epoch = d.prevEpoch
	}
	return epoch
}

// WasClean says whether all directories were left by a clean stop.
func (m *Manager) WasClean() bool {
	return !slices.ContainsFunc(m.dirs, func(d *logDir) bool { return !d.clean })
}

// CheckpointHighWatermarks, CheckpointRecoveryPoints and CheckpointLogStarts write the checkpoint files that are out of date.
func (m *Manager) CheckpointHighWatermarks() error {
	return m.eachDir((*logDir).checkpointHighWatermarks)
}

// CheckpointRecoveryPoints writes the recovery points that have moved.
func (m *Manager) CheckpointRecoveryPoints() error { return m.eachDir((*logDir).checkpointRecovery) }

// CheckpointLogStarts writes the log start offsets that have moved.
func (m *Manager) CheckpointLogStarts() error { return m.eachDir((*logDir).checkpointStarts) }

func (m *Manager) eachDir(f func(d *logDir) error) error {
	var errs []error
	for _, d := range m.dirs {
		if d.offline() == nil {
			errs = append(errs, f(d))
		}
	}
	return errors.Join(errs...)
}

// MetadataOptions open the metadata log.
type MetadataOptions struct {
	FS     vfs.FS
	Clock  clock.Clock
	Logger *slog.Logger
	// Dir is metadata.log.dir; the log lies in its __cluster_metadata-0.
	Dir    string
	Config Config
}

// OpenMetadata opens the metadata log, making it when there is none. It is always recovered from its first segment on, and what
// it holds is made durable only by Flush, which its owner calls after each append that must count.
func OpenMetadata(ctx context.Context, o MetadataOptions) (*Log, error) {
	mo := Options{FS: o.FS, Clock: o.Clock, Logger: o.Logger}
	e := newEngine(&mo)
	tp := TopicPartition{Topic: MetadataTopic}
	dir := path.Clean(o.Dir) + "/" + tp.String()
	if err := e.fs.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("open metadata log: %w", err)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	l, err := e.load(tp, dir, nil, loadOptions{cfg: o.Config, start: -1})
	if err != nil {
		return nil, fmt.Errorf("open metadata log %s: %w", dir, err)
	}
	if id := l.TopicID(); id != uuid.MetadataTopic {
		id := uuid.MetadataTopic
		l.topicID.Store(&id)
		if err := writePartitionMetadata(e.fs, dir, id, syncAll); err != nil {
			return nil, fmt.Errorf("open metadata log: %w", err)
		}
	}
	l.dirSynced = false // whether its entries are durable isn't known: the first flush sees to it
	return l, nil
}
