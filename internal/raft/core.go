package raft

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Role is a node's part in an epoch.
type Role uint8

const (
	// Unattached knows no leader, or one that it can't reach; it looks for one, and a voter starts an election after a while.
	Unattached Role = iota
	// Prospective asks the voters whether they would vote for it, without raising the epoch (KIP-996).
	Prospective
	// Candidate has raised the epoch, voted for itself and asks for votes.
	Candidate
	// Leader was elected by a majority of the voters.
	Leader
	// Follower fetches from a leader that it knows.
	Follower
	// Resigned was the leader of this epoch and is no longer, because it stepped down or was restarted.
	Resigned
)

var roleNames = [...]string{"unattached", "prospective", "candidate", "leader", "follower", "resigned"}

func (r Role) String() string { return roleNames[r] }

// CoreConfig is what a Core is made of.
type CoreConfig struct {
	NodeID        int32
	ReplicaKey    ReplicaKey // of this node
	ClusterID     string
	CanVote       bool       // has the controller role
	Listener      string     // name of the listener by which the nodes of the quorum talk to each other
	Endpoints     []Endpoint // where this node is reached
	KRaftVersions VersionRange
	StaticVoters  VoterSet
	Bootstrap     []Peer // ids negative and distinct

	ElectionTimeout, ElectionBackoffMax, FetchTimeout, RequestTimeout, RetryBackoff time.Duration

	FetchMaxWait          time.Duration
	FetchMaxBytes         int32
	FetchSnapshotMaxBytes int32
	AutoJoin              bool
}

// Core decides. Feed it with Step; see Event and Effect. It is not safe for concurrent use.
type Core struct {
	cfg CoreConfig
	rng *rand.Rand
	log *slog.Logger

	view logView

	role            Role
	epoch           int32
	leader          int32
	leaderEndpoints []Endpoint
	voted           ReplicaKey
	// hw is the high watermark, -1 while unknown. A new leader forgets it: until a majority has the epoch's first record it
	// cannot be sure to be ahead of what an earlier leader exposed.
	hw int64
	// committed is the highest high watermark that this node has ever known; it never falls.
	committed int64

	// electionDeadline ends the role of a voter that is unattached, prospective, candidate or resigned; zero is never.
	electionDeadline time.Time
	votes            map[int32]bool // nominee: the answers so far, own vote included
	absent           map[int32]bool // nominee: voters that refused connections since it asks for votes
	hurried          bool           // nominee: the election ends sooner, since it can't be won
	follow           followState
	lead             *leaderState // nil unless Leader
	unacked          map[int32]bool
	successors       []ReplicaKey
	shutdown         bool
	evidence         int // breaks of the leader's connection since the last successful fetch

	peers       map[int32]*peer
	correlation uint64

	out         []Effect
	deadline    time.Time
	started     bool
	persisted   *ElectionState // what quorum-state says, nil when there is no such file
	unpersisted bool           // it has to be written before the next effect
	// told is what LeaderChanged said last.
	told LeaderChanged
}

// followState is what a follower keeps for as long as it follows one leader in one epoch.
type followState struct {
	fetchDeadline  time.Time
	updateDeadline time.Time // when to look again whether the voter set has to be told about this node
	fetched        bool      // fetched from this leader with success
	toldLeader     bool      // kraft.version 0: told this leader about endpoints and versions
	download       *download
	busy           bool // an AppendFetched, StoreChunk or InstallSnapshot is under way
	incoming       []fetchedBatch
	pendingHW      int64 // the leader's high watermark, to be taken once incoming is stored
}

// fetchedBatch is a batch on its way to the log.
type fetchedBatch struct {
	base, last int64
	epoch      int32
	control    []controlRecord
}

type download struct {
	id          OffsetAndEpoch
	size, total int64 // what is there and what there is
}

// NewCore makes a core. Its first event must be Started.
func NewCore(cfg CoreConfig, rng *rand.Rand, log *slog.Logger) *Core {
	return &Core{cfg: cfg, rng: rng, log: log, leader: NoLeader, voted: NoVote, hw: -1, peers: map[int32]*peer{}}
}

