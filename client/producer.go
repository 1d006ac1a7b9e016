package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

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
	// Acks is whose word is waited for: AllAcks (the zero value), LeaderAck or NoAcks.
	Acks Acks
	// DisableIdempotence allows duplicates after a lost connection. Acks other than AllAcks imply it.
	DisableIdempotence bool
	// Codec and Level (on Kafka's scale, 0 is the codec's default) of compression.
	Codec Codec
	Level int
	// Linger is how long a batch waits for company while nothing else is on its way. Default 0: send at once.
	Linger time.Duration
	// BatchBytes bounds a batch before compression. Default 1,000,000. A larger record goes alone.
	BatchBytes int
	// MaxBuffered bounds the bytes waiting; then Produce blocks. Default 32 MiB.
	MaxBuffered int
	// DeliveryTimeout is when a record that couldn't be delivered fails. Default 2 min.
	DeliveryTimeout time.Duration
	// CreateTopics lets brokers that are configured so create a missing topic.
	CreateTopics bool
}

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
	c *Client
	o ProducerOptions

	mu       sync.Mutex
	parts    map[TopicPartition]*partitionQueue // guarded by mu, as is all below
	sticky   map[string]int32
	buffered int
	unsent   int // records not yet done
	flushing int // Flush calls under way: linger doesn't count
	room     chan struct{}
	idle     chan struct{}
	closed   bool
	id       producerID

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

// partitionQueue is what waits for one partition. At most one batch is on its way, which keeps order without further rules.
type partitionQueue struct {
	tp        TopicPartition
	batches   []*batch
	inFlight  bool
	sequence  int32 // of the next batch
	notBefore time.Time
	attempts  int
}

// batch is a run of records for one partition.
type batch struct {
	builder  *record.Builder
	done     []func(offset int64, ts int64, err error)
	size     int
	born     time.Time
	built    record.Batch // once it was tried: a retry must be the same bytes
	sequence int32
	pid      producerID
}

// NewProducer makes a producer. Close it to flush and stop.
func (c *Client) NewProducer(o ProducerOptions) *Producer {
	if o.BatchBytes <= 0 {
		o.BatchBytes = 1_000_000
	}
	if o.MaxBuffered <= 0 {
		o.MaxBuffered = 32 << 20
	}
	if o.DeliveryTimeout <= 0 {
		o.DeliveryTimeout = 2 * time.Minute
	}
	if o.Acks != AllAcks {
		o.DisableIdempotence = true
	}
	p := &Producer{
		c: c, o: o, parts: map[TopicPartition]*partitionQueue{}, sticky: map[string]int32{},
		room: make(chan struct{}), idle: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.wg.Add(1)
	go p.run()
	return p
}

// Produce queues a record and returns; done is called once, from another goroutine, with the record's partition, offset and
// timestamp filled in or with the error. It must not block. Produce itself blocks while MaxBuffered bytes wait, and to find
// out about a topic not seen before. An error from Produce means that done won't be called.
func (p *Producer) Produce(ctx context.Context, r *Record, done func(*Record, error)) error {
	if r.Timestamp.IsZero() {
		r.Timestamp = time.Now()
	}
	headers := make([]record.Header, len(r.Headers))
	for i, h := range r.Headers {
		headers[i] = record.Header{Key: []byte(h.Key), Value: h.Value}
	}
	var topic *Topic
	err := p.c.retry(ctx, func(ctx context.Context) error {
		var err error
		topic, err = p.c.topicInfo(ctx, r.Topic, p.o.CreateTopics)
		return err
	})
	if err != nil {
		return fmt.Errorf("produce to %q: %w", r.Topic, err)
	}
	size := len(r.Key) + len(r.Value) + 64
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return ErrClosed
		}
		if p.buffered == 0 || p.buffered+size <= p.o.MaxBuffered {
			break
		}
		room := p.room
		p.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer p.mu.Unlock()
	partition, err := p.partitionFor(r, topic)
	if err != nil {
		return err
	}
	tp := TopicPartition{r.Topic, partition}
	q := p.parts[tp]
	if q == nil {
		q = &partitionQueue{tp: tp}
		p.parts[tp] = q
	}
	ts := r.Timestamp.UnixMilli()
	b := q.last()
	if b == nil || b.built != nil || b.builder.SizeWith(ts, r.Key, r.Value, headers) > p.o.BatchBytes {
		if b != nil && r.Partition < 0 && r.Key == nil {
			delete(p.sticky, r.Topic) // a full batch: go on elsewhere
		}
		b = &batch{builder: record.NewBuilder(p.builderOptions()), born: time.Now()}
		q.batches = append(q.batches, b)
	}
	b.builder.Append(ts, r.Key, r.Value, headers)
	b.size += size
	p.buffered += size
	p.unsent++
	b.done = append(b.done, func(offset, appendTime int64, err error) {
		r.Partition, r.Offset = partition, offset
		if appendTime >= 0 {
			r.Timestamp = time.UnixMilli(appendTime)
		}
		if done != nil {
			done(r, err)
		}
	})
	p.signal()
	return nil
}

