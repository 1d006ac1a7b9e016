package raft

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"gregor/internal/record"
)

// memLog is a Log in memory.
type memLog struct {
	mu      sync.Mutex
	batches []record.Batch
	start   int64
	base    int64 // where the log began when it was last restarted
	fail    error // what the next Append returns
}

func (l *memLog) end() int64 {
	if n := len(l.batches); n > 0 {
		return l.batches[n-1].NextOffset()
	}
	return l.base
}

func (l *memLog) StartOffset() int64 { l.mu.Lock(); defer l.mu.Unlock(); return l.start }
func (l *memLog) EndOffset() int64   { l.mu.Lock(); defer l.mu.Unlock(); return l.end() }

func (l *memLog) Epochs() ([]EpochStart, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []EpochStart
	for _, b := range l.batches {
		if b.LastOffset() < l.start {
			continue
		}
		if n := len(list); n == 0 || list[n-1].Epoch < b.PartitionLeaderEpoch() {
			list = append(list, EpochStart{b.PartitionLeaderEpoch(), max(b.BaseOffset(), l.start)})
		}
	}
	return list, nil
}

func (l *memLog) Append(data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fail; err != nil {
		return err
	}
	for len(data) > 0 {
		b, rest, err := record.Next(data)
		if err != nil {
			return err
		}
		if b.BaseOffset() != l.end() {
			return fmt.Errorf("append at %d to a log that ends at %d", b.BaseOffset(), l.end())
		}
		l.batches = append(l.batches, slices.Clone(b))
		data = rest
	}
	return nil
}

func (l *memLog) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return nil
}

func (l *memLog) Read(offset int64, maxBytes int) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < l.start || offset > l.end() {
		return nil, errors.New("offset out of range")
	}
	i, _ := slices.BinarySearchFunc(l.batches, offset, func(b record.Batch, o int64) int {
		if b.LastOffset() < o {
			return -1
		}
		return 1
	})
	var out []byte
	for ; i < len(l.batches) && (out == nil || len(out)+len(l.batches[i]) <= maxBytes); i++ {
		out = append(out, l.batches[i]...)
	}
	return out, nil
}

func (l *memLog) TruncateTo(offset int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := len(l.batches); n > 0 && l.batches[n-1].LastOffset() >= offset; n-- {
		l.batches = l.batches[:n-1]
	}
	return nil
}

func (l *memLog) Restart(offset int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batches, l.start, l.base = nil, offset, offset
	return nil
}

func (l *memLog) TrimTo(offset int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start = max(l.start, offset)
	return nil
}

func (l *memLog) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int64(0)
	for _, b := range l.batches {
		if b.LastOffset() >= l.start {
			n += int64(len(b))
		}
	}
	return n
}

func (l *memLog) Close() error { return nil }
