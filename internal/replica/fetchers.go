package replica

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/metadata"
)

// Connections are connections to other brokers, one an address. peer.Peers are some.
type Connections interface {
	// Send sends a request, in a version not below floor, and calls done once, from any goroutine.
	Send(addr string, q kmsg.Request, floor int16, timeout time.Duration, done func(kmsg.Response, error))
	// Forget closes the connection to addr; what is under way on it fails.
	Forget(addr string)
	Close()
}

// fetchers are the fetchers of this broker: num.replica.fetchers for each leader. Each has connections of its own: a fetch that
// waits at the other end keeps its connection, and what a connection has brought is valid until the next answer comes on it. Two
// leaders may have one address, for a moment, when nodes change places.
type fetchers struct {
	connect func() Connections
	address func(broker int32) (addr string, ok bool)
	options func() fetcherOptions
	timeout time.Duration // of a request, beyond the time that the leader may wait
	now     func() time.Time
	logger  *slog.Logger
	after   AfterFunc // nil: every fetcher has a goroutine; else all is done in its functions

	mu     sync.Mutex // guards all below
	n      int
	loops  map[loopKey]*fetchLoop
	where  map[*Partition]*fetchLoop
	closed bool
	wg     sync.WaitGroup
	ctx    context.Context
	stop   context.CancelFunc
}

type loopKey struct {
	leader int32
	number int
}

func (k loopKey) compare(o loopKey) int {
	return cmp.Or(cmp.Compare(k.leader, o.leader), cmp.Compare(k.number, o.number))
}

