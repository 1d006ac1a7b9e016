package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"
)

// conn is a connection over a blocking socket: a thread that waits for an answer sleeps in the kernel until it is there, and no
// poller stands between. It is not safe for concurrent use, but one goroutine may send while another receives.
type conn struct {
	fd          int
	correlation int32
	in          []byte // receive buffer; in[r:w] is unread
	r, w        int
	scratch     []byte
}

const receiveBuffer = 256 << 10

// dial connects to 127.0.0.1:port.
func dial(port int) (*conn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("connect to port %d: %w", port, err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set TCP_NODELAY: %w", err)
	}
	return &conn{fd: fd, in: make([]byte, receiveBuffer)}, nil
}

// patience bounds every wait for a byte from the server, so that a server that has died or hangs ends the run.
func (c *conn) patience(d time.Duration) error {
	tv := unix.NsecToTimeval(int64(d))
	return unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
}

func (c *conn) close() { unix.Close(c.fd) }

// write sends all of b.
func (c *conn) write(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(c.fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("send: %w", err)
		}
		b = b[n:]
	}
	return nil
}

// fill reads more; in[r:w] must be empty.
func (c *conn) fill() error {
	for {
		n, err := unix.Read(c.fd, c.in)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return errors.New("receive: no answer in time")
		case err != nil:
			return fmt.Errorf("receive: %w", err)
		case n == 0:
			return fmt.Errorf("receive: %w", io.ErrUnexpectedEOF)
		}
		c.r, c.w = 0, n
		return nil
	}
}

// take gives the next n bytes, valid until the next call.
func (c *conn) take(n int) ([]byte, error) {
	if c.w-c.r >= n {
		b := c.in[c.r : c.r+n]
		c.r += n
		return b, nil
	}
	if cap(c.scratch) < n {
		c.scratch = make([]byte, n)
	}
	b := c.scratch[:n]
	for have := 0; have < n; {
		if c.r == c.w {
			if err := c.fill(); err != nil {
				return nil, err
			}
		}
		k := copy(b[have:], c.in[c.r:c.w])
		c.r += k
		have += k
	}
	return b, nil
}

// skip drops the next n bytes.
func (c *conn) skip(n int) error {
	for n > 0 {
		if c.r == c.w {
			if err := c.fill(); err != nil {
				return err
			}
		}
		k := min(n, c.w-c.r)
		c.r += k
		n -= k
	}
	return nil
}

// frame receives a response whole, after its size.
func (c *conn) frame() ([]byte, error) {
	b, err := c.take(4)
	if err != nil {
		return nil, err
	}
	return c.take(int(binary.BigEndian.Uint32(b)))
}

var formatter = kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench"))

// encode is the frame of a request. setCorrelation patches it for each time that it is sent.
func encode(q kmsg.Request) []byte { return formatter.AppendRequest(nil, q, 0) }

func setCorrelation(frame []byte, id int32) { binary.BigEndian.PutUint32(frame[8:], uint32(id)) }

// call sends a request and waits for its response.
func (c *conn) call(q kmsg.Request) (kmsg.Response, error) {
	c.correlation++
	f := encode(q)
	setCorrelation(f, c.correlation)
	if err := c.write(f); err != nil {
		return nil, err
	}
	b, err := c.frame()
	if err != nil {
		return nil, err
	}
	if len(b) < 4 || int32(binary.BigEndian.Uint32(b)) != c.correlation {
		return nil, fmt.Errorf("response of %d bytes does not belong to request %d", len(b), c.correlation)
	}
	b = b[4:]
	if q.IsFlexible() && q.Key() != int16(kmsg.ApiVersions) {
		b = b[1:] // no tags in headers
	}
	resp := q.ResponseKind()
	resp.SetVersion(q.GetVersion())
	if err := resp.ReadFrom(b); err != nil {
		return nil, fmt.Errorf("decode response to key %d v%d: %w", q.Key(), q.GetVersion(), err)
	}
	return resp, nil
}

// reader decodes the few fields of a response that the lean paths look at. The first error stays.
type reader struct {
	c    *conn
	left int // bytes of the frame that are unread
	err  error
}

func (r *reader) bytes(n int) []byte {
	if r.err == nil && n > r.left {
		r.err = fmt.Errorf("response ends %d bytes early", n-r.left)
	}
	if r.err == nil {
		var b []byte
		if b, r.err = r.c.take(n); r.err == nil {
			r.left -= n
			return b
		}
	}
	return nil
}

func (r *reader) skip(n int) {
	if r.err == nil && n > r.left {
		r.err = fmt.Errorf("response ends %d bytes early", n-r.left)
	}
	if r.err == nil {
		r.err = r.c.skip(n)
		r.left -= n
	}
}

func (r *reader) int16() int16 {
	if b := r.bytes(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) int32() int32 {
	if b := r.bytes(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (r *reader) uvarint() int {
	v := 0
	for shift := 0; shift < 35; shift += 7 {
		b := r.bytes(1)
		if b == nil {
			return 0
		}
		v |= int(b[0]&0x7f) << shift
		if b[0] < 0x80 {
			return v
		}
	}
	r.err = errors.New("varint does not end")
	return 0
}

func (r *reader) tags() {
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		r.uvarint()
		r.skip(r.uvarint())
	}
}

// open begins a response with a flexible header.
func (c *conn) open() *reader {
	b, err := c.take(4)
	if err != nil {
		return &reader{err: err}
	}
	r := &reader{c: c, left: int(binary.BigEndian.Uint32(b))}
	r.skip(4)
	r.tags()
	return r
}
