// Package controller is the quorum controller: it decides what the metadata log says.
//
// # Shape
//
// [Core] decides. It is single-threaded and deterministic: it takes the time with each call, draws randomness only from
// what it was given, and does no I/O but to hand batches of records to a [Log]. A handler reads state and returns a
// [Result]: records, a response, and whether the records must be committed as one. It changes nothing. Only Replay
// changes state, and it is the same on the active controller, on a standby, and after a restart.
//
// The core replays a batch before it is committed, so that the next request sees its effect, and keeps the response
// until the batch's last offset is stable. When leadership is lost it goes back to the last stable offset (package
// timeline) and answers what waited with NOT_CONTROLLER.
//
// [Controller] drives a core: one goroutine, one mailbox, one timer; it is the raft.Listener of a controller node.
//
// State is cut into managers, a file each: cluster (brokers, controllers, heartbeats), replication (topics, partitions),
// configuration, features, client quotas, ACLs, SCRAM credentials, delegation tokens, producer ids.
//
// # Invariants
//
//   - State after offset N is a function of the records up to N, however they were come by.
//   - A response is sent only when everything that it tells of is committed, that is also true of one that reads.
//   - A decision that was taken back leaves no trace: not in state, not in an answer.
//   - A handler looks at all it needs before it returns records; it never replays, and Replay never refuses what a handler
//     made. If it does, the process must stop: memory and log would part.
//
// # Brokers that die
//
// A heartbeat counts from the moment it arrives. A session that runs out fences its broker, one at a time; a broker whose
// heartbeats' connection broke and whose addresses refuse is fenced at once (suspects.go). Refusals are evidence, silence is
// none. Another process may take a broker's id when the last one is fenced, its session over, or its connection gone and its
// addresses in the newcomer's hands.
//
// # Concurrency
//
// A Core belongs to one goroutine. All methods of Controller are safe for concurrent use and don't block; replies come
// on the controller's goroutine and must not block either.
//
// KIPs: 500 and 631 (the controller), 584 and 778 (features), 841 (fencing), 858 (log directories), 919 (controller
// registration), 868 (metadata transactions), 966 (eligible leader replicas), 1066 (cordoned directories).
package controller
