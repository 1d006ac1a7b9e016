package controller

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
)

// A broker whose process dies leaves traces long before its session runs out: the connection that its heartbeats came on ends,
// and where it listened nobody does any more. The first alone is no reason to fence it, since connections end for all kinds of
// reasons; it makes the broker a suspect. A suspect is looked for at its addresses. Only when they refuse is it lost, and
// fenced at once. When they don't answer nothing is known, and the session decides as in Kafka.
//
// A controller whose reign begins has heard from nobody. It suspects every broker in service until that broker's first
// heartbeat: where controller and broker are one process, both have died.

// Suspect is a broker that may be gone.
type Suspect struct {
	ID        int32
	Epoch     int64
	Endpoints []message.RegisterBrokerRecordBrokerEndpoint
}

// Verdict is what a look at a broker's addresses has shown.
type Verdict int8

const (
	// Unknown: no answer, or one from which nothing follows.
	Unknown Verdict = iota
	// Listening: somebody takes connections there.
	Listening
	// Refusing: nobody does.
	Refusing
)

const (
	// A suspect is looked for at once and then ever less often: its listener may end some time after its connections.
	probeWaitMin = 10 * time.Millisecond
	probeWaitMax = time.Second
)

// suspicion is the search for one suspect.
type suspicion struct {
	attempts int
	due      time.Time
	asking   bool // a probe is under way
}

// suspects are the searches of the active controller.
type suspects struct {
	c  *Core
	by map[brokerIncarnation]*suspicion
}

// add begins to search for a broker, if that is possible.
func (s *suspects) add(b brokerIncarnation) {
	if s.c.opts.Probe == nil || s.by[b] != nil {
		return
	}
	s.by[b] = &suspicion{due: s.c.now}
	s.c.hurry(taskProbe)
}

// next is when to look for somebody, if that is before a time.
func (s *suspects) next(before time.Time) time.Time {
	for _, x := range s.by {
		if !x.asking && x.due.Before(before) {
			before = x.due
		}
	}
	return before
}

// run looks for those who are due.
func (s *suspects) run() (Result, bool) {
	c := s.c
	var order []brokerIncarnation
	for b, x := range s.by {
		if !x.asking && !x.due.After(c.now) {
			order = append(order, b)
		}
	}
	slices.SortFunc(order, brokerIncarnation.compare)
	for _, b := range order {
		broker, known := c.cluster.brokers.Get(b.id)
		l, _, valid := c.tracker.look(b, c.now)
		if !known || broker.epoch != b.epoch || !valid || l == lineOpen {
			delete(s.by, b)
			continue
		}
		x := s.by[b]
		x.asking = true
		c.opts.Probe(Suspect{b.id, b.epoch, broker.endpoints}, func(v Verdict) { s.found(b, x, v) })
	}
	return Result{}, false
}

// found takes the verdict on a suspect.
func (s *suspects) found(b brokerIncarnation, x *suspicion, v Verdict) {
	c := s.c
	if s.by[b] != x {
		return // from an earlier reign, or settled otherwise
	}
	x.asking = false
	l, silent, valid := c.tracker.look(b, c.now)
	if !valid || l == lineOpen {
		delete(s.by, b)
		return
	}
	if v == Refusing {
		c.opts.Logger.Info("broker is gone: nobody listens at its addresses", "node", b.id, "broker_epoch", b.epoch, "silent", silent, "in_this_reign", l != lineUnknown)
		delete(s.by, b)
		c.tracker.lost(b)
		c.hurry(taskFence)
		return
	}
	x.due = c.now.Add(min(probeWaitMin<<min(x.attempts, 10), probeWaitMax))
	x.attempts++
	c.hurry(taskProbe)
}

// LinkBroken takes the news that a connection has ended on which heartbeats may have come.
func (c *Core) LinkBroken(now time.Time, link Link) {
	c.now = now
	for _, b := range c.tracker.broken(link) {
		if c.Active() {
			c.suspects.add(b)
		}
	}
}

// Probed hands the verdict on a suspect back to the core: what a driver wraps around the function that Options.Probe is given.
func (c *Core) Probed(now time.Time, done func(Verdict), v Verdict) {
	c.now = now
	if c.Active() {
		done(v)
	}
}

// Lost takes the news that a broker in this epoch is gone for sure: its directories are in another process's hands.
func (c *Core) Lost(now time.Time, id int32, epoch int64) {
	c.now = now
	c.tracker.lost(brokerIncarnation{id, epoch})
	c.hurry(taskFence)
}

// occupied says whether the last life of a broker may still be under way, so that another can't take its id.
//
// Differs from Kafka, which refuses a new life until the session of the last one has run out.
func (m *cluster) occupied(b *broker, req *kmsg.BrokerRegistrationRequest) bool {
	l, silent, valid := m.c.tracker.look(brokerIncarnation{b.id, b.epoch}, m.c.now)
	switch {
	case !valid:
		return false
	case l == lineOpen || !sameEndpoints(b.endpoints, req.Listeners):
		return true
	case l == lineBroken:
		// It has gone silent, and its addresses are in the hands of the one who asks.
		return false
	}
	// Nothing was heard from it in this reign: it may be about to send its first heartbeat.
	return silent < m.c.opts.SessionTimeout/3
}

func sameEndpoints(have []message.RegisterBrokerRecordBrokerEndpoint, want []kmsg.BrokerRegistrationRequestListener) bool {
	if len(have) != len(want) {
		return false
	}
	for _, e := range have {
		if !slices.ContainsFunc(want, func(w kmsg.BrokerRegistrationRequestListener) bool {
			return w.Name == e.Name && w.Host == e.Host && w.Port == e.Port
		}) {
			return false
		}
	}
	return true
}
