package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/coordinator"
)

// Sizes of the workloads of groups.
const (
	groupMembers    = 1000
	groupPartitions = 2000 // of the topic that they read
	groupLots       = 10_000
	groupClients    = 16 // connections that send commits and heartbeats
	commitWidth     = 10 // partitions of a commit
	loadGroups      = 1000
	loadPartitions  = 1000 // of each group: a million offsets in all
)

// roundTime is the shortest time between two heartbeats of a member of the large group, far below what clients do (5 s), so that it
// is the coordinator that takes the time and not the interval.
const roundTime = 250 * time.Millisecond

// The times until a large group is stable have no aim: they are the protocols' waits, the same for both (two heartbeats and the
// shortest time between two targets, 1 s, or group.initial.rebalance.delay.ms, 3 s, which newcomers prolong once). What the
// coordinator adds is its CPU.
func init() {
	const third = 1.0 / 3
	rows = append(rows,
		row{group: "groups", label: "1,000 members join one (KIP-848): until stable", workload: "group-join", name: "time", unit: "s"},
		row{label: "CPU of that", workload: "group-join", name: "server_cpu", unit: "s", aimOfKafka: third},
		row{label: "memory with them", workload: "group-join", name: "rss", unit: "MiB", aimOfKafka: third},
		row{label: "one more member: until stable", workload: "group-one", name: "time", unit: "s"},
		row{label: "CPU of that", workload: "group-one", name: "server_cpu", unit: "s", aimOfKafka: third},
		row{label: "1,000 members join one (classic): until stable", workload: "group-classic-join", name: "time", unit: "s"},
		row{label: "CPU of that", workload: "group-classic-join", name: "server_cpu", unit: "s", aimOfKafka: third},
		row{label: "one more member: until stable", workload: "group-classic-one", name: "time", unit: "s"},
		row{label: "CPU of that", workload: "group-classic-one", name: "server_cpu", unit: "s", aimOfKafka: third},
		row{label: "10,000 groups of one member: all joined", workload: "group-lots", name: "time", unit: "s", aimOfKafka: third},
		row{label: "CPU of that", workload: "group-lots", name: "server_cpu", unit: "s", aimOfKafka: third},
		row{label: "memory with them", workload: "group-lots", name: "rss", unit: "MiB", aimOfKafka: third},
		row{label: "CPU of their heartbeats, 2,000 a second", workload: "group-lots-beat", name: "server_cpu", unit: "% of a core", aimOfKafka: third},
		row{label: "OffsetCommit of 10 partitions, 16 connections", workload: "group-commit", name: "rate", unit: "requests/s", more: true, aimOfKafka: 3},
		row{label: "CPU of that", workload: "group-commit", name: "server_cpu", unit: "us/request", aimOfKafka: third},
		row{label: "ConsumerGroupHeartbeat, 16 connections", workload: "group-beat", name: "rate", unit: "requests/s", more: true, aimOfKafka: 3},
		row{label: "CPU of that", workload: "group-beat", name: "server_cpu", unit: "us/request", aimOfKafka: third},
		row{label: "a partition with a million offsets: first answer to offsets", workload: "group-load", name: "time", unit: "s", aimOfKafka: third},
		row{label: "CPU of that start", workload: "group-load", name: "server_cpu", unit: "s", aimOfKafka: third},
	)
}

