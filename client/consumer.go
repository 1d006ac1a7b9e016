package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"sync"
	"time"

	"gregor/internal/uuid"
)

// Reset says where to begin in a partition without a (valid) offset (auto.offset.reset).
type Reset int8

const (
	ResetLatest     Reset = iota // only what comes from now on
	ResetEarliest                // everything there is
	ResetNone                    // Poll fails
	ResetByDuration              // what is not older than ResetDuration
)

// Protocol is how a group works (group.protocol).
type Protocol int8

const (
	ClassicProtocol  Protocol = iota // members assign
	ConsumerProtocol                 // the coordinator assigns (KIP-848)
)

// Leave says what a consumer that is closed tells its group.
type Leave int8

const (
	LeaveDefault  Leave = iota // it leaves, but a static member may come back
	LeaveGroup                 // it leaves, and its partitions are handed on at once
	RemainInGroup              // nothing: its partitions wait until its session ends
)

// ConsumerOptions configure a Consumer. It reads either Partitions, or, as a member of Group, its share of what it subscribes
// to. What is subscribed or assigned can be changed later; all of Topics, Regexp, Pattern and Partitions may be left out.
type ConsumerOptions struct {
	// Group is the group to join (group.id); it also keeps committed offsets when Partitions are given.
	Group  string
	Topics []string
	// Regexp subscribes to all topics that it fits, now and later; the client matches.
	Regexp *regexp.Regexp
	// Pattern subscribes to all topics that this RE2 expression fits; the coordinator matches. Only with ConsumerProtocol.
	Pattern string
	// Partitions to read without group membership, and from where: an offset, Earliest, Latest, or Committed.
	Partitions map[TopicPartition]int64
	// Reset applies where the group has no offset or the offset isn't there any more; ResetDuration is for ResetByDuration.
	Reset         Reset
	ResetDuration time.Duration
	// ReadCommitted leaves out records of transactions that are open or aborted (isolation.level=read_committed).
	ReadCommitted bool
	// MinBytes, MaxWait, MaxBytes, PartitionBytes as Kafka's fetch.min.bytes (1), fetch.max.wait.ms (500 ms), fetch.max.bytes
	// (50 MiB), max.partition.fetch.bytes (1 MiB).
	MinBytes       int32
	MaxWait        time.Duration
	MaxBytes       int32
	PartitionBytes int32
	// BufferBytes bounds what is fetched and not yet returned by Poll, as it comes from the brokers. Besides it, one batch is
	// decompressed at a time. Default 64 MiB.
	BufferBytes int
	// MaxPoll is the most records that one Poll returns (max.poll.records). Default 500.
	MaxPoll int
	// MaxPollInterval is how long the caller may stay away from Poll before its partitions are given to others
	// (max.poll.interval.ms), and how long a rebalance waits for members. Default 5 min.
	MaxPollInterval time.Duration
	// AutoCommit is how often offsets of records from earlier Polls are committed; 0 is every 5 s, negative is never
	// (enable.auto.commit, auto.commit.interval.ms).
	AutoCommit time.Duration
	// Protocol of the group. With ConsumerProtocol, Session, Heartbeat and Assignors are the coordinator's business.
	Protocol Protocol
	// ServerAssignor is the coordinator's assignor with ConsumerProtocol (group.remote.assignor); "" leaves it the choice.
	ServerAssignor string
	// Session (45 s) and Heartbeat (3 s) of a classic group (session.timeout.ms, heartbeat.interval.ms).
	Session, Heartbeat time.Duration
	// InstanceID makes a static member (group.instance.id, KIP-345).
	InstanceID string
	// Rack is where the consumer is (client.rack): it may be given a replica nearby to read from.
	Rack string
	// Assignors of a classic group by preference. Default: range and cooperative-sticky, like Java, of which a group of new
	// members uses range.
	Assignors []Assignor
	// CreateTopics lets brokers that are configured so create topics that are subscribed to (allow.auto.create.topics).
	CreateTopics bool
	// OnAssigned, OnRevoked and OnLost hear of changes. They are called by Poll and Close, on the caller's goroutine, and a
	// rebalance waits for them. Partitions revoked are still owned while OnRevoked runs, so that it can commit; partitions lost may
	// be someone else's already. Without OnLost, OnRevoked is called for lost ones, too.
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
	def(&o.MaxPollInterval, 5*time.Minute)
	def32 := func(n *int32, v int32) {
		if *n <= 0 {
			*n = v
		}
	}
	def32(&o.MinBytes, 1)
	def32(&o.MaxBytes, 50<<20)
	def32(&o.PartitionBytes, 1<<20)
	if o.BufferBytes <= 0 {
		o.BufferBytes = 64 << 20
	}
	if o.MaxPoll <= 0 {
		o.MaxPoll = 500
	}
	if len(o.Assignors) == 0 {
		o.Assignors = []Assignor{RangeAssignor{}, CooperativeStickyAssignor{}}
	}
}

