package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gregor/internal/rawsock"
)

// Server serves listeners. Make it with New, start it with Start, stop it with Shutdown.
type Server struct {
	opts   Options
	budget *budget
	// decoding bounds what handlers make of requests, which may be much more than their bytes.
	decoding *budget
	pools    pools
	limits   limits

	listeners []*listener
	draining  atomic.Bool
	stopping  chan struct{} // closed when Shutdown begins
	lastID    atomic.Uint64

	acceptors sync.WaitGroup
	mu        sync.Mutex // guards conns, started, shut, and started of the listeners
	conns     map[*Conn]struct{}
	started   bool
	shut      bool
	empty     chan struct{} // closed when the last connection has gone after Shutdown began
}

// listener is a Listener that is open: localhost has two sockets.
type listener struct {
	Listener
	sockets []net.Listener
	started bool // guarded by the server's mu
}

// New returns a server that does not listen yet.
func New(o Options) (*Server, error) {
	o = o.withDefaults()
	s := &Server{
		opts:     o,
		budget:   newBudget(o.MemoryLimit),
		decoding: newBudget(o.MemoryLimit),
		stopping: make(chan struct{}),
		conns:    make(map[*Conn]struct{}),
		empty:    make(chan struct{}),
	}
	s.limits.init(o)
	seen := make(map[string]bool)
	for _, l := range o.Listeners {
		switch {
		case l.Handler == nil || l.Table == nil:
			return nil, fmt.Errorf("network: listener %s has no handler or no table", l.Name)
		case seen[l.Name]:
			return nil, fmt.Errorf("network: listener %s is given twice", l.Name)
		}
		seen[l.Name] = true
		if l.Listen == nil {
			lc := &net.ListenConfig{Control: s.control}
			l.Listen = lc.Listen
		}
		s.listeners = append(s.listeners, &listener{Listener: l})
	}
	return s, nil
}

// Listen opens all listeners, or none when one of them cannot be opened. Clients may connect from then on, but are served
// only after Start.
func (s *Server) Listen(ctx context.Context) error {
	for _, l := range s.listeners {
		var err error
		if l.sockets, err = listenAll(ctx, l.Listen, l.Addr); err != nil {
			s.closeListeners()
			return fmt.Errorf("listener %s on %s: %w", l.Name, l.Addr, err)
		}
		s.opts.Logger.Info("listening", "listener", l.Name, "addr", l.sockets[0].Addr().String(), "security_protocol", l.SecurityProtocol)
	}
	return nil
}

// listenAll opens addr. localhost means the loopback addresses of both families: a client may resolve the name to either.
// Where the machine has only one of them that one will do.
func listenAll(ctx context.Context, listen func(context.Context, string, string) (net.Listener, error), addr string) ([]net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if host != "localhost" {
		l, err := listen(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return []net.Listener{l}, nil
	}
	const attempts = 10 // with port 0 the port that one family gives may be taken in the other
	for i := 0; ; i++ {
		v4, err4 := listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
		p := port
		if err4 == nil {
			if _, bound, err := net.SplitHostPort(v4.Addr().String()); err == nil {
				p = bound
			}
		}
		v6, err6 := listen(ctx, "tcp", net.JoinHostPort("::1", p))
		switch {
		case err4 == nil && err6 == nil:
			return []net.Listener{v4, v6}, nil
		case err4 == nil && !errors.Is(err6, syscall.EADDRINUSE):
			return []net.Listener{v4}, nil
		case err6 == nil && !errors.Is(err4, syscall.EADDRINUSE):
			return []net.Listener{v6}, nil
		}
		if v4 != nil {
			v4.Close()
		}
		if v6 != nil {
			v6.Close()
		}
		if port != "0" || err4 != nil || i == attempts {
			return nil, errors.Join(err4, err6)
		}
	}
}

// control sets the receive buffer before the socket listens: the window that it allows is settled in the handshake.
func (s *Server) control(_, _ string, rc syscall.RawConn) error {
	if s.opts.ReceiveBufferBytes <= 0 {
		return nil
	}
	var err error
	cerr := rc.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, s.opts.ReceiveBufferBytes)
	})
	return errors.Join(cerr, err)
}

// Addr is the address of a listener, with the port that it got; nil when it isn't open.
func (s *Server) Addr(listener string) net.Addr {
	for _, l := range s.listeners {
		if l.Name == listener && len(l.sockets) > 0 {
			return l.sockets[0].Addr()
		}
	}
	return nil
}

// Start serves the listeners of these names, or all when none is given, until Shutdown. It may be called again for others. It
// returns at once. Listen must have succeeded.
func (s *Server) Start(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return
	}
	for _, l := range s.listeners {
		if l.started || len(names) > 0 && !slices.Contains(names, l.Name) {
			continue
		}
		l.started = true
		for _, sock := range l.sockets {
			s.acceptors.Go(func() { s.accept(l, sock) })
		}
	}
	if s.opts.MaxIdle > 0 && !s.started {
		s.acceptors.Go(s.reap)
	}
	s.started = true
}

