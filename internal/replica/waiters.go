package replica

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gregor/internal/api"
)

// ackWait is a produce's wait on one partition: done once the high watermark has reached offset, or the partition is not led in
// leaderEpoch any more. (A wait for a low watermark ends with the epoch, too, and does not look at it.)
type ackWait struct {
	offset      int64
	leaderEpoch int32
	op          *AckOp
	index       int
}

// ackQueue holds the acks=all waits of a partition in offset order. A wait that was given up leaves a gap (no op), and gaps
// never outnumber waits.
type ackQueue struct {
	items []ackWait
	head  int
	gaps  int
}

func (q *ackQueue) push(w ackWait) {
	q.items = append(q.items, w)
	// Appends of different connections may get here out of order; they are neighbours at most.
	for i := len(q.items) - 1; i > q.head && q.items[i-1].offset > q.items[i].offset; i-- {
		q.items[i-1], q.items[i] = q.items[i], q.items[i-1]
	}
}

// popReached moves the waits that hw has reached to dst.
func (q *ackQueue) popReached(hw int64, dst []ackWait) []ackWait {
	for q.head < len(q.items) && q.items[q.head].offset <= hw {
		if w := q.items[q.head]; w.op != nil {
			dst = append(dst, w)
		} else {
			q.gaps--
		}
		q.items[q.head] = ackWait{}
		q.head++
	}
	q.sweep()
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	} else if q.head > 64 && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return dst
}

func (q *ackQueue) popAll(dst []ackWait) []ackWait {
	for _, w := range q.items[q.head:] {
		if w.op != nil {
			dst = append(dst, w)
		}
	}
	clear(q.items)
	q.items, q.head, q.gaps = q.items[:0], 0, 0
	return dst
}

// remove takes the wait of op for offset out and says whether it was there.
func (q *ackQueue) remove(op *AckOp, offset int64) bool {
	live := q.items[q.head:]
	i, _ := slices.BinarySearchFunc(live, offset, func(w ackWait, offset int64) int { return cmp.Compare(w.offset, offset) })
	for ; i < len(live) && live[i].offset == offset; i++ {
		if live[i].op == op {
			live[i].op = nil
			q.gaps++
			q.sweep()
			return true
		}
	}
	return false
}

// sweep closes the gaps when they are many.
func (q *ackQueue) sweep() {
	if q.gaps > (len(q.items)-q.head)/2 {
		n := len(slices.DeleteFunc(q.items[q.head:], func(w ackWait) bool { return w.op == nil }))
		q.items, q.gaps = q.items[:q.head+n], 0
	}
}

// AckOp is one produce request that waits on some of its partitions: for the high watermark, for the disk, or for both. When
// each wait is settled, or the timeout is over, done is called once with one error for each index given to Wait and WaitFlush
// (nil: committed; an index never waited for stays nil).
type AckOp struct {
	mu      sync.Mutex // guards all below but done
	errs    []*api.Error
	pending []uint8
	parked  []parkedAck
	left    int
	started bool
	over    bool
	after   AfterFunc // of the partitions
	timer   Timer     // nil before the start
	grace   Timer     // what is left of the wait since its client hung up, nil while it is there
	done    func(errs []*api.Error)
}

// parkedAck is where an operation waits for a high watermark, or for a low watermark.
type parkedAck struct {
	partition *Partition
	offset    int64
	low       bool
}

// NewAckOp makes a wait over n partitions. After all Wait calls, Start must be called.
func NewAckOp(n int, done func(errs []*api.Error)) *AckOp {
	return &AckOp{errs: make([]*api.Error, n), pending: make([]uint8, n), done: done}
}

// Wait parks index i of the operation on p until the high watermark reaches offset, which is the offset after the last
// record. leaderEpoch is that of the append: when another one has come, the record may have been cut off.
func (op *AckOp) Wait(i int, p *Partition, leaderEpoch int32, offset int64) {
	op.add(i, p)
	err, parked := p.parkAck(ackWait{offset: offset, leaderEpoch: leaderEpoch, op: op, index: i})
	if !parked {
		op.settle(i, err)
		return
	}
	op.mu.Lock()
	op.parked = append(op.parked, parkedAck{p, offset, false})
	op.mu.Unlock()
}

