package api

import "io"

// File is what a range of records lies in.
type File interface {
	io.ReaderAt
	// Fd is the descriptor for sendfile; ok is false when there is none, as for a file in memory. It stays valid until the
	// range is released.
	Fd() (fd uintptr, ok bool)
}

// Records are the records of a partition in a response: bytes in memory or a range of a file, or neither.
type Records struct {
	Bytes []byte
	// File, Pos and Len are a range of Len bytes from Pos. File is nil when the records are Bytes.
	File File
	Pos  int64
	Len  int
	// Release, when not nil, is told once that the records, in a file or in memory, are not needed any more.
	Release Releaser
}

// Releaser is told that something which was lent is not needed any more. It is an interface and not a function so that the
// lender, such as a segment with a reference count, can be passed without an allocation.
type Releaser interface{ Release() }

// Size is the number of bytes.
func (r Records) Size() int {
	if r.File != nil {
		return r.Len
	}
	return len(r.Bytes)
}

// FilePart is a range of a file within an encoded response: it stands behind the first At bytes of the buffer that the
// response was appended to, and behind the parts before it.
type FilePart struct {
	At      int
	File    File
	Pos     int64
	Len     int
	Release Releaser
}
