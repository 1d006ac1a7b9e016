package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"gregor/internal/record"
)

// clusterLines are what the nodes' configuration has more for the workloads of this file: acks=all waits for two replicas, and
// leaders stay where they were made to be.
var clusterLines = []string{"min.insync.replicas=2", "auto.leader.rebalance.enable=false"}

var clusterLoads = []struct {
	name string
	load produceLoad
}{
	{"cluster-produce-64k", produceLoad{bytes: 1 << 30, batch: 64 << 10, perRequest: manyPartitions / quorumSize}},
	{"cluster-produce-1m", produceLoad{bytes: 1 << 30, batch: 1_000_000, perRequest: 1}},
}

const (
	clusterRate  = 2000 // records a second, end to end
	clusterBatch = 2    // of them in a batch, one batch each ms
	// clusterInFlight is how many requests Kafka's producer lets wait on one connection.
	clusterInFlight = 5
)

// replicated is a topic with three replicas, and where its leaders are: ledBy[i] are the partitions that node i leads.
type replicated struct {
	topic
	ledBy [quorumSize][]int32
}

// replicatedLoads measures three nodes that replicate: each partition is on all of them, and acks=all.
func (b *bench) replicatedLoads(k kind) error {
	names := []string{"cluster-tiny-3conn", "cluster-e2e-2k", "cluster-e2e-5inflight", "cluster-idle", "cluster-catch-up", "cluster-kill-broker", "cluster-kill-controller"}
	for _, l := range clusterLoads {
		names = append(names, l.name)
	}
	if !b.wants(names...) {
		return nil
	}
	cl, err := b.newCluster(k, clusterLines...)
	if err != nil {
		return err
	}
	if err := b.warmCluster(cl); err != nil {
		return fmt.Errorf("warm up three nodes: %w", err)
	}
	for _, l := range clusterLoads {
		if b.wants(l.name) {
			l.load.bytes = b.scaled(l.load.bytes)
			if err := b.replicatedProduce(cl, l.name, l.load); err != nil {
				return err
			}
		}
	}
	if b.wants("cluster-tiny-3conn") {
		if err := b.replicatedTiny(cl, "cluster-tiny-3conn", b.tinyTime); err != nil {
			return err
		}
	}
	if b.wants("cluster-e2e-2k") {
		if err := b.replicatedE2E(cl, "cluster-e2e-2k", b.e2eWarm, b.e2eTime, false); err != nil {
			return err
		}
	}
	if b.wants("cluster-e2e-5inflight") {
		if err := b.replicatedE2E(cl, "cluster-e2e-5inflight", b.e2eWarm, b.e2eTime, true); err != nil {
			return err
		}
	}
	if b.wants("cluster-idle") {
		if err := b.clusterIdle(cl); err != nil {
			return err
		}
	}
	if b.wants("cluster-catch-up") {
		if err := b.catchUp(cl); err != nil {
			return err
		}
	}
	for _, victim := range []string{"broker", "controller"} {
		if name := "cluster-kill-" + victim; b.wants(name) {
			if err := b.firstWrites(cl, name, victim == "controller"); err != nil {
				return err
			}
		}
	}
	return cl.discard()
}

func (b *bench) warmCluster(cl *cluster) error {
	profiles := b.profiles
	b.silent, b.profiles = true, ""
	defer func() { b.silent, b.profiles = false, profiles }()
	rounds := b.warmRounds
	if cl.nodes[0].kind.name == "gregor" {
		rounds = min(1, rounds)
	}
	for range rounds {
		if err := b.replicatedProduce(cl, "warm", produceLoad{bytes: b.scaled(1 << 29), batch: 64 << 10, perRequest: manyPartitions / quorumSize}); err != nil {
			return err
		}
		if err := b.replicatedTiny(cl, "warm", b.tinyTime*3/4); err != nil {
			return err
		}
		if err := b.replicatedE2E(cl, "warm", 100*time.Millisecond, b.e2eWarm, false); err != nil {
			return err
		}
	}
	return nil
}

func (cl *cluster) pids() (out []int) {
	for _, s := range cl.nodes {
		out = append(out, s.pid())
	}
	return out
}

