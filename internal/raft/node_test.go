package raft

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gregor/internal/await"
	"gregor/internal/clock"
	"gregor/internal/message"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// recorder is a Listener that keeps what it is told.
type recorder struct {
	mu       sync.Mutex
	changed  *sync.Cond
	batches  []CommittedBatch
	records  []message.Versioned
	snapshot []OffsetAndEpoch
	leaders  []LeaderAndEpoch
	closed   bool
	next     int64
}

func newRecorder() *recorder {
	r := &recorder{}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func (r *recorder) HandleCommit(b CommittedBatch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.BaseOffset > r.next && len(r.batches) > 0 {
		panic("gap in what a listener is told")
	}
	r.batches = append(r.batches, b)
	r.records = append(r.records, b.Records...)
	r.next = b.LastOffset + 1
	r.changed.Broadcast()
}

func (r *recorder) HandleSnapshot(s *SnapshotReader) {
	var records []message.Versioned
	for {
		batch, err := s.Next()
		if err != nil {
			if err != io.EOF {
				panic(err)
			}
			break
		}
		records = append(records, batch...)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snapshot = append(r.snapshot, s.ID())
	r.records = records
	r.next = s.ID().Offset
	r.changed.Broadcast()
}

func (r *recorder) HandleLeaderChange(l LeaderAndEpoch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaders = append(r.leaders, l)
	r.changed.Broadcast()
}

func (r *recorder) BeginShutdown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.changed.Broadcast()
}

// wait waits until ok holds, which is called with the recorder locked.
func (r *recorder) wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	timer := time.AfterFunc(await.Patience, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.closed = true
		r.changed.Broadcast()
	})
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !ok() {
		if r.closed {
			t.Fatalf("waited in vain for %s: %d batches, leaders %v, snapshots %v", what, len(r.batches), r.leaders, r.snapshot)
		}
		r.changed.Wait()
	}
}

var testDir = uuid.UUID{1: 1, 8: 2, 15: 101}

