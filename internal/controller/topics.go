package controller

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/security"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// metadataTopic is the topic that nobody may create.
const metadataTopic = "__cluster_metadata"

// The bounds of one request, Kafka's own: more would make a batch that holds everything else up.
const (
	maxRecordsPerUserOp     = 10_000
	maxPartitionsPerRequest = 10_000
)

// topic is a topic; name and id never change.
type topic struct {
	name       string
	id         uuid.UUID
	partitions *timeline.List[*partition]
}

// partitionID names a partition by its topic's id.
type partitionID struct {
	topic uuid.UUID
	index int32
}

// topics manages topics and partitions. What depends on a broker is found by going through all partitions, which takes
// microseconds a thousand and happens when a broker comes or goes; the counts below say when that can be spared.
type topics struct {
	c      *Core
	byName *timeline.Map[string, *topic]
	byID   *timeline.Map[uuid.UUID, *topic]
	// alike holds, for names with '.' or '_', those that become one name when '.' is read as '_', as metrics do.
	alike *timeline.Map[string, []string]
	// reassigning holds the partitions whose replicas are being moved.
	reassigning *timeline.Set[partitionID]
	// inISR, inELR and leads count partitions by broker.
	inISR, inELR, leads *timeline.Map[int32, int64]
	leaderless          *timeline.Counter
	imbalanced          *timeline.Counter // partitions not led by their preferred replica
	count               *timeline.Counter
}

func newTopics(c *Core) *topics {
	r := c.registry
	return &topics{
		c: c, byName: timeline.NewMap[string, *topic](r), byID: timeline.NewMap[uuid.UUID, *topic](r),
		alike: timeline.NewMap[string, []string](r), reassigning: timeline.NewSet[partitionID](r),
		inISR: timeline.NewMap[int32, int64](r), inELR: timeline.NewMap[int32, int64](r), leads: timeline.NewMap[int32, int64](r),
		leaderless: timeline.NewCounter(r, 0), imbalanced: timeline.NewCounter(r, 0), count: timeline.NewCounter(r, 0),
	}
}

func (m *topics) replayTopic(r *message.TopicRecord) error {
	t := &topic{name: r.Name, id: r.TopicID, partitions: timeline.NewList[*partition](m.c.registry)}
	if old, existed := m.byName.Set(t.name, t); existed {
		return fmt.Errorf("topic %s exists already, with id %s", t.name, old.id)
	}
	m.byID.Set(t.id, t)
	if key, ok := alikeKey(t.name); ok {
		names, _ := m.alike.Get(key)
		m.alike.Set(key, append(slices.Clone(names), t.name))
	}
	return nil
}

func (m *topics) replayRemove(r *message.RemoveTopicRecord) error {
	t, existed := m.byID.Delete(r.TopicID)
	if !existed {
		return fmt.Errorf("no topic has id %s", r.TopicID)
	}
	m.byName.Delete(t.name)
	if key, ok := alikeKey(t.name); ok {
		names, _ := m.alike.Get(key)
		if rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == t.name }); len(rest) > 0 {
			m.alike.Set(key, rest)
		} else {
			m.alike.Delete(key)
		}
	}
	m.c.configs.deleteTopic(t.name)
	for i, p := range t.partitions.All() {
		m.track(partitionID{t.id, i}, p, nil)
	}
	return nil
}

func (m *topics) replayPartition(r *message.PartitionRecord) error {
	t, ok := m.byID.Get(r.TopicID)
	if !ok {
		return fmt.Errorf("partition %d: no topic has id %s", r.PartitionID, r.TopicID)
	}
	p, err := newPartition(r)
	if err != nil {
		return fmt.Errorf("partition %s-%d: %w", t.name, r.PartitionID, err)
	}
	old, exists := t.partitions.Get(r.PartitionID)
	switch {
	case exists:
		t.partitions.Set(r.PartitionID, p)
	case int(r.PartitionID) == t.partitions.Len():
		t.partitions.Append(p)
	default:
		return fmt.Errorf("partition %s-%d comes after %d partitions", t.name, r.PartitionID, t.partitions.Len())
	}
	m.track(partitionID{t.id, r.PartitionID}, old, p)
	return nil
}

