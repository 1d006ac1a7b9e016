package cli

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gregor/internal/record"
	"gregor/internal/vfs"
)

// dumpOptions are the flags of dump-log, which are those of Kafka's DumpLogSegments.
type dumpOptions struct {
	files        []string
	deep         bool
	printData    bool
	skipMetadata bool
	verifyOnly   bool
	sanityOnly   bool
	maxMessage   int
	maxBytes     int
	offsets      bool
	transactions bool
	metadata     bool
	remote       bool
	share        bool
	keyDecoder   string
	valueDecoder string
}

func newDumpLog(e *Env) *cobra.Command {
	var o dumpOptions
	cmd := &cobra.Command{
		Use:   "dump-log [flags] FILE...",
		Short: "Print what is in segment, index and snapshot files",
		Long: `Print what is in a partition's files: batches and records of .log and .checkpoint files, entries of .index, .timeindex and
.txnindex files, producers of .snapshot files. It works on the files alone; no server is needed, none is disturbed.

The output is that of Kafka's kafka-dump-log.sh, whose flags it takes. What is found to be wrong goes to standard error.`,
		Example: `  gregor dump-log data/orders-0/00000000000000000000.log
  gregor dump-log --print-data-log data/orders-0/*.log
  gregor dump-log --cluster-metadata-decoder data/__cluster_metadata-0/00000000000000000000.log
  gregor dump-log --offsets-decoder data/__consumer_offsets-7/00000000000000000000.log
  gregor dump-log --index-sanity-check data/orders-0/00000000000000000000.index`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.files = append(o.files, args...)
			if len(o.files) == 0 {
				return usageError(cmd, "name the files to dump")
			}
			return dumpLog(e, &o)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.files, "files", nil, "files to dump, separated by commas (or name them as arguments)")
	f.BoolVar(&o.deep, "deep-iteration", false, "print each record, not only batches; implied by --print-data-log")
	f.BoolVar(&o.printData, "print-data-log", false, "print keys and values; implied by a decoder")
	f.BoolVar(&o.skipMetadata, "skip-record-metadata", false, "print keys and values without offsets and the like, and no control records")
	f.BoolVar(&o.verifyOnly, "verify-index-only", false, "check indexes against their log without printing their entries")
	f.BoolVar(&o.sanityOnly, "index-sanity-check", false, "only make the check that decides at start whether an index is rebuilt")
	f.IntVar(&o.maxMessage, "max-message-size", 5<<20, "largest batch to expect behind an index entry, in bytes")
	f.IntVar(&o.maxBytes, "max-bytes", math.MaxInt32, "how much of each .log file to read, in bytes")
	f.BoolVar(&o.offsets, "offsets-decoder", false, "decode the records of __consumer_offsets")
	f.BoolVar(&o.transactions, "transaction-log-decoder", false, "decode the records of __transaction_state")
	f.BoolVar(&o.metadata, "cluster-metadata-decoder", false, "decode the records of __cluster_metadata")
	f.BoolVar(&o.remote, "remote-log-metadata-decoder", false, "decode the records of __remote_log_metadata")
	f.BoolVar(&o.share, "share-group-state-decoder", false, "decode the records of __share_group_state")
	f.StringVar(&o.keyDecoder, "key-decoder-class", "string", "how to print keys: string, integer, long, hex")
	f.StringVar(&o.valueDecoder, "value-decoder-class", "string", "how to print values: string, integer, long, hex")
	cmd.MarkFlagsMutuallyExclusive("offsets-decoder", "transaction-log-decoder", "cluster-metadata-decoder", "remote-log-metadata-decoder", "share-group-state-decoder")
	return cmd
}

// dumper is one run. Faults of the files' contents are collected and printed at the end, as Kafka's tool does.
type dumper struct {
	o      *dumpOptions
	fs     vfs.FS
	out    *bufio.Writer
	errs   io.Writer
	decode recordDecoder
	dec    *record.Decompressor

	mismatches pairsByFile // index offset, log offset
	gaps       pairsByFile
	timestamps pairsByFile
	outOfOrder pairsByFile
	notFound   pairsByFile
}

