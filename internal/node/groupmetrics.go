package node

import (
	"strings"

	"gregor/internal/telemetry"
)

// emitGroups shows the group coordinator.
func (n *Node) emitGroups(e *telemetry.Emitter) {
	s := n.groups.Stats()
	groups := 0
	for k, count := range s.Groups {
		groups += count
		e.Gauge("kafka_server_group_coordinator_metrics_group_count", "Groups that are coordinated here, by protocol and state.",
			float64(count), "protocol", strings.ToLower(k[0]), "state", k[1])
	}
	e.Gauge("kafka_coordinator_group_groupmetadatamanager_numgroups", "Groups that are coordinated here.", float64(groups))
	e.Gauge("kafka_coordinator_group_groupmetadatamanager_numoffsets", "Offsets that are stored here.", float64(s.Offsets))
	for _, state := range []string{"loading", "active", "failed"} {
		e.Gauge("kafka_server_group_coordinator_metrics_num_partitions", "Partitions of the group coordinator, by state.",
			float64(s.Partitions[state]), "state", state)
	}
	e.Counter("kafka_server_group_coordinator_metrics_offset_commit_count", "Offsets that were committed.", float64(s.Commits))
	e.Counter("kafka_server_group_coordinator_metrics_offset_expiration_count", "Offsets that expired.", float64(s.Expired))
	e.Counter("kafka_server_group_coordinator_metrics_offset_deletion_count", "Offsets that were deleted on request.", float64(s.Deleted))
	e.Counter("kafka_server_group_coordinator_metrics_group_completed_rebalance_count", "Assignments that classic groups were given.",
		float64(s.Rebalances))
}
