package simtest

import (
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/replica"
	"gregor/internal/uuid"
)

// What a broker's handlers do, in short: those of package broker are about bytes and connections, of which there are none here.

// serve answers another broker's fetcher.
func (s *server) serve(from int32, q kmsg.Request, reply func(kmsg.Response)) {
	switch q := q.(type) {
	case *kmsg.ListOffsetsRequest:
		resp := q.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, t := range q.Topics {
			rt := kmsg.NewListOffsetsResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewListOffsetsResponseTopicPartition()
				rp.Partition = p.Partition
				part, err := s.m.Partition(t.Topic, p.Partition)
				if err == nil {
					var found replica.OffsetFound
					found, err = part.Offset(p.Timestamp, replica.Follower, false, p.CurrentLeaderEpoch)
					rp.Offset = found.Offset
				}
				rp.ErrorCode = api.CodeOf(err)
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		reply(resp)
	case *kmsg.FetchRequest:
		s.serveFollower(q, reply)
	default:
		s.w.fail("a %T from broker %d", q, from)
	}
}

func (s *server) serveFollower(q *kmsg.FetchRequest, reply func(kmsg.Response)) {
	var wanted []replica.FetchPartition
	for _, t := range q.Topics {
		for _, p := range t.Partitions {
			wanted = append(wanted, replica.FetchPartition{Key: replica.FetchKey{TopicID: t.TopicID, Partition: p.Partition},
				Spec: replica.FetchSpec{FetchOffset: p.FetchOffset, LogStartOffset: p.LogStartOffset, LeaderEpoch: p.CurrentLeaderEpoch,
					LastFetchedEpoch: p.LastFetchedEpoch, MaxBytes: p.PartitionMaxBytes}})
		}
	}
	var forgotten []replica.FetchKey
	for _, t := range q.ForgottenTopics {
		for _, p := range t.Partitions {
			forgotten = append(forgotten, replica.FetchKey{TopicID: t.TopicID, Partition: p})
		}
	}
	ctx, parts := s.m.Sessions().Begin(s.p.clock.Now(), replica.FetchSessionRequest{SessionID: q.SessionID, Epoch: q.SessionEpoch,
		Privileged: true, UsesTopicIDs: true, Forgotten: forgotten}, wanted, nil)
	resp := q.ResponseKind().(*kmsg.FetchResponse)
	if err := ctx.Err(); err != nil {
		resp.ErrorCode = err.Code
		reply(resp)
		return
	}
	by := replica.Reader{Follower: q.ReplicaState.ID, BrokerEpoch: q.ReplicaState.Epoch}
	limits := replica.ReadLimits{MaxBytes: int(q.MaxBytes), MinOne: true, Isolation: log.ReadLogEnd}
	finish := func() {
		id, err := ctx.Finish(s.p.clock.Now(), parts)
		resp.SessionID = id
		if err != nil {
			resp.ErrorCode = err.Code
			release(parts)
			reply(resp)
			return
		}
		for i := range parts {
			p := &parts[i]
			if p.Result.Send {
				addFetched(resp, p)
			}
			p.Result.Release()
		}
		reply(resp)
	}
	s.resolve(parts)
	got, settled := s.read(parts, &by, limits)
	if wait := time.Duration(q.MaxWaitMillis) * time.Millisecond; !settled && wait > 0 && got < int(q.MinBytes) && len(parts) > 0 {
		release(parts)
		replica.AwaitFetch(parts, int64(int(q.MinBytes)-got), wait, true, func() {
			by.Again = true
			s.read(parts, &by, limits)
			finish()
		})
		return
	}
	finish()
}

func release(parts []replica.FetchPartition) {
	for i := range parts {
		parts[i].Result.Release()
	}
}

func addFetched(resp *kmsg.FetchResponse, p *replica.FetchPartition) {
	r := &p.Result
	out := kmsg.NewFetchResponseTopicPartition()
	out.Partition, out.HighWatermark, out.LastStableOffset, out.LogStartOffset = p.Key.Partition, r.HighWatermark, r.LastStableOffset, r.LogStartOffset
	if r.Err != nil {
		out.ErrorCode = r.Err.Code
	}
	if r.Diverging != nil {
		out.DivergingEpoch.Epoch, out.DivergingEpoch.EndOffset = r.Diverging.Epoch, r.Diverging.EndOffset
	}
	if r.Size() > 0 {
		b, err := r.Slice.Bytes(nil)
		if err != nil {
			out.ErrorCode = api.ErrKafkaStorageError.Code
		}
		out.RecordBatches = b
	}
	if n := len(resp.Topics); n == 0 || resp.Topics[n-1].TopicID != [16]byte(p.Key.TopicID) {
		t := kmsg.NewFetchResponseTopic()
		t.TopicID = p.Key.TopicID
		resp.Topics = append(resp.Topics, t)
	}
	t := &resp.Topics[len(resp.Topics)-1]
	t.Partitions = append(t.Partitions, out)
}

func (s *server) resolve(parts []replica.FetchPartition) {
	for i := range parts {
		if p := &parts[i]; p.Partition == nil || p.Partition.Gone() {
			p.Partition = s.m.TopicByID(p.Key.TopicID).Partition(p.Key.Partition)
		}
	}
}

// read reads as package broker does.
func (s *server) read(parts []replica.FetchPartition, by *replica.Reader, limits replica.ReadLimits) (got int, settled bool) {
	for i := range parts {
		p := &parts[i]
		if p.Partition == nil {
			p.Result = replica.FetchResult{Err: s.missing(p.Key), HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1, PreferredReadReplica: -1}
			settled = true
			continue
		}
		p.Partition.Read(p.Spec, by, limits, &p.Result)
		n := p.Result.Size()
		got += n
		limits.MaxBytes = max(limits.MaxBytes-n, 0)
		limits.MinOne = limits.MinOne && n == 0
		if p.Result.Err != nil || p.Result.Diverging != nil || p.Result.PreferredReadReplica >= 0 {
			settled = true
		}
	}
	return got, settled
}

func (s *server) missing(k replica.FetchKey) *api.Error {
	t := s.p.loader.Image().Topics.ByID(k.TopicID)
	if t == nil {
		return api.ErrUnknownTopicID
	}
	if t.Partition(k.Partition) == nil {
		return api.ErrUnknownTopicOrPartition
	}
	_, err := s.m.Partition(t.Name, k.Partition)
	return api.ErrorFor(api.CodeOf(err))
}

// produce appends a batch for a client.
func (s *server) produce(topic uuid.UUID, id int32, batch []byte, acks int16, timeout time.Duration, reply func(base int64, err error)) {
	part := s.m.TopicByID(topic).Partition(id)
	if part == nil {
		reply(-1, s.missing(replica.FetchKey{TopicID: topic, Partition: id}))
		return
	}
	info, err := part.Append(batch, replica.AppendOptions{Origin: log.Client, RequiredAcks: acks, LeaderEpoch: -1})
	if err != nil {
		reply(-1, err)
		return
	}
	if !info.Duplicate {
		s.w.stats.appended++
	}
	part.Wake()
	acked := func(err *api.Error) {
		if err != nil {
			reply(-1, err)
			return
		}
		s.check() // what the acknowledgement rests on is noted first
		s.w.ledger.acknowledged(s, part, batch, info, acks)
		reply(info.FirstOffset, nil)
	}
	if acks != -1 || part.Committed(info.LeaderEpoch, info.LastOffset+1) {
		acked(nil)
		return
	}
	op := replica.NewAckOp(1, func(errs []*api.Error) { acked(errs[0]) })
	op.Wait(0, part, info.LeaderEpoch, info.LastOffset+1)
	op.Start(timeout)
}

// consume reads for a consumer, and waits a little if there is nothing.
func (s *server) consume(topic uuid.UUID, id int32, offset int64, by replica.Reader, iso log.Isolation, wait time.Duration, reply func(r replica.FetchResult, data []byte)) {
	parts := []replica.FetchPartition{{Key: replica.FetchKey{TopicID: topic, Partition: id},
		Spec: replica.FetchSpec{FetchOffset: offset, LogStartOffset: -1, LeaderEpoch: -1, LastFetchedEpoch: -1, MaxBytes: 1 << 14}}}
	limits := replica.ReadLimits{MaxBytes: 1 << 14, MinOne: true, Isolation: iso}
	finish := func() {
		r := parts[0].Result
		var data []byte
		if r.Size() > 0 {
			var err error
			if data, err = r.Slice.Bytes(nil); err != nil {
				r.Err = api.ErrKafkaStorageError
			}
		}
		release(parts)
		s.check()
		s.w.ledger.consumed(s, parts[0].Partition, offset, r, data)
		reply(r, data)
	}
	s.resolve(parts)
	got, settled := s.read(parts, &by, limits)
	if !settled && got == 0 && wait > 0 {
		release(parts)
		replica.AwaitFetch(parts, 1, wait, false, func() {
			by.Again = true
			s.read(parts, &by, limits)
			finish()
		})
		return
	}
	finish()
}

func rackOf(n int32) string { return "r" + strconv.Itoa(int(n%3)) }
