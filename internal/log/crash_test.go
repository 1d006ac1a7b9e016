package log

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"gregor/internal/clock"
	"gregor/internal/record"
	"gregor/internal/vfs"
)

// history is what a partition has held: versions differ by what truncations took away. The last one is current.
type history struct {
	versions [][]string // record values by offset
	durable  int        // offsets below it were synced, in the versions from durableFrom on
	from     int
	start    int64 // log start offset as last moved
	cutting  bool  // a truncation or deletion is under way, to no less than cutTo
	cutTo    int
}

// kept is how much must still be there if only the process died.
func (h *history) kept() int {
	if h.cutting {
		return h.cutTo
	}
	return len(h.cur())
}

// cut runs a truncation.
func (h *history) cut(to int, f func()) {
	h.cutting, h.cutTo = true, max(to, 0)
	durable := h.durable
	h.durable = min(durable, h.cutTo)
	f()
	h.cutting, h.durable = false, durable
}

func (h *history) cur() []string { return h.versions[len(h.versions)-1] }

func (h *history) append(values ...string) {
	n := len(h.versions) - 1
	h.versions[n] = append(h.versions[n][:len(h.versions[n]):len(h.versions[n])], values...)
}

func (h *history) truncate(to int) {
	c := h.cur()
	if to < len(c) {
		h.versions = append(h.versions, c[:to:to])
		h.durable = min(h.durable, to)
	}
}

func (h *history) synced(l *Log) {
	h.start = l.LogStartOffset()
	h.durable = len(h.cur())
	h.from = len(h.versions) - 1
}

// hole stands for offsets that hold nothing: the end of a segment was lost and the beginning of the next one survived, behind
// the recovery point. Kafka keeps what survived, and so does gregor: offsets that were seen are not given out again.
const hole = "(hole)"

// matches checks what was found after a crash: part of one of the versions since the last sync, with all that was synced.
func (h *history) matches(start int64, got []string, all bool) error {
	if start > h.start && int(start) > h.durable {
		return fmt.Errorf("log start offset %d is beyond %d", start, h.start)
	}
	end := int(start) + len(got)
	want := h.durable
	if all {
		want = h.kept()
	}
	if end < want {
		return fmt.Errorf("log ends at %d, and everything below %d was safe", end, want)
	}
	for _, v := range h.versions[h.from:] {
		if end > len(v) {
			continue
		}
		same := true
		for i, g := range got {
			if v[int(start)+i] != g && (g != hole || int(start)+i < want) {
				same = false
				break
			}
		}
		if same {
			return nil
		}
	}
	return fmt.Errorf("records %d to %d are of no version that there was: %v", start, end, got)
}

// crashRun drives a manager over a Mem and looks at the disk before every change of it.
type crashRun struct {
	t       *testing.T
	mem     *vfs.Mem
	clock   *clock.Manual
	rng     *rand.Rand
	crashes *rand.Rand
	m       *Manager
	cfg     Config
	h       map[string]*history
	n       int
	seq     map[string]int32
	looking bool
	checked int
	trace   []string
}

func (r *crashRun) options(fsys vfs.FS) Options {
	return Options{FS: fsys, Clock: r.clock, Dirs: []string{"/d"}, NodeID: 1, NoBackground: true, RecoveryThreads: 1,
		Rand: rand.New(rand.NewPCG(r.crashes.Uint64(), 4)), TopicConfig: func(string) Config { return r.cfg }}
}

// before is called ahead of every operation.
func (r *crashRun) before(op vfs.Op) error {
	if !op.Kind.Changes() || r.looking {
		return nil
	}
	r.looking = true
	defer func() { r.looking = false }()
	for _, survive := range []float64{0, 0.5, 0.9, 1} {
		seed := r.crashes.Uint64()
		if err := r.inspect(r.mem.CrashClone(rand.New(rand.NewPCG(seed, 0)), survive), survive == 1); err != nil {
			r.t.Fatalf("crash before %s %s, survive %v, seed %d: %v\n%s", op.Kind, op.Path, survive, seed, err, strings.Join(r.trace[max(0, len(r.trace)-30):], "\n"))
		}
		r.checked++
	}
	r.trace = append(r.trace, fmt.Sprintf("  %s %s", op.Kind, op.Path))
	return nil
}

func (r *crashRun) read(m *Manager, l *Log) (int64, []string, error) {
	start := l.LogStartOffset()
	var out []string
	for at := start; at < l.EndOffset(); {
		f, err := l.Read(at, 1<<20, ReadLogEnd, true)
		if err != nil {
			return 0, nil, err
		}
		data, err := f.Slice.Bytes(nil)
		f.Slice.Release()
		if err != nil {
			return 0, nil, err
		}
		if len(data) == 0 {
			for ; at < l.EndOffset(); at++ {
				out = append(out, hole)
			}
		}
		for len(data) > 0 {
			b, rest, err := record.Next(data)
			if err != nil {
				break
			}
			if err := b.Check(); err != nil {
				return 0, nil, err
			}
			it := b.Records(m.e.decomp)
			for it.Next() {
				rec := it.Record()
				if rec.Offset < at {
					continue
				}
				for ; at < rec.Offset; at++ {
					out = append(out, hole)
				}
				v := string(rec.Value)
				if b.IsControl() {
					v = "marker"
				}
				out = append(out, v)
				at++
			}
			data = rest
		}
	}
	return start, out, nil
}

