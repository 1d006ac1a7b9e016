package group

import (
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// checkHeartbeat refuses what no ConsumerGroupHeartbeat may say, whatever the group.
func (c *Coordinator) checkHeartbeat(version int16, r *kmsg.ConsumerGroupHeartbeatRequest) error {
	blank := func(s *string) bool { return s != nil && strings.TrimSpace(*s) == "" }
	invalid := func(text string) error { return api.WithMessage(api.ErrInvalidRequest, "%s", text) }
	const clientMakesID = 1
	switch {
	case (version >= clientMakesID || r.MemberEpoch > joinEpoch || r.MemberEpoch == leaveEpoch) && blank(&r.MemberID):
		return invalid("MemberId can't be empty.")
	case blank(&r.Group):
		return invalid("GroupId can't be empty.")
	case blank(r.InstanceID):
		return invalid("InstanceId can't be empty.")
	case blank(r.RackID):
		return invalid("RackId can't be empty.")
	case r.MemberEpoch == joinEpoch && r.RebalanceTimeoutMillis == -1:
		return invalid("RebalanceTimeoutMs must be provided in first request.")
	case r.MemberEpoch == joinEpoch && (r.Topics == nil || len(r.Topics) > 0):
		return invalid("TopicPartitions must be empty when (re-)joining.")
	case r.MemberEpoch == joinEpoch && r.SubscribedTopicNames == nil && r.SubscribedTopicRegex == nil:
		return invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
	case r.MemberEpoch == leaveStaticEpoch && r.InstanceID == nil:
		return invalid("InstanceId can't be null.")
	case r.MemberEpoch < leaveStaticEpoch:
		return invalid("MemberEpoch is invalid.")
	case r.ServerAssignor != nil && !slices.Contains(c.cfg.Assignors, *r.ServerAssignor):
		return api.WithMessage(api.ErrUnsupportedAssignor, "ServerAssignor %s is not supported. Supported assignors: %s.",
			*r.ServerAssignor, strings.Join(c.cfg.Assignors, ", "))
	}
	return nil
}

// consumerHeartbeat answers ConsumerGroupHeartbeat: with it members join, say what they read and have, get their partitions,
// and leave.
func (c *core) consumerHeartbeat(ctx *Context, r *kmsg.ConsumerGroupHeartbeatRequest, now time.Time) (result, *kmsg.ConsumerGroupHeartbeatResponse, error) {
	if r.MemberEpoch == leaveEpoch || r.MemberEpoch == leaveStaticEpoch {
		return c.consumerLeave(r, now)
	}
	joins := r.MemberEpoch == joinEpoch
	g, records, err := c.consumerGroupFor(r.Group, joins, now)
	if err != nil {
		return result{}, nil, err
	}
	id := r.MemberID
	if err := c.checkRoom(g, id, r.InstanceID); err != nil {
		return result{}, nil, err
	}
	if id == "" {
		id = c.memberID()
	}
	u := &memberUpdate{c: c, from: ctx, g: g, now: now, records: records, owned: r.Topics}
	if r.InstanceID == nil {
		err = u.findDynamic(id, r.MemberEpoch, joins)
	} else {
		err = u.findStatic(id, *r.InstanceID, r.MemberEpoch, joins)
	}
	if err != nil {
		return result{}, nil, err
	}
	m := *u.old
	if r.InstanceID != nil {
		m.instanceID = copyString(r.InstanceID)
	}
	if r.RackID != nil {
		m.rackID = copyString(r.RackID)
	}
	if r.RebalanceTimeoutMillis != -1 {
		m.rebalanceTimeout = r.RebalanceTimeoutMillis
	}
	if r.ServerAssignor != nil {
		m.assignor = copyString(r.ServerAssignor)
	}
	if r.SubscribedTopicNames != nil {
		m.topics = c.topicSet(r.SubscribedTopicNames)
	}
	if r.SubscribedTopicRegex != nil && m.regex != *r.SubscribedTopicRegex {
		m.regex = strings.Clone(*r.SubscribedTopicRegex)
	}
	m.clientID, m.clientHost, m.classic = strings.Clone(ctx.ClientID), ctx.ClientHost, nil
	u.member = &m

	named := u.saveSelf()
	regex, err := u.updateRegex()
	if err != nil {
		return result{}, nil, err
	}
	// Differs from Kafka as to unbalanced: there a static member that comes back with the new protocol ends the rebalance of its
	// group, and what nobody has stays without owner.
	bump := named || regex == regexResolved || g.unbalanced || g.assignorWith(nil, nil) != g.assignorWith(u.old, u.member)
	u.updateEpoch(bump)
	targetEpoch, target := u.updateTarget()
	if err := u.reconcile(targetEpoch, target, named || regex != regexSame); err != nil {
		return result{}, nil, err
	}
	c.startSession(r.Group, id, c.settings(r.Group).SessionTimeout, now)

	resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
	resp.MemberID, resp.MemberEpoch = &u.member.id, u.member.epoch
	resp.HeartbeatIntervalMillis = int32(c.settings(r.Group).HeartbeatInterval.Milliseconds())
	// Who says everything, perhaps because an answer was lost, is told everything.
	full := r.RebalanceTimeoutMillis != -1 && (r.SubscribedTopicNames != nil || r.SubscribedTopicRegex != nil) && r.Topics != nil
	// Differs from Kafka as to lacks: an answer may be lost without the client's noticing, if a request of its comes twice.
	if joins || full || u.lacks() || !u.old.assigned.equal(u.member.assigned) {
		resp.Assignment = &kmsg.ConsumerGroupHeartbeatResponseAssignment{
			Topics: make([]kmsg.ConsumerGroupHeartbeatResponseAssignmentTopic, len(u.member.assigned)),
		}
		for i, tp := range u.member.assigned {
			resp.Assignment.Topics[i].TopicID, resp.Assignment.Topics[i].Partitions = tp.topic, tp.partitions
		}
	}
	return result{Records: u.records}, resp, nil
}

// lacks says whether the member says what it has and that isn't all that it was told to take.
func (u *memberUpdate) lacks() bool {
	if u.owned == nil {
		return false
	}
	n := 0
	for i := range u.owned {
		for _, p := range u.owned[i].Partitions {
			if u.old.assigned.has(u.owned[i].TopicID, p) {
				n++
			}
		}
	}
	return n < u.old.assigned.count()
}

func copyString(s *string) *string {
	c := strings.Clone(*s)
	return &c
}

// topicSet is a subscription in order, each topic once.
func (c *core) topicSet(names []string) []string {
	set := make([]string, len(names))
	for i, n := range names {
		set[i] = c.intern(n)
	}
	slices.Sort(set)
	return slices.Compact(set)
}

// consumerGroupFor finds the group for a heartbeat. If the member joins, the group comes into being, or is made from a classic
// group; records are what that takes. A group that isn't stored yet lies on a timeline of its own: it comes onto the shard's
// when its records are replayed.
func (c *core) consumerGroupFor(id string, joins bool, now time.Time) (*consumerGroup, []Record, error) {
	existing, ok := c.groups.Get(id)
	if g, ok := existing.(*consumerGroup); ok {
		return g, nil, nil
	}
	if !joins {
		if !ok {
			return nil, nil, api.WithMessage(api.ErrGroupIDNotFound, "Consumer group %s not found.", id)
		}
		return nil, nil, api.WithMessage(api.ErrGroupIDNotFound, "Group %s is not a consumer group.", id)
	}
	if !ok {
		return newConsumerGroup(timeline.NewRegistry(), strings.Clone(id)), nil, nil
	}
	cg, ok := existing.(*classicGroup)
	switch {
	case !ok:
		return nil, nil, api.WithMessage(api.ErrGroupIDNotFound, "Group %s is not a consumer group.", id)
	case cg.empty():
		c.log.Info("empty classic group becomes a consumer group", "group", cg.id)
		return newConsumerGroup(timeline.NewRegistry(), cg.id), cg.tombstones(nil), nil
	}
	return c.upgrade(cg, now)
}

// checkRoom refuses a new member of a group that is full.
func (c *core) checkRoom(g *consumerGroup, memberID string, instanceID *string) error {
	if instanceID != nil {
		if _, ok := g.static.Get(*instanceID); ok {
			return nil
		}
	}
	if _, known := g.members.Get(memberID); known || g.members.Len() < c.cfg.ConsumerMaxSize {
		return nil
	}
	return api.WithMessage(api.ErrGroupMaxSizeReached,
		"The consumer group has reached its maximum capacity of %d members.", c.cfg.ConsumerMaxSize)
}

// memberUpdate is a request of a member on its way through the group. It gathers records; nothing changes until they are
// replayed.
type memberUpdate struct {
	c       *core
	from    *Context
	g       *consumerGroup
	now     time.Time
	records []Record
	// old is the member as it was: a bare one if it is new, one with its predecessor's state if it takes a static member's place.
	old, member *consumerMember
	// replaces is the id of the static member whose place it takes.
	replaces string
	// owned is what the member says it has, nil if it doesn't say.
	owned []kmsg.ConsumerGroupHeartbeatRequestTopic
	// epoch is the group epoch after the request.
	epoch int32
}

// checkEpoch fences a member whose epoch can't be: neither its present one, nor, should it have missed an answer, the one before.
func (u *memberUpdate) checkEpoch(m *consumerMember, received int32) error {
	switch {
	case received == joinEpoch, received == m.epoch:
		return nil
	case received > m.epoch:
		return api.WithMessage(api.ErrFencedMemberEpoch, "The consumer group member has a greater member epoch (%d) than the one "+
			"known by the group coordinator (%d). The member must abandon all its partitions and rejoin.", received, m.epoch)
	case received == m.previous && u.owned != nil && !slices.ContainsFunc(u.owned, func(t kmsg.ConsumerGroupHeartbeatRequestTopic) bool {
		return m.assigned.find(t.TopicID) == nil ||
			slices.ContainsFunc(t.Partitions, func(p int32) bool { return !m.assigned.has(t.TopicID, p) })
	}):
		return nil
	}
	return api.WithMessage(api.ErrFencedMemberEpoch, "The consumer group member has a smaller member epoch (%d) than the one "+
		"known by the group coordinator (%d). The member must abandon all its partitions and rejoin.", received, m.epoch)
}

// findDynamic finds a member by its id, or makes it.
func (u *memberUpdate) findDynamic(id string, received int32, joins bool) error {
	m, err := u.g.member(id)
	if err != nil {
		if !joins {
			return err
		}
		m = newConsumerMember(strings.Clone(id))
	}
	if err := u.checkEpoch(m, received); err != nil {
		return err
	}
	if joins {
		u.c.log.Info("member joins the consumer group", "group", u.g.id, "member", id)
	}
	u.old = m
	return nil
}

// findStatic finds a member by its instance id, or makes it. One that has left for a while is replaced by the one that comes
// back.
func (u *memberUpdate) findStatic(id, instance string, received int32, joins bool) error {
	m := u.g.staticMember(instance)
	switch {
	case joins && m == nil:
		u.c.log.Info("static member joins the consumer group", "group", u.g.id, "member", id, "instance", instance)
		if existing, ok := u.g.members.Get(id); ok {
			u.old = existing
		} else {
			u.old = newConsumerMember(strings.Clone(id))
		}
		return nil
	case joins && m.classic == nil && m.epoch != leaveStaticEpoch:
		u.c.log.Info("static member can't join because its instance id is in use", "group", u.g.id, "member", id, "instance", instance,
			"owner", m.id)
		return api.WithMessage(api.ErrUnreleasedInstanceID, "Static member %s with instance id %s cannot join the group because the "+
			"instance id is owned by %s member.", id, instance, m.id)
	case joins:
		u.replace(m, id)
		return nil
	}
	if err := checkStatic(m, id, instance); err != nil {
		return err
	}
	if err := u.checkEpoch(m, received); err != nil {
		return err
	}
	u.old = m
	return nil
}

func (m *consumerMember) name() string { return m.id }
func (m *streamsMember) name() string  { return m.id }

// checkStatic says why id isn't the member m that an instance id belongs to, nil if it belongs to none.
func checkStatic[M interface {
	*consumerMember | *streamsMember
	name() string
}](m M, id, instance string) error {
	switch {
	case m == nil:
		return api.WithMessage(api.ErrUnknownMemberID, "Instance id %s is unknown.", instance)
	case m.name() != id:
		return api.WithMessage(api.ErrFencedInstanceID, "Static member %s with instance id %s was fenced by member %s.", id, instance, m.name())
	}
	return nil
}

// replace gives the place of a static member to one with another id.
func (u *memberUpdate) replace(m *consumerMember, id string) {
	u.c.log.Info("static member is replaced", "group", u.g.id, "member", id, "instance", *m.instanceID, "old_member", m.id)
	n := *m
	n.id, n.epoch, n.previous = strings.Clone(id), joinEpoch, joinEpoch
	target, _ := u.g.targets.Get(m.id)
	u.records = append(memberTombstones(u.records, u.g.id, m.id),
		n.selfRecord(u.g.id), targetRecord(u.g.id, n.id, target), n.placeRecord(u.g.id))
	u.old, u.replaces = &n, m.id
}

// saveSelf stores what the member says of itself if it has changed, and says whether the topics that it names have.
func (u *memberUpdate) saveSelf() (subscriptionChanged bool) {
	_, stored := u.g.members.Get(u.old.id)
	if (stored || u.replaces != "") && u.member.sameSelf(u.old) {
		return false
	}
	u.records = append(u.records, u.member.selfRecord(u.g.id))
	return !slices.Equal(u.member.topics, u.old.topics)
}

// readersAfter counts who will read which topic.
func (u *memberUpdate) readersAfter() map[string]readers {
	after := make(map[string]readers, u.g.topics.Len())
	for t, r := range u.g.topics.All() {
		after[t] = r
	}
	add := func(topics []string, byName, byRegex int32) {
		for _, t := range topics {
			r := after[t]
			after[t] = readers{r.byName + byName, r.byRegex + byRegex}
		}
	}
	add(u.old.topics, -1, 0)
	add(u.member.topics, 1, 0)
	if u.old.regex != "" && u.old.regex != u.member.regex && u.g.regexReaders(u.old.regex) == 1 {
		resolved, _ := u.g.regexes.Get(u.old.regex)
		add(resolved.topics, 0, -1)
	}
	return after
}

// readNames are the topics that somebody reads.
func readNames(rs map[string]readers) []string {
	names := make([]string, 0, len(rs))
	for t, r := range rs {
		if r.byName > 0 || r.byRegex > 0 {
			names = append(names, t)
		}
	}
	return names
}

// updateEpoch raises the group epoch if asked to, or if the topics aren't what they were.
func (u *memberUpdate) updateEpoch(bump bool) {
	g := u.g
	u.epoch = g.epoch.Get()
	if !bump && g.fresh && u.epoch >= g.freshEpoch {
		return
	}
	hash := u.c.metadataHash(readNames(u.readersAfter()))
	if bump || hash != g.hash.Get() {
		u.epoch++
		u.records = append(u.records, epochRecord(g.id, u.epoch, hash))
		u.c.counters.rebalances.Add(1)
		u.c.log.Info("group epoch rises", "group", g.id, "epoch", u.epoch, "member", u.member.id)
	}
	g.fresh, g.freshEpoch = true, u.epoch
	if g.hasPartitionMetadata.Get() {
		u.records = append(u.records, Record{Key: &message.ConsumerGroupPartitionMetadataKey{GroupID: g.id}})
	}
}

// updateTarget computes the targets if the group epoch is ahead of them and the last time is long enough ago, and returns that
// of the member.
func (u *memberUpdate) updateTarget() (epoch int32, target partitions) {
	g := u.g
	last := g.target.Get()
	interval := u.c.settings(g.id).AssignmentInterval.Milliseconds()
	if last.epoch >= u.epoch || last.at != 0 && u.now.UnixMilli() < last.at+interval {
		return last.epoch, g.targetOf(u.member)
	}
	members := make([]*consumerMember, 0, g.members.Len()+1)
	for id, m := range g.members.All() {
		if id != u.member.id && id != u.replaces {
			members = append(members, m)
		}
	}
	members = append(members, u.member)
	slices.SortFunc(members, func(a, b *consumerMember) int { return strings.Compare(a.id, b.id) })

	task := &assignment{members: make([]assignee, len(members)), alike: true, size: u.c.topicSize}
	had := make([]bool, len(members))
	for i, m := range members {
		a := &task.members[i]
		a.id, a.instance = m.id, m.instanceID
		id := m.id
		if m == u.member && u.replaces != "" {
			id = u.replaces
		}
		a.now, had[i] = g.targets.Get(id)
		if i > 0 && m.regex == members[i-1].regex && slices.Equal(m.topics, members[i-1].topics) {
			a.topics = task.members[i-1].topics
			continue
		}
		a.topics = u.c.topicIDs(g, m)
		task.alike = task.alike && (i == 0 || slices.Equal(a.topics, task.members[i-1].topics))
	}
	name := g.assignorWith(u.old, u.member)
	assign := assignors[name]
	if assign == nil || !slices.Contains(u.c.cfg.Assignors, name) {
		name = u.c.cfg.Assignors[0]
		assign = assignors[name]
	}
	for i, t := range assign(task) {
		if members[i] == u.member {
			target = t
		}
		if !had[i] || !t.equal(task.members[i].now) {
			u.records = append(u.records, targetRecord(g.id, members[i].id, t))
		}
	}
	u.records = append(u.records, targetEpochRecord(g.id, u.epoch, u.now.UnixMilli()))
	u.c.log.Info("group has a new target", "group", g.id, "epoch", u.epoch, "assignor", name, "members", len(members))
	return u.epoch, target
}

// topicSize is how many partitions a topic has.
func (c *core) topicSize(id uuid.UUID) int {
	if t := c.image.Topics.ByID(id); t != nil {
		return t.Len()
	}
	return 0
}

// topicIDs are the topics that a member reads, those that exist, in rising order.
func (c *core) topicIDs(g *consumerGroup, m *consumerMember) []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(m.topics))
	add := func(names []string) {
		for _, n := range names {
			if t := c.image.Topics.ByName(n); t != nil {
				ids = append(ids, t.ID)
			}
		}
	}
	add(m.topics)
	if resolved, ok := g.regexes.Get(m.regex); ok && m.regex != "" {
		add(resolved.topics)
	}
	slices.SortFunc(ids, uuid.UUID.Compare)
	return slices.Compact(ids)
}

