package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// pipeBytes is how much a direction of a connection buffers, like a socket's buffers.
const pipeBytes = 256 << 10

// Delay says how long bytes that are written now take to arrive. It is called once for each write, in order, with the
// generator of the link and direction. Bytes never overtake each other.
type Delay func(link string, rng *rand.Rand) time.Duration

// Net is a network in memory. Its zero value works and delivers at once.
type Net struct {
	// Seed and Delay are set before use. Without Delay bytes arrive at once.
	Seed  uint64
	Delay Delay

	mu        sync.Mutex // guards everything below
	listeners map[netip.AddrPort]*Listener
	nextPort  uint16
	cut       map[[2]netip.Addr]bool
	conns     map[*Conn]struct{}
}

// RandFor returns the generator of an owner. Its draws depend on the seed and the owner's name only.
func RandFor(seed uint64, owner string) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, owner)
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// Listen opens addr, which is ip:port, or :port for 127.0.0.1. Port 0 takes a free one. It has the signature of
// net.ListenConfig.Listen.
func (n *Net) Listen(_ context.Context, network, addr string) (net.Listener, error) {
	ap, err := resolve(addr)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if ap.Port() == 0 {
		ap = netip.AddrPortFrom(ap.Addr(), n.portLocked())
	}
	if n.listeners[ap] != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: net.TCPAddrFromAddrPort(ap), Err: syscall.EADDRINUSE}
	}
	l := &Listener{net: n, addr: ap}
	l.cond.L = &l.mu
	if n.listeners == nil {
		n.listeners = make(map[netip.AddrPort]*Listener)
	}
	n.listeners[ap] = l
	return l, nil
}

func (n *Net) portLocked() uint16 {
	if n.nextPort == 0 {
		n.nextPort = 32768
	}
	n.nextPort++
	return n.nextPort
}

func resolve(addr string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(ip, uint16(p)), nil
}

// Dial connects from 127.0.0.1. It has the signature of net.Dialer.DialContext.
func (n *Net) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return n.DialFrom(ctx, netip.AddrFrom4([4]byte{127, 0, 0, 1}), network, addr)
}

// DialFrom connects from an address. Where nobody listens the connection is refused; across a cut the attempt waits for ctx to
// end.
func (n *Net) DialFrom(ctx context.Context, from netip.Addr, network, addr string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	to, err := resolve(addr)
	if err != nil {
		return fail(err)
	}
	n.mu.Lock()
	l, cut := n.listeners[to], n.cut[pair(from, to.Addr())]
	local := netip.AddrPortFrom(from, n.portLocked())
	n.mu.Unlock()
	switch {
	case cut:
		<-ctx.Done()
		return fail(ctx.Err())
	case l == nil:
		return fail(fmt.Errorf("%s: %w", to, syscall.ECONNREFUSED))
	}
	client, server := n.pair(local, to)
	if !l.push(server) {
		return fail(fmt.Errorf("%s: %w", to, syscall.ECONNREFUSED))
	}
	return client, nil
}

func pair(a, b netip.Addr) [2]netip.Addr {
	if b.Less(a) {
		a, b = b, a
	}
	return [2]netip.Addr{a, b}
}

// Cut breaks the connections between two addresses, which both ends see as a reset, and lets none be made until Heal.
func (n *Net) Cut(a, b netip.Addr) {
	n.mu.Lock()
	if n.cut == nil {
		n.cut = make(map[[2]netip.Addr]bool)
	}
	n.cut[pair(a, b)] = true
	var broken []*Conn
	for c := range n.conns {
		if pair(c.local.Addr(), c.remote.Addr()) == pair(a, b) {
			broken = append(broken, c)
		}
	}
	n.mu.Unlock()
	for _, c := range broken {
		c.Reset()
	}
}

// Heal undoes Cut for connections to come.
func (n *Net) Heal(a, b netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.cut, pair(a, b))
}

func (n *Net) pair(client, server netip.AddrPort) (*Conn, *Conn) {
	up, down := n.newPipe(client, server), n.newPipe(server, client)
	c := &Conn{net: n, local: client, remote: server, in: down, out: up}
	s := &Conn{net: n, local: server, remote: client, in: up, out: down}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns == nil {
		n.conns = make(map[*Conn]struct{})
	}
	n.conns[c], n.conns[s] = struct{}{}, struct{}{}
	return c, s
}

// Listener accepts connections of a Net.
type Listener struct {
	net  *Net
	addr netip.AddrPort

	mu      sync.Mutex // guards backlog, closed
	cond    sync.Cond
	backlog []*Conn
	closed  bool
}

func (l *Listener) push(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.backlog = append(l.backlog, c)
	l.cond.Signal()
	return true
}

// Accept waits for a connection.
func (l *Listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.backlog) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
	c := l.backlog[0]
	l.backlog = l.backlog[1:]
	return c, nil
}

// Close stops listening and resets connections that have not been accepted.
func (l *Listener) Close() error {
	l.net.mu.Lock()
	if l.net.listeners[l.addr] == l {
		delete(l.net.listeners, l.addr)
	}
	l.net.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, c := range l.backlog {
		c.Reset()
	}
	l.backlog = nil
	l.cond.Broadcast()
	return nil
}

