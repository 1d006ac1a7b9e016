package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/network"
	"gregor/internal/security"
)

// allows says whether the client may do an operation on a resource. A denial is logged: use it for what the client asked for.
func (b *Broker) allows(r *network.Request, op security.Operation, t security.ResourceType, name string) bool {
	return b.authorizer == nil || b.authorizer.Allows(requester(r), op, t, name)
}

// allowsQuietly is allows for what the client didn't ask for by name, or may be allowed by something else as well.
func (b *Broker) allowsQuietly(r *network.Request, op security.Operation, t security.ResourceType, name string) bool {
	return b.authorizer == nil || b.authorizer.Would(requester(r), op, t, name)
}

func (b *Broker) allowsCluster(r *network.Request, op security.Operation) bool {
	return b.allows(r, op, security.Cluster, security.ClusterName)
}

func (b *Broker) allowsTopic(r *network.Request, op security.Operation, topic string) bool {
	return b.allows(r, op, security.Topic, topic)
}

func (b *Broker) allowsGroup(r *network.Request, op security.Operation, group string) bool {
	return b.allows(r, op, security.Group, group)
}

func requester(r *network.Request) security.Requester {
	return security.Requester{Principal: r.Conn.Principal(), Addr: r.Conn.ClientAddr().Addr()}
}

// operations are what the client may do on a resource, as bits (KIP-430).
func (b *Broker) operations(r *network.Request, t security.ResourceType, name string) int32 {
	if b.authorizer == nil {
		return security.Operations(t)
	}
	return b.authorizer.Operations(requester(r), t, name)
}

// clusterOperations are what the client may do on the cluster; none at all if it may not even ask.
func (b *Broker) clusterOperations(r *network.Request) int32 {
	if !b.allowsCluster(r, security.Describe) {
		return 0
	}
	return b.operations(r, security.Cluster, security.ClusterName)
}

// describeACLs answers from the metadata.
func (b *Broker) describeACLs(r *network.Request, q *kmsg.DescribeACLsRequest) kmsg.Response {
	if !b.allowsCluster(r, security.Describe) {
		return ACLsRefused(q, errNotAllowed(q, security.Describe))
	}
	if b.authorizer == nil {
		return ACLsRefused(q, ErrNoAuthorizer)
	}
	return DescribeACLs(q, b.image())
}

// errNotAllowed refuses a request for which one must be allowed to do an operation on the cluster.
func errNotAllowed(q kmsg.Request, op security.Operation) error {
	return api.WithMessage(api.ErrClusterAuthorizationFailed, "%s needs %s permission.", api.Key(q.Key()), op)
}
