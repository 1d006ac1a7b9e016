package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

func openOptions(d *Decompressor) ValidateOptions {
	return ValidateOptions{
		TopicPartition: "orders-0", FromClient: true, Target: KeepCodec, Now: 5000, BeforeMax: math.MaxInt64, AfterMax: math.MaxInt64,
		Decompressor: d,
	}
}

// resum sets the CRC after a test has patched the batch.
func resum(b Batch) Batch {
	binary.BigEndian.PutUint32(b[offCRC:], b.ComputeCRC())
	return b
}

func TestValidateFaults(t *testing.T) {
	t.Parallel()
	d, c := NewDecompressor(DecompressorOptions{}), NewCompressor()
	patched := func(f func(b Batch)) Batch { b := goodBatch(t, None, 3); f(b); return resum(b) }
	body := func(b ...byte) []byte { return append(binary.AppendVarint(nil, int64(len(b))), b...) }
	okBody := []byte{0, 0, 0, 1, 1, 0} // attributes, deltas 0, null key and value, no headers
	raw := func(codec Codec, count int32, payload ...[]byte) Batch {
		all := bytes.Join(payload, nil)
		z, err := c.Compress(nil, codec, DefaultLevel, all)
		if err != nil {
			t.Fatal(err)
		}
		return rawBatch(codec, count, z)
	}
	f := func(name string, b Batch, want error, message string) {
		t.Helper()
		o := openOptions(d)
		_, err := Validate(b, &o)
		if want == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return
		}
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, want) || message != "" && e.Message != message {
			t.Errorf("%s: got %v, want %v: %s", name, err, want, message)
		}
	}
	f("good", patched(func(Batch) {}), nil, "")
	f("bad crc", func() Batch { b := goodBatch(t, None, 1); b[len(b)-1]++; return b }(), ErrCorrupt, "")
	f("base offset", patched(func(b Batch) { b.SetBaseOffset(4) }), ErrInvalid,
		"The baseOffset of the record batch in the append to orders-0 should be 0, but it is 4")
	f("count too low", patched(func(b Batch) { b[offRecordCount+3] = 2 }), ErrInvalid,
		"Inconsistent batch offset range [0, 2] and count of records 2 in topic partition orders-0")
	f("count 0", patched(func(b Batch) { b[offRecordCount+3] = 0 }), ErrInvalid,
		"Invalid reported count for record batch: 0 in topic partition orders-0")
	f("negative last delta", patched(func(b Batch) { b[offLastOffsetDelta] = 0xff }), ErrInvalid, "")
	f("control", patched(func(b Batch) { b[offAttributes+1] |= attrControl }), ErrInvalid,
		"Clients are not allowed to write control records in topic partition orders-0")
	f("producer without sequence", patched(func(b Batch) { binary.BigEndian.PutUint64(b[offProducerID:], 9) }), ErrInvalid,
		"Invalid sequence number -1 in record batch with producerId 9 in topic partition orders-0")
	f("codec 5", patched(func(b Batch) { b[offAttributes+1] |= 5 }), ErrCodec, "")
	f("codec 7", patched(func(b Batch) { b[offAttributes+1] |= 7 }), ErrCodec, "")
	f("gzip flag on plain records", patched(func(b Batch) { b[offAttributes+1] |= byte(Gzip) }), ErrDecompress, "")
	f("lz4 flag on plain records", patched(func(b Batch) { b[offAttributes+1] |= byte(LZ4) }), ErrDecompress, "")
	f("zstd flag on plain records", patched(func(b Batch) { b[offAttributes+1] |= byte(Zstd) }), ErrDecompress, "")
	f("snappy flag on plain records", patched(func(b Batch) { b[offAttributes+1] |= byte(Snappy) }), ErrDecompress, "")
	f("count too high", func() Batch {
		b := goodBatch(t, None, 3)
		b[offRecordCount+3], b[offLastOffsetDelta+3] = 4, 3
		return resum(b)
	}(), ErrInvalid, "Incorrect declared batch size, premature EOF reached")
	for _, codec := range codecs {
		n := codec.String() + ": "
		f(n+"one record", raw(codec, 1, body(okBody...)), nil, "")
		f(n+"a record too many", raw(codec, 1, body(okBody...), body(okBody...)), ErrInvalid,
			"Incorrect declared batch size, records still remaining in file")
		f(n+"a record too few", raw(codec, 2, body(okBody...)), ErrInvalid, "Incorrect declared batch size, premature EOF reached")
		f(n+"a byte behind", raw(codec, 1, body(okBody...), []byte{0}), ErrInvalid, "")
		f(n+"empty record", raw(codec, 1, []byte{0}), ErrInvalid, "")
		f(n+"negative size", raw(codec, 1, []byte{1}), ErrInvalid, "Invalid record size: -1 is negative.")
		f(n+"size beyond the end", raw(codec, 1, []byte{40}, okBody), ErrInvalid, "")
		f(n+"size too short", raw(codec, 1, []byte{10}, okBody), ErrInvalid, "")
		f(n+"size too long", raw(codec, 1, []byte{14}, okBody, []byte{0}), ErrInvalid, "")
		f(n+"endless varint", raw(codec, 1, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}), ErrInvalid, "")
		f(n+"endless timestamp", raw(codec, 1, body(0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 1, 1, 0)), ErrInvalid, "")
		f(n+"key beyond the record", raw(codec, 1, body(0, 0, 0, 20, 1, 0)), ErrInvalid, "")
		f(n+"value beyond the record", raw(codec, 1, body(0, 0, 0, 1, 20, 0)), ErrInvalid, "")
		f(n+"negative headers", raw(codec, 1, body(0, 0, 0, 1, 1, 1)), ErrInvalid, "Found invalid number of record headers -1")
		f(n+"headers beyond the record", raw(codec, 1, body(0, 0, 0, 1, 1, 20)), ErrInvalid, "")
		f(n+"null header key", raw(codec, 1, body(0, 0, 0, 1, 1, 2, 1, 1)), ErrInvalid, "Invalid negative header key size -1")
		f(n+"header value beyond", raw(codec, 1, body(0, 0, 0, 1, 1, 2, 0, 20)), ErrInvalid, "")
		f(n+"header", raw(codec, 1, body(0, 0, 0, 1, 1, 2, 0, 1)), nil, "")
		f(n+"key length -2 is null too", raw(codec, 1, body(0, 0, 0, 3, 1, 0)), nil, "")
	}
}