// Shutdown stops accepting connections and reading requests, waits until the requests in flight have been answered, and
// closes the connections. When ctx ends first it closes them without waiting for replies and returns ctx's error. Either way
// no goroutine of the server is left when it returns.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first := !s.shut
	s.shut = true
	if first {
		s.draining.Store(true)
		close(s.stopping)
		if len(s.conns) == 0 {
			close(s.empty)
		}
	}
	conns := s.connsLocked()
	s.mu.Unlock()
	s.closeListeners()
	s.limits.wakeAll()
	s.acceptors.Wait()
	for _, c := range conns {
		// A read that blocks ends with a timeout; whoever waits otherwise looks at draining when woken.
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
		c.wake()
	}
	var err error
	select {
	case <-s.empty:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	conns = s.connsLocked()
	s.mu.Unlock()
	for _, c := range conns {
		c.fail(errDraining)
	}
	<-s.empty
	return err
}

func (s *Server) connsLocked() []*Conn {
	conns := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

func (s *Server) closeListeners() {
	for _, l := range s.listeners {
		for _, sock := range l.sockets {
			sock.Close()
		}
	}
}

// Conns is the number of open connections.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// MemoryUsed is the number of bytes of requests that are held.
func (s *Server) MemoryUsed() int64 { return s.budget.used.Load() }

// accept takes connections from a socket until it is closed.
func (s *Server) accept(l *listener, sock net.Listener) {
	var backoff time.Duration
	for {
		nc, err := sock.Accept()
		if err != nil {
			if s.draining.Load() || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, or the peer has gone already.
			backoff = min(max(2*backoff, 5*time.Millisecond), time.Second)
			s.opts.Logger.Warn("accept failed", "listener", l.Name, "err", err, "retry_in", backoff)
			if !s.pause(backoff) {
				return
			}
			continue
		}
		backoff = 0
		remote := addrOf(nc.RemoteAddr())
		if err := s.limits.admitIP(remote.Addr()); err != nil {
			nc.Close()
			s.opts.Logger.Info("connection refused", "listener", l.Name, "client", remote.String(), "err", err)
			if s.opts.Observer != nil {
				s.opts.Observer.ConnRefused(l.Name, err)
			}
			continue
		}
		if !s.limits.awaitSlot(l.Name, s.stopping) {
			s.limits.freeIP(remote.Addr())
			nc.Close()
			return
		}
		s.add(l, nc, remote)
		if d := s.limits.ratePause(s.opts.Clock.Now()); d > 0 && !s.pause(d) {
			return
		}
	}
}

// pause waits for d, or returns false when the server stops first.
func (s *Server) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.stopping:
		return false
	}
}

func addrOf(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	if a != nil {
		if ap, err := netip.ParseAddrPort(a.String()); err == nil {
			return ap
		}
	}
	return netip.AddrPort{}
}

// add starts to serve a connection.
func (s *Server) add(l *listener, nc net.Conn, remote netip.AddrPort) {
	c := &Conn{srv: s, listener: l, remote: remote, id: s.lastID.Add(1)}
	if t, ok := nc.(*net.TCPConn); ok {
		// The standard library has set TCP_NODELAY.
		_ = t.SetKeepAlive(true)
		if n := s.opts.SendBufferBytes; n > 0 {
			_ = t.SetWriteBuffer(n)
		}
	}
	if l.Wrap != nil {
		nc = l.Wrap(nc)
	}
	c.nc = nc
	if c.raw = rawsock.Of(nc); c.raw != nil {
		rawsock.Unpace(nc)
		c.in.readFn, c.out.bytesFn, c.out.onceFn, c.out.fileFn = c.tryRead, c.trySend, c.trySendOnce, c.trySendfile
	}
	c.in.size = minBuffer
	c.maxRequest.Store(int64(s.opts.MaxRequestBytes))
	c.touch(s.opts.Clock.Now())
	s.mu.Lock()
	if s.shut {
		s.mu.Unlock()
		nc.Close()
		s.limits.freeSlot(l.Name)
		s.limits.freeIP(remote.Addr())
		return
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if s.opts.Observer != nil {
		s.opts.Observer.ConnOpened(c)
	}
	go c.serve()
}

// remove takes note that a connection has closed and says so where somebody should look at the reason.
func (s *Server) remove(c *Conn, reason error) {
	if !isHangup(reason) {
		s.opts.Logger.LogAttrs(context.Background(), slog.LevelWarn, "connection closed",
			slog.String("listener", c.listener.Name), slog.String("client", c.remote.String()),
			slog.String("principal", c.Principal()), slog.Any("err", reason))
		if s.opts.Observer != nil {
			s.opts.Observer.Failed(c, reason)
		}
	}
	if s.opts.Observer != nil {
		s.opts.Observer.ConnClosed(c, reason)
	}
	s.limits.freeSlot(c.listener.Name)
	s.limits.freeIP(c.remote.Addr())
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.shut && len(s.conns) == 0 {
		close(s.empty)
	}
}

// reap closes connections that have been idle. A look at all of them now and then costs less than a timer that every request
// moves.
func (s *Server) reap() {
	for s.pause(max(s.opts.MaxIdle/10, time.Millisecond)) {
		limit := s.opts.Clock.Now().Add(-s.opts.MaxIdle).UnixNano()
		s.mu.Lock()
		var idle []*Conn
		for c := range s.conns {
			if c.lastActive.Load() < limit {
				idle = append(idle, c)
			}
		}
		s.mu.Unlock()
		for _, c := range idle {
			c.closeIfIdle()
		}
	}
}

// closeIfIdle closes a connection that waits for nothing: none of its requests is being handled, or the client does not take
// the replies.
func (c *Conn) closeIfIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inFlight == 0 || c.writing {
		c.failLocked(errIdle)
	}
}
