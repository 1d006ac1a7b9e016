package simtest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/controller"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/raft"
)

// reference knows everything that was ever committed: each batch is given to it when the first node knows.
type reference struct {
	w    *world
	next int64 // offset behind the last committed record

	leaders   map[int32]int32 // epoch to who led it
	votes     map[vote]raft.ReplicaKey
	batches   map[batchID]fact // every batch that was ever in a log
	committed []commit

	loader *metadata.Loader
	images map[int64]*metadata.Image
	// live is a standby that has replayed everything that is committed.
	live *controller.Core
	// core is a standby that has replayed committed[:replayed]. It is made anew when an earlier state is asked for.
	core     *controller.Core
	replayed int
}

type vote struct {
	voter raft.ReplicaKey
	epoch int32
}

// fact is what must be the same of a batch wherever it is.
type fact struct {
	last int64
	crc  uint32
	prev batchID
}

// commit is a committed batch, and the epoch of the node that knew it first.
type commit struct {
	batch
	in      int32
	records []message.Versioned
}

func newReference(w *world) *reference {
	r := &reference{
		w: w, leaders: map[int32]int32{}, votes: map[vote]raft.ReplicaKey{}, batches: map[batchID]fact{}, images: map[int64]*metadata.Image{},
	}
	r.loader = metadata.NewLoader(metadata.LoaderOptions{
		Logger: w.logger(&node{w: w}), HighWatermark: func() int64 { return 0 },
		OnFault: func(err error) { w.fail("what is committed can't be loaded: %v", err) },
	})
	must(r.loader.Install(r))
	return r
}

// Name implements metadata.Publisher.
func (r *reference) Name() string { return "reference" }

// Publish implements metadata.Publisher.
func (r *reference) Publish(d *metadata.Delta, img *metadata.Image, _ metadata.Manifest) {
	r.images[img.Offset] = img
	r.w.checkDelta(d, img)
}

func (r *reference) image() *metadata.Image { return r.loader.Image() }

// sawBatch notes a batch that was written into a log, or found there. Two logs that have the same batch have the same before it.
func (r *reference) sawBatch(n *node, b batch, prev batchID) {
	old, known := r.batches[b.batchID]
	now := fact{b.last, b.crc, prev}
	if known && (old.last != now.last || old.crc != now.crc || old.prev.base >= 0 && prev.base >= 0 && old.prev != prev) {
		r.w.fail("node %d: batch %v differs between logs: %v and %v", n.id, b.batchID, old, now)
	}
	if !known || old.prev.base < 0 {
		r.batches[b.batchID] = now
	}
}

// commit takes a batch that a node says is committed.
func (r *reference) commit(n *node, epoch int32, b batch) {
	w := r.w
	if b.base < r.next {
		i, found := slices.BinarySearchFunc(r.committed, b.base, func(c commit, base int64) int { return int(c.base - base) })
		if !found || r.committed[i].batchID != b.batchID || r.committed[i].crc != b.crc {
			w.fail("node %d: committed batch %v lies where another was committed before", n.id, b.batchID)
		}
		return
	}
	if b.base != r.next {
		w.fail("node %d: batch %v is committed, and nothing at %d", n.id, b.batchID, r.next)
	}
	c := commit{batch: b, in: epoch}
	if !b.data.IsControl() {
		it := b.data.Records(nil)
		for it.Next() {
			v, err := message.ReadMetadataRecord(it.Record().Value)
			must(err)
			c.records = append(c.records, v)
		}
		must(it.Err())
	}
	r.committed = append(r.committed, c)
	r.next = b.last + 1
	if r.live == nil {
		r.live = r.newCore(n.proc)
	}
	r.live.HandleCommit(start, c.base, c.last, c.records)
	w.Note(uint64(b.base), uint64(b.crc))
	for i, v := range c.records {
		w.facts.committed(b.base+int64(i), v.Message)
		if w.data {
			w.ledger.committed(b.base+int64(i), v.Message)
		}
	}
	r.loader.HandleCommit(metadata.Batch{
		BaseOffset: b.base, LastOffset: b.last, Epoch: b.epoch, AppendTime: b.data.MaxTimestamp(), Bytes: len(b.data), Records: c.records,
	})
	aborts := slices.ContainsFunc(c.records, func(v message.Versioned) bool {
		_, ok := v.Message.(*message.AbortTransactionRecord)
		return ok
	})
	if b.base%32 == 0 || aborts {
		r.checkImage(c.records)
	}
}

