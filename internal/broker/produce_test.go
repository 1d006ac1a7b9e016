package broker

import (
	"bytes"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/record"
	"gregor/internal/uuid"
)

func TestProduceAnswersEveryFault(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("a", 1)
	w.topic("compacted", 1, "cleanup.policy", "compact")
	w.topic("small", 1, "max.message.bytes", "100")
	w.topic(offsetsTopic, 1)
	c := w.client()
	good := batch(t, plain(), "x", "y")
	changed := func(f func(b record.Batch)) []byte {
		b := bytes.Clone(good)
		f(b)
		return b
	}
	f := func(name string, q *kmsg.ProduceRequest, want *api.Error) {
		t.Helper()
		p := call[*kmsg.ProduceResponse](c, q).Topics[0].Partitions[0]
		code := int16(0)
		if want != nil {
			code = want.Code
		}
		if p.ErrorCode != code {
			t.Errorf("%s: %v, want %v", name, api.FromCode(p.ErrorCode), want)
		}
		if want != nil && p.BaseOffset != -1 {
			t.Errorf("%s: base offset %d beside an error", name, p.BaseOffset)
		}
	}
	none := uuid.Zero
	f("a good batch", produceRequest(12, -1, "a", none, 0, good), nil)
	f("by topic id", produceRequest(13, -1, "", id, 0, good), nil)
	f("an unknown topic id", produceRequest(13, -1, "", uuid.UUID{9}, 0, good), api.ErrUnknownTopicID)
	f("an unknown topic", produceRequest(12, -1, "b", none, 0, good), api.ErrUnknownTopicOrPartition)
	f("an unknown partition", produceRequest(12, 1, "a", none, 1, good), api.ErrUnknownTopicOrPartition)
	f("a negative partition", produceRequest(12, 1, "a", none, -1, good), api.ErrUnknownTopicOrPartition)
	f("acks=2", produceRequest(12, 2, "a", none, 0, good), api.ErrInvalidRequiredAcks)
	f("no bytes", produceRequest(12, 1, "a", none, 0, []byte{}), api.ErrInvalidRecord)
	f("a cut batch", produceRequest(12, 1, "a", none, 0, good[:len(good)-1]), api.ErrInvalidRecord)
	f("two batches", produceRequest(12, 1, "a", none, 0, append(bytes.Clone(good), good...)), api.ErrInvalidRecord)
	f("a bad CRC", produceRequest(12, 1, "a", none, 0, changed(func(b record.Batch) { b[len(b)-1] ^= 1 })), api.ErrCorruptMessage)
	f("an internal topic", produceRequest(12, 1, offsetsTopic, none, 0, good), api.ErrInvalidTopicException)
	f("no key for a compacted topic", produceRequest(12, 1, "compacted", none, 0, good), api.ErrInvalidRecord)
	f("too large", produceRequest(12, 1, "small", none, 0, batch(t, plain(), string(make([]byte, 200)))), api.ErrMessageTooLarge)
	zstd := plain()
	zstd.Codec = record.Zstd
	f("zstd before version 7", produceRequest(6, 1, "a", none, 0, batch(t, zstd, "x")), api.ErrUnsupportedCompressionType)
	f("zstd", produceRequest(7, 1, "a", none, 0, batch(t, zstd, "x")), nil)
}

func TestProduceEveryVersionAndFetchItBack(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("a", 1)
	c := w.client()
	for v := int16(3); v <= 13; v++ {
		p := call[*kmsg.ProduceResponse](c, produceRequest(v, 1, "a", id, 0, batch(t, plain(), "x"))).Topics[0].Partitions[0]
		if p.ErrorCode != 0 || p.BaseOffset != int64(v-3) {
			t.Errorf("version %d: %+v", v, p)
		}
	}
	for v := int16(4); v <= 18; v++ {
		q := fetchRequest(v, "a", id, 0, 0)
		p := call[*kmsg.FetchResponse](c, q).Topics[0].Partitions[0]
		var offsets []int64
		for rest := p.RecordBatches; len(rest) > 0; {
			b, next, err := record.Next(rest)
			if err != nil {
				t.Fatal(err)
			}
			offsets, rest = append(offsets, b.BaseOffset()), next
		}
		if p.ErrorCode != 0 || p.HighWatermark != 11 || len(offsets) != 11 || offsets[10] != 10 {
			t.Errorf("version %d: error %d, high watermark %d, offsets %v", v, p.ErrorCode, p.HighWatermark, offsets)
		}
	}
}

