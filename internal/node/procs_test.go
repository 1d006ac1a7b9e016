package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/client"
	"gregor/internal/await"
)

// procs is a cluster of real processes on real ports, for what only a process can: be killed, or frozen.
type procs struct {
	t     *testing.T
	dir   string
	nodes map[int]*proc
}

// proc is one node.
type proc struct {
	t                  *testing.T
	id                 int
	dir                string // its properties, log and data
	broker, controller int    // ports, 0 without the role

	cmd *exec.Cmd     // nil while it doesn't run
	end chan struct{} // closed when the process has ended
}

// buildGregor builds it once for all tests.
var buildGregor = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gregor-test-*")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "gregor")
	build := exec.Command("go", "build", "-o", bin, "gregor/cmd/gregor")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build gregor: %w\n%s", err, out)
	}
	return bin, nil
})

// built is set when buildGregor has been asked for.
var built atomic.Bool

func TestMain(m *testing.M) {
	code := m.Run()
	if built.Load() {
		if bin, err := buildGregor(); err == nil {
			os.RemoveAll(filepath.Dir(bin))
		}
	}
	os.Exit(code)
}

// gregor runs a command to its end and returns what it printed.
func gregor(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), gregorBinary(t), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("gregor %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func gregorBinary(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs processes")
	}
	built.Store(true)
	bin, err := buildGregor()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// given are the ports that tests have.
var given = struct {
	mu    sync.Mutex // guards ports
	ports map[int]bool
}{ports: map[int]bool{}}

// freePorts are ports that nobody listens on, and no test twice. They lie below those that the system gives to connections and
// to listeners on port 0, so that nobody takes one while its node is down.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	given.mu.Lock()
	defer given.mu.Unlock()
	var ports []int
	for len(ports) < n {
		port := 10_000 + rand.IntN(22_000)
		if given.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		given.ports[port] = true
		ports = append(ports, port)
	}
	return ports
}

// newProcs formats a cluster. roles says what each node is, from node 1 on: "broker", "controller" or "broker,controller".
func newProcs(t *testing.T, settings string, roles ...string) *procs {
	t.Helper()
	gregorBinary(t)
	p := &procs{t: t, dir: t.TempDir(), nodes: map[int]*proc{}}
	ports := freePorts(t, 2*len(roles))
	var voters []string
	for i, r := range roles {
		n := &proc{t: t, id: i + 1, dir: filepath.Join(p.dir, fmt.Sprint("node", i+1))}
		if strings.Contains(r, "broker") {
			n.broker = ports[2*i]
		}
		if strings.Contains(r, "controller") {
			n.controller = ports[2*i+1]
			voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", n.id, n.controller))
		}
		p.nodes[n.id] = n
	}
	for i, r := range roles {
		n := p.nodes[i+1]
		var listeners []string
		if n.broker > 0 {
			listeners = append(listeners, fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", n.broker))
		}
		if n.controller > 0 {
			listeners = append(listeners, fmt.Sprintf("CONTROLLER://127.0.0.1:%d", n.controller))
		}
		if err := os.MkdirAll(n.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		properties := fmt.Sprintf(`process.roles=%s
node.id=%d
listeners=%s
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters=%s
log.dirs=%s
offsets.topic.num.partitions=2
%s`, r, n.id, strings.Join(listeners, ","), strings.Join(voters, ","), filepath.Join(n.dir, "data"), settings)
		if err := os.WriteFile(n.properties(), []byte(properties), 0o644); err != nil {
			t.Fatal(err)
		}
		gregor(t, "storage", "format", "--cluster-id", clusterTestID, "--config", n.properties())
	}
	t.Cleanup(func() {
		for _, n := range p.nodes {
			n.kill()
			if t.Failed() {
				t.Logf("node %d's log:\n%s", n.id, n.log())
			}
		}
	})
	return p
}

func (n *proc) properties() string { return filepath.Join(n.dir, "server.properties") }

// log is what the node has logged in all its lives.
func (n *proc) log() string {
	n.t.Helper()
	log, err := os.ReadFile(filepath.Join(n.dir, "log"))
	if err != nil {
		n.t.Error(err)
	}
	return string(log)
}

// start starts nodes without waiting for them.
func (p *procs) start(ids ...int) {
	p.t.Helper()
	for _, id := range ids {
		n := p.nodes[id]
		log, err := os.OpenFile(filepath.Join(n.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			p.t.Fatal(err)
		}
		cmd, end := exec.Command(gregorBinary(p.t), "server", n.properties()), make(chan struct{})
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			p.t.Fatal(err)
		}
		n.cmd, n.end = cmd, end
		go func() {
			_ = cmd.Wait() // how it ended is in its log
			log.Close()
			close(end)
		}()
	}
}

// signal sends a signal to a node's process.
func (n *proc) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Fatalf("%v to node %d: %v", s, n.id, err)
	}
}

// kill kills a node as kill -9 does, if it runs.
func (n *proc) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill() // it may have ended by itself
		<-n.end
		n.cmd = nil
	}
}

// client is a client of the cluster that begins with one node.
func (p *procs) client(ids ...int) *client.Client {
	p.t.Helper()
	o := client.Options{Timeout: await.Patience, RetryBackoff: time.Millisecond, RetryBackoffMax: 20 * time.Millisecond}
	for _, id := range ids {
		o.Seeds = append(o.Seeds, fmt.Sprintf("127.0.0.1:%d", p.nodes[id].broker))
	}
	c, err := client.New(o)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c
}

// activeController asks who leads the quorum, until somebody does other than the one given (0: anybody).
func (p *procs) activeController(c *client.Client, not int) int {
	p.t.Helper()
	leader := -1
	await.True(p.t, "an active controller", func() bool {
		q := kmsg.NewPtrDescribeQuorumRequest()
		t := kmsg.NewDescribeQuorumRequestTopic()
		t.Topic = "__cluster_metadata"
		t.Partitions = []kmsg.DescribeQuorumRequestTopicPartition{{Partition: 0}}
		q.Topics = append(q.Topics, t)
		resp, err := c.Raw(p.t.Context(), nil, q)
		if err != nil {
			return false
		}
		r := resp.(*kmsg.DescribeQuorumResponse)
		if r.ErrorCode != 0 || len(r.Topics) != 1 || r.Topics[0].Partitions[0].ErrorCode != 0 {
			return false
		}
		leader = int(r.Topics[0].Partitions[0].LeaderID)
		return leader > 0 && leader != not
	})
	return leader
}

// brokers waits until the cluster has so many brokers in service, as one of them sees it.
func (p *procs) brokers(c *client.Client, want int) {
	p.t.Helper()
	await.True(p.t, fmt.Sprintf("%d brokers in service", want), func() bool {
		m, err := c.Metadata(p.t.Context(), []string{})
		return err == nil && len(m.Brokers) == want
	})
}

// topic is what a broker says of a topic now.
func (p *procs) topic(ctx context.Context, c *client.Client, broker int32, name string) (*kmsg.MetadataResponseTopic, error) {
	q := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &name
	q.Topics = append(q.Topics, t)
	resp, err := c.Raw(ctx, &broker, q)
	if err != nil {
		return nil, err
	}
	return &resp.(*kmsg.MetadataResponse).Topics[0], nil
}

// others are the ids of the nodes but those given.
func (p *procs) others(not ...int) []int {
	var ids []int
	for id := range p.nodes {
		if !slices.Contains(not, id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
