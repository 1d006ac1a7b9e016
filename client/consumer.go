package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Reset says where to begin in a partition without a (valid) offset.
type Reset int8

const (
	ResetLatest   Reset = iota // only what comes from now on
	ResetEarliest              // everything there is
	ResetNone                  // fail
)

// ConsumerOptions configure a Consumer. It reads either Partitions, or, as a member of Group, its share of Topics.
type ConsumerOptions struct {
	// Group is the group to join; it also keeps committed offsets when Partitions are given.
	Group  string
	Topics []string
	// Partitions to read without group membership, and from where: an offset, Earliest, Latest, or Committed.
	Partitions map[TopicPartition]int64
	// Reset applies where the group has no offset or the offset isn't there any more.
	Reset Reset
	// Committed leaves out records of transactions that are open or aborted (isolation.level=read_committed).
	ReadCommitted bool
	// MinBytes, MaxWait, MaxBytes, PartitionBytes as Kafka's fetch.min.bytes (1), fetch.max.wait.ms (500 ms), fetch.max.bytes
	// (50 MiB), max.partition.fetch.bytes (1 MiB).
	MinBytes       int32
	MaxWait        time.Duration
	MaxBytes       int32
	PartitionBytes int32
	// MaxPoll is about how many records one Poll returns. Default 500.
	MaxPoll int
	// AutoCommit is how often offsets of records from earlier Polls are committed; 0 is every 5 s, negative is never.
	AutoCommit time.Duration
	// Session (45 s), Heartbeat (3 s) and Rebalance (5 min) timeouts of the group.
	Session, Heartbeat, Rebalance time.Duration
	// InstanceID makes a static member (KIP-345).
	InstanceID string
	// Assignors by preference. Default: range and cooperative-sticky, like Java, of which a group of new members uses range.
	Assignors []Assignor
	// OnAssigned, OnRevoked and OnLost hear of changes, from the consumer's own goroutine, and hold up the rebalance meanwhile.
	OnAssigned, OnRevoked, OnLost func([]TopicPartition)
}

// Committed, as an offset in ConsumerOptions.Partitions, is the group's committed one.
const Committed int64 = -1000

func (o *ConsumerOptions) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.MaxWait, 500*time.Millisecond)
	def(&o.AutoCommit, 5*time.Second)
	def(&o.Session, 45*time.Second)
	def(&o.Heartbeat, 3*time.Second)
	def(&o.Rebalance, 5*time.Minute)
	def32 := func(n *int32, v int32) {
		if *n <= 0 {
			*n = v
		}
	}
	def32(&o.MinBytes, 1)
	def32(&o.MaxBytes, 50<<20)
	def32(&o.PartitionBytes, 1<<20)
	if o.MaxPoll <= 0 {
		o.MaxPoll = 500
	}
	if len(o.Assignors) == 0 {
		o.Assignors = []Assignor{RangeAssignor{}, CooperativeStickyAssignor{}}
	}
}

