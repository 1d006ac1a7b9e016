// Package log is the storage engine: partitions as append-only logs of segment files, byte for byte as Kafka keeps them.
//
// A Manager owns the log directories (Kafka's log.dirs): their locks, meta.properties, checkpoints and clean-shutdown
// markers, and a Log for every replica in them. A Log is a directory of segments with their indexes, the state of the
// producers that wrote to it, its leader epochs and its topic id. The metadata log uses the same Log, opened by OpenMetadata.
//
// A replica that moves to another directory has a second log there, a future log, which is filled from the first and takes its
// place; future.go says how.
//
// # Invariants
//
//   - Offsets of the batches in a log ascend; a batch lies in exactly one segment; a segment's name is the smallest offset
//     that it may hold.
//   - Everything below the recovery point is synced: log, indexes, producer snapshot, leader epochs, topic id and the
//     directory entries of them. A recovery point is written only after the sync.
//   - Bytes below the log end offset never change, except through truncation by a follower and through compaction, which
//     replaces whole segments.
//   - log start offset <= high watermark <= log end offset, and last stable offset <= high watermark.
//   - Damage in a file fails whoever needs the bytes, with CORRUPT_MESSAGE, and nobody else. Only an error of the disk takes
//     the log directory offline.
//   - A failed append leaves nothing behind: what it wrote is cut off before the next append, and a log whose tail could
//     not be cut refuses writes until it could.
//
// # Concurrency
//
// Everything exported is safe for concurrent use. A Log has three locks, always taken in this order:
//
//	mu       one append, truncation, roll or deletion at a time; held across the write of an append, never across a sync
//	         that was asked for by a checkpoint
//	shape    (RW) readers hold it shared while they find bytes; truncation and replacement of segments hold it exclusively
//	marks    offsets that readers need (end, high watermark, last stable offset and where they lie); held for a few loads
//	         and stores only
//
// A panic under mu leaves it locked and goes on as *Broken: the process must stop.
//
// Readers don't take mu. Open files live in a bounded cache and are counted, so that a Slice that was handed out stays
// readable while its segment is rolled, replaced or deleted.
//
// # Entry points
//
// Open, Manager.GetOrCreate, Log.Append, Log.AppendFollower, Log.Read, OpenMetadata.
//
// Kafka's UnifiedLog, LocalLog, LogSegment, LogLoader, LogManager, LogCleaner, ProducerStateManager and LeaderEpochFileCache
// are the classes whose behaviour this follows; KIP-98 (transactions), KIP-101 and KIP-279 (leader epochs), KIP-112 (log
// directories), KIP-534 (tombstone retention), KIP-890 (transaction version 2), KIP-937 (timestamp limits), KIP-966 (broker
// epoch in the clean-shutdown marker).
package log
