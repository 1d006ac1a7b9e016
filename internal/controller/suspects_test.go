package controller

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/uuid"
)

// lookout is a probe whose verdicts the test gives.
type lookout struct {
	w     *world
	asked []Suspect
	done  []func(Verdict)
}

func newLookout(t *testing.T) (*world, *lookout) {
	l := &lookout{}
	l.w = newWorld(t, func(o *Options) {
		o.Probe = func(s Suspect, done func(Verdict)) {
			l.asked = append(l.asked, s)
			l.done = append(l.done, done)
		}
	})
	return l.w, l
}

// due runs what is due at this moment.
func (w *world) due() {
	for at := w.core.Deadline(); !at.IsZero() && !at.After(w.now); at = w.core.Deadline() {
		w.core.Tick(w.now)
		w.settle()
	}
}

// broken ends the connection that a broker's heartbeats come on.
func (w *world) broken(id int32) {
	w.core.LinkBroken(w.now, Link(id))
	w.due()
}

// answer gives the verdict on the last suspect.
func (l *lookout) answer(v Verdict) {
	l.w.t.Helper()
	if len(l.done) == 0 {
		l.w.t.Fatal("nobody is looked for")
	}
	done := l.done[len(l.done)-1]
	l.done = nil
	l.w.core.Probed(l.w.now, done, v)
	l.w.due()
}

func (w *world) fenced(id int32) bool {
	b, ok := w.core.cluster.brokers.Get(id)
	return ok && b.fenced
}

// again registers a broker in a new life, with its own addresses or with another one.
func (w *world) again(id int32, life byte, host string) int16 {
	req := brokerRequest(id, "")
	req.IncarnationID = uuid.UUID{0: life, 14: byte(id), 15: 1}
	if host != "" {
		req.Listeners[0].Host = host
	}
	return ask[*kmsg.BrokerRegistrationResponse](w, req).ErrorCode
}

