package cli

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"gregor/internal/message"
	"gregor/internal/record"
	"gregor/internal/uuid"
)

// recordDecoder turns a record's key and value into text; nil prints nothing.
type recordDecoder struct {
	parse func(r *record.Record) (key, value *string)
	// special decoders imply that data is printed.
	special bool
}

func decoderFor(o *dumpOptions) (recordDecoder, error) {
	switch {
	case o.offsets:
		return recordDecoder{coordinatorText(message.GroupRecords), true}, nil
	case o.transactions:
		return recordDecoder{coordinatorText(message.TransactionRecords), true}, nil
	case o.share:
		return recordDecoder{coordinatorText(message.ShareRecords), true}, nil
	case o.metadata:
		return recordDecoder{metadataText, true}, nil
	case o.remote:
		return recordDecoder{remoteText, true}, nil
	}
	key, err := plainDecoder(o.keyDecoder)
	if err != nil {
		return recordDecoder{}, err
	}
	value, err := plainDecoder(o.valueDecoder)
	if err != nil {
		return recordDecoder{}, err
	}
	text := func(b []byte, f func([]byte) string) *string {
		if b == nil {
			return nil
		}
		s := f(b)
		return &s
	}
	return recordDecoder{parse: func(r *record.Record) (*string, *string) { return text(r.Key, key), text(r.Value, value) }}, nil
}

// plainDecoder knows Kafka's own decoder classes by name and by class.
func plainDecoder(name string) (func([]byte) string, error) {
	short := strings.ToLower(strings.TrimSuffix(name[strings.LastIndexByte(name, '.')+1:], "Decoder"))
	switch short {
	case "string", "":
		return javaString, nil
	case "integer":
		return func(b []byte) string {
			if len(b) < 4 {
				return fmt.Sprintf("<%d bytes are no integer>", len(b))
			}
			return strconv.Itoa(int(int32(binary.BigEndian.Uint32(b))))
		}, nil
	case "long":
		return func(b []byte) string {
			if len(b) < 8 {
				return fmt.Sprintf("<%d bytes are no long>", len(b))
			}
			return strconv.FormatInt(int64(binary.BigEndian.Uint64(b)), 10)
		}, nil
	case "hex", "default":
		return hex.EncodeToString, nil
	}
	return nil, fmt.Errorf("decoder %q is not known: use string, integer, long or hex (classes of Java can't be loaded)", name)
}

// javaString decodes UTF-8 as Java does: each longest piece that could have begun a character, and each byte that couldn't,
// becomes one U+FFFD.
func javaString(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var s strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n <= 1 {
			n = brokenPrefix(b)
		}
		s.WriteRune(r)
		b = b[n:]
	}
	return s.String()
}

// brokenPrefix is how many bytes of an invalid sequence go together.
func brokenPrefix(b []byte) int {
	lo, hi, n := byte(0x80), byte(0xbf), 0
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		n = 1
	case c >= 0xe0 && c <= 0xef:
		n = 2
		if c == 0xe0 {
			lo = 0xa0
		} else if c == 0xed {
			hi = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		n = 3
		if c == 0xf0 {
			lo = 0x90
		} else if c == 0xf4 {
			hi = 0x8f
		}
	}
	i := 1
	for ; i <= n && i < len(b) && b[i] >= lo && b[i] <= hi; i++ {
		lo, hi = 0x80, 0xbf
	}
	return i
}

// controlText is what is printed of a control record beside its offset.
func controlText(r *record.Record) string {
	t, err := record.ParseControlKey(r.Key)
	if err != nil {
		return " " + err.Error()
	}
	if t == record.ControlAbort || t == record.ControlCommit {
		m, err := record.ParseEndTxnMarker(r.Key, r.Value)
		if err != nil {
			return " " + err.Error()
		}
		return fmt.Sprintf(" endTxnMarker: %s coordinatorEpoch: %d", t, m.CoordinatorEpoch)
	}
	names := map[record.ControlType]string{
		record.ControlLeaderChange: "LeaderChange:", record.ControlSnapshotHeader: "SnapshotHeader", record.ControlSnapshotFooter: "SnapshotFooter",
		record.ControlKRaftVersion: "KRaftVersion", record.ControlKRaftVoters: "KRaftVoters",
	}
	name, ok := names[t]
	if !ok {
		return fmt.Sprintf(" controlType: UNKNOWN(%d)", int16(binary.BigEndian.Uint16(r.Key[2:])))
	}
	v, err := message.ReadControlValue(message.ControlType(t), r.Value)
	if err != nil {
		return " " + err.Error()
	}
	return " " + name + " " + string(v.Message.AppendJSON(nil, v.Version))
}

