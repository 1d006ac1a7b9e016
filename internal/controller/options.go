package controller

import (
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
	"gregor/internal/security"
	"gregor/internal/uuid"
)

// Options is what a controller is made of. Zero durations and numbers mean Kafka's defaults unless it says otherwise.
type Options struct {
	NodeID    int32
	ClusterID string
	Logger    *slog.Logger
	// Rand chooses replicas; IDs is read for the ids of topics, ACLs and tokens. Both belong to the controller from then on.
	Rand *rand.Rand
	IDs  io.Reader
	// Configs knows the configuration keys.
	Configs ConfigSchema
	// Features is what this node supports; nil means all that the software does.
	Features []Feature
	// Bootstrap is what formatting left to be written into a new log: feature levels, SCRAM credentials.
	Bootstrap []message.Versioned
	// StaticVoters are the nodes of "controller.quorum.voters": all of them must have registered before a feature is raised.
	StaticVoters []int32
	// Registration is what this node registers as a controller. The zero value: it doesn't by itself.
	Registration Registration

	DefaultPartitions        int32 // "num.partitions", 1
	DefaultReplicationFactor int16 // "default.replication.factor", 1
	// Authorizer says that "authorizer.class.name" is set. Without one, ACLs are replayed and kept but can't be changed.
	Authorizer bool
	// NoTopicDeletion is the opposite of "delete.topic.enable".
	NoTopicDeletion bool

	SessionTimeout time.Duration // "broker.session.timeout.ms", 9 s
	// IdleInterval is after how long without records a no-op record is written, so that brokers can prove to keep up.
	// "metadata.max.idle.interval.ms", 500 ms; negative: never.
	IdleInterval time.Duration
	// BalanceInterval is how often leadership goes back to preferred replicas. "leader.imbalance.check.interval.seconds",
	// 300 s; negative ("auto.leader.rebalance.enable=false"): never.
	BalanceInterval time.Duration
	// UncleanInterval is how often partitions without leader get one uncleanly where that is allowed.
	// "unclean.leader.election.interval.ms", 5 min.
	UncleanInterval time.Duration
	// MaxRecordsPerBatch bounds an atomic batch; other results are cut into batches of it. 10,000.
	MaxRecordsPerBatch int
	// MaxBatchBytes bounds a batch's size in the same ways: what the quorum takes, less room for the batch's header. 8 MiB.
	MaxBatchBytes int

	// TokenSecret is "delegation.token.secret.key"; empty turns delegation tokens off.
	TokenSecret        string
	TokenMaxLifetime   time.Duration // "delegation.token.max.lifetime.ms", 7 days
	TokenExpiry        time.Duration // "delegation.token.expiry.time.ms", 24 h
	TokenSweepInterval time.Duration // "delegation.token.expiry.check.interval.ms", 1 h

	// Probe finds out whether anybody listens at a broker's addresses, and calls done once. Nil: nobody can tell, and only
	// silence ends a session.
	Probe func(s Suspect, done func(Verdict))

	// Fatal is called when memory and log have parted and the process must stop. Nil panics.
	Fatal func(error)
}

// Registration is how a controller makes itself known (KIP-919).
type Registration struct {
	Incarnation uuid.UUID
	Listeners   []kmsg.ControllerRegistrationRequestListener
}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.SessionTimeout, 9*time.Second)
	def(&o.IdleInterval, 500*time.Millisecond)
	def(&o.BalanceInterval, 300*time.Second)
	def(&o.UncleanInterval, 5*time.Minute)
	def(&o.TokenMaxLifetime, 7*24*time.Hour)
	def(&o.TokenExpiry, 24*time.Hour)
	def(&o.TokenSweepInterval, time.Hour)
	if o.Features == nil {
		o.Features = SupportedFeatures()
	}
	if o.DefaultPartitions == 0 {
		o.DefaultPartitions = 1
	}
	if o.DefaultReplicationFactor == 0 {
		o.DefaultReplicationFactor = 1
	}
	if o.MaxRecordsPerBatch == 0 {
		o.MaxRecordsPerBatch = 10_000
	}
	if o.MaxBatchBytes == 0 {
		o.MaxBatchBytes = 8<<20 - 1024
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// RequestContext says on whose behalf a request comes.
type RequestContext struct {
	// Principal is "User:name" of who sent the request, that of the forwarding broker's client if it was forwarded.
	Principal  string
	ClientAddr string
	// Forwarded says that a broker sent the request on, and checked what only it can.
	Forwarded bool
	// Received is when the request arrived, and Link the connection that it came on; they count for heartbeats. A zero Received
	// is the time of Submit.
	Received time.Time
	Link     Link
	// Deadline is until when the request may wait for its turn; zero for ever.
	Deadline time.Time
	// Allowed says whether the principal may do an operation on a resource. Nil allows everything.
	Allowed func(operation security.Operation, t security.ResourceType, name string) bool
	// ChargePartitions charges a number of created or deleted partitions to the principal's quota; nil doesn't.
	ChargePartitions func(n int) error
}

func (rc *RequestContext) allowed(operation security.Operation, t security.ResourceType, name string) bool {
	return rc.Allowed == nil || rc.Allowed(operation, t, name)
}

func (rc *RequestContext) chargePartitions(n int) error {
	if rc.ChargePartitions == nil {
		return nil
	}
	return rc.ChargePartitions(n)
}
