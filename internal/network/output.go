package network

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"gregor/internal/api"
)

const (
	// maxBatch and batchBytes bound the replies that leave together.
	maxBatch   = 64
	batchBytes = 128 << 10
	// sendfilePiece is the most that one call of sendfile is asked for; the socket's buffer decides what it does.
	sendfilePiece = 8 << 20
	// copyPiece is the size of the buffer through which file ranges go where sendfile cannot.
	copyPiece = 256 << 10
)

// output is the state of a write on a raw connection.
type output struct {
	b       []byte // bytes still to be sent, with more to come
	fd      int    // file to send from
	pos     int64
	n       int // bytes of it still to be sent
	err     error
	bytesFn func(fd uintptr) bool
	fileFn  func(fd uintptr) bool
}

// send encodes the replies of a chain of requests and writes them, several at a time where they are small.
func (c *Conn) send(first *Request) error {
	out := outBuffers.Get().(*outBuffer)
	defer out.free()
	unsent := first
	var err error
	for r := first; r != nil; r = r.next {
		if err != nil {
			c.discard(r)
			continue
		}
		if r.resp != nil {
			err = c.encode(out, r)
		}
		r.release()
		if err == nil && (r.next == nil || len(out.b) >= batchBytes || len(out.parts) > 0) {
			err = c.write(out)
			out.reset()
			c.sent(unsent, r.next)
			unsent = r.next
		}
	}
	out.reset()
	return err
}

// encode appends the frame of a reply to out.
func (c *Conn) encode(out *outBuffer, r *Request) error {
	start, firstPart := len(out.b), len(out.parts)
	out.b = append(out.b, 0, 0, 0, 0)
	out.b = api.AppendResponseHeader(out.b, r.Key, r.Version, r.CorrelationID)
	switch resp := r.resp.(type) {
	case PartsResponse:
		out.b, out.parts = resp.AppendParts(out.b, out.parts)
	case kmsg.Response:
		resp.SetVersion(r.Version)
		out.b = api.AppendResponse(out.b, resp)
	default:
		out.b = resp.AppendTo(out.b)
	}
	r.resp = nil
	size := len(out.b) - start - sizePrefix
	for _, p := range out.parts[firstPart:] {
		size += p.Len
	}
	if size > math.MaxInt32 {
		return fmt.Errorf("response to %s v%d of %d bytes does not fit a frame", r.Key, r.Version, size)
	}
	binary.BigEndian.PutUint32(out.b[start:], uint32(size))
	r.replyBytes = sizePrefix + size
	return nil
}

// sent tells the observer of requests whose replies have been written.
func (c *Conn) sent(first, end *Request) {
	now := c.srv.opts.Clock.Now()
	c.touch(now)
	o := c.srv.opts.Observer
	if o == nil {
		return
	}
	for r := first; r != end; r = r.next {
		s := Sample{
			Listener: c.listener.Name, Key: r.Key, Version: r.Version,
			RequestBytes: r.bytes, ResponseBytes: r.replyBytes, Send: now.Sub(r.replied),
		}
		if r.handled.IsZero() || r.handled.After(r.replied) {
			s.Handle = r.replied.Sub(r.Received)
		} else {
			s.Handle, s.Park = r.handled.Sub(r.Received), r.replied.Sub(r.handled)
		}
		o.Served(s)
	}
}

// write sends what is encoded, the bytes and between them the file ranges.
func (c *Conn) write(out *outBuffer) error {
	from := 0
	for _, p := range out.parts {
		if err := c.writeBytes(out.b[from:p.At], true); err != nil {
			return err
		}
		from = p.At
		if err := c.writeFile(p); err != nil {
			return fmt.Errorf("%d bytes of a file from %d: %w", p.Len, p.Pos, err)
		}
		c.touch(c.srv.opts.Clock.Now())
	}
	return c.writeBytes(out.b[from:], false)
}

// writeBytes sends b. With more set the kernel may hold it back until what follows fills a segment.
func (c *Conn) writeBytes(b []byte, more bool) error {
	if len(b) == 0 {
		return nil
	}
	if c.raw == nil || !more {
		_, err := c.nc.Write(b)
		return err
	}
	c.out.b, c.out.err = b, nil
	err := c.raw.Write(c.out.bytesFn)
	c.out.b = nil
	if err == nil {
		err = c.out.err
	}
	return err
}

// trySend is the attempt to send bytes that the runtime repeats when the socket becomes writable.
func (c *Conn) trySend(fd uintptr) bool {
	o := &c.out
	for len(o.b) > 0 {
		n, err := unix.SendmsgN(int(fd), o.b, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
		switch err {
		case nil:
			o.b = o.b[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			o.err = err
			return true
		}
	}
	return true
}

// writeFile sends a file range. sendfile gets the position explicitly: the one of the descriptor is shared by all who read
// the file, which is why the standard library's io.ReaderFrom on the connection must not be used here.
func (c *Conn) writeFile(p Part) error {
	if p.Len == 0 {
		return nil
	}
	if fd, ok := p.File.Fd(); ok && c.raw != nil {
		o := &c.out
		o.fd, o.pos, o.n, o.err = int(fd), p.Pos, p.Len, nil
		if err := c.raw.Write(o.fileFn); err != nil {
			return err
		}
		return o.err
	}
	buf := c.srv.pools.get(min(p.Len, copyPiece))
	defer buf.release()
	for pos, left := p.Pos, p.Len; left > 0; {
		b := buf.b[:min(left, len(buf.b))]
		n, err := p.File.ReadAt(b, pos)
		if n < len(b) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if _, err := c.nc.Write(b); err != nil {
			return err
		}
		pos += int64(n)
		left -= n
	}
	return nil
}

// trySendfile is the attempt to send from the file that the runtime repeats when the socket becomes writable.
func (c *Conn) trySendfile(fd uintptr) bool {
	o := &c.out
	for o.n > 0 {
		n, err := unix.Sendfile(int(fd), o.fd, &o.pos, min(o.n, sendfilePiece))
		if n > 0 {
			o.n -= n
		}
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return false
		case err != nil:
			o.err = err
			return true
		case n == 0:
			// The file ends early. The length has been promised already, so nothing but closing is left.
			o.err = io.ErrUnexpectedEOF
			return true
		}
	}
	return true
}
