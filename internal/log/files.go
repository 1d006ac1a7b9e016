package log

import (
	"fmt"
	"sync"
	"sync/atomic"

	"gregor/internal/vfs"
)

// fileCache holds the segment files that are open, at most max of them unless more are in use at once. Files are opened when
// they are needed and closed, least recently used first (roughly: one sweeping hand, one second chance), to make room.
//
// Lock order: cachedFile.mu, then fileCache.mu; eviction goes the other way round and only tries.
type fileCache struct {
	fs  vfs.FS
	max int

	mu   sync.Mutex // guards ring, hand
	ring []*cachedFile
	hand int

	blocksMu sync.Mutex // guards blocks, oldest
	blocks   []*entryFile
	oldest   int
}

// maxBlocks is how many index pages are kept in memory altogether.
const maxBlocks = 1024

// keepBlock notes that x keeps a page and makes another index forget its own when there are many. x.mu is held.
func (fc *fileCache) keepBlock(x *entryFile) {
	fc.blocksMu.Lock()
	defer fc.blocksMu.Unlock()
	if len(fc.blocks) < maxBlocks {
		fc.blocks = append(fc.blocks, x)
		return
	}
	for range maxBlocks {
		at := fc.oldest % maxBlocks
		fc.oldest++
		if fc.blocks[at].dropBlock() {
			fc.blocks[at] = x
			return
		}
	}
}

func newFileCache(fs vfs.FS, max int) *fileCache {
	if max <= 0 {
		max = 10000
	}
	return &fileCache{fs: fs, max: max}
}

// dirPath is where a log's directory is at the moment: it moves when the replica is deleted, found stray or promoted.
type dirPath struct{ p atomic.Pointer[string] }

func (d *dirPath) get() string  { return *d.p.Load() }
func (d *dirPath) set(s string) { d.p.Store(&s) }

// fileName names a segment file without building the path before it's needed.
type fileName struct {
	dir     *dirPath
	base    int64
	suffix  string
	transit string // .cleaned or .swap behind the suffix while the cleaner writes the segment
}

func (n fileName) path() string {
	return n.dir.get() + "/" + offsetName(n.base) + n.suffix + n.transit
}

// cachedFile is one file that the cache may hold open. Its zero value is a file that isn't open.
type cachedFile struct {
	mu   sync.Mutex // guards all below
	f    vfs.File
	refs int32
	slot int32 // 1 + place in the cache's ring; 0 when not there
	used bool
	dead bool // no more uses will begin; close with the last one
}

// acquire returns the open file and counts a use, which release ends.
func (c *cachedFile) acquire(fc *fileCache, name fileName) (vfs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.f == nil {
		if c.dead {
			return nil, fmt.Errorf("open a deleted segment file: %w", errClosed)
		}
		f, err := fc.open(name.path())
		if err != nil {
			return nil, err
		}
		fc.adopt(c, f)
	}
	c.refs++
	c.used = true
	return c.f, nil
}

// create makes (or empties) the file and keeps it open in the cache.
func (c *cachedFile) create(fc *fileCache, path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := fc.retry(func() (vfs.File, error) { return fc.fs.Create(path) })
	if err != nil {
		return err
	}
	if c.f != nil {
		fc.drop(c)
	}
	fc.adopt(c, f)
	c.used = true
	return nil
}

func (c *cachedFile) release(fc *fileCache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refs--
	if c.refs == 0 && c.dead && c.f != nil {
		fc.drop(c)
	}
}

// close closes the file as soon as nobody uses it. With forget it will not be opened again.
func (c *cachedFile) close(fc *fileCache, forget bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if forget {
		c.dead = true
	}
	if c.f != nil && c.refs == 0 {
		fc.drop(c)
	}
}

func (fc *fileCache) open(path string) (vfs.File, error) {
	return fc.retry(func() (vfs.File, error) { return fc.fs.OpenReadWrite(path) })
}

// retry runs open again after making room when the process is out of descriptors.
func (fc *fileCache) retry(open func() (vfs.File, error)) (vfs.File, error) {
	f, err := open()
	if isOutOfFiles(err) {
		fc.mu.Lock()
		fc.evictLocked(len(fc.ring) / 2)
		fc.mu.Unlock()
		f, err = open()
	}
	return f, err
}

// adopt registers the open file f of c. c.mu is held.
func (fc *fileCache) adopt(c *cachedFile, f vfs.File) {
	c.f = f
	fc.mu.Lock()
	defer fc.mu.Unlock()
	if len(fc.ring) >= fc.max {
		fc.evictLocked(fc.max - 1)
	}
	fc.ring = append(fc.ring, c)
	c.slot = int32(len(fc.ring))
}

// drop closes c's file. c.mu is held.
func (fc *fileCache) drop(c *cachedFile) {
	fc.mu.Lock()
	fc.removeLocked(c)
	fc.mu.Unlock()
	c.f.Close() // what matters was synced; a close can report nothing that a sync has not
	c.f = nil
}

func (fc *fileCache) removeLocked(c *cachedFile) {
	at, last := int(c.slot)-1, len(fc.ring)-1
	fc.ring[at] = fc.ring[last]
	fc.ring[at].slot = int32(at + 1)
	fc.ring[last] = nil
	fc.ring = fc.ring[:last]
	c.slot = 0
}

// evictLocked closes unused files until at most keep are open or two rounds of the hand found nothing more.
func (fc *fileCache) evictLocked(keep int) {
	for tries := 2*len(fc.ring) + 1; tries > 0 && len(fc.ring) > keep; tries-- {
		if fc.hand >= len(fc.ring) {
			fc.hand = 0
		}
		c := fc.ring[fc.hand]
		if !c.mu.TryLock() {
			fc.hand++
			continue
		}
		switch {
		case c.refs > 0:
			fc.hand++
		case c.used:
			c.used = false
			fc.hand++
		default:
			fc.removeLocked(c)
			c.f.Close()
			c.f = nil
		}
		c.mu.Unlock()
	}
}

// openFiles is how many files are open, for metrics and tests.
func (fc *fileCache) openFiles() int {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	return len(fc.ring)
}
