package group

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
)

// classicSim speaks JoinGroup and SyncGroup, eagerly or in cooperative steps.
type classicSim struct {
	*peer
	// joined is the generation that it is in, as of JoinGroup; epoch is that of the assignment that it has.
	joined int32
	leads  bool
	// watched are the topics of all members, if it leads, and sizes what was known of them when it assigned: it rejoins when they
	// change.
	watched []string
	sizes   string
	again   bool // it must rejoin
	// said is what it reads as of its last JoinGroup, known that of the last which got it an assignment.
	said, known []string
}

const classicRebalance = 15 * time.Second

func (m *classicSim) tick() {
	rejoins := m.epoch == 0 || m.again || m.leads && m.sizes != m.topicSizes()
	if !rejoins {
		m.read()
	}
	if !m.waiting {
		if rejoins {
			m.join()
		} else {
			m.heartbeat()
		}
	}
	m.later(m.s.between(1500*time.Millisecond, 2*time.Second), m.tick)
}

func (m *classicSim) topicSizes() string {
	var sizes []string
	for _, name := range m.watched {
		if t := m.s.topics.img.Topics.ByName(name); t != nil {
			sizes = append(sizes, fmt.Sprint(name, t.Len()))
		}
	}
	return fmt.Sprint(sizes)
}

// lose forgets all partitions: they may be another's by now.
func (m *classicSim) lose() {
	m.epoch, m.joined, m.leads = 0, 0, false
	clear(m.parts)
}

func (m *classicSim) protocol() string {
	if m.group.cooperative {
		return "cooperative"
	}
	return "eager"
}

func (m *classicSim) join() {
	if m.committing {
		return // once that is through
	}
	if !m.group.cooperative {
		clear(m.parts)
	}
	m.again, m.said = false, m.reads
	md := kmsg.NewConsumerMemberMetadata()
	md.Version, md.Topics, md.Generation = 2, m.reads, m.epoch
	for _, tp := range m.owned() {
		md.OwnedPartitions = append(md.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: m.s.name(tp.topic), Partitions: tp.partitions})
	}
	r := kmsg.NewPtrJoinGroupRequest()
	r.Group, r.MemberID, r.InstanceID, r.ProtocolType = m.group.id, m.id, m.instance, consumerProtocol
	r.SessionTimeoutMillis, r.RebalanceTimeoutMillis = 10_000, int32(classicRebalance.Milliseconds())
	r.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: m.protocol(), Metadata: md.AppendTo(nil)}}
	m.waiting = true
	m.send(fmt.Sprintf("join as %q has %v", m.id, m.owned()), 2*classicRebalance, m.id != "", func(c *Coordinator, reply func(any)) {
		c.JoinGroup(&Context{ClientID: m.name, ClientHost: "/h", Version: 9}, r, func(resp *kmsg.JoinGroupResponse) { reply(resp) })
	}, func(resp any) {
		m.waiting = false
		a, ok := resp.(*kmsg.JoinGroupResponse)
		if !ok {
			m.again = true
			return
		}
		m.s.print("%s < join %v generation %d leader %s member %s", m.name, api.ErrorFor(a.ErrorCode), a.Generation, a.LeaderID, a.MemberID)
		switch {
		case a.ErrorCode == api.ErrMemberIDRequired.Code:
			m.id = a.MemberID
			m.join()
		case a.ErrorCode == 0:
			m.id, m.joined, m.leads = a.MemberID, a.Generation, a.LeaderID == a.MemberID
			m.sync(a)
		default:
			m.failed(a.ErrorCode)
		}
	})
}

// failed does what a client does about an error of JoinGroup, SyncGroup and Heartbeat.
func (m *classicSim) failed(code int16) {
	m.again = true
	switch code {
	case api.ErrUnknownMemberID.Code:
		m.id = ""
		m.s.stats.fenced++
		m.lose()
	case api.ErrIllegalGeneration.Code:
		m.lose()
	case api.ErrFencedInstanceID.Code:
		m.die()
	case api.ErrRebalanceInProgress.Code, api.ErrInconsistentGroupProtocol.Code:
	default:
		if !m.moved(code) && code != api.ErrNotEnoughReplicas.Code && code != api.ErrNotLeaderOrFollower.Code {
			m.s.fail("%s is answered with %v", m.name, api.ErrorFor(code))
		}
	}
}

