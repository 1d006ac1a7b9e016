package raft

import "gregor/internal/message"

// Listener is told of what the quorum has committed. Its methods are called on a goroutine that the Node keeps for this
// listener alone, one call at a time, and may take their time: others are not held up, and nothing is lost.
//
// A new listener first gets the latest snapshot, if there is one, and then every committed batch after it. It gets another
// snapshot when it has fallen behind the log's start.
type Listener interface {
	// HandleCommit hands over one committed batch. The records are shared by all listeners and must not be changed.
	// Control batches are handed over with Records nil, so that the listener knows the offset it has reached.
	HandleCommit(b CommittedBatch)
	// HandleSnapshot replaces all that was handed over before by a snapshot. The reader is valid during the call.
	HandleSnapshot(r *SnapshotReader)
	// HandleLeaderChange says that leader or epoch changed. A new leader's own listener is told that it leads only after all
	// the batches before its epoch were handed over, so that it may start to decide at once; and that it does no longer, before
	// any batch that was committed since, also when it leads a later epoch by then. Other changes may be passed over when the
	// listener takes its time.
	HandleLeaderChange(l LeaderAndEpoch)
	// BeginShutdown says that the node is stopping; it is the last call.
	BeginShutdown()
}

// CommittedBatch is a record batch below the high watermark.
type CommittedBatch struct {
	BaseOffset int64
	LastOffset int64
	Epoch      int32
	AppendTime int64 // ms since 1970, the leader's clock
	Bytes      int   // size in the log
	Records    []message.Versioned
}
