package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"gregor/internal/uuid"
)

// maxStringBytes is the longest string of any message: Kafka's length is an int16, and holds for the compact form too.
const maxStringBytes = math.MaxInt16

var (
	// ErrTruncated is returned (wrapped) when the bytes end inside a message.
	ErrTruncated = errors.New("message: bytes end inside the message")
	// ErrInvalid is returned (wrapped) when bytes can't be a message: a null where none may be, an impossible length.
	ErrInvalid = errors.New("message: invalid bytes")
	// ErrUnsupportedVersion is returned (wrapped) for a version that a message doesn't have, and when a message can't be
	// written in a version because that version has no place for a field that is set.
	ErrUnsupportedVersion = errors.New("message: unsupported version")
)

func versionError(name string, version int16) error {
	return fmt.Errorf("%w: %s has no version %d", ErrUnsupportedVersion, name, version)
}

// Tag is a tagged field that this code doesn't know.
type Tag struct {
	Tag  uint32
	Data []byte
}

// writer appends the parts of a message. The first error stays.
type writer struct {
	b   []byte
	err error
}

func (w *writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *writer) absent(field string, version int16) {
	w.fail(fmt.Errorf("%w: version %d has no %s, which is set", ErrUnsupportedVersion, version, field))
}

func (w *writer) null(field string) {
	w.fail(fmt.Errorf("%w: %s may not be null", ErrInvalid, field))
}

func (w *writer) bool(v bool) {
	if v {
		w.b = append(w.b, 1)
	} else {
		w.b = append(w.b, 0)
	}
}

func (w *writer) int8(v int8)       { w.b = append(w.b, byte(v)) }
func (w *writer) int16(v int16)     { w.b = binary.BigEndian.AppendUint16(w.b, uint16(v)) }
func (w *writer) uint16(v uint16)   { w.b = binary.BigEndian.AppendUint16(w.b, v) }
func (w *writer) int32(v int32)     { w.b = binary.BigEndian.AppendUint32(w.b, uint32(v)) }
func (w *writer) uint32(v uint32)   { w.b = binary.BigEndian.AppendUint32(w.b, v) }
func (w *writer) int64(v int64)     { w.b = binary.BigEndian.AppendUint64(w.b, uint64(v)) }
func (w *writer) float64(v float64) { w.b = binary.BigEndian.AppendUint64(w.b, math.Float64bits(v)) }
func (w *writer) uuid(v uuid.UUID)  { w.b = append(w.b, v[:]...) }
func (w *writer) bytes(v []byte)    { w.b = append(w.b, v...) }
func (w *writer) uvarint(v int)     { w.b = binary.AppendUvarint(w.b, uint64(v)) }

func (w *writer) string(flex bool, s, field string) {
	if len(s) > maxStringBytes {
		w.fail(fmt.Errorf("%w: %s has %d bytes, at most %d fit", ErrInvalid, field, len(s), maxStringBytes))
		return
	}
	if flex {
		w.uvarint(len(s) + 1)
	} else {
		w.int16(int16(len(s)))
	}
	w.b = append(w.b, s...)
}

func (w *writer) nullString(flex bool, s *string, nullable bool, field string) {
	switch {
	case s != nil:
		w.string(flex, *s, field)
	case !nullable:
		w.null(field)
	case flex:
		w.uvarint(0)
	default:
		w.int16(-1)
	}
}

func (w *writer) count(flex bool, n int) {
	switch {
	case n >= math.MaxInt32:
		w.fail(fmt.Errorf("%w: %d elements", ErrInvalid, n))
	case flex:
		w.uvarint(n + 1)
	default:
		w.int32(int32(n))
	}
}

func (w *writer) nullCount(flex bool, n int, null, nullable bool, field string) {
	switch {
	case !null:
		w.count(flex, n)
	case !nullable:
		w.null(field)
	case flex:
		w.uvarint(0)
	default:
		w.int32(-1)
	}
}

// present writes the marker before a struct that may be null and says whether the struct follows.
func (w *writer) present(tagged, there, nullable bool, field string) bool {
	switch {
	case there:
		w.b = append(w.b, 1) // int8 1 and uvarint 1 are the same byte
	case !nullable:
		w.null(field)
	case tagged:
		w.b = append(w.b, 0)
	default:
		w.int8(-1)
	}
	return there
}

// tagsBelow writes the unknown tags that come before the known one and returns the others.
func (w *writer) tagsBelow(tags []Tag, known uint32) []Tag {
	n := 0
	for n < len(tags) && tags[n].Tag < known {
		n++
	}
	w.tags(tags[:n])
	if n < len(tags) && tags[n].Tag == known {
		w.fail(fmt.Errorf("%w: tag %d is set as an unknown one too", ErrInvalid, known))
	}
	return tags[n:]
}

func (w *writer) tags(tags []Tag) {
	for i, t := range tags {
		if i > 0 && tags[i-1].Tag >= t.Tag {
			w.fail(fmt.Errorf("%w: unknown tag %d comes after %d", ErrInvalid, t.Tag, tags[i-1].Tag))
		}
		w.b = binary.AppendUvarint(w.b, uint64(t.Tag))
		w.uvarint(len(t.Data))
		w.b = append(w.b, t.Data...)
	}
}

func sizeUvarint(n int) int {
	s := 1
	for n >= 0x80 {
		n >>= 7
		s++
	}
	return s
}

func sizeTags(tags []Tag) int {
	n := 0
	for _, t := range tags {
		n += sizeUvarint(int(t.Tag)) + sizeUvarint(len(t.Data)) + len(t.Data)
	}
	return n
}

