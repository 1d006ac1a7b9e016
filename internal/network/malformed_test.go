package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gregor/internal/api"
)

// A broker of Kafka 4.4.0, sent the same bytes, closes the connection on each of these and answers those of the next two tests.
func TestMalformedBytesCloseTheConnection(t *testing.T) {
	prefix := func(n uint32, rest string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, n), rest...)
	}
	whole := func(rest string) []byte { return prefix(uint32(len(rest)), rest) }
	for _, x := range []struct {
		name string
		in   []byte
		want string // in the log
	}{
		{"length of 2 GiB", prefix(0x7fffffff, ""), "request of 2147483647 bytes, at most 104857600"},
		{"length just above the bound", prefix(100<<20+1, ""), "request of 104857601 bytes"},
		{"negative length", prefix(0xffffffff, "abcd"), "request of -1 bytes"},
		{"most negative length", prefix(0x80000000, ""), "request of -2147483648 bytes"},
		{"empty frame", prefix(0, ""), "request header of 0 bytes"},
		{"http", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "request of 1195725856 bytes"},
		{"tls client hello", []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), "request of 369295618 bytes"},
		{"header cut short", whole("\x00\x03\x00\x00\x00"), "request header of 5 bytes"},
		{"no client id", whole("\x00\x03\x00\x00\x00\x00\x00\x01"), "client id: message is cut short"},
		{"client id longer than the frame", whole("\x00\x03\x00\x00\x00\x00\x00\x01\x00\x09me"), "client id of 9 bytes in 2"},
		{"no tags in a v2 header", whole("\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x02me"), "tagged fields of the request header"},
		{"tag longer than the frame", whole("\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x02me\x01\x00\x7fx"), "tagged field of 127 bytes"},
		{"unknown key", whole("\x03\xe7\x00\x00\x00\x00\x00\x01\x00\x02me"), "ApiKey(999) v0"},
		{"negative key", whole("\xff\xff\x00\x00\x00\x00\x00\x01\x00\x02me"), "ApiKey(-1) v0"},
		{"key of ZooKeeper times", whole("\x00\x06\x00\x00\x00\x00\x00\x01\x00\x02me"), "ApiKey(6) v0"},
		{"key of controllers", whole("\x00\x34\x00\x00\x00\x00\x00\x01\x00\x02me\x00"), "Vote v0"},
		{"version too old", whole("\x00\x00\x00\x02\x00\x00\x00\x01\x00\x02me"), "Produce v2"},
		{"version too new", whole("\x00\x03\x00\x0e\x00\x00\x00\x01\x00\x02me\x00"), "Metadata v14"},
		{"negative version", whole("\x00\x03\xff\xff\x00\x00\x00\x01\x00\x02me"), "Metadata v-1"},
		{"body cut short", whole("\x00\x03\x00\x00\x00\x00\x00\x01\x00\x02me\x00\x00"), "Metadata v0, correlation id 1: Metadata v0: topics: length"},
		{"null array", whole("\x00\x03\x00\x00\x00\x00\x00\x01\x00\x02me\xff\xff\xff\xff"), "topics: null"},
		{"absurd count", whole("\x00\x03\x00\x00\x00\x00\x00\x01\x00\x02me\x7f\xff\xff\xff"), "array of 2147483647 elements"},
	} {
		t.Run(x.name, func(t *testing.T) {
			inWorld(t, Options{}, decoding, func(w *world) {
				c := w.dial()
				c.send(x.in)
				c.expectEnd()
				synctest.Wait()
				if l := w.log.lines(); len(l) != 1 || !strings.Contains(l[0], x.want) || !strings.Contains(l[0], "client=127.0.0.1:") {
					t.Errorf("log %q, want one line with %q", l, x.want)
				}
				w.settled()
				// The node lives on.
				c = w.dial()
				c.send(request(1, "\x00\x00\x00\x00"))
				c.expect(1, "ok")
			})
		})
	}
}

// decoding answers what api.DecodeRequest accepts.
func decoding(r *Request) {
	if _, err := api.DecodeRequest(r.Key, r.Version, r.Body); err != nil {
		r.Close(err)
		return
	}
	r.Reply(text("ok"))
}

func TestOddBytesThatKafkaAccepts(t *testing.T) {
	inWorld(t, Options{}, decoding, func(w *world) {
		c := w.dial()
		c.send(request(1, "\x00\x00\x00\x00bytes behind the body"))
		c.expect(1, "ok")
		c.send(frame(api.Header{Key: api.Metadata, CorrelationID: 2, NullClientID: true}, []byte("\x00\x00\x00\x00")))
		c.expect(2, "ok")
		// A client id of length -32768 is null too.
		c.send([]byte("\x00\x00\x00\x0e\x00\x03\x00\x00\x00\x00\x00\x03\x80\x00\x00\x00\x00\x00"))
		c.expect(3, "ok")
	})
}

