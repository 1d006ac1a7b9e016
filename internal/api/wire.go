package api

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"gregor/internal/uuid"
)

// reader reads the hand-written messages. After the first thing that does not fit, err is set and everything read is zero, so
// that decoders check once at the end, and before they loop over a count.
type reader struct {
	b        []byte
	flexible bool
	err      error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail(fmt.Errorf("%d bytes wanted, %d left: %w", n, len(r.b), ErrShort))
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) int8() int8 {
	if b := r.take(1); b != nil {
		return int8(b[0])
	}
	return 0
}

func (r *reader) int16() int16 {
	if b := r.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) int32() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (r *reader) int64() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r *reader) uuid() (u uuid.UUID) {
	copy(u[:], r.take(16))
	return u
}

func (r *reader) uvarint() uint32 {
	v, n := uvarint(r.b)
	if n == 0 {
		r.fail(fmt.Errorf("varint: %w", ErrShort))
		return 0
	}
	r.b = r.b[n:]
	return v
}

// length reads the length of bytes or an array; below zero is null.
func (r *reader) length() int {
	if r.flexible {
		return int(int32(r.uvarint() - 1))
	}
	return int(r.int32())
}

// nullableString is nil for null. The result is a slice of the message.
func (r *reader) nullableString() []byte {
	n := 0
	if r.flexible {
		n = int(int32(r.uvarint() - 1))
	} else {
		n = int(r.int16())
	}
	switch {
	case n < 0 || r.err != nil:
		return nil
	case n > maxString:
		r.fail(fmt.Errorf("string of %d bytes", n))
		return nil
	}
	return r.take(n)
}

func (r *reader) string(field string) []byte {
	s := r.nullableString()
	if s == nil && r.err == nil {
		r.fail(&fieldError{field, errNull})
	}
	return s
}

// nullableBytes is nil for null. The result is a slice of the message.
func (r *reader) nullableBytes() []byte {
	n := r.length()
	if n < 0 || r.err != nil {
		return nil
	}
	return r.take(n)
}

// array reads the length of an array that may not be null, whose elements have at least size bytes each.
func (r *reader) array(field string, size int) int {
	n := r.length()
	switch {
	case r.err != nil:
		return 0
	case n < 0:
		r.fail(&fieldError{field, errNull})
		return 0
	case n > len(r.b)/size:
		r.fail(&fieldError{field, fmt.Errorf("array of %d elements in %d bytes: %w", n, len(r.b), ErrShort)})
		return 0
	}
	return n
}

// tags reads a section of tagged fields. It calls known, when there are known fields, with each tag: known reads the field
// from r and returns true, or returns false to have it skipped.
func (r *reader) tags(known func(tag uint32) bool) {
	if !r.flexible {
		return
	}
	// The usual case: there are none.
	if len(r.b) > 0 && r.b[0] == 0 {
		r.b = r.b[1:]
		return
	}
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		tag := r.uvarint()
		size := r.uvarint()
		if int64(size) > int64(len(r.b)) {
			r.fail(fmt.Errorf("tag %d of %d bytes, %d left: %w", tag, size, len(r.b), ErrShort))
		}
		if r.err != nil {
			return
		}
		after := r.b[size:]
		r.b = r.b[:size]
		if known != nil && known(tag) && len(r.b) > 0 {
			r.fail(fmt.Errorf("%d bytes left over in tag %d", len(r.b), tag))
		}
		if r.err == nil {
			r.b = after
		}
	}
}

// writer appends the hand-written messages.
type writer struct {
	b        []byte
	flexible bool
}

func (w *writer) int16(v int16)    { w.b = binary.BigEndian.AppendUint16(w.b, uint16(v)) }
func (w *writer) int32(v int32)    { w.b = binary.BigEndian.AppendUint32(w.b, uint32(v)) }
func (w *writer) int64(v int64)    { w.b = binary.BigEndian.AppendUint64(w.b, uint64(v)) }
func (w *writer) uuid(v uuid.UUID) { w.b = append(w.b, v[:]...) }

func (w *writer) array(n int) {
	if w.flexible {
		w.b = appendUvarint(w.b, uint32(n)+1)
	} else {
		w.int32(int32(n))
	}
}

func (w *writer) nullArray() {
	if w.flexible {
		w.b = append(w.b, 0)
	} else {
		w.int32(-1)
	}
}

// string cuts what a string field cannot hold, which only ever concerns error messages.
func (w *writer) string(s string) {
	s = s[:min(len(s), math.MaxInt16)]
	if w.flexible {
		w.b = appendUvarint(w.b, uint32(len(s))+1)
	} else {
		w.int16(int16(len(s)))
	}
	w.b = append(w.b, s...)
}

func (w *writer) nullableString(s *string) {
	switch {
	case s != nil:
		w.string(*s)
	case w.flexible:
		w.b = append(w.b, 0)
	default:
		w.int16(-1)
	}
}

// noTags ends a struct that has no tagged fields.
func (w *writer) noTags() {
	if w.flexible {
		w.b = append(w.b, 0)
	}
}

// tag begins a tagged field of a size that is known.
func (w *writer) tag(tag, size int) {
	w.b = appendUvarint(w.b, uint32(tag))
	w.b = appendUvarint(w.b, uint32(size))
}

// sizedTag appends a tagged field whose size is only known once it is written.
func (w *writer) sizedTag(tag int, write func()) {
	w.b = appendUvarint(w.b, uint32(tag))
	at := len(w.b)
	write()
	var size [5]byte
	w.b = slices.Insert(w.b, at, appendUvarint(size[:0], uint32(len(w.b)-at))...)
}

// NodeEndpoint is where a leader that a response names can be reached (KIP-951).
type NodeEndpoint struct {
	NodeID int32
	Host   string
	Port   int32
	Rack   *string
}

func (w *writer) nodeEndpoints(tag int, nodes []NodeEndpoint) {
	w.sizedTag(tag, func() {
		w.array(len(nodes))
		for i := range nodes {
			n := &nodes[i]
			w.int32(n.NodeID)
			w.string(n.Host)
			w.int32(n.Port)
			w.nullableString(n.Rack)
			w.noTags()
		}
	})
}

// LeaderAndEpoch names the leader of a partition in a response.
type LeaderAndEpoch struct {
	LeaderID    int32
	LeaderEpoch int32
}

func (w *writer) currentLeader(tag int, l *LeaderAndEpoch) {
	w.tag(tag, 9)
	w.int32(l.LeaderID)
	w.int32(l.LeaderEpoch)
	w.noTags()
}
