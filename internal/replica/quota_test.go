package replica

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"gregor/internal/clock"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

func TestRateIsThatOfTheLastSamples(t *testing.T) {
	w := rateWindow{num: 3, size: time.Second}
	at := func(ms int) time.Time { return time.UnixMilli(int64(1_000_000 + ms)) }
	for _, step := range []struct {
		ms   int
		n    int64
		rate float64
	}{
		{0, 100, 100},     // the time of a sample at least
		{500, 100, 200},   // the same sample
		{2000, 200, 200},  // 400 in 2 s
		{2999, 1, 133.7},  // 401 in 2.999 s
		{3000, 0, 201},    // the first is forgotten: 201 since 2 s
		{4500, 99, 120},   // 300 in 2.5 s
		{60000, 300, 300}, // all are
	} {
		w.record(at(step.ms), step.n)
		if got := w.rate(at(step.ms)); got < step.rate-0.1 || got > step.rate+0.1 {
			t.Errorf("after %d ms: %.2f, want %.2f", step.ms, got, step.rate)
		}
	}
}

// TestQuotaHoldsTheRate moves chunks whenever the quota lets it, and waits as long as it says otherwise: neither more nor much
// less than the bound is moved, whatever the sizes are.
func TestQuotaHoldsTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clk := clock.NewManual(time.UnixMilli(1_700_000_000_000))
		bound := rapid.Int64Range(1, 1<<30).Draw(t, "bound")
		num := rapid.IntRange(1, 11).Draw(t, "samples")
		chunk := rapid.Int64Range(1, max(bound, 2)).Draw(t, "chunk")
		q := newQuota(clk, bound, num, time.Second)
		start := clk.Now()
		var moved int64
		for clk.Now().Sub(start) < time.Minute {
			if q.exceeded() {
				wait := q.wait()
				if wait <= 0 {
					t.Fatal("the quota is exceeded, and there is nothing to wait for")
				}
				clk.Advance(wait)
				continue
			}
			n := rapid.Int64Range(1, chunk).Draw(t, "n")
			q.record(int(n))
			moved += n
			clk.Advance(time.Duration(rapid.Int64Range(1, 200).Draw(t, "ms")) * time.Millisecond)
		}
		seconds := clk.Now().Sub(start).Seconds()
		// What is moved at a time may be too much, and at the latest a second later it is seen that it was.
		if most := float64(bound+chunk) * (seconds + float64(num)); float64(moved) > most {
			t.Fatalf("%d were moved in %.1f s, at most %.0f may be at %d/s", moved, seconds, most, bound)
		}
	})
}

// TestQuotaStarvesNobody: who always has something to move gets most of what the bound allows.
func TestQuotaStarvesNobody(t *testing.T) {
	for _, bound := range []int64{1, 1000, 1 << 20, 1 << 40} {
		clk := clock.NewManual(time.UnixMilli(1_700_000_000_000))
		q := newQuota(clk, bound, 11, time.Second)
		start := clk.Now()
		var moved int64
		for clk.Now().Sub(start) < 10*time.Minute {
			if wait := q.wait(); wait > 0 {
				clk.Advance(wait)
				continue
			}
			n := max(bound/10, 1)
			q.record(int(n))
			moved += n
			clk.Advance(time.Millisecond)
		}
		want := float64(bound) * clk.Now().Sub(start).Seconds()
		if got := float64(moved); got < 0.8*want || got > 1.2*want {
			t.Errorf("%d/s: moved %d in 10 min, want about %.0f", bound, moved, want)
		}
	}
}

func TestUnlimitedQuota(t *testing.T) {
	q := newQuota(clock.NewManual(time.UnixMilli(0)), Unlimited, 11, time.Second)
	q.record(1 << 40)
	if q.exceeded() || q.wait() != 0 {
		t.Error("an unlimited quota is exceeded")
	}
	// What was moved counts nevertheless.
	if got := q.rate(); got != 1<<40 {
		t.Errorf("rate %v, want %v", got, 1<<40)
	}
	if q.bound.Store(1000); !q.exceeded() {
		t.Error("a bound that is set later doesn't hold for what was moved a moment ago")
	}
}

func TestZeroQuotaLetsOneThroughAWindow(t *testing.T) {
	clk := clock.NewManual(time.UnixMilli(0))
	q := newQuota(clk, 0, 11, time.Second)
	if q.exceeded() {
		t.Error("exceeded before anything was moved")
	}
	q.record(1)
	if wait := q.wait(); !q.exceeded() || wait != 11*time.Second {
		t.Errorf("wait %v, want 11s", wait)
	}
}