func TestProduceWithoutAcks(t *testing.T) {
	w := newWorld(t, nil)
	w.topic("a", 1)
	c := w.client()
	c.send(produceRequest(12, 0, "a", uuid.Zero, 0, batch(t, plain(), "x")))
	if p := w.produce(c, "a", 0, batch(t, plain(), "y")); p.BaseOffset != 1 {
		t.Errorf("the next request's reply is %+v", p)
	}
	c.send(produceRequest(12, 0, "missing", uuid.Zero, 0, batch(t, plain(), "x")))
	if _, err := c.receive(kmsg.NewPtrProduceRequest()); err == nil {
		t.Error("a failed produce with acks=0 must close the connection")
	}
}

func TestProduceIdempotent(t *testing.T) {
	w := newWorld(t, nil)
	w.topic("a", 1)
	c := w.client()
	init := call[*kmsg.InitProducerIDResponse](c, func() kmsg.Request {
		q := kmsg.NewPtrInitProducerIDRequest()
		q.Version = 5
		return q
	}())
	if init.ErrorCode != 0 || init.ProducerID != 4000 || init.ProducerEpoch != 0 {
		t.Fatalf("InitProducerId: %+v", init)
	}
	seq := func(s int32, values ...string) []byte {
		o := plain()
		o.ProducerID, o.ProducerEpoch, o.BaseSequence = init.ProducerID, 0, s
		return batch(t, o, values...)
	}
	f := func(name string, b []byte, want *api.Error, base int64) {
		t.Helper()
		p := w.produce(c, "a", 0, b)
		if got := api.ErrorFor(p.ErrorCode); got != want || p.BaseOffset != base {
			t.Errorf("%s: %v at %d, want %v at %d", name, got, p.BaseOffset, want, base)
		}
	}
	f("first", seq(0, "a", "b"), nil, 0)
	f("second", seq(2, "c"), nil, 2)
	f("the second again", seq(2, "c"), nil, 2)
	f("the first again", seq(0, "a", "b"), nil, 0)
	f("a gap", seq(4, "e"), api.ErrOutOfOrderSequenceNumber, -1)
	f("third", seq(3, "d"), nil, 3)
}

func TestProduceOnManyConnectionsLeavesTheHighWatermarkAtTheEnd(t *testing.T) {
	w := newWorld(t, nil)
	w.topic("a", 1)
	records := batch(t, plain(), "x")
	var wg sync.WaitGroup
	for range 8 {
		c := w.client()
		wg.Go(func() {
			for range 200 {
				c.send(produceRequest(12, 1, "a", uuid.Zero, 0, records))
				q := kmsg.NewPtrProduceRequest()
				q.Version = 12
				if _, err := c.receive(q); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	part, err := w.broker.replicas.Partition("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	if hw, end := part.Log().HighWatermark(), part.Log().EndOffset(); hw != 1600 || end != 1600 {
		t.Errorf("high watermark %d, log end %d, want 1600", hw, end)
	}
}

// Replicas learn of a topic made anew before the handlers do. Who asks for the old one in between is sent to look again.
func TestTopicMadeAnewBetweenReplicasAndHandlers(t *testing.T) {
	w := newWorld(t, nil)
	old := w.topic("a", 1)
	d := metadata.NewDelta(w.image)
	id := uuid.UUID{15: 200}
	for _, r := range []message.Message{&message.RemoveTopicRecord{TopicID: old}, &message.TopicRecord{Name: "a", TopicID: id},
		&message.PartitionRecord{TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1}} {
		if err := d.Replay(r); err != nil {
			t.Fatal(err)
		}
	}
	w.broker.replicas.Publish(d, d.Apply(metadata.Provenance{Offset: w.offset + 3, BatchAligned: true}))

	c := w.client()
	p := call[*kmsg.ProduceResponse](c, produceRequest(13, -1, "", old, 0, batch(t, plain(), "x"))).Topics[0].Partitions[0]
	if p.ErrorCode != api.ErrNotLeaderOrFollower.Code || p.BaseOffset != -1 {
		t.Errorf("produce: error %d, base offset %d", p.ErrorCode, p.BaseOffset)
	}
	f := call[*kmsg.FetchResponse](c, fetchRequest(13, "", old, 0, 0)).Topics[0].Partitions[0]
	if f.ErrorCode != api.ErrNotLeaderOrFollower.Code {
		t.Errorf("fetch: error %d", f.ErrorCode)
	}
}
