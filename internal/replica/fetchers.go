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
	after   AfterFunc
	// oneThread has everything done in after's functions.
	oneThread bool

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
	s := &fetchers{connect: connect, address: address, options: options, timeout: timeout, now: now, logger: logger, after: systemAfterFunc,
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
		l = &fetchLoop{set: s, leader: leader, conn: s.connect(), core: newFetcher(s.options())}
		s.loops[k] = l
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
	if l := s.where[p]; l != nil && !s.closed {
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
	if s.closed {
		return
	}
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
	for _, l := range s.loops {
		l.turnMu.Lock() // a timer's turn may be under way
		if l.timer != nil {
			l.timer.Stop()
		}
		l.turnMu.Unlock()
	}
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

// fetchLoop drives one fetcher. It has no goroutine: whoever brings an answer from the leader appends what came and sends the next
// request, before the connection is read again.
type fetchLoop struct {
	set    *fetchers
	leader int32
	conn   Connections

	mu    sync.Mutex     // guards below; a leaf
	inbox []fetchCommand // holds at most what the metadata names
	due   bool           // a turn comes at once
	// calling is set while a turn calls conn, answer holds what has come meanwhile.
	calling bool
	answer  *fetchReply

	turnMu   sync.Mutex // held for a turn; guards below
	core     *fetcher
	underWay kmsg.Request
	sentTo   string
	hurry    bool  // a partition is new, and the fetch under way doesn't have it
	timer    Timer // of the next turn, when nothing happens before
}

// tell is called with fetchers.mu held.
func (l *fetchLoop) tell(c fetchCommand) {
	l.mu.Lock()
	l.inbox = append(l.inbox, c)
	l.mu.Unlock()
	l.poke()
}

// poke has a turn come beside whatever is being done. It is called with fetchers.mu held, before the fetchers are closed.
func (l *fetchLoop) poke() {
	l.mu.Lock()
	due := l.due
	l.due = true
	l.mu.Unlock()
	if due {
		return
	}
	turn := func() {
		l.mu.Lock()
		l.due = false
		l.mu.Unlock()
		l.turn(func() {})
	}
	if l.set.oneThread {
		l.set.after(0, turn)
		return
	}
	l.set.wg.Go(turn)
}

const (
	// parkedAfter is how long a fetch is under way before it may be taken for one that waits at the leader for records.
	parkedAfter = 5 * time.Millisecond
	// addressRetry is how soon a fetcher looks again for a leader that isn't in service. News of it comes sooner.
	addressRetry = time.Second
)

// turn does first, what has come about, and then what is to be done next.
func (l *fetchLoop) turn(first func()) {
	l.turnMu.Lock()
	defer l.turnMu.Unlock()
	if l.set.ctx.Err() != nil {
		return
	}
	first()
	wait := l.step()
	switch {
	case wait < 0:
		if l.timer != nil {
			l.timer.Stop()
		}
	case l.timer == nil:
		l.timer = l.set.after(wait, func() { l.turn(l.timeUp) })
	default:
		l.timer.Reset(wait)
	}
}

// step sends what is to be sent. It returns how long to wait for something to happen before timeUp is to be called, negative for
// ever.
func (l *fetchLoop) step() (wait time.Duration) {
	for {
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
			r := l.call(func() {
				l.conn.Send(addr, q, fetchFloor(q), l.core.o.maxWait+l.set.timeout, l.reply)
			})
			if r != nil {
				l.answered(*r)
				continue
			}
		case l.hurry:
			return parkedAfter
		}
		return -1
	}
}

// call calls conn, and returns the answer to what is under way if that comes meanwhile.
func (l *fetchLoop) call(f func()) *fetchReply {
	l.mu.Lock()
	l.calling = true
	l.mu.Unlock()
	f()
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.answer
	l.calling, l.answer = false, nil
	return r
}

// reply is called once for each request, from any goroutine, also from within Send and Forget.
func (l *fetchLoop) reply(resp kmsg.Response, err error) {
	r := fetchReply{resp, err}
	turn := func() { l.turn(func() { l.answered(r) }) }
	if l.set.oneThread {
		l.set.after(0, turn)
		return
	}
	l.mu.Lock()
	calling := l.calling
	if calling {
		l.answer = &r
	}
	l.mu.Unlock()
	if !calling {
		turn()
	}
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
		if r := l.call(func() { l.conn.Forget(l.sentTo) }); r != nil {
			l.answered(*r)
		}
	}
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
