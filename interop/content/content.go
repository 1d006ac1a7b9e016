package content

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
)

// T0 is the timestamp of record 0 in ms; record i has T0 + i.
const T0 int64 = 1700000000000

// Header is a record header; a nil Value is null.
type Header struct {
	Key   string
	Value []byte
}

// Key is the key of record i, nil for null.
func Key(i int) []byte {
	switch {
	case i%7 == 0:
		return nil
	case i%13 == 0:
		return []byte{}
	}
	return fmt.Appendf(nil, "key-%d", i%1000)
}

// Value is the value of record i, nil for null.
func Value(i int) []byte {
	if i%11 == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, `{"id":%d,"text":"`, i)
	for j := range i % 17 {
		fmt.Fprintf(&b, "lorem-%d ", (i*31+j)%97)
	}
	b.WriteString(`"}`)
	return []byte(b.String())
}

// Headers are the headers of record i.
func Headers(i int) []Header {
	var hs []Header
	for j := range i % 3 {
		h := Header{Key: fmt.Sprintf("h%d", j)}
		if i%5 != 0 {
			h.Value = fmt.Appendf(nil, "v%d", i)
		}
		hs = append(hs, h)
	}
	return hs
}

// Digest sums up the records of a partition in offset order.
type Digest struct{ h hash.Hash }

// NewDigest is the digest of no records.
func NewDigest() *Digest { return &Digest{sha256.New()} }

// Add adds one record.
func (d *Digest) Add(offset, timestamp int64, key, value []byte, headers []Header) {
	fmt.Fprintf(d.h, "%d|%d|%s|%s", offset, timestamp, hexOf(key), hexOf(value))
	for _, h := range headers {
		fmt.Fprintf(d.h, "|%s=%s", h.Key, hexOf(h.Value))
	}
	d.h.Write([]byte{'\n'})
}

// String is the digest in hex.
func (d *Digest) String() string { return hex.EncodeToString(d.h.Sum(nil)) }

func hexOf(b []byte) string {
	if b == nil {
		return "null"
	}
	return hex.EncodeToString(b)
}

// Digests are the digests of a topic's partitions when record i of count went to partition i % partitions.
func Digests(partitions, count int) []string {
	out := make([]string, partitions)
	for p := range partitions {
		d := NewDigest()
		for i, offset := p, int64(0); i < count; i, offset = i+partitions, offset+1 {
			d.Add(offset, T0+int64(i), Key(i), Value(i), Headers(i))
		}
		out[p] = d.String()
	}
	return out
}
