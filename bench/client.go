package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gregor/client"
)

// The clients are measured against one gregor node, each run in a process of its own, so that CPU time, allocations and memory
// are the client's alone.

// clientLibs are measured in turn.
var clientLibs = []string{"gregor", "franz-go", "sarama"}

// clientJob is what a process of its own does: produce or consume so many records.
type clientJob struct {
	Lib        string
	Consume    bool
	Addr       string
	Topic      string
	Partitions int
	Records    int
	Size       int
	Codec      string
	// Slow is how long a consumer reads a record each millisecond, 0 for as fast as it can.
	Slow time.Duration
	// Profile is a file for a CPU profile, "" for none.
	Profile string
}

// clientResult is what it took.
type clientResult struct {
	Records int
	Wall    time.Duration
	CPU     time.Duration
	Mallocs uint64
	PeakRSS int64
}

// clientEnv holds the job of a process that is to be a client.
const clientEnv = "GREGOR_BENCH_CLIENT"

// clientLib is how a library does the two jobs. ready is called when all that is to be measured lies ahead.
type clientLib interface {
	produce(ctx context.Context, j *clientJob, values [][]byte, ready func()) error
	consume(ctx context.Context, j *clientJob, ready func(), each func(value []byte) bool) error
}

func clientLibOf(name string) (clientLib, error) {
	switch name {
	case "gregor":
		return gregorLib{}, nil
	case "franz-go":
		return franzLib{}, nil
	case "sarama":
		return saramaLib{}, nil
	}
	return nil, fmt.Errorf("no client %q", name)
}

// clientMain runs the job in the environment, if there is one.
func clientMain() (bool, error) {
	text := os.Getenv(clientEnv)
	if text == "" {
		return false, nil
	}
	var j clientJob
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return true, err
	}
	lib, err := clientLibOf(j.Lib)
	if err != nil {
		return true, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	source := newValues(1)
	values := make([][]byte, 4096)
	for i := range values {
		values[i] = source.next(j.Size)
	}
	var res clientResult
	var start time.Time
	var cpu time.Duration
	var before, after runtime.MemStats
	ready := func() {
		runtime.GC()
		if j.Profile != "" {
			if f, err := os.Create(j.Profile); err == nil {
				_ = pprof.StartCPUProfile(f) // without it the figures are good all the same
			}
		}
		runtime.ReadMemStats(&before)
		start, cpu = time.Now(), ownCPU()
	}
	if j.Consume {
		bytes := 0
		err = lib.consume(ctx, &j, ready, func(value []byte) bool {
			bytes += len(value)
			res.Records++
			if j.Slow > 0 {
				time.Sleep(time.Millisecond)
				return time.Since(start) < j.Slow
			}
			return res.Records < j.Records
		})
		if err == nil && j.Slow == 0 && bytes != j.Records*j.Size {
			err = fmt.Errorf("consumed %d bytes in %d records, want %d", bytes, res.Records, j.Records*j.Size)
		}
	} else {
		err = lib.produce(ctx, &j, values, ready)
		res.Records = j.Records
	}
	if err != nil {
		return true, err
	}
	pprof.StopCPUProfile()
	res.Wall, res.CPU = time.Since(start), ownCPU()-cpu
	runtime.ReadMemStats(&after)
	res.Mallocs = after.Mallocs - before.Mallocs
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return true, err
	}
	res.PeakRSS = usage.Maxrss << 10
	return true, json.NewEncoder(os.Stdout).Encode(res)
}

// runClient runs a job in a process of its own.
func runClient(j clientJob) (clientResult, error) {
	var res clientResult
	text, err := json.Marshal(j)
	if err != nil {
		return res, err
	}
	self, err := os.Executable()
	if err != nil {
		return res, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), clientEnv+"="+string(text))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return res, fmt.Errorf("%s: %w\n%s", j.Lib, err, stderr.String())
	}
	return res, json.Unmarshal(out, &res)
}

// clientLoads are the workloads of clients.
type clientWork struct {
	size, records int
	codec         string
}

func (w clientWork) name(what string) string {
	return fmt.Sprintf("client-%s-%d-%s", what, w.size, w.codec)
}

func clientWorks() (out []clientWork) {
	for _, codec := range []string{"none", "lz4", "zstd"} {
		out = append(out, clientWork{100, 2_000_000, codec}, clientWork{1024, 300_000, codec})
	}
	return out
}

// clients measures the libraries.
func (b *bench) clients(k kind) error {
	works := slices.DeleteFunc(clientWorks(), func(w clientWork) bool { return !b.wants(w.name("produce"), w.name("consume")) })
	if k.name != "gregor" || len(works) == 0 {
		return nil
	}
	s, err := b.create(k)
	if err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	admin, err := s.firstAnswer(startLimit)
	if err != nil {
		return err
	}
	defer admin.close()
	const partitions = 4
	for _, w := range works {
		records := b.scaledCount(w.records)
		job := clientJob{Addr: fmt.Sprintf("127.0.0.1:%d", s.port), Partitions: partitions, Records: records, Size: w.size, Codec: w.codec}
		var last topic
		for i := range clientLibs {
			lib := clientLibs[(i+b.round)%len(clientLibs)]
			t, err := admin.newTopic(fmt.Sprintf("%s-%s-%d", w.name("produce"), lib, b.round), partitions)
			if err != nil {
				return err
			}
			job.Lib, job.Topic, job.Consume = lib, t.name, false
			if err := b.noteClient(w.name("produce"), job); err != nil {
				return err
			}
			if last.name != "" {
				if err := admin.deleteTopic(last); err != nil {
					return err
				}
			}
			last = t
		}
		for i := range clientLibs {
			job.Lib, job.Topic, job.Consume = clientLibs[(i+b.round)%len(clientLibs)], last.name, true
			if err := b.noteClient(w.name("consume"), job); err != nil {
				return err
			}
		}
		if w.codec == "lz4" && w.size == 1024 {
			for _, lib := range clientLibs {
				job.Lib, job.Slow = lib, 3*time.Second
				res, err := runClient(job)
				if err != nil {
					return err
				}
				b.put(lib, "client-slow", "peak_rss", float64(res.PeakRSS)/(1<<20), "MiB")
			}
		}
		if err := admin.deleteTopic(last); err != nil {
			return err
		}
	}
	return s.discard()
}

