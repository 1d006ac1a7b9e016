package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	blockSize  = 4096
	sectorSize = 512
)

// block is a piece of a file. It is never changed once another image may share it.
type block [blockSize]byte

// image is a file's contents: blocks (nil is zeros) and length.
type image struct {
	blocks []*block
	size   int64
}

// Mem is a file system in memory that knows what would survive a power failure: beside the current state it keeps, for each
// file, the contents as of its last Sync, and for each directory the entries as of the last SyncDir and the changes since, in
// order. CrashClone makes "the disk afterwards" out of that.
//
// A rename is one change: after a crash it has happened or not. Changes of one directory survive in order, those of different
// directories independently. The zero value isn't usable; NewMem makes one.
type Mem struct {
	mu       sync.Mutex // guards everything below and all nodes
	root     *node
	capacity int64 // bytes that files may have together; negative is no limit
	used     int64
	now      func() time.Time
	locks    map[*node]bool
}

// node is a file or directory.
type node struct {
	dir     bool
	mode    fs.FileMode
	mtime   time.Time
	entries map[string]*node // of a directory, now
	synced  map[string]*node // as of the last SyncDir
	pending []change         // since then
	cur     image            // of a file, now
	durable image            // as of the last Sync
	nlink   int              // entries that lead here, to give the space back
	opens   int
}

// change is one change of a directory's entries.
type change struct {
	remove string // entry that goes; "" for none
	add    string // entry that leads to node afterwards; "" for none
	node   *node
}

func (c change) apply(entries map[string]*node) {
	if c.remove != "" {
		delete(entries, c.remove)
	}
	if c.add != "" {
		entries[c.add] = c.node
	}
}

// NewMem makes an empty file system without a limit.
func NewMem() *Mem {
	return &Mem{root: newDir(), capacity: -1, now: time.Now, locks: make(map[*node]bool)}
}

func newDir() *node {
	return &node{dir: true, mode: fs.ModeDir | 0o755, entries: make(map[string]*node), synced: make(map[string]*node), nlink: 1}
}

// SetClock makes modification times come from now.
func (m *Mem) SetClock(now func() time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = now
}

// SetCapacity limits what all files may hold together, in bytes; negative lifts the limit. A write that doesn't fit writes what
// does and fails with ENOSPC.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// Used is how many bytes the files hold.
func (m *Mem) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// CrashClone is the disk after a power failure at this moment. What was synced is there. Of the rest each directory change,
// block and length survives with probability survive: 0 leaves just what was synced, 1 all of it (the process died and the
// machine lived on). A block that survives may be torn at a sector boundary. The original is left alone.
func (m *Mem) CrashClone(rng *rand.Rand, survive float64) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Mem{capacity: m.capacity, now: m.now, locks: make(map[*node]bool)}
	seen := make(map[*node]*node)
	c.root = m.crash(m.root, rng, survive, seen, c)
	return c
}

func (m *Mem) crash(n *node, rng *rand.Rand, survive float64, seen map[*node]*node, to *Mem) *node {
	if c := seen[n]; c != nil {
		c.nlink++
		return c
	}
	c := &node{dir: n.dir, mode: n.mode, mtime: n.mtime, nlink: 1}
	seen[n] = c
	if !n.dir {
		c.cur = crashImage(n.durable, n.cur, rng, survive)
		c.durable = c.cur.share()
		to.used += c.cur.size
		return c
	}
	entries := make(map[string]*node, len(n.synced))
	for name, e := range n.synced {
		entries[name] = e
	}
	for _, ch := range n.pending {
		if survive < 1 && rng.Float64() >= survive {
			break // what comes later in this directory is lost too
		}
		ch.apply(entries)
	}
	c.entries = make(map[string]*node, len(entries))
	c.synced = make(map[string]*node, len(entries))
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	sort.Strings(names) // the generator must be drawn from in a fixed order
	for _, name := range names {
		e := m.crash(entries[name], rng, survive, seen, to)
		c.entries[name], c.synced[name] = e, e
	}
	return c
}

