package interop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/kafka"
	"gregor/interop/node"
)

// crashRounds is how often the node is killed.
const crashRounds = 100

// ledger is what the producers of one topic have sent and what has been acknowledged.
type ledger struct {
	topic string
	// idempotent says whether nothing may stand in the topic twice.
	idempotent bool
	next       atomic.Int64
	mu         sync.Mutex      // guards acked
	acked      map[int64]int64 // offset in the partition (partition<<48 | offset) by the record's number
}

// TestCrash kills the node 100 times while idempotent and plain producers write and a group reads and commits. At the end nothing
// that was acknowledged is missing or stands at another offset than it was acknowledged with, what idempotent producers
// wrote stands there once and in order, and the group has not seen its committed offsets go back or vanish.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	ports := kafka.FreePorts(t, 2)
	kafka.WriteProperties(t, dir, kafka.Properties(1, ports[0], ports[1], filepath.Join(dir, "data"), append(quick,
		// Small segments, so that rolls and index files are in the game too.
		"log.segment.bytes=1048576", "log.flush.offset.checkpoint.interval.ms=50", "producer.id.expiration.ms=86400000")...))
	node.Run(t, "storage", "format", "--standalone", "-t", clusterID, "-c", filepath.Join(dir, "server.properties"))
	addr := fmt.Sprintf("127.0.0.1:%d", ports[0])
	n := node.Start(t, dir, addr)
	a := admin(t, addr)
	a.create(t, "idempotent", 2)
	a.create(t, "plain", 2)
	a.create(t, "input", 1)

	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	idempotent := &ledger{topic: "idempotent", idempotent: true, acked: map[int64]int64{}}
	plain := &ledger{topic: "plain", acked: map[int64]int64{}}
	for _, l := range []*ledger{idempotent, plain} {
		load.Go(func() { l.produce(ctx, t, addr) })
	}
	var commits atomic.Int64
	load.Go(func() { commitUp(ctx, t, addr, &commits) })

	rng := rand.New(rand.NewPCG(1, 2))
	for round := range crashRounds {
		time.Sleep(50*time.Millisecond + time.Duration(rng.IntN(250))*time.Millisecond)
		n.Kill()
		n = node.Start(t, dir, addr)
		if t.Failed() {
			t.Fatalf("after %d kills", round+1)
		}
	}
	// All that is under way gets through once the node stays.
	time.Sleep(time.Second)
	stop()
	load.Wait()
	for _, l := range []*ledger{idempotent, plain} {
		l.check(t, addr)
	}
	if log := n.Log(t); strings.Contains(log, "panic") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the node complains: %s", tailOf(log))
	}
	t.Logf("%d kills; %d records acknowledged by the idempotent producer, %d by the plain one; %d commits",
		crashRounds, len(idempotent.acked), len(plain.acked), commits.Load())
}

