// Command bench measures gregor and the real Apache Kafka 4.4.0 side by side, on this machine alone: the same workloads in
// alternating rounds, from the same client, with the logs on the same disk. It writes a table of medians (RESULTS.md), with what
// the machine itself needs for the same bytes beside it, and every single figure (results.tsv).
//
//	bench/run              # everything, RESULTS.md and results.tsv in this directory
//	bench/run -quick       # a look whether all of it works: few bytes, one round, prints the table only
//	bench/run -only '^cluster' -rounds 2 -many-rounds 0 -out DIR      # three nodes that replicate, without the rest
//	bench/run -servers gregor -only 'produce|fetch' -profile /tmp/p   # gregor alone, with a CPU profile of each workload
//
// # How it measures
//
// The figure that counts is the CPU time of the whole server process (user and system, /proc/PID/stat) for the work done: on a
// small machine client and server share the cores, and a rate says how they shared them. So the client is as lean as it can be:
// blocking sockets, requests encoded before the clock starts, fetched batches stepped over by their headers. What all else on the
// machine used meanwhile is noted beside every figure (others_cpu).
//
// A workload that fills the page cache holds as much memory beforehand and gives it back as the server writes: on virtual
// machines whose host takes free memory back, the first touch of a page costs many times a write to the page cache, at random.
// See ballast.go. Before every workload what was written before is synced, and the machine given time to become quiet.
//
// # Files
//
// main.go is the plan of a run, server.go starts and stops servers, wire.go is the client's connection, one file for each kind of
// workload, limits.go what the machine can do without a server, report.go the table.
package main
