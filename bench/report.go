package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// figure is one thing measured once.
type figure struct {
	server   string
	round    int
	workload string
	name     string
	value    float64
	unit     string
}

func (b *bench) note(s *server, workload, name string, v float64, unit string) {
	b.put(s.kind.name, workload, name, v, unit)
}

func (b *bench) put(server, workload, name string, v float64, unit string) {
	if b.silent {
		return
	}
	f := figure{server, b.round, workload, name, v, unit}
	b.figures = append(b.figures, f)
	fmt.Fprintln(b.tsv, f)
	fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), f)
}

// String is a line of the TSV file.
func (f figure) String() string {
	return strings.Join([]string{f.server, strconv.Itoa(f.round), f.workload, f.name, strconv.FormatFloat(f.value, 'g', 6, 64), f.unit}, "\t")
}

func parseFigure(line string) (figure, error) {
	c := strings.Split(line, "\t")
	if len(c) != 6 {
		return figure{}, fmt.Errorf("%d columns instead of 6 in %q", len(c), line)
	}
	round, err := strconv.Atoi(c[1])
	if err != nil {
		return figure{}, err
	}
	v, err := strconv.ParseFloat(c[4], 64)
	return figure{c[0], round, c[2], c[3], v, c[5]}, err
}

// perByte notes the figures of a workload whose work is measured in bytes.
func (b *bench) perByte(s *server, name string, bytes int64, l lap) {
	gib := float64(bytes) / (1 << 30)
	b.note(s, name, "server_cpu", l.server.Seconds()/gib, "s/GiB")
	b.note(s, name, "client_cpu", l.own.Seconds()/gib, "s/GiB")
	b.note(s, name, "rate", float64(bytes)/1e6/l.took.Seconds(), "MB/s")
	b.note(s, name, "others_cpu", l.others(), "%")
}

