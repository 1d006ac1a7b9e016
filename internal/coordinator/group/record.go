package group

import (
	"encoding/binary"
	"fmt"

	"gregor/internal/message"
	"gregor/internal/uuid"
)

// Record is a record of __consumer_offsets: a key, whose type says what the record is about, and a value, nil for a
// tombstone, in one of its versions.
type Record struct {
	Key     message.Message
	Value   message.Message
	Version int16
}

// Versions of the values that are written, those of Kafka 4.4 at metadata.version 3.3 and above. A commit that asks for
// a retention time of its own needs the only version that has the expire timestamp.
const (
	groupMetadataVersion      = 3
	offsetCommitVersion       = 4
	offsetCommitExpireVersion = 1
)

// Codec codes Records: key = int16 type and the fields, value = int16 version and the fields. It has no state.
type Codec struct{}

// AppendKey appends the key of r.
func (Codec) AppendKey(dst []byte, r Record) ([]byte, error) {
	return r.Key.AppendTo(binary.BigEndian.AppendUint16(dst, uint16(r.Key.APIKey())), 0)
}

// AppendValue appends the value of r.
func (Codec) AppendValue(dst []byte, r Record) (value []byte, tombstone bool, err error) {
	if r.Value == nil {
		return dst, true, nil
	}
	value, err = r.Value.AppendTo(binary.BigEndian.AppendUint16(dst, uint16(r.Version)), r.Version)
	return value, false, err
}

// Decode reads a record. ok is false for key types that this code doesn't know.
func (Codec) Decode(key, value []byte) (r Record, ok bool, err error) {
	if len(key) < 2 {
		return Record{}, false, fmt.Errorf("record key of %d bytes has no type", len(key))
	}
	kind := int16(binary.BigEndian.Uint16(key))
	if kind < 0 || int(kind) >= len(recordTypes) || recordTypes[kind].key == nil {
		return Record{}, false, nil
	}
	t := recordTypes[kind]
	r.Key = t.key()
	if _, err := r.Key.ReadFrom(key[2:], 0); err != nil {
		return Record{}, false, fmt.Errorf("record key of type %d: %w", kind, err)
	}
	if value == nil {
		return r, true, nil
	}
	if len(value) < 2 {
		return Record{}, false, fmt.Errorf("record value of type %d has %d bytes and no version", kind, len(value))
	}
	r.Version = int16(binary.BigEndian.Uint16(value))
	r.Value = t.value()
	if r.Version < 0 || r.Version > r.Value.HighestVersion() {
		return Record{}, false, fmt.Errorf("record value of type %d has unknown version %d", kind, r.Version)
	}
	if _, err := r.Value.ReadFrom(value[2:], r.Version); err != nil {
		return Record{}, false, fmt.Errorf("record value of type %d version %d: %w", kind, r.Version, err)
	}
	return r, true, nil
}

type recordType struct{ key, value func() message.Message }

// typeOf makes the constructors of a record type from those of its key and value.
func typeOf[K, V message.Message](key func() K, value func() V) recordType {
	return recordType{
		key:   func() message.Message { return key() },
		value: func() message.Message { return value() },
	}
}

// recordTypes has the record types by number. Type 0 is what Kafka wrote before 0.9 and is read as a type 1 record; 9 and
// 18 were never released.
var recordTypes = [...]recordType{
	0:  typeOf(message.NewOffsetCommitKey, message.NewOffsetCommitValue),
	1:  typeOf(message.NewOffsetCommitKey, message.NewOffsetCommitValue),
	2:  typeOf(message.NewGroupMetadataKey, message.NewGroupMetadataValue),
	3:  typeOf(message.NewConsumerGroupMetadataKey, message.NewConsumerGroupMetadataValue),
	4:  typeOf(message.NewConsumerGroupPartitionMetadataKey, message.NewConsumerGroupPartitionMetadataValue),
	5:  typeOf(message.NewConsumerGroupMemberMetadataKey, message.NewConsumerGroupMemberMetadataValue),
	6:  typeOf(message.NewConsumerGroupTargetAssignmentMetadataKey, message.NewConsumerGroupTargetAssignmentMetadataValue),
	7:  typeOf(message.NewConsumerGroupTargetAssignmentMemberKey, message.NewConsumerGroupTargetAssignmentMemberValue),
	8:  typeOf(message.NewConsumerGroupCurrentMemberAssignmentKey, message.NewConsumerGroupCurrentMemberAssignmentValue),
	10: typeOf(message.NewShareGroupMemberMetadataKey, message.NewShareGroupMemberMetadataValue),
	11: typeOf(message.NewShareGroupMetadataKey, message.NewShareGroupMetadataValue),
	12: typeOf(message.NewShareGroupTargetAssignmentMetadataKey, message.NewShareGroupTargetAssignmentMetadataValue),
	13: typeOf(message.NewShareGroupTargetAssignmentMemberKey, message.NewShareGroupTargetAssignmentMemberValue),
	14: typeOf(message.NewShareGroupCurrentMemberAssignmentKey, message.NewShareGroupCurrentMemberAssignmentValue),
	15: typeOf(message.NewShareGroupStatePartitionMetadataKey, message.NewShareGroupStatePartitionMetadataValue),
	16: typeOf(message.NewConsumerGroupRegularExpressionKey, message.NewConsumerGroupRegularExpressionValue),
	17: typeOf(message.NewStreamsGroupMetadataKey, message.NewStreamsGroupMetadataValue),
	19: typeOf(message.NewStreamsGroupMemberMetadataKey, message.NewStreamsGroupMemberMetadataValue),
	20: typeOf(message.NewStreamsGroupTargetAssignmentMetadataKey, message.NewStreamsGroupTargetAssignmentMetadataValue),
	21: typeOf(message.NewStreamsGroupTargetAssignmentMemberKey, message.NewStreamsGroupTargetAssignmentMemberValue),
	22: typeOf(message.NewStreamsGroupCurrentMemberAssignmentKey, message.NewStreamsGroupCurrentMemberAssignmentValue),
	23: typeOf(message.NewStreamsGroupTopologyKey, message.NewStreamsGroupTopologyValue),
}

// offsetCommitTombstone removes an offset.
func offsetCommitTombstone(group, topic string, partition int32) Record {
	return Record{Key: &message.OffsetCommitKey{Group: group, Topic: topic, Partition: partition}}
}

// offset is a committed offset: Kafka's OffsetAndMetadata.
type offset struct {
	offset          int64
	leaderEpoch     int32 // -1 if the committer didn't say
	metadata        string
	commitTimestamp int64     // ms
	expireTimestamp int64     // ms; noTimestamp unless the commit asked for a retention of its own (v2 to v4)
	topicID         uuid.UUID // of the topic that was meant; Zero if not known
	recordOffset    int64     // where in the log the record is
}

// noTimestamp is an absent time in ms.
const noTimestamp = -1

func offsetFromRecord(at int64, v *message.OffsetCommitValue) offset {
	return offset{
		offset:          v.Offset,
		leaderEpoch:     v.LeaderEpoch,
		metadata:        v.Metadata,
		commitTimestamp: v.CommitTimestamp,
		expireTimestamp: v.ExpireTimestamp,
		topicID:         v.TopicID,
		recordOffset:    at,
	}
}

// groupTombstone removes a classic group.
func groupTombstone(group string) Record {
	return Record{Key: &message.GroupMetadataKey{Group: group}}
}
