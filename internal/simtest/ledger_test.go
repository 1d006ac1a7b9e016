package simtest

import (
	"math/bits"
	"slices"
	"sort"
	"strconv"

	"gregor/internal/log"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/record"
	"gregor/internal/replica"
	"gregor/internal/uuid"
)

// ledger knows of every partition what each replica has, what is committed and what clients were told. It looks at a broker after
// each of its steps.
//
// What is committed is what some broker has shown below its high watermark. It must stay, on every member of the ISR and of the
// eligible leader replicas, unless loss is allowed. That is so
//
//   - when a replica is elected that was in neither (an unclean election), and the topic allows it or an administrator has asked
//     for it, or when both are empty and the one who led last is elected (KIP-966): what only others have may be gone
//   - when all who are in the ISR or eligible have lost in a power failure what they had not synced, at once or before one of them
//     was put right by another: a record is acknowledged when it is in the memory of enough brokers, not on disks
//
// A process that is killed loses nothing that it had written; the page cache outlives it. Without eligible leader replicas the last
// member of an ISR stays in it whatever happened to it, and min.insync.replicas=1 leaves one member: these are the usual ways into
// the second case. From then on history begins anew in the leader epoch that follows: what a leader of that epoch or of a later
// one has is the truth.
type ledger struct {
	w     *world
	parts map[assigned]*history
	order []*history
	image *metadata.Image // as of the last committed record
}

// entry is a batch in a log.
type entry struct {
	batchID
	last int64
	crc  uint32
	pid  int64
	seq  int32
	n    int32
}

// written is what must be the same of a batch wherever it is.
type written struct {
	last int64
	crc  uint32
	prev batchID
	ever uint32 // nodes that ever had it
}

// history is what happened to one partition.
type history struct {
	l        *ledger
	id       assigned
	name     string
	copies   map[int32]*logCopy // by node
	batches  map[batchID]*written
	canon    []entry // what is committed
	reset    int32   // the leader epoch in which history began anew, -1 for never
	rebase   bool    // and nobody has led in it yet
	shown    map[int32]int64
	claimed  map[int32]int64 // by leader epoch, what was known in it to be committed
	state    *metadata.Partition
	fewest   int // replicas that it ever had
	minISR   int
	unclean  bool
	deleted  bool
	promised int // acknowledged batches
}

// logCopy is the log of a replica, and what is known of its past.
type logCopy struct {
	log     []entry
	hw      int64 // as seen last in this life
	seqs    map[int64]int32
	unsure  bool // power has failed, and nobody has looked
	killed  bool // the process was killed, and nobody has looked
	torn    bool // in the middle of changing the disk
	tainted bool // has lost records that it had
	back    bool // the broker is back, and this is what it came with
}

func (c *logCopy) end() int64 {
	if n := len(c.log); n > 0 {
		return c.log[n-1].last + 1
	}
	return 0
}

// has says whether the log has a batch.
func (c *logCopy) has(e entry) bool {
	i := sort.Search(len(c.log), func(i int) bool { return c.log[i].base >= e.base })
	return i < len(c.log) && c.log[i].batchID == e.batchID
}

func newLedger(w *world) *ledger {
	return &ledger{w: w, parts: map[assigned]*history{}, image: metadata.EmptyImage()}
}

func (h *history) fail(format string, args ...any) {
	h.l.w.fail("partition %s-%d: "+format, append([]any{h.name, h.id.partition}, args...)...)
}

func (h *history) logf(format string, args ...any) {
	if h.l.w.out != nil {
		h.l.w.logf("partition %s-%d: "+format, append([]any{h.name, h.id.partition}, args...)...)
	}
}

