package record

import "fmt"

// Codec is a compression type, by its number in batch attributes.
type Codec int8

const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

var codecNames = [...]string{"none", "gzip", "snappy", "lz4", "zstd"}

// String is Kafka's name, as in compression.type.
func (c Codec) String() string {
	if c < 0 || int(c) >= len(codecNames) {
		return fmt.Sprintf("unknown(%d)", int8(c))
	}
	return codecNames[c]
}

// CodecOf finds a codec by Kafka's name.
func CodecOf(name string) (Codec, bool) {
	for i, n := range codecNames {
		if n == name {
			return Codec(i), true
		}
	}
	return None, false
}

// TimestampType says where a batch's timestamps come from.
type TimestampType int8

const (
	CreateTime    TimestampType = iota // set by the producer
	LogAppendTime                      // set by the broker
)

// String is Kafka's name, as in message.timestamp.type.
func (t TimestampType) String() string {
	if t == LogAppendTime {
		return "LogAppendTime"
	}
	return "CreateTime"
}
