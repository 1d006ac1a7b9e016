package network

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"gregor/internal/api"
	"gregor/internal/rawsock"
)

const (
	sizePrefix = 4
	// firstPiece is what a large request gets at first; it grows as its bytes arrive.
	firstPiece = 256 << 10
	// growth is the factor by which it grows. Copying costs an honest client's first large request a third of its bytes; later
	// ones start at the size of the largest that has arrived.
	growth = 4
	// stallTime is how long a request may make no progress while it holds memory beyond the budget, which others wait for.
	stallTime = 10 * time.Second
	// maxReadAhead bounds the read-ahead buffer. It is as large as the last request was, so that requests of one size take
	// one read each; requests above the bound are better read to where they belong.
	maxReadAhead = 64 << 10
	// smallRequest is up to which size nobody counts what a request becomes when it is decoded.
	smallRequest = 4 << 10
	// decodedFactor bounds what one request may become, by the largest request that is accepted.
	decodedFactor = 4
)

// input cuts requests out of what a connection receives. What is read ahead lies in buf[r:w]; small requests are served where
// they lie, large ones are read into a buffer of their own. buf is nil while nothing has been read ahead and no read is under
// way, so an idle connection holds no buffer.
type input struct {
	buf  *buffer
	r, w int
	size int // of the next read-ahead buffer

	// Of the read under way on the raw connection: where to, or nil for a new read-ahead buffer; what came of it.
	dst    []byte
	n      int
	err    error
	readFn func(fd uintptr) bool
	prefix [sizePrefix]byte
}

func (in *input) buffered() int { return in.w - in.r }

func (in *input) close() {
	if in.buf != nil {
		in.buf.release()
		in.buf = nil
	}
	in.r, in.w = 0, 0
}

// next returns the next request, which holds its memory. It writes replies before it blocks.
func (c *Conn) next() (*Request, error) {
	in := &c.in
	for {
		if n := in.buffered(); n >= sizePrefix {
			size := int(int32(binary.BigEndian.Uint32(in.buf.b[in.r:])))
			if max := int(c.maxRequest.Load()); size < 0 || size > max {
				return nil, fmt.Errorf("request of %d bytes, at most %d are accepted", size, max)
			}
			switch {
			case n-sizePrefix >= size:
				return c.small(size)
			case sizePrefix+size > len(in.buf.b):
				return c.large(size)
			}
		}
		if err := c.readAhead(); err != nil {
			return nil, err
		}
	}
}

// small takes a request that lies whole in the read-ahead buffer.
func (c *Conn) small(size int) (*Request, error) {
	r := &Request{Conn: c, bytes: size}
	if !c.srv.budget.take(&r.claim, int64(size)) {
		if err := c.awaitMemory(c.srv.budget, &r.claim, int64(size)); err != nil {
			r.release()
			return nil, err
		}
	}
	in := &c.in
	start := in.r + sizePrefix
	frame := in.buf.b[start : start+size : start+size]
	in.r = start + size
	if in.r == in.w {
		// All that was read ahead has been used up: the buffer goes with the request, and the connection holds none until
		// more arrives.
		r.buf, in.buf = in.buf, nil
		in.r, in.w = 0, 0
	} else {
		in.buf.retain()
		r.buf = in.buf
	}
	return c.parse(r, frame)
}

// large reads a request that does not fit into the read-ahead buffer into one of its own.
func (c *Conn) large(size int) (*Request, error) {
	in := &c.in
	r := &Request{Conn: c, bytes: size}
	fail := func(err error) (*Request, error) {
		r.release()
		return nil, err
	}
	piece := min(size, max(firstPiece, c.delivered))
	if err := c.reserve(r, piece); err != nil {
		return fail(err)
	}
	have := copy(r.buf.b, in.buf.b[in.r+sizePrefix:in.w])
	in.close()
	c.flush(true)
	for have < size {
		if have == len(r.buf.b) {
			small := r.buf
			r.buf = nil
			if err := c.reserve(r, min(size, have*growth)); err != nil {
				r.buf = small
				return fail(err)
			}
			copy(r.buf.b, small.b[:have])
			small.release()
		}
		n, err := c.readInto(r.buf.b[have:min(size, len(r.buf.b))], r.claim.overdraft)
		if err != nil {
			return fail(err)
		}
		have += n
		c.touch(c.srv.opts.Clock.Now())
	}
	if r.claim.overdraft {
		if err := c.clearDeadline(); err != nil {
			return fail(err)
		}
	}
	c.delivered = max(c.delivered, size)
	return c.parse(r, r.buf.b[:size:size])
}

// reserve gives r a buffer of at least n bytes and makes its claim on the budget as large.
func (c *Conn) reserve(r *Request, n int) error {
	more := int64(classSize(n)) - r.claim.held
	if !c.srv.budget.take(&r.claim, more) {
		if err := c.awaitMemory(c.srv.budget, &r.claim, more); err != nil {
			return err
		}
	}
	r.buf = c.srv.pools.get(n)
	return nil
}

