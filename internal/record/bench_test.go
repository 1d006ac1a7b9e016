package record

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// jsonValue is about n bytes of the kind that services log: keys that repeat, ids and numbers that don't.
func jsonValue(r *rand.Rand, n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"event":"order-created","version":3,"items":[`)
	for b.Len() < n-70 {
		fmt.Fprintf(&b, `{"sku":"%08x","qty":%d,"price":%d.%02d,"note":"%s"},`, r.Uint32(), r.IntN(9)+1, r.IntN(900), r.IntN(100),
			[]string{"express", "gift wrapped", "fragile", "standard delivery"}[r.IntN(4)])
	}
	fmt.Fprintf(&b, `],"trace":"%016x%016x"}`, r.Uint64(), r.Uint64())
	return b.Bytes()
}

func benchBatch(b *testing.B, c Codec, size int) (Batch, int) {
	r := rand.New(rand.NewPCG(1, 2))
	nb := NewBuilder(BuilderOptions{Codec: c, ProducerID: 1, BaseSequence: 0})
	for nb.Len() < size {
		nb.Append(1000, nil, jsonValue(r, 1024), nil)
	}
	batch, err := nb.Build()
	if err != nil {
		b.Fatal(err)
	}
	return batch, nb.Len()
}

// BenchmarkValidate is what a broker does to a produced batch (256 KiB before compression; bytes are those).
func BenchmarkValidate(b *testing.B) {
	for _, c := range codecs {
		batch, size := benchBatch(b, c, 256<<10)
		for _, header := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v/header=%v", c, header), func(b *testing.B) {
				o := openOptions(NewDecompressor(DecompressorOptions{}))
				o.HeaderOnly = header
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ReportMetric(float64(size)/float64(len(batch)), "ratio")
				for b.Loop() {
					if _, err := Validate(batch, &o); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/float64(size)*(1<<30), "s/GiB")
			})
		}
	}
}

func BenchmarkIterate(b *testing.B) {
	for _, c := range codecs {
		batch, size := benchBatch(b, c, 256<<10)
		b.Run(c.String(), func(b *testing.B) {
			d := NewDecompressor(DecompressorOptions{})
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				it := batch.Records(d)
				for it.Next() {
				}
				if it.Err() != nil {
					b.Fatal(it.Err())
				}
			}
		})
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, c := range codecs {
		r := rand.New(rand.NewPCG(1, 2))
		values := make([][]byte, 64)
		for i := range values {
			values[i] = jsonValue(r, 1024)
		}
		b.Run(c.String(), func(b *testing.B) {
			o := BuilderOptions{Codec: c, Compressor: NewCompressor()}.NoProducer()
			nb := NewBuilder(o)
			b.SetBytes(64 << 10)
			b.ReportAllocs()
			for b.Loop() {
				nb.Reset(o)
				for _, v := range values {
					nb.Append(1000, nil, v, nil)
				}
				if _, err := nb.Build(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCRC(b *testing.B) {
	batch, _ := benchBatch(b, None, 256<<10)
	b.SetBytes(int64(len(batch)))
	for b.Loop() {
		batch.ComputeCRC()
	}
}
