package log

import (
	"errors"
	"fmt"
	"math"
	"time"

	"gregor/internal/api"
	"gregor/internal/record"
)

// Append appends as the leader. It checks the batches as their origin demands, assigns offsets and leader epoch in place in
// records (and with LogAppendTime the timestamps), and writes them in one piece. records belongs to the caller again when it
// returns.
//
// A batch that an idempotent producer sends again is not appended: the result is that of the first time, with Duplicate set.
// Errors carry Kafka's codes: CORRUPT_MESSAGE, INVALID_RECORD and INVALID_TIMESTAMP (as *InvalidRecordError when single records
// are at fault), MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH,
// INVALID_TXN_STATE, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
//
// Coordinators and clients append exactly one batch, the raft leader any number.
func (l *Log) Append(records []byte, o AppendOptions) (AppendInfo, error) {
	if o.Origin == Replication {
		return l.AppendFollower(records)
	}
	cfg := l.cfg.Load()
	first, rest, err := record.Next(records)
	if err != nil {
		return AppendInfo{}, recordError(err)
	}
	if first == nil {
		return l.emptyInfo(), nil
	}
	if o.Origin != RaftLeader && len(rest) > 0 {
		return AppendInfo{}, api.WithMessage(api.ErrInvalidRecord, "an append to %s holds more than one record batch", l.tp)
	}
	nowMs := l.e.nowMs()
	v, err := l.validate(first, o, cfg, nowMs)
	if err != nil {
		return AppendInfo{}, err
	}
	for rest := rest; len(rest) > 0; {
		var b record.Batch
		if b, rest, err = record.Next(rest); err != nil {
			return AppendInfo{}, recordError(err)
		}
		if _, err := l.validate(b, o, cfg, nowMs); err != nil {
			return AppendInfo{}, err
		}
	}

	info, due, err := func() (AppendInfo, bool, error) {
		l.mu.Lock()
		defer l.unlock()
		info, err := l.appendLeader(records, first, v, o, cfg, nowMs)
		return info, err == nil && !info.Duplicate && l.flushDue(cfg), err
	}()
	if due {
		err = l.Flush()
	}
	return info, err
}

func (l *Log) emptyInfo() AppendInfo {
	return AppendInfo{FirstOffset: UnknownOffset, LastOffset: UnknownOffset, MaxTimestamp: record.NoTimestamp,
		LogAppendTime: record.NoTimestamp, LogStartOffset: l.LogStartOffset(), LeaderEpoch: NoEpoch}
}

func (l *Log) timestampType(cfg *Config) record.TimestampType {
	if cfg.LogAppendTime {
		return record.LogAppendTime
	}
	return record.CreateTime
}

// validate checks one batch without the lock.
func (l *Log) validate(b record.Batch, o AppendOptions, cfg *Config, nowMs int64) (record.Validated, error) {
	if o.Origin == Client {
		vo := record.ValidateOptions{
			TopicPartition: l.name,
			FromClient:     true,
			MaxBatchBytes:  int(cfg.MaxMessageBytes),
			MaxRecordBytes: l.e.maxRecordBytes,
			Compacted:      cfg.CleanupCompact,
			TimestampType:  l.timestampType(cfg),
			Now:            nowMs,
			BeforeMax:      boundMs(cfg.TimestampBeforeMax),
			AfterMax:       boundMs(cfg.TimestampAfterMax),
			Target:         record.KeepCodec,
			HeaderOnly:     o.Validation == Header,
			Decompressor:   l.e.decomp,
		}
		if cfg.Recompress {
			vo.Target = cfg.RecompressTo
		}
		v, err := record.Validate(b, &vo)
		if err != nil {
			return v, recordError(err)
		}
		return v, nil
	}
	if o.Origin == Coordinator && len(b) > int(cfg.MaxMessageBytes) {
		return record.Validated{}, api.WithMessage(api.ErrMessageTooLarge,
			"The record batch size in the append to %s is %d bytes which exceeds the maximum configured value of %d.", l.tp, len(b), cfg.MaxMessageBytes)
	}
	if b.Count() < 0 || b.LastOffsetDelta() < 0 {
		return record.Validated{}, api.WithMessage(api.ErrInvalidRecord, "a batch for %s has %d records and last offset delta %d", l.tp, b.Count(), b.LastOffsetDelta())
	}
	v := record.Validated{MaxTimestamp: b.MaxTimestamp(), Records: b.Count()}
	if cfg.LogAppendTime {
		v.MaxTimestamp = nowMs
	}
	return v, nil
}

