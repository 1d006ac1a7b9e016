package raft

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gregor/internal/clock"
	"gregor/internal/message"
	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

const goldenDir = "../../testdata/golden"

// unpack puts a golden directory under a temporary one and returns its root.
func unpack(t *testing.T, name string) string {
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
	root := t.TempDir()
	tr := tar.NewReader(z)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return filepath.Join(root, name)
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			var out *os.File
			if out, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fs.FileMode(h.Mode)|0o200); err == nil {
				// Preallocated indexes are mostly zeros: leave those out of the file system's way.
				var data []byte
				if data, err = io.ReadAll(tr); err == nil {
					_, err = out.Write(bytes.TrimRight(data, "\x00"))
				}
				err = firstError(err, out.Truncate(int64(len(data))))
				err = firstError(err, out.Close())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// metaProperty reads one key of a meta.properties.
func metaProperty(t *testing.T, dir, key string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "meta.properties"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if v, ok := strings.CutPrefix(line, key+"="); ok {
			return v
		}
	}
	t.Fatalf("%s: no %s", dir, key)
	return ""
}

// goldenOptions are the options of a node on a golden data directory.
func goldenOptions(t *testing.T, dir string) Options {
	t.Helper()
	id, err := uuid.Parse(metaProperty(t, dir, "directory.id"))
	if err != nil {
		t.Fatal(err)
	}
	node, err := strconv.Atoi(metaProperty(t, dir, "node.id"))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		FS: vfs.OS, Clock: clock.System, Logger: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2)),
		Dir: dir, ClusterID: metaProperty(t, dir, "cluster.id"), NodeID: int32(node), DirectoryID: id,
		Controller: true, Listener: "CONTROLLER",
		OnFatal: func(err error) { t.Errorf("fatal: %v", err) },
	}
	props, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "server.properties"))
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`(?m)CONTROLLER://localhost:(\d+)$`).FindSubmatch(props); m != nil {
		port, _ := strconv.Atoi(string(m[1]))
		o.Endpoints = []Endpoint{{"CONTROLLER", "localhost", uint16(port)}}
	}
	if m := regexp.MustCompile(`(?m)^controller.quorum.voters=(\d+)@localhost:(\d+)$`).FindSubmatch(props); m != nil {
		port, _ := strconv.Atoi(string(m[2]))
		o.StaticVoters = []Voter{{ReplicaKey: ReplicaKey{ID: int32(node)}, Endpoints: []Endpoint{{"CONTROLLER", "localhost", uint16(port)}}, KRaftVersions: KRaftVersions}}
	}
	o.Controller = !bytes.Contains(props, []byte("process.roles=broker\n"))
	return o
}

// setTimes copies a batch file with other timestamps, so that it can be compared with one written at another time.
func setTimes(t *testing.T, data []byte, times []int64) []byte {
	t.Helper()
	var out []byte
	for i := 0; len(data) > 0; i++ {
		b, rest, err := record.Next(data)
		if err != nil {
			t.Fatal(err)
		}
		data = rest
		bb := record.NewBuilder(record.BuilderOptions{BaseOffset: b.BaseOffset(), LeaderEpoch: b.PartitionLeaderEpoch(), Control: b.IsControl()}.NoProducer())
		it := b.Records(nil)
		for it.Next() {
			r := it.Record()
			bb.Append(times[i], r.Key, r.Value, nil)
		}
		if err := it.Err(); err != nil {
			t.Fatal(err)
		}
		nb, err := bb.Build()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, nb...)
	}
	return out
}

// Formatting writes byte for byte what Kafka's tool writes, apart from the times.
func TestBootstrapSnapshotIsKafkas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		golden, dir string
		version     int16
	}{{"fresh-dynamic", "node-1/data", 1}, {"fresh-static", "node-1/meta", 0}} {
		dir := filepath.Join(unpack(t, c.golden), c.dir)
		path := filepath.Join(dir, DirName, snapshotName(bootstrapID))
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		records, found, err := ReadBootstrapRecords(BootstrapOptions{FS: vfs.OS, Dir: dir})
		if err != nil || !found {
			t.Fatalf("%s: %v %v", c.golden, found, err)
		}
		r, err := OpenSnapshotFile(vfs.OS, path)
		if err != nil {
			t.Fatal(err)
		}
		voters := r.Voters()
		now := time.UnixMilli(r.LastContainedLogTime())
		if r.KRaftVersion() != c.version || (len(voters) == 1) != (c.version == 1) {
			t.Fatalf("%s: kraft.version %d, voters %v", c.golden, r.KRaftVersion(), voters)
		}
		r.Close()
		fresh := t.TempDir()
		if err := WriteBootstrapSnapshot(BootstrapOptions{FS: vfs.OS, Dir: fresh, KRaftVersion: c.version, Voters: voters, Records: records, Now: now}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(fresh, DirName, snapshotName(bootstrapID)))
		if err != nil {
			t.Fatal(err)
		}
		var times []int64
		for rest := want; len(rest) > 0; {
			b, after, err := record.Next(rest)
			if err != nil {
				t.Fatal(err)
			}
			times = append(times, b.BaseTimestamp())
			rest = after
		}
		if got = setTimes(t, got, times); !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.golden, got, want)
		}
	}
}

