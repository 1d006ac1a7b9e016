package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gregor/internal/api"
)

var (
	errDraining = errors.New("server is stopping")
	errIdle     = errors.New("idle for too long")
	errSlow     = errors.New("request stalled while others wait for memory")
)

// flushEvery bounds how many requests that have arrived together are handled before the replies of the first are written.
const flushEvery = 16

// Conn is one connection of a client. Its methods may be called from any goroutine.
type Conn struct {
	srv      *Server
	listener *listener
	nc       net.Conn
	raw      syscall.RawConn // nil unless nc is a TCP connection
	id       uint64
	remote   netip.AddrPort

	principal  atomic.Pointer[string]
	attachment atomic.Value
	maxRequest atomic.Int64 // bytes
	lastActive atomic.Int64 // unix nanoseconds

	// The connection's goroutine alone uses these.
	in        input
	clientID  string // of the last request, so that the next one need not make it anew
	delivered int    // size of the largest request that has arrived whole

	// The goroutine that set writing alone uses this.
	out output

	mu sync.Mutex // guards everything below
	// The requests that have not left, oldest first.
	head, tail    *Request
	inFlight      int
	inFlightBytes int
	// active: the connection's goroutine is at work and will look at the queue before it blocks, so nobody else need write.
	active bool
	// writing: somebody takes replies from the queue and writes them, and will look again before it stops.
	writing    bool
	closed     bool
	err        error         // why the connection ends; the first reason
	failed     chan struct{} // closed when err is set; made when the connection's goroutine waits for it beside others
	mutedUntil time.Time
	cond       *sync.Cond // signalled when a request leaves, on failure, at the end of a mute; made when first needed
	onClose    []func(error)
	ended      error // what OnClose's functions were told
}

// ID is unique among the connections of the server.
func (c *Conn) ID() uint64 { return c.id }

// Listener is the name of the listener that accepted the connection.
func (c *Conn) Listener() string { return c.listener.Name }

// SecurityProtocol is that of the listener.
func (c *Conn) SecurityProtocol() string { return c.listener.SecurityProtocol }

// Table is what the connection's listener serves.
func (c *Conn) Table() *api.Table { return c.listener.Table }

// ClientAddr is the client's address; not valid for connections that have no IP address.
func (c *Conn) ClientAddr() netip.AddrPort { return c.remote }

// LocalAddr is the address that the client connected to.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// NetConn is the connection underneath, for what a TLS handshake knows. Nobody but the network reads or writes it.
func (c *Conn) NetConn() net.Conn { return c.nc }

// Principal is who the client is, in Kafka's form, "User:ANONYMOUS" until SetPrincipal is called.
func (c *Conn) Principal() string {
	if p := c.principal.Load(); p != nil {
		return *p
	}
	return "User:ANONYMOUS"
}

// SetPrincipal sets who the client is. A SASL handler calls it when authentication succeeds.
func (c *Conn) SetPrincipal(p string) { c.principal.Store(&p) }

// Attachment is what the handler keeps with the connection, such as the state of a SASL exchange; nil until it is set.
func (c *Conn) Attachment() any { return c.attachment.Load() }

// SetAttachment sets it. All attachments of a connection must be of one type.
func (c *Conn) SetAttachment(v any) { c.attachment.Store(v) }

// SetMaxRequestBytes replaces the server's bound on the size of a request for this connection, such as a small one until the
// client has proved who it is.
func (c *Conn) SetMaxRequestBytes(n int) { c.maxRequest.Store(int64(n)) }

// Mute makes the connection read no request before t: a client over its quota is slowed by silence (KIP-219). A request that
// has been handled already gets its reply. Mutes do not add up; the latest t counts.
func (c *Conn) Mute(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if until.After(c.mutedUntil) {
		c.mutedUntil = until
	}
}

// OnClose calls f once, on a goroutine of the connection, when the client has closed the connection or it has ended for
// another reason; at once when that has happened already. Replies to requests in flight may still be written.
func (c *Conn) OnClose(f func(reason error)) {
	c.mu.Lock()
	reason := c.ended
	if reason == nil {
		c.onClose = append(c.onClose, f)
	}
	c.mu.Unlock()
	if reason != nil {
		f(reason)
	}
}

// tellClosed calls what was given to OnClose and expires the requests that are parked.
func (c *Conn) tellClosed(reason error) {
	c.mu.Lock()
	if c.ended == nil {
		c.ended = reason
	}
	calls := c.onClose
	c.onClose = nil
	var parked []Parked
	for r := c.head; r != nil; r = r.next {
		if r.parked != nil {
			parked = append(parked, r.parked)
			r.parked = nil
		}
	}
	c.mu.Unlock()
	for _, f := range calls {
		f(reason)
	}
	for _, p := range parked {
		p.Expire()
	}
}

