package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/controller"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/raft"
	"gregor/internal/uuid"
)

// startQuorum opens the metadata log and starts what follows it.
func (n *Node) startQuorum(ctx context.Context) error {
	c := n.cfg
	endpoints := n.controllerEndpoints()
	var static []raft.Voter
	var ids []int32
	for _, v := range c.QuorumVoters {
		listener := c.ControllerListeners[0]
		port := v.Port
		if v.ID == c.NodeID && port == 0 && len(endpoints) > 0 {
			port = int(endpoints[0].Port)
		}
		static = append(static, newVoter(v.ID, uuid.Zero, listener, v.Host, port))
		ids = append(ids, v.ID)
	}
	var err error
	n.peers = n.newPeers()
	n.raft, err = raft.Open(ctx, raft.Options{
		FS: n.o.FS, Clock: n.o.Clock, Logger: n.logger, Rand: n.rand.generator(),
		Dir: c.MetadataLogDir, ClusterID: n.clusterID, NodeID: c.NodeID, DirectoryID: n.dirIDs[c.MetadataLogDir],
		Controller: c.Roles.Controller, StaticVoters: static, BootstrapServers: c.QuorumBootstrapServers,
		Listener: c.ControllerListeners[0], Endpoints: endpoints,
		ElectionTimeout: c.QuorumElectionTimeout, ElectionBackoffMax: c.QuorumElectionBackoffMax, FetchTimeout: c.QuorumFetchTimeout,
		RequestTimeout: c.QuorumRequestTimeout, RetryBackoff: c.QuorumRetryBackoff, AppendLinger: c.QuorumAppendLinger,
		SegmentBytes: c.MetadataSegmentBytes, SegmentAge: c.MetadataSegmentAge,
		RetentionBytes: c.MetadataRetentionBytes, RetentionAge: c.MetadataRetention,
		AutoJoin: c.QuorumAutoJoin, Transport: transport{n.peers.quorum}, OnFatal: n.fail,
	})
	if err != nil {
		return err
	}
	if c.Roles.Controller {
		if err := n.startController(ids); err != nil {
			return err
		}
	}
	n.loader = metadata.NewLoader(metadata.LoaderOptions{Logger: n.logger, HighWatermark: n.raft.HighWatermark, OnFault: func(error) {
		if n.snapshots != nil {
			n.snapshots.Disable("the image may not be what the log says")
		}
	}})
	n.snapshots = metadata.NewSnapshotGenerator(metadata.SnapshotOptions{Clock: n.o.Clock, Logger: n.logger,
		MaxBytes: c.MetadataSnapshotBytes, MaxInterval: c.MetadataSnapshotInterval, Create: n.createSnapshot})
	if err := n.loader.Install(n.snapshots, (*dynamicConfig)(n)); err != nil {
		return err
	}
	if n.authorizer != nil {
		if err := n.loader.Install(&aclPublisher{authorizer: n.authorizer}); err != nil {
			return err
		}
	}
	if n.registrar != nil {
		if err := n.loader.Install(n.registrar, n.prober); err != nil {
			return err
		}
	}
	n.raft.Register(loaderListener{n})
	return nil
}

func (n *Node) startController(staticIDs []int32) error {
	c := n.cfg
	bootstrap, err := n.bootstrapRecords()
	if err != nil {
		return err
	}
	incarnation, err := uuid.New(n.rand)
	if err != nil {
		return err
	}
	n.prober = &prober{n: n, known: make(map[int32]*reached)}
	balance := time.Duration(-1)
	if c.AutoLeaderRebalance {
		balance = c.LeaderImbalanceCheckInterval
	}
	idle := c.MetadataMaxIdleInterval
	if idle == 0 {
		idle = -1
	}
	opts := controller.Options{
		NodeID: c.NodeID, ClusterID: n.clusterID, Logger: n.logger, Rand: n.rand.generator(), IDs: n.rand,
		Configs: controller.NewConfigSchema(c), Bootstrap: bootstrap, StaticVoters: staticIDs,
		Registration:      controller.Registration{Incarnation: incarnation, Listeners: n.controllerRegistration()},
		DefaultPartitions: c.NumPartitions, DefaultReplicationFactor: c.DefaultReplicationFactor, NoTopicDeletion: !c.DeleteTopics,
		Authorizer:     n.authorizer != nil,
		SessionTimeout: c.BrokerSessionTimeout, IdleInterval: idle, BalanceInterval: balance, UncleanInterval: c.UncleanLeaderElectionInterval,
		TokenSecret:      c.Value("delegation.token.secret.key").Text(),
		TokenMaxLifetime: c.Value("delegation.token.max.lifetime.ms").Millis(), TokenExpiry: c.Value("delegation.token.expiry.time.ms").Millis(),
		TokenSweepInterval: c.Value("delegation.token.expiry.check.interval.ms").Millis(),
		Probe:              n.prober.probe,
		Fatal:              n.fail,
	}
	n.registrar = &registrar{n: n, incarnation: incarnation, listeners: opts.Registration.Listeners}
	n.controller = controller.New(opts, n.o.Clock, controllerLog{n.raft})
	n.raft.Register(n.controller)
	n.controlled.Store(newControllerAPI(n))
	return nil
}

