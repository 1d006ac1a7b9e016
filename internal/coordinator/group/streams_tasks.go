package group

import (
	"cmp"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
)

// taskID names a task: a subtopology on one of its partitions.
type taskID struct {
	subtopology string
	partition   int32
}

func (a taskID) compare(b taskID) int {
	if c := strings.Compare(a.subtopology, b.subtopology); c != 0 {
		return c
	}
	return cmp.Compare(a.partition, b.partition)
}

// task is a task of a member. Only what is held as an active task has an epoch: the member epoch as of which it is.
type task struct {
	taskID
	epoch int32
}

// tasks is a set of tasks in rising order. It is immutable; whatever changes one makes another.
type tasks []task

// taskRole is what a member does with a task.
type taskRole uint8

const (
	// active processes its partitions; at any time one member does that.
	active taskRole = iota
	// standby keeps a copy of its state.
	standby
	// warmup fetches its state, in order to become active. Kafka 4.4 stores it but never hands it out.
	warmup
	taskRoles
)

// roleTasks are the tasks of a member in each role.
type roleTasks [taskRoles]tasks

func (ts tasks) find(id taskID) (int, bool) {
	return slices.BinarySearchFunc(ts, id, func(t task, id taskID) int { return t.compare(id) })
}

func (ts tasks) has(id taskID) bool {
	_, ok := ts.find(id)
	return ok
}

// epoch is the epoch as of which a task is held; ok false if it isn't.
func (ts tasks) epoch(id taskID) (epoch int32, ok bool) {
	i, ok := ts.find(id)
	if !ok {
		return 0, false
	}
	return ts[i].epoch, true
}

// with is the set with a task more, if it wasn't in there.
func (ts tasks) with(t task) tasks {
	i, ok := ts.find(t.taskID)
	if ok {
		return ts
	}
	return slices.Insert(slices.Clone(ts), i, t)
}

// without is the set without a task.
func (ts tasks) without(id taskID) tasks {
	i, ok := ts.find(id)
	if !ok {
		return ts
	}
	return slices.Delete(slices.Clone(ts), i, i+1)
}

// split divides the set in two: what keep says yes to, and the rest.
func (ts tasks) split(keep func(taskID) bool) (kept, rest tasks) {
	for _, t := range ts {
		if keep(t.taskID) {
			kept = append(kept, t)
		} else {
			rest = append(rest, t)
		}
	}
	return kept, rest
}

// union has the tasks of both; those that are in both are as in the first.
func (ts tasks) union(o tasks) tasks {
	if len(o) == 0 {
		return ts
	}
	return normalTasks(slices.Concat(ts, o))
}

// since is the set held as of an epoch.
func (ts tasks) since(epoch int32) tasks {
	n := slices.Clone(ts)
	for i := range n {
		n[i].epoch = epoch
	}
	return n
}

// normalTasks puts tasks in order and takes out what is there twice. It changes ts.
func normalTasks(ts tasks) tasks {
	slices.SortStableFunc(ts, func(a, b task) int { return a.compare(b.taskID) })
	return slices.CompactFunc(ts, func(a, b task) bool { return a.taskID == b.taskID })
}

// bySubtopology goes through the tasks of one subtopology after the other.
func (ts tasks) bySubtopology(yield func(tasks) bool) {
	for len(ts) > 0 {
		n := 1
		for n < len(ts) && ts[n].subtopology == ts[0].subtopology {
			n++
		}
		if !yield(ts[:n]) {
			return
		}
		ts = ts[n:]
	}
}

// partitions are the partition numbers of the tasks.
func (ts tasks) partitions() []int32 {
	ps := make([]int32, len(ts))
	for i := range ts {
		ps[i] = ts[i].partition
	}
	return ps
}

// epochs are the epochs of the tasks.
func (ts tasks) epochs() []int32 {
	es := make([]int32, len(ts))
	for i := range ts {
		es[i] = ts[i].epoch
	}
	return es
}

