package interop

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/coordinator/group"
	"gregor/internal/message"
	"gregor/interop/kafka"
)

// livelyStreams makes streams groups fast.
var livelyStreams = []string{
	"group.streams.initial.rebalance.delay.ms=0",
	"group.streams.assignment.interval.ms=0",
	"group.streams.min.heartbeat.interval.ms=100",
	"group.streams.heartbeat.interval.ms=300",
	"group.streams.min.session.timeout.ms=1000",
	"group.streams.session.timeout.ms=6000",
	"group.streams.min.task.offset.interval.ms=100",
}

// threads are members of streams groups that the test plays, with raw requests.
type threads struct{ *pair }

// wordCount is a topology over the source topic, with internal topics named after the group.
func wordCount(group, source string) *kmsg.StreamsGroupHeartbeatRequestTopology {
	return &kmsg.StreamsGroupHeartbeatRequestTopology{Epoch: 1, Subtopologies: []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{
		{SubtopologyID: "0", SourceTopics: []string{source}, RepartitionSinkTopics: []string{group + "-words-repartition"}},
		{
			SubtopologyID:           "1",
			RepartitionSourceTopics: []kmsg.TopicInfo{{Topic: group + "-words-repartition", Configs: []kmsg.TopicInfoConfig{{Key: "cleanup.policy", Value: "delete"}}}},
			StateChangelogTopics:    []kmsg.TopicInfo{{Topic: group + "-counts-changelog", ReplicationFactor: 1, Configs: []kmsg.TopicInfoConfig{{Key: "cleanup.policy", Value: "compact"}}}},
		},
	}}
}

func tasks(ids ...string) []kmsg.TaskIDs {
	list := []kmsg.TaskIDs{}
	for _, id := range ids {
		sub, ps, _ := strings.Cut(id, ":")
		t := kmsg.TaskIDs{SubtopologyID: sub}
		for _, p := range strings.Split(ps, ",") {
			var n int32
			fmt.Sscan(p, &n)
			t.Partitions = append(t.Partitions, n)
		}
		list = append(list, t)
	}
	return list
}

// streamsJoin is a first heartbeat.
func streamsJoin(group, member, process string, topology *kmsg.StreamsGroupHeartbeatRequestTopology) *kmsg.StreamsGroupHeartbeatRequest {
	r := kmsg.NewPtrStreamsGroupHeartbeatRequest()
	r.Group, r.MemberID, r.ProcessID, r.RebalanceTimeoutMillis, r.Topology = group, member, &process, 300000, topology
	r.ActiveTasks, r.StandbyTasks, r.WarmupTasks, r.ClientTags = tasks(), tasks(), tasks(), []kmsg.StreamsGroupHeartbeatRequestClientTag{}
	return r
}

// streamsBeat is a heartbeat that says nothing but that the member lives.
func streamsBeat(group, member string, epoch int32) *kmsg.StreamsGroupHeartbeatRequest {
	r := kmsg.NewPtrStreamsGroupHeartbeatRequest()
	r.Group, r.MemberID, r.MemberEpoch = group, member, epoch
	return r
}

func epochKey(group, member string) string { return "epoch of " + group + "/" + member }

// epoch is what the member was last told.
func (s *side) epoch(group, member string) int32 {
	e, _ := s.kept[epochKey(group, member)].(int32)
	return e
}

// beat sends a heartbeat to both with the member's epoch on each side, edited, and compares the answers.
func (p threads) beat(t *testing.T, name, group, member string, edit func(r *kmsg.StreamsGroupHeartbeatRequest)) {
	t.Helper()
	p.send(t, name, 1, func(s *side) *kmsg.StreamsGroupHeartbeatRequest {
		r := streamsBeat(group, member, s.epoch(group, member))
		if edit != nil {
			edit(r)
		}
		return r
	})
}

// owning makes a heartbeat say what the member has.
func owning(active, standby []kmsg.TaskIDs) func(*kmsg.StreamsGroupHeartbeatRequest) {
	return func(r *kmsg.StreamsGroupHeartbeatRequest) {
		r.ActiveTasks, r.StandbyTasks, r.WarmupTasks = active, standby, tasks()
	}
}

func (p threads) send(t *testing.T, name string, v int16, build func(s *side) *kmsg.StreamsGroupHeartbeatRequest) {
	t.Helper()
	p.at(t, name, v, func(s *side) kmsg.Request { return build(s) }, func(s *side, resp kmsg.Response) {
		if r := resp.(*kmsg.StreamsGroupHeartbeatResponse); r.ErrorCode == 0 && r.MemberEpoch >= 0 {
			r := r.MemberEpoch
			s.kept[epochKey(build(s).Group, build(s).MemberID)] = r
		}
	})
}

// join joins, waits until the internal topics are there, and takes the tasks.
func (p threads) join(t *testing.T, group, member, process, source string, edit func(*kmsg.StreamsGroupHeartbeatRequest)) {
	t.Helper()
	p.send(t, "join "+member, 1, func(*side) *kmsg.StreamsGroupHeartbeatRequest {
		r := streamsJoin(group, member, process, wordCount(group, source))
		if edit != nil {
			edit(r)
		}
		return r
	})
}

