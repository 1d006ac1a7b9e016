package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// OpKind names an operation in a Plan and for a Hook.
type OpKind string

// The operations. Reads of a file are OpRead, listings and stats OpReadDir and OpStat.
const (
	OpOpen     OpKind = "open"
	OpCreate   OpKind = "create"
	OpRename   OpKind = "rename"
	OpRemove   OpKind = "remove"
	OpMkdir    OpKind = "mkdir"
	OpReadDir  OpKind = "readdir"
	OpStat     OpKind = "stat"
	OpChmod    OpKind = "chmod"
	OpSyncDir  OpKind = "syncdir"
	OpSyncAll  OpKind = "syncall"
	OpLock     OpKind = "lock"
	OpRead     OpKind = "read"
	OpWrite    OpKind = "write"
	OpTruncate OpKind = "truncate"
	OpSync     OpKind = "sync"
)

// Changes says whether the operation changes what is on the disk or what would survive a crash.
func (k OpKind) Changes() bool {
	switch k {
	case OpOpen, OpReadDir, OpStat, OpRead, OpLock:
		return false
	}
	return true
}

// Op is an operation that is about to happen.
type Op struct {
	Kind OpKind
	Path string
}

// ShortWrite as a hook's error lets a write put N bytes on disk before it fails with Err.
type ShortWrite struct {
	N   int
	Err error
}

func (s *ShortWrite) Error() string { return fmt.Sprintf("short write of %d bytes: %v", s.N, s.Err) }
func (s *ShortWrite) Unwrap() error { return s.Err }

// Hook wraps a file system: before is called ahead of each operation, and the operation fails with what it returns. It may be
// called concurrently.
func Hook(inner FS, before func(Op) error) FS { return &hookFS{inner, before} }

type hookFS struct {
	FS
	before func(Op) error
}

func (h *hookFS) file(f File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &hookFile{f, h}, nil
}

func (h *hookFS) Open(name string) (File, error) {
	if err := h.before(Op{OpOpen, name}); err != nil {
		return nil, pathError("open", name, err)
	}
	return h.file(h.FS.Open(name))
}

func (h *hookFS) OpenReadWrite(name string) (File, error) {
	if err := h.before(Op{OpOpen, name}); err != nil {
		return nil, pathError("open", name, err)
	}
	return h.file(h.FS.OpenReadWrite(name))
}

func (h *hookFS) Create(name string) (File, error) {
	if err := h.before(Op{OpCreate, name}); err != nil {
		return nil, pathError("create", name, err)
	}
	return h.file(h.FS.Create(name))
}

func (h *hookFS) do(k OpKind, name string, f func() error) error {
	if err := h.before(Op{k, name}); err != nil {
		return pathError(string(k), name, err)
	}
	return f()
}

func (h *hookFS) Rename(o, n string) error {
	return h.do(OpRename, o, func() error { return h.FS.Rename(o, n) })
}
func (h *hookFS) Remove(name string) error {
	return h.do(OpRemove, name, func() error { return h.FS.Remove(name) })
}
func (h *hookFS) RemoveAll(name string) error {
	return h.do(OpRemove, name, func() error { return h.FS.RemoveAll(name) })
}
func (h *hookFS) MkdirAll(name string) error {
	return h.do(OpMkdir, name, func() error { return h.FS.MkdirAll(name) })
}
func (h *hookFS) Chmod(name string, m fs.FileMode) error {
	return h.do(OpChmod, name, func() error { return h.FS.Chmod(name, m) })
}
func (h *hookFS) Chtimes(name string, t time.Time) error {
	return h.do(OpChmod, name, func() error { return h.FS.Chtimes(name, t) })
}
func (h *hookFS) SyncDir(name string) error {
	return h.do(OpSyncDir, name, func() error { return h.FS.SyncDir(name) })
}
func (h *hookFS) SyncAll(name string) error {
	return h.do(OpSyncAll, name, func() error { return h.FS.SyncAll(name) })
}

func (h *hookFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := h.before(Op{OpReadDir, name}); err != nil {
		return nil, pathError("readdir", name, err)
	}
	return h.FS.ReadDir(name)
}

func (h *hookFS) Stat(name string) (fs.FileInfo, error) {
	if err := h.before(Op{OpStat, name}); err != nil {
		return nil, pathError("stat", name, err)
	}
	return h.FS.Stat(name)
}

func (h *hookFS) Lock(name string) (io.Closer, error) {
	if err := h.before(Op{OpLock, name}); err != nil {
		return nil, pathError("lock", name, err)
	}
	return h.FS.Lock(name)
}

type hookFile struct {
	File
	h *hookFS
}

func (f *hookFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.h.before(Op{OpRead, f.Name()}); err != nil {
		return 0, pathError("read", f.Name(), err)
	}
	return f.File.ReadAt(p, off)
}

