package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gregor/internal/api"
	"gregor/internal/vfs"
)

// damagedWorld has a log of several segments with keys, producers and transactions, stopped cleanly.
func damagedWorld(t *testing.T) *world {
	w := memWorld(t)
	w.cfg.SegmentBytes = 700
	w.cfg.IndexIntervalBytes = 100
	w.cfg.FileDeleteDelay = 0
	w.open()
	l := w.log("a")
	for i := range int32(12) {
		w.clock.Advance(time.Second)
		mustAppend(t, l, batch(w.now(), "x", "y"))
		mustAppend(t, l, producerBatch(w.now(), 7, 0, i, true, "z"))
		if _, err := l.Append(marker_(w.now(), 7, 0, i%2 == 0), AppendOptions{LeaderEpoch: 1, Origin: Coordinator}); err != nil {
			t.Fatal(err)
		}
		l.SetHighWatermark(l.EndOffset())
	}
	if n := l.Segments(); n < 4 {
		t.Fatalf("%d segments", n)
	}
	w.close()
	w.cfg.CleanupCompact = true
	return w
}

// useAll does everything with the log that reads its files, and calls check with each outcome.
func useAll(w *world, l *Log, check func(what string, err error)) {
	start, _, _, end := l.Offsets()
	for o := start; o < min(end, start+100); o++ {
		for _, iso := range []Isolation{ReadLogEnd, ReadUncommitted, ReadCommitted} {
			f, err := l.Read(o, 100, iso, true)
			check(fmt.Sprint("read ", o), err)
			if err == nil {
				_, err = f.Slice.Bytes(nil)
				check(fmt.Sprint("read bytes from ", o), err)
				f.Slice.Release()
			}
		}
	}
	for _, ts := range []int64{TimestampMax, 0, testStart.UnixMilli() + 3000, testStart.UnixMilli() + 7500, w.now()} {
		_, _, err := l.OffsetForTimestamp(ts)
		check(fmt.Sprint("offset for ", ts), err)
	}
	_, err := l.Append(batch(w.now(), "more"), AppendOptions{LeaderEpoch: 2})
	check("append", err)
	_, err = l.Append(marker_(w.now(), 9, 0, false), AppendOptions{LeaderEpoch: 2, Origin: Coordinator})
	check("append a marker", err)
	l.SetHighWatermark(l.EndOffset())
	check("flush", l.Flush())
	_, err = w.m.CleanOnce(context.Background())
	check("clean", err)
	_, err = l.DeleteOldSegments()
	check("retention", err)
	check("truncate", l.TruncateTo(l.EndOffset()-3))
	check("truncate", l.TruncateTo((start+end)/2))
	follower := batch(w.now(), "from the leader")
	copy(follower, []byte{0, 0, 0, 0, 0, 1})
	_, err = l.AppendFollower(follower)
	check("append as a follower", err)
	w.m.Tick()
}

// Whatever a file holds, it concerns who needs those bytes: they get CORRUPT_MESSAGE, and the directory stays online.
func TestDamageIsNotTheDisk(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := damagedWorld(t)
		var history []string
		files, err := w.fs.ReadDir("/data/a-0")
		if err != nil {
			t.Fatal(err)
		}
		files = slices.DeleteFunc(files, func(d fs.DirEntry) bool {
			// A leader epoch file or a topic id that doesn't parse takes the directory offline, as in Kafka.
			return !strings.HasPrefix(d.Name(), "0")
		})
		for range 1 + rng.IntN(3) {
			name := "/data/a-0/" + files[rng.IntN(len(files))].Name()
			data, err := readFile(w.fs, name)
			if err != nil || len(data) == 0 {
				continue
			}
			at := rng.IntN(len(data))
			switch rng.IntN(4) {
			case 0:
				data = data[:at]
			case 1:
				clear(data[at:min(at+1+rng.IntN(80), len(data))])
			default:
				for i := at; i < min(at+1+rng.IntN(12), len(data)); i++ {
					data[i] = byte(rng.Uint32())
				}
			}
			history = append(history, fmt.Sprintf("%s at %d of %d", name, at, len(data)))
			if err := writeFile(w.fs, name, data, true); err != nil {
				t.Fatal(err)
			}
		}
		if rng.IntN(3) == 0 {
			_ = w.fs.Remove("/data/" + cleanShutdownFile)
		}
		w.open()
		for range 2 {
			l := w.log("a")
			useAll(w, l, func(what string, err error) {
				if err != nil && !errors.Is(err, api.ErrCorruptMessage) && !errors.Is(err, api.ErrOffsetOutOfRange) && !errors.Is(err, api.ErrInvalidRecord) {
					t.Errorf("seed %d: %v: %s: %v", seed, history, what, err)
				}
			})
			if err := w.m.Dirs()[0].Offline; err != nil {
				t.Fatalf("seed %d: %v: offline: %v", seed, history, err)
			}
			w.close()
			w.open()
		}
		w.close()
	}
}

