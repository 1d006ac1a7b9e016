package raft

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gregor/internal/message"
	"gregor/internal/record"
	"gregor/internal/vfs"
)

// A snapshot is a file of record batches as in a log segment, with offsets counted from 0 within the file and the snapshot's
// epoch in every batch:
//
//	control batch  SnapshotHeader, and at kraft.version >= 1 KRaftVersion and KRaftVoters
//	data batches   the records
//	control batch  SnapshotFooter
//
// It is written to %020d-%010d-RANDOM.checkpoint.part, synced, made read-only and renamed to %020d-%010d.checkpoint (end
// offset and epoch). KIP-630.
const (
	snapshotSuffix = ".checkpoint"
	partSuffix     = ".checkpoint.part"
	deletedSuffix  = ".checkpoint.deleted"
	// snapshotBatchBytes is about how much a data batch of a snapshot holds.
	snapshotBatchBytes = 1 << 20
)

// snapshotName is the file name of a snapshot.
func snapshotName(id OffsetAndEpoch) string {
	return fmt.Sprintf("%020d-%010d%s", id.Offset, id.Epoch, snapshotSuffix)
}

// parseSnapshotName reads an id from a name with one of the three suffixes.
func parseSnapshotName(name string) (id OffsetAndEpoch, suffix string, ok bool) {
	for _, suffix := range []string{partSuffix, deletedSuffix, snapshotSuffix} {
		rest, found := strings.CutSuffix(name, suffix)
		if !found {
			continue
		}
		if len(rest) < 31 || rest[20] != '-' || len(rest) > 31 && (rest[31] != '-' || suffix != partSuffix) {
			return OffsetAndEpoch{}, "", false
		}
		offset, err1 := strconv.ParseInt(rest[:20], 10, 64)
		epoch, err2 := strconv.ParseInt(rest[21:31], 10, 32)
		if err1 != nil || err2 != nil || offset < 0 || epoch < 0 {
			return OffsetAndEpoch{}, "", false
		}
		return OffsetAndEpoch{offset, int32(epoch)}, suffix, true
	}
	return OffsetAndEpoch{}, "", false
}

// SnapshotWriter writes one snapshot. It belongs to one goroutine.
type SnapshotWriter struct {
	fs     vfs.FS
	dir    string
	part   string // path
	id     OffsetAndEpoch
	file   vfs.File
	pos    int64
	next   int64 // offset within the file
	now    func() time.Time
	done   func(OffsetAndEpoch) error
	frozen bool
	err    error

	builder *record.Builder
	value   []byte
	open    bool // builder holds records
	ts      int64
}

