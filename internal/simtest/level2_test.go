package simtest

import (
	"io"
	"maps"
	"slices"
	"syscall"
	"time"

	"gregor/internal/config"
	"gregor/internal/metadata"
)

var (
	errDisk = syscall.EIO
	errFull = syscall.ENOSPC
)

// dataConfigs are the configurations of brokers, without and with a rack-aware selector.
var dataConfigs = func() (out [2]*config.Broker) {
	for i, selector := range []string{"", "org.apache.kafka.common.replica.RackAwareReplicaSelector"} {
		b, err := config.Load(config.NewProperties(map[string]string{
			"process.roles": "broker", "node.id": "1", "controller.listener.names": listener, "controller.quorum.voters": "9@localhost:9093",
			"listeners": "PLAINTEXT://localhost:9092", "log.dirs": "/a", "replica.selector.class": selector,
			"replica.lag.time.max.ms": "300", "replica.fetch.wait.max.ms": "40", "replica.fetch.backoff.ms": "50", "replica.socket.timeout.ms": "200",
		}))
		must(err)
		out[i] = b
	}
	return out
}()

// brokerConfig is the configuration of a node's broker.
func (w *world) brokerConfig(n *node) *config.Broker {
	c := *dataConfigs[w.seed%2]
	c.NodeID = n.id
	c.Topic.SegmentBytes = w.segmentBytes
	c.Topic.FileDeleteDelay = 50 * time.Millisecond
	c.ReplicaLagTimeMax, c.ReplicaFetchWaitMax = w.lag, pick(w, 10*time.Millisecond, 40*time.Millisecond)
	c.ReplicaFetchBackoff, c.ReplicaSocketTimeout = 50*time.Millisecond, 200*time.Millisecond
	c.ReplicaFetchMaxBytes, c.ReplicaFetchResponseMax = w.fetchBytes, 10*w.fetchBytes
	c.ReplicaFetchers = 1 + int32(w.seed%5/4)
	return &c
}

// newDataWorld makes a cluster whose brokers have data, as the seed says.
func newDataWorld(seed uint64, out io.Writer) *world {
	w := emptyWorld(seed, out)
	w.data = true
	w.slowSync = pick(w, time.Millisecond, 5*time.Millisecond)
	w.evil = pick(w, 0, 0.01, 0.03, 0.1)
	w.links.Evil, w.links.Latency = w.evil, pick(w, 50*time.Microsecond, 300*time.Microsecond)
	w.length = pick(w, 1500*time.Millisecond, 2500*time.Millisecond)
	w.batchMax = 10_000
	w.bootMV = 33
	w.elr = int16(w.Rand.IntN(3) / 1 % 2)
	w.power = pick(w, 0, 0.3, 0.6)
	w.anyLoss = w.Chance(0.25)
	w.uncleanTopics = w.Chance(0.25)
	w.uncleanAsked = w.Chance(0.1)
	w.segmentBytes = pick[int32](w, 600, 3000, 1<<20)
	w.fetchBytes = pick[int32](w, 150, 1000, 1<<20)
	w.lag = pick(w, 100*time.Millisecond, 300*time.Millisecond)
	w.checkpoints = pick(w, 50*time.Millisecond, 200*time.Millisecond, time.Second)
	w.dynamic = true
	w.ledger = newLedger(w)
	w.admin = &admin{w: w}
	type shape struct{ voters, shared, brokers int }
	s := pick(w, shape{1, 0, 3}, shape{1, 1, 3}, shape{3, 3, 3}, shape{3, 3, 4}, shape{3, 0, 3})
	for i := range max(s.voters, s.brokers+s.voters-s.shared) {
		n := w.addNode(i < s.voters)
		n.controller = !n.observer
		n.broker = i >= s.voters || i < s.shared
		if n.broker {
			n.disks = &disks{fuse: -1, dirs: []string{"/a", "/b"}[:1+w.Rand.IntN(2)]}
			n.survive = 1
			n.format()
		}
	}
	w.logf("seed %d: %+v, evil %.2f, elr %d, power %v, any loss %v, unclean %v %v, segments %d, fetches %d", seed, s, w.evil, w.elr, w.power, w.anyLoss,
		w.uncleanTopics, w.uncleanAsked, w.segmentBytes, w.fetchBytes)
	w.begin()
	for range 2 {
		w.consumers = append(w.consumers, &consumer{w: w, rack: rackOf(int32(w.Rand.IntN(3))), at: map[assigned]int64{}, near: map[assigned]int32{}})
	}
	return w
}

