package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// run owns the group membership and decides what is fetched.
func (u *Consumer) run() {
	defer u.wg.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	u.nextCommit = time.Now().Add(u.o.AutoCommit)
	for {
		now := time.Now()
		wake := u.startFetches(now)
		if u.grouped() {
			wake = earliest(wake, u.apply(u.core.tick(now)))
			u.checkPartitions(now)
		}
		if u.o.Group != "" && u.o.AutoCommit > 0 {
			if !now.Before(u.nextCommit) {
				u.nextCommit = now.Add(u.o.AutoCommit)
				if u.core.state == stable || !u.grouped() {
					u.background(func() {
						if err := u.commitProcessed(u.ctx, nil); err != nil && u.ctx.Err() == nil {
							u.c.o.Logger.Warn("offsets can't be committed", "group", u.o.Group, "err", err)
						}
					})
				}
			}
			wake = earliest(wake, u.nextCommit)
		}
		wait := time.Hour
		if !wake.IsZero() {
			wait = max(0, time.Until(wake))
		}
		timer.Reset(wait)
		select {
		case f := <-u.events:
			f()
		case <-timer.C:
		case <-u.ctx.Done():
			return
		}
		for more := true; more; {
			select {
			case f := <-u.events:
				f()
			default:
				more = false
			}
		}
	}
}

// apply does what the core says and returns when to step it again.
func (u *Consumer) apply(e groupEffects) time.Time {
	if len(e.revoke) > 0 {
		u.revoke(e.revoke)
	}
	if len(e.lost) > 0 {
		u.drop(e.lost)
		if u.o.OnLost != nil {
			u.o.OnLost(e.lost)
		}
	}
	if len(e.assign) > 0 {
		u.assign(e.assign)
	}
	u.mu.Lock()
	u.member = membership{u.core.memberID, u.core.generation}
	if e.fatal != nil {
		u.fail(fmt.Errorf("group %q: %w", u.o.Group, e.fatal))
	}
	u.mu.Unlock()
	if e.join {
		u.sendJoin()
	}
	if e.heartbeat {
		u.sendHeartbeat()
	}
	return e.wake
}

func (u *Consumer) revoke(tps []TopicPartition) {
	if u.o.OnRevoked != nil {
		u.o.OnRevoked(tps)
	}
	if u.o.AutoCommit > 0 {
		ctx, cancel := context.WithTimeout(u.ctx, 5*time.Second)
		if err := u.commitProcessed(ctx, tps); err != nil {
			u.c.o.Logger.Warn("offsets can't be committed before a rebalance", "group", u.o.Group, "err", err)
		}
		cancel()
	}
	u.drop(tps)
}

func (u *Consumer) drop(tps []TopicPartition) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, tp := range tps {
		if p := u.parts[tp]; p != nil {
			p.dropped = true
			delete(u.parts, tp)
		}
	}
	u.c.o.Logger.Info("partitions revoked", "group", u.o.Group, "partitions", fmt.Sprint(tps))
}

func (u *Consumer) assign(tps []TopicPartition) {
	u.mu.Lock()
	for _, tp := range tps {
		u.parts[tp] = newConsumed(tp, Committed)
	}
	u.mu.Unlock()
	u.c.o.Logger.Info("partitions assigned", "group", u.o.Group, "partitions", fmt.Sprint(tps))
	if u.o.OnAssigned != nil {
		u.o.OnAssigned(tps)
	}
}

