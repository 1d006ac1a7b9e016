package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// transaction is the state of a transactional producer. All but v2 is guarded by the producer's mu.
type transaction struct {
	state   txnState
	err     error                   // why it can only be aborted, or nothing any more
	v2      atomic.Bool             // KIP-890: brokers add partitions by themselves, and each transaction has an epoch of its own
	parts   map[TopicPartition]bool // in the transaction; false while that is being asked for
	offsets bool                    // it has offsets of a group
	busy    bool                    // a call is under way
}

type txnState uint8

const (
	txnNew txnState = iota // no producer id yet
	txnReady
	txnOpen
	txnAbortable // can only be aborted
	txnFatal     // another producer took over, or worse
)

var (
	// ErrNoTransaction is returned by what needs an open transaction.
	ErrNoTransaction = errors.New("no transaction is open")
	// ErrFenced means that another producer with the same transactional id took over: this one is of no use any more.
	ErrFenced = errors.New("another producer with the same transactional id took over")
	// ErrAbortable means that the transaction can only be aborted; then another can begin.
	ErrAbortable = errors.New("the transaction has to be aborted")
)

const (
	producerFenced              = 90
	concurrentTransactions      = 51
	transactionAbortable        = 120
	transactionalIDAuthFailed   = 53
	clusterAuthorizationFailed  = 31
	invalidTransactionState     = 48
	transactionCoordinatorFence = 52
	invalidProducerIDMapping    = 49
)

// mayProduce says whether records can be produced now. The producer's mu is held.
func (t *transaction) mayProduce() error {
	switch t.state {
	case txnOpen:
		return nil
	case txnAbortable, txnFatal:
		return t.err
	}
	return ErrNoTransaction
}

// open says whether what failed is worth another try.
func (t *transaction) open(id string) bool {
	return id == "" || t.state == txnOpen || t.state == txnReady
}

// failed takes the failure of a batch or a call: after it the transaction can only be aborted, or nothing can be done at all.
func (t *transaction) failed(err error, id string) {
	if id == "" || t.state == txnFatal {
		return
	}
	code, known := Code(err)
	switch {
	case known && (code == producerFenced || code == transactionCoordinatorFence || code == invalidProducerEpoch && t.v2.Load()):
		t.state, t.err = txnFatal, fmt.Errorf("%w: %w", ErrFenced, err)
	case known && (code == transactionalIDAuthFailed || code == clusterAuthorizationFailed || code == UnsupportedVersion.Code || code == invalidProducerIDMapping):
		t.state, t.err = txnFatal, fmt.Errorf("the producer can't go on: %w", err)
	case t.state == txnOpen:
		t.state, t.err = txnAbortable, fmt.Errorf("%w: %w", ErrAbortable, err)
	}
}

// ready says whether a partition is part of the transaction, so that records may be sent; if not it is added.
func (t *transaction) ready(p *Producer, q *partitionQueue) bool {
	if t.state != txnOpen {
		return false
	}
	in, asked := t.parts[q.tp]
	if t.v2.Load() {
		t.parts[q.tp] = true // the broker adds it
		return true
	}
	if asked {
		return in
	}
	t.parts[q.tp] = false
	p.wg.Go(func() { p.addPartition(q.tp) })
	return false
}

// addPartition adds a partition to the transaction.
func (p *Producer) addPartition(tp TopicPartition) {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	p.mu.Lock()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = p.o.TransactionalID, p.id.id, p.id.epoch
	p.mu.Unlock()
	req.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: tp.Topic, Partitions: []int32{tp.Partition}}}
	to := p.toTxn()
	to.highest = 3 // later ones are for brokers
	_, err := ask(p.ctx, p.c, to, req, func(r *kmsg.AddPartitionsToTxnResponse) error {
		for _, t := range r.Topics {
			for _, a := range t.Partitions {
				if err := errorOf(a.ErrorCode, nil); err != nil {
					return err
				}
			}
		}
		return nil
	})
	p.mu.Lock()
	if err != nil {
		delete(p.txn.parts, tp)
		p.txn.failed(fmt.Errorf("add %v to the transaction: %w", tp, err), p.o.TransactionalID)
	} else {
		p.txn.parts[tp] = true
	}
	abort := p.txn.state != txnOpen
	reason := p.txn.err
	p.mu.Unlock()
	if abort {
		p.failAll(reason)
	}
	p.signal()
}

