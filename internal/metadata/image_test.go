package metadata

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"gregor/internal/message"
	"gregor/internal/uuid"
)

func testID(n int) uuid.UUID {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[:8], uint64(n)*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(u[8:], uint64(n)+1000)
	return u
}

// bigImage has that many topics of that many partitions on ten brokers.
func bigImage(tb testing.TB, topics, partitions int) *Image {
	d := NewDelta(EmptyImage())
	replay := func(m message.Message) {
		if err := d.Replay(m); err != nil {
			tb.Fatal(err)
		}
	}
	replay(&message.FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: int16(LatestProduction)})
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range topics {
		replay(&message.TopicRecord{Name: fmt.Sprintf("topic-%d", i), TopicID: testID(i)})
		for p := range partitions {
			r := message.NewPartitionRecord()
			r.TopicID, r.PartitionID = testID(i), int32(p)
			first := rng.Int32N(10)
			r.Replicas = []int32{first, (first + 1) % 10, (first + 1 + rng.Int32N(8)) % 10}
			r.ISR, r.Leader, r.LeaderEpoch, r.PartitionEpoch = r.Replicas, first, 0, 0
			r.Directories = []uuid.UUID{testID(1), testID(2), testID(3)}
			replay(r)
		}
	}
	return d.Apply(Provenance{Offset: int64(topics * (partitions + 1)), Epoch: 1, BatchAligned: true})
}

func mustReplay(t testing.TB, d *Delta, ms ...message.Message) {
	t.Helper()
	for _, m := range ms {
		if err := d.Replay(m); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReplayRefuses(t *testing.T) {
	id := testID(1)
	base := NewDelta(EmptyImage())
	mustReplay(t, base, &message.TopicRecord{Name: "t", TopicID: id}, &message.PartitionRecord{TopicID: id, Replicas: []int32{1, 2}},
		&message.RegisterBrokerRecord{BrokerID: 1, BrokerEpoch: 7}, &message.AccessControlEntryRecord{ID: testID(9)})
	img := base.Apply(Provenance{})
	f := func(want string, ms ...message.Message) {
		t.Helper()
		d := NewDelta(img)
		mustReplay(t, d, ms[:len(ms)-1]...)
		before := d.Apply(Provenance{})
		err := d.Replay(ms[len(ms)-1])
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", ms[len(ms)-1].MessageName(), err, want)
		}
		if diff := Diff(before, d.Apply(Provenance{})); diff != "" {
			t.Errorf("%s: refused and yet:\n%s", ms[len(ms)-1].MessageName(), diff)
		}
	}
	change := func(p int32) *message.PartitionChangeRecord {
		r := message.NewPartitionChangeRecord()
		r.TopicID, r.PartitionID = id, p
		return r
	}
	f("no topic with id", &message.PartitionRecord{TopicID: testID(2)})
	f("no topic with id", &message.RemoveTopicRecord{TopicID: testID(2)})
	f("no topic with id", &message.RemoveTopicRecord{TopicID: id}, change(0))
	f("no topic with id", &message.RemoveTopicRecord{TopicID: id}, &message.RemoveTopicRecord{TopicID: id})
	f("no partition 1", change(1))
	f("partition id -1", message.Message(func() *message.PartitionRecord {
		r := message.NewPartitionRecord()
		r.TopicID = id
		return r
	}()))
	f("1 directories for 2 replicas", &message.PartitionRecord{TopicID: id, Replicas: []int32{1, 2}, Directories: []uuid.UUID{uuid.One}})
	f("recovery state 5", &message.PartitionRecord{TopicID: id, LeaderRecoveryState: 5})
	bad := change(0)
	bad.LeaderRecoveryState = 5
	f("recovery state 5", bad)
	short := change(0)
	short.Directories = []uuid.UUID{uuid.One}
	f("1 directories for 2 replicas", short)
	f(`no topic "x"`, &message.ClearElrRecord{TopicName: "x"})
	f("not registered", &message.FenceBrokerRecord{ID: 2})
	f("epoch 7", &message.UnfenceBrokerRecord{ID: 1, Epoch: 6})
	f("value 2", &message.BrokerRegistrationChangeRecord{BrokerID: 1, BrokerEpoch: 7, Fenced: 2})
	f("value -1", &message.BrokerRegistrationChangeRecord{BrokerID: 1, BrokerEpoch: 7, InControlledShutdown: -1})
	f("not registered", &message.UnregisterBrokerRecord{BrokerID: 1}, &message.FenceBrokerRecord{ID: 1, Epoch: 7})
	f("no access control entry", &message.RemoveAccessControlEntryRecord{ID: testID(8)})
	f("no access control entry", &message.RemoveAccessControlEntryRecord{ID: testID(9)}, &message.RemoveAccessControlEntryRecord{ID: testID(9)})
	f("not supported", &message.FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: 6})
	f("not supported", &message.FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: 35})
	f("not a metadata record", message.NewEndTxnMarker())
}

