package log

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"

	"gregor/internal/uuid"
)

const (
	lockFile          = ".lock"
	cleanShutdownFile = ".kafka_cleanshutdown"
)

// logDir is one of the log directories.
type logDir struct {
	m    *Manager
	path string
	id   uuid.UUID
	lock io.Closer

	clean     bool  // the stop before was clean
	prevEpoch int64 // broker epoch in the marker, -1 if none

	failed atomic.Pointer[error] // set once when the directory goes offline

	// What has changed since the checkpoint was last written.
	recoveryDirty, startDirty, hwDirty, cleanerDirty atomic.Bool

	mu      sync.Mutex // guards below
	logs    map[TopicPartition]*Log
	futures map[TopicPartition]*Log
	stale   map[TopicPartition]bool // checkpoint lines on disk that belong to a replica that was deleted
	allGood bool                    // every log in it was loaded

	writing sync.Mutex // one checkpoint write at a time
}

// offline is why the directory can't be used, or nil.
func (d *logDir) offline() error {
	if p := d.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// fail takes the directory offline; only the first call does anything.
func (d *logDir) fail(err error) {
	if !d.failed.CompareAndSwap(nil, &err) {
		return
	}
	d.m.e.logger.Error("log directory failed and is offline", "dir", d.path, "err", err)
	if f := d.m.o.OnDirFailure; f != nil {
		// Not on the caller's goroutine: it holds the lock of the log that failed.
		d.m.later(func() { f(d.path, err) })
	}
}

func (d *logDir) file(name string) string { return d.path + "/" + name }

// cleanShutdown is the contents of the clean-shutdown marker.
type cleanShutdown struct {
	Version     int   `json:"version"`
	BrokerEpoch int64 `json:"brokerEpoch"`
}

func encodeCleanShutdown(brokerEpoch int64) []byte {
	return fmt.Appendf(nil, `{"version":0,"brokerEpoch":%d}`, brokerEpoch)
}

// decodeCleanShutdown is the broker epoch, or -1 when the marker doesn't tell.
func decodeCleanShutdown(data []byte) int64 {
	c := cleanShutdown{BrokerEpoch: -1}
	if err := json.Unmarshal(data, &c); err != nil {
		return -1
	}
	return c.BrokerEpoch
}

// takeMarker notes whether the directory was left by a clean stop and removes the marker, so that a crash from here on counts
// as one.
func (d *logDir) takeMarker() error {
	d.prevEpoch = -1
	name := d.file(cleanShutdownFile)
	data, err := readFile(d.m.e.fs, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	d.clean = true
	d.prevEpoch = decodeCleanShutdown(data)
	if err := d.m.e.fs.Remove(name); err != nil {
		return err
	}
	// If the removal were lost in a crash, what is appended from now on would be believed without a look.
	return d.m.e.fs.SyncDir(d.path)
}

// each returns the logs of the directory, ordered by name.
func (d *logDir) each(future bool) []*Log {
	d.mu.Lock()
	m := d.logs
	if future {
		m = d.futures
	}
	out := make([]*Log, 0, len(m))
	for _, l := range m {
		out = append(out, l)
	}
	d.mu.Unlock()
	slices.SortFunc(out, func(a, b *Log) int { return a.tp.Compare(b.tp) })
	return out
}

// lines collects a checkpoint's lines. A replica that is moving here counts under its plain name, as in Kafka.
func (d *logDir) lines(of func(l *Log) (int64, bool)) []partitionOffset {
	var out []partitionOffset
	for _, future := range []bool{false, true} {
		for _, l := range d.each(future) {
			if o, ok := of(l); ok {
				out = append(out, partitionOffset{l.tp, o})
			}
		}
	}
	return out
}

// checkpoint writes one checkpoint file if something changed since it was last written.
func (d *logDir) checkpoint(name string, dirty *atomic.Bool, of func(l *Log) (int64, bool)) error {
	// Who finds that there is nothing to write must not go on before the one who writes is through.
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.offline() != nil || !dirty.Swap(false) {
		return nil
	}
	if err := replaceFile(d.m.e.fs, d.file(name), encodeOffsets(d.lines(of)), syncAll); err != nil {
		dirty.Store(true)
		err = fmt.Errorf("checkpoint %s: %w", d.file(name), err)
		if !passing(err) {
			d.fail(err)
		}
		return err
	}
	return nil
}

func (d *logDir) checkpointRecovery() error {
	return d.checkpoint(recoveryPointFile, &d.recoveryDirty, func(l *Log) (int64, bool) { return l.RecoveryPoint(), true })
}

func (d *logDir) checkpointStarts() error {
	return d.checkpoint(logStartFile, &d.startDirty, func(l *Log) (int64, bool) {
		start := l.LogStartOffset()
		return start, start > l.segs()[0].base
	})
}

func (d *logDir) checkpointHighWatermarks() error {
	return d.checkpoint(highWatermarkFile, &d.hwDirty, func(l *Log) (int64, bool) { return l.HighWatermark(), true })
}

// settle makes sure that no checkpoint has a line of an earlier replica of the partition: it would be taken for one of the new.
func (d *logDir) settle(tp TopicPartition) error {
	d.mu.Lock()
	stale := d.stale[tp]
	d.mu.Unlock()
	if !stale {
		return nil
	}
	d.recoveryDirty.Store(true)
	d.startDirty.Store(true)
	d.hwDirty.Store(true)
	d.cleanerDirty.Store(true)
	d.mu.Lock()
	old := d.stale
	d.stale = nil
	d.mu.Unlock()
	if err := errors.Join(d.checkpointRecovery(), d.checkpointStarts(), d.checkpointHighWatermarks(), d.checkpointCleaned()); err != nil {
		d.mu.Lock()
		d.stale = old
		d.mu.Unlock()
		return err
	}
	return nil
}

func (d *logDir) flushLater(l *Log) { d.m.flushLater(l) }