// produce writes numbered records until ctx is done, then waits for what is under way.
func (l *ledger) produce(ctx context.Context, t *testing.T, addr string) {
	opts := []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxBufferedRecords(500), kgo.ProducerLinger(time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.RecordRetries(1 << 30), kgo.DialTimeout(time.Second)}
	if !l.idempotent {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	c := franz(t, addr, opts...)
	for ctx.Err() == nil {
		number := l.next.Add(1) - 1
		r := &kgo.Record{Topic: l.topic, Partition: int32(number % 2), Value: []byte(strconv.FormatInt(number, 10) + strings.Repeat(".", int(number%400)))}
		c.Produce(context.WithoutCancel(ctx), r, func(r *kgo.Record, err error) {
			if err != nil {
				if l.idempotent {
					t.Errorf("%s: record %d: %v", l.topic, number, err)
				}
				return
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.acked[number] = int64(r.Partition)<<48 | r.Offset
		})
		if number%50 == 49 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	end, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Flush(end); err != nil {
		t.Errorf("%s: %v", l.topic, err)
	}
}

// check reads the topic to its end and compares.
func (l *ledger) check(t *testing.T, addr string) {
	t.Helper()
	at := map[int64]int64{}
	times := map[int64]int{}
	last := map[int32]int64{0: -1, 1: -1}
	var total int64
	a := admin(t, addr)
	for p := range int32(2) {
		total += a.endOffset(t, l.topic, p)
	}
	franzRecords(t, addr, l.topic, int(total), func(r *kgo.Record) {
		number, err := strconv.ParseInt(strings.TrimRight(string(r.Value), "."), 10, 64)
		if err != nil {
			t.Fatalf("%s-%d: record %d is %q", l.topic, r.Partition, r.Offset, r.Value)
		}
		times[number]++
		at[int64(r.Partition)<<48|r.Offset] = number
		if l.idempotent && number <= last[r.Partition] {
			t.Errorf("%s-%d: record %d behind %d, at offset %d", l.topic, r.Partition, number, last[r.Partition], r.Offset)
		}
		last[r.Partition] = number
	})
	lost := 0
	for number, place := range l.acked {
		if got, ok := at[place]; !ok || got != number {
			if lost++; lost < 10 {
				t.Errorf("%s-%d: record %d was acknowledged at offset %d, where %d is (%t)", l.topic, place>>48, number, place&(1<<48-1), got, ok)
			}
		}
	}
	if lost > 0 {
		t.Errorf("%s: %d of %d acknowledged records are not where they were acknowledged", l.topic, lost, len(l.acked))
	}
	if l.idempotent {
		for number, n := range times {
			if n > 1 {
				t.Errorf("%s: record %d stands there %d times", l.topic, number, n)
			}
		}
	}
	if len(l.acked) == 0 {
		t.Errorf("%s: nothing was acknowledged", l.topic)
	}
}

// endOffset is a partition's end offset.
func (a *administrator) endOffset(tb testing.TB, topic string, partition int32) int64 {
	tb.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID = 7, -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, -1, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	got := a.must(tb, req).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
	if got.ErrorCode != 0 {
		tb.Fatalf("end offset of %s-%d: error %d", topic, partition, got.ErrorCode)
	}
	return got.Offset
}

// commitUp commits ever higher offsets for a group without members, and checks that what was last committed is what is there.
func commitUp(ctx context.Context, t *testing.T, addr string, commits *atomic.Int64) {
	var committed, tried int64 = -1, -1
	s := &side{name: "gregor", addr: addr, clientID: "committer", kept: map[string]any{}}
	defer func() {
		if s.conn != nil {
			s.conn.Close()
		}
	}()
	fetched := func() bool {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Version = 7
		req.Group = "steady"
		req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "input", Partitions: []int32{0}}}
		resp, err := s.do(req)
		if err != nil {
			return false
		}
		r := resp.(*kmsg.OffsetFetchResponse)
		if r.ErrorCode != 0 || len(r.Topics) != 1 {
			return false
		}
		got := r.Topics[0].Partitions[0]
		// A commit that got no answer may or may not have happened.
		if got.ErrorCode == 0 && (got.Offset < committed || got.Offset > tried) {
			t.Errorf("group steady: committed offset %d, want %d to %d", got.Offset, committed, tried)
		}
		return got.ErrorCode == 0
	}
	for ctx.Err() == nil {
		if committed >= 0 && !fetched() {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		tried++
		req := commit("steady", "", -1, "input", 0, tried)
		req.Version = 8
		resp, err := s.do(req)
		if err != nil || resp.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode != 0 {
			if committed < 0 {
				find := kmsg.NewPtrFindCoordinatorRequest()
				find.Version, find.CoordinatorKeys = 4, []string{"steady"}
				s.do(find)
			}
			time.Sleep(10 * time.Millisecond)
			continue
		}
		committed = tried
		commits.Add(1)
	}
	if committed < 0 {
		t.Error("group steady: nothing was committed")
	}
}
