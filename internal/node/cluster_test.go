package node

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/client"
	"gregor/internal/api"
	"gregor/internal/await"
	"gregor/internal/config"
	"gregor/internal/metadata"
	"gregor/internal/raft"
	"gregor/internal/sim"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// cluster is several nodes, each on a disk of its own, on one network in memory. Node n has the address 10.0.0.n.
type cluster struct {
	t     *testing.T
	net   *sim.Net
	disks map[int]*vfs.Mem
	cfgs  map[int]*config.Broker
	mu    sync.Mutex // guards nodes
	nodes map[int]*Node
	hooks map[int]func(vfs.Op) error // look at what nodes do to their disks
}

func nodeIP(id int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(id)}) }

const clusterTestID = "AAAAAAAAAAAAAAAAAAAAAQ"

// newCluster formats nodes 1 to controllers as controllers and those that follow as brokers.
func newCluster(t *testing.T, controllers, brokers int, dynamic bool, settings string) *cluster {
	t.Helper()
	c := &cluster{t: t, net: &sim.Net{}, disks: map[int]*vfs.Mem{}, cfgs: map[int]*config.Broker{}, nodes: map[int]*Node{}}
	var static, bootstrap []string
	var voters []raft.Voter
	for id := 1; id <= controllers; id++ {
		static = append(static, fmt.Sprintf("%d@10.0.0.%d:9093", id, id))
		bootstrap = append(bootstrap, fmt.Sprintf("10.0.0.%d:9093", id))
		voters = append(voters, newVoter(int32(id), uuid.UUID{15: byte(id), 0: 7}, "CONTROLLER", fmt.Sprintf("10.0.0.%d", id), 9093))
	}
	quorum := "controller.quorum.voters=" + strings.Join(static, ",")
	if dynamic {
		quorum = "controller.quorum.bootstrap.servers=" + strings.Join(bootstrap, ",")
	} else {
		voters = nil
	}
	for id := 1; id <= controllers+brokers; id++ {
		c.add(id, id <= controllers, quorum+"\n"+settings, FormatOptions{InitialControllers: voters})
	}
	return c
}

// add formats one more node.
func (c *cluster) add(id int, controller bool, settings string, o FormatOptions) {
	c.t.Helper()
	role, listener := "broker", fmt.Sprintf("PLAINTEXT://10.0.0.%d:9092", id)
	if controller {
		role, listener = "controller", fmt.Sprintf("CONTROLLER://10.0.0.%d:9093", id)
	}
	p, err := config.ParseProperties("server.properties", fmt.Appendf(nil, `process.roles=%s
node.id=%d
listeners=%s
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
%s`, role, id, listener, settings))
	if err != nil {
		c.t.Fatal(err)
	}
	cfg, err := config.Load(p)
	if err != nil {
		c.t.Fatal(err)
	}
	c.cfgs[id], c.disks[id] = cfg, vfs.NewMem()
	o.FS, o.Now, o.Config, o.ClusterID = c.disks[id], time.UnixMilli(0), cfg, clusterTestID
	o.Rand = rand.NewChaCha8([32]byte{byte(id)})
	if err := Format(o); err != nil {
		c.t.Fatal(err)
	}
}

// start starts nodes, all at once: a controller alone doesn't come up.
func (c *cluster) start(ids ...int) {
	c.t.Helper()
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(c.t.Context(), await.Patience)
			defer cancel()
			o := Options{Config: c.cfgs[id], FS: c.disks[id], Listen: c.net.Listen,
				Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
					return c.net.DialFrom(ctx, nodeIP(id), network, addr)
				}}
			if h := c.hooks[id]; h != nil {
				o.FS = vfs.Hook(o.FS, h)
			}
			if os.Getenv("GREGOR_TEST_LOG") != "" {
				o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("me", id)
			}
			n, err := Start(ctx, o)
			if err != nil {
				c.t.Errorf("node %d: %v", id, err)
				return
			}
			c.mu.Lock()
			c.nodes[id] = n
			c.mu.Unlock()
		})
	}
	wg.Wait()
	if c.t.Failed() {
		c.stop()
		c.t.FailNow()
	}
}

