package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/network"
	"gregor/internal/sim"
)

// outcome is how a request ended.
type outcome struct {
	resp kmsg.Response
	err  error
	at   time.Duration
}

// world is a simulated network with Peers on it.
type world struct {
	t     *testing.T
	net   *sim.Net
	peers *Peers
	begin time.Time
}

func newWorld(t *testing.T, change func(*Options)) *world {
	w := &world{t: t, net: &sim.Net{}, begin: time.Now()}
	o := Options{Dial: w.net.Dial, Rand: rand.New(rand.NewPCG(1, 2)), ClientID: "test"}
	if change != nil {
		change(&o)
	}
	w.peers = New(o)
	return w
}

// send sends in the background; the channel gets the outcome, and fails the test if there are two.
func (w *world) send(addr string, q kmsg.Request, floor int16, timeout time.Duration) <-chan outcome {
	ch := make(chan outcome, 1)
	var once sync.Once
	w.peers.Send(addr, q, floor, timeout, func(r kmsg.Response, err error) {
		first := false
		once.Do(func() { first = true })
		if !first {
			w.t.Error("a request was answered twice")
			return
		}
		ch <- outcome{r, err, time.Since(w.begin)}
	})
	return ch
}

// serve starts a server on addr. handle may park requests.
func (w *world) serve(addr string, keys []api.Key, handle func(*network.Request)) *network.Server {
	s, err := network.New(network.Options{Clock: clock.System, Listeners: []network.Listener{{
		Name: "CONTROLLER", Addr: addr, Listen: w.net.Listen, Table: api.NewTable(api.ControllerListener, append(keys, api.ApiVersions)...),
		Handler: network.HandlerFunc(func(r *network.Request) {
			if r.Key != api.ApiVersions {
				handle(r)
				return
			}
			q, err := api.DecodeRequest(r.Key, r.Version, r.Body)
			if err != nil {
				r.Close(err)
				return
			}
			resp := q.ResponseKind().(*kmsg.ApiVersionsResponse)
			for _, rng := range r.Conn.Table().Advertised(nil) {
				resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: int16(rng.Key), MinVersion: rng.Min, MaxVersion: rng.Max})
			}
			r.Reply(resp)
		}),
	}}})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := s.Listen(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	s.Start()
	return s
}

func (w *world) close(servers ...*network.Server) {
	w.peers.Close()
	for _, s := range servers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = s.Shutdown(ctx) // parked requests are left unanswered on purpose
		cancel()
	}
}

func describe() *kmsg.DescribeClusterRequest {
	q := kmsg.NewPtrDescribeClusterRequest()
	q.Version = q.MaxVersion()
	return q
}

const addr = "127.0.0.1:9093"

// echo answers DescribeCluster with the client id as the cluster's.
func echo(r *network.Request) {
	q, err := api.DecodeRequest(r.Key, r.Version, r.Body)
	if err != nil {
		r.Close(err)
		return
	}
	resp := q.ResponseKind().(*kmsg.DescribeClusterResponse)
	resp.ClusterID = r.ClientID
	r.Reply(resp)
}

func TestRequestsArePipelined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		conns := map[uint64]bool{}
		var mu sync.Mutex
		s := w.serve(addr, []api.Key{api.DescribeCluster}, func(r *network.Request) {
			mu.Lock()
			conns[r.Conn.ID()] = true
			mu.Unlock()
			time.AfterFunc(100*time.Millisecond, func() { echo(r) })
		})
		var all []<-chan outcome
		for range 10 {
			all = append(all, w.send(addr, describe(), 0, time.Second))
		}
		for _, ch := range all {
			o := <-ch
			if o.err != nil {
				t.Fatal(o.err)
			}
			if got := o.resp.(*kmsg.DescribeClusterResponse).ClusterID; got != "test" || o.resp.GetVersion() != 2 {
				t.Errorf("cluster %q version %d", got, o.resp.GetVersion())
			}
			if o.at > 150*time.Millisecond {
				t.Errorf("answered after %v: requests wait for each other", o.at)
			}
		}
		if len(conns) != 1 {
			t.Errorf("%d connections", len(conns))
		}
		w.close(s)
	})
}

