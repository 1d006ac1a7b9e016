package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// maxResponse is the default bound of a response's size.
	maxResponse = 512 << 20
	// trustedResponse is how much of a response is allocated on the word of its size field; what is larger grows as it comes.
	trustedResponse = 64 << 20
)

var errTimeout = errors.New("no answer in time")

// conn is one connection to a broker. Requests are pipelined: any goroutine may send while others wait, and answers come in the
// order of the requests. One goroutine reads.
type conn struct {
	nc       net.Conn
	in       *bufio.Reader
	addr     string
	id       int32 // of the node; set before others see the conn
	hooks    hooks
	largest  int // response
	clientID string
	node     *nodeState
	retireAt time.Time // set before others see the conn; zero for never
	format   *kmsg.RequestFormatter
	versions map[int16]versionRange // set before others see the conn
	features []Feature

	writeMu sync.Mutex  // serialises writes and their order in pending
	buf     []byte      // guarded by writeMu
	parts   net.Buffers // guarded by writeMu

	mu      sync.Mutex
	pending []*call // guarded by mu, in the order sent
	next    int32   // guarded by mu: correlation id
	err     error   // guarded by mu: why it is dead
	retired bool    // guarded by mu: close it when nothing is pending
}

type versionRange struct{ min, max int16 }

// call waits for one answer.
type call struct {
	id       int32
	header   bool // the answer's header has tags
	deadline time.Time
	reply    chan reply // buffered
	trace    *RequestTrace
}

type reply struct {
	body []byte
	err  error
}

// newConn wraps a connection; whoever makes it runs read.
func newConn(nc net.Conn, addr string, node *nodeState, o *Options) *conn {
	return &conn{
		nc: nc, in: bufio.NewReaderSize(nc, 16<<10), addr: addr, node: node, largest: o.MaxResponseBytes, clientID: o.ClientID,
		hooks: hooks{o.Hooks}, format: kmsg.NewRequestFormatter(kmsg.FormatterClientID(o.ClientID)),
	}
}

// send writes a request and returns where its answer will come. noReply is for produce requests without acks.
func (c *conn) send(req kmsg.Request, timeout time.Duration, noReply bool) (*call, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	k := &call{
		deadline: time.Now().Add(timeout), reply: make(chan reply, 1),
		header: req.IsFlexible() && req.Key() != int16(kmsg.ApiVersions),
	}
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		return nil, err
	}
	k.id = c.next
	c.next++
	c.mu.Unlock()
	size := 0
	p, inParts := req.(*kmsg.ProduceRequest)
	if inParts = inParts && p.IsFlexible(); inParts {
		c.buf, c.parts = produceParts(c.buf, c.parts[:0], p, c.clientID, k.id)
		for _, b := range c.parts {
			size += len(b)
		}
	} else {
		c.buf = c.format.AppendRequest(c.buf[:0], req, k.id)
		size = len(c.buf)
	}
	if c.hooks.Hooks != nil {
		k.trace = &RequestTrace{
			Node: c.id, Addr: c.addr, API: kmsg.NameForKey(req.Key()), Version: req.GetVersion(), Sent: time.Now(), RequestBytes: size,
		}
		c.hooks.RequestSent(k.trace)
	}
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		c.hooks.answered(k.trace, 0, err)
		return nil, err
	}
	if noReply {
		k.reply <- reply{}
	} else {
		c.pending = append(c.pending, k)
		if len(c.pending) == 1 {
			c.nc.SetReadDeadline(k.deadline)
		}
	}
	c.mu.Unlock()
	c.nc.SetWriteDeadline(k.deadline)
	var err error
	if inParts {
		parts := c.parts
		_, err = parts.WriteTo(c.nc)
		clear(c.parts)
	} else {
		_, err = c.nc.Write(c.buf)
	}
	if noReply {
		c.hooks.answered(k.trace, 0, err)
	}
	if err != nil {
		c.fail(&errConn{"write to", c.addr, err})
		return nil, c.failure()
	}
	if cap(c.buf) > 4<<20 {
		c.buf = nil
	}
	return k, nil
}