// groups measures the group coordinator of one node.
func (b *bench) groups(k kind) error {
	if !b.wants("group-join", "group-one", "group-classic-join", "group-classic-one", "group-lots", "group-lots-beat", "group-commit", "group-beat", "group-load") {
		return nil
	}
	s, err := b.create(k)
	if err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	c, err := s.firstAnswer(startLimit)
	if err != nil {
		return err
	}
	g := &groupBench{b: b, s: s, c: c}
	if g.wide, err = c.newTopic("wide", groupPartitions); err != nil {
		return err
	}
	// The offsets topic is made when it is asked for the first time.
	if err := g.awaitCoordinator("warm"); err != nil {
		return err
	}
	// A virtual machine has to compile its code first.
	silent := b.silent
	b.silent = true
	warm := min(1, b.warmRounds)
	if k.name == "kafka" {
		warm = b.warmRounds
	}
	for range warm {
		if err := g.commits("warm", b.tinyTime); err != nil {
			return err
		}
		if err := g.beats("warm", b.tinyTime); err != nil {
			return err
		}
	}
	b.silent = silent
	for _, w := range []struct {
		names []string
		run   func() error
	}{
		{[]string{"group-commit"}, func() error { return g.commits("group-commit", b.tinyTime) }},
		{[]string{"group-beat"}, func() error { return g.beats("group-beat", b.tinyTime) }},
		{[]string{"group-join", "group-one"}, g.large},
		{[]string{"group-classic-join", "group-classic-one"}, g.classic},
		{[]string{"group-lots", "group-lots-beat"}, g.lots},
	} {
		if b.wants(w.names...) {
			if err := w.run(); err != nil {
				return fmt.Errorf("%s: %w", w.names[0], err)
			}
		}
	}
	c.close()
	if b.wants("group-load") {
		if err := g.load(); err != nil {
			return fmt.Errorf("group-load: %w", err)
		}
	}
	return s.discard()
}

type groupBench struct {
	b    *bench
	s    *server
	c    *conn
	wide topic
}

var errNotYet = errors.New("not yet")

// later says whether an error means that the coordinator isn't there yet.
func later(code int16) bool { return code == 14 || code == 15 || code == 16 }

// awaitCoordinator asks for a group's offsets until they are served.
func (g *groupBench) awaitCoordinator(group string) error {
	for end := time.Now().Add(adminTimeout); ; time.Sleep(pollEvery) {
		q := kmsg.NewPtrFindCoordinatorRequest()
		q.Version, q.CoordinatorKeys = 4, []string{group}
		resp, err := g.c.call(q)
		if err != nil {
			return err
		}
		if code := resp.(*kmsg.FindCoordinatorResponse).Coordinators[0].ErrorCode; code == 0 {
			switch _, err := g.offsets(g.c, group); err {
			case nil:
				return nil
			case errNotYet:
			default:
				return err
			}
		}
		if time.Now().After(end) {
			return errors.New("no coordinator")
		}
	}
}

// offsets counts a group's committed offsets.
func (g *groupBench) offsets(c *conn, group string) (int, error) {
	q := kmsg.NewPtrOffsetFetchRequest()
	q.Version = 9
	one := kmsg.NewOffsetFetchRequestGroup()
	one.Group, one.Topics = group, nil
	q.Groups = append(q.Groups, one)
	resp, err := c.call(q)
	if err != nil {
		return 0, err
	}
	r := resp.(*kmsg.OffsetFetchResponse).Groups[0]
	if later(r.ErrorCode) {
		return 0, errNotYet
	}
	if r.ErrorCode != 0 {
		return 0, fmt.Errorf("offsets of %s: error %d", group, r.ErrorCode)
	}
	n := 0
	for _, t := range r.Topics {
		n += len(t.Partitions)
	}
	return n, nil
}

