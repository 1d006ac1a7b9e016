package record

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// goldenDir holds data directories that Kafka 4.4.0 wrote, and what Kafka's own classes read in them.
const goldenDir = "../../testdata/golden"

type goldenRecord struct {
	Offset      int64
	Timestamp   int64
	Sequence    int32
	ControlType string
	Key, Value  *string
	ValueLen    *int
	ValueSHA256 string `json:"valueSha256"`
	Headers     []struct {
		Key, Value *string
		Hex        string `json:"valueHex"`
	}
	CoordinatorEpoch *int32
}

type goldenBatch struct {
	Position, Size         int
	Magic                  int8
	BaseOffset, LastOffset int64
	PartitionLeaderEpoch   int32
	Compression            string
	TimestampType          string
	MaxTimestamp           int64
	ProducerID             int64 `json:"producerId"`
	ProducerEpoch          int16
	BaseSequence           int32
	Transactional, Control bool
	Count                  int32
	Checksum               uint32
	Valid                  bool
	DeleteHorizonMs        *int64
	Records                []goldenRecord
}

type goldenFile struct {
	Size       int
	Batches    []goldenBatch
	ValidBytes int
	Error      string
}

type golden struct {
	OnDisk map[string]struct {
		Partitions map[string]struct{ Files map[string]goldenFile }
	}
}

// goldenFiles unpacks an archive into memory, names relative to its top directory.
func goldenFiles(t testing.TB, name string) map[string][]byte {
	t.Helper()
	f, err := os.Open(filepath.Join(goldenDir, name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg || !strings.HasSuffix(h.Name, ".log") && !strings.HasSuffix(h.Name, ".checkpoint") {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, name+"/")] = b
	}
}

func loadGolden(t testing.TB, name string) golden {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(goldenDir, name+".expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

var goldenNames = []string{
	"single-clean", "single-kill9", "single-deleting", "legacy-magic", "static-jbod", "static-upgraded", "jbod-future",
	"quorum3-clean", "quorum3-kill9", "meta-trimmed", "tiered", "crash-unclean", "crash-marked", "fresh-dynamic", "fresh-static",
}

// Every batch and record of every golden segment reads as Kafka reads it.
func TestGoldenSegments(t *testing.T) {
	t.Parallel()
	for _, name := range goldenNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := NewDecompressor(DecompressorOptions{})
			files := goldenFiles(t, name)
			batches := 0
			for dir, node := range loadGolden(t, name).OnDisk {
				for p, part := range node.Partitions {
					for f, want := range part.Files {
						if !strings.HasSuffix(f, ".log") && !strings.HasSuffix(f, ".checkpoint") {
							continue
						}
						path := dir + "/" + p + "/" + f
						data, ok := files[path]
						if !ok {
							t.Errorf("%s is not in the archive", path)
							continue
						}
						batches += checkGoldenFile(t, d, path, data, want)
					}
				}
			}
			if batches == 0 {
				t.Error("no batches compared")
			}
		})
	}
}

func checkGoldenFile(t *testing.T, d *Decompressor, path string, data []byte, want goldenFile) int {
	pos := 0
	for i := range want.Batches {
		w := &want.Batches[i]
		e, rest, err := NextEntry(data[pos:])
		if err != nil || e == nil {
			t.Errorf("%s at %d: %v", path, pos, err)
			return i
		}
		where := fmt.Sprintf("%s batch %d at %d", path, i, pos)
		if pos != w.Position || len(e) != w.Size || e.Magic() != w.Magic || e.LastOffset() != w.LastOffset ||
			e.MaxTimestamp() != w.MaxTimestamp || e.PartitionLeaderEpoch() != w.PartitionLeaderEpoch || (e.Check() == nil) != w.Valid {
			t.Errorf("%s: got pos %d size %d magic %d last %d maxts %d epoch %d check %v, want %+v", where, pos, len(e), e.Magic(),
				e.LastOffset(), e.MaxTimestamp(), e.PartitionLeaderEpoch(), e.Check(), w)
		}
		if e.Magic() == 2 {
			checkGoldenBatch(t, d, where, e.Batch(), w)
		} else {
			checkGoldenLegacy(t, d, where, e.Legacy(), w)
		}
		pos = len(data) - len(rest)
	}
	if _, _, err := NextEntry(data[pos:]); want.Error == "" && err == nil && pos != len(data) && pos != want.ValidBytes {
		t.Errorf("%s: %d of %d bytes read, Kafka read %d", path, pos, len(data), want.ValidBytes)
	}
	return len(want.Batches)
}

