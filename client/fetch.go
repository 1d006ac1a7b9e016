package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
)

// fetched is what one fetch brought for one partition.
type fetched struct {
	tp         TopicPartition
	bytes      []byte
	aborted    []kmsg.FetchResponseTopicPartitionAbortedTransaction // by first offset
	active     map[int64]bool                                       // producers whose open transaction was aborted
	end        int64                                                // high watermark, or last stable offset
	nextOffset int64                                                // behind the last batch taken
	committed  bool
}

// next takes batches until there are records from offset on; more says whether there may be others.
func (f *fetched) next(c *Client, from int64) (out []*Record, more bool, err error) {
	for len(out) == 0 {
		e, rest, err := record.NextEntry(f.bytes)
		if e == nil || errors.Is(err, record.ErrTruncated) {
			return out, false, nil // the last batch of an answer may be cut
		}
		if err != nil {
			return nil, false, err
		}
		if err := e.Check(); err != nil {
			return nil, false, err
		}
		f.bytes = rest
		f.nextOffset = e.LastOffset() + 1
		if f.nextOffset <= from {
			continue
		}
		if e.Magic() < 2 {
			out, err = f.legacy(c, e.Legacy(), from)
		} else if b := e.Batch(); !f.skip(c, b) {
			out, err = f.records(c, b, from)
		}
		if err != nil {
			return nil, false, err
		}
	}
	return out, len(f.bytes) > 0, nil
}

// skip says whether a batch holds nothing for the application: control records, and records of aborted transactions if only
// committed ones are wanted. It follows the markers.
func (f *fetched) skip(c *Client, b record.Batch) bool {
	if f.committed && b.HasProducer() {
		for len(f.aborted) > 0 && f.aborted[0].FirstOffset <= b.LastOffset() {
			f.active[f.aborted[0].ProducerID] = true
			f.aborted = f.aborted[1:]
		}
	}
	if b.IsControl() {
		it := b.Records(c.decompressor)
		defer it.Close()
		if f.active[b.ProducerID()] && it.Next() {
			if t, err := record.ParseControlKey(it.Record().Key); err == nil && t == record.ControlAbort {
				delete(f.active, b.ProducerID())
			}
		}
		return true
	}
	return f.committed && b.IsTransactional() && f.active[b.ProducerID()]
}

func (f *fetched) records(c *Client, b record.Batch, from int64) ([]*Record, error) {
	it := b.Records(c.decompressor)
	defer it.Close()
	out := make([]*Record, 0, b.Count())
	clone := b.Codec() != record.None // else it may alias the response
	for it.Next() {
		r := it.Record()
		if r.Offset < from {
			continue
		}
		cr := f.convert(&r, clone)
		cr.LeaderEpoch = b.PartitionLeaderEpoch()
		for _, h := range r.Headers {
			v := h.Value
			if clone {
				v = bytes.Clone(v)
			}
			cr.Headers = append(cr.Headers, Header{string(h.Key), v})
		}
		out = append(out, cr)
	}
	return out, it.Err()
}

func (f *fetched) convert(r *record.Record, clone bool) *Record {
	out := &Record{Topic: f.tp.Topic, Partition: f.tp.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, LeaderEpoch: -1}
	if clone {
		out.Key, out.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
	}
	if r.Timestamp >= 0 {
		out.Timestamp = time.UnixMilli(r.Timestamp)
	}
	return out
}

func (f *fetched) legacy(c *Client, m record.Legacy, from int64) ([]*Record, error) {
	var out []*Record
	it := m.Records(c.decompressor)
	for it.Next() {
		if r := it.Record(); r.Offset >= from {
			out = append(out, f.convert(&r.Record, false))
		}
	}
	return out, it.Err()
}

