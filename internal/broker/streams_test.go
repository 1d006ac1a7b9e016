package broker

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/await"
	"gregor/internal/message"
)

// streamsJoin is a first heartbeat of a group that copies a topic over a repartition topic.
func streamsJoin(source string) *kmsg.StreamsGroupHeartbeatRequest {
	q := kmsg.NewPtrStreamsGroupHeartbeatRequest()
	q.Version, q.Group, q.MemberID, q.ProcessID, q.RebalanceTimeoutMillis = 1, "g", "m", kmsg.StringPtr("p"), 10_000
	q.ActiveTasks, q.StandbyTasks, q.WarmupTasks = []kmsg.TaskIDs{}, []kmsg.TaskIDs{}, []kmsg.TaskIDs{}
	q.Topology = &kmsg.StreamsGroupHeartbeatRequestTopology{Subtopologies: []kmsg.StreamsGroupHeartbeatRequestTopologySubtopology{
		{SubtopologyID: "0", SourceTopics: []string{source}, RepartitionSinkTopics: []string{"g-r"}},
		{SubtopologyID: "1", RepartitionSourceTopics: []kmsg.TopicInfo{{Topic: "g-r"}}},
	}}
	return q
}

// Without the feature, or where the protocol is switched off, there are no streams groups.
func TestStreamsGroupsNeedTheFeature(t *testing.T) {
	for _, c := range []struct {
		name  string
		props map[string]string
		level int16
	}{
		{"no feature", nil, 0},
		{"protocol off", map[string]string{"group.coordinator.rebalance.protocols": "classic,consumer"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.props)
			if c.level > 0 {
				w.publish(&message.FeatureLevelRecord{Name: "streams.version", FeatureLevel: c.level})
			}
			cl := w.client()
			if r := call[*kmsg.StreamsGroupHeartbeatResponse](cl, streamsJoin("in")); r.ErrorCode != api.ErrUnsupportedVersion.Code || r.ErrorMessage != nil {
				t.Errorf("heartbeat: %+v", r)
			}
			d := kmsg.NewPtrStreamsGroupDescribeRequest()
			d.Version, d.Groups = 1, []string{"g", "h"}
			if r := call[*kmsg.StreamsGroupDescribeResponse](cl, d); len(r.Groups) != 2 || r.Groups[1].ErrorCode != api.ErrUnsupportedVersion.Code {
				t.Errorf("describe: %+v", r.Groups)
			}
			u := kmsg.NewPtrStreamsGroupTopologyDescriptionUpdateRequest()
			if r := call[*kmsg.StreamsGroupTopologyDescriptionUpdateResponse](cl, u); r.ErrorCode != api.ErrUnsupportedVersion.Code {
				t.Errorf("description: %+v", r)
			}
		})
	}
}

// A member whose group lacks internal topics hears why they can't be created, and gets its tasks when they are there.
func TestStreamsInternalTopics(t *testing.T) {
	w := newWorld(t, map[string]string{"group.streams.initial.rebalance.delay.ms": "0", "group.streams.assignment.interval.ms": "0"})
	w.publish(&message.FeatureLevelRecord{Name: "streams.version", FeatureLevel: 1})
	w.topic(offsetsTopic, 1)
	w.topic("in", 2)
	cl := w.client()
	r := call[*kmsg.StreamsGroupHeartbeatResponse](cl, streamsJoin("in"))
	if r.ErrorCode != 0 || len(r.Status) != 1 || r.Status[0].StatusDetail != "Internal topics are missing: g-r" {
		t.Fatalf("first heartbeat: %+v", r)
	}
	beat := func() *kmsg.StreamsGroupHeartbeatResponse {
		q := kmsg.NewPtrStreamsGroupHeartbeatRequest()
		q.Version, q.Group, q.MemberID, q.MemberEpoch = 1, "g", "m", r.MemberEpoch
		r = call[*kmsg.StreamsGroupHeartbeatResponse](cl, q)
		return r
	}
	await.True(t, "the member hears why", func() bool {
		// The test's controller creates nothing.
		return strings.HasSuffix(beat().Status[0].StatusDetail, "; Creation failed: g-r (The request timed out.).")
	})
	w.topic("g-r", 2)
	await.True(t, "the member has tasks", func() bool { return len(beat().ActiveTasks) == 2 })
	for source, want := range map[string]string{
		offsetsTopic: "Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is prohibited.",
		"a b":        "Topic names a b are not valid topic names.",
	} {
		if r := call[*kmsg.StreamsGroupHeartbeatResponse](cl, streamsJoin(source)); r.ErrorCode != api.ErrStreamsInvalidTopology.Code || *r.ErrorMessage != want {
			t.Errorf("a topology that reads %q: %+v", source, r)
		}
	}
	d := kmsg.NewPtrStreamsGroupDescribeRequest()
	d.Version, d.Groups, d.IncludeAuthorizedOperations, d.IncludeTopologyDescription = 1, []string{"g"}, true, true
	g := call[*kmsg.StreamsGroupDescribeResponse](cl, d).Groups[0]
	if g.ErrorCode != 0 || g.State != "Stable" || len(g.Members) != 1 || *g.AssignorName != "sticky" || g.TopologyDescriptionStatus != 1 || g.AuthorizedOperations <= 0 {
		t.Errorf("describe: %+v", g)
	}
}
