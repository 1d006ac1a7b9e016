package group

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/timeline"
)

// streamsTagsVersion is the version of StreamsGroupHeartbeat from which members are told which client tags they lack.
const streamsTagsVersion = 1

// checkStreamsHeartbeat refuses what no StreamsGroupHeartbeat may say, whatever the group.
func checkStreamsHeartbeat(r *kmsg.StreamsGroupHeartbeatRequest) error {
	blank := func(s *string) bool { return s != nil && strings.TrimSpace(*s) == "" }
	filled := func(ids []kmsg.TaskIDs) bool { return ids == nil || len(ids) > 0 }
	invalid := func(format string, a ...any) error { return api.WithMessage(api.ErrInvalidRequest, format, a...) }
	if r.Topology != nil {
		for i := range r.Topology.Subtopologies {
			if len(r.Topology.Subtopologies[i].SourceTopicRegex) > 0 {
				return invalid("Regular expressions for source topics are not supported yet.")
			}
		}
	}
	joins := r.MemberEpoch == joinEpoch
	some := r.ActiveTasks != nil || r.StandbyTasks != nil || r.WarmupTasks != nil
	switch {
	case blank(&r.MemberID):
		return invalid("MemberId can't be empty.")
	case blank(&r.Group):
		return invalid("GroupId can't be empty.")
	case blank(r.InstanceID):
		return invalid("InstanceId can't be empty.")
	case blank(r.RackID):
		return invalid("RackId can't be empty.")
	case joins && r.RebalanceTimeoutMillis == -1:
		return invalid("RebalanceTimeoutMs must be provided in first request.")
	case joins && filled(r.ActiveTasks):
		return invalid("ActiveTasks must be empty when (re-)joining.")
	case joins && filled(r.StandbyTasks):
		return invalid("StandbyTasks must be empty when (re-)joining.")
	case joins && filled(r.WarmupTasks):
		return invalid("WarmupTasks must be empty when (re-)joining.")
	case joins && r.Topology == nil:
		return invalid("Topology must be non-null when (re-)joining.")
	case joins:
		return checkTopology(r.Topology)
	case r.MemberEpoch == leaveStaticEpoch && r.InstanceID == nil:
		return invalid("InstanceId can't be null.")
	case r.MemberEpoch < leaveStaticEpoch:
		return invalid("MemberEpoch is %d, but must be greater than or equal to -2.", r.MemberEpoch)
	case some && (r.ActiveTasks == nil || r.StandbyTasks == nil || r.WarmupTasks == nil):
		return invalid("If one task-type is non-null, all must be non-null.")
	case r.Topology != nil:
		return invalid("Topology can only be provided when (re-)joining.")
	}
	return nil
}

// streamsAnswer is the answer to a StreamsGroupHeartbeat, and the internal topics that have to be created for the group.
type streamsAnswer struct {
	resp    *kmsg.StreamsGroupHeartbeatResponse
	missing []kmsg.CreateTopicsRequestTopic
}

// streamsHeartbeat answers StreamsGroupHeartbeat: with it members join, say what they compute and have, get their tasks, and leave.
func (c *core) streamsHeartbeat(ctx *Context, r *kmsg.StreamsGroupHeartbeatRequest, now time.Time) (result, streamsAnswer, error) {
	if r.MemberEpoch == leaveEpoch || r.MemberEpoch == leaveStaticEpoch {
		res, resp, err := c.streamsLeave(r)
		return res, streamsAnswer{resp: resp}, err
	}
	joins := r.MemberEpoch == joinEpoch
	g, stored, records, err := c.streamsGroupFor(r.Group, joins)
	if err != nil {
		return result{}, streamsAnswer{}, err
	}
	u := &streamsUpdate{c: c, g: g, now: now, records: records, settings: c.streamsSettings(r.Group), req: r}
	if joins {
		if err := c.checkStreamsRoom(g, r); err != nil {
			return result{}, streamsAnswer{}, err
		}
	}
	if r.InstanceID == nil {
		err = u.findDynamic(joins)
	} else {
		err = u.findStatic(joins)
	}
	if err != nil {
		return result{}, streamsAnswer{}, err
	}
	u.update(ctx, joins)
	bump := u.saveSelf()
	if err := u.updateTopology(); err != nil {
		return result{}, streamsAnswer{}, err
	}
	changed, err := u.configure()
	if err != nil {
		return result{}, streamsAnswer{}, err
	}
	if err := u.note(); err != nil {
		return result{}, streamsAnswer{}, err
	}
	u.updateEpoch(bump || changed)
	if g.empty() && u.settings.InitialDelay > 0 {
		c.startInitialDelay(r.Group, u.settings.InitialDelay, now)
	}
	targetEpoch, target := u.updateTarget()
	if err := u.reconcile(targetEpoch, target); err != nil {
		return result{}, streamsAnswer{}, err
	}
	c.startSession(g.id, u.member.id, u.settings.SessionTimeout, now)
	if r.ShutdownApplication && g.shutdown == "" {
		g.shutdown = u.member.id
		c.log.Info("a member asks for the whole application to shut down", "group", g.id, "member", u.member.id)
	}
	return result{Records: u.records}, streamsAnswer{u.answer(ctx, joins, stored), u.configured.missing}, nil
}

