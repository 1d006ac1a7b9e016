// Package quorum tests clusters in which gregor and the real Kafka 4.4.0 sit side by side: their metadata quorums, and replication.
//
//	mixed_test.go       each kind leads, is killed, comes back by log and by snapshot, beside the other
//	membership_test.go  voters are added and removed across kinds, join by themselves, and move into the log
//	replace_test.go     a Kafka quorum becomes gregor's node by node on the same directories, and goes back
//	replication_test.go brokers of both kinds replicate from each other, are killed under load, and end with the same bytes
//	moveover_test.go    a whole Kafka cluster becomes gregor's under load, with clients in Go and Java, and goes back
//	divergence_test.go  logs part and are cut by leader epochs, the ISR shrinks and expands, with each kind as leader
//	reassign_test.go    replicas move between the kinds under load, with a controller of each
//	storm_test.go       nodes of gregor killed, frozen and cut off under load; QUORUM_ROUNDS=200 for a long one
//	tools_test.go       Kafka's tools get the same answers whichever kind is the controller and whichever the broker
//	moves_test.go       Kafka's tools get the same answers of three brokers of either kind while replicas move and leaders change
//	content_test.go     Kafka's tools read what gregor wrote; large snapshots; logs whose head is dropped
//	chaos_test.go       nodes of both kinds killed, stopped, frozen and wiped in random order
//
// cluster_test.go starts and stops the nodes of a cluster, churn_test.go creates and deletes topics all along and knows which
// must be there. load_test.go and java_test.go produce and consume all along, and know what must be at each offset. mesh_test.go
// puts doors before the nodes' listeners, where what one says to another can be cut. At the end compare_test.go compares the
// directories of all nodes: logs byte for byte, and every snapshot with what the log before it says.
package quorum
