package raft

import (
	"log/slog"
	"math/rand/v2"
	"time"

	"gregor/internal/clock"
	"gregor/internal/message"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// Options is what a Node is made of. Durations and sizes of zero mean Kafka's defaults.
type Options struct {
	FS     vfs.FS
	Clock  clock.Clock
	Logger *slog.Logger
	Rand   *rand.Rand // jitter of elections; owned by the Node from then on

	// Dir is the metadata log dir ("metadata.log.dir", or the first of "log.dirs"); the log is in Dir/__cluster_metadata-0.
	Dir         string
	ClusterID   string
	NodeID      int32
	DirectoryID uuid.UUID // directory.id of Dir
	// Controller says that the node has the controller role and so may vote and lead when the voters include it. Others
	// observe.
	Controller bool
	// StaticVoters is "controller.quorum.voters"; it counts while kraft.version is 0.
	StaticVoters []Voter
	// BootstrapServers is "controller.quorum.bootstrap.servers", host:port: whom to ask when no leader is known.
	BootstrapServers []string
	// Listener is the name of the listener by which the nodes of the quorum talk to each other: the first of
	// "controller.listener.names".
	Listener string
	// Endpoints are the controller listeners that this node advertises; none without the controller role.
	Endpoints []Endpoint

	ElectionTimeout    time.Duration // "controller.quorum.election.timeout.ms", 1 s
	ElectionBackoffMax time.Duration // "controller.quorum.election.backoff.max.ms", 1 s
	FetchTimeout       time.Duration // "controller.quorum.fetch.timeout.ms", 2 s
	RequestTimeout     time.Duration // "controller.quorum.request.timeout.ms", 2 s
	RetryBackoff       time.Duration // "controller.quorum.retry.backoff.ms", 20 ms
	// AppendLinger bounds how long records wait to share a write while an earlier sync is under way; on an idle log
	// nothing waits. "controller.quorum.append.linger.ms", 25 ms.
	AppendLinger time.Duration

	FetchMaxWait          time.Duration // how long a leader holds a fetch that finds nothing new, 500 ms
	FetchMaxBytes         int32         // what a follower asks for in one fetch, MaxBatchBytes
	FetchSnapshotMaxBytes int32         // and of a snapshot, 1 MiB

	SegmentBytes   int32         // "metadata.log.segment.bytes", 1 GiB
	SegmentAge     time.Duration // "metadata.log.segment.ms", 7 days
	RetentionBytes int64         // "metadata.max.retention.bytes", 100 MiB; negative means no bound
	RetentionAge   time.Duration // "metadata.max.retention.ms", 7 days; negative means no bound

	AutoJoin  bool        // "controller.quorum.auto.join.enable"
	Transport Transport   // nil: this node talks to nobody
	OnFatal   func(error) // called once, from any goroutine, when the node cannot go on (disk, broken invariant)
}

// RequestContext says where a request came from.
type RequestContext struct {
	// Listener is the name of the listener that the request arrived on; answers name the leader's endpoint for it.
	Listener string
	ClientID string
}

// BootstrapOptions say where and what the bootstrap snapshot is. KRaftVersion, Voters, Records and Now matter to writing only.
type BootstrapOptions struct {
	FS           vfs.FS
	Dir          string // metadata log dir
	KRaftVersion int16
	Voters       []Voter
	Records      []message.Versioned
	Now          time.Time
}
