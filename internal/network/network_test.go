package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gregor/internal/api"
	"gregor/internal/sim"
)

// world is a server on a network in memory, in a synctest bubble.
type world struct {
	t   *testing.T
	net *sim.Net
	srv *Server
	log *lockedBuffer
	obs *counts
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := strings.TrimSpace(l.b.String())
	if s == "" {
		return nil
	}
	return strings.Split(s, "\n")
}

// counts is an Observer that counts.
type counts struct {
	mu                              sync.Mutex
	opened, closed, refused, failed int
	served                          []Sample
}

func (c *counts) ConnOpened(*Conn)          { c.mu.Lock(); c.opened++; c.mu.Unlock() }
func (c *counts) ConnClosed(*Conn, error)   { c.mu.Lock(); c.closed++; c.mu.Unlock() }
func (c *counts) ConnRefused(string, error) { c.mu.Lock(); c.refused++; c.mu.Unlock() }
func (c *counts) Failed(*Conn, error)       { c.mu.Lock(); c.failed++; c.mu.Unlock() }
func (c *counts) Served(s Sample)           { c.mu.Lock(); c.served = append(c.served, s); c.mu.Unlock() }

// inWorld runs f in a bubble. When f returns the server is stopped, and it has to have given everything back.
func inWorld(t *testing.T, o Options, h HandlerFunc, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: &sim.Net{}, log: &lockedBuffer{}, obs: &counts{}}
		o.Logger = slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		o.Observer = w.obs
		if o.Listeners == nil {
			o.Listeners = []Listener{{Name: "PLAINTEXT", Addr: "127.0.0.1:9092", SecurityProtocol: "PLAINTEXT"}}
		}
		for i := range o.Listeners {
			l := &o.Listeners[i]
			l.Listen, l.Handler = w.net.Listen, h
			if l.Table == nil {
				l.Table = api.FullTable(api.BrokerListener)
			}
		}
		var err error
		if w.srv, err = New(o); err != nil {
			t.Fatal(err)
		}
		if err := w.srv.Listen(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.srv.Start()
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := w.srv.Shutdown(ctx); err != nil && !t.Failed() {
				t.Errorf("shutdown: %v", err)
			}
			synctest.Wait()
			if t.Failed() {
				return
			}
			w.settled()
			if w.obs.opened != w.obs.closed {
				t.Errorf("%d connections opened, %d closed", w.obs.opened, w.obs.closed)
			}
		}()
		f(w)
	})
}

// settled checks that no request's memory is held.
func (w *world) settled() {
	w.t.Helper()
	if n := w.srv.MemoryUsed(); n != 0 {
		w.t.Errorf("%d bytes of the budget are held", n)
	}
	if n := w.srv.pools.live.Load(); n != 0 {
		w.t.Errorf("%d buffers are out", n)
	}
}

// client is a client's end of a connection.
type client struct {
	t *testing.T
	net.Conn
}

func (w *world) dial() *client { return w.dialFrom("127.0.0.1") }

func (w *world) dialFrom(ip string) *client {
	w.t.Helper()
	c, err := w.net.DialFrom(w.t.Context(), netip.MustParseAddr(ip), "tcp", "127.0.0.1:9092")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return &client{w.t, c}
}

// request is a frame of a Metadata v0 request with a body.
func request(correlationID int32, body string) []byte {
	return frame(api.Header{Key: api.Metadata, CorrelationID: correlationID, ClientID: "test"}, []byte(body))
}

func (c *client) send(frames ...[]byte) {
	c.t.Helper()
	if _, err := c.Write(bytes.Join(frames, nil)); err != nil {
		c.t.Fatal(err)
	}
}

// expect reads a response and compares its correlation id and body.
func (c *client) expect(correlationID int32, body string) {
	c.t.Helper()
	b, err := readFrame(c, make([]byte, 1<<20))
	if err != nil {
		c.t.Fatalf("response to %d: %v", correlationID, err)
	}
	if got := int32(binary.BigEndian.Uint32(b)); got != correlationID || string(b[4:]) != body {
		c.t.Fatalf("response to %d: %q, want %d: %q", got, b[4:], correlationID, body)
	}
}

// expectEnd waits for the server to close the connection without another byte.
func (c *client) expectEnd() {
	c.t.Helper()
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		c.t.Errorf("before the end: %q %v", b, err)
	}
}

