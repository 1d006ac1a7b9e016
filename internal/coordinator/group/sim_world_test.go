package group

import (
	"cmp"
	"container/heap"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"gregor/internal/api"
	"gregor/internal/coordinator"
	"gregor/internal/metadata"
	"gregor/internal/record"
	"gregor/internal/timeline"
)

// simulation is a partition of the offsets topic with two nodes that take turns in leading it, and the members of some groups,
// who live through faults and must come to rest when those end. It runs in a bubble: time is virtual, and after each step
// everything that the step has set off is waited for.
//
// Requests of one member reach the coordinator in order, as those of a connection do. They and their answers get lost, come late and
// come twice. Appends fail, what was appended is committed late, or cut off when the leader changes; loading finds the log compacted;
// clocks of nodes jump; topics come, grow and go; members pause, crash, leave, and change what they read.
type simulation struct {
	seed  uint64
	rand  *rand.Rand
	out   io.Writer // nil for none
	begun time.Time

	events simEvents
	count  int // of events

	cfg    Config
	log    simLog
	nodes  [2]*simNode
	topics world
	made   int // topics so far
	groups []*simGroup
	peers  []simMember
	named  int // peers so far

	mu    sync.Mutex // guards inbox
	inbox []simAnswer
	asked []*simRequest

	ref      *core // what the committed log says
	replayed int64
	acked    map[groupPartition]int64 // offsets that members were told are committed
	removed  map[groupPartition]time.Duration
	stir     bool // who owns what may have changed

	healed bool
	failed error
	stats  simStats
}

// simStats says what the runs have reached.
type simStats struct {
	requests, moves, cuts, failures, timeouts, rebalances, fenced, upgrades, downgrades, commits, refused int
}

func (s *simStats) add(o simStats) {
	s.requests += o.requests
	s.moves += o.moves
	s.cuts += o.cuts
	s.failures += o.failures
	s.timeouts += o.timeouts
	s.rebalances += o.rebalances
	s.fenced += o.fenced
	s.upgrades += o.upgrades
	s.downgrades += o.downgrades
	s.commits += o.commits
	s.refused += o.refused
}

// simGroup is how the members of a group are.
type simGroup struct {
	id string
	// classic, modern: which protocols its members may speak. Cooperative is for the classic ones.
	classic, modern, cooperative bool
	statics                      int
	// counted is for each generation of the classic protocol which topics its first assignment knew.
	counted map[int32]string
}

type simEvent struct {
	at  time.Duration
	seq int
	do  func()
}

type simEvents []simEvent

func (h simEvents) Len() int { return len(h) }
func (h simEvents) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].seq, h[j].seq)) < 0
}
func (h simEvents) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *simEvents) Push(x any)   { *h = append(*h, x.(simEvent)) }
func (h *simEvents) Pop() any {
	e := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return e
}

func (s *simulation) now() time.Duration { return time.Since(s.begun) }

// after runs f later. A fraction of a microsecond of its own keeps events from meeting timers.
func (s *simulation) after(d time.Duration, f func()) {
	s.count++
	heap.Push(&s.events, simEvent{s.now() + d.Truncate(time.Microsecond) + time.Duration(1+s.rand.IntN(999)), s.count, f})
}

func (s *simulation) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(s.rand.Int64N(int64(hi-lo)))
}

func (s *simulation) chance(percent int) bool { return s.rand.IntN(100) < percent }

func (s *simulation) print(format string, args ...any) {
	if s.out != nil {
		fmt.Fprintf(s.out, "%12v "+format+"\n", append([]any{s.now().Truncate(time.Microsecond)}, args...)...)
	}
}

func (s *simulation) fail(format string, args ...any) {
	if s.failed == nil {
		s.failed = fmt.Errorf("at %v: "+format, append([]any{s.now()}, args...)...)
		s.print("FAILED %v", s.failed)
	}
}

