package node

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/broker"
	"gregor/internal/controller"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// registrar keeps a standby controller registered with the active one (KIP-919): it sends a registration whenever the metadata
// has none of this life of the node. The active controller writes its own. It is a publisher.
type registrar struct {
	n           *Node
	incarnation uuid.UUID
	listeners   []kmsg.ControllerRegistrationRequestListener

	mu      sync.Mutex // guards the rest
	known   bool       // the metadata has the registration, or can't have one
	pending bool       // a request is under way, or due
}

const (
	registrarTimeout = 5 * time.Second // of one attempt
	registrarRetry   = time.Second     // before the next
)

// Name implements metadata.Publisher.
func (r *registrar) Name() string { return "controller registration" }

// Publish implements metadata.Publisher.
func (r *registrar) Publish(_ *metadata.Delta, img *metadata.Image, _ metadata.Manifest) {
	c := img.Cluster.Controllers[r.n.cfg.NodeID]
	known := c != nil && c.IncarnationID == r.incarnation || !img.Features.MetadataVersion.ControllerRegistrations()
	r.mu.Lock()
	r.known = known
	send := !known && !r.pending
	r.pending = r.pending || send
	r.mu.Unlock()
	if send {
		r.send()
	}
}

func (r *registrar) send() {
	r.mu.Lock()
	if r.known || r.n.bgCtx.Err() != nil {
		r.pending = false
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	if r.n.raft.LeaderAndEpoch().IsLeader(r.n.cfg.NodeID) {
		time.AfterFunc(registrarRetry, r.send) // the core is at it
		return
	}
	q := kmsg.NewPtrControllerRegistrationRequest()
	q.ControllerID, q.IncarnationID, q.Listeners = r.n.cfg.NodeID, r.incarnation, r.listeners
	for _, f := range controller.SupportedFeatures() {
		x := kmsg.NewControllerRegistrationRequestFeature()
		x.Name, x.MinSupportedVersion, x.MaxSupportedVersion = f.Name, f.Min, f.Max
		q.Features = append(q.Features, x)
	}
	forwarder{r.n}.Forward(broker.Client{}, q, r.n.o.Clock.Now().Add(registrarTimeout), func(resp kmsg.Response, err error) {
		if err == nil {
			err = api.FromCode(resp.(*kmsg.ControllerRegistrationResponse).ErrorCode)
		}
		if err != nil {
			r.n.logger.Warn("this controller could not be registered", "err", err)
		}
		// The registration shows in the metadata; until then it may have to be sent once more.
		time.AfterFunc(registrarRetry, r.send)
	})
}