// streamsGroupFor finds the group for a heartbeat. If the member joins, the group comes into being, or replaces an empty classic
// group; records are what that takes. A group that isn't stored yet lies on a timeline of its own: it comes onto the shard's
// when its records are replayed.
func (c *core) streamsGroupFor(id string, joins bool) (g *streamsGroup, stored bool, records []Record, err error) {
	existing, ok := c.groups.Get(id)
	if g, ok := existing.(*streamsGroup); ok {
		return g, true, nil, nil
	}
	if !ok && !joins {
		return nil, false, nil, api.WithMessage(api.ErrGroupIDNotFound, "Streams group %s not found.", id)
	}
	if ok {
		cg, classic := existing.(*classicGroup)
		if !classic || !cg.empty() || !joins {
			return nil, false, nil, api.WithMessage(api.ErrGroupIDNotFound, "Group %s is not a streams group.", id)
		}
		c.log.Info("empty classic group becomes a streams group", "group", cg.id)
		return newStreamsGroup(timeline.NewRegistry(), cg.id), false, cg.tombstones(nil), nil
	}
	return newStreamsGroup(timeline.NewRegistry(), strings.Clone(id)), false, nil, nil
}

// checkStreamsRoom refuses a new member of a group that is full.
func (c *core) checkStreamsRoom(g *streamsGroup, r *kmsg.StreamsGroupHeartbeatRequest) error {
	if r.InstanceID != nil {
		if _, ok := g.static.Get(*r.InstanceID); ok {
			return nil
		}
	}
	if _, known := g.members.Get(r.MemberID); known || g.members.Len() < c.cfg.StreamsMaxSize {
		return nil
	}
	return api.WithMessage(api.ErrGroupMaxSizeReached,
		"The streams group has reached its maximum capacity of %d members.", c.cfg.StreamsMaxSize)
}

// streamsUpdate is a request of a member on its way through the group. It gathers records; nothing but soft state changes
// until they are replayed.
type streamsUpdate struct {
	c        *core
	g        *streamsGroup
	now      time.Time
	records  []Record
	settings StreamsSettings
	req      *kmsg.StreamsGroupHeartbeatRequest
	// old is the member as it was: a bare one if it is new, one with its predecessor's state if it takes a static member's place.
	old, member *streamsMember
	// replaces is the id of the static member whose place it takes.
	replaces   string
	topology   *topology
	configured *configuredTopology
	meta       streamsMetadata
	statuses   []kmsg.StreamsGroupHeartbeatResponseStatus
}

func (u *streamsUpdate) status(code int8, format string, a ...any) {
	u.statuses = append(u.statuses, kmsg.StreamsGroupHeartbeatResponseStatus{StatusCode: code, StatusDetail: fmt.Sprintf(format, a...)})
}

