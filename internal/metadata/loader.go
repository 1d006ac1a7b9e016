package metadata

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"gregor/internal/message"
)

// Batch is a committed batch of the metadata log. Records is nil for a control batch, which only moves the offset.
type Batch struct {
	BaseOffset int64
	LastOffset int64
	Epoch      int32
	AppendTime int64 // ms since 1970
	Bytes      int   // size in the log
	Records    []message.Versioned
}

// SnapshotSource gives the records of a snapshot, some at a time, and io.EOF after the last.
type SnapshotSource interface {
	Next() ([]message.Versioned, error)
}

// LeaderAndEpoch is who leads the metadata quorum, -1 when that isn't known, and in which epoch.
type LeaderAndEpoch struct {
	LeaderID int32
	Epoch    int32
}

// Manifest says what a delta was made from.
type Manifest struct {
	// Snapshot says that a snapshot was loaded, or that the publisher gets its first delta, which is the whole image.
	Snapshot bool
	// Leader is what was known of the quorum's leader.
	Leader LeaderAndEpoch
	// Batches and Bytes count what came from the log since the last delta; they are 0 with Snapshot.
	Batches int
	Bytes   int
}

// Publisher acts on new metadata. Publish is called for one delta at a time, in the order of the log, and must not call
// back into the loader. The first call has the delta from nothing to the whole image. Delta and image are immutable.
type Publisher interface {
	// Name is for logs, and must be different for each publisher of a loader.
	Name() string
	Publish(d *Delta, img *Image, m Manifest)
}

// LeaderPublisher is a Publisher that wants to know of the quorum's leader too.
type LeaderPublisher interface {
	Publisher
	PublishLeader(l LeaderAndEpoch)
}

// LoaderOptions configures a Loader.
type LoaderOptions struct {
	Logger *slog.Logger
	// HighWatermark returns the offset below which the log is committed, -1 while it isn't known.
	HighWatermark func() int64
	// OnFault is told of records that don't fit and of snapshots that can't be read. The image may be wrong from then on: a
	// controller must stop, and no node may write a snapshot of it. Nil only logs.
	OnFault func(err error)
}

// Loader turns what the quorum commits into images and hands them to publishers. Make one with NewLoader.
type Loader struct {
	o         LoaderOptions
	published atomic.Pointer[Image]
	applied   atomic.Int64

	mu         sync.Mutex // guards all below; held while publishing
	image      *Image     // as of the last delta that was applied; behind it there may be an open transaction
	delta      *Delta     // on top of image
	last       Provenance // of what was loaded last
	batches    int        // since image
	bytes      int
	inTxn      bool
	txnOffset  int64 // of the BeginTransactionRecord
	seenRecord bool
	caughtUp   bool
	closed     bool
	leader     LeaderAndEpoch
	publishers []Publisher
	waiting    []Publisher // installed, but nothing published to them yet
}

// NewLoader makes a loader with the empty image.
func NewLoader(o LoaderOptions) *Loader {
	l := &Loader{o: o, leader: LeaderAndEpoch{-1, 0}}
	l.reset(EmptyImage())
	l.published.Store(l.image)
	l.applied.Store(-1)
	return l
}

// Image is the image that was published last; the empty one before the loader has caught up.
func (l *Loader) Image() *Image { return l.published.Load() }

// LastAppliedOffset is the offset of the last record that was loaded, committed but perhaps not published; -1 at first.
func (l *Loader) LastAppliedOffset() int64 { return l.applied.Load() }

// CaughtUp says whether publishing has begun.
func (l *Loader) CaughtUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.caughtUp
}

// Install adds publishers behind those that are there. When the loader has caught up they get the whole image before
// Install returns, and else as soon as it has.
func (l *Loader) Install(ps ...Publisher) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range ps {
		same := func(o Publisher) bool { return o.Name() == p.Name() }
		if slices.ContainsFunc(l.publishers, same) || slices.ContainsFunc(l.waiting, same) {
			return fmt.Errorf("metadata: publisher %s is installed already", p.Name())
		}
		l.waiting = append(l.waiting, p)
	}
	if l.caughtUp && !l.closed {
		l.initialize()
	}
	return nil
}

// Remove takes a publisher out. When it returns, no call to it is under way.
func (l *Loader) Remove(p Publisher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	is := func(o Publisher) bool { return o == p }
	l.publishers = slices.DeleteFunc(l.publishers, is)
	l.waiting = slices.DeleteFunc(l.waiting, is)
}

// reset makes img the base of what follows.
func (l *Loader) reset(img *Image) {
	l.image, l.delta, l.last = img, NewDelta(img), img.Provenance
	l.batches, l.bytes, l.inTxn = 0, 0, false
}

// HandleCommit loads one committed batch and publishes, unless a transaction is open or the loader has not caught up.
//
// What stands before a BeginTransactionRecord is published by itself; such an image may end in the middle of a batch.
func (l *Loader) HandleCommit(b Batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	for i, r := range b.Records {
		offset := b.BaseOffset + int64(i)
		if err := l.replay(b, i, r.Message); err != nil {
			l.fault(fmt.Errorf("metadata record at offset %d: %w", offset, err))
		}
	}
	l.last = Provenance{Offset: b.LastOffset, Epoch: b.Epoch, Time: b.AppendTime, BatchAligned: true}
	l.batches++
	l.bytes += b.Bytes
	l.applied.Store(b.LastOffset)
	if !l.inTxn {
		l.flush(l.last, false)
	}
}

