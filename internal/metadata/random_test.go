package metadata

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gregor/internal/message"
	"gregor/internal/uuid"
)

// world draws records that fit what came before them.
type world struct {
	t       *rapid.T
	n       byte
	topics  []*worldTopic
	brokers map[int32]int64 // epochs
	acls    []uuid.UUID
	types   map[int16]bool // record types drawn so far
}

type worldTopic struct {
	name       string
	id         uuid.UUID
	partitions []int32
}

func (w *world) id() uuid.UUID {
	w.n++
	return uuid.UUID{0: w.n * 37, 7: w.n, 15: 200}
}

func (w *world) intn(n int, label string) int { return rapid.IntRange(0, n-1).Draw(w.t, label) }
func (w *world) bool(label string) bool       { return rapid.Bool().Draw(w.t, label) }

func (w *world) replicas(label string) []int32 {
	return rapid.SliceOfNDistinct(rapid.Int32Range(0, 4), 1, 3, rapid.ID).Draw(w.t, label)
}

func (w *world) dirs(n int) []uuid.UUID {
	var d []uuid.UUID
	for range n {
		d = append(d, []uuid.UUID{uuid.Zero, uuid.Unassigned, uuid.Lost, {1: 9}}[w.intn(4, "dir")])
	}
	return d
}

func (w *world) name(label string) string {
	return string(rune('a' + w.intn(4, label)))
}

// draw returns the next records: one, or a topic with its partitions.
func (w *world) draw() []message.Message {
	ms := w.drawSome()
	for _, m := range ms {
		w.types[m.APIKey()] = true
	}
	return ms
}

