package raft

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The damage that was done to a clean directory, and what Kafka 4.4.0 made of it: testdata/golden/experiments.json.
func TestDamagedDirectories(t *testing.T) {
	t.Parallel()
	const (
		firstLog = "00000000000000000000.log"
		latest   = "00000000000000000658-0000000005.checkpoint"
	)
	edit := func(name string, f func([]byte) []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			path := filepath.Join(dir, name)
			data, err := os.ReadFile(path)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			_ = os.Remove(path)
			if data = f(data); data == nil {
				return
			}
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(names ...string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				for _, n := range names {
					if strings.HasSuffix(e.Name(), n) {
						if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	}
	put := func(name, content string) func(t *testing.T, dir string) {
		return edit(name, func([]byte) []byte { return []byte(content) })
	}
	for _, c := range []struct {
		name      string
		damage    func(t *testing.T, dir string)
		fails     bool
		epoch     int32 // 6 when not given
		restarted bool  // the log was dropped and begins at the latest snapshot
		gone      string
		snapshots int // handed over; 1 when not given, -1 for none
	}{
		{name: "quorum-state missing", damage: remove(quorumStateFile)},
		{name: "quorum-state garbage", damage: put(quorumStateFile, "garbage"), fails: true},
		{name: "quorum-state.tmp left", damage: put(quorumStateFile+".tmp", "garbage")},
		{name: "quorum-state of version 0 on version 1", damage: put(quorumStateFile,
			`{"clusterId":"","leaderId":1,"leaderEpoch":9,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],"data_version":0}`), epoch: 10},
		{name: "quorum-state older than the log", damage: put(quorumStateFile,
			`{"leaderId":-1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}`)},
		{name: "voted for itself in an epoch", damage: put(quorumStateFile,
			`{"leaderId":-1,"leaderEpoch":6,"votedId":1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}`), epoch: 6},
		{name: "torn tail", damage: edit(firstLog, func(b []byte) []byte { return append(b, b[:40]...) })},
		{name: "zero tail", damage: edit(firstLog, func(b []byte) []byte { return append(b, make([]byte, 5000)...) })},
		{name: "bad CRC in the middle", damage: edit(firstLog, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }), restarted: true},
		{name: "log ends before the latest snapshot", damage: edit(firstLog, func(b []byte) []byte { return b[:len(b)/2] }), restarted: true},
		{name: "log gone", damage: remove(firstLog), restarted: true},
		{name: "indexes missing", damage: remove(".index", ".timeindex")},
		{name: "epoch file missing", damage: remove("leader-epoch-checkpoint")},
		{name: "partition.metadata missing", damage: remove("partition.metadata")},
		{name: "unfinished snapshot left", damage: put("00000000000000000999-0000000005-123.checkpoint.part", "x"), gone: "00000000000000000999-0000000005-123.checkpoint.part"},
		{name: "deleted snapshot left", damage: put("00000000000000000010-0000000001.checkpoint.deleted", "x"), gone: "00000000000000000010-0000000001.checkpoint.deleted"},
		{name: "latest snapshot corrupt", damage: edit(latest, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }), fails: true},
		{name: "latest snapshot cut", damage: edit(latest, func(b []byte) []byte { return b[:len(b)-70] }), fails: true},
		{name: "latest snapshot empty", damage: put(latest, ""), fails: true},
		{name: "no snapshots", damage: remove(".checkpoint"), snapshots: -1},
		{name: "snapshot ahead of the log", damage: func(t *testing.T, dir string) {
			data, err := os.ReadFile(filepath.Join(dir, latest))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "00000000000000009000-0000000005.checkpoint"), data, 0o400); err != nil {
				t.Fatal(err)
			}
		}, restarted: true},
		{name: "foreign files", damage: put("junk.checkpoint", "x")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			data := filepath.Join(unpack(t, "single-clean"), "node-1/data")
			dir := filepath.Join(data, DirName)
			c.damage(t, dir)
			o := goldenOptions(t, data)
			n, err := Open(t.Context(), o)
			if c.fails {
				if err == nil {
					shutdown(t, n)
					t.Fatal("Open succeeded")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer shutdown(t, n)
			epoch := c.epoch
			if epoch == 0 {
				epoch = 6
			}
			if got := n.LeaderAndEpoch(); got != (LeaderAndEpoch{1, epoch}) {
				t.Errorf("leader %v, want 1 in epoch %d", got, epoch)
			}
			rec := newRecorder()
			n.Register(rec)
			rec.wait(t, "everything", func() bool { return rec.next == n.HighWatermark() && len(rec.leaders) > 0 })
			want := c.snapshots
			if want == 0 {
				want = 1
			}
			if got := len(rec.snapshot); got != max(want, 0) {
				t.Errorf("%d snapshots handed over, want %d", got, max(want, 0))
			}
			if id, _ := n.LatestSnapshotID(); c.restarted && n.LogStartOffset() != id.Offset {
				t.Errorf("log starts at %d, want the snapshot's end %d", n.LogStartOffset(), id.Offset)
			}
			if c.gone != "" {
				if _, err := os.Stat(filepath.Join(dir, c.gone)); err == nil {
					t.Errorf("%s is still there", c.gone)
				}
			}
			if _, err := n.Append(epoch, noRecords(3)); err != nil {
				t.Fatal(err)
			}
			rec.wait(t, "another commit", func() bool { return rec.next == n.LogEndOffset() })
		})
	}
}

// A node of a dynamic quorum without the snapshot that formatting leaves has no voters, and never gets a leader.
func TestDynamicQuorumWithoutBootstrapSnapshot(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"metadata dir gone", "other directory id"} {
		data := filepath.Join(unpack(t, "single-clean"), "node-1/data")
		o := goldenOptions(t, data)
		if change == "metadata dir gone" {
			if err := os.RemoveAll(filepath.Join(data, DirName)); err != nil {
				t.Fatal(err)
			}
		} else {
			o.DirectoryID[3] ^= 0xff
		}
		n, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if n.Role() == Leader || n.LeaderAndEpoch().LeaderID == 1 {
			t.Errorf("%s: role %v, leader %v", change, n.Role(), n.LeaderAndEpoch())
		}
		shutdown(t, n)
	}
}

// Older versions left their bootstrap records in a file of the log dir.
func TestReadsLegacyBootstrapCheckpoint(t *testing.T) {
	t.Parallel()
	data := filepath.Join(unpack(t, "fresh-static"), "node-1/meta")
	if err := os.Rename(filepath.Join(data, DirName, snapshotName(bootstrapID)), filepath.Join(data, "bootstrap.checkpoint")); err != nil {
		t.Fatal(err)
	}
	o := goldenOptions(t, data)
	records, found, err := ReadBootstrapRecords(BootstrapOptions{FS: o.FS, Dir: data})
	if err != nil || !found || len(records) != 1 {
		t.Fatalf("%d records, %v, %v", len(records), found, err)
	}
	if err := os.Remove(filepath.Join(data, "bootstrap.checkpoint")); err != nil {
		t.Fatal(err)
	}
	if records, found, err := ReadBootstrapRecords(BootstrapOptions{FS: o.FS, Dir: data}); err != nil || found || records != nil {
		t.Fatalf("%d records, %v, %v where there are none", len(records), found, err)
	}
}