// runUntil works off the events until a time.
func (s *simulation) runUntil(end time.Duration) {
	for s.failed == nil && len(s.events) > 0 && s.events[0].at <= end {
		e := heap.Pop(&s.events).(simEvent)
		time.Sleep(e.at - s.now())
		e.do()
		synctest.Wait()
		s.takeAnswers()
		s.follow()
	}
	time.Sleep(max(end-s.now(), 0))
	synctest.Wait()
	s.takeAnswers()
	s.follow()
}

// simRequest is one request on its way, and what its answer is to be given to.
type simRequest struct {
	id       int
	what     string
	sent     time.Duration
	answered bool
	take     func(resp any)
}

type simAnswer struct {
	r    *simRequest
	resp any
}

// ask hands a request to a node. The answer may come on any goroutine.
func (s *simulation) ask(what string, node int, do func(c *Coordinator, reply func(any)), take func(any)) {
	r := &simRequest{id: len(s.asked), what: what, sent: s.now(), take: take}
	s.asked = append(s.asked, r)
	s.stats.requests++
	do(s.nodes[node].c, func(resp any) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inbox = append(s.inbox, simAnswer{r, resp})
	})
}

// takeAnswers gives out what was answered in the step, in an order that doesn't depend on goroutines.
func (s *simulation) takeAnswers() {
	s.mu.Lock()
	inbox := s.inbox
	s.inbox = nil
	s.mu.Unlock()
	slices.SortStableFunc(inbox, func(a, b simAnswer) int { return cmp.Compare(a.r.id, b.r.id) })
	for _, a := range inbox {
		if a.r.answered {
			s.fail("request %d (%s) is answered twice", a.r.id, a.r.what)
			return
		}
		a.r.answered = true
		a.r.take(a.resp)
	}
}

// checkAnswered looks for requests that wait longer than anything may.
func (s *simulation) checkAnswered() {
	const longest = 3 * time.Minute
	for _, r := range s.asked {
		if !r.answered && s.now()-r.sent > longest {
			s.fail("request %d (%s) of %v has no answer", r.id, r.what, r.sent)
			return
		}
	}
}

// simLog is the partition. One node leads it at a time; each sees it through a view of its own.
type simLog struct {
	mu      sync.Mutex // guards the rest
	batches []record.Batch
	hw, end int64
	leader  int
	epoch   int32
	// held keeps the high watermark where it is until release.
	held bool
	// failNext is what the next append gets.
	failNext error
	failures int
}

// simView is a node's replica.
type simView struct {
	l    *simLog
	node *simNode
}

func (v *simView) leads(epoch int32) error {
	if v.l.leader != v.node.id || epoch >= 0 && epoch != v.l.epoch {
		return api.ErrNotLeaderOrFollower
	}
	return nil
}

func (v *simView) Append(_, leaderEpoch int32, batch []byte) (int64, error) {
	l := v.l
	l.mu.Lock()
	if err := v.leads(leaderEpoch); err != nil {
		l.mu.Unlock()
		return 0, err
	}
	if err := l.failNext; err != nil {
		l.failNext = nil
		l.failures++
		l.mu.Unlock()
		return 0, err
	}
	b := record.Batch(slices.Clone(batch))
	b.SetBaseOffset(l.end)
	b.SetPartitionLeaderEpoch(leaderEpoch)
	l.batches = append(l.batches, b)
	l.end = b.NextOffset()
	end, held := l.end, l.held
	if !held {
		l.hw = end
	}
	l.mu.Unlock()
	if !held {
		v.node.c.HighWatermarkUpdated(0, end)
	}
	return end, nil
}

func (v *simView) Read(_ int32, offset int64, buf []byte) ([]byte, error) {
	v.l.mu.Lock()
	defer v.l.mu.Unlock()
	if err := v.leads(-1); err != nil {
		return nil, err
	}
	out := buf[:0]
	for _, b := range v.l.batches {
		if b.LastOffset() < offset {
			continue
		}
		if len(out) > 0 && len(out)+len(b) > cap(buf) {
			break
		}
		out = append(out, b...)
	}
	return out, nil
}

func (v *simView) Offsets(int32) (start, hw, end int64, err error) {
	v.l.mu.Lock()
	defer v.l.mu.Unlock()
	return 0, v.l.hw, v.l.end, v.leads(-1)
}

