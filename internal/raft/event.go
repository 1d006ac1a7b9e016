package raft

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
)

// Event is something that happened to a Core. Kinds: Started, Ticked, Requested, Responded, Written, Stored, Synced,
// SnapshotTaken, SnapshotStored, LogTrimmed, PeerLost, ResignAsked, UpgradeAsked, ShutdownAsked.
type Event interface{ event() }

type (
	// Started is the first event. It says what the disk holds.
	Started struct {
		Log      LogSummary
		Election *ElectionState // nil when there is no quorum-state
	}
	// Ticked says that time has passed; the core asks for it through Deadline.
	Ticked struct{}
	// Requested is a request from another node. It is answered through a Reply, ReplyRecords or ReplySnapshot with the
	// same ID, at once or later.
	Requested struct {
		ID       uint64
		Listener string // name of the listener that it came in on
		Request  kmsg.Request
	}
	// Responded is the answer to a Send, or the error with which it failed. Refused says that the peer reset or refused the
	// connection, which is evidence that its process is gone.
	Responded struct {
		Correlation uint64
		Response    kmsg.Response
		Err         error
		Refused     bool
	}
	// Written says that the leader's own batches are in the log (and may be read by others), but not yet synced.
	Written struct {
		Batches []WrittenBatch
	}
	// Stored answers AppendFetched: all is in the log, and synced when that was asked for. Failed says that the disk was
	// full and nothing was appended.
	Stored struct {
		Failed bool
	}
	// Synced says that the log is on disk up to End.
	Synced struct{ End int64 }
	// SnapshotTaken says that a snapshot of the committed state is in place.
	SnapshotTaken struct{ ID OffsetAndEpoch }
	// ChunkStored answers StoreChunk: the download holds Size bytes now.
	ChunkStored struct {
		ID   OffsetAndEpoch
		Size int64
	}
	// SnapshotStored answers InstallSnapshot: the downloaded snapshot is in place and the log begins anew at its end.
	SnapshotStored struct {
		// Failed says that the download was no good snapshot, and was dropped.
		Failed       bool
		ID           OffsetAndEpoch
		KRaftVersion int16
		Voters       VoterSet // nil when the snapshot has none
	}
	// LogTrimmed says that the log now begins at Start and that the snapshots before it are gone.
	LogTrimmed struct{ Start int64 }
	// PeerLost is evidence that a peer's process is gone: a connection to it was reset or refused.
	PeerLost struct{ ID int32 }
	// ResignAsked asks a leader of Epoch to step down.
	ResignAsked struct{ Epoch int32 }
	// UpgradeAsked asks the leader of Epoch to raise kraft.version. Done gets the offset of the last record of the change, -1
	// when there is none to make, or an error.
	UpgradeAsked struct {
		Epoch        int32
		Version      int16
		ValidateOnly bool
		Done         func(last int64, err error)
	}
	// ShutdownAsked asks the node to leave: a leader resigns and tells the others.
	ShutdownAsked struct{}
	// snapshotAsked asks whether a snapshot may be made of what is before a point, and for what its header has to say.
	snapshotAsked struct {
		id   OffsetAndEpoch
		done func(ok bool, err error, version int16, voters VoterSet)
	}
)

// WrittenBatch is one batch that the leader appended.
type WrittenBatch struct {
	Base, Last int64
	Epoch      int32
	Control    []message.Message // its control records, in order from Base on; nil for a data batch
}

// LogSummary is what a core has to know about the log at start.
type LogSummary struct {
	Start, End int64
	// Epochs are the epochs in the log with the offset at which each begins, in ascending order.
	Epochs []EpochStart
	// Snapshots are in ascending order.
	Snapshots []OffsetAndEpoch
	// Voters and Versions are what control records in the latest snapshot and in the log after it say, in ascending order
	// of offsets. What a snapshot says counts as said by its last record, at offset ID.Offset-1.
	Voters   []VotersAt
	Versions []VersionAt
}

// EpochStart is the offset of the first record of an epoch.
type EpochStart struct {
	Epoch int32
	Start int64
}

// VotersAt is a voter set that came into force with the record at Offset.
type VotersAt struct {
	Offset int64
	Set    VoterSet
}

// VersionAt is a kraft.version that came into force with the record at Offset.
type VersionAt struct {
	Offset  int64
	Version int16
}

