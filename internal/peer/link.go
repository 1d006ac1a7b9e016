package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
)

// call is a request that has not been answered.
type call struct {
	req    kmsg.Request
	floor  int16
	done   func(kmsg.Response, error)
	timer  *time.Timer
	id     int32    // correlation id, once it is sent
	on     net.Conn // the connection that it was sent on, nil before
	closed bool     // done has been called or is about to be
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
	conn     net.Conn // nil while not connected
	nextID   int32
	shut     bool
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
	c.timer = time.AfterFunc(timeout, func() { l.expire(c, timeout) })
	l.mu.Unlock()
	l.poke()
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
	c.timer.Stop()
	return true
}

// expire ends a call that has had its time. If it was sent, the connection is given up: its answer, and those behind it, would
// be late.
func (l *link) expire(c *call, timeout time.Duration) {
	err := fmt.Errorf("%s to %s: %w after %v", api.Key(c.req.Key()), l.addr, ErrTimeout, timeout)
	l.mu.Lock()
	if !c.takeLocked() {
		l.mu.Unlock()
		return
	}
	if i := slices.Index(l.queue, c); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	delete(l.inflight, c.id)
	conn := c.on
	l.mu.Unlock()
	if conn != nil {
		l.drop(conn, err)
	}
	c.done(nil, err)
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
	if l.conn == conn {
		l.conn = nil
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
	conn := l.conn
	l.mu.Unlock()
	l.stop()
	if conn != nil {
		l.drop(conn, ErrClosed)
	}
	l.failQueue(ErrClosed)
}

// run connects when there is something to send, and sends.
func (l *link) run() {
	var versions map[int16][2]int16
	failures := 0
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-l.work:
		}
		l.mu.Lock()
		conn, waiting := l.conn, len(l.queue)
		l.mu.Unlock()
		if waiting == 0 {
			continue
		}
		if conn == nil {
			var err error
			if conn, versions, err = l.connect(); err != nil {
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
			l.mu.Lock()
			if l.shut {
				l.mu.Unlock()
				conn.Close()
				return
			}
			l.conn = conn
			l.mu.Unlock()
			l.p.wg.Go(func() { l.read(conn) })
		}
		l.write(conn, versions)
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
	for version := int16(apiVersionsVersion); ; {
		q := kmsg.NewPtrApiVersionsRequest()
		q.Version = version
		q.ClientSoftwareName, q.ClientSoftwareVersion = "gregor", "1"
		if _, err := conn.Write(l.frame(nil, q, -1)); err != nil {
			return nil, err
		}
		body, id, err := readFrame(conn, l.p.o.MaxResponseBytes, nil)
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

// write sends what is queued.
func (l *link) write(conn net.Conn, versions map[int16][2]int16) {
	type refusal struct {
		c   *call
		err error
	}
	var refused []refusal
	var out []byte
	l.mu.Lock()
	if l.conn != conn {
		// It broke meanwhile: the queue needs a new one.
		l.mu.Unlock()
		l.poke()
		return
	}
	queue := l.queue
	l.queue = nil
	for _, c := range queue {
		if err := c.fit(versions); err != nil {
			if c.takeLocked() {
				refused = append(refused, refusal{c, err})
			}
			continue
		}
		l.nextID = (l.nextID + 1) & (1<<31 - 1)
		c.id, c.on = l.nextID, conn
		l.inflight[c.id] = c
		out = l.frame(out, c.req, c.id)
	}
	l.mu.Unlock()
	for _, r := range refused {
		r.c.done(nil, r.err)
	}
	if len(out) == 0 {
		return
	}
	if _, err := conn.Write(out); err != nil {
		if isReset(err) {
			err = fmt.Errorf("%w: %w", ErrGone, err)
		}
		l.drop(conn, fmt.Errorf("send to %s: %w", l.addr, err))
	}
}

// read takes answers until the connection ends.
func (l *link) read(conn net.Conn) {
	var memory []byte
	for {
		body, id, err := readFrame(conn, l.p.o.MaxResponseBytes, memory)
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
		if memory = nil; l.p.o.ReuseMemory && cap(body) <= max(keepMemory, 8*len(body)) {
			memory = body
		}
	}
}

// keepMemory is how much a connection keeps between responses, if those don't need more.
const keepMemory = 256 << 10

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

var errFrame = errors.New("impossible length of a response")

// readFrame reads the next response: its correlation id, and what follows that, into memory if it fits there.
func readFrame(r io.Reader, limit int, memory []byte) (body []byte, id int32, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, 0, err
	}
	n := int64(int32(binary.BigEndian.Uint32(head[:])))
	if n < 4 || n > int64(limit) {
		return nil, 0, fmt.Errorf("%w: %d, want 4 to %d", errFrame, n, limit)
	}
	n -= 4
	// What is announced need not come: memory is taken as bytes arrive.
	const step = 1 << 20
	if body = memory[:0]; int64(cap(body)) < min(n, step) {
		body = make([]byte, 0, min(n, step))
	}
	for int64(len(body)) < n {
		have := len(body)
		body = slices.Grow(body, int(min(n-int64(have), step)))
		body = body[:min(int64(cap(body)), n)]
		if _, err := io.ReadFull(r, body[have:]); err != nil {
			return nil, 0, err
		}
	}
	return body, int32(binary.BigEndian.Uint32(head[4:])), nil
}
