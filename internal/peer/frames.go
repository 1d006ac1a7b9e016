package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"

	"gregor/internal/rawsock"
)

const (
	// keepMemory is how much a connection keeps between responses, if none of the last smallInARow needed more.
	keepMemory  = 256 << 10
	smallInARow = 16
	// firstMemory is what it begins with; step bounds how much is taken beyond what has arrived.
	firstMemory = 4 << 10
	step        = 1 << 20
)

var errFrame = errors.New("impossible length of a response")

// frames cuts responses out of what a connection brings. It reads as much as there is, so that a response takes one read, mostly.
type frames struct {
	conn  io.Reader
	raw   syscall.RawConn // nil unless conn is TCP
	limit int
	buf   []byte
	r, w  int // what has been read and not been used lies in buf[r:w]
	small int // responses in a row that would do with less memory

	readFn func(fd uintptr) bool
	n      int
	err    error
}

func newFrames(conn net.Conn, limit int) *frames {
	f := &frames{conn: conn, raw: rawsock.Of(conn), limit: limit}
	f.readFn = f.tryRead
	return f
}

// next is the next response: its correlation id, and what follows that. With reuse it is valid until the next call, else for ever.
func (f *frames) next(reuse bool) (body []byte, id int32, err error) {
	if err := f.have(8); err != nil {
		return nil, 0, err
	}
	n := int64(int32(binary.BigEndian.Uint32(f.buf[f.r:])))
	if n < 4 || n > int64(f.limit) {
		return nil, 0, fmt.Errorf("%w: %d, want 4 to %d", errFrame, n, f.limit)
	}
	if f.small++; int64(len(f.buf)) <= max(keepMemory, 8*n) {
		f.small = 0
	} else if f.small > smallInARow {
		f.buf, f.r, f.w = slices.Clone(f.buf[f.r:f.w]), 0, f.w-f.r
	}
	if err := f.have(4 + int(n)); err != nil {
		return nil, 0, err
	}
	id = int32(binary.BigEndian.Uint32(f.buf[f.r+4:]))
	body = f.buf[f.r+8 : f.r+4+int(n) : f.r+4+int(n)]
	f.r += 4 + int(n)
	if reuse {
		return body, id, nil
	}
	if f.r == f.w && len(body) > firstMemory {
		f.buf, f.r, f.w = nil, 0, 0 // the caller's from now on
		return body, id, nil
	}
	return append([]byte(nil), body...), id, nil
}

// have reads until at least n bytes lie in the buffer.
func (f *frames) have(n int) error {
	if f.w-f.r >= n {
		return nil
	}
	if f.r == f.w {
		f.r, f.w = 0, 0
	}
	for f.w-f.r < n {
		if f.r+n > len(f.buf) || f.w == len(f.buf) {
			f.makeRoom(n)
		}
		got, err := f.read(f.buf[f.w:])
		if err == io.EOF && f.w > f.r {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		f.w += got
	}
	return nil
}

// makeRoom makes the buffer hold n bytes from r on, or a part of them: what is announced need not come, so that memory is taken as
// bytes arrive.
func (f *frames) makeRoom(n int) {
	have := f.w - f.r
	size := max(min(n, max(step, 2*have)), firstMemory)
	if size <= len(f.buf) && have < size {
		copy(f.buf, f.buf[f.r:f.w])
	} else {
		grown := make([]byte, size)
		copy(grown, f.buf[f.r:f.w])
		f.buf = grown
	}
	f.r, f.w = 0, have
}

// read reads at least a byte.
func (f *frames) read(p []byte) (int, error) {
	if f.raw == nil {
		return f.conn.Read(p)
	}
	f.n, f.err = 0, nil
	err := f.raw.Read(f.readFn)
	if err == nil {
		err = f.err
	}
	return f.n, err
}

// tryRead is the attempt to read that the runtime repeats when the socket becomes readable.
func (f *frames) tryRead(fd uintptr) bool {
	n, err := rawsock.Read(fd, f.buf[f.w:])
	switch {
	case err == syscall.EAGAIN:
		return false
	case err == nil && n == 0:
		err = io.EOF
	}
	f.n, f.err = n, err
	return true
}
