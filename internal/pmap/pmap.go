package pmap

import (
	"iter"
	"math/bits"
)

const (
	branchBits = 5
	branchMask = 1<<branchBits - 1
	hashBits   = 64
)

// Map is a persistent map. Make the first one with New; the zero value can't hash and is only good for reading.
type Map[K comparable, V any] struct {
	root *node[K, V]
	size int
	hash func(K) uint64
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// node holds the entries and children of one level. Below the last level, where the hash has no bits left, a node is a plain
// list of entries with one hash, and its bitmaps are not used.
type node[K comparable, V any] struct {
	dataMap  uint32
	nodeMap  uint32
	entries  []entry[K, V]
	children []*node[K, V]
	owner    *owner // the builder that may change this node in place
}

// owner is an identity. It has a size because the addresses of empty structs may be equal.
type owner struct{ _ byte }

// New makes an empty map with that hash function, which must be a function of the key alone.
func New[K comparable, V any](hash func(K) uint64) Map[K, V] { return Map[K, V]{hash: hash} }

// Len is the number of keys.
func (m Map[K, V]) Len() int { return m.size }

// Get returns the value of k.
func (m Map[K, V]) Get(k K) (v V, ok bool) {
	n := m.root
	if n == nil {
		return v, false
	}
	h := m.hash(k)
	for shift := 0; ; shift += branchBits {
		if shift >= hashBits {
			for i := range n.entries {
				if n.entries[i].key == k {
					return n.entries[i].value, true
				}
			}
			return v, false
		}
		bit := uint32(1) << (h >> shift & branchMask)
		switch {
		case n.dataMap&bit != 0:
			e := &n.entries[index(n.dataMap, bit)]
			if e.key == k {
				return e.value, true
			}
			return v, false
		case n.nodeMap&bit != 0:
			n = n.children[index(n.nodeMap, bit)]
		default:
			return v, false
		}
	}
}

// Set returns a map in which k has the value v.
func (m Map[K, V]) Set(k K, v V) Map[K, V] {
	root, added := m.root.set(nil, m.hash, m.hash(k), 0, k, v)
	m.root = root
	if added {
		m.size++
	}
	return m
}

// Delete returns a map without k.
func (m Map[K, V]) Delete(k K) Map[K, V] {
	root, deleted := m.root.delete(nil, m.hash(k), 0, k)
	if deleted {
		m.root = root
		m.size--
	}
	return m
}

// All goes through the map in an order that depends on its keys alone.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walk(yield) }
}

// Builder makes a map by many changes.
type Builder[K comparable, V any] struct {
	m     Map[K, V]
	owner *owner
}

// Builder starts from m, which stays as it is.
func (m Map[K, V]) Builder() *Builder[K, V] { return &Builder[K, V]{m: m, owner: new(owner)} }

// Get returns the value of k.
func (b *Builder[K, V]) Get(k K) (V, bool) { return b.m.Get(k) }

// Len is the number of keys.
func (b *Builder[K, V]) Len() int { return b.m.size }

// Set gives k the value v.
func (b *Builder[K, V]) Set(k K, v V) {
	root, added := b.m.root.set(b.owner, b.m.hash, b.m.hash(k), 0, k, v)
	b.m.root = root
	if added {
		b.m.size++
	}
}

// Delete removes k.
func (b *Builder[K, V]) Delete(k K) {
	root, deleted := b.m.root.delete(b.owner, b.m.hash(k), 0, k)
	if deleted {
		b.m.root = root
		b.m.size--
	}
}

// Map returns what was built. The builder may be used on; the map doesn't change with it.
func (b *Builder[K, V]) Map() Map[K, V] {
	b.owner = new(owner)
	return b.m
}

func index(bitmap, bit uint32) int { return bits.OnesCount32(bitmap & (bit - 1)) }

// editable returns n if the builder o owns it, and else a copy that it owns.
func (n *node[K, V]) editable(o *owner) *node[K, V] {
	if o != nil && n.owner == o {
		return n
	}
	return &node[K, V]{
		dataMap:  n.dataMap,
		nodeMap:  n.nodeMap,
		entries:  append([]entry[K, V](nil), n.entries...),
		children: append([]*node[K, V](nil), n.children...),
		owner:    o,
	}
}

