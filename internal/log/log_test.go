package log

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gregor/internal/vfs"
)

func osWorld(t testing.TB) *world { return newWorld(t, vfs.OS, t.TempDir()) }

func TestAppendReadReload(t *testing.T) {
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprintf("clean=%v", clean), func(t *testing.T) {
			w := osWorld(t)
			w.cfg.SegmentBytes = 20000
			w.cfg.IndexIntervalBytes = 200
			w.open()
			l := w.log("a")
			var want []string
			for i := range 500 {
				v := fmt.Sprintf("v%d-%s", i, strings.Repeat("x", i%97))
				info := mustAppend(t, l, batch(w.now()+int64(i), v, v+"b"))
				if info.FirstOffset != int64(2*i) || info.LastOffset != int64(2*i+1) {
					t.Fatalf("append %d: %+v", i, info)
				}
				want = append(want, fmt.Sprintf("%d:%s", 2*i, v), fmt.Sprintf("%d:%sb", 2*i+1, v))
			}
			check := func(l *Log) {
				t.Helper()
				if got := values(t, l, 0, ReadUncommitted); !slices.Equal(got, want) {
					t.Fatalf("got %d records, want %d: %v", len(got), len(want), got)
				}
				for _, from := range []int64{1, 37, 500, 999} {
					if got := values(t, l, from, ReadLogEnd); !slices.Equal(got, want[from:]) {
						t.Fatalf("from %d: got %d records, want %d", from, len(got), len(want[from:]))
					}
				}
				for _, i := range []int64{0, 1, 250, 499} {
					o, ok, err := l.OffsetForTimestamp(testStart.UnixMilli() + i)
					if err != nil || !ok || o.Offset != max(2*i-1, 0) {
						t.Fatalf("timestamp +%d: %+v %v %v", i, o, ok, err)
					}
				}
			}
			check(l)
			if l.Segments() < 3 {
				t.Fatalf("only %d segments", l.Segments())
			}
			for range 2 {
				if clean {
					w.close()
				} else {
					w.abandon()
				}
				w.open()
				l = w.m.Log(TopicPartition{Topic: "a"})
				if w.m.WasClean() != clean {
					t.Fatalf("clean = %v", w.m.WasClean())
				}
				if l == nil || l.EndOffset() != 1000 || l.TopicID() != testTopicID {
					t.Fatalf("after reload: %v", l)
				}
				l.SetHighWatermark(l.EndOffset())
				check(l)
				if e, ok := l.LatestEpoch(); !ok || e != 1 {
					t.Fatalf("latest epoch %d %v", e, ok)
				}
			}
		})
	}
}

// TestOpenIsCalledOff: who calls the opening off hears the cause again: it is no failure of the directories.
func TestOpenIsCalledOff(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), "/d")
	w.open()
	w.log("t")
	w.close()
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	o := Options{FS: w.fs, Clock: w.clock, Dirs: w.dirs, NodeID: 1, NoBackground: true, Rand: rand.New(rand.NewPCG(1, 2)),
		TopicConfig: func(string) Config { return w.cfg }}
	if _, err := Open(ctx, o); !errors.Is(err, why) {
		t.Errorf("Open: %v, want %v", err, why)
	}
	if _, err := OpenMetadata(ctx, MetadataOptions{FS: w.fs, Clock: w.clock, Dir: "/m"}); !errors.Is(err, why) {
		t.Errorf("OpenMetadata: %v, want %v", err, why)
	}
	w.open()
	w.close()
}
