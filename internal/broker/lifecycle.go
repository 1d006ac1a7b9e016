package broker

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/config"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// State is where a broker stands in its life, numbered as in Kafka's BrokerState.
type State int32

// The states of a broker.
const (
	// NotRunning: nothing has been sent to the controller.
	NotRunning State = 0
	// Starting: the broker registers and catches up with its own registration in the metadata log.
	Starting State = 1
	// Recovery: it has caught up, opens its logs, and is fenced.
	Recovery State = 2
	// Running: it is not fenced any more.
	Running State = 3
	// PendingControlledShutdown: it has asked to stop and still leads something.
	PendingControlledShutdown State = 6
	// ShuttingDown: the controller has let it go, or it doesn't ask any more.
	ShuttingDown State = 7
)

// String is Kafka's name of the state.
func (s State) String() string {
	switch s {
	case NotRunning:
		return "NOT_RUNNING"
	case Starting:
		return "STARTING"
	case Recovery:
		return "RECOVERY"
	case Running:
		return "RUNNING"
	case PendingControlledShutdown:
		return "PENDING_CONTROLLED_SHUTDOWN"
	}
	return "SHUTTING_DOWN"
}

const (
	lifecycleFirstBackoff = 100 * time.Millisecond
	// catchUpPoll is how soon a broker that isn't caught up asks again, if nobody has told it before of new metadata.
	catchUpPoll = 10 * time.Millisecond
	// shutdownPoll is how soon a stopping broker asks a second time: moving leaders rarely takes longer. It doubles each time.
	shutdownPoll = 50 * time.Millisecond
)

// LifecycleOptions describe a broker to the controller.
type LifecycleOptions struct {
	NodeID    int32
	ClusterID string
	// Incarnation is drawn anew at every start.
	Incarnation uuid.UUID
	Rack        string // "" for none
	Listeners   []config.Listener
	// Unstable adds levels of features that are not for production.
	Unstable bool
	// LogDirs are the ids of the log directories that are online.
	LogDirs []uuid.UUID
	// CordonedDirs gives the ids of those that take no new replicas. It is asked for every heartbeat, and must not call the
	// Lifecycle.
	CordonedDirs func() []uuid.UUID
	// PreviousEpoch is the broker epoch of the life before, if that ended cleanly, else -1.
	PreviousEpoch int64

	Controller Controller
	// MetadataOffset is the last offset of the metadata log that has been applied.
	MetadataOffset func() int64

	HeartbeatInterval time.Duration
	SessionTimeout    time.Duration
	Rand              *rand.Rand // jitter of retries; owned by the Lifecycle from then on
	Logger            *slog.Logger
}

// lifecycle is the state machine: what to send next, and when, given what was answered. It has no goroutine and no clock.
type lifecycle struct {
	o     LifecycleOptions
	state State
	epoch int64 // of this registration, -1 before

	registered bool
	ready      bool // to be unfenced: logs are open
	pending    bool // a request is under way
	again      bool // send once more as soon as it is answered
	asks       int  // how many requests to stop were answered
	failures   int
	due        time.Time // of the next request

	offline map[uuid.UUID]bool // failed directories; true when the controller knows
	told    []uuid.UUID        // failed directories in the last heartbeat
}

func newLifecycle(o LifecycleOptions) lifecycle {
	return lifecycle{o: o, state: Starting, epoch: -1, offline: map[uuid.UUID]bool{}}
}

// next is the request to send now, or nil with the time at which to ask again (zero: not before something happens).
func (l *lifecycle) next(now time.Time) (q kmsg.Request, at time.Time) {
	switch {
	case l.pending || l.state == NotRunning || l.state == ShuttingDown:
		return nil, time.Time{}
	case now.Before(l.due):
		return nil, l.due
	}
	l.pending = true
	if !l.registered {
		return l.registration(), time.Time{}
	}
	return l.heartbeat(), time.Time{}
}

func (l *lifecycle) registration() kmsg.Request {
	q := kmsg.NewPtrBrokerRegistrationRequest()
	q.Version = q.MaxVersion()
	q.BrokerID, q.ClusterID, q.IncarnationID = l.o.NodeID, l.o.ClusterID, l.o.Incarnation
	for _, x := range l.o.Listeners {
		r := kmsg.NewBrokerRegistrationRequestListener()
		r.Name, r.Host, r.Port, r.SecurityProtocol = x.Name, x.Host, uint16(x.Port), int16(x.Protocol)
		q.Listeners = append(q.Listeners, r)
	}
	features := metadata.SupportedFeatures(l.o.Unstable)
	for _, name := range slices.Sorted(maps.Keys(features)) {
		r := kmsg.NewBrokerRegistrationRequestFeature()
		r.Name, r.MinSupportedVersion, r.MaxSupportedVersion = name, features[name].Min, features[name].Max
		q.Features = append(q.Features, r)
	}
	if l.o.Rack != "" {
		q.Rack = &l.o.Rack
	}
	q.LogDirs = l.onlineDirs()
	q.PreviousBrokerEpoch = l.o.PreviousEpoch
	return q
}

