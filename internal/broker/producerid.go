package broker

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/metadata"
	"gregor/internal/network"
	"gregor/internal/security"
)

// producerIDs hands out producer ids from blocks that the controller allocates. The next block is asked for before the
// current one is used up, so that producers rarely wait.
type producerIDs struct {
	b  *Broker
	mu sync.Mutex // guards all below
	// next to end is what is left of the current block, spare the block after it (spareLen 0: none).
	next, end       int64
	spare, spareEnd int64
	asking          bool
	waiting         []func(id int64, err error)
}

// refillBelow is how few ids are left when the next block is asked for; a block has 1,000.
const refillBelow = 100

func (p *producerIDs) init(b *Broker) { p.b = b }

// get calls done with a fresh id, at once when there is one.
func (p *producerIDs) get(done func(id int64, err error)) {
	p.mu.Lock()
	if id, ok := p.takeLocked(); ok {
		p.askLocked()
		p.mu.Unlock()
		done(id, nil)
		return
	}
	p.waiting = append(p.waiting, done)
	p.askLocked()
	p.mu.Unlock()
}

func (p *producerIDs) takeLocked() (int64, bool) {
	if p.next == p.end {
		p.next, p.end = p.spare, p.spareEnd
		p.spare, p.spareEnd = 0, 0
	}
	if p.next == p.end {
		return 0, false
	}
	p.next++
	return p.next - 1, true
}

func (p *producerIDs) askLocked() {
	if p.asking || p.spare != p.spareEnd || p.end-p.next >= refillBelow {
		return
	}
	p.asking = true
	// The answer may come from this very call, so the lock must be free by then.
	go p.ask()
}

func (p *producerIDs) ask() {
	q := kmsg.NewPtrAllocateProducerIDsRequest()
	q.BrokerID, q.BrokerEpoch = p.b.nodeID, -1
	if me := p.b.image().Cluster.Broker(p.b.nodeID); me != nil {
		q.BrokerEpoch = me.Epoch
	}
	p.b.controller.Forward(Client{}, q, p.b.clock.Now().Add(p.b.config.Current().RequestTimeout), func(resp kmsg.Response, err error) {
		var start, n int64
		if err == nil {
			r := resp.(*kmsg.AllocateProducerIDsResponse)
			start, n, err = r.ProducerIDStart, int64(r.ProducerIDLen), api.FromCode(r.ErrorCode)
		}
		p.received(start, start+n, err)
	})
}

func (p *producerIDs) received(start, end int64, err error) {
	type answer struct {
		done func(int64, error)
		id   int64
	}
	var answers []answer
	p.mu.Lock()
	p.asking = false
	if err == nil {
		p.spare, p.spareEnd = start, end
	}
	for len(p.waiting) > 0 {
		id, ok := p.takeLocked()
		if !ok && err == nil {
			break
		}
		answers = append(answers, answer{p.waiting[0], id})
		p.waiting = p.waiting[1:]
	}
	if len(p.waiting) > 0 {
		p.askLocked()
	}
	p.mu.Unlock()
	for _, a := range answers {
		if err != nil {
			// Kafka lets the producer try again while the controller is away.
			a.done(-1, api.ErrCoordinatorLoadInProgress)
			continue
		}
		a.done(a.id, nil)
	}
}

func (b *Broker) initProducerID(r *network.Request, q *kmsg.InitProducerIDRequest, reply func(kmsg.Response)) {
	resp := q.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	fail := func(err error) {
		resp.ErrorCode = api.CodeOf(err)
		reply(resp)
	}
	switch {
	case q.TransactionalID != nil && !b.allows(r, security.Write, security.TransactionalID, *q.TransactionalID):
		fail(api.ErrTransactionalIDAuthorizationFailed)
	case q.TransactionalID == nil && !b.mayWriteIdempotently(r):
		fail(api.ErrClusterAuthorizationFailed)
	case q.TransactionalID != nil && *q.TransactionalID == "":
		fail(api.ErrInvalidRequest)
	case q.TransactionalID != nil:
		// Transactions need their coordinator, which this node does not have. This error makes clients give up at once.
		fail(api.ErrUnsupportedVersion)
	case (q.ProducerID == -1) != (q.ProducerEpoch == -1):
		fail(api.ErrInvalidRequest)
	default:
		b.producers.get(func(id int64, err error) {
			if err != nil {
				fail(err)
				return
			}
			resp.ProducerID, resp.ProducerEpoch = id, 0
			reply(resp)
		})
	}
}

// mayWriteIdempotently says whether the client may have a producer id: who may write to some topic may (KIP-679).
func (b *Broker) mayWriteIdempotently(r *network.Request) bool {
	return b.allowsQuietly(r, security.IdempotentWrite, security.Cluster, security.ClusterName) ||
		b.authorizer.AllowsSome(requester(r), security.Write, security.Topic)
}

// transactionVersion is the finalized level of transaction.version.
func (b *Broker) transactionVersion() int16 {
	return b.image().Features.Level(metadata.FeatureTransaction)
}
