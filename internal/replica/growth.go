package replica

import "sync"

// growth remembers how many bytes lie between the ends of the last appends, so that those who wait for committed bytes can be
// told how many came when the high watermark moves.
type growth struct {
	mu    sync.Mutex // guards marks
	marks []growthMark
}

type growthMark struct {
	end   int64 // offset
	bytes int64
}

// maxGrowthMarks bounds the memory of a partition whose high watermark stands still. What comes after them counts with the last.
const maxGrowthMarks = 256

func (g *growth) add(end, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.marks); n > 0 && (n >= maxGrowthMarks || g.marks[n-1].end >= end) {
		g.marks[n-1].end = max(g.marks[n-1].end, end)
		g.marks[n-1].bytes += bytes
		return
	}
	g.marks = append(g.marks, growthMark{end, bytes})
}

// below takes out what lies below the high watermark and returns how many bytes that is.
func (g *growth) below(hw int64) (bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for n < len(g.marks) && g.marks[n].end <= hw {
		bytes += g.marks[n].bytes
		n++
	}
	g.marks = append(g.marks[:0], g.marks[n:]...)
	return bytes
}
