package group

import (
	"strconv"
	"strings"
	"time"
)

// StreamsSettings are what can be set for each streams group.
type StreamsSettings struct {
	// SessionTimeout is how long a member may be silent: "streams.session.timeout.ms".
	SessionTimeout time.Duration
	// HeartbeatInterval is how often members are told to be heard of: "streams.heartbeat.interval.ms".
	HeartbeatInterval time.Duration
	// AssignmentInterval is the shortest time between two targets: "streams.assignment.interval.ms".
	AssignmentInterval time.Duration
	// InitialDelay is how long an empty group waits for more members before its first target:
	// "streams.initial.rebalance.delay.ms".
	InitialDelay time.Duration
	// TaskOffsetInterval is how often members are told to say how far the state of their tasks is:
	// "streams.task.offset.interval.ms".
	TaskOffsetInterval time.Duration
	// StandbyReplicas is how many copies of the state of each task there are: "streams.num.standby.replicas".
	StandbyReplicas int
	// AcceptableRecoveryLag is how far behind state may be to count as up to date: "streams.acceptable.recovery.lag". Members are
	// told; as in Kafka 4.4, no assignment looks at it.
	AcceptableRecoveryLag int64
	// RackAwareTags are the client tags that members should have: "streams.rack.aware.assignment.tags". Who lacks one is told; as
	// in Kafka 4.4, no assignment looks at them.
	RackAwareTags []string
	// Assignor is the name of the group's assignor: "streams.assignor.name".
	Assignor string
}

// assignmentConfigs are the settings that an assignment depends on, by their names in group records.
func (s *StreamsSettings) assignmentConfigs() map[string]string {
	configs := map[string]string{"num.standby.replicas": strconv.Itoa(s.StandbyReplicas)}
	if len(s.RackAwareTags) > 0 {
		configs["rack.aware.assignment.tags"] = strings.Join(s.RackAwareTags, ",")
	}
	return configs
}

// DefaultStreamsSettings are Kafka's.
func DefaultStreamsSettings() StreamsSettings {
	return StreamsSettings{
		SessionTimeout: 45 * time.Second, HeartbeatInterval: 5 * time.Second, AssignmentInterval: time.Second,
		InitialDelay: 3 * time.Second, TaskOffsetInterval: time.Minute, AcceptableRecoveryLag: 10_000, Assignor: "sticky",
	}
}
