package client

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
)

// producerNode is a broker that batches go to: one goroutine builds and writes requests, another takes the answers, both in
// order.
type producerNode struct {
	id       int32
	inFlight int // guarded by the producer's mu
	requests chan *produceRequest
	written  chan *produceRequest
}

// produceRequest is a request under way.
type produceRequest struct {
	batches []*flight
	req     *kmsg.ProduceRequest
	conn    *conn
	call    *call
	err     error // nothing was written
	names   map[UUID]string
}

// flight is a batch under way.
type flight struct {
	q *partitionQueue
	b *batch
}

// run decides what is sent when.
func (p *Producer) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(p.sendReady(time.Now()))
		select {
		case <-p.wake:
		case <-timer.C:
		case <-p.ctx.Done():
			p.failAll(ErrClosed)
			return
		}
	}
}

// sendReady hands what is ready to the brokers' goroutines and returns how long nothing else will be.
func (p *Producer) sendReady(now time.Time) time.Duration {
	next := time.Hour
	p.mu.Lock()
	defer p.mu.Unlock()
	byNode := map[int32]*produceRequest{}
	sizes := map[int32]int{}
	missing := map[string]struct{}{}
	for again := true; again; {
		again = false
		for q := range p.active {
			at, ok := p.readyAt(q, now)
			if !ok {
				continue
			}
			if wait := at.Sub(now); wait > 0 {
				next = min(next, wait)
				continue
			}
			part := p.leaderOf(q, missing)
			if part == nil || !p.mayBegin(q, now, &next) {
				continue
			}
			n := p.nodes[part.Leader]
			r := byNode[part.Leader]
			if r == nil {
				if n != nil && n.inFlight >= p.o.MaxInFlight {
					continue
				}
				r = &produceRequest{}
				byNode[part.Leader] = r
			} else if slices.ContainsFunc(r.batches, func(f *flight) bool { return f.q == q }) {
				continue // one batch of a partition in a request
			}
			b := q.queue[0]
			if len(r.batches) > 0 && sizes[part.Leader]+b.builder.Len() > p.o.RequestBytes {
				continue
			}
			sizes[part.Leader] += b.builder.Len()
			p.begin(q, b)
			r.batches = append(r.batches, &flight{q, b})
		}
		for node, r := range byNode {
			p.hand(node, r)
			delete(byNode, node)
			delete(sizes, node)
			again = true // there may be more for another request
		}
	}
	if len(missing) > 0 {
		p.lookUp(missing)
	}
	return next
}

// readyAt says when a partition's first batch may go; ok is false if that depends on something else. mu is held.
func (p *Producer) readyAt(q *partitionQueue, now time.Time) (time.Time, bool) {
	if len(q.queue) == 0 {
		if len(q.inFlight) == 0 {
			delete(p.active, q)
		}
		return time.Time{}, false
	}
	b := q.queue[0]
	if deadline := b.born.Add(p.o.DeliveryTimeout); !now.Before(deadline) {
		p.expire(q)
		return time.Time{}, false
	}
	if q.broken {
		if len(q.inFlight) > 0 {
			return time.Time{}, false
		}
		p.renumber(q)
	}
	switch {
	case len(q.inFlight) >= p.o.MaxInFlight:
		return time.Time{}, false
	case !p.o.DisableIdempotence && q.acked < 0 && len(q.inFlight) > 0:
		// A broker that doesn't know the producer yet takes any sequence number: were the first batch refused, the second would be
		// taken in its place.
		return time.Time{}, false
	case b.sequence >= 0 && len(q.inFlight) > 0 && before(q.inFlight[0].sequence, b.sequence):
		return time.Time{}, false // tried again one by one, in order
	}
	at := q.notBefore
	if p.flushing == 0 && p.blocked == 0 && !b.closed && len(q.queue) == 1 && b.builder.Len() < p.o.BatchBytes && p.o.Linger > 0 {
		if lingers := b.born.Add(p.o.Linger); lingers.After(at) {
			at = lingers
		}
	}
	if deadline := b.born.Add(p.o.DeliveryTimeout); at.After(deadline) {
		at = deadline
	}
	return at, true
}

