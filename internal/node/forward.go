package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/broker"
	"gregor/internal/controller"
	"gregor/internal/message"
	"gregor/internal/peer"
	"gregor/internal/raft"
)

// forwarder is the way from the broker's handlers to the active controller, in this process or over the network.
type forwarder struct{ n *Node }

// forwardRetry is how long a request waits before it is tried again while there is no active controller.
const forwardRetry = 20 * time.Millisecond

// Forward implements broker.Controller. Requests about the quorum itself go to the metadata log's node.
func (f forwarder) Forward(from broker.Client, q kmsg.Request, deadline time.Time, reply func(kmsg.Response, error)) {
	n := f.n
	leader := n.raft.LeaderAndEpoch().LeaderID
	switch here := leader < 0 || leader == n.cfg.NodeID; {
	case n.controller == nil && leader < 0:
		f.again(from, q, deadline, reply, api.ErrNotController)
	case n.controller == nil || !here:
		f.remote(from, q, deadline, reply)
	case quorumRequest(q):
		if from != (broker.Client{}) {
			if err := n.admit(from.Principal, from.Addr, q); err != nil {
				reply(controller.ErrorResponse(q, err), nil)
				return
			}
		}
		n.raft.HandleRequest(raft.RequestContext{Listener: n.cfg.ControllerListeners[0]}, q, func(r kmsg.Response) { reply(r, nil) })
	default:
		f.local(from, q, deadline, reply)
	}
}

// again tries once more after a moment, or gives up with err when that would be too late.
func (f forwarder) again(from broker.Client, q kmsg.Request, deadline time.Time, reply func(kmsg.Response, error), err error) {
	if !f.n.o.Clock.Now().Add(forwardRetry).Before(deadline) || f.n.bgCtx.Err() != nil {
		reply(nil, err)
		return
	}
	time.AfterFunc(forwardRetry, func() { f.Forward(from, q, deadline, reply) })
}

func (f forwarder) local(from broker.Client, q kmsg.Request, deadline time.Time, reply func(kmsg.Response, error)) {
	n := f.n
	rc := &controller.RequestContext{Principal: anonymous, Forwarded: true, Deadline: deadline}
	if from != (broker.Client{}) {
		rc.Principal, rc.ClientAddr, rc.Allowed = from.Principal, from.Addr.String(), n.allowed(from.Principal, from.Addr)
	}
	n.controller.Submit(rc, q, func(r kmsg.Response, err error) {
		if reg, ok := r.(*kmsg.BrokerRegistrationResponse); ok && reg.ErrorCode == api.ErrDuplicateBrokerRegistration.Code && n.predecessor.CompareAndSwap(false, true) {
			n.buryPredecessor()
			f.Forward(from, q, deadline, reply)
			return
		}
		if errors.Is(err, error(api.ErrNotController)) && n.o.Clock.Now().Add(forwardRetry).Before(deadline) && n.bgCtx.Err() == nil {
			f.again(from, q, deadline, reply, err)
			return
		}
		if err != nil || !changesMetadata(q) {
			reply(r, err)
			return
		}
		// What the reply tells of is committed. It goes out when this broker's own handlers know of it, too.
		n.published.after(n.raft.HighWatermark()-1, func() { reply(r, nil) })
	})
}