func (w *world) drawSome() []message.Message {
	one := func(m message.Message) []message.Message { return []message.Message{m} }
	if w.brokers == nil {
		w.brokers = map[int32]int64{}
		return one(&message.FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: int16(LatestProduction)})
	}
	broker := int32(w.intn(4, "broker"))
	epoch, registered := w.brokers[broker]
	switch w.intn(27, "kind") {
	case 0, 1:
		r := message.NewRegisterBrokerRecord()
		r.BrokerID, r.IncarnationID, r.BrokerEpoch = broker, w.id(), int64(w.intn(1000, "epoch"))
		r.Fenced, r.InControlledShutdown, r.IsMigratingZkBroker = w.bool("fenced"), w.bool("shutdown"), w.bool("zk")
		r.EndPoints = []message.RegisterBrokerRecordBrokerEndpoint{{Name: w.name("listener"), Host: "h", Port: 9092}}
		r.Features = []message.RegisterBrokerRecordBrokerFeature{{Name: FeatureGroup, MaxSupportedVersion: 1}}
		if w.bool("rack") {
			r.Rack = &r.EndPoints[0].Host
		}
		r.LogDirs = w.dirs(w.intn(3, "dirs"))
		if w.bool("cordoned") {
			r.CordonedLogDirs = append([]uuid.UUID{}, r.LogDirs...)
		}
		w.brokers[broker] = r.BrokerEpoch
		return one(r)
	case 2:
		delete(w.brokers, broker)
		return one(&message.UnregisterBrokerRecord{BrokerID: broker, BrokerEpoch: epoch})
	case 3:
		if !registered {
			return nil
		}
		r := message.NewBrokerRegistrationChangeRecord()
		r.BrokerID, r.BrokerEpoch = broker, epoch
		r.Fenced, r.InControlledShutdown = int8(w.intn(3, "fence")-1), int8(w.intn(2, "shutdown"))
		r.LogDirs = w.dirs(w.intn(3, "dirs"))
		if w.bool("cordon") {
			r.CordonedLogDirs = []uuid.UUID{}
		}
		return one(r)
	case 4:
		if !registered {
			return nil
		}
		if w.bool("fence") {
			return one(&message.FenceBrokerRecord{ID: broker, Epoch: epoch})
		}
		return one(&message.UnfenceBrokerRecord{ID: broker, Epoch: epoch})
	case 5:
		if w.bool("gone") {
			return one(&message.UnregisterControllerRecord{ControllerID: broker})
		}
		return one(&message.RegisterControllerRecord{
			ControllerID: broker, IncarnationID: w.id(),
			EndPoints: []message.RegisterControllerRecordControllerEndpoint{{Name: "C", Host: "h", Port: 9093}},
			Features:  []message.RegisterControllerRecordControllerFeature{{Name: FeatureKRaft, MaxSupportedVersion: 1}},
		})
	case 6, 7, 8:
		name := w.name("topic")
		if slices.ContainsFunc(w.topics, func(t *worldTopic) bool { return t.name == name }) {
			return nil
		}
		t := &worldTopic{name: name, id: w.id()}
		w.topics = append(w.topics, t)
		ms := one(&message.TopicRecord{Name: name, TopicID: t.id})
		for range w.intn(5, "partitions") {
			ms = append(ms, w.partition(t, int32(len(t.partitions))))
		}
		return ms
	case 9:
		if t := w.topic(); t != nil {
			return one(w.partition(t, int32(w.intn(200, "id"))))
		}
	case 10, 11, 12, 13, 14:
		t := w.topic()
		if t == nil || len(t.partitions) == 0 {
			return nil
		}
		r := message.NewPartitionChangeRecord()
		r.TopicID, r.PartitionID = t.id, t.partitions[w.intn(len(t.partitions), "partition")]
		if w.bool("leader") {
			r.Leader = int32(w.intn(5, "leader") - 1)
		}
		if w.bool("isr") {
			r.ISR = w.replicas("isr")
		}
		if w.bool("elr") {
			r.EligibleLeaderReplicas, r.LastKnownELR = w.replicas("elr"), []int32{}
		}
		if w.bool("recovery") {
			r.LeaderRecoveryState = int8(w.intn(2, "state"))
		}
		if w.bool("reassign") {
			r.Replicas = w.replicas("replicas")
			r.Directories = w.dirs(len(r.Replicas))
			r.AddingReplicas, r.RemovingReplicas = r.Replicas[:1], []int32{}
		}
		return one(r)
	case 15:
		t := w.topic()
		if t == nil {
			return nil
		}
		w.topics = slices.DeleteFunc(w.topics, func(o *worldTopic) bool { return o == t })
		return one(&message.RemoveTopicRecord{TopicID: t.id})
	case 16:
		if t := w.topic(); t != nil && w.bool("one") {
			return one(&message.ClearElrRecord{TopicName: t.name})
		}
		return one(&message.ClearElrRecord{})
	case 17, 18:
		r := &message.ConfigRecord{ResourceType: []int8{TopicResource, BrokerResource, GroupResource}[w.intn(3, "type")], ResourceName: w.name("resource"), Name: w.name("key")}
		if w.bool("set") {
			v := w.name("value")
			r.Value = &v
		}
		return one(r)
	case 19, 20:
		user := w.name("user")
		r := &message.ClientQuotaRecord{Key: w.name("key"), Value: float64(w.intn(100, "value")), Remove: w.bool("remove")}
		r.Entity = []message.ClientQuotaRecordEntityData{{EntityType: "user", EntityName: &user}}
		if w.bool("client") {
			r.Entity = append(r.Entity, message.ClientQuotaRecordEntityData{EntityType: "client-id"})
		}
		return one(r)
	case 21:
		return one(&message.ProducerIdsRecord{BrokerID: broker, BrokerEpoch: 1, NextProducerID: int64(w.intn(100000, "next"))})
	case 22:
		if len(w.acls) > 0 && w.bool("remove") {
			i := w.intn(len(w.acls), "acl")
			id := w.acls[i]
			w.acls = slices.Delete(w.acls, i, i+1)
			return one(&message.RemoveAccessControlEntryRecord{ID: id})
		}
		id := w.id()
		w.acls = append(w.acls, id)
		return one(&message.AccessControlEntryRecord{ID: id, ResourceType: 2, ResourceName: w.name("res"), PatternType: 3, Principal: "User:x", Host: "*", Operation: 3, PermissionType: 3})
	case 23:
		if w.bool("remove") {
			return one(&message.RemoveUserScramCredentialRecord{Name: w.name("user"), Mechanism: 1})
		}
		return one(&message.UserScramCredentialRecord{Name: w.name("user"), Mechanism: 1, Salt: []byte{1}, StoredKey: []byte{2}, ServerKey: []byte{3}, Iterations: 4096})
	case 24:
		if w.bool("remove") {
			return one(&message.RemoveDelegationTokenRecord{TokenID: w.name("token")})
		}
		return one(&message.DelegationTokenRecord{TokenID: w.name("token"), Owner: "User:o", Requester: "User:r", Renewers: []string{"User:x"}, MaxTimestamp: int64(w.intn(100, "max"))})
	case 25:
		return one(&message.FeatureLevelRecord{Name: []string{FeatureGroup, FeatureShare, FeatureELR}[w.intn(3, "feature")], FeatureLevel: int16(w.intn(3, "level"))})
	case 26:
		return one([]message.Message{message.NewNoOpRecord(), message.NewZkMigrationStateRecord(), message.NewBeginTransactionRecord(), message.NewEndTransactionRecord(), message.NewAbortTransactionRecord()}[w.intn(5, "nothing")])
	}
	return nil
}

