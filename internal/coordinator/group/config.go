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
	// Assignors are the names of those that consumer groups may choose from, the default first: "group.consumer.assignors".
	// See ParseAssignors.
	Assignors []string
	// ConsumerMaxSize is how many members a consumer group may have: "group.consumer.max.size".
	ConsumerMaxSize int
	// Migration is "group.consumer.migration.policy". See ParseMigrationPolicy.
	Migration MigrationPolicy
	// RegexRefreshInterval is after which time it is looked up again what a group's regular expressions match, even if there
	// are no new topics: "group.consumer.regex.refresh.interval.ms".
	RegexRefreshInterval time.Duration
	// Consumer are the settings of a consumer group that has none of its own.
	Consumer Settings
	// Group gives the settings of a group that has these of its own, nil for none. Nil means that all have those of Consumer.
	Group func(own map[string]string) Settings
	// StreamsMaxSize is how many members a streams group may have: "group.streams.max.size".
	StreamsMaxSize int
	// TaskAssignors are the names of those that streams groups may have, the default first: "group.streams.assignors". See
	// ParseTaskAssignors.
	TaskAssignors []string
	// Streams are the settings of a streams group that has none of its own.
	Streams StreamsSettings
	// StreamsGroup gives the settings of a streams group that has these of its own, nil for none. Nil means that all have those
	// of Streams.
	StreamsGroup func(own map[string]string) StreamsSettings
	// CommitTimeout is how long a write may take to be replicated: "offsets.commit.timeout.ms".
	CommitTimeout time.Duration
}

// Settings are what can be set for each consumer group.
type Settings struct {
	// SessionTimeout is how long a member may be silent: "consumer.session.timeout.ms".
	SessionTimeout time.Duration
	// HeartbeatInterval is how often members are told to be heard of: "consumer.heartbeat.interval.ms".
	HeartbeatInterval time.Duration
	// AssignmentInterval is the shortest time between two targets, so that members who come together get theirs together:
	// "consumer.assignment.interval.ms".
	AssignmentInterval time.Duration
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
		Assignors:                     []string{"uniform", "range"},
		ConsumerMaxSize:               1<<31 - 1,
		Migration:                     MigrationPolicy{Upgrade: true, Downgrade: true},
		RegexRefreshInterval:          10 * time.Minute,
		StreamsMaxSize:                1<<31 - 1,
		TaskAssignors:                 []string{"sticky"},
		Streams:                       DefaultStreamsSettings(),
		Consumer: Settings{
			SessionTimeout:     45 * time.Second,
			HeartbeatInterval:  5 * time.Second,
			AssignmentInterval: time.Second,
		},
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
	// Describes says whether the client may know of a topic; nil: of all. It may be called later, from another goroutine.
	Describes func(topic string) bool
}