// committed follows the metadata, record by record.
func (l *ledger) committed(offset int64, m message.Message) {
	var at assigned
	switch r := m.(type) {
	case *message.TopicRecord, *message.ConfigRecord, *message.RegisterBrokerRecord, *message.BrokerRegistrationChangeRecord, *message.UnregisterBrokerRecord,
		*message.FeatureLevelRecord:
	case *message.PartitionRecord:
		at = assigned{r.TopicID, r.PartitionID}
	case *message.PartitionChangeRecord:
		at = assigned{r.TopicID, r.PartitionID}
	case *message.RemoveTopicRecord:
		for _, h := range l.order {
			if h.id.topic == r.TopicID {
				h.deleted = true
			}
		}
	default:
		return
	}
	d := metadata.NewDelta(l.image)
	must(d.Replay(m))
	l.image = d.Apply(metadata.Provenance{Offset: offset, BatchAligned: true})
	if at.topic == uuid.Zero {
		return
	}
	t := l.image.Topics.ByID(at.topic)
	now := t.Partition(at.partition)
	h := l.parts[at]
	if h == nil {
		h = &history{l: l, id: at, name: t.Name, copies: map[int32]*logCopy{}, batches: map[batchID]*written{}, reset: -1, shown: map[int32]int64{},
			claimed: map[int32]int64{}, state: now, fewest: len(now.Replicas)}
		l.parts[at] = h
		l.order = append(l.order, h)
		return
	}
	h.changed(now)
}

// configured reads the topic's settings, which don't change.
func (h *history) configured() {
	if h.minISR == 0 {
		c := h.l.image.Configs.Topic(h.name)
		h.minISR = 1
		if v, ok := c["min.insync.replicas"]; ok {
			n, err := strconv.Atoi(v)
			must(err)
			h.minISR = n
		}
		h.unclean = c["unclean.leader.election.enable"] == "true"
	}
}

// changed takes a committed change.
func (h *history) changed(now *metadata.Partition) {
	h.configured()
	was := h.state
	h.state = now
	h.fewest = min(h.fewest, len(now.Replicas))
	h.logf("is %v", now)
	// Who is let into the ISR may be elected at once, when that ends a reassignment.
	added := was.Reassigning() && !now.Reassigning() && now.LeaderRecoveryState == metadata.RecoveryDone
	if now.Leader >= 0 && now.LeaderEpoch != was.LeaderEpoch && !slices.Contains(was.ISR, now.Leader) && !slices.Contains(was.ELR, now.Leader) && !added {
		// Those who were eligible may just have come back after an end that wasn't clean.
		last := len(was.ISR) == 0 && len(now.ELR) == 0 && (len(was.ELR) == 0 || slices.Equal(was.LastKnownELR, []int32{now.Leader}))
		if !h.unclean && !h.l.w.uncleanAsked && !last {
			h.fail("broker %d is elected, of ISR %v and ELR %v: %v", now.Leader, was.ISR, was.ELR, now)
		}
		h.l.w.stats.unclean++
		h.begin(now.LeaderEpoch, "unclean election")
	}
	if h.unclean && was.Reassigning() && !now.Reassigning() && len(now.ISR) == 1 && !slices.Contains(was.ISR, now.ISR[0]) && !slices.Contains(was.ELR, now.ISR[0]) {
		h.begin(now.LeaderEpoch, "a reassignment is taken back uncleanly")
	}
	for _, id := range now.ISR {
		if c := h.copies[id]; c != nil && c.back && !slices.Contains(was.ISR, id) && h.holds(c) {
			c.tainted = false // it was put right, in this life
		}
	}
	h.judge("a change of the metadata")
}

// begin begins history anew.
func (h *history) begin(epoch int32, why string) {
	if epoch <= h.reset {
		return
	}
	h.logf("history begins anew in epoch %d: %s", epoch, why)
	h.reset, h.rebase = epoch, true
	clear(h.shown)
	clear(h.claimed)
	h.l.w.stats.resets++
}

// holds says whether a copy has everything that is committed.
func (h *history) holds(c *logCopy) bool {
	return c != nil && (len(h.canon) == 0 || c.has(h.canon[len(h.canon)-1])) || c == nil && len(h.canon) == 0
}

// members are those who must have everything that is committed.
func (h *history) members() []int32 { return append(slices.Clone(h.state.ISR), h.state.ELR...) }

