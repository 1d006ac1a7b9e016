package node

import (
	"context"
	"testing"
	"time"
)

// TestStopWithoutController: the brokers that are stopped last don't wait for a controller that is gone.
func TestStopWithoutController(t *testing.T) {
	c := newCluster(t, 3, 2, true, "")
	defer c.stop()
	c.start(1, 2, 3, 4, 5)
	leader := c.leader()
	other := leader%3 + 1
	if !c.nodes[4].quorumMayLead(t.Context()) {
		t.Error("all voters live")
	}
	c.stop(leader)
	c.leader()
	if !c.nodes[4].quorumMayLead(t.Context()) {
		t.Error("two of three voters live")
	}
	c.stop(other)
	if c.nodes[4].quorumMayLead(t.Context()) {
		t.Error("one of three voters lives")
	}
	begin := time.Now()
	if err := c.nodes[4].handOver(t.Context()); err != errQuorumGone {
		t.Errorf("hand over with one voter left: %v", err)
	}
	t.Logf("gave up after %v", time.Since(begin))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.nodes[5].handOver(ended); err != context.Canceled {
		t.Errorf("hand over without patience: %v", err)
	}
}
