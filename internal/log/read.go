package log

import (
	"errors"
	"fmt"
	"io"

	"gregor/internal/api"
	"gregor/internal/record"
)

// Read finds up to maxBytes of batches from offset on, as far as iso lets it see. It reads no records: what it returns is a
// Slice of one segment file, which the caller must release. With minOne the first batch is returned whole even if it is
// larger than maxBytes, so that a consumer can get past it (KIP-74).
//
// An offset below the log start offset or above the log end offset is OFFSET_OUT_OF_RANGE; one at or above what iso lets see
// gives an empty slice.
func (l *Log) Read(offset int64, maxBytes int, iso Isolation, minOne bool) (Fetched, error) {
	if l.parent != nil {
		if err := l.parent.offline(); err != nil {
			return Fetched{}, &storageError{fmt.Errorf("read %s: log directory %s is offline: %w", l.tp, l.parent.path, err)}
		}
	}
	l.shape.RLock()
	defer l.shape.RUnlock()
	l.marks.Lock()
	f := Fetched{StartOffset: offset, HighWatermark: l.hw.offset, LogStartOffset: l.start, LogEndOffset: l.end.offset}
	stable := l.stableLocked()
	f.LastStableOffset = stable.offset
	var bound position
	switch iso {
	case ReadLogEnd:
		bound = l.end
	case ReadUncommitted:
		bound = l.hw
	default:
		bound = stable
	}
	known, atEnd := l.recent.at(offset)
	l.marks.Unlock()
	if offset < f.LogStartOffset || offset > f.LogEndOffset {
		return f, l.outOfRange(offset, f.LogStartOffset, f.LogEndOffset)
	}
	if offset >= bound.offset {
		return f, nil
	}
	segs := l.segs()
	if bound.seg == nil {
		var err error
		if bound, err = l.locate(segs, bound.offset); err != nil {
			return f, l.readError(err)
		}
		l.rememberPosition(bound)
	}
	if atEnd && known.seg == bound.seg && bound.pos-known.pos <= int64(maxBytes) && iso != ReadCommitted && bound.pos > known.pos {
		// A reader that keeps up: all there is fits, and where it begins is known.
		file, err := known.seg.open(l.e.files)
		if err != nil {
			return f, l.readError(err)
		}
		f.Slice = Slice{file: file, owner: &known.seg.log, cache: l.e.files, pos: known.pos, n: int(bound.pos - known.pos)}
		return f, nil
	}
	for i := max(segmentAt(segs, offset), 0); i < len(segs); i++ {
		seg := segs[i]
		if seg.base > bound.seg.base {
			break
		}
		var limit int64
		if seg == bound.seg {
			limit = bound.pos
		} else {
			var err error
			if limit, err = seg.bytes(l.e.files); err != nil {
				return f, l.readError(err)
			}
		}
		if limit == 0 {
			continue
		}
		pos, err := seg.floor(l.e.files, offset)
		if err != nil {
			return f, l.readError(err)
		}
		b, ok, err := seg.findFrom(l.e.files, pos, limit, offset)
		if err != nil {
			return f, l.readError(err)
		}
		if !ok {
			continue // every batch here ends below offset: the rest of the range was compacted away
		}
		n := int64(max(maxBytes, 0))
		if n < b.size {
			if minOne {
				n = b.size
			} else {
				f.FirstBatchIncomplete = true
			}
		}
		n = min(n, limit-b.pos)
		if n == 0 {
			return f, nil
		}
		file, err := seg.open(l.e.files)
		if err != nil {
			return f, l.readError(err)
		}
		f.Slice = Slice{file: file, owner: &seg.log, cache: l.e.files, pos: b.pos, n: int(n)}
		if iso == ReadCommitted {
			upper, err := l.upperBound(segs, i, b.pos+n, bound.offset)
			if err == nil {
				f.Aborted, err = l.abortedIn(segs, i, offset, upper)
			}
			if err != nil {
				f.Slice.Release()
				f.Slice = Slice{}
				return f, l.readError(err)
			}
		}
		return f, nil
	}
	return f, nil
}

