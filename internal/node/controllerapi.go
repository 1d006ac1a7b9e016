package node

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/broker"
	"gregor/internal/controller"
	"gregor/internal/log"
	"gregor/internal/metadata"
	"gregor/internal/network"
	"gregor/internal/raft"
	"gregor/internal/security"
)

// controllerAPI answers the requests of a controller listener: those of other voters and observers go to the metadata log's
// node, those that change the cluster to the controller.
type controllerAPI struct {
	n        *Node
	handlers map[api.Key]controllerHandler
	links    sync.Map // of heartbeats: the ids of connections whose end will be told
}

type controllerHandler func(*controllerAPI, *exchange, kmsg.Request)

// exchange is a request with its way back. One that came in an envelope goes back in one.
type exchange struct {
	r         *network.Request
	principal string
	addr      netip.Addr
	clientID  string
	forwarded bool
	// reply answers. err says whether the request was for somebody else to answer.
	reply func(resp kmsg.Response, err error)
}

func newControllerAPI(n *Node) *controllerAPI {
	return &controllerAPI{n: n, handlers: controllerHandlers()}
}

// controllerHandlers is the table of what a controller listener serves.
func controllerHandlers() map[api.Key]controllerHandler {
	m := map[api.Key]controllerHandler{
		api.ApiVersions:     (*controllerAPI).apiVersions,
		api.DescribeCluster: (*controllerAPI).describeCluster,
		api.Envelope:        (*controllerAPI).envelope,
		api.DescribeConfigs: (*controllerAPI).describeConfigs,
		api.DescribeAcls:    (*controllerAPI).describeACLs,
	}
	for _, k := range []api.Key{api.CreateDelegationToken, api.RenewDelegationToken, api.ExpireDelegationToken} {
		m[k] = (*controllerAPI).tokenRequest
	}
	for _, k := range []api.Key{api.Vote, api.BeginQuorumEpoch, api.EndQuorumEpoch, api.FetchSnapshot, api.DescribeQuorum,
		api.AddRaftVoter, api.RemoveRaftVoter, api.UpdateRaftVoter, api.Fetch} {
		m[k] = (*controllerAPI).quorum
	}
	for _, k := range []api.Key{api.BrokerRegistration, api.BrokerHeartbeat, api.UnregisterBroker, api.ControllerRegistration,
		api.UnregisterController,
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
			if _, ok := v.(*log.Broken); ok {
				panic(v)
			}
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
	c.serve(&exchange{
		r: r, principal: r.Conn.Principal(), addr: r.Conn.ClientAddr().Addr(), clientID: r.ClientID,
		reply: func(resp kmsg.Response, _ error) { r.Reply(resp) },
	}, q)
}

// serve answers a request, if whoever it comes from may send it.
func (c *controllerAPI) serve(x *exchange, q kmsg.Request) {
	key := api.Key(q.Key())
	if key != api.ApiVersions {
		if err := c.n.admit(x.principal, x.addr, q); err != nil {
			x.reply(controller.ErrorResponse(q, err), nil)
			return
		}
	}
	c.handlers[key](c, x, q)
}

// envelope handles a request that a broker passes on for a client, as if the client had sent it here.
func (c *controllerAPI) envelope(x *exchange, q kmsg.Request) {
	resp := q.ResponseKind().(*kmsg.EnvelopeResponse)
	in, err := readEnvelope(q.(*kmsg.EnvelopeRequest), func(k api.Key) bool { return c.handlers[k] != nil })
	if err != nil {
		resp.ErrorCode = api.CodeOf(err)
		x.reply(resp, nil)
		return
	}
	c.serve(&exchange{
		r: x.r, principal: in.principal, addr: in.addr, clientID: in.header.ClientID, forwarded: true,
		reply: func(inner kmsg.Response, err error) {
			if errors.Is(err, error(api.ErrNotController)) {
				resp.ErrorCode = api.ErrNotController.Code
			} else {
				h := in.header
				resp.ResponseData = api.AppendResponse(api.AppendResponseHeader(nil, h.Key, h.Version, h.CorrelationID), inner)
			}
			x.reply(resp, nil)
		},
	}, in.request)
}

func (c *controllerAPI) quorum(x *exchange, q kmsg.Request) {
	c.n.raft.HandleRequest(raft.RequestContext{Listener: x.r.Conn.Listener(), ClientID: x.clientID}, q, func(resp kmsg.Response) { x.reply(resp, nil) })
}

func (c *controllerAPI) submit(x *exchange, q kmsg.Request) {
	rc := &controller.RequestContext{Principal: x.principal, ClientAddr: x.addr.String(), Allowed: c.n.allowed(x.principal, x.addr),
		Forwarded: x.forwarded, Deadline: x.r.Received.Add(c.n.cfg.RequestTimeout),
		Received: x.r.Received}
	if _, ok := q.(*kmsg.BrokerHeartbeatRequest); ok {
		rc.Link = c.link(x.r.Conn)
	}
	c.n.controller.Submit(rc, q, func(resp kmsg.Response, err error) { x.reply(resp, err) })
}

func (c *controllerAPI) describeConfigs(x *exchange, q kmsg.Request) {
	allowed := c.n.allowed(x.principal, x.addr)
	if allowed == nil {
		allowed = func(security.Operation, security.ResourceType, string) bool { return true }
	}
	configs := broker.Configs{NodeID: c.n.cfg.NodeID, Config: c.n.live, Image: c.n.loader.Image}
	x.reply(configs.Describe(q.(*kmsg.DescribeConfigsRequest), allowed), nil)
}

func (c *controllerAPI) describeACLs(x *exchange, q kmsg.Request) {
	req := q.(*kmsg.DescribeACLsRequest)
	if c.n.authorizer == nil {
		x.reply(broker.ACLsRefused(req, broker.ErrNoAuthorizer), nil)
		return
	}
	x.reply(broker.DescribeACLs(req, c.n.loader.Image()), nil)
}

func (c *controllerAPI) tokenRequest(x *exchange, q kmsg.Request) {
	x.reply(broker.TokensRefused(q, x.principal), nil)
}

// link is a connection that a heartbeat has come on. The controller will hear of its end.
func (c *controllerAPI) link(conn *network.Conn) controller.Link {
	id := conn.ID()
	link := controller.Link(id + 1) // 0 is this process
	if _, known := c.links.LoadOrStore(id, nil); !known {
		conn.OnClose(func(error) {
			c.links.Delete(id)
			c.n.controller.LinkBroken(link)
		})
	}
	return link
}

func (c *controllerAPI) apiVersions(x *exchange, q kmsg.Request) {
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
	x.reply(resp, nil)
}

// controllerEndpointType is what DescribeCluster calls controllers; brokers are 1.
const controllerEndpointType = 2

func (c *controllerAPI) describeCluster(x *exchange, q kmsg.Request) {
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
		x.reply(resp, nil)
		return
	}
	if req.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = security.Operations(security.Cluster)
		if a := c.n.authorizer; a != nil {
			resp.ClusterAuthorizedOperations = a.Operations(security.Requester{Principal: x.principal, Addr: x.addr}, security.Cluster, security.ClusterName)
		}
	}
	for _, v := range c.n.raft.Voters() {
		for _, e := range v.Endpoints {
			if e.Name == x.r.Conn.Listener() {
				b := kmsg.NewDescribeClusterResponseBroker()
				b.NodeID, b.Host, b.Port = v.ID, e.Host, int32(e.Port)
				resp.Brokers = append(resp.Brokers, b)
			}
		}
	}
	x.reply(resp, nil)
}