// coordinatorText prints the records of a coordinator's topic.
func coordinatorText(c message.Coordinator) func(r *record.Record) (key, value *string) {
	return func(r *record.Record) (*string, *string) {
		text := func(format string, args ...any) *string {
			s := fmt.Sprintf(format, args...)
			return &s
		}
		if r.Key == nil {
			return text("Failed to decode message at offset %d using the specified decoder (message had a missing key)", r.Offset), nil
		}
		k, err := c.ReadKey(r.Key)
		if errors.Is(err, message.ErrUnknownType) {
			return text("Unknown record type %d at offset %d, skipping.", int16(binary.BigEndian.Uint16(r.Key)), r.Offset), nil
		}
		var v message.Versioned
		if err == nil {
			v, err = c.ReadValue(k.APIKey(), r.Value)
		}
		if err != nil {
			return text("Error at offset %d, skipping. %v", r.Offset, err), nil
		}
		key := text(`{"type":"%d","data":%s}`, k.APIKey(), k.AppendJSON(nil, 0))
		if v.Message == nil {
			return key, text("<DELETE>")
		}
		return key, text(`{"version":"%d","data":%s}`, v.Version, valueJSON(v))
	}
}

// valueJSON is a value's JSON with what Kafka's tool prints in words.
func valueJSON(v message.Versioned) string {
	s := string(v.Message.AppendJSON(nil, v.Version))
	switch m := v.Message.(type) {
	case *message.TransactionLogValue:
		states := []string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"}
		state := strconv.Itoa(int(m.TransactionStatus))
		if i := int(m.TransactionStatus); i >= 0 && i < len(states) {
			state = states[i]
		}
		return strings.Replace(s, fmt.Sprintf(`"transactionStatus":%d`, m.TransactionStatus), `"transactionStatus":"`+state+`"`, 1)
	case *message.GroupMetadataValue:
		if m.ProtocolType == "consumer" {
			return expandMembers(s, m)
		}
	}
	return s
}

// expandMembers replaces the bytes of subscriptions and assignments by what they say. What can't be read stays.
func expandMembers(s string, m *message.GroupMetadataValue) string {
	var out strings.Builder
	replace := func(field string, b []byte, read func([]byte) (message.Message, int16, error)) {
		old := `"` + field + `":"` + base64.StdEncoding.EncodeToString(b) + `"`
		i := strings.Index(s, old)
		if i < 0 {
			return
		}
		out.WriteString(s[:i])
		s = s[i+len(old):]
		if msg, version, err := read(b); err == nil {
			old = `"` + field + `":` + string(msg.AppendJSON(nil, version))
		}
		out.WriteString(old)
	}
	for i := range m.Members {
		replace("subscription", m.Members[i].Subscription, func(b []byte) (message.Message, int16, error) { return wrap(message.ReadSubscription(b)) })
		replace("assignment", m.Members[i].Assignment, func(b []byte) (message.Message, int16, error) { return wrap(message.ReadAssignment(b)) })
	}
	return out.String() + s
}

func wrap[M message.Message](m M, version int16, err error) (message.Message, int16, error) {
	return m, version, err
}

// metadataText prints the records of the cluster's metadata.
func metadataText(r *record.Record) (key, value *string) {
	s := ""
	if v, err := message.ReadMetadataRecord(r.Value); err != nil {
		s = fmt.Sprintf("Error at %d, skipping. %v", r.Offset, err)
	} else {
		s = fmt.Sprintf(`{"type":"%s","version":%d,"data":%s}`, snakeCase(v.Message.MessageName()), v.Version, v.Message.AppendJSON(nil, v.Version))
	}
	return nil, &s
}

// snakeCase turns "TopicRecord" into "TOPIC_RECORD".
func snakeCase(name string) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c >= 'A' && c <= 'Z' && i > 0 {
			b.WriteByte('_')
		}
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}

// remoteText prints the records of __remote_log_metadata as Java prints the objects.
func remoteText(r *record.Record) (key, value *string) {
	s, err := remoteRecord(r.Value)
	if err != nil {
		s = fmt.Sprintf("Error at offset %d, skipping. %v", r.Offset, err)
	}
	return nil, &s
}

