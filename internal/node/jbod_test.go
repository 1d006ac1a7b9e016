package node

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/await"
	"gregor/internal/log"
	"gregor/internal/vfs"
)

// replicasIn lists the partitions of a topic that a node has in a log directory.
func (c *cluster) replicasIn(node int, topic, dir string) (partitions []int32) {
	for l := range c.nodes[node].logs.Logs() {
		if l.TopicPartition().Topic == topic && l.ParentDir() == dir {
			partitions = append(partitions, l.TopicPartition().Partition)
		}
	}
	slices.Sort(partitions)
	return partitions
}

// TestDirectoryFailsUnderReplicas: one of two log directories of a broker fails. Its replicas leave the ISRs and their leaders move;
// those of the other directory go on, leaders too, and no producer notices. With an empty disk in place of the broken one the
// broker has everything again, and so has a machine with two empty disks that takes the place of another.
func TestDirectoryFailsUnderReplicas(t *testing.T) {
	const parts = 8
	c := newCluster(t, 1, 3, true, "broker.session.timeout.ms=600000\ndefault.replication.factor=3\nmin.insync.replicas=2\nlog.dirs=/d1,/d2\n"+
		"metadata.log.dir=/d1\n")
	var broken atomic.Bool
	c.hooks = map[int]func(vfs.Op) error{2: func(op vfs.Op) error {
		if broken.Load() && strings.HasPrefix(op.Path, "/d2") {
			return syscall.EIO
		}
		return nil
	}}
	t.Cleanup(func() { c.stop() })
	c.start(1, 2, 3, 4)
	cl, err := client.New(client.Options{Seeds: []string{"10.0.0.3:9092", "10.0.0.4:9092", "10.0.0.2:9092"}, Timeout: time.Minute, Dial: c.dialer()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	if _, err := cl.CreateTopics(t.Context(), []client.TopicSpec{{Name: "r", Partitions: parts, ReplicationFactor: 3}}, false); err != nil {
		t.Fatal(err)
	}
	written := 0
	produce := func(what string) {
		t.Helper()
		produceAll(t, cl, "r", parts, what, 10)
		written += 10
	}
	produce("all well")
	c.inSync("r", 3)
	lost, kept := c.replicasIn(2, "r", "/d2"), c.replicasIn(2, "r", "/d1")
	if len(lost) == 0 || len(kept) == 0 || len(lost)+len(kept) != parts {
		t.Fatalf("replicas %v and %v", lost, kept)
	}

	broken.Store(true)
	produce("while a directory fails")
	await.True(t, "the replicas of the directory are out and the others in", func() bool {
		for id := range int32(parts) {
			p := c.nodes[3].loader.Image().Topics.Partition("r", id)
			gone := slices.Contains(lost, id)
			if slices.Contains(p.ISR, 2) == gone || gone && p.Leader == 2 || p.Leader < 0 {
				return false
			}
		}
		return true
	})
	produce("without the directory")
	dirs, err := cl.DescribeLogDirs(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if failed := d.Err != nil; failed != (d.Path == "/d2") {
			t.Errorf("directory %s: %v", d.Path, d.Err)
		}
	}
	// A leader of the directory that is left may be elected.
	tp := client.TopicPartition{Topic: "r", Partition: kept[0]}
	if _, err := cl.ReassignPartitions(t.Context(), map[client.TopicPartition][]int32{tp: {2, 3, 4}}, false); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the broker leads", func() bool {
		_, _ = cl.ElectLeaders(t.Context(), client.PreferredElection, []client.TopicPartition{tp})
		return c.nodes[3].loader.Image().Topics.Partition("r", kept[0]).Leader == 2
	})
	produce("led by half a broker")

	c.stop(2)
	broken.Store(false)
	if err := c.disks[2].RemoveAll("/d2"); err != nil {
		t.Fatal(err)
	}
	if err := Format(FormatOptions{FS: c.disks[2], Config: c.cfgs[2], ClusterID: clusterTestID, Rand: rand.NewChaCha8([32]byte{98}), IgnoreFormatted: true}); err != nil {
		t.Fatal(err)
	}
	c.start(2)
	c.inSync("r", 3)
	c.equalReplicas("r", parts, 2, 3, 4)

	c.stop(3)
	produce("without a machine")
	c.reformat(3)
	c.start(3)
	c.inSync("r", 3)
	c.equalReplicas("r", parts, 2, 3, 4)
	for p, values := range read(t, cl, "r", parts) {
		if len(values) != written {
			t.Errorf("partition %d has %d records, want %d", p, len(values), written)
		}
	}
}

