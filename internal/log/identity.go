package log

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// partition.metadata names the topic that a directory's records belong to:
//
//	version: 0
//	topic_id: a1KoH3SRSvWgPv8eoZNDtg
//
// without a newline at the end.

func encodePartitionMetadata(id uuid.UUID) []byte {
	return []byte("version: 0\ntopic_id: " + id.String())
}

func decodePartitionMetadata(data []byte) (uuid.UUID, error) {
	lines := strings.Split(string(bytes.TrimRight(data, "\r\n")), "\n")
	if len(lines) < 2 {
		return uuid.Zero, fmt.Errorf("%d lines, want 2", len(lines))
	}
	v, err := metadataField(lines[0], "version:")
	if err != nil {
		return uuid.Zero, err
	}
	if n, err := strconv.ParseInt(v, 10, 32); err != nil || n < 0 {
		return uuid.Zero, fmt.Errorf("version %q, want 0 or more", v)
	}
	t, err := metadataField(lines[1], "topic_id:")
	if err != nil {
		return uuid.Zero, err
	}
	id, err := uuid.Parse(t)
	if err != nil {
		return uuid.Zero, err
	}
	if id == uuid.Zero {
		return uuid.Zero, errors.New("the topic id is zero")
	}
	return id, nil
}

func metadataField(line, key string) (string, error) {
	f := strings.Fields(line)
	if len(f) != 2 || f[0] != key {
		return "", fmt.Errorf("line %.40q is not %q and a value", line, key)
	}
	return f[1], nil
}

// readPartitionMetadata returns Zero when there is no file, or an empty one: a new replica's file is made durable a moment
// after the directory, so a power failure may leave it without contents.
func readPartitionMetadata(fsys vfs.FS, dir string) (uuid.UUID, error) {
	name := dir + "/" + partitionMetadataFile
	data, err := readFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && len(data) == 0) {
		return uuid.Zero, nil
	}
	if err != nil {
		return uuid.Zero, err
	}
	id, err := decodePartitionMetadata(data)
	if err != nil {
		return uuid.Zero, &corruptFileError{name: name, err: err}
	}
	return id, nil
}

func writePartitionMetadata(fsys vfs.FS, dir string, id uuid.UUID, d durability) error {
	return replaceFile(fsys, dir+"/"+partitionMetadataFile, encodePartitionMetadata(id), d)
}
