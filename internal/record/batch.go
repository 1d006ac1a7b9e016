package record

import (
	"encoding/binary"
	"hash/crc32"
)

// Offsets of the fields of a batch v2 header, in bytes from its start.
const (
	offBaseOffset           = 0
	offBatchLength          = 8
	offPartitionLeaderEpoch = 12
	offMagic                = 16
	offCRC                  = 17
	offAttributes           = 21
	offLastOffsetDelta      = 23
	offBaseTimestamp        = 27
	offMaxTimestamp         = 35
	offProducerID           = 43
	offProducerEpoch        = 51
	offBaseSequence         = 53
	offRecordCount          = 57

	// HeaderSize is the size of a batch v2 header; an empty batch is just that.
	HeaderSize = 61
	// LogOverhead is what stands before the bytes that the batch length counts: base offset and the length itself.
	LogOverhead = 12
)

// Attribute bits of a batch v2.
const (
	attrCodecMask     = 0x07
	attrLogAppendTime = 1 << 3
	attrTransactional = 1 << 4
	attrControl       = 1 << 5
	attrDeleteHorizon = 1 << 6
)

// No producer: what the producer fields of a batch hold when it has none.
const (
	NoProducerID    int64 = -1
	NoProducerEpoch int16 = -1
	NoSequence      int32 = -1
	// NoTimestamp is the timestamp of records that have none (magic 0).
	NoTimestamp int64 = -1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Batch is one encoded record batch of magic 2, header and records, viewed in place. It has at least HeaderSize bytes; use
// Next to cut batches off a buffer. Accessors neither copy nor check; the Set methods patch the bytes that it views.
type Batch []byte

func (b Batch) BaseOffset() int64 { return int64(binary.BigEndian.Uint64(b[offBaseOffset:])) }

// SetBaseOffset patches the base offset, which the CRC does not cover.
func (b Batch) SetBaseOffset(v int64) { binary.BigEndian.PutUint64(b[offBaseOffset:], uint64(v)) }

// Size is the whole batch's length in bytes, as its length field says.
func (b Batch) Size() int {
	return LogOverhead + int(int32(binary.BigEndian.Uint32(b[offBatchLength:])))
}

func (b Batch) PartitionLeaderEpoch() int32 {
	return int32(binary.BigEndian.Uint32(b[offPartitionLeaderEpoch:]))
}

// SetPartitionLeaderEpoch patches the leader epoch, which the CRC does not cover.
func (b Batch) SetPartitionLeaderEpoch(v int32) {
	binary.BigEndian.PutUint32(b[offPartitionLeaderEpoch:], uint32(v))
}

func (b Batch) Magic() int8            { return int8(b[offMagic]) }
func (b Batch) CRC() uint32            { return binary.BigEndian.Uint32(b[offCRC:]) }
func (b Batch) Attributes() int16      { return int16(binary.BigEndian.Uint16(b[offAttributes:])) }
func (b Batch) Codec() Codec           { return Codec(b.Attributes() & attrCodecMask) }
func (b Batch) IsLogAppendTime() bool  { return b.Attributes()&attrLogAppendTime != 0 }
func (b Batch) IsTransactional() bool  { return b.Attributes()&attrTransactional != 0 }
func (b Batch) IsControl() bool        { return b.Attributes()&attrControl != 0 }
func (b Batch) HasDeleteHorizon() bool { return b.Attributes()&attrDeleteHorizon != 0 }
func (b Batch) LastOffsetDelta() int32 {
	return int32(binary.BigEndian.Uint32(b[offLastOffsetDelta:]))
}

// LastOffset is the offset of the last record, or of the last one there was before compaction.
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) }

// NextOffset is LastOffset + 1.
func (b Batch) NextOffset() int64 { return b.LastOffset() + 1 }

// BaseTimestamp is the base of the records' timestamp deltas in ms, or the delete horizon when HasDeleteHorizon.
func (b Batch) BaseTimestamp() int64 {
	return int64(binary.BigEndian.Uint64(b[offBaseTimestamp:]))
}
func (b Batch) MaxTimestamp() int64  { return int64(binary.BigEndian.Uint64(b[offMaxTimestamp:])) }
func (b Batch) ProducerID() int64    { return int64(binary.BigEndian.Uint64(b[offProducerID:])) }
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[offProducerEpoch:])) }
func (b Batch) BaseSequence() int32  { return int32(binary.BigEndian.Uint32(b[offBaseSequence:])) }

// Count is the record count that the header claims; a compacted batch may hold none.
func (b Batch) Count() int32 { return int32(binary.BigEndian.Uint32(b[offRecordCount:])) }

// HasProducer says whether the batch came from an idempotent or transactional producer.
func (b Batch) HasProducer() bool { return b.ProducerID() > NoProducerID }

// LastSequence is the sequence of the last record; sequences wrap from 2^31-1 to 0.
func (b Batch) LastSequence() int32 {
	if s := b.BaseSequence(); s != NoSequence {
		return IncrementSequence(s, b.LastOffsetDelta())
	}
	return NoSequence
}

// IncrementSequence adds delta to a sequence number, wrapping from 2^31-1 to 0.
func IncrementSequence(seq, delta int32) int32 {
	return int32((int64(seq) + int64(delta)) % (1 << 31))
}

// Payload is what follows the header: the records, compressed as one stream when Codec says so.
func (b Batch) Payload() []byte { return b[HeaderSize:b.Size()] }

// ComputeCRC is the CRC-32C over everything from the attributes to the end.
func (b Batch) ComputeCRC() uint32 { return crc32.Checksum(b[offAttributes:b.Size()], castagnoli) }

// SetMaxTimestamp patches timestamp type and maximum timestamp and with them the CRC: a broker's LogAppendTime.
func (b Batch) SetMaxTimestamp(logAppendTime bool, ts int64) {
	if b.IsLogAppendTime() == logAppendTime && b.MaxTimestamp() == ts {
		return
	}
	a := uint16(b.Attributes()) &^ attrLogAppendTime
	if logAppendTime {
		a |= attrLogAppendTime
	}
	binary.BigEndian.PutUint16(b[offAttributes:], a)
	binary.BigEndian.PutUint64(b[offMaxTimestamp:], uint64(ts))
	binary.BigEndian.PutUint32(b[offCRC:], b.ComputeCRC())
}
