package group

import "time"

// Config is what the broker's configuration says about groups. The zero value is not usable; start from DefaultConfig.
type Config struct {
	// MinSessionTimeout and MaxSessionTimeout bound what a classic member may ask for: "group.min.session.timeout.ms",
	// "group.max.session.timeout.ms".
	MinSessionTimeout, MaxSessionTimeout time.Duration
	// InitialRebalanceDelay is how long an empty group waits for more members before its first generation:
	// "group.initial.rebalance.delay.ms".
	InitialRebalanceDelay time.Duration
	// MaxSize is how many members a classic group may have: "group.max.size".
	MaxSize int
	// NewMemberJoinTimeout is how long a member may be parked in its first JoinGroup, when it has no session yet. Not
	// configurable in Kafka.
	NewMemberJoinTimeout time.Duration
	// OffsetsRetention is how long the offsets of a group live that is not in use: "offsets.retention.minutes".
	OffsetsRetention time.Duration
	// OffsetsRetentionCheckInterval is how often that is looked at: "offsets.retention.check.interval.ms".
	OffsetsRetentionCheckInterval time.Duration
	// OffsetMetadataMaxSize is the longest metadata of a commit, in UTF-16 units as Java counts:
	// "offset.metadata.max.bytes".
	OffsetMetadataMaxSize int
	// CommitTimeout is how long a write may take to be replicated: "offsets.commit.timeout.ms".
	CommitTimeout time.Duration
}

// DefaultConfig is Kafka's.
func DefaultConfig() Config {
	return Config{
		MinSessionTimeout:             6 * time.Second,
		MaxSessionTimeout:             30 * time.Minute,
		InitialRebalanceDelay:         3 * time.Second,
		MaxSize:                       1<<31 - 1,
		NewMemberJoinTimeout:          5 * time.Minute,
		OffsetsRetention:              7 * 24 * time.Hour,
		OffsetsRetentionCheckInterval: 10 * time.Minute,
		OffsetMetadataMaxSize:         4096,
		CommitTimeout:                 5 * time.Second,
	}
}

// Context is what the coordinator needs to know of a request besides its body.
type Context struct {
	// ClientID is the request header's, empty if that is null.
	ClientID string
	// ClientHost is the peer's address as Java prints it: "/127.0.0.1".
	ClientHost string
	// Version is the API version.
	Version int16
}
