package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/network"
	"gregor/internal/record"
	"gregor/internal/replica"
	"gregor/internal/security"
)

// adminClientID is the client id whose holders may write to internal topics, as in Kafka.
const adminClientID = "__admin_client"

// produceOp is one produce request on its way. It is pooled: it holds what decoding, appending and replying need, and goes
// back once its response is encoded. It implements network.Response.
type produceOp struct {
	b    *Broker
	r    *network.Request
	req  api.ProduceRequest
	resp api.ProduceResponse
	// appended are the partitions that grew, in the order of the request, with the place of their result.
	appended []appended
	failed   bool
}

type appended struct {
	partition   *replica.Partition
	leaderEpoch int32 // of the append
	end         int64
	// topic and index say where in resp the partition's result stands.
	topic, index int
}

func (b *Broker) produce(r *network.Request) {
	op := b.produces.Get().(*produceOp)
	if err := op.req.Decode(r.Version, r.Body); err != nil {
		op.release()
		r.Close(err)
		return
	}
	op.r = r
	op.resp.Reset(r.Version)
	b.Traffic.ProduceRequests.Add(1)
	cfg := b.config.Current()
	refused := b.authorizer != nil && op.transactionRefused()
	for i := range op.req.Topics {
		if refused {
			op.refuse(&op.req.Topics[i], api.ErrTransactionalIDAuthorizationFailed)
			continue
		}
		op.topic(&op.req.Topics[i], cfg.ValidateHeaderOnly)
	}
	for _, a := range op.appended {
		a.partition.Wake()
	}
	switch {
	case op.req.Acks == 0:
		failed := op.failed
		op.release()
		if failed {
			// There is no reply to carry the error, so the producer learns of it by its connection.
			r.Close(errors.New("produce with acks=0 failed"))
			return
		}
		r.NoReply()
	case cfg.AcksFlush && len(op.appended) > 0 || op.req.Acks == -1 && op.waits():
		op.await(time.Duration(op.req.TimeoutMillis)*time.Millisecond, cfg.AcksFlush)
	default:
		r.Reply(op)
	}
}

// mayWrite says whether the client may write to a topic, which is nil if there is none here. It may try to if its id is unknown.
func (op *produceOp) mayWrite(topic *replica.Topic, t *api.ProduceTopic) bool {
	name := string(t.Name)
	if topic != nil {
		name = topic.Name() // the image may not have it yet
	} else if op.req.Version >= 13 {
		elsewhere := op.b.image().Topics.ByID(t.TopicID)
		if elsewhere == nil {
			return true
		}
		name = elsewhere.Name
	}
	return op.b.allowsTopic(op.r, security.Write, name)
}

// transactionRefused says whether the request writes to a transaction that is not the client's.
func (op *produceOp) transactionRefused() bool {
	if op.req.TransactionalID == nil || op.b.allows(op.r, security.Write, security.TransactionalID, string(op.req.TransactionalID)) {
		return false
	}
	for i := range op.req.Topics {
		for j := range op.req.Topics[i].Partitions {
			if batch, err := checkProduced(op.req.Topics[i].Partitions[j].Records, op.req.Version); err == nil && batch.IsTransactional() {
				return true
			}
		}
	}
	return false
}

// refuse answers all that the request holds for one topic with an error.
func (op *produceOp) refuse(t *api.ProduceTopic, err *api.Error) {
	out := op.resp.AddTopic(string(t.Name), t.TopicID)
	for i := range t.Partitions {
		op.fail(t, out.Add(t.Partitions[i].Index), log.AppendInfo{LogStartOffset: -1}, err)
	}
}

