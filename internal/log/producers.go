package log

import (
	"fmt"
	"math"
	"slices"
	"time"

	"gregor/internal/api"
	"gregor/internal/record"
)

// keptBatches is how many batches a producer may retry: Kafka's producers have at most that many in flight.
const keptBatches = 5

// batchMeta is what is remembered of an appended batch to know it again.
type batchMeta struct {
	lastSeq     int32
	offsetDelta int32 // last - first offset; the sequences lie as far apart
	lastOffset  int64
	timestamp   int64
}

func (b batchMeta) firstOffset() int64 { return b.lastOffset - int64(b.offsetDelta) }

func (b batchMeta) firstSeq() int32 {
	s := int64(b.lastSeq) - int64(b.offsetDelta)
	if s < 0 {
		s += 1 << 31
	}
	return int32(s)
}

// producerEntry is the state of one producer: the last batches under its epoch, oldest first.
type producerEntry struct {
	batches       [keptBatches]batchMeta
	n             int8
	epoch         int16
	coordEpoch    int32
	lastTimestamp int64
	txnFirst      int64 // first offset of the open transaction, or -1
}

func newProducerEntry() producerEntry {
	return producerEntry{epoch: record.NoProducerEpoch, coordEpoch: -1, lastTimestamp: record.NoTimestamp, txnFirst: UnknownOffset}
}

func (p *producerEntry) last() (batchMeta, bool) {
	if p.n == 0 {
		return batchMeta{}, false
	}
	return p.batches[p.n-1], true
}

func (p *producerEntry) lastSeq() int32 {
	if b, ok := p.last(); ok {
		return b.lastSeq
	}
	return record.NoSequence
}

func (p *producerEntry) setEpoch(epoch int16) {
	if p.epoch != epoch {
		p.n, p.epoch = 0, epoch
	}
}

func (p *producerEntry) add(b batchMeta) {
	if p.n == keptBatches {
		copy(p.batches[:], p.batches[1:])
		p.n--
	}
	p.batches[p.n] = b
	p.n++
}

// duplicate finds a batch that was appended before.
func (p *producerEntry) duplicate(epoch int16, firstSeq, lastSeq int32) (batchMeta, bool) {
	if epoch != p.epoch {
		return batchMeta{}, false
	}
	for _, b := range p.batches[:p.n] {
		if b.firstSeq() == firstSeq && b.lastSeq == lastSeq {
			return b, true
		}
	}
	return batchMeta{}, false
}

// VerificationGuard ties a transactional append to the verification that preceded it (KIP-890): the append goes through only
// with the guard that the log handed out last for the producer, so that a marker in between makes it fail. The nil guard
// stands for an append that wasn't verified.
type VerificationGuard struct{ _ byte }

// verification is what is remembered between StartVerification and the append.
type verification struct {
	guard             *VerificationGuard
	lowestSequence    int32
	epoch             int16
	started           int64 // ms
	supportsEpochBump bool
}

// undo restores a producer after an append that came to nothing.
type undo struct {
	producerID   int64
	old          producerEntry
	existed      bool
	verification *verification
}

// txnEvent is what an append means for the open transactions.
type txnEvent struct {
	producerID int64
	first      int64 // first offset
	pos        int64 // of the first batch in its segment, for begin
	last       int64 // the marker's offset for end; -1 for begin
	abort      bool
}

// producers is the state of the producers of one log. It is not safe for concurrent use: Log.mu guards it.
//
// apply changes it ahead of the write; what it changed is kept in undos until commit or rollback.
type producers struct {
	entries       map[int64]*producerEntry
	verifications map[int64]*verification
	undos         []undo
	events        []txnEvent
}

// entry is for reading only; nil when the producer isn't known.
func (p *producers) entry(id int64) *producerEntry { return p.entries[id] }

// change prepares the producer's entry for changing.
func (p *producers) change(id int64) *producerEntry {
	e := p.entries[id]
	u := undo{producerID: id, existed: e != nil, verification: p.verifications[id]}
	if e != nil {
		u.old = *e
	} else {
		ne := newProducerEntry()
		e = &ne
		if p.entries == nil {
			p.entries = make(map[int64]*producerEntry)
		}
		p.entries[id] = e
	}
	p.undos = append(p.undos, u)
	return e
}

// commit forgets the undo information and returns what happened to transactions; the slice is valid until the next apply.
func (p *producers) commit() []txnEvent {
	ev := p.events
	p.undos, p.events = p.undos[:0], p.events[:0]
	return ev
}

// rollback restores what apply changed since the last commit.
func (p *producers) rollback() {
	for _, u := range slices.Backward(p.undos) {
		if u.existed {
			*p.entries[u.producerID] = u.old
		} else {
			delete(p.entries, u.producerID)
		}
		if u.verification != nil {
			p.verifications[u.producerID] = u.verification
		}
	}
	p.undos, p.events = p.undos[:0], p.events[:0]
}

// ongoing says whether the producer has a transaction open under this epoch.
func (p *producers) ongoing(id int64, epoch int16) bool {
	e := p.entries[id]
	return e != nil && e.txnFirst != UnknownOffset && e.epoch == epoch
}