func (l *Loader) replay(b Batch, i int, m message.Message) error {
	offset := b.BaseOffset + int64(i)
	switch m.(type) {
	case *message.BeginTransactionRecord:
		if l.inTxn {
			return fmt.Errorf("a transaction begins inside of the one that began at %d", l.txnOffset)
		}
		if i > 0 {
			l.last = Provenance{Offset: offset - 1, Epoch: b.Epoch, Time: b.AppendTime}
		}
		if i > 0 || l.batches > 0 {
			l.flush(l.last, true)
		}
		l.inTxn, l.txnOffset = true, offset
	case *message.EndTransactionRecord:
		if !l.inTxn {
			return errors.New("a transaction ends that did not begin")
		}
		l.inTxn = false
	case *message.AbortTransactionRecord:
		if !l.inTxn {
			return errors.New("a transaction is aborted that did not begin")
		}
		l.inTxn = false
		l.delta = NewDelta(l.image)
	default:
		l.seenRecord = true
		return l.delta.Replay(m)
	}
	return nil
}

// flush makes the image as of p of what was loaded and publishes it if the loader has caught up with the high watermark
// there. While it hasn't, changes go on gathering in one delta, unless must says that they have to become an image now.
func (l *Loader) flush(p Provenance, must bool) {
	ready := l.ready(p.Offset)
	if !ready && !must {
		return
	}
	img, d := l.delta.Apply(p), l.delta
	m := Manifest{Leader: l.leader, Batches: l.batches, Bytes: l.bytes}
	inTxn := l.inTxn
	l.reset(img)
	l.inTxn = inTxn
	if ready {
		l.publish(d, m)
	}
}

// ready says whether everything up to the high watermark has been loaded, once for all.
func (l *Loader) ready(offset int64) bool {
	if l.caughtUp {
		return true
	}
	hw := l.o.HighWatermark()
	if hw < 0 || hw-1 > offset || !l.seenRecord {
		return false
	}
	l.caughtUp = true
	l.o.Logger.Info("metadata loader caught up with the high watermark", "offset", offset, "high_watermark", hw)
	return true
}

// publish hands l.image to all publishers.
func (l *Loader) publish(d *Delta, m Manifest) {
	l.published.Store(l.image)
	for _, p := range l.publishers {
		p.Publish(d, l.image, m)
	}
	l.initialize()
}

// initialize gives the publishers that wait the whole image.
func (l *Loader) initialize() {
	if len(l.waiting) == 0 {
		return
	}
	full := FullDelta(l.image)
	for len(l.waiting) > 0 {
		p := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.publishers = append(l.publishers, p)
		l.o.Logger.Debug("metadata publisher gets the whole image", "publisher", p.Name(), "offset", l.image.Offset)
		p.Publish(full, l.image, Manifest{Snapshot: true, Leader: l.leader})
		if lp, ok := p.(LeaderPublisher); ok {
			lp.PublishLeader(l.leader)
		}
	}
}

// HandleSnapshot loads a snapshot in place of everything before. endOffset is that of its name: the offset after the last
// record in it. An error in the source leaves the image as it is.
func (l *Loader) HandleSnapshot(endOffset int64, epoch int32, lastContainedLogTime int64, src SnapshotSource) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	d := NewDelta(l.image)
	for n := 0; ; {
		records, err := src.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			err = fmt.Errorf("metadata: read snapshot %d-%d after %d records: %w", endOffset, epoch, n, err)
			l.fault(err)
			return err
		}
		for _, r := range records {
			if err := d.Replay(r.Message); err != nil {
				l.fault(fmt.Errorf("metadata record %d of snapshot %d-%d: %w", n, endOffset, epoch, err))
			}
			n++
		}
	}
	d.FinishSnapshot()
	p := Provenance{Offset: endOffset - 1, Epoch: epoch, Time: lastContainedLogTime, BatchAligned: true}
	l.reset(d.Apply(p))
	l.seenRecord = true
	l.applied.Store(p.Offset)
	if l.ready(p.Offset) {
		l.publish(d, Manifest{Snapshot: true, Leader: l.leader})
	}
	return nil
}

// HandleLeaderChange tells the publishers that want to know.
func (l *Loader) HandleLeaderChange(leader LeaderAndEpoch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leader = leader
	if l.closed {
		return
	}
	for _, p := range l.publishers {
		if lp, ok := p.(LeaderPublisher); ok {
			lp.PublishLeader(leader)
		}
	}
}

// Close stops publishing. When it returns, no call to a publisher is under way; what the quorum still commits is ignored.
func (l *Loader) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

func (l *Loader) fault(err error) {
	l.o.Logger.Error("metadata can't be loaded as it should", "err", err)
	if l.o.OnFault != nil {
		l.o.OnFault(err)
	}
}
