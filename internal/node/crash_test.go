package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/await"
	"gregor/internal/config"
	"gregor/internal/sim"
	"gregor/internal/vfs"
)

// world is a node on a disk and a network in memory.
type world struct {
	fs   *vfs.Mem
	net  *sim.Net
	cfg  *config.Broker
	node *Node
}

func newWorld(t *testing.T, settings string) *world {
	t.Helper()
	p, err := config.ParseProperties("server.properties", []byte(`process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:9093
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs=/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
group.initial.rebalance.delay.ms=0
`+settings))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{fs: vfs.NewMem()}
	if w.cfg, err = config.Load(p); err != nil {
		t.Fatal(err)
	}
	if err := Format(FormatOptions{FS: w.fs, Now: time.UnixMilli(0), Rand: testRand(), Config: w.cfg, ClusterID: "AAAAAAAAAAAAAAAAAAAAAQ", Standalone: true}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) start(t *testing.T) {
	t.Helper()
	w.startOn(t, w.fs)
}

// startOn starts the node on a disk that may fail.
func (w *world) startOn(t *testing.T, disk vfs.FS) {
	t.Helper()
	w.net = &sim.Net{}
	n, err := Start(t.Context(), Options{Config: w.cfg, FS: disk, Listen: w.net.Listen})
	if err != nil {
		t.Fatal(err)
	}
	w.node = n
}

func (w *world) client(t *testing.T) *client.Client {
	t.Helper()
	dial := w.net // of this life of the node
	c, err := client.New(client.Options{Seeds: []string{"127.0.0.1:9092"}, Timeout: await.Patience,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dial.Dial(ctx, network, addr)
		}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// read returns the values of a topic by partition.
func read(t *testing.T, c *client.Client, topic string, partitions int32) [][]string {
	t.Helper()
	out := make([][]string, partitions)
	from := map[client.TopicPartition]int64{}
	total := int64(0)
	for p := range partitions {
		tp := client.TopicPartition{Topic: topic, Partition: p}
		from[tp] = client.Earliest
		os, err := c.ListOffsets(t.Context(), map[client.TopicPartition]int64{tp: client.Latest}, false)
		if err != nil || os[0].Err != nil {
			t.Fatalf("end of %s: %v %v", tp, os, err)
		}
		total += os[0].Offset
	}
	if total == 0 {
		return out
	}
	consumer, err := c.NewConsumer(client.ConsumerOptions{Partitions: from, MaxWait: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer closeConsumer(t, consumer)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for n := int64(0); n < total; {
		rs, err := consumer.Poll(ctx)
		if err != nil {
			t.Fatalf("after %d of %d records: %v", n, total, err)
		}
		for _, r := range rs {
			out[r.Partition] = append(out[r.Partition], string(r.Value))
		}
		n += int64(len(rs))
	}
	return out
}

// TestCrashes stops the node again and again while clients produce and commit offsets, and looks at what is left: what was
// acknowledged is there, once and in order.
func TestCrashes(t *testing.T) {
	t.Run("power loss", func(t *testing.T) {
		t.Parallel()
		// Unsynced bytes survive by chance. What must survive is what clients were told is on disk.
		rng := sim.RandFor(7, "power")
		crashes(t, "gregor.acks.flush=true\n", rng, rng.Float64, false)
	})
	t.Run("kill", func(t *testing.T) {
		t.Parallel()
		// The process dies and the machine lives on: everything that was written is there, also without a sync.
		crashes(t, "", sim.RandFor(7, "kill"), func() float64 { return 1 }, true)
	})
}

func crashes(t *testing.T, settings string, rng *rand.Rand, survive func() float64, commits bool) {
	const partitions, rounds = 3, 12
	w := newWorld(t, settings+"log.segment.bytes=1048576\n")
	w.start(t)
	c := w.client(t)
	if _, err := c.CreateTopics(t.Context(), []client.TopicSpec{{Name: "p", Partitions: partitions, ReplicationFactor: 1}}, false); err != nil {
		t.Fatal(err)
	}
	var must [partitions][]string // acknowledged, in order
	acknowledged := 0
	commit := newCommitter()
	for round := range rounds {
		found := read(t, c, "p", partitions)
		for p := range partitions {
			if err := contains(found[p], must[p]); err != nil {
				t.Fatalf("round %d, partition %d: %v", round, p, err)
			}
			must[p] = found[p] // what survived without being acknowledged is there to stay, too
		}
		if commits && round > 0 {
			commit.check(t, c)
		}
		var mu sync.Mutex // guards acked
		var acked [partitions][]string
		producer := c.NewProducer(client.ProducerOptions{})
		ctx, stop := context.WithCancel(t.Context())
		var busy sync.WaitGroup
		for p := range int32(partitions) {
			busy.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					value := fmt.Sprintf("%d/%d/%d", round, p, i)
					if producer.ProduceSync(ctx, &client.Record{Topic: "p", Partition: p, Value: []byte(value)}) == nil {
						mu.Lock()
						acked[p] = append(acked[p], value)
						mu.Unlock()
					}
				}
			})
		}
		if commits {
			busy.Go(func() { commit.run(ctx, c) })
		}
		far := 1 + rng.IntN(200)
		await.True(t, "clients get on", func() bool {
			mu.Lock()
			defer mu.Unlock()
			n := 0
			for _, a := range acked {
				n += len(a)
			}
			return n >= far
		})
		mu.Lock()
		sure := acked
		for p := range sure {
			sure[p] = slices.Clone(sure[p])
		}
		mu.Unlock()
		commit.freeze()
		after := w.fs.CrashClone(rng, survive())
		stop()
		busy.Wait()
		closeProducer(producer)
		c.Close()
		shutdown(t, w.node)
		for p := range partitions {
			must[p] = append(must[p], sure[p]...)
			acknowledged += len(sure[p])
		}
		w.fs = after
		w.start(t)
		c = w.client(t)
	}
	if acknowledged == 0 {
		t.Error("nothing was acknowledged: the test proves nothing")
	}
	c.Close()
	shutdown(t, w.node)
}

// committer commits rising offsets for a group.
type committer struct {
	tp client.TopicPartition

	mu          sync.Mutex // guards all below
	asked, told int64      // the last offset sent, and the last acknowledged
	sure        int64      // told, as of freeze
}

func newCommitter() *committer { return &committer{tp: client.TopicPartition{Topic: "p"}} }

func (k *committer) run(ctx context.Context, c *client.Client) {
	for ctx.Err() == nil {
		k.mu.Lock()
		k.asked++
		o := client.CommittedOffset{TopicPartition: k.tp, Offset: k.asked, LeaderEpoch: -1}
		k.mu.Unlock()
		if c.CommitGroupOffsets(ctx, "g", []client.CommittedOffset{o}) == nil {
			k.mu.Lock()
			k.told = o.Offset
			k.mu.Unlock()
		}
	}
}

func (k *committer) freeze() {
	k.mu.Lock()
	k.sure = k.told
	k.mu.Unlock()
}

func (k *committer) check(t *testing.T, c *client.Client) {
	t.Helper()
	os, err := c.GroupOffsets(t.Context(), "g", []client.TopicPartition{k.tp}, false)
	if err != nil || len(os) != 1 || os[0].Err != nil {
		t.Fatalf("committed offset: %v %v", os, err)
	}
	if got := os[0].Offset; k.sure > 0 && got < k.sure || got > k.asked {
		t.Fatalf("committed offset %d, want %d to %d", got, k.sure, k.asked)
	}
}

func closeProducer(p *client.Producer) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // what is not acknowledged by now is lost with the node
	_ = p.Close(ctx)
}

// contains says what is wrong when got isn't want with perhaps more values behind, each there once.
func contains(got, want []string) error {
	seen := map[string]bool{}
	for _, v := range got {
		if seen[v] {
			return fmt.Errorf("%s is there twice", v)
		}
		seen[v] = true
	}
	for i, v := range want {
		if i >= len(got) || got[i] != v {
			return fmt.Errorf("value %d of %d should be %s; there are %d values", i, len(want), v, len(got))
		}
	}
	return nil
}
