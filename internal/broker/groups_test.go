package broker

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/await"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

var against = flag.String("against", "", "address of a fresh Kafka node with group.initial.rebalance.delay.ms=100 and offsets.topic.num.partitions=1, whose answers are written to testdata/groups.txt")

// TestGroupAnswers holds what this broker answers about groups against what Kafka 4.4.0 answered to the same requests.
func TestGroupAnswers(t *testing.T) {
	if *against != "" {
		conn, err := net.Dial("tcp", *against)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		g := &groupTalk{client: client{tb: t, conn: conn}}
		g.createOverTheWire("orders")
		g.run(g.createOverTheWire, g.deleteOverTheWire)
		if err := os.WriteFile("testdata/groups.txt", []byte(g.out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile("testdata/groups.txt")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, map[string]string{"group.initial.rebalance.delay.ms": "100"})
	g := &groupTalk{client: *w.client()}
	ids := map[string]uuid.UUID{}
	w.topic(offsetsTopic, 1)
	create := func(name string) [16]byte {
		ids[name] = w.topic(name, 3)
		return ids[name]
	}
	g.run(create, func(name string) { w.removeTopic(ids[name]) })
	got := g.out.String()
	if got == string(want) {
		return
	}
	gl, wl := strings.Split(got, "\n"), strings.Split(string(want), "\n")
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

// groupTalk is a conversation about groups, written down with the answers.
type groupTalk struct {
	client
	out strings.Builder
	ids []string // random parts of member ids, in the order of their appearance
}

var (
	randomPart = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)
	portNumber = regexp.MustCompile(`port=\d{2,}`)
	sentence   = regexp.MustCompile(`message="[^"]{40,}"`)
)

// say writes a line down, with what differs from run to run replaced.
func (g *groupTalk) say(format string, args ...any) {
	line := randomPart.ReplaceAllStringFunc(fmt.Sprintf(format, args...), func(id string) string {
		i := slices.Index(g.ids, id)
		if i < 0 {
			i = len(g.ids)
			g.ids = append(g.ids, id)
		}
		return fmt.Sprintf("#%d", i+1)
	})
	line = portNumber.ReplaceAllString(line, "port=P")
	g.out.WriteString(sentence.ReplaceAllString(line, `message="a sentence"`) + "\n")
}

func text(s *string) string {
	if s == nil {
		return "null"
	}
	return strconv.Quote(*s)
}

func (g *groupTalk) createOverTheWire(name string) (id [16]byte) {
	q := kmsg.NewPtrCreateTopicsRequest()
	q.Version, q.TimeoutMillis = 7, 10_000
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 3, 1
	q.Topics = append(q.Topics, topic)
	call[*kmsg.CreateTopicsResponse](&g.client, q)
	m := kmsg.NewPtrMetadataRequest()
	m.Version = 12
	m.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
	await.True(g.tb, "the topic is there", func() bool {
		r := call[*kmsg.MetadataResponse](&g.client, m)
		id = r.Topics[0].TopicID
		return r.Topics[0].ErrorCode == 0
	})
	f := kmsg.NewPtrFindCoordinatorRequest()
	f.Version, f.CoordinatorKey = 3, "g"
	await.True(g.tb, "there is a coordinator", func() bool {
		return call[*kmsg.FindCoordinatorResponse](&g.client, f).ErrorCode == 0
	})
	list := kmsg.NewPtrListGroupsRequest()
	list.Version = 5
	await.True(g.tb, "the coordinator has loaded", func() bool {
		return call[*kmsg.ListGroupsResponse](&g.client, list).ErrorCode == 0
	})
	return id
}

func (g *groupTalk) deleteOverTheWire(name string) {
	q := kmsg.NewPtrDeleteTopicsRequest()
	q.Version, q.TimeoutMillis, q.TopicNames = 5, 10_000, []string{name}
	call[*kmsg.DeleteTopicsResponse](&g.client, q)
	m := kmsg.NewPtrMetadataRequest()
	m.Version = 12
	m.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
	await.True(g.tb, "the topic is gone", func() bool {
		return call[*kmsg.MetadataResponse](&g.client, m).Topics[0].ErrorCode == api.ErrUnknownTopicOrPartition.Code
	})
}

func (g *groupTalk) find(kind int8, versions ...int16) {
	for _, v := range versions {
		q := kmsg.NewPtrFindCoordinatorRequest()
		q.Version, q.CoordinatorType, q.CoordinatorKey, q.CoordinatorKeys = v, kind, "g1", []string{"g1", ""}
		r := call[*kmsg.FindCoordinatorResponse](&g.client, q)
		if v < 4 {
			g.say("find v%d type %d: error=%d message=%s node=%d host? %v port=%d", v, kind, r.ErrorCode, text(r.ErrorMessage), r.NodeID,
				r.Host != "", r.Port)
			continue
		}
		for _, c := range r.Coordinators {
			g.say("find v%d type %d %q: error=%d message=%s node=%d host? %v port=%d", v, kind, c.Key, c.ErrorCode, text(c.ErrorMessage),
				c.NodeID, c.Host != "", c.Port)
		}
	}
}

type commitTopic struct {
	name       string
	id         [16]byte
	partitions []int32
}

func (g *groupTalk) commit(version int16, group string, generation int32, member string, change func(*kmsg.OffsetCommitRequest),
	topics ...commitTopic,
) {
	q := kmsg.NewPtrOffsetCommitRequest()
	q.Version, q.Group, q.Generation, q.MemberID = version, group, generation, member
	for _, t := range topics {
		rt := kmsg.NewOffsetCommitRequestTopic()
		rt.Topic, rt.TopicID = t.name, t.id
		for _, p := range t.partitions {
			rp := kmsg.NewOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.Metadata = p, 100+int64(p), kmsg.StringPtr("md")
			rt.Partitions = append(rt.Partitions, rp)
		}
		q.Topics = append(q.Topics, rt)
	}
	if change != nil {
		change(q)
	}
	r := call[*kmsg.OffsetCommitResponse](&g.client, q)
	g.say("commit v%d %q generation=%d member=%q: %s", version, group, generation, member, commitAnswer(r))
}

func commitAnswer(r *kmsg.OffsetCommitResponse) string {
	var s []string
	for _, t := range r.Topics {
		s = append(s, fmt.Sprintf("%s(id %v)", t.Topic, t.TopicID != [16]byte{}))
		for _, p := range t.Partitions {
			s = append(s, fmt.Sprintf("%d=%d", p.Partition, p.ErrorCode))
		}
	}
	return strings.Join(s, " ")
}

func (g *groupTalk) fetch(version int16, stable bool, group string, topics []commitTopic) {
	q := kmsg.NewPtrOffsetFetchRequest()
	q.Version, q.Group, q.RequireStable = version, group, stable
	one := kmsg.NewOffsetFetchRequestGroup()
	one.Group = group
	for _, t := range topics {
		q.Topics = append(q.Topics, kmsg.OffsetFetchRequestTopic{Topic: t.name, Partitions: t.partitions})
		one.Topics = append(one.Topics, kmsg.OffsetFetchRequestGroupTopic{Topic: t.name, TopicID: t.id, Partitions: t.partitions})
	}
	q.Groups = append(q.Groups, one)
	r := call[*kmsg.OffsetFetchResponse](&g.client, q)
	var lines []string
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			lines = append(lines, fmt.Sprintf("%s-%d offset=%d epoch=%d metadata=%s error=%d", t.Topic, p.Partition, p.Offset, p.LeaderEpoch,
				text(p.Metadata), p.ErrorCode))
		}
	}
	for _, gr := range r.Groups {
		lines = append(lines, fmt.Sprintf("group %q error=%d", gr.Group, gr.ErrorCode))
		for _, t := range gr.Topics {
			for _, p := range t.Partitions {
				lines = append(lines, fmt.Sprintf("%s(id %v)-%d offset=%d epoch=%d metadata=%s error=%d", t.Topic, t.TopicID != [16]byte{},
					p.Partition, p.Offset, p.LeaderEpoch, text(p.Metadata), p.ErrorCode))
			}
		}
	}
	slices.Sort(lines)
	g.say("fetch v%d %q stable=%v all=%v: error=%d", version, group, stable, topics == nil, r.ErrorCode)
	for _, l := range lines {
		g.say("  %s", l)
	}
}

