package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
)

// The transaction index, NNN.txnindex: one entry of 34 bytes for each transaction that was aborted by a marker in the segment,
//
//	int16 version (0) | int64 producerId | int64 firstOffset | int64 lastOffset | int64 lastStableOffset
//
// where lastOffset is the marker's and lastStableOffset what that became with the abort. The file exists only when there is
// one.
const txnEntrySize = 34

// abortedTxn is one entry of a transaction index.
type abortedTxn struct {
	producerID       int64
	firstOffset      int64
	lastOffset       int64
	lastStableOffset int64
}

func appendTxnEntry(dst []byte, t abortedTxn) []byte {
	dst = binary.BigEndian.AppendUint16(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.producerID))
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.firstOffset))
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.lastOffset))
	return binary.BigEndian.AppendUint64(dst, uint64(t.lastStableOffset))
}

// decodeTxnIndex decodes whole entries; a part of one at the end is ignored. base is the segment's: an abort marker can't lie
// below it.
func decodeTxnIndex(b []byte, base int64) ([]abortedTxn, error) {
	out := make([]abortedTxn, 0, len(b)/txnEntrySize)
	for ; len(b) >= txnEntrySize; b = b[txnEntrySize:] {
		if v := int16(binary.BigEndian.Uint16(b)); v != 0 {
			return nil, fmt.Errorf("transaction index entry %d has version %d, want 0: %w", len(out), v, errDamaged)
		}
		t := abortedTxn{
			producerID:       int64(binary.BigEndian.Uint64(b[2:])),
			firstOffset:      int64(binary.BigEndian.Uint64(b[10:])),
			lastOffset:       int64(binary.BigEndian.Uint64(b[18:])),
			lastStableOffset: int64(binary.BigEndian.Uint64(b[26:])),
		}
		if t.lastOffset < base {
			return nil, fmt.Errorf("transaction index entry %d ends at %d, below the segment's base %d: %w", len(out), t.lastOffset, base, errDamaged)
		}
		out = append(out, t)
	}
	return out, nil
}

// txnIndex is a segment's transaction index, kept in memory once it was asked for.
type txnIndex struct {
	mu     sync.Mutex // guards below
	file   cachedFile
	exists bool // there is a file, or entries for one
	loaded bool
	all    []abortedTxn
	disk   int // entries written
}

// load reads the file once. entries may be shared: they are only ever appended to.
func (x *txnIndex) load(e env) ([]abortedTxn, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.loadLocked(e); err != nil {
		return nil, err
	}
	return x.all[:len(x.all):len(x.all)], nil
}

func (x *txnIndex) loadLocked(e env) error {
	if x.loaded || !x.exists {
		x.loaded = true
		return nil
	}
	b, err := readFile(e.files.fs, e.path())
	if errors.Is(err, fs.ErrNotExist) {
		x.exists, x.loaded = false, true
		return nil
	}
	if err != nil {
		return err
	}
	all, err := decodeTxnIndex(b, e.name.base)
	if err != nil {
		return fmt.Errorf("%s: %w", e.path(), err)
	}
	x.all, x.disk, x.loaded = all, len(all), true
	return nil
}

// append adds an entry in memory and on disk.
func (x *txnIndex) append(e env, t abortedTxn) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.loadLocked(e); err != nil {
		return err
	}
	x.all = append(x.all, t)
	return x.writeLocked(e)
}

// writeLocked writes the entries that are not on disk yet. After an error they stay in memory for the next try.
func (x *txnIndex) writeLocked(e env) error {
	if x.disk == len(x.all) {
		return nil
	}
	if !x.exists {
		if err := x.file.create(e.files, e.path()); err != nil {
			return err
		}
		x.exists = true
	}
	var b []byte
	for _, t := range x.all[x.disk:] {
		b = appendTxnEntry(b, t)
	}
	f, err := x.file.acquire(e.files, e.name)
	if err != nil {
		return err
	}
	defer x.file.release(e.files)
	if _, err := f.WriteAt(b, int64(x.disk)*txnEntrySize); err != nil {
		return fmt.Errorf("write %s: %w", e.path(), err)
	}
	x.disk = len(x.all)
	return nil
}

// replace sets the entries; a file is cut or removed to fit.
func (x *txnIndex) replace(e env, all []abortedTxn) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all, x.loaded, x.disk = slices.Clone(all), true, 0
	if len(all) == 0 {
		if !x.exists {
			return nil
		}
		x.exists = false
		x.file.close(e.files, false)
		return removeIfExists(e.files.fs, e.path())
	}
	if x.exists {
		f, err := x.file.acquire(e.files, e.name)
		if err != nil {
			return err
		}
		err = f.Truncate(0)
		x.file.release(e.files)
		if err != nil {
			return err
		}
	}
	return x.writeLocked(e)
}

// truncate drops the entries whose last offset is at or above offset.
func (x *txnIndex) truncate(e env, offset int64) error {
	all, err := x.load(e)
	if err != nil {
		return err
	}
	n := len(all)
	for n > 0 && all[n-1].lastOffset >= offset {
		n--
	}
	if n == len(all) {
		return nil
	}
	return x.replace(e, all[:n])
}

// sync makes the file durable when there is one.
func (x *txnIndex) sync(e env) error {
	x.mu.Lock()
	err := x.writeLocked(e)
	exists := x.exists
	x.mu.Unlock()
	if err != nil || !exists {
		return err
	}
	f, err := x.file.acquire(e.files, e.name)
	if err != nil {
		return err
	}
	defer x.file.release(e.files)
	return f.Sync()
}

// forget makes the entries be read again when they are needed. All must be on disk.
func (x *txnIndex) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all, x.disk, x.loaded = nil, 0, false
}

func (x *txnIndex) close(fc *fileCache, forget bool) { x.file.close(fc, forget) }
