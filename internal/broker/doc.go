// Package broker answers the requests of a broker's listener.
//
// Broker.Handle is called by the network on a connection's goroutine. It finds the handler of the API in one table
// (dispatch.go), which is also what ApiVersions advertises: an API without a handler does not exist. There is one file an API
// family; what a handler decides on lies elsewhere: the metadata image for everything that reads the cluster, the replica
// manager for records, the group coordinator for groups, the controller for changes of the cluster.
//
// # Paths
//
// Produce and Fetch have codecs of their own (package api) and do no work per record. Produce appends to each partition, tells
// those who wait on them, and replies, or parks the reply until the high watermark has passed (acks=all). Fetch reads file
// ranges without copying them, and parks when it found too little. All others go through kmsg messages and the adapters
// answer, which replies at once, and later, which is handed a function to reply with.
//
// # Rules
//
//   - A handler never blocks. What has to wait is parked with whoever will end the wait.
//   - A request that cannot be decoded closes its connection, as in Kafka; one that can is answered with Kafka's code, in
//     Kafka's order of checks.
//   - A panic in a handler costs the connection, not the node.
package broker
