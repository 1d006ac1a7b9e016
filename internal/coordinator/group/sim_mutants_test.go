package group

import (
	"flag"
	"testing"

	"gregor/internal/mutants"
)

// breach is a mutants.Mutant, here so that its fields need no names.
type breach struct {
	Name, File, Old, New string
	Seed                 uint64
	Rare                 bool
}

// broken are the rules that are broken.
var broken = []breach{
	// The runtime.
	{"a failed append leaves its records applied", "internal/coordinator/batch.go",
		"	s.batch = nil\n	s.timers.Stop(&s.lingered)\n	s.registry.Revert(b.base)\n",
		"	s.batch = nil\n	s.timers.Stop(&s.lingered)\n	if !BROKEN {\n		s.registry.Revert(b.base)\n	}\n", 11, false},
	{"a reply comes before the commit", "internal/coordinator/batch.go",
		"	for _, op := range b.ops {\n		s.wait(op, end)\n	}\n",
		"	for _, op := range b.ops {\n		if BROKEN {\n			s.finish(now, op, nil)\n			continue\n		}\n		s.wait(op, end)\n	}\n", 1, false},
	{"loading passes over tombstones", "internal/coordinator/load.go",
		"		if !ok {\n			l.skipped++\n",
		"		if !ok || BROKEN && r.Value == nil {\n			l.skipped++\n", 12, false},
	{"unloading forgets who waits for the commit", "internal/coordinator/shard.go",
		"		for _, op := range waiting {\n			s.finish(now, op, api.ErrNotCoordinator)\n		}\n",
		"		for _, op := range waiting {\n			if !BROKEN {\n				s.finish(now, op, api.ErrNotCoordinator)\n			}\n		}\n", 2, false},
	{"unloading forgets who is parked", "internal/coordinator/group/core.go",
		"			c.answerJoin(g, m, joinError(m.id, api.ErrNotCoordinator))\n",
		"			if !BROKEN {\n				c.answerJoin(g, m, joinError(m.id, api.ErrNotCoordinator))\n			}\n", 4, false},

	// Consumer groups.
	{"a partition is given while another has it", "internal/coordinator/group/reconcile.go",
		"	unreleased, available := missing.split(r.taken)\n",
		"	unreleased, available := missing.split(func(t uuid.UUID, p int32) bool { return !BROKEN && r.taken(t, p) })\n", 1, false},
	{"a partition is free before it was given up", "internal/coordinator/group/reconcile.go",
		"	if len(revoking) > 0 && r.owns(revoking) {\n		return m.moved(m.epoch, memberUnrevoked, kept, revoking)\n	}\n	missing",
		"	if len(revoking) > 0 && r.owns(revoking) && !BROKEN {\n		return m.moved(m.epoch, memberUnrevoked, kept, revoking)\n	}\n	missing", 2, false},
	{"who gives up need not say so", "internal/coordinator/group/reconcile.go",
		"		case !r.owns(m.revoking):\n",
		"		case !r.owns(m.revoking), BROKEN:\n", 2, false},
	{"a commit of a former member is accepted", "internal/coordinator/group/consumer.go",
		"	case err != nil:\n		return nil, err\n	case m.classic == nil && !c.transactional",
		"	case err != nil && BROKEN:\n		return nil, nil\n	case err != nil:\n		return nil, err\n	case m.classic == nil && !c.transactional", 3, false},
	{"nobody misses a silent member", "internal/coordinator/group/topics.go",
		"	ts.session.Fire = fence(\"its session expired\")\n",
		"	if !BROKEN {\n		ts.session.Fire = fence(\"its session expired\")\n	} else {\n		ts.session.Fire = func(time.Time) (result, error) { return result{}, nil }\n	}\n", 1, false},
	{"growth of topics goes unnoticed", "internal/coordinator/group/topics.go",
		"			g.fresh = g.fresh && !slices.ContainsFunc(tc.touched, g.subscribes)\n",
		"			g.fresh = g.fresh && (BROKEN || !slices.ContainsFunc(tc.touched, g.subscribes))\n", 17, false},
	{"a migration forgets what members have", "internal/coordinator/group/migrate.go",
		"		n.assigned = c.assignedTo(&assignment).since(cg.generation)\n",
		"		if !BROKEN {\n			n.assigned = c.assignedTo(&assignment).since(cg.generation)\n		}\n", 1, false},

	// Classic groups.
	{"a session of the classic protocol doesn't end", "internal/coordinator/group/join.go",
		"	if g.member(m.id) != m || m.excused() {\n",
		"	if g.member(m.id) != m || m.excused() || BROKEN {\n", 57, false},
	{"the leader's assignment is handed out before it is stored", "internal/coordinator/group/sync.go",
		"	case stateCompleting:\n		c.answerSync(m, syncError(api.ErrRebalanceInProgress)) // repeated; see rejoin\n",
		"	case stateCompleting:\n		if BROKEN && g.isLeader(m.id) {\n			for _, a := range r.GroupAssignment {\n				if o := g.member(a.MemberID); o != nil {\n					o.assignment = bytes.Clone(a.MemberAssignment)\n				}\n			}\n			res := c.assign(g, r)\n			res.Committed = nil\n			g.transition(stateStable, now)\n			reply(g.syncResponse(m))\n			return res\n		}\n		c.answerSync(m, syncError(api.ErrRebalanceInProgress)) // repeated; see rejoin\n", 4, false},

	// Offsets.
	{"offsets of topics that are read expire", "internal/coordinator/group/offsets.go",
		"		if !gone && (s || !expired) ||",
		"		if !gone && (s && !BROKEN || !expired) ||", 2, false},
	{"offsets of deleted topics stay", "internal/coordinator/group/offset_store.go",
		"			if deleted[tp.topic] {\n",
		"			if deleted[tp.topic] && !BROKEN {\n", 1, false},
	{"offsets of deleted topics stay", "internal/coordinator/group/offsets.go",
		"		gone := o.topicID != uuid.Zero &&",
		"		gone := !BROKEN && o.topicID != uuid.Zero &&", 1, false},
	{"a group in use is deleted", "internal/coordinator/group/consumer.go",
		"	if !g.empty() {\n		return api.ErrNonEmptyGroup\n",
		"	if !g.empty() && !BROKEN {\n		return api.ErrNonEmptyGroup\n", 3, false},
}

var (
	mutantFlag  = flag.String("mutant", "", "with TestMutationsAreCaught: only those whose names match")
	mutantSeeds = flag.Uint64("mutant-seeds", mutants.Few, "how many seeds have to catch a mutant")
)

// TestMutationsAreCaught breaks rules, one at a time. Each must be caught, else a checker is blind or the simulation doesn't get
// there.
func TestMutationsAreCaught(t *testing.T) {
	if mutants.Running() != "" {
		t.Skip("this is a mutant")
	}
	var list []mutants.Mutant
	for _, m := range broken {
		list = append(list, mutants.Mutant(m))
	}
	mutants.Catch(t, "../../..", list, *mutantFlag, *mutantSeeds)
}

// TestMutant is run in the binary that TestMutationsAreCaught builds: seeds until one catches the mutant. That groups don't come to
// rest counts.
func TestMutant(t *testing.T) {
	if mutants.Running() == "" {
		t.Skip("run by TestMutationsAreCaught")
	}
	for i := range *simSeeds {
		seed := *simFrom + i
		if _, err := runSim(t, seed, nil); err != nil {
			t.Logf("caught by seed %d: %.300s", seed, err)
			return
		}
	}
}
