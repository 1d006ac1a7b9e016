package message_test

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gregor/internal/golden"
	"gregor/internal/message"
	"gregor/internal/record"
)

var (
	dumpRecord  = regexp.MustCompile(`^\| offset: (\d+) .*headerKeys: \[\] (.*)$`)
	dumpControl = regexp.MustCompile(`^(LeaderChange:|KRaftVersion|KRaftVoters|SnapshotHeader|SnapshotFooter) (\{.*\})$`)
)

// TestDumpLog checks that every record of the metadata logs, snapshots and coordinators' topics that DumpLogSegments printed
// for the golden directories comes out as the same JSON here, and that each is written back byte for byte.
func TestDumpLog(t *testing.T) {
	root := filepath.Join(golden.Dir(t), "dump-log")
	count := map[string]int{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		rel = filepath.ToSlash(strings.TrimSuffix(rel, ".txt"))
		dir := filepath.Base(filepath.Dir(rel))
		kind := dir[:max(strings.LastIndexByte(dir, '-'), 0)]
		switch kind {
		case "__cluster_metadata", "__consumer_offsets", "__transaction_state", "__share_group_state":
		default:
			return nil
		}
		if !strings.HasSuffix(rel, ".log") && !strings.HasSuffix(rel, ".checkpoint") {
			return nil
		}
		dumped, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		checkDump(t, rel, kind, string(dumped), segment(t, rel), count)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("records compared: %v", count)
	for _, kind := range []string{"__cluster_metadata", "__consumer_offsets", "__transaction_state", "__share_group_state", "control"} {
		if count[kind] == 0 {
			t.Errorf("no record of %s was compared", kind)
		}
	}
}

var archives = map[string]map[string][]byte{}

// segment finds the file that was dumped: NAME/[node-N/]PARTITION/FILE in the archive NAME.
func segment(t *testing.T, rel string) []byte {
	name, rest, _ := strings.Cut(rel, "/")
	if archives[name] == nil {
		archives[name] = golden.Files(t, name, func(p string) bool {
			return strings.HasSuffix(p, ".log") || strings.HasSuffix(p, ".checkpoint")
		})
	}
	var found []byte
	for path, b := range archives[name] {
		node := ""
		tail := rest
		if strings.HasPrefix(rest, "node-") {
			node, tail, _ = strings.Cut(rest, "/")
		}
		if strings.HasSuffix(path, "/"+tail) && (node == "" || strings.Contains(path, "/"+node+"/")) {
			found = b
		}
	}
	if found == nil {
		t.Fatalf("%s isn't in the archive", rel)
	}
	return found
}

func checkDump(t *testing.T, name, kind, dump string, seg []byte, count map[string]int) {
	t.Helper()
	want := map[int64]string{}
	sc := bufio.NewScanner(strings.NewReader(dump))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if m := dumpRecord.FindStringSubmatch(sc.Text()); m != nil {
			offset, _ := strconv.ParseInt(m[1], 10, 64)
			want[offset] = m[2]
		}
	}
	dec := record.NewDecompressor(record.DecompressorOptions{})
	for len(seg) > 0 {
		b, rest, err := record.Next(seg)
		if err != nil || b == nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		seg = rest
		it := b.Records(dec)
		for it.Next() {
			r := it.Record()
			w, ok := want[r.Offset]
			if !ok {
				t.Errorf("%s: offset %d was not dumped", name, r.Offset)
				continue
			}
			if b.IsControl() {
				checkControl(t, name, w, r, count)
			} else {
				checkRecord(t, name, kind, w, r, count)
			}
		}
		if err := it.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func checkControl(t *testing.T, name, want string, r record.Record, count map[string]int) {
	t.Helper()
	typ, err := message.ReadControlKey(r.Key)
	if err != nil {
		t.Errorf("%s at %d: %v", name, r.Offset, err)
		return
	}
	v, err := message.ReadControlValue(typ, r.Value)
	if err != nil {
		t.Errorf("%s at %d: %v", name, r.Offset, err)
		return
	}
	got, err := message.AppendControlValue(nil, v.Message, v.Version)
	if err != nil || !bytes.Equal(got, r.Value) || !bytes.Equal(message.AppendControlKey(nil, typ), r.Key) {
		t.Errorf("%s at %d: written back as %x, %v, want %x", name, r.Offset, got, err, r.Value)
	}
	if m := dumpControl.FindStringSubmatch(want); m != nil {
		if js := string(v.Message.AppendJSON(nil, v.Version)); js != m[2] {
			t.Errorf("%s at %d:\n got %s\nwant %s", name, r.Offset, js, m[2])
		}
		count["control"]++
	}
}

func checkRecord(t *testing.T, name, kind, want string, r record.Record, count map[string]int) {
	t.Helper()
	fail := func(got []byte, err error) {
		t.Helper()
		t.Errorf("%s at %d: %v\n got %s\nwant %s", name, r.Offset, err, got, want)
	}
	if kind == "__cluster_metadata" {
		v, err := message.ReadMetadataRecord(r.Value)
		if err != nil {
			fail(nil, err)
			return
		}
		if got := message.AppendMetadataJSON([]byte("payload: "), v); string(got) != want {
			fail(got, nil)
		}
		back, err := message.AppendMetadataRecord(nil, v.Message, v.Version)
		if err != nil || !bytes.Equal(back, r.Value) || len(back) != message.MetadataRecordSize(v.Message, v.Version) {
			t.Errorf("%s at %d: written back as %x, %v, want %x", name, r.Offset, back, err, r.Value)
		}
		count[kind]++
		return
	}
	c := map[string]message.Coordinator{
		"__consumer_offsets": message.GroupRecords, "__transaction_state": message.TransactionRecords,
		"__share_group_state": message.ShareRecords,
	}[kind]
	key, err := c.ReadKey(r.Key)
	if err != nil {
		fail(nil, err)
		return
	}
	value, err := c.ReadValue(key.APIKey(), r.Value)
	if err != nil {
		fail(nil, err)
		return
	}
	backKey, err := message.AppendKey(nil, key)
	if err != nil || !bytes.Equal(backKey, r.Key) {
		t.Errorf("%s at %d: key written back as %x, %v, want %x", name, r.Offset, backKey, err, r.Key)
	}
	js := message.AppendKeyJSON([]byte("key: "), key)
	js = append(js, " payload: "...)
	if value.Message == nil {
		js = append(js, "<DELETE>"...)
	} else {
		js = message.AppendValueJSON(js, value)
		back, err := message.AppendVersioned(nil, value.Message, value.Version)
		if err != nil || !bytes.Equal(back, r.Value) {
			t.Errorf("%s at %d: value written back as %x, %v, want %x", name, r.Offset, back, err, r.Value)
		}
	}
	if string(js) != want {
		fail(js, nil)
	}
	count[kind]++
}