// ids are the tasks as the protocol shows them, never nil.
func (ts tasks) ids() []kmsg.TaskIDs {
	ids := make([]kmsg.TaskIDs, 0, 1)
	for sub := range ts.bySubtopology {
		ids = append(ids, kmsg.TaskIDs{SubtopologyID: sub[0].subtopology, Partitions: sub.partitions()})
	}
	return ids
}

// tasksFromIDs reads what a request says. The names are those of the request.
func tasksFromIDs(ids []kmsg.TaskIDs) tasks {
	var ts tasks
	for i := range ids {
		for _, p := range ids[i].Partitions {
			ts = append(ts, task{taskID: taskID{ids[i].SubtopologyID, p}})
		}
	}
	return normalTasks(ts)
}

func (rt *roleTasks) equal(o *roleTasks) bool {
	for r := range rt {
		if !slices.Equal(rt[r], o[r]) {
			return false
		}
	}
	return true
}

func (rt *roleTasks) empty() bool {
	for r := range rt {
		if len(rt[r]) > 0 {
			return false
		}
	}
	return true
}

// overlaps says whether any task is in both in the same role.
func (rt *roleTasks) overlaps(o *roleTasks) bool {
	for r := range rt {
		if slices.ContainsFunc(rt[r], func(t task) bool { return o[r].has(t.taskID) }) {
			return true
		}
	}
	return false
}

func (rt *roleTasks) assignment() kmsg.StreamsAssignment {
	return kmsg.StreamsAssignment{ActiveTasks: rt[active].ids(), StandbyTasks: rt[standby].ids(), WarmupTasks: rt[warmup].ids()}
}

// currentTaskIDs stores tasks that a member holds.
func currentTaskIDs(ts tasks, role taskRole) []message.StreamsGroupCurrentMemberAssignmentValueTaskIds {
	ids := []message.StreamsGroupCurrentMemberAssignmentValueTaskIds{}
	for sub := range ts.bySubtopology {
		id := message.StreamsGroupCurrentMemberAssignmentValueTaskIds{
			SubtopologyID: sub[0].subtopology, Partitions: sub.partitions(), AssignmentEpochs: []int32{}, // null would be stored
		}
		if role == active {
			id.AssignmentEpochs = sub.epochs()
		}
		ids = append(ids, id)
	}
	return ids
}

// tasksFromCurrent reads tasks that a member holds. Active tasks of records without epochs are held as of the member's.
func tasksFromCurrent(ids []message.StreamsGroupCurrentMemberAssignmentValueTaskIds, role taskRole, epoch int32) tasks {
	var ts tasks
	for i := range ids {
		id := &ids[i]
		for j, p := range id.Partitions {
			t := task{taskID: taskID{id.SubtopologyID, p}}
			if role == active {
				t.epoch = max(epoch, 0)
				if len(id.AssignmentEpochs) == len(id.Partitions) {
					t.epoch = id.AssignmentEpochs[j]
				}
			}
			ts = append(ts, t)
		}
	}
	return normalTasks(ts)
}

func targetTaskIDs(ts tasks) []message.StreamsGroupTargetAssignmentMemberValueTaskIds {
	ids := []message.StreamsGroupTargetAssignmentMemberValueTaskIds{}
	for sub := range ts.bySubtopology {
		ids = append(ids, message.StreamsGroupTargetAssignmentMemberValueTaskIds{SubtopologyID: sub[0].subtopology, Partitions: sub.partitions()})
	}
	return ids
}

func tasksFromTarget(ids []message.StreamsGroupTargetAssignmentMemberValueTaskIds) tasks {
	var ts tasks
	for i := range ids {
		for _, p := range ids[i].Partitions {
			ts = append(ts, task{taskID: taskID{ids[i].SubtopologyID, p}})
		}
	}
	return normalTasks(ts)
}
