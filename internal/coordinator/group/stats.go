package group

import (
	"sync/atomic"
	"time"

	"gregor/internal/timeline"
)

// Stats is what there is to count about a coordinator.
type Stats struct {
	// Groups counts them by kind and state, as "Classic" and "Stable".
	Groups map[[2]string]int
	// Offsets is how many offsets are stored.
	Offsets int
	// Partitions counts those of Topic that this node leads by "loading", "active" and "failed".
	Partitions map[string]int
	// Commits counts offsets stored by OffsetCommit, Expired those removed because their time was over, Deleted those removed
	// on request, Rebalances the assignments that were handed out, all since the start.
	Commits, Expired, Deleted, Rebalances int64
}

// counters are the running numbers of Stats.
type counters struct{ commits, expired, deleted, rebalances atomic.Int64 }

// statsPatience is how long Stats waits for the partitions: one that is stuck must not hold up the page that shows it.
const statsPatience = time.Second

// Stats counts now. It blocks for a moment; partitions that don't answer in time are missing from it.
func (c *Coordinator) Stats() Stats {
	parts := c.rt.Partitions()
	counted := make(chan Stats, len(parts))
	for _, p := range parts {
		c.rt.Read(p, func(g *core, _ int64) { counted <- g.count() }, func(error) { counted <- Stats{} })
	}
	s := Stats{
		Groups: make(map[[2]string]int), Partitions: c.rt.States(),
		Commits: c.counters.commits.Load(), Expired: c.counters.expired.Load(),
		Deleted: c.counters.deleted.Load(), Rebalances: c.counters.rebalances.Load(),
	}
	late := time.NewTimer(statsPatience)
	defer late.Stop()
	for range parts {
		select {
		case one := <-counted:
			s.Offsets += one.Offsets
			for k, n := range one.Groups {
				s.Groups[k] += n
			}
		case <-late.C:
			return s
		}
	}
	return s
}

// count counts the groups and offsets of one partition.
func (c *core) count() Stats {
	s := Stats{Groups: make(map[[2]string]int)}
	for _, g := range c.groups.All() {
		s.Groups[[2]string{g.kind().String(), g.stateAt(timeline.Latest)}]++
	}
	for _, m := range c.offsets.committed.All() {
		s.Offsets += m.Len()
	}
	return s
}
