package log

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gregor/internal/clock"
	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

const goldenDir = "../../testdata/golden"

// goldenNow is shortly after the golden data were made, so that nothing in them is too old.
var goldenNow = time.UnixMilli(1796008800000)

// golden is what an expect.json says, as far as it concerns the log.
type golden struct {
	ClusterID string `json:"clusterId"`
	OnDisk    map[string]struct {
		Files      map[string]goldenFile `json:"files"`
		Partitions map[string]struct {
			Files map[string]goldenFile `json:"files"`
		} `json:"partitions"`
	} `json:"onDisk"`
	After struct {
		Topics map[string]goldenTopic `json:"topics"`
	} `json:"afterKafkaStartedOnIt"`
}

type goldenFile struct {
	Size       int64            `json:"size"`
	Error      string           `json:"error"`
	Text       *string          `json:"text"`
	Entries    []string         `json:"entries"`
	Padded     *int             `json:"zeroPaddedFromEntry"`
	ValidBytes int64            `json:"validBytes"`
	Batches    []goldenBatch    `json:"batches"`
	Producers  []goldenProducer `json:"producers"`
}

type goldenBatch struct {
	Position, Size         int64
	Magic                  int8
	BaseOffset, LastOffset int64
	PartitionLeaderEpoch   int32
	Compression            string
	MaxTimestamp           int64
	ProducerID             int64 `json:"producerId"`
	ProducerEpoch          int16
	BaseSequence           int32
	Transactional, Control bool
	Count                  *int32
	Checksum               uint32
	Valid                  bool
	DeleteHorizonMs        *int64
	Records                []goldenRecord
}

type goldenRecord struct {
	Offset           int64
	Timestamp        int64
	Sequence         *int32
	Key, Value       *string
	ValueSha256      string
	ControlType      string
	CoordinatorEpoch *int32
	LeaderEpoch      *int32
	ReadCommitted    *bool
	Headers          json.RawMessage
}

type goldenProducer struct {
	ProducerID       int64 `json:"producerId"`
	Epoch            int16
	LastSequence     int32
	LastTimestamp    int64
	CoordinatorEpoch int32
	TxnFirst         int64  `json:"currentTxnFirstOffset"`
	TxnStart         int64  `json:"currentTxnStartOffset"`
	BatchMetadata    string `json:"batchMetadata"`
}

type goldenTopic struct {
	TopicID    string `json:"topicId"`
	Configs    map[string]string
	Partitions map[string]*goldenPartition
}

type goldenPartition struct {
	LogStartOffset, HighWatermark, LastStableOffset int64
	MaxTimestampOffset, MaxTimestamp                int64
	Producers                                       []goldenProducer
	Records                                         []goldenRecord
	ReadStoppedAt                                   *int64 `json:"readStoppedAt-read_uncommitted"`
}

var goldenCache sync.Map // name -> func() (*goldenSet, error)

type goldenSet struct {
	golden
	disk *vfs.Mem
}

// loadGolden unpacks an archive into memory, once; take a clone to work on.
func loadGolden(t testing.TB, name string) *goldenSet {
	t.Helper()
	f, _ := goldenCache.LoadOrStore(name, sync.OnceValues(func() (*goldenSet, error) {
		g := &goldenSet{disk: vfs.NewMem()}
		data, err := os.ReadFile(filepath.Join(goldenDir, name+".expect.json"))
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(data, &g.golden); err != nil {
			return nil, err
		}
		return g, unpack(filepath.Join(goldenDir, name+".tar.gz"), g.disk)
	}))
	g, err := f.(func() (*goldenSet, error))()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// unpack leaves zero blocks out: preallocated index files are 10 MiB of them.
func unpack(archive string, to *vfs.Mem) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	tr := tar.NewReader(z)
	buf := make([]byte, 1<<16)
	zero := make([]byte, 1<<16)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return to.SyncAll("/")
		}
		if err != nil {
			return err
		}
		name := "/" + path.Clean(h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := to.MkdirAll(name); err != nil {
				return err
			}
			continue
		}
		to.MkdirAll(path.Dir(name))
		out, err := to.Create(name)
		if err != nil {
			return err
		}
		for off := int64(0); ; {
			n, err := io.ReadFull(tr, buf)
			if n > 0 && !bytes.Equal(buf[:n], zero[:n]) {
				out.WriteAt(buf[:n], off)
			}
			off += int64(n)
			if err != nil {
				break
			}
		}
		out.Truncate(h.Size)
		out.Close()
	}
}

