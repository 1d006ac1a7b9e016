package broker

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
	"gregor/internal/uuid"
)

// frames sends encoded requests and reads whole responses, at little cost of its own.
type frames struct {
	c   *client
	buf []byte
}

func (f *frames) roundTrip(b *testing.B, request []byte) {
	if _, err := f.c.conn.Write(request); err != nil {
		b.Fatal(err)
	}
	var size [4]byte
	if _, err := io.ReadFull(f.c.conn, size[:]); err != nil {
		b.Fatal(err)
	}
	left := int(binary.BigEndian.Uint32(size[:]))
	for left > 0 {
		n, err := f.c.conn.Read(f.buf[:min(left, len(f.buf))])
		if err != nil {
			b.Fatal(err)
		}
		left -= n
	}
}

func encode(q kmsg.Request) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench")).AppendRequest(nil, q, 1)
}

func valueOf(rnd *rand.Rand, n int) string {
	const words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu "
	b := make([]byte, 0, n)
	for len(b) < n {
		i := rnd.IntN(len(words) - 8)
		b = append(b, words[i:i+8]...)
	}
	return string(b[:n])
}

// BenchmarkProduce measures a request of one batch for each of 12 partitions, client included.
func BenchmarkProduce(b *testing.B) {
	for _, bench := range []struct {
		name    string
		records int // of 1 KiB
		codec   record.Codec
	}{{"16KiB", 16, record.None}, {"64KiB", 64, record.None}, {"64KiB-lz4", 64, record.LZ4}, {"64KiB-zstd", 64, record.Zstd}} {
		b.Run(bench.name, func(b *testing.B) {
			w := newWorld(b, nil)
			w.topic("a", 12)
			rnd := rand.New(rand.NewPCG(1, 2))
			var values []string
			for range bench.records {
				values = append(values, valueOf(rnd, 1024))
			}
			o := plain()
			o.Codec = bench.codec
			q := produceRequest(12, 1, "a", uuid.Zero, 0, batch(b, o, values...))
			for p := int32(1); p < 12; p++ {
				q.Topics[0].Partitions = append(q.Topics[0].Partitions, kmsg.ProduceRequestTopicPartition{Partition: p,
					Records: q.Topics[0].Partitions[0].Records})
			}
			f := &frames{w.client(), make([]byte, 64<<10)}
			request := encode(q)
			b.SetBytes(int64(bench.records) << 10 * 12)
			b.ReportAllocs()
			for b.Loop() {
				f.roundTrip(b, request)
			}
		})
	}
}

// BenchmarkSmallProduce measures one record of 100 bytes alone in a request.
func BenchmarkSmallProduce(b *testing.B) {
	w := newWorld(b, nil)
	w.topic("a", 1)
	f := &frames{w.client(), make([]byte, 4<<10)}
	request := encode(produceRequest(12, 1, "a", uuid.Zero, 0, batch(b, plain(), string(make([]byte, 100)))))
	b.ReportAllocs()
	for b.Loop() {
		f.roundTrip(b, request)
	}
}

// BenchmarkFetch measures reading 12 partitions, up to 1 MiB of each, from the page cache.
func BenchmarkFetch(b *testing.B) {
	w := newWorld(b, nil)
	w.topic("a", 12)
	c := w.client()
	rnd := rand.New(rand.NewPCG(1, 2))
	var values []string
	for range 512 {
		values = append(values, valueOf(rnd, 1024))
	}
	records := batch(b, plain(), values...)
	q := fetchRequest(12, "a", uuid.Zero, 0, 0)
	q.Topics[0].Partitions = q.Topics[0].Partitions[:0]
	for p := range int32(12) {
		for range 4 {
			w.produce(c, "a", p, records)
		}
		q.Topics[0].Partitions = append(q.Topics[0].Partitions, fetchRequest(12, "a", uuid.Zero, p, 0).Topics[0].Partitions[0])
	}
	f := &frames{w.client(), make([]byte, 256<<10)}
	request := encode(q)
	b.SetBytes(12 << 20)
	b.ReportAllocs()
	for b.Loop() {
		f.roundTrip(b, request)
	}
}
