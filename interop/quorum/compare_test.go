package quorum

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/record"
)

// batchesOf reads the metadata log in a directory, whoever wrote it.
func batchesOf(dir string) ([]record.Batch, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	var out []record.Batch
	for _, f := range files {
		rest, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for len(rest) > 0 {
			var b record.Batch
			if b, rest, err = record.Next(rest); err != nil {
				break // what a kill left unfinished, or room that was allocated ahead
			}
			if err := b.Check(); err != nil {
				return nil, fmt.Errorf("%s: batch at %d: %w", f, b.BaseOffset(), err)
			}
			if n := len(out); n > 0 && out[n-1].NextOffset() != b.BaseOffset() {
				return nil, fmt.Errorf("%s: batch at %d follows one that ends at %d", f, b.BaseOffset(), out[n-1].LastOffset())
			}
			out = append(out, b)
		}
	}
	return out, nil
}

// compareDirectories compares what the members, which have stopped, have on disk, up to the high watermark given: their logs
// have the same bytes wherever two have the same offset, and each snapshot, whoever took it, says what the log before it says.
func (c *cluster) compareDirectories(hw int64) {
	c.tb.Helper()
	logs := map[*member][]record.Batch{}
	var whole []record.Batch // from offset 0 on
	for _, m := range c.members {
		b, err := batchesOf(m.metadataDir())
		if err != nil {
			c.tb.Fatal(err)
		}
		logs[m] = slices.DeleteFunc(b, func(b record.Batch) bool { return b.LastOffset() >= hw })
		if b := logs[m]; len(b) > 0 && b[0].BaseOffset() == 0 && len(b) > len(whole) {
			whole = b
		}
	}
	for i, m := range c.members {
		for _, o := range c.members[:i] {
			c.compareLogs(m, o, logs[m], logs[o])
		}
	}
	if whole == nil {
		c.tb.Fatal("no member has the log from its beginning")
	}
	want := map[int64]*metadata.Image{}
	snapshots := map[*member]map[int64]string{}
	for _, m := range c.members {
		snapshots[m] = map[int64]string{}
		files, err := filepath.Glob(filepath.Join(m.metadataDir(), "*.checkpoint"))
		if err != nil {
			c.tb.Fatal(err)
		}
		for _, f := range files {
			var end int64
			var epoch int32
			if _, err := fmt.Sscanf(filepath.Base(f), "%d-%d.checkpoint", &end, &epoch); err != nil {
				c.tb.Fatal(err)
			}
			if end > 0 && end <= hw {
				want[end] = nil
				snapshots[m][end] = f
			}
		}
	}
	c.replay(whole, want)
	for _, m := range c.members {
		for end, f := range snapshots[m] {
			c.compareSnapshot(m, f, want[end])
		}
		c.logf("%s has %d batches of the log and %d snapshots, all right", m, len(logs[m]), len(snapshots[m]))
	}
}

func (c *cluster) compareLogs(m, o *member, a, b []record.Batch) {
	c.tb.Helper()
	for len(a) > 0 && len(b) > 0 {
		switch x, y := a[0], b[0]; {
		case x.NextOffset() <= y.BaseOffset():
			a = a[1:]
		case y.NextOffset() <= x.BaseOffset():
			b = b[1:]
		case !bytes.Equal(x, y):
			c.tb.Fatalf("the batches at %d (epoch %d) of %s and at %d (epoch %d) of %s differ:\n%x\n%x", x.BaseOffset(), x.PartitionLeaderEpoch(), m,
				y.BaseOffset(), y.PartitionLeaderEpoch(), o, []byte(x), []byte(y))
		default:
			a, b = a[1:], b[1:]
		}
	}
}

// imageKeeper is a publisher that keeps the images that are wanted.
type imageKeeper struct{ want map[int64]*metadata.Image }

func (k imageKeeper) Name() string { return "keeper" }

func (k imageKeeper) Publish(_ *metadata.Delta, img *metadata.Image, _ metadata.Manifest) {
	if _, ok := k.want[img.Offset+1]; ok {
		k.want[img.Offset+1] = img
	}
}