func (g *goldenSet) clone() *vfs.Mem { return g.disk.CrashClone(rand.New(rand.NewPCG(1, 1)), 1) }

var goldenNames = []string{"fresh-dynamic", "fresh-static", "single-kill9", "single-deleting", "single-clean", "static-jbod", "static-upgraded",
	"jbod-future", "quorum3-kill9", "quorum3-clean", "meta-trimmed", "legacy-magic", "crash-unclean", "crash-marked"}

// TestGoldenFiles reads every file that Kafka left with our decoders and compares with what Kafka's own classes read.
func TestGoldenFiles(t *testing.T) {
	for _, name := range goldenNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := loadGolden(t, name)
			files := 0
			for dir, d := range g.OnDisk {
				for p, files2 := range d.Partitions {
					for f, want := range files2.Files {
						checkGoldenFile(t, g.disk, path.Join("/", name, dir, p, f), want)
						files++
					}
				}
				for f, want := range d.Files {
					checkGoldenFile(t, g.disk, path.Join("/", name, dir, f), want)
					files++
				}
			}
			t.Logf("%d files", files)
		})
	}
}

func checkGoldenFile(t *testing.T, disk *vfs.Mem, name string, want goldenFile) {
	t.Helper()
	base := path.Base(name)
	st, err := disk.Stat(name)
	if err != nil || st.Size() != want.Size {
		t.Errorf("%s: %v, size %d, want %d", name, err, st.Size(), want.Size)
		return
	}
	offset, suffix, nameErr := parseOffsetName(strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(base, suffixSwap), suffixCleaned), suffixDeleted))
	data, err := readFile(disk, name)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case want.Batches != nil:
		checkGoldenBatches(t, name, data, want)
	case suffix == suffixSnapshot && nameErr == nil:
		entries, err := decodeSnapshot(data)
		if (err != nil) != (want.Error != "") {
			t.Errorf("%s: %v, Kafka says %q", name, err, want.Error)
			return
		}
		if err != nil {
			return
		}
		if len(entries) != len(want.Producers) {
			t.Errorf("%s: %d producers, want %d", name, len(entries), len(want.Producers))
		}
		for _, p := range want.Producers {
			e := entries[p.ProducerID]
			if e == nil || e.epoch != p.Epoch || e.coordEpoch != p.CoordinatorEpoch || e.lastTimestamp != p.LastTimestamp || e.txnFirst != p.TxnFirst {
				t.Errorf("%s: producer %d is %+v, want %+v", name, p.ProducerID, e, p)
				continue
			}
			got := "[]"
			if b, ok := e.last(); ok {
				got = fmt.Sprintf("[BatchMetadata(firstSeq=%d, lastSeq=%d, firstOffset=%d, lastOffset=%d, timestamp=%d)]", b.firstSeq(), b.lastSeq, b.firstOffset(), b.lastOffset, b.timestamp)
			}
			if got != p.BatchMetadata {
				t.Errorf("%s: producer %d has %s, want %s", name, p.ProducerID, got, p.BatchMetadata)
			}
		}
		// Without producers' hash order in the way, what we write is what Kafka wrote.
		if len(entries) <= 1 && !bytes.Equal(encodeSnapshot(entries), data) {
			t.Errorf("%s: encoding it again gives other bytes", name)
		}
	case suffix == suffixIndex && nameErr == nil:
		n := len(data) / indexEntrySize
		if want.Padded != nil {
			n = *want.Padded
		}
		var got []string
		for i := range n {
			rel, pos := indexEntry(data[i*indexEntrySize:])
			got = append(got, fmt.Sprintf("%d->%d", offset+int64(rel), pos))
		}
		if !slices.Equal(got, want.Entries) && want.Error == "" {
			t.Errorf("%s: entries %v, want %v", name, got, want.Entries)
		}
	case suffix == suffixTimeIndex && nameErr == nil:
		n := len(data) / timeEntrySize
		if want.Padded != nil {
			n = *want.Padded
		}
		var got []string
		for i := range n {
			ts, rel := timeEntry(data[i*timeEntrySize:])
			got = append(got, fmt.Sprintf("%d->%d", ts, offset+int64(rel)))
		}
		if !slices.Equal(got, want.Entries) && want.Error == "" {
			t.Errorf("%s: entries %v, want %v", name, got, want.Entries)
		}
	case suffix == suffixTxnIndex && nameErr == nil:
		all, err := decodeTxnIndex(data, offset)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		var again []byte
		for _, a := range all {
			got = append(got, fmt.Sprintf("AbortedTxn(producerId=%d, firstOffset=%d, lastOffset=%d, lastStableOffset=%d)", a.producerID, a.firstOffset, a.lastOffset, a.lastStableOffset))
			again = appendTxnEntry(again, a)
		}
		if !slices.Equal(got, want.Entries) || !bytes.Equal(again, data) {
			t.Errorf("%s: entries %v, want %v", name, got, want.Entries)
		}
	case base == epochFile:
		entries, err := decodeEpochs(data)
		if err != nil || (len(data) > 0 && string(encodeEpochs(entries)) != string(data)) {
			t.Errorf("%s: %v %v", name, entries, err)
		}
	case base == partitionMetadataFile:
		id, err := decodePartitionMetadata(data)
		if err != nil || string(encodePartitionMetadata(id)) != string(data) {
			t.Errorf("%s: %v %v", name, id, err)
		}
	case base == MetaPropertiesFile:
		m, err := DecodeMetaProperties(data)
		if err != nil || m.Version != 1 || m.ClusterID == "" || m.DirectoryID == uuid.Zero {
			t.Errorf("%s: %+v %v", name, m, err)
		}
		// All but the date and the order of the lines.
		if got, want := sortedLines(m.Encode(goldenNow)), sortedLines(data); !slices.Equal(got, want) {
			t.Errorf("%s: encoding it again gives %q, want %q", name, got, want)
		}
	case strings.HasSuffix(base, "-offset-checkpoint"):
		m, err := decodeOffsets(data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var lines []partitionOffset
		for tp, o := range m {
			lines = append(lines, partitionOffset{tp, o})
		}
		if got, want := sortedLines(encodeOffsets(lines)), sortedLines(data); len(data) > 0 && !slices.Equal(got, want) {
			t.Errorf("%s: encoding it again gives other lines", name)
		}
	case base == cleanShutdownFile:
		if epoch := decodeCleanShutdown(data); string(encodeCleanShutdown(epoch)) != string(data) {
			t.Errorf("%s: broker epoch %d from %q", name, epoch, data)
		}
	}
}

