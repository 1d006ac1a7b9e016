package config

import (
	"strings"
	"time"
)

// Roles are what a process is in the cluster.
type Roles struct{ Broker, Controller bool }

// Combined says whether the process is both.
func (r Roles) Combined() bool { return r.Broker && r.Controller }

// String is the form of process.roles.
func (r Roles) String() string {
	var s []string
	if r.Broker {
		s = append(s, "broker")
	}
	if r.Controller {
		s = append(s, "controller")
	}
	return strings.Join(s, ",")
}

// Broker is one consistent set of the settings of a node: server.properties with the dynamic changes of the moment laid over
// it. It never changes; Live replaces it as a whole. Fields carry what the code uses, in the units of the code; Value and the
// getters reach every other key by its name.
type Broker struct {
	// Identity and quorum.
	NodeID                 int32
	Roles                  Roles
	Rack                   string // "" for none
	LogDirs                []string
	MetadataLogDir         string
	CordonedLogDirs        []string
	QuorumVoters           []QuorumVoter // static quorum (kraft.version 0); empty otherwise
	QuorumBootstrapServers []string
	QuorumAutoJoin         bool

	QuorumElectionTimeout       time.Duration
	QuorumElectionBackoffMax    time.Duration
	QuorumFetchTimeout          time.Duration
	QuorumRequestTimeout        time.Duration
	QuorumRetryBackoff          time.Duration
	QuorumAppendLinger          time.Duration
	QuorumFetchMaxBytes         int32
	QuorumFetchSnapshotMaxBytes int32

	MetadataSegmentBytes          int32
	MetadataSegmentAge            time.Duration
	MetadataRetentionBytes        int64
	MetadataRetention             time.Duration
	MetadataSnapshotBytes         int64         // a snapshot is made after this many bytes of records
	MetadataSnapshotInterval      time.Duration // and after this time; 0 for never
	MetadataMaxIdleInterval       time.Duration // between no-op records; 0 for none
	MetadataMaxBatchBytes         int32
	MetadataDeleteDelay           time.Duration
	BrokerHeartbeatInterval       time.Duration
	BrokerSessionTimeout          time.Duration
	InitialRegistrationTimeout    time.Duration
	ServerMaxStartupTime          time.Duration
	ControlledShutdown            bool
	UnstableAPIVersions           bool
	UnstableFeatureVersions       bool
	LeaderImbalanceCheckInterval  time.Duration
	AutoLeaderRebalance           bool
	UncleanLeaderElectionInterval time.Duration

	// Network. Listeners holds all of this node, controller listeners included.
	Listeners              []Listener
	AdvertisedListeners    []Listener // of the broker; what Metadata answers
	AdvertisedControllers  []Listener // of the controller; what controllers register
	ControllerListeners    []string   // names, upper case, most preferred first
	EarlyStartListeners    []string   // names
	InterBrokerListener    string
	InterBrokerProtocol    SecurityProtocol
	ListenerProtocols      map[string]SecurityProtocol
	SocketSendBuffer       int32 // -1 for the system's default
	SocketReceiveBuffer    int32
	SocketRequestMaxBytes  int32
	SocketListenBacklog    int32
	MaxConnections         int32
	MaxConnectionsPerIP    int32
	MaxConnectionsOverride map[string]int32 // per host or address
	MaxConnectionRate      int32
	ConnectionsMaxIdle     time.Duration // negative for never
	FailedAuthDelay        time.Duration
	QueuedMaxRequestBytes  int64
	RequestTimeout         time.Duration
	RequestMemoryBytes     int64 // gregor.request.memory.bytes
	FetchMaxBytes          int32
	FetchSessionSlots      int32
	MaxRequestPartitions   int32

	// Storage.
	Topic                        Topic // settings of a topic that has none of its own
	AutoCreateTopics             bool
	DeleteTopics                 bool
	NumPartitions                int32
	DefaultReplicationFactor     int16
	RecoveryThreadsPerDir        int32
	BackgroundThreads            int32
	FlushSchedulerInterval       time.Duration
	FlushOffsetCheckpoint        time.Duration
	FlushStartOffsetCheckpoint   time.Duration
	HighWatermarkCheckpoint      time.Duration
	RetentionCheckInterval       time.Duration
	InitialTaskDelay             time.Duration
	LogDirFailureTimeout         time.Duration
	CleanerEnable                bool
	CleanerThreads               int32
	CleanerDedupeBufferBytes     int64
	CleanerDedupeLoadFactor      float64
	CleanerIOBufferBytes         int32
	CleanerIOBytesPerSecond      float64
	CleanerBackoff               time.Duration
	ProducerIDExpiration         time.Duration
	ProducerIDExpirationInterval time.Duration
	AcksFlush                    bool // gregor.acks.flush
	ValidateHeaderOnly           bool // gregor.produce.validation=header

	// Replication.
	ReplicaLagTimeMax          time.Duration
	ReplicaFetchMaxBytes       int32
	ReplicaFetchMinBytes       int32
	ReplicaFetchWaitMax        time.Duration
	ReplicaFetchResponseMax    int32
	ReplicaFetchBackoff        time.Duration
	ReplicaSocketTimeout       time.Duration
	ReplicaSocketReceiveBuffer int32
	ReplicaFetchers            int32
	LeaderThrottledRate        int64
	FollowerThrottledRate      int64
	LogDirsThrottledRate       int64
	ReplicationQuotaSamples    int32
	ReplicationQuotaSample     time.Duration
	LogDirsQuotaSamples        int32
	LogDirsQuotaSample         time.Duration
	LogDirMovers               int32 // num.replica.alter.log.dirs.threads

	// Coordinators.
	GroupCoordinator GroupCoordinator
	Group            Group // settings of a group that has none of its own
	Transaction      Transaction

	// Telemetry.
	MetricsAddress string
	Pprof          bool
	LogFormat      string // "text" or "json"
	LogLevel       string // lower case

	layers *layers
}