// reads says whether a member reads a topic.
func (g *consumerGroup) reads(m *consumerMember, t *metadata.Topic) bool {
	if t == nil {
		return false
	}
	if _, ok := slices.BinarySearch(m.topics, t.Name); ok {
		return true
	}
	if m.regex == "" {
		return false
	}
	resolved, _ := g.regexes.Get(m.regex)
	_, ok := slices.BinarySearch(resolved.topics, t.Name)
	return ok
}

// reconcile takes the member a step towards its target.
func (u *memberUpdate) reconcile(targetEpoch int32, target partitions, subscriptionChanged bool) error {
	m := u.member
	if !subscriptionChanged && m.settled(targetEpoch) {
		return nil
	}
	r := reconciliation{
		member: m, targetEpoch: targetEpoch, target: target, changed: subscriptionChanged, owned: u.owned,
		subscribes: func(id uuid.UUID) bool { return u.g.reads(m, u.c.image.Topics.ByID(id)) },
		taken: func(topic uuid.UUID, p int32) bool {
			o, ok := u.g.owners.Get(partitionID{topic, p})
			return ok && o != m.id && o != u.replaces
		},
	}
	next, err := r.next()
	if err != nil || next == m {
		return err
	}
	u.member = next
	u.records = append(u.records, next.placeRecord(u.g.id))
	if next.classic == nil && next.state == memberUnrevoked {
		u.c.startRebalance(u.g.id, next, u.now)
	}
	return nil
}

