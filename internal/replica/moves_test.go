package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gregor/internal/api"
	"gregor/internal/await"
	"gregor/internal/clock"
	"gregor/internal/config"
	"gregor/internal/log"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// movesWorld is a broker with the log directories /d1, /d2 and /d3, whose ids end in their numbers, and a controller that is told
// of directories.
type movesWorld struct {
	world
	fs    vfs.FS
	cfg   *config.Live
	logs  *log.Manager
	topic uuid.UUID

	mu    sync.Mutex // guards all below
	told  []string   // partition and directory
	hold  bool       // keep what is called when the controller has answered
	held  []func()
	named map[int32]uuid.UUID
	asked func(dir uuid.UUID) // called before anything is noted; nil for nothing

	cordoned string // a directory
}

var movesDirs = []string{"/d1", "/d2", "/d3"}

func dirID(n byte) uuid.UUID { return uuid.UUID{0: 9, 15: n} }

func newMovesWorld(t *testing.T) *movesWorld {
	t.Helper()
	cfg, err := config.Load(config.NewProperties(map[string]string{"process.roles": "broker", "node.id": "1",
		"log.dirs": "/d1,/d2,/d3", "listeners": "PLAINTEXT://127.0.0.1:0", "controller.listener.names": "CONTROLLER",
		"controller.quorum.voters": "9@127.0.0.1:9093", "replica.fetch.max.bytes": "1000"}))
	if err != nil {
		t.Fatal(err)
	}
	w := &movesWorld{world: world{t: t, image: metadata.EmptyImage()}, fs: vfs.NewMem(), cfg: config.NewLive(cfg), topic: uuid.UUID{15: 100},
		named: map[int32]uuid.UUID{}}
	for i, d := range movesDirs {
		if err := w.fs.MkdirAll(d); err != nil {
			t.Fatal(err)
		}
		if err := log.WriteMetaProperties(w.fs, d, log.MetaProperties{Version: 1, ClusterID: "c", NodeID: 1, DirectoryID: dirID(byte(i + 1))}, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
	}
	w.start()
	t.Cleanup(w.stop)
	return w
}

func (w *movesWorld) start() {
	w.t.Helper()
	logs, err := log.Open(context.Background(), log.Options{FS: w.fs, Clock: clock.System, Dirs: movesDirs, NodeID: 1, NoBackground: true,
		Cordoned: func(dir string) bool { return dir == w.cordoned }})
	if err != nil {
		w.t.Fatal(err)
	}
	w.logs = logs
	w.m = New(Options{NodeID: 1, Logs: logs, Config: w.cfg, Logger: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2)),
		AssignDirectory: w.assign})
}

func (w *movesWorld) stop() {
	w.m.Close()
	_ = w.logs.Close(context.Background(), 1)
}

func (w *movesWorld) assign(_ uuid.UUID, partition int32, dir uuid.UUID, done func()) {
	if w.asked != nil {
		w.asked(dir)
	}
	w.mu.Lock()
	w.told = append(w.told, fmt.Sprintf("%d in d%d", partition, dir[15]))
	w.named[partition] = dir
	if done == nil {
		done = func() {}
	}
	if w.hold {
		w.held = append(w.held, done)
		done = func() {}
	}
	w.mu.Unlock()
	done()
}

func (w *movesWorld) isTold() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.told)
}

// restart does what a restart does, after which the metadata is published again.
func (w *movesWorld) restart() {
	w.t.Helper()
	w.stop()
	w.start()
	w.image, w.offset = metadata.EmptyImage(), 0
	w.lead(len(w.named))
}

