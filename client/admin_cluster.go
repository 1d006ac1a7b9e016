package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Cluster describes the cluster.
type Cluster struct {
	ID           string
	ControllerID int32
	Brokers      []ClusterBroker // by id
}

// ClusterBroker is a broker and whether it is fenced.
type ClusterBroker struct {
	Broker
	Fenced bool
}

// DescribeCluster lists the cluster's brokers, fenced ones too if asked for and the brokers can tell. A client of controllers
// gets the controllers.
func (c *Client) DescribeCluster(ctx context.Context, fenced bool) (*Cluster, error) {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.EndpointType, req.IncludeFencedBrokers = brokerEndpoints, fenced
	if c.o.Controllers {
		req.EndpointType, req.IncludeFencedBrokers = controllerEndpoints, false
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.DescribeClusterResponse) error { return errorOf(r.ErrorCode, r.ErrorMessage) })
	if err != nil {
		return nil, err
	}
	out := &Cluster{ID: resp.ClusterID, ControllerID: resp.ControllerID}
	for _, b := range resp.Brokers {
		cb := ClusterBroker{Broker: Broker{ID: b.NodeID, Host: b.Host, Port: b.Port}, Fenced: b.IsFenced}
		if b.Rack != nil {
			cb.Rack = *b.Rack
		}
		out.Brokers = append(out.Brokers, cb)
	}
	slices.SortFunc(out.Brokers, func(a, b ClusterBroker) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Feature is a feature's level in the cluster and what the broker asked supports.
type Feature struct {
	Name                       string
	Level                      int16 // finalised; 0 is off
	MinSupported, MaxSupported int16
}

func featuresOf(r *kmsg.ApiVersionsResponse) []Feature {
	byName := map[string]*Feature{}
	for _, s := range r.SupportedFeatures {
		byName[s.Name] = &Feature{Name: s.Name, MinSupported: s.MinVersion, MaxSupported: s.MaxVersion}
	}
	for _, f := range r.FinalizedFeatures {
		if byName[f.Name] == nil {
			byName[f.Name] = &Feature{Name: f.Name}
		}
		byName[f.Name].Level = f.MaxVersionLevel
	}
	var out []Feature
	for _, n := range sortedKeys(byName) {
		out = append(out, *byName[n])
	}
	return out
}

// Features lists the features as a broker sees them.
func (c *Client) Features(ctx context.Context) ([]Feature, error) {
	features, _, err := c.FeaturesAsOf(ctx)
	return features, err
}

// FeaturesAsOf lists the features and the epoch of the finalised levels, the offset of the metadata log that they are as of; -1
// if the broker doesn't know.
func (c *Client) FeaturesAsOf(ctx context.Context) ([]Feature, int64, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "gregor-client", "1"
	resp, err := ask(ctx, c, target{node: anyNode, highest: 4}, req, func(r *kmsg.ApiVersionsResponse) error { return errorOf(r.ErrorCode, nil) })
	if err != nil {
		return nil, -1, err
	}
	return featuresOf(resp), resp.FinalizedFeaturesEpoch, nil
}

// FeaturesOf lists the features as one broker sees them.
func (c *Client) FeaturesOf(ctx context.Context, broker int32) ([]Feature, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	cn, err := c.connToBroker(ctx, broker)
	if err != nil {
		return nil, err
	}
	return cn.features, nil
}

// UnregisterBroker makes the cluster forget a broker that is gone for good. It must be stopped, or it registers again.
func (c *Client) UnregisterBroker(ctx context.Context, id int32) error {
	req := kmsg.NewPtrUnregisterBrokerRequest()
	req.BrokerID = id
	_, err := ask(ctx, c, toAny, req, func(r *kmsg.UnregisterBrokerResponse) error { return errorOf(r.ErrorCode, r.ErrorMessage) })
	return err
}

// APIVersions lists what a connection's broker serves: key to lowest and highest version.
func (c *Client) APIVersions(ctx context.Context, broker int32) (map[int16][2]int16, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	cn, err := c.connToBroker(ctx, broker)
	if err != nil {
		return nil, err
	}
	out := map[int16][2]int16{}
	for k, v := range cn.versions {
		out[k] = [2]int16{v.min, v.max}
	}
	return out, nil
}

// FeatureUpgrade says how a feature's level may move.
type FeatureUpgrade int8

const (
	Upgrade         FeatureUpgrade = 1
	SafeDowngrade   FeatureUpgrade = 2
	UnsafeDowngrade FeatureUpgrade = 3
)

// UpdateFeatures sets features to levels, all or none.
func (c *Client) UpdateFeatures(ctx context.Context, levels map[string]int16, how FeatureUpgrade, validateOnly bool) error {
	req := kmsg.NewPtrUpdateFeaturesRequest()
	req.TimeoutMillis, req.ValidateOnly = c.timeoutMillis(), validateOnly
	for _, n := range sortedKeys(levels) {
		u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		u.Feature, u.MaxVersionLevel, u.UpgradeType, u.AllowDowngrade = n, levels[n], int8(how), how != Upgrade
		req.FeatureUpdates = append(req.FeatureUpdates, u)
	}
	_, err := ask(ctx, c, toAny, req, func(r *kmsg.UpdateFeaturesResponse) error {
		for _, f := range r.Results {
			if f.ErrorCode != 0 {
				return fmt.Errorf("feature %s: %w", f.Feature, errorOf(f.ErrorCode, f.ErrorMessage))
			}
		}
		return errorOf(r.ErrorCode, r.ErrorMessage)
	})
	return err
}

// LogDir is one log directory of a broker.
type LogDir struct {
	Broker   int32
	Path     string
	Total    int64 // bytes, -1 if unknown
	Usable   int64
	Cordoned bool
	Replicas []LogDirReplica
	Err      error
}

// LogDirReplica is a replica's share of a log directory.
type LogDirReplica struct {
	TopicPartition
	Size      int64
	OffsetLag int64
	Future    bool
}

// DescribeLogDirs lists the log directories of all brokers, or of those given.
func (c *Client) DescribeLogDirs(ctx context.Context, brokers ...int32) ([]LogDir, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	all, err := c.Brokers(ctx)
	if err != nil {
		return nil, err
	}
	if len(brokers) == 0 {
		for _, b := range all {
			brokers = append(brokers, b.ID)
		}
	}
	var out []LogDir
	for _, id := range brokers {
		resp, err := ask(ctx, c, toNode(id), kmsg.NewPtrDescribeLogDirsRequest(), func(r *kmsg.DescribeLogDirsResponse) error { return errorOf(r.ErrorCode, nil) })
		if err != nil {
			return nil, fmt.Errorf("broker %d: %w", id, err)
		}
		for _, d := range resp.Dirs {
			l := LogDir{Broker: id, Path: d.Dir, Total: d.TotalBytes, Usable: d.UsableBytes, Cordoned: d.IsCordoned, Err: errorOf(d.ErrorCode, nil)}
			for _, t := range d.Topics {
				for _, p := range t.Partitions {
					l.Replicas = append(l.Replicas, LogDirReplica{TopicPartition{t.Topic, p.Partition}, p.Size, p.OffsetLag, p.IsFuture})
				}
			}
			slices.SortFunc(l.Replicas, func(a, b LogDirReplica) int { return compareTP(a.TopicPartition, b.TopicPartition) })
			out = append(out, l)
		}
	}
	return out, nil
}

// PartitionProducer is a producer active in a partition.
type PartitionProducer struct {
	TopicPartition
	ProducerID       int64
	Epoch            int32
	LastSequence     int32
	LastTimestamp    int64
	CoordinatorEpoch int32
	TxnStartOffset   int64 // -1 without an open transaction
}

// DescribeProducers lists the producers that partitions know.
func (c *Client) DescribeProducers(ctx context.Context, tps []TopicPartition) ([]PartitionProducer, error) {
	var out []PartitionProducer
	err := c.retry(ctx, func(ctx context.Context) error {
		out = nil
		leaders, err := c.byLeader(ctx, tps)
		if err != nil {
			return err
		}
		for _, node := range sortedKeys(leaders) {
			req := kmsg.NewPtrDescribeProducersRequest()
			topics := byTopic(leaders[node])
			for _, name := range sortedKeys(topics) {
				rt := kmsg.NewDescribeProducersRequestTopic()
				rt.Topic, rt.Partitions = name, topics[name]
				req.Topics = append(req.Topics, rt)
			}
			resp, err := exchange[*kmsg.DescribeProducersResponse](ctx, c, toNode(node), req)
			if err != nil {
				return err
			}
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					tp := TopicPartition{t.Topic, p.Partition}
					if err := errorOf(p.ErrorCode, p.ErrorMessage); err != nil {
						return fmt.Errorf("partition %v: %w", tp, err)
					}
					for _, a := range p.ActiveProducers {
						out = append(out, PartitionProducer{tp, a.ProducerID, a.ProducerEpoch, a.LastSequence, a.LastTimestamp, a.CoordinatorEpoch, a.CurrentTxnStartOffset})
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("describe producers: %w", err)
	}
	slices.SortFunc(out, func(a, b PartitionProducer) int {
		return cmp.Or(compareTP(a.TopicPartition, b.TopicPartition), cmp.Compare(a.ProducerID, b.ProducerID))
	})
	return out, nil
}
