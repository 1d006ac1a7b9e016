package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/clock"
)

// ErrGone is wrapped by errors that say that the other end's process is gone, or was when it happened.
var ErrGone = errors.New("connection refused or reset")

// ErrTimeout is wrapped by errors that say that no answer came in time.
var ErrTimeout = errors.New("no answer in time")

// ErrClosed is the error of requests that were under way when Peers was closed, and of later ones.
var ErrClosed = errors.New("peer: closed")

// Options make Peers. Zero numbers and durations mean the defaults that are given with each.
type Options struct {
	// Dial connects, as net.Dialer.DialContext does, and secures the connection if that is wanted.
	Dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	Logger *slog.Logger
	Rand   *rand.Rand // jitter; owned by Peers from then on
	// ClientID is what requests say of their sender.
	ClientID string
	// ConnectTimeout bounds an attempt to connect, the exchange of versions included. 10 s.
	ConnectTimeout time.Duration
	// BackoffMin and BackoffMax bound the wait after a failed attempt. 20 ms, 1 s.
	BackoffMin, BackoffMax time.Duration
	// MaxResponseBytes bounds a response. 128 MiB.
	MaxResponseBytes int
	// Clock is what deadlines go by; timers are those of package time. clock.System.
	Clock clock.Clock
	// ReuseMemory is for senders with one request at a time under way to an address: the byte fields of a response are valid until
	// the next request to the same address, whose response takes their place.
	ReuseMemory bool
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.System
	}
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = 10 * time.Second
	}
	if o.BackoffMin == 0 {
		o.BackoffMin = 20 * time.Millisecond
	}
	if o.BackoffMax == 0 {
		o.BackoffMax = time.Second
	}
	if o.MaxResponseBytes == 0 {
		o.MaxResponseBytes = 128 << 20
	}
	return o
}

// Peers are the other nodes as far as this one talks to them. Make it with New, end it with Close.
type Peers struct {
	o    Options
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex // guards the rest
	links  map[string]*link
	closed bool
}

// New makes Peers that are connected to nobody.
func New(o Options) *Peers {
	p := &Peers{o: o.withDefaults(), links: make(map[string]*link)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// Send sends a request to addr, host:port, and calls done once with the response or an error. The request is made in the
// highest version that the caller can send; it belongs to Peers from then on and may go out in a lower one, but not below
// floor, for requests that mean something else there.
func (p *Peers) Send(addr string, req kmsg.Request, floor int16, timeout time.Duration, done func(kmsg.Response, error)) {
	c := &call{req: req, floor: floor, done: done}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		done(nil, ErrClosed)
		return
	}
	l := p.links[addr]
	if l == nil {
		l = newLink(p, addr)
		p.links[addr] = l
		p.wg.Go(l.run)
	}
	p.mu.Unlock()
	l.submit(c, timeout)
}

// Forget closes the connection to addr, if there is one. Requests under way on it fail.
func (p *Peers) Forget(addr string) {
	p.mu.Lock()
	l := p.links[addr]
	delete(p.links, addr)
	p.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// Close closes all connections, fails what is under way and waits for the goroutines.
func (p *Peers) Close() {
	p.mu.Lock()
	p.closed = true
	links := p.links
	p.links = nil
	p.mu.Unlock()
	p.stop()
	for _, l := range links {
		l.close()
	}
	p.wg.Wait()
}

// backoff is how long to wait after so many failed attempts in a row.
func (p *Peers) backoff(failures int) time.Duration {
	d := min(p.o.BackoffMin<<min(failures-1, 16), p.o.BackoffMax)
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(float64(d) * (0.8 + 0.4*p.o.Rand.Float64()))
}

// Refused says whether the error of an attempt to connect tells that nobody listens, or that the process at the other end has
// let go.
func Refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || isReset(err)
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED)
}

// isEnd says whether an error of a read tells that the other end has ended the connection, in whatever way.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isReset(err)
}
