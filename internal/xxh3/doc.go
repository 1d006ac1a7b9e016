// Package xxh3 is the 64-bit variant of the hash function XXH3, with seed 0 and the secret that it comes with.
//
// Kafka hashes the topics that a group reads with it and stores the result (the metadata hash of KIP-1101), so that two
// coordinators have to agree on every bit of it.
//
// The package has no state; Sum64 is the entry point.
package xxh3