// An error of the disk, wherever it is met, is KAFKA_STORAGE_ERROR for who meets it and takes the directory offline.
func TestDiskErrorsTakeTheDirectoryOffline(t *testing.T) {
	for _, fault := range []string{"read *.log", "read *.index", "read *.timeindex", "write *.log", "write *.txnindex", "sync *.log", "truncate *.log", "open *.log"} {
		w := damagedWorld(t)
		w.open()
		for l := range w.m.Logs() { // nothing is known of the old segments
			for _, s := range l.segs() {
				s.close(l.e.files, false)
			}
		}
		w.close()
		plain := w.fs
		plan, err := vfs.ParsePlan(strings.ReplaceAll(fault, "*", "/data/a-0/*") + " 6.. EIO")
		if err != nil {
			t.Fatal(err)
		}
		w.fs = vfs.Inject(plain, plan)
		w.open()
		met := false
		if l := w.m.Log(TopicPartition{Topic: "a"}); l != nil {
			useAll(w, l, func(what string, err error) {
				if err == nil || errors.Is(err, api.ErrOffsetOutOfRange) {
					return
				}
				met = met || errors.Is(err, syscall.EIO)
				if !errors.Is(err, api.ErrKafkaStorageError) && !strings.HasPrefix(what, "read bytes") {
					t.Errorf("%s: %s: %v", fault, what, err)
				}
			})
		}
		if off := w.m.Dirs()[0].Offline; met != (off != nil) {
			t.Errorf("%s: met %v, the directory is offline: %v", fault, met, off)
		}
	}
}

// A transaction index that is damaged on disk is made anew from the log.
func TestDamagedTransactionIndexIsMadeAnew(t *testing.T) {
	for _, clean := range []bool{true, false} {
		w := damagedWorld(t)
		w.open()
		aborted := func() (out []AbortedTxn) {
			l := w.log("a")
			l.SetHighWatermark(l.EndOffset())
			f, err := l.Read(0, 1, ReadCommitted, true)
			if err != nil {
				t.Fatal(err)
			}
			f.Slice.Release()
			segs := l.segs()
			for i, s := range segs {
				all, err := l.abortedIn(segs[i:i+1], 0, s.base, maxOffset)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, all...)
			}
			return out
		}
		want := aborted()
		w.close()
		if len(want) < 4 {
			t.Fatalf("aborted %v", want)
		}
		files, err := w.fs.ReadDir("/data/a-0")
		if err != nil {
			t.Fatal(err)
		}
		broken := 0
		for _, f := range files {
			if strings.HasSuffix(f.Name(), suffixTxnIndex) {
				if err := writeFile(w.fs, "/data/a-0/"+f.Name(), slices.Repeat([]byte{0xab}, 100), true); err != nil {
					t.Fatal(err)
				}
				broken++
			}
		}
		if !clean {
			_ = w.fs.Remove("/data/" + cleanShutdownFile)
		}
		w.open()
		if got := aborted(); broken < 3 || !slices.Equal(got, want) {
			t.Errorf("clean %v: of %d broken indexes aborted %v, want %v", clean, broken, got, want)
		}
		w.close()
	}
}