// readError is ioError for readers. Damage inside a batch has the code that Kafka has for it.
func (l *Log) readError(err error) error {
	if err == nil || api.CodeOf(err) != api.CodeUnknownServerError {
		return err
	}
	if e, ok := errors.AsType[*record.Error](err); ok && e.Kind != record.ErrTruncated {
		return fmt.Errorf("read %s: %w", l.tp, recordError(e))
	}
	return l.ioError("read", err)
}

// locate finds where the first batch that ends at or above offset begins. shape is held.
func (l *Log) locate(segs []*segment, offset int64) (position, error) {
	i := max(segmentAt(segs, offset), 0)
	b, ok, err := segs[i].find(l.e.files, offset)
	switch {
	case err != nil:
		return position{}, err
	case ok:
		return position{offset: offset, seg: segs[i], pos: b.pos}, nil
	case i+1 < len(segs):
		return position{offset: offset, seg: segs[i+1]}, nil
	}
	size, err := segs[i].bytes(l.e.files)
	return position{offset: offset, seg: segs[i], pos: size}, err
}

// rememberPosition spares the next reader the search.
func (l *Log) rememberPosition(p position) {
	l.marks.Lock()
	defer l.marks.Unlock()
	if l.hw.offset == p.offset && l.hw.seg == nil {
		l.hw = p
	}
	if len(l.open) > 0 && l.open[0].first.offset == p.offset {
		l.open[0].first = p
	}
	if len(l.unreplicated) > 0 && l.unreplicated[0].first.offset == p.offset {
		l.unreplicated[0].first = p
	}
}

// upperBound is an offset at or above everything that lies before position pos of segment i.
func (l *Log) upperBound(segs []*segment, i int, pos, bound int64) (int64, error) {
	seg := segs[i]
	_, next, err := seg.index.search(seg.indexEnv(l.e.files), func(e []byte) bool {
		_, p := indexEntry(e)
		return int64(p) < pos
	})
	if err != nil {
		return 0, err
	}
	if next.ok {
		rel, _ := indexEntry(next.b[:])
		return min(seg.base+int64(rel), bound), nil
	}
	if i+1 < len(segs) {
		return min(segs[i+1].base, bound), nil
	}
	return bound, nil
}

// abortedIn lists the aborted transactions with records in [from, to): they are in the transaction indexes of this segment and
// later ones, in the order of their markers, until one says that everything below its last stable offset is settled.
func (l *Log) abortedIn(segs []*segment, i int, from, to int64) ([]AbortedTxn, error) {
	out := []AbortedTxn{}
	for _, seg := range segs[i:] {
		all, err := seg.txns.load(seg.txnEnv(l.e.files))
		if err != nil {
			return nil, err
		}
		for _, t := range all {
			if t.lastOffset >= from && t.firstOffset < to {
				out = append(out, AbortedTxn{ProducerID: t.producerID, FirstOffset: t.firstOffset})
			}
			if t.lastStableOffset >= to {
				return out, nil
			}
		}
	}
	return out, nil
}

