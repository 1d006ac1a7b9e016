package broker

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/uuid"
)

// LifecycleCore is what a Lifecycle decides, for those who drive it themselves: simulations. It has no goroutine and no clock, and
// doesn't use LifecycleOptions.Controller. It is not safe for concurrent use.
type LifecycleCore struct{ l lifecycle }

// NewLifecycleCore makes the core of a broker that is about to register.
func NewLifecycleCore(o LifecycleOptions) *LifecycleCore { return &LifecycleCore{newLifecycle(o)} }

// Next is the request to send now, or nil with the time at which to ask again; zero: not before something happens.
func (c *LifecycleCore) Next(now time.Time) (q kmsg.Request, at time.Time) { return c.l.next(now) }

// Answered takes the answer to the request that Next gave.
func (c *LifecycleCore) Answered(now time.Time, resp kmsg.Response, err error) {
	c.l.answered(now, resp, err)
}

// State is the broker's state.
func (c *LifecycleCore) State() State { return c.l.state }

// Epoch is the broker epoch, -1 before the registration.
func (c *LifecycleCore) Epoch() int64 { return c.l.epoch }

// ReadyToUnfence, MetadataAdvanced, Hurry and DirectoryFailed tell what the Lifecycle's methods of these names do.
func (c *LifecycleCore) ReadyToUnfence(now time.Time) { c.l.becomeReady(now) }

// MetadataAdvanced tells that MetadataOffset has moved.
func (c *LifecycleCore) MetadataAdvanced(now time.Time) {
	if c.l.waitsForMetadata() {
		c.l.hurry(now)
	}
}

// Hurry makes the next heartbeat go out at once.
func (c *LifecycleCore) Hurry(now time.Time) {
	if c.l.registered {
		c.l.hurry(now)
	}
}

// DirectoryFailed tells that a log directory is offline.
func (c *LifecycleCore) DirectoryFailed(now time.Time, dir uuid.UUID) { c.l.directoryFailed(now, dir) }

// ControlledShutdown begins to ask for leave; ShuttingDown is the state once it is given.
func (c *LifecycleCore) ControlledShutdown(now time.Time) { c.l.shutDown(now) }
