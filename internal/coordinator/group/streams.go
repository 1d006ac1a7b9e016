package group

import (
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// streamsGroup is a group of KIP-1071: the members of a Kafka Streams application. Its state is on the timeline and changes in
// apply alone, record by record, but for configured and what is said to be soft.
type streamsGroup struct {
	id string
	// meta is the group epoch and what it stands on.
	meta *timeline.Value[streamsMetadata]
	// target is for which group epoch the targets were computed, and when.
	target   *timeline.Value[targetTime]
	targets  *timeline.Map[string, *roleTasks]
	members  *timeline.Map[string, *streamsMember]
	topology *timeline.Value[*topology]
	// static has the ids of the static members by instance.
	static *timeline.Map[string, string]
	// owners has the member that has a task as an active one, having it or giving it up.
	owners *timeline.Map[taskID, string]
	// holders counts the members of a process that hold a task in a role.
	holders *timeline.Map[holding, int32]
	// settled counts members that have all of the target of an epoch.
	settled *timeline.Map[int32, int32]
	// configured is what the topology means with the topics that there are; nil until a heartbeat has looked.
	configured *timeline.Value[*configuredTopology]
	// seen is the value of touched as of which the group's hash and configured are right. It goes back with them.
	seen *timeline.Value[int64]

	// The rest is soft state. touched counts changes of topics that the topology needs.
	touched int64
	// positions is what members have said about the state of their tasks.
	positions map[string]*taskOffsets
	// shutdown is the member that has asked for all to stop; empty for none.
	shutdown string
	// endpointEpoch rises when it changes who can be asked for which state.
	endpointEpoch int32
}

// streamsMetadata is the group record.
type streamsMetadata struct {
	epoch int32
	// hash is that of the topics that the topology needs, as of epoch; validated the epoch of the topology if it could run then.
	hash      int64
	validated int32
	// configs are the settings that the assignment was computed with. They are not changed.
	configs map[string]string
	// described and notDescribed are topology epochs that a broker with a plugin for descriptions has noted.
	described, notDescribed int32
}

// holding is a task in a role in a process.
type holding struct {
	role    taskRole
	task    taskID
	process string
}

func newStreamsGroup(r *timeline.Registry, id string) *streamsGroup {
	return &streamsGroup{
		id:         id,
		meta:       timeline.NewValue(r, streamsMetadata{epoch: firstEpoch, validated: -1, described: -1, notDescribed: -1}),
		target:     timeline.NewValue(r, targetTime{epoch: firstEpoch}),
		targets:    timeline.NewMap[string, *roleTasks](r),
		members:    timeline.NewMap[string, *streamsMember](r),
		topology:   timeline.NewValue[*topology](r, nil),
		static:     timeline.NewMap[string, string](r),
		owners:     timeline.NewMap[taskID, string](r),
		holders:    timeline.NewMap[holding, int32](r),
		settled:    timeline.NewMap[int32, int32](r),
		configured: timeline.NewValue[*configuredTopology](r, nil),
		seen:       timeline.NewValue[int64](r, -1),
		positions:  make(map[string]*taskOffsets),
	}
}

// streamsRecordOf is the group that a record of a streams group belongs to.
func streamsRecordOf(key message.Message) (groupID string, ok bool) {
	switch k := key.(type) {
	case *message.StreamsGroupMetadataKey:
		return k.GroupID, true
	case *message.StreamsGroupTopologyKey:
		return k.GroupID, true
	case *message.StreamsGroupMemberMetadataKey:
		return k.GroupID, true
	case *message.StreamsGroupTargetAssignmentMetadataKey:
		return k.GroupID, true
	case *message.StreamsGroupTargetAssignmentMemberKey:
		return k.GroupID, true
	case *message.StreamsGroupCurrentMemberAssignmentKey:
		return k.GroupID, true
	}
	return "", false
}

// replayStreams applies a record of a streams group.
func (c *core) replayStreams(id string, r Record) {
	existing, _ := c.groups.Get(id)
	g, ok := existing.(*streamsGroup)
	if !ok {
		if r.Value == nil {
			return // the rest of a group that is gone or has become another kind
		}
		// Compaction may leave offsets before the group's records, and they have made a simple group of it.
		g = newStreamsGroup(c.env.Registry, id)
		c.groups.Set(id, g)
	}
	if !g.apply(r) {
		c.groups.Delete(id)
		c.stopInitialDelay(id)
	}
}

// apply changes the group as a record says; false means that the record removes it. What compaction has left may come in an
// order that was never written; apply takes every record for itself.
func (g *streamsGroup) apply(r Record) bool {
	switch k := r.Key.(type) {
	case *message.StreamsGroupMetadataKey:
		v, _ := r.Value.(*message.StreamsGroupMetadataValue)
		if v == nil {
			return false
		}
		m := streamsMetadata{
			epoch: v.Epoch, hash: v.MetadataHash, validated: v.ValidatedTopologyEpoch, configs: make(map[string]string),
			described: v.StoredDescriptionTopologyEpoch, notDescribed: v.FailedDescriptionTopologyEpoch,
		}
		for _, c := range v.LastAssignmentConfigs {
			m.configs[c.Key] = c.Value
		}
		g.meta.Set(m)
	case *message.StreamsGroupTopologyKey:
		var t *topology
		if v, _ := r.Value.(*message.StreamsGroupTopologyValue); v != nil {
			t = newTopology(v)
		}
		g.topology.Set(t)
	case *message.StreamsGroupMemberMetadataKey:
		old, _ := g.members.Get(k.MemberID)
		if v, _ := r.Value.(*message.StreamsGroupMemberMetadataValue); v != nil {
			g.setMember(old, old.withSelf(k.MemberID, v))
		} else if old != nil {
			g.setMember(old, nil)
		}
	case *message.StreamsGroupCurrentMemberAssignmentKey:
		old, _ := g.members.Get(k.MemberID)
		if v, _ := r.Value.(*message.StreamsGroupCurrentMemberAssignmentValue); v != nil {
			g.setMember(old, old.withPlace(k.MemberID, v))
		} else if old != nil {
			bare := *old
			bare.epoch, bare.previous, bare.assigned, bare.revoking = leaveEpoch, leaveEpoch, roleTasks{}, roleTasks{}
			g.setMember(old, &bare)
		}
	case *message.StreamsGroupTargetAssignmentMemberKey:
		if v, _ := r.Value.(*message.StreamsGroupTargetAssignmentMemberValue); v != nil {
			g.targets.Set(k.MemberID, &roleTasks{
				tasksFromTarget(v.ActiveTasks), tasksFromTarget(v.StandbyTasks), tasksFromTarget(v.WarmupTasks),
			})
		} else {
			g.targets.Delete(k.MemberID)
		}
	case *message.StreamsGroupTargetAssignmentMetadataKey:
		t := targetTime{epoch: -1}
		if v, _ := r.Value.(*message.StreamsGroupTargetAssignmentMetadataValue); v != nil {
			t = targetTime{v.AssignmentEpoch, v.AssignmentTimestamp}
		}
		g.target.Set(t)
	}
	return true
}

// setMember replaces a member; either may be nil.
func (g *streamsGroup) setMember(old, member *streamsMember) {
	if old != nil {
		if old.instanceID != nil {
			if id, _ := g.static.Get(*old.instanceID); id == old.id {
				g.static.Delete(*old.instanceID)
			}
		}
		g.hold(old, -1)
	}
	if member == nil {
		g.members.Delete(old.id)
		delete(g.positions, old.id)
		if g.members.Len() == 0 {
			g.shutdown = ""
		}
		return
	}
	g.members.Set(member.id, member)
	if member.instanceID != nil {
		g.static.Set(*member.instanceID, member.id)
	}
	g.hold(member, 1)
}

// hold counts what a member holds, or takes it away. An active task that another has by now, because compaction has removed that
// this member gave it up, stays the other's.
func (g *streamsGroup) hold(m *streamsMember, n int32) {
	if m.state == memberStable {
		add(g.settled, m.epoch, n)
	}
	for _, held := range []*roleTasks{&m.assigned, &m.revoking} {
		for role := range taskRoles {
			for _, t := range held[role] {
				add(g.holders, holding{role, t.taskID, m.processID}, n)
			}
		}
		for _, t := range held[active] {
			if n > 0 {
				g.owners.Set(t.taskID, m.id)
			} else if o, _ := g.owners.Get(t.taskID); o == m.id {
				g.owners.Delete(t.taskID)
			}
		}
	}
}

// add adds to a count, which isn't there while it is 0.
func add[K comparable](counts *timeline.Map[K, int32], key K, n int32) {
	old, _ := counts.Get(key)
	if old += n; old == 0 {
		counts.Delete(key)
	} else {
		counts.Set(key, old)
	}
}

// staticMember finds a member by its instance id, nil if there is none.
func (g *streamsGroup) staticMember(instance string) *streamsMember {
	id, ok := g.static.Get(instance)
	if !ok {
		return nil
	}
	m, _ := g.members.Get(id)
	return m
}

// member finds a member.
func (g *streamsGroup) member(id string) (*streamsMember, error) {
	if m, ok := g.members.Get(id); ok {
		return m, nil
	}
	return nil, api.WithMessage(api.ErrUnknownMemberID, "Member %s is not a member of group %s.", id, g.id)
}

func (g *streamsGroup) groupID() string { return g.id }
func (g *streamsGroup) kind() Kind      { return Streams }
func (g *streamsGroup) empty() bool     { return g.members.Len() == 0 }

func (g *streamsGroup) stateAt(asOf int64) string {
	n := 0
	if asOf == timeline.Latest {
		n = g.members.Len()
	} else {
		for range g.members.AllAt(asOf) {
			n++
		}
	}
	meta, target, t := g.meta.At(asOf), g.target.At(asOf).epoch, g.topology.At(asOf)
	settled, _ := g.settled.At(asOf, target)
	switch {
	case n == 0:
		return "Empty"
	case t == nil || t.epoch != meta.validated:
		return "NotReady"
	case meta.epoch > target:
		return "Assigning"
	case int(settled) < n:
		return "Reconciling"
	default:
		return "Stable"
	}
}

func (g *streamsGroup) subscribes(topic string) bool {
	t := g.topology.Get()
	if t == nil || g.empty() {
		return false
	}
	_, ok := t.sources[topic]
	return ok
}

func (g *streamsGroup) list(asOf int64) kmsg.ListGroupsResponseGroup {
	l := kmsg.NewListGroupsResponseGroup()
	l.Group, l.ProtocolType, l.GroupState, l.GroupType = g.id, Streams.listed(), g.stateAt(asOf), Streams.listed()
	return l
}

// tombstones removes what refers to members before the members, and the group after them.
func (g *streamsGroup) tombstones(records []Record) []Record {
	var ids []string
	for id := range g.members.All() {
		ids = append(ids, id)
	}
	for _, m := range ids {
		records = append(records, Record{Key: &message.StreamsGroupCurrentMemberAssignmentKey{GroupID: g.id, MemberID: m}})
	}
	for _, m := range ids {
		records = append(records, Record{Key: &message.StreamsGroupTargetAssignmentMemberKey{GroupID: g.id, MemberID: m}})
	}
	records = append(records, Record{Key: &message.StreamsGroupTargetAssignmentMetadataKey{GroupID: g.id}})
	for _, m := range ids {
		records = append(records, Record{Key: &message.StreamsGroupMemberMetadataKey{GroupID: g.id, MemberID: m}})
	}
	return append(records,
		Record{Key: &message.StreamsGroupMetadataKey{GroupID: g.id}},
		Record{Key: &message.StreamsGroupTopologyKey{GroupID: g.id}})
}

// metadataRecord stores the group epoch and what it stands on.
func (m streamsMetadata) record(group string) Record {
	v := &message.StreamsGroupMetadataValue{
		Epoch: m.epoch, MetadataHash: m.hash, ValidatedTopologyEpoch: m.validated,
		LastAssignmentConfigs:          []message.StreamsGroupMetadataValueLastAssignmentConfig{},
		StoredDescriptionTopologyEpoch: m.described, FailedDescriptionTopologyEpoch: m.notDescribed,
	}
	for _, k := range slices.Sorted(maps.Keys(m.configs)) {
		v.LastAssignmentConfigs = append(v.LastAssignmentConfigs, message.StreamsGroupMetadataValueLastAssignmentConfig{Key: k, Value: m.configs[k]})
	}
	return Record{Key: &message.StreamsGroupMetadataKey{GroupID: group}, Value: v}
}

// commitNeedsMemberEpoch is the version of OffsetCommit that has room for a member epoch.
const commitNeedsMemberEpoch = 9

func (g *streamsGroup) checkOffsetCommit(c *commitCheck) (partitionCheck, error) {
	if c.generation < 0 && g.empty() {
		return nil, nil
	}
	// A producer that doesn't say who it is (KIP-447 lets it) is fenced by its epoch alone.
	if c.transactional && c.generation < 0 && c.memberID == "" && c.instanceID == nil {
		return nil, nil
	}
	m, err := g.member(c.memberID)
	stale := func(format string, a ...any) error { return api.WithMessage(api.ErrStaleMemberEpoch, format, a...) }
	switch {
	case err != nil:
		return nil, err
	case !c.transactional && c.version < commitNeedsMemberEpoch:
		return nil, api.WithMessage(api.ErrUnsupportedVersion,
			"OffsetCommit version 9 or above must be used by members using the streams group protocol")
	case c.generation == m.epoch:
		return nil, nil
	case c.generation > m.epoch:
		return nil, stale("Received member epoch %d is newer than current member epoch %d.", c.generation, m.epoch)
	}
	t := g.topology.Get()
	if t == nil {
		return nil, stale("Topology is not available for offset commit validation.")
	}
	// An epoch that is behind is as good as the present one for tasks that the member has had since then.
	return func(topic string, _ uuid.UUID, partition int32) error {
		sub, ok := t.sources[topic]
		if !ok {
			return stale("Topic %s is not in the topology.", topic)
		}
		since, ok := m.assigned[active].epoch(taskID{sub, partition})
		if !ok {
			since, ok = m.revoking[active].epoch(taskID{sub, partition})
		}
		switch {
		case !ok:
			return stale("Task %s-%d is not assigned or pending revocation for member.", sub, partition)
		case c.generation < since:
			return stale("Received member epoch %d is older than assignment epoch %d for task %s-%d.", c.generation, since, sub, partition)
		}
		return nil
	}, nil
}

func (g *streamsGroup) checkOffsetFetch(memberID *string, memberEpoch int32, asOf int64) error {
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
	case m.epoch != memberEpoch:
		return api.WithMessage(api.ErrStaleMemberEpoch,
			"The received member epoch %d does not match the expected member epoch %d.", memberEpoch, m.epoch)
	}
	return nil
}

