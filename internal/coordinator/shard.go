package coordinator

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gregor/internal/api"
	"gregor/internal/record"
	"gregor/internal/timeline"
)

type shardState uint8

const (
	stateInitial shardState = iota // made, but no election heard of yet
	stateLoading
	stateActive
	stateFailed // loading failed; the next election tries again
	stateClosed // out of the runtime's map
)

var stateNames = [...]string{"initial", "loading", "active", "failed", "closed"}

func (s shardState) String() string { return stateNames[s] }

// operation is one request on its way through a shard: first in the mailbox, then in a batch, then waiting for its commit.
type operation[C Core[R], R any] struct {
	// One of write, read and special says what to do.
	write   func(core C, now time.Time) (Result[R], error)
	read    func(core C, committed int64)
	special func(s *shard[C, R], now time.Time)

	done func(error)
	// committed is the Result's.
	committed func(now time.Time, err error)
	// offset is the log end offset that the high watermark has to reach; deadline is when waiting ends.
	offset   int64
	deadline time.Time
	finished bool

	transactional bool
	producerID    int64
	producerEpoch int16
}

// event is an entry of the mailbox: an operation, or something of the runtime's own.
type event[C Core[R], R any] struct {
	op       *operation[C, R]
	internal func(now time.Time)
}

// shard is one partition's state machine. See the package comment for how it is run.
type shard[C Core[R], R any] struct {
	rt        *Runtime[C, R]
	partition int32
	log       *slog.Logger

	// shown is state, for those who only look.
	shown atomic.Uint32

	mu       sync.Mutex // guards the fields down to running
	queue    []event[C, R]
	requests int   // operations in queue
	hw       int64 // the highest that was told
	running  bool  // somebody is in run

	// The rest belongs to the runner.
	spare    []event[C, R] // a drained queue's memory
	state    shardState
	epoch    int32 // leader epoch of the partition, -1 before the first election
	core     C
	registry *timeline.Registry
	timers   Timers[R]
	wake     *time.Timer // calls wakeUp at armed; nil before the first timer
	armed    time.Time   // zero when wake is not pending
	load     *load[C, R] // while loading
	// written is the log end offset as the state machine knows it; committed the part of it that can't be lost. marks are
	// the snapshots between the two, in rising order, written being the last.
	written, committed int64
	marks              []int64
	batch              *batch[C, R] // what gathers, nil if nothing does
	waiting            []*operation[C, R]
	overdue            Timer[R] // fires when the first of waiting has waited too long
	lingered           Timer[R] // fires when batch has gathered long enough
	builder            *record.Builder
	keyBuf, valueBuf   []byte
	outbox             []func()
}

func newShard[C Core[R], R any](rt *Runtime[C, R], partition int32) *shard[C, R] {
	s := &shard[C, R]{
		rt:        rt,
		partition: partition,
		log:       rt.o.Logger.With("partition", partition),
		epoch:     -1,
	}
	s.overdue.Fire = func(now time.Time) (Result[R], error) {
		s.timeOut(now)
		return Result[R]{}, nil
	}
	s.lingered.Fire = func(now time.Time) (Result[R], error) {
		return Result[R]{}, s.flush(now)
	}
	return s
}

func (s *shard[C, R]) setState(state shardState) {
	s.state = state
	s.shown.Store(uint32(state))
}

// request puts an operation into the mailbox and runs the shard if nobody else does.
func (s *shard[C, R]) request(op *operation[C, R]) {
	s.mu.Lock()
	if s.requests >= s.rt.o.MailboxLimit {
		s.mu.Unlock()
		op.done(api.ErrCoordinatorLoadInProgress)
		return
	}
	s.requests++
	s.enqueue(event[C, R]{op: op})
}

// submit puts an event of the runtime's own into the mailbox, whatever is in there, and runs the shard if nobody else does.
func (s *shard[C, R]) submit(f func(now time.Time)) {
	s.mu.Lock()
	s.enqueue(event[C, R]{internal: f})
}

// enqueue needs mu and releases it.
func (s *shard[C, R]) enqueue(e event[C, R]) {
	s.queue = append(s.queue, e)
	if s.running {
		s.mu.Unlock()
		return
	}
	s.running = true
	s.mu.Unlock()
	s.run()
}