// checkEpoch fences a member whose epoch can't be: neither its present one, nor, should it have missed an answer, the one before.
func (u *streamsUpdate) checkEpoch(m *streamsMember) error {
	received := u.req.MemberEpoch
	within := func(ids []kmsg.TaskIDs, held tasks) bool {
		return ids != nil && !slices.ContainsFunc(tasksFromIDs(ids), func(t task) bool { return !held.has(t.taskID) })
	}
	switch {
	case received == joinEpoch, received == m.epoch:
		return nil
	case received > m.epoch:
		return api.WithMessage(api.ErrFencedMemberEpoch, "The streams group member has a greater member epoch (%d) than the one "+
			"known by the group coordinator (%d). The member must abandon all its partitions and rejoin.", received, m.epoch)
	case received == m.previous && within(u.req.ActiveTasks, m.assigned[active]) &&
		within(u.req.StandbyTasks, m.assigned[standby]) && within(u.req.WarmupTasks, m.assigned[warmup]):
		return nil
	}
	return api.WithMessage(api.ErrFencedMemberEpoch, "The streams group member has a smaller member epoch (%d) than the one "+
		"known by the group coordinator (%d). The member must abandon all its partitions and rejoin.", received, m.epoch)
}

// findDynamic finds a member by its id, or makes it.
func (u *streamsUpdate) findDynamic(joins bool) error {
	m, err := u.g.member(u.req.MemberID)
	if err != nil {
		if !joins {
			return err
		}
		m = newStreamsMember(strings.Clone(u.req.MemberID))
	}
	if err := u.checkEpoch(m); err != nil {
		return err
	}
	if joins {
		u.c.log.Info("member joins the streams group", "group", u.g.id, "member", m.id)
	}
	u.old = m
	return nil
}

// findStatic finds a member by its instance id, or makes it. One that has left for a while is replaced by the one that comes
// back.
func (u *streamsUpdate) findStatic(joins bool) error {
	id, instance := u.req.MemberID, *u.req.InstanceID
	m := u.g.staticMember(instance)
	switch {
	case joins && m == nil:
		u.c.log.Info("static member joins the streams group", "group", u.g.id, "member", id, "instance", instance)
		if existing, ok := u.g.members.Get(id); ok {
			u.old = existing
		} else {
			u.old = newStreamsMember(strings.Clone(id))
		}
		return nil
	case joins && m.epoch != leaveStaticEpoch:
		u.c.log.Info("static member can't join because its instance id is in use", "group", u.g.id, "member", id, "instance", instance,
			"owner", m.id)
		return api.WithMessage(api.ErrUnreleasedInstanceID, "Static member %s with instance id %s cannot join the group because the "+
			"instance id is owned by %s member.", id, instance, m.id)
	case joins:
		u.c.log.Info("static member is replaced", "group", u.g.id, "member", id, "instance", instance, "old_member", m.id)
		n := *m
		n.id, n.epoch, n.previous = strings.Clone(id), joinEpoch, joinEpoch
		target, ok := u.g.targets.Get(m.id)
		if !ok {
			target = &roleTasks{}
		}
		u.records = append(streamsMemberTombstones(u.records, u.g.id, m.id),
			n.selfRecord(u.g.id), streamsTargetRecord(u.g.id, n.id, target), n.placeRecord(u.g.id))
		u.old, u.replaces = &n, m.id
		return nil
	}
	if err := checkStatic(m, id, instance); err != nil {
		return err
	}
	if err := u.checkEpoch(m); err != nil {
		return err
	}
	u.old = m
	return nil
}

// update is what the member says of itself.
func (u *streamsUpdate) update(ctx *Context, joins bool) {
	m, r := *u.old, u.req
	if r.InstanceID != nil {
		m.instanceID = copyString(r.InstanceID)
	}
	if r.RackID != nil {
		m.rackID = copyString(r.RackID)
	}
	if r.RebalanceTimeoutMillis != -1 {
		m.rebalanceTimeout = r.RebalanceTimeoutMillis
	}
	if r.Topology != nil {
		m.topologyEpoch = r.Topology.Epoch
	}
	if r.ProcessID != nil {
		m.processID = strings.Clone(*r.ProcessID)
	}
	if r.ClientTags != nil {
		m.tags = make(map[string]string, len(r.ClientTags))
		for i := range r.ClientTags {
			m.tags[strings.Clone(r.ClientTags[i].Key)] = strings.Clone(r.ClientTags[i].Value)
		}
	}
	switch {
	case r.UserEndpoint != nil:
		m.endpoint = &streamsEndpoint{strings.Clone(r.UserEndpoint.Host), r.UserEndpoint.Port}
	case joins:
		m.endpoint = nil
	}
	m.clientID, m.clientHost = strings.Clone(ctx.ClientID), ctx.ClientHost
	u.member = &m
}

