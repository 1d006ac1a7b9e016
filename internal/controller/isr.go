package controller

import (
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

// maxElections bounds the leaders that one periodic event moves, so that others get their turn.
const maxElections = 1000

// change starts a change of a partition. acceptable, if not nil, stands for "in service" when a broker is judged as a
// leader; its directory must be online in any case.
func (m *topics) change(t *topic, index int32, p *partition, acceptable func(int32) bool) *change {
	return m.changeBy(m.rules(t), t, index, p, acceptable)
}

// topicRules are the settings of a topic that its partitions' changes depend on.
type topicRules struct {
	minISR  int
	unclean bool // unclean.leader.election.enable
}

func (m *topics) rules(t *topic) topicRules { return topicRules{m.minISR(t), m.uncleanAllowed(t)} }

// changeBy is change for callers that go through many partitions of a topic and look its rules up once.
func (m *topics) changeBy(rules topicRules, t *topic, index int32, p *partition, acceptable func(int32) bool) *change {
	if acceptable == nil {
		acceptable = m.c.cluster.active
	}
	c := &change{
		p: p, topicID: t.id, id: index, mv: m.c.features.level(), withELR: m.c.features.elr(), minISR: rules.minISR,
		defaultDir: m.c.cluster.defaultDir,
		acceptable: func(b int32) bool {
			if !acceptable(b) {
				return false
			}
			dir, ok := p.directory(b)
			return ok && m.c.cluster.online(b, dir)
		},
	}
	c.init()
	return c
}

// minISR is min.insync.replicas of a topic.
func (m *topics) minISR(t *topic) int {
	v, err := strconv.Atoi(m.c.configs.topicValue(t.name, minInsyncReplicas))
	if err != nil {
		return 1
	}
	return v
}

func (m *topics) uncleanAllowed(t *topic) bool {
	return m.c.configs.topicValue(t.name, uncleanElectionEnable) == "true"
}

func (m *topics) alterPartition(req *kmsg.AlterPartitionRequest) (Result, error) {
	if err := m.c.cluster.checkEpoch(req.BrokerID, req.BrokerEpoch); err != nil {
		return Result{}, err
	}
	resp := req.ResponseKind().(*kmsg.AlterPartitionResponse)
	var records []message.Versioned
	for i := range req.Topics {
		rt := &req.Topics[i]
		out := kmsg.NewAlterPartitionResponseTopic()
		out.TopidID = rt.TopicID
		t, known := m.byID.Get(rt.TopicID)
		for j := range rt.Partitions {
			rp := &rt.Partitions[j]
			answer := kmsg.NewAlterPartitionResponseTopicPartition()
			answer.Partition = rp.Partition
			if !known {
				answer.ErrorCode = api.ErrUnknownTopicID.Code
				out.Partitions = append(out.Partitions, answer)
				continue
			}
			if req.Version < 3 {
				for _, id := range rp.NewISR {
					b := kmsg.NewAlterPartitionRequestTopicPartitionNewEpochISR()
					b.BrokerID, b.BrokerEpoch = id, -1
					rp.NewEpochISR = append(rp.NewEpochISR, b)
				}
			}
			record, ok, err := m.alterOne(req.BrokerID, t, rp, &answer)
			if err != nil {
				answer.ErrorCode = err.Code
			}
			if ok {
				records = append(records, record)
			}
			out.Partitions = append(out.Partitions, answer)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return Result{Records: records, Response: resp}, nil
}

func (m *topics) alterOne(leader int32, t *topic, rp *kmsg.AlterPartitionRequestTopicPartition, answer *kmsg.AlterPartitionResponseTopicPartition) (message.Versioned, bool, *api.Error) {
	p, ok := t.partitions.Get(rp.Partition)
	if !ok {
		return message.Versioned{}, false, api.ErrUnknownTopicOrPartition
	}
	isr := make([]int32, len(rp.NewEpochISR))
	for i, b := range rp.NewEpochISR {
		isr[i] = b.BrokerID
	}
	if err := m.checkAlter(leader, p, rp, isr); err != nil {
		return message.Versioned{}, false, err
	}
	c := m.change(t, rp.Partition, p, nil)
	if m.uncleanAllowed(t) {
		c.election = electUnclean
	}
	c.isr, c.recovery = isr, rp.LeaderRecoveryState
	record, changed := c.build()
	if changed {
		r := record.Message.(*message.PartitionChangeRecord)
		next, err := p.apply(r)
		if err != nil {
			return message.Versioned{}, false, api.ErrUnknownServerError
		}
		p = next
		if r.Leader != leader && r.Leader != noLeaderChange {
			// The change completed a reassignment that took the leader away. It stands, but the leader must look again.
			return record, true, api.ErrNewLeaderElected
		}
	}
	answer.LeaderID, answer.LeaderEpoch, answer.ISR = p.leader, p.leaderEpoch, p.isr
	answer.LeaderRecoveryState, answer.PartitionEpoch = p.recovery, p.partitionEpoch
	return record, changed, nil
}

// checkAlter is whether a leader may set this ISR. A leader that knows more than we do talks to a controller that is no
// longer one.
func (m *topics) checkAlter(leader int32, p *partition, rp *kmsg.AlterPartitionRequestTopicPartition, isr []int32) *api.Error {
	switch {
	case rp.LeaderEpoch > p.leaderEpoch, rp.PartitionEpoch > p.partitionEpoch:
		return api.ErrNotController
	case rp.LeaderEpoch < p.leaderEpoch:
		return api.ErrFencedLeaderEpoch
	case leader != p.leader:
		return api.ErrInvalidRequest
	case rp.PartitionEpoch < p.partitionEpoch:
		return api.ErrInvalidUpdateVersion
	case len(isr) == 0 || hasDuplicates(isr) || !containsAll(p.replicas, isr):
		return api.ErrInvalidRequest
	case !slices.Contains(isr, p.leader):
		return api.ErrInvalidRequest
	case rp.LeaderRecoveryState != recovered && rp.LeaderRecoveryState != recovering:
		return api.ErrUnknownServerError
	case rp.LeaderRecoveryState == recovering && len(isr) > 1:
		return api.ErrInvalidRequest
	case p.recovery == recovered && rp.LeaderRecoveryState == recovering:
		return api.ErrInvalidRequest
	}
	for _, s := range rp.NewEpochISR {
		b, ok := m.c.cluster.brokers.Get(s.BrokerID)
		if !ok || b.shuttingDown || b.fenced || s.BrokerEpoch != -1 && s.BrokerEpoch != b.epoch {
			return api.ErrIneligibleReplica
		}
	}
	return nil
}

// updates appends the changes that follow when a broker leaves or comes, for the partitions that want says: without
// remove and unclean in their ISR, and with a leader among those in service, which add already is and remove no longer.
// Brokers that don't apply are noLeader.
func (m *topics) updates(records []message.Versioned, remove, add, unclean int32, want func(p *partition) bool) []message.Versioned {
	acceptable := func(b int32) bool {
		return b != remove && b != unclean && (b == add || m.c.cluster.active(b))
	}
	var of *topic // whose rules these are
	var rules topicRules
	m.each(func(t *topic, i int32, p *partition) bool {
		if !want(p) {
			return true
		}
		if of != t {
			of, rules = t, m.rules(t)
		}
		c := m.changeBy(rules, t, i, p, acceptable)
		if rules.unclean {
			c.election = electUnclean
		}
		c.uncleanShutdown = unclean
		if slices.Contains(p.isr, remove) || slices.Contains(p.isr, unclean) {
			c.isr = without(p.isr, remove, unclean)
		}
		if record, changed := c.build(); changed {
			records = append(records, record)
		}
		return true
	})
	return records
}

func (m *topics) removeFromISR(records []message.Versioned, id int32) []message.Versioned {
	if n, _ := m.inISR.Get(id); n == 0 {
		return records
	}
	return m.updates(records, id, noLeader, noLeader, func(p *partition) bool { return slices.Contains(p.isr, id) })
}

// fenceRecords take a broker out of service.
func (m *topics) fenceRecords(records []message.Versioned, id int32) []message.Versioned {
	b, ok := m.c.cluster.brokers.Get(id)
	if !ok {
		return records
	}
	return append(m.removeFromISR(records, id), registrationChange(b, 0, func(r *message.BrokerRegistrationChangeRecord) { r.Fenced = 1 }))
}

// unfenceRecords put a broker into service and give it the partitions that nobody leads and it may.
func (m *topics) unfenceRecords(records []message.Versioned, b *broker) []message.Versioned {
	records = append(records, registrationChange(b, 0, func(r *message.BrokerRegistrationChangeRecord) { r.Fenced = -1 }))
	if m.leaderless.Get() == 0 {
		return records
	}
	return m.updates(records, noLeader, b.id, noLeader, func(p *partition) bool { return !p.hasLeader() })
}

func (m *topics) controlledShutdownRecords(records []message.Versioned, b *broker) []message.Versioned {
	if !b.shuttingDown {
		records = append(records, registrationChange(b, 1, func(r *message.BrokerRegistrationChangeRecord) { r.InControlledShutdown = 1 }))
	}
	return m.removeFromISR(records, b.id)
}

// shutdownRecords deal with a broker that comes in a new life: if the last one didn't end cleanly it may have lost
// records, and can't be counted among those that have everything.
func (m *topics) shutdownRecords(records []message.Versioned, id int32, clean bool) []message.Versioned {
	if clean || !m.c.features.elr() {
		return m.removeFromISR(records, id)
	}
	if n, _ := m.inISR.Get(id); n > 0 {
		records = m.updates(records, noLeader, noLeader, id, func(p *partition) bool { return slices.Contains(p.isr, id) })
	}
	if n, _ := m.inELR.Get(id); n > 0 {
		records = m.updates(records, noLeader, noLeader, id, func(p *partition) bool { return slices.Contains(p.elr, id) })
	}
	return records
}

func registrationChange(b *broker, version int16, set func(*message.BrokerRegistrationChangeRecord)) message.Versioned {
	r := message.NewBrokerRegistrationChangeRecord()
	r.BrokerID, r.BrokerEpoch = b.id, b.epoch
	set(r)
	return message.Versioned{Message: r, Version: version}
}

// heartbeat moves a broker through its life.
func (m *topics) heartbeat(req *kmsg.BrokerHeartbeatRequest) (Result, error) {
	if err := m.c.cluster.checkEpoch(req.BrokerID, req.BrokerEpoch); err != nil {
		return Result{}, err
	}
	b, _ := m.c.cluster.brokers.Get(req.BrokerID)
	pulse := m.c.cluster.pulse
	from, to := pulse.next(b.id, req.WantFence, req.WantShutdown, req.CurrentMetadataOffset, b.registeredAt, func() bool {
		n, _ := m.leads.Get(b.id)
		return n > 0
	})
	var records []message.Versioned
	if from != to {
		switch to {
		case stateFenced, stateShutdownNow:
			records = m.fenceRecords(records, b.id)
		case stateUnfenced:
			records = m.unfenceRecords(records, b)
		case stateControlledShutdown:
			records = m.controlledShutdownRecords(records, b)
		}
	}
	pulse.touch(b.id, to.fenced(), req.CurrentMetadataOffset)
	mv := m.c.features.level()
	if mv.Directories() {
		records = m.offlineRecords(records, b, req.OfflineLogDirs)
	}
	if mv.CordonedLogDirs() && req.CordonedLogDirs != nil {
		cordoned := toUUIDs(req.CordonedLogDirs)
		if b.cordoned == nil || !sameSet(b.cordoned, cordoned) {
			records = append(records, registrationChange(b, 3, func(r *message.BrokerRegistrationChangeRecord) { r.CordonedLogDirs = cordoned }))
		}
	}
	resp := req.ResponseKind().(*kmsg.BrokerHeartbeatResponse)
	resp.IsCaughtUp = req.CurrentMetadataOffset >= b.registeredAt
	resp.IsFenced = to.fenced()
	resp.ShouldShutdown = to == stateShutdownNow
	result := Result{Records: records, Response: resp}
	if to == stateControlledShutdown {
		result.appended = func(lastOffset int64) {
			if p := pulse.brokers[b.id]; p != nil && p.shutdownOffset < 0 {
				p.shutdownOffset = lastOffset
			}
		}
	}
	return result, nil
}

// offlineRecords deal with directories that a broker lost: it stays, without what lay there.
func (m *topics) offlineRecords(records []message.Versioned, b *broker, offline [][16]byte) []message.Versioned {
	if len(offline) == 0 {
		return records
	}
	gone := toUUIDs(offline)
	var lost, left []uuid.UUID
	for _, d := range b.directories {
		if slices.Contains(gone, d) {
			lost = append(lost, d)
		} else {
			left = append(left, d)
		}
	}
	if len(lost) == 0 {
		return records
	}
	records = m.updates(records, b.id, noLeader, noLeader, func(p *partition) bool {
		dir, ok := p.directory(b.id)
		return ok && slices.Contains(lost, dir)
	})
	return append(records, registrationChange(b, 2, func(r *message.BrokerRegistrationChangeRecord) { r.LogDirs = left }))
}

func toUUIDs(ids [][16]byte) []uuid.UUID {
	out := make([]uuid.UUID, len(ids))
	for i, id := range ids {
		out[i] = id
	}
	return out
}

func sameSet(a, b []uuid.UUID) bool {
	in := func(s []uuid.UUID) func(uuid.UUID) bool {
		return func(u uuid.UUID) bool { return !slices.Contains(s, u) }
	}
	return !slices.ContainsFunc(a, in(b)) && !slices.ContainsFunc(b, in(a))
}

// fenceStale fences one broker whose session ran out: one at a time, so that the next choice of leaders sees it.
func (m *topics) fenceStale() (result Result, more bool) {
	gone, sure, ok := m.c.tracker.takeExpired(m.c.now)
	if !ok {
		return Result{}, false
	}
	b, known := m.c.cluster.brokers.Get(gone.id)
	if !known || b.epoch != gone.epoch || b.fenced {
		return Result{}, true
	}
	m.c.opts.Logger.Info("fencing broker: its session ended", "node", gone.id, "broker_epoch", gone.epoch, "known_to_be_gone", sure)
	records := m.fenceRecords(nil, gone.id)
	if p := m.c.cluster.pulse.brokers[gone.id]; p != nil {
		p.fenced, p.shutdownOffset = true, -1
	}
	return Result{Records: records}, true
}

func (m *topics) unregister(req *kmsg.UnregisterBrokerRequest) (Result, error) {
	b, ok := m.c.cluster.brokers.Get(req.BrokerID)
	if !ok {
		return Result{}, api.WithMessage(api.ErrBrokerIDNotRegistered, "Broker ID %d is not currently registered", req.BrokerID)
	}
	records := m.removeFromISR(nil, b.id)
	if n, _ := m.inELR.Get(b.id); n > 0 {
		records = m.updates(records, b.id, noLeader, noLeader, func(p *partition) bool {
			return slices.Contains(p.elr, b.id) && !slices.Contains(p.isr, b.id)
		})
	}
	r := message.NewUnregisterBrokerRecord()
	r.BrokerID, r.BrokerEpoch = b.id, b.epoch
	records = append(records, message.Versioned{Message: r})
	return Result{Records: records, Response: req.ResponseKind()}, nil
}

func (m *topics) electLeaders(req *kmsg.ElectLeadersRequest) (Result, error) {
	kind := election(0)
	switch req.ElectionType {
	case 0:
		kind = electPreferred
	case 1:
		kind = electUnclean
	default:
		return Result{}, api.WithMessage(api.ErrInvalidRequest, "Unknown election type %d", req.ElectionType)
	}
	resp := req.ResponseKind().(*kmsg.ElectLeadersResponse)
	var records []message.Versioned
	answer := func(out *kmsg.ElectLeadersResponseTopic, index int32, err error) {
		p := kmsg.NewElectLeadersResponseTopicPartition()
		p.Partition = index
		p.ErrorCode, p.ErrorMessage = api.CodeAndMessage(err)
		out.Partitions = append(out.Partitions, p)
	}
	if req.Topics == nil {
		for _, name := range m.names() {
			t, _ := m.byName.Get(name)
			out := kmsg.NewElectLeadersResponseTopic()
			out.Topic = name
			for i := range t.partitions.All() {
				record, changed, err := m.elect(name, i, kind)
				if api.CodeOf(err) == api.ErrElectionNotNeeded.Code {
					continue // asked about everything, one isn't told of what is well
				}
				if changed {
					records = append(records, record)
				}
				answer(&out, i, err)
			}
			resp.Topics = append(resp.Topics, out)
		}
	}
	for _, rt := range req.Topics {
		out := kmsg.NewElectLeadersResponseTopic()
		out.Topic = rt.Topic
		for _, i := range rt.Partitions {
			record, changed, err := m.elect(rt.Topic, i, kind)
			if changed {
				records = append(records, record)
			}
			answer(&out, i, err)
		}
		resp.Topics = append(resp.Topics, out)
	}
	if len(records) > maxRecordsPerUserOp {
		return Result{}, errTooLarge
	}
	return Result{Records: records, Response: resp}, nil
}

// elect chooses a leader of one partition, electPreferred or electUnclean.
func (m *topics) elect(name string, index int32, kind election) (message.Versioned, bool, error) {
	var none message.Versioned
	t, ok := m.byName.Get(name)
	if !ok {
		return none, false, api.WithMessage(api.ErrUnknownTopicOrPartition, "No such topic as %s", name)
	}
	p, ok := t.partitions.Get(index)
	if !ok {
		return none, false, api.WithMessage(api.ErrUnknownTopicOrPartition, "No such partition as %s-%d", name, index)
	}
	if kind == electPreferred && p.hasPreferredLeader() || kind == electUnclean && p.hasLeader() {
		return none, false, api.ErrElectionNotNeeded
	}
	c := m.change(t, index, p, nil)
	c.election = kind
	record, changed := c.build()
	switch {
	case changed:
		return record, true, nil
	case kind == electPreferred:
		return none, false, api.ErrPreferredLeaderNotAvailable
	}
	return none, false, api.ErrEligibleLeadersNotAvailable
}

// balance moves leadership back to preferred replicas; more says that there may be others left.
func (m *topics) balance() (result Result, more bool) {
	if m.imbalanced.Get() == 0 {
		return Result{}, false
	}
	m.each(func(t *topic, i int32, p *partition) bool {
		if p.hasPreferredLeader() {
			return true
		}
		c := m.change(t, i, p, nil)
		c.election = electPreferred
		if record, changed := c.build(); changed {
			result.Records = append(result.Records, record)
		}
		return len(result.Records) < maxElections
	})
	return result, len(result.Records) >= maxElections
}

// electUncleanly gives partitions without leader one, where the topic allows it.
func (m *topics) electUncleanly() (result Result, more bool) {
	if m.leaderless.Get() == 0 {
		return Result{}, false
	}
	m.each(func(t *topic, i int32, p *partition) bool {
		if p.hasLeader() || !m.uncleanAllowed(t) {
			return true
		}
		if record, changed, err := m.elect(t.name, i, electUnclean); changed && err == nil {
			m.c.opts.Logger.Warn("unclean leader election", "topic", t.name, "partition", i)
			result.Records = append(result.Records, record)
		}
		return len(result.Records) < maxElections
	})
	return result, len(result.Records) >= maxElections
}

// names lists the topics in order.
func (m *topics) names() []string {
	names := make([]string, 0, m.byName.Len())
	for name := range m.byName.All() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
