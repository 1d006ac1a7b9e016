package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"

	"gregor/internal/vfs"
)

// spillBytes is how much of an index waits in memory before it is written: one page. The tail is lost in a crash; recovery
// rebuilds it from the log, which has to be read there anyway.
const spillBytes = 4096

// entryFile is an append-only file of entries of one width: the offset index and the time index. The first entries are on
// disk and the last ones in memory until spill, which happens by itself when there are many, and at a roll, flush or close.
//
// It is safe for concurrent use.
type entryFile struct {
	width int

	mu     sync.Mutex // guards below; held across reads and writes of the index file, which are small
	file   cachedFile
	disk   int    // entries on disk; -1 until it is looked up
	tail   []byte // entries after those
	exists bool   // there is a file
	last   []byte // the last entry, kept for comparing

	block     []byte // a page of entries that are on disk, kept for the next search; nil if none
	blockFrom int    // its first entry
}

// env is what the parts of one log share to find and open their files.
type env struct {
	files *fileCache
	name  fileName
}

func (e env) path() string { return e.name.path() }

// openLocked finds out how many entries there are. A size that is no multiple of the width is cut in thought: the rest is
// overwritten by the next spill.
func (x *entryFile) openLocked(e env) error {
	if x.disk >= 0 {
		return nil
	}
	st, err := e.files.fs.Stat(e.path())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		x.disk, x.exists = 0, false
		return nil
	case err != nil:
		return err
	}
	x.exists = true
	x.disk = int(st.Size()) / x.width
	return nil
}

func (x *entryFile) countLocked() int { return x.disk + len(x.tail)/x.width }

// count is the number of entries.
func (x *entryFile) count(e env) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.openLocked(e); err != nil {
		return 0, err
	}
	return x.countLocked(), nil
}

// readLocked copies entries [from, to) into a buffer.
func (x *entryFile) readLocked(e env, from, to int) ([]byte, error) {
	out := make([]byte, (to-from)*x.width)
	at := out
	if from < x.disk {
		n := min(to, x.disk) - from
		f, err := x.file.acquire(e.files, e.name)
		if err != nil {
			return nil, err
		}
		got, err := f.ReadAt(at[:n*x.width], int64(from)*int64(x.width))
		x.file.release(e.files)
		if got < n*x.width {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("read %s entries %d to %d: %w", e.path(), from, to, err)
		}
		at, from = at[n*x.width:], from+n
	}
	if from < to {
		copy(at, x.tail[(from-x.disk)*x.width:(to-x.disk)*x.width])
	}
	return out, nil
}

// lastEntry is the last entry.
func (x *entryFile) lastEntry(e env) (entry, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	b, err := x.lastLocked(e)
	if err != nil || b == nil {
		return entry{}, err
	}
	return x.copyOf(b), nil
}

func (x *entryFile) lastLocked(e env) ([]byte, error) {
	if err := x.openLocked(e); err != nil {
		return nil, err
	}
	n := x.countLocked()
	if n == 0 {
		return nil, nil
	}
	if x.last == nil {
		b, err := x.readLocked(e, n-1, n)
		if err != nil {
			return nil, err
		}
		x.last = b
	}
	return x.last, nil
}

// entry is a copy of an index entry; the offset index uses the first 8 bytes. ok=false is none.
type entry struct {
	b  [timeEntrySize]byte
	ok bool
}

func (x *entryFile) copyOf(b []byte) (e entry) {
	copy(e.b[:], b[:x.width])
	e.ok = true
	return e
}

// search returns the last entry for which le holds (entries for which it holds come first) and the one behind it. It allocates
// nothing while one consumer goes through a segment: the page of the index where the last search ended is kept.
func (x *entryFile) search(e env, le func(entry []byte) bool) (floor, next entry, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.openLocked(e); err != nil {
		return floor, next, err
	}
	w := x.width
	if len(x.tail) > 0 && (x.disk == 0 || le(x.tail[:w])) {
		floor, next = x.searchBytes(x.tail, le)
		return floor, next, nil
	}
	if x.disk == 0 {
		return floor, next, nil
	}
	if !x.covers(le) {
		if err := x.loadBlock(e, le); err != nil {
			return floor, next, err
		}
	}
	floor, next = x.searchBytes(x.block, le)
	if !next.ok && len(x.tail) > 0 {
		next = x.copyOf(x.tail)
	}
	return floor, next, nil
}

// covers says whether the kept page holds the answer: its first entry satisfies le (or is the first of all) and its last one
// doesn't (or is the last on disk).
func (x *entryFile) covers(le func([]byte) bool) bool {
	n := len(x.block) / x.width
	if n == 0 || x.blockFrom+n > x.disk {
		return false
	}
	return (x.blockFrom == 0 || le(x.block[:x.width])) && (x.blockFrom+n == x.disk || !le(x.block[(n-1)*x.width:]))
}

