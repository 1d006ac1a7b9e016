package log

import (
	"math/rand/v2"
	"testing"

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
