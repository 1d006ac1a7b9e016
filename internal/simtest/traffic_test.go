package simtest

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/metadata"
	"gregor/internal/record"
	"gregor/internal/replica"
	"gregor/internal/uuid"
)

// outside is where clients are, as nodes are numbered on links.
const outside int32 = 0

// target is a partition as a client knows it.
type target struct {
	assigned
	name string
}

// leaderOf is who leads a partition, as far as a random broker knows.
func (w *world) leaderOf(t target) (*node, *metadata.Partition) {
	procs := w.procs()
	if len(procs) == 0 {
		return nil, nil
	}
	p := procs[w.Rand.IntN(len(procs))].loader.Image().Topics.ByID(t.topic).Partition(t.partition)
	if p == nil || p.Leader < 0 {
		return nil, p
	}
	return w.nodes[p.Leader-1], p
}

// gone says whether a topic was deleted for good.
func (w *world) gone(topic uuid.UUID) bool { return w.facts.removed[topic] }

// call has something done at a broker for a client. The answer that do gives goes back by back.
func (w *world) call(to *node, do func(s *server, back func(f func()))) {
	w.links.Send(outside, to.id, func() {
		if to.proc == nil || to.proc.server == nil {
			return
		}
		s := to.proc.server
		s.run(func() {
			if s.m == nil {
				return
			}
			do(s, func(f func()) {
				if !s.p.n.disks.blown {
					w.links.Send(to.id, outside, f)
				}
			})
		})
	})
}

// producer writes to one partition.
type producer struct {
	w          *world
	to         target
	acks       int16
	idempotent bool
	pid        int64
	seq        int32
	flight     []*sent // not acknowledged, in order
	every      time.Duration
	over       bool
}

// sent is a batch on its way.
type sent struct {
	p     *producer
	batch []byte
	tries int
	first bool // the oldest of its producer when it was sent last
	done  bool
}

func (w *world) newProducer(to target) *producer {
	p := &producer{w: w, to: to, acks: pick[int16](w, -1, -1, -1, 1), idempotent: w.Rand.IntN(4) > 0, every: pick(w, 4*time.Millisecond, 12*time.Millisecond, 30*time.Millisecond)}
	p.renew()
	w.After(0, p.turn)
	return p
}

// renew begins anew with another producer id: what was on its way is given up.
func (p *producer) renew() {
	p.w.pids++
	for _, b := range p.flight {
		b.done = true
	}
	p.flight, p.seq, p.pid = nil, 0, record.NoProducerID
	if p.idempotent {
		p.pid = p.w.pids
	}
}

func (p *producer) turn() {
	w := p.w
	if p.over || w.gone(p.to.topic) || w.quiet {
		p.over = true
		return
	}
	every := p.every
	if w.healing {
		// Two producers that wait for nothing write more than a follower copies that gets a batch with each fetch: it never catches up.
		every = max(every, 30*time.Millisecond)
	}
	w.After(w.Between(0, 2*every), p.turn)
	if len(p.flight) >= 3 {
		return
	}
	p.send(p.build())
}

func (p *producer) build() *sent {
	w := p.w
	o := record.BuilderOptions{LeaderEpoch: -1}.NoProducer()
	if p.idempotent {
		o.ProducerID, o.ProducerEpoch, o.BaseSequence = p.pid, 0, p.seq
	}
	b := record.NewBuilder(o)
	n := 1 + w.Rand.IntN(3)
	for range n {
		w.values++
		b.Append(start.UnixMilli(), nil, strconv.AppendUint(nil, w.values, 10), nil)
	}
	p.seq += int32(n)
	batch, err := b.Build()
	must(err)
	x := &sent{p: p, batch: slices.Clone(batch)}
	if p.idempotent {
		p.flight = append(p.flight, x)
	}
	w.stats.produced++
	return x
}

