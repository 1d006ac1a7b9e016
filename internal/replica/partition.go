package replica

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"gregor/internal/api"
	"gregor/internal/config"
	"gregor/internal/log"
	"gregor/internal/uuid"
)

// Partition is one replica on this broker. See the package comment for its rules.
type Partition struct {
	m       *Manager
	tp      log.TopicPartition
	topicID uuid.UUID
	current atomic.Pointer[log.Log] // see log()
	minISR  atomic.Int32            // the topic's min.insync.replicas
	// leaderThrottled and followerThrottled say which quotas hold for this replica while it leads and while it follows.
	leaderThrottled, followerThrottled atomic.Bool

	// mu is held shared by appends, a leader's or a follower's, and exclusively by changes of leader and leader epoch.
	mu sync.RWMutex
	// stMu guards st. role is st.role, for readers.
	stMu sync.Mutex
	st   state
	role atomic.Pointer[role]
	// gone is set once the replica was dropped from this broker or its log directory went offline.
	gone atomic.Pointer[api.Error]

	// appended and committed count the bytes that came below the log end and below the high watermark since waiting fetches
	// were last told; growth knows where the ones become the others.
	appended, committed atomic.Int64
	growth              growth
	// listener is told of each new high watermark of a leader; coordinators use it.
	listener atomic.Pointer[func(hw int64)]

	flusher flusher

	waitMu  sync.Mutex // guards acks, deletes and fetches
	acks    ackQueue
	deletes []ackWait // for the low watermark
	nDelete atomic.Int32
	nAcks   atomic.Int32
	fetches fetchNode // sentinel of the list of waiting fetches
	nFetch  atomic.Int32
}

func newPartition(m *Manager, t *Topic, l *log.Log) *Partition {
	p := &Partition{m: m, tp: l.TopicPartition(), topicID: t.id, st: newState(m.nodeID)}
	p.current.Store(l)
	p.configure(t.Config())
	p.fetches.prev, p.fetches.next = &p.fetches, &p.fetches
	p.role.Store(p.st.role)
	return p
}

// configure takes what the topic's configuration says of the partition itself. The log has its own.
func (p *Partition) configure(cfg *config.Topic) {
	p.minISR.Store(cfg.MinInsyncReplicas)
	p.setThrottles(parseThrottled(cfg.LeaderThrottledReplicas, p.m.nodeID), parseThrottled(cfg.FollowerThrottledReplicas, p.m.nodeID))
}

// reconfigure gives the partition and its log a configuration. A log that is about to take the place of another one gets it, too.
func (p *Partition) reconfigure(cfg *config.Topic) {
	p.mu.RLock()
	p.log().SetConfig(LogConfig(cfg))
	p.mu.RUnlock()
	p.configure(cfg)
}

// TopicPartition names the partition.
func (p *Partition) TopicPartition() log.TopicPartition { return p.tp }

// TopicID is the id of the topic, by which a topic is told from an earlier one of the same name.
func (p *Partition) TopicID() uuid.UUID { return p.topicID }

// Log is the partition's log. It must not be appended to but through the partition.
func (p *Partition) Log() *log.Log { return p.log() }

// log is the partition's log. It is another one after a move between log directories, with the same records; it changes only while
// mu and stMu are held.
func (p *Partition) log() *log.Log { return p.current.Load() }

// Leader tells who leads the partition (-1: nobody) and in which leader epoch.
func (p *Partition) Leader() (leaderID, leaderEpoch int32) {
	r := p.role.Load()
	return r.leaderID, r.leaderEpoch
}

// IsLeader says whether this broker leads the partition.
func (p *Partition) IsLeader() bool { return p.role.Load().leader && p.gone.Load() == nil }

// checkLeader returns the error for a request that needs the leader and names the leader epoch it knows (-1: none).
func (p *Partition) checkLeader(r *role, clientEpoch int32) error {
	if err := p.checkReplica(r, clientEpoch); err != nil {
		return err
	}
	if !r.leader {
		return api.ErrNotLeaderOrFollower
	}
	return nil
}

// checkReplica is checkLeader for a request that any replica may serve.
func (p *Partition) checkReplica(r *role, clientEpoch int32) error {
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
	return nil
}