// startFetches sends a fetch to every broker that leads a partition in want of data and isn't asked already. It returns when to
// look again. Only run calls it.
func (u *Consumer) startFetches(now time.Time) (wake time.Time) {
	type want struct {
		p     *consumed
		topic *Topic
		part  *Partition
		from  int64
	}
	byNode := map[int32][]want{}
	var unknown []*consumed
	var resolve []*consumed
	u.mu.Lock()
	buffered := u.bufferedLeaders()
	for _, tp := range slices.SortedFunc(mapKeys(u.parts), compareTP) {
		p := u.parts[tp]
		if p.inFlight || p.resolving || p.paused || p.data != nil {
			continue
		}
		if now.Before(p.notBefore) {
			wake = earliest(wake, p.notBefore)
			continue
		}
		if !p.valid {
			p.resolving = true
			resolve = append(resolve, p)
			continue
		}
		t, ok := u.c.meta.get(tp.Topic)
		if !ok {
			unknown = append(unknown, p)
			continue
		}
		i, ok := slices.BinarySearchFunc(t.Partitions, tp.Partition, func(p Partition, id int32) int { return cmp.Compare(p.ID, id) })
		if !ok || t.Partitions[i].Leader < 0 {
			unknown = append(unknown, p)
			continue
		}
		leader := t.Partitions[i].Leader
		// While other partitions of this broker wait to be polled, only what is known to have data is fetched: a fetch of idle
		// partitions would wait on the broker, and the others, once polled, behind it.
		if !u.fetching[leader] && (!buffered[leader] || p.lag != 0) {
			byNode[leader] = append(byNode[leader], want{p, t, &t.Partitions[i], p.position})
		}
	}
	for node, ws := range byNode {
		u.fetching[node] = true
		for _, w := range ws {
			w.p.inFlight = true
		}
	}
	for _, p := range unknown {
		p.resolving = true
	}
	u.mu.Unlock()
	if len(unknown) > 0 {
		u.background(func() { u.findLeaders(unknown) })
	}
	if len(resolve) > 0 {
		u.background(func() { u.resolveOffsets(resolve) })
	}
	for node, ws := range byNode {
		req := kmsg.NewPtrFetchRequest()
		req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = -1, int32(u.o.MaxWait.Milliseconds()), u.o.MinBytes, u.o.MaxBytes
		req.SessionEpoch = -1
		if u.o.ReadCommitted {
			req.IsolationLevel = 1
		}
		to := target{node: node, purpose: u.forFetch, timeout: u.o.MaxWait + u.c.o.RequestTimeout}
		parts := map[TopicPartition]*consumed{}
		names := map[UUID]string{}
		for _, w := range ws {
			if n := len(req.Topics); n == 0 || req.Topics[n-1].Topic != w.p.tp.Topic {
				rt := kmsg.NewFetchRequestTopic()
				rt.Topic, rt.TopicID = w.p.tp.Topic, w.topic.ID
				if w.topic.ID == (UUID{}) {
					to.highest = 12
				}
				names[w.topic.ID] = w.p.tp.Topic
				req.Topics = append(req.Topics, rt)
			}
			rp := kmsg.NewFetchRequestTopicPartition()
			rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = w.p.tp.Partition, w.from, u.o.PartitionBytes, w.part.LeaderEpoch
			rt := &req.Topics[len(req.Topics)-1]
			rt.Partitions = append(rt.Partitions, rp)
			parts[w.p.tp] = w.p
		}
		u.background(func() {
			resp, err := exchange[*kmsg.FetchResponse](u.ctx, u.c, to, req)
			u.fetchDone(node, parts, names, resp, err)
		})
	}
	return wake
}

