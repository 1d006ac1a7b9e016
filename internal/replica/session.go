package replica

import (
	"cmp"
	"math/rand/v2"
	"sync"
	"time"

	"gregor/internal/api"
	"gregor/internal/uuid"
)

// Session ids and epochs with a meaning of their own (KIP-227).
const (
	// NoSession is the session id of a fetch that has none.
	NoSession int32 = 0
	// InitialSessionEpoch asks for a full fetch and a new session.
	InitialSessionEpoch int32 = 0
	// FinalSessionEpoch closes the session, if there is one, and asks for a full fetch without a new one.
	FinalSessionEpoch int32 = -1
)

// FetchKey names a partition in a fetch. From version 13 on clients name it by topic id, and Topic is what the metadata
// said when it was resolved ("" while unknown); before, by name, and TopicID is zero.
type FetchKey struct {
	TopicID   uuid.UUID
	Topic     string
	Partition int32
}

// identity is what two requests must share to mean the same partition: the name does not count beside an id.
func (k FetchKey) identity() FetchKey {
	if k.TopicID != uuid.Zero {
		k.Topic = ""
	}
	return k
}

// FetchSpec is what a fetch wants of one partition.
type FetchSpec struct {
	FetchOffset int64
	// LogStartOffset is the follower's own log start; -1 for consumers.
	LogStartOffset int64
	// LeaderEpoch is the leader epoch that the client knows, -1 for none.
	LeaderEpoch int32
	// LastFetchedEpoch is the epoch of the follower's last record, -1 for none (KIP-595).
	LastFetchedEpoch int32
	MaxBytes         int32
}

// FetchPartition is one partition of a fetch on its way: what is wanted, and after reading what was found.
type FetchPartition struct {
	Key  FetchKey
	Spec FetchSpec
	// Partition is the replica that serves it; nil before it is resolved.
	Partition *Partition
	Result    FetchResult

	cached *cachedPartition
	toldHW int64 // the high watermark that the session's client was last told, -1 for none
}

// cachedPartition is a partition's place in a session: the request's parameters and what the client was last told.
type cachedPartition struct {
	key        FetchKey
	spec       FetchSpec
	partition  *Partition
	hw         int64
	logStart   int64
	prev, next *cachedPartition
}

// session is one fetch session. Its partitions form a ring in the order in which they are served: a partition that gave
// records goes to the end, so that each gets its turn under fetch.max.bytes.
type session struct {
	id           int32
	privileged   bool
	usesTopicIDs bool
	created      time.Time

	mu    sync.Mutex // guards all below
	epoch int32
	parts map[FetchKey]*cachedPartition
	ring  cachedPartition // sentinel
	// lastUsed and cachedSize are guarded by the cache's mutex.
	lastUsed   time.Time
	cachedSize int
}

func newSession(id int32, privileged, usesTopicIDs bool, now time.Time) *session {
	s := &session{id: id, privileged: privileged, usesTopicIDs: usesTopicIDs, created: now, lastUsed: now,
		epoch: nextSessionEpoch(InitialSessionEpoch), parts: make(map[FetchKey]*cachedPartition)}
	s.ring.prev, s.ring.next = &s.ring, &s.ring
	return s
}

func (s *session) pushBack(c *cachedPartition) {
	c.prev, c.next = s.ring.prev, &s.ring
	c.prev.next, s.ring.prev = c, c
}

func (c *cachedPartition) unlink() {
	c.prev.next, c.next.prev = c.next, c.prev
	c.prev, c.next = nil, nil
}

func (s *session) upsert(key FetchKey, spec FetchSpec) {
	if c, ok := s.parts[key.identity()]; ok {
		if s.privileged && c.spec.LeaderEpoch != spec.LeaderEpoch {
			// The follower has begun anew, and may have let go of the last answer with the epoch before: it is told all again.
			c.hw, c.logStart = -1, -1
		}
		c.spec = spec
		return
	}
	c := &cachedPartition{key: key, spec: spec, hw: -1, logStart: -1}
	s.parts[key.identity()] = c
	s.pushBack(c)
}

func (s *session) forget(key FetchKey) {
	if c, ok := s.parts[key.identity()]; ok {
		c.unlink()
		delete(s.parts, key.identity())
	}
}

// nextSessionEpoch is the epoch that follows; it wraps from the largest to 1, since 0 asks for a full fetch.
func nextSessionEpoch(e int32) int32 {
	switch {
	case e < 0:
		return FinalSessionEpoch
	case e == 1<<31-1:
		return 1
	default:
		return e + 1
	}
}