func (p *producer) send(b *sent) {
	w := p.w
	if b.done || w.gone(p.to.topic) {
		return
	}
	b.tries++
	b.first = len(p.flight) > 0 && p.flight[0] == b
	try, first := b.tries, b.first
	if p.idempotent {
		w.After(350*time.Millisecond, func() {
			if !b.done && b.tries == try {
				p.send(b)
			}
		})
	}
	to, _ := w.leaderOf(p.to)
	if to == nil {
		return
	}
	w.call(to, func(s *server, back func(func())) {
		s.produce(p.to.topic, p.to.partition, slices.Clone(b.batch), p.acks, 250*time.Millisecond, func(_ int64, err error) {
			back(func() { p.answered(b, try, first, err) })
		})
	})
}

func (p *producer) answered(b *sent, try int, first bool, err error) {
	if b.done || !p.idempotent {
		return
	}
	code := api.CodeOf(err)
	switch code {
	case 0, api.ErrDuplicateSequenceNumber.Code:
		b.done = true
		p.flight = slices.DeleteFunc(p.flight, func(x *sent) bool { return x == b })
		return
	case api.ErrOutOfOrderSequenceNumber.Code, api.ErrUnknownProducerID.Code:
		if first {
			p.w.stats.sessions++
			p.renew()
			return
		}
	case api.ErrUnknownServerError.Code:
		p.w.fail("a producer of %s-%d is told %v", p.to.name, p.to.partition, err)
	default:
		if e := api.ErrorFor(code); e == nil || !e.Retriable {
			p.w.fail("a producer of %s-%d is told %v", p.to.name, p.to.partition, err)
		}
	}
	if b.tries == try {
		p.w.After(p.w.Between(time.Millisecond, 40*time.Millisecond), func() {
			if b.tries == try {
				p.send(b)
			}
		})
	}
}

// consumer reads partitions from their leaders and from their followers.
type consumer struct {
	w    *world
	rack string
	at   map[assigned]int64
	near map[assigned]int32 // who it was told to read from
}

func (c *consumer) turn() {
	w := c.w
	w.After(w.Between(0, 30*time.Millisecond), c.turn)
	t, ok := w.admin.anyTarget()
	if !ok || w.quiet {
		return
	}
	to, state := w.leaderOf(t)
	by := replica.Reader{Follower: replica.NoFollower, BrokerEpoch: -1, AnyReplica: w.Rand.IntN(4) > 0, Rack: c.rack}
	if near, ok := c.near[t.assigned]; ok {
		to = w.nodes[near-1]
		delete(c.near, t.assigned)
	} else if state != nil && by.AnyReplica && w.Rand.IntN(2) == 0 {
		to = w.nodes[state.Replicas[w.Rand.IntN(len(state.Replicas))]-1]
	}
	if to == nil {
		return
	}
	if w.Rand.IntN(8) == 0 {
		w.call(to, func(s *server, back func(func())) { s.list(t) })
		return
	}
	offset, iso := c.at[t.assigned], pick(w, log.ReadUncommitted, log.ReadCommitted)
	w.call(to, func(s *server, back func(func())) {
		s.consume(t.topic, t.partition, offset, by, iso, pick(w, 0, 20*time.Millisecond), func(r replica.FetchResult, data []byte) {
			back(func() { c.took(t, offset, r, data) })
		})
	})
}

func (c *consumer) took(t target, offset int64, r replica.FetchResult, data []byte) {
	switch {
	case r.Err == api.ErrOffsetOutOfRange:
		c.at[t.assigned] = 0
	case r.PreferredReadReplica >= 0:
		c.near[t.assigned] = r.PreferredReadReplica
	case r.Err == nil:
		for len(data) > 0 {
			b, rest, err := record.Next(data)
			if err != nil {
				return
			}
			data = rest
			c.at[t.assigned] = b.LastOffset() + 1
		}
		if c.w.Rand.IntN(50) == 0 {
			c.at[t.assigned] = 0
		}
	}
}

// list asks where a partition ends for consumers.
func (s *server) list(t target) {
	p := s.m.TopicByID(t.topic).Partition(t.partition)
	if p == nil {
		return
	}
	found, err := p.Offset(log.TimestampLatest, replica.Consumer, false, -1)
	if err == nil {
		s.check()
		s.w.ledger.listed(s, p, found.Offset)
	}
}

// admin makes topics, moves and deletes them.
type admin struct {
	w      *world
	topics []string
	serial int
}

