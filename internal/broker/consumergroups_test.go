package broker

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/await"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

// TestConsumerGroupAnswers holds what this broker answers about consumer groups (KIP-848) against what Kafka 4.4.0 answered to the
// same requests. For -against the Kafka node also needs group.consumer.assignment.interval.ms=0.
func TestConsumerGroupAnswers(t *testing.T) {
	const page = "testdata/consumergroups.txt"
	if *against != "" {
		conn, err := net.Dial("tcp", *against)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		g := &consumerTalk{groupTalk: groupTalk{client: client{tb: t, conn: conn}}, names: map[[16]byte]string{}}
		// Kafka tells its coordinator of topics after those who answer Metadata, and nothing shows when it has.
		g.run(func(name string) [16]byte {
			id := g.createOverTheWire(name)
			time.Sleep(2 * time.Second)
			return id
		}, func(name string) {
			g.deleteOverTheWire(name)
			time.Sleep(2 * time.Second)
		})
		if err := os.WriteFile(page, []byte(g.out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, map[string]string{"group.initial.rebalance.delay.ms": "100", "group.consumer.assignment.interval.ms": "0"})
	w.publish(&message.FeatureLevelRecord{Name: "group.version", FeatureLevel: 1})
	g := &consumerTalk{groupTalk: groupTalk{client: *w.client()}, names: map[[16]byte]string{}}
	ids := map[string]uuid.UUID{}
	w.topic(offsetsTopic, 1)
	g.run(func(name string) [16]byte {
		ids[name] = w.topic(name, 3)
		return ids[name]
	}, func(name string) { w.removeTopic(ids[name]) })
	gl, wl := strings.Split(g.out.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gl), len(wl)) {
		var a, b string
		if i < len(gl) {
			a = gl[i]
		}
		if i < len(wl) {
			b = wl[i]
		}
		if a != b {
			t.Errorf("line %d\n got %s\nwant %s", i+1, a, b)
		}
	}
}

// Without the feature there are no consumer groups.
func TestConsumerGroupsNeedTheFeature(t *testing.T) {
	w := newWorld(t, nil)
	c := w.client()
	h := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	h.Version, h.Group, h.MemberID = 1, "g", "m"
	if r := call[*kmsg.ConsumerGroupHeartbeatResponse](c, h); r.ErrorCode != 35 {
		t.Errorf("heartbeat: error %d", r.ErrorCode)
	}
	d := kmsg.NewPtrConsumerGroupDescribeRequest()
	d.Version, d.Groups = 1, []string{"g"}
	if r := call[*kmsg.ConsumerGroupDescribeResponse](c, d); len(r.Groups) != 1 || r.Groups[0].ErrorCode != 35 {
		t.Errorf("describe: %+v", r.Groups)
	}
}

// consumerTalk is a conversation about consumer groups.
type consumerTalk struct {
	groupTalk
	names map[[16]byte]string
}

func (g *consumerTalk) partitions(id [16]byte, ps []int32) string {
	ps = slices.Clone(ps)
	slices.Sort(ps)
	return g.names[id] + fmt.Sprint(ps)
}

// beat sends a heartbeat of a member and writes down the answer.
func (g *consumerTalk) beat(version int16, group, member string, epoch int32, change func(*kmsg.ConsumerGroupHeartbeatRequest)) *kmsg.ConsumerGroupHeartbeatResponse {
	q := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	q.Version, q.Group, q.MemberID, q.MemberEpoch, q.RebalanceTimeoutMillis = version, group, member, epoch, -1
	if epoch == 0 {
		q.RebalanceTimeoutMillis, q.Topics = 30_000, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	}
	if change != nil {
		change(q)
	}
	r := call[*kmsg.ConsumerGroupHeartbeatResponse](&g.client, q)
	has := "-"
	if r.Assignment != nil {
		var s []string
		for _, t := range r.Assignment.Topics {
			s = append(s, g.partitions(t.TopicID, t.Partitions))
		}
		slices.Sort(s)
		has = fmt.Sprint(s)
	}
	id := text(r.MemberID)
	if member == "" && r.MemberID != nil {
		id = fmt.Sprintf("of %d characters", len(*r.MemberID))
	}
	g.exactly("heartbeat v%d %q %q epoch=%d: error=%d message=%s member=%s epoch=%d interval=%d has %s", version, group, member, epoch,
		r.ErrorCode, text(r.ErrorMessage), id, r.MemberEpoch, r.HeartbeatIntervalMillis, has)
	return r
}

// exactly writes a line down with the sentences in it, which for these requests are part of what clients see.
func (g *consumerTalk) exactly(format string, args ...any) {
	g.out.WriteString(randomPart.ReplaceAllString(fmt.Sprintf(format, args...), "#") + "\n")
}

func reads(topics ...string) func(*kmsg.ConsumerGroupHeartbeatRequest) {
	return func(q *kmsg.ConsumerGroupHeartbeatRequest) { q.SubscribedTopicNames = append([]string{}, topics...) }
}

func matches(regex string) func(*kmsg.ConsumerGroupHeartbeatRequest) {
	return func(q *kmsg.ConsumerGroupHeartbeatRequest) { q.SubscribedTopicRegex = &regex }
}

func also(changes ...func(*kmsg.ConsumerGroupHeartbeatRequest)) func(*kmsg.ConsumerGroupHeartbeatRequest) {
	return func(q *kmsg.ConsumerGroupHeartbeatRequest) {
		for _, c := range changes {
			c(q)
		}
	}
}

func instance(id string) func(*kmsg.ConsumerGroupHeartbeatRequest) {
	return func(q *kmsg.ConsumerGroupHeartbeatRequest) { q.InstanceID = &id }
}

func assignor(name string) func(*kmsg.ConsumerGroupHeartbeatRequest) {
	return func(q *kmsg.ConsumerGroupHeartbeatRequest) { q.ServerAssignor = &name }
}

// owns says what the answer r told the member to have, or nothing if that is nil.
func owns(r *kmsg.ConsumerGroupHeartbeatResponse) func(*kmsg.ConsumerGroupHeartbeatRequest) {
	return func(q *kmsg.ConsumerGroupHeartbeatRequest) {
		q.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		if r != nil && r.Assignment != nil {
			for _, t := range r.Assignment.Topics {
				q.Topics = append(q.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: t.TopicID, Partitions: t.Partitions})
			}
		}
	}
}