func (w *world) topic() *worldTopic {
	if len(w.topics) == 0 {
		return nil
	}
	return w.topics[w.intn(len(w.topics), "topic")]
}

func (w *world) partition(t *worldTopic, id int32) message.Message {
	if !slices.Contains(t.partitions, id) {
		t.partitions = append(t.partitions, id)
	}
	r := message.NewPartitionRecord()
	r.TopicID, r.PartitionID, r.Replicas = t.id, id, w.replicas("replicas")
	r.ISR, r.Leader, r.LeaderEpoch, r.PartitionEpoch = r.Replicas[:1], r.Replicas[0], int32(w.intn(9, "leader epoch")), int32(w.intn(9, "partition epoch"))
	if w.bool("has dirs") {
		r.Directories = w.dirs(len(r.Replicas))
	}
	if w.bool("has elr") {
		r.EligibleLeaderReplicas, r.LastKnownELR = w.replicas("elr"), w.replicas("last known")
	}
	return r
}

func newWorld(t *rapid.T) *world { return &world{t: t, types: map[int16]bool{}} }

func replayAll(t *rapid.T, base *Image, ms []message.Message) *Image {
	d := NewDelta(base)
	for _, m := range ms {
		if err := d.Replay(m); err != nil {
			t.Fatal(err)
		}
	}
	return d.Apply(Provenance{})
}

// TestOneDeltaOrMany replays a random history in one delta, in one delta a record and in deltas cut anywhere, and expects
// equal images; every image seen on the way must still be what it was at the end.
func TestOneDeltaOrMany(t *testing.T) {
	drawn := map[int16]bool{}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		var ms []message.Message
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			ms = append(ms, w.draw()...)
		}
		for typ := range w.types {
			drawn[typ] = true
		}
		whole := replayAll(t, EmptyImage(), ms)
		single, cut := EmptyImage(), EmptyImage()
		type seen struct {
			img *Image
			n   int
		}
		var history []seen
		from := 0
		for i := range ms {
			single = replayAll(t, single, ms[i:i+1])
			if rapid.IntRange(0, 6).Draw(t, "cut") == 0 {
				cut = replayAll(t, cut, ms[from:i+1])
				from = i + 1
				history = append(history, seen{cut, from})
			}
		}
		cut = replayAll(t, cut, ms[from:])
		if diff := Diff(whole, single); diff != "" {
			t.Fatalf("one delta and a delta a record differ:\n%s", diff)
		}
		if diff := Diff(whole, cut); diff != "" {
			t.Fatalf("one delta and several differ:\n%s", diff)
		}
		for _, h := range history {
			if diff := Diff(h.img, replayAll(t, EmptyImage(), ms[:h.n])); diff != "" {
				t.Fatalf("the image after %d records has changed since:\n%s", h.n, diff)
			}
		}
		if diff := Diff(FullDelta(whole).Apply(Provenance{}), whole); diff != "" {
			t.Fatalf("the full delta does not make the image:\n%s", diff)
		}
	})
	for key := range int16(30) {
		m := message.NewMetadataRecord(key)
		if m != nil && !drawn[key] {
			t.Errorf("no %s was drawn", m.MessageName())
		}
	}
}