// loadBlock finds the page that holds the answer by probing single entries.
func (x *entryFile) loadBlock(e env, le func([]byte) bool) error {
	f, err := x.file.acquire(e.files, e.name)
	if err != nil {
		return err
	}
	defer x.file.release(e.files)
	per := spillBytes / x.width
	if x.block == nil {
		x.block = make([]byte, 0, per*x.width)
		e.files.keepBlock(x)
	}
	probe := x.block[:x.width]
	lo, hi := 0, x.disk
	for hi-lo > per/2 {
		mid := lo + (hi-lo)/2
		if err := x.readDisk(e, f, probe, mid); err != nil {
			x.block = x.block[:0]
			return err
		}
		if le(probe) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	from := max(lo-1, 0)
	n := min(per, x.disk-from)
	x.blockFrom = from
	x.block = x.block[:n*x.width]
	if err := x.readDisk(e, f, x.block, from); err != nil {
		x.block = x.block[:0]
		return err
	}
	return nil
}

// readDisk reads whole entries from the given one on.
func (x *entryFile) readDisk(e env, f vfs.File, to []byte, from int) error {
	n, err := f.ReadAt(to, int64(from)*int64(x.width))
	if n == len(to) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %s from entry %d: %w", e.path(), from, err)
}

func (x *entryFile) searchBytes(b []byte, le func([]byte) bool) (floor, next entry) {
	lo, hi := 0, len(b)/x.width
	for lo < hi {
		mid := lo + (hi-lo)/2
		if le(b[mid*x.width : (mid+1)*x.width]) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo > 0 {
		floor = x.copyOf(b[(lo-1)*x.width:])
	}
	if lo < len(b)/x.width {
		next = x.copyOf(b[lo*x.width:])
	}
	return floor, next
}

// dropBlock forgets the kept page; false when the index is in use just now.
func (x *entryFile) dropBlock() bool {
	if !x.mu.TryLock() {
		return false
	}
	x.block = nil
	x.mu.Unlock()
	return true
}

// append adds an entry in memory and spills when there are enough.
func (x *entryFile) append(e env, b []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.openLocked(e); err != nil {
		return err
	}
	x.tail = append(x.tail, b...)
	x.last = append(x.last[:0], b...)
	if len(x.tail) >= spillBytes {
		return x.spillLocked(e)
	}
	return nil
}

// spill writes the tail and makes the file exist.
func (x *entryFile) spill(e env) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.openLocked(e); err != nil {
		return err
	}
	return x.spillLocked(e)
}

func (x *entryFile) spillLocked(e env) error {
	if !x.exists {
		if err := x.file.create(e.files, e.path()); err != nil {
			return err
		}
		x.exists, x.disk = true, 0
	}
	if len(x.tail) == 0 {
		return nil
	}
	f, err := x.file.acquire(e.files, e.name)
	if err != nil {
		return err
	}
	defer x.file.release(e.files)
	if _, err := f.WriteAt(x.tail, int64(x.disk)*int64(x.width)); err != nil {
		return fmt.Errorf("write %s: %w", e.path(), err)
	}
	x.disk += len(x.tail) / x.width
	x.tail = x.tail[:0]
	return nil
}

// trim spills and makes the file exactly as long as its entries.
func (x *entryFile) trim(e env) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.openLocked(e); err != nil {
		return err
	}
	if err := x.spillLocked(e); err != nil {
		return err
	}
	return x.resizeLocked(e)
}

// resizeLocked cuts the file to its entries; the tail is empty.
func (x *entryFile) resizeLocked(e env) error {
	f, err := x.file.acquire(e.files, e.name)
	if err != nil {
		return err
	}
	defer x.file.release(e.files)
	size, err := f.Size()
	if err != nil {
		return err
	}
	if want := int64(x.disk) * int64(x.width); size != want {
		return f.Truncate(want)
	}
	return nil
}

// truncateEntries keeps the first n entries. A file that exists is cut too, so that nothing stale can be taken for an entry.
func (x *entryFile) truncateEntries(e env, n int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.openLocked(e); err != nil {
		return err
	}
	if n > x.countLocked() {
		return fmt.Errorf("truncate %s to %d entries of %d", e.path(), n, x.countLocked())
	}
	x.last, x.block = nil, x.block[:0]
	if n >= x.disk {
		x.tail = x.tail[:(n-x.disk)*x.width]
	} else {
		x.tail = x.tail[:0]
		x.disk = n
	}
	if !x.exists {
		return nil
	}
	return x.resizeLocked(e)
}

// truncateWhere drops the entries from the first on for which keep does not hold.
func (x *entryFile) truncateWhere(e env, keep func(entry []byte) bool) error {
	x.mu.Lock()
	if err := x.openLocked(e); err != nil {
		x.mu.Unlock()
		return err
	}
	n := x.countLocked()
	b, err := x.readLocked(e, 0, n)
	x.mu.Unlock()
	if err != nil {
		return err
	}
	for i := range n {
		if !keep(b[i*x.width : (i+1)*x.width]) {
			n = i
			break
		}
	}
	return x.truncateEntries(e, n)
}

// sync spills and makes the file durable. Lookups and appends go on meanwhile.
func (x *entryFile) sync(e env) error {
	if err := x.spill(e); err != nil {
		return err
	}
	f, err := x.file.acquire(e.files, e.name)
	if err != nil {
		return err
	}
	defer x.file.release(e.files)
	return f.Sync()
}

// entries returns all entries.
func (x *entryFile) entries(e env) ([]byte, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.openLocked(e); err != nil {
		return nil, err
	}
	return x.readLocked(e, 0, x.countLocked())
}

// slice returns entries [from, to).
func (x *entryFile) slice(e env, from, to int) ([]byte, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.openLocked(e); err != nil {
		return nil, err
	}
	return x.readLocked(e, from, min(to, x.countLocked()))
}

// replace sets the entries to those given and writes them, durably: nobody may think of it again until the clean stop. On a full
// disk they stay in memory.
func (x *entryFile) replace(e env, all []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.openLocked(e); err != nil {
		return err
	}
	x.last, x.block = nil, x.block[:0]
	x.disk, x.tail = 0, slices.Clone(all)
	if x.exists {
		if err := x.resizeLocked(e); err != nil {
			return err
		}
	}
	if err := x.spillLocked(e); err != nil {
		if isFull(err) {
			return nil
		}
		return err
	}
	f, err := x.file.acquire(e.files, e.name)
	if err != nil {
		return err
	}
	defer x.file.release(e.files)
	return f.Sync()
}

// close lets go of the file; with forget for good.
func (x *entryFile) close(fc *fileCache, forget bool) { x.file.close(fc, forget) }
