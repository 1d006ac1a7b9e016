// Package coordinator is the runtime that Kafka's coordinators stand on: state machines over the partitions of an internal
// topic, one shard a partition.
//
// A shard is a core (the state machine: groups, transactions, share state), a registry of timeline state, timers and the
// place in the log where it stands. It is single-threaded: an operation is put into the shard's mailbox, sees the state
// that everything before it left, and answers with records and a continuation. The records are applied at once, ahead of
// their commit, so that the next operation sees them; they gather in a batch that goes to the log when the mailbox has been
// worked off; the continuation runs when the high watermark has passed them. If the append fails, the state goes back to
// what it was before the batch and everybody in it gets the error. An operation that writes nothing waits for what it may
// have seen: its answer never tells of a record that could still be lost.
//
// There are no threads that belong to shards. Whoever finds a shard idle becomes its runner and works off the mailbox,
// in the case of a request the connection's own goroutine: without contention an operation costs no hand-over. What comes in
// meanwhile is the next batch, which a runner passes on to a new goroutine together with the shard, so that it never works
// for others while its own answers wait. Continuations run outside the shard and may block without harm to it.
//
// Load makes a shard for a partition that this node leads: the log is replayed in the background, with progress in the
// log, and until that is done operations are answered with COORDINATOR_LOAD_IN_PROGRESS. Unload fails what waits with
// NOT_COORDINATOR and forgets the state. A partition that was never loaded answers NOT_COORDINATOR.
//
// A panic inside a shard, in a core, a timer or a continuation, stops the process (Broken): half a step would otherwise go on
// deciding for every group of the partition.
//
// Invariants: records reach the log in the order in which they were applied; the records of one atomic operation share one
// batch; the offsets that the core saw in Replay are those in the log (if an append lands anywhere else, the shard reloads
// itself); continuations run once, in the order of the log within a shard as long as they are in one batch.
//
// Batches look as Kafka's coordinators write them: no producer (-1) but base sequence 0, CreateTime, compressed as
// offsets.topic.compression.codec or its sisters say; either can take a partition over from the other.
//
// All methods of Runtime are safe for concurrent use. A core, its timers and its registry are only ever touched by the
// shard's runner or, before the shard is active, by its loader.
package coordinator
