package memlog

import (
	"fmt"
	"slices"
	"sync"

	"gregor/internal/api"
	"gregor/internal/record"
)

// Log implements coordinator.Log. Set its fields before use.
type Log struct {
	// Committed, if set, is called with every new high watermark, without locks held.
	Committed func(partition int32, hw int64)
	// Hold keeps the high watermark where it is until Commit is called.
	Hold bool
	// BatchBytes is the largest batch; 0 means 1 MiB.
	BatchBytes int
	// Fail, if set, is asked before each append.
	Fail func(partition int32, batch record.Batch) error

	mu         sync.Mutex // guards partitions and what is in them
	partitions map[int32]*partition
}

type partition struct {
	batches []record.Batch
	start   int64
	hw, end int64
}

func (l *Log) partition(p int32) *partition {
	if l.partitions == nil {
		l.partitions = make(map[int32]*partition)
	}
	if l.partitions[p] == nil {
		l.partitions[p] = &partition{}
	}
	return l.partitions[p]
}

// Append takes a copy of batch.
func (l *Log) Append(p, leaderEpoch int32, batch []byte) (int64, error) {
	b := record.Batch(slices.Clone(batch))
	if l.Fail != nil {
		if err := l.Fail(p, b); err != nil {
			return 0, err
		}
	}
	limit := l.MaxBatchBytes(p)
	if len(b) > limit {
		return 0, api.WithMessage(api.ErrMessageTooLarge, "batch of %d bytes, at most %d", len(b), limit)
	}
	l.mu.Lock()
	pt := l.partition(p)
	b.SetBaseOffset(pt.end)
	b.SetPartitionLeaderEpoch(leaderEpoch)
	pt.batches = append(pt.batches, b)
	pt.end = b.NextOffset()
	end, hold := pt.end, l.Hold
	if !hold {
		pt.hw = pt.end
	}
	l.mu.Unlock()
	if !hold && l.Committed != nil {
		l.Committed(p, end)
	}
	return end, nil
}

// Load replaces the content of a partition by a segment's bytes, all of it committed.
func (l *Log) Load(p int32, segment []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	pt := &partition{}
	for len(segment) > 0 {
		b, rest, err := record.Next(segment)
		if err != nil {
			return fmt.Errorf("load partition %d: %w", p, err)
		}
		if len(pt.batches) == 0 {
			pt.start = b.BaseOffset()
		}
		pt.batches = append(pt.batches, b)
		pt.end = b.NextOffset()
		segment = rest
	}
	pt.hw = pt.end
	if l.partitions == nil {
		l.partitions = make(map[int32]*partition)
	}
	l.partitions[p] = pt
	return nil
}

// Commit moves the high watermark of a partition to its end, or to offset if that is less.
func (l *Log) Commit(p int32, offset int64) {
	l.mu.Lock()
	pt := l.partition(p)
	pt.hw = max(pt.hw, min(offset, pt.end))
	hw := pt.hw
	l.mu.Unlock()
	if l.Committed != nil {
		l.Committed(p, hw)
	}
}

// Truncate cuts a partition back to its high watermark, as a new leader may do.
func (l *Log) Truncate(p int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pt := l.partition(p)
	for n := len(pt.batches); n > 0 && pt.batches[n-1].BaseOffset() >= pt.hw; n-- {
		pt.batches = pt.batches[:n-1]
	}
	pt.end = pt.hw
}

// Read returns batches from the one with offset on.
func (l *Log) Read(p int32, offset int64, buf []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := buf[:0]
	for _, b := range l.partition(p).batches {
		if b.LastOffset() < offset {
			continue
		}
		if len(out) > 0 && len(out)+len(b) > cap(buf) {
			break
		}
		out = append(out, b...)
	}
	return out, nil
}

// Offsets are the bounds of a partition.
func (l *Log) Offsets(p int32) (start, hw, end int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pt := l.partition(p)
	return pt.start, pt.hw, pt.end, nil
}

// MaxBatchBytes is BatchBytes.
func (l *Log) MaxBatchBytes(int32) int {
	if l.BatchBytes == 0 {
		return 1 << 20
	}
	return l.BatchBytes
}

// Batches are the batches of a partition, not to be changed.
func (l *Log) Batches(p int32) []record.Batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.partition(p).batches)
}