// saveSelf stores what the member says of itself if it has changed, and says whether that may change the assignment. A static
// member that comes back as it was gets back what it had.
func (u *streamsUpdate) saveSelf() (changed bool) {
	if _, stored := u.g.members.Get(u.old.id); (stored || u.replaces != "") && u.member.sameSelf(u.old) {
		return false
	}
	u.records = append(u.records, u.member.selfRecord(u.g.id))
	return u.req.InstanceID == nil || !u.member.sameRun(u.old)
}

// updateTopology finds the group's topology, which its first member brings.
func (u *streamsUpdate) updateTopology() error {
	u.topology = u.g.topology.Get()
	told := u.req.Topology
	switch {
	case told == nil && u.topology == nil:
		return fmt.Errorf("streams group %s has members and no topology", u.g.id)
	case u.topology == nil:
		v := topologyRecord(told)
		u.topology = newTopology(v)
		u.records = append(u.records, Record{Key: &message.StreamsGroupTopologyKey{GroupID: u.g.id}, Value: v})
		u.c.log.Info("streams group has a topology", "group", u.g.id, "epoch", v.Epoch, "member", u.member.id)
		return nil
	case told != nil && told.Epoch >= u.topology.epoch && !newTopology(topologyRecord(told)).equal(u.topology):
		return api.WithMessage(api.ErrInvalidRequest, "Topology updates are not supported yet.")
	}
	if u.member.topologyEpoch < u.topology.epoch {
		u.status(statusStaleTopology, "The member's topology epoch %d is behind the group's topology epoch %d.",
			u.member.topologyEpoch, u.topology.epoch)
	}
	return nil
}

// configure finds out what the topology means with the topics that there are, and whether that has changed.
func (u *streamsUpdate) configure() (changed bool, err error) {
	g := u.g
	u.meta = g.meta.Get()
	u.configured = g.configured.Get()
	if u.configured != nil && g.seen.Get() == g.touched {
		return false, nil
	}
	hash := u.c.metadataHash(slices.Clone(u.topology.required))
	if changed = hash != u.meta.hash; !changed {
		// A change counts as seen when the group has it in its record: this heartbeat may yet be refused.
		g.seen.Set(g.touched)
	}
	if changed || u.configured == nil {
		if u.configured, err = configureTopology(u.topology, u.c.image.Topics); err != nil {
			return false, err
		}
		g.configured.Set(u.configured)
		if s := u.configured.status; s != nil {
			u.c.log.Info("streams group can't run", "group", g.id, "reason", s.StatusDetail)
		}
	}
	u.meta.hash = hash
	return changed, nil
}

// note checks the tasks that the member names and remembers what it says of their state.
func (u *streamsUpdate) note() error {
	u.meta.validated = -1
	if u.configured.ready() {
		u.meta.validated = u.topology.epoch
		for _, ids := range [][]kmsg.TaskIDs{u.req.ActiveTasks, u.req.StandbyTasks, u.req.WarmupTasks} {
			if err := u.configured.checkTasks(ids); err != nil {
				return err
			}
		}
	}
	if u.req.TaskOffsets == nil && u.req.TaskEndOffsets == nil {
		return nil
	}
	var told taskOffsets
	if before := u.g.positions[u.member.id]; before != nil {
		told = *before
	}
	for _, say := range []struct {
		list []kmsg.TaskOffset
		to   *taskPositions
	}{{u.req.TaskOffsets, &told.now}, {u.req.TaskEndOffsets, &told.end}} {
		if say.list == nil {
			continue
		}
		// Differs from Kafka, which keeps whatever a member says: only what is about tasks that there are is kept, or one request
		// could fill the memory.
		*say.to = make(taskPositions)
		said := make(map[taskID]bool, len(say.list))
		for i := range say.list {
			t := &say.list[i]
			id := taskID{t.SubtopologyID, t.Partition}
			if said[id] {
				return api.WithMessage(api.ErrInvalidRequest,
					"Task offsets contain a duplicate entry for subtopology %s and partition %d.", id.subtopology, id.partition)
			}
			said[id] = true
			if s := u.configured.find(id.subtopology); u.configured.ready() && s != nil && id.partition >= 0 && int(id.partition) < s.tasks {
				id.subtopology = s.of.SubtopologyID
				(*say.to)[id] = t.Offset
			}
		}
	}
	u.g.positions[u.member.id] = &told
	return nil
}

