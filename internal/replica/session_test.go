package replica

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gregor/internal/api"
	"gregor/internal/uuid"
)

var t0 = time.UnixMilli(1_700_000_000_000)

func newTestSessions(slots int) *FetchSessions {
	return NewFetchSessions(slots, 2*time.Minute, rand.New(rand.NewPCG(1, 2)))
}

func wantedOf(names ...string) []FetchPartition {
	var ps []FetchPartition
	for _, n := range names {
		ps = append(ps, FetchPartition{Key: FetchKey{Topic: n}, Spec: FetchSpec{MaxBytes: 1 << 20}})
	}
	return ps
}

func namesOf(ps []FetchPartition, sent bool) []string {
	var out []string
	for _, p := range ps {
		if !sent || p.Result.Send {
			out = append(out, p.Key.Topic)
		}
	}
	return out
}

// serve plays one fetch in which each partition's high watermark is as given, 0 when it is not.
func serve(t *testing.T, c *FetchSessions, now time.Time, req FetchSessionRequest, wanted []FetchPartition,
	hw map[string]int64) (id int32, err *api.Error, served, sent []string) {
	t.Helper()
	ctx, parts := c.Begin(now, req, wanted, nil)
	if ctx.Err() == nil {
		for i := range parts {
			parts[i].Result = FetchResult{HighWatermark: hw[parts[i].Key.Topic], PreferredReadReplica: -1}
		}
	}
	id, err = ctx.Finish(now, parts)
	return id, err, namesOf(parts, false), namesOf(parts, true)
}

func TestSessionFullThenIncremental(t *testing.T) {
	c := newTestSessions(10)
	id, err, served, sent := serve(t, c, t0, FetchSessionRequest{}, wantedOf("a", "b"), nil)
	if err != nil || id == NoSession || !slices.Equal(served, []string{"a", "b"}) || !slices.Equal(sent, served) {
		t.Fatalf("full fetch: id %d, err %v, served %v, sent %v", id, err, served, sent)
	}
	got, err, served, sent := serve(t, c, t0, FetchSessionRequest{SessionID: id, Epoch: 1}, nil, nil)
	if err != nil || got != id || !slices.Equal(served, []string{"a", "b"}) || len(sent) != 0 {
		t.Fatalf("nothing changed: id %d, err %v, served %v, sent %v", got, err, served, sent)
	}
	_, _, served, sent = serve(t, c, t0, FetchSessionRequest{SessionID: id, Epoch: 2, Forgotten: []FetchKey{{Topic: "a"}}},
		wantedOf("c"), map[string]int64{"b": 7})
	if !slices.Equal(served, []string{"b", "c"}) || !slices.Equal(sent, []string{"b", "c"}) {
		t.Fatalf("a forgotten, c added, b moved: served %v, sent %v", served, sent)
	}
}

// A follower that asks in a newer leader epoch is told the high watermark again: it may not have taken it with the last answer.
func TestSessionTellsFollowersAgainInANewEpoch(t *testing.T) {
	for _, privileged := range []bool{true, false} {
		c := newTestSessions(10)
		hw := map[string]int64{"a": 5}
		wanted := wantedOf("a")
		id, _, _, _ := serve(t, c, t0, FetchSessionRequest{Privileged: privileged}, wanted, hw)
		wanted[0].Spec.FetchOffset = 5
		_, _, _, sent := serve(t, c, t0, FetchSessionRequest{SessionID: id, Epoch: 1, Privileged: privileged}, wanted, hw)
		if len(sent) != 0 {
			t.Errorf("privileged %v: %v is told again in the same epoch", privileged, sent)
		}
		wanted[0].Spec.LeaderEpoch++
		_, _, _, sent = serve(t, c, t0, FetchSessionRequest{SessionID: id, Epoch: 2, Privileged: privileged}, wanted, hw)
		if (len(sent) == 1) != privileged {
			t.Errorf("privileged %v: in the next epoch %v is told", privileged, sent)
		}
	}
}

func TestSessionErrors(t *testing.T) {
	f := func(req FetchSessionRequest, want *api.Error) {
		t.Helper()
		c := newTestSessions(10)
		id, _, _, _ := serve(t, c, t0, FetchSessionRequest{}, wantedOf("a"), nil)
		if req.SessionID == -1 {
			req.SessionID = id
		} else {
			req.SessionID = id ^ 1
		}
		if got, err, _, _ := serve(t, c, t0, req, nil, nil); err != want || err != nil && got != NoSession {
			t.Errorf("%+v: id %d, err %v, want %v", req, got, err, want)
		}
	}
	f(FetchSessionRequest{SessionID: -1, Epoch: 1}, nil)
	f(FetchSessionRequest{SessionID: -1, Epoch: 2}, api.ErrInvalidFetchSessionEpoch)
	f(FetchSessionRequest{SessionID: 1, Epoch: 1}, api.ErrFetchSessionIDNotFound)
	f(FetchSessionRequest{SessionID: -1, Epoch: 1, UsesTopicIDs: true}, api.ErrFetchSessionTopicIDError)
}