// Close closes the connection. Replies that wait are lost.
func (c *Conn) Close(reason error) { c.fail(reason) }

// serve reads and handles requests until the connection ends.
func (c *Conn) serve() {
	err := c.loop()
	switch {
	case errors.Is(err, errDraining):
		c.drain()
	case errors.Is(err, io.EOF):
		// The client will send no more, yet may still read: what it has asked is answered, as by Kafka, which does not look at
		// a connection while a request is in flight. Whoever takes the end for a sign of death is told now.
		c.tellClosed(err)
		c.drain()
	}
	c.fail(err)
	c.teardown()
}

func (c *Conn) loop() error {
	sinceFlush := 0
	for {
		if err := c.admit(); err != nil {
			return err
		}
		if sinceFlush >= flushEvery {
			sinceFlush = 0
			c.flush(false)
		}
		r, err := c.next()
		if err != nil {
			return err
		}
		sinceFlush++
		if err := c.reserveDecoded(r); err != nil {
			r.release()
			return err
		}
		if err := c.dispatch(r); err != nil {
			return err
		}
	}
}

// admit waits until the connection may read another request: it isn't muted and has room for one in flight.
func (c *Conn) admit() error {
	o := &c.srv.opts
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		full := c.inFlight >= o.MaxInFlight || c.inFlight > 0 && c.inFlightBytes >= o.MaxInFlightBytes
		var mute time.Duration
		if !c.mutedUntil.IsZero() {
			if mute = c.mutedUntil.Sub(o.Clock.Now()); mute <= 0 {
				c.mutedUntil = time.Time{}
			}
		}
		switch {
		case c.err != nil:
			return c.err
		case c.srv.draining.Load():
			return errDraining
		case !full && mute <= 0:
			return nil
		case c.writeReadyLocked():
			continue
		}
		c.active = false
		if mute > 0 {
			t := time.AfterFunc(mute, c.wake)
			c.waitLocked()
			t.Stop()
		} else {
			c.waitLocked()
		}
		c.active = true
	}
}

func (c *Conn) waitLocked() {
	if c.cond == nil {
		c.cond = sync.NewCond(&c.mu)
	}
	c.cond.Wait()
}

// wake makes the connection's goroutine look again at what it waits for in admit, drain or teardown.
func (c *Conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeLocked()
}

func (c *Conn) wakeLocked() {
	if c.cond != nil {
		c.cond.Broadcast()
	}
}

// dispatch puts a request into the queue and calls the handler.
func (c *Conn) dispatch(r *Request) error {
	c.mu.Lock()
	if c.tail == nil {
		c.head = r
	} else {
		c.tail.next = r
	}
	c.tail = r
	c.inFlight++
	c.inFlightBytes += r.bytes
	c.active = true
	c.mu.Unlock()

	if !c.listener.Table.Serves(r.Key, r.Version) {
		if r.Key != api.ApiVersions {
			err := fmt.Errorf("%s v%d, correlation id %d: %w on listener %s", r.Key, r.Version, r.CorrelationID, api.ErrUnsupported, c.listener.Name)
			r.ended.Store(true)
			c.finish(r, nil)
			return err
		}
		// KIP-511: the answer is one that every client can read and names the versions that it may ask with.
		r.Version = 0
		r.Reply(unsupportedApiVersions{})
		return nil
	}
	c.listener.Handler.Handle(r)
	if c.srv.opts.Observer != nil {
		now := c.srv.opts.Clock.Now()
		c.mu.Lock()
		r.handled = now
		c.mu.Unlock()
	}
	return nil
}

// unsupportedApiVersions is the ApiVersions v0 response to a version that is not known.
type unsupportedApiVersions struct{}

func (unsupportedApiVersions) AppendTo(dst []byte) []byte {
	own := api.AdvertisedRange(api.ApiVersions)
	dst = binary.BigEndian.AppendUint16(dst, uint16(api.ErrUnsupportedVersion.Code))
	dst = binary.BigEndian.AppendUint32(dst, 1)
	dst = binary.BigEndian.AppendUint16(dst, uint16(own.Key))
	dst = binary.BigEndian.AppendUint16(dst, uint16(own.Min))
	return binary.BigEndian.AppendUint16(dst, uint16(own.Max))
}

// drain waits for the requests in flight and writes their replies.
func (c *Conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		c.writeReadyLocked()
		if c.inFlight == 0 || c.err != nil {
			return
		}
		c.active = false
		c.waitLocked()
		c.active = true
	}
}

// fail ends the connection: whoever blocks on the socket returns. Only the first reason is kept.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

func (c *Conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	if err == nil {
		err = net.ErrClosed
	}
	c.err = err
	c.nc.Close()
	if c.failed != nil {
		close(c.failed)
		c.failed = nil
	}
	c.wakeLocked()
}

