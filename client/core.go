package client

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// core is what a consumer decides, as a state machine: it is told the time and what happened, and says what is to be done. It
// has no goroutine, no clock, no network and no randomness of its own. Its managers, one a file, share it:
//
//	coreMetadata     topics and leaders
//	coreCoordinator  where the group's coordinator is
//	member           membership: consumerMember (KIP-848) or classicMember
//	coreCommits      committing offsets
//	coreOffsets      where to begin, and whether a position is still valid
//	coreFetch        fetches and their sessions
type core struct {
	o     *coreOptions
	log   *slog.Logger
	float func() float64 // random, from 0 to 1
	newID func() string  // of a member

	now     time.Time // of the step under way, as are effects and wake
	effects []any
	wake    time.Time

	parts map[TopicPartition]*part
	order []*part // parts, sorted; nil when it is to be made again
	gen   uint64  // of the last part

	meta    coreMetadata
	coord   coreCoordinator
	member  member // nil without a group's subscription
	commits coreCommits
	offsets coreOffsets
	fetch   coreFetch

	topics     []string // subscribed, sorted
	expression *regexp.Regexp

	requests  map[uint64]func(kmsg.Response, error)
	callbacks map[uint64]func(error)
	last      uint64 // id of a request or callback

	polling bool      // the caller is in Poll
	polled  time.Time // when it last was
	onPoll  []func()  // what waits for that
	closing bool
}

// coreOptions are the settings of a consumer with what it takes over from its client.
type coreOptions struct {
	ConsumerOptions
	timeout        time.Duration // of whole calls
	requestTimeout time.Duration
	backoffLow     time.Duration
	backoffHigh    time.Duration
	metadataMaxAge time.Duration
}

// part is a partition being read, as the core sees it.
type part struct {
	tp  TopicPartition
	gen uint64 // tells it from an earlier one of the same name, or before a seek

	paused   bool
	revoking bool // its records are not to be delivered any more
	awaiting bool // the listener hasn't been told yet

	state    positionState
	reset    int64 // where to, if state is positionReset: Earliest, Latest or a time in ms
	offset   int64 // to be fetched next
	epoch    int32 // of the records before offset, -1 unknown
	checked  int32 // the leader epoch that offset is known to be good in
	busy     bool  // a request about its position is under way
	failures int
	retryAt  time.Time

	consumed      int64 // where the caller is, -1 unknown: what may be committed
	consumedEpoch int32
	committed     int64 // -1 unknown

	chunks int  // fetched and not consumed
	more   bool // the partition has records beyond what was fetched
	// replica is the follower to fetch from (KIP-392), -1 for the leader.
	replica      int32
	replicaUntil time.Time
}

type positionState uint8

const (
	positionCommitted positionState = iota // ask for the committed offset
	positionReset                          // ask for an offset
	positionValidate                       // ask whether it is still in the log
	positionReady
	positionFailed // the caller was told; a seek gets it out of there
)

// Events.
type (
	eventSubscribe struct {
		topics     []string
		expression *regexp.Regexp
		pattern    string
	}
	eventAssign struct{ at map[TopicPartition]int64 }
	eventSeek   struct {
		tp     TopicPartition
		offset int64
		epoch  int32
	}
	eventPause struct {
		tps []TopicPartition
		on  bool
	}
	// eventPolled is what the caller did since the last one.
	eventPolled struct {
		polling   bool
		at        time.Time
		positions []consumedPosition
		freed     []freed
	}
	eventCommit struct {
		ticket  *ticket
		offsets []CommittedOffset // nil: what was consumed
		once    bool              // no retries
	}
	eventCommitted struct {
		ticket *ticket
		tps    []TopicPartition
	}
	eventUnsubscribe  struct{ ticket *ticket }
	eventCallbackDone struct {
		id  uint64
		err error
	}
	eventResponse struct {
		id   uint64
		resp kmsg.Response
		err  error
	}
	eventClose struct {
		ticket *ticket
		how    Leave
	}
)

// consumedPosition is how far the caller has come in a partition.
type consumedPosition struct {
	tp     TopicPartition
	gen    uint64
	offset int64
	epoch  int32
}

