package record

import (
	"encoding/binary"
	"hash/crc32"
	"io"
)

// Offsets of the fields of a magic 0 or 1 message, offset and size counted in.
const (
	legacyCRC        = 12
	legacyAttributes = 17
	legacyTimestamp  = 18 // magic 1
	legacyFieldsV0   = 18
	legacyFieldsV1   = 26
	minLegacySizeV1  = 22
)

// Legacy is one message of magic 0 or 1 viewed in place: offset, size, CRC, magic, attributes, timestamp (magic 1), key, value.
// The value of a compressed message is a run of messages. Accessors expect what Check accepts.
type Legacy []byte

func (l Legacy) Offset() int64 { return int64(binary.BigEndian.Uint64(l)) }
func (l Legacy) Size() int {
	return LogOverhead + int(int32(binary.BigEndian.Uint32(l[offBatchLength:])))
}
func (l Legacy) Magic() int8        { return int8(l[offMagic]) }
func (l Legacy) CRC() uint32        { return binary.BigEndian.Uint32(l[legacyCRC:]) }
func (l Legacy) Attributes() int8   { return int8(l[legacyAttributes]) }
func (l Legacy) Codec() Codec       { return Codec(l[legacyAttributes] & attrCodecMask) }
func (l Legacy) ComputeCRC() uint32 { return crc32.ChecksumIEEE(l[offMagic:]) }

// IsLogAppendTime says whether the broker set the timestamp (magic 1).
func (l Legacy) IsLogAppendTime() bool {
	return l.Magic() == 1 && l[legacyAttributes]&attrLogAppendTime != 0
}

// Timestamp is the message's, of a compressed one the largest inside; NoTimestamp in magic 0.
func (l Legacy) Timestamp() int64 {
	if l.Magic() == 0 || len(l) < legacyFieldsV1 {
		return NoTimestamp
	}
	return int64(binary.BigEndian.Uint64(l[legacyTimestamp:]))
}

// Check verifies size and CRC.
func (l Legacy) Check() error {
	least := LogOverhead + minLegacySize
	if l.Magic() == 1 {
		least = LogOverhead + minLegacySizeV1
	}
	if len(l) < least || l.Size() != len(l) {
		return errf(ErrCorrupt, "record of %d bytes at offset %d is smaller than its format's overhead %d", len(l), l.Offset(), least)
	}
	if crc := l.ComputeCRC(); crc != l.CRC() {
		return errf(ErrCorrupt, "stored crc %d, computed crc %d, offset %d", l.CRC(), crc, l.Offset())
	}
	return nil
}

// fields splits key and value.
func (l Legacy) fields() (key, value []byte, err *Error) {
	i := legacyFieldsV0
	if l.Magic() == 1 {
		i = legacyFieldsV1
	}
	key, i = legacyField(l, i)
	value, i = legacyField(l, i)
	if i < 0 {
		return nil, nil, errf(ErrInvalid, "message at offset %d: key or value longer than the message", l.Offset())
	}
	return key, value, nil
}

func legacyField(b []byte, i int) ([]byte, int) {
	if i < 0 || len(b)-i < 4 {
		return nil, -1
	}
	n := int(int32(binary.BigEndian.Uint32(b[i:])))
	i += 4
	switch {
	case n < 0:
		return nil, i
	case n > len(b)-i:
		return nil, -1
	}
	return b[i : i+n : i+n], i + n
}

// LegacyRecord is a record of magic 0 or 1 and what only such have.
type LegacyRecord struct {
	Record
	Magic int8
	// CRC is the message's own, which covers its relative offset's message, not the offset.
	CRC uint32
	// Message is the message as it stands in the set; its offset is relative inside a compressed magic 1 message.
	Message Legacy
}

// LegacyIterator walks a message: itself, or those compressed in it.
type LegacyIterator struct {
	wrapper Legacy
	inner   []byte
	buf     []byte
	single  bool
	base    int64 // what to add to inner offsets
	rec     LegacyRecord
	err     *Error
}

// Records starts an iteration. Compressed messages are decompressed as a whole, because the offsets of magic 1 are relative to
// the last one inside.
func (l Legacy) Records(d *Decompressor) LegacyIterator {
	it := LegacyIterator{wrapper: l}
	if len(l) < legacyFieldsV0 || l.Magic() == 1 && len(l) < legacyFieldsV1 {
		it.err = errf(ErrCorrupt, "message of %d bytes", len(l))
		return it
	}
	if l.Codec() == None {
		it.single = true
		return it
	}
	if l.Codec() > LZ4 {
		it.err = errf(ErrInvalid, "compression type %v in a message of magic %d", l.Codec(), l.Magic())
		return it
	}
	_, value, err := l.fields()
	if err != nil {
		it.err = err
		return it
	}
	if value == nil {
		it.err = errf(ErrInvalid, "compressed message at offset %d has no value", l.Offset())
		return it
	}
	if d == nil {
		it.err = errf(ErrDecompress, "%s message where none was expected", l.Codec())
		return it
	}
	dec := d.get()
	defer d.put(dec)
	it.inner, it.err = dec.all(l.Codec(), value, l.Magic())
	if it.err != nil {
		return it
	}
	it.buf = it.inner
	it.base, it.err = legacyBase(l, it.inner)
	return it
}

