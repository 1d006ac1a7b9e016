package replica

import (
	"bytes"
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/uuid"
)

// fetchKey names a followed partition as fetch requests do.
type fetchKey struct {
	topic     uuid.UUID
	partition int32
}

func (k fetchKey) compare(o fetchKey) int {
	return cmp.Or(bytes.Compare(k.topic[:], o.topic[:]), cmp.Compare(k.partition, o.partition))
}

func keyOf(p *Partition) fetchKey { return fetchKey{p.topicID, p.tp.Partition} }

// phase is what a followed partition needs of its leader next.
type phase uint8

const (
	fetching phase = iota
	// The log's end is out of the leader's range: ask where the leader's log ends, and where it begins.
	askEnd
	askStart
	// givenUp partitions wait for a new leader epoch: this one can't be followed.
	givenUp
)

// following is one partition that a fetcher follows.
type following struct {
	p           *Partition
	key         fetchKey
	leaderEpoch int32
	begun       bool // at is known
	at          position
	phase       phase
	failures    int       // in a row
	retryAt     time.Time // when it may be asked for again; zero for now
	dirty       bool      // is in fetcher.dirty
	// asked is what the leader was last told, inSession that its fetch session holds it.
	asked     position
	inSession bool
	leaderEnd int64 // in askStart: what askEnd found
	caughtUp  bool  // had all that was committed when the leader last answered
}

func (w *following) backsOff() bool { return !w.retryAt.IsZero() }

// fetcherOptions bound what a fetcher asks for.
type fetcherOptions struct {
	nodeID            int32
	brokerEpoch       func() int64
	maxWait           time.Duration
	minBytes          int32
	maxBytes          int32 // a response
	partitionMaxBytes int32
	backoff           time.Duration // the longest, of a partition that the leader refuses
	quota             *quota        // of throttled replicas; nil for none
	logger            *slog.Logger
}

// fetcher decides what this broker asks one leader for, and does to its partitions' logs what the answers say. It has one
// request under way at a time, since a fetch offset says that all below it is in the log. It owns no goroutine, lock or clock.
//
// Partitions are asked for in an incremental fetch session (KIP-227): after the first request only those are named whose
// position has changed. A partition that the leader refuses backs off by itself; it leaves the session for that time.
type fetcher struct {
	o     fetcherOptions
	parts map[fetchKey]*following
	// dirty are to be named in the next fetch, forgotten left out of the session from then on.
	dirty     []*following
	forgotten []fetchKey
	// lookups need ListOffsets, retries back off.
	lookups []*following
	retries []*following
	// session and epoch are those that the next fetch carries; epoch 0 makes a new session.
	session, epoch int32
	pausedUntil    time.Time // after a failed request
	failures       int       // failed requests in a row
}

// firstBackoff is the first wait of a partition that the leader refuses. After a change of leaders that is mostly because the
// metadata has reached this broker first.
const firstBackoff = 10 * time.Millisecond

// longFailures is after how many failures in a row a partition rests for long: so it does at once after an error of this side
// that won't be over in a moment.
const longFailures = 10

// maxPause bounds the wait after a request that failed as a whole. Connecting has its own.
const maxPause = 200 * time.Millisecond

func newFetcher(o fetcherOptions) *fetcher {
	return &fetcher{o: o, parts: make(map[fetchKey]*following)}
}

// follow begins to follow a partition in a leader epoch. It returns false if it does already.
func (f *fetcher) follow(p *Partition, leaderEpoch int32) bool {
	k := keyOf(p)
	w := &following{p: p, key: k, leaderEpoch: leaderEpoch}
	if old := f.parts[k]; old != nil {
		if old.p == p && old.leaderEpoch == leaderEpoch {
			return false
		}
		w.inSession = old.inSession // and is named anew
	}
	f.parts[k] = w
	f.markDirty(w)
	f.pausedUntil = time.Time{}
	return true
}

// unfollow ends following p.
func (f *fetcher) unfollow(p *Partition) {
	w := f.parts[keyOf(p)]
	if w == nil || w.p != p {
		return
	}
	delete(f.parts, w.key)
	f.leaveSession(w)
}

func (f *fetcher) current(w *following) bool { return f.parts[w.key] == w }

func (f *fetcher) markDirty(w *following) {
	if !w.dirty {
		w.dirty = true
		f.dirty = append(f.dirty, w)
	}
}

