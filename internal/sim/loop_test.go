package sim

import (
	"testing"
	"time"
)

func TestLoopKeepsOrderAndFollowsTheSeed(t *testing.T) {
	run := func(seed uint64) (got []int32, trace uint64) {
		l := NewLoop(seed)
		links := Links{Loop: l, Evil: 0.3, Latency: time.Millisecond}
		for i := range int32(100) {
			links.Send(1, 2, func() { got = append(got, i); l.Note(uint64(i), uint64(l.Now())) })
		}
		links.Cut(1, 2)
		links.Send(1, 2, func() { t.Error("a message passed a cut link") })
		links.Send(2, 2, func() { got = append(got, -1) })
		last := time.Duration(0)
		l.Run(time.Second, func() bool {
			if l.Now() < last {
				t.Errorf("time went back from %v to %v", last, l.Now())
			}
			last = l.Now()
			return false
		})
		if l.Now() != time.Second {
			t.Errorf("the run ended at %v", l.Now())
		}
		links.Heal()
		links.Evil = 0
		arrived := false
		links.Send(1, 2, func() { arrived = true })
		l.Run(2*time.Second, nil)
		if !arrived {
			t.Error("nothing passes a link that is healed")
		}
		return got, l.Trace()
	}
	a, traceA := run(1)
	b, traceB := run(1)
	_, traceC := run(2)
	if traceA != traceB || len(a) != len(b) {
		t.Errorf("one seed, two runs: %x %v, %x %v", traceA, a, traceB, b)
	}
	if traceA == traceC {
		t.Error("two seeds, one run")
	}
	seen := map[int32]int{}
	overtaken := false
	for i, v := range a {
		seen[v]++
		overtaken = overtaken || i > 0 && v < a[i-1]
	}
	repeated := false
	for _, n := range seen {
		repeated = repeated || n > 1
	}
	if len(seen) == 101 || !repeated || !overtaken || a[0] != -1 {
		t.Errorf("want some lost, some twice, some out of order: %v", a)
	}
}

func TestLoopStops(t *testing.T) {
	l := NewLoop(1)
	n := 0
	for range 10 {
		l.After(time.Millisecond, func() { n++ })
	}
	l.Run(time.Second, func() bool { return n == 4 })
	if n != 4 || l.Now() != time.Millisecond {
		t.Errorf("%d events at %v", n, l.Now())
	}
}
