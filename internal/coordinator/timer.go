package coordinator

import (
	"container/heap"
	"time"
)

// Timers are the timers of one shard: deadlines ordered in a heap. They belong to the shard's single thread of control. The
// zero value is ready for use.
//
// Sessions are prolonged far more often than they end, so moving a deadline into the future only notes it: the timer stays
// where it is in the heap and finds its new place when its old deadline comes up.
type Timers[R any] struct {
	heap timerHeap[R]
}

// Timer is one deadline and what to do then. Its owner sets Fire once and embeds it where the thing lives that it times;
// a timer belongs to one Timers.
type Timer[R any] struct {
	// Fire runs on the shard when the deadline has come. The timer is then no longer set, and Fire may set it again.
	Fire func(now time.Time) (Result[R], error)

	at     int64 // the deadline in Unix nanoseconds; 0 when not set
	queued int64 // the key under which it stands in the heap; at or earlier
	index  int   // its place in the heap plus 1; 0 when it is not in there
}

// Set makes t fire at the given time instead of whenever it would have.
func (ts *Timers[R]) Set(t *Timer[R], at time.Time) {
	t.at = at.UnixNano()
	switch {
	case t.index == 0:
		t.queued = t.at
		heap.Push(&ts.heap, t)
	case t.at < t.queued:
		t.queued = t.at
		heap.Fix(&ts.heap, t.index-1)
	}
}

// Stop makes t not fire.
func (ts *Timers[R]) Stop(t *Timer[R]) {
	t.at = 0
	if t.index != 0 {
		heap.Remove(&ts.heap, t.index-1)
	}
}

// Active says whether t is going to fire.
func (t *Timer[R]) Active() bool { return t.at != 0 }

// Deadline is when t is going to fire; only meaningful while it is Active.
func (t *Timer[R]) Deadline() time.Time { return time.Unix(0, t.at) }

// Next is the earliest time at which Expired has something to do; it may be earlier than the earliest deadline.
func (ts *Timers[R]) Next() (at time.Time, ok bool) {
	if len(ts.heap) == 0 {
		return time.Time{}, false
	}
	return time.Unix(0, ts.heap[0].queued), true
}

// Expired takes out and returns one timer whose deadline has come, nil if there is none.
func (ts *Timers[R]) Expired(now time.Time) *Timer[R] {
	n := now.UnixNano()
	for len(ts.heap) > 0 {
		t := ts.heap[0]
		switch {
		case t.queued > n:
			return nil
		case t.at > n: // prolonged meanwhile
			t.queued = t.at
			heap.Fix(&ts.heap, 0)
		default:
			heap.Pop(&ts.heap)
			t.at = 0
			return t
		}
	}
	return nil
}

// Len is the number of timers that are set.
func (ts *Timers[R]) Len() int { return len(ts.heap) }

// clear unsets all timers.
func (ts *Timers[R]) clear() {
	for _, t := range ts.heap {
		t.at, t.index = 0, 0
	}
	ts.heap = nil
}

type timerHeap[R any] []*Timer[R]

func (h timerHeap[R]) Len() int           { return len(h) }
func (h timerHeap[R]) Less(i, j int) bool { return h[i].queued < h[j].queued }
func (h timerHeap[R]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

func (h *timerHeap[R]) Push(x any) {
	t := x.(*Timer[R])
	*h = append(*h, t)
	t.index = len(*h)
}

func (h *timerHeap[R]) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = 0
	return t
}
