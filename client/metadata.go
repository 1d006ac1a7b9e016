package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Broker is a broker as clients reach it.
type Broker struct {
	ID   int32
	Host string
	Port int32
	Rack string
}

// Addr is host:port.
func (b Broker) Addr() string { return net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))) }

// Topic is what metadata says of a topic.
type Topic struct {
	Name       string
	ID         UUID // zero from brokers older than 2.8
	Internal   bool
	Partitions []Partition // by number
	// Err is set if the topic doesn't exist or may not be seen; then only Name is.
	Err error
}

// Partition is what metadata says of a partition.
type Partition struct {
	ID          int32
	Leader      int32 // -1 without one
	LeaderEpoch int32
	Replicas    []int32
	ISR         []int32
	Offline     []int32
	Err         error
}

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String is Kafka's form, "topic-0".
func (t TopicPartition) String() string { return t.Topic + "-" + strconv.Itoa(int(t.Partition)) }

func compareTP(a, b TopicPartition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}

// Metadata is a view of the cluster.
type Metadata struct {
	ClusterID    string
	ControllerID int32
	Brokers      []Broker // by id
	Topics       []Topic  // by name
}

// metadataCache keeps topics between failures.
type metadataCache struct {
	// version changes when what is known of any topic does.
	version atomic.Uint64

	mu      sync.Mutex
	topics  map[string]*cachedTopic
	brokers []Broker
	// controller is the active one, for clients of controllers.
	controller      int32
	controllerKnown bool
}

type cachedTopic struct {
	Topic
	until time.Time
}

// invalidate makes the next use of any topic, or of the active controller, ask again.
func (m *metadataCache) invalidate() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.controllerKnown = false
	m.version.Add(1)
	for _, t := range m.topics {
		t.until = time.Time{}
	}
}