// FetchSessions is the cache of fetch sessions (KIP-227). It is safe for concurrent use.
//
// Replacement follows Kafka's rules: a session unused for longer than the eviction time goes first; else a session gives way
// to a larger one, followers' ("privileged") before consumers'. A session younger than the eviction time is safe from all but
// privileged ones.
type FetchSessions struct {
	maxSlots int
	evictAge time.Duration

	mu         sync.Mutex // guards all below and each session's lastUsed and cachedSize
	rnd        *rand.Rand
	sessions   map[int32]*session
	partitions int
	evictions  uint64
}

// NewFetchSessions makes a cache of at most maxSlots sessions ("max.incremental.fetch.session.cache.slots"); evictAge is
// Kafka's two minutes, after which an unused session may be evicted.
func NewFetchSessions(maxSlots int, evictAge time.Duration, rnd *rand.Rand) *FetchSessions {
	return &FetchSessions{maxSlots: maxSlots, evictAge: evictAge, rnd: rnd, sessions: make(map[int32]*session)}
}

// Stats tells the sessions and partitions in the cache and how many sessions were evicted so far.
func (c *FetchSessions) Stats() (sessions, partitions int, evictions uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sessions), c.partitions, c.evictions
}

// FetchContext is one fetch in relation to its session: it says which partitions to read and which results to send.
// It is used by one request alone.
type FetchContext struct {
	cache *FetchSessions
	kind  contextKind
	err   *api.Error
	// session is set for an incremental fetch.
	session      *session
	sessionID    int32
	epoch        int32
	privileged   bool
	usesTopicIDs bool
}

type contextKind uint8

const (
	sessionless contextKind = iota
	full
	incremental
	failed
)

// FetchSessionRequest is the session part of a fetch request.
type FetchSessionRequest struct {
	SessionID, Epoch int32
	// Privileged is set for fetches by followers.
	Privileged bool
	// UsesTopicIDs is set from version 13 on; a session keeps to what it was made with.
	UsesTopicIDs bool
	Forgotten    []FetchKey
}

// Begin puts a request in relation to its session. wanted are the request's own partitions; the result is appended to dst
// and is what the fetch must serve, in order. When the context's Err is not nil, nothing is to be read and the whole fetch is
// answered with it.
func (c *FetchSessions) Begin(now time.Time, req FetchSessionRequest, wanted []FetchPartition,
	dst []FetchPartition) (FetchContext, []FetchPartition) {
	ctx := FetchContext{cache: c, sessionID: req.SessionID, epoch: req.Epoch, privileged: req.Privileged,
		usesTopicIDs: req.UsesTopicIDs}
	if req.Epoch == InitialSessionEpoch || req.Epoch == FinalSessionEpoch {
		if req.SessionID != NoSession {
			c.remove(req.SessionID)
		}
		ctx.kind = full
		if req.Epoch == FinalSessionEpoch {
			ctx.kind = sessionless
		}
		for _, w := range wanted {
			w.toldHW = -1
			dst = append(dst, w)
		}
		return ctx, dst
	}
	c.mu.Lock()
	s := c.sessions[req.SessionID]
	c.mu.Unlock()
	if s == nil {
		return ctx.fail(api.ErrFetchSessionIDNotFound), dst
	}
	s.mu.Lock()
	if s.epoch != req.Epoch {
		s.mu.Unlock()
		return ctx.fail(api.ErrInvalidFetchSessionEpoch), dst
	}
	if s.usesTopicIDs != req.UsesTopicIDs {
		s.mu.Unlock()
		return ctx.fail(api.ErrFetchSessionTopicIDError), dst
	}
	for i := range wanted {
		s.upsert(wanted[i].Key, wanted[i].Spec)
	}
	for _, k := range req.Forgotten {
		s.forget(k)
	}
	if len(s.parts) == 0 {
		// Kafka closes a session that has become empty and answers without one.
		s.mu.Unlock()
		c.remove(s.id)
		ctx.kind = sessionless
		return ctx, dst
	}
	s.epoch = nextSessionEpoch(s.epoch)
	ctx.kind, ctx.session = incremental, s
	for p := s.ring.next; p != &s.ring; p = p.next {
		dst = append(dst, FetchPartition{Key: p.key, Spec: p.spec, Partition: p.partition, cached: p, toldHW: p.hw})
	}
	size := len(s.parts)
	s.mu.Unlock()
	c.touch(s, size, now)
	return ctx, dst
}

func (x FetchContext) fail(err *api.Error) FetchContext {
	x.kind, x.err = failed, err
	return x
}