// applyCheck is what apply checks.
type applyCheck struct {
	tp                 TopicPartition
	origin             Origin
	guard              *VerificationGuard
	transactionVersion int16
	verify             bool // transaction.partition.verification.enable
}

// apply checks a batch whose offsets are assigned and updates its producer. pos is where in the segment it will lie.
// The errors are Kafka's: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE,
// TRANSACTION_COORDINATOR_FENCED.
func (p *producers) apply(b record.Batch, pos int64, c applyCheck) error {
	id, epoch := b.ProducerID(), b.ProducerEpoch()
	if c.verify && (c.origin == Client || c.origin == Coordinator) && b.IsTransactional() && !b.IsControl() &&
		!p.ongoing(id, epoch) && !p.verified(id, c.guard) {
		return api.WithMessage(api.ErrInvalidTxnState, "Record was not part of an ongoing transaction")
	}
	var err error
	if b.IsControl() {
		err = p.applyMarker(b, c)
	} else {
		err = p.applyData(b, pos, c)
	}
	if err != nil {
		return err
	}
	if b.IsTransactional() {
		// The transaction has now a first offset here, or is over: the guard has done its work.
		delete(p.verifications, id)
	}
	return nil
}

func (p *producers) verified(id int64, guard *VerificationGuard) bool {
	v := p.verifications[id]
	return guard != nil && v != nil && v.guard == guard
}

func (p *producers) applyData(b record.Batch, pos int64, c applyCheck) error {
	id, epoch, first := b.ProducerID(), b.ProducerEpoch(), b.BaseOffset()
	cur := p.entries[id]
	none := newProducerEntry()
	if cur == nil {
		cur = &none
	}
	if epoch < cur.epoch && c.origin != Replication {
		return api.WithMessage(api.ErrInvalidProducerEpoch,
			"Epoch of producer %d at offset %d in %s is %d, which is smaller than the last seen epoch %d", id, first, c.tp, epoch, cur.epoch)
	}
	if c.origin == Client {
		if err := p.checkSequence(cur, id, epoch, b.BaseSequence(), first, c.tp); err != nil {
			return err
		}
	}
	if cur.txnFirst != UnknownOffset && !b.IsTransactional() {
		return api.WithMessage(api.ErrInvalidTxnState,
			"Expected transactional write from producer %d at offset %d in partition %s", id, first, c.tp)
	}
	e := p.change(id)
	e.setEpoch(epoch)
	e.add(batchMeta{lastSeq: b.LastSequence(), offsetDelta: b.LastOffsetDelta(), lastOffset: b.LastOffset(), timestamp: b.MaxTimestamp()})
	e.lastTimestamp = b.MaxTimestamp()
	if e.txnFirst == UnknownOffset && b.IsTransactional() {
		e.txnFirst = first
		p.events = append(p.events, txnEvent{producerID: id, first: first, pos: pos, last: UnknownOffset})
	}
	return nil
}

func (p *producers) checkSequence(cur *producerEntry, id int64, epoch int16, seq int32, offset int64, tp TopicPartition) error {
	if v := p.verifications[id]; v != nil {
		if v.supportsEpochBump && seq != 0 && cur.n == 0 {
			return api.WithMessage(api.ErrOutOfOrderSequenceNumber,
				"Invalid sequence number for producer %d at offset %d in partition %s: %d (incoming seq. number). Expected sequence 0 for transactions v2 idempotent producer with no existing state.", id, offset, tp, seq)
		}
		if seq > v.lowestSequence {
			return api.WithMessage(api.ErrOutOfOrderSequenceNumber,
				"Out of order sequence number for producer %d at offset %d in partition %s: %d (incoming seq. number), %d (earliest seen sequence)", id, offset, tp, seq, v.lowestSequence)
		}
	}
	if epoch != cur.epoch {
		// A producer that isn't known may begin anywhere: its earlier records may be gone.
		if seq != 0 && cur.epoch != record.NoProducerEpoch {
			return api.WithMessage(api.ErrOutOfOrderSequenceNumber,
				"Invalid sequence number for new epoch of producer %d at offset %d in partition %s: %d (request epoch), %d (seq. number), %d (current producer epoch)", id, offset, tp, epoch, seq, cur.epoch)
		}
		return nil
	}
	last := cur.lastSeq()
	if cur.epoch == record.NoProducerEpoch || int64(seq) == int64(last)+1 || (seq == 0 && last == math.MaxInt32) {
		return nil
	}
	return api.WithMessage(api.ErrOutOfOrderSequenceNumber,
		"Out of order sequence number for producer %d at offset %d in partition %s: %d (incoming seq. number), %d (current end sequence number)", id, offset, tp, seq, last)
}

