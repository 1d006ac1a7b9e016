package record

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// The framing of Java's snappy library: a header, then blocks of an int32 length and raw snappy.
const (
	xerialHeaderSize = 16
	xerialVersion    = 1
	xerialBlockSize  = 32 << 10
)

var (
	xerialMagic  = []byte("\x82SNAPPY\x00")
	xerialHeader = append(append([]byte(nil), xerialMagic...), 0, 0, 0, xerialVersion, 0, 0, 0, xerialVersion)
)

// DefaultLevel is a codec's own default level.
const DefaultLevel = -1 << 15

// levels are Kafka's ranges and defaults of compression.gzip.level, .lz4.level and .zstd.level.
var levels = map[Codec]struct{ min, max, def int }{
	Gzip: {-1, 9, -1},
	LZ4:  {1, 17, 9},
	Zstd: {-131072, 22, 3},
}

// Levels gives Kafka's range and default of a codec's level; ok is false for codecs that have none. Gzip's -1 is zlib's
// default and its level 0 isn't valid for Kafka.
func Levels(c Codec) (lowest, highest, def int, ok bool) {
	l, ok := levels[c]
	return l.min, l.max, l.def, ok
}

// Compressor compresses payloads, reusing its encoders. It is safe for concurrent use; like a Decompressor it hangs off a node
// or client.
type Compressor struct {
	mu   sync.Mutex
	idle map[encoderKey][]*encoder // guarded by mu
}

type encoderKey struct {
	codec Codec
	level int
}

type encoder struct {
	gzip *gzip.Writer
	out  appendWriter
	zstd *zstd.Encoder
	lz4  lz4.Compressor
	hc   *lz4.CompressorHC
	tmp  []byte
}

// maxIdleEncoders bounds the encoders kept for each codec and level: a zstd encoder holds megabytes.
const maxIdleEncoders = 2

// NewCompressor makes one.
func NewCompressor() *Compressor { return &Compressor{idle: map[encoderKey][]*encoder{}} }

// Compress appends src, compressed at a level of Kafka's scale (DefaultLevel for the codec's own), to dst.
func (c *Compressor) Compress(dst []byte, codec Codec, level int, src []byte) ([]byte, error) {
	switch codec {
	case None:
		return append(dst, src...), nil
	case Gzip, Snappy, LZ4, Zstd:
	default:
		return dst, errf(ErrCodec, "%d", int8(codec))
	}
	if l, ok := levels[codec]; !ok {
		level = 0
	} else if level == DefaultLevel {
		level = l.def
	} else if level < l.min || level > l.max || codec == Gzip && level == 0 {
		return dst, fmt.Errorf("%s level %d is outside %d..%d", codec, level, l.min, l.max)
	}
	key := encoderKey{codec, level}
	e, err := c.get(key)
	if err != nil {
		return dst, err
	}
	dst, err = e.encode(dst, codec, level, src)
	c.put(key, e)
	return dst, err
}

func (c *Compressor) get(key encoderKey) (*encoder, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if list := c.idle[key]; len(list) > 0 {
		c.idle[key] = list[:len(list)-1]
		return list[len(list)-1], nil
	}
	e := &encoder{}
	var err error
	switch key.codec {
	case Gzip:
		e.gzip, err = gzip.NewWriterLevel(&e.out, key.level)
	case Zstd:
		e.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(max(key.level, 1))),
			zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(1<<20))
	case LZ4:
		if key.level != levels[LZ4].def {
			e.hc = &lz4.CompressorHC{Level: lz4Level(key.level)}
		}
	}
	return e, err
}

func (c *Compressor) put(key encoderKey, e *encoder) {
	e.out.b = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle[key]) < maxIdleEncoders {
		c.idle[key] = append(c.idle[key], e)
	}
}

// lz4Level maps Kafka's 1..17 to the library's search depths: 2^9 for level 1 up to 2^17 from level 9.
func lz4Level(level int) lz4.CompressionLevel { return 1 << (8 + min(level, 9)) }

func (e *encoder) encode(dst []byte, codec Codec, level int, src []byte) ([]byte, error) {
	switch codec {
	case Gzip:
		e.out.b = dst
		e.gzip.Reset(&e.out)
		if _, err := e.gzip.Write(src); err != nil {
			return dst, err
		}
		if err := e.gzip.Close(); err != nil {
			return dst, err
		}
		return e.out.b, nil
	case Zstd:
		return e.zstd.EncodeAll(src, dst), nil
	case Snappy:
		dst = append(dst, xerialHeader...)
		for len(src) > 0 {
			block := src[:min(len(src), xerialBlockSize)]
			src = src[len(block):]
			if n := s2.MaxEncodedLen(len(block)); cap(e.tmp) < n {
				e.tmp = make([]byte, n)
			}
			out := s2.EncodeSnappy(e.tmp[:cap(e.tmp)], block)
			dst = append(binary.BigEndian.AppendUint32(dst, uint32(len(out))), out...)
		}
		return dst, nil
	}
	dst = appendLZ4Header(dst)
	if cap(e.tmp) == 0 {
		e.tmp = make([]byte, lz4.CompressBlockBound(lz4BlockSize))
	}
	for len(src) > 0 {
		block := src[:min(len(src), lz4BlockSize)]
		src = src[len(block):]
		var n int
		var err error
		if e.hc != nil {
			n, err = e.hc.CompressBlock(block, e.tmp[:cap(e.tmp)])
		} else {
			n, err = e.lz4.CompressBlock(block, e.tmp[:cap(e.tmp)])
		}
		if err != nil {
			return dst, err
		}
		if n == 0 || n >= len(block) {
			dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(block))|lz4Raw), block...)
			continue
		}
		dst = append(binary.LittleEndian.AppendUint32(dst, uint32(n)), e.tmp[:n]...)
	}
	return append(dst, 0, 0, 0, 0), nil
}

type appendWriter struct{ b []byte }

func (w *appendWriter) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}