// teardown gives back what the connection holds. Requests that are still being handled give theirs back when they end.
func (c *Conn) teardown() {
	c.in.close()
	c.tellClosed(c.reason())
	c.mu.Lock()
	for c.writing {
		c.active = false
		c.waitLocked()
	}
	c.closed = true
	var done []*Request
	for r := c.head; r != nil; r = r.next {
		if r.done {
			done = append(done, r)
		}
	}
	c.head, c.tail = nil, nil
	err := c.err
	c.mu.Unlock()
	for _, r := range done {
		c.discard(r)
	}
	c.srv.remove(c, err)
}

// reason is why the connection ends, nil while it doesn't.
func (c *Conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// discard gives back what a request holds that will not be answered any more.
func (c *Conn) discard(r *Request) {
	if p, ok := r.resp.(PartsResponse); ok {
		_, parts := p.AppendParts(nil, nil)
		releaseParts(parts)
	}
	r.release()
}

func releaseParts(parts []Part) {
	for _, p := range parts {
		if p.Release != nil {
			p.Release.Release()
		}
	}
}

// finish takes note that a request has ended and makes sure that somebody writes what can leave now.
func (c *Conn) finish(r *Request, resp any) {
	c.mu.Lock()
	if c.srv.opts.Observer != nil {
		r.replied = c.srv.opts.Clock.Now()
	}
	r.resp, r.done, r.parked = resp, true, nil
	if c.closed {
		c.mu.Unlock()
		c.discard(r)
		return
	}
	if c.active || c.writing || c.head == nil || !c.head.done {
		c.mu.Unlock()
		return
	}
	c.writing = true
	if c.raw != nil {
		// Whoever brings the reply sends it, which costs less than to wake somebody who does.
		c.writeQuickLocked()
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.writeBeside(nil)
}

// writeBeside writes replies on a goroutine of its own, after rest: whoever brings a reply must not wait for a socket. Teardown
// waits until writing is false, so the goroutine does not outlive the connection.
func (c *Conn) writeBeside(rest func()) {
	go func() {
		if rest != nil {
			rest()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.writeLoopLocked()
	}()
}

// flush writes the replies that can leave, unless somebody else does already. With idle set the caller is about to block, and
// from then on others write.
func (c *Conn) flush(idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeReadyLocked()
	if idle {
		c.active = false
	}
}

// writeReadyLocked writes the replies that can leave and says whether there were any to write.
func (c *Conn) writeReadyLocked() bool {
	if c.writing || c.head == nil || !c.head.done {
		return false
	}
	c.writing = true
	c.writeLoopLocked()
	return true
}

// writeLoopLocked writes replies until none can leave. The lock is not held while it encodes and writes.
func (c *Conn) writeLoopLocked() {
	for c.err == nil && c.head != nil && c.head.done {
		b := c.takeLocked()
		c.mu.Unlock()
		err := c.send(b.first)
		c.mu.Lock()
		c.leftLocked(b, err)
	}
	c.writing = false
	c.wakeLocked()
}

// writeQuickLocked is writeLoopLocked for those who must not wait, nor write for a client that goes on asking: while the connection's
// goroutine is at work, what else can leave is for that to write. The lock is not held while it encodes and writes.
func (c *Conn) writeQuickLocked() {
	for first := true; (first || !c.active) && c.err == nil && c.head != nil && c.head.done; first = false {
		b := c.takeLocked()
		c.mu.Unlock()
		rest, err := c.sendQuick(b.first)
		if rest != nil {
			c.writeBeside(func() {
				err := rest()
				c.mu.Lock()
				defer c.mu.Unlock()
				c.leftLocked(b, err)
			})
			c.mu.Lock()
			return
		}
		c.mu.Lock()
		c.leftLocked(b, err)
	}
	c.writing = false
	c.wakeLocked()
}

// replies are requests at the head of the queue whose replies leave together.
type replies struct {
	first    *Request
	n, bytes int
}

func (c *Conn) takeLocked() replies {
	b := replies{first: c.head}
	last := b.first
	for r := b.first; r != nil && r.done && b.n < maxBatch; r = r.next {
		last = r
		b.bytes += r.bytes
		b.n++
	}
	c.head, last.next = last.next, nil
	if c.head == nil {
		c.tail = nil
	}
	return b
}

// leftLocked takes note that replies have left, or could not.
func (c *Conn) leftLocked(b replies, err error) {
	c.inFlight -= b.n
	c.inFlightBytes -= b.bytes
	if err != nil {
		c.failLocked(fmt.Errorf("write: %w", err))
	}
	c.wakeLocked()
}

func (c *Conn) touch(now time.Time) { c.lastActive.Store(now.UnixNano()) }

// isTimeout says whether a read ended because of a deadline.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// isHangup says whether a connection ended as connections do, which is not worth a line in the log.
func isHangup(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, errDraining) || errors.Is(err, errIdle)
}
