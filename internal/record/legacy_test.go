package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// wrap makes a compressed message around others.
func wrap(t *testing.T, magic int8, codec Codec, offset, ts int64, appendTime bool, inner []byte) Legacy {
	t.Helper()
	z, err := NewCompressor().Compress(nil, codec, DefaultLevel, inner)
	if err != nil {
		t.Fatal(err)
	}
	m := Legacy(AppendLegacy(nil, LegacyRecord{Magic: magic, Record: Record{Offset: offset, Timestamp: ts, Value: z}}, appendTime))
	m[legacyAttributes] |= byte(codec)
	binary.BigEndian.PutUint32(m[legacyCRC:], m.ComputeCRC())
	return m
}

func messages(magic int8, offsets ...int64) []byte {
	var b []byte
	for _, o := range offsets {
		b = AppendLegacy(b, LegacyRecord{Magic: magic, Record: Record{Offset: o, Timestamp: 100 + o, Key: []byte{byte(o)}, Value: []byte("v")}}, false)
	}
	return b
}

func TestLegacyOffsets(t *testing.T) {
	t.Parallel()
	d := NewDecompressor(DecompressorOptions{})
	f := func(name string, m Legacy, ts []int64, offsets ...int64) {
		t.Helper()
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		it := m.Records(d)
		i := 0
		for ; it.Next(); i++ {
			r := it.Record()
			if i >= len(offsets) || r.Offset != offsets[i] || r.Timestamp != ts[i] || string(r.Value) != "v" || r.Sequence != NoSequence {
				t.Fatalf("%s: record %d: %+v", name, i, r)
			}
		}
		if it.Err() != nil || i != len(offsets) {
			t.Errorf("%s: %d records, %v", name, i, it.Err())
		}
	}
	for _, codec := range []Codec{Gzip, Snappy, LZ4} {
		f(codec.String()+" magic 0, absolute", wrap(t, 0, codec, 7, 0, false, messages(0, 5, 7)), []int64{-1, -1}, 5, 7)
		f(codec.String()+" magic 1, relative", wrap(t, 1, codec, 12, 102, false, messages(1, 0, 1, 2)), []int64{100, 101, 102}, 10, 11, 12)
		f(codec.String()+" magic 1, append time", wrap(t, 1, codec, 12, 555, true, messages(1, 0, 1, 2)), []int64{555, 555, 555}, 10, 11, 12)
		f(codec.String()+" magic 1, gaps", wrap(t, 1, codec, 20, 0, false, messages(1, 0, 4)), []int64{100, 104}, 16, 20)
		f(codec.String()+" magic 1, wrapper offset 0", wrap(t, 1, codec, 0, 0, false, messages(1, 0, 1)), []int64{100, 101}, 0, 1)
	}
	f("plain", Legacy(messages(1, 3)), []int64{103}, 3)
}

func TestLegacyFaults(t *testing.T) {
	t.Parallel()
	d := NewDecompressor(DecompressorOptions{})
	f := func(name string, m Legacy, want error) {
		t.Helper()
		it := m.Records(d)
		for it.Next() {
		}
		if !errors.Is(it.Err(), want) {
			t.Errorf("%s: %v, want %v", name, it.Err(), want)
		}
	}
	f("no messages inside", wrap(t, 1, Gzip, 5, 0, false, nil), ErrInvalid)
	f("inner offset beyond the wrapper's", wrap(t, 1, Gzip, 5, 0, false, messages(1, 0, 9)), ErrInvalid)
	f("wrapper in a wrapper", wrap(t, 1, Gzip, 5, 0, false, wrap(t, 1, Gzip, 5, 0, false, messages(1, 0))), ErrInvalid)
	f("zeros inside", wrap(t, 0, Gzip, 5, 0, false, make([]byte, 30)), ErrCorrupt)
	z := Legacy(messages(1, 3))
	z[legacyAttributes] |= byte(Zstd)
	f("zstd", z, ErrInvalid)
	z = bytes.Clone(z)
	z[legacyAttributes] = byte(Snappy)
	f("not snappy", z, ErrDecompress)
	long := Legacy(messages(1, 3))
	binary.BigEndian.PutUint32(long[legacyFieldsV1:], 1000)
	f("key beyond the message", long, ErrInvalid)
	null := Legacy(AppendLegacy(nil, LegacyRecord{Magic: 1}, false))
	null[legacyAttributes] = byte(Gzip)
	f("compressed null", null, ErrInvalid)
	bad := Legacy(messages(0, 1))
	bad[len(bad)-1]++
	if err := bad.Check(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("crc: %v", err)
	}
	cut := Legacy(messages(1, 1)[:30])
	binary.BigEndian.PutUint32(cut[offBatchLength:], 18)
	if err := cut.Check(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("magic 1 of 30 bytes: %v", err)
	}
}
