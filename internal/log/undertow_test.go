package log

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gregor/internal/record"
	"gregor/internal/vfs"
)

// hookFS calls before ahead of operations that take a name, so that a test can let something happen in the middle of another.
type hookFS struct {
	vfs.FS
	before atomic.Pointer[func(op, name string)]
}

func (h *hookFS) call(op, name string) {
	if f := h.before.Load(); f != nil {
		(*f)(op, name)
	}
}

func (h *hookFS) Rename(from, to string) error {
	h.call("rename", from)
	return h.FS.Rename(from, to)
}

func (h *hookFS) OpenReadWrite(name string) (vfs.File, error) {
	h.call("open", name)
	return h.FS.OpenReadWrite(name)
}

// once lets f run when op on a name with the suffix is about to happen for the first time. f runs beside the operation, which
// goes on when f is done or, because f waits for it, after a moment.
func (h *hookFS) once(op, suffix string, f func()) (done <-chan struct{}) {
	ended := make(chan struct{})
	var used atomic.Bool
	hook := func(o, name string) {
		if o != op || !strings.HasSuffix(name, suffix) || used.Swap(true) {
			return
		}
		go func() {
			defer close(ended)
			f()
		}()
		select {
		case <-ended:
		case <-time.After(100 * time.Millisecond):
		}
	}
	h.before.Store(&hook)
	return ended
}

// A replica that is deleted while a flush is at its files is no fault of the disk.
func TestDeleteDuringFlush(t *testing.T) {
	h := &hookFS{FS: vfs.NewMem()}
	w := newWorld(t, h, "/d")
	w.open()
	l := w.log("a")
	mustAppend(t, l, batch(w.now(), "x"))
	done := h.once("rename", epochFile+suffixTmp, func() {
		if err := w.m.Delete(l.tp); err != nil {
			t.Error(err)
		}
	})
	if err := l.Flush(); err != nil {
		t.Errorf("flush: %v", err)
	}
	<-done
	if err := w.m.dirs[0].offline(); err != nil {
		t.Errorf("the directory is offline: %v", err)
	}
}

// A replica that is deleted while a reader opens one of its files is no fault of the disk.
func TestDeleteDuringRead(t *testing.T) {
	h := &hookFS{FS: vfs.NewMem()}
	w := newWorld(t, h, "/d")
	w.open()
	l := w.log("a")
	mustAppend(t, l, batch(w.now(), "x"))
	mustAppend(t, l, batch(w.now(), "y"))
	l.active().close(l.e.files, false)
	done := h.once("open", suffixLog, func() {
		if err := w.m.Delete(l.tp); err != nil {
			t.Error(err)
		}
	})
	f, err := l.Read(0, 1000, ReadUncommitted, true)
	if err != nil {
		t.Errorf("read: %v", err)
	}
	f.Slice.Release()
	<-done
	if err := w.m.dirs[0].offline(); err != nil {
		t.Errorf("the directory is offline: %v", err)
	}
}

// A flush whose oldest segment is taken away by retention still makes the rest durable.
func TestRetentionDuringFlush(t *testing.T) {
	h := &hookFS{FS: vfs.NewMem()}
	w := newWorld(t, h, "/d")
	w.open()
	l := w.log("a")
	mustAppend(t, l, batch(w.now(), "x"))
	l.mu.Lock()
	if err := l.roll(1); err != nil {
		t.Fatal(err)
	}
	old := l.segs()[0]
	l.mu.Unlock()
	mustAppend(t, l, batch(w.now(), "y"))
	old.close(l.e.files, false)
	done := h.once("open", suffixLog, func() {
		if err := l.IncrementLogStart(1, "test"); err != nil {
			t.Error(err)
		}
		if n, err := l.DeleteOldSegments(); n != 1 || err != nil {
			t.Errorf("deleted %d segments: %v", n, err)
		}
	})
	if err := l.Flush(); err != nil {
		t.Errorf("flush: %v", err)
	}
	<-done
	if err := w.m.dirs[0].offline(); err != nil {
		t.Errorf("the directory is offline: %v", err)
	}
	if p := l.RecoveryPoint(); p != 2 {
		t.Errorf("flush returned with the recovery point at %d, want 2", p)
	}
}

