package group

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/coordinator"
	"gregor/internal/message"
	"gregor/internal/timeline"
)

// MigrationPolicy says in which directions a group may change its protocol while it has members.
type MigrationPolicy struct{ Upgrade, Downgrade bool }

// ParseMigrationPolicy reads "group.consumer.migration.policy".
func ParseMigrationPolicy(s string) MigrationPolicy {
	switch strings.ToUpper(s) {
	case "UPGRADE":
		return MigrationPolicy{Upgrade: true}
	case "DOWNGRADE":
		return MigrationPolicy{Downgrade: true}
	case "BIDIRECTIONAL":
		return MigrationPolicy{Upgrade: true, Downgrade: true}
	}
	return MigrationPolicy{}
}

// upgrade makes a consumer group of a classic group with members, who stay in it and go on with their protocol. It returns
// the group and the records that make it; nothing changes until they are replayed.
func (c *core) upgrade(cg *classicGroup, now time.Time) (*consumerGroup, []Record, error) {
	refuse := func(why string) error {
		c.log.Info("classic group can't become a consumer group", "group", cg.id, "reason", why)
		return api.WithMessage(api.ErrGroupIDNotFound, "Cannot upgrade classic group %s to consumer group because %s.", cg.id, why)
	}
	switch {
	case !c.cfg.Migration.Upgrade:
		return nil, nil, refuse("online upgrade is disabled")
	case !cg.speaksConsumerProtocol():
		return nil, nil, refuse("the group does not use the consumer embedded protocol")
	case len(cg.members) > c.cfg.ConsumerMaxSize:
		return nil, nil, refuse("the group size exceeds the consumer group maximum size")
	}
	// Differs from Kafka, which fails if the group hasn't chosen a protocol yet.
	protocol := cg.protocol
	if protocol == nil {
		name := cg.selectProtocol()
		protocol = &name
	}
	members := make([]*consumerMember, len(cg.members))
	for i, m := range cg.members {
		var subscription kmsg.ConsumerMemberMetadata
		var assignment kmsg.ConsumerMemberAssignment
		if subscription.ReadFrom(m.metadata(protocol)) != nil || len(m.assignment) > 0 && assignment.ReadFrom(m.assignment) != nil {
			return nil, nil, refuse("the embedded consumer protocol is malformed")
		}
		if len(assignment.UserData) > 0 {
			return nil, nil, refuse("an unsupported custom assignor is in use. Please refer to the documentation or switch to a " +
				"default assignor before re-attempting the upgrade")
		}
		n := newConsumerMember(m.id)
		n.instanceID, n.clientID, n.clientHost = m.instanceID, m.clientID, m.clientHost
		n.rebalanceTimeout = int32(m.rebalanceTimeout.Milliseconds())
		n.epoch, n.previous = cg.generation, cg.generation
		n.topics = c.topicSet(subscription.Topics)
		if subscription.Rack != nil && *subscription.Rack != "" {
			n.rackID = subscription.Rack
		}
		n.assigned = c.assignedTo(&assignment).since(cg.generation)
		n.classic = &message.ConsumerGroupMemberMetadataValueClassicMemberMetadata{
			SessionTimeoutMs:   int32(m.sessionTimeout.Milliseconds()),
			SupportedProtocols: make([]message.ConsumerGroupMemberMetadataValueClassicProtocol, len(m.protocols)),
		}
		for j, p := range m.protocols {
			n.classic.SupportedProtocols[j].Name, n.classic.SupportedProtocols[j].Metadata = p.name, p.metadata
		}
		members[i] = n
	}

	g := newConsumerGroup(timeline.NewRegistry(), cg.id)
	g.unbalanced = cg.state != stateStable
	for _, m := range members {
		g.apply(m.selfRecord(g.id))
	}
	var names []string
	for t := range g.topics.All() {
		names = append(names, t)
	}
	records := cg.tombstones(nil)
	made := len(records)
	for _, m := range members {
		records = append(records, m.selfRecord(g.id))
	}
	records = append(records, epochRecord(g.id, cg.generation, c.metadataHash(names)))
	for _, m := range members {
		records = append(records, targetRecord(g.id, m.id, m.assigned.plain()))
	}
	records = append(records, targetEpochRecord(g.id, cg.generation, 0))
	for _, m := range members {
		records = append(records, m.placeRecord(g.id))
	}
	for _, r := range records[made:] {
		g.apply(r)
	}
	for _, m := range cg.members {
		c.answerJoin(cg, m, joinError(m.id, api.ErrRebalanceInProgress))
		c.answerSync(m, syncError(api.ErrRebalanceInProgress))
		c.startSession(g.id, m.id, m.sessionTimeout, now)
	}
	c.log.Info("classic group becomes a consumer group", "group", g.id, "members", len(members))
	return g, records, nil
}

// assignedTo are the partitions of an assignment of the consumer protocol, those of topics that exist.
func (c *core) assignedTo(a *kmsg.ConsumerMemberAssignment) partitions {
	var tps []topicPartitions
	for _, at := range a.Topics {
		if t := c.image.Topics.ByName(at.Topic); t != nil {
			tps = append(tps, topicPartitions{topic: t.ID, partitions: slices.Clone(at.Partitions)})
		}
	}
	return normalize(tps)
}

