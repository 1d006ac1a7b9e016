package client

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func noGroup(o *coreOptions) { o.Group = "" }

// reading is a rig that reads partitions 0 to n-1 of t1 from offset 100 on.
func reading(t *testing.T, n int32, change ...func(*coreOptions)) *coreRig {
	r := newCoreRig(t, append([]func(*coreOptions){noGroup}, change...)...)
	at := map[TopicPartition]int64{}
	for p := range n {
		at[TopicPartition{"t1", p}] = 100
	}
	r.step(eventAssign{at})
	return r
}

type fetchAnswer func(*kmsg.FetchResponseTopicPartition)

func withRecords(b []byte, end int64) fetchAnswer {
	return func(p *kmsg.FetchResponseTopicPartition) {
		p.RecordBatches, p.HighWatermark, p.LastStableOffset = b, end, end
	}
}

func withError(code int16) fetchAnswer {
	return func(p *kmsg.FetchResponseTopicPartition) { p.ErrorCode = code }
}

// answerFetch answers with a session id and answers of partitions of t1.
func (r *coreRig) answerFetch(id uint64, session int32, parts map[int32]fetchAnswer) {
	r.t.Helper()
	resp := kmsg.NewPtrFetchResponse()
	resp.Version, resp.SessionID = 16, session
	topic := kmsg.FetchResponseTopic{TopicID: topicID(1)}
	for _, n := range sortedKeys(parts) {
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition, p.PreferredReadReplica = n, -1
		parts[n](&p)
		topic.Partitions = append(topic.Partitions, p)
	}
	if len(parts) > 0 {
		resp.Topics = append(resp.Topics, topic)
	}
	r.answer(id, resp)
}

// asked shows a fetch as "session/epoch: partition@offset … -forgotten …".
func asked(req *kmsg.FetchRequest) string {
	out := fmt.Sprintf("%d/%d:", req.SessionID, req.SessionEpoch)
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			out += fmt.Sprintf(" %d@%d", p.Partition, p.FetchOffset)
		}
	}
	for _, t := range req.ForgottenTopics {
		for _, p := range t.Partitions {
			out += fmt.Sprintf(" -%d", p)
		}
	}
	return out
}

func (r *coreRig) fetches(want string) (id uint64) {
	r.t.Helper()
	req, id := sent[*kmsg.FetchRequest](r)
	if got := asked(req); got != want {
		r.t.Fatalf("fetch %q, want %q", got, want)
	}
	return id
}

func (r *coreRig) data() *fetched {
	r.t.Helper()
	e, ok := taken[effectData](r, nil)
	if !ok {
		r.t.Fatal("no data")
	}
	return e.data
}

// A session names only what has changed, forgets what isn't wanted, and is begun anew when the broker lost it.
func TestFetchSession(t *testing.T) {
	t.Parallel()
	r := reading(t, 3)
	id := r.fetches("0/0: 0@100 1@100 2@100")
	r.answerFetch(id, 7, map[int32]fetchAnswer{0: withRecords(nil, 100), 1: withRecords(nil, 100), 2: withRecords(nil, 100)})
	id = r.fetches("7/1:")
	r.answerFetch(id, 7, map[int32]fetchAnswer{1: withRecords(records(t, 100, 5), 105)})
	id = r.fetches("7/2: 1@105")
	if d := r.data(); d.tp.Partition != 1 || d.end != 105 {
		t.Errorf("%+v", d)
	}
	r.step(eventPause{[]TopicPartition{{"t1", 2}}, true})
	r.answerFetch(id, 7, nil)
	id = r.fetches("7/3: -2")
	r.step(eventPause{[]TopicPartition{{"t1", 2}}, false})
	r.answerFetch(id, 7, nil)
	id = r.fetches("7/4: 2@100")
	// The broker threw the session out: at once, all again.
	resp := kmsg.NewPtrFetchResponse()
	resp.ErrorCode = fetchSessionIDNotFound
	r.answer(id, resp)
	id = r.fetches("0/0: 0@100 1@105 2@100")
	r.answerFetch(id, 9, nil)
	id = r.fetches("9/1:")
	// It is out of step: the session is ended and another begun in one request.
	resp = kmsg.NewPtrFetchResponse()
	resp.ErrorCode = invalidFetchSessionEpoch
	r.answer(id, resp)
	id = r.fetches("9/0: 0@100 1@105 2@100")
	// No room for a session.
	r.answerFetch(id, 0, nil)
	id = r.fetches("0/0: 0@100 1@105 2@100")
	r.step(eventResponse{id, nil, &errConn{"read from", "a", errTimeout}})
	notSent[*kmsg.FetchRequest](r)
	r.advance(time.Second)
	r.fetches("0/0: 0@100 1@105 2@100")
}