// Err is the error that answers the whole fetch, or nil.
func (x *FetchContext) Err() *api.Error { return x.err }

// Finish settles the fetch: it marks which of the results go into the response (Result.Send) and returns the response's
// session id, or the error that answers the whole fetch after all.
func (x *FetchContext) Finish(now time.Time, parts []FetchPartition) (sessionID int32, err *api.Error) {
	switch x.kind {
	case failed:
		return NoSession, x.err
	case incremental:
		return x.finishIncremental(parts)
	}
	for i := range parts {
		parts[i].Result.Send = true
	}
	if x.kind == sessionless {
		return NoSession, nil
	}
	return x.cache.create(now, x.privileged, x.usesTopicIDs, parts), nil
}

func (x *FetchContext) finishIncremental(parts []FetchPartition) (int32, *api.Error) {
	s := x.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != nextSessionEpoch(x.epoch) {
		// The client gave up on this request and sent it anew; this answer is of no use to it.
		return s.id, api.ErrInvalidFetchSessionEpoch
	}
	for i := range parts {
		p := &parts[i]
		c := p.cached
		p.Result.Send = c.told(&p.Result)
		c.partition = p.Partition
		if c.key.Topic == "" {
			c.key.Topic = p.Key.Topic
		}
		if p.Result.Send && p.Result.Size() > 0 && c.next != nil {
			c.unlink()
			s.pushBack(c)
		}
	}
	return s.id, nil
}

// told notes what the client is about to be told and says whether there is anything to tell.
func (c *cachedPartition) told(r *FetchResult) bool {
	send := r.Size() > 0 || c.hw != r.HighWatermark || c.logStart != r.LogStartOffset || r.PreferredReadReplica >= 0 ||
		r.Err != nil || r.Diverging != nil
	c.hw, c.logStart = r.HighWatermark, r.LogStartOffset
	if r.Err != nil {
		c.hw = -1
	}
	return send
}

func (c *FetchSessions) touch(s *session, size int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[s.id] != s {
		return
	}
	s.lastUsed = now
	c.partitions += size - s.cachedSize
	s.cachedSize = size
}

func (c *FetchSessions) remove(id int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(c.sessions[id])
}

func (c *FetchSessions) removeLocked(s *session) {
	if s == nil {
		return
	}
	delete(c.sessions, s.id)
	c.partitions -= s.cachedSize
}

// create makes a session that holds parts, or returns NoSession when the cache is full of better ones.
func (c *FetchSessions) create(now time.Time, privileged, usesTopicIDs bool, parts []FetchPartition) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sessions) >= c.maxSlots && !c.evictLocked(now, privileged, len(parts)) {
		return NoSession
	}
	var id int32
	for id == NoSession || c.sessions[id] != nil {
		id = c.rnd.Int32N(1<<31-2) + 1
	}
	s := newSession(id, privileged, usesTopicIDs, now)
	for i := range parts {
		s.upsert(parts[i].Key, parts[i].Spec)
		p := s.parts[parts[i].Key.identity()]
		p.partition = parts[i].Partition
		p.hw, p.logStart = parts[i].Result.HighWatermark, parts[i].Result.LogStartOffset
	}
	s.cachedSize = len(s.parts)
	c.sessions[id] = s
	c.partitions += s.cachedSize
	return id
}

// evictLocked makes room for a session of size partitions, if a session there is must give way to it. It looks at all
// sessions: that happens only when the cache is full, and a full fetch costs more than a thousand comparisons.
func (c *FetchSessions) evictLocked(now time.Time, privileged bool, size int) bool {
	var oldest, weakest *session
	for _, s := range c.sessions {
		if oldest == nil || cmp.Or(s.lastUsed.Compare(oldest.lastUsed), cmp.Compare(s.id, oldest.id)) < 0 {
			oldest = s
		}
		evictable := now.Sub(s.created) > c.evictAge || privileged && !s.privileged
		if evictable && (weakest == nil || compareEvictable(s, weakest) < 0) {
			weakest = s
		}
	}
	if oldest != nil && now.Sub(oldest.lastUsed) > c.evictAge {
		weakest = oldest
	} else if weakest == nil || compareEvictable(&session{privileged: privileged, cachedSize: size}, weakest) < 0 {
		return false
	}
	c.removeLocked(weakest)
	c.evictions++
	return true
}

// compareEvictable orders sessions by how much they deserve to stay.
func compareEvictable(a, b *session) int {
	if a.privileged != b.privileged {
		if a.privileged {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.cachedSize, b.cachedSize), cmp.Compare(a.id, b.id))
}
