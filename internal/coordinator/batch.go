package coordinator

import (
	"time"

	"gregor/internal/api"
	"gregor/internal/record"
)

// batch is a record batch that gathers the records of several operations.
type batch[C Core[R], R any] struct {
	builder *record.Builder // the shard's
	// base is the log end offset before it, next the one after it if the append goes as expected.
	base, next int64
	started    time.Time
	// ops are answered when the batch is committed, those without records included that may have seen its state.
	ops []*operation[C, R]
}

// add applies the records of an operation and puts them into the batch. With an error the operation is not in a batch.
func (s *shard[C, R]) add(now time.Time, op *operation[C, R], res *Result[R]) error {
	if op.transactional {
		if err := s.flush(now); err != nil {
			return err
		}
	}
	limit := s.rt.o.Log.MaxBatchBytes(s.partition)
	if !res.Splittable {
		size, err := s.encodedSize(res.Records)
		if err != nil {
			return err
		}
		if size+record.HeaderSize > limit && s.rt.o.Compression == record.None {
			return api.WithMessage(api.ErrMessageTooLarge, "%d records of %d bytes do not fit into a batch of at most %d bytes",
				len(res.Records), size, limit)
		}
		if s.batch != nil && s.batch.builder.Len()+size > limit {
			// What was decided so far saw the state that this batch leaves. If that is gone, so is the decision.
			if err := s.flush(now); err != nil {
				return err
			}
		}
	}
	for i := range res.Records {
		r := res.Records[i]
		key, value, err := s.encode(r)
		if err == nil && s.batch != nil && s.batch.builder.Len()+len(key)+len(value)+maxRecordOverhead > limit {
			err = s.flush(now)
		}
		if err == nil {
			s.open(now, op)
			if !res.Applied {
				err = s.core.Replay(s.batch.next, op.producer(), op.epoch(), r)
			}
		}
		if err != nil {
			s.log.Error("coordinator could not write its record", "err", err)
			s.failBatch(now, err)
			return err
		}
		s.batch.builder.Append(now.UnixMilli(), key, value, nil)
		s.batch.next++
	}
	s.batch.ops = append(s.batch.ops, op)
	if op.transactional {
		// Nothing else may get into the batch of a producer. The operation itself is answered by the batch's fate.
		_ = s.flush(now)
	}
	return nil
}

// maxRecordOverhead bounds what a record adds to its key and value: length, attributes, timestamp and offset deltas, key
// and value lengths, header count.
const maxRecordOverhead = 5 + 1 + 10 + 5 + 5 + 5 + 1

func (op *operation[C, R]) producer() int64 {
	if op.transactional {
		return op.producerID
	}
	return record.NoProducerID
}

func (op *operation[C, R]) epoch() int16 {
	if op.transactional {
		return op.producerEpoch
	}
	return record.NoProducerEpoch
}

// encode returns key and value of r (nil for a tombstone) in memory that the next call reuses.
func (s *shard[C, R]) encode(r R) (key, value []byte, err error) {
	s.keyBuf, err = s.rt.o.Codec.AppendKey(s.keyBuf[:0], r)
	if err != nil {
		return nil, nil, err
	}
	var tombstone bool
	s.valueBuf, tombstone, err = s.rt.o.Codec.AppendValue(s.valueBuf[:0], r)
	if err != nil {
		return nil, nil, err
	}
	if tombstone {
		return s.keyBuf, nil, nil
	}
	return s.keyBuf, s.valueBuf, nil
}

// encodedSize is the space that records take in a batch, at most.
func (s *shard[C, R]) encodedSize(records []R) (size int, err error) {
	for i := range records {
		key, value, err := s.encode(records[i])
		if err != nil {
			return 0, err
		}
		size += len(key) + len(value) + maxRecordOverhead
	}
	return size, nil
}

