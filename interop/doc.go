// Package interop tests gregor against the real Apache Kafka 4.4.0 and against the public clients.
//
// It is a Go module of its own, so that gregor's go.mod lists what the product needs and no more. `make interop` at the root of
// the repository installs what is missing (scripts/setup-interop) and runs these tests; a test whose peer is not installed
// fails and says how to get it.
//
//	clients_test.go       every client writes and reads 100,000 records in every codec, and goes on as a member of a group
//	groups_test.go        members of consumer groups (KIP-848) come, go and change; a group is taken over with its members
//	streams_*.go          Kafka Streams counts words with both protocols; streams groups (KIP-1071), their answers, records and tool
//	                      beside Kafka's; such a group is taken over
//	differential_*.go     thousands of requests, each API in each version, asked of gregor and Kafka; the answers are compared
//	tools_test.go         Kafka's command-line tools print the same against both
//	disk_test.go          the two take turns on one data directory, after clean stops and after kill -9
//	crash_test.go         kill -9 a hundred times under load
//	hostile_test.go       bombs, lies, garbage and slowness cost neither memory nor life
//	quorum/               metadata quorums with voters of both kinds
//
// Packages kafka and node start and stop the real Kafka and gregor's binary, wire sends single requests without a client's
// opinions, content has the records that all clients write. java/ and python/ hold the programs that drive those clients.
package interop
