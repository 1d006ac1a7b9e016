package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/network"
)

func (b *Broker) describeQuorum(r *network.Request, q *kmsg.DescribeQuorumRequest, reply func(kmsg.Response)) {
	b.forward(r, q, reply, func(err error) kmsg.Response {
		resp := q.ResponseKind().(*kmsg.DescribeQuorumResponse)
		resp.ErrorCode = api.CodeOf(err)
		return resp
	})
}

func (b *Broker) addRaftVoter(r *network.Request, q *kmsg.AddRaftVoterRequest, reply func(kmsg.Response)) {
	b.forward(r, q, reply, func(err error) kmsg.Response {
		resp := q.ResponseKind().(*kmsg.AddRaftVoterResponse)
		resp.ErrorCode, resp.ErrorMessage = told(err)
		return resp
	})
}

func (b *Broker) removeRaftVoter(r *network.Request, q *kmsg.RemoveRaftVoterRequest, reply func(kmsg.Response)) {
	b.forward(r, q, reply, func(err error) kmsg.Response {
		resp := q.ResponseKind().(*kmsg.RemoveRaftVoterResponse)
		resp.ErrorCode, resp.ErrorMessage = told(err)
		return resp
	})
}