// assignmentOf writes partitions as an assignment of the consumer protocol, in the version of a subscription.
func (c *core) assignmentOf(ps partitions, subscription []byte) []byte {
	const highestVersion = 3
	a := kmsg.NewConsumerMemberAssignment()
	if len(subscription) >= 2 {
		a.Version = min(int16(binary.BigEndian.Uint16(subscription)), highestVersion)
	}
	for _, tp := range ps {
		if t := c.image.Topics.ByID(tp.topic); t != nil {
			a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: t.Name, Partitions: tp.partitions})
		}
	}
	return a.AppendTo(nil)
}

// mayDowngrade says whether a group, once these members are gone, is one of classic members only and may become a classic group.
func (c *core) mayDowngrade(g *consumerGroup, leaving []*consumerMember) bool {
	classic, left := g.tallyOf(tallyKey{what: speaksClassic}), g.members.Len()-len(leaving)
	for _, m := range leaving {
		if m.classic != nil {
			classic--
		}
	}
	return left > 0 && classic == left && c.classicAllowed(g, left)
}

// mayDowngradeBy says whether a group, once a static member is replaced by a classic one, may become a classic group.
func (c *core) mayDowngradeBy(g *consumerGroup, replaced *consumerMember) bool {
	return replaced != nil && replaced.classic == nil && g.tallyOf(tallyKey{what: speaksClassic}) == g.members.Len()-1 &&
		c.classicAllowed(g, g.members.Len())
}

func (c *core) classicAllowed(g *consumerGroup, size int) bool {
	switch {
	case !c.cfg.Migration.Downgrade:
		c.log.Info("consumer group can't become a classic group because online downgrade is disabled", "group", g.id)
		return false
	case size > c.cfg.MaxSize:
		c.log.Info("consumer group can't become a classic group because it is too large", "group", g.id, "members", size)
		return false
	}
	return true
}

// downgrade makes a classic group of a consumer group whose members all speak the classic protocol, but for those who leave.
// joining is one that takes the place of a static member; records are its own so far. The group changes at once; if that can't be
// stored the timeline brings the consumer group back.
func (c *core) downgrade(g *consumerGroup, leaving []*consumerMember, joining *consumerMember, reason string, rebalance bool,
	records []Record, now time.Time,
) result {
	cg := newClassicGroup(g.id, now)
	cg.generation = g.epoch.Get()
	var (
		removed []string // ids under which the members are when the tombstones come
		targets = make(map[string]partitions)
		members []*consumerMember
	)
	for id, m := range g.members.All() {
		target, _ := g.targets.Get(id)
		switch {
		case slices.Contains(leaving, m):
			removed = append(removed, id)
		case joining != nil && equalString(m.instanceID, joining.instanceID) && m.instanceID != nil:
			removed = append(removed, joining.id)
			targets[joining.id] = target
			members = append(members, joining)
		default:
			removed = append(removed, id)
			targets[id] = target
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b *consumerMember) int { return strings.Compare(a.id, b.id) })
	for _, m := range members {
		n := &classicMember{
			id: m.id, instanceID: m.instanceID, clientID: m.clientID, clientHost: m.clientHost,
			rebalanceTimeout: time.Duration(m.rebalanceTimeout) * time.Millisecond,
			sessionTimeout:   time.Duration(m.classic.SessionTimeoutMs) * time.Millisecond,
		}
		for i := range m.classic.SupportedProtocols {
			p := &m.classic.SupportedProtocols[i]
			n.protocols = append(n.protocols, protocolMetadata{p.Name, p.Metadata})
		}
		cg.add(consumerProtocol, n)
	}
	protocol := cg.selectProtocol()
	cg.protocol = &protocol
	cg.topics = cg.subscribedTopics()
	cg.state = stateStable
	for _, m := range cg.members {
		m.assignment = c.assignmentOf(targets[m.id], m.metadata(cg.protocol))
	}
	record := cg.record(nil)
	if rebalance {
		// Nobody has what the members who left had, and that a rebalance will give it away is known here alone: should the group move
		// to another coordinator before that has ended, this tells it that there must be one. Differs from Kafka, where the partitions
		// stay without an owner then, until something else makes the group rebalance.
		record.Value.(*message.GroupMetadataValue).CurrentStateTimestamp = noTimestamp
	}
	records = append(g.tombstonesFor(records, removed), record)

	c.groups.Delete(g.id)
	c.groups.Set(cg.id, cg)
	c.log.Info("consumer group becomes a classic group", "group", cg.id, "generation", cg.generation, "members", len(cg.members))
	for _, m := range cg.members {
		c.prolong(cg, m, m.sessionTimeout, now)
	}
	if rebalance {
		c.prepareRebalance(cg, "the group was a consumer group and "+reason, now)
	}
	return result{
		Records: records,
		Applied: true,
		Committed: func(_ time.Time, err error) {
			if err == nil || c.live(cg) { // stored, or only slow to be
				return
			}
			c.log.Warn("consumer group could not be made a classic group", "group", cg.id, "err", err)
			for _, m := range cg.members {
				c.answerJoin(cg, m, joinError("", coordinator.OperationError(err)))
				c.answerSync(m, syncError(coordinator.OperationError(err)))
			}
		},
	}
}