func (g *groupTalk) joinRequest(version int16, group, member string, instance *string, session int32, protocols ...string) *kmsg.JoinGroupRequest {
	q := kmsg.NewPtrJoinGroupRequest()
	q.Version, q.Group, q.MemberID, q.InstanceID = version, group, member, instance
	q.SessionTimeoutMillis, q.RebalanceTimeoutMillis, q.ProtocolType = session, 20_000, "consumer"
	for _, p := range protocols {
		q.Protocols = append(q.Protocols, kmsg.JoinGroupRequestProtocol{Name: p, Metadata: []byte("\x00\x01\x00\x00\x00\x01\x00\x06orders\x00\x00\x00\x00")})
	}
	return q
}

func (g *groupTalk) join(version int16, group, member string, instance *string, session int32, protocols ...string) string {
	q := g.joinRequest(version, group, member, instance, session, protocols...)
	r := call[*kmsg.JoinGroupResponse](&g.client, q)
	g.joined(q, r)
	return r.MemberID
}

func (g *groupTalk) joined(q *kmsg.JoinGroupRequest, r *kmsg.JoinGroupResponse) {
	var members []string
	for _, m := range r.Members {
		members = append(members, fmt.Sprintf("%s/%d", text(m.InstanceID), len(m.ProtocolMetadata)))
	}
	slices.Sort(members)
	g.say("join v%d %q member=%q instance=%s: error=%d generation=%d type=%s protocol=%s leader=%q skip=%v member=%q members=%v", q.Version,
		q.Group, q.MemberID, text(q.InstanceID), r.ErrorCode, r.Generation, text(r.ProtocolType), text(r.Protocol), r.LeaderID,
		r.SkipAssignment, r.MemberID, members)
}