// AppendOptions tell how records are to be appended.
type AppendOptions struct {
	Origin log.Origin
	// RequiredAcks is the request's acks: 0, 1 or -1 (all).
	RequiredAcks int16
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
	if min := r.minISR(int(p.minISR.Load())); opts.RequiredAcks == -1 && len(r.isr) < min {
		return log.AppendInfo{}, api.WithMessage(api.ErrNotEnoughReplicas,
			"The size of the current ISR %v is insufficient to satisfy the min.isr requirement of %d for partition %s",
			r.isr, min, p.tp)
	}
	info, err := p.log().Append(records, log.AppendOptions{
		LeaderEpoch: r.leaderEpoch, Origin: opts.Origin, Validation: opts.Validation,
		TransactionVersion: opts.TransactionVersion, Guard: opts.Guard})
	if err != nil || info.Duplicate {
		return info, err
	}
	if r.alone() {
		// Appends of several connections get here in any order, so the mark may only rise.
		p.log().RaiseHighWatermark(p.log().EndOffset())
		p.committed.Add(int64(len(records)))
		return info, nil
	}
	p.grew(len(records))
	p.stMu.Lock()
	p.advanceLocked()
	p.stMu.Unlock()
	return info, nil
}

// grew counts n bytes that were appended and are not known to be committed.
func (p *Partition) grew(n int) {
	p.growth.add(p.log().EndOffset(), int64(n))
	p.appended.Add(int64(n))
}

// raise moves the high watermark up to hw, if it is lower, and says whether it was.
func (p *Partition) raise(hw int64) bool {
	now, raised := p.log().RaiseHighWatermark(hw)
	if raised {
		p.committed.Add(max(p.growth.below(now), 1))
	}
	return raised
}

// advanceLocked moves the leader's high watermark as far as it may go and says whether it moved. stMu is held, so that nobody
// enters the ISR between the decision and the move.
func (p *Partition) advanceLocked() bool {
	hw, ok := p.st.highWatermark(p.m.clock.Now(), p.log().EndOffset(), int(p.minISR.Load()), p.m.lag, p.m.image.Load().Cluster)
	return ok && p.raise(hw)
}

// Wake tells those who wait on the partition that it has grown.
func (p *Partition) Wake() {
	if f := p.listener.Load(); f != nil {
		// As in Committed, the role comes second.
		if hw := p.log().HighWatermark(); p.role.Load().leader {
			(*f)(hw)
		}
	}
	if p.nAcks.Load() > 0 {
		p.waitMu.Lock()
		reached := p.acks.popReached(p.log().HighWatermark(), nil)
		p.nAcks.Add(-int32(len(reached)))
		p.waitMu.Unlock()
		if len(reached) > 0 {
			r := p.role.Load()
			err := p.ackError(r)
			for _, w := range reached {
				if r.leadsIn(w.leaderEpoch) {
					w.op.settle(w.index, err)
				} else {
					w.op.settle(w.index, api.ErrNotLeaderOrFollower)
				}
			}
		}
	}
	if p.nFetch.Load() > 0 {
		p.wakeFetches(false)
	} else {
		p.appended.Store(0)
		p.committed.Store(0)
	}
}

// ackError is what a produce with acks=all is told of records that the high watermark has passed: nil, unless the ISR has become
// smaller than min.insync.replicas meanwhile.
func (p *Partition) ackError(r *role) *api.Error {
	if r.alone() {
		return nil
	}
	p.stMu.Lock()
	defer p.stMu.Unlock()
	if p.st.maximalISR() < r.minISR(int(p.minISR.Load())) {
		return api.ErrNotEnoughReplicasAfterAppend
	}
	return nil
}

// inlineReplies is how many fetches are answered by whoever brings what they wait for.
const inlineReplies = 4

func (p *Partition) wakeFetches(all bool) {
	var buf [8]*FetchWait
	fire := buf[:0]
	hw := p.log().HighWatermark()
	p.waitMu.Lock()
	appended, committed := p.appended.Swap(0), p.committed.Swap(0)
	for f := p.fetches.next; f != &p.fetches; f = f.next {
		n := committed
		if f.wait.follower {
			n = appended
			if f.hw < hw {
				p.m.hurry(f.wait)
			}
		}
		if f.wait.progress(n) || all {
			fire = append(fire, f.wait)
		}
	}
	p.waitMu.Unlock()
	for i, w := range fire {
		// The replies are sent from here. When there are many, whoever has appended is not made to send all of them.
		if i < inlineReplies {
			w.fire()
		} else {
			p.m.goes(w.fire)
		}
	}
}

// Committed says whether what was appended below end in that leader epoch is known to be committed: the high watermark has
// reached end while this broker led in the epoch. Afterwards a high watermark says nothing of it, since the log may have been cut.
func (p *Partition) Committed(leaderEpoch int32, end int64) bool {
	// In this order: a broker that still leads led when the high watermark was read.
	hw := p.log().HighWatermark()
	return hw >= end && p.role.Load().leadsIn(leaderEpoch)
}

