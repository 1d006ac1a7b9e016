package metadata

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gregor/internal/golden"
	"gregor/internal/message"
	"gregor/internal/record"
)

// metadataDir is one node's __cluster_metadata-0 in a golden archive.
type metadataDir struct {
	name      string
	batches   []Batch // of all segments
	snapshots []snapshotFile
}

type snapshotFile struct {
	endOffset int64
	epoch     int32
	batches   [][]message.Versioned
}

func (s snapshotFile) source() *sliceSource { return &sliceSource{s.batches} }

type sliceSource struct{ batches [][]message.Versioned }

func (s *sliceSource) Next() ([]message.Versioned, error) {
	if len(s.batches) == 0 {
		return nil, io.EOF
	}
	b := s.batches[0]
	s.batches = s.batches[1:]
	return b, nil
}

// readMetadataDirs decodes every metadata log and snapshot in an archive. A record that can't be read fails the test.
func readMetadataDirs(t testing.TB, archive string) []*metadataDir {
	t.Helper()
	files := golden.Files(t, archive, func(p string) bool {
		return path.Base(path.Dir(p)) == "__cluster_metadata-0" && (strings.HasSuffix(p, ".log") || strings.HasSuffix(p, ".checkpoint"))
	})
	dirs := map[string]*metadataDir{}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		d := dirs[path.Dir(p)]
		if d == nil {
			d = &metadataDir{name: path.Dir(p)}
			dirs[path.Dir(p)] = d
		}
		batches := readBatches(t, p, files[p])
		if !strings.HasSuffix(p, ".checkpoint") {
			d.batches = append(d.batches, batches...)
			continue
		}
		end, epoch, _ := strings.Cut(strings.TrimSuffix(path.Base(p), ".checkpoint"), "-")
		endOffset, err1 := strconv.ParseInt(end, 10, 64)
		e, err2 := strconv.ParseInt(epoch, 10, 32)
		if err1 != nil || err2 != nil {
			t.Fatalf("snapshot name %s", p)
		}
		s := snapshotFile{endOffset: endOffset, epoch: int32(e)}
		for _, b := range batches {
			if b.Records != nil {
				s.batches = append(s.batches, b.Records)
			}
		}
		d.snapshots = append(d.snapshots, s)
	}
	var out []*metadataDir
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		out = append(out, dirs[name])
	}
	return out
}

func readBatches(t testing.TB, name string, buf []byte) []Batch {
	t.Helper()
	var out []Batch
	for len(buf) > 0 {
		b, rest, err := record.Next(buf)
		if err != nil || b == nil {
			// What a crash cut off.
			t.Logf("%s ends with %d bytes that are no batch: %v", name, len(buf), err)
			return out
		}
		batch := Batch{BaseOffset: b.BaseOffset(), LastOffset: b.LastOffset(), Epoch: b.PartitionLeaderEpoch(), AppendTime: b.MaxTimestamp(), Bytes: len(buf) - len(rest)}
		buf = rest
		if !b.IsControl() {
			it := b.Records(nil)
			for it.Next() {
				v, err := message.ReadMetadataRecord(it.Record().Value)
				if err != nil {
					t.Fatalf("%s at %d: %v", name, it.Record().Offset, err)
				}
				batch.Records = append(batch.Records, v)
			}
			if err := it.Err(); err != nil {
				t.Fatalf("%s at %d: %v", name, batch.BaseOffset, err)
			}
		}
		out = append(out, batch)
	}
	return out
}

var quiet = slog.New(slog.DiscardHandler)

