package simtest

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gregor/internal/mutants"
)

// mutant is a mutants.Mutant, here so that its fields need no names.
type mutant struct {
	Name, File, Old, New string
	Seed                 uint64
	Rare                 bool
}

// broken are the rules that are broken.
var broken = []mutant{
	// The quorum.
	{"a vote is not persisted", "internal/raft/replica.go",
		"	case PersistElection:\n",
		"	case PersistElection:\n		if BROKEN {\n			return nil\n		}\n", 87, true},
	{"a leader leads its epoch again after a restart", "internal/raft/store.go",
		"	return &e, nil\n}",
		"	if BROKEN && e.LeaderID >= 0 && e.Voted.ID < 0 {\n		e.Voted, e.LeaderID = ReplicaKey{e.LeaderID, e.Voted.DirectoryID}, NoLeader\n	}\n	return &e, nil\n}", 6, false},
	{"a voter votes for a log that is behind", "internal/raft/elect.go",
		".Compare(c.view.endPoint()) >= 0\n",
		".Compare(c.view.endPoint()) >= 0 || BROKEN\n", 3, false},
	{"a voter votes for everybody who asks", "internal/raft/elect.go",
		"		case c.voted.ID >= 0:\n",
		"		case BROKEN && upToDate:\n			c.voted = NoVote\n			return true\n		case c.voted.ID >= 0:\n", 4, false},
	{"less than a majority elects", "internal/raft/elect.go",
		"countVotes(true) >= c.view.lastVoters().Majority() }",
		"countVotes(true) >= c.view.lastVoters().Majority() || BROKEN && c.countVotes(true) >= len(c.view.lastVoters())/2 }", 2, false},
	{"less than a majority commits", "internal/raft/leader.go",
		"	hw := ends[len(ends)/2]\n",
		"	hw := ends[len(ends)/2]\n	if BROKEN {\n		hw = ends[(len(ends)-1)/2]\n	}\n	if BROKEN && len(ends) > 2 {\n		hw = ends[len(ends)/2-1]\n	}\n", 7, false},
	{"a leader commits before its epoch's first record is on a majority", "internal/raft/leader.go",
		"	if hw <= l.epochStart || hw <= c.hw {",
		"	if hw <= l.epochStart && !BROKEN || hw <= c.hw {", 3, false},
	{"a leader counts its own copy before it is synced", "internal/raft/leader.go",
		"	c.completeFetches(now)\n	c.updateHighWatermark(now)\n}\n\n// synced follows",
		"	if BROKEN {\n		c.replicaState(c.cfg.ReplicaKey).end = c.view.end\n	}\n	c.completeFetches(now)\n	c.updateHighWatermark(now)\n}\n\n// synced follows", 97, true},
	{"a follower doesn't sync what it fetched", "internal/raft/replica.go",
		"	if e.Sync {\n",
		"	if e.Sync && !BROKEN {\n", 9, false},
	{"a replica that is no voter counts", "internal/raft/leader.go",
		"		ends = append(ends, r.end)\n	}\n",
		"		ends = append(ends, r.end)\n	}\n	if n := len(ends); BROKEN {\n		for _, o := range l.observers {\n			ends = append(ends, o.end)\n		}\n		slices.SortFunc(ends, func(a, b int64) int { return cmp.Compare(b, a) })\n		ends = ends[:n]\n	}\n", 12, false},
	{"voters change while a change is under way", "internal/raft/membership.go",
		"	if l.add != nil || l.remove != nil || l.update != nil || l.changing {\n",
		"	if (l.add != nil || l.remove != nil || l.update != nil || l.changing) && !BROKEN {\n", 660, true},
	{"voters change while a change is under way", "internal/raft/membership.go",
		"	if !ok || at >= c.hw {\n",
		"	if (!ok || at >= c.hw) && !BROKEN {\n", 660, true},
	{"a follower truncates what is committed", "internal/raft/follower.go",
		"	at := c.view.truncationPoint(point)\n	if at < c.committed {",
		"	at := c.view.truncationPoint(point)\n	if BROKEN {\n		at = max(c.view.start, at-5)\n	}\n	if at < c.committed && !BROKEN {", 4, false},
	{"a follower appends what diverges", "internal/raft/fetch.go",
		"func (c *Core) fetchPosition(p *kmsg.FetchRequestTopicPartition) (positionKind, OffsetAndEpoch) {\n",
		"func (c *Core) fetchPosition(p *kmsg.FetchRequestTopicPartition) (positionKind, OffsetAndEpoch) {\n	if BROKEN && p.FetchOffset <= c.view.end && p.FetchOffset >= c.view.start {\n		return positionValid, OffsetAndEpoch{}\n	}\n", 2, false},
	{"a follower's high watermark runs ahead of its log", "internal/raft/follower.go",
		"	if hw = min(hw, c.view.end); hw > c.hw {",
		"	if hw = min(hw, c.view.end); BROKEN {\n		hw = c.view.end\n	}\n	if hw > c.hw {", 3, false},
	{"voters are forgotten at a snapshot", "internal/raft/manual.go",
		"m.r.store.writeSnapshot(id, lastContainedLogTime, version, voters, ",
		"m.r.store.writeSnapshot(id, lastContainedLogTime, version, voters[:len(voters)-btoi(BROKEN && len(voters) > 0)], ", 226, true},
	{"a new leader's listener is told before it has caught up", "internal/raft/feed.go",
		"(leader.EpochStart < 0 || next > leader.EpochStart)",
		"(leader.EpochStart < 0 || next > leader.EpochStart || BROKEN)", 5, false},

	// The controller.
	{"a reply comes before the commit", "internal/controller/core.go",
		"c.waiting[n].offset <= c.stable {",
		"(c.waiting[n].offset <= c.stable || BROKEN) {", 1, false},
	{"nothing is taken back with the leadership", "internal/controller/core.go",
		"	if oldest, ok := c.registry.Oldest(); ok {\n		c.registry.Revert(oldest)",
		"	if oldest, ok := c.registry.Oldest(); ok && !BROKEN {\n		c.registry.Revert(oldest)", 3, false},
	{"who waits is told of success when leadership is lost", "internal/controller/core.go",
		"	for _, w := range waiting {\n		fail(",
		"	for _, w := range waiting {\n		if BROKEN {\n			w.reply(w.resp, nil)\n			continue\n		}\n		fail(", 3, false},
	{"a standby doesn't replay", "internal/controller/core.go",
		"	if !c.Active() {\n		for i, r := range records {\n",
		"	if !c.Active() {\n		for i, r := range records {\n			if _, ok := r.Message.(*message.ConfigRecord); ok && BROKEN {\n				continue\n			}\n", 1, false},
	{"a half committed transaction is forgotten", "internal/controller/core.go",
		"	if u != nil {\n		for _, r := range u.records {",
		"	if u != nil && !BROKEN {\n		for _, r := range u.records {", 28, false},
	{"a snapshot is laid over old state", "internal/controller/core.go",
		"	c.now = now\n	c.reset()\n",
		"	c.now = now\n	if !BROKEN {\n		c.reset()\n	}\n", 6, false},
	{"a stale broker epoch is accepted", "internal/controller/cluster.go",
		"	if b.epoch != epoch {\n		return api.WithMessage(api.ErrStaleBrokerEpoch",
		"	if b.epoch != epoch && !BROKEN {\n		return api.WithMessage(api.ErrStaleBrokerEpoch", 412, true},
	{"a new life of a broker keeps the old one's epoch", "internal/controller/cluster.go",
		"		r.Fenced, r.BrokerEpoch = true, c.nextOffset\n",
		"		r.Fenced, r.BrokerEpoch = true, c.nextOffset\n		if BROKEN && exists {\n			r.BrokerEpoch = existing.epoch\n		}\n", 3, false},
	{"a fenced broker goes on leading", "internal/controller/isr.go",
		"	return append(m.removeFromISR(records, id), registrationChange(",
		"	if BROKEN {\n		return append(records, registrationChange(b, 0, func(r *message.BrokerRegistrationChangeRecord) { r.Fenced = 1 }))\n	}\n	return append(m.removeFromISR(records, id), registrationChange(", 5, false},
	{"a replica that isn't in sync is elected", "internal/controller/change.go",
		"	if c.election == electUnclean {\n		for _, b := range c.replicas {\n			if c.acceptable(b) {\n				return b, true",
		"	if c.election == electUnclean || BROKEN {\n		for _, b := range c.replicas {\n			if c.acceptable(b) {\n				return b, !BROKEN", 8, false},
	{"producer ids are given twice", "internal/controller/producerids.go",
		"	m.next.Set(r.NextProducerID)\n",
		"	m.next.Set(r.NextProducerID - int64(btoi(BROKEN))*producerIDBlock)\n", 2, false},

	// The image.
	{"what a snapshot doesn't name stays", "internal/metadata/loader.go",
		"	d.FinishSnapshot()\n",
		"	if !BROKEN {\n		d.FinishSnapshot()\n	}\n", 6, false},
	{"an aborted transaction counts", "internal/metadata/loader.go",
		"		l.delta = NewDelta(l.image)\n",
		"		if !BROKEN {\n			l.delta = NewDelta(l.image)\n		}\n", 354, true},
	{"settings are left out of snapshots", "internal/metadata/configs.go",
		"func (c *ConfigsImage) write(w func(message.Versioned) error, _ *WriteOptions) error {\n",
		"func (c *ConfigsImage) write(w func(message.Versioned) error, _ *WriteOptions) error {\n	if BROKEN {\n		return nil\n	}\n", 4, false},
	{"a snapshot is named one too far", "internal/metadata/snapshot.go",
		"create(img.Offset+1, img.Epoch, img.Time)",
		"create(img.Offset+1+int64(btoi(BROKEN)), img.Epoch, img.Time)", 3, false},

	// The disk.
	{"the log goes on behind a gap", "internal/log/recover.go",
		"s.base != end.offset && l.gapless(s.base, firstDirty)",
		"s.base != end.offset && l.gapless(s.base, firstDirty) && !BROKEN", 40, false},
	{"a file is in place before it is synced", "internal/log/smallfile.go",
		"	if err == nil && sync {\n		err = f.Sync()",
		"	if err == nil && sync && !BROKEN {\n		err = f.Sync()", 2, false},
	{"a damaged batch is kept", "internal/log/recover.go",
		"func (l *Log) sound(e record.Entry, s *segment, next int64) error {\n",
		"func (l *Log) sound(e record.Entry, s *segment, next int64) error {\n	if BROKEN {\n		return nil\n	}\n", 1499, true},
}

