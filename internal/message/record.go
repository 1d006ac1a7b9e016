package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrUnknownType is returned (wrapped) for a record type that Kafka 4.4 doesn't have. Readers of the coordinators' topics
// skip such records; in the metadata log they are fatal.
var ErrUnknownType = errors.New("message: unknown record type")

// metadataFrame is the only frame version that there has been.
const metadataFrame = 1

// NewMetadataRecord makes an empty metadata record by its type, or nil for a type that Kafka 4.4 doesn't have.
func NewMetadataRecord(key int16) Message { return newMetadataMessage(key) }

// AppendMetadataRecord appends the value of a metadata log record.
func AppendMetadataRecord(dst []byte, m Message, version int16) ([]byte, error) {
	if !isMetadataRecord(m) {
		return dst, fmt.Errorf("%w: %s is not a metadata record", ErrUnknownType, m.MessageName())
	}
	b := append(dst, metadataFrame)
	b = binary.AppendUvarint(b, uint64(m.APIKey()))
	b = binary.AppendUvarint(b, uint64(version))
	b, err := m.AppendTo(b, version)
	if err != nil {
		return dst, err
	}
	return b, nil
}

// MetadataRecordSize is the number of bytes that AppendMetadataRecord adds.
func MetadataRecordSize(m Message, version int16) int {
	return 1 + sizeUvarint(int(m.APIKey())) + sizeUvarint(int(version)) + m.Size(version)
}

// ReadMetadataRecord decodes the value of a metadata log record. Bytes left over are an error, as in Kafka: a record that
// isn't understood to its end must not be half applied.
func ReadMetadataRecord(value []byte) (Versioned, error) {
	r := reader{b: value}
	frame, key, version := r.uvarint(), r.uvarint(), r.uvarint()
	switch {
	case r.err != nil:
		return Versioned{}, fmt.Errorf("metadata record of %d bytes: %w", len(value), r.err)
	case frame != metadataFrame:
		return Versioned{}, fmt.Errorf("metadata record with frame version %d: %w", frame, ErrUnsupportedVersion)
	case key > math.MaxInt16 || version > math.MaxInt16:
		return Versioned{}, fmt.Errorf("metadata record of type %d, version %d: %w", key, version, ErrInvalid)
	}
	m := NewMetadataRecord(int16(key))
	if m == nil {
		return Versioned{}, fmt.Errorf("metadata record of type %d: %w", key, ErrUnknownType)
	}
	rest, err := m.ReadFrom(r.b, int16(version))
	if err != nil {
		return Versioned{}, err
	}
	if len(rest) != 0 {
		return Versioned{}, fmt.Errorf("metadata record %s v%d: %d bytes left over: %w", m.MessageName(), version, len(rest), ErrInvalid)
	}
	return Versioned{Message: m, Version: int16(version)}, nil
}

// AppendVersioned appends int16 version and the body: the value of a coordinator's record, and of an EndTxnMarker.
func AppendVersioned(dst []byte, m Message, version int16) ([]byte, error) {
	b, err := m.AppendTo(binary.BigEndian.AppendUint16(dst, uint16(version)), version)
	if err != nil {
		return dst, err
	}
	return b, nil
}

// ReadVersioned decodes int16 version and a body of that version into m, and returns the version and what is left.
func ReadVersioned(src []byte, m Message) (version int16, rest []byte, err error) {
	r := reader{b: src}
	version = r.int16()
	if r.err != nil {
		return 0, src, fmt.Errorf("decode version of %s: %w", m.MessageName(), r.err)
	}
	rest, err = m.ReadFrom(r.b, version)
	return version, rest, err
}

// Coordinator says which coordinator's topic a record is in. Its record types are its own.
type Coordinator uint8

const (
	// GroupRecords are those of __consumer_offsets.
	GroupRecords Coordinator = iota
	// TransactionRecords are those of __transaction_state.
	TransactionRecords
	// ShareRecords are those of __share_group_state.
	ShareRecords
)

// NewKey makes an empty key of a record type, or nil for a type that Kafka 4.4 doesn't have.
func (c Coordinator) NewKey(recordType int16) Message {
	switch c {
	case GroupRecords:
		return newGroupKeyMessage(recordType)
	case TransactionRecords:
		return newTxnKeyMessage(recordType)
	case ShareRecords:
		return newShareKeyMessage(recordType)
	}
	return nil
}

// NewValue makes an empty value of a record type, or nil for a type that Kafka 4.4 doesn't have.
func (c Coordinator) NewValue(recordType int16) Message {
	switch c {
	case GroupRecords:
		return newGroupValueMessage(recordType)
	case TransactionRecords:
		return newTxnValueMessage(recordType)
	case ShareRecords:
		return newShareValueMessage(recordType)
	}
	return nil
}

// AppendKey appends the key of a coordinator's record: int16 record type, body in version 0.
func AppendKey(dst []byte, key Message) ([]byte, error) {
	b, err := key.AppendTo(binary.BigEndian.AppendUint16(dst, uint16(key.APIKey())), 0)
	if err != nil {
		return dst, err
	}
	return b, nil
}

// ReadKey decodes the key of a record in the coordinator's topic. An unknown type gives ErrUnknownType: skip the record.
// Bytes left over are ignored, as Kafka does.
func (c Coordinator) ReadKey(key []byte) (Message, error) {
	r := reader{b: key}
	recordType := r.int16()
	if r.err != nil {
		return nil, fmt.Errorf("coordinator key of %d bytes: %w", len(key), r.err)
	}
	m := c.NewKey(recordType)
	if m == nil {
		return nil, fmt.Errorf("coordinator key of type %d: %w", recordType, ErrUnknownType)
	}
	if _, err := m.ReadFrom(r.b, 0); err != nil {
		return nil, err
	}
	return m, nil
}