// ready has a member send heartbeats until the internal topics are there, which each node notices in its own time, and compares the
// answers of then.
func (p threads) ready(t *testing.T, name, group, member string, edit func(r *kmsg.StreamsGroupHeartbeatRequest)) {
	t.Helper()
	p.steps++
	answers := map[*side]string{}
	var mu sync.Mutex
	p.both(func(s *side) {
		for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			r := streamsBeat(group, member, s.epoch(group, member))
			if r.Version = 1; edit != nil {
				edit(r)
			}
			resp := s.must(t, r).(*kmsg.StreamsGroupHeartbeatResponse)
			if resp.ErrorCode == 0 {
				s.kept[epochKey(group, member)] = resp.MemberEpoch
			}
			const missingInternalTopics = 3
			if !slices.ContainsFunc(resp.Status, func(st kmsg.StreamsGroupHeartbeatResponseStatus) bool { return st.StatusCode == missingInternalTopics }) {
				mu.Lock()
				answers[s] = p.render(s, resp)
				mu.Unlock()
				return
			}
			if time.Now().After(until) {
				t.Errorf("%s: group %s: %v", s.name, group, resp.Status)
				return
			}
		}
	})
	if g, k := answers[p.gregor], answers[p.kafka]; g != k {
		t.Errorf("%s\n%s", name, diff(g, k))
	}
}

func (p threads) describe(t *testing.T, name string, groups ...string) {
	t.Helper()
	p.each(t, "describe "+name, func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrStreamsGroupDescribeRequest()
		r.Groups, r.IncludeAuthorizedOperations, r.IncludeTopologyDescription = groups, true, v >= 1
		return r
	})
}

func (p threads) list(t *testing.T, name string, states ...string) {
	t.Helper()
	p.at(t, "list "+name, 5, func(*side) kmsg.Request {
		r := kmsg.NewPtrListGroupsRequest()
		r.TypesFilter, r.StatesFilter = []string{"streams"}, states
		return r
	}, nil)
}

func (p threads) configure(t *testing.T, group string, settings map[string]string) {
	t.Helper()
	p.once(t, "configure", func(*side) kmsg.Request {
		r := kmsg.NewPtrIncrementalAlterConfigsRequest()
		res := kmsg.NewIncrementalAlterConfigsRequestResource()
		res.ResourceType, res.ResourceName = 32, group
		for k, v := range settings {
			res.Configs = append(res.Configs, kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: k, Value: &v})
		}
		r.Resources = append(r.Resources, res)
		return r
	}, nil)
	// A broker applies a change to itself a moment after it has answered.
	p.both(func(s *side) {
		for until := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			r := kmsg.NewPtrDescribeConfigsRequest()
			r.Version = 4
			r.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: 32, ResourceName: group}}
			resp := s.must(t, r).(*kmsg.DescribeConfigsResponse)
			left := len(settings)
			for _, c := range resp.Resources[0].Configs {
				if want, ok := settings[c.Name]; ok && c.Value != nil && *c.Value == want {
					left--
				}
			}
			if left == 0 {
				return
			}
			if time.Now().After(until) {
				t.Errorf("%s: group %s doesn't get %v", s.name, group, settings)
				return
			}
		}
	})
}

// TestStreamsGroups sends both nodes the same StreamsGroupHeartbeat requests and others about streams groups, good and bad, and then
// has Kafka's tool for such groups look at what there is.
func TestStreamsGroups(t *testing.T) {
	// The test takes its time between heartbeats.
	p := threads{startPair(t, patient...)}
	p.createTopics(t, 2, nil, "in", "other")
	p.createTopics(t, 3, nil, "wide")
	p.both(func(s *side) { s.awaitGroups(t) })
	t.Run("Refused", func(t *testing.T) { streamsRefused(t, p) })
	t.Run("Topologies", func(t *testing.T) { streamsTopologies(t, p) })
	t.Run("Life", func(t *testing.T) { streamsLife(t, p) })
	t.Run("Static", func(t *testing.T) { streamsStatic(t, p) })
	t.Run("Settings", func(t *testing.T) { streamsSettings(t, p) })
	t.Run("Offsets", func(t *testing.T) { streamsOffsets(t, p) })
	t.Run("Conversions", func(t *testing.T) { streamsConversions(t, p) })
	t.Logf("%d questions", p.steps)
	t.Run("Records", func(t *testing.T) { streamsRecords(t, p) })
	t.Run("Tools", func(t *testing.T) { streamsTools(t, p) })
}

// awaitGroups waits until the node answers for groups of all partitions of __consumer_offsets.
func (s *side) awaitGroups(t *testing.T) {
	t.Helper()
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.Version, find.CoordinatorKeys = 4, []string{"g"}
	s.must(t, find)
	s.awaitLeaders(t, "__consumer_offsets")
	describe := kmsg.NewPtrStreamsGroupDescribeRequest()
	for i := range 32 { // surely one in each partition
		describe.Groups = append(describe.Groups, fmt.Sprintf("nobody-%d", i))
	}
	streamsEventually(t, func() string {
		for _, g := range s.must(t, describe).(*kmsg.StreamsGroupDescribeResponse).Groups {
			const groupIDNotFound = 69
			if g.ErrorCode != groupIDNotFound {
				return fmt.Sprintf("%s: group %s has no coordinator: error %d", s.name, g.Group, g.ErrorCode)
			}
		}
		return ""
	})
}

