package controller

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// Log is what a core needs of the metadata log: raft.Node, or a simulated one.
type Log interface {
	// PrepareAppend makes records the next batch of the log, if this node leads in epoch, and returns the offset of the last
	// one. Nothing is written before SchedulePreparedAppend, so that what can't be replayed never gets out.
	PrepareAppend(epoch int32, records []message.Versioned) (lastOffset int64, err error)
	SchedulePreparedAppend()
	// LogEndOffset is the offset after the last record, committed or not.
	LogEndOffset() int64
	// Resign gives leadership up.
	Resign(epoch int32)
	// KRaftVersion is the level of kraft.version in force.
	KRaftVersion() int16
	// UpgradeKRaftVersion raises it, or only checks whether it could be. It returns the offset of what it wrote, or -1.
	UpgradeKRaftVersion(epoch int32, version int16, validateOnly bool) (offset int64, err error)
}

// Result is what a handler decides.
type Result struct {
	// Records change the state; none for a request that only reads.
	Records []message.Versioned
	// Response is sent when the records, and all earlier ones, are stable.
	Response kmsg.Response
	// Atomic records are committed as one batch or not at all.
	Atomic bool

	// appended is called with the offset of the last record that the result rests on, once that is known.
	appended func(lastOffset int64)
}

// Reply receives the response to a request, on the goroutine of the core. err is set, beside a response that says so too,
// when another node should be asked or the request should be sent again: api.ErrNotController, api.ErrRequestTimedOut.
type Reply func(resp kmsg.Response, err error)

const notActive int32 = -1

// Core is the quorum controller as a deterministic state machine.
type Core struct {
	opts    Options
	log     Log
	self    string // the node's id, as a resource name
	tracker *HeartbeatTracker

	// now is the time of the event that is being handled.
	now time.Time

	registry    *timeline.Registry
	cluster     *cluster
	topics      *topics
	configs     *configs
	features    *features
	quotas      *quotas
	acls        *acls
	scram       *scram
	tokens      *tokens
	producerIDs *producerIDs

	// epoch is that in which this node is active, or notActive.
	epoch int32
	// nextOffset is where the next record will be, as far as we know, while active.
	nextOffset int64
	// committed is the last offset known to be committed; stable is the last that can't be taken back by the end of a
	// metadata transaction either.
	committed, stable int64
	// transaction is the offset of the BeginTransactionRecord of the open transaction, or -1.
	transaction int64
	// unsettled is nil unless there is a transaction whose end isn't known to be committed.
	unsettled *unsettled
	// empty is whether the log has no record yet.
	empty *timeline.Value[bool]
	dead  bool

	waiting   []waiter // by rising offset
	tasks     []*task
	suspects  suspects // of the active controller
	lastWrite time.Time
}

// waiter is a response that waits for an offset to become stable.
type waiter struct {
	offset int64
	req    kmsg.Request
	resp   kmsg.Response
	reply  Reply
}

// unsettled is what was replayed since the first transaction began whose end isn't known to be committed. Within a transaction
// there are no offsets to go back to: when leadership is lost, the part that is committed is replayed again.
type unsettled struct {
	begin   int64 // the offset of that transaction's begin
	end     int64 // and that of the last end of one, once there is an end
	records []placedRecord
}

type placedRecord struct {
	message message.Message
	offset  int64
}

// task is something that the active controller does from time to time.
type task struct {
	name string
	due  time.Time
	// next is when to do it again, counted from now.
	next func(now time.Time) time.Time
	// run decides; more says that there is more to do at once.
	run func() (result Result, more bool)
}

// NewCore returns a standby with empty state, which expects the log from its beginning.
func NewCore(opts Options, log Log) *Core {
	opts.setDefaults()
	c := &Core{
		opts: opts, log: log, self: strconv.Itoa(int(opts.NodeID)),
		tracker: newHeartbeatTracker(opts.SessionTimeout), epoch: notActive,
	}
	c.reset()
	return c
}

// reset forgets all state.
func (c *Core) reset() {
	c.registry = timeline.NewRegistry()
	c.features = newFeatures(c)
	c.cluster = newCluster(c)
	c.configs = newConfigs(c)
	c.topics = newTopics(c)
	c.quotas = newQuotas(c)
	c.acls = newACLs(c)
	c.scram = newSCRAM(c)
	c.tokens = newTokens(c)
	c.producerIDs = newProducerIDs(c)
	c.empty = timeline.NewValue(c.registry, true)
	c.committed, c.stable, c.transaction, c.unsettled = -1, -1, -1, nil
}

// Tracker is where heartbeats are noted when they arrive.
func (c *Core) Tracker() *HeartbeatTracker { return c.tracker }

