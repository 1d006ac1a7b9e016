package group

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"strings"
)

// taskAssignment is what a task assignor works on.
type taskAssignment struct {
	// members in rising order of their ids, so that the same members always get the same.
	members []taskAssignee
	// subtopologies in rising order of their ids.
	subtopologies []assignableSubtopology
	// standbys is how many copies of the state of each task there should be.
	standbys int
}

// taskAssignee is a member to an assignor.
type taskAssignee struct {
	id, process string
	// now is what it has.
	now roleTasks
	// positions is how far the state of tasks has got that the member says it has on its disk.
	positions taskPositions
}

type assignableSubtopology struct {
	id       string
	tasks    int
	stateful bool
}

// taskAssignor computes the new target of each member, in their order.
type taskAssignor func(*taskAssignment) []roleTasks

// taskAssignors are those that there are, by their names.
var taskAssignors = map[string]taskAssignor{"sticky": stickyTasks}

// ParseTaskAssignors turns "group.streams.assignors", names or the class name of Kafka's own, into names.
func ParseTaskAssignors(list []string) ([]string, error) {
	var names []string
	for _, s := range list {
		name := s
		if s == "org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor" {
			name = "sticky"
		}
		if taskAssignors[name] == nil {
			return nil, fmt.Errorf("group.streams.assignors: there is no assignor %q, only sticky", s)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("group.streams.assignors: no assignor")
	}
	return names, nil
}

// stickyTasks is Kafka's sticky assignor. Each task stays with the member that processes it as long as that has no more than its
// share; then it goes to one that has its state; then to where there is least to do. Standby copies are placed the same way, no
// two copies of a task in one process. Load is compared between processes, by tasks per member.
func stickyTasks(a *taskAssignment) []roleTasks {
	s := newStickyAssignment(a)
	s.assignActive()
	if a.standbys > 0 {
		s.assignStandbys()
	}
	targets := make([]roleTasks, len(a.members))
	for i := range s.members {
		targets[i] = roleTasks{normalTasks(s.members[i].active), normalTasks(s.members[i].standby)}
	}
	return targets
}

// stickyMember is what a member has got so far.
type stickyMember struct {
	process         *stickyProcess
	active, standby tasks
}

func (m *stickyMember) count() int { return len(m.active) + len(m.standby) }

// stickyProcess is what the members of a process have got so far.
type stickyProcess struct {
	members []int
	has     map[taskID]bool
	tasks   int
	// number orders processes with the same load; index is the place in a heap.
	number, index int
}

func (p *stickyProcess) load() float64 { return float64(p.tasks) / float64(len(p.members)) }

// quota is how many tasks a member may get while there are some that have less than their share. It sinks as members reach it.
type quota struct{ tasks, members, each int }

func newQuota(tasks, members int) quota {
	q := quota{tasks: tasks, members: members}
	q.set()
	return q
}

func (q *quota) set() {
	q.each = 0
	if q.members > 0 {
		q.each = (q.tasks + q.members - 1) / q.members
	}
}

// reached notes that a member has got a number of tasks.
func (q *quota) reached(n int) {
	if n == q.each {
		q.members--
		q.tasks -= n
		q.set()
	}
}

type stickyAssignment struct {
	in             *taskAssignment
	members        []stickyMember
	processes      []*stickyProcess
	previousActive map[taskID]int
	// previousStandby has the members that have a task's state, the one that has most of it first.
	previousStandby    map[taskID][]int
	activeQuota, quota quota
}

func newStickyAssignment(a *taskAssignment) *stickyAssignment {
	total, all := 0, 0
	for _, t := range a.subtopologies {
		total += t.tasks
		all += t.tasks
		if t.stateful {
			all += t.tasks * a.standbys
		}
	}
	s := &stickyAssignment{
		in: a, members: make([]stickyMember, len(a.members)),
		previousActive: make(map[taskID]int, total), previousStandby: make(map[taskID][]int),
		activeQuota: newQuota(total, len(a.members)), quota: newQuota(all, len(a.members)),
	}
	processes := make(map[string]*stickyProcess)
	for i := range a.members {
		m := &a.members[i]
		p := processes[m.process]
		if p == nil {
			p = &stickyProcess{number: len(s.processes), has: make(map[taskID]bool)}
			processes[m.process] = p
			s.processes = append(s.processes, p)
		}
		p.members = append(p.members, i)
		s.members[i].process = p
		for _, t := range m.now[active] {
			s.previousActive[t.taskID] = i
		}
		for _, t := range m.now[standby] {
			s.previousStandby[t.taskID] = append(s.previousStandby[t.taskID], i)
		}
		for id := range m.positions {
			if !m.now[standby].has(id) {
				s.previousStandby[id] = append(s.previousStandby[id], i)
			}
		}
	}
	for id, members := range s.previousStandby {
		rank := func(i int) int {
			if a.members[i].now[standby].has(id) {
				return 0
			}
			return 1
		}
		slices.SortStableFunc(members, func(x, y int) int {
			return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(a.members[y].positions[id], a.members[x].positions[id]))
		})
	}
	return s
}