// TestLostBrokerIsFencedAtOnce: a connection that ended, and then nobody who listens.
func TestLostBrokerIsFencedAtOnce(t *testing.T) {
	w, l := newLookout(t)
	w.lead()
	w.up(1, 2, 3)
	w.create("t", 6, 3)
	w.broken(3)
	if w.fenced(3) {
		t.Fatal("fenced only because a connection ended")
	}
	if len(l.asked) != 1 || l.asked[0].ID != 3 || l.asked[0].Endpoints[0].Host != "b3" {
		t.Fatalf("looked for %+v", l.asked)
	}
	l.answer(Refusing)
	if !w.fenced(3) || w.fenced(1) || w.fenced(2) {
		t.Fatal("broker 3 is gone and not fenced, or another is")
	}
	for i := range int32(6) {
		if p := w.partition("t", i); p.leader == 3 || slices.Contains(p.isr, 3) {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
}

// TestSuspectsThatLive: what isn't evidence.
func TestSuspectsThatLive(t *testing.T) {
	for name, verdict := range map[string]Verdict{"listening": Listening, "no answer": Unknown} {
		t.Run(name, func(t *testing.T) {
			w, l := newLookout(t)
			w.lead()
			w.up(1)
			w.broken(1)
			for range 5 {
				l.answer(verdict)
				w.pass(probeWaitMax)
			}
			if n := len(l.asked); n < 5 || n > 10 {
				t.Errorf("looked %d times within 5 s", n)
			}
			if w.fenced(1) {
				t.Fatal("fenced without evidence")
			}
			w.pass(5 * time.Second)
			if !w.fenced(1) {
				t.Error("silent for longer than its session, and not fenced")
			}
		})
	}
	t.Run("heard again", func(t *testing.T) {
		w, l := newLookout(t)
		w.lead()
		w.up(1)
		w.broken(1)
		w.heartbeat(1, false, false)
		l.answer(Refusing) // of a probe that began before
		if w.fenced(1) {
			t.Error("fenced although it has been heard from since")
		}
	})
	t.Run("on another connection", func(t *testing.T) {
		w, l := newLookout(t)
		w.lead()
		w.up(1)
		b, _ := w.core.cluster.brokers.Get(1)
		w.core.Tracker().Heard(1, b.epoch, w.now, 77)
		w.broken(1)
		if len(l.asked) != 0 {
			t.Error("the end of an earlier connection made it a suspect")
		}
	})
	t.Run("a verdict for the reign before", func(t *testing.T) {
		w, l := newLookout(t)
		w.lead()
		w.up(1)
		w.broken(1)
		w.lose()
		w.lead()
		w.heartbeat(1, false, false)
		l.answer(Refusing)
		if w.fenced(1) {
			t.Error("fenced on a verdict of the reign before")
		}
	})
}

// TestNewControllerLooksForAll: where controller and broker were one process both have died, and no connection tells.
func TestNewControllerLooksForAll(t *testing.T) {
	w, l := newLookout(t)
	w.lead()
	w.up(1, 2)
	w.create("t", 4, 2)
	w.lose()
	w.lead()
	w.due()
	if len(l.asked) != 2 || l.asked[0].ID != 1 || l.asked[1].ID != 2 {
		t.Fatalf("looked for %+v", l.asked)
	}
	w.core.Probed(w.now, l.done[0], Refusing)
	w.core.Probed(w.now, l.done[1], Listening)
	w.due()
	if !w.fenced(1) || w.fenced(2) {
		t.Error("broker 1 is gone, broker 2 is not")
	}
	for i := range int32(4) {
		if p := w.partition("t", i); p.leader != 2 {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
}

// TestNewLifeOfABroker: when another process may take a broker's id.
func TestNewLifeOfABroker(t *testing.T) {
	duplicate := api.ErrDuplicateBrokerRegistration.Code
	for _, c := range []struct {
		name string
		then func(w *world, l *lookout)
		host string // of the new life, "" for the same
		want int16
	}{
		{"of one that lives", func(*world, *lookout) {}, "", duplicate},
		{"connection gone, same address", func(w *world, _ *lookout) { w.broken(1) }, "", 0},
		{"connection gone, other address", func(w *world, _ *lookout) { w.broken(1) }, "other", duplicate},
		{"connection gone, other address, nobody at the old one", func(w *world, l *lookout) {
			w.broken(1)
			l.answer(Refusing)
		}, "other", 0},
		{"connection gone and back", func(w *world, _ *lookout) {
			w.broken(1)
			w.heartbeat(1, false, false)
		}, "", duplicate},
		{"just after the reign began", func(w *world, _ *lookout) {
			w.lose()
			w.lead()
		}, "", duplicate},
		{"silent since the reign began", func(w *world, _ *lookout) {
			w.lose()
			w.lead()
			w.pass(3 * time.Second)
		}, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, l := newLookout(t)
			w.lead()
			w.up(1)
			c.then(w, l)
			if got := w.again(1, 9, c.host); got != c.want {
				t.Errorf("error %d, want %d", got, c.want)
			}
		})
	}
}

// TestHeartbeatCountsFromItsArrival: a busy controller is no reason to fence.
func TestHeartbeatCountsFromItsArrival(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1)
	b, _ := w.core.cluster.brokers.Get(1)
	w.now = w.now.Add(8 * time.Second)
	w.core.Tracker().Heard(1, b.epoch, w.now, 1) // as the driver does on the connection's goroutine
	w.pass(8 * time.Second)                      // and the request itself waits in the queue
	if w.fenced(1) {
		t.Error("fenced while its heartbeat waited for the controller")
	}
	w.pass(2 * time.Second)
	if !w.fenced(1) {
		t.Error("not fenced 10 s after its last heartbeat")
	}
}

// TestHeartbeatKeepsWhileItWaits: a broker says no more before it is answered, so that its silence then is the controller's.
func TestHeartbeatKeepsWhileItWaits(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1)
	b, _ := w.core.cluster.brokers.Get(1)
	tracker := w.core.Tracker()
	tracker.arrived(1, b.epoch, w.now, 1)
	w.pass(time.Minute)
	if w.fenced(1) {
		t.Error("fenced while its heartbeat waited for the controller")
	}
	tracker.handled(1, b.epoch, w.now)
	w.pass(8 * time.Second)
	if w.fenced(1) {
		t.Error("fenced 8 s after the answer")
	}
	w.pass(2 * time.Second)
	if !w.fenced(1) {
		t.Error("not fenced 10 s after the answer")
	}

	// Who is known to be gone is fenced although something of it waits.
	w.up(2)
	b, _ = w.core.cluster.brokers.Get(2)
	tracker.arrived(2, b.epoch, w.now, 2)
	w.core.Lost(w.now, 2, b.epoch)
	w.pass(time.Millisecond)
	if !w.fenced(2) {
		t.Error("not fenced although it is gone")
	}
}
