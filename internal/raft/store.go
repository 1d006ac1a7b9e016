package raft

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gregor/internal/log"
	"gregor/internal/record"
	"gregor/internal/vfs"
)

// Log is the partition log as the quorum needs it. The batches it is given have their offsets and epochs. Read may be called
// at any time; the others come from one goroutine, except Sync, which may run beside an append.
type Log interface {
	StartOffset() int64
	EndOffset() int64
	// Epochs lists the epochs in the log and where each begins.
	Epochs() ([]EpochStart, error)
	// Append writes whole batches behind the end, all or, on an error, none.
	Append(batches []byte) error
	// Sync makes everything that was appended before the call durable.
	Sync() error
	// Read returns whole batches from the one that holds offset on: about maxBytes, but at least one if there is one.
	Read(offset int64, maxBytes int) ([]byte, error)
	// TruncateTo drops records at and after offset, durably.
	TruncateTo(offset int64) error
	// Restart empties the log and lets it begin at offset, durably.
	Restart(offset int64) error
	// TrimTo moves the log start up to offset and drops the segments below it.
	TrimTo(offset int64) error
	Size() int64
	Close() error
}

const quorumStateFile = "quorum-state"

// readChunk is how much is read of the log at a time when it is walked.
const readChunk = 1 << 20

// store is the metadata log's directory: the log, quorum-state and the snapshots. It belongs to the driver, except for what
// deals with snapshots, which is safe for concurrent use.
type store struct {
	fs  vfs.FS
	dir string // .../__cluster_metadata-0
	log Log
	lg  *slog.Logger
	now func() time.Time

	mu        sync.Mutex // guards the two below
	snapshots []snapshotFile
	rand      *rand.Rand

	download     vfs.File
	downloadPath string
	downloadID   OffsetAndEpoch
	downloadSize int64
}

type snapshotFile struct {
	id   OffsetAndEpoch
	size int64
}

// loadSnapshots lists the snapshots and removes what unfinished writes and deletions left.
func (s *store) loadSnapshots() error {
	entries, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("raft: list %s: %w", s.dir, err)
	}
	start := s.log.StartOffset()
	for _, e := range entries {
		id, suffix, ok := parseSnapshotName(e.Name())
		if !ok || e.IsDir() {
			continue
		}
		path := filepath.Join(s.dir, e.Name())
		if suffix != snapshotSuffix || id.Offset < start {
			s.lg.Info("removing what is left of a snapshot", "file", e.Name())
			if err := s.fs.Remove(path); err != nil {
				return fmt.Errorf("raft: %w", err)
			}
			continue
		}
		info, err := s.fs.Stat(path)
		if err != nil {
			return fmt.Errorf("raft: %w", err)
		}
		s.snapshots = append(s.snapshots, snapshotFile{id, info.Size()})
	}
	slices.SortFunc(s.snapshots, func(a, b snapshotFile) int { return a.id.Compare(b.id) })
	return nil
}

// verifyLatest reads the latest snapshot through. A damaged one is not made up for by an older one: the log that would have to
// follow that may be gone, and the damage is better seen now than by the first listener.
func (s *store) verifyLatest() error {
	if len(s.snapshots) == 0 {
		return nil
	}
	r, err := s.openSnapshot(s.snapshots[len(s.snapshots)-1].id)
	if err != nil {
		return err
	}
	return errors.Join(r.verify(), r.Close())
}

