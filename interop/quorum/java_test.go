package quorum

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gregor/interop/kafka"
)

// javaLoad is Kafka's own Java clients at work: its verifiable producer, which writes numbers with idempotence, and its verifiable
// consumer, in a group. What they print is checked.
type javaLoad struct {
	tb       testing.TB
	producer *javaClient
	consumer *javaClient

	mu       sync.Mutex // guards all below
	at       map[javaAt]int
	acked    map[int]javaAt
	consumed map[javaAt]bool
	highest  map[int32]int // consumed, by partition, of what has not been consumed before
	refused  int           // commits that failed, as some do in a rebalance
	faults   []string
}

type javaAt struct {
	partition int32
	offset    int64
}

// javaClient is one process.
type javaClient struct {
	cmd    *exec.Cmd
	done   chan error
	stderr bytes.Buffer // to be read when the process has ended
}

// javaEvent is a line that the clients print.
type javaEvent struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Message   string `json:"message"`
	Exception string `json:"exception"`
	Success   *bool  `json:"success"`
	Error     string `json:"error"`
}

// javaLoad starts the clients on a topic that exists.
func (c *cluster) javaLoad(topic, protocol string) *javaLoad {
	c.tb.Helper()
	l := &javaLoad{tb: c.tb, at: map[javaAt]int{}, acked: map[int]javaAt{}, consumed: map[javaAt]bool{}, highest: map[int32]int{}}
	var seeds []string
	for _, m := range c.members {
		seeds = append(seeds, m.addr)
	}
	dir := c.tb.TempDir()
	settings := filepath.Join(dir, "producer.properties")
	if err := os.WriteFile(settings, []byte("retries=2147483647\ndelivery.timeout.ms=240000\nrequest.timeout.ms=5000\nenable.idempotence=true\nmetadata.max.age.ms=5000\n"), 0o644); err != nil {
		c.tb.Fatal(err)
	}
	to := strings.Join(seeds, ",")
	l.consumer = l.run("verifiable-consumer", "--bootstrap-server", to, "--topic", topic, "--group-id", "java", "--group-protocol", protocol, "--verbose")
	l.producer = l.run("verifiable-producer", "--bootstrap-server", to, "--topic", topic, "--throughput", "100", "--command-config", settings)
	return l
}

func (l *javaLoad) run(tool string, args ...string) *javaClient {
	l.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	j := &javaClient{cmd: kafka.Command(ctx, "", "96m", kafka.Tools[tool], args...), done: make(chan error, 1)}
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		l.tb.Fatal(err)
	}
	j.cmd.Stderr = &j.stderr
	if err := j.cmd.Start(); err != nil {
		l.tb.Fatal(err)
	}
	l.tb.Cleanup(func() {
		cancel()
		err := <-j.done
		j.done <- err
	})
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e javaEvent
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				l.event(e)
			}
		}
		j.done <- j.cmd.Wait()
	}()
	return j
}

func (l *javaLoad) event(e javaEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fault := func(format string, args ...any) {
		if len(l.faults) < 20 {
			l.faults = append(l.faults, fmt.Sprintf(format, args...))
		}
	}
	at := javaAt{e.Partition, e.Offset}
	switch e.Name {
	case "producer_send_success", "record_data":
		n, err := strconv.Atoi(e.Value)
		if err != nil {
			fault("%s: %v", e.Name, err)
			return
		}
		if old, ok := l.at[at]; ok && old != n {
			fault("%s: partition %d offset %d: %d was there, now it is %d", e.Name, at.partition, at.offset, old, n)
		}
		l.at[at] = n
		if e.Name == "producer_send_success" {
			l.acked[n] = at
			return
		}
		if last, ok := l.highest[at.partition]; !l.consumed[at] && ok && n <= last {
			fault("partition %d offset %d: %d comes after %d", at.partition, at.offset, n, last)
		}
		if !l.consumed[at] {
			l.consumed[at], l.highest[at.partition] = true, n
		}
	case "producer_send_error":
		fault("the producer: %s: %s", e.Exception, e.Message)
	case "offsets_committed":
		if e.Success != nil && !*e.Success {
			l.refused++
		}
	}
}

// missing says what is not acknowledged or not consumed of the first n records.
func (l *javaLoad) missing(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range n {
		at, ok := l.acked[i]
		if !ok {
			return fmt.Sprintf("record %d of %d is not acknowledged", i, n)
		}
		if !l.consumed[at] {
			return fmt.Sprintf("record %d of %d, in partition %d at %d, is not consumed", i, n, at.partition, at.offset)
		}
	}
	return ""
}

// wait waits until the first n records are acknowledged and consumed.
func (l *javaLoad) wait(n int) {
	l.tb.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		l.mu.Lock()
		faults := l.faults
		l.mu.Unlock()
		if len(faults) > 0 {
			l.tb.Fatalf("Java clients:\n%s", strings.Join(faults, "\n"))
		}
		missing := l.missing(n)
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			l.tb.Fatalf("Java clients: %s after %v", missing, patience)
		}
		for _, j := range []*javaClient{l.producer, l.consumer} {
			select {
			case err := <-j.done:
				j.done <- err
				if j == l.consumer || err != nil && j.cmd.ProcessState.ExitCode() != 143 {
					l.tb.Fatalf("%q has ended: %v\n%s", j.cmd.Args[len(j.cmd.Args)-1], err, j.stderr.String())
				}
			default:
			}
		}
	}
}

// progress waits until n more records are acknowledged and consumed.
func (l *javaLoad) progress(n int) {
	l.tb.Helper()
	l.mu.Lock()
	n += len(l.acked)
	l.mu.Unlock()
	l.wait(n)
}

// finish ends the producer, which sends all that it has begun, waits until everything is consumed, and ends the consumer. Nothing
// may be there twice.
func (l *javaLoad) finish() {
	l.tb.Helper()
	l.producer.end(l.tb)
	l.mu.Lock()
	n := len(l.acked)
	l.mu.Unlock()
	l.wait(n)
	l.consumer.end(l.tb)
	if len(l.consumed) != n {
		l.tb.Errorf("Java clients: %d records are acknowledged, %d are there", n, len(l.consumed))
	}
	l.tb.Logf("Java clients: %d records, %d commits were refused", n, l.refused)
}

func (j *javaClient) end(tb testing.TB) {
	tb.Helper()
	if err := j.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		tb.Fatal(err)
	}
	select {
	case err := <-j.done:
		j.done <- err
	case <-time.After(patience):
		tb.Fatalf("a Java client doesn't end within %v", patience)
	}
}
