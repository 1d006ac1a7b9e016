package raft

import (
	"cmp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
)

// handleDescribe answers DescribeQuorum, which only the leader can.
func (c *Core) handleDescribe(now time.Time, ev Requested, r *kmsg.DescribeQuorumRequest) {
	resp := r.ResponseKind().(*kmsg.DescribeQuorumResponse)
	resp.Version = r.Version
	fail := func(code int16) {
		text, none := api.ErrorFor(code).Message, ""
		if r.Version >= 2 {
			resp.ErrorMessage = &none // the error is the partition's, the request has none
		}
		for _, t := range r.Topics {
			out := kmsg.DescribeQuorumResponseTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				q := kmsg.DescribeQuorumResponseTopicPartition{Partition: p.Partition, ErrorCode: code}
				if r.Version >= 2 {
					q.ErrorMessage = &text
				}
				out.Partitions = append(out.Partitions, q)
			}
			resp.Topics = append(resp.Topics, out)
		}
		c.emit(Reply{ev.ID, resp})
	}
	if len(r.Topics) != 1 || r.Topics[0].Topic != TopicName || len(r.Topics[0].Partitions) != 1 || r.Topics[0].Partitions[0].Partition != 0 {
		fail(codeUnknownTopicPartition)
		return
	}
	if c.role != Leader {
		fail(codeNotLeaderOrFollower)
		return
	}
	l := c.lead
	for k, o := range l.observers {
		if now.Sub(o.lastFetch) >= observerSession && k != c.cfg.ReplicaKey {
			delete(l.observers, k)
		}
	}
	p := kmsg.DescribeQuorumResponseTopicPartition{LeaderID: c.leader, LeaderEpoch: c.epoch, HighWatermark: c.hw}
	if r.Version >= 2 {
		none := ""
		p.ErrorMessage = &none
		resp.ErrorMessage = &none
	}
	for _, v := range c.view.lastVoters() {
		if s := l.voters[v.ID]; s != nil {
			p.CurrentVoters = append(p.CurrentVoters, c.describeReplica(now, s))
		}
		node := kmsg.DescribeQuorumResponseNode{NodeID: v.ID}
		for _, e := range v.Endpoints {
			node.Listeners = append(node.Listeners, kmsg.DescribeQuorumResponseNodeListener{Name: e.Name, Host: e.Host, Port: e.Port})
		}
		if r.Version >= 2 {
			resp.Nodes = append(resp.Nodes, node)
		}
	}
	for _, s := range l.observers {
		p.Observers = append(p.Observers, c.describeReplica(now, s))
	}
	slices.SortFunc(p.Observers, func(a, b kmsg.DescribeQuorumResponseTopicPartitionReplicaState) int {
		return cmp.Or(cmp.Compare(a.ReplicaID, b.ReplicaID), slices.Compare(a.ReplicaDirectoryID[:], b.ReplicaDirectoryID[:]))
	})
	resp.Topics = []kmsg.DescribeQuorumResponseTopic{{Topic: TopicName, Partitions: []kmsg.DescribeQuorumResponseTopicPartition{p}}}
	c.emit(Reply{ev.ID, resp})
}

// describeReplica tells of one replica. The leader itself is always caught up, now.
func (c *Core) describeReplica(now time.Time, s *replicaState) kmsg.DescribeQuorumResponseTopicPartitionReplicaState {
	d := kmsg.DescribeQuorumResponseTopicPartitionReplicaState{
		ReplicaID: s.key.ID, ReplicaDirectoryID: s.key.DirectoryID, LogEndOffset: s.end,
		LastFetchTimestamp: millis(s.lastFetch), LastCaughtUpTimestamp: millis(s.lastCaughtUp),
	}
	if s.matches(c.cfg.ReplicaKey) {
		d.LastFetchTimestamp, d.LastCaughtUpTimestamp = now.UnixMilli(), now.UnixMilli()
	}
	return d
}

// millis is -1 for a time that is not known.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return -1
	}
	return t.UnixMilli()
}
