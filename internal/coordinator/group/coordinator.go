package group

import (
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/coordinator"
	"gregor/internal/metadata"
	"gregor/internal/record"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// Topic is the internal topic that has the state of all groups.
const Topic = "__consumer_offsets"

// Options configure a Coordinator. Log, Clock and Rand are required.
type Options struct {
	// Log are this node's replicas of Topic.
	Log    coordinator.Log
	Clock  clock.Clock
	Logger *slog.Logger
	// Rand gives the random part of member ids. It is used by one goroutine at a time.
	Rand   io.Reader
	Config Config

	// The rest is the runtime's; see coordinator.Options.
	Linger            time.Duration
	Compression       record.Codec
	Compressor        *record.Compressor
	Decompressor      *record.Decompressor
	CachedBufferBytes int
	LoadBufferBytes   int
	LoadThreads       int
}

// Coordinator is this node's part of group coordination: it answers for the groups whose partition of Topic it leads.
//
// Its methods are safe for concurrent use. Those for requests take a body that has been checked against its schema and a
// reply that is called exactly once, on any goroutine, perhaps before the method returns. They keep nothing of the request
// after that, but may read it until then. Authorization, and whether topics exist, is the caller's business.
type Coordinator struct {
	cfg Config
	rt  *coordinator.Runtime[*core, Record]
	log *slog.Logger
	// partitions of Topic; 0 until Start, negative after Close.
	partitions atomic.Int32
	counters   counters
	// image is the newest metadata.
	image atomic.Pointer[metadata.Image]
	// jobs are what runs in the background.
	jobs sync.WaitGroup

	randMu sync.Mutex // guards rand
	rand   io.Reader
}

// New returns a coordinator that isn't started.
func New(o Options) *Coordinator {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Coordinator{cfg: o.Config, log: o.Logger, rand: o.Rand}
	c.image.Store(metadata.EmptyImage())
	c.rt = coordinator.New(coordinator.Options[*core, Record]{
		Name:              "group",
		Topic:             Topic,
		Log:               o.Log,
		Codec:             Codec{},
		NewCore:           c.newCore,
		Clock:             o.Clock,
		Logger:            o.Logger,
		WriteTimeout:      o.Config.CommitTimeout,
		Linger:            o.Linger,
		Compression:       o.Compression,
		Compressor:        o.Compressor,
		Decompressor:      o.Decompressor,
		CachedBufferBytes: o.CachedBufferBytes,
		LoadBufferBytes:   o.LoadBufferBytes,
		LoadThreads:       o.LoadThreads,
	})
	return c
}

// newCore makes the core of a shard.
func (c *Coordinator) newCore(env coordinator.Env[Record]) *core {
	g := newCore(&c.cfg, env, c.uuid, &c.counters)
	g.memberID = c.memberID
	g.latest = c.image.Load
	g.background = func(job func() func(*core, time.Time) (result, error)) {
		c.jobs.Go(func() {
			c.rt.Write(env.Partition, job(), func(err error) {
				if err != nil {
					c.log.Warn("what was found in the background could not be stored", "partition", env.Partition, "err", err)
				}
			})
		})
	}
	return g
}

// memberID is the random id of a member that hasn't made one itself, in Kafka's text form.
func (c *Coordinator) memberID() string {
	c.randMu.Lock()
	id, err := uuid.New(c.rand)
	c.randMu.Unlock()
	if err != nil {
		panic(fmt.Sprintf("group: no random bytes for a member id: %v", err))
	}
	return id.String()
}

// MetadataUpdated tells of new metadata. d is how it came about; nil if that has no topics. It must be called in order, and
// before Elected for what was elected in it.
func (c *Coordinator) MetadataUpdated(d *metadata.TopicsDelta, img *metadata.Image) {
	// A shard that is loading refuses what follows, but looks here when it is through.
	c.image.Store(img)
	var tc topicChanges
	if d != nil {
		tc = changesOf(d)
	}
	for _, p := range c.rt.Partitions() {
		c.rt.Read(p, func(g *core, _ int64) { g.metadataUpdated(img, tc) }, func(error) {})
	}
}

// uuid is a random UUID in the text form that Java gives it.
func (c *Coordinator) uuid() string {
	var b [16]byte
	c.randMu.Lock()
	_, err := io.ReadFull(c.rand, b[:])
	c.randMu.Unlock()
	if err != nil {
		panic(fmt.Sprintf("group: no random bytes for a member id: %v", err))
	}
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var s [36]byte
	hex.Encode(s[0:], b[0:4])
	hex.Encode(s[9:], b[4:6])
	hex.Encode(s[14:], b[6:8])
	hex.Encode(s[19:], b[8:10])
	hex.Encode(s[24:], b[10:16])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

// Start makes the coordinator answer. partitions is how many Topic has, or will have: "offsets.topic.num.partitions". Only the
// first call counts.
func (c *Coordinator) Start(partitions int32) { c.partitions.CompareAndSwap(0, partitions) }

// Close stops the coordinator: who waits is told that it isn't one any more. The log must still be there.
func (c *Coordinator) Close() {
	c.partitions.Store(-1)
	c.rt.Close()
	c.jobs.Wait()
}

// Elected tells that this node leads a partition of Topic as of a leader epoch. It loads the partition in the background.
func (c *Coordinator) Elected(partition, leaderEpoch int32) { c.rt.Load(partition, leaderEpoch) }

// Resigned tells that another node leads a partition of Topic as of a leader epoch; negative: that there is no replica of it
// here any more.
func (c *Coordinator) Resigned(partition, leaderEpoch int32) { c.rt.Unload(partition, leaderEpoch) }

// HighWatermarkUpdated tells of a higher high watermark of a partition of Topic. It may be called with locks held.
func (c *Coordinator) HighWatermarkUpdated(partition int32, hw int64) {
	c.rt.HighWatermarkUpdated(partition, hw)
}

// TopicsDeleted removes the offsets of topics that have been deleted.
func (c *Coordinator) TopicsDeleted(topics []string) {
	deleted := make(map[string]bool, len(topics))
	for _, t := range topics {
		deleted[t] = true
	}
	for _, p := range c.rt.Partitions() {
		c.rt.Write(p, func(g *core, _ time.Time) (result, error) { return g.topicsDeleted(deleted), nil },
			func(err error) {
				if err != nil {
					c.log.Error("offsets of deleted topics could not be removed", "topics", topics, "partition", p, "err", err)
				}
			})
	}
}

// PartitionFor is the partition of Topic that a group belongs to; false while the coordinator isn't started.
func (c *Coordinator) PartitionFor(group string) (int32, bool) {
	n := c.partitions.Load()
	if n <= 0 {
		return 0, false
	}
	return coordinator.PartitionFor(group, n), true
}

// locate is PartitionFor, for a request that needs a group id.
func (c *Coordinator) locate(group string) (int32, error) {
	p, ok := c.PartitionFor(group)
	switch {
	case !ok:
		return 0, api.ErrCoordinatorNotAvailable
	case group == "":
		return 0, api.ErrInvalidGroupID
	}
	return p, nil
}

// failed turns an error of an operation into the answer to a client.
func (c *Coordinator) failed(operation string, err error) error {
	answer := coordinator.OperationError(err)
	if api.CodeOf(answer) == api.CodeUnknownServerError {
		c.log.Error("group operation failed", "operation", operation, "err", err)
	}
	return answer
}

// JoinGroup answers versions 0 to 9.
func (c *Coordinator) JoinGroup(ctx *Context, req *kmsg.JoinGroupRequest, reply func(*kmsg.JoinGroupResponse)) {
	p, err := c.locate(req.Group)
	session := time.Duration(req.SessionTimeoutMillis) * time.Millisecond
	if err == nil && (session < c.cfg.MinSessionTimeout || session > c.cfg.MaxSessionTimeout) {
		err = api.ErrInvalidSessionTimeout
	}
	if err != nil {
		reply(joinError(req.MemberID, err))
		return
	}
	var answered atomic.Bool // a failed append may come when the member was answered, and the other way round
	c.rt.Write(p, func(g *core, now time.Time) (result, error) {
		return g.join(&joinRequest{JoinGroupRequest: req, ctx: ctx, reply: func(resp *kmsg.JoinGroupResponse) {
			if !answered.Swap(true) {
				g.env.Later(func() { reply(resp) })
			}
		}}, now), nil
	}, func(err error) {
		if err != nil && !answered.Swap(true) {
			reply(joinError("", c.failed("JoinGroup", err)))
		}
	})
}

// SyncGroup answers versions 0 to 5.
func (c *Coordinator) SyncGroup(_ *Context, req *kmsg.SyncGroupRequest, reply func(*kmsg.SyncGroupResponse)) {
	p, err := c.locate(req.Group)
	if err != nil {
		reply(syncError(err))
		return
	}
	var answered atomic.Bool
	c.rt.Write(p, func(g *core, now time.Time) (result, error) {
		return g.sync(req, func(resp *kmsg.SyncGroupResponse) {
			if !answered.Swap(true) {
				g.env.Later(func() { reply(resp) })
			}
		}, now), nil
	}, func(err error) {
		if err != nil && !answered.Swap(true) {
			reply(syncError(c.failed("SyncGroup", err)))
		}
	})
}

// Heartbeat answers versions 0 to 4.
func (c *Coordinator) Heartbeat(_ *Context, req *kmsg.HeartbeatRequest, reply func(*kmsg.HeartbeatResponse)) {
	answer := func(err error) {
		resp := kmsg.NewPtrHeartbeatResponse()
		resp.ErrorCode = api.CodeOf(err)
		reply(resp)
	}
	p, err := c.locate(req.Group)
	if err != nil {
		answer(err)
		return
	}
	c.rt.Write(p, func(g *core, now time.Time) (result, error) { return result{}, g.heartbeat(req, now) },
		func(err error) {
			if api.CodeOf(err) == api.ErrCoordinatorLoadInProgress.Code {
				err = nil // it may well be a member; nobody can say yet
			}
			answer(c.failed("Heartbeat", err))
		})
}

// LeaveGroup answers versions 0 to 5. The member of versions 0 to 2 is taken for a list of one.
func (c *Coordinator) LeaveGroup(ctx *Context, req *kmsg.LeaveGroupRequest, reply func(*kmsg.LeaveGroupResponse)) {
	const manyMembers = 3
	if ctx.Version < manyMembers {
		one := kmsg.NewLeaveGroupRequestMember()
		one.MemberID = req.MemberID
		many := *req
		many.Members = []kmsg.LeaveGroupRequestMember{one}
		req = &many
	}
	answer := func(resp *kmsg.LeaveGroupResponse) {
		if ctx.Version < manyMembers && resp.ErrorCode == 0 && len(resp.Members) > 0 {
			resp.ErrorCode = resp.Members[0].ErrorCode
		}
		reply(resp)
	}
	fail := func(err error) {
		resp := kmsg.NewPtrLeaveGroupResponse()
		resp.ErrorCode = api.CodeOf(err)
		answer(resp)
	}
	p, err := c.locate(req.Group)
	if err != nil {
		fail(err)
		return
	}
	var resp *kmsg.LeaveGroupResponse
	c.rt.Write(p, func(g *core, now time.Time) (res result, err error) {
		res, resp = g.leave(req, now)
		return res, nil
	}, func(err error) {
		if err != nil {
			fail(c.failed("LeaveGroup", err))
			return
		}
		answer(resp)
	})
}

// ConsumerGroupHeartbeat answers versions 0 and 1.
func (c *Coordinator) ConsumerGroupHeartbeat(ctx *Context, req *kmsg.ConsumerGroupHeartbeatRequest,
	reply func(*kmsg.ConsumerGroupHeartbeatResponse),
) {
	fail := func(err error) {
		resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
		text := api.MessageOf(err)
		resp.ErrorCode, resp.ErrorMessage = api.CodeOf(err), &text
		reply(resp)
	}
	p, ok := c.PartitionFor(req.Group)
	if !ok {
		resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
		resp.ErrorCode = api.ErrCoordinatorNotAvailable.Code
		reply(resp)
		return
	}
	if err := c.checkHeartbeat(ctx.Version, req); err != nil {
		fail(err)
		return
	}
	var resp *kmsg.ConsumerGroupHeartbeatResponse
	c.rt.Write(p, func(g *core, now time.Time) (res result, err error) {
		res, resp, err = g.consumerHeartbeat(ctx, req, now)
		return res, err
	}, func(err error) {
		if err != nil {
			fail(c.failed("ConsumerGroupHeartbeat", err))
			return
		}
		reply(resp)
	})
}

// ConsumerGroupDescribe answers versions 0 and 1 for some groups, in their order.
func (c *Coordinator) ConsumerGroupDescribe(_ *Context, ids []string, reply func([]kmsg.ConsumerGroupDescribeResponseGroup)) {
	groups := make([]kmsg.ConsumerGroupDescribeResponseGroup, len(ids))
	gather := newGather(len(ids), func() { reply(groups) })
	for i, id := range ids {
		fail := func(err error) {
			d := kmsg.NewConsumerGroupDescribeResponseGroup()
			d.Group, d.ErrorCode = id, api.CodeOf(err)
			gather.add(func() { groups[i] = d })
		}
		p, err := c.locate(id)
		if err != nil {
			fail(err)
			continue
		}
		c.rt.Read(p, func(g *core, committed int64) {
			d := g.describeConsumer(id, committed)
			g.env.Later(func() { gather.add(func() { groups[i] = d }) })
		}, func(err error) { fail(c.failed("ConsumerGroupDescribe", err)) })
	}
}

// OffsetCommit answers versions 2 to 10. Topics have their names whatever the version, and their ids if they are known, and
// exist.
func (c *Coordinator) OffsetCommit(ctx *Context, req *kmsg.OffsetCommitRequest, reply func(*kmsg.OffsetCommitResponse)) {
	answer := func(codes [][]int16, err error) {
		resp := kmsg.NewPtrOffsetCommitResponse()
		resp.Topics = make([]kmsg.OffsetCommitResponseTopic, len(req.Topics))
		code := api.CodeOf(err)
		for i := range req.Topics {
			rt, t := &req.Topics[i], &resp.Topics[i]
			t.Topic, t.TopicID = rt.Topic, rt.TopicID
			t.Partitions = make([]kmsg.OffsetCommitResponseTopicPartition, len(rt.Partitions))
			for j := range rt.Partitions {
				t.Partitions[j].Partition, t.Partitions[j].ErrorCode = rt.Partitions[j].Partition, code
				if code == 0 {
					t.Partitions[j].ErrorCode = codes[i][j]
				}
			}
		}
		reply(resp)
	}
	// The empty group id is allowed: it was before KIP-289, and its offsets are still used.
	p, ok := c.PartitionFor(req.Group)
	if !ok {
		answer(nil, api.ErrCoordinatorNotAvailable)
		return
	}
	var codes [][]int16
	c.rt.Write(p, func(g *core, now time.Time) (res result, err error) {
		res, codes, err = g.commit(&commitRequest{
			group: req.Group,
			check: commitCheck{
				memberID: req.MemberID, instanceID: req.InstanceID, generation: req.Generation, version: ctx.Version,
			},
			retention: req.RetentionTimeMillis,
			topics:    req.Topics,
		}, now)
		return res, err
	}, func(err error) {
		if err != nil {
			err = c.failed("OffsetCommit", err)
		}
		answer(codes, err)
	})
}

// OffsetFetch answers for one group of a request of versions 1 to 10: all its offsets if all is set, else those of
// req.Topics, which have their names whatever the version, and their ids if they are known.
func (c *Coordinator) OffsetFetch(_ *Context, req *kmsg.OffsetFetchRequestGroup, all, requireStable bool,
	reply func(kmsg.OffsetFetchResponseGroup),
) {
	fail := func(err error) {
		resp := kmsg.NewOffsetFetchResponseGroup()
		resp.Group = req.Group
		resp.ErrorCode = api.CodeOf(err)
		reply(resp)
	}
	p, ok := c.PartitionFor(req.Group)
	if !ok {
		fail(api.ErrCoordinatorNotAvailable)
		return
	}
	if !requireStable {
		c.rt.Read(p, func(g *core, committed int64) {
			resp, err := g.fetchOffsets(req, all, false, committed)
			g.env.Later(func() {
				if err != nil {
					fail(err)
					return
				}
				reply(resp)
			})
		}, func(err error) { fail(c.failed("OffsetFetch", err)) })
		return
	}
	// Stable offsets are those that nothing under way can change: the answer is of the latest state and waits until that
	// is committed.
	var resp kmsg.OffsetFetchResponseGroup
	c.rt.Write(p, func(g *core, _ time.Time) (_ result, err error) {
		resp, err = g.fetchOffsets(req, all, true, timeline.Latest)
		return result{}, err
	}, func(err error) {
		switch api.CodeOf(err) {
		case api.CodeNone:
			reply(resp)
		case api.ErrUnknownTopicOrPartition.Code, api.ErrNotEnoughReplicas.Code, api.ErrRequestTimedOut.Code:
			// Consumers before 3.9 retry on this one only.
			fail(api.ErrNotCoordinator)
		default:
			fail(c.failed("OffsetFetch", err))
		}
	})
}

// OffsetDelete answers version 0.
func (c *Coordinator) OffsetDelete(_ *Context, req *kmsg.OffsetDeleteRequest, reply func(*kmsg.OffsetDeleteResponse)) {
	fail := func(err error) {
		resp := kmsg.NewPtrOffsetDeleteResponse()
		resp.ErrorCode = api.CodeOf(err)
		reply(resp)
	}
	p, err := c.locate(req.Group)
	if err != nil {
		fail(err)
		return
	}
	var resp *kmsg.OffsetDeleteResponse
	c.rt.Write(p, func(g *core, _ time.Time) (res result, err error) {
		res, resp, err = g.deleteOffsets(req)
		return res, err
	}, func(err error) {
		if err != nil {
			fail(c.failed("OffsetDelete", err))
			return
		}
		reply(resp)
	})
}

// ListGroups answers versions 0 to 5 with the groups of all partitions that this node leads. While one of them is loading
// the answer is COORDINATOR_LOAD_IN_PROGRESS.
func (c *Coordinator) ListGroups(_ *Context, req *kmsg.ListGroupsRequest, reply func(*kmsg.ListGroupsResponse)) {
	resp := kmsg.NewPtrListGroupsResponse()
	if c.partitions.Load() <= 0 {
		resp.ErrorCode = api.ErrCoordinatorNotAvailable.Code
		reply(resp)
		return
	}
	partitions := c.rt.Partitions()
	g := newGather(len(partitions), func() { reply(resp) })
	for _, p := range partitions {
		c.rt.Read(p, func(core *core, committed int64) {
			groups := core.list(req.StatesFilter, req.TypesFilter, committed)
			core.env.Later(func() {
				g.add(func() {
					if resp.ErrorCode == 0 {
						resp.Groups = append(resp.Groups, groups...)
					}
				})
			})
		}, func(err error) {
			g.add(func() {
				if api.CodeOf(err) != api.ErrNotCoordinator.Code && resp.ErrorCode == 0 {
					resp.ErrorCode, resp.Groups = api.CodeOf(c.failed("ListGroups", err)), nil
				}
			})
		})
	}
}

// DescribeGroups answers versions 0 to 6 for some groups, in their order.
func (c *Coordinator) DescribeGroups(ctx *Context, ids []string, reply func([]kmsg.DescribeGroupsResponseGroup)) {
	described := make([]kmsg.DescribeGroupsResponseGroup, len(ids))
	gather := newGather(len(ids), func() { reply(described) })
	for i, id := range ids {
		fail := func(err error) {
			d := kmsg.NewDescribeGroupsResponseGroup()
			d.Group, d.ErrorCode = id, api.CodeOf(err)
			gather.add(func() { described[i] = d })
		}
		p, ok := c.PartitionFor(id)
		if !ok {
			fail(api.ErrCoordinatorNotAvailable)
			continue
		}
		c.rt.Read(p, func(g *core, committed int64) {
			d := g.describe(ctx.Version, id, committed)
			g.env.Later(func() { gather.add(func() { described[i] = d }) })
		}, func(err error) { fail(c.failed("DescribeGroups", err)) })
	}
}

// DeleteGroups answers versions 0 to 3 for some groups, those of one partition together.
func (c *Coordinator) DeleteGroups(_ *Context, ids []string, reply func([]kmsg.DeleteGroupsResponseGroup)) {
	var (
		order   []int32
		byShard = make(map[int32][]string)
		answers []kmsg.DeleteGroupsResponseGroup
	)
	refuse := func(ids []string, err error) {
		for _, id := range ids {
			a := kmsg.NewDeleteGroupsResponseGroup()
			a.Group, a.ErrorCode = id, api.CodeOf(err)
			answers = append(answers, a)
		}
	}
	for _, id := range ids {
		p, ok := c.PartitionFor(id)
		if !ok {
			refuse(ids, api.ErrCoordinatorNotAvailable)
			reply(answers)
			return
		}
		if byShard[p] == nil {
			order = append(order, p)
		}
		byShard[p] = append(byShard[p], id)
	}
	gather := newGather(len(order), func() { reply(answers) })
	for _, p := range order {
		var some []kmsg.DeleteGroupsResponseGroup
		c.rt.Write(p, func(g *core, _ time.Time) (res result, err error) {
			res, some = g.deleteGroups(byShard[p])
			return res, nil
		}, func(err error) {
			gather.add(func() {
				if err != nil {
					refuse(byShard[p], c.failed("DeleteGroups", err))
					return
				}
				answers = append(answers, some...)
			})
		})
	}
}

// gather calls done after a number of parts have been added.
type gather struct {
	mu   sync.Mutex // guards left and whatever the parts write to
	left int
	done func()
}

func newGather(parts int, done func()) *gather {
	if parts == 0 {
		done()
	}
	return &gather{left: parts, done: done}
}

// add runs part with the lock held and, after the last one, done without it.
func (g *gather) add(part func()) {
	g.mu.Lock()
	part()
	g.left--
	last := g.left == 0
	g.mu.Unlock()
	if last {
		g.done()
	}
}