func (f *fetcher) leaveSession(w *following) {
	if w.inSession {
		w.inSession = false
		f.forgotten = append(f.forgotten, w.key)
	}
}

// next is the request to send now, or nil and the time at which to ask again (zero: not before something happens).
func (f *fetcher) next(now time.Time) (q kmsg.Request, at time.Time) {
	if now.Before(f.pausedUntil) {
		return nil, f.pausedUntil
	}
	f.retries = slices.DeleteFunc(f.retries, func(w *following) bool {
		if !f.current(w) || !w.backsOff() {
			return true
		}
		if now.Before(w.retryAt) {
			if at.IsZero() || w.retryAt.Before(at) {
				at = w.retryAt
			}
			return false
		}
		w.retryAt = time.Time{}
		f.resume(w)
		return true
	})
	if q := f.lookup(); q != nil {
		return q, time.Time{}
	}
	f.throttle(now)
	if q := f.fetch(now); q != nil {
		return q, time.Time{}
	}
	for _, w := range f.retries { // fetch may have put some there
		if f.current(w) && w.backsOff() && (at.IsZero() || w.retryAt.Before(at)) {
			at = w.retryAt
		}
	}
	return nil, at
}

func (f *fetcher) resume(w *following) {
	switch w.phase {
	case fetching:
		f.markDirty(w)
	case askEnd, askStart:
		f.lookups = append(f.lookups, w)
	}
}

// lookup asks for the ends of logs that are out of range.
func (f *fetcher) lookup() kmsg.Request {
	q := kmsg.NewPtrListOffsetsRequest()
	q.Version, q.ReplicaID = q.MaxVersion(), f.o.nodeID
	topics := map[string]int{}
	for _, w := range f.lookups {
		if !f.current(w) || w.backsOff() || w.phase != askEnd && w.phase != askStart {
			continue
		}
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.Timestamp = w.key.partition, w.leaderEpoch, log.TimestampLatest
		if w.phase == askStart {
			p.Timestamp = log.TimestampEarliestLocal
		}
		name := w.p.tp.Topic
		i, ok := topics[name]
		if !ok {
			i = len(q.Topics)
			topics[name] = i
			t := kmsg.NewListOffsetsRequestTopic()
			t.Topic = name
			q.Topics = append(q.Topics, t)
		}
		q.Topics[i].Partitions = append(q.Topics[i].Partitions, p)
	}
	if len(q.Topics) == 0 {
		f.lookups = f.lookups[:0]
		return nil
	}
	return q
}

// fetch makes the next fetch, nil when there is nothing to fetch.
func (f *fetcher) fetch(now time.Time) kmsg.Request {
	named := f.dirty
	if f.epoch == InitialSessionEpoch {
		named = named[:0:0]
		for _, k := range slices.SortedFunc(maps.Keys(f.parts), fetchKey.compare) {
			named = append(named, f.parts[k])
		}
		f.forgotten = f.forgotten[:0]
	}
	for _, w := range f.dirty {
		w.dirty = false
	}
	f.dirty = f.dirty[:0:0]
	q := kmsg.NewPtrFetchRequest()
	q.Version = q.MaxVersion()
	q.ReplicaID = f.o.nodeID
	q.ReplicaState.ID, q.ReplicaState.Epoch = f.o.nodeID, f.o.brokerEpoch()
	q.MaxWaitMillis, q.MinBytes, q.MaxBytes = int32(f.o.maxWait.Milliseconds()), f.o.minBytes, f.o.maxBytes
	q.SessionID, q.SessionEpoch = f.session, f.epoch
	for _, w := range named {
		if !f.current(w) || w.phase != fetching || w.backsOff() || !f.begin(now, w) {
			continue
		}
		w.asked, w.inSession = w.at, true
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch = w.key.partition, w.leaderEpoch
		p.FetchOffset, p.LastFetchedEpoch, p.LogStartOffset = w.at.offset, w.at.epoch, w.at.logStart
		p.PartitionMaxBytes = f.o.partitionMaxBytes
		if n := len(q.Topics); n == 0 || q.Topics[n-1].TopicID != w.key.topic {
			t := kmsg.NewFetchRequestTopic()
			t.Topic, t.TopicID = w.p.tp.Topic, w.key.topic
			q.Topics = append(q.Topics, t)
		}
		t := &q.Topics[len(q.Topics)-1]
		t.Partitions = append(t.Partitions, p)
	}
	for _, k := range f.forgotten {
		if w := f.parts[k]; w != nil && w.inSession {
			continue // it is back before the leader was told
		}
		if n := len(q.ForgottenTopics); n == 0 || q.ForgottenTopics[n-1].TopicID != k.topic {
			t := kmsg.NewFetchRequestForgottenTopic()
			t.TopicID = k.topic
			q.ForgottenTopics = append(q.ForgottenTopics, t)
		}
		t := &q.ForgottenTopics[len(q.ForgottenTopics)-1]
		t.Partitions = append(t.Partitions, k.partition)
	}
	if len(q.Topics) == 0 && !f.anyInSession() {
		return nil // what is forgotten stays noted
	}
	f.forgotten = f.forgotten[:0]
	// A partition that backs off is named in a request after this one, which must not wait at the leader for longer than it does.
	for _, w := range f.retries {
		if f.current(w) && w.backsOff() {
			wait := (w.retryAt.Sub(now) + time.Millisecond - 1).Milliseconds()
			q.MaxWaitMillis = min(q.MaxWaitMillis, int32(max(wait, 1)))
		}
	}
	return q
}

