package log

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"time"

	"gregor/internal/record"
	"gregor/internal/uuid"
)

// loadOptions say what is known about a directory before it is read.
type loadOptions struct {
	cfg Config
	// topicID is Zero when partition.metadata has not been read yet.
	topicID uuid.UUID
	// clean: the node was stopped cleanly, so that nothing need be scanned.
	clean bool
	// recoveryPoint and start are the checkpointed offsets; start is -1 when there is none.
	recoveryPoint, start int64
	// firstDirty is how far the cleaner has come, 0 where it has never been.
	firstDirty int64
	// recovering is told of bytes to scan and of bytes scanned; may be nil.
	recovering func(total, done int64)
}

// load opens the log in a directory: it tidies up what an interrupted deletion or compaction left, finds the segments, recovers
// what lies behind the recovery point (or, after a clean stop, only looks at the end), and restores epochs and producers.
func (e *engine) load(tp TopicPartition, dir string, parent *logDir, o loadOptions) (*Log, error) {
	l := &Log{e: e, tp: tp, name: tp.String(), parent: parent, cutTo: -1, dirSynced: true, meta: tp.Topic == MetadataTopic}
	l.dir.set(dir)
	l.cfg.Store(&o.cfg)
	files, err := e.listFiles(dir)
	if err != nil {
		return nil, err
	}
	if files, err = l.tidy(files); err != nil {
		return nil, err
	}
	if o.topicID != uuid.Zero {
		l.topicID.Store(&o.topicID)
	} else if err := l.loadIdentity(); err != nil {
		return nil, err
	}
	if err := l.epochs.load(e.fs, l.file(epochFile)); err != nil {
		return nil, err
	}
	segs, err := l.adopt(files)
	if err != nil {
		return nil, err
	}
	l.start = max(o.start, 0)
	if len(segs) == 0 {
		seg, err := l.firstSegment(l.start)
		if err != nil {
			return nil, err
		}
		segs = []*segment{seg}
		l.touched = l.start > 0
	}
	l.segments.Store(&segs)
	l.start = max(l.start, segs[0].base)
	active := segs[len(segs)-1]
	active.created = e.nowMs()
	active.jitter = e.jitter(min(o.cfg.SegmentJitter, o.cfg.SegmentAge))

	if err := l.checkTransactions(segs); err != nil {
		return nil, err
	}
	sound := false
	if active.absent {
		sound = true
		l.end = position{offset: active.base, seg: active}
		if err := l.dropSnapshots(0, func(int64) bool { return true }); err != nil {
			return nil, err
		}
	} else if o.clean {
		if sound, err = l.openTail(active); err != nil {
			return nil, err
		}
		if sound {
			l.recovery = l.end.offset
			err = l.restoreProducers()
		} else {
			e.logger.Warn("a log that was closed cleanly has a damaged end", "partition", tp.String(), "segment", active.name(suffixLog).path())
			o.recoveryPoint = min(o.recoveryPoint, active.base)
		}
	}
	if !sound && err == nil {
		err = l.recover(o.recoveryPoint, o.firstDirty, o.recovering)
		l.touched = true
	}
	if err != nil {
		return nil, err
	}
	if l.end.offset < l.start {
		// The log start offset was moved beyond what is there, by DeleteRecords before the data was synced.
		e.logger.Warn("log end below log start: the log begins anew", "partition", tp.String(), "log_end_offset", l.end.offset, "log_start_offset", l.start)
		if err := l.restart(l.start, 0); err != nil {
			return nil, err
		}
	}
	l.epochs.truncateFromEnd(l.end.offset)
	l.epochs.truncateFromStart(l.start)
	l.hw = position{offset: l.start}
	l.lastFlush = e.clock.Now()
	return l, nil
}

func (e *engine) listFiles(dir string) ([]string, error) {
	entries, err := e.fs.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, d := range entries {
		if !d.IsDir() {
			names = append(names, d.Name())
		}
	}
	return names, nil
}