var percentiles = []struct {
	name string
	q    float64
}{{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func (b *bench) latencies(s *server, workload string, l []time.Duration) {
	slices.Sort(l)
	for _, p := range percentiles {
		b.note(s, workload, p.name, ms(quantile(l, p.q)), "ms")
	}
	b.note(s, workload, "max", ms(quantile(l, 1)), "ms")
}

// quantile of a sorted list: the smallest value that at least q of all do not exceed.
func quantile(l []time.Duration, q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	i := int(q*float64(len(l))+0.999999) - 1
	return l[min(max(i, 0), len(l)-1)]
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// row is a line of the table: a figure, and what gregor aims at.
type row struct {
	group          string
	label          string
	workload, name string
	unit           string // as printed; the factor converts to it
	factor         float64
	aim            float64 // 0 for none
	aimOfKafka     float64 // the aim is this times Kafka's figure
	more           bool    // more is better
	kafkaWorkload  string  // what of Kafka's stands beside it, when not the same
}

var rows = []row{
	{group: "start", label: "exec to first answered Metadata, clean", workload: "start-clean", name: "time", unit: "ms", factor: 1000, aim: 50},
	{label: "after kill -9 with 2 GiB in 12 partitions, all serving", workload: "start-killed-2g", name: "time", unit: "s", aim: 0.5},
	{label: "restart with 2,000 partitions, all serving", workload: "partitions-2000-restart", name: "time", unit: "s", aim: 0.3},
	{label: "the same after kill -9", workload: "partitions-2000-killed", name: "time", unit: "s", aim: 0.5},
	{label: "restart with 10,000 partitions, all serving", workload: "partitions-10000-restart", name: "time", unit: "s", aim: 1},
	{label: "the same after kill -9", workload: "partitions-10000-killed", name: "time", unit: "s", aim: 2},
	{label: "create 10,000 partitions, all serving", workload: "partitions-10000", name: "create", unit: "s"},
	{group: "idle", label: "idle memory (RSS)", workload: "idle", name: "rss", unit: "MiB", aim: 20},
	{label: "idle CPU", workload: "idle", name: "server_cpu", unit: "% of a core", aim: 0.3},
	{group: "produce", label: "64 KiB batches: server CPU", workload: "produce-64k", name: "server_cpu", unit: "s/GiB", aim: 0.5},
	{label: "64 KiB batches: rate", workload: "produce-64k", name: "rate", unit: "MB/s", more: true},
	{label: "16 KiB batches: server CPU", workload: "produce-16k", name: "server_cpu", unit: "s/GiB", aim: 0.75},
	{label: "16 KiB batches: rate", workload: "produce-16k", name: "rate", unit: "MB/s", more: true},
	{label: "1 MiB batches: server CPU", workload: "produce-1m", name: "server_cpu", unit: "s/GiB", aim: 0.45},
	{label: "1 MiB batches: rate", workload: "produce-1m", name: "rate", unit: "MB/s", more: true},
	{group: "produce compressed", label: "lz4, records checked: server CPU", workload: "produce-lz4", name: "server_cpu", unit: "s/GiB", aimOfKafka: 1},
	{label: "zstd, records checked: server CPU", workload: "produce-zstd", name: "server_cpu", unit: "s/GiB", aimOfKafka: 1},
	{label: "lz4, gregor.produce.validation=header: server CPU", workload: "produce-lz4-header", name: "server_cpu", unit: "s/GiB", aimOfKafka: 0.35, kafkaWorkload: "produce-lz4"},
	{label: "zstd, gregor.produce.validation=header: server CPU", workload: "produce-zstd-header", name: "server_cpu", unit: "s/GiB", aimOfKafka: 0.35, kafkaWorkload: "produce-zstd"},
	{group: "fetch", label: "1 consumer: server CPU", workload: "fetch-1", name: "server_cpu", unit: "s/GiB", aim: 0.25},
	{label: "1 consumer: rate", workload: "fetch-1", name: "rate", unit: "MB/s", more: true},
	{label: "4 consumers: server CPU", workload: "fetch-4", name: "server_cpu", unit: "s/GiB", aim: 0.25},
	{label: "4 consumers: rate", workload: "fetch-4", name: "rate", unit: "MB/s", more: true},
	{group: "100-byte requests", label: "1 connection: server CPU", workload: "tiny-1", name: "server_cpu", unit: "us/request", aim: 30},
	{label: "1 connection: p50", workload: "tiny-1", name: "p50", unit: "ms", aim: 0.05},
	{label: "1 connection: p99", workload: "tiny-1", name: "p99", unit: "ms", aim: 0.12},
	{label: "1 connection: p99.9", workload: "tiny-1", name: "p99.9", unit: "ms"},
	{label: "16 connections: rate", workload: "tiny-16", name: "rate", unit: "requests/s", more: true, aim: 70000},
	{label: "16 connections: p50", workload: "tiny-16", name: "p50", unit: "ms"},
	{label: "16 connections: p99", workload: "tiny-16", name: "p99", unit: "ms", aim: 1},
	{label: "16 connections: server CPU", workload: "tiny-16", name: "server_cpu", unit: "us/request"},
	{group: "10,000 records/s", label: "end to end: p50", workload: "e2e", name: "p50", unit: "ms", aim: 0.3},
	{label: "end to end: p99", workload: "e2e", name: "p99", unit: "ms", aim: 1},
	{label: "end to end: p99.9", workload: "e2e", name: "p99.9", unit: "ms", aim: 3},
	{label: "server CPU", workload: "e2e", name: "server_cpu", unit: "% of a core"},
	{group: "three nodes", label: "CreateTopics, one at a time: p50", workload: "quorum-create", name: "p50", unit: "ms"},
	{label: "CreateTopics, one at a time: p99", workload: "quorum-create", name: "p99", unit: "ms"},
	{label: "kill -9 of the active controller to the next successful CreateTopics", workload: "quorum-kill-controller", name: "create_topic", unit: "s", aim: 0.3},
	{label: "the same to new leaders for its partitions", workload: "quorum-kill-controller", name: "new_leaders", unit: "s", aim: 0.5},
	{label: "kill -9 of another broker to new leaders for its partitions", workload: "quorum-kill-broker", name: "new_leaders", unit: "s", aim: 0.5},
	{label: "create 2,000 partitions, all serving", workload: "quorum-partitions-2000", name: "create", unit: "s", aimOfKafka: 0.2},
	{label: "CPU of that", workload: "quorum-partitions-2000", name: "server_cpu", unit: "ms/partition", aimOfKafka: 0.2},
	{label: "create 10,000 partitions, all serving", workload: "quorum-partitions-10000", name: "create", unit: "s", aimOfKafka: 0.2},
	{label: "CPU of that", workload: "quorum-partitions-10000", name: "server_cpu", unit: "ms/partition", aimOfKafka: 0.2},
	{label: "memory of the three nodes with them", workload: "quorum-partitions-10000", name: "rss", unit: "MiB", aimOfKafka: 0.2},
	{label: "controller's death to the next CreateTopics with them", workload: "quorum-partitions-10000", name: "failover", unit: "s", aimOfKafka: 0.2},
	{label: "restart of that node, all serving", workload: "quorum-partitions-10000", name: "restart", unit: "s", aimOfKafka: 0.2},
	{label: "create 100,000 partitions, all serving", workload: "quorum-partitions-100000", name: "create", unit: "s"},
	{label: "memory of the three nodes with them", workload: "quorum-partitions-100000", name: "rss", unit: "MiB"},
	{label: "controller's death to the next CreateTopics with them", workload: "quorum-partitions-100000", name: "failover", unit: "s"},
	{label: "restart of that node, all serving", workload: "quorum-partitions-100000", name: "restart", unit: "s"},
	{group: "three nodes, acks=all", label: "64 KiB batches: CPU of the three", workload: "cluster-produce-64k", name: "server_cpu", unit: "s/GiB", aimOfKafka: 0.3},
	{label: "64 KiB batches: rate", workload: "cluster-produce-64k", name: "rate", unit: "MB/s", aimOfKafka: 3, more: true},
	{label: "64 KiB batches: p99", workload: "cluster-produce-64k", name: "p99", unit: "ms", aimOfKafka: 1. / 3},
	{label: "1 MiB batches: CPU of the three", workload: "cluster-produce-1m", name: "server_cpu", unit: "s/GiB", aimOfKafka: 0.3},
	{label: "1 MiB batches: rate", workload: "cluster-produce-1m", name: "rate", unit: "MB/s", aimOfKafka: 3, more: true},
	{label: "1 MiB batches: p99", workload: "cluster-produce-1m", name: "p99", unit: "ms", aimOfKafka: 1. / 3},
	{label: "100-byte requests, a connection to each leader: CPU of the three", workload: "cluster-tiny-3conn", name: "server_cpu", unit: "us/request", aimOfKafka: 0.2},
	{label: "100-byte requests: rate", workload: "cluster-tiny-3conn", name: "rate", unit: "requests/s", aimOfKafka: 3, more: true},
	{label: "100-byte requests: p50", workload: "cluster-tiny-3conn", name: "p50", unit: "ms", aimOfKafka: 1. / 3},
	{label: "100-byte requests: p99", workload: "cluster-tiny-3conn", name: "p99", unit: "ms", aimOfKafka: 1. / 3},
	{label: "2,000 records/s, end to end: p50", workload: "cluster-e2e-2k", name: "p50", unit: "ms"},
	{label: "2,000 records/s, end to end: p99", workload: "cluster-e2e-2k", name: "p99", unit: "ms", aimOfKafka: 1. / 3},
	{label: "2,000 records/s: CPU of the three", workload: "cluster-e2e-2k", name: "server_cpu", unit: "% of a core"},
	{label: "the same on one connection with 5 requests in flight: p50", workload: "cluster-e2e-5inflight", name: "p50", unit: "ms"},
	{label: "the same: p99", workload: "cluster-e2e-5inflight", name: "p99", unit: "ms", aimOfKafka: 1. / 3},
	{label: "memory of the three after that", workload: "cluster-idle", name: "rss", unit: "MiB", aimOfKafka: 1. / 15},
	{label: "idle CPU of the three", workload: "cluster-idle", name: "server_cpu", unit: "% of a core"},
	{label: "a replica that missed records, exec to all in sync: rate", workload: "cluster-catch-up", name: "rate", unit: "MB/s", more: true},
	{label: "the same: CPU of the three", workload: "cluster-catch-up", name: "server_cpu", unit: "s/GiB"},
	{label: "kill -9 of a broker to the first write acknowledged on all partitions that it led", workload: "cluster-kill-broker", name: "lost_leader", unit: "s", aim: 0.5},
	{label: "the same on those where it followed", workload: "cluster-kill-broker", name: "lost_follower", unit: "s", aim: 0.5},
	{label: "kill -9 of the active controller and broker: the same on those that it led", workload: "cluster-kill-controller", name: "lost_leader", unit: "s", aim: 0.5},
	{label: "the same on those where it followed", workload: "cluster-kill-controller", name: "lost_follower", unit: "s", aim: 0.5},
	{group: "memory", label: "peak under these loads (VmHWM)", workload: "loads", name: "peak_rss", unit: "MiB", aim: 150},
}

// number prints three digits that matter.
func number(v float64) string {
	switch {
	case v >= 10000:
		return strconv.FormatFloat(v/1000, 'f', 1, 64) + "k"
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// table is the medians in Markdown.
func table(figures []figure) string {
	type key struct{ server, workload, name string }
	all := map[key][]float64{}
	for _, f := range figures {
		k := key{f.server, f.workload, f.name}
		all[k] = append(all[k], f.value)
	}
	var b strings.Builder
	b.WriteString("| | gregor | Kafka | ratio | machine's limit | aim | reached | rounds |\n|---|---:|---:|---:|---:|---:|---|---:|\n")
	group := ""
	for _, r := range rows {
		if r.group != "" {
			group = r.group
		}
		factor := r.factor
		if factor == 0 {
			factor = 1
		}
		get := func(server, workload string) (float64, string) {
			v := all[key{server, workload, r.name}]
			if len(v) == 0 {
				return 0, ""
			}
			m := median(v) * factor
			return m, number(m)
		}
		kw := r.workload
		if r.kafkaWorkload != "" {
			kw = r.kafkaWorkload
		}
		ours, oursText := get("gregor", r.workload)
		theirs, theirsText := get("kafka", kw)
		_, limitText := get(machine, r.workload)
		if oursText == "" && theirsText == "" {
			continue
		}
		ratio, aimText, reached := "", "", ""
		if oursText != "" && theirsText != "" && theirs > 0 {
			ratio = number(ours/theirs) + "x"
		}
		aim := r.aim
		if r.aimOfKafka > 0 {
			aim = r.aimOfKafka * theirs
		}
		if aim > 0 {
			sign := "<= "
			if r.more {
				sign = ">= "
			}
			aimText = sign + number(aim)
			if oursText != "" {
				if reached = "no"; ours <= aim && !r.more || ours >= aim && r.more {
					reached = "yes"
				}
			}
		}
		fmt.Fprintf(&b, "| %s: %s, %s | %s | %s | %s | %s | %s | %s | %d, %d |\n", group, r.label, r.unit, oursText, theirsText, ratio, limitText, aimText, reached,
			len(all[key{"gregor", r.workload, r.name}]), len(all[key{"kafka", kw, r.name}]))
	}
	return b.String()
}

// othersCPU is the median of what everything else used during a server's loads.
func othersCPU(figures []figure, server string) float64 {
	var v []float64
	for _, f := range figures {
		if f.server == server && f.name == "others_cpu" {
			v = append(v, f.value)
		}
	}
	if len(v) == 0 {
		return 0
	}
	return median(v)
}

// reportFiles puts the figures of several runs together.
func reportFiles(paths []string, out string) error {
	var all []figure
	var lines strings.Builder
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			f, err := parseFigure(strings.TrimSuffix(line, "\n"))
			if err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
			all = append(all, f)
			fmt.Fprintln(&lines, f)
		}
	}
	fmt.Println(table(all))
	if out == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(out, "results.tsv"), []byte(lines.String()), 0o644); err != nil {
		return err
	}
	return writeResults(filepath.Join(out, "RESULTS.md"), "bench/run", all)
}

// writeResults writes the table with all that is needed to repeat it.
func writeResults(path, command string, figures []figure) error {
	var b strings.Builder
	fmt.Fprintf(&b, `# gregor beside Kafka 4.4.0

Made by bench on %s; all single figures are in results.tsv. To repeat it:

    %s

Machine: %s, %d cores, %s memory, kernel %s. gregor %s, built with %s; Kafka 4.4.0 on %s.
Both run with their defaults and one configuration, data on the same disk, in alternating rounds; the figures are medians over
the rounds in the last column, gregor's and Kafka's. doc.go tells how it is measured; workloads and aims are those of the table's rows.
CPU is user and system time of the whole server process. The machine's limit is what one thread needs that only reads the same
bytes from a socket, checks their CRC-32C and writes them to a file (produce), sends them with sendfile (fetch), reads and checks
them on all cores (recovery), or passes messages of that size to and fro (100-byte requests).

`, time.Now().UTC().Format("2006-01-02"), command, cpuModel(), runtime.NumCPU(), memTotal(), oneLine("uname", "-r"),
		oneLine("git", "describe", "--always", "--dirty", "--abbrev=12"), runtime.Version(), javaVersion())
	b.WriteString(table(figures))
	fmt.Fprintf(&b, "\nMeanwhile everything else on the machine used %s %% of a core while gregor was measured and %s %% while Kafka was (medians over the loads).\n",
		number(othersCPU(figures, "gregor")), number(othersCPU(figures, "kafka")))
	if t := clientTable(figures); t != "" {
		b.WriteString(clientHeading + t)
	}
	notes, err := os.ReadFile(filepath.Join(filepath.Dir(path), "NOTES.md"))
	if err == nil {
		b.WriteString("\n")
		b.Write(notes)
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func oneLine(name string, args ...string) string {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "(unknown)"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

func javaVersion() string { return oneLine("java", "-version") }

func procLine(path, field string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "(unknown)"
	}
	for l := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == field {
			return strings.TrimSpace(v)
		}
	}
	return "(unknown)"
}

func cpuModel() string { return procLine("/proc/cpuinfo", "model name") }

func memTotal() string {
	kib, err := strconv.ParseFloat(strings.TrimSuffix(procLine("/proc/meminfo", "MemTotal"), " kB"), 64)
	if err != nil {
		return "(unknown)"
	}
	return fmt.Sprintf("%.0f GiB", kib/(1<<20))
}
