package log

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"gregor/internal/api"
	"gregor/internal/vfs"
)

var moved = TopicPartition{Topic: "a"}

// other is the directory of /d1 and /d2 that the log isn't in.
func other(l *Log) string {
	if l.ParentDir() == "/d1" {
		return "/d2"
	}
	return "/d1"
}

func mustFuture(t *testing.T, m *Manager, dir string) *Log {
	t.Helper()
	f, err := m.CreateFuture(moved, dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// copyAll copies until there is nothing to copy.
func copyAll(t testing.TB, f, src *Log, step int) {
	t.Helper()
	var buf []byte
	for {
		n, grown, err := f.CopyFrom(src, step, buf)
		if err != nil {
			t.Fatal(err)
		}
		if buf = grown; n == 0 {
			return
		}
	}
}

func dirNames(t *testing.T, fsys vfs.FS, dir string) (names []string) {
	t.Helper()
	list, err := fsys.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestFutureTakesTheLogsPlace(t *testing.T) {
	w := memWorld(t, "/d1", "/d2")
	m := w.open()
	src := w.log("a")
	from, to := src.ParentDir(), other(src)
	for i := range 20 {
		mustAppend(t, src, producerBatch(w.now(), 5, 0, int32(i), false, fmt.Sprint("v", i)))
	}
	if err := src.IncrementLogStart(3, "test"); err != nil {
		t.Fatal(err)
	}
	f := mustFuture(t, m, to)
	if ok, _ := regexp.MatchString(`^a-0\.[0-9a-f]{32}-future$`, path.Base(f.Dir())); !ok || f.ParentDir() != to {
		t.Errorf("the future log lies in %s", f.Dir())
	}
	if _, err := m.CreateFuture(moved, to); err == nil {
		t.Error("a second future log was made")
	}
	copyAll(t, f, src, 200)
	mustAppend(t, src, producerBatch(w.now(), 5, 0, 20, false, "v20"))
	if _, err := m.Promote(moved, m.Future(moved)); err == nil {
		t.Fatal("promoted a future log that lags behind")
	}
	copyAll(t, f, src, 200)
	want := values(t, src, 3, ReadLogEnd)
	open, err := src.Read(3, 1000, ReadLogEnd, true)
	if err != nil {
		t.Fatal(err)
	}
	l, err := m.Promote(moved, m.Future(moved))
	if err != nil {
		t.Fatal(err)
	}
	if l != f || m.Log(moved) != f || m.Future(moved) != nil || f.Dir() != to+"/a-0" {
		t.Errorf("the log is %v in %s", m.Log(moved), f.Dir())
	}
	start, _, hw, end := l.Offsets()
	if got := values(t, l, 3, ReadLogEnd); !slices.Equal(got, want) || start != 3 || hw != 21 || end != 21 {
		t.Errorf("got %v (%d to %d, high watermark %d), want %v", got, start, end, hw, want)
	}
	if p := l.Producers(); len(p) != 1 || p[0].LastSequence != 20 {
		t.Errorf("producers %+v", p)
	}
	if b, err := open.Slice.Bytes(nil); err != nil || len(b) == 0 {
		t.Errorf("a slice of the old log: %d bytes, %v", len(b), err)
	}
	open.Slice.Release()
	if names := dirNames(t, w.fs, from); len(names) != 1 || !strings.HasSuffix(names[0], "-delete") {
		t.Errorf("%s has %q", from, names)
	}
	mustAppend(t, l, producerBatch(w.now(), 5, 0, 21, false, "v21"))
	want = append(want, "21:v21")
	w.close()
	m = w.open()
	if l = m.Log(moved); l == nil || l.ParentDir() != to {
		t.Fatalf("after a restart the log is %v", l)
	}
	if got := values(t, l, 3, ReadLogEnd); !slices.Equal(got, want) || l.LogStartOffset() != 3 {
		t.Errorf("after a restart: %v from %d on, want %v", got, l.LogStartOffset(), want)
	}
	w.close()
}

func TestFutureIsThereAfterARestart(t *testing.T) {
	for _, clean := range []bool{true, false} {
		w := memWorld(t, "/d1", "/d2")
		m := w.open()
		src := w.log("a")
		for i := range 10 {
			mustAppend(t, src, batch(w.now(), fmt.Sprint("v", i)))
		}
		f := mustFuture(t, m, other(src))
		if _, _, err := f.CopyFrom(src, 100, nil); err != nil {
			t.Fatal(err)
		}
		at, dir := f.EndOffset(), f.Dir()
		if at == 0 || at == 10 {
			t.Fatalf("copied up to %d", at)
		}
		if clean {
			w.close()
		} else {
			w.abandon()
		}
		m = w.open()
		f = m.Future(moved)
		if f == nil || f.EndOffset() != at || f.Dir() != dir {
			t.Fatalf("clean %v: the future log is %v", clean, f)
		}
		copyAll(t, f, m.Log(moved), 100)
		if _, err := m.Promote(moved, m.Future(moved)); err != nil {
			t.Fatal(err)
		}
		if got := values(t, m.Log(moved), 0, ReadLogEnd); len(got) != 10 {
			t.Errorf("clean %v: %v", clean, got)
		}
		w.close()
	}
}

func TestFutureIsDropped(t *testing.T) {
	w := memWorld(t, "/d1", "/d2")
	m := w.open()
	src := w.log("a")
	to := other(src)
	mustFuture(t, m, to)
	if err := m.DropFuture(moved, m.Future(moved)); err != nil {
		t.Fatal(err)
	}
	if names := dirNames(t, w.fs, to); len(names) != 1 || !strings.HasSuffix(names[0], "-delete") || m.Future(moved) != nil {
		t.Errorf("%s has %q", to, names)
	}
	mustFuture(t, m, to)
	if err := m.Delete(moved); err != nil {
		t.Fatal(err)
	}
	if m.Future(moved) != nil {
		t.Error("the future log outlives the replica")
	}
	for _, d := range w.dirs {
		for _, n := range dirNames(t, w.fs, d) {
			if !strings.HasSuffix(n, "-delete") {
				t.Errorf("%s has %s", d, n)
			}
		}
	}
	w.close()
}

// The log gives way before the future log has its name. If that fails, on a disk that is full, the future log is all there is until
// it is tried again.
func TestPromotionFailsHalfWay(t *testing.T) {
	for _, c := range []struct {
		name  string
		alone bool // nothing but the future log is there then
		fails func(op vfs.Op, from string) bool
	}{
		{"the old log keeps its name", false, func(op vfs.Op, from string) bool { return op.Kind == vfs.OpRename && op.Path == from+"/a-0" }},
		{"its directory isn't synced", true, func(op vfs.Op, from string) bool { return op.Kind == vfs.OpSyncDir && op.Path == from }},
		{"the new log keeps its name", true, func(op vfs.Op, from string) bool {
			return op.Kind == vfs.OpRename && strings.HasSuffix(op.Path, "-future")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := memWorld(t, "/d1", "/d2")
			from, full := "", false
			w.fs = vfs.Hook(w.fs, func(op vfs.Op) error {
				if full && c.fails(op, from) {
					return syscall.ENOSPC
				}
				return nil
			})
			m := w.open()
			src := w.log("a")
			from = src.ParentDir()
			to := other(src)
			mustAppend(t, src, batch(w.now(), "x"))
			f := mustFuture(t, m, to)
			copyAll(t, f, src, 1000)
			full = true
			_, err := m.Promote(moved, f)
			code(t, err, api.ErrKafkaStorageError)
			if alone := m.Log(moved) == nil; alone != c.alone || m.Future(moved) != f {
				t.Fatalf("%v, future log alone: %v", err, alone)
			}
			if c.alone {
				code(t, m.DropFuture(moved, f), api.ErrKafkaStorageError)
			} else {
				mustAppend(t, src, batch(w.now(), "y"))
				copyAll(t, f, src, 1000)
			}
			full = false
			l, err := m.Promote(moved, f)
			if err != nil {
				t.Fatal(err)
			}
			mustAppend(t, l, batch(w.now(), "z"))
			if n := len(values(t, l, 0, ReadLogEnd)); n != int(l.EndOffset()) || l.Dir() != to+"/a-0" {
				t.Errorf("%d records in %s", n, l.Dir())
			}
			w.close()
		})
	}
}

// A replica is deleted that has a future log only.
func TestFutureAloneIsDeleted(t *testing.T) {
	w := memWorld(t, "/d1", "/d2")
	m := w.open()
	src := w.log("a")
	f := mustFuture(t, m, other(src))
	m.logs.Delete(moved) // as after a start without its directory
	if err := m.Delete(moved); err != nil || m.Future(moved) != nil || !strings.HasSuffix(f.Dir(), "-delete") {
		t.Errorf("%v, in %s", err, f.Dir())
	}
	w.close()
}

func TestFutureNeedsADirectory(t *testing.T) {
	w := memWorld(t, "/d1", "/d2")
	m := w.open()
	src := w.log("a")
	if _, err := m.CreateFuture(moved, "/d3"); !errors.Is(err, ErrNoSuchDir) {
		t.Errorf("no such directory: %v", err)
	}
	if _, err := m.CreateFuture(TopicPartition{Topic: "b"}, "/d1"); !errors.Is(err, ErrNoSuchReplica) {
		t.Errorf("no such replica: %v", err)
	}
	m.dirAt(other(src)).fail(errors.New("test"))
	_, err := m.CreateFuture(moved, other(src))
	code(t, err, api.ErrKafkaStorageError)
	if FutureFits(TopicPartition{Topic: strings.Repeat("x", 220)}) || !FutureFits(TopicPartition{Topic: strings.Repeat("x", 213)}) {
		t.Error("names of 255 characters")
	}
}

func TestPreferredDirectory(t *testing.T) {
	w := memWorld(t, "/d1", "/d2", "/d3")
	m := w.open()
	m.Prefer(moved, "/d3")
	if l := w.log("a"); l.ParentDir() != "/d3" {
		t.Errorf("made in %s", l.ParentDir())
	}
	// The wish is fulfilled once.
	if err := m.Delete(moved); err != nil {
		t.Fatal(err)
	}
	if l := w.log("a"); l.ParentDir() != "/d1" {
		t.Errorf("made again in %s", l.ParentDir())
	}
	w.close()
}

func TestCordonedDirectoriesTakeNothing(t *testing.T) {
	w := memWorld(t, "/d1", "/d2")
	cordoned := map[string]bool{"/d1": true}
	w.opts = func(o *Options) { o.Cordoned = func(d string) bool { return cordoned[d] } }
	w.open()
	for _, topic := range []string{"a", "b", "c"} {
		if l := w.log(topic); l.ParentDir() != "/d2" {
			t.Errorf("%s was made in %s", topic, l.ParentDir())
		}
	}
	cordoned["/d2"] = true
	if l := w.log("d"); l.ParentDir() != "/d1" {
		t.Errorf("d was made in %s", l.ParentDir())
	}
	w.close()
}

// TestFutureFollowsWhateverHappens: the log is appended to in new leader epochs, cut, cut wholly and deleted from the front while
// it is copied; in the end both have the same records.
func TestFutureFollowsWhateverHappens(tt *testing.T) {
	rapid.Check(tt, func(t *rapid.T) {
		w := memWorld(tt, "/d1", "/d2")
		w.cfg.SegmentBytes = int32(rapid.IntRange(200, 2000).Draw(t, "segment"))
		m := w.open()
		src := w.log("a")
		f, err := m.CreateFuture(moved, other(src))
		if err != nil {
			t.Fatal(err)
		}
		epoch, n := int32(0), 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			start, _, _, end := src.Offsets()
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1, 2:
				n++
				if _, err := src.Append(batch(w.now(), fmt.Sprint("v", n), "w"), AppendOptions{LeaderEpoch: epoch}); err != nil {
					t.Fatal(err)
				}
			case 3:
				epoch++
				if err := src.AssignEpochStart(epoch, end); err != nil {
					t.Fatal(err)
				}
			case 4:
				// A log is cut by a follower in a new epoch.
				epoch++
				if err := src.TruncateTo(rapid.Int64Range(start, end).Draw(t, "to")); err != nil {
					t.Fatal(err)
				}
			case 5:
				if rapid.IntRange(0, 4).Draw(t, "wholly") == 0 {
					epoch++
					if err := src.TruncateFully(rapid.Int64Range(0, end+5).Draw(t, "anew")); err != nil {
						t.Fatal(err)
					}
				}
			case 6:
				hw := src.SetHighWatermark(rapid.Int64Range(start, end).Draw(t, "hw"))
				if err := src.IncrementLogStart(rapid.Int64Range(start, hw).Draw(t, "start"), "test"); err != nil {
					t.Fatal(err)
				}
				if _, err := src.DeleteOldSegments(); err != nil {
					t.Fatal(err)
				}
			default:
				if _, _, err := f.CopyFrom(src, rapid.IntRange(1, 500).Draw(t, "max"), nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		copyAll(tt, f, src, 300)
		start, _, hw, end := src.Offsets()
		want := values(tt, src, start, ReadLogEnd)
		l, err := m.Promote(moved, m.Future(moved))
		if err != nil {
			t.Fatal(err)
		}
		start2, _, hw2, end2 := l.Offsets()
		if start2 != min(start, hw) && start2 != start || hw2 != hw || end2 != end {
			t.Fatalf("offsets %d, %d, %d, want %d, %d, %d", start2, hw2, end2, start, hw, end)
		}
		if got := values(tt, l, start, ReadLogEnd); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if a, _ := src.LatestEpoch(); true {
			if b, _ := l.LatestEpoch(); a != b {
				t.Fatalf("latest epoch %d, want %d", b, a)
			}
		}
		w.close()
	})
}

// TestCrashesWhileALogMoves: whenever the process dies, with or without what isn't synced, the records are in the log, or in a
// future log that stands alone.
func TestCrashesWhileALogMoves(t *testing.T) {
	w := memWorld(t, "/d1", "/d2")
	mem := w.fs.(*vfs.Mem)
	w.open()
	src := w.log("a")
	to := other(src)
	for i := range 20 {
		mustAppend(t, src, batch(w.now(), fmt.Sprint("v", i)))
	}
	if err := src.Flush(); err != nil {
		t.Fatal(err)
	}
	want := values(t, src, 0, ReadLogEnd)
	w.abandon()
	if err := mem.SyncAll("/"); err != nil {
		t.Fatal(err)
	}

	inspected, alone := 0, 0
	inspect := func(disk *vfs.Mem, op vfs.Op) {
		c := *w
		c.fs = disk
		m, err := c.tryOpen()
		if err != nil {
			t.Fatalf("crash before %s %s: %v", op.Kind, op.Path, err)
		}
		c.m = m
		l := m.Log(moved)
		if l == nil {
			alone++
			if m.Future(moved) == nil {
				t.Fatalf("crash before %s %s: the replica is gone", op.Kind, op.Path)
			}
			if l, err = m.Promote(moved, m.Future(moved)); err != nil {
				t.Fatalf("crash before %s %s: %v", op.Kind, op.Path, err)
			}
		}
		if got := values(t, l, 0, ReadLogEnd); !slices.Equal(got, want) {
			t.Fatalf("crash before %s %s: %s has %v", op.Kind, op.Path, l.Dir(), got)
		}
		if f := m.Future(moved); f != nil {
			copyAll(t, f, l, 500)
			if l, err = m.Promote(moved, m.Future(moved)); err != nil {
				t.Fatal(err)
			}
			if got := values(t, l, 0, ReadLogEnd); !slices.Equal(got, want) || l.ParentDir() != to {
				t.Fatalf("crash before %s %s: after the move %s has %v", op.Kind, op.Path, l.Dir(), got)
			}
		}
		inspected++
		c.close()
	}
	rng := rand.New(rand.NewPCG(7, 7))
	looking := false
	w.fs = vfs.Hook(mem, func(op vfs.Op) error {
		if !op.Kind.Changes() || looking {
			return nil
		}
		looking = true
		defer func() { looking = false }()
		for _, survive := range []float64{0, 0.5, 1} {
			inspect(mem.CrashClone(rand.New(rand.NewPCG(rng.Uint64(), 0)), survive), op)
		}
		return nil
	})
	looking = true // opening is looked at elsewhere
	m := w.open()
	src = m.Log(moved)
	looking = false
	f := mustFuture(t, m, to)
	copyAll(t, f, src, 500)
	if _, err := m.Promote(moved, m.Future(moved)); err != nil {
		t.Fatal(err)
	}
	w.close()
	if inspected < 50 || alone == 0 {
		t.Errorf("%d crashes, of which %d left a future log alone", inspected, alone)
	}
}
