package group

import (
	"bytes"
	"slices"

	"gregor/internal/message"
)

// Member epochs with a meaning of their own.
const (
	// joinEpoch in a heartbeat joins the group.
	joinEpoch int32 = 0
	// leaveEpoch leaves it.
	leaveEpoch int32 = -1
	// leaveStaticEpoch leaves it for the time being: the member's place is kept for its instance id.
	leaveStaticEpoch int32 = -2
)

// consumerMember is a member of a consumer group. It is immutable, since it lies on the timeline; every change makes a new one.
type consumerMember struct {
	id         string
	instanceID *string
	rackID     *string
	clientID   string
	clientHost string
	// rebalanceTimeout is how many ms it may take to give partitions up; -1 until the member has said.
	rebalanceTimeout int32
	// topics that it reads by name, rising.
	topics []string
	// regex is the regular expression for topics that it reads besides; empty for none.
	regex string
	// assignor is the one that it would like; nil for any.
	assignor *string
	// classic is what a member that speaks JoinGroup has said there; nil for others.
	classic *message.ConsumerGroupMemberMetadataValueClassicMemberMetadata

	// epoch is that of the target that it has last got partitions of; previous the one before, which a member that has missed
	// an answer may still have.
	epoch, previous int32
	state           memberState
	// assigned is what it has or was told to take; revoking what it was told to give up and hasn't said that it did.
	assigned, revoking partitions
}

func newConsumerMember(id string) *consumerMember {
	return &consumerMember{id: id, rebalanceTimeout: -1, previous: -1}
}

// moved is the member after a step towards its target.
func (m *consumerMember) moved(epoch int32, state memberState, assigned, revoking partitions) *consumerMember {
	n := *m
	n.previous, n.epoch = m.epoch, epoch
	n.state, n.assigned, n.revoking = state, assigned, revoking
	if n.samePlace(m) {
		return m
	}
	return &n
}

// settled says that the member has all of the target of an epoch.
func (m *consumerMember) settled(target int32) bool {
	return m.state == memberStable && m.epoch == target
}

func equalString(a, b *string) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// sameSelf compares what members say of themselves.
func (m *consumerMember) sameSelf(o *consumerMember) bool {
	return m.id == o.id && equalString(m.instanceID, o.instanceID) && equalString(m.rackID, o.rackID) &&
		m.clientID == o.clientID && m.clientHost == o.clientHost && m.rebalanceTimeout == o.rebalanceTimeout &&
		slices.Equal(m.topics, o.topics) && m.regex == o.regex && equalString(m.assignor, o.assignor) && sameClassic(m.classic, o.classic)
}

// samePlace compares where members are on their way.
func (m *consumerMember) samePlace(o *consumerMember) bool {
	return m.epoch == o.epoch && m.previous == o.previous && m.state == o.state &&
		m.assigned.equal(o.assigned) && m.revoking.equal(o.revoking)
}

func sameClassic(a, b *message.ConsumerGroupMemberMetadataValueClassicMemberMetadata) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SessionTimeoutMs == b.SessionTimeoutMs && slices.EqualFunc(a.SupportedProtocols, b.SupportedProtocols,
		func(p, q message.ConsumerGroupMemberMetadataValueClassicProtocol) bool {
			return p.Name == q.Name && bytes.Equal(p.Metadata, q.Metadata)
		})
}

// selfRecord stores what the member says of itself.
func (m *consumerMember) selfRecord(group string) Record {
	return Record{
		Key: &message.ConsumerGroupMemberMetadataKey{GroupID: group, MemberID: m.id},
		Value: &message.ConsumerGroupMemberMetadataValue{
			InstanceID: m.instanceID, RackID: m.rackID, ClientID: m.clientID, ClientHost: m.clientHost,
			SubscribedTopicNames: m.topics, SubscribedTopicRegex: &m.regex, RebalanceTimeoutMs: m.rebalanceTimeout,
			ServerAssignor: m.assignor, ClassicMemberMetadata: m.classic,
		},
	}
}

// withSelf is the member with what a record tells; m may be nil.
func (m *consumerMember) withSelf(id string, v *message.ConsumerGroupMemberMetadataValue) *consumerMember {
	n := newConsumerMember(id)
	if m != nil {
		*n = *m
	}
	n.instanceID, n.rackID, n.clientID, n.clientHost = v.InstanceID, v.RackID, v.ClientID, v.ClientHost
	n.topics, n.rebalanceTimeout, n.assignor, n.classic = v.SubscribedTopicNames, v.RebalanceTimeoutMs, v.ServerAssignor, v.ClassicMemberMetadata
	if !slices.IsSorted(n.topics) {
		n.topics = slices.Sorted(slices.Values(n.topics))
	}
	n.regex = ""
	if v.SubscribedTopicRegex != nil {
		n.regex = *v.SubscribedTopicRegex
	}
	return n
}