func TestValidateTimestamps(t *testing.T) {
	t.Parallel()
	d := NewDecompressor(DecompressorOptions{})
	build := func(codec Codec, ts ...int64) Batch {
		b := NewBuilder(BuilderOptions{Codec: codec}.NoProducer())
		for _, v := range ts {
			b.Append(v, []byte("k"), []byte("vv"), nil)
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		return batch
	}
	for _, codec := range codecs {
		o := openOptions(d)
		o.BeforeMax, o.AfterMax = 100, 50
		b := build(codec, 4900, 5050, -1)
		v, err := Validate(b, &o)
		if err != nil || v.MaxTimestamp != 5050 {
			t.Errorf("%v: inside the bounds: %+v %v", codec, v, err)
		}
		_, err = Validate(build(codec, 4899, 5000, 5051), &o)
		var e *Error
		if !errors.As(err, &e) || e.Kind != ErrTimestamp || len(e.Records) != 2 || e.KafkaCode() != 32 ||
			e.Message != "One or more records have been rejected due to invalid timestamp" ||
			e.Records[0] != (RecordError{0, "Timestamp 4899 of message with offset 0 is out of range. The timestamp should be within [4900, 5050]"}) ||
			e.Records[1] != (RecordError{2, "Timestamp 5051 of message with offset 2 is out of range. The timestamp should be within [4900, 5050]"}) {
			t.Errorf("%v: outside the bounds: %+v", codec, err)
		}
		// LogAppendTime topics don't look at the records' time, and stamp their own.
		o.TimestampType = LogAppendTime
		if v, err = Validate(build(codec, 1, 2), &o); err != nil || v.MaxTimestamp != 5000 {
			t.Errorf("%v: append time: %+v %v", codec, v, err)
		}
		b = bytes.Clone(build(codec, 1, 2))
		Assign(b, 40, 7, LogAppendTime, v)
		if err := b.Check(); err != nil || b.BaseOffset() != 40 || b.LastOffset() != 41 || b.PartitionLeaderEpoch() != 7 ||
			!b.IsLogAppendTime() || b.MaxTimestamp() != 5000 {
			t.Errorf("%v: assigned %v: %x", codec, err, b[:HeaderSize])
		}
		// A producer that claims LogAppendTime is refused where Kafka refuses it.
		if _, err = Validate(resum(b[:len(b):len(b)]), &ValidateOptions{TimestampType: LogAppendTime, Target: KeepCodec, Decompressor: d}); !errors.Is(err, ErrTimestamp) {
			t.Errorf("%v: claimed append time: %v", codec, err)
		}
	}
	// The header's maximum isn't believed: it is corrected.
	b := goodBatch(t, None, 3)
	binary.BigEndian.PutUint64(b[offMaxTimestamp:], 9999)
	resum(b)
	o := openOptions(d)
	v, err := Validate(b, &o)
	Assign(b, 0, 0, CreateTime, v)
	if err != nil || b.MaxTimestamp() != 1002 || b.Check() != nil {
		t.Errorf("corrected maximum: %d %v %v", b.MaxTimestamp(), err, b.Check())
	}
}

func TestValidateKeys(t *testing.T) {
	t.Parallel()
	d := NewDecompressor(DecompressorOptions{})
	for _, codec := range codecs {
		b := NewBuilder(BuilderOptions{Codec: codec}.NoProducer())
		for i := range 6 {
			key := []byte("k")
			if i != 2 {
				key = nil
			}
			b.Append(1, key, nil, nil)
		}
		batch, _ := b.Build()
		o := openOptions(d)
		o.Compacted = true
		_, err := Validate(batch, &o)
		var e *Error
		if !errors.As(err, &e) || e.Kind != ErrInvalid || len(e.Records) != 5 || e.Records[2].Index != 3 || e.Message !=
			"One or more records have been rejected due to 5 record errors in total, and only showing the first three errors at most: "+
				"[RecordError(batchIndex=0, message='Compacted topic cannot accept message without key in topic partition orders-0'), "+
				"RecordError(batchIndex=1, message='Compacted topic cannot accept message without key in topic partition orders-0'), "+
				"RecordError(batchIndex=3, message='Compacted topic cannot accept message without key in topic partition orders-0')]" {
			t.Errorf("%v: %+v", codec, err)
		}
		o.HeaderOnly = true
		if _, err = Validate(batch, &o); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: header validation must look at the keys of a compacted topic: %v", codec, err)
		}
		o.Compacted = false
		if v, err := Validate(batch, &o); err != nil || v.Records != 6 || v.MaxTimestamp != 1 {
			t.Errorf("%v: header only: %+v %v", codec, v, err)
		}
	}
}