// eachClient runs f on connections of its own at the same time.
func (g *groupBench) eachClient(n int, f func(i int, c *conn) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		c, err := g.s.connect()
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer c.close()
			errs[i] = f(i, c)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// measured runs f and notes how long it took, what it cost and, if asked, what the server takes then.
func (g *groupBench) measured(name string, rss bool, f func() error) error {
	if err := g.b.settle(g.s); err != nil {
		return err
	}
	stop := g.b.profile(g.s, name)
	w, err := startWatch(g.s.pid())
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	l, err := w.stop()
	if err != nil {
		return err
	}
	stop()
	g.b.note(g.s, name, "time", l.took.Seconds(), "s")
	g.b.note(g.s, name, "server_cpu", l.server.Seconds(), "s")
	g.b.note(g.s, name, "others_cpu", l.others(), "%")
	if rss {
		n, err := memory(g.s.pid(), "VmRSS")
		if err != nil {
			return err
		}
		g.b.note(g.s, name, "rss", float64(n)/(1<<20), "MiB")
	}
	return nil
}

// rate runs f on each of the clients until the time is over and notes how often it was through.
func (g *groupBench) rate(name string, d time.Duration, f func(i int, c *conn) func() error) error {
	if err := g.b.settle(g.s); err != nil {
		return err
	}
	counts := make([]int, groupClients)
	begin := make(chan struct{})
	var w stopwatch
	var stop func()
	var ready sync.WaitGroup
	ready.Add(groupClients)
	started := make(chan error, 1)
	go func() {
		ready.Wait()
		stop = g.b.profile(g.s, name)
		var err error
		w, err = startWatch(g.s.pid())
		started <- err
		close(begin)
	}()
	err := g.eachClient(groupClients, func(i int, c *conn) error {
		once := f(i, c)
		err := once()
		ready.Done()
		<-begin
		for end := w.at.Add(d); err == nil && time.Now().Before(end); counts[i]++ {
			err = once()
		}
		return err
	})
	if err := errors.Join(err, <-started); err != nil {
		return err
	}
	l, err := w.stop()
	if err != nil {
		return err
	}
	stop()
	n := 0
	for _, k := range counts {
		n += k
	}
	g.b.note(g.s, name, "rate", float64(n)/l.took.Seconds(), "requests/s")
	g.b.note(g.s, name, "server_cpu", l.server.Seconds()/float64(n)*1e6, "us/request")
	g.b.note(g.s, name, "others_cpu", l.others(), "%")
	return nil
}

func commitRequest(group, topic string, from, partitions int, offset int64) *kmsg.OffsetCommitRequest {
	q := kmsg.NewPtrOffsetCommitRequest()
	q.Version, q.Group, q.Generation = 9, group, -1
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic = topic
	for p := range partitions {
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = int32(from+p), offset, -1, kmsg.StringPtr("")
		t.Partitions = append(t.Partitions, rp)
	}
	q.Topics = append(q.Topics, t)
	return q
}

func (c *conn) commit(q *kmsg.OffsetCommitRequest) error {
	resp, err := c.call(q)
	if err != nil {
		return err
	}
	for _, t := range resp.(*kmsg.OffsetCommitResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				return fmt.Errorf("commit of %s to %s-%d: error %d", q.Group, t.Topic, p.Partition, p.ErrorCode)
			}
		}
	}
	return nil
}

// commits has every client commit the offsets of a group of its own.
func (g *groupBench) commits(name string, d time.Duration) error {
	return g.rate(name, d, func(i int, c *conn) func() error {
		q := commitRequest(fmt.Sprintf("commit-%d", i), g.wide.name, 0, commitWidth, 0)
		return func() error {
			for p := range q.Topics[0].Partitions {
				q.Topics[0].Partitions[p].Offset++
			}
			return c.commit(q)
		}
	})
}

// groupMember is a member of a consumer group.
type groupMember struct {
	group, id, topic string
	epoch            int32
	has              []kmsg.ConsumerGroupHeartbeatRequestTopic
	changed          bool // it has been told what it hasn't acknowledged yet
}

