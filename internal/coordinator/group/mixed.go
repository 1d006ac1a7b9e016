package group

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
)

// This file lets members that speak the classic protocol be in a consumer group. They are told to rejoin by
// REBALANCE_IN_PROGRESS whenever there is something for them to do; JoinGroup takes them a step towards their target, and
// SyncGroup hands out what they have got.

// joinConsumer answers JoinGroup of a consumer group with members.
func (c *core) joinConsumer(r *joinRequest, g *consumerGroup, now time.Time) result {
	res, err := c.joinConsumerOr(r, g, now)
	if err != nil {
		r.fail(r.MemberID, err)
		return result{}
	}
	return res
}

func (c *core) joinConsumerOr(r *joinRequest, g *consumerGroup, now time.Time) (result, error) {
	if c.cfg.Migration == (MigrationPolicy{}) {
		return result{}, api.ErrInconsistentGroupProtocol
	}
	id, unknown := r.MemberID, r.MemberID == ""
	if unknown {
		id = c.memberID()
	}
	if err := c.checkRoom(g, id, r.InstanceID); err != nil {
		return result{}, err
	}
	if !g.supports(r.ProtocolType, r.Protocols) {
		return result{}, api.ErrInconsistentGroupProtocol
	}
	if r.ctx.Version >= joinNeedsMemberID && unknown && r.InstanceID == nil {
		r.fail(id, api.ErrMemberIDRequired)
		return result{}, nil
	}
	var subscription kmsg.ConsumerMemberMetadata
	if subscription.ReadFrom(r.Protocols[0].Metadata) != nil {
		return result{}, api.ErrInconsistentGroupProtocol
	}
	u := &memberUpdate{c: c, from: r.ctx, g: g, now: now, owned: []kmsg.ConsumerGroupHeartbeatRequestTopic{}}
	for _, o := range subscription.OwnedPartitions {
		if t := c.image.Topics.ByName(o.Topic); t != nil {
			u.owned = append(u.owned, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: t.ID, Partitions: o.Partitions})
		}
	}
	var replaced *consumerMember
	if r.InstanceID == nil {
		if m, ok := g.members.Get(id); ok {
			u.old = m
		} else if len(subscription.OwnedPartitions) > 0 {
			// Differs from Kafka, which takes it in: it was fenced and doesn't know. Should it get the same partitions again, it would
			// go on where it was, and commit offsets behind those of whoever had them meanwhile.
			return result{}, api.WithMessage(api.ErrUnknownMemberID, "Member %s is not a member of group %s.", id, g.id)
		} else {
			u.old = newConsumerMember(strings.Clone(id))
		}
	} else {
		replaced = g.staticMember(*r.InstanceID)
		switch {
		case !unknown:
			if err := checkStatic(replaced, id, *r.InstanceID); err != nil {
				return result{}, err
			}
			u.old = replaced
		case replaced == nil:
			u.old = newConsumerMember(id)
		default:
			u.replace(replaced, id)
		}
	}
	downgrade := c.mayDowngradeBy(g, replaced)

	m := *u.old
	if r.InstanceID != nil {
		m.instanceID = copyString(r.InstanceID)
	}
	if subscription.Rack != nil && *subscription.Rack != "" {
		m.rackID = subscription.Rack
	}
	m.rebalanceTimeout = int32(r.rebalanceTimeout().Milliseconds())
	m.topics, m.regex = c.topicSet(subscription.Topics), ""
	m.clientID, m.clientHost = strings.Clone(r.ctx.ClientID), r.ctx.ClientHost
	m.classic = &message.ConsumerGroupMemberMetadataValueClassicMemberMetadata{
		SessionTimeoutMs:   r.SessionTimeoutMillis,
		SupportedProtocols: make([]message.ConsumerGroupMemberMetadataValueClassicProtocol, len(r.Protocols)),
	}
	for i, p := range r.Protocols {
		sp := &m.classic.SupportedProtocols[i]
		sp.Name, sp.Metadata = strings.Clone(p.Name), bytes.Clone(p.Metadata)
	}
	u.member = &m

	named := u.saveSelf()
	regex, err := u.updateRegex()
	if err != nil {
		return result{}, err
	}
	changed := named || regex != regexSame
	u.updateEpoch(changed)
	var res result
	if downgrade {
		last := g.target.Get().epoch
		rebalance := last < u.epoch
		if !rebalance {
			if err := u.reconcile(last, g.targetOf(u.member), changed); err != nil {
				return result{}, err
			}
		}
		res = c.downgrade(g, nil, u.member, "a static member came back with the classic protocol", rebalance, u.records, now)
	} else {
		epoch, target := u.updateTarget()
		if err := u.reconcile(epoch, target, changed); err != nil {
			return result{}, err
		}
		res.Records = u.records
	}

	resp := kmsg.NewPtrJoinGroupResponse()
	resp.MemberID, resp.Generation = u.member.id, u.member.epoch
	protocolType, protocol := consumerProtocol, u.member.classic.SupportedProtocols[0].Name
	resp.ProtocolType, resp.Protocol = &protocolType, &protocol
	session, rebalance := r.sessionTimeout(), r.rebalanceTimeout()
	then := res.Committed
	res.Committed = func(now time.Time, err error) {
		if then != nil {
			then(now, err)
		}
		if err != nil {
			return
		}
		if !downgrade {
			ts := c.timersOf(g.id, resp.MemberID)
			c.env.Timers.Stop(&ts.join)
			c.env.Timers.Set(&ts.session, now.Add(session))
			c.env.Timers.Set(&ts.sync, now.Add(rebalance))
		}
		r.reply(resp)
	}
	return res, nil
}

