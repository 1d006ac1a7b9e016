package record

import (
	"encoding/binary"
	"fmt"
	"math"
)

// BuilderOptions say what a batch is to be. The zero value with NoProducer set makes a plain uncompressed one.
type BuilderOptions struct {
	BaseOffset    int64
	LeaderEpoch   int32 // -1 is unknown
	Codec         Codec
	Level         int // on Kafka's scale; 0 is DefaultLevel
	Compressor    *Compressor
	TimestampType TimestampType
	// AppendTime is every record's timestamp if TimestampType is LogAppendTime.
	AppendTime    int64
	ProducerID    int64
	ProducerEpoch int16
	BaseSequence  int32
	Transactional bool
	Control       bool
	// DeleteHorizon, if not 0, is the time after which the cleaner may drop the batch's tombstones or markers.
	DeleteHorizon int64
}

// NoProducer sets the producer fields of the options to "none" and returns them.
func (o BuilderOptions) NoProducer() BuilderOptions {
	o.ProducerID, o.ProducerEpoch, o.BaseSequence = NoProducerID, NoProducerEpoch, NoSequence
	return o
}

// Builder makes a batch. It holds the records uncompressed until Build. It can be used again after Reset; it is not safe for
// concurrent use.
type Builder struct {
	o             BuilderOptions
	buf           []byte // header room, then records
	out           []byte // the compressed batch
	count         int32
	baseTimestamp int64
	maxTimestamp  int64
	lastOffset    int64
}

// NewBuilder starts a batch.
func NewBuilder(o BuilderOptions) *Builder {
	b := &Builder{}
	b.Reset(o)
	return b
}

// Reset starts another batch in the same memory: the batch built before is overwritten.
func (b *Builder) Reset(o BuilderOptions) {
	if o.Level == 0 {
		o.Level = DefaultLevel
	}
	if o.Codec != None && o.Compressor == nil {
		o.Compressor = b.o.Compressor
		if o.Compressor == nil {
			o.Compressor = NewCompressor()
		}
	}
	if b.buf == nil {
		b.buf = make([]byte, HeaderSize, 512)
	}
	*b = Builder{o: o, buf: b.buf[:HeaderSize], out: b.out, maxTimestamp: NoTimestamp, lastOffset: o.BaseOffset - 1}
	if o.DeleteHorizon != 0 {
		b.baseTimestamp = o.DeleteHorizon
	}
}

// Grow makes room for a batch of n bytes before compression.
func (b *Builder) Grow(n int) {
	if cap(b.buf) < n {
		b.buf = append(make([]byte, 0, n), b.buf...)
	}
}

// Append adds a record at the next offset. A nil key or value is null.
func (b *Builder) Append(ts int64, key, value []byte, headers []Header) {
	b.AppendAt(b.lastOffset+1, ts, key, value, headers)
}

// AppendAt adds a record at an offset beyond the last one.
func (b *Builder) AppendAt(offset, ts int64, key, value []byte, headers []Header) {
	if b.o.TimestampType == LogAppendTime {
		ts = b.o.AppendTime
	}
	if b.count == 0 && b.o.DeleteHorizon == 0 {
		b.baseTimestamp = ts
	}
	b.buf = appendRecord(b.buf, ts-b.baseTimestamp, offset-b.o.BaseOffset, key, value, headers)
	b.maxTimestamp = max(b.maxTimestamp, ts)
	b.lastOffset = offset
	b.count++
}

// SetProducer sets the producer fields after the fact: a client knows the sequence only when it sends.
func (b *Builder) SetProducer(id int64, epoch int16, baseSequence int32) {
	b.o.ProducerID, b.o.ProducerEpoch, b.o.BaseSequence = id, epoch, baseSequence
}

// Count is how many records were appended.
func (b *Builder) Count() int { return int(b.count) }

// Len is the size of the batch so far, before compression.
func (b *Builder) Len() int { return len(b.buf) }

// SizeWith is what Len would be after appending this record, exactly.
func (b *Builder) SizeWith(ts int64, key, value []byte, headers []Header) int {
	base := b.baseTimestamp
	if b.count == 0 && b.o.DeleteHorizon == 0 {
		base = ts
	}
	n := bodySize(ts-base, b.lastOffset+1-b.o.BaseOffset, key, value, headers)
	return len(b.buf) + VarintSize(int64(n)) + n
}

// SetLastOffset makes the batch span the offsets up to last although the last record comes earlier: compaction must keep the
// last offset and with it the last sequence.
func (b *Builder) SetLastOffset(last int64) { b.lastOffset = last }

