package raft

import (
	"cmp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
	"gregor/internal/uuid"
)

// observerSession is how long a leader remembers an observer that fetches no more.
const observerSession = 5 * time.Minute

// caughtUpWindow is how recently a replica must have fetched, and once have been caught up, to be added to the voters.
const caughtUpWindow = time.Hour

// leaderState is what a leader keeps for its epoch.
type leaderState struct {
	epochStart int64
	voters     map[int32]*replicaState
	observers  map[ReplicaKey]*replicaState

	checkQuorumAt time.Time      // when to resign unless a majority has fetched before
	heard         map[int32]bool // voters that fetched since checkQuorumAt was set
	alone         bool           // this leader was the only voter when it was polled last
	beginAt       time.Time      // when to look again whom to tell of the epoch

	resign bool
	parked []parkedFetch

	add    *addVoter
	remove *removeVoter
	update *updateVoter
	// changing is set from the moment that a control batch with voters or kraft.version is handed to the accumulator until
	// it is in the log; the voters in force are about to change.
	changing bool
	// upgraded holds what static voters told about themselves at kraft.version 0, for the upgrade.
	known map[int32]Voter
}

// replicaState is what a leader knows of a replica.
type replicaState struct {
	key               ReplicaKey
	end               int64 // -1 when not known
	lastFetch         time.Time
	lastCaughtUp      time.Time
	endAtLastFetch    int64 // the leader's end at the last fetch, -1 when none
	acknowledgesEpoch bool  // has fetched, or answered BeginQuorumEpoch
}

func newReplicaState(k ReplicaKey) *replicaState {
	return &replicaState{key: k, end: -1, endAtLastFetch: -1}
}

// matches says whether the state is that of the replica; a voter whose directory is not known matches by its id.
func (r *replicaState) matches(k ReplicaKey) bool {
	return r.key.ID == k.ID && (r.key.DirectoryID == uuid.Zero || r.key.DirectoryID == k.DirectoryID)
}

// parkedFetch is a fetch that waits for records or for the high watermark to move.
type parkedFetch struct {
	ev      Requested
	until   time.Time
	offset  int64
	hw      int64 // the follower's
	knowsHW bool  // it says what high watermark it has, so that it's worth an answer when that moves
	replica ReplicaKey
}

func (c *Core) becomeLeader(now time.Time) {
	var granting []int32
	for _, id := range sortedKeys(c.votes) {
		if c.votes[id] {
			granting = append(granting, id)
		}
	}
	voters := c.view.lastVoters()
	c.leave()
	c.transition(Leader, c.epoch, c.cfg.NodeID, c.cfg.Endpoints, NoVote)
	c.persist()
	c.hw = -1
	c.lead = &leaderState{
		epochStart: c.view.end,
		voters:     map[int32]*replicaState{},
		observers:  map[ReplicaKey]*replicaState{},
		heard:      map[int32]bool{},
		beginAt:    now,
		known:      map[int32]Voter{},
	}
	c.lead.checkQuorumAt = now.Add(c.checkQuorumTimeout())
	c.refreshReplicas()
	if r := c.replicaState(c.cfg.ReplicaKey); r != nil {
		r.end, r.acknowledgesEpoch = c.view.synced, true
	}
	c.electionDeadline = time.Time{}
	c.resetPeers()
	c.emit(BecomeLeader{Epoch: c.epoch, Control: c.epochStartRecords(voters, granting)})
}