func (g *consumerTalk) describe(version int16, groups ...string) {
	q := kmsg.NewPtrConsumerGroupDescribeRequest()
	q.Version, q.Groups, q.IncludeAuthorizedOperations = version, groups, true
	r := call[*kmsg.ConsumerGroupDescribeResponse](&g.client, q)
	slices.SortFunc(r.Groups, func(a, b kmsg.ConsumerGroupDescribeResponseGroup) int { return strings.Compare(a.Group, b.Group) })
	for _, d := range r.Groups {
		g.exactly("describe v%d %q: error=%d message=%s state=%q epoch=%d/%d assignor=%q operations=%d", version, d.Group, d.ErrorCode, text(d.ErrorMessage),
			d.State, d.Epoch, d.AssignmentEpoch, d.AssignorName, d.AuthorizedOperations)
		slices.SortFunc(d.Members, func(a, b kmsg.ConsumerGroupDescribeResponseGroupMember) int {
			return strings.Compare(a.MemberID, b.MemberID)
		})
		for _, m := range d.Members {
			all := func(a kmsg.Assignment) string {
				var s []string
				for _, t := range a.TopicPartitions {
					s = append(s, fmt.Sprintf("%s=%s", t.Topic, g.partitions(t.TopicID, t.Partitions)))
				}
				slices.Sort(s)
				return fmt.Sprint(s)
			}
			slices.Sort(m.SubscribedTopics)
			g.exactly("  %q instance=%s rack=%s epoch=%d client=%q host=%q reads=%q regex=%s has %s target %s type=%d", m.MemberID, text(m.InstanceID),
				text(m.RackID), m.MemberEpoch, m.ClientID, m.ClientHost, m.SubscribedTopics, text(m.SubscribedTopicRegex), all(m.Assignment),
				all(m.TargetAssignment), m.MemberType)
		}
	}
}

func (g *consumerTalk) list(types ...string) {
	q := kmsg.NewPtrListGroupsRequest()
	q.Version, q.TypesFilter = 5, types
	r := call[*kmsg.ListGroupsResponse](&g.client, q)
	var s []string
	for _, l := range r.Groups {
		s = append(s, fmt.Sprintf("%q %s %s %s", l.Group, l.ProtocolType, l.GroupState, l.GroupType))
	}
	slices.Sort(s)
	g.exactly("list %q: error=%d %s", types, r.ErrorCode, strings.Join(s, ", "))
}