// updateEpoch raises the group epoch if asked to, or if whether the topology can run or the settings aren't what they were.
func (u *streamsUpdate) updateEpoch(bump bool) {
	g := u.g
	was := g.meta.Get()
	configs := u.settings.assignmentConfigs()
	if bump || u.meta.validated != was.validated || !maps.Equal(configs, was.configs) {
		u.meta.epoch, u.meta.configs = was.epoch+1, configs
		u.records = append(u.records, u.meta.record(g.id))
		u.c.counters.rebalances.Add(1)
		u.c.log.Info("group epoch rises", "group", g.id, "epoch", u.meta.epoch, "member", u.member.id)
	}
}

// targetOf is a member's target. A static member that has come back gets that of the member it replaces.
func (u *streamsUpdate) targetOf() *roleTasks {
	id := u.member.id
	if u.replaces != "" {
		id = u.replaces
	}
	if t, ok := u.g.targets.Get(id); ok {
		return t
	}
	return &roleTasks{}
}

// updateTarget computes the targets if the group epoch is ahead of them and nothing says to wait, and returns that of the member.
func (u *streamsUpdate) updateTarget() (epoch int32, target *roleTasks) {
	g := u.g
	last := g.target.Get()
	if u.c.initialDelayActive(g.id) {
		u.status(statusAssignmentDelayed, "Assignment delayed due to the configured initial rebalance delay.")
		return last.epoch, &roleTasks{}
	}
	if last.epoch >= u.meta.epoch {
		return last.epoch, u.targetOf()
	}
	interval := u.settings.AssignmentInterval.Milliseconds()
	if last.at != 0 && interval != 0 && u.now.UnixMilli() < last.at+interval {
		u.status(statusAssignmentDelayed, "Assignment delayed due to the configured assignment interval.")
		return last.epoch, u.targetOf()
	}
	members := make([]*streamsMember, 0, g.members.Len()+1)
	for id, m := range g.members.All() {
		if id != u.member.id && id != u.replaces {
			members = append(members, m)
		}
	}
	members = append(members, u.member)
	targets, records := u.c.assignTasks(g, members, u.configured, u.settings, u.meta.epoch, u.replaces, u.member.id, u.now)
	u.records = append(u.records, records...)
	return u.meta.epoch, targets[u.member.id]
}

// assignTasks computes the targets of all members for a group epoch, and the records that tell of those that are new. The member
// newID takes the place of the one called replaces, if that isn't empty.
func (c *core) assignTasks(g *streamsGroup, members []*streamsMember, t *configuredTopology, settings StreamsSettings, epoch int32,
	replaces, newID string, now time.Time,
) (map[string]*roleTasks, []Record) {
	slices.SortFunc(members, func(a, b *streamsMember) int { return strings.Compare(a.id, b.id) })
	targets := make([]roleTasks, len(members))
	name := c.taskAssignorName(settings)
	if t.ready() {
		in := &taskAssignment{members: make([]taskAssignee, len(members)), standbys: settings.StandbyReplicas}
		for i, m := range members {
			in.members[i] = taskAssignee{id: m.id, process: m.processID, now: m.assigned}
			if p := g.positions[m.id]; p != nil {
				in.members[i].positions = p.now
			}
		}
		for i := range t.subtopologies {
			s := &t.subtopologies[i]
			in.subtopologies = append(in.subtopologies, assignableSubtopology{s.of.SubtopologyID, s.tasks, len(s.of.StateChangelogTopics) > 0})
		}
		targets = taskAssignors[name](in)
	}
	byID := make(map[string]*roleTasks, len(members))
	var records []Record
	for i, m := range members {
		byID[m.id] = &targets[i]
		id := m.id
		if id == newID && replaces != "" {
			id = replaces
		}
		if was, ok := g.targets.Get(id); !ok || !was.equal(&targets[i]) {
			records = append(records, streamsTargetRecord(g.id, m.id, &targets[i]))
		}
	}
	records = append(records, streamsTargetEpochRecord(g.id, epoch, now.UnixMilli()))
	c.log.Info("group has a new target", "group", g.id, "epoch", epoch, "assignor", name, "members", len(members))
	return byID, records
}

