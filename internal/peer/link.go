package peer

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/rawsock"
)

// call is a request that has not been answered.
type call struct {
	req    kmsg.Request
	floor  int16
	done   func(kmsg.Response, error)
	due    time.Time
	took   time.Duration // the time that it was given
	id     int32         // correlation id, once it is sent
	on     net.Conn      // the connection that it was sent on, nil before
	closed bool          // done has been called or is about to be
}

// link is the connection to one address, and what waits for it.
type link struct {
	p    *Peers
	addr string
	work chan struct{}   // holds one token when there may be something to do
	ctx  context.Context // ends with the link
	stop context.CancelFunc

	mu       sync.Mutex // guards the rest
	queue    []*call    // not yet sent
	inflight map[int32]*call
	wire     *wire // nil while not connected
	nextID   int32
	shut     bool
	// timer looks after the calls that have had their time, next is when; nil while there has been none.
	timer *time.Timer
	next  time.Time
}

// wire is one connection, until it breaks.
type wire struct {
	conn     net.Conn
	raw      syscall.RawConn    // of conn, nil unless it is TCP
	versions map[int16][2]int16 // what the other end serves

	writing bool // somebody writes; guarded by link.mu
	partly  bool // what is left of it is for the link's goroutine to write; guarded by link.mu

	// Whoever writes uses these: out is what was encoded, rest what of it is still to be written.
	out, rest []byte
	err       error
	tryFn     func(fd uintptr) bool
}

func newWire(conn net.Conn, versions map[int16][2]int16) *wire {
	w := &wire{conn: conn, raw: rawsock.Of(conn), versions: versions}
	w.tryFn = w.try
	return w
}

// try writes what there is room for.
func (w *wire) try(fd uintptr) bool {
	n, err := rawsock.Send(fd, w.rest, false)
	if err == syscall.EAGAIN {
		err = nil
	}
	w.rest, w.err = w.rest[n:], err
	return true
}

func newLink(p *Peers, addr string) *link {
	l := &link{p: p, addr: addr, work: make(chan struct{}, 1), inflight: make(map[int32]*call)}
	l.ctx, l.stop = context.WithCancel(p.ctx)
	return l
}

func (l *link) submit(c *call, timeout time.Duration) {
	l.mu.Lock()
	if l.shut {
		l.mu.Unlock()
		c.done(nil, ErrClosed)
		return
	}
	l.queue = append(l.queue, c)
	l.expectLocked(c, timeout)
	w := l.wire
	if w == nil || w.raw == nil || w.writing {
		l.mu.Unlock()
		l.poke()
		return
	}
	// The caller sends it, which costs less than to wake somebody who does.
	w.writing = true
	refused := l.encodeLocked(w)
	l.mu.Unlock()
	var err error
	if len(w.rest) > 0 {
		if err = w.raw.Write(w.tryFn); err == nil {
			err = w.err
		}
	}
	l.mu.Lock()
	w.partly = len(w.rest) > 0 && err == nil
	w.writing = w.partly
	more := w.partly || len(l.queue) > 0
	l.mu.Unlock()
	if more {
		l.poke()
	}
	refuse(refused)
	if err != nil {
		l.writeFailed(w.conn, err)
	}
}

func (l *link) poke() {
	select {
	case l.work <- struct{}{}:
	default:
	}
}

// takeLocked claims the right to answer a call.
func (c *call) takeLocked() bool {
	if c.closed {
		return false
	}
	c.closed = true
	return true
}

// expectLocked makes sure that a call ends in time. One timer serves all calls: it is set for the first that is due, and hardly any
// call is still there when it goes off.
func (l *link) expectLocked(c *call, timeout time.Duration) {
	now := l.p.o.Clock.Now()
	c.due, c.took = now.Add(timeout), timeout
	switch {
	case l.timer == nil:
		l.timer = time.AfterFunc(timeout, l.expire)
	case l.next.IsZero() || c.due.Before(l.next):
		l.timer.Reset(timeout)
	default:
		return
	}
	l.next = c.due
}

// expire ends the calls that have had their time. If one was sent, the connection is given up: its answer, and those behind it,
// would be late.
func (l *link) expire() {
	l.mu.Lock()
	now := l.p.o.Clock.Now()
	l.next = time.Time{}
	var over []*call
	look := func(c *call) bool {
		if !c.due.After(now) && c.takeLocked() {
			over = append(over, c)
			return true
		}
		if !c.closed && (l.next.IsZero() || c.due.Before(l.next)) {
			l.next = c.due
		}
		return false
	}
	l.queue = slices.DeleteFunc(l.queue, look)
	for id, c := range l.inflight {
		if look(c) {
			delete(l.inflight, id)
		}
	}
	if !l.next.IsZero() && !l.shut {
		l.timer.Reset(l.next.Sub(now))
	}
	l.mu.Unlock()
	slices.SortFunc(over, func(a, b *call) int { return cmp.Compare(a.id, b.id) })
	for _, c := range over {
		err := fmt.Errorf("%s to %s: %w after %v", api.Key(c.req.Key()), l.addr, ErrTimeout, c.took)
		if c.on != nil {
			l.drop(c.on, err)
		}
		c.done(nil, err)
	}
}

