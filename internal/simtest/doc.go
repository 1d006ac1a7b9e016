// Package simtest drives whole clusters through faults, from a seed. It has tests only.
//
// # Level 1
//
// A cluster of 1 to 7 voters and some observers runs on one goroutine in virtual time (sim.Loop). A node is what it is in a
// process, less the goroutines: the raft core with its storage (raft.Manual, on the storage engine, on a simulated disk), the
// controller core, the metadata loader. Nodes with the broker role have an actor that registers, sends heartbeats, changes
// ISRs; a client creates and deletes topics, changes settings, reassigns. Messages are lost, late, repeated and overtake each
// other; links fail in one direction; processes die, and the disk forgets what was not synced or keeps pieces of it, fills up,
// fails; clocks run at different rates; voters come and go; snapshots are made, fetched, and the log cut behind them.
//
// Then the faults end. A leader must be found within bounded time, commit, and serve; every node must come to the same image.
//
// # Level 2
//
// To such a quorum belong brokers with data: the lifecycle's core, the replica manager and the log manager as they are in a process,
// on log directories of their own, one or two a broker. Producers, idempotent or not, write with acks=all and acks=1; consumers read
// from leaders and followers; an administrator makes topics, moves partitions, elects leaders, deletes topics and makes them anew, and
// has brokers stop in order. Processes are killed and keep what they had written, also in the middle of an operation; power fails,
// and what was not synced is lost or torn; processes freeze; links are cut; directories fail, disks are full, machines are replaced.
// Eligible leader replicas and unclean elections are on or off.
//
// Then the faults end, and within bounded time every partition must take a write, have all replicas in its ISR, and all its logs
// be equal.
//
// ledger keeps the books, and says precisely when records may be lost. It checks after every step of a broker
//
//   - what some broker has shown below its high watermark stays as it is, and every member of the ISR and of the eligible leader
//     replicas has it, or has lost it in a power failure
//   - it is on as many replicas as min.insync.replicas asks for; what is acknowledged with acks=all is part of it
//   - equal (offset, leader epoch) means equal batches and equal batches before, in whatever log
//   - consumers are given nothing else, and no end of the log below what an earlier leader told of
//   - the high watermark of a replica goes back only with its log, that of a leader never
//   - in a log a producer's batches stand once each and in order
//   - a process that is killed comes back with all that it had
//
// # Checkers of the quorum
//
// They look after every step, at what nodes hold and at what the reference says: a second loader and controller, which is
// given each batch when the first node knows that it is committed.
//
//   - an epoch has one leader; a voter votes once in an epoch, over restarts too
//   - equal (offset, epoch) means equal batches and equal batches before; a leader has everything that is committed
//   - what is committed stays, and stays as it is; a node's high watermark does not fall
//   - images are equal at equal offsets; so is what controllers hold
//   - a reply means that what it tells of is committed; nobody is answered twice
//   - after leadership was lost, a controller holds what the committed log says, and nothing else
//   - partitions, registrations and producer ids are what their rules allow, whatever came before
//
// Each rule that the checkers guard is broken once on purpose, and must be caught: TestMutationsAreCaught builds the package with
// the sources changed as the list of mutants says. Some take hundreds of seeds and run only when as many are asked for.
//
// # Use
//
//	go test ./internal/simtest                                   what CI runs
//	go test ./internal/simtest -run TestSeeds -seeds 100000      more
//	go test ./internal/simtest -run TestSeeds -seed 4711 -log    one seed again, with what happens
//	go test ./internal/simtest -run TestDataSeeds -data-seeds 10000, -seed 4711 -log
//	                                                             the same of the second level
//	make sim                                                     many seeds, and all mutants
//
// Not simulated: groups (internal/coordinator/group has its own simulation), sockets and their framing, retention and compaction,
// moves between log directories, metadata log segments that age, bits that rot on a disk.
package simtest
