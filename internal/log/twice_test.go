package log

import (
	"strings"
	"testing"

	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// TestPartitionInTwoDirectories: a directory comes back that was offline while its replica was made anew in another. The one that
// the metadata names counts.
func TestPartitionInTwoDirectories(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), "/d1", "/d2")
	tp, id := TopicPartition{Topic: "a"}, uuid.UUID{15: 77}
	both := w.dirs
	for i, dir := range both {
		w.dirs = []string{dir}
		m := w.open()
		l, err := m.GetOrCreate(tp, id, w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		for range i + 1 {
			mustAppend(t, l, batch(w.now(), "x"))
		}
		w.close()
	}
	w.dirs = both
	if _, err := w.tryOpen(); err == nil || !strings.Contains(err.Error(), "both in") {
		t.Errorf("without a word from the metadata: %v", err)
	}
	props, err := ReadMetaProperties(w.fs, "/d2")
	if err != nil {
		t.Fatal(err)
	}
	w.opts = func(o *Options) { o.Placed = func(TopicPartition, uuid.UUID) uuid.UUID { return props.DirectoryID } }
	m := w.open()
	if l := m.Log(tp); l == nil || l.ParentDir() != "/d2" || l.EndOffset() != 2 {
		t.Errorf("the log is %v", l)
	}
	entries, err := w.fs.ReadDir("/d1")
	if err != nil {
		t.Fatal(err)
	}
	stray := false
	for _, e := range entries {
		stray = stray || strings.HasSuffix(e.Name(), "-stray")
	}
	if !stray || m.Log(tp) == nil {
		t.Errorf("the other one is not set aside: %v", entries)
	}
	w.close()
	w.open()
	w.close()
}