// Step takes an event and returns what is to be done, in order. The slice is good until the next Step.
func (c *Core) Step(now time.Time, ev Event) []Effect {
	c.out = c.out[:0]
	if s, ok := ev.(Started); ok {
		c.start(now, s)
	} else if !c.started {
		panic(fmt.Sprintf("raft: %T before Started", ev))
	}
	switch ev := ev.(type) {
	case Requested:
		c.request(now, ev)
	case Responded:
		c.responded(now, ev)
	case Written:
		c.written(now, ev)
	case Stored:
		c.stored(now, ev)
	case Synced:
		c.synced(now, ev.End)
	case SnapshotTaken:
		c.view.addSnapshot(ev.ID)
		c.view.forgetControlBefore(ev.ID.Offset)
	case ChunkStored:
		c.chunkStored(now, ev)
	case SnapshotStored:
		c.snapshotStored(now, ev)
	case LogTrimmed:
		c.view.trim(ev.Start)
	case PeerLost:
		c.peerLost(now, ev.ID)
	case ResignAsked:
		if c.role == Leader && c.epoch == ev.Epoch {
			c.log.Info("asked to resign", "leader_epoch", ev.Epoch)
			c.lead.resign = true
		}
	case UpgradeAsked:
		c.upgrade(now, ev)
	case ShutdownAsked:
		c.shutdown = true
	case snapshotAsked:
		c.snapshotAsked(ev)
	}
	c.poll(now)
	c.tellLeader()
	c.flushElection()
	return c.out
}

func (c *Core) emit(e Effect) {
	c.flushElection()
	c.out = append(c.out, e)
}

// Deadline is when the next Ticked is due at the latest; zero is never.
func (c *Core) Deadline() time.Time { return c.deadline }

// Role, LeaderAndEpoch, HighWatermark, Voters, KRaftVersion and EndOffset tell the present state.
func (c *Core) Role() Role { return c.role }

// LeaderAndEpoch is the leader as far as known.
func (c *Core) LeaderAndEpoch() LeaderAndEpoch { return LeaderAndEpoch{c.leader, c.epoch} }

// HighWatermark is -1 while it is not known.
func (c *Core) HighWatermark() int64 { return c.hw }

// Voters is the set in force.
func (c *Core) Voters() VoterSet { return c.view.lastVoters() }

// KRaftVersion is the version in force.
func (c *Core) KRaftVersion() int16 { return c.view.lastVersion() }

// LeaderEndpoints are those of the leader, as far as known.
func (c *Core) LeaderEndpoints() []Endpoint { return c.leaderEndpoints }

// mayLeave says whether the node may stop without harm to the others, after ShutdownAsked: it doesn't lead, and if it did, the
// others know that it does no more.
func (c *Core) mayLeave() bool {
	return c.shutdown && c.role != Leader && (c.role != Resigned || len(c.unacked) == 0)
}

// snapshotAsked checks that a snapshot's id names a committed record of this log.
func (c *Core) snapshotAsked(ev snapshotAsked) {
	id := ev.id
	switch kind, _ := c.view.validate(id.Offset, id.Epoch); {
	case id.Offset < c.view.start || c.view.hasSnapshot(id):
		ev.done(false, nil, 0, nil)
	case id.Offset > c.committed:
		ev.done(false, fmt.Errorf("raft: snapshot %s lies above the high watermark %d", id, c.committed), 0, nil)
	case kind != positionValid:
		ev.done(false, fmt.Errorf("raft: snapshot %s is not a point of the log, which begins at %d and ends at %s", id, c.view.start, c.view.endPoint()), 0, nil)
	default:
		ev.done(true, nil, c.view.versionAt(id.Offset-1), c.view.votersAt(id.Offset-1))
	}
}

// isVoter says whether this node is a voter in force.
func (c *Core) isVoter() bool { return c.cfg.CanVote && c.view.lastVoters().Has(c.cfg.ReplicaKey) }