func sizeString(flex bool, n int) int {
	if flex {
		return sizeUvarint(n+1) + n
	}
	return 2 + n
}

func sizeNullString(flex bool, s *string) int {
	switch {
	case s != nil:
		return sizeString(flex, len(*s))
	case flex:
		return 1
	}
	return 2
}

func sizeCount(flex bool, n int, null bool) int {
	switch {
	case !flex:
		return 4
	case null:
		return 1
	}
	return sizeUvarint(n + 1)
}

// reader takes the parts of a message off the front of b. After the first error everything it returns is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

// take returns the next n bytes, which alias the input, or nil.
func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.fail(fmt.Errorf("%w: %d bytes wanted, %d left", ErrTruncated, n, len(r.b)))
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) bool() bool { return r.int8() != 0 }

func (r *reader) int8() int8 {
	if b := r.take(1); b != nil {
		return int8(b[0])
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) int16() int16     { return int16(r.uint16()) }
func (r *reader) int32() int32     { return int32(r.uint32()) }
func (r *reader) int64() int64     { return int64(r.uint64()) }
func (r *reader) float64() float64 { return math.Float64frombits(r.uint64()) }

func (r *reader) uuid() uuid.UUID {
	if b := r.take(16); b != nil {
		return uuid.UUID(b)
	}
	return uuid.Zero
}

// uvarint reads an unsigned varint of at most 32 bits, Kafka's limit.
func (r *reader) uvarint() uint32 {
	v, n := binary.Uvarint(r.b[:min(len(r.b), 5)])
	switch {
	case r.err != nil:
		return 0
	case n == 0 && len(r.b) < 5:
		r.fail(fmt.Errorf("%w: in a varint", ErrTruncated))
		return 0
	case n <= 0 || v > math.MaxUint32:
		r.fail(fmt.Errorf("%w: varint of more than 32 bits", ErrInvalid))
		return 0
	}
	r.b = r.b[n:]
	return uint32(v)
}

// length reads the length of a string (width 2) or of anything else (width 4); -1 stands for null.
func (r *reader) length(flex bool, width int, nullable bool, field string) int {
	var n int
	switch {
	case flex:
		n = int(r.uvarint()) - 1
	case width == 2:
		n = int(r.int16())
	default:
		n = int(r.int32())
	}
	if r.err != nil {
		return 0
	}
	if n < 0 {
		if !nullable {
			r.fail(fmt.Errorf("%w: null for %s", ErrInvalid, field))
			return 0
		}
		return -1
	}
	if width == 2 && n > maxStringBytes {
		r.fail(fmt.Errorf("%w: %s claims %d bytes", ErrInvalid, field, n))
		return 0
	}
	return n
}

func (r *reader) string(flex bool, field string) string {
	return string(r.take(r.length(flex, 2, false, field)))
}

func (r *reader) nullString(flex, nullable bool, field string) *string {
	n := r.length(flex, 2, nullable, field)
	if n < 0 {
		return nil
	}
	s := string(r.take(n))
	return &s
}

// bytes reads a copy; null is nil, and empty bytes are not nil where null is legal.
func (r *reader) bytes(flex, nullable bool, field string) []byte {
	n := r.length(flex, 4, nullable, field)
	b := r.take(max(n, 0))
	if n < 0 || b == nil || len(b) == 0 && !nullable {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

// count reads the number of elements of an array. It refuses more than the bytes left can hold, each of at least minSize
// bytes, before anyone allocates for them.
func (r *reader) count(flex, nullable bool, minSize int, field string) (n int, null bool) {
	n = r.length(flex, 4, nullable, field)
	if n < 0 {
		return 0, true
	}
	if n > len(r.b)/minSize {
		r.fail(fmt.Errorf("%w: %s claims %d elements, %d bytes are left", ErrTruncated, field, n, len(r.b)))
		return 0, false
	}
	return n, false
}

// present reads the marker before a struct that may be null.
func (r *reader) present(tagged, nullable bool, field string) bool {
	var there bool
	if tagged {
		there = r.uvarint() > 0
	} else {
		there = r.int8() >= 0
	}
	if !there && !nullable {
		r.fail(fmt.Errorf("%w: null for %s", ErrInvalid, field))
	}
	return there && r.err == nil
}

// tag reads the head of a tagged field and returns a reader for its bytes.
func (r *reader) tag() (uint32, reader) {
	tag := r.uvarint()
	size := r.uvarint()
	if int64(size) > int64(len(r.b)) {
		r.fail(fmt.Errorf("%w: tag %d claims %d bytes, %d are left", ErrTruncated, tag, size, len(r.b)))
	}
	if r.err != nil {
		return tag, reader{err: r.err}
	}
	return tag, reader{b: r.take(int(size))}
}

// endTag checks that the tagged field was read to its end.
func (r *reader) endTag(t *reader, tag uint32) {
	if t.err == nil && len(t.b) != 0 {
		t.err = fmt.Errorf("%w: %d bytes left over", ErrInvalid, len(t.b))
	}
	if t.err != nil {
		r.fail(fmt.Errorf("tag %d: %w", tag, t.err))
	}
}

// unknown is the tagged field that t holds, copied.
func (t *reader) unknown(tag uint32) Tag {
	return Tag{Tag: tag, Data: append([]byte{}, t.b...)}
}

// tags reads a tag section of a struct that has no known tags.
func (r *reader) tags() []Tag {
	var tags []Tag
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		tag, t := r.tag()
		if t.err != nil {
			break
		}
		tags = append(tags, t.unknown(tag))
	}
	return tags
}
