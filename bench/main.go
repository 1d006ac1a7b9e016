package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// running holds the processes of servers that run, so that an interrupted bench leaves none behind.
var running sync.Map

func main() {
	if is, err := clientMain(); is {
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		killAll()
		os.Exit(130)
	}()
	err := run(os.Args[1:])
	killAll()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func killAll() {
	running.Range(func(p, _ any) bool {
		_ = p.(*os.Process).Kill() // it may have ended by now
		return true
	})
}

// bench is one run of the program.
type bench struct {
	dir      string // of the servers' files
	port     int
	only     *regexp.Regexp
	profiles string // directory of gregor's CPU profiles, "" for none
	quiet    time.Duration
	scale    int64 // divisor of bytes and counts
	command  string

	warmRounds         int
	catchUpBytes       int64
	restTime, idleTime time.Duration
	tinyTime           time.Duration
	e2eWarm, e2eTime   time.Duration

	round   int
	silent  bool // figures are not noted
	figures []figure
	tsv     io.Writer

	batches map[string][]encoded // by what they are

	admin  *conn // to the loaded node
	topics int
	last   *topic
	lastOf *server
}

func run(args []string) error {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := f.Int("rounds", 5, "how many times each server is measured; the table has the medians")
	manyRounds := f.Int("many-rounds", 1, "rounds of the workloads with many partitions, which take Kafka minutes")
	many := f.String("many", "2000,10000", "numbers of partitions to restart with")
	servers := f.String("servers", "gregor,kafka", "who is measured, in this order")
	only := f.String("only", "", "measure only the workloads whose names match this regular expression")
	quick := f.Bool("quick", false, "a sixteenth of the bytes, short times and one round: is everything working?")
	out := f.String("out", "", "directory for RESULTS.md and results.tsv (default: the bench directory; none with -quick, -only or one server)")
	dir := f.String("dir", filepath.Join(os.TempDir(), "gregor-bench"), "directory for the servers' files, some 10 GiB; deleted in the end")
	port := f.Int("port", 19490, "port of the servers; the next two are used too")
	warm := f.Int("warm", 3, "rounds of warming up Kafka before the loads, which its virtual machine needs to compile its code")
	profiles := f.String("profile", "", "write a CPU profile of gregor, and of each client, during each workload to this directory")
	quiet := f.Duration("quiet", 5*time.Second, "how long to wait before each workload for the machine to become quiet")
	catchUp := f.Float64("catch-up", 2, "GiB that a replica misses before it catches up")
	report := f.Bool("report", false, "measure nothing: make the table of the TSV files given as arguments, in -out if that is set")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *report {
		return reportFiles(f.Args(), *out)
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected arguments %q", f.Args())
	}
	root, err := findRoot()
	if err != nil {
		return err
	}
	b := &bench{dir: *dir, port: *port, profiles: *profiles, quiet: *quiet, scale: 1, warmRounds: *warm, catchUpBytes: int64(*catchUp * (1 << 30)), batches: map[string][]encoded{},
		restTime: 4 * time.Second, idleTime: 8 * time.Second, tinyTime: 4 * time.Second, e2eWarm: 2 * time.Second, e2eTime: 8 * time.Second,
		command: strings.Join(append([]string{"bench/run"}, args...), " ")}
	if b.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if *quick {
		b.scale, b.warmRounds, b.restTime, b.idleTime, b.tinyTime = 16, min(1, *warm), time.Second, 2*time.Second, time.Second
		b.e2eWarm, b.e2eTime = time.Second, 3*time.Second
		*rounds = 1
	}
	var counts []int
	for s := range strings.SplitSeq(*many, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("-many: %w", err)
		}
		counts = append(counts, n)
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	var kinds []kind
	for name := range strings.SplitSeq(*servers, ",") {
		var k kind
		switch name {
		case "gregor":
			k, err = gregorKind(root, b.dir)
		case "kafka":
			k, err = kafkaKind(root)
		default:
			err = fmt.Errorf("-servers: %q is neither gregor nor kafka", name)
		}
		if err != nil {
			return err
		}
		kinds = append(kinds, k)
	}
	if *out == "" && !*quick && *only == "" && len(kinds) == 2 {
		*out = filepath.Join(root, "bench")
	}
	b.tsv = io.Discard
	if *out != "" {
		tsv, err := os.Create(filepath.Join(*out, "results.tsv"))
		if err != nil {
			return err
		}
		defer tsv.Close()
		b.tsv = tsv
	}
	tune()
	err = b.all(kinds, *rounds, *manyRounds, counts, *out)
	fmt.Println(table(b.figures) + "\n" + clientTable(b.figures))
	return err
}

// tune keeps Go's runtime out of the way of blocking threads: a processor for each, so that none waits until another's is found
// to be asleep in the kernel, and no garbage collection in the middle of a measurement.
func tune() {
	runtime.GOMAXPROCS(max(runtime.NumCPU(), 48))
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(4 << 30)
}

// all runs the plan. After every part the results so far are written. A part that fails is told of at the end; the others are
// measured all the same.
func (b *bench) all(kinds []kind, rounds, manyRounds int, counts []int, out string) error {
	var failures []error
	for b.round = 1; b.round <= max(rounds, manyRounds); b.round++ {
		var parts []func(kind) error
		if b.round <= rounds {
			parts = append(parts, b.startup, b.load, b.clients, b.quorum, b.groups, b.replicatedLoads)
			if err := b.limits(); err != nil {
				return err
			}
		}
		if b.round <= manyRounds {
			for _, n := range counts {
				parts = append(parts, func(k kind) error { return b.partitions(k, n) })
			}
			for _, n := range quorumCounts {
				parts = append(parts, func(k kind) error {
					if k.name == "kafka" && n > kafkaMost {
						return nil
					}
					return b.quorumPartitions(k, n)
				})
			}
		}
		for _, part := range parts {
			for i := range kinds {
				k := kinds[(i+b.round-1)%len(kinds)] // A B, B A: nobody always comes first
				if err := part(k); err != nil {
					err = fmt.Errorf("round %d, %s: %w", b.round, k.name, err)
					fmt.Fprintln(os.Stderr, "bench:", err)
					failures = append(failures, err)
				}
				killAll()
				b.last = nil
				debug.FreeOSMemory()
			}
			if out != "" {
				if err := writeResults(filepath.Join(out, "RESULTS.md"), b.command, b.figures); err != nil {
					return err
				}
			}
		}
	}
	return errors.Join(failures...)
}

// wants says whether any of the workloads is to be measured. A name also stands for those that begin with it.
func (b *bench) wants(names ...string) bool {
	return slices.ContainsFunc(names, b.only.MatchString)
}

func (b *bench) scaled(n int64) int64 { return n / b.scale }

func (b *bench) scaledCount(n int) int { return max(1, n/int(b.scale)) }

func (b *bench) create(k kind) (*server, error) {
	pprof := 0
	if b.profiles != "" {
		pprof = b.port + 2
	}
	return create(k, filepath.Join(b.dir, k.name), b.port, pprof)
}

// settle brings what was written before to the disk, so that no workload pays for another, and waits for a quiet machine.
func (b *bench) settle(s *server) error {
	runtime.GC()
	unix.Sync()
	pid := os.Getpid()
	if s != nil {
		pid = s.pid()
	}
	limit := b.quiet
	if b.silent {
		limit = 0
	}
	return awaitQuiet(limit, pid)
}

// profile takes a CPU profile of gregor until stop is called, when asked for.
func (b *bench) profile(s *server, name string) (stop func()) {
	if b.profiles == "" || s.pprof == 0 {
		return func() {}
	}
	return b.profileFrom(s, name)
}

// profileStart does the same for a server that may not listen yet.
func (b *bench) profileStart(s *server, name string) (stop func()) { return b.profile(s, name) }

// profileSeconds is how long a profile is; a workload that ends sooner ends it.
const profileSeconds = 4

func (b *bench) profileFrom(s *server, name string) func() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		url := fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/profile?seconds=%d", s.pprof, profileSeconds)
		for range 200 {
			resp, err := http.Get(url)
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil {
				err = os.MkdirAll(b.profiles, 0o755)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(b.profiles, name+".pprof"), text, 0o644)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "bench: profile of", name, "failed:", err)
			}
			return
		}
	}()
	return func() { <-done }
}

func findRoot() (string, error) {
	d, err := os.Getwd()
	for err == nil {
		if text, rerr := os.ReadFile(filepath.Join(d, "go.mod")); rerr == nil && strings.HasPrefix(string(text), "module gregor\n") {
			return d, nil
		}
		up := filepath.Dir(d)
		if up == d {
			err = errors.New("run bench inside a checkout of gregor")
		}
		d = up
	}
	return "", err
}
