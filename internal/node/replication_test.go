package node

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/await"
	"gregor/internal/log"
	"gregor/internal/record"
)

// replicated is a cluster with a controller, node 1, and three brokers, and a topic with three replicas of which two must be in
// sync. No session ends while a test runs: what is found out is found out by evidence or said.
func replicated(t *testing.T, settings string) (*cluster, *client.Client) {
	t.Helper()
	c := newCluster(t, 1, 3, true, "broker.session.timeout.ms=600000\ndefault.replication.factor=3\nmin.insync.replicas=2\n"+settings)
	t.Cleanup(func() { c.stop() })
	c.start(1, 2, 3, 4)
	cl, err := client.New(client.Options{Seeds: []string{"10.0.0.2:9092", "10.0.0.3:9092", "10.0.0.4:9092"}, Timeout: time.Minute, Dial: c.dialer()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	if _, err := cl.CreateTopics(t.Context(), []client.TopicSpec{{Name: "r", Partitions: 3, ReplicationFactor: 3}}, false); err != nil {
		t.Fatal(err)
	}
	return c, cl
}

// inSync waits until all replicas of the topic are in the ISR.
func (c *cluster) inSync(topic string, n int) {
	c.t.Helper()
	await.True(c.t, fmt.Sprintf("%d in-sync replicas", n), func() bool {
		for _, node := range c.nodes {
			t := node.loader.Image().Topics.ByName(topic)
			if t == nil {
				return false
			}
			for _, p := range t.Partitions() {
				if len(p.ISR) != n {
					return false
				}
			}
		}
		return true
	})
}

// contents is the bytes of a replica's log.
func (c *cluster) contents(node int, tp log.TopicPartition) (start, end int64, data []byte) {
	c.t.Helper()
	l := c.nodes[node].logs.Log(tp)
	if l == nil {
		c.t.Fatalf("node %d has no log of %s", node, tp)
	}
	start, _, _, end = l.Offsets()
	for at := start; at < end; {
		f, err := l.Read(at, 1<<20, log.ReadLogEnd, true)
		if err != nil {
			c.t.Fatal(err)
		}
		b, err := f.Slice.Bytes(nil)
		f.Slice.Release()
		if err != nil {
			c.t.Fatal(err)
		}
		batches := wholeBatches(b)
		if len(batches) == 0 {
			c.t.Fatalf("node %d: %s has nothing at %d", node, tp, at)
		}
		data = append(data, b[:batches[len(batches)-1].end]...)
		at = batches[len(batches)-1].next
	}
	return start, end, data
}

// equalReplicas waits until the logs of all replicas hold the same bytes.
func (c *cluster) equalReplicas(topic string, partitions int32, nodes ...int) {
	c.t.Helper()
	for p := range partitions {
		tp := log.TopicPartition{Topic: topic, Partition: p}
		await.True(c.t, "equal ends of "+tp.String(), func() bool {
			ends := map[int64]bool{}
			for _, n := range nodes {
				l := c.nodes[n].logs.Log(tp)
				if l == nil {
					return false
				}
				_, _, hw, end := l.Offsets()
				ends[hw], ends[end] = true, true
			}
			return len(ends) == 1
		})
		_, _, first := c.contents(nodes[0], tp)
		for _, n := range nodes[1:] {
			if _, _, data := c.contents(n, tp); !bytes.Equal(data, first) {
				c.t.Errorf("%s: the logs of nodes %d and %d differ", tp, nodes[0], n)
			}
		}
	}
}

func produceAll(t *testing.T, cl *client.Client, topic string, partitions int32, what string, n int) {
	t.Helper()
	producer := cl.NewProducer(client.ProducerOptions{})
	defer closeProducer(producer)
	for i := range n {
		for p := range partitions {
			if err := producer.ProduceSync(t.Context(), &client.Record{Topic: topic, Partition: p, Value: fmt.Appendf(nil, "%s-%d", what, i)}); err != nil {
				t.Fatalf("%s-%d: %v", what, i, err)
			}
		}
	}
}

// TestReplication: what is acknowledged with acks=all is on all replicas, a follower that stops is let go and comes back, and
// leaders that stop hand over.
func TestReplication(t *testing.T) {
	c, cl := replicated(t, "")
	produceAll(t, cl, "r", 3, "a", 20)
	c.inSync("r", 3)
	c.equalReplicas("r", 3, 2, 3, 4)
	for _, stopped := range []int{2, 3, 4} {
		c.stop(stopped)
		left := slices.DeleteFunc([]int{2, 3, 4}, func(id int) bool { return id == stopped })
		c.inSync("r", 2)
		produceAll(t, cl, "r", 3, fmt.Sprint("without-", stopped), 20)
		c.equalReplicas("r", 3, left...)
		c.start(stopped)
		c.inSync("r", 3)
		c.equalReplicas("r", 3, 2, 3, 4)
	}
	for p, values := range read(t, cl, "r", 3) {
		if len(values) != 80 {
			t.Errorf("partition %d has %d records, want 80", p, len(values))
		}
	}
}

// wholeBatches says where each whole batch ends in a buffer.
func wholeBatches(b []byte) (out []batchEnd) {
	for rest := b; len(rest) > 0; {
		batch, next, err := record.Next(rest)
		if err != nil {
			break
		}
		out = append(out, batchEnd{len(b) - len(next), batch.NextOffset()})
		rest = next
	}
	return out
}

// batchEnd is where a batch ends in a buffer, and the offset that follows it.
type batchEnd struct {
	end  int
	next int64
}

func (c *cluster) dialer() func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return c.net.Dial(ctx, network, addr)
	}
}
