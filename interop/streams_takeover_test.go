package interop

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/kafka"
	"gregor/interop/node"
)

// patient are sessions that last as long as a restart may take.
var patient = append(slices.Clone(livelyStreams), "group.streams.max.session.timeout.ms=3600000", "group.streams.session.timeout.ms=3600000")

// streamsMember is a member that the test plays towards one node.
type streamsMember struct {
	s             *side
	group, id     string
	epoch         int32
	active, spare []kmsg.TaskIDs
}

// send sends a heartbeat until it is answered by a coordinator, and takes the answer in.
func (m *streamsMember) send(t *testing.T, r *kmsg.StreamsGroupHeartbeatRequest) *kmsg.StreamsGroupHeartbeatResponse {
	t.Helper()
	for until := time.Now().Add(streamsPatience); ; time.Sleep(50 * time.Millisecond) {
		r.Version = 1
		resp, err := m.s.do(r)
		if err == nil {
			h := resp.(*kmsg.StreamsGroupHeartbeatResponse)
			switch h.ErrorCode {
			case 0:
				m.epoch = h.MemberEpoch
				if h.ActiveTasks != nil {
					m.active, m.spare = h.ActiveTasks, h.StandbyTasks
				}
				return h
			case 14, 15, 16: // the coordinator isn't there yet
			default:
				t.Fatalf("%s: heartbeat of %s at epoch %d: error %d, %v", m.s.name, m.id, r.MemberEpoch, h.ErrorCode, *h.ErrorMessage)
			}
		}
		if time.Now().After(until) {
			t.Fatalf("%s: no coordinator answers: %v, %v", m.s.name, resp, err)
		}
	}
}

// beat says what the member has.
func (m *streamsMember) beat(t *testing.T) *kmsg.StreamsGroupHeartbeatResponse {
	t.Helper()
	r := streamsBeat(m.group, m.id, m.epoch)
	r.ActiveTasks, r.StandbyTasks, r.WarmupTasks = m.active, m.spare, tasks()
	return m.send(t, r)
}

// streamsGroup is a group as it is described.
func (s *side) streamsGroup(t *testing.T, group string) (text, state string) {
	t.Helper()
	r := kmsg.NewPtrStreamsGroupDescribeRequest()
	r.Version, r.Groups = 1, []string{group}
	resp := s.must(t, r).(*kmsg.StreamsGroupDescribeResponse)
	state = resp.Groups[0].State
	// How many partitions internal topics have is known again when something has been written after a start.
	for i := range resp.Groups[0].Topology.Subtopologies {
		sub := &resp.Groups[0].Topology.Subtopologies[i]
		for _, topics := range [][]kmsg.TopicInfo{sub.StateChangelogTopics, sub.RepartitionSourceTopics} {
			for j := range topics {
				topics[j].NumPartitions = 0
			}
		}
	}
	p := &pair{}
	return p.render(s, resp), state
}

