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
// # Checkers
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
//	make sim                                                     many seeds, and all mutants
//
// Not simulated: produce and fetch of topics (internal/replica has its own simulation), groups, sockets and their framing,
// metadata log segments that age, bits that rot on a disk.
package simtest
