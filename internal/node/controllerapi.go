package node

import (
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/controller"
	"gregor/internal/metadata"
	"gregor/internal/network"
	"gregor/internal/raft"
)

// controllerAPI answers the requests of a controller listener: those of other voters and observers go to the metadata log's
// node, those that change the cluster to the controller.
type controllerAPI struct {
	n        *Node
	handlers map[api.Key]controllerHandler
}

type controllerHandler func(*controllerAPI, *network.Request, kmsg.Request)

func newControllerAPI(n *Node) *controllerAPI { return &controllerAPI{n, controllerHandlers()} }

// controllerHandlers is the table of what a controller listener serves.
func controllerHandlers() map[api.Key]controllerHandler {
	m := map[api.Key]controllerHandler{
		api.ApiVersions:     (*controllerAPI).apiVersions,
		api.DescribeCluster: (*controllerAPI).describeCluster,
	}
	for _, k := range []api.Key{api.Vote, api.BeginQuorumEpoch, api.EndQuorumEpoch, api.FetchSnapshot, api.DescribeQuorum,
		api.AddRaftVoter, api.RemoveRaftVoter, api.UpdateRaftVoter, api.Fetch} {
		m[k] = (*controllerAPI).quorum
	}
	for _, k := range []api.Key{api.BrokerRegistration, api.BrokerHeartbeat, api.UnregisterBroker, api.ControllerRegistration,
		api.AllocateProducerIds, api.AlterPartition, api.AssignReplicasToDirs, api.CreateTopics, api.DeleteTopics, api.CreatePartitions,
		api.AlterConfigs, api.IncrementalAlterConfigs, api.ElectLeaders, api.AlterPartitionReassignments, api.ListPartitionReassignments,
		api.UpdateFeatures, api.AlterClientQuotas, api.AlterUserScramCredentials, api.CreateAcls, api.DeleteAcls} {
		m[k] = (*controllerAPI).submit
	}
	return m
}

func controllerKeys() []api.Key { return slices.Sorted(maps.Keys(controllerHandlers())) }

// Handle implements network.Handler.
func (c *controllerAPI) Handle(r *network.Request) {
	defer func() {
		if v := recover(); v != nil {
			c.n.logger.Error("panic in a controller request", slog.String("api", r.Key.String()), slog.Int("version", int(r.Version)),
				slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			defer func() { _ = recover() }() // it may have been answered before
			r.Close(fmt.Errorf("panic: %v", v))
		}
	}()
	q, err := api.DecodeRequest(r.Key, r.Version, r.Body)
	if err != nil {
		r.Close(err)
		return
	}
	c.handlers[r.Key](c, r, q)
}

func (c *controllerAPI) quorum(r *network.Request, q kmsg.Request) {
	c.n.raft.HandleRequest(raft.RequestContext{Listener: r.Conn.Listener(), ClientID: r.ClientID}, q, func(resp kmsg.Response) { r.Reply(resp) })
}

func (c *controllerAPI) submit(r *network.Request, q kmsg.Request) {
	rc := &controller.RequestContext{Principal: "User:ANONYMOUS", Deadline: r.Received.Add(c.n.cfg.RequestTimeout)}
	c.n.controller.Submit(rc, q, func(resp kmsg.Response, _ error) { r.Reply(resp) })
}

func (c *controllerAPI) apiVersions(r *network.Request, q kmsg.Request) {
	resp := q.ResponseKind().(*kmsg.ApiVersionsResponse)
	for _, rng := range c.n.controllerTable.Advertised(nil) {
		resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: int16(rng.Key), MinVersion: rng.Min, MaxVersion: rng.Max})
	}
	supported := metadata.SupportedFeatures(c.n.cfg.UnstableFeatureVersions)
	for _, name := range slices.Sorted(maps.Keys(supported)) {
		f := supported[name]
		if f.Min == 0 && q.GetVersion() < 4 {
			continue // KAFKA-17011: clients before version 4 can't read a least level of 0
		}
		resp.SupportedFeatures = append(resp.SupportedFeatures, kmsg.ApiVersionsResponseSupportedFeature{Name: name, MinVersion: f.Min, MaxVersion: f.Max})
	}
	img := c.n.loader.Image()
	resp.FinalizedFeaturesEpoch = img.Offset
	levels := maps.Clone(img.Features.Levels)
	if levels == nil {
		levels = map[string]int16{}
	}
	levels[metadata.FeatureMetadataVersion] = int16(img.Features.MetadataVersion)
	if v := c.n.raft.KRaftVersion(); v > 0 {
		levels[metadata.FeatureKRaft] = v
	}
	for _, name := range slices.Sorted(maps.Keys(levels)) {
		resp.FinalizedFeatures = append(resp.FinalizedFeatures, kmsg.ApiVersionsResponseFinalizedFeature{Name: name, MinVersionLevel: levels[name], MaxVersionLevel: levels[name]})
	}
	r.Reply(resp)
}

// controllerEndpointType is what DescribeCluster calls controllers; brokers are 1.
const controllerEndpointType = 2

func (c *controllerAPI) describeCluster(r *network.Request, q kmsg.Request) {
	req := q.(*kmsg.DescribeClusterRequest)
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	resp.ClusterID, resp.ControllerID, resp.EndpointType = c.n.clusterID, c.n.raft.LeaderAndEpoch().LeaderID, controllerEndpointType
	if req.Version >= 1 && req.EndpointType != controllerEndpointType {
		err := api.ErrMismatchedEndpointType
		text := "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
		if req.EndpointType != 1 {
			err, text = api.ErrUnsupportedEndpointType, fmt.Sprintf("Unsupported endpoint type %d", req.EndpointType)
		}
		resp.ErrorCode, resp.ErrorMessage = err.Code, &text
		r.Reply(resp)
		return
	}
	for _, v := range c.n.raft.Voters() {
		for _, e := range v.Endpoints {
			if e.Name == r.Conn.Listener() {
				b := kmsg.NewDescribeClusterResponseBroker()
				b.NodeID, b.Host, b.Port = v.ID, e.Host, int32(e.Port)
				resp.Brokers = append(resp.Brokers, b)
			}
		}
	}
	r.Reply(resp)
}