func (o *ConsumerOptions) check() error {
	subscribes := 0
	for _, is := range []bool{len(o.Topics) > 0, o.Regexp != nil, o.Pattern != ""} {
		if is {
			subscribes++
		}
	}
	switch {
	case len(o.Partitions) > 0 && subscribes > 0:
		return errors.New("a consumer reads either partitions or, in a group, topics")
	case subscribes > 1:
		return errors.New("a consumer subscribes either to topics, or by Regexp, or by Pattern")
	case subscribes > 0 && o.Group == "":
		return errors.New("a consumer of topics needs a group")
	case o.Pattern != "" && o.Protocol != ConsumerProtocol:
		return errors.New("a Pattern needs ConsumerProtocol; Regexp works with both protocols")
	case o.Reset == ResetByDuration && o.ResetDuration <= 0:
		return errors.New("ResetByDuration needs a ResetDuration")
	}
	return nil
}

// TruncationError says that the log no longer has what was read before: a leader was elected that hadn't got it. The next Poll
// returns it only with ResetNone; otherwise reading goes on where the logs part.
type TruncationError struct {
	TopicPartition
	// Offset and LeaderEpoch are where the consumer was.
	Offset      int64
	LeaderEpoch int32
	// DivergentOffset is up to where the logs agree, -1 if that is unknown.
	DivergentOffset int64
}

func (e *TruncationError) Error() string {
	return fmt.Sprintf("partition %v: log truncated: offset %d of epoch %d is gone, the logs agree up to %d", e.TopicPartition, e.Offset, e.LeaderEpoch, e.DivergentOffset)
}

