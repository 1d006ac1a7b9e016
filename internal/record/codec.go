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
