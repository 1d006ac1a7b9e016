package raft

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// answerVote answers the vote request under way to a voter.
func answerVote(c *Core, now time.Time, voter int32, granted bool) {
	resp := kmsg.NewPtrVoteResponse()
	resp.Topics = []kmsg.VoteResponseTopic{{Topic: TopicName, Partitions: []kmsg.VoteResponseTopicPartition{{LeaderID: NoLeader, LeaderEpoch: c.epoch, VoteGranted: granted}}}}
	c.Step(now, Responded{Correlation: c.peers[voter].inflight, Response: resp})
}

func refuse(c *Core, now time.Time, voter int32) {
	c.Step(now, Responded{Correlation: c.peers[voter].inflight, Err: fmt.Errorf("dial: %w", ErrRefused), Refused: true})
}

// TestSplitVote: of three voters the leader is dead, and the other two have voted for themselves in the same moment. They don't
// sit out the election timeout before they try again.
func TestSplitVote(t *testing.T) {
	for _, deniedFirst := range []bool{false, true} {
		c, now := fuzzCore(Follower), time.Unix(1, 0)
		refuse(c, now, 2) // the leader
		for c.role == Follower {
			now = c.Deadline()
			c.Step(now, Ticked{})
		}
		answerVote(c, now, 3, true)
		if c.role != Candidate {
			t.Fatalf("%v after a pre-vote", c.role)
		}
		epoch, stood := c.epoch, now
		if deniedFirst {
			answerVote(c, now, 3, false)
			refuse(c, now, 2)
		} else {
			refuse(c, now, 2)
			if left := c.electionDeadline.Sub(now); left < c.cfg.ElectionTimeout {
				t.Errorf("only %v left when nobody has denied a vote yet", left)
			}
			answerVote(c, now, 3, false)
		}
		for c.role != Prospective {
			now = c.Deadline()
			c.Step(now, Ticked{})
			if c.role == Candidate && c.peers[2].inflight != 0 && now.Before(c.electionDeadline) {
				refuse(c, now, 2) // again and again: it takes no longer for it
			}
		}
		if took := now.Sub(stood); took > 2*evidenceDelay {
			t.Errorf("the next try comes after %v", took)
		}
		answerVote(c, now, 3, true)
		answerVote(c, now, 3, true)
		if c.role != Leader || c.epoch != epoch+1 {
			t.Errorf("%v of epoch %d, want the leader of %d", c.role, c.epoch, epoch+1)
		}
	}
}

// TestElectionWithoutDenials: voters that refuse connections may be about to start. A nominee waits for them as long as an
// election lasts.
func TestElectionWithoutDenials(t *testing.T) {
	c, now := fuzzCore(Unattached), time.Unix(1, 0)
	for c.role == Unattached {
		now = c.Deadline()
		c.Step(now, Ticked{})
	}
	refuse(c, now, 2)
	refuse(c, now, 3)
	if left := c.electionDeadline.Sub(now); left < c.cfg.ElectionTimeout {
		t.Errorf("only %v left", left)
	}
}

// TestPreVoteGivesWay: a follower that has seen its leader go, and grants another one a pre-vote, does not stand itself before
// that one has had time to be elected.
func TestPreVoteGivesWay(t *testing.T) {
	c, now := fuzzCore(Follower), time.Unix(1, 0)
	c.Step(now, Responded{Correlation: c.peers[2].inflight, Err: errors.Join(ErrRefused), Refused: true})
	q := kmsg.NewPtrVoteRequest()
	q.Version, q.ClusterID, q.VoterID = 2, &c.cfg.ClusterID, 1
	q.Topics = []kmsg.VoteRequestTopic{{Topic: TopicName, Partitions: []kmsg.VoteRequestTopicPartition{{
		CandidateEpoch: c.epoch, CandidateID: 3, CandidateDirectoryID: traceDir(3), VoterDirectoryID: traceDir(1), LastOffsetEpoch: 4, LastOffset: 10, PreVote: true}}}}
	for _, e := range c.Step(now, Requested{ID: 7, Listener: "CONTROLLER", Request: q}) {
		if r, ok := e.(Reply); ok && !r.Response.(*kmsg.VoteResponse).Topics[0].Partitions[0].VoteGranted {
			t.Fatal("the pre-vote is denied")
		}
	}
	if wait := c.follow.fetchDeadline.Sub(now); wait < evidenceDelay || wait > 2*evidenceDelay {
		t.Errorf("it stands after %v", wait)
	}
}