// load runs a loader over a snapshot, if there is one, and the batches from its end to endOffset.
func load(t testing.TB, snap *snapshotFile, batches []Batch, endOffset int64) *Image {
	t.Helper()
	l := NewLoader(LoaderOptions{
		Logger:        quiet,
		HighWatermark: func() int64 { return endOffset },
		OnFault:       func(err error) { t.Errorf("fault: %v", err) },
	})
	var got *Image
	deltas := 0
	if err := l.Install(publisherFunc(func(d *Delta, img *Image, _ Manifest) {
		got = img
		deltas++
		if deltas == 1 {
			if diff := Diff(NewImageFromDelta(d), img); diff != "" {
				t.Errorf("the first delta is not the whole image:\n%s", diff)
			}
		}
	})); err != nil {
		t.Fatal(err)
	}
	start := int64(0)
	if snap != nil {
		start = snap.endOffset
		if err := l.HandleSnapshot(snap.endOffset, snap.epoch, 0, snap.source()); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range batches {
		if b.BaseOffset >= start && b.LastOffset < endOffset {
			l.HandleCommit(b)
		}
	}
	if got == nil {
		t.Fatalf("nothing was published by offset %d of %d", l.LastAppliedOffset(), endOffset)
	}
	if deltas != 1 {
		t.Errorf("%d deltas were published, want everything in one", deltas)
	}
	if got != l.Image() || got.Offset != endOffset-1 {
		t.Errorf("image at offset %d, want %d", got.Offset, endOffset-1)
	}
	return got
}

// NewImageFromDelta applies a delta again, to see that it holds everything.
func NewImageFromDelta(d *Delta) *Image { return d.Apply(Provenance{}) }

type publisherFunc func(d *Delta, img *Image, m Manifest)

func (publisherFunc) Name() string                               { return "test" }
func (f publisherFunc) Publish(d *Delta, img *Image, m Manifest) { f(d, img, m) }

var goldenArchives = []string{
	"single-kill9", "single-deleting", "single-clean", "static-jbod", "static-upgraded",
	"jbod-future", "quorum3-kill9", "quorum3-clean", "meta-trimmed", "tiered", "legacy-magic", "crash-marked",
}

// TestGoldenImages replays the metadata logs and snapshots that Kafka left. A log replayed from its beginning gives at each
// snapshot's offset the image that the snapshot holds; snapshot and tail give what the whole log gives; and the end agrees
// with what Kafka's clients saw after Kafka was started on the directory.
func TestGoldenImages(t *testing.T) {
	for _, name := range goldenArchives {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dirs := readMetadataDirs(t, name)
			if len(dirs) == 0 {
				t.Fatal("no metadata log in the archive")
			}
			var final *Image
			for _, d := range dirs {
				img := checkDir(t, d)
				if final == nil || img.Offset > final.Offset {
					final = img
				}
			}
			checkExpectation(t, name, final)
		})
	}
}

func checkDir(t *testing.T, d *metadataDir) *Image {
	var end int64
	fromZero := len(d.batches) > 0 && d.batches[0].BaseOffset == 0
	for _, b := range d.batches {
		end = b.LastOffset + 1
	}
	var whole *Image
	if fromZero {
		whole = load(t, nil, d.batches, end)
	}
	for _, s := range d.snapshots {
		at := load(t, &s, nil, s.endOffset)
		checkSnapshotRoundTrip(t, at, s)
		if fromZero && s.endOffset > 0 && s.endOffset <= end {
			if diff := Diff(load(t, nil, d.batches, s.endOffset), at); diff != "" {
				t.Errorf("%s: log up to %d and snapshot differ:\n%s", d.name, s.endOffset, diff)
			}
		}
		if end < s.endOffset {
			if whole == nil {
				whole = at
			}
			continue
		}
		// A log that lies behind the 0-0 snapshot has its records again, in a transaction.
		tail := load(t, &s, d.batches, end)
		if whole == nil {
			whole = tail
		}
		if diff := Diff(whole, tail); diff != "" {
			t.Errorf("%s: snapshot %d and tail differ from the whole:\n%s", d.name, s.endOffset, diff)
		}
	}
	if whole == nil {
		t.Fatalf("%s: neither log nor snapshot", d.name)
	}
	return whole
}