// mayStand says whether this node may stand for election: as a voter in force, or as one of the set before as long as the
// newer set is not known to be committed. Without the latter a leader that writes its own removal and restarts before anybody
// has the record could block the quorum: it would not stand, and the others have shorter logs than it (Ongaro's thesis, 4.2.2).
// Its own vote counts only where it is in the set.
//
// Differs from Kafka, where such a quorum stays without a leader.
func (c *Core) mayStand() bool {
	if c.isVoter() {
		return true
	}
	at, ok := c.view.lastVotersOffset()
	return ok && c.cfg.CanVote && at >= c.committed && c.view.votersAt(at-1).Has(c.cfg.ReplicaKey)
}

// Election is what quorum-state says, or is about to.
func (c *Core) Election() ElectionState {
	return ElectionState{Epoch: c.epoch, LeaderID: c.leader, Voted: c.voted}
}

// persist has the election state written before anything else that this step has done from now on. Memory already has it.
// Several changes in a row, as when a lone voter elects itself, are written as one: what was in between bound nobody.
func (c *Core) persist() { c.unpersisted = true }

// flushElection emits the write that persist asked for, unless the file says just that.
func (c *Core) flushElection() {
	if !c.unpersisted {
		return
	}
	c.unpersisted = false
	if c.persisted != nil && *c.persisted == c.Election() {
		return
	}
	e := c.Election()
	c.persisted = &e
	c.out = append(c.out, PersistElection{State: e, Version: c.view.lastVersion(), Voters: c.view.lastVoters()})
}

func (c *Core) randomElectionTimeout() time.Duration {
	if c.cfg.ElectionTimeout <= 0 {
		return 0
	}
	return c.cfg.ElectionTimeout + time.Duration(c.rng.Int64N(int64(c.cfg.ElectionTimeout)))
}

// start takes up the role that the disk tells of.
func (c *Core) start(now time.Time, s Started) {
	if c.started {
		panic("raft: Started twice")
	}
	c.started = true
	c.view = newLogView(s.Log, c.cfg.StaticVoters)
	if snap, ok := c.view.latestSnapshot(); ok {
		c.committed = snap.Offset // what is in a snapshot was committed
	}
	for _, p := range c.cfg.Bootstrap {
		c.peers[p.ID] = &peer{Peer: p}
	}
	e := ElectionState{LeaderID: NoLeader, Voted: NoVote}
	if s.Election != nil {
		e = *s.Election
		c.persisted = s.Election
	}
	logEpoch := c.view.lastEpoch()
	if s.Election == nil && logEpoch > 0 {
		c.log.Warn("quorum-state is missing, taking the epoch from the log", "leader_epoch", logEpoch)
	}
	c.epoch, c.voted = e.Epoch, e.Voted
	self := c.cfg.ReplicaKey
	switch {
	case e.Epoch < logEpoch:
		if s.Election != nil {
			c.log.Warn("quorum-state has an older epoch than the log", "quorum_state", e.Epoch, "log", logEpoch)
		}
		c.epoch, c.voted = logEpoch, NoVote
		c.becomeUnattached(now, logEpoch, NoLeader, NoVote, c.randomElectionTimeout())
	case e.LeaderID == self.ID && c.cfg.CanVote:
		// It led this epoch before it stopped. It must not lead it again: what it hadn't synced is lost, and an offset and
		// epoch must never name two records. Nor may it vote in it.
		c.leader, c.leaderEndpoints = self.ID, c.cfg.Endpoints
		c.role = Resigned
		c.voted = NoVote
		c.unacked, c.successors = nil, nil
		c.electionDeadline = now.Add(c.randomElectionTimeout())
		c.persist()
		c.log.Info("was the leader before the restart", "leader_epoch", c.epoch)
	case e.IsVotedCandidate(self) && !e.HasLeader() && c.isVoter():
		// It may ask again for the votes of this epoch, in which it has voted for itself.
		c.becomeCandidateAgain(now)
	case e.HasLeader():
		endpoints := c.endpointsOf(e.LeaderID)
		if _, ok := endpoint(endpoints, c.cfg.Listener); ok && e.LeaderID != self.ID {
			c.becomeFollower(now, e.Epoch, e.LeaderID, endpoints)
		} else {
			c.becomeUnattached(now, e.Epoch, e.LeaderID, e.Voted, c.randomElectionTimeout())
		}
	default:
		c.becomeUnattached(now, e.Epoch, NoLeader, e.Voted, c.randomElectionTimeout())
	}
	// A lone voter has nobody to wait for.
	if c.isVoter() && c.view.lastVoters().IsOnly(self) && c.role != Candidate && c.role != Leader {
		c.becomeProspective(now)
	}
}

