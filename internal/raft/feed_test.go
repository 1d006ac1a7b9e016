package raft

import (
	"slices"
	"testing"

	"gregor/internal/message"
	"gregor/internal/record"
)

// offsets is a listener that notes where batches begin.
type offsets []int64

func (o *offsets) HandleCommit(b CommittedBatch)     { *o = append(*o, b.BaseOffset) }
func (o *offsets) HandleSnapshot(*SnapshotReader)    {}
func (o *offsets) HandleLeaderChange(LeaderAndEpoch) {}
func (o *offsets) BeginShutdown()                    {}

// A node leads, follows, and leads again before its listener has had anything: what another leader wrote in between is not
// among the batches that the feed remembers, and must come from the log.
func TestFeedReadsWhatOthersWroteBetweenItsOwn(t *testing.T) {
	l := &memLog{}
	builder := record.NewBuilder(record.BuilderOptions{}.NoProducer())
	var own []pendingBatch
	for i := range int64(6) {
		records := []message.Versioned{feature("x", 1)}
		b, err := dataBatch(builder, i, int32(1+i/2), 0, records)
		if err != nil {
			t.Fatal(err)
		}
		b = slices.Clone(b)
		if err := l.Append(b); err != nil {
			t.Fatal(err)
		}
		own = append(own, pendingBatch{data: b, records: records})
	}
	f := newFeed(&store{log: l}, nil)
	got := &offsets{}
	s := newSubscription(got)
	f.listeners = append(f.listeners, s)
	f.appended(1, own[:2])
	f.appended(3, own[4:])
	f.committed(6)
	for {
		moved, err := f.handOver(s)
		if err != nil {
			t.Fatal(err)
		}
		if !moved {
			break
		}
	}
	if want := []int64{0, 1, 2, 3, 4, 5}; !slices.Equal(*got, want) {
		t.Errorf("the listener got batches at %v, want %v", *got, want)
	}
}
