package node

import (
	"context"
	"net"
	"sync"
	"time"

	"gregor/internal/controller"
	"gregor/internal/metadata"
	"gregor/internal/peer"
)

// prober looks at brokers' addresses for the controller. A refusal says something only where somebody has answered before: an
// address may be meant for others than this node, such as clients behind a gateway. So every controller connects once to every
// address of a broker that comes into service, and remembers those that it reached. It is a publisher.
type prober struct {
	n *Node

	mu    sync.Mutex // guards known
	known map[int32]*reached
}

// reached are the addresses that this node has reached in one life of a broker.
type reached struct {
	epoch int64
	addrs map[string]bool
}

const (
	// reachTimeout bounds one attempt to connect to a broker.
	reachTimeout = time.Second
	// reachAttempts is how often an address is tried before it counts as one that can't be reached from here.
	reachAttempts = 5
	reachWait     = 100 * time.Millisecond // after the first attempt; then longer
)

// Name implements metadata.Publisher.
func (p *prober) Name() string { return "addresses of brokers" }

// Publish implements metadata.Publisher.
func (p *prober) Publish(d *metadata.Delta, img *metadata.Image, _ metadata.Manifest) {
	if d.Cluster == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.known {
		if img.Cluster.Broker(id) == nil {
			delete(p.known, id)
		}
	}
	for _, id := range img.Cluster.BrokerIDs() {
		b := img.Cluster.Broker(id)
		if r := p.known[id]; b.Fenced || r != nil && r.epoch == b.Epoch {
			continue
		}
		r := &reached{epoch: b.Epoch, addrs: make(map[string]bool)}
		p.known[id] = r
		for _, e := range b.Listeners {
			addr := hostPort(e.Host, e.Port)
			p.n.bg.Go(func() { p.learn(r, addr) })
		}
	}
}

// learn finds out whether an address can be reached.
func (p *prober) learn(r *reached, addr string) {
	for attempt := range reachAttempts {
		if p.n.connect(p.n.bgCtx, addr) == controller.Listening {
			p.mu.Lock()
			r.addrs[addr] = true
			p.mu.Unlock()
			return
		}
		select {
		case <-p.n.bgCtx.Done():
			return
		case <-time.After(reachWait << attempt):
		}
	}
	p.n.logger.Debug("an address of a broker can't be reached from this controller", "addr", addr, "broker_epoch", r.epoch)
}

// probe finds out whether anybody listens where the suspect did. It is gone when all addresses refuse that were reached before.
func (p *prober) probe(s controller.Suspect, done func(controller.Verdict)) {
	var addrs []string
	p.mu.Lock()
	if r := p.known[s.ID]; r != nil && r.epoch == s.Epoch {
		for _, e := range s.Endpoints {
			if addr := hostPort(e.Host, e.Port); r.addrs[addr] {
				addrs = append(addrs, addr)
			}
		}
	}
	p.mu.Unlock()
	if len(addrs) == 0 || p.n.bgCtx.Err() != nil {
		done(controller.Unknown)
		return
	}
	p.n.bg.Go(func() {
		verdict := controller.Refusing
		for _, addr := range addrs {
			if v := p.n.connect(p.n.bgCtx, addr); v != controller.Refusing {
				verdict = v
				break
			}
		}
		done(verdict)
	})
}

// connect finds out whether anybody takes connections at an address.
func (n *Node) connect(ctx context.Context, addr string) controller.Verdict {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	c, err := n.dial()(ctx, "tcp", addr)
	switch {
	case err == nil:
		c.Close()
		return controller.Listening
	case peer.Refused(err):
		return controller.Refusing
	}
	return controller.Unknown
}

// dial is how this node connects to others.
func (n *Node) dial() func(ctx context.Context, network, addr string) (net.Conn, error) {
	if n.o.Dial != nil {
		return n.o.Dial
	}
	return (&net.Dialer{}).DialContext
}