// open makes sure that there is a batch to put records into.
func (s *shard[C, R]) open(now time.Time, op *operation[C, R]) {
	if s.batch != nil {
		return
	}
	o := record.BuilderOptions{
		Codec:         s.rt.o.Compression,
		Compressor:    s.rt.o.Compressor,
		ProducerID:    op.producer(),
		ProducerEpoch: op.epoch(),
		Transactional: op.transactional,
		// Kafka's coordinators write 0, with a producer or without.
		BaseSequence: 0,
		LeaderEpoch:  s.epoch,
	}
	if s.builder == nil {
		s.builder = record.NewBuilder(o)
	} else {
		s.builder.Reset(o)
	}
	s.batch = &batch[C, R]{
		builder: s.builder,
		base:    s.written,
		next:    s.written,
		started: now,
	}
}

// flushDue appends the batch if it has waited as long as it should.
func (s *shard[C, R]) flushDue(now time.Time) {
	if s.batch == nil {
		return
	}
	if linger := s.rt.o.Linger; linger > 0 {
		if due := s.batch.started.Add(linger); due.After(now) {
			s.timers.Set(&s.lingered, due)
			return
		}
	}
	_ = s.flush(now) // those in the batch have been told
}

// flush appends the batch. If that fails the state goes back to before it, and everybody in it is told, before flush
// returns the error.
func (s *shard[C, R]) flush(now time.Time) error {
	b := s.batch
	if b == nil {
		return nil
	}
	if b.builder.Len() > s.rt.o.CachedBufferBytes {
		s.builder = nil
	}
	built, err := b.builder.Build()
	var end int64
	if err == nil {
		end, err = s.rt.o.Log.Append(s.partition, s.epoch, built)
	}
	if err != nil {
		s.log.Error("coordinator could not append", "records", b.next-b.base, "offset", b.base, "err", err)
		s.failBatch(now, err)
		return err
	}
	if end != b.next {
		return s.outOfSync(now, end, b.next)
	}
	s.batch = nil
	s.timers.Stop(&s.lingered)
	s.wrote(end)
	for _, op := range b.ops {
		s.wait(op, end)
	}
	return nil
}

// outOfSync reloads the shard because an append landed at another offset than its records were applied at. Somebody else
// wrote to the partition; what they wrote must be replayed.
func (s *shard[C, R]) outOfSync(now time.Time, got, want int64) error {
	s.log.Error("coordinator is out of step with its log and reloads", "end_offset", got, "expected", want)
	s.stop(now, stateFailed)
	s.startLoad()
	return api.ErrNotCoordinator
}

// failBatch reverts what the batch has applied and tells everybody in it.
func (s *shard[C, R]) failBatch(now time.Time, err error) {
	b := s.batch
	if b == nil {
		return
	}
	s.batch = nil
	s.timers.Stop(&s.lingered)
	s.registry.Revert(b.base)
	for _, op := range b.ops {
		s.finish(now, op, err)
	}
}

// completeTransaction appends a marker and applies it.
func (s *shard[C, R]) completeTransaction(now time.Time, op *operation[C, R], coordinatorEpoch int32, commit bool) {
	if err := s.flush(now); err != nil {
		s.finish(now, op, err)
		return
	}
	if err := s.core.ReplayTransactionEnd(op.producerID, op.producerEpoch, commit); err != nil {
		// Part of it may have been applied, and there will be no marker.
		s.registry.Revert(s.written)
		s.finish(now, op, err)
		return
	}
	marker := record.BuildEndTxnMarker(op.producerID, op.producerEpoch, coordinatorEpoch, commit, now.UnixMilli())
	end, err := s.rt.o.Log.Append(s.partition, s.epoch, marker)
	switch {
	case err != nil:
		s.log.Error("coordinator could not append a transaction marker", "producer_id", op.producerID, "err", err)
		s.registry.Revert(s.written)
		s.finish(now, op, err)
	case end != s.written+1:
		s.finish(now, op, s.outOfSync(now, end, s.written+1))
	default:
		s.wrote(end)
		s.wait(op, end)
	}
}
