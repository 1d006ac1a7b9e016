package raft

import (
	"fmt"
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

// told is a listener that notes all that it hears.
type told []string

func (o *told) HandleCommit(b CommittedBatch)  { *o = append(*o, fmt.Sprint("commit ", b.BaseOffset)) }
func (o *told) HandleSnapshot(*SnapshotReader) {}
func (o *told) HandleLeaderChange(l LeaderAndEpoch) {
	*o = append(*o, fmt.Sprintf("leader %d in %d", l.LeaderID, l.Epoch))
}
func (o *told) BeginShutdown() {}

// A node leads, loses its epoch to another, and leads again before its listener has heard of it: the listener must know that it lost
// before it gets what was committed since, which is not what it has written.
func TestFeedTellsOfALostEpochFirst(t *testing.T) {
	l := &memLog{}
	builder := record.NewBuilder(record.BuilderOptions{}.NoProducer())
	for i := range int64(4) {
		b, err := dataBatch(builder, i, int32(1+i), 0, []message.Versioned{feature("x", 1)})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Append(slices.Clone(b)); err != nil {
			t.Fatal(err)
		}
	}
	f := newFeed(&store{log: l}, nil)
	got := &told{}
	s := newSubscription(got)
	f.listeners = append(f.listeners, s)
	hear := func() {
		for {
			moved, err := f.handOver(s)
			if err != nil {
				t.Fatal(err)
			}
			if !moved {
				return
			}
		}
	}
	f.leaderChanged(LeaderChanged{LeaderAndEpoch: LeaderAndEpoch{7, 1}, EpochStart: 0})
	f.committed(1)
	hear()
	f.leaderChanged(LeaderChanged{LeaderAndEpoch: LeaderAndEpoch{8, 2}, EpochStart: -1})
	f.leaderChanged(LeaderChanged{LeaderAndEpoch: LeaderAndEpoch{7, 4}, EpochStart: 3})
	f.committed(4)
	hear()
	want := []string{"commit 0", "leader 7 in 1", "leader -1 in 4", "commit 1", "commit 2", "commit 3", "leader 7 in 4"}
	if !slices.Equal(*got, want) {
		t.Errorf("heard %q, want %q", *got, want)
	}
}
