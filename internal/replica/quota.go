package replica

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gregor/internal/clock"
)

// Unlimited is the rate of a quota that lets everything through.
const Unlimited int64 = math.MaxInt64

// rateWindow measures a rate over its last samples, as Kafka's SimpleRate does: what came in all of them by the time since the
// oldest began, which counts as one sample's length at least. It is told the time and owns no clock.
type rateWindow struct {
	num     int           // replication.quota.window.num
	size    time.Duration // replication.quota.window.size.seconds
	samples []rateSample  // oldest first
}

type rateSample struct {
	start time.Time
	n     int64
}

// drop forgets the samples that are too old.
func (w *rateWindow) drop(now time.Time) {
	w.samples = slices.DeleteFunc(w.samples, func(s rateSample) bool { return now.Sub(s.start) >= w.keeps() })
}

// keeps is how long a sample counts.
func (w *rateWindow) keeps() time.Duration { return time.Duration(w.num) * w.size }

func (w *rateWindow) record(now time.Time, n int64) {
	w.drop(now)
	last := len(w.samples) - 1
	if last < 0 || now.Sub(w.samples[last].start) >= w.size {
		w.samples = append(w.samples, rateSample{start: now})
		last++
	}
	w.samples[last].n += n
}

// rate is in units a second.
func (w *rateWindow) rate(now time.Time) float64 {
	w.drop(now)
	return rateOf(w.samples, now, w.size)
}

func rateOf(samples []rateSample, now time.Time, least time.Duration) float64 {
	if len(samples) == 0 {
		return 0
	}
	var n int64
	for _, s := range samples {
		n += s.n
	}
	return float64(n) / max(now.Sub(samples[0].start), least).Seconds()
}

// below is when the rate will be at most bound, if nothing comes until then.
func (w *rateWindow) below(now time.Time, bound int64) time.Time {
	w.drop(now)
	at := now
	for s := w.samples; len(s) > 0; s = s[1:] {
		if rateOf(s, at, w.size) <= float64(bound) {
			return at
		}
		var n int64
		for _, x := range s {
			n += x.n
		}
		over := s[0].start.Add(w.keeps())
		if bound > 0 {
			if need := float64(n) / float64(bound); need < w.keeps().Seconds() {
				// A little later, since numbers are rounded.
				when := later(at, s[0].start.Add(time.Duration(need*float64(time.Second)))).Add(time.Millisecond)
				if when.Before(over) {
					return when
				}
			}
		}
		at = later(at, over)
	}
	return at
}

// quota bounds the rate of one kind of replication. What was moved counts afterwards: whoever asks whether the quota is exceeded
// may move as much as it does at a time, and is then told to wait until the rate has come down. It is safe for concurrent use.
type quota struct {
	clock clock.Clock
	bound atomic.Int64 // bytes a second, Unlimited for none

	mu     sync.Mutex // guards window
	window rateWindow
}

func newQuota(c clock.Clock, bound int64, num int, size time.Duration) *quota {
	q := &quota{clock: c, window: rateWindow{num: max(num, 1), size: max(size, time.Millisecond)}}
	q.bound.Store(bound)
	return q
}

// exceeded says whether more has been moved than may be.
func (q *quota) exceeded() bool {
	bound := q.bound.Load()
	if bound == Unlimited {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.window.rate(q.clock.Now()) > float64(bound)
}

// record counts bytes that were moved, also while there is no bound: one that is set later holds for them too, and they are shown.
func (q *quota) record(n int) {
	if n == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.window.record(q.clock.Now(), int64(n))
}

// wait is how long to wait until the quota is no longer exceeded, 0 when it isn't.
func (q *quota) wait() time.Duration {
	bound := q.bound.Load()
	if bound == Unlimited {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now()
	return max(q.window.below(now, bound).Sub(now), 0)
}

// rate is what is moved now, in bytes a second.
func (q *quota) rate() float64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.window.rate(q.clock.Now())
}

// throttledReplicas are the partitions of one topic whose replicas on this broker are throttled.
type throttledReplicas struct {
	all        bool
	partitions map[int32]bool
}

// parseThrottled reads leader.replication.throttled.replicas or follower.replication.throttled.replicas: "*", or pairs of
// partition and broker. What has another form was refused when it was set.
func parseThrottled(list []string, nodeID int32) throttledReplicas {
	var t throttledReplicas
	for _, pair := range list {
		pair = strings.TrimSpace(pair)
		if pair == "*" {
			t.all = true
			continue
		}
		p, b, _ := strings.Cut(pair, ":")
		partition, err := strconv.ParseInt(p, 10, 32)
		broker, err2 := strconv.ParseInt(b, 10, 32)
		if err != nil || err2 != nil || int32(broker) != nodeID {
			continue
		}
		if t.partitions == nil {
			t.partitions = make(map[int32]bool)
		}
		t.partitions[int32(partition)] = true
	}
	return t
}

func (t throttledReplicas) has(partition int32) bool { return t.all || t.partitions[partition] }

// ReplicationRates are what is counted against the quotas now, in bytes a second.
type ReplicationRates struct{ Leader, Follower, LogDirs float64 }

// ReplicationRates tells how fast throttled replicas are served and fetched, and replicas moved between log directories.
func (m *Manager) ReplicationRates() ReplicationRates {
	return ReplicationRates{m.leaderQuota.rate(), m.followerQuota.rate(), m.logDirQuota.rate()}
}

// LeaderThrottled says whether what followers fetch of the partition counts against the leader's quota.
func (p *Partition) LeaderThrottled() bool { return p.leaderThrottled.Load() }

// Served counts bytes of throttled partitions that were sent to a follower.
func (m *Manager) Served(throttled int) { m.leaderQuota.record(throttled) }

// setThrottles notes which quotas hold for the partition.
func (p *Partition) setThrottles(leader, follower throttledReplicas) {
	p.leaderThrottled.Store(leader.has(p.tp.Partition))
	p.followerThrottled.Store(follower.has(p.tp.Partition))
}

// quotaRetry is after how long a quota that is exceeded is looked at again at the latest: it may have been raised.
const quotaRetry = time.Second

// throttle leaves the partitions that are throttled and not caught up out of the next fetch, and out of the session, while the
// follower's quota is exceeded.
func (f *fetcher) throttle(now time.Time) {
	q := f.o.quota
	if q == nil {
		return
	}
	wait := q.wait()
	if wait <= 0 {
		return
	}
	for _, w := range f.parts {
		if w.phase == fetching && !w.caughtUp && !w.backsOff() && w.p.followerThrottled.Load() {
			f.leaveSession(w)
			w.retryAt = now.Add(min(max(wait, time.Millisecond), quotaRetry))
			f.retries = append(f.retries, w)
		}
	}
}

// fetchedBytes notes what an answer brought for a partition, and whether that was all that was committed.
func (f *fetcher) fetchedBytes(w *following, n int, caughtUp bool) {
	w.caughtUp = caughtUp
	if f.o.quota != nil && n > 0 && w.p.followerThrottled.Load() {
		f.o.quota.record(n)
	}
}
