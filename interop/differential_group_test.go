package interop

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// join sets up a JoinGroup request.
func join(group, member string) *kmsg.JoinGroupRequest {
	r := kmsg.NewPtrJoinGroupRequest()
	r.Group, r.MemberID, r.ProtocolType = group, member, "consumer"
	r.SessionTimeoutMillis, r.RebalanceTimeoutMillis = 30000, 30000
	r.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte("meta")}}
	return r
}

func syncGroup(group, member string, generation int32) *kmsg.SyncGroupRequest {
	r := kmsg.NewPtrSyncGroupRequest()
	r.Group, r.MemberID, r.Generation = group, member, generation
	r.ProtocolType, r.Protocol = str("consumer"), str("range")
	return r
}

func diffGroups(t *testing.T, p *pair) {
	// Both create the offsets topic and load it in the background, each in its own time.
	p.both(func(s *side) { s.awaitGroups(t) })
	for _, keys := range [][]string{{"g"}, {"g", "h", ""}, {}} {
		p.each(t, fmt.Sprintf("coordinator of %q", keys), func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrFindCoordinatorRequest()
			r.CoordinatorKeys = keys
			if len(keys) > 0 {
				r.CoordinatorKey = keys[0]
			}
			return r
		})
	}
	for _, kind := range []int8{2, 3, 9, -1} {
		for v := int16(1); v <= p.versions[10][1]; v++ {
			if kind == 2 && v >= 6 {
				continue // share coordinators
			}
			p.at(t, fmt.Sprintf("coordinator of type %d", kind), v, func(s *side) kmsg.Request {
				r := kmsg.NewPtrFindCoordinatorRequest()
				r.CoordinatorType, r.CoordinatorKey, r.CoordinatorKeys = kind, "x", []string{"x"}
				return r
			}, nil)
		}
	}
	for v := p.versions[11][0]; v <= p.versions[11][1]; v++ {
		g := fmt.Sprintf("join-%d", v)
		member := func(s *side) string { m, _ := s.kept[g].(string); return m }
		keep := func(s *side, resp kmsg.Response) { s.kept[g] = resp.(*kmsg.JoinGroupResponse).MemberID }
		p.at(t, "join", v, func(s *side) kmsg.Request { return join(g, "") }, keep)
		if v >= 4 {
			p.at(t, "join with the id", v, func(s *side) kmsg.Request { return join(g, member(s)) }, keep)
		}
		p.at(t, "join with an unknown id", v, func(s *side) kmsg.Request { return join(g, "nobody") }, nil)
		p.at(t, "join with no protocol in common", v, func(s *side) kmsg.Request {
			r := join(g, "")
			r.Protocols[0].Name = "other"
			return r
		}, nil)
		p.at(t, "join without protocols", v, func(s *side) kmsg.Request {
			r := join(g, "")
			r.Protocols = nil
			return r
		}, nil)
		p.at(t, "join with another type", v, func(s *side) kmsg.Request {
			r := join(g, "")
			r.ProtocolType = "other"
			return r
		}, nil)
		p.at(t, "join with no type", v, func(s *side) kmsg.Request {
			r := join(g+"-none", "")
			r.ProtocolType = ""
			return r
		}, nil)
		for _, timeout := range []int32{1, 5999, 1800001, 0, -1} {
			p.at(t, fmt.Sprintf("join with a session timeout of %d", timeout), v, func(s *side) kmsg.Request {
				r := join(g+"-timeouts", "")
				r.SessionTimeoutMillis = timeout
				return r
			}, nil)
		}
		p.at(t, "join no group", v, func(s *side) kmsg.Request { return join("", "") }, nil)
		p.at(t, "sync without assignment, of an unknown member", v/2, func(s *side) kmsg.Request { return syncGroup(g, "nobody", 1) }, nil)
		p.at(t, "sync a wrong generation", v/2, func(s *side) kmsg.Request { return syncGroup(g, member(s), 5) }, nil)
		p.at(t, "sync an unknown group", v/2, func(s *side) kmsg.Request { return syncGroup("no-group", "m", 5) }, nil)
		p.at(t, "sync no group", v/2, func(s *side) kmsg.Request { return syncGroup("", "m", 5) }, nil)
		if v >= 5 {
			p.at(t, "sync another protocol", 5, func(s *side) kmsg.Request {
				r := syncGroup(g, member(s), 1)
				r.Protocol = str("other")
				return r
			}, nil)
			p.at(t, "sync without protocol", 5, func(s *side) kmsg.Request {
				r := syncGroup(g, member(s), 1)
				r.Protocol, r.ProtocolType = nil, nil
				return r
			}, nil)
		}
		p.at(t, "heartbeat before sync", v/2, func(s *side) kmsg.Request {
			r := kmsg.NewPtrHeartbeatRequest()
			r.Group, r.MemberID, r.Generation = g, member(s), 1
			return r
		}, nil)
		describe := func(name string) {
			t.Helper()
			p.at(t, "describe "+name, min(v, 6), func(s *side) kmsg.Request {
				r := kmsg.NewPtrDescribeGroupsRequest()
				r.Groups = []string{g}
				r.IncludeAuthorizedOperations = v >= 3
				return r
			}, nil)
		}
		describe("before sync")
		p.at(t, "commit before sync", 2+min(v, 7), func(s *side) kmsg.Request { return commit(g, member(s), 1, "a", 0, 5) }, nil)
		p.at(t, "sync", v/2, func(s *side) kmsg.Request {
			r := syncGroup(g, member(s), 1)
			r.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: member(s), MemberAssignment: []byte("yours")}}
			return r
		}, nil)
		p.at(t, "sync again", v/2, func(s *side) kmsg.Request { return syncGroup(g, member(s), 1) }, nil)
		describe("stable")
		for _, hb := range []struct {
			name, group, member string
			generation          int32
		}{{"heartbeat", g, "*", 1}, {"heartbeat of a wrong generation", g, "*", 2}, {"heartbeat of nobody", g, "nobody", 1}, {"heartbeat of an unknown group", "no-group", "m", 1}, {"heartbeat of no group", "", "m", 1}} {
			p.at(t, hb.name, v/2, func(s *side) kmsg.Request {
				r := kmsg.NewPtrHeartbeatRequest()
				r.Group, r.MemberID, r.Generation = hb.group, hb.member, hb.generation
				if hb.member == "*" {
					r.MemberID = member(s)
				}
				return r
			}, nil)
		}
		p.at(t, "join as the leader with the same", v, func(s *side) kmsg.Request { return join(g, member(s)) }, nil)
		describe("after the leader joined again")
		p.at(t, "leave as nobody", v/2, func(s *side) kmsg.Request { return leave(g, "nobody") }, nil)
		p.at(t, "leave an unknown group", v/2, func(s *side) kmsg.Request { return leave("no-group", "m") }, nil)
		p.at(t, "delete a group in use", v/3, func(s *side) kmsg.Request {
			r := kmsg.NewPtrDeleteGroupsRequest()
			r.Groups = []string{g, "no-group", ""}
			return r
		}, nil)
		p.at(t, "leave", v/2, func(s *side) kmsg.Request { return leave(g, member(s)) }, nil)
		describe("empty")
		p.at(t, "leave again", v/2, func(s *side) kmsg.Request { return leave(g, member(s)) }, nil)
		if v >= 5 {
			static := func(group, member, instance string) *kmsg.JoinGroupRequest {
				r := join(group, member)
				r.InstanceID = &instance
				return r
			}
			sg := g + "-static"
			p.at(t, "static join", v, func(s *side) kmsg.Request { return static(sg, "", "i1") }, func(s *side, resp kmsg.Response) {
				s.kept[sg] = resp.(*kmsg.JoinGroupResponse).MemberID
			})
			p.at(t, "static sync", 3+(v-5)/2, func(s *side) kmsg.Request {
				r := syncGroup(sg, s.kept[sg].(string), 1)
				r.InstanceID = str("i1")
				r.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: s.kept[sg].(string), MemberAssignment: []byte("static")}}
				return r
			}, nil)
			p.at(t, "static join again", v, func(s *side) kmsg.Request { return static(sg, "", "i1") }, func(s *side, resp kmsg.Response) {
				s.kept[sg+"-2"] = resp.(*kmsg.JoinGroupResponse).MemberID
			})
			p.at(t, "fenced heartbeat", 3+(v-5)/4, func(s *side) kmsg.Request {
				r := kmsg.NewPtrHeartbeatRequest()
				r.Group, r.MemberID, r.Generation, r.InstanceID = sg, s.kept[sg].(string), 1, str("i1")
				return r
			}, nil)
			p.at(t, "heartbeat of an unknown instance", 3+(v-5)/4, func(s *side) kmsg.Request {
				r := kmsg.NewPtrHeartbeatRequest()
				r.Group, r.MemberID, r.Generation, r.InstanceID = sg, s.kept[sg+"-2"].(string), 1, str("i2")
				return r
			}, nil)
			p.at(t, "static member", min(v, 6), func(s *side) kmsg.Request {
				r := kmsg.NewPtrDescribeGroupsRequest()
				r.Groups = []string{sg}
				return r
			}, nil)
			p.at(t, "static leave", 3+(v-5)/2, func(s *side) kmsg.Request {
				r := leave(sg, "")
				r.Members = []kmsg.LeaveGroupRequestMember{{InstanceID: str("i9")}, {InstanceID: str("i1"), MemberID: s.kept[sg].(string)}, {InstanceID: str("i1")}, {MemberID: "nobody"}}
				return r
			}, nil)
			p.at(t, "static member gone", min(v, 6), func(s *side) kmsg.Request {
				r := kmsg.NewPtrDescribeGroupsRequest()
				r.Groups = []string{sg}
				return r
			}, nil)
		}
	}
	p.each(t, "describe unknown groups", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeGroupsRequest()
		r.Groups = []string{"no-group", "", "no-group"}
		return r
	})
	p.each(t, "describe no groups", func(s *side, v int16) kmsg.Request { return kmsg.NewPtrDescribeGroupsRequest() })
	p.each(t, "list", func(s *side, v int16) kmsg.Request { return kmsg.NewPtrListGroupsRequest() })
	for _, states := range [][]string{{"Empty"}, {"empty"}, {"Stable"}, {"Dead"}, {"no such state"}, {"Empty", "Stable"}} {
		for v := int16(4); v <= p.versions[16][1]; v++ {
			p.at(t, fmt.Sprintf("list by states %q", states), v, func(s *side) kmsg.Request {
				r := kmsg.NewPtrListGroupsRequest()
				r.StatesFilter = states
				return r
			}, nil)
		}
	}
	for _, types := range [][]string{{"classic"}, {"Classic"}, {"consumer"}, {"no such type"}} {
		p.at(t, fmt.Sprintf("list by types %q", types), p.versions[16][1], func(s *side) kmsg.Request {
			r := kmsg.NewPtrListGroupsRequest()
			r.TypesFilter = types
			return r
		}, nil)
	}
}