// streamsRefused are requests that are refused whatever the group.
func streamsRefused(t *testing.T, p threads) {
	type request = kmsg.StreamsGroupHeartbeatRequest
	blank := " "
	for _, c := range []struct {
		name string
		edit func(r *request)
	}{
		{"no member", func(r *request) { r.MemberID = "" }},
		{"blank member", func(r *request) { r.MemberID = blank }},
		{"no group", func(r *request) { r.Group = "" }},
		{"blank instance", func(r *request) { r.InstanceID = &blank }},
		{"blank rack", func(r *request) { r.RackID = &blank }},
		{"no rebalance timeout", func(r *request) { r.RebalanceTimeoutMillis = -1 }},
		{"active tasks null", func(r *request) { r.ActiveTasks = nil }},
		{"standby tasks null", func(r *request) { r.StandbyTasks = nil }},
		{"warm-up tasks null", func(r *request) { r.WarmupTasks = nil }},
		{"has active tasks", func(r *request) { r.ActiveTasks = tasks("0:0") }},
		{"no topology", func(r *request) { r.Topology = nil }},
		{"regex", func(r *request) { r.Topology.Subtopologies[0].SourceTopicRegex = []string{"a.*"} }},
		{"changelog with partitions", func(r *request) { r.Topology.Subtopologies[1].StateChangelogTopics[0].NumPartitions = 3 }},
		{"reads an internal topic", func(r *request) {
			r.Topology.Subtopologies[0].SourceTopics = []string{"__consumer_offsets", "in", "__transaction_state"}
		}},
		{"invalid topics", func(r *request) {
			r.Topology.Subtopologies[0].SourceTopics = []string{"a b", "in"}
			r.Topology.Subtopologies[1].RepartitionSinkTopics = []string{"", "a b"}
		}},
		{"epoch -3", func(r *request) { r.MemberEpoch = -3 }},
		{"leaves for a while without instance", func(r *request) { r.MemberEpoch, r.Topology = -2, nil }},
		{"topology later", func(r *request) { r.MemberEpoch = 1 }},
		{"some tasks", func(r *request) { r.MemberEpoch, r.Topology, r.StandbyTasks = 1, nil, nil }},
		{"unknown group", func(r *request) { r.MemberEpoch, r.Topology = 1, nil }},
		{"leaves an unknown group", func(r *request) { r.MemberEpoch, r.Topology = -1, nil }},
	} {
		for v := int16(0); v <= 1; v++ {
			p.send(t, c.name, v, func(*side) *request {
				r := streamsJoin("refused", "m", "p", wordCount("refused", "in"))
				c.edit(r)
				return r
			})
		}
	}
	p.describe(t, "unknown groups", "nope", "")
	p.describe(t, "none")
	p.once(t, "description of a topology", func(*side) kmsg.Request {
		r := kmsg.NewPtrStreamsGroupTopologyDescriptionUpdateRequest()
		r.Group, r.MemberID = "refused", "m"
		return r
	}, nil)
}

