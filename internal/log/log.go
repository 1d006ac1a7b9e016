package log

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// engine is what all logs of a Manager share.
type engine struct {
	fs     vfs.FS
	clock  clock.Clock
	logger *slog.Logger
	files  *fileCache
	decomp *record.Decompressor
	comp   *record.Compressor

	producerExpiration time.Duration
	verifyTransactions bool
	maxRecordBytes     int32

	randMu sync.Mutex // guards rand
	rand   interface{ Int64N(n int64) int64 }

	// later runs a function on the engine's background worker, or at once when there is none.
	later func(func())
	// unlinkAfter removes a file once the delay has passed.
	unlinkAfter func(path string, delay time.Duration)
}

func (e *engine) nowMs() int64 { return e.clock.Now().UnixMilli() }

func (e *engine) jitter(max time.Duration) int64 {
	ms := max.Milliseconds()
	if ms <= 0 || e.rand == nil {
		return 0
	}
	e.randMu.Lock()
	defer e.randMu.Unlock()
	return e.rand.Int64N(ms)
}

// position is an offset and where its batch lies; seg is nil when that was not looked up.
type position struct {
	offset int64
	seg    *segment
	pos    int64
}

// recentEnds remembers where the last appends ended: high watermarks move to such places and consumers that keep up read from
// them, and neither should have to look into the index.
type recentEnds struct {
	ends [8]position
	n    int
}

func (r *recentEnds) add(p position) {
	r.ends[r.n%len(r.ends)] = p
	r.n++
}

func (r *recentEnds) at(offset int64) (position, bool) {
	if r == nil {
		return position{}, false
	}
	for i := range r.ends {
		if r.ends[i].offset == offset && r.ends[i].seg != nil {
			return r.ends[i], true
		}
	}
	return position{}, false
}

// openTxn is an open transaction; doneTxn one whose marker is at last and may lie above the high watermark.
type openTxn struct {
	first      position
	producerID int64
}

type doneTxn struct {
	first position
	last  int64
}

// Log is one partition's log. All methods are safe for concurrent use.
type Log struct {
	e       *engine
	tp      TopicPartition
	name    string  // tp as text
	parent  *logDir // nil for the metadata log and in tests
	dir     dirPath
	cfg     atomic.Pointer[Config]
	topicID atomic.Pointer[uuid.UUID]
	epochs  epochCache
	failed  atomic.Pointer[error] // an I/O error that a log without a Manager met
	told    atomic.Bool           // damage has been logged: every reader that comes there meets it
	meta    bool                  // the metadata log: flushed by its owner, recovered from the start, no retention of its own

	// Lock order: flushing, mu, shape, marks.

	flushing sync.Mutex // one flush at a time; held too while the directory moves, for a flush goes by names

	mu        sync.Mutex // guards all down to shape, and who may append, roll, truncate or delete
	prod      producers
	snapshots []int64 // offsets of the producer snapshots there are, ascending
	recovery  int64   // recovery point: all below is synced
	lastFlush time.Time
	cutTo     int64 // the active segment's true size when a failed write could not be cut off; -1
	closed    error // why nothing can be written any more
	dirSynced bool  // the directory's own entry is durable
	entries   bool  // files were made or removed since the directory was synced
	metaDirty bool  // partition.metadata isn't written or synced yet
	truncated int64 // counts truncations, for flushes that were under way
	touched   bool  // something isn't as a clean stop leaves it
	staged    *staged

	firstDirty  int64 // the cleaner has been through everything below, guarded by mu as are these
	cleaned     bool  // the cleaner has been here
	uncleanable error // why the cleaner leaves the log alone

	shape    sync.RWMutex               // readers share it; see the package comment
	segments atomic.Pointer[[]*segment] // ascending, never empty once open

	marks        sync.Mutex // guards all below
	start        int64
	end          position
	hw           position
	recent       *recentEnds // where the last appends began and ended; nil before the first
	open         []openTxn   // ascending by first offset
	unreplicated []doneTxn   // likewise
}