// The next fetch is out before records are handed over, but no more than two answers wait, and never more bytes than allowed.
func TestFetchAhead(t *testing.T) {
	t.Parallel()
	b := records(t, 100, 10)
	r := reading(t, 1)
	r.answerFetch(r.fetches("0/0: 0@100"), 7, map[int32]fetchAnswer{0: withRecords(b, 1000)})
	d := r.data()
	r.answerFetch(r.fetches("7/1: 0@110"), 7, map[int32]fetchAnswer{0: withRecords(records(t, 110, 10), 1000)})
	r.data()
	r.step()
	notSent[*kmsg.FetchRequest](r)
	r.step(eventPolled{at: r.now, freed: []freed{{d.tp, d.gen, d.size}}})
	r.fetches("7/2: 0@120")

	r = reading(t, 4, func(o *coreOptions) { o.BufferBytes, o.PartitionBytes, o.MaxBytes = len(b)+40, int32(len(b)), 1<<20 })
	req, id := sent[*kmsg.FetchRequest](r)
	if int(req.MaxBytes) != len(b)+40 {
		t.Errorf("asks for %d bytes", req.MaxBytes)
	}
	r.answerFetch(id, 7, map[int32]fetchAnswer{0: withRecords(b, 1000)})
	notSent[*kmsg.FetchRequest](r)
	d = r.data()
	r.step(eventPolled{at: r.now, freed: []freed{{d.tp, d.gen, d.size}}})
	r.fetches("7/1: 0@110")
}

// While enough of one partition waits to be consumed, a fetch that could only wait isn't sent: it would hold the next one up.
func TestIdlePartitionsDontHoldUp(t *testing.T) {
	t.Parallel()
	r := reading(t, 2)
	r.answerFetch(r.fetches("0/0: 0@100 1@100"), 7, map[int32]fetchAnswer{0: withRecords(records(t, 100, 1), 1000), 1: withRecords(nil, 100)})
	d := r.data()
	r.answerFetch(r.fetches("7/1: 0@101"), 7, map[int32]fetchAnswer{0: withRecords(records(t, 101, 1), 1000)})
	notSent[*kmsg.FetchRequest](r)
	r.step(eventPolled{at: r.now, freed: []freed{{d.tp, d.gen, d.size}}})
	r.fetches("7/2: 0@102")
}

// Answers to what isn't wanted any more are dropped: seeks, revocations, other assignments.
func TestLateAnswersAreDropped(t *testing.T) {
	t.Parallel()
	tp := TopicPartition{"t1", 0}
	for name, change := range map[string]any{
		"seek": eventSeek{tp, 50, -1}, "unassign": eventAssign{map[TopicPartition]int64{{"t2", 0}: 0}},
	} {
		r := reading(t, 1)
		id := r.fetches("0/0: 0@100")
		r.step(change)
		r.answerFetch(id, 7, map[int32]fetchAnswer{0: withRecords(records(t, 100, 1), 1000)})
		if e, ok := taken[effectData](r, nil); ok {
			t.Errorf("%s: %+v", name, e.data)
		}
	}
}