// consumerLeave answers a heartbeat that leaves the group.
func (c *core) consumerLeave(r *kmsg.ConsumerGroupHeartbeatRequest, now time.Time) (result, *kmsg.ConsumerGroupHeartbeatResponse, error) {
	existing, err := c.group(r.Group, timeline.Latest)
	if err != nil {
		return result{}, nil, err
	}
	g, ok := existing.(*consumerGroup)
	if !ok {
		return result{}, nil, api.WithMessage(api.ErrGroupIDNotFound, "Group %s is not a consumer group.", r.Group)
	}
	resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
	resp.MemberID, resp.MemberEpoch = &r.MemberID, r.MemberEpoch
	var m *consumerMember
	if r.InstanceID == nil {
		m, err = g.member(r.MemberID)
	} else {
		m = g.staticMember(*r.InstanceID)
		err = checkStatic(m, r.MemberID, *r.InstanceID)
	}
	if err != nil {
		return result{}, nil, err
	}
	if r.InstanceID != nil && r.MemberEpoch == leaveStaticEpoch {
		// It is expected back before its session ends. Until then nobody else gets its partitions.
		c.log.Info("static member leaves the consumer group for the time being", "group", g.id, "member", m.id)
		away := *m
		away.epoch, away.assigned, away.revoking = leaveStaticEpoch, m.assigned.since(0), nil
		return result{Records: []Record{away.placeRecord(g.id)}}, resp, nil
	}
	c.log.Info("member leaves the consumer group", "group", g.id, "member", m.id)
	return c.fence(g, []*consumerMember{m}, now), resp, nil
}

