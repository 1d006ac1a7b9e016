package log

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"testing"
	"unicode/utf8"

	"gregor/internal/clock"
	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

func FuzzOffsetCheckpoint(f *testing.F) {
	f.Add([]byte("0\n2\na 0 5\nb 1 7\n"))
	f.Add([]byte(""))
	f.Add([]byte("0\n"))
	f.Add([]byte("1\n0\n"))
	f.Add([]byte("0\n1\na 0 5\nb 1 7\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeOffsets(data)
		if err != nil {
			return
		}
		var lines []partitionOffset
		for tp, o := range m {
			lines = append(lines, partitionOffset{tp, o})
		}
		again, err := decodeOffsets(encodeOffsets(lines))
		if err != nil || len(again) != len(m) {
			t.Errorf("%q: %v %v", data, again, err)
		}
	})
}

func FuzzEpochCheckpoint(f *testing.F) {
	f.Add([]byte("0\n2\n1 0\n2 217\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := decodeEpochs(data)
		if err != nil {
			return
		}
		again, err := decodeEpochs(encodeEpochs(entries))
		if err != nil || len(again) != len(entries) {
			t.Errorf("%q: %v %v", data, again, err)
		}
	})
}

func FuzzSnapshot(f *testing.F) {
	e := newProducerEntry()
	e.epoch, e.coordEpoch, e.txnFirst = 3, 1, 99
	e.add(batchMeta{lastSeq: 5, offsetDelta: 2, lastOffset: 100, timestamp: 1})
	f.Add(encodeSnapshot(nil), false)
	f.Add(encodeSnapshot(map[int64]*producerEntry{7: &e}), true)
	f.Fuzz(func(t *testing.T, data []byte, fixCRC bool) {
		if fixCRC && len(data) >= snapshotHeaderSize {
			binary.BigEndian.PutUint32(data[2:], crc32.Checksum(data[6:], castagnoli))
		}
		entries, err := decodeSnapshot(data)
		if err != nil {
			return
		}
		if again, err := decodeSnapshot(encodeSnapshot(entries)); err != nil || len(again) != len(entries) {
			t.Errorf("%x: %v %v", data, again, err)
		}
	})
}

func FuzzTxnIndex(f *testing.F) {
	f.Add(appendTxnEntry(nil, abortedTxn{1, 2, 3, 4}), int64(0))
	f.Fuzz(func(t *testing.T, data []byte, base int64) {
		all, err := decodeTxnIndex(data, base)
		if err != nil {
			return
		}
		var again []byte
		for _, a := range all {
			again = appendTxnEntry(again, a)
		}
		if !bytes.HasPrefix(data, again) || len(data)-len(again) >= txnEntrySize {
			t.Errorf("%x: %x", data, again)
		}
	})
}

func FuzzMetaProperties(f *testing.F) {
	f.Add([]byte("#\n#Mon Nov 30 02:26:30 UTC 2026\nnode.id=1\ndirectory.id=6tbirqblQvWAaPi5b8F2HQ\nversion=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAQ\n"))
	f.Add([]byte("broker.id : 3\\\n 4\nversion=0"))
	f.Add([]byte("cluster.id=\\u0041\\t"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := DecodeMetaProperties(data)
		if err != nil || !utf8.ValidString(m.ClusterID) {
			return
		}
		again, err := DecodeMetaProperties(m.Encode(testStart))
		if err != nil || again != m {
			t.Errorf("%q: %+v, again %+v, %v", data, m, again, err)
		}
	})
}

func FuzzPartitionMetadata(f *testing.F) {
	f.Add([]byte("version: 0\ntopic_id: a1KoH3SRSvWgPv8eoZNDtg"))
	f.Add([]byte("version: 0\r\ntopic_id: a1KoH3SRSvWgPv8eoZNDtg\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		id, err := decodePartitionMetadata(data)
		if err != nil {
			return
		}
		if again, err := decodePartitionMetadata(encodePartitionMetadata(id)); err != nil || again != id || id == uuid.Zero {
			t.Errorf("%q: %v %v", data, id, err)
		}
	})
}