// before compares sequence numbers of batches that are close to each other.
func before(a, b int32) bool {
	return a >= 0 && b >= 0 && (b-a)&(1<<31-1) < 1<<30 && a != b
}

// leaderOf is a partition's leader; if there's none it is looked for. mu is held.
func (p *Producer) leaderOf(q *partitionQueue, missing map[string]struct{}) *Partition {
	if t, ok := p.c.meta.get(q.tp.Topic); ok && int(q.tp.Partition) < len(t.Partitions) {
		if part := &t.Partitions[q.tp.Partition]; part.Leader >= 0 {
			return part
		}
	}
	missing[q.tp.Topic] = struct{}{}
	return nil
}

// lookUp refreshes topics. mu is held.
func (p *Producer) lookUp(topics map[string]struct{}) {
	if p.looking {
		return
	}
	p.looking = true
	p.wg.Go(func() {
		for name := range topics {
			t, err := p.c.topicInfo(p.ctx, name, false)
			if err == nil && slices.ContainsFunc(t.Partitions, func(p Partition) bool { return p.Leader < 0 }) {
				p.c.meta.invalidate()
			}
			if err != nil {
				p.c.o.Logger.Debug("topic can't be found", "topic", name, "err", err)
			}
		}
		sleep(p.ctx, p.c.backoff(0))
		p.mu.Lock()
		p.looking = false
		p.mu.Unlock()
		p.signal()
	})
}

// mayBegin makes sure of what a batch needs besides a leader: a producer id, and to be part of the transaction. mu is held.
func (p *Producer) mayBegin(q *partitionQueue, now time.Time, next *time.Duration) bool {
	if p.o.DisableIdempotence {
		return true
	}
	if !p.id.ok {
		if wait := p.idRetry.Sub(now); wait > 0 {
			*next = min(*next, wait)
		} else if p.o.TransactionalID == "" {
			p.getID()
		}
		return false
	}
	return p.o.TransactionalID == "" || p.txn.ready(p, q)
}

// getID gets the producer id that idempotence needs. mu is held.
func (p *Producer) getID() {
	if p.getting {
		return
	}
	p.getting = true
	p.wg.Go(func() {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = math.MaxInt32, -1, -1
		resp, err := exchange[*kmsg.InitProducerIDResponse](p.ctx, p.c, toAny, req)
		if err == nil {
			err = errorOf(resp.ErrorCode, nil)
		}
		p.mu.Lock()
		p.getting = false
		switch {
		case err == nil:
			p.id, p.idTries = producerID{resp.ProducerID, resp.ProducerEpoch, true}, 0
		case Retriable(err):
			p.idRetry = time.Now().Add(p.c.backoff(p.idTries))
			p.idTries++
		default:
			p.mu.Unlock()
			p.failAll(fmt.Errorf("get a producer id: %w", err))
			p.mu.Lock()
			p.idRetry = time.Now().Add(p.c.backoff(0))
		}
		p.mu.Unlock()
		p.signal()
	})
}

// begin takes a batch out of the queue and gives it its sequence numbers. mu is held.
func (p *Producer) begin(q *partitionQueue, b *batch) {
	q.queue = slices.Delete(q.queue, 0, 1)
	b.closed = true
	if !p.o.DisableIdempotence && b.sequence < 0 {
		// Another id only between batches: a batch that may be tried again must not follow one of another.
		if q.id != p.id && len(q.inFlight) == 0 && !slices.ContainsFunc(q.queue, func(b *batch) bool { return b.sequence >= 0 }) {
			q.id, q.sequence, q.acked = p.id, 0, -1
		}
		b.id, b.sequence = q.id, q.sequence
		q.sequence = record.IncrementSequence(q.sequence, int32(len(b.records)))
	}
	i := len(q.inFlight)
	for i > 0 && b.sequence >= 0 && before(b.sequence, q.inFlight[i-1].sequence) {
		i--
	}
	q.inFlight = slices.Insert(q.inFlight, i, b)
}

