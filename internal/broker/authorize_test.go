package broker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/await"
	"gregor/internal/metadata"
	"gregor/internal/security"
)

// guard is a world whose broker asks an authorizer.
type guard struct {
	*world
	*client
}

func newGuard(tb testing.TB) *guard {
	w := newWorld(tb, map[string]string{"authorizer.class.name": security.StandardAuthorizer})
	w.topic("mine", 1)
	w.topic("theirs", 1)
	w.topic(offsetsTopic, 1)
	w.awaitGroups(1)
	g := &guard{world: w, client: w.client()}
	g.may()
	return g
}

// may makes the rules "OPERATION TYPE name" those in force.
func (g *guard) may(rules ...string) {
	e := new(security.ACLs).Edit()
	for _, r := range rules {
		var op, kind, name string
		if _, err := fmt.Sscan(r, &op, &kind, &name); err != nil {
			g.world.tb.Fatal(err)
		}
		a := security.ACL{ResourceName: name, PatternType: int8(security.Literal), Principal: "User:ANONYMOUS", Host: "127.0.0.1", PermissionType: int8(security.Allow)}
		for o := security.All; o <= security.TwoPhaseCommit; o++ {
			if o.String() == op {
				a.Operation = int8(o)
			}
		}
		for t := security.Topic; t <= security.User; t++ {
			if t.String() == kind {
				a.ResourceType = int8(t)
			}
		}
		e.Add(&a)
	}
	g.authorizer.Load(e.Done())
}

func version[R kmsg.Request](r R, v int16) R {
	r.SetVersion(v)
	return r
}

func TestProduceNeedsWrite(t *testing.T) {
	g := newGuard(t)
	records := batch(t, plain(), "v")
	ask := func(topic string) int16 {
		return call[*kmsg.ProduceResponse](g.client, produceRequest(9, 1, topic, [16]byte{}, 0, records)).Topics[0].Partitions[0].ErrorCode
	}
	g.may("WRITE TOPIC mine", "DESCRIBE TOPIC theirs")
	for topic, want := range map[string]int16{"mine": 0, "theirs": api.ErrTopicAuthorizationFailed.Code, "none": api.ErrTopicAuthorizationFailed.Code} {
		if got := ask(topic); got != want {
			t.Errorf("%s: %d, want %d", topic, got, want)
		}
	}
	// By id, an unknown one is unknown to all.
	q := produceRequest(13, 1, "", g.image.Topics.ByName("theirs").ID, 0, records)
	if got := call[*kmsg.ProduceResponse](g.client, q).Topics[0].Partitions[0].ErrorCode; got != api.ErrTopicAuthorizationFailed.Code {
		t.Errorf("by id: %d", got)
	}
	q = produceRequest(13, 1, "", [16]byte{1}, 0, records)
	if got := call[*kmsg.ProduceResponse](g.client, q).Topics[0].Partitions[0].ErrorCode; got != api.ErrUnknownTopicID.Code {
		t.Errorf("by an unknown id: %d", got)
	}
}

// TestRulesHoldForNewTopics: the broker has replicas of a new topic a moment before it has the image with the topic's name.
func TestRulesHoldForNewTopics(t *testing.T) {
	g := newGuard(t)
	records, shown := batch(t, plain(), "v"), g.image
	id := g.topic("new", 1)
	g.broker.Publish(metadata.NewDelta(shown), shown)
	q := produceRequest(13, 1, "", id, 0, records)
	if got := call[*kmsg.ProduceResponse](g.client, q).Topics[0].Partitions[0].ErrorCode; got != api.ErrTopicAuthorizationFailed.Code {
		t.Errorf("produce: %d", got)
	}
	f := version(kmsg.NewPtrFetchRequest(), 13)
	f.ReplicaID, f.MaxBytes, f.SessionEpoch = -1, 1<<20, -1
	f.Topics = []kmsg.FetchRequestTopic{{TopicID: id, Partitions: []kmsg.FetchRequestTopicPartition{kmsg.NewFetchRequestTopicPartition()}}}
	if got := call[*kmsg.FetchResponse](g.client, f).Topics[0].Partitions[0].ErrorCode; got != api.ErrTopicAuthorizationFailed.Code {
		t.Errorf("fetch: %d", got)
	}
}

