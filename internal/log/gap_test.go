package log

import (
	"math"
	"math/rand/v2"
	"testing"

	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// TestGapBetweenSegments: a power failure may leave a segment whose file was synced behind one whose end was not. The log ends at
// the gap, or the replica would pass for complete.
func TestGapBetweenSegments(t *testing.T) {
	mem := vfs.NewMem()
	w := newWorld(t, mem, "/d")
	if err := mem.SyncAll("/d"); err != nil {
		t.Fatal(err)
	}
	w.cfg.SegmentBytes = 300
	tp, id := TopicPartition{Topic: "a"}, uuid.UUID{15: 77}
	l, err := w.open().GetOrCreate(tp, id, w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, batch(w.now(), "x"))
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	for l.Segments() < 3 {
		mustAppend(t, l, batch(w.now(), "x"))
	}
	// All names are on the disk, and of the first segment's contents only the first batch.
	if err := mem.SyncDir("/d/a-0"); err != nil {
		t.Fatal(err)
	}
	w.fs = mem.CrashClone(rand.New(rand.NewPCG(1, 2)), 0)
	if l = w.open().Log(tp); l == nil || l.EndOffset() != 1 || l.Segments() != 1 {
		t.Errorf("the log ends at %d with %d segments, want 1 and 1", l.EndOffset(), l.Segments())
	}
	w.close()
}

// TestGapOfCompactionIsNoGap: a follower has got a log that was compacted elsewhere, while the topic was. What lies behind the gaps
// stays after a crash, wherever segments begin.
func TestGapOfCompactionIsNoGap(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), "/d")
	w.cfg.SegmentBytes = 300
	w.open()
	l := w.log("a")
	const step = 1000
	for i := range int64(20) {
		at := i * step
		if i == 19 {
			at += math.MaxInt32 // too far for the segment before, and the gap is what it is
		}
		b := record.Batch(batch(w.now(), "x"))
		b.SetBaseOffset(at)
		if _, err := l.AppendFollower(b); err != nil {
			t.Fatal(err)
		}
		if segs := l.segs(); i < 19 && i > 0 && segs[len(segs)-1].base > at-step+1 {
			t.Fatalf("the log ended at %d, and a segment begins at %d", at-step+1, segs[len(segs)-1].base)
		}
	}
	if l.Segments() < 5 {
		t.Fatalf("%d segments", l.Segments())
	}
	if err := l.TruncateTo(19 * step); err != nil {
		t.Fatal(err)
	}
	w.abandon()
	w.open()
	if l = w.log("a"); l.EndOffset() != 18*step+1 {
		t.Errorf("after a crash the log ends at %d, want %d", l.EndOffset(), 18*step+1)
	}
	w.close()
}
