package client

import (
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// coreOffsets finds out where to begin in partitions, and whether a position is still in the log of a new leader.
type coreOffsets struct {
	k        *core
	asking   bool // for committed offsets
	queries  []*committedQuery
	retryAll retryTimer
}

// committedQuery is the caller's question for committed offsets.
type committedQuery struct {
	ticket *ticket
	tps    []TopicPartition
	sent   bool
}

func (o *coreOffsets) tick() {
	k := o.k
	var committed []*part
	reset, validate := map[int32][]*part{}, map[int32][]*part{}
	for _, p := range k.sorted() {
		if p.busy || p.awaiting || p.revoking || p.state == positionFailed {
			continue
		}
		if p.state == positionReady && !o.doubtful(p) || !k.due(p.retryAt) {
			continue
		}
		if p.state == positionCommitted {
			committed = append(committed, p)
			continue
		}
		_, mp := k.meta.partition(p.tp)
		switch {
		case mp == nil:
		case p.state == positionReset:
			reset[mp.Leader] = append(reset[mp.Leader], p)
		case p.state == positionValidate:
			validate[mp.Leader] = append(validate[mp.Leader], p)
		}
	}
	o.askCommitted(committed)
	for _, node := range sortedKeys(reset) {
		o.askOffsets(node, reset[node])
	}
	for _, node := range sortedKeys(validate) {
		o.askEpochs(node, validate[node])
	}
	o.askQueries()
}

// doubtful says whether a position has to be looked at because the partition has a new leader, whose log may be shorter.
func (o *coreOffsets) doubtful(p *part) bool {
	t := o.k.meta.topics[p.tp.Topic]
	if t == nil || int(p.tp.Partition) >= len(t.Partitions) {
		return false
	}
	mp := &t.Partitions[p.tp.Partition]
	if mp.Leader < 0 || mp.LeaderEpoch <= p.checked {
		return false
	}
	if p.epoch < 0 {
		p.checked = mp.LeaderEpoch // nothing to compare with
		return false
	}
	if p.epoch >= mp.LeaderEpoch {
		p.checked = mp.LeaderEpoch
		return false
	}
	p.state = positionValidate
	return true
}

func (o *coreOffsets) askCommitted(parts []*part) {
	k := o.k
	if len(parts) == 0 || o.asking {
		return
	}
	if k.o.Group == "" {
		for _, p := range parts {
			o.k.outOfRange(p, fmt.Errorf("partition %v: there is no group that could have an offset", p.tp))
		}
		return
	}
	node, ok := k.coord.get()
	if !ok || !o.retryAll.due(k) {
		return
	}
	var tps []TopicPartition
	for _, p := range parts {
		tps = append(tps, p.tp)
		p.busy = true
	}
	o.asking = true
	o.fetchCommitted(node, tps, func(got []CommittedOffset, err error) {
		o.asking = false
		if err != nil {
			for _, p := range parts {
				p.busy = false
			}
			o.refused(err)
			return
		}
		o.retryAll = retryTimer{}
		answered := map[TopicPartition]CommittedOffset{}
		for _, c := range got {
			answered[c.TopicPartition] = c
		}
		for _, p := range parts {
			c, ok := answered[p.tp]
			switch {
			case k.parts[p.tp] != p:
			case ok && c.Err != nil:
				k.retry(p, c.Err)
			case ok && c.Offset >= 0:
				p.offset, p.epoch, p.consumed, p.consumedEpoch, p.committed = c.Offset, c.LeaderEpoch, c.Offset, c.LeaderEpoch, c.Offset
				k.positioned(p)
			default:
				k.outOfRange(p, fmt.Errorf("partition %v: group %q has no committed offset, and the policy is not to choose one", p.tp, k.o.Group))
			}
		}
	})
}

// refused deals with an error of a query for committed offsets.
func (o *coreOffsets) refused(err error) {
	o.k.coord.failed(err)
	code, known := Code(err)
	o.retryAll.again(o.k)
	// A member whose epoch is behind, or who was thrown out, learns that from its next heartbeat.
	if !Retriable(err) && !(known && (code == staleMemberEpoch || code == UnknownMemberID.Code)) {
		o.k.fail(fmt.Errorf("committed offsets of group %q: %w", o.k.o.Group, err))
	}
}

func (o *coreOffsets) fetchCommitted(node int32, tps []TopicPartition, then func([]CommittedOffset, error)) {
	req := offsetFetchRequest(o.k.o.Group, tps, o.k.o.ReadCommitted)
	if who := o.k.identity(); o.k.o.Protocol == ConsumerProtocol && o.k.member != nil {
		req.Groups[0].MemberID, req.Groups[0].MemberEpoch = &who.id, who.generation
	}
	var got []CommittedOffset
	o.k.send(effectSend{node: node, lane: laneGroup, req: req, highest: 9}, func(resp kmsg.Response, err error) {
		_, err = respondError(resp, err, func(r *kmsg.OffsetFetchResponse) error {
			var err error
			got, err = committedOf(r)
			return err
		})
		then(got, err)
	})
}

// committed takes the caller's question.
func (o *coreOffsets) committed(e eventCommitted) {
	if o.k.o.Group == "" {
		o.k.emit(effectDone{e.ticket, errNoGroup})
		return
	}
	o.queries = append(o.queries, &committedQuery{ticket: e.ticket, tps: e.tps})
}

// refuse fails the caller's questions that wait, because there's no coordinator that would answer.
func (o *coreOffsets) refuse(err error) {
	o.queries = slices.DeleteFunc(o.queries, func(q *committedQuery) bool {
		if !q.sent {
			o.k.emit(effectDone{q.ticket, err})
		}
		return !q.sent
	})
}

func (o *coreOffsets) askQueries() {
	for _, q := range o.queries {
		if q.sent {
			continue
		}
		node, ok := o.k.coord.get()
		if !ok || !o.retryAll.due(o.k) {
			return
		}
		q.sent = true
		o.fetchCommitted(node, q.tps, func(got []CommittedOffset, err error) {
			o.k.coord.failed(err)
			if err != nil && Retriable(err) {
				o.retryAll.again(o.k)
				q.sent = false // whoever asked gives up when his context ends
				return
			}
			for i, x := range o.queries {
				if x == q {
					o.queries = append(o.queries[:i:i], o.queries[i+1:]...)
					break
				}
			}
			q.ticket.offsets = got
			o.k.emit(effectDone{q.ticket, err})
		})
	}
}

// askOffsets asks a leader for the offsets that partitions are to be reset to.
func (o *coreOffsets) askOffsets(node int32, parts []*part) {
	k := o.k
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	if k.o.ReadCommitted {
		req.IsolationLevel = 1
	}
	for _, p := range parts {
		_, mp := k.meta.partition(p.tp)
		p.busy, p.checked = true, mp.LeaderEpoch
		if n := len(req.Topics); n == 0 || req.Topics[n-1].Topic != p.tp.Topic {
			rt := kmsg.NewListOffsetsRequestTopic()
			rt.Topic = p.tp.Topic
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.CurrentLeaderEpoch, rp.Timestamp = p.tp.Partition, mp.LeaderEpoch, p.reset
		rt := &req.Topics[len(req.Topics)-1]
		rt.Partitions = append(rt.Partitions, rp)
	}
	k.send(effectSend{node: node, req: req}, func(resp kmsg.Response, err error) {
		r, err := respondError(resp, err, func(*kmsg.ListOffsetsResponse) error { return nil })
		answers := map[TopicPartition]*kmsg.ListOffsetsResponseTopicPartition{}
		if err == nil {
			for _, t := range r.Topics {
				for i := range t.Partitions {
					answers[TopicPartition{t.Topic, t.Partitions[i].Partition}] = &t.Partitions[i]
				}
			}
		}
		for _, p := range parts {
			if k.parts[p.tp] != p {
				continue
			}
			a := answers[p.tp]
			perr := err
			if perr == nil && a == nil {
				perr = unanswered(p.tp)
			} else if perr == nil {
				perr = errorOf(a.ErrorCode, nil)
			}
			switch {
			case perr != nil:
				k.retry(p, perr)
			case a.Offset < 0 && p.reset >= 0:
				p.busy, p.reset = false, Latest // no record that late
			case a.Offset < 0:
				k.retry(p, unanswered(p.tp))
			default:
				p.offset, p.epoch, p.consumed, p.consumedEpoch = a.Offset, -1, a.Offset, -1
				k.positioned(p)
			}
		}
	})
}

func unanswered(tp TopicPartition) error {
	return &errConn{"ask about", tp.String(), fmt.Errorf("no answer for the partition")}
}

// askEpochs asks a leader where the epochs of positions end in its log.
func (o *coreOffsets) askEpochs(node int32, parts []*part) {
	k := o.k
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = -1
	epochs := map[*part]int32{}
	for _, p := range parts {
		_, mp := k.meta.partition(p.tp)
		p.busy, epochs[p] = true, mp.LeaderEpoch
		if n := len(req.Topics); n == 0 || req.Topics[n-1].Topic != p.tp.Topic {
			rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
			rt.Topic = p.tp.Topic
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		rp.Partition, rp.CurrentLeaderEpoch, rp.LeaderEpoch = p.tp.Partition, mp.LeaderEpoch, p.epoch
		rt := &req.Topics[len(req.Topics)-1]
		rt.Partitions = append(rt.Partitions, rp)
	}
	k.send(effectSend{node: node, req: req}, func(resp kmsg.Response, err error) {
		r, err := respondError(resp, err, func(*kmsg.OffsetForLeaderEpochResponse) error { return nil })
		answers := map[TopicPartition]*kmsg.OffsetForLeaderEpochResponseTopicPartition{}
		if err == nil {
			for _, t := range r.Topics {
				for i := range t.Partitions {
					answers[TopicPartition{t.Topic, t.Partitions[i].Partition}] = &t.Partitions[i]
				}
			}
		}
		for _, p := range parts {
			if k.parts[p.tp] != p {
				continue
			}
			a := answers[p.tp]
			perr := err
			if perr == nil && a == nil {
				perr = unanswered(p.tp)
			} else if perr == nil {
				perr = errorOf(a.ErrorCode, nil)
			}
			if code, known := Code(perr); known && (code == topicAuthorizationFailed || code == unsupportedForFormat || code == UnsupportedVersion.Code) {
				// Without this the position is believed, as it always was.
				perr, a = nil, nil
			}
			switch {
			case perr != nil:
				k.retry(p, perr)
			case a == nil:
				p.state, p.busy, p.checked = positionReady, false, epochs[p]
			default:
				p.checked = epochs[p]
				o.validated(p, a.EndOffset, a.LeaderEpoch)
			}
		}
	})
}

const (
	topicAuthorizationFailed = 29
	unsupportedForFormat     = 43
)

// validated compares a position with where its epoch ends in the leader's log. If it ends before the position, records that were
// read, or were about to be, are gone.
func (o *coreOffsets) validated(p *part, end int64, epoch int32) {
	k := o.k
	p.state, p.busy, p.failures = positionReady, false, 0
	if end >= p.offset && epoch >= 0 {
		return
	}
	err := &TruncationError{TopicPartition: p.tp, Offset: p.offset, LeaderEpoch: p.epoch, DivergentOffset: end}
	k.log.Warn("log was truncated", "partition", p.tp.String(), "offset", p.offset, "epoch", p.epoch, "end", end, "endEpoch", epoch)
	if end < 0 || epoch < 0 || k.o.Reset == ResetNone {
		k.outOfRange(p, err)
		return
	}
	k.emit(effectPurge{[]TopicPartition{p.tp}})
	k.seek(p.tp, end, epoch)
	k.parts[p.tp].checked = p.checked
}

// retryTimer is a pause that doubles.
type retryTimer struct {
	failures int
	at       time.Time
}

func (r *retryTimer) again(k *core) {
	r.at = k.now.Add(k.backoff(r.failures))
	r.failures++
}

func (r *retryTimer) due(k *core) bool { return k.due(r.at) }