// pairsByFile keeps pairs of numbers by file, in order.
type pairsByFile struct {
	files []string
	pairs map[string][][2]int64
}

func (p *pairsByFile) add(file string, a, b int64) {
	if p.pairs == nil {
		p.pairs = map[string][][2]int64{}
	}
	if _, ok := p.pairs[file]; !ok {
		p.files = append(p.files, file)
	}
	p.pairs[file] = append(p.pairs[file], [2]int64{a, b})
}

func (p *pairsByFile) print(w io.Writer, title, line string) {
	for _, f := range p.files {
		fmt.Fprintf(w, title+"\n", f)
		for _, v := range p.pairs[f] {
			fmt.Fprintf(w, line+"\n", v[0], v[1])
		}
	}
}

func dumpLog(e *Env, o *dumpOptions) error {
	d := &dumper{
		o: o, fs: e.FS, out: bufio.NewWriterSize(e.Stdout, 1<<16), errs: e.Stderr,
		dec: record.NewDecompressor(record.DecompressorOptions{MaxBytes: math.MaxInt32}),
	}
	var err error
	if d.decode, err = decoderFor(o); err != nil {
		return err
	}
	o.printData = o.printData || d.decode.special
	o.deep = o.deep || o.printData
	for _, name := range o.files {
		if err := d.dump(name); err != nil {
			d.out.Flush()
			return err
		}
	}
	if err := d.out.Flush(); err != nil {
		return err
	}
	for _, pairs := range d.mismatches.pairs {
		slices.Reverse(pairs) // Kafka's order
	}
	d.mismatches.print(d.errs, "Mismatches in :%s", "  Index offset: %d, log offset: %d")
	d.timestamps.print(d.errs, "Found timestamp mismatch in :%s", "  Index timestamp: %d, log timestamp: %d")
	d.outOfOrder.print(d.errs, "Found out of order timestamp in :%s", "  Index timestamp: %d, Previously indexed timestamp: %d")
	d.notFound.print(d.errs, "The following indexed offsets are not found in :%s", "Indexed offset: %d, found log offset: %d")
	d.gaps.print(d.errs, "Non-consecutive offsets in %s", "  %d is followed by %d")
	return nil
}

func (d *dumper) dump(name string) error {
	d.printf("Dumping %s\n", name)
	base := filepath.Base(name)
	switch filepath.Ext(base) {
	case ".log", ".checkpoint":
		return d.log(name, base)
	case ".index":
		return d.index(name, base)
	case ".timeindex":
		return d.timeIndex(name, base)
	case ".txnindex":
		return d.txnIndex(name)
	case ".snapshot":
		return d.producers(name)
	}
	d.out.Flush()
	fmt.Fprintf(d.errs, "Ignoring unknown file %s\n", name)
	return nil
}

func (d *dumper) printf(format string, args ...any) { fmt.Fprintf(d.out, format, args...) }

// baseOffset is the number that a file's name begins with.
func baseOffset(base string) (int64, error) {
	digits, _, _ := strings.Cut(base, ".")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: the name doesn't begin with an offset", base)
	}
	return n, nil
}

