package raft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/await"
	"gregor/internal/clock"
	"gregor/internal/message"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// cluster is some Nodes in one bubble, that talk through function calls with a delay.
type cluster struct {
	t     *testing.T
	mu    sync.Mutex
	nodes map[int32]*Node
	disks map[int32]*vfs.Mem
	cut   map[int32]bool
}

type callTransport struct {
	c    *cluster
	from int32
}

func (tr callTransport) Send(to Peer, req kmsg.Request, timeout time.Duration, done func(kmsg.Response, error)) {
	c := tr.c
	id := int32(to.Port) - 9000
	time.AfterFunc(time.Duration(1000+tr.from*10+id)*time.Microsecond, func() {
		c.mu.Lock()
		n, cut := c.nodes[id], c.cut[id] || c.cut[tr.from]
		c.mu.Unlock()
		switch {
		case cut: // silence
		case n == nil:
			done(nil, fmt.Errorf("dial node %d: %w", id, ErrRefused))
		default:
			if _, ok := req.(*kmsg.ApiVersionsRequest); ok {
				resp := kmsg.NewPtrApiVersionsResponse()
				resp.SupportedFeatures = []kmsg.ApiVersionsResponseSupportedFeature{{Name: kraftVersionFeature, MaxVersion: 1}}
				done(resp, nil)
				return
			}
			n.HandleRequest(RequestContext{Listener: "CONTROLLER"}, req, func(resp kmsg.Response) {
				time.AfterFunc(time.Millisecond, func() { done(resp, nil) })
			})
		}
	})
}

func newCluster(t *testing.T) *cluster {
	return &cluster{t: t, nodes: map[int32]*Node{}, disks: map[int32]*vfs.Mem{}, cut: map[int32]bool{}}
}

func (c *cluster) key(id int32) ReplicaKey {
	return ReplicaKey{id, uuid.UUID{0: 1, 8: 1, 15: byte(id)}}
}

func (c *cluster) endpoints(id int32) []Endpoint {
	return []Endpoint{{"CONTROLLER", "host", uint16(9000 + id)}}
}

// format makes a disk for a node; voters are those of the bootstrap snapshot.
func (c *cluster) format(id int32, voters ...int32) {
	var set []Voter
	for _, v := range voters {
		set = append(set, Voter{ReplicaKey: c.key(v), Endpoints: c.endpoints(v), KRaftVersions: KRaftVersions})
	}
	fs := vfs.NewMem()
	c.disks[id] = fs
	if err := errors.Join(fs.MkdirAll("/d"), WriteBootstrapSnapshot(BootstrapOptions{FS: fs, Dir: "/d", KRaftVersion: 1, Voters: set, Now: time.Now()})); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) start(id int32, controller bool) *Node {
	c.t.Helper()
	o := Options{
		FS: c.disks[id], Clock: clock.System, Logger: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(7, uint64(id))),
		Dir: "/d", ClusterID: "c", NodeID: id, DirectoryID: c.key(id).DirectoryID, Controller: controller, Listener: "CONTROLLER",
		BootstrapServers: []string{"host:9001", "host:9002", "host:9003"}, Transport: callTransport{c, id},
		RetentionBytes: 1, OnFatal: func(err error) { c.t.Errorf("node %d: %v", id, err) },
	}
	if controller {
		o.Endpoints = c.endpoints(id)
	}
	n, err := Open(context.Background(), o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.nodes[id] = n
	c.mu.Unlock()
	return n
}

func (c *cluster) stop(id int32) {
	c.t.Helper()
	c.mu.Lock()
	n := c.nodes[id]
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	_ = n.Shutdown(ctx)
	c.mu.Lock()
	delete(c.nodes, id)
	c.mu.Unlock()
}

