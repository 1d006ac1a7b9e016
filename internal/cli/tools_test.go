package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/uuid"
)

// quorumAnswer is the quorum after node 2 was added as a voter, and what Kafka 4.4.0's own tool printed of it.
func quorumAnswer(t *testing.T) *client.Quorum {
	t.Helper()
	return &client.Quorum{
		LeaderID: 1, LeaderEpoch: 1, HighWatermark: 67,
		Voters: []client.QuorumReplica{
			{ID: 1, DirectoryID: mustUUID(t, "YO4g5OACQjOMbFn7dF0vKg"), LogEndOffset: 67, LastFetch: time.UnixMilli(1796025321693), LastCaughtUp: time.UnixMilli(1796025321693)},
			{ID: 2, DirectoryID: mustUUID(t, "w1-HS5h4LKCaM4w5_Sl0xA"), LogEndOffset: 67, LastFetch: time.UnixMilli(1796025321308), LastCaughtUp: time.UnixMilli(1796025321308)},
		},
		Endpoints: map[int32][]client.QuorumEndpoint{1: {{Name: "CONTROLLER", Host: "localhost", Port: 43559}}, 2: {{Name: "CONTROLLER", Host: "localhost", Port: 54037}}},
	}
}

func mustUUID(t *testing.T, s string) client.UUID {
	t.Helper()
	id, err := uuid.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestQuorumText(t *testing.T) {
	t.Parallel()
	f := func(print func(*strings.Builder) error, want string) {
		t.Helper()
		var b strings.Builder
		if err := print(&b); err != nil || b.String() != want {
			t.Errorf("%v\n%s\nwant\n%s", err, b.String(), want)
		}
	}
	q := quorumAnswer(t)
	f(func(b *strings.Builder) error { return printQuorumStatus(b, "MkU3OEVBNTcwNTJENDM2Qg", q) }, `ClusterId:              MkU3OEVBNTcwNTJENDM2Qg
LeaderId:               1
LeaderEpoch:            1
HighWatermark:          67
MaxFollowerLag:         0
MaxFollowerLagTimeMs:   0
CurrentVoters:          [{"id": 1, "directoryId": "YO4g5OACQjOMbFn7dF0vKg", "endpoints": ["CONTROLLER://localhost:43559"]}, {"id": 2, "directoryId": "w1-HS5h4LKCaM4w5_Sl0xA", "endpoints": ["CONTROLLER://localhost:54037"]}]
CurrentObservers:       []
`)
	f(func(b *strings.Builder) error { return printReplication(b, q, time.Time{}) },
		"NodeId\tDirectoryId           \tLogEndOffset\tLag\tLastFetchTimestamp\tLastCaughtUpTimestamp\tStatus  \t\n"+
			"1     \tYO4g5OACQjOMbFn7dF0vKg\t67          \t0  \t1796025321693     \t1796025321693        \tLeader  \t\n"+
			"2     \tw1-HS5h4LKCaM4w5_Sl0xA\t67          \t0  \t1796025321308     \t1796025321308        \tFollower\t\n")
	// A voter behind by 4 records and 300 ms, an observer that never fetched, and a quorum of the old kind.
	q.Voters[1].LogEndOffset, q.Voters[1].LastCaughtUp = 63, time.UnixMilli(1796025321393)
	q.Voters[0].DirectoryID = client.UUID{}
	q.Observers, q.Endpoints = []client.QuorumReplica{{ID: 9, LogEndOffset: 0}}, nil
	f(func(b *strings.Builder) error { return printQuorumStatus(b, "c", q) }, `ClusterId:              c
LeaderId:               1
LeaderEpoch:            1
HighWatermark:          67
MaxFollowerLag:         4
MaxFollowerLagTimeMs:   300
CurrentVoters:          [{"id": 1, "directoryId": null}, {"id": 2, "directoryId": "w1-HS5h4LKCaM4w5_Sl0xA"}]
CurrentObservers:       [{"id": 9, "directoryId": null}]
`)
	f(func(b *strings.Builder) error { return printReplication(b, q, time.UnixMilli(1796025321700)) },
		"NodeId\tDirectoryId           \tLogEndOffset\tLag\tLastFetchTimestamp\tLastCaughtUpTimestamp\tStatus  \t\n"+
			"1     \tAAAAAAAAAAAAAAAAAAAAAA\t67          \t0  \t7 ms ago          \t7 ms ago             \tLeader  \t\n"+
			"2     \tw1-HS5h4LKCaM4w5_Sl0xA\t63          \t4  \t392 ms ago        \t307 ms ago           \tFollower\t\n"+
			"9     \tAAAAAAAAAAAAAAAAAAAAAA\t0           \t67 \t-1                \t-1                   \tObserver\t\n")
	q.Voters = q.Voters[1:]
	if _, _, err := quorumLag(q); err == nil {
		t.Error("a leader that is no voter has no lag")
	}
}

func TestQuorumCommands(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	var q struct {
		ClusterID string
		LeaderID  int32
		Voters    []struct {
			ID          int32
			DirectoryID string
			Status      string
			Lag         *int64
			Endpoints   []string
		}
	}
	if err := json.Unmarshal([]byte(s.do("", "quorum describe -o json")), &q); err != nil || len(q.Voters) != 1 || len(q.Voters[0].Endpoints) != 1 {
		t.Fatalf("%v %+v", err, q)
	}
	v := q.Voters[0]
	if q.LeaderID != 1 || v.ID != 1 || v.Status != "leader" || *v.Lag != 0 || len(v.DirectoryID) != 22 {
		t.Errorf("%+v", q)
	}
	s.wants("", "quorum describe --status", "ClusterId:              "+q.ClusterID, "LeaderId:               1\n", `CurrentVoters:          [{"id": 1, "directoryId": "`+v.DirectoryID)
	s.wants("", "quorum describe --replication", "NodeId\tDirectoryId", v.DirectoryID)
	s.wants("", "quorum describe", "LeaderId:", "ms ago")
	s.wants("", "quorum --bootstrap-server "+s.addr+" describe --human-readable", "ms ago")
	s.fails("quorum describe --status --replication", "only one of")
	s.fails("quorum describe --status --human-readable", "only supported along with --replication")
	s.wants("", "quorum remove-controller -i 1 --dry-run --unregister", "DRY RUN of removing KRaft controller 1 with directory id "+v.DirectoryID, "DRY RUN of unregistering KRaft controller 1")
	s.fails("quorum remove-controller -i 7 -d "+v.DirectoryID, "VOTER_NOT_FOUND")
	s.fails("quorum remove-controller -i 7", "controller 7 is not a voter")
	s.fails("quorum remove-controller", "--controller-id")

	// A controller's configuration says what is to be added; the node that it is of is a voter already.
	dir := t.TempDir()
	file := filepath.Join(dir, "controller.properties")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("controller.properties", "process.roles=controller\nnode.id=1\nlisteners=CONTROLLER://:9099\ncontroller.listener.names=CONTROLLER\n"+
		"controller.quorum.bootstrap.servers=localhost:9099\nlog.dirs="+dir+"\n")
	s.fails("quorum add-controller --dry-run -c "+file, "meta.properties")
	write("meta.properties", "version=1\ncluster.id="+q.ClusterID+"\nnode.id=1\ndirectory.id=w1-HS5h4LKCaM4w5_Sl0xA\n")
	s.wants("", "quorum add-controller --dry-run -c "+file, "DRY RUN of adding controller 1 with directory id w1-HS5h4LKCaM4w5_Sl0xA and endpoints: CONTROLLER://localhost:9099")
	s.wants("", "quorum --command-config "+file+" add-controller --dry-run", "DRY RUN of adding controller 1")
	s.fails("quorum add-controller -c "+file, "DUPLICATE_VOTER")
	s.fails("quorum add-controller", "--config")
	write("broker.properties", "process.roles=broker\nnode.id=1\nlisteners=PLAINTEXT://:9099\ncontroller.listener.names=CONTROLLER\n"+
		"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\ncontroller.quorum.bootstrap.servers=localhost:9099\nlog.dirs="+dir+"\n")
	s.fails("quorum add-controller -c "+filepath.Join(dir, "broker.properties"), "process.roles")

	// The same of the controller itself.
	controller := strings.TrimPrefix(v.Endpoints[0], "CONTROLLER://")
	c := &session{t, controller}
	direct := func(line string, parts ...string) {
		t.Helper()
		out, errs, err := c.run("", line+" --bootstrap-controller "+controller+" --timeout 20s")
		if err != nil {
			t.Fatalf("%s: %v %s", line, err, errs)
		}
		for _, p := range parts {
			if !strings.Contains(out, p) {
				t.Errorf("%s: no %q in\n%s", line, p, out)
			}
		}
	}
	direct("quorum describe --status", "LeaderId:               1\n")
	direct("feature describe", "Feature: metadata.version ")
	direct("cluster cluster-id", "Cluster ID: "+q.ClusterID)
	direct("cluster list-endpoints", "ID         HOST      PORT       RACK       ENDPOINT_TYPE  \n1          localhost ", "null       controller     \n")
	direct("reassign list", "No partition reassignments found.")
	direct("metadata shell ls /image/cluster", "brokers\ncontrollers\n")
	if _, _, err := c.run("", "broker list --bootstrap-controller "+controller); err == nil || !strings.Contains(err.Error(), "--bootstrap-server") {
		t.Errorf("broker list of a controller: %v", err)
	}
	if _, _, err := c.run("", "quorum describe -b "+s.addr+" --bootstrap-controller "+controller); err == nil || !strings.Contains(err.Error(), "not both") {
		t.Errorf("brokers and controllers at once: %v", err)
	}
}

func TestClusterCommands(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.wants("", "broker list", "ID  ADDRESS", "1   "+s.addr, "active", "4.4-IV2")
	var rows []brokerRow
	if err := json.Unmarshal([]byte(s.do("", "broker list -o json")), &rows); err != nil || len(rows) != 1 || rows[0].Fenced || rows[0].Features["group.version"] != "0 to 1" {
		t.Errorf("%v %+v", err, rows)
	}
	s.do("", "topic create orders -p 25")
	out, _, err := s.try("", "broker safe-to-restart 1")
	if !errors.Is(err, errSilent) || !strings.HasPrefix(out, "Node 1 is not safe to restart:\n  metadata quorum: of 1 voters 0 would be left") ||
		!strings.Contains(out, "  orders-3: the node has the only in-sync replica\n") || !strings.Contains(out, "  and 5 partitions more (--output json has all)\n") {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = s.try("", "broker safe-to-restart 1 -o json")
	if !errors.Is(err, errSilent) || strings.Count(out, `"topic": "orders"`) != 25 || !strings.Contains(out, `"safe": false`) {
		t.Errorf("%v\n%s", err, out)
	}
	s.fails("broker safe-to-restart 9", "neither a broker nor a voter")
	s.fails("broker safe-to-restart x", "is no node id")
	s.fails("broker unregister 9", "--yes")
	s.fails("broker unregister 9 -y", "BROKER_ID_NOT_REGISTERED")
	s.fails("broker unregister x", "is no broker id")
	s.fails("cluster unregister --id 9", "BROKER_ID_NOT_REGISTERED")
	s.fails("cluster unregister", "--id")
	s.wants("", "cluster list-endpoints --include-fenced-brokers", "ID         HOST      PORT       RACK       STATE      ENDPOINT_TYPE  \n1          localhost ", "unfenced   broker         \n")
	if out := s.do("", "cluster cluster-id"); !regexp.MustCompile(`^Cluster ID: [\w-]{22}\n$`).MatchString(out) {
		t.Errorf("%q", out)
	}

	s.wants("", "feature describe", "Feature: group.version                             SupportedMinVersion: 0                SupportedMaxVersion: 1                FinalizedVersionLevel: 1                Epoch: ",
		"Feature: metadata.version                          SupportedMinVersion: 3.3-IV3          SupportedMaxVersion: 4.4-IV2          FinalizedVersionLevel: 4.4-IV2 ")
	s.wants("", "feature describe -o json", `"release": "4.4-IV2"`)
	s.wants("", "feature upgrade -f metadata.version=33 --dry-run", "metadata.version can be upgraded to 33.\n")
	s.wants("", "feature downgrade -f group.version=0 --dry-run", "group.version can be downgraded to 0.\n")
	s.wants("", "feature disable -f share.version", "share.version was disabled.\n")
	s.wants("", "feature upgrade -r 4.4-IV2 -o json", `"feature": "share.version"`, `"done": true`)
	out, _, err = s.try("", "feature upgrade -f metadata.version=40")
	if err == nil || !strings.HasPrefix(out, "Could not upgrade metadata.version to 40. ") || !strings.Contains(err.Error(), "1 out of 1 operation(s) failed") {
		t.Errorf("%v %q", err, out)
	}
	for line, want := range map[string]string{
		"feature upgrade": "name at least one feature to upgrade", "feature disable": "name at least one feature to disable",
		"feature upgrade -f x": "want name=level", "feature upgrade -r 9.9": "unknown metadata.version", "feature upgrade -r 4.0 -f x=1": "says it all",
		"feature upgrade -f x=1 -f x=2": "named twice", "feature downgrade --metadata 1.0": "unknown metadata.version",
	} {
		s.fails(line, want)
	}
	s.wants("", "feature version-mapping -r 4.0", "metadata.version=25 (4.0)\n")
}

func TestLeaderElect(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.do("", "topic create orders -p 3")
	if out := s.do("", "leader elect --all-topic-partitions"); out != "" {
		t.Errorf("%q", out)
	}
	s.wants("", "leader elect orders:0,2", "Valid replica already elected for partitions orders-0, orders-2\n")
	s.wants("", "leader elect orders", "Valid replica already elected for partitions orders-0, orders-1, orders-2\n")
	s.wants("", "leader elect --election-type UNCLEAN --topic orders --partition 1", "Valid replica already elected for partitions orders-1\n")
	s.wants("", "leader elect orders:1 -o json", `"needed": false`)
	file := filepath.Join(t.TempDir(), "p.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"partitions":[{"topic":"orders","partition":1},{"topic":"orders","partition":9}]}`)
	out, _, err := s.try("", "leader elect --path-to-json-file "+file)
	if err == nil || err.Error() != "1 replica(s) could not be elected" ||
		!strings.Contains(out, "Error completing leader election (PREFERRED) for partition: orders-9: UNKNOWN_TOPIC_OR_PARTITION") {
		t.Errorf("%v %q", err, out)
	}
	for text, want := range map[string]string{
		`{"partitions":[{"topic":"a","partition":1},{"topic":"a","partition":1}]}`: "duplicate partitions: a-1", `{}`: `missing "partitions" field`, `x`: "invalid character",
	} {
		write(text)
		s.fails("leader elect --path-to-json-file "+file, want)
	}
	for line, want := range map[string]string{
		"leader elect": "in one way", "leader elect orders --all-topic-partitions": "in one way", "leader elect --topic orders": "needs --partition",
		"leader elect orders --partition 1": "only allowed with --topic", "leader elect orders --election-type best": "preferred or unclean",
		"leader elect orders:x": "is no partition", "leader elect nope": "UNKNOWN_TOPIC_OR_PARTITION",
	} {
		s.fails(line, want)
	}
}

func TestReassignCommands(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.do("", "topic create orders -p 2")
	file := filepath.Join(t.TempDir(), "plan.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const plan = `{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1],"log_dirs":["any"]},{"topic":"orders","partition":1,"replicas":[1],"log_dirs":["any"]}]}`
	if out := s.do("", "reassign generate orders --broker-list 1 -o json"); out != plan+"\n" {
		t.Errorf("%s", out)
	}
	s.wants("", "reassign generate orders --broker-list 1", "Current partition replica assignment\n{\"version\":1,", "\n\nProposed partition reassignment configuration\n"+plan+"\n")
	write(`{"topics":[{"topic":"orders"}],"version":1}`)
	s.wants("", "reassign generate --topics-to-move-json-file "+file+" --broker-list 1", plan)
	s.fails("reassign generate --topics-to-move-json-file "+file+" orders --broker-list 1", "duplicate entries: orders")
	s.fails("reassign generate orders --broker-list 1,1", "duplicate entries: 1")
	s.fails("reassign generate orders --broker-list 7", "fenced")
	s.fails("reassign generate nope --broker-list 1", "topic nope not found")
	s.fails("reassign generate orders", "--broker-list")
	s.fails("reassign generate --broker-list 1", "name topics")

	s.wants("", "reassign list", "No partition reassignments found.\n")
	if out := s.do("", "reassign list -o json"); out != "[]\n" {
		t.Errorf("%q", out)
	}
	write(plan)
	s.wants("", "reassign verify --preserve-throttles -f "+file, "Status of partition reassignment:\nReassignment of partition orders-0 is completed.\nReassignment of partition orders-1 is completed.\n")
	out := s.do("", "reassign execute -f "+file+" --throttle 1000000")
	for _, want := range []string{
		"Current partition replica assignment\n\n{\"version\":1,", `"replicas":[1],"log_dirs":["/`, "\n\nSave this to use as the --reassignment-json-file option during rollback\n",
		"Warning: You must run --verify periodically", "The inter-broker throttle limit was set to 1000000 B/s\n", "Successfully started partition reassignments for orders-0,orders-1\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	s.wants("", "config describe topic orders", "leader.replication.throttled.replicas")
	s.wants("", "reassign verify -f "+file, "Clearing broker-level throttles on broker 1\nClearing topic-level throttles on topic orders\n")
	if out := s.do("", "config describe topic orders"); strings.Contains(out, "throttled") {
		t.Errorf("the throttle is still on\n%s", out)
	}
	s.wants("", "reassign cancel -f "+file, "None of the specified partition reassignments are active.\nNone of the specified partition moves are active.\nClearing ")
	for text, want := range map[string]string{
		`{"version":1,"partitions":[{"topic":"orders","partition":9,"replicas":[1]}]}`: "unable to find partition: orders-9",
		`{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[7]}]}`: "unknown broker id 7",
		`{"version":1,"partitions":[]}`: "cannot be empty",
		`{"version":2,"partitions":[]}`: "not supported version field value 2",
	} {
		write(text)
		s.fails("reassign execute -f "+file, want)
	}
	write(`{"partitions":[{"topic":"orders","partition":0,"replicas":[2]},{"topic":"nope","partition":0,"replicas":[1]}]}`)
	s.wants("", "reassign verify --preserve-throttles -f "+file, "There is no active reassignment of partition nope-0, but replica set is  rather than 1.\n",
		"There is no active reassignment of partition orders-0, but replica set is 1 rather than 2.\n")
	// Directories: where a replica is, and where it isn't.
	var now struct {
		Partitions []assignedPartition `json:"partitions"`
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(s.do("", "reassign generate orders --broker-list 1"), "Current partition replica assignment\n"), "\n")
	if err := json.Unmarshal([]byte(text), &now); err != nil || len(now.Partitions) != 2 || !filepath.IsAbs(now.Partitions[0].LogDirs[0]) {
		t.Fatalf("%v %s", err, text)
	}
	write(text)
	s.wants("", "reassign verify --preserve-throttles -f "+file, "Reassignment of replica orders-0-1 completed successfully.\nReassignment of replica orders-1-1 completed successfully.\n")
	write(strings.ReplaceAll(text, now.Partitions[0].LogDirs[0], "/elsewhere"))
	s.wants("", "reassign verify --preserve-throttles -f "+file, "Partition orders-0 on broker 1 is not being moved from log dir "+now.Partitions[0].LogDirs[0]+" to /elsewhere.\n")
	s.fails("reassign verify", "--reassignment-json-file")
	s.fails("reassign verify -f /no/such/file", "no such file")
}
