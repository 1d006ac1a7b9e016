package raft

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"gregor/internal/clock"
	"gregor/internal/message"
	"gregor/internal/record"
	"gregor/internal/vfs"
)

// An append that fills more than one segment can fail in the second. None of it may stay: it is tried again as a whole.
func TestAppendOverSegmentsIsAllOrNothing(t *testing.T) {
	disk := vfs.NewMem()
	if err := disk.MkdirAll("/d"); err != nil {
		t.Fatal(err)
	}
	l, err := openLog(context.Background(), Options{FS: disk, Clock: clock.NewManual(time.UnixMilli(1e12)), Logger: slog.New(slog.DiscardHandler),
		Dir: "/d", SegmentBytes: 300, SegmentAge: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	builder := record.NewBuilder(record.BuilderOptions{}.NoProducer())
	batches := func(from, n int64) (data []byte) {
		for i := from; i < from+n; i++ {
			b, err := dataBatch(builder, i, 1, 0, []message.Versioned{feature("x", 1)})
			if err != nil {
				t.Fatal(err)
			}
			data = append(data, b...)
		}
		return data
	}
	if err := l.Append(batches(0, 2)); err != nil {
		t.Fatal(err)
	}
	disk.SetCapacity(disk.Used() + 350)
	if err := l.Append(batches(2, 20)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("append to a full disk: %v", err)
	}
	if end := l.EndOffset(); end != 2 {
		t.Fatalf("the log ends at %d after an append that failed, want 2", end)
	}
	disk.SetCapacity(-1)
	if err := l.Append(batches(2, 20)); err != nil || l.EndOffset() != 22 {
		t.Errorf("the log ends at %d, %v", l.EndOffset(), err)
	}
}
