package client

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TopicSpec is a topic to be created.
type TopicSpec struct {
	Name string
	// Partitions and ReplicationFactor; -1 or 0 leave them to the broker's defaults.
	Partitions        int32
	ReplicationFactor int16
	// Assignment, if set, names the replicas of each partition, the preferred leader first; then the two above don't count.
	Assignment [][]int32
	Configs    map[string]string
}

// CreatedTopic is what became of a TopicSpec.
type CreatedTopic struct {
	Name              string
	ID                UUID
	Partitions        int32
	ReplicationFactor int16
	Err               error
}

// CreateTopics creates topics. With validateOnly it only says what would happen. Each topic has its own Err; the error is for
// the call as a whole.
func (c *Client) CreateTopics(ctx context.Context, topics []TopicSpec, validateOnly bool) ([]CreatedTopic, error) {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis, req.ValidateOnly = c.timeoutMillis(), validateOnly
	for _, t := range topics {
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = t.Name, t.Partitions, t.ReplicationFactor
		if t.Partitions == 0 {
			rt.NumPartitions = -1
		}
		if t.ReplicationFactor == 0 {
			rt.ReplicationFactor = -1
		}
		for i, replicas := range t.Assignment {
			rt.NumPartitions, rt.ReplicationFactor = -1, -1
			rt.ReplicaAssignment = append(rt.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(i), Replicas: replicas})
		}
		for _, k := range sortedKeys(t.Configs) {
			v := t.Configs[k]
			rt.Configs = append(rt.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: k, Value: &v})
		}
		req.Topics = append(req.Topics, rt)
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.CreateTopicsResponse) error {
		return retriableOf(len(r.Topics), func(i int) int16 { return r.Topics[i].ErrorCode })
	})
	if resp == nil {
		return nil, err
	}
	var out []CreatedTopic
	for _, t := range resp.Topics {
		out = append(out, CreatedTopic{
			Name: t.Topic, ID: UUID(t.TopicID), Partitions: t.NumPartitions, ReplicationFactor: t.ReplicationFactor,
			Err: errorOf(t.ErrorCode, t.ErrorMessage),
		})
	}
	c.meta.invalidate()
	return out, nil
}

// retriableOf is the error that makes a whole request worth sending again: when no entry succeeded and one may later.
func retriableOf(n int, code func(int) int16) error {
	var again error
	for i := range n {
		c := code(i)
		if c == 0 {
			return nil
		}
		if e := errorFor(c); e.Retriable && c != UnknownTopicOrPartition.Code {
			again = e
		}
	}
	return again
}

// timeoutMillis is how long a broker may take for what a request asks, a little less than this client waits for it.
func (c *Client) timeoutMillis() int32 { return int32(c.o.RequestTimeout.Milliseconds() * 9 / 10) }

// TopicResult is what became of one topic.
type TopicResult struct {
	Name string
	Err  error
}

// DeleteTopics deletes topics by name.
func (c *Client) DeleteTopics(ctx context.Context, names []string) ([]TopicResult, error) {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis, req.TopicNames = c.timeoutMillis(), names
	for _, n := range names {
		req.Topics = append(req.Topics, kmsg.DeleteTopicsRequestTopic{Topic: &n})
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.DeleteTopicsResponse) error {
		return retriableOf(len(r.Topics), func(i int) int16 { return r.Topics[i].ErrorCode })
	})
	if resp == nil {
		return nil, err
	}
	var out []TopicResult
	for i, t := range resp.Topics {
		r := TopicResult{Err: errorOf(t.ErrorCode, t.ErrorMessage)}
		if t.Topic != nil {
			r.Name = *t.Topic
		} else if i < len(names) {
			r.Name = names[i]
		}
		out = append(out, r)
	}
	c.meta.invalidate()
	return out, nil
}

// CreatePartitions raises the number of partitions of topics to the counts given.
func (c *Client) CreatePartitions(ctx context.Context, counts map[string]int32, validateOnly bool) ([]TopicResult, error) {
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.TimeoutMillis, req.ValidateOnly = c.timeoutMillis(), validateOnly
	for _, n := range sortedKeys(counts) {
		rt := kmsg.NewCreatePartitionsRequestTopic()
		rt.Topic, rt.Count = n, counts[n]
		req.Topics = append(req.Topics, rt)
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.CreatePartitionsResponse) error {
		return retriableOf(len(r.Topics), func(i int) int16 { return r.Topics[i].ErrorCode })
	})
	if resp == nil {
		return nil, err
	}
	var out []TopicResult
	for _, t := range resp.Topics {
		out = append(out, TopicResult{t.Topic, errorOf(t.ErrorCode, t.ErrorMessage)})
	}
	c.meta.invalidate()
	return out, nil
}

// Topics lists all topics, internal ones too.
func (c *Client) Topics(ctx context.Context) ([]Topic, error) {
	m, err := c.Metadata(ctx, nil)
	if err != nil {
		return nil, err
	}
	return m.Topics, nil
}

