package broker

import (
	"log/slog"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/config"
	"gregor/internal/record"
)

// topicCreations creates topics that a client asked about or that the broker needs itself, one request a topic at a time.
type topicCreations struct {
	b  *Broker
	mu sync.Mutex // guards inflight
	// inflight are the topics whose creation is under way: to be asked for again does nothing.
	inflight map[string]bool
}

func (c *topicCreations) init(b *Broker) { c.b, c.inflight = b, make(map[string]bool) }

// create asks the controller for the topic, without waiting. Clients learn of it, or of nothing, when they ask again. It is asked
// for in the name of the client that wants it; what the broker needs it asks for itself.
func (c *topicCreations) create(from Client, name string) {
	c.mu.Lock()
	busy := c.inflight[name]
	c.inflight[name] = true
	c.mu.Unlock()
	if busy {
		return
	}
	cfg := c.b.config.Current()
	q := kmsg.NewPtrCreateTopicsRequest()
	q.Version = createTopicsVersion
	q.TimeoutMillis = int32(cfg.RequestTimeout.Milliseconds())
	q.Topics = []kmsg.CreateTopicsRequestTopic{topicToCreate(name, cfg)}
	c.b.controller.Forward(from, q, c.b.clock.Now().Add(cfg.RequestTimeout), func(resp kmsg.Response, err error) {
		c.mu.Lock()
		delete(c.inflight, name)
		c.mu.Unlock()
		if err == nil {
			for _, t := range resp.(*kmsg.CreateTopicsResponse).Topics {
				if t.ErrorCode != api.CodeNone && t.ErrorCode != api.ErrTopicAlreadyExists.Code {
					err = api.FromCode(t.ErrorCode)
				}
			}
		}
		if err != nil {
			c.b.logger.Warn("automatic topic creation failed", slog.String("topic", name), slog.Any("err", err))
			return
		}
		c.b.logger.Info("topic created on demand", slog.String("topic", name))
	})
}

// createTopicsVersion is what the broker's own CreateTopics requests are made as.
const createTopicsVersion = 7

// topicToCreate describes a topic that comes into being by itself: an internal one as its coordinator needs it, any other with
// the broker's defaults.
func topicToCreate(name string, cfg *config.Broker) kmsg.CreateTopicsRequestTopic {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic = name
	set := func(k, v string) {
		t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: k, Value: &v})
	}
	switch name {
	case offsetsTopic:
		t.NumPartitions, t.ReplicationFactor = cfg.GroupCoordinator.OffsetsPartitions, cfg.GroupCoordinator.OffsetsReplication
		set("cleanup.policy", "compact")
		set("segment.bytes", strconv.Itoa(int(cfg.GroupCoordinator.OffsetsSegmentBytes)))
		codec := record.Codec(cfg.GroupCoordinator.OffsetsCompression)
		set("compression.type", map[bool]string{true: "producer", false: codec.String()}[codec == record.None])
	default:
		t.NumPartitions, t.ReplicationFactor = cfg.NumPartitions, cfg.DefaultReplicationFactor
	}
	return t
}
