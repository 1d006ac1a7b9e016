package log

import "encoding/binary"

// The offset index, NNN.index: entries of 8 bytes,
//
//	int32 relative offset (offset - base of the segment) | int32 position in the .log file
//
// where offset is the last offset of the batch at the position. Both ascend. The first batch has no entry.
const indexEntrySize = 8

func putIndexEntry(b []byte, rel int32, pos int32) {
	binary.BigEndian.PutUint32(b, uint32(rel))
	binary.BigEndian.PutUint32(b[4:], uint32(pos))
}

func indexEntry(b []byte) (rel, pos int32) {
	return int32(binary.BigEndian.Uint32(b)), int32(binary.BigEndian.Uint32(b[4:]))
}

// The time index, NNN.timeindex: entries of 12 bytes,
//
//	int64 timestamp in ms | int32 relative offset
//
// meaning that the timestamp is the largest up to and including that offset. Both ascend.
const timeEntrySize = 12

func putTimeEntry(b []byte, ts int64, rel int32) {
	binary.BigEndian.PutUint64(b, uint64(ts))
	binary.BigEndian.PutUint32(b[8:], uint32(rel))
}

func timeEntry(b []byte) (ts int64, rel int32) {
	return int64(binary.BigEndian.Uint64(b)), int32(binary.BigEndian.Uint32(b[8:]))
}

// plausiblePrefix is the number of leading entries of an offset index that can be what they claim to be: both fields positive
// and strictly ascending, positions within size. What Kafka preallocated and never wrote is zero and so ends the prefix.
func plausiblePrefix(entries []byte, size int64) int {
	var lastRel, lastPos int32
	lastRel = -1
	n := 0
	for ; len(entries) >= indexEntrySize; entries = entries[indexEntrySize:] {
		rel, pos := indexEntry(entries)
		if rel <= lastRel || pos <= lastPos || int64(pos) >= size {
			break
		}
		lastRel, lastPos = rel, pos
		n++
	}
	return n
}

// plausibleTimePrefix is plausiblePrefix for a time index whose segment's last offset is base+maxRel.
func plausibleTimePrefix(entries []byte, maxRel int64) int {
	lastTs, lastRel := int64(-1), int32(-1)
	n := 0
	for ; len(entries) >= timeEntrySize; entries = entries[timeEntrySize:] {
		ts, rel := timeEntry(entries)
		if ts <= lastTs || rel < lastRel || int64(rel) > maxRel || (ts == 0 && rel == 0 && n > 0) {
			break
		}
		lastTs, lastRel = ts, rel
		n++
	}
	return n
}
