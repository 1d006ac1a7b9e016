package group

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gregor/internal/message"
	"gregor/internal/record"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// follow replays what has been committed into the reference, and looks whether rules hold.
func (s *simulation) follow() {
	l := &s.log
	l.mu.Lock()
	var fresh []record.Batch
	for i := len(l.batches) - 1; i >= 0 && l.batches[i].BaseOffset() >= s.replayed; i-- {
		if l.batches[i].LastOffset() < l.hw {
			fresh = append(fresh, l.batches[i])
		}
	}
	l.mu.Unlock()
	slices.Reverse(fresh)
	for _, b := range fresh {
		eachRecord(b, func(raw record.Record) {
			r, known, err := Codec{}.Decode(raw.Key, raw.Value)
			if err != nil || !known {
				s.fail("record at offset %d: known %v, %v", raw.Offset, known, err)
				return
			}
			if k, ok := r.Key.(*message.OffsetCommitKey); ok {
				s.checkOffset(k, r)
			} else {
				s.stir = true
				s.countMigrations(r)
			}
			if err := s.ref.Replay(raw.Offset, -1, -1, r); err != nil {
				s.fail("replay of offset %d: %v", raw.Offset, err)
			}
		})
		s.replayed = b.NextOffset()
	}
	if s.stir {
		s.stir = false
		for _, g := range s.groups {
			s.checkOwners(g)
		}
	}
}

func (s *simulation) countMigrations(r Record) {
	k, ok := r.Key.(*message.GroupMetadataKey)
	if !ok {
		return
	}
	g, exists := s.ref.groups.Get(k.Group)
	switch v, _ := r.Value.(*message.GroupMetadataValue); {
	case v == nil && exists && !g.empty():
		s.stats.upgrades++
	case v != nil && !exists && len(v.Members) > 0: // others are new and empty first
		s.stats.downgrades++
	}
}

// checkOffset looks at a committed offset before it is replayed: it doesn't go back, and isn't removed while it may be needed.
func (s *simulation) checkOffset(k *message.OffsetCommitKey, r Record) {
	tp := topicPartition{k.Topic, k.Partition}
	gp := groupPartition{k.Group, tp}
	old, had := s.ref.offsets.at(timeline.Latest, k.Group, tp)
	if v, ok := r.Value.(*message.OffsetCommitValue); ok {
		if had && v.Offset < old.offset {
			s.fail("%s: the offset of %v goes back from %d to %d", k.Group, tp, old.offset, v.Offset)
		}
		return
	}
	// That a classic group has become empty is perhaps not stored.
	g, _ := s.ref.groups.Get(k.Group)
	if g, ok := g.(*consumerGroup); ok && had && s.topics.img.Topics.ByName(k.Topic) != nil && g.subscribes(k.Topic) {
		s.fail("%s: the offset of %v is removed although the topic is read", k.Group, tp)
	}
	delete(s.acked, gp)
	s.removed[gp] = s.now()
}

// committedTo notes an offset that a member was told is committed.
func (s *simulation) committedTo(gp groupPartition, offset int64, sent time.Duration) {
	if gone, ok := s.removed[gp]; ok && gone >= sent {
		return
	}
	s.acked[gp] = max(s.acked[gp], offset)
	if now, ok := s.ref.offsets.at(timeline.Latest, gp.group, gp.topicPartition); !ok || now.offset < offset {
		s.fail("%v: %d is acknowledged but %d, %v is committed", gp, offset, now.offset, ok)
	}
}