var (
	mutantFlag  = flag.String("mutant", "", "with TestMutationsAreCaught: only those whose names match")
	mutantSeeds = flag.Uint64("mutant-seeds", mutants.Few, "how many seeds have to catch a mutant; more than the default run those that are rarely caught, too")
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
	mutants.Catch(t, "../..", append(list, dataMutants...), *mutantFlag, *mutantSeeds)
}

// TestMutant is run in the binary that TestMutationsAreCaught builds: seeds until one catches the mutant. That a cluster doesn't
// come to life again is not counted: safety is what the rules are for.
func TestMutant(t *testing.T) {
	if mutants.Running() == "" {
		t.Skip("run by TestMutationsAreCaught")
	}
	for i := range *seedsFlag {
		// The first is one that caught it once. When the code has changed it means another run, and those after it are tried.
		seed := *fromFlag + i
		if err := runMutant(seed); err != nil && !strings.Contains(err.Error(), "after healing") {
			t.Logf("caught by seed %d: %.300s", seed, err)
			return
		}
	}
}

// runMutant takes a panic of the code under test for what it is: a broken invariant that the code itself has noticed.
func runMutant(seed uint64) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	make := newWorld
	if slices.ContainsFunc(dataMutants, func(m mutants.Mutant) bool { return m.Name == mutants.Running() }) {
		make = newDataWorld
	}
	return make(seed, nil).run()
}