func (g *streamsGroup) checkOffsetDelete() error { return nil }

func (g *streamsGroup) checkDelete() error {
	if !g.empty() {
		return api.ErrNonEmptyGroup
	}
	return nil
}

func (g *streamsGroup) expiry() (from func(*offset) int64, ok bool) {
	return func(o *offset) int64 { return o.commitTimestamp }, true
}

// describe is the group's entry in StreamsGroupDescribe.
func (g *streamsGroup) describe(asOf int64, assignor string) kmsg.StreamsGroupDescribeResponseGroup {
	d := kmsg.NewStreamsGroupDescribeResponseGroup()
	d.Group, d.State, d.AssignorName = g.id, g.stateAt(asOf), &assignor
	d.Epoch, d.AssignmentEpoch = g.meta.At(asOf).epoch, g.target.At(asOf).epoch
	if t := g.topology.At(asOf); t != nil {
		c := g.configured.At(asOf)
		if c != nil && (c.of != t || !c.ready()) {
			c = nil
		}
		d.Topology = describeTopology(t, c)
	}
	for id, m := range g.members.AllAt(asOf) {
		target, _ := g.targets.At(asOf, id)
		if target == nil {
			target = &roleTasks{}
		}
		d.Members = append(d.Members, m.describe(target, g.positions[id]))
	}
	slices.SortFunc(d.Members, func(a, b kmsg.StreamsGroupDescribeResponseGroupMember) int {
		return strings.Compare(a.MemberID, b.MemberID)
	})
	return d
}