// epochStartRecords are the control records that begin an epoch. Where voters are kept in the log they are written by the very
// first leader, which has them from the bootstrap snapshot only, and by any leader whose own entry is out of date.
func (c *Core) epochStartRecords(voters VoterSet, granting []int32) []message.Message {
	change := message.NewLeaderChangeMessage()
	change.LeaderID = c.cfg.NodeID
	for _, id := range voters.IDs() {
		change.Voters = append(change.Voters, message.LeaderChangeMessageVoter{VoterID: id})
	}
	for _, id := range granting {
		change.GrantingVoters = append(change.GrantingVoters, message.LeaderChangeMessageVoter{VoterID: id})
	}
	records := []message.Message{change}
	version := c.view.lastVersion()
	if version < 1 {
		return records
	}
	at, inLog := c.view.lastVotersOffset()
	self := c.selfVoter()
	old, _ := voters.Get(self.ID)
	if inLog && (at == -1 || !old.equal(self)) {
		if updated, ok := voters.Updated(self); ok {
			records = append(records, kraftVersionRecord(version), votersRecord(updated))
			c.lead.changing = true
		}
	}
	return records
}

// selfVoter is this node as a voter.
func (c *Core) selfVoter() Voter {
	return Voter{ReplicaKey: c.cfg.ReplicaKey, Endpoints: c.cfg.Endpoints, KRaftVersions: c.cfg.KRaftVersions}
}

// checkQuorumTimeout is half as long again as a follower waits for its leader: a leader that hears no majority for that long
// has been replaced, or is about to be.
func (c *Core) checkQuorumTimeout() time.Duration { return c.cfg.FetchTimeout * 3 / 2 }

// stopLeading answers all that waits for this leader.
func (c *Core) stopLeading() {
	for _, f := range c.lead.parked {
		c.replyFetchError(f.ev, codeNotLeaderOrFollower)
	}
	c.failVoterChanges(codeNotLeaderOrFollower)
	c.emit(StopLeading{c.epoch})
	c.lead = nil
}

// refreshReplicas follows a change of the voter set: voters come from observers and go to them.
func (c *Core) refreshReplicas() {
	l := c.lead
	old := l.voters
	l.voters = map[int32]*replicaState{}
	for _, v := range c.view.lastVoters() {
		var r *replicaState
		if o := old[v.ID]; o != nil && (o.matches(v.ReplicaKey) || v.DirectoryID == uuid.Zero) {
			r = o
			delete(old, v.ID)
		} else if o := l.observers[v.ReplicaKey]; o != nil {
			r = o
			delete(l.observers, v.ReplicaKey)
		} else {
			r = newReplicaState(v.ReplicaKey)
		}
		r.key = v.ReplicaKey
		l.voters[v.ID] = r
	}
	for _, o := range old {
		if l.observers[o.key] == nil {
			l.observers[o.key] = o
		}
	}
	for id := range l.heard {
		if l.voters[id] == nil {
			delete(l.heard, id)
		}
	}
}

// replicaState finds or makes the state of a replica.
func (c *Core) replicaState(k ReplicaKey) *replicaState {
	if r := c.lead.voters[k.ID]; r != nil && r.matches(k) {
		return r
	}
	r := c.lead.observers[k]
	if r == nil {
		r = newReplicaState(k)
		c.lead.observers[k] = r
	}
	return r
}

// written follows the leader's own append: others may fetch it now, while it is being synced.
func (c *Core) written(now time.Time, ev Written) {
	changed := false
	for _, b := range ev.Batches {
		c.view.appended(b.Base, b.Last, b.Epoch)
		for i, m := range b.Control {
			c.view.control(b.Base+int64(i), m)
			switch m.(type) {
			case *message.VotersRecord, *message.KRaftVersionRecord:
				changed = true
			}
		}
	}
	if c.role != Leader {
		return
	}
	if changed {
		c.lead.changing = false
		c.refreshReplicas()
		c.voterChangeWritten()
	}
	c.completeFetches(now)
	c.updateHighWatermark(now)
}

// synced follows a sync of the log. Only what is synced counts for this node's own copy.
func (c *Core) synced(now time.Time, end int64) {
	c.view.synced = max(c.view.synced, min(end, c.view.end))
	if c.role == Leader {
		c.replicaState(c.cfg.ReplicaKey).end = c.view.synced
		c.updateHighWatermark(now)
	}
}

