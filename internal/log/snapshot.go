package log

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
)

// A producer snapshot, NNN.snapshot: the producers as of an offset (exclusive),
//
//	int16 version (1) | uint32 crc (CRC-32C of the rest) | int32 count | count times
//	int64 producerId | int16 epoch | int32 lastSequence | int64 lastOffset | int32 offsetDelta | int64 timestamp
//	| int32 coordinatorEpoch | int64 currentTxnFirstOffset
//
// Only the last batch of each producer is kept.
const (
	snapshotHeaderSize = 10
	snapshotEntrySize  = 46
	snapshotVersion    = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeSnapshot writes the producers in the order of their ids.
func encodeSnapshot(entries map[int64]*producerEntry) []byte {
	b := make([]byte, snapshotHeaderSize, snapshotHeaderSize+snapshotEntrySize*len(entries))
	binary.BigEndian.PutUint16(b, snapshotVersion)
	binary.BigEndian.PutUint32(b[6:], uint32(len(entries)))
	for _, id := range slices.Sorted(maps.Keys(entries)) {
		e := entries[id]
		last, ok := e.last()
		if !ok {
			last = batchMeta{lastSeq: -1, lastOffset: -1}
		}
		b = binary.BigEndian.AppendUint64(b, uint64(id))
		b = binary.BigEndian.AppendUint16(b, uint16(e.epoch))
		b = binary.BigEndian.AppendUint32(b, uint32(last.lastSeq))
		b = binary.BigEndian.AppendUint64(b, uint64(last.lastOffset))
		b = binary.BigEndian.AppendUint32(b, uint32(last.offsetDelta))
		b = binary.BigEndian.AppendUint64(b, uint64(e.lastTimestamp))
		b = binary.BigEndian.AppendUint32(b, uint32(e.coordEpoch))
		b = binary.BigEndian.AppendUint64(b, uint64(e.txnFirst))
	}
	binary.BigEndian.PutUint32(b[2:], crc32.Checksum(b[6:], castagnoli))
	return b
}

// decodeSnapshot reads a producer snapshot.
func decodeSnapshot(b []byte) (map[int64]*producerEntry, error) {
	if len(b) < snapshotHeaderSize {
		return nil, fmt.Errorf("producer snapshot of %d bytes is shorter than its header of %d", len(b), snapshotHeaderSize)
	}
	if v := int16(binary.BigEndian.Uint16(b)); v != snapshotVersion {
		return nil, fmt.Errorf("producer snapshot has version %d, want %d", v, snapshotVersion)
	}
	if want, got := binary.BigEndian.Uint32(b[2:]), crc32.Checksum(b[6:], castagnoli); want != got {
		return nil, fmt.Errorf("producer snapshot is corrupt: stored crc %d, computed %d", want, got)
	}
	n := int64(int32(binary.BigEndian.Uint32(b[6:])))
	if n < 0 || n*snapshotEntrySize > int64(len(b)-snapshotHeaderSize) {
		return nil, fmt.Errorf("producer snapshot claims %d entries in %d bytes", n, len(b))
	}
	entries := make(map[int64]*producerEntry, n)
	for b = b[snapshotHeaderSize:]; n > 0; n, b = n-1, b[snapshotEntrySize:] {
		e := newProducerEntry()
		e.epoch = int16(binary.BigEndian.Uint16(b[8:]))
		last := batchMeta{
			lastSeq:     int32(binary.BigEndian.Uint32(b[10:])),
			lastOffset:  int64(binary.BigEndian.Uint64(b[14:])),
			offsetDelta: int32(binary.BigEndian.Uint32(b[22:])),
			timestamp:   int64(binary.BigEndian.Uint64(b[26:])),
		}
		if last.lastOffset >= 0 {
			e.add(last)
		}
		e.lastTimestamp = last.timestamp
		e.coordEpoch = int32(binary.BigEndian.Uint32(b[34:]))
		if first := int64(binary.BigEndian.Uint64(b[38:])); first >= 0 {
			e.txnFirst = first
		}
		entries[int64(binary.BigEndian.Uint64(b))] = &e
	}
	return entries, nil
}
