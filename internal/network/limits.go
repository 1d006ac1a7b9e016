package network

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// limits counts connections and says who may have another.
type limits struct {
	mu            sync.Mutex // guards everything below
	max, maxPerIP int
	perListener   map[string]int     // bounds; no entry: none
	perIPOverride map[netip.Addr]int // bounds
	rate          float64            // connections a second; 0: no bound

	cond       *sync.Cond // signalled when a connection closes or the server stops
	total      int
	byListener map[string]int
	byIP       map[netip.Addr]int
	next       time.Time // when the rate allows the next connection
}

// Limits are the bounds on connections that may change while a server runs; see Options for what each means.
type Limits struct {
	MaxConnections, MaxConnectionsPerIP int
	MaxConnectionsPerIPOverrides        map[string]int
	MaxConnectionRate                   float64
	// PerListener bounds single listeners; none where there is no entry.
	PerListener map[string]int
}

// SetLimits changes the bounds. Connections that are open stay open; those that wait for a bound are looked at again.
func (s *Server) SetLimits(l Limits) {
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	s.limits.set(l)
	s.limits.cond.Broadcast()
}

func (l *limits) init(o Options) {
	l.byListener = make(map[string]int)
	l.byIP = make(map[netip.Addr]int)
	l.cond = sync.NewCond(&l.mu)
	per := make(map[string]int)
	for _, x := range o.Listeners {
		if x.MaxConnections > 0 {
			per[x.Name] = x.MaxConnections
		}
	}
	l.set(Limits{o.MaxConnections, o.MaxConnectionsPerIP, o.MaxConnectionsPerIPOverrides, o.MaxConnectionRate, per})
}

func (l *limits) set(n Limits) {
	l.max, l.maxPerIP, l.rate = n.MaxConnections, n.MaxConnectionsPerIP, n.MaxConnectionRate
	l.perListener = n.PerListener
	l.perIPOverride = make(map[netip.Addr]int)
	for s, n := range n.MaxConnectionsPerIPOverrides {
		if a, err := netip.ParseAddr(s); err == nil {
			l.perIPOverride[a.Unmap()] = n
		}
	}
}

// awaitSlot waits until the listener may have another connection and counts it. It returns false when stop is closed first;
// whoever closes it closes the listeners' sockets too, and calls wakeAll.
func (l *limits) awaitSlot(listener string, stop <-chan struct{}) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		select {
		case <-stop:
			return false
		default:
		}
		bound, bounded := l.perListener[listener]
		if (l.max <= 0 || l.total < l.max) && (!bounded || l.byListener[listener] < bound) {
			l.total++
			l.byListener[listener]++
			return true
		}
		l.cond.Wait()
	}
}

func (l *limits) freeSlot(listener string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	l.byListener[listener]--
	l.cond.Broadcast()
}

func (l *limits) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cond.Broadcast()
}

// admitIP counts a connection of an address, or says why there may be no more.
func (l *limits) admitIP(a netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	bound, ok := l.perIPOverride[a]
	if !ok {
		bound = l.maxPerIP
		ok = bound != 0
	}
	if n := l.byIP[a]; ok && n >= bound {
		return fmt.Errorf("%s has %d connections, at most %d are allowed", a, n, max(bound, 0))
	}
	l.byIP[a]++
	return nil
}

func (l *limits) freeIP(a netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byIP[a]--; l.byIP[a] <= 0 {
		delete(l.byIP, a)
	}
}

// ratePause counts a connection against the rate and says how long to wait before the next one is accepted. A second's worth
// may come at once.
func (l *limits) ratePause(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate <= 0 {
		return 0
	}
	if earliest := now.Add(-time.Second); l.next.Before(earliest) {
		l.next = earliest
	}
	l.next = l.next.Add(time.Duration(float64(time.Second) / l.rate))
	return l.next.Sub(now)
}
