package raft

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/uuid"
)

// Codes that the core answers or acts on.
var (
	codeRequestTimedOut       = api.ErrRequestTimedOut.Code
	codeBrokerNotAvailable    = api.ErrBrokerNotAvailable.Code
	codeNotLeaderOrFollower   = api.ErrNotLeaderOrFollower.Code
	codeUnknownTopicPartition = api.ErrUnknownTopicOrPartition.Code
	codeUnsupportedVersion    = api.ErrUnsupportedVersion.Code
	codeInvalidRequest        = api.ErrInvalidRequest.Code
	codeFencedLeaderEpoch     = api.ErrFencedLeaderEpoch.Code
	codeUnknownLeaderEpoch    = api.ErrUnknownLeaderEpoch.Code
	codeInconsistentClusterID = api.ErrInconsistentClusterID.Code
	codeSnapshotNotFound      = api.ErrSnapshotNotFound.Code
	codePositionOutOfRange    = api.ErrPositionOutOfRange.Code
	codeInvalidVoterKey       = api.ErrInvalidVoterKey.Code
	codeDuplicateVoter        = api.ErrDuplicateVoter.Code
	codeVoterNotFound         = api.ErrVoterNotFound.Code
)

// request takes a request of another node.
func (c *Core) request(now time.Time, ev Requested) {
	switch r := ev.Request.(type) {
	case *kmsg.VoteRequest:
		c.handleVote(now, ev, r)
	case *kmsg.BeginQuorumEpochRequest:
		c.handleBegin(now, ev, r)
	case *kmsg.EndQuorumEpochRequest:
		c.handleEnd(now, ev, r)
	case *kmsg.FetchRequest:
		c.handleFetch(now, ev, r)
	case *kmsg.FetchSnapshotRequest:
		c.handleFetchSnapshot(now, ev, r)
	case *kmsg.DescribeQuorumRequest:
		c.handleDescribe(now, ev, r)
	case *kmsg.AddRaftVoterRequest:
		c.handleAddVoter(now, ev, r)
	case *kmsg.RemoveRaftVoterRequest:
		c.handleRemoveVoter(now, ev, r)
	case *kmsg.UpdateRaftVoterRequest:
		c.handleUpdateVoter(now, ev, r)
	default:
		panic("raft: not a request of the quorum: " + kmsg.NameForKey(ev.Request.Key()))
	}
}

// response takes an answer; ok=false makes the peer wait before the next request.
func (c *Core) response(now time.Time, p *peer, resp kmsg.Response) (ok bool) {
	switch r := resp.(type) {
	case *kmsg.VoteResponse:
		return c.voteAnswered(now, p, r)
	case *kmsg.BeginQuorumEpochResponse:
		return c.beginAnswered(now, p, r)
	case *kmsg.EndQuorumEpochResponse:
		return c.endAnswered(now, p, r)
	case *kmsg.FetchResponse:
		return c.fetchAnswered(now, p, r)
	case *kmsg.FetchSnapshotResponse:
		return c.fetchSnapshotAnswered(now, p, r)
	case *kmsg.ApiVersionsResponse:
		return c.apiVersionsAnswered(now, p, r)
	case *kmsg.UpdateRaftVoterResponse:
		return c.updateVoterAnswered(now, p, r)
	case *kmsg.AddRaftVoterResponse:
		return c.joinAnswered(now, p, "AddRaftVoter", r.ErrorCode, codeDuplicateVoter)
	case *kmsg.RemoveRaftVoterResponse:
		return c.joinAnswered(now, p, "RemoveRaftVoter", r.ErrorCode, codeVoterNotFound)
	}
	return false
}

// validCluster accepts a request without a cluster id.
func (c *Core) validCluster(id *string) bool { return id == nil || *id == c.cfg.ClusterID }

// validateVoterRequest checks the epoch and sender of Vote, BeginQuorumEpoch, EndQuorumEpoch.
func (c *Core) validateVoterRequest(from, epoch int32) int16 {
	switch {
	case epoch < c.epoch:
		return codeFencedLeaderEpoch
	case from < 0:
		return codeInvalidRequest
	}
	return 0
}

