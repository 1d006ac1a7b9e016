package log

import (
	"errors"
	"fmt"
	"iter"

	"gregor/internal/api"
	"gregor/internal/uuid"
)

// A replica moves to another log directory of its node as a future log (KIP-113): a second log of the partition, in a directory
// TOPIC-N.HEX32-future, that is filled from the current one, and takes its name and its place once it has everything. It is
// loaded at start like any other, so that a move that was interrupted goes on.

// ErrNoSuchDir is returned for a path that is none of the log directories.
var ErrNoSuchDir = errors.New("no such log directory")

// Future is the log that a replica moves to, nil when it doesn't move.
func (m *Manager) Future(tp TopicPartition) *Log {
	if l, ok := m.futures.Load(tp); ok {
		return l.(*Log)
	}
	return nil
}

// Futures iterates over the future logs, in no order.
func (m *Manager) Futures() iter.Seq[*Log] {
	return func(yield func(*Log) bool) {
		m.futures.Range(func(_, l any) bool { return yield(l.(*Log)) })
	}
}

// every iterates over the logs and the future logs.
func (m *Manager) every() iter.Seq[*Log] {
	return func(yield func(*Log) bool) {
		for l := range m.Logs() {
			if !yield(l) {
				return
			}
		}
		for l := range m.Futures() {
			if !yield(l) {
				return
			}
		}
	}
}

// dirAt finds a log directory by its path, nil when there is none.
func (m *Manager) dirAt(path string) *logDir {
	for _, d := range m.dirs {
		if d.path == path {
			return d
		}
	}
	return nil
}

// CheckDir says whether path is a log directory that can be used: nil, ErrNoSuchDir, or KAFKA_STORAGE_ERROR.
func (m *Manager) CheckDir(path string) error {
	d := m.dirAt(path)
	if d == nil {
		return fmt.Errorf("%s: %w", path, ErrNoSuchDir)
	}
	if err := d.offline(); err != nil {
		return &storageError{fmt.Errorf("log directory %s is offline: %w", path, err)}
	}
	return nil
}

// Cordoned says whether a log directory takes no new replicas.
func (m *Manager) Cordoned(dir string) bool { return m.o.Cordoned != nil && m.o.Cordoned(dir) }

// ParentDir is the path of the log directory that holds the log.
func (l *Log) ParentDir() string {
	if l.parent == nil {
		return ""
	}
	return l.parent.path
}

// Prefer notes in which directory a replica of the partition is to be made, should one be made.
func (m *Manager) Prefer(tp TopicPartition, dir string) {
	m.create.Lock()
	defer m.create.Unlock()
	if l := m.Log(tp); l != nil && l.parent.path == dir {
		return
	}
	if m.preferred == nil {
		m.preferred = make(map[TopicPartition]string)
	}
	m.preferred[tp] = dir
}

// HasDir says whether the node has a directory of that id, and whether it is online.
func (m *Manager) HasDir(id uuid.UUID) (has, online bool) {
	for _, d := range m.dirs {
		if d.id == id {
			return true, d.offline() == nil
		}
	}
	return false, false
}

// AllOnline says whether no log directory is offline.
func (m *Manager) AllOnline() bool {
	for _, d := range m.dirs {
		if d.offline() != nil {
			return false
		}
	}
	return true
}

// CreateFuture makes a future log for a replica in another directory than its own. There must be none yet.
//
// Errors: ErrNoSuchDir, KAFKA_STORAGE_ERROR also while any directory is offline, because a future log of the partition may lie
// there.
func (m *Manager) CreateFuture(tp TopicPartition, dir string) (*Log, error) {
	m.create.Lock()
	defer m.create.Unlock()
	if err := m.CheckDir(dir); err != nil {
		return nil, fmt.Errorf("move %s: %w", tp, err)
	}
	if !m.AllOnline() {
		return nil, &storageError{fmt.Errorf("move %s to %s: there are log directories that are offline", tp, dir)}
	}
	src, d := m.Log(tp), m.dirAt(dir)
	switch {
	case src == nil:
		return nil, fmt.Errorf("move %s: %w", tp, ErrNoSuchReplica)
	case src.parent == d:
		return nil, fmt.Errorf("move %s: it is in %s already", tp, dir)
	case m.Future(tp) != nil:
		return nil, fmt.Errorf("move %s: it is being moved to %s already", tp, m.Future(tp).parent.path)
	}
	if err := d.settle(tp); err != nil {
		return nil, &storageError{fmt.Errorf("move %s: %w", tp, err)}
	}
	id, err := uuid.New(randReader{m.e})
	if err != nil {
		return nil, err
	}
	l, err := m.e.create(tp, d.file(suffixedDirName(tp, id, kindFuture)), d, src.TopicID(), src.Config())
	if err != nil {
		err = &storageError{fmt.Errorf("move %s to %s: %w", tp, d.path, err)}
		if !passing(err) {
			d.fail(err)
		}
		return nil, err
	}
	d.mu.Lock()
	d.futures[tp] = l
	d.mu.Unlock()
	d.recoveryDirty.Store(true)
	d.hwDirty.Store(true)
	m.futures.Store(tp, l)
	m.bg.identityLater(l)
	delete(m.preferred, tp)
	return l, nil
}