func remoteRecord(b []byte) (string, error) {
	// As in the metadata log: frame version, type, version, message.
	var head [3]uint64
	for i := range head {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<15-1 {
			return "", fmt.Errorf("%d bytes are no remote log metadata", len(b))
		}
		head[i], b = v, b[n:]
	}
	frame, kind, version := head[0], head[1], head[2]
	if frame != 1 {
		return "", fmt.Errorf("remote log metadata of frame version %d is not known", frame)
	}
	read := func(m message.Message) error {
		_, err := m.ReadFrom(b, int16(version))
		return err
	}
	custom := func(b []byte) string {
		if b == nil {
			return "Optional.empty"
		}
		return fmt.Sprintf("Optional[CustomMetadata{%d bytes}]", len(b))
	}
	partition := func(id uuid.UUID, name string, p int32) string { return fmt.Sprintf("%s:%s-%d", id, name, p) }
	segment := func(tp string, id uuid.UUID) string {
		return fmt.Sprintf("RemoteLogSegmentId{topicIdPartition=%s, id=%s}", tp, id)
	}
	states := []string{"COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"}
	switch kind {
	case 0:
		m := message.NewRemoteLogSegmentMetadataRecord()
		if err := read(m); err != nil {
			return "", err
		}
		epochs := map[int32]int64{}
		for _, e := range m.SegmentLeaderEpochs {
			epochs[e.LeaderEpoch] = e.Offset
		}
		tp := m.RemoteLogSegmentID.TopicIDPartition
		return fmt.Sprintf("RemoteLogSegmentMetadata{remoteLogSegmentId=%s, startOffset=%d, endOffset=%d, brokerId=%d, maxTimestampMs=%d, eventTimestampMs=%d, segmentLeaderEpochs=%s, segmentSizeInBytes=%d, customMetadata=%s, state=%s, txnIdxEmpty=%t}",
			segment(partition(tp.ID, tp.Name, tp.Partition), m.RemoteLogSegmentID.ID), m.StartOffset, m.EndOffset, m.BrokerID, m.MaxTimestampMs, m.EventTimestampMs,
			javaMap(epochs), m.SegmentSizeInBytes, custom(m.CustomMetadata), name(states, m.RemoteLogSegmentState), m.TxnIndexEmpty), nil
	case 1:
		m := message.NewRemoteLogSegmentMetadataUpdateRecord()
		if err := read(m); err != nil {
			return "", err
		}
		tp := m.RemoteLogSegmentID.TopicIDPartition
		return fmt.Sprintf("RemoteLogSegmentMetadataUpdate{remoteLogSegmentId=%s, customMetadata=%s, state=%s, eventTimestampMs=%d, brokerId=%d}",
			segment(partition(tp.ID, tp.Name, tp.Partition), m.RemoteLogSegmentID.ID), custom(m.CustomMetadata), name(states, m.RemoteLogSegmentState), m.EventTimestampMs, m.BrokerID), nil
	case 2:
		m := message.NewRemotePartitionDeleteMetadataRecord()
		if err := read(m); err != nil {
			return "", err
		}
		tp := m.TopicIDPartition
		deletes := []string{"DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED"}
		return fmt.Sprintf("RemotePartitionDeleteMetadata{topicPartition=%s, state=%s, eventTimestampMs=%d, brokerId=%d}",
			partition(tp.ID, tp.Name, tp.Partition), name(deletes, m.RemotePartitionDeleteState), m.EventTimestampMs, m.BrokerID), nil
	case 3:
		m := message.NewRemoteLogSegmentMetadataSnapshotRecord()
		if err := read(m); err != nil {
			return "", err
		}
		epochs := map[int32]int64{}
		for _, e := range m.SegmentLeaderEpochs {
			epochs[e.LeaderEpoch] = e.Offset
		}
		return fmt.Sprintf("RemoteLogSegmentMetadataSnapshot{segmentId=%s, startOffset=%d, endOffset=%d, maxTimestampMs=%d, segmentLeaderEpochs=%s, segmentSizeInBytes=%d, customMetadata=%s, state=%s, txnIdxEmpty=%t}",
			m.SegmentID, m.StartOffset, m.EndOffset, m.MaxTimestampMs, javaMap(epochs), m.SegmentSizeInBytes, custom(m.CustomMetadata), name(states, m.RemoteLogSegmentState), m.TxnIndexEmpty), nil
	}
	return "", fmt.Errorf("remote log metadata of type %d is not known", kind)
}

func name(names []string, i int8) string {
	if i < 0 || int(i) >= len(names) {
		return strconv.Itoa(int(i))
	}
	return names[i]
}

// javaMap prints a map of epochs to offsets as Java prints a sorted map.
func javaMap(m map[int32]int64) string {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, int(k))
	}
	sort.Ints(keys)
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = fmt.Sprintf("%d=%d", k, m[int32(k)])
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