func (l *Log) loadIdentity() error {
	id, err := readPartitionMetadata(l.e.fs, l.dir.get())
	if err == nil && id != uuid.Zero {
		l.topicID.Store(&id)
	}
	return err
}

// tidy removes and completes what is in transit, in Kafka's order:
//
//  1. *.deleted go. Swap files at or above the lowest .cleaned go too: the split that made them wasn't complete. Then all
//     .cleaned go.
//  2. What the remaining swap segments replace goes.
//  3. Swap files get their plain names.
//
// It returns the files that are left.
func (l *Log) tidy(files []string) ([]string, error) {
	transit := false
	for _, f := range files {
		if strings.HasSuffix(f, suffixDeleted) || strings.HasSuffix(f, suffixCleaned) || strings.HasSuffix(f, suffixSwap) {
			transit = true
			break
		}
	}
	if !transit {
		return files, nil
	}
	minCleaned := int64(math.MaxInt64)
	var cleaned, swaps []string
	gone := make(map[string]bool)
	remove := func(name string) error {
		gone[name] = true
		return removeIfExists(l.e.fs, l.file(name))
	}
	for _, f := range files {
		switch {
		case strings.HasSuffix(f, suffixDeleted):
			if l.meta && strings.HasSuffix(f, ".checkpoint"+suffixDeleted) {
				continue // snapshots of the metadata log are its owner's business
			}
			if err := remove(f); err != nil {
				return nil, err
			}
		case strings.HasSuffix(f, suffixCleaned):
			o, _, err := parseOffsetName(f)
			if err != nil {
				return nil, err
			}
			minCleaned = min(minCleaned, o)
			cleaned = append(cleaned, f)
		case strings.HasSuffix(f, suffixSwap):
			swaps = append(swaps, f)
		}
	}
	complete := swaps[:0:0]
	for _, f := range swaps {
		o, _, err := parseOffsetName(f)
		if err != nil {
			return nil, err
		}
		if o >= minCleaned {
			if err := remove(f); err != nil {
				return nil, err
			}
			continue
		}
		complete = append(complete, f)
	}
	for _, f := range cleaned {
		if err := remove(f); err != nil {
			return nil, err
		}
	}
	from, to := int64(math.MaxInt64), int64(math.MinInt64)
	for _, f := range complete {
		if !strings.HasSuffix(f, suffixLog+suffixSwap) {
			continue
		}
		base, _, err := parseOffsetName(f)
		if err != nil {
			return nil, err
		}
		next, err := l.nextOffsetOf(base, f)
		if err != nil {
			return nil, err
		}
		from, to = min(from, base), max(to, next)
	}
	for _, f := range files {
		if gone[f] || strings.HasSuffix(f, suffixSwap) {
			continue
		}
		if o, _, err := parseOffsetName(f); err == nil && o >= from && o < to {
			if err := remove(f); err != nil {
				return nil, err
			}
		}
	}
	var out []string
	for _, f := range files {
		if !gone[f] && !strings.HasSuffix(f, suffixSwap) {
			out = append(out, f)
		}
	}
	for _, f := range complete {
		plain := strings.TrimSuffix(f, suffixSwap)
		if err := l.e.fs.Rename(l.file(f), l.file(plain)); err != nil {
			return nil, err
		}
		if !slices.Contains(out, plain) {
			out = append(out, plain)
		}
	}
	l.touched = true
	return out, nil
}

// nextOffsetOf scans a segment file for the offset behind its last whole batch.
func (l *Log) nextOffsetOf(base int64, name string) (int64, error) {
	f, err := l.e.fs.Open(l.file(name))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	h := newHeaderScan(f, 0, size)
	defer h.close()
	next := base
	for {
		b, err := h.next()
		if err != nil {
			return next, ignoreDamage(err)
		}
		next = b.last + 1
	}
}

