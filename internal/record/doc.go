// Package record reads, checks, builds and rewrites record batches: the bytes that clients send, that the log keeps and that
// replicas and consumers get.
//
// A batch of magic 2 (KIP-98):
//
//	 0 baseOffset int64            27 baseTimestamp int64 (or the delete horizon, KIP-534)
//	 8 batchLength int32           35 maxTimestamp int64
//	12 partitionLeaderEpoch int32  43 producerId int64
//	16 magic int8                  51 producerEpoch int16
//	17 crc uint32 (CRC-32C, 21…)   53 baseSequence int32
//	21 attributes int16            57 recordCount int32
//	23 lastOffsetDelta int32       61 records, compressed as one stream if attributes say so
//
// attributes: bits 0 to 2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon set. A record, in varints:
//
//	length | attributes int8 | timestampDelta | offsetDelta | keyLength key | valueLength value | count { keyLength key valueLength value }
//
// Messages of magic 0 and 1 are read (Legacy) and never made, but for what the cleaner leaves of them.
//
// # Entry points
//
// Next, NextEntry and Single cut batches off a buffer. Batch gives header fields in place, Batch.Records iterates, Validate
// makes a broker's checks on a produced batch, after which Assign patches the header or Rebuild converts. Builder makes batches,
// BuildEndTxnMarker and BuildControlBatch control batches, Filter what compaction leaves.
//
// # Invariants
//
// No input makes the package panic, as long as Batch values come from Next or have HeaderSize bytes. Memory is bounded by the
// input (times what a codec can honestly expand a block to) and by the Decompressor's MaxBytes, never by a length that the
// input merely claims. Iterating allocates nothing per record.
//
// # Concurrency
//
// Batches are plain bytes. Decompressor and Compressor are safe for concurrent use and pool their state; make one per node or
// client and hand it down (their zstd coders hold channels, which a synctest bubble must own). Iterators and builders belong to
// one goroutine.
package record
