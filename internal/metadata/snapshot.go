package metadata

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"gregor/internal/clock"
	"gregor/internal/message"
)

// SnapshotSink is where one snapshot is written to.
type SnapshotSink interface {
	// Append adds some records; it doesn't keep the slice.
	Append(records []message.Versioned) error
	// Freeze makes the snapshot durable and puts it in place.
	Freeze() error
	// Close drops the snapshot unless it is frozen.
	Close() error
}

// SnapshotOptions configures a SnapshotGenerator.
type SnapshotOptions struct {
	Clock  clock.Clock
	Logger *slog.Logger
	// MaxBytes is how many bytes of records there may be after a snapshot before the next one is due. Config
	// "metadata.log.max.record.bytes.between.snapshots"; default 20 MiB.
	MaxBytes int64
	// MaxInterval is the time after which a snapshot is due even with fewer bytes; 0 for never. Config
	// "metadata.log.max.snapshot.interval.ms"; default 1 h.
	MaxInterval time.Duration
	// Create begins a snapshot of everything before endOffset, whose last record has that epoch and append time. It returns
	// nil and no error when there is one of that name already.
	Create func(endOffset int64, epoch int32, lastContainedLogTime int64) (SnapshotSink, error)
	// OnFault is told when a snapshot could not be written. Nil only logs.
	OnFault func(err error)
}

// SnapshotGenerator is a Publisher that writes the image to a snapshot when enough of the log or enough time has gone by.
// It writes on a goroutine of its own, one snapshot at a time, while new images come in. Time is looked at when metadata is
// published; the active controller's no-op records see to it that this happens often.
type SnapshotGenerator struct {
	o SnapshotOptions

	mu       sync.Mutex // guards all below
	bytes    int64
	since    time.Time
	writing  bool
	disabled string
	done     sync.WaitGroup
}

// NewSnapshotGenerator makes one, which counts from now on.
func NewSnapshotGenerator(o SnapshotOptions) *SnapshotGenerator {
	return &SnapshotGenerator{o: o, since: o.Clock.Now()}
}

// Name implements Publisher.
func (g *SnapshotGenerator) Name() string { return "snapshot generator" }

// Publish implements Publisher.
func (g *SnapshotGenerator) Publish(_ *Delta, img *Image, m Manifest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.o.Clock.Now()
	if m.Snapshot {
		g.bytes, g.since = 0, now
		return
	}
	g.bytes += int64(m.Bytes)
	reason := ""
	switch {
	case g.bytes >= g.o.MaxBytes:
		reason = "bytes"
	case g.o.MaxInterval > 0 && now.Sub(g.since) >= g.o.MaxInterval:
		reason = "time"
	default:
		return
	}
	// An image that ends inside of a batch has no place in the log that a snapshot could be named after, and one without
	// metadata.version no form to be written in. The next one will do.
	if g.writing || !img.BatchAligned || !img.Features.MetadataVersion.Known() {
		return
	}
	if g.disabled != "" {
		g.o.Logger.Warn("no metadata snapshot is written", "offset", img.Offset+1, "reason", g.disabled)
		g.bytes, g.since = 0, now
		return
	}
	g.o.Logger.Info("writing metadata snapshot", "offset", img.Offset+1, "epoch", img.Epoch, "reason", reason, "bytes", g.bytes)
	g.bytes, g.since, g.writing = 0, now, true
	g.done.Go(func() {
		err := WriteSnapshot(img, g.o.Create)
		g.mu.Lock()
		g.writing = false
		g.mu.Unlock()
		if err != nil {
			g.o.Logger.Error("metadata snapshot failed", "offset", img.Offset+1, "err", err)
			if g.o.OnFault != nil {
				g.o.OnFault(err)
			}
		}
	})
}

// Disable stops the writing of snapshots for a reason: the image is not to be trusted any more.
func (g *SnapshotGenerator) Disable(reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.disabled == "" {
		g.disabled = reason
	}
}

// Close begins no more snapshots and waits for the one that is being written.
func (g *SnapshotGenerator) Close() {
	g.Disable("the node is stopping")
	g.done.Wait()
}

const (
	// The records of an image are made a bounded number at a time, far below the 8 MiB that a batch of the metadata log may
	// have.
	snapshotBatchRecords = 1024
	snapshotBatchBytes   = 512 << 10
)

// WriteSnapshot writes one snapshot of img at its own metadata.version. It does nothing when create says that it is there.
func WriteSnapshot(img *Image, create func(endOffset int64, epoch int32, lastContainedLogTime int64) (SnapshotSink, error)) error {
	w, err := create(img.Offset+1, img.Epoch, img.Time)
	if err != nil {
		return fmt.Errorf("metadata: create snapshot %d-%d: %w", img.Offset+1, img.Epoch, err)
	}
	if w == nil {
		return nil
	}
	err = writeBatches(img, w)
	if err == nil {
		err = w.Freeze()
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("metadata: write snapshot %d-%d: %w", img.Offset+1, img.Epoch, err)
	}
	return nil
}

func writeBatches(img *Image, w SnapshotSink) error {
	var batch []message.Versioned
	bytes := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := w.Append(batch)
		batch, bytes = batch[:0], 0
		return err
	}
	err := img.Write(func(r message.Versioned) error {
		n := message.MetadataRecordSize(r.Message, r.Version)
		if len(batch) == snapshotBatchRecords || bytes+n > snapshotBatchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		batch, bytes = append(batch, r), bytes+n
		return nil
	}, WriteOptions{MetadataVersion: img.Features.MetadataVersion})
	if err != nil {
		return err
	}
	return flush()
}