func leave(group, member string) *kmsg.LeaveGroupRequest {
	r := kmsg.NewPtrLeaveGroupRequest()
	r.Group, r.MemberID = group, member
	r.Members = []kmsg.LeaveGroupRequestMember{{MemberID: member, Reason: str("enough")}}
	return r
}

// commit sets up an OffsetCommit request by topic name.
func commit(group, member string, generation int32, topic string, partition int32, offset int64) *kmsg.OffsetCommitRequest {
	r := kmsg.NewPtrOffsetCommitRequest()
	r.Group, r.MemberID, r.Generation, r.RetentionTimeMillis = group, member, generation, -1
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = partition, offset, 0, str("note")
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	return r
}

func diffOffsets(t *testing.T, p *pair) {
	commitAt := func(s *side, v int16, group, member string, generation int32, topic string, partition int32, offset int64) *kmsg.OffsetCommitRequest {
		r := commit(group, member, generation, topic, partition, offset)
		if v >= 10 {
			r.Topics[0].TopicID = unknownID
			if topic != nobody {
				r.Topics[0].TopicID = s.topicID(t, topic)
			}
		}
		return r
	}
	for _, c := range []struct {
		name, group, member string
		generation          int32
		topic               string
		partition           int32
		offset              int64
		edit                func(r *kmsg.OffsetCommitRequest)
	}{
		{"simple", "o", "", -1, "a", 0, 7, nil},
		{"simple, another partition", "o", "", -1, "a", 1, 9, nil},
		{"simple, unknown partition", "o", "", -1, "a", 77, 9, nil},
		{"simple, unknown topic", "o", "", -1, nobody, 0, 9, nil},
		{"negative offset", "o", "", -1, "b", 0, -1, nil},
		{"very negative offset", "o", "", -1, "b", 0, -5, nil},
		{"a generation and no member", "o", "", 3, "a", 0, 7, nil},
		{"a member and no generation", "o", "m", -1, "a", 0, 7, nil},
		{"an unknown member", "o", "m", 3, "a", 0, 7, nil},
		{"a member of an unknown group", "o-unknown", "m", 3, "a", 0, 7, nil},
		{"no group", "", "", -1, "a", 0, 7, nil},
		{"null metadata", "o", "", -1, "b", 1, 3, func(r *kmsg.OffsetCommitRequest) { r.Topics[0].Partitions[0].Metadata = nil }},
		{"too much metadata", "o", "", -1, "b", 1, 4, func(r *kmsg.OffsetCommitRequest) { r.Topics[0].Partitions[0].Metadata = str(strings.Repeat("x", 4097)) }},
		{"no topics", "o", "", -1, "a", 0, 7, func(r *kmsg.OffsetCommitRequest) { r.Topics = nil }},
		{"an instance", "o", "", -1, "a", 0, 7, func(r *kmsg.OffsetCommitRequest) { r.InstanceID = str("i") }},
	} {
		p.each(t, "commit: "+c.name, func(s *side, v int16) kmsg.Request {
			r := commitAt(s, v, c.group, c.member, c.generation, c.topic, c.partition, c.offset)
			if c.edit != nil {
				c.edit(r)
			}
			if r.InstanceID != nil && v < 7 {
				r.InstanceID = nil
			}
			return r
		})
	}
	type topics = map[string][]int32
	for _, c := range []struct {
		name   string
		group  string
		topics topics
		all    bool
	}{
		{"some", "o", topics{"a": {0, 1, 5}, "b": {0, 1}}, false},
		{"all", "o", nil, true},
		{"none", "o", nil, false},
		{"unknown topic", "o", topics{nobody: {0}}, false},
		{"unknown group", "no-group", topics{"a": {0}}, false},
		{"all of an unknown group", "no-group", nil, true},
		{"no group", "", topics{"a": {0}}, false},
	} {
		for _, stable := range []bool{false, true} {
			p.each(t, fmt.Sprintf("fetch: %s, stable %t", c.name, stable), func(s *side, v int16) kmsg.Request {
				r := kmsg.NewPtrOffsetFetchRequest()
				r.Group, r.RequireStable = c.group, stable && v >= 7
				g := kmsg.NewOffsetFetchRequestGroup()
				g.Group, g.MemberEpoch = c.group, -1
				if c.all && v >= 2 {
					r.Topics, g.Topics = nil, nil
				} else {
					r.Topics, g.Topics = []kmsg.OffsetFetchRequestTopic{}, []kmsg.OffsetFetchRequestGroupTopic{}
				}
				for topic, partitions := range c.topics {
					r.Topics = append(r.Topics, kmsg.OffsetFetchRequestTopic{Topic: topic, Partitions: partitions})
					gt := kmsg.OffsetFetchRequestGroupTopic{Topic: topic, Partitions: partitions}
					if v >= 10 {
						gt.TopicID = unknownID
						if topic != nobody {
							gt.TopicID = s.topicID(t, topic)
						}
					}
					g.Topics = append(g.Topics, gt)
				}
				r.Groups = append(r.Groups, g)
				return r
			})
		}
	}
	for v := int16(8); v <= p.versions[9][1]; v++ {
		p.at(t, "fetch several groups", v, func(s *side) kmsg.Request {
			r := kmsg.NewPtrOffsetFetchRequest()
			for _, name := range []string{"o", "no-group", "", "o"} {
				g := kmsg.NewOffsetFetchRequestGroup()
				g.Group, g.MemberEpoch, g.Topics = name, -1, nil
				r.Groups = append(r.Groups, g)
			}
			return r
		}, nil)
	}
	for _, v := range []int16{9, 10} {
		for _, m := range []struct {
			member *string
			epoch  int32
		}{{str("m"), 5}, {str("m"), -1}, {nil, 5}, {str(""), 0}} {
			p.at(t, fmt.Sprintf("fetch as a member with epoch %d", m.epoch), v, func(s *side) kmsg.Request {
				r := kmsg.NewPtrOffsetFetchRequest()
				g := kmsg.NewOffsetFetchRequestGroup()
				g.Group, g.MemberID, g.MemberEpoch, g.Topics = "o", m.member, m.epoch, nil
				r.Groups = append(r.Groups, g)
				return r
			}, nil)
		}
	}
	for _, c := range []struct {
		name, group, topic string
		partition          int32
	}{
		{"one", "o", "a", 1}, {"again", "o", "a", 1}, {"unknown partition", "o", "a", 55}, {"unknown topic", "o", nobody, 0},
		{"unknown group", "no-group", "a", 0}, {"no group", "", "a", 0}, {"without offset", "o", "b", 0},
	} {
		p.each(t, "offset delete: "+c.name, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrOffsetDeleteRequest()
			r.Group = c.group
			rt := kmsg.NewOffsetDeleteRequestTopic()
			rt.Topic = c.topic
			rt.Partitions = []kmsg.OffsetDeleteRequestTopicPartition{{Partition: c.partition}}
			r.Topics = append(r.Topics, rt)
			return r
		})
	}
	p.each(t, "offset delete: nothing", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrOffsetDeleteRequest()
		r.Group = "o"
		return r
	})
	p.each(t, "describe a group of offsets only", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeGroupsRequest()
		r.Groups = []string{"o"}
		return r
	})
	p.each(t, "delete groups", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDeleteGroupsRequest()
		r.Groups = []string{"o", "no-group", "o", ""}
		return r
	})
	p.each(t, "delete no groups", func(s *side, v int16) kmsg.Request { return kmsg.NewPtrDeleteGroupsRequest() })
}