// sendJoin joins. The answer comes when all members have joined, which may take the rebalance timeout.
func (u *Consumer) sendJoin() {
	g := &u.core
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.InstanceID, req.ProtocolType = u.o.Group, g.memberID, u.instance(), "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(u.o.Session.Milliseconds()), int32(u.o.Rebalance.Milliseconds())
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics, meta.Generation = 3, g.subscribed, g.generation
	owned := byTopic(g.owned)
	for _, t := range sortedKeys(owned) {
		meta.OwnedPartitions = append(meta.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: t, Partitions: owned[t]})
	}
	for _, a := range g.assignors {
		req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: a.Name(), Metadata: meta.AppendTo(nil)})
	}
	to := u.toGroup()
	to.timeout = u.o.Rebalance + 5*time.Second
	u.background(func() {
		resp, err := exchange[*kmsg.JoinGroupResponse](u.ctx, u.c, to, req)
		reply := joinReply{}
		if err == nil {
			err = errorOf(resp.ErrorCode, nil)
			reply, _ = joinReplyOf(resp, err)
		}
		u.lookUpAgain(err)
		u.post(func() {
			if err == nil && g.assignor(reply.protocol) == nil {
				err = fmt.Errorf("group uses assignor %q, which this member doesn't have", reply.protocol)
			}
			backoff := u.c.backoff(g.failures)
			if e := g.joined(time.Now(), reply.memberID, reply.generation, reply.protocol, err, backoff); e.sync {
				u.sendSync(reply)
			} else {
				u.apply(e)
			}
		})
	})
}

func joinReplyOf(r *kmsg.JoinGroupResponse, err error) (joinReply, error) {
	out := joinReply{memberID: r.MemberID, generation: r.Generation, leader: r.LeaderID == r.MemberID, skip: r.SkipAssignment}
	if r.Protocol != nil {
		out.protocol = *r.Protocol
	}
	if err != nil {
		return out, err
	}
	for _, m := range r.Members {
		am := AssignMember{ID: m.MemberID, Generation: -1}
		if m.InstanceID != nil {
			am.InstanceID = *m.InstanceID
		}
		var meta kmsg.ConsumerMemberMetadata
		if err := meta.ReadFrom(m.ProtocolMetadata); err != nil {
			return out, fmt.Errorf("metadata of member %s: %w", m.MemberID, err)
		}
		am.Topics = meta.Topics
		for _, t := range meta.OwnedPartitions {
			for _, p := range t.Partitions {
				am.Owned = append(am.Owned, TopicPartition{t.Topic, p})
			}
		}
		if meta.Version >= 2 {
			am.Generation = meta.Generation
		}
		out.members = append(out.members, am)
	}
	return out, nil
}

// toGroup is the coordinator, on the consumer's own connection.
func (u *Consumer) toGroup() target {
	to := toGroup(u.o.Group)
	to.purpose = u.forGroup
	return to
}

// lookUpAgain forgets the coordinator if it is to be looked up again.
func (u *Consumer) lookUpAgain(err error) {
	if err != nil && needsRefresh(err) {
		u.c.forgetCoordinator(coordinator{coordinatorGroup, u.o.Group}, anyNode)
	}
}

// sendSync hands in the assignments, if this member leads, and gets its own.
func (u *Consumer) sendSync(reply joinReply) {
	g := &u.core
	req := kmsg.NewPtrSyncGroupRequest()
	protocolType := "consumer"
	req.Group, req.MemberID, req.InstanceID, req.Generation = u.o.Group, reply.memberID, u.instance(), reply.generation
	req.ProtocolType, req.Protocol = &protocolType, &reply.protocol
	assignor := g.assignor(reply.protocol)
	u.mu.Lock()
	u.member = membership{reply.memberID, reply.generation}
	u.mu.Unlock()
	to := u.toGroup()
	to.timeout = u.o.Rebalance + 5*time.Second
	u.background(func() {
		var err error
		var counts map[string]int32
		if reply.leader && !reply.skip {
			if counts, err = u.partitionCounts(topicsOf(reply.members)); err == nil {
				req.GroupAssignment = assignmentsOf(assignor.Assign(reply.members, counts))
			}
		}
		var assigned []TopicPartition
		if err == nil {
			var resp *kmsg.SyncGroupResponse
			if resp, err = exchange[*kmsg.SyncGroupResponse](u.ctx, u.c, to, req); err == nil {
				if err = errorOf(resp.ErrorCode, nil); err == nil {
					assigned, err = readAssignment(resp.MemberAssignment)
				}
			}
		}
		u.lookUpAgain(err)
		u.post(func() {
			u.counts = counts
			u.apply(g.synced(time.Now(), assigned, err, u.c.backoff(g.failures)))
		})
	})
}

