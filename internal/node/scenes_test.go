package node

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/await"
)

// The scenes of docs/demos.md, each with real processes.

// metadataRecord is a record of the metadata log as dump-log prints it.
type metadataRecord struct {
	Type    string         `json:"type"`
	Version int            `json:"version"`
	Data    map[string]any `json:"data"`
}

// metadataLog reads the metadata log of a node with dump-log; the node may run.
func (n *proc) metadataLog() []metadataRecord {
	n.t.Helper()
	var out []metadataRecord
	text := gregor(n.t, "dump-log", "--cluster-metadata-decoder", "--skip-record-metadata",
		filepath.Join(n.dir, "data", "__cluster_metadata-0", "00000000000000000000.log"))
	for line := range strings.Lines(text) {
		at := strings.Index(line, `{"type":`)
		if at < 0 {
			continue
		}
		var r metadataRecord
		if err := json.Unmarshal([]byte(line[at:]), &r); err != nil {
			n.t.Fatalf("%v in %s", err, line)
		}
		out = append(out, r)
	}
	return out
}

// decisions are the records of a metadata log but those that only keep it moving.
func (n *proc) decisions() []metadataRecord {
	n.t.Helper()
	return slices.DeleteFunc(n.metadataLog(), func(r metadataRecord) bool { return r.Type == noOp })
}

const noOp = "NO_OP_RECORD"

func (n *proc) noOps() (count int) {
	n.t.Helper()
	for _, r := range n.metadataLog() {
		if r.Type == noOp {
			count++
		}
	}
	return count
}

func (r metadataRecord) is(kind string, field string, want any) bool {
	return r.Type == kind && r.Data[field] == want
}

// TestSceneTopicInTheMetadataLog: a topic is created, and its records are in the metadata log.
func TestSceneTopicInTheMetadataLog(t *testing.T) {
	p := newProcs(t, "offsets.topic.replication.factor=1\n", combined)
	p.start(1)
	c := p.client(1)
	p.brokers(c, 1)
	if _, err := c.CreateTopics(t.Context(), []client.TopicSpec{{Name: "orders", Partitions: 2, ReplicationFactor: 1,
		Configs: map[string]string{"retention.ms": "3600000"}}}, false); err != nil {
		t.Fatal(err)
	}
	records := p.nodes[1].decisions()
	at := slices.IndexFunc(records, func(r metadataRecord) bool { return r.is("TOPIC_RECORD", "name", "orders") })
	if at < 0 || len(records) < at+4 {
		t.Fatalf("no topic in %v", records)
	}
	id := records[at].Data["topicId"]
	if r := records[at+1]; !r.is("CONFIG_RECORD", "resourceName", "orders") || r.Data["value"] != "3600000" {
		t.Errorf("after the topic: %v", r)
	}
	for i := range 2 {
		r := records[at+2+i]
		if r.Version != 2 || !r.is("PARTITION_RECORD", "topicId", id) || r.Data["partitionId"] != float64(i) || r.Data["leader"] != float64(1) {
			t.Errorf("partition %d: %v", i, r)
		}
	}
}

// TestSceneControllerFailover: three controllers and a broker. The leader is killed, another takes over, topics can be created.
func TestSceneControllerFailover(t *testing.T) {
	p := newProcs(t, "offsets.topic.replication.factor=1\n", "controller", "controller", "controller", "broker")
	p.start(1, 2, 3, 4)
	c := p.client(4)
	p.brokers(c, 1)
	p.create(c, 4, "before")
	old := p.activeController(c, 0)
	begin := time.Now()
	p.nodes[old].kill()
	p.create(c, 4, "after")
	t.Logf("a topic created %v after controller %d was killed", time.Since(begin), old)
	next := p.activeController(c, old)
	records := p.nodes[next].metadataLog()
	for _, topic := range []string{"before", "after"} {
		if !slices.ContainsFunc(records, func(r metadataRecord) bool { return r.is("TOPIC_RECORD", "name", topic) }) {
			t.Errorf("topic %s is not in the log of controller %d", topic, next)
		}
	}
	// The one that was killed comes back as a follower and has it all.
	p.start(old)
	await.True(t, "the old leader has caught up", func() bool {
		return slices.ContainsFunc(p.nodes[old].metadataLog(), func(r metadataRecord) bool { return r.is("TOPIC_RECORD", "name", "after") })
	})
}

// TestSceneReverted: a leader whose followers are frozen decides on something, can't commit it, and loses leadership. What it
// decided is taken back in memory and cut off its log.
func TestSceneReverted(t *testing.T) {
	t.Parallel() // it waits most of the time
	p := newProcs(t, "offsets.topic.replication.factor=1\ncontroller.quorum.fetch.timeout.ms=4000\n", combined, combined, combined)
	p.start(1, 2, 3)
	all := p.client(1, 2, 3)
	p.brokers(all, 3)
	// On a slow machine a leader may lose leadership before it has decided on anything. Then the scene begins anew.
	const attempts = 10
	for i := range attempts {
		if p.revert(all, fmt.Sprint("reverted-", i)) {
			return
		}
		p.brokers(all, 3)
	}
	t.Errorf("%d times the leader was lost before it had decided on a topic", attempts)
}

