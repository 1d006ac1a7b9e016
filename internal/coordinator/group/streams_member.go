package group

import (
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
)

// streamsEndpoint is where a member can be asked for its state by others of its application.
type streamsEndpoint struct {
	host string
	port uint16
}

// streamsMember is a member of a streams group: one thread of a process. It is immutable, since it lies on the timeline; every
// change makes a new one.
type streamsMember struct {
	id         string
	instanceID *string
	rackID     *string
	clientID   string
	clientHost string
	// rebalanceTimeout is how many ms it may take to give tasks up; -1 until the member has said.
	rebalanceTimeout int32
	// topologyEpoch is that of the topology that the member runs.
	topologyEpoch int32
	// processID is the same for all members that share a state directory.
	processID string
	endpoint  *streamsEndpoint
	// tags say where the process runs.
	tags map[string]string

	// epoch is that of the target that it has last got tasks of; previous the one before, which a member that has missed an
	// answer may still have.
	epoch, previous int32
	state           memberState
	// assigned is what it has or was told to take; revoking what it was told to give up and hasn't said that it did.
	assigned, revoking roleTasks
}

func newStreamsMember(id string) *streamsMember {
	return &streamsMember{id: id, rebalanceTimeout: -1, topologyEpoch: -1}
}

// moved is the member after a step towards its target.
func (m *streamsMember) moved(epoch int32, state memberState, assigned, revoking roleTasks) *streamsMember {
	n := *m
	n.previous, n.epoch = m.epoch, epoch
	n.state, n.assigned, n.revoking = state, assigned, revoking
	if n.previous == m.previous && n.epoch == m.epoch && n.state == m.state && n.assigned.equal(&m.assigned) && n.revoking.equal(&m.revoking) {
		return m
	}
	return &n
}

// settled says that the member has all of the target of an epoch.
func (m *streamsMember) settled(target int32) bool {
	return m.state == memberStable && m.epoch == target
}

// sameSelf compares what members say of themselves.
func (m *streamsMember) sameSelf(o *streamsMember) bool {
	return equalString(m.instanceID, o.instanceID) && m.clientID == o.clientID && m.clientHost == o.clientHost &&
		m.rebalanceTimeout == o.rebalanceTimeout && m.sameEndpoint(o) && m.sameRun(o)
}

// sameRun compares what assignments may depend on.
func (m *streamsMember) sameRun(o *streamsMember) bool {
	return m.topologyEpoch == o.topologyEpoch && equalString(m.rackID, o.rackID) && m.processID == o.processID && maps.Equal(m.tags, o.tags)
}

func (m *streamsMember) sameEndpoint(o *streamsMember) bool {
	return (m.endpoint == nil) == (o.endpoint == nil) && (m.endpoint == nil || *m.endpoint == *o.endpoint)
}

// sortedTags goes through the tags by their keys.
func (m *streamsMember) sortedTags(yield func(k, v string) bool) {
	for _, k := range slices.Sorted(maps.Keys(m.tags)) {
		if !yield(k, m.tags[k]) {
			return
		}
	}
}

// selfRecord stores what the member says of itself.
func (m *streamsMember) selfRecord(group string) Record {
	v := &message.StreamsGroupMemberMetadataValue{
		InstanceID: m.instanceID, RackID: m.rackID, ClientID: m.clientID, ClientHost: m.clientHost,
		RebalanceTimeoutMs: m.rebalanceTimeout, TopologyEpoch: m.topologyEpoch, ProcessID: m.processID,
	}
	if m.endpoint != nil {
		v.UserEndpoint = &message.StreamsGroupMemberMetadataValueEndpoint{Host: m.endpoint.host, Port: m.endpoint.port}
	}
	for k, tag := range m.sortedTags {
		v.ClientTags = append(v.ClientTags, message.StreamsGroupMemberMetadataValueKeyValue{Key: k, Value: tag})
	}
	return Record{Key: &message.StreamsGroupMemberMetadataKey{GroupID: group, MemberID: m.id}, Value: v}
}

// withSelf is the member with what a record tells; m may be nil.
func (m *streamsMember) withSelf(id string, v *message.StreamsGroupMemberMetadataValue) *streamsMember {
	n := newStreamsMember(id)
	if m != nil {
		*n = *m
	}
	n.instanceID, n.rackID, n.clientID, n.clientHost = v.InstanceID, v.RackID, v.ClientID, v.ClientHost
	n.rebalanceTimeout, n.topologyEpoch, n.processID = v.RebalanceTimeoutMs, v.TopologyEpoch, v.ProcessID
	n.endpoint = nil
	if v.UserEndpoint != nil {
		n.endpoint = &streamsEndpoint{v.UserEndpoint.Host, v.UserEndpoint.Port}
	}
	n.tags = make(map[string]string, len(v.ClientTags))
	for i := range v.ClientTags {
		n.tags[v.ClientTags[i].Key] = v.ClientTags[i].Value
	}
	return n
}

// firstStreamsState is the number of memberStable in records of streams groups: there they begin with 1.
const firstStreamsState = 1