// A follower leaves its throttled partitions out while the quota is exceeded, unless they have caught up; others it goes on to
// fetch, and those too once the rate has come down.
func TestFetcherHoldsThrottledPartitions(t *testing.T) {
	parts := newWorld(t).followed(3)
	clk := clock.NewManual(testStart)
	o := testFetcherOptions()
	o.quota = newQuota(clk, 1000, 11, time.Second)
	f := newFetcher(o)
	for _, p := range parts {
		f.follow(p, 0)
	}
	parts[0].followerThrottled.Store(true)
	parts[1].followerThrottled.Store(true)
	asked := func(q kmsg.Request) (ids, forgotten []int32) {
		if q == nil {
			return nil, nil
		}
		for _, t := range q.(*kmsg.FetchRequest).Topics {
			for _, p := range t.Partitions {
				ids = append(ids, p.Partition)
			}
		}
		for _, t := range q.(*kmsg.FetchRequest).ForgottenTopics {
			forgotten = append(forgotten, t.Partitions...)
		}
		return ids, forgotten
	}
	answer := func(q kmsg.Request, highWatermark int64) {
		r := q.ResponseKind().(*kmsg.FetchResponse)
		r.SessionID = 7
		for _, t := range q.(*kmsg.FetchRequest).Topics {
			out := kmsg.NewFetchResponseTopic()
			out.TopicID = t.TopicID
			for _, p := range t.Partitions {
				o := kmsg.NewFetchResponseTopicPartition()
				o.Partition, o.DivergingEpoch.Epoch = p.Partition, -1
				if p.Partition == 0 {
					o.HighWatermark = highWatermark
				}
				out.Partitions = append(out.Partitions, o)
			}
			r.Topics = append(r.Topics, out)
		}
		f.answered(clk.Now(), q, r, nil)
	}
	q, _ := f.next(clk.Now())
	if ids, _ := asked(q); len(ids) != 3 {
		t.Fatalf("asks for partitions %v, want all three", ids)
	}
	answer(q, 1000)
	o.quota.record(5000)
	// Partition 0 lags behind the leader's high watermark, 1 has all, 2 isn't throttled.
	q, _ = f.next(clk.Now())
	if ids, forgotten := asked(q); len(ids) != 0 || !slices.Equal(forgotten, []int32{0}) {
		t.Fatalf("asks for partitions %v and forgets %v, want none and 0", ids, forgotten)
	}
	answer(q, 1000)
	clk.Advance(4 * time.Second)
	q, _ = f.next(clk.Now())
	if ids, _ := asked(q); len(ids) != 0 {
		t.Fatalf("asks for partitions %v after 4 s at 1250 bytes a second", ids)
	}
	answer(q, 1000)
	clk.Advance(1001 * time.Millisecond)
	q, _ = f.next(clk.Now())
	if ids, _ := asked(q); !slices.Equal(ids, []int32{0}) {
		t.Fatalf("asks for partitions %v after 5 s, want 0", ids)
	}
}

func TestThrottledReplicas(t *testing.T) {
	for _, c := range []struct {
		list []string
		has  []int32
		not  []int32
	}{
		{nil, nil, []int32{0, 1}},
		{[]string{"*"}, []int32{0, 7}, nil},
		{[]string{"0:3", " 2:3", "1:4"}, []int32{0, 2}, []int32{1, 3}},
	} {
		got := parseThrottled(c.list, 3)
		for _, p := range c.has {
			if !got.has(p) {
				t.Errorf("%q: partition %d is not throttled", c.list, p)
			}
		}
		for _, p := range c.not {
			if got.has(p) {
				t.Errorf("%q: partition %d is throttled", c.list, p)
			}
		}
	}
}

// A leader sends throttled replicas nothing while its quota is exceeded, unless they are in sync.
func TestLeaderHoldsThrottledReplicasBack(t *testing.T) {
	w := newWorld(t)
	topic, all := uuid.UUID{15: 100}, "0:1,1:2"
	w.publish(&message.TopicRecord{Name: "a", TopicID: topic},
		&message.PartitionRecord{TopicID: topic, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 3}, Leader: 1},
		&message.ConfigRecord{ResourceType: metadata.TopicResource, ResourceName: "a", Name: "leader.replication.throttled.replicas", Value: &all})
	p, err := w.m.Partition("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	w.append(p, "x")
	clk := clock.NewManual(testStart)
	w.m.leaderQuota = newQuota(clk, 100, 11, time.Second)
	read := func(follower int32) FetchResult {
		var res FetchResult
		p.Read(FetchSpec{MaxBytes: 1000, LeaderEpoch: -1, LastFetchedEpoch: -1}, &Reader{Follower: follower, BrokerEpoch: -1}, ReadLimits{MaxBytes: 1000, MinOne: true}, &res)
		res.Release()
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		return res
	}
	if res := read(2); res.Throttled || res.logEnd != 1 {
		t.Errorf("before anything was sent: %+v", res)
	}
	w.m.Served(1000)
	if res := read(2); !res.Throttled || res.Size() != 0 || res.logEnd != 1 {
		t.Errorf("a replica that is not in sync: %+v", res)
	}
	if res := read(3); res.Throttled {
		t.Errorf("a replica in sync: %+v", res)
	}
	clk.Advance(10 * time.Second)
	if res := read(2); res.Throttled {
		t.Errorf("at 100 bytes a second: %+v", res)
	}
	if rates := w.m.ReplicationRates(); rates.Leader != 100 || rates.Follower != 0 || rates.LogDirs != 0 {
		t.Errorf("rates %+v", rates)
	}
	w.publish(&message.ConfigRecord{ResourceType: metadata.TopicResource, ResourceName: "a", Name: "leader.replication.throttled.replicas"})
	w.m.Served(1000)
	if res := read(2); res.Throttled || p.LeaderThrottled() {
		t.Errorf("after the throttle was taken off: %+v", res)
	}
}
