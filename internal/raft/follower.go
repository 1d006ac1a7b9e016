package raft

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
	"gregor/internal/uuid"
)

func (c *Core) pollFollower(now time.Time) {
	if c.shutdown {
		return
	}
	if c.mayStand() {
		if !now.Before(c.follow.fetchDeadline) {
			c.log.Info("no successful fetch from the leader in time", "leader", c.leader, "leader_epoch", c.epoch)
			c.becomeProspective(now)
			return
		}
		c.wakeAt(c.follow.fetchDeadline)
		if c.isVoter() && !now.Before(c.follow.updateDeadline) && c.maybeUpdateVoter(now) {
			return
		}
	} else {
		if !now.Before(c.follow.updateDeadline) && c.maybeJoin(now) {
			return
		}
		if !now.Before(c.follow.fetchDeadline) {
			c.becomeUnattached(now, c.epoch, c.leader, c.voted, 0)
			return
		}
		c.wakeAt(c.follow.fetchDeadline)
	}
	if c.follow.busy {
		return // the disk is at it; the fetch that follows speaks for it
	}
	p := c.leaderPeer()
	if p == nil {
		return
	}
	switch {
	case c.timedOut(p, now):
		p.inflight = 0
		p.backoffUntil = now.Add(c.cfg.RetryBackoff)
		c.fetchFromBootstrap(now)
	case p.backingOff(now):
		c.wakeAt(p.backoffUntil)
		c.fetchFromBootstrap(now)
	default:
		// One fetch at a time, to whomever: two answers for one offset would have to be told apart.
		for _, id := range sortedKeys(c.peers) {
			if o := c.peers[id]; o.inflight != 0 && !c.timedOut(o, now) {
				c.wakeAt(o.sentAt.Add(c.cfg.RequestTimeout))
				return
			}
		}
		c.trySend(now, p, func() kmsg.Request {
			if d := c.follow.download; d != nil {
				return c.fetchSnapshotRequest(d)
			}
			return c.fetchRequest()
		})
	}
}

// fetchRequest asks for what follows the log's end. Everything before that is synced, as far as it is the duty of this
// replica: the leader counts on it.
func (c *Core) fetchRequest() *kmsg.FetchRequest {
	r := kmsg.NewPtrFetchRequest()
	r.Version = 18
	r.ClusterID = &c.cfg.ClusterID
	r.ReplicaState.ID = c.cfg.NodeID
	r.ReplicaState.Epoch = -1
	r.MaxWaitMillis = int32(c.cfg.FetchMaxWait / time.Millisecond)
	r.MinBytes = 0
	r.MaxBytes = c.cfg.FetchMaxBytes
	p := kmsg.NewFetchRequestTopicPartition()
	p.CurrentLeaderEpoch = c.epoch
	p.FetchOffset = c.view.end
	p.LastFetchedEpoch = c.view.lastEpoch()
	p.LogStartOffset = -1
	p.ReplicaDirectoryID = c.cfg.ReplicaKey.DirectoryID
	p.HighWatermark = c.hw
	r.Topics = []kmsg.FetchRequestTopic{{Topic: TopicName, TopicID: uuid.MetadataTopic, Partitions: []kmsg.FetchRequestTopicPartition{p}}}
	return r
}

func (c *Core) fetchSnapshotRequest(d *download) *kmsg.FetchSnapshotRequest {
	r := kmsg.NewPtrFetchSnapshotRequest()
	r.Version = 1
	r.ClusterID = &c.cfg.ClusterID
	r.ReplicaID = c.cfg.NodeID
	r.MaxBytes = c.cfg.FetchSnapshotMaxBytes
	p := kmsg.FetchSnapshotRequestTopicPartition{CurrentLeaderEpoch: c.epoch, Position: d.size, ReplicaDirectoryID: c.cfg.ReplicaKey.DirectoryID}
	p.SnapshotID.EndOffset, p.SnapshotID.Epoch = d.id.Offset, d.id.Epoch
	r.Topics = []kmsg.FetchSnapshotRequestTopic{{Topic: TopicName, Partitions: []kmsg.FetchSnapshotRequestTopicPartition{p}}}
	return r
}