// adopt makes segments of the .log files, removes index files that have none, and notes the producer snapshots. A file with
// the suffix of a segment file whose name is no number is fatal, as in Kafka.
func (l *Log) adopt(files []string) ([]*segment, error) {
	type found struct{ log, index, times, txn bool }
	bases := make(map[int64]*found, 2)
	for _, f := range files {
		var mark func(*found)
		switch {
		case strings.HasSuffix(f, suffixLog):
			mark = func(x *found) { x.log = true }
		case strings.HasSuffix(f, suffixIndex):
			mark = func(x *found) { x.index = true }
		case strings.HasSuffix(f, suffixTimeIndex):
			mark = func(x *found) { x.times = true }
		case strings.HasSuffix(f, suffixTxnIndex):
			mark = func(x *found) { x.txn = true }
		case strings.HasSuffix(f, suffixSnapshot):
			if o, s, err := parseOffsetName(f); err == nil && s == suffixSnapshot {
				l.snapshots = append(l.snapshots, o)
			}
			continue
		default:
			continue
		}
		o, _, err := parseOffsetName(f)
		if err != nil {
			return nil, fatalf("load %s: %w", l.dir.get(), err)
		}
		x := bases[o]
		if x == nil {
			x = &found{}
			bases[o] = x
		}
		mark(x)
	}
	slices.Sort(l.snapshots)
	var segs []*segment
	for base, x := range bases {
		if !x.log {
			l.e.logger.Warn("index files without a log file are removed", "partition", l.tp.String(), "offset", base)
			for _, s := range []string{suffixIndex, suffixTimeIndex, suffixTxnIndex} {
				if err := removeIfExists(l.e.fs, l.file(offsetName(base)+s)); err != nil {
					return nil, err
				}
			}
			l.touched = true
			continue
		}
		s := newSegment(&l.dir, base)
		s.txns.exists = x.txn
		if !x.index {
			s.index.disk = 0
		}
		if !x.times {
			s.times.disk = 0
		}
		segs = append(segs, s)
	}
	slices.SortFunc(segs, func(a, b *segment) int {
		if a.base < b.base {
			return -1
		}
		return 1
	})
	return segs, nil
}

// openTail finds the log end offset after a clean stop by the last index entry and the batches behind it. sound=false: the end
// isn't as a clean stop leaves it (torn or zero bytes, an index that can't be right), and the segment must be recovered.
//
// Differs from Kafka, which believes the index and so may take a wrong log end offset from it.
func (l *Log) openTail(seg *segment) (sound bool, err error) {
	fc := l.e.files
	size, err := seg.bytes(fc)
	if err != nil {
		return false, err
	}
	if size == 0 {
		l.end = position{offset: seg.base, seg: seg}
		if seg.index.disk < 0 {
			seg.index.disk, seg.times.disk = 0, 0
			seg.index.exists, seg.times.exists = true, true
		} else {
			l.touched = true
		}
		seg.checked.Store(true)
		seg.setTimestamps(record.NoTimestamp, -1)
		return true, nil
	}
	if seg.index.disk == 0 {
		return false, nil // no index file: rebuild it
	}
	defer seg.close(fc, false)
	n, err := seg.index.count(seg.indexEnv(fc))
	if err != nil {
		return false, err
	}
	var pos, last int64
	last = -1
	if n > 0 {
		e, err := seg.index.lastEntry(seg.indexEnv(fc))
		if err != nil {
			return false, err
		}
		rel, p := indexEntry(e.b[:])
		pos, last = int64(p), seg.base+int64(rel)
		if rel < 0 || p <= 0 || pos >= size {
			return false, nil
		}
	}
	f, err := seg.open(fc)
	if err != nil {
		return false, err
	}
	defer seg.release(fc)
	h := newHeaderScan(f, pos, size)
	defer h.close()
	var b batchHeader
	end := int64(-1)
	seen := n == 0
	maxTs, maxTsLast := record.NoTimestamp, int64(-1)
	if n > 0 { // else the scan sees every batch
		if maxTs, maxTsLast, err = seg.timestamps(fc); err != nil {
			return false, err
		}
	}
	for {
		b2, err := h.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, ignoreDamage(err)
		}
		b = b2
		if b.last < seg.base || b.last <= end-1 || b.last-seg.base > math.MaxInt32 {
			return false, nil
		}
		seen = seen || b.last == last
		if ts := b.entry.MaxTimestamp(); ts > maxTs {
			maxTs, maxTsLast = ts, b.last
		}
		end = b.last + 1
	}
	if !seen || maxTsLast >= end {
		return false, nil
	}
	// The last batch is the one that a torn write would have hit.
	e, err := h.whole(b)
	if err != nil {
		return false, err
	}
	if e.Check() != nil {
		return false, nil
	}
	seg.setTimestamps(maxTs, maxTsLast)
	seg.sinceIndex = size - pos
	l.end = position{offset: end, seg: seg, pos: size}
	return true, nil
}