func (f *hookFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.h.before(Op{OpWrite, f.Name()})
	if s, ok := errors.AsType[*ShortWrite](err); ok {
		n, _ := f.File.WriteAt(p[:min(s.N, len(p))], off)
		return n, pathError("write", f.Name(), s.Err)
	}
	if err != nil {
		return 0, pathError("write", f.Name(), err)
	}
	return f.File.WriteAt(p, off)
}

func (f *hookFile) Truncate(size int64) error {
	return f.h.do(OpTruncate, f.Name(), func() error { return f.File.Truncate(size) })
}

func (f *hookFile) Sync() error {
	return f.h.do(OpSync, f.Name(), func() error { return f.File.Sync() })
}

// Plan says which operations fail. Its text form has one rule a line,
//
//	OP GLOB WHEN ERROR
//	write */orders-0/*.log 3 EIO          the third write to such a file
//	write *.log 2.. ENOSPC                the second and all later ones
//	write *.log 5 short 100 ENOSPC        100 bytes of the fifth are written
//	sync **  1..4 EIO                     the first four syncs of anything
//
// OP is an operation's name or * for any that changes something. GLOB is matched against the whole path or, when it has no
// slash, against the last part; ** matches everything. WHEN counts the operations that the rule matches, from 1. Empty lines
// and those that begin with # are skipped.
type Plan struct {
	mu    sync.Mutex // guards the counts in rules
	rules []*planRule
}

type planRule struct {
	text     string
	op       OpKind
	glob     string
	from, to int
	err      error
	seen     int
}

var errnos = map[string]error{
	"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC, "EDQUOT": syscall.EDQUOT, "EROFS": syscall.EROFS, "EMFILE": syscall.EMFILE,
	"EACCES": syscall.EACCES, "ENOENT": syscall.ENOENT,
}

// ParsePlan reads the text form.
func ParsePlan(text string) (*Plan, error) {
	p := &Plan{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		r, err := parseRule(strings.Fields(line))
		if err != nil {
			return nil, fmt.Errorf("plan line %d: %q: %w", i+1, line, err)
		}
		r.text = line
		p.rules = append(p.rules, r)
	}
	return p, nil
}

func parseRule(f []string) (*planRule, error) {
	if len(f) < 4 {
		return nil, errors.New("want OP GLOB WHEN ERROR")
	}
	r := &planRule{op: OpKind(f[0]), glob: f[1]}
	if _, err := path.Match(r.glob, ""); err != nil {
		return nil, err
	}
	from, to, isRange := strings.Cut(f[2], "..")
	var err error
	if r.from, err = strconv.Atoi(from); err != nil || r.from < 1 {
		return nil, fmt.Errorf("WHEN %q doesn't begin with a number from 1 on", f[2])
	}
	switch {
	case !isRange:
		r.to = r.from
	case to == "":
		r.to = 1 << 62
	default:
		if r.to, err = strconv.Atoi(to); err != nil || r.to < r.from {
			return nil, fmt.Errorf("WHEN %q doesn't end in a number that is no smaller", f[2])
		}
	}
	rest := f[3:]
	short := -1
	if rest[0] == "short" {
		if len(rest) != 3 {
			return nil, errors.New("want short BYTES ERROR")
		}
		if short, err = strconv.Atoi(rest[1]); err != nil || short < 0 {
			return nil, fmt.Errorf("%q is no number of bytes", rest[1])
		}
		rest = rest[2:]
	}
	if len(rest) != 1 || errnos[rest[0]] == nil {
		return nil, fmt.Errorf("%q is no error that is known", strings.Join(rest, " "))
	}
	r.err = errnos[rest[0]]
	if short >= 0 {
		r.err = &ShortWrite{N: short, Err: r.err}
	}
	return r, nil
}

// String is the text form.
func (p *Plan) String() string {
	var b strings.Builder
	for _, r := range p.rules {
		b.WriteString(r.text)
		b.WriteByte('\n')
	}
	return b.String()
}

func (r *planRule) matches(op Op) bool {
	if r.op != op.Kind && (r.op != "*" || !op.Kind.Changes()) {
		return false
	}
	if r.glob == "**" {
		return true
	}
	name := op.Path
	if !strings.Contains(r.glob, "/") {
		name = path.Base(name)
	}
	ok, _ := path.Match(r.glob, name)
	return ok
}

// Before is the hook: the error of the first rule that says that op fails.
func (p *Plan) Before(op Op) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	for _, r := range p.rules {
		if !r.matches(op) {
			continue
		}
		r.seen++
		if err == nil && r.seen >= r.from && r.seen <= r.to {
			err = r.err
		}
	}
	return err
}

// Inject wraps a file system so that what the plan says fails.
func Inject(inner FS, p *Plan) FS { return Hook(inner, p.Before) }