// silent says that nothing has arrived and the connection is open.
func (c *client) silent() {
	c.t.Helper()
	synctest.Wait()
	_ = c.SetReadDeadline(time.Now())
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	if n, err := c.Read(make([]byte, 1)); n > 0 || !isTimeout(err) {
		c.t.Errorf("not silent: %d %v", n, err)
	}
}

type text string

func (s text) AppendTo(dst []byte) []byte { return append(dst, s...) }

// echo replies with the body.
func echo(r *Request) { r.Reply(text("re:" + string(r.Body))) }

// parking keeps requests until the test ends them.
type parking struct {
	mu   sync.Mutex
	cars map[string]*Request
}

func (p *parking) Handle(r *Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cars == nil {
		p.cars = make(map[string]*Request)
	}
	p.cars[string(r.Body)] = r
}

func (p *parking) take(t *testing.T, body string) *Request {
	t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.cars[body]
	if r == nil {
		t.Fatalf("no request %q has been handled", body)
	}
	delete(p.cars, body)
	return r
}

func (p *parking) count() int {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.cars)
}

func TestRequestsAreAnswered(t *testing.T) {
	inWorld(t, Options{}, echo, func(w *world) {
		c := w.dial()
		c.send(request(1, "a"))
		c.expect(1, "re:a")
		// Several at once, the last one in two pieces.
		last := request(4, "d")
		c.send(request(2, "b"), request(3, "c"), last[:5])
		c.expect(2, "re:b")
		c.expect(3, "re:c")
		c.send(last[5:])
		c.expect(4, "re:d")
		// One byte at a time.
		for _, b := range request(5, "e") {
			c.send([]byte{b})
			synctest.Wait()
		}
		c.expect(5, "re:e")
		c.Close()
		synctest.Wait()
		if w.srv.Conns() != 0 || len(w.log.lines()) != 0 {
			t.Errorf("%d connections, log %q", w.srv.Conns(), w.log.lines())
		}
	})
}

// A buffer that requests in flight lie in cannot be moved up in, so what follows goes to a new one: it has to hold what is there
// of the next request, however small the last one was.
func TestLargeRequestBehindSmallOnesInFlight(t *testing.T) {
	var p parking
	inWorld(t, Options{}, p.Handle, func(w *world) {
		c := w.dial()
		first, middle, last := strings.Repeat("a", 60<<10), strings.Repeat("b", 30<<10), strings.Repeat("c", 50<<10)
		c.send(request(1, first))
		p.take(t, first).Reply(text("1"))
		c.expect(1, "1")
		c.send(request(2, middle), request(3, "small"), request(4, last))
		for i, body := range []string{middle, "small", last} {
			p.take(t, body).Reply(text("re"))
			c.expect(int32(i+2), "re")
		}
	})
}

func TestLargeRequestsAreAnswered(t *testing.T) {
	inWorld(t, Options{}, func(r *Request) { r.Reply(text(r.Body[len(r.Body)-8:])) }, func(w *world) {
		c := w.dial()
		id := int32(0)
		for _, n := range []int{4000, 4096, 5000, 60 << 10, 64 << 10, 70 << 10, 256 << 10, 300 << 10, 1 << 20, 3 << 20, 5 << 20, 100, 5 << 20} {
			id++
			body := make([]byte, n)
			copy(body[n-8:], "the end.")
			c.send(request(id, string(body)), request(id+1000, "follower"))
			c.expect(id, "the end.")
			c.expect(id+1000, "follower")
		}
		w.settled()
	})
}

func TestRepliesLeaveInRequestOrder(t *testing.T) {
	var p parking
	inWorld(t, Options{}, p.Handle, func(w *world) {
		c := w.dial()
		c.send(request(1, "a"), request(2, "b"), request(3, "c"))
		// The connection reads on while requests wait.
		if n := p.count(); n != 3 {
			t.Fatalf("%d requests handled", n)
		}
		p.take(t, "b").Reply(text("B"))
		p.take(t, "c").NoReply()
		c.silent()
		p.take(t, "a").Reply(text("A"))
		c.expect(1, "A")
		c.expect(2, "B")
		c.send(request(4, "d"), request(5, "e"))
		p.take(t, "e").Reply(text("E"))
		c.silent()
		p.take(t, "d").Reply(text("D"))
		c.expect(4, "D")
		c.expect(5, "E")
		w.settled()
	})
}

