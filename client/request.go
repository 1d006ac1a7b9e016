package client

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// target says which broker a request is for.
type target struct {
	node    int32 // anyNode or a broker's id
	coord   coordinator
	purpose purpose
	// highest bounds the request's version where a later one would need what the caller lacks; 0 is no bound.
	highest int16
	// timeout is that of the request, if it isn't the client's RequestTimeout.
	timeout time.Duration
}

const anyNode int32 = -1 << 31

var toAny = target{node: anyNode}

func toNode(id int32) target { return target{node: id} }

func toGroup(group string) target {
	return target{node: anyNode, coord: coordinator{coordinatorGroup, group}}
}

// coordinator names what a coordinator is looked up by.
type coordinator struct {
	kind int8
	key  string
}

const (
	coordinatorGroup int8 = 0
	coordinatorTxn   int8 = 1
)

// exchange sends one request once.
func exchange[R kmsg.Response](ctx context.Context, c *Client, to target, req kmsg.Request) (R, error) {
	var none R
	cn, node, err := c.connTo(ctx, to)
	if err != nil {
		return none, err
	}
	if err := cn.choose(req, to.highest); err != nil {
		return none, err
	}
	if err := cn.node.await(ctx); err != nil {
		return none, err
	}
	resp := req.ResponseKind().(R)
	if err := cn.roundTrip(ctx, req, resp, cmp.Or(to.timeout, c.o.RequestTimeout)); err != nil {
		if to.coord.key != "" {
			c.forgetCoordinator(to.coord, node)
		}
		return none, err
	}
	return resp, nil
}

// ask sends a request with retries. check looks for errors inside the answer: a retriable one sends it again.
func ask[R kmsg.Response](ctx context.Context, c *Client, to target, req kmsg.Request, check func(R) error) (R, error) {
	var resp R
	err := c.retry(ctx, func(ctx context.Context) error {
		var err error
		if resp, err = exchange[R](ctx, c, to, req); err != nil {
			return err
		}
		if check == nil {
			return nil
		}
		err = check(resp)
		if err != nil && to.coord.key != "" && needsRefresh(err) {
			c.forgetCoordinator(to.coord, anyNode)
		}
		return err
	})
	if err != nil {
		return resp, fmt.Errorf("%s: %w", kmsg.NameForKey(req.Key()), err)
	}
	return resp, nil
}

func (c *Client) connTo(ctx context.Context, to target) (*conn, int32, error) {
	node := to.node
	if to.coord.key != "" {
		var err error
		if node, err = c.coordinator(ctx, to.coord); err != nil {
			return nil, node, err
		}
	}
	if node == anyNode && c.o.Controllers {
		var err error
		if node, err = c.activeController(ctx); err != nil {
			return nil, node, err
		}
	}
	if node == anyNode {
		cn, err := c.pool.any(ctx, to.purpose)
		return cn, node, err
	}
	if !c.pool.knows(node) {
		// A broker that came after the last look at the cluster.
		if _, err := c.fetchMetadata(ctx, []string{}, false); err != nil {
			return nil, node, err
		}
	}
	cn, err := c.pool.get(ctx, connKey{node, to.purpose})
	return cn, node, err
}

// connToBroker is a connection to a broker, once the cluster's brokers are known.
func (c *Client) connToBroker(ctx context.Context, id int32) (*conn, error) {
	if !c.pool.knows(id) {
		if _, err := c.Metadata(ctx, []string{}); err != nil {
			return nil, err
		}
	}
	return c.pool.get(ctx, connKey{id, forRequests})
}

// Raw sends any request to any broker, or to the one given, once and without retries, at the highest version both sides know.
func (c *Client) Raw(ctx context.Context, broker *int32, req kmsg.Request) (kmsg.Response, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	to := toAny
	if broker != nil {
		to = toNode(*broker)
	}
	return exchange[kmsg.Response](ctx, c, to, req)
}

// coordinator finds a group's or transaction's coordinator.
func (c *Client) coordinator(ctx context.Context, k coordinator) (int32, error) {
	c.mu.Lock()
	node, ok := c.coordinators[k]
	c.mu.Unlock()
	if ok {
		return node, nil
	}
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = k.kind, k.key, []string{k.key}
	resp, err := exchange[*kmsg.FindCoordinatorResponse](ctx, c, toAny, req)
	if err != nil {
		return 0, err
	}
	b, err := coordinatorOf(resp)
	if err != nil {
		return 0, fmt.Errorf("find coordinator of %q: %w", k.key, err)
	}
	c.pool.addBroker(b)
	c.mu.Lock()
	c.coordinators[k] = b.ID
	c.mu.Unlock()
	return b.ID, nil
}

// forgetCoordinator drops what is known, if it still is this node (anyNode: whatever it is).
func (c *Client) forgetCoordinator(k coordinator, node int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if node == anyNode || c.coordinators[k] == node {
		delete(c.coordinators, k)
	}
}
