package network

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"math/big"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gregor/internal/api"
	"gregor/internal/await"
)

func dialTCP(t *testing.T, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(await.Patience))
	return &client{t, c}
}

// ranges answers each request with the file ranges that its body asks for, each behind its length.
type ranges struct {
	file     api.File
	released *atomic.Int32
	spec     []byte
}

func (r ranges) AppendParts(dst []byte, parts []Part) ([]byte, []Part) {
	for b := r.spec; len(b) >= 8; b = b[8:] {
		pos, n := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		dst = binary.BigEndian.AppendUint32(dst, n)
		parts = append(parts, Part{At: len(dst), File: r.file, Pos: int64(pos), Len: int(n), Release: releaseFunc(func() { r.released.Add(1) })})
	}
	return append(dst, "end"...), parts
}

type releaseFunc func()

func (f releaseFunc) Release() { f() }

// File ranges of all sizes, from several connections at once, arrive as they are in the file.
func TestSendfile(t *testing.T) {
	file := tempFile(t, 4<<20)
	content, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	var released atomic.Int32
	_, addr := startServer(t, Options{SendBufferBytes: 32 << 10}, HandlerFunc(func(r *Request) {
		// The response is encoded while the body is valid.
		r.ReplyParts(ranges{file, &released, r.Body})
	}))
	sizes := []uint32{0, 1, 100, sendfileFrom - 1, sendfileFrom, sendfileFrom + 1, 40_000, gatherBytes, 200_000, 1 << 20}
	var wg sync.WaitGroup
	const conns, rounds = 4, 6
	var asked atomic.Int32
	for k := range conns {
		wg.Go(func() {
			c := dialTCP(t, addr)
			go func() {
				for i := range rounds {
					var spec []byte
					for j, n := range sizes {
						if (i+j)%3 != 0 {
							asked.Add(1)
							spec = binary.BigEndian.AppendUint32(spec, uint32(k*1000+i*100+j*3))
							spec = binary.BigEndian.AppendUint32(spec, n)
						}
					}
					if _, err := c.Write(request(int32(i), string(spec))); err != nil {
						t.Error(err)
					}
				}
			}()
			buf := make([]byte, 8<<20)
			for i := range rounds {
				b, err := readFrame(c, buf)
				if err != nil {
					t.Error(err)
					return
				}
				b = b[4:]
				for j, n := range sizes {
					if (i+j)%3 == 0 {
						continue
					}
					at := k*1000 + i*100 + j*3
					if got := binary.BigEndian.Uint32(b); got != n || !bytes.Equal(b[4:4+n], content[at:at+int(n)]) {
						t.Errorf("range of %d bytes from %d is wrong", n, at)
						return
					}
					b = b[4+n:]
				}
				if string(b) != "end" {
					t.Errorf("%d bytes at the end", len(b))
				}
			}
		})
	}
	wg.Wait()
	await.True(t, "all ranges are released", func() bool { return released.Load() == asked.Load() })
}

func TestSendfileOfAFileThatEndsEarly(t *testing.T) {
	file := tempFile(t, 1<<20)
	var released atomic.Int32
	_, addr := startServer(t, Options{}, HandlerFunc(func(r *Request) { r.ReplyParts(ranges{file, &released, r.Body}) }))
	c := dialTCP(t, addr)
	c.send(request(1, "\x00\x0f\x00\x00\x00\x10\x00\x00"))
	if n, err := io.Copy(io.Discard, c); n != 12+64<<10 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	await.True(t, "the range is released", func() bool { return released.Load() == 1 })
}

func TestTCPRoundTrips(t *testing.T) {
	_, addr := startServer(t, Options{}, HandlerFunc(echo))
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			c := dialTCP(t, addr)
			for i := range 50 {
				body := strings.Repeat(string(rune('a'+k)), (i*i*37)%200_000)
				c.send(request(int32(i), body))
				c.expect(int32(i), "re:"+body)
			}
		})
	}
	wg.Wait()
}

// Replies from other goroutines, in random order, still leave in request order.
func TestTCPParkedReplies(t *testing.T) {
	_, addr := startServer(t, Options{}, HandlerFunc(func(r *Request) {
		go func() {
			for range r.CorrelationID * 7 % 5 * 20 {
				runtime.Gosched()
			}
			r.Reply(text(r.Body))
		}()
	}))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c := dialTCP(t, addr)
			go func() {
				for i := range 300 {
					if _, err := c.Write(request(int32(i), "body")); err != nil {
						t.Error(err)
					}
				}
			}()
			for i := range 300 {
				c.expect(int32(i), "body")
			}
		})
	}
	wg.Wait()
}

