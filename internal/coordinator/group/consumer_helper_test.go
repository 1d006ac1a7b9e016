package group

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// world is the metadata that a machine's core sees.
type world struct {
	img *metadata.Image
	ids int
	// last has the last id of each topic, deleted ones included.
	last map[string]uuid.UUID
}

// topicID is the id of a topic, which begins with its name: ids then sort as names do.
func (w *world) topicID(name string) (id uuid.UUID) {
	w.ids++
	copy(id[:14], name)
	id[15] = byte(w.ids)
	if w.last == nil {
		w.last = map[string]uuid.UUID{}
	}
	w.last[name] = id
	return id
}

// set makes topics have these numbers of partitions; 0 deletes one. It returns what that changes.
func (w *world) set(sizes map[string]int) *metadata.TopicsDelta {
	d := metadata.NewDelta(w.img)
	replay := func(m message.Message) {
		if err := d.Replay(m); err != nil {
			panic(err)
		}
	}
	for _, name := range sortedKeys(sizes) {
		t, n, had := w.img.Topics.ByName(name), sizes[name], 0
		var id uuid.UUID
		switch {
		case n == 0 && t != nil:
			replay(&message.RemoveTopicRecord{TopicID: t.ID})
			continue
		case n == 0:
			continue
		case t == nil:
			id = w.topicID(name)
			replay(&message.TopicRecord{Name: name, TopicID: id})
		default:
			id, had = t.ID, t.Len()
		}
		for p := had; p < n; p++ {
			replay(&message.PartitionRecord{TopicID: id, PartitionID: int32(p), Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
		}
	}
	w.img = d.Apply(metadata.Provenance{Offset: w.img.Offset + 1})
	return d.Topics
}

func sortedKeys[V any](m map[string]V) []string {
	var ks []string
	for k := range m {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}

// topics changes topics and tells the core.
func (m *machine) topics(sizes map[string]int) {
	var tc topicChanges
	if d := m.world.set(sizes); d != nil {
		tc = changesOf(d)
	}
	m.core.metadataUpdated(m.world.img, tc)
}

// name is a topic's name by its id.
func (m *machine) name(id [16]byte) string { return strings.TrimRight(string(id[:14]), "\x00") }

// show is partitions, with their epochs if they have any: "orders[0@3,1@3]".
func (m *machine) show(ps partitions) string {
	var s []string
	for _, tp := range ps {
		var parts []string
		for i, p := range tp.partitions {
			text := strconv.Itoa(int(p))
			if tp.epochs != nil {
				text += "@" + strconv.Itoa(int(tp.epochs[i]))
			}
			parts = append(parts, text)
		}
		s = append(s, m.name(tp.topic)+"["+strings.Join(parts, ",")+"]")
	}
	if s == nil {
		return "nothing"
	}
	return strings.Join(s, " ")
}

// heartbeatRequest makes a ConsumerGroupHeartbeat of a member of group.
func (m *machine) consumerHeartbeat(version int16, client string, r *kmsg.ConsumerGroupHeartbeatRequest) *kmsg.ConsumerGroupHeartbeatResponse {
	res, resp, err := m.core.consumerHeartbeat(&Context{ClientID: client, ClientHost: "/10.0.0.1", Version: version}, r, m.now)
	if err == nil {
		err = m.apply(res, -1)
	}
	if err != nil {
		m.print("%s <- %v", client, err)
		return nil
	}
	text := fmt.Sprintf("%s <- member=%s epoch=%d", client, *resp.MemberID, resp.MemberEpoch)
	if resp.Assignment != nil {
		var tps []topicPartitions
		for _, t := range resp.Assignment.Topics {
			tps = append(tps, topicPartitions{topic: t.TopicID, partitions: t.Partitions})
		}
		text += " has " + m.show(normalize(tps))
	}
	m.print("%s", text)
	return resp
}

// work runs what is to be done in the background.
func (m *machine) work() {
	jobs := m.jobs
	m.jobs = nil
	for _, job := range jobs {
		res, err := job()(m.core, m.now)
		if err != nil {
			m.print("background: %v", err)
			continue
		}
		_ = m.apply(res, -1)
	}
}

// runConsumer are the commands of scenarios about consumer groups; false if it isn't one.
func (s *script) runConsumer(command, group string, version int16, a args) bool {
	switch command {
	case "topics":
		// topics NAME:PARTITIONS...: 0 deletes
		sizes := map[string]int{}
		for _, w := range a.plain {
			name, n, _ := strings.Cut(w, ":")
			sizes[name], _ = strconv.Atoi(n)
		}
		s.topics(sizes)
	case "hb":
		// hb CLIENT member= epoch= [instance= rack= rebalance= reads=a+b regex= assignor= owns=orders-0+orders-1|nothing]
		r := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		r.Group, r.MemberID, r.InstanceID, r.RackID = group, a.text("member", a.plain[0]), a.optional("instance"), a.optional("rack")
		r.MemberEpoch = int32(a.number("epoch", 0))
		r.RebalanceTimeoutMillis = int32(a.number("rebalance", -1))
		r.ServerAssignor, r.SubscribedTopicRegex = a.optional("assignor"), a.optional("regex")
		if v, ok := a.named["reads"]; ok {
			r.SubscribedTopicNames = []string{}
			if v != "" {
				r.SubscribedTopicNames = strings.Split(v, "+")
			}
		}
		if v, ok := a.named["owns"]; ok {
			r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
			if v != "nothing" {
				topics, by := args{plain: strings.Split(v, "+")}.partitions()
				for _, name := range topics {
					t := kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: s.world.last[name]}
					for _, p := range by[name] {
						t.Partitions = append(t.Partitions, int32(p[0]))
					}
					r.Topics = append(r.Topics, t)
				}
			}
		}
		if r.MemberEpoch == joinEpoch {
			if r.RebalanceTimeoutMillis == -1 {
				r.RebalanceTimeoutMillis = 60_000
			}
			if r.Topics == nil {
				r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
			}
			if r.SubscribedTopicNames == nil && r.SubscribedTopicRegex == nil {
				r.SubscribedTopicNames = []string{"orders"}
			}
		}
		c := Coordinator{cfg: s.cfg}
		if err := c.checkHeartbeat(version, r); err != nil {
			s.print("%s <- %v", a.plain[0], err)
			break
		}
		s.consumerHeartbeat(version, a.plain[0], r)
	case "work":
		s.work()
	case "members":
		// members [GROUP]: ConsumerGroupDescribe
		d := s.core.describeConsumer(group, timeline.Latest)
		if d.ErrorCode != 0 {
			s.print("%s: %s %s", d.Group, codeName(d.ErrorCode), *d.ErrorMessage)
			break
		}
		s.print("%s: %s epoch=%d target=%d assignor=%s", d.Group, d.State, d.Epoch, d.AssignmentEpoch, d.AssignorName)
		slices.SortFunc(d.Members, func(x, y kmsg.ConsumerGroupDescribeResponseGroupMember) int {
			return strings.Compare(x.MemberID, y.MemberID)
		})
		for _, m := range d.Members {
			parts := func(as kmsg.Assignment) string {
				var tps []topicPartitions
				for _, t := range as.TopicPartitions {
					tps = append(tps, topicPartitions{topic: t.TopicID, partitions: t.Partitions})
				}
				return s.show(normalize(tps))
			}
			s.print("  %s epoch=%d type=%d has %s, target %s", m.MemberID, m.MemberEpoch, m.MemberType, parts(m.Assignment), parts(m.TargetAssignment))
		}
	default:
		return false
	}
	return true
}

// setConsumer are the settings of the command "set" for consumer groups.
func (s *script) setConsumer(a args) {
	if v := a.number("consumer-max-size", 0); v > 0 {
		s.cfg.ConsumerMaxSize = v
	}
	if v, ok := a.named["assignment-interval"]; ok {
		s.cfg.Consumer.AssignmentInterval, _ = time.ParseDuration(v)
	}
	if v, ok := a.named["regex-refresh"]; ok {
		s.cfg.RegexRefreshInterval, _ = time.ParseDuration(v)
	}
	if v, ok := a.named["assignors"]; ok {
		s.cfg.Assignors = strings.Split(v, ",")
	}
	if v, ok := a.named["migration"]; ok {
		s.cfg.Migration = ParseMigrationPolicy(v)
	}
}

// describeConsumerRecord is one line about a record of a consumer group.
func (m *machine) describeConsumerRecord(r Record) string {
	switch k := r.Key.(type) {
	case *message.ConsumerGroupMetadataKey:
		if v, ok := r.Value.(*message.ConsumerGroupMetadataValue); ok {
			return fmt.Sprintf("epoch of %s: %d", k.GroupID, v.Epoch)
		}
		return "epoch of " + k.GroupID
	case *message.ConsumerGroupPartitionMetadataKey:
		return "partition metadata of " + k.GroupID
	case *message.ConsumerGroupMemberMetadataKey:
		if v, ok := r.Value.(*message.ConsumerGroupMemberMetadataValue); ok {
			text := fmt.Sprintf("member %s/%s: reads %v", k.GroupID, k.MemberID, v.SubscribedTopicNames)
			if v.SubscribedTopicRegex != nil && *v.SubscribedTopicRegex != "" {
				text += " and " + *v.SubscribedTopicRegex
			}
			if v.ClassicMemberMetadata != nil {
				text += " (classic)"
			}
			return text
		}
		return "member " + k.GroupID + "/" + k.MemberID
	case *message.ConsumerGroupCurrentMemberAssignmentKey:
		if v, ok := r.Value.(*message.ConsumerGroupCurrentMemberAssignmentValue); ok {
			c := (*consumerMember)(nil).withPlace(k.MemberID, v)
			text := fmt.Sprintf("place %s/%s: epoch %d, before %d, %s, has %s", k.GroupID, k.MemberID, c.epoch, c.previous,
				map[memberState]string{memberStable: "stable", memberUnrevoked: "unrevoked", memberUnreleased: "unreleased"}[c.state], m.show(c.assigned))
			if len(c.revoking) > 0 {
				text += ", gives up " + m.show(c.revoking)
			}
			return text
		}
		return "place " + k.GroupID + "/" + k.MemberID
	case *message.ConsumerGroupTargetAssignmentMetadataKey:
		if v, ok := r.Value.(*message.ConsumerGroupTargetAssignmentMetadataValue); ok {
			return fmt.Sprintf("target of %s: for epoch %d", k.GroupID, v.AssignmentEpoch)
		}
		return "target of " + k.GroupID
	case *message.ConsumerGroupTargetAssignmentMemberKey:
		if v, ok := r.Value.(*message.ConsumerGroupTargetAssignmentMemberValue); ok {
			return fmt.Sprintf("target %s/%s: %s", k.GroupID, k.MemberID, m.show(targetFromRecord(v)))
		}
		return "target " + k.GroupID + "/" + k.MemberID
	case *message.ConsumerGroupRegularExpressionKey:
		if v, ok := r.Value.(*message.ConsumerGroupRegularExpressionValue); ok {
			return fmt.Sprintf("regex %s/%s: matches %v", k.GroupID, k.RegularExpression, v.Topics)
		}
		return "regex " + k.GroupID + "/" + k.RegularExpression
	}
	return ""
}