// reserveDecoded waits until there is memory for what the handler will make of r. Small requests need none worth counting, and
// produce and fetch are decoded where they lie.
func (c *Conn) reserveDecoded(r *Request) error {
	if r.bytes <= smallRequest || r.Key == api.Produce || r.Key == api.Fetch {
		return nil
	}
	n := api.DecodedSize(r.Key, r.Version, r.Body)
	if most := decodedFactor * int64(c.srv.opts.MaxRequestBytes); n > most {
		return fmt.Errorf("%s v%d of %d bytes takes %d bytes of memory, at most %d are given", r.Key, r.Version, r.bytes, n, most)
	}
	if n == 0 || c.srv.decoding.take(&r.decoded, n) {
		return nil // whoever needs nothing waits for nobody
	}
	return c.awaitMemory(c.srv.decoding, &r.decoded, n)
}

// awaitMemory waits for one of the node's budgets. The connection does not read meanwhile; its replies go on leaving.
func (c *Conn) awaitMemory(from *budget, cl *claim, n int64) error {
	c.flush(true)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	failed := make(chan struct{})
	c.failed = failed
	c.mu.Unlock()
	select {
	case <-from.enqueue(cl, n):
	case <-failed:
		from.cancel(cl)
	case <-c.srv.stopping:
		from.cancel(cl)
		return errDraining
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = nil
	return c.err
}

// parse makes a request of a frame.
func (c *Conn) parse(r *Request, frame []byte) (*Request, error) {
	var err error
	if r.Header, r.Body, err = api.ParseHeader(frame, c.clientID); err != nil {
		r.release()
		return nil, err
	}
	c.clientID = r.ClientID
	if c.in.size = minBuffer; r.bytes+sizePrefix <= maxReadAhead {
		c.in.size = classSize(r.bytes + sizePrefix)
	}
	r.Received = c.srv.opts.Clock.Now()
	c.touch(r.Received)
	return r, nil
}

// readAhead reads what there is into the read-ahead buffer, at least a byte.
func (c *Conn) readAhead() error {
	in := &c.in
	if in.buf != nil && in.w == len(in.buf.b) || in.buf != nil && in.r == in.w {
		c.makeRoom()
	}
	c.flush(true)
	if in.buf != nil {
		n, err := c.readInto(in.buf.b[in.w:], false)
		in.w += n
		return err
	}
	if c.raw == nil {
		// Wait for a request with no more than its length, so that an idle connection holds no buffer here either.
		n, err := io.ReadFull(c.nc, in.prefix[:])
		if n > 0 && err == nil {
			in.buf = c.srv.pools.get(in.size)
			in.r, in.w = 0, copy(in.buf.b, in.prefix[:])
		}
		return c.readError(err)
	}
	n, err := c.readInto(nil, false)
	if n > 0 {
		in.r, in.w = 0, n
	}
	return err
}

// makeRoom frees space behind what is read ahead. Requests that are in flight keep the buffer that they lie in.
func (c *Conn) makeRoom() {
	in := &c.in
	n := in.buffered()
	switch {
	case n == 0 && !in.buf.sole():
		in.close()
	case in.buf.sole():
		copy(in.buf.b, in.buf.b[in.r:in.w])
		in.r, in.w = 0, n
	default:
		// What is left may be the beginning of a request that is larger than the last one was.
		fresh := c.srv.pools.get(max(in.size, n+1))
		copy(fresh.b, in.buf.b[in.r:in.w])
		in.buf.release()
		in.buf, in.r, in.w = fresh, 0, n
	}
}

// readInto reads at least one byte into dst; on a raw connection dst may be nil, for a read-ahead buffer that is taken when
// there is something to read. hurry bounds the time it may take.
func (c *Conn) readInto(dst []byte, hurry bool) (int, error) {
	if hurry {
		if err := c.nc.SetReadDeadline(time.Now().Add(stallTime)); err != nil {
			return 0, err
		}
		if c.srv.draining.Load() {
			return 0, errDraining
		}
	}
	var n int
	var err error
	if c.raw == nil {
		n, err = c.nc.Read(dst)
		if n > 0 {
			err = nil
		}
	} else {
		in := &c.in
		in.dst = dst
		in.n, in.err = 0, nil
		err = c.raw.Read(in.readFn)
		if err == nil {
			n, err = in.n, in.err
		}
		in.dst = nil
	}
	if err != nil && isTimeout(err) && hurry && !c.srv.draining.Load() {
		return n, errSlow
	}
	return n, c.readError(err)
}

// tryRead is the attempt to read that the runtime repeats when the socket becomes readable.
func (c *Conn) tryRead(fd uintptr) bool {
	in := &c.in
	dst := in.dst
	if dst == nil {
		in.buf = c.srv.pools.get(in.size)
		dst = in.buf.b
	}
	n, err := rawsock.Read(fd, dst)
	if n > 0 {
		in.n = n
		return true
	}
	if in.dst == nil {
		in.close()
	}
	if err == unix.EAGAIN {
		return false
	}
	if err == nil {
		err = io.EOF
	}
	in.err = err
	return true
}

func (c *Conn) clearDeadline() error {
	if err := c.nc.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if c.srv.draining.Load() {
		return errDraining
	}
	return nil
}

// readError says why a read failed: the reason for which the connection was closed, if it was.
func (c *Conn) readError(err error) error {
	if err == nil {
		return nil
	}
	if isTimeout(err) && c.srv.draining.Load() {
		return errDraining
	}
	if reason := c.reason(); reason != nil {
		return reason
	}
	return fmt.Errorf("read: %w", err)
}
