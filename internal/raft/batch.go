package raft

import (
	"fmt"

	"gregor/internal/message"
	"gregor/internal/record"
)

// MaxBatchBytes is the most that one batch of the metadata log may take, as in Kafka.
const MaxBatchBytes = 8 << 20

// controlRecord is a control record with its offset.
type controlRecord struct {
	offset int64
	msg    message.Message
}

// controlRecords reads the quorum's control records out of a batch; none in a data batch. Records of unknown types are
// skipped: a later version may write some.
func controlRecords(b record.Batch) ([]controlRecord, error) {
	if !b.IsControl() {
		return nil, nil
	}
	var list []controlRecord
	it := b.Records(nil)
	defer it.Close()
	for it.Next() {
		r := it.Record()
		t, err := message.ReadControlKey(r.Key)
		if err != nil {
			return nil, fmt.Errorf("raft: control record %d: %w", r.Offset, err)
		}
		if message.NewControlRecord(t) == nil {
			continue
		}
		v, err := message.ReadControlValue(t, r.Value)
		if err != nil {
			return nil, fmt.Errorf("raft: control record %d: %w", r.Offset, err)
		}
		list = append(list, controlRecord{r.Offset, v.Message})
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("raft: control batch at %d: %w", b.BaseOffset(), err)
	}
	return list, nil
}

func controlType(m message.Message) record.ControlType {
	switch m.(type) {
	case *message.LeaderChangeMessage:
		return record.ControlLeaderChange
	case *message.SnapshotHeaderRecord:
		return record.ControlSnapshotHeader
	case *message.SnapshotFooterRecord:
		return record.ControlSnapshotFooter
	case *message.KRaftVersionRecord:
		return record.ControlKRaftVersion
	case *message.VotersRecord:
		return record.ControlKRaftVoters
	}
	panic("raft: " + m.MessageName() + " is not a control record")
}

// controlBatch makes a control batch. LeaderChange is written in version 0 as Kafka does: version 1 would add directory ids.
func controlBatch(base int64, epoch int32, ts int64, msgs []message.Message) (record.Batch, error) {
	recs := make([]record.ControlRecord, len(msgs))
	for i, m := range msgs {
		value, err := message.AppendControlValue(nil, m, 0)
		if err != nil {
			return nil, fmt.Errorf("raft: encode %s: %w", m.MessageName(), err)
		}
		recs[i] = record.ControlRecord{Type: controlType(m), Value: value}
	}
	return record.BuildControlBatch(base, epoch, ts, recs...), nil
}

// dataBatch makes a batch of metadata records. Keys are null and there are no headers; all records have one timestamp.
func dataBatch(b *record.Builder, base int64, epoch int32, ts int64, records []message.Versioned) (record.Batch, error) {
	b.Reset(record.BuilderOptions{BaseOffset: base, LeaderEpoch: epoch}.NoProducer())
	var value []byte
	for _, r := range records {
		v, err := message.AppendMetadataRecord(value[:0], r.Message, r.Version)
		if err != nil {
			return nil, fmt.Errorf("raft: encode %s: %w", r.Message.MessageName(), err)
		}
		value = v
		b.Append(ts, nil, value, nil)
	}
	return b.Build()
}

// dataRecords decodes the records of a data batch.
func dataRecords(b record.Batch, d *record.Decompressor) ([]message.Versioned, error) {
	records := make([]message.Versioned, 0, min(int(b.Count()), b.Size()/8))
	it := b.Records(d)
	defer it.Close()
	for it.Next() {
		r := it.Record()
		v, err := message.ReadMetadataRecord(r.Value)
		if err != nil {
			return nil, fmt.Errorf("raft: record %d: %w", r.Offset, err)
		}
		records = append(records, v)
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("raft: batch at %d: %w", b.BaseOffset(), err)
	}
	return records, nil
}
