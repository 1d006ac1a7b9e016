package node

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/client"
	"gregor/internal/await"
	"gregor/internal/log"
	"gregor/internal/record"
)

// replicated is a cluster with a controller, node 1, and three brokers, and a topic with three replicas of which two must be in
// sync. No session ends while a test runs: what is found out is found out by evidence or said.
func replicated(t *testing.T, settings string, racks ...string) (*cluster, *client.Client) {
	t.Helper()
	c := newCluster(t, 1, 3, true, "broker.session.timeout.ms=600000\ndefault.replication.factor=3\nmin.insync.replicas=2\n"+settings)
	for i, rack := range racks {
		c.cfgs[2+i].Rack = rack
	}
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

// TestReassignment moves a partition to brokers that have none of it, and back to fewer: the new replicas get everything, the old
// ones are deleted, and producers notice nothing.
func TestReassignment(t *testing.T) {
	c, cl := replicated(t, "")
	if _, err := cl.CreateTopics(t.Context(), []client.TopicSpec{{Name: "m", Assignment: [][]int32{{2}}, Configs: map[string]string{"min.insync.replicas": "1"}}}, false); err != nil {
		t.Fatal(err)
	}
	tp := log.TopicPartition{Topic: "m"}
	produceAll(t, cl, "m", 1, "a", 50)
	written := 50
	for _, to := range [][]int32{{3}, {3, 4}, {4, 2}, {2, 3, 4}, {4}} {
		if _, err := cl.ReassignPartitions(t.Context(), map[client.TopicPartition][]int32{{Topic: "m"}: to}, false); err != nil {
			t.Fatal(err)
		}
		produceAll(t, cl, "m", 1, "during", 10)
		written += 10
		var nodes []int
		for _, id := range to {
			nodes = append(nodes, int(id))
		}
		await.True(t, fmt.Sprintf("replicas on %v", to), func() bool {
			for _, node := range c.nodes {
				p := node.loader.Image().Topics.Partition("m", 0)
				if !slices.Equal(p.Replicas, to) || len(p.ISR) != len(to) {
					return false
				}
			}
			for id := 2; id <= 4; id++ {
				if has := c.nodes[id].logs.Log(tp) != nil; has != slices.Contains(nodes, id) {
					return false
				}
			}
			return true
		})
		c.equalReplicas("m", 1, nodes...)
	}
	if got := len(read(t, cl, "m", 1)[0]); got != written {
		t.Errorf("%d records, want %d", got, written)
	}
}

// TestDeleteRecordsOnAllReplicas: when records are said to be deleted, no replica in service has them.
func TestDeleteRecordsOnAllReplicas(t *testing.T) {
	c, cl := replicated(t, "")
	produceAll(t, cl, "r", 1, "a", 10)
	for _, offset := range []int64{3, 10} {
		found, err := cl.DeleteRecords(t.Context(), map[client.TopicPartition]int64{{Topic: "r"}: offset})
		if err != nil || found[0].Err != nil || found[0].Offset != offset {
			t.Fatalf("%+v, %v", found, err)
		}
		for id := 2; id <= 4; id++ {
			if start := c.nodes[id].logs.Log(log.TopicPartition{Topic: "r"}).LogStartOffset(); start != offset {
				t.Errorf("node %d begins at %d, want %d", id, start, offset)
			}
		}
	}
}

// TestReadFromAFollower: a consumer is sent to the in-sync replica in its rack, which serves it.
func TestReadFromAFollower(t *testing.T) {
	c, cl := replicated(t, "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector\n", "rack-2", "rack-3", "rack-4")
	produceAll(t, cl, "r", 1, "a", 10)
	c.equalReplicas("r", 1, 2, 3, 4)
	topic := c.nodes[2].loader.Image().Topics.ByName("r")
	leader := topic.Partition(0).Leader
	fetch := func(broker int32, rack string) *kmsg.FetchResponseTopicPartition {
		q := kmsg.NewPtrFetchRequest()
		q.Version, q.MaxBytes, q.MinBytes, q.Rack, q.SessionEpoch, q.ReplicaID = 17, 1<<20, 1, rack, -1, -1
		q.ReplicaState.ID = -1
		ft, fp := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
		ft.TopicID, fp.PartitionMaxBytes, fp.CurrentLeaderEpoch = topic.ID, 1<<20, -1
		ft.Partitions = append(ft.Partitions, fp)
		q.Topics = append(q.Topics, ft)
		resp, err := cl.Raw(t.Context(), &broker, q)
		if err != nil {
			t.Fatal(err)
		}
		return &resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
	}
	for id := int32(2); id <= 4; id++ {
		p := fetch(leader, fmt.Sprint("rack-", id))
		want := id
		if id == leader {
			want = -1
		}
		if p.ErrorCode != 0 || p.PreferredReadReplica != want || (len(p.RecordBatches) > 0) != (want < 0) {
			t.Errorf("rack of %d: error %d, preferred replica %d, %d bytes", id, p.ErrorCode, p.PreferredReadReplica, len(p.RecordBatches))
		}
		if p := fetch(id, ""); p.ErrorCode != 0 || p.HighWatermark != 10 || len(p.RecordBatches) == 0 {
			t.Errorf("broker %d: error %d, high watermark %d, %d bytes", id, p.ErrorCode, p.HighWatermark, len(p.RecordBatches))
		}
	}
	if p := fetch(leader, "elsewhere"); p.PreferredReadReplica != -1 || len(p.RecordBatches) == 0 {
		t.Errorf("from elsewhere: preferred replica %d, %d bytes", p.PreferredReadReplica, len(p.RecordBatches))
	}
}
