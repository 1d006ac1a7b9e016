package broker

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/config"
	"gregor/internal/uuid"
)

// fakeController answers registrations and heartbeats as a controller would whose log is at offset 10.
type fakeController struct {
	mu       sync.Mutex // guards requests
	requests []kmsg.Request

	refuse   int // so many requests first
	leads    int // heartbeats that want to stop until the broker leads nothing
	down     bool
	cordoned []uuid.UUID
}

func (f *fakeController) Forward(_ Client, q kmsg.Request, _ time.Time, reply func(kmsg.Response, error)) {
	f.mu.Lock()
	f.requests = append(f.requests, q)
	f.mu.Unlock()
	if f.refuse > 0 {
		f.refuse--
		reply(nil, api.ErrNotController)
		return
	}
	if f.down {
		return
	}
	switch q := q.(type) {
	case *kmsg.BrokerRegistrationRequest:
		r := q.ResponseKind().(*kmsg.BrokerRegistrationResponse)
		r.BrokerEpoch = 10
		reply(r, nil)
	case *kmsg.BrokerHeartbeatRequest:
		r := q.ResponseKind().(*kmsg.BrokerHeartbeatResponse)
		r.IsCaughtUp = q.CurrentMetadataOffset >= 10
		r.IsFenced = q.WantFence || !r.IsCaughtUp
		if q.WantShutdown {
			r.ShouldShutdown = f.leads == 0
			f.leads--
		}
		reply(r, nil)
	}
}

// sent are all requests so far.
func (f *fakeController) sent() []kmsg.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// lastHeartbeat is the last request, which must be one.
func (f *fakeController) lastHeartbeat() *kmsg.BrokerHeartbeatRequest {
	all := f.sent()
	return all[len(all)-1].(*kmsg.BrokerHeartbeatRequest)
}

func newTestLifecycle(f *fakeController, offset *int64) *Lifecycle {
	dirs := []uuid.UUID{{15: 200}, {15: 101}}
	return NewLifecycle(LifecycleOptions{NodeID: 1, ClusterID: "c", Incarnation: uuid.UUID{15: 150}, LogDirs: dirs, PreviousEpoch: 7,
		Listeners: []config.Listener{{Name: "PLAINTEXT", Host: "h", Port: 9092}}, Controller: f, MetadataOffset: func() int64 { return *offset },
		CordonedDirs:      func() []uuid.UUID { return f.cordoned },
		HeartbeatInterval: 2 * time.Second, SessionTimeout: 9 * time.Second, Rand: rand.New(rand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler)})
}

func TestLifecycleFromStartToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, offset := &fakeController{leads: 2}, int64(-1)
		start := time.Now()
		l := newTestLifecycle(f, &offset)
		synctest.Wait()
		reg := f.sent()[0].(*kmsg.BrokerRegistrationRequest)
		if reg.PreviousBrokerEpoch != 7 || len(reg.LogDirs) != 2 || reg.LogDirs[0][15] != 101 || reg.Listeners[0].Port != 9092 || len(reg.Features) < 6 {
			t.Errorf("registration %+v", reg)
		}
		if l.Epoch() != 10 || l.State() != Starting {
			t.Errorf("after the registration: epoch %d, state %s", l.Epoch(), l.State())
		}
		offset = 10
		l.MetadataAdvanced()
		<-l.CaughtUp()
		l.ReadyToUnfence()
		<-l.Unfenced()
		if took := time.Since(start); took > catchUpPoll {
			t.Errorf("unfenced after %v: nothing had to be waited for", took)
		}
		synctest.Wait()
		n := len(f.sent())
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if got := len(f.sent()) - n; got != 3 {
			t.Errorf("%d heartbeats in 7 s, want 3", got)
		}
		hb := f.lastHeartbeat()
		if hb.WantFence || hb.WantShutdown || hb.CordonedLogDirs == nil {
			t.Errorf("heartbeat %+v", hb)
		}
		l.DirectoryFailed(uuid.UUID{15: 101})
		synctest.Wait()
		if hb := f.lastHeartbeat(); len(hb.OfflineLogDirs) != 1 || !l.DirectoryFailureKnown(uuid.UUID{15: 101}) {
			t.Errorf("the failed directory is not told of: %+v", hb)
		}
		f.cordoned = []uuid.UUID{{15: 200}}
		l.Hurry()
		synctest.Wait()
		if hb := f.lastHeartbeat(); len(hb.CordonedLogDirs) != 1 || hb.CordonedLogDirs[0][15] != 200 {
			t.Errorf("the cordoned directory is not told of: %+v", hb)
		}
		before := time.Now()
		if err := l.ControlledShutdown(context.Background()); err != nil || l.State() != ShuttingDown {
			t.Errorf("shutdown: %v, state %s", err, l.State())
		}
		if took := time.Since(before); took != shutdownPoll+2*shutdownPoll {
			t.Errorf("shutdown took %v", took)
		}
		l.Close()
	})
}

func TestLifecycleRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, offset := &fakeController{refuse: 3}, int64(10)
		start := time.Now()
		l := newTestLifecycle(f, &offset)
		<-l.CaughtUp()
		if took := time.Since(start); took < 680*time.Millisecond || took > 730*time.Millisecond {
			t.Errorf("three refusals took %v, want about 100 + 200 + 400 ms", took)
		}
		l.Close()
	})
}

func TestLifecycleStopsWithoutController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, offset := &fakeController{down: true}, int64(10)
		l := newTestLifecycle(f, &offset)
		if err := l.ControlledShutdown(context.Background()); err != nil {
			t.Errorf("a broker that isn't running may stop at once: %v", err)
		}
		l.Close()
	})
}

// TestDirectoryFailsDuringHeartbeat: a directory that fails while a heartbeat is under way is in the next one, and not known to
// the controller before that is answered.
func TestDirectoryFailsDuringHeartbeat(t *testing.T) {
	first, second := uuid.UUID{15: 101}, uuid.UUID{15: 200}
	now := time.Unix(0, 0)
	l := lifecycle{state: Running, registered: true, ready: true, offline: map[uuid.UUID]bool{first: false},
		o: LifecycleOptions{MetadataOffset: func() int64 { return 10 }, CordonedDirs: func() []uuid.UUID { return nil }, HeartbeatInterval: time.Second}}
	beat := func(meanwhile func()) int {
		q, _ := l.next(now)
		hb, ok := q.(*kmsg.BrokerHeartbeatRequest)
		if !ok {
			t.Fatalf("request %T", q)
		}
		meanwhile()
		l.answered(now, hb.ResponseKind(), nil)
		return len(hb.OfflineLogDirs)
	}
	n := beat(func() {
		l.offline[second] = false
		l.hurry(now)
	})
	if n != 1 || !l.offline[first] || l.offline[second] {
		t.Errorf("after a heartbeat with %d directories the controller knows of %v", n, l.offline)
	}
	if n := beat(func() {}); n != 2 || !l.offline[second] {
		t.Errorf("after a heartbeat with %d directories the controller knows of %v", n, l.offline)
	}
}