// renumber begins a new epoch in a partition: its batches get new sequence numbers. mu is held.
func (p *Producer) renumber(q *partitionQueue) {
	q.broken = false
	if p.id == q.id {
		p.bump()
	}
	for _, b := range q.queue {
		b.sequence, b.built, b.id = -1, nil, producerID{}
	}
	q.id, q.sequence, q.acked = producerID{}, 0, -1
	p.c.o.Logger.Info("producer begins a new epoch", "partition", q.tp.String(), "id", p.id.id, "epoch", p.id.epoch)
}

// expire fails a partition's first batch for its age. mu is held.
func (p *Producer) expire(q *partitionQueue) {
	b := q.queue[0]
	q.queue = slices.Delete(q.queue, 0, 1)
	p.finish(b)
	if b.sequence >= 0 {
		q.broken = true // it may have arrived: its sequence numbers must not be used again
	}
	err := fmt.Errorf("produce to %v: %w within %v: %w", q.tp, errDelivery, p.o.DeliveryTimeout, RequestTimedOut)
	p.txn.failed(err, p.o.TransactionalID)
	p.wg.Go(func() {
		p.tell(b, -1, -1, err)
		p.signal()
	})
}

// hand gives a request to a broker's goroutine. mu is held.
func (p *Producer) hand(node int32, r *produceRequest) {
	n := p.nodes[node]
	if n == nil {
		n = &producerNode{id: node, requests: make(chan *produceRequest, p.o.MaxInFlight), written: make(chan *produceRequest, p.o.MaxInFlight)}
		p.nodes[node] = n
		p.wg.Go(func() { p.writeTo(n) })
		p.wg.Go(func() { p.readFrom(n) })
	}
	n.inFlight++
	n.requests <- r // there is room: no more than MaxInFlight are under way
}

// writeTo builds and writes requests.
func (p *Producer) writeTo(n *producerNode) {
	defer close(n.written)
	for {
		select {
		case r := <-n.requests:
			p.write(n, r)
			n.written <- r
		case <-p.ctx.Done():
			for {
				select {
				case r := <-n.requests:
					r.err = ErrClosed
					n.written <- r
				default:
					return
				}
			}
		}
	}
}

func (p *Producer) write(n *producerNode, r *produceRequest) {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = p.o.Acks.wire(), p.c.timeoutMillis()
	to := target{node: n.id, purpose: p.lane}
	if p.o.TransactionalID != "" {
		req.TransactionID = &p.o.TransactionalID
		if !p.txn.v2.Load() {
			to.highest = 11 // 12 adds partitions to the transaction by itself (KIP-890)
		}
	}
	r.names = map[UUID]string{}
	topics := map[string]int{}
	for _, f := range r.batches {
		if err := f.b.build(); err != nil {
			r.err = err
			return
		}
		i, ok := topics[f.q.tp.Topic]
		if !ok {
			i = len(req.Topics)
			topics[f.q.tp.Topic] = i
			t := kmsg.ProduceRequestTopic{Topic: f.q.tp.Topic}
			if info, ok := p.c.meta.get(f.q.tp.Topic); ok {
				t.TopicID = info.ID
			}
			if t.TopicID == (UUID{}) && (to.highest == 0 || to.highest > 12) {
				to.highest = 12 // 13 names topics by id
			}
			r.names[t.TopicID] = t.Topic
			req.Topics = append(req.Topics, t)
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, kmsg.ProduceRequestTopicPartition{Partition: f.q.tp.Partition, Records: f.b.built})
	}
	r.req = req
	r.conn, _, r.err = p.c.connTo(p.ctx, to)
	if r.err != nil {
		return
	}
	if r.err = r.conn.choose(req, to.highest); r.err != nil {
		return
	}
	if r.err = r.conn.node.await(p.ctx); r.err != nil {
		return
	}
	if !p.follows(r) {
		r.err = &errConn{"produce to", r.conn.addr, errors.New("an earlier batch is not under way on this connection")}
		return
	}
	r.call, r.err = r.conn.send(req, p.c.o.RequestTimeout, p.o.Acks == NoAcks)
}