// beat sends a heartbeat and takes in what the member is told.
func (m *groupMember) beat(c *conn) error {
	q := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	q.Version, q.Group, q.MemberID, q.MemberEpoch = 1, m.group, m.id, m.epoch
	if m.epoch == 0 {
		q.RebalanceTimeoutMillis, q.SubscribedTopicNames = 300_000, []string{m.topic}
		q.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	}
	if m.changed {
		q.Topics = append([]kmsg.ConsumerGroupHeartbeatRequestTopic{}, m.has...)
	}
	resp, err := c.call(q)
	if err != nil {
		return err
	}
	r := resp.(*kmsg.ConsumerGroupHeartbeatResponse)
	if later(r.ErrorCode) {
		return nil // the next one will do
	}
	if r.ErrorCode != 0 {
		return fmt.Errorf("heartbeat of %s in %s as of %d: error %d", m.id, m.group, m.epoch, r.ErrorCode)
	}
	m.epoch, m.changed = r.MemberEpoch, r.Assignment != nil
	if r.Assignment != nil {
		m.has = m.has[:0]
		for _, t := range r.Assignment.Topics {
			m.has = append(m.has, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: t.TopicID, Partitions: t.Partitions})
		}
	}
	return nil
}

// beats has every client send the heartbeats of a member that is alone in its group.
func (g *groupBench) beats(name string, d time.Duration) error {
	return g.rate(name, d, func(i int, c *conn) func() error {
		m := &groupMember{group: fmt.Sprintf("beat-%s-%d", name, i), id: fmt.Sprintf("%s-%d-%d", name, i, time.Now().UnixNano()), topic: g.wide.name}
		return func() error { return m.beat(c) }
	})
}

