package sim

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func connect(t *testing.T, n *Net) (client, server net.Conn) {
	t.Helper()
	l, err := n.Listen(t.Context(), "tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	client, err = n.Dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestConnCarriesBytesAndEnds(t *testing.T) {
	c, s := connect(t, &Net{})
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	b, err := io.ReadAll(s)
	if string(b) != "hello" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	if _, err := s.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write to a closed peer: %v", err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read of a closed end: %v", err)
	}
}

func TestConnBlocksWriterWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := connect(t, &Net{})
		done := false
		go func() {
			_, _ = c.Write(make([]byte, pipeBytes+1))
			done = true
		}()
		synctest.Wait()
		if done {
			t.Error("the writer was not held up")
		}
		if _, err := io.ReadFull(s, make([]byte, pipeBytes+1)); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !done {
			t.Error("the writer is still held up")
		}
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := connect(t, &Net{})
		start := time.Now()
		_ = s.SetReadDeadline(start.Add(time.Minute))
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		_ = s.SetReadDeadline(time.Time{})
		go func() {
			time.Sleep(time.Second)
			_, _ = c.Write([]byte("x"))
		}()
		if n, err := s.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Error(n, err)
		}
	})
}

func TestDelaysKeepOrderAndFollowTheSeed(t *testing.T) {
	run := func(seed uint64) (took []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			c, s := connect(t, &Net{Seed: seed, Delay: func(_ string, r *rand.Rand) time.Duration {
				return time.Duration(r.IntN(1000)) * time.Microsecond
			}})
			start := time.Now()
			for i := range 20 {
				_, _ = c.Write([]byte{byte(i)})
			}
			for i := range 20 {
				var b [1]byte
				if _, err := s.Read(b[:]); err != nil || b[0] != byte(i) {
					t.Fatalf("byte %d: %d %v", i, b[0], err)
				}
				took = append(took, time.Since(start))
			}
		})
		return took
	}
	a, b, other := run(1), run(1), run(2)
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("one seed, two runs: %v and %v", a, b)
		}
	}
	if a[0] == other[0] && a[19] == other[19] {
		t.Error("two seeds, one run")
	}
}

func TestRefusedCutAndHealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Net{}
		if _, err := n.Dial(t.Context(), "tcp", "127.0.0.1:9"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		l, err := n.Listen(t.Context(), "tcp", "10.0.0.1:9092")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := n.Listen(t.Context(), "tcp", "10.0.0.1:9092"); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("listening twice: %v", err)
		}
		here, there := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
		c, err := n.DialFrom(t.Context(), here, "tcp", "10.0.0.1:9092")
		if err != nil {
			t.Fatal(err)
		}
		n.Cut(here, there)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after the cut: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.DialFrom(ctx, here, "tcp", "10.0.0.1:9092"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial across the cut: %v", err)
		}
		n.Heal(here, there)
		if _, err := n.DialFrom(t.Context(), here, "tcp", "10.0.0.1:9092"); err != nil {
			t.Error(err)
		}
	})
}
