package group

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/timeline"
)

// shareGroup is a group of KIP-932. It keeps every record of the group, on the timeline, and can say what they tell: whether it has
// members, what they read, and the tombstones that remove it all.
type shareGroup struct {
	id string
	// records has the latest of each.
	records *timeline.Map[recordName, Record]
	// members counts the member records.
	members *timeline.Counter
}

// recordName is what a record of a share group is about: its type, and within it a member or nothing.
type recordName struct {
	kind   int16
	member string
}

// Types of the records of share groups, and in which order they are removed: what refers to members before the members, and the
// group last.
const (
	shareMemberRecord = 10
	shareGroupRecord  = 11
)

var shareRemoval = []int16{14, 13, 12, shareMemberRecord, 15, shareGroupRecord}

// shareName takes a record key apart.
func shareName(key message.Message) (groupID string, n recordName, ok bool) {
	n.kind = key.APIKey()
	ok = true
	switch key := key.(type) {
	case *message.ShareGroupMetadataKey:
		groupID = key.GroupID
	case *message.ShareGroupMemberMetadataKey:
		groupID, n.member = key.GroupID, key.MemberID
	case *message.ShareGroupTargetAssignmentMetadataKey:
		groupID = key.GroupID
	case *message.ShareGroupTargetAssignmentMemberKey:
		groupID, n.member = key.GroupID, key.MemberID
	case *message.ShareGroupCurrentMemberAssignmentKey:
		groupID, n.member = key.GroupID, key.MemberID
	case *message.ShareGroupStatePartitionMetadataKey:
		groupID = key.GroupID
	default:
		ok = false
	}
	return groupID, n, ok
}

// replayShare applies a record of a share group.
func (c *core) replayShare(r Record) error {
	id, n, ok := shareName(r.Key)
	if !ok {
		return fmt.Errorf("no group has records of type %d", r.Key.APIKey())
	}
	existing, _ := c.groups.Get(id)
	g, ok := existing.(*shareGroup)
	if !ok {
		if r.Value == nil {
			return nil // the rest of a group that is gone or has become another kind
		}
		// Compaction may leave offsets before the group's records, and they have made a simple group of it.
		g = &shareGroup{id: id, records: timeline.NewMap[recordName, Record](c.env.Registry), members: timeline.NewCounter(c.env.Registry, 0)}
		c.groups.Set(id, g)
	}
	switch {
	case r.Value != nil:
		if _, existed := g.records.Set(n, r); !existed && n.kind == shareMemberRecord {
			g.members.Add(1)
		}
	case n.kind == shareGroupRecord:
		c.groups.Delete(id)
	default:
		if _, existed := g.records.Delete(n); existed && n.kind == shareMemberRecord {
			g.members.Add(-1)
		}
	}
	return nil
}

func (g *shareGroup) groupID() string { return g.id }
func (g *shareGroup) kind() Kind      { return Share }
func (g *shareGroup) empty() bool     { return g.members.Get() == 0 }

func (g *shareGroup) stateAt(asOf int64) string {
	if g.members.At(asOf) == 0 {
		return "Empty"
	}
	return "Stable"
}

func (g *shareGroup) list(asOf int64) kmsg.ListGroupsResponseGroup {
	l := kmsg.NewListGroupsResponseGroup()
	l.Group, l.ProtocolType, l.GroupState, l.GroupType = g.id, Share.listed(), g.stateAt(asOf), Share.listed()
	return l
}

func (g *shareGroup) tombstones(records []Record) []Record {
	byKind := make(map[int16][]Record)
	for n, r := range g.records.All() {
		byKind[n.kind] = append(byKind[n.kind], Record{Key: r.Key})
	}
	for _, kind := range shareRemoval {
		records = append(records, byKind[kind]...)
	}
	return records
}

func (g *shareGroup) subscribes(topic string) bool {
	for _, r := range g.records.All() {
		if v, ok := r.Value.(*message.ShareGroupMemberMetadataValue); ok && slices.Contains(v.SubscribedTopicNames, topic) {
			return true
		}
	}
	return false
}

// noOffsets refuses what only groups with offsets can do.
func (g *shareGroup) noOffsets() error {
	return api.WithMessage(api.ErrGroupIDNotFound, "Group %s is not a consumer group.", g.id)
}

func (g *shareGroup) checkOffsetCommit(*commitCheck) (partitionCheck, error) {
	return nil, g.noOffsets()
}
func (g *shareGroup) checkOffsetFetch(*string, int32, int64) error { return g.noOffsets() }
func (g *shareGroup) checkOffsetDelete() error                     { return g.noOffsets() }

func (g *shareGroup) checkDelete() error {
	if !g.empty() {
		return api.ErrNonEmptyGroup
	}
	return nil
}

func (g *shareGroup) expiry() (from func(*offset) int64, ok bool) { return nil, false }
