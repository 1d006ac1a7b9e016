package record

import (
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
)

// The LZ4 frame format as Kafka knows it: independent blocks, no dictionary. Frames are read and written here because the
// library's own reader and writer keep goroutines and cannot read the frames of magic 0.

const (
	lz4Magic       = 0x184D2204
	lz4Raw         = 1 << 31 // block size flag: stored, not compressed
	lz4BlockSize   = 64 << 10
	lz4HeaderMin   = 7
	flagLZ4Content = 1 << 2 // content checksum at the end
	flagLZ4Size    = 1 << 3 // content size in the header
	flagLZ4Block   = 1 << 4 // checksum behind each block
	flagLZ4Indep   = 1 << 5
	flagLZ4Version = 1 << 6
)

var (
	errLZ4Magic    = errors.New("stream is not in the lz4 frame format")
	errLZ4Flags    = errors.New("unsupported lz4 frame flags")
	errLZ4Checksum = errors.New("lz4 checksum mismatch")
	errLZ4Block    = errors.New("lz4 block larger than the frame allows")
)

// lz4Frame is the state of reading one frame.
type lz4Frame struct {
	flags    byte
	blockMax int
}

// readHeader takes the frame header off src. Magic 0 messages carry a checksum over the wrong bytes, so there it isn't checked.
func (f *lz4Frame) readHeader(src []byte, check bool) (rest []byte, err error) {
	if len(src) < lz4HeaderMin {
		return nil, io.ErrUnexpectedEOF
	}
	if binary.LittleEndian.Uint32(src) != lz4Magic {
		return nil, errLZ4Magic
	}
	f.flags = src[4]
	bd := src[5]
	if f.flags&3 != 0 || f.flags&flagLZ4Indep == 0 || f.flags>>6 != 1 || bd&0x8f != 0 || bd>>4 < 4 {
		return nil, errLZ4Flags
	}
	f.blockMax = 1 << (8 + 2*int(bd>>4))
	end := 6
	if f.flags&flagLZ4Size != 0 {
		end += 8
	}
	if len(src) <= end {
		return nil, io.ErrUnexpectedEOF
	}
	if check && src[end] != byte(xxh32(src[4:end])>>8) {
		return nil, errLZ4Checksum
	}
	return src[end+1:], nil
}

// nextBlock takes the next block off src; io.EOF is the end mark. Bytes behind it are ignored and a content checksum isn't
// verified, like Kafka.
func (f *lz4Frame) nextBlock(src []byte) (block []byte, compressed bool, rest []byte, err error) {
	if len(src) < 4 {
		return nil, false, nil, io.ErrUnexpectedEOF
	}
	size := binary.LittleEndian.Uint32(src)
	src = src[4:]
	compressed = size&lz4Raw == 0
	size &^= lz4Raw
	if size == 0 {
		if f.flags&flagLZ4Content != 0 && len(src) < 4 {
			return nil, false, nil, io.ErrUnexpectedEOF
		}
		return nil, false, nil, io.EOF
	}
	if int(size) > f.blockMax {
		return nil, false, nil, errLZ4Block
	}
	if len(src) < int(size) {
		return nil, false, nil, io.ErrUnexpectedEOF
	}
	block, rest = src[:size], src[size:]
	if f.flags&flagLZ4Block != 0 {
		if len(rest) < 4 {
			return nil, false, nil, io.ErrUnexpectedEOF
		}
		if binary.LittleEndian.Uint32(rest) != xxh32(block) {
			return nil, false, nil, errLZ4Checksum
		}
		rest = rest[4:]
	}
	return block, compressed, rest, nil
}

// appendLZ4Header appends the header of a frame like Java's: version 1, independent blocks of 64 KiB, no checksums but its own.
func appendLZ4Header(dst []byte) []byte {
	h := [2]byte{flagLZ4Version | flagLZ4Indep, 4 << 4}
	dst = binary.LittleEndian.AppendUint32(dst, lz4Magic)
	return append(dst, h[0], h[1], byte(xxh32(h[:])>>8))
}

const (
	xxPrime1 uint32 = 2654435761
	xxPrime2 uint32 = 2246822519
	xxPrime3 uint32 = 3266489917
	xxPrime4 uint32 = 668265263
	xxPrime5 uint32 = 374761393
)

// xxh32 is XXH32 with seed 0, the checksum of lz4 frames.
func xxh32(b []byte) uint32 {
	n := uint32(len(b))
	var h uint32
	if len(b) >= 16 {
		p1, p2 := xxPrime1, xxPrime2
		v1, v2, v3, v4 := p1+p2, p2, uint32(0), -p1
		for ; len(b) >= 16; b = b[16:] {
			v1 = bits.RotateLeft32(v1+binary.LittleEndian.Uint32(b)*xxPrime2, 13) * xxPrime1
			v2 = bits.RotateLeft32(v2+binary.LittleEndian.Uint32(b[4:])*xxPrime2, 13) * xxPrime1
			v3 = bits.RotateLeft32(v3+binary.LittleEndian.Uint32(b[8:])*xxPrime2, 13) * xxPrime1
			v4 = bits.RotateLeft32(v4+binary.LittleEndian.Uint32(b[12:])*xxPrime2, 13) * xxPrime1
		}
		h = bits.RotateLeft32(v1, 1) + bits.RotateLeft32(v2, 7) + bits.RotateLeft32(v3, 12) + bits.RotateLeft32(v4, 18)
	} else {
		h = xxPrime5
	}
	h += n
	for ; len(b) >= 4; b = b[4:] {
		h = bits.RotateLeft32(h+binary.LittleEndian.Uint32(b)*xxPrime3, 17) * xxPrime4
	}
	for _, c := range b {
		h = bits.RotateLeft32(h+uint32(c)*xxPrime5, 11) * xxPrime1
	}
	h = (h ^ h>>15) * xxPrime2
	h = (h ^ h>>13) * xxPrime3
	return h ^ h>>16
}
