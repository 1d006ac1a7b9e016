package timeline

import "iter"

// List is a slice on a timeline that grows at its end and never shrinks, except by a revert: the partitions of a
// topic. It costs no more than the slice, where a map would cost a hash table for each topic.
type List[V any] struct {
	r       *Registry
	current []V
	tiers   []*listTier[V] // oldest first
}

type listTier[V any] struct {
	at *snapshot
	n  int          // length at the snapshot
	m  map[int32]V  // overwritten elements, by position
	s  []oldElem[V] // the same while they are few
}

type oldElem[V any] struct {
	index int32
	value V
}

// NewList returns an empty list.
func NewList[V any](r *Registry) *List[V] { return &List[V]{r: r} }

// Len returns the length now.
func (l *List[V]) Len() int { return len(l.current) }

// Get returns element i, or false if the list is shorter.
func (l *List[V]) Get(i int32) (V, bool) {
	if i < 0 || int(i) >= len(l.current) {
		var zero V
		return zero, false
	}
	return l.current[i], true
}

// Append adds an element at the end.
func (l *List[V]) Append(v V) {
	l.tier()
	l.current = append(l.current, v)
}

// Set overwrites element i. It panics if the list is shorter.
func (l *List[V]) Set(i int32, v V) {
	old := l.current[i]
	if t := l.tier(); t != nil && int(i) < t.n {
		t.save(i, old)
	}
	l.current[i] = v
}

// LenAt returns the length as of the snapshot at offset, or now for [Latest].
func (l *List[V]) LenAt(offset int64) int {
	l.r.check(offset)
	for _, t := range l.tiers {
		if t.at.offset >= offset {
			return t.n
		}
	}
	return len(l.current)
}

// At returns element i as of the snapshot at offset, or now for [Latest].
func (l *List[V]) At(offset int64, i int32) (V, bool) {
	var zero V
	if i < 0 || int(i) >= l.LenAt(offset) {
		return zero, false
	}
	for _, t := range l.tiers {
		if t.at.offset < offset {
			continue
		}
		if v, ok := t.find(i); ok {
			return v, true
		}
	}
	return l.current[i], true
}

// All iterates over the current elements in order. Overwriting and appending meanwhile is allowed; what is appended
// is visited too.
func (l *List[V]) All() iter.Seq2[int32, V] {
	return func(yield func(int32, V) bool) {
		for i := 0; i < len(l.current); i++ {
			if !yield(int32(i), l.current[i]) {
				return
			}
		}
	}
}

// tier returns the tier of the newest snapshot, making it if this is the first change since; nil without a snapshot.
func (l *List[V]) tier() *listTier[V] {
	s := l.r.newest
	if s == nil {
		return nil
	}
	if n := len(l.tiers); n > 0 && l.tiers[n-1].at == s {
		return l.tiers[n-1]
	}
	t := &listTier[V]{at: s, n: len(l.current)}
	l.tiers = append(l.tiers, t)
	s.touched = append(s.touched, l)
	return t
}

func (t *listTier[V]) save(i int32, v V) {
	if _, ok := t.find(i); ok {
		return
	}
	if t.m == nil && len(t.s) < scanLimit {
		t.s = append(t.s, oldElem[V]{i, v})
		return
	}
	if t.m == nil {
		t.m = make(map[int32]V, 2*scanLimit)
		for _, o := range t.s {
			t.m[o.index] = o.value
		}
		t.s = nil
	}
	t.m[i] = v
}

func (t *listTier[V]) find(i int32) (v V, ok bool) {
	if t.m != nil {
		v, ok = t.m[i]
		return v, ok
	}
	for _, o := range t.s {
		if o.index == i {
			return o.value, true
		}
	}
	return v, false
}

func (l *List[V]) revert() {
	t := l.tiers[len(l.tiers)-1]
	clear(l.current[t.n:])
	l.current = l.current[:t.n]
	for i, v := range t.m {
		l.current[i] = v
	}
	for _, o := range t.s {
		l.current[o.index] = o.value
	}
	l.tiers = pop(l.tiers)
}

func (l *List[V]) forget() { l.tiers = shift(l.tiers) }
