package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// GroupListing is a group as ListGroups shows it.
type GroupListing struct {
	ID           string
	ProtocolType string
	State        string // "" from brokers older than 2.6
	Type         string // "classic", "consumer"…; "" from brokers older than 3.8
	Coordinator  int32
}

// ListGroups asks every broker for its groups, of the states and types given or of all.
func (c *Client) ListGroups(ctx context.Context, states, types []string) ([]GroupListing, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	brokers, err := c.Brokers(ctx)
	if err != nil {
		return nil, err
	}
	var out []GroupListing
	for _, b := range brokers {
		req := kmsg.NewPtrListGroupsRequest()
		req.StatesFilter, req.TypesFilter = states, types
		resp, err := ask(ctx, c, toNode(b.ID), req, func(r *kmsg.ListGroupsResponse) error { return errorOf(r.ErrorCode, nil) })
		if err != nil {
			return nil, fmt.Errorf("broker %d: %w", b.ID, err)
		}
		for _, g := range resp.Groups {
			out = append(out, GroupListing{g.Group, g.ProtocolType, g.GroupState, g.GroupType, b.ID})
		}
	}
	slices.SortFunc(out, func(a, b GroupListing) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Group is a group in detail.
type Group struct {
	ID           string
	Type         string // "Classic" or "Consumer"
	State        string
	ProtocolType string
	Protocol     string // the assignor
	Coordinator  int32
	Epoch        int32 // of a consumer group (KIP-848)
	Members      []GroupMember
	Err          error
}

// GroupMember is a member of a group and what it was given.
type GroupMember struct {
	ID         string
	InstanceID string
	ClientID   string
	Host       string
	Topics     []string // subscribed
	Assigned   []TopicPartition
}

// DescribeGroup asks a group's coordinator. A group that doesn't exist is one in state "Dead".
func (c *Client) DescribeGroup(ctx context.Context, id string) (*Group, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	g, err := c.describeClassicGroup(ctx, id)
	if err != nil {
		return nil, err
	}
	// From version 6 classic groups that don't exist say so; they may be groups of the newer kind.
	if errors.Is(g.Err, GroupIDNotFound) || g.State == "Dead" {
		n, err := c.describeConsumerGroup(ctx, id)
		if err == nil && n.Err == nil {
			return n, nil
		}
		if errors.Is(g.Err, GroupIDNotFound) {
			g.State, g.Err = "Dead", nil
		}
	}
	return g, nil
}

func (c *Client) describeClassicGroup(ctx context.Context, id string) (*Group, error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{id}
	resp, err := ask(ctx, c, toGroup(id), req, func(r *kmsg.DescribeGroupsResponse) error {
		return retriableOf(len(r.Groups), func(i int) int16 { return r.Groups[i].ErrorCode })
	})
	if err != nil {
		return nil, err
	}
	if len(resp.Groups) != 1 {
		return nil, fmt.Errorf("describe group %q: %d answers", id, len(resp.Groups))
	}
	r := resp.Groups[0]
	g := &Group{ID: id, Type: "Classic", State: r.State, ProtocolType: r.ProtocolType, Protocol: r.Protocol, Epoch: -1, Err: errorOf(r.ErrorCode, r.ErrorMessage)}
	g.Coordinator, _ = c.coordinator(ctx, coordinator{coordinatorGroup, id})
	for _, m := range r.Members {
		gm := GroupMember{ID: m.MemberID, ClientID: m.ClientID, Host: m.ClientHost}
		if m.InstanceID != nil {
			gm.InstanceID = *m.InstanceID
		}
		if r.ProtocolType == "consumer" {
			var meta kmsg.ConsumerMemberMetadata
			if meta.ReadFrom(m.ProtocolMetadata) == nil {
				gm.Topics = meta.Topics
			}
			gm.Assigned, _ = readAssignment(m.MemberAssignment)
		}
		g.Members = append(g.Members, gm)
	}
	slices.SortFunc(g.Members, func(a, b GroupMember) int { return cmp.Compare(a.ID, b.ID) })
	return g, nil
}

func (c *Client) describeConsumerGroup(ctx context.Context, id string) (*Group, error) {
	req := kmsg.NewPtrConsumerGroupDescribeRequest()
	req.Groups = []string{id}
	resp, err := ask(ctx, c, toGroup(id), req, func(r *kmsg.ConsumerGroupDescribeResponse) error {
		return retriableOf(len(r.Groups), func(i int) int16 { return r.Groups[i].ErrorCode })
	})
	if err != nil {
		return nil, err
	}
	if len(resp.Groups) != 1 {
		return nil, fmt.Errorf("describe group %q: %d answers", id, len(resp.Groups))
	}
	r := resp.Groups[0]
	g := &Group{ID: id, Type: "Consumer", State: r.State, ProtocolType: "consumer", Protocol: r.AssignorName, Epoch: r.Epoch, Err: errorOf(r.ErrorCode, r.ErrorMessage)}
	g.Coordinator, _ = c.coordinator(ctx, coordinator{coordinatorGroup, id})
	for _, m := range r.Members {
		gm := GroupMember{ID: m.MemberID, ClientID: m.ClientID, Host: m.ClientHost, Topics: m.SubscribedTopics}
		if m.InstanceID != nil {
			gm.InstanceID = *m.InstanceID
		}
		for _, t := range m.Assignment.TopicPartitions {
			for _, p := range t.Partitions {
				gm.Assigned = append(gm.Assigned, TopicPartition{t.Topic, p})
			}
		}
		g.Members = append(g.Members, gm)
	}
	slices.SortFunc(g.Members, func(a, b GroupMember) int { return cmp.Compare(a.ID, b.ID) })
	return g, nil
}

// readAssignment reads what a classic consumer was given.
func readAssignment(b []byte) ([]TopicPartition, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var a kmsg.ConsumerMemberAssignment
	if err := a.ReadFrom(b); err != nil {
		return nil, err
	}
	var out []TopicPartition
	for _, t := range a.Topics {
		for _, p := range t.Partitions {
			out = append(out, TopicPartition{t.Topic, p})
		}
	}
	slices.SortFunc(out, compareTP)
	return out, nil
}

// DeleteGroup deletes a group without members and its offsets.
func (c *Client) DeleteGroup(ctx context.Context, id string) error {
	req := kmsg.NewPtrDeleteGroupsRequest()
	req.Groups = []string{id}
	_, err := ask(ctx, c, toGroup(id), req, func(r *kmsg.DeleteGroupsResponse) error {
		if len(r.Groups) != 1 {
			return fmt.Errorf("%d answers to one deletion", len(r.Groups))
		}
		return errorOf(r.Groups[0].ErrorCode, r.Groups[0].ErrorMessage)
	})
	return err
}

// CommittedOffset is a group's offset in a partition: the next one it will read.
type CommittedOffset struct {
	TopicPartition
	Offset      int64 // -1 without one
	LeaderEpoch int32 // of the last record read, -1 if unknown
	Metadata    string
	Err         error
}

// GroupOffsets reads a group's offsets: of all partitions that it has any in, or of those given. With stable, partitions with
// an offset pending in a transaction are waited for.
func (c *Client) GroupOffsets(ctx context.Context, group string, tps []TopicPartition, stable bool) ([]CommittedOffset, error) {
	req := offsetFetchRequest(group, tps, stable)
	to := toGroup(group)
	to.highest = 9 // 10 names topics by id
	var out []CommittedOffset
	_, err := ask(ctx, c, to, req, func(r *kmsg.OffsetFetchResponse) error {
		var err error
		out, err = committedOf(r)
		return err
	})
	return out, err
}

func offsetFetchRequest(group string, tps []TopicPartition, stable bool) *kmsg.OffsetFetchRequest {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.RequireStable = group, stable
	rg := kmsg.NewOffsetFetchRequestGroup()
	rg.Group = group
	topics := byTopic(tps)
	for _, name := range sortedKeys(topics) {
		req.Topics = append(req.Topics, kmsg.OffsetFetchRequestTopic{Topic: name, Partitions: topics[name]})
		rg.Topics = append(rg.Topics, kmsg.OffsetFetchRequestGroupTopic{Topic: name, Partitions: topics[name]})
	}
	req.Groups = append(req.Groups, rg)
	return req
}

func committedOf(r *kmsg.OffsetFetchResponse) ([]CommittedOffset, error) {
	if err := errorOf(r.ErrorCode, nil); err != nil {
		return nil, err
	}
	var out []CommittedOffset
	add := func(topic string, p int32, offset int64, epoch int32, meta *string, code int16) {
		o := CommittedOffset{TopicPartition: TopicPartition{topic, p}, Offset: offset, LeaderEpoch: epoch, Err: errorOf(code, nil)}
		if meta != nil {
			o.Metadata = *meta
		}
		out = append(out, o)
	}
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			add(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode)
		}
	}
	for _, g := range r.Groups {
		if err := errorOf(g.ErrorCode, nil); err != nil {
			return nil, err
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				add(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode)
			}
		}
	}
	for _, o := range out {
		if o.Err != nil && Retriable(o.Err) {
			return nil, fmt.Errorf("partition %v: %w", o.TopicPartition, o.Err)
		}
	}
	slices.SortFunc(out, func(a, b CommittedOffset) int { return compareTP(a.TopicPartition, b.TopicPartition) })
	return out, nil
}