func (g *groupTalk) sync(version int16, group, member string, generation int32, instance, protocolType, protocol *string) {
	q := kmsg.NewPtrSyncGroupRequest()
	q.Version, q.Group, q.MemberID, q.Generation, q.InstanceID = version, group, member, generation, instance
	q.ProtocolType, q.Protocol = protocolType, protocol
	q.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: member, MemberAssignment: []byte("A")}}
	r := call[*kmsg.SyncGroupResponse](&g.client, q)
	g.say("sync v%d %q member=%q generation=%d: error=%d type=%s protocol=%s assignment=%q", version, group, member, generation, r.ErrorCode,
		text(r.ProtocolType), text(r.Protocol), r.MemberAssignment)
}

func (g *groupTalk) beat(group, member string, generation int32, instance *string) {
	q := kmsg.NewPtrHeartbeatRequest()
	q.Version, q.Group, q.MemberID, q.Generation, q.InstanceID = 4, group, member, generation, instance
	g.say("heartbeat %q member=%q generation=%d: error=%d", group, member, generation, call[*kmsg.HeartbeatResponse](&g.client, q).ErrorCode)
}

func (g *groupTalk) describe(version int16, groups ...string) {
	q := kmsg.NewPtrDescribeGroupsRequest()
	q.Version, q.Groups, q.IncludeAuthorizedOperations = version, groups, version >= 3
	r := call[*kmsg.DescribeGroupsResponse](&g.client, q)
	slices.SortFunc(r.Groups, func(a, b kmsg.DescribeGroupsResponseGroup) int { return strings.Compare(a.Group, b.Group) })
	for _, d := range r.Groups {
		g.say("describe v%d %q: error=%d message=%s state=%s type=%q protocol=%q operations=%d", version, d.Group, d.ErrorCode, text(d.ErrorMessage),
			d.State, d.ProtocolType, d.Protocol, d.AuthorizedOperations)
		slices.SortFunc(d.Members, func(a, b kmsg.DescribeGroupsResponseGroupMember) int {
			return slices.Index(g.ids, a.MemberID[len(a.MemberID)-36:]) - slices.Index(g.ids, b.MemberID[len(b.MemberID)-36:])
		})
		for _, m := range d.Members {
			g.say("  %s instance=%s client=%q host=%q metadata=%d assignment=%q", m.MemberID, text(m.InstanceID), m.ClientID, m.ClientHost,
				len(m.ProtocolMetadata), m.MemberAssignment)
		}
	}
}

func (g *groupTalk) list(version int16, states, types []string) {
	q := kmsg.NewPtrListGroupsRequest()
	q.Version, q.StatesFilter, q.TypesFilter = version, states, types
	r := call[*kmsg.ListGroupsResponse](&g.client, q)
	slices.SortFunc(r.Groups, func(a, b kmsg.ListGroupsResponseGroup) int { return strings.Compare(a.Group, b.Group) })
	g.say("list v%d states=%q types=%q: error=%d", version, states, types, r.ErrorCode)
	for _, l := range r.Groups {
		g.say("  %q type=%q state=%q protocol=%q", l.Group, l.GroupType, l.GroupState, l.ProtocolType)
	}
}