// wait returns the answer's body, past its header.
func (c *conn) wait(ctx context.Context, k *call) ([]byte, error) {
	select {
	case r := <-k.reply:
		return r.body, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// roundTrip sends and decodes the answer into resp, at the version of req.
func (c *conn) roundTrip(ctx context.Context, req kmsg.Request, resp kmsg.Response, timeout time.Duration) error {
	k, err := c.send(req, timeout, false)
	if err != nil {
		return err
	}
	body, err := c.wait(ctx, k)
	if err != nil {
		return err
	}
	return c.decode(req, resp, body)
}

// decode reads an answer at the version of its request, and takes note of a throttle time in it.
func (c *conn) decode(req kmsg.Request, resp kmsg.Response, body []byte) error {
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		err = &errConn{"read from", c.addr, fmt.Errorf("%s v%d response: %w", kmsg.NameForKey(req.Key()), req.GetVersion(), err)}
		c.fail(err)
		return err
	}
	if t, ok := resp.(kmsg.ThrottleResponse); ok {
		// Before KIP-219 the broker has held the answer back itself.
		if ms, after := t.Throttle(); ms > 0 && after {
			c.node.throttle(time.Now().Add(time.Duration(ms) * time.Millisecond))
		}
	}
	return nil
}

func (c *conn) read() {
	var head [8]byte
	for {
		if _, err := io.ReadFull(c.in, head[:]); err != nil {
			c.fail(c.readError(err))
			return
		}
		size := int32(binary.BigEndian.Uint32(head[:4]))
		if size < 4 || int(size) > c.largest {
			c.fail(&errConn{"read from", c.addr, fmt.Errorf("response of %d bytes", size)})
			return
		}
		id := int32(binary.BigEndian.Uint32(head[4:]))
		body, err := readBody(c.in, int(size-4))
		if err != nil {
			c.fail(c.readError(err))
			return
		}
		c.mu.Lock()
		if len(c.pending) == 0 || c.pending[0].id != id {
			c.mu.Unlock()
			c.fail(&errConn{"read from", c.addr, fmt.Errorf("response to request %d that isn't the next", id)})
			return
		}
		k := c.pending[0]
		c.pending[0] = nil
		c.pending = c.pending[1:]
		if len(c.pending) > 0 {
			c.nc.SetReadDeadline(c.pending[0].deadline)
		} else {
			c.nc.SetReadDeadline(time.Time{})
		}
		last := c.retired && len(c.pending) == 0
		c.mu.Unlock()
		c.hooks.answered(k.trace, len(body)+len(head), nil)
		if k.header {
			var ok bool
			if body, ok = skipTags(body); !ok {
				err := &errConn{"read from", c.addr, errors.New("response header cut short")}
				k.reply <- reply{err: err}
				c.fail(err)
				return
			}
		}
		k.reply <- reply{body: body}
		if last {
			c.fail(errOver(c.addr))
			return
		}
	}
}

// readBody reads n bytes. It allocates no more than trustedResponse ahead of what has really come.
func readBody(r io.Reader, n int) ([]byte, error) {
	body := make([]byte, min(n, trustedResponse))
	have := 0
	for {
		m, err := io.ReadFull(r, body[have:])
		if have += m; err != nil || have == n {
			return body, err
		}
		grown := make([]byte, min(n, 2*have))
		copy(grown, body)
		body = grown
	}
}

func (c *conn) readError(err error) error {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		err = errTimeout
	} else if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("closed by the broker")
	}
	return &errConn{"read from", c.addr, err}
}

// skipTags drops the tagged fields of a response header.
func skipTags(b []byte) ([]byte, bool) {
	n, i := binary.Uvarint(b)
	for i > 0 && n > 0 {
		_, j := binary.Uvarint(b[i:])
		if j <= 0 {
			return nil, false
		}
		size, k := binary.Uvarint(b[i+j:])
		if k <= 0 || size > uint64(len(b)-i-j-k) {
			return nil, false
		}
		i += j + k + int(size)
		n--
	}
	if i <= 0 {
		return nil, false
	}
	return b[i:], true
}

// fail closes the connection and tells everyone who waits.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	pending := c.pending
	c.pending = nil
	c.mu.Unlock()
	c.nc.Close()
	for _, k := range pending {
		c.hooks.answered(k.trace, 0, err)
		k.reply <- reply{err: err}
	}
}

// usable says whether requests can be sent.
func (c *conn) usable() bool {
	return c.failure() == nil && (c.retireAt.IsZero() || time.Now().Before(c.retireAt))
}

func (c *conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// negotiate asks for the broker's versions. Brokers that don't know the version of ApiVersions asked for say so in the form of
// version 0, and name the versions that they know.
func (c *conn) negotiate(ctx context.Context, timeout time.Duration) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "gregor-client", "1"
	// Version 5 may carry cluster and node id, which this client leaves out.
	for version := int16(4); ; {
		req.SetVersion(version)
		k, err := c.send(req, timeout, false)
		if err != nil {
			return err
		}
		body, err := c.wait(ctx, k)
		if err != nil {
			return err
		}
		if len(body) < 2 {
			return &errConn{"negotiate with", c.addr, io.ErrUnexpectedEOF}
		}
		code := int16(binary.BigEndian.Uint16(body))
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.SetVersion(version)
		if code == UnsupportedVersion.Code {
			resp.SetVersion(0)
		}
		if err := resp.ReadFrom(body); err != nil {
			return &errConn{"negotiate with", c.addr, err}
		}
		if code == UnsupportedVersion.Code && version > 0 {
			version = 0
			for _, k := range resp.ApiKeys {
				if k.ApiKey == int16(kmsg.ApiVersions) {
					version = min(k.MaxVersion, 3)
				}
			}
			continue
		}
		if err := errorOf(code, nil); err != nil {
			return fmt.Errorf("negotiate with %s: %w", c.addr, err)
		}
		c.versions = make(map[int16]versionRange, len(resp.ApiKeys))
		for _, k := range resp.ApiKeys {
			c.versions[k.ApiKey] = versionRange{k.MinVersion, k.MaxVersion}
		}
		c.features = featuresOf(resp)
		return nil
	}
}

// choose sets the highest version of req that both sides and the bound (0 is none) allow.
func (c *conn) choose(req kmsg.Request, highest int16) error {
	v := req.MaxVersion()
	if highest > 0 {
		v = min(v, highest)
	}
	r, ok := c.versions[req.Key()]
	if v = min(v, r.max); !ok || v < r.min {
		e := errorFor(UnsupportedVersion.Code)
		e.Message = fmt.Sprintf("%s serves %s %d to %d, at most %d is usable", c.addr, kmsg.NameForKey(req.Key()), r.min, r.max, v)
		if !ok {
			e.Message = fmt.Sprintf("%s does not serve %s", c.addr, kmsg.NameForKey(req.Key()))
		}
		return e
	}
	req.SetVersion(v)
	return nil
}
