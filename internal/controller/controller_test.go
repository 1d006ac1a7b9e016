package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/message"
	"gregor/internal/raft"
	"gregor/internal/security"
)

// quorum is a metadata log that commits after a while, on a goroutine of its own, as raft.Node does.
type quorum struct {
	mu      sync.Mutex // guards what follows
	log     fakeLog
	pending []fakeBatch
	wake    chan struct{}
}

func (q *quorum) PrepareAppend(epoch int32, records []message.Versioned) (int64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	last, err := q.log.PrepareAppend(epoch, records)
	if err == nil {
		q.pending = append(q.pending, q.log.batches[len(q.log.batches)-1])
	}
	return last, err
}

func (q *quorum) SchedulePreparedAppend() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *quorum) LogEndOffset() int64 { q.mu.Lock(); defer q.mu.Unlock(); return q.log.end }
func (q *quorum) Resign(epoch int32)  { q.mu.Lock(); defer q.mu.Unlock(); q.log.Resign(epoch) }
func (q *quorum) KRaftVersion() int16 { return 1 }
func (q *quorum) UpgradeKRaftVersion(int32, int16, bool) (int64, error) {
	return -1, nil
}

// commit hands over what was appended, until ctx ends.
func (q *quorum) commit(ctx context.Context, c *Controller, delay time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		time.Sleep(delay)
		q.mu.Lock()
		batches := q.pending
		q.pending = nil
		q.mu.Unlock()
		for _, b := range batches {
			c.HandleCommit(raft.CommittedBatch{BaseOffset: b.base, LastOffset: b.base + int64(len(b.records)) - 1, Epoch: b.epoch, Records: b.records})
		}
	}
}

// start runs a controller that leads, on a quorum that commits after delay.
func start(t *testing.T, delay time.Duration) (*Controller, *quorum, func()) {
	w := newWorld(t, nil)
	q := &quorum{log: fakeLog{epoch: 1}, wake: make(chan struct{}, 1)}
	c := New(w.opts, clock.System, q)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { q.commit(ctx, c, delay) })
	c.HandleLeaderChange(raft.LeaderAndEpoch{LeaderID: 1, Epoch: 1})
	return c, q, func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		cancel()
		wg.Wait()
	}
}

func submit(c *Controller, req kmsg.Request) (kmsg.Response, error) {
	req.SetVersion(req.MaxVersion())
	type answer struct {
		resp kmsg.Response
		err  error
	}
	ch := make(chan answer, 1)
	c.Submit(&RequestContext{}, req, func(resp kmsg.Response, err error) { ch <- answer{resp, err} })
	a := <-ch
	return a.resp, a.err
}

func TestDriverServesManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, stop := start(t, time.Millisecond)
		defer stop()
		resp, err := submit(c, brokerRequest(1, ""))
		if err != nil {
			t.Fatal(err)
		}
		epoch := resp.(*kmsg.BrokerRegistrationResponse).BrokerEpoch
		hb := kmsg.NewPtrBrokerHeartbeatRequest()
		hb.BrokerID, hb.BrokerEpoch, hb.CurrentMetadataOffset = 1, epoch, epoch
		if resp, err := submit(c, hb); err != nil || resp.(*kmsg.BrokerHeartbeatResponse).IsFenced {
			t.Fatal(resp, err)
		}
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				resp, err := submit(c, createRequest(fmt.Sprint("t", i), 1, 1))
				if err != nil || resp.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode != 0 {
					t.Error(resp, err)
				}
			})
		}
		wg.Wait()
	})
}

// TestDriverKeepsTime: a broker that falls silent is fenced after 9 s, one that is reported dead at once, and an idle
// controller moves the log.
func TestDriverKeepsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, q, stop := start(t, time.Millisecond)
		defer stop()
		fencedAt := func(id int32) time.Time {
			for {
				time.Sleep(10 * time.Millisecond)
				q.mu.Lock()
				for _, b := range q.log.batches {
					for _, r := range b.records {
						if r, ok := r.Message.(*message.BrokerRegistrationChangeRecord); ok && r.BrokerID == id && r.Fenced == 1 {
							q.mu.Unlock()
							return time.Now()
						}
					}
				}
				q.mu.Unlock()
			}
		}
		beat := func(id int32) int64 {
			resp, err := submit(c, brokerRequest(id, ""))
			if err != nil {
				t.Fatal(err)
			}
			hb := kmsg.NewPtrBrokerHeartbeatRequest()
			hb.BrokerID, hb.BrokerEpoch = id, resp.(*kmsg.BrokerRegistrationResponse).BrokerEpoch
			hb.CurrentMetadataOffset = hb.BrokerEpoch
			if _, err := submit(c, hb); err != nil {
				t.Fatal(err)
			}
			return hb.BrokerEpoch
		}
		beat(1)
		from := time.Now()
		if d := fencedAt(1).Sub(from); d < 9*time.Second || d > 9*time.Second+50*time.Millisecond {
			t.Errorf("fenced after %v", d)
		}
		epoch := beat(2)
		from = time.Now()
		c.Lost(2, epoch)
		if d := fencedAt(2).Sub(from); d > 50*time.Millisecond {
			t.Errorf("fenced %v after it was reported dead", d)
		}
		n := q.LogEndOffset()
		time.Sleep(5 * time.Second)
		if got := q.LogEndOffset() - n; got < 9 || got > 11 {
			t.Errorf("%d records in 5 s of idling", got)
		}
	})
}

