package config

// groupResourceKeys are the settings of one group; each may be changed at any time.
var groupResourceKeys = []Key{
	{"consumer.assignment.interval.ms", Int, "1000", atLeast(0), Medium, ClusterWide | Honoured,
		"Shortest time in milliseconds between two assignments of this consumer group."},
	{"consumer.assignor.offload.enable", Boolean, "true", nil, Medium, ClusterWide | Internal,
		"Whether the assignments of this consumer group are computed off the coordinator's thread."},
	{"consumer.heartbeat.interval.ms", Int, "5000", atLeast(1), Medium, ClusterWide | Honoured,
		"Milliseconds between heartbeats that members of this consumer group are told to keep."},
	{"consumer.session.timeout.ms", Int, "45000", atLeast(1), Medium, ClusterWide | Honoured,
		"Milliseconds without a heartbeat after which a member of this consumer group is removed."},
	{"errors.deadletterqueue.copy.record.enable", Boolean, "false", nil, Medium, ClusterWide,
		"Whether a failed record is copied to the dead letter queue whole, or only described there."},
	{"errors.deadletterqueue.topic.name", String, "", nil, Medium, ClusterWide,
		"Dead letter topic of this share group; empty for none."},
	{"share.assignment.interval.ms", Int, "1000", atLeast(0), Medium, ClusterWide,
		"Shortest time in milliseconds between two assignments of this share group."},
	{"share.assignor.offload.enable", Boolean, "true", nil, Medium, ClusterWide | Internal,
		"Whether the assignments of this share group are computed off the coordinator's thread."},
	{"share.auto.offset.reset", String, "latest", offsetReset{}, Medium, ClusterWide,
		"Where this share group begins in a partition it hasn't read: latest, earliest, or a duration back from now."},
	{"share.delivery.count.limit", Int, "5", atLeast(2), Medium, ClusterWide,
		"How often a record is delivered to this share group before it counts as failed."},
	{"share.heartbeat.interval.ms", Int, "5000", atLeast(1), Medium, ClusterWide,
		"Milliseconds between heartbeats that members of this share group are told to keep."},
	{"share.isolation.level", String, "read_uncommitted", in("read_committed", "read_uncommitted"), Medium, ClusterWide,
		"Whether this share group sees records of open and aborted transactions."},
	{"share.partition.max.record.locks", Int, "2000", atLeast(100), Medium, ClusterWide,
		"Most records of one partition that this share group may hold at once."},
	{"share.record.lock.duration.ms", Int, "30000", atLeast(1000), Medium, ClusterWide,
		"Milliseconds for which a record belongs to the member of this share group that fetched it."},
	{"share.renew.acknowledge.enable", Boolean, "true", nil, Medium, ClusterWide,
		"Whether members of this share group may extend their hold of a record."},
	{"share.session.timeout.ms", Int, "45000", atLeast(1), Medium, ClusterWide,
		"Milliseconds without a heartbeat after which a member of this share group is removed."},
	{"streams.acceptable.recovery.lag", Long, "10000", atLeast(0), Medium, ClusterWide | Internal | Honoured,
		"Most records that a copy of a task's state may be behind and still count as ready in this group."},
	{"streams.assignment.interval.ms", Int, "1000", atLeast(0), Medium, ClusterWide | Honoured,
		"Shortest time in milliseconds between two assignments of this streams group."},
	{"streams.assignor.name", String, null, nil, Medium, ClusterWide | Honoured,
		"Assignor of this streams group; by default the first that the broker offers."},
	{"streams.assignor.offload.enable", Boolean, "true", nil, Medium, ClusterWide | Internal,
		"Whether the assignments of this streams group are computed off the coordinator's thread."},
	{"streams.heartbeat.interval.ms", Int, "5000", atLeast(1), Medium, ClusterWide | Honoured,
		"Milliseconds between heartbeats that members of this streams group are told to keep."},
	{"streams.initial.rebalance.delay.ms", Int, "3000", atLeast(0), Medium, ClusterWide | Honoured,
		"Milliseconds that this streams group waits for more members before its first assignment."},
	{"streams.num.standby.replicas", Int, "0", atLeast(0), Medium, ClusterWide | Honoured,
		"How many standby copies of a task's state this streams group keeps."},
	{"streams.num.warmup.replicas", Int, "2", atLeast(0), Medium, ClusterWide | Internal,
		"How many copies of task state this streams group may warm up at once."},
	{"streams.rack.aware.assignment.tags", List, "", listOf{emptyOK: true}, Low, ClusterWide | Honoured,
		"Client tags by which the standby copies of this streams group are spread."},
	{"streams.session.timeout.ms", Int, "45000", atLeast(1), Medium, ClusterWide | Honoured,
		"Milliseconds without a heartbeat after which a member of this streams group is removed."},
	{"streams.task.offset.interval.ms", Int, "60000", atLeast(1), Medium, ClusterWide | Internal | Honoured,
		"Milliseconds between reports of task offsets by members of this streams group."},
}