func (v *simView) MaxBatchBytes(int32) int { return 1 << 20 }

// simNode is a node with its coordinator and its clock.
type simNode struct {
	id   int
	skew atomic.Int64
	c    *Coordinator
}

func (n *simNode) Now() time.Time { return time.Now().Add(time.Duration(n.skew.Load())) }

// simOut is what happens, which coordinators tell from goroutines of their own.
type simOut struct {
	mu sync.Mutex
	to io.Writer
}

func (o *simOut) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.to.Write(b)
}

func newSimulation(seed uint64, out io.Writer) *simulation {
	if out != nil {
		out = &simOut{to: out}
	}
	s := &simulation{
		seed: seed, rand: rand.New(rand.NewPCG(seed, 848)), out: out, begun: time.Now(),
		cfg: DefaultConfig(), topics: world{img: metadata.EmptyImage()}, acked: map[groupPartition]int64{}, removed: map[groupPartition]time.Duration{},
	}
	s.cfg.InitialRebalanceDelay = time.Duration(s.rand.IntN(4)) * time.Second
	s.cfg.Consumer = Settings{SessionTimeout: 10 * time.Second, HeartbeatInterval: 2 * time.Second,
		AssignmentInterval: time.Duration(s.rand.IntN(2)) * time.Second}
	s.cfg.RegexRefreshInterval = time.Minute
	if s.chance(30) {
		s.cfg.Assignors = []string{"range"}
	}
	s.cfg.OffsetsRetentionCheckInterval = 10 * time.Second
	if s.chance(40) {
		s.cfg.OffsetsRetention = 15 * time.Second
	}
	logger := slog.New(slog.DiscardHandler)
	if out != nil {
		logger = slog.New(slog.NewTextHandler(out, nil))
	}
	for i := range s.nodes {
		n := &simNode{id: i}
		n.c = New(Options{
			Log: &simView{&s.log, n}, Clock: n, Logger: logger.With("node", i), Rand: newRand(seed + uint64(i)), Config: s.cfg, Linger: -1,
			LoadBufferBytes: 1 << 16,
		})
		n.c.Start(1)
		s.nodes[i] = n
	}
	s.ref = newCore(&s.cfg, coordinator.Env[Record]{
		Registry: timeline.NewRegistry(), Timers: &coordinator.Timers[Record]{}, Logger: slog.New(slog.DiscardHandler), Later: func(f func()) { f() },
	}, func() string { return "" }, &counters{})
	return s
}

// elect makes a node lead as of the next epoch. What isn't committed may be cut off if it is another one.
func (s *simulation) elect(node int) {
	// What is compacted is gone: the reference must have seen it by then, or it is in states that never were.
	s.follow()
	l := &s.log
	l.mu.Lock()
	old := l.leader
	l.epoch++
	epoch := l.epoch
	l.leader = node
	if old != node {
		s.stats.moves++
		n := len(l.batches)
		for n > 0 && l.batches[n-1].BaseOffset() >= l.hw && s.rand.IntN(2) == 0 {
			n--
			l.end = l.batches[n].BaseOffset()
			s.stats.cuts++
		}
		l.batches = l.batches[:n]
		if s.chance(30) {
			l.compact()
		}
	}
	l.mu.Unlock()
	s.print("node %d leads as of epoch %d, end %d, high watermark %d", node, epoch, l.end, l.hw)
	s.after(s.between(0, 300*time.Millisecond), func() { s.nodes[node].c.Elected(0, epoch) })
	if old != node {
		s.after(s.between(0, time.Second), func() { s.nodes[old].c.Resigned(0, epoch) })
	}
}