func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		seen := make(chan int16, 1)
		old := &fakeNode{versions: map[int16][2]int16{18: {0, 3}, 52: {0, 1}}, refuseAbove: 3, handle: func(h api.Header, body []byte) kmsg.Response {
			seen <- h.Version
			resp := kmsg.NewPtrVoteResponse()
			resp.Version = h.Version
			return resp
		}}
		old.listen(t, w.net, addr)
		q := kmsg.NewPtrVoteRequest()
		q.Version = 2
		if o := <-w.send(addr, q, 0, time.Second); o.err != nil || <-seen != 1 {
			t.Errorf("lowered: %v", o.err)
		}
		q = kmsg.NewPtrVoteRequest()
		q.Version = 2
		if o := <-w.send(addr, q, 2, time.Second); !errors.Is(o.err, error(api.ErrUnsupportedVersion)) {
			t.Errorf("below the floor: %v", o.err)
		}
		if o := <-w.send(addr, kmsg.NewPtrFetchSnapshotRequest(), 0, time.Second); !errors.Is(o.err, error(api.ErrUnsupportedVersion)) {
			t.Errorf("not served: %v", o.err)
		}
		w.close()
		old.close()
	})
}

func TestRefusedIsNotSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		o := <-w.send(addr, describe(), 0, time.Second)
		if !errors.Is(o.err, ErrGone) || errors.Is(o.err, ErrTimeout) || o.at != 0 {
			t.Errorf("nobody listens: %v after %v", o.err, o.at)
		}

		me, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.1")
		w.net.Cut(me, other)
		o = <-w.send("10.0.0.1:9093", describe(), 0, time.Second)
		if errors.Is(o.err, ErrGone) || !errors.Is(o.err, ErrTimeout) {
			t.Errorf("no way there: %v", o.err)
		}

		// Silence of an accepted request, and a break under one.
		s := w.serve("10.0.0.2:9093", []api.Key{api.DescribeCluster}, func(*network.Request) {})
		begin := time.Now()
		o = <-w.send("10.0.0.2:9093", describe(), 0, time.Second)
		if errors.Is(o.err, ErrGone) || !errors.Is(o.err, ErrTimeout) || time.Since(begin) != time.Second {
			t.Errorf("no answer: %v", o.err)
		}
		ch := w.send("10.0.0.2:9093", describe(), 0, time.Second)
		synctest.Wait()
		w.net.Cut(me, netip.MustParseAddr("10.0.0.2"))
		if o = <-ch; !errors.Is(o.err, ErrGone) {
			t.Errorf("reset: %v", o.err)
		}
		w.net.Heal(me, netip.MustParseAddr("10.0.0.2"))
		w.close(s)
	})
}

// A process that is killed ends its connections without a reset when it had read all that was sent.
func TestEndUnderARequestIsAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		s := w.serve(addr, []api.Key{api.DescribeCluster}, func(r *network.Request) { r.Conn.Close(errors.New("bye")); r.NoReply() })
		if o := <-w.send(addr, describe(), 0, time.Second); !errors.Is(o.err, ErrGone) {
			t.Errorf("closed under a request: %v", o.err)
		}
		w.close(s)
	})
}

func TestReconnectsWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		w := newWorld(t, nil)
		dial := w.net.Dial
		w.peers.o.Dial = func(ctx context.Context, network, a string) (net.Conn, error) { dials++; return dial(ctx, network, a) }
		for time.Since(w.begin) < 10*time.Second {
			<-w.send(addr, describe(), 0, time.Second)
		}
		// 20, 40 ... 640 ms, then a second each.
		if dials < 12 || dials > 24 {
			t.Errorf("%d attempts in 10 s", dials)
		}
		s := w.serve(addr, []api.Key{api.DescribeCluster}, echo)
		if o := <-w.send(addr, describe(), 0, 2*time.Second); o.err != nil {
			t.Errorf("after the other end is back: %v", o.err)
		}
		w.close(s)
	})
}

func TestReconnectsAfterAnIdleClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		var last *network.Conn
		s := w.serve(addr, []api.Key{api.DescribeCluster}, func(r *network.Request) { last = r.Conn; echo(r) })
		for range 3 {
			if o := <-w.send(addr, describe(), 0, time.Second); o.err != nil {
				t.Fatal(o.err)
			}
			last.Close(errors.New("idle"))
			synctest.Wait()
		}
		w.close(s)
	})
}

func TestCloseAnswersAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		s := w.serve(addr, []api.Key{api.DescribeCluster}, func(*network.Request) {})
		w.net.Cut(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.1"))
		parked := w.send(addr, describe(), 0, time.Hour)
		dialing := w.send("10.0.0.1:1", describe(), 0, time.Hour)
		forgotten := w.send("10.0.0.1:2", describe(), 0, time.Hour)
		synctest.Wait()
		w.peers.Forget("10.0.0.1:2")
		<-forgotten
		w.peers.Close()
		for _, ch := range []<-chan outcome{parked, dialing, w.send(addr, describe(), 0, time.Hour)} {
			if o := <-ch; o.err == nil {
				t.Error("answered after Close")
			}
		}
		w.close(s)
	})
}

func TestHostileAnswers(t *testing.T) {
	good := func() []byte {
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.Version = 4
		resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 60, MaxVersion: 2}}
		return framed(-1, resp.AppendTo(nil))
	}
	for name, answers := range map[string][][]byte{
		"length too big":         {good(), {0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1}},
		"negative length":        {good(), {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1}},
		"unknown correlation id": {good(), framed(77, []byte{0})},
		"cut short":              {good(), framed(1, []byte{0, 0, 0})},
		"versions cut short":     {framed(-1, []byte{0, 0, 9})},
		"versions with error":    {framed(-1, []byte{0, 29, 1, 0, 0, 0, 0, 0})},
		"versions refused twice": {framed(-1, []byte{0, 35, 0, 0, 0, 0}), framed(-1, []byte{0, 35, 0, 0, 0, 0})},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil)
				n := &fakeNode{raw: answers}
				n.listen(t, w.net, addr)
				if o := <-w.send(addr, describe(), 0, time.Minute); o.err == nil || errors.Is(o.err, ErrTimeout) {
					t.Errorf("got %v", o.err)
				}
				w.close()
				n.close()
			})
		})
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 5, 0, 0, 0, 1, 9})
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		body, _, err := (&frames{conn: &pieces{b}, limit: 1 << 20}).next(false)
		if err == nil && len(body)+8 > len(b) {
			t.Fatalf("%d bytes from %d", len(body), len(b))
		}
		for _, room := range []int{0, 1, 2 << 20} {
			used := bytes.Repeat([]byte{0xee}, room)
			again, _, err2 := (&frames{conn: bytes.NewReader(b), limit: 1 << 20, buf: used}).next(true)
			if !bytes.Equal(again, body) || (err == nil) != (err2 == nil) {
				t.Fatalf("%x, %v into used memory, %x, %v otherwise", again, err2, body, err)
			}
		}
		for _, q := range []kmsg.Request{kmsg.NewPtrVoteRequest(), kmsg.NewPtrFetchRequest(), kmsg.NewPtrApiVersionsRequest(), kmsg.NewPtrEnvelopeRequest()} {
			q.SetVersion(q.MaxVersion())
			_, _ = decode(q, body)
		}
	})
}

// Responses arrive whole whatever their sizes and however their bytes are cut, and what is kept for ever isn't written to again.
func TestFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 50), rapid.IntRange(4000, 5000), rapid.Just(300<<10), rapid.Just(3<<20)), 1, 40).Draw(t, "sizes")
		var stream []byte
		for i, n := range sizes {
			stream = binary.BigEndian.AppendUint32(stream, uint32(n+4))
			stream = binary.BigEndian.AppendUint32(stream, uint32(i))
			stream = append(stream, bytes.Repeat([]byte{byte(i + 1)}, n)...)
		}
		reuse := rapid.Bool().Draw(t, "reuse")
		in := &frames{conn: iotest.HalfReader(bytes.NewReader(stream)), limit: 4 << 20}
		var kept [][]byte
		for i, n := range sizes {
			body, id, err := in.next(reuse)
			if err != nil || int(id) != i || len(body) != n {
				t.Fatalf("response %d: id %d, %d bytes, %v", i, id, len(body), err)
			}
			if reuse {
				kept = kept[:0]
			}
			kept = append(kept, body)
			for k, b := range kept {
				want := byte(k + 1)
				if reuse {
					want = byte(i + 1)
				}
				if len(bytes.Trim(b, string([]byte{want}))) > 0 {
					t.Fatalf("response %d has other bytes after %d", k, i)
				}
			}
		}
		if _, _, err := in.next(reuse); err != io.EOF {
			t.Fatalf("at the end: %v", err)
		}
		if reuse && len(sizes) > smallInARow+1 && !slices.ContainsFunc(sizes[len(sizes)-smallInARow-2:], func(n int) bool { return n > 50 }) && len(in.buf) > keepMemory {
			t.Fatalf("%d bytes are kept", len(in.buf))
		}
	})
}