// stop stops nodes, all of them when none is named: brokers first, since they say goodbye.
func (c *cluster) stop(ids ...int) {
	c.t.Helper()
	if len(ids) == 0 {
		for _, controllers := range []bool{false, true} {
			for id, cfg := range c.cfgs {
				if cfg.Roles.Controller == controllers {
					ids = append(ids, id)
				}
			}
		}
	}
	for _, id := range ids {
		c.mu.Lock()
		n := c.nodes[id]
		delete(c.nodes, id)
		c.mu.Unlock()
		if n != nil {
			shutdown(c.t, n)
		}
	}
}

// leader waits until the running controllers agree on one that leads.
func (c *cluster) leader() int {
	c.t.Helper()
	var agreed raft.LeaderAndEpoch
	c.await("a leader that the controllers agree on", func() bool {
		agreed = raft.LeaderAndEpoch{}
		same, role := true, raft.Unattached
		for _, n := range c.nodes {
			l := n.raft.LeaderAndEpoch()
			if agreed == (raft.LeaderAndEpoch{}) {
				agreed = l
			}
			same = same && l == agreed && l.LeaderID >= 0
			if n.cfg.NodeID == l.LeaderID {
				role = n.raft.Stats().Role
			}
		}
		return same && role == raft.Leader
	})
	return int(agreed.LeaderID)
}

// await waits for a condition.
func (c *cluster) await(what string, cond func() bool) {
	c.t.Helper()
	await.True(c.t, what, cond)
}

func (c *cluster) client(broker int) *client.Client {
	c.t.Helper()
	cl, err := client.New(client.Options{Seeds: []string{fmt.Sprintf("10.0.0.%d:9092", broker)}, Timeout: await.Patience,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return c.net.Dial(ctx, network, addr)
		}})
	if err != nil {
		c.t.Fatal(err)
	}
	return cl
}

func (c *cluster) create(cl *client.Client, topic string) {
	c.t.Helper()
	if _, err := cl.CreateTopics(c.t.Context(), []client.TopicSpec{{Name: topic, Partitions: 2, ReplicationFactor: 1}}, false); err != nil {
		c.t.Fatalf("create %s: %v", topic, err)
	}
}

// sameImages waits until all running nodes have the same image of the metadata.
func (c *cluster) sameImages() {
	c.t.Helper()
	var first string
	c.await("the same image on all nodes", func() bool {
		first = ""
		for _, n := range c.nodes {
			s := imageText(c.t, n.loader.Image())
			if first == "" {
				first = s
			}
			if s != first {
				return false
			}
		}
		return true
	})
}

func imageText(t *testing.T, img *metadata.Image) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintln(&b, img.Features.MetadataVersion, img.Cluster.ControllerIDs())
	for topic := range img.Topics.All() {
		fmt.Fprintln(&b, topic.Name, topic.ID)
	}
	return b.String()
}

func TestControllersOfAQuorum(t *testing.T) {
	for name, dynamic := range map[string]bool{"static": false, "dynamic": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, 1, dynamic, "metadata.log.max.record.bytes.between.snapshots=2000")
			defer c.stop()
			c.start(1, 2, 3, 4)
			leader := c.leader()
			cl := c.client(4)
			defer cl.Close()
			for i := range 5 {
				c.create(cl, fmt.Sprintf("before-%d", i))
			}
			c.await("all controllers registered", func() bool { return len(c.nodes[4].loader.Image().Cluster.Controllers) == 3 })
			c.sameImages()

			// The leader goes: others take over, and the broker finds the new one.
			c.stop(leader)
			next := c.leader()
			if next == leader {
				t.Fatalf("node %d leads and has stopped", leader)
			}
			c.create(cl, "after")
			c.sameImages()

			// It comes back and catches up by the log.
			c.start(leader)
			c.create(cl, "back")
			c.sameImages()

			// One that was away for long, or lost its disk, catches up by a snapshot.
			behind := 6 - leader - next
			c.stop(behind)
			for i := range 40 {
				c.create(cl, fmt.Sprintf("while-away-%d", i))
			}
			c.await("a snapshot of the leader", func() bool {
				id, ok := c.nodes[c.leader()].raft.LatestSnapshotID()
				return ok && id.Offset > 0
			})
			if !dynamic {
				c.reformat(behind)
			}
			c.start(behind)
			c.sameImages()
			if id, ok := c.nodes[behind].raft.LatestSnapshotID(); !dynamic && (!ok || id.Offset == 0) {
				t.Error("the log was replicated without a snapshot")
			}
			if got := len(c.nodes[4].loader.Image().Cluster.Controllers); got != 3 {
				t.Errorf("%d controllers registered", got)
			}
		})
	}
}

