package timeline

import "iter"

// Map is a map on a timeline. Its elements lie densely in a slice, in no order that means anything, but in one that
// only the calls made so far decide.
type Map[K comparable, V any] struct {
	r       *Registry
	entries []entry[K, V]
	index   map[K]int32      // position in entries
	tiers   []*mapTier[K, V] // oldest first
	spare   *mapTier[K, V]
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// mapTier holds, for each key changed between two snapshots, what it was at the earlier.
type mapTier[K comparable, V any] struct {
	at  *snapshot
	old []oldEntry[K, V]
	// index finds a key in old. Nil while old is short enough to be searched by looking at each.
	index map[K]int32
}

type oldEntry[K comparable, V any] struct {
	key     K
	value   V
	present bool
}

// scanLimit is how many old values a tier holds before it is indexed. Below about a dozen a scan beats hashing.
const scanLimit = 12

// NewMap returns an empty map.
func NewMap[K comparable, V any](r *Registry) *Map[K, V] {
	return &Map[K, V]{r: r}
}

// Len returns the number of elements now.
func (m *Map[K, V]) Len() int { return len(m.entries) }

// Get returns the current value of key, or false if there is none.
func (m *Map[K, V]) Get(key K) (V, bool) {
	if i, ok := m.index[key]; ok {
		return m.entries[i].value, true
	}
	var zero V
	return zero, false
}

// At returns the value of key as of the snapshot at offset, or the current one for [Latest].
func (m *Map[K, V]) At(offset int64, key K) (V, bool) {
	m.r.check(offset)
	for _, t := range m.tiers {
		if t.at.offset < offset {
			continue
		}
		if i := t.find(key); i >= 0 {
			return t.old[i].value, t.old[i].present
		}
	}
	return m.Get(key)
}

// Set gives key a value and returns the one that it had, if any.
func (m *Map[K, V]) Set(key K, value V) (old V, existed bool) {
	if i, ok := m.index[key]; ok {
		e := &m.entries[i]
		old = e.value
		m.save(key, old, true)
		e.value = value
		return old, true
	}
	m.save(key, old, false)
	m.insert(key, value)
	return old, false
}

// Delete removes key and returns the value that it had, if any.
func (m *Map[K, V]) Delete(key K) (old V, existed bool) {
	i, ok := m.index[key]
	if !ok {
		return old, false
	}
	old = m.entries[i].value
	m.save(key, old, true)
	m.remove(key, i)
	return old, true
}

// Clear removes all elements.
func (m *Map[K, V]) Clear() {
	for len(m.entries) > 0 {
		m.Delete(m.entries[len(m.entries)-1].key)
	}
}

// All iterates over the current elements, the newest first unless some were deleted. The loop's body may delete the
// element that it was given and may add others, which the loop then doesn't visit; any other deletion is not allowed.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		// Backwards, because a deletion fills its gap with the last element, which has been visited.
		for i := len(m.entries) - 1; i >= 0; i-- {
			if e := &m.entries[i]; !yield(e.key, e.value) {
				return
			}
		}
	}
}

// AllAt iterates over the elements as of the snapshot at offset, or the current ones for [Latest]. The map may not be
// changed meanwhile. Its cost is that of the current map and everything changed since the snapshot.
func (m *Map[K, V]) AllAt(offset int64) iter.Seq2[K, V] {
	m.r.check(offset)
	first := 0
	for first < len(m.tiers) && m.tiers[first].at.offset < offset {
		first++
	}
	tiers := m.tiers[first:]
	if len(tiers) == 0 {
		return m.All()
	}
	return func(yield func(K, V) bool) {
		seen := make(map[K]struct{})
		for _, t := range tiers {
			for i := range t.old {
				o := &t.old[i]
				if _, dup := seen[o.key]; dup {
					continue
				}
				seen[o.key] = struct{}{}
				if o.present && !yield(o.key, o.value) {
					return
				}
			}
		}
		for k, v := range m.All() {
			if _, dup := seen[k]; !dup && !yield(k, v) {
				return
			}
		}
	}
}

func (m *Map[K, V]) insert(key K, value V) {
	if m.index == nil {
		m.index = make(map[K]int32)
	}
	m.index[key] = int32(len(m.entries))
	m.entries = append(m.entries, entry[K, V]{key, value})
}