// all decompresses everything into fresh memory.
func (c *decoder) all(codec Codec, src []byte, magic int8) ([]byte, *Error) {
	if err := c.reset(codec, src, magic); err != nil {
		return nil, asError(err)
	}
	var out []byte
	for {
		chunk, err := c.next()
		out = append(out, chunk...)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, asError(err)
		}
	}
}

// legacyBase finds what must be added to the inner offsets, and checks that there are messages inside.
func legacyBase(l Legacy, inner []byte) (int64, *Error) {
	last, n := int64(0), 0
	for rest := inner; ; n++ {
		if len(rest) < LogOverhead {
			break
		}
		size, err := legacySize(rest)
		if err != nil {
			return 0, err
		}
		if len(rest) < size {
			break
		}
		last = Entry(rest).Offset()
		rest = rest[size:]
	}
	if n == 0 {
		return 0, errf(ErrInvalid, "compressed message at offset %d has no inner messages", l.Offset())
	}
	if l.Magic() == 0 || l.Offset() == 0 {
		// Magic 0 has absolute offsets inside. Some producers left 0 outside, and then the inner ones hold.
		return 0, nil
	}
	if l.Offset() < last {
		return 0, errf(ErrInvalid, "compressed message at offset %d has an inner offset %d beyond it", l.Offset(), last)
	}
	return l.Offset() - last, nil
}

func legacySize(b []byte) (int, *Error) {
	size := int(int32(binary.BigEndian.Uint32(b[offBatchLength:])))
	if size < minLegacySize {
		return 0, errf(ErrCorrupt, "record size %d is less than the minimum record overhead (%d)", size, minLegacySize)
	}
	return size + LogOverhead, nil
}

// Next steps to the next record; false at the end and at the first fault.
func (it *LegacyIterator) Next() bool {
	if it.err != nil {
		return false
	}
	if it.single {
		it.single = false
		return it.set(it.wrapper, 0)
	}
	if len(it.inner) < LogOverhead {
		return false
	}
	size, err := legacySize(it.inner)
	if err != nil {
		it.err = err
		return false
	}
	if len(it.inner) < size {
		return false
	}
	m := Legacy(it.inner[:size:size])
	it.inner = it.inner[size:]
	switch {
	case m.Magic() != 0 && m.Magic() != 1 || m.Magic() == 1 && size < LogOverhead+minLegacySizeV1:
		it.err = errf(ErrInvalid, "inner message of magic %d and %d bytes", m.Magic(), size)
	case m.Codec() != None:
		it.err = errf(ErrInvalid, "inner messages must not be compressed")
	default:
		return it.set(m, it.base)
	}
	return false
}

func (it *LegacyIterator) set(m Legacy, base int64) bool {
	key, value, err := m.fields()
	if err != nil {
		it.err = err
		return false
	}
	it.rec = LegacyRecord{
		Record: Record{
			Offset: m.Offset() + base, Timestamp: m.Timestamp(), Key: key, Value: value,
			Sequence: NoSequence, Size: len(m), Attributes: m.Attributes(),
		},
		Magic: m.Magic(), CRC: m.CRC(), Message: m,
	}
	if m.Magic() == 1 && it.wrapper.IsLogAppendTime() {
		it.rec.Timestamp = it.wrapper.Timestamp()
	}
	return true
}

// Record is the record that Next stepped to; its slices are good as long as the iterator and the message.
func (it *LegacyIterator) Record() LegacyRecord { return it.rec }

// Err is what ended the iteration early, or nil.
func (it *LegacyIterator) Err() error {
	if it.err == nil {
		return nil
	}
	return it.err
}

// AppendLegacy appends an uncompressed message: what the cleaner leaves of a compressed one whose inner messages do not all
// stay. Offsets are absolute there.
func AppendLegacy(dst []byte, r LegacyRecord, logAppendTime bool) []byte {
	start := len(dst)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.Offset))
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0, byte(r.Magic), 0)
	if r.Magic == 1 {
		if logAppendTime {
			dst[len(dst)-1] = attrLogAppendTime
		}
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.Timestamp))
	}
	dst = appendLegacyField(dst, r.Key)
	dst = appendLegacyField(dst, r.Value)
	m := dst[start:]
	binary.BigEndian.PutUint32(m[offBatchLength:], uint32(len(m)-LogOverhead))
	binary.BigEndian.PutUint32(m[legacyCRC:], Legacy(m).ComputeCRC())
	return dst
}

func appendLegacyField(dst, b []byte) []byte {
	if b == nil {
		return binary.BigEndian.AppendUint32(dst, 1<<32-1)
	}
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(b))), b...)
}