func sortedLines(b []byte) []string {
	lines := slices.DeleteFunc(strings.Split(string(b), "\n"), func(l string) bool { return strings.HasPrefix(l, "#") })
	slices.Sort(lines)
	return lines
}

func checkGoldenBatches(t *testing.T, name string, data []byte, want goldenFile) {
	t.Helper()
	d := record.NewDecompressor(record.DecompressorOptions{})
	h := newHeaderScan(bytes.NewReader(data), 0, int64(len(data)))
	defer h.close()
	i := 0
	for {
		hd, err := h.next()
		if err != nil {
			if err != io.EOF && !errors.Is(err, record.ErrTruncated) && want.Error == "" {
				t.Errorf("%s: %v", name, err)
			}
			break
		}
		if i >= len(want.Batches) {
			t.Errorf("%s: more batches than the %d expected", name, len(want.Batches))
			break
		}
		w := want.Batches[i]
		i++
		e := record.Entry(data[hd.pos : hd.pos+hd.size])
		valid := e.Check() == nil
		if hd.pos != w.Position || hd.size != w.Size || e.Magic() != w.Magic || e.LastOffset() != w.LastOffset || e.MaxTimestamp() != w.MaxTimestamp ||
			e.PartitionLeaderEpoch() != w.PartitionLeaderEpoch || valid != w.Valid {
			t.Errorf("%s: batch at %d: last offset %d, timestamp %d, epoch %d, valid %v; want %+v", name, hd.pos, e.LastOffset(), e.MaxTimestamp(), e.PartitionLeaderEpoch(), valid, w)
		}
		if w.Magic == 2 {
			b := e.Batch()
			if b.BaseOffset() != w.BaseOffset || b.ProducerID() != w.ProducerID || b.ProducerEpoch() != w.ProducerEpoch || b.BaseSequence() != w.BaseSequence ||
				b.IsTransactional() != w.Transactional || b.IsControl() != w.Control || b.CRC() != w.Checksum || b.Codec().String() != w.Compression {
				t.Errorf("%s: batch at %d differs from %+v", name, hd.pos, w)
			}
		}
		if !valid || w.Records == nil {
			continue
		}
		var got []goldenRecord
		if err := eachRecord(e, d, func(r record.Record) { got = append(got, goldenRecord{Offset: r.Offset, Timestamp: r.Timestamp}) }); err != nil {
			t.Errorf("%s: batch at %d: %v", name, hd.pos, err)
		}
		if len(got) != len(w.Records) {
			t.Errorf("%s: batch at %d has %d records, want %d", name, hd.pos, len(got), len(w.Records))
			continue
		}
		for k, r := range got {
			if r.Offset != w.Records[k].Offset || r.Timestamp != w.Records[k].Timestamp {
				t.Errorf("%s: batch at %d: record %d is %+v, want %+v", name, hd.pos, k, r, w.Records[k])
			}
		}
	}
	if i != len(want.Batches) {
		t.Errorf("%s: %d batches, want %d", name, i, len(want.Batches))
	}
}