// updateHighWatermark takes the offset that a majority of the voters holds. It counts only beyond the epoch's start: records of
// earlier epochs may still be replaced by another leader as long as no record of this epoch is on a majority (Raft, figure 8).
func (c *Core) updateHighWatermark(now time.Time) {
	l := c.lead
	ends := make([]int64, 0, len(l.voters))
	for _, r := range l.voters {
		ends = append(ends, r.end)
	}
	if len(ends) == 0 {
		return
	}
	slices.SortFunc(ends, func(a, b int64) int { return cmp.Compare(b, a) })
	hw := ends[len(ends)/2]
	if hw <= l.epochStart || hw <= c.hw {
		return // never back: a change of the voters may lower what a majority holds
	}
	c.hw = hw
	c.commit(hw)
	c.voterChangeCommitted(now)
	c.completeFetches(now)
}

// commit tells of a higher high watermark.
func (c *Core) commit(hw int64) {
	if hw > c.committed {
		c.committed = hw
		c.emit(Committed{hw})
	}
}

func (c *Core) pollLeader(now time.Time) {
	l := c.lead
	alone := len(l.voters) == 1 && l.voters[c.cfg.NodeID] != nil
	if l.alone && !alone {
		// Nobody had to be heard until now.
		l.checkQuorumAt = now.Add(c.checkQuorumTimeout())
	}
	l.alone = alone
	if !alone && !now.Before(l.checkQuorumAt) {
		c.log.Warn("no majority of the voters has fetched in time, resigning", "leader_epoch", c.epoch, "timeout", c.checkQuorumTimeout())
		l.resign = true
	}
	if l.resign || c.shutdown {
		c.becomeResigned(now)
		return
	}
	if !alone {
		c.wakeAt(l.checkQuorumAt)
	}
	c.expireVoterChanges(now)
	c.expireFetches(now)
	c.announce(now)
}

// announce tells voters of the epoch who don't fetch: a leader pushes nothing, so they might not know.
func (c *Core) announce(now time.Time) {
	l := c.lead
	if len(l.voters) == 0 || len(l.voters) == 1 && l.voters[c.cfg.NodeID] != nil {
		return
	}
	period := c.cfg.FetchTimeout / 2
	if now.Before(l.beginAt) {
		c.wakeAt(l.beginAt)
		return
	}
	for _, v := range c.view.lastVoters() {
		r := l.voters[v.ID]
		if v.ID == c.cfg.NodeID || r == nil || r.acknowledgesEpoch && now.Sub(r.lastFetch) < period {
			continue
		}
		if p := c.voterPeer(v); p != nil {
			c.trySend(now, p, func() kmsg.Request { return c.beginQuorumEpochRequest(v.ReplicaKey) })
		}
	}
	l.beginAt = now.Add(period)
	c.wakeAt(l.beginAt)
}

func (c *Core) becomeResigned(now time.Time) {
	var others []*replicaState
	unacked := map[int32]bool{}
	for _, id := range sortedKeys(c.lead.voters) {
		if r := c.lead.voters[id]; !r.matches(c.cfg.ReplicaKey) {
			others = append(others, r)
			unacked[id] = true
		}
	}
	slices.SortStableFunc(others, func(a, b *replicaState) int { return cmp.Compare(b.end, a.end) })
	c.leave()
	c.transition(Resigned, c.epoch, c.leader, c.cfg.Endpoints, c.voted)
	c.unacked = unacked
	for _, r := range others {
		c.successors = append(c.successors, r.key)
	}
	c.electionDeadline = now.Add(c.randomElectionTimeout())
	c.resetPeers()
}

