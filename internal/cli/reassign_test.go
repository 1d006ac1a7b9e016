package cli

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gregor/client"
)

func TestParseReassignment(t *testing.T) {
	t.Parallel()
	r, err := parseReassignment([]byte(`{"version":1,"partitions":[{"topic":"a","partition":1,"replicas":[3,1],"log_dirs":["any","/d"]},{"topic":"b","partition":0,"replicas":[2]}]}`))
	if err != nil || r.check() != nil {
		t.Fatal(err)
	}
	a1 := client.TopicPartition{Topic: "a", Partition: 1}
	if got := r.assignment(); !slices.Equal(got[a1], []int32{3, 1}) || len(got) != 2 || !slices.Equal(got.topics(), []string{"a", "b"}) || !slices.Equal(got.brokers(), []int32{1, 2, 3}) {
		t.Errorf("%v", got)
	}
	if len(r.dirs) != 1 || r.dirs[client.Replica{TopicPartition: a1, Broker: 1}] != "/d" {
		t.Errorf("%v", r.dirs)
	}
	const want = `{"version":1,"partitions":[{"topic":"a","partition":1,"replicas":[3,1],"log_dirs":["any","/d"]},{"topic":"b","partition":0,"replicas":[2],"log_dirs":["any"]}]}`
	if got := assignmentJSON(r.assignment(), r.dirs); got != want {
		t.Errorf("%s", got)
	}
	for in, want := range map[string]string{
		`x`:             "invalid character",
		`{"version":3}`: "not supported version field value 3",
		`{"partitions":[{"topic":"a","partition":1}]}`:                                     "must have topic, partition and replicas",
		`{"partitions":[{"topic":"a","partition":1,"replicas":[1,2],"log_dirs":["any"]}]}`: "size of replicas list [1 2] is different",
		`{"partitions":[]}`: "cannot be empty",
		`{"partitions":[{"topic":"a","partition":1,"replicas":[]}]}`:                                                 "partition replica list cannot be empty: a-1",
		`{"partitions":[{"topic":"a","partition":1,"replicas":[1]},{"topic":"a","partition":1,"replicas":[2]}]}`:     "duplicate topic partitions: a-1",
		`{"partitions":[{"topic":"a","partition":0,"replicas":[2,2]},{"topic":"a","partition":1,"replicas":[1,1]}]}`: "a-0 contains multiple entries for 2. a-1 contains multiple entries for 1",
		`{"partitions":[{"topic":"a","partition":1,"replicas":[1],"log_dirs":[1]}]}`:                                 "cannot unmarshal",
	} {
		r, err := parseReassignment([]byte(in))
		if err == nil {
			err = r.check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
	if got, err := parseTopicsToMove([]byte(`{"topics":[{"topic":"a"},{"topic":"b"}],"version":1}`)); err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v %v", got, err)
	}
	for _, in := range []string{`x`, `{"version":2}`, `{"topics":[{}]}`} {
		if _, err := parseTopicsToMove([]byte(in)); err == nil {
			t.Errorf("%s is accepted", in)
		}
	}
}

// A proposal keeps the partitions and their number of replicas, and puts no two replicas on one broker.
func TestProposeAssignment(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		racks := map[int32]string{}
		withRacks := rapid.Bool().Draw(t, "racks")
		for _, id := range rapid.SliceOfNDistinct(rapid.Int32Range(0, 20), 1, 8, rapid.ID[int32]).Draw(t, "brokers") {
			racks[id] = ""
			if withRacks {
				racks[id] = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "rack")
			}
		}
		factor := rapid.IntRange(1, len(racks)).Draw(t, "factor")
		current := assignment{}
		for _, topic := range []string{"x", "y"} {
			for p := range rapid.Int32Range(1, 12).Draw(t, "partitions") {
				current[client.TopicPartition{Topic: topic, Partition: p}] = make([]int32, factor)
			}
		}
		got, err := proposeAssignment(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), current, racks)
		if err != nil || len(got) != len(current) {
			t.Fatalf("%v %v", got, err)
		}
		for tp, replicas := range got {
			if len(replicas) != factor || len(current[tp]) != factor || len(duplicates(replicas)) > 0 {
				t.Fatalf("%v: %v", tp, replicas)
			}
			for _, id := range replicas {
				if _, ok := racks[id]; !ok {
					t.Fatalf("%v: %v is not among the brokers", tp, replicas)
				}
			}
		}
		var back struct {
			Partitions []assignedPartition `json:"partitions"`
		}
		if err := json.Unmarshal([]byte(assignmentJSON(got, nil)), &back); err != nil || len(back.Partitions) != len(got) {
			t.Fatalf("%v", err)
		}
	})
	_, err := proposeAssignment(rand.New(rand.NewPCG(1, 1)), assignment{{Topic: "x"}: {1, 2}}, map[int32]string{1: ""})
	if err == nil || err.Error() != "topic x: The target replication factor of 2 cannot be reached because only 1 broker(s) are registered or some brokers have all their log directories cordoned." {
		t.Errorf("%v", err)
	}
}

