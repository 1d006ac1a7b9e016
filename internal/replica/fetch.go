package replica

import (
	"errors"
	"slices"

	"gregor/internal/api"
	"gregor/internal/log"
)

// FetchResult is what reading one partition gave. The file range in Data.Slice is held until Release.
type FetchResult struct {
	// Err is the partition's error, nil for none.
	Err              *api.Error
	HighWatermark    int64
	LastStableOffset int64
	LogStartOffset   int64
	// Diverging is set when the follower's log is not a prefix of the leader's: the largest epoch not above its own, and
	// where that ends (KIP-595).
	Diverging *EpochEnd
	// PreferredReadReplica is the broker that the consumer should rather read from, -1 for none (KIP-392).
	PreferredReadReplica int32
	Aborted              []log.AbortedTxn
	Slice                log.Slice
	// Throttled says that there are no records because the leader's replication quota is exceeded.
	Throttled bool
	// Send says whether the result goes into the response: an incremental fetch leaves out what has not changed.
	Send bool

	role   *role // as which the partition was read
	logEnd int64 // from before the read
}

// EpochEnd is a leader epoch and the offset at which it ends.
type EpochEnd struct {
	Epoch     int32
	EndOffset int64
}

// Size is the length of the records found, in bytes.
func (r *FetchResult) Size() int { return r.Slice.Len() }

// Records hands the records over to a response, which releases them.
func (r *FetchResult) Records() api.Records {
	s := r.Slice
	r.Slice = log.Slice{}
	return api.Records{File: sliceFile{s}, Pos: s.Pos(), Len: s.Len(), Release: s}
}

// sliceFile is the file that a slice lies in.
type sliceFile struct{ s log.Slice }

func (f sliceFile) ReadAt(p []byte, off int64) (int, error) { return f.s.ReaderAt().ReadAt(p, off) }
func (f sliceFile) Fd() (uintptr, bool)                     { return f.s.Fd() }

// Release lets go of the file that the records lie in. It may be called more than once.
func (r *FetchResult) Release() {
	r.Slice.Release()
	r.Slice = log.Slice{}
}

func (r *FetchResult) fail(err error) {
	var e *api.Error
	if !errors.As(err, &e) {
		e = api.ErrUnknownServerError
	}
	r.Err = e
}

// ReadLimits bound a fetch over all of its partitions.
type ReadLimits struct {
	// MaxBytes is what the whole fetch may still return.
	MaxBytes int
	// MinOne lets the first batch through even when it is larger than every limit, so that a consumer can progress (KIP-74).
	MinOne    bool
	Isolation log.Isolation
}

// Reader is who fetches.
type Reader struct {
	// Follower is the broker that replicates, NoFollower for consumers; BrokerEpoch is the one that it says it has, or -1.
	Follower    int32
	BrokerEpoch int64
	// Again is set when a fetch that has waited reads once more: where the follower is was noted when it came.
	Again bool
	// AnyReplica lets a consumer read from a replica that doesn't lead (KIP-392).
	AnyReplica bool
	// Rack is where a consumer is, "" if it doesn't say. A consumer that does may be sent to a replica nearby.
	Rack string
}

// NoFollower is the Reader.Follower of consumers.
const NoFollower int32 = -1

