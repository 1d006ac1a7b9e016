package interop

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/node"
	"gregor/interop/wire"
)

// hostileMemory is what the node may have used at its worst, in bytes of resident memory.
const hostileMemory = 400 << 20

// peakMemory is the most that the process has had resident.
func peakMemory(tb testing.TB, n *node.Node) int64 {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return kib << 10
		}
	}
	tb.Fatal("no VmHWM")
	return 0
}

// TestHostile does what clients should not. Each costs the node neither memory nor life, and others are served meanwhile.
func TestHostile(t *testing.T) {
	n, _ := startGregor(t)
	a := admin(t, n.Addr)
	a.create(t, "a", 1)
	served := func(t *testing.T) {
		t.Helper()
		s := &side{name: "gregor", addr: n.Addr, clientID: "honest", kept: map[string]any{}}
		start := time.Now()
		resp := s.must(t, produceTo("a", wire.Batch(nil, wire.Record{Value: []byte("v"), Timestamp: time.Now().UnixMilli()})))
		s.conn.Close()
		if p := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 {
			t.Errorf("others are not served: error %d", p.ErrorCode)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("others wait for %v", took)
		}
	}
	served(t)
	for _, c := range []struct {
		name string
		run  func(t *testing.T, addr string)
	}{
		{"lengths", hostileLengths},
		{"counts", hostileCounts},
		{"long lists", hostileLists},
		{"bombs", hostileBombs},
		{"garbage", hostileGarbage},
		{"slow", func(t *testing.T, addr string) { hostileSlow(t, addr, served) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Forgets the peak so far.
			if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", n.PID()), []byte("5"), 0o644); err != nil {
				t.Fatal(err)
			}
			before := peakMemory(t, n)
			c.run(t, n.Addr)
			served(t)
			peak := peakMemory(t, n)
			if peak > hostileMemory {
				t.Errorf("the node used %d MiB", peak>>20)
			}
			t.Logf("peak of resident memory: %d MiB, %d MiB before", peak>>20, before>>20)
		})
	}
	if log := n.Log(t); strings.Contains(log, "panic") || strings.Contains(log, "fatal error") {
		t.Errorf("the node complains:\n%s", tailOf(log))
	}
}

// produceTo is a request that writes a batch to partition 0 of a topic.
func produceTo(topic string, batch []byte) *kmsg.ProduceRequest {
	r := kmsg.NewPtrProduceRequest()
	r.Version, r.Acks, r.TimeoutMillis = 9, -1, 5000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Records = batch
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	return r
}

// rejected sends bytes on a connection of their own and waits until the node has closed it, or answered.
func rejected(t *testing.T, addr, name string, frame []byte) {
	t.Helper()
	c, err := wire.Dial(addr, "hostile")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(frame); err != nil {
		return // closed already
	}
	if _, err := c.ReadFrame(); errors.Is(err, wire.ErrSilent) {
		t.Errorf("%s: neither answered nor closed", name)
	}
}

// header is a request header, v1, after a length.
func header(length int, key, version int16) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(length))
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, 1)
	return binary.BigEndian.AppendUint16(b, 0xffff)
}

// framed puts the length before a body.
func framed(key, version int16, body []byte) []byte {
	return append(header(10+len(body), key, version), body...)
}

func hostileLengths(t *testing.T, addr string) {
	for _, n := range []uint32{1<<31 - 1, 1 << 31, 1<<32 - 1, 100<<20 + 1, 0, 1, 7} {
		rejected(t, addr, fmt.Sprintf("length %d", n), append(binary.BigEndian.AppendUint32(nil, n), make([]byte, 1000)...))
	}
	// As large as may be, announced on many connections and never sent.
	var conns []net.Conn
	for range 100 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		c.Write(append(header(100<<20, 0, 9), make([]byte, 100)...))
	}
	time.Sleep(200 * time.Millisecond)
	for _, c := range conns {
		c.Close()
	}
}

