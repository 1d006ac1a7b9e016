package log

import (
	"strconv"
	"time"

	"gregor/internal/record"
)

// MetadataTopic is the name of the topic whose only partition is the cluster's metadata log.
const MetadataTopic = "__cluster_metadata"

// UnknownOffset stands for "no offset".
const UnknownOffset int64 = -1

// NoEpoch stands for "no leader epoch".
const NoEpoch int32 = -1

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String is the name of the partition's directory, "topic-0".
func (tp TopicPartition) String() string {
	return tp.Topic + "-" + strconv.Itoa(int(tp.Partition))
}

// Compare orders by topic, then by partition number.
func (tp TopicPartition) Compare(o TopicPartition) int {
	switch {
	case tp.Topic < o.Topic:
		return -1
	case tp.Topic > o.Topic:
		return 1
	}
	return int(tp.Partition) - int(o.Partition)
}

// Config is the effective configuration of a topic as its logs need it. DefaultConfig gives Kafka's defaults.
type Config struct {
	// SegmentBytes is the most a segment holds ("segment.bytes"; an append bigger than that is refused).
	SegmentBytes int32
	// SegmentAge is how far apart in record time a segment's first and last records may be ("segment.ms").
	SegmentAge time.Duration
	// SegmentJitter bounds the random time by which each segment is rolled early ("segment.jitter.ms").
	SegmentJitter time.Duration
	// IndexBytes bounds each index file ("segment.index.bytes"); a full index rolls the segment.
	IndexBytes int32
	// IndexIntervalBytes is about how many bytes of log lie between two index entries ("index.interval.bytes").
	IndexIntervalBytes int32
	// Preallocate is accepted and not needed: files grow as they are written ("preallocate").
	Preallocate bool

	// MaxMessageBytes bounds one batch, as written ("max.message.bytes").
	MaxMessageBytes int32
	// TimestampType LogAppendTime stamps batches with the broker's time ("message.timestamp.type").
	LogAppendTime bool
	// TimestampBeforeMax and TimestampAfterMax bound how far a CreateTime may be from the broker's clock; negative or
	// huge means no bound ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms").
	TimestampBeforeMax, TimestampAfterMax time.Duration
	// RecompressTo, when Recompress is set, is the codec that batches are stored with whatever the producer used
	// ("compression.type" other than "producer"), at CompressionLevel (0 is the codec's default).
	Recompress       bool
	RecompressTo     record.Codec
	CompressionLevel int

	// FlushMessages and FlushInterval force a sync after so many records or so much time ("flush.messages", "flush.ms");
	// 0 and the maximum mean never.
	FlushMessages int64
	FlushInterval time.Duration

	// CleanupDelete and CleanupCompact say what keeps the log small ("cleanup.policy").
	CleanupDelete, CleanupCompact bool
	// RetentionBytes and RetentionAge bound the log's size and age; negative means no bound.
	RetentionBytes int64
	RetentionAge   time.Duration
	// FileDeleteDelay is how long a deleted segment's files stay under their .deleted name ("file.delete.delay.ms").
	FileDeleteDelay time.Duration

	// DeleteRetention is how long tombstones and markers outlive the cleaning that could drop them ("delete.retention.ms").
	DeleteRetention time.Duration
	// MinCompactionLag keeps young records from being compacted, MaxCompactionLag forces it ("min.compaction.lag.ms",
	// "max.compaction.lag.ms").
	MinCompactionLag, MaxCompactionLag time.Duration
	// MinCleanableRatio is how much of the log must be dirty before it is cleaned ("min.cleanable.dirty.ratio").
	MinCleanableRatio float64
}

// DefaultConfig is what a topic has with nothing configured, Kafka's defaults.
func DefaultConfig() Config {
	return Config{
		SegmentBytes:       1 << 30,
		SegmentAge:         7 * 24 * time.Hour,
		IndexBytes:         10 << 20,
		IndexIntervalBytes: 4096,
		MaxMessageBytes:    1048588,
		TimestampBeforeMax: -1,
		TimestampAfterMax:  time.Hour,
		CleanupDelete:      true,
		RetentionBytes:     -1,
		RetentionAge:       7 * 24 * time.Hour,
		FileDeleteDelay:    time.Minute,
		DeleteRetention:    24 * time.Hour,
		MaxCompactionLag:   1<<63 - 1,
		MinCleanableRatio:  0.5,
	}
}

// Origin says where an append comes from, which decides what is checked.
type Origin uint8