// GroupCoordinator are the settings of the group coordinator that are not those of a single group.
type GroupCoordinator struct {
	Threads                int32
	AppendLinger           time.Duration // negative for adaptive
	OffsetsPartitions      int32
	OffsetsReplication     int16
	OffsetsSegmentBytes    int32
	OffsetsCompression     int32 // codec number
	OffsetsLoadBuffer      int32
	OffsetsRetention       time.Duration
	OffsetsRetentionCheck  time.Duration
	OffsetMetadataMaxBytes int32
	OffsetsCommitTimeout   time.Duration
	CachedBufferMaxBytes   int32
	RebalanceProtocols     []string // lower case

	// Classic groups.
	MinSessionTimeout     time.Duration
	MaxSessionTimeout     time.Duration
	InitialRebalanceDelay time.Duration
	MaxSize               int32

	// Consumer groups (KIP-848).
	ConsumerMaxSize              int32
	ConsumerAssignors            []string
	ConsumerMigrationPolicy      string // upper case
	ConsumerMinSessionTimeout    time.Duration
	ConsumerMaxSessionTimeout    time.Duration
	ConsumerMinHeartbeatInterval time.Duration
	ConsumerMaxHeartbeatInterval time.Duration
	ConsumerRegexRefresh         time.Duration

	// Streams groups (KIP-1071).
	StreamsMaxSize   int32
	StreamsAssignors []string
}

// Transaction are the settings of the transaction coordinator.
type Transaction struct {
	MaxTimeout            time.Duration
	IDExpiration          time.Duration
	AbortTimedOutInterval time.Duration
	RemoveExpiredInterval time.Duration
	LogPartitions         int32
	LogReplication        int16
	LogMinISR             int32
	LogSegmentBytes       int32
	LogLoadBuffer         int32
	PartitionVerification bool
	TwoPhaseCommit        bool
}

// layers are the four places where a broker's setting can stand. They are not changed once they are part of a Broker.
type layers struct {
	dynamic        map[string]string // for this broker
	dynamicDefault map[string]string // for all brokers
	static         map[string]string // server.properties
	props          *Properties       // where static came from
	merged         map[string]string // what counts of all of them, synonyms resolved
}

// Value is the effective value of a broker key, parsed; null when it has none or the key is unknown.
func (b *Broker) Value(key string) Value {
	k := lookupBroker(key)
	if k == nil {
		return Value{}
	}
	text, ok := b.layers.get(key)
	if !ok {
		return k.DefaultValue()
	}
	v, err := k.Parse(text)
	if err != nil {
		return k.DefaultValue() // unreachable: what is in the layers was checked when it got there
	}
	return v
}

// ListenerValue is the value of a key for one listener: listener.name.<listener>.<key> when it is set, else the key's own.
func (b *Broker) ListenerValue(listener, key string) Value {
	prefixed := "listener.name." + strings.ToLower(listener) + "." + key
	if _, ok := b.layers.get(prefixed); ok {
		return b.Value(prefixed)
	}
	return b.Value(key)
}

// Raw is the effective text of any key, also one that nobody knows (settings of plugins), as it was given.
func (b *Broker) Raw(key string) (string, bool) { return b.layers.get(key) }

// IsController says whether the name is that of a controller listener.
func (b *Broker) IsController(listener string) bool {
	for _, c := range b.ControllerListeners {
		if c == listener {
			return true
		}
	}
	return false
}

func (l *layers) get(key string) (string, bool) {
	v, ok := l.merged[key]
	return v, ok
}

// effective lays the layers over each other as Kafka does: setting one of several synonyms in a higher layer removes the
// others of lower layers, so that a dynamic log.retention.hours is not hidden by a static log.retention.ms.
func (l *layers) effective() map[string]string {
	out := make(map[string]string, len(l.static)+len(l.dynamicDefault)+len(l.dynamic))
	for k, v := range l.static {
		out[k] = v
	}
	for _, m := range []map[string]string{l.dynamicDefault, l.dynamic} {
		for k := range m {
			if k == "log.flush.interval.ms" {
				continue // the scheduler's interval is a setting of its own besides being this one's default
			}
			for _, s := range brokerSynonyms(k) {
				delete(out, s)
			}
		}
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// synonymGroups are the broker keys that set the same thing in other units; the first that is set wins.
var synonymGroups = [][]string{
	{"log.roll.ms", "log.roll.hours"},
	{"log.roll.jitter.ms", "log.roll.jitter.hours"},
	{"log.retention.ms", "log.retention.minutes", "log.retention.hours"},
}

// brokerSynonyms lists the keys that set the same thing as name, most preferred first, name included.
func brokerSynonyms(name string) []string {
	if name == "log.flush.interval.ms" { // one way only: the scheduler's interval is its default
		return []string{"log.flush.interval.ms", "log.flush.scheduler.interval.ms"}
	}
	for _, g := range synonymGroups {
		for _, n := range g {
			if n == name {
				return g
			}
		}
	}
	return []string{name}
}
