package controller

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
)

// thinLog commits and forgets.
type thinLog struct{ end int64 }

func (l *thinLog) PrepareAppend(_ int32, records []message.Versioned) (int64, error) {
	l.end += int64(len(records))
	return l.end - 1, nil
}
func (l *thinLog) SchedulePreparedAppend() {}
func (l *thinLog) LogEndOffset() int64     { return l.end }
func (l *thinLog) Resign(int32)            {}
func (l *thinLog) KRaftVersion() int16     { return 1 }
func (l *thinLog) UpgradeKRaftVersion(int32, int16, bool) (int64, error) {
	return -1, nil
}

// BenchmarkHundredThousandPartitions creates 100,000 partitions with 3 replicas each, then takes a broker out of service.
func BenchmarkHundredThousandPartitions(b *testing.B) {
	for b.Loop() {
		w := newWorld(b, nil)
		log := &thinLog{}
		w.core = NewCore(w.opts, log)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		step := func(f func()) {
			f()
			w.core.HandleCommit(w.now, log.end-1, log.end-1, nil)
		}
		step(func() { w.core.HandleLeaderChange(w.now, 1, 1) })
		w.hold = true
		for id := range int32(3) {
			step(func() { w.send(brokerRequest(id+1, ""), func(kmsg.Response, error) {}) })
			w.log.end = log.end
			step(func() { w.send(heartbeatOf(w, id+1, false), func(kmsg.Response, error) {}) })
		}
		start := time.Now()
		for i := range 1000 {
			step(func() { w.send(createRequest(fmt.Sprint("topic-", i), 100, 3), func(kmsg.Response, error) {}) })
		}
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/create")
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/100_000, "B/partition")
		if n := w.core.topics.count.Get(); n != 100_000 {
			b.Fatalf("%d partitions", n)
		}
		start = time.Now()
		step(func() { w.send(heartbeatOf(w, 2, true), func(kmsg.Response, error) {}) })
		b.ReportMetric(float64(time.Since(start).Microseconds())/1000, "ms/fence")
	}
}

func heartbeatOf(w *world, id int32, fence bool) *kmsg.BrokerHeartbeatRequest {
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.BrokerID, req.WantFence, req.CurrentMetadataOffset = id, fence, w.log.end
	if b, ok := w.core.cluster.brokers.Get(id); ok {
		req.BrokerEpoch = b.epoch
	}
	return req
}