// follows says whether all earlier batches of a request's partitions that aren't done are under way on the same connection. What
// is sent on another one might overtake them, and a broker that hasn't heard of the producer would take it.
func (p *Producer) follows(r *produceRequest) bool {
	if p.o.DisableIdempotence {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range r.batches {
		for _, b := range f.q.inFlight {
			if b == f.b {
				break
			}
			if b.conn != r.conn {
				return false
			}
		}
		if len(f.q.queue) > 0 && before(f.q.queue[0].sequence, f.b.sequence) {
			return false
		}
	}
	for _, f := range r.batches {
		f.b.conn = r.conn
	}
	return true
}

// readFrom takes answers.
func (p *Producer) readFrom(n *producerNode) {
	for r := range n.written {
		var resp *kmsg.ProduceResponse
		err := r.err
		if err == nil && p.o.Acks != NoAcks {
			var body []byte
			if body, err = r.conn.wait(p.ctx, r.call); err == nil {
				resp = kmsg.NewPtrProduceResponse()
				err = r.conn.decode(r.req, resp, body)
			}
		}
		p.answered(n, r, resp, err)
	}
}

// answered sorts out what became of a request's batches.
func (p *Producer) answered(n *producerNode, r *produceRequest, resp *kmsg.ProduceResponse, err error) {
	answers := map[TopicPartition]*kmsg.ProduceResponseTopicPartition{}
	if resp != nil {
		for i := range resp.Topics {
			t := &resp.Topics[i]
			name := t.Topic
			if resp.Version >= 13 {
				name = r.names[t.TopicID]
			}
			for j := range t.Partitions {
				answers[TopicPartition{name, t.Partitions[j].Partition}] = &t.Partitions[j]
			}
		}
		for _, b := range resp.Brokers {
			p.c.pool.addBroker(Broker{ID: b.NodeID, Host: b.Host, Port: b.Port})
		}
	}
	type told struct {
		b                  *batch
		offset, appendTime int64
		err                error
	}
	var done []told
	refresh := false
	p.mu.Lock()
	n.inFlight--
	for _, f := range r.batches {
		offset, appendTime, ferr, hinted := int64(-1), int64(-1), err, false
		if a := answers[f.q.tp]; a != nil {
			offset, appendTime, ferr = a.BaseOffset, a.LogAppendTime, produceError(a)
			hinted = ferr != nil && p.c.meta.hint(f.q.tp, a.CurrentLeader.LeaderID, a.CurrentLeader.LeaderEpoch)
		} else if ferr == nil && p.o.Acks != NoAcks {
			ferr = &errConn{"produce to", fmt.Sprintf("broker %d", n.id), errors.New("no answer for the partition")}
		}
		if errors.Is(ferr, DuplicateSequenceNumber) {
			ferr, offset = nil, -1 // an earlier try got through
		}
		refresh = refresh || ferr != nil && needsRefresh(ferr) && !hinted
		if p.settle(f.q, f.b, ferr, hinted) {
			if ferr != nil {
				ferr = fmt.Errorf("produce to %v: %w", f.q.tp, ferr)
			}
			done = append(done, told{f.b, offset, appendTime, ferr})
		}
	}
	p.mu.Unlock()
	if refresh {
		p.c.meta.invalidate()
	}
	for _, d := range done {
		p.tell(d.b, d.offset, d.appendTime, d.err)
	}
	p.signal()
}

// settle ends a try of a batch: it is done, well or not, or will be tried again. mu is held.
func (p *Producer) settle(q *partitionQueue, b *batch, err error, hinted bool) (done bool) {
	if i := slices.Index(q.inFlight, b); i >= 0 {
		q.inFlight = slices.Delete(q.inFlight, i, i+1)
	}
	now := time.Now()
	if err == nil {
		if b.sequence >= 0 && b.id == q.id {
			q.acked = record.IncrementSequence(b.sequence, int32(len(b.records))-1)
		}
		q.attempts, q.notBefore = 0, time.Time{}
		p.finish(b)
		return true
	}
	late := !now.Before(b.born.Add(p.o.DeliveryTimeout))
	code, known := Code(err)
	if known && (code == MessageTooLarge.Code || code == recordListTooLarge) && len(b.records) > 1 && !late && p.ctx.Err() == nil {
		halves := p.split(b)
		p.takeBack(q, halves[1])
		p.takeBack(q, halves[0])
		delete(p.batches, b)
		p.wg.Go(func() { // whoever flushes waits for the halves
			<-halves[0].done
			<-halves[1].done
			close(b.done)
		})
		return false
	}
	again := Retriable(err)
	sequenced := known && (code == outOfOrderSequence || code == unknownProducerID || code == invalidProducerEpoch)
	if sequenced && p.o.TransactionalID == "" && !p.o.DisableIdempotence {
		again = true
		switch expected := q.acked < 0 && b.sequence == 0 || q.acked >= 0 && record.IncrementSequence(q.acked, 1) == b.sequence; {
		case code == outOfOrderSequence && !expected:
			// One before it is still to be tried again.
		case b.id == q.id:
			// The broker has forgotten what it knew of the producer: a new epoch needs no past (KIP-360).
			q.broken = true
		}
	}
	if again && !late && p.ctx.Err() == nil && p.txn.open(p.o.TransactionalID) {
		p.takeBack(q, b)
		if !hinted {
			q.notBefore = now.Add(p.c.backoff(q.attempts))
		}
		q.attempts++
		p.c.o.Logger.Debug("produce is tried again", "partition", q.tp.String(), "err", err)
		return false
	}
	if b.sequence >= 0 && b.id == q.id && p.o.TransactionalID == "" {
		q.broken = true // later batches don't follow any more
	}
	p.txn.failed(err, p.o.TransactionalID)
	p.finish(b)
	return true
}

const (
	recordListTooLarge   = 18
	outOfOrderSequence   = 45
	invalidProducerEpoch = 47
	unknownProducerID    = 59
)

// takeBack puts a batch back to where it was in its partition's queue. mu is held.
func (p *Producer) takeBack(q *partitionQueue, b *batch) {
	i := 0
	b.conn = nil
	if b.sequence >= 0 {
		for i < len(q.queue) && q.queue[i].sequence >= 0 && before(q.queue[i].sequence, b.sequence) {
			i++
		}
	}
	q.queue = slices.Insert(q.queue, i, b)
	p.active[q] = struct{}{}
}

func produceError(r *kmsg.ProduceResponseTopicPartition) error {
	err := errorOf(r.ErrorCode, r.ErrorMessage)
	if err == nil {
		return nil
	}
	for _, e := range r.ErrorRecords {
		if e.ErrorMessage != nil {
			err = fmt.Errorf("%w (record %d: %s)", err, e.RelativeOffset, *e.ErrorMessage)
		}
	}
	return err
}

// failAll fails everything that waits; what is under way will get its own answer.
func (p *Producer) failAll(err error) {
	p.mu.Lock()
	var failed []*batch
	for q := range p.active {
		for _, b := range q.queue {
			p.finish(b)
			failed = append(failed, b)
			if b.sequence >= 0 {
				q.broken = true
			}
		}
		q.queue = nil
	}
	p.mu.Unlock()
	for _, b := range failed {
		p.tell(b, -1, -1, err)
	}
}
