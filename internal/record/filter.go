package record

// FilterOptions say what the cleaner keeps of a batch.
type FilterOptions struct {
	// Keep says whether a record stays. The record's slices are good only during the call.
	Keep func(b Batch, r *Record) bool
	// KeepEmpty leaves an empty batch behind when no record stays: for the last batch of a producer, and for the last offset of
	// a cleaned range.
	KeepEmpty bool
	// EmptyTxnMarker says that b is a marker whose transaction has no records left, so that its delete horizon starts.
	EmptyTxnMarker bool
	// DeleteHorizon is now + delete.retention.ms: put into a batch that has tombstones (or an empty transaction's marker) and no
	// horizon yet.
	DeleteHorizon int64
	Decompressor  *Decompressor
	Compressor    *Compressor
}

// Filtered is what came of filtering a batch.
type Filtered struct {
	// Read and Kept count records.
	Read, Kept int
	// MaxOffset is the last kept record's offset, -1 without one.
	MaxOffset int64
	// MaxTimestamp is that of what was written, NoTimestamp if nothing was.
	MaxTimestamp int64
	// Unchanged: the batch went over byte for byte.
	Unchanged bool
}

// Filter appends to dst what the cleaner keeps of b: the very bytes if all records stay and no delete horizon is due, else a
// batch with the same offsets, producer, flags, timestamp type and codec around the records that stay, else an empty batch or
// nothing. Errors are those of iterating; dst comes back unchanged then.
func Filter(dst []byte, b Batch, o *FilterOptions) ([]byte, Filtered, error) {
	f := Filtered{MaxOffset: -1, MaxTimestamp: NoTimestamp}
	tombstones, dropped := false, false
	// The first pass only decides, so that the common case, all stay, costs no rebuilding.
	var keep []bool
	it := b.Records(o.Decompressor)
	defer it.Close()
	for it.Next() {
		k := o.Keep(b, &it.rec)
		keep = append(keep, k)
		f.Read++
		if !k {
			dropped = true
			continue
		}
		f.Kept++
		f.MaxOffset = max(f.MaxOffset, it.rec.Offset)
		tombstones = tombstones || it.rec.Value == nil
	}
	if err := it.Err(); err != nil {
		return dst, f, err
	}
	if f.Kept == 0 {
		if o.KeepEmpty {
			f.MaxTimestamp = b.MaxTimestamp()
			return AppendEmpty(dst, b), f, nil
		}
		return dst, f, nil
	}
	newHorizon := (tombstones || o.EmptyTxnMarker) && !b.HasDeleteHorizon()
	if !dropped && !newHorizon {
		f.Unchanged, f.MaxTimestamp = true, b.MaxTimestamp()
		return append(dst, b...), f, nil
	}
	opts := optionsOf(b)
	opts.Compressor = o.Compressor
	if newHorizon {
		opts.DeleteHorizon = o.DeleteHorizon
	}
	nb := NewBuilder(opts)
	it.start(b, o.Decompressor)
	for i := 0; it.Next(); i++ {
		if keep[i] {
			nb.AppendAt(it.rec.Offset, it.rec.Timestamp, it.rec.Key, it.rec.Value, it.rec.Headers)
		}
	}
	if err := it.Err(); err != nil {
		return dst, f, err
	}
	nb.SetLastOffset(b.LastOffset())
	out, err := nb.Build()
	if err != nil {
		return dst, f, err
	}
	f.MaxTimestamp = out.MaxTimestamp()
	return append(dst, out...), f, nil
}