func (m *Map[K, V]) remove(key K, i int32) {
	if last := len(m.entries) - 1; int(i) != last {
		m.entries[i] = m.entries[last]
		m.index[m.entries[i].key] = i
	}
	m.entries = pop(m.entries)
	delete(m.index, key)
}

// save moves the value of key to the newest snapshot, unless one of the same interval is there already.
func (m *Map[K, V]) save(key K, value V, present bool) {
	s := m.r.newest
	if s == nil {
		return
	}
	var t *mapTier[K, V]
	if n := len(m.tiers); n > 0 && m.tiers[n-1].at == s {
		t = m.tiers[n-1]
		if t.find(key) >= 0 {
			return
		}
	} else {
		if t = m.spare; t == nil {
			t = new(mapTier[K, V])
		}
		m.spare = nil
		t.at = s
		m.tiers = append(m.tiers, t)
		s.touched = append(s.touched, m)
	}
	t.old = append(t.old, oldEntry[K, V]{key, value, present})
	switch {
	case t.index != nil:
		t.index[key] = int32(len(t.old) - 1)
	case len(t.old) > scanLimit:
		t.index = make(map[K]int32, 2*len(t.old))
		for i := range t.old {
			t.index[t.old[i].key] = int32(i)
		}
	}
}

func (m *Map[K, V]) revert() {
	t := m.tiers[len(m.tiers)-1]
	for i := len(t.old) - 1; i >= 0; i-- {
		o := &t.old[i]
		at, exists := m.index[o.key]
		switch {
		case o.present && exists:
			m.entries[at].value = o.value
		case o.present:
			m.insert(o.key, o.value)
		case exists:
			m.remove(o.key, at)
		}
	}
	m.tiers = pop(m.tiers)
	m.recycle(t)
}

func (m *Map[K, V]) forget() {
	t := m.tiers[0]
	m.tiers = shift(m.tiers)
	m.recycle(t)
}

// recycle keeps one small tier, so that a map that changes a little with each event allocates nothing for it.
func (m *Map[K, V]) recycle(t *mapTier[K, V]) {
	if t.index != nil || m.spare != nil {
		return
	}
	clear(t.old)
	t.old, t.at = t.old[:0], nil
	m.spare = t
}

// find returns the position of key in the tier, or -1.
func (t *mapTier[K, V]) find(key K) int {
	if t.index != nil {
		if i, ok := t.index[key]; ok {
			return int(i)
		}
		return -1
	}
	for i := range t.old {
		if t.old[i].key == key {
			return i
		}
	}
	return -1
}

// Set is a set on a timeline.
type Set[K comparable] struct{ m Map[K, struct{}] }

// NewSet returns an empty set.
func NewSet[K comparable](r *Registry) *Set[K] {
	return &Set[K]{m: Map[K, struct{}]{r: r}}
}

// Len returns the number of elements now.
func (s *Set[K]) Len() int { return s.m.Len() }

// Has says whether key is in the set now.
func (s *Set[K]) Has(key K) bool {
	_, ok := s.m.index[key]
	return ok
}

// HasAt says whether key was in the set at the snapshot at offset, or is now for [Latest].
func (s *Set[K]) HasAt(offset int64, key K) bool {
	_, ok := s.m.At(offset, key)
	return ok
}

// Add puts key into the set and says whether it is new there.
func (s *Set[K]) Add(key K) bool {
	if s.Has(key) {
		return false
	}
	s.m.Set(key, struct{}{})
	return true
}

// Remove takes key out of the set and says whether it was there.
func (s *Set[K]) Remove(key K) bool {
	_, existed := s.m.Delete(key)
	return existed
}

// Clear removes all elements.
func (s *Set[K]) Clear() { s.m.Clear() }

// All iterates over the current elements, under the rules of [Map.All].
func (s *Set[K]) All() iter.Seq[K] { return keys(s.m.All()) }

// AllAt iterates over the elements as of a snapshot, under the rules of [Map.AllAt].
func (s *Set[K]) AllAt(offset int64) iter.Seq[K] { return keys(s.m.AllAt(offset)) }

func keys[K, V any](seq iter.Seq2[K, V]) iter.Seq[K] {
	return func(yield func(K) bool) {
		for k := range seq {
			if !yield(k) {
				return
			}
		}
	}
}