// Active says whether this node is the active controller.
func (c *Core) Active() bool { return c.epoch != notActive }

// Epoch is that in which the node is active, or -1.
func (c *Core) Epoch() int32 { return c.epoch }

// Stable is the last offset that can't be taken back.
func (c *Core) Stable() int64 { return c.stable }

func (c *Core) newID() uuid.UUID {
	for {
		id, err := uuid.New(c.opts.IDs)
		if err != nil {
			panic(fmt.Sprintf("controller: no random bytes: %v", err))
		}
		if _, taken := c.topics.byID.Get(id); !taken {
			if _, taken := c.acls.byID.Get(id); !taken {
				return id
			}
		}
	}
}

// isVoter says whether a node is a controller: by the configured voters, or because it registered.
func (c *Core) isVoter(id int32) bool {
	if id == c.opts.NodeID || slices.Contains(c.opts.StaticVoters, id) {
		return true
	}
	_, ok := c.cluster.controllers.Get(id)
	return ok
}

// Submit handles a request. The reply comes at once or later, exactly once.
func (c *Core) Submit(now time.Time, rc *RequestContext, req kmsg.Request, reply Reply) {
	c.now = now
	if !c.Active() {
		fail(req, errNotController, reply)
		return
	}
	if !rc.Deadline.IsZero() && now.After(rc.Deadline) {
		if hb, ok := req.(*kmsg.BrokerHeartbeatRequest); ok {
			c.heardLate(hb)
		}
		fail(req, errTimedOut, reply)
		return
	}
	result, err := c.handle(rc, req)
	if err != nil {
		reply(ErrorResponse(req, err), nil)
		return
	}
	c.finish(req, result, reply)
}

var (
	errNotController = api.WithMessage(api.ErrNotController, "The active controller appears to be another node.")
	errTimedOut      = api.WithMessage(api.ErrRequestTimedOut, "The request waited too long in the controller's queue.")
)

func fail(req kmsg.Request, err error, reply Reply) { reply(ErrorResponse(req, err), err) }

// heardLate takes a heartbeat that waited too long for what it surely is: a sign of life.
func (c *Core) heardLate(req *kmsg.BrokerHeartbeatRequest) {
	if c.cluster.checkEpoch(req.BrokerID, req.BrokerEpoch) == nil {
		b, _ := c.cluster.brokers.Get(req.BrokerID)
		c.cluster.pulse.touch(b.id, b.fenced, req.CurrentMetadataOffset)
	}
}

// finish writes a result and sees to its reply.
func (c *Core) finish(req kmsg.Request, result Result, reply Reply) {
	last := c.nextOffset - 1
	if len(result.Records) > 0 {
		var err error
		if last, err = c.write(result); err != nil {
			if c.Active() { // a refusal; otherwise leadership was lost and everything waiting has been answered
				reply(ErrorResponse(req, err), nil)
				return
			}
			fail(req, errNotController, reply)
			return
		}
	}
	if result.appended != nil {
		result.appended(last)
	}
	if len(result.Records) == 0 {
		// What it read may not be committed: then it waits with the last that does.
		if len(c.waiting) == 0 {
			reply(result.Response, nil)
			return
		}
		last = c.waiting[len(c.waiting)-1].offset
	}
	c.waiting = append(c.waiting, waiter{last, req, result.Response, reply})
	c.complete()
}

// write replays records and appends them to the log, in as many batches as needed.
func (c *Core) write(result Result) (last int64, err error) {
	records := result.Records
	n := c.fitting(records)
	if result.Atomic && n < len(records) {
		// Refused, and nothing has been replayed. The quorum would refuse it later, and cost us the leadership.
		return 0, errTooLarge
	}
	for len(records) > 0 {
		if last, err = c.appendBatch(records[:n]); err != nil {
			return 0, err
		}
		records = records[n:]
		n = c.fitting(records)
	}
	c.lastWrite = c.now
	return last, nil
}

// recordOverhead is the most that a record takes in a batch beside its value: lengths, deltas, frame and type.
const recordOverhead = 32

// fitting is how many of the records go into one batch, one at least.
func (c *Core) fitting(records []message.Versioned) int {
	size := 0
	for i, r := range records {
		size += recordOverhead + r.Message.Size(r.Version)
		if i > 0 && (i >= c.opts.MaxRecordsPerBatch || size > c.opts.MaxBatchBytes) {
			return i
		}
	}
	return len(records)
}

