package network

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// Buffers come in sizes of powers of two from minBuffer to maxPooled; larger ones are made as needed and left to the garbage
// collector, since a few of them kept for later would outweigh everything else.
const (
	minBufferBits = 12
	maxPooledBits = 22
	minBuffer     = 1 << minBufferBits
	maxPooled     = 1 << maxPooledBits
)

// buffer is a piece of memory that is shared by counting: the connection that fills it holds one reference and every request
// that lies in it another. The last release returns it to its pool.
type buffer struct {
	b    []byte // len is the usable size
	refs atomic.Int32
	pool *pools
}

// pools holds idle buffers by size. The zero value is ready to use.
type pools struct {
	classes [maxPooledBits - minBufferBits + 1]sync.Pool
	live    atomic.Int64 // buffers that are out, for tests of leaks
}

// class is the index of the smallest class that holds n bytes.
func class(n int) int {
	if n <= minBuffer {
		return 0
	}
	return bits.Len(uint(n-1)) - minBufferBits
}

// classSize is the size of the buffer that get returns for n bytes.
func classSize(n int) int {
	if n > maxPooled {
		return n
	}
	return minBuffer << class(n)
}

// get returns a buffer of at least n bytes, with one reference. Its contents are arbitrary.
func (p *pools) get(n int) *buffer {
	p.live.Add(1)
	var b *buffer
	if n <= maxPooled {
		k := class(n)
		if x := p.classes[k].Get(); x != nil {
			b = x.(*buffer)
		} else {
			b = &buffer{b: make([]byte, minBuffer<<k), pool: p}
		}
	} else {
		b = &buffer{b: make([]byte, n), pool: p}
	}
	b.refs.Store(1)
	return b
}

func (b *buffer) retain() { b.refs.Add(1) }

// sole says that nobody but the caller, who holds a reference, uses the buffer.
func (b *buffer) sole() bool { return b.refs.Load() == 1 }

func (b *buffer) release() {
	switch n := b.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("network: buffer released twice")
	}
	b.pool.live.Add(-1)
	if len(b.b) <= maxPooled {
		b.pool.classes[class(len(b.b))].Put(b)
	}
}

// outBuffer is the space in which replies are encoded. It keeps what append made of it, up to a bound.
type outBuffer struct {
	b     []byte
	parts []Part
}

// maxKeptOut bounds the encoding space that is kept for the next reply.
const maxKeptOut = 256 << 10

var outBuffers = sync.Pool{New: func() any { return &outBuffer{b: make([]byte, 0, 1024)} }}

// reset releases the file ranges and empties the buffer.
func (o *outBuffer) reset() {
	releaseParts(o.parts)
	clear(o.parts)
	o.b, o.parts = o.b[:0], o.parts[:0]
}

func (o *outBuffer) free() {
	o.reset()
	if cap(o.b) <= maxKeptOut {
		outBuffers.Put(o)
	}
}