func TestValidateSizes(t *testing.T) {
	t.Parallel()
	d := NewDecompressor(DecompressorOptions{})
	b := goodBatch(t, Zstd, 3)
	o := openOptions(d)
	o.MaxBatchBytes = len(b) - 1
	if _, err := Validate(b, &o); !errors.Is(err, ErrBatchTooLarge) {
		t.Errorf("max.message.bytes: %v", err)
	}
	o.MaxBatchBytes = len(b)
	o.MaxRecordBytes = 10
	var e *Error
	if _, err := Validate(b, &o); !errors.As(err, &e) || e.Message != "Invalid record size: 14 exceeds the configured maximum record size of 10." {
		t.Errorf("max.decompressed.message.bytes: %v", err)
	}
}

// Rebuild recompresses, renumbers and stamps.
func TestRebuild(t *testing.T) {
	t.Parallel()
	d, c := NewDecompressor(DecompressorOptions{}), NewCompressor()
	for _, from := range codecs {
		for _, to := range append([]Codec{KeepCodec}, codecs...) {
			b := goodBatch(t, from, 5)
			o := openOptions(d)
			o.Target = to
			v, err := Validate(b, &o)
			if err != nil || v.Rebuild != (to != from && to != KeepCodec) {
				t.Errorf("%v to %v: %+v %v", from, to, v, err)
			}
			nb, err := Rebuild(b, RebuildOptions{BaseOffset: 100, LeaderEpoch: 4, Target: to, TimestampType: LogAppendTime, Now: 77,
				Decompressor: d, Compressor: c})
			if to == KeepCodec {
				to = from
			}
			if err != nil || nb.Check() != nil || nb.BaseOffset() != 100 || nb.LastOffset() != 104 || nb.PartitionLeaderEpoch() != 4 ||
				nb.Codec() != to || !nb.IsLogAppendTime() || nb.MaxTimestamp() != 77 {
				t.Errorf("%v to %v: %v %x", from, to, err, nb)
			}
		}
	}
	// Wrong offset deltas, as some clients made them.
	rec := appendRecord(appendRecord(nil, 0, 0, nil, nil, nil), 5, 0, nil, []byte("x"), nil)
	b := rawBatch(None, 2, rec)
	o := openOptions(d)
	if v, err := Validate(b, &o); err != nil || !v.Rebuild {
		t.Errorf("deltas 0, 0: %+v %v", v, err)
	}
	nb, err := Rebuild(b, RebuildOptions{BaseOffset: 7, Target: KeepCodec})
	if err != nil {
		t.Fatal(err)
	}
	it := nb.Records(nil)
	for want := int64(7); it.Next(); want++ {
		if it.Record().Offset != want {
			t.Errorf("offset %d, want %d", it.Record().Offset, want)
		}
	}
}

