package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	gregorclient "gregor/client"
	"gregor/internal/await"
	"gregor/interop/kafka"
)

// patience is how long something may take that ought to be quick.
const clientPatience = 2 * time.Minute

// TestClientSuiteOnKafka runs the live tests of package client, which the unit tests run against gregor, against the real Kafka:
// admin, both group protocols, idempotence over connections that break, transactions.
func TestClientSuiteOnKafka(t *testing.T) {
	k, _ := startKafka(t, "group.consumer.heartbeat.interval.ms=1000", "group.consumer.min.heartbeat.interval.ms=500",
		"transaction.state.log.num.partitions=2")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^TestLive", "./client")
	cmd.Dir = kafka.Root()
	cmd.Env = append(os.Environ(), "CLIENT_TEST_BOOTSTRAP="+k.Addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// openClient is a gregor client for a test.
func openClient(t *testing.T, addr string) *gregorclient.Client {
	t.Helper()
	c, err := gregorclient.New(gregorclient.Options{Seeds: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestClientSharesGroups lets gregor's client be in one group with franz-go, on gregor and on Kafka, and hand its offsets over to
// Java: partitions are shared, every record is read once, and those who come later go on where the others stopped.
func TestClientSharesGroups(t *testing.T) {
	g, _ := startGregor(t)
	k, _ := startKafka(t)
	for _, s := range []struct{ name, addr string }{{"gregor", g.Addr}, {"kafka", k.Addr}} {
		for _, a := range []struct {
			ours   gregorclient.Assignor
			theirs kgo.GroupBalancer
		}{
			{gregorclient.RangeAssignor{}, kgo.RangeBalancer()},
			{gregorclient.RoundRobinAssignor{}, kgo.RoundRobinBalancer()},
			{gregorclient.StickyAssignor{}, kgo.StickyBalancer()},
			{gregorclient.CooperativeStickyAssignor{}, kgo.CooperativeStickyBalancer()},
		} {
			t.Run(s.name+"/"+a.ours.Name(), func(t *testing.T) {
				t.Parallel() // most of it is waiting for heartbeats
				shareGroup(t, s.addr, a.ours, a.theirs)
			})
		}
	}
}

func shareGroup(t *testing.T, addr string, ours gregorclient.Assignor, theirs kgo.GroupBalancer) {
	ctx, cancel := context.WithTimeout(t.Context(), clientPatience)
	defer cancel()
	c := openClient(t, addr)
	topic := "shared-" + ours.Name()
	const partitions, records = 4, 400
	if res, err := c.CreateTopics(ctx, []gregorclient.TopicSpec{{Name: topic, Partitions: partitions}}, false); err != nil || res[0].Err != nil {
		t.Fatal(err, res)
	}
	p := c.NewProducer(gregorclient.ProducerOptions{})
	produce := func(from int) {
		t.Helper()
		for i := from; i < from+records; i++ {
			if err := p.Produce(ctx, &gregorclient.Record{Topic: topic, Partition: int32(i % partitions), Value: fmt.Append(nil, i)}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	defer p.Close(ctx)
	var mu sync.Mutex
	seen := map[string]int{}
	by := map[string]int{}
	note := func(who string, value []byte) {
		mu.Lock()
		defer mu.Unlock()
		seen[string(value)]++
		by[who]++
	}
	all := func(n int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(seen) >= n
		}
	}
	u, err := c.NewConsumer(gregorclient.ConsumerOptions{
		Group: topic, Topics: []string{topic}, Reset: gregorclient.ResetEarliest, Assignors: []gregorclient.Assignor{ours}, Heartbeat: 300 * time.Millisecond,
		AutoCommit: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	polling, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			rs, err := u.Poll(polling)
			if err != nil {
				if polling.Err() == nil {
					t.Error(err)
				}
				return
			}
			for _, r := range rs {
				note("gregor", r.Value)
			}
		}
	})
	produce(0)
	await.True(t, "gregor's client has read all", all(records))
	other, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.Balancers(theirs),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(300*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		for {
			fs := other.PollFetches(polling)
			if polling.Err() != nil {
				return
			}
			fs.EachRecord(func(r *kgo.Record) { note("franz-go", r.Value) })
		}
	})
	await.True(t, "both have half of the partitions", func() bool { return len(u.Assignment()) == partitions/2 })
	produce(records)
	await.True(t, "both have read all", all(2*records))
	mu.Lock()
	if by["franz-go"] == 0 || by["franz-go"] > records {
		t.Errorf("read by %v", by)
	}
	mu.Unlock()
	stop()
	wg.Wait()
	if err := other.CommitUncommittedOffsets(ctx); err != nil {
		t.Error(err)
	}
	other.Close()
	if err := u.Close(ctx); err != nil {
		t.Error(err)
	}
	// All of it was committed, whoever read it.
	offsets, err := c.GroupOffsets(ctx, topic, nil, false)
	total := int64(0)
	for _, o := range offsets {
		total += o.Offset
	}
	if err != nil || total != 2*records {
		t.Errorf("%v %+v", err, offsets)
	}
	if ours.Name() == "range" {
		produce(2 * records)
		if n := javaGroup(t, addr, topic, topic, records); n != records {
			t.Errorf("Java read %d records behind what was committed, want %d", n, records)
		}
	}
	for v, n := range seen {
		if n != 1 {
			t.Errorf("record %s was read %d times", v, n)
			break
		}
	}
}
