package quorum

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/kafka"
	"gregor/interop/node"
	"gregor/interop/wire"
)

const clusterID = "MkU3OEVBNTcwNTJENDM2Qk"

// patience is how long anything may take; the machine may be slow.
const patience = 4 * time.Minute

type kind string

const (
	gregorKind kind = "gregor"
	kafkaKind  kind = "kafka"
)

// process is a node of either kind.
type process interface {
	Await(testing.TB)
	Stop(testing.TB)
	Kill()
	Freeze(testing.TB)
	Thaw(testing.TB)
}

// member is a node of a cluster.
type member struct {
	c           *cluster
	id          int32
	kind        kind
	dir         string // server.properties and logs; the data is in dir/data
	directoryID string
	addr        string // of the broker, "" for a controller only
	behind      string // where the first listener itself is, if there are doors before it
	doors       []*door
	controller  string // address of the controller, "" for a broker only
	extra       []string
	proc        process // nil while it doesn't run
	frozen      bool
	launched    time.Time
}

func (m *member) String() string { return fmt.Sprintf("%s %d", m.kind, m.id) }

// cluster is what a test plays with.
type cluster struct {
	tb       testing.TB
	members  []*member
	settings []string
	static   bool
	box      *kafka.Toolbox // nil without nodes of Kafka's
	mesh     *mesh          // nil when all are connected directly
	start    time.Time

	mu        sync.Mutex   // guards proc and frozen of the members, as changes of topics look at them too
	disturbed atomic.Int64 // how many times the test did something to a process
}

// set changes the state of a member's process.
func (m *member) set(p process, frozen bool) {
	m.c.disturbed.Add(1)
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.proc, m.frozen = p, frozen
}

// answers says whether the member runs and isn't frozen.
func (m *member) answers() bool {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	return m.proc != nil && !m.frozen
}

// small are settings of all nodes: few threads, many small snapshots, brokers that are soon taken for dead.
var small = []string{
	"num.partitions=1",
	"offsets.topic.num.partitions=2",
	"num.io.threads=2",
	"num.network.threads=1",
	"log.cleaner.threads=1",
	"background.threads=1",
	"log.cleaner.dedupe.buffer.size=2097152", // of Kafka's heap
	"group.initial.rebalance.delay.ms=0",
	"metadata.log.max.record.bytes.between.snapshots=4096",
	// Kafka's controller refuses a broker whose earlier self it takes to be alive.
	"broker.session.timeout.ms=3000",
	"broker.heartbeat.interval.ms=500",
}

// roles of a member.
const (
	combined       = "broker,controller"
	controllerOnly = "controller"
	brokerOnly     = "broker"
)

// newCluster prepares a cluster of combined nodes of the given kinds, with ids from 1 on, all voters of a dynamic quorum, or of
// a static one. Nothing runs yet.
func newCluster(tb testing.TB, static bool, kinds []kind, settings ...string) *cluster {
	tb.Helper()
	c := &cluster{tb: tb, static: static, settings: slices.Concat(small, settings), box: kafka.NewToolbox(tb), start: time.Now()}
	c.found(kinds)
	return c
}

// newMeshed is newCluster with a dynamic quorum and a mesh that connects the nodes.
func newMeshed(tb testing.TB, kinds []kind, settings ...string) *cluster {
	tb.Helper()
	c := &cluster{tb: tb, settings: slices.Concat(small, settings), mesh: newMesh(tb), start: time.Now()}
	if slices.Contains(kinds, kafkaKind) {
		c.box = kafka.NewToolbox(tb)
	}
	c.found(kinds)
	return c
}

// found makes combined nodes of the given kinds the first members, and the voters.
func (c *cluster) found(kinds []kind) {
	c.tb.Helper()
	count := map[kind]int{}
	for _, k := range kinds {
		count[k]++
	}
	for _, k := range kinds {
		var extra []string
		// Who gives up a silent leader last finds the others willing, and is elected. It shall be the kind that has only one node.
		if count[k] == 1 {
			extra = append(extra, "controller.quorum.fetch.timeout.ms=3000")
		}
		c.add(k, combined, extra...)
	}
	c.configure(c.members)
	for _, m := range c.members {
		m.format(c.formatFlags(c.members)...)
	}
	c.tb.Cleanup(c.keepLogs)
}

// add makes another member, which is neither configured nor formatted.
func (c *cluster) add(k kind, roles string, extra ...string) *member {
	ports := freePorts(c.tb, 2)
	id := make([]byte, 16)
	rand.Read(id)
	id[0] = 'A' // never "-" as the first character, which tools would take for an option
	m := &member{c: c, id: int32(len(c.members) + 1), kind: k, dir: c.tb.TempDir(), directoryID: base64.RawURLEncoding.EncodeToString(id)}
	m.extra = append(m.extra, "process.roles="+roles)
	if roles != controllerOnly {
		m.addr = fmt.Sprintf("127.0.0.1:%d", ports[0])
	}
	if roles != brokerOnly {
		m.controller = fmt.Sprintf("127.0.0.1:%d", ports[1])
	}
	switch roles {
	case controllerOnly:
		m.extra = append(m.extra, "listeners=CONTROLLER://"+m.controller, "advertised.listeners=CONTROLLER://"+m.controller)
	case brokerOnly:
		m.extra = append(m.extra, "listeners=PLAINTEXT://"+m.addr, "advertised.listeners=PLAINTEXT://"+m.addr)
	}
	if c.mesh != nil {
		m.extra = append(m.extra, c.mesh.doors(m, roles)...)
	}
	m.extra = append(m.extra, extra...)
	c.members = append(c.members, m)
	return m
}