// An ApiVersions request of an unknown version is answered in v0, with the range of ApiVersions alone.
func TestApiVersionsOfAnUnknownVersion(t *testing.T) {
	const want = "\x00\x23\x00\x00\x00\x01\x00\x12\x00\x00\x00\x05"
	inWorld(t, Options{}, decoding, func(w *world) {
		c := w.dial()
		for i, version := range []int16{6, 99, 32767, -1, -32768} {
			c.send(frame(api.Header{Key: api.ApiVersions, Version: version, CorrelationID: int32(i), ClientID: "x"}, []byte("whatever it holds")))
			c.expect(int32(i), want)
		}
		// The connection goes on.
		c.send(request(9, "\x00\x00\x00\x00"))
		c.expect(9, "ok")
	})
}

func TestUnservedKeyIsRefused(t *testing.T) {
	o := Options{Listeners: []Listener{{Name: "A", Addr: "127.0.0.1:9092", Table: api.NewTable(api.BrokerListener, api.ApiVersions)}}}
	inWorld(t, o, decoding, func(w *world) {
		c := w.dial()
		c.send(request(1, "\x00\x00\x00\x00"))
		c.expectEnd()
	})
}

func TestLengthAloneReservesNothing(t *testing.T) {
	inWorld(t, Options{}, echo, func(w *world) {
		var before, after runtime.MemStats
		var cs []*client
		for range 20 {
			cs = append(cs, w.dial())
		}
		synctest.Wait()
		runtime.GC()
		runtime.ReadMemStats(&before)
		for _, c := range cs {
			// 100 MiB announced, the first KiB of it sent.
			c.send(binary.BigEndian.AppendUint32(nil, 100<<20), make([]byte, 1024))
		}
		synctest.Wait()
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 20*(firstPiece+64<<10) {
			t.Errorf("20 announcements of 100 MiB cost %d KiB", got>>10)
		}
		if got := w.srv.MemoryUsed(); got > 20*firstPiece {
			t.Errorf("%d KiB of the budget are taken", got>>10)
		}
		// It grows with what arrives.
		cs[0].send(make([]byte, firstPiece))
		synctest.Wait()
		if got := w.srv.MemoryUsed(); got > 20*firstPiece+growth*firstPiece {
			t.Errorf("%d KiB of the budget are taken", got>>10)
		}
	})
}

// A connection that is closed while it waits for memory waits no longer.
func TestClosedConnectionDoesNotWaitForMemory(t *testing.T) {
	var p parking
	inWorld(t, Options{MemoryLimit: 10_000}, p.Handle, func(w *world) {
		a, b := w.dial(), w.dial()
		a.send(request(1, strings.Repeat("a", 8000)))
		b.send(request(2, "b"))
		early := p.take(t, "b")
		b.send(request(3, strings.Repeat("b", 8000)))
		synctest.Wait()
		if n := p.count(); n != 1 {
			t.Fatalf("%d requests in memory", n)
		}
		early.Conn.Close(errors.New("test"))
		synctest.Wait()
		if n := w.srv.Conns(); n != 1 {
			t.Errorf("%d connections", n)
		}
		early.NoReply()
		p.take(t, strings.Repeat("a", 8000)).Reply(text("A"))
		a.expect(1, "A")
		w.settled()
	})
}

func TestMemoryBudgetHoldsConnectionsUp(t *testing.T) {
	var p parking
	inWorld(t, Options{MemoryLimit: 10_000}, p.Handle, func(w *world) {
		a, b, c := w.dial(), w.dial(), w.dial()
		for i, x := range []*client{a, b, c} {
			x.send(request(int32(i), strings.Repeat(string(rune('a'+i)), 3900)))
			synctest.Wait()
		}
		if n := p.count(); n != 2 {
			t.Fatalf("%d requests in memory", n)
		}
		// A small request has to wait its turn too.
		d := w.dial()
		d.send(request(7, "d"))
		if n := p.count(); n != 2 {
			t.Fatalf("%d requests in memory", n)
		}
		p.take(t, strings.Repeat("a", 3900)).Reply(text("A"))
		a.expect(0, "A")
		if n := p.count(); n != 3 {
			t.Fatalf("%d requests in memory", n)
		}
		p.take(t, strings.Repeat("b", 3900)).Reply(text("B"))
		p.take(t, strings.Repeat("c", 3900)).Reply(text("C"))
		p.take(t, "d").Reply(text("D"))
		b.expect(1, "B")
		c.expect(2, "C")
		d.expect(7, "D")
		// A request larger than the whole budget gets in alone.
		e := strings.Repeat("e", 50_000)
		a.send(request(8, e))
		p.take(t, e).Reply(text("E"))
		a.expect(8, "E")
	})
}

// topics is the body of a Metadata request, v0, that asks for n topics without a name.
func topics(n int) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(n))) + strings.Repeat("\x00\x00", n)
}

