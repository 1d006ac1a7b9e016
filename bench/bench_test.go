package main

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
)

func TestQuantile(t *testing.T) {
	var l []time.Duration
	for i := range 1000 {
		l = append(l, time.Duration(i+1))
	}
	for _, c := range []struct {
		q    float64
		want time.Duration
	}{{0, 1}, {0.5, 500}, {0.99, 990}, {0.999, 999}, {1, 1000}} {
		if got := quantile(l, c.q); got != c.want {
			t.Errorf("quantile %v: got %d, want %d", c.q, got, c.want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of nothing: got %d", got)
	}
}

func TestMedian(t *testing.T) {
	if got := median([]float64{5, 1, 3}); got != 3 {
		t.Errorf("median of three: got %v", got)
	}
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median of four: got %v", got)
	}
}

// The values stand for real events, so they must compress like them, and each must have its size.
func TestValuesCompressLikeEvents(t *testing.T) {
	for codec, want := range map[record.Codec][2]float64{record.None: {0.99, 1.01}, record.LZ4: {0.4, 0.6}, record.Zstd: {0.25, 0.45}} {
		b, raw, err := newValues(1).batch(256<<10, valueSize, codec)
		if err != nil {
			t.Fatal(err)
		}
		if raw > 256<<10 || raw < 250<<10 {
			t.Errorf("%v: batch of %d bytes before compression", codec, raw)
		}
		if r := float64(len(b)) / float64(raw); r < want[0] || r > want[1] {
			t.Errorf("%v: compressed to %.2f of its size, want %v", codec, r, want)
		}
		if b.CRC() != b.ComputeCRC() {
			t.Errorf("%v: wrong CRC", codec)
		}
	}
	for _, n := range []int{tinyValue, valueSize} {
		if v := newValues(2).next(n); len(v) != n {
			t.Errorf("value of %d bytes, want %d", len(v), n)
		}
	}
}

// The lean readers must agree with the full codec: they are fed responses that it wrote, through a real socket.
func TestLeanReaders(t *testing.T) {
	from, to, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer (&conn{fd: to}).close()
	c := &conn{fd: from, in: make([]byte, 64)} // a small buffer, so that every field is cut once
	defer c.close()
	send := func(resp kmsg.Response) {
		body := resp.AppendTo([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0}) // size, correlation id, no tags
		n := len(body) - 4
		body[0], body[1], body[2], body[3] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
		if err := writeFull(to, body); err != nil {
			t.Fatal(err)
		}
	}

	produce := func(code int16) *kmsg.ProduceResponse {
		r := kmsg.NewPtrProduceResponse()
		r.Version = 13
		rt := kmsg.NewProduceResponseTopic()
		for i := range 3 {
			p := kmsg.NewProduceResponseTopicPartition()
			p.Partition, p.ErrorCode = int32(i), code
			e := kmsg.NewProduceResponseTopicPartitionErrorRecord()
			e.ErrorMessage = kmsg.StringPtr("a fault")
			p.ErrorRecords = append(p.ErrorRecords, e)
			rt.Partitions = append(rt.Partitions, p)
		}
		r.Topics = append(r.Topics, rt)
		return r
	}
	send(produce(0))
	if err := c.produceAnswer(); err != nil {
		t.Error(err)
	}
	send(produce(7))
	if err := c.produceAnswer(); err == nil || !strings.Contains(err.Error(), "error 7") {
		t.Errorf("an error code was not seen: %v", err)
	}
	// The rest of the refused response is still to come.
	if err := c.patience(20 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := c.take(1); err != nil {
			break
		}
	}

	b1, _, err := newValues(1).batch(2048, 300, record.None)
	if err != nil {
		t.Fatal(err)
	}
	b2, _, err := newValues(2).batch(2048, 300, record.LZ4)
	if err != nil {
		t.Fatal(err)
	}
	b2.SetBaseOffset(b1.NextOffset())
	r := kmsg.NewPtrFetchResponse()
	r.Version = 17
	rt := kmsg.NewFetchResponseTopic()
	for i := range 2 {
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition = int32(i)
		if i == 1 {
			p.RecordBatches = append(append(append([]byte{}, b1...), b2...), b1[:100]...) // the last one cut off
			p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{kmsg.NewFetchResponseTopicPartitionAbortedTransaction()}
		}
		rt.Partitions = append(rt.Partitions, p)
	}
	r.Topics = append(r.Topics, rt)
	send(r)
	if err := c.patience(time.Second); err != nil {
		t.Fatal(err)
	}
	f := newFetcher(c, topic{partitions: 2})
	if err := f.answer(); err != nil {
		t.Fatal(err)
	}
	if want := int64(b1.Count() + b2.Count()); f.records != want || f.next[1] != want || f.next[0] != 0 {
		t.Errorf("stepped over %d records to offsets %v, want %d", f.records, f.next, want)
	}
	if want := int64(len(b1) + len(b2)); f.bytes != want {
		t.Errorf("stepped over %d bytes, want %d", f.bytes, want)
	}
}

func TestTable(t *testing.T) {
	figures := []figure{
		{"gregor", 1, "produce-64k", "server_cpu", 0.5, "s/GiB"}, {"gregor", 2, "produce-64k", "server_cpu", 0.4, "s/GiB"},
		{"gregor", 3, "produce-64k", "server_cpu", 0.9, "s/GiB"}, {"kafka", 1, "produce-64k", "server_cpu", 2, "s/GiB"},
		{machine, 1, "produce-64k", "server_cpu", 0.4, "s/GiB"}, {"gregor", 1, "tiny-16", "rate", 50000, "requests/s"},
		{"gregor", 1, "produce-lz4-header", "server_cpu", 0.3, "s/GiB"}, {"kafka", 1, "produce-lz4", "server_cpu", 1, "s/GiB"},
	}
	got := table(figures)
	for _, want := range []string{
		"| produce: 64 KiB batches: server CPU, s/GiB | 0.500 | 2.00 | 0.250x | 0.400 | <= 0.500 | yes | 3, 1 |",
		"| 100-byte requests: 16 connections: rate, requests/s | 50.0k |  |  |  | >= 70.0k | no | 1, 0 |",
		"| produce compressed: lz4, gregor.produce.validation=header: server CPU, s/GiB | 0.300 | 1.00 | 0.300x |  | <= 0.350 | yes | 1, 1 |",
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("the table lacks\n%s\nin\n%s", want, got)
		}
	}
	for _, f := range figures {
		if back, err := parseFigure(f.String()); err != nil || back != f {
			t.Errorf("%q is read as %v, %v", f, back, err)
		}
	}
}
