package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gregor/internal/api"
	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

func memWorld(t testing.TB, dirs ...string) *world {
	if len(dirs) == 0 {
		dirs = []string{"/data"}
	}
	m := vfs.NewMem()
	w := newWorld(t, m, dirs...)
	m.SetClock(w.clock.Now)
	return w
}

// code checks that an append fails with a protocol error.
func code(t *testing.T, err error, want *api.Error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %s", err, want.Name)
	}
}

func TestIdempotentProducer(t *testing.T) {
	w := memWorld(t)
	w.open()
	l := w.log("a")
	app := func(seq int32, epoch int16, values ...string) (AppendInfo, error) {
		return l.Append(producerBatch(w.now(), 7, epoch, seq, false, values...), AppendOptions{LeaderEpoch: 1})
	}
	for i := range int32(7) {
		if info, err := app(2*i, 0, "x", "y"); err != nil || info.FirstOffset != int64(2*i) || info.Duplicate {
			t.Fatalf("append %d: %+v %v", i, info, err)
		}
	}
	// The last five are known again, earlier ones aren't.
	for i := int32(2); i < 7; i++ {
		if info, err := app(2*i, 0, "x", "y"); err != nil || info.FirstOffset != int64(2*i) || info.LastOffset != int64(2*i+1) || !info.Duplicate {
			t.Errorf("retry of %d: %+v %v", i, info, err)
		}
	}
	_, err := app(2, 0, "x", "y")
	code(t, err, api.ErrOutOfOrderSequenceNumber)
	_, err = app(15, 0, "x")
	code(t, err, api.ErrOutOfOrderSequenceNumber)
	_, err = app(13, 0, "x") // overlaps a batch without being it
	code(t, err, api.ErrOutOfOrderSequenceNumber)
	_, err = app(3, 1, "x")
	code(t, err, api.ErrOutOfOrderSequenceNumber)
	if _, err := app(0, 1, "x"); err != nil {
		t.Error(err)
	}
	_, err = app(14, 0, "x")
	code(t, err, api.ErrInvalidProducerEpoch)
	// After a restart from the snapshot the last batch is still known.
	w.close()
	w.open()
	l = w.m.Log(TopicPartition{Topic: "a"})
	if info, err := app(0, 1, "x"); err != nil || !info.Duplicate || info.FirstOffset != 14 {
		t.Errorf("retry after a restart: %+v %v", info, err)
	}
	// Sequences wrap.
	if _, err := l.Append(producerBatch(w.now(), 8, 0, 1<<31-2, false, "a", "b"), AppendOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := l.Append(producerBatch(w.now(), 8, 0, 0, false, "c"), AppendOptions{}); err != nil {
		t.Error(err)
	}
	// Producers that are silent for a day are forgotten.
	w.clock.Advance(25 * time.Hour)
	w.m.Tick()
	if p := l.Producers(); len(p) != 0 {
		t.Errorf("producers after a day: %+v", p)
	}
	if _, err := app(40, 1, "x"); err != nil {
		t.Errorf("a forgotten producer may begin anywhere: %v", err)
	}
}

func TestTransactions(t *testing.T) {
	w := memWorld(t)
	w.open()
	l := w.log("a")
	put := func(id int64, epoch int16, seq int32, v string) int64 {
		t.Helper()
		info, err := l.Append(producerBatch(w.now(), id, epoch, seq, true, v), AppendOptions{LeaderEpoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		l.SetHighWatermark(l.EndOffset())
		return info.FirstOffset
	}
	end := func(id int64, epoch int16, commit bool, tv int16) error {
		_, err := l.Append(marker_(w.now(), id, epoch, commit), AppendOptions{LeaderEpoch: 1, Origin: Coordinator, TransactionVersion: tv})
		l.SetHighWatermark(l.EndOffset())
		return err
	}
	stable := func(want int64) {
		t.Helper()
		if got := l.LastStableOffset(); got != want {
			t.Errorf("last stable offset %d, want %d", got, want)
		}
	}
	put(1, 0, 0, "one") // 0
	put(2, 0, 0, "two") // 1
	stable(0)
	if err := end(1, 0, true, 0); err != nil { // 2
		t.Fatal(err)
	}
	stable(1)
	mustAppend(t, l, batch(w.now(), "plain")) // 3
	stable(1)
	if err := end(2, 0, false, 0); err != nil { // 4
		t.Fatal(err)
	}
	stable(5)
	if got := values(t, l, 0, ReadUncommitted); fmt.Sprint(got) != "[0:one 1:two 3:plain]" {
		t.Error(got)
	}
	f, err := l.Read(0, 1<<20, ReadCommitted, true)
	if err != nil || len(f.Aborted) != 1 || f.Aborted[0] != (AbortedTxn{2, 1}) {
		t.Errorf("aborted %+v %v", f.Aborted, err)
	}
	f.Slice.Release()

	// Transaction version 2: a marker carries the raised epoch.
	put(2, 0, 1, "three") // 5
	code(t, end(2, 0, true, 2), api.ErrInvalidProducerEpoch)
	if err := end(2, 1, true, 2); err != nil { // 6
		t.Error(err)
	}
	if err := end(2, 1, true, 2); err != nil { // 7, the retry of a marker
		t.Error(err)
	}
	_, err = l.Append(producerBatch(w.now(), 2, 0, 2, true, "late"), AppendOptions{})
	code(t, err, api.ErrInvalidProducerEpoch)
	// A transaction must not be mixed with plain writes of the same producer.
	put(2, 1, 0, "four") // 8
	_, err = l.Append(producerBatch(w.now(), 2, 1, 1, false, "plain"), AppendOptions{})
	code(t, err, api.ErrInvalidTxnState)
	// A fenced coordinator.
	_, err = l.Append(record.BuildEndTxnMarker(2, 2, 9, true, w.now()), AppendOptions{Origin: Coordinator})
	if err != nil { // 9
		t.Error(err)
	}
	code(t, end(2, 2, true, 0), api.ErrTransactionCoordinatorFenced)

	// A marker above the high watermark doesn't count yet.
	put(3, 0, 0, "five") // 10
	l.marks.Lock()
	hw := l.hw.offset
	l.marks.Unlock()
	if _, err := l.Append(marker_(w.now(), 3, 0, false), AppendOptions{Origin: Coordinator}); err != nil { // 11
		t.Fatal(err)
	}
	l.SetHighWatermark(hw)
	stable(10)
	l.SetHighWatermark(12)
	stable(12)

	put(4, 0, 0, "open") // 12
	for _, clean := range []bool{true, false} {
		if clean {
			w.close()
		} else {
			w.abandon()
		}
		w.open()
		l = w.m.Log(TopicPartition{Topic: "a"})
		l.SetHighWatermark(l.EndOffset())
		stable(12)
		f, err := l.Read(0, 1<<20, ReadCommitted, true)
		if err != nil || !slices.Equal(f.Aborted, []AbortedTxn{{2, 1}, {3, 10}}) {
			t.Errorf("after a restart (clean %v): aborted %+v %v", clean, f.Aborted, err)
		}
		f.Slice.Release()
	}
}

func TestTransactionVerification(t *testing.T) {
	w := memWorld(t)
	w.opts = func(o *Options) { o.VerifyTransactions = true }
	w.open()
	l := w.log("a")
	put := func(seq int32, g *VerificationGuard) error {
		_, err := l.Append(producerBatch(w.now(), 1, 0, seq, true, "x"), AppendOptions{Guard: g})
		return err
	}
	code(t, put(0, nil), api.ErrInvalidTxnState)
	g, err := l.StartVerification(1, 0, 0, true)
	if err != nil || g == nil {
		t.Fatal(g, err)
	}
	code(t, put(0, new(VerificationGuard)), api.ErrInvalidTxnState)
	if err := put(0, g); err != nil {
		t.Fatal(err)
	}
	// The transaction is open: nothing need be verified.
	if g, err := l.StartVerification(1, 1, 0, true); g != nil || err != nil {
		t.Error(g, err)
	}
	if err := put(1, nil); err != nil {
		t.Error(err)
	}
	// A marker between verification and append makes the guard worthless.
	if _, err := l.Append(marker_(w.now(), 1, 0, true), AppendOptions{Origin: Coordinator}); err != nil {
		t.Fatal(err)
	}
	g, _ = l.StartVerification(1, 2, 0, true)
	if _, err := l.Append(marker_(w.now(), 1, 0, true), AppendOptions{Origin: Coordinator}); err != nil {
		t.Fatal(err)
	}
	code(t, put(2, g), api.ErrInvalidTxnState)
	// A new producer of version 2 begins with sequence 0.
	g, _ = l.StartVerification(9, 3, 0, true)
	_, err = l.Append(producerBatch(w.now(), 9, 0, 3, true, "x"), AppendOptions{Guard: g})
	code(t, err, api.ErrOutOfOrderSequenceNumber)
}

func TestRolling(t *testing.T) {
	f := func(name string, set func(c *Config), between time.Duration, wantBases ...int64) {
		t.Run(name, func(t *testing.T) {
			w := memWorld(t)
			set(&w.cfg)
			w.open()
			l := w.log("a")
			ts := w.now()
			for range 6 {
				mustAppend(t, l, batch(ts, strings.Repeat("x", 100)))
				ts += between.Milliseconds()
			}
			var bases []int64
			for _, s := range l.segs() {
				bases = append(bases, s.base)
			}
			if !slices.Equal(bases, wantBases) {
				t.Errorf("segments at %v, want %v", bases, wantBases)
			}
		})
	}
	size := int32(len(batch(testStart.UnixMilli(), strings.Repeat("x", 100))))
	f("by size", func(c *Config) { c.SegmentBytes = 2 * size }, 0, 0, 2, 4)
	f("one byte short", func(c *Config) { c.SegmentBytes = 2*size - 1 }, 0, 0, 1, 2, 3, 4, 5)
	f("by record time", func(c *Config) { c.SegmentAge, c.TimestampAfterMax = time.Minute, -1 }, 30*time.Second, 0, 3)
	f("index full", func(c *Config) { c.IndexBytes, c.IndexIntervalBytes = 24, 0 }, 0, 0, 2, 4) // one time entry is kept for closing
	f("by the compaction lag", func(c *Config) {
		c.CleanupCompact, c.MaxCompactionLag, c.TimestampAfterMax = true, time.Minute, -1
	}, 40*time.Second, 0, 2, 4)
	f("not at all", func(c *Config) {}, time.Second, 0)
}

func TestJitterRollsEarly(t *testing.T) {
	w := memWorld(t)
	w.cfg.SegmentAge, w.cfg.SegmentJitter, w.cfg.TimestampAfterMax = time.Hour, time.Hour, -1
	w.open()
	l := w.log("a")
	if j := l.active().jitter; j <= 0 || j >= time.Hour.Milliseconds() {
		t.Fatalf("jitter %d", j)
	}
	ts := w.now()
	mustAppend(t, l, batch(ts, "a"))
	mustAppend(t, l, batch(ts+time.Hour.Milliseconds()-l.active().jitter+1, "b"))
	if l.Segments() != 2 {
		t.Errorf("%d segments", l.Segments())
	}
}

func TestRetention(t *testing.T) {
	w := memWorld(t)
	size := int32(len(batch(testStart.UnixMilli(), strings.Repeat("x", 100))))
	w.cfg.SegmentBytes = 2 * size
	w.cfg.RetentionAge = time.Hour
	w.cfg.RetentionBytes = -1
	w.open()
	l := w.log("a")
	for range 7 {
		mustAppend(t, l, batch(w.now(), strings.Repeat("x", 100)))
		w.clock.Advance(10 * time.Minute)
	}
	run := func(wantStart int64, wantSegments int) {
		t.Helper()
		if _, err := l.DeleteOldSegments(); err != nil {
			t.Fatal(err)
		}
		if l.LogStartOffset() != wantStart || l.Segments() != wantSegments {
			t.Errorf("start %d, %d segments; want %d, %d", l.LogStartOffset(), l.Segments(), wantStart, wantSegments)
		}
	}
	run(0, 4) // the first segment's last record is 60 minutes old
	w.clock.Advance(time.Millisecond)
	run(2, 3)
	w.cfg.RetentionBytes = int64(3 * size)
	l.SetConfig(w.cfg)
	run(4, 2) // 5 batches: one segment of 2 may go
	w.cfg.RetentionBytes = -1
	l.SetConfig(w.cfg)
	// DeleteRecords: whole segments below the start go, whatever the policy.
	w.cfg.CleanupDelete = false
	l.SetConfig(w.cfg)
	code(t, l.IncrementLogStart(8, "test"), api.ErrOffsetOutOfRange)
	if err := l.IncrementLogStart(6, "test"); err != nil {
		t.Fatal(err)
	}
	_, err := l.Read(5, 100, ReadUncommitted, true)
	code(t, err, api.ErrOffsetOutOfRange)
	run(6, 1)
	// Everything is too old: an empty segment stays at the end.
	w.cfg.CleanupDelete = true
	l.SetConfig(w.cfg)
	w.clock.Advance(2 * time.Hour)
	run(7, 1)
	if l.Size() != 0 || l.EndOffset() != 7 {
		t.Errorf("size %d, end %d", l.Size(), l.EndOffset())
	}
	// Deleted files stay for a minute under another name.
	names, _ := w.fs.ReadDir(l.Dir())
	deleted := slices.ContainsFunc(names, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), suffixDeleted) })
	w.clock.Advance(61 * time.Second)
	w.m.Tick()
	names, _ = w.fs.ReadDir(l.Dir())
	left := slices.ContainsFunc(names, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), suffixDeleted) })
	if !deleted || left {
		t.Errorf("deleted files: before the delay %v, after it %v", deleted, left)
	}
	w.close()
	w.open()
	if l = w.m.Log(TopicPartition{Topic: "a"}); l.LogStartOffset() != 7 || l.EndOffset() != 7 {
		t.Errorf("after a restart: %d to %d", l.LogStartOffset(), l.EndOffset())
	}
}