func crashImage(durable, cur image, rng *rand.Rand, survive float64) image {
	if survive >= 1 {
		out := cur.share()
		for i, b := range out.blocks {
			out.blocks[i] = b.apart(durable.at(i))
		}
		return out
	}
	out := image{size: durable.size}
	if cur.size != durable.size && rng.Float64() < survive {
		out.size = cur.size
		if cur.size > durable.size && rng.IntN(2) == 0 {
			out.size = durable.size + rng.Int64N(cur.size-durable.size+1)
		}
	}
	n := int((out.size + blockSize - 1) / blockSize)
	out.blocks = make([]*block, n)
	for i := range out.blocks {
		was, is := durable.at(i), cur.at(i)
		switch {
		case was == is:
			out.blocks[i] = is
		case rng.Float64() >= survive:
			out.blocks[i] = was
		case rng.IntN(4) > 0:
			out.blocks[i] = is.apart(was)
		default:
			torn := new(block)
			if was != nil {
				*torn = *was
			}
			if is != nil {
				k := rng.IntN(blockSize/sectorSize + 1)
				copy(torn[:k*sectorSize], is[:])
			}
			out.blocks[i] = torn
		}
	}
	out.clearTail()
	return out
}

// apart is a copy of the block unless it is the durable one: the file goes on writing to those that aren't.
func (b *block) apart(durable *block) *block {
	if b == nil || b == durable {
		return b
	}
	c := *b
	return &c
}

func (i *image) at(k int) *block {
	if k < len(i.blocks) {
		return i.blocks[k]
	}
	return nil
}

// share copies the image; the blocks are shared and from now on copied before they are written.
func (i *image) share() image { return image{blocks: slices.Clone(i.blocks), size: i.size} }

// clearTail zeroes what lies behind size in the last block.
func (i *image) clearTail() {
	n := int((i.size + blockSize - 1) / blockSize)
	if n < len(i.blocks) {
		i.blocks = i.blocks[:n]
	}
	if r := i.size % blockSize; r != 0 && n <= len(i.blocks) && n > 0 && i.blocks[n-1] != nil {
		b := new(block)
		copy(b[:r], i.blocks[n-1][:r])
		i.blocks[n-1] = b
	}
}

func (i *image) readAt(p []byte, off int64) int {
	if off >= i.size {
		return 0
	}
	p = p[:min(int64(len(p)), i.size-off)]
	done := 0
	for done < len(p) {
		k, in := int((off+int64(done))/blockSize), int((off+int64(done))%blockSize)
		n := min(blockSize-in, len(p)-done)
		if b := i.at(k); b != nil {
			copy(p[done:done+n], b[in:])
		} else {
			clear(p[done : done+n])
		}
		done += n
	}
	return done
}

// writeAt writes p; blocks that durable shares are copied first.
func (i *image) writeAt(p []byte, off int64, durable *image) {
	end := off + int64(len(p))
	if need := int((end + blockSize - 1) / blockSize); need > len(i.blocks) {
		i.blocks = append(i.blocks, make([]*block, need-len(i.blocks))...)
	}
	for done := 0; done < len(p); {
		k, in := int((off+int64(done))/blockSize), int((off+int64(done))%blockSize)
		n := min(blockSize-in, len(p)-done)
		b := i.blocks[k]
		if b == nil || b == durable.at(k) {
			nb := new(block)
			if b != nil {
				*nb = *b
			}
			b = nb
			i.blocks[k] = b
		}
		copy(b[in:], p[done:done+n])
		done += n
	}
	i.size = max(i.size, end)
}

func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

func split(name string) []string {
	return strings.FieldsFunc(path.Clean("/"+name), func(r rune) bool { return r == '/' })
}

// walk finds a node. mu is held.
func (m *Mem) walk(name string) (*node, error) {
	n := m.root
	for _, part := range split(name) {
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		if n = n.entries[part]; n == nil {
			return nil, fs.ErrNotExist
		}
	}
	return n, nil
}

func (m *Mem) parent(name string) (*node, string, error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", fs.ErrInvalid
	}
	d, err := m.walk(path.Dir(path.Clean("/" + name)))
	if err != nil {
		return nil, "", err
	}
	if !d.dir {
		return nil, "", syscall.ENOTDIR
	}
	return d, parts[len(parts)-1], nil
}

func (d *node) change(c change) {
	c.apply(d.entries)
	d.pending = append(d.pending, c)
}