func TestPartitionChanges(t *testing.T) {
	id := testID(1)
	d := NewDelta(EmptyImage())
	r := message.NewPartitionRecord()
	r.TopicID, r.PartitionID, r.Replicas, r.ISR, r.Leader, r.LeaderEpoch, r.PartitionEpoch = id, 0, []int32{1, 2}, []int32{1, 2}, 1, 5, 8
	mustReplay(t, d, &message.TopicRecord{Name: "t", TopicID: id}, r)
	img := d.Apply(Provenance{})
	p := img.Topics.Partition("t", 0)
	if dir, ok := p.Directory(2); !ok || dir != uuid.Zero || p.PreferredLeader() != 1 || p.Reassigning() || !p.HasReplica(2) || p.HasReplica(3) {
		t.Errorf("%v", p)
	}

	// The same leader again is a new epoch; no leader named is not.
	c := message.NewPartitionChangeRecord()
	c.TopicID, c.PartitionID, c.ISR = id, 0, []int32{1}
	d = NewDelta(img)
	mustReplay(t, d, c)
	q := d.Apply(Provenance{}).Topics.Partition("t", 0)
	if q.LeaderEpoch != 5 || q.PartitionEpoch != 9 || !slices.Equal(q.ISR, []int32{1}) || !q.SameAssignment(p) || q.Equal(p) {
		t.Errorf("after a shrink: %v", q)
	}
	c.Leader = 1
	mustReplay(t, d, c)
	q = d.Apply(Provenance{}).Topics.Partition("t", 0)
	if q.LeaderEpoch != 6 || q.PartitionEpoch != 10 {
		t.Errorf("after an election: %v", q)
	}
	if m, err := MergePartition(p, c); err != nil || m.LeaderEpoch != 6 || m.PartitionEpoch != 9 {
		t.Errorf("MergePartition = %v, %v", m, err)
	}
	if img.Topics.Partition("t", 0) != p || p.LeaderEpoch != 5 {
		t.Error("the old image has changed")
	}

	// ClearElr counts as a change, but only where there is something to clear.
	c = message.NewPartitionChangeRecord()
	c.TopicID, c.PartitionID, c.EligibleLeaderReplicas = id, 0, []int32{2}
	d = NewDelta(img)
	mustReplay(t, d, c, message.NewClearElrRecord(), message.NewClearElrRecord())
	q = d.Apply(Provenance{}).Topics.Partition("t", 0)
	if len(q.ELR) != 0 || q.PartitionEpoch != 10 {
		t.Errorf("after clearing: %v", q)
	}
	d = NewDelta(img)
	mustReplay(t, d, message.NewClearElrRecord())
	if len(d.Topics.Changed) != 0 {
		t.Error("clearing nothing counts as a change")
	}
}