func (g *groupTalk) leave(version int16, group string, members ...kmsg.LeaveGroupRequestMember) {
	q := kmsg.NewPtrLeaveGroupRequest()
	q.Version, q.Group, q.MemberID, q.Members = version, group, members[0].MemberID, members
	r := call[*kmsg.LeaveGroupResponse](&g.client, q)
	g.say("leave v%d %q: error=%d", version, group, r.ErrorCode)
	for _, m := range r.Members {
		g.say("  %q instance=%s error=%d", m.MemberID, text(m.InstanceID), m.ErrorCode)
	}
}

func (g *groupTalk) deleteOffsets(group, topic string, partitions ...int32) {
	q := kmsg.NewPtrOffsetDeleteRequest()
	q.Group = group
	t := kmsg.OffsetDeleteRequestTopic{Topic: topic}
	for _, p := range partitions {
		t.Partitions = append(t.Partitions, kmsg.OffsetDeleteRequestTopicPartition{Partition: p})
	}
	q.Topics = append(q.Topics, t)
	r := call[*kmsg.OffsetDeleteResponse](&g.client, q)
	var s []string
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			s = append(s, fmt.Sprintf("%s-%d=%d", t.Topic, p.Partition, p.ErrorCode))
		}
	}
	g.say("delete offsets %q: error=%d %s", group, r.ErrorCode, strings.Join(s, " "))
}

func (g *groupTalk) deleteGroups(version int16, groups ...string) {
	q := kmsg.NewPtrDeleteGroupsRequest()
	q.Version, q.Groups = version, groups
	r := call[*kmsg.DeleteGroupsResponse](&g.client, q)
	slices.SortFunc(r.Groups, func(a, b kmsg.DeleteGroupsResponseGroup) int { return strings.Compare(a.Group, b.Group) })
	for _, d := range r.Groups {
		g.say("delete v%d %q: error=%d message=%s", version, d.Group, d.ErrorCode, text(d.ErrorMessage))
	}
}

func leaver(id string, instance *string) kmsg.LeaveGroupRequestMember {
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID, m.InstanceID = id, instance
	return m
}