func (c *Core) beginQuorumEpochRequest(to ReplicaKey) *kmsg.BeginQuorumEpochRequest {
	r := kmsg.NewPtrBeginQuorumEpochRequest()
	r.Version = 1
	r.ClusterID = &c.cfg.ClusterID
	r.VoterID = to.ID
	r.Topics = []kmsg.BeginQuorumEpochRequestTopic{{Topic: TopicName, Partitions: []kmsg.BeginQuorumEpochRequestTopicPartition{{
		VoterDirectoryID: to.DirectoryID, LeaderID: c.cfg.NodeID, LeaderEpoch: c.epoch,
	}}}}
	for _, e := range c.cfg.Endpoints {
		r.LeaderEndpoints = append(r.LeaderEndpoints, kmsg.BeginQuorumEpochRequestLeaderEndpoint{Name: e.Name, Host: e.Host, Port: e.Port})
	}
	return r
}

func (c *Core) handleBegin(now time.Time, ev Requested, r *kmsg.BeginQuorumEpochRequest) {
	resp := r.ResponseKind().(*kmsg.BeginQuorumEpochResponse)
	resp.Version = r.Version
	switch {
	case !c.validCluster(r.ClusterID):
		resp.ErrorCode = codeInconsistentClusterID
	case len(r.Topics) != 1 || r.Topics[0].Topic != TopicName || len(r.Topics[0].Partitions) != 1 || r.Topics[0].Partitions[0].Partition != 0:
		resp.ErrorCode = codeInvalidRequest
	default:
		p := &r.Topics[0].Partitions[0]
		code := c.validateVoterRequest(p.LeaderID, p.LeaderEpoch)
		if code == 0 {
			var endpoints []Endpoint
			for _, e := range r.LeaderEndpoints {
				endpoints = append(endpoints, Endpoint{e.Name, e.Host, e.Port})
			}
			if !c.learn(now, p.LeaderEpoch, p.LeaderID, endpoints) {
				code = codeInvalidRequest
			} else if r.Version >= 1 && !c.isAddressedTo(r.VoterID, p.VoterDirectoryID) {
				code = codeInvalidVoterKey
			}
		}
		resp.Topics = []kmsg.BeginQuorumEpochResponseTopic{{Topic: TopicName, Partitions: []kmsg.BeginQuorumEpochResponseTopicPartition{{
			ErrorCode: code, LeaderID: c.leader, LeaderEpoch: c.epoch,
		}}}}
		if e, ok := c.leaderEndpointFor(ev.Listener); ok && r.Version >= 1 {
			resp.NodeEndpoints = []kmsg.BeginQuorumEpochResponseNodeEndpoint{{NodeID: c.leader, Host: e.Host, Port: e.Port}}
		}
	}
	c.emit(Reply{ev.ID, resp})
}

func (c *Core) beginAnswered(now time.Time, p *peer, r *kmsg.BeginQuorumEpochResponse) bool {
	if r.ErrorCode != 0 {
		return c.unexpected(p, "BeginQuorumEpoch", r.ErrorCode)
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
		return c.unexpected(p, "BeginQuorumEpoch", t.ErrorCode)
	}
	if c.role == Leader {
		if s := c.lead.voters[p.ID]; s != nil {
			s.acknowledgesEpoch = true
		}
	}
	return true
}

func (c *Core) endQuorumEpochRequest() *kmsg.EndQuorumEpochRequest {
	r := kmsg.NewPtrEndQuorumEpochRequest()
	r.Version = 1
	r.ClusterID = &c.cfg.ClusterID
	p := kmsg.EndQuorumEpochRequestTopicPartition{LeaderID: c.cfg.NodeID, LeaderEpoch: c.epoch}
	for _, s := range c.successors {
		p.PreferredSuccessors = append(p.PreferredSuccessors, s.ID)
		p.PreferredCandidates = append(p.PreferredCandidates, kmsg.EndQuorumEpochRequestTopicPartitionPreferredCandidate{
			CandidateID: s.ID, CandidateDirectoryID: s.DirectoryID,
		})
	}
	r.Topics = []kmsg.EndQuorumEpochRequestTopic{{Topic: TopicName, Partitions: []kmsg.EndQuorumEpochRequestTopicPartition{p}}}
	for _, e := range c.cfg.Endpoints {
		r.LeaderEndpoints = append(r.LeaderEndpoints, kmsg.EndQuorumEpochRequestLeaderEndpoint{Name: e.Name, Host: e.Host, Port: e.Port})
	}
	return r
}

