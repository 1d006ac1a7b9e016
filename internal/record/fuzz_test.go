package record

import (
	"bytes"
	"testing"
)

// seedLogs adds small real segments as seeds.
func seedLogs(f *testing.F) {
	for _, name := range []string{"single-clean", "legacy-magic"} {
		for _, b := range goldenFiles(f, name) {
			if len(b) < 4<<10 {
				f.Add(b)
			}
		}
	}
	for _, c := range codecs {
		f.Add([]byte(goodBatch(f, c, 5)))
	}
}

// FuzzEntries cuts and reads whatever there is, in all formats, and checks that validation, iteration and filtering agree.
func FuzzEntries(f *testing.F) {
	seedLogs(f)
	d := NewDecompressor(DecompressorOptions{MaxBytes: 1 << 20})
	c := NewCompressor()
	f.Fuzz(func(t *testing.T, buf []byte) {
		for {
			e, rest, err := NextEntry(buf)
			if err != nil || e == nil {
				if len(rest) != len(buf) && err != nil {
					t.Fatal("bytes lost with an error")
				}
				return
			}
			if len(e)+len(rest) != len(buf) {
				t.Fatal("bytes lost")
			}
			buf = rest
			_ = e.Check()
			e.LastOffset()
			e.MaxTimestamp()
			if e.Magic() < 2 {
				it := e.Legacy().Records(d)
				for it.Next() {
					it.Record()
				}
				continue
			}
			b := resum(bytes.Clone(e))
			n, iterErr := 0, error(nil)
			it := b.Records(d)
			for it.Next() {
				if r := it.Record(); r.Size <= 0 {
					t.Fatalf("%+v", r)
				}
				n++
			}
			iterErr = it.Err()
			o := ValidateOptions{Target: KeepCodec, BeforeMax: 1 << 62, AfterMax: 1 << 62, Decompressor: d, TimestampType: LogAppendTime}
			b.SetMaxTimestamp(false, b.MaxTimestamp())
			if b.Codec() > Zstd && b.Count() <= 0 {
				continue // nothing to decompress, so only validation looks at the codec
			}
			v, err := Validate(b, &o)
			if (err == nil) != (iterErr == nil) {
				t.Fatalf("iterating %d records: %v; validating: %v", n, iterErr, err)
			}
			if err != nil {
				continue
			}
			if v.Records != int32(n) {
				t.Fatalf("%d records iterated, %d validated", n, v.Records)
			}
			i := 0
			out, _, err := Filter(nil, b, &FilterOptions{Decompressor: d, Compressor: c, KeepEmpty: true,
				Keep: func(Batch, *Record) bool { i++; return i%2 == 0 }})
			if err != nil {
				t.Fatal(err)
			}
			if err := Batch(out).Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzDecompress feeds each codec raw bytes: an error or at most the limit of output, never a panic.
func FuzzDecompress(f *testing.F) {
	c := NewCompressor()
	for _, codec := range codecs {
		z, err := c.Compress(nil, codec, DefaultLevel, bytes.Repeat([]byte("fuzz "), 500))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(int8(codec), z)
	}
	const limit = 1 << 20
	d := NewDecompressor(DecompressorOptions{MaxBytes: limit})
	f.Fuzz(func(t *testing.T, codec int8, src []byte) {
		out, err := d.Decompress(nil, Codec(codec&7), src, 0)
		if err == nil && len(out) > limit && codec != 0 {
			t.Fatalf("%d bytes", len(out))
		}
		dec := d.get()
		defer d.put(dec)
		if dec.reset(LZ4, src, 0) == nil {
			for {
				if _, err := dec.next(); err != nil {
					return
				}
			}
		}
	})
}

// FuzzValidate tries hostile payloads behind a header that is right, under every codec.
func FuzzValidate(f *testing.F) {
	for _, c := range codecs {
		f.Add(int8(c), int32(5), []byte(goodBatch(f, None, 5).Payload()))
	}
	d, c := NewDecompressor(DecompressorOptions{MaxBytes: 1 << 20}), NewCompressor()
	f.Fuzz(func(t *testing.T, codec int8, count int32, records []byte) {
		cd := Codec(uint8(codec) % 5)
		z, err := c.Compress(nil, cd, DefaultLevel, records)
		if err != nil {
			t.Fatal(err)
		}
		b := rawBatch(cd, count, z)
		o := ValidateOptions{FromClient: true, Target: KeepCodec, BeforeMax: 1 << 62, AfterMax: 1 << 62, Decompressor: d}
		v, err := Validate(b, &o)
		if err != nil {
			return
		}
		// The same records under another codec must pass as well, and survive a rebuild.
		other := Codec((uint8(codec) + 1) % 5)
		z, err = c.Compress(nil, other, DefaultLevel, records)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Validate(rawBatch(other, count, z), &o); err != nil {
			t.Fatalf("good as %v, as %v: %v", cd, other, err)
		}
		nb, err := Rebuild(b, RebuildOptions{Target: other, Decompressor: d, Compressor: c, LeaderEpoch: -1})
		if err != nil {
			t.Fatal(err)
		}
		v2, err := Validate(nb, &o)
		if err != nil || v2.Records != v.Records || v2.MaxTimestamp != v.MaxTimestamp || v2.Rebuild {
			t.Fatalf("rebuilt: %+v, was %+v: %v", v2, v, err)
		}
	})
}