// checkOwners: no partition has two owners that both believe it and whose commits would be accepted, by their epochs.
func (s *simulation) checkOwners(sg *simGroup) {
	existing, _ := s.ref.groups.Get(sg.id)
	g, _ := existing.(*consumerGroup)
	cg, _ := existing.(*classicGroup)
	type key struct {
		id    partitionID
		epoch int32
	}
	reading := map[key]*peer{}
	for _, sm := range s.peers {
		p := sm.base()
		if p.group != sg || p.epoch <= 0 {
			continue
		}
		var m *consumerMember
		epoch := p.epoch
		if g != nil {
			var ok bool
			if m, ok = g.members.Get(p.id); !ok || m.epoch < 0 {
				continue // it doesn't know yet that it isn't a member any more
			}
			if p.epoch > m.epoch {
				if m.classic != nil {
					continue // its epoch is that of a group that was emptied meanwhile, and began anew
				}
				s.fail("%s: %s is at epoch %d, and %d is committed", sg.id, p.name, p.epoch, m.epoch)
				return
			}
			epoch = 0 // the coordinator knows each of them
		} else if cg == nil || cg.generation != p.epoch || cg.member(p.id) == nil {
			continue // the same, or it is in a generation that has passed
		}
		for _, tp := range p.owned() {
			if s.topics.img.Topics.ByID(tp.topic) == nil {
				continue
			}
			for _, n := range tp.partitions {
				k := key{partitionID{tp.topic, n}, epoch}
				if m != nil {
					since, ok := m.assigned.epoch(tp.topic, n)
					if !ok {
						since, ok = m.revoking.epoch(tp.topic, n)
					}
					switch {
					case p.epoch < m.epoch && (!ok || p.epoch < since):
						continue // its epoch is too old for this one: what it commits is refused
					case !ok:
						s.fail("%s: %s-%d is read by %s as of epoch %d, who has %v and %v as of %d", sg.id, s.name(tp.topic), n, p.name, p.epoch,
							m.assigned, m.revoking, m.epoch)
						return
					}
				}
				if o := reading[k]; o != nil {
					s.fail("%s: %s-%d is read by %s and %s as of epochs %d and %d", sg.id, s.name(tp.topic), n, o.name, p.name, o.epoch, p.epoch)
					return
				}
				reading[k] = p
			}
		}
	}
}

// heal ends the faults.
func (s *simulation) heal() {
	s.print("healed")
	s.healed = true
	for _, n := range s.nodes {
		n.skew.Store(0)
	}
	for _, m := range s.peers {
		m.base().paused = 0
	}
	s.log.mu.Lock()
	s.log.failNext = nil
	s.log.mu.Unlock()
	s.release()
	if s.chance(50) {
		s.elect(1 - s.log.leader)
	}
}

// leader gives f the core that leads, when it is there.
func (s *simulation) leader(f func(c *core)) {
	s.nodes[s.log.leader].c.rt.Read(0, func(c *core, _ int64) { f(c) }, func(error) { f(nil) })
}

// converged says what is still missing until all groups are where they should be; empty when all is well.
func (s *simulation) converged() (missing string) {
	s.leader(func(c *core) {
		if c == nil {
			missing = "no leader"
			return
		}
		for _, g := range s.groups {
			if missing == "" {
				missing = s.groupConverged(c, g)
			}
		}
		for group, m := range c.offsets.committed.All() {
			for tp := range m.All() {
				if missing == "" && s.topics.img.Topics.ByName(tp.topic) == nil {
					missing = fmt.Sprintf("%s has an offset of %v, which is gone", group, tp)
				}
			}
		}
	})
	return missing
}

