package group

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/await"
	"gregor/internal/clock"
	"gregor/internal/coordinator/memlog"
)

// forget makes a log that keeps nothing, for benchmarks that write much.
type forget struct {
	ends [50]atomic.Int64
	c    *Coordinator
}

func (f *forget) Append(p, _ int32, batch []byte) (int64, error) {
	end := f.ends[p].Add(int64(batch[26]) | int64(batch[25])<<8 + 1) // last offset delta
	f.c.HighWatermarkUpdated(p, end)
	return end, nil
}
func (f *forget) Read(int32, int64, []byte) ([]byte, error) { return nil, nil }
func (f *forget) Offsets(p int32) (start, hw, end int64, err error) {
	return 0, f.ends[p].Load(), f.ends[p].Load(), nil
}
func (f *forget) MaxBatchBytes(int32) int { return 1 << 20 }

// startBench returns a coordinator that leads 50 partitions.
func startBench(tb testing.TB) *Coordinator {
	f := &forget{}
	cfg := DefaultConfig()
	cfg.InitialRebalanceDelay = 0
	c := New(Options{Log: f, Clock: clock.System, Rand: newRand(1), Config: cfg, Linger: -1})
	f.c = c
	c.Start(50)
	for p := range int32(50) {
		c.Elected(p, 1)
	}
	awaitLoaded(tb, c)
	tb.Cleanup(c.Close)
	return c
}

// awaitLoaded waits until the coordinator has loaded all its partitions.
func awaitLoaded(tb testing.TB, c *Coordinator) {
	tb.Helper()
	await.True(tb, "the coordinator has loaded", func() bool {
		answered := make(chan int16, 1)
		c.ListGroups(&Context{Version: 5}, kmsg.NewPtrListGroupsRequest(), func(r *kmsg.ListGroupsResponse) { answered <- r.ErrorCode })
		return <-answered == 0
	})
}

// stable makes a group with one member that has its assignment.
func stable(tb testing.TB, c *Coordinator, group string) (member string) {
	j := kmsg.NewPtrJoinGroupRequest()
	j.Group, j.SessionTimeoutMillis, j.RebalanceTimeoutMillis, j.ProtocolType = group, 600_000, 600_000, "consumer"
	j.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: subscription("orders")}}
	joined := make(chan *kmsg.JoinGroupResponse, 1)
	c.JoinGroup(&Context{ClientID: "client", ClientHost: "/10.0.0.1", Version: 3}, j, func(r *kmsg.JoinGroupResponse) { joined <- r })
	r := <-joined
	s := kmsg.NewPtrSyncGroupRequest()
	s.Group, s.MemberID, s.Generation = group, r.MemberID, r.Generation
	s.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: r.MemberID, MemberAssignment: make([]byte, 60)}}
	synced := make(chan int16, 1)
	c.SyncGroup(&Context{Version: 3}, s, func(r *kmsg.SyncGroupResponse) { synced <- r.ErrorCode })
	if code := <-synced; code != 0 {
		tb.Fatalf("sync of %s: error %d", group, code)
	}
	return r.MemberID
}

func commitOf(group, member string, partitions int) *kmsg.OffsetCommitRequest {
	q := kmsg.NewPtrOffsetCommitRequest()
	q.Group, q.MemberID, q.Generation = group, member, 1
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic = "orders"
	for p := range partitions {
		cp := kmsg.NewOffsetCommitRequestTopicPartition()
		cp.Partition, cp.Offset = int32(p), 1000
		t.Partitions = append(t.Partitions, cp)
	}
	q.Topics = append(q.Topics, t)
	return q
}

func BenchmarkHeartbeat(b *testing.B) {
	c := startBench(b)
	member := stable(b, c, "g")
	ctx := &Context{Version: 4}
	b.ReportAllocs()
	for b.Loop() {
		h := kmsg.NewPtrHeartbeatRequest()
		h.Group, h.MemberID, h.Generation = "g", member, 1
		c.Heartbeat(ctx, h, func(r *kmsg.HeartbeatResponse) {
			if r.ErrorCode != 0 {
				b.Fatal(r.ErrorCode)
			}
		})
	}
}

func BenchmarkOffsetCommit(b *testing.B) {
	for _, partitions := range []int{1, 10} {
		b.Run(fmt.Sprint(partitions), func(b *testing.B) {
			c := startBench(b)
			member := stable(b, c, "g")
			ctx := &Context{Version: 9}
			q := commitOf("g", member, partitions)
			b.ReportAllocs()
			for b.Loop() {
				c.OffsetCommit(ctx, q, func(r *kmsg.OffsetCommitResponse) {
					if r.Topics[0].Partitions[0].ErrorCode != 0 {
						b.Fatal(r.Topics[0].Partitions[0].ErrorCode)
					}
				})
			}
		})
	}
}

// BenchmarkOffsetCommitConcurrent has many clients commit to groups of one partition of the topic.
func BenchmarkOffsetCommitConcurrent(b *testing.B) {
	c := startBench(b)
	member := stable(b, c, "g")
	ctx := &Context{Version: 9}
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		q := commitOf("g", member, 1)
		done := make(chan struct{}, 1)
		for pb.Next() {
			c.OffsetCommit(ctx, q, func(*kmsg.OffsetCommitResponse) { done <- struct{}{} })
			<-done
		}
	})
}

// BenchmarkTenThousandGroups reports what groups with a member and an offset each take in memory.
func BenchmarkTenThousandGroups(b *testing.B) {
	const groups = 10_000
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		c := startBench(b)
		for i := range groups {
			id := fmt.Sprint("group-", i)
			member := stable(b, c, id)
			c.OffsetCommit(&Context{Version: 9}, commitOf(id, member, 3), func(*kmsg.OffsetCommitResponse) {})
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/groups, "B/group")
		runtime.KeepAlive(c)
	}
}

// BenchmarkLoad replays a partition with a million offsets of a thousand groups.
func BenchmarkLoad(b *testing.B) {
	const groups, partitions = 1000, 1000
	log := &memlog.Log{BatchBytes: 1 << 20}
	cfg := DefaultConfig()
	fill := New(Options{Log: log, Clock: clock.System, Rand: newRand(1), Config: cfg, Linger: -1})
	log.Committed = fill.HighWatermarkUpdated
	load := func(c *Coordinator) {
		c.Start(1)
		c.Elected(0, 1)
		awaitLoaded(b, c)
	}
	load(fill)
	for i := range groups {
		q := commitOf(fmt.Sprint("group-", i), "", partitions)
		q.Generation = -1
		fill.OffsetCommit(&Context{Version: 9}, q, func(*kmsg.OffsetCommitResponse) {})
	}
	fill.Close()
	log.Committed = nil
	b.ReportAllocs()
	for b.Loop() {
		c := New(Options{Log: log, Clock: clock.System, Rand: newRand(1), Config: cfg, Linger: -1})
		load(c)
		c.Close()
	}
	b.ReportMetric(float64(groups*partitions)*float64(b.N)/b.Elapsed().Seconds(), "offsets/s")
}