func TestDeletedTopicTakesItsConfigs(t *testing.T) {
	id, value := testID(1), "v"
	config := &message.ConfigRecord{ResourceType: TopicResource, ResourceName: "t", Name: "k", Value: &value}
	d := NewDelta(EmptyImage())
	mustReplay(t, d, &message.TopicRecord{Name: "t", TopicID: id}, config)
	img := d.Apply(Provenance{})
	if img.Configs.Topic("t")["k"] != "v" {
		t.Fatal("no config")
	}
	d = NewDelta(img)
	mustReplay(t, d, &message.RemoveTopicRecord{TopicID: id})
	if next := d.Apply(Provenance{}); next.Configs.Topic("t") != nil || next.Topics.Len() != 0 {
		t.Errorf("left: %v", next.Configs.Topic("t"))
	}
	// Deleted and made again in one delta.
	mustReplay(t, d, &message.TopicRecord{Name: "t", TopicID: testID(2)})
	next := d.Apply(Provenance{})
	if next.Configs.Topic("t") != nil || next.Topics.ByName("t").ID != testID(2) || next.Topics.ByID(id) != nil || next.Topics.Len() != 1 {
		t.Error("the new topic is not a new one")
	}
	if len(d.Topics.Deleted) != 1 || !d.Topics.Changed[testID(2)].Created() {
		t.Errorf("delta %+v", d.Topics)
	}
	// Deleted and made again with its old id, which Kafka never does: the topic is there and begins anew.
	d = NewDelta(img)
	mustReplay(t, d, &message.PartitionRecord{TopicID: id}, &message.RemoveTopicRecord{TopicID: id}, &message.TopicRecord{Name: "t", TopicID: id})
	if next := d.Apply(Provenance{}); next.Topics.ByID(id) == nil || next.Topics.ByName("t").Len() != 0 || next.Topics.PartitionCount() != 0 || len(d.Topics.Deleted) != 0 {
		t.Errorf("%+v", next.Topics.ByID(id))
	}
	// Made and deleted in one delta leaves no trace.
	d = NewDelta(EmptyImage())
	mustReplay(t, d, &message.TopicRecord{Name: "t", TopicID: id}, config, &message.RemoveTopicRecord{TopicID: id})
	if len(d.Topics.Changed)+len(d.Topics.Deleted)+len(d.Configs.Changed) != 0 || d.Apply(Provenance{}).Topics.Len() != 0 {
		t.Errorf("delta %+v", d.Topics)
	}
}

