package metadata

import "gregor/internal/raft"

// RaftListener feeds a loader from the quorum: register it with a raft.Node. The node calls it on a goroutine of its own, on
// which publishers then run.
type RaftListener struct {
	Loader *Loader
}

var _ raft.Listener = RaftListener{}

// HandleCommit implements raft.Listener.
func (l RaftListener) HandleCommit(b raft.CommittedBatch) { l.Loader.HandleCommit(Batch(b)) }

// HandleSnapshot implements raft.Listener. A snapshot that can't be read goes to the loader's OnFault.
func (l RaftListener) HandleSnapshot(r *raft.SnapshotReader) {
	id := r.ID()
	_ = l.Loader.HandleSnapshot(id.Offset, id.Epoch, r.LastContainedLogTime(), r)
}

// HandleLeaderChange implements raft.Listener.
func (l RaftListener) HandleLeaderChange(leader raft.LeaderAndEpoch) {
	l.Loader.HandleLeaderChange(LeaderAndEpoch(leader))
}

// BeginShutdown implements raft.Listener.
func (l RaftListener) BeginShutdown() { l.Loader.Close() }

// CreateRaftSnapshot is the Create of SnapshotOptions that writes to the snapshots of a raft.Node.
func CreateRaftSnapshot(n *raft.Node) func(endOffset int64, epoch int32, lastContainedLogTime int64) (SnapshotSink, error) {
	return func(endOffset int64, epoch int32, lastContainedLogTime int64) (SnapshotSink, error) {
		w, err := n.CreateSnapshot(raft.OffsetAndEpoch{Offset: endOffset, Epoch: epoch}, lastContainedLogTime)
		if err != nil || w == nil {
			return nil, err // not a nil pointer in an interface that isn't nil
		}
		return w, nil
	}
}
