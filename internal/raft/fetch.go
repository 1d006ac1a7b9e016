package raft

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/uuid"
)

// validFetch says whether a fetch asks for the metadata log and nothing else.
func validFetch(r *kmsg.FetchRequest) bool {
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 || r.Topics[0].Partitions[0].Partition != 0 {
		return false
	}
	if r.Version >= 13 {
		return uuid.UUID(r.Topics[0].TopicID) == uuid.MetadataTopic
	}
	return r.Topics[0].Topic == TopicName
}

// fetchReplica is who fetches.
func fetchReplica(r *kmsg.FetchRequest) ReplicaKey {
	k := ReplicaKey{ID: r.ReplicaID}
	if r.Version >= 15 {
		k.ID = r.ReplicaState.ID
	}
	if r.Version >= 17 {
		k.DirectoryID = r.Topics[0].Partitions[0].ReplicaDirectoryID
	}
	return k
}

// handleFetch serves a follower or observer. It is answered at once when there is something to say (an error, records, a
// divergence, a snapshot to fetch, a higher high watermark), else when there is or the request's wait is over.
func (c *Core) handleFetch(now time.Time, ev Requested, r *kmsg.FetchRequest) {
	switch {
	case !c.validCluster(r.ClusterID):
		c.replyFetchTopLevel(ev, r, codeInconsistentClusterID)
		return
	case !validFetch(r):
		c.replyFetchTopLevel(ev, r, codeInvalidRequest)
		return
	}
	p := &r.Topics[0].Partitions[0]
	if r.MaxWaitMillis < 0 || p.FetchOffset < 0 || p.LastFetchedEpoch < 0 || p.LastFetchedEpoch > p.CurrentLeaderEpoch {
		c.replyFetchError(ev, codeInvalidRequest)
		return
	}
	if code := c.validateLeaderRequest(p.CurrentLeaderEpoch); code != 0 {
		c.replyFetchError(ev, code)
		return
	}
	replica := fetchReplica(r)
	if replica.ID == c.cfg.NodeID {
		c.replyFetchError(ev, codeInvalidRequest)
		return
	}
	kind, point := c.fetchPosition(p)
	if kind == positionValid && p.FetchOffset > c.view.end {
		kind, point = positionDiverging, c.view.endPoint()
	}
	if kind != positionValid {
		c.replyFetchPoint(ev, kind, point)
		return
	}
	c.noteFetch(now, replica, p.FetchOffset)
	f := parkedFetch{
		ev: ev, replica: replica, offset: p.FetchOffset, hw: p.HighWatermark, knowsHW: r.Version >= 18,
		until: now.Add(time.Duration(r.MaxWaitMillis) * time.Millisecond),
	}
	if c.lead == nil { // noting the fetch may have committed the removal of this leader
		c.replyFetchError(ev, codeNotLeaderOrFollower)
		return
	}
	if c.readyFetch(&f) || r.MaxWaitMillis == 0 {
		c.replyFetch(f)
		return
	}
	c.lead.parked = append(c.lead.parked, f)
}

// fetchPosition validates where a replica wants to go on. A replica that has nothing is better off with a snapshot, if there
// is a real one.
func (c *Core) fetchPosition(p *kmsg.FetchRequestTopicPartition) (positionKind, OffsetAndEpoch) {
	if snap, ok := c.view.latestSnapshot(); ok && p.FetchOffset == 0 && snap != (OffsetAndEpoch{}) {
		return positionSnapshot, snap
	}
	return c.view.validate(p.FetchOffset, p.LastFetchedEpoch)
}