// Consumer reads records. It has two sides: the caller's, which is Poll and the other methods, and a goroutine that owns all that
// has to do with the network. Safe for concurrent use, though records of a partition come in order only to one poller.
type Consumer struct {
	c *Client
	o ConsumerOptions

	mu        sync.Mutex
	parts     map[TopicPartition]*consumed // guarded by mu, as is all below
	dirty     []*consumed                  // whose position run is to be told
	ready     []*fetched                   // in the order of their coming
	freed     []freed
	hand      []*fetched // taken out of ready and being decoded
	callbacks []effectCallback
	async     map[*ticket]struct{} // of CommitAsync, not answered
	told      []func()             // callbacks of CommitAsync, for Poll to call
	errs      []error              // each for one Poll
	fatal     error
	notify    chan struct{} // closed and replaced when there's something for Poll
	events    []any         // for run
	polling   int           // calls of Poll under way
	polled    time.Time
	waiting   bool // run waits for the caller to come back to Poll
	member    memberIdentity

	wake   chan struct{} // tells run to look at events
	lanes  [3]purpose
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

// consumed is a partition on the caller's side.
type consumed struct {
	tp        TopicPartition
	gen       uint64
	position  int64 // next record for Poll to return
	epoch     int32 // of the last record returned, -1 unknown
	valid     bool  // position is known
	processed int64 // position as of the Poll before: what may be committed
	dirty     bool
	paused    bool
	end       int64 // high watermark or last stable offset, -1 unknown
}

// NewConsumer starts a consumer.
func (c *Client) NewConsumer(o ConsumerOptions) (*Consumer, error) {
	o.setDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	u := &Consumer{
		c: c, o: o, parts: map[TopicPartition]*consumed{}, notify: make(chan struct{}), wake: make(chan struct{}, 1),
		member: memberIdentity{generation: -1}, polled: time.Now(), async: map[*ticket]struct{}{},
		lanes: [3]purpose{forRequests, c.pool.newPurpose(), c.pool.newPurpose()},
	}
	u.ctx, u.cancel = context.WithCancelCause(context.Background())
	k := newCore(&coreOptions{
		ConsumerOptions: o, timeout: c.o.Timeout, requestTimeout: c.o.RequestTimeout, backoffLow: c.o.RetryBackoff,
		backoffHigh: c.o.RetryBackoffMax, metadataMaxAge: c.o.MetadataMaxAge,
	}, c.o.Logger, c.float, c.newID)
	switch {
	case len(o.Partitions) > 0:
		u.events = append(u.events, eventAssign{o.Partitions})
	case len(o.Topics) > 0 || o.Regexp != nil || o.Pattern != "":
		u.events = append(u.events, eventSubscribe{o.Topics, o.Regexp, o.Pattern})
	}
	u.wg.Go(func() { u.run(k) })
	u.signal()
	return u, nil
}

// float draws from 0 to 1.
func (c *Client) float() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.Float64()
}

// newID makes an id for a group's member.
func (c *Client) newID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, _ := uuid.New(randReader{c.rand}) // reading random numbers doesn't fail
	return id.String()
}

