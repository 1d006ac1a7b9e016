package quorum

import (
	"testing"
	"time"
)

// TestWholeClusterMovesOver: a cluster of three Kafka nodes, each broker and controller, becomes one of gregor, node by node and on
// the same directories, and goes back, while producers with idempotence write and groups of both protocols read, with clients in Go
// and Kafka's own in Java. Half of the nodes are stopped well, half are killed. Nothing acknowledged is lost, nothing is doubled, no
// client gets an error that it does not try again by itself, and the replicas hold the same bytes.
func TestWholeClusterMovesOver(t *testing.T) {
	const partitions = 3
	c := newCluster(t, false, []kind{kafkaKind, kafkaKind, kafkaKind}, "min.insync.replicas=2", "offsets.topic.replication.factor=3",
		"group.consumer.session.timeout.ms=6000", "group.consumer.min.session.timeout.ms=6000", "group.consumer.heartbeat.interval.ms=500",
		"group.consumer.min.heartbeat.interval.ms=500", "replica.lag.time.max.ms=5000")
	c.run(c.members...)
	topics := []string{"move", "java"}
	for _, topic := range topics {
		c.create(topic, c.rotated(partitions), nil)
	}
	l := c.load("move", loadOptions{partitions: partitions, producers: 1, inFlight: 4, pace: 20 * time.Millisecond, groups: []string{"older", "next"}, members: 2})
	j := c.javaLoad("java", "consumer")
	l.progress(20)
	j.progress(20)
	c.inSync("move", "java", "__consumer_offsets")
	for round, to := range []kind{gregorKind, kafkaKind} {
		for i, m := range c.members {
			if (i+round)%2 == 0 {
				m.stop()
			} else {
				m.kill()
			}
			m.kind = to
			l.progress(5)
			c.run(m)
			c.caughtUp(m)
			c.inSync("move", "java", "__consumer_offsets")
			l.progress(20)
			j.progress(20)
			if i == round {
				for _, g := range l.groups {
					g.change()
				}
			}
		}
		c.logf("all are %s", to)
	}
	j.finish()
	l.finish()
	c.inSync("move", "java", "__consumer_offsets")
	q, _, ok := c.quorum()
	if !ok {
		t.Fatal("no leader")
	}
	c.caughtUp(c.members...)
	for _, m := range c.members {
		m.kill() // the last of them could not say goodbye to a controller
	}
	for _, topic := range topics {
		c.sameReplicas(topic, partitions)
	}
	c.sameReplicas("__consumer_offsets", 2)
	c.compareDirectories(q.HighWatermark)
}