func (c *Core) appendBatch(records []message.Versioned) (last int64, err error) {
	last, err = c.log.PrepareAppend(c.epoch, records)
	if err != nil {
		c.opts.Logger.Warn("giving up leadership: append failed", "epoch", c.epoch, "offset", c.nextOffset, "err", err)
		c.resign()
		return 0, errNotController
	}
	// Not always nextOffset: the quorum may have written a control record of its own in between (a change of voters).
	base := last - int64(len(records)) + 1
	for i, r := range records {
		if err := c.replay(r.Message, base+int64(i)); err != nil {
			c.die(fmt.Errorf("replay own %s at offset %d: %w", r.Message.MessageName(), base+int64(i), err))
			return 0, errNotController
		}
	}
	c.log.SchedulePreparedAppend()
	c.nextOffset = last + 1
	if c.transaction < 0 {
		c.registry.Snapshot(last)
	}
	return last, nil
}

// HandleCommit takes a batch that is committed; records is nil for a control batch.
func (c *Core) HandleCommit(now time.Time, base, last int64, records []message.Versioned) {
	if c.dead {
		return
	}
	c.now = now
	if !c.Active() {
		for i, r := range records {
			if err := c.replay(r.Message, base+int64(i)); err != nil {
				c.die(fmt.Errorf("replay %s at offset %d: %w", r.Message.MessageName(), base+int64(i), err))
				return
			}
		}
	}
	c.committed = last
	c.advanceStable()
	c.complete()
}

func (c *Core) advanceStable() {
	stable := c.committed
	if u := c.unsettled; u != nil {
		if c.transaction < 0 && u.end <= c.committed {
			c.unsettled = nil
		} else {
			stable = min(stable, u.begin-1)
		}
	}
	if stable <= c.stable {
		return
	}
	c.stable = stable
	if at, ok := c.registry.Floor(stable); ok {
		c.registry.DeleteUpTo(at)
	}
}

// complete sends the replies whose offset is stable.
func (c *Core) complete() {
	n := 0
	for n < len(c.waiting) && c.waiting[n].offset <= c.stable {
		n++
	}
	if n == 0 {
		return
	}
	done := slices.Clone(c.waiting[:n])
	c.waiting = slices.Delete(c.waiting, 0, n)
	for _, w := range done {
		w.reply(w.resp, nil)
	}
}

// LoadSnapshot replaces all state by a snapshot that ends before endOffset.
func (c *Core) LoadSnapshot(now time.Time, endOffset int64, records func(yield func(message.Versioned) bool)) {
	if c.dead || endOffset == 0 {
		return // the snapshot that formatting writes is no state but a wish, which Bootstrap has
	}
	if c.Active() {
		c.die(fmt.Errorf("asked to load a snapshot at offset %d while active in epoch %d", endOffset, c.epoch))
		return
	}
	c.now = now
	c.reset()
	for r := range records {
		if err := c.replay(r.Message, endOffset-1); err != nil {
			c.die(fmt.Errorf("replay %s from snapshot at offset %d: %w", r.Message.MessageName(), endOffset, err))
			return
		}
	}
	c.committed = endOffset - 1
	c.advanceStable()
}

// HandleLeaderChange takes the news of who leads the quorum, -1 if nobody does.
func (c *Core) HandleLeaderChange(now time.Time, leader, epoch int32) {
	if c.dead {
		return
	}
	c.now = now
	mine := leader == c.opts.NodeID
	if c.Active() && (!mine || epoch != c.epoch) {
		// Also when it leads again: others may have led in between.
		c.opts.Logger.Info("no longer the active controller", "epoch", c.epoch, "leader", leader, "leader_epoch", epoch, "offset", c.stable)
		c.renounce()
	}
	if mine && !c.Active() && !c.dead {
		c.claim(epoch)
	}
}

// claim makes this node the active controller.
func (c *Core) claim(epoch int32) {
	c.epoch, c.nextOffset = epoch, c.log.LogEndOffset()
	c.opts.Logger.Info("becoming the active controller", "epoch", epoch, "offset", c.nextOffset)
	if c.transaction < 0 {
		c.registry.Snapshot(c.nextOffset - 1)
	}
	c.cluster.activate()
	result, err := c.activation()
	if err != nil {
		c.die(err)
		return
	}
	c.lastWrite = c.now
	if len(result.Records) > 0 {
		if _, err := c.write(result); err != nil {
			return
		}
	}
	c.tasks = c.makeTasks()
	c.suspects = suspects{c, make(map[brokerIncarnation]*suspicion)}
	for _, b := range c.cluster.brokersByID() {
		if !b.fenced {
			c.suspects.add(brokerIncarnation{b.id, b.epoch})
		}
	}
}

// resign gives leadership up by itself.
func (c *Core) resign() {
	epoch := c.epoch
	c.renounce()
	c.log.Resign(epoch)
}

