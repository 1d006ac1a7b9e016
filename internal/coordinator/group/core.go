package group

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/coordinator"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/timeline"
	uid "gregor/internal/uuid"
)

// result is what an operation on the core gives.
type result = coordinator.Result[Record]

// timer is a deadline of the shard.
type timer = coordinator.Timer[Record]

// core is the state machine of one shard: all groups whose id falls to its partition, and their offsets.
type core struct {
	cfg *Config
	env coordinator.Env[Record]
	log *slog.Logger
	// uuid makes the random part of member ids.
	uuid     func() string
	counters *counters
	// memberID makes the id of a member of a consumer group.
	memberID func() string
	// background runs a job off the shard, and then on the shard what the job returns.
	background func(job func() func(c *core, now time.Time) (result, error))

	// image is the metadata that this shard has seen; newTopics the offset of the last with new topics in it.
	image     *metadata.Image
	newTopics int64
	// latest is where the newest metadata is when the shard begins to serve.
	latest func() *metadata.Image
	// topicHashes remembers the hashes of topics by their ids.
	topicHashes map[uid.UUID]topicHash
	timers      map[memberKey]*memberTimers
	// initialDelays has the streams groups that wait for members before their first assignment.
	initialDelays map[string]*timer
	// resolving has the groups whose regular expressions are being looked up, and since when.
	resolving map[string]time.Time

	groups  *timeline.Map[string, group]
	offsets offsetStore
	// names has the topic names that offsets refer to, once each.
	names map[string]string

	expiration coordinator.Timer[Record]
}

func newCore(cfg *Config, env coordinator.Env[Record], uuid func() string, counters *counters) *core {
	return &core{
		cfg:      cfg,
		env:      env,
		log:      env.Logger,
		uuid:     uuid,
		counters: counters,
		groups:   timeline.NewMap[string, group](env.Registry),
		offsets:  newOffsetStore(env.Registry),
		names:    make(map[string]string),
		memberID: uuid,

		image:         metadata.EmptyImage(),
		topicHashes:   make(map[uid.UUID]topicHash),
		timers:        make(map[memberKey]*memberTimers),
		initialDelays: make(map[string]*timer),
		resolving:     make(map[string]time.Time),
	}
}

// intern returns the one copy of a topic name that is kept.
func (c *core) intern(topic string) string {
	if s, ok := c.names[topic]; ok {
		return s
	}
	s := strings.Clone(topic)
	c.names[s] = s
	return s
}

// group finds a group as of a log offset.
func (c *core) group(id string, asOf int64) (group, error) {
	if g, ok := c.groups.At(asOf, id); ok {
		return g, nil
	}
	return nil, api.WithMessage(api.ErrGroupIDNotFound, "Group %s not found.", id)
}

// classicGroup finds a classic group as of a log offset.
func (c *core) classicGroup(id string, asOf int64) (*classicGroup, error) {
	g, err := c.group(id, asOf)
	if err != nil {
		return nil, err
	}
	if cg, ok := g.(*classicGroup); ok {
		return cg, nil
	}
	return nil, api.WithMessage(api.ErrGroupIDNotFound, "Group %s is not a classic group.", id)
}

// live says whether g is still the group of its id: timers may outlive their group.
func (c *core) live(g *classicGroup) bool {
	now, ok := c.groups.Get(g.id)
	return ok && now == group(g) && g.state != stateDead
}

// Replay applies a record.
func (c *core) Replay(at, producerID int64, _ int16, r Record) error {
	switch k := r.Key.(type) {
	case *message.OffsetCommitKey:
		v, _ := r.Value.(*message.OffsetCommitValue)
		c.replayOffset(at, producerID, k, v)
		return nil
	case *message.GroupMetadataKey:
		if v, _ := r.Value.(*message.GroupMetadataValue); v != nil {
			c.groups.Set(k.Group, loadClassicGroup(k.Group, v))
		} else {
			c.groups.Delete(k.Group)
		}
		return nil
	default:
		if id, ok := consumerRecordOf(r.Key); ok {
			c.replayConsumer(id, r)
			return nil
		}
		if id, ok := streamsRecordOf(r.Key); ok {
			c.replayStreams(id, r)
			return nil
		}
		return c.replayShare(r)
	}
}

func (c *core) replayOffset(at, producerID int64, k *message.OffsetCommitKey, v *message.OffsetCommitValue) {
	id := k.Group
	if g, ok := c.groups.Get(id); ok {
		id = g.groupID()
	} else if v != nil {
		// Whoever commits without being a member makes a group without a protocol type, and no record tells of it.
		g := &classicGroup{id: id, previous: stateDead, stateSince: noTimestamp}
		c.groups.Set(id, g)
	}
	c.offsets.replay(at, producerID, id, c.intern(k.Topic), k.Partition, v)
}

// ReplayTransactionEnd applies a transaction marker.
func (c *core) ReplayTransactionEnd(producerID int64, _ int16, commit bool) error {
	c.offsets.endTransaction(producerID, commit)
	return nil
}

