package raft

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
)

// replica is a Core with its disk. It does the effects that concern storage and hands the others to its environment. It has no
// goroutine and no clock: Node drives it with real ones, the simulation with its own.
type replica struct {
	core  *Core
	store *store
	acc   *accumulator
	lg    *slog.Logger
	env   environment
	now   func() time.Time // wall clock, for timestamps in batches

	pending []Event // events that effects gave rise to, to be stepped before others
	failed  error   // set once, when the replica cannot go on

	dirty   bool           // written but not synced
	gen     int            // counts what makes a sync's result worthless: truncation, a new role
	stalled []pendingBatch // taken from the accumulator and not written, because the disk is full
	retryAt time.Time
}

// environment is the world outside of the replica.
type environment interface {
	send(Send)
	reply(id uint64, resp kmsg.Response)
	// appended hands over batches that were just written by this leader, for the listeners.
	appended(epoch int32, batches []pendingBatch)
	// truncated says that records at and after offset are gone, or with restarted that all are and the log begins at offset.
	truncated(offset int64, restarted bool)
	committed(offset int64)
	leaderChanged(LeaderChanged)
}

// stallRetry is how often a write is tried again while the disk is full.
const stallRetry = 250 * time.Millisecond

// start loads everything and steps the first event. Whatever a lone voter has to write at the start of its epoch is written
// before anybody can ask.
func (r *replica) start(now time.Time) error {
	sum, err := r.store.summary()
	if err != nil {
		return err
	}
	election, err := r.store.readElection()
	if err != nil {
		return err
	}
	r.step(now, Started{Log: sum, Election: election})
	for r.failed == nil && (r.acc.waiting() || r.dirty) {
		r.drain(now)
		if r.failed != nil || r.stalled != nil {
			break
		}
		end := r.store.log.EndOffset()
		if err := r.store.log.Sync(); err != nil {
			return fmt.Errorf("raft: sync the log: %w", err)
		}
		r.dirty = false
		r.step(now, Synced{end})
	}
	return r.failed
}

// clean drops what is too much or too old of log and snapshots, and unlinks the snapshots that the clean before had renamed. It
// returns those to unlink next time.
func (r *replica) clean(now time.Time, maxBytes int64, maxAge time.Duration, deleted []string) ([]string, error) {
	r.store.removeDeleted(deleted)
	before := r.store.log.StartOffset()
	err := r.store.clean(maxBytes, maxAge)
	if start := r.store.log.StartOffset(); start > before { // after an error as well
		r.step(now, LogTrimmed{start})
	}
	return r.store.deleted(), err
}

// step feeds the core and does what it wants done. After a failure it does nothing any more.
func (r *replica) step(now time.Time, ev Event) {
	r.pending = append(r.pending, ev)
	for len(r.pending) > 0 && r.failed == nil {
		ev := r.pending[0]
		r.pending = r.pending[1:]
		for _, e := range r.core.Step(now, ev) {
			if err := r.do(e); err != nil {
				r.failed = err
				return
			}
		}
	}
}

func (r *replica) then(ev Event) { r.pending = append(r.pending, ev) }

// do does one effect. An error is one that the replica can't live with.
func (r *replica) do(e Effect) error {
	switch e := e.(type) {
	case PersistElection:
		return r.store.writeElection(e)
	case Send:
		r.env.send(e)
	case Reply:
		r.env.reply(e.ID, e.Response)
	case ReplyRecords:
		data, err := r.store.log.Read(e.Offset, int(e.MaxBytes))
		if err != nil {
			return fmt.Errorf("raft: read the log at %d: %w", e.Offset, err)
		}
		e.Response.Topics[0].Partitions[0].RecordBatches = data
		r.env.reply(e.ID, e.Response)
	case ReplySnapshot:
		return r.replySnapshot(e)
	case BecomeLeader:
		r.gen++
		r.acc.open(e.Epoch, r.store.log.EndOffset())
		_, err := r.acc.control(r.now().UnixMilli(), e.Control)
		return err
	case StopLeading:
		r.gen++
		r.acc.close()
		r.stalled = nil
		if r.dirty {
			// What this leader wrote and did not sync yet may be fetched again by nobody, but this log's end is going to be
			// told to others, and then it must be on disk.
			r.dirty = false
			if err := r.store.log.Sync(); err != nil {
				return fmt.Errorf("raft: sync the log: %w", err)
			}
			r.then(Synced{r.store.log.EndOffset()})
		}
	case AppendControl:
		last, err := r.acc.control(r.now().UnixMilli(), e.Control)
		if e.Done != nil {
			e.Done(last, err)
		}
		return err
	case AppendFetched:
		return r.appendFetched(e)
	case Truncate:
		r.gen++
		r.env.truncated(e.Offset, false)
		if err := r.store.log.TruncateTo(e.Offset); err != nil {
			return fmt.Errorf("raft: truncate the log to %d: %w", e.Offset, err)
		}
	case OpenDownload:
		return r.store.openDownload(e.ID)
	case StoreChunk:
		size, err := r.store.storeChunk(e.Bytes)
		if err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				return err
			}
			r.lg.Error("disk is full, can't take a snapshot", "err", err)
			r.store.dropDownload()
			r.then(SnapshotStored{Failed: true})
			return nil
		}
		r.then(ChunkStored{r.store.downloadID, size})
	case DropDownload:
		r.store.dropDownload()
	case InstallSnapshot:
		return r.install(e)
	case Committed:
		r.env.committed(e.Offset)
	case LeaderChanged:
		r.env.leaderChanged(e)
	default:
		panic(fmt.Sprintf("raft: unknown effect %T", e))
	}
	return nil
}

