package log

import (
	"fmt"
	"io"
	"math"
	"sync"

	"gregor/internal/record"
)

// recoverChunk is how much recovery reads at a time: large enough that the reads cost nothing beside the CRC.
const recoverChunk = 1 << 20

var recoverBuffers = sync.Pool{New: func() any { b := make([]byte, recoverChunk); return &b }}

// recover scans what lies behind the recovery point: every batch is checked, indexes and producers are rebuilt, leader epochs
// added. At the first batch that isn't sound the file is cut, and later segments are removed.
//
// Below the recovery point nothing is checked. Within the segment that holds it, the scan begins at the last index entry below
// it whose batch can be verified: that part of the file was synced. The index itself need not have been.
func (l *Log) recover(point, firstDirty int64, progress func(total, done int64)) error {
	fc := l.e.files
	segs := l.segs()
	first := max(segmentAt(segs, point), 0)
	if progress == nil {
		progress = func(int64, int64) {}
	}
	for _, s := range segs[first:] {
		n, err := s.bytes(fc)
		if err != nil {
			return err
		}
		progress(n, 0)
	}
	if err := l.dropSnapshots(0, func(o int64) bool { return o > segs[first].base }); err != nil {
		return err
	}
	from, err := l.loadSnapshot(segs[first].base)
	if err != nil {
		return err
	}
	if err := l.replay(from, segs[first].base); err != nil {
		return err
	}
	end := position{offset: segs[0].base, seg: segs[0]}
	if first > 0 {
		end.offset = segs[first].base
	}
	for i := first; i < len(segs); i++ {
		s := segs[i]
		if i > first && s.base != end.offset && l.gapless(s.base, firstDirty) {
			// A segment was synced, or its name was, and one before it wasn't. What lies behind is as good as lost: kept, the log
			// would end where it once did, and nobody would miss what is gone.
			l.e.logger.Warn("the log is cut off before a gap", "partition", l.tp.String(), "offset", end.offset, "segment", s.name(suffixLog).path(),
				"segments_after", len(segs)-i)
			if err := l.removeSegments(newestFirst(segs[i:]), l.cfg.Load().FileDeleteDelay); err != nil {
				return err
			}
			segs = segs[:i:i]
			l.segments.Store(&segs)
			break
		}
		if i > first {
			// Without it, which a full disk may have no room for, a load begins with an older one.
			if err := l.writeSnapshot(s.base, syncNone); err != nil && !isFull(err) {
				return err
			}
		}
		size, err := s.bytes(fc)
		if err != nil {
			return err
		}
		next, valid, why, err := l.recoverSegment(s, point, end.offset, progress)
		if err != nil {
			return err
		}
		end = position{offset: next, seg: s, pos: valid}
		s.size.Store(valid)
		if i < len(segs)-1 || valid < size {
			// On a full disk the indexes stay in memory; the first flush, which the recovery point waits for, writes them.
			if err := s.seal(fc); err != nil && !isFull(err) {
				return err
			}
		}
		if valid == size {
			if i == len(segs)-1 && size >= reserveFrom {
				if err := s.giveBack(fc); err != nil { // what the process that was killed had asked for
					return err
				}
			}
			continue
		}
		l.e.logger.Warn("a damaged end is cut off", "partition", l.tp.String(), "segment", s.name(suffixLog).path(),
			"bytes", size-valid, "position", valid, "offset", next, "segments_after", len(segs)-1-i, "err", why)
		f, err := s.open(fc)
		if err == nil {
			// Synced, or the next crash could bring the damaged end back behind what is appended from now on.
			if err = f.Truncate(valid); err == nil {
				err = f.Sync()
			}
			s.release(fc)
		}
		if err != nil {
			return fmt.Errorf("cut %s to %d bytes: %w", s.name(suffixLog).path(), valid, err)
		}
		later := segs[i+1:]
		if err := l.removeSegments(newestFirst(later), l.cfg.Load().FileDeleteDelay); err != nil {
			return err
		}
		segs = segs[: i+1 : i+1]
		l.segments.Store(&segs)
	}
	l.end = end
	l.recovery = min(point, end.offset)
	if err := l.dropSnapshots(0, func(o int64) bool { return o > end.offset }); err != nil {
		return err
	}
	for _, s := range segs {
		s.close(fc, false)
	}
	return nil
}

// gapless says whether nothing but a crash can have left a gap before an offset: compaction makes some, up to firstDirty.
//
// Differs from Kafka, which takes every gap between segments for one of compaction.
func (l *Log) gapless(offset, firstDirty int64) bool {
	return l.meta || !l.cfg.Load().CleanupCompact && offset > firstDirty
}

