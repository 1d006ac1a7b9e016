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