func newFetchers(n int, connect func() Connections, address func(int32) (string, bool), options func() fetcherOptions,
	timeout time.Duration, now func() time.Time, logger *slog.Logger) *fetchers {
	s := &fetchers{connect: connect, address: address, options: options, timeout: timeout, now: now, logger: logger,
		n: max(n, 1), loops: make(map[loopKey]*fetchLoop), where: make(map[*Partition]*fetchLoop)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// follow makes a fetcher of the leader's follow the partition in that leader epoch, and no other fetcher any more. A partition
// without a leader is followed by none.
func (s *fetchers) follow(p *Partition, leader, leaderEpoch int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if leader == metadata.NoLeader {
		s.unfollowLocked(p)
		return
	}
	k := loopKey{leader, int((binary.BigEndian.Uint64(p.topicID[8:]) + uint64(p.tp.Partition)) % uint64(s.n))}
	l := s.loops[k]
	if l == nil {
		l = &fetchLoop{set: s, leader: leader, conn: s.connect(), wake: make(chan struct{}, 1),
			replies: make(chan fetchReply, 1), core: newFetcher(s.options())}
		s.loops[k] = l
		if s.after == nil {
			s.wg.Go(l.run)
		}
	}
	if old := s.where[p]; old != nil && old != l {
		old.tell(fetchCommand{partition: p})
	}
	s.where[p] = l
	l.tell(fetchCommand{partition: p, follow: true, leaderEpoch: leaderEpoch})
}

// unfollow ends following the partition.
func (s *fetchers) unfollow(p *Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unfollowLocked(p)
}

func (s *fetchers) unfollowLocked(p *Partition) {
	if l := s.where[p]; l != nil {
		delete(s.where, p)
		l.tell(fetchCommand{partition: p})
	}
}

// resize changes the number of fetchers for each leader, and says whether it did; partitions must be followed anew then.
func (s *fetchers) resize(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n = max(n, 1); n == s.n {
		return false
	}
	s.n = n
	return true
}

// poke makes all fetchers look at the leaders' addresses again.
func (s *fetchers) poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range slices.SortedFunc(maps.Keys(s.loops), loopKey.compare) {
		s.loops[k].poke()
	}
}

// close ends all fetching and waits for it.
func (s *fetchers) close() {
	s.mu.Lock()
	s.closed = true // there are no more loops from here on
	s.mu.Unlock()
	s.stop()
	for _, l := range s.loops {
		l.conn.Close()
	}
	s.wg.Wait()
}

// fetchCommand tells a fetcher to follow a partition, or no longer.
type fetchCommand struct {
	partition   *Partition
	follow      bool
	leaderEpoch int32
}

type fetchReply struct {
	resp kmsg.Response
	err  error
}

// fetchLoop drives one fetcher: it alone touches the core.
type fetchLoop struct {
	set    *fetchers
	leader int32
	conn   Connections
	core   *fetcher

	mu    sync.Mutex // guards inbox, which holds at most what the metadata names
	inbox []fetchCommand

	underWay kmsg.Request
	sentTo   string
	hurry    bool // a partition is new, and the fetch under way doesn't have it

	wake    chan struct{}
	replies chan fetchReply

	timer Timer // without a goroutine: of the next step
	due   bool  // and whether it comes at once
}

func (l *fetchLoop) tell(c fetchCommand) {
	l.mu.Lock()
	l.inbox = append(l.inbox, c)
	l.mu.Unlock()
	l.poke()
}

func (l *fetchLoop) poke() {
	if l.set.after != nil {
		l.soon()
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

const (
	// parkedAfter is how long a fetch is under way before it may be taken for one that waits at the leader for records.
	parkedAfter = 5 * time.Millisecond
	// addressRetry is how soon a fetcher looks again for a leader that isn't in service. News of it comes sooner.
	addressRetry = time.Second
)

// step sends what is to be sent. It returns how long to wait for something to happen before timeUp is to be called, negative for
// ever.
func (l *fetchLoop) step() (wait time.Duration) {
	if l.applyInbox() && l.underWay != nil {
		l.hurry = true
	}
	switch {
	case l.underWay == nil:
		l.hurry = false
		now := l.set.now()
		q, at := l.core.next(now)
		if q == nil {
			if at.IsZero() {
				return -1
			}
			return max(at.Sub(now), 0)
		}
		addr, ok := l.set.address(l.leader)
		if !ok {
			l.core.answered(now, q, nil, errNoAddress)
			return addressRetry
		}
		if addr != l.sentTo && l.sentTo != "" {
			l.conn.Forget(l.sentTo)
		}
		l.underWay, l.sentTo = q, addr
		l.conn.Send(addr, q, fetchFloor(q), l.core.o.maxWait+l.set.timeout, l.reply)
	case l.hurry:
		return parkedAfter
	}
	return -1
}

// reply is called once for each request, from any goroutine.
func (l *fetchLoop) reply(resp kmsg.Response, err error) {
	if l.set.after != nil {
		l.set.after(0, func() {
			if l.set.ctx.Err() == nil {
				l.answered(fetchReply{resp, err})
				l.turn()
			}
		})
		return
	}
	l.replies <- fetchReply{resp, err}
}

func (l *fetchLoop) answered(r fetchReply) {
	if r.err != nil && !l.hurry {
		l.set.logger.Debug("no answer from a leader", "leader", l.leader, "addr", l.sentTo, "err", r.err)
	}
	if l.hurry && r.err != nil {
		l.core.endSession() // it was given up by this side
	} else {
		l.core.answered(l.set.now(), l.underWay, r.resp, r.err)
	}
	l.underWay = nil
}

func (l *fetchLoop) timeUp() {
	if l.hurry && l.underWay != nil {
		// The fetch waits at the leader for records, up to replica.fetch.wait.max.ms, and acks=all of what
		// is new would wait as long. There is no way but this to take it back.
		l.conn.Forget(l.sentTo)
	}
}

// run is a fetcher's goroutine.
func (l *fetchLoop) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := l.step()
		if !timer.Stop() {
			select {
			case <-timer.C:
			default:
			}
		}
		if wait >= 0 {
			timer.Reset(wait)
		}
		select {
		case <-l.set.ctx.Done():
			return
		case <-l.wake:
		case r := <-l.replies:
			l.answered(r)
		case <-timer.C:
			l.timeUp()
		}
	}
}

// turn is a round of run without a goroutine.
func (l *fetchLoop) turn() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if wait := l.step(); wait >= 0 {
		l.timer = l.set.after(wait, func() {
			if l.set.ctx.Err() == nil {
				l.timeUp()
				l.turn()
			}
		})
	}
}

// soon has a turn come after whatever is being done.
func (l *fetchLoop) soon() {
	if l.due {
		return
	}
	l.due = true
	l.set.after(0, func() {
		l.due = false
		if l.set.ctx.Err() == nil {
			l.turn()
		}
	})
}

var errNoAddress = errors.New("the leader is not in service")

// fetchFloor is the lowest version of a request that says what a fetcher has to say: with the replica's broker epoch, and the
// leader epoch of partitions.
func fetchFloor(q kmsg.Request) int16 {
	if _, ok := q.(*kmsg.FetchRequest); ok {
		return 15
	}
	return 4
}

// applyInbox does what was asked for and says whether there is a partition to begin with, one that isn't followed yet.
func (l *fetchLoop) applyInbox() (more bool) {
	l.mu.Lock()
	inbox := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for _, c := range inbox {
		if c.follow {
			more = l.core.follow(c.partition, c.leaderEpoch) || more
		} else {
			l.core.unfollow(c.partition)
		}
	}
	return more
}