func (s *simulation) groupConverged(c *core, sg *simGroup) string {
	var peers []*peer
	for _, m := range s.peers {
		if p := m.base(); p.group == sg {
			peers = append(peers, p)
		}
	}
	g, ok := c.groups.Get(sg.id)
	if !ok {
		if len(peers) == 0 {
			return ""
		}
		return sg.id + " isn't there"
	}
	state := g.stateAt(timeline.Latest)
	if len(peers) == 0 {
		if state != "Empty" {
			return fmt.Sprintf("%s is %s without members", sg.id, state)
		}
		return ""
	}
	if state != "Stable" {
		return fmt.Sprintf("%s is %s", sg.id, state)
	}
	members := 0
	switch g := g.(type) {
	case *consumerGroup:
		members = g.members.Len()
	case *classicGroup:
		members = len(g.members)
	}
	if members != len(peers) {
		return fmt.Sprintf("%s has %d members of %d", sg.id, members, len(peers))
	}
	read := map[partitionID]*peer{}
	want := map[partitionID]bool{}
	for _, p := range peers {
		topics := s.topicsOf(p.reads)
		if cg, ok := g.(*consumerGroup); ok {
			m, err := cg.member(p.id)
			if err != nil {
				return err.Error()
			}
			target, _ := cg.targets.Get(p.id)
			if owned := p.owned(); !owned.equal(target) || p.epoch != m.epoch {
				return fmt.Sprintf("%s has %v as of %d and should have %v as of %d", p.name, owned, p.epoch, target, m.epoch)
			}
			if p.regex != "" {
				for t := range s.topics.img.Topics.All() {
					if re, err := compileRegex(p.regex); err == nil && re.MatchString(t.Name) {
						topics = append(topics, t.ID)
					}
				}
			}
		} else if cg := g.(*classicGroup); cg.member(p.id) == nil || cg.generation != p.epoch {
			return fmt.Sprintf("%s is in generation %d of %d", p.name, p.epoch, cg.generation)
		}
		for _, id := range topics {
			for n := range s.topics.img.Topics.ByID(id).Len() {
				want[partitionID{id, int32(n)}] = true
			}
		}
		for id := range p.parts {
			if o := read[id]; o != nil {
				return fmt.Sprintf("%s-%d is read by %s and %s", s.name(id.topic), id.partition, o.name, p.name)
			}
			read[id] = p
		}
	}
	for id := range want {
		if read[id] == nil {
			return fmt.Sprintf("%s: nobody reads %s-%d", sg.id, s.name(id.topic), id.partition)
		}
	}
	for id, p := range read {
		if !want[id] {
			return fmt.Sprintf("%s reads %s-%d, which nobody wants", p.name, s.name(id.topic), id.partition)
		}
	}
	return ""
}

func (s *simulation) topicsOf(names []string) []uuid.UUID {
	var ids []uuid.UUID
	for _, n := range names {
		if t := s.topics.img.Topics.ByName(n); t != nil {
			ids = append(ids, t.ID)
		}
	}
	return ids
}

// picture is what a core holds that its log must tell. Of classic groups that is what they are if both are stable: a rebalance under
// way is not stored, and that one has become empty perhaps could not be.
func (s *simulation) picture(c, other *core) string {
	var lines []string
	for id, g := range c.groups.All() {
		switch g := g.(type) {
		case *consumerGroup:
			lines = append(lines, id+" "+pictureConsumer(g))
		case *classicGroup:
			line := id + " classic"
			o, _ := other.groups.Get(id)
			if o, ok := o.(*classicGroup); ok && g.state == stateStable && o.state == stateStable {
				line += pictureGroup(g)
			}
			lines = append(lines, line)
		}
	}
	for group, m := range c.offsets.committed.All() {
		for tp, o := range m.All() {
			lines = append(lines, fmt.Sprintf("offset %s %v %+v", group, tp, o))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// audit compares the coordinator that has lived with the log that tells of it.
func (s *simulation) audit() {
	s.leader(func(c *core) {
		if c == nil {
			s.fail("no leader")
			return
		}
		lived, replayed := s.picture(c, s.ref), s.picture(s.ref, c)
		if lived != replayed {
			s.fail("lived:\n%s\nreplayed:\n%s", lived, replayed)
		}
		for id, g := range c.groups.All() {
			cg, ok := g.(*consumerGroup)
			if !ok {
				continue
			}
			for m := range cg.members.All() {
				if ts := c.timers[memberKey{id, m}]; ts == nil || !ts.session.Active() {
					s.fail("%s: nothing ends the session of %s", id, m)
				}
			}
		}
	})
}