// placeRecord stores where the member is on its way.
func (m *streamsMember) placeRecord(group string) Record {
	return Record{
		Key: &message.StreamsGroupCurrentMemberAssignmentKey{GroupID: group, MemberID: m.id},
		Value: &message.StreamsGroupCurrentMemberAssignmentValue{
			MemberEpoch: m.epoch, PreviousMemberEpoch: m.previous, State: int8(m.state) + firstStreamsState,
			ActiveTasks:                   currentTaskIDs(m.assigned[active], active),
			StandbyTasks:                  currentTaskIDs(m.assigned[standby], standby),
			WarmupTasks:                   currentTaskIDs(m.assigned[warmup], warmup),
			ActiveTasksPendingRevocation:  currentTaskIDs(m.revoking[active], active),
			StandbyTasksPendingRevocation: currentTaskIDs(m.revoking[standby], standby),
			WarmupTasksPendingRevocation:  currentTaskIDs(m.revoking[warmup], warmup),
		},
	}
}

// withPlace is the member with what a record tells; m may be nil.
func (m *streamsMember) withPlace(id string, v *message.StreamsGroupCurrentMemberAssignmentValue) *streamsMember {
	n := newStreamsMember(id)
	if m != nil {
		*n = *m
	}
	n.epoch, n.previous, n.state = v.MemberEpoch, v.PreviousMemberEpoch, memberState(v.State-firstStreamsState)
	if n.state < memberStable || n.state > memberUnreleased {
		n.state = memberUnknown
	}
	n.assigned = roleTasks{
		tasksFromCurrent(v.ActiveTasks, active, v.MemberEpoch),
		tasksFromCurrent(v.StandbyTasks, standby, v.MemberEpoch),
		tasksFromCurrent(v.WarmupTasks, warmup, v.MemberEpoch),
	}
	n.revoking = roleTasks{
		tasksFromCurrent(v.ActiveTasksPendingRevocation, active, v.MemberEpoch),
		tasksFromCurrent(v.StandbyTasksPendingRevocation, standby, v.MemberEpoch),
		tasksFromCurrent(v.WarmupTasksPendingRevocation, warmup, v.MemberEpoch),
	}
	return n
}

// describe is the member's entry in StreamsGroupDescribe.
func (m *streamsMember) describe(target *roleTasks, offsets *taskOffsets) kmsg.StreamsGroupDescribeResponseGroupMember {
	d := kmsg.NewStreamsGroupDescribeResponseGroupMember()
	d.MemberID, d.MemberEpoch, d.InstanceID, d.RackID = m.id, m.epoch, m.instanceID, m.rackID
	d.ClientID, d.ClientHost, d.TopologyEpoch, d.ProcessID = m.clientID, m.clientHost, m.topologyEpoch, m.processID
	if m.endpoint != nil {
		d.UserEndpoint = &kmsg.StreamsGroupDescribeResponseGroupMemberUserEndpoint{Host: m.endpoint.host, Port: m.endpoint.port}
	}
	for k, v := range m.sortedTags {
		d.ClientTags = append(d.ClientTags, kmsg.StreamsGroupDescribeResponseGroupMemberClientTag{Key: k, Value: v})
	}
	d.Assignment, d.TargetAssignment = m.assigned.assignment(), target.assignment()
	if offsets != nil {
		d.TaskOffsets, d.TaskEndOffsets = offsets.now.list(), offsets.end.list()
	}
	return d
}

// taskOffsets is how far a member says that the state of its tasks has got, and how far it goes. It is not stored.
type taskOffsets struct{ now, end taskPositions }

type taskPositions map[taskID]int64

// list is the positions in the order of the tasks.
func (ps taskPositions) list() []kmsg.TaskOffset {
	list := make([]kmsg.TaskOffset, 0, len(ps))
	for _, id := range slices.SortedFunc(maps.Keys(ps), taskID.compare) {
		list = append(list, kmsg.TaskOffset{SubtopologyID: id.subtopology, Partition: id.partition, Offset: ps[id]})
	}
	return list
}

// streamsTargetRecord stores a member's target.
func streamsTargetRecord(group, member string, target *roleTasks) Record {
	return Record{
		Key: &message.StreamsGroupTargetAssignmentMemberKey{GroupID: group, MemberID: member},
		Value: &message.StreamsGroupTargetAssignmentMemberValue{
			ActiveTasks: targetTaskIDs(target[active]), StandbyTasks: targetTaskIDs(target[standby]), WarmupTasks: targetTaskIDs(target[warmup]),
		},
	}
}

// streamsMemberTombstones remove a member: where it is first, itself last.
func streamsMemberTombstones(records []Record, group, member string) []Record {
	return append(records,
		Record{Key: &message.StreamsGroupCurrentMemberAssignmentKey{GroupID: group, MemberID: member}},
		Record{Key: &message.StreamsGroupTargetAssignmentMemberKey{GroupID: group, MemberID: member}},
		Record{Key: &message.StreamsGroupMemberMetadataKey{GroupID: group, MemberID: member}})
}

// streamsTargetEpochRecord stores the group epoch of the target, and when it was computed, in ms; 0 lets the next come at once.
func streamsTargetEpochRecord(group string, epoch int32, at int64) Record {
	return Record{
		Key:   &message.StreamsGroupTargetAssignmentMetadataKey{GroupID: group},
		Value: &message.StreamsGroupTargetAssignmentMetadataValue{AssignmentEpoch: epoch, AssignmentTimestamp: at},
	}
}
