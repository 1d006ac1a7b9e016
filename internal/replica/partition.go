package replica

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/uuid"
)

// role is what the cluster metadata says this broker is for a partition. It is immutable.
type role struct {
	leader         bool
	leaderID       int32
	leaderEpoch    int32
	partitionEpoch int32
	replicas       []int32
	isr            []int32
}

// Partition is one replica on this broker. See the package comment for its rules.
type Partition struct {
	tp      log.TopicPartition
	topicID uuid.UUID
	localID int32
	log     *log.Log

	// mu is held shared by appends and exclusively by role changes.
	mu   sync.RWMutex
	role atomic.Pointer[role]
	// gone is set once the replica was dropped from this broker or its log directory went offline.
	gone atomic.Pointer[api.Error]

	// unread counts the bytes appended since waiting fetches were last told.
	unread atomic.Int64
	// listener is told of each new high watermark; coordinators use it.
	listener atomic.Pointer[func(hw int64)]

	flusher flusher

	waitMu  sync.Mutex // guards acks and fetches
	acks    ackQueue
	nAcks   atomic.Int32
	fetches fetchNode // sentinel of the list of waiting fetches
	nFetch  atomic.Int32
}

func newPartition(tp log.TopicPartition, topicID uuid.UUID, localID int32, l *log.Log) *Partition {
	p := &Partition{tp: tp, topicID: topicID, localID: localID, log: l}
	p.fetches.prev, p.fetches.next = &p.fetches, &p.fetches
	p.role.Store(&role{leaderID: -1, leaderEpoch: -1, partitionEpoch: -1})
	return p
}

// TopicPartition names the partition.
func (p *Partition) TopicPartition() log.TopicPartition { return p.tp }

// TopicID is the id of the topic, by which a topic is told from an earlier one of the same name.
func (p *Partition) TopicID() uuid.UUID { return p.topicID }

// Log is the partition's log. It must not be appended to but through the partition.
func (p *Partition) Log() *log.Log { return p.log }

// Leader tells who leads the partition (-1: nobody) and in which leader epoch.
func (p *Partition) Leader() (leaderID, leaderEpoch int32) {
	r := p.role.Load()
	return r.leaderID, r.leaderEpoch
}

// IsLeader says whether this broker leads the partition.
func (p *Partition) IsLeader() bool { return p.role.Load().leader && p.gone.Load() == nil }

// checkLeader returns the error for a request that needs the leader and names the leader epoch it knows (-1: none).
func (p *Partition) checkLeader(r *role, clientEpoch int32) error {
	if err := p.gone.Load(); err != nil {
		return err
	}
	if clientEpoch >= 0 {
		// KIP-320: the epoch is judged before the role, so that a client learns who is behind.
		switch {
		case clientEpoch < r.leaderEpoch:
			return api.ErrFencedLeaderEpoch
		case clientEpoch > r.leaderEpoch:
			return api.ErrUnknownLeaderEpoch
		}
	}
	if !r.leader {
		return api.ErrNotLeaderOrFollower
	}
	return nil
}

// AppendOptions tell how records are to be appended.
type AppendOptions struct {
	Origin log.Origin
	// RequiredAcks is the request's acks: 0, 1 or -1 (all).
	RequiredAcks int16
	// MinISR is the topic's min.insync.replicas, which counts for acks=all.
	MinISR int
	// LeaderEpoch, when not negative, must be the partition's; coordinators append in the epoch in which they loaded.
	LeaderEpoch int32
	// Validation, TransactionVersion and Guard go to the log.
	Validation         log.Validation
	TransactionVersion int16
	Guard              *log.VerificationGuard
}

// Append appends batches to the partition, of which this broker must be the leader. The offsets are patched into records.
// Waiting requests are not told: call Wake once all of a request's appends are done.
//
// Errors: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS (before anything is written), KAFKA_STORAGE_ERROR and those of
// log.Log.Append.
func (p *Partition) Append(records []byte, opts AppendOptions) (log.AppendInfo, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	r := p.role.Load()
	if err := p.checkLeader(r, -1); err != nil {
		return log.AppendInfo{}, err
	}
	if opts.LeaderEpoch >= 0 && opts.LeaderEpoch != r.leaderEpoch {
		return log.AppendInfo{}, api.ErrNotLeaderOrFollower
	}
	if opts.RequiredAcks == -1 && len(r.isr) < min(opts.MinISR, len(r.replicas)) {
		return log.AppendInfo{}, api.WithMessage(api.ErrNotEnoughReplicas,
			"The size of the current ISR %v is insufficient to satisfy the min.isr requirement of %d for partition %s",
			r.isr, opts.MinISR, p.tp)
	}
	info, err := p.log.Append(records, log.AppendOptions{
		LeaderEpoch: r.leaderEpoch, Origin: opts.Origin, Validation: opts.Validation,
		TransactionVersion: opts.TransactionVersion, Guard: opts.Guard})
	if err != nil {
		return info, err
	}
	p.unread.Add(int64(len(records)))
	p.advanceHighWatermark(r)
	return info, nil
}