// dynamicOptions are those of a node that is the only voter of a dynamic quorum, formatted in dir.
func dynamicOptions(t *testing.T, dir string) Options {
	t.Helper()
	o := Options{
		FS: vfs.OS, Clock: clock.System, Logger: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2)),
		Dir: dir, ClusterID: "cluster", NodeID: 1, DirectoryID: testDir, Controller: true,
		Endpoints: []Endpoint{{"CONTROLLER", "localhost", 9093}},
		OnFatal:   func(err error) { t.Errorf("fatal: %v", err) },
	}
	if _, err := os.Stat(filepath.Join(dir, DirName)); err != nil {
		voter := Voter{ReplicaKey: ReplicaKey{1, testDir}, Endpoints: o.Endpoints, KRaftVersions: KRaftVersions}
		if err := WriteBootstrapSnapshot(BootstrapOptions{FS: vfs.OS, Dir: dir, KRaftVersion: 1, Voters: []Voter{voter},
			Records: []message.Versioned{feature("metadata.version", 33)}, Now: time.UnixMilli(1700000000000)}); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func feature(name string, level int16) message.Versioned {
	m := message.NewFeatureLevelRecord()
	m.Name, m.FeatureLevel = name, level
	return message.Versioned{Message: m}
}

func openMem(t *testing.T, o Options, l Log) *Node {
	t.Helper()
	n, err := newNode(o.withDefaults(), o.Logger, filepath.Join(o.Dir, DirName), l)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func shutdown(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	if err := n.Shutdown(ctx); err != nil {
		t.Fatalf("shutdown: %v", err)
	}
}

func TestLoneVoterLeadsAtOnce(t *testing.T) {
	t.Parallel()
	o, l := dynamicOptions(t, t.TempDir()), &memLog{}
	n := openMem(t, o, l)
	if got, want := n.LeaderAndEpoch(), (LeaderAndEpoch{1, 1}); got != want {
		t.Fatalf("leader after Open = %v, want %v", got, want)
	}
	if hw, end := n.HighWatermark(), n.LogEndOffset(); hw != 3 || end != 3 {
		t.Fatalf("after Open: high watermark %d, log end %d, want 3 and 3", hw, end)
	}
	rec := newRecorder()
	n.Register(rec)
	rec.wait(t, "leadership", func() bool { return len(rec.leaders) == 1 })
	last, err := n.Append(1, []message.Versioned{feature("group.version", 1), feature("share.version", 2)})
	if err != nil || last != 4 {
		t.Fatalf("Append = %d, %v", last, err)
	}
	rec.wait(t, "commit", func() bool { return rec.next == 5 })
	if _, err := n.Append(0, []message.Versioned{feature("x", 1)}); err == nil {
		t.Fatal("append in an old epoch succeeded")
	}
	shutdown(t, n)
	if !rec.closed {
		t.Fatal("listener was not told of the shutdown")
	}
	state, err := os.ReadFile(filepath.Join(o.Dir, DirName, "quorum-state"))
	if want := `{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}`; err != nil || string(state) != want {
		t.Fatalf("quorum-state = %s, %v", state, err)
	}

	// After a restart it leads the next epoch, and new listeners get everything.
	n = openMem(t, o, l)
	if got, want := n.LeaderAndEpoch(), (LeaderAndEpoch{1, 2}); got != want {
		t.Fatalf("leader after restart = %v, want %v", got, want)
	}
	rec = newRecorder()
	n.Register(rec)
	rec.wait(t, "replay", func() bool { return rec.next == 6 && len(rec.leaders) == 1 })
	if len(rec.records) != 2 {
		t.Fatalf("replayed %d records, want 2", len(rec.records))
	}
	shutdown(t, n)
}

func TestSnapshotReplacesTheLogsHead(t *testing.T) {
	t.Parallel()
	o, l := dynamicOptions(t, t.TempDir()), &memLog{}
	n := openMem(t, o, l)
	rec := newRecorder()
	n.Register(rec)
	for i := range 10 {
		if _, err := n.Append(1, []message.Versioned{feature("f", int16(i))}); err != nil {
			t.Fatal(err)
		}
	}
	rec.wait(t, "commit", func() bool { return rec.next == 13 })
	if _, err := n.CreateSnapshot(OffsetAndEpoch{14, 1}, 0); err == nil {
		t.Fatal("snapshot above the high watermark was begun")
	}
	if _, err := n.CreateSnapshot(OffsetAndEpoch{10, 7}, 0); err == nil {
		t.Fatal("snapshot of an epoch that isn't in the log was begun")
	}
	if _, err := n.CreateSnapshot(OffsetAndEpoch{2, 1}, 0); err == nil {
		t.Fatal("snapshot that ends within a batch was begun")
	}
	w, err := n.CreateSnapshot(OffsetAndEpoch{10, 1}, 1234)
	if err != nil || w == nil {
		t.Fatalf("CreateSnapshot = %v, %v", w, err)
	}
	if err := w.Append([]message.Versioned{feature("f", 6)}); err != nil {
		t.Fatal(err)
	}
	if err := w.Freeze(); err != nil {
		t.Fatal(err)
	}
	if w, err := n.CreateSnapshot(OffsetAndEpoch{10, 1}, 1234); w != nil || err != nil {
		t.Fatalf("second snapshot of the same id: %v, %v", w, err)
	}
	info, err := os.Stat(filepath.Join(o.Dir, DirName, "00000000000000000010-0000000001.checkpoint"))
	if err != nil || info.Mode().Perm() != 0o400 {
		t.Fatalf("snapshot file: %v, %v", info.Mode(), err)
	}
	shutdown(t, n)
	n = openMem(t, o, l)
	rec = newRecorder()
	n.Register(rec)
	rec.wait(t, "snapshot and tail", func() bool { return rec.next == 14 })
	if len(rec.snapshot) != 1 || rec.snapshot[0] != (OffsetAndEpoch{10, 1}) {
		t.Fatalf("snapshots handed over: %v", rec.snapshot)
	}
	if len(rec.records) != 4 {
		t.Fatalf("%d records, want 1 of the snapshot and 3 of the tail", len(rec.records))
	}
	// The snapshot keeps the voters.
	r, err := n.LatestSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.KRaftVersion() != 1 || !r.Voters().Has(ReplicaKey{1, testDir}) || r.LastContainedLogTime() != 1234 {
		t.Fatalf("header: version %d, voters %v, time %d", r.KRaftVersion(), r.Voters(), r.LastContainedLogTime())
	}
	shutdown(t, n)
}

// noRecords makes n records that do nothing.
func noRecords(n int) []message.Versioned {
	list := make([]message.Versioned, n)
	for i := range list {
		list[i] = message.Versioned{Message: message.NewNoOpRecord()}
	}
	return list
}

// A full disk holds up a lone voter's writes, loses nothing, and is forgotten as soon as there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	voter := Voter{ReplicaKey: ReplicaKey{1, testDir}, Endpoints: []Endpoint{{"CONTROLLER", "localhost", 9093}}, KRaftVersions: KRaftVersions}
	if err := fs.MkdirAll("/d"); err != nil {
		t.Fatal(err)
	}
	if err := WriteBootstrapSnapshot(BootstrapOptions{FS: fs, Dir: "/d", KRaftVersion: 1, Voters: []Voter{voter}, Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	n, err := Open(t.Context(), Options{
		FS: fs, Clock: clock.System, Logger: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2)),
		Dir: "/d", ClusterID: "cluster", NodeID: 1, DirectoryID: testDir, Controller: true, Endpoints: voter.Endpoints,
		OnFatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecorder()
	n.Register(rec)
	rec.wait(t, "start", func() bool { return rec.next == 3 })
	fs.SetCapacity(fs.Used() + 100)
	var last int64
	for range 20 {
		if last, err = n.Append(1, noRecords(2)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond)
	if hw := n.HighWatermark(); hw > last {
		t.Fatalf("high watermark %d with a full disk", hw)
	}
	fs.SetCapacity(-1)
	rec.wait(t, "commit", func() bool { return rec.next == last+1 })
	shutdown(t, n)
	if len(rec.records) != 40 {
		t.Errorf("%d records, want 40", len(rec.records))
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	n := openMem(t, dynamicOptions(t, t.TempDir()), &memLog{})
	rec := newRecorder()
	n.Register(rec)
	last, err := n.Append(1, noRecords(4))
	if err != nil {
		t.Fatal(err)
	}
	rec.wait(t, "commit", func() bool { return rec.next == last+1 })
	s := n.Stats()
	if s.Role != Leader || s.Voters != 1 || s.AppendedRecords != 7 || s.Elections != 1 || s.CommitLatency.Count() != 2 {
		t.Errorf("stats %+v, %d commits", s, s.CommitLatency.Count())
	}
	shutdown(t, n)
}

func BenchmarkCommit(b *testing.B) {
	for _, c := range []struct {
		name     string
		inflight int
	}{{"one at a time", 1}, {"64 in flight", 64}} {
		b.Run(c.name, func(b *testing.B) {
			t := &testing.T{}
			o := dynamicOptions(t, b.TempDir())
			n, err := Open(b.Context(), o)
			if err != nil {
				b.Fatal(err)
			}
			rec := newRecorder()
			n.Register(rec)
			var last int64
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if last, err = n.Append(1, noRecords(1)); err != nil {
					b.Fatal(err)
				}
				rec.mu.Lock()
				for rec.next+int64(c.inflight) <= last+1 && rec.next <= last {
					rec.changed.Wait()
				}
				rec.batches = rec.batches[:0]
				rec.mu.Unlock()
			}
			rec.mu.Lock()
			for rec.next <= last {
				rec.changed.Wait()
			}
			rec.mu.Unlock()
			shutdown(t, n)
		})
	}
}