// parkAck parks w, unless the high watermark is there already or never will be, led from here.
func (p *Partition) parkAck(w ackWait) (err *api.Error, parked bool) {
	p.waitMu.Lock()
	// Counted before the high watermark is read: whoever raises it from here on sees that there is somebody to tell.
	p.nAcks.Add(1)
	hw, r := p.log().HighWatermark(), p.role.Load() // in this order, as in Committed
	gone := p.gone.Load()
	if hw < w.offset && gone == nil && r.leadsIn(w.leaderEpoch) {
		p.acks.push(w)
		p.waitMu.Unlock()
		return nil, true
	}
	p.nAcks.Add(-1)
	p.waitMu.Unlock()
	switch {
	case gone != nil && hw < w.offset:
		return gone, false
	case !r.leadsIn(w.leaderEpoch):
		return api.ErrNotLeaderOrFollower, false
	}
	return p.ackError(r), false
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
	p.stMu.Lock()
	prev, end := p.st.role, p.log().EndOffset()
	if next.leader && next.leaderEpoch > prev.leaderEpoch && next.partitionEpoch >= prev.partitionEpoch {
		if err := p.log().AssignEpochStart(next.leaderEpoch, end); err != nil {
			p.stMu.Unlock()
			p.mu.Unlock()
			return fmt.Errorf("lead %s in epoch %d: %w", p.tp, next.leaderEpoch, err)
		}
	}
	taken := p.st.become(p.m.clock.Now(), next, end)
	if taken {
		p.role.Store(p.st.role)
		p.advanceLocked()
	}
	p.stMu.Unlock()
	p.mu.Unlock()
	switch {
	case !taken:
	case next.leaderEpoch != prev.leaderEpoch:
		p.failWaits(api.ErrNotLeaderOrFollower)
	default:
		p.Wake()
	}
	return nil
}

// noteFetch takes what a follower's fetch says: as which the partition was read, r, and the leader's end offset from before.
func (p *Partition) noteFetch(r *role, by *Reader, spec FetchSpec, leaderEnd int64) *api.Error {
	cluster := p.m.image.Load().Cluster
	p.stMu.Lock()
	if !p.st.role.leader || p.st.role.leaderEpoch != r.leaderEpoch {
		p.stMu.Unlock()
		return api.ErrNotLeaderOrFollower
	}
	if err := p.st.fetched(p.m.clock.Now(), by.Follower, by.BrokerEpoch, spec.FetchOffset, spec.LogStartOffset, leaderEnd, cluster); err != nil {
		p.stMu.Unlock()
		return err
	}
	moved := p.advanceLocked()
	low := int64(-1)
	if p.nDelete.Load() > 0 {
		low = p.st.lowWatermark(p.log().LogStartOffset(), cluster)
	}
	var change *proposal
	if p.m.alter != nil {
		change = p.st.expand(by.Follower, p.log().HighWatermark(), cluster)
	}
	p.stMu.Unlock()
	if change != nil {
		p.m.alter.submit(p, change)
	}
	if moved {
		p.Wake()
	}
	if low >= 0 {
		p.wakeDeletes(low, nil)
	}
	return nil
}

// lowWatermark is the smallest log start offset of the replicas in service.
func (p *Partition) lowWatermark() int64 {
	p.stMu.Lock()
	defer p.stMu.Unlock()
	return p.st.lowWatermark(p.log().LogStartOffset(), p.m.image.Load().Cluster)
}

// parkDeleted parks w until the low watermark has reached its offset, unless it has or never will, led from here.
func (p *Partition) parkDeleted(w ackWait) (err *api.Error, parked bool) {
	p.waitMu.Lock()
	p.deletes = append(p.deletes, w)
	p.nDelete.Add(1)
	p.waitMu.Unlock()
	// From here on a fetch that moves the low watermark finds the wait. What moved it before is seen now.
	err = p.gone.Load()
	if err == nil && !p.role.Load().leader {
		err = api.ErrNotLeaderOrFollower
	}
	if err != nil || p.lowWatermark() >= w.offset {
		// Whoever takes it out answers it.
		return err, !p.unparkDeleted(w.op)
	}
	return nil, true
}

// unparkDeleted takes a wait of op out and says whether there was one.
func (p *Partition) unparkDeleted(op *AckOp) bool {
	p.waitMu.Lock()
	defer p.waitMu.Unlock()
	i := slices.IndexFunc(p.deletes, func(w ackWait) bool { return w.op == op })
	if i < 0 {
		return false
	}
	p.deletes = slices.Delete(p.deletes, i, i+1)
	p.nDelete.Add(-1)
	return true
}