// FutureFits says whether the name of a future log's directory holds the topic's name. Kafka moves no others.
func FutureFits(tp TopicPartition) bool {
	return len(tp.String())+len(".")+32+len(dirFuture) <= maxNameLen
}

// DropFuture gives a future log up, unless it is none any more: its directory is deleted as a replica's is. It is kept if the log
// that it was to replace is gone already.
func (m *Manager) DropFuture(tp TopicPartition, l *Log) error {
	m.create.Lock()
	defer m.create.Unlock()
	if m.Future(tp) != l {
		return nil
	}
	if m.Log(tp) == nil {
		return &storageError{fmt.Errorf("drop the future log of %s: there is no other log", tp)}
	}
	return m.dropFuture(tp)
}

// dropFuture is DropFuture with create held.
func (m *Manager) dropFuture(tp TopicPartition) error {
	l := m.Future(tp)
	if l == nil {
		return nil
	}
	m.futures.Delete(tp)
	return m.retireFuture(l)
}

func (m *Manager) retireFuture(l *Log) error {
	d := l.parent
	d.mu.Lock()
	delete(d.futures, l.tp)
	if d.logs[l.tp] == nil {
		d.noteStaleLocked(l.tp)
	}
	d.mu.Unlock()
	return m.retire(l)
}