// taskAssignorName is the assignor of a group with these settings.
func (c *core) taskAssignorName(settings StreamsSettings) string {
	if slices.Contains(c.cfg.TaskAssignors, settings.Assignor) {
		return settings.Assignor
	}
	return c.cfg.TaskAssignors[0]
}

// reconcile takes the member a step towards its target.
func (u *streamsUpdate) reconcile(targetEpoch int32, target *roleTasks) error {
	m := u.member
	if m.settled(targetEpoch) {
		return nil
	}
	r := taskReconciliation{
		member: m, targetEpoch: targetEpoch, target: target,
		owned: func(id taskID) bool {
			_, ok := u.g.owners.Get(id)
			return ok
		},
		here: func(role taskRole, id taskID) bool {
			_, ok := u.g.holders.Get(holding{role, id, m.processID})
			return ok
		},
	}
	if u.req.ActiveTasks != nil && u.req.StandbyTasks != nil && u.req.WarmupTasks != nil {
		r.says = &roleTasks{tasksFromIDs(u.req.ActiveTasks), tasksFromIDs(u.req.StandbyTasks), tasksFromIDs(u.req.WarmupTasks)}
	}
	next, err := r.next()
	if err != nil || next == m {
		return err
	}
	u.member = next
	u.records = append(u.records, next.placeRecord(u.g.id))
	if next.state == memberUnrevoked {
		u.c.startTaskRevocation(u.g.id, next, u.now)
	}
	return nil
}

// answer is what the member is told.
func (u *streamsUpdate) answer(ctx *Context, joins, stored bool) *kmsg.StreamsGroupHeartbeatResponse {
	g, m := u.g, u.member
	resp := newStreamsResponse()
	resp.MemberID, resp.MemberEpoch = m.id, m.epoch
	resp.HeartbeatIntervalMillis = int32(u.settings.HeartbeatInterval.Milliseconds())
	resp.TaskOffsetIntervalMillis = int32(u.settings.TaskOffsetInterval.Milliseconds())
	resp.AcceptableRecoveryLag = u.settings.AcceptableRecoveryLag
	moved := !m.assigned.equal(&u.old.assigned)
	// Who says everything, perhaps because an answer was lost, is told everything.
	full := u.req.RebalanceTimeoutMillis != -1 && u.req.ActiveTasks != nil || u.req.MemberEpoch != u.old.epoch
	if joins || moved || full {
		a := m.assigned.assignment()
		resp.ActiveTasks, resp.StandbyTasks, resp.WarmupTasks = a.ActiveTasks, a.StandbyTasks, a.WarmupTasks
	}
	if !m.sameEndpoint(u.old) || moved && m.endpoint != nil {
		g.endpointEpoch++
	}
	if g.endpointEpoch != u.req.EndpointInformationEpoch {
		resp.PartitionsByUserEndpoint = u.endpoints()
	}
	if stored {
		resp.EndpointInformationEpoch = g.endpointEpoch
	}
	if s := u.configured.status; s != nil {
		u.status(s.StatusCode, "%s", s.StatusDetail)
	}
	if g.shutdown != "" {
		u.status(statusShutdownApplication, "Streams group member %s encountered a fatal error and requested a shutdown for the entire application.", g.shutdown)
	}
	if ctx.Version >= streamsTagsVersion {
		var missing []string
		for _, tag := range u.settings.RackAwareTags {
			if _, ok := m.tags[tag]; !ok {
				missing = append(missing, tag)
			}
		}
		if missing != nil {
			u.status(statusMissingClientTags, "Missing required client tags for rack-aware standby assignment: [%s]. "+
				"Configure them via 'client.tag.<tagKey>' in your Streams config.", strings.Join(missing, ", "))
		}
	}
	resp.Status = append(resp.Status, u.statuses...)
	return resp
}