// configure writes server.properties of all members, given who the first voters are.
func (c *cluster) configure(voters []*member) {
	var addrs, static []string
	for _, v := range voters {
		addrs = append(addrs, v.controller)
		static = append(static, fmt.Sprintf("%d@%s", v.id, v.controller))
	}
	for _, m := range c.members {
		lines := slices.Concat(c.settings, []string{"controller.quorum.bootstrap.servers=" + strings.Join(addrs, ",")}, m.extra)
		if c.static {
			lines = append(lines, "controller.quorum.voters="+strings.Join(static, ","))
		}
		kafka.WriteProperties(c.tb, m.dir, kafka.Properties(int(m.id), port(m.addr), port(m.controller), m.data(), lines...))
	}
}

// given are the ports that members and doors have: one that is closed for a while is still taken.
var given = struct {
	mu    sync.Mutex // guards ports
	ports map[int]bool
}{ports: map[int]bool{}}

// freePorts are ports that nobody listens on, and that nobody else here has.
func freePorts(tb testing.TB, n int) (ports []int) {
	tb.Helper()
	given.mu.Lock()
	defer given.mu.Unlock()
	for len(ports) < n {
		if p := kafka.FreePorts(tb, 1)[0]; !given.ports[p] {
			given.ports[p] = true
			ports = append(ports, p)
		}
	}
	return ports
}

func port(addr string) int {
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(p)
	return n
}

// formatFlags are those of the storage tool for a cluster with the given first voters.
func (c *cluster) formatFlags(voters []*member) []string {
	if c.static {
		return nil
	}
	var all []string
	for _, v := range voters {
		all = append(all, fmt.Sprintf("%d@%s:%s", v.id, v.controller, v.directoryID))
	}
	return []string{"--initial-controllers", strings.Join(all, ",")}
}

// format formats the member's directory with its own kind's tool.
func (m *member) format(flags ...string) {
	m.c.tb.Helper()
	args := append([]string{"format", "-t", clusterID, "-c", filepath.Join(m.dir, "server.properties")}, flags...)
	if m.kind == gregorKind {
		node.Run(m.c.tb, append([]string{"storage"}, args...)...)
		return
	}
	m.c.box.Must(m.c.tb, "storage", args...)
}

func (m *member) data() string { return filepath.Join(m.dir, "data") }

// metadataDir is where the metadata log lies.
func (m *member) metadataDir() string { return filepath.Join(m.data(), "__cluster_metadata-0") }

// launch starts the member without waiting.
func (m *member) launch() {
	m.c.tb.Helper()
	m.c.logf("start %s", m)
	m.launched = time.Now()
	addr := m.addr
	switch {
	case addr == "":
		addr = m.controller
	case m.behind != "":
		addr = m.behind
	}
	for _, d := range m.doors {
		d.unlock()
	}
	switch m.kind {
	case gregorKind:
		m.set(node.Launch(m.c.tb, m.dir, addr), false)
	case kafkaKind:
		m.set(kafka.Launch(m.c.tb, m.dir, addr, "256m"), false)
	}
}

// run starts members and waits until they are up.
func (c *cluster) run(members ...*member) {
	c.tb.Helper()
	for _, m := range members {
		m.launch()
	}
	for _, m := range members {
		m.proc.Await(c.tb)
	}
}

func (m *member) kill() {
	m.c.logf("kill %s", m)
	p := m.proc
	m.set(nil, false)
	p.Kill()
	for _, d := range m.doors {
		d.lock()
	}
}

func (m *member) stop() {
	m.c.tb.Helper()
	m.c.logf("stop %s", m)
	p := m.proc
	m.set(nil, false)
	p.Stop(m.c.tb)
	for _, d := range m.doors {
		d.lock()
	}
}

// freeze stops a member where it is; thaw lets it go on.
func (c *cluster) freeze(m *member) {
	c.tb.Helper()
	c.logf("freeze %s", m)
	m.set(m.proc, true)
	m.proc.Freeze(c.tb)
}

func (c *cluster) thaw(m *member) {
	c.tb.Helper()
	m.proc.Thaw(c.tb)
	m.set(m.proc, false)
}

func (c *cluster) logf(format string, args ...any) {
	c.tb.Helper()
	c.tb.Logf("%6.2fs  %s", time.Since(c.start).Seconds(), fmt.Sprintf(format, args...))
}

