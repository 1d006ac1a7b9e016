package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
	"unsafe"

	"gregor/internal/record"
)

// Codec is a compression type.
type Codec = record.Codec

// The compression types.
const (
	NoCompression = record.None
	Gzip          = record.Gzip
	Snappy        = record.Snappy
	LZ4           = record.LZ4
	Zstd          = record.Zstd
)

// Header is a key and a value beside a record; a nil value is null.
type Header struct {
	Key   string
	Value []byte
}

// Record is one record: what is produced, and what is consumed.
type Record struct {
	Topic     string
	Partition int32 // -1 for a producer: by key, or wherever is cheapest
	Offset    int64 // set by the cluster
	// Timestamp; zero when produced is now. Kafka keeps milliseconds.
	Timestamp  time.Time
	Key, Value []byte // nil is null
	Headers    []Header
	// LeaderEpoch of a consumed record, -1 if unknown.
	LeaderEpoch int32
}

// ProducerOptions configure a Producer. The zero value is a good one: acks from all in-sync replicas, idempotent, uncompressed.
type ProducerOptions struct {
	// Acks is whose word is waited for: AllAcks (the zero value), LeaderAck or NoAcks (acks).
	Acks Acks
	// DisableIdempotence allows duplicates after a lost connection, and records that overtake each other when they are tried
	// again (enable.idempotence=false). Acks other than AllAcks imply it.
	DisableIdempotence bool
	// Codec and Level (on Kafka's scale, 0 is the codec's default) of compression (compression.type, compression.*.level).
	Codec Codec
	Level int
	// Linger is how long a batch waits for company (linger.ms). Default 5 ms; negative is not at all.
	Linger time.Duration
	// BatchBytes bounds a batch before compression (batch.size). Default 1,000,000, because a batch takes no more memory than it
	// holds. A larger record goes alone.
	BatchBytes int
	// RequestBytes bounds the batches of a request, before compression (max.request.size). Default 8 MiB.
	RequestBytes int
	// MaxBuffered bounds the bytes waiting; then Produce blocks (buffer.memory). Default 32 MiB.
	MaxBuffered int
	// MaxBlock is how long Produce blocks for room or for a topic to be found (max.block.ms). Default 60 s.
	MaxBlock time.Duration
	// DeliveryTimeout is when a record that couldn't be delivered fails (delivery.timeout.ms). Default 2 min.
	DeliveryTimeout time.Duration
	// MaxInFlight is how many requests may be under way to a broker (max.in.flight.requests.per.connection). Default 5, which is
	// the most with idempotence.
	MaxInFlight int
	// Partitioner picks partitions for records without one. Default: by key, and those without a key to one partition for a
	// batch at a time, more often to partitions whose queues are short (KIP-794).
	Partitioner Partitioner
	// TransactionalID makes the producer transactional (transactional.id): records are produced between Begin and Commit or
	// Abort. TransactionTimeout is when the cluster gives a transaction up (transaction.timeout.ms). Default 60 s.
	TransactionalID    string
	TransactionTimeout time.Duration
	// CreateTopics lets brokers that are configured so create a missing topic.
	CreateTopics bool
}

// Partitioner picks a partition among n for a record. It is called for each record without a partition and must be quick and
// safe for concurrent use.
type Partitioner func(r *Record, n int) int32

// Acks is whose word a producer waits for.
type Acks int8

const (
	AllAcks   Acks = iota // all in-sync replicas
	LeaderAck             // only the leader
	NoAcks                // nobody: records may be lost without a sign
)

func (a Acks) wire() int16 { return [...]int16{-1, 1, 0}[a] }