func FuzzNames(f *testing.F) {
	f.Add("topic-0")
	f.Add("my.topic-1.0123456789abcdef0123456789abcdef-delete")
	f.Add("00000000000000000012.log")
	f.Fuzz(func(t *testing.T, name string) {
		if tp, kind, err := parseDirName(name); err == nil {
			if tp.Partition < 0 || tp.Topic == "" {
				t.Errorf("%q: %+v", name, tp)
			}
			if kind == kindLog && tp.String() == name {
				if again, _, err := parseDirName(suffixedDirName(tp, testTopicID, kindStray)); err != nil || (len(name) < 180 && again != tp) {
					t.Errorf("%q: %+v %v", name, again, err)
				}
			}
		}
		if o, _, err := parseOffsetName(name); err == nil && o < 0 {
			t.Errorf("%q: %d", name, o)
		}
		decodeCleanShutdown([]byte(name))
	})
}

// FuzzLoad opens a partition whose files hold anything at all, after a clean stop and after a crash: it must not panic, what it
// gives out must be readable or refused, and it must be possible to go on.
func FuzzLoad(f *testing.F) {
	log := append(batch(1, "a"), producerBatch(2, 7, 0, 0, true, "b", "c")...)
	record.Batch(log[len(batch(1, "a")):]).SetBaseOffset(1)
	var index [indexEntrySize]byte
	putIndexEntry(index[:], 2, int32(len(batch(1, "a"))))
	var times [timeEntrySize]byte
	putTimeEntry(times[:], 3, 2)
	f.Add(log, index[:], times[:], appendTxnEntry(nil, abortedTxn{7, 1, 2, 3}), encodeSnapshot(nil), true)
	f.Add(log[:len(log)-5], []byte{}, make([]byte, 24), []byte{1}, []byte("x"), false)
	f.Fuzz(func(t *testing.T, logData, index, times, txn, snapshot []byte, clean bool) {
		mem := vfs.NewMem()
		format(t, mem, "/d")
		mem.MkdirAll("/d/a-0")
		for name, data := range map[string][]byte{"00000000000000000000.log": logData, "00000000000000000000.index": index,
			"00000000000000000000.timeindex": times, "00000000000000000000.txnindex": txn, "00000000000000000003.snapshot": snapshot} {
			if err := writeFile(mem, "/d/a-0/"+name, data, true); err != nil {
				t.Fatal(err)
			}
		}
		if clean {
			writeFile(mem, "/d/"+cleanShutdownFile, nil, true)
		}
		w := &world{t: t, fs: mem, clock: clock.NewManual(testStart), dirs: []string{"/d"}, cfg: DefaultConfig()}
		m, err := w.tryOpen()
		if err != nil {
			t.Fatal(err)
		}
		l := m.Log(TopicPartition{Topic: "a"})
		end := l.EndOffset()
		for at := l.LogStartOffset(); at < end; {
			f, err := l.Read(at, 1<<20, ReadLogEnd, true)
			if err != nil {
				break
			}
			data, err := f.Slice.Bytes(nil)
			f.Slice.Release()
			if err != nil {
				t.Fatal(err)
			}
			e, _, err := record.NextEntry(data)
			if err != nil || e == nil {
				break
			}
			if e.LastOffset() < at {
				t.Fatalf("batch up to %d where %d was asked for", e.LastOffset(), at)
			}
			at = e.LastOffset() + 1
		}
		l.OffsetForTimestamp(5)
		l.OffsetForTimestamp(TimestampMax)
		l.Read(0, 100, ReadCommitted, true)
		if end < 1<<40 {
			if _, err := l.Append(batch(testStart.UnixMilli(), "more"), AppendOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if m.Dirs()[0].Offline != nil {
			t.Fatalf("offline: %v", m.Dirs()[0].Offline)
		}
		end = l.EndOffset()
		if err := m.Close(context.Background(), 1); err != nil {
			t.Fatal(err)
		}
		if m, err = w.tryOpen(); err != nil {
			t.Fatal(err)
		}
		if l := m.Log(TopicPartition{Topic: "a"}); l.EndOffset() != end {
			t.Errorf("end %d, and %d before the clean stop", l.EndOffset(), end)
		}
	})
}