// endpoints are which partitions' state can be asked for where.
func (u *streamsUpdate) endpoints() []kmsg.StreamsGroupHeartbeatResponsePartitionsByUserEndpoint {
	list := []kmsg.StreamsGroupHeartbeatResponsePartitionsByUserEndpoint{}
	visit := func(m *streamsMember) {
		if m.endpoint == nil {
			return
		}
		e := kmsg.NewStreamsGroupHeartbeatResponsePartitionsByUserEndpoint()
		e.UserEndpoint = kmsg.Endpoint{Host: m.endpoint.host, Port: m.endpoint.port}
		for topic, ps := range u.partitionsOf(m.assigned[active]) {
			e.ActivePartitions = append(e.ActivePartitions,
				kmsg.StreamsGroupHeartbeatResponsePartitionsByUserEndpointActivePartition{Topic: topic, Partitions: ps})
		}
		for topic, ps := range u.partitionsOf(m.assigned[standby].union(m.assigned[warmup])) {
			e.StandbyPartitions = append(e.StandbyPartitions,
				kmsg.StreamsGroupHeartbeatResponsePartitionsByUserEndpointStandbyPartition{Topic: topic, Partitions: ps})
		}
		list = append(list, e)
	}
	for id, m := range u.g.members.All() {
		if id != u.member.id && id != u.replaces {
			visit(m)
		}
	}
	visit(u.member)
	return list
}

// partitionsOf goes through the partitions that tasks read.
func (u *streamsUpdate) partitionsOf(ts tasks) func(yield func(topic string, partitions []int32) bool) {
	return func(yield func(string, []int32) bool) {
		for sub := range ts.bySubtopology {
			s := u.configured.find(sub[0].subtopology)
			if s == nil {
				continue
			}
			for _, name := range sourcesOf(s.of) {
				size := 0
				if t := u.c.image.Topics.ByName(name); t != nil {
					size = t.Len()
				}
				ps := slices.DeleteFunc(sub.partitions(), func(p int32) bool { return int(p) >= size })
				if len(ps) > 0 && !yield(name, ps) {
					return
				}
			}
		}
	}
}

// streamsLeave answers a heartbeat that leaves the group.
func (c *core) streamsLeave(r *kmsg.StreamsGroupHeartbeatRequest) (result, *kmsg.StreamsGroupHeartbeatResponse, error) {
	existing, err := c.group(r.Group, timeline.Latest)
	if err != nil {
		return result{}, nil, err
	}
	g, ok := existing.(*streamsGroup)
	if !ok {
		return result{}, nil, api.WithMessage(api.ErrGroupIDNotFound, "Group %s is not a streams group.", r.Group)
	}
	if r.ShutdownApplication && g.shutdown == "" {
		g.shutdown = strings.Clone(r.MemberID)
		c.log.Info("a member asks for the whole application to shut down", "group", g.id, "member", g.shutdown)
	}
	resp := newStreamsResponse()
	resp.MemberID, resp.MemberEpoch = r.MemberID, r.MemberEpoch
	var m *streamsMember
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
		// It is expected back before its session ends. Until then nobody else gets its tasks.
		c.log.Info("static member leaves the streams group for the time being", "group", g.id, "member", m.id)
		away := *m
		away.epoch, away.revoking = leaveStaticEpoch, roleTasks{}
		away.assigned[active] = m.assigned[active].since(0)
		return result{Records: []Record{away.placeRecord(g.id)}}, resp, nil
	}
	c.log.Info("member leaves the streams group", "group", g.id, "member", m.id)
	return c.fenceStreams(g, m), resp, nil
}