// lead publishes a topic of n partitions that the broker leads, in the directories that were named.
func (w *movesWorld) lead(n int) []*Partition {
	w.t.Helper()
	records := []message.Message{
		&message.FeatureLevelRecord{Name: "metadata.version", FeatureLevel: 25},
		&message.TopicRecord{Name: "a", TopicID: w.topic}}
	for i := range n {
		dir := uuid.Unassigned
		if d, ok := w.named[int32(i)]; ok {
			dir = d
		}
		records = append(records, &message.PartitionRecord{PartitionID: int32(i), TopicID: w.topic, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1,
			Directories: []uuid.UUID{dir}})
	}
	w.publish(records...)
	parts := make([]*Partition, n)
	for i := range parts {
		p, err := w.m.Partition("a", int32(i))
		if err != nil {
			w.t.Fatal(err)
		}
		parts[i] = p
	}
	return parts
}

// elsewhere is a directory that the partition isn't in, nor in but.
func elsewhere(p *Partition, but ...string) string {
	for _, d := range movesDirs {
		if d != p.log().ParentDir() && !slices.Contains(but, d) {
			return d
		}
	}
	panic("no other directory")
}

func contents(t *testing.T, l *log.Log) (values []string) {
	t.Helper()
	d := record.NewDecompressor(record.DecompressorOptions{})
	for at := l.LogStartOffset(); at < l.EndOffset(); {
		f, err := l.Read(at, 1<<20, log.ReadLogEnd, true)
		if err != nil {
			t.Fatal(err)
		}
		data, err := f.Slice.Bytes(nil)
		f.Slice.Release()
		if err != nil {
			t.Fatal(err)
		}
		for len(data) > 0 {
			b, rest, err := record.Next(data)
			if err != nil {
				t.Fatal(err)
			}
			for it := b.Records(d); it.Next(); {
				values = append(values, string(it.Record().Value))
			}
			at, data = b.NextOffset(), rest
		}
	}
	return values
}

func (w *movesWorld) awaitMoved(p *Partition, to string) {
	w.t.Helper()
	await.True(w.t, fmt.Sprintf("%s in %s", p.tp, to), func() bool { return p.log().ParentDir() == to && p.Moving() == nil })
}

func TestReplicaMovesWhileItIsAppendedTo(t *testing.T) {
	w := newMovesWorld(t)
	p := w.lead(1)[0]
	w.mu.Lock()
	w.hold, w.told = true, nil
	w.mu.Unlock()
	var want []string
	add := func(n int) {
		for range n {
			v := fmt.Sprintf("%d %s", len(want), strings.Repeat("x", 50))
			w.append(p, v)
			want = append(want, v)
		}
	}
	add(100)
	from, to := p.log().ParentDir(), elsewhere(p)
	if err := w.m.AlterLogDir(p.tp, to); err != nil {
		t.Fatal(err)
	}
	// The controller is asked once all is copied, and until it has answered the replica stays where it is.
	await.True(t, "the controller is told", func() bool { return len(w.isTold()) > 0 })
	if p.log().ParentDir() != from || p.Moving() == nil {
		t.Errorf("the replica is in %s before the controller knows", p.log().ParentDir())
	}
	if got := w.isTold(); !slices.Equal(got, []string{"0 in d" + to[2:]}) {
		t.Errorf("the controller was told %q", got)
	}
	add(50)
	w.mu.Lock()
	w.hold = false
	for _, f := range w.held {
		f()
	}
	w.mu.Unlock()
	for range 200 {
		add(1)
	}
	w.awaitMoved(p, to)
	add(10)
	if got := contents(t, p.log()); !slices.Equal(got, want) || p.log().HighWatermark() != int64(len(want)) {
		t.Errorf("%d records, high watermark %d, want %d", len(got), p.log().HighWatermark(), len(want))
	}
	if got := w.isTold(); len(got) != 1 {
		t.Errorf("the controller was told %q", got)
	}
	w.restart()
	q, err := w.m.Partition("a", 0)
	if err != nil || q.log().ParentDir() != to {
		t.Fatalf("after a restart: %v", err)
	}
	if got := contents(t, q.log()); !slices.Equal(got, want) {
		t.Errorf("%d records after a restart, want %d", len(got), len(want))
	}
	if got := w.isTold(); len(got) != 1 {
		t.Errorf("after a restart the controller was told %q", got)
	}
}

