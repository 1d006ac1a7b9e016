package network

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"gregor/internal/api"
	"gregor/internal/rawsock"
)

const (
	// maxBatch and batchBytes bound the replies that leave together.
	maxBatch   = 64
	batchBytes = 128 << 10
	// sendfilePiece is the most that one call of sendfile is asked for; the socket's buffer decides what it does.
	sendfilePiece = 8 << 20
	// copyPiece is the size of the buffer through which file ranges go where sendfile cannot.
	copyPiece = 256 << 10
	// sendfileFrom is the length from which a file range is sent by sendfile. Below it, reading the range and writing it with
	// what stands around it is cheaper than the calls it saves (measured: both cost some 6 us at 16 to 32 KiB).
	sendfileFrom = 16 << 10
	// gatherBytes is how much of that is gathered for one write, and the most that whoever brings a reply writes itself.
	gatherBytes = 64 << 10
)

// output is the state of a write on a raw connection.
type output struct {
	b       []byte // bytes still to be sent
	more    bool   // there is more to come behind them
	fd      int    // file to send from
	pos     int64
	n       int // bytes of it still to be sent
	err     error
	bytesFn func(fd uintptr) bool
	onceFn  func(fd uintptr) bool
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

// sendQuick is send for somebody who must not wait: a response of moderate size leaves at once, if the socket has room for it. Else it
// returns a function that sends the rest, and must be called.
func (c *Conn) sendQuick(first *Request) (rest func() error, err error) {
	out := outBuffers.Get().(*outBuffer)
	for r := first; r != nil; r = r.next {
		if err != nil {
			c.discard(r)
			continue
		}
		if r.resp != nil {
			err = c.encode(out, r)
		}
		r.release()
	}
	if err != nil {
		out.free()
		return nil, err
	}
	whole := out.b
	var gathered *buffer
	if len(out.parts) > 0 {
		if out.size() > gatherBytes || slices.ContainsFunc(out.parts, func(p Part) bool { return p.Len > sendfileFrom }) {
			return func() error {
				defer out.free()
				if err := c.write(out); err != nil {
					return err
				}
				c.sent(first, nil)
				return nil
			}, nil
		}
		gathered = c.srv.pools.get(gatherBytes)
		if whole, err = out.gather(gathered.b[:0]); err != nil {
			gathered.release()
			out.free()
			return nil, err
		}
	}
	end := func() {
		c.sent(first, nil)
		if gathered != nil {
			gathered.release()
		}
		out.free()
	}
	o := &c.out
	o.b, o.more, o.err = whole, false, nil
	if len(whole) <= gatherBytes && len(whole) > 0 {
		if err = c.raw.Write(o.onceFn); err == nil {
			err = o.err
		}
	}
	left := o.b
	o.b = nil
	if err != nil || len(left) == 0 {
		end()
		return nil, err
	}
	return func() error {
		defer end()
		return c.writeBytes(left, false)
	}, nil
}

// size is how many bytes a buffer's replies have.
func (out *outBuffer) size() int {
	n := len(out.b)
	for _, p := range out.parts {
		n += p.Len
	}
	return n
}

// gather appends all, the ranges of files too, to dst, which has room for it.
func (out *outBuffer) gather(dst []byte) ([]byte, error) {
	from := 0
	for _, p := range out.parts {
		dst = append(dst, out.b[from:p.At]...)
		from = p.At
		at := len(dst)
		dst = dst[:at+p.Len]
		n, err := p.File.ReadAt(dst[at:], p.Pos)
		if err := readWhole(n, p, err); err != nil {
			return nil, err
		}
	}
	return append(dst, out.b[from:]...), nil
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
	case Response:
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

// write sends what is encoded, the bytes and between them the file ranges. Ranges too small to be worth a call of sendfile
// are read, so that a response with a little of many partitions leaves in one piece.
func (c *Conn) write(out *outBuffer) error {
	if len(out.parts) == 0 {
		return c.writeBytes(out.b, false)
	}
	gather := c.srv.pools.get(gatherBytes)
	defer gather.release()
	g := gather.b[:0]
	from := 0
	for _, p := range out.parts {
		head := out.b[from:p.At]
		from = p.At
		if len(head) > cap(g)-len(g) {
			if err := c.writeBytes(g, true); err != nil {
				return err
			}
			g = g[:0]
		}
		if len(head) > cap(g) {
			if err := c.writeBytes(head, true); err != nil {
				return err
			}
		} else {
			g = append(g, head...)
		}
		if p.Len <= sendfileFrom && p.Len <= cap(g)-len(g) {
			n, err := p.File.ReadAt(g[len(g):len(g)+p.Len], p.Pos)
			if err := readWhole(n, p, err); err != nil {
				return err
			}
			g = g[:len(g)+p.Len]
			continue
		}
		if err := c.writeBytes(g, true); err != nil {
			return err
		}
		g = g[:0]
		if err := c.writeFile(p); err != nil {
			return err
		}
		c.touch(c.srv.opts.Clock.Now())
	}
	if tail := out.b[from:]; len(tail) <= cap(g)-len(g) {
		return c.writeBytes(append(g, tail...), false)
	}
	if err := c.writeBytes(g, true); err != nil {
		return err
	}
	return c.writeBytes(out.b[from:], false)
}

// readWhole says what is wrong when n bytes of a part were read: the length has been promised to the client, so a file that
// ends early leaves nothing but to close the connection.
func readWhole(n int, p Part, err error) error {
	if n == p.Len {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%d bytes of a file from %d: %d read: %w", p.Len, p.Pos, n, err)
}

// writeBytes sends b. With more set the kernel may hold it back until what follows fills a segment.
func (c *Conn) writeBytes(b []byte, more bool) error {
	if len(b) == 0 {
		return nil
	}
	if c.raw == nil {
		_, err := c.nc.Write(b)
		return err
	}
	c.out.b, c.out.more, c.out.err = b, more, nil
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
		n, err := rawsock.Send(fd, o.b, o.more)
		if err == unix.EAGAIN {
			return false
		}
		if err != nil {
			o.err = err
			return true
		}
		o.b = o.b[n:]
	}
	return true
}

// trySendOnce is trySend without repetition.
func (c *Conn) trySendOnce(fd uintptr) bool {
	c.trySend(fd)
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
		if o.err != nil {
			return fmt.Errorf("%d bytes of a file from %d: %w", p.Len, p.Pos, o.err)
		}
		return nil
	}
	buf := c.srv.pools.get(min(p.Len, copyPiece))
	defer buf.release()
	for sent := 0; sent < p.Len; {
		b := buf.b[:min(p.Len-sent, len(buf.b))]
		n, err := p.File.ReadAt(b, p.Pos+int64(sent))
		if n < len(b) {
			return readWhole(sent+n, p, err)
		}
		if _, err := c.nc.Write(b); err != nil {
			return err
		}
		sent += n
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
			o.err = io.ErrUnexpectedEOF
			return true
		}
	}
	return true
}
