package broker

import (
	"gregor/internal/api"
	"gregor/internal/uuid"
)

// Names of the internal topics.
const (
	offsetsTopic     = "__consumer_offsets"
	transactionTopic = "__transaction_state"
	shareStateTopic  = "__share_group_state"
)

// isInternalTopic says whether clients may not produce to the topic or delete its records.
func isInternalTopic(name string) bool {
	return name == offsetsTopic || name == transactionTopic || name == shareStateTopic
}

// missing is the error for a partition of which this broker has no usable replica, named by topic name or id.
func (b *Broker) missing(name []byte, id uuid.UUID, partition int32) error {
	n := string(name)
	if id != uuid.Zero {
		t := b.image().Topics.ByID(id)
		if t == nil {
			return api.ErrUnknownTopicID
		}
		n = t.Name
	}
	return b.missingReplica(n, partition)
}

// missingReplica is the error for a partition of which this broker had no usable replica a moment ago.
func (b *Broker) missingReplica(topic string, partition int32) error {
	if _, err := b.replicas.Partition(topic, partition); err != nil {
		return err
	}
	// The replica has come since then, or is that of a new topic of the old one's name.
	return api.ErrNotLeaderOrFollower
}
