package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

var codecs = []Codec{None, Gzip, Snappy, LZ4, Zstd}

func genBytes(t *rapid.T, label string) []byte {
	if rapid.Bool().Draw(t, label+" null") {
		return nil
	}
	b := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, label)
	if b == nil {
		b = []byte{}
	}
	// Now and then something that spans several blocks of every codec.
	if n := rapid.IntRange(0, 40).Draw(t, label+" blow"); n == 40 {
		b = bytes.Repeat(append(b, 'x'), 9000)
	}
	return b
}

func genRecords(t *rapid.T) []Record {
	records := make([]Record, rapid.IntRange(1, 30).Draw(t, "n"))
	for i := range records {
		r := &records[i]
		r.Timestamp = rapid.Int64Range(0, 1<<45).Draw(t, "ts")
		r.Key, r.Value = genBytes(t, "key"), genBytes(t, "value")
		for range rapid.IntRange(0, 3).Draw(t, "headers") {
			k := genBytes(t, "hk")
			if k == nil {
				k = []byte{}
			}
			r.Headers = append(r.Headers, Header{k, genBytes(t, "hv")})
		}
	}
	return records
}

func sameBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func sameRecord(a, b *Record) bool {
	if a.Offset != b.Offset || a.Timestamp != b.Timestamp || !sameBytes(a.Key, b.Key) || !sameBytes(a.Value, b.Value) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		if !sameBytes(a.Headers[i].Key, b.Headers[i].Key) || !sameBytes(a.Headers[i].Value, b.Headers[i].Value) {
			return false
		}
	}
	return true
}

