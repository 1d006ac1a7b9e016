package xxh3

import (
	"encoding/binary"
	"math/bits"
)

const (
	prime32n1 = 0x9E3779B1
	prime32n2 = 0x85EBCA77
	prime32n3 = 0xC2B2AE3D
	prime64n1 = 0x9E3779B185EBCA87
	prime64n2 = 0xC2B2AE3D27D4EB4F
	prime64n3 = 0x165667B19E3779F9
	prime64n4 = 0x85EBCA77C2B2AE63
	prime64n5 = 0x27D4EB2F165667C5
	primeMX1  = 0x165667919E3779F9
	primeMX2  = 0x9FB21C651E98DF25

	// Long inputs are worked off in stripes, each of which takes the secret a little further on, and blocks of as many stripes
	// as the secret has room for.
	stripeSize = 64
	secretStep = 8
	blockSize  = (len(secret) - stripeSize) / secretStep * stripeSize
)

const secret = "" +
	"\xb8\xfe\x6c\x39\x23\xa4\x4b\xbe\x7c\x01\x81\x2c\xf7\x21\xad\x1c\xde\xd4\x6d\xe9\x83\x90\x97\xdb\x72\x40\xa4\xa4\xb7\xb3\x67\x1f" +
	"\xcb\x79\xe6\x4e\xcc\xc0\xe5\x78\x82\x5a\xd0\x7d\xcc\xff\x72\x21\xb8\x08\x46\x74\xf7\x43\x24\x8e\xe0\x35\x90\xe6\x81\x3a\x26\x4c" +
	"\x3c\x28\x52\xbb\x91\xc3\x00\xcb\x88\xd0\x65\x8b\x1b\x53\x2e\xa3\x71\x64\x48\x97\xa2\x0d\xf9\x4e\x38\x19\xef\x46\xa9\xde\xac\xd8" +
	"\xa8\xfa\x76\x3f\xe3\x9c\x34\x3f\xf9\xdc\xbb\xc7\xc7\x0b\x4f\x1d\x8a\x51\xe0\x4b\xcd\xb4\x59\x31\xc8\x9f\x7e\xc9\xd9\x78\x73\x64" +
	"\xea\xc5\xac\x83\x34\xd3\xeb\xc3\xc5\x81\xa0\xff\xfa\x13\x63\xeb\x17\x0d\xdd\x51\xb7\xf0\xda\x49\xd3\x16\x55\x26\x29\xd4\x68\x9e" +
	"\x2b\x16\xbe\x58\x7d\x47\xa1\xfc\x8f\xf8\xb8\xd1\x7a\xd0\x31\xce\x45\xcb\x3a\x8f\x95\x16\x04\x28\xaf\xd7\xfb\xca\xbb\x4b\x40\x7e"

// key is eight bytes of the secret.
func key(at int) uint64 {
	s := secret[at : at+8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

func u64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// fold multiplies and folds the upper half of the product onto the lower.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// mix takes in 16 bytes with 16 bytes of the secret.
func mix(b []byte, at int) uint64 {
	return fold(u64(b)^key(at), u64(b[8:])^key(at+8))
}

func avalanche(h uint64) uint64 {
	h ^= h >> 37
	h *= primeMX1
	return h ^ h>>32
}

// avalancheShort is that of XXH64, which the shortest inputs use.
func avalancheShort(h uint64) uint64 {
	h ^= h >> 33
	h *= prime64n2
	h ^= h >> 29
	h *= prime64n3
	return h ^ h>>32
}

// Sum64 is the hash of b.
func Sum64(b []byte) uint64 {
	n := len(b)
	switch {
	case n == 0:
		return avalancheShort(key(56) ^ key(64))
	case n <= 3:
		x := uint32(b[0])<<16 | uint32(b[n>>1])<<24 | uint32(b[n-1]) | uint32(n)<<8
		k := key(0)
		return avalancheShort(uint64(x) ^ uint64(uint32(k)^uint32(k>>32)))
	case n <= 8:
		x := uint64(binary.LittleEndian.Uint32(b))<<32 + uint64(binary.LittleEndian.Uint32(b[n-4:]))
		h := x ^ key(8) ^ key(16)
		h ^= bits.RotateLeft64(h, 49) ^ bits.RotateLeft64(h, 24)
		h *= primeMX2
		h ^= h>>35 + uint64(n)
		h *= primeMX2
		return h ^ h>>28
	case n <= 16:
		lo := u64(b) ^ key(24) ^ key(32)
		hi := u64(b[n-8:]) ^ key(40) ^ key(48)
		return avalanche(uint64(n) + bits.ReverseBytes64(lo) + hi + fold(lo, hi))
	case n <= 128:
		// From both ends towards the middle.
		h := uint64(n) * prime64n1
		for i := (n - 1) / 32; i >= 0; i-- {
			h += mix(b[16*i:], 32*i) + mix(b[n-16*(i+1):], 32*i+16)
		}
		return avalanche(h)
	case n <= 240:
		h := uint64(n) * prime64n1
		for i := range 8 {
			h += mix(b[16*i:], 16*i)
		}
		h = avalanche(h)
		for i := 8; i < n/16; i++ {
			h += mix(b[16*i:], 16*(i-8)+3)
		}
		return avalanche(h + mix(b[n-16:], 119))
	default:
		return long(b)
	}
}

// lanes are the accumulators of long inputs.
type lanes [8]uint64

func (l *lanes) stripe(b []byte, at int) {
	_ = b[stripeSize-1]
	for i := range l {
		v := u64(b[8*i:])
		k := v ^ key(at+8*i)
		l[i^1] += v
		l[i] += uint64(uint32(k)) * (k >> 32)
	}
}

func (l *lanes) scramble() {
	for i := range l {
		l[i] ^= l[i]>>47 ^ key(len(secret)-stripeSize+8*i)
		l[i] *= prime32n1
	}
}

func long(b []byte) uint64 {
	l := lanes{prime32n3, prime64n1, prime64n2, prime64n3, prime64n4, prime32n2, prime64n5, prime32n1}
	// The last stripe always ends where the input does, so what is left for it is never empty.
	rest := b
	for len(rest) > blockSize {
		for i := range blockSize / stripeSize {
			l.stripe(rest[i*stripeSize:], i*secretStep)
		}
		l.scramble()
		rest = rest[blockSize:]
	}
	for i := range (len(rest) - 1) / stripeSize {
		l.stripe(rest[i*stripeSize:], i*secretStep)
	}
	l.stripe(b[len(b)-stripeSize:], len(secret)-stripeSize-7)

	h := uint64(len(b)) * prime64n1
	for i := 0; i < len(l); i += 2 {
		h += fold(l[i]^key(11+8*i), l[i+1]^key(11+8*i+8))
	}
	return avalanche(h)
}
