package record

import "runtime"

type memStats struct{ total uint64 }

func (m *memStats) read() {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m.total = s.TotalAlloc
}
