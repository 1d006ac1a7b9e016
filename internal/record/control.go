package record

import (
	"encoding/binary"
	"fmt"
)

// ControlType is the kind of a control record, from its key.
type ControlType int16

const (
	ControlAbort ControlType = iota
	ControlCommit
	ControlLeaderChange
	ControlSnapshotHeader
	ControlSnapshotFooter
	ControlKRaftVersion
	ControlKRaftVoters
	// ControlUnknown stands for every other type; readers skip such records.
	ControlUnknown ControlType = -1
)

var controlNames = [...]string{"ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS"}

// String is Kafka's name.
func (t ControlType) String() string {
	if t < 0 || int(t) >= len(controlNames) {
		return "UNKNOWN"
	}
	return controlNames[t]
}

// ParseControlKey reads the key of a control record: an int16 version and an int16 type. Types that it doesn't know, and any
// type under a negative version, are ControlUnknown resp. an error.
func ParseControlKey(key []byte) (ControlType, error) {
	if len(key) < 4 {
		return ControlUnknown, errf(ErrInvalid, "control record key of %d bytes", len(key))
	}
	if v := int16(binary.BigEndian.Uint16(key)); v < 0 {
		return ControlUnknown, errf(ErrInvalid, "control record key of version %d", v)
	}
	t := ControlType(binary.BigEndian.Uint16(key[2:]))
	if t < 0 || int(t) >= len(controlNames) {
		return ControlUnknown, nil
	}
	return t, nil
}

// AppendControlKey appends a control record's key.
func AppendControlKey(dst []byte, t ControlType) []byte {
	return binary.BigEndian.AppendUint16(append(dst, 0, 0), uint16(t))
}

// EndTxnMarker is the value of a transaction marker.
type EndTxnMarker struct {
	Commit           bool
	CoordinatorEpoch int32
}

// ParseEndTxnMarker reads a marker from its record. Values of later versions may be longer.
func ParseEndTxnMarker(key, value []byte) (EndTxnMarker, error) {
	t, err := ParseControlKey(key)
	if err != nil {
		return EndTxnMarker{}, err
	}
	if t != ControlAbort && t != ControlCommit {
		return EndTxnMarker{}, errf(ErrInvalid, "control record %v is not a transaction marker", t)
	}
	if len(value) < 6 {
		return EndTxnMarker{}, errf(ErrInvalid, "transaction marker value of %d bytes", len(value))
	}
	if v := int16(binary.BigEndian.Uint16(value)); v < 0 {
		return EndTxnMarker{}, errf(ErrInvalid, "transaction marker of version %d", v)
	}
	return EndTxnMarker{Commit: t == ControlCommit, CoordinatorEpoch: int32(binary.BigEndian.Uint32(value[2:]))}, nil
}

// BuildEndTxnMarker makes the control batch that ends a producer's transaction in a partition: 78 bytes, offset 0 and leader
// epoch -1 until the log sets them.
func BuildEndTxnMarker(producerID int64, producerEpoch int16, coordinatorEpoch int32, commit bool, timestamp int64) Batch {
	t := ControlAbort
	if commit {
		t = ControlCommit
	}
	b := NewBuilder(BuilderOptions{
		LeaderEpoch: -1, ProducerID: producerID, ProducerEpoch: producerEpoch, BaseSequence: NoSequence,
		Transactional: true, Control: true,
	})
	value := binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(coordinatorEpoch))
	b.Append(timestamp, AppendControlKey(nil, t), value, nil)
	return mustBuild(b)
}

// ControlRecord is one record of a KRaft control batch. Its value carries its own version as its first field.
type ControlRecord struct {
	Type  ControlType
	Value []byte
}

// BuildControlBatch makes a KRaft control batch (leader change, snapshot header and footer, kraft.version, voters), which has
// no producer and may hold several records.
func BuildControlBatch(baseOffset int64, leaderEpoch int32, timestamp int64, records ...ControlRecord) Batch {
	b := NewBuilder(BuilderOptions{BaseOffset: baseOffset, LeaderEpoch: leaderEpoch, Control: true}.NoProducer())
	for _, r := range records {
		b.Append(timestamp, AppendControlKey(nil, r.Type), r.Value, nil)
	}
	return mustBuild(b)
}

// mustBuild is Build where nothing can fail: no compression, a few bytes.
func mustBuild(b *Builder) Batch {
	batch, err := b.Build()
	if err != nil {
		panic(fmt.Sprintf("record: %v", err))
	}
	return batch
}