func eachRecord(e record.Entry, d *record.Decompressor, f func(record.Record)) error {
	if e.Magic() == 2 {
		it := e.Batch().Records(d)
		defer it.Close()
		for it.Next() {
			f(it.Record())
		}
		return it.Err()
	}
	it := e.Legacy().Records(d)
	for it.Next() {
		f(it.Record().Record)
	}
	return it.Err()
}

// better lists where gregor does more than Kafka did, by golden and partition.
var better = map[string]string{
	// A batch below the recovery point is damaged. Kafka scans the whole segment that holds the recovery point and throws away
	// everything from the damage on; gregor keeps what was synced behind it.
	"crash-unclean/c-bad-crc-active-0": "keeps what lies behind a damaged batch that was synced",
	// Kafka believes a garbage index after a clean stop.
	"crash-marked/c-index-garbage-0": "finds the true end of the log",
	// Kafka begins with no producers when there is no snapshot after a clean stop.
	"crash-marked/c-no-snapshots-0": "finds the producers in the log",
}

func goldenConfig(t goldenTopic) Config {
	c := DefaultConfig()
	c.RetentionAge = -1
	num := func(key string, to *int32) {
		if v, ok := t.Configs[key]; ok {
			n, _ := strconv.Atoi(v)
			*to = int32(n)
		}
	}
	num("segment.bytes", &c.SegmentBytes)
	num("internal.segment.bytes", &c.SegmentBytes)
	num("index.interval.bytes", &c.IndexIntervalBytes)
	c.CleanupCompact = strings.Contains(t.Configs["cleanup.policy"], "compact")
	return c
}

// TestGoldenOpen opens the directories that Kafka left and compares with what Kafka's clients saw when Kafka was started on
// them; then stops cleanly and does it again.
func TestGoldenOpen(t *testing.T) {
	for _, name := range []string{"single-kill9", "single-deleting", "single-clean", "static-jbod", "static-upgraded", "jbod-future", "meta-trimmed",
		"legacy-magic", "crash-unclean", "crash-marked"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := loadGolden(t, name)
			openGolden(t, g, name, "node-1", g.clone())
		})
	}
	for _, name := range []string{"quorum3-kill9", "quorum3-clean"} {
		for _, node := range []string{"node-1", "node-2"} {
			t.Run(name+"/"+node, func(t *testing.T) {
				t.Parallel()
				g := loadGolden(t, name)
				openGolden(t, g, name, node, g.clone())
			})
		}
	}
}

