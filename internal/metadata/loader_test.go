package metadata

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gregor/internal/message"
	"gregor/internal/uuid"
)

// trace is a publisher that writes down what it gets.
type trace struct {
	name string
	log  *[]string
}

func (p *trace) Name() string { return p.name }

func (p *trace) Publish(d *Delta, img *Image, m Manifest) {
	s := fmt.Sprintf("%s: offset %d", p.name, img.Offset)
	if !img.BatchAligned {
		s += " inside of a batch"
	}
	if m.Snapshot {
		s += " snapshot"
	} else {
		s += fmt.Sprintf(" batches %d bytes %d", m.Batches, m.Bytes)
	}
	if d.Configs != nil {
		var changed []string
		for res, c := range d.Configs.Changed {
			for k, v := range c {
				if v == nil {
					changed = append(changed, res.Name+" -"+k)
				} else {
					changed = append(changed, res.Name+" "+k+"="+*v)
				}
			}
		}
		slices.Sort(changed)
		s += " [" + strings.Join(changed, ", ") + "]"
	}
	*p.log = append(*p.log, s)
}

func (p *trace) PublishLeader(l LeaderAndEpoch) {
	*p.log = append(*p.log, fmt.Sprintf("%s: leader %d epoch %d", p.name, l.LeaderID, l.Epoch))
}

// quietTrace doesn't want to hear of leaders.
type quietTrace struct{ t *trace }

func (p quietTrace) Name() string                             { return p.t.name }
func (p quietTrace) Publish(d *Delta, img *Image, m Manifest) { p.t.Publish(d, img, m) }

type loaderTest struct {
	t      *testing.T
	l      *Loader
	hw     int64
	next   int64
	log    []string
	faults []string
}

func newLoaderTest(t *testing.T) *loaderTest {
	lt := &loaderTest{t: t, hw: -1}
	lt.l = NewLoader(LoaderOptions{
		Logger:        quiet,
		HighWatermark: func() int64 { return lt.hw },
		OnFault:       func(err error) { lt.faults = append(lt.faults, err.Error()) },
	})
	return lt
}

func set(key, value string) message.Message {
	return &message.ConfigRecord{ResourceType: BrokerResource, ResourceName: "b", Name: key, Value: &value}
}

// commit hands over one batch of 10 bytes a record; no records stand for a control batch.
func (lt *loaderTest) commit(ms ...message.Message) {
	b := Batch{BaseOffset: lt.next, LastOffset: lt.next + int64(max(len(ms), 1)) - 1, Epoch: 1, AppendTime: 5, Bytes: 10 * len(ms)}
	for _, m := range ms {
		b.Records = append(b.Records, message.Versioned{Message: m})
	}
	lt.next = b.LastOffset + 1
	lt.l.HandleCommit(b)
}

func (lt *loaderTest) expect(want ...string) {
	lt.t.Helper()
	if !slices.Equal(lt.log, want) {
		lt.t.Errorf("published\n\t%s\nwant\n\t%s", strings.Join(lt.log, "\n\t"), strings.Join(want, "\n\t"))
	}
	lt.log = nil
}

func (lt *loaderTest) install(names ...string) {
	lt.t.Helper()
	for _, n := range names {
		if err := lt.l.Install(quietTrace{&trace{n, &lt.log}}); err != nil {
			lt.t.Fatal(err)
		}
	}
}

var (
	begin = message.NewBeginTransactionRecord()
	end   = message.NewEndTransactionRecord()
	abort = message.NewAbortTransactionRecord()
)

func TestLoaderPublishesNothingBeforeTheHighWatermark(t *testing.T) {
	lt := newLoaderTest(t)
	lt.install("one", "two")
	lt.commit() // a control batch: 0
	lt.commit(set("a", "1"))
	lt.hw = 5
	lt.commit(set("b", "1"))
	lt.commit(set("a", "2"))
	lt.expect()
	if lt.l.CaughtUp() || lt.l.Image().Offset != -1 || lt.l.LastAppliedOffset() != 3 {
		t.Errorf("caught up %v, image at %d, applied %d", lt.l.CaughtUp(), lt.l.Image().Offset, lt.l.LastAppliedOffset())
	}
	lt.commit(set("c", "1"))
	lt.expect("one: offset 4 snapshot [b a=2, b b=1, b c=1]", "two: offset 4 snapshot [b a=2, b b=1, b c=1]")
	lt.hw = 1000 // from now on it doesn't matter
	lt.commit(set("d", "1"), set("e", "1"))
	lt.expect("one: offset 6 batches 1 bytes 20 [b d=1, b e=1]", "two: offset 6 batches 1 bytes 20 [b d=1, b e=1]")
	lt.commit()
	lt.expect("one: offset 7 batches 1 bytes 0", "two: offset 7 batches 1 bytes 0")
	lt.install("three")
	lt.expect("three: offset 7 snapshot [b a=2, b b=1, b c=1, b d=1, b e=1]")
}

func TestLoaderWaitsForARecord(t *testing.T) {
	lt := newLoaderTest(t)
	lt.install("p")
	lt.hw = 1
	lt.commit()
	lt.expect() // there is nothing to show yet
	lt.hw = 2
	lt.commit(message.NewNoOpRecord())
	lt.expect("p: offset 1 snapshot")
}

