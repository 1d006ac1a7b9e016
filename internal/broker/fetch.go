package broker

import (
	"log/slog"
	"time"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/network"
	"gregor/internal/replica"
	"gregor/internal/security"
	"gregor/internal/uuid"
)

// fetchOp is one fetch request on its way; pooled like produceOp. It implements network.PartsResponse.
type fetchOp struct {
	b      *Broker
	r      *network.Request
	req    api.FetchRequest
	resp   api.FetchResponse
	ctx    replica.FetchContext
	wanted []replica.FetchPartition
	forgot []replica.FetchKey
	parts  []replica.FetchPartition
	denied []bool // by the place in parts, whether the client may not read the topic; empty without authorizer

	version   int16
	limits    replica.ReadLimits
	needBytes int
	// reader is who fetches; its follower is replica.NoFollower for consumers.
	reader replica.Reader
}

func (b *Broker) fetch(r *network.Request) {
	op := b.fetches.Get().(*fetchOp)
	if err := op.req.Decode(r.Version, r.Body); err != nil {
		op.release()
		r.Close(err)
		return
	}
	op.r, op.version = r, r.Version
	b.Traffic.FetchRequests.Add(1)
	cfg := b.config.Current()
	q := &op.req
	// From version 11 on a consumer says where it is, and may be served by any replica (KIP-392).
	op.reader = replica.Reader{Follower: q.ReplicaID, BrokerEpoch: q.ReplicaEpoch, AnyReplica: q.Version >= 11, Rack: string(q.Rack)}
	if q.ReplicaID < 0 {
		op.reader.Follower = replica.NoFollower
	}
	op.collect()
	op.ctx, op.parts = b.replicas.Sessions().Begin(b.clock.Now(), replica.FetchSessionRequest{
		SessionID: q.SessionID, Epoch: q.SessionEpoch, Privileged: q.ReplicaID >= 0, UsesTopicIDs: q.Version >= 13,
		Forgotten: op.forgot}, op.wanted, op.parts)
	op.limits = replica.ReadLimits{MaxBytes: int(min(q.MaxBytes, cfg.FetchMaxBytes)), MinOne: true}
	switch {
	case q.ReplicaID >= 0:
		op.limits.Isolation = log.ReadLogEnd
	case q.IsolationLevel == 1:
		op.limits.Isolation = log.ReadCommitted
	default:
		op.limits.Isolation = log.ReadUncommitted
	}
	op.needBytes = min(int(q.MinBytes), op.limits.MaxBytes)
	wait := time.Duration(q.MaxWaitMillis) * time.Millisecond
	unknownIsolation := q.IsolationLevel < 0 || q.IsolationLevel > 1
	// What was decoded points into the body; nothing below needs either, however long the fetch is parked.
	op.req.Reset()
	r.DropBody()
	if unknownIsolation {
		op.resp.Reset(op.version)
		op.resp.ErrorCode = api.CodeUnknownServerError
		if op.version < 13 {
			op.failAll(api.ErrUnknownServerError)
		}
		r.Reply(op)
		return
	}
	if op.ctx.Err() != nil {
		op.reply()
		return
	}
	op.resolve()
	if b.authorizer != nil {
		op.authorize()
	}
	got, settled := op.read()
	if settled || wait <= 0 || got >= op.needBytes || len(op.parts) == 0 {
		op.reply()
		return
	}
	b.Traffic.FetchParked.Add(1)
	// All is read again afterwards: no file need be held open meanwhile, however long that is.
	op.releaseResults()
	r.Park(replica.AwaitFetch(op.parts, int64(op.needBytes-got), wait, op.reader.Follower != replica.NoFollower, func() {
		op.reader.Again = true
		op.read()
		op.reply()
	}))
}

// collect turns the decoded request into what the session deals in. Names become strings here, once for each topic.
func (op *fetchOp) collect() {
	for i := range op.req.Topics {
		t := &op.req.Topics[i]
		name := op.topicName(t.Name, t.TopicID)
		for j := range t.Partitions {
			p := &t.Partitions[j]
			op.wanted = append(op.wanted, replica.FetchPartition{
				Key: replica.FetchKey{TopicID: t.TopicID, Topic: name, Partition: p.Partition},
				Spec: replica.FetchSpec{FetchOffset: p.FetchOffset, LogStartOffset: p.LogStartOffset,
					LeaderEpoch: p.CurrentLeaderEpoch, LastFetchedEpoch: p.LastFetchedEpoch, MaxBytes: p.MaxBytes}})
		}
	}
	for i := range op.req.Forgotten {
		t := &op.req.Forgotten[i]
		name := op.topicName(t.Name, t.TopicID)
		for _, p := range t.Partitions {
			op.forgot = append(op.forgot, replica.FetchKey{TopicID: t.TopicID, Topic: name, Partition: p})
		}
	}
}

