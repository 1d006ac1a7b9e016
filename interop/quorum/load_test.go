package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// load is what clients do all along: idempotent producers write with acks=all, and groups read. It knows what was acknowledged,
// and what anybody has seen at any offset: that may never change.
type load struct {
	tb    testing.TB
	topic string
	seeds []string
	o     loadOptions
	start time.Time

	ctx    context.Context // ends when no more records are to be begun
	cancel context.CancelFunc
	busy   sync.WaitGroup // producing
	groups []*group

	mu     sync.Mutex // guards all below
	marks  [][]mark   // by partition and offset
	acked  [][]int    // by partition and producer
	faults []string
}

type loadOptions struct {
	partitions, producers int
	inFlight              int           // records of one producer in one partition that may wait for their acknowledgement
	pace                  time.Duration // between records of one producer in one partition
	groups                []string      // names; those that begin with "next" use the protocol of KIP-848
	members               int           // of each group
}

// mark is what is known to be at an offset: a record is known by who wrote it and which of its records in the partition it is.
type mark struct {
	known    bool
	producer int16
	number   int32
}

func (m mark) String() string { return fmt.Sprintf("%d/%d", m.producer, m.number) }

// client makes a client that is patient and asks anew soon.
func (l *load) client(opts ...kgo.Opt) *kgo.Client {
	l.tb.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(l.seeds...), kgo.ClientID("load"), kgo.RequestTimeoutOverhead(3 * time.Second), kgo.DialTimeout(3 * time.Second),
		kgo.MetadataMinAge(50 * time.Millisecond), kgo.MetadataMaxAge(5 * time.Second), kgo.RetryTimeout(patience),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond })}, opts...)...)
	if err != nil {
		l.tb.Fatal(err)
	}
	return cl
}

// load starts producing to a topic that exists, and reading it.
func (c *cluster) load(topic string, o loadOptions) *load {
	c.tb.Helper()
	l := &load{tb: c.tb, topic: topic, o: o, start: c.start, marks: make([][]mark, o.partitions), acked: make([][]int, o.partitions)}
	for _, m := range c.members {
		l.seeds = append(l.seeds, m.addr)
	}
	for p := range l.acked {
		l.acked[p] = make([]int, o.producers)
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	c.tb.Cleanup(func() {
		l.cancel()
		for _, g := range l.groups {
			for _, m := range g.members {
				m.leave()
			}
		}
	})
	for _, name := range o.groups {
		g := &group{l: l, name: name, seen: make([][]bool, o.partitions)}
		l.groups = append(l.groups, g)
		for range o.members {
			g.join()
		}
	}
	for producer := range o.producers {
		l.produce(producer)
	}
	return l
}

// fault notes what may not happen; the test fails for it when it next looks.
func (l *load) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) < 20 {
		l.faults = append(l.faults, fmt.Sprintf("%6.2fs  ", time.Since(l.start).Seconds())+fmt.Sprintf(format, args...))
	}
}

func (l *load) good() {
	l.tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) > 0 {
		l.tb.Fatalf("%s:\n%s", l.topic, strings.Join(l.faults, "\n"))
	}
}

// saw notes what somebody has seen at an offset.
func (l *load) saw(who string, partition int32, offset int64, value []byte) {
	producer, number, ok := strings.Cut(string(value), "/")
	p, err1 := strconv.Atoi(producer)
	n, err2 := strconv.Atoi(strings.TrimRight(number, "."))
	if !ok || err1 != nil || err2 != nil {
		l.fault("%s: partition %d offset %d: unknown record %q", who, partition, offset, value)
		return
	}
	m := mark{true, int16(p), int32(n)}
	l.mu.Lock()
	if need := offset + 1 - int64(len(l.marks[partition])); need > 0 {
		l.marks[partition] = append(l.marks[partition], make([]mark, need)...)
	}
	old := l.marks[partition][offset]
	l.marks[partition][offset] = m
	l.mu.Unlock()
	if old.known && old != m {
		l.fault("%s: partition %d offset %d: %v was there, now it is %v", who, partition, offset, old, m)
	}
}

