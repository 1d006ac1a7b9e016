package coordinator

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/record"
	"gregor/internal/timeline"
)

// Core is a coordinator's state machine for one shard. R is its record type. It is never called concurrently, reads no
// clock and does no I/O.
type Core[R any] interface {
	// Replay applies a record at its offset: one that the core has just produced, or one that is loaded. producerID is that
	// of the batch, -1 if it isn't part of a transaction.
	Replay(offset, producerID int64, producerEpoch int16, r R) error
	// ReplayTransactionEnd applies a transaction marker.
	ReplayTransactionEnd(producerID int64, producerEpoch int16, commit bool) error
	// Loaded is called once when all of the log was replayed and the shard begins to serve.
	Loaded(now time.Time)
	// Unloaded is called once, on a core that was Loaded, when the shard goes away: answer everyone who is parked in it.
	Unloaded(now time.Time)
}

// Codec turns records into bytes and back.
type Codec[R any] interface {
	AppendKey(dst []byte, r R) ([]byte, error)
	// AppendValue appends the value; tombstone true means that the record has none.
	AppendValue(dst []byte, r R) (value []byte, tombstone bool, err error)
	// Decode reads a record; value is nil for a tombstone. ok false means a record of a type that is not known, which
	// loading skips (it may be left over from an aborted upgrade). What it returns must not alias key and value.
	Decode(key, value []byte) (r R, ok bool, err error)
}

// Log is what the runtime needs of the replicas of its topic on this node. Errors carry Kafka's codes (api.CodeOf).
type Log interface {
	// Append writes one batch with offsets from 0 up as the leader of leaderEpoch, which assigns the real offsets in place,
	// and returns the log end offset after it. It does not wait for replicas: HighWatermarkUpdated tells.
	Append(partition, leaderEpoch int32, batch []byte) (endOffset int64, err error)
	// Read returns whole batches from the one that holds offset on, up to the log end, about len(buf) bytes of them but at
	// least one, in buf if they fit. An empty result means that there is nothing at offset and above.
	Read(partition int32, offset int64, buf []byte) ([]byte, error)
	// Offsets are the log start offset, high watermark and log end offset.
	Offsets(partition int32) (start, highWatermark, end int64, err error)
	// MaxBatchBytes is the topic's max.message.bytes.
	MaxBatchBytes(partition int32) int
}

// Result is what an operation wants done.
type Result[R any] struct {
	// Records are to be applied and appended, in one batch.
	Records []R
	// Applied says that the core's state already has the records in it, so they are not replayed now.
	Applied bool
	// Splittable allows the records to be spread over several batches: long lists of tombstones.
	Splittable bool
	// Committed, if set, runs on the shard when the records are committed (nil), or when that has failed or taken too long.
	// It comes before the operation's done.
	Committed func(now time.Time, err error)
}

// Env is what a shard gives its core to live in.
type Env[R any] struct {
	Partition int32
	Registry  *timeline.Registry
	Timers    *Timers[R]
	Logger    *slog.Logger
	// Later runs f outside the shard once the present operation is through: for replies, which may block.
	Later func(f func())
}

// Options configure a Runtime. Name, Topic, Log, Codec, NewCore and Clock are required.
type Options[C Core[R], R any] struct {
	// Name says whose runtime it is, for the log: "group".
	Name string
	// Topic is the internal topic, for the log.
	Topic string
	Log   Log
	Codec Codec[R]
	// NewCore makes the core of a shard that is about to be loaded.
	NewCore func(Env[R]) C
	Clock   clock.Clock
	Logger  *slog.Logger
	// WriteTimeout is how long a commit may take until the operation is answered with REQUEST_TIMED_OUT (which the caller
	// turns into COORDINATOR_NOT_AVAILABLE): offsets.commit.timeout.ms. 0 means 5 s.
	WriteTimeout time.Duration
	// Linger is how long a batch may wait for more operations. Negative is adaptive: it goes out when everything that had
	// arrived by then is in it, which costs no latency when there is no load. Config "group.coordinator.append.linger.ms".
	Linger time.Duration
	// Compression of the batches: offsets.topic.compression.codec.
	Compression record.Codec
	// Compressor and Decompressor are the node's; nil makes own ones.
	Compressor   *record.Compressor
	Decompressor *record.Decompressor
	// CachedBufferBytes is how large a batch's memory may be to be kept for the next one. 0 means 1 MiB and a bit, Kafka's
	// default of group.coordinator.cached.buffer.max.bytes.
	CachedBufferBytes int
	// LoadBufferBytes is how much is read at once while loading: offsets.load.buffer.size. 0 means 5 MiB.
	LoadBufferBytes int
	// LoadThreads is how many partitions load at the same time. 0 means 2.
	LoadThreads int
	// MailboxLimit is how many operations may wait for one shard; beyond that they are answered with
	// COORDINATOR_LOAD_IN_PROGRESS, which makes clients try again in a while. 0 means 10,000.
	MailboxLimit int
}

// Runtime runs the shards of one coordinator on this node.
type Runtime[C Core[R], R any] struct {
	o Options[C, R]

	mu     sync.RWMutex // guards shards, closed
	shards map[int32]*shard[C, R]
	closed bool

	loads chan struct{} // a token for each load that runs
	wg    sync.WaitGroup
}