func TestSessionDuplicateRequestIsRefusedAtTheEnd(t *testing.T) {
	c := newTestSessions(10)
	id, _, _, _ := serve(t, c, t0, FetchSessionRequest{}, wantedOf("a"), nil)
	first, parts := c.Begin(t0, FetchSessionRequest{SessionID: id, Epoch: 1}, nil, nil)
	if _, err, _, _ := serve(t, c, t0, FetchSessionRequest{SessionID: id, Epoch: 2}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := first.Finish(t0, parts); err != api.ErrInvalidFetchSessionEpoch || got != id {
		t.Errorf("the earlier request ends with id %d, err %v", got, err)
	}
}

func TestSessionClosedByFinalEpochAndByForgettingAll(t *testing.T) {
	c := newTestSessions(10)
	id, _, _, _ := serve(t, c, t0, FetchSessionRequest{}, wantedOf("a"), nil)
	if got, err, _, _ := serve(t, c, t0, FetchSessionRequest{SessionID: id, Epoch: FinalSessionEpoch}, nil, nil); got != NoSession || err != nil {
		t.Errorf("final epoch: id %d, err %v", got, err)
	}
	if n, parts, _ := c.Stats(); n != 0 || parts != 0 {
		t.Errorf("%d sessions with %d partitions left", n, parts)
	}
	id, _, _, _ = serve(t, c, t0, FetchSessionRequest{}, wantedOf("a"), nil)
	got, err, served, _ := serve(t, c, t0, FetchSessionRequest{SessionID: id, Epoch: 1, Forgotten: []FetchKey{{Topic: "a"}}}, nil, nil)
	if n, _, _ := c.Stats(); got != NoSession || err != nil || len(served) != 0 || n != 0 {
		t.Errorf("all forgotten: id %d, err %v, served %v, %d sessions left", got, err, served, n)
	}
}

func TestSessionPartitionWithRecordsGoesLast(t *testing.T) {
	c := newTestSessions(10)
	id, _, _, _ := serve(t, c, t0, FetchSessionRequest{}, wantedOf("a", "b", "c"), nil)
	ctx, parts := c.Begin(t0, FetchSessionRequest{SessionID: id, Epoch: 1}, nil, nil)
	for i := range parts {
		parts[i].Result = FetchResult{PreferredReadReplica: -1}
	}
	parts[0].Result.Err = api.ErrNotLeaderOrFollower // an error alone keeps its place
	ctx.Finish(t0, parts)
	if _, _, served, _ := serve(t, c, t0, FetchSessionRequest{SessionID: id, Epoch: 2}, nil, nil); !slices.Equal(served, []string{"a", "b", "c"}) {
		t.Errorf("served %v", served)
	}
}

func TestSessionTopicIDKeepsItsIdentity(t *testing.T) {
	c := newTestSessions(10)
	id := uuid.UUID{1}
	named := FetchPartition{Key: FetchKey{TopicID: id, Topic: "a"}}
	unnamed := FetchPartition{Key: FetchKey{TopicID: id}}
	sid, _, _, _ := serve(t, c, t0, FetchSessionRequest{UsesTopicIDs: true}, []FetchPartition{named}, nil)
	_, _, served, _ := serve(t, c, t0, FetchSessionRequest{SessionID: sid, Epoch: 1, UsesTopicIDs: true}, []FetchPartition{unnamed}, nil)
	if !slices.Equal(served, []string{"a"}) {
		t.Errorf("served %v", served)
	}
}

func TestSessionEviction(t *testing.T) {
	// The cache has two slots. Each case makes two sessions and then a third.
	f := func(name string, first, second, third FetchSessionRequest, sizes [3]int, wait time.Duration, admitted bool) {
		t.Helper()
		c := newTestSessions(2)
		all := []string{"a", "b", "c", "d"}
		serve(t, c, t0, first, wantedOf(all[:sizes[0]]...), nil)
		serve(t, c, t0, second, wantedOf(all[:sizes[1]]...), nil)
		id, _, _, _ := serve(t, c, t0.Add(wait), third, wantedOf(all[:sizes[2]]...), nil)
		n, _, ev := c.Stats()
		if (id != NoSession) != admitted || n != 2 || (ev == 1) != admitted {
			t.Errorf("%s: id %d, %d sessions, %d evictions", name, id, n, ev)
		}
	}
	consumer, follower := FetchSessionRequest{}, FetchSessionRequest{Privileged: true}
	f("young sessions are safe from consumers", consumer, consumer, consumer, [3]int{1, 1, 4}, 0, false)
	f("a follower takes a consumer's place", consumer, follower, follower, [3]int{4, 1, 1}, 0, true)
	f("a follower spares young followers", follower, follower, follower, [3]int{1, 1, 4}, 0, false)
	f("an unused session goes", consumer, consumer, consumer, [3]int{4, 4, 1}, 3*time.Minute, true)
}

func TestNextSessionEpoch(t *testing.T) {
	for in, want := range map[int32]int32{0: 1, 1: 2, 1<<31 - 1: 1, FinalSessionEpoch: FinalSessionEpoch} {
		if got := nextSessionEpoch(in); got != want {
			t.Errorf("nextSessionEpoch(%d) = %d, want %d", in, got, want)
		}
	}
}
