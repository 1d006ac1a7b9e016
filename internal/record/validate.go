package record

import (
	"fmt"
	"math"
	"strings"
)

// DefaultMaxRecordBytes is the default of max.decompressed.message.bytes.
const DefaultMaxRecordBytes = 2147483639

// ValidateOptions are what a broker holds against a produced batch.
type ValidateOptions struct {
	// TopicPartition ("orders-0") appears in the messages.
	TopicPartition string
	// FromClient switches on what is checked only for clients: base offset 0, the count, no control batch, the sequence.
	FromClient bool
	// MaxBatchBytes is max.message.bytes; 0 is no limit.
	MaxBatchBytes int
	// MaxRecordBytes is max.decompressed.message.bytes; 0 is its default.
	MaxRecordBytes int32
	// Compacted: every record needs a key.
	Compacted bool
	// TimestampType is the topic's message.timestamp.type.
	TimestampType TimestampType
	// Now in ms: the time that BeforeMax and AfterMax (ms, message.timestamp.before/after.max.ms) count from, and what
	// LogAppendTime puts in.
	Now       int64
	BeforeMax int64
	AfterMax  int64
	// Target is what the topic's compression.type wants; KeepCodec is "producer".
	Target Codec
	// HeaderOnly leaves compressed records alone, except where that cannot be (compacted topics, another Target): the
	// header's count and maximum timestamp are believed.
	HeaderOnly bool
	// Decompressor is needed for compressed batches.
	Decompressor *Decompressor
}

// KeepCodec as Target leaves the producer's compression as it is.
const KeepCodec Codec = -1

// Validated is what Validate found in a good batch.
type Validated struct {
	// MaxTimestamp is the largest timestamp of the records, or Now with LogAppendTime, or NoTimestamp.
	MaxTimestamp int64
	// Records is their number.
	Records int32
	// Rebuild says that the batch can't be appended with a patched header but must be made anew: its codec isn't the target, or
	// its offset deltas aren't 0, 1, 2….
	Rebuild bool
}

// Validate makes the checks that a Kafka broker makes on a batch to be appended on the leader (its LogValidator and what stands
// before it), in its order. Errors are *Error values. It changes nothing; follow it with Assign, or with Rebuild.
//
// Differs from Kafka: a compressed record whose length prefix doesn't fit its contents is refused (Kafka stores it, and
// consumers stumble over it); offset deltas other than 0, 1, 2… in an uncompressed batch lead to Rebuild, as they do in a
// compressed one (Kafka stores them).
func Validate(b Batch, o *ValidateOptions) (Validated, error) {
	v, err := validate(b, o)
	if err != nil {
		return v, err
	}
	return v, nil
}

func validate(b Batch, o *ValidateOptions) (Validated, *Error) {
	if o.FromClient && b.BaseOffset() != 0 {
		return Validated{}, errf(ErrInvalid, "The baseOffset of the record batch in the append to %s should be 0, but it is %d",
			o.TopicPartition, b.BaseOffset())
	}
	if o.MaxBatchBytes > 0 && len(b) > o.MaxBatchBytes {
		return Validated{}, errf(ErrBatchTooLarge, "The record batch size in the append to %s is %d bytes which exceeds the maximum configured value of %d.",
			o.TopicPartition, len(b), o.MaxBatchBytes)
	}
	if crc := b.ComputeCRC(); crc != b.CRC() {
		return Validated{}, errf(ErrCorrupt, "Record is corrupt (stored crc = %d) in topic partition %s.", b.CRC(), o.TopicPartition)
	}
	if b.Codec() > Zstd {
		return Validated{}, errf(ErrCodec, "Unknown compression type id: %d", b.Codec())
	}
	if err := checkHeader(b, o); err != nil {
		return Validated{}, err
	}
	target := o.Target
	if target == KeepCodec || b.Codec() == None && b.IsControl() {
		// Control records are written as they are.
		target = b.Codec()
	}
	v := Validated{MaxTimestamp: NoTimestamp, Records: b.Count(), Rebuild: target != b.Codec()}
	if o.HeaderOnly && b.Codec() != None && !o.Compacted && !v.Rebuild {
		v.MaxTimestamp = b.MaxTimestamp()
		// One record stands for all: the newest. The oldest is the base timestamp at best, which need not be the smallest.
		if e := o.checkTimestamp(b, b.MaxTimestamp(), b.LastOffset(), nil); e != "" {
			return v, o.refuse([]fault{{RecordError{0, e}, true}})
		}
	} else if err := checkRecords(b, o, &v); err != nil {
		return v, err
	}
	if o.TimestampType == LogAppendTime {
		v.MaxTimestamp = o.Now
	}
	return v, nil
}