// hostileCounts announces a million elements, and far more, where there are none.
func hostileCounts(t *testing.T, addr string) {
	huge := map[string][]byte{
		"a million": binary.BigEndian.AppendUint32(nil, 1_000_000), "2^31-1": {0x7f, 0xff, 0xff, 0xff}, "-2": {0xff, 0xff, 0xff, 0xfe},
	}
	compact := map[string][]byte{
		"a million": binary.AppendUvarint(nil, 1_000_001), "2^31": binary.AppendUvarint(nil, 1<<31), "2^32-1": binary.AppendUvarint(nil, 1<<32-1),
		"2^63": binary.AppendUvarint(nil, 1<<63), "endless": bytes.Repeat([]byte{0xff}, 20),
	}
	conn, err := wire.Dial(addr, "hostile")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := conn.Do(kmsg.NewPtrApiVersionsRequest())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range resp.(*kmsg.ApiVersionsResponse).ApiKeys {
		for v := max(k.MinVersion, 0); v <= k.MaxVersion; v++ {
			req := kmsg.RequestForKey(k.ApiKey)
			if req == nil {
				continue
			}
			req.SetVersion(v)
			counts, tag := huge, []byte(nil)
			if req.IsFlexible() {
				counts, tag = compact, []byte{0}
			}
			for name, count := range counts {
				// At the start, and at a place where lists often are: behind some fields.
				for _, skip := range []int{0, 2, 4, 8} {
					body := append(bytes.Clone(tag), make([]byte, skip)...)
					body = append(append(body, count...), make([]byte, 64)...)
					switch _, err := send(conn, framed(k.ApiKey, v, body)); {
					case errors.Is(err, wire.ErrSilent):
						t.Errorf("request %d v%d with %s elements: neither answered nor closed", k.ApiKey, v, name)
						fallthrough
					case err != nil:
						conn.Close()
						if conn, err = wire.Dial(addr, "hostile"); err != nil {
							t.Fatal(err)
						}
						conn.Timeout = 10 * time.Second
					}
				}
			}
		}
	}
}

// send sends a frame and an honest request behind it, and waits until that is answered or the connection is closed: the frame
// itself may be one that gets no answer.
func send(c *wire.Conn, frame []byte) ([]byte, error) {
	const probe = 77
	if _, err := c.Write(append(frame, append(binary.BigEndian.AppendUint32(nil, 10), 0, 18, 0, 0, 0, 0, 0, probe, 0xff, 0xff)...)); err != nil {
		return nil, wire.ErrClosed
	}
	for {
		b, err := c.ReadFrame()
		if err != nil || len(b) >= 4 && binary.BigEndian.Uint32(b) == probe {
			return b, err
		}
	}
}

// hostileLists sends what is long indeed.
func hostileLists(t *testing.T, addr string) {
	const n = 1_000_000
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version = 4
	for i := range n {
		metadata.Topics = append(metadata.Topics, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(strconv.Itoa(i % 1000))})
	}
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.Version, find.CoordinatorKeys = 4, make([]string, n)
	list := kmsg.NewPtrListOffsetsRequest()
	list.Version, list.ReplicaID = 7, -1
	list.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "a", Partitions: make([]kmsg.ListOffsetsRequestTopicPartition, n)}}
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Version, fetch.ReplicaID, fetch.MaxBytes = 12, -1, 1<<20
	fetch.Topics = []kmsg.FetchRequestTopic{{Topic: "a", Partitions: make([]kmsg.FetchRequestTopicPartition, n/4)}}
	// Many at a time: what the node makes of them must wait for room.
	const each = 6
	var wg sync.WaitGroup
	for _, req := range []kmsg.Request{metadata, find, list, fetch} {
		for range each {
			wg.Go(func() {
				c, err := wire.Dial(addr, "hostile")
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				c.Timeout = 2 * time.Minute
				if _, err := c.Do(req); errors.Is(err, wire.ErrSilent) {
					t.Errorf("request %d with a million elements: neither answered nor closed", req.Key())
				}
			})
		}
		wg.Wait()
	}
}

// zeros is a record whose value is n bytes of zero, written to w.
func zeros(w io.Writer, n int64) {
	var body []byte
	body = append(body, 0)
	body = binary.AppendVarint(body, 0)
	body = binary.AppendVarint(body, 0)
	body = binary.AppendVarint(body, -1)
	body = binary.AppendVarint(body, n)
	w.Write(binary.AppendVarint(nil, int64(len(body))+n+1))
	w.Write(body)
	chunk := make([]byte, 1<<20)
	for n > 0 {
		k := min(n, int64(len(chunk)))
		w.Write(chunk[:k])
		n -= k
	}
	w.Write([]byte{0})
}