func (p *Producer) builderOptions() record.BuilderOptions {
	return record.BuilderOptions{LeaderEpoch: -1, Codec: p.o.Codec, Level: p.o.Level, Compressor: p.c.compressor}.NoProducer()
}

// partitionFor picks the partition: the record's own, by key, or the topic's sticky one.
func (p *Producer) partitionFor(r *Record, t *Topic) (int32, error) {
	n := len(t.Partitions)
	switch {
	case n == 0:
		return 0, fmt.Errorf("topic %q has no partitions", r.Topic)
	case r.Partition >= 0:
		if int(r.Partition) >= n {
			return 0, fmt.Errorf("topic %q has %d partitions, no partition %d: %w", r.Topic, n, r.Partition, UnknownTopicOrPartition)
		}
		return r.Partition, nil
	case r.Key != nil:
		return PartitionForKey(r.Key, n), nil
	}
	if s, ok := p.sticky[r.Topic]; ok && int(s) < n {
		return s, nil
	}
	// Only partitions that have a leader, if there are any.
	var up []int32
	for _, pt := range t.Partitions {
		if pt.Leader >= 0 {
			up = append(up, pt.ID)
		}
	}
	if len(up) == 0 {
		up = []int32{int32(p.c.random(n))}
	}
	s := up[p.c.random(len(up))]
	p.sticky[r.Topic] = s
	return s, nil
}