// bootstrapRecords are what formatting left for the first leader to write. Without any, a static quorum begins at the latest
// metadata.version, as in Kafka.
func (n *Node) bootstrapRecords() ([]message.Versioned, error) {
	records, found, err := raft.ReadBootstrapRecords(raft.BootstrapOptions{FS: n.o.FS, Dir: n.cfg.MetadataLogDir})
	if err != nil || found {
		return records, err
	}
	f := FormatOptions{Config: n.cfg}
	version, levels, err := f.levels()
	if err != nil {
		return nil, err
	}
	return f.bootstrapRecords(version, levels)
}

// controllerEndpoints are the controller listeners of this node with the ports that they are bound to.
func (n *Node) controllerEndpoints() []raft.Endpoint {
	if !n.cfg.Roles.Controller {
		return nil
	}
	var out []raft.Endpoint
	for _, l := range n.cfg.AdvertisedControllers {
		host := l.Host
		if host == "" {
			host = "localhost"
		}
		out = append(out, raft.Endpoint{Name: l.Name, Host: host, Port: uint16(n.boundPort(l))})
	}
	return out
}

func (n *Node) controllerRegistration() []kmsg.ControllerRegistrationRequestListener {
	var out []kmsg.ControllerRegistrationRequestListener
	for _, e := range n.controllerEndpoints() {
		l := kmsg.NewControllerRegistrationRequestListener()
		l.Name, l.Host, l.Port, l.SecurityProtocol = e.Name, e.Host, e.Port, int16(n.cfg.ListenerProtocols[e.Name])
		out = append(out, l)
	}
	return out
}

// controllerLog is the metadata log as the controller wants it.
type controllerLog struct{ *raft.Node }

func (l controllerLog) EndOffset() int64 { return l.LogEndOffset() }

func (l controllerLog) UpgradeKRaftVersion(epoch int32, version int16, validateOnly bool) (int64, error) {
	return l.Node.UpgradeKRaftVersion(context.Background(), epoch, version, validateOnly)
}

// loaderListener hands what the quorum commits to the loader.
type loaderListener struct{ *Node }

func (l loaderListener) HandleCommit(b raft.CommittedBatch) {
	l.loader.HandleCommit(metadata.Batch{BaseOffset: b.BaseOffset, LastOffset: b.LastOffset, Epoch: b.Epoch, AppendTime: b.AppendTime, Bytes: b.Bytes, Records: b.Records})
}

func (l loaderListener) HandleSnapshot(r *raft.SnapshotReader) {
	// The loader keeps its image and reports the fault itself.
	_ = l.loader.HandleSnapshot(r.ID().Offset, r.ID().Epoch, r.LastContainedLogTime(), r)
}

func (l loaderListener) HandleLeaderChange(e raft.LeaderAndEpoch) {
	l.loader.HandleLeaderChange(metadata.LeaderAndEpoch{LeaderID: e.LeaderID, Epoch: e.Epoch})
	l.leaderChanged(e)
}

func (l loaderListener) BeginShutdown() {}

func (n *Node) createSnapshot(endOffset int64, epoch int32, lastContainedLogTime int64) (metadata.SnapshotSink, error) {
	w, err := n.raft.CreateSnapshot(raft.OffsetAndEpoch{Offset: endOffset, Epoch: epoch}, lastContainedLogTime)
	if w == nil || err != nil {
		return nil, err // an untyped nil: the caller compares
	}
	return w, nil
}