// replay fills want, whose keys are the ends of snapshots, with images by the log.
func (c *cluster) replay(log []record.Batch, want map[int64]*metadata.Image) {
	c.tb.Helper()
	var hw int64
	loader := metadata.NewLoader(metadata.LoaderOptions{
		Logger: slog.New(slog.DiscardHandler), HighWatermark: func() int64 { return hw },
		OnFault: func(err error) { c.tb.Errorf("replay of the log: %v", err) },
	})
	if err := loader.Install(imageKeeper{want}); err != nil {
		c.tb.Fatal(err)
	}
	for _, b := range log {
		hw = b.NextOffset()
		batch := metadata.Batch{BaseOffset: b.BaseOffset(), LastOffset: b.LastOffset(), Epoch: b.PartitionLeaderEpoch(), AppendTime: b.MaxTimestamp(), Bytes: b.Size()}
		batch.Records = c.records(b)
		loader.HandleCommit(batch)
	}
}

// records reads the metadata records of a batch.
func (c *cluster) records(b record.Batch) (list []message.Versioned) {
	c.tb.Helper()
	if b.IsControl() {
		return nil
	}
	it := b.Records(record.NewDecompressor(record.DecompressorOptions{}))
	defer it.Close()
	for it.Next() {
		v, err := message.ReadMetadataRecord(it.Record().Value)
		if err != nil {
			c.tb.Fatalf("record %d: %v", it.Record().Offset, err)
		}
		list = append(list, v)
	}
	if err := it.Err(); err != nil {
		c.tb.Fatalf("batch at %d: %v", b.BaseOffset(), err)
	}
	return list
}

// compareSnapshot compares the records in a snapshot with those that the image by the log would be written as.
func (c *cluster) compareSnapshot(m *member, file string, img *metadata.Image) {
	c.tb.Helper()
	rest, err := os.ReadFile(file)
	if err != nil {
		c.tb.Fatal(err)
	}
	var got []string
	for len(rest) > 0 {
		var b record.Batch
		if b, rest, err = record.Next(rest); err == nil {
			err = b.Check()
		}
		if err != nil {
			c.tb.Fatalf("%s: %s: %v", m, file, err)
		}
		for _, v := range c.records(b) {
			got = append(got, dump(v))
		}
	}
	if img == nil {
		c.tb.Errorf("%s: %s: the log gives no image there", m, file)
		return
	}
	var expect []string
	err = img.Write(func(v message.Versioned) error {
		expect = append(expect, dump(v))
		return nil
	}, metadata.WriteOptions{MetadataVersion: img.Features.MetadataVersion})
	if err != nil {
		c.tb.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(expect)
	if slices.Equal(got, expect) {
		return
	}
	c.tb.Errorf("%s: %s is not what the log says:\nonly in the snapshot:\n%s\nonly by the log:\n%s", m, file,
		strings.Join(minus(got, expect), "\n"), strings.Join(minus(expect, got), "\n"))
}

func minus(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool {
		_, found := slices.BinarySearch(b, s)
		return found
	})
}

// dump is a record as text. Lists whose order means nothing are put in order.
func dump(v message.Versioned) string {
	switch r := v.Message.(type) {
	case *message.RegisterBrokerRecord:
		slices.SortFunc(r.EndPoints, func(a, b message.RegisterBrokerRecordBrokerEndpoint) int { return strings.Compare(a.Name, b.Name) })
		slices.SortFunc(r.Features, func(a, b message.RegisterBrokerRecordBrokerFeature) int { return strings.Compare(a.Name, b.Name) })
	case *message.RegisterControllerRecord:
		slices.SortFunc(r.EndPoints, func(a, b message.RegisterControllerRecordControllerEndpoint) int {
			return strings.Compare(a.Name, b.Name)
		})
		slices.SortFunc(r.Features, func(a, b message.RegisterControllerRecordControllerFeature) int {
			return strings.Compare(a.Name, b.Name)
		})
	}
	return fmt.Sprintf("%s v%d %s", v.Message.MessageName(), v.Version, v.Message.AppendJSON(nil, v.Version))
}
