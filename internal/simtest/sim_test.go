package simtest

import (
	"flag"
	"hash/fnv"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seedFlag      = flag.Uint64("seed", 0, "run this seed only")
	fromFlag      = flag.Uint64("from", 1, "the first seed")
	seedsFlag     = flag.Uint64("seeds", 120, "how many seeds to run")
	dataSeedsFlag = flag.Uint64("data-seeds", 60, "how many seeds of the second level to run")
	logFlag       = flag.Bool("log", false, "print what happens, with -seed")
)

// TestSeeds runs many seeds, on all processors.
func TestSeeds(t *testing.T) {
	s := runSeeds(t, newWorld, *seedsFlag)
	if *seedsFlag >= 100 && *seedFlag == 0 && (s.elections == 0 || s.reverts == 0 || s.voterChanges == 0 || s.installs == 0 || s.trims == 0 || s.truncations == 0) {
		t.Error("the runs did not reach everything that they should")
	}
}

// TestDataSeeds runs many seeds of the second level.
func TestDataSeeds(t *testing.T) {
	s := runSeeds(t, newDataWorld, *dataSeedsFlag)
	if *dataSeedsFlag >= 100 && *seedFlag == 0 && (s.acked == 0 || s.consumed == 0 || s.truncations == 0 || s.unclean == 0 || s.powerLosses == 0 || s.resets == 0) {
		t.Error("the runs did not reach everything that they should")
	}
}

// TestDataSeedsOfBefore runs seeds that have failed.
func TestDataSeedsOfBefore(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{
		124163, 124911, 132962, 133890, 135634, // more was written than followers can copy
		128830, // nothing was written after an unclean election
	} {
		if err := newDataWorld(seed, nil).run(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// runSeeds runs seeds of a level and adds up what they reached.
func runSeeds(t *testing.T, newWorld func(seed uint64, out io.Writer) *world, seeds uint64) stats {
	if *seedFlag != 0 {
		var out io.Writer
		if *logFlag {
			out = os.Stderr
		}
		w := newWorld(*seedFlag, out)
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: %v", *seedFlag, err)
		}
		t.Logf("seed %d: %v simulated, trace %x: %v", *seedFlag, w.Now(), w.Trace(), w.stats)
		return w.stats
	}
	var (
		next  atomic.Uint64
		mu    sync.Mutex // guards total, failed, done
		total stats
		fails int
		done  uint64
		wg    sync.WaitGroup
		begin = time.Now()
	)
	next.Store(*fromFlag)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				seed := next.Add(1) - 1
				if seed >= *fromFlag+seeds {
					return
				}
				w := newWorld(seed, nil)
				err := w.run()
				mu.Lock()
				total.add(w.stats)
				done++
				if done%250 == 0 {
					t.Logf("%d seeds in %v, %d failed", done, time.Since(begin).Round(time.Second), fails)
				}
				stop := false
				if err != nil {
					fails++
					t.Errorf("seed %d: %v\n(again: go test ./internal/simtest -run '^%s$' -seed %d -log)", seed, err, t.Name(), seed)
					stop = fails > 20
				}
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds, %.0f a second: %v", done, float64(done)/time.Since(begin).Seconds(), total)
	return total
}

// TestSeedReplays: a seed gives the same run every time.
func TestSeedReplays(t *testing.T) {
	t.Parallel()
	for level, newWorld := range []func(uint64, io.Writer) *world{newWorld, newDataWorld} {
		for seed := uint64(1); seed <= 12; seed++ {
			run := func() (text, trace uint64, err error) {
				h := fnv.New64a()
				w := newWorld(seed, h)
				err = w.run()
				return h.Sum64(), w.Trace(), err
			}
			text1, trace1, err1 := run()
			text2, trace2, err2 := run()
			if text1 != text2 || trace1 != trace2 || err1 != nil || err2 != nil {
				t.Errorf("level %d, seed %d: %x %x %v, and %x %x %v", level+1, seed, text1, trace1, err1, text2, trace2, err2)
			}
		}
	}
}

// TestMain lets the collector run less often: worlds are small and die young.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}