func TestBodyStaysValidWhileParked(t *testing.T) {
	var p parking
	inWorld(t, Options{}, p.Handle, func(w *world) {
		c := w.dial()
		var frames [][]byte
		for i := range 20 {
			frames = append(frames, request(int32(i), strings.Repeat(string(rune('a'+i)), 700)))
		}
		c.send(frames...)
		for i := range 20 {
			body := strings.Repeat(string(rune('a'+i)), 700)
			r := p.take(t, body) // finds it only if nothing has overwritten it
			r.Reply(text(r.Body[:3]))
			c.expect(int32(i), body[:3])
		}
	})
}

func TestDropBodyGivesMemoryBack(t *testing.T) {
	var parked *Request
	inWorld(t, Options{}, func(r *Request) { r.DropBody(); parked = r }, func(w *world) {
		c := w.dial()
		c.send(request(1, strings.Repeat("x", 100<<10)))
		synctest.Wait()
		w.settled()
		parked.Reply(text("done"))
		c.expect(1, "done")
	})
}

func TestSecondReplyPanics(t *testing.T) {
	inWorld(t, Options{}, func(r *Request) {
		r.Reply(text("once"))
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		r.NoReply()
	}, func(w *world) {
		c := w.dial()
		c.send(request(1, ""))
		c.expect(1, "once")
	})
}

func TestHandlerClosesConnection(t *testing.T) {
	inWorld(t, Options{}, func(r *Request) { r.Close(errors.New("cannot make sense of it")) }, func(w *world) {
		c := w.dial()
		c.send(request(1, "a"), request(2, "b"))
		c.expectEnd()
		synctest.Wait()
		if l := w.log.lines(); len(l) != 1 || !strings.Contains(l[0], "Metadata v0, correlation id 1: cannot make sense of it") {
			t.Errorf("log %q", l)
		}
		w.settled()
	})
}

func TestRepliesAfterTheConnectionHasGone(t *testing.T) {
	var p parking
	inWorld(t, Options{}, p.Handle, func(w *world) {
		c := w.dial()
		c.send(request(1, "a"), request(2, "b"), request(3, "c"))
		a, b := p.take(t, "a"), p.take(t, "b")
		b.Reply(text("B"))
		var reason error
		a.Conn.OnClose(func(err error) { reason = err })
		c.Conn.(*sim.Conn).Reset()
		synctest.Wait()
		if w.srv.Conns() != 0 || !errors.Is(reason, syscall.ECONNRESET) {
			t.Errorf("%d connections, closed for %v", w.srv.Conns(), reason)
		}
		file := &countedFile{b: []byte("records")}
		a.ReplyParts(partsOf(file, 3))
		p.take(t, "c").Close(errors.New("late"))
		if file.released != 3 {
			t.Errorf("%d of 3 ranges released", file.released)
		}
		w.settled()
		late := false
		a.Conn.OnClose(func(error) { late = true })
		if !late {
			t.Error("OnClose after the end was not called")
		}
	})
}

// expiring answers its request when it expires.
type expiring struct {
	r *Request
	n atomic.Int32
}

func (e *expiring) Expire() {
	e.n.Add(1)
	e.r.Reply(text("so far"))
}

func TestHangupExpiresWhatIsParked(t *testing.T) {
	var p parking
	inWorld(t, Options{}, p.Handle, func(w *world) {
		for name, hangup := range map[string]func(c *sim.Conn){
			"closed": func(c *sim.Conn) { c.Close() }, "reset": func(c *sim.Conn) { c.Reset() },
			"nothing more to send": func(c *sim.Conn) { _ = c.CloseWrite() },
		} {
			c := w.dial()
			c.send(request(1, "a"), request(2, "b"), request(3, "c"))
			var parked [3]*expiring
			for i, body := range []string{"a", "b", "c"} {
				parked[i] = &expiring{r: p.take(t, body)}
				if i < 2 {
					parked[i].r.Park(parked[i])
				}
			}
			parked[0].r.Reply(text("A"))
			hangup(c.Conn.(*sim.Conn))
			synctest.Wait()
			parked[2].r.Park(parked[2]) // after the end
			for i, want := range []int32{0, 1, 1} {
				if got := parked[i].n.Load(); got != want {
					t.Errorf("%s: request %d was expired %d times, want %d", name, i, got, want)
				}
			}
			if name == "nothing more to send" {
				c.expect(1, "A")
				c.expect(2, "so far")
				c.expect(3, "so far")
				c.expectEnd()
			}
			w.settled()
		}
	})
}

