package raft

import (
	"fmt"
	"slices"
	"sync"

	"gregor/internal/message"
	"gregor/internal/record"
)

// recentBytes bounds the decoded records that are kept for listeners which have not had them yet; a listener that is further
// behind reads the log.
const recentBytes = 16 << 20

// feed tells listeners what is committed. Each has a goroutine of its own.
type feed struct {
	store   *store
	onError func(error)

	mu        sync.Mutex // guards all below
	hw        int64
	leader    LeaderChanged
	recent    []CommittedBatch // written by this node as leader, in order of offsets, committed or not
	bytes     int
	listeners []*subscription
	closed    bool
}

// subscription is one listener.
type subscription struct {
	l    Listener
	wake chan struct{} // holds at most one
	stop chan struct{} // closed to end the goroutine at once
	done chan struct{} // closed when it has ended
	next int64         // guarded by feed.mu: the next offset to hand over, -1 before anything was
	d    *record.Decompressor
	told LeaderChanged // what the listener was told last
}

func (s *subscription) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func newSubscription(l Listener) *subscription {
	return &subscription{
		l: l, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), next: -1, told: noLeader,
		d: record.NewDecompressor(record.DecompressorOptions{MaxBytes: 4 * MaxBatchBytes, MaxIdle: 1}),
	}
}

// noLeader is what every listener takes for granted at the start.
var noLeader = LeaderChanged{LeaderAndEpoch: LeaderAndEpoch{NoLeader, 0}, EpochStart: -1}

func newFeed(st *store, onError func(error)) *feed {
	f := &feed{store: st, onError: onError, leader: noLeader}
	if id, ok := st.latestSnapshot(); ok {
		f.hw = id.Offset // a snapshot holds only what was committed
	}
	return f
}

func (f *feed) register(l Listener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || slices.ContainsFunc(f.listeners, func(s *subscription) bool { return s.l == l }) {
		return
	}
	s := newSubscription(l)
	f.listeners = append(f.listeners, s)
	s.poke()
	go f.run(s)
}

func (f *feed) unregister(l Listener) {
	f.mu.Lock()
	i := slices.IndexFunc(f.listeners, func(s *subscription) bool { return s.l == l })
	if i < 0 {
		f.mu.Unlock()
		return
	}
	s := f.listeners[i]
	f.listeners = slices.Delete(f.listeners, i, i+1)
	f.mu.Unlock()
	close(s.stop)
	<-s.done
}

// close tells all listeners that the node stops, and waits for them.
func (f *feed) close() {
	f.mu.Lock()
	f.closed = true
	all := f.listeners
	f.listeners = nil
	f.mu.Unlock()
	for _, s := range all {
		close(s.stop)
	}
	for _, s := range all {
		<-s.done
		s.l.BeginShutdown()
	}
}

func (f *feed) pokeAll() {
	for _, s := range f.listeners {
		s.poke()
	}
}

func (f *feed) committed(hw int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if hw > f.hw {
		f.hw = hw
		f.pokeAll()
	}
}

func (f *feed) leaderChanged(l LeaderChanged) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leader = l
	f.pokeAll()
}

// appended keeps what this leader wrote, so that the listeners get the very records without decoding them again.
func (f *feed) appended(epoch int32, batches []pendingBatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.listeners) == 0 {
		return
	}
	for _, b := range batches {
		cb := committedBatch(b.data)
		cb.Records = b.records
		f.recent = append(f.recent, cb)
		f.bytes += cb.Bytes
	}
	f.evict()
}

// evict drops what every listener has had, and the oldest beyond the bound.
func (f *feed) evict() {
	low := int64(-1)
	for i, s := range f.listeners {
		if i == 0 || s.next < low {
			low = s.next
		}
	}
	n := 0
	for n < len(f.recent) && (f.recent[n].LastOffset < low || f.bytes > recentBytes) {
		f.bytes -= f.recent[n].Bytes
		f.recent[n] = CommittedBatch{}
		n++
	}
	f.recent = f.recent[n:]
	if len(f.recent) == 0 {
		f.recent = nil
	}
}

func (f *feed) truncated(offset int64, restarted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if restarted {
		f.recent, f.bytes = nil, 0
		return
	}
	for n := len(f.recent); n > 0 && f.recent[n-1].LastOffset >= offset; n-- {
		f.bytes -= f.recent[n-1].Bytes
		f.recent = f.recent[:n-1]
	}
}

