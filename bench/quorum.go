package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// quorumSize is how many nodes a cluster has here, each of them broker and controller.
const quorumSize = 3

// quorumCounts are the numbers of partitions that three nodes are measured with. Kafka is not measured with more than kafkaMost: it
// holds files open for each, and dies when there are no more descriptors.
var quorumCounts = []int{2000, 10000, 100000}

const kafkaMost = 10000

// cluster is the nodes of one cluster. Node i has the id i+1.
type cluster struct {
	b     *bench
	nodes [quorumSize]*server
}

// newCluster formats and starts a cluster, and waits until every node knows every broker.
func (b *bench) newCluster(k kind, extra ...string) (*cluster, error) {
	cl := &cluster{b: b}
	voters := ""
	for i := range cl.nodes {
		if i > 0 {
			voters += ","
		}
		voters += fmt.Sprintf("%d@127.0.0.1:%d", i+1, b.nodePort(i)+1)
	}
	for i := range cl.nodes {
		pprof := 0
		if b.profiles != "" {
			pprof = b.nodePort(i) + 2
		}
		s, err := createNode(k, filepath.Join(b.dir, fmt.Sprintf("%s-%d", k.name, i+1)), b.nodePort(i), pprof,
			append([]string{fmt.Sprintf("node.id=%d", i+1), "controller.quorum.voters=" + voters}, extra...))
		if err != nil {
			return nil, err
		}
		cl.nodes[i] = s
	}
	for _, s := range cl.nodes {
		if err := s.start(); err != nil {
			return nil, err
		}
	}
	return cl, cl.awaitBrokers(startLimit)
}

func (b *bench) nodePort(i int) int { return b.port + 10*(i+1) }

// discard kills the nodes, all before the files of one are deleted, which takes long when there are many.
func (cl *cluster) discard() error {
	var errs []error
	for _, s := range cl.nodes {
		errs = append(errs, s.end(syscall.SIGKILL))
	}
	for _, s := range cl.nodes {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// until asks node i again and again until ok says yes.
func (cl *cluster) until(i int, limit, pause time.Duration, what string, ok func(*kmsg.MetadataResponse) bool, topics ...string) error {
	var c *conn
	defer func() {
		if c != nil {
			c.close()
		}
	}()
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(pause) {
		if c == nil {
			if c, err = dial(cl.nodes[i].port); err != nil {
				c = nil
				continue
			}
			if err = c.patience(5 * time.Second); err != nil {
				return err
			}
		}
		var m *kmsg.MetadataResponse
		if m, err = c.metadata(topics...); err != nil {
			c.close()
			c = nil
			continue
		}
		if ok(m) {
			return nil
		}
	}
	return fmt.Errorf("node %d: not in %v: %s: %w\n%s", i+1, limit, what, err, cl.nodes[i].lastLog())
}

func (cl *cluster) awaitBrokers(limit time.Duration) error {
	for i := range cl.nodes {
		if err := cl.until(i, limit, 10*time.Millisecond, "all brokers in the metadata", func(m *kmsg.MetadataResponse) bool {
			return len(m.Brokers) == quorumSize
		}); err != nil {
			return err
		}
	}
	return nil
}

// awaitISR waits until all replicas of the topics are in sync.
func (cl *cluster) awaitISR(limit time.Duration, topics ...string) error {
	return cl.until(0, limit, 20*time.Millisecond, "all replicas in sync", func(m *kmsg.MetadataResponse) bool {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if t.ErrorCode != 0 || p.Leader < 0 || len(p.ISR) != len(p.Replicas) {
					return false
				}
			}
		}
		return true
	}, topics...)
}

// controller is the index of the node whose controller is active.
func (cl *cluster) controller() (int, error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		id, err := cl.askController()
		if err == nil && id > 0 {
			return int(id) - 1, nil
		}
		if time.Now().After(end) {
			return 0, fmt.Errorf("no active controller: %w", err)
		}
	}
}