// placeRecord stores where the member is on its way.
func (m *consumerMember) placeRecord(group string) Record {
	return Record{
		Key: &message.ConsumerGroupCurrentMemberAssignmentKey{GroupID: group, MemberID: m.id},
		Value: &message.ConsumerGroupCurrentMemberAssignmentValue{
			MemberEpoch: m.epoch, PreviousMemberEpoch: m.previous, State: int8(m.state),
			AssignedPartitions: heldRecord(m.assigned), PartitionsPendingRevocation: heldRecord(m.revoking),
		},
	}
}

// withPlace is the member with what a record tells; m may be nil.
func (m *consumerMember) withPlace(id string, v *message.ConsumerGroupCurrentMemberAssignmentValue) *consumerMember {
	n := newConsumerMember(id)
	if m != nil {
		*n = *m
	}
	n.epoch, n.previous, n.state = v.MemberEpoch, v.PreviousMemberEpoch, memberState(v.State)
	if n.state < memberStable || n.state > memberUnreleased {
		n.state = memberUnknown
	}
	n.assigned, n.revoking = heldFromRecord(v.AssignedPartitions, v.MemberEpoch), heldFromRecord(v.PartitionsPendingRevocation, v.MemberEpoch)
	return n
}

func heldRecord(ps partitions) []message.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions {
	tps := make([]message.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions, len(ps))
	for i, tp := range ps {
		tps[i].TopicID, tps[i].Partitions, tps[i].AssignmentEpochs = tp.topic, tp.partitions, tp.epochs
	}
	return tps
}

// heldFromRecord reads partitions; those of records before Kafka 4.4 have no epochs, and the member's is taken for theirs.
func heldFromRecord(tps []message.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions, epoch int32) partitions {
	if len(tps) == 0 {
		return nil
	}
	ps := make([]topicPartitions, len(tps))
	for i := range tps {
		ps[i] = topicPartitions{tps[i].TopicID, tps[i].Partitions, tps[i].AssignmentEpochs}
		if len(ps[i].epochs) != len(ps[i].partitions) {
			ps[i].epochs = slices.Repeat([]int32{max(epoch, 0)}, len(ps[i].partitions))
		}
	}
	return normalize(ps)
}

// targetRecord stores a member's target.
func targetRecord(group, member string, target partitions) Record {
	v := &message.ConsumerGroupTargetAssignmentMemberValue{
		TopicPartitions: make([]message.ConsumerGroupTargetAssignmentMemberValueTopicPartition, len(target)),
	}
	for i, tp := range target {
		v.TopicPartitions[i].TopicID, v.TopicPartitions[i].Partitions = tp.topic, tp.partitions
	}
	return Record{Key: &message.ConsumerGroupTargetAssignmentMemberKey{GroupID: group, MemberID: member}, Value: v}
}

func targetFromRecord(v *message.ConsumerGroupTargetAssignmentMemberValue) partitions {
	ps := make([]topicPartitions, len(v.TopicPartitions))
	for i := range v.TopicPartitions {
		ps[i] = topicPartitions{topic: v.TopicPartitions[i].TopicID, partitions: v.TopicPartitions[i].Partitions}
	}
	return normalize(ps)
}

// memberTombstones remove a member: where it is first, itself last.
func memberTombstones(records []Record, group, member string) []Record {
	return append(records,
		Record{Key: &message.ConsumerGroupCurrentMemberAssignmentKey{GroupID: group, MemberID: member}},
		Record{Key: &message.ConsumerGroupTargetAssignmentMemberKey{GroupID: group, MemberID: member}},
		Record{Key: &message.ConsumerGroupMemberMetadataKey{GroupID: group, MemberID: member}})
}

// epochRecord stores the group epoch and the hash of the topics that it stands on.
func epochRecord(group string, epoch int32, hash int64) Record {
	return Record{
		Key:   &message.ConsumerGroupMetadataKey{GroupID: group},
		Value: &message.ConsumerGroupMetadataValue{Epoch: epoch, MetadataHash: hash},
	}
}

// targetEpochRecord stores the group epoch of the target, and when it was computed, in ms; 0 lets the next come at once.
func targetEpochRecord(group string, epoch int32, at int64) Record {
	return Record{
		Key:   &message.ConsumerGroupTargetAssignmentMetadataKey{GroupID: group},
		Value: &message.ConsumerGroupTargetAssignmentMetadataValue{AssignmentEpoch: epoch, AssignmentTimestamp: at},
	}
}
