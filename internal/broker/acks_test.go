package broker

import (
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/await"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

// twoReplicas makes a topic whose other replica, of a broker that does not exist, is in sync and never fetches.
func (w *world) twoReplicas(name string, configs ...string) uuid.UUID {
	id := w.topic(name, 0, configs...)
	w.publish(&message.PartitionRecord{TopicID: id, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1})
	return id
}

func change(id uuid.UUID, f func(r *message.PartitionChangeRecord)) *message.PartitionChangeRecord {
	r := message.NewPartitionChangeRecord()
	r.TopicID, r.PartitionID = id, 0
	f(r)
	return r
}

func TestAcksAllWaitsForTheHighWatermark(t *testing.T) {
	f := func(name string, after func(w *world, id uuid.UUID), timeoutMillis int32, want *api.Error) {
		t.Helper()
		w := newWorld(t, nil)
		id := w.twoReplicas("a")
		c := w.client()
		q := produceRequest(12, -1, "a", uuid.Zero, 0, batch(t, plain(), "x"))
		q.TimeoutMillis = timeoutMillis
		c.send(q)
		// A second request goes on while the first waits: acks=1 is answered from the log alone, in order.
		c.send(produceRequest(12, 1, "a", uuid.Zero, 0, batch(t, plain(), "y")))
		part, err := w.broker.replicas.Partition("a", 0)
		if err != nil {
			t.Fatal(err)
		}
		await.True(t, "both are appended", func() bool { return part.Log().EndOffset() == 2 })
		if hw := part.Log().HighWatermark(); hw != 0 {
			t.Errorf("%s: high watermark %d before the follower has anything", name, hw)
		}
		after(w, id)
		resp, err := c.receive(q)
		if err != nil {
			t.Fatal(err)
		}
		p := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
		base := int64(0)
		if want != nil {
			base = -1
		}
		if api.ErrorFor(p.ErrorCode) != want || p.BaseOffset != base {
			t.Errorf("%s: %+v, want %v", name, p, want)
		}
		if resp, err = c.receive(q); err != nil || resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].BaseOffset != 1 {
			t.Errorf("%s: the second request got %+v, %v", name, resp, err)
		}
	}
	f("the ISR shrinks to the leader", func(w *world, id uuid.UUID) {
		w.publish(change(id, func(r *message.PartitionChangeRecord) { r.ISR = []int32{1} }))
	}, longWait, nil)
	f("another broker leads", func(w *world, id uuid.UUID) {
		w.publish(change(id, func(r *message.PartitionChangeRecord) { r.Leader = 2 }))
	}, longWait, api.ErrNotLeaderOrFollower)
	f("the topic is deleted", func(w *world, id uuid.UUID) { w.removeTopic(id) }, longWait, api.ErrUnknownTopicOrPartition)
	f("the time is over", func(*world, uuid.UUID) {}, 20, api.ErrRequestTimedOut)
}

// The high watermark of a follower says nothing of what it appended while it led.
func TestProduceWaitsForItsLeaderEpoch(t *testing.T) {
	w := newWorld(t, nil)
	id := w.twoReplicas("a")
	c := w.client()
	call[*kmsg.ProduceResponse](c, produceRequest(12, 1, "a", uuid.Zero, 0, batch(t, plain(), "x")))
	part, err := w.broker.replicas.Partition("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	part.Log().RaiseHighWatermark(1)
	op := &produceOp{b: w.broker, appended: []appended{{partition: part, leaderEpoch: 0, end: 1}}}
	if op.waits() {
		t.Error("waits for what is committed")
	}
	w.publish(change(id, func(r *message.PartitionChangeRecord) { r.Leader = 2 }))
	if !op.waits() {
		t.Error("what a former leader appended counts as committed")
	}
}

// Nothing waits long for a client that has hung up, however long it was to wait.
func TestAcksEndWithTheirConnection(t *testing.T) {
	w := newWorld(t, nil)
	w.twoReplicas("a")
	w.publish(&message.RegisterBrokerRecord{BrokerID: 2, BrokerEpoch: 2}) // so that DeleteRecords waits for it
	hangUp := func(q kmsg.Request) kmsg.Response {
		t.Helper()
		c := w.client()
		c.send(q)
		if err := c.conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		resp, err := c.receive(q)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	produced := hangUp(produceRequest(12, -1, "a", uuid.Zero, 0, batch(t, plain(), "x"))).(*kmsg.ProduceResponse)
	if code := produced.Topics[0].Partitions[0].ErrorCode; code != api.ErrRequestTimedOut.Code {
		t.Errorf("produce: %v", api.FromCode(code))
	}
	q := kmsg.NewPtrDeleteRecordsRequest()
	q.Version, q.TimeoutMillis = 2, longWait
	q.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: "a", Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Partition: 0, Offset: 0}}}}
	deleted := hangUp(q).(*kmsg.DeleteRecordsResponse)
	if code := deleted.Topics[0].Partitions[0].ErrorCode; code != api.ErrRequestTimedOut.Code {
		t.Errorf("delete records: %v", api.FromCode(code))
	}
}

func TestAcksAllNeedsMinISR(t *testing.T) {
	w := newWorld(t, nil)
	id := w.twoReplicas("a", "min.insync.replicas", "2")
	w.publish(change(id, func(r *message.PartitionChangeRecord) { r.ISR = []int32{1} }))
	c := w.client()
	if p := w.produce(c, "a", 0, batch(t, plain(), "x")); p.ErrorCode != api.ErrNotEnoughReplicas.Code {
		t.Errorf("acks=all: %+v", p)
	}
	one := call[*kmsg.ProduceResponse](c, produceRequest(12, 1, "a", uuid.Zero, 0, batch(t, plain(), "x")))
	if p := one.Topics[0].Partitions[0]; p.ErrorCode != 0 || p.BaseOffset != 0 {
		t.Errorf("acks=1: %+v", p)
	}
}

func TestAcksFlushAnswersFromTheDisk(t *testing.T) {
	w := newWorld(t, map[string]string{"gregor.acks.flush": "true"})
	w.topic("a", 3)
	c := w.client()
	for range 5 {
		for p := range int32(3) {
			c.send(produceRequest(12, -1, "a", uuid.Zero, p, batch(t, plain(), "x")))
		}
	}
	for i := range 15 {
		q := kmsg.NewPtrProduceRequest()
		q.Version = 12
		resp, err := c.receive(q)
		if err != nil {
			t.Fatal(err)
		}
		if p := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 || p.BaseOffset != int64(i/3) {
			t.Errorf("reply %d: %+v", i, p)
		}
	}
}

func TestCoordinatorLogReadsWholeBatches(t *testing.T) {
	w := newWorld(t, nil)
	w.topic("a", 1)
	c := w.client()
	one := batch(t, plain(), "some value")
	for range 10 {
		w.produce(c, "a", 0, one)
	}
	l := w.broker.replicas.CoordinatorLog("a")
	for size, want := range map[int]int{1: 1, len(one): 1, len(one) + 1: 1, 3*len(one) - 1: 2, 3*len(one) + 5: 3, 100 * len(one): 10} {
		got, err := l.Read(0, 0, make([]byte, size))
		if err != nil || len(got) != want*len(one) {
			t.Errorf("%d bytes wanted: got %d bytes, %v, want %d batches of %d", size, len(got), err, want, len(one))
		}
	}
}
