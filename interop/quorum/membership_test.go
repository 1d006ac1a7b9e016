package quorum

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gregor/interop/kafka"
)

// voters waits until the leader says that the voters are these.
func (c *cluster) voters(want ...*member) {
	c.tb.Helper()
	var ids []int32
	for _, m := range want {
		ids = append(ids, m.id)
	}
	slices.Sort(ids)
	c.await(fmt.Sprintf("voters %v", ids), func() (string, bool) {
		q, _, ok := c.quorum()
		if !ok {
			return "no leader", false
		}
		var got []int32
		for _, v := range q.CurrentVoters {
			got = append(got, v.ReplicaID)
		}
		slices.Sort(got)
		return fmt.Sprintf("they are %v", got), slices.Equal(got, ids)
	})
	c.logf("voters %v", ids)
}

// bootstrap is a broker that runs.
func (c *cluster) bootstrap() string {
	for _, m := range c.running() {
		if m.addr != "" {
			return m.addr
		}
	}
	c.tb.Fatal("no broker runs")
	return ""
}

// addController adds a voter with Kafka's tool, which finds out about it from its own settings. A refusal because it is behind,
// or because another change is not committed, is tried again, as an operator would.
func (c *cluster) addController(m *member) {
	c.tb.Helper()
	c.change(fmt.Sprintf("add %s", m), "Added controller", "--command-config", filepath.Join(m.dir, "server.properties"), "add-controller")
}

func (c *cluster) removeController(m *member) {
	c.tb.Helper()
	c.change(fmt.Sprintf("remove %s", m), "Removed KRaft controller", "remove-controller", "--controller-id", fmt.Sprint(m.id), "--controller-directory-id", m.directoryID)
}

func (c *cluster) change(what, says string, args ...string) {
	c.tb.Helper()
	c.logf("%s", what)
	for tries := 0; ; tries++ {
		code, stdout, stderr, err := c.box.Run("", "metadata-quorum", append([]string{"--bootstrap-server", c.bootstrap()}, args...)...)
		if err == nil && code == 0 {
			if !strings.Contains(stdout, says) {
				c.tb.Fatalf("%s: the tool says %q, not %q", what, stdout, says)
			}
			return
		}
		// A try whose answer was lost may have had its effect.
		if tries > 0 && (strings.Contains(stderr, "DuplicateVoterException") || strings.Contains(stderr, "VoterNotFoundException")) {
			return
		}
		if tries == 20 || !strings.Contains(stderr, "TimeoutException") {
			c.tb.Fatalf("%s: exit code %d, %v\n%s\n%s", what, code, err, stdout, stderr)
		}
		c.logf("%s: once more after %s", what, strings.TrimSpace(stderr))
	}
}

// readDirectoryID reads the member's directory id, when its tool has chosen it.
func (m *member) readDirectoryID() {
	m.c.tb.Helper()
	for line := range strings.Lines(readFile(m.c.tb, filepath.Join(m.data(), "meta.properties"))) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "directory.id="); ok {
			m.directoryID = id
			return
		}
	}
	m.c.tb.Fatalf("%s: no directory id", m)
}

// joiner prepares a controller that may become a voter later.
func (c *cluster) joiner(k kind, first []*member, extra ...string) *member {
	c.tb.Helper()
	m := c.add(k, controllerOnly, extra...)
	c.configure(first)
	m.format("--no-initial-controllers")
	m.readDirectoryID()
	return m
}

// TestVotersChange adds and removes voters of both kinds while either kind leads, the leader itself among them.
func TestVotersChange(t *testing.T) {
	c := newCluster(t, false, []kind{gregorKind, kafkaKind, gregorKind})
	first := slices.Clone(c.members)
	g1, k2, g3 := first[0], first[1], first[2]
	k4 := c.joiner(kafkaKind, first)
	g5 := c.joiner(gregorKind, first, "controller.quorum.auto.join.enable=true")
	c.run(g1, k2, g3)
	h := c.churn(quickly)

	c.lead(gregorKind)
	c.run(k4)
	c.addController(k4)
	c.voters(g1, k2, g3, k4)
	h.progress(5)
	c.removeController(g3)
	c.voters(g1, k2, k4)
	h.progress(5)
	h.check()

	c.lead(kafkaKind)
	c.run(g5) // joins by itself
	c.voters(g1, k2, k4, g5)
	h.progress(5)
	c.addController(g3)
	c.voters(g1, k2, g3, k4, g5)
	h.progress(5)
	led := c.lead(kafkaKind)
	c.removeController(led)
	c.voters(slices.DeleteFunc([]*member{g1, k2, g3, k4, g5}, func(m *member) bool { return m == led })...)
	h.progress(5)
	h.check()

	led = c.lead(gregorKind)
	if led == g5 {
		// It would join again.
		c.removeController(g1)
		c.removeController(g3)
	} else {
		c.removeController(led)
	}
	h.progress(5)
	h.check()
	h.finish()
}