func TestClientThatHasSentAllIsAnswered(t *testing.T) {
	var p parking
	inWorld(t, Options{}, p.Handle, func(w *world) {
		c := w.dial()
		c.send(request(1, "a"), request(2, "b"))
		_ = c.Conn.(*sim.Conn).CloseWrite()
		a := p.take(t, "a")
		var reason error
		a.Conn.OnClose(func(err error) { reason = err })
		synctest.Wait()
		if !errors.Is(reason, io.EOF) {
			t.Errorf("OnClose was told %v", reason)
		}
		a.Reply(text("A"))
		c.expect(1, "A")
		p.take(t, "b").Reply(text("B"))
		c.expect(2, "B")
		c.expectEnd()
		// One that has gone altogether is noticed when something is written to it.
		d := w.dial()
		d.send(request(3, "c"))
		r := p.take(t, "c")
		d.Close()
		synctest.Wait()
		if w.srv.Conns() != 1 {
			t.Errorf("%d connections", w.srv.Conns())
		}
		r.Reply(text("C"))
		synctest.Wait()
		if w.srv.Conns() != 0 || len(w.log.lines()) != 0 {
			t.Errorf("%d connections, log %q", w.srv.Conns(), w.log.lines())
		}
	})
}

// countedFile is a file in memory that counts how often a range of it was released.
type countedFile struct {
	b        []byte
	released int
}

func (f *countedFile) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(f.b).ReadAt(p, off)
}
func (f *countedFile) Fd() (uintptr, bool) { return 0, false }
func (f *countedFile) Release()            { f.released++ }

// parts is a response of ranges of a file with a byte before, between and after them.
type parts struct {
	f *countedFile
	n int
}

func partsOf(f *countedFile, n int) parts { return parts{f, n} }

func (p parts) AppendParts(dst []byte, to []Part) ([]byte, []Part) {
	for range p.n {
		dst = append(dst, '<')
		to = append(to, Part{At: len(dst), File: p.f, Len: len(p.f.b), Release: p.f})
	}
	return append(dst, '>'), to
}

func TestFileRangesThroughABuffer(t *testing.T) {
	for _, n := range []int{0, 7, sendfileFrom, sendfileFrom + 1, copyPiece, copyPiece + 1, 3 * copyPiece} {
		file := &countedFile{b: bytes.Repeat([]byte("x"), n)}
		inWorld(t, Options{}, func(r *Request) { r.ReplyParts(partsOf(file, 2)) }, func(w *world) {
			c := w.dial()
			c.send(request(1, ""), request(2, ""))
			x := strings.Repeat("x", n)
			buf := make([]byte, 4<<20)
			for id := range 2 {
				b, err := readFrame(c, buf)
				if err != nil || string(b[4:]) != "<"+x+"<"+x+">" {
					t.Fatalf("response %d with ranges of %d bytes: %d bytes, %v", id, n, len(b), err)
				}
			}
			synctest.Wait()
			if file.released != 4 {
				t.Errorf("%d of 4 ranges released", file.released)
			}
		})
	}
}

func TestFileThatEndsEarlyClosesTheConnection(t *testing.T) {
	file := &countedFile{b: make([]byte, 10)}
	inWorld(t, Options{}, func(r *Request) {
		r.ReplyParts(cutShort{file})
	}, func(w *world) {
		c := w.dial()
		c.send(request(1, ""))
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if l := w.log.lines(); len(l) != 1 || !strings.Contains(l[0], "unexpected EOF") {
			t.Errorf("log %q", l)
		}
		if file.released != 1 {
			t.Errorf("released %d times", file.released)
		}
	})
}

type cutShort struct{ f *countedFile }

func (c cutShort) AppendParts(dst []byte, to []Part) ([]byte, []Part) {
	return dst, append(to, Part{At: len(dst), File: c.f, Len: 11, Release: c.f})
}

func TestInFlightBound(t *testing.T) {
	var p parking
	inWorld(t, Options{MaxInFlight: 3}, p.Handle, func(w *world) {
		c := w.dial()
		c.send(request(1, "a"), request(2, "b"), request(3, "c"), request(4, "d"), request(5, "e"))
		if n := p.count(); n != 3 {
			t.Fatalf("%d requests in flight", n)
		}
		p.take(t, "a").Reply(text("A"))
		c.expect(1, "A")
		if n := p.count(); n != 3 {
			t.Fatalf("%d requests in flight", n)
		}
		for i, x := range []string{"b", "c", "d", "e"} {
			p.take(t, x).Reply(text(x))
			c.expect(int32(i+2), x)
		}
	})
}