// Producer sends records, batched by partition, in order within a partition. Safe for concurrent use.
type Producer struct {
	c    *Client
	o    ProducerOptions
	lane purpose

	mu       sync.Mutex
	topics   map[string]*producerTopic // guarded by mu, as is all below
	active   map[*partitionQueue]struct{}
	nodes    map[int32]*producerNode
	buffered int
	blocked  int // calls of Produce that wait for room
	flushing int // calls of Flush under way: linger doesn't count
	batches  map[*batch]struct{}
	room     chan struct{} // closed and replaced when there's room
	closed   bool
	id       producerID
	getting  bool // an id is being asked for
	looking  bool // topics are being looked up
	idRetry  time.Time
	idTries  int
	txn      transaction
	headers  []record.Header // scratch
	free     []*record.Builder
	usual    int // size of a batch, before compression

	wake   chan struct{}
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

type producerID struct {
	id    int64
	epoch int16
	ok    bool
}

// producerTopic is a topic that was produced to.
type producerTopic struct {
	parts   []*partitionQueue // by number, as far as they were used
	info    *Topic            // as of version
	version uint64
	sticky  int32 // where records without a key go now, -1 for undecided
	left    int   // bytes until that changes
}

// partitionQueue is what waits for one partition and what is on its way there.
type partitionQueue struct {
	tp       TopicPartition
	topic    *producerTopic
	queue    []*batch // the last one may be open
	inFlight []*batch // in the order of their sequence numbers
	// id and sequence are what the next batch gets. They change to the producer's id only between batches.
	id       producerID
	sequence int32
	acked    int32 // last sequence number acknowledged, -1 for none
	// broken means that a batch failed whose sequence numbers may have been used: what is under way is waited for, and then a new
	// epoch begins.
	broken    bool
	notBefore time.Time
	attempts  int
}

// batch is a run of records for one partition.
type batch struct {
	builder  *record.Builder
	records  []produced
	size     int // of the records, as buffered counts them
	born     time.Time
	closed   bool
	built    record.Batch // once it was tried: a retry must be the same bytes
	sequence int32        // -1 until it is sent for the first time
	id       producerID
	conn     *conn         // that it is on its way on
	done     chan struct{} // closed when all its records are told
}

type produced struct {
	r    *Record
	done func(*Record, error)
}

// overhead is what a record costs beside its key, value and headers, about.
const overhead = 64

// NewProducer makes a producer. Close it to flush and stop.
func (c *Client) NewProducer(o ProducerOptions) *Producer {
	def := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	def(&o.BatchBytes, 1_000_000)
	def(&o.RequestBytes, 8<<20)
	def(&o.MaxBuffered, 32<<20)
	def(&o.MaxInFlight, 5)
	defd := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	defd(&o.Linger, 5*time.Millisecond)
	defd(&o.MaxBlock, time.Minute)
	defd(&o.DeliveryTimeout, 2*time.Minute)
	defd(&o.TransactionTimeout, time.Minute)
	if o.Acks != AllAcks && o.TransactionalID == "" {
		o.DisableIdempotence = true
	}
	if o.TransactionalID != "" {
		o.Acks, o.DisableIdempotence = AllAcks, false
	}
	if !o.DisableIdempotence {
		o.MaxInFlight = min(o.MaxInFlight, 5)
	}
	p := &Producer{
		c: c, o: o, topics: map[string]*producerTopic{}, active: map[*partitionQueue]struct{}{}, nodes: map[int32]*producerNode{},
		batches: map[*batch]struct{}{}, room: make(chan struct{}), wake: make(chan struct{}, 1), lane: c.pool.newPurpose(),
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.wg.Go(p.run)
	return p
}

// Produce queues a record and returns; done is called once, from another goroutine, with the record's partition, offset and
// timestamp filled in or with the error. It must not block. Until then the record must not be changed. Produce itself blocks, for
// MaxBlock at most, while MaxBuffered bytes wait, and to find out about a topic not seen before. An error from Produce means that
// done won't be called.
func (p *Producer) Produce(ctx context.Context, r *Record, done func(*Record, error)) error {
	if r.Timestamp.IsZero() {
		r.Timestamp = time.Now()
	}
	size := len(r.Key) + len(r.Value) + overhead
	for i := range r.Headers {
		size += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.topics[r.Topic]
	if t == nil || t.version != p.c.meta.version.Load() {
		p.mu.Unlock()
		version := p.c.meta.version.Load()
		info, err := p.find(ctx, r.Topic)
		p.mu.Lock()
		if err != nil {
			return err
		}
		if t = p.topics[r.Topic]; t == nil {
			t = &producerTopic{sticky: -1}
			p.topics[r.Topic] = t
		}
		t.info, t.version = info, version
	}
	if p.buffered > 0 && p.buffered+size > p.o.MaxBuffered && !p.closed {
		if err := p.awaitRoom(ctx, size); err != nil {
			return err
		}
	}
	if p.closed {
		return ErrClosed
	}
	if p.o.TransactionalID != "" {
		if err := p.txn.mayProduce(); err != nil {
			return err
		}
	}
	return p.add(r, done, t, size)
}

// find looks for a topic not seen before, or looks again because what is known of topics has changed.
func (p *Producer) find(ctx context.Context, name string) (t *Topic, err error) {
	if t, ok := p.c.meta.get(name); ok {
		return t, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.o.MaxBlock, fmt.Errorf("not found within %v: %w", p.o.MaxBlock, context.DeadlineExceeded))
	defer cancel()
	err = p.c.retry(ctx, func(ctx context.Context) error {
		var err error
		t, err = p.c.topicInfo(ctx, name, p.o.CreateTopics)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("produce to %q: %w", name, err)
	}
	return t, nil
}

// awaitRoom blocks until there's room for size bytes. mu is held, but not meanwhile.
func (p *Producer) awaitRoom(ctx context.Context, size int) error {
	timer := time.NewTimer(p.o.MaxBlock)
	defer timer.Stop()
	p.blocked++
	defer func() { p.blocked-- }()
	for p.buffered > 0 && p.buffered+size > p.o.MaxBuffered && !p.closed {
		room := p.room
		p.mu.Unlock()
		p.signal() // what lingers goes now
		var err error
		select {
		case <-room:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-timer.C:
			err = fmt.Errorf("no room for a record within %v: %w", p.o.MaxBlock, context.DeadlineExceeded)
		}
		p.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// add puts a record into its partition's open batch. mu is held.
func (p *Producer) add(r *Record, done func(*Record, error), t *producerTopic, size int) error {
	partition, err := p.partitionFor(r, t, t.info, size)
	if err != nil {
		return err
	}
	for int(partition) >= len(t.parts) {
		t.parts = append(t.parts, nil)
	}
	q := t.parts[partition]
	if q == nil {
		q = &partitionQueue{tp: TopicPartition{r.Topic, partition}, topic: t, acked: -1}
		t.parts[partition] = q
	}
	p.headers = p.headers[:0]
	for i := range r.Headers {
		h := &r.Headers[i]
		p.headers = append(p.headers, record.Header{Key: unsafe.Slice(unsafe.StringData(h.Key), len(h.Key)), Value: h.Value})
	}
	ts := r.Timestamp.UnixMilli()
	var b *batch
	if n := len(q.queue); n > 0 && !q.queue[n-1].closed {
		b = q.queue[n-1]
		if b.builder.Len()+size > p.o.BatchBytes && b.builder.SizeWith(ts, r.Key, r.Value, p.headers) > p.o.BatchBytes {
			b.closed = true
			b = nil
			p.signal()
		}
	}
	if b == nil {
		b = p.newBatch()
		q.queue = append(q.queue, b)
		p.active[q] = struct{}{}
		if len(q.queue) == 1 {
			p.signal()
		}
	}
	b.builder.Append(ts, r.Key, r.Value, p.headers)
	b.records = append(b.records, produced{r, done})
	b.size += size
	p.buffered += size
	r.Partition = partition
	return nil
}

// newBatch begins a batch. mu is held.
func (p *Producer) newBatch() *batch {
	b := &batch{born: time.Now(), sequence: -1, done: make(chan struct{})}
	if n := len(p.free); n > 0 {
		b.builder, p.free = p.free[n-1], p.free[:n-1]
		b.builder.Reset(p.builderOptions())
	} else {
		b.builder = record.NewBuilder(p.builderOptions())
	}
	b.builder.Grow(p.usual)
	p.batches[b] = struct{}{}
	return b
}

func (p *Producer) builderOptions() record.BuilderOptions {
	return record.BuilderOptions{
		LeaderEpoch: -1, Codec: p.o.Codec, Level: p.o.Level, Compressor: p.c.compressor, Transactional: p.o.TransactionalID != "",
	}.NoProducer()
}

// partitionFor picks the partition: the record's own, the partitioner's, by key, or the topic's sticky one. mu is held.
func (p *Producer) partitionFor(r *Record, t *producerTopic, info *Topic, size int) (int32, error) {
	n := len(info.Partitions)
	pick := r.Partition
	switch {
	case n == 0:
		return 0, fmt.Errorf("topic %q has no partitions", r.Topic)
	case pick >= 0:
	case p.o.Partitioner != nil:
		pick = p.o.Partitioner(r, n)
	case r.Key != nil:
		return PartitionForKey(r.Key, n), nil
	default:
		if t.sticky < 0 || int(t.sticky) >= n || t.left <= 0 {
			t.sticky, t.left = p.choose(t, info), p.o.BatchBytes
		}
		t.left -= size
		return t.sticky, nil
	}
	if pick < 0 || int(pick) >= n {
		return 0, fmt.Errorf("topic %q has %d partitions, no partition %d: %w", r.Topic, n, pick, UnknownTopicOrPartition)
	}
	return pick, nil
}

// choose draws the next partition for records without a key: of those that have a leader, the more likely the shorter the
// queue (KIP-794).
func (p *Producer) choose(t *producerTopic, info *Topic) int32 {
	longest, up := 0, 0
	load := func(id int32) int {
		if int(id) >= len(t.parts) || t.parts[id] == nil {
			return 0
		}
		return len(t.parts[id].queue)
	}
	for i := range info.Partitions {
		if pt := &info.Partitions[i]; pt.Leader >= 0 {
			longest = max(longest, load(pt.ID))
			up++
		}
	}
	if up == 0 {
		return int32(p.c.random(len(info.Partitions)))
	}
	total := 0
	for i := range info.Partitions {
		if pt := &info.Partitions[i]; pt.Leader >= 0 {
			total += longest + 1 - load(pt.ID)
		}
	}
	x := p.c.random(total)
	for i := range info.Partitions {
		if pt := &info.Partitions[i]; pt.Leader >= 0 {
			if x -= longest + 1 - load(pt.ID); x < 0 {
				return pt.ID
			}
		}
	}
	return info.Partitions[0].ID
}

// ProduceSync produces records and waits for all. The error is the first failure; each record has its offset.
func (p *Producer) ProduceSync(ctx context.Context, records ...*Record) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	for _, r := range records {
		wg.Add(1)
		err := p.Produce(ctx, r, func(_ *Record, err error) {
			mu.Lock()
			if first == nil {
				first = err
			}
			mu.Unlock()
			wg.Done()
		})
		if err != nil {
			return err
		}
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		return first
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Future is a record on its way.
type Future struct {
	done chan struct{}
	r    *Record
	err  error
}

// Done is closed when it is known what became of the record.
func (f *Future) Done() <-chan struct{} { return f.done }

// Wait returns the record as it was written, or why it wasn't.
func (f *Future) Wait(ctx context.Context) (*Record, error) {
	select {
	case <-f.done:
		return f.r, f.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Send is Produce with a future instead of a callback.
func (p *Producer) Send(ctx context.Context, r *Record) (*Future, error) {
	f := &Future{done: make(chan struct{})}
	err := p.Produce(ctx, r, func(r *Record, err error) {
		f.r, f.err = r, err
		close(f.done)
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Flush waits until everything produced before it is done, well or not.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	p.flushing++
	waits := make([]chan struct{}, 0, len(p.batches))
	for b := range p.batches {
		b.closed = true // what comes later is not waited for
		waits = append(waits, b.done)
	}
	p.mu.Unlock()
	p.signal()
	defer func() {
		p.mu.Lock()
		p.flushing--
		p.mu.Unlock()
	}()
	for _, w := range waits {
		select {
		case <-w:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Close flushes and stops; what can't be delivered until ctx ends fails with ErrClosed. A transaction that is open is left to the
// cluster to abort.
func (p *Producer) Close(ctx context.Context) error {
	err := p.Flush(ctx)
	p.mu.Lock()
	p.closed = true
	close(p.room)
	p.room = make(chan struct{})
	p.mu.Unlock()
	p.cancel(ErrClosed)
	p.c.pool.drop(p.lane)
	p.wg.Wait()
	return err
}

func (p *Producer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// build makes a batch's bytes, once: a retry must carry the same sequence numbers.
func (b *batch) build() error {
	if b.built != nil {
		return nil
	}
	if b.id.ok {
		b.builder.SetProducer(b.id.id, b.id.epoch, b.sequence)
	}
	built, err := b.builder.Build()
	if err != nil {
		return err
	}
	b.built = built
	return nil
}

// split halves a batch that was too large. Both halves keep the sequence numbers that their records had.
func (p *Producer) split(b *batch) [2]*batch {
	var out [2]*batch
	half := len(b.records) / 2
	for i, records := range [2][]produced{b.records[:half], b.records[half:]} {
		n := p.newBatch()
		n.born, n.closed, n.id = b.born, true, b.id
		for _, r := range records {
			headers := make([]record.Header, len(r.r.Headers))
			n.size += len(r.r.Key) + len(r.r.Value) + overhead
			for j, h := range r.r.Headers {
				headers[j] = record.Header{Key: []byte(h.Key), Value: h.Value}
				n.size += len(h.Key) + len(h.Value)
			}
			n.builder.Append(r.r.Timestamp.UnixMilli(), r.r.Key, r.r.Value, headers)
			n.records = append(n.records, r)
		}
		if b.sequence >= 0 {
			n.sequence = b.sequence
			if i == 1 {
				n.sequence = record.IncrementSequence(b.sequence, int32(half))
			}
		}
		out[i] = n
	}
	return out
}

// finish gives a batch's room back. mu is held; whoever calls tells its records afterwards, without mu.
func (p *Producer) finish(b *batch) {
	p.buffered -= b.size
	if p.blocked > 0 {
		close(p.room)
		p.room = make(chan struct{})
	}
}

// tell calls a batch's callbacks and takes it off the books: whoever flushes waits for them.
func (p *Producer) tell(b *batch, offset, appendTime int64, err error) {
	for i := range b.records {
		r := b.records[i].r
		switch {
		case err != nil || offset < 0:
			r.Offset = -1
		default:
			r.Offset = offset + int64(i)
		}
		if appendTime >= 0 && err == nil {
			r.Timestamp = time.UnixMilli(appendTime)
		}
		if f := b.records[i].done; f != nil {
			f(r, err)
		}
	}
	p.mu.Lock()
	p.usual = (3*p.usual + b.builder.Len()) / 4
	if len(p.free) < 64 && b.builder.Len() <= 4<<20 {
		p.free = append(p.free, b.builder)
	}
	b.builder, b.built, b.records = nil, nil, nil
	delete(p.batches, b)
	p.mu.Unlock()
	close(b.done)
}

var errDelivery = errors.New("not delivered in time")

// bump begins a new epoch of the producer id, or, when there are no more, has another id asked for. mu is held.
func (p *Producer) bump() {
	if p.id.epoch == math.MaxInt16 {
		p.id.ok = false
		return
	}
	p.id.epoch++
}
