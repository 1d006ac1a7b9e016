package controller

import (
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/timeline"
)

// producerIDBlock is how many producer ids a broker gets at a time.
const producerIDBlock = 1000

// producerIDs gives out producer ids to brokers, a block at a time, none twice.
type producerIDs struct {
	c    *Core
	next *timeline.Value[int64] // the first id that nobody got
}

func newProducerIDs(c *Core) *producerIDs {
	return &producerIDs{c: c, next: timeline.NewValue[int64](c.registry, 0)}
}

func (m *producerIDs) replay(r *message.ProducerIdsRecord) error {
	if now := m.next.Get(); r.NextProducerID < now || r.NextProducerID == now && now != 0 {
		return fmt.Errorf("next producer id %d after %d", r.NextProducerID, now)
	}
	m.next.Set(r.NextProducerID)
	return nil
}

func (m *producerIDs) allocate(req *kmsg.AllocateProducerIDsRequest) (Result, error) {
	if err := m.c.cluster.checkEpoch(req.BrokerID, req.BrokerEpoch); err != nil {
		return Result{}, err
	}
	first := m.next.Get()
	if first > math.MaxInt64-producerIDBlock {
		return Result{}, api.WithMessage(api.ErrUnknownServerError,
			"Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit")
	}
	r := message.NewProducerIdsRecord()
	r.BrokerID, r.BrokerEpoch, r.NextProducerID = req.BrokerID, req.BrokerEpoch, first+producerIDBlock
	resp := req.ResponseKind().(*kmsg.AllocateProducerIDsResponse)
	resp.ProducerIDStart, resp.ProducerIDLen = first, producerIDBlock
	return Result{Records: []message.Versioned{{Message: r}}, Response: resp}, nil
}