func (Started) event()        {}
func (Ticked) event()         {}
func (Requested) event()      {}
func (Responded) event()      {}
func (Written) event()        {}
func (Stored) event()         {}
func (Synced) event()         {}
func (SnapshotTaken) event()  {}
func (ChunkStored) event()    {}
func (SnapshotStored) event() {}
func (LogTrimmed) event()     {}
func (PeerLost) event()       {}
func (ResignAsked) event()    {}
func (UpgradeAsked) event()   {}
func (ShutdownAsked) event()  {}
func (snapshotAsked) event()  {}

// Effect is something that a Core wants done. Effects are done in the order in which Step returned them, each completely
// before the next: that a changed election state is durable before a message tells of it follows from its place. Kinds:
// PersistElection, Send, Reply, ReplyRecords, ReplySnapshot, BecomeLeader, StopLeading, AppendControl, AppendFetched,
// Truncate, OpenDownload, StoreChunk, DropDownload, InstallSnapshot, Committed, LeaderChanged.
type Effect interface{ effect() }

type (
	// PersistElection writes quorum-state and syncs it.
	PersistElection struct {
		State   ElectionState
		Version int16    // kraft.version, which decides the file's version
		Voters  VoterSet // listed in version 0
	}
	// Send sends a request. A Responded with the Correlation must follow at some time, unless the answer is known not to be
	// wanted any more (a later Send to the same peer).
	Send struct {
		To          Peer
		Correlation uint64
		Request     kmsg.Request
		Timeout     time.Duration
	}
	// Reply answers a request.
	Reply struct {
		ID       uint64
		Response kmsg.Response
	}
	// ReplyRecords answers a fetch with log records from Offset on, at least one batch if there is one; they go into the
	// response's only partition.
	ReplyRecords struct {
		ID       uint64
		Response *kmsg.FetchResponse
		Offset   int64
		MaxBytes int32
	}
	// ReplySnapshot answers a FetchSnapshot with a piece of a snapshot, filling in size and bytes. When the snapshot is
	// gone, or Position lies outside, the answer is the error.
	ReplySnapshot struct {
		ID       uint64
		Response *kmsg.FetchSnapshotResponse
		Snapshot OffsetAndEpoch
		Position int64
		MaxBytes int32
	}
	// BecomeLeader opens the accumulator of an epoch at the log's end, with Control as the first batch.
	BecomeLeader struct {
		Epoch   int32
		Control []message.Message
	}
	// StopLeading closes the accumulator; what is not yet in the log is dropped.
	StopLeading struct{ Epoch int32 }
	// AppendControl appends a control batch as leader. Done, if any, is told its last offset at once. Written follows.
	AppendControl struct {
		Control []message.Message
		Done    func(last int64, err error)
	}
	// AppendFetched appends batches as they are and, if Sync, syncs them. Stored follows.
	AppendFetched struct {
		Batches []byte
		Sync    bool
	}
	// Truncate drops all records at and after Offset.
	Truncate struct{ Offset int64 }
	// OpenDownload begins a snapshot download.
	OpenDownload struct{ ID OffsetAndEpoch }
	// StoreChunk adds to the download. ChunkStored follows.
	StoreChunk struct{ Bytes []byte }
	// DropDownload gives the download up.
	DropDownload struct{}
	// InstallSnapshot checks and finishes the download, and restarts the log empty at its end. SnapshotStored follows.
	InstallSnapshot struct{ ID OffsetAndEpoch }
	// Committed says that the high watermark rose to Offset.
	Committed struct{ Offset int64 }
	// LeaderChanged says that leader or epoch changed. When this node leads, EpochStart is where its epoch begins, else -1.
	LeaderChanged struct {
		LeaderAndEpoch
		EpochStart int64
	}
)

// Peer is where a request goes. ID is negative for bootstrap servers, whose id is not known.
type Peer struct {
	ID   int32
	Host string
	Port uint16
}

func (PersistElection) effect() {}
func (Send) effect()            {}
func (Reply) effect()           {}
func (ReplyRecords) effect()    {}
func (ReplySnapshot) effect()   {}
func (BecomeLeader) effect()    {}
func (StopLeading) effect()     {}
func (AppendControl) effect()   {}
func (AppendFetched) effect()   {}
func (Truncate) effect()        {}
func (OpenDownload) effect()    {}
func (StoreChunk) effect()      {}
func (DropDownload) effect()    {}
func (InstallSnapshot) effect() {}
func (Committed) effect()       {}
func (LeaderChanged) effect()   {}
