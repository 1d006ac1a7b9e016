package raft

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"gregor/internal/log"
)

// partitionLog is the Log that is a log.Log.
type partitionLog struct{ l *log.Log }

// openLog opens the metadata log in Dir. It has no retention of its own: it shrinks behind snapshots only.
func openLog(ctx context.Context, o Options) (Log, error) {
	cfg := log.DefaultConfig()
	cfg.SegmentBytes = o.SegmentBytes
	cfg.SegmentAge = o.SegmentAge
	cfg.MaxMessageBytes = MaxBatchBytes
	cfg.RetentionBytes, cfg.RetentionAge = -1, -1
	l, err := log.OpenMetadata(ctx, log.MetadataOptions{FS: o.FS, Clock: o.Clock, Logger: o.Logger, Dir: o.Dir, Config: cfg})
	if err != nil {
		return nil, fmt.Errorf("raft: open the metadata log: %w", err)
	}
	return partitionLog{l}, nil
}

func (p partitionLog) StartOffset() int64 { return p.l.LogStartOffset() }
func (p partitionLog) EndOffset() int64   { return p.l.EndOffset() }
func (p partitionLog) Size() int64        { return p.l.Size() }
func (p partitionLog) Sync() error        { return p.l.Flush() }
func (p partitionLog) Close() error       { return p.l.Close() }

func (p partitionLog) Epochs() ([]EpochStart, error) {
	var list []EpochStart
	for at := p.l.LogStartOffset(); at < p.l.EndOffset(); {
		epoch, ok := p.l.EpochForOffset(at)
		if !ok && list == nil {
			// The first segment may begin before what the log was trimmed to, and epochs are known from there on. No record
			// has epoch 0, so that its end is where the first known one begins.
			if _, first, known := p.l.EndOffsetForEpoch(0); known && first > at {
				at = first
				continue
			}
		}
		if !ok {
			return nil, fmt.Errorf("raft: no epoch is known for offset %d of the metadata log", at)
		}
		_, end, ok := p.l.EndOffsetForEpoch(epoch)
		if !ok || end <= at {
			return nil, fmt.Errorf("raft: the end of epoch %d of the metadata log, which has offset %d, is not known", epoch, at)
		}
		list = append(list, EpochStart{epoch, at})
		at = end
	}
	return list, nil
}

func (p partitionLog) Append(batches []byte) error {
	end := p.l.EndOffset()
	_, err := p.l.AppendFollower(batches)
	if !errors.Is(err, syscall.ENOSPC) || p.l.EndOffset() == end {
		return err
	}
	// The disk was full after the first of several segments. Whoever gets this error tries again with all of it.
	back := p.TruncateTo(end)
	switch {
	case back == nil:
		return err
	case errors.Is(back, syscall.ENOSPC):
		return fmt.Errorf("%v, and a part can't be taken back: %v", err, back) // the log isn't as it was
	}
	return fmt.Errorf("%v, and a part can't be taken back: %w", err, back)
}

func (p partitionLog) Read(offset int64, maxBytes int) ([]byte, error) {
	f, err := p.l.Read(offset, maxBytes, log.ReadLogEnd, true)
	if err != nil {
		return nil, err
	}
	defer f.Slice.Release()
	return f.Slice.Bytes(make([]byte, 0, f.Slice.Len()))
}

func (p partitionLog) TruncateTo(offset int64) error {
	if err := p.l.TruncateTo(offset); err != nil {
		return err
	}
	return p.l.Flush()
}

func (p partitionLog) Restart(offset int64) error {
	if err := p.l.TruncateFully(offset); err != nil {
		return err
	}
	return p.l.Flush()
}

func (p partitionLog) TrimTo(offset int64) error {
	// Segments are deleted below the high watermark only; a log's start is always committed.
	if p.l.HighWatermark() < offset {
		p.l.SetHighWatermark(offset)
	}
	if err := p.l.IncrementLogStart(offset, "snapshot"); err != nil {
		return err
	}
	_, err := p.l.DeleteOldSegments()
	return err
}
