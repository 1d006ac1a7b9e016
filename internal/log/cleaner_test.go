package log

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"gregor/internal/record"
	"gregor/internal/vfs"

	"pgregory.net/rapid"
)

// keyed makes a batch of "key=value" records; "key" alone is a tombstone.
func keyed(ts, id int64, epoch int16, seq int32, txn bool, codec record.Codec, pairs ...string) []byte {
	o := record.BuilderOptions{LeaderEpoch: -1, Codec: codec}.NoProducer()
	if id >= 0 {
		o.ProducerID, o.ProducerEpoch, o.BaseSequence, o.Transactional = id, epoch, seq, txn
	}
	b := record.NewBuilder(o)
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		value := []byte(v)
		if !ok {
			value = nil
		}
		b.Append(ts, []byte(k), value, nil)
	}
	out, err := b.Build()
	if err != nil {
		panic(err)
	}
	return bytes.Clone(out)
}

// dump lists what is in a log: records as "offset:key=value", markers as "offset:COMMIT", empty batches as "first-last:".
func dump(t testing.TB, l *Log) (out []string) {
	t.Helper()
	d := record.NewDecompressor(record.DecompressorOptions{})
	for _, s := range l.segs() {
		err := l.eachBatch(context.Background(), s, func(e record.Entry) (bool, error) {
			b := e.Batch()
			if b.Count() == 0 {
				out = append(out, fmt.Sprintf("%d-%d:", b.BaseOffset(), b.LastOffset()))
			}
			it := b.Records(d)
			for it.Next() {
				r := it.Record()
				v := string(r.Key) + "=" + string(r.Value)
				if b.IsControl() {
					k, _ := record.ParseControlKey(r.Key)
					v = k.String()
				} else if r.Value == nil {
					v = string(r.Key)
				}
				if b.HasDeleteHorizon() {
					v += "!"
				}
				out = append(out, fmt.Sprintf("%d:%s", r.Offset, v))
			}
			return true, it.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func compactWorld(t testing.TB) *world {
	w := memWorld(t)
	w.cfg.CleanupDelete, w.cfg.CleanupCompact = false, true
	w.cfg.DeleteRetention = time.Hour
	w.cfg.FileDeleteDelay = time.Minute
	w.cfg.MinCleanableRatio = 0
	w.cfg.IndexIntervalBytes = 100
	w.open()
	return w
}

func (w *world) roll(l *Log) {
	w.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.roll(l.end.offset); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) cleanOnce() bool {
	w.t.Helper()
	cleaned, err := w.m.CleanOnce(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	for l := range w.m.Logs() {
		if err := l.Uncleanable(); err != nil {
			w.t.Fatal(err)
		}
	}
	return cleaned
}

func want(t *testing.T, l *Log, lines ...string) {
	t.Helper()
	if got := dump(t, l); !slices.Equal(got, lines) {
		t.Errorf("got  %q\nwant %q", got, lines)
	}
}

func TestCleanKeepsTheLastOfEachKey(t *testing.T) {
	w := compactWorld(t)
	l := w.log("a")
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "a=1", "b=1", "a=2"))
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.Zstd, "c=1", "b"))
	w.roll(l)
	if !w.cleanOnce() {
		t.Fatal("nothing was cleaned")
	}
	want(t, l, "2:a=2", "3:c=1!", "4:b!")
	if w.cleanOnce() {
		t.Error("cleaned again without anything dirty")
	}
	// The tombstone goes an hour after it was cleaned first.
	w.clock.Advance(59 * time.Minute)
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "d=1"))
	w.roll(l)
	w.cleanOnce()
	want(t, l, "2:a=2", "3:c=1!", "4:b!", "5:d=1")
	w.clock.Advance(2 * time.Minute)
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "a=3"))
	w.roll(l)
	w.cleanOnce()
	want(t, l, "3:c=1!", "5:d=1", "6:a=3")
	if l.Segments() != 2 || l.EndOffset() != 7 {
		t.Errorf("%d segments, end %d", l.Segments(), l.EndOffset())
	}
	data, err := readFile(w.fs, "/data/"+cleanerFile)
	if err != nil || string(data) != "0\n1\na 0 7\n" {
		t.Errorf("checkpoint %q %v", data, err)
	}
	before := dump(t, l)
	for _, clean := range []bool{true, false} {
		if clean {
			w.close()
		} else {
			w.abandon()
		}
		w.open()
		l = w.m.Log(l.tp)
		want(t, l, before...)
		l.SetHighWatermark(l.EndOffset())
		if l.firstDirty != 7 {
			t.Errorf("first dirty offset %d", l.firstDirty)
		}
	}
	w.clock.Advance(2 * time.Minute)
	w.m.Tick()
	entries, _ := w.fs.ReadDir(l.Dir())
	for _, e := range entries {
		if strings.Contains(e.Name(), ".deleted") || strings.Contains(e.Name(), ".swap") || strings.Contains(e.Name(), ".cleaned") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestCleanTransactions(t *testing.T) {
	w := compactWorld(t)
	l := w.log("a")
	end := func(id int64, epoch int16, commit bool) {
		t.Helper()
		if _, err := l.Append(marker_(w.now(), id, epoch, commit), AppendOptions{Origin: Coordinator}); err != nil {
			t.Fatal(err)
		}
		l.SetHighWatermark(l.EndOffset())
	}
	mustAppend(t, l, keyed(w.now(), 1, 0, 0, true, record.None, "a=1", "b=1")) // 0, 1
	mustAppend(t, l, keyed(w.now(), 2, 0, 0, true, record.None, "a=2"))        // 2
	end(1, 0, true)                                                            // 3
	end(2, 0, false)                                                           // 4
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "b=2"))      // 5
	mustAppend(t, l, keyed(w.now(), 3, 0, 0, true, record.None, "z=1"))        // 6: stays open
	w.roll(l)
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "y=1")) // 7
	if w.cleanOnce() {
		t.Fatal("an open transaction was cleaned")
	}
	end(3, 0, true) // 8
	w.roll(l)
	if !w.cleanOnce() {
		t.Fatal("nothing was cleaned")
	}
	// The aborted record is gone and its marker stays for now; the producers' last batches stay, if only as headers.
	want(t, l, "0:a=1", "2-2:", "3:COMMIT", "4:ABORT", "5:b=2", "6:z=1", "7:y=1", "8:COMMIT")
	f, err := l.Read(0, 1000, ReadCommitted, true)
	f.Slice.Release()
	if err != nil || !slices.Equal(f.Aborted, []AbortedTxn{{2, 2}}) {
		t.Errorf("aborted %v %v", f.Aborted, err)
	}
	// The producers are forgotten, the records replaced.
	w.clock.Advance(25 * time.Hour)
	w.m.Tick()
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "a=9"))
	w.roll(l)
	w.cleanOnce()
	// This pass still met batches of both transactions, so their markers stay as they are.
	want(t, l, "3:COMMIT", "4:ABORT", "5:b=2", "6:z=1", "7:y=1", "8:COMMIT", "9:a=9")
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "b=9"))
	w.roll(l)
	w.cleanOnce()
	// This one didn't: they get their horizon, and the aborted transaction leaves the index.
	want(t, l, "3:COMMIT!", "4:ABORT!", "6:z=1", "7:y=1", "8:COMMIT", "9:a=9", "10:b=9")
	f, err = l.Read(0, 1000, ReadCommitted, true)
	f.Slice.Release()
	if err != nil || len(f.Aborted) != 0 {
		t.Errorf("aborted %v %v", f.Aborted, err)
	}
	if _, err := w.fs.Stat(l.Dir() + "/" + offsetName(0) + suffixTxnIndex); err == nil {
		t.Error("an empty transaction index is left")
	}
	w.clock.Advance(2 * time.Hour)
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "a=10"))
	w.roll(l)
	w.cleanOnce()
	want(t, l, "6:z=1", "7:y=1", "8:COMMIT", "10:b=9", "11:a=10")
}

