package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"gregor/internal/await"
)

func TestMurmur2(t *testing.T) {
	t.Parallel()
	// From Kafka's own tests.
	for in, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		if got := int32(murmur2([]byte(in))); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	msg := "topic gone"
	err := fmt.Errorf("produce: %w", errorOf(3, &msg))
	if !errors.Is(err, UnknownTopicOrPartition) || errors.Is(err, NotCoordinator) || !Retriable(err) || !needsRefresh(err) {
		t.Error(err)
	}
	if code, ok := Code(err); code != 3 || !ok || err.Error() != "produce: UNKNOWN_TOPIC_OR_PARTITION: topic gone" {
		t.Error(code, ok, err)
	}
	if _, ok := Code(io.EOF); ok || Retriable(io.EOF) {
		t.Error("foreign error has a code")
	}
	if e := errorFor(999); e.Name != "ERROR_999" || e.Retriable {
		t.Errorf("%+v", e)
	}
	if e := errorFor(-1); e.Name != "UNKNOWN_SERVER_ERROR" {
		t.Errorf("%+v", e)
	}
	if e := errorFor(134); e.Name != "GROUP_DELETION_FAILED" {
		t.Errorf("%+v", e)
	}
}

// fakeBroker answers requests on connections that its dial hands out.
type fakeBroker struct {
	answer func(key, version int16, id int32, body []byte) []byte // nil: close; what follows the size
	dials  atomic.Int32
}

func (f *fakeBroker) dial(context.Context, string, string) (net.Conn, error) {
	f.dials.Add(1)
	a, b := net.Pipe()
	go func() {
		defer b.Close()
		for {
			var size [4]byte
			if _, err := io.ReadFull(b, size[:]); err != nil {
				return
			}
			req := make([]byte, binary.BigEndian.Uint32(size[:]))
			if _, err := io.ReadFull(b, req); err != nil {
				return
			}
			out := f.answer(int16(binary.BigEndian.Uint16(req)), int16(binary.BigEndian.Uint16(req[2:])), int32(binary.BigEndian.Uint32(req[4:])), req)
			if out == nil {
				return
			}
			if _, err := b.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(out))), out...)); err != nil {
				return
			}
		}
	}()
	return a, nil
}

func respond(id int32, tags bool, r kmsg.Response) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(id))
	if tags {
		out = append(out, 0)
	}
	return r.AppendTo(out)
}

func apiVersions(version int16, code int16, keys ...int16) kmsg.Response {
	r := kmsg.NewPtrApiVersionsResponse()
	r.Version, r.ErrorCode = version, code
	for i := 0; i < len(keys); i += 3 {
		r.ApiKeys = append(r.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: keys[i], MinVersion: keys[i+1], MaxVersion: keys[i+2]})
	}
	return r
}