// supports says whether a classic member with these protocols can be in the group: with one that all other classic members have.
func (g *consumerGroup) supports(protocolType string, protocols []kmsg.JoinGroupRequestProtocol) bool {
	if protocolType != consumerProtocol || len(protocols) == 0 {
		return false
	}
	classic := g.tallyOf(tallyKey{what: speaksClassic})
	return slices.ContainsFunc(protocols, func(p kmsg.JoinGroupRequestProtocol) bool {
		return g.tallyOf(tallyKey{what: supportsProtocol, name: p.Name}) == classic
	})
}

// classicMemberOf finds the classic member that a request comes from.
func (g *consumerGroup) classicMemberOf(id string, instance *string) (*consumerMember, error) {
	var m *consumerMember
	var err error
	if instance == nil {
		m, err = g.member(id)
	} else {
		m = g.staticMember(*instance)
		err = checkStatic(m, id, *instance)
	}
	if err == nil && m.classic == nil {
		err = api.WithMessage(api.ErrUnknownMemberID, "Member %s does not use the classic protocol.", m.id)
	}
	return m, err
}

// mustRejoin starts the time that a classic member has to rejoin, and is the answer that makes it.
func (c *core) mustRejoin(g *consumerGroup, m *consumerMember, now time.Time) error {
	if ts := c.timersOf(g.id, m.id); !ts.join.Active() {
		c.env.Timers.Set(&ts.join, now.Add(time.Duration(m.rebalanceTimeout)*time.Millisecond))
	}
	return api.ErrRebalanceInProgress
}

// syncConsumer answers SyncGroup of a consumer group.
func (c *core) syncConsumer(r *kmsg.SyncGroupRequest, g *consumerGroup, reply func(*kmsg.SyncGroupResponse), now time.Time) result {
	m, err := g.classicMemberOf(r.MemberID, r.InstanceID)
	switch {
	case err != nil:
	case r.Generation != m.epoch:
		err = api.ErrIllegalGeneration
	case r.ProtocolType != nil && *r.ProtocolType != consumerProtocol,
		r.Protocol != nil && *r.Protocol != m.classic.SupportedProtocols[0].Name:
		err = api.ErrInconsistentGroupProtocol
	case g.target.Get().epoch > m.epoch && m.state != memberUnrevoked:
		err = c.mustRejoin(g, m, now)
	}
	if err != nil {
		reply(syncError(err))
		return result{}
	}
	resp := kmsg.NewPtrSyncGroupResponse()
	if r.ProtocolType != nil {
		resp.ProtocolType = copyString(r.ProtocolType)
	}
	if r.Protocol != nil {
		resp.Protocol = copyString(r.Protocol)
	}
	resp.MemberAssignment = c.assignmentOf(m.assigned, m.classic.SupportedProtocols[0].Metadata)
	return result{Committed: func(now time.Time, err error) {
		if err != nil {
			return
		}
		c.env.Timers.Stop(&c.timersOf(g.id, m.id).sync)
		c.startSession(g.id, m.id, c.sessionTimeout(g.id, m), now)
		reply(resp)
	}}
}

// heartbeatConsumer answers Heartbeat of a consumer group.
func (c *core) heartbeatConsumer(r *kmsg.HeartbeatRequest, g *consumerGroup, now time.Time) error {
	m, err := g.classicMemberOf(r.MemberID, r.InstanceID)
	if err != nil {
		return err
	}
	if r.Generation != m.epoch {
		return api.ErrIllegalGeneration
	}
	c.startSession(g.id, m.id, c.sessionTimeout(g.id, m), now)
	if m.epoch < g.target.Get().epoch || m.state == memberUnrevoked || m.state == memberUnreleased && !g.waits(m) {
		return c.mustRejoin(g, m, now)
	}
	return nil
}

// waits says whether there is a partition in the member's target that another member still has.
func (g *consumerGroup) waits(m *consumerMember) bool {
	target, _ := g.targets.Get(m.id)
	for _, tp := range target {
		for _, p := range tp.partitions {
			if m.assigned.has(tp.topic, p) {
				continue
			}
			if _, ok := g.owners.Get(partitionID{tp.topic, p}); ok {
				return true
			}
		}
	}
	return false
}

// leaveConsumer answers LeaveGroup of a consumer group, whose members may be of either protocol: administrators remove static
// ones so.
func (c *core) leaveConsumer(r *kmsg.LeaveGroupRequest, g *consumerGroup, now time.Time) (result, *kmsg.LeaveGroupResponse) {
	resp := kmsg.NewPtrLeaveGroupResponse()
	var gone []*consumerMember
	for i := range r.Members {
		rm := &r.Members[i]
		a := kmsg.NewLeaveGroupResponseMember()
		a.MemberID, a.InstanceID = rm.MemberID, rm.InstanceID
		var m *consumerMember
		var err error
		if rm.InstanceID == nil {
			m, err = g.member(rm.MemberID)
		} else if m = g.staticMember(*rm.InstanceID); m == nil || rm.MemberID != "" {
			err = checkStatic(m, rm.MemberID, *rm.InstanceID)
		}
		if a.ErrorCode = api.CodeOf(err); err == nil && !slices.Contains(gone, m) {
			gone = append(gone, m)
		}
		resp.Members = append(resp.Members, a)
	}
	if len(gone) > 0 {
		c.log.Info(fmt.Sprintf("%d members leave the consumer group", len(gone)), "group", g.id)
	}
	return c.fence(g, gone, now), resp
}
