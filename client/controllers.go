package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A client whose seeds are controllers (Options.Controllers) has no brokers: the nodes that it knows are the controllers, and a
// request that is for no node in particular goes to the active one, because nobody else would forward it there.

const (
	brokerEndpoints     int8 = 1
	controllerEndpoints int8 = 2
)

// errNoTopics is what a client of controllers says when it is asked for what only brokers know.
var errNoTopics = errors.New("controllers don't tell about topics: name a broker instead")

// fetchControllers is one try at learning the controllers and which of them is active.
func (c *Client) fetchControllers(ctx context.Context) (*Metadata, error) {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.EndpointType = controllerEndpoints
	cn, err := c.pool.any(ctx, forRequests)
	if err != nil {
		return nil, err
	}
	if err := cn.choose(req, 0); err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrDescribeClusterResponse()
	if err := cn.roundTrip(ctx, req, resp, c.o.RequestTimeout); err != nil {
		return nil, err
	}
	if err := errorOf(resp.ErrorCode, resp.ErrorMessage); err != nil {
		return nil, err
	}
	m := &Metadata{ClusterID: resp.ClusterID, ControllerID: resp.ControllerID}
	for _, b := range resp.Brokers {
		m.Brokers = append(m.Brokers, Broker{ID: b.NodeID, Host: b.Host, Port: b.Port})
	}
	slices.SortFunc(m.Brokers, func(a, b Broker) int { return cmp.Compare(a.ID, b.ID) })
	c.pool.setBrokers(m.Brokers)
	c.meta.put(m, time.Time{})
	return m, nil
}

// activeController finds the controller that serves requests now.
func (c *Client) activeController(ctx context.Context) (int32, error) {
	if id, ok := c.meta.activeController(); ok {
		return id, nil
	}
	m, err := c.fetchControllers(ctx)
	if err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(m.Brokers, func(b Broker) bool { return b.ID == m.ControllerID }) {
		e := errorFor(notController)
		e.Message = "the quorum has no leader now"
		if m.ControllerID >= 0 {
			e.Message = fmt.Sprintf("the active controller, node %d, is not on the listener of the one that was asked", m.ControllerID)
		}
		return 0, e
	}
	return m.ControllerID, nil
}

const notController = 41

// activeController is the one found last, until a failure made it doubtful.
func (m *metadataCache) activeController() (int32, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.controller, m.controllerKnown
}
