package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"

	"gregor/interop/content"
	"gregor/interop/kafka"
)

// Sizes of the topics that the clients write.
const (
	clientRecords    = 100_000
	clientPartitions = 4
)

// codecs are the compressions that Kafka knows, by the name that it gives them.
var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// job is a topic that a client is to write or read.
type job struct{ topic, codec string }

// client is a family of clients of Kafka. What fails ends the test.
type client struct {
	name string
	// write writes the records of package content to new topics.
	write func(tb testing.TB, addr string, jobs []job)
	// read reads topics and returns the digests of their partitions.
	read func(tb testing.TB, addr string, jobs []job) [][]string
	// group reads as a member of a group until it has seen at least n records, commits, and returns how many it saw.
	group func(tb testing.TB, addr, topic, group string, n int) int
}

var families = []client{
	{"java", javaWrite, javaRead, javaGroup},
	{"python", pythonWrite, pythonRead, pythonGroup},
	{"franz-go", franzWrite, franzRead, franzGroup},
	{"sarama", saramaWrite, saramaRead, saramaGroup},
	{"kcat", kcatWrite, kcatRead, kcatGroup},
}

// TestClients lets every client write 100,000 records in every codec, and another one read them: each reads each codec, and
// none what it wrote itself. Then each reads a topic as a member of a group that goes on where it stopped.
func TestClients(t *testing.T) {
	// The records are old: they have the same timestamps each time.
	n, _ := startGregor(t, "log.retention.ms=-1")
	topic := func(w client, codec string) string { return w.name + "-" + codec }
	want := content.Digests(clientPartitions, clientRecords)
	admin := admin(t, n.Addr)
	for _, w := range families {
		for _, codec := range codecs {
			partitions := clientPartitions
			if w.name == "kcat" {
				partitions = 1
			}
			admin.create(t, topic(w, codec), partitions)
		}
	}
	t.Run("write", func(t *testing.T) {
		for _, w := range families {
			t.Run(w.name, func(t *testing.T) {
				var jobs []job
				for _, codec := range codecs {
					jobs = append(jobs, job{topic(w, codec), codec})
				}
				w.write(t, n.Addr, jobs)
			})
		}
	})
	if t.Failed() {
		return
	}
	t.Run("read", func(t *testing.T) {
		for r, reader := range families {
			t.Run(reader.name, func(t *testing.T) {
				var jobs []job
				var writers []string
				for c, codec := range codecs {
					// The writer moves on with the codec, past the reader itself.
					w := families[(r+1+c%(len(families)-1))%len(families)]
					jobs = append(jobs, job{topic(w, codec), codec})
					writers = append(writers, w.name)
				}
				for i, got := range reader.read(t, n.Addr, jobs) {
					expected := want
					if writers[i] == "kcat" {
						// kcat cannot set timestamps, so the digest is that of what franz-go reads, which is checked below.
						expected = franzRead(t, n.Addr, jobs[i:i+1])[0]
						got = got[:1]
					}
					if !slices.Equal(got, expected) {
						t.Errorf("%s: digests %v, want %v", jobs[i].topic, got, expected)
					}
				}
			})
		}
	})
	t.Run("kcat's records", func(t *testing.T) {
		for _, codec := range codecs {
			checkKcat(t, n.Addr, "kcat-"+codec)
		}
	})
	t.Run("group", func(t *testing.T) {
		for i, c := range families {
			t.Run(c.name, func(t *testing.T) {
				topic := topic(families[(i+1)%4], codecs[i])
				first := c.group(t, n.Addr, topic, "g-"+c.name, clientRecords/3)
				rest := c.group(t, n.Addr, topic, "g-"+c.name, clientRecords-first)
				if first+rest != clientRecords || rest == 0 {
					t.Errorf("read %d records, then %d, of %d in all", first, rest, clientRecords)
				}
			})
		}
	})
}

// parse reads what the programs in Java and Python print: "written N", "read N" and a digest for each partition.
func parse(tb testing.TB, out string) (counts []int, digests [][]string) {
	tb.Helper()
	for line := range strings.Lines(out) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "written", "read":
			n, err := strconv.Atoi(rest)
			if err != nil {
				tb.Fatalf("unexpected output %q", line)
			}
			counts = append(counts, n)
			digests = append(digests, nil)
		default:
			last := &digests[len(digests)-1]
			*last = append(*last, rest)
		}
	}
	return counts, digests
}

// run runs a program with lines as its standard input.
func run(tb testing.TB, cmd *exec.Cmd, stdin string) string {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		tb.Fatalf("%s: %v\n%s\n%s", cmd.Args[0], err, tailOf(stdout.String()), tailOf(stderr.String()))
	}
	return stdout.String()
}