// TestFetchNeedsRead in each request of a session, since the rules may change.
func TestFetchNeedsRead(t *testing.T) {
	g := newGuard(t)
	g.may("ALL TOPIC mine", "READ TOPIC theirs")
	g.produce(g.client, "mine", 0, batch(t, plain(), "v"))
	fetch := func(session, epoch int32, topics ...string) *kmsg.FetchResponse {
		q := version(kmsg.NewPtrFetchRequest(), 12)
		q.ReplicaID, q.MaxWaitMillis, q.MaxBytes, q.SessionID, q.SessionEpoch = -1, 0, 1<<20, session, epoch
		for _, n := range topics {
			p := kmsg.NewFetchRequestTopicPartition()
			p.PartitionMaxBytes, p.CurrentLeaderEpoch, p.LastFetchedEpoch = 1<<20, -1, -1
			q.Topics = append(q.Topics, kmsg.FetchRequestTopic{Topic: n, Partitions: []kmsg.FetchRequestTopicPartition{p}})
		}
		return call[*kmsg.FetchResponse](g.client, q)
	}
	seen := func(r *kmsg.FetchResponse) string {
		var out []string
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				out = append(out, fmt.Sprint(t.Topic, " ", p.ErrorCode, " ", len(p.RecordBatches) > 0))
			}
		}
		slices.Sort(out)
		return fmt.Sprint(out)
	}
	r := fetch(0, 0, "mine", "theirs")
	if got := seen(r); got != "[mine 0 true theirs 0 false]" {
		t.Errorf("at first: %s", got)
	}
	g.may("READ TOPIC mine")
	if got := seen(fetch(r.SessionID, 1)); got != "[mine 0 true theirs 29 false]" {
		t.Errorf("after a rule is gone: %s", got)
	}
	g.may("READ TOPIC theirs")
	if got := seen(fetch(r.SessionID, 2)); got != "[mine 29 false]" && got != "[mine 29 false theirs 0 false]" {
		t.Errorf("the other way round: %s", got)
	}
	q := version(kmsg.NewPtrFetchRequest(), 12)
	q.ReplicaID, q.MaxBytes, q.SessionEpoch = 7, 1<<20, -1
	q.Topics = []kmsg.FetchRequestTopic{{Topic: "theirs", Partitions: []kmsg.FetchRequestTopicPartition{kmsg.NewFetchRequestTopicPartition()}}}
	if got := seen(call[*kmsg.FetchResponse](g.client, q)); got != "[theirs 29 false]" {
		t.Errorf("a follower that may only read: %s", got)
	}
}

func TestMetadataShowsWhatMayBeDescribed(t *testing.T) {
	g := newGuard(t)
	ask := func(names ...string) map[string]int16 {
		q := version(kmsg.NewPtrMetadataRequest(), 9)
		q.IncludeTopicAuthorizedOperations, q.AllowAutoTopicCreation = true, true
		for _, n := range names {
			q.Topics = append(q.Topics, kmsg.MetadataRequestTopic{Topic: &n})
		}
		out := map[string]int16{}
		for _, topic := range call[*kmsg.MetadataResponse](g.client, q).Topics {
			out[*topic.Topic] = topic.ErrorCode
			if topic.ErrorCode == 0 && topic.AuthorizedOperations != 1<<security.Read|1<<security.Describe {
				t.Errorf("%s: operations %b", *topic.Topic, topic.AuthorizedOperations)
			}
		}
		return out
	}
	g.may("READ TOPIC mine", "DESCRIBE TOPIC none")
	if got := fmt.Sprint(ask()); got != "map[mine:0]" {
		t.Errorf("all: %s", got)
	}
	if got := fmt.Sprint(ask("mine", "theirs", "none", "hidden")); got != "map[hidden:29 mine:0 none:29 theirs:29]" {
		t.Errorf("some: %s", got)
	}
}