// WaitDeleted parks index i of the operation on p until no replica in service has records below offset.
func (op *AckOp) WaitDeleted(i int, p *Partition, offset int64) {
	op.add(i, p)
	op.mu.Lock()
	op.parked = append(op.parked, parkedAck{p, offset, true})
	op.mu.Unlock()
	if err, parked := p.parkDeleted(ackWait{offset: offset, op: op, index: i}); !parked {
		op.settle(i, err)
	}
}

// WaitFlush parks index i of the operation on p until what is in the log now is on disk ("gregor.acks.flush").
func (op *AckOp) WaitFlush(i int, p *Partition) {
	op.add(i, p)
	p.flusher.wait(p, func(err *api.Error) { op.settle(i, err) })
}

func (op *AckOp) add(i int, p *Partition) {
	op.mu.Lock()
	op.after = p.m.after
	op.pending[i]++
	op.left++
	op.mu.Unlock()
}

// Start arms the timeout; done may be called from within.
func (op *AckOp) Start(timeout time.Duration) {
	op.mu.Lock()
	op.started = true
	if op.left == 0 {
		op.finishLocked()
		return
	}
	op.timer = op.after(timeout, op.expire)
	op.mu.Unlock()
}

// hangupGrace is how long a wait goes on without its client. One that has only closed its own half, after its last request, is
// nearly always answered within it.
const hangupGrace = time.Second

// Expire makes the time of the wait be over soon. It may be called at any time after Start.
func (op *AckOp) Expire() {
	op.mu.Lock()
	defer op.mu.Unlock()
	if !op.over && op.grace == nil {
		op.grace = op.after(hangupGrace, op.expire)
	}
}

func (op *AckOp) settle(i int, err *api.Error) {
	op.mu.Lock()
	if op.over {
		op.mu.Unlock()
		return
	}
	op.pending[i]--
	if err != nil {
		op.errs[i] = err
	}
	op.left--
	if op.left > 0 || !op.started {
		op.mu.Unlock()
		return
	}
	op.finishLocked()
}

func (op *AckOp) expire() {
	op.mu.Lock()
	if op.over {
		op.mu.Unlock()
		return
	}
	for i, waits := range op.pending {
		if waits > 0 {
			op.errs[i] = api.ErrRequestTimedOut
		}
	}
	parked := op.parked
	op.finishLocked()
	// The high watermarks may not move for long: nothing of the request is kept until then.
	for _, at := range parked {
		if at.low {
			at.partition.unparkDeleted(op)
		} else {
			at.partition.unparkAck(op, at.offset)
		}
	}
}

// finishLocked unlocks op.mu and calls done.
func (op *AckOp) finishLocked() {
	op.over = true
	for _, t := range []Timer{op.timer, op.grace} {
		if t != nil {
			t.Stop()
		}
	}
	op.mu.Unlock()
	op.done(op.errs)
}

// FetchWait is a fetch that found too little and waits for more on all of its partitions. ready is called at most once:
// when bytes enough may have come, when one of the partitions changed its role, or when the time is over.
type FetchWait struct {
	need     atomic.Int64
	fired    atomic.Bool
	timer    Timer
	nodes    []fetchNode
	ready    func()
	follower bool // waits for what is appended, not for what is committed
	hurried  atomic.Bool
}

// fetchNode links a FetchWait into the list of one partition.
type fetchNode struct {
	wait      *FetchWait
	partition *Partition
	// role, hw and end are what the fetch saw: as which it read the partition, the high watermark and the log end. A follower's
	// hw is what it was last told.
	role       *role
	hw, end    int64
	prev, next *fetchNode
}