// fetchAnswered takes what a fetch brought.
func (c *Core) fetchAnswered(now time.Time, p *peer, r *kmsg.FetchResponse) bool {
	if r.ErrorCode != 0 {
		return c.unexpected(p, "Fetch", r.ErrorCode)
	}
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 || uuid.UUID(r.Topics[0].TopicID) != uuid.MetadataTopic {
		return false
	}
	t := &r.Topics[0].Partitions[0]
	leader, epoch := t.CurrentLeader.LeaderID, t.CurrentLeader.LeaderEpoch
	var endpoints []Endpoint
	for _, b := range r.Brokers {
		if b.NodeID == leader && b.Port > 0 && b.Port < 1<<16 {
			endpoints = []Endpoint{{c.cfg.Listener, b.Host, uint16(b.Port)}}
		}
	}
	if epoch == c.epoch && c.role == Unattached && leader >= 0 && leader != c.cfg.NodeID {
		if !c.learn(now, epoch, leader, endpoints) {
			return false
		}
	}
	if done, ok := c.common(now, t.ErrorCode, leader, epoch, endpoints); done {
		return ok
	}
	if c.role != Follower || epoch != c.epoch {
		return true
	}
	if t.ErrorCode != 0 {
		return c.unexpected(p, "Fetch", t.ErrorCode)
	}
	if c.follow.busy || c.follow.download != nil {
		return true // overtaken by an answer to an earlier request
	}
	switch {
	case t.DivergingEpoch.Epoch >= 0:
		return c.diverged(now, OffsetAndEpoch{t.DivergingEpoch.EndOffset, t.DivergingEpoch.Epoch})
	case t.SnapshotID.Epoch >= 0 || t.SnapshotID.EndOffset >= 0:
		if t.SnapshotID.Epoch < 0 || t.SnapshotID.EndOffset < 0 {
			c.log.Warn("leader named an impossible snapshot", "leader", c.leader, "offset", t.SnapshotID.EndOffset, "epoch", t.SnapshotID.Epoch)
			return false
		}
		return c.startDownload(now, OffsetAndEpoch{t.SnapshotID.EndOffset, t.SnapshotID.Epoch})
	case len(t.RecordBatches) > 0:
		return c.takeBatches(now, t.RecordBatches, t.HighWatermark)
	}
	c.followHighWatermark(t.HighWatermark)
	c.fetchSucceeded(now)
	return true
}

func (c *Core) fetchSucceeded(now time.Time) {
	c.follow.fetchDeadline = now.Add(c.cfg.FetchTimeout)
	c.follow.fetched = true
	c.evidence = 0
}

// followHighWatermark takes the leader's high watermark, as far as the log goes.
func (c *Core) followHighWatermark(hw int64) {
	if hw < 0 {
		return
	}
	if hw = min(hw, c.view.end); hw > c.hw {
		c.hw = hw
		c.commit(hw)
	}
}

// diverged cuts off what the leader hasn't.
func (c *Core) diverged(now time.Time, point OffsetAndEpoch) bool {
	at := c.view.truncationPoint(point)
	if at < c.committed {
		// Never: what is committed is in every leader's log. A node would have to have lost its disk.
		c.log.Error("leader asks to truncate committed records", "leader", c.leader, "leader_epoch", c.epoch,
			"offset", at, "high_watermark", c.committed)
		return false
	}
	if at < c.view.start {
		c.log.Error("leader asks to truncate before the log start", "leader", c.leader, "offset", at, "log_start", c.view.start)
		return false
	}
	c.log.Info("truncating the metadata log", "leader", c.leader, "leader_epoch", c.epoch, "from", c.view.end, "to", at)
	c.emit(Truncate{at})
	c.view.truncate(at)
	c.fetchSucceeded(now)
	return true
}

// takeBatches checks fetched batches and has them appended. A batch that can't be right ends the run: what is before it is
// good.
func (c *Core) takeBatches(now time.Time, data []byte, hw int64) bool {
	next, epoch := c.view.end, c.view.lastEpoch()
	rest, good := data, 0
	var found []fetchedBatch
	for len(rest) > 0 {
		b, after, err := record.Next(rest)
		if err != nil {
			break // cut short by the size limit, or damaged; the next fetch starts there
		}
		if b == nil {
			break
		}
		if b.BaseOffset() != next || b.PartitionLeaderEpoch() < epoch || b.PartitionLeaderEpoch() > c.epoch || b.LastOffsetDelta() < 0 {
			c.log.Warn("fetched batch does not fit", "leader", c.leader, "base_offset", b.BaseOffset(), "log_end", next,
				"batch_epoch", b.PartitionLeaderEpoch(), "last_epoch", epoch)
			break
		}
		if err := b.Check(); err != nil {
			c.log.Warn("fetched batch is damaged", "leader", c.leader, "base_offset", b.BaseOffset(), "err", err)
			break
		}
		control, err := controlRecords(b)
		if err != nil {
			c.log.Warn("fetched control batch can't be read", "leader", c.leader, "base_offset", b.BaseOffset(), "err", err)
			break
		}
		next, epoch = b.NextOffset(), b.PartitionLeaderEpoch()
		found = append(found, fetchedBatch{b.BaseOffset(), b.LastOffset(), epoch, control})
		good += b.Size()
		rest = after
	}
	if good == 0 {
		return false
	}
	c.follow.busy = true
	c.follow.incoming = found
	c.follow.pendingHW = hw
	c.fetchSucceeded(now)
	// An observer that may become a voter syncs too: it may be one already without knowing, and the leader counts on it.
	c.emit(AppendFetched{Batches: data[:good], Sync: c.isVoter() || c.cfg.CanVote})
	return true
}

