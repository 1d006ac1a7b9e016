// Package group is the group coordinator: membership of classic and consumer groups and the offsets that groups commit, as a
// state machine on the runtime of package coordinator, with Kafka's own records in __consumer_offsets.
//
// Coordinator is the door: a method for each request, which finds the partition of the group, runs the core there and
// answers when what the answer rests on is committed. core is the state machine of one partition. It is pure: it is told the
// time and the cluster's metadata, it writes by returning records, it answers by calling what it was given. What may take
// long (looking through all topics for a regular expression) it hands out as a job, whose outcome comes back as an operation.
//
// Groups come in kinds. classicGroup is the protocol of JoinGroup and SyncGroup, whose members elect a leader that
// assigns, and also the "simple" group that only stores offsets. Its membership is soft; what is stored is the outcome of a
// rebalance. consumerGroup is that of KIP-848, whose members send one kind of heartbeat and whose every detail is a record.
// streamsGroup is the like of it for Kafka Streams (KIP-1071). shareGroup keeps the records of share groups, so that such groups are
// listed, and their records handed on or removed as they should be.
//
// # Consumer groups
//
// Three epochs tell where a consumer group is. The group epoch rises when an input of the assignment changes: members, what they
// read, topics. An assignor (assignor.go) then computes the target of every member for that epoch, at most once in the group's
// assignment interval. Each member goes towards its target by itself (reconcile.go) and has the epoch of the last target that
// it has got partitions of: it is told to give partitions up, says that it did, and takes what others have given up. A partition
// has one owner at any time, from the moment that a member is told to take it until it says that it has given it up.
//
// Members of the classic protocol may be in a consumer group (mixed.go), which is how a group with members changes its protocol
// (migrate.go): it becomes a consumer group when the first member of the new kind joins, and a classic group when the
// last one has left.
//
// # Streams groups
//
// The members of a streams group say what they compute, and the coordinator decides what that needs (streams_topology.go): how many
// tasks there are, and which internal topics, whose creation is the broker's business. Tasks are assigned (streams_assignor.go) and
// handed over (streams_reconcile.go) much as partitions are in consumer groups, but in roles, and with regard to processes, whose
// members share a directory. As in Kafka 4.4, warm-up tasks are stored and never assigned.
//
// Invariants: all timeline state (which groups there are, all offsets, groups of the other kinds) changes in Replay alone, except
// that JoinGroup enters a new classic group at once, and an empty or left group becomes a classic one at once, and their records have
// Applied set, and that a heartbeat of a streams group notes what its topology means at present; a member is answered exactly once for each request; what is kept of a request is copied; iteration that can be
// seen outside is in an order that only the requests decide; what lies on the timeline as a value (members, partitions) is
// immutable.
//
// KIPs: 62 (rebalance timeout), 134 (initial delay), 211 (expiry of offsets), 229 (DeleteGroups), 345 (static members),
// 389 (maximum size), 394 (MEMBER_ID_REQUIRED), 447 (pending offsets), 496 (OffsetDelete), 518 (ListGroups by state),
// 709 (several groups in OffsetFetch), 800 (reasons), 814 (skipped assignment), 848 (consumer groups), 1043 (group ids that aren't
// there), 1071 (streams groups), 1082 (member ids made by clients), 1101 (metadata hash), 1263 (assignment interval), 1357 (names of
// task assignors).
package group
