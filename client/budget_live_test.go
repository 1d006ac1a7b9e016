package client

import (
	"context"
	"encoding/binary"
	"flag"
	"testing"
	"time"

	"gregor/internal/await"
)

var budgetBytes = flag.Int64("client.budget-bytes", 32<<20, "how much TestLiveConsumeWithinBudget consumes; its buffer is a sixteenth")

// held are the bytes on the caller's side: fetched, and not given back.
func (u *Consumer) held() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, f := range u.ready {
		n += f.size
	}
	for _, f := range u.hand {
		n += f.size
	}
	return n
}

// Much more than the buffer holds goes through it, complete and in order, and never more than the buffer holds is in it.
func TestLiveConsumeWithinBudget(t *testing.T) {
	c := liveClient(t, func(o *Options) { o.Timeout = 10 * await.Patience })
	ctx, cancel := context.WithTimeout(t.Context(), 10*await.Patience)
	defer cancel()
	const partitions, size = 8, 16 << 10
	topic := liveTopic(t, c, partitions, nil)
	n := *budgetBytes / size
	p := c.NewProducer(ProducerOptions{BatchBytes: 100_000})
	for i := range n {
		v := make([]byte, size)
		binary.BigEndian.PutUint64(v, uint64(i))
		err := p.Produce(ctx, &Record{Topic: topic, Partition: int32(i % partitions), Value: v}, func(_ *Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	at := map[TopicPartition]int64{}
	for i := range int32(partitions) {
		at[TopicPartition{topic, i}] = Earliest
	}
	budget := int(*budgetBytes / 16)
	u := consumer(t, c, ConsumerOptions{Partitions: at, BufferBytes: budget, PartitionBytes: int32(budget / 4), MaxPoll: 20})
	peak, polls := 0, 0
	next := [partitions]int64{}
	for i := range next {
		next[i] = int64(i)
	}
	await.True(t, "much is fetched ahead", func() bool { return u.held() > budget/4 })
	begin := time.Now()
	for got := int64(0); got < n; polls++ {
		peak = max(peak, u.held())
		records, err := u.Poll(ctx)
		if err != nil {
			t.Fatal(got, err)
		}
		peak = max(peak, u.held())
		for _, r := range records {
			if i := int64(binary.BigEndian.Uint64(r.Value)); i != next[r.Partition] || len(r.Value) != size {
				t.Fatalf("partition %d offset %d: record %d, want %d", r.Partition, r.Offset, i, next[r.Partition])
			}
			next[r.Partition] += partitions
		}
		got += int64(len(records))
	}
	t.Logf("%d MiB in %v, %d polls; at most %d of %d bytes were buffered", *budgetBytes>>20, time.Since(begin), polls, peak, budget)
	if peak > budget {
		t.Errorf("%d bytes were buffered, the budget is %d", peak, budget)
	}
}