// Read reads from the partition into res, at most limits.MaxBytes and spec.MaxBytes.
func (p *Partition) Read(spec FetchSpec, by *Reader, limits ReadLimits, res *FetchResult) {
	*res = FetchResult{HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1, PreferredReadReplica: -1}
	r := p.role.Load()
	res.role = r
	if err := p.checkFetch(r, spec, by); err != nil {
		res.fail(err)
		return
	}
	if by.Rack != "" && by.Follower == NoFollower && r.leader && p.m.rackAware {
		if id := p.nearReplica(r, by.Rack, spec.FetchOffset); id >= 0 {
			res.PreferredReadReplica = id
			res.LogStartOffset, res.LastStableOffset, res.HighWatermark, res.logEnd = p.log().Offsets()
			return
		}
	}
	if spec.LastFetchedEpoch >= 0 {
		epoch, end, ok := p.log().EndOffsetForEpoch(spec.LastFetchedEpoch)
		switch {
		case !ok, spec.FetchOffset < p.log().LogStartOffset():
			res.fail(api.ErrOffsetOutOfRange)
			return
		case epoch < spec.LastFetchedEpoch || end < spec.FetchOffset:
			res.Diverging = &EpochEnd{Epoch: epoch, EndOffset: end}
			res.LogStartOffset, res.LastStableOffset, res.HighWatermark, res.logEnd = p.log().Offsets()
			return
		}
	}
	if limits.MaxBytes < 0 || spec.MaxBytes < 0 {
		res.fail(api.ErrUnknownServerError)
		return
	}
	if by.Follower != NoFollower && p.leaderThrottled.Load() && !slices.Contains(r.isr, by.Follower) && p.m.leaderQuota.exceeded() {
		// It is told what it always is, but gets no records.
		res.Throttled, limits.MaxBytes, limits.MinOne = true, 0, false
	}
	data, err := p.log().Read(spec.FetchOffset, min(limits.MaxBytes, int(spec.MaxBytes)), limits.Isolation, limits.MinOne)
	if err != nil {
		// OFFSET_OUT_OF_RANGE and the like carry no watermarks, as in Kafka.
		res.fail(err)
		return
	}
	res.HighWatermark, res.LastStableOffset, res.LogStartOffset = data.HighWatermark, data.LastStableOffset, data.LogStartOffset
	if res.logEnd = data.LogEndOffset; data.FirstBatchIncomplete {
		// Clients take part of a batch at the end, but not alone: there must be nothing then.
		data.Slice.Release()
	} else {
		res.Slice, res.Aborted = data.Slice, data.Aborted
	}
	if by.Follower == NoFollower || by.Again {
		return
	}
	if err := p.noteFetch(r, by, spec, data.LogEndOffset); err != nil {
		res.Release()
		*res = FetchResult{HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1, PreferredReadReplica: -1, role: r, Err: err}
		return
	}
	// What the fetch has just committed is told with the answer to it.
	res.HighWatermark = p.log().HighWatermark()
}

// checkFetch says why a fetch can't be served at all.
func (p *Partition) checkFetch(r *role, spec FetchSpec, by *Reader) error {
	if by.Follower == NoFollower && by.AnyReplica {
		return p.checkReplica(r, spec.LeaderEpoch)
	}
	if err := p.checkLeader(r, spec.LeaderEpoch); err != nil {
		return err
	}
	if by.Follower != NoFollower && (by.Follower == p.m.nodeID || !slices.Contains(r.replicas, by.Follower)) {
		if spec.LeaderEpoch >= 0 {
			// A replica that a reassignment adds: the follower knows before its leader does.
			return api.ErrUnknownLeaderEpoch
		}
		return api.ErrNotLeaderOrFollower
	}
	return nil
}

// nearReplica is the in-sync replica in a consumer's rack that has offset and keeps up best, or -1 when the leader is as near.
func (p *Partition) nearReplica(r *role, rack string, offset int64) int32 {
	cluster := p.m.image.Load().Cluster
	in := func(id int32) bool {
		b := cluster.Broker(id)
		return b != nil && !b.Fenced && b.Rack != nil && *b.Rack == rack
	}
	if in(r.leaderID) {
		return -1
	}
	p.stMu.Lock()
	defer p.stMu.Unlock()
	var best *follower
	for i := range p.st.followers {
		f := &p.st.followers[i]
		if f.end < offset || f.start > offset || !slices.Contains(r.isr, f.id) || !in(f.id) {
			continue
		}
		if best == nil || f.end > best.end || f.end == best.end && f.caughtUpAt.After(best.caughtUpAt) {
			best = f
		}
	}
	if best == nil {
		return -1
	}
	return best.id
}

// changedSince says whether the partition has changed in a way that a fetch which read it as the node says would have been told
// of, had it been waiting.
func (p *Partition) changedSince(n *fetchNode) bool {
	if p.role.Load() != n.role || p.gone.Load() != nil {
		return true
	}
	if n.wait.follower {
		return p.log().EndOffset() != n.end
	}
	return p.log().HighWatermark() != n.hw
}

// Gone says whether the replica is no longer to be used: it was dropped, or its log directory is offline.
func (p *Partition) Gone() bool { return p.gone.Load() != nil }
