package log

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"gregor/internal/record"
)

// cleanable is what the cleaner would find in a log.
type cleanable struct {
	l          *Log
	firstDirty int64
	// end is the base of the first segment that must not be cleaned yet.
	end int64
	// clean and dirty are the bytes before and after firstDirty, below end.
	clean, dirty int64
	// overdue says that max.compaction.lag.ms has passed for something dirty.
	overdue bool
}

func (c cleanable) ratio() float64 {
	if c.clean+c.dirty == 0 {
		return 0
	}
	return float64(c.dirty) / float64(c.clean+c.dirty)
}

// due says whether the log should be cleaned now.
func (c cleanable) due(cfg *Config) bool {
	return c.dirty > 0 && (c.overdue || c.ratio() > cfg.MinCleanableRatio)
}

// cleanable looks at the log; ok=false when it isn't compacted or can't be cleaned.
func (l *Log) cleanable() (c cleanable, ok bool, err error) {
	cfg := l.cfg.Load()
	if !cfg.CleanupCompact || l.meta {
		return c, false, nil
	}
	l.mu.Lock()
	if l.usable() != nil || l.uncleanable != nil {
		l.mu.Unlock()
		return c, false, nil
	}
	first := l.firstDirty
	l.mu.Unlock()
	start, stable, _, end := l.Offsets()
	if first < start || first > end {
		first = start
	}
	segs := l.segs()
	last := len(segs) - 1 // the active segment is never cleaned
	limit := min(stable, segs[last].base)
	if cfg.MinCompactionLag > 0 {
		young := l.e.nowMs() - boundMs(cfg.MinCompactionLag)
		for i := max(segmentAt(segs, first), 0); i < last; i++ {
			ts, err := l.largestTimestamp(segs[i])
			if err != nil {
				return c, false, err
			}
			if ts > young {
				limit = min(limit, segs[i].base)
				break
			}
		}
	}
	c = cleanable{l: l, firstDirty: first, end: segs[last].base}
	for _, s := range segs[:last] {
		if s.base >= limit || nextBase(segs, s) > limit {
			c.end = s.base
			break
		}
	}
	maxLag := boundMs(cfg.MaxCompactionLag)
	for _, s := range segs[:last] {
		if s.base >= c.end {
			break
		}
		n, err := s.bytes(l.e.files)
		if err != nil {
			return c, false, err
		}
		if nextBase(segs, s) <= first {
			c.clean += n
			continue
		}
		c.dirty += n
		if n == 0 || maxLag >= math.MaxInt64/2 || c.overdue {
			continue
		}
		l.mu.Lock()
		ts, err := s.firstTimestamp(l.e.files)
		l.mu.Unlock()
		if err != nil {
			return c, false, err
		}
		c.overdue = ts > 0 && ts < l.e.nowMs()-maxLag
	}
	return c, true, nil
}

func nextBase(segs []*segment, s *segment) int64 {
	i := segmentAt(segs, s.base)
	if i+1 < len(segs) {
		return segs[i+1].base
	}
	return math.MaxInt64
}

// CleanStats says what a cleaning did.
type CleanStats struct {
	FirstDirty, NewFirstDirty int64
	BytesBefore, BytesAfter   int64
	Segments                  int // cleaned ones
}

