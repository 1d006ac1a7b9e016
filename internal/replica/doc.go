// Package replica holds the partitions that this broker leads or follows.
//
// A Partition joins a log to its role: leader or follower, in which leader epoch, with which in-sync replicas. The Manager finds
// partitions by topic name or id, makes and drops them as the cluster metadata says, and owns the fetch sessions (KIP-227), the
// fetchers, and what is asked of the controller.
//
// # Leading
//
// state is what a leader knows and decides, a pure core: positions of followers from their fetches, which of them are in sync,
// how far the high watermark may go, which change of the ISR to ask for. Partition drives it under a lock; a partition with one
// replica never takes it. isrChanges sends what is asked for to the controller (AlterPartition), many partitions in a request,
// one request at a time.
//
// # Following
//
// fetcher decides what to ask a leader for and does what its answers say to the logs: appends the same bytes, cuts off what the
// leader doesn't have (the answer to a fetch says where the logs part, KIP-595), begins anew where the leader begins. It is pure
// but for the logs. fetchers drive it, with connections of its own for each leader and each of
// num.replica.fetchers: whoever reads the leader's answer appends what it brings and sends the next request.
//
// # Throttling
//
// A quota measures what is moved of throttled replicas (leader.replication.throttled.replicas and its follower's twin, KIP-73) and
// says when it is too much: then a leader answers their followers without records, and a follower leaves them out of its session
// for as long as the rate needs to come down. Replicas in sync, and followers that have caught up, are never held back.
//
// # Moving between log directories
//
// AlterLogDir makes a future log in another directory (KIP-113), which a mover fills from the partition's own, with a quota of its
// own. When it has everything the controller is told of the new directory (KIP-858); when that has answered, and the future log
// has everything again, it takes the place of the partition's log while no append is under way. A restart goes on with it. A move
// ends when the new directory fails, when another is asked for, or with the replica; the controller is told then where the
// replica still is, if it may know otherwise.
//
// # Waiting
//
// Two kinds of request wait on a partition. A produce with acks=all waits until the high watermark has passed its last
// record; such waits hang on the partition in offset order, so that completing one costs no more than looking at the first. A
// fetch that found too little waits on all of its partitions at once: a follower's for bytes that are appended, a consumer's for
// bytes that are committed; it reads again once there can be enough. Both are bounded by a timer of their own, and both are woken
// when the partition is led by somebody else, or anew. A produce is refused then (NOT_LEADER_OR_FOLLOWER): its records may be cut
// off, and a high watermark of another leader epoch says nothing of them.
//
// # Invariants
//
//   - The high watermark of a leader is at most the smallest end offset among the replicas that are in the ISR or may be by now
//     (the maximal ISR, KIP-497), and stays where it is while the ISR is smaller than min.insync.replicas (KIP-966).
//   - The high watermark goes back only when the log is cut.
//   - A follower is let into the ISR only with all that is committed, by this leader and by those before, and by what its present
//     life has fetched (KIP-903).
//   - An append, a leader's or a follower's, happens wholly within one leader epoch: it changes only while no append is under way
//     (Partition.mu).
//   - A request is answered exactly once, whoever of appender, timer and role change comes first.
//
// The second level of internal/simtest holds them against crashes, lost records, late messages, false fencing and failing disks. For
// it a Manager can be driven on one goroutine in virtual time (Options.OneThread, Options.AfterFunc).
//
// # Concurrency
//
// Everything exported is safe for concurrent use. Locks are taken in the order Manager.publishMu or fetchLoop.turnMu,
// Partition.mu, Partition.stMu, the log's, Partition.waitMu; fetchers.mu, isrChanges.mu, moves.mu and the quotas' are leaves. No
// callback runs under a Partition's. A consumer's reads take none: they go by the role's and the log's atomic values.
package replica
