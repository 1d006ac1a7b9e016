package broker

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/network"
	"gregor/internal/replica"
	"gregor/internal/security"
)

// Replica ids with a meaning in ListOffsets and Fetch.
const (
	consumerReplica  int32 = -1
	debuggingReplica int32 = -2
)

// unsupportedTimestamp says whether a special timestamp came with a version that does not know it yet.
func unsupportedTimestamp(ts int64, version int16) bool {
	switch {
	case ts >= log.TimestampEarliest:
		return false
	case ts == log.TimestampMax:
		return version < 7
	case ts == log.TimestampEarliestLocal:
		return version < 8
	case ts == log.TimestampLatestTiered:
		return version < 9
	case ts == timestampEarliestPendingUpload:
		return version < 11
	default:
		return true
	}
}

// timestampEarliestPendingUpload asks for the first offset that is not in tiered storage yet (KIP-1023).
const timestampEarliestPendingUpload int64 = -6

func (b *Broker) listOffsets(r *network.Request, q *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.ListOffsetsResponse)
	type tp struct {
		topic     string
		partition int32
	}
	seen := make(map[tp]int)
	for _, t := range q.Topics {
		for _, p := range t.Partitions {
			seen[tp{t.Topic, p.Partition}]++
		}
	}
	kind := replica.Follower
	switch q.ReplicaID {
	case consumerReplica:
		kind = replica.Consumer
	case debuggingReplica:
		kind = replica.Debugger
	}
	for _, t := range q.Topics {
		rt := kmsg.ListOffsetsResponseTopic{Topic: t.Topic}
		allowed := b.allowsTopic(r, security.Describe, t.Topic)
		for _, p := range t.Partitions {
			rp := kmsg.ListOffsetsResponseTopicPartition{Partition: p.Partition, Timestamp: -1, Offset: -1, LeaderEpoch: -1}
			if !allowed {
				rp.ErrorCode = api.ErrTopicAuthorizationFailed.Code
				rt.Partitions = append(rt.Partitions, rp)
				continue
			}
			times := seen[tp{t.Topic, p.Partition}]
			if times == 0 {
				continue // one answer, an error, for all of its duplicates
			}
			if times > 1 {
				seen[tp{t.Topic, p.Partition}] = 0
			}
			found, err := b.offsetFor(t.Topic, p, kind, q, times > 1)
			if err != nil {
				rp.ErrorCode = api.CodeOf(err)
			} else {
				rp.Offset, rp.Timestamp, rp.LeaderEpoch = found.Offset, found.Timestamp, found.LeaderEpoch
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (b *Broker) offsetFor(topic string, p kmsg.ListOffsetsRequestTopicPartition, kind replica.ReaderKind,
	q *kmsg.ListOffsetsRequest, duplicate bool) (replica.OffsetFound, error) {
	switch {
	case duplicate:
		return replica.OffsetFound{}, api.ErrInvalidRequest
	case unsupportedTimestamp(p.Timestamp, q.Version):
		return replica.OffsetFound{}, api.ErrUnsupportedVersion
	}
	part, err := b.replicas.Partition(topic, p.Partition)
	if err != nil {
		return replica.OffsetFound{}, err
	}
	if p.Timestamp == timestampEarliestPendingUpload {
		// Nothing waits for an upload where there is no tiered storage.
		return replica.OffsetFound{Offset: -1, Timestamp: -1, LeaderEpoch: -1}, nil
	}
	found, err := part.Offset(p.Timestamp, kind, q.IsolationLevel == 1, p.CurrentLeaderEpoch)
	if errors.Is(err, api.ErrOffsetNotAvailable) && q.Version < 5 {
		err = api.ErrLeaderNotAvailable
	}
	return found, err
}

func (b *Broker) offsetForLeaderEpoch(r *network.Request, q *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	all := b.allowsQuietly(r, security.ClusterAction, security.Cluster, security.ClusterName)
	for _, t := range q.Topics {
		rt := kmsg.OffsetForLeaderEpochResponseTopic{Topic: t.Topic}
		allowed := all || b.allowsTopic(r, security.Describe, t.Topic)
		for _, p := range t.Partitions {
			rp := kmsg.OffsetForLeaderEpochResponseTopicPartition{Partition: p.Partition, LeaderEpoch: -1, EndOffset: -1}
			part, err := b.replicas.Partition(t.Topic, p.Partition)
			if !allowed {
				err = api.ErrTopicAuthorizationFailed
			}
			if err == nil {
				var end replica.EpochEnd
				end, err = part.EndOffsetForEpoch(p.LeaderEpoch, p.CurrentLeaderEpoch)
				rp.LeaderEpoch, rp.EndOffset = end.Epoch, end.EndOffset
			}
			rp.ErrorCode = api.CodeOf(err)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (b *Broker) deleteRecords(r *network.Request, q *kmsg.DeleteRecordsRequest, reply func(kmsg.Response)) {
	resp := q.ResponseKind().(*kmsg.DeleteRecordsResponse)
	type deletion struct {
		topic, index int // in the response
		partition    *replica.Partition
		start        int64
	}
	var begun []deletion
	for i, t := range q.Topics {
		rt := kmsg.DeleteRecordsResponseTopic{Topic: t.Topic}
		allowed := b.allowsTopic(r, security.Delete, t.Topic)
		for j, p := range t.Partitions {
			rp := kmsg.DeleteRecordsResponseTopicPartition{Partition: p.Partition, LowWatermark: -1}
			if !allowed {
				rp.ErrorCode = api.ErrTopicAuthorizationFailed.Code
				rt.Partitions = append(rt.Partitions, rp)
				continue
			}
			part, start, low, err := b.deleteRecordsOf(t.Topic, p.Partition, p.Offset)
			if err != nil {
				rp.ErrorCode = api.CodeOf(err)
			} else if rp.LowWatermark = low; low < start {
				begun = append(begun, deletion{i, j, part, start})
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if len(begun) == 0 {
		reply(resp)
		return
	}
	// Followers move their log start with their next fetches.
	wait := replica.NewAckOp(len(begun), func(errs []*api.Error) {
		for i, d := range begun {
			rp := &resp.Topics[d.topic].Partitions[d.index]
			if errs[i] != nil {
				rp.ErrorCode = errs[i].Code
			} else {
				rp.LowWatermark = d.start
			}
		}
		reply(resp)
	})
	for i, d := range begun {
		wait.WaitDeleted(i, d.partition, d.start)
	}
	wait.Start(time.Duration(q.TimeoutMillis) * time.Millisecond)
	r.Park(wait)
}

func (b *Broker) deleteRecordsOf(topic string, partition int32, offset int64) (p *replica.Partition, start, low int64, err error) {
	if !b.hasPartition(topic, partition) {
		return nil, -1, -1, api.ErrUnknownTopicOrPartition
	}
	if isInternalTopic(topic) {
		return nil, -1, -1, api.WithMessage(api.ErrInvalidTopicException, "Cannot delete records of internal topic %s", topic)
	}
	if p, err = b.replicas.Partition(topic, partition); err != nil {
		return nil, -1, -1, err
	}
	start, low, err = p.DeleteRecords(offset)
	return p, start, low, err
}

func (b *Broker) describeProducers(r *network.Request, q *kmsg.DescribeProducersRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.DescribeProducersResponse)
	for _, t := range q.Topics {
		rt := kmsg.DescribeProducersResponseTopic{Topic: t.Topic}
		allowed := api.CheckTopicName(t.Topic) != nil || b.allowsTopic(r, security.Read, t.Topic)
		for _, id := range t.Partitions {
			rp := kmsg.DescribeProducersResponseTopicPartition{Partition: id}
			if !allowed {
				rp.ErrorCode, rp.ErrorMessage = api.CodeAndMessage(api.ErrTopicAuthorizationFailed)
			} else if err := b.producersOf(t.Topic, id, &rp); err != nil {
				rp.ErrorCode = api.CodeOf(err)
				// A partition that a known topic does not have gets no message.
				if err != api.ErrUnknownTopicOrPartition || b.image().Topics.ByName(t.Topic) == nil {
					rp.ErrorMessage = kmsg.StringPtr(api.MessageOf(err))
				}
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (b *Broker) producersOf(topic string, partition int32, rp *kmsg.DescribeProducersResponseTopicPartition) error {
	if err := api.CheckTopicName(topic); err != nil {
		return err
	}
	if b.image().Topics.ByName(topic) == nil {
		return api.ErrUnknownTopicOrPartition
	}
	part, err := b.replicas.Partition(topic, partition)
	if err != nil {
		return err
	}
	if !part.IsLeader() {
		return api.ErrNotLeaderOrFollower
	}
	for _, s := range part.Log().Producers() {
		rp.ActiveProducers = append(rp.ActiveProducers, kmsg.DescribeProducersResponseTopicPartitionActiveProducer{
			ProducerID: s.ProducerID, ProducerEpoch: int32(s.ProducerEpoch), LastSequence: s.LastSequence,
			LastTimestamp: s.LastTimestamp, CoordinatorEpoch: s.CoordinatorEpoch,
			CurrentTxnStartOffset: s.CurrentTxnFirstOffset})
	}
	return nil
}