// clean compacts the log up to c.end: of the records with one key only the last stays (KIP-58, KIP-354), tombstones and
// transaction markers go after delete.retention.ms (KIP-534), aborted records at once. Offsets never change. What is appended
// meanwhile isn't touched; a truncation or retention meanwhile makes the rest of the cleaning be given up.
func (l *Log) clean(ctx context.Context, c cleanable, mapBytes int64) (st CleanStats, err error) {
	cfg := l.cfg.Load()
	st.FirstDirty = c.firstDirty
	segs := l.segs()
	defer func() {
		// Retention takes segments away from the front, and then it is no fault of theirs that they can't be read.
		if err != nil && l.segs()[0].base > segs[0].base {
			err = fmt.Errorf("%w: %w", errGivenUp, err)
		}
	}()
	m, err := l.buildOffsetMap(ctx, segs, c, mapBytes)
	if err != nil {
		return st, err
	}
	end := m.latest + 1
	if end <= c.firstDirty {
		return st, nil // nothing could be read, or the map is too small for one batch
	}
	st.NewFirstDirty = end
	pass := &cleanPass{
		l: l, cfg: cfg, m: m, end: end, now: l.e.nowMs(), txns: newCleanedTxns(), last: l.lastOfProducers(),
	}
	// Old formats have no delete horizon: their tombstones go when the clean part has been at rest for long enough.
	for _, s := range segs {
		if nextBase(segs, s) > c.firstDirty {
			break
		}
		st, err := l.e.fs.Stat(s.name(suffixLog).path())
		if err != nil {
			return CleanStats{}, err
		}
		pass.legacyHorizon = st.ModTime().UnixMilli() - boundMs(cfg.DeleteRetention)
	}
	for _, group := range groupSegments(l.e.files, segs, end, c.end, cfg) {
		if err := ctx.Err(); err != nil {
			return st, err
		}
		before, after, err := pass.group(ctx, segs, group)
		st.BytesBefore += before
		st.BytesAfter += after
		st.Segments += len(group)
		if err != nil {
			return st, err
		}
	}
	l.mu.Lock()
	l.firstDirty = end
	l.cleaned = true
	l.mu.Unlock()
	if l.parent != nil {
		l.parent.cleanerDirty.Store(true)
	}
	return st, nil
}

// lastOfProducers is, for each producer that is remembered, what must not be lost of it.
func (l *Log) lastOfProducers() map[int64]lastRecord {
	l.mu.Lock()
	defer l.unlock()
	out := make(map[int64]lastRecord, len(l.prod.entries))
	for id, e := range l.prod.entries {
		r := lastRecord{epoch: e.epoch, offset: -1}
		if b, ok := e.last(); ok {
			r.offset = b.lastOffset
		}
		out[id] = r
	}
	return out
}

// lastRecord is where a producer's state comes from: its last batch, or its marker when offset is -1.
type lastRecord struct {
	offset int64
	epoch  int16
}

// buildOffsetMap reads the dirty part.
func (l *Log) buildOffsetMap(ctx context.Context, segs []*segment, c cleanable, mapBytes int64) (*offsetMap, error) {
	m := newOffsetMap(c.end-c.firstDirty, mapBytes)
	txns := newCleanedTxns()
	for i := max(segmentAt(segs, c.firstDirty), 0); i < len(segs) && segs[i].base < c.end; i++ {
		all, err := l.abortedTxns(segs, i, segs[i].base, min(nextBase(segs, segs[i]), c.end))
		if err != nil {
			return nil, err
		}
		txns.add(all)
		full := false
		err = l.eachBatch(ctx, segs[i], func(e record.Entry) (bool, error) {
			if e.Magic() == 2 && e.Batch().IsControl() {
				if _, err := txns.control(e.Batch()); err != nil {
					return false, err
				}
			} else if e.Magic() != 2 || !txns.data(e.Batch()) {
				err := forEachRecord(e, l.e.decomp, func(r *record.Record) bool {
					if r.Key != nil && r.Offset >= c.firstDirty {
						full = !m.put(r.Key, r.Offset)
					}
					return !full
				})
				if err != nil {
					return false, err
				}
				if full {
					return false, nil
				}
			}
			if e.LastOffset() >= c.firstDirty {
				m.latest = e.LastOffset()
			}
			return true, nil
		})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", segs[i].name(suffixLog).path(), err)
		}
		if full {
			break
		}
		// Offsets behind the last batch of a segment belong to nobody any more.
		m.latest = max(m.latest, min(nextBase(segs, segs[i]), c.end)-1)
	}
	return m, nil
}

// abortedTxns is abortedIn with whole entries.
func (l *Log) abortedTxns(segs []*segment, i int, from, to int64) ([]abortedTxn, error) {
	var out []abortedTxn
	for _, s := range segs[i:] {
		all, err := s.txns.load(s.txnEnv(l.e.files))
		if err != nil {
			return nil, err
		}
		for _, t := range all {
			if t.lastOffset >= from && t.firstOffset < to {
				out = append(out, t)
			}
			if t.lastStableOffset >= to {
				return out, nil
			}
		}
	}
	return out, nil
}