// fenceStreams takes a member out of the group.
func (c *core) fenceStreams(g *streamsGroup, m *streamsMember) result {
	meta := g.meta.Get()
	meta.epoch++
	records := append(streamsMemberTombstones(nil, g.id, m.id), meta.record(g.id))
	c.counters.rebalances.Add(1)
	if g.members.Len() == 1 {
		// Nobody is left to assign anything to, and who comes next needn't wait.
		records = append(records, streamsTargetEpochRecord(g.id, meta.epoch, 0))
	}
	return result{Records: records}
}

// startTaskRevocation gives a member its rebalance timeout to give up tasks. Nothing stops the timer, since the append of what
// would might fail; but it does nothing to a member that has moved on.
func (c *core) startTaskRevocation(group string, m *streamsMember, now time.Time) {
	k, epoch := memberKey{group, m.id}, m.epoch
	ts := c.timersOf(group, m.id)
	ts.rebalance.Fire = func(now time.Time) (result, error) {
		existing, _ := c.groups.Get(k.group)
		if g, ok := existing.(*streamsGroup); ok {
			if m, ok := g.members.Get(k.member); ok && (m.epoch != epoch || m.state != memberUnrevoked) {
				return result{}, nil
			}
		}
		return c.fenceOverdue(k, "it did not give up its tasks within the rebalance timeout", now), nil
	}
	c.env.Timers.Set(&ts.rebalance, now.Add(time.Duration(m.rebalanceTimeout)*time.Millisecond))
}

// startInitialDelay lets an empty group wait for more members before its first assignment, from its first member on.
func (c *core) startInitialDelay(group string, d time.Duration, now time.Time) {
	if c.initialDelayActive(group) {
		return
	}
	t := &timer{}
	t.Fire = func(now time.Time) (result, error) {
		if c.initialDelays[group] == t {
			delete(c.initialDelays, group)
		}
		return c.assignDelayed(group, now), nil
	}
	c.initialDelays[strings.Clone(group)] = t
	c.env.Timers.Set(t, now.Add(d))
}

func (c *core) initialDelayActive(group string) bool { return c.initialDelays[group] != nil }

func (c *core) stopInitialDelay(group string) {
	if t := c.initialDelays[group]; t != nil {
		c.env.Timers.Stop(t)
		delete(c.initialDelays, group)
	}
}

// assignDelayed computes the first targets of a group when its delay is over. If nobody has been heard of since its first member,
// the topics haven't been looked at, and the next heartbeat will do it.
func (c *core) assignDelayed(id string, now time.Time) result {
	existing, _ := c.groups.Get(id)
	g, ok := existing.(*streamsGroup)
	if !ok || g.empty() {
		return result{}
	}
	meta, configured, last := g.meta.Get(), g.configured.Get(), g.target.Get()
	settings := c.streamsSettings(id)
	interval := settings.AssignmentInterval.Milliseconds()
	if meta.epoch <= last.epoch || configured == nil || last.at != 0 && now.UnixMilli() < last.at+interval {
		return result{}
	}
	members := make([]*streamsMember, 0, g.members.Len())
	for _, m := range g.members.All() {
		members = append(members, m)
	}
	_, records := c.assignTasks(g, members, configured, settings, meta.epoch, "", "", now)
	return result{Records: records}
}

// describeStreams answers StreamsGroupDescribe for one group.
func (c *core) describeStreams(id string, asOf int64) kmsg.StreamsGroupDescribeResponseGroup {
	g, err := c.group(id, asOf)
	if err == nil {
		if sg, ok := g.(*streamsGroup); ok {
			return sg.describe(asOf, c.taskAssignorName(c.streamsSettings(id)))
		}
		err = api.WithMessage(api.ErrGroupIDNotFound, "Group %s is not a streams group.", id)
	}
	d := kmsg.NewStreamsGroupDescribeResponseGroup()
	text := api.MessageOf(err)
	d.Group, d.ErrorCode, d.ErrorMessage = id, api.CodeOf(err), &text
	return d
}

// streamsSettings are those of one group.
func (c *core) streamsSettings(group string) StreamsSettings {
	if c.cfg.StreamsGroup == nil {
		return c.cfg.Streams
	}
	return c.cfg.StreamsGroup(c.image.Configs.Get(metadata.Resource{Type: metadata.GroupResource, Name: group}))
}
