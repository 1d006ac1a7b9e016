package interop

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// tenthDefaults takes the tenth member's figures with the intervals that brokers and clients come with, as docs/groups.md shows
// them beside those of the short run.
var tenthDefaults = flag.Bool("tenth-defaults", false, "TestTenthMember with the default heartbeat intervals")

// TestTenthMember: nine consumers read 90 partitions that are written to all the time, and a tenth comes. With consumer groups and
// with cooperative rebalances only the nine partitions that it gets are given up by anybody; the others' owners never let go of them.
// With eager rebalances all are. How long each partition brought no records is logged.
func TestTenthMember(t *testing.T) {
	const partitions, members = 90, 9
	config, beat := lives, 300*time.Millisecond
	if *tenthDefaults {
		config, beat = nil, 3*time.Second
	}
	n, _ := startGregor(t, config...)
	a := admin(t, n.Addr)
	for _, mode := range []struct {
		name string
		opts []kgo.Opt
		// moves is how many partitions are given up.
		moves int
	}{
		{"classic eager", []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}, partitions},
		{"classic cooperative", []kgo.Opt{kgo.Balancers(kgo.CooperativeStickyBalancer())}, partitions / (members + 1)},
		{"KIP-848", []kgo.Opt{kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())}, partitions / (members + 1)},
	} {
		t.Run(mode.name, func(t *testing.T) {
			topic := "tenth-" + fmt.Sprint(len(mode.name))
			a.create(t, topic, partitions)
			ctx, end := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer end()
			r := &readings{last: make([]time.Time, partitions), pause: make([]time.Duration, partitions), next: make([]int64, partitions)}
			wg.Go(func() { writeEvenly(ctx, t, n.Addr, topic, partitions) })
			var all []*reader
			join := func() {
				m := newReader(t, n.Addr, topic, beat, r, mode.opts)
				all = append(all, m)
				wg.Go(func() { m.read(ctx) })
			}
			for range members {
				join()
			}
			settle := func(what string) {
				t.Helper()
				begun := time.Now()
				for ; ; time.Sleep(20 * time.Millisecond) {
					total, least, most := 0, partitions, 0
					owned := map[int32]bool{}
					for _, m := range all {
						ps := m.owned()
						total, least, most = total+len(ps), min(least, len(ps)), max(most, len(ps))
						for _, p := range ps {
							owned[p] = true
						}
					}
					if total == partitions && len(owned) == partitions && most-least <= 1 && r.everywhere() {
						break
					}
					if time.Since(begun) > scenarioPatience {
						t.Fatalf("%s: not after %v: %d partitions of %d, from %d to %d", what, scenarioPatience, total, partitions, least, most)
					}
				}
			}
			settle("nine members")
			for _, m := range all {
				m.forget()
			}
			r.begin()
			join()
			settle("ten members")
			pauses := r.end()
			var given []int32
			for _, m := range all {
				given = append(given, m.given()...)
			}
			slices.Sort(given)
			given = slices.Compact(given)
			if len(given) != mode.moves {
				t.Errorf("%d partitions were given up, want %d", len(given), mode.moves)
			}
			tenth := all[members].owned()
			if mode.moves < partitions {
				for _, p := range given {
					if !slices.Contains(tenth, p) {
						t.Errorf("partition %d was given up and is not the tenth member's", p)
					}
				}
			}
			var stopped, rest []time.Duration
			for p, d := range pauses {
				if slices.Contains(given, int32(p)) {
					stopped = append(stopped, d)
				} else {
					rest = append(rest, d)
				}
			}
			slices.Sort(stopped)
			slices.Sort(rest)
			t.Logf("%d of %d partitions given up; longest time without a record: median %v, most %v", len(stopped), partitions,
				stopped[len(stopped)/2].Round(time.Millisecond), stopped[len(stopped)-1].Round(time.Millisecond))
			if len(rest) > 0 {
				t.Logf("the other %d: median %v, most %v", len(rest), rest[len(rest)/2].Round(time.Millisecond), rest[len(rest)-1].Round(time.Millisecond))
			}
		})
	}
}

// writeEvenly writes a record to every partition some 20 times a second.
func writeEvenly(ctx context.Context, t *testing.T, addr, topic string, partitions int) {
	c := franz(t, addr, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for p := range partitions {
				c.Produce(ctx, &kgo.Record{Topic: topic, Partition: int32(p), Value: []byte("x")}, nil)
			}
		}
	}
}

// readings are when each partition brought records.
type readings struct {
	mu        sync.Mutex // guards the rest
	last      []time.Time
	next      []int64
	pause     []time.Duration
	measuring bool
}

func (r *readings) add(p int32, offset int64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.measuring {
		r.pause[p] = max(r.pause[p], now.Sub(r.last[p]))
	}
	r.last[p] = now
	r.next[p] = max(r.next[p], offset+1)
}

// everywhere says whether all partitions have brought records in the last second.
func (r *readings) everywhere() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	return !slices.ContainsFunc(r.last, func(t time.Time) bool { return now.Sub(t) > time.Second })
}

func (r *readings) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.measuring = true
	clear(r.pause)
}

func (r *readings) end() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.pause)
}

// reader is a member that reads.
type reader struct {
	c  *kgo.Client
	r  *readings
	mu sync.Mutex // guards the rest
	// has are the partitions that it reads, gave those that it has given up.
	has, gave map[int32]bool
}

func newReader(t *testing.T, addr, topic string, beat time.Duration, r *readings, opts []kgo.Opt) *reader {
	m := &reader{r: r, has: map[int32]bool{}, gave: map[int32]bool{}}
	change := func(ps map[string][]int32, add bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, p := range ps[topic] {
			if add {
				m.has[p] = true
			} else {
				delete(m.has, p)
				m.gave[p] = true
			}
		}
	}
	m.c = franz(t, addr, append(opts, kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.HeartbeatInterval(beat), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { change(ps, true) }),
		kgo.OnPartitionsRevoked(func(ctx context.Context, c *kgo.Client, ps map[string][]int32) {
			change(ps, false)
			_ = c.CommitUncommittedOffsets(ctx) // a commit that is refused is no matter here
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { change(ps, false) }))...)
	return m
}

func (m *reader) read(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := m.c.PollFetches(ctx)
		now := time.Now()
		fetches.EachRecord(func(rec *kgo.Record) { m.r.add(rec.Partition, rec.Offset, now) })
	}
}

func keys(m map[int32]bool) []int32 {
	var ks []int32
	for k := range m {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}

func (m *reader) owned() []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return keys(m.has)
}

func (m *reader) given() []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return keys(m.gave)
}

func (m *reader) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.gave)
}
