package network

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"gregor/internal/api"
	"gregor/internal/uuid"
)

// serverCPU and friends: the benchmarks report, beside the time, the CPU that the whole process used (client and server), as
// cpu-us/op. The client side is as thin as it can be: prepared bytes out, whole frames in.

func cpuTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func startServer(tb testing.TB, o Options, h Handler) (*Server, string) {
	tb.Helper()
	o.Listeners = []Listener{{Name: "PLAINTEXT", Addr: "127.0.0.1:0", SecurityProtocol: "PLAINTEXT", Table: api.FullTable(api.BrokerListener), Handler: h}}
	s, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Listen(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	s.Start()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			tb.Error(err)
		}
		if n := s.MemoryUsed(); n != 0 {
			tb.Errorf("%d bytes of the budget are still held", n)
		}
		if n := s.pools.live.Load(); n != 0 {
			tb.Errorf("%d buffers are still out", n)
		}
	})
	return s, s.Addr("PLAINTEXT").String()
}

// produceHandler does what the edge of the broker does to a produce request, and nothing behind it.
type produceHandler struct{ pool sync.Pool }

type produceWork struct {
	req  api.ProduceRequest
	resp api.ProduceResponse
	pool *sync.Pool
}

func (w *produceWork) AppendTo(dst []byte) []byte {
	dst = w.resp.AppendTo(dst)
	w.pool.Put(w)
	return dst
}

func (h *produceHandler) Handle(r *Request) {
	w, _ := h.pool.Get().(*produceWork)
	if w == nil {
		w = &produceWork{pool: &h.pool}
	}
	if err := w.req.Decode(r.Version, r.Body); err != nil {
		r.Close(err)
		return
	}
	w.resp.Reset(r.Version)
	for i := range w.req.Topics {
		t := w.resp.AddTopic("bench", w.req.Topics[i].TopicID)
		for _, p := range w.req.Topics[i].Partitions {
			t.Add(p.Index).BaseOffset = 1
		}
	}
	r.Reply(w)
}

func produceFrame(partitions, recordBytes int) []byte {
	body := []byte{0, 0xff, 0xff, 0, 0, 0x75, 0x30, 2, 6, 'b', 'e', 'n', 'c', 'h'}
	body = binary.AppendUvarint(body, uint64(partitions+1))
	for i := range partitions {
		body = binary.BigEndian.AppendUint32(body, uint32(i))
		body = binary.AppendUvarint(body, uint64(recordBytes+1))
		body = append(body, make([]byte, recordBytes)...)
		body = append(body, 0)
	}
	body = append(body, 0, 0)
	return frame(api.Header{Key: api.Produce, Version: 12, CorrelationID: 7, ClientID: "bench"}, body)
}

