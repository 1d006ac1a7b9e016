package broker

import (
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/config"
	"gregor/internal/coordinator/group"
	"gregor/internal/metadata"
	"gregor/internal/network"
	"gregor/internal/replica"
	"gregor/internal/security"
	"gregor/internal/uuid"
)

// Controller is the way to the active controller, in this process or over the network.
type Controller interface {
	// Forward sends a request on behalf of a client and calls reply once, from any goroutine: with the controller's response,
	// or with an error when no active controller could be reached before the deadline.
	Forward(from Client, q kmsg.Request, deadline time.Time, reply func(kmsg.Response, error))
}

// Client is on whose behalf a request goes to the controller. The zero value is the broker itself.
type Client struct {
	Principal string // type:name
	Addr      netip.Addr
	ID        string // client.id
}

func clientOf(r *network.Request) Client {
	return Client{Principal: r.Conn.Principal(), Addr: r.Conn.ClientAddr().Addr(), ID: r.ClientID}
}

// Options make a Broker.
type Options struct {
	NodeID    int32
	ClusterID string
	Config    *config.Live
	Replicas  *replica.Manager
	Clock     clock.Clock
	Logger    *slog.Logger
	// Controller takes what changes the cluster.
	Controller Controller
	// Groups takes the requests of groups.
	Groups *group.Coordinator
	// Table is what the broker's listeners serve, for ApiVersions.
	Table *api.Table
	// Authorizer decides who may do what. Nil: everybody may do everything.
	Authorizer *security.Authorizer
	// KRaftVersion is the finalized kraft.version, which lives in the metadata log's control records and not in the image.
	KRaftVersion func() int16
}

// Broker serves a broker's listeners. It implements network.Handler.
type Broker struct {
	nodeID     int32
	clusterID  string
	config     *config.Live
	replicas   *replica.Manager
	clock      clock.Clock
	logger     *slog.Logger
	controller Controller
	groups     *group.Coordinator
	table      *api.Table
	authorizer *security.Authorizer // nil allows everything
	kraft      func() int16

	handlers      map[api.Key]handler
	published     atomic.Pointer[metadata.Image]
	producers     producerIDs
	creations     topicCreations
	streamsTopics streamsTopics
	produces      sync.Pool
	fetches       sync.Pool

	// Traffic counts records and bytes; telemetry reads it.
	Traffic Traffic
}

// Traffic counts what clients produced and fetched since the start.
type Traffic struct {
	MessagesIn, BytesIn, BytesOut               atomic.Int64
	FailedProduces, FailedFetches               atomic.Int64
	ProduceRequests, FetchRequests, FetchParked atomic.Int64
}

// New makes a broker. It serves nothing sensible before the first Publish.
func New(o Options) *Broker {
	b := &Broker{nodeID: o.NodeID, clusterID: o.ClusterID, config: o.Config, replicas: o.Replicas, clock: o.Clock,
		logger: o.Logger, controller: o.Controller, groups: o.Groups, table: o.Table, authorizer: o.Authorizer, kraft: o.KRaftVersion, handlers: handlers()}
	b.published.Store(metadata.EmptyImage())
	b.produces.New = func() any { return &produceOp{b: b} }
	b.fetches.New = func() any { return &fetchOp{b: b} }
	b.producers.init(b)
	b.creations.init(b)
	return b
}

func (b *Broker) image() *metadata.Image { return b.published.Load() }

// hasPartition says whether the metadata has the partition.
func (b *Broker) hasPartition(topic string, partition int32) bool {
	return b.image().Topics.Partition(topic, partition) != nil
}

// leader tells a client who leads a partition, with the endpoint of its listener's name, after NOT_LEADER_OR_FOLLOWER and the
// epoch errors (KIP-951). The node is nil when it is not alive or has no such listener.
func (b *Broker) leader(r *network.Request, topic *metadata.Topic, partition int32) (api.LeaderAndEpoch, *api.NodeEndpoint) {
	img := b.image()
	p := topic.Partition(partition)
	if p == nil {
		return api.LeaderAndEpoch{LeaderID: -1, LeaderEpoch: -1}, nil
	}
	le := api.LeaderAndEpoch{LeaderID: p.Leader, LeaderEpoch: p.LeaderEpoch}
	node := img.Cluster.Broker(p.Leader)
	if node == nil || node.Fenced {
		return le, nil
	}
	ep, ok := node.Listeners[r.Conn.Listener()]
	if !ok {
		return le, nil
	}
	return le, &api.NodeEndpoint{NodeID: p.Leader, Host: ep.Host, Port: int32(ep.Port), Rack: node.Rack}
}

func (b *Broker) topicByNameOrID(name string, id uuid.UUID) *metadata.Topic {
	if id != uuid.Zero {
		return b.image().Topics.ByID(id)
	}
	return b.image().Topics.ByName(name)
}

// forward passes a request on to the active controller and its response back. failed makes the response for when no controller
// answers in time.
func (b *Broker) forward(r *network.Request, q kmsg.Request, reply func(kmsg.Response), failed func(err error) kmsg.Response) {
	deadline := b.clock.Now().Add(b.config.Current().RequestTimeout)
	b.controller.Forward(clientOf(r), q, deadline, func(resp kmsg.Response, err error) {
		if err != nil {
			resp = failed(err)
		}
		reply(resp)
	})
}