// streamsTopologies are topologies that can't run.
func streamsTopologies(t *testing.T, p threads) {
	sub := func(id string, sources ...string) kmsg.StreamsGroupHeartbeatRequestTopologySubtopology {
		return kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{SubtopologyID: id, SourceTopics: sources}
	}
	copartition := func(s kmsg.StreamsGroupHeartbeatRequestTopologySubtopology, sources, repartition []int16) kmsg.StreamsGroupHeartbeatRequestTopologySubtopology {
		s.CopartitionGroups = append(s.CopartitionGroups, kmsg.StreamsGroupHeartbeatRequestTopologySubtopologyCopartitionGroup{
			SourceTopics: sources, RepartitionSourceTopics: repartition,
		})
		return s
	}
	repartitioned := func(s kmsg.StreamsGroupHeartbeatRequestTopologySubtopology, topics ...kmsg.TopicInfo) kmsg.StreamsGroupHeartbeatRequestTopologySubtopology {
		s.RepartitionSourceTopics = topics
		return s
	}
	into := func(s kmsg.StreamsGroupHeartbeatRequestTopologySubtopology, sinks ...string) kmsg.StreamsGroupHeartbeatRequestTopologySubtopology {
		s.RepartitionSinkTopics = sinks
		return s
	}
	for i, c := range []struct {
		name string
		subs []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology
	}{
		{"missing sources", []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{sub("0", "in", "m1"), sub("1", "m2", "m3", "m4", "m1")}},
		{"copartitioned unequal sources", []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{copartition(sub("0", "in", "wide"), []int16{0, 1}, nil)}},
		{"a fixed size that doesn't fit", []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{
			copartition(repartitioned(sub("0", "wide"), kmsg.TopicInfo{Topic: "t-fix", NumPartitions: 2}), []int16{0}, []int16{0}),
			into(sub("1", "in"), "t-fix"),
		}},
		{"two fixed sizes", []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{
			copartition(repartitioned(sub("0"), kmsg.TopicInfo{Topic: "t-a", NumPartitions: 2}, kmsg.TopicInfo{Topic: "t-b", NumPartitions: 3}), nil, []int16{0, 1}),
			into(sub("1", "in"), "t-a", "t-b"),
		}},
		{"a loop", []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{
			into(repartitioned(sub("0"), kmsg.TopicInfo{Topic: "t-l"}), "t-m"),
			into(repartitioned(sub("1"), kmsg.TopicInfo{Topic: "t-m"}), "t-l"),
		}},
		{"a repartition topic that nobody writes", []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{repartitioned(sub("0", "in"), kmsg.TopicInfo{Topic: "t-n"})}},
		{"no sources", []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{sub("0")}},
		{"an internal topic of another size", []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{
			repartitioned(sub("0"), kmsg.TopicInfo{Topic: "wide", NumPartitions: 2}), into(sub("1", "in"), "wide"),
		}},
		{"nothing", nil},
	} {
		group := fmt.Sprintf("topology-%d", i)
		for v := int16(0); v <= 1; v++ {
			p.send(t, c.name, v, func(*side) *kmsg.StreamsGroupHeartbeatRequest {
				return streamsJoin(group, "m", "p", &kmsg.StreamsGroupHeartbeatRequestTopology{Epoch: 0, Subtopologies: c.subs})
			})
		}
		p.describe(t, c.name, group)
		p.beat(t, c.name+", again", group, "m", nil)
		p.describe(t, c.name+", again", group)
		p.beat(t, c.name+", bye", group, "m", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	}
	// Topics that can't be created.
	p.send(t, "too many replicas", 1, func(*side) *kmsg.StreamsGroupHeartbeatRequest {
		topology := wordCount("uncreatable", "in")
		topology.Subtopologies[1].StateChangelogTopics[0].ReplicationFactor = 3
		return streamsJoin("uncreatable", "m", "p", topology)
	})
	p.both(func(s *side) {
		for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			r := streamsBeat("uncreatable", "m", s.epoch("uncreatable", "m"))
			r.Version = 1
			resp := s.must(t, r).(*kmsg.StreamsGroupHeartbeatResponse)
			s.kept[epochKey("uncreatable", "m")] = resp.MemberEpoch
			if len(resp.Status) == 1 && strings.Contains(resp.Status[0].StatusDetail, "Creation failed") && strings.HasSuffix(resp.Status[0].StatusDetail, ".") {
				s.kept["detail"] = resp.Status[0].StatusDetail
				return
			}
		}
		t.Errorf("%s never says that the topics can't be created", s.name)
	})
	reason := func(s *side) string {
		text, _ := s.kept["detail"].(string)
		_, text, _ = strings.Cut(text, "; ") // each names the topics that it has seen missing
		return text
	}
	if g, k := reason(p.gregor), reason(p.kafka); g != k {
		t.Errorf("what stands in the way\n  gregor: %v\n  kafka:  %v", g, k)
	}
}