func assignmentsOf(plan map[string][]TopicPartition) []kmsg.SyncGroupRequestGroupAssignment {
	var out []kmsg.SyncGroupRequestGroupAssignment
	for _, id := range sortedKeys(plan) {
		a := kmsg.NewConsumerMemberAssignment()
		a.Version = 3
		topics := byTopic(plan[id])
		for _, t := range sortedKeys(topics) {
			a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: t, Partitions: topics[t]})
		}
		out = append(out, kmsg.SyncGroupRequestGroupAssignment{MemberID: id, MemberAssignment: a.AppendTo(nil)})
	}
	return out
}

// partitionCounts asks for the topics afresh; those that don't exist are left out.
func (u *Consumer) partitionCounts(topics []string) (map[string]int32, error) {
	m, err := u.c.Metadata(u.ctx, topics)
	if err != nil {
		return nil, err
	}
	counts := map[string]int32{}
	for _, t := range m.Topics {
		switch {
		case t.Err == nil:
			counts[t.Name] = int32(len(t.Partitions))
		case !errors.Is(t.Err, UnknownTopicOrPartition):
			return nil, fmt.Errorf("topic %q: %w", t.Name, t.Err)
		}
	}
	return counts, nil
}

// checkPartitions has the group's leader look now and then whether topics have more partitions than it handed out.
func (u *Consumer) checkPartitions(now time.Time) {
	if u.counts == nil || u.core.state != stable {
		u.nextCheck = now.Add(u.checkEvery())
		return
	}
	if now.Before(u.nextCheck) {
		return
	}
	u.nextCheck = now.Add(u.checkEvery())
	before := u.counts
	topics := u.core.subscribed
	u.background(func() {
		counts, err := u.partitionCounts(topics)
		if err != nil {
			return
		}
		u.post(func() {
			for t, n := range counts {
				if before[t] != n && slices.Contains(u.core.subscribed, t) {
					u.core.rejoin = true
				}
			}
		})
	})
}

func (u *Consumer) checkEvery() time.Duration { return min(u.c.o.MetadataMaxAge, 30*time.Second) }

func (u *Consumer) sendHeartbeat() {
	g := &u.core
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.InstanceID, req.Generation = u.o.Group, g.memberID, u.instance(), g.generation
	to := u.toGroup()
	to.timeout = min(u.c.o.RequestTimeout, u.o.Session)
	u.background(func() {
		resp, err := exchange[*kmsg.HeartbeatResponse](u.ctx, u.c, to, req)
		if err == nil {
			err = errorOf(resp.ErrorCode, nil)
		}
		u.lookUpAgain(err)
		u.post(func() { u.apply(g.beat(time.Now(), req.Generation, err, u.c.backoff(0))) })
	})
}

// shutdown commits and leaves.
func (u *Consumer) shutdown(ctx context.Context) error {
	if !u.grouped() {
		if u.o.AutoCommit > 0 {
			return u.commitProcessed(ctx, nil)
		}
		return nil
	}
	member := u.core.memberID
	u.apply(u.core.leave())
	if member == "" || u.o.InstanceID != "" {
		return nil
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	reason := "the consumer is being closed"
	req.Group, req.MemberID = u.o.Group, member
	req.Members = []kmsg.LeaveGroupRequestMember{{MemberID: member, Reason: &reason}}
	resp, err := exchange[*kmsg.LeaveGroupResponse](ctx, u.c, u.toGroup(), req)
	if err != nil {
		return fmt.Errorf("leave group %q: %w", u.o.Group, err)
	}
	if err := errorOf(resp.ErrorCode, nil); err != nil && !errors.Is(err, UnknownMemberID) {
		return fmt.Errorf("leave group %q: %w", u.o.Group, err)
	}
	return nil
}