func TestManyReplicasMove(t *testing.T) {
	w := newMovesWorld(t)
	parts := w.lead(20)
	to := map[*Partition]string{}
	for i, p := range parts {
		for range i {
			w.append(p, "v")
		}
		to[p] = elsewhere(p)
	}
	for _, p := range parts {
		if err := w.m.AlterLogDir(p.tp, to[p]); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range parts {
		w.awaitMoved(p, to[p])
		if n := len(contents(t, p.log())); n != i {
			t.Errorf("%s has %d records, want %d", p.tp, n, i)
		}
	}
}

// movesSlowly begins a move that can't end: the quota lets only a little through.
func (w *movesWorld) movesSlowly(p *Partition, to string) {
	w.t.Helper()
	w.m.logDirQuota.bound.Store(1)
	for range 100 {
		w.append(p, strings.Repeat("x", 100))
	}
	if err := w.m.AlterLogDir(p.tp, to); err != nil {
		w.t.Fatal(err)
	}
	await.True(w.t, "something is copied", func() bool { return p.Moving() != nil && p.Moving().EndOffset() > 0 })
}

func TestMovesAreThrottled(t *testing.T) {
	w := newMovesWorld(t)
	p := w.lead(1)[0]
	to := elsewhere(p)
	w.movesSlowly(p, to)
	if end := p.Moving().EndOffset(); end > 50 || w.m.ReplicationRates().LogDirs <= 0 {
		t.Errorf("%d of 100 records are copied at a byte a second", end)
	}
	w.m.logDirQuota.bound.Store(Unlimited)
	w.awaitMoved(p, to)
}

func TestMovesAreGivenUp(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *movesWorld, p *Partition, to string)
		told func(p *Partition) []string
	}{
		{"back to where it is", func(w *movesWorld, p *Partition, to string) {
			if err := w.m.AlterLogDir(p.tp, p.log().ParentDir()); err != nil {
				w.t.Fatal(err)
			}
		}, nil},
		{"its new directory fails", func(w *movesWorld, p *Partition, to string) { w.m.FailDirectory(to) }, nil},
		{"the topic is deleted", func(w *movesWorld, p *Partition, to string) {
			w.publish(&message.RemoveTopicRecord{TopicID: w.topic})
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, late := range []bool{false, true} {
				w := newMovesWorld(t)
				p := w.lead(1)[0]
				to := elsewhere(p)
				w.mu.Lock()
				w.told = nil
				w.hold = late
				w.mu.Unlock()
				if late {
					// The controller knows of the new directory already.
					if err := w.m.AlterLogDir(p.tp, to); err != nil {
						t.Fatal(err)
					}
					await.True(t, "the controller is told", func() bool { return len(w.isTold()) > 0 })
				} else {
					w.movesSlowly(p, to)
				}
				future := p.Moving()
				c.do(w, p, to)
				if p.Moving() != nil || w.logs.Future(p.tp) != nil || !strings.HasSuffix(future.Dir(), "-delete") {
					t.Errorf("late %v: the future log is in %s", late, future.Dir())
				}
				var want []string
				if late {
					want = []string{"0 in d" + to[2:]}
					if !p.Gone() {
						want = append(want, "0 in d"+p.log().ParentDir()[2:])
					}
				}
				if got := w.isTold(); !slices.Equal(got, want) {
					t.Errorf("late %v: the controller was told %q, want %q", late, got, want)
				}
				// An answer that comes now is too late.
				for _, f := range w.held {
					f()
				}
			}
		})
	}
}

