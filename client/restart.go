package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// RestartAnswer says whether a node can be restarted now without taking anything away from clients.
type RestartAnswer struct {
	Node int32
	// Broker and Voter say what the node is.
	Broker, Voter bool
	// Partitions are those that would suffer while the node is down, in order; none if it is safe for the partitions.
	Partitions []RestartBlocker
	// Quorum is why the metadata quorum would lose its majority, "" if it wouldn't.
	Quorum string
}

// Safe says that nothing stands against a restart.
func (a *RestartAnswer) Safe() bool { return len(a.Partitions) == 0 && a.Quorum == "" }

// RestartBlocker is a partition that forbids a restart.
type RestartBlocker struct {
	TopicPartition
	// ISR are the in-sync replicas now, the node among them.
	ISR []int32
	// MinISR is how many there must be for writes with acks=all.
	MinISR int
	// Offline says that the node has the only replica in sync: without it the partition has no leader.
	Offline bool
}

// String says what would happen.
func (b RestartBlocker) String() string {
	if b.Offline {
		return fmt.Sprintf("%v: the node has the only in-sync replica", b.TopicPartition)
	}
	return fmt.Sprintf("%v: %d of the in-sync replicas %v would be left, min.insync.replicas is %d", b.TopicPartition, len(b.ISR)-1, b.ISR, b.MinISR)
}

// caughtUpWithin is how long ago a voter may last have had all that the leader had. A voter that fetches at all does so many
// times in it, and one that has been away for longer would have to catch up first.
const caughtUpWithin = 10 * time.Second

// restartState is what the answer depends on.
type restartState struct {
	brokers []ClusterBroker
	quorum  *Quorum
	topics  []Topic
	minISR  map[string]int // by topic
}

// judgeRestart decides whether a node can be restarted: no partition may fall below min.insync.replicas or lose its only in-sync
// replica, and a majority of the voters must have caught up without it. A topic with fewer replicas than min.insync.replicas can't
// fall below it; all of its replicas are needed then.
func judgeRestart(node int32, s *restartState) (*RestartAnswer, error) {
	a := &RestartAnswer{Node: node}
	a.Broker = slices.ContainsFunc(s.brokers, func(b ClusterBroker) bool { return b.ID == node })
	a.Voter = slices.ContainsFunc(s.quorum.Voters, func(v QuorumReplica) bool { return v.ID == node })
	if !a.Broker && !a.Voter {
		return nil, fmt.Errorf("node %d is neither a broker nor a voter of the quorum", node)
	}
	for _, t := range s.topics {
		for _, p := range t.Partitions {
			// What isn't in sync gives nothing that could be missed.
			if !slices.Contains(p.ISR, node) {
				continue
			}
			need := min(s.minISR[t.Name], len(p.Replicas))
			left := len(p.ISR) - 1
			if left == 0 || left < need {
				a.Partitions = append(a.Partitions, RestartBlocker{TopicPartition{t.Name, p.ID}, p.ISR, s.minISR[t.Name], left == 0})
			}
		}
	}
	slices.SortFunc(a.Partitions, func(x, y RestartBlocker) int { return compareTP(x.TopicPartition, y.TopicPartition) })
	if a.Voter {
		a.Quorum = judgeQuorum(node, s.quorum)
	}
	return a, nil
}

func judgeQuorum(node int32, q *Quorum) string {
	leader, ok := q.Leader()
	if !ok {
		return fmt.Sprintf("the quorum's leader, node %d, is being removed", q.LeaderID)
	}
	need, have := len(q.Voters)/2+1, 0
	var behind []int32
	for _, v := range q.Voters {
		switch {
		case v.ID == node:
		case v.ID == leader.ID, v.LogEndOffset >= leader.LogEndOffset, !v.LastCaughtUp.IsZero() && leader.LastCaughtUp.Sub(v.LastCaughtUp) <= caughtUpWithin:
			have++
		default:
			behind = append(behind, v.ID)
		}
	}
	if have >= need {
		return ""
	}
	text := fmt.Sprintf("of %d voters %d would be left that have caught up, a majority is %d", len(q.Voters), have, need)
	if len(behind) > 0 {
		text += fmt.Sprintf("; behind are %v", behind)
	}
	return text
}

// configBatch is how many topics' configs are asked for at once.
const configBatch = 1000

// SafeToRestart asks the cluster whether a node, a broker or a controller, can be restarted now.
func (c *Client) SafeToRestart(ctx context.Context, node int32) (*RestartAnswer, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	cluster, err := c.DescribeCluster(ctx, true)
	if err != nil {
		return nil, err
	}
	s := &restartState{brokers: cluster.Brokers, minISR: map[string]int{}}
	if s.quorum, err = c.DescribeQuorum(ctx); err != nil {
		return nil, err
	}
	m, err := c.Metadata(ctx, nil)
	if err != nil {
		return nil, err
	}
	// Only what the node has matters.
	var resources []Resource
	for _, t := range m.Topics {
		if slices.ContainsFunc(t.Partitions, func(p Partition) bool { return slices.Contains(p.ISR, node) }) {
			s.topics = append(s.topics, t)
			resources = append(resources, Resource{TopicResource, t.Name})
		}
	}
	for some := range slices.Chunk(resources, configBatch) {
		configs, err := c.DescribeConfigs(ctx, some, []string{"min.insync.replicas"}, false)
		if err != nil {
			return nil, err
		}
		for _, r := range configs {
			if r.Err != nil {
				return nil, fmt.Errorf("min.insync.replicas of topic %s: %w", r.Name, r.Err)
			}
			for _, e := range r.Entries {
				if e.Value == nil {
					continue
				}
				n, err := strconv.Atoi(*e.Value)
				if err != nil {
					return nil, fmt.Errorf("min.insync.replicas of topic %s: %w", r.Name, err)
				}
				s.minISR[r.Name] = n
			}
		}
	}
	for _, t := range s.topics {
		s.minISR[t.Name] = cmp.Or(s.minISR[t.Name], 1)
	}
	return judgeRestart(node, s)
}