func (g *consumerTalk) fetchAs(group, member string, epoch int32, topic [16]byte) {
	q := kmsg.NewPtrOffsetFetchRequest()
	q.Version = 10
	one := kmsg.NewOffsetFetchRequestGroup()
	one.Group, one.MemberID, one.MemberEpoch = group, &member, epoch
	one.Topics = []kmsg.OffsetFetchRequestGroupTopic{{TopicID: topic, Partitions: []int32{0}}}
	q.Groups = append(q.Groups, one)
	r := call[*kmsg.OffsetFetchResponse](&g.client, q)
	for _, gr := range r.Groups {
		g.exactly("fetch as %q epoch %d: error=%d topics=%d", member, epoch, gr.ErrorCode, len(gr.Topics))
	}
}

func (g *consumerTalk) run(create func(name string) [16]byte, remove func(name string)) {
	orders := create("orders")
	g.names[orders] = "orders"

	g.exactly("# requests that make no sense")
	g.beat(0, "", "m", 0, reads("orders"))
	g.beat(1, " ", "m", 0, reads("orders"))
	g.beat(1, "c", "", 0, reads("orders"))
	g.beat(0, "c", "", 1, nil)
	g.beat(0, "c", "", -1, nil)
	g.beat(0, "c", "m", -2, nil)
	g.beat(0, "c", "m", -3, nil)
	g.beat(0, "c", "m", 0, nil)
	g.beat(0, "c", "m", 0, also(reads("orders"), instance("")))
	g.beat(0, "c", "m", 0, also(reads("orders"), func(q *kmsg.ConsumerGroupHeartbeatRequest) { q.RackID = kmsg.StringPtr("") }))
	g.beat(0, "c", "m", 0, also(reads("orders"), func(q *kmsg.ConsumerGroupHeartbeatRequest) { q.RebalanceTimeoutMillis = -1 }))
	g.beat(0, "c", "m", 0, also(reads("orders"), func(q *kmsg.ConsumerGroupHeartbeatRequest) { q.Topics = nil }))
	g.beat(0, "c", "m", 0, also(reads("orders"), assignor("best")))
	g.beat(1, "c", "m", 0, matches("["))
	g.beat(1, "c", "m", 0, matches("(?P<x"))
	g.beat(1, "c", "m", 5, nil)
	g.beat(1, "c", "m", -1, nil)
	g.describe(1, "c", "")
	g.list()

	g.exactly("# members come and go")
	a := g.beat(1, "c", "a", 0, reads("orders"))
	g.beat(1, "c", "a", 2, owns(a))
	g.describe(0, "c")
	b := g.beat(1, "c", "b", 0, reads("orders"))
	g.describe(1, "c")
	g.beat(1, "c", "b", b.MemberEpoch, owns(nil))
	a = g.beat(1, "c", "a", 2, owns(a))
	g.describe(1, "c")
	g.beat(1, "c", "a", 2, nil)
	g.beat(1, "c", "b", b.MemberEpoch, nil)
	g.beat(1, "c", "a", 2, owns(a))
	g.beat(1, "c", "b", b.MemberEpoch, nil)
	g.describe(1, "c")
	g.list("consumer")
	g.list("classic")
	g.beat(1, "c", "a", 2, owns(a))
	g.beat(1, "c", "a", 2, nil)
	g.beat(1, "c", "a", 1, owns(a))
	g.beat(1, "c", "a", 9, nil)
	g.beat(1, "c", "x", 3, nil)
	g.beat(1, "c", "a", 3, also(reads("orders"), owns(a), func(q *kmsg.ConsumerGroupHeartbeatRequest) { q.RebalanceTimeoutMillis = 30_000 }))
	g.beat(1, "c", "a", 3, reads("orders", "later"))
	g.beat(1, "c", "a", 4, assignor("range"))
	g.beat(0, "c", "", 0, reads("nothing"))

	g.exactly("# offsets")
	all := commitTopic{"orders", orders, []int32{0, 1, 2}}
	owned := commitTopic{"orders", orders, a.Assignment.Topics[0].Partitions}
	g.commit(9, "c", 5, "a", nil, all)
	g.commit(8, "c", 5, "a", nil, all)
	g.commit(10, "c", 4, "a", nil, owned)
	g.commit(10, "c", 1, "a", nil, owned)
	g.commit(10, "c", 9, "a", nil, owned)
	g.commit(9, "c", 4, "a", nil, all)
	g.commit(9, "c", 5, "x", nil, all)
	g.commit(9, "c", -1, "", nil, all)
	g.commit(9, "nowhere", 5, "a", nil, all)
	g.fetchAs("c", "a", 5, orders)
	g.fetchAs("c", "a", 4, orders)
	g.fetchAs("c", "x", 4, orders)

	g.exactly("# the classic protocol")
	hb := kmsg.NewPtrHeartbeatRequest()
	hb.Version, hb.Group, hb.MemberID, hb.Generation = 4, "c", "a", 5
	g.exactly("classic heartbeat: error=%d", call[*kmsg.HeartbeatResponse](&g.client, hb).ErrorCode)
	g.sync(5, "c", "a", 5, nil, kmsg.StringPtr("consumer"), kmsg.StringPtr("range"))
	q := g.joinRequest(9, "c", "", nil, 10_000)
	q.ProtocolType, q.Protocols = "connect", []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
	r := call[*kmsg.JoinGroupResponse](&g.client, q)
	g.exactly("join as another type: error=%d member=%q", r.ErrorCode, r.MemberID)
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Version, del.Groups = 2, []string{"c"}
	g.exactly("delete: error=%d", call[*kmsg.DeleteGroupsResponse](&g.client, del).Groups[0].ErrorCode)

	g.exactly("# static members")
	s1 := g.beat(1, "s", "s1", 0, also(reads("orders"), instance("i")))
	g.beat(1, "s", "s2", 0, also(reads("orders"), instance("i")))
	g.beat(1, "s", "s2", 2, instance("i"))
	g.beat(1, "s", "s1", 2, instance("j"))
	g.beat(1, "s", "s1", -2, instance("i"))
	g.describe(1, "s")
	g.beat(1, "s", "s2", 0, also(reads("orders"), instance("i")))
	g.beat(1, "s", "s1", 2, also(instance("i"), owns(s1)))
	g.beat(1, "s", "s1", -1, instance("i"))
	g.beat(1, "s", "s2", -1, instance("i"))
	g.beat(1, "s", "s2", -1, instance("i"))
	g.describe(1, "s")

	g.exactly("# topics grow and go")
	g.beat(1, "t", "t1", 0, reads("later"))
	later := create("later")
	g.names[later] = "later"
	l := g.beat(1, "t", "t1", 2, owns(nil))
	remove("later")
	g.beat(1, "t", "t1", 3, owns(l))
	g.beat(1, "t", "t1", 3, owns(nil))

	g.exactly("# regular expressions")
	g.beat(1, "r", "r1", 0, matches("ord.*|x"))
	// What the expression matches is looked up in the background, and is a new epoch of the group.
	d := kmsg.NewPtrConsumerGroupDescribeRequest()
	d.Version, d.Groups = 1, []string{"r"}
	await.True(g.tb, "the expression is looked up", func() bool {
		return call[*kmsg.ConsumerGroupDescribeResponse](&g.client, d).Groups[0].Epoch > 1
	})
	g.beat(1, "r", "r1", 1, nil)
	g.beat(1, "r", "r2", 0, matches("ord.*|x"))
	g.describe(1, "r")
	g.beat(1, "r", "r1", 2, also(matches(""), reads("orders")))
	g.describe(1, "r")
	g.beat(1, "r", "r1", -1, nil)
	g.beat(1, "r", "r2", -1, nil)
	g.describe(1, "r")

	g.exactly("# an empty group becomes a classic one, and the other way round")
	g.join(3, "r", "", nil, 10_000, "range")
	g.list("classic")
	del.Groups = []string{"s"}
	g.exactly("delete: error=%d", call[*kmsg.DeleteGroupsResponse](&g.client, del).Groups[0].ErrorCode)
	g.commit(9, "o", -1, "", nil, all)
	g.list("classic")
	g.beat(1, "o", "o1", 0, reads("orders"))
	g.list("consumer")
	g.fetch(9, false, "o", nil)
}
