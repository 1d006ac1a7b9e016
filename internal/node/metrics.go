package node

import (
	"sync"
	"sync/atomic"

	"gregor/internal/api"
	"gregor/internal/network"
	"gregor/internal/telemetry"
)

// requestStats counts what happens on the connections. It implements network.Observer.
type requestStats struct {
	byKey [maxKey + 1]atomic.Pointer[keyStats]

	mu        sync.Mutex // guards listeners
	listeners map[string]*listenerStats
	failed    atomic.Int64
}

// maxKey is the largest API key of Kafka 4.4.
const maxKey = 94

// keyStats is what is counted for one API, made at its first request.
type keyStats struct {
	requests, requestBytes, responseBytes atomic.Int64
	total, local, remote, send            telemetry.Histogram
}

type listenerStats struct{ open, opened, refused atomic.Int64 }

func newRequestStats() *requestStats {
	return &requestStats{listeners: make(map[string]*listenerStats)}
}

func (s *requestStats) listener(name string) *listenerStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.listeners[name]
	if l == nil {
		l = &listenerStats{}
		s.listeners[name] = l
	}
	return l
}

// ConnOpened implements network.Observer.
func (s *requestStats) ConnOpened(c *network.Conn) {
	l := s.listener(c.Listener())
	l.open.Add(1)
	l.opened.Add(1)
}

// ConnClosed implements network.Observer.
func (s *requestStats) ConnClosed(c *network.Conn, _ error) { s.listener(c.Listener()).open.Add(-1) }

// ConnRefused implements network.Observer.
func (s *requestStats) ConnRefused(listener string, _ error) { s.listener(listener).refused.Add(1) }

// Failed implements network.Observer.
func (s *requestStats) Failed(*network.Conn, error) { s.failed.Add(1) }

// Served implements network.Observer.
func (s *requestStats) Served(x network.Sample) {
	if x.Key < 0 || x.Key > maxKey {
		return
	}
	k := s.byKey[x.Key].Load()
	if k == nil {
		s.byKey[x.Key].CompareAndSwap(nil, &keyStats{})
		k = s.byKey[x.Key].Load()
	}
	k.requests.Add(1)
	k.requestBytes.Add(int64(x.RequestBytes))
	k.responseBytes.Add(int64(x.ResponseBytes))
	k.local.Observe(x.Handle)
	k.remote.Observe(x.Park)
	k.send.Observe(x.Send)
	k.total.Observe(x.Handle + x.Park + x.Send)
}

