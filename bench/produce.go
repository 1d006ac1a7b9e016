package main

import (
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
)

const (
	// manyPartitions is over how many partitions the workloads spread, as a topic of some size does.
	manyPartitions = 12
	producers      = 2
	// inFlight is how many requests of a producer wait for their answer at a time, so that the server never waits for the client.
	inFlight  = 2
	valueSize = 1024
	// distinctBytes is how much of different content a producer sends over and over. It exceeds the processor's caches for a
	// core: a server must fetch what it decompresses from memory, as it would from a network card.
	distinctBytes = 8 << 20
)

// produceLoad is a workload of batches of one size.
type produceLoad struct {
	bytes      int64 // before compression
	batch      int
	perRequest int // batches in a request, each for another partition
	codec      record.Codec
}

// produceFrame is a request ready to be sent, and what is in it.
type produceFrame struct {
	bytes   []byte
	raw     int64 // bytes of the batches before compression
	stored  int64
	records int64
}

func produceRequest(t topic, first int, batches []record.Batch) *kmsg.ProduceRequest {
	q := kmsg.NewPtrProduceRequest()
	q.Version, q.Acks, q.TimeoutMillis = 13, 1, 30000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.TopicID = t.name, t.id
	for i, b := range batches {
		p := kmsg.NewProduceRequestTopicPartition()
		p.Partition, p.Records = int32((first+i)%t.partitions), b
		rt.Partitions = append(rt.Partitions, p)
	}
	q.Topics = append(q.Topics, rt)
	return q
}

// encoded is a batch and its size before compression.
type encoded struct {
	batch record.Batch
	raw   int
}

// batchesOf makes the batches of a load, or gives those that were made before.
func (b *bench) batchesOf(l produceLoad) ([]encoded, error) {
	key := fmt.Sprint(l.batch, l.codec)
	if have, ok := b.batches[key]; ok {
		return have, nil
	}
	v := newValues(1)
	var out []encoded
	for size := 0; size < distinctBytes || len(out)%manyPartitions != 0; {
		batch, raw, err := v.batch(l.batch, valueSize, l.codec)
		if err != nil {
			return nil, err
		}
		size += raw
		out = append(out, encoded{batch, raw})
	}
	b.batches[key] = out
	return out, nil
}

// frames encodes what one producer sends.
func (b *bench) frames(l produceLoad, t topic) ([]produceFrame, error) {
	all, err := b.batchesOf(l)
	if err != nil {
		return nil, err
	}
	var out []produceFrame
	for i := 0; i < len(all); i += l.perRequest {
		var f produceFrame
		var batches []record.Batch
		for _, e := range all[i : i+l.perRequest] {
			f.raw += int64(e.raw)
			f.stored += int64(len(e.batch))
			f.records += int64(e.batch.Count())
			batches = append(batches, e.batch)
		}
		f.bytes = encode(produceRequest(t, i, batches))
		out = append(out, f)
	}
	return out, nil
}

// produced is what was acknowledged.
type produced struct {
	raw, stored, records int64
}

// fill produces l.bytes into t. It returns what a stopwatch says of the time between the first request and the last answer.
func (b *bench) fill(s *server, name string, t topic, l produceLoad) (produced, lap, error) {
	var sets [producers][]produceFrame
	for i := range sets {
		var err error
		if sets[i], err = b.frames(l, t); err != nil {
			return produced{}, lap{}, err
		}
	}
	ratio := float64(sets[0][0].stored) / float64(sets[0][0].raw)
	held, err := holdBallast(int64(float64(l.bytes) * ratio))
	if err != nil {
		return produced{}, lap{}, err
	}
	defer held.drop()
	var conns [producers]*conn
	for i := range conns {
		if conns[i], err = s.connect(); err != nil {
			return produced{}, lap{}, err
		}
		defer conns[i].close()
	}
	stop := b.profile(s, name)
	defer stop()
	w, err := startWatch(s.pid())
	if err != nil {
		return produced{}, lap{}, err
	}
	var wg sync.WaitGroup
	var sums [producers]produced
	var errs [producers]error
	for i := range conns {
		wg.Go(func() { sums[i], errs[i] = pump(conns[i], sets[i], l.bytes/producers, held) })
	}
	wg.Wait()
	took, err := w.stop()
	total := produced{}
	for _, p := range sums {
		total.raw += p.raw
		total.stored += p.stored
		total.records += p.records
	}
	return total, took, errors.Join(append(errs[:], err)...)
}

// pump sends frames over and over until it has sent bytes, with inFlight requests unanswered at a time.
func pump(c *conn, frames []produceFrame, bytes int64, b *ballast) (produced, error) {
	var sum produced
	var sent int64
	for i, waiting := 0, 0; ; {
		if sent < bytes && waiting < inFlight {
			f := frames[i%len(frames)]
			b.give(f.stored)
			setCorrelation(f.bytes, int32(i))
			if err := c.write(f.bytes); err != nil {
				return sum, err
			}
			sent += f.raw
			i++
			waiting++
			continue
		}
		if waiting == 0 {
			return sum, nil
		}
		if err := c.produceAnswer(); err != nil {
			return sum, err
		}
		f := frames[(i-waiting)%len(frames)]
		sum.raw += f.raw
		sum.stored += f.stored
		sum.records += f.records
		waiting--
	}
}

// produceAnswer receives a Produce response v13 and looks at its error codes alone.
func (c *conn) produceAnswer() error {
	r := c.open()
	for n := r.uvarint() - 1; n > 0 && r.err == nil; n-- {
		r.skip(16) // topic id
		for k := r.uvarint() - 1; k > 0 && r.err == nil; k-- {
			p, code := r.int32(), r.int16()
			if r.err == nil && code != 0 {
				return fmt.Errorf("produce to partition %d: error %d", p, code)
			}
			r.skip(8 + 8 + 8) // base offset, append time, log start offset
			for e := r.uvarint() - 1; e > 0 && r.err == nil; e-- {
				r.int32()
				r.skip(max(0, r.uvarint()-1))
				r.tags()
			}
			r.skip(max(0, r.uvarint()-1)) // error message
			r.tags()
		}
		r.tags()
	}
	r.skip(4) // throttle time
	r.tags()
	if r.err == nil && r.left != 0 {
		return fmt.Errorf("produce response has %d bytes too many", r.left)
	}
	return r.err
}

// produceWorkload fills a new topic and notes the figures. The topic stays.
func (b *bench) produceWorkload(s *server, name string, l produceLoad) (topic, produced, error) {
	t, err := b.freshTopic(s, manyPartitions)
	if err != nil {
		return t, produced{}, err
	}
	if err := b.settle(s); err != nil {
		return t, produced{}, err
	}
	sum, took, err := b.fill(s, name, t, l)
	if err != nil {
		return t, sum, fmt.Errorf("%s: %w", name, err)
	}
	got, err := b.admin.records(t)
	if err == nil && got != sum.records {
		err = fmt.Errorf("%s: %d records were acknowledged, the log has %d", name, sum.records, got)
	}
	b.perByte(s, name, sum.raw, took)
	return t, sum, err
}
