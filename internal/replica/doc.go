// Package replica holds the partitions that this broker leads or follows.
//
// A Partition joins a log to its role: leader or not, in which leader epoch, with which in-sync replicas. The Manager finds
// partitions by topic name or id, makes and drops them as the cluster metadata says, and owns the fetch sessions (KIP-227).
//
// # Waiting
//
// Two kinds of request wait on a partition. A produce with acks=all waits until the high watermark has passed its last
// record; such waits hang on the partition in offset order, so that completing one costs no more than looking at the first. A
// fetch that found too little waits on all of its partitions at once; an append tells it how many bytes came, and it reads
// again once that can be enough. Both are bounded by a timer of their own, and both are woken when the partition is no longer
// led from here.
//
// # Invariants
//
//   - The high watermark is the smallest end offset among the in-sync replicas and never goes back within a leader epoch.
//   - An append happens wholly within one role: the role changes only while no append is under way (Partition.mu).
//   - A request is answered exactly once, whoever of appender, timer and role change comes first.
//
// # Concurrency
//
// Everything exported is safe for concurrent use. Locks are taken in the order Partition.mu, the log's, Partition.waitMu, and
// no callback runs under any of them. Reads take none: they go by the role's and the log's atomic values.
package replica
