package replica

import (
	"errors"

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
	// Send says whether the result goes into the response: an incremental fetch leaves out what has not changed.
	Send bool

	role *role // as which the partition was read
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

// Read reads from the partition into res, at most limits.MaxBytes and spec.MaxBytes.
func (p *Partition) Read(spec FetchSpec, limits ReadLimits, res *FetchResult) {
	*res = FetchResult{HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1, PreferredReadReplica: -1}
	r := p.role.Load()
	res.role = r
	if err := p.checkLeader(r, spec.LeaderEpoch); err != nil {
		res.fail(err)
		return
	}
	if spec.LastFetchedEpoch >= 0 {
		epoch, end, ok := p.log.EndOffsetForEpoch(spec.LastFetchedEpoch)
		switch {
		case !ok:
			res.fail(api.ErrOffsetOutOfRange)
			return
		case epoch < spec.LastFetchedEpoch || end < spec.FetchOffset:
			res.Diverging = &EpochEnd{Epoch: epoch, EndOffset: end}
			res.HighWatermark, res.LastStableOffset = p.log.HighWatermark(), p.log.LastStableOffset()
			res.LogStartOffset = p.log.LogStartOffset()
			return
		}
	}
	if limits.MaxBytes < 0 || spec.MaxBytes < 0 {
		res.fail(api.ErrUnknownServerError)
		return
	}
	data, err := p.log.Read(spec.FetchOffset, min(limits.MaxBytes, int(spec.MaxBytes)), limits.Isolation, limits.MinOne)
	if err != nil {
		// OFFSET_OUT_OF_RANGE and the like carry no watermarks, as in Kafka.
		res.fail(err)
		return
	}
	res.HighWatermark, res.LastStableOffset, res.LogStartOffset = data.HighWatermark, data.LastStableOffset, data.LogStartOffset
	res.Slice, res.Aborted = data.Slice, data.Aborted
}

// changedSince says whether the partition has changed in a way that a fetch which read it as r and saw the high watermark hw
// would have been told of, had it been waiting.
func (p *Partition) changedSince(r *role, hw int64) bool {
	return p.role.Load() != r || p.log.HighWatermark() != hw || p.gone.Load() != nil
}

// Gone says whether the replica is no longer to be used: it was dropped, or its log directory is offline.
func (p *Partition) Gone() bool { return p.gone.Load() != nil }
