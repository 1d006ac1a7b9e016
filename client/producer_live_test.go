package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/await"
)

// readAll reads partitions of a topic from the beginning to their ends and returns the values.
func readAll(t *testing.T, ctx context.Context, c *Client, topic string, partitions int32, committed bool) (values []string) {
	t.Helper()
	from, latest := map[TopicPartition]int64{}, map[TopicPartition]int64{}
	for p := range partitions {
		from[TopicPartition{topic, p}], latest[TopicPartition{topic, p}] = Earliest, Latest
	}
	ends, err := c.ListOffsets(ctx, latest, committed)
	if err != nil {
		t.Fatal(err)
	}
	u, err := c.NewConsumer(ConsumerOptions{Partitions: from, ReadCommitted: committed})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close(ctx)
	for {
		done := true
		for _, e := range ends {
			at, ok := u.Position(e.TopicPartition)
			done = done && ok && at >= e.Offset
		}
		if done {
			return values
		}
		poll, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		records, err := u.Poll(poll)
		cancel()
		if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			t.Fatal(err)
		}
		for _, r := range records {
			values = append(values, string(r.Value))
		}
	}
}

// Records that fit no batch together are sent apart, and futures, callbacks and Flush tell of each.
func TestLiveSplitsWhatIsTooLarge(t *testing.T) {
	c := liveClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	topic := liveTopic(t, c, 1, map[string]string{"max.message.bytes": "10000"})
	p := c.NewProducer(ProducerOptions{Linger: time.Hour})
	defer p.Close(ctx)
	r := rand.NewChaCha8([32]byte{})
	var futures []*Future
	for range 40 {
		v := make([]byte, 1000)
		r.Read(v)
		f, err := p.Send(ctx, &Record{Topic: topic, Value: v})
		if err != nil {
			t.Fatal(err)
		}
		futures = append(futures, f)
	}
	large, err := p.Send(ctx, &Record{Topic: topic, Value: make([]byte, 20_000)})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	for i, f := range futures {
		if got, err := f.Wait(ctx); err != nil || got.Offset != int64(i) {
			t.Errorf("record %d: %+v %v", i, got, err)
		}
	}
	if _, err := large.Wait(ctx); !errors.Is(err, MessageTooLarge) {
		t.Error(err)
	}
}