// restoreProducers loads the newest usable snapshot and replays what was appended after it.
func (l *Log) restoreProducers() error {
	bases := l.segs()
	if err := l.dropStraySnapshots(bases, l.end.offset); err != nil {
		return err
	}
	if n := len(l.snapshots); n > 0 && l.snapshots[n-1] == l.end.offset {
		st, err := l.e.fs.Stat(l.snapshotPath(l.end.offset))
		if err != nil {
			return err
		}
		// The common case of a log without producers, at the price of one stat.
		if st.Size() == snapshotHeaderSize {
			return nil
		}
	} else if l.end.offset > l.start {
		l.touched = true
	}
	from, err := l.loadSnapshot(l.end.offset)
	if err != nil {
		return err
	}
	return l.replay(from, l.end.offset)
}

// loadSnapshot restores the producers from the newest sound snapshot at or below upTo and returns its offset, or the log start
// offset when there is none. Unsound ones are removed.
func (l *Log) loadSnapshot(upTo int64) (int64, error) {
	l.prod.reset()
	l.open, l.unreplicated = nil, nil
	for i := len(l.snapshots) - 1; i >= 0; i-- {
		o := l.snapshots[i]
		if o > upTo || o <= l.start {
			continue
		}
		data, err := readFile(l.e.fs, l.snapshotPath(o))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		var entries map[int64]*producerEntry
		if err == nil {
			entries, err = decodeSnapshot(data)
		}
		if err != nil {
			l.e.logger.Warn("a producer snapshot can't be used and is removed", "partition", l.tp.String(), "offset", o, "err", err)
			l.snapshots = slices.Delete(l.snapshots, i, i+1)
			if err := removeIfExists(l.e.fs, l.snapshotPath(o)); err != nil {
				return 0, err
			}
			continue
		}
		now, limit := l.e.nowMs(), l.e.producerExpiration.Milliseconds()
		for id, p := range entries {
			if p.txnFirst == UnknownOffset && now-p.lastTimestamp >= limit {
				delete(entries, id)
				continue
			}
			if p.txnFirst != UnknownOffset {
				l.open = append(l.open, openTxn{first: position{offset: p.txnFirst}, producerID: id})
			}
		}
		slices.SortFunc(l.open, func(a, b openTxn) int {
			if a.first.offset < b.first.offset {
				return -1
			}
			return 1
		})
		l.prod.entries = entries
		return o, nil
	}
	return l.start, nil
}