func (d *dumper) log(name, base string) error {
	switch {
	case strings.HasSuffix(base, ".log"):
		start, err := baseOffset(base)
		if err != nil {
			return err
		}
		d.printf("Log starting offset: %d\n", start)
	case base == "bootstrap.checkpoint":
		d.printf("KRaft bootstrap snapshot\n")
	default:
		var end int64
		var epoch int32
		if _, err := fmt.Sscanf(base, "%020d-%010d.checkpoint", &end, &epoch); err != nil {
			return fmt.Errorf("%s: the name isn't that of a snapshot", base)
		}
		d.printf("Snapshot end offset: %d, epoch: %d\n", end, epoch)
	}
	r, err := openSegment(d.fs, name, 0, d.o.maxBytes)
	if err != nil {
		return err
	}
	defer r.close()
	last := int64(-1)
	for {
		e, err := r.next()
		if err != nil {
			return err
		}
		if e == nil {
			break
		}
		d.batch(e, r.position)
		if d.o.deep {
			if err := d.records(name, e, &last); err != nil {
				return err
			}
		}
	}
	if left := r.size - r.end; left > 0 && d.o.maxBytes == math.MaxInt32 {
		d.printf("Found %d invalid bytes at the end of %s\n", left, base)
	}
	return nil
}

func (d *dumper) batch(e record.Entry, position int64) {
	ts, codec, crc := "NoTimestampType", record.None, uint32(0)
	if e.Magic() == 2 {
		b := e.Batch()
		horizon := "OptionalLong.empty"
		if b.HasDeleteHorizon() {
			horizon = fmt.Sprintf("OptionalLong[%d]", b.BaseTimestamp())
		}
		d.printf("baseOffset: %d lastOffset: %d count: %d baseSequence: %d lastSequence: %d producerId: %d producerEpoch: %d partitionLeaderEpoch: %d isTransactional: %t isControl: %t deleteHorizonMs: %s",
			b.BaseOffset(), b.LastOffset(), b.Count(), b.BaseSequence(), b.LastSequence(), b.ProducerID(), b.ProducerEpoch(),
			b.PartitionLeaderEpoch(), b.IsTransactional(), b.IsControl(), horizon)
		codec, crc = b.Codec(), b.CRC()
	} else {
		d.printf("offset: %d", e.Offset())
		codec, crc = e.Legacy().Codec(), e.Legacy().CRC()
	}
	if t, ok := timestampType(e); ok {
		ts = t.String()
	}
	d.printf(" position: %d %s: %d size: %d magic: %d compresscodec: %s crc: %d isvalid: %t\n",
		position, ts, e.MaxTimestamp(), len(e), e.Magic(), codec, crc, e.Check() == nil)
}

// timestampType is false for magic 0, which has no timestamps.
func timestampType(e record.Entry) (record.TimestampType, bool) {
	appendTime := false
	switch e.Magic() {
	case 0:
		return 0, false
	case 1:
		appendTime = e.Legacy().IsLogAppendTime()
	default:
		appendTime = e.Batch().IsLogAppendTime()
	}
	if appendTime {
		return record.LogAppendTime, true
	}
	return record.CreateTime, true
}

func (d *dumper) records(name string, e record.Entry, last *int64) error {
	ts := "NoTimestampType"
	if t, ok := timestampType(e); ok {
		ts = t.String()
	}
	step := func(offset int64) {
		if offset != *last+1 { // the first record, too, is held against -1
			d.gaps.add(absolute(name), *last, offset)
		}
		*last = offset
	}
	if e.Magic() < 2 {
		it := e.Legacy().Records(d.dec)
		for it.Next() {
			r := it.Record()
			step(r.Offset)
			d.record(&r.Record, ts, &r, false)
		}
		return at(name, e, it.Err())
	}
	b := e.Batch()
	it := b.Records(d.dec)
	defer it.Close()
	for it.Next() {
		r := it.Record()
		step(r.Offset)
		d.record(&r, ts, nil, b.IsControl())
	}
	return at(name, e, it.Err())
}

// at says in which batch of which file something went wrong.
func at(name string, e record.Entry, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: batch at offset %d: %w", name, e.Offset(), err)
}

func absolute(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return name
}

func sizeOf(b []byte) int {
	if b == nil {
		return -1
	}
	return len(b)
}

