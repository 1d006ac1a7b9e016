package client

import (
	"fmt"
	"math"
	"slices"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
)

// fetched is what one fetch brought for one partition: whole batches.
type fetched struct {
	tp        TopicPartition
	gen       uint64
	bytes     []byte                                               // not yet decoded
	size      int                                                  // of all there was
	from      int64                                                // records before aren't wanted
	end       int64                                                // high watermark, or last stable offset
	aborted   []kmsg.FetchResponseTopicPartitionAbortedTransaction // by first offset
	active    map[int64]bool                                       // producers whose open transaction was aborted
	committed bool
	stale     bool // guarded by the consumer's mu: not to be delivered any more

	records []Record // decoded, of one batch
	next    int64    // behind what was decoded
}

// take returns up to MaxPoll records.
func (u *Consumer) take() ([]*Record, error) {
	var out []*Record
	for len(out) < u.o.MaxPoll {
		f := u.nextReady()
		if f == nil {
			break
		}
		// Decoding may take a while and is done without the lock.
		var err error
		for err == nil && len(f.records) == 0 && len(f.bytes) > 0 {
			err = f.decode(u.c)
		}
		u.mu.Lock()
		p := u.putBack(f)
		if p == nil {
			u.mu.Unlock()
			continue
		}
		if p.paused && err == nil {
			// Paused meanwhile: it stays where it is.
			u.ready = slices.Insert(u.ready, 0, f)
			u.mu.Unlock()
			continue
		}
		n := min(len(f.records), u.o.MaxPoll-len(out))
		if out == nil && n > 0 {
			out = make([]*Record, 0, max(n, min(u.o.MaxPoll, 64)))
		}
		for i := range n {
			out = append(out, &f.records[i])
		}
		if n > 0 {
			p.epoch = f.records[n-1].LeaderEpoch
			p.position = f.records[n-1].Offset + 1
			f.records = f.records[n:]
		}
		if len(f.records) == 0 {
			p.position = max(p.position, f.next)
		}
		if !p.dirty {
			p.dirty = true
			u.dirty = append(u.dirty, p)
		}
		switch {
		case err != nil:
			err = fmt.Errorf("partition %v at offset %d: %w", f.tp, p.position, err)
			u.free(f)
			tp, position := f.tp, p.position
			u.mu.Unlock()
			// It is read again, so that the error stays until the caller seeks behind it.
			u.Seek(tp, position)
			if len(out) > 0 {
				return out, nil
			}
			return nil, err
		case len(f.records) > 0 || len(f.bytes) > 0:
			u.ready = slices.Insert(u.ready, 0, f)
		default:
			u.free(f)
		}
		u.mu.Unlock()
	}
	return out, nil
}

// nextReady takes the first of what is fetched whose partition isn't paused.
func (u *Consumer) nextReady() *fetched {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, f := range u.ready {
		if p := u.parts[f.tp]; p != nil && !p.paused {
			u.ready = slices.Delete(u.ready, i, i+1)
			u.hand = append(u.hand, f)
			return f
		}
	}
	return nil
}

// putBack ends what nextReady began and says whose the data is: nil if it isn't to be delivered any more, because its partition was
// given up or begun elsewhere meanwhile. mu is held.
func (u *Consumer) putBack(f *fetched) *consumed {
	i := slices.Index(u.hand, f)
	u.hand = slices.Delete(u.hand, i, i+1)
	if p := u.parts[f.tp]; !f.stale && p != nil && p.gen == f.gen {
		return p
	}
	u.free(f)
	return nil
}

// decode decodes the next batch, which may hold no records for the application.
func (f *fetched) decode(c *Client) error {
	e, rest, err := record.NextEntry(f.bytes)
	if err != nil {
		return err
	}
	if err := e.Check(); err != nil {
		return err
	}
	f.bytes = rest
	f.next = e.LastOffset() + 1
	if f.next <= f.from {
		return nil
	}
	if e.Magic() < 2 {
		return f.legacy(c, e.Legacy())
	}
	if b := e.Batch(); !f.skip(c, b) {
		return f.batch(c, b)
	}
	return nil
}

// skip says whether a batch holds nothing for the application: control records, and records of aborted transactions if only
// committed ones are wanted. It follows the markers.
func (f *fetched) skip(c *Client, b record.Batch) bool {
	if f.committed && b.HasProducer() {
		for len(f.aborted) > 0 && f.aborted[0].FirstOffset <= b.LastOffset() {
			if f.active == nil {
				f.active = map[int64]bool{}
			}
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

// decodeRoom is what decompressing wants beyond what there will be: it goes on in place as long as a block may fit.
const decodeRoom = 128 << 10

// mostGuess is the most that is allocated because the last batch grew that much.
const mostGuess = 8 << 20

// guess is what n bytes will probably be when they are decompressed.
func (c *Client) guess(n int) int {
	ratio := math.Float64frombits(c.ratio.Load())
	return max(int(1.1*float64(n)), int(min(float64(n)*ratio, mostGuess))) + decodeRoom
}

// batch decodes a batch into records that alias it, or what it decompresses to. It allocates for the batch, not for a record.
func (f *fetched) batch(c *Client, b record.Batch) error {
	payload := b.Payload()
	if b.Codec() != record.None {
		var err error
		payload, err = c.decompressor.Decompress(make([]byte, 0, c.guess(len(payload))), b.Codec(), payload, 0)
		if err != nil {
			return err
		}
		c.ratio.Store(math.Float64bits(1.05 * float64(len(payload)) / float64(len(b.Payload())+1)))
	}
	// Seven bytes are the least that a record has.
	records := make([]Record, 0, min(int(max(0, b.Count())), len(payload)/7+1))
	var headers []Header
	it := b.RecordsIn(payload)
	epoch := b.PartitionLeaderEpoch()
	for it.Next() {
		r := it.Ref()
		if r.Offset < f.from {
			continue
		}
		if len(records) == cap(records) {
			break // more than the payload can hold; the iterator will say so
		}
		records = records[:len(records)+1]
		o := &records[len(records)-1]
		o.Topic, o.Partition, o.LeaderEpoch = f.tp.Topic, f.tp.Partition, epoch
		o.Offset, o.Key, o.Value = r.Offset, r.Key, r.Value
		if r.Timestamp >= 0 {
			o.Timestamp = time.UnixMilli(r.Timestamp)
		}
		if len(r.Headers) > 0 {
			start := len(headers)
			for i := range r.Headers {
				h := &r.Headers[i]
				// The bytes are never written to again.
				headers = append(headers, Header{unsafe.String(unsafe.SliceData(h.Key), len(h.Key)), h.Value})
			}
			o.Headers = headers[start:len(headers):len(headers)]
		}
	}
	f.records = records
	return it.Err()
}

// legacy decodes a message of one of the old formats.
func (f *fetched) legacy(c *Client, m record.Legacy) error {
	it := m.Records(c.decompressor)
	for it.Next() {
		r := it.Record()
		if r.Offset < f.from {
			continue
		}
		o := Record{Topic: f.tp.Topic, Partition: f.tp.Partition, Offset: r.Offset, Key: slices.Clone(r.Key), Value: slices.Clone(r.Value), LeaderEpoch: -1}
		if r.Timestamp >= 0 {
			o.Timestamp = time.UnixMilli(r.Timestamp)
		}
		f.records = append(f.records, o)
	}
	return it.Err()
}