// judge looks whether everybody who counts has what is committed.
func (h *history) judge(after string) {
	if h.deleted || h.rebase {
		return
	}
	members := h.members()
	lost, lacking := 0, int32(-1)
	for _, id := range members {
		c := h.copies[id]
		switch {
		case c != nil && c.unsure:
			return
		case h.holds(c):
		case c != nil && c.tainted:
			lost++
		default:
			lacking = id
		}
	}
	if lacking >= 0 {
		h.fail("after %s: broker %d counts and lacks what is committed up to %d: %v", after, lacking, h.end(), h.state)
	}
	if len(members) > 0 && lost == len(members) {
		h.begin(h.state.LeaderEpoch+1, "all have lost what was not synced")
	}
}

func (h *history) end() int64 {
	if n := len(h.canon); n > 0 {
		return h.canon[n-1].last + 1
	}
	return 0
}

// spare says whether the cluster can afford that a node loses what it has not synced: everybody's records are safe elsewhere.
func (l *ledger) spare(n *node) bool {
	for _, h := range l.order {
		if h.deleted || h.rebase || len(h.canon) == 0 || !slices.Contains(h.members(), n.id) {
			continue
		}
		ok := false
		for _, id := range h.members() {
			c := h.copies[id]
			ok = ok || id != n.id && c != nil && !c.unsure && !c.tainted && h.holds(c)
		}
		if !ok {
			return false
		}
	}
	return true
}

// crashed notes that a node's process has ended.
func (l *ledger) crashed(n *node, survive float64) {
	for _, h := range l.order {
		if c := h.copies[n.id]; c != nil {
			c.hw, c.back = 0, false
			c.unsure = c.unsure || survive < 1
			c.killed = survive >= 1
		}
	}
}

// torn notes that a process dies in the middle of changing its disks.
func (l *ledger) torn(n *node) {
	for _, h := range l.order {
		if c := h.copies[n.id]; c != nil {
			c.torn = true
		}
	}
}

// wiped notes that a node has lost its disks.
func (l *ledger) wiped(n *node) {
	for _, h := range l.order {
		if c := h.copies[n.id]; c != nil {
			*c = logCopy{seqs: map[int64]int32{}, tainted: true}
		}
	}
}

// opened looks at what a node has after a start.
func (l *ledger) opened(n *node, logs *log.Manager) {
	var list []*log.Log
	for x := range logs.Logs() {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *log.Log) int { return a.TopicPartition().Compare(b.TopicPartition()) })
	found := map[assigned]bool{}
	for _, x := range list {
		at := assigned{x.TopicID(), x.TopicPartition().Partition}
		found[at] = true
		h := l.parts[at]
		if h == nil {
			l.w.fail("node %d: a log of %s with topic id %s that nobody knows", n.id, x.TopicPartition(), x.TopicID())
		}
		c := h.copies[n.id]
		if c == nil {
			c = &logCopy{}
			h.copies[n.id] = c
		}
		was := c.log
		c.log, c.seqs = nil, map[int64]int32{}
		h.scan(n, c, x)
		same := 0
		for same < len(was) && same < len(c.log) && was[same].batchID == c.log[same].batchID {
			same++
		}
		if same < len(was) {
			if !c.unsure && c.killed && !c.torn {
				h.fail("node %d had its log to %d, was only killed, and has it to %d now, the same to batch %d of %d", n.id, was[len(was)-1].last+1, c.end(), same, len(was))
			}
			c.tainted = c.tainted || c.unsure // a truncation under way may have been cut short
		}
		c.unsure, c.killed, c.torn = false, false, false
		start, _, hw, end := x.Offsets()
		c.hw = hw
		if k := len(c.log); k > 0 && h.reset < 0 { // else it may not know yet what is left
			h.claim(n, c, false, c.log[k-1].epoch, 0)
		}
		h.logf("node %d opens its log: %d to %d, high watermark %d; tainted %v", n.id, start, end, hw, c.tainted)
	}
	for _, h := range l.order {
		if c := h.copies[n.id]; c != nil && !found[h.id] && (c.unsure || c.killed) {
			if c.tainted || c.unsure && len(c.log) > 0 {
				*c = logCopy{seqs: map[int64]int32{}, tainted: true}
			} else if !n.offlineDirs(logs) {
				delete(h.copies, n.id)
			}
		}
		if c := h.copies[n.id]; c != nil {
			c.back = true
		}
		h.judge("a start of node " + strconv.Itoa(int(n.id)))
	}
}