func (d *dumper) record(r *record.Record, ts string, legacy *record.LegacyRecord, control bool) {
	prefix := "| "
	if !d.o.skipMetadata {
		d.printf("| offset: %d %s: %d keySize: %d valueSize: %d", r.Offset, ts, r.Timestamp, sizeOf(r.Key), sizeOf(r.Value))
		prefix = " "
		if legacy == nil {
			d.printf(" sequence: %d headerKeys: [", r.Sequence)
			for i, h := range r.Headers {
				if i > 0 {
					d.out.WriteByte(',')
				}
				d.out.WriteString(javaString(h.Key))
			}
			d.out.WriteByte(']')
		} else {
			d.printf(" isValid: %t crc: %d", legacy.Message.ComputeCRC() == legacy.CRC, legacy.CRC)
		}
		if control {
			d.out.WriteString(controlText(r))
		}
	}
	if d.o.printData && !control {
		key, value := d.decode.parse(r)
		if key != nil {
			d.printf("%skey: %s", prefix, *key)
			prefix = " "
		}
		if value != nil {
			d.printf("%spayload: %s", prefix, *value)
		}
	}
	d.out.WriteByte('\n')
}

// segment reads a .log file batch by batch.
type segment struct {
	f        vfs.File
	name     string
	size     int64 // of what is to be read
	position int64 // of the batch last returned
	end      int64 // behind it
	buf      []byte
}

func openSegment(fs vfs.FS, name string, from int64, maxBytes int) (*segment, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &segment{f: f, name: name, size: min(size, from+int64(maxBytes)), end: from}, nil
}

func (s *segment) close() { s.f.Close() }

// next is nil at the end: of the file, or where what is left can't be a whole batch. Bytes that can't begin one are an error.
func (s *segment) next() (record.Entry, error) {
	var head [17]byte
	if s.end > s.size-int64(len(head)) {
		return nil, nil
	}
	if _, err := s.f.ReadAt(head[:], s.end); err != nil {
		return nil, fmt.Errorf("%s at %d: %w", s.name, s.end, err)
	}
	n, err := record.EntrySize(head[:])
	if err != nil {
		return nil, fmt.Errorf("%s at %d: %w", s.name, s.end, err)
	}
	if int64(n) > s.size-s.end {
		return nil, nil
	}
	if cap(s.buf) < n {
		s.buf = make([]byte, n)
	}
	if _, err := s.f.ReadAt(s.buf[:n], s.end); err != nil {
		return nil, fmt.Errorf("%s at %d: %w", s.name, s.end, err)
	}
	e, _, err := record.NextEntry(s.buf[:n])
	if err != nil {
		return nil, fmt.Errorf("%s at %d: %w", s.name, s.end, err)
	}
	s.position = s.end
	s.end += int64(n)
	return e, nil
}

