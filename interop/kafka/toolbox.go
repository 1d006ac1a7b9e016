package kafka

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Toolbox is a process that runs Tools one after the other, since each would need a second to start. It is not safe for
// concurrent use.
type Toolbox struct {
	in   *bufio.Writer
	out  *bufio.Scanner
	kill func()
}

var compileTools = sync.OnceValues(func() (string, error) {
	classes := filepath.Join(Root(), ".cache", "interop", "classes")
	if err := os.MkdirAll(classes, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("javac", "-d", classes, "-cp", filepath.Join(Home(), "libs", "*"),
		filepath.Join(Root(), "interop", "java", "Tools.java"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the runner of Kafka's tools (scripts/setup-interop installs a JDK): %w\n%s", err, out)
	}
	return classes, nil
})

// NewToolbox starts the process, which ends with the test.
func NewToolbox(tb testing.TB) *Toolbox {
	tb.Helper()
	Setup(tb)
	classes, err := compileTools()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := Command(ctx, classes, "256m", "Tools")
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close()
		cancel()
		cmd.Wait()
	})
	box := &Toolbox{in: bufio.NewWriter(in), out: bufio.NewScanner(out), kill: cancel}
	box.out.Buffer(nil, 64<<20)
	return box
}

// Run runs one of Tools to its end.
func (b *Toolbox) Run(stdin, tool string, args ...string) (code int, stdout, stderr string, err error) {
	class, ok := Tools[tool]
	if !ok {
		return 0, "", "", fmt.Errorf("no tool %q", tool)
	}
	b.in.WriteString(strings.Join(append([]string{base64.StdEncoding.EncodeToString([]byte(stdin)), class}, args...), "\t") + "\n")
	if err := b.in.Flush(); err != nil {
		return 0, "", "", err
	}
	// A tool that does not end takes its runner with it.
	end := time.AfterFunc(time.Minute, b.kill)
	defer end.Stop()
	if !b.out.Scan() {
		return 0, "", "", fmt.Errorf("the runner of tools is gone: %v", b.out.Err())
	}
	parts := strings.Split(b.out.Text(), "\t")
	if len(parts) != 3 {
		return 0, "", "", fmt.Errorf("unexpected output %q", b.out.Text())
	}
	if code, err = strconv.Atoi(parts[0]); err != nil {
		return 0, "", "", err
	}
	o, err := base64.StdEncoding.DecodeString(parts[1])
	if err != nil {
		return 0, "", "", err
	}
	e, err := base64.StdEncoding.DecodeString(parts[2])
	return code, string(o), string(e), err
}

// Must is Run that fails the test unless the tool ends well, and returns its standard output.
func (b *Toolbox) Must(tb testing.TB, tool string, args ...string) string {
	tb.Helper()
	return b.MustInput(tb, "", tool, args...)
}

// MustInput is Must with something on standard input.
func (b *Toolbox) MustInput(tb testing.TB, stdin, tool string, args ...string) string {
	tb.Helper()
	code, o, e, err := b.Run(stdin, tool, args...)
	if err != nil || code != 0 {
		tb.Fatalf("kafka %s %q: exit code %d, %v\n%s\n%s", tool, args, code, err, o, e)
	}
	return o
}
