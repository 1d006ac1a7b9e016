package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"gregor/internal/vfs"
)

// maxSmallFile bounds what readFile takes into memory: the files it is for are checkpoints, snapshots of producers and the
// like. 100,000 partitions are about 10 MB of checkpoint.
const maxSmallFile = 1 << 30

// readFile reads a whole small file.
func readFile(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Most are tiny, and there may be two for each of 100,000 partitions: spare the stat.
	var small [512]byte
	if n, err := f.ReadAt(small[:], 0); err == io.EOF && n < len(small) {
		return append([]byte{}, small[:n]...), nil
	} else if err != nil && err != io.EOF {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxSmallFile {
		return nil, fmt.Errorf("read %s: %d bytes are more than the %d it can have", name, size, maxSmallFile)
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if n < len(b) && err != nil && err != io.EOF {
		return nil, err
	}
	return b[:n], nil
}

// durability says what replaceFile makes durable before it returns.
type durability uint8

const (
	// syncAll syncs the file before the rename and the directory after it.
	syncAll durability = iota
	// syncFile syncs the file, so that the name never shows an incomplete one after a crash, but not the directory.
	syncFile
	// syncNone syncs nothing: only the death of the process is survived.
	syncNone
)

// ReplaceFile replaces a small file at once and durably: after a crash it has the old contents or the new.
func ReplaceFile(fsys vfs.FS, name string, data []byte) error {
	return replaceFile(fsys, name, data, syncAll)
}

// replaceFile writes name whole: to name.tmp first, renamed over it.
func replaceFile(fsys vfs.FS, name string, data []byte, d durability) error {
	tmp := name + suffixTmp
	if err := writeFile(fsys, tmp, data, d != syncNone); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	if d == syncAll {
		return fsys.SyncDir(path.Dir(name))
	}
	return nil
}

// writeFile makes a file with the given contents.
func writeFile(fsys vfs.FS, name string, data []byte, sync bool) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	if len(data) > 0 {
		_, err = f.WriteAt(data, 0)
	}
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// syncPath makes the contents of an existing file durable.
func syncPath(fsys vfs.FS, name string) error {
	f, err := fsys.OpenReadWrite(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func removeIfExists(fsys vfs.FS, name string) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func parentDir(name string) string { return path.Dir(name) }