func fakeClient(t *testing.T, f *fakeBroker, change ...func(*Options)) *Client {
	t.Helper()
	o := Options{Seeds: []string{"fake"}, Dial: f.dial, Timeout: await.Patience, RetryBackoff: time.Millisecond, RetryBackoffMax: 2 * time.Millisecond}
	for _, c := range change {
		c(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// A broker that knows only old versions of ApiVersions is asked again in its own.
func TestNegotiationFallsBack(t *testing.T) {
	t.Parallel()
	var versions []int16
	f := &fakeBroker{}
	f.answer = func(key, version int16, id int32, _ []byte) []byte {
		if key == 18 {
			versions = append(versions, version)
			if version > 1 {
				return respond(id, false, apiVersions(0, 35, 18, 0, 1))
			}
			return respond(id, false, apiVersions(version, 0, 18, 0, 1, 3, 0, 5))
		}
		r := kmsg.NewPtrMetadataResponse()
		r.Version = version
		if version != 5 {
			return nil
		}
		return respond(id, false, r)
	}
	c := fakeClient(t, f)
	if err := c.Ping(t.Context()); err != nil || !slices.Equal(versions, []int16{4, 1}) {
		t.Errorf("%v, asked with %v", err, versions)
	}
	_, err := c.DescribeCluster(t.Context(), false)
	if !errors.Is(err, UnsupportedVersion) || !strings.Contains(err.Error(), "does not serve DescribeCluster") {
		t.Error(err)
	}
}

// Lost connections are dialled again, and retriable errors retried.
func TestRetries(t *testing.T) {
	t.Parallel()
	n := 0
	f := &fakeBroker{}
	f.answer = func(key, version int16, id int32, _ []byte) []byte {
		if key == 18 {
			return respond(id, false, apiVersions(version, 0, 18, 0, 4, 60, 0, 1))
		}
		n++
		r := kmsg.NewPtrDescribeClusterResponse()
		r.Version = version
		switch n {
		case 1:
			return nil // the connection closes
		case 2:
			r.ErrorCode = 7
		case 3:
			return []byte{0, 0, 0, 99} // another's answer
		default:
			r.ClusterID = "x"
		}
		return respond(id, true, r)
	}
	c := fakeClient(t, f)
	cl, err := c.DescribeCluster(t.Context(), false)
	if err != nil || cl.ID != "x" || n != 4 || f.dials.Load() != 3 {
		t.Errorf("%v %+v after %d requests, %d dials", err, cl, n, f.dials.Load())
	}
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	f := &fakeBroker{}
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	f.answer = func(key, version int16, id int32, _ []byte) []byte {
		if key != 18 {
			<-block
		}
		return respond(id, false, apiVersions(version, 0, 18, 0, 4, 3, 0, 9))
	}
	c := fakeClient(t, f, func(o *Options) { o.Timeout, o.RequestTimeout = 2*time.Second, 300*time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	start := time.Now()
	err := c.Ping(t.Context())
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errTimeout) || time.Since(start) > await.Patience {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	c.Close()
	if err := c.Ping(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestSeeds(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a": "a:9092", "a:1,b": "a:1 b:9092", "[::1]:5": "[::1]:5", "::1": "[::1]:9092", " a , ": "a:9092"} {
		c, err := New(Options{Seeds: []string{in}})
		if err != nil || strings.Join(c.o.Seeds, " ") != want {
			t.Errorf("%q: %v %v", in, c, err)
		}
	}
	if _, err := New(Options{Seeds: []string{" , "}}); err == nil {
		t.Error("no seeds accepted")
	}
}

func FuzzSkipTags(f *testing.F) {
	f.Add([]byte{0, 1, 2})
	f.Add([]byte{2, 0, 1, 7, 5, 0, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		if rest, ok := skipTags(b); ok && len(rest) >= len(b) {
			t.Fatal("nothing read")
		}
	})
}

func genMembers(t *rapid.T) ([]AssignMember, map[string]int32) {
	topics := []string{"a", "b", "c", "d"}
	counts := map[string]int32{}
	for _, name := range topics {
		if rapid.IntRange(0, 5).Draw(t, "exists") > 0 {
			counts[name] = rapid.Int32Range(1, 12).Draw(t, "partitions")
		}
	}
	members := make([]AssignMember, rapid.IntRange(1, 6).Draw(t, "members"))
	for i := range members {
		m := &members[i]
		m.ID, m.Generation = fmt.Sprintf("m%d", i), rapid.Int32Range(-1, 3).Draw(t, "generation")
		for _, name := range topics {
			if rapid.Bool().Draw(t, "subscribed") {
				m.Topics = append(m.Topics, name)
			}
			for p := range int32(12) {
				if rapid.IntRange(0, 3).Draw(t, "owned") == 0 {
					m.Owned = append(m.Owned, TopicPartition{name, p})
				}
			}
		}
	}
	return members, counts
}

// Every partition that someone wants goes to exactly one who wants it, and nobody could be given one by someone with two more.
func TestAssignors(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		members, counts := genMembers(t)
		check := func(name string, plan map[string][]TopicPartition, balanced bool) {
			seen := map[TopicPartition]string{}
			for _, m := range members {
				for _, tp := range plan[m.ID] {
					if seen[tp] != "" {
						t.Fatalf("%s: %v goes to %s and %s", name, tp, seen[tp], m.ID)
					}
					if !slices.Contains(m.Topics, tp.Topic) || tp.Partition >= counts[tp.Topic] {
						t.Fatalf("%s: %v goes to %s, which doesn't want it", name, tp, m.ID)
					}
					seen[tp] = m.ID
				}
			}
			wanted := 0
			for topic, ms := range bySubscription(members) {
				if len(ms) > 0 {
					wanted += int(counts[topic])
				}
			}
			if len(seen) != wanted {
				t.Fatalf("%s: %d of %d given", name, len(seen), wanted)
			}
			if !balanced {
				return
			}
			for tp, id := range seen {
				for _, m := range bySubscription(members)[tp.Topic] {
					if len(plan[m.ID])+1 < len(plan[id]) {
						t.Fatalf("%s: %s has %d, %s only %d, and both want %v", name, id, len(plan[id]), m.ID, len(plan[m.ID]), tp)
					}
				}
			}
		}
		check("range", RangeAssignor{}.Assign(members, counts), false)
		check("balance", balance(members, counts), true)
		// Cooperative: members let go of what is to move, and after a few rounds all is given and nothing changes any more.
		var plan, before map[string][]TopicPartition
		for round := 0; ; round++ {
			plan = CooperativeStickyAssignor{}.Assign(members, counts)
			if before != nil && maps.EqualFunc(plan, before, slices.Equal) {
				break
			}
			if round == 8 {
				t.Fatalf("no end: %v, then %v", before, plan)
			}
			for i := range members {
				m := &members[i]
				m.Generation, m.Owned = int32(10+round), slices.Clone(plan[m.ID])
			}
			before = plan
		}
		check("cooperative", plan, true)
	})
}

func TestRangeLikeJava(t *testing.T) {
	t.Parallel()
	plan := RangeAssignor{}.Assign([]AssignMember{{ID: "b", Topics: []string{"t"}}, {ID: "a", Topics: []string{"t"}}, {ID: "z", InstanceID: "i", Topics: []string{"t"}}}, map[string]int32{"t": 7})
	if got := fmt.Sprint(plan); got != "map[a:[t-3 t-4] b:[t-5 t-6] z:[t-0 t-1 t-2]]" {
		t.Error(got)
	}
}
