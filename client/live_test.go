package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor"
	"gregor/internal/await"
)

// These tests run against a node that they start, or against the live cluster, Kafka's or gregor's, that CLIENT_TEST_BOOTSTRAP
// names.
func liveClient(t *testing.T, change ...func(*Options)) *Client {
	t.Helper()
	addr := os.Getenv("CLIENT_TEST_BOOTSTRAP")
	if addr == "" {
		n, err := gregor.Start(t.Context(), gregor.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		addr = n.Addr()
	}
	o := Options{Seeds: []string{addr}, Timeout: await.Patience}
	if os.Getenv("CLIENT_TEST_DEBUG") != "" {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	for _, f := range change {
		f(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// flaky closes itself after a random number of bytes, in the middle of whatever is going on.
type flaky struct {
	net.Conn
	left *atomic.Int64
}

func (f flaky) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	f.spend(n)
	return n, err
}

func (f flaky) Write(b []byte) (int, error) {
	if int64(len(b)) > f.left.Load() && f.left.Load() >= 0 {
		// Half of it arrives.
		n, _ := f.Conn.Write(b[:f.left.Load()])
		f.spend(len(b))
		return n, io.ErrClosedPipe
	}
	n, err := f.Conn.Write(b)
	f.spend(n)
	return n, err
}

func (f flaky) spend(n int) {
	if f.left.Add(int64(-n)) < 0 {
		f.Conn.Close()
	}
}

// Connections that break at any byte cost nothing but time: every record is there once, in order.
func TestLiveExactlyOnceOverFlakyConnections(t *testing.T) {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(1, 2))
	breaks := atomic.Int64{}
	c := liveClient(t, func(o *Options) {
		o.RetryBackoff, o.RetryBackoffMax, o.Timeout = time.Millisecond, 10*time.Millisecond, await.Patience
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			breaks.Add(1)
			f := flaky{nc, &atomic.Int64{}}
			f.left.Store(3000 + r.Int64N(40_000))
			return f, nil
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	name := liveTopic(t, c, 3, nil)
	p := c.NewProducer(ProducerOptions{BatchBytes: 8000, Codec: Snappy, Linger: time.Millisecond})
	const n = 20_000
	for i := range n {
		rec := &Record{Topic: name, Partition: int32(i % 3), Value: fmt.Appendf(nil, "%d with something behind it to make it longer, %x", i, i*i)}
		if err := p.Produce(ctx, rec, func(_ *Record, err error) {
			if err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	u, err := c.NewConsumer(ConsumerOptions{Partitions: map[TopicPartition]int64{{name, 0}: 0, {name, 1}: 0, {name, 2}: 0}, PartitionBytes: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	next := [3]int{0, 1, 2}
	for got := 0; got < n; {
		rs, err := u.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rs {
			var i int
			fmt.Sscanf(string(r.Value), "%d ", &i)
			if i != next[r.Partition] {
				t.Fatalf("partition %d offset %d: record %d, want %d", r.Partition, r.Offset, i, next[r.Partition])
			}
			next[r.Partition] += 3
		}
		got += len(rs)
	}
	u.Close(ctx)
	t.Logf("%d connections", breaks.Load())
	if breaks.Load() < 30 {
		t.Error("connections didn't break")
	}
}

func liveTopic(t *testing.T, c *Client, partitions int32, configs map[string]string) string {
	t.Helper()
	name := fmt.Sprintf("client-test-%x", rand.Uint64())
	res, err := c.CreateTopics(t.Context(), []TopicSpec{{Name: name, Partitions: partitions, Configs: configs}}, false)
	if err != nil || res[0].Err != nil {
		t.Fatal(err, res)
	}
	t.Cleanup(func() {
		if res, err := c.DeleteTopics(context.Background(), []string{name}); err != nil || res[0].Err != nil {
			t.Error(err, res)
		}
	})
	return name
}

func TestLiveAdmin(t *testing.T) {
	c := liveClient(t)
	ctx := t.Context()
	if err := c.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	name := liveTopic(t, c, 3, map[string]string{"retention.ms": "100000"})
	res, err := c.CreateTopics(ctx, []TopicSpec{{Name: name}, {Name: "bad/name"}}, false)
	if err != nil || !errors.Is(res[0].Err, TopicAlreadyExists) || res[1].Err == nil {
		t.Errorf("%v %+v", err, res)
	}
	parts, err := c.CreatePartitions(ctx, map[string]int32{name: 5}, false)
	if err != nil || parts[0].Err != nil {
		t.Errorf("%v %+v", err, parts)
	}
	// A broker hears of what the controller has answered a moment later.
	var m *Metadata
	await.True(t, "the new partitions are there", func() bool {
		m, err = c.Metadata(ctx, []string{name})
		return err != nil || len(m.Topics) != 1 || len(m.Topics[0].Partitions) == 5
	})
	if err != nil || len(m.Topics) != 1 || m.ClusterID == "" {
		t.Errorf("%v %+v", err, m)
	}
	r := Resource{TopicResource, name}
	err = c.AlterConfigs(ctx, r, []ConfigChange{{"retention.ms", SetConfig, "200000"}, {"cleanup.policy", AppendConfig, "compact"}}, false)
	if err != nil {
		t.Error(err)
	}
	if err := c.AlterConfigs(ctx, r, []ConfigChange{{"retention.ms", SetConfig, "x"}}, false); err == nil {
		t.Error("nonsense accepted")
	}
	var cfg []ResourceConfigs
	await.True(t, "the new settings are there", func() bool {
		cfg, err = c.DescribeConfigs(ctx, []Resource{r}, []string{"retention.ms", "cleanup.policy"}, true)
		return err != nil || len(cfg[0].Entries) != 2 || *cfg[0].Entries[1].Value != "100000"
	})
	if err != nil || len(cfg[0].Entries) != 2 || *cfg[0].Entries[1].Value != "200000" || *cfg[0].Entries[0].Value != "delete,compact" || cfg[0].Entries[0].Doc == "" {
		t.Errorf("%v %+v", err, cfg)
	}
	cl, err := c.DescribeCluster(ctx, true)
	if err != nil || len(cl.Brokers) == 0 {
		t.Errorf("%v %+v", err, cl)
	}
	f, err := c.Features(ctx)
	if err != nil || len(f) == 0 {
		t.Errorf("%v %+v", err, f)
	}
	dirs, err := c.DescribeLogDirs(ctx)
	if err != nil || len(dirs) == 0 || dirs[0].Path == "" {
		t.Errorf("%v %+v", err, dirs)
	}
	if _, err := c.Metadata(ctx, []string{"does-not-exist"}); err != nil {
		t.Error(err)
	}
	if _, err := c.ConfigResources(ctx, TopicResource); err != nil {
		t.Error(err)
	}
}

func TestLiveProduceConsume(t *testing.T) {
	c := liveClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	name := liveTopic(t, c, 3, nil)
	n := 0
	sent := map[string]int{}
	for _, codec := range []Codec{NoCompression, Gzip, Snappy, LZ4, Zstd} {
		for _, acks := range []Acks{AllAcks, LeaderAck, NoAcks} {
			p := c.NewProducer(ProducerOptions{Codec: codec, Acks: acks, Linger: time.Millisecond})
			for i := range 200 {
				r := &Record{Topic: name, Partition: -1, Key: fmt.Appendf(nil, "key %d", i), Value: fmt.Appendf(nil, "value %d of %v", i, codec),
					Headers: []Header{{"h", []byte("v")}, {"null", nil}}}
				if i%10 == 0 {
					r.Key = nil
				}
				sent[string(r.Value)]++
				if err := p.Produce(ctx, r, func(r *Record, err error) {
					if err != nil || acks != NoAcks && r.Offset < 0 {
						t.Errorf("%+v %v", r, err)
					}
				}); err != nil {
					t.Fatal(err)
				}
				n++
			}
			if err := p.Close(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	tps := map[TopicPartition]int64{{name, 0}: Earliest, {name, 1}: Earliest, {name, 2}: Earliest}
	u, err := c.NewConsumer(ConsumerOptions{Partitions: tps, ReadCommitted: true})
	if err != nil {
		t.Fatal(err)
	}
	next := map[int32]int64{}
	for got := 0; got < n; {
		rs, err := u.Poll(ctx)
		if err != nil {
			t.Fatal(got, err)
		}
		for _, r := range rs {
			if r.Offset != next[r.Partition] || len(r.Headers) != 2 || r.Headers[1].Value != nil {
				t.Fatalf("%+v, want offset %d", r, next[r.Partition])
			}
			if r.Key != nil && PartitionForKey(r.Key, 3) != r.Partition {
				t.Fatalf("key %q in partition %d", r.Key, r.Partition)
			}
			next[r.Partition]++
			sent[string(r.Value)]--
		}
		got += len(rs)
	}
	for v, k := range sent {
		if k != 0 {
			t.Errorf("%q: %d missing", v, k)
		}
	}
	if err := u.Close(ctx); err != nil {
		t.Error(err)
	}
	offs, err := c.ListOffsets(ctx, map[TopicPartition]int64{{name, 0}: Latest, {name, 1}: Latest, {name, 2}: Latest}, false)
	total := int64(0)
	for _, o := range offs {
		total += o.Offset
	}
	if err != nil || total != int64(n) {
		t.Errorf("%v %+v", err, offs)
	}
	prod, err := c.DescribeProducers(ctx, []TopicPartition{{name, 0}})
	if err != nil || len(prod) == 0 {
		t.Errorf("%v %+v", err, prod)
	}
	del, err := c.DeleteRecords(ctx, map[TopicPartition]int64{{name, 0}: 5})
	if err != nil || len(del) != 1 || del[0].Offset != 5 {
		t.Errorf("%v %+v", err, del)
	}
}

func assignors(a Assignor) []Assignor {
	if a == nil {
		return nil
	}
	return []Assignor{a}
}

// serves says whether the broker has an API.
func serves(t *testing.T, c *Client, k kmsg.Key) bool {
	t.Helper()
	b, err := c.Brokers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	versions, err := c.APIVersions(t.Context(), b[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	_, ok := versions[k.Int16()]
	return ok
}

func TestLiveGroup(t *testing.T) {
	c := liveClient(t)
	for _, a := range []Assignor{RangeAssignor{}, CooperativeStickyAssignor{}, RoundRobinAssignor{}, StickyAssignor{}, nil} {
		protocol, assignor, leaves := ConsumerProtocol, "uniform", "consumer"
		if a != nil {
			protocol, assignor, leaves = ClassicProtocol, a.Name(), "classic"
		}
		t.Run(leaves+"/"+assignor, func(t *testing.T) {
			if protocol == ConsumerProtocol && !serves(t, c, kmsg.ConsumerGroupHeartbeat) {
				t.Skip("the broker has no groups of this protocol")
			}
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			name := liveTopic(t, c, 4, nil)
			group := name + "-group"
			p := c.NewProducer(ProducerOptions{})
			produce := func(n int) {
				for i := range n {
					if err := p.Produce(ctx, &Record{Topic: name, Partition: int32(i % 4), Value: fmt.Appendf(nil, "%d", i)}, nil); err != nil {
						t.Fatal(err)
					}
				}
				if err := p.Flush(ctx); err != nil {
					t.Fatal(err)
				}
			}
			produce(400)
			open := func() *Consumer {
				u, err := c.NewConsumer(ConsumerOptions{Group: group, Topics: []string{name}, Reset: ResetEarliest, Assignors: assignors(a), Protocol: protocol,
					Heartbeat: 300 * time.Millisecond, Session: time.Minute, MaxPollInterval: await.Patience})
				if err != nil {
					t.Fatal(err)
				}
				return u
			}
			u1 := open()
			got := 0
			for got < 400 {
				rs, err := u1.Poll(ctx)
				if err != nil {
					t.Fatal(err)
				}
				got += len(rs)
			}
			if err := u1.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			u2 := open()
			// Members that commit by themselves give partitions up while they are polled.
			seen := make(chan int, 100)
			for _, u := range []*Consumer{u1, u2} {
				go func() {
					for {
						rs, err := u.Poll(ctx)
						if err != nil {
							return
						}
						seen <- len(rs)
					}
				}()
			}
			await.True(t, "both members have two partitions", func() bool { return len(u2.Assignment()) == 2 && len(u1.Assignment()) == 2 })
			// The coordinator hears a moment later that a member has taken over.
			await.True(t, "the group is stable, with half of the partitions for each", func() bool {
				g, err := c.DescribeGroup(ctx, group)
				return err == nil && g.Err == nil && g.State == "Stable" && g.Protocol == assignor && len(g.Members) == 2 &&
					len(g.Members[0].Assigned) == 2 && len(g.Members[1].Assigned) == 2
			})
			produce(40)
			for n := 0; n < 40; {
				select {
				case k := <-seen:
					n += k
				case <-ctx.Done():
					t.Fatal("records missing")
				}
			}
			if err := u1.Close(ctx); err != nil {
				t.Error(err)
			}
			await.True(t, "the second member has all partitions", func() bool { return len(u2.Assignment()) == 4 })
			if err := u2.Commit(ctx); err != nil {
				t.Error(err)
			}
			if err := u2.Close(ctx); err != nil {
				t.Error(err)
			}
			offs, err := c.GroupOffsets(ctx, group, nil, false)
			total := int64(0)
			for _, o := range offs {
				total += o.Offset
			}
			if err != nil || total != 440 {
				t.Errorf("%v %+v", err, offs)
			}
			if err := c.CommitGroupOffsets(ctx, group, []CommittedOffset{{TopicPartition: TopicPartition{name, 0}, Offset: 3, LeaderEpoch: -1}}); err != nil {
				t.Error(err)
			}
			if err := c.DeleteGroupOffsets(ctx, group, []TopicPartition{{name, 1}}); err != nil {
				t.Error(err)
			}
			ls, err := c.ListGroups(ctx, nil, nil)
			if err != nil || len(ls) == 0 {
				t.Errorf("%v %+v", err, ls)
			}
			if err := c.DeleteGroup(ctx, group); err != nil {
				t.Error(err)
			}
			if g, err := c.DescribeGroup(ctx, group); err != nil || g.State != "Dead" {
				t.Errorf("%v %+v", err, g)
			}
			if err := p.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