// kill stops a node without a word to the others, and takes what its disk would hold after that.
func (c *cluster) kill(id int32) {
	c.mu.Lock()
	n := c.nodes[id]
	delete(c.nodes, id)
	c.cut[id] = true
	c.mu.Unlock()
	c.disks[id] = c.disks[id].CrashClone(rand.New(rand.NewPCG(1, 1)), 0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = n.Shutdown(ctx)
	c.mu.Lock()
	delete(c.cut, id)
	c.mu.Unlock()
}

// leader waits for one node to lead, other than the one given.
func (c *cluster) leader(not int32) *Node {
	c.t.Helper()
	for range 2000 {
		c.mu.Lock()
		for id, n := range c.nodes {
			if n.Role() == Leader && id != not && n.HighWatermark() > 0 {
				c.mu.Unlock()
				return n
			}
		}
		c.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
	}
	c.t.Fatal("no leader")
	return nil
}

func (c *cluster) append(n *Node, records ...message.Versioned) int64 {
	c.t.Helper()
	last, err := n.Append(n.LeaderAndEpoch().Epoch, records)
	if err != nil {
		c.t.Fatal(err)
	}
	return last
}

// await waits until every node has committed up to an offset.
func (c *cluster) await(last int64) {
	c.t.Helper()
	for range 2000 {
		ok := true
		c.mu.Lock()
		for _, n := range c.nodes {
			ok = ok && n.HighWatermark() > last
		}
		c.mu.Unlock()
		if ok {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	for id, n := range c.nodes {
		c.t.Logf("node %d: %v, leader %v, log %d to %d, high watermark %d", id, n.Role(), n.LeaderAndEpoch(), n.LogStartOffset(), n.LogEndOffset(), n.HighWatermark())
	}
	c.t.Fatalf("offset %d is not committed everywhere", last)
}

func TestThreeVotersAndABroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		for id := int32(1); id <= 3; id++ {
			c.format(id, 1, 2, 3)
		}
		c.disks[9] = vfs.NewMem()
		if err := c.disks[9].MkdirAll("/d"); err != nil {
			t.Fatal(err)
		}
		for id := int32(1); id <= 3; id++ {
			c.start(id, true)
		}
		broker := c.start(9, false)
		rec := newRecorder()
		broker.Register(rec)
		first := c.leader(0)
		c.await(c.append(first, noRecords(3)...))

		// An orderly stop hands over without a timeout.
		began := time.Now()
		id := first.NodeID()
		c.stop(id)
		second := c.leader(id)
		if d := time.Since(began); d > 500*time.Millisecond {
			t.Errorf("hand-over took %v", d)
		}
		c.await(c.append(second, noRecords(1)...))

		// A killed leader is replaced on the evidence of its refused connections.
		c.start(id, true)
		c.await(c.append(second, noRecords(1)...))
		began = time.Now()
		c.kill(second.NodeID())
		third := c.leader(second.NodeID())
		if d := time.Since(began); d > 700*time.Millisecond {
			t.Errorf("fail-over took %v", d)
		}
		last := c.append(third, noRecords(1)...)
		c.await(last)

		// The one that was killed missed enough to need a snapshot.
		if err := snapshotAt(third, last+1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * cleanInterval)
		if got := third.LogStartOffset(); got != last+1 {
			t.Fatalf("log begins at %d, want %d", got, last+1)
		}
		lagging := c.start(second.NodeID(), true)
		c.await(c.append(third, noRecords(1)...))
		if got := lagging.LogStartOffset(); got != last+1 {
			t.Errorf("the lagging voter's log begins at %d, want %d", got, last+1)
		}

		// A new voter fetches, is added, and counts; then another is removed.
		c.format(4)
		c.start(4, true)
		c.await(c.append(third, noRecords(1)...))
		add := kmsg.NewPtrAddRaftVoterRequest()
		add.Version, add.AckWhenCommitted = 1, true
		add.VoterID, add.VoterDirectoryID = 4, c.key(4).DirectoryID
		add.Listeners = []kmsg.AddRaftVoterRequestListener{{Name: "CONTROLLER", Host: "host", Port: 9004}}
		if code := ask(third, add).(*kmsg.AddRaftVoterResponse).ErrorCode; code != 0 {
			t.Fatalf("AddRaftVoter: %d", code)
		}
		rm := kmsg.NewPtrRemoveRaftVoterRequest()
		rm.VoterID, rm.VoterDirectoryID = lagging.NodeID(), c.key(lagging.NodeID()).DirectoryID
		if code := ask(third, rm).(*kmsg.RemoveRaftVoterResponse).ErrorCode; code != 0 {
			t.Fatalf("RemoveRaftVoter: %d", code)
		}
		if v := third.Voters(); len(v) != 3 || v.Has(c.key(lagging.NodeID())) || !v.Has(c.key(4)) {
			t.Errorf("voters %v", v)
		}
		c.await(c.append(third, noRecords(1)...))
		rec.mu.Lock()
		if rec.next == 0 {
			t.Error("the broker was told nothing")
		}
		rec.mu.Unlock()
		for _, id := range []int32{9, 1, 2, 3, 4} {
			c.stop(id)
		}
	})
}

func ask(n *Node, req kmsg.Request) kmsg.Response {
	ch := make(chan kmsg.Response, 1)
	n.HandleRequest(RequestContext{Listener: "CONTROLLER"}, req, func(r kmsg.Response) { ch <- r })
	return <-ch
}

func snapshotAt(n *Node, end int64) error {
	w, err := n.CreateSnapshot(OffsetAndEpoch{end, n.LeaderAndEpoch().Epoch}, time.Now().UnixMilli())
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Append([]message.Versioned{feature("metadata.version", 33)}); err != nil {
		return err
	}
	return w.Freeze()
}
