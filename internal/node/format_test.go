package node

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gregor/internal/config"
	"gregor/internal/log"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/raft"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// bytesOf makes readable randomness that is the same in every run.
type bytesOf struct{ r *rand.Rand }

func (b bytesOf) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b.r.Int64N(256))
	}
	return len(p), nil
}

func testRand() bytesOf { return bytesOf{rand.New(rand.NewPCG(1, 2))} }

// loadIn loads a server.properties whose directories are relative to dir.
func loadIn(t *testing.T, dir, file string, changes ...string) *config.Broker {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := config.ParseProperties(file, text)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(changes); i += 2 {
		p.Set(changes[i], changes[i+1], "test")
	}
	for _, k := range []string{"log.dirs", "metadata.log.dir"} {
		if v, ok := p.Get(k); ok {
			var dirs []string
			for _, d := range strings.Split(v, ",") {
				dirs = append(dirs, filepath.Join(dir, d))
			}
			p.Set(k, strings.Join(dirs, ","), "test")
		}
	}
	c, err := config.Load(p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// files lists all files under dir with their sizes.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() && info.Name() != "server.properties" {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// snapshotRecords reads the bootstrap snapshot.
func snapshotRecords(t *testing.T, dir string) ([]message.Versioned, *raft.SnapshotReader, int64) {
	t.Helper()
	path := filepath.Join(dir, raft.DirName, "00000000000000000000-0000000000.checkpoint")
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o400 {
		t.Errorf("mode of the snapshot is %o, want 400", st.Mode().Perm())
	}
	r, err := raft.OpenSnapshotFile(vfs.OS, path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out []message.Versioned
	for {
		records, err := r.Next()
		if err != nil {
			return out, r, st.Size()
		}
		out = append(out, records...)
	}
}

func jsonOf(records []message.Versioned) string {
	var b []byte
	for _, r := range records {
		b = r.Message.AppendJSON(append(b, '\n'), r.Version)
	}
	return string(b)
}

// TestFormatIsKafkas formats like the golden directories were and compares every file.
func TestFormatIsKafkas(t *testing.T) {
	f := func(name string, o FormatOptions, metadataDir string) {
		t.Helper()
		want := filepath.Join(unpack(t, name), "node-1")
		dir := t.TempDir()
		o.FS, o.Rand, o.Now, o.ClusterID = vfs.OS, testRand(), time.UnixMilli(1796008217295), "AAAAAAAAAAAAAAAAAAAAAQ"
		o.Config = loadIn(t, dir, filepath.Join(want, "server.properties"))
		var said []string
		o.Print = func(s string) { said = append(said, s) }
		if err := Format(o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, want := files(t, dir), files(t, want); !slices.Equal(got, want) {
			t.Errorf("%s: files %v, want %v", name, got, want)
		}
		for _, d := range Directories(o.Config) {
			rel, _ := filepath.Rel(dir, d)
			got, err := os.ReadFile(filepath.Join(d, log.MetaPropertiesFile))
			if err != nil {
				t.Fatal(err)
			}
			kafkas, err := os.ReadFile(filepath.Join(want, rel, log.MetaPropertiesFile))
			if err != nil {
				t.Fatal(err)
			}
			// Date and directory id differ.
			a, b := strings.Split(string(got), "\n"), strings.Split(string(kafkas), "\n")
			for i := range a {
				if i != 1 && !strings.HasPrefix(a[i], "directory.id=") && a[i] != b[i] {
					t.Errorf("%s: line %q of meta.properties, want %q", name, a[i], b[i])
				}
			}
		}
		ours, r, size := snapshotRecords(t, filepath.Join(dir, metadataDir))
		kafkas, k, kafkaSize := snapshotRecords(t, filepath.Join(want, metadataDir))
		if size != kafkaSize {
			t.Errorf("%s: snapshot of %d bytes, want %d", name, size, kafkaSize)
		}
		if jsonOf(ours) != jsonOf(kafkas) {
			t.Errorf("%s: records%s\nwant%s", name, jsonOf(ours), jsonOf(kafkas))
		}
		if r.KRaftVersion() != k.KRaftVersion() || len(r.Voters()) != len(k.Voters()) {
			t.Errorf("%s: kraft.version %d with voters %v, want %d with %v", name, r.KRaftVersion(), r.Voters(), k.KRaftVersion(), k.Voters())
		}
		if len(r.Voters()) > 0 {
			m, err := log.ReadMetaProperties(vfs.OS, o.Config.MetadataLogDir)
			if err != nil || m.DirectoryID != r.Voters()[0].DirectoryID || r.Voters()[0].Endpoints[0] != k.Voters()[0].Endpoints[0] {
				t.Errorf("%s: voter %v, directory %v, %v", name, r.Voters()[0], m.DirectoryID, err)
			}
		}
		if len(said) != len(Directories(o.Config)) {
			t.Errorf("%s: it said %q", name, said)
		}
	}
	f("fresh-static", FormatOptions{ReleaseVersion: metadata.V3_9_IV0}, "meta")
	f("fresh-dynamic", FormatOptions{Standalone: true,
		Scram: []string{"SCRAM-SHA-256=[name=admin,password=admin-secret,iterations=4096,salt=YWRtaW4tc2FsdA==]"}}, "data")
}

func TestFormatRefuses(t *testing.T) {
	dir := t.TempDir()
	props := filepath.Join(unpack(t, "fresh-dynamic"), "node-1/server.properties")
	c := loadIn(t, dir, props)
	f := func(o FormatOptions, want string) {
		t.Helper()
		o.FS, o.Rand, o.Now, o.ClusterID = vfs.OS, testRand(), time.UnixMilli(0), "AAAAAAAAAAAAAAAAAAAAAQ"
		if o.Config == nil {
			o.Config = c
		}
		err := Format(o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	f(FormatOptions{}, "one of --standalone, --initial-controllers or --no-initial-controllers is needed")
	f(FormatOptions{Standalone: true, ReleaseVersion: metadata.LatestTesting}, "not yet stable")
	f(FormatOptions{Standalone: true, ReleaseVersion: 7, Features: map[string]int16{"metadata.version": 8}}, "use --release-version instead")
	f(FormatOptions{Standalone: true, Features: map[string]int16{"group.version": 9}}, "group.version has no level 9")
	f(FormatOptions{Standalone: true, Features: map[string]int16{"nonsense": 1}}, "unsupported feature: nonsense")
	f(FormatOptions{Standalone: true, Features: map[string]int16{"kraft.version": 0}}, "cannot set kraft.version to 0")
	f(FormatOptions{Standalone: true, Features: map[string]int16{"metadata.version": 3}}, "metadata.version 3 is not supported")
	f(FormatOptions{Standalone: true, ReleaseVersion: 7, Scram: []string{"SCRAM-SHA-256=[name=a,password=b]"}}, "SCRAM is only supported in metadata.version 3.5-IV2")
	f(FormatOptions{Standalone: true, Config: loadIn(t, dir, props, "process.roles", "broker", "listeners", "PLAINTEXT://localhost:1", "advertised.listeners", "PLAINTEXT://localhost:1")}, "--standalone is for controllers only")
	if got := files(t, dir); len(got) != 0 {
		t.Fatalf("a refused format left %v", got)
	}
	ok := FormatOptions{FS: vfs.OS, Rand: testRand(), Now: time.UnixMilli(0), ClusterID: "AAAAAAAAAAAAAAAAAAAAAQ", Config: c, Standalone: true}
	if err := Format(ok); err != nil {
		t.Fatal(err)
	}
	f(FormatOptions{Standalone: true}, "is already formatted")
	ok.ClusterID = "BBBBBBBBBBBBBBBBBBBBBB"
	if err := Format(ok); err == nil || !strings.Contains(err.Error(), "is of cluster AAAAAAAAAAAAAAAAAAAAAQ") {
		t.Errorf("another cluster: %v", err)
	}
	ok.ClusterID, ok.IgnoreFormatted = "AAAAAAAAAAAAAAAAAAAAAQ", true
	before, _ := os.ReadFile(filepath.Join(c.LogDirs[0], log.MetaPropertiesFile))
	if err := Format(ok); err != nil {
		t.Errorf("with --ignore-formatted: %v", err)
	}
	if after, _ := os.ReadFile(filepath.Join(c.LogDirs[0], log.MetaPropertiesFile)); !bytes.Equal(before, after) {
		t.Error("--ignore-formatted rewrote meta.properties")
	}
}

func TestParseInitialControllers(t *testing.T) {
	got, err := ParseInitialControllers("0@example.com:8082:JEXY6aqzQY-32P5TStzaFg, 1@[::1]:8083:MvDxzVmcRsaTz33bUuRU6A")
	if err != nil || len(got) != 2 || got[0].ID != 0 || got[1].Endpoints[0].Host != "::1" || got[1].Endpoints[0].Port != 8083 || got[0].DirectoryID.String() != "JEXY6aqzQY-32P5TStzaFg" {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"", "0", "0@a:1", "0@a:x:JEXY6aqzQY-32P5TStzaFg", "0@a:1:AAAAAAAAAAAAAAAAAAAAAA", "0@a:1:JEXY6aqzQY-32P5TStzaFg,0@b:1:MvDxzVmcRsaTz33bUuRU6A"} {
		if v, err := ParseInitialControllers(bad); err == nil {
			t.Errorf("%q gave %v", bad, v)
		}
	}
}

func TestParseScram(t *testing.T) {
	// RFC 7677's example: user, pencil.
	r, err := ParseScram(`SCRAM-SHA-256=[name=user,iterations=4096,salt="W22ZaJ0SNY7soEsUEjb6gQ==",password=pencil]`, testRand())
	if err != nil {
		t.Fatal(err)
	}
	if got := base64Of(r.StoredKey); got != "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=" {
		t.Errorf("stored key %s", got)
	}
	if got := base64Of(r.ServerKey); got != "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=" {
		t.Errorf("server key %s", got)
	}
	r512, err := ParseScram(`SCRAM-SHA-512=[name=a,password="b=c"]`, testRand())
	if err != nil || r512.Mechanism != scramSHA512 || len(r512.StoredKey) != 64 || len(r512.Salt) != scramSaltBytes || r512.Iterations != 4096 {
		t.Errorf("%+v %v", r512, err)
	}
	for arg, want := range map[string]string{
		"x": "no equals sign", "MD5=[name=a]": "MD5 is not supported", "SCRAM-SHA-256=name=a": "not in brackets", "SCRAM-SHA-256=[name=a]": "one of password and saltedpassword is needed",
		"SCRAM-SHA-256=[password=a]": "name is missing", "SCRAM-SHA-256=[name=a,password=b,x=y]": "x is unknown", "SCRAM-SHA-256=[name=a,saltedpassword=YQ==]": "needs salt",
		"SCRAM-SHA-256=[name=a,password=b,iterations=5]": "must be between 4096 and 16384", "SCRAM-SHA-256=[name=a,password=b,salt=!]": "salt",
	} {
		if _, err := ParseScram(arg, testRand()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}

func TestKnownReplicas(t *testing.T) {
	d := metadata.NewDelta(metadata.EmptyImage())
	id := uuid.UUID{15: 200}
	topic := &message.TopicRecord{}
	topic.Reset()
	topic.Name, topic.TopicID = "t", id
	part := &message.PartitionRecord{}
	part.Reset()
	part.TopicID, part.PartitionID, part.Replicas, part.ISR, part.Leader = id, 0, []int32{1, 2}, []int32{1}, 1
	for _, r := range []message.Message{topic, part} {
		if err := d.Replay(r); err != nil {
			t.Fatal(err)
		}
	}
	img := d.Apply(metadata.Provenance{Offset: 1})
	f := func(node int32, name string, partition int32, id uuid.UUID, want bool) {
		t.Helper()
		if got := known(img, node, log.TopicPartition{Topic: name, Partition: partition}, id); got != want {
			t.Errorf("node %d, %s-%d of %v: %v", node, name, partition, id, got)
		}
	}
	f(1, "t", 0, id, true)
	f(1, "t", 0, uuid.Zero, true)
	f(3, "t", 0, id, false)
	f(1, "t", 1, id, false)
	f(1, "t", 0, uuid.UUID{15: 201}, false)
	f(1, "u", 0, id, false)
}
