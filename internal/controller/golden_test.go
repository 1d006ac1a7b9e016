package controller

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gregor/internal/message"
	"gregor/internal/record"
)

// metadataDir is one __cluster_metadata-0 of a golden archive.
type metadataDir struct {
	segments  map[string][]byte
	snapshots map[string][]byte
}

// goldenDirs reads the metadata logs of an archive, by directory.
func goldenDirs(t *testing.T, file string) map[string]*metadataDir {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dirs := make(map[string]*metadataDir)
	for tr := tar.NewReader(gz); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return dirs
		}
		if err != nil {
			t.Fatal(err)
		}
		dir, name := path.Split(h.Name)
		if path.Base(dir) != "__cluster_metadata-0" {
			continue
		}
		d := dirs[dir]
		if d == nil {
			d = &metadataDir{map[string][]byte{}, map[string][]byte{}}
			dirs[dir] = d
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		switch path.Ext(name) {
		case ".log":
			d.segments[name] = body
		case ".checkpoint":
			d.snapshots[name] = body
		}
	}
}

// batches splits a log or a snapshot into its batches; a control batch has no records.
func batches(t *testing.T, buf []byte) []fakeBatch {
	d := record.NewDecompressor(record.DecompressorOptions{})
	var out []fakeBatch
	for len(buf) > 0 {
		b, rest, err := record.Next(buf)
		if err != nil {
			return out // a torn tail: that is the log's business
		}
		buf = rest
		fb := fakeBatch{base: b.BaseOffset()}
		if b.IsControl() {
			fb.epoch = int32(b.LastOffset() - b.BaseOffset() + 1)
			out = append(out, fb)
			continue
		}
		it := b.Records(d)
		for it.Next() {
			v, err := message.ReadMetadataRecord(it.Record().Value)
			if err != nil {
				t.Fatalf("offset %d: %v", it.Record().Offset, err)
			}
			fb.records = append(fb.records, v)
		}
		if err := it.Err(); err != nil {
			t.Fatal(err)
		}
		out = append(out, fb)
	}
	return out
}

// TestGoldenLogsReplay replays every metadata log that Kafka wrote, and compares the state at the offset of each snapshot
// with what the snapshot, which Kafka wrote too, loads into.
func TestGoldenLogsReplay(t *testing.T) {
	files, err := filepath.Glob("../../testdata/golden/*.tar.gz")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden archives", err)
	}
	compared, records := 0, 0
	for _, file := range files {
		for dir, d := range goldenDirs(t, file) {
			w := newWorld(t, nil)
			w.opts.Fatal = func(err error) { t.Errorf("%s: %v", dir, err) }
			w.core = NewCore(w.opts, w.log)
			states := map[int64]string{}
			names := slices.Sorted(maps.Keys(d.segments))
			start := int64(0)
			if len(names) > 0 {
				start, _ = strconv.ParseInt(strings.TrimSuffix(names[0], ".log"), 10, 64)
			}
			load := func(body []byte, end int64) *Core {
				c := NewCore(w.opts, w.log)
				c.LoadSnapshot(w.now, end, func(yield func(message.Versioned) bool) {
					for _, b := range batches(t, body) {
						for _, v := range b.records {
							if !yield(v) {
								return
							}
						}
					}
				})
				return c
			}
			ends := map[int64][]byte{}
			for name, body := range d.snapshots {
				end, _ := strconv.ParseInt(name[:20], 10, 64)
				if end > 0 {
					ends[end] = body
				}
			}
			next := start
			if start > 0 {
				// The log's head is gone: state begins with a snapshot, and what comes before it in the log doesn't count.
				start = slices.Min(slices.Collect(maps.Keys(ends)))
				w.core = load(ends[start], start)
			}
			for _, name := range names {
				for _, b := range batches(t, d.segments[name]) {
					n := int64(len(b.records))
					if n == 0 {
						n = int64(b.epoch) // of a control batch
					}
					if next = b.base + n; next <= start {
						continue
					}
					w.core.HandleCommit(w.now, b.base, next-1, b.records)
					records += len(b.records)
					if ends[next] != nil {
						states[next] = w.core.Dump()
					}
				}
			}
			for end, want := range states {
				if got := load(ends[end], end).Dump(); got != want {
					t.Errorf("%s at %d: snapshot and log differ:\n%s", dir, end, diff(want, got))
				}
				compared++
			}
		}
	}
	t.Logf("%d records, %d snapshots compared", records, compared)
	if compared < 10 {
		t.Errorf("only %d snapshots were compared", compared)
	}
}
