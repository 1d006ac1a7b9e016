package controller

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

// A reassignment has three steps: the new replicas join the list and are marked as being added; they catch up and enter
// the ISR; the old ones go. The last step is part of the change that brings the last new replica into the ISR, and when
// nothing needs to catch up all happens in the first.

func (m *topics) alterReassignments(req *kmsg.AlterPartitionAssignmentsRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.AlterPartitionAssignmentsResponse)
	// v0 couldn't say that it must stay, and let it change.
	mayChangeFactor := req.Version < 1 || req.AllowReplicationFactorChange
	resp.AllowReplicationFactorChange = mayChangeFactor
	var records []message.Versioned
	for _, rt := range req.Topics {
		out := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		out.Topic = rt.Topic
		for i := range rt.Partitions {
			rp := &rt.Partitions[i]
			record, changed, err := m.alterReassignment(rt.Topic, rp, mayChangeFactor)
			if changed {
				records = append(records, record)
			}
			p := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			p.Partition = rp.Partition
			p.ErrorCode, p.ErrorMessage = api.CodeAndMessage(err)
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	if len(records) > maxRecordsPerUserOp {
		return Result{}, errTooLarge
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

func (m *topics) alterReassignment(name string, rp *kmsg.AlterPartitionAssignmentsRequestTopicPartition, mayChangeFactor bool) (message.Versioned, bool, error) {
	var none message.Versioned
	t, ok := m.byName.Get(name)
	if !ok {
		return none, false, api.WithMessage(api.ErrUnknownTopicOrPartition, "Unable to find a topic named %s.", name)
	}
	p, ok := t.partitions.Get(rp.Partition)
	if !ok {
		return none, false, api.WithMessage(api.ErrUnknownTopicOrPartition, "Unable to find partition %s:%d.", name, rp.Partition)
	}
	c := m.change(t, rp.Partition, p, nil)
	if rp.Replicas == nil {
		if !p.reassigning() {
			return none, false, api.WithMessage(api.ErrNoReassignmentInProgress, "")
		}
		replicas, isr, unclean := revertReassignment(p)
		if len(replicas) == 0 {
			return none, false, api.WithMessage(api.ErrInvalidReplicaAssignment, "Invalid replica assignment: addingReplicas contains all replicas.")
		}
		allowed := m.uncleanAllowed(t)
		if unclean && !allowed {
			return none, false, api.WithMessage(api.ErrInvalidReplicaAssignment,
				"Unable to revert partition assignment for %s:%d because it would require an unclean leader election.", name, rp.Partition)
		}
		if allowed {
			c.election = electUnclean
		}
		c.isr, c.replicas, c.removing, c.adding = isr, replicas, nil, nil
		record, changed := c.build()
		return record, changed, nil
	}
	if err := m.checkAssignment(rp.Replicas, -1); err != nil {
		return none, false, err
	}
	if !mayChangeFactor {
		now := len(p.replicas)
		if p.reassigning() {
			now = len(without(p.replicas, p.removing...))
			for _, b := range p.adding {
				if !slices.Contains(p.replicas, b) {
					now++
				}
			}
		}
		if now != len(rp.Replicas) {
			return none, false, api.WithMessage(api.ErrInvalidReplicationFactor,
				"The replication factor is changed from %d to %d", now, len(rp.Replicas))
		}
	}
	replicas, removing, adding := reassignment(p.replicas, rp.Replicas)
	if !slices.Equal(replicas, p.replicas) {
		c.replicas = replicas
	}
	if len(removing) > 0 {
		c.removing = removing
	}
	if len(adding) > 0 {
		c.adding = adding
	}
	record, changed := c.build()
	return record, changed, nil
}

func (m *topics) listReassignments(req *kmsg.ListPartitionReassignmentsRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.ListPartitionReassignmentsResponse)
	list := func(t *topic, indexes []int32) {
		out := kmsg.NewListPartitionReassignmentsResponseTopic()
		out.Topic = t.name
		for _, i := range indexes {
			p, ok := t.partitions.Get(i)
			if !ok || !p.reassigning() {
				continue
			}
			rp := kmsg.NewListPartitionReassignmentsResponseTopicPartition()
			rp.Partition, rp.Replicas, rp.AddingReplicas, rp.RemovingReplicas = i, p.replicas, p.adding, p.removing
			out.Partitions = append(out.Partitions, rp)
		}
		if len(out.Partitions) > 0 {
			resp.Topics = append(resp.Topics, out)
		}
	}
	for _, rt := range req.Topics {
		if t, ok := m.byName.Get(rt.Topic); ok {
			list(t, rt.Partitions)
		}
	}
	if req.Topics == nil {
		moving := make(map[uuid.UUID][]int32)
		var order []*topic
		for id := range m.reassigning.All() {
			if moving[id.topic] == nil {
				t, _ := m.byID.Get(id.topic)
				order = append(order, t)
			}
			moving[id.topic] = append(moving[id.topic], id.index)
		}
		slices.SortFunc(order, func(a, b *topic) int { return strings.Compare(a.name, b.name) })
		for _, t := range order {
			slices.Sort(moving[t.id])
			list(t, moving[t.id])
		}
	}
	return Result{Response: resp}, nil
}

// assignToDirs notes in which directory a broker keeps its replicas.
func (m *topics) assignToDirs(req *kmsg.AssignReplicasToDirsRequest) (Result, error) {
	if !m.c.features.level().Directories() {
		return Result{}, api.WithMessage(api.ErrUnsupportedVersion, "Directory assignment is not supported yet.")
	}
	if err := m.c.cluster.checkEpoch(req.BrokerID, req.BrokerEpoch); err != nil {
		return Result{}, err
	}
	b, _ := m.c.cluster.brokers.Get(req.BrokerID)
	resp := req.ResponseKind().(*kmsg.AssignReplicasToDirsResponse)
	var records []message.Versioned
	offline := make(map[partitionID]bool)
	for _, rd := range req.Directories {
		dir := uuid.UUID(rd.ID)
		outDir := kmsg.NewAssignReplicasToDirsResponseDirectory()
		outDir.ID = rd.ID
		for _, rt := range rd.Topics {
			outTopic := kmsg.NewAssignReplicasToDirsResponseDirectoryTopic()
			outTopic.TopicID = rt.TopicID
			t, known := m.byID.Get(rt.TopicID)
			for _, rp := range rt.Partitions {
				out := kmsg.NewAssignReplicasToDirsResponseDirectoryTopicPartition()
				out.Partition = rp.Partition
				var p *partition
				if known {
					p, _ = t.partitions.Get(rp.Partition)
				}
				switch {
				case !known:
					out.ErrorCode = api.ErrUnknownTopicID.Code
				case p == nil:
					out.ErrorCode = api.ErrUnknownTopicOrPartition.Code
				case !slices.Contains(p.replicas, b.id):
					out.ErrorCode = api.ErrNotLeaderOrFollower.Code
				default:
					c := m.change(t, rp.Partition, p, nil)
					c.hasMoved, c.moved, c.movedTo = true, b.id, dir
					if record, changed := c.build(); changed {
						records = append(records, record)
					}
					if !b.online(dir) {
						offline[partitionID{t.id, rp.Partition}] = true
					}
				}
				outTopic.Partitions = append(outTopic.Partitions, out)
			}
			outDir.Topics = append(outDir.Topics, outTopic)
		}
		resp.Directories = append(resp.Directories, outDir)
	}
	if len(offline) > 0 {
		// A replica in a directory that is offline has left its ISR; who leads has to be chosen anew.
		m.each(func(t *topic, i int32, p *partition) bool {
			if !offline[partitionID{t.id, i}] {
				return true
			}
			c := m.change(t, i, p, func(id int32) bool { return id != b.id && m.c.cluster.active(id) })
			if m.uncleanAllowed(t) {
				c.election = electUnclean
			}
			c.isr = without(p.isr, b.id)
			if record, changed := c.build(); changed {
				records = append(records, record)
			}
			return true
		})
	}
	return Result{Records: records, Response: resp}, nil
}
