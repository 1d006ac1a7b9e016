package controller

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/message"
	"gregor/internal/raft"
)

const (
	// maxQueued bounds the requests that wait for the controller. News from the quorum isn't refused but held up at its
	// source: the quorum waits for its listeners.
	maxQueued = 10_000
	// maxAhead is how many events may wait when a commit is handed over without waiting for it to be dealt with. It keeps
	// a standby that replays a long log from piling it up here.
	maxAhead = 64
)

// Controller drives a [Core]: it is the mailbox, the goroutine and the timer around it. Register it with the quorum as a
// listener.
type Controller struct {
	clock   clock.Clock
	core    *Core // belongs to the goroutine of run
	tracker *HeartbeatTracker

	mu      sync.Mutex // guards what follows
	inbox   []event
	queued  int // how many of inbox are requests
	stopped bool

	wake chan struct{} // holds one token when inbox isn't empty
	quit chan struct{} // closed to stop
	done chan struct{} // closed when run has returned
}

// event is something for the core to do. Events are done in the order in which they came.
type event struct {
	do func(now time.Time)
	// refuse answers instead when the controller stops first; nil for what needs no answer.
	refuse func()
}

var _ raft.Listener = (*Controller)(nil)

// New starts a controller on a log. Register it with the log's node; Close ends it.
func New(opts Options, clk clock.Clock, log Log) *Controller {
	c := &Controller{
		clock: clk,
		wake:  make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	if probe := opts.Probe; probe != nil {
		opts.Probe = func(s Suspect, done func(Verdict)) {
			probe(s, func(v Verdict) {
				// Refused only when stopped, and then nobody wants it.
				_ = c.post(false, event{do: func(now time.Time) { c.core.Probed(now, done, v) }})
			})
		}
	}
	c.core = NewCore(opts, log)
	c.tracker = c.core.Tracker()
	go c.run()
	return c
}

// Submit handles a request and calls reply exactly once, from any goroutine, with a response in any case; err says when it
// should be sent again or elsewhere. The request belongs to the controller until then. It doesn't block.
func (c *Controller) Submit(rc *RequestContext, req kmsg.Request, reply Reply) {
	if err := rc.Authorize(req); err != nil {
		reply(ErrorResponse(req, err), nil)
		return
	}
	handled := func(time.Time, bool) {}
	if hb, ok := req.(*kmsg.BrokerHeartbeatRequest); ok {
		at := rc.Received
		if at.IsZero() {
			at = c.clock.Now()
		}
		handled = c.tracker.Arrived(hb.BrokerID, hb.BrokerEpoch, at, rc.Link)
	}
	err := c.post(true, event{
		do: func(now time.Time) {
			c.core.Submit(now, rc, req, reply)
			handled(c.clock.Now(), c.core.Active())
		},
		refuse: func() { fail(req, errNotController, reply) },
	})
	if err != nil {
		handled(c.clock.Now(), true)
		fail(req, err, reply)
	}
}

var errBusy = api.WithMessage(api.ErrRequestTimedOut, "The controller's queue is full.")

// Lost tells that a broker in this epoch is gone for sure. It is fenced at once.
func (c *Controller) Lost(brokerID int32, brokerEpoch int64) {
	_ = c.post(false, event{do: func(now time.Time) { c.core.Lost(now, brokerID, brokerEpoch) }})
}

// LinkBroken tells that a connection on which heartbeats came has ended. Whoever sent them is looked for.
func (c *Controller) LinkBroken(link Link) {
	_ = c.post(false, event{do: func(now time.Time) { c.core.LinkBroken(now, link) }})
}

// post queues an event. It fails when the controller is stopped, or full and the event is a request.
func (c *Controller) post(request bool, e event) error {
	c.mu.Lock()
	switch {
	case c.stopped:
		c.mu.Unlock()
		return errNotController
	case request && c.queued >= maxQueued:
		c.mu.Unlock()
		return errBusy
	case request:
		c.queued++
	}
	c.inbox = append(c.inbox, e)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// run is the controller's goroutine.
func (c *Controller) run() {
	defer close(c.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var batch []event
	for {
		wait := time.Hour
		if at := c.core.Deadline(); !at.IsZero() {
			wait = max(0, at.Sub(c.clock.Now()))
		}
		timer.Reset(wait)
		select {
		case <-c.quit:
			c.refuseAll()
			return
		case <-timer.C:
		case <-c.wake:
		}
		c.mu.Lock()
		batch, c.inbox = c.inbox, batch[:0]
		c.queued = 0
		c.mu.Unlock()
		for _, e := range batch {
			e.do(c.clock.Now())
		}
		clear(batch)
		if at := c.core.Deadline(); !at.IsZero() && !at.After(c.clock.Now()) {
			c.core.Tick(c.clock.Now())
		}
	}
}

func (c *Controller) refuseAll() {
	c.mu.Lock()
	c.stopped = true
	rest := c.inbox
	c.inbox = nil
	c.mu.Unlock()
	if c.core.Active() {
		c.core.renounce()
	}
	for _, e := range rest {
		if e.refuse != nil {
			e.refuse()
		}
	}
}

// Close stops the controller, answers what waits with NOT_CONTROLLER and waits for its goroutine. It may be called again.
func (c *Controller) Close(ctx context.Context) error {
	c.mu.Lock()
	if !c.stopped {
		c.stopped = true
		close(c.quit)
	}
	c.mu.Unlock()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await has the core's goroutine do something and waits for it. The quorum is held up meanwhile, which bounds what it
// can pile up here.
func (c *Controller) await(do func(now time.Time)) {
	finished := make(chan struct{})
	if c.post(false, event{do: func(now time.Time) { do(now); close(finished) }, refuse: func() { close(finished) }}) != nil {
		return
	}
	select {
	case <-finished:
	case <-c.done:
	}
}

// HandleCommit takes a committed batch.
func (c *Controller) HandleCommit(b raft.CommittedBatch) {
	do := func(now time.Time) { c.core.HandleCommit(now, b.BaseOffset, b.LastOffset, b.Records) }
	c.mu.Lock()
	behind := len(c.inbox) > maxAhead
	c.mu.Unlock()
	if behind {
		c.await(do)
		return
	}
	_ = c.post(false, event{do: do}) // refused only when stopped, and then nobody wants it
}

// HandleSnapshot takes a snapshot.
func (c *Controller) HandleSnapshot(r *raft.SnapshotReader) {
	c.await(func(now time.Time) {
		var failed error
		c.core.LoadSnapshot(now, r.ID().Offset, func(yield func(message.Versioned) bool) {
			for {
				records, err := r.Next()
				if err == io.EOF {
					return
				}
				if err != nil {
					failed = err
					return
				}
				for _, v := range records {
					if !yield(v) {
						return
					}
				}
			}
		})
		if failed != nil {
			c.core.die(failed)
		}
	})
}

// HandleLeaderChange takes the news of a new leader or epoch.
func (c *Controller) HandleLeaderChange(l raft.LeaderAndEpoch) {
	c.await(func(now time.Time) { c.core.HandleLeaderChange(now, l.LeaderID, l.Epoch) })
}

// BeginShutdown takes the news that the quorum node stops.
func (c *Controller) BeginShutdown() {
	c.await(func(now time.Time) {
		if c.core.Active() {
			c.core.renounce()
		}
	})
}
