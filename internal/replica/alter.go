package replica

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/uuid"
)

// alterRetry is the pause before changes of the ISR are asked for again.
const alterRetry = 50 * time.Millisecond

// isrChanges asks the active controller for changes of ISRs (AlterPartition). One request is under way at a time; what comes
// meanwhile shares the next one. A partition has at most one proposal here: its state makes no second one before the first is
// answered, or overtaken by the metadata.
type isrChanges struct {
	nodeID      int32
	brokerEpoch func() int64
	send        func(q *kmsg.AlterPartitionRequest, done func(*kmsg.AlterPartitionResponse, error))
	logger      *slog.Logger
	counts      *ISRCounts
	after       AfterFunc

	mu      sync.Mutex // guards all below
	pending map[*Partition]*proposal
	busy    bool
	timer   Timer // of the wait before the next request
	closed  bool
}

// ISRCounts counts the controller's answers to changes of ISRs that this broker asked for.
type ISRCounts struct{ Expands, Shrinks, Failed atomic.Int64 }

func (c *isrChanges) submit(p *Partition, change *proposal) { c.enqueue(p, change, 0) }

func (c *isrChanges) enqueue(p *Partition, change *proposal, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.pending[p]; now != nil && now.newerThan(change) {
		return
	}
	c.pending[p] = change
	c.startLocked(pause)
}

// newerThan says whether a proposal was made in a later state of the partition than another.
func (p *proposal) newerThan(o *proposal) bool {
	return p.leaderEpoch > o.leaderEpoch || p.leaderEpoch == o.leaderEpoch && p.partitionEpoch > o.partitionEpoch
}

// startLocked sends after a pause, unless a request is under way. A pause of 0 still lets the caller, a fetch of many partitions
// perhaps, hand over all of them.
func (c *isrChanges) startLocked(pause time.Duration) {
	if c.busy || c.closed || len(c.pending) == 0 {
		return
	}
	c.busy = true
	c.timer = c.after(pause, c.flush)
}

// close ends all asking.
func (c *isrChanges) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

func (c *isrChanges) flush() {
	c.mu.Lock()
	sent := c.pending
	c.pending = make(map[*Partition]*proposal)
	c.mu.Unlock()
	q := alterRequest(sent)
	q.BrokerID, q.BrokerEpoch = c.nodeID, c.brokerEpoch()
	for i := range q.Topics {
		for j := range q.Topics[i].Partitions {
			p := &q.Topics[i].Partitions[j]
			for k := range p.NewEpochISR {
				if b := &p.NewEpochISR[k]; b.BrokerID == c.nodeID {
					b.BrokerEpoch = q.BrokerEpoch
				}
			}
		}
	}
	c.send(q, func(r *kmsg.AlterPartitionResponse, err error) {
		if err == nil {
			err = api.FromCode(r.ErrorCode)
		}
		c.answered(sent, r, err)
	})
}

// inOrder lists partitions in an order that is the same in every run.
func inOrder(of map[*Partition]*proposal) []*Partition {
	return slices.SortedFunc(maps.Keys(of), func(a, b *Partition) int { return keyOf(a).compare(keyOf(b)) })
}

func alterRequest(changes map[*Partition]*proposal) *kmsg.AlterPartitionRequest {
	q := kmsg.NewPtrAlterPartitionRequest()
	q.Version = q.MaxVersion()
	topics := map[uuid.UUID]int{}
	for _, part := range inOrder(changes) {
		change := changes[part]
		i, ok := topics[part.topicID]
		if !ok {
			i = len(q.Topics)
			topics[part.topicID] = i
			t := kmsg.NewAlterPartitionRequestTopic()
			t.Topic, t.TopicID = part.tp.Topic, part.topicID
			q.Topics = append(q.Topics, t)
		}
		p := kmsg.NewAlterPartitionRequestTopicPartition()
		p.Partition, p.LeaderEpoch, p.PartitionEpoch = part.tp.Partition, change.leaderEpoch, change.partitionEpoch
		// Version 2 has the ids alone.
		p.NewISR = change.isr
		for k, id := range change.isr {
			b := kmsg.NewAlterPartitionRequestTopicPartitionNewEpochISR()
			b.BrokerID, b.BrokerEpoch = id, change.epochs[k]
			p.NewEpochISR = append(p.NewEpochISR, b)
		}
		q.Topics[i].Partitions = append(q.Topics[i].Partitions, p)
	}
	return q
}

// answered gives each partition its answer and asks again for those that have none.
func (c *isrChanges) answered(sent map[*Partition]*proposal, r *kmsg.AlterPartitionResponse, err error) {
	type key struct {
		topic     uuid.UUID
		partition int32
	}
	answers := map[key]*kmsg.AlterPartitionResponseTopicPartition{}
	if err == nil {
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				answers[key{r.Topics[i].TopidID, p.Partition}] = p
			}
		}
	} else {
		c.logger.Warn("the controller could not be asked for changes of ISRs", "partitions", len(sent), "err", err)
	}
	c.mu.Lock()
	c.busy = false
	c.startLocked(0)
	c.mu.Unlock()
	for _, p := range inOrder(sent) {
		change := sent[p]
		var a isrAnswer
		refusal := api.ErrUnknownServerError // nobody knows whether it was done
		if at := answers[key{p.topicID, p.tp.Partition}]; at != nil {
			refusal = nil
			if at.ErrorCode != 0 {
				if refusal = api.ErrorFor(at.ErrorCode); refusal == nil {
					refusal = api.ErrUnknownServerError
				}
			}
			a = isrAnswer{leaderEpoch: at.LeaderEpoch, partitionEpoch: at.PartitionEpoch, isr: at.ISR}
		}
		switch {
		case refusal != nil:
			c.counts.Failed.Add(1)
		case change.joining != noReplica:
			c.counts.Expands.Add(1)
		default:
			c.counts.Shrinks.Add(1)
		}
		if refusal == nil {
			c.logger.Info("the ISR has changed", "partition", p.tp.String(), "isr", a.isr, "partition_epoch", a.partitionEpoch)
		} else if err == nil {
			c.logger.Info("a change of the ISR was refused", "partition", p.tp.String(), "wanted", change.isr, "err", refusal)
		}
		if p.isrAnswered(change, a, refusal) {
			c.enqueue(p, change, alterRetry)
		}
	}
}