// A follower nearby is read from when the leader says so, and the leader again when the follower can't help.
func TestPreferredReplica(t *testing.T) {
	t.Parallel()
	r := reading(t, 1, func(o *coreOptions) { o.Rack = "b" })
	r.answerFetch(r.fetches("0/0: 0@100"), 7, map[int32]fetchAnswer{0: func(p *kmsg.FetchResponseTopicPartition) { p.PreferredReadReplica = 2 }})
	s, ok := taken(r, func(s effectSend) bool { _, is := s.req.(*kmsg.FetchRequest); return is })
	if !ok || s.node != 2 || s.req.(*kmsg.FetchRequest).Rack != "b" {
		t.Fatalf("%+v", s)
	}
	r.answerFetch(s.id, 3, map[int32]fetchAnswer{0: withError(1)})
	s, ok = taken(r, func(s effectSend) bool { _, is := s.req.(*kmsg.FetchRequest); return is })
	if !ok || s.node != 1 {
		t.Fatalf("%+v", s)
	}
}

// auto.offset.reset.
func TestOutOfRange(t *testing.T) {
	t.Parallel()
	for reset, at := range map[Reset]int64{ResetEarliest: Earliest, ResetLatest: Latest, ResetByDuration: (1_000_000 - 3600) * 1000} {
		r := reading(t, 1, func(o *coreOptions) { o.Reset, o.ResetDuration = reset, time.Hour })
		r.answerFetch(r.fetches("0/0: 0@100"), 7, map[int32]fetchAnswer{0: withError(1)})
		req, id := sent[*kmsg.ListOffsetsRequest](r)
		if got := req.Topics[0].Partitions[0]; got.Timestamp != at || got.CurrentLeaderEpoch != 5 {
			t.Errorf("%v: %+v", reset, got)
		}
		offset := int64(42)
		if reset == ResetByDuration {
			offset = -1 // no record that late
		}
		resp := func(offset int64) *kmsg.ListOffsetsResponse {
			return &kmsg.ListOffsetsResponse{Topics: []kmsg.ListOffsetsResponseTopic{{Topic: "t1", Partitions: []kmsg.ListOffsetsResponseTopicPartition{{Offset: offset}}}}}
		}
		r.answer(id, resp(offset))
		if reset == ResetByDuration {
			req, id := sent[*kmsg.ListOffsetsRequest](r)
			if req.Topics[0].Partitions[0].Timestamp != Latest {
				t.Errorf("%+v", req)
			}
			r.answer(id, resp(42))
		}
		r.fetches("7/1: 0@42")
	}
	r := reading(t, 1, func(o *coreOptions) { o.Reset = ResetNone })
	r.answerFetch(r.fetches("0/0: 0@100"), 7, map[int32]fetchAnswer{0: withError(1)})
	e, ok := taken[effectError](r, nil)
	if !ok || e.fatal || !errors.Is(e.err, OffsetOutOfRange) {
		t.Errorf("%+v", e)
	}
	r.advance(time.Minute)
	notSent[*kmsg.ListOffsetsRequest](r)
	r.step(eventSeek{TopicPartition{"t1", 0}, 7, -1})
	r.fetches("7/1: 0@7")
}

