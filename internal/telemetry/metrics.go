package telemetry

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Registry knows where the metrics of a process are to be read.
type Registry struct {
	reg *prometheus.Registry

	mu    sync.Mutex // guards funcs
	funcs []func(*Emitter)
}

// NewRegistry returns a registry that has the Go runtime's and the process's metrics.
func NewRegistry() *Registry {
	r := &Registry{reg: prometheus.NewRegistry()}
	r.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), (*scraper)(r))
	return r
}

// OnScrape registers a function that emits samples, called at every scrape, one scrape at a time.
func (r *Registry) OnScrape(f func(e *Emitter)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.funcs = append(r.funcs, f)
}

// scraper is the Registry as Prometheus sees it. It announces no names in advance, because the labels (APIs, topics,
// listeners) come and go.
type scraper Registry

// Describe announces nothing, which makes the collector an unchecked one.
func (s *scraper) Describe(chan<- *prometheus.Desc) {}

// Collect calls the registered functions.
func (s *scraper) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &Emitter{ch: ch, descs: make(map[string]*prometheus.Desc)}
	for _, f := range s.funcs {
		f(e)
	}
}

// Emitter takes samples during one scrape. Labels are given as name, value, name, value; a name must always come with the
// same label names.
type Emitter struct {
	ch    chan<- prometheus.Metric
	descs map[string]*prometheus.Desc
}

func (e *Emitter) desc(name, help string, labels []string) (*prometheus.Desc, []string) {
	values := make([]string, 0, len(labels)/2)
	for i := 1; i < len(labels); i += 2 {
		values = append(values, labels[i])
	}
	d := e.descs[name]
	if d == nil {
		names := make([]string, 0, len(labels)/2)
		for i := 0; i < len(labels); i += 2 {
			names = append(names, labels[i])
		}
		d = prometheus.NewDesc(name, help, names, nil)
		e.descs[name] = d
	}
	return d, values
}

// Counter emits a value that only grows.
func (e *Emitter) Counter(name, help string, v float64, labels ...string) {
	d, values := e.desc(name, help, labels)
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, values...)
}

// Gauge emits a value that goes up and down.
func (e *Emitter) Gauge(name, help string, v float64, labels ...string) {
	d, values := e.desc(name, help, labels)
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, values...)
}

// Histogram emits what a Histogram has counted, in seconds.
func (e *Emitter) Histogram(name, help string, h *Histogram, labels ...string) {
	d, values := e.desc(name, help, labels)
	buckets := make(map[float64]uint64, histogramBuckets)
	var total uint64
	for i := range h.counts {
		total += h.counts[i].Load()
		if i < histogramBuckets-1 {
			buckets[histogramBound(i).Seconds()] = total
		}
	}
	e.ch <- prometheus.MustNewConstHistogram(d, total, time.Duration(h.sum.Load()).Seconds(), buckets, values...)
}

// histogramBuckets: bounds double from 16 us on, so that the last one before infinity is 8.6 s. Requests of one node lie
// between, and 21 words a histogram let every API have its own.
const (
	histogramBuckets = 21
	histogramShift   = 14 // 1 << 14 ns is 16.4 us
)

func histogramBound(i int) time.Duration { return time.Duration(1) << (histogramShift + i) }

// Histogram counts durations in buckets whose bounds double. Observing costs two atomic additions. The zero value is empty.
type Histogram struct {
	counts [histogramBuckets]atomic.Uint64
	sum    atomic.Int64 // nanoseconds
}

// Observe counts one duration.
func (h *Histogram) Observe(d time.Duration) {
	if d < 0 {
		d = 0
	}
	i := 0
	if d > 1<<histogramShift {
		i = bits.Len64(uint64(d-1)) - histogramShift
	}
	h.counts[min(i, histogramBuckets-1)].Add(1)
	h.sum.Add(int64(d))
}

// Count is how many durations were observed.
func (h *Histogram) Count() uint64 {
	var n uint64
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

// Quantile is an upper bound of the q-quantile (0 to 1), at the precision of the buckets; 0 when nothing was observed.
func (h *Histogram) Quantile(q float64) time.Duration {
	want := uint64(math.Ceil(q * float64(h.Count())))
	if want == 0 {
		return 0
	}
	var n uint64
	for i := range h.counts {
		if n += h.counts[i].Load(); n >= want {
			return histogramBound(i)
		}
	}
	return histogramBound(histogramBuckets - 1)
}