func (n *node) offlineDirs(logs *log.Manager) bool {
	return slices.ContainsFunc(logs.Dirs(), func(d log.DirInfo) bool { return d.Offline != nil })
}

// scan reads what a log has beyond what is known.
func (h *history) scan(n *node, c *logCopy, x *log.Log) {
	for at := c.end(); at < x.EndOffset(); at = c.end() {
		f, err := x.Read(at, 1<<20, log.ReadLogEnd, true)
		if err != nil {
			return // the disk fails
		}
		data, err := f.Slice.Bytes(nil)
		f.Slice.Release()
		if err != nil {
			return
		}
		if len(data) == 0 {
			n.logFiles(x.Dir())
			h.fail("node %d: nothing at %d of a log to %d", n.id, at, x.EndOffset())
		}
		for len(data) > 0 {
			b, rest, err := record.Next(data)
			if err != nil {
				h.fail("node %d: at %d: %v", n.id, at, err)
			}
			data = rest
			h.add(n, c, entry{batchID{b.BaseOffset(), b.PartitionLeaderEpoch()}, b.LastOffset(), b.CRC(), b.ProducerID(), b.BaseSequence(), b.Count()})
		}
	}
}

// add takes a batch that a replica has appended.
func (h *history) add(n *node, c *logCopy, e entry) {
	prev := batchID{-1, -1}
	if k := len(c.log); k > 0 {
		prev = c.log[k-1].batchID
		if e.base != c.log[k-1].last+1 {
			h.fail("node %d: a batch at %d follows one that ends at %d", n.id, e.base, c.log[k-1].last)
		}
		if e.epoch < prev.epoch {
			h.fail("node %d: a batch of epoch %d at %d follows one of epoch %d", n.id, e.epoch, e.base, prev.epoch)
		}
	} else if e.base != 0 {
		h.fail("node %d: the log begins at %d", n.id, e.base)
	}
	b := h.batches[e.batchID]
	if b == nil {
		b = &written{last: e.last, crc: e.crc, prev: prev}
		h.batches[e.batchID] = b
	} else if b.last != e.last || b.crc != e.crc || b.prev != prev {
		h.fail("node %d: batch %v behind %v differs from that of others: behind %v", n.id, e.batchID, prev, b.prev)
	}
	b.ever |= 1 << n.id
	if e.pid >= 0 {
		last, known := c.seqs[e.pid]
		if known && e.seq != last+1 {
			h.fail("node %d: at %d producer %d comes with sequence %d after %d", n.id, e.base, e.pid, e.seq, last)
		}
		c.seqs[e.pid] = e.seq + e.n - 1
	}
	c.log = append(c.log, e)
}

// cut takes off what a replica has truncated.
func (h *history) cut(n *node, c *logCopy, end int64) {
	h.logf("node %d truncates from %d to %d", n.id, c.end(), end)
	h.l.w.stats.truncations++
	for k := len(c.log); k > 0 && c.log[k-1].last >= end; k-- {
		c.log = c.log[:k-1]
	}
	if c.end() != end {
		h.fail("node %d: truncated to %d, in the middle of a batch", n.id, end)
	}
	clear(c.seqs)
	for _, e := range c.log {
		if e.pid >= 0 {
			c.seqs[e.pid] = e.seq + e.n - 1
		}
	}
}

