package node

import (
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"gregor/client"
	"gregor/internal/log"
	"gregor/internal/telemetry"
)

// scrape is what a node shows under a name without labels.
func scrape(t *testing.T, n *Node, name string) float64 {
	t.Helper()
	w := httptest.NewRecorder()
	telemetry.Handler(n.o.Metrics, n.o.Phases, false).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("/metrics: %d\n%s", w.Code, w.Body)
	}
	for line := range strings.Lines(w.Body.String()) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestReplicationRates: what is replicated under a throttle is shown where it is served and where it is fetched, and a move between
// log directories where it happens, whether they are bounded or not.
func TestReplicationRates(t *testing.T) {
	// In windows as long as these nothing is forgotten during the test.
	c := newCluster(t, 1, 2, true, "broker.session.timeout.ms=600000\nlog.dirs=/d1,/d2\nmetadata.log.dir=/d1\n"+
		"replication.quota.window.num=100000\nalter.log.dirs.replication.quota.window.num=100000\n")
	t.Cleanup(func() { c.stop() })
	c.start(1, 2, 3)
	cl := c.client(3)
	t.Cleanup(func() { cl.Close() })
	const leader, follower, moves = "kafka_server_leaderreplication_byte_rate", "kafka_server_followerreplication_byte_rate",
		"kafka_server_alterlogdirsreplication_byte_rate"
	expect := func(what string, rates map[int]map[string]bool) {
		t.Helper()
		c.await(what, func() bool {
			for id, of := range rates {
				for name, some := range of {
					if scrape(t, c.nodes[id], name) > 0 != some {
						return false
					}
				}
			}
			return true
		})
	}
	spec := func(name string, configs map[string]string) {
		t.Helper()
		if _, err := cl.CreateTopics(t.Context(), []client.TopicSpec{{Name: name, Assignment: [][]int32{{2, 3}}, Configs: configs}}, false); err != nil {
			t.Fatal(err)
		}
		produceAll(t, cl, name, 1, name+strings.Repeat("x", 100), 100)
		c.inSync(name, 2)
		c.equalReplicas(name, 1, 2, 3)
	}
	spec("free", nil)
	none := map[string]bool{leader: false, follower: false, moves: false}
	expect("nothing without a throttle", map[int]map[string]bool{2: none, 3: none})
	spec("throttled", map[string]string{"leader.replication.throttled.replicas": "0:2", "follower.replication.throttled.replicas": "0:3"})
	expect("the rates of the leader and of the follower", map[int]map[string]bool{2: {leader: true, follower: false, moves: false},
		3: {leader: false, follower: true, moves: false}})
	tp := log.TopicPartition{Topic: "free"}
	to := "/d1"
	if c.nodes[3].logs.Log(tp).ParentDir() == to {
		to = "/d2"
	}
	if err := c.nodes[3].replicas.AlterLogDir(tp, to); err != nil {
		t.Fatal(err)
	}
	expect("the rate of the move", map[int]map[string]bool{2: {moves: false}, 3: {moves: true}})
}
