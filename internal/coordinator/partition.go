package coordinator

import "unicode/utf8"

// PartitionFor is the partition of an internal topic that holds the state of key (a group id, a transactional id): Java's
// String.hashCode without its sign bit, modulo the number of partitions. All clients and brokers must agree on it.
func PartitionFor(key string, partitions int32) int32 {
	return int32(javaHash(key)&0x7fffffff) % partitions
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