// TestDriverAnswersEveryone: each request is answered once, whatever happens meanwhile.
func TestDriverAnswersEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, q, stop := start(t, time.Hour) // nothing is committed in time
		var sent, answered, refused atomic.Int64
		send := func(req kmsg.Request) {
			req.SetVersion(req.MaxVersion())
			sent.Add(1)
			c.Submit(&RequestContext{}, req, func(_ kmsg.Response, err error) {
				answered.Add(1)
				if api.CodeOf(err) == api.ErrNotController.Code {
					refused.Add(1)
				}
			})
		}
		for i := range int32(5) {
			send(brokerRequest(i, ""))
		}
		synctest.Wait()
		if answered.Load() != 0 {
			t.Errorf("%d answers before commit", answered.Load())
		}
		q.mu.Lock()
		q.log.epoch = 2
		q.mu.Unlock()
		c.HandleLeaderChange(raft.LeaderAndEpoch{LeaderID: 2, Epoch: 2})
		synctest.Wait()
		if refused.Load() != 5 {
			t.Errorf("%d of 5 refused when leadership was lost", refused.Load())
		}
		c.HandleLeaderChange(raft.LeaderAndEpoch{LeaderID: 1, Epoch: 2})
		for i := range int32(5) {
			send(brokerRequest(i, ""))
		}
		stop()
		send(brokerRequest(9, ""))
		synctest.Wait()
		if answered.Load() != sent.Load() || refused.Load() != sent.Load() {
			t.Errorf("%d sent, %d answered, %d refused", sent.Load(), answered.Load(), refused.Load())
		}
	})
}

// TestStandbyRemembersNoHeartbeats: sessions end only where there is an active controller, and elsewhere they would pile up.
func TestStandbyRemembersNoHeartbeats(t *testing.T) {
	w := newWorld(t, nil)
	c := New(w.opts, clock.System, &quorum{log: fakeLog{epoch: -1}, wake: make(chan struct{}, 1)})
	defer c.Close(context.Background())
	for epoch := range int64(3) {
		hb := kmsg.NewPtrBrokerHeartbeatRequest()
		hb.BrokerID, hb.BrokerEpoch = 5, epoch
		if _, err := submit(c, hb); !errors.Is(err, error(api.ErrNotController)) {
			t.Errorf("a standby answers a heartbeat with %v", err)
		}
	}
	c.await(func(time.Time) {
		if n := len(c.tracker.sessions); n != 0 {
			t.Errorf("a standby remembers %d sessions", n)
		}
	})
}

// TestUnauthorizedHeartbeatsAreNoSignOfLife: who may not act for the cluster is refused when the request arrives, and nobody's
// session is any longer for it.
func TestUnauthorizedHeartbeatsAreNoSignOfLife(t *testing.T) {
	w := newWorld(t, nil)
	c := New(w.opts, clock.System, &quorum{log: fakeLog{epoch: -1}, wake: make(chan struct{}, 1)})
	defer c.Close(context.Background())
	hb := kmsg.NewPtrBrokerHeartbeatRequest()
	hb.BrokerID, hb.BrokerEpoch = 5, 7
	var asked []string
	rc := &RequestContext{Allowed: func(op security.Operation, rt security.ResourceType, name string) bool {
		asked = append(asked, fmt.Sprint(op, rt, name))
		return false
	}}
	var got kmsg.Response
	c.Submit(rc, hb, func(r kmsg.Response, err error) {
		if got = r; err != nil {
			t.Errorf("refusal with %v", err)
		}
	})
	if r, ok := got.(*kmsg.BrokerHeartbeatResponse); !ok || r.ErrorCode != api.ErrClusterAuthorizationFailed.Code {
		t.Errorf("answer: %+v", got)
	}
	if want := []string{"CLUSTER_ACTION CLUSTERkafka-cluster"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	if n := len(c.tracker.sessions); n != 0 {
		t.Errorf("%d sessions", n)
	}
}