// checkImage holds the image against what a controller makes of the same records: the two share no code that replays.
func (r *reference) checkImage(last []message.Versioned) {
	img, at := r.image(), r.live.Committed()
	if n := len(last); n > 0 {
		if _, begins := last[n-1].Message.(*message.BeginTransactionRecord); begins {
			at--
		}
	}
	if img.Offset != at {
		return // a transaction is open, and has more than its beginning
	}
	got, want := r.live.Dump(), imageLines(img)
	have := map[string]bool{}
	n := 0
	for line := range strings.Lines(got) {
		line = strings.TrimSuffix(line, "\n")
		have[line] = true
		if kind, _, _ := strings.Cut(line, " "); compared[kind] {
			n++
		}
	}
	for _, line := range want {
		if !have[line] {
			r.w.fail("offset %d: the image says what the controller doesn't: %s\n%s", img.Offset, line, got)
		}
	}
	if n != len(want) {
		r.w.fail("offset %d: the controller says more than the image:\n%s\n\n%s", img.Offset, got, strings.Join(want, "\n"))
	}
}

// compared is which lines of a controller's dump imageLines makes.
var compared = map[string]bool{"feature": true, "partition": true, "config": true, "producer": true, "dir": true}

// imageLines writes an image as a controller's dump has it.
func imageLines(img *metadata.Image) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("feature metadata.version=%d", img.Features.MetadataVersion)
	for name, level := range img.Features.Levels {
		add("feature %s=%d", name, level)
	}
	for id, b := range img.Cluster.Brokers {
		for _, d := range b.LogDirs {
			add("dir %s of %d", d, id)
		}
	}
	for t := range img.Topics.All() {
		for i, p := range t.Partitions() {
			add("partition %s-%d replicas=%v dirs=%v isr=%v removing=%v adding=%v elr=%v last=%v leader=%d le=%d pe=%d rec=%d", t.Name, i,
				p.Replicas, p.Directories, p.ISR, p.Removing, p.Adding, p.ELR, p.LastKnownELR, p.Leader, p.LeaderEpoch, p.PartitionEpoch, p.LeaderRecoveryState)
		}
	}
	for res, values := range img.Configs.All() {
		add("config %d %s %v", res.Type, res.Name, values)
	}
	add("producer ids %d", max(0, img.ProducerIDs.Next))
	return lines
}

// committedIn is how far a log agrees with what was committed up to its node's epoch. A node may lose a record that a leader of a
// later epoch committed: it was not asked, and doesn't count.
func (r *reference) committedIn(t *logTap) int64 {
	epoch := t.p.epoch()
	have := make(map[batchID]bool, len(t.batches))
	end := t.StartOffset()
	for i, b := range t.batches {
		have[b.batchID] = true
		if i == 0 {
			end = b.base
		}
	}
	for _, c := range r.committed {
		if c.base == end && have[c.batchID] && c.in <= epoch {
			end = c.last + 1
		}
	}
	return end
}

// sawRequest sees every vote that is asked for, and with it the candidate's own.
func (w *world) sawRequest(n *node, r kmsg.Request) {
	v, ok := r.(*kmsg.VoteRequest)
	if !ok || v.Topics[0].Partitions[0].PreVote {
		return
	}
	w.ref.voted(n.key, v.Topics[0].Partitions[0].CandidateEpoch, n.key)
}

func (r *reference) voted(voter raft.ReplicaKey, epoch int32, candidate raft.ReplicaKey) {
	k := vote{voter, epoch}
	if old, ok := r.votes[k]; ok && old != candidate {
		r.w.fail("node %s votes for %s and for %s in epoch %d", voter, old, candidate, epoch)
	}
	r.votes[k] = candidate
}

func (p *proc) epoch() int32 {
	if p.m == nil {
		return 0
	}
	return p.m.Core().LeaderAndEpoch().Epoch
}

// check looks at a node after each of its steps.
func (p *proc) check() {
	w, r, c, id := p.w, p.w.ref, p.m.Core(), p.n.id
	e := c.Election()
	if v := e.Voted; v.ID >= 0 {
		r.voted(p.n.key, e.Epoch, w.nodes[v.ID-1].key)
	}
	if c.Role() == raft.Leader {
		if old, ok := r.leaders[e.Epoch]; ok && old != id {
			w.fail("nodes %d and %d both lead epoch %d", old, id, e.Epoch)
		} else if !ok {
			r.leaders[e.Epoch] = id
			w.stats.elections++
			p.n.logf("leads epoch %d", e.Epoch)
			p.checkCompleteness()
		}
	}
	hw := c.HighWatermark()
	if hw < 0 || hw == p.hw {
		return
	}
	if end := p.tap.EndOffset(); hw > end {
		w.fail("node %d: high watermark %d beyond the log's end %d", id, hw, end)
	}
	if hw < p.hw {
		w.fail("node %d: high watermark fell from %d to %d", id, p.hw, hw)
	}
	p.hw = hw
	w.Note(uint64(id), uint64(hw), uint64(w.Now()))
	t := p.tap
	for t.known < len(t.batches) && t.batches[t.known].last < hw {
		r.commit(p.n, e.Epoch, t.batches[t.known])
		t.known++
	}
	p.tell()
}