func TestQuorumStateIsKafkas(t *testing.T) {
	t.Parallel()
	check := func(what string, data []byte) {
		e, err := parseQuorumState(data)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		version, voters := int16(1), VoterSet(nil)
		if bytes.Contains(data, []byte(`"data_version":0`)) {
			version = 0
			for _, m := range regexp.MustCompile(`"voterId":(\d+)`).FindAllSubmatch(data, -1) {
				id, _ := strconv.Atoi(string(m[1]))
				voters = append(voters, Voter{ReplicaKey: ReplicaKey{ID: int32(id)}})
			}
		}
		if got := appendQuorumState(nil, e, version, voters); !bytes.Equal(got, data) {
			t.Errorf("%s:\n got %s\nwant %s", what, got, data)
		}
	}
	root := unpack(t, "quorum-state-variants")
	files, err := os.ReadDir(root)
	if err != nil || len(files) != 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(root, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		check(f.Name(), data)
	}
	data, err := os.ReadFile(filepath.Join(goldenDir, "quorum3.quorum-states.json"))
	if err != nil {
		t.Fatal(err)
	}
	var steps map[string]map[string]any
	if err := json.Unmarshal(data, &steps); err != nil {
		t.Fatal(err)
	}
	n := 0
	for step, nodes := range steps {
		for node, v := range nodes {
			switch v := v.(type) {
			case string:
				check(step+" "+node, []byte(v))
				n++
			case []any:
				for _, s := range v {
					check(step+" "+node, []byte(s.(string)))
					n++
				}
			}
		}
	}
	if n < 20 {
		t.Fatalf("%d states, want more", n)
	}
}

func TestQuorumStateRefusesGarbage(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "garbage", "{}", `{"data_version":1}`, `{"leaderId":1,"leaderEpoch":2,"votedId":-1,"data_version":1}`,
		`{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":2}`,
		`{"leaderId":1,"leaderEpoch":-2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}`,
		`{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"x","data_version":1}`,
		`{"leaderId":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}`,
	} {
		if e, err := parseQuorumState([]byte(s)); err == nil {
			t.Errorf("%q read as %v", s, e)
		}
	}
}

// dumped counts the data records that Kafka's tool found in a log.
func dumped(t *testing.T, golden, node string) (records int, end int64) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(goldenDir, "dump-log", golden, node, DirName, "00000000000000000000.log.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if strings.Contains(line, " payload: ") {
			records++
		}
		if m := regexp.MustCompile(`^baseOffset: \d+ lastOffset: (\d+)`).FindStringSubmatch(line); m != nil {
			end, _ = strconv.ParseInt(m[1], 10, 64)
			end++
		}
	}
	return records, end
}

