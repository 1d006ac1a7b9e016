package main

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// ballastStep is how much memory is given back at a time.
const ballastStep = 8 << 20

// ballast is memory held so that the server need not touch fresh memory. The host of a virtual machine may have taken back what
// the guest has free; the first touch of such a page then costs several times what a write to the page cache does, it is
// charged to the server, and it varies from run to run. Memory that this process has just given back is known to be there.
type ballast struct {
	mu       sync.Mutex // guards the rest
	mem      []byte
	owed     int64 // bytes that the server writes
	released int
}

// holdBallast takes as much memory as a server that writes n bytes will need, and a little more for what else it touches.
func holdBallast(n int64) (*ballast, error) {
	n += n/16 + 6*ballastStep
	n -= n % ballastStep
	mem, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("hold %d bytes: %w", n, err)
	}
	// In huge pages, because a file system that writes large folios asks for memory in pieces as large.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // without them it is less exact
	if err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err != nil {
		return nil, errors.Join(fmt.Errorf("touch %d bytes: %w", n, err), unix.Munmap(mem))
	}
	b := &ballast{mem: mem}
	b.give(4 * ballastStep)
	return b, nil
}

// give releases memory for n bytes that the server is about to write.
func (b *ballast) give(n int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owed += n
	for b.owed >= ballastStep && b.released+ballastStep <= len(b.mem) {
		// It fails only for bad arguments; the memory is then given back at the end.
		_ = unix.Madvise(b.mem[b.released:b.released+ballastStep], unix.MADV_DONTNEED)
		b.released += ballastStep
		b.owed -= ballastStep
	}
}

func (b *ballast) drop() {
	if b != nil {
		_ = unix.Munmap(b.mem) // it fails only for bad arguments
	}
}
