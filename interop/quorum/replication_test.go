package quorum

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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
	c.create("mix", c.rotated(len(kinds)), nil)
	l := c.load("mix", loadOptions{partitions: len(kinds), producers: 1, inFlight: 3, pace: time.Millisecond})
	c.inSync("mix")
	l.progress(50)
	for _, m := range c.members {
		begin := time.Now()
		m.kill()
		l.progress(50)
		c.logf("without %s: all partitions are written to within %v", m, time.Since(begin))
		c.run(m)
		begin = time.Now()
		c.inSync("mix")
		c.logf("%s is in sync again after %v", m, time.Since(begin))
		c.preferred()
		l.progress(50)
	}
	l.finish()
	c.inSync("mix")
	for _, m := range c.members {
		m.kill() // the last of them could not say goodbye to a controller
	}
	c.sameReplicas("mix", len(kinds))
}

// rotated are replicas of partitions on all members, so that each is the first in turn.
func (c *cluster) rotated(partitions int) (list [][]int32) {
	for p := range partitions {
		var replicas []int32
		for i := range c.members {
			replicas = append(replicas, c.members[(p+i)%len(c.members)].id)
		}
		list = append(list, replicas)
	}
	return list
}

// create creates a topic with the replicas given of each partition.
func (c *cluster) create(name string, replicas [][]int32, configs map[string]string) {
	c.tb.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 10_000
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
	for p, r := range replicas {
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(p), Replicas: r})
	}
	for k, v := range configs {
		topic.Configs = append(topic.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: k, Value: &v})
	}
	req.Topics = append(req.Topics, topic)
	c.await("topic "+name, func() (string, bool) {
		resp, err := ask[*kmsg.CreateTopicsResponse](c.bootstrap(), req, 20*time.Second)
		if err != nil {
			return err.Error(), false
		}
		code := resp.Topics[0].ErrorCode
		return fmt.Sprintf("error %d (%s)", code, text(resp.Topics[0].ErrorMessage)), code == noError || code == topicAlreadyExists
	})
}

// preferred has the first replicas of all partitions elected.
func (c *cluster) preferred() {
	c.tb.Helper()
	c.await("an election", func() (string, bool) {
		req := kmsg.NewPtrElectLeadersRequest()
		req.Version, req.TimeoutMillis = 2, 10_000
		resp, err := ask[*kmsg.ElectLeadersResponse](c.bootstrap(), req, 20*time.Second)
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprintf("error %d", resp.ErrorCode), resp.ErrorCode == noError
	})
}

// sameReplicas compares the logs that the members, which have stopped, have of a topic.
func (c *cluster) sameReplicas(topic string, partitions int) {
	c.tb.Helper()
	var all []int32
	for _, m := range c.members {
		all = append(all, m.id)
	}
	for p := range partitions {
		c.sameLogs(fmt.Sprintf("%s-%d", topic, p), all)
	}
}

// sameLogs compares what members, which have stopped, have in a partition's directory.
func (c *cluster) sameLogs(dir string, ids []int32) {
	c.tb.Helper()
	first := c.member(ids[0]).segments(dir)
	for _, id := range ids[1:] {
		if other := c.member(id).segments(dir); !bytes.Equal(first, other) {
			i := 0
			for i < min(len(first), len(other)) && first[i] == other[i] {
				i++
			}
			c.tb.Errorf("%s: %s has %d bytes and %s has %d; they differ from byte %d on", dir, c.member(ids[0]), len(first), c.member(id), len(other), i)
		}
	}
}

// description is what a member says of a topic.
func (m *member) description(topic string) (t kmsg.MetadataResponseTopic, brokers int, err error) {
	q := kmsg.NewPtrMetadataRequest()
	q.Version = 12
	q.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	resp, err := ask[*kmsg.MetadataResponse](m.addr, q, 10*time.Second)
	if err != nil {
		return t, 0, err
	}
	if len(resp.Topics) != 1 || resp.Topics[0].ErrorCode != 0 {
		return t, 0, fmt.Errorf("%+v", resp.Topics)
	}
	return resp.Topics[0], len(resp.Brokers), nil
}

// inSync waits until all replicas of the topics are in sync and every broker is there.
func (c *cluster) inSync(topics ...string) {
	c.tb.Helper()
	c.await("all replicas in sync", func() (string, bool) {
		for _, m := range c.members {
			for _, topic := range topics {
				t, brokers, err := m.description(topic)
				if err != nil {
					return fmt.Sprintf("%s: %v", m, err), false
				}
				if brokers != len(c.members) {
					return fmt.Sprintf("%s knows %d brokers", m, brokers), false
				}
				for _, p := range t.Partitions {
					if len(p.ISR) != len(p.Replicas) || p.Leader < 0 {
						return fmt.Sprintf("%s: %s-%d has leader %d, replicas %v and ISR %v", m, topic, p.Partition, p.Leader, p.Replicas, p.ISR), false
					}
				}
			}
		}
		return "", true
	})
}

// segments is what the segment files of a replica hold, one after the other. A replica without records may have none.
func (m *member) segments(dir string) []byte {
	m.c.tb.Helper()
	if _, err := os.Stat(filepath.Join(m.data(), dir)); err != nil {
		m.c.tb.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(m.data(), dir, "*.log"))
	if err != nil {
		m.c.tb.Fatal(err)
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
