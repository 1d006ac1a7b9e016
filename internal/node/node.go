package node

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"gregor/internal/api"
	"gregor/internal/broker"
	"gregor/internal/clock"
	"gregor/internal/config"
	"gregor/internal/controller"
	"gregor/internal/coordinator/group"
	"gregor/internal/log"
	"gregor/internal/metadata"
	"gregor/internal/network"
	"gregor/internal/raft"
	"gregor/internal/replica"
	"gregor/internal/security"
	"gregor/internal/telemetry"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// Options make a Node. Only Config is required.
type Options struct {
	Config *config.Broker
	Logger *slog.Logger
	// FS, Clock and Rand are the machine's when nil.
	FS    vfs.FS
	Clock clock.Clock
	Rand  io.Reader
	// Listen opens listeners; nil is the machine's network.
	Listen func(ctx context.Context, network, addr string) (net.Listener, error)
	// Dial connects to other nodes; nil is the machine's network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Metrics and Phases are where the node shows itself; nil makes some.
	Metrics *telemetry.Registry
	Phases  *telemetry.Phases
}

// Node is a running broker, controller or both. Stop it with Shutdown.
type Node struct {
	o      Options
	cfg    *config.Broker // server.properties
	live   *config.Live   // with what is set dynamically
	logger *slog.Logger
	rand   *lockedRand

	clusterID string
	dirIDs    map[string]uuid.UUID
	locks     log.Locks

	brokerTable     *api.Table // what the listeners of each kind serve
	controllerTable *api.Table

	authorizer *security.Authorizer // nil without one
	stats      *requestStats
	server     *network.Server
	peers      nodePeers
	raft       *raft.Node
	controller *controller.Controller
	registrar  *registrar // nil without the controller role, as is prober
	prober     *prober
	loader     *metadata.Loader
	snapshots  *metadata.SnapshotGenerator
	lifecycle  *broker.Lifecycle
	// predecessor is set once the controller has been told that this broker's last life is over.
	predecessor atomic.Bool
	// controllerAddr is where the active controller was last known to be, "" for nowhere.
	controllerAddr atomic.Pointer[string]
	published      published
	logs           *log.Manager
	replicas       *replica.Manager
	assigner       *broker.DirectoryAssigner
	storageUp      chan struct{} // closed when logs and replicas are set
	groups         *group.Coordinator
	broker         atomic.Pointer[broker.Broker]
	controlled     atomic.Pointer[controllerAPI]

	fatal    chan error // the first failure that the process can't go on after
	stopOnce sync.Once
	stopErr  error
	done     chan struct{} // closed when the node has stopped
	bg       sync.WaitGroup
	bgStop   context.CancelFunc
	bgCtx    context.Context
}

// lockedRand lets many goroutines read one source of randomness.
type lockedRand struct {
	mu sync.Mutex // guards r
	r  io.Reader
}

func (l *lockedRand) Read(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return io.ReadFull(l.r, b)
}

// generator seeds a generator of its own for one part of the node.
func (l *lockedRand) generator() *rand.Rand {
	var b [16]byte
	if _, err := l.Read(b[:]); err != nil {
		panic(fmt.Sprintf("node: no random bytes: %v", err))
	}
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])))
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.Clock == nil {
		o.Clock = clock.System
	}
	if o.Rand == nil {
		o.Rand = cryptorand.Reader
	}
	if o.Metrics == nil {
		o.Metrics = telemetry.NewRegistry()
	}
	if o.Phases == nil {
		o.Phases = &telemetry.Phases{}
	}
	return o
}

// Start starts a node and returns when it serves, or with what prevented it. When ctx ends before, the start is given up.
func Start(ctx context.Context, o Options) (*Node, error) {
	o = o.withDefaults()
	n := &Node{o: o, cfg: o.Config, live: config.NewLive(o.Config), logger: o.Logger, rand: &lockedRand{r: o.Rand},
		dirIDs: map[string]uuid.UUID{}, stats: newRequestStats(), fatal: make(chan error, 1), done: make(chan struct{}),
		storageUp: make(chan struct{})}
	n.brokerTable = api.NewTable(api.BrokerListener, broker.Keys()...)
	n.controllerTable = api.NewTable(api.ControllerListener, controllerKeys()...)
	n.bgCtx, n.bgStop = context.WithCancel(context.Background())
	begun := o.Clock.Now()
	o.Phases.Register(o.Metrics) // first, so that a long recovery can be watched
	n.enter(telemetry.Starting)
	if err := n.start(ctx); err != nil {
		n.abort()
		return nil, err
	}
	n.enter(telemetry.Running)
	n.logger.Info("node is running", "node", n.cfg.NodeID, "cluster", n.clusterID, "roles", n.cfg.Roles.String(), "took", o.Clock.Now().Sub(begun))
	return n, nil
}

func (n *Node) enter(p telemetry.Phase) {
	was := n.o.Phases.Current().Phase
	took := n.o.Phases.Enter(p, n.o.Clock.Now())
	if p != telemetry.Starting {
		n.logger.Info("phase begins", "phase", p.String(), "after", was.String(), "took", took)
	}
}

func (n *Node) start(ctx context.Context) error {
	n.warnAboutConfig()
	var err error
	if n.authorizer, err = newAuthorizer(n.cfg, n.logger); err != nil {
		return err
	}
	if err := n.identify(); err != nil {
		return err
	}
	if err := n.listen(ctx); err != nil {
		return err
	}
	n.enter(telemetry.Quorum)
	if err := n.startQuorum(ctx); err != nil {
		return err
	}
	if n.cfg.Roles.Controller {
		// The other voters have to reach this one before any of them can lead.
		if early := n.early(); len(early) > 0 {
			n.server.Start(early...)
		}
	}
	if n.cfg.Roles.Broker {
		if err := n.startBroker(ctx); err != nil {
			return err
		}
	} else if err := n.await(ctx, n.caughtUp()); err != nil {
		return err
	}
	n.registerMetrics()
	n.server.Start()
	if n.cfg.Roles.Broker {
		n.checkAdvertised()
	}
	return nil
}