func (m *Mem) open(op, name string, write bool) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.walk(name)
	if err == nil && n.dir {
		err = syscall.EISDIR
	}
	if err == nil && write && n.mode&0o200 == 0 {
		err = fs.ErrPermission
	}
	if err != nil {
		return nil, pathError(op, name, err)
	}
	n.opens++
	return &memFile{m: m, n: n, name: name, write: write}, nil
}

// Open implements FS.
func (m *Mem) Open(name string) (File, error) { return m.open("open", name, false) }

// OpenReadWrite implements FS.
func (m *Mem) OpenReadWrite(name string) (File, error) { return m.open("open", name, true) }

// Create implements FS.
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.parent(name)
	if err != nil {
		return nil, pathError("create", name, err)
	}
	n := d.entries[base]
	switch {
	case n == nil:
		if m.capacity >= 0 && m.used >= m.capacity {
			return nil, pathError("create", name, syscall.ENOSPC)
		}
		n = &node{mode: 0o644, mtime: m.now(), nlink: 1}
		d.change(change{add: base, node: n})
	case n.dir:
		return nil, pathError("create", name, syscall.EISDIR)
	case n.mode&0o200 == 0:
		return nil, pathError("create", name, fs.ErrPermission)
	default:
		m.used -= n.cur.size
		n.cur = image{}
		n.mtime = m.now()
	}
	n.opens++
	return &memFile{m: m, n: n, name: name, write: true}, nil
}

// unlinked gives the space of a node back when nothing leads to it.
func (m *Mem) unlinked(n *node) {
	n.nlink--
	if n.nlink == 0 && !n.dir && n.opens == 0 {
		m.used -= n.cur.size
	}
}

// Rename implements FS.
func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	od, ob, err := m.parent(oldname)
	if err != nil {
		return pathError("rename", oldname, err)
	}
	nd, nb, err := m.parent(newname)
	if err != nil {
		return pathError("rename", newname, err)
	}
	n := od.entries[ob]
	if n == nil {
		return pathError("rename", oldname, fs.ErrNotExist)
	}
	if old := nd.entries[nb]; old != nil && old != n {
		if old.dir && (!n.dir || len(old.entries) > 0) {
			return pathError("rename", newname, syscall.ENOTEMPTY)
		}
		m.unlinked(old)
	}
	if od == nd {
		od.change(change{remove: ob, add: nb, node: n})
		return nil
	}
	nd.change(change{add: nb, node: n})
	od.change(change{remove: ob})
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.parent(name)
	if err != nil {
		return pathError("remove", name, err)
	}
	n := d.entries[base]
	if n == nil {
		return pathError("remove", name, fs.ErrNotExist)
	}
	if n.dir && len(n.entries) > 0 {
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	d.change(change{remove: base})
	m.unlinked(n)
	return nil
}

// RemoveAll implements FS.
func (m *Mem) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.parent(name)
	if err != nil || d.entries[base] == nil {
		return nil
	}
	m.removeTree(d, base)
	return nil
}

func (m *Mem) removeTree(d *node, base string) {
	n := d.entries[base]
	if n.dir {
		for name := range n.entries {
			m.removeTree(n, name)
		}
	}
	d.change(change{remove: base})
	m.unlinked(n)
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.root
	for _, part := range split(name) {
		if !n.dir {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		next := n.entries[part]
		if next == nil {
			next = newDir()
			next.mtime = m.now()
			n.change(change{add: part, node: next})
		}
		n = next
	}
	if !n.dir {
		return pathError("mkdir", name, syscall.ENOTDIR)
	}
	return nil
}

// ReadDir implements FS.
func (m *Mem) ReadDir(name string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.walk(name)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	out := make([]fs.DirEntry, 0, len(n.entries))
	for base, e := range n.entries {
		out = append(out, fs.FileInfoToDirEntry(e.info(base)))
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name() < out[j].Name() })
	return out, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.walk(name)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return n.info(path.Base(name)), nil
}

// Chmod implements FS.
func (m *Mem) Chmod(name string, mode fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.walk(name)
	if err != nil {
		return pathError("chmod", name, err)
	}
	n.mode = n.mode&fs.ModeDir | mode.Perm()
	return nil
}

