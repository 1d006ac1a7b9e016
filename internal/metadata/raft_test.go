package metadata

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"gregor/internal/await"
	"gregor/internal/clock"
	"gregor/internal/golden"
	"gregor/internal/message"
	"gregor/internal/raft"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// TestRaftNodeOnKafkasData opens the metadata log that Kafka left after a kill -9 with a raft node, loads it, goes on writing,
// makes a snapshot of it, and loads that after a restart.
func TestRaftNodeOnKafkasData(t *testing.T) {
	t.Parallel()
	const archive = "single-kill9"
	dir := t.TempDir()
	var id uuid.UUID
	for p, b := range golden.Files(t, archive, func(p string) bool {
		return path.Base(path.Dir(p)) == "__cluster_metadata-0" || path.Base(p) == "meta.properties"
	}) {
		if path.Base(p) == "meta.properties" {
			m := regexp.MustCompile(`directory\.id=(\S+)`).FindSubmatch(b)
			var err error
			if id, err = uuid.Parse(string(m[1])); err != nil {
				t.Fatal(err)
			}
			continue
		}
		to := filepath.Join(dir, raft.DirName, path.Base(p))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := readMetadataDirs(t, archive)[0]
	want := load(t, nil, d.batches, d.batches[len(d.batches)-1].LastOffset+1)

	synctest.Test(t, func(t *testing.T) {
		open := func() (*raft.Node, *Loader, *SnapshotGenerator) {
			o := raft.Options{
				FS: vfs.OS, Clock: clock.System, Logger: quiet, Rand: rand.New(rand.NewPCG(1, 2)), Dir: dir, NodeID: 1, DirectoryID: id,
				Controller: true, Listener: "CONTROLLER", Endpoints: []raft.Endpoint{{Name: "CONTROLLER", Host: "localhost", Port: 31101}},
				OnFatal: func(err error) { t.Errorf("fatal: %v", err) },
			}
			n, err := raft.Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			l := NewLoader(LoaderOptions{Logger: quiet, HighWatermark: n.HighWatermark, OnFault: func(err error) { t.Errorf("fault: %v", err) }})
			g := NewSnapshotGenerator(SnapshotOptions{
				Clock: clock.System, Logger: slog.New(slog.DiscardHandler), MaxBytes: 1, Create: CreateRaftSnapshot(n),
				OnFault: func(err error) { t.Errorf("snapshot: %v", err) },
			})
			if err := l.Install(g); err != nil {
				t.Fatal(err)
			}
			n.Register(RaftListener{l})
			return n, l, g
		}
		until := func(what string, ok func() bool) {
			t.Helper()
			if synctest.Wait(); !ok() {
				t.Fatalf("%s: not yet, and nobody is working on it", what)
			}
		}
		stop := func(n *raft.Node, g *SnapshotGenerator) {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
			defer cancel()
			g.Close()
			if err := n.Shutdown(ctx); err != nil {
				t.Fatal(err)
			}
		}

		n, l, g := open()
		until("catch up", l.CaughtUp)
		if diff := Diff(want, l.Image()); diff != "" {
			t.Fatalf("the node's image is another:\n%s", diff)
		}
		value := "7"
		last, err := n.Append(n.LeaderAndEpoch().Epoch, []message.Versioned{
			{Message: &message.ConfigRecord{ResourceType: BrokerResource, ResourceName: "9", Name: "k", Value: &value}},
		})
		if err != nil {
			t.Fatal(err)
		}
		until("the record", func() bool { return l.Image().Offset >= last })
		until("a snapshot", func() bool {
			s, ok := n.LatestSnapshotID()
			return ok && s.Offset > last
		})
		image := l.Image()
		stop(n, g)

		files, err := filepath.Glob(filepath.Join(dir, raft.DirName, "*.checkpoint"))
		if err != nil || len(files) == 0 || strings.HasPrefix(filepath.Base(files[len(files)-1]), "00000000000000000000") {
			t.Fatalf("snapshots %v, %v", files, err)
		}
		n, l, g = open()
		until("catch up", l.CaughtUp)
		if diff := Diff(image, l.Image()); diff != "" {
			t.Fatalf("after the restart the image is another:\n%s", diff)
		}
		if v := l.Image().Configs.Get(Resource{BrokerResource, "9"})["k"]; v != value {
			t.Errorf("k = %q", v)
		}
		stop(n, g)
	})
}
