package message

// Message is a versioned record. Every generated type in this package is one.
//
// A message is plain data: use it from one goroutine at a time while it changes. A literal leaves out the defaults that
// aren't zero (PartitionChangeRecord.Leader, for instance, is -2 by default), so make one with its New function unless all
// fields are given.
type Message interface {
	// APIKey is the record type, or -1 for a message that has none.
	APIKey() int16
	// MessageName is Kafka's name: "TopicRecord".
	MessageName() string
	// LowestVersion and HighestVersion bound the versions that can be read and written.
	LowestVersion() int16
	HighestVersion() int16
	// Size is the number of bytes that AppendTo adds in that version.
	Size(version int16) int
	// AppendTo appends the message in that version. It fails, and returns dst, when the version doesn't exist, when it
	// lacks a field that is set and may not be dropped, when a field that may not be null is, or a string is too long.
	AppendTo(dst []byte, version int16) ([]byte, error)
	// ReadFrom resets the message and decodes it from the front of src, returning what is left. It keeps no reference to
	// src and allocates no more than a small multiple of what src really holds. After an error the content is undefined.
	ReadFrom(src []byte, version int16) (rest []byte, err error)
	// AppendJSON appends the fields of that version as Kafka's DumpLogSegments prints them.
	AppendJSON(dst []byte, version int16) []byte
	// Reset sets every field to its default.
	Reset()
}

// Versioned is a message with the version that it has or is to get on disk: Kafka's ApiMessageAndVersion.
type Versioned struct {
	Message Message
	Version int16
}

// New makes an empty message by Kafka's name, or nil when there is none of that name.
func New(name string) Message {
	if f := constructors[name]; f != nil {
		return f()
	}
	return nil
}