// New returns a runtime without shards.
func New[C Core[R], R any](o Options[C, R]) *Runtime[C, R] {
	if o.WriteTimeout == 0 {
		o.WriteTimeout = 5 * time.Second
	}
	if o.LoadBufferBytes == 0 {
		o.LoadBufferBytes = 5 << 20
	}
	if o.LoadThreads == 0 {
		o.LoadThreads = 2
	}
	if o.MailboxLimit == 0 {
		o.MailboxLimit = 10_000
	}
	if o.CachedBufferBytes == 0 {
		o.CachedBufferBytes = 1<<20 + record.LogOverhead
	}
	if o.Compressor == nil {
		o.Compressor = record.NewCompressor()
	}
	if o.Decompressor == nil {
		o.Decompressor = record.NewDecompressor(record.DecompressorOptions{})
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("coordinator", o.Name, "topic", o.Topic)
	return &Runtime[C, R]{
		o:      o,
		shards: make(map[int32]*shard[C, R]),
		loads:  make(chan struct{}, o.LoadThreads),
	}
}

// Load begins to serve a partition that this node has become leader of. A shard that is there already goes on, at the new
// leader epoch: as leader twice in a row it has missed nothing.
func (r *Runtime[C, R]) Load(partition, leaderEpoch int32) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	s := r.shards[partition]
	if s == nil {
		s = newShard(r, partition)
		r.shards[partition] = s
	}
	r.mu.Unlock()
	s.submit(func(time.Time) { s.elected(leaderEpoch) })
}

// Unload stops serving a partition because leaderEpoch has another leader. A negative epoch stops in any case: the replica
// is gone from this node.
func (r *Runtime[C, R]) Unload(partition, leaderEpoch int32) {
	if s := r.shard(partition); s != nil {
		s.submit(func(now time.Time) { s.resign(now, leaderEpoch) })
	}
}

// HighWatermarkUpdated tells that the high watermark of a partition is now at least hw. It returns at once and may be called
// from within Log.Append and with the partition's lock held.
func (r *Runtime[C, R]) HighWatermarkUpdated(partition int32, hw int64) {
	if s := r.shard(partition); s != nil {
		s.highWatermark(hw)
	}
}

// Write runs op on the shard of partition. done is called exactly once, outside the shard: with op's error, with nil when
// op's records and everything that it may have seen are committed, or with the error that prevented it.
func (r *Runtime[C, R]) Write(partition int32, op func(core C, now time.Time) (Result[R], error), done func(error)) {
	r.request(partition, &operation[C, R]{write: op, done: done})
}

// WriteTransactional is Write for records that belong to the transaction of a producer. They get a batch of their own.
func (r *Runtime[C, R]) WriteTransactional(partition int32, producerID int64, producerEpoch int16,
	op func(core C, now time.Time) (Result[R], error), done func(error),
) {
	r.request(partition, &operation[C, R]{
		write: op, done: done,
		transactional: true, producerID: producerID, producerEpoch: producerEpoch,
	})
}

// CompleteTransaction writes the marker that ends a producer's transaction in partition and applies it.
func (r *Runtime[C, R]) CompleteTransaction(partition int32, producerID int64, producerEpoch int16, coordinatorEpoch int32,
	commit bool, done func(error),
) {
	op := &operation[C, R]{done: done, transactional: true, producerID: producerID, producerEpoch: producerEpoch}
	op.special = func(s *shard[C, R], now time.Time) { s.completeTransaction(now, op, coordinatorEpoch, commit) }
	r.request(partition, op)
}

// Read runs op on the shard of partition with the offset up to which its state is committed: what op reads from timeline
// containers at that offset can't be lost any more. op answers by itself, through Env.Later. fail is called instead,
// outside the shard, if there is no such shard here now.
func (r *Runtime[C, R]) Read(partition int32, op func(core C, committed int64), fail func(error)) {
	r.request(partition, &operation[C, R]{read: op, done: fail})
}

func (r *Runtime[C, R]) request(partition int32, op *operation[C, R]) {
	if s := r.shard(partition); s != nil {
		s.request(op)
		return
	}
	op.done(api.ErrNotCoordinator)
}

// Partitions are those that have a shard here, loading ones included, in no order.
func (r *Runtime[C, R]) Partitions() []int32 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	ps := make([]int32, 0, len(r.shards))
	for p := range r.shards {
		ps = append(ps, p)
	}
	return ps
}

// States counts the partitions that have a shard here by the shard's state: "loading", "active", "failed".
func (r *Runtime[C, R]) States() map[string]int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n := make(map[string]int, 3)
	for _, s := range r.shards {
		if state := shardState(s.shown.Load()); state == stateInitial {
			n[stateLoading.String()]++
		} else {
			n[state.String()]++
		}
	}
	return n
}

// Close unloads everything and waits until nothing of the runtime runs any more. The Log must still be there.
func (r *Runtime[C, R]) Close() {
	r.mu.Lock()
	r.closed = true
	shards := slices.Collect(maps.Values(r.shards))
	r.mu.Unlock()
	for _, s := range shards {
		gone := make(chan struct{})
		s.submit(func(now time.Time) {
			s.resign(now, -1)
			s.later(func() { close(gone) })
		})
		<-gone
	}
	r.wg.Wait()
}

// enter counts the calling goroutine as the runtime's until it calls wg.Done; false when the runtime is closed.
func (r *Runtime[C, R]) enter() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return false
	}
	r.wg.Add(1)
	return true
}

// spawn runs f on a goroutine of the runtime's; false, and f isn't run, when the runtime is closed.
func (r *Runtime[C, R]) spawn(f func()) bool {
	if !r.enter() {
		return false
	}
	go func() {
		defer r.wg.Done()
		f()
	}()
	return true
}

func (r *Runtime[C, R]) shard(partition int32) *shard[C, R] {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.shards[partition]
}

// remove forgets s, unless another shard has taken its place.
func (r *Runtime[C, R]) remove(s *shard[C, R]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shards[s.partition] == s {
		delete(r.shards, s.partition)
	}
}