func (r *replica) appendFetched(e AppendFetched) error {
	if err := r.store.log.Append(e.Batches); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			r.lg.Error("disk is full, can't replicate the metadata log", "err", err)
			r.then(Stored{Failed: true})
			return nil
		}
		return fmt.Errorf("raft: append fetched batches: %w", err)
	}
	if e.Sync {
		if err := r.store.log.Sync(); err != nil {
			return fmt.Errorf("raft: sync the log: %w", err)
		}
	}
	r.then(Stored{})
	return nil
}

func (r *replica) install(e InstallSnapshot) error {
	stored, err := r.store.installDownload()
	switch {
	case errors.Is(err, errCorruptSnapshot), errors.Is(err, syscall.ENOSPC):
		r.lg.Error("downloaded snapshot can't be used", "snapshot", e.ID.String(), "err", err)
		r.then(SnapshotStored{Failed: true})
		return nil
	case err != nil:
		return err
	}
	r.gen++
	r.env.truncated(e.ID.Offset, true)
	r.then(stored)
	return nil
}

func (r *replica) replySnapshot(e ReplySnapshot) error {
	p := &e.Response.Topics[0].Partitions[0]
	fail := func(code int16) {
		p.ErrorCode = code
		p.SnapshotID.EndOffset, p.SnapshotID.Epoch = -1, -1
		r.env.reply(e.ID, e.Response)
	}
	f, err := r.store.fs.Open(r.store.snapshotPath(e.Snapshot))
	if err != nil {
		fail(codeSnapshotNotFound)
		return nil
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return fmt.Errorf("raft: read snapshot %s: %w", e.Snapshot, err)
	}
	if e.Position >= size {
		fail(codePositionOutOfRange)
		return nil
	}
	p.Size, p.Position = size, e.Position
	p.Bytes = make([]byte, min(int64(e.MaxBytes), size-e.Position))
	if n, err := f.ReadAt(p.Bytes, e.Position); n < len(p.Bytes) {
		return fmt.Errorf("raft: read snapshot %s: %w", e.Snapshot, err)
	}
	r.env.reply(e.ID, e.Response)
	return nil
}

// drain writes what the accumulator has for the log, in one go. The caller then sees to it that it is synced.
func (r *replica) drain(now time.Time) {
	if r.failed != nil || r.core.Role() != Leader {
		return
	}
	if r.stalled != nil && now.Before(r.retryAt) {
		return
	}
	batches := append(r.stalled, r.acc.drain()...)
	if len(batches) == 0 {
		return
	}
	var data []byte
	if len(batches) == 1 {
		data = batches[0].data
	} else {
		n := 0
		for _, b := range batches {
			n += len(b.data)
		}
		data = make([]byte, 0, n)
		for _, b := range batches {
			data = append(data, b.data...)
		}
	}
	if err := r.store.log.Append(data); err != nil {
		if !errors.Is(err, syscall.ENOSPC) {
			r.failed = fmt.Errorf("raft: append to the metadata log: %w", err)
			return
		}
		// Nothing was acknowledged. Others may have room: let them lead. Alone, wait for somebody to make room.
		if r.stalled == nil {
			r.lg.Error("disk is full, the metadata log can't be written, trying again", "err", err)
		}
		r.stalled, r.retryAt = batches, now.Add(stallRetry)
		if len(r.core.Voters()) > 1 {
			r.step(now, ResignAsked{r.core.LeaderAndEpoch().Epoch})
		}
		return
	}
	if r.stalled != nil {
		r.lg.Info("the metadata log can be written again")
	}
	r.stalled = nil
	r.dirty = true
	epoch := r.core.LeaderAndEpoch().Epoch
	r.env.appended(epoch, batches)
	ev := Written{}
	for _, b := range batches {
		rb := record.Batch(b.data)
		ev.Batches = append(ev.Batches, WrittenBatch{Base: rb.BaseOffset(), Last: rb.LastOffset(), Epoch: rb.PartitionLeaderEpoch(), Control: b.control})
	}
	r.step(now, ev)
}

// deadline is when the replica wants to be ticked at the latest; zero is never.
func (r *replica) deadline() time.Time {
	d := r.core.Deadline()
	if r.stalled != nil && (d.IsZero() || r.retryAt.Before(d)) {
		d = r.retryAt
	}
	return d
}