// keepLogs prints the ends of all members' logs when the test failed, and copies them to the directory in QUORUM_LOGS.
func (c *cluster) keepLogs() {
	for _, m := range c.members {
		for _, name := range []string{"gregor.log", "kafka.log"} {
			b, err := os.ReadFile(filepath.Join(m.dir, name))
			if err != nil {
				continue
			}
			if keep := os.Getenv("QUORUM_LOGS"); keep != "" {
				to := filepath.Join(keep, fmt.Sprintf("%s-%d-%s", strings.ReplaceAll(c.tb.Name(), "/", "_"), m.id, name))
				if err := os.WriteFile(to, b, 0o644); err != nil {
					c.tb.Error(err)
				}
			}
			if c.tb.Failed() {
				c.tb.Logf("the end of %s of node %d:\n%s", name, m.id, b[max(0, len(b)-6<<10):])
			}
		}
	}
}

// await waits until f is true; f says what is missing.
func (c *cluster) await(what string, f func() (missing string, ok bool)) {
	c.tb.Helper()
	deadline := time.Now().Add(patience)
	for {
		missing, ok := f()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			c.tb.Fatalf("%s: not after %v: %s", what, patience, missing)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ask sends one request over a connection of its own.
func ask[R kmsg.Response](addr string, req kmsg.Request, timeout time.Duration) (r R, err error) {
	conn, err := wire.Dial(addr, "quorum-test")
	if err != nil {
		return r, err
	}
	defer conn.Close()
	conn.Timeout = timeout
	resp, err := conn.Do(req)
	if err != nil {
		return r, err
	}
	return resp.(R), nil
}

// quorum describes the quorum as its leader sees it; false when none of the running members leads.
func (c *cluster) quorum() (q kmsg.DescribeQuorumResponseTopicPartition, nodes []kmsg.DescribeQuorumResponseNode, ok bool) {
	for _, m := range c.members {
		if m.controller == "" || !m.answers() {
			continue
		}
		req := kmsg.NewPtrDescribeQuorumRequest()
		req.Version = 2
		req.Topics = []kmsg.DescribeQuorumRequestTopic{{Topic: "__cluster_metadata", Partitions: []kmsg.DescribeQuorumRequestTopicPartition{{}}}}
		resp, err := ask[*kmsg.DescribeQuorumResponse](m.controller, req, 5*time.Second)
		if err != nil || resp.ErrorCode != 0 || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			continue
		}
		if p := resp.Topics[0].Partitions[0]; p.ErrorCode == 0 && p.LeaderID == m.id {
			return p, resp.Nodes, true
		}
	}
	return q, nil, false
}

// leader waits for a leader and returns it with its epoch.
func (c *cluster) leader() (m *member, epoch int32) {
	c.tb.Helper()
	c.await("a leader of the quorum", func() (string, bool) {
		q, _, ok := c.quorum()
		if !ok {
			return "nobody says that it leads", false
		}
		m, epoch = c.member(q.LeaderID), q.LeaderEpoch
		return "", true
	})
	return m, epoch
}

func (c *cluster) member(id int32) *member { return c.members[id-1] }

// lead brings a node of a kind to lead: a leader of the other kind is frozen until it is replaced.
func (c *cluster) lead(k kind) *member {
	c.tb.Helper()
	var now *member
	c.await(fmt.Sprintf("%s to lead", k), func() (string, bool) {
		var epoch int32
		if now, epoch = c.leader(); now.kind == k {
			return "", true
		}
		frozen := now
		c.freeze(frozen)
		now, epoch = c.leader()
		c.thaw(frozen)
		c.caughtUp(frozen)
		return fmt.Sprintf("%s leads in epoch %d", now, epoch), false
	})
	c.logf("%s leads", now)
	return now
}

// caughtUp waits until the leader says that all of members hold what is committed now, and has it from them as they run now.
func (c *cluster) caughtUp(members ...*member) {
	c.tb.Helper()
	want := int64(-1)
	c.await(fmt.Sprintf("%v to catch up", members), func() (string, bool) {
		q, _, ok := c.quorum()
		if !ok {
			return "no leader", false
		}
		if want < 0 {
			want = q.HighWatermark
		}
		for _, m := range members {
			at := int64(-1) // the most of what the member's directories, of which it may have lost some, are known to hold
			for _, r := range slices.Concat(q.CurrentVoters, q.Observers) {
				if r.ReplicaID == m.id && (m.id == q.LeaderID || r.LastFetchTimestamp > m.launched.UnixMilli()) {
					at = max(at, r.LogEndOffset)
				}
			}
			if at < want || want < 0 {
				return fmt.Sprintf("%s is at %d of %d", m, at, want), false
			}
		}
		return "", true
	})
}

// running are the members that run.
func (c *cluster) running() []*member {
	return slices.DeleteFunc(slices.Clone(c.members), func(o *member) bool { return o.proc == nil })
}

// wipe removes the member's data, as when its disk is replaced.
func (m *member) wipe() {
	m.c.tb.Helper()
	if err := os.RemoveAll(m.data()); err != nil {
		m.c.tb.Fatal(err)
	}
}

func readFile(tb testing.TB, path string) string {
	tb.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

func encodeID(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }
