package log

import (
	"fmt"
)

// TruncateTo cuts the log so that its end is at most offset: what a follower does that has what its leader doesn't. A batch that
// holds the offset goes whole, so the log may end before it.
func (l *Log) TruncateTo(offset int64) error {
	if err := l.lowerRecovery(offset); err != nil {
		return err
	}
	was := l.HighWatermark()
	if err := l.truncateTo(offset); err != nil {
		return err
	}
	if l.parent == nil || l.HighWatermark() >= was {
		return nil
	}
	// A high watermark on disk that belongs to what is gone would be believed of what is appended from now on.
	l.parent.hwDirty.Store(true)
	return l.ioError("checkpoint a truncation of", l.parent.checkpointHighWatermarks())
}

func (l *Log) truncateTo(offset int64) error {
	l.mu.Lock()
	defer l.unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if offset < 0 {
		return fmt.Errorf("truncate %s to negative offset %d", l.tp, offset)
	}
	if err := l.repairTail(); err != nil {
		return err
	}
	l.marks.Lock()
	end, start := l.end.offset, l.start
	l.marks.Unlock()
	if offset >= end {
		// Epochs that were assigned and never written in may still lie beyond.
		l.epochs.truncateFromEnd(max(offset, end))
		return nil
	}
	l.e.logger.Info("log truncated", "partition", l.tp.String(), "offset", offset, "log_end_offset", end)
	if offset < l.segs()[0].base || offset < start {
		return l.ioError("truncate", l.restart(offset, 0))
	}
	return l.ioError("truncate", l.truncate(offset))
}

// lowerRecovery moves the recovery point down to offset, durably, before a truncation: what is cut and what is appended in its
// place must be looked at after a crash, however little of it has reached the disk.
func (l *Log) lowerRecovery(offset int64) error {
	lower := func() bool {
		l.mu.Lock()
		defer l.unlock()
		lower := offset < l.recovery
		if lower && l.usable() == nil {
			// The batch that holds the offset goes whole.
			segs := l.segs()
			seg := segs[max(segmentAt(segs, offset), 0)]
			b, ok, err := seg.find(l.e.files, offset)
			switch {
			case err != nil || (ok && b.first < 0):
				offset = min(offset, seg.base)
			case ok:
				offset = min(offset, b.first)
			}
		}
		l.recovery = min(l.recovery, max(offset, 0))
		l.truncated++ // a flush that is under way must not raise it again
		return lower
	}()
	if !lower || l.parent == nil {
		return nil
	}
	l.parent.recoveryDirty.Store(true)
	return l.ioError("checkpoint a truncation of", l.parent.checkpointRecovery())
}

// truncate cuts at offset, which lies within the log. mu is held.
func (l *Log) truncate(offset int64) error {
	fc := l.e.files
	l.shape.Lock()
	segs := l.segs()
	n := segmentAt(segs, offset) + 1
	later := segs[n:]
	segs = segs[:n:n]
	seg := segs[n-1]
	l.truncated++
	l.touched = true
	err := func() error {
		// Damage where the cut would be must be found before anything is removed.
		b, ok, err := seg.find(fc, offset)
		if err != nil {
			return err
		}
		if _, err := seg.txns.load(seg.txnEnv(fc)); err != nil {
			return err
		}
		// What is removed must not come back behind what is appended next, and neither must bytes that are cut: recovery
		// couldn't tell them from the new ones. Kafka doesn't sync here.
		if err := l.removeSegments(newestFirst(later), 0); err != nil {
			return err
		}
		if err := l.dropSnapshots(0, func(o int64) bool { return o > offset }); err != nil {
			return err
		}
		if err := l.e.fs.SyncDir(l.dir.get()); err != nil {
			return err
		}
		pos := b.pos
		if !ok {
			if pos, err = seg.bytes(fc); err != nil {
				return err
			}
		}
		if err := l.cutSegment(seg, pos, offset); err != nil {
			return err
		}
		end, err := l.endOf(segs, pos)
		if err != nil {
			return err
		}
		l.segments.Store(&segs)
		l.marks.Lock()
		l.end = position{offset: end, seg: seg, pos: pos}
		l.recent = nil
		if l.start > end {
			// Records were deleted up to the middle of a batch that is cut away.
			l.start = end
			if l.parent != nil {
				l.parent.startDirty.Store(true)
			}
		}
		if l.hw.offset >= end {
			l.hw = l.end
		} else {
			l.hw = position{offset: l.hw.offset}
		}
		l.marks.Unlock()
		return nil
	}()
	l.shape.Unlock()
	if err != nil {
		return err
	}
	end := l.end.offset // only written under mu, which is held
	l.recovery = min(l.recovery, end)
	l.lowerFirstDirty(end)
	l.epochs.truncateFromEnd(end)
	if err := l.dropSnapshots(0, func(o int64) bool { return o > end }); err != nil {
		return err
	}
	from, err := l.loadSnapshot(end)
	if err != nil {
		return err
	}
	return l.replay(from, end)
}