// drop gives a connection up and fails all that was sent on it.
func (l *link) drop(conn net.Conn, err error) {
	conn.Close()
	l.mu.Lock()
	var failed []*call
	for id, c := range l.inflight {
		if c.on == conn {
			delete(l.inflight, id)
			if c.takeLocked() {
				failed = append(failed, c)
			}
		}
	}
	if l.wire != nil && l.wire.conn == conn {
		l.wire = nil
	}
	l.mu.Unlock()
	slices.SortFunc(failed, func(a, b *call) int { return int(a.id) - int(b.id) })
	for _, c := range failed {
		c.done(nil, err)
	}
}

// failQueue fails what hasn't been sent.
func (l *link) failQueue(err error) {
	l.mu.Lock()
	var failed []*call
	for _, c := range l.queue {
		if c.takeLocked() {
			failed = append(failed, c)
		}
	}
	l.queue = nil
	l.mu.Unlock()
	for _, c := range failed {
		c.done(nil, err)
	}
}

// close ends the link. Its goroutines end soon after.
func (l *link) close() {
	l.mu.Lock()
	l.shut = true
	w := l.wire
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.stop()
	if w != nil {
		l.drop(w.conn, ErrClosed)
	}
	l.failQueue(ErrClosed)
}

// run connects when there is something to send, and sends what those who want it sent could not.
func (l *link) run() {
	failures := 0
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-l.work:
		}
		l.mu.Lock()
		w, waiting := l.wire, len(l.queue)
		l.mu.Unlock()
		if w == nil {
			if waiting == 0 {
				continue
			}
			conn, versions, err := l.connect()
			if err != nil {
				failures++
				l.p.o.Logger.Debug("can't connect", "addr", l.addr, "attempts", failures, "err", err)
				l.failQueue(err)
				if !l.pause(l.p.backoff(failures)) {
					return
				}
				l.poke()
				continue
			}
			failures = 0
			w = newWire(conn, versions)
			l.mu.Lock()
			if l.shut {
				l.mu.Unlock()
				conn.Close()
				return
			}
			l.wire = w
			l.mu.Unlock()
			l.p.wg.Go(func() { l.read(conn) })
		}
		l.write(w)
	}
}

func (l *link) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// connect makes a connection and learns what the other end serves.
func (l *link) connect() (net.Conn, map[int16][2]int16, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.p.o.ConnectTimeout)
	defer cancel()
	conn, err := l.p.o.Dial(ctx, "tcp", l.addr)
	if err != nil {
		switch {
		case Refused(err):
			err = fmt.Errorf("%w: %w", ErrGone, err)
		case ctx.Err() != nil:
			err = fmt.Errorf("connect to %s: %w: %w", l.addr, ErrTimeout, err)
		}
		return nil, nil, err
	}
	rawsock.Unpace(conn)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	versions, err := l.negotiate(conn)
	if !stop() || err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ErrTimeout, context.Cause(ctx))
		}
		return nil, nil, fmt.Errorf("learn what %s serves: %w", l.addr, err)
	}
	return conn, versions, nil
}

// apiVersionsVersion is the version that is asked for first. An older node says in version 0 that it doesn't know it, and what
// it knows.
const apiVersionsVersion = 4

