package raft

import (
	"encoding/json"
	"fmt"

	"gregor/internal/uuid"
)

// ElectionState is what a node must remember about elections: the epoch, the leader it knows of, the vote it gave.
type ElectionState struct {
	Epoch    int32
	LeaderID int32      // NoLeader when not known
	Voted    ReplicaKey // ID is -1 when the node has not voted in this epoch
}

// NoVote is the Voted of a node that has not voted.
var NoVote = ReplicaKey{ID: -1}

// HasVoted says whether the node has voted in this epoch.
func (e ElectionState) HasVoted() bool { return e.Voted.ID >= 0 }

// HasLeader says whether the leader is known.
func (e ElectionState) HasLeader() bool { return e.LeaderID >= 0 }

// IsVotedCandidate says whether the vote went to the replica. A vote without a directory id, as version 0 of the file has it,
// is a vote for the node.
func (e ElectionState) IsVotedCandidate(k ReplicaKey) bool {
	return e.HasVoted() && e.Voted.ID == k.ID && (e.Voted.DirectoryID == uuid.Zero || e.Voted.DirectoryID == k.DirectoryID)
}

func (e ElectionState) String() string {
	return fmt.Sprintf("epoch %d leader %d voted %s", e.Epoch, e.LeaderID, e.Voted)
}

// appendQuorumState appends the file quorum-state: one JSON object, no newline, fields in Kafka's order. kraft.version decides
// the version of the file, since a version 0 cluster may go back to a Kafka that knows only that one.
//
//	0: {"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],"data_version":0}
//	1: {"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}
func appendQuorumState(dst []byte, e ElectionState, kraftVersion int16, voters VoterSet) []byte {
	if kraftVersion >= 1 {
		return fmt.Appendf(dst, `{"leaderId":%d,"leaderEpoch":%d,"votedId":%d,"votedDirectoryId":"%s","data_version":1}`,
			e.LeaderID, e.Epoch, e.Voted.ID, e.Voted.DirectoryID)
	}
	dst = fmt.Appendf(dst, `{"clusterId":"","leaderId":%d,"leaderEpoch":%d,"votedId":%d,"appliedOffset":0,"currentVoters":[`,
		e.LeaderID, e.Epoch, e.Voted.ID)
	for i, v := range voters {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = fmt.Appendf(dst, `{"voterId":%d}`, v.ID)
	}
	return append(dst, `],"data_version":0}`...)
}

// parseQuorumState reads the file in either version. Fields that must be there and are not, and any other version, are errors:
// guessing at a vote could elect two leaders.
func parseQuorumState(data []byte) (ElectionState, error) {
	var f struct {
		DataVersion      *int16  `json:"data_version"`
		LeaderID         *int32  `json:"leaderId"`
		LeaderEpoch      *int32  `json:"leaderEpoch"`
		VotedID          *int32  `json:"votedId"`
		VotedDirectoryID *string `json:"votedDirectoryId"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return ElectionState{}, fmt.Errorf("raft: quorum-state is not JSON: %w", err)
	}
	switch {
	case f.DataVersion == nil:
		return ElectionState{}, fmt.Errorf("raft: quorum-state has no data_version")
	case *f.DataVersion < 0 || *f.DataVersion > 1:
		return ElectionState{}, fmt.Errorf("raft: quorum-state has data_version %d, want 0 or 1", *f.DataVersion)
	case f.LeaderID == nil || f.LeaderEpoch == nil || f.VotedID == nil:
		return ElectionState{}, fmt.Errorf("raft: quorum-state lacks leaderId, leaderEpoch or votedId")
	case *f.LeaderEpoch < 0 || *f.LeaderID < -1 || *f.VotedID < -1:
		return ElectionState{}, fmt.Errorf("raft: quorum-state has leaderId %d, leaderEpoch %d, votedId %d",
			*f.LeaderID, *f.LeaderEpoch, *f.VotedID)
	}
	e := ElectionState{Epoch: *f.LeaderEpoch, LeaderID: *f.LeaderID, Voted: ReplicaKey{ID: *f.VotedID}}
	if *f.DataVersion == 1 {
		if f.VotedDirectoryID == nil {
			return ElectionState{}, fmt.Errorf("raft: quorum-state lacks votedDirectoryId")
		}
		dir, err := uuid.Parse(*f.VotedDirectoryID)
		if err != nil {
			return ElectionState{}, fmt.Errorf("raft: quorum-state: votedDirectoryId: %w", err)
		}
		if e.HasVoted() {
			e.Voted.DirectoryID = dir
		}
	}
	return e, nil
}
