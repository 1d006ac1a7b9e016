package log

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gregor/internal/record"
	"gregor/internal/vfs"

	"pgregory.net/rapid"
)

// modelRecord is a record in the model of a log: a slice of these, by offset.
type modelRecord struct {
	value string
	ts    int64
	epoch int32
	first int64 // offset of its batch's first record
	last  int64
}

// Whatever is done to a log, it is a slice of records with a beginning: reads, offsets by timestamp and ends of epochs are what
// a naive search in the slice gives, also after a clean stop and after the process's death.
func TestLogProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := memWorld(t)
		w.cfg.SegmentBytes = int32(rapid.IntRange(200, 1500).Draw(rt, "segment bytes"))
		w.cfg.IndexIntervalBytes = int32(rapid.SampledFrom([]int{0, 100, 4096}).Draw(rt, "index interval"))
		w.cfg.TimestampAfterMax = -1
		w.cfg.FileDeleteDelay = 0
		w.opts = func(o *Options) { o.MaxOpenFiles = 3 }
		w.open()
		l := w.log("a")
		var model []modelRecord
		start := int64(0)
		epoch := int32(0)
		n := 0
		reopen := func() {
			w.open()
			l = w.m.Log(TopicPartition{Topic: "a"})
			l.SetHighWatermark(l.EndOffset())
		}
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				if rapid.IntRange(0, 3).Draw(rt, "new epoch") == 0 {
					epoch += int32(rapid.IntRange(1, 2).Draw(rt, "epochs"))
					if err := l.AssignEpochStart(epoch, l.EndOffset()); err != nil {
						rt.Fatal(err)
					}
				}
				k := rapid.IntRange(1, 4).Draw(rt, "records")
				b := record.NewBuilder(record.BuilderOptions{LeaderEpoch: -1}.NoProducer())
				first := int64(len(model))
				for range k {
					n++
					r := modelRecord{value: fmt.Sprint("v", n), ts: testStart.UnixMilli() + int64(rapid.IntRange(-100, 100).Draw(rt, "ts")), epoch: epoch, first: first, last: first + int64(k) - 1}
					b.Append(r.ts, nil, []byte(r.value), nil)
					model = append(model, r)
				}
				out, err := b.Build()
				if err != nil {
					rt.Fatal(err)
				}
				info, err := l.Append(slices.Clone(out), AppendOptions{LeaderEpoch: epoch})
				if err != nil || info.FirstOffset != first || info.Records != k {
					rt.Fatalf("%+v %v", info, err)
				}
				l.SetHighWatermark(l.EndOffset())
			},
			"truncate": func(rt *rapid.T) {
				to := int64(rapid.IntRange(int(start), len(model)).Draw(rt, "offset"))
				if err := l.TruncateTo(to); err != nil {
					rt.Fatal(err)
				}
				if to < int64(len(model)) {
					to = model[to].first // batches go whole
				}
				model = model[:to:to]
				start = min(start, to)
			},
			"delete records": func(rt *rapid.T) {
				start = int64(rapid.IntRange(int(start), len(model)).Draw(rt, "offset"))
				if err := l.IncrementLogStart(start, "test"); err != nil {
					rt.Fatal(err)
				}
				if _, err := l.DeleteOldSegments(); err != nil {
					rt.Fatal(err)
				}
			},
			"flush": func(rt *rapid.T) {
				if err := l.Flush(); err != nil || l.RecoveryPoint() != int64(len(model)) {
					rt.Fatal(err, l.RecoveryPoint())
				}
			},
			"tick": func(rt *rapid.T) {
				w.clock.Advance(time.Minute)
				w.m.Tick()
			},
			"stop": func(rt *rapid.T) {
				w.close()
				reopen()
			},
			"die": func(rt *rapid.T) {
				// The log start offset is remembered by a checkpoint now and then only.
				if err := w.m.CheckpointLogStarts(); err != nil {
					rt.Fatal(err)
				}
				w.abandon()
				w.fs = w.fs.(*vfs.Mem).CrashClone(rand.New(rand.NewPCG(1, 1)), 1)
				reopen()
			},
			"read": func(rt *rapid.T) {
				at := int64(rapid.IntRange(int(start), len(model)).Draw(rt, "offset"))
				limit := rapid.IntRange(1, 400).Draw(rt, "max bytes")
				f, err := l.Read(at, limit, ReadUncommitted, true)
				if err != nil {
					rt.Fatal(err)
				}
				data, err := f.Slice.Bytes(nil)
				f.Slice.Release()
				if err != nil {
					rt.Fatal(err)
				}
				if (len(data) == 0) != (at == int64(len(model))) {
					rt.Fatalf("%d bytes at %d of %d", len(data), at, len(model))
				}
				b, rest, err := record.Next(data)
				if len(data) > 0 && (err != nil || b == nil || b.BaseOffset() != model[at].first || (len(data) > limit && len(rest) > 0)) {
					rt.Fatalf("at %d: %d bytes of %d, batch %v, %v", at, len(data), limit, b, err)
				}
			},
			"timestamp": func(rt *rapid.T) {
				ts := testStart.UnixMilli() + int64(rapid.IntRange(-110, 110).Draw(rt, "ts"))
				got, ok, err := l.OffsetForTimestamp(ts)
				if err != nil {
					rt.Fatal(err)
				}
				i := slices.IndexFunc(model[start:], func(r modelRecord) bool { return r.ts >= ts })
				if i < 0 {
					// A segment may hold an older record with such a timestamp, below the log start.
					if ok {
						rt.Fatalf("found %+v for %d", got, ts)
					}
					return
				}
				r := model[start:][i]
				if !ok || got != (TimestampOffset{r.ts, start + int64(i), r.epoch}) {
					rt.Fatalf("for %d: %+v %v, want %d at %d", ts, got, ok, r.ts, start+int64(i))
				}
			},
			"epoch": func(rt *rapid.T) {
				e := int32(rapid.IntRange(0, int(epoch)+1).Draw(rt, "epoch"))
				found, end, ok := l.EndOffsetForEpoch(e)
				if !ok || start == int64(len(model)) {
					return
				}
				// The first record of a later epoch is where e ends, if any is left.
				i := slices.IndexFunc(model[start:], func(r modelRecord) bool { return r.epoch > e })
				if i >= 0 && end != start+int64(i) && !(found == e && end == start) {
					rt.Fatalf("epoch %d ends at %d (found %d), want %d", e, end, found, start+int64(i))
				}
			},
			"": func(rt *rapid.T) {
				if l.LogStartOffset() != start || l.EndOffset() != int64(len(model)) {
					rt.Fatalf("log from %d to %d, want %d to %d", l.LogStartOffset(), l.EndOffset(), start, len(model))
				}
				var want []string
				for i := start; i < int64(len(model)); i++ {
					want = append(want, fmt.Sprintf("%d:%s", i, model[i].value))
				}
				if got := values(t, l, start, ReadLogEnd); !slices.Equal(got, want) {
					rt.Fatalf("got %v, want %v", got, want)
				}
				if n := w.m.OpenFiles(); n > 3 {
					rt.Fatalf("%d files are open", n)
				}
			},
		})
	})
}
