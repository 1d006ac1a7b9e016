package log

import (
	"errors"
	"fmt"
	"io"
	"path"

	"gregor/internal/vfs"
)

// LockDirs takes the locks of log directories for a node that has to use them before it can open them: whoever opens the
// metadata log first must know that no other process has it. Give the result to Open in Options.Locks, or close it.
func LockDirs(fsys vfs.FS, dirs []string) (Locks, error) {
	locks := Locks{}
	for _, d := range dirs {
		l, err := fsys.Lock(path.Clean(d) + "/" + lockFile)
		switch {
		case errors.Is(err, vfs.ErrLocked):
			return nil, errors.Join(fmt.Errorf("%s is in use by another node: %w", d, err), locks.Close())
		case err != nil:
			continue // a directory that fails is for Open to judge: others may be well
		}
		locks[path.Clean(d)] = l
	}
	return locks, nil
}

// Locks are the locks of directories, by path.
type Locks map[string]io.Closer

// take gives the lock of a directory away, if it is there.
func (l Locks) take(dir string) io.Closer {
	lock := l[dir]
	delete(l, dir)
	return lock
}

// Close lets go of the locks that nobody has taken over.
func (l Locks) Close() error {
	var errs []error
	for d, lock := range l {
		errs = append(errs, lock.Close())
		delete(l, d)
	}
	return errors.Join(errs...)
}

// PreviousBrokerEpoch is the broker epoch in the clean-shutdown markers of directories that have not been opened yet: -1 when
// one of them has none, or they differ. Open takes the markers away.
func PreviousBrokerEpoch(fsys vfs.FS, dirs []string) int64 {
	epoch := int64(-1)
	for i, d := range dirs {
		data, err := readFile(fsys, path.Clean(d)+"/"+cleanShutdownFile)
		if err != nil {
			return -1
		}
		e := decodeCleanShutdown(data)
		if i > 0 && e != epoch {
			return -1
		}
		epoch = e
	}
	return epoch
}