// freed is fetched data that the caller is through with.
type freed struct {
	tp    TopicPartition
	gen   uint64
	bytes int
}

// ticket is a caller that waits for something.
type ticket struct {
	done    chan struct{}
	err     error
	offsets []CommittedOffset
	notify  func(error) // for Poll to call, besides
}

func newTicket() *ticket { return &ticket{done: make(chan struct{})} }

// Effects.
type (
	effectSend struct {
		id      uint64
		node    int32 // or anyNode
		lane    lane
		timeout time.Duration
		highest int16
		req     kmsg.Request
	}
	// effectParts changes what is assigned: partitions are new or, with another generation, begun again elsewhere.
	effectParts struct {
		added   []assignedPart
		removed []TopicPartition
	}
	effectPosition struct {
		tp     TopicPartition
		gen    uint64
		offset int64
		epoch  int32
	}
	effectData struct {
		gen  uint64
		data *fetched
	}
	// effectPurge drops what is buffered of partitions.
	effectPurge    struct{ tps []TopicPartition }
	effectCallback struct {
		id   uint64
		kind callbackKind
		tps  []TopicPartition
	}
	effectDone struct {
		ticket *ticket
		err    error
	}
	// effectError is for Poll to return: once, or from now on.
	effectError struct {
		err   error
		fatal bool
	}
	// effectHint is a leader that an error named.
	effectHint struct {
		tp            TopicPartition
		leader, epoch int32
		brokers       []Broker
	}
	effectForget struct{} // the coordinator isn't where it was
	effectLag    struct {
		tp  TopicPartition
		gen uint64
		end int64
	}
)

type assignedPart struct {
	tp  TopicPartition
	gen uint64
}

// lane is which of the consumer's connections a request takes.
type lane uint8

const (
	laneShared lane = iota // the client's
	laneGroup
	laneFetch
)

type callbackKind uint8

const (
	callAssigned callbackKind = iota
	callRevoked
	callLost
)

func newCore(o *coreOptions, log *slog.Logger, float func() float64, newID func() string) *core {
	k := &core{
		o: o, log: log, float: float, newID: newID, parts: map[TopicPartition]*part{},
		requests: map[uint64]func(kmsg.Response, error){}, callbacks: map[uint64]func(error){},
	}
	k.meta.init(k)
	k.coord = coreCoordinator{k: k, node: anyNode}
	k.commits.k, k.offsets.k = k, k
	k.fetch.init(k)
	return k
}

// step takes events, lets the time be now, and says what to do and when to be called again if nothing happens (zero: never).
func (k *core) step(now time.Time, events ...any) (effects []any, wake time.Time) {
	k.now, k.effects, k.wake = now, nil, time.Time{}
	for _, e := range events {
		k.handle(e)
	}
	k.meta.tick()
	k.coord.tick()
	if k.member != nil {
		k.member.tick()
	}
	k.commits.tick()
	k.offsets.tick()
	k.fetch.tick()
	// What the managers found out for each other is acted on in the same step.
	k.meta.tick()
	k.coord.tick()
	return k.effects, k.wake
}

func (k *core) handle(e any) {
	switch e := e.(type) {
	case eventResponse:
		f := k.requests[e.id]
		delete(k.requests, e.id)
		if f != nil {
			f(e.resp, e.err)
		}
	case eventPolled:
		k.takePolled(e)
	case eventSubscribe:
		k.subscribe(e)
	case eventAssign:
		k.assignManually(e.at)
	case eventSeek:
		k.seek(e.tp, e.offset, e.epoch)
	case eventPause:
		for _, tp := range e.tps {
			if p := k.parts[tp]; p != nil {
				p.paused = e.on
			}
		}
	case eventCommit:
		k.commits.request(e)
	case eventCommitted:
		k.offsets.committed(e)
	case eventUnsubscribe:
		k.unsubscribe(LeaveDefault, func() { k.emit(effectDone{e.ticket, nil}) })
	case eventCallbackDone:
		f := k.callbacks[e.id]
		delete(k.callbacks, e.id)
		if f != nil {
			f(e.err)
		}
	case eventClose:
		k.close(e)
	}
}

func (k *core) emit(e any) { k.effects = append(k.effects, e) }