// reformat gives a node a new disk.
func (c *cluster) reformat(id int) {
	c.t.Helper()
	c.disks[id] = vfs.NewMem()
	if err := Format(FormatOptions{FS: c.disks[id], Config: c.cfgs[id], ClusterID: clusterTestID, Rand: rand.NewChaCha8([32]byte{99})}); err != nil {
		c.t.Fatal(err)
	}
}

// TestLeaderThatIsCutOff: the others go on without it, and it follows them when it is back.
func TestLeaderThatIsCutOff(t *testing.T) {
	c := newCluster(t, 3, 1, true, "")
	defer c.stop()
	c.start(1, 2, 3, 4)
	cl := c.client(4)
	defer cl.Close()
	c.create(cl, "before")
	old := c.leader()
	for id := 1; id <= 4; id++ {
		if id != old {
			c.net.Cut(nodeIP(old), nodeIP(id))
		}
	}
	c.create(cl, "after") // the client waits for the new leader
	for id := 1; id <= 4; id++ {
		c.net.Heal(nodeIP(old), nodeIP(id))
	}
	if l := c.leader(); l == old {
		t.Errorf("node %d leads again", l)
	}
	c.sameImages()
}

// TestControllerJoinsByItself: a node that was formatted without voters becomes one.
func TestControllerJoinsByItself(t *testing.T) {
	c := newCluster(t, 1, 1, true, "")
	defer c.stop()
	c.add(3, true, "controller.quorum.bootstrap.servers=10.0.0.1:9093\ncontroller.quorum.auto.join.enable=true", FormatOptions{
		NoInitialControllers: true, Features: map[string]int16{metadata.FeatureKRaft: 1}})
	c.start(1, 2)
	c.start(3)
	c.await("two voters", func() bool { return len(c.nodes[1].raft.Voters()) == 2 })
	cl := c.client(2)
	defer cl.Close()
	c.create(cl, "a")
	c.sameImages()
}

// raw sends a request to the broker of a node.
func raw[R kmsg.Response](c *cluster, cl *client.Client, broker int, q kmsg.Request) R {
	c.t.Helper()
	id := int32(broker)
	resp, err := cl.Raw(c.t.Context(), &id, q)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.(R)
}