// checkSnapshotRoundTrip writes the image as a snapshot and compares with Kafka's records, whose order within a part is that of
// Java's hash maps, and loads it again.
func checkSnapshotRoundTrip(t *testing.T, img *Image, s snapshotFile) {
	t.Helper()
	records, err := img.Records(img.Features.MetadataVersion)
	if err != nil {
		t.Fatal(err)
	}
	ours, kafkas := map[string]int{}, map[string]int{}
	var ourOrder, kafkaOrder []string
	note := func(m map[string]int, order *[]string, r message.Versioned) {
		m[normal(r)]++
		if part := partOf(r.Message); len(*order) == 0 || (*order)[len(*order)-1] != part {
			*order = append(*order, part)
		}
	}
	for _, r := range records {
		note(ours, &ourOrder, r)
	}
	for _, b := range s.batches {
		for _, r := range b {
			note(kafkas, &kafkaOrder, r)
		}
	}
	if !maps.Equal(ours, kafkas) {
		for r := range kafkas {
			if ours[r] == 0 {
				t.Errorf("snapshot %d: Kafka has %s", s.endOffset, r)
			}
		}
		for r := range ours {
			if kafkas[r] == 0 {
				t.Errorf("snapshot %d: we have %s", s.endOffset, r)
			}
		}
	}
	if !slices.Equal(ourOrder, kafkaOrder) {
		t.Errorf("snapshot %d: parts come in the order %v, Kafka's is %v", s.endOffset, ourOrder, kafkaOrder)
	}
	again := load(t, &snapshotFile{s.endOffset, s.epoch, [][]message.Versioned{records}}, nil, s.endOffset)
	if diff := Diff(img, again); diff != "" {
		t.Errorf("snapshot %d is another image when read back:\n%s", s.endOffset, diff)
	}
}

// normal is the record as text, with the sets in it sorted.
func normal(r message.Versioned) string {
	if b, ok := r.Message.(*message.RegisterBrokerRecord); ok {
		c := *b
		c.Features = slices.SortedFunc(slices.Values(c.Features), func(x, y message.RegisterBrokerRecordBrokerFeature) int { return strings.Compare(x.Name, y.Name) })
		c.EndPoints = slices.SortedFunc(slices.Values(c.EndPoints), func(x, y message.RegisterBrokerRecordBrokerEndpoint) int { return strings.Compare(x.Name, y.Name) })
		c.LogDirs = sortedDirs(c.LogDirs)
		r.Message = &c
	}
	if b, ok := r.Message.(*message.RegisterControllerRecord); ok {
		c := *b
		c.Features = slices.SortedFunc(slices.Values(c.Features), func(x, y message.RegisterControllerRecordControllerFeature) int {
			return strings.Compare(x.Name, y.Name)
		})
		c.EndPoints = slices.SortedFunc(slices.Values(c.EndPoints), func(x, y message.RegisterControllerRecordControllerEndpoint) int {
			return strings.Compare(x.Name, y.Name)
		})
		r.Message = &c
	}
	if b, ok := r.Message.(*message.ClientQuotaRecord); ok {
		c := *b
		c.Entity = slices.SortedFunc(slices.Values(c.Entity), func(x, y message.ClientQuotaRecordEntityData) int { return strings.Compare(x.EntityType, y.EntityType) })
		r.Message = &c
	}
	return string(message.AppendMetadataJSON(nil, r))
}

func partOf(m message.Message) string {
	switch m.(type) {
	case *message.TopicRecord, *message.PartitionRecord:
		return "topics"
	}
	return m.MessageName()
}

// expectation is the part of expect.json that speaks of metadata.
type expectation struct {
	After struct {
		Brokers []struct {
			ID   int32
			Host string
			Port uint16
			Rack *string
		}
		Topics map[string]struct {
			TopicID    string
			Configs    map[string]string
			Partitions map[string]struct{ Replicas string }
		}
		Features       map[string]int16
		ACLs           []string
		ACLsError      string
		ClientQuotas   map[string]string
		SCRAMUsers     map[string]string
		DynamicConfigs map[string]map[string]string
		Quorum         struct{ Voters []string }
	} `json:"afterKafkaStartedOnIt"`
}