// dynamicConfig is the Node as the publisher that applies the broker settings in the metadata.
type dynamicConfig Node

// Name implements metadata.Publisher.
func (n *dynamicConfig) Name() string { return "dynamic broker configuration" }

// Publish implements metadata.Publisher.
func (n *dynamicConfig) Publish(d *metadata.Delta, img *metadata.Image, _ metadata.Manifest) {
	if d.Configs == nil {
		return
	}
	self := fmt.Sprint(n.cfg.NodeID)
	ignored := n.live.Update(img.Configs.Get(metadata.Resource{Type: metadata.BrokerResource}), img.Configs.Get(metadata.Resource{Type: metadata.BrokerResource, Name: self}))
	if len(ignored) > 0 {
		n.logger.Error("dynamic broker settings are ignored: they are not allowed", "keys", ignored)
	}
}

// caughtUp is closed when the metadata up to the present has been published.
func (n *Node) caughtUp() <-chan struct{} {
	ch := make(chan struct{})
	p := &firstPublish{ch: ch}
	if err := n.loader.Install(p); err != nil {
		n.fail(err)
	}
	return ch
}

// firstPublish closes a channel when something is published.
type firstPublish struct{ ch chan struct{} }

func (p *firstPublish) Name() string { return "start" }

func (p *firstPublish) Publish(*metadata.Delta, *metadata.Image, metadata.Manifest) {
	select {
	case <-p.ch:
	default:
		close(p.ch)
	}
}

// changesMetadata says whether a client may look for what a request has changed. Requests of the broker itself, which must not
// wait for their own effects, are none of these.
func changesMetadata(q kmsg.Request) bool {
	switch q.(type) {
	case *kmsg.CreateTopicsRequest, *kmsg.DeleteTopicsRequest, *kmsg.CreatePartitionsRequest, *kmsg.IncrementalAlterConfigsRequest,
		*kmsg.AlterConfigsRequest, *kmsg.AlterClientQuotasRequest, *kmsg.UpdateFeaturesRequest, *kmsg.CreateACLsRequest,
		*kmsg.DeleteACLsRequest, *kmsg.AlterUserSCRAMCredentialsRequest, *kmsg.AlterPartitionAssignmentsRequest, *kmsg.ElectLeadersRequest:
		return true
	}
	return false
}

// published lets replies wait for the metadata that this broker answers from: a client that has created a topic, or changed a
// setting, then finds it on the broker that it asked. It is a publisher, and the last one, so that all others have acted. The
// zero value lets everything through.
//
// Differs from Kafka: there the reply leaves at once, and the next request may still be answered from before.
type published struct {
	mu      sync.Mutex // guards all below
	active  bool       // something has been published
	closed  bool
	offset  int64
	waiting []pendingReply // by rising offset: commits come in order
}

type pendingReply struct {
	offset int64
	reply  func()
}

// after calls f when the metadata up to offset has been published.
func (p *published) after(offset int64, f func()) {
	p.mu.Lock()
	if p.active && !p.closed && p.offset < offset {
		p.waiting = append(p.waiting, pendingReply{offset, f})
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	f()
}

// Name implements metadata.Publisher.
func (p *published) Name() string { return "replies" }

// Publish implements metadata.Publisher.
func (p *published) Publish(_ *metadata.Delta, img *metadata.Image, _ metadata.Manifest) {
	p.mu.Lock()
	p.active, p.offset = true, img.Offset
	n := 0
	for n < len(p.waiting) && p.waiting[n].offset <= p.offset {
		n++
	}
	ready := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
	if n > 0 && len(p.waiting) == 0 {
		p.waiting = nil
	}
	p.mu.Unlock()
	for _, r := range ready {
		r.reply()
	}
}

// close lets all replies go, and those that are still to come.
func (p *published) close() {
	p.mu.Lock()
	p.closed = true
	ready := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	for _, r := range ready {
		r.reply()
	}
}

func quorumRequest(q kmsg.Request) bool {
	switch q.(type) {
	case *kmsg.DescribeQuorumRequest, *kmsg.AddRaftVoterRequest, *kmsg.RemoveRaftVoterRequest, *kmsg.UpdateRaftVoterRequest:
		return true
	}
	return false
}
