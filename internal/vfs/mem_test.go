package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

func write(t testing.TB, fsys FS, name, data string, sync bool) {
	t.Helper()
	f, err := fsys.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(data), 0); err != nil {
		t.Fatal(err)
	}
	if sync {
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, fsys FS, name string) string {
	t.Helper()
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "-"
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, _ := f.Size()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return string(b)
}

func TestMemCrashKeepsWhatWasSynced(t *testing.T) {
	m := NewMem()
	if err := m.MkdirAll("/d"); err != nil {
		t.Fatal(err)
	}
	write(t, m, "/d/a", "one", true)
	if err := errors.Join(m.SyncDir("/"), m.SyncDir("/d")); err != nil {
		t.Fatal(err)
	}
	write(t, m, "/d/b", "two", true) // its entry isn't synced
	f, _ := m.OpenReadWrite("/d/a")
	f.WriteAt([]byte("ONEMORE"), 0)
	rng := rand.New(rand.NewPCG(1, 1))
	c := m.CrashClone(rng, 0)
	if a, b := read(t, c, "/d/a"), read(t, c, "/d/b"); a != "one" || b != "-" {
		t.Errorf("after a crash that loses everything: a = %q, b = %q", a, b)
	}
	c = m.CrashClone(rng, 1)
	if a, b := read(t, c, "/d/a"), read(t, c, "/d/b"); a != "ONEMORE" || b != "two" {
		t.Errorf("after the process died: a = %q, b = %q", a, b)
	}
	// A clone is on its own.
	f.WriteAt([]byte("x"), 0)
	if a := read(t, c, "/d/a"); a != "ONEMORE" {
		t.Errorf("the clone follows the original: %q", a)
	}
}

func TestMemRenameIsAtomic(t *testing.T) {
	for seed := range uint64(200) {
		m := NewMem()
		m.MkdirAll("/d")
		m.SyncDir("/")
		write(t, m, "/d/f", "old", true)
		m.SyncDir("/d")
		write(t, m, "/d/f.tmp", "new", true)
		if err := m.Rename("/d/f.tmp", "/d/f"); err != nil {
			t.Fatal(err)
		}
		c := m.CrashClone(rand.New(rand.NewPCG(seed, 0)), 0.5)
		if got := read(t, c, "/d/f"); got != "old" && got != "new" {
			t.Fatalf("seed %d: %q", seed, got)
		}
	}
}

func TestMemFullDisk(t *testing.T) {
	m := NewMem()
	m.SetCapacity(10)
	f, err := m.Create("/f")
	if err != nil {
		t.Fatal(err)
	}
	n, err := f.WriteAt([]byte("0123456789abc"), 0)
	if n != 10 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("wrote %d: %v", n, err)
	}
	if err := f.Truncate(4); err != nil {
		t.Fatal(err)
	}
	if n, err := f.WriteAt([]byte("abc"), 4); n != 3 || err != nil {
		t.Fatalf("wrote %d: %v", n, err)
	}
	m.Remove("/f")
	if m.Used() != 7 {
		t.Errorf("an open file's space was given back: %d", m.Used())
	}
	f.Close()
	if m.Used() != 0 {
		t.Errorf("%d bytes are still used", m.Used())
	}
}

func TestMemLock(t *testing.T) {
	m := NewMem()
	l, err := m.Lock("/.lock")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Lock("/.lock"); !errors.Is(err, ErrLocked) {
		t.Errorf("second lock: %v", err)
	}
	l.Close()
	if _, err := m.Lock("/.lock"); err != nil {
		t.Errorf("lock after close: %v", err)
	}
}

// A file of Mem behaves as a byte slice does, and a crash that loses all leaves the slice as of the last sync.
func TestMemFileProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMem()
		f, err := m.Create("/f")
		if err != nil {
			t.Fatal(err)
		}
		m.SyncDir("/")
		var model, synced []byte
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				off := rapid.IntRange(0, 20000).Draw(t, "off")
				p := bytes.Repeat([]byte{byte(rapid.IntRange(1, 255).Draw(t, "byte"))}, rapid.IntRange(0, 9000).Draw(t, "len"))
				f.WriteAt(p, int64(off))
				if len(p) == 0 {
					return
				}
				if n := off + len(p); n > len(model) {
					model = append(model, make([]byte, n-len(model))...)
				}
				copy(model[off:], p)
			},
			"truncate": func(t *rapid.T) {
				n := rapid.IntRange(0, 25000).Draw(t, "size")
				f.Truncate(int64(n))
				if n <= len(model) {
					model = model[:n]
				} else {
					model = append(model, make([]byte, n-len(model))...)
				}
				model = slices.Clone(model)
			},
			"sync": func(t *rapid.T) {
				f.Sync()
				synced = slices.Clone(model)
			},
			"": func(t *rapid.T) {
				got := make([]byte, len(model)+1)
				n, _ := f.ReadAt(got, 0)
				if !bytes.Equal(got[:n], model) {
					t.Fatalf("file has %d bytes, model %d, or they differ", n, len(model))
				}
				rng := rand.New(rand.NewPCG(1, 1))
				c := m.CrashClone(rng, 0)
				cf, err := c.Open("/f")
				if err != nil {
					t.Fatal(err)
				}
				got = make([]byte, len(synced)+1)
				n, _ = cf.ReadAt(got, 0)
				if !bytes.Equal(got[:n], synced) {
					t.Fatalf("after a crash %d bytes, want %d, or they differ", n, len(synced))
				}
			},
		})
	})
}

func TestPlan(t *testing.T) {
	p, err := ParsePlan(`
		# the disk goes bad
		write *.log 2 short 3 ENOSPC
		sync ** 2.. EIO
	`)
	if err != nil {
		t.Fatal(err)
	}
	m := Inject(NewMem(), p)
	f, err := m.Create("/a.log")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("hello"), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := f.WriteAt([]byte("world"), 5); n != 3 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("second write: %d %v", n, err)
	}
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	for range 3 {
		if err := f.Sync(); !errors.Is(err, syscall.EIO) {
			t.Errorf("later sync: %v", err)
		}
	}
	if got := read(t, m, "/a.log"); got != "hellowor" {
		t.Errorf("contents %q", got)
	}
	for _, bad := range []string{"write", "write * 0 EIO", "write * 3..1 EIO", "write * 1 EWHAT", "write * 1 short EIO", "write [ 1 EIO"} {
		if _, err := ParsePlan(bad); err == nil {
			t.Errorf("plan %q was accepted", bad)
		}
	}
	again, err := ParsePlan(p.String())
	if err != nil || again.String() != p.String() {
		t.Errorf("the text form doesn't round-trip: %v", err)
	}
}

func FuzzParsePlan(f *testing.F) {
	f.Add("write *.log 2 short 3 ENOSPC\nsync ** 2.. EIO")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePlan(text)
		if err != nil {
			return
		}
		if _, err := ParsePlan(p.String()); err != nil {
			t.Errorf("%q: %v", p.String(), err)
		}
	})
}
