package timeline

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// world is everything under one registry, and its naive twin: a whole copy at each snapshot.
type world struct {
	r *Registry
	m *Map[int, int]
	s *Set[int]
	v *Value[string]
	l *List[int]
	c *Counter

	now  copyOf
	past []copyOf
}

type copyOf struct {
	offset int64
	m      map[int]int
	v      string
	l      []int
	c      int64
}

func (c copyOf) clone() copyOf {
	c.m, c.l = maps.Clone(c.m), slices.Clone(c.l)
	return c
}

func newWorld() *world {
	r := NewRegistry()
	return &world{
		r: r, m: NewMap[int, int](r), s: NewSet[int](r), v: NewValue(r, ""), l: NewList[int](r), c: NewCounter(r, 0),
		now: copyOf{m: map[int]int{}},
	}
}

func (w *world) compare(t *rapid.T, offset int64, want copyOf) {
	gotMap, gotSet := map[int]int{}, map[int]bool{}
	for k, v := range w.m.AllAt(offset) {
		if _, dup := gotMap[k]; dup {
			t.Fatalf("at %d: key %d visited twice", offset, k)
		}
		gotMap[k] = v
	}
	for k := range w.s.AllAt(offset) {
		gotSet[k] = true
	}
	if !maps.Equal(gotMap, want.m) {
		t.Fatalf("at %d: map %v, want %v", offset, gotMap, want.m)
	}
	if len(gotSet) != len(want.m) {
		t.Fatalf("at %d: set %v, want the keys of %v", offset, gotSet, want.m)
	}
	for k := range 40 {
		v, ok := w.m.At(offset, k)
		wantV, wantOK := want.m[k]
		if v != wantV || ok != wantOK || w.s.HasAt(offset, k) != wantOK {
			t.Fatalf("at %d: key %d is %d %v, want %d %v", offset, k, v, ok, wantV, wantOK)
		}
	}
	if got := w.v.At(offset); got != want.v {
		t.Fatalf("at %d: value %q, want %q", offset, got, want.v)
	}
	if got := w.c.At(offset); got != want.c {
		t.Fatalf("at %d: counter %d, want %d", offset, got, want.c)
	}
	if got := w.l.LenAt(offset); got != len(want.l) {
		t.Fatalf("at %d: list of %d, want %d", offset, got, len(want.l))
	}
	for i, wantV := range want.l {
		if v, ok := w.l.At(offset, int32(i)); !ok || v != wantV {
			t.Fatalf("at %d: list[%d] is %d %v, want %d", offset, i, v, ok, wantV)
		}
	}
	if _, ok := w.l.At(offset, int32(len(want.l))); ok {
		t.Fatalf("at %d: list is longer than %d", offset, len(want.l))
	}
}

// TestAgainstCopies drives all containers and their whole copies with the same random calls.
func TestAgainstCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		next := int64(0)
		// A small key space makes repeated changes of one key likely, and more keys than scanLimit get indexed.
		key := rapid.IntRange(0, 39)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				k, v := key.Draw(t, "key"), rapid.Int().Draw(t, "value")
				old, existed := w.m.Set(k, v)
				wantOld, wantExisted := w.now.m[k]
				if old != wantOld || existed != wantExisted || w.s.Add(k) == wantExisted {
					t.Fatalf("set %d: replaced %d %v, want %d %v", k, old, existed, wantOld, wantExisted)
				}
				w.now.m[k] = v
			},
			"set many": func(t *rapid.T) {
				for k := range rapid.IntRange(scanLimit, 39).Draw(t, "count") {
					w.m.Set(k, k)
					w.s.Add(k)
					w.now.m[k] = k
				}
			},
			"delete": func(t *rapid.T) {
				k := key.Draw(t, "key")
				_, existed := w.m.Delete(k)
				if _, want := w.now.m[k]; existed != want || w.s.Remove(k) != want {
					t.Fatalf("delete %d: existed %v, want %v", k, existed, want)
				}
				delete(w.now.m, k)
			},
			"delete while iterating": func(t *rapid.T) {
				odd := rapid.IntRange(0, 1).Draw(t, "odd")
				for k := range w.m.All() {
					if k%2 == odd {
						w.m.Delete(k)
						delete(w.now.m, k)
					}
				}
				for k := range w.s.All() {
					if k%2 == odd {
						w.s.Remove(k)
					}
				}
			},
			"clear": func(*rapid.T) {
				w.m.Clear()
				w.s.Clear()
				clear(w.now.m)
			},
			"value": func(t *rapid.T) {
				w.now.v = rapid.StringN(0, 3, 3).Draw(t, "value")
				w.v.Set(w.now.v)
			},
			"count": func(t *rapid.T) {
				n := int64(rapid.IntRange(-2, 2).Draw(t, "n"))
				w.now.c += n
				if got := w.c.Add(n); got != w.now.c {
					t.Fatalf("counter %d, want %d", got, w.now.c)
				}
			},
			"append": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "n") {
					w.l.Append(len(w.now.l))
					w.now.l = append(w.now.l, len(w.now.l))
				}
			},
			"overwrite": func(t *rapid.T) {
				if len(w.now.l) == 0 {
					return
				}
				for range rapid.IntRange(1, 2*scanLimit).Draw(t, "n") {
					i := rapid.IntRange(0, len(w.now.l)-1).Draw(t, "i")
					v := rapid.Int().Draw(t, "v")
					w.l.Set(int32(i), v)
					w.now.l[i] = v
				}
			},
			"snapshot": func(t *rapid.T) {
				next += int64(rapid.IntRange(0, 3).Draw(t, "step"))
				w.r.Snapshot(next)
				if n := len(w.past); n > 0 && w.past[n-1].offset == next {
					return // the earlier one stays
				}
				w.now.offset = next
				w.past = append(w.past, w.now.clone())
			},
			"revert": func(t *rapid.T) {
				if len(w.past) == 0 {
					return
				}
				i := rapid.IntRange(0, len(w.past)-1).Draw(t, "to")
				w.r.Revert(w.past[i].offset)
				w.past = w.past[:i+1]
				w.now = w.past[i].clone()
				next = w.past[i].offset
			},
			"delete up to": func(t *rapid.T) {
				offset := rapid.Int64Range(0, next+1).Draw(t, "offset")
				w.r.DeleteUpTo(offset)
				w.past = slices.DeleteFunc(w.past, func(c copyOf) bool { return c.offset < offset })
			},
			"": func(t *rapid.T) {
				w.compare(t, Latest, w.now)
				for _, p := range w.past {
					w.compare(t, p.offset, p)
				}
				for _, offset := range []int64{-1, 0, next / 2, next, next + 1} {
					at, ok := w.r.Floor(offset)
					i := len(w.past) - 1
					for i >= 0 && w.past[i].offset > offset {
						i--
					}
					if ok != (i >= 0) || ok && at != w.past[i].offset {
						t.Fatalf("floor of %d is %d %v", offset, at, ok)
					}
				}
				if w.r.Len() != len(w.past) || w.m.Len() != len(w.now.m) || w.l.Len() != len(w.now.l) {
					t.Fatalf("lengths %d %d %d", w.r.Len(), w.m.Len(), w.l.Len())
				}
			},
		})
	})
}