// A new leader whose log is shorter: reading goes on where the logs part, or Poll says so.
func TestTruncation(t *testing.T) {
	t.Parallel()
	for _, reset := range []Reset{ResetEarliest, ResetNone} {
		r := reading(t, 1, func(o *coreOptions) { o.Reset = reset })
		r.answerFetch(r.fetches("0/0: 0@100"), 7, map[int32]fetchAnswer{0: withRecords(records(t, 100, 10), 110)})
		id := r.fetches("7/1: 0@110")
		r.answerFetch(id, 7, map[int32]fetchAnswer{0: func(p *kmsg.FetchResponseTopicPartition) {
			p.ErrorCode, p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = 6, 2, 8
		}})
		if h, ok := taken[effectHint](r, nil); !ok || h.leader != 2 || h.epoch != 8 {
			t.Errorf("%+v", h)
		}
		s, ok := taken(r, func(s effectSend) bool { _, is := s.req.(*kmsg.OffsetForLeaderEpochRequest); return is })
		if !ok || s.node != 2 {
			t.Fatalf("%+v", s)
		}
		if p := s.req.(*kmsg.OffsetForLeaderEpochRequest).Topics[0].Partitions[0]; p.LeaderEpoch != 5 || p.CurrentLeaderEpoch != 8 {
			t.Errorf("%+v", p)
		}
		notSent[*kmsg.FetchRequest](r)
		r.answer(s.id, &kmsg.OffsetForLeaderEpochResponse{Topics: []kmsg.OffsetForLeaderEpochResponseTopic{{
			Topic: "t1", Partitions: []kmsg.OffsetForLeaderEpochResponseTopicPartition{{LeaderEpoch: 5, EndOffset: 104}},
		}}})
		if reset == ResetNone {
			e, _ := taken[effectError](r, nil)
			var te *TruncationError
			if !errors.As(e.err, &te) || te.DivergentOffset != 104 || te.Offset != 110 || te.LeaderEpoch != 5 {
				t.Errorf("%+v", e)
			}
			continue
		}
		r.fetches("0/0: 0@104")
		if e, ok := taken[effectPosition](r, func(e effectPosition) bool { return e.offset == 104 }); !ok {
			t.Errorf("%+v", e)
		}
	}
}

// The last batch of an answer may be cut; one that isn't a batch is the caller's to know.
func TestScan(t *testing.T) {
	t.Parallel()
	b := records(t, 100, 10)
	two := slices.Concat(b, records(t, 110, 1))
	for _, c := range []struct {
		in    []byte
		whole int
		next  int64
		bad   bool
	}{
		{nil, 0, 100, false}, {b, len(b), 110, false}, {two, len(two), 111, false}, {two[:len(two)-1], len(b), 110, false},
		{make([]byte, 100), 0, 100, true}, {slices.Concat(b, make([]byte, 100)), len(b), 110, false},
	} {
		whole, next, epoch, err := scan(c.in, 100)
		if whole != c.whole || next != c.next || (err != nil) != c.bad || whole > 0 && epoch != 5 {
			t.Errorf("%d bytes: %d %d %d %v", len(c.in), whole, next, epoch, err)
		}
	}
}

// Offsets are committed by the clock, those of records from earlier Polls, and only what is new.
func TestAutoCommit(t *testing.T) {
	t.Parallel()
	r := newCoreRig(t, func(o *coreOptions) { o.AutoCommit = 5 * time.Second })
	r.step(eventAssign{map[TopicPartition]int64{{"t1", 0}: 100, {"t1", 1}: 200}})
	p := r.k.parts[TopicPartition{"t1", 0}]
	commit := func(want ...int64) uint64 {
		t.Helper()
		req, id := sent[*kmsg.OffsetCommitRequest](r)
		var got []int64
		for _, p := range req.Topics[0].Partitions {
			got = append(got, p.Offset)
		}
		if !slices.Equal(got, want) || req.Generation != -1 {
			t.Errorf("%v, want %v", got, want)
		}
		return id
	}
	r.advance(4 * time.Second)
	notSent[*kmsg.OffsetCommitRequest](r)
	r.advance(time.Second)
	r.answer(commit(100, 200), kmsg.NewPtrOffsetCommitResponse())
	r.advance(5 * time.Second)
	notSent[*kmsg.OffsetCommitRequest](r)
	r.step(eventPolled{at: r.now, positions: []consumedPosition{{p.tp, p.gen, 150, 5}, {p.tp, p.gen - 1, 1, 5}}})
	r.advance(5 * time.Second)
	r.answer(commit(150), kmsg.NewPtrOffsetCommitResponse())
	// Closing commits the rest.
	r.step(eventPolled{at: r.now, positions: []consumedPosition{{p.tp, p.gen, 160, 5}}})
	r.step(eventClose{newTicket(), LeaveDefault})
	id := commit(160)
	if _, ok := taken[effectDone](r, nil); ok {
		t.Error("closed before the commit")
	}
	r.answer(id, kmsg.NewPtrOffsetCommitResponse())
	if e, ok := taken[effectDone](r, nil); !ok || e.err != nil {
		t.Error("not closed")
	}
}