func TestLocalChanges(t *testing.T) {
	const me = 1
	partition := func(topic int, id int32, leader int32, replicas ...int32) *message.PartitionRecord {
		r := message.NewPartitionRecord()
		r.TopicID, r.PartitionID, r.Leader, r.Replicas, r.ISR, r.LeaderEpoch, r.PartitionEpoch = testID(topic), id, leader, replicas, replicas, 0, 0
		return r
	}
	show := func(d *Delta) string {
		c := d.Topics.LocalChanges(me)
		list := func(name string, ps []LocalPartition) string {
			var s []string
			for _, p := range ps {
				s = append(s, fmt.Sprintf("%s-%d", p.Topic, p.Partition))
			}
			if s == nil {
				return ""
			}
			slices.Sort(s)
			return name + " " + strings.Join(s, " ") + "; "
		}
		return list("deleted", c.Deleted) + list("leads", c.Leaders) + list("elected", c.Elected) + list("follows", c.Followers) + list("dirs", c.Directories)
	}
	expect := func(d *Delta, want string) *Image {
		t.Helper()
		img := d.Apply(Provenance{})
		if got := show(d); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		return img
	}
	d := NewDelta(EmptyImage())
	mustReplay(t, d, &message.TopicRecord{Name: "a", TopicID: testID(1)}, partition(1, 0, me, me, 2), partition(1, 1, 2, 2, me), partition(1, 2, 2, 2, 3),
		&message.TopicRecord{Name: "b", TopicID: testID(2)}, partition(2, 0, 2, me, 2))
	img := expect(d, "leads a-0; elected a-0; follows a-1 b-0; dirs a-0 a-1 b-0; ")
	full := FullDelta(img)
	if got := show(full); got != "leads a-0; elected a-0; follows a-1 b-0; dirs a-0 a-1 b-0; " {
		t.Errorf("the full delta: %q", got)
	}

	change := func(topic int, id int32, f func(*message.PartitionChangeRecord)) message.Message {
		r := message.NewPartitionChangeRecord()
		r.TopicID, r.PartitionID = testID(topic), id
		f(r)
		return r
	}
	d = NewDelta(img)
	mustReplay(t, d,
		change(1, 0, func(r *message.PartitionChangeRecord) { r.ISR = []int32{me} }),        // still the leader
		change(1, 1, func(r *message.PartitionChangeRecord) { r.Leader = me }),              // elected
		change(1, 2, func(r *message.PartitionChangeRecord) { r.ISR = []int32{2} }),         // none of our business
		change(2, 0, func(r *message.PartitionChangeRecord) { r.Replicas = []int32{2, 3} })) // moved away
	img2 := expect(d, "deleted b-0; leads a-0 a-1; elected a-1; ")

	d = NewDelta(img2)
	mustReplay(t, d, &message.RemoveTopicRecord{TopicID: testID(1)})
	expect(d, "deleted a-0 a-1; ")

	d = NewDelta(img2)
	mustReplay(t, d, change(1, 1, func(r *message.PartitionChangeRecord) { r.Directories = []uuid.UUID{uuid.Zero, uuid.One} }))
	expect(d, "leads a-1; dirs a-1; ")

	// A snapshot over an older image reports what differs, and only that.
	d = NewDelta(img)
	records, err := img2.Records(LatestProduction)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		mustReplay(t, d, r.Message)
	}
	d.FinishSnapshot()
	expect(d, "deleted b-0; leads a-0 a-1; elected a-1; ")
}