// settleCluster is settle for all nodes.
func (b *bench) settleCluster(cl *cluster) error {
	runtime.GC()
	unix.Sync()
	limit := b.quiet
	if b.silent {
		limit = 0
	}
	return awaitQuiet(limit, cl.pids()...)
}

// replicatedTopic makes a topic whose partitions are all in sync and led by their first replicas.
func (b *bench) replicatedTopic(cl *cluster) (replicated, error) {
	c, err := cl.nodes[0].connect()
	if err != nil {
		return replicated{}, err
	}
	defer c.close()
	b.topics++
	ts, err := c.createTopics([]string{fmt.Sprintf("replicated-%d", b.topics)}, manyPartitions, quorumSize)
	if err != nil {
		return replicated{}, err
	}
	t := replicated{topic: ts[0]}
	if err := cl.awaitServing(ts, time.Minute); err != nil {
		return t, err
	}
	if err := cl.awaitISR(time.Minute, t.name); err != nil {
		return t, err
	}
	return t, cl.findLeaders(&t)
}

func (cl *cluster) findLeaders(t *replicated) error {
	return cl.until(0, time.Minute, 10*time.Millisecond, "a leader of every partition", func(m *kmsg.MetadataResponse) bool {
		t.ledBy = [quorumSize][]int32{}
		n := 0
		for _, p := range m.Topics[0].Partitions {
			if p.Leader > 0 {
				t.ledBy[p.Leader-1] = append(t.ledBy[p.Leader-1], p.Partition)
				n++
			}
		}
		return n == t.partitions
	}, t.name)
}

// drop deletes the topic. What it costs to unlink its files is over when the next workload begins, mostly: settle waits.
func (cl *cluster) drop(t topic) error {
	c, err := cl.nodes[0].connect()
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.deleteTopic(t); err != nil {
		return err
	}
	time.Sleep(1500 * time.Millisecond) // log.segment.delete.delay.ms and a little
	return nil
}

// allRequest is a produce request with acks=all.
func allRequest(t topic, partitions []int32, batches []record.Batch) []byte {
	q := produceRequest(t, 0, batches)
	q.Acks = -1
	for i, p := range partitions {
		q.Topics[0].Partitions[i].Partition = p
	}
	return encode(q)
}

// framesFor encodes what the producer sends that writes to the partitions of one leader.
func (b *bench) framesFor(l produceLoad, t topic, led []int32) ([]produceFrame, error) {
	all, err := b.batchesOf(l)
	if err != nil {
		return nil, err
	}
	n := min(l.perRequest, len(led))
	var out []produceFrame
	for i := 0; i+n <= len(all); i += n {
		var f produceFrame
		var batches []record.Batch
		var parts []int32
		for k, e := range all[i : i+n] {
			f.raw += int64(e.raw)
			f.stored += int64(len(e.batch))
			f.records += int64(e.batch.Count())
			batches = append(batches, e.batch)
			parts = append(parts, led[(i+k)%len(led)])
		}
		f.bytes = allRequest(t, parts, batches)
		out = append(out, f)
	}
	return out, nil
}

// replicatedProduce writes through one connection to each leader, with two requests in flight on it.
func (b *bench) replicatedProduce(cl *cluster, name string, l produceLoad) error {
	s := cl.nodes[0]
	t, err := b.replicatedTopic(cl)
	if err != nil {
		return err
	}
	if err := b.settleCluster(cl); err != nil {
		return err
	}
	sum, took, lat, err := b.fillReplicated(cl, cl.pids(), name, t, l)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.perByte(s, name, sum, took)
	b.latencies(s, name, lat)
	return cl.drop(t.topic)
}