func (s *requestStats) emit(e *telemetry.Emitter) {
	for key := range s.byKey {
		k := s.byKey[key].Load()
		if k == nil {
			continue
		}
		name := api.Key(key).String()
		e.Counter("kafka_network_requestmetrics_requests_total", "Requests answered, by API.", float64(k.requests.Load()), "request", name)
		e.Counter("kafka_network_requestmetrics_requestbytes_total", "Bytes of requests, by API.", float64(k.requestBytes.Load()), "request", name)
		e.Counter("kafka_network_requestmetrics_responsebytes_total", "Bytes of responses, by API.", float64(k.responseBytes.Load()), "request", name)
		e.Histogram("kafka_network_requestmetrics_totaltime_seconds", "From the last byte of a request to the last byte of its response.", &k.total, "request", name)
		e.Histogram("kafka_network_requestmetrics_localtime_seconds", "Time in the handler of a request.", &k.local, "request", name)
		e.Histogram("kafka_network_requestmetrics_remotetime_seconds", "Time for which a request was parked.", &k.remote, "request", name)
		e.Histogram("kafka_network_requestmetrics_responsesendtime_seconds", "Time to send a response, including its turn after earlier ones.", &k.send, "request", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, l := range s.listeners {
		e.Gauge("kafka_server_socketservermetrics_connection_count", "Open connections.", float64(l.open.Load()), "listener", name)
		e.Counter("kafka_server_socketservermetrics_connection_creation_total", "Connections accepted.", float64(l.opened.Load()), "listener", name)
		e.Counter("gregor_connections_refused_total", "Connections closed at once because of a limit.", float64(l.refused.Load()), "listener", name)
	}
	e.Counter("gregor_requests_failed_total", "Requests that made no sense, whose connections were closed.", float64(s.failed.Load()))
}

// registerMetrics shows the parts of the node.
func (n *Node) registerMetrics() {
	n.o.Metrics.OnScrape(n.stats.emit)
	n.o.Metrics.OnScrape(n.emitCluster)
	if n.cfg.Roles.Broker {
		n.o.Metrics.OnScrape(n.emitBroker)
		n.o.Metrics.OnScrape(n.emitGroups)
	}
}

func (n *Node) emitCluster(e *telemetry.Emitter) {
	l := n.raft.LeaderAndEpoch()
	e.Gauge("kafka_server_raft_metrics_current_leader", "Node that leads the metadata quorum, -1 for none.", float64(l.LeaderID))
	e.Gauge("kafka_server_raft_metrics_current_epoch", "Epoch of the metadata quorum.", float64(l.Epoch))
	e.Gauge("kafka_server_raft_metrics_high_watermark", "Offset below which the metadata log is committed.", float64(n.raft.HighWatermark()))
	e.Gauge("kafka_server_raft_metrics_log_end_offset", "End of the metadata log.", float64(n.raft.LogEndOffset()))
	q := n.raft.Stats()
	e.Gauge("kafka_server_raft_metrics_current_state", "Always 1; the label says what part the node has in the metadata quorum.", 1, "state", q.Role.String())
	e.Gauge("kafka_server_raft_metrics_number_of_voters", "Voters of the metadata quorum.", float64(q.Voters))
	e.Counter("kafka_server_raft_metrics_append_records_total", "Records appended to the metadata log as its leader.", float64(q.AppendedRecords))
	e.Counter("kafka_server_raft_metrics_elections_total", "Elections that this node has won.", float64(q.Elections))
	e.Counter("kafka_server_raft_metrics_log_syncs_total", "Syncs of the metadata log.", float64(q.Syncs))
	e.Histogram("kafka_server_raft_metrics_commit_latency_seconds", "From the write of a batch to its commit.", q.CommitLatency)
	img := n.loader.Image()
	e.Gauge("kafka_server_broker_metadata_metrics_last_applied_record_offset", "Last metadata record that was applied.", float64(n.loader.LastAppliedOffset()))
	active := 0.0
	if l.LeaderID == n.cfg.NodeID && n.controller != nil {
		active = 1
	}
	e.Gauge("kafka_controller_kafkacontroller_activecontrollercount", "1 on the active controller.", active)
	offline, under := 0, 0
	for t := range img.Topics.All() {
		for _, p := range t.Partitions() {
			switch {
			case p.Leader < 0:
				offline++
			case p.Leader == n.cfg.NodeID && len(p.ISR) < len(p.Replicas):
				under++
			}
		}
	}
	e.Gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics in the cluster.", float64(img.Topics.Len()))
	e.Gauge("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions in the cluster.", float64(img.Topics.PartitionCount()))
	e.Gauge("kafka_server_replicamanager_underreplicatedpartitions", "Partitions led here with replicas out of sync.", float64(under))
	e.Gauge("kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions without leader.", float64(offline))
	fenced, unfenced := 0, 0
	for _, b := range img.Cluster.Brokers {
		if b.Fenced {
			fenced++
		} else {
			unfenced++
		}
	}
	e.Gauge("kafka_controller_kafkacontroller_activebrokercount", "Brokers in service.", float64(unfenced))
	e.Gauge("kafka_controller_kafkacontroller_fencedbrokercount", "Brokers that are fenced.", float64(fenced))
}

func (n *Node) emitBroker(e *telemetry.Emitter) {
	t := &n.broker.Load().Traffic
	e.Counter("kafka_server_brokertopicmetrics_messagesin_total", "Records that clients produced.", float64(t.MessagesIn.Load()))
	e.Counter("kafka_server_brokertopicmetrics_bytesin_total", "Bytes that clients produced.", float64(t.BytesIn.Load()))
	e.Counter("kafka_server_brokertopicmetrics_bytesout_total", "Bytes that clients fetched.", float64(t.BytesOut.Load()))
	e.Counter("kafka_server_brokertopicmetrics_totalproducerequests_total", "Partitions' worth of produce requests.", float64(t.ProduceRequests.Load()))
	e.Counter("kafka_server_brokertopicmetrics_totalfetchrequests_total", "Partitions' worth of fetch requests.", float64(t.FetchRequests.Load()))
	e.Counter("kafka_server_brokertopicmetrics_failedproducerequests_total", "Produce requests that failed.", float64(t.FailedProduces.Load()))
	e.Counter("kafka_server_brokertopicmetrics_failedfetchrequests_total", "Fetch requests that failed.", float64(t.FailedFetches.Load()))
	sessions, sessionPartitions, evictions := n.replicas.Sessions().Stats()
	e.Gauge("kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions.", float64(sessions))
	e.Gauge("kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", "Partitions in fetch sessions.", float64(sessionPartitions))
	e.Counter("kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total", "Fetch sessions that were evicted.", float64(evictions))
	count, leaders, underMin, atMin := 0, 0, 0, 0
	sizes := map[string]int64{}
	for _, p := range n.replicas.All() {
		count++
		if p.IsLeader() {
			leaders++
			switch have, want := p.InSync(); {
			case have < want:
				underMin++
			case have == want:
				atMin++
			}
		}
		sizes[p.TopicPartition().Topic] += p.Log().Size()
	}
	e.Gauge("kafka_server_replicamanager_partitioncount", "Replicas on this broker.", float64(count))
	e.Gauge("kafka_server_replicamanager_leadercount", "Replicas that lead.", float64(leaders))
	e.Gauge("kafka_server_replicamanager_underminisrpartitioncount", "Partitions led here with fewer replicas in sync than min.insync.replicas.", float64(underMin))
	e.Gauge("kafka_server_replicamanager_atminisrpartitioncount", "Partitions led here with just min.insync.replicas in sync.", float64(atMin))
	counts := &n.replicas.ISRCounts
	e.Counter("kafka_server_replicamanager_isrexpands_total", "Replicas that entered an ISR at this broker's request.", float64(counts.Expands.Load()))
	e.Counter("kafka_server_replicamanager_isrshrinks_total", "Times that lagging replicas left an ISR at this broker's request.", float64(counts.Shrinks.Load()))
	e.Counter("kafka_server_replicamanager_failedisrupdates_total", "Changes of ISRs that the controller refused.", float64(counts.Failed.Load()))
	rates := n.replicas.ReplicationRates()
	e.Gauge("kafka_server_leaderreplication_byte_rate", "Bytes a second of throttled replicas that are served to followers.", rates.Leader)
	e.Gauge("kafka_server_followerreplication_byte_rate", "Bytes a second of throttled replicas that are fetched from leaders.", rates.Follower)
	e.Gauge("kafka_server_alterlogdirsreplication_byte_rate", "Bytes a second that are moved between log directories.", rates.LogDirs)
	for topic, size := range sizes {
		e.Gauge("kafka_log_log_size", "Bytes of this broker's logs, by topic.", float64(size), "topic", topic)
	}
	offline := 0
	for _, d := range n.logs.Dirs() {
		if d.Offline != nil {
			offline++
		}
		e.Gauge("kafka_log_logmanager_logdirectoryoffline", "1 when a log directory is offline.", b2f(d.Offline != nil), "logdirectory", d.Path)
	}
	e.Gauge("kafka_log_logmanager_offlinelogdirectorycount", "Log directories that are offline.", float64(offline))
	e.Gauge("gregor_request_memory_bytes", "Bytes of requests that are held in memory.", float64(n.server.MemoryUsed()))
	e.Gauge("gregor_log_open_files", "Segment files that are open.", float64(n.logs.OpenFiles()))
	e.Gauge("kafka_server_kafkaserver_brokerstate", "State of the broker, numbered as in Kafka.", float64(n.lifecycle.State()))
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
