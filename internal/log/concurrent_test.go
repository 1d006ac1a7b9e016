package log

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gregor/internal/await"
	"gregor/internal/record"
)

// Appends, reads, rolls, flushes, retention, truncation and deletion at once: readers see whole batches with the right CRC and
// never anything beyond their bound.
func TestConcurrentUse(t *testing.T) {
	w := memWorld(t) // real syncs would let the appenders run away from everybody else
	w.cfg.SegmentBytes = 20000
	w.cfg.IndexIntervalBytes = 200
	w.cfg.FileDeleteDelay = 0
	w.cfg.RetentionBytes = 60000
	w.opts = func(o *Options) {
		o.MaxOpenFiles = 4
		o.Intervals = Intervals{RecoveryPoint: 1, LogStart: 1, HighWatermark: 1, Retention: 1, InitialDelay: 1, ProducerExpiry: 1, Flush: 1}
	}
	w.open()
	var logs []*Log
	for i := range 3 {
		logs = append(logs, w.log(fmt.Sprint("t", i)))
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	var rounds []*atomic.Int32
	run := func(f func()) {
		n := new(atomic.Int32)
		rounds = append(rounds, n)
		wg.Go(func() {
			for !stop.Load() {
				f()
				n.Add(1)
			}
		})
	}
	for _, l := range logs {
		n := int32(0)
		run(func() {
			var b []byte
			if n%3 == 0 {
				b = producerBatch(w.now(), 1, 0, n/3, true, fmt.Sprint(n))
			} else {
				b = batch(w.now(), fmt.Sprint(n), "more")
			}
			n++
			if _, err := l.Append(b, AppendOptions{LeaderEpoch: n / 100}); err != nil {
				t.Error(err)
				stop.Store(true)
			}
			l.SetHighWatermark(l.EndOffset() - 1)
			if n%50 == 0 {
				if _, err := l.Append(marker_(w.now(), 1, 0, n%100 == 0), AppendOptions{Origin: Coordinator}); err != nil {
					t.Error(err)
				}
			}
		})
		for _, iso := range []Isolation{ReadLogEnd, ReadUncommitted, ReadCommitted} {
			at := int64(0)
			run(func() {
				f, err := l.Read(at, 3000, iso, true)
				if err != nil {
					at = l.LogStartOffset()
					return
				}
				data, err := f.Slice.Bytes(nil)
				f.Slice.Release()
				if err != nil {
					t.Error(err)
					stop.Store(true)
				}
				if len(data) == 0 {
					at = l.LogStartOffset()
				}
				for {
					b, rest, err := record.Next(data)
					if err != nil || b == nil {
						return
					}
					if err := b.Check(); err != nil {
						t.Error(err)
						stop.Store(true)
					}
					if b.LastOffset() < at {
						t.Errorf("batch up to %d where %d was asked for", b.LastOffset(), at)
					}
					if iso == ReadUncommitted && b.BaseOffset() >= f.HighWatermark {
						t.Errorf("batch at %d beyond the high watermark %d", b.BaseOffset(), f.HighWatermark)
					}
					at, data = b.NextOffset(), rest
				}
			})
		}
	}
	run(func() {
		w.clock.Advance(time.Second)
		w.m.Tick()
		for _, l := range logs {
			l.Producers()
			l.Size()
			l.OffsetForTimestamp(TimestampMax)
			l.OffsetForTimestamp(testStart.UnixMilli() + 5000)
		}
	})
	run(func() {
		for _, l := range logs {
			if err := l.Flush(); err != nil {
				t.Error(err)
			}
		}
	})
	i := 0
	run(func() {
		i++
		l := w.log(fmt.Sprint("x", i%4))
		l.Append(batch(w.now(), "x"), AppendOptions{})
		if i%2 == 0 {
			l.TruncateTo(0)
		} else if err := w.m.Delete(l.tp); err != nil {
			t.Error(err)
		}
	})
	await.True(t, "everybody has had some rounds", func() bool {
		few := func(n *atomic.Int32) bool { return n.Load() < 3 }
		return stop.Load() || !slices.ContainsFunc(rounds, few)
	})
	stop.Store(true)
	wg.Wait()
	w.close()
	w.open()
	if !w.m.WasClean() {
		t.Error("no clean stop")
	}
	for _, l := range logs {
		if got := w.m.Log(l.tp); got.EndOffset() != l.EndOffset() || got.LogStartOffset() != l.LogStartOffset() {
			t.Errorf("%s: %d to %d, want %d to %d", l.tp, got.LogStartOffset(), got.EndOffset(), l.LogStartOffset(), l.EndOffset())
		}
	}
}