// revert plays the scene with a topic of that name, and says whether the leader came to decide on it.
func (p *procs) revert(all *client.Client, topic string) bool {
	t := p.t
	t.Helper()
	losses := func(id int) int { return strings.Count(p.nodes[id].log(), "no longer the active controller") }
	had := map[int]int{}
	for id := range p.nodes {
		had[id] = losses(id)
	}
	leader := p.activeController(all, 0)
	lost := func() bool { return losses(leader) > had[leader] }
	rest := p.others(leader)
	thaw := func() {
		for _, id := range rest {
			p.nodes[id].signal(syscall.SIGCONT)
		}
	}
	for _, id := range rest {
		p.nodes[id].signal(syscall.SIGSTOP)
	}
	// Fetches that waited at the leader are answered with what it writes next, and the answers kept for the frozen by their
	// machine.
	noOps := p.nodes[leader].noOps()
	await.True(t, "the leader writes on", func() bool { return p.nodes[leader].noOps() > noOps+1 || lost() })
	if lost() {
		thaw()
		return false
	}
	// The topic is in the leader's memory and log then, and its client waits.
	answer := make(chan int16, 1)
	old := p.client(leader)
	go func() { answer <- p.tryCreate(t.Context(), old, leader, topic, 7) }()
	await.True(t, "the decision is in the leader's log", func() bool { return p.nodes[leader].partitionsOf(topic) == 7 || lost() })
	if p.nodes[leader].partitionsOf(topic) == 0 {
		thaw()
		<-answer
		return false
	}
	// It gives leadership up, since no majority fetches from it.
	await.True(t, "the leader resigns", lost)
	p.nodes[leader].signal(syscall.SIGSTOP)
	thaw()
	// The others go on without the topic, and with another of its name.
	c := p.client(rest...)
	p.activeController(c, leader)
	p.createWith(c, rest[0], topic, 2)
	p.nodes[leader].signal(syscall.SIGCONT)
	if code := <-answer; code == 0 {
		t.Error("the client of the old leader was told that its topic is there")
	}
	await.True(t, "the old leader has the others' topic", func() bool {
		m, err := p.topic(t.Context(), old, int32(leader), topic)
		return err == nil && m.ErrorCode == 0 && len(m.Partitions) == 2
	})
	if !strings.Contains(p.nodes[leader].log(), "truncating the metadata log") {
		t.Error("nothing was cut off the old leader's log")
	}
	for id := range p.nodes {
		await.True(t, fmt.Sprintf("only the others' topic is in the log of node %d", id), func() bool { return p.nodes[id].partitionsOf(topic) == 2 })
	}
	return true
}

// partitionsOf counts the partitions in a node's metadata log that topics of a name were created with.
func (n *proc) partitionsOf(topic string) (count int) {
	n.t.Helper()
	records := n.metadataLog()
	for _, r := range records {
		if !r.is("TOPIC_RECORD", "name", topic) {
			continue
		}
		for _, p := range records {
			if p.is("PARTITION_RECORD", "topicId", r.Data["topicId"]) {
				count++
			}
		}
	}
	return count
}

// TestSceneFrozenBroker: a broker that is frozen is fenced when its session has run out; thawed, it is back in service and
// in sync. The records are those that Kafka writes.
func TestSceneFrozenBroker(t *testing.T) {
	t.Parallel()
	p := newProcs(t, "offsets.topic.replication.factor=1\nbroker.session.timeout.ms=6000\nbroker.heartbeat.interval.ms=200\n", "controller", "broker", "broker")
	p.start(1, 2, 3)
	c := p.client(2, 3)
	p.brokers(c, 2)
	if _, err := c.CreateTopics(t.Context(), []client.TopicSpec{{Name: "t", Assignment: [][]int32{{3, 2}}}}, false); err != nil {
		t.Fatal(err)
	}
	before := len(p.nodes[1].decisions())
	p.nodes[3].signal(syscall.SIGSTOP)
	other := p.client(2)
	p.brokers(other, 1)
	p.nodes[3].signal(syscall.SIGCONT)
	p.brokers(other, 2)
	await.True(t, "back in the ISR", func() bool {
		m, err := p.topic(t.Context(), other, 2, "t")
		return err == nil && len(m.Partitions) == 1 && len(m.Partitions[0].ISR) == 2
	})
	var got []string
	for _, r := range p.nodes[1].decisions()[before:] {
		switch r.Type {
		case "PARTITION_CHANGE_RECORD":
			got = append(got, "leader "+text(r.Data["leader"])+", isr "+text(r.Data["isr"]))
		case "BROKER_REGISTRATION_CHANGE_RECORD":
			got = append(got, "fenced "+text(r.Data["fenced"]))
		case "REGISTER_BROKER_RECORD":
			t.Errorf("registered anew: %v", r.Data)
		}
	}
	if want := []string{"leader 2, isr [2]", "fenced 1", "fenced -1", "leader null, isr [2,3]"}; !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