// lowerFirstDirty makes the cleaner look again at what is appended in the place of what was cut. mu is held.
func (l *Log) lowerFirstDirty(end int64) {
	if l.firstDirty > end {
		l.firstDirty = end
		if l.parent != nil {
			l.parent.cleanerDirty.Store(true)
		}
	}
}

// cutSegment cuts a segment and its indexes to pos, where the first batch that ends at or above offset begins. Both locks are
// held.
func (l *Log) cutSegment(seg *segment, pos, offset int64) error {
	fc := l.e.files
	f, err := seg.open(fc)
	if err != nil {
		return err
	}
	err = f.Truncate(pos)
	if err == nil {
		err = f.Sync()
	}
	seg.release(fc)
	if err != nil {
		return err
	}
	seg.size.Store(pos)
	seg.reserved = 0 // given back by the cut
	rel := offset - seg.base
	if err := seg.index.truncateWhere(seg.indexEnv(fc), func(e []byte) bool {
		r, p := indexEntry(e)
		return int64(r) < rel && int64(p) < pos
	}); err != nil {
		return err
	}
	if err := seg.times.truncateWhere(seg.timesEnv(fc), func(e []byte) bool {
		_, r := timeEntry(e)
		return int64(r) < rel
	}); err != nil {
		return err
	}
	if err := seg.txns.truncate(seg.txnEnv(fc), offset); err != nil {
		return err
	}
	// The largest timestamp may have gone: what is left is in the time index and behind its last entry.
	maxTs, last, err := seg.scanTimestamps(fc, pos)
	if err != nil {
		return err
	}
	seg.setTimestamps(maxTs, last)
	if pos == 0 {
		seg.firstTs = unknownTs
		seg.created = l.e.nowMs()
	}
	seg.sinceIndex = 0
	if e, err := seg.index.lastEntry(seg.indexEnv(fc)); err != nil {
		return err
	} else if e.ok {
		_, p := indexEntry(e.b[:])
		seg.sinceIndex = pos - int64(p)
	} else {
		seg.sinceIndex = pos
	}
	seg.checked.Store(true)
	return nil
}

// endOf is the offset behind the last batch before pos of the last segment, or the segment's base when there is none.
func (l *Log) endOf(segs []*segment, pos int64) (int64, error) {
	seg := segs[len(segs)-1]
	if pos == 0 {
		return seg.base, nil
	}
	fc := l.e.files
	from := int64(0)
	if e, err := seg.index.lastEntry(seg.indexEnv(fc)); err != nil {
		return 0, err
	} else if e.ok {
		_, p := indexEntry(e.b[:])
		from = int64(p)
	}
	f, err := seg.open(fc)
	if err != nil {
		return 0, err
	}
	defer seg.release(fc)
	h := newHeaderScan(f, from, pos)
	defer h.close()
	end := seg.base
	for {
		b, err := h.next()
		if err != nil {
			return end, ignoreDamage(err)
		}
		end = b.last + 1
	}
}

// TruncateFully throws everything away and begins anew at offset: what a follower does when its leader's log begins beyond its
// own end, and the metadata log when a snapshot is installed.
func (l *Log) TruncateFully(offset int64) error {
	if offset < 0 {
		return fmt.Errorf("truncate %s fully to negative offset %d", l.tp, offset)
	}
	if err := l.lowerRecovery(0); err != nil {
		return err
	}
	if err := l.truncateFully(offset); err != nil || l.parent == nil {
		return err
	}
	// A log start offset on disk that belongs to what is gone would hide what is appended from now on.
	l.parent.startDirty.Store(true)
	return l.ioError("checkpoint a truncation of", l.parent.checkpointStarts())
}

func (l *Log) truncateFully(offset int64) error {
	l.mu.Lock()
	defer l.unlock()
	if err := l.usable(); err != nil {
		return err
	}
	l.cutTo = -1
	l.e.logger.Info("log begins anew", "partition", l.tp.String(), "offset", offset)
	if err := l.restart(offset, 0); err != nil {
		return l.ioError("truncate", err)
	}
	return nil
}