// streamsLife is a group whose members come, share, and go.
func streamsLife(t *testing.T, p threads) {
	const g = "life"
	all := tasks("0:0,1", "1:0,1")
	p.join(t, g, "m1", "p", "in", nil)
	p.describe(t, "before the topics", g)
	p.ready(t, "the topics are there", g, "m1", nil)
	p.describe(t, "one member", g)
	p.beat(t, "has it all", g, "m1", owning(all, tasks()))
	p.list(t, "all")
	p.list(t, "stable", "Stable")
	p.list(t, "empty", "Empty")
	p.join(t, g, "m2", "q", "in", func(r *kmsg.StreamsGroupHeartbeatRequest) {
		r.RackID = kmsg.StringPtr("r1")
		r.UserEndpoint = &kmsg.StreamsGroupHeartbeatRequestUserEndpoint{Host: "q.example", Port: 1234}
		r.ClientTags = []kmsg.StreamsGroupHeartbeatRequestClientTag{{Key: "zone", Value: "z1"}, {Key: "disk", Value: "ssd"}}
	})
	p.describe(t, "a second member", g)
	p.beat(t, "m1 is to give up", g, "m1", nil)
	p.beat(t, "m2 waits", g, "m2", owning(tasks(), tasks()))
	p.describe(t, "on the way", g)
	p.list(t, "reconciling", "Reconciling")
	p.beat(t, "m1 still has them", g, "m1", owning(all, tasks()))
	p.beat(t, "m1 has given up", g, "m1", owning(tasks("0:0", "1:0"), tasks()))
	p.beat(t, "m2 gets", g, "m2", owning(tasks(), tasks()))
	p.beat(t, "m2 has", g, "m2", owning(tasks("0:1", "1:1"), tasks()))
	p.beat(t, "m1 knows endpoints", g, "m1", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.EndpointInformationEpoch = 2 })
	p.beat(t, "m1 has an endpoint", g, "m1", func(r *kmsg.StreamsGroupHeartbeatRequest) {
		r.UserEndpoint = &kmsg.StreamsGroupHeartbeatRequestUserEndpoint{Host: "p.example", Port: 4321}
	})
	p.beat(t, "m1 has it still", g, "m1", nil)
	p.describe(t, "two members", g)
	for _, c := range []struct {
		name, member string
		epoch        int32
		edit         func(r *kmsg.StreamsGroupHeartbeatRequest)
	}{
		{"nobody", "nobody", 5, nil},
		{"an epoch ahead", "m1", 99, nil},
		{"an epoch behind", "m1", 1, nil},
		{"leaves as nobody", "nobody", -1, nil},
		{"a task of no subtopology", "", 0, owning(tasks("7:0"), tasks())},
		{"a task that there can't be", "", 0, owning(tasks("1:2"), tasks())},
		{"a standby task that there can't be", "", 0, owning(tasks(), tasks("1:-1"))},
		{"offsets twice", "", 0, func(r *kmsg.StreamsGroupHeartbeatRequest) {
			r.TaskOffsets = []kmsg.TaskOffset{{SubtopologyID: "1", Partition: 0, Offset: 5}, {SubtopologyID: "1", Partition: 0, Offset: 6}}
		}},
		{"offsets", "", 0, func(r *kmsg.StreamsGroupHeartbeatRequest) {
			r.TaskOffsets = []kmsg.TaskOffset{{SubtopologyID: "1", Partition: 1, Offset: 7}, {SubtopologyID: "1", Partition: 0, Offset: 5}}
			r.TaskEndOffsets = []kmsg.TaskOffset{{SubtopologyID: "1", Partition: 0, Offset: 10}}
		}},
		{"other end offsets", "", 0, func(r *kmsg.StreamsGroupHeartbeatRequest) {
			r.TaskEndOffsets = []kmsg.TaskOffset{{SubtopologyID: "1", Partition: 0, Offset: 11}}
		}},
		{"another process", "", 0, func(r *kmsg.StreamsGroupHeartbeatRequest) { r.ProcessID = kmsg.StringPtr("p2") }},
	} {
		p.send(t, c.name, 1, func(s *side) *kmsg.StreamsGroupHeartbeatRequest {
			r := streamsBeat(g, c.member, c.epoch)
			if c.member == "" {
				r = streamsBeat(g, "m1", s.epoch(g, "m1"))
			}
			if c.edit != nil {
				c.edit(r)
			}
			return r
		})
	}
	p.describe(t, "after all that", g)
	for _, c := range []struct {
		name string
		edit func(tp *kmsg.StreamsGroupHeartbeatRequestTopology)
	}{
		{"another topology of the same epoch", func(tp *kmsg.StreamsGroupHeartbeatRequestTopology) {
			tp.Subtopologies[0].SourceTopics = []string{"other"}
		}},
		{"a newer topology", func(tp *kmsg.StreamsGroupHeartbeatRequestTopology) { tp.Epoch = 2 }},
		{"an older topology", func(tp *kmsg.StreamsGroupHeartbeatRequestTopology) { tp.Epoch = 0 }},
	} {
		p.send(t, c.name, 1, func(*side) *kmsg.StreamsGroupHeartbeatRequest {
			tp := wordCount(g, "in")
			c.edit(tp)
			return streamsJoin(g, "m3", "r", tp)
		})
	}
	p.beat(t, "m1 sees m3", g, "m1", owning(tasks("0:0", "1:0"), tasks()))
	p.beat(t, "m2 sees m3", g, "m2", owning(tasks("0:1", "1:1"), tasks()))
	p.beat(t, "the older topology goes on", g, "m3", nil)
	p.beat(t, "m3 leaves", g, "m3", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	p.beat(t, "m1 is alone with m2", g, "m1", owning(tasks("0:0", "1:0"), tasks()))
	p.beat(t, "m2 is alone with m1", g, "m2", owning(tasks("0:1", "1:1"), tasks()))
	p.beat(t, "m2 wants all to stop", g, "m2", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.ShutdownApplication = true })
	p.beat(t, "m1 hears of it", g, "m1", nil)
	p.beat(t, "m2 leaves", g, "m2", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	p.beat(t, "m1 gets the rest", g, "m1", owning(tasks("0:0", "1:0"), tasks()))
	p.describe(t, "one left", g)
	p.beat(t, "m1 leaves", g, "m1", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	p.describe(t, "nobody left", g)
	p.list(t, "empty", "Empty")
	p.join(t, g, "m4", "p", "in", nil)
	p.beat(t, "m4 goes on", g, "m4", nil)
	p.describe(t, "begun anew", g)
}

// streamsStatic is about members with an instance id.
func streamsStatic(t *testing.T, p threads) {
	const g = "static"
	i1 := "i1"
	static := func(r *kmsg.StreamsGroupHeartbeatRequest) { r.InstanceID = &i1 }
	p.join(t, g, "s1", "p", "in", static)
	p.ready(t, "gets tasks", g, "s1", static)
	p.join(t, g, "s2", "p", "in", static)
	p.describe(t, "static", g)
	p.beat(t, "another with its instance", g, "s2", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.MemberEpoch, r.InstanceID = 5, &i1 })
	p.beat(t, "unknown instance", g, "s1", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.InstanceID = kmsg.StringPtr("i9") })
	p.beat(t, "leaves with an unknown instance", g, "s1", func(r *kmsg.StreamsGroupHeartbeatRequest) {
		r.InstanceID, r.MemberEpoch = kmsg.StringPtr("i9"), -2
	})
	p.beat(t, "another leaves with it", g, "s2", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.InstanceID, r.MemberEpoch = &i1, -1 })
	p.beat(t, "leaves for a while", g, "s1", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.InstanceID, r.MemberEpoch = &i1, -2 })
	p.describe(t, "away", g)
	p.join(t, g, "s2", "p", "in", static)
	p.describe(t, "back as another", g)
	p.beat(t, "goes on", g, "s2", func(r *kmsg.StreamsGroupHeartbeatRequest) {
		static(r)
		owning(tasks("0:0,1", "1:0,1"), tasks())(r)
	})
	p.describe(t, "back", g)
	p.beat(t, "leaves for a while again", g, "s2", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.InstanceID, r.MemberEpoch = &i1, -2 })
	p.join(t, g, "s3", "p9", "in", static)
	p.describe(t, "back in another process", g)
	p.beat(t, "leaves", g, "s3", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.InstanceID, r.MemberEpoch = &i1, -1 })
	p.describe(t, "gone", g)
}

