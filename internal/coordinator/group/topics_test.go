package group

import (
	"testing"

	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// The hashes are those of Kafka's own code: the first of a coordinator at work, the others of its hash streams.
func TestMetadataHash(t *testing.T) {
	rack := func(s string) *string { return &s }
	k, err := uuid.Parse("GkrTqFqWTx2o8X2YcQkGOg")
	if err != nil {
		t.Fatal(err)
	}
	orders := uuid.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	payments := uuid.UUID{0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20}
	d := metadata.NewDelta(metadata.EmptyImage())
	replay := func(m message.Message) {
		if err := d.Replay(m); err != nil {
			t.Fatal(err)
		}
	}
	for id, r := range map[int32]*string{1: nil, 2: rack("a"), 3: rack("b"), 4: rack("eu-west-1a"), 5: rack("eu-west-1b"), 6: rack("eu-west-1a")} {
		replay(&message.RegisterBrokerRecord{BrokerID: id, Rack: r})
	}
	topic := func(name string, id uuid.UUID, replicas ...[]int32) {
		replay(&message.TopicRecord{Name: name, TopicID: id})
		for p, r := range replicas {
			replay(&message.PartitionRecord{TopicID: id, PartitionID: int32(p), Replicas: r, ISR: r, Leader: r[0]})
		}
	}
	topic("k", k, []int32{1}, []int32{1}, []int32{1}, []int32{1}, []int32{1}, []int32{1})
	topic("orders", orders, []int32{3, 2}, []int32{2, 1}, []int32{1})
	topic("payments-é", payments, []int32{4, 5, 6})
	m := newMachine()
	m.core.metadataUpdated(d.Apply(metadata.Provenance{Offset: 1}), topicChanges{})

	check := func(want int64, topics ...string) {
		t.Helper()
		for range 2 { // computed, then remembered
			if got := m.core.metadataHash(topics); got != want {
				t.Errorf("the hash of %q is %d, want %d", topics, got, want)
			}
		}
	}
	check(0)
	check(0, "not there")
	check(-2428728253437218087, "k")
	check(-2428728253437218087, "not there", "k")
	check(7753409821318085495, "payments-é", "orders")
	for id, want := range map[uuid.UUID]int64{orders: -3682504339465033957, payments: 3354379885844134806} {
		if got := int64(m.core.topicHash(m.core.image.Topics.ByID(id))); got != want {
			t.Errorf("the hash of topic %v is %d, want %d", id, got, want)
		}
	}
}
