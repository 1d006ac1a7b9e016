package config

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (c *compiler) identity() {
	b := c.b
	b.NodeID = b.Value("node.id").Int32()
	roles := b.Value("process.roles").List()
	b.Roles = Roles{Broker: slices.Contains(roles, "broker"), Controller: slices.Contains(roles, "controller")}
	b.Rack = b.Value("broker.rack").Text()
	dirs, key := b.Value("log.dirs").List(), "log.dirs"
	if len(dirs) == 0 {
		dirs, key = b.Value("log.dir").List(), "log.dir"
	}
	seen := map[string]string{}
	for _, d := range dirs {
		// Two spellings of one directory would be opened twice; the lock file would refuse the second with a riddle.
		if first, twice := seen[filepath.Clean(d)]; twice {
			c.bad(key, "%s and %s are the same directory", first, d)
		}
		seen[filepath.Clean(d)] = d
	}
	b.LogDirs = dirs
	b.MetadataLogDir = b.Value("metadata.log.dir").Text()
	if b.MetadataLogDir == "" && len(dirs) > 0 {
		b.MetadataLogDir = dirs[0]
	}
	b.CordonedLogDirs = b.Value("cordoned.log.dirs").List()
}

func (c *compiler) quorum() {
	b := c.b
	for _, s := range b.Value("controller.quorum.voters").List() {
		if v, err := ParseQuorumVoter(s); err == nil { // checked by the key's rule before
			b.QuorumVoters = append(b.QuorumVoters, v)
		}
	}
	b.QuorumBootstrapServers = b.Value("controller.quorum.bootstrap.servers").List()
	b.QuorumAutoJoin = b.Value("controller.quorum.auto.join.enable").Bool()
	b.QuorumElectionTimeout = b.Value("controller.quorum.election.timeout.ms").Millis()
	b.QuorumElectionBackoffMax = b.Value("controller.quorum.election.backoff.max.ms").Millis()
	b.QuorumFetchTimeout = b.Value("controller.quorum.fetch.timeout.ms").Millis()
	b.QuorumRequestTimeout = b.Value("controller.quorum.request.timeout.ms").Millis()
	b.QuorumRetryBackoff = b.Value("controller.quorum.retry.backoff.ms").Millis()
	b.QuorumAppendLinger = b.Value("controller.quorum.append.linger.ms").Millis()
	b.QuorumFetchMaxBytes = b.Value("controller.quorum.fetch.max.bytes").Int32()
	b.QuorumFetchSnapshotMaxBytes = b.Value("controller.quorum.fetch.snapshot.max.bytes").Int32()

	b.MetadataSegmentBytes = b.Value("metadata.log.segment.bytes").Int32()
	if v := b.Value("internal.metadata.log.segment.bytes"); !v.Null() {
		b.MetadataSegmentBytes = v.Int32()
	}
	b.MetadataSegmentAge = b.Value("metadata.log.segment.ms").Millis()
	b.MetadataRetentionBytes = b.Value("metadata.max.retention.bytes").Int64()
	b.MetadataRetention = b.Value("metadata.max.retention.ms").Millis()
	b.MetadataSnapshotBytes = b.Value("metadata.log.max.record.bytes.between.snapshots").Int64()
	b.MetadataSnapshotInterval = b.Value("metadata.log.max.snapshot.interval.ms").Millis()
	b.MetadataMaxIdleInterval = b.Value("metadata.max.idle.interval.ms").Millis()
	b.MetadataMaxBatchBytes = b.Value("internal.metadata.max.batch.size.in.bytes").Int32()
	b.MetadataDeleteDelay = b.Value("internal.metadata.delete.delay.millis").Millis()
	b.BrokerHeartbeatInterval = b.Value("broker.heartbeat.interval.ms").Millis()
	b.BrokerSessionTimeout = b.Value("broker.session.timeout.ms").Millis()
	b.InitialRegistrationTimeout = b.Value("initial.broker.registration.timeout.ms").Millis()
	b.ServerMaxStartupTime = b.Value("server.max.startup.time.ms").Millis()
	b.ControlledShutdown = b.Value("controlled.shutdown.enable").Bool()
	b.UnstableAPIVersions = b.Value("unstable.api.versions.enable").Bool()
	b.UnstableFeatureVersions = b.Value("unstable.feature.versions.enable").Bool()
	b.LeaderImbalanceCheckInterval = time.Duration(b.Value("leader.imbalance.check.interval.seconds").Int64()) * time.Second
	b.AutoLeaderRebalance = b.Value("auto.leader.rebalance.enable").Bool()
	b.UncleanLeaderElectionInterval = b.Value("unclean.leader.election.interval.ms").Millis()
}