func checkHeader(b Batch, o *ValidateOptions) *Error {
	if o.FromClient {
		n := b.LastOffset() - b.BaseOffset() + 1
		switch {
		case n <= 0:
			return errf(ErrInvalid, "Batch has an invalid offset range: [%d, %d] in topic partition %s", b.BaseOffset(), b.LastOffset(), o.TopicPartition)
		case b.Count() <= 0:
			return errf(ErrInvalid, "Invalid reported count for record batch: %d in topic partition %s", b.Count(), o.TopicPartition)
		case n != int64(b.Count()):
			return errf(ErrInvalid, "Inconsistent batch offset range [%d, %d] and count of records %d in topic partition %s",
				b.BaseOffset(), b.LastOffset(), b.Count(), o.TopicPartition)
		case b.IsControl():
			return errf(ErrInvalid, "Clients are not allowed to write control records in topic partition %s", o.TopicPartition)
		case b.HasProducer() && b.BaseSequence() < 0:
			return errf(ErrInvalid, "Invalid sequence number %d in record batch with producerId %d in topic partition %s",
				b.BaseSequence(), b.ProducerID(), o.TopicPartition)
		}
	}
	return nil
}

// fault is a record error and whether it concerns the timestamp.
type fault struct {
	RecordError
	timestamp bool
}

// checkRecords walks the records, decompressing as it goes: a structural fault ends it at once, faults of single records are
// collected.
func checkRecords(b Batch, o *ValidateOptions, v *Validated) *Error {
	limit := o.MaxRecordBytes
	if limit <= 0 {
		limit = DefaultMaxRecordBytes
	}
	var it Iterator
	it.start(b, o.Decompressor)
	defer it.Close()
	if it.err != nil {
		return it.err
	}
	var faults []fault
	for i := range it.left {
		s, err := it.summary(limit)
		if err != nil {
			return err
		}
		if it.left--; it.left == 0 {
			if err := it.end(); err != nil {
				return err
			}
		}
		if s.offsetDelta != i {
			v.Rebuild = true
		}
		ts := it.baseTimestamp + s.tsDelta
		if it.isAppendTime {
			ts = it.appendTime
		}
		if o.Compacted && s.keySize < 0 {
			faults = append(faults, fault{RecordError{i, "Compacted topic cannot accept message without key in topic partition " + o.TopicPartition}, false})
		} else if e := o.checkTimestamp(b, ts, it.baseOffset+int64(s.offsetDelta), &s); e != "" {
			faults = append(faults, fault{RecordError{i, e}, true})
		}
		v.MaxTimestamp = max(v.MaxTimestamp, ts)
	}
	if len(faults) > 0 {
		return o.refuse(faults)
	}
	return nil
}

// checkTimestamp is "" or what is wrong with a record's timestamp. The cases are Kafka's, oddities included: a batch that says
// LogAppendTime is refused only where the record's own time isn't looked at.
func (o *ValidateOptions) checkTimestamp(b Batch, ts, offset int64, s *summary) string {
	if o.TimestampType == CreateTime && ts != NoTimestamp {
		diff := o.Now - ts
		if diff > o.BeforeMax || -diff > o.AfterMax {
			return fmt.Sprintf("Timestamp %d of message with offset %d is out of range. The timestamp should be within [%d, %d]",
				ts, offset, o.Now-o.BeforeMax, o.Now+o.AfterMax)
		}
		return ""
	}
	if b.IsLogAppendTime() {
		kind, key, value := "DefaultRecord", int32(-1), int32(-1)
		if b.Codec() != None {
			kind = "PartialDefaultRecord"
		}
		if s != nil {
			key, value = s.keySize, s.valueSize
		}
		if b.Codec() == None {
			key, value = max(key, 0), max(value, 0) // Java's two classes print null differently
		}
		return fmt.Sprintf("Invalid timestamp type in message %s(offset=%d, timestamp=%d, key=%d bytes, value=%d bytes). Producer should not set timestamp type to LogAppendTime.",
			kind, offset, ts, key, value)
	}
	return ""
}

