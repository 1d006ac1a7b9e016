package log

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
)

// Sizes of the offset map of the cleaner: Kafka's slots have 24 bytes too, so that log.cleaner.dedupe.buffer.size means the same.
const (
	mapSlotBytes  = 24
	mapLoadFactor = 0.9
)

// offsetMap knows, for each key in the dirty part of a log, the offset of its last record. Keys are held as 128 bits of their
// hash: two keys with the same ones would be taken for one, which does not happen (Kafka uses MD5).
type offsetMap struct {
	slots []mapSlot
	mask  uint64
	n     int
	max   int
	// latest is the last offset that was looked at, -1 at first.
	latest int64
}

type mapSlot struct {
	hash [2]uint64
	next int64 // offset + 1; 0 is a free slot
}

// newOffsetMap makes a map for at most records keys in at most maxBytes.
func newOffsetMap(records int64, maxBytes int64) *offsetMap {
	most := max(maxBytes/mapSlotBytes, 16)
	want := max(int64(float64(records)/mapLoadFactor)+1, 16)
	size := uint64(1) << bits.Len64(uint64(want-1)) // a power of two that is no smaller
	for size > uint64(most) && size > 16 {
		size >>= 1
	}
	return &offsetMap{slots: make([]mapSlot, size), mask: size - 1, max: int(float64(size) * mapLoadFactor), latest: -1}
}

func hashKey(key []byte) [2]uint64 {
	h := sha256.Sum256(key)
	return [2]uint64{binary.BigEndian.Uint64(h[:]), binary.BigEndian.Uint64(h[8:])}
}

func (m *offsetMap) slot(h [2]uint64) *mapSlot {
	for i := h[0] & m.mask; ; i = (i + 1) & m.mask {
		s := &m.slots[i]
		if s.next == 0 || s.hash == h {
			return s
		}
	}
}

// put notes the offset of a key; false when there is no room for another one.
func (m *offsetMap) put(key []byte, offset int64) bool {
	h := hashKey(key)
	s := m.slot(h)
	if s.next == 0 {
		if m.n >= m.max {
			return false
		}
		m.n++
		s.hash = h
	}
	s.next = offset + 1
	return true
}

// get is the offset of a key, -1 when it isn't there.
func (m *offsetMap) get(key []byte) int64 { return m.slot(hashKey(key)).next - 1 }