// remote sends a request to the active controller of another node. What a client asks for travels in an Envelope with the
// client's name, and on another connection than what the broker says of itself: a controller answers a connection's requests
// one after the other, and no heartbeat should wait for a client. A request whose connection breaks is sent again, as by Kafka.
func (f forwarder) remote(from broker.Client, q kmsg.Request, deadline time.Time, reply func(kmsg.Response, error)) {
	n := f.n
	e, ok := n.raft.LeaderEndpoint(n.cfg.ControllerListeners[0])
	if !ok {
		f.again(from, q, deadline, reply, api.ErrNotController)
		return
	}
	timeout := deadline.Sub(n.o.Clock.Now())
	if timeout <= 0 {
		reply(nil, api.ErrRequestTimedOut)
		return
	}
	peers, out := n.peers.own, q
	if from != (broker.Client{}) {
		envelope, err := newEnvelope(from, q)
		if err != nil {
			reply(nil, err)
			return
		}
		peers, out = n.peers.clients, envelope
	}
	peers.Send(hostPort(e.Host, e.Port), out, 0, timeout, func(resp kmsg.Response, err error) {
		if envelope, ok := resp.(*kmsg.EnvelopeResponse); ok && err == nil {
			resp, err = openEnvelope(q, envelope)
		}
		switch {
		case err == nil && notController(resp), errors.Is(err, error(api.ErrNotController)):
			f.again(from, q, deadline, reply, api.ErrNotController)
		case errors.Is(err, errEnvelopeRefused):
			n.logger.Warn("a client's request could not be passed on", "node", n.raft.LeaderAndEpoch().LeaderID, "api", api.Key(q.Key()).String(), "err", err)
			reply(nil, err)
		case errors.Is(err, peer.ErrTimeout):
			reply(nil, fmt.Errorf("%w: %w", error(api.ErrRequestTimedOut), err))
		case err != nil && api.CodeOf(err) == api.CodeUnknownServerError:
			n.logger.Debug("the active controller was not reached", "node", n.raft.LeaderAndEpoch().LeaderID, "api", api.Key(q.Key()).String(), "err", err)
			f.again(from, q, deadline, reply, api.ErrNotController)
		default:
			reply(resp, err)
		}
	})
}

// notController says whether the answer to one of the broker's own requests is that another node is the controller.
func notController(resp kmsg.Response) bool {
	code := int16(0)
	switch r := resp.(type) {
	case *kmsg.BrokerRegistrationResponse:
		code = r.ErrorCode
	case *kmsg.BrokerHeartbeatResponse:
		code = r.ErrorCode
	case *kmsg.AllocateProducerIDsResponse:
		code = r.ErrorCode
	case *kmsg.AlterPartitionResponse:
		code = r.ErrorCode
	case *kmsg.AssignReplicasToDirsResponse:
		code = r.ErrorCode
	case *kmsg.ControllerRegistrationResponse:
		code = r.ErrorCode
	case *kmsg.CreateTopicsResponse:
		for _, t := range r.Topics {
			if t.ErrorCode == api.ErrNotController.Code {
				code = t.ErrorCode
			}
		}
	}
	return code == api.ErrNotController.Code
}

// anonymous is who a client is without authentication.
const anonymous = "User:ANONYMOUS"

// newEnvelope wraps a client's request for the controller (KIP-590).
func newEnvelope(from broker.Client, q kmsg.Request) (*kmsg.EnvelopeRequest, error) {
	kind, name, _ := strings.Cut(from.Principal, ":")
	p := message.NewDefaultPrincipalData()
	p.Type, p.Name = kind, name
	principal, err := p.AppendTo(binary.BigEndian.AppendUint16(nil, uint16(p.HighestVersion())), p.HighestVersion())
	if err != nil {
		return nil, err
	}
	e := kmsg.NewPtrEnvelopeRequest()
	e.RequestPrincipal = principal
	e.ClientHostAddress = from.Addr.Unmap().AsSlice()
	e.RequestData = api.AppendHeader(nil, api.Header{Key: api.Key(q.Key()), Version: q.GetVersion(), ClientID: from.ID})
	e.RequestData = api.AppendRequest(e.RequestData, q)
	return e, nil
}

// errEnvelopeRefused is what an active controller says to a broker that it doesn't take requests of clients from.
var errEnvelopeRefused = errors.New("the controller refused an envelope")

// openEnvelope reads the controller's answer to a request in an envelope.
func openEnvelope(q kmsg.Request, e *kmsg.EnvelopeResponse) (kmsg.Response, error) {
	switch err := api.FromCode(e.ErrorCode); {
	case errors.Is(err, error(api.ErrNotController)), errors.Is(err, error(api.ErrUnsupportedVersion)):
		return nil, err
	case err != nil:
		// It is between this broker and the controller, and nothing that the client did.
		return nil, fmt.Errorf("%w: %v", errEnvelopeRefused, err)
	}
	if len(e.ResponseData) < 4 {
		return nil, fmt.Errorf("answer in an envelope: %w", api.ErrShort)
	}
	body, err := api.SkipResponseHeader(api.Key(q.Key()), q.GetVersion(), e.ResponseData[4:])
	if err != nil {
		return nil, err
	}
	resp := q.ResponseKind()
	resp.SetVersion(q.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("answer in an envelope: %w", err)
	}
	return resp, nil
}