func tailOf(s string) string { return s[max(0, len(s)-4000):] }

// writeLines and readLines are the jobs as commands of the programs in Java and Python.
func writeLines(addr string, jobs []job) string {
	var b strings.Builder
	for _, j := range jobs {
		fmt.Fprintf(&b, "write %s %s %d %d %s\n", addr, j.topic, clientPartitions, clientRecords, j.codec)
	}
	return b.String()
}

func readLines(addr string, jobs []job) string {
	var b strings.Builder
	for _, j := range jobs {
		partitions := clientPartitions
		if strings.HasPrefix(j.topic, "kcat") {
			partitions = 1
		}
		fmt.Fprintf(&b, "read %s %s %d %d\n", addr, j.topic, partitions, clientRecords)
	}
	return b.String()
}

func checkCounts(tb testing.TB, counts []int, jobs []job) {
	tb.Helper()
	for i, j := range jobs {
		if i >= len(counts) || counts[i] != clientRecords {
			tb.Fatalf("%s: counts %v, want %d", j.topic, counts, clientRecords)
		}
	}
}

// Java.

var compileJava = sync.OnceValues(func() (string, error) {
	classes := filepath.Join(kafka.Root(), ".cache", "interop", "classes")
	if err := os.MkdirAll(classes, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("javac", "-d", classes, "-cp", filepath.Join(kafka.Home(), "libs", "*"),
		filepath.Join(kafka.Root(), "interop", "java", "Client.java"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the Java client (scripts/setup-interop installs a JDK): %w\n%s", err, out)
	}
	return classes, nil
})

func java(tb testing.TB, stdin string) string {
	tb.Helper()
	kafka.Setup(tb)
	classes, err := compileJava()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 5*time.Minute)
	defer cancel()
	return run(tb, kafka.Command(ctx, classes, "512m", "Client", "batch"), stdin)
}

func javaWrite(tb testing.TB, addr string, jobs []job) {
	counts, _ := parse(tb, java(tb, writeLines(addr, jobs)))
	checkCounts(tb, counts, jobs)
}

func javaRead(tb testing.TB, addr string, jobs []job) [][]string {
	counts, digests := parse(tb, java(tb, readLines(addr, jobs)))
	checkCounts(tb, counts, jobs)
	return digests
}

func javaGroup(tb testing.TB, addr, topic, group string, n int) int {
	counts, _ := parse(tb, java(tb, fmt.Sprintf("group %s %s %s %d\n", addr, topic, group, n)))
	return counts[0]
}

// Python: confluent-kafka, which is librdkafka.

func python(tb testing.TB, stdin string) string {
	tb.Helper()
	bin := filepath.Join(kafka.Root(), ".cache", "interop", "venv", "bin", "python")
	if _, err := os.Stat(bin); err != nil {
		tb.Fatalf("no confluent-kafka for Python (scripts/setup-interop installs it): %v", err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 5*time.Minute)
	defer cancel()
	return run(tb, exec.CommandContext(ctx, bin, filepath.Join(kafka.Root(), "interop", "python", "client.py"), "batch"), stdin)
}

func pythonWrite(tb testing.TB, addr string, jobs []job) {
	counts, _ := parse(tb, python(tb, writeLines(addr, jobs)))
	checkCounts(tb, counts, jobs)
}

func pythonRead(tb testing.TB, addr string, jobs []job) [][]string {
	counts, digests := parse(tb, python(tb, readLines(addr, jobs)))
	checkCounts(tb, counts, jobs)
	return digests
}

func pythonGroup(tb testing.TB, addr, topic, group string, n int) int {
	counts, _ := parse(tb, python(tb, fmt.Sprintf("group %s %s %s %d\n", addr, topic, group, n)))
	return counts[0]
}

// franz-go.

func franz(tb testing.TB, addr string, opts ...kgo.Opt) *kgo.Client {
	tb.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addr)}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

func franzCodec(name string) kgo.CompressionCodec {
	switch name {
	case "gzip":
		return kgo.GzipCompression()
	case "snappy":
		return kgo.SnappyCompression()
	case "lz4":
		return kgo.Lz4Compression()
	case "zstd":
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

// franzRecord is record i of package content.
func franzRecord(topic string, i, partitions int) *kgo.Record {
	r := &kgo.Record{Topic: topic, Partition: int32(i % partitions), Key: content.Key(i), Value: content.Value(i),
		Timestamp: time.UnixMilli(content.T0 + int64(i))}
	for _, h := range content.Headers(i) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return r
}

func franzWrite(tb testing.TB, addr string, jobs []job) {
	for _, j := range jobs {
		c := franz(tb, addr, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(franzCodec(j.codec)),
			kgo.ProducerLinger(5*time.Millisecond))
		for i := range clientRecords {
			c.Produce(tb.Context(), franzRecord(j.topic, i, clientPartitions), func(_ *kgo.Record, err error) {
				if err != nil {
					tb.Errorf("%s: %v", j.topic, err)
				}
			})
		}
		if err := c.Flush(tb.Context()); err != nil {
			tb.Error(err)
		}
		c.Close()
	}
}

// franzRecords hands every record of a topic to f, in the order of each partition.
func franzRecords(tb testing.TB, addr, topic string, n int, f func(*kgo.Record)) {
	tb.Helper()
	c := franz(tb, addr, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	for seen := 0; seen < n; {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			tb.Fatalf("read %s, %d of %d: %v", topic, seen, n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { f(r); seen++ })
	}
}

func franzRead(tb testing.TB, addr string, jobs []job) [][]string {
	var out [][]string
	for _, j := range jobs {
		digests := newDigests(clientPartitions)
		franzRecords(tb, addr, j.topic, clientRecords, func(r *kgo.Record) {
			var hs []content.Header
			for _, h := range r.Headers {
				hs = append(hs, content.Header{Key: h.Key, Value: h.Value})
			}
			digests[r.Partition].Add(r.Offset, r.Timestamp.UnixMilli(), r.Key, r.Value, hs)
		})
		if strings.HasPrefix(j.topic, "kcat") {
			digests = digests[:1]
		}
		out = append(out, digestStrings(digests))
	}
	return out
}

func franzGroup(tb testing.TB, addr, topic, group string, n int) (seen int) {
	c := franz(tb, addr, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	for seen < n {
		fetches := c.PollRecords(ctx, n-seen)
		if err := fetches.Err(); err != nil {
			tb.Fatalf("read %s, %d of %d: %v", topic, seen, n, err)
		}
		seen += fetches.NumRecords()
	}
	if err := c.CommitUncommittedOffsets(ctx); err != nil {
		tb.Fatal(err)
	}
	return seen
}

func newDigests(n int) []*content.Digest {
	out := make([]*content.Digest, n)
	for i := range out {
		out[i] = content.NewDigest()
	}
	return out
}

func digestStrings(ds []*content.Digest) []string {
	var out []string
	for _, d := range ds {
		out = append(out, d.String())
	}
	return out
}

// sarama.

func saramaConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Return.Successes = true
	c.Producer.Flush.Frequency = 5 * time.Millisecond
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	return c
}

func saramaWrite(tb testing.TB, addr string, jobs []job) {
	for _, j := range jobs {
		cfg := saramaConfig()
		cfg.Producer.Compression = map[string]sarama.CompressionCodec{"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
			"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD}[j.codec]
		p, err := sarama.NewAsyncProducer([]string{addr}, cfg)
		if err != nil {
			tb.Fatal(err)
		}
		go func() {
			for i := range clientRecords {
				m := &sarama.ProducerMessage{Topic: j.topic, Partition: int32(i % clientPartitions), Timestamp: time.UnixMilli(content.T0 + int64(i))}
				if k := content.Key(i); k != nil {
					m.Key = sarama.ByteEncoder(k)
				}
				if v := content.Value(i); v != nil {
					m.Value = sarama.ByteEncoder(v)
				}
				for _, h := range content.Headers(i) {
					m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
				}
				p.Input() <- m
			}
		}()
		for range clientRecords {
			select {
			case <-p.Successes():
			case err := <-p.Errors():
				tb.Fatalf("%s: %v", j.topic, err)
			case <-time.After(time.Minute):
				tb.Fatalf("%s: no end", j.topic)
			}
		}
		p.Close()
	}
}

func saramaRead(tb testing.TB, addr string, jobs []job) [][]string {
	c, err := sarama.NewConsumer([]string{addr}, saramaConfig())
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	var out [][]string
	for _, j := range jobs {
		partitions, err := c.Partitions(j.topic)
		if err != nil {
			tb.Fatal(err)
		}
		digests := newDigests(len(partitions))
		for _, partition := range partitions {
			pc, err := c.ConsumePartition(j.topic, partition, sarama.OffsetOldest)
			if err != nil {
				tb.Fatal(err)
			}
			for range clientRecords / len(partitions) {
				select {
				case m := <-pc.Messages():
					var hs []content.Header
					for _, h := range m.Headers {
						hs = append(hs, content.Header{Key: string(h.Key), Value: h.Value})
					}
					digests[partition].Add(m.Offset, m.Timestamp.UnixMilli(), m.Key, m.Value, hs)
				case <-time.After(time.Minute):
					tb.Fatalf("%s-%d: no more records", j.topic, partition)
				}
			}
			pc.Close()
		}
		out = append(out, digestStrings(digests))
	}
	return out
}

// saramaMember counts what a member of a group gets, and ends the session when it is enough.
type saramaMember struct {
	mu     sync.Mutex // guards seen
	seen   int
	n      int
	enough context.CancelFunc
}

func (m *saramaMember) Setup(sarama.ConsumerGroupSession) error { return nil }

// Cleanup runs when the claims have ended, so all that was counted has been marked.
func (m *saramaMember) Cleanup(s sarama.ConsumerGroupSession) error { s.Commit(); return nil }

func (m *saramaMember) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case msg, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			m.mu.Lock()
			if m.seen < m.n {
				m.seen++
				s.MarkMessage(msg, "")
			}
			if m.seen == m.n {
				m.enough()
			}
			m.mu.Unlock()
		case <-s.Context().Done():
			return nil
		}
	}
}

func saramaGroup(tb testing.TB, addr, topic, group string, n int) int {
	g, err := sarama.NewConsumerGroup([]string{addr}, group, saramaConfig())
	if err != nil {
		tb.Fatal(err)
	}
	defer g.Close()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	m := &saramaMember{n: n, enough: cancel}
	for ctx.Err() == nil {
		if err := g.Consume(ctx, []string{topic}, m); err != nil && !errors.Is(err, context.Canceled) {
			tb.Fatal(err)
		}
	}
	return m.seen
}

// kcat.

func kcat(tb testing.TB, stdin string, args ...string) string {
	tb.Helper()
	if _, err := exec.LookPath("kcat"); err != nil {
		tb.Fatalf("kcat is missing (scripts/setup-interop installs it): %v", err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 3*time.Minute)
	defer cancel()
	return run(tb, exec.CommandContext(ctx, "kcat", args...), stdin)
}

// kcatWrite writes as far as kcat can: it takes null for empty, has the same headers for all, and sets no timestamps.
func kcatWrite(tb testing.TB, addr string, jobs []job) {
	var in strings.Builder
	for i := range clientRecords {
		fmt.Fprintf(&in, "%s\t%s\n", content.Key(i), content.Value(i))
	}
	for _, j := range jobs {
		kcat(tb, in.String(), "-P", "-b", addr, "-t", j.topic, "-p", "0", "-z", j.codec, "-K", "\t", "-Z", "-H", "h0=v0", "-H", "h1=")
	}
}

// checkKcat compares what kcat wrote with what it was told to.
func checkKcat(tb testing.TB, addr, topic string) {
	i := 0
	franzRecords(tb, addr, topic, clientRecords, func(r *kgo.Record) {
		key := content.Key(i)
		if len(key) == 0 {
			key = nil
		}
		if value := content.Value(i); !same(r.Key, key) || !same(r.Value, value) || r.Offset != int64(i) || len(r.Headers) != 2 ||
			r.Headers[0].Key != "h0" || string(r.Headers[0].Value) != "v0" {
			tb.Fatalf("%s: record %d: %q %q %v, want %q %q", topic, r.Offset, r.Key, r.Value, r.Headers, key, value)
		}
		i++
	})
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func kcatRead(tb testing.TB, addr string, jobs []job) [][]string {
	var out [][]string
	for _, j := range jobs {
		digests := newDigests(clientPartitions)
		d := json.NewDecoder(strings.NewReader(kcat(tb, "", "-C", "-b", addr, "-t", j.topic, "-o", "beginning", "-e", "-q", "-J")))
		seen := 0
		for d.More() {
			var m struct {
				Partition int32
				Offset    int64
				TS        int64
				Headers   []*string
				Key       *string
				Payload   *string
			}
			if err := d.Decode(&m); err != nil {
				tb.Fatal(err)
			}
			var hs []content.Header
			for i := 0; i+1 < len(m.Headers); i += 2 {
				hs = append(hs, content.Header{Key: *m.Headers[i], Value: bytesOf(m.Headers[i+1])})
			}
			digests[m.Partition].Add(m.Offset, m.TS, bytesOf(m.Key), bytesOf(m.Payload), hs)
			seen++
		}
		if seen != clientRecords {
			tb.Fatalf("%s: kcat read %d records", j.topic, seen)
		}
		out = append(out, digestStrings(digests))
	}
	return out
}

func bytesOf(s *string) []byte {
	if s == nil {
		return nil
	}
	return []byte(*s)
}

func kcatGroup(tb testing.TB, addr, topic, group string, n int) int {
	out := kcat(tb, "", "-G", group, "-b", addr, "-c", strconv.Itoa(n), "-q", "-X", "auto.offset.reset=earliest", "-f", "%o\n", topic)
	return strings.Count(out, "\n")
}
