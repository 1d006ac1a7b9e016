package cli

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"gregor"
	"gregor/client"
	"gregor/internal/await"
)

// secondBroker adds a broker to a session's cluster.
func (s *session) secondBroker() *gregor.Node {
	s.t.Helper()
	var q struct {
		ClusterID string
		Voters    []struct{ Endpoints []string }
	}
	if err := json.Unmarshal([]byte(s.do("", "quorum describe -o json")), &q); err != nil || len(q.Voters) != 1 || len(q.Voters[0].Endpoints) != 1 {
		s.t.Fatalf("%v %+v", err, q)
	}
	dir := s.t.TempDir()
	data, file := filepath.Join(dir, "data"), filepath.Join(dir, "server.properties")
	properties := map[string]string{
		"process.roles": "broker", "node.id": "2", "listeners": "PLAINTEXT://localhost:0", "log.dirs": data,
		"controller.quorum.bootstrap.servers": strings.TrimPrefix(q.Voters[0].Endpoints[0], "CONTROLLER://"),
		"controller.listener.names":           "CONTROLLER", "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
	}
	var text strings.Builder
	for _, k := range sorted(properties) {
		text.WriteString(k + "=" + properties[k] + "\n")
	}
	writeFile(s.t, file, text.String())
	if code, out, errs := call(s.t, "gregor", "storage", "format", "-c", file, "-t", q.ClusterID); code != 0 {
		s.t.Fatalf("storage format: %s%s", out, errs)
	}
	n, err := gregor.Start(s.t.Context(), gregor.Config{Dir: data, Properties: properties})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { n.Close() })
	return n
}

// states are the brokers by what list says of them.
func (s *session) states() string {
	var rows []brokerRow
	if err := json.Unmarshal([]byte(s.do("", "broker list -o json")), &rows); err != nil {
		s.t.Fatal(err)
	}
	out := ""
	for _, r := range rows {
		out += map[bool]string{false: "active ", true: "fenced "}[r.Fenced]
	}
	return strings.TrimSpace(out)
}

// Partitions move to a second broker and are led there; then the broker goes.
func TestTwoBrokers(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	n := s.secondBroker()
	await.True(t, "two brokers serve", func() bool { return s.states() == "active active" })
	s.do("", "topic create moving --assignment 1,1")
	s.do("a\nb\nc\nd\n", "produce moving")
	file := filepath.Join(t.TempDir(), "plan.json")
	writeFile(t, file, `{"version":1,"partitions":[{"topic":"moving","partition":0,"replicas":[2]},{"topic":"moving","partition":1,"replicas":[2,1]}]}`)
	s.wants("", "reassign execute -f "+file, "Successfully started partition reassignments for moving-0,moving-1\n")
	await.True(t, "the moves are over", func() bool {
		return strings.Contains(s.do("", "reassign verify --preserve-throttles -f "+file), "moving-0 is completed.\nReassignment of partition moving-1 is completed.\n")
	})
	s.wants("", "leader elect moving:1", "Successfully completed leader election (PREFERRED) for partitions moving-1\n")
	if n := strings.Count(s.do("", "consume moving --from earliest -n 4"), "\n"); n != 4 {
		t.Errorf("%d of 4 records", n)
	}
	out, _, err := s.try("", "broker safe-to-restart 2")
	if !errors.Is(err, errSilent) || out != "Node 2 is not safe to restart:\n  moving-0: the node has the only in-sync replica\n" {
		t.Errorf("%v\n%s", err, out)
	}

	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the broker that stopped is fenced", func() bool { return s.states() == "active fenced" })
	s.wants("", "cluster list-endpoints --include-fenced-brokers", "fenced     broker")
	s.wants("", "metadata shell cat /image/cluster/brokers/2", "fenced=true")
	// A move to a broker that isn't there goes on until it is taken back.
	s.do("", "topic create waiting --assignment 1")
	cl, err := client.New(client.Options{Seeds: []string{s.addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	tp := client.TopicPartition{Topic: "waiting", Partition: 0}
	if res, err := cl.ReassignPartitions(t.Context(), map[client.TopicPartition][]int32{tp: {1, 2}}, false); err != nil || len(res) != 1 || res[0].Err != nil {
		t.Fatalf("%v %v", res, err)
	}
	s.wants("", "reassign list", "Current partition reassignments:\nwaiting-0: replicas: 1,2. adding: 2.\n")
	s.wants("", "reassign list -o json", `"topic": "waiting"`)
	writeFile(t, file, `{"version":1,"partitions":[{"topic":"waiting","partition":0,"replicas":[1,2]}]}`)
	s.wants("", "reassign verify -f "+file, "Reassignment of partition waiting-0 is still in progress.\n")
	s.fails("reassign execute -f "+file, "existing partition assignment")
	_, warning, err := s.try("", "reassign cancel -f "+file)
	if err != nil || !strings.Contains(warning, "broker 2 is not there") {
		t.Errorf("%v %s", err, warning)
	}
	s.wants("", "reassign list", "No partition reassignments found.\n")
	if out := s.do("", "broker unregister 2 -y"); out != "Broker 2 is no longer registered.\n" {
		t.Errorf("%q", out)
	}
	await.True(t, "one broker is left", func() bool { return s.states() == "active" })
}