func TestCleanLeavesTheRest(t *testing.T) {
	w := compactWorld(t)
	w.cfg.MinCompactionLag = time.Hour
	w.cfg.MinCleanableRatio = 0.5
	l := w.log("a")
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "a=1", "a=2"))
	w.roll(l)
	if w.cleanOnce() {
		t.Error("cleaned before min.compaction.lag.ms")
	}
	w.clock.Advance(2 * time.Hour)
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "a=3", "a=4"))
	w.roll(l)
	if !w.cleanOnce() {
		t.Error("not cleaned after min.compaction.lag.ms")
	}
	want(t, l, "1:a=2", "2:a=3", "3:a=4")
	// Less than half is dirty, until max.compaction.lag.ms forces it.
	w.cfg.MinCompactionLag = 0
	w.cfg.MinCleanableRatio = 0.7
	l.SetConfig(w.cfg)
	if w.cleanOnce() {
		t.Error("cleaned below the ratio")
	}
	w.cfg.MaxCompactionLag = time.Hour
	l.SetConfig(w.cfg)
	w.clock.Advance(2 * time.Hour)
	if !w.cleanOnce() {
		t.Error("not cleaned after max.compaction.lag.ms")
	}
	want(t, l, "3:a=4")
}

func TestCleanGivesUpOnDamage(t *testing.T) {
	w := compactWorld(t)
	l := w.log("a")
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "a=1"))
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "a=2"))
	w.roll(l)
	f, err := l.segs()[0].open(w.m.e.files)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt([]byte{99}, 65)
	l.segs()[0].release(w.m.e.files)
	if cleaned, err := w.m.CleanOnce(context.Background()); cleaned || err != nil {
		t.Error(cleaned, err)
	}
	if l.Uncleanable() == nil {
		t.Error("the damage wasn't noticed")
	}
	if cleaned, _ := w.m.CleanOnce(context.Background()); cleaned {
		t.Error("cleaned anyway")
	}
	mustAppend(t, l, keyed(w.now(), -1, 0, 0, false, record.None, "a=3"))
	if w.m.Dirs()[0].Offline != nil {
		t.Error("the directory went offline for a damaged batch")
	}
}