func (c *compiler) network() {
	b := c.b
	c.protocols()
	var err error
	if b.Listeners, err = parseListeners(b.Value("listeners").List(), b.ListenerProtocols, true); err != nil {
		c.bad("listeners", "Error creating broker listeners from '[%s]': %v", strings.Join(b.Value("listeners").List(), ", "), err)
	}
	b.ControllerListeners = upper(b.Value("controller.listener.names").List())
	advertised := b.Listeners
	if v := b.Value("advertised.listeners"); !v.Null() {
		if advertised, err = parseListeners(v.List(), b.ListenerProtocols, false); err != nil {
			c.bad("advertised.listeners", "Error creating broker listeners from '[%s]': %v", strings.Join(b.Value("advertised.listeners").List(), ", "), err)
		}
	}
	for _, l := range advertised {
		if !b.IsController(l.Name) {
			b.AdvertisedListeners = append(b.AdvertisedListeners, l)
		}
	}
	for _, name := range b.ControllerListeners {
		named := func(l Listener) bool { return l.Name == name }
		if i := slices.IndexFunc(advertised, named); i >= 0 {
			b.AdvertisedControllers = append(b.AdvertisedControllers, advertised[i])
		} else if i := slices.IndexFunc(b.Listeners, named); i >= 0 {
			b.AdvertisedControllers = append(b.AdvertisedControllers, b.Listeners[i])
		}
	}
	c.interBroker()
	b.EarlyStartListeners = b.ControllerListeners
	if v := b.Value("early.start.listeners"); !v.Null() {
		b.EarlyStartListeners = upper(v.List())
	}

	b.SocketSendBuffer = b.Value("socket.send.buffer.bytes").Int32()
	b.SocketReceiveBuffer = b.Value("socket.receive.buffer.bytes").Int32()
	b.SocketRequestMaxBytes = b.Value("socket.request.max.bytes").Int32()
	b.SocketListenBacklog = b.Value("socket.listen.backlog.size").Int32()
	b.MaxConnections = b.Value("max.connections").Int32()
	b.MaxConnectionsPerIP = b.Value("max.connections.per.ip").Int32()
	b.MaxConnectionRate = b.Value("max.connection.creation.rate").Int32()
	b.ConnectionsMaxIdle = b.Value("connections.max.idle.ms").Millis()
	b.FailedAuthDelay = b.Value("connection.failed.authentication.delay.ms").Millis()
	b.QueuedMaxRequestBytes = b.Value("queued.max.request.bytes").Int64()
	b.RequestTimeout = b.Value("request.timeout.ms").Millis()
	b.RequestMemoryBytes = b.Value("gregor.request.memory.bytes").Int64()
	b.FetchMaxBytes = b.Value("fetch.max.bytes").Int32()
	b.FetchSessionSlots = b.Value("max.incremental.fetch.session.cache.slots").Int32()
	b.MaxRequestPartitions = b.Value("max.request.partition.size.limit").Int32()
	b.MaxConnectionsOverride = map[string]int32{}
	if s := b.Value("max.connections.per.ip.overrides").Text(); s != "" {
		for _, pair := range strings.Split(s, ",") {
			host, text, ok := cutLast(strings.TrimSpace(pair), ":")
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
			if !ok || err != nil {
				c.bad("max.connections.per.ip.overrides", "%q is not host:count", pair)
				continue
			}
			b.MaxConnectionsOverride[strings.TrimSpace(host)] = int32(n)
		}
	}
}

// protocols reads listener.security.protocol.map. When it isn't set and nothing uses TLS or SASL, the controller listeners
// are PLAINTEXT by default (KIP-590), so that a small set-up needs no map.
func (c *compiler) protocols() {
	b := c.b
	b.ListenerProtocols = map[string]SecurityProtocol{}
	const key = "listener.security.protocol.map"
	for _, pair := range strings.Split(b.Value(key).Text(), ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, proto, ok := cutLast(pair, ":")
		p, known := parseProtocol(strings.TrimSpace(proto))
		if !ok || !known {
			c.bad(key, "Invalid security protocol `%s` defined in %s", proto, pair)
			continue
		}
		b.ListenerProtocols[strings.ToUpper(strings.TrimSpace(name))] = p
	}
	if _, set := b.layers.get(key); set {
		return
	}
	names := b.Value("controller.listener.names").List()
	for _, l := range b.Value("listeners").List() {
		name, _, _ := strings.Cut(l, "://")
		names = append(slices.Clone(names), name)
	}
	for _, n := range names {
		if p, ok := parseProtocol(n); ok && p != Plaintext {
			return
		}
	}
	for _, n := range upper(b.Value("controller.listener.names").List()) {
		b.ListenerProtocols[n] = Plaintext
	}
}