// streamsSettings are groups with settings of their own.
func streamsSettings(t *testing.T, p threads) {
	const g = "copies"
	p.configure(t, g, map[string]string{"streams.num.standby.replicas": "1", "streams.rack.aware.assignment.tags": "zone,disk"})
	p.join(t, g, "m1", "p", "in", func(r *kmsg.StreamsGroupHeartbeatRequest) {
		r.ClientTags = []kmsg.StreamsGroupHeartbeatRequestClientTag{{Key: "zone", Value: "z1"}}
	})
	p.ready(t, "alone", g, "m1", nil)
	p.join(t, g, "m2", "q", "in", nil)
	p.beat(t, "m1 gives up", g, "m1", owning(tasks("0:0,1", "1:0,1"), tasks()))
	p.beat(t, "m1 gave up", g, "m1", owning(tasks("0:0", "1:0"), tasks()))
	p.beat(t, "m2 takes", g, "m2", owning(tasks(), tasks()))
	p.describe(t, "with copies", g)
	p.beat(t, "m2 has", g, "m2", owning(tasks("0:1", "1:1"), tasks("1:0")))
	p.send(t, "m2 in version 0", 0, func(s *side) *kmsg.StreamsGroupHeartbeatRequest { return streamsBeat(g, "m2", s.epoch(g, "m2")) })
	p.configure(t, g, map[string]string{"streams.num.standby.replicas": "0", "streams.heartbeat.interval.ms": "700", "streams.task.offset.interval.ms": "900"})
	p.beat(t, "no copies any more", g, "m2", owning(tasks("0:1", "1:1"), tasks("1:0")))
	p.beat(t, "none left", g, "m2", owning(tasks("0:1", "1:1"), tasks()))
	p.beat(t, "nor here", g, "m1", owning(tasks("0:0", "1:0"), tasks("1:1")))
	p.describe(t, "without copies", g)
	// A copy becomes the task.
	p.configure(t, g, map[string]string{"streams.num.standby.replicas": "1"})
	p.beat(t, "m1 copies", g, "m1", owning(tasks("0:0", "1:0"), tasks()))
	p.beat(t, "m2 copies", g, "m2", owning(tasks("0:1", "1:1"), tasks()))
	p.beat(t, "m1 leaves", g, "m1", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	p.beat(t, "m2 takes over", g, "m2", owning(tasks("0:1", "1:1"), tasks("1:0")))
	p.beat(t, "m2 has it all", g, "m2", owning(tasks("0:0,1", "1:0,1"), tasks()))
	p.describe(t, "taken over", g)
	// Delays.
	const d = "delayed"
	p.configure(t, d, map[string]string{"streams.initial.rebalance.delay.ms": "600000"})
	p.join(t, d, "m1", "p", "in", nil)
	p.ready(t, "delayed", d, "m1", nil)
	p.join(t, d, "m2", "q", "in", nil)
	p.describe(t, "delayed", d)
	p.list(t, "assigning", "Assigning")
}

// streamsCommit commits 1 for partition 1 of a topic.
func streamsCommit(t *testing.T, s *side, v int16, group, member string, epoch int32, topic string) *kmsg.OffsetCommitRequest {
	r := commit(group, member, epoch, topic, 1, 1)
	if v >= 10 {
		r.Topics[0].TopicID = s.topicID(t, topic)
	}
	return r
}

// streamsOffsets commits, fetches and deletes offsets of a group that reads.
func streamsOffsets(t *testing.T, p threads) {
	const g = "copies" // m2 has it all
	for _, c := range []struct {
		name, member string
		ahead        int32
		v            int16
		topic        string
	}{
		{"a member", "m2", 0, 9, "in"}, {"a member by id", "m2", 0, 10, "in"}, {"an old version", "m2", 0, 8, "in"},
		{"nobody", "nobody", 0, 9, "in"}, {"ahead", "m2", 1, 9, "in"}, {"behind, of a task that it has had long", "m2", -1, 9, "in"},
		{"far behind", "m2", -100, 9, "in"}, {"behind, of another topic", "m2", -1, 9, "other"}, {"no member", "", -100, 9, "in"},
	} {
		p.at(t, "commit of "+c.name, c.v, func(s *side) kmsg.Request {
			r := streamsCommit(t, s, c.v, g, c.member, s.epoch(g, "m2")+c.ahead, c.topic)
			if c.ahead == -100 {
				r.Generation = 1
				if c.member == "" {
					r.Generation = -1
				}
			}
			return r
		}, nil)
	}
	for _, epoch := range []int32{0, 1, -1} {
		p.at(t, fmt.Sprintf("fetch %+d", epoch), 9, func(s *side) kmsg.Request {
			r := kmsg.NewPtrOffsetFetchRequest()
			rg := kmsg.NewOffsetFetchRequestGroup()
			rg.Group, rg.MemberID, rg.MemberEpoch, rg.Topics = g, str("m2"), s.epoch(g, "m2")+epoch, nil
			r.Groups = append(r.Groups, rg)
			return r
		}, nil)
	}
	p.once(t, "delete an offset in use", func(*side) kmsg.Request {
		r := kmsg.NewPtrOffsetDeleteRequest()
		r.Group = g
		r.Topics = []kmsg.OffsetDeleteRequestTopic{{Topic: "in", Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 1}}}}
		return r
	}, nil)
	p.once(t, "delete groups", func(*side) kmsg.Request {
		r := kmsg.NewPtrDeleteGroupsRequest()
		r.Groups = []string{g, "topology-0"}
		return r
	}, nil)
	p.describe(t, "deleted", "topology-0")
}

