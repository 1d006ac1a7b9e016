package metadata

import "iter"

// vector is a persistent array of partitions by id: a radix tree with 32 branches, whose leaves hold the partitions
// themselves. It is made for ids that are dense from 0, which Kafka's are, but holds any.
//
// A topic of up to 32 partitions is a single leaf of just the size it needs.
type vector struct {
	root  *vnode
	depth int // levels above the leaves
	count int
}

const (
	vecBits = 5
	vecMask = 1<<vecBits - 1
)

// vnode is a leaf or an inner node. A partition without Assignment isn't there.
type vnode struct {
	leaf     []Partition
	children []*vnode
}

// change is a new state of the partition with that id.
type change struct {
	id int32
	p  Partition
}

// get returns the partition, or nil. The result points into the tree and must not be changed.
func (v *vector) get(id int32) *Partition {
	if id < 0 || v.root == nil || id>>(vecBits*(v.depth+1)) != 0 {
		return nil
	}
	n := v.root
	for level := v.depth; level > 0; level-- {
		i := int(id >> (vecBits * level) & vecMask)
		if i >= len(n.children) || n.children[i] == nil {
			return nil
		}
		n = n.children[i]
	}
	i := int(id & vecMask)
	if i >= len(n.leaf) || n.leaf[i].Assignment == nil {
		return nil
	}
	return &n.leaf[i]
}

// set returns a vector with the changes, which must be in rising order of ids, none of them negative. Each node on the way to
// a change is copied once, however many changes it holds.
func (v vector) set(changes []change) vector {
	if len(changes) == 0 {
		return v
	}
	top := changes[len(changes)-1].id
	for top>>(vecBits*(v.depth+1)) != 0 {
		if v.root != nil {
			v.root = &vnode{children: []*vnode{v.root}}
		}
		v.depth++
	}
	v.root = v.root.set(v.depth, changes, &v.count)
	return v
}

func (n *vnode) set(level int, changes []change, count *int) *vnode {
	at := func(c change) int { return int(c.id >> (vecBits * level) & vecMask) }
	size := at(changes[len(changes)-1]) + 1
	c := &vnode{}
	if level == 0 {
		if n != nil {
			size = max(size, len(n.leaf))
		}
		c.leaf = make([]Partition, size)
		if n != nil {
			copy(c.leaf, n.leaf)
		}
		for _, ch := range changes {
			if c.leaf[at(ch)].Assignment == nil {
				*count++
			}
			c.leaf[at(ch)] = ch.p
		}
		return c
	}
	if n != nil {
		size = max(size, len(n.children))
	}
	c.children = make([]*vnode, size)
	if n != nil {
		copy(c.children, n.children)
	}
	for len(changes) > 0 {
		i := at(changes[0])
		k := 1
		for k < len(changes) && at(changes[k]) == i {
			k++
		}
		c.children[i] = c.children[i].set(level-1, changes[:k], count)
		changes = changes[k:]
	}
	return c
}

// all goes through the partitions in rising order of ids.
func (v *vector) all() iter.Seq2[int32, *Partition] {
	return func(yield func(int32, *Partition) bool) { v.root.walk(v.depth, 0, yield) }
}

func (n *vnode) walk(level int, base int32, yield func(int32, *Partition) bool) bool {
	if n == nil {
		return true
	}
	for i := range n.leaf {
		if n.leaf[i].Assignment != nil && !yield(base+int32(i), &n.leaf[i]) {
			return false
		}
	}
	for i, c := range n.children {
		if !c.walk(level-1, base+int32(i)<<(vecBits*level), yield) {
			return false
		}
	}
	return true
}