func (n *node[K, V]) set(o *owner, hash func(K) uint64, h uint64, shift int, k K, v V) (_ *node[K, V], added bool) {
	if n == nil {
		n = &node[K, V]{owner: o, entries: []entry[K, V]{{k, v}}}
		if shift < hashBits {
			n.dataMap = 1 << (h >> shift & branchMask)
		}
		return n, true
	}
	if shift >= hashBits {
		for i := range n.entries {
			if n.entries[i].key == k {
				n = n.editable(o)
				n.entries[i].value = v
				return n, false
			}
		}
		n = n.editable(o)
		n.entries = append(n.entries, entry[K, V]{k, v})
		return n, true
	}
	bit := uint32(1) << (h >> shift & branchMask)
	switch {
	case n.nodeMap&bit != 0:
		i := index(n.nodeMap, bit)
		child, added := n.children[i].set(o, hash, h, shift+branchBits, k, v)
		if child == n.children[i] {
			return n, added
		}
		n = n.editable(o)
		n.children[i] = child
		return n, added
	case n.dataMap&bit != 0:
		i := index(n.dataMap, bit)
		if n.entries[i].key == k {
			n = n.editable(o)
			n.entries[i].value = v
			return n, false
		}
		// Two keys share this branch: both move one level down.
		old := n.entries[i]
		child, _ := (*node[K, V])(nil).set(o, hash, hash(old.key), shift+branchBits, old.key, old.value)
		child, _ = child.set(o, hash, h, shift+branchBits, k, v)
		n = n.editable(o)
		n.entries = remove(n.entries, i)
		n.children = insert(n.children, index(n.nodeMap, bit), child)
		n.dataMap &^= bit
		n.nodeMap |= bit
		return n, true
	}
	n = n.editable(o)
	n.entries = insert(n.entries, index(n.dataMap, bit), entry[K, V]{k, v})
	n.dataMap |= bit
	return n, true
}

// delete returns nil for a node that became empty. A child left with a single entry is pulled up, so that the shape doesn't
// depend on what was deleted before.
func (n *node[K, V]) delete(o *owner, h uint64, shift int, k K) (_ *node[K, V], deleted bool) {
	if n == nil {
		return nil, false
	}
	if shift >= hashBits {
		for i := range n.entries {
			if n.entries[i].key == k {
				if len(n.entries) == 1 {
					return nil, true
				}
				n = n.editable(o)
				n.entries = remove(n.entries, i)
				return n, true
			}
		}
		return n, false
	}
	bit := uint32(1) << (h >> shift & branchMask)
	switch {
	case n.dataMap&bit != 0:
		i := index(n.dataMap, bit)
		if n.entries[i].key != k {
			return n, false
		}
		if len(n.entries) == 1 && len(n.children) == 0 {
			return nil, true
		}
		n = n.editable(o)
		n.entries = remove(n.entries, i)
		n.dataMap &^= bit
		return n, true
	case n.nodeMap&bit != 0:
		i := index(n.nodeMap, bit)
		child, deleted := n.children[i].delete(o, h, shift+branchBits, k)
		if !deleted {
			return n, false
		}
		if child != nil && (len(child.children) != 0 || len(child.entries) != 1) {
			if child != n.children[i] {
				n = n.editable(o)
				n.children[i] = child
			}
			return n, true
		}
		// A node below the last level holds several entries whenever it exists, and a child never becomes empty here: it
		// had at least two entries. Pull its last one up.
		n = n.editable(o)
		n.children = remove(n.children, i)
		n.nodeMap &^= bit
		if child != nil {
			n.entries = insert(n.entries, index(n.dataMap, bit), child.entries[0])
			n.dataMap |= bit
		}
		return n, true
	}
	return n, false
}

func (n *node[K, V]) walk(yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	for i := range n.entries {
		if !yield(n.entries[i].key, n.entries[i].value) {
			return false
		}
	}
	for _, c := range n.children {
		if !c.walk(yield) {
			return false
		}
	}
	return true
}

// insert and remove work in place: the slices are the node's own after editable.
func insert[T any](s []T, i int, v T) []T {
	s = append(s, v)
	copy(s[i+1:], s[i:])
	s[i] = v
	return s
}

func remove[T any](s []T, i int) []T {
	var zero T
	copy(s[i:], s[i+1:])
	s[len(s)-1] = zero
	return s[:len(s)-1]
}

// HashString is FNV-1a with its bits mixed, for keys that are strings.
func HashString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return Mix(h)
}

// Mix spreads the bits of a number over all of it (the finaliser of MurmurHash3).
func Mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