func (p *Producer) toTxn() target {
	return target{node: anyNode, coord: coordinator{coordinatorTxn, p.o.TransactionalID}}
}

// enter makes sure that one call about transactions is under way at a time.
func (p *Producer) enter(allowed ...txnState) (leave func(), err error) {
	if p.o.TransactionalID == "" {
		return nil, errors.New("the producer has no TransactionalID")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.txn.busy {
		return nil, errors.New("another call about the transaction is under way")
	}
	ok := false
	for _, s := range allowed {
		ok = ok || s == p.txn.state
	}
	switch {
	case ok:
	case p.txn.err != nil:
		return nil, p.txn.err
	case p.txn.state == txnOpen:
		return nil, errors.New("a transaction is open already")
	default:
		return nil, ErrNoTransaction
	}
	p.txn.busy = true
	return func() {
		p.mu.Lock()
		p.txn.busy = false
		p.mu.Unlock()
	}, nil
}

// Begin begins a transaction. The first one gets the producer its id, which fences earlier producers with the same transactional
// id and aborts what they left open.
func (p *Producer) Begin(ctx context.Context) error {
	leave, err := p.enter(txnNew, txnReady)
	if err != nil {
		return err
	}
	defer leave()
	p.mu.Lock()
	fresh := p.txn.state == txnNew
	p.mu.Unlock()
	if fresh {
		if err := p.init(ctx, producerID{-1, -1, false}); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.txn.state, p.txn.parts, p.txn.offsets = txnOpen, map[TopicPartition]bool{}, false
	return nil
}

// init gets a producer id and epoch.
func (p *Producer) init(ctx context.Context, have producerID) error {
	features, err := p.c.Features(ctx)
	if err != nil {
		return err
	}
	for _, f := range features {
		if f.Name == "transaction.version" {
			p.txn.v2.Store(f.Level >= 2)
		}
	}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &p.o.TransactionalID, int32(p.o.TransactionTimeout.Milliseconds())
	req.ProducerID, req.ProducerEpoch = have.id, have.epoch
	resp, err := ask(ctx, p.c, p.toTxn(), req, func(r *kmsg.InitProducerIDResponse) error { return errorOf(r.ErrorCode, nil) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.txn.failed(err, p.o.TransactionalID)
		return err
	}
	p.newID(producerID{resp.ProducerID, resp.ProducerEpoch, true})
	p.txn.state, p.txn.err = txnReady, nil
	return nil
}

// newID begins a new id or epoch everywhere. Nothing is under way. mu is held.
func (p *Producer) newID(id producerID) {
	if p.id == id {
		return
	}
	p.id = id
	for _, t := range p.topics {
		for _, q := range t.parts {
			if q != nil {
				q.id, q.sequence, q.acked, q.broken = id, 0, -1, false
			}
		}
	}
}

// SendOffsets makes a consumer's offsets part of the transaction: they are committed if it is. The consumer must not commit them
// itself (AutoCommit -1).
func (p *Producer) SendOffsets(ctx context.Context, u *Consumer, offsets []CommittedOffset) error {
	leave, err := p.enter(txnOpen)
	if err != nil {
		return err
	}
	defer leave()
	u.mu.Lock()
	who, group := u.member, u.o.Group
	u.mu.Unlock()
	if group == "" {
		return errNoGroup
	}
	p.mu.Lock()
	id := p.id
	p.txn.offsets = true
	p.mu.Unlock()
	fail := func(err error) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.txn.failed(err, p.o.TransactionalID)
		return p.txn.err
	}
	if !p.txn.v2.Load() {
		req := kmsg.NewPtrAddOffsetsToTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = p.o.TransactionalID, id.id, id.epoch, group
		to := p.toTxn()
		to.highest = 3
		if _, err := ask(ctx, p.c, to, req, func(r *kmsg.AddOffsetsToTxnResponse) error { return errorOf(r.ErrorCode, nil) }); err != nil {
			return fail(err)
		}
	}
	c := commitRequest(group, who.id, who.instance, who.generation, offsets)
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = p.o.TransactionalID, id.id, id.epoch
	req.Group, req.MemberID, req.Generation, req.InstanceID = group, c.MemberID, c.Generation, c.InstanceID
	for _, t := range c.Topics {
		rt := kmsg.NewTxnOffsetCommitRequestTopic()
		rt.Topic = t.Topic
		for _, o := range t.Partitions {
			rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = o.Partition, o.Offset, o.LeaderEpoch, o.Metadata
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	to := toGroup(group)
	to.highest = 5
	if !p.txn.v2.Load() {
		to.highest = 4
	}
	_, err = ask(ctx, p.c, to, req, func(r *kmsg.TxnOffsetCommitResponse) error {
		for _, t := range r.Topics {
			for _, a := range t.Partitions {
				if err := errorOf(a.ErrorCode, nil); err != nil {
					return fmt.Errorf("partition %s-%d: %w", t.Topic, a.Partition, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return fail(err)
	}
	return nil
}

// Commit waits until everything produced in the transaction is written and commits it. If that fails with ErrAbortable, Abort
// and begin again; with ErrFenced, the producer is of no use any more. When ctx ends first, Commit may be called again.
func (p *Producer) Commit(ctx context.Context) error {
	leave, err := p.enter(txnOpen)
	if err != nil {
		return err
	}
	defer leave()
	if err := p.Flush(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	err = p.txn.mayProduce()
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return p.end(ctx, true)
}

// Abort gives the transaction up. What was produced in it and is not yet written fails with ErrAbortable.
func (p *Producer) Abort(ctx context.Context) error {
	leave, err := p.enter(txnOpen, txnAbortable)
	if err != nil {
		return err
	}
	defer leave()
	p.mu.Lock()
	p.txn.state, p.txn.err = txnAbortable, ErrAbortable
	p.mu.Unlock()
	p.failAll(fmt.Errorf("the transaction was aborted: %w", ErrAbortable))
	if err := p.Flush(ctx); err != nil { // what is under way
		return err
	}
	return p.end(ctx, false)
}

// end tells the coordinator.
func (p *Producer) end(ctx context.Context, commit bool) error {
	p.mu.Lock()
	id, empty := p.id, len(p.txn.parts) == 0 && !p.txn.offsets
	failed := p.txn.err != nil && !errors.Is(p.txn.err, ErrFenced) && p.txn.err != ErrAbortable
	if empty {
		p.txn.state, p.txn.err = txnReady, nil
	}
	p.mu.Unlock()
	if empty {
		return nil
	}
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.o.TransactionalID, id.id, id.epoch, commit
	to := p.toTxn()
	to.highest = 5
	if !p.txn.v2.Load() {
		to.highest = 4
	}
	resp, err := ask(ctx, p.c, to, req, func(r *kmsg.EndTxnResponse) error { return errorOf(r.ErrorCode, nil) })
	if err != nil {
		code, known := Code(err)
		if !commit && known && (code == invalidTransactionState || code == invalidProducerIDMapping) {
			// There was nothing: no record had arrived.
			err = p.init(ctx, id)
		}
		if err == nil {
			return nil
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if known {
			p.txn.failed(err, p.o.TransactionalID)
			if p.txn.err != nil {
				return p.txn.err
			}
		}
		return err
	}
	if resp.Version >= 5 && resp.ProducerID >= 0 {
		id = producerID{resp.ProducerID, resp.ProducerEpoch, true}
	} else if !commit || failed {
		// Sequence numbers may have gaps now: a new epoch needs no past.
		return p.init(ctx, id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newID(id)
	p.txn.state, p.txn.err = txnReady, nil
	return nil
}
