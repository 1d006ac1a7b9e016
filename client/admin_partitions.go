package client

import (
	"cmp"
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// PartitionResult is what became of one partition.
type PartitionResult struct {
	TopicPartition
	Err error
}

func sortResults(out []PartitionResult) []PartitionResult {
	slices.SortFunc(out, func(a, b PartitionResult) int { return compareTP(a.TopicPartition, b.TopicPartition) })
	return out
}

// ElectionType is how a leader is chosen.
type ElectionType int8

const (
	// PreferredElection makes the first replica leader, if it is in sync.
	PreferredElection ElectionType = 0
	// UncleanElection makes any live replica leader where there is no leader; records may be lost.
	UncleanElection ElectionType = 1
)

// ElectLeaders asks the controller to choose leaders, of all partitions if tps is nil. A partition that needs none comes back
// with ElectionNotNeeded, or not at all if tps is nil.
func (c *Client) ElectLeaders(ctx context.Context, kind ElectionType, tps []TopicPartition) ([]PartitionResult, error) {
	req := kmsg.NewPtrElectLeadersRequest()
	req.ElectionType, req.TimeoutMillis = int8(kind), c.timeoutMillis()
	if tps != nil {
		req.Topics = []kmsg.ElectLeadersRequestTopic{}
	}
	topics := byTopic(tps)
	for _, name := range sortedKeys(topics) {
		req.Topics = append(req.Topics, kmsg.ElectLeadersRequestTopic{Topic: name, Partitions: topics[name]})
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.ElectLeadersResponse) error { return errorOf(r.ErrorCode, nil) })
	if err != nil {
		return nil, err
	}
	c.meta.invalidate()
	var out []PartitionResult
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			out = append(out, PartitionResult{TopicPartition{t.Topic, p.Partition}, errorOf(p.ErrorCode, p.ErrorMessage)})
		}
	}
	return sortResults(out), nil
}

// ReassignPartitions gives partitions new replicas, the preferred leader first. It only begins the move; ListReassignments says
// what is under way. Nil replicas cancel the move of a partition. With keepFactor the cluster refuses to change how many replicas a
// partition has, if it is of 4.1 or later.
func (c *Client) ReassignPartitions(ctx context.Context, replicas map[TopicPartition][]int32, keepFactor bool) ([]PartitionResult, error) {
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	req.TimeoutMillis, req.AllowReplicationFactorChange = c.timeoutMillis(), !keepFactor
	var tps []TopicPartition
	for tp := range replicas {
		tps = append(tps, tp)
	}
	topics := byTopic(tps)
	for _, name := range sortedKeys(topics) {
		rt := kmsg.NewAlterPartitionAssignmentsRequestTopic()
		rt.Topic = name
		for _, p := range topics[name] {
			rt.Partitions = append(rt.Partitions, kmsg.AlterPartitionAssignmentsRequestTopicPartition{Partition: p, Replicas: replicas[TopicPartition{name, p}]})
		}
		req.Topics = append(req.Topics, rt)
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.AlterPartitionAssignmentsResponse) error { return errorOf(r.ErrorCode, r.ErrorMessage) })
	if err != nil {
		return nil, err
	}
	c.meta.invalidate()
	var out []PartitionResult
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			out = append(out, PartitionResult{TopicPartition{t.Topic, p.Partition}, errorOf(p.ErrorCode, p.ErrorMessage)})
		}
	}
	return sortResults(out), nil
}

// Reassignment is a move of a partition that is under way.
type Reassignment struct {
	TopicPartition
	// Replicas are all that the partition has now, those that come and those that go included.
	Replicas []int32
	Adding   []int32
	Removing []int32
}

// ListReassignments lists the moves under way, of all partitions if tps is nil.
func (c *Client) ListReassignments(ctx context.Context, tps []TopicPartition) ([]Reassignment, error) {
	req := kmsg.NewPtrListPartitionReassignmentsRequest()
	req.TimeoutMillis = c.timeoutMillis()
	if tps != nil {
		req.Topics = []kmsg.ListPartitionReassignmentsRequestTopic{}
	}
	topics := byTopic(tps)
	for _, name := range sortedKeys(topics) {
		req.Topics = append(req.Topics, kmsg.ListPartitionReassignmentsRequestTopic{Topic: name, Partitions: topics[name]})
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.ListPartitionReassignmentsResponse) error { return errorOf(r.ErrorCode, r.ErrorMessage) })
	if err != nil {
		return nil, err
	}
	var out []Reassignment
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			out = append(out, Reassignment{TopicPartition{t.Topic, p.Partition}, p.Replicas, p.AddingReplicas, p.RemovingReplicas})
		}
	}
	slices.SortFunc(out, func(a, b Reassignment) int { return compareTP(a.TopicPartition, b.TopicPartition) })
	return out, nil
}

// Replica is a partition's copy on one broker.
type Replica struct {
	TopicPartition
	Broker int32
}

// ReplicaResult is what became of one replica.
type ReplicaResult struct {
	Replica
	Err error
}

// CompareReplicas orders replicas by broker, topic and partition.
func CompareReplicas(a, b Replica) int {
	return cmp.Or(cmp.Compare(a.Broker, b.Broker), compareTP(a.TopicPartition, b.TopicPartition))
}

// MoveReplicas asks brokers to move replicas to other of their log directories, given by path. It only begins the moves.
func (c *Client) MoveReplicas(ctx context.Context, dirs map[Replica]string) ([]ReplicaResult, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	byBroker := map[int32]map[string][]TopicPartition{}
	for r, dir := range dirs {
		if byBroker[r.Broker] == nil {
			byBroker[r.Broker] = map[string][]TopicPartition{}
		}
		byBroker[r.Broker][dir] = append(byBroker[r.Broker][dir], r.TopicPartition)
	}
	var out []ReplicaResult
	for _, broker := range sortedKeys(byBroker) {
		req := kmsg.NewPtrAlterReplicaLogDirsRequest()
		for _, dir := range sortedKeys(byBroker[broker]) {
			rd := kmsg.NewAlterReplicaLogDirsRequestDir()
			rd.Dir = dir
			topics := byTopic(byBroker[broker][dir])
			for _, name := range sortedKeys(topics) {
				rd.Topics = append(rd.Topics, kmsg.AlterReplicaLogDirsRequestDirTopic{Topic: name, Partitions: topics[name]})
			}
			req.Dirs = append(req.Dirs, rd)
		}
		resp, err := ask[*kmsg.AlterReplicaLogDirsResponse](ctx, c, toNode(broker), req, nil)
		if err != nil {
			return nil, err
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				out = append(out, ReplicaResult{Replica{TopicPartition{t.Topic, p.Partition}, broker}, errorOf(p.ErrorCode, nil)})
			}
		}
	}
	slices.SortFunc(out, func(a, b ReplicaResult) int { return CompareReplicas(a.Replica, b.Replica) })
	return out, nil
}