func (m *classicSim) sync(j *kmsg.JoinGroupResponse) {
	r := kmsg.NewPtrSyncGroupRequest()
	r.Group, r.MemberID, r.InstanceID, r.Generation = m.group.id, m.id, m.instance, j.Generation
	r.ProtocolType, r.Protocol = j.ProtocolType, j.Protocol
	if m.leads {
		m.watched = nil
		for _, o := range j.Members {
			md := kmsg.NewConsumerMemberMetadata()
			if err := md.ReadFrom(o.ProtocolMetadata); err != nil {
				m.s.fail("subscription of %s: %v", o.MemberID, err)
			}
			m.watched = append(m.watched, md.Topics...)
		}
		// It may not be the first leader to assign in this generation: a static one has come back, or it has missed an answer. Java's
		// client takes the topics that there are now for those that were assigned. This one doesn't, or what came and grew meanwhile
		// would have no reader until something else makes the group rebalance.
		maps.DeleteFunc(m.group.counted, func(g int32, _ string) bool { return g > j.Generation }) // the group began anew
		if _, ok := m.group.counted[j.Generation]; !ok {
			m.group.counted[j.Generation] = m.topicSizes()
		}
		m.sizes = m.group.counted[j.Generation]
		if !j.SkipAssignment {
			r.GroupAssignment = m.s.assign(j.Members, m.group.cooperative)
		}
	}
	m.waiting = true
	m.send(fmt.Sprintf("sync generation %d", j.Generation), 2*classicRebalance, true, func(c *Coordinator, reply func(any)) {
		c.SyncGroup(&Context{ClientID: m.name, ClientHost: "/h", Version: 5}, r, func(resp *kmsg.SyncGroupResponse) { reply(resp) })
	}, func(resp any) {
		m.waiting = false
		a, ok := resp.(*kmsg.SyncGroupResponse)
		if !ok {
			m.again = true
			return
		}
		m.s.print("%s < sync %v %s", m.name, api.ErrorFor(a.ErrorCode), assignmentText(a.MemberAssignment))
		if a.ErrorCode != 0 {
			m.failed(a.ErrorCode)
			return
		}
		m.s.stats.rebalances++
		m.epoch, m.known, m.s.stir = j.Generation, m.said, true
		got := m.s.assigned(a.MemberAssignment)
		_, rest := m.owned().split(got.has)
		m.drop(func(id partitionID) bool { return rest.has(id.topic, id.partition) })
		m.take(got)
		if slices.ContainsFunc(got, func(tp topicPartitions) bool { return !slices.Contains(m.reads, m.s.name(tp.topic)) }) {
			m.again = true // it has changed what it reads
		}
		if m.group.cooperative && len(rest) > 0 {
			m.again = true
			m.later(0, func() {
				if !m.waiting && m.again {
					m.join()
				}
			})
		}
	})
}

// assigned reads an assignment; topics that are gone are not in it.
func (s *simulation) assigned(b []byte) partitions {
	var a kmsg.ConsumerMemberAssignment
	if len(b) > 0 && a.ReadFrom(b) != nil {
		s.fail("assignment %x can't be read", b)
	}
	var tps []topicPartitions
	for _, t := range a.Topics {
		if topic := s.topics.img.Topics.ByName(t.Topic); topic != nil {
			tps = append(tps, topicPartitions{topic: topic.ID, partitions: t.Partitions})
		}
	}
	return normalize(tps)
}

func (m *classicSim) heartbeat() {
	r := kmsg.NewPtrHeartbeatRequest()
	r.Group, r.MemberID, r.InstanceID, r.Generation = m.group.id, m.id, m.instance, m.joined
	m.waiting = true
	m.send(fmt.Sprintf("heartbeat generation %d", m.joined), simPatience, true, func(c *Coordinator, reply func(any)) {
		c.Heartbeat(&Context{Version: 4}, r, func(resp *kmsg.HeartbeatResponse) { reply(resp) })
	}, func(resp any) {
		m.waiting = false
		if a, ok := resp.(*kmsg.HeartbeatResponse); ok && a.ErrorCode != 0 {
			m.s.print("%s < heartbeat %v", m.name, api.ErrorFor(a.ErrorCode))
			m.failed(a.ErrorCode)
			if !m.dead && m.again && !m.waiting {
				m.join()
			}
		}
	})
}

func (m *classicSim) leave() {
	if m.waiting || m.committing {
		m.later(time.Second, m.leave)
		return
	}
	clear(m.parts)
	// Static ones go without a word: they are expected back.
	if m.instance == nil && m.id != "" {
		r := kmsg.NewPtrLeaveGroupRequest()
		r.Group = m.group.id
		lm := kmsg.NewLeaveGroupRequestMember()
		lm.MemberID = m.id
		r.Members = append(r.Members, lm)
		m.send("leave", simPatience, true, func(c *Coordinator, reply func(any)) {
			c.LeaveGroup(&Context{Version: 5}, r, func(resp *kmsg.LeaveGroupResponse) { reply(resp) })
		}, func(any) {})
	}
	m.die()
}