// CommitGroupOffsets sets offsets of a group that has no members, as tools do.
func (c *Client) CommitGroupOffsets(ctx context.Context, group string, offsets []CommittedOffset) error {
	return c.commit(ctx, group, "", nil, -1, offsets)
}

func (c *Client) commit(ctx context.Context, group, member string, instance *string, generation int32, offsets []CommittedOffset) error {
	to := toGroup(group)
	to.highest = 9 // 10 names topics by id
	_, err := ask(ctx, c, to, commitRequest(group, member, instance, generation, offsets), commitError)
	return err
}

func commitRequest(group, member string, instance *string, generation int32, offsets []CommittedOffset) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID, req.InstanceID, req.Generation, req.RetentionTimeMillis = group, member, instance, generation, -1
	byName := map[string][]CommittedOffset{}
	for _, o := range offsets {
		byName[o.Topic] = append(byName[o.Topic], o)
	}
	for _, name := range sortedKeys(byName) {
		rt := kmsg.NewOffsetCommitRequestTopic()
		rt.Topic = name
		for _, o := range byName[name] {
			rp := kmsg.NewOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = o.Partition, o.Offset, o.LeaderEpoch, &o.Metadata
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	return req
}

// commitError is the first error in an answer.
func commitError(r *kmsg.OffsetCommitResponse) error {
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			if err := errorOf(p.ErrorCode, nil); err != nil {
				return fmt.Errorf("partition %s-%d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	return nil
}

// DeleteGroupOffsets forgets a group's offsets in partitions that no member subscribes to.
func (c *Client) DeleteGroupOffsets(ctx context.Context, group string, tps []TopicPartition) error {
	req := kmsg.NewPtrOffsetDeleteRequest()
	req.Group = group
	topics := byTopic(tps)
	for _, name := range sortedKeys(topics) {
		rt := kmsg.NewOffsetDeleteRequestTopic()
		rt.Topic = name
		for _, p := range topics[name] {
			rt.Partitions = append(rt.Partitions, kmsg.OffsetDeleteRequestTopicPartition{Partition: p})
		}
		req.Topics = append(req.Topics, rt)
	}
	_, err := ask(ctx, c, toGroup(group), req, func(r *kmsg.OffsetDeleteResponse) error {
		if err := errorOf(r.ErrorCode, nil); err != nil {
			return err
		}
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				if err := errorOf(p.ErrorCode, nil); err != nil {
					return fmt.Errorf("partition %s-%d: %w", t.Topic, p.Partition, err)
				}
			}
		}
		return nil
	})
	return err
}