// wakeAt makes the core be called at t at the latest.
func (k *core) wakeAt(t time.Time) {
	if !t.IsZero() && (k.wake.IsZero() || t.Before(k.wake)) {
		k.wake = t
	}
}

// due says whether t has come; if not, the core will be called then.
func (k *core) due(t time.Time) bool {
	if k.now.Before(t) {
		k.wakeAt(t)
		return false
	}
	return true
}

// backoff is the pause before a retry (0 is the first).
func (k *core) backoff(attempt int) time.Duration {
	d := min(k.o.backoffLow<<min(attempt, 20), k.o.backoffHigh)
	return time.Duration(float64(d) * (0.8 + 0.4*k.float()))
}

func (k *core) send(s effectSend, f func(kmsg.Response, error)) uint64 {
	k.last++
	s.id = k.last
	if s.timeout == 0 {
		s.timeout = k.o.requestTimeout
	}
	k.requests[s.id] = f
	k.emit(s)
	return s.id
}

// fail has Poll return an error once.
func (k *core) fail(err error) { k.emit(effectError{err: err}) }

// sorted are the partitions in order.
func (k *core) sorted() []*part {
	if k.order == nil {
		for _, p := range k.parts {
			k.order = append(k.order, p)
		}
		slices.SortFunc(k.order, func(a, b *part) int { return compareTP(a.tp, b.tp) })
	}
	return k.order
}

// add begins to read a partition.
func (k *core) add(tp TopicPartition, at int64) *part {
	k.gen++
	p := &part{tp: tp, gen: k.gen, epoch: -1, checked: -1, consumed: -1, consumedEpoch: -1, committed: -1, replica: -1}
	k.parts[tp], k.order = p, nil
	p.startAt(at)
	return p
}

// startAt sets an offset or special offset.
func (p *part) startAt(at int64) {
	switch {
	case at >= 0:
		p.state, p.offset, p.consumed = positionReady, at, at
	case at == Committed:
		p.state = positionCommitted
	default:
		p.state, p.reset = positionReset, at
	}
}

func (k *core) takePolled(e eventPolled) {
	k.polling = e.polling
	if e.at.After(k.polled) {
		k.polled = e.at
	}
	for _, c := range e.positions {
		if p := k.parts[c.tp]; p != nil && p.gen == c.gen {
			p.consumed, p.consumedEpoch = c.offset, c.epoch
		}
	}
	for _, f := range e.freed {
		k.fetch.buffered -= f.bytes
		if p := k.parts[f.tp]; p != nil && p.gen == f.gen {
			p.chunks--
		}
	}
	if k.polling && len(k.onPoll) > 0 {
		waiting := k.onPoll
		k.onPoll = nil
		for _, f := range waiting {
			f()
		}
	}
	if k.polling && k.member != nil {
		k.member.polled()
	}
}

// pollExpired says whether the caller hasn't been in Poll for too long (max.poll.interval.ms).
func (k *core) pollExpired() bool {
	if k.polling || k.closing {
		return false
	}
	return k.due(k.polled.Add(k.o.MaxPollInterval))
}

// subscribe sets what the group's member wants.
func (k *core) subscribe(e eventSubscribe) {
	if k.member == nil {
		k.drop(k.all())
		k.polled = k.now
		if k.o.Protocol == ConsumerProtocol {
			k.member = newConsumerMember(k)
		} else {
			k.member = newClassicMember(k)
		}
	}
	k.expression = e.expression
	k.topics = slices.Compact(slices.Sorted(slices.Values(e.topics)))
	k.meta.all = e.expression != nil
	if e.expression != nil {
		k.topics = nil
		k.meta.matched()
	}
	k.member.subscribed(e.pattern)
}

// topicsMatched takes the topics that the caller's expression fits.
func (k *core) topicsMatched(topics []string) {
	if slices.Equal(topics, k.topics) {
		return
	}
	k.topics = topics
	if k.member != nil {
		k.member.subscribed("")
	}
}

func (k *core) all() []TopicPartition {
	out := make([]TopicPartition, 0, len(k.parts))
	for _, p := range k.sorted() {
		out = append(out, p.tp)
	}
	return out
}