// TopicPartition is the partition.
func (l *Log) TopicPartition() TopicPartition { return l.tp }

// TopicID is the topic's id; Zero when the directory has none.
func (l *Log) TopicID() uuid.UUID {
	if id := l.topicID.Load(); id != nil {
		return *id
	}
	return uuid.Zero
}

// Dir is the path of the log's directory.
func (l *Log) Dir() string { return l.dir.get() }

// DirID is the id of the log directory that holds the log.
func (l *Log) DirID() uuid.UUID {
	if l.parent == nil {
		return uuid.Zero
	}
	return l.parent.id
}

// Config is the configuration in force.
func (l *Log) Config() Config { return *l.cfg.Load() }

// SetConfig changes the configuration for what is done from now on.
func (l *Log) SetConfig(cfg Config) { l.cfg.Store(&cfg) }

// segs is the list of segments; it is never changed in place.
func (l *Log) segs() []*segment { return *l.segments.Load() }

func (l *Log) active() *segment {
	s := l.segs()
	return s[len(s)-1]
}

// segmentAt is the index of the segment that holds or would hold offset: the last one with a base at or below it.
func segmentAt(segs []*segment, offset int64) int {
	i, ok := slices.BinarySearchFunc(segs, offset, func(s *segment, o int64) int {
		switch {
		case s.base < o:
			return -1
		case s.base > o:
			return 1
		}
		return 0
	})
	if ok {
		return i
	}
	return i - 1
}

// LogStartOffset is the first offset that can be read.
func (l *Log) LogStartOffset() int64 {
	l.marks.Lock()
	defer l.marks.Unlock()
	return l.start
}

// EndOffset is the offset that the next record will get.
func (l *Log) EndOffset() int64 {
	l.marks.Lock()
	defer l.marks.Unlock()
	return l.end.offset
}

// HighWatermark is the offset below which all in-sync replicas have everything.
func (l *Log) HighWatermark() int64 {
	l.marks.Lock()
	defer l.marks.Unlock()
	return l.hw.offset
}

// LastStableOffset is the offset below which no transaction is open, at most the high watermark.
func (l *Log) LastStableOffset() int64 {
	l.marks.Lock()
	defer l.marks.Unlock()
	return l.stableLocked().offset
}

// Offsets returns log start offset, last stable offset, high watermark and log end offset of one moment.
func (l *Log) Offsets() (start, stable, hw, end int64) {
	l.marks.Lock()
	defer l.marks.Unlock()
	return l.start, l.stableLocked().offset, l.hw.offset, l.end.offset
}

// stableLocked is the last stable offset. marks is held.
func (l *Log) stableLocked() position {
	p, ok := l.firstUnstableLocked()
	if ok && p.offset < l.hw.offset {
		return p
	}
	return l.hw
}

func (l *Log) firstUnstableLocked() (position, bool) {
	var p position
	ok := false
	if len(l.open) > 0 {
		p, ok = l.open[0].first, true
	}
	if len(l.unreplicated) > 0 && (!ok || l.unreplicated[0].first.offset < p.offset) {
		p, ok = l.unreplicated[0].first, true
	}
	if ok && p.offset < l.start {
		p = position{offset: l.start}
	}
	return p, ok
}

// SetHighWatermark moves the high watermark, keeping it between log start offset and log end offset, and returns it.
func (l *Log) SetHighWatermark(hw int64) int64 {
	l.marks.Lock()
	defer l.marks.Unlock()
	l.setHighWatermarkLocked(hw)
	return l.hw.offset
}

// RaiseHighWatermark is SetHighWatermark for a value that counts only if it is higher; raised says whether it was.
func (l *Log) RaiseHighWatermark(hw int64) (now int64, raised bool) {
	l.marks.Lock()
	defer l.marks.Unlock()
	if hw <= l.hw.offset {
		return l.hw.offset, false
	}
	was := l.hw.offset
	l.setHighWatermarkLocked(hw)
	return l.hw.offset, l.hw.offset > was
}