// checkCompleteness: a new leader has every committed batch, in its log or under its snapshot.
func (p *proc) checkCompleteness() {
	t, r := p.tap, p.w.ref
	// What a later leader has committed meanwhile doesn't count: this one came late, and can commit nothing.
	committed := r.committed
	for n := len(committed); n > 0 && committed[n-1].in >= p.epoch(); n-- {
		committed = committed[:n-1]
	}
	if n := len(committed); n > 0 && t.EndOffset() <= committed[n-1].last {
		p.w.fail("node %d leads epoch %d with a log to %d, committed is everything to %d", p.n.id, p.epoch(), t.EndOffset(), committed[n-1].last+1)
	}
	if len(t.batches) == 0 {
		return
	}
	first := t.batches[0].base
	i, _ := slices.BinarySearchFunc(committed, first, func(c commit, base int64) int { return int(c.base - base) })
	for j, c := range committed[i:] {
		if j >= len(t.batches) || t.batches[j].batchID != c.batchID {
			p.w.fail("node %d leads epoch %d without committed batch %v", p.n.id, p.epoch(), c.batchID)
		}
	}
}

// imageChecker holds a node's image against the reference's.
type imageChecker struct{ p *proc }

// Name implements metadata.Publisher.
func (c *imageChecker) Name() string { return "checker" }

// Publish implements metadata.Publisher. Comparing costs as much as the image is big: it is done for every image that came from
// a snapshot, and for some of the others, the same on all nodes.
func (c *imageChecker) Publish(_ *metadata.Delta, img *metadata.Image, m metadata.Manifest) {
	if img.Offset%8 == 0 || m.Snapshot {
		c.p.checkImage(img)
	}
}

func (p *proc) checkImage(img *metadata.Image) {
	want, ok := p.w.ref.images[img.Offset]
	if !ok {
		if img.Offset >= p.w.ref.next {
			p.w.fail("node %d: image at %d, committed is everything to %d", p.n.id, img.Offset, p.w.ref.next)
		}
		return
	}
	if d := metadata.Diff(img, want); d != "" {
		p.w.fail("node %d: image at %d differs from the log's:\n%s", p.n.id, img.Offset, d)
	}
}

// lookAtCore checks a controller that has just lost its leadership: it must hold what the committed log says.
func (p *proc) lookAtCore() {
	was := p.active
	p.active = p.core.Active()
	switch {
	case !was && p.active:
		p.w.stats.activations++
		p.n.logf("is the active controller in epoch %d", p.core.Epoch())
	case was && !p.active:
		p.w.stats.reverts++
		p.n.logf("is no longer the active controller; %d is stable", p.core.Stable())
		p.checkCore("after it lost leadership")
	}
}

// checkCore holds what a standby controller has against the log up to where it is.
func (p *proc) checkCore(when string) {
	want, ok := p.w.ref.coreAt(p, p.core.Committed())
	if !ok {
		return
	}
	if got := p.core.Dump(); got != want {
		p.w.fail("controller %d at %d, %s, holds not what the log says:\n%s", p.n.id, p.core.Committed(), when, difference(got, want))
	}
}

// newCore makes a standby.
func (r *reference) newCore(p *proc) *controller.Core {
	return controller.NewCore(p.coreOptions(func(format string, args ...any) { r.w.fail("reference "+format, args...) }), p.m)
}

// coreAt is what a controller holds that has replayed everything up to an offset that ends a batch.
func (r *reference) coreAt(p *proc, offset int64) (dump string, ok bool) {
	i, ok := slices.BinarySearchFunc(r.committed, offset, func(c commit, last int64) int { return int(c.last - last) })
	if !ok {
		return "", false
	}
	if r.core == nil || r.replayed > i+1 {
		r.core, r.replayed = r.newCore(p), 0
	}
	for ; r.replayed <= i; r.replayed++ {
		c := r.committed[r.replayed]
		r.core.HandleCommit(start, c.base, c.last, c.records)
	}
	return r.core.Dump(), true
}

// difference shows the lines that two dumps don't share.
func difference(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	var out []string
	for _, l := range as {
		if !slices.Contains(bs, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range bs {
		if !slices.Contains(as, l) {
			out = append(out, "+ "+l)
		}
	}
	return strings.Join(out, "\n")
}

// checkEnd compares everything at the end of a run.
func (w *world) checkEnd() {
	for _, p := range w.procs() {
		p.checkImage(p.loader.Image())
		if p.core != nil && !p.core.Active() {
			p.checkCore("at the end")
		}
	}
	w.ref.checkImage(nil)
	w.client.checkEnd()
}
