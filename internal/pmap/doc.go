// Package pmap is a persistent map: setting or deleting a key gives a new map and leaves the old one as it was, at the cost
// of a few small nodes.
//
// It is a hash array mapped trie in the form of CHAMP (Steindorfer and Vinju, 2015): a node holds its entries and its
// children in two packed slices, each with a bitmap that says which of the 32 branches are there. Maps with equal content
// need not have equal shape only when hashes collide in all 64 bits.
//
// A Map is immutable and may be read by any number of goroutines. A Builder changes the nodes that it made itself in place,
// which makes bulk loading cheaper; it belongs to one goroutine. The order of iteration depends on the keys
// alone, because the hash functions here have no seed.
package pmap
