package log

import (
	"errors"
	"io/fs"
	"slices"
	"sync"

	"gregor/internal/vfs"
)

// epochCache knows at which offset each leader epoch begins (KIP-101, KIP-279): Kafka's LeaderEpochFileCache.
//
// Differs from Kafka: the file is not rewritten with every new epoch. An entry whose epoch has no batch yet can be lost without
// harm (Kafka itself drops such entries when it loads), and one with batches is found again by recovery as long as these lie
// behind the recovery point; so the file is written before a recovery point moves, at a clean stop, and now and then.
type epochCache struct {
	mu      sync.Mutex // guards below
	entries []epochEntry
	dirty   bool
	idle    bool // the last entry has no batch yet and isn't on disk
}

// assign notes that epoch begins at start, with a batch when written: entries at or above either are dropped first. It does
// nothing when the last entry has that epoch and begins no later.
func (c *epochCache) assign(epoch int32, start int64, written bool) {
	if epoch < 0 || start < 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.entries); n > 0 {
		if last := c.entries[n-1]; last.epoch == epoch && last.start <= start {
			if c.idle && written {
				c.idle, c.dirty = false, true
			}
			return
		}
		for n > 0 && (c.entries[n-1].epoch >= epoch || c.entries[n-1].start >= start) {
			n--
		}
		c.entries = c.entries[:n]
	}
	c.entries = append(c.entries, epochEntry{epoch, start})
	if c.idle = !written; written {
		c.dirty = true
	}
}

// latest is the newest epoch, ok=false when there is none.
func (c *epochCache) latest() (epoch int32, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.entries); n > 0 {
		return c.entries[n-1].epoch, true
	}
	return NoEpoch, false
}

// earliest is the oldest entry.
func (c *epochCache) earliest() (epochEntry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) == 0 {
		return epochEntry{}, false
	}
	return c.entries[0], true
}

// endOffset answers OffsetForLeaderEpoch: the largest epoch not above the one asked for and where the next one begins, or end
// for the newest. ok=false: the epoch is not known, or is newer than everything here.
func (c *epochCache) endOffset(epoch int32, end int64) (found int32, offset int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.entries)
	switch {
	case epoch == NoEpoch || n == 0:
		return NoEpoch, UnknownOffset, false
	case epoch == c.entries[n-1].epoch:
		return epoch, end, true
	case epoch > c.entries[n-1].epoch:
		return NoEpoch, UnknownOffset, false
	}
	i, exact := slices.BinarySearchFunc(c.entries, epoch, func(e epochEntry, t int32) int { return int(e.epoch) - int(t) })
	switch {
	case exact:
		return epoch, c.entries[i+1].start, true
	case i == 0:
		// All known epochs are larger: whatever was written under this one ended where the first of them began.
		return epoch, c.entries[0].start, true
	}
	return c.entries[i-1].epoch, c.entries[i].start, true
}

// at is the epoch that offset was written in.
func (c *epochCache) at(offset int64) (int32, bool) {
	e, ok := c.entryAt(offset)
	return e.epoch, ok
}

// truncateFromEnd drops entries that begin at or above end.
func (c *epochCache) truncateFromEnd(end int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.entries)
	for n > 0 && c.entries[n-1].start >= end {
		n--
	}
	if n < len(c.entries) {
		c.entries, c.dirty, c.idle = c.entries[:n], true, false
	}
}

// truncateFromStart drops entries below start, moving the beginning of the one that holds start up to it.
func (c *epochCache) truncateFromStart(start int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(c.entries) && c.entries[n].start <= start {
		n++
	}
	if n == 0 || (n == 1 && c.entries[0].start == start) {
		return
	}
	c.entries = slices.Clone(c.entries[n-1:])
	c.entries[0].start = start
	c.dirty = true
}

// clear drops everything: an old format batch, which carries no epoch, was appended, or the log begins anew.
func (c *epochCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) > 0 {
		c.entries, c.dirty, c.idle = nil, true, false
	}
}

// flush writes the file when it is out of date.
func (c *epochCache) flush(fsys vfs.FS, name string, d durability) error {
	c.mu.Lock()
	if !c.dirty {
		c.mu.Unlock()
		return nil
	}
	c.dirty = false
	data := encodeEpochs(c.entries)
	c.mu.Unlock()
	if err := replaceFile(fsys, name, data, d); err != nil {
		c.mu.Lock()
		c.dirty = true
		c.mu.Unlock()
		return err
	}
	return nil
}

// stage writes the file under its temporary name, unsynced, when it is out of date; the caller syncs and renames it.
func (c *epochCache) stage(fsys vfs.FS, name string) (staged bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dirty {
		return false, nil
	}
	if err := writeFile(fsys, name+suffixTmp, encodeEpochs(c.entries), false); err != nil {
		return false, err
	}
	c.dirty = false
	return true, nil
}

// redo makes the next flush write the file whatever was written before.
func (c *epochCache) redo() {
	c.mu.Lock()
	c.dirty = true
	c.mu.Unlock()
}

// load reads the file; a missing one is empty.
func (c *epochCache) load(fsys vfs.FS, name string) error {
	data, err := readFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	entries, err := decodeEpochs(data)
	if err != nil {
		return &corruptFileError{name: name, err: err}
	}
	// Kafka adds entry by entry, which leaves only an ascending run.
	for _, e := range entries {
		c.assign(e.epoch, e.start, true)
	}
	c.dirty = false
	return nil
}