// Build finishes the batch, which aliases the builder's memory until Reset. It fails only if compression does (a wrong level or
// codec) or the batch exceeds 2 GiB. A builder without records gives an empty batch.
func (b *Builder) Build() (Batch, error) {
	batch := Batch(b.buf)
	if b.o.Codec != None && b.count > 0 {
		if cap(b.out) < HeaderSize {
			b.out = make([]byte, HeaderSize, HeaderSize+len(b.buf)/2)
		}
		out, err := b.o.Compressor.Compress(b.out[:HeaderSize], b.o.Codec, b.o.Level, b.buf[HeaderSize:])
		if err != nil {
			return nil, fmt.Errorf("build batch at offset %d: %w", b.o.BaseOffset, err)
		}
		b.out, batch = out, Batch(out)
	}
	if int64(len(batch)) > math.MaxInt32 {
		return nil, fmt.Errorf("build batch at offset %d: %d bytes do not fit a batch", b.o.BaseOffset, len(batch))
	}
	base, maxTS := b.baseTimestamp, b.maxTimestamp
	if b.count == 0 {
		if b.o.DeleteHorizon == 0 {
			base = NoTimestamp
		}
		b.lastOffset = max(b.lastOffset, b.o.BaseOffset)
	}
	if b.o.TimestampType == LogAppendTime {
		maxTS = b.o.AppendTime
	}
	putHeader(batch, &b.o, int32(b.lastOffset-b.o.BaseOffset), base, maxTS, b.count)
	return batch, nil
}

// putHeader writes the header over the first bytes of batch, CRC last.
func putHeader(batch Batch, o *BuilderOptions, lastDelta int32, baseTS, maxTS int64, count int32) {
	be := binary.BigEndian
	be.PutUint64(batch[offBaseOffset:], uint64(o.BaseOffset))
	be.PutUint32(batch[offBatchLength:], uint32(len(batch)-LogOverhead))
	be.PutUint32(batch[offPartitionLeaderEpoch:], uint32(o.LeaderEpoch))
	batch[offMagic] = 2
	var attributes uint16
	if count > 0 {
		attributes = uint16(o.Codec)
	}
	if o.TimestampType == LogAppendTime {
		attributes |= attrLogAppendTime
	}
	if o.Transactional {
		attributes |= attrTransactional
	}
	if o.Control {
		attributes |= attrControl
	}
	if o.DeleteHorizon != 0 {
		attributes |= attrDeleteHorizon
	}
	be.PutUint16(batch[offAttributes:], attributes)
	be.PutUint32(batch[offLastOffsetDelta:], uint32(lastDelta))
	be.PutUint64(batch[offBaseTimestamp:], uint64(baseTS))
	be.PutUint64(batch[offMaxTimestamp:], uint64(maxTS))
	be.PutUint64(batch[offProducerID:], uint64(o.ProducerID))
	be.PutUint16(batch[offProducerEpoch:], uint16(o.ProducerEpoch))
	be.PutUint32(batch[offBaseSequence:], uint32(o.BaseSequence))
	be.PutUint32(batch[offRecordCount:], uint32(count))
	be.PutUint32(batch[offCRC:], batch.ComputeCRC())
}

// AppendEmpty appends the empty batch that compaction leaves of b: its offsets, producer and flags without its records.
func AppendEmpty(dst []byte, b Batch) []byte {
	o := optionsOf(b)
	o.Codec, o.DeleteHorizon = None, 0
	start := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	putHeader(Batch(dst[start:]), &o, b.LastOffsetDelta(), NoTimestamp, b.MaxTimestamp(), 0)
	return dst
}

// optionsOf are the options that would make a batch like b.
func optionsOf(b Batch) BuilderOptions {
	o := BuilderOptions{
		BaseOffset: b.BaseOffset(), LeaderEpoch: b.PartitionLeaderEpoch(), Codec: b.Codec(),
		ProducerID: b.ProducerID(), ProducerEpoch: b.ProducerEpoch(), BaseSequence: b.BaseSequence(),
		Transactional: b.IsTransactional(), Control: b.IsControl(),
	}
	if b.IsLogAppendTime() {
		o.TimestampType, o.AppendTime = LogAppendTime, b.MaxTimestamp()
	}
	if b.HasDeleteHorizon() {
		o.DeleteHorizon = b.BaseTimestamp()
	}
	return o
}