// Addr is where it listens.
func (l *Listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.addr) }

// Conn is an end of a connection.
type Conn struct {
	net           *Net
	local, remote netip.AddrPort
	in, out       *pipe
}

var _ net.Conn = (*Conn)(nil)

// Read reads what has arrived, or waits for it.
func (c *Conn) Read(p []byte) (int, error) { return c.in.read(p) }

// Write queues p, waiting while the buffers are full.
func (c *Conn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close closes both directions. The peer may read what was written before.
func (c *Conn) Close() error {
	c.net.forget(c)
	c.in.closeReader()
	c.out.closeWriter()
	return nil
}

// CloseWrite ends what the peer reads and leaves the other direction open.
func (c *Conn) CloseWrite() error {
	c.out.closeWriter()
	return nil
}

// Reset breaks the connection: both ends fail with a reset, and what was under way is lost.
func (c *Conn) Reset() {
	c.net.forget(c)
	c.in.reset()
	c.out.reset()
}

func (n *Net) forget(c *Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
}

// LocalAddr is this end's address.
func (c *Conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.local) }

// RemoteAddr is the other end's address.
func (c *Conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return firstError(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline makes reads fail from t on, those that wait already too. The zero time is never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.in.setDeadline(&c.in.readBy, t) }

// SetWriteDeadline makes writes fail from t on.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.out.setDeadline(&c.out.writeBy, t) }

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// piece is what one write sent.
type piece struct {
	b  []byte
	at time.Time // when it arrives; zero: at once
}

// deadline is a point in time at which waiters look again.
type deadline struct {
	t     time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.t.IsZero() && !time.Now().Before(d.t) }

// pipe is one direction of a connection.
type pipe struct {
	link  string
	rng   *rand.Rand
	delay Delay

	mu                         sync.Mutex // guards everything below
	cond                       sync.Cond
	pieces                     []piece
	size                       int // bytes in pieces
	last                       time.Time
	arrival                    *time.Timer
	readerClosed, writerClosed bool
	err                        error // of a reset
	readBy, writeBy            deadline
}

func (n *Net) newPipe(from, to netip.AddrPort) *pipe {
	p := &pipe{link: from.Addr().String() + "->" + to.Addr().String(), delay: n.Delay}
	p.cond.L = &p.mu
	if n.Delay != nil {
		p.rng = RandFor(n.Seed, "link/"+from.String()+"->"+to.String())
	}
	return p
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.readBy.passed():
			return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
		case p.readerClosed:
			return 0, &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}
		case p.err != nil:
			return 0, &net.OpError{Op: "read", Net: "tcp", Err: p.err}
		case len(b) == 0:
			return 0, nil
		}
		n := 0
		for n < len(b) && len(p.pieces) > 0 && !p.pieces[0].at.After(time.Now()) {
			m := copy(b[n:], p.pieces[0].b)
			n += m
			if p.pieces[0].b = p.pieces[0].b[m:]; len(p.pieces[0].b) == 0 {
				p.pieces = p.pieces[1:]
			}
		}
		if n > 0 {
			p.size -= n
			p.cond.Broadcast()
			return n, nil
		}
		if len(p.pieces) > 0 {
			if p.arrival != nil {
				p.arrival.Stop()
			}
			p.arrival = time.AfterFunc(time.Until(p.pieces[0].at), p.wake)
		} else if p.writerClosed {
			return 0, io.EOF
		}
		p.cond.Wait()
	}
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := 0
	for {
		switch {
		case p.writeBy.passed():
			return sent, &net.OpError{Op: "write", Net: "tcp", Err: os.ErrDeadlineExceeded}
		case p.writerClosed:
			return sent, &net.OpError{Op: "write", Net: "tcp", Err: net.ErrClosed}
		case p.err != nil:
			return sent, &net.OpError{Op: "write", Net: "tcp", Err: p.err}
		case p.readerClosed:
			return sent, &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
		case sent == len(b):
			return sent, nil
		}
		if n := min(len(b)-sent, pipeBytes-p.size); n > 0 {
			x := piece{b: append([]byte(nil), b[sent:sent+n]...)}
			if p.delay != nil {
				x.at = time.Now().Add(p.delay(p.link, p.rng))
				if x.at.Before(p.last) {
					x.at = p.last
				}
				p.last = x.at
			}
			p.pieces = append(p.pieces, x)
			p.size += n
			sent += n
			p.cond.Broadcast()
			continue
		}
		p.cond.Wait()
	}
}

func (p *pipe) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cond.Broadcast()
}

func (p *pipe) closeReader() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readerClosed = true
	p.stopTimersLocked()
	p.cond.Broadcast()
}

func (p *pipe) closeWriter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writerClosed = true
	p.cond.Broadcast()
}

func (p *pipe) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = syscall.ECONNRESET
	}
	p.pieces, p.size = nil, 0
	p.stopTimersLocked()
	p.cond.Broadcast()
}

func (p *pipe) stopTimersLocked() {
	for _, t := range []*time.Timer{p.arrival, p.readBy.timer, p.writeBy.timer} {
		if t != nil {
			t.Stop()
		}
	}
}

func (p *pipe) setDeadline(d *deadline, t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.t = t
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), p.wake)
	}
	p.cond.Broadcast()
	return nil
}