// Loaded starts the sessions of all members, who may have come over from another coordinator and not know it yet.
func (c *core) Loaded(now time.Time) {
	if c.latest != nil {
		c.image = c.latest()
	}
	c.newTopics = c.image.Offset
	for _, g := range c.groups.All() {
		if g, ok := g.(*consumerGroup); ok {
			for id, m := range g.members.All() {
				c.startSession(g.id, id, c.settings(g.id).SessionTimeout, now)
				if m.state == memberUnrevoked && m.classic == nil {
					c.startRebalance(g.id, m, now)
				}
			}
		}
		if g, ok := g.(*streamsGroup); ok {
			session := c.streamsSettings(g.id).SessionTimeout
			for id, m := range g.members.All() {
				c.startSession(g.id, id, session, now)
				if m.state == memberUnrevoked {
					c.startTaskRevocation(g.id, m, now)
				}
			}
		}
		g, ok := g.(*classicGroup)
		if !ok {
			continue
		}
		for _, m := range g.members {
			c.prolong(g, m, m.sessionTimeout, now)
		}
		if len(g.members) > 0 && g.stateSince == noTimestamp {
			c.prepareRebalance(g, "loaded as a group that was to rebalance", now)
		}
		if len(g.members) > c.cfg.MaxSize {
			// The limit was lowered. A rebalance lets members commit before some of them are refused.
			c.prepareRebalance(g, fmt.Sprintf("loaded with %d members, more than %d", len(g.members), c.cfg.MaxSize), now)
		}
	}
	c.expiration.Fire = c.expireOffsets
	c.env.Timers.Set(&c.expiration, now.Add(c.cfg.OffsetsRetentionCheckInterval))
}

// Unloaded sends everybody who is parked to the new coordinator.
func (c *core) Unloaded(now time.Time) {
	for _, g := range c.groups.All() {
		g, ok := g.(*classicGroup)
		if !ok {
			continue
		}
		g.transition(stateDead, now)
		for _, m := range g.members {
			c.answerJoin(g, m, joinError(m.id, api.ErrNotCoordinator))
			c.answerSync(m, syncError(api.ErrNotCoordinator))
		}
	}
}

// list answers ListGroups: the groups of any of the states and kinds, all if there are none given.
func (c *core) list(states, kinds []string, asOf int64) []kmsg.ListGroupsResponseGroup {
	wantState := make(map[string]bool, len(states))
	for _, s := range states {
		wantState[strings.TrimSpace(strings.ToLower(s))] = true
	}
	wantKind := make(map[string]bool, len(kinds))
	for _, k := range kinds {
		wantKind[strings.ToLower(k)] = true
	}
	var groups []kmsg.ListGroupsResponseGroup
	for _, g := range c.groups.AllAt(asOf) {
		if len(states) > 0 && !wantState[strings.ToLower(g.stateAt(asOf))] {
			continue
		}
		if len(kinds) > 0 && !wantKind[g.kind().listed()] {
			continue
		}
		groups = append(groups, g.list(asOf))
	}
	return groups
}

// describeConsumer answers ConsumerGroupDescribe for one group.
func (c *core) describeConsumer(id string, asOf int64) kmsg.ConsumerGroupDescribeResponseGroup {
	g, err := c.group(id, asOf)
	if err == nil {
		if cg, ok := g.(*consumerGroup); ok {
			return cg.describe(asOf, c.cfg.Assignors[0], c.image)
		}
		err = api.WithMessage(api.ErrGroupIDNotFound, "Group %s is not a consumer group.", id)
	}
	d := kmsg.NewConsumerGroupDescribeResponseGroup()
	text := api.MessageOf(err)
	d.Group, d.ErrorCode, d.ErrorMessage = id, api.CodeOf(err), &text
	return d
}

// describe answers DescribeGroups for one group.
func (c *core) describe(version int16, id string, asOf int64) kmsg.DescribeGroupsResponseGroup {
	d := kmsg.NewDescribeGroupsResponseGroup()
	d.Group = id
	g, err := c.classicGroup(id, asOf)
	if err != nil {
		d.State = stateDead.String()
		if version >= 6 {
			// KIP-1043: a group that isn't there is told apart from one that is dead.
			text := api.MessageOf(err)
			d.ErrorCode, d.ErrorMessage = api.CodeOf(err), &text
		}
		return d
	}
	d.State = g.state.String()
	if g.protocolType != nil {
		d.ProtocolType = *g.protocolType
	}
	stable := g.state == stateStable && g.protocol != nil
	if stable {
		d.Protocol = *g.protocol
	}
	for _, m := range g.members {
		dm := kmsg.NewDescribeGroupsResponseGroupMember()
		dm.MemberID, dm.InstanceID = m.id, m.instanceID
		dm.ClientID, dm.ClientHost = m.clientID, m.clientHost
		dm.MemberAssignment = m.assignment
		if stable {
			dm.ProtocolMetadata = m.metadata(g.protocol)
		}
		d.Members = append(d.Members, dm)
	}
	return d
}

// deleteGroups answers DeleteGroups: all in one batch, each with its own verdict.
func (c *core) deleteGroups(ids []string) (result, []kmsg.DeleteGroupsResponseGroup) {
	var (
		res     result
		answers = make([]kmsg.DeleteGroupsResponseGroup, 0, len(ids))
		removed int
	)
	for _, id := range ids {
		a := kmsg.NewDeleteGroupsResponseGroup()
		a.Group = id
		g, err := c.group(id, timeline.Latest)
		if err == nil {
			err = g.checkDelete()
		}
		if err == nil {
			var n int
			res.Records, n = c.offsets.tombstones(res.Records, g.groupID())
			removed += n
			c.counters.deleted.Add(int64(n))
			res.Records = g.tombstones(res.Records)
			c.log.Info("group deleted", "group", id, "offsets", removed)
		} else {
			// Kafka has a message in version 3, but none for these errors.
			a.ErrorCode = api.CodeOf(err)
		}
		answers = append(answers, a)
	}
	return res, answers
}
