package log

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"time"

	"gregor/internal/record"
)

// rollFor rolls the active segment if the batches to come, up to offset last with largest timestamp maxTs, don't belong into it. mu
// is held.
//
// The new segment begins where the log ends, also when the leader's log has a gap there that compaction has made: recovery takes one
// between segments for what a crash has left (gapless).
//
// Differs from Kafka, whose segment begins with the batch.
func (l *Log) rollFor(records []byte, last, maxTs int64, cfg *Config) error {
	n := int64(len(records))
	seg := l.active()
	size := seg.size.Load()
	due := size > int64(cfg.SegmentBytes)-n
	if !due && size > 0 {
		waited, err := l.waited(seg, maxTs)
		if err != nil {
			return l.ioError("read", err)
		}
		due = waited > maxSegmentMs(cfg)-seg.jitter
	}
	if !due {
		full, err := l.indexFull(seg, cfg)
		if err != nil {
			return l.ioError("read an index of", err)
		}
		due = full
	}
	if rel := last - seg.base; !due && (rel < 0 || rel > math.MaxInt32) {
		due = true
	}
	if !due {
		return nil
	}
	base := l.EndOffset()
	if last-base > math.MaxInt32 {
		e, _, err := record.NextEntry(records)
		if err != nil {
			return recordError(err)
		}
		base = e.Offset()
	}
	return l.roll(base)
}

// maxSegmentMs is the age at which a segment is rolled: a compacted topic's records must leave the active segment in time to
// be compacted within max.compaction.lag.ms.
func maxSegmentMs(cfg *Config) int64 {
	age := cfg.SegmentAge
	if cfg.CleanupCompact && cfg.MaxCompactionLag > 0 {
		age = min(age, cfg.MaxCompactionLag)
	}
	return boundMs(age)
}

// waited is how long the segment has been filled, in record time where there is one.
func (l *Log) waited(seg *segment, maxTs int64) (int64, error) {
	first, err := seg.firstTimestamp(l.e.files)
	if err != nil {
		return 0, err
	}
	if first >= 0 {
		return maxTs - first, nil
	}
	return l.e.nowMs() - seg.created, nil
}

func (l *Log) indexFull(seg *segment, cfg *Config) (bool, error) {
	n, err := seg.index.count(seg.indexEnv(l.e.files))
	if err != nil {
		return false, err
	}
	t, err := seg.times.count(seg.timesEnv(l.e.files))
	if err != nil {
		return false, err
	}
	// One time entry is kept for closing the segment.
	return n >= int(cfg.IndexBytes)/indexEntrySize || t >= int(cfg.IndexBytes)/timeEntrySize-1, nil
}

// roll makes a new active segment that begins at base. The old one's indexes are closed and the producers' state at base is
// written; making all that durable is left to the background. mu is held.
func (l *Log) roll(base int64) error {
	segs := l.segs()
	old := segs[len(segs)-1]
	if base == old.base {
		if old.size.Load() == 0 {
			return nil // nothing was ever written to it
		}
		return &storageError{fmt.Errorf("roll %s: a segment with base %d exists", l.tp, base)}
	}
	if base < old.base {
		return &storageError{fmt.Errorf("roll %s to base %d below that of the active segment, %d", l.tp, base, old.base)}
	}
	if err := old.seal(l.e.files); err != nil {
		return l.ioError("close a segment of", err)
	}
	if err := l.writeSnapshot(base, syncNone); err != nil {
		return l.ioError("write a producer snapshot of", err)
	}
	seg, err := l.createSegment(base)
	if err != nil {
		return l.ioError("make a segment of", err)
	}
	next := append(segs[:len(segs):len(segs)], seg)
	l.segments.Store(&next)
	l.marks.Lock()
	if l.end.offset == base || l.end.pos == 0 {
		l.end.seg, l.end.pos = seg, 0
		if l.hw.offset == l.end.offset {
			l.hw = l.end
		}
		if l.recent != nil {
			*l.recent = recentEnds{}
			l.recent.add(l.end)
		}
	}
	l.marks.Unlock()
	l.e.logger.Debug("segment rolled", "partition", l.tp.String(), "offset", base)
	if l.parent != nil && !l.meta {
		l.parent.flushLater(l)
	}
	return nil
}

