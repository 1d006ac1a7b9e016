package client

// murmur2 is the hash that Java producers use for keys, so that the same key goes to the same partition whatever the client.
func murmur2(b []byte) uint32 {
	const seed, m uint32 = 0x9747b28c, 0x5bd1e995
	h := seed ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
		k *= m
		k ^= k >> 24
		k *= m
		h = h*m ^ k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(b[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}

// PartitionForKey is the partition of a key among n, the same as Kafka's default partitioner picks.
func PartitionForKey(key []byte, n int) int32 {
	return int32(int(murmur2(key)&0x7fffffff) % n)
}
