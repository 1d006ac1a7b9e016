package raft

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"gregor/internal/clock"
	"gregor/internal/vfs"
)

// halfTrimmed is a log whose start moves although trimming it fails.
type halfTrimmed struct{ *memLog }

func (l halfTrimmed) TrimTo(offset int64) error {
	return errors.Join(l.memLog.TrimTo(offset), errors.New("input/output error"))
}

func TestCoreLearnsOfALogThatIsCutOffHalfWay(t *testing.T) {
	now, lg := time.UnixMilli(1e12), slog.New(slog.DiscardHandler)
	disk := vfs.NewMem()
	if err := disk.MkdirAll("/d/" + DirName); err != nil {
		t.Fatal(err)
	}
	l := &memLog{}
	if err := l.Restart(12); err != nil {
		t.Fatal(err)
	}
	l.start = 0
	r, err := newReplica(Options{FS: disk, Clock: clock.NewManual(now), Rand: rand.New(rand.NewPCG(1, 1)), NodeID: 1}, lg, "/d/"+DirName, halfTrimmed{l})
	if err != nil {
		t.Fatal(err)
	}
	r.acc = newAccumulator(func() {})
	r.env = &Manual{r: r, feed: newFeed(r.store, nil)}
	snapshots := []OffsetAndEpoch{{5, 1}, {10, 1}}
	for _, id := range snapshots {
		r.store.addSnapshot(id, 100)
	}
	r.step(now, Started{Log: LogSummary{End: 12, Epochs: []EpochStart{{1, 0}}, Snapshots: snapshots}})
	if _, err := r.clean(now, 0, -1, nil); err == nil {
		t.Fatal("the error is gone")
	}
	if got := r.core.view.start; got != 10 || r.failed != nil {
		t.Errorf("the core's log begins at %d (%v), want 10", got, r.failed)
	}
}
