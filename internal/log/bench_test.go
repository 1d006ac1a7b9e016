package log

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"gregor/internal/clock"
	"gregor/internal/record"
	"gregor/internal/vfs"
)

// cpuTime is what the process has used: on a busy machine it says more than the clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchBatch(size int) []byte {
	b := record.NewBuilder(record.BuilderOptions{LeaderEpoch: -1}.NoProducer())
	rng := rand.New(rand.NewPCG(1, 1))
	v := make([]byte, 1024)
	for b.Len() < size-1100 || b.Len() < 100 {
		for i := range v {
			v[i] = byte(rng.Uint32())
		}
		b.Append(testStart.UnixMilli(), nil, v, nil)
	}
	out, err := b.Build()
	if err != nil {
		panic(err)
	}
	return bytes.Clone(out)
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{200, 16 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			w := newWorld(b, vfs.OS, b.TempDir())
			w.cfg.SegmentBytes = 256 << 20
			w.cfg.MaxMessageBytes = 2 << 20
			w.cfg.FileDeleteDelay = 0
			w.cfg.RetentionBytes = 512 << 20
			w.open()
			l := w.log("a")
			batch := benchBatch(size)
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			written := 0
			for b.Loop() {
				record.Batch(batch).SetBaseOffset(0)
				if _, err := l.Append(batch, AppendOptions{LeaderEpoch: 1}); err != nil {
					b.Fatal(err)
				}
				l.SetHighWatermark(l.EndOffset())
				if written += len(batch); written > 512<<20 {
					written = 0
					l.DeleteOldSegments()
				}
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	w := newWorld(b, vfs.OS, b.TempDir())
	w.cfg.SegmentBytes = 64 << 20
	w.open()
	l := w.log("a")
	batch := benchBatch(16 << 10)
	for l.Size() < 200<<20 {
		record.Batch(batch).SetBaseOffset(0)
		mustAppend(b, l, batch)
	}
	end := l.EndOffset()
	for _, where := range []string{"tail", "sequential", "random"} {
		b.Run(where, func(b *testing.B) {
			b.ReportAllocs()
			at := int64(0)
			per := int64(record.Batch(batch).Count())
			for b.Loop() {
				switch where {
				case "tail":
					at = end - per
				case "sequential":
					if at += 64 * per; at >= end {
						at = 0
					}
				case "random":
					at = rand.Int64N(end)
				}
				f, err := l.Read(at, 1<<20, ReadUncommitted, true)
				if err != nil || f.Slice.Len() == 0 {
					b.Fatal(err, f.Slice.Len())
				}
				f.Slice.Release()
			}
		})
	}
}

// TestManyPartitions measures what many partitions cost; it prints, and checks only that they come back.
func TestManyPartitions(t *testing.T) {
	n := 200
	if os.Getenv("GREGOR_MANY") != "" {
		fmt.Sscan(os.Getenv("GREGOR_MANY"), &n)
	}
	w := newWorld(t, vfs.OS, t.TempDir())
	w.opts = func(o *Options) { o.MaxOpenFiles, o.Clock, o.NoBackground = 200, clock.System, false }
	w.open()
	began, cpu := time.Now(), cpuTime()
	lap := func(what string) {
		t.Logf("%-40s %8v, CPU %v", what, time.Since(began).Round(time.Millisecond/10), (cpuTime() - cpu).Round(time.Millisecond/10))
		began, cpu = time.Now(), cpuTime()
	}
	for i := range n {
		if _, err := w.m.GetOrCreate(TopicPartition{"t", int32(i)}, testTopicID, w.cfg); err != nil {
			t.Fatal(err)
		}
	}
	lap(fmt.Sprintf("create %d", n))
	w.m.Tick()
	lap("make them durable")
	for l := range w.m.Logs() {
		mustAppend(t, l, batch(time.Now().UnixMilli(), "a", "b"))
	}
	lap("append to each")
	if open := w.m.OpenFiles(); open > 200 {
		t.Errorf("%d files are open", open)
	}
	w.abandon()
	began, cpu = time.Now(), cpuTime()
	w.open()
	lap("open after kill -9")
	w.close()
	lap("close")
	w.open()
	lap("open after a clean stop")
	if open := w.m.OpenFiles(); open > 0 {
		t.Errorf("%d files are open after a start", open)
	}
	k := 0
	for l := range w.m.Logs() {
		if l.EndOffset() != 2 {
			t.Fatalf("%s ends at %d", l.TopicPartition(), l.EndOffset())
		}
		k++
	}
	if k != n {
		t.Errorf("%d logs, want %d", k, n)
	}
	for l := range w.m.Logs() {
		l.AssignEpochStart(5, l.EndOffset())
	}
	lap("lead each in a new epoch")
	w.close()
	lap("close, nothing touched")
}

// TestRecoverySpeed measures recovery of unflushed segments; it prints.
func TestRecoverySpeed(t *testing.T) {
	mb := 64
	if os.Getenv("GREGOR_RECOVER_MB") != "" {
		fmt.Sscan(os.Getenv("GREGOR_RECOVER_MB"), &mb)
	}
	w := newWorld(t, vfs.OS, t.TempDir())
	w.opts = func(o *Options) { o.NoBackground = false }
	w.open()
	b := benchBatch(64 << 10)
	for i := range 12 {
		l, err := w.m.GetOrCreate(TopicPartition{"t", int32(i)}, testTopicID, w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		for l.Size() < int64(mb)<<20/12 {
			record.Batch(b).SetBaseOffset(0)
			mustAppend(t, l, b)
		}
	}
	w.abandon()
	began, cpu := time.Now(), cpuTime()
	m := w.open()
	took := time.Since(began)
	t.Logf("%d MiB in 12 partitions recovered in %v, CPU %v", mb, took, cpuTime()-cpu)
	if m.WasClean() {
		t.Error("it was no clean stop")
	}
}
