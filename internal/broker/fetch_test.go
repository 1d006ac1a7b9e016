package broker

import (
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/await"
	"gregor/internal/log"
	"gregor/internal/record"
	"gregor/internal/uuid"
)

func fetchRequest(version int16, topic string, id uuid.UUID, partition int32, offset int64) *kmsg.FetchRequest {
	q := kmsg.NewPtrFetchRequest()
	q.Version, q.MaxWaitMillis, q.MinBytes, q.MaxBytes, q.SessionEpoch = version, 0, 1, 50<<20, -1
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = partition, offset, 1<<20, -1
	q.Topics = []kmsg.FetchRequestTopic{{Topic: topic, TopicID: id, Partitions: []kmsg.FetchRequestTopicPartition{p}}}
	return q
}

func TestFetchAnswersEveryFault(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("a", 1)
	c := w.client()
	w.produce(c, "a", 0, batch(t, plain(), "x"))
	f := func(name string, q *kmsg.FetchRequest, want *api.Error, hw int64) {
		t.Helper()
		resp := call[*kmsg.FetchResponse](c, q)
		p := resp.Topics[0].Partitions[0]
		if got := api.ErrorFor(p.ErrorCode); got != want || p.HighWatermark != hw {
			t.Errorf("%s: %v, high watermark %d, want %v, %d", name, got, p.HighWatermark, want, hw)
		}
	}
	f("the end", fetchRequest(12, "a", uuid.Zero, 0, 1), nil, 1)
	f("beyond the end", fetchRequest(12, "a", uuid.Zero, 0, 2), api.ErrOffsetOutOfRange, -1)
	f("a negative offset", fetchRequest(12, "a", uuid.Zero, 0, -1), api.ErrOffsetOutOfRange, -1)
	f("an unknown topic", fetchRequest(12, "b", uuid.Zero, 0, 0), api.ErrUnknownTopicOrPartition, -1)
	f("an unknown partition", fetchRequest(13, "", id, 7, 0), api.ErrUnknownTopicOrPartition, -1)
	f("an unknown id", fetchRequest(13, "", uuid.UUID{8}, 0, 0), api.ErrUnknownTopicID, -1)
	old := fetchRequest(12, "a", uuid.Zero, 0, 0)
	old.Topics[0].Partitions[0].CurrentLeaderEpoch = 5
	f("a leader epoch to come", old, api.ErrUnknownLeaderEpoch, -1)
	iso := fetchRequest(12, "a", uuid.Zero, 0, 0)
	iso.IsolationLevel = 7
	if resp := call[*kmsg.FetchResponse](c, iso); resp.ErrorCode != api.CodeUnknownServerError {
		t.Errorf("isolation level 7: %+v", resp)
	}
}

func TestFetchFirstBatchExceedsEveryLimit(t *testing.T) {
	w := newWorld(t, nil)
	w.topic("a", 2)
	c := w.client()
	big := batch(t, plain(), string(make([]byte, 10_000)))
	for p := range int32(2) {
		w.produce(c, "a", p, big)
		w.produce(c, "a", p, big)
	}
	q := fetchRequest(12, "a", uuid.Zero, 0, 0)
	q.MaxBytes = 100
	q.Topics[0].Partitions[0].PartitionMaxBytes = 100
	second := q.Topics[0].Partitions[0]
	second.Partition = 1
	q.Topics[0].Partitions = append(q.Topics[0].Partitions, second)
	ps := call[*kmsg.FetchResponse](c, q).Topics[0].Partitions
	if len(ps[0].RecordBatches) != len(big) || len(ps[1].RecordBatches) != 0 {
		t.Errorf("got %d and %d bytes, want the first batch of %d and nothing", len(ps[0].RecordBatches), len(ps[1].RecordBatches), len(big))
	}
}

func TestFetchInTheMiddleOfABatch(t *testing.T) {
	w := newWorld(t, nil)
	w.topic("a", 1)
	c := w.client()
	w.produce(c, "a", 0, batch(t, plain(), "a", "b", "c"))
	p := call[*kmsg.FetchResponse](c, fetchRequest(12, "a", uuid.Zero, 0, 1)).Topics[0].Partitions[0]
	b, _, err := record.Next(p.RecordBatches)
	if err != nil || b.BaseOffset() != 0 || b.Count() != 3 {
		t.Errorf("batch %v, %v", b, err)
	}
}