func (l *lifecycle) onlineDirs() [][16]byte {
	dirs := slices.Clone(l.o.LogDirs)
	slices.SortFunc(dirs, uuid.UUID.Compare)
	var out [][16]byte
	for _, d := range dirs {
		if _, failed := l.offline[d]; !failed {
			out = append(out, d)
		}
	}
	return out
}

func (l *lifecycle) heartbeat() kmsg.Request {
	q := kmsg.NewPtrBrokerHeartbeatRequest()
	q.Version = q.MaxVersion()
	q.BrokerID, q.BrokerEpoch = l.o.NodeID, l.epoch
	q.CurrentMetadataOffset = l.o.MetadataOffset()
	q.WantFence = !l.ready
	q.WantShutdown = l.state == PendingControlledShutdown
	l.told = slices.SortedFunc(maps.Keys(l.offline), uuid.UUID.Compare)
	for _, d := range l.told {
		q.OfflineLogDirs = append(q.OfflineLogDirs, d)
	}
	if l.ready {
		q.CordonedLogDirs = [][16]byte{} // null would leave what the controller knows
		for _, d := range l.o.CordonedDirs() {
			q.CordonedLogDirs = append(q.CordonedLogDirs, d)
		}
	}
	return q
}

// answered takes the answer to the request that next gave.
func (l *lifecycle) answered(now time.Time, resp kmsg.Response, err error) {
	l.pending = false
	switch r := resp.(type) {
	case *kmsg.BrokerRegistrationResponse:
		if err == nil {
			err = codeError(r.ErrorCode)
		}
		if err == nil {
			l.registered, l.epoch, l.failures = true, r.BrokerEpoch, 0
			l.o.Logger.Info("registered with the controller", "broker_epoch", l.epoch)
			l.due = now
			return
		}
	case *kmsg.BrokerHeartbeatResponse:
		if err == nil {
			err = codeError(r.ErrorCode)
		}
		if err == nil {
			l.failures = 0
			for _, d := range l.told { // not those that have failed meanwhile
				l.offline[d] = true
			}
			l.heard(now, r)
			return
		}
		if api.CodeOf(err) == api.ErrStaleBrokerEpoch.Code {
			// The controller doesn't know this life of the broker any more.
			l.registered = false
		}
	}
	l.failures++
	l.again = false
	// Kafka goes up to the session timeout; but who is refused because its last life may not be over is let in when it is.
	d := min(lifecycleFirstBackoff<<min(l.failures-1, 20), l.o.SessionTimeout, l.o.HeartbeatInterval)
	d = time.Duration(float64(d) * (0.98 + 0.04*l.o.Rand.Float64()))
	l.due = now.Add(d)
	l.o.Logger.Warn("the controller could not be told of this broker", "registered", l.registered, "attempts", l.failures, "retry_in", d, "err", err)
}

// heard moves on by what a heartbeat was answered with.
func (l *lifecycle) heard(now time.Time, r *kmsg.BrokerHeartbeatResponse) {
	wait := l.o.HeartbeatInterval
	switch l.state {
	case Starting:
		if r.IsCaughtUp {
			l.enter(Recovery)
		}
		wait = catchUpPoll
	case Recovery:
		if !r.IsFenced {
			l.enter(Running)
		} else if l.ready {
			wait = catchUpPoll
		}
	case PendingControlledShutdown:
		if r.ShouldShutdown {
			l.enter(ShuttingDown)
			return
		}
		wait = min(shutdownPoll<<min(l.asks, 20), wait)
		l.asks++
	}
	l.due = now.Add(wait)
	if l.again {
		l.again, l.due = false, now
	}
}

func (l *lifecycle) enter(s State) {
	l.o.Logger.Info("broker state changes", "from", l.state.String(), "to", s.String(), "broker_epoch", l.epoch)
	l.state = s
}

// waitsForMetadata says whether the next heartbeat waits for news of the metadata.
func (l *lifecycle) waitsForMetadata() bool {
	return l.state == Starting && l.registered || l.state == Recovery && l.ready || l.state == PendingControlledShutdown && l.asks > 0
}

func (l *lifecycle) becomeReady(now time.Time) {
	l.ready = true
	l.hurry(now)
}

func (l *lifecycle) directoryFailed(now time.Time, dir uuid.UUID) {
	l.offline[dir] = false
	if l.registered {
		l.hurry(now)
	}
}

// shutDown begins a controlled shutdown. A broker that isn't running is through with it at once.
func (l *lifecycle) shutDown(now time.Time) {
	switch l.state {
	case PendingControlledShutdown, ShuttingDown:
	case Running:
		l.enter(PendingControlledShutdown)
		l.hurry(now)
	default:
		l.enter(ShuttingDown)
	}
}