func (cl *cluster) askController() (int32, error) {
	c, err := cl.nodes[0].connect()
	if err != nil {
		return 0, err
	}
	defer c.close()
	q := kmsg.NewPtrDescribeQuorumRequest()
	t := kmsg.NewDescribeQuorumRequestTopic()
	t.Topic = "__cluster_metadata"
	t.Partitions = append(t.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	q.Topics = append(q.Topics, t)
	resp, err := c.call(q)
	if err != nil {
		return 0, err
	}
	r := resp.(*kmsg.DescribeQuorumResponse)
	if r.ErrorCode != 0 || len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("describe quorum: error %d", r.ErrorCode)
	}
	return r.Topics[0].Partitions[0].LeaderID, nil
}

// failover is what a client sees after the death of a node.
type failover struct {
	createTopic time.Duration // the first CreateTopics that was sent afterwards has succeeded
	newLeaders  time.Duration // no partition of the topic is without a leader, or led by the dead node
}

// kill ends node i as a crash does and measures until the rest has recovered; topic, if not "", is one whose leaders are looked at.
func (cl *cluster) kill(i int, topic string) (failover, error) {
	var f failover
	if err := cl.nodes[i].end(syscall.SIGKILL); err != nil {
		return f, err
	}
	died := time.Now()
	const limit = time.Minute
	other := (i + 1) % quorumSize
	leaders := make(chan error, 1)
	go func() {
		if topic == "" {
			leaders <- nil
			return
		}
		err := cl.until(other, limit, 2*time.Millisecond, "new leaders", func(m *kmsg.MetadataResponse) bool {
			for _, p := range m.Topics[0].Partitions {
				if p.Leader < 0 || p.Leader == int32(i+1) {
					return false
				}
			}
			return true
		}, topic)
		f.newLeaders = time.Since(died)
		leaders <- err
	}()
	// Tries overlap: one that hangs in a node that still waits for the dead one must not hide that the next would succeed.
	succeeded := make(chan time.Time, 1)
	var over atomic.Bool
	for n := 0; ; n++ {
		name, s := fmt.Sprintf("after-%d-%d", died.UnixNano(), n), cl.nodes[(i+1+n%2)%quorumSize]
		go func() {
			c, err := s.connect()
			if err != nil {
				return
			}
			defer c.close()
			if _, err := c.createTopics([]string{name}, 1, 1); err == nil && over.CompareAndSwap(false, true) {
				succeeded <- time.Now()
			}
		}()
		select {
		case at := <-succeeded:
			f.createTopic = at.Sub(died)
			err := <-leaders // which ends the writing to f
			return f, err
		case <-time.After(20 * time.Millisecond):
		}
		if time.Since(died) > limit {
			over.Store(true)
			return f, fmt.Errorf("no topic could be created in %v: %w", limit, <-leaders)
		}
	}
}

// quorum measures what three nodes do without load: the latency of changes, and recovery from the death of a node.
func (b *bench) quorum(k kind) error {
	if !b.wants("quorum-create", "quorum-kill-controller", "quorum-kill-broker") {
		return nil
	}
	cl, err := b.newCluster(k)
	if err != nil {
		return err
	}
	s := cl.nodes[0]
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.close()
	if err := b.settle(nil); err != nil {
		return err
	}
	const warm, measured = 100, 300
	var lat []time.Duration
	for i := range b.scaledCount(warm + measured) {
		at := time.Now()
		if _, err := c.createTopics([]string{fmt.Sprintf("one-%d", i)}, 1, quorumSize); err != nil {
			return err
		}
		if i >= b.scaledCount(warm) {
			lat = append(lat, time.Since(at))
		}
	}
	b.latencies(s, "quorum-create", lat)
	if _, err := c.createTopics([]string{"led"}, manyPartitions, quorumSize); err != nil {
		return err
	}
	for _, victim := range []string{"controller", "broker"} {
		if err := cl.awaitISR(time.Minute, "led"); err != nil {
			return err
		}
		i, err := cl.controller()
		if err != nil {
			return err
		}
		if victim == "broker" {
			i = (i + 1) % quorumSize
		}
		if err := cl.electPreferred("led"); err != nil {
			return err
		}
		if err := b.settle(nil); err != nil {
			return err
		}
		f, err := cl.kill(i, "led")
		if err != nil {
			return fmt.Errorf("kill the %s: %w", victim, err)
		}
		b.note(s, "quorum-kill-"+victim, "create_topic", f.createTopic.Seconds(), "s")
		b.note(s, "quorum-kill-"+victim, "new_leaders", f.newLeaders.Seconds(), "s")
		if err := cl.nodes[i].start(); err != nil {
			return err
		}
		if err := cl.awaitBrokers(startLimit); err != nil {
			return err
		}
	}
	return cl.discard()
}