func checkExpectation(t *testing.T, name string, img *Image) {
	var e expectation
	golden.Expect(t, name, &e)
	a := e.After
	if len(a.Features) == 0 {
		t.Fatal("expect.json says nothing of the metadata")
	}

	level := int64(img.Features.MetadataVersion)
	if want := int64(a.Features[FeatureMetadataVersion]); level != want {
		t.Errorf("metadata.version %d, want %d", level, want)
	}
	delete(a.Features, FeatureMetadataVersion)
	delete(a.Features, FeatureKRaft)
	maps.DeleteFunc(a.Features, func(_ string, l int16) bool { return l == 0 })
	if !maps.Equal(a.Features, img.Features.Levels) {
		t.Errorf("features %v, want %v", img.Features.Levels, a.Features)
	}
	checkSCRAM(t, img, a.SCRAMUsers)

	for _, b := range a.Brokers {
		got := img.Cluster.Broker(b.ID)
		if got == nil {
			t.Errorf("broker %d is not registered", b.ID)
			continue
		}
		at := false
		for _, l := range got.Listeners {
			at = at || l.Host == b.Host && l.Port == b.Port
		}
		if !at || !equalString(got.Rack, b.Rack) {
			t.Errorf("broker %d is at %v, rack %v, want %s:%d", b.ID, got.Listeners, got.Rack, b.Host, b.Port)
		}
	}
	if len(a.Brokers) != len(img.Cluster.Brokers) {
		t.Errorf("%d brokers, want %d", len(img.Cluster.Brokers), len(a.Brokers))
	}
	if img.Features.MetadataVersion.ControllerRegistrations() {
		for _, v := range a.Quorum.Voters {
			id, _, _ := strings.Cut(v, "@")
			n, err := strconv.Atoi(id)
			if err != nil || img.Cluster.Controllers[int32(n)] == nil {
				t.Errorf("voter %s is not registered as a controller", v)
			}
		}
	}

	if len(a.Topics) != img.Topics.Len() {
		t.Errorf("%d topics, want %d", img.Topics.Len(), len(a.Topics))
	}
	partitions := 0
	for topic, want := range a.Topics {
		got := img.Topics.ByName(topic)
		if got == nil || got.ID.String() != want.TopicID || img.Topics.ByID(got.ID) != got {
			t.Errorf("topic %s: %+v, want id %s", topic, got, want.TopicID)
			continue
		}
		if c := img.Configs.Topic(topic); !maps.Equal(c, want.Configs) {
			t.Errorf("configs of topic %s: %v, want %v", topic, c, want.Configs)
		}
		if got.Len() != len(want.Partitions) {
			t.Errorf("topic %s has %d partitions, want %d", topic, got.Len(), len(want.Partitions))
		}
		partitions += got.Len()
		for id, w := range want.Partitions {
			n, err := strconv.Atoi(id)
			if err != nil {
				t.Fatal(err)
			}
			p := got.Partition(int32(n))
			if p == nil || strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Replicas), " ", ","), "[]") != w.Replicas {
				t.Errorf("partition %s-%s: %v, want replicas %s", topic, id, p, w.Replicas)
			}
		}
	}
	if img.Topics.PartitionCount() != partitions {
		t.Errorf("PartitionCount = %d, want %d", img.Topics.PartitionCount(), partitions)
	}

	types := map[int8]string{BrokerResource: "BROKER", GroupResource: "GROUP", ClientMetricsResource: "CLIENT_METRICS"}
	configs := map[string]map[string]string{}
	for r, c := range img.Configs.All() {
		if types[r.Type] != "" {
			configs[types[r.Type]+":"+r.Name] = c
		}
	}
	maps.DeleteFunc(a.DynamicConfigs, func(_ string, c map[string]string) bool { return len(c) == 0 })
	if !maps.EqualFunc(configs, a.DynamicConfigs, maps.Equal[map[string]string]) {
		t.Errorf("dynamic configs %v, want %v", configs, a.DynamicConfigs)
	}

	if a.ACLsError == "" {
		var acls []string
		for _, acl := range img.ACLs.All() {
			acls = append(acls, aclText(acl))
		}
		slices.Sort(acls)
		slices.Sort(a.ACLs)
		if !slices.Equal(acls, a.ACLs) {
			t.Errorf("acls\n%s\nwant\n%s", strings.Join(acls, "\n"), strings.Join(a.ACLs, "\n"))
		}
	}
	quotas := map[string]string{}
	for q := range img.ClientQuotas.All() {
		var entity, values []string
		for _, p := range q.Entity {
			n := "<default>"
			if p.Name != nil {
				n = *p.Name
			}
			entity = append(entity, p.Type+"="+n)
		}
		for _, k := range slices.Sorted(maps.Keys(q.Quotas)) {
			v := strconv.FormatFloat(q.Quotas[k], 'f', -1, 64)
			if !strings.Contains(v, ".") {
				v += ".0"
			}
			values = append(values, k+"="+v)
		}
		quotas["{"+strings.Join(entity, ", ")+"}"] = "{" + strings.Join(values, ", ") + "}"
	}
	if !maps.Equal(quotas, a.ClientQuotas) {
		t.Errorf("client quotas %v, want %v", quotas, a.ClientQuotas)
	}
}