// highWatermark notes a new high watermark. The caller may hold locks that an append needs, so the shard isn't run on its
// goroutine.
func (s *shard[C, R]) highWatermark(hw int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hw <= s.hw {
		return
	}
	s.hw = hw
	if !s.running && s.rt.spawn(s.run) {
		s.running = true
	}
}

// run works off the mailbox, with running held, until there is nothing more to do or somebody else carries on.
func (s *shard[C, R]) run() {
	defer s.raise()
	for {
		s.mu.Lock()
		events := s.queue
		s.queue, s.requests = s.spare[:0], 0
		s.mu.Unlock()

		now := s.rt.o.Clock.Now()
		for i := range events {
			if e := &events[i]; e.op != nil {
				s.execute(now, e.op)
			} else {
				e.internal(now)
			}
		}
		clear(events)
		s.spare = events[:0]

		if s.state == stateActive {
			s.expire(now)
			s.flushDue(now)
		}
		s.mu.Lock()
		hw := s.hw
		s.mu.Unlock()
		if s.state == stateActive {
			s.advance(now, hw)
			s.watchOverdue()
		}
		s.arm(now)

		outbox := s.outbox
		s.outbox = nil
		s.mu.Lock()
		idle := len(s.queue) == 0 && s.hw == hw
		s.running = !idle
		s.mu.Unlock()
		if !idle && len(outbox) == 0 {
			continue
		}
		// Replies may take long, so the shard is given away before they are sent.
		handedOver := !idle && s.rt.spawn(s.run)
		for _, f := range outbox {
			f()
		}
		if idle || handedOver {
			return
		}
	}
}

// later is Env.Later.
func (s *shard[C, R]) later(f func()) { s.outbox = append(s.outbox, f) }

// execute runs one operation against the core.
func (s *shard[C, R]) execute(now time.Time, op *operation[C, R]) {
	switch s.state {
	case stateActive:
	case stateLoading:
		s.finish(now, op, api.ErrCoordinatorLoadInProgress)
		return
	default:
		s.finish(now, op, api.ErrNotCoordinator)
		return
	}
	op.deadline = now.Add(s.rt.o.WriteTimeout)
	switch {
	case op.read != nil:
		op.read(s.core, s.committed)
	case op.special != nil:
		op.special(s, now)
	default:
		res, err := op.write(s.core, now)
		s.conclude(now, op, res, err)
	}
}

// conclude takes what an operation has decided to the batch.
func (s *shard[C, R]) conclude(now time.Time, op *operation[C, R], res Result[R], err error) {
	op.committed = res.Committed
	if err == nil && len(res.Records) > 0 {
		err = s.add(now, op, &res)
		if err == nil {
			return
		}
	}
	switch {
	case err != nil:
		s.finish(now, op, err)
	case s.batch != nil:
		s.batch.ops = append(s.batch.ops, op)
	case s.committed < s.written:
		s.wait(op, s.written)
	default:
		s.finish(now, op, nil)
	}
}

// finish ends an operation; only the first time counts.
func (s *shard[C, R]) finish(now time.Time, op *operation[C, R], err error) {
	if op.finished {
		return
	}
	op.finished = true
	if op.committed != nil {
		op.committed(now, err)
	}
	if op.done != nil {
		done := op.done
		s.later(func() { done(err) })
	}
}

// wait parks an operation until the high watermark reaches offset.
func (s *shard[C, R]) wait(op *operation[C, R], offset int64) {
	op.offset = offset
	s.waiting = append(s.waiting, op)
}

// wrote notes that the log now ends at offset with what was applied.
func (s *shard[C, R]) wrote(offset int64) {
	s.written = offset
	s.registry.Snapshot(offset)
	s.marks = append(s.marks, offset)
}

