package replica

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/message"
	"gregor/internal/record"
	"gregor/internal/uuid"
)

// testBatch is a batch as a leader of that epoch has it; a producer's when epoch is -1.
func testBatch(t *testing.T, base int64, epoch int32, values ...string) []byte {
	t.Helper()
	b := record.NewBuilder(record.BuilderOptions{BaseOffset: base, LeaderEpoch: epoch, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1})
	for _, v := range values {
		b.Append(time.Now().UnixMilli(), nil, []byte(v), nil)
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(batch)
}

// awaited is an acks=all wait for what was appended; it is nil until the wait is over.
func awaited(p *Partition, info log.AppendInfo) *[]*api.Error {
	got := new([]*api.Error)
	op := NewAckOp(1, func(errs []*api.Error) { *got = errs })
	op.Wait(0, p, info.LeaderEpoch, info.LastOffset+1)
	op.Start(time.Hour)
	return got
}

func (w *world) append(p *Partition, values ...string) log.AppendInfo {
	w.t.Helper()
	info, err := p.Append(testBatch(w.t, 0, -1, values...), AppendOptions{Origin: log.Client, RequiredAcks: -1, LeaderEpoch: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	return info
}

// overtake does what a fetcher does when the leader that follows has none of the partition's records, but others that are committed.
func (w *world) overtake(p *Partition) {
	w.t.Helper()
	if err := p.log().TruncateTo(0); err != nil {
		w.t.Fatal(err)
	}
	if _, err := p.appendFetched(1, 0, testBatch(w.t, 0, 1, "x", "y"), 2, 0); err != nil {
		w.t.Fatal(err)
	}
	if hw := p.log().HighWatermark(); hw != 2 {
		w.t.Fatalf("high watermark %d", hw)
	}
}

func (w *world) follow(p *Partition, leader int32) {
	r := message.NewPartitionChangeRecord()
	r.TopicID, r.PartitionID, r.Leader = p.topicID, p.tp.Partition, leader
	w.publish(r)
}

func wantNotLeader(t *testing.T, what string, got *[]*api.Error) {
	t.Helper()
	if !slices.Equal(*got, []*api.Error{api.ErrNotLeaderOrFollower}) {
		t.Errorf("%s: %v", what, *got)
	}
}

// A high watermark that another leader has moved says nothing of what was appended before.
func TestCutRecordsAreNotAcknowledged(t *testing.T) {
	w := newWorld(t)
	p := w.heldBack()
	info := w.append(p, "lost")
	var heard []int64
	p.SetListener(func(hw int64) { heard = append(heard, hw) })
	early := awaited(p, info)
	w.follow(p, 2)
	wantNotLeader(t, "parked when the leader changed", early)
	w.overtake(p)
	wantNotLeader(t, "parked afterwards", awaited(p, info))
	if p.Committed(info.LeaderEpoch, info.LastOffset+1) {
		t.Error("the record counts as committed")
	}
	if len(heard) > 0 {
		t.Errorf("a coordinator hears of %v, which it has not led to", heard)
	}
	w.follow(p, 1)
	if p.Committed(info.LeaderEpoch, info.LastOffset+1) {
		t.Error("the record counts as committed when its leader is back")
	}
	wantNotLeader(t, "parked when its leader is back", awaited(p, info))
}

// The same when the new role is there and the waits have not been told yet.
func TestWakeGoesByTheLeaderEpoch(t *testing.T) {
	w := newWorld(t)
	p := w.heldBack()
	got := awaited(p, w.append(p, "lost"))
	next := *p.role.Load()
	next.leader, next.leaderID, next.leaderEpoch = false, 2, 1
	p.role.Store(&next)
	w.overtake(p)
	wantNotLeader(t, "parked", got)
}

func TestLeaderTellsItsListener(t *testing.T) {
	w := newWorld(t)
	w.topic("a", 100, 1)
	p, err := w.m.Partition("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	var heard []int64
	p.SetListener(func(hw int64) { heard = append(heard, hw) })
	info := w.append(p, "x", "y")
	p.Wake()
	if !slices.Equal(heard, []int64{2}) {
		t.Errorf("heard %v", heard)
	}
	if got := awaited(p, info); !slices.Equal(*got, []*api.Error{nil}) || !p.Committed(info.LeaderEpoch, 2) {
		t.Errorf("not acknowledged: %v", *got)
	}
}

// What a leader says of a log is not done to it once it is another one.
func TestAnswersToAnotherPosition(t *testing.T) {
	w := newWorld(t)
	p := w.heldBack()
	w.follow(p, 2)
	w.overtake(p)
	if _, err := p.truncateDiverging(1, 1, EpochEnd{Epoch: 0, EndOffset: 0}); !errors.Is(err, errNotFollowing) {
		t.Errorf("diverging: %v", err)
	}
	if _, err := p.outOfRange(1, 3, 0, 1); !errors.Is(err, errNotFollowing) {
		t.Errorf("out of range: %v", err)
	}
	if end := p.log().EndOffset(); end != 2 {
		t.Errorf("the log ends at %d", end)
	}
}

func TestRoleKnowsTheDirectories(t *testing.T) {
	w := newWorld(t)
	topic, dirs := uuid.UUID{15: 100}, []uuid.UUID{{15: 209}, {15: 210}}
	w.publish(&message.TopicRecord{Name: "a", TopicID: topic},
		&message.PartitionRecord{TopicID: topic, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1, Directories: dirs})
	p, err := w.m.Partition("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	r := p.role.Load()
	if r.directory(1) != dirs[0] || r.directory(2) != dirs[1] || r.directory(3) != uuid.Unassigned {
		t.Errorf("directories %v", r.directories)
	}
}

func TestExpiredAcksEndSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.heldBack()
		info := w.append(p, "x")
		start := time.Now()
		var errs [2]*api.Error
		var took [2]time.Duration
		for i, timeout := range []time.Duration{time.Hour, hangupGrace / 2} {
			op := NewAckOp(1, func(e []*api.Error) { errs[i], took[i] = e[0], time.Since(start) })
			op.Wait(0, p, info.LeaderEpoch, info.LastOffset+1)
			op.Start(timeout)
			op.Expire()
		}
		time.Sleep(2 * hangupGrace)
		synctest.Wait()
		for i, want := range []time.Duration{hangupGrace, hangupGrace / 2} {
			if errs[i] != api.ErrRequestTimedOut || took[i] != want {
				t.Errorf("wait %d: %v after %v", i, errs[i], took[i])
			}
		}
		if n := p.nAcks.Load(); n != 0 {
			t.Errorf("%d waits left", n)
		}
		// A client that has only sent its last request is answered.
		var got []*api.Error
		op := NewAckOp(1, func(errs []*api.Error) { got = errs })
		op.Wait(0, p, info.LeaderEpoch, info.LastOffset+1)
		op.Start(time.Hour)
		op.Expire()
		p.raise(1)
		p.Wake()
		if !slices.Equal(got, []*api.Error{nil}) {
			t.Errorf("committed in time: %v", got)
		}
		op.Expire() // once more, after its end
	})
}