func TestControl(t *testing.T) {
	t.Parallel()
	for _, commit := range []bool{true, false} {
		b := BuildEndTxnMarker(41, 3, 9, commit, 1234)
		if len(b) != 78 || b.Check() != nil || !b.IsControl() || !b.IsTransactional() || b.ProducerID() != 41 || b.ProducerEpoch() != 3 ||
			b.BaseSequence() != -1 || b.PartitionLeaderEpoch() != -1 || b.MaxTimestamp() != 1234 {
			t.Errorf("marker %x", b)
		}
		it := b.Records(nil)
		if !it.Next() {
			t.Fatal(it.Err())
		}
		m, err := ParseEndTxnMarker(it.Record().Key, it.Record().Value)
		if err != nil || m != (EndTxnMarker{commit, 9}) {
			t.Errorf("%+v %v", m, err)
		}
	}
	b := BuildControlBatch(5, 2, 10, ControlRecord{ControlLeaderChange, []byte{1}}, ControlRecord{ControlKRaftVersion, []byte{2}})
	if b.Check() != nil || b.IsTransactional() || b.Count() != 2 || b.LastOffset() != 6 || b.ProducerID() != -1 {
		t.Errorf("control batch %x", b)
	}
	for _, key := range [][]byte{nil, {0, 0, 0}, {0xff, 0xff, 0, 1}} {
		if _, err := ParseControlKey(key); err == nil {
			t.Errorf("key %x read", key)
		}
	}
	if c, err := ParseControlKey([]byte{0, 0, 0, 99}); err != nil || c != ControlUnknown || c.String() != "UNKNOWN" {
		t.Errorf("later control type: %v %v", c, err)
	}
	if _, err := ParseEndTxnMarker([]byte{0, 0, 0, 2}, make([]byte, 6)); err == nil {
		t.Error("leader change read as a marker")
	}
	if _, err := ParseEndTxnMarker([]byte{0, 0, 0, 1}, make([]byte, 5)); err == nil {
		t.Error("short marker read")
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	d := NewDecompressor(DecompressorOptions{})
	for _, codec := range codecs {
		nb := NewBuilder(BuilderOptions{BaseOffset: 10, LeaderEpoch: 2, Codec: codec, ProducerID: 8, ProducerEpoch: 1, BaseSequence: 50})
		for i := range 6 {
			value := []byte("v")
			if i == 3 {
				value = nil
			}
			nb.Append(int64(1000+i), []byte{byte(i)}, value, []Header{{Key: []byte("h")}})
		}
		b, err := nb.Build()
		if err != nil {
			t.Fatal(err)
		}
		o := &FilterOptions{Decompressor: d, DeleteHorizon: 50_000}
		keep := func(offsets ...int64) {
			o.Keep = func(_ Batch, r *Record) bool {
				for _, k := range offsets {
					if k == r.Offset {
						return true
					}
				}
				return false
			}
		}
		// A tombstone stays: the horizon is set although nothing is dropped.
		keep(10, 11, 12, 13, 14, 15)
		out, f, err := Filter(nil, b, o)
		first := Batch(bytes.Clone(out))
		if err != nil || f.Unchanged || !first.HasDeleteHorizon() || first.BaseTimestamp() != 50_000 || f.MaxTimestamp != 1005 {
			t.Errorf("%v: horizon: %+v %v", codec, f, err)
		}
		checkKept(t, d, first, b, 10, 11, 12, 13, 14, 15)
		// Now it stays as it is.
		out, f, err = Filter([]byte("x"), first, o)
		if err != nil || !f.Unchanged || !bytes.Equal(out[1:], first) {
			t.Errorf("%v: unchanged: %+v %v", codec, f, err)
		}
		keep(11, 14)
		out, f, err = Filter([]byte("x"), first, o)
		if err != nil || out[0] != 'x' || f.Kept != 2 || f.Read != 6 || f.MaxOffset != 14 || f.MaxTimestamp != 1004 {
			t.Errorf("%v: two of six: %+v %v", codec, f, err)
		}
		checkKept(t, d, Batch(out[1:]), b, 11, 14)
		if got := Batch(out[1:]); got.BaseTimestamp() != 50_000 || !got.HasDeleteHorizon() {
			t.Errorf("%v: horizon lost", codec)
		}
		keep()
		out, f, err = Filter(nil, b, o)
		if err != nil || len(out) != 0 || f.Kept != 0 || f.MaxOffset != -1 {
			t.Errorf("%v: none: %+v %v", codec, f, err)
		}
		o.KeepEmpty = true
		out, _, err = Filter(nil, b, o)
		if e := Batch(out); err != nil || len(e) != HeaderSize || e.Check() != nil || e.BaseOffset() != 10 || e.LastOffset() != 15 ||
			e.ProducerID() != 8 || e.LastSequence() != 55 || e.Count() != 0 || e.Codec() != None || e.MaxTimestamp() != 1005 || e.BaseTimestamp() != -1 {
			t.Errorf("%v: empty batch: %x %v", codec, out, err)
		}
	}
	m := BuildEndTxnMarker(1, 0, 0, true, 1000)
	out, f, err := Filter(nil, m, &FilterOptions{Keep: func(Batch, *Record) bool { return true }, EmptyTxnMarker: true, DeleteHorizon: 90_000})
	if got := Batch(out); err != nil || f.Unchanged || !got.HasDeleteHorizon() || got.BaseTimestamp() != 90_000 || !got.IsControl() || got.Check() != nil {
		t.Errorf("marker: %+v %v %x", f, err, out)
	}
}

func checkKept(t *testing.T, d *Decompressor, got, orig Batch, offsets ...int64) {
	t.Helper()
	if err := got.Check(); err != nil || got.BaseOffset() != orig.BaseOffset() || got.LastOffset() != orig.LastOffset() ||
		got.LastSequence() != orig.LastSequence() || got.ProducerID() != orig.ProducerID() || got.Codec() != orig.Codec() ||
		int(got.Count()) != len(offsets) || got.PartitionLeaderEpoch() != orig.PartitionLeaderEpoch() {
		t.Errorf("%v header %x", err, got[:HeaderSize])
	}
	want := map[int64]Record{}
	for it := orig.Records(d); it.Next(); {
		r := it.Record()
		r.Key, r.Value, r.Headers = bytes.Clone(r.Key), bytes.Clone(r.Value), append([]Header(nil), r.Headers...)
		for i := range r.Headers {
			r.Headers[i].Key = bytes.Clone(r.Headers[i].Key)
		}
		want[r.Offset] = r
	}
	it := got.Records(d)
	defer it.Close()
	for _, off := range offsets {
		if !it.Next() {
			t.Fatalf("offset %d missing: %v", off, it.Err())
		}
		r, w := it.Record(), want[off]
		if r.Offset != off || !sameRecord(&r, &w) || r.Sequence != w.Sequence {
			t.Errorf("offset %d: got %+v, want %+v", off, r, w)
		}
	}
}
