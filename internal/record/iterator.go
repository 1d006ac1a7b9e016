package record

import "io"

// Iterator walks the records of one batch. It allocates nothing per record: what it returns aliases the batch or a pooled
// buffer and is good until the next step. It is not safe for concurrent use.
//
//	it := b.Records(d)
//	defer it.Close()
//	for it.Next() {
//		r := it.Record()
//		...
//	}
//	if err := it.Err(); err != nil { ... }
type Iterator struct {
	cur  []byte   // what is left of the current chunk
	dec  *decoder // nil for uncompressed batches
	left int32
	rec  Record
	err  *Error

	baseOffset    int64
	baseTimestamp int64
	appendTime    int64 // of a LogAppendTime batch
	isAppendTime  bool
	baseSequence  int32
}

// Records starts an iteration. d may be nil only if no batch can be compressed. Close must be called, unless Next has returned
// false.
func (b Batch) Records(d *Decompressor) Iterator {
	var it Iterator
	it.start(b, d)
	return it
}

func (it *Iterator) start(b Batch, d *Decompressor) {
	headers := it.rec.Headers[:0]
	*it = Iterator{
		left:       b.Count(),
		baseOffset: b.BaseOffset(), baseTimestamp: b.BaseTimestamp(), baseSequence: b.BaseSequence(),
		isAppendTime: b.IsLogAppendTime(), appendTime: b.MaxTimestamp(),
	}
	it.rec.Headers = headers
	if it.left < 0 {
		it.err = errf(ErrInvalid, "found invalid record count %d in magic v2 batch", it.left)
		return
	}
	if b.Codec() == None {
		it.cur = b.Payload()
		return
	}
	if it.left == 0 {
		return
	}
	if d == nil {
		it.err = errf(ErrDecompress, "%s batch where none was expected", b.Codec())
		return
	}
	it.dec = d.get()
	if err := it.dec.reset(b.Codec(), b.Payload(), 2); err != nil {
		it.err = asError(err)
		it.Close()
	}
}

// Next steps to the next record. It is false at the end and at the first fault, which Err then returns.
func (it *Iterator) Next() bool {
	if it.err != nil || it.left == 0 {
		it.Close()
		return false
	}
	body, err := it.frame()
	if err == nil {
		err = it.rec.parse(body)
	}
	if err == nil {
		if it.left--; it.left == 0 {
			err = it.end()
		}
	}
	if err != nil {
		it.err = err
		it.Close()
		return false
	}
	it.rec.Size = VarintSize(int64(len(body))) + len(body)
	if it.baseSequence >= 0 {
		it.rec.Sequence = IncrementSequence(it.baseSequence, int32(it.rec.Offset))
	} else {
		it.rec.Sequence = NoSequence
	}
	it.rec.Offset += it.baseOffset
	it.rec.Timestamp += it.baseTimestamp
	if it.isAppendTime {
		it.rec.Timestamp = it.appendTime
	}
	return true
}

// Record is the record that Next stepped to.
func (it *Iterator) Record() Record { return it.rec }

// Err is what ended the iteration early, or nil. Errors are ErrInvalid, ErrDecompress, ErrCodec or ErrBomb.
func (it *Iterator) Err() error {
	if it.err == nil {
		return nil
	}
	return it.err
}

// Close gives the decoder back. It may be called more than once; records got so far must not be used afterwards.
func (it *Iterator) Close() {
	if it.dec != nil {
		d := it.dec
		it.dec, it.cur = nil, nil
		d.owner.put(d)
	}
}

// frame cuts the next record's body off the stream, in one piece.
func (it *Iterator) frame() ([]byte, *Error) {
	size, i := varint32(it.cur, 0)
	if i >= 0 && size >= 0 && int(size) <= len(it.cur)-i {
		body := it.cur[i : i+int(size) : i+int(size)]
		it.cur = it.cur[i+int(size):]
		return body, nil
	}
	if it.dec == nil {
		if i < 0 {
			return nil, errf(ErrInvalid, "Incorrect declared batch size, premature EOF reached")
		}
		return nil, sizeError(size, len(it.cur)-i)
	}
	return it.straddling()
}

