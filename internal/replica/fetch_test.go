package replica

import (
	"testing"

	"gregor/internal/message"
	"gregor/internal/uuid"
)

// A batch that doesn't fit is left out, or sent whole where one must be; a part of it is sent only behind another one.
func TestReadLeavesOutPartOfABatch(t *testing.T) {
	w := newWorld(t)
	topic := uuid.UUID{15: 100}
	w.publish(&message.TopicRecord{Name: "a", TopicID: topic},
		&message.PartitionRecord{TopicID: topic, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	p, err := w.m.Partition("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	w.append(p, "x")
	whole := 0
	read := func(limit int, minOne bool) int {
		t.Helper()
		var res FetchResult
		p.Read(FetchSpec{MaxBytes: 1000, LeaderEpoch: -1, LastFetchedEpoch: -1}, &Reader{Follower: NoFollower}, ReadLimits{MaxBytes: limit, MinOne: minOne}, &res)
		defer res.Release()
		if res.Err != nil || res.logEnd < 1 || res.HighWatermark < 1 {
			t.Fatalf("%+v", res)
		}
		return res.Size()
	}
	if whole = read(1000, false); whole < 61 {
		t.Fatalf("a batch of %d bytes", whole)
	}
	w.append(p, "y")
	for _, c := range []struct {
		limit  int
		minOne bool
		want   int
	}{
		{whole - 1, false, 0}, {20, false, 0}, {0, false, 0}, {whole - 1, true, whole}, {0, true, whole}, {whole, false, whole}, {whole + 20, false, whole + 20},
	} {
		if got := read(c.limit, c.minOne); got != c.want {
			t.Errorf("limit %d, at least one %v: %d bytes, want %d", c.limit, c.minOne, got, c.want)
		}
	}
}
