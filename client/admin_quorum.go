package client

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// metadataTopic is the log of the metadata quorum.
const metadataTopic = "__cluster_metadata"

// Quorum is what the leader of the metadata quorum knows of it.
type Quorum struct {
	LeaderID      int32
	LeaderEpoch   int32
	HighWatermark int64
	Voters        []QuorumReplica
	Observers     []QuorumReplica
	// Endpoints are where the voters can be reached, by node; nil from clusters older than 3.9.
	Endpoints map[int32][]QuorumEndpoint
}

// Leader is the leader among the voters.
func (q *Quorum) Leader() (QuorumReplica, bool) {
	for _, v := range q.Voters {
		if v.ID == q.LeaderID {
			return v, true
		}
	}
	return QuorumReplica{}, false
}

// QuorumReplica is a voter or observer as the leader sees it.
type QuorumReplica struct {
	ID           int32
	DirectoryID  UUID // zero when it isn't known
	LogEndOffset int64
	// LastFetch is when its last fetch came, LastCaughtUp when it last had all that the leader had. Zero if that isn't known.
	LastFetch    time.Time
	LastCaughtUp time.Time
}

// QuorumEndpoint is a controller listener.
type QuorumEndpoint struct {
	Name string
	Host string
	Port uint16
}

// String is the endpoint as a listener is written, NAME://host:port.
func (e QuorumEndpoint) String() string {
	return e.Name + "://" + net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
}

// DescribeQuorum asks the quorum's leader who votes, who follows, and how far each is.
func (c *Client) DescribeQuorum(ctx context.Context) (*Quorum, error) {
	req := kmsg.NewPtrDescribeQuorumRequest()
	rt := kmsg.NewDescribeQuorumRequestTopic()
	rt.Topic, rt.Partitions = metadataTopic, []kmsg.DescribeQuorumRequestTopicPartition{{}}
	req.Topics = append(req.Topics, rt)
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.DescribeQuorumResponse) error {
		if err := errorOf(r.ErrorCode, r.ErrorMessage); err != nil {
			return err
		}
		if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
			return fmt.Errorf("an answer about %d topics", len(r.Topics))
		}
		p := &r.Topics[0].Partitions[0]
		return errorOf(p.ErrorCode, p.ErrorMessage)
	})
	if err != nil {
		return nil, err
	}
	p := &resp.Topics[0].Partitions[0]
	q := &Quorum{
		LeaderID: p.LeaderID, LeaderEpoch: p.LeaderEpoch, HighWatermark: p.HighWatermark,
		Voters: quorumReplicas(p.CurrentVoters), Observers: quorumReplicas(p.Observers),
	}
	if resp.Version >= 2 {
		q.Endpoints = map[int32][]QuorumEndpoint{}
	}
	for _, n := range resp.Nodes {
		for _, l := range n.Listeners {
			q.Endpoints[n.NodeID] = append(q.Endpoints[n.NodeID], QuorumEndpoint{l.Name, l.Host, l.Port})
		}
	}
	return q, nil
}

func quorumReplicas(in []kmsg.DescribeQuorumResponseTopicPartitionReplicaState) []QuorumReplica {
	var out []QuorumReplica
	at := func(ms int64) time.Time {
		if ms < 0 {
			return time.Time{}
		}
		return time.UnixMilli(ms)
	}
	for _, r := range in {
		out = append(out, QuorumReplica{r.ReplicaID, UUID(r.ReplicaDirectoryID), r.LogEndOffset, at(r.LastFetchTimestamp), at(r.LastCaughtUpTimestamp)})
	}
	return out
}

// AddVoter makes a controller that follows the quorum a voter (KIP-853). It returns when the new voters are committed.
func (c *Client) AddVoter(ctx context.Context, id int32, directory UUID, endpoints []QuorumEndpoint) error {
	req := kmsg.NewPtrAddRaftVoterRequest()
	req.TimeoutMillis, req.VoterID, req.VoterDirectoryID = c.timeoutMillis(), id, directory
	for _, e := range endpoints {
		req.Listeners = append(req.Listeners, kmsg.AddRaftVoterRequestListener{Name: e.Name, Host: e.Host, Port: e.Port})
	}
	var final error
	_, err := ask(ctx, c, toAny, req, func(r *kmsg.AddRaftVoterResponse) error {
		final = nil
		return elsewhere(errorOf(r.ErrorCode, r.ErrorMessage), &final)
	})
	if err != nil {
		return err
	}
	return final
}

// RemoveVoter takes a voter out of the quorum (KIP-853). The directory id tells it from another node with the same id.
func (c *Client) RemoveVoter(ctx context.Context, id int32, directory UUID) error {
	req := kmsg.NewPtrRemoveRaftVoterRequest()
	req.VoterID, req.VoterDirectoryID = id, directory
	var final error
	_, err := ask(ctx, c, toAny, req, func(r *kmsg.RemoveRaftVoterResponse) error {
		final = nil
		return elsewhere(errorOf(r.ErrorCode, r.ErrorMessage), &final)
	})
	if err != nil {
		return err
	}
	return final
}

// UnregisterController makes the cluster forget the registration of a controller that is no voter any more.
func (c *Client) UnregisterController(ctx context.Context, id int32) error {
	req := kmsg.NewPtrUnregisterControllerRequest()
	req.ControllerID = id
	_, err := ask(ctx, c, toAny, req, func(r *kmsg.UnregisterControllerResponse) error { return errorOf(r.ErrorCode, r.ErrorMessage) })
	return err
}

// elsewhere returns err if another node must be asked, and else keeps it as the last word: a change of the voters that timed out
// may still happen, and asking for it again would only get an error that hides that.
func elsewhere(err error, final *error) error {
	if err == nil || needsRefresh(err) {
		return err
	}
	*final = err
	return nil
}
