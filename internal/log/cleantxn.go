package log

import (
	"slices"

	"gregor/internal/record"
)

// cleanedTxns follows the transactions through a cleaning pass: which batches belong to aborted ones, and which markers have
// lost all their records.
type cleanedTxns struct {
	pending   []abortedTxn // ascending by first offset: aborted transactions that the pass hasn't reached
	aborted   map[int64]*passingAbort
	committed map[int64]bool // producers with batches of a transaction that isn't aborted
	// keep is told of the aborted transactions whose marker stays, for the transaction index of the cleaned segment.
	keep func(t abortedTxn) error
}

type passingAbort struct {
	txn  abortedTxn
	seen bool // a batch of it was met in this pass
}

func newCleanedTxns() *cleanedTxns {
	return &cleanedTxns{aborted: map[int64]*passingAbort{}, committed: map[int64]bool{}}
}

// add puts aborted transactions in line; some may be there already.
func (c *cleanedTxns) add(all []abortedTxn) {
	for _, t := range all {
		if !slices.Contains(c.pending, t) {
			c.pending = append(c.pending, t)
		}
	}
	slices.SortStableFunc(c.pending, func(a, b abortedTxn) int {
		switch {
		case a.firstOffset < b.firstOffset:
			return -1
		case a.firstOffset > b.firstOffset:
			return 1
		}
		return 0
	})
}

func (c *cleanedTxns) reach(offset int64) {
	for len(c.pending) > 0 && c.pending[0].firstOffset <= offset {
		t := c.pending[0]
		c.pending = c.pending[1:]
		if c.aborted[t.producerID] == nil {
			c.aborted[t.producerID] = &passingAbort{txn: t}
		}
	}
}

// data is told of a batch that is no control batch and says whether it belongs to an aborted transaction.
func (c *cleanedTxns) data(b record.Batch) (discard bool) {
	c.reach(b.LastOffset())
	if !b.IsTransactional() {
		return false
	}
	if a := c.aborted[b.ProducerID()]; a != nil {
		a.seen = true
		return true
	}
	c.committed[b.ProducerID()] = true
	return false
}

// control is told of a control batch and says whether it may go: a marker stays as long as the pass met records of its
// transaction.
func (c *cleanedTxns) control(b record.Batch) (discard bool, err error) {
	c.reach(b.LastOffset())
	it := b.Records(nil)
	defer it.Close()
	if !it.Next() {
		return true, recordError(it.Err())
	}
	t, err := record.ParseControlKey(it.Record().Key)
	if err != nil {
		return false, recordError(err)
	}
	id := b.ProducerID()
	switch t {
	case record.ControlAbort:
		a := c.aborted[id]
		delete(c.aborted, id)
		if a == nil || !a.seen {
			return true, nil
		}
		if c.keep != nil {
			return false, c.keep(a.txn)
		}
		return false, nil
	case record.ControlCommit:
		was := c.committed[id]
		delete(c.committed, id)
		return !was, nil
	}
	return false, nil
}