const (
	// Client is a producer: batches are validated in full, control batches refused, sequences and epochs checked.
	Client Origin = iota
	// Coordinator is a coordinator of this node: trusted contents, transaction markers allowed.
	Coordinator
	// RaftLeader is the leader of the metadata quorum: several batches, control batches, offsets assigned.
	RaftLeader
	// Replication is a follower taking what its leader has; AppendFollower uses it.
	Replication
)

// Validation says how closely a client's batches are looked at ("gregor.produce.validation").
type Validation uint8

const (
	// Strict looks at every record as Kafka does, decompressing where it must.
	Strict Validation = iota
	// Header looks at the batch header and the CRC only.
	Header
)

// AppendOptions goes with one Append.
type AppendOptions struct {
	// LeaderEpoch is stamped on the batches.
	LeaderEpoch int32
	Origin      Origin
	// Validation applies to Client appends.
	Validation Validation
	// TransactionVersion is the feature level transaction.version: at 2 a marker's epoch must be above the producer's.
	TransactionVersion int16
	// Guard is what StartTransactionVerification returned for a transactional client append that was verified with the
	// transaction coordinator; nil when there was nothing to verify.
	Guard *VerificationGuard
}

// AppendInfo says what an append did.
type AppendInfo struct {
	// FirstOffset and LastOffset are the offsets of the first and last record. For a duplicate they are those of the batch
	// that is already in the log.
	FirstOffset, LastOffset int64
	// MaxTimestamp is the greatest timestamp appended, in ms; -1 when there is none.
	MaxTimestamp int64
	// LogAppendTime is the time that the batches were stamped with, in ms, or -1 with CreateTime.
	LogAppendTime int64
	// LogStartOffset is the log start offset at the time of the append.
	LogStartOffset int64
	// LeaderEpoch is that of the last batch appended; -1 when there was none.
	LeaderEpoch int32
	// Records and Bytes count what was appended.
	Records, Bytes int
	// Duplicate says that the batch had been appended before and was not again.
	Duplicate bool
}

// RecordError says what is wrong with one record of a refused batch.
type RecordError struct {
	// BatchIndex is the record's place in the batch, from 0.
	BatchIndex int32
	Message    string
}

// InvalidRecordError refuses an append because of some of its records (KIP-467). CodeOf finds Err's code.
type InvalidRecordError struct {
	// Err is the wrapped error that decides the code: INVALID_RECORD, INVALID_TIMESTAMP, ...
	Err     error
	Records []RecordError
}

func (e *InvalidRecordError) Error() string { return e.Err.Error() }
func (e *InvalidRecordError) Unwrap() error { return e.Err }

// Isolation says how far a read may see.
type Isolation uint8

const (
	// ReadLogEnd sees everything: replicas.
	ReadLogEnd Isolation = iota
	// ReadUncommitted sees up to the high watermark.
	ReadUncommitted
	// ReadCommitted sees up to the last stable offset and lists the aborted transactions in what it returns.
	ReadCommitted
)

// AbortedTxn is a transaction that a read-committed consumer must skip.
type AbortedTxn struct {
	ProducerID  int64
	FirstOffset int64
}

// Fetched is what a Read found. Release its Slice.
type Fetched struct {
	// Slice holds the bytes: whole batches except perhaps the last, the first of which holds the offset that was asked for
	// or is the next one there is. Empty when there is nothing to read yet.
	Slice Slice
	// StartOffset is the offset that was asked for.
	StartOffset int64
	// Aborted is set only for ReadCommitted.
	Aborted []AbortedTxn
	// HighWatermark, LastStableOffset and LogStartOffset are as they were when the read began; LogEndOffset too.
	HighWatermark, LastStableOffset, LogStartOffset, LogEndOffset int64
	// FirstBatchIncomplete says that maxBytes cut the first batch and minOne wasn't asked for.
	FirstBatchIncomplete bool
}

// TimestampOffset is a record's timestamp in ms with its offset and the leader epoch it was written in (-1 if unknown).
type TimestampOffset struct {
	Timestamp   int64
	Offset      int64
	LeaderEpoch int32
}

// Special timestamps of OffsetForTimestamp, as in ListOffsets.
const (
	TimestampLatest        int64 = -1
	TimestampEarliest      int64 = -2
	TimestampMax           int64 = -3
	TimestampEarliestLocal int64 = -4
	TimestampLatestTiered  int64 = -5
)

// ProducerState describes one producer of a partition, as DescribeProducers wants it.
type ProducerState struct {
	ProducerID            int64
	ProducerEpoch         int16
	LastSequence          int32 // -1 when none
	LastTimestamp         int64
	CoordinatorEpoch      int32 // of the last marker; -1 when none
	CurrentTxnFirstOffset int64 // -1 when no transaction is open
}