// replay applies the batches in [from, to) to the producers, reading headers only where it can.
func (l *Log) replay(from, to int64) error {
	if from >= to {
		return nil
	}
	segs := l.segs()
	for _, seg := range segs[max(segmentAt(segs, from), 0):] {
		if seg.base >= to {
			break
		}
		if err := l.replaySegment(seg, from, to); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) replaySegment(seg *segment, from, to int64) error {
	fc := l.e.files
	size, err := seg.bytes(fc)
	if err != nil || size == 0 {
		return err
	}
	pos := int64(0)
	if from > seg.base {
		if pos, err = seg.floor(fc, from); err != nil {
			return err
		}
	}
	f, err := seg.open(fc)
	if err != nil {
		return err
	}
	defer seg.release(fc)
	h := newHeaderScan(f, pos, size)
	defer h.close()
	for {
		b, err := h.next()
		if err != nil {
			if err = ignoreDamage(err); err == nil {
				var more bool
				if more, err = seg.resume(fc, &h); more {
					continue
				}
			}
			return err
		}
		if b.entry.Offset() >= to {
			return nil
		}
		if b.last < from || b.entry.Magic() != 2 || !b.entry.Batch().HasProducer() {
			continue
		}
		e := b.entry
		if e.Batch().IsControl() {
			if e, err = h.whole(b); err != nil {
				return err
			}
		}
		l.replayBatch(e.Batch(), seg, b.pos)
	}
}

// replayBatch applies a batch that is in the log already. What it says about aborted transactions is returned for those who
// rebuild the transaction index.
func (l *Log) replayBatch(b record.Batch, seg *segment, pos int64) []abortedTxn {
	if err := l.prod.apply(b, pos, applyCheck{tp: l.tp, origin: Replication}); err != nil {
		// It was accepted once; there is nothing better to do than to go on.
		l.e.logger.Warn("a batch doesn't fit its producer's state", "partition", l.tp.String(), "offset", b.BaseOffset(), "err", err)
		l.prod.rollback()
		return nil
	}
	l.marks.Lock()
	defer l.marks.Unlock()
	return l.transactionsLocked(seg)
}

// dropStraySnapshots keeps the snapshots at segment bases and the newest one beyond all bases, none above end.
func (l *Log) dropStraySnapshots(segs []*segment, end int64) error {
	newest := int64(-1)
	if n := len(l.snapshots); n > 0 && l.snapshots[n-1] > segs[len(segs)-1].base {
		newest = l.snapshots[n-1]
	}
	return l.dropSnapshots(0, func(o int64) bool {
		if o > end {
			return true
		}
		if o == newest {
			return false
		}
		i := segmentAt(segs, o)
		return i < 0 || segs[i].base != o
	})
}

// restart throws all segments away and begins anew at offset. mu is held, or the log isn't in use yet.
func (l *Log) restart(offset int64, delay time.Duration) error {
	if err := l.removeSegments(newestFirst(l.segs()), delay); err != nil {
		return err
	}
	if err := l.dropSnapshots(0, func(int64) bool { return true }); err != nil {
		return err
	}
	if err := l.e.fs.SyncDir(l.dir.get()); err != nil {
		return err
	}
	seg, err := l.createSegment(offset)
	if err != nil {
		return err
	}
	l.prod.reset()
	l.epochs.clear()
	l.lowerFirstDirty(offset)
	l.truncated++
	l.touched = true
	l.entries = true
	l.shape.Lock()
	defer l.shape.Unlock()
	l.segments.Store(&[]*segment{seg})
	l.marks.Lock()
	defer l.marks.Unlock()
	l.open, l.unreplicated, l.recent = nil, nil, nil
	l.start = offset
	l.end = position{offset: offset, seg: seg}
	l.hw = l.end
	l.recovery = min(l.recovery, offset)
	return nil
}

// newestFirst is the order in which a truncation removes segments: if it is interrupted, what is left is still a beginning of
// the log.
func newestFirst(segs []*segment) []*segment {
	out := slices.Clone(segs)
	slices.Reverse(out)
	return out
}

// removeSegments deletes the files of segments, after the delay when there is one, and lets go of their handles.
func (l *Log) removeSegments(segs []*segment, delay time.Duration) error {
	for _, s := range segs {
		for _, suffix := range []string{suffixIndex, suffixTimeIndex, suffixTxnIndex, suffixLog} {
			if suffix == suffixTxnIndex && !s.txns.exists {
				continue
			}
			if err := l.discard(s.name(suffix).path(), delay); err != nil {
				return err
			}
		}
		s.close(l.e.files, true)
	}
	return nil
}