// run has the conversation.
func (g *groupTalk) run(create func(string) [16]byte, remove func(string)) {
	id := create("orders")
	gone := create("gone")
	str := kmsg.StringPtr
	orders := func(ps ...int32) commitTopic { return commitTopic{"orders", id, ps} }

	g.find(0, 0, 1, 2, 3, 4, 6)
	g.find(7, 1, 3, 5, 6)

	// Offsets without members.
	g.commit(2, "s2", -1, "", nil, orders(0, 1, 7))
	g.commit(9, "s9", -1, "", nil, orders(0))
	g.commit(10, "s10", -1, "", nil, orders(0, 7))
	g.commit(10, "s10", -1, "", nil, commitTopic{"", [16]byte{1, 2}, []int32{0, 1}}, orders(2))
	g.commit(9, "s9", -1, "", nil, commitTopic{"nope", [16]byte{}, []int32{0}})
	g.commit(9, "nogroup", 3, "m", nil, orders(0))
	g.commit(8, "nogroup", 3, "m", nil, orders(0))
	g.commit(9, "", -1, "", nil, orders(0))
	g.commit(9, "s9", 0, "", nil, orders(0))
	g.commit(9, "s9", 0, "m", nil, orders(0))
	g.commit(9, "s9", -1, "m", nil, orders(0))
	g.commit(9, "s9", -1, "", func(q *kmsg.OffsetCommitRequest) { q.InstanceID = str("i") }, orders(0))
	g.commit(9, "s9", -1, "", nil, commitTopic{"gone", gone, []int32{0}})
	g.commit(3, "ret", -1, "", func(q *kmsg.OffsetCommitRequest) { q.RetentionTimeMillis = 100_000 }, orders(0))
	g.commit(9, "neg", -1, "", func(q *kmsg.OffsetCommitRequest) {
		q.Topics[0].Partitions[0].Offset, q.Topics[0].Partitions[0].LeaderEpoch = -5, -7
	}, orders(0))
	g.commit(9, "big", -1, "", func(q *kmsg.OffsetCommitRequest) {
		q.Topics[0].Partitions[0].Metadata, q.Topics[0].Partitions[1].Metadata = str(strings.Repeat("ä", 4097)), str(strings.Repeat("ä", 4096))
		q.Topics[0].Partitions[2].Metadata = nil
	}, orders(0, 1, 2))
	g.commit(9, "dup", -1, "", nil, orders(0, 0, 9, 1), orders(0, 9))
	g.commit(9, "dup", -1, "", nil)
	for _, v := range []int16{1, 2, 5, 7, 8, 9, 10} {
		if v >= 2 {
			g.fetch(v, v >= 7, "s9", nil)
			g.fetch(v, false, "nogroup", nil)
		}
		g.fetch(v, false, "s2", []commitTopic{orders(0, 5)})
		g.fetch(v, false, "nogroup", []commitTopic{orders(0)})
		g.fetch(v, false, "s2", []commitTopic{{"nope", [16]byte{3}, []int32{0}}})
		g.fetch(v, false, "", []commitTopic{orders(0)})
		g.fetch(v, false, "neg", []commitTopic{orders(0)})
	}
	remove("gone")
	g.fetch(9, false, "s9", nil)

	// Joining.
	g.join(9, "jg", "", nil, 100, "range")
	g.join(9, "jg", "", nil, 100_000_000, "range")
	g.join(9, "", "", nil, 30_000, "range")
	g.join(9, "nojg", "m", nil, 30_000, "range")
	g.join(9, "np", "", nil, 30_000)
	g.join(3, "np", "", nil, 30_000)
	for v := range int16(4) {
		g.join(v, fmt.Sprint("old", v), "", nil, 30_000, "range", "rr")
	}
	m1 := g.join(9, "jg", "", nil, 30_000, "range", "rr")
	g.join(9, "jg", m1, nil, 30_000, "range", "rr")
	g.describe(6, "jg", "nogroup", "", "s9")
	g.commit(9, "jg", 1, m1, nil, orders(0))
	g.join(9, "jg", m1, nil, 30_000, "range", "rr")
	g.join(9, "jg", "", nil, 30_000, "other")
	g.sync(5, "jg", m1, 9, nil, str("consumer"), str("range"))
	g.sync(5, "jg", m1, 1, nil, str("connect"), str("range"))
	g.sync(5, "jg", m1, 1, nil, str("consumer"), str("rr"))
	g.sync(5, "jg", m1, 1, nil, nil, nil)
	g.sync(4, "jg", "x", 1, nil, nil, nil)
	g.sync(4, "jg", m1, 1, str("i"), nil, nil)
	g.sync(4, "nogroup", m1, 1, nil, nil, nil)
	g.sync(4, "", m1, 1, nil, nil, nil)
	g.sync(5, "jg", m1, 1, nil, str("consumer"), str("range"))
	g.sync(3, "jg", m1, 1, nil, nil, nil)
	g.beat("jg", m1, 1, nil)
	g.beat("jg", m1, 2, nil)
	g.beat("jg", "zz", 1, nil)
	g.beat("jg", "zz", 2, nil)
	g.beat("jg", m1, 1, str("i"))
	g.beat("nogroup", "zz", 1, nil)
	g.beat("", "zz", 1, nil)
	g.beat("s9", "zz", 1, nil)
	g.beat("s9", "", 0, nil)
	for _, v := range []int16{0, 3, 4, 5, 6} {
		g.describe(v, "jg", "nogroup", "s9")
	}
	g.commit(9, "jg", -1, "", nil, orders(0))
	g.commit(9, "jg", 1, m1, nil, orders(0, 1))
	g.commit(9, "jg", 2, m1, nil, orders(0))
	g.commit(9, "jg", 1, "x", nil, orders(0))
	g.deleteOffsets("jg", "orders", 0, 9)
	g.deleteOffsets("nogroup", "orders", 0)
	g.deleteOffsets("", "orders", 0)
	g.deleteOffsets("s2", "orders", 0, 5, 9)
	g.deleteOffsets("s2", "nope", 0)
	g.deleteOffsets("old3", "orders", 2)
	g.fetch(9, false, "s2", nil)

	// Static members.
	s1 := g.join(9, "st", "", str("i1"), 30_000, "range")
	g.sync(5, "st", s1, 1, str("i1"), str("consumer"), str("range"))
	s2 := g.join(9, "st", "", str("i1"), 30_000, "range")
	g.beat("st", s1, 1, str("i1"))
	g.beat("st", s2, 1, str("i1"))
	g.sync(5, "st", s1, 1, str("i1"), str("consumer"), str("range"))
	g.sync(5, "st", s2, 1, str("i1"), str("consumer"), str("range"))
	s3 := g.join(7, "st", "", str("i1"), 30_000, "range")
	g.join(7, "st", s2, str("i1"), 30_000, "range")
	g.join(7, "st", s3, str("i9"), 30_000, "range")
	g.commit(9, "st", 1, s2, func(q *kmsg.OffsetCommitRequest) { q.InstanceID = str("i1") }, orders(0))
	g.commit(9, "st", 1, s3, func(q *kmsg.OffsetCommitRequest) { q.InstanceID = str("i1") }, orders(0))
	g.describe(5, "st")
	g.leave(5, "st", leaver(s2, str("i1")), leaver("", str("i9")), leaver("", nil), leaver("", str("i1")))
	g.describe(5, "st")

	// A second member joins, and the first rejoins.
	first := g.join(3, "two", "", nil, 30_000, "range", "rr")
	g.sync(3, "two", first, 1, nil, nil, nil)
	other := &groupTalk{client: g.another()}
	second := other.joinRequest(3, "two", "", nil, 30_000, "rr")
	other.send(second)
	d := kmsg.NewPtrDescribeGroupsRequest()
	d.Version, d.Groups = 5, []string{"two"}
	await.True(g.tb, "the second has joined", func() bool {
		return len(call[*kmsg.DescribeGroupsResponse](&g.client, d).Groups[0].Members) == 2
	})
	g.beat("two", first, 1, nil)
	g.join(3, "two", first, nil, 30_000, "range", "rr")
	r, err := other.receive(second)
	if err != nil {
		g.tb.Fatal(err)
	}
	g.joined(second, r.(*kmsg.JoinGroupResponse))
	g.describe(5, "two")

	// Lists and removals.
	for _, v := range []int16{0, 3, 4, 5} {
		g.list(v, nil, nil)
	}
	g.list(4, []string{"stable"}, nil)
	g.list(5, []string{" Empty "}, []string{"Classic"})
	g.list(5, []string{"bogus"}, nil)
	g.list(5, nil, []string{"CLASSIC"})
	g.list(5, nil, []string{"consumer"})
	g.list(5, nil, []string{"bogus"})
	g.deleteGroups(3, "jg", "nogroup", "", "ret", "ret")
	g.deleteGroups(0, "jg", "nogroup", "", "ret", "ret")
	g.leave(5, "nogroup", leaver("a", nil), leaver("b", nil))
	g.leave(2, "nogroup", leaver("a", nil))
	g.leave(2, "", leaver("a", nil))
	g.leave(5, "jg", leaver("a", nil))
	g.leave(2, "jg", leaver("a", nil))
	g.leave(3, "s9", leaver("a", nil))
	g.leave(4, "jg", leaver(m1, nil), leaver("x", nil))
	g.beat("jg", m1, 1, nil)
	g.beat("jg", m1, 2, nil)
	g.sync(4, "jg", m1, 2, nil, nil, nil)
	g.join(9, "jg", m1, nil, 30_000, "range")
	g.describe(6, "jg")
	g.deleteOffsets("jg", "orders", 0)
	g.fetch(9, false, "jg", nil)
	g.deleteGroups(3, "jg")
	g.describe(6, "jg")
}