// topicName is the name of a requested topic: "" for an id that is not known (yet).
func (op *fetchOp) topicName(name []byte, id uuid.UUID) string {
	if id == uuid.Zero {
		if t := op.b.replicas.Topic(name); t != nil {
			return t.Name()
		}
		return string(name)
	}
	if t := op.b.replicas.TopicByID(id); t != nil {
		return t.Name()
	}
	if t := op.b.image().Topics.ByID(id); t != nil {
		return t.Name
	}
	return ""
}

// resolve finds the replicas of the partitions that the session has not found before, or that are gone since.
func (op *fetchOp) resolve() {
	for i := range op.parts {
		p := &op.parts[i]
		if p.Partition != nil && !p.Partition.Gone() {
			continue
		}
		p.Partition = nil
		if p.Key.TopicID != uuid.Zero {
			// Looked up once: a partition without a name could be read by everybody.
			if t := op.b.replicas.TopicByID(p.Key.TopicID); t != nil {
				p.Key.Topic, p.Partition = t.Name(), t.Partition(p.Key.Partition)
			} else if p.Key.Topic == "" {
				p.Key.Topic = op.topicName(nil, p.Key.TopicID)
			}
		} else {
			p.Partition = op.b.replicas.Topic([]byte(p.Key.Topic)).Partition(p.Key.Partition)
		}
	}
}

// authorize finds out which partitions the client may not read. Followers may read all or nothing.
func (op *fetchOp) authorize() {
	op.denied = append(op.denied, make([]bool, len(op.parts))...)
	follower := op.reader.Follower != replica.NoFollower
	allowed := follower && op.b.allowsCluster(op.r, security.ClusterAction)
	last := ""
	for i := range op.parts {
		// Neighbours are mostly of one topic.
		if topic := op.parts[i].Key.Topic; !follower && (i == 0 || topic != last) {
			last = topic
			allowed = topic == "" || op.b.allowsTopic(op.r, security.Read, topic)
		}
		op.denied[i] = !allowed
	}
}

