package group

import (
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// firstEpoch is the group epoch of a consumer group that is new, and that of its first, empty target: members who come before
// anything was assigned are at this epoch.
const firstEpoch int32 = 1

// consumerGroup is a group of KIP-848. Its state is on the timeline and changes in apply alone, record by record.
type consumerGroup struct {
	id string
	// epoch rises with whatever changes what should be assigned: members, what they read, how many partitions there are.
	epoch *timeline.Value[int32]
	// hash is that of the topics that members read, as of epoch.
	hash *timeline.Value[int64]
	// target is for which group epoch the targets were computed, and when.
	target  *timeline.Value[targetTime]
	targets *timeline.Map[string, partitions]
	members *timeline.Map[string, *consumerMember]
	// static has the ids of the static members by instance.
	static *timeline.Map[string, string]
	// owners has who holds a partition, having or giving it up.
	owners *timeline.Map[partitionID, string]
	// regexes has what the members' regular expressions match.
	regexes *timeline.Map[string, resolvedRegex]
	// tallies are what is counted of the members.
	tallies *timeline.Map[tallyKey, int32]
	// topics counts who reads a topic.
	topics *timeline.Map[string, readers]
	// hasPartitionMetadata says that there is a record of a kind that isn't written any more and should be removed.
	hasPartitionMetadata *timeline.Value[bool]

	// fresh says that hash is that of the present topics, as long as the group epoch is at least freshEpoch: if what made it so
	// was rolled back it must be done again. It is soft state.
	fresh      bool
	freshEpoch int32
	// unbalanced says that the group was a classic one until this very request, and in the middle of a rebalance: what its members
	// have is not all that there is, and there must be a new target even if the request itself gives no reason.
	unbalanced bool
}

// targetTime is a group epoch and when the target for it was computed, in ms, 0 if that doesn't matter.
type targetTime struct {
	epoch int32
	at    int64
}

// tally is a kind of count.
type tally uint8

const (
	// settledAt counts members that have all of the target of an epoch.
	settledAt tally = iota
	// wantsAssignor counts members by the assignor that they would like.
	wantsAssignor
	// readsRegex counts members by their regular expression.
	readsRegex
	// speaksClassic counts members of the classic protocol.
	speaksClassic
	// supportsProtocol counts those by the protocols that they have.
	supportsProtocol
)

type tallyKey struct {
	what  tally
	epoch int32
	name  string
}

// readers counts who reads a topic: members that name it, and regular expressions that match it, each once however many members
// have it.
type readers struct{ byName, byRegex int32 }

// resolvedRegex is what a regular expression matched.
type resolvedRegex struct {
	topics []string // rising
	// version is the metadata offset, at the time in ms.
	version, at int64
}

func newConsumerGroup(r *timeline.Registry, id string) *consumerGroup {
	return &consumerGroup{
		id:                   id,
		epoch:                timeline.NewValue(r, firstEpoch),
		hash:                 timeline.NewValue(r, int64(0)),
		target:               timeline.NewValue(r, targetTime{epoch: firstEpoch}),
		targets:              timeline.NewMap[string, partitions](r),
		members:              timeline.NewMap[string, *consumerMember](r),
		static:               timeline.NewMap[string, string](r),
		owners:               timeline.NewMap[partitionID, string](r),
		regexes:              timeline.NewMap[string, resolvedRegex](r),
		tallies:              timeline.NewMap[tallyKey, int32](r),
		topics:               timeline.NewMap[string, readers](r),
		hasPartitionMetadata: timeline.NewValue(r, false),
	}
}

// consumerRecordOf is the group that a record of a consumer group belongs to.
func consumerRecordOf(key message.Message) (groupID string, ok bool) {
	switch k := key.(type) {
	case *message.ConsumerGroupMetadataKey:
		return k.GroupID, true
	case *message.ConsumerGroupPartitionMetadataKey:
		return k.GroupID, true
	case *message.ConsumerGroupMemberMetadataKey:
		return k.GroupID, true
	case *message.ConsumerGroupTargetAssignmentMetadataKey:
		return k.GroupID, true
	case *message.ConsumerGroupTargetAssignmentMemberKey:
		return k.GroupID, true
	case *message.ConsumerGroupCurrentMemberAssignmentKey:
		return k.GroupID, true
	case *message.ConsumerGroupRegularExpressionKey:
		return k.GroupID, true
	}
	return "", false
}

// replayConsumer applies a record of a consumer group.
func (c *core) replayConsumer(id string, r Record) {
	existing, _ := c.groups.Get(id)
	g, ok := existing.(*consumerGroup)
	if !ok {
		if r.Value == nil {
			return // the rest of a group that is gone or has become another kind
		}
		// Compaction may leave offsets before the group's records, and they have made a simple group of it.
		g = newConsumerGroup(c.env.Registry, id)
		c.groups.Set(id, g)
	}
	if !g.apply(r) {
		c.groups.Delete(id)
	}
}

// apply changes the group as a record says; false means that the record removes it. What compaction has left may come in an
// order that was never written; apply takes every record for itself.
func (g *consumerGroup) apply(r Record) bool {
	switch k := r.Key.(type) {
	case *message.ConsumerGroupMetadataKey:
		v, _ := r.Value.(*message.ConsumerGroupMetadataValue)
		if v == nil {
			return false
		}
		g.epoch.Set(v.Epoch)
		g.hash.Set(v.MetadataHash)
	case *message.ConsumerGroupPartitionMetadataKey:
		g.hasPartitionMetadata.Set(r.Value != nil)
	case *message.ConsumerGroupMemberMetadataKey:
		old, _ := g.members.Get(k.MemberID)
		if v, _ := r.Value.(*message.ConsumerGroupMemberMetadataValue); v != nil {
			g.setMember(old, old.withSelf(k.MemberID, v))
		} else if old != nil {
			g.setMember(old, nil)
		}
	case *message.ConsumerGroupCurrentMemberAssignmentKey:
		old, _ := g.members.Get(k.MemberID)
		if v, _ := r.Value.(*message.ConsumerGroupCurrentMemberAssignmentValue); v != nil {
			g.setMember(old, old.withPlace(k.MemberID, v))
		} else if old != nil {
			bare := *old
			bare.epoch, bare.previous, bare.assigned, bare.revoking = leaveEpoch, leaveEpoch, nil, nil
			g.setMember(old, &bare)
		}
	case *message.ConsumerGroupTargetAssignmentMemberKey:
		if v, _ := r.Value.(*message.ConsumerGroupTargetAssignmentMemberValue); v != nil {
			g.targets.Set(k.MemberID, targetFromRecord(v))
		} else {
			g.targets.Delete(k.MemberID)
		}
	case *message.ConsumerGroupTargetAssignmentMetadataKey:
		t := targetTime{epoch: -1}
		if v, _ := r.Value.(*message.ConsumerGroupTargetAssignmentMetadataValue); v != nil {
			t = targetTime{v.AssignmentEpoch, v.AssignmentTimestamp}
		}
		g.target.Set(t)
	case *message.ConsumerGroupRegularExpressionKey:
		if old, ok := g.regexes.Delete(k.RegularExpression); ok {
			g.countTopics(old.topics, readers{byRegex: -1})
		}
		if v, _ := r.Value.(*message.ConsumerGroupRegularExpressionValue); v != nil {
			resolved := resolvedRegex{v.Topics, v.Version, v.Timestamp}
			if !slices.IsSorted(resolved.topics) {
				resolved.topics = slices.Sorted(slices.Values(resolved.topics))
			}
			g.regexes.Set(k.RegularExpression, resolved)
			g.countTopics(resolved.topics, readers{byRegex: 1})
		}
	}
	return true
}

// setMember replaces a member; either may be nil.
func (g *consumerGroup) setMember(old, member *consumerMember) {
	if old != nil {
		g.countMember(old, -1)
		g.countTopics(old.topics, readers{byName: -1})
		if old.instanceID != nil {
			if id, _ := g.static.Get(*old.instanceID); id == old.id {
				g.static.Delete(*old.instanceID)
			}
		}
		g.release(old.id, old.assigned)
		g.release(old.id, old.revoking)
	}
	if member == nil {
		g.members.Delete(old.id)
		return
	}
	g.members.Set(member.id, member)
	g.countMember(member, 1)
	g.countTopics(member.topics, readers{byName: 1})
	if member.instanceID != nil {
		g.static.Set(*member.instanceID, member.id)
	}
	g.hold(member.id, member.assigned)
	g.hold(member.id, member.revoking)
}

func (g *consumerGroup) hold(member string, ps partitions) {
	for _, tp := range ps {
		for _, p := range tp.partitions {
			g.owners.Set(partitionID{tp.topic, p}, member)
		}
	}
}

// release frees what the member holds. If another has it by now, because compaction has removed that this one gave it up,
// it stays the other's.
func (g *consumerGroup) release(member string, ps partitions) {
	for _, tp := range ps {
		for _, p := range tp.partitions {
			id := partitionID{tp.topic, p}
			if o, _ := g.owners.Get(id); o == member {
				g.owners.Delete(id)
			}
		}
	}
}

func (g *consumerGroup) count(key tallyKey, n int32) {
	old, _ := g.tallies.Get(key)
	if old += n; old == 0 {
		g.tallies.Delete(key)
	} else {
		g.tallies.Set(key, old)
	}
}

func (g *consumerGroup) countMember(m *consumerMember, n int32) {
	if m.state == memberStable {
		g.count(tallyKey{what: settledAt, epoch: m.epoch}, n)
	}
	if m.assignor != nil {
		g.count(tallyKey{what: wantsAssignor, name: *m.assignor}, n)
	}
	if m.regex != "" {
		g.count(tallyKey{what: readsRegex, name: m.regex}, n)
	}
	if m.classic != nil {
		g.count(tallyKey{what: speaksClassic}, n)
		for i := range m.classic.SupportedProtocols {
			g.count(tallyKey{what: supportsProtocol, name: m.classic.SupportedProtocols[i].Name}, n)
		}
	}
}

func (g *consumerGroup) countTopics(topics []string, n readers) {
	for _, t := range topics {
		r, _ := g.topics.Get(t)
		if r = (readers{r.byName + n.byName, r.byRegex + n.byRegex}); r == (readers{}) {
			g.topics.Delete(t)
		} else {
			g.topics.Set(t, r)
		}
	}
}

// tallyOf reads a count.
func (g *consumerGroup) tallyOf(key tallyKey) int {
	n, _ := g.tallies.Get(key)
	return int(n)
}

// regexReaders counts the members that have a regular expression.
func (g *consumerGroup) regexReaders(regex string) int {
	return g.tallyOf(tallyKey{what: readsRegex, name: regex})
}

// regexMembers counts members by their regular expression.
func (g *consumerGroup) regexMembers() map[string]int {
	n := make(map[string]int)
	for k, v := range g.tallies.All() {
		if k.what == readsRegex {
			n[k.name] = int(v)
		}
	}
	return n
}

// staticMember finds a member by its instance id, nil if there is none.
func (g *consumerGroup) staticMember(instance string) *consumerMember {
	id, ok := g.static.Get(instance)
	if !ok {
		return nil
	}
	m, _ := g.members.Get(id)
	return m
}

// member finds a member.
func (g *consumerGroup) member(id string) (*consumerMember, error) {
	if m, ok := g.members.Get(id); ok {
		return m, nil
	}
	return nil, api.WithMessage(api.ErrUnknownMemberID, "Member %s is not a member of group %s.", id, g.id)
}

// targetOf is a member's target. A static member that has come back gets that of the member it replaces.
func (g *consumerGroup) targetOf(m *consumerMember) partitions {
	id := m.id
	if m.instanceID != nil {
		id, _ = g.static.Get(*m.instanceID)
	}
	target, _ := g.targets.Get(id)
	return target
}

// assignorAt is the assignor that most members want, empty if nobody wants one; among several the first by name.
func (g *consumerGroup) assignorAt(asOf int64) string {
	return mostWanted(func(yield func(string, int32) bool) {
		for k, n := range g.tallies.AllAt(asOf) {
			if k.what == wantsAssignor && !yield(k.name, n) {
				return
			}
		}
	})
}

func mostWanted(counts func(yield func(string, int32) bool)) string {
	var best string
	var most int32
	for name, n := range counts {
		if n > most || n == most && n > 0 && name < best {
			best, most = name, n
		}
	}
	return best
}

// assignorWith is assignorAt with a member replaced by another; either may be nil.
func (g *consumerGroup) assignorWith(old, member *consumerMember) string {
	counts := make(map[string]int32)
	for k, n := range g.tallies.All() {
		if k.what == wantsAssignor {
			counts[k.name] = n
		}
	}
	if old != nil && old.assignor != nil {
		counts[*old.assignor]--
	}
	if member != nil && member.assignor != nil {
		counts[*member.assignor]++
	}
	return mostWanted(maps.All(counts))
}

func (g *consumerGroup) groupID() string { return g.id }
func (g *consumerGroup) kind() Kind      { return Consumer }
func (g *consumerGroup) empty() bool     { return g.members.Len() == 0 }

func (g *consumerGroup) stateAt(asOf int64) string {
	n := 0
	if asOf == timeline.Latest {
		n = g.members.Len()
	} else {
		for range g.members.AllAt(asOf) {
			n++
		}
	}
	target := g.target.At(asOf).epoch
	settled, _ := g.tallies.At(asOf, tallyKey{what: settledAt, epoch: target})
	switch {
	case n == 0:
		return "Empty"
	case g.epoch.At(asOf) > target:
		return "Assigning"
	case int(settled) < n:
		return "Reconciling"
	default:
		return "Stable"
	}
}

func (g *consumerGroup) subscribes(topic string) bool {
	_, ok := g.topics.Get(topic)
	return ok
}

func (g *consumerGroup) list(asOf int64) kmsg.ListGroupsResponseGroup {
	l := kmsg.NewListGroupsResponseGroup()
	l.Group, l.ProtocolType, l.GroupState, l.GroupType = g.id, consumerProtocol, g.stateAt(asOf), Consumer.listed()
	return l
}

// tombstones removes what refers to members before the members, and the group last.
func (g *consumerGroup) tombstones(records []Record) []Record {
	return g.tombstonesFor(records, slices.Collect(g.memberIDs()))
}

func (g *consumerGroup) memberIDs() func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for id := range g.members.All() {
			if !yield(id) {
				return
			}
		}
	}
}