// another is one more connection to the same broker.
func (g *groupTalk) another() client {
	conn, err := net.Dial("tcp", g.conn.RemoteAddr().String())
	if err != nil {
		g.tb.Fatal(err)
	}
	g.tb.Cleanup(func() { conn.Close() })
	return client{tb: g.tb, conn: conn}
}

func TestJavaAddress(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := javaAddress(netip.MustParseAddr(in)); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
	f("127.0.0.1", "/127.0.0.1")
	f("::1", "/0:0:0:0:0:0:0:1")
	f("::ffff:10.1.2.3", "/10.1.2.3")
	f("fe80::12ab:1%eth0", "/fe80:0:0:0:0:0:12ab:1%eth0")
}

// Groups are served on when their topic was deleted and made anew by one change.
func TestGroupsOfATopicMadeAnew(t *testing.T) {
	w := newWorld(t, nil)
	old, id := w.topic(offsetsTopic, 1), uuid.UUID{15: 200}
	w.publish(&message.RemoveTopicRecord{TopicID: old}, &message.TopicRecord{Name: offsetsTopic, TopicID: id},
		&message.PartitionRecord{TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	c := w.client()
	q := kmsg.NewPtrHeartbeatRequest()
	q.Version, q.Group, q.MemberID = 4, "g", "m"
	await.True(t, "groups are served", func() bool {
		return call[*kmsg.HeartbeatResponse](c, q).ErrorCode == api.ErrUnknownMemberID.Code
	})
}
