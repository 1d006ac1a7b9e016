package group

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/timeline"
)

// modernGroup is a share (KIP-932) or streams group (KIP-1071). It keeps every record of the group, on the timeline, and can
// say what they tell: state, subscriptions, members' epochs, and the tombstones that remove it all.
type modernGroup struct {
	id string
	k  Kind
	// records has the latest of each.
	records *timeline.Map[recordName, Record]
	// members counts the records of memberMetadata's type.
	members *timeline.Counter
}

// recordName is what a record of a modern group is about: its type, and within it a member, a regular expression or nothing.
type recordName struct {
	kind int16
	name string
}

// modernLayout has the record types of each kind, and in which order they are removed: what refers to members before the
// members, and the group last.
type modernLayout struct {
	group, member, target, current int16
	order                          []int16
	// protocolType is what ListGroups says.
	protocolType string
}

var modernLayouts = [...]modernLayout{
	Share:   {group: 11, member: 10, target: 12, current: 14, order: []int16{14, 13, 12, 10, 15, 11}, protocolType: "share"},
	Streams: {group: 17, member: 19, target: 20, current: 22, order: []int16{22, 21, 20, 19, 23, 17}, protocolType: "streams"},
}

// modernName takes a record key apart.
func modernName(key message.Message) (k Kind, groupID string, n recordName, ok bool) {
	n.kind = key.APIKey()
	ok = true
	switch key := key.(type) {
	case *message.ShareGroupMetadataKey:
		k, groupID = Share, key.GroupID
	case *message.ShareGroupMemberMetadataKey:
		k, groupID, n.name = Share, key.GroupID, key.MemberID
	case *message.ShareGroupTargetAssignmentMetadataKey:
		k, groupID = Share, key.GroupID
	case *message.ShareGroupTargetAssignmentMemberKey:
		k, groupID, n.name = Share, key.GroupID, key.MemberID
	case *message.ShareGroupCurrentMemberAssignmentKey:
		k, groupID, n.name = Share, key.GroupID, key.MemberID
	case *message.ShareGroupStatePartitionMetadataKey:
		k, groupID = Share, key.GroupID
	case *message.StreamsGroupMetadataKey:
		k, groupID = Streams, key.GroupID
	case *message.StreamsGroupMemberMetadataKey:
		k, groupID, n.name = Streams, key.GroupID, key.MemberID
	case *message.StreamsGroupTargetAssignmentMetadataKey:
		k, groupID = Streams, key.GroupID
	case *message.StreamsGroupTargetAssignmentMemberKey:
		k, groupID, n.name = Streams, key.GroupID, key.MemberID
	case *message.StreamsGroupCurrentMemberAssignmentKey:
		k, groupID, n.name = Streams, key.GroupID, key.MemberID
	case *message.StreamsGroupTopologyKey:
		k, groupID = Streams, key.GroupID
	default:
		ok = false
	}
	return k, groupID, n, ok
}

// replayModern applies a record of a share or streams group.
func (c *core) replayModern(r Record) error {
	k, id, n, ok := modernName(r.Key)
	if !ok {
		return fmt.Errorf("no group has records of type %d", r.Key.APIKey())
	}
	existing, _ := c.groups.Get(id)
	g, modern := existing.(*modernGroup)
	if !modern || g.k != k {
		if r.Value == nil {
			return nil // the rest of a group that is gone or has become another kind
		}
		// Compaction may leave offsets before the group's records, and they have made a simple group of it.
		g = &modernGroup{
			id: id, k: k,
			records: timeline.NewMap[recordName, Record](c.env.Registry),
			members: timeline.NewCounter(c.env.Registry, 0),
		}
		c.groups.Set(id, g)
	}
	layout := &modernLayouts[k]
	switch {
	case r.Value != nil:
		if _, existed := g.records.Set(n, r); !existed && n.kind == layout.member {
			g.members.Add(1)
		}
	case n.kind == layout.group:
		c.groups.Delete(id)
	default:
		if _, existed := g.records.Delete(n); existed && n.kind == layout.member {
			g.members.Add(-1)
		}
	}
	return nil
}

func (g *modernGroup) groupID() string { return g.id }
func (g *modernGroup) kind() Kind      { return g.k }
func (g *modernGroup) empty() bool     { return g.members.Get() == 0 }

// at returns a record's value as of a log offset, nil if there is none.
func (g *modernGroup) at(asOf int64, kind int16, name string) message.Message {
	r, _ := g.records.At(asOf, recordName{kind, name})
	return r.Value
}

// epochAt is the group epoch: it rises with whatever changes what should be assigned.
func (g *modernGroup) epochAt(asOf int64) int32 {
	switch v := g.at(asOf, modernLayouts[g.k].group, "").(type) {
	case *message.ShareGroupMetadataValue:
		return v.Epoch
	case *message.StreamsGroupMetadataValue:
		return v.Epoch
	}
	return 0
}

// targetEpochAt is the group epoch for which the target assignment was computed.
func (g *modernGroup) targetEpochAt(asOf int64) int32 {
	switch v := g.at(asOf, modernLayouts[g.k].target, "").(type) {
	case *message.ShareGroupTargetAssignmentMetadataValue:
		return v.AssignmentEpoch
	case *message.StreamsGroupTargetAssignmentMetadataValue:
		return v.AssignmentEpoch
	}
	return -1
}