func checkSCRAM(t *testing.T, img *Image, want map[string]string) {
	t.Helper()
	mechanisms := map[int8]string{1: "SCRAM_SHA_256", 2: "SCRAM_SHA_512"}
	users := map[string][]string{}
	for k, c := range img.SCRAM.All() {
		users[k.User] = append(users[k.User], fmt.Sprintf("%s:%d", mechanisms[k.Mechanism], c.Iterations))
	}
	got := map[string]string{}
	for user, creds := range users {
		slices.Sort(creds)
		got[user] = strings.Join(creds, ",")
	}
	if !maps.Equal(got, want) {
		t.Errorf("scram users %v, want %v", got, want)
	}
}

func aclText(a ACL) string {
	resource := map[int8]string{2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER"}
	pattern := map[int8]string{3: "LITERAL", 4: "PREFIXED"}
	operation := map[int8]string{2: "ALL", 3: "READ", 4: "WRITE", 5: "CREATE", 6: "DELETE", 7: "ALTER", 8: "DESCRIBE"}
	permission := map[int8]string{2: "DENY", 3: "ALLOW"}
	return fmt.Sprintf("(pattern=ResourcePattern(resourceType=%s, name=%s, patternType=%s), entry=(principal=%s, host=%s, operation=%s, permissionType=%s))",
		resource[a.ResourceType], a.ResourceName, pattern[a.PatternType], a.Principal, a.Host, operation[a.Operation], permission[a.PermissionType])
}

// TestGoldenFormatted loads what Kafka's storage tool leaves: the bootstrap snapshot and no log.
func TestGoldenFormatted(t *testing.T) {
	f := func(name string, level Version, levels map[string]int16, users map[string]string) {
		t.Helper()
		dirs := readMetadataDirs(t, name)
		if len(dirs) != 1 || len(dirs[0].snapshots) != 1 || len(dirs[0].batches) != 0 {
			t.Fatalf("%s: %+v", name, dirs)
		}
		img := checkDir(t, dirs[0])
		if img.Features.MetadataVersion != level || !maps.Equal(img.Features.Levels, levels) || img.Offset != -1 {
			t.Errorf("%s: %+v at offset %d", name, img.Features, img.Offset)
		}
		checkSCRAM(t, img, users)
	}
	f("fresh-dynamic", V4_4_IV2, map[string]int16{
		FeatureTransaction: 2, FeatureGroup: 1, FeatureELR: 1, FeatureShare: 2, FeatureStreams: 1,
	}, map[string]string{"admin": "SCRAM_SHA_256:4096"})
	f("fresh-static", V3_9_IV0, map[string]int16{}, map[string]string{})
}

// TestGoldenTransactions checks that the bootstrap transaction in Kafka's logs is really one for the loader: cut before its
// end, nothing of it is visible.
func TestGoldenTransactions(t *testing.T) {
	d := readMetadataDirs(t, "single-clean")[0]
	l := NewLoader(LoaderOptions{Logger: quiet, HighWatermark: func() int64 { return 0 }, OnFault: func(err error) { t.Error(err) }})
	began, ended := false, false
	for _, b := range d.batches {
		for i, r := range b.Records {
			switch r.Message.(type) {
			case *message.BeginTransactionRecord:
				began = true
			case *message.EndTransactionRecord:
				ended = true
				if i != len(b.Records)-1 {
					t.Fatal("the transaction ends inside of a batch: this data shows nothing of what is tested")
				}
			}
		}
		l.HandleCommit(b)
		if began && !ended && l.Image().Features.MetadataVersion != 0 {
			t.Fatal("an open transaction was published")
		}
		if ended {
			break
		}
	}
	if l.Image().Features.MetadataVersion != LatestProduction {
		t.Errorf("metadata.version %d after the transaction", l.Image().Features.MetadataVersion)
	}
}
