package message

import (
	"bytes"
	"slices"
)

// AppendMetadataJSON appends a metadata record as DumpLogSegments prints it:
// {"type":"TOPIC_RECORD","version":0,"data":{...}}.
func AppendMetadataJSON(dst []byte, v Versioned) []byte {
	dst = append(dst, `{"type":`...)
	dst = jsonString(dst, screaming(v.Message.MessageName()))
	dst = append(dst, `,"version":`...)
	dst = jsonInt16(dst, v.Version)
	dst = append(dst, `,"data":`...)
	dst = v.Message.AppendJSON(dst, v.Version)
	return append(dst, '}')
}

// AppendKeyJSON appends a coordinator's key as DumpLogSegments prints it: {"type":"1","data":{...}}.
func AppendKeyJSON(dst []byte, key Message) []byte {
	return appendCoordinatorJSON(dst, "type", key, key.APIKey(), 0)
}

// AppendValueJSON appends a coordinator's value as DumpLogSegments prints it: {"version":"4","data":{...}}. Like the tool it
// shows what is in the members' bytes of a classic consumer group, and a transaction's state by name.
func AppendValueJSON(dst []byte, v Versioned) []byte {
	return appendCoordinatorJSON(dst, "version", v.Message, v.Version, v.Version)
}

func appendCoordinatorJSON(dst []byte, name string, m Message, number, version int16) []byte {
	dst = append(append(append(dst, `{"`...), name...), `":"`...)
	dst = jsonInt16(dst, number)
	dst = append(dst, `","data":`...)
	switch m := m.(type) {
	case *GroupMetadataValue:
		dst = appendGroupMetadataJSON(dst, m, version)
	case *TransactionLogValue:
		dst = appendTransactionJSON(dst, m, version)
	default:
		dst = m.AppendJSON(dst, version)
	}
	return append(dst, '}')
}

// consumerProtocolType is the protocol type of the groups whose members' bytes are the consumer protocol.
const consumerProtocolType = "consumer"

// appendGroupMetadataJSON puts the decoded subscription and assignment in place of each member's bytes. Both come last in a
// member, as the members do in the group, so an empty form of each can be cut off and written anew.
func appendGroupMetadataJSON(dst []byte, g *GroupMetadataValue, version int16) []byte {
	if g.ProtocolType != consumerProtocolType || len(g.Members) == 0 {
		return g.AppendJSON(dst, version)
	}
	c := *g
	c.Members = nil
	dst = cutSuffix(c.AppendJSON(dst, version), `]}`)
	for i := range g.Members {
		m := g.Members[i]
		subscription, assignment := m.Subscription, m.Assignment
		m.Subscription, m.Assignment = nil, nil
		dst = cutSuffix(m.json(dst, version), `"","assignment":""}`)
		dst = appendProtocolJSON(dst, subscription, NewConsumerProtocolSubscription())
		dst = append(dst, `,"assignment":`...)
		dst = appendProtocolJSON(dst, assignment, NewConsumerProtocolAssignment())
		dst = append(dst, `},`...)
	}
	return append(endJSON(dst, ']'), '}')
}

func cutSuffix(b []byte, suffix string) []byte { return b[:len(b)-len(suffix)] }

// appendProtocolJSON decodes b into m and prints it, or prints the bytes when they are something else.
func appendProtocolJSON(dst, b []byte, m Message) []byte {
	version, _, err := ReadVersioned(b, m)
	if err != nil {
		return jsonBytes(dst, b)
	}
	return m.AppendJSON(dst, version)
}

// TransactionStatus is the name of a transaction's state in TransactionLogValue, or "" for a number that is none.
func TransactionStatus(status int8) string {
	if status < 0 || int(status) >= len(transactionStatuses) {
		return ""
	}
	return transactionStatuses[status]
}

var transactionStatuses = [...]string{
	"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence",
}

// appendTransactionJSON puts the state's name in place of its number. What comes before it are numbers, so the first key of
// that name is the right one.
func appendTransactionJSON(dst []byte, t *TransactionLogValue, version int16) []byte {
	start := len(dst)
	dst = t.AppendJSON(dst, version)
	name := TransactionStatus(t.TransactionStatus)
	if name == "" {
		return dst
	}
	key := []byte(`"transactionStatus":`)
	at := start + bytes.Index(dst[start:], key) + len(key)
	rest := bytes.TrimLeft(dst[at:], "0123456789")
	return slices.Concat(dst[:at], []byte(`"`+name+`"`), rest)
}

// screaming turns TopicRecord into TOPIC_RECORD, the name in Kafka's enumeration of record types.
func screaming(name string) string {
	var b []byte
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z':
			c -= 'a' - 'A'
		case i > 0:
			b = append(b, '_')
		}
		b = append(b, c)
	}
	return string(b)
}