// compact leaves the last committed record of each key, tombstones included, and removes some of those.
func (l *simLog) compact() {
	last := map[string]int64{}
	for _, b := range l.batches {
		if b.LastOffset() < l.hw {
			eachRecord(b, func(r record.Record) { last[string(r.Key)] = r.Offset })
		}
	}
	var kept []record.Batch
	for _, b := range l.batches {
		if b.LastOffset() >= l.hw {
			kept = append(kept, b)
			continue
		}
		eachRecord(b, func(r record.Record) {
			if last[string(r.Key)] != r.Offset {
				return
			}
			one := record.NewBuilder(record.BuilderOptions{BaseOffset: r.Offset, LeaderEpoch: b.PartitionLeaderEpoch(),
				ProducerID: record.NoProducerID, ProducerEpoch: record.NoProducerEpoch})
			one.Append(r.Timestamp, r.Key, r.Value, nil)
			built, err := one.Build()
			if err != nil {
				panic(err)
			}
			kept = append(kept, slices.Clone(built))
		})
	}
	l.batches = kept
}

func eachRecord(b record.Batch, f func(record.Record)) {
	it := b.Records(simDecompressor())
	defer it.Close()
	for it.Next() {
		f(it.Record())
	}
	if err := it.Err(); err != nil {
		panic(err)
	}
}

func simDecompressor() *record.Decompressor {
	return record.NewDecompressor(record.DecompressorOptions{})
}

// hold lets what is appended from now on wait for its commit, for a time.
func (s *simulation) hold(d time.Duration) {
	s.log.mu.Lock()
	s.log.held = true
	s.log.mu.Unlock()
	s.after(d, s.release)
}

// release commits what there is.
func (s *simulation) release() {
	l := &s.log
	l.mu.Lock()
	l.held, l.hw = false, l.end
	leader, hw := s.nodes[l.leader], l.hw
	l.mu.Unlock()
	leader.c.HighWatermarkUpdated(0, hw)
}

// setTopics changes topics, which both nodes hear of.
func (s *simulation) setTopics(sizes map[string]int) {
	s.print("topics %v", sizes)
	d := s.topics.set(sizes)
	for _, n := range s.nodes {
		n.c.MetadataUpdated(d, s.topics.img)
		var gone []string
		for _, t := range sortedKeys(sizes) {
			if sizes[t] == 0 {
				gone = append(gone, t)
			}
		}
		if gone != nil {
			n.c.TopicsDeleted(gone)
		}
	}
}

// faults draws what goes wrong next.
func (s *simulation) faults() {
	if s.healed {
		return
	}
	switch s.rand.IntN(12) {
	case 0, 1:
		s.elect(1 - s.log.leader)
	case 2:
		s.elect(s.log.leader)
	case 3, 4, 5:
		s.log.mu.Lock()
		s.log.failNext = []error{api.ErrNotEnoughReplicas, api.ErrNotLeaderOrFollower}[s.rand.IntN(2)]
		s.log.mu.Unlock()
	case 6, 7:
		s.hold(s.between(time.Millisecond, 500*time.Millisecond))
	case 8:
		s.hold(s.between(time.Second, 8*time.Second))
	case 9:
		n := s.nodes[s.rand.IntN(len(s.nodes))]
		n.skew.Store(int64(s.between(-20*time.Second, 20*time.Second)))
	case 10:
		s.topicChange()
	case 11:
		s.administer()
	}
	s.after(s.between(200*time.Millisecond, 6*time.Second), s.faults)
}

// topicChange makes, grows or deletes one. Names don't come back.
func (s *simulation) topicChange() {
	var names []string
	for t := range s.topics.img.Topics.All() {
		names = append(names, t.Name)
	}
	slices.Sort(names)
	switch n := s.rand.IntN(4); {
	case n == 0 && len(names) > 1:
		s.setTopics(map[string]int{names[s.rand.IntN(len(names))]: 0})
	case n == 1 && len(names) > 0:
		name := names[s.rand.IntN(len(names))]
		s.setTopics(map[string]int{name: s.topics.img.Topics.ByName(name).Len() + 1 + s.rand.IntN(3)})
	case len(names) < 6:
		s.newTopic(1 + s.rand.IntN(6))
	}
}

func (s *simulation) newTopic(size int) {
	s.made++
	s.setTopics(map[string]int{fmt.Sprintf("t%d", s.made): size})
}