func (l *Log) setHighWatermarkLocked(hw int64) {
	switch {
	case hw >= l.end.offset:
		l.hw = l.end
	case hw <= l.start:
		if l.hw.offset != l.start {
			l.hw = position{offset: l.start}
		}
	case hw != l.hw.offset:
		// Followers fetch from where an append ended, so the place is usually known.
		var ok bool
		if l.hw, ok = l.recent.at(hw); !ok {
			l.hw = position{offset: hw}
		}
	}
	n := 0
	for _, t := range l.unreplicated {
		if t.last >= l.hw.offset {
			l.unreplicated[n] = t
			n++
		}
	}
	l.unreplicated = l.unreplicated[:n]
	if l.parent != nil {
		l.parent.hwDirty.Store(true)
	}
}

// RecoveryPoint is the offset below which everything is synced.
func (l *Log) RecoveryPoint() int64 {
	l.mu.Lock()
	defer l.unlock()
	return l.recovery
}

// Size is how many bytes the log's segments have, indexes not counted.
func (l *Log) Size() int64 {
	var n int64
	for _, s := range l.segs() {
		b, err := s.bytes(l.e.files)
		if err != nil {
			return n
		}
		n += b
	}
	return n
}

// Segments is how many segments the log has.
func (l *Log) Segments() int { return len(l.segs()) }

// Producers describes the producers that the log remembers, ordered by id.
func (l *Log) Producers() []ProducerState {
	l.mu.Lock()
	defer l.unlock()
	return l.prod.list()
}

// StartVerification begins the verification of a transactional append with the transaction coordinator (KIP-890). A nil guard
// means that the transaction is open here already and nothing need be verified. With supportsEpochBump (transaction version 2)
// a stale epoch is refused with INVALID_PRODUCER_EPOCH.
func (l *Log) StartVerification(producerID int64, baseSequence int32, producerEpoch int16, supportsEpochBump bool) (*VerificationGuard, error) {
	l.mu.Lock()
	defer l.unlock()
	return l.prod.startVerification(producerID, baseSequence, producerEpoch, supportsEpochBump, l.e.nowMs())
}

// HasLateTransaction says whether a transaction has been open for longer than maxAge.
func (l *Log) HasLateTransaction(maxAge time.Duration) bool {
	l.marks.Lock()
	var id int64 = -1
	if len(l.open) > 0 {
		id = l.open[0].producerID
	}
	l.marks.Unlock()
	if id < 0 {
		return false
	}
	l.mu.Lock()
	defer l.unlock()
	e := l.prod.entry(id)
	return e != nil && e.lastTimestamp >= 0 && l.e.nowMs()-e.lastTimestamp > maxAge.Milliseconds()
}

// LatestEpoch is the newest leader epoch that the log knows.
func (l *Log) LatestEpoch() (epoch int32, ok bool) { return l.epochs.latest() }

// AssignEpochStart notes that this replica leads epoch from offset on, the log end offset at that time. It fails with
// KAFKA_STORAGE_ERROR when the log can't be written any more.
func (l *Log) AssignEpochStart(epoch int32, offset int64) error {
	l.mu.Lock()
	defer l.unlock()
	if err := l.usable(); err != nil {
		return err
	}
	l.epochs.assign(epoch, offset, false)
	return nil
}

// EndOffsetForEpoch is the largest known epoch that is at most the one asked for, and the offset where it ends. ok=false:
// nothing is known about it.
func (l *Log) EndOffsetForEpoch(epoch int32) (found int32, endOffset int64, ok bool) {
	return l.epochs.endOffset(epoch, l.EndOffset())
}

// EpochForOffset is the leader epoch that the offset was written in.
func (l *Log) EpochForOffset(offset int64) (epoch int32, ok bool) { return l.epochs.at(offset) }