// advance moves the committed offset up to a high watermark and finishes what waited for it.
func (s *shard[C, R]) advance(now time.Time, hw int64) {
	n := 0
	for n < len(s.marks) && s.marks[n] <= hw {
		n++
	}
	if n == 0 {
		return
	}
	s.committed = s.marks[n-1]
	s.marks = s.marks[:copy(s.marks, s.marks[n:])]
	s.registry.DeleteUpTo(s.committed)

	n = 0
	for n < len(s.waiting) && s.waiting[n].offset <= s.committed {
		n++
	}
	ready := s.waiting[:n]
	s.waiting = s.waiting[n:]
	for i, op := range ready {
		ready[i] = nil
		s.finish(now, op, nil)
	}
	if len(s.waiting) == 0 {
		s.waiting = ready[:0]
	}
}

// expire fires the timers that are due.
func (s *shard[C, R]) expire(now time.Time) {
	for {
		t := s.timers.Expired(now)
		if t == nil {
			return
		}
		op := &operation[C, R]{deadline: now.Add(s.rt.o.WriteTimeout)}
		op.done = func(err error) {
			if err != nil {
				s.log.Warn("coordinator timer failed", "err", err)
			}
		}
		res, err := t.Fire(now)
		s.conclude(now, op, res, err)
	}
}

// watchOverdue sees to it that operations whose commit takes too long are answered.
func (s *shard[C, R]) watchOverdue() {
	if len(s.waiting) > 0 && !s.overdue.Active() {
		s.timers.Set(&s.overdue, s.waiting[0].deadline)
	}
}

// timeOut answers the operations that have waited too long. Their records stay where they are and may still be committed.
func (s *shard[C, R]) timeOut(now time.Time) {
	n := 0
	for n < len(s.waiting) && !s.waiting[n].deadline.After(now) {
		n++
	}
	late := s.waiting[:n]
	s.waiting = s.waiting[n:]
	for i, op := range late {
		late[i] = nil
		s.finish(now, op, api.ErrRequestTimedOut)
	}
}

// arm sets the wake-up for the next timer.
func (s *shard[C, R]) arm(now time.Time) {
	next, ok := s.timers.Next()
	if !ok || (!s.armed.IsZero() && !next.Before(s.armed)) {
		return
	}
	s.armed = next
	if s.wake == nil {
		s.wake = time.AfterFunc(next.Sub(now), s.wakeUp)
	} else {
		s.wake.Reset(next.Sub(now))
	}
}

// wakeUp runs on a goroutine of its own when a timer is due.
func (s *shard[C, R]) wakeUp() {
	if !s.rt.enter() {
		return
	}
	defer s.rt.wg.Done()
	s.submit(func(time.Time) { s.armed = time.Time{} })
}

// elected makes the shard serve as of a leader epoch.
func (s *shard[C, R]) elected(epoch int32) {
	if s.state == stateClosed {
		// It was unloaded, but the runtime had not forgotten it yet when this came. Another shard takes over.
		s.later(func() { s.rt.Load(s.partition, epoch) })
		return
	}
	if epoch <= s.epoch {
		s.log.Debug("ignored election", "leader_epoch", epoch, "current", s.epoch)
		return
	}
	s.epoch = epoch
	if s.state == stateInitial || s.state == stateFailed {
		s.startLoad()
	}
}

// resign ends the shard if it was elected in an earlier epoch than the given one, or if that is negative.
func (s *shard[C, R]) resign(now time.Time, epoch int32) {
	if s.state == stateClosed || (epoch >= 0 && epoch <= s.epoch) {
		return
	}
	s.log.Info("coordinator partition unloaded", "leader_epoch", s.epoch, "state", s.state.String())
	s.stop(now, stateClosed)
	s.rt.remove(s)
}

// stop takes the state machine away: everybody in it is told that this is not the coordinator.
func (s *shard[C, R]) stop(now time.Time, next shardState) {
	wasActive := s.state == stateActive
	s.setState(next)
	if s.load != nil {
		s.load.cancel.Store(true)
		s.load = nil
	}
	if wasActive {
		waiting := s.waiting
		s.waiting = nil
		for _, op := range waiting {
			s.finish(now, op, api.ErrNotCoordinator)
		}
		s.failBatch(now, api.ErrNotCoordinator)
		s.core.Unloaded(now)
	}
	s.timers.clear()
	if s.wake != nil {
		s.wake.Stop()
		s.armed = time.Time{}
	}
	var none C
	s.core, s.registry, s.marks = none, nil, nil
}
