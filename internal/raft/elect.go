package raft

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/uuid"
)

// openVotes begins to count votes, with its own.
func (c *Core) openVotes() {
	c.votes, c.absent, c.hurried = map[int32]bool{c.cfg.NodeID: true}, make(map[int32]bool), false
}

// votesWon and votesLost say whether the nominee has a majority of the voters in force, or can't get one any more.
func (c *Core) votesWon() bool { return c.countVotes(true) >= c.view.lastVoters().Majority() }
func (c *Core) votesLost() bool {
	voters := c.view.lastVoters()
	return len(voters)-c.countVotes(false) < voters.Majority()
}

func (c *Core) countVotes(granted bool) int {
	n := 0
	for _, v := range c.view.lastVoters() {
		if g, ok := c.votes[v.ID]; ok && g == granted {
			n++
		}
	}
	return n
}

// hurry ends an election soon, and another one may begin, when it can't be won for now: some have denied their votes and too many
// of the others refuse connections. So it is when two of three see their leader die, stand in the same moment and deny each other
// their votes. The time left is random, and longer each time. As long as nobody denies a vote those who are not there may yet come
// and grant theirs.
//
// Differs from Kafka, where the election times out (controller.quorum.election.timeout.ms).
func (c *Core) hurry(now time.Time) {
	denied := c.countVotes(false)
	if denied == 0 || c.hurried || c.role != Candidate && c.role != Prospective {
		return
	}
	voters, absent := c.view.lastVoters(), 0
	for _, v := range voters {
		if _, answered := c.votes[v.ID]; !answered && c.absent[v.ID] {
			absent++
		}
	}
	if absent == 0 || len(voters)-denied-absent >= voters.Majority() {
		return
	}
	c.hurried = true
	if at := c.afterEvidence(now); at.Before(c.electionDeadline) {
		c.log.Info("the election can't be won now", "leader_epoch", c.epoch, "denied", denied, "absent", absent, "ends_in", at.Sub(now))
		c.electionDeadline = at
	}
}

// maybeWin takes the next step when a majority has granted its votes.
func (c *Core) maybeWin(now time.Time) {
	if !c.votesWon() {
		return
	}
	switch c.role {
	case Prospective:
		c.becomeCandidate(now)
	case Candidate:
		c.becomeLeader(now)
	}
}

// afterLostPreVote goes back to the leader that it knows, or waits for the next try.
func (c *Core) afterLostPreVote(now time.Time) {
	if _, ok := endpoint(c.leaderEndpoints, c.cfg.Listener); ok && c.leader >= 0 && c.leader != c.cfg.NodeID {
		c.becomeFollower(now, c.epoch, c.leader, c.leaderEndpoints)
		return
	}
	c.unattachedIn(now, c.epoch, c.leader)
}

func (c *Core) pollNominee(now time.Time) {
	if !c.mayStand() { // removed from the voters in the meantime
		c.unattachedIn(now, c.epoch, c.leader)
		return
	}
	if !c.shutdown {
		if !now.Before(c.electionDeadline) {
			if c.role == Candidate {
				c.log.Info("election not won in time", "leader_epoch", c.epoch)
				c.becomeProspective(now)
			} else {
				c.afterLostPreVote(now)
			}
			return
		}
		c.wakeAt(c.electionDeadline)
	}
	// A nominee that can't win any more waits for its time to run out: the others that may stand get their chance.
	if c.votesLost() {
		return
	}
	for _, v := range c.view.lastVoters() {
		if _, answered := c.votes[v.ID]; answered {
			continue
		}
		if p := c.voterPeer(v); p != nil {
			c.trySend(now, p, func() kmsg.Request { return c.voteRequest(v.ReplicaKey) })
		}
	}
}

func (c *Core) voteRequest(to ReplicaKey) *kmsg.VoteRequest {
	end := c.view.endPoint()
	r := kmsg.NewPtrVoteRequest()
	r.Version = 2
	r.ClusterID = &c.cfg.ClusterID
	r.VoterID = to.ID
	r.Topics = []kmsg.VoteRequestTopic{{Topic: TopicName, Partitions: []kmsg.VoteRequestTopicPartition{{
		CandidateEpoch:       c.epoch,
		CandidateID:          c.cfg.NodeID,
		CandidateDirectoryID: c.cfg.ReplicaKey.DirectoryID,
		VoterDirectoryID:     to.DirectoryID,
		LastOffsetEpoch:      end.Epoch,
		LastOffset:           end.Offset,
		PreVote:              c.role == Prospective,
	}}}}
	return r
}

// handleVote answers a request for a vote or a pre-vote.
func (c *Core) handleVote(now time.Time, ev Requested, r *kmsg.VoteRequest) {
	resp := r.ResponseKind().(*kmsg.VoteResponse)
	resp.Version = r.Version
	if !c.validCluster(r.ClusterID) {
		resp.ErrorCode = codeInconsistentClusterID
		c.emit(Reply{ev.ID, resp})
		return
	}
	if len(r.Topics) != 1 || r.Topics[0].Topic != TopicName || len(r.Topics[0].Partitions) != 1 || r.Topics[0].Partitions[0].Partition != 0 {
		resp.ErrorCode = codeInvalidRequest
		c.emit(Reply{ev.ID, resp})
		return
	}
	code, granted := c.vote(now, r, &r.Topics[0].Partitions[0])
	resp.Topics = []kmsg.VoteResponseTopic{{Topic: TopicName, Partitions: []kmsg.VoteResponseTopicPartition{{
		ErrorCode: code, LeaderID: c.leader, LeaderEpoch: c.epoch, VoteGranted: granted,
	}}}}
	if e, ok := c.leaderEndpointFor(ev.Listener); ok && r.Version >= 1 {
		resp.NodeEndpoints = []kmsg.VoteResponseNodeEndpoint{{NodeID: c.leader, Host: e.Host, Port: e.Port}}
	}
	c.emit(Reply{ev.ID, resp})
}