// tombstonesFor is tombstones of a group that has these members.
func (g *consumerGroup) tombstonesFor(records []Record, members []string) []Record {
	for _, m := range members {
		records = append(records, Record{Key: &message.ConsumerGroupCurrentMemberAssignmentKey{GroupID: g.id, MemberID: m}})
	}
	for _, m := range members {
		records = append(records, Record{Key: &message.ConsumerGroupTargetAssignmentMemberKey{GroupID: g.id, MemberID: m}})
	}
	records = append(records, Record{Key: &message.ConsumerGroupTargetAssignmentMetadataKey{GroupID: g.id}})
	for _, m := range members {
		records = append(records, Record{Key: &message.ConsumerGroupMemberMetadataKey{GroupID: g.id, MemberID: m}})
	}
	for regex := range g.regexes.All() {
		records = append(records, regexTombstone(g.id, regex))
	}
	return append(records,
		Record{Key: &message.ConsumerGroupPartitionMetadataKey{GroupID: g.id}},
		Record{Key: &message.ConsumerGroupMetadataKey{GroupID: g.id}})
}

func (g *consumerGroup) checkOffsetCommit(c *commitCheck) (partitionCheck, error) {
	if c.generation < 0 && g.empty() {
		return nil, nil
	}
	// A producer that doesn't say who it is (KIP-447 lets it) is fenced by its epoch alone.
	if c.transactional && c.generation < 0 && c.memberID == "" && c.instanceID == nil {
		return nil, nil
	}
	m, err := g.member(c.memberID)
	switch {
	case err != nil:
		return nil, err
	case m.classic == nil && !c.transactional && c.version < commitNeedsMemberEpoch:
		return nil, api.WithMessage(api.ErrUnsupportedVersion,
			"OffsetCommit version 9 or above must be used by members using the consumer group protocol")
	case c.generation == m.epoch:
		return nil, nil
	}
	stale := api.ErrStaleMemberEpoch
	word := "member epoch"
	if m.classic != nil {
		stale, word = api.ErrIllegalGeneration, "generation id"
	}
	if c.generation > m.epoch {
		return nil, api.WithMessage(stale, "Received %s %d is newer than current member epoch %d.", word, c.generation, m.epoch)
	}
	// An epoch that is behind is as good as the present one for partitions that the member has had since then.
	return func(topic string, id uuid.UUID, partition int32) error {
		since, ok := m.assigned.epoch(id, partition)
		if !ok {
			since, ok = m.revoking.epoch(id, partition)
		}
		switch {
		case !ok:
			return api.WithMessage(stale, "Partition %s-%d is not assigned or pending revocation for member.", topic, partition)
		case c.generation < since:
			return api.WithMessage(stale, "Received %s %d is older than assignment epoch %d for partition %s-%d.",
				word, c.generation, since, topic, partition)
		}
		return nil
	}, nil
}