// A move is given up in the moment in which the controller is asked. What that hears last is where the replica is.
func TestMoveIsGivenUpWhileItAsks(t *testing.T) {
	w := newMovesWorld(t)
	p := w.lead(1)[0]
	from, to := p.log().ParentDir(), elsewhere(p)
	w.mu.Lock()
	w.told, w.hold = nil, true
	w.mu.Unlock()
	var once sync.Once
	w.asked = func(dir uuid.UUID) {
		if dir == dirID(to[2]-'0') {
			once.Do(func() {
				if err := w.m.AlterLogDir(p.tp, from); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err := w.m.AlterLogDir(p.tp, to); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the controller is told three times", func() bool { return len(w.isTold()) > 2 })
	if got, want := w.isTold(), []string{"0 in d" + from[2:], "0 in d" + to[2:], "0 in d" + from[2:]}; !slices.Equal(got, want) {
		t.Errorf("the controller was told %q, want %q", got, want)
	}
	if p.Moving() != nil || p.log().ParentDir() != from {
		t.Errorf("the replica is in %s", p.log().ParentDir())
	}
}

func TestMoveTurnsElsewhere(t *testing.T) {
	w := newMovesWorld(t)
	p := w.lead(1)[0]
	first := elsewhere(p)
	w.movesSlowly(p, first)
	future := p.Moving()
	if err := w.m.AlterLogDir(p.tp, first); err != nil || p.Moving() != future {
		t.Errorf("the same again: %v", err)
	}
	second := elsewhere(p, first)
	if err := w.m.AlterLogDir(p.tp, second); err != nil {
		t.Fatal(err)
	}
	if l := p.Moving(); l == nil || l.ParentDir() != second || !strings.HasSuffix(future.Dir(), "-delete") {
		t.Errorf("moves to %v", l)
	}
	w.m.logDirQuota.bound.Store(Unlimited)
	w.awaitMoved(p, second)
	if n := len(contents(t, p.log())); n != 100 {
		t.Errorf("%d records", n)
	}
}

func TestMoveGoesOnAfterARestart(t *testing.T) {
	for _, named := range []bool{false, true} {
		w := newMovesWorld(t)
		p := w.lead(1)[0]
		to := elsewhere(p)
		w.movesSlowly(p, to)
		end := p.Moving().EndOffset()
		if named {
			// The controller had agreed.
			w.named[0] = dirID(to[2] - '0')
		}
		w.told = nil
		w.restart()
		p, err := w.m.Partition("a", 0)
		if err != nil {
			t.Fatal(err)
		}
		w.m.logDirQuota.bound.Store(Unlimited)
		if f := w.logs.Future(p.tp); f != nil && f.EndOffset() < end {
			t.Errorf("copying begins anew at %d", f.EndOffset())
		}
		w.awaitMoved(p, to)
		if n := len(contents(t, p.log())); n != 100 {
			t.Errorf("%d records", n)
		}
		var want []string
		if !named {
			want = []string{"0 in d" + to[2:]}
		}
		if got := w.isTold(); !slices.Equal(got, want) {
			t.Errorf("the controller was told %q, want %q", got, want)
		}
	}
}

// What is in the directory that the metadata names is the replica, when there is no other: a crash came between two renames.
func TestFutureLogThatStandsAlone(t *testing.T) {
	w := newMovesWorld(t)
	p := w.lead(1)[0]
	to := elsewhere(p)
	w.movesSlowly(p, to)
	from := p.log().Dir()
	w.stop()
	if err := w.fs.Rename(from, from+".0123456789abcdef0123456789abcdef-delete"); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.named[0] = dirID(to[2] - '0')
	w.image, w.offset = metadata.EmptyImage(), 0
	p = w.lead(1)[0]
	if p.log().Dir() != to+"/a-0" || p.log().EndOffset() == 0 {
		t.Errorf("the log is in %s and ends at %d", p.log().Dir(), p.log().EndOffset())
	}
}

func TestAlterLogDirIsRefused(t *testing.T) {
	w := newMovesWorld(t)
	p := w.lead(1)[0]
	check := func(tp log.TopicPartition, dir string, want *api.Error) {
		t.Helper()
		if err := w.m.AlterLogDir(tp, dir); !errors.Is(err, want) {
			t.Errorf("%s to %s: %v, want %s", tp, dir, err, want.Name)
		}
	}
	check(p.tp, "/d4", api.ErrLogDirNotFound)
	check(p.tp, "d1", api.ErrLogDirNotFound)
	check(log.TopicPartition{Topic: strings.Repeat("x", 240)}, "/d1", api.ErrInvalidTopicException)
	check(log.TopicPartition{Topic: "b"}, "/d3", api.ErrReplicaNotAvailable)
	// Where a replica was wished for is where it is made.
	w.publish(&message.TopicRecord{Name: "b", TopicID: uuid.UUID{15: 101}},
		&message.PartitionRecord{TopicID: uuid.UUID{15: 101}, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1, Directories: []uuid.UUID{uuid.Unassigned}})
	if b, err := w.m.Partition("b", 0); err != nil || b.log().ParentDir() != "/d3" {
		t.Errorf("made in %v: %v", b, err)
	}
	w.cordoned = elsewhere(p)
	check(p.tp, w.cordoned, api.ErrInvalidReplicaAssignment)
	w.cordoned = ""
	w.m.FailDirectory(p.log().ParentDir())
	check(p.tp, elsewhere(p), api.ErrKafkaStorageError)
}

// A replica of a directory that is offline is not made anew elsewhere: it may be there still.
func TestReplicasOfAnOfflineDirectoryAreOffline(t *testing.T) {
	w := newMovesWorld(t)
	plan, err := vfs.ParsePlan("readdir /d2 1.. EIO")
	if err != nil {
		t.Fatal(err)
	}
	disk := w.fs
	w.stop()
	w.fs = vfs.Inject(disk, plan)
	w.start()
	if has, online := w.logs.HasDir(dirID(2)); !has || online {
		t.Fatal("/d2 is online")
	}
	records := []message.Message{&message.TopicRecord{Name: "a", TopicID: w.topic}}
	for i, dir := range []uuid.UUID{dirID(1), dirID(2), uuid.Unassigned, {15: 77}, dirID(3)} {
		records = append(records, &message.PartitionRecord{PartitionID: int32(i), TopicID: w.topic, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1,
			Directories: []uuid.UUID{dir}})
	}
	w.publish(records...)
	for i, want := range []error{nil, api.ErrKafkaStorageError, nil, api.ErrKafkaStorageError, nil} {
		p, err := w.m.Partition("a", int32(i))
		if !errors.Is(err, want) {
			t.Errorf("partition %d: %v, want %v", i, err, want)
		}
		if i == 4 && err == nil && p.log().ParentDir() != "/d3" {
			t.Errorf("partition 4 is in %s", p.log().ParentDir())
		}
	}
}

// TestMoveOnAFullDisk: the new log doesn't get its name at once, when the old one has gone already. Appends fail until it has it,
// and nothing is lost.
func TestMoveOnAFullDisk(t *testing.T) {
	w := newMovesWorld(t)
	w.stop()
	var full atomic.Bool
	var tries atomic.Int32
	full.Store(true)
	w.fs = vfs.Hook(w.fs, func(op vfs.Op) error {
		if op.Kind == vfs.OpRename && strings.HasSuffix(op.Path, "-future") && full.Load() {
			tries.Add(1)
			return syscall.ENOSPC
		}
		return nil
	})
	w.start()
	p := w.lead(1)[0]
	w.append(p, "a")
	to := elsewhere(p)
	if err := w.m.AlterLogDir(p.tp, to); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the log doesn't get its name", func() bool { return tries.Load() > 1 })
	if _, err := p.Append(testBatch(t, 0, -1, "b"), AppendOptions{Origin: log.Client, LeaderEpoch: -1}); !errors.Is(err, api.ErrKafkaStorageError) {
		t.Errorf("append without a log: %v", err)
	}
	if err := w.m.AlterLogDir(p.tp, elsewhere(p, to)); !errors.Is(err, api.ErrKafkaStorageError) || w.logs.Future(p.tp) == nil {
		t.Errorf("to another directory: %v", err)
	}
	full.Store(false)
	w.awaitMoved(p, to)
	w.append(p, "c")
	if got := contents(t, p.log()); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("records %q", got)
	}
}

// atTheEndOfAMove has f called, which publishes or does what excludes that, just before a log gets its name after a move. The move
// goes on once f waits for it. begun is to be closed after AlterLogDir, done is closed when f has returned.
func (w *movesWorld) atTheEndOfAMove(f func()) (begun, done chan struct{}) {
	begun, done = make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.fs = vfs.Hook(w.fs, func(op vfs.Op) error {
		if op.Kind != vfs.OpRename || !strings.HasSuffix(op.Path, "-future") {
			return nil
		}
		once.Do(func() {
			<-begun
			go func() { f(); close(done) }()
			for w.m.publishMu.TryLock() {
				w.m.publishMu.Unlock()
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
		return nil
	})
	return begun, done
}

// TestDirectoryFailsAtTheEndOfAMove: the log is in the new directory already when it fails, though whoever was told of the failure
// has seen it on its way there; or the old one fails, when it has left that.
func TestDirectoryFailsAtTheEndOfAMove(t *testing.T) {
	for _, old := range []bool{false, true} {
		w := newMovesWorld(t)
		w.stop()
		var p *Partition
		var to string
		begun, failed := w.atTheEndOfAMove(func() {
			dir := to
			if old {
				dir = p.log().ParentDir()
			}
			w.m.FailDirectory(dir)
		})
		w.start()
		p = w.lead(1)[0]
		to = elsewhere(p)
		if err := w.m.AlterLogDir(p.tp, to); err != nil {
			t.Fatal(err)
		}
		close(begun)
		<-failed
		if p.log().ParentDir() != to || p.Gone() == old {
			t.Errorf("the failed one is the old one: %v; in %s, gone: %v", old, p.log().ParentDir(), p.Gone())
		}
	}
}

// A configuration that comes while the log is replaced is that of the new log.
func TestConfigurationDuringAMove(t *testing.T) {
	w := newMovesWorld(t)
	w.stop()
	begun, reconfigured := w.atTheEndOfAMove(func() {
		value := "12345"
		w.publish(&message.ConfigRecord{ResourceType: metadata.TopicResource, ResourceName: "a", Name: "retention.bytes", Value: &value})
	})
	w.start()
	p := w.lead(1)[0]
	to := elsewhere(p)
	if err := w.m.AlterLogDir(p.tp, to); err != nil {
		t.Fatal(err)
	}
	close(begun)
	<-reconfigured
	w.awaitMoved(p, to)
	if got := p.log().Config().RetentionBytes; got != 12345 {
		t.Errorf("retention.bytes is %d", got)
	}
}

// What is deleted while the directory that it leaves is offline leaves nothing behind in the new one.
func TestTopicIsDeletedWithoutItsDirectory(t *testing.T) {
	w := newMovesWorld(t)
	p := w.lead(1)[0]
	to := elsewhere(p)
	w.movesSlowly(p, to)
	from := p.log().ParentDir()
	plan, err := vfs.ParsePlan("readdir " + from + " 1.. EIO")
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.fs = vfs.Inject(w.fs, plan)
	w.start()
	w.image, w.offset = metadata.EmptyImage(), 0
	records := []message.Message{
		&message.FeatureLevelRecord{Name: "metadata.version", FeatureLevel: 25},
		&message.TopicRecord{Name: "a", TopicID: w.topic},
		&message.PartitionRecord{TopicID: w.topic, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1, Directories: []uuid.UUID{w.named[0]}}}
	w.publish(records...)
	if _, err := w.m.Partition("a", 0); !errors.Is(err, api.ErrKafkaStorageError) || w.logs.Future(p.tp) == nil {
		t.Fatalf("without its directory: %v", err)
	}
	w.publish(&message.RemoveTopicRecord{TopicID: w.topic})
	if l := w.logs.Future(p.tp); l != nil {
		t.Errorf("the future log is in %s", l.Dir())
	}
}
