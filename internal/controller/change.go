package controller

import (
	"slices"

	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// election says which replicas may become leader.
type election int8

const (
	// electOnline keeps a leader that may stay, else takes the first replica in the ISR (or, when that is empty, the ELR).
	electOnline election = iota
	// electPreferred takes the preferred replica if it may lead, else does as electOnline.
	electPreferred
	// electUnclean takes any live replica when no other way is left, at the price of what only others had.
	electUnclean
)

// change works out the record that brings a partition from what it is to what is wanted of it, with all that follows:
// a reassignment that completes, a new leader, eligible leader replicas, epochs.
//
// Kafka calls it PartitionChangeBuilder; the order of the steps in build matters and is the same.
type change struct {
	p          *partition
	topicID    uuid.UUID
	id         int32
	mv         metadata.Version
	withELR    bool // the feature eligible.leader.replicas.version is on
	minISR     int
	acceptable func(broker int32) bool // may it lead as far as its broker and directory go
	defaultDir func(broker int32) uuid.UUID

	// what is wanted; initially what is
	isr, replicas, removing, adding, elr []int32
	recovery                             int8
	election                             election
	// uncleanShutdown is a broker that may have lost what it had, or noLeader.
	uncleanShutdown int32
	// moved is a replica whose directory is set to movedTo, if hasMoved.
	moved    int32
	movedTo  uuid.UUID
	hasMoved bool
}

func (c *change) init() {
	p := c.p
	c.isr, c.replicas, c.removing, c.adding, c.elr = p.isr, p.replicas, p.removing, p.adding, p.elr
	c.recovery, c.election = p.recovery, electOnline
	c.uncleanShutdown = noLeader
}

// build returns the record, or false when nothing changes.
func (c *change) build() (message.Versioned, bool) {
	p := c.p
	r := message.NewPartitionChangeRecord()
	r.PartitionID, r.TopicID = c.id, c.topicID

	c.completeReassignment()
	c.fillELR()
	c.elect(r)

	// A follower that was taken out of the assignment must not go on fetching as if it were one.
	if r.Leader == noLeaderChange && !containsAll(c.replicas, p.replicas) {
		r.Leader = p.leader
	}

	cleanElection := r.ISR == nil
	if !cleanElection || !c.withELR {
		c.elr = nil
	}
	if !slices.Equal(c.elr, p.elr) {
		r.EligibleLeaderReplicas = nonNil(c.elr)
	}

	// With ELR the ISR may become empty; without it the last one stays named there.
	if r.ISR == nil && (len(c.isr) > 0 || c.withELR) && !slices.Equal(c.isr, p.isr) {
		r.ISR = nonNil(c.isr)
	}

	// Before 3.6-IV0 brokers missed an ISR shrink unless the leader epoch moved (KAFKA-15021).
	if !c.mv.SkipsEpochBumpOnShrink() && r.Leader == noLeaderChange && r.ISR != nil && !containsAll(r.ISR, p.isr) {
		r.Leader = p.leader
	}

	if c.withELR {
		switch {
		case r.Leader == noLeader && p.leader != noLeader && len(p.lastKnownELR) == 0:
			r.LastKnownELR = []int32{p.leader}
		case r.Leader >= 0 && len(p.lastKnownELR) > 0:
			r.LastKnownELR = []int32{}
		}
	}

	if len(c.replicas) > 0 {
		if c.mv.Directories() && (c.hasMoved || !sameSlice(c.replicas, p.replicas)) {
			if dirs := c.directories(); !slices.Equal(dirs, p.directories) {
				r.Directories = dirs
			}
		}
		if !slices.Equal(c.replicas, p.replicas) {
			r.Replicas = c.replicas
		}
	}
	if !slices.Equal(c.removing, p.removing) {
		r.RemovingReplicas = nonNil(c.removing)
	}
	if !slices.Equal(c.adding, p.adding) {
		r.AddingReplicas = nonNil(c.adding)
	}
	if c.recovery != p.recovery {
		r.LeaderRecoveryState = c.recovery
	}

	if r.ISR == nil && r.Leader == noLeaderChange && r.Replicas == nil && r.RemovingReplicas == nil && r.AddingReplicas == nil &&
		r.LeaderRecoveryState == noRecoveryChange && r.Directories == nil && r.EligibleLeaderReplicas == nil && r.LastKnownELR == nil {
		return message.Versioned{}, false
	}
	return message.Versioned{Message: r, Version: c.mv.PartitionRecordVersion()}, true
}

// completeReassignment drops the removed replicas once all that remain are in the ISR.
func (c *change) completeReassignment() {
	if len(c.removing) == 0 && len(c.adding) == 0 {
		return
	}
	isr, replicas := without(c.isr, c.removing...), without(c.replicas, c.removing...)
	if len(c.removing) > 0 && (len(isr) == 0 || len(replicas) == 0) {
		return
	}
	if !containsAll(isr, replicas) {
		return
	}
	c.isr, c.replicas, c.removing, c.adding = isr, replicas, nil, nil
}

// fillELR moves what leaves an ISR that is too small to the eligible leader replicas: they have everything that was
// acknowledged, because with fewer than min.insync.replicas nothing with acks=all is (KIP-966). A partition needs no more in-sync
// replicas than it has replicas, as its leader counts.
//
// Differs from Kafka, which goes by the number of replicas before the change, or of another partition, and keeps those eligible
// whom a reassignment has removed. Another one may bring them back without their records, and they would be elected.
func (c *change) fillELR() {
	if !c.withELR {
		return
	}
	if len(c.isr) >= min(c.minISR, len(c.replicas)) {
		c.elr = nil
		return
	}
	var elr []int32
	for _, candidates := range [][]int32{c.elr, c.p.isr} {
		for _, b := range candidates {
			if slices.Contains(c.replicas, b) && !slices.Contains(c.isr, b) && b != c.uncleanShutdown && !slices.Contains(elr, b) {
				elr = append(elr, b)
			}
		}
	}
	slices.Sort(elr)
	c.elr = elr
}

func (c *change) elect(r *message.PartitionChangeRecord) {
	leader, unclean := c.chooseLeader()
	if leader == c.p.leader {
		return
	}
	if leader != noLeader && slices.Contains(c.elr, leader) {
		c.isr = []int32{leader}
		c.elr = without(c.elr, leader)
	}
	r.Leader = leader
	if unclean {
		// Whatever only others had is gone: the ISR starts over with the new leader, and it must know.
		r.ISR = []int32{leader}
		if c.p.recovery != recovering {
			r.LeaderRecoveryState = recovering
		}
	}
}

func (c *change) chooseLeader() (leader int32, unclean bool) {
	if c.election == electPreferred && c.mayLead(c.replicas[0]) {
		return c.replicas[0], false
	}
	if c.mayLead(c.p.leader) {
		return c.p.leader, false
	}
	for _, b := range c.replicas {
		if c.mayLead(b) {
			return b, false
		}
	}
	// Nobody is left who surely has everything. The one who led last comes nearest.
	if last := c.p.lastKnownELR; c.withELR && len(c.elr) == 0 && len(c.isr) == 0 && len(last) == 1 && c.acceptable(last[0]) {
		return last[0], true
	}
	if c.election == electUnclean {
		for _, b := range c.replicas {
			if c.acceptable(b) {
				return b, true
			}
		}
	}
	return noLeader, false
}

func (c *change) mayLead(b int32) bool {
	return (slices.Contains(c.isr, b) || len(c.isr) == 0 && slices.Contains(c.elr, b)) && c.acceptable(b)
}

// directories lists the directory of each wanted replica: those that stay keep theirs.
func (c *change) directories() []uuid.UUID {
	dirs := make([]uuid.UUID, len(c.replicas))
	for i, b := range c.replicas {
		switch dir, ok := c.p.directory(b); {
		case c.hasMoved && b == c.moved:
			dirs[i] = c.movedTo
		case ok:
			dirs[i] = dir
		default:
			dirs[i] = c.defaultDir(b)
		}
	}
	return dirs
}

// reassignment is how a partition gets from its replicas to others: the wanted ones come first, then those to remove.
func reassignment(current, target []int32) (replicas, removing, adding []int32) {
	removing, adding = without(current, target...), without(target, current...)
	slices.Sort(removing)
	slices.Sort(adding)
	return append(slices.Clone(target), removing...), removing, adding
}

// revertReassignment is how a partition gets back: replicas that were being added go, those being removed stay. When the
// ISR has only replicas that go, the first that stays takes over; that is an unclean election.
func revertReassignment(p *partition) (replicas, isr []int32, unclean bool) {
	replicas, isr = without(p.replicas, p.adding...), without(p.isr, p.adding...)
	if len(isr) == 0 && len(replicas) > 0 {
		return replicas, []int32{replicas[0]}, true
	}
	return replicas, isr, false
}