func (f *fetcher) anyInSession() bool {
	for _, w := range f.parts {
		if w.inSession {
			return true
		}
	}
	return false
}

// begin makes sure that it is known where the partition's log ends.
func (f *fetcher) begin(now time.Time, w *following) bool {
	if w.begun {
		return true
	}
	at, err := w.p.beginFollowing(w.leaderEpoch)
	if err != nil {
		f.broken(now, w, err)
		return false
	}
	w.at, w.begun = at, true
	return true
}

// answered takes the answer to the request that next gave.
func (f *fetcher) answered(now time.Time, q kmsg.Request, resp kmsg.Response, err error) {
	if err == nil {
		switch r := resp.(type) {
		case *kmsg.FetchResponse:
			err = f.fetched(now, q.(*kmsg.FetchRequest), r)
		case *kmsg.ListOffsetsResponse:
			f.found(now, r)
		}
	}
	if err == nil {
		f.failures = 0
		return
	}
	// What the leader has noted of the session is not known: begin a new one, which ends the old.
	f.endSession()
	f.failures++
	f.pausedUntil = now.Add(min(firstBackoff<<min(f.failures-1, 10), maxPause))
}

func (f *fetcher) endSession() {
	f.epoch = InitialSessionEpoch
	f.forgotten = f.forgotten[:0]
	for _, w := range f.parts {
		w.inSession = false
	}
}

func (f *fetcher) fetched(now time.Time, q *kmsg.FetchRequest, r *kmsg.FetchResponse) error {
	switch e := api.ErrorFor(r.ErrorCode); {
	case r.ErrorCode == 0:
	case e == api.ErrFetchSessionIDNotFound, e == api.ErrInvalidFetchSessionEpoch, e == api.ErrFetchSessionTopicIDError:
		f.endSession()
		if e == api.ErrFetchSessionIDNotFound {
			f.session = NoSession
		}
		return nil
	default:
		return api.FromCode(r.ErrorCode)
	}
	f.session = r.SessionID
	if r.SessionID == NoSession {
		for _, w := range f.parts {
			w.inSession = false
		}
		f.forgotten = f.forgotten[:0]
		f.epoch = InitialSessionEpoch
	} else {
		f.epoch = nextSessionEpoch(q.SessionEpoch)
	}
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			w := f.parts[fetchKey{t.TopicID, p.Partition}]
			// What has begun anew since the request, or has been cut, is not what was asked for.
			if w != nil && w.begun && w.phase == fetching && !w.backsOff() && w.asked == w.at {
				f.one(now, w, p)
			}
		}
	}
	return nil
}