// electPreferred spreads the leaders of a topic over all nodes again.
func (cl *cluster) electPreferred(topic string) error {
	c, err := cl.nodes[0].connect()
	if err != nil {
		return err
	}
	defer c.close()
	q := kmsg.NewPtrElectLeadersRequest()
	q.Version, q.TimeoutMillis = 2, 30000
	t := kmsg.NewElectLeadersRequestTopic()
	t.Topic = topic
	for p := range manyPartitions {
		t.Partitions = append(t.Partitions, int32(p))
	}
	q.Topics = append(q.Topics, t)
	resp, err := c.call(q)
	if err != nil {
		return err
	}
	if code := resp.(*kmsg.ElectLeadersResponse).ErrorCode; code != 0 {
		return fmt.Errorf("elect leaders: error %d", code)
	}
	return cl.until(0, time.Minute, 10*time.Millisecond, "preferred leaders", func(m *kmsg.MetadataResponse) bool {
		for _, p := range m.Topics[0].Partitions {
			if p.Leader != p.Replicas[0] {
				return false
			}
		}
		return true
	}, topic)
}

// quorumPartitions measures three nodes with n partitions in all, 100 to a topic: how long it takes to create them, what they cost,
// and the death and return of the active controller's node with them. The metadata is snapshotted often, so that a start is one
// from a snapshot.
func (b *bench) quorumPartitions(k kind, n int) error {
	name := fmt.Sprintf("quorum-partitions-%d", n)
	if !b.wants(name) {
		return nil
	}
	cl, err := b.newCluster(k, "metadata.log.max.record.bytes.between.snapshots=100000")
	if err != nil {
		return err
	}
	s := cl.nodes[0]
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.patience(adminTimeout); err != nil {
		return err
	}
	names := b.topicsFor(n)
	if err := b.settle(nil); err != nil {
		return err
	}
	before, err := cl.cpu()
	if err != nil {
		return err
	}
	begin := time.Now()
	ts, err := c.createTopics(names, perTopic, 1)
	if err == nil {
		err = cl.awaitServing(ts, adminTimeout)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.note(s, name, "create", time.Since(begin).Seconds(), "s")
	after, err := cl.cpu()
	if err != nil {
		return err
	}
	b.note(s, name, "server_cpu", 1000*(after-before).Seconds()/float64(perTopic*len(names)), "ms/partition")
	time.Sleep(b.restTime)
	var rss int64
	for _, s := range cl.nodes {
		m, err := memory(s.pid(), "VmRSS")
		if err != nil {
			return err
		}
		rss += m
	}
	b.note(s, name, "rss", float64(rss)/(1<<20), "MiB")
	i, err := cl.controller()
	if err != nil {
		return err
	}
	lost, err := cl.ledBy(i, ts)
	if err != nil {
		return err
	}
	if err := b.settle(nil); err != nil {
		return err
	}
	f, err := cl.kill(i, "")
	if err != nil {
		return fmt.Errorf("%s: kill the controller: %w", name, err)
	}
	b.note(s, name, "failover", f.createTopic.Seconds(), "s")
	if err := b.settle(nil); err != nil {
		return err
	}
	if err := cl.nodes[i].start(); err != nil {
		return err
	}
	if err := cl.nodes[i].awaitServing(lost, adminTimeout); err != nil {
		return fmt.Errorf("%s: after the restart: %w", name, err)
	}
	b.note(s, name, "restart", time.Since(cl.nodes[i].started).Seconds(), "s")
	return cl.discard()
}

// cpu is what all nodes have used.
func (cl *cluster) cpu() (time.Duration, error) { return cpuOf(cl.nodes[:]...) }

// cpuOf is what servers have used.
func cpuOf(servers ...*server) (sum time.Duration, err error) {
	for _, s := range servers {
		d, err := processCPU(s.pid())
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// awaitServing asks the leaders until every partition of the topics has answered ListOffsets.
func (cl *cluster) awaitServing(ts []topic, limit time.Duration) error {
	left := map[string]map[int32]bool{}
	for _, t := range ts {
		left[t.name] = map[int32]bool{}
		for p := range t.partitions {
			left[t.name][int32(p)] = true
		}
	}
	var lastErr error
	for end := time.Now().Add(limit); len(left) > 0; {
		asked := time.Now()
		if lastErr = cl.askServing(left); lastErr == nil && len(left) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d topics do not serve all their partitions after %v: %w", len(left), limit, lastErr)
		}
		time.Sleep(max(pollEvery, 4*time.Since(asked)))
	}
	return nil
}

// askServing takes out of left what is served.
func (cl *cluster) askServing(left map[string]map[int32]bool) error {
	topics := make([]string, 0, len(left))
	for t := range left {
		topics = append(topics, t)
	}
	var m *kmsg.MetadataResponse
	var errs []error
	for _, s := range cl.nodes {
		c, err := s.connect()
		if err == nil {
			m, err = c.metadata(topics...)
			c.close()
		}
		if err == nil {
			break
		}
		errs = append(errs, err)
	}
	if m == nil {
		return errors.Join(errs...)
	}
	byLeader := map[int32]map[string][]int32{}
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			if p.Leader < 0 || !left[*t.Topic][p.Partition] {
				continue
			}
			if byLeader[p.Leader] == nil {
				byLeader[p.Leader] = map[string][]int32{}
			}
			byLeader[p.Leader][*t.Topic] = append(byLeader[p.Leader][*t.Topic], p.Partition)
		}
	}
	for id, ask := range byLeader {
		c, err := cl.nodes[id-1].connect()
		if err != nil {
			continue // its node is down
		}
		missing, err := c.endOffsets(ask, nil)
		c.close()
		if err != nil {
			continue
		}
		for t, parts := range ask {
			for _, p := range parts {
				delete(left[t], p)
			}
			for _, p := range missing[t] {
				left[t][p] = true
			}
			if len(left[t]) == 0 {
				delete(left, t)
			}
		}
	}
	return nil
}