// read reads all partitions within the limits. It returns the bytes found, and whether the fetch must be answered at once
// however little that is: after an error, or when a client has to be told something else than records.
func (op *fetchOp) read() (got int, settled bool) {
	limits := op.limits
	for i := range op.parts {
		p := &op.parts[i]
		refused := (*api.Error)(nil)
		switch {
		case len(op.denied) > 0 && op.denied[i]:
			refused = api.ErrTopicAuthorizationFailed
		case p.Partition == nil:
			refused = op.b.missingInFetch(p.Key)
		}
		if refused != nil {
			p.Result = replica.FetchResult{Err: refused, HighWatermark: -1, LastStableOffset: -1,
				LogStartOffset: -1, PreferredReadReplica: -1}
			settled = true
			continue
		}
		p.Partition.Read(p.Spec, &op.reader, limits, &p.Result)
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

func (op *fetchOp) releaseResults() {
	for i := range op.parts {
		op.parts[i].Result.Release()
	}
}

// failAll answers all that was asked for with an error.
func (op *fetchOp) failAll(err *api.Error) {
	var topic *api.FetchTopicResponse
	for i, p := range op.wanted {
		if i == 0 || op.wanted[i-1].Key.Topic != p.Key.Topic {
			topic = op.resp.AddTopic(p.Key.Topic, p.Key.TopicID)
		}
		out := topic.Add(p.Key.Partition)
		out.ErrorCode, out.HighWatermark, out.LastStableOffset, out.LogStartOffset, out.PreferredReadReplica = err.Code, -1, -1, -1, -1
		out.AbortedTransactions = []api.AbortedTransaction{}
	}
}

// reply builds the response from the results and sends it.
func (op *fetchOp) reply() {
	op.resp.Reset(op.version)
	id, err := op.ctx.Finish(op.b.clock.Now(), op.parts)
	op.resp.SessionID = id
	if err != nil {
		op.resp.ErrorCode = err.Code
		op.releaseResults()
		op.r.Reply(op)
		return
	}
	var topic *api.FetchTopicResponse
	var last replica.FetchKey
	var bytes int64
	throttled := 0
	for i := range op.parts {
		p := &op.parts[i]
		if !p.Result.Send {
			p.Result.Release()
			continue
		}
		// Neighbours of one topic share its entry; the order of the partitions is the session's.
		if topic == nil || last.TopicID != p.Key.TopicID || last.Topic != p.Key.Topic {
			topic = op.resp.AddTopic(p.Key.Topic, p.Key.TopicID)
			last = p.Key
		}
		n := p.Result.Size()
		bytes += int64(n)
		if n > 0 && op.reader.Follower != replica.NoFollower && p.Partition.LeaderThrottled() {
			throttled += n
		}
		op.fill(topic.Add(p.Key.Partition), p)
	}
	op.b.Traffic.BytesOut.Add(bytes)
	op.b.replicas.Served(throttled)
	op.r.Reply(op)
}

func (op *fetchOp) fill(out *api.FetchPartitionResponse, p *replica.FetchPartition) {
	res := &p.Result
	out.HighWatermark, out.LastStableOffset, out.LogStartOffset = res.HighWatermark, res.LastStableOffset, res.LogStartOffset
	out.PreferredReadReplica = res.PreferredReadReplica
	if op.limits.Isolation == log.ReadCommitted && res.Err == nil {
		out.AbortedTransactions = make([]api.AbortedTransaction, 0, len(res.Aborted))
		for _, a := range res.Aborted {
			out.AbortedTransactions = append(out.AbortedTransactions, api.AbortedTransaction{ProducerID: a.ProducerID, FirstOffset: a.FirstOffset})
		}
	}
	if res.Diverging != nil {
		out.DivergingEpoch = &api.EpochEndOffset{Epoch: res.Diverging.Epoch, EndOffset: res.Diverging.EndOffset}
	}
	if res.Err != nil {
		op.fail(out, p, res.Err)
		return
	}
	if res.Size() > 0 {
		out.Records = res.Records()
	}
}

func (op *fetchOp) fail(out *api.FetchPartitionResponse, p *replica.FetchPartition, err *api.Error) {
	op.b.Traffic.FailedFetches.Add(1)
	out.ErrorCode = err.Code
	if err == api.ErrUnknownTopicOrPartition || err == api.ErrUnknownTopicID || err == api.ErrTopicAuthorizationFailed {
		// Kafka answers these before it comes to read, with an empty list where a read has none.
		out.AbortedTransactions = []api.AbortedTransaction{}
	}
	switch {
	case err == api.ErrKafkaStorageError && op.version <= 5:
		// Clients of that age do not know the code.
		out.ErrorCode = api.ErrNotLeaderOrFollower.Code
	case err == api.ErrUnknownServerError:
		op.b.logger.Error("fetch", slog.String("topic", p.Key.Topic), slog.Int("partition", int(p.Key.Partition)), slog.Any("err", err))
	case op.version >= 16 && (err == api.ErrNotLeaderOrFollower || err == api.ErrFencedLeaderEpoch):
		le, node := op.b.leader(op.r, op.b.topicByNameOrID(p.Key.Topic, p.Key.TopicID), p.Key.Partition)
		out.CurrentLeader = &le
		if node != nil && op.reader.Follower == replica.NoFollower {
			op.resp.NodeEndpoints = addNode(op.resp.NodeEndpoints, *node)
		}
	}
}

// missingInFetch is the error for a partition of which this broker has no replica.
func (b *Broker) missingInFetch(k replica.FetchKey) *api.Error {
	if k.Topic == "" {
		return api.ErrUnknownTopicID
	}
	topic := b.topicByNameOrID(k.Topic, k.TopicID)
	if topic.Partition(k.Partition) == nil {
		return api.ErrUnknownTopicOrPartition
	}
	return api.ErrorFor(api.CodeOf(b.missingReplica(k.Topic, k.Partition)))
}

// AppendTo encodes a response that has no file ranges.
func (op *fetchOp) AppendTo(dst []byte) []byte {
	dst, _ = op.AppendParts(dst, nil)
	return dst
}

// AppendParts encodes the response, after which the operation goes back to its pool. The ranges are the network's to release.
func (op *fetchOp) AppendParts(dst []byte, parts []network.Part) ([]byte, []network.Part) {
	dst, parts = op.resp.AppendParts(dst, parts)
	op.release()
	return dst, parts
}

func (op *fetchOp) release() {
	b := op.b
	op.req.Reset()
	clear(op.wanted)
	clear(op.forgot)
	clear(op.parts)
	*op = fetchOp{b: b, req: op.req, resp: op.resp, wanted: op.wanted[:0], forgot: op.forgot[:0], parts: op.parts[:0],
		denied: op.denied[:0]}
	b.fetches.Put(op)
}
