package log

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"gregor/internal/vfs"
)

// Names of the checkpoint files of a log dir.
const (
	recoveryPointFile = "recovery-point-offset-checkpoint"
	logStartFile      = "log-start-offset-checkpoint"
	highWatermarkFile = "replication-offset-checkpoint"
	cleanerFile       = "cleaner-offset-checkpoint"
)

// Checkpoint files are text:
//
//	0\n                      the version
//	COUNT\n
//	TOPIC PARTITION OFFSET\n COUNT times; in leader-epoch-checkpoint EPOCH START_OFFSET\n
//
// An empty file and one with only the version have no entries.

// checkpointLines checks version and count and hands each line's fields to add.
func checkpointLines(data []byte, fields int, add func(f [][]byte) error) error {
	line := 0
	next := func() ([]byte, bool) {
		if len(data) == 0 {
			return nil, false
		}
		line++
		l, rest, _ := bytes.Cut(data, []byte{'\n'})
		data = rest
		return bytes.TrimSuffix(l, []byte{'\r'}), true
	}
	l, ok := next()
	if !ok {
		return nil
	}
	if v, err := strconv.ParseInt(string(l), 10, 32); err != nil || v != 0 {
		return fmt.Errorf("line 1: version %.20q, want 0", l)
	}
	l, ok = next()
	if !ok {
		return nil
	}
	want, err := strconv.ParseInt(string(l), 10, 32)
	if err != nil || want < 0 {
		return fmt.Errorf("line 2: entry count %.20q is no number", l)
	}
	var got int64
	for {
		l, ok := next()
		if !ok {
			break
		}
		f := bytes.Fields(l)
		if len(f) != fields {
			return fmt.Errorf("line %d: %d fields, want %d", line, len(f), fields)
		}
		if err := add(f); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
		got++
	}
	if got != want {
		return fmt.Errorf("%d entries, and the second line says %d", got, want)
	}
	return nil
}

// decodeOffsets reads an offset checkpoint.
func decodeOffsets(data []byte) (map[TopicPartition]int64, error) {
	out := make(map[TopicPartition]int64, bytes.Count(data, []byte{'\n'}))
	var topic string // lines of one topic often follow one another: share the string
	err := checkpointLines(data, 3, func(f [][]byte) error {
		p, err := strconv.ParseInt(string(f[1]), 10, 32)
		if err != nil {
			return fmt.Errorf("partition %.20q is no number", f[1])
		}
		o, err := strconv.ParseInt(string(f[2]), 10, 64)
		if err != nil {
			return fmt.Errorf("offset %.30q is no number", f[2])
		}
		if string(f[0]) != topic {
			topic = string(f[0])
		}
		out[TopicPartition{topic, int32(p)}] = o
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// partitionOffset is one line of an offset checkpoint.
type partitionOffset struct {
	tp     TopicPartition
	offset int64
}

func encodeOffsets(lines []partitionOffset) []byte {
	b := make([]byte, 0, 16+32*len(lines))
	b = append(b, "0\n"...)
	b = strconv.AppendInt(b, int64(len(lines)), 10)
	b = append(b, '\n')
	for _, l := range lines {
		b = append(b, l.tp.Topic...)
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(l.tp.Partition), 10)
		b = append(b, ' ')
		b = strconv.AppendInt(b, l.offset, 10)
		b = append(b, '\n')
	}
	return b
}

// readOffsets reads an offset checkpoint; a missing file is an empty one.
func readOffsets(fsys vfs.FS, name string) (map[TopicPartition]int64, error) {
	data, err := readFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := decodeOffsets(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

// epochEntry is one line of a leader-epoch-checkpoint: from start on, batches are of the epoch.
type epochEntry struct {
	epoch int32
	start int64
}

func decodeEpochs(data []byte) ([]epochEntry, error) {
	var out []epochEntry
	err := checkpointLines(data, 2, func(f [][]byte) error {
		e, err := strconv.ParseInt(string(f[0]), 10, 32)
		if err != nil {
			return fmt.Errorf("epoch %.20q is no number", f[0])
		}
		o, err := strconv.ParseInt(string(f[1]), 10, 64)
		if err != nil {
			return fmt.Errorf("offset %.30q is no number", f[1])
		}
		if e < 0 || o < 0 {
			return fmt.Errorf("epoch %d from offset %d: neither can be negative", e, o)
		}
		out = append(out, epochEntry{int32(e), o})
		return nil
	})
	return out, err
}

func encodeEpochs(entries []epochEntry) []byte {
	b := append([]byte(nil), "0\n"...)
	b = strconv.AppendInt(b, int64(len(entries)), 10)
	b = append(b, '\n')
	for _, e := range entries {
		b = strconv.AppendInt(b, int64(e.epoch), 10)
		b = append(b, ' ')
		b = strconv.AppendInt(b, e.start, 10)
		b = append(b, '\n')
	}
	return b
}
