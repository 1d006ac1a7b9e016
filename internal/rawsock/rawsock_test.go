package rawsock

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gregor/internal/await"
)

// pair is a connection within this machine.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestBytesArrive(t *testing.T) {
	a, b := pair(t)
	sent := bytes.Repeat([]byte("0123456789abcde\n"), 1<<18) // more than all buffers hold
	go func() {
		rest := sent
		err := Of(a).Write(func(fd uintptr) bool {
			for len(rest) > 0 {
				n, err := Send(fd, rest, len(rest) > 1<<20)
				if err == syscall.EAGAIN {
					return false
				}
				if err != nil {
					t.Error(err)
					return true
				}
				rest = rest[n:]
			}
			return true
		})
		if err != nil {
			t.Error(err)
		}
		a.Close()
	}()
	sum, size := sha256.New(), 0
	buf := make([]byte, 1<<20)
	err := Of(b).Read(func(fd uintptr) bool {
		for {
			n, err := Read(fd, buf)
			switch {
			case err == syscall.EAGAIN:
				return false
			case err != nil:
				t.Error(err)
				return true
			case n == 0:
				return true
			case n > maxPiece:
				t.Errorf("%d bytes at once", n)
			}
			sum.Write(buf[:n])
			size += n
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := sha256.Sum256(sent); size != len(sent) || !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Errorf("%d bytes arrived of %d, or others", size, len(sent))
	}
}

// Writing to a connection that the other end has closed is an error, not a signal that ends the process.
func TestSendToNobody(t *testing.T) {
	a, b := pair(t)
	b.Close()
	_, _ = io.Copy(io.Discard, a) // until the end has arrived
	var err error
	await.True(t, "an error", func() bool {
		werr := Of(a).Write(func(fd uintptr) bool {
			_, err = Send(fd, []byte("x"), false)
			return err != syscall.EAGAIN
		})
		return werr != nil || err != nil
	})
	if err != syscall.EPIPE && err != syscall.ECONNRESET {
		t.Errorf("error %v", err)
	}
}

func TestUnpace(t *testing.T) {
	a, _ := pair(t)
	Unpace(a)
	var got string
	var err error
	if cerr := Of(a).Control(func(fd uintptr) { got, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	if got != loopbackCongestion {
		t.Errorf("congestion control %q", got)
	}
	p, q := net.Pipe()
	defer p.Close()
	defer q.Close()
	Unpace(p)
	if Of(p) != nil {
		t.Error("a pipe has a socket")
	}
}