// boundMs is a limit in ms; what isn't positive or can't be expressed is none.
func boundMs(d time.Duration) int64 {
	if d < 0 || d == math.MaxInt64 {
		return math.MaxInt64
	}
	return d.Milliseconds()
}

// appendLeader is Append with mu held.
func (l *Log) appendLeader(records []byte, first record.Batch, v record.Validated, o AppendOptions, cfg *Config, nowMs int64) (AppendInfo, error) {
	if err := l.usable(); err != nil {
		return AppendInfo{}, err
	}
	if err := l.ready(); err != nil {
		return AppendInfo{}, err
	}
	l.marks.Lock()
	base, start := l.end.offset, l.start
	l.marks.Unlock()
	info := AppendInfo{FirstOffset: base, LogAppendTime: record.NoTimestamp, LogStartOffset: start, LeaderEpoch: o.LeaderEpoch}
	if cfg.LogAppendTime {
		info.LogAppendTime = nowMs
	}

	if o.Origin == Client && first.HasProducer() {
		if e := l.prod.entry(first.ProducerID()); e != nil {
			if d, ok := e.duplicate(first.ProducerEpoch(), first.BaseSequence(), first.LastSequence()); ok {
				info.FirstOffset, info.LastOffset, info.LogAppendTime, info.MaxTimestamp = d.firstOffset(), d.lastOffset, d.timestamp, d.timestamp
				info.Duplicate = true
				return info, nil
			}
		}
	}

	t := l.timestampType(cfg)
	if v.Rebuild {
		b, err := record.Rebuild(first, record.RebuildOptions{
			BaseOffset: base, LeaderEpoch: o.LeaderEpoch, Target: l.targetCodec(cfg), Level: cfg.CompressionLevel, TimestampType: t,
			Now: nowMs, Decompressor: l.e.decomp, Compressor: l.e.comp,
		})
		if err != nil {
			return AppendInfo{}, recordError(err)
		}
		if len(b) > int(cfg.MaxMessageBytes) {
			return AppendInfo{}, api.WithMessage(api.ErrMessageTooLarge,
				"Message batch size is %d bytes in append topartition %s which exceeds the maximum configured size of %d.", len(b), l.tp, cfg.MaxMessageBytes)
		}
		records = b
	} else if o.Origin == RaftLeader {
		next := base
		for rest := records; len(rest) > 0; {
			b, r, err := record.Next(rest)
			if err != nil {
				return AppendInfo{}, recordError(err)
			}
			record.Assign(b, next, o.LeaderEpoch, record.CreateTime, record.Validated{MaxTimestamp: b.MaxTimestamp()})
			next, rest = b.NextOffset(), r
		}
	} else {
		record.Assign(first, base, o.LeaderEpoch, t, v)
		records = first
	}
	if len(records) > int(cfg.SegmentBytes) {
		return AppendInfo{}, api.WithMessage(api.ErrRecordListTooLarge,
			"Message batch size is %d bytes in append to partition %s, which exceeds the maximum configured segment size of %d.", len(records), l.tp, cfg.SegmentBytes)
	}
	err := l.write(records, &info, cfg, applyCheck{
		tp: l.tp, origin: o.Origin, guard: o.Guard, transactionVersion: o.TransactionVersion, verify: l.e.verifyTransactions,
	})
	return info, err
}

func (l *Log) targetCodec(cfg *Config) record.Codec {
	if cfg.Recompress {
		return cfg.RecompressTo
	}
	return record.KeepCodec
}

// AppendFollower appends what a leader sent, offsets and epochs as they are. An incomplete batch at the end is left out: a fetch
// may cut it. The errors are CORRUPT_MESSAGE, *UnexpectedOffsetError when the first batch begins below the log end offset,
// *OutOfOrderError when batches don't ascend, and KAFKA_STORAGE_ERROR; batches before one at fault may have been appended.
func (l *Log) AppendFollower(records []byte) (AppendInfo, error) {
	valid := 0
	last := int64(math.MinInt64)
	for rest := records; len(rest) > 0; {
		e, r, err := record.NextEntry(rest)
		if err != nil {
			if errors.Is(err, record.ErrTruncated) {
				break
			}
			return AppendInfo{}, recordError(err)
		}
		if err := e.Check(); err != nil {
			return AppendInfo{}, recordError(err)
		}
		if e.LastOffset() <= last {
			return AppendInfo{}, &OutOfOrderError{Previous: last, Offset: e.LastOffset()}
		}
		last = e.LastOffset()
		valid += len(e)
		rest = r
	}
	if valid == 0 {
		return l.emptyInfo(), nil
	}
	records = records[:valid]
	cfg := l.cfg.Load()

	info, due, err := func() (AppendInfo, bool, error) {
		l.mu.Lock()
		defer l.unlock()
		info, err := l.appendFollower(records, cfg)
		return info, err == nil && l.flushDue(cfg), err
	}()
	if due {
		err = l.Flush()
	}
	return info, err
}