// fence takes members out of the group.
func (c *core) fence(g *consumerGroup, members []*consumerMember, now time.Time) result {
	if len(members) == 0 {
		return result{}
	}
	if c.mayDowngrade(g, members) {
		return c.downgrade(g, members, nil, "members left", true, nil, now)
	}
	var (
		records   []Record
		names     = make(map[string]readers, g.topics.Len())
		regexGone = make(map[string]int)
	)
	for t, r := range g.topics.All() {
		names[t] = r
	}
	drop := func(topics []string, byName, byRegex int32) {
		for _, t := range topics {
			names[t] = readers{names[t].byName - byName, names[t].byRegex - byRegex}
		}
	}
	for _, m := range members {
		records = memberTombstones(records, g.id, m.id)
		drop(m.topics, 1, 0)
		if m.regex == "" {
			continue
		}
		if regexGone[m.regex]++; regexGone[m.regex] == g.regexReaders(m.regex) {
			records = append(records, regexTombstone(g.id, m.regex))
			resolved, _ := g.regexes.Get(m.regex)
			drop(resolved.topics, 0, 1)
		}
	}
	epoch := g.epoch.Get() + 1
	records = append(records, epochRecord(g.id, epoch, c.metadataHash(readNames(names))))
	c.counters.rebalances.Add(1)
	if g.members.Len() == len(members) {
		// Nobody is left to assign anything to, and who comes next needn't wait.
		records = append(records, targetEpochRecord(g.id, epoch, 0))
	}
	return result{Records: records}
}

// sessionTimeout is how long a member may stay silent.
func (c *core) sessionTimeout(group string, m *consumerMember) time.Duration {
	if m.classic != nil {
		return time.Duration(m.classic.SessionTimeoutMs) * time.Millisecond
	}
	return c.settings(group).SessionTimeout
}

// settings are those of one group.
func (c *core) settings(group string) Settings {
	if c.cfg.Group == nil {
		return c.cfg.Consumer
	}
	return c.cfg.Group(c.image.Configs.Get(metadata.Resource{Type: metadata.GroupResource, Name: group}))
}
