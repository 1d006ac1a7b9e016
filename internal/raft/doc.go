// Package raft is KRaft: the replicated log of cluster metadata, topic __cluster_metadata, partition 0.
//
// It is Raft turned round (KIP-595): followers fetch, and a fetch at offset N says that all before N is stored and synced.
// Pre-vote (KIP-996) asks before an epoch is raised; voters may be fixed by configuration (kraft.version 0) or kept in the
// log itself and changed one at a time (KIP-853, kraft.version 1). Snapshots (KIP-630) replace the log's head.
//
// # Parts
//
//   - Core decides. It is a pure state machine: events in, effects out, in the order in which they must be done. It has no
//     goroutine, clock or I/O, and draws randomness only from the generator that it is given.
//   - store does what effects ask of the disk: the log, quorum-state, snapshots.
//   - Node drives them: one goroutine with a mailbox and a timer, one goroutine that syncs the log, one for each Listener.
//   - Manual is a Node without goroutines, which simulations move on.
//   - The bootstrap snapshot that formatting leaves is written by WriteBootstrapSnapshot.
//
// # Invariants
//
//   - Durable before visible: a change of (epoch, leader, vote) is in quorum-state, synced, before any message tells of it.
//   - A node never votes twice in an epoch, and never leads an epoch in which it had already led before a restart.
//   - Offsets below the high watermark never change, and it never falls while the node runs.
//   - The high watermark of a leader's epoch is unknown until a majority holds the epoch's first record.
//   - Voters in force are those of the last KRaftVoters record in the log, committed or not; at most one change is under way.
//   - A listener sees each committed record once, in order, after at most one snapshot at the start or after a gap.
//
// # Tests
//
// testdata/*.txt are traces of the core, one file a subject, that read as a description of the protocol; internal/simtest drives
// whole clusters through faults from a seed and breaks this package's rules to prove its checkers; golden and damaged
// directories of Kafka's are opened as Kafka opens them.
//
// KIPs: 595 (the quorum), 630 (snapshots), 853 (voters in the log), 996 (pre-vote), 1166 (the follower's high watermark in a
// fetch), 1186 (joining by itself). Kafka's classes are KafkaRaftClient, QuorumState, LeaderState, KafkaRaftLog.
//
// # Concurrency
//
// All methods of Node are safe for concurrent use. Core and store belong to whoever drives them.
package raft
