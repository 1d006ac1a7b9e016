package controller

import (
	"fmt"
	"slices"

	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

const (
	noLeader       int32 = -1
	noLeaderChange int32 = -2

	recovered        int8 = 0
	recovering       int8 = 1
	noRecoveryChange int8 = -1
)

// partition is the state of one partition. It is never changed, only replaced; slices may be shared with the record that
// it came from and with its predecessor.
type partition struct {
	replicas     []int32
	directories  []uuid.UUID // of each replica, in order
	isr          []int32
	removing     []int32
	adding       []int32
	elr          []int32
	lastKnownELR []int32

	leader         int32
	leaderEpoch    int32
	partitionEpoch int32
	recovery       int8
}

func newPartition(r *message.PartitionRecord) (*partition, error) {
	p := &partition{
		replicas: r.Replicas, directories: r.Directories, isr: r.ISR, removing: r.RemovingReplicas, adding: r.AddingReplicas,
		elr: r.EligibleLeaderReplicas, lastKnownELR: r.LastKnownELR,
		leader: r.Leader, leaderEpoch: r.LeaderEpoch, partitionEpoch: r.PartitionEpoch, recovery: r.LeaderRecoveryState,
	}
	return p, p.fillDirectories()
}

// apply returns what becomes of p by a change record.
func (p *partition) apply(r *message.PartitionChangeRecord) (*partition, error) {
	n := *p
	n.partitionEpoch++
	if r.Replicas != nil {
		n.replicas = r.Replicas
	}
	if r.Directories != nil {
		n.directories = r.Directories
	}
	if r.ISR != nil {
		n.isr = r.ISR
	}
	if r.RemovingReplicas != nil {
		n.removing = r.RemovingReplicas
	}
	if r.AddingReplicas != nil {
		n.adding = r.AddingReplicas
	}
	if r.EligibleLeaderReplicas != nil {
		n.elr = r.EligibleLeaderReplicas
	}
	if r.LastKnownELR != nil {
		n.lastKnownELR = r.LastKnownELR
	}
	if r.Leader != noLeaderChange {
		n.leader = r.Leader
		n.leaderEpoch++
	}
	if r.LeaderRecoveryState != noRecoveryChange {
		n.recovery = r.LeaderRecoveryState
	}
	return &n, n.fillDirectories()
}

// fillDirectories gives a partition of before KIP-858 directories that say so, one a replica.
func (p *partition) fillDirectories() error {
	if len(p.directories) == len(p.replicas) {
		return nil
	}
	if slices.ContainsFunc(p.directories, func(d uuid.UUID) bool { return d != uuid.Zero }) {
		return fmt.Errorf("%d directories for %d replicas", len(p.directories), len(p.replicas))
	}
	p.directories = make([]uuid.UUID, len(p.replicas))
	return nil
}

func (p *partition) hasLeader() bool { return p.leader != noLeader }

// preferred is the replica that should lead.
func (p *partition) preferred() int32 {
	if len(p.replicas) == 0 {
		return noLeader
	}
	return p.replicas[0]
}

func (p *partition) hasPreferredLeader() bool { return p.leader == p.preferred() }
func (p *partition) reassigning() bool        { return len(p.removing) > 0 || len(p.adding) > 0 }

// directory is where a replica is kept; ok is false if the broker has none.
func (p *partition) directory(broker int32) (dir uuid.UUID, ok bool) {
	if i := slices.Index(p.replicas, broker); i >= 0 {
		return p.directories[i], true
	}
	return uuid.Zero, false
}

// record writes the partition out for a metadata.version. withELR is whether that feature is on.
func (p *partition) record(topicID uuid.UUID, id int32, mv metadata.Version, withELR bool) message.Versioned {
	r := message.NewPartitionRecord()
	r.PartitionID, r.TopicID = id, topicID
	r.Replicas, r.ISR, r.RemovingReplicas, r.AddingReplicas = p.replicas, p.isr, p.removing, p.adding
	r.Leader, r.LeaderEpoch, r.PartitionEpoch, r.LeaderRecoveryState = p.leader, p.leaderEpoch, p.partitionEpoch, p.recovery
	if withELR && mv.ELRRecords() {
		// Both are tagged: left out unless they say something.
		if len(p.elr) > 0 {
			r.EligibleLeaderReplicas = p.elr
		}
		if len(p.lastKnownELR) > 0 {
			r.LastKnownELR = p.lastKnownELR
		}
	}
	if mv.Directories() {
		r.Directories = p.directories
	}
	return message.Versioned{Message: r, Version: mv.PartitionRecordVersion()}
}

func without(s []int32, drop ...int32) []int32 {
	out := make([]int32, 0, len(s))
	for _, v := range s {
		if !slices.Contains(drop, v) {
			out = append(out, v)
		}
	}
	return out
}

func containsAll(s, subset []int32) bool {
	for _, v := range subset {
		if !slices.Contains(s, v) {
			return false
		}
	}
	return true
}

func hasDuplicates(s []int32) bool {
	for i, v := range s {
		if slices.Contains(s[i+1:], v) {
			return true
		}
	}
	return false
}

// nonNil makes an empty list out of nil: in a change record nil says "as before".
func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