// one takes what the leader says of one partition.
func (f *fetcher) one(now time.Time, w *following, p *kmsg.FetchResponseTopicPartition) {
	err := api.ErrorFor(p.ErrorCode)
	switch {
	case p.ErrorCode == 0 && p.DivergingEpoch.Epoch >= 0:
		at, err := w.p.truncateDiverging(w.leaderEpoch, w.at.offset, EpochEnd{Epoch: p.DivergingEpoch.Epoch, EndOffset: p.DivergingEpoch.EndOffset})
		f.o.logger.Info("the log parts from the leader's", "partition", w.p.tp.String(), "leader_epoch", w.leaderEpoch,
			"from", w.at.offset, "to", at.offset, "diverging_epoch", p.DivergingEpoch.Epoch, "diverging_offset", p.DivergingEpoch.EndOffset)
		f.moved(now, w, at, err)
	case p.ErrorCode == 0:
		at, err := w.p.appendFetched(w.leaderEpoch, w.at.offset, p.RecordBatches, p.HighWatermark, p.LogStartOffset)
		f.fetchedBytes(w, len(p.RecordBatches), at.offset >= p.HighWatermark)
		f.moved(now, w, at, err)
	case err == api.ErrOffsetOutOfRange:
		f.leaveSession(w)
		w.phase = askEnd
		f.lookups = append(f.lookups, w)
	default:
		f.refused(now, w, err)
	}
}

// moved notes where the log ends now.
func (f *fetcher) moved(now time.Time, w *following, at position, err error) {
	if err != nil {
		f.broken(now, w, err)
		return
	}
	w.at, w.failures = at, 0
	if at != w.asked || !w.inSession {
		f.markDirty(w)
	}
}

// refused deals with a leader's error.
func (f *fetcher) refused(now time.Time, w *following, err *api.Error) {
	if err == api.ErrFencedLeaderEpoch {
		// The leader is ahead of our metadata, which will tell.
		f.leaveSession(w)
		w.phase = givenUp
		return
	}
	f.backOff(now, w)
	if w.failures > 3 {
		f.o.logger.Warn("the leader refuses a fetch", "partition", w.p.tp.String(), "leader_epoch", w.leaderEpoch, "attempts", w.failures, "err", err)
	}
}

// broken deals with an error of this side.
func (f *fetcher) broken(now time.Time, w *following, err error) {
	switch {
	case errors.Is(err, errNotFollowing):
		// Either the role has changed, of which we are about to be told, or the log was cut: look at it anew.
		w.begun = false
		f.backOff(now, w)
	case errors.Is(err, api.ErrCorruptMessage), errors.Is(err, api.ErrInvalidRecord):
		// Torn on the way or at the other end, perhaps only for now.
		f.o.logger.Error("invalid records from the leader", "partition", w.p.tp.String(), "offset", w.at.offset, "err", err)
		w.begun = false
		f.backOff(now, w)
	default:
		// It may pass: a disk that is full, say. One that has failed takes its directory offline, which ends the following.
		f.o.logger.Error("a replica can't follow its leader", "partition", w.p.tp.String(), "leader_epoch", w.leaderEpoch, "err", err)
		w.begun = false
		w.failures = max(w.failures, longFailures)
		f.backOff(now, w)
	}
}

func (f *fetcher) backOff(now time.Time, w *following) {
	f.leaveSession(w)
	w.failures++
	w.retryAt = now.Add(max(min(firstBackoff<<min(w.failures-1, 20), f.o.backoff), time.Millisecond))
	f.retries = append(f.retries, w)
}

// found takes the ends of logs that are out of range.
func (f *fetcher) found(now time.Time, r *kmsg.ListOffsetsResponse) {
	byName := map[log.TopicPartition]*following{}
	for _, w := range f.lookups {
		if f.current(w) && !w.backsOff() {
			byName[w.p.tp] = w
		}
	}
	f.lookups = f.lookups[:0]
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			w := byName[log.TopicPartition{Topic: t.Topic, Partition: p.Partition}]
			if w == nil {
				continue
			}
			delete(byName, w.p.tp)
			switch {
			case p.ErrorCode != 0:
				f.refused(now, w, api.ErrorFor(p.ErrorCode))
			case w.phase == askEnd:
				w.phase, w.leaderEnd = askStart, p.Offset
				f.lookups = append(f.lookups, w)
			default:
				at, err := w.p.outOfRange(w.leaderEpoch, w.at.offset, p.Offset, w.leaderEnd)
				w.phase = fetching
				f.o.logger.Warn("the log's end is out of the leader's range", "partition", w.p.tp.String(), "from", w.at.offset,
					"to", at.offset, "leader_start", p.Offset, "leader_end", w.leaderEnd)
				f.moved(now, w, at, err)
			}
		}
	}
	for _, w := range slices.SortedFunc(maps.Values(byName), func(a, b *following) int { return a.key.compare(b.key) }) {
		f.backOff(now, w) // left out of the answer
	}
}
