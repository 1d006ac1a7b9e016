package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
)

// fetcher reads all partitions of a topic over one connection.
type fetcher struct {
	c       *conn
	t       topic
	q       *kmsg.FetchRequest
	frame   []byte
	next    []int64 // offset to fetch by partition
	records int64
	bytes   int64
	// arrived, if not nil, is told of every batch.
	arrived func(partition int, lastOffset int64)
}

// newFetcher asks for as much as Kafka's consumers do by default: 1 MiB of a partition, 50 MiB in all.
func newFetcher(c *conn, t topic) *fetcher {
	q := kmsg.NewPtrFetchRequest()
	q.Version, q.MaxWaitMillis, q.MinBytes, q.MaxBytes, q.SessionID, q.SessionEpoch = 17, 500, 1, 50<<20, 0, -1
	rt := kmsg.NewFetchRequestTopic()
	rt.TopicID = t.id
	for p := range t.partitions {
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = int32(p), 1<<20, -1
		rt.Partitions = append(rt.Partitions, rp)
	}
	q.Topics = append(q.Topics, rt)
	return &fetcher{c: c, t: t, q: q, next: make([]int64, t.partitions)}
}

// ask sends the next request.
func (f *fetcher) ask() error {
	for i := range f.q.Topics[0].Partitions {
		p := &f.q.Topics[0].Partitions[i]
		p.FetchOffset = f.next[p.Partition]
	}
	f.frame = formatter.AppendRequest(f.frame[:0], f.q, 0)
	return f.c.write(f.frame)
}

// answer receives a Fetch response v17, stepping over the batches by their headers.
func (f *fetcher) answer() error {
	r := f.c.open()
	r.skip(4) // throttle time
	if code := r.int16(); code != 0 {
		return fmt.Errorf("fetch: error %d", code)
	}
	r.skip(4) // session
	for n := r.uvarint() - 1; n > 0 && r.err == nil; n-- {
		r.skip(16)
		for k := r.uvarint() - 1; k > 0 && r.err == nil; k-- {
			p, code := int(r.int32()), r.int16()
			if r.err == nil && code != 0 {
				return fmt.Errorf("fetch from partition %d: error %d", p, code)
			}
			r.skip(8 + 8 + 8)                                      // high watermark, last stable offset, log start offset
			for a := r.uvarint() - 1; a > 0 && r.err == nil; a-- { // aborted transactions
				r.skip(16)
				r.tags()
			}
			r.skip(4) // preferred replica
			if size := r.uvarint() - 1; size > 0 {
				f.batches(r, p, size)
			}
			r.tags()
		}
		r.tags()
	}
	r.tags()
	if r.err == nil && r.left != 0 {
		return fmt.Errorf("fetch response has %d bytes too many", r.left)
	}
	return r.err
}

// batches steps over size bytes of batches. The last one may be cut off.
func (f *fetcher) batches(r *reader, partition, size int) {
	for size >= record.HeaderSize && r.err == nil {
		h := record.Batch(r.bytes(record.HeaderSize))
		if r.err != nil {
			return
		}
		whole, last, count := h.Size(), h.LastOffset(), h.Count()
		if whole < record.HeaderSize {
			r.err = fmt.Errorf("batch of %d bytes", whole)
			return
		}
		size -= record.HeaderSize
		if whole-record.HeaderSize > size {
			break
		}
		r.skip(whole - record.HeaderSize)
		size -= whole - record.HeaderSize
		f.next[partition] = last + 1
		f.records += int64(count)
		f.bytes += int64(whole)
		if f.arrived != nil {
			f.arrived(partition, last)
		}
	}
	r.skip(size)
}

