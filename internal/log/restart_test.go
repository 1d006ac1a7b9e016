package log

import (
	"strings"
	"testing"

	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// TestCheckpointLineOfAnEarlierReplica: a replica is set aside at a start, and the process is killed before it writes checkpoints.
// The next one makes a replica of the same name: the lines of the first aren't its own.
func TestCheckpointLineOfAnEarlierReplica(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), "/d")
	w.open()
	for range 5 {
		mustAppend(t, w.log("a"), batch(w.now(), "x", "y"))
	}
	w.close()
	w.opts = func(o *Options) { o.Known = func(_ TopicPartition, id uuid.UUID) bool { return id != testTopicID } }
	w.open()
	w.abandon()
	m := w.open()
	l, err := m.GetOrCreate(TopicPartition{Topic: "a"}, uuid.UUID{15: 9}, w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := l.Append(batch(w.now(), "z", "z", "z"), AppendOptions{LeaderEpoch: 1}); err != nil {
			t.Fatal(err)
		}
	}
	w.abandon()
	l = w.open().Log(TopicPartition{Topic: "a"})
	if l == nil || l.EndOffset() != 9 || l.HighWatermark() != 0 || l.RecoveryPoint() != 0 {
		t.Errorf("the log is %v", l)
		if l != nil {
			t.Errorf("it ends at %d, high watermark %d, recovery point %d", l.EndOffset(), l.HighWatermark(), l.RecoveryPoint())
		}
	}
	w.abandon()
}

// TestSetAsideAndMadeElsewhere: a replica is set aside at a start or deleted and then made anew in another directory. A power
// failure doesn't bring the first one back beside it.
func TestSetAsideAndMadeElsewhere(t *testing.T) {
	for _, how := range []string{"deleted", "set aside", "set aside by a process that was killed"} {
		t.Run(how, func(t *testing.T) {
			mem := vfs.NewMem()
			w := newWorld(t, mem, "/d1", "/d2")
			tp := TopicPartition{Topic: "a"}
			ids := map[string]uuid.UUID{}
			m := w.open()
			for _, d := range m.Dirs() {
				ids[d.Path] = d.ID
			}
			l, err := m.GetOrCreateIn(tp, testTopicID, w.cfg, ids["/d1"])
			if err != nil {
				t.Fatal(err)
			}
			mustAppend(t, l, batch(w.now(), "x"))
			w.close()
			if err := mem.SyncAll("/"); err != nil {
				t.Fatal(err)
			}
			known := how == "deleted"
			w.opts = func(o *Options) { o.Known = func(TopicPartition, uuid.UUID) bool { return known } }
			if m = w.open(); known {
				if err := m.Delete(tp); err != nil {
					t.Fatal(err)
				}
			}
			if strings.HasSuffix(how, "killed") {
				w.abandon()
				m = w.open()
			}
			if l, err = m.GetOrCreateIn(tp, testTopicID, w.cfg, ids["/d2"]); err != nil {
				t.Fatal(err)
			}
			mustAppend(t, l, batch(w.now(), "x"))
			if err := l.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := mem.SyncDir("/d2"); err != nil {
				t.Fatal(err)
			}
			w.abandon()
			known = true
			w.fs = mem.CrashClone(randFor(1), 0)
			if l = w.open().Log(tp); l == nil || l.ParentDir() != "/d2" {
				t.Errorf("the log is %v", l)
			}
			w.abandon()
		})
	}
}

// TestRecoveryOnAFullDisk: a full disk has no room for the indexes of what is recovered, and doesn't fail for it.
func TestRecoveryOnAFullDisk(t *testing.T) {
	mem := vfs.NewMem()
	w := newWorld(t, mem, "/d")
	w.cfg.SegmentBytes, w.cfg.IndexIntervalBytes = 400, 1
	w.open()
	for range 20 {
		mustAppend(t, w.log("a"), producerBatch(w.now(), 1, 0, int32(w.log("a").EndOffset()), false, "x"))
	}
	w.abandon()
	entries, err := mem.ReadDir("/d/a-0")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), suffixLog) && !strings.HasPrefix(e.Name(), partitionMetadataFile) {
			if err := mem.Remove("/d/a-0/" + e.Name()); err != nil {
				t.Fatal(err)
			}
		}
	}
	mem.SetCapacity(mem.Used())
	m := w.open()
	l := m.Log(TopicPartition{Topic: "a"})
	if err := m.Dirs()[0].Offline; err != nil || l == nil || len(values(t, l, 0, ReadLogEnd)) != 20 || len(values(t, l, 13, ReadLogEnd)) != 7 {
		t.Fatalf("on a full disk: %v, %v", l, err)
	}
	mem.SetCapacity(-1)
	mustAppend(t, l, producerBatch(w.now(), 1, 0, 20, false, "x"))
	w.close()
	if l = w.open().Log(TopicPartition{Topic: "a"}); len(values(t, l, 0, ReadLogEnd)) != 21 {
		t.Errorf("then: %v", values(t, l, 0, ReadLogEnd))
	}
	w.close()
}