// produce starts one producer, which writes to all partitions.
func (l *load) produce(producer int) {
	cl := l.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(l.topic), kgo.ProducerLinger(0),
		kgo.ProduceRequestTimeout(3*time.Second), kgo.StopProducerOnDataLossDetected(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	var partitions sync.WaitGroup
	for p := range l.o.partitions {
		partitions.Go(func() {
			room := make(chan struct{}, l.o.inFlight)
			for i := 0; l.ctx.Err() == nil; i++ {
				room <- struct{}{}
				// A record that has been begun is seen to its end, or it would be unclear what becomes of it.
				value := fmt.Appendf(nil, "%d/%d%s", producer, i, strings.Repeat(".", i*7%300))
				cl.Produce(context.Background(), &kgo.Record{Partition: int32(p), Value: value}, func(r *kgo.Record, err error) {
					defer func() { <-room }()
					if err != nil {
						l.fault("produce %d/%d to partition %d: %v", producer, i, p, err)
						return
					}
					if r.Offset >= 0 { // else a repetition whose first try is so long ago that the answer has no offset
						l.saw(fmt.Sprintf("producer %d", producer), r.Partition, r.Offset, r.Value)
					}
					l.mu.Lock()
					if l.acked[p][producer] != i {
						l.faults = append(l.faults, fmt.Sprintf("partition %d: record %d/%d is acknowledged after %d others", p, producer, i, l.acked[p][producer]))
					}
					l.acked[p][producer] = i + 1
					l.mu.Unlock()
				})
				select {
				case <-l.ctx.Done():
				case <-time.After(l.o.pace):
				}
			}
			for range l.o.inFlight {
				room <- struct{}{}
			}
		})
	}
	l.busy.Go(func() {
		partitions.Wait()
		cl.Close()
	})
}

// progress waits until every producer has n records more acknowledged in each of the partitions, or in all.
func (l *load) progress(n int, partitions ...int) {
	l.tb.Helper()
	if len(partitions) == 0 {
		for p := range l.acked {
			partitions = append(partitions, p)
		}
	}
	l.mu.Lock()
	want := make([][]int, len(l.acked))
	for p := range l.acked {
		want[p] = slices.Clone(l.acked[p])
	}
	l.mu.Unlock()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		l.good()
		missing := ""
		l.mu.Lock()
		for _, p := range partitions {
			for i, a := range l.acked[p] {
				if a < want[p][i]+n {
					missing = fmt.Sprintf("partition %d takes no %d records of producer %d", p, n, i)
				}
			}
		}
		l.mu.Unlock()
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			l.tb.Fatalf("%s: %s within %v", l.topic, missing, patience)
		}
	}
}

// group is a consumer group.
type group struct {
	l       *load
	name    string
	members []*reader

	mu   sync.Mutex // guards seen
	seen [][]bool   // by partition and offset
}

// reader is a member of a group.
type reader struct {
	cl   *kgo.Client
	stop context.CancelFunc
	done chan struct{}
}

