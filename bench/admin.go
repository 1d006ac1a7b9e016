package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"
)

// topic is one that the bench made, spread over partitions 0 to n-1.
type topic struct {
	name       string
	id         [16]byte
	partitions int
}

const adminTimeout = 10 * time.Minute // creating 10,000 partitions takes Kafka minutes

// createTopics makes topics of n partitions each, tenAtATime in a request as an operator's script would.
func (c *conn) createTopics(names []string, partitions, replicas int) ([]topic, error) {
	const tenAtATime = 10
	var out []topic
	for len(names) > 0 {
		some := names[:min(tenAtATime, len(names))]
		names = names[len(some):]
		q := kmsg.NewPtrCreateTopicsRequest()
		q.Version = 7
		q.TimeoutMillis = int32(adminTimeout.Milliseconds())
		for _, name := range some {
			t := kmsg.NewCreateTopicsRequestTopic()
			t.Topic, t.NumPartitions, t.ReplicationFactor = name, int32(partitions), int16(replicas)
			q.Topics = append(q.Topics, t)
		}
		resp, err := c.call(q)
		if err != nil {
			return nil, err
		}
		for _, t := range resp.(*kmsg.CreateTopicsResponse).Topics {
			if t.ErrorCode != 0 {
				return nil, fmt.Errorf("create topic %s: error %d", t.Topic, t.ErrorCode)
			}
			out = append(out, topic{t.Topic, t.TopicID, partitions})
		}
	}
	return out, nil
}

// newTopic makes one topic and waits until all its partitions serve.
func (c *conn) newTopic(name string, partitions int) (topic, error) {
	ts, err := c.createTopics([]string{name}, partitions, 1)
	if err != nil {
		return topic{}, err
	}
	return ts[0], c.awaitServing(ts, adminTimeout)
}

func (c *conn) deleteTopic(t topic) error {
	q := kmsg.NewPtrDeleteTopicsRequest()
	q.Version, q.TimeoutMillis = 6, int32(adminTimeout.Milliseconds())
	rt := kmsg.NewDeleteTopicsRequestTopic()
	rt.TopicID = t.id
	q.Topics = append(q.Topics, rt)
	resp, err := c.call(q)
	if err != nil {
		return err
	}
	for _, r := range resp.(*kmsg.DeleteTopicsResponse).Topics {
		if r.ErrorCode != 0 {
			return fmt.Errorf("delete topic %s: error %d", t.name, r.ErrorCode)
		}
	}
	return nil
}

// setBrokerConfig changes a configuration of the whole cluster.
func (c *conn) setBrokerConfig(key, value string) error {
	const broker, set = 4, 0
	q := kmsg.NewPtrIncrementalAlterConfigsRequest()
	q.Version = 1
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType = broker
	e := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	e.Name, e.Op, e.Value = key, set, &value
	r.Configs = append(r.Configs, e)
	q.Resources = append(q.Resources, r)
	resp, err := c.call(q)
	if err != nil {
		return err
	}
	for _, r := range resp.(*kmsg.IncrementalAlterConfigsResponse).Resources {
		if r.ErrorCode != 0 {
			return fmt.Errorf("set %s=%s: error %d", key, value, r.ErrorCode)
		}
	}
	return nil
}

// endOffsets asks for the end offsets of partitions and adds to sum[topic] those that are answered; it returns what is not yet.
func (c *conn) endOffsets(ask map[string][]int32, sum map[string]int64) (map[string][]int32, error) {
	q := kmsg.NewPtrListOffsetsRequest()
	q.Version, q.ReplicaID = 7, -1
	for name, parts := range ask {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = name
		for _, p := range parts {
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Partition, rp.Timestamp = p, -1
			t.Partitions = append(t.Partitions, rp)
		}
		q.Topics = append(q.Topics, t)
	}
	resp, err := c.call(q)
	if err != nil {
		return nil, err
	}
	missing := map[string][]int32{}
	for _, t := range resp.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				missing[t.Topic] = append(missing[t.Topic], p.Partition)
			} else if sum != nil {
				sum[t.Topic] += p.Offset
			}
		}
	}
	return missing, nil
}

// pollEvery is how long a client waits before it asks again for what was not there.
const pollEvery = 2 * time.Millisecond

// awaitServing asks until every partition of the topics has answered ListOffsets.
func (c *conn) awaitServing(ts []topic, limit time.Duration) error {
	ask := map[string][]int32{}
	for _, t := range ts {
		for p := range t.partitions {
			ask[t.name] = append(ask[t.name], int32(p))
		}
	}
	for end := time.Now().Add(limit); ; {
		asked := time.Now()
		missing, err := c.endOffsets(ask, nil)
		if err != nil || len(missing) == 0 {
			return err
		}
		if ask = missing; time.Now().After(end) {
			return fmt.Errorf("%d topics do not serve all their partitions after %v", len(missing), limit)
		}
		// Asking must not keep the server from getting there.
		time.Sleep(max(pollEvery, 4*time.Since(asked)))
	}
}

// records is the sum of the end offsets of a topic's partitions.
func (c *conn) records(t topic) (int64, error) {
	ask, sum := map[string][]int32{}, map[string]int64{}
	for p := range t.partitions {
		ask[t.name] = append(ask[t.name], int32(p))
	}
	missing, err := c.endOffsets(ask, sum)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("topic %s: partitions %v do not serve", t.name, missing[t.name])
	}
	return sum[t.name], err
}

// firstAnswer connects as soon as somebody listens and returns when ApiVersions and then Metadata are answered with a broker,
// as a client needs it before it can do anything.
func (s *server) firstAnswer(limit time.Duration) (*conn, error) {
	end := time.Now().Add(limit)
	for {
		c, err := s.tryAnswer(limit)
		if err == nil {
			return c, nil
		}
		select {
		case <-s.ended:
			return nil, fmt.Errorf("%s ended while starting:\n%s", s.kind.name, s.lastLog())
		default:
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%s does not answer after %v: %w\n%s", s.kind.name, limit, err, s.lastLog())
		}
		time.Sleep(time.Millisecond)
	}
}

var errNoBroker = errors.New("no broker in the metadata")

func (s *server) tryAnswer(limit time.Duration) (*conn, error) {
	c, err := dial(s.port)
	if err != nil {
		return nil, err
	}
	if err = c.patience(limit); err == nil {
		err = c.greet()
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *conn) greet() error {
	v := kmsg.NewPtrApiVersionsRequest()
	v.Version, v.ClientSoftwareName, v.ClientSoftwareVersion = 3, "bench", "1"
	if _, err := c.call(v); err != nil {
		return err
	}
	m := kmsg.NewPtrMetadataRequest()
	m.Version, m.Topics = 12, []kmsg.MetadataRequestTopic{}
	resp, err := c.call(m)
	if err != nil {
		return err
	}
	if len(resp.(*kmsg.MetadataResponse).Brokers) == 0 {
		return errNoBroker
	}
	return nil
}

// connect dials a server that is known to serve.
func (s *server) connect() (*conn, error) {
	c, err := dial(s.port)
	if err != nil {
		return nil, err
	}
	return c, errors.Join(c.patience(time.Minute), unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1))
}