// assignManually reads these partitions and no others. What was read before keeps its place.
func (k *core) assignManually(at map[TopicPartition]int64) {
	var gone []TopicPartition
	for _, tp := range k.all() {
		if _, ok := at[tp]; !ok {
			gone = append(gone, tp)
		}
	}
	k.drop(gone)
	var added []assignedPart
	for tp, o := range at {
		if k.parts[tp] == nil {
			p := k.add(tp, o)
			added = append(added, assignedPart{tp, p.gen})
			defer func() {
				if p.state == positionReady {
					k.positioned(p)
				}
			}()
		}
	}
	slices.SortFunc(added, func(a, b assignedPart) int { return compareTP(a.tp, b.tp) })
	k.emit(effectParts{added: added})
}

// drop forgets partitions.
func (k *core) drop(tps []TopicPartition) {
	if len(tps) == 0 {
		return
	}
	for _, tp := range tps {
		delete(k.parts, tp)
	}
	k.order = nil
	k.emit(effectParts{removed: tps})
}

// positioned tells the caller's side where a partition begins.
func (k *core) positioned(p *part) {
	p.state, p.busy, p.failures = positionReady, false, 0
	k.emit(effectPosition{p.tp, p.gen, p.offset, p.epoch})
}

func (k *core) seek(tp TopicPartition, offset int64, epoch int32) {
	p := k.parts[tp]
	if p == nil {
		return
	}
	k.gen++
	n := &part{
		tp: tp, gen: k.gen, paused: p.paused, revoking: p.revoking, awaiting: p.awaiting, epoch: epoch, checked: -1, consumed: -1,
		consumedEpoch: epoch, committed: p.committed, replica: -1,
	}
	k.parts[tp], k.order = n, nil
	n.startAt(offset)
	k.emit(effectParts{added: []assignedPart{{tp, n.gen}}})
	if n.state == positionReady {
		k.positioned(n)
	}
}

// release gives partitions up. Their records aren't delivered any more from here on; then what was processed is committed, the
// listener is told, and then they are forgotten. Lost ones may be someone else's already, so nothing is committed.
func (k *core) release(tps []TopicPartition, lost bool, then func()) {
	if len(tps) == 0 {
		then()
		return
	}
	gens := map[TopicPartition]uint64{}
	for _, tp := range tps {
		if p := k.parts[tp]; p != nil {
			p.revoking = true
			gens[tp] = p.gen
		}
	}
	k.emit(effectPurge{tps})
	// Meanwhile they may have been taken away by something graver. A seek makes no difference.
	left := func() []TopicPartition {
		return slices.DeleteFunc(slices.Clone(tps), func(tp TopicPartition) bool { p := k.parts[tp]; return p == nil || !p.revoking })
	}
	kind := callRevoked
	if lost {
		kind = callLost
	}
	forget := func(error) {
		k.drop(left())
		then()
	}
	tell := func() {
		k.log.Info("partitions given up", "group", k.o.Group, "partitions", fmt.Sprint(left()), "lost", lost)
		if n := left(); len(n) > 0 && k.listens(kind) {
			k.call(kind, n, forget)
			return
		}
		forget(nil)
	}
	if lost {
		tell()
		return
	}
	commit := func() {
		if k.o.AutoCommit <= 0 {
			tell()
			return
		}
		k.commits.auto(left(), min(k.o.timeout, k.o.MaxPollInterval), func(err error) {
			if err != nil {
				k.log.Warn("offsets can't be committed before partitions are given up", "group", k.o.Group, "err", err)
			}
			tell()
		})
	}
	if (k.o.AutoCommit > 0 || k.listens(kind)) && !k.polling && !k.closing {
		// Only when the caller is back is it known what has been processed.
		k.onPoll = append(k.onPoll, commit)
		return
	}
	commit()
}

func (k *core) listens(kind callbackKind) bool {
	switch kind {
	case callAssigned:
		return k.o.OnAssigned != nil
	case callRevoked:
		return k.o.OnRevoked != nil
	}
	return k.o.OnLost != nil || k.o.OnRevoked != nil
}

// call has the caller's side call the listener.
func (k *core) call(kind callbackKind, tps []TopicPartition, then func(error)) {
	k.last++
	k.callbacks[k.last] = then
	k.emit(effectCallback{k.last, kind, tps})
}