// fillReplicated produces l.bytes into the topic and measures the processes. Three nodes write each byte.
func (b *bench) fillReplicated(cl *cluster, pids []int, name string, t replicated, l produceLoad) (sum int64, took lap, lat []time.Duration, err error) {
	held, err := holdBallast(min(quorumSize*l.bytes, maxBallast))
	if err != nil {
		return 0, lap{}, nil, err
	}
	defer held.drop()
	var wg sync.WaitGroup
	var errs [quorumSize]error
	var lats [quorumSize][]time.Duration
	var left, done atomic.Int64
	left.Store(l.bytes)
	begin := make(chan struct{})
	for i, led := range t.ledBy {
		if len(led) == 0 {
			continue
		}
		frames, err := b.framesFor(l, t.topic, led)
		if err != nil {
			return 0, lap{}, nil, err
		}
		c, err := cl.nodes[i].connect()
		if err != nil {
			return 0, lap{}, nil, err
		}
		defer c.close()
		wg.Go(func() {
			<-begin
			lats[i], errs[i] = pumpShared(c, frames, &left, &done, held)
		})
	}
	stop := b.profile(cl.nodes[0], name)
	w, err := startWatch(pids...)
	if err != nil {
		return 0, lap{}, nil, err
	}
	close(begin)
	wg.Wait()
	took, err = w.stop()
	stop()
	for _, l := range lats {
		lat = append(lat, l...)
	}
	return done.Load(), took, lat, errors.Join(append(errs[:], err)...)
}

// maxBallast is how much memory is held at most: a machine of 16 GiB must have as much left.
const maxBallast = 4 << 30

// pumpShared sends frames until left is used up by all who share it, with inFlight unanswered at a time. It returns how long each took.
func pumpShared(c *conn, frames []produceFrame, left, done *atomic.Int64, held *ballast) (lat []time.Duration, err error) {
	var sent []time.Time
	for i := 0; ; {
		f := frames[i%len(frames)]
		if len(sent) < inFlight && left.Add(-f.raw) > -f.raw {
			held.give(quorumSize * f.stored)
			setCorrelation(f.bytes, int32(i))
			sent = append(sent, time.Now())
			if err := c.write(f.bytes); err != nil {
				return lat, err
			}
			done.Add(f.raw)
			i++
			continue
		}
		if len(sent) == 0 {
			return lat, nil
		}
		if err := c.produceAnswer(); err != nil {
			return lat, err
		}
		lat = append(lat, time.Since(sent[0]))
		sent = sent[1:]
	}
}

// replicatedTiny sends one small request after another on one connection to each leader.
func (b *bench) replicatedTiny(cl *cluster, name string, span time.Duration) error {
	s := cl.nodes[0]
	t, err := b.replicatedTopic(cl)
	if err != nil {
		return err
	}
	v := newValues(3)
	var conns [quorumSize]*conn
	var frames [quorumSize][]byte
	for i, led := range t.ledBy {
		if len(led) == 0 {
			return fmt.Errorf("%s: node %d leads nothing", name, i+1)
		}
		if conns[i], err = cl.nodes[i].connect(); err != nil {
			return err
		}
		defer conns[i].close()
		batch, err := smallBatch(v.next(tinyValue))
		if err != nil {
			return err
		}
		frames[i] = allRequest(t.topic, led[:1], []record.Batch{batch})
	}
	if err := b.settleCluster(cl); err != nil {
		return err
	}
	begin := time.Now().Add(span / 10)
	end := begin.Add(span)
	var wg sync.WaitGroup
	var errs [quorumSize]error
	var lats [quorumSize][]time.Duration
	for i := range conns {
		wg.Go(func() {
			defer lockThread()()
			errs[i] = oneAtATime(conns[i], frames[i], end, func(sent, now time.Time) {
				if sent.After(begin) {
					lats[i] = append(lats[i], now.Sub(sent))
				}
			})
		})
	}
	time.Sleep(time.Until(begin))
	stop := b.profile(s, name)
	w, err := startWatch(cl.pids()...)
	if err != nil {
		return err
	}
	wg.Wait()
	took, err := w.stop()
	stop()
	if err = errors.Join(append(errs[:], err)...); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var lat []time.Duration
	for _, l := range lats {
		lat = append(lat, l...)
	}
	n := float64(len(lat))
	b.note(s, name, "rate", n/took.took.Seconds(), "requests/s")
	b.note(s, name, "server_cpu", took.server.Seconds()/n*1e6, "us/request")
	b.note(s, name, "client_cpu", took.own.Seconds()/n*1e6, "us/request")
	b.note(s, name, "others_cpu", took.others(), "%")
	b.latencies(s, name, lat)
	return cl.drop(t.topic)
}

