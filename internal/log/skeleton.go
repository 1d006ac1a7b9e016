package log

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"time"

	"gregor/internal/clock"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

var errSkeleton = errors.New("log: not built yet")

// Slice is a run of bytes of one segment file that stays readable until Release.
type Slice struct {
	file vfs.File
	pos  int64
	n    int
}

// Len is the number of bytes.
func (s Slice) Len() int { return s.n }

// Pos is where the slice begins in its file.
func (s Slice) Pos() int64 { return s.pos }

// Fd is the descriptor for sendfile, ok=false when there is none.
func (s Slice) Fd() (fd uintptr, ok bool) { return 0, false }

// ReaderAt reads the file by file position (not relative to Pos).
func (s Slice) ReaderAt() io.ReaderAt { return s.file }

// Bytes reads the slice into dst, growing it.
func (s Slice) Bytes(dst []byte) ([]byte, error) { return nil, errSkeleton }

// Release lets the file go. Exactly once; a zero Slice may be released too.
func (s Slice) Release() {}

// Options make a Manager.
type Options struct {
	FS     vfs.FS
	Clock  clock.Clock
	Logger *slog.Logger
	// Dirs are Kafka's log.dirs, in order.
	Dirs      []string
	NodeID    int32
	ClusterID string
	// RecoveryThreads is num.recovery.threads.per.data.dir.
	RecoveryThreads int
	// TopicConfig gives the effective configuration of a topic at load.
	TopicConfig func(topic string) Config
	// Known says whether this node is to have the replica; others become strays. nil knows all.
	Known func(tp TopicPartition, topicID uuid.UUID) bool
	// ProducerIDExpiration is producer.id.expiration.ms; 0 is a day.
	ProducerIDExpiration time.Duration
	// MaxOpenFiles bounds the segment files held open; 0 is 10,000.
	MaxOpenFiles int
	Rand         *rand.Rand
	Progress     func(Progress)
	OnDirFailure func(dir string, err error)
}

// Progress tells how far loading is.
type Progress struct {
	Dir                         string
	Logs, LogsDone              int
	Recovering                  bool
	RecoverBytes, RecoveredDone int64
}

// DirInfo describes a log directory.
type DirInfo struct {
	Path          string
	ID            uuid.UUID
	Offline       error
	Total, Usable int64
}

// Manager owns the log directories.
type Manager struct{}

// Open locks and loads the log directories.
func Open(ctx context.Context, o Options) (*Manager, error) { return nil, errSkeleton }

func (m *Manager) Log(tp TopicPartition) *Log { return nil }
func (m *Manager) GetOrCreate(tp TopicPartition, topicID uuid.UUID, cfg Config) (*Log, error) {
	return nil, errSkeleton
}
func (m *Manager) Delete(tp TopicPartition) error                     { return errSkeleton }
func (m *Manager) Logs() iter.Seq[*Log]                               { return func(func(*Log) bool) {} }
func (m *Manager) UpdateConfig(topic string, cfg Config)              {}
func (m *Manager) Dirs() []DirInfo                                    { return nil }
func (m *Manager) PreviousBrokerEpoch() int64                         { return -1 }
func (m *Manager) Close(ctx context.Context, brokerEpoch int64) error { return errSkeleton }

// Checkpointed high watermark of a partition as of the start, 0 when there is none.
func (m *Manager) CheckpointedHighWatermark(tp TopicPartition) int64 { return 0 }

// MetadataOptions open the metadata log.
type MetadataOptions struct {
	FS     vfs.FS
	Clock  clock.Clock
	Logger *slog.Logger
	// Dir is metadata.log.dir; the log lies in its __cluster_metadata-0.
	Dir    string
	Config Config
}

// OpenMetadata opens, or makes, the metadata log. It is always recovered from its first segment on.
func OpenMetadata(ctx context.Context, o MetadataOptions) (*Log, error) { return nil, errSkeleton }

// VerificationGuard ties a transactional append to the verification that preceded it (KIP-890).
type VerificationGuard struct{ _ byte }

// Log is one partition's log.
type Log struct{}

func (l *Log) TopicPartition() TopicPartition { return TopicPartition{} }
func (l *Log) TopicID() uuid.UUID             { return uuid.Zero }
func (l *Log) DirID() uuid.UUID               { return uuid.Zero }
func (l *Log) Dir() string                    { return "" }
func (l *Log) Config() Config                 { return Config{} }
func (l *Log) Append(records []byte, o AppendOptions) (AppendInfo, error) {
	return AppendInfo{}, errSkeleton
}
func (l *Log) AppendFollower(records []byte) (AppendInfo, error) { return AppendInfo{}, errSkeleton }
func (l *Log) Read(offset int64, maxBytes int, iso Isolation, minOne bool) (Fetched, error) {
	return Fetched{}, errSkeleton
}
func (l *Log) LogStartOffset() int64                        { return 0 }
func (l *Log) EndOffset() int64                             { return 0 }
func (l *Log) HighWatermark() int64                         { return 0 }
func (l *Log) LastStableOffset() int64                      { return 0 }
func (l *Log) SetHighWatermark(hw int64) int64              { return 0 }
func (l *Log) Size() int64                                  { return 0 }
func (l *Log) LatestEpoch() (int32, bool)                   { return NoEpoch, false }
func (l *Log) AssignEpochStart(e int32, offset int64) error { return errSkeleton }
func (l *Log) EndOffsetForEpoch(e int32) (epoch int32, endOffset int64, ok bool) {
	return NoEpoch, UnknownOffset, false
}
func (l *Log) EpochForOffset(offset int64) (int32, bool)           { return NoEpoch, false }
func (l *Log) IncrementLogStart(offset int64, reason string) error { return errSkeleton }
func (l *Log) DeleteOldSegments() (int, error)                     { return 0, errSkeleton }
func (l *Log) OffsetForTimestamp(ts int64) (TimestampOffset, bool, error) {
	return TimestampOffset{}, false, errSkeleton
}
func (l *Log) TruncateTo(offset int64) error    { return errSkeleton }
func (l *Log) TruncateFully(offset int64) error { return errSkeleton }
func (l *Log) Flush() error                     { return errSkeleton }
func (l *Log) Producers() []ProducerState       { return nil }
func (l *Log) Close() error                     { return errSkeleton }

// StartVerification begins the verification of a transactional append: nil when the transaction is already open here.
func (l *Log) StartVerification(producerID int64, baseSequence int32, producerEpoch int16, supportsEpochBump bool) (*VerificationGuard, error) {
	return nil, errSkeleton
}
