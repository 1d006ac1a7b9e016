package sim

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// Loop is a world of its own time: a queue of events that are done one after the other on the goroutine that calls Run. What
// happens in it follows from the seed, as long as all randomness comes from Rand or from generators that it seeded.
type Loop struct {
	Rand *rand.Rand

	now    time.Duration
	seq    uint64
	events loopEvents
	hash   uint64
}

type loopEvent struct {
	at  time.Duration
	seq uint64 // among those of one instant
	do  func()
}

type loopEvents []loopEvent

func (q loopEvents) Len() int { return len(q) }
func (q loopEvents) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q loopEvents) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *loopEvents) Push(x any)   { *q = append(*q, x.(loopEvent)) }
func (q *loopEvents) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = loopEvent{}
	*q = old[:len(old)-1]
	return e
}

// NewLoop makes a world from a seed, at time 0.
func NewLoop(seed uint64) *Loop {
	return &Loop{Rand: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)), hash: 14695981039346656037}
}

// Now is the time since the beginning.
func (l *Loop) Now() time.Duration { return l.now }

// After has something done in d from now. What is due at one instant is done in the order in which it was asked for.
func (l *Loop) After(d time.Duration, do func()) {
	l.seq++
	heap.Push(&l.events, loopEvent{l.now + max(d, 0), l.seq, do})
}

// Run does what is due until a time, or until stop, unless it is nil, says so. The time is until then.
func (l *Loop) Run(until time.Duration, stop func() bool) {
	for len(l.events) > 0 && l.events[0].at <= until {
		if stop != nil && stop() {
			return
		}
		e := heap.Pop(&l.events).(loopEvent)
		l.now = e.at
		e.do()
	}
	l.now = max(l.now, until)
}

// Between draws a duration from a to b.
func (l *Loop) Between(a, b time.Duration) time.Duration {
	return a + time.Duration(l.Rand.Int64N(int64(b-a)+1))
}

// Chance is true with probability p.
func (l *Loop) Chance(p float64) bool { return p > 0 && l.Rand.Float64() < p }

// Note adds to the trace what happened.
func (l *Loop) Note(words ...uint64) {
	for _, w := range words {
		l.hash = (l.hash ^ w) * 1099511628211
	}
}

// Trace is a hash over the time and order of all that was noted: two runs with the same trace are the same run.
func (l *Loop) Trace() uint64 { return l.hash ^ uint64(l.now) }

// Links carries messages between nodes of a Loop, which are numbered. They are lost, late, repeated and overtake each other.
type Links struct {
	Loop *Loop
	// Evil is the probability with which a message is lost, and with which it is late; half as many are repeated.
	Evil float64
	// Latency is of a message that is not late: from one to ten times that much.
	Latency time.Duration

	cut map[[2]int32]bool
}

// Send delivers something from one node to another, by calling do, if and when it arrives. A node always reaches itself.
func (n *Links) Send(from, to int32, do func()) {
	l := n.Loop
	if from == to {
		l.After(0, do)
		return
	}
	if n.cut[[2]int32{from, to}] || l.Chance(n.Evil) {
		return
	}
	if l.Chance(n.Evil / 2) {
		l.After(l.Between(time.Millisecond, 400*time.Millisecond), do)
	}
	d := l.Between(n.Latency, 10*n.Latency)
	if l.Chance(n.Evil) {
		d = l.Between(time.Millisecond, 300*time.Millisecond)
	}
	l.After(d, do)
}

// Cut lets nothing pass from one node to another; the other direction stays as it is.
func (n *Links) Cut(from, to int32) {
	if n.cut == nil {
		n.cut = make(map[[2]int32]bool)
	}
	n.cut[[2]int32{from, to}] = true
}

// Heal undoes all cuts.
func (n *Links) Heal() { clear(n.cut) }
