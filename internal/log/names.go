package log

import (
	"fmt"
	"strconv"
	"strings"
)

// Names of the files in a replica's directory and of the suffixes that files and directories get in transit.
const (
	suffixLog       = ".log"
	suffixIndex     = ".index"
	suffixTimeIndex = ".timeindex"
	suffixTxnIndex  = ".txnindex"
	suffixSnapshot  = ".snapshot"

	suffixDeleted = ".deleted" // renamed, to be unlinked after a delay
	suffixCleaned = ".cleaned" // being written by the cleaner
	suffixSwap    = ".swap"    // written, replacing old segments
	suffixTmp     = ".tmp"     // a small file being written

	dirDelete = "-delete"
	dirStray  = "-stray"
	dirFuture = "-future"

	epochFile             = "leader-epoch-checkpoint"
	partitionMetadataFile = "partition.metadata"

	maxNameLen = 255
)

// offsetName is the 20-digit form of an offset that file names begin with.
func offsetName(offset int64) string {
	var b [20]byte
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + offset%10)
		offset /= 10
	}
	return string(b[:])
}

// parseOffsetName splits a segment file's name into its offset and what follows the first dot. Kafka takes any number that
// Java's Long.parseLong takes, so a name need not have 20 digits.
func parseOffsetName(name string) (offset int64, suffix string, err error) {
	dot := strings.IndexByte(name, '.')
	if dot < 0 {
		return 0, "", fmt.Errorf("file name %q has no suffix", name)
	}
	offset, err = strconv.ParseInt(name[:dot], 10, 64)
	if err != nil || offset < 0 {
		return 0, "", fmt.Errorf("file name %q does not begin with an offset", name)
	}
	return offset, name[dot:], nil
}

// dirKind says what the name of a directory in a log dir makes it.
type dirKind uint8

const (
	kindLog dirKind = iota
	kindDelete
	kindStray
	kindFuture
)

func (k dirKind) suffix() string {
	switch k {
	case kindDelete:
		return dirDelete
	case kindStray:
		return dirStray
	case kindFuture:
		return dirFuture
	}
	return ""
}

// parseDirName splits TOPIC-N or TOPIC-N.HEX32-SUFFIX. The topic is everything before the last dash; a suffixed name is cut at
// its last dot first.
func parseDirName(name string) (tp TopicPartition, kind dirKind, err error) {
	plain := name
	for _, k := range []dirKind{kindDelete, kindStray, kindFuture} {
		if !strings.HasSuffix(name, k.suffix()) {
			continue
		}
		dot := strings.LastIndexByte(name, '.')
		if dot < 0 || dot+1 >= len(name)-len(k.suffix()) {
			// A topic may itself end like that ("my-delete-0" can't, its partition number comes last), so this is no
			// partition directory.
			return tp, 0, fmt.Errorf("directory %q does not have the form topic-partition.uniqueId%s", name, k.suffix())
		}
		plain, kind = name[:dot], k
	}
	dash := strings.LastIndexByte(plain, '-')
	if dash <= 0 {
		return tp, 0, fmt.Errorf("directory %q does not have the form topic-partition", name)
	}
	n, err := strconv.ParseInt(plain[dash+1:], 10, 32)
	if err != nil || n < 0 {
		return tp, 0, fmt.Errorf("directory %q does not end in a partition number", name)
	}
	return TopicPartition{Topic: plain[:dash], Partition: int32(n)}, kind, nil
}

// suffixedDirName is the name of tp's directory in transit. Like Kafka it shortens the topic so that the name fits.
func suffixedDirName(tp TopicPartition, id [16]byte, kind dirKind) string {
	tail := fmt.Sprintf("-%d.%x%s", tp.Partition, id[:], kind.suffix())
	topic := tp.Topic
	if over := len(topic) + len(tail) - maxNameLen; over > 0 {
		topic = topic[:len(topic)-over]
	}
	return topic + tail
}