// validateLeaderRequest checks the epoch of a request that only the leader of that very epoch answers.
func (c *Core) validateLeaderRequest(epoch int32) int16 {
	switch {
	case epoch < c.epoch:
		return codeFencedLeaderEpoch
	case epoch > c.epoch:
		return codeUnknownLeaderEpoch
	case c.role != Leader:
		return codeNotLeaderOrFollower
	case c.shutdown:
		return codeBrokerNotAvailable
	}
	return 0
}

// isAddressedTo says whether a request that names its receiver means this replica, rather than one that was here before with
// another directory. A negative id means that the sender did not say, a zero directory that it does not know.
func (c *Core) isAddressedTo(id int32, dir [16]byte) bool {
	if id < 0 {
		return true
	}
	return id == c.cfg.NodeID && (dir == uuid.Zero || uuid.UUID(dir) == c.cfg.ReplicaKey.DirectoryID)
}

// leaderEndpointFor is where the leader is reached on a listener, for answers that say so.
func (c *Core) leaderEndpointFor(listener string) (Endpoint, bool) {
	if c.leader < 0 {
		return Endpoint{}, false
	}
	return endpoint(c.leaderEndpoints, listener)
}

// consistentLeader says whether a leader named in a message can be, with what is known. Two leaders in one epoch, or this node
// named as the leader of an epoch that it doesn't lead, would be a broken quorum.
func (c *Core) consistentLeader(epoch, leader int32) bool {
	if leader == c.cfg.NodeID && leader >= 0 {
		return c.role == Leader || c.role == Resigned || epoch < c.epoch
	}
	return epoch != c.epoch || leader < 0 || c.leader < 0 || leader == c.leader
}

// learn follows what a message says about epoch and leader. It is false when that can't be true, which is a broken quorum and
// is left to the operator: the message is ignored.
func (c *Core) learn(now time.Time, epoch, leader int32, endpoints []Endpoint) bool {
	if !c.consistentLeader(epoch, leader) {
		c.log.Error("two leaders in one epoch", "leader_epoch", epoch, "leader", leader, "known_epoch", c.epoch, "known_leader", c.leader)
		return false
	}
	if leader == c.cfg.NodeID && leader >= 0 {
		return true
	}
	if len(endpoints) == 0 && leader >= 0 {
		endpoints = c.endpointsOf(leader)
	}
	_, reachable := endpoint(endpoints, c.cfg.Listener)
	switch {
	case epoch < c.epoch:
	case epoch > c.epoch && leader >= 0 && reachable:
		c.becomeFollower(now, epoch, leader, endpoints)
	case epoch > c.epoch:
		c.unattachedIn(now, epoch, leader)
	case leader >= 0 && reachable && (c.leader < 0 || c.role == Unattached || len(endpoints) > len(c.leaderEndpoints)):
		c.becomeFollower(now, epoch, leader, endpoints)
	}
	return true
}

// common does what every answer may call for. done says that nothing is left to be done with the answer, and ok whether the
// peer may be asked again at once.
func (c *Core) common(now time.Time, code int16, leader, epoch int32, endpoints []Endpoint) (done, ok bool) {
	switch {
	case epoch < c.epoch || code == codeUnknownLeaderEpoch:
		// From the past. Who looks for a leader asks again after a moment, since the other has yet to hear of the epoch.
		return true, c.role != Resigned && c.role != Unattached
	case epoch > c.epoch || code == codeFencedLeaderEpoch || code == codeNotLeaderOrFollower:
		before, role := c.epoch, c.role
		learned := c.learn(now, epoch, leader, endpoints)
		// Asking at once again the same who just said that it isn't the leader would spin.
		return true, learned && (c.epoch != before || c.role != role)
	case leader >= 0 && c.leader < 0 && leader != c.cfg.NodeID:
		if !c.learn(now, epoch, leader, endpoints) {
			return true, false
		}
		return code != 0, true
	case code == codeBrokerNotAvailable:
		return true, false
	case code == codeInvalidVoterKey:
		c.log.Warn("a voter's directory id is not the one in the voter set")
		return true, false
	}
	return false, false
}

func (c *Core) unexpected(p *peer, what string, code int16) bool {
	if code != codeBrokerNotAvailable {
		c.log.Warn("unexpected answer", "request", what, "node", p.ID, "error", api.ErrorFor(code).Name)
	}
	return false
}