// memberEpochAt is a member's epoch and whether it has all that is assigned to it and no more; ok false if it isn't there.
func (g *modernGroup) memberEpochAt(asOf int64, member string) (epoch int32, settled, ok bool) {
	if g.at(asOf, modernLayouts[g.k].member, member) == nil {
		return 0, false, false
	}
	const stable = 0
	switch v := g.at(asOf, modernLayouts[g.k].current, member).(type) {
	case *message.ShareGroupCurrentMemberAssignmentValue:
		return v.MemberEpoch, true, true
	case *message.StreamsGroupCurrentMemberAssignmentValue:
		return v.MemberEpoch, v.State == stable, true
	}
	return 0, true, true
}

func (g *modernGroup) stateAt(asOf int64) string {
	layout := &modernLayouts[g.k]
	switch {
	case g.members.At(asOf) == 0:
		return "Empty"
	case g.k == Share:
		return "Stable"
	case g.k == Streams && g.at(asOf, layout.topology(), "") == nil:
		return "NotReady"
	}
	target := g.targetEpochAt(asOf)
	if g.epochAt(asOf) > target {
		return "Assigning"
	}
	for n := range g.records.AllAt(asOf) {
		if n.kind != layout.member {
			continue
		}
		if epoch, settled, _ := g.memberEpochAt(asOf, n.name); epoch != target || !settled {
			return "Reconciling"
		}
	}
	return "Stable"
}

// topology is the type of the record that says what a streams group computes.
func (*modernLayout) topology() int16 { return 23 }

func (g *modernGroup) list(asOf int64) kmsg.ListGroupsResponseGroup {
	l := kmsg.NewListGroupsResponseGroup()
	l.Group, l.ProtocolType = g.id, modernLayouts[g.k].protocolType
	l.GroupState, l.GroupType = g.stateAt(asOf), g.k.listed()
	return l
}

func (g *modernGroup) tombstones(records []Record) []Record {
	byKind := make(map[int16][]Record)
	for n, r := range g.records.All() {
		byKind[n.kind] = append(byKind[n.kind], Record{Key: r.Key})
	}
	for _, kind := range modernLayouts[g.k].order {
		records = append(records, byKind[kind]...)
	}
	return records
}

func (g *modernGroup) subscribes(topic string) bool {
	names := func(topics []string) bool {
		for _, t := range topics {
			if t == topic {
				return true
			}
		}
		return false
	}
	for _, r := range g.records.All() {
		switch v := r.Value.(type) {
		case *message.ShareGroupMemberMetadataValue:
			if names(v.SubscribedTopicNames) {
				return true
			}
		case *message.StreamsGroupTopologyValue:
			for _, s := range v.Subtopologies {
				if names(s.SourceTopics) {
					return true
				}
				for _, t := range s.RepartitionSourceTopics {
					if t.Name == topic {
						return true
					}
				}
			}
		}
	}
	return false
}

// noOffsets refuses what only groups with offsets can do.
func (g *modernGroup) noOffsets() error {
	return api.WithMessage(api.ErrGroupIDNotFound, "Group %s is not a consumer group.", g.id)
}

// commitNeedsMemberEpoch is the version of OffsetCommit that has room for a member epoch.
const commitNeedsMemberEpoch = 9

func (g *modernGroup) checkOffsetCommit(c *commitCheck) (partitionCheck, error) {
	if g.k == Share {
		return nil, g.noOffsets()
	}
	if c.generation < 0 && g.empty() {
		return nil, nil
	}
	// A producer that doesn't say who it is (KIP-447 lets it) is fenced by its epoch alone.
	if c.transactional && c.generation < 0 && c.memberID == "" && c.instanceID == nil {
		return nil, nil
	}
	epoch, _, ok := g.memberEpochAt(timeline.Latest, c.memberID)
	switch {
	case !ok:
		return nil, api.WithMessage(api.ErrUnknownMemberID, "Member %s is not a member of group %s.", c.memberID, g.id)
	case !c.transactional && c.version < commitNeedsMemberEpoch:
		return nil, api.WithMessage(api.ErrUnsupportedVersion,
			"OffsetCommit version 9 or above must be used by members using the modern group protocol")
	case epoch == c.generation:
		return nil, nil
	}
	return nil, api.WithMessage(api.ErrStaleMemberEpoch,
		"The received member epoch %d does not match the expected member epoch %d.", c.generation, epoch)
}

func (g *modernGroup) checkOffsetFetch(memberID *string, memberEpoch int32, asOf int64) error {
	if g.k == Share {
		return g.noOffsets()
	}
	if memberID == nil && memberEpoch < 0 {
		return nil
	}
	var id string
	if memberID != nil {
		id = *memberID
	}
	epoch, _, ok := g.memberEpochAt(asOf, id)
	switch {
	case !ok:
		return api.WithMessage(api.ErrUnknownMemberID, "Member %s is not a member of group %s.", id, g.id)
	case epoch != memberEpoch:
		return api.WithMessage(api.ErrStaleMemberEpoch,
			"The received member epoch %d does not match the expected member epoch %d.", memberEpoch, epoch)
	}
	return nil
}

func (g *modernGroup) checkOffsetDelete() error {
	if g.k == Share {
		return g.noOffsets()
	}
	return nil
}

func (g *modernGroup) checkDelete() error {
	if !g.empty() {
		return api.ErrNonEmptyGroup
	}
	return nil
}

func (g *modernGroup) expiry() (from func(*offset) int64, ok bool) {
	return func(o *offset) int64 { return o.commitTimestamp }, g.k != Share
}