// BenchmarkCall is what a request on a socket costs from end to end.
func BenchmarkCall(b *testing.B) {
	s, err := network.New(network.Options{Clock: clock.System, Listeners: []network.Listener{{
		Name: "PLAINTEXT", Addr: "127.0.0.1:0", Listen: (&net.ListenConfig{}).Listen, Table: api.NewTable(api.BrokerListener, api.ApiVersions),
		Handler: network.HandlerFunc(func(r *network.Request) {
			resp := kmsg.NewPtrApiVersionsResponse()
			for _, rng := range r.Conn.Table().Advertised(nil) {
				resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: int16(rng.Key), MinVersion: rng.Min, MaxVersion: rng.Max})
			}
			r.Reply(resp)
		}),
	}}})
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Listen(b.Context()); err != nil {
		b.Fatal(err)
	}
	s.Start()
	defer s.Shutdown(context.Background())
	p := New(Options{Dial: (&net.Dialer{}).DialContext, Rand: rand.New(rand.NewPCG(1, 2))})
	defer p.Close()
	addr := s.Addr("PLAINTEXT").String()
	answered := make(chan error)
	b.ReportAllocs()
	for b.Loop() {
		q := kmsg.NewPtrApiVersionsRequest()
		p.Send(addr, q, 0, time.Minute, func(_ kmsg.Response, err error) { answered <- err })
		if err := <-answered; err != nil {
			b.Fatal(err)
		}
	}
}

// pieces reads one byte at a time.
type pieces struct{ b []byte }

func (p *pieces) Read(dst []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, errors.New("end")
	}
	dst[0] = p.b[0]
	p.b = p.b[1:]
	return 1, nil
}

func framed(id int32, body []byte) []byte {
	out := []byte{0, 0, 0, byte(4 + len(body)), byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}
	return append(out, body...)
}

// fakeNode answers one connection: with raw frames, one for each request, or as a node of an older release.
type fakeNode struct {
	raw         [][]byte
	versions    map[int16][2]int16
	refuseAbove int16 // of ApiVersions
	handle      func(api.Header, []byte) kmsg.Response

	l  net.Listener
	wg sync.WaitGroup
}

func (n *fakeNode) listen(t *testing.T, sn *sim.Net, addr string) {
	l, err := sn.Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	n.l = l
	n.wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if err := n.serve(c); err != nil && n.raw == nil {
			t.Log("fake node:", err)
		}
	})
}

func (n *fakeNode) close() { n.l.Close(); n.wg.Wait() }

func (n *fakeNode) serve(c net.Conn) error {
	in := newFrames(c, 1<<20)
	for i := 0; ; i++ {
		head, id, err := in.next(false)
		if err != nil {
			return err
		}
		if n.raw != nil {
			if i >= len(n.raw) {
				return errors.New("no more answers")
			}
			if _, err := c.Write(n.raw[i]); err != nil {
				return err
			}
			continue
		}
		// next has taken key and version for the correlation id.
		frame := append([]byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}, head...)
		h, body, err := api.ParseHeader(frame, "")
		if err != nil {
			return err
		}
		var resp kmsg.Response
		if h.Key == api.ApiVersions {
			v := kmsg.NewPtrApiVersionsResponse()
			v.Version = h.Version
			if h.Version > n.refuseAbove {
				v.Version, v.ErrorCode = 0, api.ErrUnsupportedVersion.Code
			}
			for k, r := range n.versions {
				v.ApiKeys = append(v.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: k, MinVersion: r[0], MaxVersion: r[1]})
			}
			resp = v
		} else if resp = n.handle(h, body); resp == nil {
			return fmt.Errorf("%s is not answered", h.Key)
		}
		out := api.AppendResponseHeader([]byte{0, 0, 0, 0}, h.Key, h.Version, h.CorrelationID)
		out = resp.AppendTo(out)
		out[2], out[3] = byte((len(out)-4)>>8), byte(len(out)-4)
		if _, err := c.Write(out); err != nil {
			return err
		}
	}
}
