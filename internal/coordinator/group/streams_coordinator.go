package group

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
)

// StreamsGroupHeartbeat answers versions 0 and 1. With the answer come the internal topics that the group needs and that have to be
// created. That the topology's topics have valid names is the caller's business.
func (c *Coordinator) StreamsGroupHeartbeat(ctx *Context, req *kmsg.StreamsGroupHeartbeatRequest,
	reply func(resp *kmsg.StreamsGroupHeartbeatResponse, missing []kmsg.CreateTopicsRequestTopic),
) {
	fail := func(err error) {
		resp := newStreamsResponse()
		text := api.MessageOf(err)
		resp.ErrorCode, resp.ErrorMessage = api.CodeOf(err), &text
		reply(resp, nil)
	}
	p, ok := c.PartitionFor(req.Group)
	if !ok {
		resp := newStreamsResponse()
		resp.ErrorCode = api.ErrCoordinatorNotAvailable.Code
		reply(resp, nil)
		return
	}
	if err := checkStreamsHeartbeat(req); err != nil {
		fail(err)
		return
	}
	var answer streamsAnswer
	c.rt.Write(p, func(g *core, now time.Time) (res result, err error) {
		res, answer, err = g.streamsHeartbeat(ctx, req, now)
		return res, err
	}, func(err error) {
		if err != nil {
			fail(c.failed("StreamsGroupHeartbeat", err))
			return
		}
		reply(answer.resp, answer.missing)
	})
}

// newStreamsResponse is an answer without any status; that is not null, as it might be.
func newStreamsResponse() *kmsg.StreamsGroupHeartbeatResponse {
	resp := kmsg.NewPtrStreamsGroupHeartbeatResponse()
	resp.Status = []kmsg.StreamsGroupHeartbeatResponseStatus{}
	return resp
}

// StreamsGroupDescribe answers versions 0 and 1 for some groups, in their order.
func (c *Coordinator) StreamsGroupDescribe(_ *Context, ids []string, reply func([]kmsg.StreamsGroupDescribeResponseGroup)) {
	groups := make([]kmsg.StreamsGroupDescribeResponseGroup, len(ids))
	gather := newGather(len(ids), func() { reply(groups) })
	for i, id := range ids {
		fail := func(err error) {
			d := kmsg.NewStreamsGroupDescribeResponseGroup()
			d.Group, d.ErrorCode = id, api.CodeOf(err)
			gather.add(func() { groups[i] = d })
		}
		p, err := c.locate(id)
		if err != nil {
			fail(err)
			continue
		}
		c.rt.Read(p, func(g *core, committed int64) {
			d := g.describeStreams(id, committed)
			g.env.Later(func() { gather.add(func() { groups[i] = d }) })
		}, func(err error) { fail(c.failed("StreamsGroupDescribe", err)) })
	}
}
