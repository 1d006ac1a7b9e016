package node

import (
	"context"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
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

// TestHandOverWaitsForNoHeartbeat: brokers that stay tell the controller at once that they know the new leaders, and don't leave
// it to their next heartbeat, which is far away here.
func TestHandOverWaitsForNoHeartbeat(t *testing.T) {
	c := newCluster(t, 1, 2, true, "broker.heartbeat.interval.ms=1000000\nbroker.session.timeout.ms=3000000\n")
	defer c.stop()
	c.start(1, 2, 3)
	cl := c.client(2)
	defer cl.Close()
	if _, err := cl.CreateTopics(t.Context(), []client.TopicSpec{{Name: "t", Assignment: [][]int32{{2, 3}}}}, false); err != nil {
		t.Fatal(err)
	}
	if err := c.nodes[2].handOver(t.Context()); err != nil {
		t.Errorf("hand over: %v", err)
	}
	if p := c.nodes[3].loader.Image().Topics.Partition("t", 0); p == nil || p.Leader != 3 {
		t.Errorf("the broker that stays knows of %+v", p)
	}
}

func TestHoldsDirectories(t *testing.T) {
	a, b, meta, other := uuid.UUID{1}, uuid.UUID{2}, uuid.UUID{3}, uuid.UUID{4}
	n := &Node{dirIDs: map[string]uuid.UUID{"/a": a, "/b": b, "/meta": meta}}
	for _, x := range []struct {
		dirs []uuid.UUID
		want bool
	}{
		{[]uuid.UUID{a, b}, true},
		{[]uuid.UUID{b}, true}, // the other was offline
		{[]uuid.UUID{a, other}, false},
		{[]uuid.UUID{other}, false},
		{nil, false},
	} {
		if got := n.holdsDirectories(&metadata.Broker{LogDirs: x.dirs}); got != x.want {
			t.Errorf("%v: %v, want %v", x.dirs, got, x.want)
		}
	}
}
