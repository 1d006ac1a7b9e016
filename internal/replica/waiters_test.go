package replica

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

// heldBack is a partition whose high watermark stays at 0, since the other in-sync replica never fetches.
func (w *world) heldBack() *Partition {
	w.t.Helper()
	topic := uuid.UUID{15: 100}
	w.publish(&message.TopicRecord{Name: "a", TopicID: topic},
		&message.PartitionRecord{TopicID: topic, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1})
	p, err := w.m.Partition("a", 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func TestTimedOutAcksAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newWorld(t).heldBack()
		const n = 1000
		var expired atomic.Int32
		for i := range n {
			op := NewAckOp(1, func(errs []*api.Error) {
				if errs[0] != api.ErrRequestTimedOut {
					t.Errorf("wait %d ended with %v", i, errs[0])
				}
				expired.Add(1)
			})
			op.Wait(0, p, 0, int64(i+1))
			op.Start(time.Duration(i%7+1) * time.Second)
			synctest.Wait()
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		places := func() int {
			p.waitMu.Lock()
			defer p.waitMu.Unlock()
			return len(p.acks.items)
		}
		live := int(p.nAcks.Load())
		if timedOut := int(expired.Load()); live != n-timedOut || places() > 2*live+1 {
			t.Errorf("%d waits and %d places with %d timed out", live, places(), timedOut)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if expired.Load() != n || p.nAcks.Load() != 0 || places() != 0 {
			t.Errorf("%d timed out, %d waits and %d places left", expired.Load(), p.nAcks.Load(), places())
		}
	})
}

// A wait that is parked while the high watermark passes its record must not miss it. When one does, the bubble's minute is over
// at once.
func TestAckParkedWhileTheHighWatermarkMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newWorld(t).heldBack()
		w := &world{t: t, m: p.m}
		const n = 5000
		var end, missed atomic.Int64
		go func() {
			for hw := int64(0); hw < n; {
				if e := end.Load(); e > hw {
					hw = e
					p.raise(hw)
					p.Wake()
				}
			}
		}()
		for range n {
			e := w.append(p, "v").LastOffset + 1
			op := NewAckOp(1, func(errs []*api.Error) {
				if errs[0] != nil {
					missed.Add(1)
				}
			})
			end.Store(e)
			op.Wait(0, p, 0, e)
			op.Start(time.Minute)
		}
		time.Sleep(2 * time.Minute)
		if n := missed.Load(); n > 0 {
			t.Errorf("%d waits have missed the high watermark", n)
		}
	})
}

// TestAckQueue compares the queue with a plain list.
func TestAckQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q ackQueue
		var model []ackWait
		next := int64(0)
		take := func(keep func(w ackWait) bool) (taken, left []ackWait) {
			for _, w := range model {
				if keep(w) {
					left = append(left, w)
				} else {
					taken = append(taken, w)
				}
			}
			return taken, left
		}
		same := func(got, want []ackWait) {
			if len(got) != len(want) {
				t.Fatalf("%d waits, want %d", len(got), len(want))
			}
			for i := range got {
				if got[i].op != want[i].op || got[i].offset != want[i].offset {
					t.Fatalf("wait %d is for %d, want %d", i, got[i].offset, want[i].offset)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				next += rapid.Int64Range(0, 2).Draw(t, "step")
				w := ackWait{offset: next, op: new(AckOp)}
				q.push(w)
				model = append(model, w)
			},
			"reach": func(t *rapid.T) {
				hw := rapid.Int64Range(0, next+1).Draw(t, "hw")
				want, left := take(func(w ackWait) bool { return w.offset > hw })
				same(q.popReached(hw, nil), want)
				model = left
			},
			"remove": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("nothing waits")
				}
				w := model[rapid.IntRange(0, len(model)-1).Draw(t, "which")]
				if !q.remove(w.op, w.offset) || q.remove(w.op, w.offset) {
					t.Fatalf("the wait for %d is not there once", w.offset)
				}
				_, model = take(func(o ackWait) bool { return o.op != w.op })
			},
			"fail": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					same(q.popAll(nil), model)
					model = nil
				}
			},
			"": func(t *rapid.T) {
				if live := len(q.items) - q.head; live-q.gaps != len(model) || q.gaps > len(model) {
					t.Fatalf("%d places with %d gaps for %d waits", live, q.gaps, len(model))
				}
			},
		})
	})
}
