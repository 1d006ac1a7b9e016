package coordinator

import (
	"fmt"
	"sync/atomic"
	"time"

	"gregor/internal/record"
	"gregor/internal/timeline"
)

// progressInterval is how often a load that takes long says how far it is.
const progressInterval = 5 * time.Second

// load is the replay of a partition into a core that isn't active yet. Until it is done the core belongs to it.
type load[C Core[R], R any] struct {
	s        *shard[C, R]
	core     C
	registry *timeline.Registry
	cancel   atomic.Bool

	offset int64 // the next one to be replayed
	// settled is the high watermark when it was last looked at; what lies behind it may still be cut off, so from there on
	// there is a snapshot before each batch.
	settled int64
	marks   []int64
	records int64
	bytes   int64
	skipped int64 // records of unknown types
}

// startLoad begins to fill a new core from the log, in the background.
func (s *shard[C, R]) startLoad() {
	s.setState(stateLoading)
	l := &load[C, R]{s: s, registry: timeline.NewRegistry()}
	l.core = s.rt.o.NewCore(Env[R]{
		Partition: s.partition,
		Registry:  l.registry,
		Timers:    &s.timers,
		Logger:    s.log,
		Later:     s.later,
	})
	s.load = l
	epoch := s.epoch
	spawned := s.rt.spawn(func() {
		s.rt.loads <- struct{}{}
		defer func() { <-s.rt.loads }()
		begin := s.rt.o.Clock.Now()
		err := l.run()
		s.submit(func(now time.Time) { s.loaded(now, l, epoch, now.Sub(begin), err) })
	})
	if !spawned {
		s.setState(stateFailed)
	}
}

// loaded makes the shard active with what l has replayed.
func (s *shard[C, R]) loaded(now time.Time, l *load[C, R], epoch int32, took time.Duration, err error) {
	if s.load != l {
		return // unloaded, or loading again
	}
	s.load = nil
	if err != nil {
		s.log.Error("coordinator partition could not be loaded", "leader_epoch", epoch, "offset", l.offset, "err", err)
		s.stop(now, stateFailed)
		return
	}
	s.core, s.registry, s.marks = l.core, l.registry, l.marks
	s.written, s.committed = l.offset, l.marks[0]
	s.setState(stateActive)
	s.log.Info("coordinator partition loaded", "leader_epoch", epoch, "records", l.records, "bytes", l.bytes,
		"end_offset", l.offset, "unknown", l.skipped, "took", took)
	if _, hw, _, err := s.rt.o.Log.Offsets(s.partition); err == nil {
		s.advance(now, hw)
	}
	s.core.Loaded(now)
}

// run replays the log from its start to its end.
func (l *load[C, R]) run() error {
	var (
		log    = l.s.rt.o.Log
		clock  = l.s.rt.o.Clock
		buf    = make([]byte, l.s.rt.o.LoadBufferBytes)
		report = clock.Now().Add(progressInterval)
	)
	start, hw, end, err := log.Offsets(l.s.partition)
	if err != nil {
		return err
	}
	l.offset, l.settled = start, hw
	if start >= hw {
		l.mark()
	}
	for l.offset < end && !l.cancel.Load() {
		chunk, err := log.Read(l.s.partition, l.offset, buf)
		if err != nil {
			return fmt.Errorf("read at offset %d: %w", l.offset, err)
		}
		if len(chunk) == 0 {
			break // a compacted log may end before its end offset
		}
		l.bytes += int64(len(chunk))
		for len(chunk) > 0 {
			var b record.Batch
			b, chunk, err = record.Next(chunk)
			if err != nil {
				return fmt.Errorf("batch after offset %d: %w", l.offset, err)
			}
			if err := l.replay(b); err != nil {
				return err
			}
		}
		if now := clock.Now(); !now.Before(report) {
			report = now.Add(progressInterval)
			l.s.log.Info("loading coordinator partition", "offset", l.offset, "end_offset", end,
				"percent", 100*(l.offset-start)/max(end-start, 1), "records", l.records)
		}
		if _, l.settled, end, err = log.Offsets(l.s.partition); err != nil {
			return err
		}
	}
	l.mark()
	return nil
}

// mark makes the present offset one that the state can go back to. At the first mark nothing before it can be lost.
func (l *load[C, R]) mark() {
	if n := len(l.marks); n > 0 && l.marks[n-1] == l.offset {
		return
	}
	l.registry.Snapshot(l.offset)
	l.marks = append(l.marks, l.offset)
}

func (l *load[C, R]) replay(b record.Batch) error {
	if b.LastOffset() < l.offset {
		return nil
	}
	it := b.Records(l.s.rt.o.Decompressor)
	defer it.Close()
	for it.Next() {
		r := it.Record()
		if r.Offset < l.offset {
			continue
		}
		if b.IsControl() {
			kind, err := record.ParseControlKey(r.Key)
			if err != nil {
				return fmt.Errorf("control record at offset %d: %w", r.Offset, err)
			}
			if kind == record.ControlCommit || kind == record.ControlAbort {
				if err := l.core.ReplayTransactionEnd(b.ProducerID(), b.ProducerEpoch(), kind == record.ControlCommit); err != nil {
					return fmt.Errorf("transaction marker at offset %d: %w", r.Offset, err)
				}
			}
			continue
		}
		l.records++
		decoded, ok, err := l.s.rt.o.Codec.Decode(r.Key, r.Value)
		if err != nil {
			return fmt.Errorf("record at offset %d: %w", r.Offset, err)
		}
		if !ok {
			l.skipped++
			continue
		}
		if err := l.core.Replay(r.Offset, b.ProducerID(), b.ProducerEpoch(), decoded); err != nil {
			return fmt.Errorf("replay record at offset %d: %w", r.Offset, err)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
	}
	l.offset = b.NextOffset()
	if l.offset >= l.settled {
		l.mark()
	}
	return nil
}