// recover brings log and snapshots in line after a start: a log that ends before the latest snapshot, because it was cut short
// by damage or because a downloaded snapshot was put in place just before a crash, restarts empty at the snapshot's end.
func (s *store) recover() error {
	if len(s.snapshots) == 0 {
		if start := s.log.StartOffset(); start > 0 {
			return fmt.Errorf("raft: %s: the log begins at %d and there is no snapshot of what was before", s.dir, start)
		}
		return nil
	}
	last := s.snapshots[len(s.snapshots)-1].id
	epochs, err := s.log.Epochs()
	if err != nil {
		return err
	}
	lastEpoch := int32(-1)
	if n := len(epochs); n > 0 {
		lastEpoch = epochs[n-1].Epoch
	}
	end := s.log.EndOffset()
	if last.Offset > end || last.Offset > 0 && lastEpoch >= 0 && last.Epoch > lastEpoch {
		s.lg.Warn("the log ends before the latest snapshot, restarting it there", "log_end", end, "snapshot", last.String())
		return s.restartAt(last)
	}
	if start := s.log.StartOffset(); start > 0 && s.snapshots[0].id.Offset != start {
		// Segments are dropped as a whole, so that a log that was trimmed may begin before the snapshot that it was trimmed to.
		for _, f := range s.snapshots {
			if f.id.Offset >= start {
				if f.id.Offset > start {
					return s.trimTo(f.id)
				}
				return nil
			}
		}
	}
	return nil
}

// restartAt empties the log at the end of a snapshot and drops older snapshots.
func (s *store) restartAt(id OffsetAndEpoch) error {
	if err := s.log.Restart(id.Offset); err != nil {
		return fmt.Errorf("raft: restart the log at %s: %w", id, err)
	}
	return s.dropSnapshotsBefore(id)
}

// trimTo moves the log start to a snapshot's end and drops older snapshots.
func (s *store) trimTo(id OffsetAndEpoch) error {
	if err := s.log.TrimTo(id.Offset); err != nil {
		return fmt.Errorf("raft: trim the log to %s: %w", id, err)
	}
	return s.dropSnapshotsBefore(id)
}

// summary walks the latest snapshot's header and the log after it for what the core has to know.
func (s *store) summary() (LogSummary, error) {
	sum := LogSummary{Start: s.log.StartOffset(), End: s.log.EndOffset()}
	var err error
	if sum.Epochs, err = s.log.Epochs(); err != nil {
		return sum, err
	}
	for _, f := range s.snapshots {
		sum.Snapshots = append(sum.Snapshots, f.id)
	}
	from := sum.Start
	if n := len(sum.Snapshots); n > 0 {
		id := sum.Snapshots[n-1]
		r, err := s.openSnapshot(id)
		if err != nil {
			return sum, err
		}
		defer r.Close()
		if r.version > 0 {
			sum.Versions = append(sum.Versions, VersionAt{id.Offset - 1, r.version})
		}
		if r.voters != nil {
			sum.Voters = append(sum.Voters, VotersAt{id.Offset - 1, r.voters})
		}
		from = max(from, id.Offset)
	}
	for from < sum.End {
		data, err := s.log.Read(from, readChunk)
		if err != nil {
			return sum, fmt.Errorf("raft: read the log at %d: %w", from, err)
		}
		before := from
		for len(data) > 0 {
			b, rest, err := record.Next(data)
			if err != nil {
				if errors.Is(err, record.ErrTruncated) {
					break
				}
				return sum, fmt.Errorf("raft: read the log at %d: %w", from, err)
			}
			data = rest
			if b.NextOffset() <= from {
				continue // begins before the snapshot's end
			}
			records, err := controlRecords(b)
			if err != nil {
				return sum, err
			}
			for _, c := range records {
				var v logView
				v.control(c.offset, c.msg)
				sum.Voters = append(sum.Voters, v.voters...)
				sum.Versions = append(sum.Versions, v.versions...)
			}
			from = b.NextOffset()
		}
		if from == before {
			return sum, fmt.Errorf("raft: nothing can be read from the log at %d, its end is %d", from, sum.End)
		}
	}
	return sum, nil
}