// untilStable lets members send heartbeats in rounds until all are at the same epoch, a later one than before, and have all partitions
// among them, evenly, and nothing is left to be said.
func (g *groupBench) untilStable(ms []*groupMember, conns []*conn) error {
	before := ms[0].epoch
	for end := time.Now().Add(adminTimeout); time.Now().Before(end); {
		begun := time.Now()
		var wg sync.WaitGroup
		errs := make([]error, len(conns))
		for i, c := range conns {
			wg.Go(func() {
				for k := i; k < len(ms) && errs[i] == nil; k += len(conns) {
					errs[i] = ms[k].beat(c)
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		n, quiet, least, most := 0, true, groupPartitions, 0
		for _, m := range ms {
			quiet = quiet && !m.changed && m.epoch == ms[0].epoch && m.epoch > before
			has := 0
			for _, t := range m.has {
				has += len(t.Partitions)
			}
			n, least, most = n+has, min(least, has), max(most, has)
		}
		if quiet && n == groupPartitions && most-least <= 1 {
			return nil
		}
		time.Sleep(roundTime - time.Since(begun))
	}
	return errors.New("the group does not become stable")
}

// large lets a thousand members join a group, and then one more.
func (g *groupBench) large() error {
	n := g.b.scaledCount(groupMembers)
	conns, err := g.connections(32)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	member := func(i int) *groupMember {
		return &groupMember{group: "large", id: fmt.Sprintf("member-%d", i), topic: g.wide.name}
	}
	var ms []*groupMember
	for i := range n {
		ms = append(ms, member(i))
	}
	if err := g.measured("group-join", true, func() error { return g.untilStable(ms, conns) }); err != nil {
		return err
	}
	ms = append(ms, member(n))
	return g.measured("group-one", false, func() error { return g.untilStable(ms, conns) })
}

func (g *groupBench) connections(n int) ([]*conn, error) {
	conns := make([]*conn, 0, n)
	for range n {
		c, err := g.s.connect()
		if err != nil {
			closeAll(conns)
			return nil, err
		}
		c.in = make([]byte, 4<<10)
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []*conn) {
	for _, c := range conns {
		c.close()
	}
}

// send sends a request without waiting for its response, which receive takes later.
func (c *conn) send(q kmsg.Request) error {
	c.correlation++
	f := encode(q)
	setCorrelation(f, c.correlation)
	return c.write(f)
}

func (c *conn) receive(q kmsg.Request, flexible bool) (kmsg.Response, error) {
	b, err := c.frame()
	if err != nil {
		return nil, err
	}
	resp := q.ResponseKind()
	skip := 4 // correlation id
	if flexible {
		skip++ // no tags
	}
	return resp, resp.ReadFrom(b[skip:])
}

// classicRound takes members of a classic group through a rebalance: all join, the leader assigns, all get their assignment. Those
// after the first are told by their heartbeats if there was a generation before.
func (g *groupBench) classicRound(conns []*conn, ids []string, before int32) (generation int32, err error) {
	join := func(id string) *kmsg.JoinGroupRequest {
		q := kmsg.NewPtrJoinGroupRequest()
		// The last version that takes in a member that has no id yet with one request.
		q.Version, q.Group, q.MemberID, q.ProtocolType = 3, "large-classic", id, "consumer"
		q.SessionTimeoutMillis, q.RebalanceTimeoutMillis = 60_000, 60_000
		subscription := binary.BigEndian.AppendUint16(nil, 0)
		subscription = binary.BigEndian.AppendUint32(subscription, 1)
		subscription = binary.BigEndian.AppendUint16(subscription, uint16(len(g.wide.name)))
		subscription = binary.BigEndian.AppendUint32(append(subscription, g.wide.name...), 0)
		q.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: subscription}}
		return q
	}
	for i, c := range conns {
		if before > 0 && i > 0 {
			q := kmsg.NewPtrHeartbeatRequest()
			q.Version, q.Group, q.Generation, q.MemberID = 3, "large-classic", before, ids[i]
			if _, err := c.call(q); err != nil {
				return 0, err
			}
		}
		if err := c.send(join(ids[i])); err != nil {
			return 0, err
		}
	}
	var members []kmsg.JoinGroupResponseMember
	leader := ""
	for i, c := range conns {
		resp, err := c.receive(join(""), false)
		if err != nil {
			return 0, err
		}
		r := resp.(*kmsg.JoinGroupResponse)
		if r.ErrorCode != 0 {
			return 0, fmt.Errorf("join: error %d", r.ErrorCode)
		}
		ids[i], generation, leader = r.MemberID, r.Generation, r.LeaderID
		if len(r.Members) > 0 {
			members = r.Members
		}
	}
	sync := func(id string) *kmsg.SyncGroupRequest {
		q := kmsg.NewPtrSyncGroupRequest()
		q.Version, q.Group, q.Generation, q.MemberID = 3, "large-classic", generation, id
		if id != leader {
			return q
		}
		for i, m := range members {
			a := kmsg.NewConsumerMemberAssignment()
			t := kmsg.NewConsumerMemberAssignmentTopic()
			t.Topic = g.wide.name
			for p := i; p < groupPartitions; p += len(members) {
				t.Partitions = append(t.Partitions, int32(p))
			}
			a.Topics = append(a.Topics, t)
			q.GroupAssignment = append(q.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: m.MemberID, MemberAssignment: a.AppendTo(nil)})
		}
		return q
	}
	for i, c := range conns {
		if err := c.send(sync(ids[i])); err != nil {
			return 0, err
		}
	}
	for i, c := range conns {
		resp, err := c.receive(sync(ids[i]), false)
		if err != nil {
			return 0, err
		}
		if code := resp.(*kmsg.SyncGroupResponse).ErrorCode; code != 0 {
			return 0, fmt.Errorf("sync: error %d", code)
		}
	}
	return generation, nil
}

// classic does what large does with the classic protocol, whose members need a connection each.
func (g *groupBench) classic() error {
	n := g.b.scaledCount(groupMembers)
	conns, err := g.connections(n + 1)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	ids := make([]string, n+1)
	var generation int32
	if err := g.measured("group-classic-join", false, func() error {
		generation, err = g.classicRound(conns[:n], ids[:n], 0)
		return err
	}); err != nil {
		return err
	}
	return g.measured("group-classic-one", false, func() error {
		// The newcomer makes the others rejoin, who learn of it by their heartbeats: it comes first.
		conns, ids := append(conns[n:n+1:n+1], conns[:n]...), append(ids[n:n+1:n+1], ids[:n]...)
		_, err := g.classicRound(conns, ids, generation)
		return err
	})
}

// lots makes many groups of one member, and then lets them send heartbeats as often as clients do.
func (g *groupBench) lots() error {
	n := g.b.scaledCount(groupLots)
	ms := make([]*groupMember, n)
	for i := range ms {
		ms[i] = &groupMember{group: fmt.Sprintf("lots-%d", i), id: fmt.Sprintf("member-%d", i), topic: "narrow"}
	}
	if _, err := g.c.newTopic("narrow", 1); err != nil {
		return err
	}
	share := func(i int) []*groupMember { return ms[i*n/groupClients : (i+1)*n/groupClients] }
	if err := g.measured("group-lots", true, func() error {
		return g.eachClient(groupClients, func(i int, c *conn) error {
			for todo := share(i); len(todo) > 0; {
				for _, m := range todo {
					if err := m.beat(c); err != nil {
						return err
					}
				}
				todo = slices.DeleteFunc(slices.Clone(todo), func(m *groupMember) bool { return m.epoch > 0 && !m.changed })
			}
			return nil
		})
	}); err != nil {
		return err
	}
	if err := g.b.settle(g.s); err != nil {
		return err
	}
	const interval = 5 * time.Second
	w, err := startWatch(g.s.pid())
	if err != nil {
		return err
	}
	end := w.at.Add(max(g.b.idleTime, time.Second))
	if err := g.eachClient(groupClients, func(i int, c *conn) error {
		mine := share(i)
		for k, at := 0, w.at; at.Before(end); k++ {
			at = w.at.Add(time.Duration(k) * interval / time.Duration(len(mine)))
			time.Sleep(time.Until(at))
			if err := mine[k%len(mine)].beat(c); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	l, err := w.stop()
	if err != nil {
		return err
	}
	g.b.note(g.s, "group-lots-beat", "server_cpu", 100*l.server.Seconds()/l.took.Seconds(), "%")
	g.b.note(g.s, "group-lots-beat", "others_cpu", l.others(), "%")
	return nil
}

// load fills a partition of the offsets topic with a million offsets, restarts the server, and measures from its first answer until
// it answers for the offsets.
func (g *groupBench) load() error {
	const partitions = 50 // offsets.topic.num.partitions
	var names []string
	for i := 0; len(names) < g.b.scaledCount(loadGroups); i++ {
		if name := fmt.Sprintf("load-%d", i); coordinator.PartitionFor(name, partitions) == 0 {
			names = append(names, name)
		}
	}
	if err := g.eachClient(groupClients, func(i int, c *conn) error {
		for _, name := range names[i*len(names)/groupClients : (i+1)*len(names)/groupClients] {
			if err := c.commit(commitRequest(name, g.wide.name, 0, loadPartitions, 1)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := g.s.end(syscall.SIGTERM); err != nil {
		return err
	}
	if err := g.b.settle(nil); err != nil {
		return err
	}
	if err := g.s.start(); err != nil {
		return err
	}
	stop := g.b.profileStart(g.s, "group-load")
	c, err := g.s.firstAnswer(startLimit)
	if err != nil {
		return err
	}
	g.c = c
	defer c.close()
	first := time.Now()
	last := names[len(names)-1]
	if err := g.awaitCoordinator(last); err != nil {
		return err
	}
	took := time.Since(first)
	cpu, err := processCPU(g.s.pid())
	if err != nil {
		return err
	}
	stop()
	if n, err := g.offsets(c, last); err != nil || n != loadPartitions {
		return fmt.Errorf("%d offsets of %d after the restart: %w", n, loadPartitions, err)
	}
	g.b.note(g.s, "group-load", "time", took.Seconds(), "s")
	g.b.note(g.s, "group-load", "server_cpu", cpu.Seconds(), "s")
	return nil
}