// TestVotersMove: a voter of either kind comes back at another address, and tells the leader of the other kind, which leads on.
func TestVotersMove(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false, []kind{gregorKind, kafkaKind, gregorKind})
	first := slices.Clone(c.members)
	c.run(first...)
	h := c.churn(quickly)
	for _, k := range []kind{gregorKind, kafkaKind} {
		c.lead(k)
		m := first[slices.IndexFunc(first, func(m *member) bool { return m.kind != k })]
		m.kill()
		old := m.controller
		m.controller = fmt.Sprintf("127.0.0.1:%d", kafka.FreePorts(t, 1)[0])
		c.configure(first)
		c.run(m)
		c.await(fmt.Sprintf("the new address of %s, %s after %s", m, m.controller, old), func() (string, bool) {
			_, nodes, _ := c.quorum()
			for _, n := range nodes {
				if n.NodeID == m.id && len(n.Listeners) == 1 {
					return fmt.Sprint(n.Listeners), int(n.Listeners[0].Port) == port(m.controller)
				}
			}
			return "not known", false
		})
		c.caughtUp(m)
		h.progress(3)
		h.check()
	}
	h.finish()
}

// TestKafkaJoins has a Kafka controller join by itself a quorum that gregor leads, twice: as a new one, and after its disk was
// replaced, where the entry of the lost directory is in its way.
func TestKafkaJoins(t *testing.T) {
	testJoin(t, gregorKind, kafkaKind)
}

// TestGregorJoins is the other way round.
func TestGregorJoins(t *testing.T) {
	testJoin(t, kafkaKind, gregorKind)
}

func testJoin(t *testing.T, leader, joiner kind) {
	t.Parallel()
	c := newCluster(t, false, []kind{leader})
	first := slices.Clone(c.members)
	m := c.joiner(joiner, first, "controller.quorum.auto.join.enable=true")
	other := c.joiner(gregorKind, first, "controller.quorum.auto.join.enable=true")
	c.run(c.members...)
	h := c.churn(quickly)
	c.voters(first[0], m, other)
	h.progress(5)
	m.kill()
	h.progress(5)
	m.wipe()
	m.format("--no-initial-controllers")
	lost := m.directoryID
	m.readDirectoryID()
	c.run(m)
	c.await("the new directory to be a voter", func() (string, bool) {
		q, _, ok := c.quorum()
		if !ok {
			return "no leader", false
		}
		for _, v := range q.CurrentVoters {
			if v.ReplicaID == m.id && encodeID(v.ReplicaDirectoryID) == m.directoryID {
				return "", true
			}
		}
		return fmt.Sprintf("voters %v; lost directory %s", q.CurrentVoters, lost), false
	})
	h.progress(5)
	h.check()
	h.finish()
}

// TestUpgradeGregorLeads moves the voters of a static quorum into the log with Kafka's features tool.
func TestUpgradeGregorLeads(t *testing.T) {
	testUpgrade(t, gregorKind)
}

// TestUpgradeKafkaLeads does so when Kafka leads.
func TestUpgradeKafkaLeads(t *testing.T) {
	testUpgrade(t, kafkaKind)
}

func testUpgrade(t *testing.T, leader kind) {
	t.Parallel()
	c := newCluster(t, true, []kind{gregorKind, kafkaKind, gregorKind})
	first := slices.Clone(c.members)
	for _, m := range first {
		m.readDirectoryID()
	}
	c.run(first...)
	h := c.churn(quickly)
	h.progress(3)
	led := c.lead(leader)
	c.await("the upgrade", func() (string, bool) {
		code, stdout, stderr, err := c.box.Run("", "features", "--bootstrap-server", c.bootstrap(), "upgrade", "--feature", "kraft.version=1")
		return fmt.Sprint(code, stdout, stderr, err), err == nil && code == 0
	})
	h.progress(3)
	out := c.box.Must(t, "features", "--bootstrap-server", c.bootstrap(), "describe")
	if !strings.Contains(strings.Join(strings.Fields(out), " "), "Feature: kraft.version SupportedMinVersion: 0 SupportedMaxVersion: 1 FinalizedVersionLevel: 1 ") {
		t.Errorf("after the upgrade:\n%s", out)
	}
	c.static = false
	status := c.box.Must(t, "metadata-quorum", "--bootstrap-server", c.bootstrap(), "describe", "--replication")
	for _, m := range first {
		if !strings.Contains(status, m.directoryID) {
			t.Errorf("the directory of %s is not known:\n%s", m, status)
		}
	}
	led.kill()
	h.progress(5)
	c.run(led)
	c.caughtUp(led)
	other := first[0]
	if other == led {
		other = first[2]
	}
	c.removeController(other)
	c.voters(slices.DeleteFunc(first, func(m *member) bool { return m == other })...)
	h.progress(3)
	h.check()
	h.finish()
}
