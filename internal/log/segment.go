package log

import (
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"gregor/internal/record"
	"gregor/internal/vfs"
)

// segment is one .log file with its indexes. Only the last segment of a log, the active one, is appended to.
type segment struct {
	base int64
	dir  *dirPath
	// transit is the suffix that the files have while the cleaner writes them.
	transit string

	log   cachedFile
	index entryFile
	times entryFile
	txns  txnIndex

	// size is how many bytes may be read; -1 until it is looked up. It is published after the bytes are written.
	size atomic.Int64
	// checked says that the index files were looked at and are what they should be.
	checked atomic.Bool

	// Guarded by Log.mu; they matter for the active segment only.
	absent     bool  // there are no files yet: a new replica's first segment is made when something is appended
	sinceIndex int64 // bytes since the last index entry
	created    int64 // ms
	jitter     int64 // ms by which it is rolled early
	reserved   int64 // position up to which room on the disk has been asked for
	firstTs    int64 // largest timestamp of the first batch; unknownTs until it is looked up

	ts        sync.Mutex // guards below
	tsKnown   bool
	maxTs     int64 // largest timestamp so far, -1 if none
	maxTsLast int64 // last offset of the batch that had it
}

const unknownTs = math.MinInt64

func newSegment(dir *dirPath, base int64) *segment {
	s := &segment{base: base, dir: dir, firstTs: unknownTs, maxTs: record.NoTimestamp, maxTsLast: -1}
	s.index = entryFile{width: indexEntrySize, disk: -1}
	s.times = entryFile{width: timeEntrySize, disk: -1}
	s.size.Store(-1)
	return s
}

func (s *segment) name(suffix string) fileName {
	return fileName{dir: s.dir, base: s.base, suffix: suffix, transit: s.transit}
}

func (s *segment) indexEnv(fc *fileCache) env { return env{fc, s.name(suffixIndex)} }
func (s *segment) timesEnv(fc *fileCache) env { return env{fc, s.name(suffixTimeIndex)} }
func (s *segment) txnEnv(fc *fileCache) env   { return env{fc, s.name(suffixTxnIndex)} }

// open returns the .log file; release it.
func (s *segment) open(fc *fileCache) (vfs.File, error) { return s.log.acquire(fc, s.name(suffixLog)) }

func (s *segment) release(fc *fileCache) { s.log.release(fc) }

// bytes is the segment's size, looked up when it isn't known.
func (s *segment) bytes(fc *fileCache) (int64, error) {
	if n := s.size.Load(); n >= 0 {
		return n, nil
	}
	st, err := fc.fs.Stat(s.name(suffixLog).path())
	if err != nil {
		return 0, err
	}
	s.size.CompareAndSwap(-1, st.Size())
	return s.size.Load(), nil
}

// close lets go of the files; with forget for good.
func (s *segment) close(fc *fileCache, forget bool) {
	s.log.close(fc, forget)
	s.index.close(fc, forget)
	s.times.close(fc, forget)
	s.txns.close(fc, forget)
}

// timestamps is the largest timestamp and the last offset of its batch, (-1, -1) when the segment has none. For an old segment
// it is what the time index ends with; if that is empty, for it may have been lost, the batches are asked.
func (s *segment) timestamps(fc *fileCache) (maxTs, last int64, err error) {
	s.ts.Lock()
	if s.tsKnown {
		defer s.ts.Unlock()
		return s.maxTs, s.maxTsLast, nil
	}
	s.ts.Unlock()
	if err := s.check(fc); err != nil { // takes ts when it finds damage
		return -1, -1, err
	}
	s.ts.Lock()
	defer s.ts.Unlock()
	if s.tsKnown {
		return s.maxTs, s.maxTsLast, nil
	}
	size, err := s.bytes(fc)
	if err != nil {
		return -1, -1, err
	}
	maxTs, last = record.NoTimestamp, -1
	if size > 0 {
		e, err := s.times.lastEntry(s.timesEnv(fc))
		if err != nil {
			return -1, -1, err
		}
		if e.ok {
			ts, rel := timeEntry(e.b[:])
			maxTs, last = ts, s.base+int64(rel)
			// A batch must end there and have that timestamp: Kafka would believe garbage, for retention too.
			b, ok, err := s.find(fc, last)
			if ignoreDamage(err) != nil {
				return -1, -1, err
			}
			if err != nil || !ok || b.last != last || b.maxTs != ts {
				if err := s.rebuildIndexes(fc, size, defaultIndexInterval); err != nil {
					return -1, -1, err
				}
				return s.maxTs, s.maxTsLast, nil
			}
		} else if maxTs, last, err = s.scanTimestamps(fc, size); err != nil {
			return -1, -1, err
		}
	}
	s.maxTs, s.maxTsLast, s.tsKnown = maxTs, last, true
	return maxTs, last, nil
}