// inspect opens the disk as it would be after a crash, compares, goes on working on it, and closes it.
func (r *crashRun) inspect(disk *vfs.Mem, all bool) error {
	m, err := Open(context.Background(), r.options(disk))
	if err != nil {
		return err
	}
	found := map[string][]string{}
	for name, h := range r.h {
		tp := TopicPartition{Topic: name}
		l := m.Log(tp)
		if l == nil {
			if h.durable > 0 || (all && h.kept() > 0) {
				return fmt.Errorf("%s is gone", name)
			}
			continue
		}
		start, got, err := r.read(m, l)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := h.matches(start, got, all); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if _, err := l.Append(batch(r.clock.Now().UnixMilli(), "after"), AppendOptions{LeaderEpoch: 9}); err != nil {
			return fmt.Errorf("%s: append: %w", name, err)
		}
		l.SetHighWatermark(l.EndOffset())
		found[name] = append(got, "after")
	}
	if err := m.Close(context.Background(), 1); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	// What a clean stop left must survive the loss of everything that wasn't synced.
	m, err = Open(context.Background(), r.options(disk.CrashClone(r.crashes, 0)))
	if err != nil {
		return err
	}
	if !m.WasClean() {
		return errors.New("the marker of the clean stop is gone")
	}
	for name, want := range found {
		_, got, err := r.read(m, m.Log(TopicPartition{Topic: name}))
		if err != nil {
			return fmt.Errorf("%s after a clean stop: %w", name, err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("%s after a clean stop: %v, want %v", name, got, want)
		}
	}
	return nil
}

func (r *crashRun) open() {
	m, err := Open(context.Background(), r.options(vfs.Hook(r.mem, r.before)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.m = m
	for name, h := range r.h {
		if l := m.Log(TopicPartition{Topic: name}); l != nil {
			l.SetHighWatermark(l.EndOffset())
		} else if len(h.cur()) > 0 {
			r.t.Fatalf("%s is gone", name)
		}
	}
}

func (r *crashRun) step() {
	names := []string{"a", "b"}
	name := names[r.rng.IntN(2)]
	h := r.h[name]
	tp := TopicPartition{Topic: name}
	note := func(format string, args ...any) { r.trace = append(r.trace, name+": "+fmt.Sprintf(format, args...)) }
	l, err := r.m.GetOrCreate(tp, testTopicID, r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.clock.Advance(time.Duration(r.rng.IntN(900)) * time.Millisecond)
	must := func(err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatalf("%s: %v\n%s", name, err, strings.Join(r.trace, "\n"))
		}
	}
	switch k := r.rng.IntN(100); {
	case k < 55:
		var vs []string
		for range 1 + r.rng.IntN(3) {
			r.n++
			vs = append(vs, fmt.Sprintf("%d-%s", r.n, strings.Repeat("x", r.rng.IntN(60))))
		}
		b := batch(r.clock.Now().UnixMilli(), vs...)
		id := int64(0)
		if r.rng.IntN(2) == 0 {
			id = 100
			b = producerBatch(r.clock.Now().UnixMilli(), id, 0, r.seq[name], false, vs...)
		}
		// The values count from the moment at which they may be on disk.
		h.append(vs...)
		before := len(h.cur()) - len(vs)
		note("append %d at %d", len(vs), before)
		r.pending(h, len(vs), func() {
			info, err := l.Append(b, AppendOptions{LeaderEpoch: int32(r.n / 10)})
			must(err)
			if int(info.FirstOffset) != before {
				r.t.Fatalf("%s: appended at %d, want %d", name, info.FirstOffset, before)
			}
		})
		if id != 0 {
			r.seq[name] += int32(len(vs))
		}
		l.SetHighWatermark(l.EndOffset())
	case k < 65:
		note("flush")
		must(l.Flush())
		h.synced(l)
	case k < 75:
		note("tick")
		r.m.Tick()
	case k < 80:
		note("checkpoint")
		must(r.m.CheckpointRecoveryPoints())
		must(r.m.CheckpointHighWatermarks())
		must(r.m.CheckpointLogStarts())
	case k < 86:
		end := len(h.cur())
		if end == 0 {
			return
		}
		to := max(end-1-r.rng.IntN(min(end, 6)), int(l.LogStartOffset()))
		note("truncate to %d of %d", to, end)
		// Until it returns, either may be on disk. Batches go whole.
		h.cut(to-3, func() { must(l.TruncateTo(int64(to))) })
		h.truncate(int(l.EndOffset()))
		delete(r.seq, name)
		for _, p := range l.Producers() {
			r.seq[name] = p.LastSequence + 1
		}
	case k < 90:
		to := l.LogStartOffset() + int64(r.rng.IntN(8))
		to = min(to, l.HighWatermark())
		note("delete records to %d", to)
		h.start = max(h.start, to)
		must(l.IncrementLogStart(to, "test"))
		_, err := l.DeleteOldSegments()
		must(err)
	case k < 93:
		note("delete the replica")
		h.cut(0, func() { must(r.m.Delete(tp)) })
		*h = history{versions: append(h.versions, nil), from: h.from, start: h.start}
		delete(r.seq, name)
	case k < 97:
		note("restart")
		must(r.m.Close(context.Background(), 3))
		for name, h := range r.h {
			if l := r.m.Log(TopicPartition{Topic: name}); l != nil {
				h.synced(l)
			}
		}
		r.open()
	default:
		note("truncate fully and begin at 0")
		h.cut(0, func() { must(l.TruncateFully(0)) })
		h.durable = 0
		h.versions = append(h.versions, nil)
		delete(r.seq, name)
	}
}

// pending runs an append whose last n values may or may not be on disk while it runs.
func (r *crashRun) pending(h *history, n int, f func()) {
	full := h.cur()
	i := len(h.versions) - 1
	// matches(all) must not yet demand the new ones: show it the shorter version beside the longer.
	h.versions = append(h.versions, full[:len(full)-n:len(full)-n])
	f()
	h.versions = h.versions[:i+1]
}

// crashSeeds is how many histories TestCrashAtEveryOperation tries; 400 have been tried by hand.
const crashSeeds = 8

func TestCrashAtEveryOperation(t *testing.T) {
	const steps = 120
	for seed := range uint64(crashSeeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewMem()
			r := &crashRun{t: t, mem: mem, clock: clock.NewManual(testStart), rng: rand.New(rand.NewPCG(seed, 1)),
				crashes: rand.New(rand.NewPCG(seed, 2)), cfg: DefaultConfig(), seq: map[string]int32{},
				h: map[string]*history{"a": {versions: [][]string{nil}}, "b": {versions: [][]string{nil}}}}
			mem.SetClock(r.clock.Now)
			r.cfg.SegmentBytes = 1200
			r.cfg.IndexIntervalBytes = 100
			r.cfg.FileDeleteDelay = time.Duration(seed%2) * time.Second
			format(t, mem, "/d")
			if err := errors.Join(mem.SyncDir("/"), mem.SyncDir("/d")); err != nil {
				t.Fatal(err)
			}
			r.open()
			for range steps {
				r.step()
			}
			t.Logf("%d crashes survived", r.checked)
		})
	}
}

// A stop that closes many logs together may be cut short anywhere: what was flushed is there, and a marker only if all is.
func TestCrashWhileClosingMany(t *testing.T) {
	mem := vfs.NewMem()
	r := &crashRun{t: t, mem: mem, clock: clock.NewManual(testStart), rng: rand.New(rand.NewPCG(1, 1)), crashes: rand.New(rand.NewPCG(1, 2)),
		cfg: DefaultConfig(), h: map[string]*history{}}
	mem.SetClock(r.clock.Now)
	format(t, mem, "/d")
	if err := errors.Join(mem.SyncDir("/"), mem.SyncDir("/d")); err != nil {
		t.Fatal(err)
	}
	armed := false
	m, err := Open(context.Background(), r.options(vfs.Hook(mem, func(op vfs.Op) error {
		if !armed || !op.Kind.Changes() {
			return nil
		}
		for _, survive := range []float64{0, 0.6, 1} {
			r.checked++
			if err := r.inspect(mem.CrashClone(rand.New(rand.NewPCG(uint64(r.checked), 0)), survive), survive == 1); err != nil {
				t.Fatalf("crash before %s %s, survive %v: %v", op.Kind, op.Path, survive, err)
			}
		}
		return nil
	})))
	if err != nil {
		t.Fatal(err)
	}
	for i := range groupSync + 2 {
		name := fmt.Sprint("t", i)
		l, err := m.GetOrCreate(TopicPartition{Topic: name}, testTopicID, r.cfg)
		if err != nil {
			t.Fatal(err)
		}
		h := &history{versions: [][]string{nil}}
		r.h[name] = h
		for k := range i % 4 {
			v := fmt.Sprint(name, "-", k)
			if _, err := l.Append(batch(r.clock.Now().UnixMilli(), v), AppendOptions{LeaderEpoch: int32(k)}); err != nil {
				t.Fatal(err)
			}
			h.append(v)
			if k == 1 {
				if err := l.Flush(); err != nil {
					t.Fatal(err)
				}
				h.synced(l)
			}
		}
		l.SetHighWatermark(l.EndOffset())
	}
	armed = true
	if err := m.Close(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	armed = false
	for _, h := range r.h {
		h.durable = len(h.cur())
	}
	m, err = Open(context.Background(), r.options(mem.CrashClone(r.crashes, 0)))
	if err != nil || !m.WasClean() {
		t.Fatal(err, "or no clean stop")
	}
	for name, h := range r.h {
		start, got, err := r.read(m, m.Log(TopicPartition{Topic: name}))
		if err == nil {
			err = h.matches(start, got, true)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Logf("%d crashes survived", r.checked)
}