func frame(h api.Header, body []byte) []byte {
	b := api.AppendHeader(make([]byte, 4), h)
	b = append(b, body...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func readFrame(c io.Reader, buf []byte) ([]byte, error) {
	if _, err := io.ReadFull(c, buf[:4]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(buf))
	if n > len(buf) {
		return nil, fmt.Errorf("frame of %d bytes", n)
	}
	_, err := io.ReadFull(c, buf[:n])
	return buf[:n], err
}

// benchRoundTrips sends frame over conns connections, depth requests ahead.
func benchRoundTrips(b *testing.B, addr string, conns, depth int, frame []byte, respBytes int) {
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	var wg sync.WaitGroup
	each := b.N/conns + 1
	b.ResetTimer()
	cpu := cpuTime()
	for range conns {
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			buf := make([]byte, respBytes)
			sent, got := 0, 0
			for got < each {
				if n := min(depth-(sent-got), each-sent); n > 0 {
					out := frame
					for range n - 1 {
						out = append(out[:len(out):len(out)], frame...)
					}
					if _, err := c.Write(out); err != nil {
						b.Error(err)
						return
					}
					sent += n
				}
				n, err := io.ReadAtLeast(c, buf, respBytes/depth)
				if err != nil {
					b.Error(err)
					return
				}
				got += n / (respBytes / depth)
				if rest := n % (respBytes / depth); rest != 0 {
					if _, err := io.ReadFull(c, buf[:respBytes/depth-rest]); err != nil {
						b.Error(err)
						return
					}
					got++
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-us/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

func BenchmarkProduce100B(b *testing.B) {
	for _, x := range []struct{ conns, depth int }{{1, 1}, {2, 1}, {16, 1}, {1, 5}, {16, 5}} {
		b.Run(fmt.Sprintf("conns=%d/depth=%d", x.conns, x.depth), func(b *testing.B) {
			_, addr := startServer(b, Options{}, &produceHandler{})
			one := 4 + 4 + 1 + 1 + 6 + 1 + 4 + 2 + 8 + 8 + 8 + 1 + 1 + 1 + 1 + 4 + 1
			benchRoundTrips(b, addr, x.conns, x.depth, produceFrame(1, 100), one*x.depth)
		})
	}
}

func BenchmarkProduce12x64KiB(b *testing.B) {
	_, addr := startServer(b, Options{}, &produceHandler{})
	f := produceFrame(12, 64<<10)
	b.SetBytes(int64(len(f)))
	b.ReportAllocs()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 4096)
	cpu := cpuTime()
	for b.Loop() {
		if _, err := c.Write(f); err != nil {
			b.Fatal(err)
		}
		if _, err := readFrame(c, buf); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-us/op")
}

// osFile is a file that can be sent from.
type osFile struct{ *os.File }

func (f osFile) Fd() (uintptr, bool) { return f.File.Fd(), true }

// fetchHandler answers every fetch with ranges of a file.
type fetchHandler struct {
	file       api.File
	partitions int
	bytes      int
}

func (h *fetchHandler) Handle(r *Request) {
	f := &api.FetchResponse{}
	f.Reset(r.Version)
	t := f.AddTopic("", uuid.One)
	for i := range h.partitions {
		t.Add(int32(i)).Records = api.Records{File: h.file, Pos: int64(i * h.bytes), Len: h.bytes}
	}
	r.ReplyParts(f)
}

func tempFile(tb testing.TB, n int) osFile {
	tb.Helper()
	f, err := os.Create(filepath.Join(tb.TempDir(), "segment"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	if _, err := f.Write(b); err != nil {
		tb.Fatal(err)
	}
	return osFile{f}
}

func BenchmarkFetchFromPageCache(b *testing.B) {
	for _, x := range []struct{ partitions, bytes int }{{1, 1 << 20}, {12, 1 << 20}, {12, 64 << 10}, {100, 1 << 10}} {
		b.Run(fmt.Sprintf("%dx%dKiB", x.partitions, x.bytes>>10), func(b *testing.B) {
			_, addr := startServer(b, Options{SendBufferBytes: benchSendBuffer}, &fetchHandler{tempFile(b, x.partitions*x.bytes), x.partitions, x.bytes})
			f := frame(api.Header{Key: api.Fetch, Version: 18, CorrelationID: 7, ClientID: "bench"}, nil)
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			// The bytes are thrown away by the kernel, so that the client costs next to nothing.
			raw, _ := c.(*net.TCPConn).SyscallConn()
			b.SetBytes(int64(x.partitions * x.bytes))
			b.ReportAllocs()
			var head [4]byte
			cpu := cpuTime()
			for b.Loop() {
				if _, err := c.Write(f); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, head[:]); err != nil {
					b.Fatal(err)
				}
				if copyingClient {
					for n := int(binary.BigEndian.Uint32(head[:])); n > 0; {
						m, err := c.Read(scratch[:min(n, 256<<10)])
						if err != nil {
							b.Fatal(err)
						}
						n -= m
					}
				} else if err := discard(raw, int(binary.BigEndian.Uint32(head[:]))); err != nil {
					b.Fatal(err)
				}
			}
			total := float64(b.N*x.partitions*x.bytes) / (1 << 30)
			b.ReportMetric((cpuTime()-cpu).Seconds()/total, "cpu-s/GiB")
		})
	}
}

// discard reads n bytes of a TCP socket without copying them (MSG_TRUNC).
func discard(raw syscall.RawConn, n int) error {
	var err error
	rerr := raw.Read(func(fd uintptr) bool {
		for n > 0 {
			m, _, errno := syscall.Syscall6(syscall.SYS_RECVFROM, fd, uintptrOf(scratch), uintptr(min(n, len(scratch))), syscall.MSG_TRUNC, 0, 0)
			switch {
			case errno == syscall.EINTR:
			case errno == syscall.EAGAIN:
				return false
			case errno != 0:
				err = errno
				return true
			case m == 0:
				err = io.ErrUnexpectedEOF
				return true
			default:
				n -= int(m)
			}
		}
		return true
	})
	if rerr != nil {
		return rerr
	}
	return err
}

var copyingClient = os.Getenv("COPYING_CLIENT") != ""

var scratch = make([]byte, 4<<20)

func uintptrOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// benchSendBuffer is "socket.send.buffer.bytes" in the fetch benchmarks; Kafka's default is 102400.
var benchSendBuffer, _ = strconv.Atoi(os.Getenv("SEND_BUFFER"))

// BenchmarkParked is produce whose replies come from another goroutine, as with acks=all.
func BenchmarkParked(b *testing.B) {
	for _, x := range []struct{ conns, depth int }{{1, 1}, {16, 1}, {1, 5}, {16, 5}} {
		b.Run(fmt.Sprintf("conns=%d/depth=%d", x.conns, x.depth), func(b *testing.B) {
			parked := make(chan *Request, 1024)
			var wg sync.WaitGroup
			wg.Go(func() {
				var h produceHandler
				for r := range parked {
					h.Handle(r)
				}
			})
			b.Cleanup(func() { close(parked); wg.Wait() })
			_, addr := startServer(b, Options{}, HandlerFunc(func(r *Request) { parked <- r }))
			one := 4 + 4 + 1 + 1 + 6 + 1 + 4 + 2 + 8 + 8 + 8 + 1 + 1 + 1 + 1 + 4 + 1
			benchRoundTrips(b, addr, x.conns, x.depth, produceFrame(1, 100), one*x.depth)
		})
	}
}
