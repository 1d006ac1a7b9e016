package api

import (
	"fmt"
)

// uvarint reads an unsigned varint of at most 32 bits, as lengths and tags are. n is 0 when src is too short or the value too
// large.
//
// Differs from Kafka: Kafka drops the bits above the 32nd of a varint of five bytes; no client sends such. kmsg refuses it too.
func uvarint(src []byte) (v uint32, n int) {
	for i := 0; i < len(src) && i < 5; i++ {
		c := src[i]
		if i == 4 && c > 0x0f {
			return 0, 0
		}
		v |= uint32(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}

func appendUvarint(dst []byte, v uint32) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}

// skipTags skips a section of tagged fields and returns what follows it.
func skipTags(src []byte) ([]byte, error) {
	count, n := uvarint(src)
	if n == 0 {
		return nil, fmt.Errorf("tag count: %w", ErrShort)
	}
	src = src[n:]
	for ; count > 0; count-- {
		_, n = uvarint(src)
		if n == 0 {
			return nil, fmt.Errorf("tag: %w", ErrShort)
		}
		src = src[n:]
		size, n := uvarint(src)
		if n == 0 || int64(size) > int64(len(src)-n) {
			return nil, fmt.Errorf("tagged field of %d bytes: %w", size, ErrShort)
		}
		src = src[n+int(size):]
	}
	return src, nil
}