func (c *compiler) interBroker() {
	b := c.b
	v := b.Value("inter.broker.listener.name")
	_, protoSet := b.layers.get("security.inter.broker.protocol")
	switch {
	case !v.Null() && protoSet:
		c.bad("inter.broker.listener.name", "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.")
	case !v.Null():
		name := strings.ToUpper(v.Text())
		p, ok := b.ListenerProtocols[name]
		if !ok {
			c.bad("inter.broker.listener.name", "Listener with name %s defined in inter.broker.listener.name not found in listener.security.protocol.map.", name)
		}
		b.InterBrokerListener, b.InterBrokerProtocol = name, p
	default:
		p, _ := parseProtocol(b.Value("security.inter.broker.protocol").Text())
		b.InterBrokerListener, b.InterBrokerProtocol = p.String(), p
	}
}

func (c *compiler) storage() {
	b := c.b
	b.Topic = compileTopic(b.topicDefault)
	b.AutoCreateTopics = b.Value("auto.create.topics.enable").Bool()
	b.DeleteTopics = b.Value("delete.topic.enable").Bool()
	b.NumPartitions = b.Value("num.partitions").Int32()
	b.DefaultReplicationFactor = int16(b.Value("default.replication.factor").Int32())
	b.RecoveryThreadsPerDir = b.Value("num.recovery.threads.per.data.dir").Int32()
	b.BackgroundThreads = b.Value("background.threads").Int32()
	b.FlushSchedulerInterval = b.Value("log.flush.scheduler.interval.ms").Millis()
	b.FlushOffsetCheckpoint = b.Value("log.flush.offset.checkpoint.interval.ms").Millis()
	b.FlushStartOffsetCheckpoint = b.Value("log.flush.start.offset.checkpoint.interval.ms").Millis()
	b.HighWatermarkCheckpoint = b.Value("replica.high.watermark.checkpoint.interval.ms").Millis()
	b.RetentionCheckInterval = b.Value("log.retention.check.interval.ms").Millis()
	b.InitialTaskDelay = b.Value("log.initial.task.delay.ms").Millis()
	b.LogDirFailureTimeout = b.Value("log.dir.failure.timeout.ms").Millis()
	b.CleanerEnable = b.Value("log.cleaner.enable").Bool()
	b.CleanerThreads = b.Value("log.cleaner.threads").Int32()
	b.CleanerDedupeBufferBytes = b.Value("log.cleaner.dedupe.buffer.size").Int64()
	b.CleanerDedupeLoadFactor = b.Value("log.cleaner.io.buffer.load.factor").Float64()
	b.CleanerIOBufferBytes = b.Value("log.cleaner.io.buffer.size").Int32()
	b.CleanerIOBytesPerSecond = b.Value("log.cleaner.io.max.bytes.per.second").Float64()
	b.CleanerBackoff = b.Value("log.cleaner.backoff.ms").Millis()
	b.ProducerIDExpiration = b.Value("producer.id.expiration.ms").Millis()
	b.ProducerIDExpirationInterval = b.Value("producer.id.expiration.check.interval.ms").Millis()
	b.AcksFlush = b.Value("gregor.acks.flush").Bool()
	b.ValidateHeaderOnly = b.Value("gregor.produce.validation").Text() == "header"
}

func (c *compiler) replication() {
	b := c.b
	b.ReplicaLagTimeMax = b.Value("replica.lag.time.max.ms").Millis()
	b.ReplicaFetchMaxBytes = b.Value("replica.fetch.max.bytes").Int32()
	b.ReplicaFetchMinBytes = b.Value("replica.fetch.min.bytes").Int32()
	b.ReplicaFetchWaitMax = b.Value("replica.fetch.wait.max.ms").Millis()
	b.ReplicaFetchResponseMax = b.Value("replica.fetch.response.max.bytes").Int32()
	b.ReplicaFetchBackoff = b.Value("replica.fetch.backoff.ms").Millis()
	b.ReplicaSocketTimeout = b.Value("replica.socket.timeout.ms").Millis()
	b.ReplicaSocketReceiveBuffer = b.Value("replica.socket.receive.buffer.bytes").Int32()
	b.ReplicaFetchers = b.Value("num.replica.fetchers").Int32()
	b.LeaderThrottledRate = b.Value("leader.replication.throttled.rate").Int64()
	b.FollowerThrottledRate = b.Value("follower.replication.throttled.rate").Int64()
	b.LogDirsThrottledRate = b.Value("replica.alter.log.dirs.io.max.bytes.per.second").Int64()
	b.ReplicationQuotaSamples = b.Value("replication.quota.window.num").Int32()
	b.ReplicationQuotaSample = time.Duration(b.Value("replication.quota.window.size.seconds").Int64()) * time.Second
	b.LogDirsQuotaSamples = b.Value("alter.log.dirs.replication.quota.window.num").Int32()
	b.LogDirsQuotaSample = time.Duration(b.Value("alter.log.dirs.replication.quota.window.size.seconds").Int64()) * time.Second
	b.LogDirMovers = int32(len(b.LogDirs))
	if v := b.Value("num.replica.alter.log.dirs.threads"); !v.Null() {
		b.LogDirMovers = v.Int32()
	}
}