// stored follows the append of fetched batches.
func (c *Core) stored(now time.Time, ev Stored) {
	f := &c.follow
	if !f.busy || f.incoming == nil {
		// The role changed meanwhile. That can't be, as an append is done within the step that asked for it.
		panic("raft: Stored without AppendFetched")
	}
	batches := f.incoming
	f.busy, f.incoming = false, nil
	if ev.Failed {
		if p := c.leaderPeer(); p != nil {
			p.backoffUntil = now.Add(c.cfg.RetryBackoff)
		}
		return
	}
	for _, b := range batches {
		c.view.appended(b.base, b.last, b.epoch)
		for _, r := range b.control {
			c.view.control(r.offset, r.msg)
		}
	}
	c.view.synced = c.view.end
	c.followHighWatermark(f.pendingHW)
}

// startDownload begins to fetch a snapshot instead of records.
func (c *Core) startDownload(now time.Time, id OffsetAndEpoch) bool {
	if c.view.hasSnapshot(id) || id.Offset < c.committed {
		c.log.Warn("leader names a snapshot that is no news", "leader", c.leader, "snapshot", id.String(), "high_watermark", c.committed)
		return false
	}
	c.log.Info("downloading a snapshot", "leader", c.leader, "snapshot", id.String())
	c.follow.download = &download{id: id}
	c.emit(OpenDownload{id})
	c.fetchSucceeded(now)
	return true
}

func (c *Core) fetchSnapshotAnswered(now time.Time, p *peer, r *kmsg.FetchSnapshotResponse) bool {
	if r.ErrorCode != 0 {
		return c.unexpected(p, "FetchSnapshot", r.ErrorCode)
	}
	if len(r.Topics) != 1 || r.Topics[0].Topic != TopicName || len(r.Topics[0].Partitions) != 1 {
		return false
	}
	t := &r.Topics[0].Partitions[0]
	var endpoints []Endpoint
	for _, n := range r.NodeEndpoints {
		if n.NodeID == t.CurrentLeader.LeaderID {
			endpoints = []Endpoint{{c.cfg.Listener, n.Host, n.Port}}
		}
	}
	if done, ok := c.common(now, t.ErrorCode, t.CurrentLeader.LeaderID, t.CurrentLeader.LeaderEpoch, endpoints); done {
		return ok
	}
	d := c.follow.download
	if c.role != Follower || d == nil || c.follow.busy {
		return true
	}
	id := OffsetAndEpoch{t.SnapshotID.EndOffset, t.SnapshotID.Epoch}
	switch {
	case t.ErrorCode == codeSnapshotNotFound || id.Offset < 0 || id.Epoch < 0:
		// The leader deleted it meanwhile, since it has a newer one.
		c.log.Info("leader has the snapshot no longer", "leader", c.leader, "snapshot", d.id.String())
		c.dropDownload()
		c.fetchSucceeded(now)
		return true
	case t.ErrorCode != 0:
		c.dropDownload()
		return c.unexpected(p, "FetchSnapshot", t.ErrorCode)
	case id != d.id || t.Position != d.size || d.size+int64(len(t.Bytes)) > t.Size || len(t.Bytes) == 0 && d.size < t.Size:
		c.log.Warn("piece of a snapshot does not fit", "leader", c.leader, "snapshot", id.String(), "want", d.id.String(),
			"position", t.Position, "have", d.size, "size", t.Size)
		c.dropDownload()
		return false
	}
	c.follow.busy = true
	d.total = t.Size
	c.fetchSucceeded(now)
	c.emit(StoreChunk{t.Bytes})
	return true
}

func (c *Core) dropDownload() {
	c.follow.download = nil
	c.emit(DropDownload{})
}

func (c *Core) chunkStored(now time.Time, ev ChunkStored) {
	d := c.follow.download
	if !c.follow.busy || d == nil {
		panic("raft: ChunkStored without StoreChunk")
	}
	d.size = ev.Size
	if d.size < d.total {
		c.follow.busy = false
		return
	}
	c.emit(InstallSnapshot{d.id})
}

func (c *Core) snapshotStored(now time.Time, ev SnapshotStored) {
	if !c.follow.busy || c.follow.download == nil {
		panic("raft: SnapshotStored without InstallSnapshot")
	}
	c.follow.busy, c.follow.download = false, nil
	if ev.Failed {
		if p := c.leaderPeer(); p != nil {
			p.backoffUntil = now.Add(c.cfg.RetryBackoff)
		}
		return
	}
	c.view.reset(ev.ID, ev.KRaftVersion, ev.Voters)
	c.log.Info("snapshot installed", "snapshot", ev.ID.String(), "leader", c.leader)
	c.followHighWatermark(ev.ID.Offset)
}