// ReadValue decodes the value that stands with a key of the record type. A null value, which is a tombstone, gives a
// Versioned without Message. Bytes left over are ignored, as Kafka does.
func (c Coordinator) ReadValue(recordType int16, value []byte) (Versioned, error) {
	if value == nil {
		return Versioned{}, nil
	}
	m := c.NewValue(recordType)
	if m == nil {
		return Versioned{}, fmt.Errorf("coordinator value of type %d: %w", recordType, ErrUnknownType)
	}
	version, _, err := ReadVersioned(value, m)
	if err != nil {
		return Versioned{}, err
	}
	return Versioned{Message: m, Version: version}, nil
}

// ControlType is the type of a control record, the second half of its key.
type ControlType int16

// The control record types of Kafka 4.4. Readers must tolerate others.
const (
	ControlAbort          ControlType = 0
	ControlCommit         ControlType = 1
	ControlLeaderChange   ControlType = 2
	ControlSnapshotHeader ControlType = 3
	ControlSnapshotFooter ControlType = 4
	ControlKRaftVersion   ControlType = 5
	ControlKRaftVoters    ControlType = 6
)

// AppendControlKey appends the key of a control record: int16 version 0, int16 type.
func AppendControlKey(dst []byte, t ControlType) []byte {
	return binary.BigEndian.AppendUint16(append(dst, 0, 0), uint16(t))
}

// ReadControlKey decodes the key of a control record. A later version of the key is taken as version 0 with more behind it.
func ReadControlKey(key []byte) (ControlType, error) {
	r := reader{b: key}
	version, t := r.int16(), r.int16()
	if r.err != nil {
		return 0, fmt.Errorf("control record key of %d bytes: %w", len(key), r.err)
	}
	if version < 0 {
		return 0, fmt.Errorf("control record key of version %d: %w", version, ErrInvalid)
	}
	return ControlType(t), nil
}

// NewControlRecord makes an empty value of a control record, or nil for a type that Kafka 4.4 doesn't have.
func NewControlRecord(t ControlType) Message {
	switch t {
	case ControlAbort, ControlCommit:
		return NewEndTxnMarker()
	case ControlLeaderChange:
		return NewLeaderChangeMessage()
	case ControlSnapshotHeader:
		return NewSnapshotHeaderRecord()
	case ControlSnapshotFooter:
		return NewSnapshotFooterRecord()
	case ControlKRaftVersion:
		return NewKRaftVersionRecord()
	case ControlKRaftVoters:
		return NewVotersRecord()
	}
	return nil
}

// AppendControlValue appends the value of a control record in that version. All but EndTxnMarker begin with a field
// Version, which it sets in what it writes; EndTxnMarker gets the version in front.
func AppendControlValue(dst []byte, m Message, version int16) ([]byte, error) {
	switch v := m.(type) {
	case *EndTxnMarker:
		return AppendVersioned(dst, m, version)
	case *LeaderChangeMessage:
		c := *v
		c.Version, m = version, &c
	case *SnapshotHeaderRecord:
		c := *v
		c.Version, m = version, &c
	case *SnapshotFooterRecord:
		c := *v
		c.Version, m = version, &c
	case *KRaftVersionRecord:
		c := *v
		c.Version, m = version, &c
	case *VotersRecord:
		c := *v
		c.Version, m = version, &c
	default:
		return dst, fmt.Errorf("%w: %s is not a control record", ErrUnknownType, m.MessageName())
	}
	return m.AppendTo(dst, version)
}

// ReadControlValue decodes the value of a control record. Its version is the int16 that it begins with; a version above the
// highest known is read as that one, and bytes left over are ignored.
func ReadControlValue(t ControlType, value []byte) (Versioned, error) {
	m := NewControlRecord(t)
	if m == nil {
		return Versioned{}, fmt.Errorf("control record of type %d: %w", t, ErrUnknownType)
	}
	r := reader{b: value}
	version := min(r.int16(), m.HighestVersion())
	if r.err != nil {
		return Versioned{}, fmt.Errorf("control record %s of %d bytes: %w", m.MessageName(), len(value), r.err)
	}
	body := value
	if t == ControlAbort || t == ControlCommit {
		body = r.b
	}
	if _, err := m.ReadFrom(body, version); err != nil {
		return Versioned{}, err
	}
	return Versioned{Message: m, Version: version}, nil
}

// ReadSubscription decodes a classic consumer's subscription: int16 version and body. Like Kafka's clients it takes a
// version above the highest as the highest and ignores bytes left over.
func ReadSubscription(src []byte) (*ConsumerProtocolSubscription, int16, error) {
	m := NewConsumerProtocolSubscription()
	version, err := readProtocol(src, m)
	return m, version, err
}

// ReadAssignment decodes a classic consumer's assignment with the leniency of ReadSubscription.
func ReadAssignment(src []byte) (*ConsumerProtocolAssignment, int16, error) {
	m := NewConsumerProtocolAssignment()
	version, err := readProtocol(src, m)
	return m, version, err
}

func readProtocol(src []byte, m Message) (int16, error) {
	r := reader{b: src}
	version := min(r.int16(), m.HighestVersion())
	if r.err != nil {
		return 0, fmt.Errorf("%s of %d bytes: %w", m.MessageName(), len(src), r.err)
	}
	_, err := m.ReadFrom(r.b, version)
	return version, err
}