func (b *bench) noteClient(name string, j clientJob) error {
	if !b.wants(name) && j.Consume {
		return nil
	}
	if b.profiles != "" {
		j.Profile = filepath.Join(b.profiles, name+"-"+j.Lib+".pprof")
	}
	res, err := runClient(j)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	n := float64(res.Records)
	b.put(j.Lib, name, "rate", n/res.Wall.Seconds(), "records/s")
	b.put(j.Lib, name, "per_cpu", n/res.CPU.Seconds(), "records/CPU-s")
	b.put(j.Lib, name, "cpu", res.CPU.Seconds()/(n*float64(j.Size)/(1<<30)), "s/GiB")
	b.put(j.Lib, name, "allocs", float64(res.Mallocs)/n, "/record")
	b.put(j.Lib, name, "peak_rss", float64(res.PeakRSS)/(1<<20), "MiB")
	return nil
}

// clientHeading stands before the table of the clients.
const clientHeading = `
## Clients

gregor's client beside other clients in Go, against the same gregor node: 4 partitions, values of 100 and 1,024 bytes that compress
like events, acks from all replicas, idempotent, otherwise the libraries' defaults. Each run is a process of its own; CPU,
allocations and memory are the client's. The slow consumer reads a record a millisecond for three seconds.

`

// clientTable is the medians of the clients in Markdown, "" if none were measured.
func clientTable(figures []figure) string {
	type key struct{ lib, workload, name string }
	all := map[key][]float64{}
	var workloads []string
	for _, f := range figures {
		if !strings.HasPrefix(f.workload, "client-") {
			continue
		}
		k := key{f.server, f.workload, f.name}
		if all[k] == nil && f.server == clientLibs[0] && f.name == "per_cpu" {
			workloads = append(workloads, f.workload)
		}
		all[k] = append(all[k], f.value)
	}
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("| client | records per CPU-second | of franz-go's | records/s | CPU s/GiB | allocations a record | peak MiB |\n|---|---:|---:|---:|---:|---:|---:|\n")
	for _, w := range workloads {
		for _, lib := range clientLibs {
			get := func(lib, name string) float64 {
				if v := all[key{lib, w, name}]; len(v) > 0 {
					return median(v)
				}
				return 0
			}
			ratio := ""
			if base := get("franz-go", "per_cpu"); base > 0 {
				ratio = number(get(lib, "per_cpu")/base) + "x"
			}
			fmt.Fprintf(&b, "| %s: %s | %s | %s | %s | %s | %s | %s |\n", strings.TrimPrefix(w, "client-"), lib, number(get(lib, "per_cpu")), ratio,
				number(get(lib, "rate")), number(get(lib, "cpu")), number(get(lib, "allocs")), number(get(lib, "peak_rss")))
		}
	}
	for _, lib := range clientLibs {
		if v := all[key{lib, "client-slow", "peak_rss"}]; len(v) > 0 {
			fmt.Fprintf(&b, "| slow consumer: %s | | | | | | %s |\n", lib, number(median(v)))
		}
	}
	return b.String()
}

// gregorLib is gregor's own client.
type gregorLib struct{}

func (gregorLib) produce(ctx context.Context, j *clientJob, values [][]byte, ready func()) error {
	c, err := client.New(client.Options{Seeds: []string{j.Addr}})
	if err != nil {
		return err
	}
	defer c.Close()
	o := client.ProducerOptions{MaxBuffered: 64 << 20}
	for _, codec := range []client.Codec{client.LZ4, client.Zstd} {
		if codec.String() == j.Codec {
			o.Codec = codec
		}
	}
	p := c.NewProducer(o)
	if err := c.Ping(ctx); err != nil {
		return err
	}
	ready()
	var failed error // set by the producer's one goroutine for the broker
	done := func(_ *client.Record, err error) {
		if err != nil {
			failed = err
		}
	}
	for i := range j.Records {
		if err := p.Produce(ctx, &client.Record{Topic: j.Topic, Partition: -1, Value: values[i%len(values)]}, done); err != nil {
			return err
		}
	}
	if err := p.Close(ctx); err != nil {
		return err
	}
	return failed
}

func (gregorLib) consume(ctx context.Context, j *clientJob, ready func(), each func([]byte) bool) error {
	c, err := client.New(client.Options{Seeds: []string{j.Addr}})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Ping(ctx); err != nil {
		return err
	}
	ready()
	from := map[client.TopicPartition]int64{}
	for p := range j.Partitions {
		from[client.TopicPartition{Topic: j.Topic, Partition: int32(p)}] = client.Earliest
	}
	u, err := c.NewConsumer(client.ConsumerOptions{Partitions: from, MaxPoll: 10_000})
	if err != nil {
		return err
	}
	for {
		records, err := u.Poll(ctx)
		if err != nil {
			return errors.Join(err, u.Close(ctx))
		}
		for _, r := range records {
			if !each(r.Value) {
				return u.Close(ctx)
			}
		}
	}
}