// adopt takes partitions over: the listener is told, and then they are read.
func (k *core) adopt(tps []TopicPartition, then func()) {
	var added []assignedPart
	var parts []*part
	for _, tp := range tps {
		p := k.add(tp, Committed)
		p.awaiting = k.listens(callAssigned)
		parts = append(parts, p)
		added = append(added, assignedPart{tp, p.gen})
	}
	if len(added) > 0 {
		k.log.Info("partitions assigned", "group", k.o.Group, "partitions", fmt.Sprint(tps))
		k.emit(effectParts{added: added})
	}
	if !k.listens(callAssigned) {
		then()
		return
	}
	k.call(callAssigned, tps, func(error) {
		for _, p := range parts {
			if q := k.parts[p.tp]; q != nil {
				q.awaiting = false
			}
		}
		then()
	})
}

func (k *core) unsubscribe(how Leave, then func()) {
	m := k.member
	if m == nil {
		k.drop(k.all())
		then()
		return
	}
	m.leave(how, func() {
		k.member, k.topics, k.expression, k.meta.all = nil, nil, nil, false
		then()
	})
}

func (k *core) close(e eventClose) {
	k.closing = true
	waiting := k.onPoll
	k.onPoll = nil
	for _, f := range waiting {
		f()
	}
	finish := func(err error) {
		// The coordinator takes no more commits from a member that has left.
		k.commits.whenIdle(func() {
			k.unsubscribe(e.how, func() {
				k.fetch.close()
				k.emit(effectDone{e.ticket, err})
			})
		})
	}
	if k.member == nil && k.o.Group != "" && k.o.AutoCommit > 0 {
		k.commits.auto(k.all(), k.o.timeout, finish)
		return
	}
	finish(nil)
}

// retry puts a partition aside for a while after an error about it.
func (k *core) retry(p *part, err error) {
	p.busy = false
	if !Retriable(err) {
		p.state = positionFailed
		k.fail(fmt.Errorf("partition %v: %w", p.tp, err))
		return
	}
	p.retryAt = k.now.Add(k.backoff(p.failures))
	p.failures++
	k.log.Debug("partition is tried again", "partition", p.tp.String(), "err", err)
	if needsRefresh(err) {
		k.meta.refresh()
	}
}

// outOfRange begins a partition anew as auto.offset.reset says.
func (k *core) outOfRange(p *part, err error) {
	p.busy, p.epoch, p.replica = false, -1, -1
	switch k.o.Reset {
	case ResetNone:
		p.state = positionFailed
		k.fail(err)
		return
	case ResetEarliest:
		p.reset = Earliest
	case ResetByDuration:
		p.reset = max(0, k.now.Add(-k.o.ResetDuration).UnixMilli())
	default:
		p.reset = Latest
	}
	k.log.Info("partition is begun anew", "partition", p.tp.String(), "reason", err)
	p.state = positionReset
}

// member is a member of a group.
type member interface {
	// subscribed says that what is wanted has changed; pattern is an expression for the server, or "".
	subscribed(pattern string)
	// polled says that the caller is in Poll.
	polled()
	tick()
	// metadataChanged says that topics may have more partitions, or names be known.
	metadataChanged()
	// leave gives all up and leaves the group.
	leave(how Leave, then func())
	// identity is what commits and queries of offsets carry.
	identity() memberIdentity
	// failedCommit hears of a commit that was refused for good.
	failedCommit(err error)
}

// memberIdentity names a member and its generation (or member epoch).
type memberIdentity struct {
	id         string
	generation int32
	instance   *string
}

func (k *core) identity() memberIdentity {
	if k.member == nil {
		return memberIdentity{generation: -1}
	}
	return k.member.identity()
}

func (k *core) instance() *string {
	if k.o.InstanceID == "" {
		return nil
	}
	return &k.o.InstanceID
}

// respond finds the error of an answer: of the request, or in the answer.
func respondError[R kmsg.Response](resp kmsg.Response, err error, code func(R) error) (R, error) {
	var none R
	if err != nil {
		return none, err
	}
	r, ok := resp.(R)
	if !ok {
		return none, errors.New("answer of another kind")
	}
	return r, code(r)
}