// TestGroupsNeedPermission: the code for each kind of request about group g, with no rights and with those that are needed.
func TestGroupsNeedPermission(t *testing.T) {
	g := newGuard(t)
	commit := func() int16 {
		q := version(kmsg.NewPtrOffsetCommitRequest(), 8)
		q.Group, q.Generation = "g", -1
		q.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "mine", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{}}}}
		return call[*kmsg.OffsetCommitResponse](g.client, q).Topics[0].Partitions[0].ErrorCode
	}
	fetch := func() int16 {
		q := version(kmsg.NewPtrOffsetFetchRequest(), 7)
		q.Group, q.Topics = "g", []kmsg.OffsetFetchRequestTopic{{Topic: "mine", Partitions: []int32{0}}}
		r := call[*kmsg.OffsetFetchResponse](g.client, q)
		if r.ErrorCode != 0 {
			return r.ErrorCode
		}
		return r.Topics[0].Partitions[0].ErrorCode
	}
	heartbeat := func() int16 {
		q := version(kmsg.NewPtrHeartbeatRequest(), 4)
		q.Group, q.MemberID = "g", "m"
		return call[*kmsg.HeartbeatResponse](g.client, q).ErrorCode
	}
	remove := func() int16 {
		q := version(kmsg.NewPtrDeleteGroupsRequest(), 2)
		q.Groups = []string{"g"}
		return call[*kmsg.DeleteGroupsResponse](g.client, q).Groups[0].ErrorCode
	}
	list := func() int16 {
		return int16(len(call[*kmsg.ListGroupsResponse](g.client, version(kmsg.NewPtrListGroupsRequest(), 4)).Groups))
	}
	const (
		group, topic = int16(30), int16(29)
		unknown      = int16(25)
	)
	for _, c := range []struct {
		name  string
		ask   func() int16
		rules []string
		want  int16
	}{
		{"commit", commit, nil, group},
		{"commit", commit, []string{"READ GROUP g"}, topic},
		{"commit", commit, []string{"READ GROUP g", "READ TOPIC mine"}, 0},
		{"fetch", fetch, nil, group},
		{"fetch", fetch, []string{"DESCRIBE GROUP g"}, topic},
		{"fetch", fetch, []string{"READ GROUP g", "WRITE TOPIC mine"}, 0},
		{"heartbeat", heartbeat, []string{"DESCRIBE GROUP g"}, group},
		{"heartbeat", heartbeat, []string{"READ GROUP g"}, unknown},
		{"list", list, nil, 0},
		{"list", list, []string{"DESCRIBE GROUP g"}, 1},
		{"list", list, []string{"DESCRIBE CLUSTER kafka-cluster"}, 1},
		{"delete", remove, []string{"READ GROUP g"}, group},
		{"delete", remove, []string{"DELETE GROUP g"}, 0},
	} {
		g.may(c.rules...)
		var got int16
		await.True(t, c.name+": the coordinator", func() bool {
			got = c.ask()
			return got != api.ErrCoordinatorLoadInProgress.Code && got != api.ErrNotCoordinator.Code
		})
		if got != c.want {
			t.Errorf("%s with %q: %d, want %d", c.name, c.rules, got, c.want)
		}
	}
}

// TestIdempotenceNeedsSomeWrite: a producer id is for whoever may write to some topic.
func TestIdempotenceNeedsSomeWrite(t *testing.T) {
	g := newGuard(t)
	for _, c := range []struct {
		rules []string
		want  int16
	}{
		{nil, api.ErrClusterAuthorizationFailed.Code}, {[]string{"READ TOPIC mine"}, api.ErrClusterAuthorizationFailed.Code},
		{[]string{"WRITE TOPIC mine"}, 0}, {[]string{"IDEMPOTENT_WRITE CLUSTER kafka-cluster"}, 0},
	} {
		g.may(c.rules...)
		if got := call[*kmsg.InitProducerIDResponse](g.client, version(kmsg.NewPtrInitProducerIDRequest(), 4)).ErrorCode; got != c.want {
			t.Errorf("%q: %d, want %d", c.rules, got, c.want)
		}
	}
}

// TestTopicPartitionsHideOthers: what may not be described comes last, in order of name, and not at all if nobody named it.
func TestTopicPartitionsHideOthers(t *testing.T) {
	g := newGuard(t)
	g.may("DESCRIBE TOPIC mine")
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, "[mine 0]"},
		{[]string{"theirs", "mine", "z", "y", "x", "w"}, "[mine 0 theirs 29 w 29 x 29 y 29 z 29]"},
	} {
		q := kmsg.NewPtrDescribeTopicPartitionsRequest()
		for _, n := range c.names {
			q.Topics = append(q.Topics, kmsg.DescribeTopicPartitionsRequestTopic{Topic: n})
		}
		var got []string
		for _, topic := range call[*kmsg.DescribeTopicPartitionsResponse](g.client, q).Topics {
			got = append(got, fmt.Sprint(*topic.Topic, " ", topic.ErrorCode))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%q: %s, want %s", c.names, got, c.want)
		}
	}
}