func TestRetentionStopsAtTheHighWatermark(t *testing.T) {
	w := memWorld(t)
	w.cfg.SegmentBytes = 200
	w.cfg.RetentionAge = time.Minute
	w.open()
	l := w.log("a")
	for range 6 {
		if _, err := l.Append(batch(w.now(), strings.Repeat("x", 100)), AppendOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	l.SetHighWatermark(3)
	w.clock.Advance(time.Hour)
	if _, err := l.DeleteOldSegments(); err != nil {
		t.Fatal(err)
	}
	if l.LogStartOffset() != 3 {
		t.Errorf("log start offset %d, want 3", l.LogStartOffset())
	}
}

// A slice that was handed out stays readable while its segment is deleted.
func TestSliceOutlivesItsSegment(t *testing.T) {
	for _, fsys := range []vfs.FS{vfs.NewMem(), vfs.OS} {
		dir := "/d"
		if fsys == vfs.OS {
			dir = t.TempDir()
		}
		w := newWorld(t, fsys, dir)
		w.cfg.SegmentBytes, w.cfg.FileDeleteDelay = 200, 0
		w.opts = func(o *Options) { o.MaxOpenFiles = 2 }
		w.open()
		l := w.log("a")
		for i := range 10 {
			mustAppend(t, l, batch(w.now(), fmt.Sprint(i, strings.Repeat("x", 100))))
		}
		f, err := l.Read(0, 1<<20, ReadUncommitted, true)
		if err != nil || f.Slice.Len() == 0 {
			t.Fatal(err)
		}
		if err := l.IncrementLogStart(9, "test"); err != nil {
			t.Fatal(err)
		}
		if _, err := l.DeleteOldSegments(); err != nil {
			t.Fatal(err)
		}
		values(t, l, 9, ReadUncommitted)
		if err := w.m.Delete(l.TopicPartition()); err != nil {
			t.Fatal(err)
		}
		data, err := f.Slice.Bytes(nil)
		if err != nil || record.Entry(data).Check() != nil {
			t.Errorf("%d bytes: %v", len(data), err)
		}
		f.Slice.Release()
		if n := w.m.OpenFiles(); n != 0 {
			t.Errorf("%d files are open", n)
		}
	}
}

func TestTimestampPolicy(t *testing.T) {
	w := memWorld(t)
	w.cfg.TimestampBeforeMax, w.cfg.TimestampAfterMax = time.Hour, time.Minute
	w.open()
	l := w.log("a")
	_, err := l.Append(batch(w.now()-2*time.Hour.Milliseconds(), "old"), AppendOptions{})
	code(t, err, api.ErrInvalidTimestamp)
	if e, ok := errors.AsType[*InvalidRecordError](err); !ok || len(e.Records) != 1 {
		t.Errorf("record errors: %v", err)
	}
	_, err = l.Append(batch(w.now()+2*time.Minute.Milliseconds(), "new"), AppendOptions{})
	code(t, err, api.ErrInvalidTimestamp)
	if l.EndOffset() != 0 {
		t.Fatal("a refused batch was appended")
	}
	w.cfg.LogAppendTime = true
	l.SetConfig(w.cfg)
	info, err := l.Append(batch(1, "any"), AppendOptions{})
	if err != nil || info.LogAppendTime != w.now() || info.MaxTimestamp != w.now() {
		t.Fatal(info, err)
	}
	l.SetHighWatermark(1)
	f, err := l.Read(0, 1000, ReadUncommitted, true)
	if err != nil {
		t.Fatal(err)
	}
	data, _ := f.Slice.Bytes(nil)
	f.Slice.Release()
	b := record.Batch(data)
	if b.Check() != nil || !b.IsLogAppendTime() || b.MaxTimestamp() != w.now() {
		t.Errorf("stored with timestamp %d, log append time %v, %v", b.MaxTimestamp(), b.IsLogAppendTime(), b.Check())
	}
}

func TestSizes(t *testing.T) {
	w := memWorld(t)
	w.cfg.MaxMessageBytes = 300
	w.cfg.SegmentBytes = 250
	w.open()
	l := w.log("a")
	_, err := l.Append(batch(w.now(), strings.Repeat("x", 300)), AppendOptions{})
	code(t, err, api.ErrMessageTooLarge)
	_, err = l.Append(batch(w.now(), strings.Repeat("x", 200)), AppendOptions{})
	code(t, err, api.ErrRecordListTooLarge)
	two := append(batch(w.now(), "a"), batch(w.now(), "b")...)
	_, err = l.Append(two, AppendOptions{})
	code(t, err, api.ErrInvalidRecord)
	bad := batch(w.now(), "a")
	bad[len(bad)-1]++
	_, err = l.Append(bad, AppendOptions{})
	code(t, err, api.ErrCorruptMessage)
	if l.EndOffset() != 0 {
		t.Error("something was appended")
	}
	// The first batch goes out whole if it's asked for.
	mustAppend(t, l, batch(w.now(), strings.Repeat("x", 100)))
	f, err := l.Read(0, 10, ReadUncommitted, true)
	if err != nil || f.Slice.Len() < 100 || f.FirstBatchIncomplete {
		t.Errorf("%d bytes, incomplete %v, %v", f.Slice.Len(), f.FirstBatchIncomplete, err)
	}
	f.Slice.Release()
	f, err = l.Read(0, 10, ReadUncommitted, false)
	if err != nil || f.Slice.Len() != 10 || !f.FirstBatchIncomplete {
		t.Errorf("%d bytes, incomplete %v, %v", f.Slice.Len(), f.FirstBatchIncomplete, err)
	}
	f.Slice.Release()
}

func TestCompressionType(t *testing.T) {
	w := memWorld(t)
	w.cfg.Recompress, w.cfg.RecompressTo = true, record.Zstd
	w.open()
	l := w.log("a")
	if _, err := l.Append(producerBatch(w.now(), 5, 0, 0, false, "a", "b", strings.Repeat("c", 500)), AppendOptions{LeaderEpoch: 3}); err != nil {
		t.Fatal(err)
	}
	l.SetHighWatermark(3)
	if got := values(t, l, 0, ReadUncommitted); len(got) != 3 || l.Size() > 200 {
		t.Errorf("%d records in %d bytes", len(got), l.Size())
	}
	if info, err := l.Append(producerBatch(w.now(), 5, 0, 0, false, "a", "b", strings.Repeat("c", 500)), AppendOptions{}); err != nil || !info.Duplicate {
		t.Errorf("a retry of a recompressed batch: %+v %v", info, err)
	}
}

func TestFullDisk(t *testing.T) {
	w := memWorld(t)
	mem := w.fs.(*vfs.Mem)
	w.cfg.SegmentBytes = 1000
	w.cfg.FileDeleteDelay = 0
	failed := false
	w.opts = func(o *Options) { o.OnDirFailure = func(string, error) { failed = true } }
	w.open()
	l := w.log("a")
	for i := range 5 {
		mustAppend(t, l, batch(w.now(), fmt.Sprint(i)))
	}
	for _, room := range []int64{0, 1, 30, 70} {
		mem.SetCapacity(mem.Used() + room)
		for i := range 20 { // through rolls, too
			_, err := l.Append(batch(w.now(), fmt.Sprint("no", i), strings.Repeat("x", 200)), AppendOptions{})
			code(t, err, api.ErrKafkaStorageError)
		}
		if got := values(t, l, 0, ReadLogEnd); len(got) != 5 {
			t.Fatalf("room %d: %v", room, got)
		}
		w.m.CheckpointRecoveryPoints()
		w.m.Tick()
	}
	mem.SetCapacity(-1)
	for i := range 5 {
		mustAppend(t, l, batch(w.now(), fmt.Sprint(5+i), strings.Repeat("x", 200)))
	}
	if failed || w.m.Dirs()[0].Offline != nil {
		t.Error("the directory went offline")
	}
	want := values(t, l, 0, ReadLogEnd)
	w.abandon()
	w.open()
	l = w.m.Log(TopicPartition{Topic: "a"})
	if got := values(t, l, 0, ReadLogEnd); !slices.Equal(got, want) || len(got) != 15 {
		t.Errorf("after a crash: %v, want %v", got, want)
	}
}

func TestTornWriteIsCutOff(t *testing.T) {
	w := memWorld(t)
	plan, err := vfs.ParsePlan(`
		write *.log 2 short 40 ENOSPC
		truncate *.log 1..3 ENOSPC
	`)
	if err != nil {
		t.Fatal(err)
	}
	var ops []vfs.OpKind
	w.fs = vfs.Hook(vfs.Inject(w.fs, plan), func(op vfs.Op) error {
		if strings.HasSuffix(op.Path, ".log") && op.Kind.Changes() {
			ops = append(ops, op.Kind)
		}
		return nil
	})
	w.open()
	l := w.log("a")
	mustAppend(t, l, batch(w.now(), "one"))
	ops = nil
	for range 3 {
		_, err := l.Append(batch(w.now(), "two"), AppendOptions{})
		code(t, err, api.ErrKafkaStorageError)
	}
	mustAppend(t, l, batch(w.now(), "three"))
	if got := values(t, l, 0, ReadLogEnd); fmt.Sprint(got) != "[0:one 1:three]" {
		t.Error(got)
	}
	if want := "[write truncate truncate truncate truncate sync write]"; fmt.Sprint(ops) != want {
		t.Errorf("operations %v, want %s: what was cut must not come back behind new batches", ops, want)
	}
}

func TestOneDirectoryFails(t *testing.T) {
	w := memWorld(t, "/d1", "/d2")
	plan, err := vfs.ParsePlan("write /d1/*/*.log 3.. EIO")
	if err != nil {
		t.Fatal(err)
	}
	w.fs = vfs.Inject(w.fs, plan)
	var failed []string
	w.opts = func(o *Options) { o.OnDirFailure = func(dir string, err error) { failed = append(failed, dir) } }
	w.open()
	a, b := w.log("a"), w.log("b")
	if a.DirID() == b.DirID() {
		t.Fatal("both logs are in one directory")
	}
	for range 2 {
		mustAppend(t, a, batch(w.now(), "x"))
		mustAppend(t, b, batch(w.now(), "x"))
	}
	if strings.HasPrefix(b.Dir(), "/d1") {
		a, b = b, a
	}
	_, err = a.Append(batch(w.now(), "x"), AppendOptions{})
	code(t, err, api.ErrKafkaStorageError)
	_, err = a.Read(0, 100, ReadLogEnd, true)
	code(t, err, api.ErrKafkaStorageError)
	mustAppend(t, b, batch(w.now(), "y"))
	w.m.Tick()
	if !slices.Equal(failed, []string{"/d1"}) {
		t.Errorf("failures told: %v", failed)
	}
	if d := w.m.Dirs(); d[0].Offline == nil || d[1].Offline != nil {
		t.Errorf("%+v", d)
	}
	if c := w.log("c"); !strings.HasPrefix(c.Dir(), "/d2") {
		t.Errorf("a new log was put into %s", c.Dir())
	}
	w.close()
	if _, err := w.fs.Stat("/d1/" + cleanShutdownFile); err == nil {
		t.Error("the failed directory has a clean-shutdown marker")
	}
	if _, err := w.fs.Stat("/d2/" + cleanShutdownFile); err != nil {
		t.Error("the good directory has no clean-shutdown marker")
	}
	w.open()
	if w.m.WasClean() || w.m.PreviousBrokerEpoch() != -1 {
		t.Error("the stop was not clean in every directory")
	}
}

func TestUnreadableFilesTakeTheDirectoryOffline(t *testing.T) {
	for _, name := range []string{recoveryPointFile, logStartFile, highWatermarkFile, "a-0/" + epochFile, "a-0/" + partitionMetadataFile} {
		w := memWorld(t, "/d1", "/d2")
		w.open()
		w.log("a")
		w.log("b")
		w.close()
		if err := writeFile(w.fs, "/d1/"+name, []byte("garbage"), true); err != nil {
			t.Fatal(name, err)
		}
		m, err := w.tryOpen()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := m.Dirs(); d[0].Offline == nil || d[1].Offline != nil {
			t.Errorf("%s: %+v", name, d)
		}
		if m.Log(TopicPartition{Topic: "b"}) == nil {
			t.Errorf("%s: the other directory's log is gone", name)
		}
	}
}

func TestDirectoriesThatStopTheStart(t *testing.T) {
	f := func(what string, spoil func(w *world), wants string) {
		t.Helper()
		w := memWorld(t, "/d1", "/d2")
		w.open()
		w.log("a")
		w.close()
		spoil(w)
		if _, err := w.tryOpen(); err == nil || !strings.Contains(err.Error(), wants) {
			t.Errorf("%s: %v, want something with %q", what, err, wants)
		}
	}
	f("no dash", func(w *world) { w.fs.MkdirAll("/d1/nodash") }, "nodash")
	f("no number", func(w *world) { w.fs.MkdirAll("/d1/foo-bar") }, "foo-bar")
	f("bad segment name", func(w *world) { writeFile(w.fs, "/d1/a-0/abc.log", nil, false) }, "abc.log")
	f("twice", func(w *world) {
		w.fs.MkdirAll("/d2/a-0")
	}, "both in")
	f("not formatted", func(w *world) { w.fs.Remove("/d2/" + MetaPropertiesFile) }, "format")
	f("other node", func(w *world) {
		WriteMetaProperties(w.fs, "/d2", MetaProperties{Version: 1, NodeID: 2, ClusterID: "c", DirectoryID: testTopicID}, testStart)
	}, "node 2")
	f("other cluster", func(w *world) {
		WriteMetaProperties(w.fs, "/d2", MetaProperties{Version: 1, NodeID: 1, ClusterID: "x", DirectoryID: testTopicID}, testStart)
	}, "cluster")
	f("same directory id", func(w *world) {
		m, _ := ReadMetaProperties(w.fs, "/d1")
		WriteMetaProperties(w.fs, "/d2", m, testStart)
	}, "same directory id")
	f("locked", func(w *world) { w.fs.Lock("/d1/.lock") }, "in use")
}

func TestStraysAndDeletedReplicas(t *testing.T) {
	w := memWorld(t)
	w.open()
	mustAppend(t, w.log("a"), batch(w.now(), "x"))
	mustAppend(t, w.log("b"), batch(w.now(), "x"))
	if err := w.m.Delete(TopicPartition{Topic: "b"}); err != nil {
		t.Fatal(err)
	}
	if err := w.m.Delete(TopicPartition{Topic: "b"}); !errors.Is(err, ErrNoSuchReplica) {
		t.Errorf("deleting it again: %v", err)
	}
	w.close()
	w.fs.MkdirAll("/data/foo-3")
	w.opts = func(o *Options) {
		o.Known = func(tp TopicPartition, id uuid.UUID) bool { return tp.Topic == "other" }
	}
	w.open()
	suffixes := func() (out []string) {
		entries, _ := w.fs.ReadDir("/data")
		for _, e := range entries {
			if e.IsDir() {
				tp, kind, err := parseDirName(e.Name())
				if err != nil {
					t.Error(err)
				}
				out = append(out, tp.String()+kind.suffix())
			}
		}
		return out
	}
	if got := suffixes(); !slices.Equal(got, []string{"a-0-stray", "b-0-delete", "foo-3-stray"}) {
		t.Errorf("directories %v", got)
	}
	w.clock.Advance(2 * time.Minute)
	w.m.Tick()
	if got := suffixes(); !slices.Equal(got, []string{"a-0-stray", "foo-3-stray"}) {
		t.Errorf("a minute later %v", got)
	}
	w.close()
	data, err := readFile(w.fs, "/data/"+recoveryPointFile)
	if err != nil || strings.Contains(string(data), "a 0") {
		t.Errorf("recovery points %q %v", data, err)
	}
}

func TestMarkerNamesTheBrokerEpoch(t *testing.T) {
	w := memWorld(t, "/d1", "/d2")
	w.open()
	if w.m.PreviousBrokerEpoch() != -1 {
		t.Error("a broker epoch before any stop")
	}
	w.close()
	data, _ := readFile(w.fs, "/d1/"+cleanShutdownFile)
	if string(data) != `{"version":0,"brokerEpoch":7}` {
		t.Errorf("marker %q", data)
	}
	w.open()
	if e := w.m.PreviousBrokerEpoch(); e != 7 {
		t.Errorf("previous broker epoch %d", e)
	}
	w.close()
	writeFile(w.fs, "/d2/"+cleanShutdownFile, nil, false)
	w.open()
	if e := w.m.PreviousBrokerEpoch(); e != -1 || !w.m.WasClean() {
		t.Errorf("with an empty marker: epoch %d, clean %v", e, w.m.WasClean())
	}
}

// A clean stop leaves exactly the files that Kafka leaves.
func TestFilesAfterACleanStop(t *testing.T) {
	w := memWorld(t)
	w.cfg.SegmentBytes = 400
	w.cfg.IndexIntervalBytes = 100
	w.open()
	l := w.log("a")
	w.log("empty")
	for i := range 6 {
		mustAppend(t, l, producerBatch(w.now()+int64(i), 5, 0, int32(2*i), false, strings.Repeat("x", 60), "y"))
	}
	w.close()
	list := func(dir string) (out []string) {
		entries, err := w.fs.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			i, _ := e.Info()
			if e.IsDir() {
				out = append(out, e.Name()+"/")
			} else {
				out = append(out, fmt.Sprintf("%s:%d", strings.TrimPrefix(e.Name(), "00000000000000000"), i.Size()))
			}
		}
		return out
	}
	if got, want := list("/data/a-0"), []string{"000.index:8", "000.log:274", "000.timeindex:12", "004.index:8", "004.log:274", "004.snapshot:56",
		"004.timeindex:12", "008.index:8", "008.log:274", "008.snapshot:56", "008.timeindex:12", "012.snapshot:56", epochFile + ":8", partitionMetadataFile + ":43"}; !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	// Segments are made by the first append.
	if got, want := list("/data/empty-0"), []string{partitionMetadataFile + ":43"}; !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got, want := list("/data"), []string{".kafka_cleanshutdown:29", "a-0/", "empty-0/", "meta.properties:101", "recovery-point-offset-checkpoint:21", "replication-offset-checkpoint:21"}; !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestFlushSettings(t *testing.T) {
	w := memWorld(t)
	w.cfg.FlushMessages = 3
	w.open()
	l := w.log("a")
	for i := range 5 {
		mustAppend(t, l, batch(w.now(), fmt.Sprint(i)))
	}
	if l.RecoveryPoint() != 3 {
		t.Errorf("recovery point %d, want 3", l.RecoveryPoint())
	}
	w.cfg.FlushMessages, w.cfg.FlushInterval = 0, 10*time.Second
	l.SetConfig(w.cfg)
	w.clock.Advance(9 * time.Second)
	w.m.Tick()
	if l.RecoveryPoint() != 3 {
		t.Error("flushed too early")
	}
	w.clock.Advance(4 * time.Second)
	w.m.Tick()
	if l.RecoveryPoint() != 5 {
		t.Errorf("recovery point %d, want 5", l.RecoveryPoint())
	}
}

func TestFollower(t *testing.T) {
	w := memWorld(t)
	w.cfg.SegmentBytes = 300
	w.open()
	leader, follower := w.log("leader"), w.log("follower")
	var chunk []byte
	for i := range 10 {
		mustAppend(t, leader, batch(w.now(), fmt.Sprint(i), strings.Repeat("x", 50)))
	}
	for _, s := range leader.segs() {
		f, _ := s.open(w.m.e.files)
		b := make([]byte, s.size.Load())
		f.ReadAt(b, 0)
		s.release(w.m.e.files)
		chunk = append(chunk, b...)
	}
	info, err := follower.AppendFollower(chunk[:len(chunk)-5])
	if err != nil || info.LastOffset != 17 || follower.EndOffset() != 18 || follower.Segments() < 4 {
		t.Fatalf("%+v %v, end %d in %d segments", info, err, follower.EndOffset(), follower.Segments())
	}
	_, err = follower.AppendFollower(chunk)
	if e, ok := errors.AsType[*UnexpectedOffsetError](err); !ok || e.FirstOffset != 0 || e.LastOffset != 19 {
		t.Errorf("appending again: %v", err)
	}
	bad := slices.Clone(chunk)
	bad[80]++
	follower.TruncateFully(0)
	_, err = follower.AppendFollower(bad)
	code(t, err, api.ErrCorruptMessage)
	_, err = follower.AppendFollower(append(slices.Clone(chunk), chunk...))
	if _, ok := errors.AsType[*OutOfOrderError](err); !ok {
		t.Errorf("batches that don't ascend: %v", err)
	}
	if _, err := follower.AppendFollower(chunk); err != nil {
		t.Fatal(err)
	}
	if err := follower.TruncateTo(5); err != nil || follower.EndOffset() != 4 {
		t.Errorf("truncated into a batch: end %d, %v", follower.EndOffset(), err)
	}
	if got, want := values(t, follower, 0, ReadLogEnd), values(t, leader, 0, ReadLogEnd)[:4]; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestLeaderEpochs(t *testing.T) {
	w := memWorld(t)
	w.open()
	l := w.log("a")
	put := func(epoch int32, n int) {
		l.AssignEpochStart(epoch, l.EndOffset())
		for range n {
			if _, err := l.Append(batch(w.now(), "x"), AppendOptions{LeaderEpoch: epoch}); err != nil {
				t.Fatal(err)
			}
		}
		l.SetHighWatermark(l.EndOffset())
	}
	put(0, 3)
	put(2, 2)
	put(3, 0)
	put(5, 4)
	f := func(epoch, wantEpoch int32, wantEnd int64, wantOK bool) {
		t.Helper()
		if e, end, ok := l.EndOffsetForEpoch(epoch); e != wantEpoch || end != wantEnd || ok != wantOK {
			t.Errorf("end of epoch %d: (%d, %d, %v), want (%d, %d, %v)", epoch, e, end, ok, wantEpoch, wantEnd, wantOK)
		}
	}
	f(0, 0, 3, true)
	f(1, 0, 3, true)
	f(2, 2, 5, true)
	f(4, 2, 5, true)
	f(5, 5, 9, true)
	f(6, NoEpoch, UnknownOffset, false)
	f(NoEpoch, NoEpoch, UnknownOffset, false)
	w.close()
	data, _ := readFile(w.fs, "/data/a-0/"+epochFile)
	if string(data) != "0\n3\n0 0\n2 3\n5 5\n" {
		t.Errorf("file %q", data)
	}
	w.open()
	l = w.m.Log(TopicPartition{Topic: "a"})
	f(2, 2, 5, true)
	if err := l.TruncateTo(4); err != nil {
		t.Fatal(err)
	}
	f(2, 2, 4, true)
	f(5, NoEpoch, UnknownOffset, false)
	l.SetHighWatermark(4)
	if err := l.IncrementLogStart(2, "test"); err != nil {
		t.Fatal(err)
	}
	f(0, 0, 3, true)
	if o, ok, err := l.OffsetForTimestamp(TimestampEarliest); !ok || err != nil || o != (TimestampOffset{-1, 2, 0}) {
		t.Errorf("earliest %+v", o)
	}
}

func TestHighWatermarkCheckpoint(t *testing.T) {
	w := memWorld(t)
	w.open()
	l := w.log("a")
	for range 5 {
		if _, err := l.Append(batch(w.now(), "x"), AppendOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	l.SetHighWatermark(3)
	w.clock.Advance(6 * time.Second)
	w.m.Tick()
	w.abandon()
	w.open()
	if hw := w.m.Log(l.tp).HighWatermark(); hw != 3 {
		t.Errorf("high watermark %d, want 3", hw)
	}
	writeFile(w.fs, "/data/"+highWatermarkFile, []byte("0\n1\na 0 5000\n"), true)
	w.abandon()
	w.open()
	l = w.m.Log(l.tp)
	if hw := l.HighWatermark(); hw != 5 {
		t.Errorf("high watermark %d, want 5", hw)
	}
	// Nobody has committed what is appended next.
	again := func(want int64) {
		t.Helper()
		if _, err := l.Append(batch(w.now(), "x"), AppendOptions{}); err != nil {
			t.Fatal(err)
		}
		w.abandon()
		w.open()
		l = w.m.Log(l.tp)
		if hw := l.HighWatermark(); hw != want {
			t.Errorf("high watermark %d of a log to %d, want %d", hw, l.EndOffset(), want)
		}
	}
	again(5)
	if err := l.TruncateTo(2); err != nil {
		t.Fatal(err)
	}
	again(2)
}

// A segment that was not synced before a crash may be empty, and those behind it not. The metadata log has no gaps: it ends there.
func TestMetadataLogEndsBeforeAGap(t *testing.T) {
	mem := vfs.NewMem()
	mem.MkdirAll("/d")
	mem.SyncDir("/")
	cfg := DefaultConfig()
	cfg.SegmentBytes = 200
	open := func() *Log {
		l, err := OpenMetadata(context.Background(), MetadataOptions{FS: mem, Dir: "/d", Config: cfg})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	for i := range 10 {
		if _, err := l.Append(batch(testStart.UnixMilli(), fmt.Sprint(i)), AppendOptions{Origin: RaftLeader, LeaderEpoch: 4}); err != nil {
			t.Fatal(err)
		}
	}
	segs := l.segs()
	if err := l.Flush(); err != nil || len(segs) < 4 {
		t.Fatal(err, len(segs))
	}
	f, err := mem.OpenReadWrite(segs[1].name(suffixLog).path())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(0), f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	want := segs[1].base
	mem = mem.CrashClone(randFor(1), 1)
	if l = open(); l.EndOffset() != want {
		t.Errorf("the log ends at %d, want %d", l.EndOffset(), want)
	}
	if _, end, ok := l.EndOffsetForEpoch(4); !ok || end != want {
		t.Errorf("epoch 4 ends at %d %v, want %d", end, ok, want)
	}
	if _, err := l.Append(batch(testStart.UnixMilli(), "x"), AppendOptions{Origin: RaftLeader, LeaderEpoch: 5}); err != nil {
		t.Error(err)
	}
}

func TestMetadataLog(t *testing.T) {
	mem := vfs.NewMem()
	mem.MkdirAll("/d")
	mem.SyncDir("/")
	cfg := DefaultConfig()
	cfg.SegmentBytes = 500
	open := func() *Log {
		l, err := OpenMetadata(context.Background(), MetadataOptions{FS: mem, Dir: "/d", Config: cfg})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	for i := range 10 {
		two := append(batch(testStart.UnixMilli(), fmt.Sprint(i)), batch(testStart.UnixMilli(), fmt.Sprint(i, "b"))...)
		if info, err := l.Append(two, AppendOptions{Origin: RaftLeader, LeaderEpoch: 4}); err != nil || info.FirstOffset != int64(2*i) || info.LastOffset != int64(2*i+1) {
			t.Fatalf("%+v %v", info, err)
		}
		if err := l.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	mem = mem.CrashClone(randFor(1), 0)
	l = open()
	if l.EndOffset() != 20 || l.TopicID() != uuid.MetadataTopic {
		t.Fatalf("end %d, id %s", l.EndOffset(), l.TopicID())
	}
	l.SetHighWatermark(20)
	if err := l.IncrementLogStart(11, "snapshot"); err != nil {
		t.Fatal(err)
	}
	if n, err := l.DeleteOldSegments(); n == 0 || err != nil {
		t.Error(n, err)
	}
	if err := l.TruncateFully(50); err != nil || l.EndOffset() != 50 || l.LogStartOffset() != 50 {
		t.Error(err, l.EndOffset())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	_, err := l.Append(batch(1, "x"), AppendOptions{Origin: RaftLeader})
	code(t, err, api.ErrKafkaStorageError)
	l = open()
	if l.EndOffset() != 50 {
		t.Errorf("end %d", l.EndOffset())
	}
}

func TestDescriptorsRunOut(t *testing.T) {
	w := memWorld(t)
	open := 0
	w.fs = vfs.Hook(w.fs, func(op vfs.Op) error {
		if op.Kind == vfs.OpOpen && strings.HasSuffix(op.Path, suffixLog) && open%7 == 3 {
			open++
			return syscall.EMFILE
		}
		open++
		return nil
	})
	w.opts = func(o *Options) { o.MaxOpenFiles = 3 }
	w.open()
	for round := range 3 {
		for i := range 10 {
			l := w.log(fmt.Sprint("t", i))
			mustAppend(t, l, batch(w.now(), fmt.Sprint(round)))
			if got := values(t, l, 0, ReadUncommitted); len(got) != round+1 {
				t.Fatalf("%v", got)
			}
		}
		if n := w.m.OpenFiles(); n > 3 {
			t.Errorf("%d files are open", n)
		}
	}
}