// TestVotersAreChangedThroughABroker: what Kafka's tool for the quorum does with --bootstrap-server.
func TestVotersAreChangedThroughABroker(t *testing.T) {
	c := newCluster(t, 3, 1, true, "")
	defer c.stop()
	c.start(1, 2, 3, 4)
	cl := c.client(4)
	defer cl.Close()
	leader := c.leader()
	gone := leader%3 + 1
	key := c.nodes[gone].dirIDs[c.cfgs[gone].MetadataLogDir]
	remove := func(dir uuid.UUID) *kmsg.RemoveRaftVoterResponse {
		q := kmsg.NewPtrRemoveRaftVoterRequest()
		q.VoterID, q.VoterDirectoryID = int32(gone), dir
		return raw[*kmsg.RemoveRaftVoterResponse](c, cl, 4, q)
	}
	if r := remove(uuid.UUID{1}); r.ErrorCode != api.ErrVoterNotFound.Code {
		t.Errorf("remove a voter with another directory: %d %v", r.ErrorCode, deref(r.ErrorMessage))
	}
	if r := remove(key); r.ErrorCode != 0 {
		t.Fatalf("remove: %d %v", r.ErrorCode, deref(r.ErrorMessage))
	}
	c.await("two voters are left", func() bool { return len(c.nodes[leader].raft.Voters()) == 2 })
	c.await("added as soon as it has caught up", func() bool {
		q := kmsg.NewPtrAddRaftVoterRequest()
		q.ClusterID, q.VoterID, q.VoterDirectoryID, q.AckWhenCommitted = kmsg.StringPtr(clusterTestID), int32(gone), key, true
		q.Listeners = append(q.Listeners, kmsg.AddRaftVoterRequestListener{Name: "CONTROLLER", Host: fmt.Sprintf("10.0.0.%d", gone), Port: 9093})
		r := raw[*kmsg.AddRaftVoterResponse](c, cl, 4, q)
		if r.ErrorCode != 0 && r.ErrorCode != api.ErrRequestTimedOut.Code {
			t.Fatalf("add: %d %v", r.ErrorCode, deref(r.ErrorMessage))
		}
		return r.ErrorCode == 0
	})
	c.await("three voters again", func() bool { return len(c.nodes[leader].raft.Voters()) == 3 })

	// Whether a node can be stopped now: the broker has a topic's only replica, and a controller is one of three.
	c.create(cl, "only-here")
	// A broker hears of what the controller has answered a moment later.
	var answer *client.RestartAnswer
	var err error
	await.True(t, "the broker knows of the topic's two partitions", func() bool {
		answer, err = cl.SafeToRestart(t.Context(), 4)
		return err != nil || len(answer.Partitions) == 2
	})
	if err != nil || answer.Partitions[0].Topic != "only-here" || !answer.Partitions[0].Offline {
		t.Errorf("stop the broker: %+v %v", answer, err)
	}
	if answer, err := cl.SafeToRestart(t.Context(), int32(gone%3+1)); err != nil || !answer.Safe() || !answer.Voter {
		t.Errorf("stop a controller: %+v %v", answer, err)
	}

	// What else is passed on, or refused.
	q := kmsg.NewPtrUnregisterControllerRequest()
	q.ControllerID = 77
	if r := raw[*kmsg.UnregisterControllerResponse](c, cl, 4, q); r.ErrorCode != api.ErrControllerIDNotRegistered.Code {
		t.Errorf("unregister an unknown controller: %d %v", r.ErrorCode, deref(r.ErrorMessage))
	}
	token := kmsg.NewPtrCreateDelegationTokenRequest()
	if r := raw[*kmsg.CreateDelegationTokenResponse](c, cl, 4, token); r.ErrorCode != api.ErrDelegationTokenRequestNotAllowed.Code || r.PrincipalName != "ANONYMOUS" {
		t.Errorf("a token over a plain connection: %+v", r)
	}
}

// TestControllerListenerDescribes: what can be asked of a controller without a broker.
func TestControllerListenerDescribes(t *testing.T) {
	c := newCluster(t, 1, 1, true, "")
	defer c.stop()
	c.start(1, 2)
	cl, err := client.New(client.Options{Seeds: []string{"10.0.0.1:9093"}, Controllers: true, Timeout: await.Patience, Dial: c.net.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	q := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range []string{"1", "2"} {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeBroker, name, []string{"node.id"}
		q.Resources = append(q.Resources, r)
	}
	resp, err := cl.Raw(t.Context(), nil, q)
	if err != nil {
		t.Fatal(err)
	}
	rs := resp.(*kmsg.DescribeConfigsResponse).Resources
	if len(rs) != 2 || rs[0].ErrorCode != 0 || len(rs[0].Configs) != 1 || deref(rs[0].Configs[0].Value) != "1" || rs[1].ErrorCode != api.ErrInvalidRequest.Code {
		t.Errorf("configs %+v", rs)
	}
	resp, err = cl.Raw(t.Context(), nil, &kmsg.DescribeACLsRequest{ResourceType: 1, ResourcePatternType: 1, Operation: 1, PermissionType: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r := resp.(*kmsg.DescribeACLsResponse); r.ErrorCode != api.ErrSecurityDisabled.Code {
		t.Errorf("ACLs %+v", r)
	}
}

func deref(s *string) string {
	if s == nil {
		return "<null>"
	}
	return *s
}