func (l *link) negotiate(conn net.Conn) (map[int16][2]int16, error) {
	in := newFrames(conn, l.p.o.MaxResponseBytes)
	for version := int16(apiVersionsVersion); ; {
		q := kmsg.NewPtrApiVersionsRequest()
		q.Version = version
		q.ClientSoftwareName, q.ClientSoftwareVersion = "gregor", "1"
		if _, err := conn.Write(l.frame(nil, q, -1)); err != nil {
			return nil, err
		}
		body, id, err := in.next(false)
		if err != nil {
			return nil, err
		}
		if id != -1 {
			return nil, fmt.Errorf("answer has correlation id %d, want -1", id)
		}
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.Version = version
		if len(body) >= 2 && int16(binary.BigEndian.Uint16(body)) == api.ErrUnsupportedVersion.Code {
			resp.Version = 0
		}
		if err := resp.ReadFrom(body); err != nil {
			return nil, err
		}
		if resp.ErrorCode == api.ErrUnsupportedVersion.Code && version > 0 {
			version = 0
			for _, k := range resp.ApiKeys {
				if api.Key(k.ApiKey) == api.ApiVersions && k.MaxVersion >= 0 {
					version = min(k.MaxVersion, apiVersionsVersion-1)
				}
			}
			continue
		}
		if err := api.FromCode(resp.ErrorCode); err != nil {
			return nil, err
		}
		versions := make(map[int16][2]int16, len(resp.ApiKeys))
		for _, k := range resp.ApiKeys {
			versions[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
		}
		return versions, nil
	}
}

// frame appends a request with its header and length.
func (l *link) frame(dst []byte, q kmsg.Request, id int32) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = api.AppendHeader(dst, api.Header{Key: api.Key(q.Key()), Version: q.GetVersion(), CorrelationID: id, ClientID: l.p.o.ClientID})
	dst = api.AppendRequest(dst, q)
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// fit lowers the request to a version that the other end has.
func (c *call) fit(versions map[int16][2]int16) error {
	served, ok := versions[c.req.Key()]
	v := min(c.req.GetVersion(), served[1])
	if !ok || v < served[0] || v < c.floor {
		return fmt.Errorf("%s v%d: the other end has versions %d to %d: %w", api.Key(c.req.Key()), c.req.GetVersion(), served[0], served[1], error(api.ErrUnsupportedVersion))
	}
	c.req.SetVersion(v)
	return nil
}

type refusal struct {
	c   *call
	err error
}

func refuse(refused []refusal) {
	for _, r := range refused {
		r.c.done(nil, r.err)
	}
}

// encodeLocked encodes what is queued; it is under way from then on. What the other end doesn't serve is refused.
func (l *link) encodeLocked(w *wire) (refused []refusal) {
	if w.out = w.out[:0]; cap(w.out) > keepMemory {
		w.out = nil
	}
	for i, c := range l.queue {
		l.queue[i] = nil
		if err := c.fit(w.versions); err != nil {
			if c.takeLocked() {
				refused = append(refused, refusal{c, err})
			}
			continue
		}
		l.nextID = (l.nextID + 1) & (1<<31 - 1)
		c.id, c.on = l.nextID, w.conn
		l.inflight[c.id] = c
		w.out = l.frame(w.out, c.req, c.id)
	}
	l.queue = l.queue[:0]
	w.rest = w.out
	return refused
}

// write sends what is queued, and before it what somebody else could send only a part of.
func (l *link) write(w *wire) {
	var refused []refusal
	l.mu.Lock()
	switch {
	case l.wire != w:
		// It broke meanwhile: the queue needs a new one.
		l.mu.Unlock()
		l.poke()
		return
	case w.writing && !w.partly:
		// Whoever writes looks at the queue afterwards.
		l.mu.Unlock()
		return
	case !w.writing:
		refused = l.encodeLocked(w)
		w.writing = true
	}
	w.partly = false
	l.mu.Unlock()
	refuse(refused)
	var err error
	if len(w.rest) > 0 {
		_, err = w.conn.Write(w.rest)
		w.rest = nil
	}
	l.mu.Lock()
	w.writing = false
	more := len(l.queue) > 0
	l.mu.Unlock()
	if more {
		l.poke()
	}
	if err != nil {
		l.writeFailed(w.conn, err)
	}
}

func (l *link) writeFailed(conn net.Conn, err error) {
	if isReset(err) {
		err = fmt.Errorf("%w: %w", ErrGone, err)
	}
	l.drop(conn, fmt.Errorf("send to %s: %w", l.addr, err))
}

// read takes answers until the connection ends.
func (l *link) read(conn net.Conn) {
	in := newFrames(conn, l.p.o.MaxResponseBytes)
	for {
		body, id, err := in.next(l.p.o.ReuseMemory)
		if err == nil {
			err = l.answer(conn, id, body)
		}
		if err != nil {
			if isEnd(err) {
				err = fmt.Errorf("%w: %w", ErrGone, err)
			}
			l.drop(conn, fmt.Errorf("read from %s: %w", l.addr, err))
			return
		}
	}
}

// answer gives a response to whoever waits for it.
func (l *link) answer(conn net.Conn, id int32, body []byte) error {
	l.mu.Lock()
	c := l.inflight[id]
	if c == nil || c.on != conn {
		l.mu.Unlock()
		return fmt.Errorf("answer to an unknown request, correlation id %d", id)
	}
	delete(l.inflight, id)
	mine := c.takeLocked()
	l.mu.Unlock()
	if !mine {
		return nil
	}
	resp, err := decode(c.req, body)
	if err != nil {
		err = fmt.Errorf("answer to %s v%d of %s: %w", api.Key(c.req.Key()), c.req.GetVersion(), l.addr, err)
		c.done(nil, err)
		return err
	}
	c.done(resp, nil)
	return nil
}

// decode reads the answer to a request from what follows the correlation id. Byte fields of the result point into body.
func decode(q kmsg.Request, body []byte) (kmsg.Response, error) {
	body, err := api.SkipResponseHeader(api.Key(q.Key()), q.GetVersion(), body)
	if err != nil {
		return nil, err
	}
	resp := q.ResponseKind()
	resp.SetVersion(q.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		return nil, err
	}
	return resp, nil
}