// refuse turns faults of single records into the error that is answered.
func (o *ValidateOptions) refuse(faults []fault) *Error {
	e := &Error{Kind: ErrInvalid}
	for _, f := range faults {
		if f.timestamp {
			e.Kind = ErrTimestamp
		}
		e.Records = append(e.Records, f.RecordError)
	}
	if e.Kind == ErrTimestamp {
		e.Message = "One or more records have been rejected due to invalid timestamp"
		return e
	}
	var first []string
	for _, r := range e.Records[:min(3, len(e.Records))] {
		first = append(first, fmt.Sprintf("RecordError(batchIndex=%d, message='%s')", r.Index, r.Message))
	}
	e.Message = fmt.Sprintf("One or more records have been rejected due to %d record errors in total, and only showing the first three errors at most: [%s]",
		len(e.Records), strings.Join(first, ", "))
	return e
}

// Assign patches a validated batch in place for appending: offsets, leader epoch, and where they differ from the header's the
// timestamp type and maximum timestamp. Not for batches that need Rebuild.
func Assign(b Batch, baseOffset int64, leaderEpoch int32, t TimestampType, v Validated) {
	b.SetBaseOffset(baseOffset)
	b.SetPartitionLeaderEpoch(leaderEpoch)
	b.SetMaxTimestamp(t == LogAppendTime, v.MaxTimestamp)
}

// RebuildOptions are what Rebuild needs beyond the batch.
type RebuildOptions struct {
	BaseOffset    int64
	LeaderEpoch   int32
	Target        Codec // KeepCodec keeps the batch's
	Level         int   // on Kafka's scale; 0 is the codec's default
	TimestampType TimestampType
	Now           int64
	Decompressor  *Decompressor
	Compressor    *Compressor
}

// Rebuild makes a validated batch anew with the offsets it gets in the log, under the target codec.
func Rebuild(b Batch, r RebuildOptions) (Batch, error) {
	o := optionsOf(b)
	o.BaseOffset, o.LeaderEpoch, o.DeleteHorizon = r.BaseOffset, r.LeaderEpoch, 0
	o.TimestampType, o.AppendTime = r.TimestampType, r.Now
	if r.Target != KeepCodec {
		o.Codec = r.Target
	}
	o.Level, o.Compressor = r.Level, r.Compressor
	nb := NewBuilder(o)
	it := b.Records(r.Decompressor)
	defer it.Close()
	for it.Next() {
		rec := it.Record()
		nb.Append(rec.Timestamp, rec.Key, rec.Value, rec.Headers)
	}
	if err := it.Err(); err != nil {
		return nil, err
	}
	return nb.Build()
}

// summary is what validation needs of a record.
type summary struct {
	tsDelta            int64
	offsetDelta        int32
	keySize, valueSize int32
}

// bigRecord is the size from which a record that straddles chunks is skipped through instead of being put together.
const bigRecord = 256 << 10

// summary reads the next record without keeping it.
func (it *Iterator) summary(limit int32) (s summary, err *Error) {
	size, i := varint32(it.cur, 0)
	if i < 0 && it.dec != nil {
		// The length itself straddles; so it is the last few bytes of a chunk.
		if size, err = it.readVarint32(); err != nil {
			return s, err
		}
	} else if i < 0 {
		return s, errf(ErrInvalid, "Incorrect declared batch size, premature EOF reached")
	} else {
		it.cur = it.cur[i:]
	}
	switch {
	case size < 0:
		return s, errf(ErrInvalid, "Invalid record size: %d is negative.", size)
	case it.dec != nil && size > limit:
		return s, errf(ErrInvalid, "Invalid record size: %d exceeds the configured maximum record size of %d.", size, limit)
	case int(size) <= len(it.cur):
		body := it.cur[:size]
		it.cur = it.cur[size:]
		return s, s.parse(body)
	case it.dec == nil:
		return s, sizeError(size, len(it.cur))
	case size <= bigRecord:
		carry := it.dec.carry[:0]
		for len(carry) < int(size) {
			if err := it.more(); err != nil {
				return s, err
			}
			n := min(int(size)-len(carry), len(it.cur))
			carry = append(carry, it.cur[:n]...)
			it.cur = it.cur[n:]
		}
		it.dec.carry = carry
		return s, s.parse(carry)
	}
	return it.skim(int64(size))
}