// fetchWorkload lets each of n consumers read the whole topic, which is in the page cache.
func (b *bench) fetchWorkload(s *server, name string, t topic, want produced, n int) error {
	fetchers := make([]*fetcher, n)
	for i := range fetchers {
		c, err := s.connect()
		if err != nil {
			return err
		}
		defer c.close()
		fetchers[i] = newFetcher(c, t)
	}
	if err := b.settle(s); err != nil {
		return err
	}
	stop := b.profile(s, name)
	w, err := startWatch(s.pid())
	if err != nil {
		return err
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, f := range fetchers {
		wg.Go(func() {
			for f.records < want.records && errs[i] == nil {
				if errs[i] = f.ask(); errs[i] == nil {
					errs[i] = f.answer()
				}
			}
		})
	}
	wg.Wait()
	took, err := w.stop()
	stop()
	if err = errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var bytes int64
	for _, f := range fetchers {
		bytes += f.bytes
	}
	b.perByte(s, name, bytes, took)
	return nil
}

const (
	e2eRate  = 10000 // records a second
	e2eBatch = 10    // of them in a batch, one batch each ms
	e2eEvery = time.Second * e2eBatch / e2eRate
)

// e2eWorkload sends a batch each ms, to one partition after another, and measures from when it was due until a consumer that
// waits for it has it.
func (b *bench) e2eWorkload(s *server, name string, warm, measured time.Duration) error {
	t, err := b.freshTopic(s, manyPartitions)
	if err != nil {
		return err
	}
	pc, err := s.connect()
	if err != nil {
		return err
	}
	defer pc.close()
	cc, err := s.connect()
	if err != nil {
		return err
	}
	defer cc.close()
	v := newValues(7)
	frames := make([][]byte, t.partitions)
	for p := range frames {
		// batch makes as many records as fit; the values are what is left after a record's own fields.
		batch, _, err := v.batch(e2eBatch*(valueSize+16), valueSize, record.None)
		if err != nil {
			return err
		}
		if batch.Count() != e2eBatch {
			return fmt.Errorf("%s: a batch has %d records", name, batch.Count())
		}
		frames[p] = encode(produceRequest(t, p, []record.Batch{batch}))
	}
	if err := b.settle(s); err != nil {
		return err
	}
	skip := int(warm / e2eEvery)
	total := skip + int(measured/e2eEvery)
	lat := make([]time.Duration, 0, total)
	f := newFetcher(cc, t)
	begin := time.Now().Add(20 * time.Millisecond)
	f.arrived = func(partition int, last int64) {
		k := int(last/e2eBatch)*t.partitions + partition
		if d := time.Since(begin.Add(time.Duration(k) * e2eEvery)); k >= skip {
			lat = append(lat, d)
		}
	}
	var wg sync.WaitGroup
	var errs [3]error
	wg.Go(func() {
		defer lockThread()()
		for k := range total {
			sleepUntil(begin.Add(time.Duration(k) * e2eEvery))
			if errs[0] = pc.write(frames[k%len(frames)]); errs[0] != nil {
				return
			}
		}
	})
	wg.Go(func() {
		defer lockThread()()
		for range total {
			if errs[1] = pc.produceAnswer(); errs[1] != nil {
				return
			}
		}
	})
	wg.Go(func() {
		defer lockThread()()
		for f.records < int64(total)*e2eBatch && errs[2] == nil {
			if errs[2] = f.ask(); errs[2] == nil {
				errs[2] = f.answer()
			}
		}
	})
	time.Sleep(time.Until(begin.Add(warm)))
	stop := b.profile(s, name)
	w, err := startWatch(s.pid())
	if err != nil {
		return err
	}
	wg.Wait()
	took, err := w.stop()
	stop()
	if err = errors.Join(append(errs[:], err)...); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.note(s, name, "server_cpu", 100*took.server.Seconds()/took.took.Seconds(), "%")
	b.note(s, name, "client_cpu", 100*took.own.Seconds()/took.took.Seconds(), "%")
	b.note(s, name, "others_cpu", took.others(), "%")
	b.latencies(s, name, lat)
	return nil
}

// oneBatch encodes a request with a single value.
func oneBatch(t topic, partition int, value []byte) ([]byte, error) {
	builder := record.NewBuilder(record.BuilderOptions{LeaderEpoch: -1}.NoProducer())
	builder.Append(time.Now().UnixMilli(), nil, value, nil)
	batch, err := builder.Build()
	if err != nil {
		return nil, err
	}
	return encode(produceRequest(t, partition, []record.Batch{batch})), nil
}