// settleFutures decides at start about future logs that there can't be: in the directory of the current log, or a second one of a
// partition. What was copied there is had once more; it goes.
func (m *Manager) settleFutures() error {
	for _, d := range m.dirs {
		for _, l := range d.each(true) {
			cur := m.Log(l.tp)
			useless := cur != nil && cur.parent == d
			other := m.Future(l.tp)
			if !useless && (other == nil || other.EndOffset() < l.EndOffset()) {
				m.futures.Store(l.tp, l)
				l = other
			}
			if l == nil {
				continue
			}
			m.e.logger.Warn("a future log is one too many and is deleted", "dir", l.Dir())
			if err := m.retireFuture(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// Promote makes the future log the partition's log: it gets the plain name, and the log that was there until then is deleted.
// The caller sees to it that the future log has everything, and that neither log is appended to or cut meanwhile. It returns the
// log that is the partition's now.
//
// The old directory goes first, durably: should the process die in between, there is a future log alone, in the directory that
// the metadata names, which a start takes for the replica. Kafka does so too.
// If it fails in between there is a future log alone as well, which Promote may be asked for again.
//
// Differs from Kafka: what was copied is synced before the old log goes.
func (m *Manager) Promote(tp TopicPartition, next *Log) (*Log, error) {
	m.create.Lock()
	defer m.create.Unlock()
	src := m.Log(tp)
	if next == nil || m.Future(tp) != next {
		return nil, fmt.Errorf("promote the future log of %s: %w", tp, ErrNoSuchReplica)
	}
	if err := next.Flush(); err != nil {
		return nil, err
	}
	if src != nil {
		if err := src.parent.offline(); err != nil {
			return nil, &storageError{fmt.Errorf("promote the future log of %s: %w", tp, err)}
		}
		if err := next.take(src); err != nil {
			return nil, err
		}
		if err := m.retire(src); err != nil {
			src.mu.Lock()
			src.closed = nil // it has kept its name, and stays the partition's log
			src.unlock()
			return nil, err
		}
		src.parent.mu.Lock()
		delete(src.parent.logs, tp)
		src.parent.noteStaleLocked(tp)
		src.parent.mu.Unlock()
		m.logs.Delete(tp)
		if err := m.e.fs.SyncDir(src.parent.path); err != nil {
			return nil, src.ioError("delete", err)
		}
	}
	d := next.parent
	if err := next.rename(d.file(tp.String())); err != nil {
		return nil, err
	}
	d.mu.Lock()
	delete(d.futures, tp)
	d.logs[tp] = next
	d.mu.Unlock()
	m.futures.Delete(tp)
	m.logs.Store(tp, next)
	for _, dirty := range []interface{ Store(bool) }{&d.recoveryDirty, &d.startDirty, &d.hwDirty, &d.cleanerDirty} {
		dirty.Store(true)
	}
	m.e.logger.Info("the replica lies in another log directory now", "partition", tp.String(), "dir", next.Dir())
	return next, nil
}

// take gives the log what another one that has the same records knows besides: the offsets, and a leader epoch without records.
func (l *Log) take(src *Log) error {
	start, _, hw, end := src.Offsets()
	if at := l.EndOffset(); at != end {
		return fmt.Errorf("promote the future log of %s: it ends at %d and the log at %d", l.tp, at, end)
	}
	if epoch, ok := src.LatestEpoch(); ok {
		if err := l.AssignEpochStart(epoch, end); err != nil {
			return err
		}
	}
	l.SetConfig(src.Config())
	l.SetHighWatermark(hw)
	return l.IncrementLogStart(min(start, hw), "the log start offset of the log that moves")
}

// rename gives the log's directory another name, durably.
func (l *Log) rename(to string) error {
	l.flushing.Lock()
	defer l.flushing.Unlock()
	l.mu.Lock()
	defer l.unlock()
	if err := l.usable(); err != nil {
		return err
	}
	l.shape.Lock()
	err := l.e.fs.Rename(l.dir.get(), to)
	if err == nil {
		l.dir.set(to)
	}
	l.shape.Unlock()
	if err == nil {
		err = l.e.fs.SyncDir(l.parent.path)
	}
	return l.ioError("rename", err)
}

// Cuts counts how often the log was cut: as long as it says the same, what was read was not cut away meanwhile.
func (l *Log) Cuts() int64 {
	l.mu.Lock()
	defer l.unlock()
	return l.truncated
}

// errCutMeanwhile makes a copy begin anew.
var errCutMeanwhile = errors.New("the log was cut while it was copied")

// copyAttempts bounds how often one CopyFrom begins anew because the log is cut under it.
const copyAttempts = 10

// CopyFrom brings a future log nearer to the log that it is to replace: first it cuts off what that one doesn't have, then it
// appends up to about max bytes of what comes next. It returns how many were appended; 0 without an error means that it has
// everything. buf is memory that may be used. Only one may copy to a log at a time.
func (l *Log) CopyFrom(src *Log, max int, buf []byte) (n int, grown []byte, err error) {
	for range copyAttempts {
		n, buf, err = l.copyOnce(src, max, buf)
		if !errors.Is(err, errCutMeanwhile) {
			break
		}
	}
	return n, buf, err
}

func (l *Log) copyOnce(src *Log, max int, buf []byte) (n int, grown []byte, err error) {
	cuts := src.Cuts()
	start, _, _, end := src.Offsets()
	if err := l.cutToAgree(src, start, end); err != nil {
		return 0, buf, err
	}
	at := l.EndOffset()
	f, err := src.Read(at, max, ReadLogEnd, true)
	if errors.Is(err, api.ErrOffsetOutOfRange) {
		return 0, buf, errCutMeanwhile
	}
	if err != nil {
		return 0, buf, err
	}
	buf, err = f.Slice.Bytes(buf[:0])
	f.Slice.Release()
	if src.Cuts() != cuts {
		return 0, buf, errCutMeanwhile
	}
	if err != nil {
		return 0, buf, src.ioError("copy", err)
	}
	if len(buf) > 0 {
		if n, err = l.appendCopy(buf); err != nil {
			return 0, buf, err
		}
	}
	l.SetHighWatermark(f.HighWatermark)
	if s := min(start, l.HighWatermark()); s > l.LogStartOffset() {
		if err := l.IncrementLogStart(s, "the log start offset of the log that moves"); err != nil {
			return n, buf, err
		}
	}
	return n, buf, nil
}

// appendCopy appends what was read of the other log. That one may begin in the middle of a batch: a log that is empty begins with
// the whole batch.
func (l *Log) appendCopy(records []byte) (int, error) {
	info, err := l.AppendFollower(records)
	if e, ok := errors.AsType[*UnexpectedOffsetError](err); ok {
		start, _, _, end := l.Offsets()
		if start != end || e.LastOffset < end {
			return 0, err
		}
		if err := l.TruncateFully(e.FirstOffset); err != nil {
			return 0, err
		}
		info, err = l.AppendFollower(records)
	}
	return info.Bytes, err
}

// cutToAgree cuts off what another log, which has the offsets from start to end, doesn't have: what lies beyond its end, and what
// was written in other leader epochs (KIP-101). A log that ends where the other one begins, or before, begins anew there.
func (l *Log) cutToAgree(src *Log, start, end int64) error {
	first, _, _, at := l.Offsets()
	if at < start || first != start && (at == start || at == first) {
		return l.TruncateFully(start)
	}
	low := max(first, start)
	to := min(at, end)
	for to > low {
		mine, ok := l.epochs.entryAt(to - 1)
		theirs, ok2 := src.epochs.entryAt(to - 1)
		if !ok && !ok2 || mine.epoch == theirs.epoch {
			break
		}
		to = max(mine.start, theirs.start) // before this neither changes
	}
	switch {
	case to >= at:
		return nil
	case to <= low:
		return l.TruncateFully(start)
	}
	return l.TruncateTo(to)
}

// entryAt is the epoch that offset was written in and where it begins; (-1, -1) when that isn't known.
func (c *epochCache) entryAt(offset int64) (epochEntry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.entries) - 1; i >= 0; i-- {
		if c.entries[i].start <= offset {
			return c.entries[i], true
		}
	}
	return epochEntry{NoEpoch, UnknownOffset}, false
}