// Poll waits for records. It returns as soon as there are some, with an error that concerns the consumer once, or whenever it is
// called if the consumer can't go on, or when ctx ends. It also calls the listeners. Records stay good for as long as they are
// held; those of one batch are held together.
func (u *Consumer) Poll(ctx context.Context) ([]*Record, error) {
	u.begin()
	defer u.end()
	for {
		u.runCallbacks()
		u.mu.Lock()
		if err := u.nextError(); err != nil {
			u.mu.Unlock()
			return nil, err
		}
		notify := u.notify
		u.mu.Unlock()
		records, err := u.take()
		if err != nil || len(records) > 0 {
			return records, err
		}
		select {
		case <-notify:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Records iterates over what Poll returns, until ctx ends or an error, which comes last. What was yielded counts as processed
// when the next record is asked for; so a loop that breaks has not processed the record it broke at.
func (u *Consumer) Records(ctx context.Context) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for {
			records, err := u.Poll(ctx)
			for i, r := range records {
				if !yield(r, nil) {
					u.unread(records[i:])
					return
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// unread puts records back that the caller has not seen through: the next Poll begins with the first of each partition.
func (u *Consumer) unread(records []*Record) {
	seen := map[TopicPartition]bool{}
	for _, r := range records {
		tp := TopicPartition{r.Topic, r.Partition}
		if !seen[tp] {
			seen[tp] = true
			u.Seek(tp, r.Offset) // it may have been taken away meanwhile
		}
	}
}

// nextError takes the error that Poll is to return. mu is held.
func (u *Consumer) nextError() error {
	if len(u.errs) > 0 {
		err := u.errs[0]
		u.errs = u.errs[1:]
		return err
	}
	return u.fatal
}

// begin counts what earlier Polls returned as processed.
func (u *Consumer) begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.dirty {
		p.processed = p.position
	}
	u.polling++
	u.polled = time.Now()
	if u.waiting {
		u.signal()
	}
}

func (u *Consumer) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.polling--
	u.polled = time.Now()
}

// runCallbacks calls listeners and callbacks of commits. A callback belongs to whoever takes it.
func (u *Consumer) runCallbacks() {
	for {
		u.mu.Lock()
		if len(u.told) > 0 {
			f := u.told[0]
			u.told = u.told[1:]
			u.mu.Unlock()
			f()
			continue
		}
		if len(u.callbacks) == 0 {
			u.mu.Unlock()
			return
		}
		c := u.callbacks[0]
		u.callbacks = u.callbacks[1:]
		u.mu.Unlock()
		switch {
		case c.kind == callAssigned:
			u.o.OnAssigned(c.tps)
		case c.kind == callRevoked || u.o.OnLost == nil:
			u.o.OnRevoked(c.tps)
		default:
			u.o.OnLost(c.tps)
		}
		u.post(eventCallbackDone{id: c.id})
	}
}

// wakePollers tells Poll to look again. mu is held.
func (u *Consumer) wakePollers() {
	close(u.notify)
	u.notify = make(chan struct{})
}

// post hands an event to run.
func (u *Consumer) post(e any) {
	u.mu.Lock()
	u.events = append(u.events, e)
	u.mu.Unlock()
	u.signal()
}

func (u *Consumer) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// ask posts an event with a ticket and waits.
func (u *Consumer) ask(ctx context.Context, t *ticket, e any) error {
	u.post(e)
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-u.ctx.Done():
		return ErrClosed
	}
}

// Subscribe changes the topics of a group's member.
func (u *Consumer) Subscribe(topics ...string) error {
	return u.subscribe(eventSubscribe{topics: slices.Clone(topics)})
}

// SubscribeRegexp subscribes to all topics that an expression fits; the client matches.
func (u *Consumer) SubscribeRegexp(re *regexp.Regexp) error {
	return u.subscribe(eventSubscribe{expression: re})
}

// SubscribePattern subscribes to all topics that an RE2 expression fits; the coordinator matches.
func (u *Consumer) SubscribePattern(re2 string) error {
	if u.o.Protocol != ConsumerProtocol {
		return errors.New("only ConsumerProtocol has patterns that the coordinator matches")
	}
	return u.subscribe(eventSubscribe{pattern: re2})
}

func (u *Consumer) subscribe(e eventSubscribe) error {
	if u.o.Group == "" {
		return errors.New("a consumer of topics needs a group")
	}
	u.post(e)
	return nil
}

// Unsubscribe gives up everything and leaves the group.
func (u *Consumer) Unsubscribe(ctx context.Context) error {
	t := newTicket()
	u.post(eventUnsubscribe{t})
	return u.await(ctx, t)
}

// await waits for a ticket and calls listeners meanwhile.
func (u *Consumer) await(ctx context.Context, t *ticket) error {
	for {
		u.mu.Lock()
		notify := u.notify
		u.mu.Unlock()
		u.runCallbacks()
		select {
		case <-notify:
		case <-t.done:
			return t.err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-u.ctx.Done():
			return ErrClosed
		}
	}
}

// Assign reads these partitions and no others, without group membership. Partitions that are being read go on where they are.
func (u *Consumer) Assign(at map[TopicPartition]int64) {
	c := make(map[TopicPartition]int64, len(at))
	for tp, o := range at {
		c[tp] = o
	}
	u.post(eventAssign{c})
}

// Assignment lists the partitions being read.
func (u *Consumer) Assignment() []TopicPartition {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.SortedFunc(mapKeys(u.parts), compareTP)
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
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
	if p == nil || !p.valid || p.end < 0 {
		return 0, false
	}
	return max(0, p.end-p.position), true
}

// Seek continues a partition at another offset, or at Earliest or Latest. Poll returns nothing from before.
func (u *Consumer) Seek(tp TopicPartition, offset int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.parts[tp]
	if p == nil {
		return fmt.Errorf("partition %v is not assigned", tp)
	}
	// What is fetched belongs to the old place, and the generation that the core will give is not known yet.
	p.gen, p.valid, p.dirty = 0, false, false
	u.purge([]TopicPartition{tp})
	u.events = append(u.events, eventSeek{tp, offset, -1})
	u.signal()
	return nil
}

// Pause stops returning partitions' records until Resume.
func (u *Consumer) Pause(tps ...TopicPartition) { u.setPaused(tps, true) }

// Resume undoes Pause.
func (u *Consumer) Resume(tps ...TopicPartition) { u.setPaused(tps, false) }

func (u *Consumer) setPaused(tps []TopicPartition, paused bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, tp := range tps {
		if p := u.parts[tp]; p != nil {
			p.paused = paused
		}
	}
	u.events = append(u.events, eventPause{slices.Clone(tps), paused})
	u.wakePollers()
	u.signal()
}

// Paused lists the partitions that are paused.
func (u *Consumer) Paused() []TopicPartition {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []TopicPartition
	for tp, p := range u.parts {
		if p.paused {
			out = append(out, tp)
		}
	}
	slices.SortFunc(out, compareTP)
	return out
}

// Commit commits the offsets of everything that Poll has returned.
func (u *Consumer) Commit(ctx context.Context) error {
	t := newTicket()
	return u.ask(ctx, t, u.commitAll(t, false))
}

// CommitAsync is Commit that doesn't wait and doesn't try again: Poll or Close calls done, once, with what came of it. Close waits
// for it.
func (u *Consumer) CommitAsync(done func(error)) {
	t := newTicket()
	t.notify = done
	if done == nil {
		t.notify = func(error) {}
	}
	u.mu.Lock()
	if u.ctx.Err() != nil {
		u.mu.Unlock()
		t.notify(ErrClosed)
		return
	}
	u.async[t] = struct{}{}
	u.mu.Unlock()
	u.post(u.commitAll(t, true))
}

// commitAll counts everything returned as processed.
func (u *Consumer) commitAll(t *ticket, once bool) eventCommit {
	if u.o.Group == "" {
		return eventCommit{ticket: t}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.dirty {
		p.processed = p.position
	}
	return eventCommit{ticket: t, once: once}
}

// CommitOffsets commits these offsets.
func (u *Consumer) CommitOffsets(ctx context.Context, offsets []CommittedOffset) error {
	if u.o.Group == "" {
		return errNoGroup
	}
	if len(offsets) == 0 {
		return nil
	}
	t := newTicket()
	return u.ask(ctx, t, eventCommit{ticket: t, offsets: slices.Clone(offsets)})
}

// CommittedOffsets asks for the group's committed offsets in partitions.
func (u *Consumer) CommittedOffsets(ctx context.Context, tps ...TopicPartition) ([]CommittedOffset, error) {
	ctx, cancel := u.c.deadline(ctx)
	defer cancel()
	t := newTicket()
	if err := u.ask(ctx, t, eventCommitted{t, slices.Clone(tps)}); err != nil {
		return nil, err
	}
	return t.offsets, nil
}

// GroupMember says which member of its group a consumer is now: its id, and its generation or member epoch, -1 for none.
func (u *Consumer) GroupMember() (id string, generation int32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.member.id, u.member.generation
}

// Close commits (with AutoCommit), leaves the group and stops.
func (u *Consumer) Close(ctx context.Context) error { return u.CloseWith(ctx, LeaveDefault) }

// CloseWith is Close that says what to tell the group.
func (u *Consumer) CloseWith(ctx context.Context, how Leave) error {
	u.mu.Lock()
	for _, p := range u.dirty {
		p.processed = p.position
	}
	u.mu.Unlock()
	t := newTicket()
	u.post(eventClose{t, how})
	err := u.await(ctx, t)
	if errors.Is(err, ErrClosed) {
		err = nil // closed before
	}
	u.cancel(ErrClosed)
	u.c.pool.drop(u.lanes[laneGroup])
	u.c.pool.drop(u.lanes[laneFetch])
	u.wg.Wait()
	u.mu.Lock()
	u.fatal, u.errs, u.ready = ErrClosed, nil, nil
	for t := range u.async {
		u.told = append(u.told, func() { t.notify(ErrClosed) })
	}
	clear(u.async)
	told := u.told
	u.told = nil
	u.wakePollers()
	u.mu.Unlock()
	for _, f := range told {
		f()
	}
	return err
}