// anyTarget is a random partition that there is.
func (a *admin) anyTarget() (target, bool) {
	hs := a.w.ledger.order
	if len(hs) == 0 {
		return target{}, false
	}
	h := hs[a.w.Rand.IntN(len(hs))]
	return target{h.id, h.name}, !h.deleted
}

func (a *admin) send(req kmsg.Request, answer func(kmsg.Response)) { a.w.client.send(req, answer) }

func (a *admin) create(name string) {
	w := a.w
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, pick[int32](w, 1, 1, 2), min(pick[int16](w, 3, 3, 3, 2, 1), int16(len(w.client.brokerIDs())))
	set := func(k, v string) {
		t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: k, Value: &v})
	}
	if t.ReplicationFactor > 1 && w.Rand.IntN(4) > 0 {
		set("min.insync.replicas", "2")
	}
	if w.uncleanTopics && w.Rand.IntN(2) == 0 {
		set("unclean.leader.election.enable", "true")
	}
	if w.Rand.IntN(4) == 0 {
		set("flush.messages", pick(w, "1", "5"))
	}
	req.Topics = append(req.Topics, t)
	a.send(req, func(resp kmsg.Response) {
		r := &resp.(*kmsg.CreateTopicsResponse).Topics[0]
		if r.ErrorCode != 0 || slices.Contains(a.topics, name) {
			return
		}
		a.topics = append(a.topics, name)
		for i := range t.NumPartitions {
			for range pick(w, 1, 1, 2) {
				w.newProducer(target{assigned{r.TopicID, i}, name})
			}
		}
	})
}

func (a *admin) act() {
	w := a.w
	switch w.Rand.IntN(12) {
	case 0, 1:
		if len(a.topics) < 2 {
			a.serial++
			a.create("t" + strconv.Itoa(a.serial%3)) // names come back
		}
	case 2:
		if len(a.topics) > 1 && w.Rand.IntN(3) == 0 {
			name := a.topics[0]
			a.topics = a.topics[1:]
			req := kmsg.NewPtrDeleteTopicsRequest()
			req.Topics = append(req.Topics, kmsg.DeleteTopicsRequestTopic{Topic: &name})
			a.send(req, nil)
		}
	case 3, 4, 5:
		t, ok := a.anyTarget()
		if !ok {
			return
		}
		req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
		p.Partition = t.partition
		if w.Rand.IntN(4) > 0 {
			p.Replicas = w.client.replicas()
		}
		req.Topics = append(req.Topics, kmsg.AlterPartitionAssignmentsRequestTopic{Topic: t.name, Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{p}})
		a.send(req, nil)
	case 6, 7:
		a.send(kmsg.NewPtrElectLeadersRequest(), nil)
	case 8:
		if w.uncleanAsked {
			req := kmsg.NewPtrElectLeadersRequest()
			req.ElectionType = 1
			a.send(req, nil)
		}
	case 9, 10:
		w.leave()
	}
}

// leave has a broker ask for a controlled shutdown.
func (w *world) leave() {
	n := w.nodes[w.Rand.IntN(len(w.nodes))]
	if n.proc == nil || n.proc.server == nil || n.proc.server.life == nil {
		return
	}
	s := n.proc.server
	s.run(func() {
		n.logf("is asked to leave")
		s.life.ControlledShutdown(s.p.clock.Now())
		s.beat()
		s.in(time.Duration(w.Between(300*time.Millisecond, time.Second)), func() { s.stop(false) }) // it waits no longer
	})
}

// write writes once to a partition, for the end of a run.
func (w *world) write(t target, done func()) {
	to, _ := w.leaderOf(t)
	if to == nil {
		return
	}
	w.values++
	b := record.NewBuilder(record.BuilderOptions{LeaderEpoch: -1}.NoProducer())
	b.Append(start.UnixMilli(), nil, fmt.Appendf(nil, "%d", w.values), nil)
	batch, err := b.Build()
	must(err)
	w.call(to, func(s *server, back func(func())) {
		s.produce(t.topic, t.partition, batch, -1, 500*time.Millisecond, func(_ int64, err error) {
			if err == nil {
				back(done)
			}
		})
	})
}
