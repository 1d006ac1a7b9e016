package raft

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// peer is a node that requests are sent to. One request at a time is under way to each, as in Kafka.
type peer struct {
	Peer
	inflight     uint64 // correlation, 0 when none
	sentAt       time.Time
	backoffUntil time.Time
}

// resetPeers forgets what is under way: the answers are not wanted any more in the new role.
func (c *Core) resetPeers() {
	for _, p := range c.peers {
		p.inflight, p.backoffUntil = 0, time.Time{}
	}
}

// peerFor finds or makes the peer for a node at an address.
func (c *Core) peerFor(id int32, e Endpoint) *peer {
	p := c.peers[id]
	if p == nil {
		p = &peer{Peer: Peer{ID: id, Host: e.Host, Port: e.Port}}
		c.peers[id] = p
	}
	if p.Host != e.Host || p.Port != e.Port {
		*p = peer{Peer: Peer{ID: id, Host: e.Host, Port: e.Port}}
	}
	return p
}

// voterPeer is the peer of a voter, nil when its endpoint for the quorum's listener is not known or it is this node.
func (c *Core) voterPeer(v Voter) *peer {
	e, ok := endpoint(v.Endpoints, c.cfg.Listener)
	if !ok || v.ID == c.cfg.NodeID {
		return nil
	}
	return c.peerFor(v.ID, e)
}

// leaderPeer is the peer of the leader that this follower knows.
func (c *Core) leaderPeer() *peer {
	e, ok := endpoint(c.leaderEndpoints, c.cfg.Listener)
	if !ok {
		return nil
	}
	return c.peerFor(c.leader, e)
}

func (p *peer) backingOff(now time.Time) bool { return now.Before(p.backoffUntil) }

func (c *Core) timedOut(p *peer, now time.Time) bool {
	return p.inflight != 0 && !now.Before(p.sentAt.Add(c.cfg.RequestTimeout))
}

// trySend sends unless something is under way to the peer or it is backing off, and wakes the core when it may try again.
// It tells whether it sent.
func (c *Core) trySend(now time.Time, p *peer, build func() kmsg.Request) bool {
	if p.backingOff(now) {
		c.wakeAt(p.backoffUntil)
		return false
	}
	sent := false
	if p.inflight == 0 || c.timedOut(p, now) {
		c.correlation++
		p.inflight, p.sentAt = c.correlation, now
		c.emit(Send{To: p.Peer, Correlation: c.correlation, Request: build(), Timeout: c.cfg.RequestTimeout})
		sent = true
	}
	c.wakeAt(p.sentAt.Add(c.cfg.RequestTimeout))
	return sent
}

// fetchFromBootstrap asks a random bootstrap server who leads, by fetching from it, unless some request is already under way.
func (c *Core) fetchFromBootstrap(now time.Time) {
	for _, id := range sortedKeys(c.peers) {
		if p := c.peers[id]; p.inflight != 0 && !c.timedOut(p, now) {
			c.wakeAt(p.sentAt.Add(c.cfg.RequestTimeout))
			return
		}
	}
	servers := c.bootstrapPeers()
	if len(servers) == 0 {
		return
	}
	first := c.rng.IntN(len(servers))
	for i := range servers {
		p := servers[(first+i)%len(servers)]
		if p.backingOff(now) {
			c.wakeAt(p.backoffUntil)
			continue
		}
		c.trySend(now, p, func() kmsg.Request { return c.fetchRequest() })
		return
	}
}

// bootstrapPeers are the configured servers, or else the static voters, and the voters in force wherever they are besides: the
// configuration may be older than the quorum.
//
// Differs from Kafka, which asks only the former.
func (c *Core) bootstrapPeers() []*peer {
	var list []*peer
	add := func(p *peer) {
		if p != nil && !slices.ContainsFunc(list, func(o *peer) bool { return o.Host == p.Host && o.Port == p.Port }) {
			list = append(list, p)
		}
	}
	for _, b := range c.cfg.Bootstrap {
		add(c.peers[b.ID])
	}
	if len(c.cfg.Bootstrap) == 0 {
		for _, v := range c.cfg.StaticVoters {
			add(c.voterPeer(v))
		}
	}
	for _, v := range c.view.lastVoters() {
		add(c.voterPeer(v))
	}
	return list
}

// responded takes an answer or its failure, if it is still wanted.
func (c *Core) responded(now time.Time, ev Responded) {
	var p *peer
	for _, id := range sortedKeys(c.peers) {
		if c.peers[id].inflight == ev.Correlation {
			p = c.peers[id]
		}
	}
	if p == nil || ev.Correlation == 0 {
		if ev.Refused {
			c.log.Debug("late failure of a request", "err", ev.Err)
		}
		return
	}
	ok := false
	if ev.Err == nil {
		ok = c.response(now, p, ev.Response)
	} else {
		c.log.Debug("request failed", "node", p.ID, "err", ev.Err)
		c.failed(now, p, ev)
	}
	// Handling the answer may have reset the peers, and may have sent something new to this one.
	if p.inflight == ev.Correlation {
		p.inflight = 0
		if !ok {
			p.backoffUntil = now.Add(c.cfg.RetryBackoff)
		}
	}
}

// failed is told of a request without an answer.
func (c *Core) failed(now time.Time, p *peer, ev Responded) {
	if c.role == Leader && c.lead.add != nil && c.lead.add.correlation == ev.Correlation {
		c.addVoterFailed(codeRequestTimedOut, "Aborted add voter operation since the new voter did not answer API_VERSIONS")
	}
	if !ev.Refused {
		return
	}
	if c.role == Resigned {
		delete(c.unacked, p.ID) // nobody is there to hear it
	}
	if c.role == Candidate || c.role == Prospective {
		c.absent[p.ID] = true
		c.hurry(now)
	}
	c.peerLost(now, p.ID)
}

// peerLost takes a connection that was reset or refused as evidence that the process is gone. A follower whose leader is lost
// starts the pre-vote after a small random delay instead of sitting out the fetch timeout; the delay grows while the evidence
// keeps coming without a successful fetch in between, so that a leader that can't be reached by one node only doesn't cost
// the others more than a pre-vote now and then. Safety doesn't depend on it: others deny the pre-vote while they hear the
// leader, and epochs do the rest. The refusal of a voter that a leaving leader tries to tell so counts as having heard.
//
// Differs from Kafka: Kafka waits for controller.quorum.fetch.timeout.ms in any case.
func (c *Core) peerLost(now time.Time, id int32) {
	if c.role != Follower || id != c.leader || !c.isVoter() || c.shutdown {
		return
	}
	c.follow.fetched = false // others who have seen the same may be granted a pre-vote
	if at := c.afterEvidence(now); at.Before(c.follow.fetchDeadline) {
		c.follow.fetchDeadline = at
	}
}

// afterEvidence is a random time, later the more evidence there was since the last successful fetch.
func (c *Core) afterEvidence(now time.Time) time.Time {
	span := min(evidenceDelay<<min(c.evidence, 6), c.cfg.ElectionTimeout)
	c.evidence++
	return now.Add(time.Duration(c.rng.Int64N(int64(span) + 1)))
}

// evidenceDelay bounds the first random delay before a pre-vote on evidence. It is long enough that followers who see the
// same crash at the same moment rarely stand at once, and short against an election.
const evidenceDelay = 40 * time.Millisecond
