package group

import "gregor/internal/api"

// taskReconciliation is one step of a member of a streams group towards its target (KIP-1071). An active task goes from one
// member to another in three steps: the first is told to give it up, says that it did, and only then the second gets it. Within
// one process no two members hold the same task in any role, since they would share its directory. It is a pure function.
type taskReconciliation struct {
	member      *streamsMember
	targetEpoch int32
	target      *roleTasks
	// owned says whether any member has the task as an active one.
	owned func(taskID) bool
	// here says whether a member of this member's process has the task in a role, itself included.
	here func(taskRole, taskID) bool
	// says is what the member says it has; nil if it doesn't say.
	says *roleTasks
}

// next is the member after the step, the same one if there is none to be taken.
func (r *taskReconciliation) next() (*streamsMember, error) {
	m := r.member
	switch m.state {
	case memberStable:
		if m.epoch == r.targetEpoch {
			return m, nil
		}
		return r.advance(m.epoch), nil
	case memberUnrevoked:
		if r.keeps(&m.revoking) {
			return m, nil
		}
		return r.advance(m.epoch + 1), nil
	case memberUnreleased:
		return r.advance(m.epoch), nil
	}
	if r.says == nil || !r.says.empty() {
		return nil, api.WithMessage(api.ErrFencedMemberEpoch,
			"The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.")
	}
	return r.advance(r.targetEpoch), nil
}

// keeps says that the member may still have some of the tasks.
func (r *taskReconciliation) keeps(ts *roleTasks) bool {
	return r.says == nil || r.says.overlaps(ts)
}

// elsewhere says whether another member of the process has the task in a role.
func (r *taskReconciliation) elsewhere(role taskRole, id taskID) bool {
	return r.here(role, id) && !r.member.assigned[role].has(id)
}

// unreleased says whether somebody must give the task up before the member may have it in a role. What the member itself has in
// another role it can turn into the new one.
func (r *taskReconciliation) unreleased(role taskRole, id taskID) bool {
	switch role {
	case active:
		return r.owned(id) || r.elsewhere(standby, id) || r.elsewhere(warmup, id)
	case standby:
		return r.elsewhere(active, id) || r.here(standby, id) || r.elsewhere(warmup, id)
	default:
		return r.here(active, id) || r.elsewhere(standby, id) || r.here(warmup, id)
	}
}

// advance goes towards the target as far as others let it; epoch is the member's as long as it has tasks to give up.
func (r *taskReconciliation) advance(epoch int32) *streamsMember {
	m := r.member
	var kept, revoking, granted roleTasks
	waits := false
	for role := range taskRoles {
		kept[role], revoking[role] = m.assigned[role].split(r.target[role].has)
		missing, _ := r.target[role].split(func(id taskID) bool { return !kept[role].has(id) })
		unreleased, available := missing.split(func(id taskID) bool { return r.unreleased(role, id) })
		waits = waits || len(unreleased) > 0
		granted[role] = available
		if role == active {
			granted[role] = available.since(r.targetEpoch)
		}
	}
	// A task whose role changes within the member keeps its state and takes no detour through giving it up.
	convert := func(from, to taskRole) {
		for _, t := range m.assigned[from] {
			if granted[to].has(t.taskID) {
				granted[to] = granted[to].without(t.taskID)
				kept[to] = kept[to].with(task{taskID: t.taskID})
				if from != active {
					revoking[from] = revoking[from].without(t.taskID)
				}
			}
		}
	}
	convert(active, standby)
	convert(standby, warmup)
	convert(warmup, standby)
	for _, from := range []taskRole{standby, warmup} {
		for _, t := range m.assigned[from] {
			if r.target[active].has(t.taskID) {
				revoking[from] = revoking[from].without(t.taskID)
			}
		}
	}
	mustRevoke := !revoking.empty() && r.keeps(&revoking)
	for _, from := range []taskRole{standby, warmup} {
		for _, t := range m.assigned[from] {
			if r.target[active].has(t.taskID) && (mustRevoke || !granted[active].has(t.taskID)) {
				kept[from] = kept[from].with(t)
			}
		}
	}
	if mustRevoke {
		return m.moved(epoch, memberUnrevoked, kept, revoking)
	}
	for role := range taskRoles {
		kept[role] = kept[role].union(granted[role])
	}
	state := memberStable
	if waits {
		state = memberUnreleased
	}
	return m.moved(r.targetEpoch, state, kept, roleTasks{})
}