func (l *Log) appendFollower(records []byte, cfg *Config) (AppendInfo, error) {
	if err := l.usable(); err != nil {
		return AppendInfo{}, err
	}
	if err := l.ready(); err != nil {
		return AppendInfo{}, err
	}
	l.marks.Lock()
	end, start := l.end.offset, l.start
	l.marks.Unlock()
	e, _, err := record.NextEntry(records)
	if err != nil {
		return AppendInfo{}, recordError(err)
	}
	firstOffset := e.Offset()
	if firstOffset < end {
		return AppendInfo{}, &UnexpectedOffsetError{FirstOffset: firstOffset, LastOffset: lastOffsetOf(records), LogEndOffset: end}
	}
	info := AppendInfo{FirstOffset: firstOffset, MaxTimestamp: record.NoTimestamp, LogAppendTime: record.NoTimestamp, LogStartOffset: start, LeaderEpoch: NoEpoch}
	// One fetch may hold more than a segment has room for: write what fits, roll, go on.
	for len(records) > 0 {
		run := l.fitting(records, cfg)
		if err := l.write(records[:run], &info, cfg, applyCheck{tp: l.tp, origin: Replication}); err != nil {
			return info, err
		}
		records = records[run:]
	}
	return info, nil
}

// fitting is the length of the leading batches that fit into the active segment, or into a new one; at least one batch.
func (l *Log) fitting(records []byte, cfg *Config) int {
	room := int64(cfg.SegmentBytes)
	if size := l.active().size.Load(); size < room {
		if e, _, _ := record.NextEntry(records); int64(len(e)) <= room-size {
			room -= size
		}
	}
	n := 0
	for n < len(records) {
		e, _, err := record.NextEntry(records[n:])
		if err != nil || (n > 0 && int64(n+len(e)) > room) {
			break
		}
		n += len(e)
	}
	return n
}

func lastOffsetOf(records []byte) int64 {
	last := UnknownOffset
	for len(records) > 0 {
		e, rest, err := record.NextEntry(records)
		if err != nil {
			break
		}
		last, records = e.LastOffset(), rest
	}
	return last
}

// batchesEnd sums up a run of batches.
func batchesEnd(records []byte) (last, maxTs int64) {
	last, maxTs = UnknownOffset, record.NoTimestamp
	for len(records) > 0 {
		e, rest, err := record.NextEntry(records)
		if err != nil {
			break
		}
		last = e.LastOffset()
		maxTs = max(maxTs, e.MaxTimestamp())
		records = rest
	}
	return last, maxTs
}

// write appends batches whose offsets are final to the active segment, rolling before it if due. Either all of it happened or,
// with an error, nothing that matters. mu is held.
func (l *Log) write(records []byte, info *AppendInfo, cfg *Config, c applyCheck) error {
	last, maxTs := batchesEnd(records)
	if err := l.rollFor(records, last, maxTs, cfg); err != nil {
		return err
	}
	seg := l.active()
	pos := seg.size.Load()
	at := pos
	for rest := records; len(rest) > 0; {
		e, r, _ := record.NextEntry(rest)
		if e.Magic() == 2 && e.Batch().HasProducer() {
			if err := l.prod.apply(e.Batch(), at, c); err != nil {
				l.prod.rollback()
				return err
			}
		}
		at += int64(len(e))
		rest = r
	}
	if err := l.writeAt(seg, records, pos); err != nil {
		l.prod.rollback()
		return err
	}

	seg.size.Store(at)
	l.touched = true
	if seg.firstTs == unknownTs && pos == 0 {
		e, _, _ := record.NextEntry(records)
		seg.firstTs = e.MaxTimestamp()
	}
	var indexErr error
	at = pos
	for rest := records; len(rest) > 0; {
		e, r, _ := record.NextEntry(rest)
		if e.Magic() == 2 {
			info.Records += int(e.Batch().Count())
			if epoch := e.PartitionLeaderEpoch(); epoch >= 0 {
				l.epochs.assign(epoch, e.Offset(), true)
				info.LeaderEpoch = epoch
			}
		} else {
			info.Records++
			// Old batches carry no epoch; keeping the known ones could make a later truncation believe in them.
			l.epochs.clear()
		}
		seg.raiseTimestamp(e.MaxTimestamp(), e.LastOffset())
		if err := seg.addIndex(l.e.files, int64(cfg.IndexIntervalBytes), e.LastOffset(), at, int64(len(e))); err != nil && indexErr == nil {
			indexErr = err
		}
		at += int64(len(e))
		rest = r
	}
	info.LastOffset = last
	info.MaxTimestamp = max(info.MaxTimestamp, maxTs)
	info.Bytes += len(records)

	l.marks.Lock()
	if l.recent == nil {
		l.recent = new(recentEnds)
		l.recent.add(l.end)
	}
	l.end = position{offset: last + 1, seg: seg, pos: at}
	l.recent.add(l.end)
	aborts := l.transactionsLocked(seg)
	l.marks.Unlock()
	for _, t := range aborts {
		if err := seg.txns.append(seg.txnEnv(l.e.files), t); err != nil && indexErr == nil {
			indexErr = err
		}
	}
	if indexErr != nil && !isFull(indexErr) {
		// The data is there and the indexes can be rebuilt, but a disk that fails at this can't be trusted.
		return l.ioError("index", indexErr)
	}
	return nil
}