// readElection reads quorum-state; nil when there is none.
func (s *store) readElection() (*ElectionState, error) {
	f, err := s.fs.Open(filepath.Join(s.dir, quorumStateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("raft: read quorum-state: %w", err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("raft: read quorum-state: %w", err)
	}
	if size > 1<<20 {
		return nil, fmt.Errorf("raft: quorum-state has %d bytes", size)
	}
	data := make([]byte, size)
	if n, err := f.ReadAt(data, 0); n < len(data) {
		return nil, fmt.Errorf("raft: read quorum-state: %w", err)
	}
	e, err := parseQuorumState(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(s.dir, quorumStateFile), err)
	}
	return &e, nil
}

// writeElection replaces quorum-state durably.
func (s *store) writeElection(p PersistElection) error {
	path := filepath.Join(s.dir, quorumStateFile)
	data := appendQuorumState(nil, p.State, p.Version, p.Voters)
	if err := log.ReplaceFile(s.fs, path, data); err != nil {
		return fmt.Errorf("raft: write quorum-state: %w", err)
	}
	return nil
}

func (s *store) snapshotPath(id OffsetAndEpoch) string { return filepath.Join(s.dir, snapshotName(id)) }

func (s *store) openSnapshot(id OffsetAndEpoch) (*SnapshotReader, error) {
	return openSnapshot(s.fs, s.snapshotPath(id), id)
}

func (s *store) latestSnapshot() (OffsetAndEpoch, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.snapshots); n > 0 {
		return s.snapshots[n-1].id, true
	}
	return OffsetAndEpoch{}, false
}

func (s *store) addSnapshot(id OffsetAndEpoch, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, found := slices.BinarySearchFunc(s.snapshots, id, func(f snapshotFile, id OffsetAndEpoch) int { return f.id.Compare(id) })
	if !found {
		s.snapshots = slices.Insert(s.snapshots, i, snapshotFile{id, size})
	}
}

func (s *store) nonce() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.Uint64()
}

// writeSnapshot begins a snapshot. taken is called when it is in place.
func (s *store) writeSnapshot(id OffsetAndEpoch, lastTime int64, version int16, voters VoterSet, taken func()) (*SnapshotWriter, error) {
	if err := s.checkBatchStart(id.Offset); err != nil {
		return nil, err
	}
	var w *SnapshotWriter
	w, err := newSnapshotWriter(s.fs, s.dir, id, s.nonce(), lastTime, version, voters, s.now, func(id OffsetAndEpoch) error {
		s.addSnapshot(id, w.Bytes())
		taken()
		return nil
	})
	return w, err
}

// checkBatchStart says whether a batch begins at offset, or the log ends there. A replica that starts from a snapshot fetches
// from its end on, and could not append a batch that begins before.
func (s *store) checkBatchStart(offset int64) error {
	if offset <= s.log.StartOffset() || offset >= s.log.EndOffset() {
		return nil
	}
	data, err := s.log.Read(offset, 1)
	if err != nil {
		return fmt.Errorf("raft: read the log at %d: %w", offset, err)
	}
	b, _, err := record.Next(data)
	if err != nil {
		return fmt.Errorf("raft: read the log at %d: %w", offset, err)
	}
	if b.BaseOffset() != offset {
		return fmt.Errorf("raft: a snapshot can't end at %d, within the batch %d to %d", offset, b.BaseOffset(), b.LastOffset())
	}
	return nil
}

// dropSnapshotsBefore renames older snapshots to .deleted; removeDeleted unlinks them later. Readers that have one open go on.
func (s *store) dropSnapshotsBefore(id OffsetAndEpoch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := 0
	for ; i < len(s.snapshots) && s.snapshots[i].id.Compare(id) < 0; i++ {
		path := s.snapshotPath(s.snapshots[i].id)
		s.lg.Info("deleting a snapshot", "snapshot", s.snapshots[i].id.String())
		if err := s.fs.Rename(path, path+".deleted"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("raft: delete snapshot %s: %w", s.snapshots[i].id, err)
		}
	}
	s.snapshots = slices.Delete(s.snapshots, 0, i)
	return nil
}

