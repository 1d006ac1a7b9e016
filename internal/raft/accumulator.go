package raft

import (
	"fmt"
	"sync"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/record"
)

// accumulator gathers what a leader is to append and gives out its offsets. Batches are encoded by the goroutines that append,
// so that the driver only writes them.
type accumulator struct {
	mu      sync.Mutex // guards all below
	epoch   int32      // -1 while this node doesn't lead
	next    int64      // offset of the next record
	batches []pendingBatch
	allowed int // how many of batches may be written
	builder *record.Builder
	wake    func() // tells the driver that there is something to write
}

// pendingBatch is an encoded batch that is not yet in the log.
type pendingBatch struct {
	data    record.Batch
	records []message.Versioned // of a data batch
	control []message.Message   // of a control batch
}

func newAccumulator(wake func()) *accumulator {
	return &accumulator{epoch: -1, wake: wake, builder: record.NewBuilder(record.BuilderOptions{}.NoProducer())}
}

// open starts an epoch at the log's end.
func (a *accumulator) open(epoch int32, next int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch, a.next, a.batches, a.allowed = epoch, next, nil, 0
}

// close ends the epoch and drops what is not written.
func (a *accumulator) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch, a.batches, a.allowed = -1, nil, 0
}

// prepare encodes a batch and gives it its offsets.
func (a *accumulator) prepare(epoch int32, ts int64, records []message.Versioned) (last int64, err error) {
	if len(records) == 0 {
		return -1, fmt.Errorf("raft: append of no records")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.epoch < 0 || epoch < a.epoch {
		return -1, fmt.Errorf("raft: append in epoch %d: %w", epoch, api.ErrNotLeaderOrFollower)
	}
	if epoch > a.epoch {
		return -1, fmt.Errorf("raft: append in epoch %d, the present one is %d", epoch, a.epoch)
	}
	b, err := dataBatch(a.builder, a.next, epoch, ts, records)
	if err != nil {
		return -1, err
	}
	if len(b) > MaxBatchBytes {
		return -1, fmt.Errorf("raft: batch of %d records takes %d bytes, the limit is %d: %w", len(records), len(b), MaxBatchBytes, api.ErrRecordListTooLarge)
	}
	data := append(record.Batch(nil), b...) // the builder's memory is used again
	a.batches = append(a.batches, pendingBatch{data: data, records: records})
	a.next = b.NextOffset()
	return a.next - 1, nil
}

// schedule lets all that was prepared be written.
func (a *accumulator) schedule() {
	a.mu.Lock()
	ready := a.allowed < len(a.batches)
	a.allowed = len(a.batches)
	a.mu.Unlock()
	if ready {
		a.wake()
	}
}

// control adds a control batch. It may be written as soon as what was prepared before it may.
func (a *accumulator) control(ts int64, msgs []message.Message) (last int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, err := controlBatch(a.next, a.epoch, ts, msgs)
	if err != nil {
		return -1, err
	}
	if a.allowed == len(a.batches) {
		a.allowed++
	}
	a.batches = append(a.batches, pendingBatch{data: b, control: msgs})
	a.next = b.NextOffset()
	return a.next - 1, nil
}

// drain takes what may be written.
func (a *accumulator) drain() []pendingBatch {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.allowed == 0 {
		return nil
	}
	out := a.batches[:a.allowed:a.allowed]
	a.batches = a.batches[a.allowed:]
	if len(a.batches) == 0 {
		a.batches = nil
	}
	a.allowed = 0
	return out
}

// waiting says whether there is something to write.
func (a *accumulator) waiting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.allowed > 0
}
