package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

// followed are n partitions that broker 2 leads.
func (w *world) followed(n int32) []*Partition {
	w.t.Helper()
	topic := uuid.UUID{15: 100}
	records := []message.Message{&message.TopicRecord{Name: "a", TopicID: topic}}
	for i := range n {
		records = append(records, &message.PartitionRecord{TopicID: topic, PartitionID: i, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 2})
	}
	w.publish(records...)
	parts := make([]*Partition, n)
	for i := range parts {
		p, err := w.m.Partition("a", int32(i))
		if err != nil {
			w.t.Fatal(err)
		}
		parts[i] = p
	}
	return parts
}

func testFetcherOptions() fetcherOptions {
	return fetcherOptions{nodeID: 1, brokerEpoch: func() int64 { return 11 }, maxWait: time.Second, minBytes: 1, maxBytes: 1 << 20,
		partitionMaxBytes: 1 << 20, backoff: time.Second, logger: slog.New(slog.DiscardHandler)}
}

// A disk that is full for a while must not end the following.
func TestFetcherGoesOnAfterErrorsOfTheDisk(t *testing.T) {
	p := newWorld(t).followed(1)[0]
	f, now := newFetcher(testFetcherOptions()), testStart
	f.follow(p, 0)
	for _, cause := range []error{syscall.ENOSPC, syscall.EMFILE} {
		q, _ := f.next(now)
		if q == nil {
			t.Fatalf("%v: nothing is asked for", cause)
		}
		f.broken(now, f.parts[keyOf(p)], fmt.Errorf("append: %w: %w", api.ErrKafkaStorageError, cause))
		q, at := f.next(now)
		if q != nil || !at.After(now) || at.After(now.Add(f.o.backoff)) {
			t.Fatalf("%v: asks for %v, and again at %v", cause, q, at.Sub(now))
		}
		now = at
	}
	if q, _ := f.next(now); q == nil || len(q.(*kmsg.FetchRequest).Topics) != 1 {
		t.Errorf("asks for %v", q)
	}
}

// A partition that the leader refuses, since it doesn't lead it yet, is asked for again soon, though all others have nothing new.
func TestFetchDoesNotWaitBeyondABackoff(t *testing.T) {
	parts := newWorld(t).followed(2)
	f, now := newFetcher(testFetcherOptions()), testStart
	for _, p := range parts {
		f.follow(p, 0)
	}
	q, _ := f.next(now)
	if wait := q.(*kmsg.FetchRequest).MaxWaitMillis; wait != 1000 {
		t.Errorf("the first fetch waits %d ms", wait)
	}
	answer := &kmsg.FetchResponse{SessionID: 7, Topics: []kmsg.FetchResponseTopic{{TopicID: parts[0].topicID}}}
	for i := range parts {
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition = int32(i)
		if i == 1 {
			p.ErrorCode = api.ErrUnknownTopicID.Code
		}
		answer.Topics[0].Partitions = append(answer.Topics[0].Partitions, p)
	}
	f.answered(now, q, answer, nil)
	now = now.Add(3 * time.Millisecond)
	q, _ = f.next(now)
	if wait := q.(*kmsg.FetchRequest).MaxWaitMillis; wait != int32((firstBackoff-3*time.Millisecond)/time.Millisecond) {
		t.Errorf("the fetch without the refused partition waits %d ms", wait)
	}
	f.answered(now, q, &kmsg.FetchResponse{SessionID: 7}, nil)
	q, _ = f.next(now.Add(firstBackoff))
	if fetch := q.(*kmsg.FetchRequest); fetch.MaxWaitMillis != 1000 || len(fetch.Topics) != 1 || fetch.Topics[0].Partitions[0].Partition != 1 {
		t.Errorf("the next fetch asks for %+v and waits %d ms", fetch.Topics, fetch.MaxWaitMillis)
	}
}

// What is followed already is no reason to take a fetch back: every change of an ISR tells it again.
func TestFetchLoopKeepsWhatItFollows(t *testing.T) {
	parts := newWorld(t).followed(2)
	l := &fetchLoop{set: &fetchers{}, core: newFetcher(testFetcherOptions()), due: true} // nobody takes turns
	f := func(want bool, commands ...fetchCommand) {
		t.Helper()
		for _, c := range commands {
			l.tell(c)
		}
		if more := l.applyInbox(); more != want {
			t.Errorf("%+v: more is %v", commands, more)
		}
	}
	first := fetchCommand{partition: parts[0], follow: true, leaderEpoch: 0}
	f(true, first)
	f(false, first)
	f(true, fetchCommand{partition: parts[1], follow: true, leaderEpoch: 0}, first)
	f(true, fetchCommand{partition: parts[0], follow: true, leaderEpoch: 1})
	f(false, fetchCommand{partition: parts[0]})
}

type testConnections struct{ closed int }

func (c *testConnections) Send(_ string, _ kmsg.Request, _ int16, _ time.Duration, done func(kmsg.Response, error)) {
	done(nil, errors.New("nobody is there"))
}
func (c *testConnections) Forget(string) {}
func (c *testConnections) Close()        { c.closed++ }

// A connection's answers are valid until its next one, so no two fetchers may share one, whatever addresses their leaders have.
func TestFetchersShareNoConnections(t *testing.T) {
	parts := newWorld(t).followed(2)
	var made []*testConnections
	s := newFetchers(1, func() Connections {
		c := new(testConnections)
		made = append(made, c)
		return c
	}, func(int32) (string, bool) { return "h:1", true }, testFetcherOptions, time.Second, time.Now, slog.New(slog.DiscardHandler))
	s.follow(parts[0], 2, 0)
	s.follow(parts[1], 3, 0)
	if len(s.loops) != 2 || len(made) != 2 {
		t.Errorf("%d fetchers have %d connections", len(s.loops), len(made))
	}
	s.close()
	for i, c := range made {
		if c.closed != 1 {
			t.Errorf("connection %d was closed %d times", i, c.closed)
		}
	}
}
