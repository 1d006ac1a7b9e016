package record

import "encoding/binary"

const (
	// minLegacySize is the least that the size field of any format may say: an empty magic 0 message.
	minLegacySize = 14
	// headerToMagic is how much is needed to know what follows.
	headerToMagic = offMagic + 1
)

// Entry is one batch or message of any format (magic 0, 1, 2) as it stands in a log.
type Entry []byte

func (e Entry) Magic() int8 { return int8(e[offMagic]) }

// Offset is the base offset of a batch, or the offset of a message (the last inner one of a compressed message).
func (e Entry) Offset() int64 { return int64(binary.BigEndian.Uint64(e)) }

// Batch is the entry as a magic 2 batch; only when Magic is 2.
func (e Entry) Batch() Batch { return Batch(e) }

// Legacy is the entry as a magic 0 or 1 message.
func (e Entry) Legacy() Legacy { return Legacy(e) }

// LastOffset is that of a batch or a message.
func (e Entry) LastOffset() int64 {
	if e.Magic() == 2 {
		return Batch(e).LastOffset()
	}
	return e.Offset()
}

// MaxTimestamp is the largest timestamp of the entry, or NoTimestamp in magic 0.
func (e Entry) MaxTimestamp() int64 {
	if e.Magic() == 2 {
		return Batch(e).MaxTimestamp()
	}
	return Legacy(e).Timestamp()
}

// PartitionLeaderEpoch is -1 in magic 0 and 1.
func (e Entry) PartitionLeaderEpoch() int32 {
	if e.Magic() == 2 {
		return Batch(e).PartitionLeaderEpoch()
	}
	return -1
}

// Check verifies size and CRC.
func (e Entry) Check() error {
	if e.Magic() == 2 {
		return Batch(e).Check()
	}
	return Legacy(e).Check()
}

// EntrySize is the whole size of the entry at the start of buf, which needs only to hold the first 17 bytes. The errors are
// those of NextEntry.
func EntrySize(buf []byte) (int, error) {
	if len(buf) < LogOverhead {
		return 0, errf(ErrTruncated, "%d bytes left of a batch header", len(buf))
	}
	size := int(int32(binary.BigEndian.Uint32(buf[offBatchLength:])))
	if size < minLegacySize {
		return 0, errf(ErrCorrupt, "record size %d is less than the minimum record overhead (%d)", size, minLegacySize)
	}
	if len(buf) < headerToMagic {
		return 0, errf(ErrTruncated, "%d bytes left of a batch header", len(buf))
	}
	if m := int8(buf[offMagic]); m < 0 || m > 2 {
		return 0, errf(ErrCorrupt, "invalid magic found in record: %d", m)
	}
	return size + LogOverhead, nil
}

// NextEntry cuts the next batch or message of any format off buf. The error is ErrTruncated when buf ends before it does, and
// ErrCorrupt for an impossible size or magic; the CRC is not looked at. At the end of buf the entry is nil without an error.
func NextEntry(buf []byte) (e Entry, rest []byte, err error) {
	if len(buf) == 0 {
		return nil, nil, nil
	}
	n, err := EntrySize(buf)
	if err != nil {
		return nil, buf, err
	}
	if len(buf) < n {
		return nil, buf, errf(ErrTruncated, "%d bytes left of a batch of %d", len(buf), n)
	}
	if buf[offMagic] == 2 && n < HeaderSize {
		return nil, buf, errf(ErrCorrupt, "batch size %d is smaller than the minimum allowed overhead %d", n, HeaderSize)
	}
	return Entry(buf[:n:n]), buf[n:], nil
}

// Next cuts the next magic 2 batch off buf: NextEntry where older formats cannot occur and so are ErrCorrupt.
func Next(buf []byte) (b Batch, rest []byte, err error) {
	e, rest, err := NextEntry(buf)
	if err != nil || e == nil {
		return nil, rest, err
	}
	if e.Magic() != 2 {
		return nil, buf, errf(ErrCorrupt, "magic %d where only 2 can be", e.Magic())
	}
	return Batch(e), rest, nil
}

// Single is what the records of one partition in a produce request must be: exactly one batch of magic 2. Bytes behind it that
// do not amount to another batch are ignored, as Kafka does. version is that of the request, for the message.
func Single(buf []byte, version int16) (Batch, error) {
	e, rest, err := NextEntry(buf)
	if e == nil && (err == nil || errorKind(err) == ErrTruncated) {
		return nil, errf(ErrInvalid, "Produce requests with version %d must have at least one record batch per partition", version)
	}
	if err != nil {
		return nil, err
	}
	if e.Magic() != 2 {
		return nil, errf(ErrInvalid, "Produce requests with version %d are only allowed to contain record batches with magic version 2", version)
	}
	second, _, err := NextEntry(rest)
	if err != nil && errorKind(err) != ErrTruncated {
		return nil, err
	}
	if second != nil {
		return nil, errf(ErrInvalid, "Produce requests with version %d are only allowed to contain exactly one record batch per partition", version)
	}
	return Batch(e), nil
}

func errorKind(err error) error {
	if e, ok := err.(*Error); ok {
		return e.Kind
	}
	return nil
}

// Check verifies that the batch is at least as long as its header, as long as it says, and that its CRC fits.
func (b Batch) Check() error {
	if len(b) < HeaderSize || b.Size() < HeaderSize || b.Size() > len(b) {
		return errf(ErrCorrupt, "batch of %d bytes says it has %d", len(b), b.Size())
	}
	if crc := b.ComputeCRC(); crc != b.CRC() {
		return errf(ErrCorrupt, "stored crc %d, computed crc %d, base offset %d", b.CRC(), crc, b.BaseOffset())
	}
	return nil
}