// TestSnapshotIsTheImage writes random images as snapshots, through their bytes, and reads them back, from nothing and over
// an image that is there; and writes them for every level, where the second writing must give what the first did.
func TestSnapshotIsTheImage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		var ms []message.Message
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			ms = append(ms, w.draw()...)
		}
		older := replayAll(t, EmptyImage(), ms[:rapid.IntRange(0, len(ms)).Draw(t, "older")])
		img := replayAll(t, EmptyImage(), ms)
		roundTrip := func(base *Image, v Version) (*Image, []string) {
			var text []string
			d := NewDelta(base)
			records, err := img.Records(v)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				b, err := message.AppendMetadataRecord(nil, r.Message, r.Version)
				if err != nil {
					t.Fatalf("level %d: %v", v, err)
				}
				back, err := message.ReadMetadataRecord(b)
				if err != nil {
					t.Fatal(err)
				}
				if err := d.Replay(back.Message); err != nil {
					t.Fatal(err)
				}
				text = append(text, string(message.AppendMetadataJSON(nil, back)))
			}
			d.FinishSnapshot()
			return d.Apply(Provenance{}), text
		}
		for _, base := range []*Image{EmptyImage(), older} {
			got, _ := roundTrip(base, LatestProduction)
			if diff := Diff(img, got); diff != "" {
				t.Fatalf("the snapshot is another image:\n%s", diff)
			}
		}
		full := img
		for v := MinVersion; v <= LatestTesting; v++ {
			img = full
			lossy, first := roundTrip(EmptyImage(), v)
			if lossy.Features.MetadataVersion != v {
				t.Fatalf("level %d written as %d", v, lossy.Features.MetadataVersion)
			}
			img = lossy
			_, second := roundTrip(EmptyImage(), v)
			if fmt.Sprint(first) != fmt.Sprint(second) {
				t.Fatalf("level %d: written twice\n%v\n%v", v, first, second)
			}
		}
	})
}

// TestVectorAgainstMap drives the persistent array of partitions beside a Go map.
func TestVectorAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := &Assignment{}
		var v vector
		want := map[int32]int32{}
		for range rapid.IntRange(0, 8).Draw(t, "rounds") {
			before, n := v, v.count
			ids := rapid.SliceOfNDistinct(rapid.OneOf(rapid.Int32Range(0, 100), rapid.Int32Range(0, 1<<31-1)), 0, 20, rapid.ID).Draw(t, "ids")
			slices.Sort(ids)
			var changes []change
			for _, id := range ids {
				leader := rapid.Int32().Draw(t, "leader")
				changes = append(changes, change{id, Partition{Assignment: a, Leader: leader}})
				want[id] = leader
			}
			v = v.set(changes)
			if before.count != n || v.count != len(want) {
				t.Fatalf("count %d, want %d", v.count, len(want))
			}
		}
		got := map[int32]int32{}
		last := int32(-1)
		for id, p := range v.all() {
			if id <= last {
				t.Fatalf("partition %d comes after %d", id, last)
			}
			last = id
			got[id] = p.Leader
		}
		if len(got) != len(want) {
			t.Fatalf("%v, want %v", got, want)
		}
		for id, leader := range want {
			if got[id] != leader || v.get(id) == nil || v.get(id).Leader != leader {
				t.Fatalf("partition %d: %v", id, v.get(id))
			}
		}
		for _, id := range []int32{-1, 101, 1 << 20, 1<<31 - 1} {
			if _, ok := want[id]; !ok && v.get(id) != nil {
				t.Fatalf("partition %d is there", id)
			}
		}
	})
}
