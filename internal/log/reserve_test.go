package log

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gregor/internal/vfs"
)

// reserving notes what is asked for.
type reserving struct {
	vfs.File
	t    *testing.T
	end  int64 // of what was asked for
	most int64
	n    int
}

func (f *reserving) Reserve(from, n int64) {
	if f.n++; f.n > 1 && from != f.end {
		f.t.Errorf("room asked for from %d, after up to %d", from, f.end)
	}
	f.end, f.most = from+n, max(f.most, n)
}

// A small segment asks for no room; a larger one for a part of what it has, seldom and without holes.
func TestReserve(t *testing.T) {
	const step = 64<<10 + 13
	s, f := newSegment(nil, 0), &reserving{t: t}
	for pos := int64(0); pos < 1<<30; pos += step {
		s.size.Store(pos)
		s.reserve(f, pos+step)
		switch {
		case pos+step < reserveFrom && f.n > 0:
			t.Fatalf("room asked for at %d", pos)
		case pos+step >= reserveFrom && f.end < pos+step:
			t.Fatalf("no room asked for the append that ends at %d, only up to %d", pos+step, f.end)
		case f.end > pos+step+(pos+step)/4+step:
			t.Fatalf("room up to %d for %d", f.end, pos+step)
		}
	}
	if f.n > 90 || f.most > reserveMost+step {
		t.Errorf("asked %d times, for %d at most", f.n, f.most)
	}
}

// What was asked for in vain is given back when a segment is rolled and when the log is closed.
func TestReserveGivesBack(t *testing.T) {
	w := osWorld(t)
	w.cfg.SegmentBytes = 9 << 20
	w.open()
	l := w.log("a")
	value := strings.Repeat("v", 500_000)
	for range 30 {
		mustAppend(t, l, batch(1, value))
	}
	w.close()
	files, err := filepath.Glob(filepath.Join(w.dirs[0], "a-0", "*.log"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, name := range files {
		if size, used := taken(t, name); used > size+64<<10 {
			t.Errorf("%s has %d bytes and takes %d", name, size, used)
		}
	}
}

// taken is how large a file is and what it takes on the disk.
func taken(t *testing.T, name string) (size, used int64) {
	t.Helper()
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size(), st.Sys().(*syscall.Stat_t).Blocks * 512
}

// So does the recovery after a process that was killed.
func TestRecoveryGivesBack(t *testing.T) {
	w := osWorld(t)
	w.cfg.SegmentBytes = 64 << 20
	w.open()
	l := w.log("a")
	value := strings.Repeat("v", 500_000)
	for range 10 {
		mustAppend(t, l, batch(1, value))
	}
	if l.active().reserved == 0 {
		t.Fatal("nothing is reserved")
	}
	w.abandon()
	w.open()
	defer w.close()
	if size, used := taken(t, l.active().name(suffixLog).path()); size < 5_000_000 || used > size+64<<10 {
		t.Errorf("the segment has %d bytes and takes %d", size, used)
	}
}

// A segment that was cut asks anew for what it needs.
func TestCutForgetsWhatWasReserved(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), "/d")
	w.cfg.SegmentBytes = 64 << 20
	w.open()
	defer w.close()
	l := w.log("a")
	value := strings.Repeat("v", 500_000)
	for range 10 {
		mustAppend(t, l, batch(1, value))
	}
	before := l.active().reserved
	if err := l.TruncateTo(9); err != nil {
		t.Fatal(err)
	}
	if after := l.active().reserved; before == 0 || after != 0 {
		t.Errorf("reserved up to %d, and after the cut to %d", before, after)
	}
}