// removeDeleted unlinks the snapshots that were renamed to .deleted before.
func (s *store) removeDeleted(before []string) {
	for _, name := range before {
		if err := s.fs.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.lg.Warn("can't remove a deleted snapshot", "file", name, "err", err)
		}
	}
}

// deleted lists the snapshots under their .deleted names.
func (s *store) deleted() []string {
	entries, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if _, suffix, ok := parseSnapshotName(e.Name()); ok && suffix == deletedSuffix {
			names = append(names, e.Name())
		}
	}
	return names
}

// clean drops the oldest snapshots, and the log before the next one, while log and snapshots together are over maxBytes or the
// oldest snapshot's last record is older than maxAge; negative means no bound. The latest snapshot always stays. The log
// start offset may have moved when it fails.
func (s *store) clean(maxBytes int64, maxAge time.Duration) error {
	for {
		s.mu.Lock()
		if len(s.snapshots) < 2 {
			s.mu.Unlock()
			break
		}
		first, next := s.snapshots[0].id, s.snapshots[1].id
		total := s.log.Size()
		for _, f := range s.snapshots {
			total += f.size
		}
		s.mu.Unlock()
		over := maxBytes >= 0 && total > maxBytes
		if !over && maxAge >= 0 {
			r, err := s.openSnapshot(first)
			if err != nil {
				return err
			}
			over = s.now().Sub(time.UnixMilli(r.LastContainedLogTime())) > maxAge
			if err := r.Close(); err != nil {
				return err
			}
		}
		if !over || next.Offset <= s.log.StartOffset() {
			break
		}
		if err := s.trimTo(next); err != nil {
			return err
		}
	}
	return nil
}

// openDownload begins a snapshot from the leader.
func (s *store) openDownload(id OffsetAndEpoch) error {
	s.dropDownload()
	path := filepath.Join(s.dir, fmt.Sprintf("%020d-%010d-%d%s", id.Offset, id.Epoch, s.nonce(), partSuffix))
	f, err := s.fs.Create(path)
	if err != nil {
		return fmt.Errorf("raft: download snapshot %s: %w", id, err)
	}
	s.download, s.downloadPath, s.downloadID, s.downloadSize = f, path, id, 0
	return nil
}

func (s *store) storeChunk(b []byte) (int64, error) {
	if _, err := s.download.WriteAt(b, s.downloadSize); err != nil {
		return 0, fmt.Errorf("raft: download snapshot %s: %w", s.downloadID, err)
	}
	s.downloadSize += int64(len(b))
	return s.downloadSize, nil
}

func (s *store) dropDownload() {
	if s.download == nil {
		return
	}
	if err := errors.Join(s.download.Close(), s.fs.Remove(s.downloadPath)); err != nil {
		s.lg.Warn("can't drop an unfinished snapshot", "snapshot", s.downloadID.String(), "err", err)
	}
	s.download = nil
}

// installDownload checks the downloaded snapshot, puts it in place and restarts the log at its end. A snapshot that is not
// whole is dropped, which errCorruptSnapshot tells; any other error is the disk's.
func (s *store) installDownload() (SnapshotStored, error) {
	id := s.downloadID
	r, err := openSnapshot(s.fs, s.downloadPath, id)
	if err == nil {
		err = r.verify()
		if e := r.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		s.dropDownload()
		return SnapshotStored{}, err
	}
	f := s.download
	s.download = nil
	if err := freeze(s.fs, f, s.downloadPath, s.snapshotPath(id)); err != nil {
		return SnapshotStored{}, fmt.Errorf("raft: install snapshot %s: %w", id, err)
	}
	s.addSnapshot(id, s.downloadSize)
	// A crash from here on finds a snapshot beyond the log's end, and restarts the log there.
	if err := s.restartAt(id); err != nil {
		return SnapshotStored{}, err
	}
	return SnapshotStored{ID: id, KRaftVersion: r.version, Voters: r.voters}, nil
}