// join adds a member.
func (g *group) join() {
	g.l.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	opts := []kgo.Opt{kgo.ConsumeTopics(g.l.topic), kgo.ConsumerGroup(g.name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AutoCommitInterval(300 * time.Millisecond), kgo.FetchMaxWait(500 * time.Millisecond), kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.RebalanceTimeout(15 * time.Second)}
	if strings.HasPrefix(g.name, "next") {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	r := &reader{cl: g.l.client(opts...), stop: cancel, done: make(chan struct{})}
	g.members = append(g.members, r)
	go func() {
		defer close(r.done)
		for {
			fetches := r.cl.PollFetches(ctx)
			if ctx.Err() != nil {
				return
			}
			fetches.EachError(func(topic string, p int32, err error) {
				var lost *kgo.ErrDataLoss
				var session *kgo.ErrGroupSession // the group has given the member up, which joins anew by itself
				if errors.As(err, &lost) || !errors.As(err, &session) && !kerr.IsRetriable(err) && !isNetwork(err) {
					g.l.fault("group %s: partition %d: %v", g.name, p, err)
				}
			})
			fetches.EachRecord(func(rec *kgo.Record) {
				g.l.saw("group "+g.name, rec.Partition, rec.Offset, rec.Value)
				g.mu.Lock()
				if need := rec.Offset + 1 - int64(len(g.seen[rec.Partition])); need > 0 {
					g.seen[rec.Partition] = append(g.seen[rec.Partition], make([]bool, need)...)
				}
				g.seen[rec.Partition][rec.Offset] = true
				g.mu.Unlock()
			})
		}
	}()
}

// isNetwork says whether an error is one of a connection and not of a broker.
func isNetwork(err error) bool {
	var broker *kerr.Error
	return !errors.As(err, &broker)
}

// leave ends a member, which commits before.
func (r *reader) leave() {
	r.stop()
	<-r.done
	r.cl.Close()
}

// change replaces the member that has been there for longest.
func (g *group) change() {
	g.l.tb.Helper()
	first := g.members[0]
	g.members = g.members[1:]
	g.join()
	first.leave()
}

// stop lets the producers finish.
func (l *load) stop() {
	l.tb.Helper()
	l.cancel()
	done := make(chan struct{})
	go func() {
		l.busy.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		l.good()
		l.tb.Fatalf("%s: records are not acknowledged within %v", l.topic, patience)
	}
	l.good()
}

// finish ends the load and checks it: each producer's records are there once and in order, and every group has read all.
func (l *load) finish() {
	l.tb.Helper()
	l.stop()
	total := 0
	for p := range l.acked {
		for _, n := range l.acked[p] {
			total += n
		}
	}
	for _, g := range l.groups {
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			l.good()
			missing := g.missing()
			if missing == "" {
				break
			}
			if time.Now().After(end) {
				l.tb.Fatalf("%s: group %s: %s after %v", l.topic, g.name, missing, patience)
			}
		}
		for _, m := range g.members {
			m.leave()
		}
		g.members = nil
	}
	l.readAll(total)
	l.tb.Logf("%s: %d records, all acknowledged ones are there once, in order, and were read by %q", l.topic, total, l.o.groups)
}

// missing says what the group has not read.
func (g *group) missing() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.l.acked {
		want := 0
		for _, n := range g.l.acked[p] {
			want += n
		}
		if len(g.seen[p]) < want {
			return fmt.Sprintf("partition %d is read up to %d of %d", p, len(g.seen[p]), want)
		}
		if i := slices.Index(g.seen[p], false); i >= 0 {
			return fmt.Sprintf("partition %d: offset %d is not read, but %d of %d", p, i, len(g.seen[p]), want)
		}
	}
	return ""
}

// readAll reads everything and compares it with what was acknowledged.
func (l *load) readAll(total int) {
	l.tb.Helper()
	cl := l.client(kgo.ConsumeTopics(l.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500*time.Millisecond))
	defer cl.Close()
	next, offsets := make([][]int, len(l.acked)), make([]int64, len(l.acked))
	for p := range next {
		next[p] = make([]int, l.o.producers)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for n := 0; n < total; {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			l.tb.Fatalf("%s: after %d of %d records: %v", l.topic, n, total, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			n++
			l.saw("the last reader", r.Partition, r.Offset, r.Value)
			if r.Offset != offsets[r.Partition] {
				l.fault("partition %d: offset %d follows %d", r.Partition, r.Offset, offsets[r.Partition]-1)
			}
			offsets[r.Partition] = r.Offset + 1
			m := l.marks[r.Partition][r.Offset]
			if int(m.number) != next[r.Partition][m.producer] {
				l.fault("partition %d offset %d: record %v, but it is number %d that is due", r.Partition, r.Offset, m, next[r.Partition][m.producer])
			}
			next[r.Partition][m.producer] = int(m.number) + 1
		})
		l.good()
	}
	ends := kmsg.NewPtrListOffsetsRequest()
	ends.ReplicaID = -1
	ends.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: l.topic}}
	for p := range next {
		at := kmsg.NewListOffsetsRequestTopicPartition()
		at.Partition, at.Timestamp = int32(p), -1
		ends.Topics[0].Partitions = append(ends.Topics[0].Partitions, at)
	}
	resp, err := ends.RequestWith(ctx, cl)
	if err != nil {
		l.tb.Fatal(err)
	}
	for _, p := range resp.Topics[0].Partitions {
		if p.ErrorCode != 0 || p.Offset != offsets[p.Partition] {
			l.tb.Errorf("%s: partition %d: the end is %d (error %d), not %d", l.topic, p.Partition, p.Offset, p.ErrorCode, offsets[p.Partition])
		}
	}
	for p := range next {
		if !slices.Equal(next[p], l.acked[p]) {
			l.tb.Errorf("%s: partition %d: %v records by producer are there, %v were acknowledged", l.topic, p, next[p], l.acked[p])
		}
	}
}
