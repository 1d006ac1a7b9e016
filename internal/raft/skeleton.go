package raft

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
)

var errSkeleton = errors.New("raft: not implemented yet")

// Transport carries requests to other nodes; see transport.go.
type Transport interface{}

// Node drives one replica of the metadata log.
type Node struct{}

// Open opens or makes the log, recovers it, and starts the node. A lone voter leads when Open returns.
func Open(ctx context.Context, o Options) (*Node, error) { return nil, errSkeleton }

// Register starts to tell l of what is committed, from the latest snapshot on.
func (n *Node) Register(l Listener) {}

// Unregister stops telling l; when it returns, no call to l is under way.
func (n *Node) Unregister(l Listener) {}

// Append appends records as one batch: they are committed together or not at all. It returns the offset of the last one at
// once; the records are not yet written, let alone committed. Records must not be changed afterwards. It fails with
// NOT_LEADER_OR_FOLLOWER unless this node leads in epoch.
func (n *Node) Append(epoch int32, records []message.Versioned) (lastOffset int64, err error) {
	return 0, errSkeleton
}

// PrepareAppend is Append, but nothing is written before SchedulePreparedAppend: the caller learns the offsets first, applies
// the records to its own state, and only then lets them go.
func (n *Node) PrepareAppend(epoch int32, records []message.Versioned) (lastOffset int64, err error) {
	return 0, errSkeleton
}

// SchedulePreparedAppend lets all that was prepared be written.
func (n *Node) SchedulePreparedAppend() {}

// Resign gives up leadership of epoch; no error when the node leads no longer.
func (n *Node) Resign(epoch int32) {}

// NodeID is the node's id.
func (n *Node) NodeID() int32 { return 0 }

// LeaderAndEpoch is what the node knows at the moment.
func (n *Node) LeaderAndEpoch() LeaderAndEpoch { return LeaderAndEpoch{NoLeader, 0} }

// HighWatermark is the offset below which everything is committed, -1 as long as that is not known.
func (n *Node) HighWatermark() int64 { return -1 }

// LogEndOffset is the offset of the next record.
func (n *Node) LogEndOffset() int64 { return 0 }

// LogStartOffset is the first offset in the log.
func (n *Node) LogStartOffset() int64 { return 0 }

// Voters is the set of voters in force.
func (n *Node) Voters() VoterSet { return nil }

// LeaderEndpoint is where to reach the leader by a controller listener's name; ok is false while that is not known.
func (n *Node) LeaderEndpoint(listener string) (e Endpoint, ok bool) { return }

// KRaftVersion is the level of the feature kraft.version in force.
func (n *Node) KRaftVersion() int16 { return 0 }

// UpgradeKRaftVersion raises the feature kraft.version, as UpdateFeatures asks for. It returns the offset that must be
// committed, -1 when there was nothing to do.
func (n *Node) UpgradeKRaftVersion(epoch int32, version int16, validateOnly bool) (offset int64, err error) {
	return -1, errSkeleton
}

// CreateSnapshot begins a snapshot of all records before id.Offset, the last of which has epoch id.Epoch. The writer is nil
// without an error when there is no need: a snapshot of that id exists, or the log begins after it.
func (n *Node) CreateSnapshot(id OffsetAndEpoch, lastContainedLogTime int64) (*SnapshotWriter, error) {
	return nil, errSkeleton
}

// LatestSnapshot opens the newest snapshot; nil without an error when there is none. The caller closes it.
func (n *Node) LatestSnapshot() (*SnapshotReader, error) { return nil, errSkeleton }

// LatestSnapshotID names the newest snapshot.
func (n *Node) LatestSnapshotID() (id OffsetAndEpoch, ok bool) { return }

// HandleRequest answers Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch (of the metadata log), FetchSnapshot, DescribeQuorum,
// AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter. It returns at once; reply is called once, from any goroutine.
func (n *Node) HandleRequest(from RequestContext, req kmsg.Request, reply func(kmsg.Response)) {}

// Shutdown stops the node: a leader resigns and tells the others, listeners are told and waited for, the log is synced and
// closed. It returns ctx's error when that takes too long; the node is stopped in any case.
func (n *Node) Shutdown(ctx context.Context) error { return errSkeleton }

// SnapshotReader reads one snapshot.
type SnapshotReader struct{}

// ID is the snapshot's id.
func (r *SnapshotReader) ID() OffsetAndEpoch { return OffsetAndEpoch{} }

// LastContainedLogTime is the append time of the last record inside, ms.
func (r *SnapshotReader) LastContainedLogTime() int64 { return 0 }

// Next returns the records of the next batch, checked; io.EOF after the last one. Control records are not handed out.
func (r *SnapshotReader) Next() ([]message.Versioned, error) { return nil, errSkeleton }

// Bytes is the size of the snapshot.
func (r *SnapshotReader) Bytes() int64 { return 0 }

// Close lets go of the file.
func (r *SnapshotReader) Close() error { return nil }

// SnapshotWriter writes one snapshot. It belongs to one goroutine.
type SnapshotWriter struct{}

// ID is the snapshot's id.
func (w *SnapshotWriter) ID() OffsetAndEpoch { return OffsetAndEpoch{} }

// Append adds records.
func (w *SnapshotWriter) Append(records []message.Versioned) error { return errSkeleton }

// Freeze finishes the snapshot: it is synced, made read-only and put in place.
func (w *SnapshotWriter) Freeze() error { return errSkeleton }

// Close drops the snapshot unless it is frozen.
func (w *SnapshotWriter) Close() error { return nil }

// WriteBootstrapSnapshot writes the snapshot 0-0 that formatting leaves in dir/__cluster_metadata-0: the control records for
// kraftVersion and, at version 1, voters (which may be empty on a node that will join later), and the records given.
func WriteBootstrapSnapshot(o BootstrapOptions) error { return errSkeleton }

// ReadBootstrapRecords returns the records of the snapshot 0-0, or else those of the bootstrap.checkpoint that older versions
// left in dir; found is false when there is neither.
func ReadBootstrapRecords(o BootstrapOptions) (records []message.Versioned, found bool, err error) {
	return nil, false, errSkeleton
}