func TestLoaderTransactions(t *testing.T) {
	lt := newLoaderTest(t)
	lt.install("p")
	lt.hw = 1
	lt.commit(set("a", "1"))
	lt.expect("p: offset 0 snapshot [b a=1]")

	// Over several batches.
	lt.commit(begin, set("b", "1"))
	lt.commit(set("c", "1"))
	lt.expect()
	lt.commit(end)
	lt.expect("p: offset 4 batches 3 bytes 40 [b b=1, b c=1]")

	// Aborted: nothing but the offset moves.
	lt.commit(begin)
	lt.commit(set("d", "1"))
	lt.commit(abort)
	lt.expect("p: offset 7 batches 3 bytes 30")
	if lt.l.Image().Configs.Get(Resource{BrokerResource, "b"})["d"] != "" {
		t.Error("an aborted record is in the image")
	}

	// What stands before the beginning goes out by itself, and what stands behind the end with the transaction.
	lt.commit(set("e", "1"), begin, set("f", "1"))
	lt.expect("p: offset 8 inside of a batch batches 0 bytes 0 [b e=1]")
	lt.commit(set("g", "1"), end, set("h", "1"))
	lt.expect("p: offset 13 batches 2 bytes 60 [b f=1, b g=1, b h=1]")

	// Two in one batch.
	lt.commit(begin, set("i", "1"), end, begin, set("j", "1"), abort)
	lt.expect("p: offset 16 inside of a batch batches 0 bytes 0 [b i=1]", "p: offset 19 batches 1 bytes 60")
	if len(lt.faults) != 0 {
		t.Errorf("faults: %v", lt.faults)
	}
}

// TestLoaderTransactionWhileCatchingUp: an abort must not take away what was gathered before the transaction.
func TestLoaderTransactionWhileCatchingUp(t *testing.T) {
	lt := newLoaderTest(t)
	lt.install("p")
	lt.hw = 7
	lt.commit(set("a", "1"))
	lt.commit(begin, set("b", "1"))
	lt.commit(set("c", "1"), abort)
	lt.commit(set("d", "1"))
	lt.expect()
	lt.commit(begin)
	lt.expect() // the high watermark is reached, but a transaction is open
	if lt.l.CaughtUp() {
		t.Log("caught up just before the transaction")
	}
	lt.commit(set("e", "1"))
	lt.commit(end)
	lt.expect("p: offset 8 snapshot [b a=1, b d=1, b e=1]")
}

func TestLoaderFaults(t *testing.T) {
	lt := newLoaderTest(t)
	lt.install("p")
	lt.hw = 1
	lt.commit(end, abort, &message.RemoveTopicRecord{TopicID: uuid.UUID{1}}, set("a", "1"), begin, begin, end)
	if len(lt.faults) != 4 || !strings.Contains(lt.faults[2], "offset 2") {
		t.Errorf("%d faults: %s", len(lt.faults), strings.Join(lt.faults, "\n"))
	}
	// It goes on with the rest.
	if lt.l.Image().Configs.Get(Resource{BrokerResource, "b"})["a"] != "1" {
		t.Error("the record behind a fault is missing")
	}
	if err := lt.l.Install(quietTrace{&trace{"p", &lt.log}}); err == nil {
		t.Error("a second publisher of the same name was installed")
	}
}

type failingSource struct{}

func (failingSource) Next() ([]message.Versioned, error) { return nil, errors.New("disk on fire") }

func TestLoaderSnapshots(t *testing.T) {
	lt := newLoaderTest(t)
	lt.install("p")
	lt.hw = 20
	records := func(ms ...message.Message) *sliceSource {
		var vs []message.Versioned
		for _, m := range ms {
			vs = append(vs, message.Versioned{Message: m})
		}
		return &sliceSource{[][]message.Versioned{vs}}
	}
	if err := lt.l.HandleSnapshot(10, 3, 77, records(set("a", "1"), set("b", "1"))); err != nil {
		t.Fatal(err)
	}
	lt.expect()
	lt.next = 10
	for range 9 {
		lt.commit(message.NewNoOpRecord())
	}
	lt.expect()
	lt.commit(set("c", "1"))
	lt.expect("p: offset 19 snapshot [b a=1, b b=1, b c=1]")

	// A snapshot over what is there: the delta says what is gone, and an open transaction is forgotten.
	lt.commit(begin, set("d", "1"))
	if err := lt.l.HandleSnapshot(40, 4, 78, records(set("a", "2"), set("c", "1"))); err != nil {
		t.Fatal(err)
	}
	lt.expect("p: offset 39 snapshot [b -b, b a=2, b c=1]")
	if img := lt.l.Image(); img.Epoch != 4 || img.Time != 78 || !img.BatchAligned {
		t.Errorf("provenance %+v", img.Provenance)
	}
	if err := lt.l.HandleSnapshot(50, 4, 78, failingSource{}); err == nil || len(lt.faults) != 1 {
		t.Errorf("a snapshot that can't be read: %v, faults %v", err, lt.faults)
	}
	if lt.l.Image().Offset != 39 {
		t.Errorf("image at %d", lt.l.Image().Offset)
	}
}

func TestLoaderLeaders(t *testing.T) {
	lt := newLoaderTest(t)
	p := &trace{"p", &lt.log}
	if err := lt.l.Install(p); err != nil {
		t.Fatal(err)
	}
	lt.install("q")
	lt.l.HandleLeaderChange(LeaderAndEpoch{1, 1})
	lt.expect()
	lt.hw = 1
	lt.commit(set("a", "1"))
	lt.expect("p: offset 0 snapshot [b a=1]", "p: leader 1 epoch 1", "q: offset 0 snapshot [b a=1]")
	lt.l.HandleLeaderChange(LeaderAndEpoch{-1, 2})
	lt.expect("p: leader -1 epoch 2")
	lt.l.Remove(p)
	lt.commit(set("a", "2"))
	lt.expect("q: offset 1 batches 1 bytes 10 [b a=2]")
	lt.l.Close()
	lt.commit(set("a", "3"))
	lt.l.HandleLeaderChange(LeaderAndEpoch{2, 3})
	lt.expect()
}
