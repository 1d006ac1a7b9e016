package timeline

import (
	"fmt"
	"math"
	"sort"
)

// Latest, given as an offset to read at, means the current state.
const Latest = int64(math.MaxInt64)

// Registry is the common clock of a set of containers: the snapshots that they can return to.
type Registry struct {
	// snapshots in rising order of offset; the last one receives old values.
	snapshots []*snapshot
	newest    *snapshot // the last of snapshots, or nil
	spare     *snapshot // reused: a controller makes and drops one snapshot an event
}

// snapshot is one remembered point in time. The old values live in the containers; it only knows which.
type snapshot struct {
	offset  int64
	touched []container
}

// container is what a registry asks of its values, maps and lists.
type container interface {
	// revert puts back the newest tier of old values.
	revert()
	// forget drops the oldest tier of old values.
	forget()
}

// NewRegistry returns a registry without snapshots.
func NewRegistry() *Registry { return new(Registry) }

// Snapshot remembers the present state under offset. Doing so again at the newest offset, with no change in between
// or with some, keeps the earlier one and does nothing.
//
// It panics if offset is below the newest snapshot: that would be a log that goes backwards.
func (r *Registry) Snapshot(offset int64) {
	if r.newest != nil {
		if r.newest.offset == offset {
			return
		}
		if r.newest.offset > offset {
			panic(fmt.Sprintf("timeline: snapshot %d below the newest, %d", offset, r.newest.offset))
		}
	}
	s := r.spare
	if s == nil {
		s = new(snapshot)
	}
	r.spare = nil
	s.offset = offset
	r.snapshots = append(r.snapshots, s)
	r.newest = s
}

// Has says whether there is a snapshot at offset.
func (r *Registry) Has(offset int64) bool {
	i := r.search(offset)
	return i < len(r.snapshots) && r.snapshots[i].offset == offset
}

// Floor returns the offset of the newest snapshot at or below offset, or false if there is none.
func (r *Registry) Floor(offset int64) (int64, bool) {
	i := r.search(offset)
	if i < len(r.snapshots) && r.snapshots[i].offset == offset {
		return offset, true
	}
	if i == 0 {
		return 0, false
	}
	return r.snapshots[i-1].offset, true
}

// Newest returns the offset of the newest snapshot, or false if there is none.
func (r *Registry) Newest() (offset int64, ok bool) {
	if r.newest == nil {
		return 0, false
	}
	return r.newest.offset, true
}

// Oldest returns the offset of the oldest snapshot, or false if there is none.
func (r *Registry) Oldest() (offset int64, ok bool) {
	if len(r.snapshots) == 0 {
		return 0, false
	}
	return r.snapshots[0].offset, true
}

// Len returns how many snapshots there are.
func (r *Registry) Len() int { return len(r.snapshots) }

// Revert returns every container to the state of the snapshot at offset, which stays; newer snapshots are gone.
// It panics if there is no such snapshot.
func (r *Registry) Revert(offset int64) {
	i := r.search(offset)
	if i == len(r.snapshots) || r.snapshots[i].offset != offset {
		panic(fmt.Sprintf("timeline: revert to %d: no such snapshot", offset))
	}
	for j := len(r.snapshots) - 1; j >= i; j-- {
		s := r.snapshots[j]
		for _, c := range s.touched {
			c.revert()
		}
		s.release()
	}
	clear(r.snapshots[i+1:])
	r.snapshots = r.snapshots[:i+1]
	r.newest = r.snapshots[i]
}

// DeleteUpTo forgets all snapshots below offset; the one at offset, if any, stays. The current state doesn't change.
func (r *Registry) DeleteUpTo(offset int64) {
	n := r.search(offset)
	if n == 0 {
		return
	}
	for _, s := range r.snapshots[:n] {
		for _, c := range s.touched {
			c.forget()
		}
		s.release()
		r.spare = s
	}
	kept := copy(r.snapshots, r.snapshots[n:])
	clear(r.snapshots[kept:])
	r.snapshots = r.snapshots[:kept]
	if kept == 0 {
		r.newest = nil
	}
}

// search returns the index of the first snapshot at or above offset.
func (r *Registry) search(offset int64) int {
	return sort.Search(len(r.snapshots), func(i int) bool { return r.snapshots[i].offset >= offset })
}

// check panics unless offset is Latest or that of a snapshot: an answer as of any other offset would be a guess.
func (r *Registry) check(offset int64) {
	if offset != Latest && !r.Has(offset) {
		panic(fmt.Sprintf("timeline: read at %d: no such snapshot", offset))
	}
}

// maxKeptTouched bounds the slice that a snapshot keeps for reuse.
const maxKeptTouched = 64

func (s *snapshot) release() {
	clear(s.touched)
	s.touched = s.touched[:0]
	if cap(s.touched) > maxKeptTouched {
		s.touched = nil
	}
}

// shift removes the first element of a short slice, in place, and keeps its capacity.
func shift[T any](s []T) []T {
	var zero T
	n := copy(s, s[1:])
	s[n] = zero
	return s[:n]
}

// pop removes the last element of a slice and lets go of what it referred to.
func pop[T any](s []T) []T {
	var zero T
	s[len(s)-1] = zero
	return s[:len(s)-1]
}