func TestVersions(t *testing.T) {
	f := func(s string, want Version) {
		t.Helper()
		got, err := ParseVersion(s)
		if want == 0 {
			if err == nil {
				t.Errorf("ParseVersion(%q) = %v", s, got)
			}
			return
		}
		if err != nil || got != want {
			t.Errorf("ParseVersion(%q) = %v, %v, want %v", s, got, err, want)
		}
	}
	f("4.4", 33)
	f("4.4.0", 33)
	f("4.4-IV0", 31)
	f("4.5-IV0", 34)
	f("3.9", 21)
	f("3.9.1", 21)
	f("3.3", 7)
	f("4.5", 0) // not for production
	f("3.2", 0)
	f("4", 0)
	f("", 0)
	if V4_4_IV2 != 33 || V4_5_IV0 != 34 || V4_0_IV1 != 23 || V3_7_IV2 != 17 || len(versions) != int(LatestTesting-MinVersion)+1 {
		t.Error("the levels have slipped")
	}
	if s := Version(6).String(); s != "level 6" || Version(6).Known() || Version(35).Known() {
		t.Errorf("level 6 is %s", s)
	}
	type row struct{ broker, partition, fetch, list int16 }
	rows := map[Version]row{
		7: {1, 0, 13, 7}, 8: {2, 0, 13, 7}, 9: {2, 0, 14, 8}, 16: {2, 0, 15, 8}, 17: {3, 1, 15, 8}, 21: {3, 1, 17, 9}, 23: {3, 2, 17, 9},
		29: {3, 2, 18, 11}, 30: {4, 2, 18, 11}, 33: {4, 2, 18, 11},
	}
	for v, want := range rows {
		got := row{v.RegisterBrokerRecordVersion(), v.PartitionRecordVersion(), v.FetchVersion(), v.ListOffsetsVersion()}
		if got != want || v.PartitionChangeRecordVersion() != want.partition {
			t.Errorf("level %d: %+v, want %+v", v, got, want)
		}
	}
	for _, c := range []struct {
		shutdown, dirs, cordoned bool
		want                     int16
	}{{false, false, false, 0}, {true, false, false, 1}, {true, true, false, 2}, {false, false, true, 3}} {
		if got := BrokerRegistrationChangeRecordVersion(c.shutdown, c.dirs, c.cordoned); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	gates := func(v Version) string {
		s := ""
		for _, b := range []bool{v.SCRAM(), v.SkipsEpochBumpOnShrink(), v.Transactions(), v.DelegationTokens(), v.ControllerRegistrations(), v.Directories(), v.ELRRecords(), v.CordonedLogDirs(), v.CIDRHosts(), v.ControllerUnregistration()} {
			s += map[bool]string{true: "1", false: "0"}[b]
		}
		return s
	}
	for v, want := range map[Version]string{10: "0000000000", 11: "1000000000", 12: "1100000000", 13: "1110000000", 14: "1111000000", 15: "1111100000", 17: "1111110000", 23: "1111111000", 30: "1111111100", 32: "1111111110", 33: "1111111111"} {
		if got := gates(v); got != want {
			t.Errorf("level %d: %s, want %s", v, got, want)
		}
	}
	if V4_4_IV0.CheckDowngrade(V4_3_IV0) != true || V4_4_IV1.CheckDowngrade(V4_3_IV0) || V4_0_IV1.CheckDowngrade(V4_0_IV0) || !V4_4_IV2.CheckDowngrade(V4_4_IV2) {
		t.Error("downgrades are judged wrongly")
	}
}

func TestFeatures(t *testing.T) {
	defaults := func(v Version) map[string]int16 {
		m := map[string]int16{}
		for _, f := range Features {
			if l := f.Default(v); l > 0 {
				m[f.Name] = l
			}
		}
		return m
	}
	for v, want := range map[Version]map[string]int16{
		20: {}, 21: {FeatureKRaft: 1}, 24: {FeatureKRaft: 1, FeatureGroup: 1, FeatureTransaction: 2},
		33: {FeatureKRaft: 1, FeatureGroup: 1, FeatureTransaction: 2, FeatureELR: 1, FeatureShare: 2, FeatureStreams: 1},
	} {
		if got := defaults(v); !maps.Equal(got, want) {
			t.Errorf("level %d: %v, want %v", v, got, want)
		}
	}
	elr, ok := FeatureByName(FeatureELR)
	if !ok || elr.Check(1, 23) != nil || elr.Check(1, 22) == nil || elr.Check(2, 33) == nil || elr.Check(0, 7) != nil {
		t.Error("eligible.leader.replicas.version is judged wrongly")
	}
	if _, ok := FeatureByName("no.version"); ok {
		t.Error("a feature that there isn't")
	}
	s := SupportedFeatures(false)
	if len(s) != 7 || s[FeatureMetadataVersion] != (FeatureRange{7, 33}) || s[FeatureShare] != (FeatureRange{0, 2}) || SupportedFeatures(true)[FeatureMetadataVersion].Max != 34 {
		t.Errorf("supported %v", s)
	}
}

// TestDiffSeesEverything changes one thing at a time.
func TestDiffSeesEverything(t *testing.T) {
	id, v := testID(1), "v"
	base := NewDelta(EmptyImage())
	mustReplay(t, base, &message.TopicRecord{Name: "t", TopicID: id}, &message.PartitionRecord{TopicID: id})
	img := base.Apply(Provenance{})
	for _, m := range []message.Message{
		&message.FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: 33}, &message.FeatureLevelRecord{Name: "x", FeatureLevel: 1},
		&message.RegisterBrokerRecord{}, &message.RegisterControllerRecord{}, &message.TopicRecord{Name: "u", TopicID: testID(2)},
		&message.PartitionRecord{TopicID: id, PartitionID: 1}, &message.PartitionRecord{TopicID: id, Leader: 9}, &message.RemoveTopicRecord{TopicID: id},
		&message.ConfigRecord{Name: "k", Value: &v}, &message.ClientQuotaRecord{Key: "k"}, &message.ProducerIdsRecord{},
		&message.AccessControlEntryRecord{}, &message.UserScramCredentialRecord{}, &message.DelegationTokenRecord{},
	} {
		d := NewDelta(img)
		if !d.Empty() {
			t.Error("a new delta isn't empty")
		}
		mustReplay(t, d, m)
		if d.Empty() {
			t.Errorf("%s leaves the delta empty", m.MessageName())
		}
		next := d.Apply(Provenance{})
		if Equal(img, next) || Equal(next, img) {
			t.Errorf("%s makes no difference", m.MessageName())
		}
	}
}