func committedBatch(b record.Batch) CommittedBatch {
	return CommittedBatch{
		BaseOffset: b.BaseOffset(), LastOffset: b.LastOffset(), Epoch: b.PartitionLeaderEpoch(),
		AppendTime: b.MaxTimestamp(), Bytes: b.Size(),
	}
}

// run hands over to one listener.
func (f *feed) run(s *subscription) {
	defer close(s.done)
	for {
		select {
		case <-s.stop:
			return
		case <-s.wake:
		}
		for moved := true; moved; {
			select {
			case <-s.stop:
				return
			default:
			}
			var err error
			if moved, err = f.handOver(s); err != nil {
				f.onError(err)
				return
			}
		}
	}
}

// handOver tells the listener of what comes next, a piece at a time; false when there is nothing for it.
func (f *feed) handOver(s *subscription) (moved bool, err error) {
	f.mu.Lock()
	hw, leader := f.hw, f.leader
	next := s.next
	var ready []CommittedBatch
	if next >= 0 && next < hw {
		i, ok := slices.BinarySearchFunc(f.recent, next, func(b CommittedBatch, o int64) int { return int(b.BaseOffset - o) })
		// There are gaps where another node led in between.
		for j, at := i, next; ok && j < len(f.recent) && f.recent[j].BaseOffset == at && f.recent[j].LastOffset < hw; j++ {
			ready = append(ready, f.recent[j])
			at = f.recent[j].LastOffset + 1
		}
	}
	f.mu.Unlock()
	// Who was told that it leads, and leads again, has lost the epoch in between, and with it what it thought to be written. It
	// must know before it hears of anything that was committed since, or it takes that for its own.
	if s.told.EpochStart >= 0 && leader.EpochStart >= 0 && leader != s.told {
		s.told = LeaderChanged{LeaderAndEpoch: LeaderAndEpoch{NoLeader, leader.Epoch}, EpochStart: -1}
		s.l.HandleLeaderChange(s.told.LeaderAndEpoch)
		return true, nil
	}
	// A leader's listener learns that it leads when it has had everything from before its epoch and the epoch's first record
	// is committed.
	if leader != s.told && (leader.EpochStart < 0 || next > leader.EpochStart) {
		s.told = leader
		s.l.HandleLeaderChange(leader.LeaderAndEpoch)
		return true, nil
	}
	if next < 0 || next < hw && ready == nil {
		return f.catchUp(s, next, hw)
	}
	for _, b := range ready {
		s.l.HandleCommit(b)
		f.advance(s, b.LastOffset+1)
	}
	return len(ready) > 0, nil
}

func (f *feed) advance(s *subscription, next int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.next = next
	f.evict()
}

// catchUp hands over from the disk: the latest snapshot at the start and when the log no longer has what comes next, else a
// piece of the log. The bootstrap snapshot is passed by: the first leader wrote its records to the log.
func (f *feed) catchUp(s *subscription, next, hw int64) (moved bool, err error) {
	if next < 0 || next < f.store.log.StartOffset() {
		id, ok := f.store.latestSnapshot()
		if ok && id != bootstrapID && id.Offset > next {
			r, err := f.store.openSnapshot(id)
			if err != nil {
				return false, err
			}
			s.l.HandleSnapshot(r)
			if err := r.Close(); err != nil {
				return false, err
			}
			if r.err != nil {
				return false, r.err
			}
			f.advance(s, id.Offset)
			return true, nil
		}
		if next >= 0 {
			return false, fmt.Errorf("raft: listener is at %d, the log begins at %d, and there is no snapshot", next, f.store.log.StartOffset())
		}
		f.advance(s, 0)
		return true, nil
	}
	data, err := f.store.log.Read(next, readChunk)
	if err != nil {
		if next < f.store.log.StartOffset() {
			return true, nil // trimmed meanwhile: look again
		}
		return false, fmt.Errorf("raft: read the log at %d: %w", next, err)
	}
	for len(data) > 0 {
		b, rest, err := record.Next(data)
		if err != nil {
			break // the read ends within a batch
		}
		data = rest
		if b.NextOffset() <= next {
			continue
		}
		if b.LastOffset() >= hw {
			break
		}
		if err := b.Check(); err != nil {
			return false, fmt.Errorf("raft: batch at %d: %w", b.BaseOffset(), err)
		}
		cb := committedBatch(b)
		if !b.IsControl() {
			var records []message.Versioned
			if records, err = dataRecords(b, s.d); err != nil {
				return false, err
			}
			cb.Records = records
		}
		s.l.HandleCommit(cb)
		f.advance(s, b.NextOffset())
		moved = true
		select {
		case <-s.stop:
			return false, nil
		default:
		}
	}
	return moved, nil
}