// AwaitFetch parks a fetch on the partitions of parts until about need more bytes have been appended to them, or timeout has
// passed, and then calls ready: from the goroutine that brought the bytes, from the timer's, or, when something was appended
// between the read and the parking, from this one. Expire ends the wait early.
//
// A follower waits for what is appended, anybody else for what is committed. A follower that doesn't know the newest high
// watermark waits only a little longer: the next records would bring it along, but they may not come soon.
func AwaitFetch(parts []FetchPartition, need int64, timeout time.Duration, follower bool, ready func()) *FetchWait {
	w := &FetchWait{ready: ready, follower: follower, nodes: make([]fetchNode, len(parts))}
	// A wait that is over soon anyway needs no hurry.
	w.hurried.Store(timeout <= hurryAfter)
	w.need.Store(max(need, 1))
	for i := range parts {
		w.nodes[i] = fetchNode{wait: w, partition: parts[i].Partition, role: parts[i].Result.role,
			hw: parts[i].Result.HighWatermark, end: parts[i].Result.logEnd}
		if follower {
			w.nodes[i].hw = parts[i].toldHW
		}
		if parts[i].Result.Throttled {
			w.nodes[i].partition = nil // what comes to it won't be sent
		}
	}
	// The timer is set going only once the field holds it, since whoever fires reads the field. From the first parking on
	// the fetch may be over at any moment, and parts another's.
	w.timer = afterFuncOf(parts)(time.Hour, w.fire)
	w.timer.Reset(timeout)
	missed := false
	for i := range w.nodes {
		n := &w.nodes[i]
		if n.partition == nil {
			continue
		}
		n.partition.parkFetch(n)
		// What was appended between the read and the parking has told nobody.
		missed = missed || n.partition.changedSince(n)
		if follower && n.partition.log().HighWatermark() > n.hw {
			n.partition.m.hurry(w)
		}
	}
	if missed {
		w.fire()
	}
	return w
}

// afterFuncOf makes timers for a wait on some partitions.
func afterFuncOf(parts []FetchPartition) AfterFunc {
	for i := range parts {
		if p := parts[i].Partition; p != nil {
			return p.m.after
		}
	}
	return systemAfterFunc
}

// Expire ends the wait as if its time were over. It may be called at any time, and again.
func (w *FetchWait) Expire() { w.fire() }

// hurryAfter is how long a follower that could be told of a newer high watermark may still wait for records.
const hurryAfter = 5 * time.Millisecond

// hurried are the waits that are to end soon. They nearly always end sooner, with the next records, so that one timer looks after all
// of them, and only while there are any: a timer of each wait's own, moved with each high watermark, cost more than the rest of it.
type hurried struct {
	mu            sync.Mutex // guards below
	latest, older []*FetchWait
	timer         Timer
	armed         bool
}

// hurry ends the wait after hurryAfter at the latest, and half of it at the earliest.
func (m *Manager) hurry(w *FetchWait) {
	if !w.hurried.CompareAndSwap(false, true) {
		return
	}
	h := &m.hurried
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latest = append(h.latest, w)
	if h.armed {
		return
	}
	h.armed = true
	if h.timer == nil {
		h.timer = m.after(hurryAfter/2, m.endHurried)
	} else {
		h.timer.Reset(hurryAfter / 2)
	}
}

func (m *Manager) endHurried() {
	h := &m.hurried
	h.mu.Lock()
	over := h.older
	h.older, h.latest = h.latest, nil
	if h.armed = len(h.older) > 0; h.armed {
		h.timer.Reset(hurryAfter / 2)
	}
	h.mu.Unlock()
	for _, w := range over {
		w.fire()
	}
}

// progress tells the wait of n bytes more, and says whether that settles it.
func (w *FetchWait) progress(n int64) bool { return w.need.Add(-n) <= 0 }

func (w *FetchWait) fire() {
	if !w.fired.CompareAndSwap(false, true) {
		return
	}
	w.timer.Stop()
	for i := range w.nodes {
		if n := &w.nodes[i]; n.partition != nil {
			n.partition.unparkFetch(n)
		}
	}
	w.ready()
}

// flusher syncs a partition for all who wait at once: those who come while a sync is under way share the next one.
type flusher struct {
	mu      sync.Mutex // guards both
	waiting []func(err *api.Error)
	busy    bool
}

func (f *flusher) wait(p *Partition, done func(err *api.Error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = append(f.waiting, done)
	if !f.busy {
		f.busy = true
		p.m.goes(func() { f.run(p) })
	}
}

// run syncs until nobody waits. It is the goroutine of whoever waited first and ends with the last wait.
func (f *flusher) run(p *Partition) {
	for {
		f.mu.Lock()
		batch := f.waiting
		f.waiting = nil
		if len(batch) == 0 {
			f.busy = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		var failed *api.Error
		if err := p.flush(); err != nil {
			failed = api.ErrKafkaStorageError
		}
		for _, done := range batch {
			done(failed)
		}
	}
}

// flush syncs the log. One that another takes the place of meanwhile, with the same records, can't be.
func (p *Partition) flush() error {
	for {
		l := p.log()
		if err := l.Flush(); err == nil || p.log() == l {
			return err
		}
	}
}