// createSegment makes the empty files of a segment, removing what bears its name.
func (l *Log) createSegment(base int64) (*segment, error) {
	seg := newSegment(&l.dir, base)
	for _, suffix := range []string{suffixIndex, suffixTimeIndex, suffixTxnIndex} {
		if err := removeIfExists(l.e.fs, seg.name(suffix).path()); err != nil {
			return nil, err
		}
	}
	if err := seg.log.create(l.e.files, seg.name(suffixLog).path()); err != nil {
		return nil, err
	}
	l.entries = true
	l.fresh(seg)
	return seg, nil
}

// firstSegment is the segment of a log that has none: from offset 0 on its files are left to the first append, for many
// replicas never see one. From other offsets on the file must be there, its name is all that tells the log's end.
func (l *Log) firstSegment(base int64) (*segment, error) {
	if base > 0 {
		return l.createSegment(base)
	}
	seg := newSegment(&l.dir, base)
	seg.absent = true
	l.fresh(seg)
	return seg, nil
}

// appear makes the files of a segment that was absent. mu is held.
func (l *Log) appear(seg *segment) error {
	if !seg.absent {
		return nil
	}
	if err := seg.log.create(l.e.files, seg.name(suffixLog).path()); err != nil {
		return err
	}
	seg.absent = false
	l.entries = true
	return nil
}

// fresh sets a new segment's fields.
func (l *Log) fresh(seg *segment) {
	seg.size.Store(0)
	seg.index.disk, seg.times.disk = 0, 0
	seg.checked.Store(true)
	seg.tsKnown = true
	seg.created = l.e.nowMs()
	seg.jitter = l.e.jitter(min(l.cfg.Load().SegmentJitter, l.cfg.Load().SegmentAge))
}

// writeSnapshot writes the producers' state as of offset, unless there is such a snapshot already. mu is held.
func (l *Log) writeSnapshot(offset int64, d durability) error {
	i, ok := slices.BinarySearch(l.snapshots, offset)
	if ok {
		return nil
	}
	if err := replaceFile(l.e.fs, l.snapshotPath(offset), encodeSnapshot(l.prod.entries), d); err != nil {
		return err
	}
	l.snapshots = slices.Insert(l.snapshots, i, offset)
	return nil
}

func (l *Log) snapshotPath(offset int64) string { return l.file(offsetName(offset) + suffixSnapshot) }

// dropSnapshots removes the snapshots for which drop holds, at once or, with a delay, by way of .deleted. mu is held.
func (l *Log) dropSnapshots(delay time.Duration, drop func(offset int64) bool) error {
	kept := l.snapshots[:0:0]
	var first error
	for _, o := range l.snapshots {
		if !drop(o) {
			kept = append(kept, o)
			continue
		}
		if err := l.discard(l.snapshotPath(o), delay); err != nil && first == nil {
			first = err
		}
	}
	l.snapshots = kept
	return first
}

// discard removes a file, or renames it to .deleted and removes it after the delay.
func (l *Log) discard(name string, delay time.Duration) error {
	if delay <= 0 || l.e.unlinkAfter == nil {
		return removeIfExists(l.e.fs, name)
	}
	if err := l.e.fs.Rename(name, name+suffixDeleted); err != nil {
		return ignoreMissing(err)
	}
	l.e.unlinkAfter(name+suffixDeleted, delay)
	return nil
}

// flushDue says whether flush.messages asks for a sync. mu is held.
func (l *Log) flushDue(cfg *Config) bool {
	if cfg.FlushMessages <= 0 || cfg.FlushMessages == math.MaxInt64 {
		return false
	}
	l.marks.Lock()
	defer l.marks.Unlock()
	return l.end.offset-l.recovery >= cfg.FlushMessages
}

// Flush makes everything durable that was appended before the call and moves the recovery point up to it.
func (l *Log) Flush() error { return l.flushTo(maxOffset, false) }

const maxOffset = math.MaxInt64

// flushTo makes everything below min(upTo, log end offset) durable. Old segments are synced with their indexes; the active one's
// indexes only with all, for recovery doesn't count on them.
//
// One flush runs at a time and appends go on meanwhile; a truncation under way makes it keep the recovery point where it was.
func (l *Log) flushTo(upTo int64, all bool) error {
	l.flushing.Lock()
	defer l.flushing.Unlock()
	for {
		if again, err := l.flushOnce(upTo, all); !again {
			return err
		}
	}
}