func (c *Core) vote(now time.Time, r *kmsg.VoteRequest, p *kmsg.VoteRequestTopicPartition) (code int16, granted bool) {
	preVote := p.PreVote && r.Version >= 2
	// A candidate has raised the epoch above all it ever heard of, its log included. A prospective has not: its log may
	// hold records of the epoch.
	illegal := p.LastOffsetEpoch >= p.CandidateEpoch
	if preVote {
		illegal = p.LastOffsetEpoch > p.CandidateEpoch
	}
	if p.LastOffset < 0 || p.LastOffsetEpoch < 0 || illegal {
		return codeInvalidRequest, false
	}
	if code := c.validateVoterRequest(p.CandidateID, p.CandidateEpoch); code != 0 {
		return code, false
	}
	if p.CandidateEpoch > c.epoch {
		c.unattachedIn(now, p.CandidateEpoch, NoLeader)
	}
	if r.Version >= 1 && !c.isAddressedTo(r.VoterID, p.VoterDirectoryID) {
		return codeInvalidVoterKey, false
	}
	candidate := ReplicaKey{p.CandidateID, p.CandidateDirectoryID}
	upToDate := OffsetAndEpoch{p.LastOffset, p.LastOffsetEpoch}.Compare(c.view.endPoint()) >= 0
	granted = c.canGrant(candidate, upToDate, preVote)
	switch {
	case granted && !preVote && c.voted.ID < 0:
		c.grant(now, candidate)
	case granted && c.role == Follower && c.evidence > 0:
		// Both have seen the leader go, and this one was slower: it doesn't stand as well, unless nothing comes of it.
		if at := now.Add(evidenceDelay + time.Duration(c.rng.Int64N(int64(evidenceDelay)))); at.After(c.follow.fetchDeadline) {
			c.follow.fetchDeadline = at
		}
	}
	c.log.Info("vote asked for", "candidate", candidate.String(), "leader_epoch", p.CandidateEpoch, "pre_vote", preVote, "granted", granted)
	return 0, granted
}

// canGrant is the vote rule. A vote goes to a log that is not behind, at most once in an epoch, and not once the leader of the
// epoch is known. A pre-vote binds nobody and asks only for the log, but a follower that hears its leader denies it: there is
// no need for an election.
func (c *Core) canGrant(candidate ReplicaKey, upToDate, preVote bool) bool {
	switch c.role {
	case Unattached, Prospective:
		switch {
		case preVote:
			return upToDate
		case c.voted.ID >= 0:
			return c.voted.ID == candidate.ID && (c.voted.DirectoryID == uuid.Zero || c.voted.DirectoryID == candidate.DirectoryID)
		case c.leader >= 0:
			return false
		}
		return upToDate
	case Follower:
		return preVote && upToDate && !c.follow.fetched
	case Candidate, Resigned:
		return preVote && upToDate
	}
	return false
}

// grant remembers a vote for good, and gives the candidate time to win: it has at least as good a chance as this node.
func (c *Core) grant(now time.Time, candidate ReplicaKey) {
	c.voted = candidate
	c.electionDeadline = now.Add(c.randomElectionTimeout())
	if c.role == Prospective {
		c.openVotes()
	}
	c.persist()
}

// voteAnswered counts an answer.
func (c *Core) voteAnswered(now time.Time, p *peer, r *kmsg.VoteResponse) bool {
	if r.ErrorCode == codeUnsupportedVersion && c.role == Prospective {
		// A voter that knows no pre-vote would never grant one: stand without.
		c.becomeCandidate(now)
		return true
	}
	if r.ErrorCode != 0 {
		return c.unexpected(p, "Vote", r.ErrorCode)
	}
	if len(r.Topics) != 1 || r.Topics[0].Topic != TopicName || len(r.Topics[0].Partitions) != 1 {
		return false
	}
	t := r.Topics[0].Partitions[0]
	var endpoints []Endpoint
	for _, n := range r.NodeEndpoints {
		if n.NodeID == t.LeaderID {
			endpoints = []Endpoint{{c.cfg.Listener, n.Host, n.Port}}
		}
	}
	if done, ok := c.common(now, t.ErrorCode, t.LeaderID, t.LeaderEpoch, endpoints); done {
		return ok
	}
	if t.ErrorCode != 0 {
		return c.unexpected(p, "Vote", t.ErrorCode)
	}
	if c.role != Prospective && c.role != Candidate {
		return true
	}
	if _, isVoter := c.view.lastVoters().Get(p.ID); !isVoter {
		return true
	}
	c.votes[p.ID] = t.VoteGranted
	if t.VoteGranted {
		c.maybeWin(now)
	} else if c.role == Prospective && c.votesLost() {
		c.afterLostPreVote(now)
	} else {
		c.hurry(now)
	}
	return true
}
