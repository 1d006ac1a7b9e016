package replica

import (
	"slices"
	"testing"
	"time"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

const testLag = 10 * time.Second

// leading is the state of broker 1, which leads with three replicas in epoch 5 from offset 100 on, and a cluster in which all are
// in service with broker epochs 11, 12 and 13.
func leading(t *testing.T, isr ...int32) (*state, *metadata.ClusterImage) {
	t.Helper()
	s := newState(1)
	if !s.become(testStart, &role{leader: true, leaderID: 1, leaderEpoch: 5, partitionEpoch: 7, replicas: []int32{1, 2, 3}, isr: isr}, 100) {
		t.Fatal("the role is not taken")
	}
	return &s, testCluster(t)
}

func testCluster(t *testing.T, more ...message.Message) *metadata.ClusterImage {
	t.Helper()
	d := metadata.NewDelta(metadata.EmptyImage())
	records := []message.Message{}
	for id := int32(1); id <= 3; id++ {
		records = append(records, &message.RegisterBrokerRecord{BrokerID: id, BrokerEpoch: 10 + int64(id)})
	}
	for _, r := range append(records, more...) {
		if err := d.Replay(r); err != nil {
			t.Fatal(err)
		}
	}
	return d.Apply(metadata.Provenance{}).Cluster
}

func mustFetch(t *testing.T, s *state, now time.Time, id int32, offset, leaderEnd int64, c *metadata.ClusterImage) {
	t.Helper()
	if err := s.fetched(now, id, 10+int64(id), offset, 0, leaderEnd, c); err != nil {
		t.Fatal(err)
	}
}

func wantHighWatermark(t *testing.T, s *state, now time.Time, leaderEnd int64, minISR int, c *metadata.ClusterImage, want int64, wantOK bool) {
	t.Helper()
	if hw, ok := s.highWatermark(now, leaderEnd, minISR, testLag, c); ok != wantOK || ok && hw != want {
		t.Errorf("high watermark %d, %v, want %d, %v", hw, ok, want, wantOK)
	}
}

func TestHighWatermarkIsTheSmallestEndInSync(t *testing.T) {
	s, c := leading(t, 1, 2, 3)
	wantHighWatermark(t, s, testStart, 110, 2, c, 0, false) // nobody has fetched
	mustFetch(t, s, testStart, 2, 105, 110, c)
	wantHighWatermark(t, s, testStart, 110, 2, c, 0, false)
	mustFetch(t, s, testStart, 3, 107, 110, c)
	wantHighWatermark(t, s, testStart, 110, 2, c, 105, true)
	// Broker 2 is fenced: it doesn't count any more, and two are enough but not for a minimum of three.
	s.become(testStart, &role{leader: true, leaderID: 1, leaderEpoch: 5, partitionEpoch: 8, replicas: []int32{1, 2, 3}, isr: []int32{1, 3}}, 110)
	fenced := testCluster(t, &message.BrokerRegistrationChangeRecord{BrokerID: 2, BrokerEpoch: 12, Fenced: 1})
	wantHighWatermark(t, s, testStart, 110, 2, fenced, 107, true)
	wantHighWatermark(t, s, testStart, 110, 3, fenced, 0, false)
	// A follower has nothing to move.
	s.become(testStart, &role{leaderID: 2, leaderEpoch: 6, partitionEpoch: 9, replicas: []int32{1, 2, 3}, isr: []int32{2}}, 110)
	wantHighWatermark(t, s, testStart, 110, 1, c, 0, false)
}

// Who keeps up and may enter the ISR is waited for, until it has not been heard of for too long.
func TestHighWatermarkWaitsForThoseWhoKeepUp(t *testing.T) {
	s, c := leading(t, 1)
	mustFetch(t, s, testStart, 2, 100, 100, c)
	wantHighWatermark(t, s, testStart, 110, 1, c, 100, true)
	wantHighWatermark(t, s, testStart.Add(testLag), 110, 1, c, 100, true)
	wantHighWatermark(t, s, testStart.Add(testLag+1), 110, 1, c, 110, true)
}

func TestExpandAndItsAnswers(t *testing.T) {
	s, c := leading(t, 1)
	if s.expand(2, 50, c) != nil {
		t.Error("enters without a fetch")
	}
	mustFetch(t, s, testStart, 2, 99, 110, c)
	if s.expand(2, 50, c) != nil {
		t.Error("enters without what the leaders before have left")
	}
	mustFetch(t, s, testStart, 2, 104, 110, c)
	if s.expand(2, 105, c) != nil {
		t.Error("enters below the high watermark")
	}
	for what, cluster := range map[string]*metadata.ClusterImage{
		"fenced":            testCluster(t, &message.BrokerRegistrationChangeRecord{BrokerID: 2, BrokerEpoch: 12, Fenced: 1}),
		"shutting down":     testCluster(t, &message.BrokerRegistrationChangeRecord{BrokerID: 2, BrokerEpoch: 12, InControlledShutdown: 1}),
		"from another life": testCluster(t, &message.RegisterBrokerRecord{BrokerID: 2, BrokerEpoch: 99}),
	} {
		if s.expand(2, 104, cluster) != nil {
			t.Errorf("enters though it is %s", what)
		}
	}
	p := s.expand(2, 104, c)
	if p == nil || !slices.Equal(p.isr, []int32{1, 2}) || !slices.Equal(p.epochs, []int64{-1, 12}) || p.leaderEpoch != 5 || p.partitionEpoch != 7 {
		t.Fatalf("proposal %+v", p)
	}
	mustFetch(t, s, testStart, 3, 110, 110, c)
	if s.expand(3, 104, c) != nil {
		t.Error("two proposals at once")
	}
	if !s.inMaximalISR(2) || s.maximalISR() != 2 {
		t.Error("who is about to enter doesn't count")
	}
	// Answers that say nothing certain leave it as it is.
	for _, e := range []*api.Error{api.ErrFencedLeaderEpoch, api.ErrInvalidUpdateVersion, api.ErrInvalidRequest, api.ErrUnknownTopicID,
		api.ErrUnknownTopicOrPartition, api.ErrNewLeaderElected} {
		if retry, changed := s.answered(p, isrAnswer{}, e); retry || changed || s.pending != p {
			t.Errorf("%v: retry %v, changed %v", e, retry, changed)
		}
	}
	if retry, changed := s.answered(p, isrAnswer{}, api.ErrNotController); !retry || changed || s.pending != p {
		t.Errorf("retry %v, changed %v", retry, changed)
	}
	// The metadata of now doesn't overtake it, what is newer does.
	if s.become(testStart, s.role, 110) || s.pending != p {
		t.Error("the same metadata once more ended the proposal")
	}
	if retry, changed := s.answered(p, isrAnswer{leaderEpoch: 5, partitionEpoch: 8, isr: []int32{1, 2}}, nil); retry || !changed ||
		s.pending != nil || s.role.partitionEpoch != 8 || !slices.Equal(s.role.isr, []int32{1, 2}) {
		t.Errorf("retry %v, changed %v, role %+v", retry, changed, s.role)
	}
	if retry, changed := s.answered(p, isrAnswer{leaderEpoch: 5, partitionEpoch: 9}, nil); retry || changed {
		t.Error("an answer was taken twice")
	}
	p = s.expand(3, 104, c)
	if retry, changed := s.answered(p, isrAnswer{}, api.ErrIneligibleReplica); retry || !changed || s.pending != nil || s.inMaximalISR(3) {
		t.Errorf("refused: retry %v, changed %v", retry, changed)
	}
	p = s.expand(3, 104, c)
	s.become(testStart, &role{leader: true, leaderID: 1, leaderEpoch: 5, partitionEpoch: 9, replicas: []int32{1, 2, 3}, isr: []int32{1}}, 110)
	if s.pending != nil || s.inMaximalISR(2) || s.inMaximalISR(3) {
		t.Error("newer metadata did not end the proposal")
	}
	if retry, changed := s.answered(p, isrAnswer{leaderEpoch: 5, partitionEpoch: 9, isr: []int32{1, 3}}, nil); retry || changed {
		t.Error("an answer was taken that the metadata had overtaken")
	}
}

func TestShrink(t *testing.T) {
	s, c := leading(t, 1, 2, 3)
	now := testStart.Add(testLag)
	if s.shrink(now, 110, testLag) != nil {
		t.Error("leaves before its time")
	}
	mustFetch(t, s, now, 2, 110, 110, c)
	now = now.Add(time.Millisecond)
	p := s.shrink(now, 110, testLag)
	if p == nil || !slices.Equal(p.isr, []int32{1, 2}) || p.joining != noReplica {
		t.Fatalf("proposal %+v", p)
	}
	if !s.inMaximalISR(3) {
		t.Error("who is about to leave doesn't count any more")
	}
	if s.shrink(now, 110, testLag) != nil {
		t.Error("two proposals at once")
	}
}

// A follower that is never quite at the end, because records come all the time, is in sync all the same.
func TestCaughtUpByTheFetchBefore(t *testing.T) {
	s, c := leading(t, 1, 2)
	now, end := testStart, int64(100)
	for range 10 {
		mustFetch(t, s, now, 2, end, end+10, c)
		now, end = now.Add(testLag/2), end+10
	}
	if s.shrink(now, end+10, testLag) != nil {
		t.Error("leaves though it has what there was at its last fetch")
	}
}

func TestFetchOfAnEarlierLife(t *testing.T) {
	s, _ := leading(t, 1, 2)
	c := testCluster(t, &message.RegisterBrokerRecord{BrokerID: 2, BrokerEpoch: 99})
	if err := s.fetched(testStart, 2, 12, 110, 0, 110, c); err != api.ErrNotLeaderOrFollower {
		t.Errorf("error %v", err)
	}
	if s.follower(2).end != unknownEnd {
		t.Error("it counted")
	}
	if err := s.fetched(testStart, 4, 12, 110, 0, 110, c); err != api.ErrUnknownLeaderEpoch {
		t.Errorf("of no replica: error %v", err)
	}
}

func TestBecomeIgnoresWhatIsOlder(t *testing.T) {
	s, _ := leading(t, 1, 2, 3)
	for _, r := range []*role{
		{leaderID: 2, leaderEpoch: 4, partitionEpoch: 9},
		{leaderID: 2, leaderEpoch: 6, partitionEpoch: 6},
	} {
		if s.become(testStart, r, 100) {
			t.Errorf("took %+v", r)
		}
	}
	if s.epochStart != 100 {
		t.Errorf("epoch starts at %d", s.epochStart)
	}
	// A new epoch of the same leader begins at its end.
	s.become(testStart, &role{leader: true, leaderID: 1, leaderEpoch: 6, partitionEpoch: 8, replicas: []int32{1, 2, 3}, isr: []int32{1, 2, 3}}, 120)
	if s.epochStart != 120 {
		t.Errorf("epoch starts at %d", s.epochStart)
	}
}

// A leader that has missed a leader epoch doesn't know what the followers have done in it.
func TestBecomeForgetsOverAGap(t *testing.T) {
	for epoch, want := range map[int32]int64{6: 110, 7: unknownEnd} {
		s, c := leading(t, 1, 2, 3)
		mustFetch(t, s, testStart, 2, 110, 110, c)
		s.become(testStart, &role{leader: true, leaderID: 1, leaderEpoch: epoch, partitionEpoch: 9, replicas: []int32{1, 2, 3}, isr: []int32{1, 2, 3}}, 110)
		if f := s.follower(2); f.end != want || f.known != (want != unknownEnd) {
			t.Errorf("in epoch %d: %+v", epoch, f)
		}
	}
}

// A replica whose directory has failed stays out of the ISR, although its broker is in service and it was at the end before.
func TestReplicaInAFailedDirectory(t *testing.T) {
	s, _ := leading(t, 1)
	s.role.directories = []uuid.UUID{{15: 21}, {15: 22}, {15: 23}}
	sound := testCluster(t, &message.RegisterBrokerRecord{BrokerID: 2, BrokerEpoch: 12, LogDirs: []uuid.UUID{{15: 22}, {15: 99}}})
	failed := testCluster(t, &message.RegisterBrokerRecord{BrokerID: 2, BrokerEpoch: 12, LogDirs: []uuid.UUID{{15: 99}}})
	mustFetch(t, s, testStart, 2, 110, 110, sound)
	wantHighWatermark(t, s, testStart, 120, 1, sound, 110, true)
	wantHighWatermark(t, s, testStart, 120, 1, failed, 120, true)
	if s.expand(2, 104, failed) != nil {
		t.Error("enters")
	}
	if s.expand(2, 104, sound) == nil {
		t.Error("does not enter when the directory is well")
	}
}

func TestLowWatermark(t *testing.T) {
	s, c := leading(t, 1, 2, 3)
	for id, start := range map[int32]int64{2: 5, 3: 7} {
		if err := s.fetched(testStart, id, 10+int64(id), 110, start, 110, c); err != nil {
			t.Fatal(err)
		}
	}
	if low := s.lowWatermark(20, c); low != 5 {
		t.Errorf("low watermark %d", low)
	}
	if low := s.lowWatermark(20, testCluster(t, &message.BrokerRegistrationChangeRecord{BrokerID: 2, BrokerEpoch: 12, Fenced: 1})); low != 7 {
		t.Errorf("low watermark %d without the one that is fenced", low)
	}
}

func TestGrowth(t *testing.T) {
	var g growth
	for i := range int64(3 * maxGrowthMarks) {
		g.add(i+1, 10)
	}
	if n := g.below(2); n != 20 {
		t.Errorf("%d bytes below 2", n)
	}
	if n := g.below(3 * maxGrowthMarks); n != 10*(3*maxGrowthMarks-2) {
		t.Errorf("%d bytes below the end", n)
	}
	if n := g.below(1 << 40); n != 0 {
		t.Errorf("%d bytes more", n)
	}
}