// streamsConversions are groups that change their kind.
func streamsConversions(t *testing.T, p threads) {
	const g = "converted"
	p.at(t, "offsets without a member", 9, func(s *side) kmsg.Request { return streamsCommit(t, s, 9, g, "", -1, "in") }, nil)
	p.join(t, g, "m1", "p", "in", nil)
	p.describe(t, "from a simple group", g)
	p.at(t, "classic member of a streams group", 9, func(*side) kmsg.Request { return join(g, "") }, nil)
	p.at(t, "sync", 5, func(*side) kmsg.Request { return syncGroup(g, "m1", 1) }, nil)
	p.at(t, "heartbeat", 4, func(*side) kmsg.Request {
		r := kmsg.NewPtrHeartbeatRequest()
		r.Group, r.MemberID, r.Generation = g, "m1", 1
		return r
	}, nil)
	p.at(t, "leave", 5, func(*side) kmsg.Request {
		r := kmsg.NewPtrLeaveGroupRequest()
		r.Group = g
		r.Members = []kmsg.LeaveGroupRequestMember{{MemberID: "m1"}}
		return r
	}, nil)
	consumer := func() kmsg.Request {
		r := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		r.Group, r.MemberID, r.RebalanceTimeoutMillis, r.SubscribedTopicNames = g, "c", 1000, []string{"in"}
		r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		return r
	}
	p.at(t, "consumer member of a streams group", 1, func(*side) kmsg.Request { return consumer() }, nil)
	p.each(t, "describe a streams group as others", func(_ *side, v int16) kmsg.Request {
		r := kmsg.NewPtrConsumerGroupDescribeRequest()
		r.Groups = []string{g}
		return r
	})
	p.each(t, "describe a streams group as classic", func(_ *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeGroupsRequest()
		r.Groups = []string{g}
		return r
	})
	p.beat(t, "leaves", g, "m1", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	p.at(t, "consumer member of an empty streams group", 1, func(*side) kmsg.Request { return consumer() }, nil)
	p.at(t, "classic member of an empty streams group", 3, func(*side) kmsg.Request { return join(g, "") }, nil)
	p.join(t, g, "m1", "p", "in", nil)
	p.describe(t, "became classic", g)
	p.at(t, "list", 5, func(*side) kmsg.Request {
		r := kmsg.NewPtrListGroupsRequest()
		r.TypesFilter = []string{"classic"}
		return r
	}, nil)
}

// streamsGolden is a file to write Kafka's records of streams groups to: internal/coordinator/group/testdata/streams.hex has them.
var streamsGolden = flag.String("streams.golden", "", "write Kafka's records of streams groups to this file, key and value in hex")

// streamsShow has TestStreamsGroups print what Kafka's tool says.
var streamsShow = flag.Bool("streams.show", false, "print what Kafka's tool says of Kafka's streams groups")

// streamsRecords compares what both have stored of streams groups, record by record: for each key the values in their order.
func streamsRecords(t *testing.T, p threads) {
	var mu sync.Mutex
	stored := map[*side]string{}
	p.both(func(s *side) {
		ends := map[int32]int64{}
		for i := range s.partitionsOf(t, "__consumer_offsets") {
			if end := s.offset(t, "__consumer_offsets", int32(i), -1); end > 0 {
				ends[int32(i)] = end
			}
		}
		c := franz(t, s.addr, kgo.ConsumeTopics("__consumer_offsets"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		ctx, cancel := context.WithTimeout(t.Context(), streamsPatience)
		defer cancel()
		byKey := map[string][]string{}
		var golden strings.Builder
		for len(ends) > 0 {
			fetches := c.PollFetches(ctx)
			if ctx.Err() != nil {
				t.Errorf("%s: the end of __consumer_offsets can't be reached: %v", s.name, ends)
				return
			}
			fetches.EachRecord(func(r *kgo.Record) {
				if r.Offset+1 >= ends[r.Partition] {
					delete(ends, r.Partition)
				}
				rec, known, err := group.Codec{}.Decode(r.Key, r.Value)
				if err != nil || !known {
					t.Errorf("%s: record %x: %v", s.name, r.Key, err)
					return
				}
				if !strings.HasPrefix(rec.Key.MessageName(), "StreamsGroup") {
					return
				}
				fmt.Fprintf(&golden, "%x %x\n", r.Key, r.Value)
				value := "removed"
				switch v := rec.Value.(type) {
				case nil:
				case *message.StreamsGroupMetadataValue:
					v.MetadataHash = min(v.MetadataHash&1, 0) // topics have other ids
				case *message.StreamsGroupTargetAssignmentMetadataValue:
					v.AssignmentTimestamp = min(v.AssignmentTimestamp, 1)
				}
				if rec.Value != nil {
					value = string(rec.Value.AppendJSON(nil, rec.Version))
				}
				key := rec.Key.MessageName() + string(rec.Key.AppendJSON(nil, 0))
				byKey[key] = append(byKey[key], value)
			})
		}
		if *streamsGolden != "" && s == p.kafka {
			if err := os.WriteFile(*streamsGolden, []byte(golden.String()), 0o644); err != nil {
				t.Error(err)
			}
		}
		var lines []string
		for key, values := range byKey {
			if strings.Contains(key, "uncreatable") {
				continue // has been asked as often as it took
			}
			lines = append(lines, key+"\n    "+strings.Join(values, "\n    "))
		}
		slices.Sort(lines)
		mu.Lock()
		stored[s] = strings.Join(lines, "\n") + "\n"
		mu.Unlock()
	})
	if g, k := stored[p.gregor], stored[p.kafka]; g != k {
		t.Error(diff(g, k))
	}
	t.Logf("%d lines about streams groups", strings.Count(stored[p.kafka], "\n"))
}

const streamsToolScript = `
~groups --bootstrap-server BOOTSTRAP --list
~streams-groups --bootstrap-server BOOTSTRAP --list
~streams-groups --bootstrap-server BOOTSTRAP --list --state
~streams-groups --bootstrap-server BOOTSTRAP --list --state stable
~streams-groups --bootstrap-server BOOTSTRAP --list --state reconciling,empty
streams-groups --bootstrap-server BOOTSTRAP --describe --group copies
streams-groups --bootstrap-server BOOTSTRAP --describe --group copies --verbose
streams-groups --bootstrap-server BOOTSTRAP --describe --group copies --state
streams-groups --bootstrap-server BOOTSTRAP --describe --group copies --state --verbose
streams-groups --bootstrap-server BOOTSTRAP --describe --group copies --members
streams-groups --bootstrap-server BOOTSTRAP --describe --group copies --members --verbose
streams-groups --bootstrap-server BOOTSTRAP --describe --group copies --offsets
~streams-groups --bootstrap-server BOOTSTRAP --describe --all-groups --state
streams-groups --bootstrap-server BOOTSTRAP --describe --group nope
streams-groups --bootstrap-server BOOTSTRAP --delete --group copies
streams-groups --bootstrap-server BOOTSTRAP --reset-offsets --group copies --to-earliest --all-input-topics --execute
streams-groups --bootstrap-server BOOTSTRAP --reset-offsets --group life --input-topic in --to-earliest --dry-run
LEAVE
streams-groups --bootstrap-server BOOTSTRAP --describe --group copies
streams-groups --bootstrap-server BOOTSTRAP --describe --group copies --state --verbose
streams-groups --bootstrap-server BOOTSTRAP --reset-offsets --group copies --all-input-topics --to-earliest --dry-run
streams-groups --bootstrap-server BOOTSTRAP --reset-offsets --group copies --input-topic in --to-offset 0 --execute
streams-groups --bootstrap-server BOOTSTRAP --reset-offsets --group copies --input-topic in --shift-by 1 --execute --export
streams-groups --bootstrap-server BOOTSTRAP --delete-offsets --group copies --input-topic in
streams-groups --bootstrap-server BOOTSTRAP --delete-offsets --group copies --input-topic nope
streams-groups --bootstrap-server BOOTSTRAP --delete --group copies --delete-all-internal-topics
~streams-groups --bootstrap-server BOOTSTRAP --delete --group static --group topology-1
~streams-groups --bootstrap-server BOOTSTRAP --delete --all-groups
~streams-groups --bootstrap-server BOOTSTRAP --list
~topics --bootstrap-server BOOTSTRAP --describe
`

// streamsTools runs Kafka's tool for streams groups against both.
func streamsTools(t *testing.T, p threads) {
	boxes := map[*side]*kafka.Toolbox{p.gregor: kafka.NewToolbox(t), p.kafka: kafka.NewToolbox(t)}
	for line := range strings.Lines(strings.TrimSpace(streamsToolScript)) {
		line = strings.TrimSpace(line)
		if line == "LEAVE" {
			p.beat(t, "m2 leaves", "copies", "m2", func(r *kmsg.StreamsGroupHeartbeatRequest) { r.MemberEpoch = -1 })
			continue
		}
		command, sorted := strings.CutPrefix(line, "~")
		words := strings.Fields(command)
		texts := map[*side]string{}
		var mu sync.Mutex
		p.both(func(s *side) {
			args := make([]string, len(words)-1)
			for i, w := range words[1:] {
				args[i] = strings.ReplaceAll(w, "BOOTSTRAP", s.addr)
			}
			code, stdout, stderr, err := boxes[s].Run("", words[0], args...)
			if err != nil {
				t.Errorf("%s: %s: %v", s.name, line, err)
				return
			}
			text := fmt.Sprintf("exit code %d\n%s\n%s\n", code, s.tidy(stdout, sorted, false), s.tidy(stderr, sorted, false))
			mu.Lock()
			texts[s] = text
			mu.Unlock()
		})
		if texts[p.gregor] != texts[p.kafka] {
			t.Errorf("%s\n%s", line, diff(texts[p.gregor], texts[p.kafka]))
		}
		if *streamsShow {
			t.Logf("%s\n%s", line, texts[p.kafka])
		}
	}
}
