// Package group is the group coordinator: membership of classic groups and the offsets that groups commit, as a state machine
// on the runtime of package coordinator, with Kafka's own records in __consumer_offsets.
//
// Coordinator is the door: a method for each request, which finds the partition of the group, runs the core there and
// answers when what the answer rests on is committed. core is the state machine of one partition. It is pure: it is told the
// time, it writes by returning records, it answers by calling what it was given.
//
// Groups come in kinds. classicGroup is the protocol of JoinGroup and SyncGroup, whose members elect a leader that
// assigns, and also the "simple" group that only stores offsets. Its membership is soft; what is stored is the outcome of a
// rebalance. modernGroup stands for consumer, share and streams groups, whose every detail is a record: it keeps them all, so
// that such groups are listed, their offsets served and guarded, and their records handed on or removed as they should be.
//
// Invariants: all timeline state (which groups there are, all offsets, modern groups) changes in Replay alone, except
// that JoinGroup enters a new classic group at once and writes its record with Applied set; a member is answered exactly
// once for each request; what is kept of a request is copied; iteration that can be seen outside is in an order that only
// the requests decide.
//
// KIPs: 62 (rebalance timeout), 134 (initial delay), 211 (expiry of offsets), 229 (DeleteGroups), 345 (static members),
// 389 (maximum size), 394 (MEMBER_ID_REQUIRED), 447 (pending offsets), 496 (OffsetDelete), 518 and 848 (ListGroups by state and type),
// 709 (several groups in OffsetFetch), 800 (reasons), 814 (skipped assignment), 1043 (group ids that aren't there).
package group