// Consumer reads records. One goroutine of its own owns the group membership and decides what is fetched; Poll decodes. Safe
// for concurrent use, though records of a partition come in order only to one poller.
type Consumer struct {
	c *Client
	o ConsumerOptions

	mu     sync.Mutex
	parts  map[TopicPartition]*consumed // guarded by mu, as is all below
	ready  []*consumed                  // those with data, in turn
	fatal  error
	notify chan struct{} // closed and replaced when there's something for Poll
	member membership

	core       groupCore // run's own, as is all below
	nextCommit time.Time
	nextCheck  time.Time
	counts     map[string]int32 // partitions by topic when the group's leader assigned them
	events     chan func()
	fetching   map[int32]bool // brokers with a fetch under way

	forFetch, forGroup purpose

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

// membership is what commits need.
type membership struct {
	id         string
	generation int32
}

// consumed is a partition being read.
type consumed struct {
	tp        TopicPartition
	position  int64 // next record for Poll to return; or a special offset
	valid     bool  // position is an offset
	processed int64 // position as of the Poll before: what may be committed
	committed int64
	epoch     int32 // of the last record returned
	paused    bool
	resolving bool
	inFlight  bool
	dropped   bool // revoked: late answers don't count
	data      *fetched
	lag       int64 // high watermark (or last stable offset) less position; -1 unknown
	notBefore time.Time
	failures  int
}

// NewConsumer starts a consumer.
func (c *Client) NewConsumer(o ConsumerOptions) (*Consumer, error) {
	o.setDefaults()
	switch {
	case len(o.Partitions) > 0 && len(o.Topics) > 0:
		return nil, errors.New("a consumer reads either partitions or, in a group, topics")
	case len(o.Partitions) == 0 && o.Group == "":
		return nil, errors.New("a consumer of topics needs a group")
	case len(o.Partitions) == 0 && len(o.Topics) == 0:
		return nil, errors.New("a consumer needs topics or partitions")
	}
	u := &Consumer{
		c: c, o: o, parts: map[TopicPartition]*consumed{}, notify: make(chan struct{}), events: make(chan func(), 64),
		fetching: map[int32]bool{}, member: membership{generation: -1},
		forFetch: c.pool.newPurpose(), forGroup: c.pool.newPurpose(),
	}
	u.ctx, u.cancel = context.WithCancelCause(context.Background())
	u.core = groupCore{
		assignors: o.Assignors, instance: o.InstanceID, session: o.Session, heartbeat: o.Heartbeat, generation: -1,
		subscribed: slices.Sorted(slices.Values(o.Topics)),
	}
	for tp, at := range o.Partitions {
		u.parts[tp] = newConsumed(tp, at)
	}
	u.wg.Add(1)
	go u.run()
	return u, nil
}

func newConsumed(tp TopicPartition, at int64) *consumed {
	p := &consumed{tp: tp, position: at, valid: at >= 0, processed: -1, committed: -1, epoch: -1, lag: -1}
	if p.valid {
		p.processed = at
	}
	return p
}

func (u *Consumer) grouped() bool { return len(u.o.Partitions) == 0 }

// Poll waits for records. It returns as soon as there are some, with an error once the consumer can't go on (a group that
// refuses it, ResetNone without an offset), or when ctx ends.
func (u *Consumer) Poll(ctx context.Context) ([]*Record, error) {
	first := true
	for {
		u.mu.Lock()
		if first {
			for _, p := range u.parts {
				if p.valid {
					p.processed = p.position
				}
			}
			first = false
		}
		if u.fatal != nil {
			err := u.fatal
			u.mu.Unlock()
			return nil, err
		}
		records, err := u.take()
		notify := u.notify
		u.mu.Unlock()
		if err != nil {
			return records, err
		}
		if len(records) > 0 {
			u.post(func() {}) // there is room for another fetch
			return records, nil
		}
		select {
		case <-notify:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// take decodes buffered data until MaxPoll records are there. mu is held.
func (u *Consumer) take() ([]*Record, error) {
	var out []*Record
	for len(u.ready) > 0 && len(out) < u.o.MaxPoll {
		p := u.ready[0]
		if p.dropped || p.data == nil || p.paused {
			u.ready = u.ready[1:]
			continue
		}
		records, more, err := p.data.next(u.c, p.position)
		if err != nil {
			p.data, u.ready = nil, u.ready[1:]
			if len(out) > 0 {
				return out, nil // it comes again with the next fetch
			}
			return nil, fmt.Errorf("partition %v at offset %d: %w", p.tp, p.position, err)
		}
		out = append(out, records...)
		p.position = max(p.position, p.data.nextOffset)
		if n := len(records); n > 0 {
			p.epoch = records[n-1].LeaderEpoch
		}
		p.lag = max(0, p.data.end-p.position)
		if !more {
			p.data, u.ready = nil, u.ready[1:]
			u.post(func() {})
		}
	}
	return out, nil
}

// wakePollers tells Poll to look again. mu is held.
func (u *Consumer) wakePollers() {
	close(u.notify)
	u.notify = make(chan struct{})
}

// post hands work to run and doesn't wait for it, not even for room in the queue.
func (u *Consumer) post(f func()) {
	select {
	case u.events <- f:
	default:
		go func() {
			select {
			case u.events <- f:
			case <-u.ctx.Done():
			}
		}()
	}
}

// Assignment lists the partitions being read.
func (u *Consumer) Assignment() []TopicPartition {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []TopicPartition
	for tp := range u.parts {
		out = append(out, tp)
	}
	slices.SortFunc(out, compareTP)
	return out
}

// Position is the offset of the next record that Poll returns of a partition; ok is false while that's unknown.
func (u *Consumer) Position(tp TopicPartition) (offset int64, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.parts[tp]
	if p == nil || !p.valid {
		return 0, false
	}
	return p.position, true
}

// Lag is how many offsets a partition's end is ahead of Poll, as of the last fetch; ok is false while that's unknown.
func (u *Consumer) Lag(tp TopicPartition) (n int64, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.parts[tp]
	if p == nil || p.lag < 0 {
		return 0, false
	}
	return p.lag, true
}

// Seek continues a partition at another offset, or at Earliest or Latest.
func (u *Consumer) Seek(tp TopicPartition, offset int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.parts[tp]
	if p == nil {
		return fmt.Errorf("partition %v is not assigned", tp)
	}
	// Late answers for the old position go to the old struct.
	p.dropped = true
	n := newConsumed(tp, offset)
	n.paused, n.committed = p.paused, p.committed
	u.parts[tp] = n
	u.post(func() {})
	return nil
}

// Pause stops returning a partition's records until Resume.
func (u *Consumer) Pause(tp TopicPartition) { u.setPaused(tp, true) }

// Resume undoes Pause.
func (u *Consumer) Resume(tp TopicPartition) { u.setPaused(tp, false) }

func (u *Consumer) setPaused(tp TopicPartition, paused bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.parts[tp]
	if p == nil || p.paused == paused {
		return
	}
	p.paused = paused
	if !paused && p.data != nil && !slices.Contains(u.ready, p) {
		u.ready = append(u.ready, p)
		u.wakePollers()
	}
	u.post(func() {})
}

// Commit commits the offsets of everything that Poll has returned.
func (u *Consumer) Commit(ctx context.Context) error {
	u.mu.Lock()
	for _, p := range u.parts {
		if p.valid {
			p.processed = p.position
		}
	}
	u.mu.Unlock()
	return u.commitProcessed(ctx, nil)
}

// CommitOffsets commits these offsets.
func (u *Consumer) CommitOffsets(ctx context.Context, offsets []CommittedOffset) error {
	if u.o.Group == "" {
		return errors.New("a consumer without a group has nowhere to commit to")
	}
	u.mu.Lock()
	m := u.member
	u.mu.Unlock()
	return u.c.commit(ctx, u.o.Group, m.id, u.instance(), m.generation, offsets)
}

func (u *Consumer) instance() *string {
	if u.o.InstanceID == "" || !u.grouped() {
		return nil
	}
	return &u.o.InstanceID
}

// commitProcessed commits what has been processed of these partitions, or of all, where that is new.
func (u *Consumer) commitProcessed(ctx context.Context, only []TopicPartition) error {
	if u.o.Group == "" {
		return nil
	}
	var offsets []CommittedOffset
	u.mu.Lock()
	for tp, p := range u.parts {
		if p.processed >= 0 && p.processed != p.committed && (only == nil || slices.Contains(only, tp)) {
			offsets = append(offsets, CommittedOffset{TopicPartition: tp, Offset: p.processed, LeaderEpoch: p.epoch})
		}
	}
	u.mu.Unlock()
	if len(offsets) == 0 {
		return nil
	}
	if err := u.CommitOffsets(ctx, offsets); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range offsets {
		if p := u.parts[o.TopicPartition]; p != nil {
			p.committed = o.Offset
		}
	}
	return nil
}

// Close commits (with AutoCommit), leaves the group and stops. A static member stays a member until its session ends.
func (u *Consumer) Close(ctx context.Context) error {
	done := make(chan error, 1)
	u.post(func() { done <- u.shutdown(ctx) })
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-u.ctx.Done():
	}
	u.cancel(ErrClosed)
	u.c.pool.drop(u.forFetch)
	u.c.pool.drop(u.forGroup)
	u.wg.Wait()
	u.mu.Lock()
	if u.fatal == nil {
		u.fatal = ErrClosed
	}
	u.wakePollers()
	u.mu.Unlock()
	return err
}
