package node

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/await"
	"gregor/internal/config"
	"gregor/internal/golden"
	"gregor/internal/log"
	"gregor/internal/metadata"
	"gregor/internal/raft"
	"gregor/internal/vfs"
)

const experimentProperties = `process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:0
listeners=PLAINTEXT://localhost:0,CONTROLLER://localhost:0
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
offsets.topic.replication.factor=1
metadata.log.max.record.bytes.between.snapshots=1500
initial.broker.registration.timeout.ms=400
log.dirs=`

func experimentConfig(t *testing.T, dir string) *config.Broker {
	t.Helper()
	p, err := config.ParseProperties("server.properties", []byte(experimentProperties+dir))
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func shutdown(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	if err := n.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

// experimentBase makes the directory that the experiments begin with: topics a, with 24 records in several segments, and b,
// with 24 records, stopped cleanly.
func experimentBase(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	cfg := experimentConfig(t, dir)
	if _, err := FormatNew(cfg); err != nil {
		t.Fatal(err)
	}
	n, err := Start(t.Context(), Options{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Options{Seeds: []string{n.BrokerAddr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	specs := []client.TopicSpec{{Name: "a", Partitions: 1, ReplicationFactor: 1, Configs: map[string]string{"internal.segment.bytes": "400"}}, {Name: "b", Partitions: 1, ReplicationFactor: 1}}
	if _, err := c.CreateTopics(t.Context(), specs, false); err != nil {
		t.Fatal(err)
	}
	// Enough changes for a few snapshots.
	for i := range 12 {
		changes := []client.ConfigChange{{Name: "retention.ms", Value: strings.Repeat("9", 10+i%8), Op: client.SetConfig}}
		if err := c.AlterConfigs(t.Context(), client.Resource{Type: client.TopicResource, Name: "b"}, changes, false); err != nil {
			t.Fatal(err)
		}
	}
	p := c.NewProducer(client.ProducerOptions{})
	for _, topic := range []string{"a", "b"} {
		for range 24 {
			if err := p.ProduceSync(t.Context(), &client.Record{Topic: topic, Partition: -1, Key: []byte("k"), Value: []byte("0123456789")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	shutdown(t, n)
	return dir
}

// Helpers that change one thing in a directory.
type experiment func(t *testing.T, dir string)

func put(name, text string) experiment {
	return func(t *testing.T, dir string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func remove(names ...string) experiment {
	return func(t *testing.T, dir string) {
		t.Helper()
		for _, n := range names {
			if err := os.RemoveAll(filepath.Join(dir, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func mkdir(name string) experiment {
	return func(t *testing.T, dir string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func edit(name string, f func(string) string) experiment {
	return func(t *testing.T, dir string) {
		t.Helper()
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f(string(b))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func both(a, b experiment) experiment {
	return func(t *testing.T, dir string) {
		t.Helper()
		a(t, dir)
		b(t, dir)
	}
}

const (
	ml      = raft.DirName + "/"
	mlFirst = ml + "00000000000000000000.log"
	hwFile  = "replication-offset-checkpoint"
)

// snapshots lists the metadata snapshots, oldest first.
func snapshots(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, ml, "*.checkpoint"))
	if err != nil || len(names) < 2 {
		t.Fatalf("snapshots %v, %v: the experiments need some", names, err)
	}
	for i := range names {
		names[i] = ml + filepath.Base(names[i])
	}
	slices.Sort(names)
	return names
}

// batches cuts a log file into its batches.
func batches(s string) []string {
	var out []string
	for len(s) >= 12 {
		n := min(12+int(binary.BigEndian.Uint32([]byte(s[8:]))), len(s))
		out = append(out, s[:n])
		s = s[n:]
	}
	return out
}

func flip(s string, at int) string {
	b := []byte(s)
	b[at] ^= 0x40
	return string(b)
}

func properties(t *testing.T, dir string, change func(m *log.MetaProperties)) {
	t.Helper()
	m, err := log.ReadMetaProperties(vfs.OS, dir)
	if err != nil {
		t.Fatal(err)
	}
	change(&m)
	if err := log.WriteMetaProperties(vfs.OS, dir, m, time.UnixMilli(0)); err != nil {
		t.Fatal(err)
	}
}

var allCheckpoints = remove("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", hwFile, "cleaner-offset-checkpoint")

// experiments are those that were made with Kafka, by the same names.
var experiments = map[string]experiment{
	"base":                            func(*testing.T, string) {},
	"garbage-recovery-point":          put("recovery-point-offset-checkpoint", "hello\nworld\n"),
	"garbage-log-start":               put("log-start-offset-checkpoint", "hello\nworld\n"),
	"garbage-high-watermark":          put(hwFile, "hello\nworld\n"),
	"garbage-cleaner":                 put("cleaner-offset-checkpoint", "hello\nworld\n"),
	"garbage-leader-epoch":            put("a-0/leader-epoch-checkpoint", "hello\nworld\n"),
	"garbage-partition-metadata":      put("a-0/partition.metadata", "hello\n"),
	"high-watermark-version-1":        edit(hwFile, func(s string) string { return "1" + s[1:] }),
	"high-watermark-count-wrong":      edit(hwFile, func(s string) string { return regexp.MustCompile(`^0\n\d+`).ReplaceAllString(s, "0\n99") }),
	"high-watermark-too-high":         edit(hwFile, func(s string) string { return strings.Replace(s, "a 0 24", "a 0 5000", 1) }),
	"high-watermark-low":              edit(hwFile, func(s string) string { return strings.Replace(s, "a 0 24", "a 0 3", 1) }),
	"all-checkpoints-missing":         allCheckpoints,
	"all-checkpoints-missing-unclean": both(remove(".kafka_cleanshutdown"), allCheckpoints),
	"marker-empty-file":               put(".kafka_cleanshutdown", ""),
	"meta-missing":                    remove("meta.properties"),
	"meta-garbage":                    put("meta.properties", "garbage\n"),
	"meta-other-cluster": func(t *testing.T, dir string) {
		properties(t, dir, func(m *log.MetaProperties) { m.ClusterID = "AAAAAAAAAAAAAAAAAAAAAg" })
	},
	"meta-other-node": func(t *testing.T, dir string) { properties(t, dir, func(m *log.MetaProperties) { m.NodeID = 7 }) },
	"meta-no-directory-id": func(t *testing.T, dir string) {
		properties(t, dir, func(m *log.MetaProperties) { m.DirectoryID = [16]byte{} })
	},
	"meta-other-directory-id": func(t *testing.T, dir string) {
		properties(t, dir, func(m *log.MetaProperties) { m.DirectoryID[15] ^= 1 })
	},
	"meta-v0":                 func(t *testing.T, dir string) { properties(t, dir, func(m *log.MetaProperties) { m.Version = 0 }) },
	"meta-extra-keys":         edit("meta.properties", func(s string) string { return s + "foo=bar\n" }),
	"dir-without-dash":        mkdir("nodash"),
	"dir-bad-partition":       mkdir("foo-bar"),
	"dir-empty-unknown-topic": mkdir("foo-3"),
	"file-in-log-dir":         put("junk.txt", "x"),
	"file-in-partition":       put("a-0/junk.txt", "x"),
	"log-file-not-a-number":   put("a-0/abc.log", "x"),
	"lost-partition-dir":      remove("b-0"),
	"quorum-state-missing":    remove(ml + "quorum-state"),
	"quorum-state-garbage":    put(ml+"quorum-state", "garbage"),
	"quorum-state-tmp-left":   put(ml+"quorum-state.tmp", "garbage"),
	"quorum-state-v0-on-v1":   put(ml+"quorum-state", `{"clusterId":"","leaderId":-1,"leaderEpoch":9,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],"data_version":0}`),
	"metadata-torn-tail": edit(mlFirst, func(s string) string {
		bs := batches(s)
		return s + bs[len(bs)-1][:40]
	}),
	"metadata-zero-tail": edit(mlFirst, func(s string) string { return s + strings.Repeat("\x00", 300) }),
	"metadata-bad-crc-middle": edit(mlFirst, func(s string) string {
		bs := batches(s)
		mid := len(bs) / 2
		bs[mid] = flip(bs[mid], len(bs[mid])-2)
		return strings.Join(bs, "")
	}),
	"metadata-index-missing":              remove(ml+"00000000000000000000.index", ml+"00000000000000000000.timeindex"),
	"metadata-epoch-file-missing":         remove(ml + "leader-epoch-checkpoint"),
	"metadata-partition-metadata-missing": remove(ml + "partition.metadata"),
	"snapshot-part-left":                  put(ml+"00000000000000000099-0000000001-123.checkpoint.part", "x"),
	"snapshot-deleted-left":               put(ml+"00000000000000000009-0000000001.checkpoint.deleted", "x"),
	"snapshot-latest-corrupt": func(t *testing.T, dir string) {
		all := snapshots(t, dir)
		edit(all[len(all)-1], func(s string) string { return flip(s, len(s)-100) })(t, dir)
	},
	"snapshots-all-missing":      func(t *testing.T, dir string) { remove(snapshots(t, dir)...)(t, dir) },
	"snapshots-only-latest-kept": func(t *testing.T, dir string) { all := snapshots(t, dir); remove(all[:len(all)-1]...)(t, dir) },
	"snapshot-ahead-of-log": func(t *testing.T, dir string) {
		edit(mlFirst, func(s string) string { return strings.Join(batches(s)[:2], "") })(t, dir)
	},
	"metadata-dir-missing": remove(raft.DirName),
	"legacy-bootstrap-checkpoint": func(t *testing.T, dir string) {
		first, err := os.ReadFile(filepath.Join(dir, snapshots(t, dir)[0]))
		if err != nil {
			t.Fatal(err)
		}
		meta, err := os.ReadFile(filepath.Join(dir, "meta.properties"))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		put("meta.properties", string(meta))(t, dir)
		put("bootstrap.checkpoint", string(first))(t, dir)
	},
	"lock-file-left": put(".lock", ""),
}

// TestExperiments changes one thing in a directory and starts on it, as was done with Kafka, and compares the outcome: whether
// the node starts, and what is in the topics.
func TestExperiments(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(golden.Dir(t), "experiments.json"))
	if err != nil {
		t.Fatal(err)
	}
	var kafkas map[string]struct {
		Started any
		Topics  map[string]map[string][3]int64
	}
	if err := json.Unmarshal(text, &kafkas); err != nil {
		t.Fatal(err)
	}
	base := experimentBase(t)
	for name, k := range kafkas {
		change := experiments[name]
		if name == "bootstrap-static" {
			continue // TestBootstrapStatic
		}
		if change == nil {
			t.Errorf("%s is not tried here", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(dir, os.DirFS(base)); err != nil {
				t.Fatal(err)
			}
			change(t, dir)
			n, err := Start(t.Context(), Options{Config: experimentConfig(t, dir)})
			if (err == nil) != (k.Started == true) {
				t.Errorf("start: %v; Kafka: %v", err, k.Started)
			}
			if err != nil {
				return
			}
			defer shutdown(t, n)
			c, err := client.New(client.Options{Seeds: []string{n.BrokerAddr()}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for topic, parts := range k.Topics {
				tp := client.TopicPartition{Topic: topic}
				w := parts["0"]
				for i, at := range []int64{client.Earliest, client.Latest} {
					os, err := c.ListOffsets(t.Context(), map[client.TopicPartition]int64{tp: at}, false)
					if err != nil || os[0].Err != nil || os[0].Offset != w[i] {
						t.Errorf("%s at %d: %v %v, want %d", topic, at, os, err, w[i])
					}
				}
			}
		})
	}
}

// TestBootstrapStatic starts a static quorum without a snapshot 0-0, with and without the bootstrap.checkpoint that older
// versions wrote: what that says counts, and without anything the cluster begins at the latest metadata.version.
func TestBootstrapStatic(t *testing.T) {
	f := func(name string, change experiment, want metadata.Version) {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "data")
		p, err := config.ParseProperties("server.properties", []byte(experimentProperties+dir+"\ncontroller.quorum.voters=1@localhost:1\n"))
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(p)
		if err != nil {
			t.Fatal(err)
		}
		o := FormatOptions{FS: vfs.OS, Rand: testRand(), Now: time.UnixMilli(0), Config: cfg, ClusterID: "AAAAAAAAAAAAAAAAAAAAAQ", ReleaseVersion: metadata.V3_9_IV0}
		if err := Format(o); err != nil {
			t.Fatal(err)
		}
		change(t, dir)
		n, err := Start(t.Context(), Options{Config: cfg})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		defer shutdown(t, n)
		if got := n.loader.Image().Features.MetadataVersion; got != want || n.raft.KRaftVersion() != 0 {
			t.Errorf("%s: metadata.version %s, kraft.version %d; want %s, 0", name, got, n.raft.KRaftVersion(), want)
		}
	}
	const snapshot = ml + "00000000000000000000-0000000000.checkpoint"
	f("snapshot-0-0", func(*testing.T, string) {}, metadata.V3_9_IV0)
	f("moved-to-bootstrap.checkpoint", func(t *testing.T, dir string) {
		if err := os.Rename(filepath.Join(dir, snapshot), filepath.Join(dir, "bootstrap.checkpoint")); err != nil {
			t.Fatal(err)
		}
		remove(raft.DirName)(t, dir)
	}, metadata.V3_9_IV0)
	f("neither", remove(raft.DirName), metadata.LatestProduction)
}