func TestFetchWaitsForARecord(t *testing.T) {
	w := newWorld(t, nil)
	w.topic("a", 1)
	consumer, producer := w.client(), w.client()
	q := fetchRequest(12, "a", uuid.Zero, 0, 0)
	q.MaxWaitMillis = longWait
	consumer.send(q)
	await.True(t, "the fetch waits", func() bool { return w.broker.Traffic.FetchParked.Load() > 0 })
	w.produce(producer, "a", 0, batch(t, plain(), "x"))
	resp, err := consumer.receive(q)
	if err != nil {
		t.Fatal(err)
	}
	if p := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]; p.HighWatermark != 1 || len(p.RecordBatches) == 0 {
		t.Errorf("got %+v", p)
	}
}

// A fetch doesn't wait for a client that has hung up, however long it was to wait.
func TestFetchEndsWithItsConnection(t *testing.T) {
	w := newWorld(t, nil)
	w.topic("a", 1)
	c := w.client()
	q := fetchRequest(12, "a", uuid.Zero, 0, 0)
	q.MaxWaitMillis = longWait
	c.send(q)
	await.True(t, "the fetch waits", func() bool { return w.broker.Traffic.FetchParked.Load() > 0 })
	if err := c.conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.receive(q); err != nil {
		t.Error(err)
	}
}

// A fetch may wait for as long as its client says, and must not hold files open all that time.
func TestFetchThatWaitsHoldsNoFile(t *testing.T) {
	w := newWorld(t, nil)
	w.topic("a", 1)
	c := w.client()
	w.produce(c, "a", 0, batch(t, plain(), "x"))
	q := fetchRequest(12, "a", uuid.Zero, 0, 0)
	q.MaxWaitMillis, q.MinBytes = longWait, 10_000
	c.send(q)
	await.True(t, "the fetch waits", func() bool { return w.broker.Traffic.FetchParked.Load() > 0 })
	// The log's own manager takes the replica away without a word to the fetch.
	if err := w.logs.Delete(log.TopicPartition{Topic: "a"}); err != nil {
		t.Fatal(err)
	}
	await.True(t, "no file is open", func() bool { return w.logs.OpenFiles() == 0 })
}

func TestFetchGivesUpWaiting(t *testing.T) {
	w := newWorld(t, nil)
	w.topic("a", 1)
	c := w.client()
	q := fetchRequest(12, "a", uuid.Zero, 0, 0)
	q.MaxWaitMillis = 30
	start := time.Now()
	p := call[*kmsg.FetchResponse](c, q).Topics[0].Partitions[0]
	if waited := time.Since(start); waited < 30*time.Millisecond || p.ErrorCode != 0 || len(p.RecordBatches) != 0 {
		t.Errorf("after %v: %+v", waited, p)
	}
}

func TestFetchOfADeletedTopicEndsItsWait(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("a", 1)
	c := w.client()
	q := fetchRequest(13, "", id, 0, 0)
	q.MaxWaitMillis, q.SessionEpoch = longWait, 0
	c.send(q)
	await.True(t, "the fetch waits", func() bool { return w.broker.Traffic.FetchParked.Load() > 0 })
	w.removeTopic(id)
	resp, err := c.receive(q)
	if err != nil {
		t.Fatal(err)
	}
	if code := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0].ErrorCode; code != api.ErrUnknownTopicOrPartition.Code {
		t.Errorf("error %v", api.FromCode(code))
	}
}

func TestFetchSessionOverTheWire(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("a", 2)
	c := w.client()
	q := fetchRequest(13, "", id, 0, 0)
	q.SessionEpoch = 0
	other := q.Topics[0].Partitions[0]
	other.Partition = 1
	q.Topics[0].Partitions = append(q.Topics[0].Partitions, other)
	full := call[*kmsg.FetchResponse](c, q)
	if full.SessionID == 0 || len(full.Topics[0].Partitions) != 2 {
		t.Fatalf("full fetch: %+v", full)
	}
	next := fetchRequest(13, "", id, 0, 0)
	next.SessionID, next.SessionEpoch, next.Topics = full.SessionID, 1, nil
	if r := call[*kmsg.FetchResponse](c, next); r.SessionID != full.SessionID || len(r.Topics) != 0 {
		t.Errorf("nothing new: %+v", r)
	}
	w.produce(c, "a", 1, batch(t, plain(), "x"))
	next.SessionEpoch = 2
	if r := call[*kmsg.FetchResponse](c, next); len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 || r.Topics[0].Partitions[0].Partition != 1 {
		t.Errorf("one record: %+v", r)
	}
	next.SessionEpoch = 9
	if r := call[*kmsg.FetchResponse](c, next); r.ErrorCode != api.ErrInvalidFetchSessionEpoch.Code {
		t.Errorf("wrong epoch: %+v", r)
	}
}