// give gives a task to a member.
func (s *stickyAssignment) give(i int, id taskID, isActive bool) {
	m := &s.members[i]
	if isActive {
		m.active = append(m.active, task{taskID: id})
	} else {
		m.standby = append(m.standby, task{taskID: id})
	}
	m.process.tasks++
	m.process.has[id] = true
	if isActive {
		s.activeQuota.reached(m.count())
	}
	s.quota.reached(m.count())
}

// leastLoaded is the member of a process that has least.
func (s *stickyAssignment) leastLoaded(p *stickyProcess) int {
	best := p.members[0]
	for _, i := range p.members[1:] {
		if s.members[i].count() < s.members[best].count() {
			best = i
		}
	}
	return best
}

// leastLoadedOf is the one of some members to give a task to: in a process with less load and itself with less than the ones before
// it. If it is for a copy, processes that have the task are left out. -1 if there is none.
func (s *stickyAssignment) leastLoadedOf(members []int, id taskID, forCopy bool) int {
	best, process, own := -1, 0.0, 0
	for _, i := range members {
		m := &s.members[i]
		if forCopy && m.process.has[id] {
			continue
		}
		if best == -1 || m.process.load() < process && m.count() < own {
			best, process, own = i, m.process.load(), m.count()
		}
	}
	return best
}

// ids are the tasks there are, or those with state.
func (s *stickyAssignment) ids(stateful bool) []taskID {
	var ids []taskID
	for _, t := range s.in.subtopologies {
		if stateful && !t.stateful {
			continue
		}
		for p := range t.tasks {
			ids = append(ids, taskID{t.id, int32(p)})
		}
	}
	return ids
}

// byPartition is the order in which tasks with the same partition number come together.
func byPartition(a, b taskID) int {
	return cmp.Or(cmp.Compare(a.partition, b.partition), strings.Compare(a.subtopology, b.subtopology))
}

func (s *stickyAssignment) assignActive() {
	ids := s.ids(false)
	slices.SortFunc(ids, byPartition)
	take := func(to func(taskID) int) {
		ids = slices.DeleteFunc(ids, func(id taskID) bool {
			i := to(id)
			if i == -1 || s.members[i].count() >= s.activeQuota.each {
				return false
			}
			s.give(i, id, true)
			return true
		})
	}
	take(func(id taskID) int {
		if i, ok := s.previousActive[id]; ok {
			return i
		}
		return -1
	})
	take(func(id taskID) int { return s.leastLoadedOf(s.previousStandby[id], id, false) })
	slices.SortFunc(ids, taskID.compare)
	queue := newProcessQueue(s.processes)
	if len(queue) == 0 {
		return
	}
	for _, id := range ids {
		p := queue[0]
		s.give(s.leastLoaded(p), id, true)
		heap.Fix(&queue, p.index)
	}
}

func (s *stickyAssignment) assignStandbys() {
	type copies struct {
		taskID
		n int
	}
	var left []copies
	ids := s.ids(true)
	slices.SortFunc(ids, func(a, b taskID) int { return byPartition(b, a) })
	for _, id := range ids {
		for n := s.in.standbys; n > 0; n-- {
			if i, ok := s.previousActive[id]; ok && !s.members[i].process.has[id] && s.members[i].count() < s.quota.each {
				s.give(i, id, false)
				continue
			}
			if i := s.leastLoadedOf(s.previousStandby[id], id, true); i != -1 && s.members[i].count() < s.quota.each {
				s.give(i, id, false)
				continue
			}
			left = append(left, copies{id, n})
			break
		}
	}
	slices.SortFunc(left, func(a, b copies) int { return b.compare(a.taskID) })
	queue := newProcessQueue(s.processes)
	for _, c := range left {
		for range c.n {
			if !s.giveCopy(&queue, c.taskID) {
				break
			}
		}
	}
}

// giveCopy gives a copy of a task to the process with least load that hasn't got one, if there is any.
func (s *stickyAssignment) giveCopy(queue *processQueue, id taskID) bool {
	var passed []*stickyProcess
	found := false
	for len(*queue) > 0 && !found {
		p := heap.Pop(queue).(*stickyProcess)
		passed = append(passed, p)
		if !p.has[id] {
			s.give(s.leastLoaded(p), id, false)
			found = true
		}
	}
	for _, p := range passed {
		heap.Push(queue, p)
	}
	return found
}

// processQueue has processes with the least load first.
type processQueue []*stickyProcess

func newProcessQueue(ps []*stickyProcess) processQueue {
	q := slices.Clone(processQueue(ps))
	for i, p := range q {
		p.index = i
	}
	heap.Init(&q)
	return q
}

func (q processQueue) Len() int { return len(q) }
func (q processQueue) Less(i, j int) bool {
	if a, b := q[i].load(), q[j].load(); a != b {
		return a < b
	}
	return q[i].number < q[j].number
}

func (q processQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *processQueue) Push(x any) {
	p := x.(*stickyProcess)
	p.index = len(*q)
	*q = append(*q, p)
}

func (q *processQueue) Pop() any {
	old := *q
	p := old[len(old)-1]
	*q = old[:len(old)-1]
	return p
}
