package client

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// coreCoordinator finds the group's coordinator.
type coreCoordinator struct {
	k        *core
	node     int32 // anyNode while unknown
	wanted   bool
	inFlight bool
	failures int
	retryAt  time.Time
}

// get is the coordinator; if it isn't known it will be looked for.
func (c *coreCoordinator) get() (int32, bool) {
	c.wanted = true
	return c.node, c.node != anyNode
}

func (c *coreCoordinator) tick() {
	if !c.wanted || c.node != anyNode || c.inFlight || !c.k.due(c.retryAt) {
		return
	}
	c.wanted, c.inFlight = false, true
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = coordinatorGroup, c.k.o.Group, []string{c.k.o.Group}
	c.k.send(effectSend{node: anyNode, req: req}, func(resp kmsg.Response, err error) {
		c.inFlight, c.wanted = false, true
		var b Broker
		_, err = respondError(resp, err, func(r *kmsg.FindCoordinatorResponse) error {
			var err error
			b, err = coordinatorOf(r)
			return err
		})
		if err != nil {
			c.retryAt = c.k.now.Add(c.k.backoff(c.failures))
			c.failures++
			if !Retriable(err) {
				err = fmt.Errorf("find the coordinator of group %q: %w", c.k.o.Group, err)
				c.k.emit(effectError{err, true})
				c.k.commits.refuse(err)
				c.k.offsets.refuse(err)
			}
			return
		}
		c.node, c.failures = b.ID, 0
	})
}

// failed forgets the coordinator if an error says that it isn't one.
func (c *coreCoordinator) failed(err error) {
	if err == nil || !needsRefresh(err) || c.node == anyNode {
		return
	}
	c.k.log.Debug("coordinator is looked for again", "group", c.k.o.Group, "err", err)
	c.node, c.retryAt = anyNode, c.k.now.Add(c.k.backoff(0))
	c.k.emit(effectForget{})
}

// coordinatorOf reads an answer about one coordinator.
func coordinatorOf(r *kmsg.FindCoordinatorResponse) (Broker, error) {
	if r.Version < 4 {
		return Broker{ID: r.NodeID, Host: r.Host, Port: r.Port}, errorOf(r.ErrorCode, r.ErrorMessage)
	}
	if len(r.Coordinators) != 1 {
		return Broker{}, fmt.Errorf("%d answers", len(r.Coordinators))
	}
	a := r.Coordinators[0]
	return Broker{ID: a.NodeID, Host: a.Host, Port: a.Port}, errorOf(a.ErrorCode, a.ErrorMessage)
}