func smallBatch(value []byte) (record.Batch, error) {
	builder := record.NewBuilder(record.BuilderOptions{LeaderEpoch: -1}.NoProducer())
	builder.Append(time.Now().UnixMilli(), nil, value, nil)
	return builder.Build()
}

// replicatedE2E sends a batch each ms, to one partition after another, and measures from when it was due until a consumer has it. With
// oneLeader all goes to the partitions of one leader, on one connection with at most clusterInFlight requests unanswered, as an
// idempotent producer sends.
func (b *bench) replicatedE2E(cl *cluster, name string, warm, measured time.Duration, oneLeader bool) error {
	s := cl.nodes[0]
	t, err := b.replicatedTopic(cl)
	if err != nil {
		return err
	}
	var order []int32 // the partitions that are written to, in their turns
	leader := map[int32]int{}
	nodes := 0
	for i, led := range t.ledBy {
		if len(led) > 0 && (!oneLeader || nodes == 0) {
			nodes++
			order = append(order, led...)
			for _, p := range led {
				leader[p] = i
			}
		}
	}
	v := newValues(7)
	turn := map[int32]int{}
	frames := make([][]byte, len(order))
	for i, p := range order {
		batch, _, err := v.batch(record.HeaderSize+clusterBatch*(valueSize+16), valueSize, record.None)
		if err != nil {
			return err
		}
		if batch.Count() != clusterBatch {
			return fmt.Errorf("%s: a batch has %d records", name, batch.Count())
		}
		frames[i] = allRequest(t.topic, []int32{p}, []record.Batch{batch})
		turn[p] = i
	}
	const every = time.Second * clusterBatch / clusterRate
	skip, total := int(warm/every), int((warm+measured)/every)
	var mu sync.Mutex // guards lat
	lat := make([]time.Duration, 0, total)
	if err := b.settleCluster(cl); err != nil {
		return err
	}
	begin := time.Now().Add(50 * time.Millisecond)
	var wg sync.WaitGroup
	errs := make([]error, 2*quorumSize+1)
	producers := map[int]*conn{}
	tokens := make(chan struct{}, total)
	if oneLeader {
		tokens = make(chan struct{}, clusterInFlight)
	}
	for i, led := range t.ledBy {
		batches := 0
		for k := range total {
			if leader[order[k%len(order)]] == i {
				batches++
			}
		}
		if _, used := leader[led[0]]; !used || batches == 0 {
			continue
		}
		pc, err := cl.nodes[i].connect()
		if err != nil {
			return err
		}
		defer pc.close()
		producers[i] = pc
		cc, err := cl.nodes[i].connect()
		if err != nil {
			return err
		}
		defer cc.close()
		f := newFetcher(cc, t.topic)
		f.only(led)
		f.arrived = func(partition int, last int64) {
			k := int(last/clusterBatch)*len(order) + turn[int32(partition)]
			d := time.Since(begin.Add(time.Duration(k) * every))
			if k >= skip {
				mu.Lock()
				lat = append(lat, d)
				mu.Unlock()
			}
		}
		wg.Go(func() {
			defer lockThread()()
			for range batches {
				if errs[i] = pc.produceAnswer(); errs[i] != nil {
					return
				}
				<-tokens
			}
		})
		wg.Go(func() {
			defer lockThread()()
			for f.records < int64(batches)*clusterBatch && errs[quorumSize+i] == nil {
				if errs[quorumSize+i] = f.ask(); errs[quorumSize+i] == nil {
					errs[quorumSize+i] = f.answer()
				}
			}
		})
	}
	wg.Go(func() {
		defer lockThread()()
		for k := range total {
			sleepUntil(begin.Add(time.Duration(k) * every))
			tokens <- struct{}{}
			i := k % len(order)
			if err := producers[leader[order[i]]].write(frames[i]); err != nil {
				errs[2*quorumSize] = err
				return
			}
		}
	})
	time.Sleep(time.Until(begin.Add(warm)))
	stop := b.profile(s, name)
	w, err := startWatch(cl.pids()...)
	if err != nil {
		return err
	}
	wg.Wait()
	took, err := w.stop()
	stop()
	if err = errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.note(s, name, "server_cpu", 100*took.server.Seconds()/took.took.Seconds(), "%")
	b.note(s, name, "client_cpu", 100*took.own.Seconds()/took.took.Seconds(), "%")
	b.note(s, name, "others_cpu", took.others(), "%")
	b.latencies(s, name, lat)
	return cl.drop(t.topic)
}

