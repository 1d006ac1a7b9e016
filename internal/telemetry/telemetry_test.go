package telemetry

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestLoggerForms(t *testing.T) {
	var b bytes.Buffer
	log := NewLogger(&b, "json", slog.LevelInfo)
	log.Debug("not shown")
	log.Info("recovered log", "topic", "t", "took", 1500*time.Microsecond, "at", time.UnixMilli(7))
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, b.Bytes())
	}
	if got["msg"] != "recovered log" || got["took"] != "1.5ms" || got["at"] != "1970-01-01T00:00:00.007Z" {
		t.Errorf("got %v", got)
	}
	b.Reset()
	NewLogger(&b, "text", slog.LevelInfo).Info("hello", "topic", "t")
	if s := b.String(); !strings.Contains(s, "level=INFO msg=hello topic=t") {
		t.Errorf("text: %s", s)
	}
}

func TestParseLevel(t *testing.T) {
	if l, err := ParseLevel("Warn"); l != slog.LevelWarn || err != nil {
		t.Errorf("%v %v", l, err)
	}
	if _, err := ParseLevel("loud"); err == nil {
		t.Error("loud is no level")
	}
}

func get(t *testing.T, r *Registry, p *Phases, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(r, p, true).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Code, w.Body.String()
}

func TestHTTP(t *testing.T) {
	r, p := NewRegistry(), &Phases{}
	p.Register(r)
	var h Histogram
	h.Observe(time.Millisecond)
	r.OnScrape(func(e *Emitter) {
		e.Counter("kafka_network_requestmetrics_requests_total", "Requests.", 3, "request", "Produce")
		e.Counter("kafka_network_requestmetrics_requests_total", "Requests.", 4, "request", "Fetch")
		e.Histogram("x_seconds", "Times.", &h)
	})
	start := time.UnixMilli(1000)
	p.Enter(Starting, start)
	p.Enter(Recovery, start.Add(time.Second))
	p.Progress(17, 2000, "logs")
	if code, body := get(t, r, p, "/readyz"); code != 503 || body != "recovery: 17 of 2000 logs\n" {
		t.Errorf("readyz in recovery: %d %q", code, body)
	}
	if took := p.Enter(Running, start.Add(3*time.Second)); took != 2*time.Second {
		t.Errorf("recovery took %v", took)
	}
	if code, body := get(t, r, p, "/readyz"); code != 200 || body != "running\n" {
		t.Errorf("readyz when running: %d %q", code, body)
	}
	if code, _ := get(t, r, p, "/healthz"); code != 200 {
		t.Errorf("healthz: %d", code)
	}
	if code, _ := get(t, r, p, "/debug/pprof/cmdline"); code != 200 {
		t.Errorf("pprof: %d", code)
	}
	code, body := get(t, r, p, "/metrics")
	for _, want := range []string{
		`kafka_network_requestmetrics_requests_total{request="Produce"} 3`, `kafka_network_requestmetrics_requests_total{request="Fetch"} 4`,
		`gregor_phase{phase="running"} 1`, `gregor_phase{phase="recovery"} 0`, `gregor_phase_seconds{phase="recovery"} 2`,
		"x_seconds_count 1", `x_seconds_bucket{le="0.001048576"} 1`, `x_seconds_bucket{le="0.000524288"} 0`, "go_goroutines", "process_resident_memory_bytes",
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("metrics (%d) lack %s", code, want)
		}
	}
}

// TestHistogramBuckets compares the bucket of an observation with a search over the bounds.
func TestHistogramBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "d"))
		var h Histogram
		h.Observe(d)
		want := histogramBuckets - 1
		for i := range histogramBuckets - 1 {
			if d <= histogramBound(i) {
				want = i
				break
			}
		}
		if h.counts[want].Load() != 1 {
			t.Fatalf("%v is not in bucket %d", d, want)
		}
		if q := h.Quantile(0.5); q != histogramBound(want) {
			t.Fatalf("median of %v is %v, want %v", d, q, histogramBound(want))
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	var h Histogram
	b.ReportAllocs()
	for b.Loop() {
		h.Observe(37 * time.Microsecond)
	}
}