func checkGoldenBatch(t *testing.T, d *Decompressor, where string, b Batch, w *goldenBatch) {
	ts := CreateTime
	if b.IsLogAppendTime() {
		ts = LogAppendTime
	}
	if b.BaseOffset() != w.BaseOffset || b.Codec().String() != w.Compression || ts.String() != w.TimestampType ||
		b.ProducerID() != w.ProducerID || b.ProducerEpoch() != w.ProducerEpoch || b.BaseSequence() != w.BaseSequence ||
		b.IsTransactional() != w.Transactional || b.IsControl() != w.Control || b.Count() != w.Count || b.CRC() != w.Checksum ||
		b.HasDeleteHorizon() != (w.DeleteHorizonMs != nil) || b.HasDeleteHorizon() && b.BaseTimestamp() != *w.DeleteHorizonMs {
		t.Errorf("%s: header %x, want %+v", where, b[:HeaderSize], w)
	}
	if !w.Valid {
		return
	}
	it := b.Records(d)
	defer it.Close()
	n := 0
	for it.Next() {
		if n < len(w.Records) {
			checkGoldenRecord(t, fmt.Sprintf("%s record %d", where, n), it.Record(), b.IsControl(), &w.Records[n])
		}
		n++
	}
	if it.Err() != nil || int32(n) != b.Count() || len(w.Records) > 0 && len(w.Records) != n {
		t.Errorf("%s: %d records, %v; want %d", where, n, it.Err(), len(w.Records))
	}
	if b.Count() == 0 {
		return
	}
	o := &ValidateOptions{Target: KeepCodec, BeforeMax: 1 << 62, AfterMax: 1 << 62, Decompressor: d}
	v, err := Validate(b, o)
	if err != nil || b.MaxTimestamp() != v.MaxTimestamp && !b.IsLogAppendTime() {
		t.Errorf("%s: validate: %+v %v, max timestamp %d", where, v, err, b.MaxTimestamp())
	}
}

func checkGoldenLegacy(t *testing.T, d *Decompressor, where string, l Legacy, w *goldenBatch) {
	if l.Codec().String() != w.Compression || l.CRC() != w.Checksum || l.IsLogAppendTime() != (w.TimestampType == "LogAppendTime") {
		t.Errorf("%s: %x, want %+v", where, []byte(l), w)
	}
	it := l.Records(d)
	n := 0
	for it.Next() {
		if n == 0 && it.Record().Offset != w.BaseOffset {
			t.Errorf("%s: base offset %d, want %d", where, it.Record().Offset, w.BaseOffset)
		}
		if n < len(w.Records) {
			checkGoldenRecord(t, fmt.Sprintf("%s record %d", where, n), it.Record().Record, false, &w.Records[n])
		}
		n++
	}
	if it.Err() != nil || n != len(w.Records) {
		t.Errorf("%s: %d records, %v; want %d", where, n, it.Err(), len(w.Records))
	}
}

func checkGoldenRecord(t *testing.T, where string, r Record, control bool, w *goldenRecord) {
	t.Helper()
	if r.Offset != w.Offset || r.Timestamp != w.Timestamp || r.Sequence != w.Sequence {
		t.Errorf("%s: offset %d timestamp %d sequence %d, want %+v", where, r.Offset, r.Timestamp, r.Sequence, w)
	}
	if control {
		c, err := ParseControlKey(r.Key)
		if err != nil || c.String() != w.ControlType {
			t.Errorf("%s: %v %v, want %s", where, c, err, w.ControlType)
		}
		if w.CoordinatorEpoch != nil {
			m, err := ParseEndTxnMarker(r.Key, r.Value)
			if err != nil || m.CoordinatorEpoch != *w.CoordinatorEpoch || m.Commit != (c == ControlCommit) {
				t.Errorf("%s: %+v %v, want %+v", where, m, err, w)
			}
		}
		return
	}
	if w.ValueSHA256 != "" {
		if sum := sha256.Sum256(r.Value); hex.EncodeToString(sum[:]) != w.ValueSHA256 || len(r.Value) != *w.ValueLen {
			t.Errorf("%s: value of %d bytes with another hash", where, len(r.Value))
		}
	} else if text := string(r.Value); w.Value == nil != (r.Value == nil) || w.Value != nil && text != *w.Value && !isBinary(r.Value) {
		t.Errorf("%s: value %q, want %v", where, text, w.Value)
	}
	if w.Key == nil != (r.Key == nil) || w.Key != nil && string(r.Key) != *w.Key && !isBinary(r.Key) {
		t.Errorf("%s: key %q, want %v", where, r.Key, w.Key)
	}
	if len(r.Headers) != len(w.Headers) {
		t.Errorf("%s: %d headers, want %d", where, len(r.Headers), len(w.Headers))
		return
	}
	for i, h := range w.Headers {
		if h.Hex != "" {
			if hex.EncodeToString(r.Headers[i].Value) != h.Hex {
				t.Errorf("%s: header %q=%x, want %s", where, r.Headers[i].Key, r.Headers[i].Value, h.Hex)
			}
			continue
		}
		if string(r.Headers[i].Key) != *h.Key || h.Value == nil != (r.Headers[i].Value == nil) ||
			h.Value != nil && string(r.Headers[i].Value) != *h.Value {
			t.Errorf("%s: header %q=%q, want %v", where, r.Headers[i].Key, r.Headers[i].Value, h)
		}
	}
}

// isBinary says whether the expectation, a JSON string, can't hold the bytes.
func isBinary(b []byte) bool {
	return bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' || r == 0xfffd })
}