// hurry makes the next request go out at once, or as soon as the one under way is answered.
func (l *lifecycle) hurry(now time.Time) {
	if l.pending {
		l.again = true
		return
	}
	if l.failures == 0 {
		l.due = now
	}
}

func codeError(code int16) error {
	if e := api.ErrorFor(code); code != 0 && e != nil {
		return e
	}
	return nil
}

// Lifecycle keeps a broker registered with the controller: it registers, heartbeats, and asks to be let go at the end. Make it
// with NewLifecycle, end it with Close.
type Lifecycle struct {
	mu   sync.Mutex // guards core
	core lifecycle

	wake     chan struct{} // something has changed: look at the core
	caughtUp chan struct{} // closed when the broker has read its own registration
	running  chan struct{} // closed when it is unfenced for the first time
	released chan struct{} // closed when the controller has let it go, or nobody asks any more
	done     chan struct{}
	stop     context.CancelFunc
	epoch    atomic.Int64
}

// NewLifecycle makes the Lifecycle and begins to register.
func NewLifecycle(o LifecycleOptions) *Lifecycle {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Lifecycle{core: newLifecycle(o),
		wake: make(chan struct{}, 1), caughtUp: make(chan struct{}), running: make(chan struct{}), released: make(chan struct{}),
		done: make(chan struct{}), stop: cancel}
	l.epoch.Store(-1)
	go l.run(ctx)
	return l
}

// run sends what is due until Close.
func (l *Lifecycle) run(ctx context.Context) {
	defer close(l.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		l.mu.Lock()
		q, at := l.core.next(time.Now())
		l.announce()
		l.mu.Unlock()
		if q != nil {
			l.core.o.Controller.Forward(Client{}, q, time.Now().Add(l.core.o.SessionTimeout), func(resp kmsg.Response, err error) {
				l.do(func(c *lifecycle, now time.Time) { c.answered(now, resp, err) })
			})
		}
		timer.Stop()
		if !at.IsZero() {
			timer.Reset(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// announce closes the channels of states that have been reached.
func (l *Lifecycle) announce() {
	reached := func(ch chan struct{}) {
		select {
		case <-ch:
		default:
			close(ch)
		}
	}
	s := l.core.state
	if s >= Recovery {
		reached(l.caughtUp)
	}
	if s == Running {
		reached(l.running)
	}
	if s == ShuttingDown {
		reached(l.released)
	}
	l.epoch.Store(l.core.epoch)
}

func (l *Lifecycle) do(f func(c *lifecycle, now time.Time)) {
	l.mu.Lock()
	f(&l.core, time.Now())
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// CaughtUp is closed when the broker has read its own registration in the metadata log, and so knows all that is older.
func (l *Lifecycle) CaughtUp() <-chan struct{} { return l.caughtUp }

// Unfenced is closed when the controller has let the broker in.
func (l *Lifecycle) Unfenced() <-chan struct{} { return l.running }

// State is the broker's state.
func (l *Lifecycle) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.state
}

// Epoch is the broker epoch, -1 before the registration.
func (l *Lifecycle) Epoch() int64 { return l.epoch.Load() }

// ReadyToUnfence tells that the logs are open.
func (l *Lifecycle) ReadyToUnfence() {
	l.do((*lifecycle).becomeReady)
}

// MetadataAdvanced tells that MetadataOffset has moved. A broker that waits to catch up, or for its leaderships to move, then
// asks at once.
func (l *Lifecycle) MetadataAdvanced() {
	l.mu.Lock()
	waits := l.core.waitsForMetadata()
	l.mu.Unlock()
	if waits {
		l.do((*lifecycle).hurry)
	}
}

// DirectoryFailed tells that a log directory is offline.
func (l *Lifecycle) DirectoryFailed(dir uuid.UUID) {
	l.do(func(c *lifecycle, now time.Time) { c.directoryFailed(now, dir) })
}

// Hurry makes the next heartbeat go out at once: something that it tells has changed, and the controller waits for it.
func (l *Lifecycle) Hurry() {
	l.do(func(c *lifecycle, now time.Time) {
		if c.registered {
			c.hurry(now)
		}
	})
}

// DirectoryFailureKnown says whether the controller has been told of a failed directory.
func (l *Lifecycle) DirectoryFailureKnown(dir uuid.UUID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.offline[dir]
}

// ControlledShutdown asks the controller to move away what this broker leads and waits until it says that the broker may
// stop, or until ctx ends. A broker that isn't running doesn't ask.
func (l *Lifecycle) ControlledShutdown(ctx context.Context) error {
	l.do((*lifecycle).shutDown)
	select {
	case <-l.released:
		return nil
	case <-l.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close stops talking to the controller.
func (l *Lifecycle) Close() {
	l.stop()
	<-l.done
}