// transactionsLocked applies what the append meant for open transactions and returns the aborted ones. mu and marks are held.
func (l *Log) transactionsLocked(seg *segment) (aborts []abortedTxn) {
	for _, ev := range l.prod.commit() {
		if ev.last == UnknownOffset {
			l.open = append(l.open, openTxn{first: position{offset: ev.first, seg: seg, pos: ev.pos}, producerID: ev.producerID})
			continue
		}
		first := position{offset: ev.first}
		stable := ev.last + 1
		for i, t := range l.open {
			if t.producerID == ev.producerID && t.first.offset == ev.first {
				first = t.first
				l.open = append(l.open[:i:i], l.open[i+1:]...)
				break
			}
		}
		if len(l.open) > 0 {
			stable = l.open[0].first.offset
		}
		if ev.last >= l.hw.offset {
			l.addUnreplicatedLocked(doneTxn{first: first, last: ev.last})
		}
		if ev.abort {
			aborts = append(aborts, abortedTxn{producerID: ev.producerID, firstOffset: ev.first, lastOffset: ev.last, lastStableOffset: stable})
		}
	}
	return aborts
}

func (l *Log) addUnreplicatedLocked(t doneTxn) {
	i := len(l.unreplicated)
	for i > 0 && l.unreplicated[i-1].first.offset > t.first.offset {
		i--
	}
	l.unreplicated = append(l.unreplicated, doneTxn{})
	copy(l.unreplicated[i+1:], l.unreplicated[i:])
	l.unreplicated[i] = t
}

// writeAt writes to the end of the segment. What a failed write left is cut off at once or, if that fails too, before the next
// append. mu is held.
func (l *Log) writeAt(seg *segment, b []byte, pos int64) error {
	if err := l.appear(seg); err != nil {
		return l.ioError("make a segment of", err)
	}
	f, err := seg.open(l.e.files)
	if err != nil {
		return l.ioError("append to", err)
	}
	defer seg.release(l.e.files)
	seg.reserve(f, pos+int64(len(b)))
	n, err := f.WriteAt(b, pos)
	if err == nil && n < len(b) {
		err = fmt.Errorf("wrote %d of %d bytes", n, len(b))
	}
	if err == nil {
		return nil
	}
	l.cutTo, seg.reserved = pos, 0
	return l.ioError("append to", errors.Join(err, l.repairTail()))
}

// ready does what must have been done before bytes may be appended. mu is held.
func (l *Log) ready() error {
	if err := l.repairTail(); err != nil {
		return err
	}
	if l.metaDirty {
		return l.ioError("write the topic id of", l.writeIdentity())
	}
	return nil
}

// repairTail cuts off what a failed write left behind. mu is held.
//
// The cut is synced before the log goes on: after a crash, batches of the failed write could otherwise stand behind those that
// have been written over it, with offsets and epochs that other replicas gave to other records.
func (l *Log) repairTail() error {
	if l.cutTo < 0 {
		return nil
	}
	seg := l.active()
	f, err := seg.open(l.e.files)
	if err == nil {
		if err = f.Truncate(l.cutTo); err == nil {
			err = f.Sync()
		}
		seg.release(l.e.files)
	}
	if err != nil {
		return l.ioError("cut a torn write off", err)
	}
	l.cutTo = -1
	return nil
}