func openGolden(t *testing.T, g *goldenSet, name, node string, disk *vfs.Mem) {
	var dirs []string
	for dir := range g.OnDisk {
		if strings.HasPrefix(dir, node+"/") && dir != node+"/meta" {
			dirs = append(dirs, path.Join("/", name, dir))
		}
	}
	slices.Sort(dirs)
	nodeID, _ := strconv.Atoi(strings.TrimPrefix(node, "node-"))
	known := func(tp TopicPartition, id uuid.UUID) bool {
		want, ok := g.After.Topics[tp.Topic]
		return ok && want.TopicID == id.String()
	}
	o := Options{FS: disk, Clock: clock.NewManual(goldenNow), Dirs: dirs, NodeID: int32(nodeID), NoBackground: true, Known: known,
		Rand: rand.New(rand.NewPCG(1, 2)), TopicConfig: func(topic string) Config { return goldenConfig(g.After.Topics[topic]) }}
	wasMarked := false
	if _, err := disk.Stat(dirs[0] + "/" + cleanShutdownFile); err == nil {
		wasMarked = true
	}
	for round := range 3 {
		m, err := Open(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 && m.WasClean() != wasMarked || round > 0 && !m.WasClean() {
			t.Errorf("round %d: clean is %v", round, m.WasClean())
		}
		checked := 0
		for topic, want := range g.After.Topics {
			for p, wp := range want.Partitions {
				n, _ := strconv.Atoi(p)
				tp := TopicPartition{topic, int32(n)}
				l := m.Log(tp)
				if l == nil {
					// The directory was a stray, or never there: Kafka made an empty one.
					if wp.HighWatermark != 0 && !strings.HasPrefix(name, "quorum3") {
						t.Errorf("round %d: %s is gone, and Kafka had %d records", round, tp, wp.HighWatermark)
					}
					continue
				}
				if topic[:2] == "__" {
					// Coordinators write to these as soon as they run.
					if l.EndOffset() > wp.HighWatermark {
						t.Errorf("%s ends at %d, beyond %d", tp, l.EndOffset(), wp.HighWatermark)
					}
					continue
				}
				l.SetHighWatermark(l.EndOffset())
				checkGoldenPartition(t, fmt.Sprintf("%s/%s", name, tp), l, wp)
				checked++
			}
		}
		t.Logf("round %d: %d partitions", round, checked)
		if round == 1 {
			// Once by a crash in between: nothing may depend on the clean stop.
			m.bg.close()
			disk = disk.CrashClone(rand.New(rand.NewPCG(5, 5)), 0)
			o.FS = disk
			if err := writeFile(disk, dirs[0]+"/"+cleanShutdownFile, nil, true); err != nil {
				t.Fatal(err)
			}
			for _, d := range dirs[1:] {
				writeFile(disk, d+"/"+cleanShutdownFile, nil, true)
			}
			continue
		}
		if err := m.Close(context.Background(), 1); err != nil {
			t.Fatal(err)
		}
	}
}

func checkGoldenPartition(t *testing.T, what string, l *Log, want *goldenPartition) {
	t.Helper()
	d := record.NewDecompressor(record.DecompressorOptions{})
	start, stable, hw, end := l.Offsets()
	note := better[what]
	switch {
	case note != "":
		if end < want.HighWatermark || start != want.LogStartOffset {
			t.Errorf("%s (%s): start %d end %d, want %+v", what, note, start, end, want)
		}
		want.HighWatermark = end
	case end != want.HighWatermark || start != want.LogStartOffset || stable != want.LastStableOffset || hw != end:
		t.Errorf("%s: start %d stable %d hw %d end %d, want start %d stable %d end %d", what, start, stable, hw, end, want.LogStartOffset, want.LastStableOffset, want.HighWatermark)
	}
	if got := l.Producers(); note == "" {
		var ps []goldenProducer
		for _, p := range got {
			ps = append(ps, goldenProducer{ProducerID: p.ProducerID, Epoch: p.ProducerEpoch, LastSequence: p.LastSequence, LastTimestamp: p.LastTimestamp,
				CoordinatorEpoch: p.CoordinatorEpoch, TxnStart: p.CurrentTxnFirstOffset})
		}
		sorted := slices.SortedFunc(slices.Values(want.Producers), func(a, b goldenProducer) int { return int(a.ProducerID - b.ProducerID) })
		if !slices.Equal(ps, sorted) {
			t.Errorf("%s: producers %+v, want %+v", what, ps, sorted)
		}
	}
	o, ok, err := l.OffsetForTimestamp(TimestampMax)
	if err != nil {
		t.Errorf("%s: max timestamp: %v", what, err)
	}
	if !ok {
		o = TimestampOffset{Timestamp: -1, Offset: -1}
	}
	if (o.Offset != want.MaxTimestampOffset || o.Timestamp != want.MaxTimestamp) && note == "" && o.Timestamp < want.MaxTimestamp {
		t.Errorf("%s: max timestamp %d at %d, want %d at %d", what, o.Timestamp, o.Offset, want.MaxTimestamp, want.MaxTimestampOffset)
	}
	if want.Records == nil {
		return
	}
	for _, iso := range []Isolation{ReadUncommitted, ReadCommitted} {
		var got []goldenRecord
		stopped := int64(-1)
		aborting := map[int64]bool{}
		var pending []AbortedTxn
		limit := end
		if iso == ReadCommitted {
			limit = stable
		}
	reading:
		for at := start; at < limit; {
			f, err := l.Read(at, 300, iso, true)
			if err != nil {
				t.Errorf("%s: read at %d: %v", what, at, err)
				break
			}
			data, err := f.Slice.Bytes(nil)
			f.Slice.Release()
			if err != nil {
				t.Fatal(err)
			}
			if len(data) == 0 {
				break
			}
			pending = f.Aborted
			progress := false
			for {
				e, rest, err := record.NextEntry(data)
				if err != nil || e == nil {
					break
				}
				data = rest
				if e.Check() != nil {
					stopped = at
					break reading
				}
				if e.Magic() == 2 && iso == ReadCommitted && e.Batch().HasProducer() {
					b := e.Batch()
					for len(pending) > 0 && pending[0].FirstOffset <= b.LastOffset() {
						aborting[pending[0].ProducerID] = true
						pending = pending[1:]
					}
					if b.IsControl() {
						if m, ok, _ := readMarker(b); ok && m.abort {
							delete(aborting, b.ProducerID())
						}
					} else if b.IsTransactional() && aborting[b.ProducerID()] {
						at, progress = e.LastOffset()+1, true
						continue
					}
				}
				if e.Magic() != 2 || !e.Batch().IsControl() {
					epoch := e.PartitionLeaderEpoch()
					err := eachRecord(e, d, func(r record.Record) {
						if r.Offset >= at {
							got = append(got, goldenRecord{Offset: r.Offset, Timestamp: r.Timestamp, Key: str(r.Key), Value: str(r.Value), LeaderEpoch: &epoch})
						}
					})
					if err != nil {
						t.Errorf("%s: %v", what, err)
					}
				}
				at, progress = e.LastOffset()+1, true
			}
			if !progress {
				t.Errorf("%s: no whole batch at %d", what, at)
				break
			}
		}
		var wantRecords []goldenRecord
		for _, r := range want.Records {
			if iso == ReadUncommitted || (r.ReadCommitted != nil && *r.ReadCommitted) {
				wantRecords = append(wantRecords, r)
			}
		}
		if note != "" && len(got) > len(wantRecords) {
			got = got[:len(wantRecords)]
		}
		if note == "" && want.ReadStoppedAt != nil && stopped != *want.ReadStoppedAt {
			t.Errorf("%s: damage at %d, want %d", what, stopped, *want.ReadStoppedAt)
		}
		if len(got) != len(wantRecords) {
			t.Errorf("%s: isolation %d: %d records, want %d", what, iso, len(got), len(wantRecords))
			continue
		}
		for i, r := range got {
			w := wantRecords[i]
			if r.Offset != w.Offset || r.Timestamp != w.Timestamp || !same(r.Key, w.Key) || *r.LeaderEpoch != *w.LeaderEpoch || !sameValue(r.Value, w) {
				t.Errorf("%s: record %d at %d differs: %+v, want %+v", what, i, r.Offset, r, w)
			}
		}
	}
}

func str(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

func same(a, b *string) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

func sameValue(v *string, w goldenRecord) bool {
	if w.ValueSha256 != "" {
		sum := sha256.Sum256([]byte(*v))
		return strings.HasPrefix(hex.EncodeToString(sum[:]), w.ValueSha256)
	}
	return same(v, w.Value)
}

// TestGoldenClean undoes what Kafka's cleaner had just done when single-deleting was taken, lets ours do it, and compares the
// segments byte by byte.
func TestGoldenClean(t *testing.T) {
	g, before := loadGolden(t, "single-deleting"), loadGolden(t, "single-kill9")
	firstDirty, err := readOffsets(before.disk, "/single-kill9/node-1/data/"+cleanerFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"compact-keep", "compact-txn-keep"} {
		t.Run(topic, func(t *testing.T) {
			tp := TopicPartition{topic, 0}
			from := "/single-deleting/node-1/data/" + tp.String()
			disk := vfs.NewMem()
			format(t, disk, "/d")
			disk.MkdirAll("/d/" + tp.String())
			entries, err := g.disk.ReadDir(from)
			if err != nil {
				t.Fatal(err)
			}
			var after = map[string][]byte{} // what Kafka made
			var bases []int64
			for _, e := range entries {
				data, err := readFile(g.disk, from+"/"+e.Name())
				if err != nil {
					t.Fatal(err)
				}
				plain := strings.TrimSuffix(e.Name(), suffixDeleted)
				if plain == e.Name() && strings.HasSuffix(plain, suffixLog) {
					after[plain] = data
					o, _, _ := parseOffsetName(plain)
					bases = append(bases, o)
				}
				if plain == e.Name() && (strings.HasSuffix(plain, suffixSnapshot) || slices.ContainsFunc(entries, func(o os.DirEntry) bool { return o.Name() == plain+suffixDeleted })) {
					continue // the cleaner's
				}
				if err := writeFile(disk, "/d/"+tp.String()+"/"+plain, data, true); err != nil {
					t.Fatal(err)
				}
			}
			cfg := goldenConfig(g.After.Topics[topic])
			ms, _ := strconv.ParseInt(g.After.Topics[topic].Configs["delete.retention.ms"], 10, 64)
			if ms > 0 {
				cfg.DeleteRetention = time.Duration(ms) * time.Millisecond
			}
			// When Kafka cleaned follows from the horizons that it set and the input didn't have.
			now := time.Time{}
			active := fmt.Sprintf("%020d.log", slices.Max(bases))
			for name, data := range after {
				if name == active {
					continue
				}
				for b := record.Batch(nil); len(data) > 0; {
					if b, data, err = record.Next(data); err != nil {
						t.Fatal(err)
					}
					if b.HasDeleteHorizon() {
						// Others are of earlier passes.
						if h := time.UnixMilli(b.BaseTimestamp()).Add(-cfg.DeleteRetention); h.After(now) {
							now = h
						}
					}
				}
			}
			clk := clock.NewManual(now)
			m, err := Open(context.Background(), Options{FS: disk, Clock: clk, Dirs: []string{"/d"}, NodeID: 1, NoBackground: true,
				TopicConfig: func(string) Config { return cfg }})
			if err != nil {
				t.Fatal(err)
			}
			l := m.Log(tp)
			l.SetHighWatermark(l.EndOffset())
			segs := l.segs()
			c := cleanable{l: l, firstDirty: firstDirty[tp], end: segs[len(segs)-1].base}
			if _, err := l.clean(context.Background(), c, 1<<20); err != nil {
				t.Fatal(err)
			}
			if len(l.segs()) != len(after) {
				t.Errorf("%d segments, want %d", len(l.segs()), len(after))
			}
			for name, want := range after {
				got, err := readFile(disk, "/d/"+tp.String()+"/"+name)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s: %d bytes, want %d, or they differ: %v\n%x\n%x", name, len(got), len(want), err, got, want)
				}
			}
		})
	}
}
