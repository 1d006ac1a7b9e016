package vfs

import (
	"io"
	"io/fs"
	"time"
)

// FS is a file system. Errors wrap the io/fs sentinels (fs.ErrNotExist, fs.ErrExist) and, for a full disk, syscall.ENOSPC.
type FS interface {
	// Open opens an existing file for reading only.
	Open(name string) (File, error)
	// OpenReadWrite opens an existing file for reading and writing.
	OpenReadWrite(name string) (File, error)
	// Create makes the file, or empties it when it exists, and opens it for reading and writing. The new directory entry is
	// durable only after SyncDir of its parent.
	Create(name string) (File, error)
	// Rename moves oldname over newname at once: after a crash newname holds the one or the other, and which is only
	// settled by SyncDir of the parent.
	Rename(oldname, newname string) error
	// Remove deletes a file or an empty directory.
	Remove(name string) error
	// RemoveAll deletes a tree; it is no error when there is none.
	RemoveAll(name string) error
	// MkdirAll makes a directory and its parents.
	MkdirAll(name string) error
	// ReadDir lists a directory in name order.
	ReadDir(name string) ([]fs.DirEntry, error)
	// Stat describes a file or directory.
	Stat(name string) (fs.FileInfo, error)
	// Chmod sets the permission bits (snapshots are made read-only).
	Chmod(name string, mode fs.FileMode) error
	// Chtimes sets the modification time (the cleaner keeps that of the segments it replaces).
	Chtimes(name string, mtime time.Time) error
	// SyncDir makes the entries of a directory (creations, renames, removals) durable.
	SyncDir(name string) error
	// SyncAll makes everything durable that was written to the file system that holds name, entries and contents. It is for
	// many small files at once, where a sync of each would cost more.
	SyncAll(name string) error
	// Lock takes Kafka's lock on the file (fcntl, exclusive, whole file), making the file when there is none. It fails at
	// once with ErrLocked when another process, or another holder in this one, has it. Closing the result lets go of the lock and leaves the file.
	Lock(name string) (io.Closer, error)
	// Free tells how many bytes an ordinary user may still write on the file system that holds name, and its size.
	Free(name string) (free, total int64, err error)
}

// File is an open file. ReadAt and WriteAt may be called concurrently on disjoint ranges.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Name is the path the file was opened by.
	Name() string
	// Size is the current length in bytes.
	Size() (int64, error)
	// Truncate cuts or, with zeros, extends the file; the length is durable after Sync.
	Truncate(size int64) error
	// Sync makes contents and length durable.
	Sync() error
	// Reserve asks for room on the disk for what will be written to [from, from+n), which lies behind the end; the length stays
	// what it is. It is a hint: a file system that gains nothing from it, or has little room left, does nothing. Truncate gives
	// back what was not written to.
	Reserve(from, n int64)
	// Fd is the descriptor for sendfile, or ok=false when the file has none (in memory). It is valid until Close.
	Fd() (fd uintptr, ok bool)
}
