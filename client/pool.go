package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// purpose separates connections to one broker by what would hold up what: a broker answers in order, so a fetch that waits for
// records, or a join that waits for other members, must not stand before anything else. 0 is for what is answered at once; each
// consumer has two of its own.
type purpose uint32

const forRequests purpose = 0

type connKey struct {
	node int32 // seeds are -1, -2…
	purpose
}

// pool keeps at most one connection per broker and purpose, dials when one is asked for, and not too often when that fails.
type pool struct {
	o *Options

	mu     sync.Mutex
	rand   *rand.Rand
	closed bool
	last   purpose
	addrs  map[int32]string // of the brokers, from metadata
	slots  map[connKey]*slot
	nodes  map[int32]*nodeState
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // dials under way and readers of connections
}

// nodeState is what all connections to a node share.
type nodeState struct {
	mu        sync.Mutex
	throttled time.Time // guarded by mu: nothing is to be sent before
}

func (n *nodeState) throttle(until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if until.After(n.throttled) {
		n.throttled = until
	}
}

// await waits until the node may be sent something: a broker whose quota was exceeded says for how long it wants to be left
// alone (KIP-219).
func (n *nodeState) await(ctx context.Context) error {
	n.mu.Lock()
	d := time.Until(n.throttled)
	n.mu.Unlock()
	if d > 0 && !sleep(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

// slot is one connection, or what stands for it while there's none.
type slot struct {
	conn     *conn
	dialing  chan struct{} // closed when the dial under way is over
	err      error         // of the last dial
	failures int
	retryAt  time.Time
}

func newPool(o *Options) *pool {
	p := &pool{o: o, addrs: map[int32]string{}, slots: map[connKey]*slot{}, nodes: map[int32]*nodeState{}, rand: rand.New(rand.NewPCG(o.Rand.Uint64(), o.Rand.Uint64()))}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	for i, s := range o.Seeds {
		p.addrs[int32(-1-i)] = s
	}
	return p
}

func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	var conns []*conn
	for _, s := range p.slots {
		if s.conn != nil {
			conns = append(conns, s.conn)
		}
	}
	p.slots = map[connKey]*slot{}
	p.mu.Unlock()
	p.cancel(ErrClosed)
	for _, c := range conns {
		c.fail(ErrClosed)
	}
	p.wg.Wait()
}

// setBrokers takes the addresses of the brokers that there are now. Connections to others are left to die.
func (p *pool) setBrokers(brokers []Broker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var stale []*conn
	now := map[int32]string{}
	for _, b := range brokers {
		now[b.ID] = b.Addr()
	}
	for id, addr := range p.addrs {
		if id < 0 {
			now[id] = addr
			continue
		}
		if now[id] == addr {
			continue
		}
		for k, s := range p.slots {
			if k.node == id && s.conn != nil {
				stale = append(stale, s.conn)
			}
			if k.node == id {
				delete(p.slots, k)
			}
		}
	}
	p.addrs = now
	for _, c := range stale {
		c.fail(&errConn{"connection to", c.addr, errors.New("broker has another address now")})
	}
}

// any is a connection to some broker: an open one, else to a broker picked at random, with the seeds as the last resort.
func (p *pool) any(ctx context.Context, u purpose) (*conn, error) {
	p.mu.Lock()
	var ids, seeds []int32
	for id := range p.addrs {
		if s := p.slots[connKey{id, u}]; s != nil && s.conn != nil && s.conn.usable() {
			c := s.conn
			p.mu.Unlock()
			return c, nil
		}
		if id < 0 {
			seeds = append(seeds, id)
		} else {
			ids = append(ids, id)
		}
	}
	p.rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	p.rand.Shuffle(len(seeds), func(i, j int) { seeds[i], seeds[j] = seeds[j], seeds[i] })
	p.mu.Unlock()
	var err error
	for _, id := range append(ids, seeds...) {
		var c *conn
		if c, err = p.get(ctx, connKey{id, u}); err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// get is the connection to one broker. While a failed dial's pause lasts it fails with that dial's error.
func (p *pool) get(ctx context.Context, k connKey) (*conn, error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, ErrClosed
		}
		addr, ok := p.addrs[k.node]
		if !ok {
			p.mu.Unlock()
			return nil, &errConn{"find", fmt.Sprintf("broker %d", k.node), fmt.Errorf("not among the cluster's brokers")}
		}
		s := p.slots[k]
		if s == nil {
			s = &slot{}
			p.slots[k] = s
		}
		if s.conn != nil {
			if s.conn.usable() {
				c := s.conn
				p.mu.Unlock()
				return c, nil
			}
			s.conn.retire()
			s.conn = nil
		}
		if s.dialing == nil {
			if time.Now().Before(s.retryAt) && s.err != nil {
				err := s.err
				p.mu.Unlock()
				return nil, err
			}
			s.dialing = make(chan struct{})
			p.wg.Go(func() { p.dial(k, s, addr) })
		}
		done := s.dialing
		p.mu.Unlock()
		select {
		case <-done:
			p.mu.Lock()
			c, err := s.conn, s.err
			p.mu.Unlock()
			if c != nil {
				return c, nil
			}
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// dial runs apart from those who wait for it, so that one impatient caller doesn't spoil it for the others.
func (p *pool) dial(k connKey, s *slot, addr string) {
	ctx, cancel := context.WithTimeout(p.ctx, p.o.ConnectTimeout)
	defer cancel()
	var c *conn
	nc, err := p.o.Dial(ctx, "tcp", addr)
	if err == nil {
		nc, err = p.o.secure(ctx, nc, addr)
	}
	if err != nil {
		err = &errConn{"connect to", addr, err}
	} else {
		c = newConn(nc, addr, p.node(k.node), p.o)
		c.id = k.node
		p.wg.Go(c.read)
		err = c.negotiate(ctx, p.o.ConnectTimeout)
		if err == nil && p.o.SASL != nil {
			err = c.authenticate(ctx, p.o.SASL, p.o.ConnectTimeout)
		}
		if err != nil {
			if ctx.Err() != nil {
				// The other end takes connections and doesn't speak, as a frozen process: worth another attempt.
				err = &errConn{"negotiate with", addr, err}
			}
			c.fail(err)
			c = nil
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.slots[k] != s {
		// Closed meanwhile, or the broker has another address now.
		if c != nil {
			c.fail(ErrClosed)
		}
		s.err = &errConn{"connect to", addr, ErrClosed}
		close(s.dialing)
		s.dialing = nil
		return
	}
	s.conn, s.err = c, err
	if err != nil {
		p.o.Logger.Warn("broker can't be reached", "address", addr, "broker", k.node, "err", err)
		s.retryAt = time.Now().Add(backoff(p.o.ReconnectBackoff, p.o.ReconnectBackoffMax, p.rand, s.failures))
		s.failures++
	} else {
		s.failures = 0
	}
	close(s.dialing)
	s.dialing = nil
}

// addBroker makes a broker known that an answer other than metadata named.
func (p *pool) addBroker(b Broker) {
	if b.ID < 0 || b.Host == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.addrs[b.ID] == "" {
		p.addrs[b.ID] = b.Addr()
	}
}

// knows says whether a broker's address is known.
func (p *pool) knows(id int32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addrs[id] != ""
}

// node is what all connections to a node share. A node with another address is the same node: its quotas are by its id.
func (p *pool) node(id int32) *nodeState {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[id]
	if n == nil {
		n = &nodeState{}
		p.nodes[id] = n
	}
	return n
}

// newPurpose makes a purpose for a consumer, whose connections drop closes.
func (p *pool) newPurpose() purpose {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	return p.last
}

func (p *pool) drop(u purpose) {
	p.mu.Lock()
	var conns []*conn
	for k, s := range p.slots {
		if k.purpose == u {
			if s.conn != nil {
				conns = append(conns, s.conn)
			}
			delete(p.slots, k)
		}
	}
	p.mu.Unlock()
	for _, c := range conns {
		c.fail(ErrClosed)
	}
}