func (p *producers) applyMarker(b record.Batch, c applyCheck) error {
	m, ok, err := readMarker(b)
	if err != nil {
		return err
	}
	if !ok {
		return nil // emptied by the cleaner: the whole transaction is gone
	}
	id, epoch, offset := b.ProducerID(), b.ProducerEpoch(), b.BaseOffset()
	cur := p.entries[id]
	none := newProducerEntry()
	if cur == nil {
		cur = &none
	}
	if c.origin != Replication {
		// KIP-890: with transaction version 2 a marker carries an epoch raised above that of the data. An equal one can
		// only be the retry of a marker that was written already, or come from a producer whose epochs are used up.
		stale := epoch < cur.epoch
		if c.transactionVersion >= 2 && epoch == cur.epoch {
			stale = cur.txnFirst != UnknownOffset && epoch != math.MaxInt16
		}
		if stale {
			cmp := "<"
			if c.transactionVersion >= 2 {
				cmp = "<="
			}
			return api.WithMessage(api.ErrInvalidProducerEpoch,
				"Epoch of producer %d at offset %d in %s is %d, which is %s the last seen epoch %d", id, offset, c.tp, epoch, cmp, cur.epoch)
		}
		if cur.coordEpoch > m.coordEpoch {
			return api.WithMessage(api.ErrTransactionCoordinatorFenced,
				"Invalid coordinator epoch for producerId %d at offset %d in partition %s: %d (zombie), %d (current)", id, offset, c.tp, m.coordEpoch, cur.coordEpoch)
		}
	}
	e := p.change(id)
	if e.txnFirst != UnknownOffset {
		p.events = append(p.events, txnEvent{producerID: id, first: e.txnFirst, last: offset, abort: m.abort})
		e.txnFirst = UnknownOffset
	}
	e.setEpoch(epoch)
	e.coordEpoch = m.coordEpoch
	e.lastTimestamp = m.timestamp
	return nil
}

// startVerification is Log.StartVerification under the lock.
func (p *producers) startVerification(id int64, seq int32, epoch int16, supportsEpochBump bool, nowMs int64) (*VerificationGuard, error) {
	if e := p.entries[id]; e != nil && supportsEpochBump && epoch < e.epoch {
		return nil, api.WithMessage(api.ErrInvalidProducerEpoch, "Epoch of producer %d is %d, which is smaller than the last seen epoch %d", id, epoch, e.epoch)
	}
	if p.ongoing(id, epoch) {
		return nil, nil
	}
	v := p.verifications[id]
	if v == nil {
		v = &verification{guard: new(VerificationGuard), lowestSequence: seq, epoch: epoch, supportsEpochBump: supportsEpochBump}
		if p.verifications == nil {
			p.verifications = make(map[int64]*verification)
		}
		p.verifications[id] = v
	} else {
		switch {
		case epoch == v.epoch && seq < v.lowestSequence:
			v.lowestSequence = seq
		case epoch > v.epoch:
			v.epoch, v.lowestSequence = epoch, seq
		}
	}
	v.started = nowMs
	return v.guard, nil
}

// expire drops producers without an open transaction that have been silent for as long as expiration, and verifications that
// came to nothing.
func (p *producers) expire(nowMs int64, expiration time.Duration) (dropped int) {
	limit := expiration.Milliseconds()
	for id, e := range p.entries {
		if e.txnFirst == UnknownOffset && nowMs-e.lastTimestamp >= limit {
			delete(p.entries, id)
			dropped++
		}
	}
	for id, v := range p.verifications {
		if nowMs-v.started >= limit {
			delete(p.verifications, id)
		}
	}
	return dropped
}

func (p *producers) reset() {
	p.entries, p.undos, p.events = nil, nil, nil
}

// list describes the producers in the order of their ids.
func (p *producers) list() []ProducerState {
	out := make([]ProducerState, 0, len(p.entries))
	for id, e := range p.entries {
		out = append(out, ProducerState{
			ProducerID: id, ProducerEpoch: e.epoch, LastSequence: e.lastSeq(), LastTimestamp: e.lastTimestamp,
			CoordinatorEpoch: e.coordEpoch, CurrentTxnFirstOffset: e.txnFirst,
		})
	}
	slices.SortFunc(out, func(a, b ProducerState) int {
		switch {
		case a.ProducerID < b.ProducerID:
			return -1
		case a.ProducerID > b.ProducerID:
			return 1
		}
		return 0
	})
	return out
}

// marker is the contents of a transaction marker.
type marker struct {
	abort      bool
	coordEpoch int32
	timestamp  int64
}

// readMarker reads the one record of a transaction marker; ok=false for a control batch that has none left.
func readMarker(b record.Batch) (m marker, ok bool, err error) {
	if b.Count() == 0 {
		return m, false, nil
	}
	it := b.Records(nil)
	defer it.Close()
	if !it.Next() {
		if err = it.Err(); err == nil {
			return m, false, nil
		}
		return m, false, fmt.Errorf("read marker at offset %d: %w", b.BaseOffset(), recordError(err))
	}
	rec := it.Record()
	t, err := record.ParseEndTxnMarker(rec.Key, rec.Value)
	if err != nil {
		return m, false, fmt.Errorf("read marker at offset %d: %w", b.BaseOffset(), recordError(err))
	}
	return marker{abort: !t.Commit, coordEpoch: t.CoordinatorEpoch, timestamp: rec.Timestamp}, true, nil
}