// Whatever is appended and cleaned when: the last value of each key is there under its offset, nothing is there that was never
// appended, offsets ascend, aborted records are not shown, and all that also after a crash.
func TestCleanProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := compactWorld(t)
		w.cfg.SegmentBytes = int32(rapid.IntRange(300, 2000).Draw(rt, "segment bytes"))
		w.opts = func(o *Options) {
			o.CleanerBufferBytes = 24 * int64(rapid.SampledFrom([]int{16, 64, 1024}).Draw(rt, "buffer"))
		}
		w.close()
		w.open()
		l := w.log("a")
		type rec struct {
			offset int64
			value  string
			dead   bool
		}
		last := map[string]rec{}
		all := map[int64]string{}
		open := map[int64][]string{} // uncommitted "key=value@offset"
		seqs := map[int64]int32{}
		n := 0
		commit := func(id int64, ok bool) {
			if len(open[id]) == 0 {
				return
			}
			if _, err := l.Append(marker_(w.now(), id, 0, ok), AppendOptions{Origin: Coordinator}); err != nil {
				rt.Fatal(err)
			}
			l.SetHighWatermark(l.EndOffset())
			if ok {
				for _, p := range open[id] {
					var o int64
					kv, at, _ := strings.Cut(p, "@")
					fmt.Sscan(at, &o)
					k, v, alive := strings.Cut(kv, "=")
					if o > last[k].offset || last[k].value == "" && !last[k].dead {
						last[k] = rec{o, v, !alive}
					}
				}
			}
			delete(open, id)
		}
		check := func() {
			seen := map[string]rec{}
			prev := int64(-1)
			aborting := map[int64]bool{}
			d := record.NewDecompressor(record.DecompressorOptions{})
			for at := l.LogStartOffset(); ; {
				f, err := l.Read(at, 1<<20, ReadCommitted, true)
				if err != nil {
					rt.Fatal(err)
				}
				data, err := f.Slice.Bytes(nil)
				f.Slice.Release()
				if err != nil {
					rt.Fatal(err)
				}
				if len(data) == 0 {
					break
				}
				aborted := f.Aborted
				for len(data) > 0 {
					b, rest, err := record.Next(data)
					if err != nil {
						break
					}
					data, at = rest, b.NextOffset()
					for len(aborted) > 0 && aborted[0].FirstOffset <= b.LastOffset() {
						aborting[aborted[0].ProducerID] = true
						aborted = aborted[1:]
					}
					if b.IsControl() {
						if m, ok, _ := readMarker(b); ok && m.abort {
							delete(aborting, b.ProducerID())
						}
						continue
					}
					if b.IsTransactional() && aborting[b.ProducerID()] {
						continue
					}
					it := b.Records(d)
					for it.Next() {
						r := it.Record()
						if r.Offset <= prev {
							rt.Fatalf("offset %d after %d", r.Offset, prev)
						}
						prev = r.Offset
						text := string(r.Key) + "=" + string(r.Value)
						if r.Value == nil {
							text = string(r.Key)
						}
						if all[r.Offset] != text {
							rt.Fatalf("at %d: %q, and %q was appended", r.Offset, text, all[r.Offset])
						}
						seen[string(r.Key)] = rec{r.Offset, string(r.Value), r.Value == nil}
					}
				}
			}
			stable := l.LastStableOffset()
			for k, want := range last {
				if want.offset >= stable {
					continue
				}
				got, ok := seen[k]
				if want.dead && !ok {
					continue // a tombstone may go, and what was before it must
				}
				// A later value may be in an open transaction's shadow, never an earlier one.
				if !ok || got.offset < want.offset {
					rt.Fatalf("key %s: %+v, want %+v\n%q", k, got, want, dump(t, l))
				}
			}
		}
		key := func() string { return fmt.Sprint("k", rapid.IntRange(0, 9).Draw(rt, "key")) }
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				id := int64(rapid.IntRange(-1, 2).Draw(rt, "producer"))
				txn := id > 0
				var pairs []string
				for range rapid.IntRange(1, 3).Draw(rt, "records") {
					k := key()
					if rapid.IntRange(0, 4).Draw(rt, "tombstone") > 0 {
						n++
						k = fmt.Sprintf("%s=v%d", k, n)
					}
					pairs = append(pairs, k)
				}
				codec := rapid.SampledFrom([]record.Codec{record.None, record.LZ4}).Draw(rt, "codec")
				info, err := l.Append(keyed(w.now(), id, 0, seqs[id], txn, codec, pairs...), AppendOptions{LeaderEpoch: 1})
				if err != nil {
					rt.Fatal(err)
				}
				l.SetHighWatermark(l.EndOffset())
				seqs[id] += int32(len(pairs))
				for i, p := range pairs {
					o := info.FirstOffset + int64(i)
					all[o] = p
					if txn {
						open[id] = append(open[id], fmt.Sprintf("%s@%d", p, o))
						continue
					}
					k, v, alive := strings.Cut(p, "=")
					last[k] = rec{o, v, !alive}
				}
			},
			"commit": func(rt *rapid.T) { commit(int64(rapid.IntRange(1, 2).Draw(rt, "producer")), true) },
			"abort":  func(rt *rapid.T) { commit(int64(rapid.IntRange(1, 2).Draw(rt, "producer")), false) },
			"roll":   func(rt *rapid.T) { w.roll(l) },
			"clean": func(rt *rapid.T) {
				w.clock.Advance(time.Duration(rapid.IntRange(0, 90).Draw(rt, "minutes")) * time.Minute)
				w.cleanOnce()
			},
			"crash": func(rt *rapid.T) {
				w.abandon()
				w.fs = w.fs.(*vfs.Mem).CrashClone(rand.New(rand.NewPCG(1, 1)), 1)
				w.open()
				l = w.m.Log(l.tp)
				l.SetHighWatermark(l.EndOffset())
			},
			"": func(rt *rapid.T) { check() },
		})
	})
}