// A lone voter starts on what Kafka left, leads, and has all of it.
func TestStartsOnKafkasDirectories(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		golden, dir  string
		epoch        int32
		version      int16
		snapshot     OffsetAndEpoch
		startsAt     int64
		fileVersion1 bool
	}{
		{"fresh-dynamic", "node-1/data", 1, 1, OffsetAndEpoch{}, 0, true},
		{"fresh-static", "node-1/meta", 1, 0, OffsetAndEpoch{}, 0, false},
		{"single-clean", "node-1/data", 6, 1, OffsetAndEpoch{658, 5}, 0, true},
		{"single-kill9", "node-1/data", 4, 1, OffsetAndEpoch{307, 2}, 0, true},
		{"static-jbod", "node-1/meta", 2, 0, OffsetAndEpoch{52, 1}, 0, false},
		{"static-upgraded", "node-1/data", 2, 1, OffsetAndEpoch{53, 1}, 0, true},
		{"meta-trimmed", "node-1/data", 2, 1, OffsetAndEpoch{116, 1}, 116, true},
	} {
		t.Run(c.golden, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(unpack(t, c.golden), c.dir)
			n, rec := openGolden(t, goldenOptions(t, dir))
			if got := n.LeaderAndEpoch(); got != (LeaderAndEpoch{1, c.epoch}) {
				t.Errorf("leader %v, want 1 in epoch %d", got, c.epoch)
			}
			if n.KRaftVersion() != c.version {
				t.Errorf("kraft.version %d, want %d", n.KRaftVersion(), c.version)
			}
			rec.wait(t, "everything", func() bool { return rec.next == n.HighWatermark() && len(rec.leaders) > 0 })
			if c.snapshot != (OffsetAndEpoch{}) && (len(rec.snapshot) != 1 || rec.snapshot[0] != c.snapshot) {
				t.Errorf("snapshots %v, want %v", rec.snapshot, c.snapshot)
			}
			if got := n.LogStartOffset(); got != c.startsAt {
				t.Errorf("log starts at %d, want %d", got, c.startsAt)
			}
			shutdown(t, n)
			state, err := os.ReadFile(filepath.Join(dir, DirName, quorumStateFile))
			if err != nil || strings.Contains(string(state), `"data_version":1`) != c.fileVersion1 {
				t.Errorf("quorum-state %s, %v", state, err)
			}
		})
	}
}

func openGolden(t *testing.T, o Options) (*Node, *recorder) {
	t.Helper()
	n, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecorder()
	n.Register(rec)
	return n, rec
}

// The whole log of a voter of three is there, without a snapshot, and so are the voters as they changed.
func TestReadsTheLogOfAVoterOfThree(t *testing.T) {
	t.Parallel()
	for _, golden := range []string{"quorum3-clean", "quorum3-kill9"} {
		for _, node := range []string{"node-101", "node-102", "node-103", "node-1"} {
			dir := filepath.Join(unpack(t, golden), node, "data")
			o := goldenOptions(t, dir)
			o.BootstrapServers = []string{"localhost:1"}
			n, err := Open(t.Context(), o)
			if err != nil {
				t.Fatalf("%s %s: %v", golden, node, err)
			}
			if got := n.Voters().String(); strings.Count(got, ":") != 3 {
				t.Errorf("%s %s: voters %s", golden, node, got)
			}
			if n.KRaftVersion() != 1 {
				t.Errorf("%s %s: kraft.version %d", golden, node, n.KRaftVersion())
			}
			if n.Role() == Leader {
				t.Errorf("%s %s: leads without a majority", golden, node)
			}
			if golden == "quorum3-clean" && (node == "node-101" || node == "node-1") {
				if _, end := dumped(t, golden, node); n.LogEndOffset() != end {
					t.Errorf("%s %s: log end %d, want %d", golden, node, n.LogEndOffset(), end)
				}
			}
			shutdown(t, n)
		}
	}
}

// What Kafka's tool prints of a log is what a listener gets.
func TestReplaysWhatKafkaDumps(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(unpack(t, "single-clean"), "node-1/data")
	for _, f := range []string{"46-0000000001", "96-0000000001", "138-0000000001", "172-0000000001", "307-0000000002", "444-0000000004", "575-0000000005", "658-0000000005"} {
		at, _, _ := strings.Cut(f, "-")
		name := strings.Repeat("0", 20-len(at)) + f + ".checkpoint"
		if err := os.Remove(filepath.Join(dir, DirName, name)); err != nil {
			t.Fatal(err)
		}
	}
	n, rec := openGolden(t, goldenOptions(t, dir))
	rec.wait(t, "everything", func() bool { return rec.next == n.HighWatermark() && len(rec.leaders) > 0 })
	shutdown(t, n)
	data, err := os.ReadFile(filepath.Join(goldenDir, "dump-log/single-clean", DirName, "00000000000000000000.log.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, line := range strings.Split(string(data), "\n") {
		if _, payload, ok := strings.Cut(line, " payload: "); ok {
			want = append(want, payload)
		}
	}
	if len(rec.records) != len(want) {
		t.Fatalf("%d records, want %d", len(rec.records), len(want))
	}
	for i, r := range rec.records {
		if got := string(message.AppendMetadataJSON(nil, r)); got != want[i] {
			t.Errorf("record %d:\n got %s\nwant %s", i, got, want[i])
		}
	}
}