// wakeDeletes settles the waits that the low watermark has reached, with err all of them.
func (p *Partition) wakeDeletes(low int64, err *api.Error) {
	if p.nDelete.Load() == 0 {
		return
	}
	var over []ackWait
	p.waitMu.Lock()
	p.deletes = slices.DeleteFunc(p.deletes, func(w ackWait) bool {
		done := err != nil || w.offset <= low
		if done {
			over = append(over, w)
		}
		return done
	})
	p.nDelete.Add(-int32(len(over)))
	p.waitMu.Unlock()
	for _, w := range over {
		w.op.settle(w.index, err)
	}
}

// letIn proposes that a follower enter the ISR which was kept out only by what the metadata said of its broker.
func (p *Partition) letIn() {
	if p.nDelete.Load() > 0 {
		p.wakeDeletes(p.lowWatermark(), nil) // a broker that is gone isn't waited for
	}
	if r := p.role.Load(); !r.leader || len(r.isr) == len(r.replicas) {
		return
	}
	p.stMu.Lock()
	change := p.expandLocked()
	p.stMu.Unlock()
	if change != nil {
		p.m.alter.submit(p, change)
	}
}

func (p *Partition) expandLocked() *proposal {
	cluster := p.m.image.Load().Cluster
	for _, id := range p.st.role.replicas {
		if change := p.st.expand(id, p.log().HighWatermark(), cluster); change != nil {
			return change
		}
	}
	return nil
}

// checkISR proposes to take followers that lag out of the ISR.
func (p *Partition) checkISR() {
	r := p.role.Load()
	if !r.leader || r.alone() || p.gone.Load() != nil {
		return
	}
	p.stMu.Lock()
	change := p.st.shrink(p.m.clock.Now(), p.log().EndOffset(), p.m.lag)
	moved := p.advanceLocked() // a replica that was waited for may have had its time
	p.stMu.Unlock()
	if change != nil {
		p.m.logger.Info("replicas lag and leave the ISR", "partition", p.tp.String(), "isr", r.isr, "left", change.isr)
		p.m.alter.submit(p, change)
	}
	if moved {
		p.Wake()
	}
}

// isrAnswered takes the controller's answer to a proposal, and says whether to ask again.
func (p *Partition) isrAnswered(change *proposal, a isrAnswer, err *api.Error) (retry bool) {
	p.stMu.Lock()
	retry, changed := p.st.answered(change, a, err)
	var next *proposal
	if changed {
		p.role.Store(p.st.role)
		p.advanceLocked()
		if err == nil {
			next = p.expandLocked()
		}
	}
	p.stMu.Unlock()
	if next != nil {
		p.m.alter.submit(p, next)
	}
	if changed {
		p.Wake()
	}
	return retry && p.gone.Load() == nil
}

// drop marks the partition as gone and fails who waits on it with err. It waits for appends under way, and for a log that takes the
// place of another.
func (p *Partition) drop(err *api.Error) { p.dropIf(func() bool { return true }, err) }

// dropIf is drop if cond holds while nobody appends, and says whether it does.
func (p *Partition) dropIf(cond func() bool, err *api.Error) bool {
	p.mu.Lock()
	does := cond()
	if does {
		p.gone.Store(err)
	}
	p.mu.Unlock()
	if does {
		p.failWaits(err)
	}
	return does
}

func (p *Partition) failWaits(err *api.Error) {
	p.waitMu.Lock()
	acks := p.acks.popAll(nil)
	p.nAcks.Add(-int32(len(acks)))
	p.waitMu.Unlock()
	for _, w := range acks {
		w.op.settle(w.index, err)
	}
	p.wakeDeletes(0, err)
	p.wakeFetches(true)
}

// SetListener makes f hear of each new high watermark while this broker leads, from the goroutine that moved it; nil ends that.
// f must not block.
func (p *Partition) SetListener(f func(hw int64)) {
	if f == nil {
		p.listener.Store(nil)
		return
	}
	p.listener.Store(&f)
}

// InSync is how many replicas are in sync, and how many there must be for acks=all.
func (p *Partition) InSync() (have, want int) {
	r := p.role.Load()
	return len(r.isr), r.minISR(int(p.minISR.Load()))
}

// ISR lists the in-sync replicas.
func (p *Partition) ISR() []int32 { return slices.Clone(p.role.Load().isr) }