func (m *topics) replayChange(r *message.PartitionChangeRecord) error {
	t, ok := m.byID.Get(r.TopicID)
	if !ok {
		return fmt.Errorf("change of partition %d: no topic has id %s", r.PartitionID, r.TopicID)
	}
	old, ok := t.partitions.Get(r.PartitionID)
	if !ok {
		return fmt.Errorf("change of partition %s-%d, which doesn't exist", t.name, r.PartitionID)
	}
	p, err := old.apply(r)
	if err != nil {
		return fmt.Errorf("change of partition %s-%d: %w", t.name, r.PartitionID, err)
	}
	t.partitions.Set(r.PartitionID, p)
	m.track(partitionID{t.id, r.PartitionID}, old, p)
	return nil
}

// replayClearELR forgets the eligible leader replicas of one topic, or of all: min.insync.replicas changed, and they were
// chosen by the old value.
func (m *topics) replayClearELR(r *message.ClearElrRecord) error {
	if r.TopicName != "" {
		t, ok := m.byName.Get(r.TopicName)
		if !ok {
			return fmt.Errorf("clear ELR: there is no topic %s", r.TopicName)
		}
		m.clearELR(t)
		return nil
	}
	for _, t := range m.byName.All() {
		m.clearELR(t)
	}
	return nil
}

func (m *topics) clearELR(t *topic) {
	for i, p := range t.partitions.All() {
		if len(p.elr) == 0 && len(p.lastKnownELR) == 0 {
			continue
		}
		next := *p
		next.elr, next.lastKnownELR = nil, nil
		next.partitionEpoch++
		t.partitions.Set(i, &next)
		m.track(partitionID{t.id, i}, p, &next)
	}
}

// track keeps the counts and sets right when a partition goes from old to p, either of which may be nil.
func (m *topics) track(id partitionID, old, p *partition) {
	var none partition
	none.leader = noLeader
	was, is := old, p
	if was == nil {
		was = &none
		m.count.Add(1)
	}
	if is == nil {
		is = &none
		m.count.Add(-1)
	}
	if !sameSlice(was.isr, is.isr) {
		adjust(m.inISR, was.isr, is.isr)
	}
	if !sameSlice(was.elr, is.elr) {
		adjust(m.inELR, was.elr, is.elr)
	}
	if was.leader != is.leader {
		adjust(m.leads, []int32{was.leader}, []int32{is.leader})
	}
	step := func(c *timeline.Counter, before, after bool) {
		switch {
		case before && !after:
			c.Add(-1)
		case !before && after:
			c.Add(1)
		}
	}
	step(m.leaderless, old != nil && !old.hasLeader(), p != nil && !p.hasLeader())
	step(m.imbalanced, old != nil && !old.hasPreferredLeader(), p != nil && !p.hasPreferredLeader())
	if is.reassigning() {
		m.reassigning.Add(id)
	} else if was.reassigning() {
		m.reassigning.Remove(id)
	}
}

func sameSlice(a, b []int32) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func adjust(m *timeline.Map[int32, int64], before, after []int32) {
	add := func(id int32, n int64) {
		if id < 0 {
			return
		}
		old, _ := m.Get(id)
		if old+n == 0 {
			m.Delete(id)
		} else {
			m.Set(id, old+n)
		}
	}
	for _, id := range before {
		if !slices.Contains(after, id) {
			add(id, -1)
		}
	}
	for _, id := range after {
		if !slices.Contains(before, id) {
			add(id, 1)
		}
	}
}

// each calls f for every partition, in an order that history alone decides, until it returns false.
func (m *topics) each(f func(t *topic, index int32, p *partition) bool) {
	for _, t := range m.byID.All() {
		for i, p := range t.partitions.All() {
			if !f(t, i, p) {
				return
			}
		}
	}
}