// envelope is what an EnvelopeRequest holds.
type envelope struct {
	header    api.Header
	request   kmsg.Request
	principal string
	addr      netip.Addr
}

// readEnvelope checks and decodes an EnvelopeRequest. The errors are those that Kafka answers.
func readEnvelope(e *kmsg.EnvelopeRequest, serves func(api.Key) bool) (envelope, error) {
	var out envelope
	var ok bool
	if out.addr, ok = netip.AddrFromSlice(e.ClientHostAddress); !ok {
		return out, api.WithMessage(api.ErrInvalidRequest, "The client address of %d bytes is invalid", len(e.ClientHostAddress))
	}
	principal := message.NewDefaultPrincipalData()
	if len(e.RequestPrincipal) < 2 {
		return out, api.ErrPrincipalDeserializationFailure
	}
	if _, err := principal.ReadFrom(e.RequestPrincipal[2:], int16(binary.BigEndian.Uint16(e.RequestPrincipal))); err != nil {
		return out, fmt.Errorf("%w: %w", error(api.ErrPrincipalDeserializationFailure), err)
	}
	out.principal = principal.Type + ":" + principal.Name
	h, body, err := api.ParseHeader(e.RequestData, "")
	if err != nil {
		return out, fmt.Errorf("%w: %w", error(api.ErrInvalidRequest), err)
	}
	out.header = h
	if !h.Key.Forwarded() {
		return out, api.WithMessage(api.ErrInvalidRequest, "%s is not a request that brokers pass on", h.Key)
	}
	if !serves(h.Key) {
		return out, api.ErrUnsupportedVersion
	}
	if out.request, err = api.DecodeRequest(h.Key, h.Version, body); err != nil {
		return out, fmt.Errorf("%w: %w", error(api.ErrUnsupportedVersion), err)
	}
	return out, nil
}

// nodePeers are the connections to other nodes, by what they are for: one that carries a fetch which waits at the other end
// can't carry anything else meanwhile.
type nodePeers struct {
	quorum  *peer.Peers // of the metadata log's node
	own     *peer.Peers // what this node tells the active controller
	clients *peer.Peers // what clients want of the active controller
}

func (n *Node) newPeers() nodePeers {
	connections := func(clientID string, backoffMax time.Duration) *peer.Peers {
		return peer.New(peer.Options{
			Dial: n.dial(), Logger: n.logger.With("component", "peer"), Rand: n.rand.generator(), ClientID: clientID,
			ConnectTimeout: n.cfg.QuorumRequestTimeout, BackoffMin: max(n.cfg.QuorumRetryBackoff, time.Millisecond), BackoffMax: backoffMax,
		})
	}
	return nodePeers{
		quorum:  connections(fmt.Sprintf("raft-client-%d", n.cfg.NodeID), quorumBackoffMax),
		own:     connections(fmt.Sprint(n.cfg.NodeID), quorumBackoffMax),
		clients: connections(fmt.Sprint(n.cfg.NodeID), quorumBackoffMax),
	}
}

// fetcherConnections are the connections of one fetcher. What it may have to take is bounded by what it asks for, and by one batch
// of any size.
func (n *Node) fetcherConnections() *peer.Peers {
	return peer.New(peer.Options{
		Dial: n.dial(), Logger: n.logger.With("component", "fetcher"), Rand: n.rand.generator(),
		ClientID: fmt.Sprintf("broker-%d-fetcher", n.cfg.NodeID), ConnectTimeout: n.cfg.ReplicaSocketTimeout,
		BackoffMin: time.Millisecond, BackoffMax: quorumBackoffMax, MaxResponseBytes: math.MaxInt32, ReuseMemory: true,
	})
}

