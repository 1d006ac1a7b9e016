package node

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"gregor/interop/kafka"
)

var build = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(kafka.Root(), ".cache", "interop", "gregor")
	cmd := exec.Command("go", "build", "-o", bin, "./cmd/gregor")
	cmd.Dir = kafka.Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build gregor: %w\n%s", err, out)
	}
	return bin, nil
})

// Binary is the path of gregor, built from this checkout.
func Binary(tb testing.TB) string {
	tb.Helper()
	bin, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return bin
}

// Run runs gregor with args to its end and returns its standard output; the test fails unless it exits with 0.
func Run(tb testing.TB, args ...string) string {
	tb.Helper()
	cmd := exec.Command(Binary(tb), args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil {
		tb.Fatalf("gregor %q: %v\n%s%s", args, err, o.String(), e.String())
	}
	return o.String()
}

// Node is a running gregor process.
type Node struct {
	Dir, Addr string
	cmd       *exec.Cmd
	log       *os.File
	done      chan error
}

// Start starts gregor on dir/server.properties, which must name addr as a listener, and waits until addr accepts connections.
// The node is killed at the end of the test if it still runs.
func Start(tb testing.TB, dir, addr string, args ...string) *Node {
	tb.Helper()
	n := Launch(tb, dir, addr, args...)
	n.Await(tb)
	return n
}

// Launch is Start that does not wait.
func Launch(tb testing.TB, dir, addr string, args ...string) *Node {
	tb.Helper()
	logFile, err := os.OpenFile(filepath.Join(dir, "gregor.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		tb.Fatal(err)
	}
	n := &Node{Dir: dir, Addr: addr, log: logFile, done: make(chan error, 1)}
	n.cmd = exec.Command(Binary(tb), append([]string{"server", filepath.Join(dir, "server.properties")}, args...)...)
	n.cmd.Stdout, n.cmd.Stderr = logFile, logFile
	if err := n.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() { n.done <- n.cmd.Wait() }()
	tb.Cleanup(n.Kill)
	return n
}

// Await waits until a launched node accepts connections.
func (n *Node) Await(tb testing.TB) {
	tb.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		c, err := net.Dial("tcp", n.Addr)
		if err == nil {
			c.Close()
			return
		}
		select {
		case err := <-n.done:
			n.done <- err
			tb.Fatalf("gregor in %s ended while starting: %v\n%s", n.Dir, err, n.Log(tb))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			tb.Fatalf("gregor in %s does not listen on %s after a minute\n%s", n.Dir, n.Addr, n.Log(tb))
		}
	}
}

// Log is what the node has logged so far, over all its starts.
func (n *Node) Log(tb testing.TB) string {
	tb.Helper()
	b, err := os.ReadFile(n.log.Name())
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

// PID is the process id.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Freeze stops the process where it is, with its connections open; Thaw lets it go on.
func (n *Node) Freeze(tb testing.TB) {
	tb.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		tb.Fatal(err)
	}
}

// Thaw lets a frozen process go on.
func (n *Node) Thaw(tb testing.TB) {
	tb.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		tb.Fatal(err)
	}
}

// Stop ends the node as an operator would, and fails the test unless it ends well.
func (n *Node) Stop(tb testing.TB) {
	tb.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		tb.Fatal(err)
	}
	select {
	case err := <-n.done:
		n.done <- err
		if err != nil {
			tb.Fatalf("gregor in %s stopped with %v\n%s", n.Dir, err, n.Log(tb))
		}
	case <-time.After(time.Minute):
		n.Kill()
		tb.Fatalf("gregor in %s does not stop\n%s", n.Dir, n.Log(tb))
	}
	n.log.Close()
}

// Kill ends the node with SIGKILL; it is no error when it has ended.
func (n *Node) Kill() {
	n.cmd.Process.Kill()
	err := <-n.done
	n.done <- err
	n.log.Close()
}