// check looks at what a step of a broker has done.
func (s *server) check() {
	if s.m == nil {
		return
	}
	l, n := s.w.ledger, s.p.n
	if parts := s.m.All(); !slices.Equal(parts, s.parts) {
		s.parts = parts
		for _, h := range l.order {
			if h.copies[n.id] == nil {
				continue
			}
			if x := s.logs.Log(log.TopicPartition{Topic: h.name, Partition: h.id.partition}); x == nil || x.TopicID() != h.id.topic {
				if !n.offlineDirs(s.logs) && !(h.copies[n.id].tainted && slices.Contains(h.state.Replicas, n.id)) {
					delete(h.copies, n.id)
				}
			}
		}
	}
	for _, p := range s.parts {
		x := p.Log()
		start, _, hw, end := x.Offsets()
		h := l.parts[assigned{p.TopicID(), p.TopicPartition().Partition}]
		c := h.copies[n.id]
		if c == nil {
			c = &logCopy{seqs: map[int64]int32{}}
			h.copies[n.id] = c
		}
		// A new leader says what is left even when nothing moves, since nobody may ever write again, once that is all it has.
		if end == c.end() && hw == c.hw && !(h.rebase && hw == end && p.IsLeader()) {
			continue
		}
		if start != 0 {
			h.fail("node %d: the log begins at %d", n.id, start)
		}
		cut := end < c.end()
		if cut {
			h.cut(n, c, end)
		}
		h.scan(n, c, x)
		if hw > end {
			h.fail("node %d: high watermark %d beyond the log's end %d", n.id, hw, end)
		}
		if hw < c.hw && !cut {
			h.fail("node %d: the high watermark goes from %d back to %d", n.id, c.hw, hw)
		}
		was := min(c.hw, hw)
		c.hw = hw
		_, epoch := p.Leader()
		h.claim(n, c, p.IsLeader(), epoch, was)
	}
}

// claim takes what a broker holds for committed, from its last high watermark to the present one.
func (h *history) claim(n *node, c *logCopy, leads bool, epoch int32, from int64) {
	h.configured()
	if h.deleted || epoch < h.reset || epoch < 0 {
		return
	}
	if h.rebase {
		if !leads {
			return
		}
		h.rebase, c.tainted, from = false, false, 0
		h.canon = nil
		for _, e := range c.log {
			if e.last < c.hw {
				h.canon = append(h.canon, e)
			}
		}
		h.logf("node %d says that what is committed ends at %d", n.id, h.end())
	}
	if h.reset >= 0 {
		if k := sort.Search(len(c.log), func(i int) bool { return c.log[i].last >= c.hw }); !leads && k > 0 && c.log[k-1].epoch < h.reset {
			return // it may not know yet what is left: it learns of several elections at once, and may have led before the last of them
		}
		from = min(from, h.end()) // it may have known of more before
	}
	i := sort.Search(len(c.log), func(i int) bool { return c.log[i].last >= from })
	grown := false
	for ; i < len(c.log) && c.log[i].base < c.hw; i++ {
		e := c.log[i]
		if e.last >= c.hw {
			if h.reset >= 0 {
				break // a checkpoint of the history before
			}
			h.fail("node %d: high watermark %d lies within batch %v", n.id, c.hw, e.batchID)
		}
		switch end := h.end(); {
		case e.base > end:
			h.fail("node %d: batch %v is committed, and nothing from %d on", n.id, e.batchID, end)
		case e.base == end:
			h.canon = append(h.canon, e)
			grown = true
			if have, want := bits.OnesCount32(h.batches[e.batchID].ever), min(h.minISR, h.fewest); have < want {
				h.fail("node %d: batch %v is committed in epoch %d and only on %d replicas, want %d", n.id, e.batchID, epoch, have, want)
			}
		default:
			k := sort.Search(len(h.canon), func(k int) bool { return h.canon[k].base >= e.base })
			if k == len(h.canon) || h.canon[k] != e {
				h.fail("node %d, in epoch %d: batch %v lies below its high watermark %d, where another is committed", n.id, epoch, e.batchID, c.hw)
			}
		}
	}
	h.claimed[epoch] = max(h.claimed[epoch], c.hw)
	if grown {
		h.l.w.Note(uint64(n.id), uint64(h.end()), uint64(h.l.w.Now()))
		h.judge("high watermark " + strconv.FormatInt(c.hw, 10) + " on node " + strconv.Itoa(int(n.id)))
	}
}

// acknowledged takes what a producer is told.
func (l *ledger) acknowledged(s *server, p *replica.Partition, batch record.Batch, info log.AppendInfo, acks int16) {
	h := l.parts[assigned{p.TopicID(), p.TopicPartition().Partition}]
	_, epoch := p.Leader()
	l.w.stats.acked++
	if acks != -1 || h.deleted || h.rebase || epoch < h.reset {
		return
	}
	h.promised++
	k := sort.Search(len(h.canon), func(k int) bool { return h.canon[k].base >= info.FirstOffset })
	if k == len(h.canon) || h.canon[k].base != info.FirstOffset || h.canon[k].crc != batch.CRC() {
		h.fail("node %d acknowledges a batch at %d in epoch %d that is not committed there; producer %d, sequence %d, duplicate %v", s.p.n.id, info.FirstOffset, epoch,
			batch.ProducerID(), batch.BaseSequence(), info.Duplicate)
	}
}