// newSnapshotWriter begins a snapshot with its header. done is called with the id when it is in place.
func newSnapshotWriter(fsys vfs.FS, dir string, id OffsetAndEpoch, nonce uint64, lastTime int64, version int16, voters VoterSet,
	now func() time.Time, done func(OffsetAndEpoch) error) (*SnapshotWriter, error) {
	w := &SnapshotWriter{
		fs: fsys, dir: dir, id: id, now: now, done: done,
		part:    filepath.Join(dir, fmt.Sprintf("%020d-%010d-%d%s", id.Offset, id.Epoch, nonce, partSuffix)),
		builder: record.NewBuilder(record.BuilderOptions{}.NoProducer()),
	}
	f, err := fsys.Create(w.part)
	if err != nil {
		return nil, fmt.Errorf("raft: create snapshot %s: %w", id, err)
	}
	w.file = f
	header := message.NewSnapshotHeaderRecord()
	header.LastContainedLogTimestamp = lastTime
	control := []message.Message{header}
	if version >= 1 {
		control = append(control, kraftVersionRecord(version))
		if len(voters) > 0 {
			control = append(control, votersRecord(voters))
		}
	}
	if err := w.control(control); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// ID is the snapshot's id.
func (w *SnapshotWriter) ID() OffsetAndEpoch { return w.id }

// Append adds records. After an error the snapshot is lost; Close it.
func (w *SnapshotWriter) Append(records []message.Versioned) error {
	if w.err != nil {
		return w.err
	}
	for _, r := range records {
		value, err := message.AppendMetadataRecord(w.value[:0], r.Message, r.Version)
		if err != nil {
			return w.fail(fmt.Errorf("raft: snapshot %s: encode %s: %w", w.id, r.Message.MessageName(), err))
		}
		w.value = value
		if w.open && w.builder.Len()+len(value) > snapshotBatchBytes {
			if err := w.flush(); err != nil {
				return err
			}
		}
		if !w.open {
			w.open = true
			w.ts = w.now().UnixMilli()
			w.builder.Reset(record.BuilderOptions{BaseOffset: w.next, LeaderEpoch: w.id.Epoch}.NoProducer())
		}
		w.builder.Append(w.ts, nil, value, nil)
	}
	return nil
}

func (w *SnapshotWriter) fail(err error) error {
	w.err = err
	return err
}

// flush writes the batch that is being gathered.
func (w *SnapshotWriter) flush() error {
	if !w.open {
		return nil
	}
	w.open = false
	b, err := w.builder.Build()
	if err != nil {
		return w.fail(fmt.Errorf("raft: snapshot %s: %w", w.id, err))
	}
	return w.write(b)
}

func (w *SnapshotWriter) control(msgs []message.Message) error {
	b, err := controlBatch(w.next, w.id.Epoch, w.now().UnixMilli(), msgs)
	if err != nil {
		return w.fail(err)
	}
	return w.write(b)
}

func (w *SnapshotWriter) write(b record.Batch) error {
	if _, err := w.file.WriteAt(b, w.pos); err != nil {
		return w.fail(fmt.Errorf("raft: write snapshot %s: %w", w.id, err))
	}
	w.pos += int64(len(b))
	w.next = b.NextOffset()
	return nil
}

// Freeze finishes the snapshot: it is synced, made read-only and put in place. Nothing can be added afterwards.
func (w *SnapshotWriter) Freeze() error {
	if w.err != nil {
		return w.err
	}
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.control([]message.Message{message.NewSnapshotFooterRecord()}); err != nil {
		return err
	}
	err := freeze(w.fs, w.file, w.part, filepath.Join(w.dir, snapshotName(w.id)))
	w.file = nil
	if err != nil {
		_ = w.fs.Remove(w.part)
		return w.fail(fmt.Errorf("raft: freeze snapshot %s: %w", w.id, err))
	}
	w.frozen = true
	w.err = errors.New("raft: snapshot is frozen")
	if w.done != nil {
		return w.done(w.id)
	}
	return nil
}

// Bytes is what has been written so far.
func (w *SnapshotWriter) Bytes() int64 { return w.pos }

// Close drops the snapshot unless it is frozen. It may be called any number of times.
func (w *SnapshotWriter) Close() error {
	if w.file == nil {
		return nil
	}
	err := errors.Join(w.file.Close(), w.fs.Remove(w.part))
	w.file = nil
	if w.err == nil {
		w.err = errors.New("raft: snapshot writer is closed")
	}
	return err
}

// freeze makes a finished file durable under its final name, read-only as Kafka makes it.
func freeze(fsys vfs.FS, f vfs.File, from, to string) error {
	err := f.Sync()
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = fsys.Chmod(from, 0o400)
	}
	if err == nil {
		err = fsys.Rename(from, to)
	}
	if err == nil {
		err = fsys.SyncDir(filepath.Dir(to))
	}
	return err
}

// SnapshotReader reads one snapshot. It belongs to one goroutine.
type SnapshotReader struct {
	id       OffsetAndEpoch
	file     vfs.File
	size     int64
	pos      int64
	next     int64 // offset within the file
	buf      []byte
	lastTime int64
	version  int16
	voters   VoterSet
	footer   bool
	err      error // the first one that Next returned, io.EOF apart
	d        *record.Decompressor
}

// errCorruptSnapshot is wrapped by what SnapshotReader finds wrong with a file.
var errCorruptSnapshot = errors.New("raft: corrupt snapshot")

