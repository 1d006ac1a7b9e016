package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

const (
	// DefaultMaxBytes bounds what one batch may decompress to when DecompressorOptions says nothing: far above any batch that a
	// producer makes, far below what keeps a core busy for long.
	DefaultMaxBytes = 256 << 20
	// keepBuffer is the largest output buffer that a decoder keeps for its next batch, and the most that zstd decodes in one go.
	keepBuffer = 4 << 20
	// firstBuffer is a decoder's first output buffer; a chunk of it is the unit in which streams are decoded.
	firstBuffer = 128 << 10
	// maxZstdWindow bounds the memory of zstd frames too large to be decoded in one go. It is what zstd's level 20 asks for;
	// smaller batches may come from any level.
	maxZstdWindow = 32 << 20
	// maxSnappyRatio is more than snappy can shrink anything (64 bytes out of 3), so a larger claim is a lie.
	maxSnappyRatio = 24
)

// DecompressorOptions configure a Decompressor.
type DecompressorOptions struct {
	// MaxBytes is the most that one batch may decompress to; 0 is DefaultMaxBytes.
	MaxBytes int64
	// MaxIdle is how many decoders are kept for reuse; 0 is 4. Each holds up to about 5 MiB.
	MaxIdle int
}

// Decompressor lends out decoders, each with buffers of its own that the next batch reuses. It is safe for concurrent use. Make
// one per node or client and hand it down: its zstd decoders hold channels, which must not outlive a synctest bubble.
type Decompressor struct {
	maxBytes int64
	maxIdle  int
	mu       sync.Mutex
	idle     []*decoder // guarded by mu
}

// NewDecompressor makes one; the zero value of the options is fine.
func NewDecompressor(o DecompressorOptions) *Decompressor {
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxIdle <= 0 {
		o.MaxIdle = 4
	}
	return &Decompressor{maxBytes: o.MaxBytes, maxIdle: o.MaxIdle}
}

func (d *Decompressor) get() *decoder {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.idle); n > 0 {
		c := d.idle[n-1]
		d.idle = d.idle[:n-1]
		return c
	}
	return &decoder{owner: d}
}

func (d *Decompressor) put(c *decoder) {
	c.src, c.rest = nil, nil
	c.reader.Reset(nil)
	if cap(c.out) > keepBuffer+firstBuffer {
		c.out = nil
	}
	if cap(c.spare) > keepBuffer+firstBuffer {
		c.spare = nil
	}
	if cap(c.carry) > keepBuffer {
		c.carry = nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.idle) < d.maxIdle {
		d.idle = append(d.idle, c)
	}
}