// scanTimestamps is the largest timestamp before pos by the time index and the batches behind its last entry.
func (s *segment) scanTimestamps(fc *fileCache, pos int64) (maxTs, last int64, err error) {
	maxTs, last = record.NoTimestamp, -1
	if pos == 0 {
		return maxTs, last, nil
	}
	from := int64(0)
	e, err := s.times.lastEntry(s.timesEnv(fc))
	if err != nil {
		return -1, -1, err
	}
	if e.ok {
		ts, rel := timeEntry(e.b[:])
		maxTs, last = ts, s.base+int64(rel)
		if from, err = s.floor(fc, last); err != nil {
			return -1, -1, err
		}
	}
	f, err := s.open(fc)
	if err != nil {
		return -1, -1, err
	}
	defer s.release(fc)
	h := newHeaderScan(f, from, pos)
	defer h.close()
	for {
		b, err := h.next()
		if err != nil {
			return maxTs, last, ignoreDamage(err)
		}
		if ts := b.entry.MaxTimestamp(); ts > maxTs {
			maxTs, last = ts, b.last
		}
	}
}

func (s *segment) setTimestamps(maxTs, last int64) {
	s.ts.Lock()
	s.maxTs, s.maxTsLast, s.tsKnown = maxTs, last, true
	s.ts.Unlock()
}

// raiseTimestamp notes a batch's largest timestamp.
func (s *segment) raiseTimestamp(ts, last int64) {
	s.ts.Lock()
	if ts > s.maxTs {
		s.maxTs, s.maxTsLast = ts, last
	}
	s.ts.Unlock()
}

// addIndex is called for each batch that is appended at pos: it makes an index entry when enough bytes have passed since the
// last one.
func (s *segment) addIndex(fc *fileCache, interval int64, last, pos int64, n int64) error {
	var err error
	if s.sinceIndex > interval {
		var b [indexEntrySize]byte
		putIndexEntry(b[:], int32(last-s.base), int32(pos))
		err = s.index.append(s.indexEnv(fc), b[:])
		if e := s.addTime(fc); err == nil {
			err = e
		}
		s.sinceIndex = 0
	}
	s.sinceIndex += n
	return err
}

// addTime adds a time index entry if the largest timestamp has grown since the last one.
func (s *segment) addTime(fc *fileCache) error {
	maxTs, last, err := s.timestamps(fc)
	if err != nil || maxTs < 0 {
		return err
	}
	e, err := s.times.lastEntry(s.timesEnv(fc))
	if err != nil {
		return err
	}
	if e.ok {
		if ts, _ := timeEntry(e.b[:]); ts >= maxTs {
			return nil
		}
	}
	var b [timeEntrySize]byte
	putTimeEntry(b[:], maxTs, int32(last-s.base))
	return s.times.append(s.timesEnv(fc), b[:])
}

// seal makes the index files what they must be when the segment stops being active: closed by a last time entry, written out
// and exactly as long as their entries.
func (s *segment) seal(fc *fileCache) error {
	if err := s.addTime(fc); err != nil {
		return err
	}
	if err := s.index.trim(s.indexEnv(fc)); err != nil {
		return err
	}
	if err := s.times.trim(s.timesEnv(fc)); err != nil {
		return err
	}
	if s.reserved <= s.size.Load() {
		return nil
	}
	return s.giveBack(fc)
}

// giveBack gives back the room that was asked for beyond the segment's end.
func (s *segment) giveBack(fc *fileCache) error {
	f, err := s.open(fc)
	if err != nil {
		return err
	}
	defer s.release(fc)
	if err := f.Truncate(s.size.Load()); err != nil {
		return err
	}
	s.reserved = 0
	return nil
}