// flushOnce is flushTo unless segments are taken away under it: then it must be done again. flushing is held.
func (l *Log) flushOnce(upTo int64, all bool) (again bool, err error) {
	w, err := l.planFlush(upTo, all)
	if w == nil || err != nil {
		return false, err
	}
	err = l.syncPlanned(w, all)

	l.mu.Lock()
	defer l.unlock()
	if err != nil {
		l.entries = l.entries || w.entries
		if (errors.Is(err, errClosed) || errors.Is(err, fs.ErrNotExist)) && !containsAll(l.segs(), w.segs) {
			return true, nil // truncation, retention or the cleaner has taken segments away
		}
		return false, l.ioError("flush", err)
	}
	l.dirSynced = true
	if upTo == maxOffset {
		l.lastFlush = l.e.clock.Now()
	}
	if l.truncated == w.truncated && w.target > l.recovery {
		l.recovery = w.target
		if l.parent != nil {
			l.parent.recoveryDirty.Store(true)
		}
	}
	return false, nil
}

// flushWork is what one flush has to sync.
type flushWork struct {
	target    int64 // the recovery point when it is done
	snapshots []int64
	segs      []*segment
	active    *segment // the last of all, whose indexes may wait
	absent    bool     // segs[0] has no files
	entries   bool     // the directory
	truncated int64    // truncations so far
}

// planFlush gathers what is to be synced; nil for nothing.
func (l *Log) planFlush(upTo int64, all bool) (*flushWork, error) {
	l.mu.Lock()
	defer l.unlock()
	if err := l.usable(); err != nil {
		return nil, err
	}
	if l.cutTo >= 0 {
		if err := l.repairTail(); err != nil {
			return nil, err
		}
	}
	w := &flushWork{target: min(upTo, l.endLocked()), active: l.active(), truncated: l.truncated}
	if w.target <= l.recovery && l.dirSynced && !l.entries {
		if upTo == maxOffset {
			l.lastFlush = l.e.clock.Now()
		}
		return nil, nil
	}
	segs := l.segs()
	from := max(segmentAt(segs, l.recovery), 0)
	to := len(segs)
	for to > from+1 && segs[to-1].base >= w.target && upTo != maxOffset {
		to--
	}
	w.segs = segs[from:to]
	w.absent = segs[0].absent // then it is the only one
	// A snapshot's sync matters before the recovery point passes it.
	for _, o := range l.snapshots {
		if o > l.recovery && o <= w.target {
			w.snapshots = append(w.snapshots, o)
		}
	}
	w.entries = l.entries || !l.dirSynced || len(w.snapshots) > 0 || all
	l.entries = false
	return w, nil
}

// syncPlanned syncs without holding up appends.
func (l *Log) syncPlanned(w *flushWork, all bool) error {
	if err := l.syncIdentity(); err != nil {
		return err
	}
	for _, o := range w.snapshots {
		if err := ignoreMissing(syncPath(l.e.fs, l.snapshotPath(o))); err != nil {
			return err
		}
	}
	for i, s := range w.segs {
		if w.absent && i == 0 {
			continue
		}
		if err := s.sync(l.e.files, all || s != w.active); err != nil {
			return err
		}
	}
	if err := l.epochs.flush(l.e.fs, l.file(epochFile), syncFile); err != nil {
		return err
	}
	if w.entries {
		return l.e.fs.SyncDir(l.dir.get())
	}
	return nil
}

// containsAll says whether segs has every one of some.
func containsAll(segs, some []*segment) bool {
	for _, s := range some {
		if !slices.Contains(segs, s) {
			return false
		}
	}
	return true
}

// syncIdentity makes the directory's own entry and partition.metadata durable, once.
func (l *Log) syncIdentity() error {
	done, err := func() (bool, error) {
		l.mu.Lock()
		defer l.unlock()
		return l.dirSynced, l.writeIdentity()
	}()
	if err != nil || done {
		return err
	}
	return l.e.fs.SyncDir(parentDir(l.dir.get()))
}

// writeIdentity writes partition.metadata when it isn't written yet. mu is held; it is the one sync that an append may wait for,
// once in a log's life.
func (l *Log) writeIdentity() error {
	if !l.metaDirty {
		return nil
	}
	if err := writePartitionMetadata(l.e.fs, l.dir.get(), l.TopicID(), syncFile); err != nil {
		return err
	}
	l.metaDirty = false
	return nil
}