// endpointsOf looks a voter's endpoints up in the voter set.
func (c *Core) endpointsOf(id int32) []Endpoint {
	if v, ok := c.view.lastVoters().Get(id); ok {
		return v.Endpoints
	}
	return nil
}

// poll does what is due by now and what the present role wants done, and finds out when to be called again.
func (c *Core) poll(now time.Time) {
	for range 16 {
		before, epoch := c.role, c.epoch
		c.deadline = time.Time{}
		switch c.role {
		case Unattached:
			c.pollUnattached(now)
		case Prospective, Candidate:
			c.pollNominee(now)
		case Leader:
			c.pollLeader(now)
		case Follower:
			c.pollFollower(now)
		case Resigned:
			c.pollResigned(now)
		}
		if c.role == before && c.epoch == epoch {
			return
		}
	}
	// A role changes a few times in a row at most; more would be a loop, which is better left to the next tick.
	c.wakeAt(now.Add(time.Millisecond))
}

// wakeAt makes the deadline no later than t.
func (c *Core) wakeAt(t time.Time) {
	if !t.IsZero() && (c.deadline.IsZero() || t.Before(c.deadline)) {
		c.deadline = t
	}
}

func (c *Core) pollUnattached(now time.Time) {
	if c.mayStand() && !c.shutdown {
		if c.electionDeadline.IsZero() { // it was an observer when it became unattached
			c.electionDeadline = now.Add(c.randomElectionTimeout())
		}
		if !now.Before(c.electionDeadline) || c.view.lastVoters().IsOnly(c.cfg.ReplicaKey) {
			c.becomeProspective(now)
			return
		}
		c.wakeAt(c.electionDeadline)
	}
	if !c.shutdown {
		c.fetchFromBootstrap(now)
	}
}

func (c *Core) pollResigned(now time.Time) {
	for _, id := range sortedKeys(c.unacked) {
		v, ok := c.view.lastVoters().Get(id)
		if !ok {
			delete(c.unacked, id)
			continue
		}
		if p := c.voterPeer(v); p != nil {
			c.trySend(now, p, func() kmsg.Request { return c.endQuorumEpochRequest() })
		}
	}
	if c.shutdown {
		return
	}
	if !now.Before(c.electionDeadline) {
		// The epoch rises so that nobody is told any more that this node leads it, and so that this node cannot come to
		// follow itself.
		c.unattachedIn(now, c.epoch+1, NoLeader)
		return
	}
	c.wakeAt(c.electionDeadline)
	if c.unacked == nil {
		// It led before a restart, and others may lead by now: who asks need not wait until they tell.
		c.fetchFromBootstrap(now)
	}
}

// becomeUnattached goes on in an epoch without a leader to follow. timeout is how long a voter waits before it stands.
func (c *Core) becomeUnattached(now time.Time, epoch, leader int32, voted ReplicaKey, timeout time.Duration) {
	c.leave()
	c.transition(Unattached, epoch, leader, nil, voted)
	c.electionDeadline = time.Time{}
	if c.mayStand() {
		c.electionDeadline = now.Add(timeout)
	}
	c.persist()
	c.resetPeers()
}

