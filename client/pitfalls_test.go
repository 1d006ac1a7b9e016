package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"gregor/internal/await"
)

// The pitfalls of docs/client.md, each shown. The tests have the names that the table gives.

// pitfall is a cluster with a topic of one partition that holds records 0 to n-1.
func pitfall(t *testing.T, n int) (context.Context, *Client, string) {
	t.Helper()
	c := liveClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	t.Cleanup(cancel)
	topic := liveTopic(t, c, 1, nil)
	p := c.NewProducer(ProducerOptions{})
	for i := range n {
		if err := p.Produce(ctx, &Record{Topic: topic, Value: fmt.Append(nil, i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx, c, topic
}

func poll(t *testing.T, ctx context.Context, u *Consumer) []string {
	t.Helper()
	records, err := u.Poll(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range records {
		out = append(out, string(r.Value))
	}
	return out
}

func consumer(t *testing.T, c *Client, o ConsumerOptions) *Consumer {
	t.Helper()
	u, err := c.NewConsumer(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close(context.Background()) })
	return u
}

// Records that Poll has just returned are not committed until the next Poll, by the clock; Commit takes them all.
func TestPitfallAutoCommitIsOnePollBehind(t *testing.T) {
	ctx, c, topic := pitfall(t, 10)
	tp := TopicPartition{topic, 0}
	u := consumer(t, c, ConsumerOptions{Group: topic, Partitions: map[TopicPartition]int64{tp: 0}, MaxPoll: 5, AutoCommit: 10 * time.Millisecond})
	committed := func() int64 {
		got, err := c.GroupOffsets(ctx, topic, []TopicPartition{tp}, false)
		if err != nil {
			t.Fatal(err)
		}
		return got[0].Offset
	}
	poll(t, ctx, u)
	await.True(t, "the beginning is committed", func() bool { return committed() == 0 })
	poll(t, ctx, u)
	await.True(t, "what the first poll returned is committed", func() bool { return committed() == 5 })
	if err := u.Commit(ctx); err != nil || committed() != 10 {
		t.Error(committed(), err)
	}
}

// Polls return no more than MaxPoll records, however many have been fetched.
func TestPitfallMaxPollRecords(t *testing.T) {
	ctx, c, topic := pitfall(t, 100)
	u := consumer(t, c, ConsumerOptions{Partitions: map[TopicPartition]int64{{topic, 0}: 0}, MaxPoll: 7})
	var got []string
	for len(got) < 100 {
		some := poll(t, ctx, u)
		if len(some) > 7 {
			t.Fatalf("%d records", len(some))
		}
		got = append(got, some...)
	}
	if got[99] != "99" {
		t.Error(got)
	}
}

// Without a reset policy a consumer without an offset gets an error, once, and waits for a seek.
func TestPitfallNoResetPolicy(t *testing.T) {
	ctx, c, topic := pitfall(t, 3)
	tp := TopicPartition{topic, 0}
	u := consumer(t, c, ConsumerOptions{Partitions: map[TopicPartition]int64{tp: 50}, Reset: ResetNone})
	if _, err := u.Poll(ctx); !errors.Is(err, OffsetOutOfRange) {
		t.Fatal(err)
	}
	if err := u.Seek(tp, 1); err != nil {
		t.Fatal(err)
	}
	if got := poll(t, ctx, u); !slices.Equal(got, []string{"1", "2"}) {
		t.Error(got)
	}
}

// A paused partition's records stay where they are, and Poll waits.
func TestPitfallPausedIsNotReturned(t *testing.T) {
	ctx, c, topic := pitfall(t, 10)
	tp := TopicPartition{topic, 0}
	u := consumer(t, c, ConsumerOptions{Partitions: map[TopicPartition]int64{tp: 0}, MaxPoll: 5})
	poll(t, ctx, u)
	u.Pause(tp)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if records, err := u.Poll(short); err == nil {
		t.Errorf("%d records of a paused partition", len(records))
	}
	u.Resume(tp)
	if got := poll(t, ctx, u); len(got) != 5 || got[0] != "5" {
		t.Error(got)
	}
}

// A seek drops what was fetched before it.
func TestPitfallSeekDropsWhatWasFetched(t *testing.T) {
	ctx, c, topic := pitfall(t, 10)
	tp := TopicPartition{topic, 0}
	u := consumer(t, c, ConsumerOptions{Partitions: map[TopicPartition]int64{tp: 0}, MaxPoll: 2})
	poll(t, ctx, u)
	for range 20 {
		if err := u.Seek(tp, 8); err != nil {
			t.Fatal(err)
		}
		if got := poll(t, ctx, u); !slices.Equal(got, []string{"8", "9"}) {
			t.Fatal(got)
		}
	}
}

// A loop over Records that breaks has not processed the record that it broke at: it comes again.
func TestPitfallBreakKeepsTheRecord(t *testing.T) {
	ctx, c, topic := pitfall(t, 4)
	u := consumer(t, c, ConsumerOptions{Partitions: map[TopicPartition]int64{{topic, 0}: 0}})
	var got []string
	for range 2 {
		for r, err := range u.Records(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(r.Value))
			if len(got)%2 == 0 {
				break
			}
		}
	}
	if !slices.Equal(got, []string{"0", "1", "1", "2"}) {
		t.Error(got)
	}
}

// The caller who stays away from Poll longer than max.poll.interval.ms loses its partitions, and gets them back in Poll.
func TestPitfallAwayFromPoll(t *testing.T) {
	ctx, c, topic := pitfall(t, 5)
	lost := make(chan []TopicPartition, 1)
	u := consumer(t, c, ConsumerOptions{
		Group: topic, Topics: []string{topic}, Reset: ResetEarliest, MaxPollInterval: 300 * time.Millisecond, AutoCommit: -1,
		OnLost: func(tps []TopicPartition) { lost <- tps },
	})
	poll(t, ctx, u)
	await.True(t, "the member has left", func() bool {
		g, err := c.DescribeGroup(ctx, topic)
		return err == nil && len(g.Members) == 0
	})
	if got := poll(t, ctx, u); len(got) != 5 {
		t.Errorf("read %v again", got)
	}
	select {
	case tps := <-lost:
		if len(tps) != 1 {
			t.Error(tps)
		}
	default:
		t.Error("the listener was not told")
	}
}