// topic appends what the request holds for one topic.
func (op *produceOp) topic(t *api.ProduceTopic, headerOnly bool) {
	b := op.b
	var topic *replica.Topic
	if op.req.Version >= 13 {
		topic = b.replicas.TopicByID(t.TopicID)
	} else {
		topic = b.replicas.Topic(t.Name)
	}
	var out *api.ProduceTopicResponse
	if b.authorizer != nil && !op.mayWrite(topic, t) {
		op.refuse(t, api.ErrTopicAuthorizationFailed)
		return
	}
	if topic != nil {
		out = op.resp.AddTopic(topic.Name(), t.TopicID)
	} else {
		out = op.resp.AddTopic(string(t.Name), t.TopicID)
	}
	for i := range t.Partitions {
		p := out.Add(t.Partitions[i].Index)
		info, part, err := op.append(topic, t, &t.Partitions[i], headerOnly)
		if err != nil {
			op.fail(t, p, info, err)
			continue
		}
		p.BaseOffset, p.LogStartOffset, p.LogAppendTimeMs = info.FirstOffset, info.LogStartOffset, info.LogAppendTime
		if info.Duplicate {
			// Kafka answers a duplicate with the maximum timestamp of the batch that it has.
			p.LogAppendTimeMs = info.MaxTimestamp
		} else {
			b.Traffic.MessagesIn.Add(int64(info.Records))
			b.Traffic.BytesIn.Add(int64(info.Bytes))
		}
		op.appended = append(op.appended, appended{partition: part, leaderEpoch: info.LeaderEpoch, end: info.LastOffset + 1,
			topic: len(op.resp.Topics) - 1, index: len(out.Partitions) - 1})
	}
}

func (op *produceOp) append(topic *replica.Topic, t *api.ProduceTopic, p *api.ProducePartition, headerOnly bool) (
	log.AppendInfo, *replica.Partition, error) {
	none := log.AppendInfo{LogStartOffset: -1}
	part := topic.Partition(p.Index)
	if part == nil {
		err := op.b.missing(t.Name, t.TopicID, p.Index)
		return none, nil, err
	}
	batch, err := checkProduced(p.Records, op.req.Version)
	if err != nil {
		return none, nil, err
	}
	if op.req.Acks < -1 || op.req.Acks > 1 {
		return none, nil, api.ErrInvalidRequiredAcks
	}
	if isInternalTopic(topic.Name()) && op.r.ClientID != adminClientID {
		return none, nil, api.ErrInvalidTopicException
	}
	if batch.IsTransactional() {
		if op.req.TransactionalID == nil {
			// Who writes to a transaction must say to which, or Kafka cannot ask whether he may.
			return none, nil, api.ErrTransactionalIDAuthorizationFailed
		}
		// A transactional write is accepted once the transaction coordinator has vouched for it (KIP-890), and there is none.
		return none, nil, api.ErrInvalidTxnState
	}
	validation := log.Strict
	if headerOnly {
		validation = log.Header
	}
	info, err := part.Append(batch, replica.AppendOptions{
		Origin: log.Client, RequiredAcks: op.req.Acks, LeaderEpoch: -1, Validation: validation, TransactionVersion: op.b.transactionVersion()})
	return info, part, err
}

// checkProduced does the checks that come before the partition is even looked at (Kafka's ProduceRequest.validateRecords), and
// returns the one batch that is to be appended.
func checkProduced(records []byte, version int16) (record.Batch, error) {
	batch, err := record.Single(records, version)
	switch {
	case errors.Is(err, record.ErrCorrupt):
		// The bytes where the size and the magic should be have neither.
		if e, ok := errors.AsType[*record.Error](err); ok {
			return nil, api.WithMessage(api.ErrCorruptMessage, "%s", strings.ToUpper(e.Message[:1])+e.Message[1:])
		}
		return nil, api.ErrCorruptMessage
	case err != nil:
		return nil, fmt.Errorf("%w: %w", err, api.ErrInvalidRecord)
	case batch.Codec() == record.Zstd && version < 7:
		return nil, api.ErrUnsupportedCompressionType
	case batch.Codec() > record.Zstd && version < 7:
		return nil, api.ErrUnknownServerError
	}
	return batch, nil
}