// What Builder makes, Records reads back, Validate accepts, and every cut or split of it is noticed.
func TestBuildAndRead(t *testing.T) {
	t.Parallel()
	d, c := NewDecompressor(DecompressorOptions{}), NewCompressor()
	rapid.Check(t, func(t *rapid.T) {
		records := genRecords(t)
		o := BuilderOptions{
			BaseOffset: rapid.Int64Range(0, 1<<50).Draw(t, "base"), LeaderEpoch: 3, Codec: rapid.SampledFrom(codecs).Draw(t, "codec"),
			Compressor: c, ProducerID: rapid.Int64Range(-1, 5).Draw(t, "pid"), ProducerEpoch: 2,
			BaseSequence: rapid.SampledFrom([]int32{-1, 0, math.MaxInt32 - 3}).Draw(t, "seq"), Transactional: rapid.Bool().Draw(t, "txn"),
		}
		if rapid.Bool().Draw(t, "append time") {
			o.TimestampType, o.AppendTime = LogAppendTime, 77
		}
		b := NewBuilder(o)
		size, maxTS := HeaderSize, int64(-1)
		for i := range records {
			r := &records[i]
			size = b.SizeWith(r.Timestamp, r.Key, r.Value, r.Headers)
			b.Append(r.Timestamp, r.Key, r.Value, r.Headers)
			r.Offset = o.BaseOffset + int64(i)
			if o.TimestampType == LogAppendTime {
				r.Timestamp = 77
			} else if b.Len() != size {
				t.Fatalf("SizeWith said %d, is %d", size, b.Len())
			}
			maxTS = max(maxTS, r.Timestamp)
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		got, rest, err := Next(append(bytes.Clone(batch), 1, 2, 3))
		if err != nil || len(rest) != 3 || !bytes.Equal(got, batch) {
			t.Fatalf("next: %d of %d bytes, %d left, %v", len(got), len(batch), len(rest), err)
		}
		if _, _, err := Next(batch[:len(batch)-1]); !errors.Is(err, ErrTruncated) {
			t.Fatalf("cut batch: %v", err)
		}
		if err := batch.Check(); err != nil {
			t.Fatal(err)
		}
		if batch.MaxTimestamp() != maxTS || batch.LastOffset() != o.BaseOffset+int64(len(records))-1 || batch.Codec() != o.Codec ||
			batch.IsTransactional() != o.Transactional || batch.ProducerEpoch() != 2 {
			t.Fatalf("header %x", batch[:HeaderSize])
		}
		it := batch.Records(d)
		defer it.Close()
		for i := range records {
			if !it.Next() {
				t.Fatalf("record %d: %v", i, it.Err())
			}
			r := it.Record()
			if !sameRecord(&r, &records[i]) {
				t.Fatalf("record %d: got %+v, want %+v", i, r, records[i])
			}
			want := NoSequence
			if o.BaseSequence >= 0 {
				want = IncrementSequence(o.BaseSequence, int32(i))
			}
			if r.Sequence != want {
				t.Fatalf("record %d: sequence %d, want %d", i, r.Sequence, want)
			}
		}
		if it.Next() || it.Err() != nil {
			t.Fatalf("at the end: %v", it.Err())
		}
		v, err := Validate(batch, &ValidateOptions{Target: KeepCodec, BeforeMax: math.MaxInt64, AfterMax: math.MaxInt64, Decompressor: d})
		if err != nil || v.Records != int32(len(records)) || v.Rebuild || v.MaxTimestamp != maxTS {
			t.Fatalf("validate: %+v, %v", v, err)
		}
	})
}

func TestCompressors(t *testing.T) {
	t.Parallel()
	d, c := NewDecompressor(DecompressorOptions{}), NewCompressor()
	inputs := map[string][]byte{
		"empty": {}, "byte": {7}, "zeros": make([]byte, 9<<20), "text": bytes.Repeat([]byte("to be or not to be, "), 50000),
		"random": randomBytes(300 << 10), "block": randomBytes(64 << 10), "xerial block": randomBytes(32 << 10),
	}
	for name, in := range inputs {
		for _, codec := range codecs {
			for _, level := range []int{DefaultLevel, 1, 9} {
				out, err := c.Compress([]byte("prefix"), codec, level, in)
				if err != nil || !bytes.HasPrefix(out, []byte("prefix")) {
					t.Fatalf("%s %v level %d: %v", name, codec, level, err)
				}
				if codec == Snappy && len(in) == 0 {
					continue
				}
				back, err := d.Decompress(nil, codec, out[6:], 0)
				if err != nil || !bytes.Equal(back, in) {
					t.Errorf("%s %v level %d: %d bytes of %d back, %v", name, codec, level, len(back), len(in), err)
				}
				if codec != None && len(in) > 1 {
					if _, err := d.Decompress(nil, codec, out[6:], int64(len(in)-1)); !errors.Is(err, ErrBomb) {
						t.Errorf("%s %v: limit one byte short: %v", name, codec, err)
					}
					if _, err := d.Decompress(nil, codec, out[6:], int64(len(in))); err != nil {
						t.Errorf("%s %v: exact limit: %v", name, codec, err)
					}
				}
				for _, cut := range []int{0, 1, len(out) - 7} {
					if codec == None || cut < 0 || cut >= len(out)-6 {
						continue
					}
					if back, err := d.Decompress(nil, codec, out[6:6+cut], 0); err == nil && bytes.Equal(back, in) && len(in) > 0 {
						t.Errorf("%s %v cut to %d of %d: no error", name, codec, cut, len(out)-6)
					}
				}
			}
		}
	}
	if _, err := c.Compress(nil, 5, 1, nil); !errors.Is(err, ErrCodec) {
		t.Errorf("codec 5: %v", err)
	}
	if _, err := c.Compress(nil, Zstd, 23, nil); err == nil {
		t.Error("zstd level 23 accepted")
	}
	if _, err := d.Decompress(nil, 6, []byte{1}, 0); !errors.Is(err, ErrCodec) {
		t.Errorf("codec 6: %v", err)
	}
}

// randomBytes are incompressible and the same each time.
func randomBytes(n int) []byte {
	b := make([]byte, 0, n+8)
	for x := uint64(88172645463325252); len(b) < n; {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b[:n]
}

func TestSnappyForms(t *testing.T) {
	t.Parallel()
	d, c := NewDecompressor(DecompressorOptions{}), NewCompressor()
	text := bytes.Repeat([]byte("snappy "), 9000)
	framed, _ := c.Compress(nil, Snappy, 0, text)
	raw := framed[xerialHeaderSize+4:][:binary.BigEndian.Uint32(framed[xerialHeaderSize:])]
	f := func(name string, in, want []byte) {
		t.Helper()
		if got, err := d.Decompress(nil, Snappy, in, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, want %d, %v", name, len(got), len(want), err)
		}
	}
	f("framed", framed, text)
	f("raw, as some clients send it", raw, text[:xerialBlockSize])
	f("two streams one after another", append(bytes.Clone(framed), framed...), append(bytes.Clone(text), text...))
	for name, in := range map[string][]byte{
		"nothing": {}, "cut header": framed[:10], "cut length": framed[:18], "cut block": framed[:40],
		"version 0":             append([]byte("\x82SNAPPY\x00\x00\x00\x00\x00\x00\x00\x00\x01"), framed[16:]...),
		"claim of 4 GiB":        {0xff, 0xff, 0xff, 0xff, 0x0f, 0},
		"framed claim of 1 GiB": append(bytes.Clone(xerialHeader), 0, 0, 0, 6, 0x80, 0x80, 0x80, 0x80, 0x04, 0),
	} {
		if _, err := d.Decompress(nil, Snappy, in, 0); !errors.Is(err, ErrDecompress) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGzipMembers(t *testing.T) {
	t.Parallel()
	d, c := NewDecompressor(DecompressorOptions{}), NewCompressor()
	one, _ := c.Compress(nil, Gzip, DefaultLevel, []byte("one"))
	two, _ := c.Compress(one, Gzip, DefaultLevel, []byte("two"))
	if got, err := d.Decompress(nil, Gzip, two, 0); err != nil || string(got) != "onetwo" {
		t.Errorf("two members: %q %v", got, err)
	}
	if got, err := d.Decompress(nil, Gzip, append(bytes.Clone(two), make([]byte, 50)...), 0); err != nil || string(got) != "onetwo" {
		t.Errorf("junk behind the last member: %q %v", got, err)
	}
	bad := bytes.Clone(two)
	bad[len(bad)-6]++
	if _, err := d.Decompress(nil, Gzip, bad, 0); !errors.Is(err, ErrDecompress) {
		t.Errorf("wrong gzip checksum: %v", err)
	}
}

func TestXXH32(t *testing.T) {
	t.Parallel()
	// Vectors of the reference implementation, seed 0.
	for in, want := range map[string]uint32{
		"": 0x02cc5d05, "a": 0x550d7456, "abc": 0x32d153ff, "Nobody inspects the spammish repetition": 0xe2293b2f,
	} {
		if got := xxh32([]byte(in)); got != want {
			t.Errorf("%q: %08x, want %08x", in, got, want)
		}
	}
}

func TestLZ4Frames(t *testing.T) {
	t.Parallel()
	d, c := NewDecompressor(DecompressorOptions{}), NewCompressor()
	text := bytes.Repeat([]byte("lz4 frame "), 20000)
	frame, _ := c.Compress(nil, LZ4, DefaultLevel, text)
	mutate := func(f func(b []byte) []byte) []byte { return f(bytes.Clone(frame)) }
	withHeader := func(flags, bd byte, extra ...byte) []byte {
		h := append([]byte{flags, bd}, extra...)
		out := append([]byte{4, 0x22, 0x4d, 0x18}, h...)
		return append(append(out, byte(xxh32(h)>>8)), frame[7:]...)
	}
	good := map[string][]byte{
		"plain":              frame,
		"junk behind":        append(bytes.Clone(frame), 1, 2, 3),
		"content size":       withHeader(0x68, 0x40, 1, 2, 3, 4, 5, 6, 7, 8),
		"content checksum":   append(withHeader(0x64, 0x40), 0, 0, 0, 0),
		"4 MiB blocks":       withHeader(0x60, 0x70),
		"block checksums":    blockChecksums(frame),
		"stored blocks only": storedLZ4(text),
	}
	for name, in := range good {
		if got, err := d.Decompress(nil, LZ4, in, 0); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	bad := map[string][]byte{
		"magic":             mutate(func(b []byte) []byte { b[0]++; return b }),
		"header checksum":   mutate(func(b []byte) []byte { b[6]++; return b }),
		"dependent blocks":  withHeader(0x40, 0x40),
		"version 2":         withHeader(0xa0, 0x40),
		"reserved bits":     withHeader(0x62, 0x40),
		"block size 3":      withHeader(0x60, 0x30),
		"no end mark":       frame[:len(frame)-4],
		"cut":               frame[:100],
		"block beyond 64 K": mutate(func(b []byte) []byte { b[7], b[8], b[9] = 0xff, 0xff, 0x7f; return b }),
		"bad block check":   mutate(func(b []byte) []byte { b = blockChecksums(b); b[len(b)-5]++; return b }),
	}
	for name, in := range bad {
		if _, err := d.Decompress(nil, LZ4, in, 0); !errors.Is(err, ErrDecompress) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Magic 0: Kafka's old clients summed the wrong bytes, so nobody looks.
	dec := d.get()
	defer d.put(dec)
	if err := dec.reset(LZ4, bad["header checksum"], 0); err != nil {
		t.Errorf("broken header checksum in magic 0: %v", err)
	}
}

func blockChecksums(frame []byte) []byte {
	h := []byte{0x70, 0x40}
	out := append([]byte{4, 0x22, 0x4d, 0x18}, h...)
	out = append(out, byte(xxh32(h)>>8))
	for b := frame[7:]; ; {
		size := binary.LittleEndian.Uint32(b)
		n := 4 + int(size&^lz4Raw)
		out = append(out, b[:n]...)
		if size == 0 {
			return out
		}
		out = binary.LittleEndian.AppendUint32(out, xxh32(b[4:n]))
		b = b[n:]
	}
}

func storedLZ4(b []byte) []byte {
	out := appendLZ4Header(nil)
	for len(b) > 0 {
		n := min(len(b), lz4BlockSize)
		out = append(binary.LittleEndian.AppendUint32(out, uint32(n)|lz4Raw), b[:n]...)
		b = b[n:]
	}
	return append(out, 0, 0, 0, 0)
}

func TestSplitFaults(t *testing.T) {
	t.Parallel()
	good := goodBatch(t, None, 3)
	f := func(name string, buf []byte, want error) {
		t.Helper()
		_, rest, err := Next(buf)
		if want == nil && err != nil || !errors.Is(err, want) || err != nil && len(rest) != len(buf) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	set := func(i int, v byte) []byte { b := bytes.Clone(good); b[i] = v; return b }
	f("whole", good, nil)
	f("empty", nil, nil)
	f("11 bytes", good[:11], ErrTruncated)
	f("16 bytes", good[:16], ErrTruncated)
	f("60 bytes", good[:60], ErrTruncated)
	f("size 13", append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13}, good[12:]...), ErrCorrupt)
	f("size 14 of magic 2", append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 14}, good[12:]...), ErrCorrupt)
	f("negative size", set(8, 0xff), ErrCorrupt)
	f("huge size", set(8, 0x7f), ErrTruncated)
	f("magic 3", set(16, 3), ErrCorrupt)
	f("magic -1", set(16, 0xff), ErrCorrupt)
	f("magic 1", set(16, 1), ErrCorrupt)
	f("zeros", make([]byte, 100), ErrCorrupt)
}

func TestSingle(t *testing.T) {
	t.Parallel()
	good := goodBatch(t, None, 3)
	old := AppendLegacy(nil, LegacyRecord{Magic: 1}, false)
	f := func(name string, buf []byte, want error) {
		t.Helper()
		if _, err := Single(buf, 9); want == nil && err != nil || !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	f("one", good, nil)
	f("none", nil, ErrInvalid)
	f("cut", good[:70], ErrInvalid)
	f("two", append(bytes.Clone(good), good...), ErrInvalid)
	f("one and a piece", append(bytes.Clone(good), good[:70]...), nil)
	f("one and zeros", append(bytes.Clone(good), make([]byte, 40)...), ErrCorrupt)
	f("magic 1", old, ErrInvalid)
	f("zeros", make([]byte, 40), ErrCorrupt)
}

func goodBatch(t testing.TB, c Codec, n int) Batch {
	t.Helper()
	b := NewBuilder(BuilderOptions{LeaderEpoch: -1, Codec: c}.NoProducer())
	for i := range n {
		b.Append(int64(1000+i), []byte{byte('a' + i%26)}, fmt.Appendf(nil, "value %d", i), nil)
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(batch)
}

// Records that lie across chunks, however the chunks fall, read the same.
func TestStraddlingRecords(t *testing.T) {
	t.Parallel()
	d := NewDecompressor(DecompressorOptions{})
	for _, size := range []int{1, 5, 700, 9000, 70 << 10, 600 << 10, 5 << 20} {
		for _, codec := range codecs {
			b := NewBuilder(BuilderOptions{Codec: codec}.NoProducer())
			value := randomBytes(size)
			n := min(2000, max(3, (9<<20)/size))
			for i := range n {
				b.Append(int64(i), nil, value[:len(value)-i%2], []Header{{Key: []byte("k")}})
			}
			batch, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			it := batch.Records(d)
			i := 0
			for ; it.Next(); i++ {
				if r := it.Record(); !bytes.Equal(r.Value, value[:len(value)-i%2]) || r.Offset != int64(i) || len(r.Headers) != 1 {
					t.Fatalf("%v size %d record %d differs", codec, size, i)
				}
			}
			if i != n || it.Err() != nil {
				t.Errorf("%v size %d: %d of %d, %v", codec, size, i, n, it.Err())
			}
			v, err := Validate(batch, &ValidateOptions{Target: KeepCodec, BeforeMax: 1 << 60, AfterMax: 1 << 60, Decompressor: d})
			if err != nil || v.MaxTimestamp != int64(n-1) || v.Rebuild {
				t.Errorf("%v size %d: validate %+v %v", codec, size, v, err)
			}
		}
	}
}

// A bomb is an error and costs no memory in validation.
func TestBombs(t *testing.T) {
	d := NewDecompressor(DecompressorOptions{MaxBytes: 64 << 20})
	c := NewCompressor()
	payload := appendRecord(nil, 0, 0, nil, make([]byte, 100<<20), nil)
	for _, codec := range []Codec{Gzip, LZ4, Zstd} {
		z, err := c.Compress(nil, codec, DefaultLevel, payload)
		if err != nil {
			t.Fatal(err)
		}
		b := rawBatch(codec, 1, z)
		var m0, m1 memStats
		m0.read()
		_, err = Validate(b, &ValidateOptions{Target: KeepCodec, BeforeMax: 1 << 60, AfterMax: 1 << 60, Decompressor: d})
		m1.read()
		if !errors.Is(err, ErrBomb) {
			t.Errorf("%v: %v", codec, err)
		}
		if got := m1.total - m0.total; got > 24<<20 {
			t.Errorf("%v: %d bytes allocated for a bomb of %d", codec, got, len(b))
		}
		it := b.Records(d)
		if it.Next() || !errors.Is(it.Err(), ErrBomb) {
			t.Errorf("%v iterated: %v", codec, it.Err())
		}
	}
}

// rawBatch puts a header around a payload.
func rawBatch(c Codec, count int32, payload []byte) Batch {
	b := Batch(append(make([]byte, HeaderSize), payload...))
	o := BuilderOptions{Codec: c}.NoProducer()
	putHeader(b, &o, count-1, 1000, 1000, count)
	return b
}

func TestNoAllocationPerRecord(t *testing.T) {
	d := NewDecompressor(DecompressorOptions{})
	for _, codec := range codecs {
		few, many := goodBatch(t, codec, 10), goodBatch(t, codec, 4000)
		walk := func(b Batch) float64 {
			return testing.AllocsPerRun(20, func() {
				it := b.Records(d)
				for it.Next() {
				}
				it.Close()
				if it.Err() != nil {
					t.Fatal(it.Err())
				}
			})
		}
		o := &ValidateOptions{Target: KeepCodec, BeforeMax: 1 << 60, AfterMax: 1 << 60, Decompressor: d}
		check := func(b Batch) float64 {
			return testing.AllocsPerRun(20, func() {
				if _, err := Validate(b, o); err != nil {
					t.Fatal(err)
				}
			})
		}
		walk(many)
		if a, z := walk(few), walk(many); z > a+1 || z > 3 {
			t.Errorf("%v: iterating allocates %.1f for 10 records, %.1f for 4000", codec, a, z)
		}
		if a, z := check(few), check(many); z > a+1 || z > 3 {
			t.Errorf("%v: validating allocates %.1f for 10 records, %.1f for 4000", codec, a, z)
		}
	}
}

func TestVarints(t *testing.T) {
	t.Parallel()
	for _, v := range []int64{0, -1, 1, 63, 64, -64, -65, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64} {
		b := binary.AppendVarint(nil, v)
		if got, i := varint64(b, 0); got != v || i != len(b) || VarintSize(v) != len(b) {
			t.Errorf("%d: %d, %d bytes, size %d", v, got, i, VarintSize(v))
		}
		if got, i := varint32(b, 0); int64(int32(v)) == v && (int64(got) != v || i != len(b)) {
			t.Errorf("%d: %d", v, got)
		}
		if _, i := varint64(b[:len(b)-1], 0); i != -1 {
			t.Errorf("%d cut: read", v)
		}
	}
	if _, i := varint32(bytes.Repeat([]byte{0x80}, 6), 0); i != -1 {
		t.Error("6-byte varint read")
	}
	if _, i := varint64(bytes.Repeat([]byte{0x80}, 11), 0); i != -1 {
		t.Error("11-byte varint read")
	}
}