const (
	// reserveFrom is the size from which a segment asks for room ahead of its end: small ones, of which there may be many, take no
	// more than they have.
	reserveFrom = 4 << 20
	// reserveMost is the most that is asked for at once, and so the most that a segment holds in vain.
	reserveMost = 16 << 20
)

// reserve asks for room when an append to f will end at end, a quarter of the segment at a time. Log.mu is held.
func (s *segment) reserve(f vfs.File, end int64) {
	if end < reserveFrom || end <= s.reserved {
		return
	}
	from := max(s.reserved, s.size.Load())
	s.reserved = end + min(end/4, reserveMost)
	f.Reserve(from, s.reserved-from)
}

// sync makes log and indexes durable. The directory entry is the caller's.
func (s *segment) sync(fc *fileCache, indexes bool) error {
	f, err := s.open(fc)
	if err != nil {
		return err
	}
	err = f.Sync()
	s.release(fc)
	if err != nil {
		return fmt.Errorf("sync %s: %w", s.name(suffixLog).path(), err)
	}
	if !indexes {
		return nil
	}
	if err := s.index.sync(s.indexEnv(fc)); err != nil {
		return err
	}
	if err := s.times.sync(s.timesEnv(fc)); err != nil {
		return err
	}
	return s.txns.sync(s.txnEnv(fc))
}

// batchHeader is what a scan sees of a batch.
type batchHeader struct {
	entry record.Entry // the header's bytes, valid until the next step
	pos   int64
	size  int64
	first int64 // of a magic 2 batch, else -1
	last  int64
	maxTs int64
}

// scanWindow is how much a header scan reads at a time.
const scanWindow = 8 << 10

var scanBuffers = sync.Pool{New: func() any { return new([scanWindow]byte) }}

// headerScan walks the batch headers of a file from pos to end without reading the records where it can.
type headerScan struct {
	f        io.ReaderAt
	pos, end int64 // of the next batch, and where to stop
	buf      *[scanWindow]byte
	from, n  int64 // file position and length of what buf holds
}

func newHeaderScan(f io.ReaderAt, pos, end int64) headerScan {
	return headerScan{f: f, pos: pos, end: end, buf: scanBuffers.Get().(*[scanWindow]byte)}
}

func (h *headerScan) close() {
	if h.buf != nil {
		scanBuffers.Put(h.buf)
		h.buf = nil
	}
}