func (g *consumerGroup) checkOffsetFetch(memberID *string, memberEpoch int32, asOf int64) error {
	if memberID == nil && memberEpoch < 0 {
		return nil
	}
	var id string
	if memberID != nil {
		id = *memberID
	}
	m, ok := g.members.At(asOf, id)
	switch {
	case !ok:
		return api.WithMessage(api.ErrUnknownMemberID, "Member %s is not a member of group %s.", id, g.id)
	case m.epoch == memberEpoch:
		return nil
	case m.classic != nil:
		return api.WithMessage(api.ErrIllegalGeneration,
			"The received generation id %d does not match the expected member epoch %d.", memberEpoch, m.epoch)
	}
	return api.WithMessage(api.ErrStaleMemberEpoch,
		"The received member epoch %d does not match the expected member epoch %d.", memberEpoch, m.epoch)
}

func (g *consumerGroup) checkOffsetDelete() error { return nil }

func (g *consumerGroup) checkDelete() error {
	if !g.empty() {
		return api.ErrNonEmptyGroup
	}
	return nil
}

func (g *consumerGroup) expiry() (from func(*offset) int64, ok bool) {
	return func(o *offset) int64 { return o.commitTimestamp }, true
}

// describe is the group's entry in ConsumerGroupDescribe.
func (g *consumerGroup) describe(asOf int64, defaultAssignor string, img *metadata.Image) kmsg.ConsumerGroupDescribeResponseGroup {
	d := kmsg.NewConsumerGroupDescribeResponseGroup()
	d.Group, d.State = g.id, g.stateAt(asOf)
	d.Epoch, d.AssignmentEpoch = g.epoch.At(asOf), g.target.At(asOf).epoch
	if d.AssignorName = g.assignorAt(asOf); d.AssignorName == "" {
		d.AssignorName = defaultAssignor
	}
	for id, m := range g.members.AllAt(asOf) {
		target, _ := g.targets.At(asOf, id)
		dm := kmsg.NewConsumerGroupDescribeResponseGroupMember()
		dm.MemberID, dm.InstanceID, dm.RackID, dm.MemberEpoch = id, m.instanceID, m.rackID, m.epoch
		dm.ClientID, dm.ClientHost = m.clientID, m.clientHost
		dm.SubscribedTopics, dm.SubscribedTopicRegex = m.topics, &m.regex
		dm.Assignment.TopicPartitions = described(m.assigned.union(m.revoking), img)
		dm.TargetAssignment.TopicPartitions = described(target, img)
		dm.MemberType = 1
		if m.classic != nil {
			dm.MemberType = 0
		}
		d.Members = append(d.Members, dm)
	}
	return d
}

// described gives topics that still exist their names.
func described(ps partitions, img *metadata.Image) []kmsg.AssignmentTopicPartition {
	var tps []kmsg.AssignmentTopicPartition
	for _, tp := range ps {
		if t := img.Topics.ByID(tp.topic); t != nil {
			tps = append(tps, kmsg.AssignmentTopicPartition{TopicID: tp.topic, Topic: t.Name, Partitions: tp.partitions})
		}
	}
	return tps
}