// OffsetForTimestamp answers ListOffsets. For a timestamp in ms it is the first record at or after it, at or above the log
// start offset, ok=false when there is none. The special timestamps: TimestampEarliest and TimestampEarliestLocal are the log
// start offset, TimestampLatest the log end offset, TimestampMax the first record with the largest timestamp, and
// TimestampLatestTiered is offset -1, for nothing is tiered. These have timestamp -1 except TimestampMax.
func (l *Log) OffsetForTimestamp(ts int64) (TimestampOffset, bool, error) {
	switch ts {
	case TimestampEarliest, TimestampEarliestLocal:
		start := l.LogStartOffset()
		out := TimestampOffset{Timestamp: record.NoTimestamp, Offset: start, LeaderEpoch: NoEpoch}
		if e, ok := l.epochs.earliest(); ok && e.start <= start {
			out.LeaderEpoch = e.epoch
		}
		return out, true, nil
	case TimestampLatest:
		out := TimestampOffset{Timestamp: record.NoTimestamp, Offset: l.EndOffset(), LeaderEpoch: NoEpoch}
		if e, ok := l.epochs.latest(); ok {
			out.LeaderEpoch = e
		}
		return out, true, nil
	case TimestampLatestTiered:
		return TimestampOffset{Timestamp: record.NoTimestamp, Offset: UnknownOffset, LeaderEpoch: NoEpoch}, true, nil
	}
	l.shape.RLock()
	defer l.shape.RUnlock()
	segs := l.segs()
	start := l.LogStartOffset()
	if ts == TimestampMax {
		var best *segment
		bestTs := record.NoTimestamp
		for _, s := range segs {
			maxTs, _, err := s.timestamps(l.e.files)
			if err != nil {
				return TimestampOffset{}, false, l.readError(err)
			}
			if maxTs > bestTs {
				best, bestTs = s, maxTs
			}
		}
		if best == nil {
			return TimestampOffset{}, false, nil
		}
		out, ok, err := l.firstAtOrAfter(best, bestTs, 0)
		return out, ok, l.readError(err)
	}
	for _, s := range segs {
		maxTs, _, err := s.timestamps(l.e.files)
		if err != nil {
			return TimestampOffset{}, false, l.readError(err)
		}
		if maxTs < ts {
			continue
		}
		// What made the segment's largest timestamp may lie below the log start: then go on. (Kafka gives up there.)
		out, ok, err := l.firstAtOrAfter(s, ts, start)
		if ok || err != nil {
			return out, ok, l.readError(err)
		}
	}
	return TimestampOffset{}, false, nil
}

// firstAtOrAfter finds the segment's first record at or above offset start with a timestamp at or after ts. shape is held.
func (l *Log) firstAtOrAfter(s *segment, ts, start int64) (out TimestampOffset, ok bool, err error) {
	if err := s.check(l.e.files); err != nil {
		return out, false, err
	}
	// Everything up to the floor entry's offset is older than ts: begin there.
	from := start
	e, _, err := s.times.search(s.timesEnv(l.e.files), func(e []byte) bool {
		t, _ := timeEntry(e)
		return t < ts
	})
	if err != nil {
		return out, false, err
	}
	if e.ok {
		_, rel := timeEntry(e.b[:])
		from = max(from, s.base+int64(rel))
	}
	pos, err := s.floor(l.e.files, from)
	if err != nil {
		return out, false, err
	}
	size, err := s.bytes(l.e.files)
	if err != nil {
		return out, false, err
	}
	f, err := s.open(l.e.files)
	if err != nil {
		return out, false, err
	}
	defer s.release(l.e.files)
	h := newHeaderScan(f, pos, size)
	defer h.close()
	var buf []byte
	for {
		b, err := h.next()
		if err == io.EOF {
			return out, false, nil
		}
		if err != nil {
			return out, false, err
		}
		if b.entry.MaxTimestamp() < ts || b.last < start {
			continue
		}
		epoch := b.entry.PartitionLeaderEpoch()
		if int64(cap(buf)) < b.size {
			buf = make([]byte, b.size)
		}
		buf = buf[:b.size]
		if n, err := f.ReadAt(buf, b.pos); int64(n) < b.size {
			return out, false, fmt.Errorf("read batch at %d: %w", b.pos, err)
		}
		offset, t, ok, err := l.searchBatch(record.Entry(buf), ts, start)
		if err != nil {
			return out, false, err
		}
		if ok {
			return TimestampOffset{Timestamp: t, Offset: offset, LeaderEpoch: epoch}, true, nil
		}
	}
}

// searchBatch looks inside one batch.
func (l *Log) searchBatch(e record.Entry, ts, start int64) (offset, at int64, ok bool, err error) {
	if e.Magic() == 2 {
		it := e.Batch().Records(l.e.decomp)
		defer it.Close()
		for it.Next() {
			if r := it.Record(); r.Timestamp >= ts && r.Offset >= start {
				return r.Offset, r.Timestamp, true, nil
			}
		}
		return 0, 0, false, it.Err()
	}
	it := e.Legacy().Records(l.e.decomp)
	for it.Next() {
		if r := it.Record(); r.Timestamp >= ts && r.Offset >= start {
			return r.Offset, r.Timestamp, true, nil
		}
	}
	return 0, 0, false, it.Err()
}
