package simtest

import (
	"gregor/internal/raft"
	"gregor/internal/record"
)

// batchID names a batch: no two different ones may have the same.
type batchID struct {
	base  int64
	epoch int32
}

// batch is what the checkers know of a batch in a log.
type batch struct {
	batchID
	last int64
	crc  uint32
	data record.Batch
}

// logTap sees what goes into a node's log, and knows at any time what is in it.
type logTap struct {
	raft.Log
	p       *proc
	batches []batch
	// known is how many of batches, from the first, are below the high watermark for all that this node knows.
	known int
}

// newLogTap reads what is in the log already.
func newLogTap(p *proc, l raft.Log) *logTap {
	t := &logTap{Log: l, p: p}
	for at := l.StartOffset(); at < l.EndOffset(); {
		data, err := l.Read(at, 1<<20)
		must(err)
		t.add(data)
		at = t.end()
	}
	return t
}

func (t *logTap) end() int64 {
	if n := len(t.batches); n > 0 {
		return t.batches[n-1].last + 1
	}
	return t.EndOffset()
}

func (t *logTap) add(data []byte) {
	data = append([]byte(nil), data...)
	for len(data) > 0 {
		b, rest, err := record.Next(data)
		must(err)
		data = rest
		x := batch{batchID{b.BaseOffset(), b.PartitionLeaderEpoch()}, b.LastOffset(), b.CRC(), b}
		prev := batchID{-1, -1}
		if n := len(t.batches); n > 0 {
			prev = t.batches[n-1].batchID
		}
		t.p.w.ref.sawBatch(t.p.n, x, prev)
		t.batches = append(t.batches, x)
	}
}

func (t *logTap) Append(data []byte) error {
	if err := t.Log.Append(data); err != nil {
		return err
	}
	t.add(data)
	return nil
}

func (t *logTap) TruncateTo(offset int64) error {
	w, n := t.p.w, t.p.n
	w.stats.truncations++
	n.logf("truncates its log to %d", offset)
	if end := w.ref.committedIn(t); offset < end {
		w.fail("node %d truncates its log to %d, and has what is committed up to %d", n.id, offset, end)
	}
	if err := t.Log.TruncateTo(offset); err != nil {
		return err
	}
	for n := len(t.batches); n > 0 && t.batches[n-1].last >= offset; n-- {
		t.batches = t.batches[:n-1]
	}
	t.known = min(t.known, len(t.batches))
	return nil
}

func (t *logTap) Restart(offset int64) error {
	t.p.w.stats.installs++
	t.p.n.logf("restarts its log at %d", offset)
	if err := t.Log.Restart(offset); err != nil {
		return err
	}
	t.batches, t.known = nil, 0
	return nil
}

func (t *logTap) TrimTo(offset int64) error {
	t.p.w.stats.trims++
	t.p.n.logf("cuts its log off before %d", offset)
	return t.Log.TrimTo(offset)
}
