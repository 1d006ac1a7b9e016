package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// moveState says how far a move between log directories is.
type moveState uint8

const (
	// copying: the future log is filled.
	copying moveState = iota
	// asked: it had everything, and the controller is being told of the new directory (KIP-858).
	asked
	// accepted: the metadata names the new directory. Once the future log has everything again, it takes the log's place.
	accepted
)

// move is a replica on its way to another log directory of this broker (KIP-113).
type move struct {
	p      *Partition
	future *log.Log
	// Guarded by moves.mu.
	state    moveState
	failures int
	retryAt  time.Time
}

// moves are the replicas that move between log directories. A goroutine copies one partition at a time, in the order of their
// names, so that each is done soon; there are num.replica.alter.log.dirs.threads of them, while there is something to do.
type moves struct {
	m     *Manager
	n     int
	chunk int // bytes copied at a time
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu     sync.Mutex // guards all below
	all    map[*Partition]*move
	movers map[int]*mover
	closed bool
}

// mover copies for some of the moves.
type mover struct {
	s      *moves
	number int
	wake   chan struct{}
	work   map[*move]bool // guarded by moves.mu
	last   *move          // what was copied last; goes on being copied while it can be
}

func newMoves(m *Manager, n, chunk int) *moves {
	s := &moves{m: m, n: max(n, 1), chunk: max(chunk, 1), all: make(map[*Partition]*move), movers: make(map[int]*mover)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// add begins a move, or goes on with one that a restart has interrupted.
func (s *moves) add(p *Partition, future *log.Log, state moveState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	mv := &move{p: p, future: future, state: state}
	s.all[p] = mv
	k := int(uint64(p.tp.Partition)+uint64(p.topicID[15])) % s.n
	w := s.movers[k]
	if w == nil {
		w = &mover{s: s, number: k, wake: make(chan struct{}, 1), work: make(map[*move]bool)}
		s.movers[k] = w
		s.wg.Go(w.run)
	}
	w.work[mv] = true
	w.poke()
}

func (s *moves) get(p *Partition) *move {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[p]
}

// end takes a move out, if it is still under way, and says in which state it was.
func (s *moves) end(mv *move) (state moveState, was bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[mv.p] != mv {
		return 0, false
	}
	delete(s.all, mv.p)
	for _, w := range s.movers {
		delete(w.work, mv)
		w.poke()
	}
	return mv.state, true
}

// giveUp ends a move and deletes what was copied. If the controller may know of the new directory by now, it is told of the old
// one again.
func (s *moves) giveUp(p *Partition, why string) {
	mv := s.get(p)
	if mv == nil {
		return
	}
	state, was := s.end(mv)
	if !was {
		return
	}
	s.m.logger.Info("a move between log directories is given up", "partition", p.tp.String(), "to", mv.future.ParentDir(), "why", why)
	if err := s.m.logs.DropFuture(p.tp, mv.future); err != nil {
		s.m.logger.Error("delete what was copied of a replica", "partition", p.tp.String(), "err", err)
	}
	if p.gone.Load() == nil {
		s.takeBack(mv, state)
	}
}

// suspend ends a move whose replica is offline. What was copied stays, and is gone on with when the replica is back.
func (s *moves) suspend(p *Partition) {
	if mv := s.get(p); mv != nil {
		if state, was := s.end(mv); was {
			s.takeBack(mv, state)
		}
	}
}

// takeBack tells the controller where the replica is, if it may have been told where it was going to be: from a directory that it
// takes for online it would move no leader away.
func (s *moves) takeBack(mv *move, state moveState) {
	mv.p.mu.RLock() // it may be about to get there
	l := mv.p.log()
	mv.p.mu.RUnlock()
	if state != copying && s.m.assign != nil && l != mv.future {
		s.m.assign(mv.p.topicID, mv.p.tp.Partition, l.DirID(), nil)
	}
}

// close ends all copying and waits for it. What was copied stays, and is gone on with after the next start.
func (s *moves) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
}

func (w *mover) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run copies until there is nothing to move. The mover is gone then.
func (w *mover) run() {
	var buf []byte
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		mv, wait, over := w.next()
		if over || w.s.ctx.Err() != nil {
			return
		}
		if mv != nil {
			if quota := w.s.m.logDirQuota.wait(); quota > 0 {
				// A bound that is taken away isn't waited for.
				mv, wait = nil, min(quota, quotaRetry)
			}
		}
		if mv != nil {
			buf = w.step(mv, buf)
			continue
		}
		timer.Reset(wait)
		select {
		case <-w.s.ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// next is the move to go on with, or how long to wait for one. over says that there are none.
func (w *mover) next() (mv *move, wait time.Duration, over bool) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if len(w.work) == 0 {
		delete(w.s.movers, w.number)
		return nil, 0, true
	}
	now := w.s.m.clock.Now()
	wait = time.Hour
	for c := range w.work {
		if c.state == asked {
			continue
		}
		if late := c.retryAt.Sub(now); late > 0 {
			wait = min(wait, late)
			continue
		}
		switch {
		case mv == nil, c.before(mv, w.last):
			mv = c
		}
	}
	w.last = mv
	return mv, wait, false
}

// before says which of two moves to go on with: what only waits for its place to be taken, then what was begun, then by name.
func (mv *move) before(o, last *move) bool {
	if (mv.state == accepted) != (o.state == accepted) {
		return mv.state == accepted
	}
	if mv == last || o == last {
		return mv == last
	}
	return mv.p.tp.Compare(o.p.tp) < 0
}

// step copies a little for a move, and does what follows when there is nothing left to copy.
func (w *mover) step(mv *move, buf []byte) []byte {
	s := w.s
	n, err := 0, error(nil)
	if s.m.logs.Log(mv.p.tp) != nil { // else it is gone already, and all is copied
		n, buf, err = mv.future.CopyFrom(mv.p.log(), s.chunk, buf)
		s.m.logDirQuota.record(n)
	}
	if err == nil && n < s.chunk {
		err = s.caughtUp(mv, n == 0)
	}
	if err != nil {
		s.failed(mv, err)
		return buf
	}
	s.mu.Lock()
	mv.failures = 0
	s.mu.Unlock()
	return buf
}

// caughtUp goes on with a move whose future log has everything, or all but what was appended a moment ago.
func (s *moves) caughtUp(mv *move, wholly bool) error {
	s.mu.Lock()
	if s.all[mv.p] != mv {
		s.mu.Unlock()
		return nil
	}
	state := mv.state
	if state == copying && wholly {
		mv.state = asked
	}
	s.mu.Unlock()
	switch {
	case state == accepted:
		done, err := mv.p.replaceLog(mv.future, s.chunk)
		if done {
			s.end(mv)
			mv.p.Wake()
		}
		return err
	case state == copying && wholly:
		s.ask(mv)
		if s.get(mv.p) != mv {
			s.takeBack(mv, asked) // it was given up meanwhile, and the controller perhaps told of the old directory too soon
		}
	}
	return nil
}

// ask tells the controller of the new directory, where the metadata has directories at all.
func (s *moves) ask(mv *move) {
	agreed := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.all[mv.p] != mv {
			return
		}
		mv.state = accepted
		for _, w := range s.movers {
			w.poke()
		}
	}
	if s.m.assign == nil || !s.m.image.Load().Features.MetadataVersion.Directories() {
		agreed()
		return
	}
	s.m.assign(mv.p.topicID, mv.p.tp.Partition, mv.future.DirID(), agreed)
}

const (
	moveRetry    = 100 * time.Millisecond
	moveRetryMax = 30 * time.Second
)

// failed makes a move wait a little after an error, longer each time. When a directory has failed, its owner ends the move.
func (s *moves) failed(mv *move, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[mv.p] != mv {
		return
	}
	mv.retryAt = s.m.clock.Now().Add(min(moveRetry<<min(mv.failures, 20), moveRetryMax))
	mv.failures++
	s.m.logger.Error("a replica can't be copied to another log directory", "partition", mv.p.tp.String(), "to", mv.future.ParentDir(),
		"attempts", mv.failures, "err", err)
}

// replaceLog makes the future log the partition's log, after copying what is left. It returns false when that is too much to let
// appends wait for.
func (p *Partition) replaceLog(future *log.Log, chunk int) (done bool, err error) {
	// Most of what has to be on disk is, then, before anybody waits for it.
	if err := future.Flush(); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stMu.Lock()
	defer p.stMu.Unlock()
	if gone := p.gone.Load(); gone != nil {
		return false, gone
	}
	if p.m.logs.Log(p.tp) != nil {
		for range 3 {
			n, _, err := future.CopyFrom(p.log(), chunk, nil)
			if err != nil {
				return false, err
			}
			p.m.logDirQuota.record(n)
			if done = n == 0; done {
				break
			}
		}
		if !done {
			return false, nil
		}
	}
	next, err := p.m.logs.Promote(p.tp, future)
	if err != nil {
		// If the old directory has gone, and the new one has not got its name, nothing can be appended until that is tried again.
		return false, err
	}
	p.current.Store(next)
	return true, nil
}

// AlterLogDir makes a replica of this broker move to another of its log directories, or stay where it is if that is the one. A
// replica that isn't here yet will be made there.
//
// Errors: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR when the directory or the replica is offline, or when any directory is and
// something new would have to be copied, INVALID_REPLICA_ASSIGNMENT when the directory is cordoned, REPLICA_NOT_AVAILABLE when
// there is no such replica here, INVALID_TOPIC_EXCEPTION when the name is too long for a directory.
func (m *Manager) AlterLogDir(tp log.TopicPartition, dir string) error {
	m.publishMu.Lock()
	defer m.publishMu.Unlock()
	if !log.FutureFits(tp) {
		return api.WithMessage(api.ErrInvalidTopicException, "The topic name is too long.")
	}
	switch err := m.logs.CheckDir(dir); {
	case errors.Is(err, log.ErrNoSuchDir):
		return api.WithMessage(api.ErrLogDirNotFound, "Log directory %s is not found in the config", dir)
	case err != nil:
		return err
	case m.logs.Cordoned(dir):
		return api.WithMessage(api.ErrInvalidReplicaAssignment, "Log directory %s is cordoned", dir)
	}
	p, err := m.Partition(tp.Topic, tp.Partition)
	if errors.Is(err, api.ErrKafkaStorageError) {
		return err
	}
	if err != nil {
		m.logs.Prefer(tp, dir)
		return api.WithMessage(api.ErrReplicaNotAvailable, "broker %d has no replica of %s", m.nodeID, tp)
	}
	mv := m.moves.get(p)
	if mv != nil && mv.future.ParentDir() == dir {
		return nil
	}
	if m.logs.Log(tp) == nil {
		return api.WithMessage(api.ErrKafkaStorageError, "%s is about to be in another log directory", tp)
	}
	m.moves.giveUp(p, "another directory is wanted: "+dir)
	if p.log().ParentDir() == dir {
		return nil
	}
	future, err := m.logs.CreateFuture(tp, dir)
	if err != nil {
		return fmt.Errorf("move %s to %s: %w", tp, dir, err)
	}
	m.logger.Info("a replica moves to another log directory", "partition", tp.String(), "from", p.log().ParentDir(), "to", dir)
	m.moves.add(p, future, copying)
	return nil
}

// Moving is the future log of a replica that moves between log directories, nil when it doesn't.
func (p *Partition) Moving() *log.Log {
	if mv := p.m.moves.get(p); mv != nil {
		return mv.future
	}
	return nil
}

// open finds the partition's log, or makes it, where the metadata says that it is.
func (m *Manager) open(t *Topic, lp metadata.LocalPartition) (*log.Log, error) {
	tp := log.TopicPartition{Topic: lp.Topic, Partition: lp.Partition}
	named, _ := lp.State.Directory(m.nodeID)
	if m.logs.Log(tp) == nil {
		future := m.logs.Future(tp)
		has, online := m.logs.HasDir(named)
		switch {
		case future != nil && (future.DirID() == named || m.logs.AllOnline()):
			// A move was interrupted when all but the name was done, or the disk that it left is another now. What was copied
			// is a beginning of the log at least.
			if _, err := m.logs.Promote(tp, future); err != nil {
				return nil, err
			}
		case has && !online, !has && named != uuid.Unassigned && named != uuid.Zero && !m.logs.AllOnline():
			return nil, fmt.Errorf("make %s: its directory %s is offline, or may be: %w", tp, named, api.ErrKafkaStorageError)
		}
	}
	l, err := m.logs.GetOrCreateIn(tp, lp.TopicID, LogConfig(t.Config()), named)
	if err != nil {
		return nil, err
	}
	future := m.logs.Future(tp)
	if m.assign != nil && named != l.DirID() && (future == nil || future.DirID() != named) {
		m.assign(lp.TopicID, lp.Partition, l.DirID(), nil)
	}
	return l, nil
}

// resume goes on with a move that a restart has interrupted.
func (m *Manager) resume(p *Partition, lp metadata.LocalPartition) {
	future := m.logs.Future(p.tp)
	if future == nil {
		return
	}
	state := copying
	if named, _ := lp.State.Directory(m.nodeID); named == future.DirID() {
		state = accepted
	}
	m.logger.Info("a move to another log directory goes on", "partition", p.tp.String(), "to", future.ParentDir(), "at", future.EndOffset())
	m.moves.add(p, future, state)
}