// quorumBackoffMax bounds the wait between attempts to connect to a controller. It is short, since an election, or the return
// of a node, may wait for it.
const quorumBackoffMax = 200 * time.Millisecond

func (p nodePeers) close() {
	for _, c := range []*peer.Peers{p.quorum, p.own, p.clients} {
		if c != nil {
			c.Close()
		}
	}
}

// leaderChanged ends what is under way to the controller before: it would be answered late, or never.
func (n *Node) leaderChanged(l raft.LeaderAndEpoch) {
	addr := ""
	if e, ok := n.raft.LeaderEndpoint(n.cfg.ControllerListeners[0]); ok && l.LeaderID >= 0 {
		addr = hostPort(e.Host, e.Port)
	}
	if old := n.controllerAddr.Swap(&addr); old != nil && *old != addr && *old != "" {
		n.peers.own.Forget(*old)
		n.peers.clients.Forget(*old)
	}
}

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// transport is the way of the metadata log's node to the others.
type transport struct{ peers *peer.Peers }

// preVoteVersion is the first version of Vote that can say that it is not meant yet.
const preVoteVersion = 2

// Send implements raft.Transport.
func (t transport) Send(to raft.Peer, q kmsg.Request, timeout time.Duration, done func(kmsg.Response, error)) {
	floor := int16(0)
	if v, ok := q.(*kmsg.VoteRequest); ok && v.Topics[0].Partitions[0].PreVote {
		floor = preVoteVersion // without the field it would be a vote
	}
	t.peers.Send(hostPort(to.Host, to.Port), q, floor, timeout, func(resp kmsg.Response, err error) {
		switch {
		case errors.Is(err, error(api.ErrUnsupportedVersion)):
			if r := unsupported(q); r != nil {
				done(r, nil)
				return
			}
		case errors.Is(err, peer.ErrGone):
			err = fmt.Errorf("%w: %w", raft.ErrRefused, err)
		}
		done(resp, err)
	})
}

// unsupported is the response of a node that has no version of the request, where such a response makes a difference.
func unsupported(q kmsg.Request) kmsg.Response {
	resp := q.ResponseKind()
	switch r := resp.(type) {
	case *kmsg.VoteResponse:
		r.ErrorCode = api.ErrUnsupportedVersion.Code
	case *kmsg.UpdateRaftVoterResponse:
		r.ErrorCode = api.ErrUnsupportedVersion.Code
	case *kmsg.AddRaftVoterResponse:
		r.ErrorCode = api.ErrUnsupportedVersion.Code
	case *kmsg.RemoveRaftVoterResponse:
		r.ErrorCode = api.ErrUnsupportedVersion.Code
	default:
		return nil
	}
	return resp
}

// stepDown hands the quorum's leadership on before a stop: others take over while this node is still there to tell them.
func (n *Node) stepDown(ctx context.Context) {
	l := n.raft.LeaderAndEpoch()
	if !l.IsLeader(n.cfg.NodeID) || len(n.raft.Voters()) < 2 {
		return
	}
	n.raft.Resign(l.Epoch)
	bound, cancel := context.WithTimeout(ctx, stepDownTimeout)
	defer cancel()
	for n.raft.LeaderAndEpoch().IsLeader(n.cfg.NodeID) {
		select {
		case <-bound.Done():
			return
		case <-time.After(stepDownPoll):
		}
	}
}

const (
	// stepDownTimeout bounds how long a stopping leader waits to hear of its successor.
	stepDownTimeout = time.Second
	stepDownPoll    = 5 * time.Millisecond
	// quorumLeaveTimeout bounds how long the other voters get to hear that this node leaves, when some don't answer.
	quorumLeaveTimeout = 5 * time.Second
)

// leaveQuorum stops the metadata log's node. That not all others could be told is no failure of the stop: they find out.
func (n *Node) leaveQuorum(ctx context.Context) error {
	err := n.raft.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		n.logger.Warn("stopped before all voters had heard that this node leaves", "err", err)
		return nil
	}
	return err
}