// whole is the batch that next returned last, read now if it lies beyond what was read for its header.
func (h *headerScan) whole(b batchHeader) (record.Entry, error) {
	if b.pos >= h.from && b.pos+b.size <= h.from+h.n {
		at := b.pos - h.from
		return h.buf[at : at+b.size], nil
	}
	e := make(record.Entry, b.size)
	if n, err := h.f.ReadAt(e, b.pos); int64(n) < b.size {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return e, nil
}

// next is io.EOF at the end. A batch that isn't whole before the end is record.ErrTruncated, one that cannot be is
// record.ErrCorrupt.
func (h *headerScan) next() (batchHeader, error) {
	if h.pos >= h.end {
		return batchHeader{}, io.EOF
	}
	want := min(record.HeaderSize, h.end-h.pos)
	if h.pos < h.from || h.pos+want > h.from+h.n {
		n := min(scanWindow, h.end-h.pos)
		got, err := h.f.ReadAt(h.buf[:n], h.pos)
		if int64(got) < n {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return batchHeader{}, err
		}
		h.from, h.n = h.pos, n
	}
	b := h.buf[h.pos-h.from : h.n]
	size, err := record.EntrySize(b)
	if err != nil {
		return batchHeader{}, err
	}
	if int64(size) > h.end-h.pos {
		return batchHeader{}, fmt.Errorf("batch of %d bytes with %d left: %w", size, h.end-h.pos, record.ErrTruncated)
	}
	e := record.Entry(b[:min(len(b), record.HeaderSize)])
	if e.Magic() == 2 && size < record.HeaderSize {
		return batchHeader{}, fmt.Errorf("batch of %d bytes: %w", size, record.ErrCorrupt)
	}
	out := batchHeader{entry: e, pos: h.pos, size: int64(size), first: -1, last: e.LastOffset(), maxTs: e.MaxTimestamp()}
	if e.Magic() == 2 {
		out.first = e.Offset()
	}
	h.pos += int64(size)
	return out, nil
}

// floor is a position at or before the first batch whose last offset is at or above offset, by the offset index.
func (s *segment) floor(fc *fileCache, offset int64) (int64, error) {
	if err := s.check(fc); err != nil {
		return 0, err
	}
	rel := offset - s.base
	e, _, err := s.index.search(s.indexEnv(fc), func(e []byte) bool {
		r, _ := indexEntry(e)
		return int64(r) <= rel
	})
	if err != nil || !e.ok {
		return 0, err
	}
	_, pos := indexEntry(e.b[:])
	return int64(pos), nil
}

// find locates the first batch whose last offset is at or above offset; ok=false when the segment has none. The batch's header
// fields are copied; entry is not valid.
func (s *segment) find(fc *fileCache, offset int64) (b batchHeader, ok bool, err error) {
	size, err := s.bytes(fc)
	if err != nil || size == 0 {
		return b, false, err
	}
	pos, err := s.floor(fc, offset)
	if err != nil {
		return b, false, err
	}
	return s.findFrom(fc, pos, size, offset)
}

func (s *segment) findFrom(fc *fileCache, pos, size, offset int64) (b batchHeader, ok bool, err error) {
	f, err := s.open(fc)
	if err != nil {
		return b, false, err
	}
	defer s.release(fc)
	h := newHeaderScan(f, pos, size)
	defer h.close()
	for {
		b, err = h.next()
		if err == io.EOF {
			return batchHeader{}, false, nil
		}
		if err != nil {
			return b, false, fmt.Errorf("%s at position %d: %w", s.name(suffixLog).path(), h.pos, err)
		}
		if b.last >= offset {
			b.entry = nil
			return b, true, nil
		}
	}
}

// firstTimestamp is the largest timestamp of the first batch, by which the segment's age is counted; -1 when it is empty, has
// none or is damaged there.
func (s *segment) firstTimestamp(fc *fileCache) (int64, error) {
	if s.firstTs != unknownTs {
		return s.firstTs, nil
	}
	size, err := s.bytes(fc)
	if err != nil {
		return -1, err
	}
	if size == 0 {
		return -1, nil
	}
	f, err := s.open(fc)
	if err != nil {
		return -1, err
	}
	defer s.release(fc)
	h := newHeaderScan(f, 0, size)
	defer h.close()
	switch b, err := h.next(); {
	case err == nil:
		s.firstTs = b.entry.MaxTimestamp()
	case damaged(err):
		s.firstTs = record.NoTimestamp
	default:
		return -1, fmt.Errorf("%s: %w", s.name(suffixLog).path(), err)
	}
	return s.firstTs, nil
}

// check looks at the offset index once before it is first believed, and rebuilds index and time index from the log when they
// cannot be right: Kafka doesn't look, and reads the wrong batches by a damaged index.
func (s *segment) check(fc *fileCache) error {
	if s.checked.Load() {
		return nil
	}
	size, err := s.bytes(fc)
	if err != nil {
		return err
	}
	n, err := s.index.count(s.indexEnv(fc))
	if err != nil {
		return err
	}
	ok := n > 0 || s.index.exists || size == 0
	if ok {
		ok, err = s.plausible(fc, size)
	}
	if err != nil {
		return err
	}
	if !ok {
		s.ts.Lock()
		err := s.rebuildIndexes(fc, size, defaultIndexInterval)
		s.ts.Unlock()
		if err != nil {
			return err
		}
	}
	s.checked.Store(true)
	return nil
}

const defaultIndexInterval = 4096

// plausible checks that the entries of the offset index ascend within the file, all of them when they are few and else the first
// and last of them, and that the last one points at the batch that it says.
func (s *segment) plausible(fc *fileCache, size int64) (bool, error) {
	const few = 8192
	n, err := s.index.count(s.indexEnv(fc))
	if err != nil || n == 0 {
		return true, err
	}
	ranges := [][2]int{{0, n}}
	if n > few {
		ranges = [][2]int{{0, few / 16}, {n - few/16, n}}
	}
	var entries []byte
	for _, r := range ranges {
		if entries, err = s.index.slice(s.indexEnv(fc), r[0], r[1]); err != nil {
			return false, err
		}
		if plausiblePrefix(entries, size) != r[1]-r[0] {
			return false, nil
		}
	}
	rel, pos := indexEntry(entries[len(entries)-indexEntrySize:])
	return s.pointsAtBatch(fc, int64(pos), size, s.base+int64(rel))
}

// pointsAtBatch says whether a batch begins at pos and the index entry's offset can be the last of it or of the run of batches
// that was appended with it.
func (s *segment) pointsAtBatch(fc *fileCache, pos, size, last int64) (bool, error) {
	f, err := s.open(fc)
	if err != nil {
		return false, err
	}
	defer s.release(fc)
	h := newHeaderScan(f, pos, size)
	defer h.close()
	b, err := h.next()
	if err != nil {
		return false, ignoreDamage(err)
	}
	if b.entry.Magic() == 2 && b.entry.Offset() > last {
		return false, nil
	}
	for b.last < last {
		if b, err = h.next(); err != nil {
			return false, ignoreDamage(err)
		}
	}
	return b.last == last, nil
}

// behind cuts entries of the offset index to begin with the first one beyond pos that points at a batch; nil if none does.
func (s *segment) behind(fc *fileCache, entries []byte, pos, size int64) ([]byte, error) {
	for tries := 1000; tries > 0 && len(entries) >= indexEntrySize; entries = entries[indexEntrySize:] {
		rel, p := indexEntry(entries)
		if int64(p) <= pos {
			continue
		}
		tries-- // one that doesn't may cost a walk to the end
		if ok, err := s.pointsAtBatch(fc, int64(p), size, s.base+int64(rel)); ok || err != nil {
			return entries, err
		}
	}
	return nil, nil
}

// resume makes a scan that met damage go on behind it, if the offset index knows of a batch there.
func (s *segment) resume(fc *fileCache, h *headerScan) (bool, error) {
	if h.pos >= h.end {
		return false, nil
	}
	entries, err := s.index.entries(s.indexEnv(fc))
	if err != nil {
		return false, err
	}
	entries, err = s.behind(fc, entries[:plausiblePrefix(entries, h.end)*indexEntrySize], h.pos, h.end)
	if err != nil || entries == nil {
		return false, err
	}
	_, pos := indexEntry(entries)
	h.pos = int64(pos)
	return true, nil
}

// rebuildIndexes makes offset and time index anew from the batch headers. What lies behind damage is found by the old offset
// index, and so stays within reach. ts is held.
func (s *segment) rebuildIndexes(fc *fileCache, size, interval int64) error {
	old, err := s.index.entries(s.indexEnv(fc))
	if err != nil {
		return err
	}
	old = old[:plausiblePrefix(old, size)*indexEntrySize]
	f, err := s.open(fc)
	if err != nil {
		return err
	}
	defer s.release(fc)
	h := newHeaderScan(f, 0, size)
	defer h.close()
	var index, times []byte
	var since int64
	maxTs, maxTsLast, lastTs := record.NoTimestamp, int64(-1), record.NoTimestamp
	addTime := func() {
		if maxTs > lastTs {
			times = append(times, make([]byte, timeEntrySize)...)
			putTimeEntry(times[len(times)-timeEntrySize:], maxTs, int32(maxTsLast-s.base))
			lastTs = maxTs
		}
	}
	for {
		b, err := h.next()
		if err != nil {
			if err := ignoreDamage(err); err != nil {
				return err
			}
			if old, err = s.behind(fc, old, h.pos, size); err != nil {
				return err
			}
			if old == nil {
				break
			}
			_, pos := indexEntry(old)
			h.pos, since = int64(pos), math.MaxInt64 // only an entry leads there
			continue
		}
		if ts := b.entry.MaxTimestamp(); ts > maxTs {
			maxTs, maxTsLast = ts, b.last
		}
		if since > interval {
			index = append(index, make([]byte, indexEntrySize)...)
			putIndexEntry(index[len(index)-indexEntrySize:], int32(b.last-s.base), int32(b.pos))
			addTime()
			since = 0
		}
		since += b.size
	}
	addTime()
	if err := s.index.replace(s.indexEnv(fc), index); err != nil {
		return err
	}
	if err := s.times.replace(s.timesEnv(fc), times); err != nil {
		return err
	}
	s.maxTs, s.maxTsLast, s.tsKnown = maxTs, maxTsLast, true
	return nil
}