// warnAboutConfig says what of the configuration has no effect.
func (n *Node) warnAboutConfig() {
	if keys := n.cfg.NotHonoured(); len(keys) > 0 {
		n.logger.Warn("configuration keys without effect in gregor so far", "keys", keys)
	}
	if keys := n.cfg.UnknownKeys(); len(keys) > 0 {
		n.logger.Debug("configuration keys that are not known; kept for plugins as Kafka does", "keys", keys)
	}
}

// identify locks the directories and reads who they belong to.
func (n *Node) identify() error {
	dirs := Directories(n.cfg)
	empty, used, err := surveyDirs(n.o.FS, dirs, n.cfg.NodeID, "")
	if err != nil {
		return err
	}
	if len(empty) > 0 {
		return fmt.Errorf("%s has no %s: format it first (gregor storage format)", empty[0], log.MetaPropertiesFile)
	}
	if n.locks, err = log.LockDirs(n.o.FS, dirs); err != nil {
		return err
	}
	for d, m := range used {
		n.clusterID = m.ClusterID
		if m.DirectoryID == uuid.Zero {
			if m.DirectoryID, err = uuid.New(n.rand); err != nil {
				return err
			}
			if err := log.WriteMetaProperties(n.o.FS, d, m, n.o.Clock.Now()); err != nil {
				return err
			}
		}
		n.dirIDs[d] = m.DirectoryID
	}
	return nil
}

// await waits for ch, unless ctx ends or something breaks that the node can't do without.
func (n *Node) await(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case err := <-n.fatal:
		n.fatal <- err
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fail notes what the node can't go on after. Whoever waits on Failed stops it.
func (n *Node) fail(err error) {
	select {
	case n.fatal <- err:
		n.logger.Error("node has to stop", "err", err)
	default:
	}
}

// Failed delivers what the node can't go on after, if that happens.
func (n *Node) Failed() <-chan error { return n.fatal }

// Done is closed when the node has stopped.
func (n *Node) Done() <-chan struct{} { return n.done }

// ClusterID is the id of the cluster that the node's directories belong to.
func (n *Node) ClusterID() string { return n.clusterID }

// Config is the configuration of this moment.
func (n *Node) Config() *config.Broker { return n.live.Current() }

// Addr is the address that a listener is bound to, nil when there is none of that name.
func (n *Node) Addr(listener string) net.Addr { return n.server.Addr(listener) }

// BrokerAddr is the address of the first broker listener, "" without one.
func (n *Node) BrokerAddr() string {
	for _, l := range n.cfg.Listeners {
		if !n.cfg.IsController(l.Name) {
			if a := n.Addr(l.Name); a != nil {
				return a.String()
			}
		}
	}
	return ""
}

// Shutdown stops the node: it hands over what it leads, answers what is in flight, and leaves its directories as a clean stop
// does. When ctx ends it is less patient, and the next start may have to look at more; it stops in any case.
func (n *Node) Shutdown(ctx context.Context) error {
	n.stopOnce.Do(func() {
		n.enter(telemetry.Stopping)
		n.stopErr = n.stop(ctx)
		n.enter(telemetry.Stopped)
		close(n.done)
	})
	<-n.done
	return n.stopErr
}

// stop takes everything down in reverse order of the start. Parts that were not started are nil.
func (n *Node) stop(ctx context.Context) error {
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			n.logger.Error("stop: "+what, "err", err)
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	n.bgStop()
	n.published.close()
	epoch := int64(-1)
	if n.lifecycle != nil {
		if n.cfg.ControlledShutdown && n.broker.Load() != nil {
			// A controller that can't be reached must not keep the node from stopping cleanly.
			if err := n.handOver(ctx); err != nil {
				n.logger.Warn("stopping without having handed over all leaderships", "err", err)
			}
		}
		epoch = n.lifecycle.Epoch()
	}
	if n.raft != nil {
		n.stepDown(ctx)
	}
	drained := make(chan error, 1)
	go func() {
		if n.server == nil {
			drained <- nil
			return
		}
		drained <- n.server.Shutdown(ctx)
	}()
	// Members that wait for their group and fetches that wait for records would keep their connections, for as long as their
	// clients like.
	if n.groups != nil {
		n.groups.Close()
	}
	if n.replicas != nil {
		n.replicas.Close()
	}
	note("drain connections", <-drained)
	if n.assigner != nil {
		n.assigner.Close()
	}
	if n.lifecycle != nil {
		n.lifecycle.Close()
	}
	if n.loader != nil {
		n.loader.Close()
	}
	if n.snapshots != nil {
		n.snapshots.Close()
	}
	if n.logs != nil {
		note("close log directories", n.logs.Close(ctx, epoch))
	}
	if n.controller != nil {
		note("close controller", n.controller.Close(ctx))
	}
	if n.raft != nil {
		bound, cancel := context.WithTimeout(ctx, quorumLeaveTimeout)
		note("close metadata log", n.leaveQuorum(bound))
		cancel()
	}
	n.peers.close()
	note("unlock directories", n.locks.Close())
	n.bg.Wait()
	return errors.Join(errs...)
}

// abortTimeout bounds how long a failed start takes to clean up.
const abortTimeout = 10 * time.Second

// abort undoes a start that failed.
func (n *Node) abort() {
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	n.stopOnce.Do(func() {
		_ = n.stop(ctx) // logged; the start's own error is what counts
		n.enter(telemetry.Stopped)
		close(n.done)
	})
}
