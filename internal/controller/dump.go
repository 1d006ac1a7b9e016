package controller

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Dump writes out all state that records make, a line a thing, in an order of its own. Two cores that hold the same give the
// same. It is for tests and for looking at a core that is in doubt.
func (c *Core) Dump() string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for name, v := range c.features.all() {
		add("feature %s=%d", name, v)
	}
	for id, b := range c.cluster.brokers.All() {
		ends, _ := json.Marshal(b.endpoints)
		add("broker %d epoch=%d inc=%s rack=%s fenced=%v down=%v dirs=%v cordoned=%v %v %s %v", id, b.epoch, b.incarnation, orNull(b.rack), b.fenced,
			b.shuttingDown, b.directories, b.cordoned, b.cordoned == nil, ends, b.features)
	}
	for id, r := range c.cluster.controllers.All() {
		add("controller %d inc=%s %v", id, r.incarnation, r.features)
	}
	for d, id := range c.cluster.dirOwner.All() {
		add("dir %s of %d", d, id)
	}
	for name, t := range c.topics.byName.All() {
		byID, ok := c.topics.byID.Get(t.id)
		add("topic %s id=%s partitions=%d same=%v", name, t.id, t.partitions.Len(), ok && byID == t)
		for i, p := range t.partitions.All() {
			add("partition %s-%d replicas=%v dirs=%v isr=%v removing=%v adding=%v elr=%v last=%v leader=%d le=%d pe=%d rec=%d", name, i, p.replicas,
				p.directories, p.isr, p.removing, p.adding, p.elr, p.lastKnownELR, p.leader, p.leaderEpoch, p.partitionEpoch, p.recovery)
		}
	}
	add("topics %d %d", c.topics.byName.Len(), c.topics.byID.Len())
	for k, names := range c.topics.alike.All() {
		add("alike %s %v", k, slices.Sorted(slices.Values(names)))
	}
	for p := range c.topics.reassigning.All() {
		add("reassigning %s-%d", p.topic, p.index)
	}
	for id, n := range c.topics.inISR.All() {
		add("isr count %d %d", id, n)
	}
	for id, n := range c.topics.inELR.All() {
		add("elr count %d %d", id, n)
	}
	for id, n := range c.topics.leads.All() {
		add("leads %d %d", id, n)
	}
	add("counts %d %d %d", c.topics.leaderless.Get(), c.topics.imbalanced.Get(), c.topics.count.Get())
	for res, settings := range c.configs.data.All() {
		add("config %d %s %v", res.kind, res.name, maps.Collect(settings.All()))
	}
	for e, values := range c.quotas.data.All() {
		add("quota %q %v", e, maps.Collect(values.All()))
	}
	for id, a := range c.acls.byID.All() {
		add("acl %s %v", id, a)
	}
	for a, id := range c.acls.ids.All() {
		add("acl id %s %v", id, a)
	}
	for k, r := range c.scram.data.All() {
		add("scram %v %s", k, r.AppendJSON(nil, 0))
	}
	for id, r := range c.tokens.data.All() {
		add("token %s %s", id, r.AppendJSON(nil, 0))
	}
	add("producer ids %d", c.producerIDs.next.Get())
	add("empty %v", c.empty.Get())
	slices.SortFunc(lines, cmp.Compare)
	return strings.Join(lines, "\n")
}

func orNull(s *string) string {
	if s == nil {
		return "<null>"
	}
	return *s
}

// Committed is the last offset known to be committed.
func (c *Core) Committed() int64 { return c.committed }