func TestRacks(t *testing.T) {
	t.Parallel()
	cluster := &client.Cluster{Brokers: []client.ClusterBroker{{Broker: client.Broker{ID: 1, Rack: "a"}}, {Broker: client.Broker{ID: 2}}, {Broker: client.Broker{ID: 3, Rack: "b"}}}}
	if got, err := racksOf(cluster, []int32{1, 3, 9}, false); err != nil || len(got) != 2 || got[3] != "b" {
		t.Errorf("%v %v", got, err)
	}
	if _, err := racksOf(cluster, []int32{1, 2}, false); err == nil || !strings.Contains(err.Error(), "--disable-rack-aware") {
		t.Errorf("%v", err)
	}
	if got, err := racksOf(cluster, []int32{1, 2}, true); err != nil || got[1] != "" || len(got) != 2 {
		t.Errorf("%v %v", got, err)
	}
}

func TestThrottles(t *testing.T) {
	t.Parallel()
	tp := func(topic string, p int32) client.TopicPartition {
		return client.TopicPartition{Topic: topic, Partition: p}
	}
	running := []client.Reassignment{{TopicPartition: tp("a", 0), Replicas: []int32{1, 2, 3}, Adding: []int32{3}, Removing: []int32{1}}, {TopicPartition: tp("c", 0), Replicas: []int32{7, 8}, Adding: []int32{8}}}
	moves := movesOf(running, assignment{tp("a", 0): {2, 4}, tp("a", 1): {5, 1}, tp("b", 0): {1}}, assignment{tp("a", 0): {1, 2, 3}, tp("a", 1): {1}, tp("b", 0): {1, 2}})
	leaders, followers, brokers := throttles(moves)
	for _, c := range [][2]string{
		{leaders["a"], "0:1,0:2,1:1"}, {followers["a"], "0:4,1:5"}, {leaders["b"], "0:1,0:2"}, {followers["b"], ""}, {leaders["c"], "0:7"}, {followers["c"], "0:8"},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
	if !slices.Equal(brokers, []int32{1, 2, 4, 5, 7, 8}) {
		t.Errorf("%v", brokers)
	}
}

func TestDirState(t *testing.T) {
	t.Parallel()
	r := client.Replica{TopicPartition: client.TopicPartition{Topic: "a", Partition: 1}, Broker: 2}
	for want, s := range map[string]dirState{
		"Partition a-1 cannot be found in any live log directory on broker 2.":                                                {},
		"Partition a-1 is not found in any live log dir on broker 2. There is likely an offline log directory on the broker.": {known: true},
		"Reassignment of replica a-1-2 completed successfully.":                                                               {known: true, current: "/w"},
		"Reassignment of replica a-1-2 is still in progress.":                                                                 {known: true, current: "/x", future: "/w"},
		"Partition a-1 on broker 2 is being moved to log dir /y instead of /w.":                                               {known: true, current: "/x", future: "/y"},
		"Partition a-1 on broker 2 is not being moved from log dir /x to /w.":                                                 {known: true, current: "/x"},
	} {
		if got := s.text(r, "/w"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestCommandConfig(t *testing.T) {
	t.Parallel()
	f := func(text, want string) {
		t.Helper()
		file := t.TempDir() + "/c.properties"
		writeFile(t, file, text)
		c := &connection{commandConfig: file}
		err := c.readCommandConfig()
		if got := ""; err != nil {
			got = err.Error()
			if want == "" || !strings.Contains(got, want) {
				t.Errorf("%q: %s", text, got)
			}
		} else if want != "" {
			t.Errorf("%q is accepted", text)
		}
	}
	f("client.id=x\ndefault.api.timeout.ms=500\nreconnect.backoff.ms=3\n", "")
	f("security.protocol=plaintext\n", "")
	f("security.protocol=SASL_SSL\n", "only speak PLAINTEXT")
	f("default.api.timeout.ms=x\n", "no number")
}
