package interop

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gregor/interop/kafka"
	"gregor/interop/node"
)

// lively makes consumer groups fast: heartbeats twice a second.
var lively = []string{
	"group.consumer.min.heartbeat.interval.ms=100",
	"group.consumer.heartbeat.interval.ms=500",
}

var compileGroups = sync.OnceValues(func() (string, error) {
	classes := filepath.Join(kafka.Root(), ".cache", "interop", "classes")
	if err := os.MkdirAll(classes, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("javac", "-d", classes, "-cp", filepath.Join(kafka.Home(), "libs", "*"),
		filepath.Join(kafka.Root(), "interop", "java", "Groups.java"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the Java members (scripts/setup-interop installs a JDK): %w\n%s", err, out)
	}
	return classes, nil
})

// startGroups runs Groups.java, whose lines come out of the scanner.
func startGroups(tb testing.TB, addr string, scenarios ...string) (lines *bufio.Scanner, goOn func()) {
	tb.Helper()
	kafka.Setup(tb)
	classes, err := compileGroups()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 5*time.Minute)
	cmd := kafka.Command(ctx, classes, "400m", "Groups", append([]string{addr}, scenarios...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		cancel()
		cmd.Wait()
	})
	return bufio.NewScanner(out), func() { fmt.Fprintln(in) }
}

// Kafka's Java consumer with group.protocol=consumer: members come, go, grow, are static, have regular expressions, and change their
// protocol. The tenth of ten members on 90 partitions stops only the partitions that it gets.
func TestConsumerGroups(t *testing.T) {
	n, _ := startGregor(t, lively...)
	lines, _ := startGroups(t, n.Addr, "basic", "range", "regex", "static", "migrate", "tenth")
	done := false
	for lines.Scan() {
		t.Log(lines.Text())
		if strings.HasPrefix(lines.Text(), "FAIL") {
			t.Error(lines.Text())
		}
		done = done || lines.Text() == "done"
	}
	if !done {
		t.Error("the scenarios didn't come to their end")
	}
	out := kafka.Must(t, "", "consumer-groups", "--bootstrap-server", n.Addr, "--list", "--type", "consumer", "--state", "empty")
	for _, g := range []string{"range", "regex", "migrate", "tenth"} { // the static member is expected back for a while
		if !strings.Contains(out, g) {
			t.Errorf("group %s isn't listed:\n%s", g, out)
		}
	}
}

// Groups with members, of each protocol and of both, are taken over, by Kafka from gregor and by gregor from Kafka, and nobody notices:
// same epochs, same partitions, and nobody has to give anything up.
func TestConsumerGroupTakeover(t *testing.T) {
	takeover := func(t *testing.T, addr string, change func()) {
		lines, goOn := startGroups(t, addr, "keep")
		var where []string
		for lines.Scan() {
			t.Log(lines.Text())
			switch text := lines.Text(); {
			case strings.HasPrefix(text, "FAIL"):
				t.Error(text)
			case strings.HasPrefix(text, "where "):
				where = append(where, text)
			case text == "ready":
				change()
				goOn()
			}
		}
		n := len(where) / 2
		if len(where) != 6 || !slices.Equal(where[:n], where[n:]) {
			t.Errorf("the groups were and are\n%s", strings.Join(where, "\n"))
		}
	}
	t.Run("by Kafka", func(t *testing.T) {
		n, dir := startGregor(t, lively...)
		takeover(t, n.Addr, func() {
			n.Stop(t)
			kafka.Start(t, dir, n.Addr)
		})
	})
	t.Run("by gregor", func(t *testing.T) {
		n, dir := startKafka(t, lively...)
		takeover(t, n.Addr, func() {
			n.Stop(t)
			node.Start(t, dir, n.Addr)
		})
	})
}
