package controller

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// Link is a connection that heartbeats come on, numbered by whoever accepted it. OwnProcess is that of a broker in the
// controller's own process, which ends with the controller.
type Link uint64

// OwnProcess is the link of a broker in the process of the controller.
const OwnProcess Link = 0

// HeartbeatTracker remembers when each broker was last heard from, and on which link. A heartbeat is noted when it arrives, on
// whatever goroutine that is, not when the controller gets to it: a broker must not be fenced because its controller was busy.
//
// It is safe for concurrent use.
type HeartbeatTracker struct {
	timeout time.Duration

	mu       sync.Mutex // guards the rest
	sessions map[brokerIncarnation]*session
}

// brokerIncarnation is one life of a broker.
type brokerIncarnation struct {
	id    int32
	epoch int64
}

// session is what is known of a broker's being alive.
type session struct {
	heard time.Time // zero when the broker is known to be gone
	link  Link      // of the last heartbeat
	line  line
	// waiting are heartbeats that have arrived and are not handled. While there are any, the controller is late and not the
	// broker, which says no more before it is answered.
	waiting int
}

// line is how a controller is connected with a broker.
type line int8

const (
	// lineUnknown: the broker has not been heard from in this reign, as is the rule when one begins.
	lineUnknown line = iota
	// lineOpen: the last heartbeat came on a link that is open.
	lineOpen
	// lineBroken: that link has ended, and none has come since.
	lineBroken
)

func newHeartbeatTracker(timeout time.Duration) *HeartbeatTracker {
	return &HeartbeatTracker{timeout: timeout, sessions: make(map[brokerIncarnation]*session)}
}

// Heard notes that a broker in this epoch was heard from at a time, on a link.
func (t *HeartbeatTracker) Heard(id int32, epoch int64, at time.Time, link Link) {
	t.set(id, epoch, session{heard: at, link: link, line: lineOpen})
}

// Arrived is Heard for a heartbeat that has yet to be handled. The session lasts until the function that it returns is called,
// and begins anew then. active is whether the controller was active when it had handled the heartbeat.
func (t *HeartbeatTracker) Arrived(id int32, epoch int64, at time.Time, link Link) (handled func(now time.Time, active bool)) {
	t.arrived(id, epoch, at, link)
	return func(now time.Time, active bool) {
		if active {
			t.handled(id, epoch, now)
			return
		}
		t.forget(id) // nobody's session ends here
	}
}

func (t *HeartbeatTracker) arrived(id int32, epoch int64, at time.Time, link Link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setLocked(id, epoch, session{heard: at, link: link, line: lineOpen}).waiting++
}

// handled follows each arrived.
func (t *HeartbeatTracker) handled(id int32, epoch int64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sessions[brokerIncarnation{id, epoch}]
	if s == nil || s.waiting == 0 {
		return // forgotten meanwhile
	}
	s.waiting--
	if !s.heard.IsZero() && s.heard.Before(now) {
		s.heard = now
	}
}

// expect begins the session of a broker that has yet to be heard from.
func (t *HeartbeatTracker) expect(id int32, epoch int64, now time.Time) {
	t.set(id, epoch, session{heard: now})
}

func (t *HeartbeatTracker) set(id int32, epoch int64, s session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setLocked(id, epoch, s)
}

func (t *HeartbeatTracker) setLocked(id int32, epoch int64, s session) *session {
	if known := t.sessions[brokerIncarnation{id, epoch}]; known != nil {
		s.waiting = known.waiting
		*known = s
		return known
	}
	t.sessions[brokerIncarnation{id, epoch}] = &s
	return &s
}

// broken notes that a link has ended and returns whose last heartbeat came on it.
func (t *HeartbeatTracker) broken(link Link) []brokerIncarnation {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []brokerIncarnation
	for b, s := range t.sessions {
		if s.line == lineOpen && s.link == link {
			s.line = lineBroken
			out = append(out, b)
		}
	}
	slices.SortFunc(out, brokerIncarnation.compare)
	return out
}

func (b brokerIncarnation) compare(o brokerIncarnation) int {
	return cmp.Or(cmp.Compare(b.id, o.id), cmp.Compare(b.epoch, o.epoch))
}

// lost notes that a broker in this epoch is known to be gone. Its session ends at once instead of running out.
func (t *HeartbeatTracker) lost(b brokerIncarnation) {
	t.mu.Lock()
	if s := t.sessions[b]; s != nil {
		s.heard = time.Time{}
	}
	t.mu.Unlock()
}

// look tells how a broker is connected, and since when it has been silent. valid says whether its session lasts.
func (t *HeartbeatTracker) look(b brokerIncarnation, now time.Time) (l line, silent time.Duration, valid bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sessions[b]
	if s == nil || s.heard.IsZero() || s.waiting == 0 && now.After(s.heard.Add(t.timeout)) {
		return lineUnknown, 0, false
	}
	return s.line, now.Sub(s.heard), true
}

// oldest returns who was heard from least recently, by id among equals, of those who are not waiting for an answer.
func (t *HeartbeatTracker) oldest() (b brokerIncarnation, at time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c, s := range t.sessions {
		if s.waiting > 0 && !s.heard.IsZero() {
			continue
		}
		if !ok || s.heard.Before(at) || s.heard.Equal(at) && c.id < b.id {
			b, at, ok = c, s.heard, true
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

// takeExpired removes and returns one broker whose session ran out. known says that it is known to be gone, not only silent.
func (t *HeartbeatTracker) takeExpired(now time.Time) (b brokerIncarnation, known, ok bool) {
	b, at, ok := t.oldest()
	if !ok || !now.After(at.Add(t.timeout)) {
		return brokerIncarnation{}, false, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.sessions[b]; s == nil || !s.heard.Equal(at) || s.waiting > 0 && !at.IsZero() { // it spoke up while we looked
		return brokerIncarnation{}, false, false
	}
	delete(t.sessions, b)
	return b, at.IsZero(), true
}

func (t *HeartbeatTracker) forget(id int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for b := range t.sessions {
		if b.id == id {
			delete(t.sessions, b)
		}
	}
}

func (t *HeartbeatTracker) clear() {
	t.mu.Lock()
	clear(t.sessions)
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