// What a request becomes when it is decoded counts too.
func TestLongListsWaitForEachOther(t *testing.T) {
	var p parking
	long := topics(10_000)
	size := api.DecodedSize(api.Metadata, 0, []byte(long))
	if size < 10*int64(len(long)) {
		t.Fatalf("a list of %d bytes takes %d", len(long), size)
	}
	inWorld(t, Options{MemoryLimit: size * 3 / 2}, p.Handle, func(w *world) {
		a, b, c := w.dial(), w.dial(), w.dial()
		a.send(request(1, long))
		first := p.take(t, long)
		b.send(request(2, long))
		c.send(request(3, topics(1)), request(4, string([]byte{1})+strings.Repeat("x", 5000))) // nothing can be made of the last
		synctest.Wait()
		if n := p.count(); n != 2 {
			t.Errorf("%d requests are handled, want 2", n)
		}
		if got := w.srv.decoding.used.Load(); got != size {
			t.Errorf("%d bytes are taken, want %d", got, size)
		}
		first.Reply(text("A"))
		a.expect(1, "A")
		p.take(t, long).Reply(text("B"))
		b.expect(2, "B")
		if got := w.srv.decoding.used.Load(); got != 0 {
			t.Errorf("%d bytes are taken", got)
		}
		p.take(t, topics(1)).Reply(text("C"))
		p.take(t, string([]byte{1})+strings.Repeat("x", 5000)).Reply(text("D"))
		c.expect(3, "C")
		c.expect(4, "D")
	})
	// More than anybody gets.
	inWorld(t, Options{MaxRequestBytes: int(size / (decodedFactor + 1))}, p.Handle, func(w *world) {
		c := w.dial()
		c.send(request(1, long))
		c.expectEnd()
		synctest.Wait()
		if l := w.log.lines(); len(l) != 1 || !strings.Contains(l[0], "bytes of memory") {
			t.Errorf("log %q", l)
		}
		w.settled()
	})
}

// Requests that each hold a part of their memory may not wait for each other for ever.
func TestGrowingRequestsDoNotBlockEachOther(t *testing.T) {
	inWorld(t, Options{MemoryLimit: 1 << 20, MaxRequestBytes: 4 << 20}, func(r *Request) { r.Reply(text("ok")) }, func(w *world) {
		var cs []*client
		frames := make([][]byte, 4)
		for i := range 4 {
			c := w.dial()
			cs = append(cs, c)
			frames[i] = request(int32(i), strings.Repeat("x", 3<<20))
			c.send(frames[i][:200<<10])
			synctest.Wait()
		}
		if got := w.srv.MemoryUsed(); got != 4*firstPiece {
			t.Errorf("%d bytes of the budget are taken", got)
		}
		for i, c := range cs {
			go func() { _, _ = c.Write(frames[i][200<<10:]) }()
		}
		for i, c := range cs {
			c.expect(int32(i), "ok")
		}
	})
}

func TestStalledRequestBeyondTheBudgetIsClosed(t *testing.T) {
	inWorld(t, Options{MemoryLimit: 512 << 10}, func(r *Request) { r.Reply(text("ok")) }, func(w *world) {
		stalled, other := w.dial(), w.dial()
		stalled.send(request(1, strings.Repeat("x", 3<<20))[:300<<10]) // beyond the limit, and then silence
		synctest.Wait()
		other.send(request(2, "y"))
		other.silent()
		start := time.Now()
		other.expect(2, "ok")
		if d := time.Since(start); d != stallTime {
			t.Errorf("the other waited for %v", d)
		}
		stalled.expectEnd()
		synctest.Wait()
		if l := w.log.lines(); len(l) != 1 || !strings.Contains(l[0], "stalled") {
			t.Errorf("log %q", l)
		}
	})
}

// FuzzConnection sends arbitrary bytes in arbitrary pieces.
//
// Run it with -fuzzminimizetime 1x: which code an input reaches hangs on the scheduler a little, and minimizing goes on for ever.
func FuzzConnection(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(3))
	f.Add(request(1, "\x00\x00\x00\x00"), uint8(1))
	f.Add(append(request(1, "a"), request(2, strings.Repeat("b", 5000))...), uint8(200))
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff}, uint8(1))
	f.Add([]byte{0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 1}, uint8(0))
	f.Fuzz(func(t *testing.T, in []byte, piece uint8) {
		inWorld(t, Options{MaxRequestBytes: 1 << 20, MemoryLimit: 1 << 16}, decoding, func(w *world) {
			c := w.dial()
			for len(in) > 0 {
				n := min(int(piece)+1, len(in))
				if _, err := c.Write(in[:n]); err != nil {
					break
				}
				synctest.Wait()
				in = in[n:]
			}
			c.Close()
			synctest.Wait()
			w.settled()
			if w.srv.Conns() != 0 || len(w.log.lines()) > 1 {
				t.Error(fmt.Sprint(w.srv.Conns(), w.log.lines()))
			}
		})
	})
}