// Chtimes implements FS.
func (m *Mem) Chtimes(name string, mtime time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.walk(name)
	if err != nil {
		return pathError("chtimes", name, err)
	}
	n.mtime = mtime
	return nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.walk(name)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return pathError("syncdir", name, err)
	}
	n.syncEntries()
	return nil
}

func (n *node) syncEntries() {
	for _, c := range n.pending {
		c.apply(n.synced)
	}
	n.pending = nil
}

// SyncAll implements FS.
func (m *Mem) SyncAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.walk(name); err != nil {
		return pathError("syncall", name, err)
	}
	var visit func(n *node)
	visit = func(n *node) {
		if !n.dir {
			n.durable = n.cur.share()
			return
		}
		n.syncEntries()
		for _, e := range n.entries {
			visit(e)
		}
	}
	visit(m.root)
	return nil
}

// Lock implements FS; the lock is this Mem's, and a CrashClone has none.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.parent(name)
	if err != nil {
		return nil, pathError("lock", name, err)
	}
	n := d.entries[base]
	if n == nil {
		n = &node{mode: 0o644, mtime: m.now(), nlink: 1}
		d.change(change{add: base, node: n})
	}
	if m.locks[n] {
		return nil, fmt.Errorf("lock %s: %w", name, ErrLocked)
	}
	m.locks[n] = true
	return memLock{m, n}, nil
}

type memLock struct {
	m *Mem
	n *node
}

func (l memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locks, l.n)
	return nil
}

// Free implements FS.
func (m *Mem) Free(string) (free, total int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	total = m.capacity
	if total < 0 {
		total = 1 << 40
	}
	return max(total-m.used, 0), total, nil
}

func (n *node) info(name string) fs.FileInfo {
	return memInfo{name: name, size: n.cur.size, mode: n.mode, mtime: n.mtime}
}

type memInfo struct {
	name  string
	size  int64
	mode  fs.FileMode
	mtime time.Time
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) Mode() fs.FileMode  { return i.mode }
func (i memInfo) ModTime() time.Time { return i.mtime }
func (i memInfo) IsDir() bool        { return i.mode.IsDir() }
func (i memInfo) Sys() any           { return nil }

// memFile is an open file of a Mem.
type memFile struct {
	m      *Mem
	n      *node
	name   string
	write  bool
	closed bool // guarded by m.mu
}

func (f *memFile) Name() string        { return f.name }
func (f *memFile) Fd() (uintptr, bool) { return 0, false }

func (f *memFile) Reserve(from, n int64) {}

func (f *memFile) use(op string, write bool) error {
	switch {
	case f.closed:
		return pathError(op, f.name, fs.ErrClosed)
	case write && !f.write:
		return pathError(op, f.name, fs.ErrPermission)
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.use("read", false); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("read", f.name, fs.ErrInvalid)
	}
	n := f.n.cur.readAt(p, off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.use("write", true); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("write", f.name, fs.ErrInvalid)
	}
	n := len(p)
	if grow := off + int64(n) - f.n.cur.size; grow > 0 && f.m.capacity >= 0 && f.m.used+grow > f.m.capacity {
		n = int(max(int64(n)-(f.m.used+grow-f.m.capacity), 0))
	}
	before := f.n.cur.size
	if n > 0 {
		f.n.cur.writeAt(p[:n], off, &f.n.durable)
		f.m.used += f.n.cur.size - before
		f.n.mtime = f.m.now()
	}
	if n < len(p) {
		return n, pathError("write", f.name, syscall.ENOSPC)
	}
	return n, nil
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.use("stat", false); err != nil {
		return 0, err
	}
	return f.n.cur.size, nil
}

func (f *memFile) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.use("truncate", true); err != nil {
		return err
	}
	if size < 0 {
		return pathError("truncate", f.name, fs.ErrInvalid)
	}
	f.m.used += size - f.n.cur.size
	f.n.cur.size = size
	f.n.cur.clearTail()
	f.n.mtime = f.m.now()
	return nil
}

func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.use("sync", false); err != nil {
		return err
	}
	f.n.durable = f.n.cur.share()
	return nil
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return pathError("close", f.name, fs.ErrClosed)
	}
	f.closed = true
	f.n.opens--
	if f.n.opens == 0 && f.n.nlink == 0 {
		f.m.used -= f.n.cur.size
	}
	return nil
}