func TestInFlightBytesBound(t *testing.T) {
	var p parking
	inWorld(t, Options{MaxInFlightBytes: 1000}, p.Handle, func(w *world) {
		c := w.dial()
		a, b := strings.Repeat("a", 2000), strings.Repeat("b", 2000)
		c.send(request(1, a), request(2, b))
		if n := p.count(); n != 1 {
			t.Fatalf("%d requests in flight", n)
		}
		p.take(t, a).Reply(text("A"))
		p.take(t, b).Reply(text("B"))
		c.expect(1, "A")
		c.expect(2, "B")
	})
}

func TestMute(t *testing.T) {
	inWorld(t, Options{}, func(r *Request) {
		if string(r.Body) == "mute" {
			r.Conn.Mute(r.Received.Add(3 * time.Second))
			r.Conn.Mute(r.Received.Add(time.Second)) // the later one counts
		}
		echo(r)
	}, func(w *world) {
		c := w.dial()
		start := time.Now()
		c.send(request(1, "mute"), request(2, "b"))
		c.expect(1, "re:mute")
		if d := time.Since(start); d != 0 {
			t.Errorf("the throttled request itself was answered after %v", d)
		}
		c.expect(2, "re:b")
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("the next request was answered after %v", d)
		}
		// Stopping does not wait for a mute to end.
		c.send(request(3, "mute"))
		c.expect(3, "re:mute")
		start = time.Now()
		if err := w.srv.Shutdown(w.t.Context()); err != nil || time.Since(start) != 0 {
			t.Errorf("shutdown took %v: %v", time.Since(start), err)
		}
	})
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	var p parking
	inWorld(t, Options{MaxIdle: 100 * time.Second}, p.Handle, func(w *world) {
		idle, busy, waiting := w.dial(), w.dial(), w.dial()
		waiting.send(request(1, "parked"))
		for i := range 4 {
			time.Sleep(30 * time.Second)
			busy.send(request(int32(i), "x"))
			p.take(t, "x").Reply(text("y"))
			busy.expect(int32(i), "y")
		}
		idle.expectEnd()
		busy.silent()
		waiting.silent()
		p.take(t, "parked").Reply(text("at last"))
		waiting.expect(1, "at last")
		if l := w.log.lines(); len(l) != 0 {
			t.Errorf("log %q", l)
		}
	})
}

func TestClientThatDoesNotReadIsClosedWhenIdle(t *testing.T) {
	inWorld(t, Options{MaxIdle: 100 * time.Second}, func(r *Request) { r.Reply(text(strings.Repeat("x", 1<<20))) }, func(w *world) {
		c := w.dial()
		c.send(request(1, ""))
		time.Sleep(150 * time.Second)
		synctest.Wait()
		if w.srv.Conns() != 0 {
			t.Error("the connection is still open")
		}
	})
}

func TestConnectionsPerIP(t *testing.T) {
	inWorld(t, Options{MaxConnectionsPerIP: 2, MaxConnectionsPerIPOverrides: map[string]int{"10.0.0.2": 0, "10.0.0.3": 3}}, echo, func(w *world) {
		f := func(ip string, want int) {
			t.Helper()
			var open []*client
			for range 4 {
				c := w.dialFrom(ip)
				synctest.Wait()
				if _, err := c.Write(request(1, "a")); err == nil {
					if _, err := readFrame(c, make([]byte, 100)); err == nil {
						open = append(open, c)
					}
				}
			}
			if len(open) != want {
				t.Errorf("%s has %d connections, want %d", ip, len(open), want)
			}
			for _, c := range open {
				c.Close()
			}
			synctest.Wait()
		}
		f("10.0.0.1", 2)
		f("10.0.0.1", 2) // closing makes room again
		f("10.0.0.2", 0)
		f("10.0.0.3", 3)
		if w.obs.refused != 2+2+4+1 {
			t.Errorf("%d connections refused", w.obs.refused)
		}
	})
}

func TestConnectionsOfListedIPsOnly(t *testing.T) {
	inWorld(t, Options{MaxConnectionsPerIP: -1, MaxConnectionsPerIPOverrides: map[string]int{"10.0.0.2": 1}}, echo, func(w *world) {
		w.dialFrom("10.0.0.1").expectEnd()
		c := w.dialFrom("10.0.0.2")
		c.send(request(1, "a"))
		c.expect(1, "re:a")
	})
}