// What lies behind damage stays within reach when the indexes are made anew.
func TestIndexesMadeAnewLeadBehindDamage(t *testing.T) {
	w := memWorld(t)
	w.cfg.IndexIntervalBytes = 100
	w.open()
	l := w.log("a")
	for i := range 40 {
		w.clock.Advance(time.Second)
		mustAppend(t, l, batch(w.now(), fmt.Sprint(i)))
	}
	ends := l.EndOffset()
	w.close()
	name := "/data/a-0/" + offsetName(0)
	data, err := readFile(w.fs, name+suffixLog)
	if err != nil {
		t.Fatal(err)
	}
	data[8] = 0x7f // the size of the first batch
	for file, b := range map[string][]byte{suffixLog: data, suffixTimeIndex: []byte("no time index at all.....")} {
		if err := writeFile(w.fs, name+file, b, true); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		w.open()
		l = w.log("a")
		if l.EndOffset() != ends {
			t.Fatalf("log end offset %d, want %d", l.EndOffset(), ends)
		}
		_, err = l.Read(0, 100, ReadLogEnd, true)
		code(t, err, api.ErrCorruptMessage)
		if got := values(t, l, 10, ReadLogEnd); len(got) != 30 || got[0] != "10:10" {
			t.Errorf("behind the damage: %v", got)
		}
		w.close()
	}
}

// Producers whose last batches lie behind damage are remembered, or their retries would be appended twice.
func TestProducersBehindDamageAreKnown(t *testing.T) {
	for _, clean := range []bool{true, false} {
		w := memWorld(t)
		w.cfg.IndexIntervalBytes = 100
		w.open()
		l := w.log("a")
		for i := range int64(20) {
			w.clock.Advance(time.Second)
			mustAppend(t, l, producerBatch(w.now(), 100+i, 0, 0, false, "x"))
		}
		w.close()
		name := "/data/a-0/" + offsetName(0)
		data, err := readFile(w.fs, name+suffixLog)
		if err != nil {
			t.Fatal(err)
		}
		at := len(data) / 20 * 6
		data[at+8] = 0x7f // the size of the seventh batch
		if err := writeFile(w.fs, name+suffixLog, data, true); err != nil {
			t.Fatal(err)
		}
		// Nothing but the log tells of the producers.
		if err := w.fs.Remove("/data/a-0/" + offsetName(20) + suffixSnapshot); err != nil {
			t.Fatal(err)
		}
		if !clean {
			if err := w.fs.Remove("/data/" + cleanShutdownFile); err != nil {
				t.Fatal(err)
			}
		}
		w.open()
		l = w.log("a")
		if n := len(l.Producers()); n < 17 || l.EndOffset() != 20 {
			t.Errorf("clean %v: %d producers of 20 are known, the log ends at %d", clean, n, l.EndOffset())
		}
		w.close()
	}
}

// A reader never finds a hole where segments have just been deleted: it is told that the log begins later.
func TestLogStartMovesBeforeSegmentsGo(t *testing.T) {
	h := &hookFS{FS: vfs.NewMem()}
	w := newWorld(t, h, "/d")
	w.cfg.SegmentBytes = 200
	w.cfg.RetentionBytes = 400
	w.open()
	l := w.log("a")
	for i := range 20 {
		mustAppend(t, l, batch(w.now(), fmt.Sprint(i)))
	}
	looks := 0
	look := func(op, name string) {
		if op != "rename" || !strings.HasSuffix(name, suffixLog) {
			return
		}
		looks++
		base, _, err := parseOffsetName(name[strings.LastIndexByte(name, '/')+1:])
		if err != nil {
			t.Error(err)
		}
		_, err = l.Read(base, 100, ReadLogEnd, true)
		code(t, err, api.ErrOffsetOutOfRange)
		if start := l.LogStartOffset(); l.segs()[0].base != start {
			t.Errorf("log start offset %d, first segment %d", start, l.segs()[0].base)
		}
	}
	h.before.Store(&look)
	n, err := l.DeleteOldSegments()
	if err != nil || n == 0 || looks != n {
		t.Errorf("%d segments deleted, %d seen: %v", n, looks, err)
	}
}
