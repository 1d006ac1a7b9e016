package quorum

import "testing"

// TestReplaceAll turns a quorum of three Kafka nodes into one of gregor, node by node and on the same directories, and back,
// while topics are created and deleted. Half of the nodes are stopped well, half are killed.
func TestReplaceAll(t *testing.T) {
	c := newCluster(t, false, []kind{kafkaKind, kafkaKind, kafkaKind})
	c.run(c.members...)
	h := c.churn(quickly)
	h.progress(20)
	for round, to := range []kind{gregorKind, kafkaKind} {
		for i, m := range c.members {
			if (i+round)%2 == 0 {
				m.stop()
			} else {
				m.kill()
			}
			m.kind = to
			h.progress(10)
			c.run(m)
			c.caughtUp(m)
			h.check()
		}
	}
	h.finish()
}
