// Package metadata turns the cluster's metadata log into state that every part of a node can read.
//
// An Image is all metadata as of one offset of the log: features, brokers and controllers, topics, configs, quotas, producer
// ids, ACLs, SCRAM credentials and delegation tokens. It is immutable. A Delta collects records on top of an image and
// makes the next one with Apply; parts that did not change are shared between the two, and inside of the large parts
// (topics, partitions, configs, ACLs) only what lies on the way to a change is copied, so one change among a million
// partitions costs microseconds. Replaying records in one delta or in many gives equal images.
//
// A Loader takes committed batches and snapshots from the quorum, keeps the current image and hands each delta to its
// publishers, in the order in which they were installed. It publishes nothing before it has caught up with the high
// watermark, and then everything as one delta. Records between a BeginTransactionRecord and its end are published as a whole
// or, when aborted, not at all. A SnapshotGenerator is a publisher that writes the image to a snapshot now and then.
//
// Concurrency: images may be read from any goroutine. A Delta belongs to one goroutine until Apply, and is immutable after it.
// A Loader serialises its calls by a mutex and publishes under it; publishers therefore must not call back into it. The
// current image is read with Loader.Image without waiting.
//
// Memory: a partition takes 32 bytes plus its share of an assignment and an in-sync set that equal partitions have in
// common.
//
// Entry points: NewDelta, Delta.Replay, Delta.Apply, Image.Write, Loader, SnapshotGenerator, Version and Features.
//
// KIP-500 and KIP-631 (the metadata log), KIP-630 (snapshots), KIP-778 and KIP-584 (features), KIP-866 and KIP-868
// (transactions), KIP-858 (directories), KIP-966 (eligible leader replicas), KIP-919 (controller registration).
package metadata