// ledBy is what node i leads of the topics, by name.
func (cl *cluster) ledBy(i int, ts []topic) (map[string][]int32, error) {
	var names []string
	for _, t := range ts {
		names = append(names, t.name)
	}
	c, err := cl.nodes[i].connect()
	if err != nil {
		return nil, err
	}
	defer c.close()
	m, err := c.metadata(names...)
	if err != nil {
		return nil, err
	}
	led := map[string][]int32{}
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			if p.Leader == int32(i+1) {
				led[*t.Topic] = append(led[*t.Topic], p.Partition)
			}
		}
	}
	return led, nil
}

// awaitServing asks a server that starts until it has answered ListOffsets for all of ask.
func (s *server) awaitServing(ask map[string][]int32, limit time.Duration) error {
	var lastErr error
	for end := time.Now().Add(limit); time.Now().Before(end); {
		asked := time.Now()
		c, err := s.connect()
		if err == nil {
			var missing map[string][]int32
			if missing, err = c.endOffsets(ask, nil); err == nil {
				ask = missing
			}
			c.close()
		}
		if lastErr = err; err == nil && len(ask) == 0 {
			return nil
		}
		time.Sleep(max(pollEvery, 2*time.Since(asked)))
	}
	return fmt.Errorf("%d topics do not serve all their partitions after %v: %w", len(ask), limit, lastErr)
}

// metadata asks for topics, or for none.
func (c *conn) metadata(topics ...string) (*kmsg.MetadataResponse, error) {
	q := kmsg.NewPtrMetadataRequest()
	q.Version, q.Topics = 12, []kmsg.MetadataRequestTopic{}
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &name
		q.Topics = append(q.Topics, t)
	}
	resp, err := c.call(q)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.MetadataResponse), nil
}