// openSnapshot opens a snapshot and reads its header.
func openSnapshot(fsys vfs.FS, path string, id OffsetAndEpoch) (*SnapshotReader, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, fmt.Errorf("raft: open snapshot %s: %w", id, err)
	}
	size, err := f.Size()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("raft: open snapshot %s: %w", id, err), f.Close())
	}
	r := &SnapshotReader{id: id, file: f, size: size, d: record.NewDecompressor(record.DecompressorOptions{MaxBytes: 4 * MaxBatchBytes, MaxIdle: 1})}
	if err := r.header(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

// ID is the snapshot's id.
func (r *SnapshotReader) ID() OffsetAndEpoch { return r.id }

// LastContainedLogTime is the append time of the last record inside, in ms.
func (r *SnapshotReader) LastContainedLogTime() int64 { return r.lastTime }

// Bytes is the size of the file.
func (r *SnapshotReader) Bytes() int64 { return r.size }

// KRaftVersion and Voters are what the header says; nil voters at version 0.
func (r *SnapshotReader) KRaftVersion() int16 { return r.version }

// Voters are the voters that the header names.
func (r *SnapshotReader) Voters() VoterSet { return r.voters }

func (r *SnapshotReader) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w %s at byte %d: %s", errCorruptSnapshot, r.id, r.pos, fmt.Sprintf(format, args...))
}

// batch reads and checks the next batch; nil at the end of the file. It is good until the next call.
func (r *SnapshotReader) batch() (record.Batch, error) {
	left := r.size - r.pos
	if left == 0 {
		return nil, nil
	}
	head, err := r.read(min(left, record.HeaderSize))
	if err != nil {
		return nil, err
	}
	size, err := record.EntrySize(head)
	if err != nil || size < record.HeaderSize || int64(size) > left || size > 4*MaxBatchBytes {
		return nil, r.corrupt("a batch of %d bytes where %d are left (%v)", size, left, err)
	}
	data, err := r.read(int64(size))
	if err != nil {
		return nil, err
	}
	b, _, err := record.Next(data)
	if err == nil {
		err = b.Check()
	}
	if err != nil {
		return nil, r.corrupt("%v", err)
	}
	if b.BaseOffset() != r.next || b.LastOffsetDelta() < 0 {
		return nil, r.corrupt("batch begins at %d, want %d", b.BaseOffset(), r.next)
	}
	r.next = b.NextOffset()
	r.pos += int64(size)
	return b, nil
}

// read gives n bytes at the present position.
func (r *SnapshotReader) read(n int64) ([]byte, error) {
	if int64(cap(r.buf)) < n {
		r.buf = make([]byte, n)
	}
	b := r.buf[:n]
	if m, err := r.file.ReadAt(b, r.pos); int64(m) < n {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("raft: read snapshot %s: %w", r.id, err)
	}
	return b, nil
}

func (r *SnapshotReader) header() error {
	b, err := r.batch()
	if err != nil {
		return err
	}
	if b == nil || !b.IsControl() {
		return r.corrupt("no header")
	}
	records, err := controlRecords(b)
	if err != nil {
		return r.corrupt("%v", err)
	}
	for i, c := range records {
		switch m := c.msg.(type) {
		case *message.SnapshotHeaderRecord:
			if i != 0 {
				return r.corrupt("header is not the first record")
			}
			r.lastTime = m.LastContainedLogTimestamp
		case *message.KRaftVersionRecord:
			r.version = m.KRaftVersion
		case *message.VotersRecord:
			r.voters = votersFromRecord(m)
		}
		if _, ok := records[0].msg.(*message.SnapshotHeaderRecord); !ok {
			return r.corrupt("first record is not the header")
		}
	}
	if len(records) == 0 {
		return r.corrupt("no header")
	}
	return nil
}

// Next returns the records of the next batch, checked; io.EOF after the last one. Control records are not handed out.
func (r *SnapshotReader) Next() ([]message.Versioned, error) {
	records, err := r.records()
	if err != nil && err != io.EOF && r.err == nil {
		r.err = err
	}
	return records, err
}