func (d *dumper) readAll(name string) ([]byte, error) {
	f, err := d.fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && !(errors.Is(err, io.EOF) && size == 0) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

const (
	indexEntry = 8
	timeEntry  = 12
	txnEntry   = 34
)

// sanity is the check that decides at start whether an index is rebuilt.
func sanity(name string, size, entry int, base, last int64) error {
	if size/entry > 0 && last < base {
		return fmt.Errorf("corrupt index found, index file (%s) has non-zero size but the last offset is %d which is less than the base offset %d",
			absolute(name), last, base)
	}
	if size%entry != 0 {
		return fmt.Errorf("index file %s is corrupt, found %d bytes which is neither positive nor a multiple of %d", absolute(name), size, entry)
	}
	return nil
}

func (d *dumper) index(name, base string) error {
	start, err := baseOffset(base)
	if err != nil {
		return err
	}
	b, err := d.readAll(name)
	if err != nil {
		return err
	}
	logName := strings.TrimSuffix(name, base) + strings.SplitN(base, ".", 2)[0] + ".log"
	if _, err := d.fs.Stat(logName); err != nil {
		return err
	}
	n := len(b) / indexEntry
	if n == 0 {
		d.printf("%s is empty.\n", name)
		return nil
	}
	entry := func(i int) (offset, position int64) {
		e := b[i*indexEntry:]
		return start + int64(int32(binary.BigEndian.Uint32(e))), int64(int32(binary.BigEndian.Uint32(e[4:])))
	}
	if d.o.sanityOnly {
		last, _ := entry(n - 1)
		if err := sanity(name, len(b), indexEntry, start, last); err != nil {
			return err
		}
		d.printf("%s passed sanity check.\n", name)
		return nil
	}
	for i := range n {
		offset, position := entry(i)
		// After a crash a preallocated file is full of zeros.
		if offset == start && i > 0 {
			return nil
		}
		s, err := openSegment(d.fs, logName, position, d.o.maxMessage)
		if err != nil {
			return err
		}
		e, err := s.next()
		s.close()
		switch {
		case err != nil:
			return err
		case e == nil:
			return fmt.Errorf("%s: no batch of %s at position %d of entry %d, within %d bytes", name, filepath.Base(logName), position, i, d.o.maxMessage)
		case e.LastOffset() != offset:
			d.mismatches.add(absolute(name), offset, e.LastOffset())
		}
		if !d.o.verifyOnly {
			d.printf("offset: %d position: %d\n", offset, position)
		}
	}
	return nil
}

func (d *dumper) timeIndex(name, base string) error {
	start, err := baseOffset(base)
	if err != nil {
		return err
	}
	b, err := d.readAll(name)
	if err != nil {
		return err
	}
	stem := strings.TrimSuffix(name, base) + strings.SplitN(base, ".", 2)[0]
	index, err := d.readAll(stem + ".index")
	if err != nil {
		return err
	}
	n := len(b) / timeEntry
	entry := func(i int) (ts, offset int64) {
		e := b[i*timeEntry:]
		return int64(binary.BigEndian.Uint64(e)), start + int64(int32(binary.BigEndian.Uint32(e[8:])))
	}
	if d.o.sanityOnly {
		last, lastTS := start, int64(-1)
		if n > 0 {
			lastTS, last = entry(n - 1)
			if first, _ := entry(0); lastTS < first {
				return fmt.Errorf("corrupt time index found, time index file (%s) has non-zero size but the last timestamp is %d which is less than the first timestamp %d",
					absolute(name), lastTS, first)
			}
		}
		if err := sanity(name, len(b), timeEntry, start, last); err != nil {
			return err
		}
		d.printf("%s passed sanity check.\n", name)
		return nil
	}
	previous := int64(-1)
	for i := range n {
		ts, offset := entry(i)
		if offset == start && i > 0 {
			return nil
		}
		if err := d.checkTime(name, stem+".log", lookup(index, start, offset), ts, offset, previous); err != nil {
			return err
		}
		if !d.o.verifyOnly {
			d.printf("timestamp: %d offset: %d\n", ts, offset)
		}
		previous = ts
	}
	return nil
}

// lookup is the position of the last index entry at or below the offset.
func lookup(index []byte, start, offset int64) int64 {
	position := int64(0)
	for i := 0; i+indexEntry <= len(index); i += indexEntry {
		o := start + int64(int32(binary.BigEndian.Uint32(index[i:])))
		if o > offset || i > 0 && o == start {
			break
		}
		position = int64(int32(binary.BigEndian.Uint32(index[i+4:])))
	}
	return position
}

// checkTime holds a time index entry against the batch it points at.
func (d *dumper) checkTime(name, logName string, position, ts, offset, previous int64) error {
	s, err := openSegment(d.fs, logName, position, math.MaxInt32)
	if err != nil {
		return err
	}
	defer s.close()
	for {
		e, err := s.next()
		if err != nil {
			return err
		}
		if e == nil {
			d.notFound.add(absolute(name), offset, -1)
			return nil
		}
		if e.LastOffset() < offset {
			continue
		}
		if e.LastOffset() != offset {
			d.notFound.add(absolute(name), offset, e.LastOffset())
			return nil
		}
		latest, err := d.latest(e)
		if err != nil {
			return at(logName, e, err)
		}
		if latest != ts {
			d.timestamps.add(absolute(name), ts, latest)
		}
		if previous >= ts {
			d.outOfOrder.add(absolute(name), ts, previous)
		}
		return nil
	}
}

// latest is the largest timestamp of a batch's records.
func (d *dumper) latest(e record.Entry) (int64, error) {
	latest := record.NoTimestamp
	if e.Magic() < 2 {
		it := e.Legacy().Records(d.dec)
		for it.Next() {
			latest = max(latest, it.Record().Timestamp)
		}
		return latest, it.Err()
	}
	it := e.Batch().Records(d.dec)
	defer it.Close()
	for it.Next() {
		latest = max(latest, it.Record().Timestamp)
	}
	return latest, it.Err()
}

func (d *dumper) txnIndex(name string) error {
	b, err := d.readAll(name)
	if err != nil {
		return err
	}
	for ; len(b) >= txnEntry; b = b[txnEntry:] {
		if v := int16(binary.BigEndian.Uint16(b)); v != 0 {
			return fmt.Errorf("%s: unexpected aborted transaction version %d, current version is 0", name, v)
		}
		n := func(i int) int64 { return int64(binary.BigEndian.Uint64(b[i:])) }
		d.printf("version: 0 producerId: %d firstOffset: %d lastOffset: %d lastStableOffset: %d\n", n(2), n(10), n(18), n(26))
	}
	return nil
}

func (d *dumper) producers(name string) error {
	b, err := d.readAll(name)
	if err != nil {
		return err
	}
	corrupt := func(format string, args ...any) error {
		d.out.Flush()
		fmt.Fprintf(d.errs, format+"\n", args...)
		return nil
	}
	const head, entry = 10, 46
	if len(b) < head {
		return corrupt("Snapshot failed schema validation: %d bytes", len(b))
	}
	if v := int16(binary.BigEndian.Uint16(b)); v != 1 {
		return corrupt("Snapshot contained an unknown file version %d", v)
	}
	stored, computed := binary.BigEndian.Uint32(b[2:]), crc32.Checksum(b[6:], crc32.MakeTable(crc32.Castagnoli))
	if stored != computed {
		return corrupt("Snapshot is corrupt (CRC is no longer valid). Stored crc: %d. Computed crc: %d", stored, computed)
	}
	count := int64(int32(binary.BigEndian.Uint32(b[6:])))
	if b = b[head:]; count < 0 || count*entry != int64(len(b)) {
		return corrupt("Snapshot failed schema validation: %d entries in %d bytes", count, len(b))
	}
	for ; len(b) > 0; b = b[entry:] {
		i64 := func(i int) int64 { return int64(binary.BigEndian.Uint64(b[i:])) }
		i32 := func(i int) int32 { return int32(binary.BigEndian.Uint32(b[i:])) }
		id, epoch := i64(0), int16(binary.BigEndian.Uint16(b[8:]))
		lastSequence, lastOffset, delta, ts, coordinator, first := i32(10), i64(14), i32(22), i64(26), i32(34), i64(38)
		open := "OptionalLong.empty"
		if first >= 0 {
			open = fmt.Sprintf("OptionalLong[%d]", first)
		}
		d.printf("producerId: %d producerEpoch: %d coordinatorEpoch: %d currentTxnFirstOffset: %s lastTimestamp: %d", id, epoch, coordinator, open, ts)
		if lastOffset >= 0 {
			firstSequence := lastSequence - delta
			if lastSequence < delta {
				firstSequence = int32(math.MaxInt32 - (int64(delta) - int64(lastSequence)) + 1)
			}
			d.printf(" firstSequence: %d lastSequence: %d lastOffset: %d offsetDelta: %d timestamp: %d", firstSequence, lastSequence, lastOffset, delta, ts)
		}
		d.printf("\n")
	}
	return nil
}