// TestMoveBetweenDirectoriesOfAReplica: a leader and a follower move to other directories while records are written, under a
// throttle that is then taken away, and the metadata says where they are.
func TestMoveBetweenDirectoriesOfAReplica(t *testing.T) {
	// In a window as long as that the rate stays exceeded until the throttle is taken away.
	c := newCluster(t, 1, 3, true, "broker.session.timeout.ms=600000\ndefault.replication.factor=3\nmin.insync.replicas=2\nlog.dirs=/d1,/d2\n"+
		"metadata.log.dir=/d1\nreplica.fetch.max.bytes=2000\nalter.log.dirs.replication.quota.window.num=100000\n")
	t.Cleanup(func() { c.stop() })
	c.start(1, 2, 3, 4)
	cl := c.client(3)
	t.Cleanup(func() { cl.Close() })
	if _, err := cl.CreateTopics(t.Context(), []client.TopicSpec{{Name: "r", Assignment: [][]int32{{2, 3, 4}}}}, false); err != nil {
		t.Fatal(err)
	}
	tp := log.TopicPartition{Topic: "r"}
	produceAll(t, cl, "r", 1, "before "+strings.Repeat("x", 100), 100)
	c.inSync("r", 3)
	throttle := func(rate string) {
		t.Helper()
		for _, id := range []string{"2", "3"} {
			if err := cl.AlterConfigs(t.Context(), client.Resource{Type: client.BrokerResource, Name: id},
				[]client.ConfigChange{{Name: "replica.alter.log.dirs.io.max.bytes.per.second", Value: rate}}, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	throttle("1")
	await.True(t, "the throttle", func() bool {
		return c.nodes[2].live.Current().LogDirsThrottledRate == 1 && c.nodes[3].live.Current().LogDirsThrottledRate == 1
	})
	to := map[int]string{}
	for _, id := range []int{2, 3} {
		to[id] = "/d1"
		if c.nodes[id].logs.Log(tp).ParentDir() == "/d1" {
			to[id] = "/d2"
		}
		if err := c.nodes[id].replicas.AlterLogDir(tp, to[id]); err != nil {
			t.Fatal(err)
		}
	}
	lag := func(id int) (lag int64, moves bool) {
		t.Helper()
		dirs, err := cl.DescribeLogDirs(t.Context(), int32(id))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dirs {
			for _, r := range d.Replicas {
				if r.Topic == "r" && r.Future {
					lag, moves = r.OffsetLag, true
					if d.Path != to[id] {
						t.Errorf("moves to %s, want %s", d.Path, to[id])
					}
				}
			}
		}
		return lag, moves
	}
	for id := range to {
		await.True(t, "something is copied", func() bool { n, moves := lag(id); return moves && n < 100 })
		if n, moves := lag(id); !moves || n < 50 {
			t.Errorf("node %d: %v, lag %d at a byte a second", id, moves, n)
		}
	}
	produceAll(t, cl, "r", 1, "during", 20)
	throttle("1000000000")
	produceAll(t, cl, "r", 1, "at full speed", 20)
	for id := range to {
		await.True(t, fmt.Sprintf("the replica of node %d in %s", id, to[id]), func() bool {
			l := c.nodes[id].logs.Log(tp)
			named, _ := c.nodes[4].loader.Image().Topics.Partition("r", 0).Directory(int32(id))
			return l.ParentDir() == to[id] && c.nodes[id].logs.Future(tp) == nil && named == l.DirID()
		})
	}
	produceAll(t, cl, "r", 1, "after", 20)
	c.inSync("r", 3)
	c.equalReplicas("r", 1, 2, 3, 4)
	c.stop(2)
	c.start(2)
	c.inSync("r", 3)
	c.equalReplicas("r", 1, 2, 3, 4)
	if n := len(read(t, cl, "r", 1)[0]); n != 160 {
		t.Errorf("%d records, want 160", n)
	}
}

// TestThrottledReassignment: a replica that is added under a throttle gets a fetch's worth and no more, while partitions without
// one, and replicas in sync, go at full speed; without the throttle it gets the rest.
func TestThrottledReassignment(t *testing.T) {
	// In a window as long as that the rate stays exceeded for the whole test.
	c := newCluster(t, 1, 3, true, "broker.session.timeout.ms=600000\nreplica.fetch.max.bytes=20000\nreplication.quota.window.num=100000\n")
	t.Cleanup(func() { c.stop() })
	c.start(1, 2, 3, 4)
	cl := c.client(3)
	t.Cleanup(func() { cl.Close() })
	for _, side := range []string{"leader", "follower"} {
		slow, fast := "slow-"+side, "fast-"+side
		if _, err := cl.CreateTopics(t.Context(), []client.TopicSpec{{Name: slow, Assignment: [][]int32{{2, 3}}}, {Name: fast, Assignment: [][]int32{{2, 3}}}}, false); err != nil {
			t.Fatal(err)
		}
		configure := func(kind client.ResourceType, name, key, value string) {
			t.Helper()
			change := client.ConfigChange{Name: key, Value: value}
			if value == "" {
				change.Op = client.DeleteConfig
			}
			if err := cl.AlterConfigs(t.Context(), client.Resource{Type: kind, Name: name}, []client.ConfigChange{change}, false); err != nil {
				t.Fatal(err)
			}
		}
		replicas, broker := map[string]string{"leader": "0:2,0:3", "follower": "0:4"}[side], map[string]string{"leader": "2", "follower": "4"}[side]
		configure(client.TopicResource, slow, side+".replication.throttled.replicas", replicas)
		configure(client.BrokerResource, broker, side+".replication.throttled.rate", "1")
		await.True(t, "the throttle", func() bool {
			l, f := c.nodes[2].live.Current(), c.nodes[4].live.Current()
			return side == "leader" && l.LeaderThrottledRate == 1 || side == "follower" && f.FollowerThrottledRate == 1
		})
		produce := func(topic string, n int) {
			t.Helper()
			p := cl.NewProducer(client.ProducerOptions{})
			defer closeProducer(p)
			for range n {
				if err := p.ProduceSync(t.Context(), &client.Record{Topic: topic, Value: make([]byte, 9000)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		produce(slow, 20)
		produce(fast, 20)
		for _, topic := range []string{slow, fast} {
			if _, err := cl.ReassignPartitions(t.Context(), map[client.TopicPartition][]int32{{Topic: topic}: {2, 3, 4}}, false); err != nil {
				t.Fatal(err)
			}
		}
		isr := func(topic string) int { return len(c.nodes[4].loader.Image().Topics.Partition(topic, 0).ISR) }
		await.True(t, "the replica without a throttle", func() bool { return isr(fast) == 3 })
		tp := log.TopicPartition{Topic: slow}
		await.True(t, "something of the throttled one", func() bool {
			l := c.nodes[4].logs.Log(tp)
			return l != nil && (l.EndOffset() > 0 || side == "leader")
		})
		produce(slow, 5) // acks=all of the replicas in sync
		if n := isr(slow); n != 2 {
			t.Errorf("%s throttle: %d in-sync replicas at a byte a second", side, n)
		}
		if end := c.nodes[4].logs.Log(tp).EndOffset(); end > 10 {
			t.Errorf("%s throttle: %d of 25 records at a byte a second", side, end)
		}
		if got := c.nodes[4].replicas.ReplicationRates(); side == "follower" && got.Follower <= 1 {
			t.Errorf("rates %+v", got)
		}
		configure(client.BrokerResource, broker, side+".replication.throttled.rate", "")
		await.True(t, "the replica is in sync", func() bool { return isr(slow) == 3 })
		c.equalReplicas(slow, 1, 2, 3, 4)
	}
}
