package network

import (
	"sync"
	"sync/atomic"
)

// budget bounds the bytes of requests that a node holds, from their first byte to their reply.
//
// A request that finds too little left waits, in order of arrival, and its connection does not read meanwhile. A request that
// has a part of its memory and needs more to go on comes before those that have none; and if even that is not to be had, one
// such request at a time gets what it asks for beyond the limit until it ends (an overdraft). Without that, requests that each
// hold a part could wait for each other for ever. So the node holds at most the limit plus one request. Bytes are reserved as
// they arrive, so what peers only announce costs others nothing.
type budget struct {
	limit int64
	used  atomic.Int64
	// waiting is len(grow)+len(fresh), read without the lock to keep the fast path to one atomic add.
	waiting atomic.Int32

	mu    sync.Mutex // guards grow, fresh, overdrawn
	grow  []*claim   // requests that hold memory already
	fresh []*claim   // requests that hold none
	// overdrawn is the claim that went beyond the limit and has not been given back yet.
	overdrawn *claim
}

// claim is what one request holds of a budget. Only its connection's goroutine grows it; it is given back once.
type claim struct {
	held      int64
	want      int64
	ready     chan struct{} // closed when want is granted; nil unless waiting
	overdraft bool          // went beyond the limit
}

func newBudget(limit int64) *budget { return &budget{limit: limit} }

// take tries to add n bytes to c at once.
func (b *budget) take(c *claim, n int64) bool {
	// Whoever has gone beyond the limit once goes on: behind those who wait for it, it would wait for ever.
	if b.limit <= 0 || c.overdraft {
		b.used.Add(n)
		c.held += n
		return true
	}
	if b.waiting.Load() != 0 {
		return false
	}
	for {
		used := b.used.Load()
		// A request larger than the whole budget gets in when there is no other.
		if used+n > b.limit && !(used == 0 && c.held == 0) {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			c.held += n
			return true
		}
	}
}

// enqueue makes c wait for n more bytes. The channel is closed when it has them.
func (b *budget) enqueue(c *claim, n int64) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.want, c.ready = n, make(chan struct{})
	ready := c.ready
	if c.held > 0 {
		b.grow = append(b.grow, c)
	} else {
		b.fresh = append(b.fresh, c)
	}
	b.waiting.Add(1)
	b.grantLocked()
	return ready
}

// cancel withdraws a claim that may still wait.
func (b *budget) cancel(c *claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.ready == nil {
		return
	}
	b.grow = remove(b.grow, c)
	b.fresh = remove(b.fresh, c)
	b.waiting.Add(-1)
	c.ready = nil
	b.grantLocked()
}

// give returns all that c holds.
func (b *budget) give(c *claim) {
	n := c.held
	if n == 0 {
		return
	}
	c.held = 0
	b.used.Add(-n)
	if b.limit <= 0 {
		return
	}
	if b.waiting.Load() == 0 && !c.overdraft {
		return
	}
	b.mu.Lock()
	if b.overdrawn == c {
		b.overdrawn = nil
	}
	b.grantLocked()
	b.mu.Unlock()
}

func (b *budget) grantLocked() {
	for len(b.grow) > 0 {
		c := b.grow[0]
		if b.used.Load()+c.want > b.limit {
			if b.overdrawn != nil {
				return
			}
			b.overdrawn, c.overdraft = c, true
		}
		b.grow = b.grow[1:]
		b.grantOne(c)
	}
	for len(b.fresh) > 0 {
		c := b.fresh[0]
		if used := b.used.Load(); used+c.want > b.limit && used != 0 {
			return
		}
		b.fresh = b.fresh[1:]
		b.grantOne(c)
	}
}

func (b *budget) grantOne(c *claim) {
	b.used.Add(c.want)
	c.held += c.want
	c.want = 0
	b.waiting.Add(-1)
	close(c.ready)
	c.ready = nil
}

func remove(q []*claim, c *claim) []*claim {
	for i, x := range q {
		if x == c {
			return append(q[:i], q[i+1:]...)
		}
	}
	return q
}