// eachBatch reads a segment's batches whole, in order, until f says no more.
func (l *Log) eachBatch(ctx context.Context, s *segment, f func(e record.Entry) (more bool, err error)) error {
	size, err := s.bytes(l.e.files)
	if err != nil {
		return err
	}
	file, err := s.open(l.e.files)
	if err != nil {
		return err
	}
	defer s.release(l.e.files)
	bp := recoverBuffers.Get().(*[]byte)
	defer recoverBuffers.Put(bp)
	buf := *bp
	for pos := int64(0); pos < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := int(min(int64(len(buf)), size-pos))
		if got, err := file.ReadAt(buf[:n], pos); got < n {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		used := 0
		for used < n {
			e, _, err := record.NextEntry(buf[used:n])
			if errors.Is(err, record.ErrTruncated) {
				break
			}
			if err == nil {
				err = e.Check()
			}
			if err != nil {
				return fmt.Errorf("batch at position %d: %w", pos+int64(used), err)
			}
			more, err := f(e)
			if err != nil || !more {
				return err
			}
			used += len(e)
		}
		if used == 0 {
			want, err := record.EntrySize(buf[:n])
			if err != nil || int64(want) > size-pos {
				return fmt.Errorf("batch at position %d: %w", pos, record.ErrCorrupt)
			}
			buf = make([]byte, want)
			continue
		}
		pos += int64(used)
	}
	return nil
}

// forEachRecord walks the records of a batch of any format until f says no.
func forEachRecord(e record.Entry, d *record.Decompressor, f func(r *record.Record) bool) error {
	if e.Magic() == 2 {
		it := e.Batch().Records(d)
		defer it.Close()
		for it.Next() {
			r := it.Record()
			if !f(&r) {
				return nil
			}
		}
		return it.Err()
	}
	it := e.Legacy().Records(d)
	for it.Next() {
		r := it.Record()
		if !f(&r.Record) {
			return nil
		}
	}
	return it.Err()
}

// groupSegments gathers the segments below end into groups that each become one segment: no larger than segment.bytes, with
// indexes no larger than segment.index.bytes and offsets that fit.
func groupSegments(fc *fileCache, segs []*segment, end, firstUncleanable int64, cfg *Config) [][]*segment {
	var groups [][]*segment
	var size, index, times int64
	for i, s := range segs {
		if s.base >= end || i == len(segs)-1 {
			break
		}
		n, _ := s.bytes(fc)
		ni, _ := s.index.count(s.indexEnv(fc))
		nt, _ := s.times.count(s.timesEnv(fc))
		last := min(nextBase(segs, s), max(firstUncleanable, end)) - 1
		g := len(groups) - 1
		if g >= 0 && size+n <= int64(cfg.SegmentBytes) && index+int64(ni)*indexEntrySize <= int64(cfg.IndexBytes) &&
			times+int64(nt)*timeEntrySize <= int64(cfg.IndexBytes) && (n == 0 || last-groups[g][0].base <= math.MaxInt32) {
			groups[g] = append(groups[g], s)
			size, index, times = size+n, index+int64(ni)*indexEntrySize, times+int64(nt)*timeEntrySize
			continue
		}
		groups = append(groups, []*segment{s})
		size, index, times = n, int64(ni)*indexEntrySize, int64(nt)*timeEntrySize
	}
	return groups
}

// cleanPass is one cleaning of one log.
type cleanPass struct {
	l             *Log
	cfg           *Config
	m             *offsetMap
	end           int64 // map end + 1
	now           int64
	legacyHorizon int64
	segmentTime   int64 // modification time of the segment at hand
	txns          *cleanedTxns
	last          map[int64]lastRecord
	out           []byte
}

// errGivenUp says that the log changed under the cleaner.
var errGivenUp = errors.New("the log was changed while it was cleaned")