// Retention may take segments away under the cleaner, which then looks again another time.
func TestRetentionDuringCleaning(t *testing.T) {
	h := &hookFS{FS: vfs.NewMem()}
	w := newWorld(t, h, "/d")
	w.cfg.CleanupCompact = true
	w.open()
	l := w.log("a")
	for i := range int64(4) {
		mustAppend(t, l, batch(w.now(), "x"))
		l.mu.Lock()
		if err := l.roll(i + 1); err != nil {
			t.Fatal(err)
		}
		l.mu.Unlock()
	}
	mustAppend(t, l, batch(w.now(), "y"))
	for _, s := range l.segs() {
		s.close(l.e.files, false)
	}
	done := h.once("open", suffixLog, func() {
		if err := l.IncrementLogStart(3, "test"); err != nil {
			t.Error(err)
		}
		if _, err := l.DeleteOldSegments(); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.m.CleanOnce(context.Background()); err != nil {
		t.Error(err)
	}
	<-done
	if err := l.Uncleanable(); err != nil {
		t.Errorf("the log is left alone for good: %v", err)
	}
}

// A checkpoint that somebody else is writing is waited for: who asked for it goes on as if it were on disk.
func TestCheckpointWaitsForTheOneUnderWay(t *testing.T) {
	h := &hookFS{FS: vfs.NewMem()}
	w := newWorld(t, h, "/d")
	w.open()
	mustAppend(t, w.log("a"), batch(w.now(), "x"))
	d := w.m.dirs[0]
	d.recoveryDirty.Store(true)
	var early atomic.Bool
	done := h.once("rename", recoveryPointFile+suffixTmp, func() {
		if err := d.checkpointRecovery(); err != nil {
			t.Error(err)
		}
		if data, err := readFile(h, d.file(recoveryPointFile)); err != nil || !strings.Contains(string(data), "a 0") {
			early.Store(true)
		}
	})
	if err := d.checkpointRecovery(); err != nil {
		t.Error(err)
	}
	<-done
	if early.Load() {
		t.Error("a checkpoint returned before the file was there")
	}
}

// A slice that outlives its replica keeps its file open no longer than it is used: a removed file that stays open keeps its
// room on the disk.
func TestDeletedFilesAreClosedWithTheLastSlice(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), "/d")
	w.open()
	l := w.log("a")
	mustAppend(t, l, batch(w.now(), "x"))
	f, err := l.Read(0, 1000, ReadUncommitted, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.m.Delete(l.tp); err != nil {
		t.Fatal(err)
	}
	if b, err := f.Slice.Bytes(nil); err != nil || len(b) == 0 {
		t.Errorf("%d bytes of the slice are left: %v", len(b), err)
	}
	f.Slice.Release()
	if n := w.m.OpenFiles(); n != 0 {
		t.Errorf("%d files of a deleted replica are open", n)
	}
}

// A panic in the middle of a change must not let others go on with half of it.
func TestPanicWhileALogIsChanged(t *testing.T) {
	for what, change := range map[string]func(l *Log) error{
		"append": func(l *Log) error { _, err := l.Append(batch(0, "y"), AppendOptions{}); return err },
		"append as a follower": func(l *Log) error {
			b := batch(0, "y")
			record.Batch(b).SetBaseOffset(1)
			_, err := l.AppendFollower(b)
			return err
		},
		"truncate": func(l *Log) error { return l.TruncateTo(0) },
		"flush":    func(l *Log) error { l.cutTo = 0; return l.Flush() },
	} {
		h := &hookFS{FS: vfs.NewMem()}
		w := newWorld(t, h, "/d")
		w.open()
		l := w.log("a")
		mustAppend(t, l, batch(w.now(), "x"))
		l.active().close(l.e.files, false)
		boom := func(op, name string) {
			if strings.HasSuffix(name, suffixLog) {
				panic("boom")
			}
		}
		h.before.Store(&boom)
		got := func() (v any) {
			defer func() { v = recover() }()
			return change(l)
		}()
		if b, ok := got.(*Broken); !ok || b.Value != "boom" {
			t.Errorf("%s ended with %v", what, got)
		}
		if l.mu.TryLock() {
			t.Errorf("%s: the log can still be changed", what)
		}
	}
}
