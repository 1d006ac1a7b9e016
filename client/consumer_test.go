package client

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/await"
)

// callerSide is a consumer without its other side, that has fetched records 100 to 104 of a partition.
func callerSide(t *testing.T) (*Consumer, *fetched) {
	c := fakeClient(t, &fakeBroker{})
	tp := TopicPartition{"t1", 0}
	b := records(t, 100, 5)
	f := &fetched{tp: tp, gen: 1, bytes: b, size: len(b), from: 100}
	u := &Consumer{
		c: c, parts: map[TopicPartition]*consumed{tp: {tp: tp, gen: 1, position: 100, valid: true}}, ready: []*fetched{f},
		notify: make(chan struct{}), wake: make(chan struct{}, 1), async: map[*ticket]struct{}{},
	}
	u.o.setDefaults()
	return u, f
}

// What is being decoded while its partition is given up, or begun elsewhere, isn't delivered, and its room is given back once.
func TestTakeWhilePartitionGoes(t *testing.T) {
	t.Parallel()
	tp := TopicPartition{"t1", 0}
	for name, change := range map[string]func(u *Consumer){
		"given up": func(u *Consumer) { u.purge([]TopicPartition{tp}) },
		"gone":     func(u *Consumer) { u.setParts(effectParts{removed: []TopicPartition{tp}}) },
		"elsewhere": func(u *Consumer) {
			if err := u.Seek(tp, 7); err != nil {
				t.Error(err)
			}
		},
		"begun anew": func(u *Consumer) { u.setParts(effectParts{added: []assignedPart{{tp, 2}}}) },
	} {
		u, f := callerSide(t)
		if u.nextReady() != f {
			t.Fatal(name)
		}
		change(u)
		if p := u.putBack(f); p != nil || len(u.hand) > 0 {
			t.Errorf("%s: delivered to %+v", name, p)
		}
		if len(u.freed) != 1 || u.freed[0].bytes != f.size {
			t.Errorf("%s: freed %+v", name, u.freed)
		}
	}
	u, _ := callerSide(t)
	if got, err := u.take(); err != nil || len(got) != 5 || len(u.freed) != 1 {
		t.Error(len(got), err, u.freed)
	}
}

// A batch that grew a thousandfold doesn't make the next one, of another kind, allocate as much.
func TestDecompressionGuess(t *testing.T) {
	t.Parallel()
	c := &Client{}
	c.ratio.Store(math.Float64bits(10_000))
	if n := c.guess(64 << 20); n > 80<<20 {
		t.Errorf("%d bytes for 64 MiB", n)
	}
	if n := c.guess(1 << 20); n > mostGuess+decodeRoom {
		t.Errorf("%d bytes for 1 MiB", n)
	}
	if n := c.guess(100); n < 100*10_000 {
		t.Errorf("%d bytes for 100", n)
	}
}

// Callbacks of CommitAsync run in Poll or Close; Close waits for the commits; after it they fail at once.
func TestLiveCommitAsync(t *testing.T) {
	ctx, c, topic := pitfall(t, 10)
	tp := TopicPartition{topic, 0}
	u := consumer(t, c, ConsumerOptions{Group: topic, Topics: []string{topic}, AutoCommit: -1, Reset: ResetEarliest, MaxPoll: 5})
	commits := 0 // without a lock: the race detector watches
	committed := func(want error) func(error) {
		return func(err error) {
			if !errors.Is(err, want) {
				t.Error(err)
			}
			commits++
			if want == nil && commits == 1 {
				// The consumer's other side isn't held up by this.
				if _, err := u.CommittedOffsets(ctx, tp); err != nil {
					t.Error(err)
				}
			}
		}
	}
	poll(t, ctx, u)
	u.CommitAsync(committed(nil))
	poll(t, ctx, u)
	u.CommitAsync(committed(nil))
	if err := u.Close(ctx); err != nil || commits != 2 {
		t.Fatal(commits, err)
	}
	got, err := c.GroupOffsets(ctx, topic, []TopicPartition{tp}, false)
	if err != nil || len(got) != 1 || got[0].Offset != 10 {
		t.Errorf("%+v %v", got, err)
	}
	u.CommitAsync(committed(ErrClosed))
	if commits != 3 {
		t.Error(commits)
	}
}

