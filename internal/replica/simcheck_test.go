package replica

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"gregor/internal/log"
	"gregor/internal/record"
)

// check looks at what every broker shows to consumers.
func (w *simWorld) check() {
	for _, b := range w.brokers[1:] {
		if !b.up {
			continue
		}
		for _, p := range b.partitions() {
			id := p.tp.Partition
			_, _, hw, _ := p.log().Offsets()
			if hw < b.hw[id] {
				w.fail("broker %d: high watermark of %d went back from %d to %d", b.id, id, b.hw[id], hw)
			}
			b.hw[id] = hw
			for b.checked[id] < hw && w.err == nil {
				b.checked[id] = w.checkFrom(b, p, b.checked[id], hw)
			}
		}
	}
	for id := range w.acked {
		for offset, value := range w.acked[id] {
			if w.seen[id][offset] != value {
				w.fail("partition %d: %q was acknowledged at offset %d, where there is %q", id, value, offset, w.seen[id][offset])
			}
		}
		clear(w.acked[id]) // what was seen does not change any more
	}
}

// checkFrom compares what a replica has from an offset on, up to its high watermark, with what others had there.
func (w *simWorld) checkFrom(b *simBroker, p *Partition, at, hw int64) (next int64) {
	id := p.tp.Partition
	f, err := p.log().Read(at, 1<<20, log.ReadUncommitted, true)
	if err != nil {
		w.fail("broker %d: read partition %d at %d: %v", b.id, id, at, err)
		return hw
	}
	defer f.Slice.Release()
	data, err := f.Slice.Bytes(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(data) == 0 {
		w.fail("broker %d: partition %d has nothing at %d, below the high watermark %d", b.id, id, at, hw)
		return hw
	}
	for rest := data; len(rest) > 0; {
		batch, n, err := record.Next(rest)
		if err != nil {
			break
		}
		it := batch.Records(w.decomp)
		for it.Next() {
			r := it.Record()
			if was, ok := w.seen[id][r.Offset]; ok && was != string(r.Value) {
				w.fail("partition %d, offset %d: broker %d has %q below its high watermark %d, others had %q", id, r.Offset, b.id, r.Value, hw, was)
			}
			w.seen[id][r.Offset] = string(r.Value)
			at = r.Offset + 1
		}
		it.Close()
		rest = n
	}
	return at
}

// well says what is not as it must be when there have been no faults for a while.
func (w *simWorld) well() error {
	for id := range int32(simPartitions) {
		p := w.c.image.Topics.ByID(simTopic).Partition(id)
		if len(p.ISR) != simBrokers || p.Leader < 0 {
			return fmt.Errorf("partition %d has leader %d and ISR %v", id, p.Leader, p.ISR)
		}
		var first []byte
		for _, b := range w.brokers[1:] {
			part := b.m.TopicByID(simTopic).Partition(id)
			_, _, hw, end := part.log().Offsets()
			f, err := part.log().Read(0, 1<<30, log.ReadLogEnd, true)
			if err != nil {
				return err
			}
			data, err := f.Slice.Bytes(nil)
			f.Slice.Release()
			switch {
			case err != nil:
				return err
			case hw != end:
				return fmt.Errorf("broker %d: partition %d has high watermark %d and log end %d", b.id, id, hw, end)
			case first == nil:
				first = data
			case !bytes.Equal(first, data):
				return fmt.Errorf("partition %d: brokers 1 and %d have different logs", id, b.id)
			}
		}
	}
	return nil
}

// What is broken on purpose. Each must be caught.
const (
	brokenMaximalISR  = "high watermark without the replica whose entry is asked for"
	brokenShrink      = "high watermark without replicas whose leaving is asked for"
	brokenTruncation  = "followers truncate to their high watermark instead of by epoch"
	brokenBrokerEpoch = "fetches of an earlier life count"
	brokenComparison  = "followers' ends are not compared with the leader's epochs"
	brokenMinISR      = "acknowledged with fewer in-sync replicas than the minimum"
	brokenEpochStart  = "replicas enter the ISR without all that earlier leaders committed"
	brokenAck         = "acknowledged when the leader has it"
)

// breakState breaks rules that lie within the state.
func (w *simWorld) breakState(p *Partition) {
	switch w.broken {
	case brokenMaximalISR:
		if s := p.st.pending; s != nil && s.joining != noReplica {
			p.st.follower(s.joining).caughtUpAt = time.Time{} // nor is it waited for because it keeps up
			s.joining = noReplica
		}
	case brokenShrink:
		if s := p.st.pending; s != nil && len(s.isr) < len(p.st.role.isr) {
			r := *p.st.role
			r.isr = s.isr
			p.st.role = &r
			p.role.Store(&r)
		}
	case brokenEpochStart:
		p.st.epochStart = 0
	case brokenAck:
		if p.st.role.leader {
			p.log().RaiseHighWatermark(p.log().EndOffset())
		}
	}
}

func TestSimulation(t *testing.T) {
	first, last := uint64(1), *simSeeds
	if *simSeed != 0 {
		first, last = *simSeed, *simSeed
	}
	acked, produced := 0, 0
	for seed := first; seed <= last; seed++ {
		w := newSimWorld(t, seed, "")
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		acked, produced = acked+w.nAcked, produced+w.produced
	}
	t.Logf("%d records acknowledged of %d", acked, produced)
	if acked < int(last-first+1)*100 {
		t.Errorf("only %d records were acknowledged: the test proves little", acked)
	}
}

func TestSimulationRepeats(t *testing.T) {
	var texts [2]string
	for i := range texts {
		w := newSimWorld(t, 3, "")
		err := w.run()
		texts[i] = fmt.Sprint(err, w.nAcked, w.produced, w.loop.Now(), len(w.c.log))
	}
	if texts[0] != texts[1] {
		t.Errorf("one seed, two runs:\n%s\n%s", texts[0], texts[1])
	}
}

// TestMutationsAreCaught tries first the seed that was found to catch a mutation. When the code changes it means another run.
func TestMutationsAreCaught(t *testing.T) {
	for broken, pinned := range map[string]uint64{
		brokenMaximalISR: 70, brokenShrink: 4, brokenTruncation: 3, brokenBrokerEpoch: 163, brokenComparison: 77, brokenMinISR: 1,
		brokenEpochStart: 121, brokenAck: 1,
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			for i := range uint64(1000) {
				seed := pinned
				if i > 0 {
					seed = i
				}
				if err := newSimWorld(t, seed, broken).run(); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("not caught in 1000 runs")
		})
	}
}