// recoverSegment scans one segment. It returns the next offset, how many bytes are sound and, if that isn't all, why.
func (l *Log) recoverSegment(s *segment, point, prevEnd int64, progress func(total, done int64)) (next, valid int64, why, err error) {
	fc := l.e.files
	size, err := s.bytes(fc)
	if err != nil {
		return 0, 0, nil, err
	}
	pos, last, err := l.recoveryStart(s, point, size)
	if err != nil {
		return 0, 0, nil, err
	}
	next = max(s.base, prevEnd)
	if s.base > prevEnd {
		next = s.base
	}
	s.setTimestamps(record.NoTimestamp, -1)
	s.firstTs = unknownTs
	s.sinceIndex = 0
	s.checked.Store(true)
	if pos > 0 {
		// What is kept of the indexes tells the rest about the skipped part; producers and transactions need its headers.
		next = last + 1
		maxTs, tsLast, err := s.scanTimestamps(fc, pos)
		if err != nil {
			return 0, 0, nil, err
		}
		s.setTimestamps(maxTs, tsLast)
		s.sinceIndex = math.MaxInt32 // the batch at pos gets its entry again
		if _, err := l.replayRange(s, 0, pos); err != nil {
			return 0, 0, nil, err
		}
	}
	// The epochs of what is scanned come from its batches: the file may be older than a truncation.
	l.epochs.truncateFromEnd(next)
	interval := int64(l.cfg.Load().IndexIntervalBytes)

	f, err := s.open(fc)
	if err != nil {
		return 0, 0, nil, err
	}
	defer s.release(fc)
	bp := recoverBuffers.Get().(*[]byte)
	defer recoverBuffers.Put(bp)
	buf := *bp
	progress(0, pos)
	for pos < size {
		n := int(min(int64(len(buf)), size-pos))
		if got, err := f.ReadAt(buf[:n], pos); got < n {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, 0, nil, err
		}
		used := 0
		for {
			e, _, nerr := record.NextEntry(buf[used:n])
			if nerr == nil && e != nil {
				nerr = l.sound(e, s, next)
			}
			if nerr != nil || e == nil {
				why = nerr
				break
			}
			at := pos + int64(used)
			if err := l.recoverBatch(e, s, at, interval); err != nil {
				return 0, 0, nil, err
			}
			next = e.LastOffset() + 1
			used += len(e)
		}
		progress(0, int64(used))
		pos += int64(used)
		if pos == size {
			break
		}
		// Either a batch goes beyond the chunk, or it is damaged, or the file ends within it.
		want, serr := record.EntrySize(buf[used:n])
		if serr == nil && n-used < want {
			if int64(want) > size-pos {
				return next, pos, fmt.Errorf("batch of %d bytes with %d left: %w", want, size-pos, record.ErrTruncated), nil
			}
			if want > len(buf) {
				buf = make([]byte, want)
			}
			continue
		}
		if serr != nil && used > 0 && n-used < record.HeaderSize && pos+int64(n-used) < size {
			continue // only a part of the header was in the chunk
		}
		if why == nil {
			why = serr
		}
		return next, pos, why, nil
	}
	return next, size, nil, nil
}

// sound checks a whole batch at recovery: its CRC, and that its offsets belong here.
func (l *Log) sound(e record.Entry, s *segment, next int64) error {
	if err := e.Check(); err != nil {
		return err
	}
	if e.LastOffset() < next || e.LastOffset()-s.base > math.MaxInt32 || (e.Magic() == 2 && e.Offset() < s.base) {
		return fmt.Errorf("batch with offsets %d to %d behind offset %d in the segment from %d: %w", e.Offset(), e.LastOffset(), next-1, s.base, record.ErrCorrupt)
	}
	return nil
}

// recoverBatch enters a sound batch into indexes, epochs and producers. What a full disk has no room for stays in memory.
func (l *Log) recoverBatch(e record.Entry, s *segment, at, interval int64) error {
	if s.firstTs == unknownTs && at == 0 {
		s.firstTs = e.MaxTimestamp()
	}
	s.raiseTimestamp(e.MaxTimestamp(), e.LastOffset())
	if err := s.addIndex(l.e.files, interval, e.LastOffset(), at, int64(len(e))); err != nil && !isFull(err) {
		return err
	}
	if e.Magic() != 2 {
		return nil
	}
	b := e.Batch()
	if epoch := b.PartitionLeaderEpoch(); epoch >= 0 {
		if known, ok := l.epochs.latest(); !ok || epoch > known {
			l.epochs.assign(epoch, b.BaseOffset(), true)
		}
	}
	if !b.HasProducer() {
		return nil
	}
	for _, t := range l.replayBatch(b, s, at) {
		if err := s.txns.append(s.txnEnv(l.e.files), t); err != nil && !isFull(err) {
			return err
		}
	}
	return nil
}

// replayRange applies the batches in a part of a segment to the producers and returns the transactions that were aborted there.
func (l *Log) replayRange(s *segment, from, to int64) (aborted []abortedTxn, err error) {
	fc := l.e.files
	f, err := s.open(fc)
	if err != nil {
		return nil, err
	}
	defer s.release(fc)
	h := newHeaderScan(f, from, to)
	defer h.close()
	for {
		b, err := h.next()
		if err != nil {
			if err = ignoreDamage(err); err == nil {
				var more bool
				if more, err = s.resume(fc, &h); more {
					continue
				}
			}
			return aborted, err
		}
		if b.entry.Magic() != 2 || !b.entry.Batch().HasProducer() {
			continue
		}
		e := b.entry
		if e.Batch().IsControl() {
			if e, err = h.whole(b); err != nil {
				return nil, err
			}
		}
		aborted = append(aborted, l.replayBatch(e.Batch(), s, b.pos)...)
	}
}