// PartitionOffset is an offset asked for: of a timestamp, or one of the special ones.
type PartitionOffset struct {
	TopicPartition
	Offset      int64
	Timestamp   int64 // of the record found, -1 if there's none or for the special ones
	LeaderEpoch int32
	Err         error
}

// Special timestamps of ListOffsets.
const (
	Latest        int64 = -1
	Earliest      int64 = -2
	MaxTimestamp  int64 = -3
	EarliestLocal int64 = -4
	LatestTiered  int64 = -5
)

// ListOffsets finds for each partition the first offset whose record has the timestamp (in ms) or a later one, or a special
// offset. An Offset of -1 means that there's no such record. With committed, Latest is the last stable offset.
func (c *Client) ListOffsets(ctx context.Context, want map[TopicPartition]int64, committed bool) ([]PartitionOffset, error) {
	var out []PartitionOffset
	todo := want
	err := c.retry(ctx, func(ctx context.Context) error {
		var tps []TopicPartition
		for tp := range todo {
			tps = append(tps, tp)
		}
		leaders, err := c.byLeader(ctx, tps)
		if err != nil {
			return err
		}
		again := map[TopicPartition]int64{}
		var retry error
		for _, node := range sortedKeys(leaders) {
			got, err := c.listOffsetsOn(ctx, node, leaders[node], todo, committed)
			if err != nil {
				if !Retriable(err) {
					return err
				}
				retry = err
				for _, tp := range leaders[node] {
					again[tp] = todo[tp]
				}
				continue
			}
			for _, g := range got {
				if g.Err != nil && Retriable(g.Err) {
					again[g.TopicPartition] = todo[g.TopicPartition]
					retry = fmt.Errorf("partition %v: %w", g.TopicPartition, g.Err)
					continue
				}
				out = append(out, g)
			}
		}
		todo = again
		return retry
	})
	if err != nil {
		return nil, fmt.Errorf("list offsets: %w", err)
	}
	slices.SortFunc(out, func(a, b PartitionOffset) int { return compareTP(a.TopicPartition, b.TopicPartition) })
	return out, nil
}

func (c *Client) listOffsetsOn(ctx context.Context, node int32, tps []TopicPartition, want map[TopicPartition]int64, committed bool) ([]PartitionOffset, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.TimeoutMillis = -1, c.timeoutMillis()
	if committed {
		req.IsolationLevel = 1
	}
	topics := byTopic(tps)
	for _, name := range sortedKeys(topics) {
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = name
		for _, p := range topics[name] {
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = p, want[TopicPartition{name, p}], -1
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	resp, err := exchange[*kmsg.ListOffsetsResponse](ctx, c, toNode(node), req)
	if err != nil {
		return nil, err
	}
	var out []PartitionOffset
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			out = append(out, PartitionOffset{
				TopicPartition: TopicPartition{t.Topic, p.Partition}, Offset: p.Offset, Timestamp: p.Timestamp, LeaderEpoch: p.LeaderEpoch,
				Err: errorOf(p.ErrorCode, nil),
			})
		}
	}
	return out, nil
}

// DeleteRecords deletes everything below the offsets given (-1 is the high watermark) and returns the new log start offsets.
func (c *Client) DeleteRecords(ctx context.Context, before map[TopicPartition]int64) ([]PartitionOffset, error) {
	var out []PartitionOffset
	err := c.retry(ctx, func(ctx context.Context) error {
		out = nil
		var tps []TopicPartition
		for tp := range before {
			tps = append(tps, tp)
		}
		leaders, err := c.byLeader(ctx, tps)
		if err != nil {
			return err
		}
		var retry error
		for _, node := range sortedKeys(leaders) {
			req := kmsg.NewPtrDeleteRecordsRequest()
			req.TimeoutMillis = c.timeoutMillis()
			topics := byTopic(leaders[node])
			for _, name := range sortedKeys(topics) {
				rt := kmsg.NewDeleteRecordsRequestTopic()
				rt.Topic = name
				for _, p := range topics[name] {
					rt.Partitions = append(rt.Partitions, kmsg.DeleteRecordsRequestTopicPartition{Partition: p, Offset: before[TopicPartition{name, p}]})
				}
				req.Topics = append(req.Topics, rt)
			}
			resp, err := exchange[*kmsg.DeleteRecordsResponse](ctx, c, toNode(node), req)
			if err != nil {
				return err
			}
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					r := PartitionOffset{TopicPartition: TopicPartition{t.Topic, p.Partition}, Offset: p.LowWatermark, Timestamp: -1, LeaderEpoch: -1,
						Err: errorOf(p.ErrorCode, nil)}
					if r.Err != nil && Retriable(r.Err) {
						retry = fmt.Errorf("partition %v: %w", r.TopicPartition, r.Err)
					}
					out = append(out, r)
				}
			}
		}
		return retry
	})
	if err != nil {
		return nil, fmt.Errorf("delete records: %w", err)
	}
	slices.SortFunc(out, func(a, b PartitionOffset) int { return compareTP(a.TopicPartition, b.TopicPartition) })
	return out, nil
}