// bufferedLeaders are the brokers of whose partitions fetched data waits to be polled. mu is held.
func (u *Consumer) bufferedLeaders() map[int32]bool {
	out := map[int32]bool{}
	for tp, p := range u.parts {
		if p.data == nil || p.paused {
			continue
		}
		if t, ok := u.c.meta.get(tp.Topic); ok && int(tp.Partition) < len(t.Partitions) {
			out[t.Partitions[tp.Partition].Leader] = true
		}
	}
	return out
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// background runs f on a goroutine that Close waits for, and then has run look around.
func (u *Consumer) background(f func()) {
	u.wg.Go(func() {
		f()
		u.post(func() {})
	})
}

func (u *Consumer) fetchDone(node int32, parts map[TopicPartition]*consumed, names map[UUID]string, resp *kmsg.FetchResponse, err error) {
	if err == nil {
		err = errorOf(resp.ErrorCode, nil)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.post(func() { delete(u.fetching, node) })
	for _, p := range parts {
		p.inFlight = false
	}
	if err != nil {
		for _, p := range parts {
			u.retryLater(p, err)
		}
		return
	}
	for _, t := range resp.Topics {
		name := t.Topic
		if resp.Version >= 13 {
			name = names[t.TopicID]
		}
		for i := range t.Partitions {
			r := &t.Partitions[i]
			p := parts[TopicPartition{name, r.Partition}]
			if p == nil || p.dropped {
				continue
			}
			u.partitionDone(p, r)
		}
	}
}

// partitionDone takes one partition's answer. mu is held.
func (u *Consumer) partitionDone(p *consumed, r *kmsg.FetchResponseTopicPartition) {
	err := errorOf(r.ErrorCode, nil)
	switch {
	case err == nil:
		p.failures = 0
		end := r.HighWatermark
		if u.o.ReadCommitted {
			end = r.LastStableOffset
		}
		p.lag = max(0, end-p.position)
		if len(r.RecordBatches) == 0 {
			return
		}
		slices.SortFunc(r.AbortedTransactions, func(a, b kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
			return cmp.Compare(a.FirstOffset, b.FirstOffset)
		})
		p.data = &fetched{
			tp: p.tp, bytes: r.RecordBatches, aborted: r.AbortedTransactions, active: map[int64]bool{}, end: end, committed: u.o.ReadCommitted,
		}
		u.ready = append(u.ready, p)
		u.wakePollers()
	case errors.Is(err, OffsetOutOfRange):
		u.c.o.Logger.Info("offset is out of range", "partition", p.tp.String(), "offset", p.position)
		p.valid, p.position = false, u.resetTo()
		if u.o.Reset == ResetNone {
			u.fail(fmt.Errorf("partition %v: %w", p.tp, err))
		}
	case Retriable(err):
		u.retryLater(p, err)
	default:
		u.fail(fmt.Errorf("partition %v: %w", p.tp, err))
	}
}

func (u *Consumer) resetTo() int64 {
	if u.o.Reset == ResetEarliest {
		return Earliest
	}
	return Latest
}

// retryLater puts a partition aside for a while. mu is held.
func (u *Consumer) retryLater(p *consumed, err error) {
	p.notBefore = time.Now().Add(u.c.backoff(p.failures))
	p.failures++
	if !Retriable(err) && u.ctx.Err() == nil {
		u.fail(fmt.Errorf("partition %v: %w", p.tp, err))
		return
	}
	u.c.o.Logger.Debug("fetch is tried again", "partition", p.tp.String(), "err", err)
	if needsRefresh(err) {
		u.c.meta.invalidate()
	}
}

// fail ends the consumer; Poll says why. mu is held.
func (u *Consumer) fail(err error) {
	if u.fatal == nil {
		u.fatal = err
	}
	u.wakePollers()
}

// findLeaders refreshes what is known about topics.
func (u *Consumer) findLeaders(parts []*consumed) {
	var err error
	failed := map[string]error{}
	for _, p := range parts {
		if _, seen := failed[p.tp.Topic]; seen {
			continue
		}
		_, _, err = u.c.partitionOf(u.ctx, p.tp)
		failed[p.tp.Topic] = err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range parts {
		p.resolving = false
		if err := failed[p.tp.Topic]; err != nil {
			u.retryLater(p, err)
		}
	}
}

// resolveOffsets finds where to begin: the committed offsets, then the reset policy.
func (u *Consumer) resolveOffsets(parts []*consumed) {
	ctx, cancel := context.WithTimeout(u.ctx, u.c.o.Timeout)
	defer cancel()
	at := map[TopicPartition]int64{}
	epochs := map[TopicPartition]int32{}
	special := map[TopicPartition]int64{}
	var ask []TopicPartition
	u.mu.Lock()
	for _, p := range parts {
		if p.position == Committed {
			ask = append(ask, p.tp)
		} else {
			special[p.tp] = p.position
		}
	}
	u.mu.Unlock()
	var err error
	if len(ask) > 0 {
		var got []CommittedOffset
		got, err = u.c.GroupOffsets(ctx, u.o.Group, ask, u.o.ReadCommitted)
		for _, o := range got {
			switch {
			case o.Err != nil:
				err = o.Err
			case o.Offset >= 0:
				at[o.TopicPartition], epochs[o.TopicPartition] = o.Offset, o.LeaderEpoch
			case u.o.Reset == ResetNone:
				err = fmt.Errorf("partition %v: group %q has no committed offset", o.TopicPartition, u.o.Group)
			default:
				special[o.TopicPartition] = u.resetTo()
			}
		}
	}
	if err == nil && len(special) > 0 {
		var got []PartitionOffset
		got, err = u.c.ListOffsets(ctx, special, u.o.ReadCommitted)
		for _, o := range got {
			if o.Err != nil {
				err = fmt.Errorf("partition %v: %w", o.TopicPartition, o.Err)
				continue
			}
			at[o.TopicPartition] = o.Offset
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range parts {
		p.resolving = false
		offset, ok := at[p.tp]
		switch {
		case ok:
			p.position, p.valid, p.processed = offset, true, offset
			if e, ok := epochs[p.tp]; ok {
				p.epoch, p.committed = e, offset
			}
		case err != nil:
			u.retryLater(p, err)
		}
	}
}