// advanceHighWatermark moves the high watermark to the smallest end offset in the ISR. The local replica is the only one
// whose end offset is known here, so a larger ISR holds it where it is.
func (p *Partition) advanceHighWatermark(r *role) {
	if len(r.isr) == 1 && r.isr[0] == p.localID {
		// Appends of several connections get here in any order, so the mark may only rise.
		p.log.RaiseHighWatermark(p.log.EndOffset())
	}
}

// Wake tells those who wait on the partition that it has grown.
func (p *Partition) Wake() {
	if f := p.listener.Load(); f != nil {
		(*f)(p.log.HighWatermark())
	}
	if p.nAcks.Load() > 0 {
		p.waitMu.Lock()
		reached := p.acks.popReached(p.log.HighWatermark(), nil)
		p.nAcks.Add(-int32(len(reached)))
		p.waitMu.Unlock()
		for _, w := range reached {
			w.op.settle(w.index, nil)
		}
	}
	if p.nFetch.Load() > 0 {
		p.wakeFetches(false)
	} else {
		p.unread.Store(0)
	}
}

func (p *Partition) wakeFetches(all bool) {
	var buf [8]*FetchWait
	fire := buf[:0]
	p.waitMu.Lock()
	n := p.unread.Swap(0)
	for f := p.fetches.next; f != &p.fetches; f = f.next {
		if f.wait.progress(n) || all {
			fire = append(fire, f.wait)
		}
	}
	p.waitMu.Unlock()
	for _, w := range fire {
		w.fire()
	}
}

// parkAck parks w, unless the high watermark is there already or never will be, led from here.
func (p *Partition) parkAck(w ackWait) (err *api.Error, parked bool) {
	p.waitMu.Lock()
	defer p.waitMu.Unlock()
	if p.log.HighWatermark() >= w.offset {
		return nil, false
	}
	if err := p.gone.Load(); err != nil {
		return err, false
	}
	if !p.role.Load().leader {
		return api.ErrNotLeaderOrFollower, false
	}
	p.acks.push(w)
	p.nAcks.Add(1)
	return nil, true
}

func (p *Partition) unparkAck(op *AckOp, offset int64) {
	p.waitMu.Lock()
	defer p.waitMu.Unlock()
	if p.acks.remove(op, offset) {
		p.nAcks.Add(-1)
	}
}

func (p *Partition) parkFetch(n *fetchNode) {
	p.waitMu.Lock()
	defer p.waitMu.Unlock()
	// fire marks the wait before it unparks, so a node that gets here after its unparking sees the mark.
	if n.wait.fired.Load() {
		return
	}
	n.prev, n.next = p.fetches.prev, &p.fetches
	n.prev.next, p.fetches.prev = n, n
	p.nFetch.Add(1)
}

func (p *Partition) unparkFetch(n *fetchNode) {
	p.waitMu.Lock()
	defer p.waitMu.Unlock()
	if n.next == nil {
		return
	}
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil
	p.nFetch.Add(-1)
}

// setRole makes the partition what the metadata says. It returns an error of the log, when it cannot note the new epoch.
func (p *Partition) setRole(next *role) error {
	p.mu.Lock()
	prev := p.role.Load()
	if next.partitionEpoch < prev.partitionEpoch || next.leaderEpoch < prev.leaderEpoch {
		p.mu.Unlock()
		return nil
	}
	if next.leader && next.leaderEpoch > prev.leaderEpoch {
		if err := p.log.AssignEpochStart(next.leaderEpoch, p.log.EndOffset()); err != nil {
			p.mu.Unlock()
			return fmt.Errorf("lead %s in epoch %d: %w", p.tp, next.leaderEpoch, err)
		}
	}
	p.role.Store(next)
	if next.leader {
		p.advanceHighWatermark(next)
	}
	p.mu.Unlock()
	if prev.leader && (!next.leader || next.leaderEpoch != prev.leaderEpoch) {
		p.failWaits(api.ErrNotLeaderOrFollower)
	} else {
		p.Wake()
	}
	return nil
}

// drop marks the partition as gone and fails who waits on it with err. It waits for appends under way.
func (p *Partition) drop(err *api.Error) {
	p.mu.Lock()
	p.gone.Store(err)
	p.mu.Unlock()
	p.failWaits(err)
}

func (p *Partition) failWaits(err *api.Error) {
	p.waitMu.Lock()
	acks := p.acks.popAll(nil)
	p.nAcks.Add(-int32(len(acks)))
	p.waitMu.Unlock()
	for _, w := range acks {
		w.op.settle(w.index, err)
	}
	p.wakeFetches(true)
}

// SetListener makes f hear of each new high watermark, from the goroutine that moved it; nil ends that. f must not block.
func (p *Partition) SetListener(f func(hw int64)) {
	if f == nil {
		p.listener.Store(nil)
		return
	}
	p.listener.Store(&f)
}

// ISR lists the in-sync replicas.
func (p *Partition) ISR() []int32 { return slices.Clone(p.role.Load().isr) }
