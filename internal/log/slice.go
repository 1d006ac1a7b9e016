package log

import (
	"io"

	"gregor/internal/vfs"
)

// Slice is a run of bytes of one segment file. It stays readable until Release whatever becomes of the segment, except that a
// follower's truncation may cut the bytes away under it: a read then comes up short.
type Slice struct {
	file  vfs.File
	owner *cachedFile
	cache *fileCache
	pos   int64
	n     int
}

// Len is the number of bytes.
func (s Slice) Len() int { return s.n }

// Pos is where in the file the slice begins.
func (s Slice) Pos() int64 { return s.pos }

// Fd is the descriptor of the file for sendfile, ok=false when it has none. It is valid until Release.
func (s Slice) Fd() (fd uintptr, ok bool) {
	if s.file == nil {
		return 0, false
	}
	return s.file.Fd()
}

// ReaderAt reads the file; positions are the file's, so the slice begins at Pos. nil for an empty slice.
func (s Slice) ReaderAt() io.ReaderAt {
	if s.file == nil {
		return nil
	}
	return s.file
}

// Bytes appends the slice's bytes to dst.
func (s Slice) Bytes(dst []byte) ([]byte, error) {
	if s.n == 0 {
		return dst, nil
	}
	at := len(dst)
	if cap(dst)-at < s.n {
		grown := make([]byte, at, at+s.n)
		copy(grown, dst)
		dst = grown
	}
	dst = dst[:at+s.n]
	n, err := s.file.ReadAt(dst[at:], s.pos)
	if n == s.n {
		err = nil
	} else if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return dst[:at+n], err
}

// Release lets go of the file. It must be called exactly once; an empty slice may be released any number of times.
func (s Slice) Release() {
	if s.owner != nil {
		s.owner.release(s.cache)
	}
}