func TestBrokers(t *testing.T) {
	b := BrokerFromRecord(&message.RegisterBrokerRecord{BrokerID: 1, LogDirs: []uuid.UUID{testID(2), testID(1)}, Fenced: true})
	if b.Active() || !b.HasOnlineDir(testID(1)) || b.HasOnlineDir(testID(3)) || !b.HasOnlineDir(uuid.Unassigned) || !b.HasOnlineDir(uuid.Zero) || b.HasOnlineDir(uuid.Lost) {
		t.Errorf("%+v", b)
	}
	c, err := b.Change(&message.BrokerRegistrationChangeRecord{Fenced: -1})
	if err != nil || !c.Active() || b.Active() || c.Equal(b) {
		t.Errorf("unfenced: %+v, %v", c, err)
	}
}

// TestMemory keeps 100,000 partitions within 8 MiB, topics included.
func TestMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	img := bigImage(t, 1000, 100)
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d partitions in %d KiB, %d bytes each", img.Topics.PartitionCount(), used>>10, used/int64(img.Topics.PartitionCount()))
	if used > 8<<20 {
		t.Errorf("%d bytes for %d partitions", used, img.Topics.PartitionCount())
	}
	runtime.KeepAlive(img)
}

// BenchmarkApply changes one partition among 100,000.
func BenchmarkApply(b *testing.B) {
	for _, shape := range []struct{ topics, partitions int }{{1000, 100}, {100_000, 1}, {1, 100_000}} {
		b.Run(fmt.Sprintf("%dx%d", shape.topics, shape.partitions), func(b *testing.B) {
			img := bigImage(b, shape.topics, shape.partitions)
			r := message.NewPartitionChangeRecord()
			r.ISR = []int32{1, 2}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				r.TopicID, r.PartitionID = testID(i%shape.topics), int32(i%shape.partitions)
				d := NewDelta(img)
				if err := d.Replay(r); err != nil {
					b.Fatal(err)
				}
				img = d.Apply(Provenance{})
				i += 7919
			}
		})
	}
}

// BenchmarkLoad replays a snapshot of 100,000 partitions into one delta.
func BenchmarkLoad(b *testing.B) {
	records, err := bigImage(b, 1000, 100).Records(LatestProduction)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		d := NewDelta(EmptyImage())
		for _, r := range records {
			if err := d.Replay(r.Message); err != nil {
				b.Fatal(err)
			}
		}
		d.Apply(Provenance{})
	}
}

// BenchmarkFullDelta is what a publisher that is installed late costs.
func BenchmarkFullDelta(b *testing.B) {
	img := bigImage(b, 1000, 100)
	b.ReportAllocs()
	for b.Loop() {
		FullDelta(img)
	}
}

// BenchmarkPartition looks a partition up by name.
func BenchmarkPartition(b *testing.B) {
	img := bigImage(b, 1000, 100)
	b.ReportAllocs()
	for b.Loop() {
		if img.Topics.Partition("topic-500", 50) == nil {
			b.Fatal("not there")
		}
	}
}