// renounce makes the node a standby: what isn't stable is taken back, who waits is told to ask elsewhere.
func (c *Core) renounce() {
	c.epoch = notActive
	c.tasks, c.suspects.by = nil, nil
	c.cluster.deactivate()
	if oldest, ok := c.registry.Oldest(); ok {
		c.registry.Revert(oldest)
		c.registry.DeleteUpTo(timeline.Latest)
	}
	u := c.unsettled
	c.transaction, c.unsettled = -1, nil
	if u != nil {
		for _, r := range u.records {
			if r.offset > c.committed {
				break
			}
			if err := c.replay(r.message, r.offset); err != nil {
				c.die(fmt.Errorf("replay %s at offset %d again: %w", r.message.MessageName(), r.offset, err))
				break
			}
		}
	}
	waiting := c.waiting
	c.waiting = nil
	for _, w := range waiting {
		fail(w.req, errNotController, w.reply)
	}
}

// die stops the core for good: what it holds no longer follows from the log.
func (c *Core) die(err error) {
	c.dead = true
	if c.Active() {
		epoch := c.epoch
		c.renounce()
		c.log.Resign(epoch)
	}
	if c.opts.Fatal == nil {
		panic("controller: " + err.Error())
	}
	c.opts.Fatal(err)
}

// replay applies a record. It is the only thing that changes state.
func (c *Core) replay(m message.Message, offset int64) error {
	if _, begins := m.(*message.BeginTransactionRecord); begins && c.unsettled == nil {
		c.unsettled = &unsettled{begin: offset}
	}
	if c.unsettled != nil {
		c.unsettled.records = append(c.unsettled.records, placedRecord{m, offset})
	}
	if _, begins := m.(*message.BeginTransactionRecord); !begins && c.empty.Get() {
		c.empty.Set(false)
	}
	switch r := m.(type) {
	case *message.RegisterBrokerRecord:
		return c.cluster.replayRegister(r, offset)
	case *message.UnregisterBrokerRecord:
		return c.cluster.replayUnregister(r)
	case *message.TopicRecord:
		return c.topics.replayTopic(r)
	case *message.PartitionRecord:
		return c.topics.replayPartition(r)
	case *message.ConfigRecord:
		c.configs.replay(r)
	case *message.PartitionChangeRecord:
		return c.topics.replayChange(r)
	case *message.FenceBrokerRecord:
		return c.cluster.replayFence(r.ID, r.Epoch, true)
	case *message.UnfenceBrokerRecord:
		return c.cluster.replayFence(r.ID, r.Epoch, false)
	case *message.RemoveTopicRecord:
		return c.topics.replayRemove(r)
	case *message.DelegationTokenRecord:
		c.tokens.replay(r)
	case *message.UserScramCredentialRecord:
		c.scram.replay(r)
	case *message.FeatureLevelRecord:
		return c.features.replay(r)
	case *message.ClientQuotaRecord:
		c.quotas.replay(r)
	case *message.ProducerIdsRecord:
		return c.producerIDs.replay(r)
	case *message.BrokerRegistrationChangeRecord:
		return c.cluster.replayChange(r)
	case *message.AccessControlEntryRecord:
		c.acls.replay(r)
	case *message.RemoveAccessControlEntryRecord:
		return c.acls.replayRemove(r)
	case *message.NoOpRecord, *message.ZkMigrationStateRecord:
		// A no-op moves the log. The other is a relic: nothing that can be migrated from exists.
	case *message.RemoveUserScramCredentialRecord:
		return c.scram.replayRemove(r)
	case *message.BeginTransactionRecord:
		if c.transaction >= 0 {
			return fmt.Errorf("transaction begun at offset %d is still open", c.transaction)
		}
		c.registry.Snapshot(offset - 1)
		c.transaction = offset
	case *message.EndTransactionRecord:
		return c.endTransaction(offset, false)
	case *message.AbortTransactionRecord:
		return c.endTransaction(offset, true)
	case *message.RemoveDelegationTokenRecord:
		c.tokens.replayRemove(r)
	case *message.RegisterControllerRecord:
		c.cluster.replayRegisterController(r)
	case *message.ClearElrRecord:
		return c.topics.replayClearELR(r)
	case *message.UnregisterControllerRecord:
		return c.cluster.replayUnregisterController(r)
	default:
		return errors.New("record is of no known type")
	}
	return nil
}

func (c *Core) endTransaction(offset int64, abort bool) error {
	if c.transaction < 0 {
		return errors.New("there is no open transaction")
	}
	if abort {
		at, ok := c.registry.Floor(c.transaction - 1)
		if !ok {
			return fmt.Errorf("no snapshot before the transaction at offset %d", c.transaction)
		}
		c.registry.Revert(at)
	}
	c.transaction, c.unsettled.end = -1, offset
	if !c.Active() {
		c.registry.DeleteUpTo(timeline.Latest) // a standby holds only what is committed
	}
	return nil
}