// only makes a fetcher ask for some partitions alone.
func (f *fetcher) only(partitions []int32) {
	all := f.q.Topics[0].Partitions
	some := make([]kmsg.FetchRequestTopicPartition, 0, len(partitions))
	for _, p := range partitions {
		some = append(some, all[p])
	}
	f.q.Topics[0].Partitions = some
}

// clusterIdle notes what three nodes take that have done all this and rest.
func (b *bench) clusterIdle(cl *cluster) error {
	s := cl.nodes[0]
	time.Sleep(b.restTime)
	var rss int64
	for _, s := range cl.nodes {
		m, err := memory(s.pid(), "VmRSS")
		if err != nil {
			return err
		}
		rss += m
	}
	w, err := startWatch(cl.pids()...)
	if err != nil {
		return err
	}
	time.Sleep(b.idleTime)
	took, err := w.stop()
	if err != nil {
		return err
	}
	b.note(s, "cluster-idle", "rss", float64(rss)/(1<<20), "MiB")
	b.note(s, "cluster-idle", "server_cpu", 100*took.server.Seconds()/took.took.Seconds(), "%")
	b.note(s, "cluster-idle", "others_cpu", took.others(), "%")
	return nil
}

// catchUp stops a node, writes what it then misses, and measures from its start until all replicas are in sync again. The node is
// stopped in order, so that what it costs to recover from a crash is no part of it.
func (b *bench) catchUp(cl *cluster) error {
	const name = "cluster-catch-up"
	t, err := b.replicatedTopic(cl)
	if err != nil {
		return err
	}
	i, err := cl.controller()
	if err != nil {
		return err
	}
	i = (i + 1) % quorumSize
	if err := cl.nodes[i].end(syscall.SIGTERM); err != nil {
		return err
	}
	// Those that are up.
	first, second := cl.nodes[(i+1)%quorumSize], cl.nodes[(i+2)%quorumSize]
	at := &cluster{b: b, nodes: [quorumSize]*server{first, second, first}}
	if err := at.until(0, time.Minute, 20*time.Millisecond, "leaders elsewhere", func(m *kmsg.MetadataResponse) bool {
		t.ledBy = [quorumSize][]int32{}
		for _, p := range m.Topics[0].Partitions {
			if p.Leader < 0 || p.Leader == int32(i+1) || len(p.ISR) != quorumSize-1 {
				return false
			}
			t.ledBy[p.Leader-1] = append(t.ledBy[p.Leader-1], p.Partition)
		}
		return true
	}, t.name); err != nil {
		return err
	}
	sum, _, _, err := b.fillReplicated(cl, []int{first.pid(), second.pid()}, name, t,
		produceLoad{bytes: b.scaled(b.catchUpBytes), batch: 1_000_000, perRequest: 1})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	runtime.GC()
	unix.Sync()
	before, err := cpuOf(first, second)
	if err != nil {
		return err
	}
	if err := cl.nodes[i].start(); err != nil {
		return err
	}
	if err := at.awaitISR(10*time.Minute, t.name); err != nil {
		return err
	}
	took := time.Since(cl.nodes[i].started)
	after, err := cpuOf(cl.nodes[:]...)
	if err != nil {
		return err
	}
	s := cl.nodes[i]
	b.note(s, name, "time", took.Seconds(), "s")
	b.note(s, name, "rate", float64(sum)/1e6/took.Seconds(), "MB/s")
	b.note(s, name, "server_cpu", (after-before).Seconds()/(float64(sum)/(1<<30)), "s/GiB")
	if err := cl.awaitBrokers(startLimit); err != nil {
		return err
	}
	return cl.drop(t.topic)
}