// Commits that fail are tried again until their time is over, or not at all if nobody waits.
func TestCommitRetries(t *testing.T) {
	t.Parallel()
	r := newCoreRig(t)
	loading := kmsg.NewPtrOffsetCommitResponse()
	loading.Topics = []kmsg.OffsetCommitResponseTopic{{Topic: "t1", Partitions: []kmsg.OffsetCommitResponseTopicPartition{{ErrorCode: 14}}}}
	offsets := []CommittedOffset{{TopicPartition: TopicPartition{"t1", 0}, Offset: 1}}
	r.step(eventCommit{newTicket(), offsets, true})
	_, id := sent[*kmsg.OffsetCommitRequest](r)
	r.answer(id, loading)
	if e, ok := taken[effectDone](r, nil); !ok || e.err == nil || !Retriable(e.err) {
		t.Errorf("%+v", e)
	}
	r.step(eventCommit{newTicket(), offsets, false})
	n := 0
	for {
		if s, ok := taken(r, func(s effectSend) bool { _, is := s.req.(*kmsg.OffsetCommitRequest); return is }); ok {
			n++
			r.answer(s.id, loading)
		}
		if e, ok := taken[effectDone](r, nil); ok {
			if !errors.Is(e.err, RequestTimedOut) || n < 60 {
				t.Errorf("%v after %d", e.err, n)
			}
			break
		}
		r.now = r.wake
		r.step()
	}
}

// Brokers share the buffer: none is kept waiting by others that are asked again and again.
func TestFetchBrokersTakeTurns(t *testing.T) {
	t.Parallel()
	const budget = 4 << 20
	r := newCoreRig(t, noGroup, func(o *coreOptions) { o.BufferBytes, o.PartitionBytes = budget, 2<<20 })
	r.leader = func(p int32) int32 { return p + 1 }
	at := map[TopicPartition]int64{}
	for p := range int32(4) {
		at[TopicPartition{"t1", p}] = 100
		at[TopicPartition{"t2", p}] = 100
	}
	r.step(eventAssign{at})
	under := map[int32]uint64{} // way, by broker
	asked := map[int32]int{}
	most := map[int32]int{}
	take := func() {
		for {
			s, ok := taken(r, func(s effectSend) bool { _, is := s.req.(*kmsg.FetchRequest); return is })
			if !ok {
				break
			}
			under[s.node], most[s.node] = s.id, int(s.req.(*kmsg.FetchRequest).MaxBytes)
			asked[s.node]++
		}
		sum := 0
		for node := range under {
			sum += most[node]
		}
		if sum > budget {
			t.Fatalf("requests under way may bring %d bytes", sum)
		}
	}
	take()
	for range 20 {
		node := sortedKeys(under)[0]
		id := under[node]
		delete(under, node)
		r.answerFetch(id, 7, nil)
		take()
	}
	for node := int32(1); node <= 4; node++ {
		if asked[node] == 0 {
			t.Errorf("broker %d was never asked: %v", node, asked)
		}
	}
}

// What may pass is tried again: a broker that stumbles, and a partition that may not be read yet, of which Poll tells each time.
func TestFetchRefusedForNow(t *testing.T) {
	t.Parallel()
	for code, told := range map[int16]int{UnknownServerError.Code: 0, topicAuthorizationFailed: 2} {
		r := reading(t, 1)
		n := 0
		for range 2 {
			_, id := sent[*kmsg.FetchRequest](r)
			r.answerFetch(id, 0, map[int32]fetchAnswer{0: withError(code)})
			for _, ok := taken[effectError](r, nil); ok; _, ok = taken[effectError](r, nil) {
				n++
			}
			notSent[*kmsg.FetchRequest](r)
			r.advance(2 * time.Second)
		}
		_, id := sent[*kmsg.FetchRequest](r)
		r.answerFetch(id, 0, map[int32]fetchAnswer{0: withRecords(records(t, 100, 5), 105)})
		if d := r.data(); d.from != 100 || n != told {
			t.Errorf("code %d: %+v, told %d times", code, d, n)
		}
	}
}