// fail writes the result of a partition that could not be appended to.
func (op *produceOp) fail(t *api.ProduceTopic, p *api.ProducePartitionResponse, info log.AppendInfo, err error) {
	op.failed = true
	op.b.Traffic.FailedProduces.Add(1)
	p.ErrorCode = api.CodeOf(err)
	p.LogStartOffset = op.failedLogStart(err, info)
	if invalid, ok := errors.AsType[*log.InvalidRecordError](err); ok {
		msg := api.MessageOf(err)
		p.ErrorMessage = &msg
		for _, e := range invalid.Records {
			p.RecordErrors = append(p.RecordErrors, api.RecordError{BatchIndex: e.BatchIndex, Message: &e.Message})
		}
	}
	if errors.Is(err, api.ErrCorruptMessage) && info.LogStartOffset < 0 {
		if msg := api.MessageOf(err); msg != api.ErrCorruptMessage.Message {
			p.ErrorMessage = &msg
		}
	}
	if p.ErrorCode == api.CodeUnknownServerError {
		op.b.logger.Error("append", slog.String("topic", string(t.Name)), slog.Int("partition", int(p.Index)), slog.Any("err", err))
	}
	if p.ErrorCode == api.ErrNotLeaderOrFollower.Code && op.req.Version >= 10 {
		le, node := op.b.leader(op.r, op.b.topicByNameOrID(string(t.Name), t.TopicID), p.Index)
		p.CurrentLeader = &le
		if node != nil {
			op.resp.NodeEndpoints = addNode(op.resp.NodeEndpoints, *node)
		}
	}
}

// failedLogStart is -1 for the errors that Kafka takes for ordinary, and the log's start for those that it does not expect.
func (op *produceOp) failedLogStart(err error, info log.AppendInfo) int64 {
	for _, ordinary := range []*api.Error{api.ErrUnknownTopicOrPartition, api.ErrNotLeaderOrFollower, api.ErrMessageTooLarge,
		api.ErrRecordListTooLarge, api.ErrCorruptMessage, api.ErrKafkaStorageError} {
		if errors.Is(err, ordinary) {
			return -1
		}
	}
	return info.LogStartOffset
}

func addNode(nodes []api.NodeEndpoint, n api.NodeEndpoint) []api.NodeEndpoint {
	for _, o := range nodes {
		if o.NodeID == n.NodeID {
			return nodes
		}
	}
	return append(nodes, n)
}

// waits says whether some append isn't known to be committed.
func (op *produceOp) waits() bool {
	for _, a := range op.appended {
		if !a.partition.Committed(a.leaderEpoch, a.end) {
			return true
		}
	}
	return false
}

// await parks the reply until the high watermarks have passed and, with flush, the records are on disk.
func (op *produceOp) await(timeout time.Duration, flush bool) {
	wait := replica.NewAckOp(len(op.appended), func(errs []*api.Error) {
		for i, err := range errs {
			if err != nil {
				a := op.appended[i]
				p := &op.resp.Topics[a.topic].Partitions[a.index]
				// The outcome is unknown to the producer, so no offset is told.
				p.ErrorCode, p.BaseOffset, p.LogAppendTimeMs, p.LogStartOffset = err.Code, -1, -1, -1
			}
		}
		op.r.Reply(op)
	})
	// The names in the decoded request lie in the body, which is not needed any more; resp holds strings of its own.
	all := op.req.Acks == -1
	r := op.r // op may be another request's as soon as the wait has started
	op.req.Reset()
	op.r.DropBody()
	for i, a := range op.appended {
		if all {
			wait.Wait(i, a.partition, a.leaderEpoch, a.end)
		}
		if flush {
			wait.WaitFlush(i, a.partition)
		}
	}
	wait.Start(timeout)
	r.Park(wait)
}

// AppendTo encodes the response, after which the operation goes back to its pool.
func (op *produceOp) AppendTo(dst []byte) []byte {
	dst = op.resp.AppendTo(dst)
	op.release()
	return dst
}

func (op *produceOp) release() {
	b := op.b
	op.req.Reset()
	clear(op.appended)
	*op = produceOp{b: b, req: op.req, resp: op.resp, appended: op.appended[:0]}
	b.produces.Put(op)
}
