package node

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/await"
	"gregor/internal/sim"
)

var (
	killRounds = flag.Int("kill-rounds", 5, "rounds of TestKilledReplicas")
	killSeed   = flag.Uint64("kill-seed", 1, "seed of TestKilledReplicas")
)

// TestKilledReplicas kills and freezes nodes that are controller and broker at once, one a round, while idempotent producers
// write with acks=all to topics of three replicas of which two must be in sync. Whatever happens, what was acknowledged is there
// once and in order, and in the end all replicas hold the same bytes.
func TestKilledReplicas(t *testing.T) {
	const partitions = 6
	p := newProcs(t, "broker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500\nmin.insync.replicas=2\noffsets.topic.replication.factor=3\n",
		combined, combined, combined)
	p.start(1, 2, 3)
	c, err := client.New(client.Options{Seeds: p.addrs(), Timeout: await.Patience, RequestTimeout: 3 * time.Second, ConnectTimeout: 3 * time.Second,
		RetryBackoff: time.Millisecond, RetryBackoffMax: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.brokers(c, 3)
	if _, err := c.CreateTopics(t.Context(), []client.TopicSpec{{Name: "k", Partitions: partitions, ReplicationFactor: 3}}, false); err != nil {
		t.Fatal(err)
	}
	w := newWriters(t, c, "k", partitions)
	rng := sim.RandFor(*killSeed, "kills")
	for round := range *killRounds {
		victim := p.nodes[1+rng.IntN(3)]
		w.progress(10)
		begin := time.Now()
		what := "killed"
		if rng.IntN(4) == 0 {
			what = "frozen"
			victim.signal(syscall.SIGSTOP)
		} else {
			victim.kill()
		}
		w.progress(10)
		t.Logf("round %d: node %d %s, all partitions were written to within %v", round, victim.id, what, time.Since(begin))
		begin = time.Now()
		if what == "frozen" {
			victim.signal(syscall.SIGCONT)
		} else {
			p.start(victim.id)
		}
		p.inSync(c, "k", 3)
		t.Logf("round %d: all in sync again after %v", round, time.Since(begin))
	}
	w.stop()
	p.inSync(c, "k", 3)
	w.check(read(t, c, "k", partitions))
	p.level(c, "k", partitions)
	for _, n := range p.nodes {
		n.signal(syscall.SIGTERM)
	}
	for _, n := range p.nodes {
		<-n.end
		n.cmd = nil
	}
	for i := range partitions {
		first := p.segments(1, fmt.Sprint("k-", i))
		for _, id := range []int{2, 3} {
			if !bytes.Equal(p.segments(id, fmt.Sprint("k-", i)), first) {
				t.Errorf("k-%d: the logs of nodes 1 and %d differ", i, id)
			}
		}
	}
}

// addrs are the addresses of all brokers.
func (p *procs) addrs() (out []string) {
	for _, id := range p.others() {
		out = append(out, fmt.Sprintf("127.0.0.1:%d", p.nodes[id].broker))
	}
	return out
}

// inSync waits until all replicas of the topic are in the ISR, as its leaders see it.
func (p *procs) inSync(c *client.Client, topic string, n int) {
	p.t.Helper()
	p.brokers(c, len(p.nodes))
	await.True(p.t, fmt.Sprintf("%d replicas in sync", n), func() bool {
		for id := range p.nodes {
			t, err := p.topic(p.t.Context(), c, int32(id), topic)
			if err != nil || t.ErrorCode != 0 {
				return false
			}
			for _, part := range t.Partitions {
				if len(part.ISR) != n || part.Leader < 0 {
					return false
				}
			}
		}
		return true
	})
}

// level waits until the three replicas of each partition of a topic are equally long: a follower in sync may be a fetch behind.
func (p *procs) level(c *client.Client, topic string, partitions int) {
	p.t.Helper()
	await.True(p.t, "replicas of equal length", func() bool {
		dirs, err := c.DescribeLogDirs(p.t.Context())
		if err != nil {
			return false
		}
		sizes, replicas := map[int32]int64{}, 0
		for _, d := range dirs {
			for _, r := range d.Replicas {
				if r.Topic != topic {
					continue
				}
				replicas++
				if size, seen := sizes[r.Partition]; seen && size != r.Size {
					return false
				}
				sizes[r.Partition] = r.Size
			}
		}
		return replicas == 3*partitions
	})
}

// segments is what the segment files of a replica hold, one after the other.
func (p *procs) segments(node int, dir string) []byte {
	p.t.Helper()
	names, err := filepath.Glob(filepath.Join(p.nodes[node].dir, "data", dir, "*.log"))
	if err != nil || len(names) == 0 {
		p.t.Fatalf("node %d: %s has %d segments: %v", node, dir, len(names), err)
	}
	slices.Sort(names)
	var out []byte
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			p.t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

// writers write to each partition of a topic, one record after the other.
type writers struct {
	t      *testing.T
	cancel context.CancelFunc
	busy   sync.WaitGroup

	mu    sync.Mutex // guards acked
	acked [][]string // by partition, in order
}

func newWriters(t *testing.T, c *client.Client, topic string, partitions int32) *writers {
	ctx, cancel := context.WithCancel(t.Context())
	w := &writers{t: t, cancel: cancel, acked: make([][]string, partitions)}
	t.Cleanup(w.stop)
	for id := range partitions {
		producer := c.NewProducer(client.ProducerOptions{DeliveryTimeout: await.Patience})
		w.busy.Go(func() {
			defer closeProducer(producer)
			for i := 0; ctx.Err() == nil; i++ {
				value := fmt.Sprintf("%d/%d", id, i)
				if err := producer.ProduceSync(ctx, &client.Record{Topic: topic, Partition: id, Value: []byte(value)}); err != nil {
					if ctx.Err() == nil {
						t.Errorf("produce %s: %v", value, err)
					}
					return
				}
				w.mu.Lock()
				w.acked[id] = append(w.acked[id], value)
				w.mu.Unlock()
			}
		})
	}
	return w
}

// progress waits until each partition has n records more.
func (w *writers) progress(n int) {
	w.t.Helper()
	w.mu.Lock()
	var want []int
	for _, a := range w.acked {
		want = append(want, len(a)+n)
	}
	w.mu.Unlock()
	await.True(w.t, fmt.Sprintf("%d records more in each partition", n), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, a := range w.acked {
			if len(a) < want[i] {
				return false
			}
		}
		return true
	})
}

func (w *writers) stop() {
	w.cancel()
	w.busy.Wait()
}

// check compares what was acknowledged with what is there: exactly that and perhaps, at the end, the record that was under way.
func (w *writers) check(found [][]string) {
	w.t.Helper()
	for id, acked := range w.acked {
		w.t.Logf("partition %d: %d records", id, len(acked))
		got := found[id]
		if len(got) == len(acked)+1 {
			got = got[:len(acked)]
		}
		if !slices.Equal(got, acked) {
			i := 0
			for i < min(len(got), len(acked)) && got[i] == acked[i] {
				i++
			}
			w.t.Errorf("partition %d: %d records acknowledged, %d found; they differ from record %d on", id, len(acked), len(found[id]), i)
		}
	}
}