// groupSynonyms name the broker key that gives the default of a group key.
var groupSynonyms = map[string]string{
	"consumer.assignment.interval.ms":    "group.consumer.assignment.interval.ms",
	"consumer.assignor.offload.enable":   "group.consumer.assignor.offload.enable",
	"consumer.heartbeat.interval.ms":     "group.consumer.heartbeat.interval.ms",
	"consumer.session.timeout.ms":        "group.consumer.session.timeout.ms",
	"share.assignment.interval.ms":       "group.share.assignment.interval.ms",
	"share.assignor.offload.enable":      "group.share.assignor.offload.enable",
	"share.delivery.count.limit":         "group.share.delivery.count.limit",
	"share.heartbeat.interval.ms":        "group.share.heartbeat.interval.ms",
	"share.partition.max.record.locks":   "group.share.partition.max.record.locks",
	"share.record.lock.duration.ms":      "group.share.record.lock.duration.ms",
	"share.session.timeout.ms":           "group.share.session.timeout.ms",
	"streams.acceptable.recovery.lag":    "group.streams.acceptable.recovery.lag",
	"streams.assignment.interval.ms":     "group.streams.assignment.interval.ms",
	"streams.assignor.name":              "group.streams.assignors",
	"streams.assignor.offload.enable":    "group.streams.assignor.offload.enable",
	"streams.heartbeat.interval.ms":      "group.streams.heartbeat.interval.ms",
	"streams.initial.rebalance.delay.ms": "group.streams.initial.rebalance.delay.ms",
	"streams.num.standby.replicas":       "group.streams.num.standby.replicas",
	"streams.num.warmup.replicas":        "group.streams.num.warmup.replicas",
	"streams.rack.aware.assignment.tags": "group.streams.rack.aware.assignment.tags",
	"streams.session.timeout.ms":         "group.streams.session.timeout.ms",
	"streams.task.offset.interval.ms":    "group.streams.task.offset.interval.ms",
}

// clientMetricsKeys are the settings of one subscription to client metrics (KIP-714).
var clientMetricsKeys = []Key{
	{"interval.ms", Int, "300000", nil, Medium, ClusterWide,
		"Milliseconds between two pushes of metrics by a client."},
	{"match", List, "", listOf{emptyOK: true}, Medium, ClusterWide,
		"Patterns that select the clients of the subscription, as key=regular expression."},
	{"metrics", List, "", listOf{emptyOK: true}, Medium, ClusterWide,
		"Prefixes of the names of the metrics that clients push; * for all."},
}

// brokerQuotaKeys throttle the replication of a broker. They exist at run time only.
var brokerQuotaKeys = []Key{
	{"follower.replication.throttled.rate", Long, "9223372036854775807", atLeast(0), Medium, ClusterWide | Honoured,
		"Most bytes a second that this broker fetches for throttled replicas."},
	{"leader.replication.throttled.rate", Long, "9223372036854775807", atLeast(0), Medium, ClusterWide | Honoured,
		"Most bytes a second that this broker serves for throttled replicas."},
	{"replica.alter.log.dirs.io.max.bytes.per.second", Long, "9223372036854775807", atLeast(0), Medium, ClusterWide | Honoured,
		"Most bytes a second that this broker moves between its log directories."},
}

// clientQuotaKeys limit users and client ids. The SCRAM names are set through an API of their own.
var clientQuotaKeys = []Key{
	{"SCRAM-SHA-256", String, null, nil, Medium, ClusterWide,
		"Credential of the user for SCRAM-SHA-256, kept apart from the quotas."},
	{"SCRAM-SHA-512", String, null, nil, Medium, ClusterWide,
		"Credential of the user for SCRAM-SHA-512, kept apart from the quotas."},
	{"consumer_byte_rate", Long, "9223372036854775807", nil, Medium, ClusterWide,
		"Most bytes a second that the entity may fetch from a broker."},
	{"controller_mutation_rate", Double, "2.147483647E9", nil, Medium, ClusterWide,
		"Most partition creations and deletions a second by the entity."},
	{"producer_byte_rate", Long, "9223372036854775807", nil, Medium, ClusterWide,
		"Most bytes a second that the entity may produce to a broker."},
	{"request_percentage", Double, "2.147483647E9", nil, Medium, ClusterWide,
		"Most percent of one thread's time that requests of the entity may take on a broker."},
}

// ipQuotaKeys limit ip addresses.
var ipQuotaKeys = []Key{
	{"connection_creation_rate", Int, "2147483647", atLeast(0), Medium, ClusterWide,
		"Most new connections a second from the address."},
}

// remoteMetadataKeys configure the keeper of remote segment metadata.
var remoteMetadataKeys = []Key{
	{"remote.log.metadata.consume.wait.ms", Long, "120000", atLeast(0), Low, ReadOnly,
		"Milliseconds to wait until a written metadata record has been read back."},
	{"remote.log.metadata.initialization.retry.interval.ms", Long, "100", atLeast(0), Low, ReadOnly,
		"Pause in milliseconds between attempts to set up the metadata topic."},
	{"remote.log.metadata.initialization.retry.max.timeout.ms", Long, "120000", atLeast(0), Low, ReadOnly,
		"Milliseconds after which setting up the metadata topic is given up."},
	{"remote.log.metadata.topic.min.isr", Short, "2", atLeast(1), Low, ReadOnly,
		"Replicas of the metadata topic that must be in sync for writes."},
	{"remote.log.metadata.topic.num.partitions", Int, "50", atLeast(1), Low, ReadOnly,
		"Partitions of the metadata topic when it is created."},
	{"remote.log.metadata.topic.replication.factor", Short, "3", atLeast(1), Low, ReadOnly,
		"Replication factor of the metadata topic when it is created."},
	{"remote.log.metadata.topic.retention.ms", Long, "-1", nil, Low, ReadOnly,
		"Milliseconds that the metadata topic keeps its records; -1 for ever."},
}