// A consumer that may not use its group says so to all who wait, at once.
func TestCoordinatorRefused(t *testing.T) {
	t.Parallel()
	r := newCoreRig(t)
	r.silent = true
	commit, query := newTicket(), newTicket()
	r.step(eventCommit{ticket: commit, offsets: []CommittedOffset{{TopicPartition: TopicPartition{"t1", 0}, Offset: 5}}}, eventCommitted{query, nil})
	_, id := sent[*kmsg.FindCoordinatorRequest](r)
	r.answer(id, &kmsg.FindCoordinatorResponse{Version: 4, Coordinators: []kmsg.FindCoordinatorResponseCoordinator{{Key: "g", ErrorCode: groupAuthorizationFailed}}})
	for _, ticket := range []*ticket{commit, query} {
		d, ok := taken(r, func(d effectDone) bool { return d.ticket == ticket })
		if code, _ := Code(d.err); !ok || code != groupAuthorizationFailed {
			t.Errorf("%v %v", ok, d.err)
		}
	}
}

// Close doesn't leave the group before the commits are answered.
func TestCloseAfterCommits(t *testing.T) {
	t.Parallel()
	r := newCoreRig(t, listening)
	toStable(r)
	commit, closed := newTicket(), newTicket()
	r.step(eventCommit{ticket: commit, offsets: []CommittedOffset{{TopicPartition: TopicPartition{"t1", 0}, Offset: 5}}}, eventClose{closed, LeaveDefault})
	_, id := sent[*kmsg.OffsetCommitRequest](r)
	notSent[*kmsg.ConsumerGroupHeartbeatRequest](r)
	r.answer(id, kmsg.NewPtrOffsetCommitResponse())
	if r.wake.IsZero() {
		t.Fatal("nothing more is going to happen")
	}
	r.advance(0)
	r.callback(callRevoked)
	req, id := sent[*kmsg.ConsumerGroupHeartbeatRequest](r)
	if req.MemberEpoch != epochLeave {
		t.Errorf("%+v", req)
	}
	r.answer(id, kmsg.NewPtrConsumerGroupHeartbeatResponse())
	for _, ticket := range []*ticket{commit, closed} {
		if d, ok := taken(r, func(d effectDone) bool { return d.ticket == ticket }); !ok || d.err != nil {
			t.Errorf("%v %v", ok, d.err)
		}
	}
}

// Flush waits for the callbacks, not only for the broker.
func TestLiveFlushWaitsForCallbacks(t *testing.T) {
	c := liveClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	p := c.NewProducer(ProducerOptions{})
	called, goOn := make(chan struct{}), make(chan struct{})
	err := p.Produce(ctx, &Record{Topic: liveTopic(t, c, 1, nil), Value: []byte("v")}, func(*Record, error) {
		close(called)
		<-goOn
	})
	if err != nil {
		t.Fatal(err)
	}
	<-called
	over, stop := context.WithCancel(ctx)
	stop()
	if err := p.Flush(over); !errors.Is(err, context.Canceled) {
		t.Error("Flush was over before the callback:", err)
	}
	close(goOn)
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
}

// A batch that turns out too large while the producer is being closed isn't split: nobody would send the halves.
func TestNoSplitAfterClose(t *testing.T) {
	t.Parallel()
	c := fakeClient(t, &fakeBroker{})
	p := c.NewProducer(ProducerOptions{DisableIdempotence: true})
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	q := &partitionQueue{tp: TopicPartition{"t1", 0}}
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.newBatch()
	b.records, b.born = make([]produced, 2), time.Now()
	if !p.settle(q, b, MessageTooLarge, false) || len(q.queue) > 0 {
		t.Error("the batch is tried again")
	}
}