func TestMaxConnectionsHoldsNewOnesUp(t *testing.T) {
	inWorld(t, Options{MaxConnections: 2}, echo, func(w *world) {
		a, b, c := w.dial(), w.dial(), w.dial()
		for i, x := range []*client{a, b, c} {
			x.send(request(int32(i), "x"))
		}
		a.expect(0, "re:x")
		b.expect(1, "re:x")
		c.silent()
		a.Close()
		c.expect(2, "re:x")
	})
}

func TestConnectionRate(t *testing.T) {
	inWorld(t, Options{MaxConnectionRate: 10}, echo, func(w *world) {
		start := time.Now()
		var cs []*client
		for i := range 30 {
			c := w.dial()
			c.send(request(int32(i), "x"))
			cs = append(cs, c)
		}
		for i, c := range cs {
			c.expect(int32(i), "re:x")
		}
		if d := time.Since(start); d < 1900*time.Millisecond || d > 2100*time.Millisecond {
			t.Errorf("30 connections took %v at 10 a second after a second's worth", d)
		}
	})
}

func TestShutdownDrains(t *testing.T) {
	var p parking
	inWorld(t, Options{}, p.Handle, func(w *world) {
		c, idle, halfway := w.dial(), w.dial(), w.dial()
		c.send(request(1, "a"))
		halfway.send(request(2, strings.Repeat("x", 100<<10))[:50<<10])
		a := p.take(t, "a")
		done := make(chan error)
		go func() { done <- w.srv.Shutdown(w.t.Context()) }()
		idle.expectEnd()
		halfway.expectEnd()
		c.silent()
		// What is sent from now on is not read.
		c.send(request(3, "late"))
		if _, err := w.net.Dial(w.t.Context(), "tcp", "127.0.0.1:9092"); err == nil {
			t.Error("the listener is still open")
		}
		a.Reply(text("A"))
		c.expect(1, "A")
		c.expectEnd()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if p.count() != 0 {
			t.Error("a request was read after the stop began")
		}
	})
}

func TestShutdownGivesUpWhenItsTimeIsOver(t *testing.T) {
	var p parking
	inWorld(t, Options{}, p.Handle, func(w *world) {
		c := w.dial()
		c.send(request(1, "a"))
		a := p.take(t, "a")
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		if err := w.srv.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		c.expectEnd()
		a.Reply(text("too late"))
	})
}

func TestConnIdentity(t *testing.T) {
	var got *Conn
	inWorld(t, Options{}, func(r *Request) { got = r.Conn; echo(r) }, func(w *world) {
		c := w.dialFrom("10.1.2.3")
		c.send(request(1, ""))
		c.expect(1, "re:")
		if got.Listener() != "PLAINTEXT" || got.SecurityProtocol() != "PLAINTEXT" || got.Principal() != "User:ANONYMOUS" ||
			got.ClientAddr().Addr().String() != "10.1.2.3" || got.LocalAddr().String() != "127.0.0.1:9092" || got.Attachment() != nil {
			t.Error(got.Listener(), got.SecurityProtocol(), got.Principal(), got.ClientAddr(), got.LocalAddr(), got.Attachment())
		}
		got.SetPrincipal("User:alice")
		got.SetAttachment(42)
		if got.Principal() != "User:alice" || got.Attachment() != 42 {
			t.Error(got.Principal(), got.Attachment())
		}
		got.SetMaxRequestBytes(100)
		c.send(request(2, strings.Repeat("x", 200)))
		c.expectEnd()
	})
}

func TestSamples(t *testing.T) {
	inWorld(t, Options{}, func(r *Request) {
		if string(r.Body) == "park" {
			time.Sleep(time.Second)
			go func() {
				time.Sleep(2 * time.Second)
				r.Reply(text("ok"))
			}()
			return
		}
		r.Reply(text("ok"))
	}, func(w *world) {
		c := w.dial()
		c.send(request(1, "park"), request(2, "x"))
		c.expect(1, "ok")
		c.expect(2, "ok")
		synctest.Wait()
		want := []Sample{
			{Listener: "PLAINTEXT", Key: api.Metadata, RequestBytes: 18, ResponseBytes: 10, Handle: time.Second, Park: 2 * time.Second},
			{Listener: "PLAINTEXT", Key: api.Metadata, RequestBytes: 15, ResponseBytes: 10, Send: 2 * time.Second},
		}
		for i, s := range w.obs.served {
			if s != want[i] {
				t.Errorf("sample %d: %+v\nwant %+v", i, s, want[i])
			}
		}
		if len(w.obs.served) != 2 {
			t.Errorf("%d samples", len(w.obs.served))
		}
	})
}
