package record

import "encoding/binary"

// Record is one record as read from a batch. Its slices alias the batch or a decoder's buffer: they are good until the
// iterator's next step, and for uncompressed batches as long as the batch is.
type Record struct {
	Offset    int64
	Timestamp int64  // ms since the epoch, NoTimestamp if it has none
	Key       []byte // nil is null
	Value     []byte // nil is null
	Headers   []Header
	// Sequence is the producer's sequence number, NoSequence without a producer.
	Sequence int32
	// Size is the record's encoded size, its length prefix included.
	Size int
	// Attributes are unused so far; 0.
	Attributes int8
}

// Header is a key and a value beside a record. Keys may be empty and may repeat; a nil value is null.
type Header struct {
	Key   []byte
	Value []byte
}

var emptyBytes = []byte{}

// uvarint32 reads an unsigned varint of up to five bytes at b[i:] and returns where it ends, -1 if it does not end in time. An
// i of -1 stays -1, so that a run of reads needs one check at its end.
func uvarint32(b []byte, i int) (uint32, int) {
	if uint(i) < uint(len(b)) && b[i] < 0x80 {
		return uint32(b[i]), i + 1
	}
	return uvarint32Slow(b, i)
}

func uvarint32Slow(b []byte, i int) (uint32, int) {
	if i < 0 {
		return 0, -1
	}
	var v uint32
	for shift := 0; shift < 35; shift += 7 {
		if i >= len(b) {
			return 0, -1
		}
		c := b[i]
		i++
		v |= uint32(c&0x7f) << shift
		if c < 0x80 {
			return v, i
		}
	}
	return 0, -1
}

func varint32(b []byte, i int) (int32, int) {
	u, i := uvarint32(b, i)
	return int32(u>>1) ^ -int32(u&1), i
}

func varint64(b []byte, i int) (int64, int) {
	if i < 0 {
		return 0, -1
	}
	var v uint64
	for shift := 0; shift < 70; shift += 7 {
		if i >= len(b) {
			return 0, -1
		}
		c := b[i]
		i++
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return int64(v>>1) ^ -int64(v&1), i
		}
	}
	return 0, -1
}

// field reads a length and that many bytes; a negative length is null.
func field(b []byte, i int) ([]byte, int) {
	n, i := varint32(b, i)
	switch {
	case i < 0:
		return nil, -1
	case n < 0:
		return nil, i
	case n == 0:
		return emptyBytes, i
	case int(n) > len(b)-i:
		return nil, -1
	}
	return b[i : i+int(n) : i+int(n)], i + int(n)
}

// parse fills r from the record body (what follows its length). Offset and timestamp are left as deltas.
func (r *Record) parse(body []byte) *Error {
	if len(body) == 0 {
		return errf(ErrInvalid, "record of size 0")
	}
	r.Attributes = int8(body[0])
	var offsetDelta, headers int32
	i := 1
	r.Timestamp, i = varint64(body, i)
	offsetDelta, i = varint32(body, i)
	r.Offset = int64(offsetDelta)
	r.Key, i = field(body, i)
	r.Value, i = field(body, i)
	headers, i = varint32(body, i)
	r.Headers = r.Headers[:0]
	switch {
	case i < 0:
		return errf(ErrInvalid, "found invalid record structure")
	case headers < 0:
		return errf(ErrInvalid, "found invalid number of record headers %d", headers)
	case int(headers) > len(body)-i:
		return errf(ErrInvalid, "found invalid number of record headers: %d is larger than the %d bytes left", headers, len(body)-i)
	}
	for ; headers > 0; headers-- {
		var h Header
		if h.Key, i = field(body, i); i >= 0 && h.Key == nil {
			return errf(ErrInvalid, "invalid negative header key size")
		}
		if h.Value, i = field(body, i); i < 0 {
			return errf(ErrInvalid, "found invalid record structure in a header")
		}
		r.Headers = append(r.Headers, h)
	}
	if i != len(body) {
		return errf(ErrInvalid, "invalid record size: expected to read %d bytes in record payload, but instead read %d", len(body), i)
	}
	return nil
}

// VarintSize is the encoded size of a zig-zag varint.
func VarintSize(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	n := 1
	for ; u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

func bytesSize(b []byte) int {
	if b == nil {
		return 1
	}
	return VarintSize(int64(len(b))) + len(b)
}

func bodySize(tsDelta, offsetDelta int64, key, value []byte, headers []Header) int {
	n := 1 + VarintSize(tsDelta) + VarintSize(offsetDelta) + bytesSize(key) + bytesSize(value) + VarintSize(int64(len(headers)))
	for _, h := range headers {
		n += VarintSize(int64(len(h.Key))) + len(h.Key) + bytesSize(h.Value)
	}
	return n
}

func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 1) // -1
	}
	return append(binary.AppendVarint(dst, int64(len(b))), b...)
}

// appendRecord appends one record, its length first.
func appendRecord(dst []byte, tsDelta, offsetDelta int64, key, value []byte, headers []Header) []byte {
	dst = binary.AppendVarint(dst, int64(bodySize(tsDelta, offsetDelta, key, value, headers)))
	dst = append(dst, 0)
	dst = binary.AppendVarint(dst, tsDelta)
	dst = binary.AppendVarint(dst, offsetDelta)
	dst = appendBytes(dst, key)
	dst = appendBytes(dst, value)
	dst = binary.AppendVarint(dst, int64(len(headers)))
	for _, h := range headers {
		dst = append(binary.AppendVarint(dst, int64(len(h.Key))), h.Key...)
		dst = appendBytes(dst, h.Value)
	}
	return dst
}