// unattachedIn is becomeUnattached for an epoch that was heard of. A voter that was waiting for an election goes on waiting
// no longer than before: candidates that keep raising the epoch and can't win must not keep others from standing.
func (c *Core) unattachedIn(now time.Time, epoch, leader int32) {
	timeout := c.randomElectionTimeout()
	switch c.role {
	case Unattached, Prospective, Candidate, Resigned:
		if !c.electionDeadline.IsZero() && !(c.role == Prospective && c.votesLost()) {
			timeout = max(0, c.electionDeadline.Sub(now))
		}
	}
	voted := NoVote
	if epoch == c.epoch {
		voted = c.voted
	}
	c.becomeUnattached(now, epoch, leader, voted, timeout)
}

// becomeProspective starts a pre-vote. Nothing is persisted, since nothing of it binds anybody.
func (c *Core) becomeProspective(now time.Time) {
	endpoints := c.leaderEndpoints
	c.leave()
	voted := c.voted
	c.transition(Prospective, c.epoch, c.leader, endpoints, voted)
	c.electionDeadline = now.Add(c.randomElectionTimeout())
	c.openVotes()
	c.resetPeers()
	c.maybeWin(now)
}

// becomeCandidate raises the epoch and votes for itself.
func (c *Core) becomeCandidate(now time.Time) {
	c.leave()
	c.transition(Candidate, c.epoch+1, NoLeader, nil, c.cfg.ReplicaKey)
	c.campaign(now)
}

// becomeCandidateAgain takes a candidacy up again after a restart.
func (c *Core) becomeCandidateAgain(now time.Time) {
	c.transition(Candidate, c.epoch, NoLeader, nil, c.cfg.ReplicaKey)
	c.campaign(now)
}

func (c *Core) campaign(now time.Time) {
	c.persist()
	c.electionDeadline = now.Add(c.randomElectionTimeout())
	c.openVotes()
	c.resetPeers()
	c.maybeWin(now)
}

// becomeFollower follows a leader whose endpoints are known.
func (c *Core) becomeFollower(now time.Time, epoch, leader int32, endpoints []Endpoint) {
	if leader == c.cfg.NodeID {
		panic(fmt.Sprintf("raft: node %d would follow itself in epoch %d", leader, epoch))
	}
	voted := NoVote
	if epoch == c.epoch {
		voted = c.voted // a vote binds for the whole epoch
	}
	c.leave()
	c.transition(Follower, epoch, leader, endpoints, voted)
	c.follow = followState{
		fetchDeadline:  now.Add(c.cfg.FetchTimeout),
		updateDeadline: now.Add(c.cfg.FetchTimeout),
		pendingHW:      -1,
	}
	c.electionDeadline = time.Time{}
	c.persist()
	c.resetPeers()
}

// transition changes the role in memory.
func (c *Core) transition(role Role, epoch, leader int32, endpoints []Endpoint, voted ReplicaKey) {
	if epoch < c.epoch {
		panic(fmt.Sprintf("raft: epoch would fall from %d to %d", c.epoch, epoch))
	}
	if c.role != role || c.epoch != epoch || c.leader != leader {
		c.log.Info("quorum role", "from", c.role.String(), "to", role.String(), "leader_epoch", epoch, "leader", leader)
	}
	c.role, c.epoch, c.leader, c.leaderEndpoints, c.voted = role, epoch, leader, endpoints, voted
}

// leave ends what belongs to the present role.
func (c *Core) leave() {
	switch c.role {
	case Leader:
		c.stopLeading()
	case Follower:
		if c.follow.download != nil {
			c.emit(DropDownload{})
		}
		c.follow = followState{}
	}
	c.votes, c.absent, c.hurried, c.unacked, c.successors = nil, nil, false, nil, nil
}

// tellLeader reports a change of leader or epoch. A resigned leader is not reported as the leader.
func (c *Core) tellLeader() {
	t := LeaderChanged{LeaderAndEpoch: c.LeaderAndEpoch(), EpochStart: -1}
	switch c.role {
	case Leader:
		t.EpochStart = c.lead.epochStart
	case Resigned:
		t.LeaderID = NoLeader
	}
	if t != c.told {
		c.told = t
		c.emit(t)
	}
}

func sortedKeys[V any](m map[int32]V) []int32 {
	keys := make([]int32, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