// Broken is what a panic becomes that left a log in the middle of a change. Nobody can tell what holds for the log then, its lock
// stays locked, and the process must stop: who recovers from panics raises it again.
type Broken struct {
	Value any
	Stack []byte
}

func (b *Broken) Error() string {
	return fmt.Sprintf("panic while a log was changed: %v\n\n%s", b.Value, b.Stack)
}

// unlock ends a change under mu. It must be deferred as it is, or else it doesn't notice a panic.
func (l *Log) unlock() {
	switch v := recover().(type) {
	case nil:
		l.mu.Unlock()
	case *Broken:
		panic(v)
	default:
		panic(&Broken{Value: v, Stack: debug.Stack()})
	}
}

// usable is nil when the log may be written. mu is held.
func (l *Log) usable() error {
	if l.closed != nil {
		return &storageError{fmt.Errorf("%s: %w", l.tp, l.closed)}
	}
	if err := l.failed.Load(); err != nil {
		return *err
	}
	if l.parent != nil {
		if err := l.parent.offline(); err != nil {
			return &storageError{fmt.Errorf("%s: log directory %s is offline: %w", l.tp, l.parent.path, err)}
		}
	}
	return nil
}

// ioError says what an error on the log's files means. Damage in a file is CORRUPT_MESSAGE for the caller and nothing else. An
// error of the disk is KAFKA_STORAGE_ERROR, and the log directory fails, unless the disk is only full.
func (l *Log) ioError(what string, err error) error {
	if err == nil {
		return nil
	}
	if damaged(err) {
		if !l.told.Swap(true) {
			l.e.logger.Error("a log is damaged", "partition", l.tp.String(), "dir", l.dir.get(), "err", err)
		}
		return fmt.Errorf("%s %s in %s: %w: %w", what, l.tp, l.dir.get(), api.ErrCorruptMessage, err)
	}
	var wrapped error = &storageError{fmt.Errorf("%s %s in %s: %w", what, l.tp, l.dir.get(), err)}
	if passing(err) {
		return wrapped
	}
	if l.parent != nil {
		l.parent.fail(wrapped)
	} else {
		l.failed.CompareAndSwap(nil, &wrapped)
	}
	return wrapped
}

func (l *Log) file(name string) string { return l.dir.get() + "/" + name }

// outOfRange is OFFSET_OUT_OF_RANGE.
func (l *Log) outOfRange(offset, from, to int64) error {
	return api.WithMessage(api.ErrOffsetOutOfRange, "offset %d of %s is out of range: the log has %d to %d", offset, l.tp, from, to)
}

// IncrementLogStart moves the log start offset up, at most to the high watermark (else OFFSET_OUT_OF_RANGE). Segments below it
// are deleted by DeleteOldSegments, which runs now and then.
func (l *Log) IncrementLogStart(offset int64, reason string) error {
	l.mu.Lock()
	defer l.unlock()
	if err := l.usable(); err != nil {
		return err
	}
	return l.incrementStart(offset, reason)
}

// incrementStart is IncrementLogStart with mu held.
func (l *Log) incrementStart(offset int64, reason string) error {
	l.marks.Lock()
	if offset > l.hw.offset {
		hw := l.hw.offset
		l.marks.Unlock()
		return api.WithMessage(api.ErrOffsetOutOfRange, "Cannot increment the log start offset to %d of partition %s since it is larger than the high watermark %d", offset, l.tp, hw)
	}
	if offset <= l.start {
		l.marks.Unlock()
		return nil
	}
	l.start = offset
	n := 0
	for _, t := range l.unreplicated {
		if t.last >= offset {
			l.unreplicated[n] = t
			n++
		}
	}
	l.unreplicated = l.unreplicated[:n]
	l.marks.Unlock()
	l.epochs.truncateFromStart(offset)
	if l.parent != nil {
		l.parent.startDirty.Store(true)
	}
	l.e.logger.Info("log start offset moved", "partition", l.tp.String(), "offset", offset, "reason", reason)
	return nil
}