// group writes one group into a new segment and puts that in its place.
func (p *cleanPass) group(ctx context.Context, segs, group []*segment) (before, after int64, err error) {
	l, fc := p.l, p.l.e.files
	dest := newSegment(&l.dir, group[0].base)
	dest.transit = suffixCleaned
	dest.size.Store(0)
	dest.index.disk, dest.times.disk = 0, 0
	dest.tsKnown = true
	dest.checked.Store(true)
	for _, suffix := range []string{suffixLog, suffixIndex, suffixTimeIndex, suffixTxnIndex} {
		if err := removeIfExists(l.e.fs, dest.name(suffix).path()); err != nil {
			return 0, 0, err
		}
	}
	if err := dest.log.create(fc, dest.name(suffixLog).path()); err != nil {
		return 0, 0, err
	}
	done := false
	defer func() {
		if !done {
			p.abandon(dest)
		}
	}()
	p.txns.keep = func(t abortedTxn) error { return dest.txns.append(dest.txnEnv(fc), t) }
	p.out = p.out[:0]
	for _, s := range group {
		i := segmentAt(segs, s.base)
		all, err := l.abortedTxns(segs, i, s.base, min(nextBase(segs, s), p.end))
		if err != nil {
			return 0, 0, err
		}
		p.txns.add(all)
		n, err := s.bytes(fc)
		if err != nil {
			return 0, 0, err
		}
		before += n
		st, err := l.e.fs.Stat(s.name(suffixLog).path())
		if err != nil {
			return before, 0, err
		}
		p.segmentTime = st.ModTime().UnixMilli()
		if err := l.eachBatch(ctx, s, func(e record.Entry) (bool, error) { return true, p.batch(dest, e) }); err != nil {
			return before, 0, fmt.Errorf("clean %s: %w", s.name(suffixLog).path(), err)
		}
	}
	if err := p.flush(dest); err != nil {
		return before, 0, err
	}
	if err := dest.seal(fc); err != nil {
		return before, 0, err
	}
	if err := dest.sync(fc, true); err != nil {
		return before, 0, err
	}
	// Retention by modification time goes on from where the old segments were.
	if err := l.e.fs.Chtimes(dest.name(suffixLog).path(), time.UnixMilli(p.segmentTime)); err != nil {
		return before, 0, err
	}
	after = dest.size.Load()
	if err := l.replaceSegments(group, dest); err != nil {
		return before, after, err
	}
	done = true
	return before, after, nil
}

// abandon removes what was written.
func (p *cleanPass) abandon(dest *segment) {
	dest.close(p.l.e.files, true)
	for _, suffix := range []string{suffixLog, suffixIndex, suffixTimeIndex, suffixTxnIndex} {
		if err := removeIfExists(p.l.e.fs, dest.name(suffix).path()); err != nil {
			p.l.e.logger.Warn("remove an abandoned cleaned segment", "path", dest.name(suffix).path(), "err", err)
		}
	}
}

// batch copies what stays of one batch.
func (p *cleanPass) batch(dest *segment, e record.Entry) error {
	if e.Magic() != 2 {
		return p.legacy(dest, e.Legacy())
	}
	b := e.Batch()
	var discard bool
	var err error
	if b.IsControl() {
		if discard, err = p.txns.control(b); err != nil {
			return err
		}
	} else {
		discard = p.txns.data(b)
	}
	drop := discard
	if b.IsControl() {
		// A marker goes a pass later: first its horizon is set, and past that it goes.
		drop = discard && b.HasDeleteHorizon() && b.BaseTimestamp() <= p.now
	}
	keepEmpty := p.isLastOfProducer(b) || b.NextOffset() == p.end
	from := len(p.out)
	if drop {
		// Nothing stays but, for someone's sake, the batch's header.
		if !keepEmpty {
			return nil
		}
		p.out = record.AppendEmpty(p.out, b)
		return p.index(dest, b.LastOffset(), b.MaxTimestamp(), from)
	}
	var f record.Filtered
	p.out, f, err = record.Filter(p.out, b, &record.FilterOptions{
		Keep: func(b record.Batch, r *record.Record) bool {
			return b.IsControl() || p.keeps(b, r)
		},
		KeepEmpty:      keepEmpty,
		EmptyTxnMarker: discard && b.IsControl(),
		DeleteHorizon:  p.now + boundMs(p.cfg.DeleteRetention),
		Decompressor:   p.l.e.decomp,
		Compressor:     p.l.e.comp,
	})
	if err != nil {
		return fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
	}
	if len(p.out) == from {
		return nil
	}
	return p.index(dest, b.LastOffset(), f.MaxTimestamp, from)
}

func (p *cleanPass) isLastOfProducer(b record.Batch) bool {
	if !b.HasProducer() {
		return false
	}
	r, ok := p.last[b.ProducerID()]
	if !ok {
		return false
	}
	if r.offset >= 0 {
		return b.LastOffset() == r.offset
	}
	return b.IsControl() && b.ProducerEpoch() == r.epoch
}