// checkTransactions makes transaction indexes anew that can't be right, or else nobody could read what is committed there.
// Those of segments that recovery scans are made by it.
func (l *Log) checkTransactions(segs []*segment) error {
	for i, s := range segs {
		if !s.txns.exists {
			continue
		}
		switch _, err := s.txns.load(s.txnEnv(l.e.files)); {
		case err == nil:
			if i < len(segs)-1 {
				s.txns.forget()
			}
			continue
		case !damaged(err):
			return err
		default:
			l.e.logger.Warn("a damaged transaction index is made anew", "partition", l.tp.String(), "segment", s.name(suffixLog).path(), "err", err)
		}
		// A log of the same files tells how the producers stood before the segment and what became of them in it.
		past := &Log{e: l.e, tp: l.tp, name: l.name, snapshots: l.snapshots, start: l.start, hw: position{offset: maxOffset}}
		past.dir.set(l.dir.get())
		past.segments.Store(&segs)
		from, err := past.loadSnapshot(s.base)
		l.snapshots = past.snapshots
		if err != nil {
			return err
		}
		if err := past.replay(from, s.base); err != nil {
			return err
		}
		size, err := s.bytes(l.e.files)
		if err != nil {
			return err
		}
		aborted, err := past.replayRange(s, 0, size)
		if err != nil {
			return err
		}
		if err := s.txns.replace(s.txnEnv(l.e.files), aborted); err != nil {
			return err
		}
		l.touched = true
	}
	return nil
}

// recoveryStart is where to begin scanning a segment, 0 or the position of the last index entry below the recovery point, with
// the last offset before it. The indexes are cut to what lies before.
func (l *Log) recoveryStart(s *segment, point, size int64) (pos, last int64, err error) {
	fc := l.e.files
	var keep, keepTimes int
	var keptTxns []abortedTxn
	if point > s.base && size > 0 {
		entries, err := s.index.entries(s.indexEnv(fc))
		if err != nil {
			return 0, 0, err
		}
		n := plausiblePrefix(entries, size)
		for n > 0 {
			if rel, _ := indexEntry(entries[(n-1)*indexEntrySize:]); s.base+int64(rel) < point {
				break
			}
			n--
		}
		// The entry's batch itself is scanned again: then the one before it is what must be known.
		if n > 0 {
			_, p := indexEntry(entries[(n-1)*indexEntrySize:])
			ok := false
			if ok, last, err = l.chained(s, entries[:n*indexEntrySize], size); err != nil {
				return 0, 0, err
			}
			if ok {
				pos, keep = int64(p), n-1
			}
		}
	}
	if pos > 0 {
		times, err := s.times.entries(s.timesEnv(fc))
		if err != nil {
			return 0, 0, err
		}
		keepTimes = plausibleTimePrefix(times, last-s.base)
		if keptTxns, err = s.txns.load(s.txnEnv(fc)); err != nil {
			keptTxns, pos, keep, keepTimes = nil, 0, 0, 0
		}
	}
	if pos == 0 {
		last = s.base - 1
	}
	n := 0
	for n < len(keptTxns) && keptTxns[n].lastOffset <= last {
		n++
	}
	if err := s.index.truncateEntries(s.indexEnv(fc), keep); err != nil {
		return 0, 0, err
	}
	if err := s.times.truncateEntries(s.timesEnv(fc), keepTimes); err != nil {
		return 0, 0, err
	}
	if err := s.txns.replace(s.txnEnv(fc), keptTxns[:n]); err != nil {
		return 0, 0, err
	}
	return pos, last, nil
}

// chained walks the headers from the second last of the entries to the last one: if a batch begins just there, the walk gives
// the offset before it. Walking from a wrong position doesn't arrive.
func (l *Log) chained(s *segment, entries []byte, size int64) (ok bool, last int64, err error) {
	n := len(entries) / indexEntrySize
	rel, p := indexEntry(entries[(n-1)*indexEntrySize:])
	var from int64
	if n > 1 {
		_, q := indexEntry(entries[(n-2)*indexEntrySize:])
		from = int64(q)
	}
	fc := l.e.files
	f, err := s.open(fc)
	if err != nil {
		return false, 0, err
	}
	defer s.release(fc)
	h := newHeaderScan(f, from, size)
	defer h.close()
	last = s.base - 1
	for {
		b, err := h.next()
		if err != nil {
			return false, 0, ignoreDamage(err)
		}
		if b.pos == int64(p) {
			return b.last >= s.base+int64(rel) || b.last > last, last, nil
		}
		if b.pos > int64(p) || b.last <= last {
			return false, 0, nil
		}
		last = b.last
	}
}
