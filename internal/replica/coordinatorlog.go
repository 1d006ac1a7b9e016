package replica

import (
	"errors"
	"fmt"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/record"
)

// CoordinatorLog is the view that a coordinator has of its internal topic on this broker.
type CoordinatorLog struct {
	m     *Manager
	topic string
}

// CoordinatorLog gives the view of an internal topic.
func (m *Manager) CoordinatorLog(topic string) *CoordinatorLog { return &CoordinatorLog{m, topic} }

func (c *CoordinatorLog) partition(id int32) (*Partition, error) { return c.m.Partition(c.topic, id) }

// Append writes one batch as the leader of leaderEpoch, patches its offsets in place and returns the log end offset after it.
// It waits for no replica.
func (c *CoordinatorLog) Append(partition, leaderEpoch int32, batch []byte) (endOffset int64, err error) {
	p, err := c.partition(partition)
	if err != nil {
		return 0, err
	}
	return c.appendTo(p, leaderEpoch, batch)
}

func (c *CoordinatorLog) appendTo(p *Partition, leaderEpoch int32, batch []byte) (endOffset int64, err error) {
	if c.m.TopicByID(p.topicID) == nil {
		return 0, api.ErrUnknownTopicOrPartition // deleted since
	}
	info, err := p.Append(batch, AppendOptions{Origin: log.Coordinator, RequiredAcks: -1, LeaderEpoch: leaderEpoch})
	if err != nil {
		return 0, err
	}
	p.Wake()
	return info.LastOffset + 1, nil
}

// Read reads whole batches from the one that holds offset on, up to the log end: about len(buf) bytes of them but at least
// one, into buf if they fit. An empty result means that there is nothing at offset and above.
func (c *CoordinatorLog) Read(partition int32, offset int64, buf []byte) ([]byte, error) {
	p, err := c.partition(partition)
	if err != nil {
		return nil, err
	}
	data, err := p.log().Read(offset, len(buf), log.ReadLogEnd, true)
	if err != nil {
		return nil, fmt.Errorf("read %s-%d from %d: %w", c.topic, partition, offset, err)
	}
	defer data.Slice.Release()
	b, err := data.Slice.Bytes(buf[:0])
	if err != nil {
		return nil, err
	}
	return wholeBatches(b), nil
}

// wholeBatches cuts off a batch that the end of the read has split. What is wrong otherwise is for the reader to judge.
func wholeBatches(b []byte) []byte {
	for rest := b; len(rest) > 0; {
		_, next, err := record.Next(rest)
		if errors.Is(err, record.ErrTruncated) {
			return b[:len(b)-len(rest)]
		}
		if err != nil {
			break
		}
		rest = next
	}
	return b
}

// Offsets are the log start offset, the high watermark and the log end offset.
func (c *CoordinatorLog) Offsets(partition int32) (start, highWatermark, end int64, err error) {
	p, err := c.partition(partition)
	if err != nil {
		return 0, 0, 0, err
	}
	return p.log().LogStartOffset(), p.log().HighWatermark(), p.log().EndOffset(), nil
}

// MaxBatchBytes is the topic's max.message.bytes.
func (c *CoordinatorLog) MaxBatchBytes(partition int32) int {
	p, err := c.partition(partition)
	if err != nil {
		return int(log.DefaultConfig().MaxMessageBytes)
	}
	return int(p.log().Config().MaxMessageBytes)
}