// keeps is the rule for records with a key.
func (p *cleanPass) keeps(b record.Batch, r *record.Record) bool {
	if r.Offset > p.m.latest {
		return true
	}
	if r.Key == nil || r.Offset < p.m.get(r.Key) {
		return false
	}
	return r.Value != nil || !b.HasDeleteHorizon() || p.now < b.BaseTimestamp()
}

// legacy copies what stays of a message of an old format; a compressed one of which something goes becomes plain messages.
func (p *cleanPass) legacy(dest *segment, m record.Legacy) error {
	var kept []record.LegacyRecord
	n := 0
	it := m.Records(p.l.e.decomp)
	for it.Next() {
		r := it.Record()
		n++
		keep := r.Offset > p.m.latest
		if !keep && r.Key != nil && r.Offset >= p.m.get(r.Key) {
			keep = r.Value != nil || p.segmentTime > p.legacyHorizon
		}
		if keep {
			r.Key, r.Value = slices.Clone(r.Key), slices.Clone(r.Value)
			kept = append(kept, r)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("message at offset %d: %w", m.Offset(), err)
	}
	if len(kept) == n {
		return p.add(dest, record.Entry(m), m.Offset(), m.Timestamp())
	}
	for _, r := range kept {
		from := len(p.out)
		p.out = record.AppendLegacy(p.out, r, m.IsLogAppendTime())
		if err := p.index(dest, r.Offset, r.Timestamp, from); err != nil {
			return err
		}
	}
	return nil
}

func (p *cleanPass) add(dest *segment, e record.Entry, last, ts int64) error {
	from := len(p.out)
	p.out = append(p.out, e...)
	return p.index(dest, last, ts, from)
}

// index enters the batch that was put into out at from, and writes out when there is enough.
func (p *cleanPass) index(dest *segment, last, ts int64, from int) error {
	pos := dest.size.Load() + int64(from)
	dest.raiseTimestamp(ts, last)
	if err := dest.addIndex(p.l.e.files, int64(p.cfg.IndexIntervalBytes), last, pos, int64(len(p.out)-from)); err != nil {
		return err
	}
	if len(p.out) < recoverChunk {
		return nil
	}
	return p.flush(dest)
}

func (p *cleanPass) flush(dest *segment) error {
	if len(p.out) == 0 {
		return nil
	}
	f, err := dest.open(p.l.e.files)
	if err != nil {
		return err
	}
	defer dest.release(p.l.e.files)
	size := dest.size.Load()
	if _, err := f.WriteAt(p.out, size); err != nil {
		return err
	}
	dest.size.Store(size + int64(len(p.out)))
	p.out = p.out[:0]
	return nil
}

// replaceSegments puts a cleaned segment in the place of the old ones. In whatever step it is interrupted, loading finds either
// the old ones or the new one: as long as one of its files is still .cleaned the new one is thrown away, and from then on its
// .swap files win.
func (l *Log) replaceSegments(old []*segment, dest *segment) error {
	fc := l.e.files
	l.mu.Lock()
	defer l.unlock()
	if err := l.usable(); err != nil {
		return err
	}
	segs := l.segs()
	at := slices.Index(segs, old[0])
	if at < 0 || at+len(old) >= len(segs) || !slices.Equal(segs[at:at+len(old)], old) {
		return errGivenUp
	}
	suffixes := []string{suffixLog, suffixIndex, suffixTimeIndex}
	if dest.txns.exists {
		suffixes = append(suffixes, suffixTxnIndex)
	}
	rename := func(to string) error {
		for _, suffix := range suffixes {
			from := dest.name(suffix)
			next := from
			next.transit = to
			if err := l.e.fs.Rename(from.path(), next.path()); err != nil {
				return err
			}
		}
		dest.transit = to
		return nil
	}
	if err := rename(suffixSwap); err != nil {
		return err
	}
	if err := l.e.fs.SyncDir(l.dir.get()); err != nil {
		return err
	}
	delay := l.cfg.Load().FileDeleteDelay
	l.touched = true
	l.entries = true
	next := slices.Concat(segs[:at], []*segment{dest}, segs[at+len(old):])
	l.shape.Lock()
	err := l.removeSegments(old, delay)
	if err == nil {
		err = rename("")
	}
	l.segments.Store(&next)
	l.marks.Lock()
	// Positions in the old segments are void.
	void := func(p *position) {
		if slices.Contains(old, p.seg) {
			*p = position{offset: p.offset}
		}
	}
	void(&l.hw)
	for i := range l.open {
		void(&l.open[i].first)
	}
	for i := range l.unreplicated {
		void(&l.unreplicated[i].first)
	}
	l.marks.Unlock()
	l.shape.Unlock()
	if err != nil {
		return l.ioError("replace segments of", err)
	}
	dest.close(fc, false)
	if err := l.dropSnapshots(delay, func(o int64) bool {
		i := segmentAt(old, o)
		return o != dest.base && i >= 0 && old[i].base == o
	}); err != nil {
		return l.ioError("remove producer snapshots of", err)
	}
	return l.ioError("replace segments of", l.e.fs.SyncDir(l.dir.get()))
}

// CleanOnce cleans the log that needs it most, if one does; cleaned says whether one was. It runs by itself every
// log.cleaner.backoff.ms. A log that can't be cleaned, because a batch in it is damaged, is left alone from then on.
func (m *Manager) CleanOnce(ctx context.Context) (cleaned bool, err error) {
	var best cleanable
	for l := range m.Logs() {
		if m.Future(l.tp) != nil {
			continue // what goes here while it is copied would stay there
		}
		c, ok, err := l.cleanable()
		if err != nil {
			if diskFailed(err) {
				err = l.ioError("look for something to clean in", err)
			}
			m.warn(err, "look for something to clean")
			continue
		}
		if ok && c.due(l.cfg.Load()) && (best.l == nil || c.ratio() > best.ratio() || (c.ratio() == best.ratio() && l.tp.Compare(best.l.tp) < 0)) {
			best = c
		}
	}
	if best.l == nil {
		return false, nil
	}
	l := best.l
	began := m.e.clock.Now()
	st, err := l.clean(ctx, best, m.o.CleanerBufferBytes)
	switch {
	case err == nil:
		m.e.logger.Info("log cleaned", "partition", l.tp.String(), "from", st.FirstDirty, "to", st.NewFirstDirty,
			"bytes_before", st.BytesBefore, "bytes_after", st.BytesAfter, "segments", st.Segments, "took", m.e.clock.Now().Sub(began))
		if st.NewFirstDirty <= st.FirstDirty {
			return false, l.setUncleanable(fmt.Errorf("nothing from offset %d on fits into the cleaner's buffer", st.FirstDirty))
		}
		return true, l.parent.checkpointCleaned()
	case errors.Is(err, errGivenUp), ctx.Err() != nil, isFull(err), isOutOfFiles(err), l.parent.offline() != nil:
		return false, nil // another time
	}
	if diskFailed(err) {
		return false, l.ioError("clean", err)
	}
	l.mu.Lock()
	closed := l.closed != nil
	l.mu.Unlock()
	if closed {
		return false, nil
	}
	return false, l.setUncleanable(err)
}

func (l *Log) setUncleanable(err error) error {
	l.mu.Lock()
	l.uncleanable = err
	l.mu.Unlock()
	l.e.logger.Error("a log can't be cleaned and is left alone", "partition", l.tp.String(), "err", err)
	return nil
}

// Uncleanable is why the cleaner leaves the log alone, or nil.
func (l *Log) Uncleanable() error {
	l.mu.Lock()
	defer l.unlock()
	return l.uncleanable
}

// checkpointCleaned writes the first dirty offsets.
func (d *logDir) checkpointCleaned() error {
	return d.checkpoint(cleanerFile, &d.cleanerDirty, func(l *Log) (int64, bool) {
		l.mu.Lock()
		defer l.unlock()
		return l.firstDirty, l.cleaned
	})
}

// startCleaner cleans until the background stops: as long as there is work, and then again after the backoff.
func (b *background) startCleaner() {
	ctx, cancel := context.WithCancel(context.Background())
	b.done.Add(2)
	go func() {
		defer b.done.Done()
		<-b.stop
		cancel()
	}()
	go func() {
		defer b.done.Done()
		t := time.NewTicker(b.m.o.Intervals.Clean)
		defer t.Stop()
		for {
			select {
			case <-b.stop:
				return
			case <-t.C:
			}
			for {
				more, err := b.m.CleanOnce(ctx)
				b.m.warn(err, "clean")
				if !more || ctx.Err() != nil {
					break
				}
			}
		}
	}()
}
