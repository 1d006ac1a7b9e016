package controller

import (
	"math"
	"slices"
	"sync"
	"time"
)

// HeartbeatTracker remembers when each broker was last heard from. A heartbeat is noted when it arrives, on whatever
// goroutine that is, not when the controller gets to it: a broker must not be fenced because its controller was busy.
//
// It is safe for concurrent use.
type HeartbeatTracker struct {
	timeout time.Duration

	mu    sync.Mutex
	heard map[brokerIncarnation]time.Time // guarded by mu
}

// brokerIncarnation is one life of a broker.
type brokerIncarnation struct {
	id    int32
	epoch int64
}

func newHeartbeatTracker(timeout time.Duration) *HeartbeatTracker {
	return &HeartbeatTracker{timeout: timeout, heard: make(map[brokerIncarnation]time.Time)}
}

// Heard notes that a broker in this epoch was heard from at now.
func (t *HeartbeatTracker) Heard(id int32, epoch int64, now time.Time) {
	t.mu.Lock()
	t.heard[brokerIncarnation{id, epoch}] = now
	t.mu.Unlock()
}

// Lost notes that a broker in this epoch is known to be gone: its connection broke and nobody listens at its address.
// Its session ends at once instead of running out.
func (t *HeartbeatTracker) Lost(id int32, epoch int64) {
	t.mu.Lock()
	b := brokerIncarnation{id, epoch}
	if _, known := t.heard[b]; known {
		t.heard[b] = time.Time{}
	}
	t.mu.Unlock()
}

// valid says whether a broker was heard from within the session timeout.
func (t *HeartbeatTracker) valid(id int32, epoch int64, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, known := t.heard[brokerIncarnation{id, epoch}]
	return known && !now.After(at.Add(t.timeout))
}

// oldest returns who was heard from least recently, by id among equals.
func (t *HeartbeatTracker) oldest() (b brokerIncarnation, at time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c, cAt := range t.heard {
		if !ok || cAt.Before(at) || cAt.Equal(at) && c.id < b.id {
			b, at, ok = c, cAt, true
		}
	}
	return b, at, ok
}

// nextExpiry is when the next session would run out, if there is any.
func (t *HeartbeatTracker) nextExpiry() (time.Time, bool) {
	_, at, ok := t.oldest()
	// Strictly after the timeout: at the very moment a session is still valid.
	return at.Add(t.timeout + time.Nanosecond), ok
}

// takeExpired removes and returns one broker whose session ran out.
func (t *HeartbeatTracker) takeExpired(now time.Time) (brokerIncarnation, bool) {
	b, at, ok := t.oldest()
	if !ok || !now.After(at.Add(t.timeout)) {
		return brokerIncarnation{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.heard[b].Equal(at) { // it spoke up while we looked
		return brokerIncarnation{}, false
	}
	delete(t.heard, b)
	return b, true
}

func (t *HeartbeatTracker) forget(id int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for b := range t.heard {
		if b.id == id {
			delete(t.heard, b)
		}
	}
}

func (t *HeartbeatTracker) clear() {
	t.mu.Lock()
	clear(t.heard)
	t.mu.Unlock()
}

// heartbeats is what the active controller knows of brokers beside the log: where they are in it and whether they are
// on their way out. A new controller starts without it.
type heartbeats struct {
	brokers map[int32]*brokerPulse
}

type brokerPulse struct {
	fenced bool
	// metadataOffset is how far the broker has read, -1 if it hasn't said.
	metadataOffset int64
	// shutdownOffset is the offset that the other brokers must have read before this one may stop, -1 if it doesn't want to:
	// by then they know the new leaders.
	shutdownOffset int64
}

func newHeartbeats() *heartbeats { return &heartbeats{brokers: make(map[int32]*brokerPulse)} }

// register makes sure that a broker is there and that fenced is right.
func (h *heartbeats) register(id int32, fenced bool) {
	p, known := h.brokers[id]
	offset := int64(-1)
	switch {
	case !known:
		h.brokers[id] = &brokerPulse{shutdownOffset: -1}
	case p.fenced != fenced:
		offset = p.metadataOffset
	}
	h.touch(id, fenced, offset)
}

func (h *heartbeats) touch(id int32, fenced bool, metadataOffset int64) {
	p := h.brokers[id]
	p.fenced, p.metadataOffset = fenced, metadataOffset
	if fenced {
		p.shutdownOffset = -1 // it will be told to stop by its next heartbeat
	}
}

func (h *heartbeats) remove(id int32) { delete(h.brokers, id) }

// lowestActiveOffset is the offset that all brokers in service have read.
func (h *heartbeats) lowestActiveOffset() int64 {
	lowest := int64(math.MaxInt64)
	for _, p := range h.brokers {
		if !p.fenced && p.shutdownOffset < 0 {
			lowest = min(lowest, p.metadataOffset)
		}
	}
	return lowest
}

// ids lists the brokers in rising order.
func (h *heartbeats) ids() []int32 {
	ids := make([]int32, 0, len(h.brokers))
	for id := range h.brokers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// brokerState is where a broker stands in its life, as the controller sees it.
type brokerState int8

const (
	stateFenced brokerState = iota
	stateUnfenced
	stateControlledShutdown
	stateShutdownNow
)

func (s brokerState) fenced() bool { return s == stateFenced || s == stateShutdownNow }

// next works out where a heartbeat takes a broker.
func (h *heartbeats) next(id int32, wantFence, wantShutdown bool, readTo, registeredAt int64, leads func() bool) (from, to brokerState) {
	p := h.brokers[id]
	switch {
	case p.shutdownOffset >= 0:
		from = stateControlledShutdown
	case p.fenced:
		from = stateFenced
	default:
		from = stateUnfenced
	}
	switch from {
	case stateFenced:
		switch {
		case wantShutdown:
			return from, stateShutdownNow
		case !wantFence && readTo >= registeredAt:
			return from, stateUnfenced
		}
		return from, stateFenced
	case stateUnfenced:
		switch {
		case wantFence && wantShutdown:
			return from, stateShutdownNow
		case wantFence:
			return from, stateFenced
		case wantShutdown && leads():
			return from, stateControlledShutdown
		case wantShutdown:
			return from, stateShutdownNow
		}
		return from, stateUnfenced
	default:
		if !leads() && p.shutdownOffset <= h.lowestActiveOffset() {
			return from, stateShutdownNow
		}
		return from, stateControlledShutdown
	}
}