// play is the part of a run in which clients and faults act.
func (w *world) play() {
	evil := w.evil
	w.evil, w.links.Evil = 0, 0
	w.Run(400*time.Millisecond, func() bool { // begin with a cluster that works
		brokers := w.ref.image().Cluster.Brokers
		return len(brokers) == len(w.client.brokerIDs()) && !slices.ContainsFunc(slices.Collect(maps.Values(brokers)), func(b *metadata.Broker) bool { return b.Fenced })
	})
	w.length += w.Now()
	w.evil, w.links.Evil = evil, evil
	again := func() {}
	again = func() { // the first topic
		if len(w.admin.topics) == 0 && w.Now() < w.length/2 {
			w.admin.create("t0")
			w.After(50*time.Millisecond, again)
		}
	}
	again()
	for _, c := range w.consumers {
		c.turn()
	}
	w.every(10*time.Millisecond, 80*time.Millisecond, w.admin.act)
	w.every(100*time.Millisecond, 900*time.Millisecond, w.snapshot)
	w.every(20*time.Millisecond, pick(w, 150*time.Millisecond, 400*time.Millisecond), w.dataFault)
	w.Run(w.length, nil)
}

// dataFault does one bad thing.
func (w *world) dataFault() {
	if w.healing {
		return
	}
	n := w.nodes[w.Rand.IntN(len(w.nodes))]
	if n.proc == nil {
		return
	}
	switch k := w.Rand.IntN(20); {
	case n.disks == nil && k < 6:
		n.crash("fault")
	case n.disks == nil:
	case k < 5:
		n.die("fault", w.survival(n))
	case k < 7:
		n.disks.fuse = w.Rand.IntN(20)
	case k < 9:
		for_ := w.Between(20*time.Millisecond, 900*time.Millisecond)
		n.logf("freezes for %v", for_)
		n.proc.frozen = w.Now() + for_
	case k == 9:
		dir := n.disks.dirs[w.Rand.IntN(len(n.disks.dirs))]
		if len(n.disks.dirs) > 1 || w.Rand.IntN(3) == 0 {
			n.logf("%s begins to fail", dir)
			n.disks.failing[dir] = true
		}
	case k == 10:
		n.logf("disk is full")
		mem := n.disks.mem
		mem.SetCapacity(mem.Used() + int64(w.Rand.IntN(1500)))
		w.After(w.Between(time.Millisecond, 500*time.Millisecond), func() { mem.SetCapacity(-1); n.disks.mem.SetCapacity(-1) })
	case k == 11 && w.power > 0 && w.ledger.spare(n) && w.Rand.IntN(3) == 0:
		n.crash("the machine is replaced")
		n.disks.wiped++
		n.format()
		w.ledger.wiped(n)
	}
	switch w.Rand.IntN(12) {
	case 0, 1:
		o := w.nodes[w.Rand.IntN(len(w.nodes))]
		w.logf("link %d to %d is cut", n.id, o.id)
		w.links.Cut(n.id, o.id)
	case 2:
		w.logf("node %d is cut off", n.id)
		for _, o := range w.nodes {
			w.links.Cut(n.id, o.id)
			w.links.Cut(o.id, n.id)
		}
	case 3:
		w.logf("node %d is cut off from controllers", n.id)
		for _, o := range w.nodes {
			if o.controller {
				w.links.Cut(n.id, o.id)
			}
		}
	case 4, 5, 6:
		w.links.Heal()
	case 7:
		if l := w.leader(); l != nil {
			l.do(func() { l.m.Resign(l.epoch()) })
		}
	}
}

// dataHeal asks for what must follow when faults end, after the quorum has healed.
func (w *world) dataHeal(until func(what string, step func(), done func() bool)) {
	until("brokers are not in service", nil, func() bool {
		for _, n := range w.nodes {
			if n.broker {
				s := n.proc.server
				b := w.ref.image().Cluster.Broker(n.id)
				if b == nil || b.Fenced || s.m == nil || s.life.Epoch() != b.Epoch {
					return false
				}
			}
		}
		return true
	})
	// What an administrator has begun must not be in the way: brokers that leave come back by themselves.
	written := map[assigned]bool{}
	until("not every partition takes a write", func() {
		for _, h := range w.ledger.order {
			if !h.deleted && !written[h.id] && w.Rand.IntN(4) == 0 {
				w.write(target{h.id, h.name}, func() { written[h.id] = true })
			}
		}
	}, func() bool {
		for _, h := range w.ledger.order {
			if !h.deleted && !written[h.id] {
				return false
			}
		}
		return true
	})
	w.quiet = true
	until("partitions are not whole", func() { w.problem, _ = w.ledger.whole() }, func() bool {
		_, ok := w.ledger.whole()
		return ok
	})
}

// offline says whether a broker has a directory that is offline, so that it must be started anew.
func (n *node) offline() bool {
	return n.disks != nil && (len(n.disks.failing) > 0 || n.proc != nil && n.proc.server != nil && n.proc.server.m != nil && n.offlineDirs(n.proc.server.logs))
}
