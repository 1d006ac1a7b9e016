package raft

import (
	"cmp"
	"fmt"

	"gregor/internal/uuid"
)

// TopicName is the topic of the metadata log; its only partition is 0.
const TopicName = "__cluster_metadata"

// DirName is the directory of the metadata log inside the metadata log dir.
const DirName = TopicName + "-0"

// NoLeader stands for an unknown leader.
const NoLeader int32 = -1

// OffsetAndEpoch names a point in the log: an offset and the epoch of the record before it. It is also a snapshot's id:
// the end offset (exclusive) and the epoch of the last record inside.
type OffsetAndEpoch struct {
	Offset int64
	Epoch  int32
}

// Compare orders points by epoch, then offset: the order of "whose log is further" in an election.
func (a OffsetAndEpoch) Compare(b OffsetAndEpoch) int {
	if c := cmp.Compare(a.Epoch, b.Epoch); c != 0 {
		return c
	}
	return cmp.Compare(a.Offset, b.Offset)
}

func (a OffsetAndEpoch) String() string { return fmt.Sprintf("%d@%d", a.Offset, a.Epoch) }

// LeaderAndEpoch is who leads the quorum in which epoch; LeaderID is NoLeader while that is not known.
type LeaderAndEpoch struct {
	LeaderID int32
	Epoch    int32
}

// IsLeader says whether node leads.
func (l LeaderAndEpoch) IsLeader(node int32) bool { return l.LeaderID == node && node >= 0 }

// ReplicaKey names a replica of the log: its node and the directory the log is in. A zero directory id means that it is not
// known, which is the case in a static quorum; such a key stands for any directory of the node.
type ReplicaKey struct {
	ID          int32
	DirectoryID uuid.UUID
}

func (k ReplicaKey) String() string {
	if k.DirectoryID == uuid.Zero {
		return fmt.Sprintf("%d", k.ID)
	}
	return fmt.Sprintf("%d:%s", k.ID, k.DirectoryID)
}

// Endpoint is one listener of a voter.
type Endpoint struct {
	Name string // listener name, such as CONTROLLER
	Host string
	Port uint16
}

func (e Endpoint) String() string { return fmt.Sprintf("%s://%s:%d", e.Name, e.Host, e.Port) }

// VersionRange is the span of a feature's versions that a node supports.
type VersionRange struct{ Min, Max int16 }

// KRaftVersions is the span of kraft.version that gregor supports.
var KRaftVersions = VersionRange{Min: 0, Max: 1}

// Voter is one member of the quorum.
type Voter struct {
	ReplicaKey
	Endpoints     []Endpoint
	KRaftVersions VersionRange
}