// parse is Record.parse without the record.
func (s *summary) parse(body []byte) *Error {
	if len(body) == 0 {
		return errf(ErrInvalid, "Found invalid record structure")
	}
	i := 1
	s.tsDelta, i = varint64(body, i)
	s.offsetDelta, i = varint32(body, i)
	s.keySize, i = skipField(body, i)
	s.valueSize, i = skipField(body, i)
	headers, i := varint32(body, i)
	if i >= 0 && headers != 0 {
		if headers < 0 {
			return errf(ErrInvalid, "Found invalid number of record headers %d", headers)
		}
		if int(headers) > len(body)-i {
			return errf(ErrInvalid, "Found invalid number of record headers. %d is larger than the remaining size of the buffer", headers)
		}
		for ; headers > 0 && i >= 0; headers-- {
			var n int32
			if n, i = skipField(body, i); i >= 0 && n < 0 {
				return errf(ErrInvalid, "Invalid negative header key size %d", n)
			}
			_, i = skipField(body, i)
		}
	}
	if i < 0 {
		return errf(ErrInvalid, "Found invalid record structure")
	}
	if i != len(body) {
		return errf(ErrInvalid, "Invalid record size: expected to read %d bytes in record payload, but instead read %d", len(body), i)
	}
	return nil
}

func skipField(b []byte, i int) (int32, int) {
	n, i := varint32(b, i)
	if i < 0 || int(n) > len(b)-i {
		return n, -1
	}
	if n > 0 {
		i += int(n)
	}
	return n, i
}

// skim reads a large record that lies in several chunks: what isn't needed is dropped as it comes, so that a record of zeros
// that says it has a gigabyte costs no memory.
func (it *Iterator) skim(size int64) (s summary, err *Error) {
	left := size
	if err = it.discard(1, &left); err != nil { // attributes
		return s, err
	}
	u, err := it.skimVarint(10, &left)
	s.tsDelta = int64(u>>1) ^ -int64(u&1)
	if err != nil {
		return s, err
	}
	n := func() (v int32) {
		var u uint64
		if err == nil {
			u, err = it.skimVarint(5, &left)
		}
		return int32(uint32(u)>>1) ^ -int32(u&1)
	}
	field := func() int32 {
		v := n()
		if err == nil && v > 0 {
			err = it.discard(int64(v), &left)
		}
		return v
	}
	s.offsetDelta = n()
	s.keySize = field()
	s.valueSize = field()
	headers := n()
	if err == nil && headers < 0 {
		return s, errf(ErrInvalid, "Found invalid number of record headers %d", headers)
	}
	for ; err == nil && headers > 0; headers-- {
		if k := field(); err == nil && k < 0 {
			return s, errf(ErrInvalid, "Invalid negative header key size %d", k)
		}
		field()
	}
	if err == nil && left != 0 {
		err = errf(ErrInvalid, "Invalid record size: expected to read %d bytes in record payload, but instead read %d", size, size-left)
	}
	return s, err
}

func (it *Iterator) discard(n int64, left *int64) *Error {
	if n > *left {
		return errf(ErrInvalid, "Found invalid record structure")
	}
	*left -= n
	for n > 0 {
		if err := it.more(); err != nil {
			return err
		}
		m := min(n, int64(len(it.cur)))
		it.cur = it.cur[m:]
		n -= m
	}
	return nil
}

func (it *Iterator) skimVarint(most int, left *int64) (uint64, *Error) {
	var v uint64
	for i := range most {
		if *left == 0 {
			break
		}
		if err := it.more(); err != nil {
			return 0, err
		}
		c := it.cur[0]
		it.cur = it.cur[1:]
		*left--
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, nil
		}
	}
	return 0, errf(ErrInvalid, "Found invalid record structure")
}

func (it *Iterator) readVarint32() (int32, *Error) {
	left := int64(math.MaxInt64)
	u, err := it.skimVarint(5, &left)
	return int32(uint32(u)>>1) ^ -int32(u&1), err
}