// firstWrites kills a node under which every partition is written to, a small request after another with acks=all, and measures
// until the first request that was sent afterwards is acknowledged: on the partitions that the node led, and on those where it
// only followed, which wait until it is out of the ISR.
func (b *bench) firstWrites(cl *cluster, name string, controller bool) error {
	t, err := b.replicatedTopic(cl)
	if err != nil {
		return err
	}
	if err := cl.electPreferred(t.name); err != nil {
		return err
	}
	if err := cl.findLeaders(&t); err != nil {
		return err
	}
	i, err := cl.controller()
	if err != nil {
		return err
	}
	if !controller {
		i = (i + 1) % quorumSize
	}
	if err := b.settleCluster(cl); err != nil {
		return err
	}
	led := map[int32]bool{}
	for _, p := range t.ledBy[i] {
		led[p] = true
	}
	batch, err := smallBatch(newValues(3).next(tinyValue))
	if err != nil {
		return err
	}
	const limit = 2 * time.Minute
	var killed atomic.Pointer[time.Time]
	var stop atomic.Bool
	var wg sync.WaitGroup
	acknowledged := make([]atomic.Int64, t.partitions) // ns after the kill
	for p := range int32(t.partitions) {
		wg.Go(func() {
			w := writer{cl: cl, t: t.topic, partition: p, frame: allRequest(t.topic, []int32{p}, []record.Batch{batch})}
			defer w.close()
			for ; !stop.Load(); time.Sleep(10 * time.Millisecond) {
				sent := time.Now()
				if !w.write(i, killed.Load() != nil) {
					continue
				}
				if k := killed.Load(); k != nil && sent.After(*k) {
					acknowledged[p].Store(int64(time.Since(*k)))
					return
				}
			}
		})
	}
	time.Sleep(time.Second)
	if err := cl.nodes[i].end(syscall.SIGKILL); err != nil {
		return err
	}
	at := time.Now()
	killed.Store(&at)
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(limit):
		stop.Store(true)
		return fmt.Errorf("%s: partitions are not written to %v after the death of node %d", name, limit, i+1)
	}
	var lostLeader, lostFollower time.Duration
	for p := range acknowledged {
		d := time.Duration(acknowledged[p].Load())
		if led[int32(p)] {
			lostLeader = max(lostLeader, d)
		} else {
			lostFollower = max(lostFollower, d)
		}
	}
	s := cl.nodes[i]
	b.note(s, name, "lost_leader", lostLeader.Seconds(), "s")
	b.note(s, name, "lost_follower", lostFollower.Seconds(), "s")
	if err := os.Remove(s.dir + "/log"); err != nil { // it is long enough
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	if err := cl.awaitBrokers(startLimit); err != nil {
		return err
	}
	return cl.awaitISR(2*time.Minute, t.name)
}

// writer writes to one partition, wherever its leader is.
type writer struct {
	cl        *cluster
	t         topic
	partition int32
	frame     []byte
	c         *conn
}

// write sends the frame and says whether it was acknowledged. Once dead is so, node down is not asked any more.
func (w *writer) write(down int, dead bool) bool {
	if w.c == nil && !w.find(down, dead) {
		return false
	}
	err := w.c.write(w.frame)
	if err == nil {
		err = w.c.produceAnswer()
	}
	if err != nil {
		w.close()
	}
	return err == nil
}

// find connects to the partition's leader.
func (w *writer) find(down int, dead bool) bool {
	for i, s := range w.cl.nodes {
		if dead && i == down {
			continue
		}
		c, err := dial(s.port)
		if err != nil {
			continue
		}
		leader := -1
		if err := c.patience(5 * time.Second); err == nil {
			if m, err := c.metadata(w.t.name); err == nil {
				for _, p := range m.Topics[0].Partitions {
					if p.Partition == w.partition {
						leader = int(p.Leader) - 1
					}
				}
			}
		}
		c.close()
		if leader < 0 || dead && leader == down {
			continue
		}
		if w.c, err = w.cl.nodes[leader].connect(); err == nil {
			return true
		}
		w.c = nil
	}
	return false
}

func (w *writer) close() {
	if w.c != nil {
		w.c.close()
		w.c = nil
	}
}