// alikeKey is what a name becomes when '.' is read as '_'; ok is false for names with neither.
func alikeKey(name string) (string, bool) {
	return strings.ReplaceAll(name, ".", "_"), strings.ContainsAny(name, "._")
}

func (m *topics) create(rc *RequestContext, req *kmsg.CreateTopicsRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	// A name given twice is refused once, and what is refused here the rest never sees.
	times := make(map[string]int, len(req.Topics))
	for i := range req.Topics {
		times[req.Topics[i].Topic]++
	}
	mayCreate := rc.allowed(security.Create, security.Cluster, security.ClusterName)
	var refused []kmsg.CreateTopicsResponseTopic
	refuse := func(name string, err error) {
		refused = append(refused, notCreated(name, err))
	}
	wanted := make([]*kmsg.CreateTopicsRequestTopic, 0, len(req.Topics))
	for i := range req.Topics {
		t := &req.Topics[i]
		switch {
		case times[t.Topic] > 1:
			refuse(t.Topic, api.WithMessage(api.ErrInvalidRequest, "Duplicate topic name."))
			times[t.Topic] = -1
		case times[t.Topic] < 0: // refused already
		case t.Topic == metadataTopic:
			refuse(t.Topic, api.WithMessage(api.ErrInvalidRequest, "Creation of internal topic %s is prohibited.", metadataTopic))
		case !mayCreate && !rc.allowed(security.Create, security.Topic, t.Topic):
			refuse(t.Topic, api.WithMessage(api.ErrTopicAuthorizationFailed, "Authorization failed."))
		default:
			wanted = append(wanted, t)
		}
	}
	if err := m.checkTotal(wanted); err != nil {
		return Result{}, err
	}
	var records []message.Versioned
	for _, t := range wanted {
		result := kmsg.NewCreateTopicsResponseTopic()
		result.Topic = t.Topic
		made, err := m.createOne(rc, t, &result)
		if err == nil {
			records = append(records, made...)
			if len(records) > maxRecordsPerUserOp {
				return Result{}, errTooLarge
			}
		} else {
			result = notCreated(t.Topic, err)
		}
		resp.Topics = append(resp.Topics, result)
	}
	resp.Topics = append(resp.Topics, refused...)
	if req.ValidateOnly {
		records = nil
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

// notCreated is the answer for a topic that wasn't created.
func notCreated(name string, err error) kmsg.CreateTopicsResponseTopic {
	t := kmsg.NewCreateTopicsResponseTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, -1, -1
	t.Configs = []kmsg.CreateTopicsResponseTopicConfig{} // nil would be null on the wire
	t.ErrorCode, t.ErrorMessage = api.CodeAndMessage(err)
	return t
}

// errTooLarge refuses a request that would write more records than may be committed as one.
var errTooLarge = api.WithMessage(api.ErrPolicyViolation, "Unable to perform excessively large batch operation.")

func (m *topics) checkTotal(wanted []*kmsg.CreateTopicsRequestTopic) error {
	total := int64(0)
	for _, t := range wanted {
		switch {
		case len(t.ReplicaAssignment) > 0:
			total += int64(len(t.ReplicaAssignment))
		case t.NumPartitions == -1:
			total += int64(m.c.opts.DefaultPartitions)
		case t.NumPartitions > 0:
			total += int64(t.NumPartitions)
		}
		if total > maxPartitionsPerRequest {
			return api.WithMessage(api.ErrPolicyViolation, "Excessively large number of partitions per request.")
		}
	}
	return nil
}

// createOne checks one new topic, fills in the result and returns its records: the topic, its configs, its partitions.
func (m *topics) createOne(rc *RequestContext, t *kmsg.CreateTopicsRequestTopic, result *kmsg.CreateTopicsResponseTopic) ([]message.Versioned, error) {
	// All checks of the name are made, and the last that fails is what Kafka tells.
	err := api.CheckTopicName(t.Topic)
	if key, ok := alikeKey(t.Topic); ok {
		if names, _ := m.alike.Get(key); len(names) > 0 {
			err = api.WithMessage(api.ErrInvalidTopicException, "Topic '%s' collides with existing topic: %s", t.Topic, names[0])
		}
	}
	if _, exists := m.byName.Get(t.Topic); exists {
		err = api.WithMessage(api.ErrTopicAlreadyExists, "Topic '%s' already exists.", t.Topic)
	}
	if err != nil {
		return nil, err
	}
	configs, configRecords, err := m.c.configs.forNewTopic(t)
	if err != nil {
		return nil, err
	}
	parts, err := m.place(t)
	if err != nil {
		return nil, err
	}
	if err := rc.chargePartitions(len(parts)); err != nil {
		return nil, err
	}
	id := m.c.newID()
	result.TopicID = id
	if rc.allowed(security.DescribeConfigs, security.Topic, t.Topic) {
		result.NumPartitions, result.ReplicationFactor = int32(len(parts)), int16(len(parts[0].replicas))
		result.Configs = m.c.configs.describeNewTopic(configs)
	} else {
		result.NumPartitions, result.ReplicationFactor = -1, -1
		result.Configs = []kmsg.CreateTopicsResponseTopicConfig{}
		result.ConfigErrorCode = api.ErrTopicAuthorizationFailed.Code
	}
	r := message.NewTopicRecord()
	r.Name, r.TopicID = t.Topic, id
	records := make([]message.Versioned, 0, 1+len(configRecords)+len(parts))
	records = append(records, message.Versioned{Message: r})
	records = append(records, configRecords...)
	mv, elr := m.c.features.level(), m.c.features.elr()
	for i, p := range parts {
		records = append(records, p.record(id, int32(i), mv, elr))
	}
	return records, nil
}

// place returns the partitions of a new topic.
func (m *topics) place(t *kmsg.CreateTopicsRequestTopic) ([]*partition, error) {
	switch {
	case len(t.ReplicaAssignment) > 0:
		return m.placeByHand(t)
	case t.ReplicationFactor < -1 || t.ReplicationFactor == 0:
		return nil, api.WithMessage(api.ErrInvalidReplicationFactor, "Replication factor must be larger than 0, or -1 to use the default value.")
	case t.NumPartitions < -1 || t.NumPartitions == 0:
		return nil, api.WithMessage(api.ErrInvalidPartitions, "Number of partitions was set to an invalid non-positive value.")
	}
	n, factor := t.NumPartitions, t.ReplicationFactor
	if n == -1 {
		n = m.c.opts.DefaultPartitions
	}
	if factor == -1 {
		factor = m.c.opts.DefaultReplicationFactor
	}
	placed, err := placeReplicas(m.c.opts.Rand, m.c.cluster.usable(), int(n), int(factor))
	if err != nil {
		return nil, api.WithMessage(api.ErrInvalidReplicationFactor, "Unable to replicate the partition %d time(s): %s", factor, api.MessageOf(err))
	}
	return m.newPartitions(placed, func(int) error {
		return api.WithMessage(api.ErrInvalidReplicationFactor,
			"Unable to replicate the partition %d time(s): All brokers are currently fenced or in controlled shutdown.", factor)
	})
}

func (m *topics) placeByHand(t *kmsg.CreateTopicsRequestTopic) ([]*partition, error) {
	if t.ReplicationFactor != -1 {
		return nil, api.WithMessage(api.ErrInvalidRequest, "A manual partition assignment was specified, but replication factor was not set to -1.")
	}
	if t.NumPartitions != -1 {
		return nil, api.WithMessage(api.ErrInvalidRequest, "A manual partition assignment was specified, but numPartitions was not set to -1.")
	}
	placed := make(map[int32][]int32, len(t.ReplicaAssignment))
	factor := -1
	for _, a := range t.ReplicaAssignment {
		if _, twice := placed[a.Partition]; twice {
			return nil, api.WithMessage(api.ErrInvalidReplicaAssignment, "Found multiple manual partition assignments for partition %d", a.Partition)
		}
		if err := m.checkAssignment(a.Replicas, factor); err != nil {
			return nil, err
		}
		factor = len(a.Replicas)
		if !slices.ContainsFunc(a.Replicas, m.c.cluster.active) {
			return nil, allFenced(a.Partition)
		}
		placed[a.Partition] = a.Replicas
	}
	inOrder := make([][]int32, len(placed))
	for i := range inOrder {
		replicas, ok := placed[int32(i)]
		if !ok {
			return nil, api.WithMessage(api.ErrInvalidReplicaAssignment, "partitions should be a consecutive 0-based integer sequence")
		}
		inOrder[i] = replicas
	}
	return m.newPartitions(inOrder, func(i int) error { return allFenced(int32(i)) })
}

func allFenced(index int32) error {
	return api.WithMessage(api.ErrInvalidReplicaAssignment,
		"All brokers specified in the manual partition assignment for partition %d are fenced or in controlled shutdown.", index)
}

// newPartitions makes partitions of their replicas: the ISR is those in service, and the first of them leads.
func (m *topics) newPartitions(placed [][]int32, noneActive func(i int) error) ([]*partition, error) {
	parts := make([]*partition, len(placed))
	for i, replicas := range placed {
		p := &partition{replicas: replicas, isr: replicas, directories: make([]uuid.UUID, len(replicas))}
		if slices.ContainsFunc(replicas, func(b int32) bool { return !m.c.cluster.active(b) }) {
			p.isr = slices.DeleteFunc(slices.Clone(replicas), func(b int32) bool { return !m.c.cluster.active(b) })
		}
		if len(p.isr) == 0 {
			return nil, noneActive(i)
		}
		p.leader = p.isr[0]
		for j, b := range replicas {
			p.directories[j] = m.c.cluster.defaultDir(b)
		}
		parts[i] = p
	}
	return parts, nil
}

// checkAssignment checks a list of replicas that someone chose by hand; factor is that of the other partitions, or -1.
func (m *topics) checkAssignment(replicas []int32, factor int) error {
	if len(replicas) == 0 {
		return api.WithMessage(api.ErrInvalidReplicaAssignment, "The manual partition assignment includes an empty replica list.")
	}
	sorted := slices.Sorted(slices.Values(replicas))
	for i, id := range sorted {
		b, ok := m.c.cluster.brokers.Get(id)
		switch {
		case !ok:
			return api.WithMessage(api.ErrInvalidReplicaAssignment,
				"The manual partition assignment includes broker %d, but no such broker is registered.", id)
		case !b.hasUncordoned():
			return api.WithMessage(api.ErrInvalidReplicaAssignment,
				"The manual partition assignment includes broker %d, but all its log directories are cordoned.", id)
		case i > 0 && sorted[i-1] == id:
			return api.WithMessage(api.ErrInvalidReplicaAssignment,
				"The manual partition assignment includes the broker %d more than once.", id)
		}
	}
	if factor >= 0 && len(replicas) != factor {
		return api.WithMessage(api.ErrInvalidReplicaAssignment,
			"The manual partition assignment includes a partition with %d replica(s), but this is not consistent with previous partitions, which have %d replica(s).",
			len(replicas), factor)
	}
	return nil
}

func (m *topics) delete(rc *RequestContext, req *kmsg.DeleteTopicsRequest) (Result, error) {
	if m.c.opts.NoTopicDeletion {
		if req.Version < 3 {
			return Result{}, api.WithMessage(api.ErrInvalidRequest, "Topic deletion is disabled.")
		}
		return Result{}, api.WithMessage(api.ErrTopicDeletionDisabled, "")
	}
	resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
	answer := func(name *string, id uuid.UUID, err error) {
		t := kmsg.NewDeleteTopicsResponseTopic()
		t.Topic, t.TopicID = name, id
		t.ErrorCode, t.ErrorMessage = api.CodeAndMessage(err)
		resp.Topics = append(resp.Topics, t)
	}
	var names []string
	var ids []uuid.UUID
	nameTimes, idTimes := make(map[string]int), make(map[uuid.UUID]int)
	addName := func(name string) {
		if nameTimes[name]++; nameTimes[name] == 1 {
			names = append(names, name)
		}
	}
	for _, name := range req.TopicNames {
		addName(name)
	}
	for _, t := range req.Topics {
		id := uuid.UUID(t.TopicID)
		switch {
		case t.Topic == nil && id == uuid.Zero:
			answer(nil, uuid.Zero, api.WithMessage(api.ErrInvalidRequest, "Neither topic name nor id were specified."))
		case t.Topic == nil:
			if idTimes[id]++; idTimes[id] == 1 {
				ids = append(ids, id)
			}
		case id == uuid.Zero:
			addName(*t.Topic)
		default:
			answer(t.Topic, id, api.WithMessage(api.ErrInvalidRequest, "You may not specify both topic name and topic id."))
		}
	}
	mayDelete := rc.allowed(security.Delete, security.Cluster, security.ClusterName)
	doomed := make(map[uuid.UUID]*topic)
	var order []*topic
	for _, id := range ids {
		t, ok := m.byID.Get(id)
		switch {
		case idTimes[id] > 1:
			answer(nil, id, api.WithMessage(api.ErrInvalidRequest, "Duplicate topic id."))
		case !ok:
			answer(nil, id, api.ErrUnknownTopicID)
		case !mayDelete && !rc.allowed(security.Delete, security.Topic, t.name):
			name := &t.name
			if !rc.allowed(security.Describe, security.Topic, t.name) {
				name = nil
			}
			answer(name, id, api.ErrTopicAuthorizationFailed)
		default:
			doomed[id] = t
			order = append(order, t)
		}
	}
	for _, name := range names {
		t, ok := m.byName.Get(name)
		switch {
		case nameTimes[name] > 1:
			answer(&name, uuid.Zero, api.WithMessage(api.ErrInvalidRequest, "Duplicate topic name."))
		case !mayDelete && !rc.allowed(security.Describe, security.Topic, name):
			answer(&name, uuid.Zero, api.ErrTopicAuthorizationFailed)
		case !ok:
			answer(&name, uuid.Zero, api.ErrUnknownTopicOrPartition)
		case !mayDelete && !rc.allowed(security.Delete, security.Topic, name):
			answer(&name, uuid.Zero, api.ErrTopicAuthorizationFailed)
		case idTimes[t.id] > 0:
			if doomed[t.id] != nil {
				delete(doomed, t.id)
			}
			answer(&name, t.id, api.WithMessage(api.ErrInvalidRequest, "The provided topic name maps to an ID that was already supplied."))
		default:
			doomed[t.id] = t
			order = append(order, t)
		}
	}
	var records []message.Versioned
	for _, t := range order {
		if doomed[t.id] == nil {
			continue
		}
		err := rc.chargePartitions(t.partitions.Len())
		if err == nil {
			r := message.NewRemoveTopicRecord()
			r.TopicID = t.id
			records = append(records, message.Versioned{Message: r})
		}
		answer(&t.name, t.id, err)
	}
	if len(records) > maxRecordsPerUserOp {
		return Result{}, errTooLarge
	}
	if !mayDelete {
		// In an order that doesn't give away which topics exist that the caller may not see.
		m.c.opts.Rand.Shuffle(len(resp.Topics), func(i, j int) { resp.Topics[i], resp.Topics[j] = resp.Topics[j], resp.Topics[i] })
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

func (m *topics) createPartitions(rc *RequestContext, req *kmsg.CreatePartitionsRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
	answer := func(name string, err error) {
		t := kmsg.NewCreatePartitionsResponseTopic()
		t.Topic = name
		t.ErrorCode, t.ErrorMessage = api.CodeAndMessage(err)
		resp.Topics = append(resp.Topics, t)
	}
	times := make(map[string]int, len(req.Topics))
	for i := range req.Topics {
		times[req.Topics[i].Topic]++
	}
	var wanted []*kmsg.CreatePartitionsRequestTopic
	total := int64(0)
	for i := range req.Topics {
		t := &req.Topics[i]
		switch {
		case times[t.Topic] > 1:
			answer(t.Topic, api.WithMessage(api.ErrInvalidRequest, "Duplicate topic name."))
			times[t.Topic] = -1
		case times[t.Topic] < 0:
		case !rc.allowed(security.Alter, security.Topic, t.Topic):
			answer(t.Topic, api.WithMessage(api.ErrTopicAuthorizationFailed, ""))
		default:
			wanted = append(wanted, t)
			if known, ok := m.byName.Get(t.Topic); ok {
				total += max(0, int64(t.Count)-int64(known.partitions.Len()))
			}
		}
	}
	if total > maxPartitionsPerRequest {
		return Result{}, api.WithMessage(api.ErrPolicyViolation, "Excessively large number of additional partitions per request.")
	}
	var records []message.Versioned
	for _, t := range wanted {
		made, err := m.addPartitions(rc, t)
		answer(t.Topic, err)
		records = append(records, made...)
	}
	if len(records) > maxRecordsPerUserOp {
		return Result{}, errTooLarge
	}
	if req.ValidateOnly {
		records = nil
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

func (m *topics) addPartitions(rc *RequestContext, req *kmsg.CreatePartitionsRequestTopic) ([]message.Versioned, error) {
	t, ok := m.byName.Get(req.Topic)
	if !ok {
		return nil, api.WithMessage(api.ErrUnknownTopicOrPartition, "")
	}
	have := int32(t.partitions.Len())
	switch {
	case req.Count == have:
		return nil, api.WithMessage(api.ErrInvalidPartitions, "Topic already has %d partition(s).", have)
	case req.Count < have:
		return nil, api.WithMessage(api.ErrInvalidPartitions,
			"The topic %s currently has %d partition(s); %d would not be an increase.", t.name, have, req.Count)
	}
	more := int(req.Count - have)
	if req.Assignment != nil && len(req.Assignment) != more {
		return nil, api.WithMessage(api.ErrInvalidReplicaAssignment,
			"Attempted to add %d additional partition(s), but only %d assignment(s) were specified.", more, len(req.Assignment))
	}
	if err := rc.chargePartitions(more); err != nil {
		return nil, err
	}
	first, ok := t.partitions.Get(0)
	if !ok {
		return nil, api.WithMessage(api.ErrUnknownServerError, "Invalid state: topic %s appears to have no partitions.", t.name)
	}
	factor := len(first.replicas)
	var placed [][]int32
	if req.Assignment != nil {
		for i, a := range req.Assignment {
			if err := m.checkAssignment(a.Replicas, factor); err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(a.Replicas, m.c.cluster.active) {
				return nil, allFenced(have + int32(i))
			}
			placed = append(placed, a.Replicas)
		}
	} else {
		var err error
		if placed, err = placeReplicas(m.c.opts.Rand, m.c.cluster.usable(), more, factor); err != nil {
			return nil, err
		}
	}
	parts, err := m.newPartitions(placed, func(int) error {
		return api.WithMessage(api.ErrInvalidReplicationFactor,
			"Unable to replicate the partition %d time(s): All brokers are currently fenced or in controlled shutdown.", factor)
	})
	if err != nil {
		return nil, err
	}
	records := make([]message.Versioned, len(parts))
	mv, elr := m.c.features.level(), m.c.features.elr()
	for i, p := range parts {
		records[i] = p.record(t.id, have+int32(i), mv, elr)
	}
	return records, nil
}