// Whoever brings a reply writes that, and not what the connection's own goroutine has answered meanwhile: a client that goes on
// asking would keep it.
func TestBringerWritesNoMoreThanItBrings(t *testing.T) {
	first, second := make(chan *Request, 1), make(chan *Request)
	answered, leave := make(chan struct{}), make(chan struct{})
	_, addr := startServer(t, Options{}, HandlerFunc(func(r *Request) {
		if r.CorrelationID == 1 {
			first <- r
			return
		}
		second <- r
		<-leave
	}))
	c := dialTCP(t, addr)
	c.send(request(1, "parked"))
	r := <-first
	await.True(t, "the connection is idle", func() bool {
		r.Conn.mu.Lock()
		defer r.Conn.mu.Unlock()
		return !r.Conn.active
	})
	var encoded atomic.Bool
	r.Reply(encodes(func() {
		c.send(request(2, "more"))
		(<-second).Reply(encodes(func() { encoded.Store(true); close(answered) }))
	}))
	if encoded.Load() {
		t.Error("the second reply was written by who brought the first")
	}
	close(leave)
	<-answered
	c.expect(1, "ok")
	c.expect(2, "ok")
}

// encodes is a reply that calls a function when it is encoded.
type encodes func()

func (f encodes) AppendTo(dst []byte) []byte {
	f()
	return append(dst, "ok"...)
}

func TestResetWhileWriting(t *testing.T) {
	file := tempFile(t, 8<<20)
	var released atomic.Int32
	srv, addr := startServer(t, Options{SendBufferBytes: 16 << 10}, HandlerFunc(func(r *Request) { r.ReplyParts(ranges{file, &released, r.Body}) }))
	c := dialTCP(t, addr)
	for range 3 {
		c.send(request(1, "\x00\x00\x00\x00\x00\x80\x00\x00"))
	}
	if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	c.Close()
	await.True(t, "the connection is gone", func() bool { return srv.Conns() == 0 })
}

func TestLocalhostIsBothFamilies(t *testing.T) {
	s, err := New(Options{Listeners: []Listener{{Name: "L", Addr: "localhost:0", Table: api.FullTable(api.BrokerListener), Handler: HandlerFunc(echo)}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Shutdown(context.Background())
	_, port, _ := net.SplitHostPort(s.Addr("L").String())
	hosts := []string{"127.0.0.1", "localhost"}
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		l.Close()
		hosts = append(hosts, "::1")
	}
	for _, host := range hosts {
		c := dialTCP(t, net.JoinHostPort(host, port))
		c.send(request(1, "x"))
		c.expect(1, "re:x")
	}
	// The port is taken now, in both families.
	again, err := New(Options{Listeners: []Listener{
		{Name: "A", Addr: "localhost:0", Table: api.FullTable(api.BrokerListener), Handler: HandlerFunc(echo)},
		{Name: "B", Addr: "localhost:" + port, Table: api.FullTable(api.BrokerListener), Handler: HandlerFunc(echo)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "listener B on localhost:"+port) {
		t.Errorf("listening twice: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	full, h := api.FullTable(api.BrokerListener), HandlerFunc(echo)
	for _, ls := range [][]Listener{
		{{Name: "A", Addr: ":0", Table: full}},
		{{Name: "A", Addr: ":0", Handler: h}},
		{{Name: "A", Addr: ":0", Table: full, Handler: h}, {Name: "A", Addr: ":0", Table: full, Handler: h}},
	} {
		if _, err := New(Options{Listeners: ls}); err == nil {
			t.Errorf("%+v: accepted", ls)
		}
	}
}

func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	file := tempFile(t, 1<<20)
	content, _ := os.ReadFile(file.Name())
	var released atomic.Int32
	s, err := New(Options{Listeners: []Listener{{
		Name: "SSL", Addr: "127.0.0.1:0", SecurityProtocol: "SSL", Table: api.FullTable(api.BrokerListener),
		Wrap: func(c net.Conn) net.Conn { return tls.Server(c, conf) },
		Handler: HandlerFunc(func(r *Request) {
			if len(r.Body) == 8 {
				r.ReplyParts(ranges{file, &released, r.Body})
				return
			}
			echo(r)
		}),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Shutdown(context.Background())
	nc, err := tls.Dial("tcp", s.Addr("SSL").String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := &client{t, nc}
	big := strings.Repeat("x", 300_000)
	for i, body := range []string{"", "a", big, "b"} {
		c.send(request(int32(i), body))
		c.expect(int32(i), "re:"+body)
	}
	c.send(request(9, "\x00\x00\x00\x05\x00\x0f\x00\x00"))
	b, err := readFrame(c, make([]byte, 2<<20))
	if err != nil || !bytes.Equal(b[8:len(b)-3], content[5:5+0xf0000]) {
		t.Errorf("file over TLS: %d bytes, %v", len(b), err)
	}
	await.True(t, "the range is released", func() bool { return released.Load() == 1 })
	// A client that does not speak TLS is closed.
	plain := dialTCP(t, s.Addr("SSL").String())
	plain.send(request(1, "x"))
	if _, err := io.Copy(io.Discard, plain); err != nil && !isHangup(err) {
		t.Error(err)
	}
}

// An idle connection holds no buffer and little memory.
func TestIdleConnectionsAreCheap(t *testing.T) {
	srv, addr := startServer(t, Options{}, HandlerFunc(echo))
	for range 50 {
		c := dialTCP(t, addr)
		c.send(request(1, strings.Repeat("x", 100_000)))
		c.expect(1, "re:"+strings.Repeat("x", 100_000))
	}
	await.True(t, "idle connections hold no buffers", func() bool { return srv.pools.live.Load() == 0 })
	if srv.Conns() != 50 {
		t.Errorf("%d connections", srv.Conns())
	}
}