// Metadata asks a broker for these topics, for all if topics is nil, or only for brokers if it is empty. Topics that don't
// exist come back with Err.
func (c *Client) Metadata(ctx context.Context, topics []string) (*Metadata, error) {
	var m *Metadata
	err := c.retry(ctx, func(ctx context.Context) error {
		var err error
		m, err = c.fetchMetadata(ctx, topics, false)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	return m, nil
}

func (c *Client) fetchMetadata(ctx context.Context, topics []string, create bool) (*Metadata, error) {
	if c.o.Controllers {
		if topics == nil || len(topics) > 0 {
			return nil, errNoTopics
		}
		return c.fetchControllers(ctx)
	}
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = create
	if topics != nil {
		req.Topics = []kmsg.MetadataRequestTopic{}
	}
	for _, t := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = &t
		req.Topics = append(req.Topics, rt)
	}
	resp, err := exchange[*kmsg.MetadataResponse](ctx, c, toAny, req)
	if err != nil {
		return nil, err
	}
	if err := errorOf(resp.ErrorCode, nil); err != nil {
		if errors.Is(err, rebootstrapRequired) {
			// The broker isn't one of the cluster any more, so neither may be what it told before (KIP-1102).
			c.pool.setBrokers(nil)
			return nil, &errConn{"metadata from", "a broker", errors.New("it is not one of the cluster any more")}
		}
		return nil, err
	}
	return c.learn(resp), nil
}

// learn takes over what a broker says of the cluster.
func (c *Client) learn(resp *kmsg.MetadataResponse) *Metadata {
	m := &Metadata{ControllerID: resp.ControllerID}
	if resp.ClusterID != nil {
		m.ClusterID = *resp.ClusterID
	}
	for _, b := range resp.Brokers {
		br := Broker{ID: b.NodeID, Host: b.Host, Port: b.Port}
		if b.Rack != nil {
			br.Rack = *b.Rack
		}
		m.Brokers = append(m.Brokers, br)
	}
	slices.SortFunc(m.Brokers, func(a, b Broker) int { return cmp.Compare(a.ID, b.ID) })
	for i := range resp.Topics {
		m.Topics = append(m.Topics, topicOf(&resp.Topics[i]))
	}
	slices.SortFunc(m.Topics, func(a, b Topic) int { return cmp.Compare(a.Name, b.Name) })
	c.pool.setBrokers(m.Brokers)
	c.meta.put(m, time.Now().Add(c.o.MetadataMaxAge))
	return m
}

func topicOf(t *kmsg.MetadataResponseTopic) Topic {
	out := Topic{ID: UUID(t.TopicID), Internal: t.IsInternal, Err: errorOf(t.ErrorCode, nil)}
	if t.Topic != nil {
		out.Name = *t.Topic
	}
	for _, p := range t.Partitions {
		out.Partitions = append(out.Partitions, Partition{
			ID: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: p.ISR, Offline: p.OfflineReplicas,
			Err: errorOf(p.ErrorCode, nil),
		})
	}
	slices.SortFunc(out.Partitions, func(a, b Partition) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (m *metadataCache) put(md *Metadata, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version.Add(1)
	m.brokers, m.controller, m.controllerKnown = md.Brokers, md.ControllerID, md.ControllerID >= 0
	for _, t := range md.Topics {
		if t.Err != nil {
			delete(m.topics, t.Name)
			continue
		}
		// A broker that is behind must not undo what is known already.
		if old := m.topics[t.Name]; old != nil && old.ID == t.ID {
			keepNewer(&t, &old.Topic)
		}
		m.topics[t.Name] = &cachedTopic{t, until}
	}
}

func (m *metadataCache) get(name string) (*Topic, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.topics[name]
	if !ok || time.Now().After(t.until) {
		return nil, false
	}
	return &t.Topic, true
}

// hint takes over what an error in a Produce or Fetch answer says of a partition's leader (KIP-951). It is false if that is no
// news, so that metadata has to be asked.
func (m *metadataCache) hint(tp TopicPartition, leader, epoch int32) bool {
	if leader < 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.topics[tp.Topic]
	if t == nil {
		return false
	}
	i, ok := slices.BinarySearchFunc(t.Partitions, tp.Partition, func(p Partition, id int32) int { return cmp.Compare(p.ID, id) })
	if !ok || t.Partitions[i].LeaderEpoch >= epoch {
		return false
	}
	// Others may hold the old view.
	next := *t
	next.Partitions = slices.Clone(t.Partitions)
	next.Partitions[i].Leader, next.Partitions[i].LeaderEpoch, next.Partitions[i].Err = leader, epoch, nil
	m.topics[tp.Topic] = &next
	m.version.Add(1)
	return true
}

// topicInfo is one try at getting a topic from the cache or a broker.
func (c *Client) topicInfo(ctx context.Context, name string, create bool) (*Topic, error) {
	if t, ok := c.meta.get(name); ok {
		return t, nil
	}
	m, err := c.fetchMetadata(ctx, []string{name}, create)
	if err != nil {
		return nil, err
	}
	for i := range m.Topics {
		if t := &m.Topics[i]; t.Name == name {
			if t.Err != nil {
				return nil, fmt.Errorf("topic %q: %w", name, t.Err)
			}
			return t, nil
		}
	}
	return nil, fmt.Errorf("topic %q: %w", name, UnknownTopicOrPartition)
}

// partitionOf is one try at finding a partition that has a leader.
func (c *Client) partitionOf(ctx context.Context, tp TopicPartition) (*Topic, *Partition, error) {
	t, err := c.topicInfo(ctx, tp.Topic, false)
	if err != nil {
		return nil, nil, err
	}
	i, ok := slices.BinarySearchFunc(t.Partitions, tp.Partition, func(p Partition, id int32) int { return cmp.Compare(p.ID, id) })
	if !ok {
		return nil, nil, fmt.Errorf("partition %v: %w", tp, UnknownTopicOrPartition)
	}
	p := &t.Partitions[i]
	if p.Leader < 0 {
		c.meta.invalidate()
		return nil, nil, fmt.Errorf("partition %v: %w", tp, errorFor(5))
	}
	return t, p, nil
}

// byLeader groups partitions by the broker that leads them.
func (c *Client) byLeader(ctx context.Context, tps []TopicPartition) (map[int32][]TopicPartition, error) {
	out := map[int32][]TopicPartition{}
	for _, tp := range tps {
		_, p, err := c.partitionOf(ctx, tp)
		if err != nil {
			return nil, err
		}
		out[p.Leader] = append(out[p.Leader], tp)
	}
	return out, nil
}

// byTopic groups partitions by topic, in order.
func byTopic(tps []TopicPartition) map[string][]int32 {
	out := map[string][]int32{}
	for _, tp := range slices.SortedFunc(slices.Values(tps), compareTP) {
		out[tp.Topic] = append(out[tp.Topic], tp.Partition)
	}
	return out
}

func sortedKeys[M ~map[K]V, K cmp.Ordered, V any](m M) []K { return slices.Sorted(maps.Keys(m)) }

// Brokers lists the cluster's brokers.
func (c *Client) Brokers(ctx context.Context) ([]Broker, error) {
	m, err := c.Metadata(ctx, []string{})
	if err != nil {
		return nil, err
	}
	return m.Brokers, nil
}