func (c *compiler) coordinators() {
	b := c.b
	b.GroupCoordinator = GroupCoordinator{
		Threads:                b.Value("group.coordinator.threads").Int32(),
		AppendLinger:           b.Value("group.coordinator.append.linger.ms").Millis(),
		OffsetsPartitions:      b.Value("offsets.topic.num.partitions").Int32(),
		OffsetsReplication:     int16(b.Value("offsets.topic.replication.factor").Int32()),
		OffsetsSegmentBytes:    b.Value("offsets.topic.segment.bytes").Int32(),
		OffsetsCompression:     b.Value("offsets.topic.compression.codec").Int32(),
		OffsetsLoadBuffer:      b.Value("offsets.load.buffer.size").Int32(),
		OffsetsRetention:       time.Duration(b.Value("offsets.retention.minutes").Int64()) * time.Minute,
		OffsetsRetentionCheck:  b.Value("offsets.retention.check.interval.ms").Millis(),
		OffsetMetadataMaxBytes: b.Value("offset.metadata.max.bytes").Int32(),
		OffsetsCommitTimeout:   b.Value("offsets.commit.timeout.ms").Millis(),
		CachedBufferMaxBytes:   b.Value("group.coordinator.cached.buffer.max.bytes").Int32(),
		RebalanceProtocols:     b.Value("group.coordinator.rebalance.protocols").List(),

		MinSessionTimeout:     b.Value("group.min.session.timeout.ms").Millis(),
		MaxSessionTimeout:     b.Value("group.max.session.timeout.ms").Millis(),
		InitialRebalanceDelay: b.Value("group.initial.rebalance.delay.ms").Millis(),
		MaxSize:               b.Value("group.max.size").Int32(),

		ConsumerMaxSize:              b.Value("group.consumer.max.size").Int32(),
		ConsumerAssignors:            b.Value("group.consumer.assignors").List(),
		ConsumerMigrationPolicy:      strings.ToUpper(b.Value("group.consumer.migration.policy").Text()),
		ConsumerMinSessionTimeout:    b.Value("group.consumer.min.session.timeout.ms").Millis(),
		ConsumerMaxSessionTimeout:    b.Value("group.consumer.max.session.timeout.ms").Millis(),
		ConsumerMinHeartbeatInterval: b.Value("group.consumer.min.heartbeat.interval.ms").Millis(),
		ConsumerMaxHeartbeatInterval: b.Value("group.consumer.max.heartbeat.interval.ms").Millis(),
		ConsumerRegexRefresh:         b.Value("group.consumer.regex.refresh.interval.ms").Millis(),

		StreamsMaxSize:   b.Value("group.streams.max.size").Int32(),
		StreamsAssignors: b.Value("group.streams.assignors").List(),
	}
	b.Group = compileGroup(b.groupDefault)
	b.Transaction = Transaction{
		MaxTimeout:            b.Value("transaction.max.timeout.ms").Millis(),
		IDExpiration:          b.Value("transactional.id.expiration.ms").Millis(),
		AbortTimedOutInterval: b.Value("transaction.abort.timed.out.transaction.cleanup.interval.ms").Millis(),
		RemoveExpiredInterval: b.Value("transaction.remove.expired.transaction.cleanup.interval.ms").Millis(),
		LogPartitions:         b.Value("transaction.state.log.num.partitions").Int32(),
		LogReplication:        int16(b.Value("transaction.state.log.replication.factor").Int32()),
		LogMinISR:             b.Value("transaction.state.log.min.isr").Int32(),
		LogSegmentBytes:       b.Value("transaction.state.log.segment.bytes").Int32(),
		LogLoadBuffer:         b.Value("transaction.state.log.load.buffer.size").Int32(),
		PartitionVerification: b.Value("transaction.partition.verification.enable").Bool(),
		TwoPhaseCommit:        b.Value("transaction.two.phase.commit.enable").Bool(),
	}
}

func upper(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = strings.ToUpper(s)
	}
	return out
}

// cutLast splits at the last separator.
func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
