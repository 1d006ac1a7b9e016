package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/metadata"
	"gregor/internal/network"
	"gregor/internal/security"
)

// Kinds of coordinators in FindCoordinator.
const (
	groupCoordinator       int8 = 0
	transactionCoordinator int8 = 1
	shareCoordinator       int8 = 2
)

// findsShares is the version of FindCoordinator from which there are coordinators of share groups' state (KIP-932).
const findsShares = 6

// findsSeveral is the version of FindCoordinator that takes several keys (KIP-699).
const findsSeveral = 4

// findCoordinator says which broker leads the partition that a key falls to. The topic comes into being when it is first asked
// for.
func (b *Broker) findCoordinator(r *network.Request, q *kmsg.FindCoordinatorRequest) kmsg.Response {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	if q.CoordinatorType == shareCoordinator && q.Version >= findsShares && !b.allowsCluster(r, security.ClusterAction) {
		return noCoordinators(q, resp, errNotAllowed(q, security.ClusterAction))
	}
	if q.Version < findsSeveral {
		ep, node, err := b.coordinatorOf(r, q.CoordinatorType, q.CoordinatorKey)
		resp.NodeID, resp.Host, resp.Port = node, ep.Host, portOf(ep, node)
		resp.ErrorCode = api.CodeOf(err)
		text := "NONE"
		if err != nil {
			text = coordinatorMessage(err)
		}
		resp.ErrorMessage = &text
		return resp
	}
	for _, key := range q.CoordinatorKeys {
		c := kmsg.NewFindCoordinatorResponseCoordinator()
		ep, node, err := b.coordinatorOf(r, q.CoordinatorType, key)
		c.Key, c.NodeID, c.Host, c.Port = key, node, ep.Host, portOf(ep, node)
		c.ErrorCode, c.ErrorMessage = api.CodeOf(err), new(string)
		if q.CoordinatorType < groupCoordinator || q.CoordinatorType > shareCoordinator {
			*c.ErrorMessage = coordinatorMessage(err) // of the others Kafka says the code only
		}
		resp.Coordinators = append(resp.Coordinators, c)
	}
	return resp
}

// noCoordinators refuses all of a request.
func noCoordinators(q *kmsg.FindCoordinatorRequest, resp *kmsg.FindCoordinatorResponse, err error) kmsg.Response {
	for _, key := range q.CoordinatorKeys {
		c := kmsg.NewFindCoordinatorResponseCoordinator()
		c.Key, c.NodeID, c.Port = key, -1, -1
		c.ErrorCode, c.ErrorMessage = api.CodeAndMessage(err)
		resp.Coordinators = append(resp.Coordinators, c)
	}
	return resp
}

func portOf(ep metadata.Endpoint, node int32) int32 {
	if node < 0 {
		return -1
	}
	return int32(ep.Port)
}

// coordinatorMessage is what Kafka says to people about the errors that coordinatorOf can have.
func coordinatorMessage(err error) string {
	if api.CodeOf(err) == api.ErrCoordinatorNotAvailable.Code {
		return "The coordinator is not available."
	}
	return api.MessageOf(err)
}

// coordinatorOf finds the broker; node is -1 with an error.
func (b *Broker) coordinatorOf(r *network.Request, kind int8, key string) (ep metadata.Endpoint, node int32, err error) {
	node = -1
	switch {
	case kind == groupCoordinator && !b.allowsGroup(r, security.Describe, key):
		return ep, node, api.ErrGroupAuthorizationFailed
	case kind == transactionCoordinator && !b.allows(r, security.Describe, security.TransactionalID, key):
		return ep, node, api.ErrTransactionalIDAuthorizationFailed
	}
	if kind != groupCoordinator {
		// The coordinators of transactions and of share state aren't in this build: there is no key of theirs. Kafka
		// answers so too when it has no share coordinator.
		return ep, node, api.ErrInvalidRequest
	}
	partition, ok := b.groups.PartitionFor(key)
	if !ok {
		return ep, node, api.ErrCoordinatorNotAvailable
	}
	img := b.image()
	topic := img.Topics.ByName(offsetsTopic)
	if topic == nil {
		b.creations.create(Client{}, offsetsTopic)
		return ep, node, api.ErrCoordinatorNotAvailable
	}
	p := topic.Partition(partition)
	if p == nil {
		return ep, node, api.ErrCoordinatorNotAvailable
	}
	if ep, ok = aliveEndpoint(img, p.Leader, r.Conn.Listener()); !ok {
		return metadata.Endpoint{}, node, api.ErrCoordinatorNotAvailable
	}
	return ep, p.Leader, nil
}
