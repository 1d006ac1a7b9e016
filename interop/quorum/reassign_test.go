package quorum

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReassignAcrossKinds: with Kafka's own tools, under load and with a controller of each kind, replicas move from a Kafka broker
// to one of gregor and back, with their leadership, and preferred leaders are elected.
func TestReassignAcrossKinds(t *testing.T) {
	t.Parallel()
	const partitions = 2
	c := newMeshed(t, []kind{gregorKind, kafkaKind, gregorKind}, "min.insync.replicas=2", "offsets.topic.replication.factor=3", "auto.leader.rebalance.enable=false")
	fourth := c.add(kafkaKind, brokerOnly)
	c.configure(c.members[:3])
	fourth.format()
	c.run(c.members...)
	g1, k2, g3, k4 := c.members[0].id, c.members[1].id, c.members[2].id, fourth.id
	// Both partitions are on all kinds, led by Kafka's, and the broker that is spare is of the other kind.
	home := [][]int32{{k4, g1, k2}, {k2, k4, g1}}
	away := [][]int32{{g3, g1, k2}, {g3, k4, g1}}
	c.create("moved", home, nil)
	l := c.load("moved", loadOptions{partitions: partitions, producers: 1, inFlight: 4, pace: 10 * time.Millisecond, groups: []string{"older", "next"}, members: 1})
	l.progress(20)
	m := &mover{cluster: c, dir: t.TempDir(), at: c.members[0].addr}
	for round, controller := range []kind{gregorKind, kafkaKind} {
		c.lead(controller)
		for _, to := range [][][]int32{away, home} {
			m.at = c.members[(round+m.n)%2].addr // a broker of either kind is asked
			m.reassign("moved", to)
			l.progress(10)
			c.describe("moved", to, false)
			m.elect("moved", partitions)
			c.describe("moved", to, true)
			l.progress(10)
		}
	}
	// One that is given up half-way: nothing that the leaders say reaches the new replica.
	c.silence(c.members[1], c.member(g3), fourth, c.member(g3))
	m.at = c.members[1].addr
	file := m.plan("moved", away)
	c.box.Must(t, "reassign-partitions", "--bootstrap-server", m.at, "--execute", "--reassignment-json-file", file)
	if out := c.box.Must(t, "reassign-partitions", "--bootstrap-server", m.at, "--list"); !strings.Contains(out, "moved-0") || !strings.Contains(out, "adding: 3") {
		t.Errorf("reassignments under way:\n%s", out)
	}
	c.box.Must(t, "reassign-partitions", "--bootstrap-server", m.at, "--cancel", "--reassignment-json-file", file)
	c.mesh.cut(nil)
	c.describe("moved", home, false)
	l.progress(10)
	l.finish()
	c.inSync("moved")
	c.await("no replica where none belongs", func() (string, bool) {
		left, err := filepath.Glob(filepath.Join(c.member(g3).data(), "moved-*"))
		return fmt.Sprint(left), err == nil && len(slices.DeleteFunc(left, func(s string) bool { return strings.HasSuffix(s, "-delete") })) == 0
	})
	for _, m := range c.members {
		m.kill()
	}
	for p, replicas := range home {
		c.sameLogs(fmt.Sprintf("moved-%d", p), replicas)
	}
}

// mover moves replicas with Kafka's tools.
type mover struct {
	*cluster
	dir, at string // where plans are written, which broker is asked
	n       int
}

// plan writes a reassignment to a file.
func (m *mover) plan(topic string, to [][]int32) (file string) {
	m.tb.Helper()
	type partition struct {
		Topic     string  `json:"topic"`
		Partition int     `json:"partition"`
		Replicas  []int32 `json:"replicas"`
	}
	plan := struct {
		Version    int         `json:"version"`
		Partitions []partition `json:"partitions"`
	}{Version: 1}
	for p, replicas := range to {
		plan.Partitions = append(plan.Partitions, partition{topic, p, replicas})
	}
	b, err := json.Marshal(plan)
	if err != nil {
		m.tb.Fatal(err)
	}
	m.n++
	file = filepath.Join(m.dir, fmt.Sprintf("plan%d.json", m.n))
	if err := os.WriteFile(file, b, 0o644); err != nil {
		m.tb.Fatal(err)
	}
	return file
}

// reassign carries a reassignment out and waits for its end.
func (m *mover) reassign(topic string, to [][]int32) {
	m.tb.Helper()
	file := m.plan(topic, to)
	m.box.Must(m.tb, "reassign-partitions", "--bootstrap-server", m.at, "--execute", "--reassignment-json-file", file, "--throttle", "50000000")
	m.await("the reassignment", func() (string, bool) {
		out := m.box.Must(m.tb, "reassign-partitions", "--bootstrap-server", m.at, "--verify", "--reassignment-json-file", file)
		return out, strings.Count(out, "is completed") == len(to) && !strings.Contains(out, "still in progress")
	})
	m.logf("%s is on %v", topic, to)
}

// elect has the first replicas lead.
func (m *mover) elect(topic string, partitions int) {
	m.tb.Helper()
	for p := range partitions {
		m.await("an election", func() (string, bool) {
			code, out, text, err := m.box.Run("", "leader-election", "--bootstrap-server", m.at, "--election-type", "preferred", "--topic", topic, "--partition", fmt.Sprint(p))
			// It may be in sync a moment later, or lead already.
			return fmt.Sprint(code, out, text, err), err == nil && code == 0
		})
	}
}

// describe waits until every broker tells of those replicas, all in sync, and no others; with led in that order, and led by the
// first. A reassignment that was given up may leave them in another one.
func (c *cluster) describe(topic string, want [][]int32, led bool) {
	c.tb.Helper()
	c.await("the new replicas", func() (string, bool) {
		for _, m := range c.members {
			if m.addr == "" || !m.answers() {
				continue
			}
			t, _, err := m.description(topic)
			if err != nil {
				return err.Error(), false
			}
			for _, p := range t.Partitions {
				w := slices.Clone(want[p.Partition])
				if !led {
					slices.Sort(w)
					slices.Sort(p.Replicas)
				}
				if !slices.Equal(p.Replicas, w) || len(p.ISR) != len(w) || led && p.Leader != w[0] {
					return fmt.Sprintf("%s: %s-%d is on %v, led by %d, ISR %v; want %v", m, topic, p.Partition, p.Replicas, p.Leader, p.ISR, w), false
				}
			}
		}
		return "", true
	})
}