func sizeError(size int32, have int) *Error {
	return errf(ErrInvalid, "Invalid record size: expected %d bytes in record payload, but instead the buffer has only %d remaining bytes.",
		size, have)
}

// straddling is frame for a record that doesn't lie in one chunk: it is put together in the decoder's carry buffer, which grows
// with what is really there, not with what the size claims.
func (it *Iterator) straddling() ([]byte, *Error) {
	carry := append(it.dec.carry[:0], it.cur...)
	it.cur = nil
	need := 1
	known := false
	for {
		if !known {
			size, i := varint32(carry, 0)
			switch {
			case i >= 0 && size < 0:
				return nil, errf(ErrInvalid, "negative record size %d", size)
			case i >= 0:
				need, known = i+int(size), true
			case len(carry) >= 5:
				return nil, errf(ErrInvalid, "record size does not end after 5 bytes")
			default:
				need = len(carry) + 1
			}
		}
		if known && len(carry) >= need {
			it.dec.carry = carry
			_, i := varint32(carry, 0)
			return carry[i:need:need], nil
		}
		if err := it.more(); err != nil {
			return nil, err
		}
		n := min(need-len(carry), len(it.cur))
		carry = append(carry, it.cur[:n]...)
		it.cur = it.cur[n:]
		it.dec.carry = carry
	}
}

// more makes sure that there is something in cur.
func (it *Iterator) more() *Error {
	for len(it.cur) == 0 {
		chunk, err := it.dec.next()
		if err == io.EOF {
			return errf(ErrInvalid, "Incorrect declared batch size, premature EOF reached")
		}
		if err != nil {
			return asError(err)
		}
		it.cur = chunk
	}
	return nil
}

// end checks that nothing is left behind the last record. For compressed batches this reads the stream's trailer, too.
func (it *Iterator) end() *Error {
	if len(it.cur) > 0 {
		return errf(ErrInvalid, "Incorrect declared batch size, records still remaining in file")
	}
	if it.dec == nil {
		return nil
	}
	// The last record may lie in the decoder's output buffer, which the next chunk would overwrite. Chunks behind the last
	// record are only possible in a faulty batch, or empty ones: both leave the buffer's start alone only if it is kept.
	if it.dec.done {
		return nil
	}
	keep := it.dec.out
	it.dec.out = it.dec.spare
	chunk, err := it.dec.next()
	for err == nil && len(chunk) == 0 {
		chunk, err = it.dec.next()
	}
	it.dec.spare, it.dec.out = it.dec.out, keep
	switch {
	case err == io.EOF:
		return nil
	case err != nil:
		return asError(err)
	}
	return errf(ErrInvalid, "Incorrect declared batch size, records still remaining in file")
}

func asError(err error) *Error {
	if e, ok := err.(*Error); ok {
		return e
	}
	return &Error{Kind: ErrDecompress, Cause: err}
}

// RecordsIn iterates over a payload that was decompressed before. What it returns aliases the payload and is good for as long
// as that is, but for the headers' slice, which the next step overwrites.
func (b Batch) RecordsIn(payload []byte) Iterator {
	it := Iterator{
		left: b.Count(), cur: payload,
		baseOffset: b.BaseOffset(), baseTimestamp: b.BaseTimestamp(), baseSequence: b.BaseSequence(),
		isAppendTime: b.IsLogAppendTime(), appendTime: b.MaxTimestamp(),
	}
	if it.left < 0 {
		it.err = errf(ErrInvalid, "found invalid record count %d in magic v2 batch", it.left)
	}
	return it
}

// Ref is Record without a copy; the next step overwrites it.
func (it *Iterator) Ref() *Record { return &it.rec }