// Decompress appends the whole of src, decompressed, to dst. The limit is in bytes of output; 0 is the Decompressor's own.
func (d *Decompressor) Decompress(dst []byte, c Codec, src []byte, limit int64) ([]byte, error) {
	if c == None {
		return append(dst, src...), nil
	}
	dec := d.get()
	defer d.put(dec)
	if err := dec.reset(c, src, 2); err != nil {
		return dst, err
	}
	if limit > 0 {
		dec.limit = limit
	}
	for {
		// What fits is decoded in place.
		own, spare := dec.out, dst[len(dst):cap(dst)]
		if dec.given = len(spare) >= dec.inPlace(); dec.given {
			dec.out = spare
		}
		chunk, err := dec.next()
		if len(chunk) > 0 && len(spare) >= len(chunk) && &chunk[0] == &spare[0] {
			dst = dst[:len(dst)+len(chunk)]
		} else {
			dst = append(dst, chunk...)
		}
		if dec.given && cap(dec.out) > 0 && &dec.out[:1][0] == &spare[0] {
			dec.out = own // the caller's memory is the caller's
		}
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}

// inPlace is how much room the next chunk needs so that it can be decoded where it is wanted.
func (c *decoder) inPlace() int {
	switch {
	case c.codec == LZ4:
		return c.lz4.blockMax
	case c.codec == Zstd && !c.started:
		return min(max(firstBuffer, len(c.src)), keepBuffer)
	}
	return firstBuffer
}

// decoder turns the payload of one batch into chunks, each of which is valid until the next.
type decoder struct {
	owner    *Decompressor
	codec    Codec
	src      []byte // what was handed to reset
	rest     []byte // what of it is still to be read (lz4, snappy)
	limit    int64
	produced int64
	out      []byte // the chunk's memory
	spare    []byte // a second out, for looking behind the last record
	carry    []byte // the iterator's memory for records that straddle chunks
	done     bool

	reader  bytes.Reader
	gzip    *gzip.Reader
	zstd    *zstd.Decoder // whole frames, bounded by cap(out)
	stream  *zstd.Decoder // frames that do not fit in keepBuffer
	lz4     lz4Frame
	framed  bool // snappy: xerial framing
	started bool // zstd: stream is in use
	given   bool // out is the caller's for this chunk
}

// reset begins a payload. magic is that of the message around it: lz4 frames in magic 0 have a wrong header checksum.
func (c *decoder) reset(codec Codec, src []byte, magic int8) error {
	c.codec, c.src, c.rest = codec, src, src
	c.limit, c.produced, c.done, c.started, c.given = c.owner.maxBytes, 0, false, false, false
	switch codec {
	case Gzip:
		c.reader.Reset(src)
		if c.gzip == nil {
			z, err := gzip.NewReader(&c.reader)
			if err != nil {
				return c.fail(err)
			}
			c.gzip = z
		} else if err := c.gzip.Reset(&c.reader); err != nil {
			return c.fail(err)
		}
		c.gzip.Multistream(false)
	case Snappy:
		c.framed = bytes.HasPrefix(src, xerialMagic)
		if c.framed {
			if len(src) < xerialHeaderSize {
				return c.fail(io.ErrUnexpectedEOF)
			}
			if v := int32(binary.BigEndian.Uint32(src[8:])); v < xerialVersion {
				return c.fail(fmt.Errorf("snappy framing of version %d", v))
			}
			c.rest = src[xerialHeaderSize:]
		} else if len(src) == 0 {
			return c.fail(io.ErrUnexpectedEOF)
		}
	case LZ4:
		rest, err := c.lz4.readHeader(src, magic > 0)
		if err != nil {
			return c.fail(err)
		}
		c.rest = rest
	case Zstd:
	default:
		return errf(ErrCodec, "%d", int8(codec))
	}
	return nil
}

func (c *decoder) fail(err error) error {
	return &Error{Kind: ErrDecompress, Message: c.codec.String(), Cause: err}
}

// next returns the next chunk, with io.EOF at the end. An empty chunk without an error is possible.
func (c *decoder) next() (chunk []byte, err error) {
	if c.done {
		return nil, io.EOF
	}
	switch c.codec {
	case Gzip:
		chunk, err = c.nextGzip()
	case Snappy:
		chunk, err = c.nextSnappy()
	case LZ4:
		chunk, err = c.nextLZ4()
	case Zstd:
		chunk, err = c.nextZstd()
	default:
		return nil, errf(ErrCodec, "%d", int8(c.codec))
	}
	c.produced += int64(len(chunk))
	if c.produced > c.limit {
		return nil, c.bomb()
	}
	return chunk, err
}

func (c *decoder) bomb() error {
	return errf(ErrBomb, "%s batch of %d bytes decompresses to more than %d", c.codec, len(c.src), c.limit)
}

// room returns the output buffer with at least n bytes of capacity.
func (c *decoder) room(n int) []byte {
	if cap(c.out) < n {
		c.out = make([]byte, n)
	}
	return c.out[:cap(c.out)]
}

func (c *decoder) nextGzip() ([]byte, error) {
	out := c.room(firstBuffer)
	n := 0
	for n < len(out) {
		m, err := c.gzip.Read(out[n:])
		n += m
		if err == io.EOF {
			// Java reads on into a further member, and takes whatever is not one as the end.
			if c.reader.Len() <= 18 || c.gzip.Reset(&c.reader) != nil {
				c.done = true
				return out[:n], nil
			}
			c.gzip.Multistream(false)
			continue
		}
		if err != nil {
			return nil, c.fail(err)
		}
	}
	return out[:n], nil
}

func (c *decoder) nextSnappy() ([]byte, error) {
	block := c.rest
	if c.framed {
		if len(block) == 0 {
			c.done = true
			return nil, io.EOF
		}
		if len(block) < 4 {
			return nil, c.fail(io.ErrUnexpectedEOF)
		}
		size := binary.BigEndian.Uint32(block)
		// A new stream header in the middle is legal: Java's reader skips it, some clients concatenate streams.
		if bytes.HasPrefix(block, xerialMagic) && len(block) >= xerialHeaderSize {
			c.rest = block[xerialHeaderSize:]
			return nil, nil
		}
		if block = block[4:]; uint64(size) > uint64(len(block)) {
			return nil, c.fail(io.ErrUnexpectedEOF)
		}
		block, c.rest = block[:size], block[size:]
	} else {
		c.done = true
	}
	n, err := s2.DecodedLen(block)
	if err != nil {
		return nil, c.fail(err)
	}
	if n > maxSnappyRatio*len(block)+64 {
		return nil, c.fail(s2.ErrCorrupt)
	}
	if c.produced+int64(n) > c.limit {
		return nil, c.bomb()
	}
	out, err := s2.Decode(c.room(max(n, firstBuffer))[:n], block)
	if err != nil {
		return nil, c.fail(err)
	}
	return out, nil
}

func (c *decoder) nextLZ4() ([]byte, error) {
	block, compressed, rest, err := c.lz4.nextBlock(c.rest)
	if err == io.EOF {
		c.done = true
		return nil, io.EOF
	}
	if err != nil {
		return nil, c.fail(err)
	}
	c.rest = rest
	if !compressed {
		return block, nil
	}
	out := c.room(c.lz4.blockMax)[:c.lz4.blockMax]
	n, err := lz4.UncompressBlock(block, out)
	if err != nil {
		return nil, c.fail(err)
	}
	return out[:n], nil
}

// nextZstd decodes into the reused buffer in one go, which is the cheapest there is (the output is its own window). Only what
// is larger than keepBuffer is streamed.
func (c *decoder) nextZstd() ([]byte, error) {
	if c.started {
		return c.streamZstd()
	}
	if len(c.src) == 0 {
		return nil, c.fail(io.ErrUnexpectedEOF)
	}
	if c.zstd == nil {
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true),
			zstd.WithDecoderMaxWindow(256<<20), zstd.WithDecoderMaxMemory(keepBuffer+firstBuffer))
		if err != nil {
			return nil, c.fail(err)
		}
		c.zstd = z
	}
	guess := min(max(firstBuffer, 6*len(c.src)), keepBuffer)
	if c.given {
		guess = min(guess, cap(c.out)) // the caller has an idea of how much it will be
	}
	for {
		out := c.room(guess)
		got, err := c.zstd.DecodeAll(c.src, out[:0])
		if err == nil {
			c.done = true
			return got, nil
		}
		if !errors.Is(err, zstd.ErrDecoderSizeExceeded) {
			return nil, c.fail(err)
		}
		if len(out) >= keepBuffer {
			break
		}
		guess = keepBuffer
	}
	if c.stream == nil {
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecodeBuffersBelow(0))
		if err != nil {
			return nil, c.fail(err)
		}
		c.stream = z
	}
	c.reader.Reset(c.src)
	if err := c.stream.Reset(&c.reader); err != nil {
		return nil, c.fail(err)
	}
	c.started = true
	return c.streamZstd()
}

func (c *decoder) streamZstd() ([]byte, error) {
	out := c.room(firstBuffer)
	n := 0
	for n < len(out) {
		m, err := c.stream.Read(out[n:])
		n += m
		if err == io.EOF {
			c.done = true
			return out[:n], nil
		}
		if err != nil {
			return nil, c.fail(err)
		}
	}
	return out[:n], nil
}