// assign is what the leader does: the partitions of each topic go evenly to its readers, and stay where they are as far as that allows
// when they move in cooperative steps. What moves then is given up first, and taken a generation later.
func (s *simulation) assign(members []kmsg.JoinGroupResponseMember, cooperative bool) []kmsg.SyncGroupRequestGroupAssignment {
	slices.SortFunc(members, func(a, b kmsg.JoinGroupResponseMember) int { return cmp.Compare(a.MemberID, b.MemberID) })
	readers := map[string][]int{}
	type claim struct {
		member     int
		generation int32
	}
	claims := map[topicPartition][]claim{}
	for i, m := range members {
		md := kmsg.NewConsumerMemberMetadata()
		if err := md.ReadFrom(m.ProtocolMetadata); err != nil {
			s.fail("subscription of %s: %v", m.MemberID, err)
		}
		for _, t := range md.Topics {
			readers[t] = append(readers[t], i)
		}
		for _, o := range md.OwnedPartitions {
			for _, p := range o.Partitions {
				tp := topicPartition{o.Topic, p}
				claims[tp] = append(claims[tp], claim{i, md.Generation})
			}
		}
	}
	given := make([]map[string][]int32, len(members))
	for i := range given {
		given[i] = map[string][]int32{}
	}
	for _, name := range sortedKeys(readers) {
		t, who := s.topics.img.Topics.ByName(name), readers[name]
		if t == nil {
			continue
		}
		quota := make([]int, len(members))
		for k, i := range who {
			quota[i] = t.Len() / len(who)
			if k < t.Len()%len(who) {
				quota[i]++
			}
		}
		owner := make([]int, t.Len())
		for p := range owner {
			owner[p] = -1
			if !cooperative {
				continue
			}
			// The claim of the latest generation counts.
			best := int32(-1)
			for _, c := range claims[topicPartition{name, int32(p)}] {
				if c.generation > best && quota[c.member] > 0 {
					best, owner[p] = c.generation, c.member
				}
			}
			if owner[p] >= 0 {
				quota[owner[p]]--
			}
		}
		for p := range owner {
			for _, i := range who {
				if owner[p] < 0 && quota[i] > 0 {
					owner[p] = i
					quota[i]--
				}
			}
			withheld := slices.ContainsFunc(claims[topicPartition{name, int32(p)}], func(c claim) bool { return c.member != owner[p] })
			if owner[p] >= 0 && !(cooperative && withheld) {
				given[owner[p]][name] = append(given[owner[p]][name], int32(p))
			}
		}
	}
	out := make([]kmsg.SyncGroupRequestGroupAssignment, len(members))
	for i, m := range members {
		a := kmsg.NewConsumerMemberAssignment()
		for _, name := range sortedKeys(given[i]) {
			a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: name, Partitions: given[i][name]})
		}
		out[i] = kmsg.SyncGroupRequestGroupAssignment{MemberID: m.MemberID, MemberAssignment: a.AppendTo(nil)}
	}
	return out
}

// administer deletes a group or offsets, as an administrator might; what is in use must be refused, which follow sees.
func (s *simulation) administer() {
	g := s.groups[s.rand.IntN(len(s.groups))]
	node := s.log.leader
	if s.chance(50) {
		s.ask("delete group "+g.id, node, func(c *Coordinator, reply func(any)) {
			c.DeleteGroups(&Context{Version: 2}, []string{g.id}, func(r []kmsg.DeleteGroupsResponseGroup) { reply(r) })
		}, func(any) {})
		return
	}
	r := kmsg.NewPtrOffsetDeleteRequest()
	r.Group = g.id
	for t := range s.topics.img.Topics.All() {
		r.Topics = append(r.Topics, kmsg.OffsetDeleteRequestTopic{Topic: t.Name, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}})
	}
	slices.SortFunc(r.Topics, func(a, b kmsg.OffsetDeleteRequestTopic) int { return cmp.Compare(a.Topic, b.Topic) })
	s.ask("delete offsets of "+g.id, node, func(c *Coordinator, reply func(any)) {
		c.OffsetDelete(&Context{Version: 0}, r, func(resp *kmsg.OffsetDeleteResponse) { reply(resp) })
	}, func(any) {})
}
