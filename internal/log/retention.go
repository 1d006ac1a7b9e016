package log

import (
	"slices"

	"gregor/internal/record"
)

// RunRetention deletes what the topics' configurations let go: it runs by itself every log.retention.check.interval.ms.
func (m *Manager) RunRetention() {
	for l := range m.every() {
		if l.parent.offline() != nil {
			continue
		}
		if _, err := l.DeleteOldSegments(); err != nil {
			m.warn(err, "retention")
		}
	}
}

// DeleteOldSegments deletes the segments that lie below the log start offset, and with cleanup.policy delete those that
// retention.ms and retention.bytes let go, oldest first. Nothing at or above the high watermark goes. The log start offset
// follows.
func (l *Log) DeleteOldSegments() (deleted int, err error) {
	l.mu.Lock()
	defer l.unlock()
	if err := l.usable(); err != nil {
		return 0, err
	}
	cfg := l.cfg.Load()
	if cfg.CleanupDelete && !l.meta {
		if n, err := l.deleteWhere("retention.ms", l.expired(cfg)); err != nil {
			return deleted, err
		} else {
			deleted += n
		}
		if n, err := l.deleteWhere("retention.bytes", l.excess(cfg)); err != nil {
			return deleted, err
		} else {
			deleted += n
		}
	}
	start := l.LogStartOffset()
	n, err := l.deleteWhere("log start offset", func(_, next *segment) (bool, error) {
		return next != nil && next.base <= start, nil
	})
	return deleted + n, err
}

// expired is the rule of retention.ms: by the largest timestamp, or by the file's modification time where there is none.
// Timestamps in the future never expire.
func (l *Log) expired(cfg *Config) func(s, next *segment) (bool, error) {
	if cfg.RetentionAge < 0 {
		return func(_, _ *segment) (bool, error) { return false, nil }
	}
	now, age := l.e.nowMs(), boundMs(cfg.RetentionAge)
	return func(s, _ *segment) (bool, error) {
		ts, err := l.largestTimestamp(s)
		return now-ts > age, err
	}
}

func (l *Log) largestTimestamp(s *segment) (int64, error) {
	ts, _, err := s.timestamps(l.e.files)
	if err != nil || ts > record.NoTimestamp {
		return ts, err
	}
	st, err := l.e.fs.Stat(s.name(suffixLog).path())
	if err != nil {
		return 0, err
	}
	return st.ModTime().UnixMilli(), nil
}

// excess is the rule of retention.bytes: a segment goes when what stays is still as large as that.
func (l *Log) excess(cfg *Config) func(s, next *segment) (bool, error) {
	if cfg.RetentionBytes < 0 {
		return func(_, _ *segment) (bool, error) { return false, nil }
	}
	over := l.Size() - cfg.RetentionBytes
	return func(s, _ *segment) (bool, error) {
		n, err := s.bytes(l.e.files)
		if err != nil || over-n < 0 {
			return false, err
		}
		over -= n
		return true, nil
	}
}

// deleteWhere deletes the leading segments for which the rule holds. mu is held.
func (l *Log) deleteWhere(reason string, rule func(s, next *segment) (bool, error)) (int, error) {
	segs := l.segs()
	l.marks.Lock()
	hw, end := l.hw.offset, l.end.offset
	l.marks.Unlock()
	n := 0
	for n < len(segs) {
		s := segs[n]
		var next *segment
		upper := end
		if n+1 < len(segs) {
			next = segs[n+1]
			upper = next.base
		}
		size, err := s.bytes(l.e.files)
		if err != nil {
			return 0, l.ioError("read", err)
		}
		// The last segment, when it is empty, has nothing to give.
		if upper > hw || (next == nil && size == 0) {
			break
		}
		ok, err := rule(s, next)
		if err != nil {
			return 0, l.ioError("read", err)
		}
		if !ok {
			break
		}
		n++
	}
	if n == 0 {
		return 0, nil
	}
	if n == len(segs) {
		if err := l.roll(end); err != nil {
			return 0, err
		}
		segs = l.segs()
	}
	// The start moves first: a reader below it is told so, and finds no hole.
	if err := l.incrementStart(segs[n].base, "segment deletion"); err != nil {
		return 0, err
	}
	if err := l.dropFirst(segs, n); err != nil {
		return 0, l.ioError("delete segments of", err)
	}
	l.e.logger.Info("segments deleted", "partition", l.tp.String(), "segments", n, "reason", reason, "log_start_offset", segs[n].base)
	return n, nil
}

// dropFirst takes the first n segments out of the log and deletes their files. mu is held.
func (l *Log) dropFirst(segs []*segment, n int) error {
	rest := slices.Clone(segs[n:])
	l.shape.Lock()
	l.segments.Store(&rest)
	l.shape.Unlock()
	l.touched = true
	delay := l.cfg.Load().FileDeleteDelay
	if err := l.removeSegments(segs[:n], delay); err != nil {
		return err
	}
	gone := segs[:n]
	err := l.dropSnapshots(delay, func(o int64) bool {
		i := segmentAt(gone, o)
		return i >= 0 && gone[i].base == o
	})
	if l.parent != nil {
		l.parent.startDirty.Store(true)
	}
	return err
}
