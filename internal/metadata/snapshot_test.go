package metadata

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gregor/internal/clock"
	"gregor/internal/message"
)

// memorySink keeps what is written.
type memorySink struct {
	batches        [][]message.Versioned
	frozen, closed bool
	gate           chan struct{} // Freeze waits for it when it is there
	err            error
}

func (s *memorySink) Append(records []message.Versioned) error {
	s.batches = append(s.batches, slices.Clone(records))
	return s.err
}

func (s *memorySink) Freeze() error {
	if s.gate != nil {
		<-s.gate
	}
	s.frozen = true
	return nil
}

func (s *memorySink) Close() error {
	s.closed = true
	return nil
}

func imageAt(offset int64) *Image {
	d := NewDelta(EmptyImage())
	if err := d.Replay(&message.FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: int16(LatestProduction)}); err != nil {
		panic(err)
	}
	return d.Apply(Provenance{Offset: offset, Epoch: 3, Time: 9, BatchAligned: true})
}

func TestSnapshotGenerator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := clock.NewManual(time.Unix(1000, 0))
		var sinks []*memorySink
		var offsets []int64
		gate := make(chan struct{})
		g := NewSnapshotGenerator(SnapshotOptions{
			Clock: now, Logger: quiet, MaxBytes: 100, MaxInterval: time.Hour,
			Create: func(endOffset int64, epoch int32, lastTime int64) (SnapshotSink, error) {
				if epoch != 3 || lastTime != 9 {
					t.Errorf("snapshot of epoch %d, time %d", epoch, lastTime)
				}
				s := &memorySink{gate: gate}
				sinks, offsets = append(sinks, s), append(offsets, endOffset)
				return s, nil
			},
			OnFault: func(err error) { t.Error(err) },
		})
		publish := func(offset int64, bytes int) {
			g.Publish(nil, imageAt(offset), Manifest{Batches: 1, Bytes: bytes})
			synctest.Wait()
		}
		count := func(n int) {
			t.Helper()
			if len(sinks) != n {
				t.Fatalf("%d snapshots were begun, want %d", len(sinks), n)
			}
		}
		publish(0, 99)
		count(0)
		g.Publish(nil, imageAt(1), Manifest{Snapshot: true}) // loaded from one: counting begins anew
		publish(2, 99)
		count(0)
		publish(3, 1)
		count(1)
		publish(4, 500) // one is being written
		count(1)
		if sinks[0].frozen {
			t.Error("frozen too early")
		}
		gate <- struct{}{}
		synctest.Wait()
		if !sinks[0].frozen || !sinks[0].closed || len(sinks[0].batches) != 1 || offsets[0] != 4 {
			t.Errorf("snapshot %+v at %v", sinks[0], offsets)
		}
		unaligned := imageAt(5)
		unaligned.BatchAligned = false
		g.Publish(nil, unaligned, Manifest{Bytes: 1})
		synctest.Wait()
		count(1)
		close(gate)
		publish(6, 0) // the 500 bytes still count
		count(2)
		now.Advance(time.Hour - 1)
		publish(7, 0)
		count(2)
		now.Advance(1)
		publish(8, 0)
		count(3)
		g.Publish(nil, EmptyImage(), Manifest{Bytes: 1000}) // no metadata.version, no form
		synctest.Wait()
		count(3)
		g.Disable("the image is wrong")
		publish(9, 1000)
		count(3)
		g.Close()
	})
}

func TestWriteSnapshotFails(t *testing.T) {
	boom := errors.New("disk full")
	sink := &memorySink{err: boom}
	err := WriteSnapshot(imageAt(1), func(int64, int32, int64) (SnapshotSink, error) { return sink, nil })
	if !errors.Is(err, boom) || sink.frozen || !sink.closed {
		t.Errorf("%v, sink %+v", err, sink)
	}
	if err := WriteSnapshot(imageAt(1), func(int64, int32, int64) (SnapshotSink, error) { return nil, boom }); !errors.Is(err, boom) {
		t.Error(err)
	}
	if err := WriteSnapshot(imageAt(1), func(int64, int32, int64) (SnapshotSink, error) { return nil, nil }); err != nil {
		t.Error(err)
	}
}

// TestSnapshotBatches checks that a large image goes out in batches of bounded size, and is complete.
func TestSnapshotBatches(t *testing.T) {
	img := bigImage(t, 10, 500)
	var sink memorySink
	if err := WriteSnapshot(img, func(int64, int32, int64) (SnapshotSink, error) { return &sink, nil }); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, b := range sink.batches {
		total += len(b)
		if len(b) > snapshotBatchRecords {
			t.Errorf("a batch of %d records", len(b))
		}
	}
	if want := 1 + 10 + 5000; total != want || len(sink.batches) != (want+snapshotBatchRecords-1)/snapshotBatchRecords {
		t.Errorf("%d records in %d batches, want %d", total, len(sink.batches), want)
	}
	again := load(t, &snapshotFile{img.Offset + 1, img.Epoch, sink.batches}, nil, img.Offset+1)
	if diff := Diff(img, again); diff != "" {
		t.Error(diff)
	}
}