// TestOrderIsDecidedByHistory: a simulation that is run twice has to see elements in the same order.
func TestOrderIsDecidedByHistory(t *testing.T) {
	order := func() []int {
		r := NewRegistry()
		m := NewMap[int, int](r)
		for i := range 100 {
			m.Set(i*7%101, i)
		}
		r.Snapshot(1)
		for i := 0; i < 100; i += 3 {
			m.Delete(i)
		}
		r.Revert(1)
		var keys []int
		for k := range m.All() {
			keys = append(keys, k)
		}
		return keys
	}
	if a, b := order(), order(); !slices.Equal(a, b) {
		t.Fatalf("two runs differ:\n%v\n%v", a, b)
	}
}

func TestRegistryRefusesWhatItCannotAnswer(t *testing.T) {
	f := func(name string, call func(r *Registry, v *Value[int])) {
		t.Helper()
		r := NewRegistry()
		v := NewValue(r, 1)
		r.Snapshot(10)
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", name)
			}
		}()
		call(r, v)
	}
	f("snapshot below the newest", func(r *Registry, _ *Value[int]) { r.Snapshot(9) })
	f("revert to an offset without snapshot", func(r *Registry, _ *Value[int]) { r.Revert(9) })
	f("read at an offset without snapshot", func(_ *Registry, v *Value[int]) { v.At(11) })
	f("revert after deletion", func(r *Registry, _ *Value[int]) { r.DeleteUpTo(11); r.Revert(10) })
}

// TestNothingIsRememberedAfterDelete: old values must be let go of, or a controller that lives for months leaks.
func TestNothingIsRememberedAfterDelete(t *testing.T) {
	w := newWorld()
	for i := range 1000 {
		w.r.Snapshot(int64(i))
		w.m.Set(i%50, i)
		w.v.Set("x")
		w.l.Append(i)
		w.l.Set(0, i)
		w.r.DeleteUpTo(int64(i))
	}
	if len(w.m.tiers) != 1 || len(w.v.tiers) != 1 || len(w.l.tiers) != 1 || w.r.Len() != 1 {
		t.Fatalf("tiers left: %d %d %d, snapshots %d", len(w.m.tiers), len(w.v.tiers), len(w.l.tiers), w.r.Len())
	}
}

// BenchmarkMapChange is one event of a controller: a snapshot, two changes, the commit.
func BenchmarkMapChange(b *testing.B) {
	r := NewRegistry()
	m := NewMap[int32, int64](r)
	for i := range int32(1000) {
		m.Set(i, 0)
	}
	b.ReportAllocs()
	offset := int64(0)
	for b.Loop() {
		r.Snapshot(offset)
		m.Set(int32(offset%1000), offset)
		m.Set(int32((offset+1)%1000), offset)
		r.DeleteUpTo(offset)
		offset++
	}
}