// What failed doesn't hold up what comes after it.
func TestLiveAfterAFailure(t *testing.T) {
	c := liveClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	topic := liveTopic(t, c, 1, map[string]string{"max.message.bytes": "10000"})
	p := c.NewProducer(ProducerOptions{Linger: -1})
	for i := range 20 {
		if err := p.ProduceSync(ctx, &Record{Topic: topic, Value: make([]byte, 20_000)}); !errors.Is(err, MessageTooLarge) {
			t.Fatal(i, err)
		}
		r := &Record{Topic: topic, Value: []byte("small")}
		if err := p.ProduceSync(ctx, r); err != nil || r.Offset != int64(i) {
			t.Fatal(i, r.Offset, err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
}

// Batches fill up to batch.size, go by linger.ms, and memory is bounded by buffer.memory.
func TestLiveBuffer(t *testing.T) {
	c := liveClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	topic := liveTopic(t, c, 1, nil)
	p := c.NewProducer(ProducerOptions{BatchBytes: 2000, MaxBuffered: 10_000, Linger: time.Millisecond})
	var mu sync.Mutex
	var offsets []int64
	for range 500 {
		err := p.Produce(ctx, &Record{Topic: topic, Value: make([]byte, 150)}, func(r *Record, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			offsets = append(offsets, r.Offset)
		})
		if err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		if p.buffered > 10_000 {
			t.Errorf("%d bytes buffered", p.buffered)
		}
		p.mu.Unlock()
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	// Callbacks come in the order of the records.
	if len(offsets) != 500 || !slices.IsSorted(offsets) {
		t.Errorf("%d callbacks: %v", len(offsets), offsets)
	}
	if err := p.Produce(ctx, &Record{Topic: topic}, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// What can't be delivered fails when its time is over, and what doesn't fit blocks no longer than max.block.ms.
func TestUndeliverable(t *testing.T) {
	t.Parallel()
	f := &fakeBroker{}
	f.answer = func(key, version int16, id int32, _ []byte) []byte {
		switch key {
		case 18:
			return respond(id, false, apiVersions(version, 0, 18, 0, 4, 3, 0, 12, 0, 0, 12, 22, 0, 4))
		case 3:
			name := "t"
			r := kmsg.NewPtrMetadataResponse()
			r.Version, r.Brokers = version, []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "a", Port: 1}}
			r.Topics = []kmsg.MetadataResponseTopic{{Topic: &name, Partitions: []kmsg.MetadataResponseTopicPartition{{Leader: 1}}}}
			return respond(id, true, r)
		case 22:
			r := kmsg.NewPtrInitProducerIDResponse()
			r.Version = version
			return respond(id, true, r)
		}
		r := kmsg.NewPtrProduceResponse()
		r.Version = version
		r.Topics = []kmsg.ProduceResponseTopic{{Topic: "t", Partitions: []kmsg.ProduceResponseTopicPartition{{ErrorCode: 6}}}}
		return respond(id, true, r)
	}
	c := fakeClient(t, f)
	p := c.NewProducer(ProducerOptions{DeliveryTimeout: 5 * time.Second, MaxBlock: 50 * time.Millisecond, MaxBuffered: 200})
	fu, err := p.Send(t.Context(), &Record{Topic: "t", Value: make([]byte, 100)})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Produce(t.Context(), &Record{Topic: "t", Value: make([]byte, 100)}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := fu.Wait(t.Context()); !errors.Is(err, NotLeaderOrFollower) && !errors.Is(err, RequestTimedOut) {
		t.Error(err)
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	p.mu.Lock()
	if p.buffered != 0 || len(p.batches) != 0 {
		t.Errorf("%d bytes in %d batches left", p.buffered, len(p.batches))
	}
	p.mu.Unlock()
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Keys decide, then the partitioner, then the lengths of the queues.
func TestPartitioning(t *testing.T) {
	t.Parallel()
	c := fakeClient(t, &fakeBroker{})
	info := &Topic{Name: "t"}
	for i := range int32(4) {
		info.Partitions = append(info.Partitions, Partition{ID: i, Leader: 1})
	}
	info.Partitions[3].Leader = -1
	p := c.NewProducer(ProducerOptions{BatchBytes: 1000})
	topic := &producerTopic{sticky: -1}
	pick := func(r *Record) int32 {
		t.Helper()
		got, err := p.partitionFor(r, topic, info, 100)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := pick(&Record{Partition: -1, Key: []byte("foobar")}); got != PartitionForKey([]byte("foobar"), 4) {
		t.Error(got)
	}
	if got := pick(&Record{Partition: 2, Key: []byte("foobar")}); got != 2 {
		t.Error(got)
	}
	if _, err := p.partitionFor(&Record{Partition: 4}, topic, info, 1); !errors.Is(err, UnknownTopicOrPartition) {
		t.Error(err)
	}
	// Without a key ten records of 100 bytes stay together, and partitions without a leader get none.
	counts := map[int32]int{}
	for range 300 {
		first := pick(&Record{Partition: -1})
		for range 9 {
			if got := pick(&Record{Partition: -1}); got != first {
				t.Fatal(got, first)
			}
		}
		counts[first]++
	}
	if counts[3] != 0 || counts[0] < 50 || counts[1] < 50 || counts[2] < 50 {
		t.Error(counts)
	}
	// A partition that is behind gets less.
	for range 3 {
		topic.parts = append(topic.parts, &partitionQueue{})
	}
	topic.parts[1].queue = make([]*batch, 19)
	clear(counts)
	for range 2000 {
		topic.left = 0
		counts[pick(&Record{Partition: -1})]++
	}
	if counts[1] > 150 || counts[0] < 700 || counts[2] < 700 {
		t.Error(counts)
	}
	p.o.Partitioner = func(r *Record, n int) int32 { return int32(len(r.Value) % n) }
	if got := pick(&Record{Partition: -1, Key: []byte("k"), Value: make([]byte, 7)}); got != 3 {
		t.Error(got)
	}
}

func TestSequencesWrap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b int32
		want bool
	}{{0, 1, true}, {1, 0, false}, {5, 5, false}, {-1, 3, false}, {1<<31 - 1, 0, true}, {0, 1<<31 - 1, false}, {1<<31 - 10, 5, true}} {
		if before(c.a, c.b) != c.want {
			t.Errorf("%d before %d: %v", c.a, c.b, !c.want)
		}
	}
}

func transactional(t *testing.T, c *Client) {
	t.Helper()
	if !serves(t, c, kmsg.EndTxn) {
		t.Skip("the broker has no transactions")
	}
}

// Committed transactions are read, aborted ones aren't, and a second producer with the id fences the first.
func TestLiveTransactions(t *testing.T) {
	c := liveClient(t)
	transactional(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	topic := liveTopic(t, c, 3, nil)
	p := c.NewProducer(ProducerOptions{TransactionalID: topic})
	defer p.Close(ctx)
	if err := p.Produce(ctx, &Record{Topic: topic}, nil); !errors.Is(err, ErrNoTransaction) {
		t.Error(err)
	}
	var want []string
	for n := range 6 {
		if err := p.Begin(ctx); err != nil {
			t.Fatal(n, err)
		}
		if err := p.Begin(ctx); err == nil {
			t.Error("began twice")
		}
		for i := range 30 {
			v := fmt.Sprintf("%d.%02d", n, i)
			if n%2 == 0 {
				want = append(want, v)
			}
			if n == 4 {
				want = want[:len(want)-1]
				break // nothing in it
			}
			if err := p.Produce(ctx, &Record{Topic: topic, Partition: int32(i % 3), Value: []byte(v)}, nil); err != nil {
				t.Fatal(err)
			}
		}
		end := p.Commit
		if n%2 == 1 {
			if n == 3 {
				if err := p.Flush(ctx); err != nil { // so that there is something to abort
					t.Fatal(err)
				}
			}
			end = p.Abort
		}
		if err := end(ctx); err != nil {
			t.Fatal(n, err)
		}
	}
	got := readAll(t, ctx, c, topic, 3, true)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("read %v\nwant %v", got, want)
	}
	if all := readAll(t, ctx, c, topic, 3, false); len(all) <= len(got) {
		t.Errorf("%d records uncommitted, %d committed", len(all), len(got))
	}
	q := c.NewProducer(ProducerOptions{TransactionalID: topic})
	defer q.Close(ctx)
	if err := p.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.ProduceSync(ctx, &Record{Topic: topic, Value: []byte("left open")}); err != nil {
		t.Fatal(err)
	}
	if err := q.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	if err := q.ProduceSync(ctx, &Record{Topic: topic, Value: []byte("new")}); err != nil {
		t.Fatal(err)
	}
	if err := q.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Produce(ctx, &Record{Topic: topic, Value: []byte("late")}, nil); err == nil {
		if err := p.Commit(ctx); !errors.Is(err, ErrFenced) {
			t.Error(err)
		}
	}
	if err := p.Begin(ctx); !errors.Is(err, ErrFenced) {
		t.Error(err)
	}
	if got := readAll(t, ctx, c, topic, 3, true); len(got) != len(want)+1 || !slices.Contains(got, "new") {
		t.Errorf("%d records, want %d", len(got), len(want)+1)
	}
}

// Read, change, write, exactly once: offsets are part of the transaction, whatever is aborted.
func TestLiveExactlyOncePipeline(t *testing.T) {
	c := liveClient(t)
	transactional(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	in, out := liveTopic(t, c, 2, nil), liveTopic(t, c, 2, nil)
	src := c.NewProducer(ProducerOptions{})
	const n = 600
	for i := range n {
		if err := src.Produce(ctx, &Record{Topic: in, Partition: int32(i % 2), Value: fmt.Appendf(nil, "%03d", i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := src.Close(ctx); err != nil {
		t.Fatal(err)
	}
	done := 0
	for life := 0; done < n; life++ {
		// Each life ends in the middle of a transaction.
		func() {
			u, err := c.NewConsumer(ConsumerOptions{Group: in, Topics: []string{in}, Reset: ResetEarliest, AutoCommit: -1, ReadCommitted: true, MaxPoll: 50})
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close(ctx)
			p := c.NewProducer(ProducerOptions{TransactionalID: in, TransactionTimeout: 10 * time.Second})
			defer p.Close(ctx)
			for batches := 0; done < n; batches++ {
				// First, because it aborts what the earlier life left open, and with it offsets that Poll would wait for.
				if err := p.Begin(ctx); err != nil {
					t.Fatal(err)
				}
				records, err := u.Poll(ctx)
				if err != nil {
					t.Fatal(err)
				}
				next := map[TopicPartition]int64{}
				for _, r := range records {
					next[TopicPartition{r.Topic, r.Partition}] = r.Offset + 1
					if err := p.Produce(ctx, &Record{Topic: out, Partition: r.Partition, Value: bytes.ToUpper(r.Value)}, nil); err != nil {
						t.Fatal(err)
					}
				}
				var offsets []CommittedOffset
				for tp, o := range next {
					offsets = append(offsets, CommittedOffset{TopicPartition: tp, Offset: o, LeaderEpoch: -1})
				}
				if err := p.SendOffsets(ctx, u, offsets); err != nil {
					t.Fatal(err)
				}
				if batches == 2 {
					if err := p.Flush(ctx); err != nil {
						t.Fatal(err)
					}
					return
				}
				if err := p.Commit(ctx); err != nil {
					t.Fatal(err)
				}
				done += len(records)
			}
		}()
	}
	got := readAll(t, ctx, c, out, 2, true)
	slices.Sort(got)
	if len(got) != n || len(slices.Compact(slices.Clone(got))) != n {
		t.Errorf("%d records, %d different", len(got), len(slices.Compact(got)))
	}
}