// hostileBombs sends batches that are small on the wire and huge when decompressed, or say that they are.
func hostileBombs(t *testing.T, addr string) {
	compress := func(open func(io.Writer) io.WriteCloser, n int64) []byte {
		var b bytes.Buffer
		w := open(&b)
		zeros(w, n)
		w.Close()
		return b.Bytes()
	}
	gz := compress(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, 700<<20)
	zs := compress(func(w io.Writer) io.WriteCloser {
		e, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}, 2000<<20)
	l4 := compress(func(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) }, 200<<20)
	// Snappy: a block that says it has 4 GiB less a byte, plain and in the framing of the Java client.
	claim := append(binary.AppendUvarint(nil, 1<<32-1), bytes.Repeat([]byte{0xfe, 0, 0}, 1000)...)
	framedClaim := append([]byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1}, binary.BigEndian.AppendUint32(nil, uint32(len(claim)))...)
	framedClaim = append(framedClaim, claim...)
	// And one that keeps its word as far as it goes: copies of copies, 64 bytes for 3.
	honest := append(binary.AppendUvarint(nil, 1+64*300_000), 0, 0)
	honest = append(honest, bytes.Repeat([]byte{0xfe, 1, 0}, 300_000)...)
	// Zstandard: a window of 2 GiB, and a content of 2^62 bytes.
	window := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00}
	size := append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0}, binary.LittleEndian.AppendUint64(nil, 1<<62)...)
	size = append(size, 0x01, 0, 0)
	for _, b := range []struct {
		name  string
		codec int16
		data  []byte
		// whole says that it is a batch as it should be, if a large one: Kafka takes it too.
		whole bool
	}{
		{"gzip", 1, gz, true}, {"snappy that lies", 2, claim, false}, {"framed snappy that lies", 2, framedClaim, false},
		{"snappy", 2, honest, false}, {"lz4", 3, l4, true}, {"zstd", 4, zs, true}, {"zstd with a huge window", 4, window, false},
		{"zstd with a huge size", 4, size, false},
	} {
		batch := wire.Batch(func(h *kmsg.RecordBatch) { h.Attributes, h.Records = b.codec, b.data }, wire.Record{Timestamp: time.Now().UnixMilli()})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				c, err := wire.Dial(addr, "hostile")
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				resp, err := c.Do(produceTo("a", batch))
				switch {
				case errors.Is(err, wire.ErrSilent):
					t.Errorf("%s of %d bytes: no answer", b.name, len(batch))
				case err == nil && resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode == 0 && !b.whole:
					t.Errorf("%s of %d bytes: accepted", b.name, len(batch))
				}
			})
		}
		wg.Wait()
	}
}

// hostileGarbage sends random bytes, other protocols, and requests cut or changed at random places.
func hostileGarbage(t *testing.T, addr string) {
	rng := rand.New(rand.NewPCG(3, 4))
	bytesOf := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	shoot := func(b []byte) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Write(b)
		c.(*net.TCPConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, c); err != nil {
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				t.Errorf("%d bytes of garbage: the connection stays", len(b))
			}
		}
		c.Close()
	}
	for range 200 {
		shoot(bytesOf(rng.IntN(5000)))
	}
	shoot([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	shoot([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("x", 500)))
	whole := framed(0, 9, append([]byte{0}, produceTo("a", wire.Batch(nil, wire.Record{Value: bytesOf(300), Timestamp: 1})). /* body */ AppendTo(nil)...))
	for range 500 {
		b := bytes.Clone(whole)
		for range 1 + rng.IntN(4) {
			b[4+rng.IntN(len(b)-4)] = byte(rng.Uint32())
		}
		shoot(b)
	}
	for cut := 0; cut < len(whole); cut += 3 {
		b := bytes.Clone(whole[:cut])
		if cut >= 4 {
			binary.BigEndian.PutUint32(b, uint32(cut-4))
		}
		shoot(b)
	}
}

// hostileSlow opens many connections that send large requests byte by byte, and some that never read their answers.
func hostileSlow(t *testing.T, addr string, served func(*testing.T)) {
	var conns []net.Conn
	for i := range 300 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if i%3 == 0 {
			// Asks for metadata over and over and never reads.
			ask := framed(3, 1, []byte{0xff, 0xff, 0xff, 0xff})
			c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			for range 2000 {
				if _, err := c.Write(ask); err != nil {
					break
				}
			}
			continue
		}
		c.Write(header(50<<20, 0, 9))
	}
	for range 10 {
		for _, c := range conns {
			c.SetWriteDeadline(time.Now().Add(time.Millisecond))
			c.Write([]byte{0})
		}
		served(t)
	}
	for _, c := range conns {
		c.Close()
	}
}