// A streams group is taken over, by Kafka from gregor and by gregor from Kafka: the same epochs, topology, tasks and offsets, and
// members that notice nothing. Then one leaves and the other gets its tasks.
func TestStreamsTakeover(t *testing.T) {
	takeover := func(t *testing.T, s *side, change func()) {
		const g = "moved"
		create := kmsg.NewPtrCreateTopicsRequest()
		create.Version, create.TimeoutMillis = 7, 60000
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "in", 2, 1
		create.Topics = append(create.Topics, topic)
		s.must(t, create)
		s.awaitLeaders(t, "in")
		settings := kmsg.NewPtrIncrementalAlterConfigsRequest()
		settings.Version = 1
		res := kmsg.NewIncrementalAlterConfigsRequestResource()
		res.ResourceType, res.ResourceName = 32, g
		res.Configs = []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "streams.num.standby.replicas", Value: kmsg.StringPtr("1")}}
		settings.Resources = append(settings.Resources, res)
		s.must(t, settings)
		s.awaitGroups(t)

		m1, m2 := &streamsMember{s: s, group: g, id: "m1"}, &streamsMember{s: s, group: g, id: "m2"}
		i2 := "i2"
		m1.send(t, streamsJoin(g, "m1", "p", wordCount(g, "in")))
		r := streamsJoin(g, "m2", "q", wordCount(g, "in"))
		r.InstanceID, r.UserEndpoint = &i2, &kmsg.StreamsGroupHeartbeatRequestUserEndpoint{Host: "q.example", Port: 99}
		r.ClientTags = []kmsg.StreamsGroupHeartbeatRequestClientTag{{Key: "zone", Value: "a"}}
		m2.send(t, r)
		settle := func() {
			t.Helper()
			streamsEventually(t, func() string {
				m1.beat(t)
				m2.beat(t)
				if text, state := s.streamsGroup(t, g); state != "Stable" {
					return text
				}
				return ""
			})
		}
		settle()
		if len(m1.active) == 0 || len(m2.active) == 0 || len(m1.spare)+len(m2.spare) == 0 {
			t.Fatalf("%s: the tasks are spread as %v and %v, the copies as %v and %v", s.name, m1.active, m2.active, m1.spare, m2.spare)
		}
		offset := func() int64 {
			t.Helper()
			r := kmsg.NewPtrOffsetFetchRequest()
			r.Version = 9
			rg := kmsg.NewOffsetFetchRequestGroup()
			rg.Group, rg.MemberID, rg.MemberEpoch, rg.Topics = g, &m1.id, m1.epoch, nil
			r.Groups = append(r.Groups, rg)
			got := s.must(t, r).(*kmsg.OffsetFetchResponse).Groups[0]
			if got.ErrorCode != 0 || len(got.Topics) != 1 {
				t.Fatalf("%s: offsets: %+v", s.name, got)
			}
			return got.Topics[0].Partitions[0].Offset
		}
		c := commit(g, "m1", m1.epoch, "in", 1, 17)
		c.Version = 9
		if code := s.must(t, c).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode; code != 0 {
			t.Fatalf("%s: commit: error %d", s.name, code)
		}
		before, _ := s.streamsGroup(t, g)
		epoch := m1.epoch

		change()
		for _, m := range []*streamsMember{m1, m2} {
			if resp := m.beat(t); resp.MemberEpoch != epoch || resp.ActiveTasks != nil || len(resp.Status) != 0 {
				t.Errorf("%s is told %+v", m.id, resp)
			}
		}
		after, _ := s.streamsGroup(t, g)
		if before != after {
			t.Errorf("the group was taken over as another:\n%s", diff(before, after))
		}
		if o := offset(); o != 17 {
			t.Errorf("the committed offset is %d", o)
		}
		leave := streamsBeat(g, "m2", -1)
		leave.InstanceID = &i2
		m2.send(t, leave)
		streamsEventually(t, func() string {
			m1.beat(t)
			text, state := s.streamsGroup(t, g)
			if state != "Stable" || m1.epoch != epoch+1 {
				return text
			}
			return ""
		})
		if len(m1.active) != 2 || len(m1.active[0].Partitions) != 2 || len(m1.active[1].Partitions) != 2 {
			t.Errorf("the member that is left has %v", m1.active)
		}
	}
	newSide := func(addr string) *side {
		return &side{name: "node", addr: addr, clientID: "probe", ids: map[string]string{}, kept: map[string]any{}}
	}
	t.Run("by Kafka", func(t *testing.T) {
		n, dir := startGregor(t, patient...)
		takeover(t, newSide(n.Addr), func() {
			n.Stop(t)
			kafka.Start(t, dir, n.Addr)
		})
	})
	t.Run("by gregor", func(t *testing.T) {
		n, dir := startKafka(t, patient...)
		takeover(t, newSide(n.Addr), func() {
			n.Stop(t)
			node.Start(t, dir, n.Addr)
		})
	})
}