// noteFetch takes a fetch at offset as the word of the replica that it holds, synced, all before.
func (c *Core) noteFetch(now time.Time, k ReplicaKey, offset int64) {
	if k.ID < 0 {
		return // not a replica
	}
	r := c.replicaState(k)
	if offset < r.end {
		c.log.Warn("a replica's fetch offset went back", "node", k.ID, "from", r.end, "to", offset)
	}
	// Caught up is who fetches at the leader's end, or at where it was at the fetch before.
	leaderEnd := c.view.end
	switch {
	case offset >= leaderEnd:
		r.lastCaughtUp = later(r.lastCaughtUp, now)
	case r.endAtLastFetch > 0 && offset >= r.endAtLastFetch:
		r.lastCaughtUp = later(r.lastCaughtUp, r.lastFetch)
	}
	r.endAtLastFetch = leaderEnd
	r.lastFetch = later(r.lastFetch, now)
	r.end = offset
	r.acknowledgesEpoch = true
	c.noteHeard(now, k)
	if v := c.lead.voters[k.ID]; v == r {
		c.updateHighWatermark(now)
	}
}

// noteHeard counts a voter's fetch for the check of the quorum.
func (c *Core) noteHeard(now time.Time, k ReplicaKey) {
	l := c.lead
	if v := l.voters[k.ID]; v == nil || !v.matches(k) {
		return
	}
	l.heard[k.ID] = true
	need := c.view.lastVoters().Majority()
	if l.voters[c.cfg.NodeID] != nil && l.voters[c.cfg.NodeID].matches(c.cfg.ReplicaKey) {
		need--
	}
	if len(l.heard) >= need {
		clear(l.heard)
		l.checkQuorumAt = now.Add(c.checkQuorumTimeout())
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// readyFetch says whether a fetch that is in place has something to get: records, or a high watermark that it hasn't.
func (c *Core) readyFetch(f *parkedFetch) bool {
	return f.offset < c.view.end || f.knowsHW && c.hw > f.hw
}

// completeFetches answers the parked fetches that have something to get. Followers older than the high watermark field get it
// with the next records, or when their wait is over.
func (c *Core) completeFetches(now time.Time) {
	if c.lead == nil {
		return
	}
	c.lead.parked = slices.DeleteFunc(c.lead.parked, func(f parkedFetch) bool {
		if !c.readyFetch(&f) {
			return false
		}
		c.replyFetch(f)
		return true
	})
}

func (c *Core) expireFetches(now time.Time) {
	c.lead.parked = slices.DeleteFunc(c.lead.parked, func(f parkedFetch) bool {
		if now.Before(f.until) {
			c.wakeAt(f.until)
			return false
		}
		c.replyFetch(f)
		return true
	})
}

func (c *Core) replyFetch(f parkedFetch) {
	r := f.ev.Request.(*kmsg.FetchRequest)
	resp := c.fetchResponse(f.ev, 0)
	if f.offset >= c.view.end {
		c.emit(Reply{f.ev.ID, resp})
		return
	}
	limit := c.cfg.FetchMaxBytes
	if r.MaxBytes > 0 && r.Version >= 3 {
		limit = min(limit, r.MaxBytes)
	}
	c.emit(ReplyRecords{ID: f.ev.ID, Response: resp, Offset: f.offset, MaxBytes: limit})
}

func (c *Core) replyFetchPoint(ev Requested, kind positionKind, point OffsetAndEpoch) {
	resp := c.fetchResponse(ev, 0)
	p := &resp.Topics[0].Partitions[0]
	if kind == positionDiverging {
		p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = point.Epoch, point.Offset
	} else {
		p.SnapshotID.Epoch, p.SnapshotID.EndOffset = point.Epoch, point.Offset
	}
	c.emit(Reply{ev.ID, resp})
}

func (c *Core) replyFetchError(ev Requested, code int16) {
	resp := c.fetchResponse(ev, code)
	resp.Topics[0].Partitions[0].HighWatermark = -1
	c.emit(Reply{ev.ID, resp})
}

func (c *Core) replyFetchTopLevel(ev Requested, r *kmsg.FetchRequest, code int16) {
	resp := r.ResponseKind().(*kmsg.FetchResponse)
	resp.Version = r.Version
	resp.ErrorCode = code
	c.emit(Reply{ev.ID, resp})
}

// fetchResponse makes a response with everything but the records.
func (c *Core) fetchResponse(ev Requested, code int16) *kmsg.FetchResponse {
	r := ev.Request.(*kmsg.FetchRequest)
	resp := r.ResponseKind().(*kmsg.FetchResponse)
	resp.Version = r.Version
	p := kmsg.NewFetchResponseTopicPartition()
	p.ErrorCode = code
	p.HighWatermark = c.hw
	p.LastStableOffset = -1
	p.LogStartOffset = c.view.start
	p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = c.leader, c.epoch
	p.AbortedTransactions = nil
	p.RecordBatches = []byte{}
	resp.Topics = []kmsg.FetchResponseTopic{{Topic: TopicName, TopicID: uuid.MetadataTopic, Partitions: []kmsg.FetchResponseTopicPartition{p}}}
	if e, ok := c.leaderEndpointFor(ev.Listener); ok && r.Version >= 17 {
		resp.Brokers = []kmsg.FetchResponseBroker{{NodeID: c.leader, Host: e.Host, Port: int32(e.Port)}}
	}
	return resp
}

// handleFetchSnapshot serves a piece of a snapshot.
func (c *Core) handleFetchSnapshot(now time.Time, ev Requested, r *kmsg.FetchSnapshotRequest) {
	resp := r.ResponseKind().(*kmsg.FetchSnapshotResponse)
	resp.Version = r.Version
	switch {
	case !c.validCluster(r.ClusterID):
		resp.ErrorCode = codeInconsistentClusterID
		c.emit(Reply{ev.ID, resp})
		return
	case len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1:
		resp.ErrorCode = codeInvalidRequest
		c.emit(Reply{ev.ID, resp})
		return
	}
	p := &r.Topics[0].Partitions[0]
	out := kmsg.NewFetchSnapshotResponseTopicPartition()
	out.Partition = p.Partition
	out.Bytes = []byte{}
	out.SnapshotID.EndOffset, out.SnapshotID.Epoch = p.SnapshotID.EndOffset, p.SnapshotID.Epoch
	id := OffsetAndEpoch{p.SnapshotID.EndOffset, p.SnapshotID.Epoch}
	switch code := c.validateLeaderRequest(p.CurrentLeaderEpoch); {
	case r.Topics[0].Topic != TopicName || p.Partition != 0:
		out.ErrorCode = codeUnknownTopicPartition
	case code != 0:
		out.ErrorCode = code
	case id == OffsetAndEpoch{} || !c.view.hasSnapshot(id):
		// The bootstrap snapshot is not replicated: its records are in the log.
		out.ErrorCode = codeSnapshotNotFound
	case p.Position < 0:
		out.ErrorCode = codePositionOutOfRange
	}
	if out.ErrorCode != codeUnknownTopicPartition {
		out.CurrentLeader.LeaderID, out.CurrentLeader.LeaderEpoch = c.leader, c.epoch
	}
	resp.Topics = []kmsg.FetchSnapshotResponseTopic{{Topic: r.Topics[0].Topic, Partitions: []kmsg.FetchSnapshotResponseTopicPartition{out}}}
	if e, ok := c.leaderEndpointFor(ev.Listener); ok && r.Version >= 1 {
		resp.NodeEndpoints = []kmsg.FetchSnapshotResponseNodeEndpoint{{NodeID: c.leader, Host: e.Host, Port: e.Port}}
	}
	if out.ErrorCode != 0 {
		part := &resp.Topics[0].Partitions[0]
		part.SnapshotID.EndOffset, part.SnapshotID.Epoch = -1, -1
		c.emit(Reply{ev.ID, resp})
		return
	}
	if r.ReplicaID >= 0 && r.ReplicaID != c.cfg.NodeID {
		c.noteHeard(now, ReplicaKey{r.ReplicaID, p.ReplicaDirectoryID})
	}
	limit := c.cfg.FetchSnapshotMaxBytes
	if r.MaxBytes >= 0 {
		limit = min(limit, r.MaxBytes)
	}
	c.emit(ReplySnapshot{ID: ev.ID, Response: resp, Snapshot: id, Position: p.Position, MaxBytes: limit})
}
