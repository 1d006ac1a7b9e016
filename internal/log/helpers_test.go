package log

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"gregor/internal/clock"
	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

var testTopicID = uuid.UUID{1, 2, 3, 4, 5, 6, 0x40, 8, 0x80, 10, 11, 12, 13, 14, 15, 16}

// testStart is when tests begin: records are stamped from here on.
var testStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// batch makes a batch of n records without a producer; values are "offset-ish" so that contents can be told apart.
func batch(ts int64, values ...string) []byte {
	b := record.NewBuilder(record.BuilderOptions{LeaderEpoch: -1}.NoProducer())
	for i, v := range values {
		b.Append(ts+int64(i), []byte("k"), []byte(v), nil)
	}
	out, err := b.Build()
	if err != nil {
		panic(err)
	}
	return bytes.Clone(out)
}

// producerBatch makes a batch of an idempotent or transactional producer.
func producerBatch(ts, id int64, epoch int16, seq int32, txn bool, values ...string) []byte {
	b := record.NewBuilder(record.BuilderOptions{LeaderEpoch: -1, ProducerID: id, ProducerEpoch: epoch, BaseSequence: seq, Transactional: txn})
	for i, v := range values {
		b.Append(ts+int64(i), nil, []byte(v), nil)
	}
	out, err := b.Build()
	if err != nil {
		panic(err)
	}
	return bytes.Clone(out)
}

func marker_(ts, id int64, epoch int16, commit bool) []byte {
	return bytes.Clone(record.BuildEndTxnMarker(id, epoch, 0, commit, ts))
}

// format makes a log directory that Open accepts.
func format(t testing.TB, fsys vfs.FS, dir string) {
	t.Helper()
	if err := fsys.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	var id uuid.UUID
	copy(id[:], fmt.Sprintf("%16s", dir[max(0, len(dir)-16):]))
	if err := WriteMetaProperties(fsys, dir, MetaProperties{Version: 1, ClusterID: "c", NodeID: 1, DirectoryID: id}, testStart); err != nil {
		t.Fatal(err)
	}
}

// world is a manager on a file system with a clock that stands still.
type world struct {
	t     testing.TB
	fs    vfs.FS
	clock *clock.Manual
	dirs  []string
	opts  func(*Options)
	m     *Manager
	cfg   Config
}

func newWorld(t testing.TB, fsys vfs.FS, dirs ...string) *world {
	w := &world{t: t, fs: fsys, clock: clock.NewManual(testStart), dirs: dirs, cfg: DefaultConfig()}
	for _, d := range dirs {
		format(t, fsys, d)
	}
	return w
}

func (w *world) tryOpen() (*Manager, error) {
	o := Options{FS: w.fs, Clock: w.clock, Dirs: w.dirs, NodeID: 1, NoBackground: true, Rand: rand.New(rand.NewPCG(1, 2)),
		TopicConfig: func(string) Config { return w.cfg }}
	if w.opts != nil {
		w.opts(&o)
	}
	return Open(context.Background(), o)
}

func (w *world) open() *Manager {
	w.t.Helper()
	m, err := w.tryOpen()
	if err != nil {
		w.t.Fatal(err)
	}
	w.m = m
	return m
}

func (w *world) close() {
	w.t.Helper()
	if err := w.m.Close(context.Background(), 7); err != nil {
		w.t.Fatal(err)
	}
}

// abandon gives the directories up as a killed process does: nothing is written.
func (w *world) abandon() {
	w.m.bg.close()
	for _, d := range w.m.dirs {
		if d.lock != nil {
			d.lock.Close()
		}
	}
}

func (w *world) log(topic string) *Log {
	w.t.Helper()
	l, err := w.m.GetOrCreate(TopicPartition{Topic: topic}, testTopicID, w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

func (w *world) now() int64 { return w.clock.Now().UnixMilli() }

func mustAppend(t testing.TB, l *Log, b []byte) AppendInfo {
	t.Helper()
	info, err := l.Append(b, AppendOptions{LeaderEpoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	l.SetHighWatermark(l.EndOffset())
	return info
}

// values reads all records from offset on, as "offset:value".
func values(t testing.TB, l *Log, from int64, iso Isolation) []string {
	t.Helper()
	var out []string
	d := record.NewDecompressor(record.DecompressorOptions{})
	for {
		f, err := l.Read(from, 1<<20, iso, true)
		if err != nil {
			t.Fatal(err)
		}
		data, err := f.Slice.Bytes(nil)
		f.Slice.Release()
		if err != nil {
			t.Fatal(err)
		}
		if len(data) == 0 {
			return out
		}
		for {
			e, rest, err := record.NextEntry(data)
			if err != nil || e == nil {
				break
			}
			data = rest
			next := e.LastOffset() + 1
			if e.Magic() == 2 {
				it := e.Batch().Records(d)
				for it.Next() {
					r := it.Record()
					if r.Offset >= from && !e.Batch().IsControl() {
						out = append(out, fmt.Sprintf("%d:%s", r.Offset, r.Value))
					}
				}
				if it.Err() != nil {
					t.Fatal(it.Err())
				}
			}
			from = next
		}
	}
}

func randFor(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }
