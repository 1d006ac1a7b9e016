package log

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// closers is how many logs of a directory are closed at once: file systems commit their syncs together.
const closers = 16

// Close makes the directories what a clean stop leaves and gives them up: high watermarks, then the logs, then recovery points
// and log starts, then the clean-shutdown marker with the broker epoch. Directories in which something failed get no marker, and
// none do when ctx ends before. The metadata log isn't the Manager's.
func (m *Manager) Close(ctx context.Context, brokerEpoch int64) error {
	m.bg.close()
	errs := []error{m.CheckpointHighWatermarks()}
	var wg sync.WaitGroup
	perDir := make([]error, len(m.dirs))
	for i, d := range m.dirs {
		m.fork(&wg, func() { perDir[i] = d.close(ctx, brokerEpoch) })
	}
	wg.Wait()
	return errors.Join(append(errs, perDir...)...)
}

func (d *logDir) close(ctx context.Context, brokerEpoch int64) error {
	defer func() {
		if d.lock != nil {
			d.lock.Close()
			d.lock = nil
		}
	}()
	if err := d.offline(); err != nil {
		return nil
	}
	logs := append(d.each(false), d.each(true)...)
	err := d.closeTogether(ctx, logs)
	if err == nil {
		err = d.parallel(ctx, logs, (*Log).Close)
	}
	if err != nil {
		return fmt.Errorf("close %s: no clean stop: %w", d.path, err)
	}
	if err := errors.Join(d.checkpointRecovery(), d.checkpointStarts(), d.checkpointCleaned()); err != nil {
		return err
	}
	if d.offline() != nil || !d.allGood {
		return nil
	}
	if err := writeFile(d.m.e.fs, d.file(cleanShutdownFile), encodeCleanShutdown(brokerEpoch), true); err != nil {
		return fmt.Errorf("write %s: %w", d.file(cleanShutdownFile), err)
	}
	if err := removeIfExists(d.m.e.fs, d.file(lockFile)); err != nil {
		return err
	}
	return d.m.e.fs.SyncDir(d.path)
}

// parallel calls f for each log, several at a time.
func (d *logDir) parallel(ctx context.Context, logs []*Log, f func(*Log) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for range min(closers, len(logs)) {
		d.m.fork(&wg, func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(logs) {
					return
				}
				err := ctx.Err()
				if err == nil {
					err = f(logs[i])
				}
				if err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// closeTogether prepares many logs for closing with two syncs of the whole file system instead of some for each: first all is
// written, with what must never be seen incomplete under temporary names, then that gets its names. Few logs are left to Close.
func (d *logDir) closeTogether(ctx context.Context, logs []*Log) error {
	logs = slices.DeleteFunc(slices.Clone(logs), func(l *Log) bool {
		l.mu.Lock()
		defer l.unlock()
		return l.restsLocked()
	})
	if len(logs) < groupSync {
		return nil
	}
	if err := d.parallel(ctx, logs, (*Log).stageClose); err != nil {
		return err
	}
	if err := d.m.e.fs.SyncAll(d.path); err != nil {
		return err
	}
	if err := d.parallel(ctx, logs, (*Log).nameStaged); err != nil {
		return err
	}
	if err := d.m.e.fs.SyncAll(d.path); err != nil {
		return err
	}
	return d.parallel(ctx, logs, (*Log).settleStaged)
}

// Close makes a log what a clean stop leaves: indexes closed and trimmed, the producers' state at the log end offset, everything
// synced. It can't be used afterwards. A log that wasn't touched since it was loaded from a clean stop costs nothing.
func (l *Log) Close() error {
	err := l.prepareClose()
	l.mu.Lock()
	defer l.unlock()
	if l.closed == nil {
		l.closed = errClosed
	}
	for _, s := range l.segs() {
		s.close(l.e.files, false)
	}
	return err
}

// prepareClose does Close's writing.
func (l *Log) prepareClose() error {
	l.mu.Lock()
	if l.closed != nil {
		l.mu.Unlock()
		return nil
	}
	if err := l.usable(); err != nil {
		l.mu.Unlock()
		return err
	}
	end := l.endLocked()
	if l.restsLocked() {
		l.mu.Unlock()
		return l.ioError("write the epochs of", l.epochs.flush(l.e.fs, l.file(epochFile), syncAll))
	}
	err := l.completeLocked(end, syncFile)
	l.mu.Unlock()
	if err != nil {
		return l.ioError("close", err)
	}
	return l.flushTo(maxOffset, true)
}

// endLocked is the log end offset; mu is held, so that it stays.
func (l *Log) endLocked() int64 {
	l.marks.Lock()
	defer l.marks.Unlock()
	return l.end.offset
}

// restsLocked says whether everything is as a clean stop leaves it, but for the epochs. mu is held.
func (l *Log) restsLocked() bool {
	return !l.touched && l.recovery == l.endLocked() && l.dirSynced && !l.metaDirty && l.cutTo < 0
}

// completeLocked closes the active segment's indexes and writes the producers' state. mu is held.
func (l *Log) completeLocked(end int64, d durability) error {
	l.entries = true
	if err := l.repairTail(); err != nil {
		return err
	}
	if seg := l.active(); !seg.absent {
		if err := seg.seal(l.e.files); err != nil {
			return err
		}
	}
	if end == 0 {
		return nil // Kafka has no snapshot at 0 either
	}
	// Producers expire by themselves, so a snapshot that is there already may be out of date, but it isn't wrong.
	return l.writeSnapshot(end, d)
}

// staged is a log between stageClose and settleStaged.
type staged struct {
	end, truncated int64
	epochs         bool // leader-epoch-checkpoint has its temporary name
}

// stageClose writes what Close would, without a sync.
func (l *Log) stageClose() error {
	l.mu.Lock()
	defer l.unlock()
	if err := l.usable(); err != nil {
		return err
	}
	s := &staged{end: l.endLocked(), truncated: l.truncated}
	err := l.completeLocked(s.end, syncNone)
	if err == nil && l.metaDirty {
		err = writeFile(l.e.fs, l.file(partitionMetadataFile+suffixTmp), encodePartitionMetadata(l.TopicID()), false)
	}
	if err == nil {
		s.epochs, err = l.epochs.stage(l.e.fs, l.file(epochFile))
	}
	if err != nil {
		return l.ioError("close", err)
	}
	l.staged = s
	return nil
}

// nameStaged gives the files of stageClose, which are synced now, their names.
func (l *Log) nameStaged() error {
	if err := l.nameIdentity(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.unlock()
	if l.staged == nil || !l.staged.epochs {
		return nil
	}
	return l.ioError("close", l.e.fs.Rename(l.file(epochFile+suffixTmp), l.file(epochFile)))
}

// settleStaged notes that all of it is durable, unless something was appended or cut meanwhile: then Close does it again.
func (l *Log) settleStaged() error {
	l.mu.Lock()
	defer l.unlock()
	s := l.staged
	l.staged = nil
	if s == nil || s.end != l.endLocked() || s.truncated != l.truncated {
		l.epochs.redo()
		return nil
	}
	l.touched, l.entries, l.dirSynced = false, false, true
	if l.recovery < s.end {
		l.recovery = s.end
		l.parent.recoveryDirty.Store(true)
	}
	return nil
}
