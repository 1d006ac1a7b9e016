package coordinator

import (
	"math"
	"unicode/utf8"
)

// PartitionFor is the partition of an internal topic that holds the state of key (a group id, a transactional id): Java's
// String.hashCode, its absolute value, modulo the number of partitions. All brokers must agree on it, also on the one number that
// has no absolute value: Kafka takes 0 for it. (Producers choose partitions by the hash without its sign bit, which is another
// number for half of all keys.)
func PartitionFor(key string, partitions int32) int32 {
	h := int32(javaHash(key))
	switch {
	case h == math.MinInt32:
		return 0
	case h < 0:
		h = -h
	}
	return h % partitions
}

// javaHash is String.hashCode, which runs over UTF-16 units.
func javaHash(s string) uint32 {
	var h uint32
	for _, r := range s {
		switch {
		case r == utf8.RuneError || r < 0x10000:
			h = 31*h + uint32(r)
		default:
			r -= 0x10000
			h = 31*h + 0xd800 + uint32(r>>10)
			h = 31*h + 0xdc00 + uint32(r&0x3ff)
		}
	}
	return h
}