// handleEnd hears that the leader stepped down. The best successor stands at once, the others later the further back they
// are in the list.
func (c *Core) handleEnd(now time.Time, ev Requested, r *kmsg.EndQuorumEpochRequest) {
	resp := r.ResponseKind().(*kmsg.EndQuorumEpochResponse)
	resp.Version = r.Version
	switch {
	case !c.validCluster(r.ClusterID):
		resp.ErrorCode = codeInconsistentClusterID
	case len(r.Topics) != 1 || r.Topics[0].Topic != TopicName || len(r.Topics[0].Partitions) != 1 || r.Topics[0].Partitions[0].Partition != 0:
		resp.ErrorCode = codeInvalidRequest
	default:
		p := &r.Topics[0].Partitions[0]
		code := c.validateVoterRequest(p.LeaderID, p.LeaderEpoch)
		if code == 0 {
			var endpoints []Endpoint
			for _, e := range r.LeaderEndpoints {
				endpoints = append(endpoints, Endpoint{e.Name, e.Host, e.Port})
			}
			if !c.learn(now, p.LeaderEpoch, p.LeaderID, endpoints) {
				code = codeInvalidRequest
			} else if c.role == Follower && c.leader == p.LeaderID {
				c.follow.fetchDeadline = now.Add(c.successionDelay(r.Version, p))
				c.follow.fetched = false // the leader is gone by its own word: pre-votes may be granted
			}
		}
		resp.Topics = []kmsg.EndQuorumEpochResponseTopic{{Topic: TopicName, Partitions: []kmsg.EndQuorumEpochResponseTopicPartition{{
			ErrorCode: code, LeaderID: c.leader, LeaderEpoch: c.epoch,
		}}}}
		if e, ok := c.leaderEndpointFor(ev.Listener); ok && r.Version >= 1 {
			resp.NodeEndpoints = []kmsg.EndQuorumEpochResponseNodeEndpoint{{NodeID: c.leader, Host: e.Host, Port: e.Port}}
		}
	}
	c.emit(Reply{ev.ID, resp})
}

func (c *Core) successionDelay(version int16, p *kmsg.EndQuorumEpochRequestTopicPartition) time.Duration {
	at, n := 0, len(p.PreferredSuccessors)
	if version >= 1 {
		n = len(p.PreferredCandidates)
		at = slices.IndexFunc(p.PreferredCandidates, func(k kmsg.EndQuorumEpochRequestTopicPartitionPreferredCandidate) bool {
			return k.CandidateID == c.cfg.NodeID &&
				(k.CandidateDirectoryID == uuid.Zero || uuid.UUID(k.CandidateDirectoryID) == c.cfg.ReplicaKey.DirectoryID)
		})
	} else {
		at = slices.Index(p.PreferredSuccessors, c.cfg.NodeID)
	}
	longest := c.cfg.ElectionBackoffMax
	switch {
	case at == 0:
		return 0
	case at < 0:
		return longest
	}
	return min(longest, longest>>(n-1)<<(at-1))
}

func (c *Core) endAnswered(now time.Time, p *peer, r *kmsg.EndQuorumEpochResponse) bool {
	if r.ErrorCode != 0 {
		return c.unexpected(p, "EndQuorumEpoch", r.ErrorCode)
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
		return c.unexpected(p, "EndQuorumEpoch", t.ErrorCode)
	}
	if c.role == Resigned {
		delete(c.unacked, p.ID)
	}
	return true
}
