package quorum

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestReplicateOneKafka and TestReplicateTwoKafka: brokers of both kinds replicate from each other. Each leads one partition, is
// killed while idempotent producers write with acks=all, comes back, catches up and leads again. In the end what was acknowledged
// is there once and in order, and all replicas hold the same bytes.
func TestReplicateOneKafka(t *testing.T) {
	testReplication(t, gregorKind, kafkaKind, gregorKind)
}

func TestReplicateTwoKafka(t *testing.T) {
	testReplication(t, kafkaKind, gregorKind, kafkaKind)
}

func testReplication(t *testing.T, kinds ...kind) {
	c := newCluster(t, false, kinds, "min.insync.replicas=2", "offsets.topic.replication.factor=3", "auto.leader.rebalance.enable=false")
	c.run(c.members...)
	var seeds []string
	for _, m := range c.members {
		seeds = append(seeds, m.addr)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.RequestTimeoutOverhead(5*time.Second), kgo.RecordDeliveryTimeout(patience), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	create := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "mix", -1, -1
	for p := range int32(len(kinds)) {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition = p
		for i := range int32(len(kinds)) {
			a.Replicas = append(a.Replicas, 1+(p+i)%int32(len(kinds)))
		}
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, a)
	}
	create.Topics = append(create.Topics, topic)
	if resp, err := create.RequestWith(t.Context(), cl); err != nil || resp.Topics[0].ErrorCode != 0 {
		t.Fatalf("create: %+v, %v", resp, err)
	}

	w := newWriters(t, cl, len(kinds))
	c.inSync(cl)
	w.progress(50)
	for _, m := range c.members {
		begin := time.Now()
		m.kill()
		w.progress(50)
		c.logf("without %s: all partitions are written to within %v", m, time.Since(begin))
		c.run(m)
		begin = time.Now()
		c.inSync(cl)
		c.logf("%s is in sync again after %v", m, time.Since(begin))
		elect := kmsg.NewPtrElectLeadersRequest()
		if _, err := elect.RequestWith(t.Context(), cl); err != nil {
			t.Fatal(err)
		}
		w.progress(50)
	}
	w.stop()
	c.inSync(cl)
	w.check(seeds)
	for _, m := range c.members {
		m.kill() // the last of them could not say goodbye to a controller
	}
	for p := range kinds {
		first := c.members[0].segments(fmt.Sprintf("mix-%d", p))
		for _, m := range c.members[1:] {
			if !bytes.Equal(first, m.segments(fmt.Sprintf("mix-%d", p))) {
				t.Errorf("partition %d: %s and %s have different logs", p, c.members[0], m)
			}
		}
	}
}

// inSync waits until all replicas of the topic are in sync and every broker is there.
func (c *cluster) inSync(cl *kgo.Client) {
	c.tb.Helper()
	c.await("all replicas in sync", func() (string, bool) {
		for _, m := range c.members {
			q := kmsg.NewPtrMetadataRequest()
			q.Version = 12
			name := "mix"
			q.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
			resp, err := ask[*kmsg.MetadataResponse](m.addr, q, 10*time.Second)
			if err != nil {
				return err.Error(), false
			}
			if len(resp.Brokers) != len(c.members) {
				return fmt.Sprintf("%s knows %d brokers", m, len(resp.Brokers)), false
			}
			if len(resp.Topics) != 1 || resp.Topics[0].ErrorCode != 0 {
				return fmt.Sprintf("%s: %+v", m, resp.Topics), false
			}
			for _, p := range resp.Topics[0].Partitions {
				if len(p.ISR) != len(c.members) {
					return fmt.Sprintf("%s: partition %d has leader %d and ISR %v", m, p.Partition, p.Leader, p.ISR), false
				}
			}
		}
		return "", true
	})
}

// segments is what the segment files of a replica hold, one after the other.
func (m *member) segments(dir string) []byte {
	m.c.tb.Helper()
	names, err := filepath.Glob(filepath.Join(m.data(), dir, "*.log"))
	if err != nil || len(names) == 0 {
		m.c.tb.Fatalf("%s: %s has %d segments: %v", m, dir, len(names), err)
	}
	slices.Sort(names)
	var out []byte
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			m.c.tb.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

// writers write to the partitions of the topic, one record after the other in each.
type writers struct {
	tb     testing.TB
	cancel context.CancelFunc
	busy   sync.WaitGroup

	mu    sync.Mutex // guards acked
	acked [][]string // by partition, in order
}

func newWriters(tb testing.TB, cl *kgo.Client, partitions int) *writers {
	ctx, cancel := context.WithCancel(context.Background())
	w := &writers{tb: tb, cancel: cancel, acked: make([][]string, partitions)}
	tb.Cleanup(w.stop)
	for p := range partitions {
		w.busy.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				value := fmt.Sprintf("%d/%d", p, i)
				// A record that has been begun is seen to its end, or it would be unclear what becomes of it.
				err := cl.ProduceSync(context.Background(), &kgo.Record{Topic: "mix", Partition: int32(p), Value: []byte(value)}).FirstErr()
				if err != nil {
					tb.Errorf("produce %s: %v", value, err)
					return
				}
				w.mu.Lock()
				w.acked[p] = append(w.acked[p], value)
				w.mu.Unlock()
			}
		})
	}
	return w
}

func (w *writers) stop() {
	w.cancel()
	w.busy.Wait()
}

// progress waits until each partition has n records more.
func (w *writers) progress(n int) {
	w.tb.Helper()
	w.mu.Lock()
	var want []int
	for _, a := range w.acked {
		want = append(want, len(a)+n)
	}
	w.mu.Unlock()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		missing := -1
		w.mu.Lock()
		for p, a := range w.acked {
			if len(a) < want[p] {
				missing = p
			}
		}
		w.mu.Unlock()
		if missing < 0 {
			return
		}
		if time.Now().After(end) {
			w.tb.Fatalf("partition %d takes no %d records within %v", missing, n, patience)
		}
	}
}

// check reads everything and compares it with what was acknowledged.
func (w *writers) check(seeds []string) {
	w.tb.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ConsumeTopics("mix"))
	if err != nil {
		w.tb.Fatal(err)
	}
	defer cl.Close()
	found, want := make([][]string, len(w.acked)), 0
	for _, a := range w.acked {
		want += len(a)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for n := 0; n < want; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			w.tb.Fatalf("after %d of %d records: %v", n, want, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			found[r.Partition] = append(found[r.Partition], string(r.Value))
			n++
		})
	}
	for p := range w.acked {
		if !slices.Equal(found[p], w.acked[p]) {
			w.tb.Errorf("partition %d: %d records acknowledged and %d found, or in another order", p, len(w.acked[p]), len(found[p]))
		}
	}
	w.tb.Logf("%d records", want)
}