func (r *SnapshotReader) records() ([]message.Versioned, error) {
	for {
		b, err := r.batch()
		switch {
		case err != nil:
			return nil, err
		case b == nil && !r.footer:
			return nil, r.corrupt("no footer")
		case b == nil:
			return nil, io.EOF
		case r.footer:
			return nil, r.corrupt("a batch after the footer")
		}
		if b.IsControl() {
			records, err := controlRecords(b)
			if err != nil {
				return nil, r.corrupt("%v", err)
			}
			for _, c := range records {
				if _, ok := c.msg.(*message.SnapshotFooterRecord); ok {
					r.footer = true
				}
			}
			continue
		}
		records, err := dataRecords(b, r.d)
		if err != nil {
			return nil, r.corrupt("%v", err)
		}
		if len(records) > 0 {
			return records, nil
		}
	}
}

// verify reads all batches without decoding their records: are they whole, in order, and is the footer there? It leaves
// nothing to be read.
func (r *SnapshotReader) verify() error {
	for {
		b, err := r.batch()
		switch {
		case err != nil:
			return err
		case b == nil && !r.footer:
			return r.corrupt("no footer")
		case b == nil:
			return nil
		case r.footer:
			return r.corrupt("a batch after the footer")
		}
		if b.IsControl() {
			records, err := controlRecords(b)
			if err != nil {
				return r.corrupt("%v", err)
			}
			for _, c := range records {
				if _, ok := c.msg.(*message.SnapshotFooterRecord); ok {
					r.footer = true
				}
			}
		}
	}
}

// Close lets go of the file.
func (r *SnapshotReader) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

// OpenSnapshotFile opens a snapshot by its path, whose name must be that of a snapshot, for tools.
func OpenSnapshotFile(fsys vfs.FS, path string) (*SnapshotReader, error) {
	id, suffix, ok := parseSnapshotName(filepath.Base(path))
	if !ok || suffix == partSuffix {
		return nil, fmt.Errorf("raft: %s is not the name of a snapshot", path)
	}
	return openSnapshot(fsys, path, id)
}

// bootstrapID is the id of the snapshot that formatting leaves.
var bootstrapID = OffsetAndEpoch{0, 0}

// WriteBootstrapSnapshot writes the snapshot 0-0 that formatting leaves in Dir/__cluster_metadata-0: the control records for
// KRaftVersion and, at version 1, Voters, and the records given. A controller that is to join a dynamic quorum later is
// formatted with version 1 and no voters.
func WriteBootstrapSnapshot(o BootstrapOptions) error {
	dir := filepath.Join(o.Dir, DirName)
	if err := o.FS.MkdirAll(dir); err != nil {
		return fmt.Errorf("raft: make %s: %w", dir, err)
	}
	if err := o.FS.SyncDir(o.Dir); err != nil {
		return fmt.Errorf("raft: sync %s: %w", o.Dir, err)
	}
	voters, err := NewVoterSet(o.Voters)
	if err != nil {
		return err
	}
	now := func() time.Time { return o.Now }
	w, err := newSnapshotWriter(o.FS, dir, bootstrapID, uint64(o.Now.UnixNano()), o.Now.UnixMilli(), o.KRaftVersion, voters, now, nil)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Append(o.Records); err != nil {
		return err
	}
	return w.Freeze()
}

// ReadBootstrapRecords returns the records of the snapshot 0-0, or else those of the bootstrap.checkpoint that older versions
// left in Dir; found is false when there is neither.
func ReadBootstrapRecords(o BootstrapOptions) (records []message.Versioned, found bool, err error) {
	for _, path := range []string{
		filepath.Join(o.Dir, DirName, snapshotName(bootstrapID)),
		filepath.Join(o.Dir, "bootstrap.checkpoint"),
	} {
		r, err := openSnapshot(o.FS, path, bootstrapID)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, fmt.Errorf("%s: %w", path, err)
		}
		defer r.Close()
		for {
			batch, err := r.Next()
			if err == io.EOF {
				return records, true, nil
			}
			if err != nil {
				return nil, false, fmt.Errorf("%s: %w", path, err)
			}
			records = append(records, batch...)
		}
	}
	return nil, false, nil
}
