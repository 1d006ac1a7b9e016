package config

// groupResourceKeys are the settings of one group; each may be changed at any time.
var groupResourceKeys = []Key{
	{"consumer.assignment.interval.ms", Int, "1000", atLeast(0), Medium, ClusterWide,
		""},
	{"consumer.assignor.offload.enable", Boolean, "true", nil, Medium, ClusterWide | Internal,
		""},
	{"consumer.heartbeat.interval.ms", Int, "5000", atLeast(1), Medium, ClusterWide,
		""},
	{"consumer.session.timeout.ms", Int, "45000", atLeast(1), Medium, ClusterWide,
		""},
	{"errors.deadletterqueue.copy.record.enable", Boolean, "false", nil, Medium, ClusterWide,
		""},
	{"errors.deadletterqueue.topic.name", String, "", nil, Medium, ClusterWide,
		""},
	{"share.assignment.interval.ms", Int, "1000", atLeast(0), Medium, ClusterWide,
		""},
	{"share.assignor.offload.enable", Boolean, "true", nil, Medium, ClusterWide | Internal,
		""},
	{"share.auto.offset.reset", String, "latest", offsetReset{}, Medium, ClusterWide,
		""},
	{"share.delivery.count.limit", Int, "5", atLeast(2), Medium, ClusterWide,
		""},
	{"share.heartbeat.interval.ms", Int, "5000", atLeast(1), Medium, ClusterWide,
		""},
	{"share.isolation.level", String, "read_uncommitted", in("read_committed", "read_uncommitted"), Medium, ClusterWide,
		""},
	{"share.partition.max.record.locks", Int, "2000", atLeast(100), Medium, ClusterWide,
		""},
	{"share.record.lock.duration.ms", Int, "30000", atLeast(1000), Medium, ClusterWide,
		""},
	{"share.renew.acknowledge.enable", Boolean, "true", nil, Medium, ClusterWide,
		""},
	{"share.session.timeout.ms", Int, "45000", atLeast(1), Medium, ClusterWide,
		""},
	{"streams.acceptable.recovery.lag", Long, "10000", atLeast(0), Medium, ClusterWide | Internal,
		""},
	{"streams.assignment.interval.ms", Int, "1000", atLeast(0), Medium, ClusterWide,
		""},
	{"streams.assignor.name", String, null, nil, Medium, ClusterWide,
		""},
	{"streams.assignor.offload.enable", Boolean, "true", nil, Medium, ClusterWide | Internal,
		""},
	{"streams.heartbeat.interval.ms", Int, "5000", atLeast(1), Medium, ClusterWide,
		""},
	{"streams.initial.rebalance.delay.ms", Int, "3000", atLeast(0), Medium, ClusterWide,
		""},
	{"streams.num.standby.replicas", Int, "0", atLeast(0), Medium, ClusterWide,
		""},
	{"streams.num.warmup.replicas", Int, "2", atLeast(0), Medium, ClusterWide | Internal,
		""},
	{"streams.rack.aware.assignment.tags", List, "", listOf{emptyOK: true}, Low, ClusterWide,
		""},
	{"streams.session.timeout.ms", Int, "45000", atLeast(1), Medium, ClusterWide,
		""},
	{"streams.task.offset.interval.ms", Int, "60000", atLeast(1), Medium, ClusterWide | Internal,
		""},
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
		""},
	{"match", List, "", listOf{emptyOK: true}, Medium, ClusterWide,
		""},
	{"metrics", List, "", listOf{emptyOK: true}, Medium, ClusterWide,
		""},
}

// brokerQuotaKeys throttle the replication of a broker. They exist at run time only.
var brokerQuotaKeys = []Key{
	{"follower.replication.throttled.rate", Long, "9223372036854775807", atLeast(0), Medium, ClusterWide,
		""},
	{"leader.replication.throttled.rate", Long, "9223372036854775807", atLeast(0), Medium, ClusterWide,
		""},
	{"replica.alter.log.dirs.io.max.bytes.per.second", Long, "9223372036854775807", atLeast(0), Medium, ClusterWide,
		""},
}

// clientQuotaKeys limit users and client ids. The SCRAM names are set through an API of their own.
var clientQuotaKeys = []Key{
	{"SCRAM-SHA-256", String, null, nil, Medium, ClusterWide,
		""},
	{"SCRAM-SHA-512", String, null, nil, Medium, ClusterWide,
		""},
	{"consumer_byte_rate", Long, "9223372036854775807", nil, Medium, ClusterWide,
		""},
	{"controller_mutation_rate", Double, "2.147483647E9", nil, Medium, ClusterWide,
		""},
	{"producer_byte_rate", Long, "9223372036854775807", nil, Medium, ClusterWide,
		""},
	{"request_percentage", Double, "2.147483647E9", nil, Medium, ClusterWide,
		""},
}

// ipQuotaKeys limit ip addresses.
var ipQuotaKeys = []Key{
	{"connection_creation_rate", Int, "2147483647", atLeast(0), Medium, ClusterWide,
		""},
}

// remoteMetadataKeys configure the keeper of remote segment metadata.
var remoteMetadataKeys = []Key{
	{"remote.log.metadata.consume.wait.ms", Long, "120000", atLeast(0), Low, ReadOnly,
		""},
	{"remote.log.metadata.initialization.retry.interval.ms", Long, "100", atLeast(0), Low, ReadOnly,
		""},
	{"remote.log.metadata.initialization.retry.max.timeout.ms", Long, "120000", atLeast(0), Low, ReadOnly,
		""},
	{"remote.log.metadata.topic.min.isr", Short, "2", atLeast(1), Low, ReadOnly,
		""},
	{"remote.log.metadata.topic.num.partitions", Int, "50", atLeast(1), Low, ReadOnly,
		""},
	{"remote.log.metadata.topic.replication.factor", Short, "3", atLeast(1), Low, ReadOnly,
		""},
	{"remote.log.metadata.topic.retention.ms", Long, "-1", nil, Low, ReadOnly,
		""},
}