func (q *partitionQueue) last() *batch {
	if len(q.batches) == 0 {
		return nil
	}
	return q.batches[len(q.batches)-1]
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

// Flush waits until everything produced so far is done.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	p.flushing++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.flushing--
		p.mu.Unlock()
	}()
	p.signal()
	for {
		p.mu.Lock()
		idle, n := p.idle, p.unsent
		p.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close flushes and stops; what can't be delivered until ctx ends fails with ErrClosed.
func (p *Producer) Close(ctx context.Context) error {
	err := p.Flush(ctx)
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel(ErrClosed)
	p.wg.Wait()
	return err
}

func (p *Producer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run is the producer's one goroutine of its own: it decides what is sent; a goroutine per request waits for the answer.
func (p *Producer) run() {
	defer p.wg.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := p.sendReady(time.Now())
		timer.Reset(next)
		select {
		case <-p.wake:
		case <-timer.C:
		case <-p.ctx.Done():
			p.failAll(ErrClosed)
			return
		}
	}
}

// sendReady sends what is ready and returns how long nothing else will be.
func (p *Producer) sendReady(now time.Time) time.Duration {
	next := time.Hour
	var ready []*partitionQueue
	p.mu.Lock()
	var expired []func()
	for tp, q := range p.parts {
		for len(q.batches) > 0 && !q.inFlight && now.Sub(q.batches[0].born) >= p.o.DeliveryTimeout {
			b := q.batches[0]
			q.batches = q.batches[1:]
			if b.built != nil {
				p.id.ok = false // it may have arrived: its sequence numbers must not be used again
			}
			expired = append(expired, p.finish(b, fmt.Errorf("deliver to %v: not within %v: %w", tp, p.o.DeliveryTimeout, RequestTimedOut)))
		}
		if len(q.batches) == 0 || q.inFlight {
			continue
		}
		b := q.batches[0]
		at := q.notBefore
		if lingers := b.born.Add(p.o.Linger); p.flushing == 0 && b.built == nil && len(q.batches) == 1 && b.builder.Len() < p.o.BatchBytes && lingers.After(at) {
			at = lingers
		}
		if wait := at.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		q.inFlight = true
		ready = append(ready, q)
	}
	p.mu.Unlock()
	for _, f := range expired {
		f()
	}
	if len(ready) > 0 {
		p.wg.Add(1)
		go func() {
			defer p.wg.Done()
			p.send(ready)
		}()
	}
	return next
}

// send finds the leaders and sends one request to each.
func (p *Producer) send(ready []*partitionQueue) {
	if err := p.ensureID(); err != nil {
		for _, q := range ready {
			p.result(q, 0, -1, err)
		}
		return
	}
	byNode := map[int32][]*partitionQueue{}
	for _, q := range ready {
		_, part, err := p.c.partitionOf(p.ctx, q.tp)
		if err != nil {
			p.result(q, 0, -1, err)
			continue
		}
		byNode[part.Leader] = append(byNode[part.Leader], q)
	}
	var wg sync.WaitGroup
	for node, queues := range byNode {
		wg.Go(func() { p.sendTo(node, queues) })
	}
	wg.Wait()
}

// ensureID gets the producer id that idempotence needs.
func (p *Producer) ensureID() error {
	p.mu.Lock()
	ok := p.id.ok || p.o.DisableIdempotence
	p.mu.Unlock()
	if ok {
		return nil
	}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = int32(p.o.DeliveryTimeout.Milliseconds()), -1, -1
	resp, err := exchange[*kmsg.InitProducerIDResponse](p.ctx, p.c, toAny, req)
	if err != nil {
		return err
	}
	if err := errorOf(resp.ErrorCode, nil); err != nil {
		return fmt.Errorf("get a producer id: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.id.ok {
		p.id = producerID{resp.ProducerID, resp.ProducerEpoch, true}
		for _, q := range p.parts {
			q.sequence = 0
		}
	}
	return nil
}

func (p *Producer) sendTo(node int32, queues []*partitionQueue) {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = p.o.Acks.wire(), p.c.timeoutMillis()
	to := toNode(node)
	byName := map[string]*kmsg.ProduceRequestTopic{}
	byTP := map[TopicPartition]*partitionQueue{}
	names := map[UUID]string{}
	for _, q := range queues {
		b, err := p.build(q)
		if err != nil {
			p.result(q, 0, -1, err)
			continue
		}
		t := byName[q.tp.Topic]
		if t == nil {
			t = &kmsg.ProduceRequestTopic{Topic: q.tp.Topic}
			if info, ok := p.c.meta.get(q.tp.Topic); ok {
				t.TopicID = info.ID
			}
			if t.TopicID == (UUID{}) {
				to.highest = 12 // 13 names topics by id
			}
			names[t.TopicID] = q.tp.Topic
			byName[q.tp.Topic] = t
		}
		t.Partitions = append(t.Partitions, kmsg.ProduceRequestTopicPartition{Partition: q.tp.Partition, Records: b.built})
		byTP[q.tp] = q
	}
	if len(byTP) == 0 {
		return
	}
	for _, n := range sortedKeys(byName) {
		req.Topics = append(req.Topics, *byName[n])
	}
	resp, err := p.exchange(to, req)
	if err != nil {
		for _, q := range byTP {
			p.result(q, 0, -1, err)
		}
		return
	}
	if resp != nil {
		for _, t := range resp.Topics {
			name := t.Topic
			if resp.Version >= 13 {
				name = names[t.TopicID]
			}
			for _, r := range t.Partitions {
				tp := TopicPartition{name, r.Partition}
				if q := byTP[tp]; q != nil {
					delete(byTP, tp)
					p.result(q, r.BaseOffset, r.LogAppendTime, produceError(&r))
				}
			}
		}
	}
	for _, q := range byTP {
		if resp == nil {
			p.result(q, -1, -1, nil) // acks=0: nobody says more
		} else {
			p.result(q, 0, -1, &errConn{"produce to", fmt.Sprintf("broker %d", node), errors.New("no answer for the partition")})
		}
	}
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

// exchange sends a produce request; the response is nil without acks.
func (p *Producer) exchange(to target, req *kmsg.ProduceRequest) (*kmsg.ProduceResponse, error) {
	if req.Acks != 0 {
		return exchange[*kmsg.ProduceResponse](p.ctx, p.c, to, req)
	}
	cn, _, err := p.c.connTo(p.ctx, to)
	if err != nil {
		return nil, err
	}
	if err := cn.choose(req, to.highest); err != nil {
		return nil, err
	}
	_, err = cn.send(req, p.c.o.RequestTimeout, true)
	return nil, err
}

// build makes the first batch's bytes, once: a retry must carry the same sequence numbers.
func (p *Producer) build(q *partitionQueue) (*batch, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := q.batches[0]
	if b.built != nil && (p.o.DisableIdempotence || b.pid == p.id) {
		return b, nil
	}
	if !p.o.DisableIdempotence {
		b.pid, b.sequence = p.id, q.sequence
		b.builder.SetProducer(p.id.id, p.id.epoch, q.sequence)
	}
	built, err := b.builder.Build()
	if err != nil {
		return nil, err
	}
	b.built = built
	return b, nil
}

// result ends a try: done, or again later, or failed.
func (p *Producer) result(q *partitionQueue, offset, appendTime int64, err error) {
	p.mu.Lock()
	b := q.batches[0]
	q.inFlight = false
	if errors.Is(err, DuplicateSequenceNumber) {
		err, offset = nil, -1 // an earlier try got through
	}
	if err != nil && Retriable(err) && p.ctx.Err() == nil {
		q.notBefore = time.Now().Add(p.c.backoff(q.attempts))
		q.attempts++
		p.mu.Unlock()
		p.c.o.Logger.Debug("produce is tried again", "partition", q.tp.String(), "err", err)
		if needsRefresh(err) {
			p.c.meta.invalidate()
		}
		p.signal()
		return
	}
	q.attempts, q.notBefore = 0, time.Time{}
	q.batches = q.batches[1:]
	n := int32(len(b.done))
	if err == nil {
		q.sequence = record.IncrementSequence(q.sequence, n)
	} else if !p.o.DisableIdempotence {
		// Sequence numbers were used that the broker may or may not have seen: begin anew with another producer id.
		p.id.ok = false
		err = fmt.Errorf("produce to %v: %w", q.tp, err)
	}
	p.finish(b, nil)
	p.mu.Unlock()
	for i, d := range b.done {
		o := offset
		if o >= 0 && err == nil {
			o += int64(i)
		}
		if err != nil {
			o = -1
		}
		d(o, appendTime, err)
	}
	p.release(n)
	p.signal()
}

// finish takes a batch off the books; the function returned tells its records that they failed.
func (p *Producer) finish(b *batch, err error) func() {
	p.buffered -= b.size
	close(p.room)
	p.room = make(chan struct{})
	return func() {
		for _, d := range b.done {
			d(-1, -1, err)
		}
		p.release(int32(len(b.done)))
	}
}

// release counts records as done, after they were told.
func (p *Producer) release(n int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unsent -= int(n); p.unsent == 0 {
		close(p.idle)
		p.idle = make(chan struct{})
	}
}

func (p *Producer) failAll(err error) {
	p.mu.Lock()
	var fs []func()
	for _, q := range p.parts {
		from := 0
		if q.inFlight {
			from = 1 // its own result will come
		}
		for _, b := range q.batches[min(from, len(q.batches)):] {
			fs = append(fs, p.finish(b, err))
		}
		q.batches = q.batches[:min(from, len(q.batches))]
	}
	p.mu.Unlock()
	for _, f := range fs {
		f()
	}
}