// consumed takes what a consumer is told.
func (l *ledger) consumed(s *server, p *replica.Partition, offset int64, r replica.FetchResult, data []byte) {
	if p == nil || r.Err != nil {
		return
	}
	h := l.parts[assigned{p.TopicID(), p.TopicPartition().Partition}]
	_, epoch := p.Leader()
	if h.deleted || h.rebase || epoch < h.reset {
		return
	}
	n := s.p.n.id
	if p.IsLeader() {
		if r.HighWatermark < h.shown[epoch] {
			h.fail("node %d, leader in epoch %d, shows high watermark %d after %d", n, epoch, r.HighWatermark, h.shown[epoch])
		}
		h.shown[epoch] = r.HighWatermark
	}
	for len(data) > 0 {
		b, rest, err := record.Next(data)
		if err != nil {
			break // cut off by the limits
		}
		data = rest
		if b.LastOffset() >= r.HighWatermark {
			h.fail("node %d gives a consumer a batch to %d, and its high watermark is %d", n, b.LastOffset(), r.HighWatermark)
		}
		l.w.stats.consumed++
		if b.PartitionLeaderEpoch() < h.reset && !p.IsLeader() {
			continue // it may not know yet what is left
		}
		k := sort.Search(len(h.canon), func(k int) bool { return h.canon[k].base >= b.BaseOffset() })
		if k == len(h.canon) || h.canon[k].batchID != (batchID{b.BaseOffset(), b.PartitionLeaderEpoch()}) || h.canon[k].crc != b.CRC() {
			h.fail("node %d gives a consumer a batch at %d of epoch %d, where another is committed", n, b.BaseOffset(), b.PartitionLeaderEpoch())
		}
	}
}

// listed takes the latest offset that a consumer was told.
func (l *ledger) listed(s *server, p *replica.Partition, offset int64) {
	h := l.parts[assigned{p.TopicID(), p.TopicPartition().Partition}]
	_, epoch := p.Leader()
	if h.deleted || h.rebase || epoch < h.reset {
		return
	}
	for e, end := range h.claimed {
		if e < epoch && offset < end {
			h.fail("node %d, leader in epoch %d, says that the log ends at %d; in epoch %d it ended at %d", s.p.n.id, epoch, offset, e, end)
		}
	}
}

// whole says what is not as it must be when there have been no faults for a while.
func (l *ledger) whole() (string, bool) {
	for _, h := range l.order {
		if h.deleted {
			continue
		}
		st := h.state
		if st.Leader < 0 || len(st.ISR) != len(st.Replicas) || st.Reassigning() {
			return "partition " + h.name + ": " + st.String(), false
		}
		for _, id := range st.Replicas {
			c := h.copies[id]
			if c == nil {
				return "partition " + h.name + ": a replica is not there", false
			}
			if len(c.log) != len(h.canon) || c.end() != c.hw || !h.holds(c) {
				return "partition " + h.name + "-" + strconv.Itoa(int(h.id.partition)) + ": node " + strconv.Itoa(int(id)) + " has its log to " + strconv.FormatInt(c.end(), 10) +
					" and high watermark " + strconv.FormatInt(c.hw, 10) + ", committed is " + strconv.FormatInt(h.end(), 10) + ": " + st.String(), false
			}
		}
	}
	return "", true
}

// checkEnd compares all logs with what is committed, batch by batch.
func (l *ledger) checkEnd() {
	for _, h := range l.order {
		if h.deleted {
			continue
		}
		for id, c := range h.copies {
			if slices.Contains(h.state.Replicas, id) && !slices.Equal(c.log, h.canon) {
				h.fail("node %d has another log than what is committed", id)
			}
		}
	}
}
