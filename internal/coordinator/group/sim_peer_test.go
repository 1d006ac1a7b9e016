package group

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/uuid"
)

// simMember is a member of a group: a client of either protocol.
type simMember interface {
	base() *peer
	// tick does what is due.
	tick()
	// leave says goodbye.
	leave()
}

// peer is what clients of both protocols have.
type peer struct {
	s     *simulation
	self  simMember
	group *simGroup
	name  string // its client id

	instance *string
	reads    []string
	regex    string

	// id and epoch are what it knows of its membership: the member epoch, or the generation in which it got its partitions; 0 for none.
	id    string
	epoch int32
	// parts is what it reads: what is there, it believes to be its own.
	parts map[partitionID]*simPart

	node       int // where it takes the coordinator to be
	connection int
	delivered  time.Duration // when its last request reaches the coordinator
	waiting    bool          // for the answer to a request about membership
	committing bool
	dead       bool
	paused     time.Duration // until then it does nothing
}

// simPart is a partition that is read.
type simPart struct {
	position  int64 // -1 until the committed offset was fetched
	committed int64
	fetching  bool
}

func (p *peer) base() *peer { return p }

// later runs f when the client is there to do it.
func (p *peer) later(d time.Duration, f func()) {
	p.s.after(d, func() {
		switch now := p.s.now(); {
		case p.dead:
		case now < p.paused:
			p.later(p.paused-now, f)
		default:
			f()
		}
	})
}

// simPatience is how long a client waits for an answer that needn't wait for others.
const simPatience = 6 * time.Second

// send sends a request. take gets the answer, nil if there is none within the patience.
func (p *peer) send(what string, patience time.Duration, twice bool, do func(c *Coordinator, reply func(any)), take func(resp any)) {
	s := p.s
	connection, node := p.connection, p.node
	done := false
	finish := func(resp any) {
		if !done {
			done = true
			take(resp)
		}
	}
	delay, back := s.between(100*time.Microsecond, 5*time.Millisecond), s.between(100*time.Microsecond, 5*time.Millisecond)
	lost, answerLost := false, false
	if !s.healed {
		lost, answerLost, twice = s.chance(3), s.chance(3), twice && s.chance(5)
		if s.chance(4) {
			delay = s.between(0, 3*time.Second)
		}
		if s.chance(4) {
			back = s.between(0, 3*time.Second)
		}
	} else {
		twice = false
	}
	deliver := func(take func(any)) {
		p.s.ask(p.name+" "+what, node, do, take)
	}
	if !lost {
		p.delivered = max(p.delivered+1, s.now()+delay)
		s.after(p.delivered-s.now(), func() {
			s.print("%s > node %d: %s", p.name, node, what)
			deliver(func(resp any) {
				if answerLost {
					s.print("%s < %s: answer is lost", p.name, what)
					return
				}
				p.later(back, func() {
					if p.connection == connection {
						finish(resp)
					}
				})
			})
			if twice {
				deliver(func(any) {})
			}
		})
	}
	p.later(patience, func() {
		if !done {
			s.stats.timeouts++
			p.connection++
			p.node = s.log.leader
			finish(nil)
		}
	})
}

// moved says whether an error means that the coordinator is to be asked again, perhaps another one, and looks it up.
func (p *peer) moved(code int16) bool {
	switch code {
	case api.ErrNotCoordinator.Code, api.ErrCoordinatorNotAvailable.Code, api.ErrCoordinatorLoadInProgress.Code, api.ErrRequestTimedOut.Code:
		p.node = p.s.log.leader
		return true
	}
	return false
}

// take begins to read partitions, and drop ends it.
func (p *peer) take(ps partitions) {
	for _, tp := range ps {
		for _, n := range tp.partitions {
			id := partitionID{tp.topic, n}
			if p.parts[id] == nil {
				p.s.stir = true
				p.parts[id] = &simPart{position: -1, committed: -1}
			}
		}
	}
}

func (p *peer) drop(gone func(id partitionID) bool) {
	maps.DeleteFunc(p.parts, func(id partitionID, _ *simPart) bool { return gone(id) })
}

// owned is what it reads.
func (p *peer) owned() partitions { return collect(slices.Collect(maps.Keys(p.parts))) }

// read makes some progress, commits it, and looks up where to begin.
func (p *peer) read() {
	if p.epoch <= 0 || p.committing {
		return
	}
	var unknown, progress []partitionID
	for _, tp := range p.owned() {
		for _, n := range tp.partitions {
			id := partitionID{tp.topic, n}
			switch part := p.parts[id]; {
			case part.position < 0 && !part.fetching:
				unknown = append(unknown, id)
			case part.position >= 0:
				part.position += int64(p.s.rand.IntN(3))
				if part.position != part.committed {
					progress = append(progress, id)
				}
			}
		}
	}
	switch {
	case len(unknown) > 0:
		p.fetch(unknown)
	case len(progress) > 0 && p.s.chance(60):
		p.commit(progress)
	}
}

func (p *peer) modern() bool { _, ok := p.self.(*modernMember); return ok }

// fetch asks for committed offsets, as a client does that begins to read.
func (p *peer) fetch(ids []partitionID) {
	q := kmsg.NewOffsetFetchRequestGroup()
	q.Group = p.group.id
	if p.modern() {
		q.MemberID, q.MemberEpoch = &p.id, p.epoch
	}
	asked := map[partitionID]*simPart{}
	for _, id := range ids {
		part := p.parts[id]
		part.fetching = true
		asked[id] = part
	}
	for _, tp := range collect(ids) {
		q.Topics = append(q.Topics, kmsg.OffsetFetchRequestGroupTopic{Topic: p.s.name(tp.topic), TopicID: tp.topic, Partitions: tp.partitions})
	}
	stable := p.s.chance(50)
	p.send("fetch offsets", simPatience, false, func(c *Coordinator, reply func(any)) {
		c.OffsetFetch(&Context{Version: 10}, &q, false, stable, func(r kmsg.OffsetFetchResponseGroup) { reply(r) })
	}, func(resp any) {
		for _, part := range asked {
			part.fetching = false
		}
		r, ok := resp.(kmsg.OffsetFetchResponseGroup)
		if !ok || p.moved(r.ErrorCode) || r.ErrorCode != 0 {
			return
		}
		for _, t := range r.Topics {
			for _, rp := range t.Partitions {
				// Only if it has been its own all the while.
				if id := (partitionID{t.TopicID, rp.Partition}); p.parts[id] != nil && p.parts[id] == asked[id] {
					asked[id].position, asked[id].committed = max(rp.Offset, 0), rp.Offset
				}
			}
		}
	})
}

// commit commits how far it has read.
func (p *peer) commit(ids []partitionID) {
	p.committing = true
	q := kmsg.NewPtrOffsetCommitRequest()
	q.Group, q.MemberID, q.Generation, q.RetentionTimeMillis, q.InstanceID = p.group.id, p.id, p.epoch, -1, p.instance
	positions := map[partitionID]int64{}
	for _, tp := range collect(ids) {
		t := kmsg.NewOffsetCommitRequestTopic()
		t.Topic, t.TopicID = p.s.name(tp.topic), tp.topic
		for _, n := range tp.partitions {
			id := partitionID{tp.topic, n}
			positions[id] = p.parts[id].position
			cp := kmsg.NewOffsetCommitRequestTopicPartition()
			cp.Partition, cp.Offset = n, positions[id]
			t.Partitions = append(t.Partitions, cp)
		}
		q.Topics = append(q.Topics, t)
	}
	p.s.stats.commits++
	sent := p.s.now()
	p.send(fmt.Sprintf("commit %v", positions), simPatience, true, func(c *Coordinator, reply func(any)) {
		// The broker lets pass what exists.
		known := *q
		known.Topics = nil
		for _, t := range q.Topics {
			if p.s.topics.img.Topics.ByID(t.TopicID) != nil {
				known.Topics = append(known.Topics, t)
			}
		}
		c.OffsetCommit(&Context{Version: 9}, &known, func(r *kmsg.OffsetCommitResponse) { reply(r) })
	}, func(resp any) {
		p.committing = false
		r, ok := resp.(*kmsg.OffsetCommitResponse)
		if !ok {
			return
		}
		for _, t := range r.Topics {
			for _, rp := range t.Partitions {
				id := partitionID{uuid.UUID(t.TopicID), rp.Partition}
				if rp.ErrorCode != 0 {
					p.s.stats.refused++
					p.moved(rp.ErrorCode)
					continue
				}
				if part := p.parts[id]; part != nil {
					part.committed = positions[id]
				}
				gp := groupPartition{p.group.id, topicPartition{t.Topic, rp.Partition}}
				p.s.committedTo(gp, positions[id], sent)
			}
		}
	})
}

// die ends a client without a word.
func (p *peer) die() {
	p.dead = true
	p.s.peers = slices.DeleteFunc(p.s.peers, func(m simMember) bool { return m.base() == p })
}

// modernMember speaks KIP-848.
type modernMember struct {
	*peer
	told partitions
	// unsure says that an answer was lost, so that the next heartbeat says everything.
	unsure bool
}

func (m *modernMember) tick() {
	m.settle()
	m.read()
	if !m.waiting {
		m.heartbeat()
	}
	m.later(m.s.between(1500*time.Millisecond, 2*time.Second), m.tick)
}

// settle gives up and then takes what the client was told, once its commit is through.
func (m *modernMember) settle() {
	if m.epoch <= 0 {
		return
	}
	owned := m.owned()
	_, rest := owned.split(m.told.has)
	if len(rest) > 0 && m.committing {
		return
	}
	m.drop(func(id partitionID) bool { return rest.has(id.topic, id.partition) })
	m.take(m.told)
}

// rejoin forgets all that the member was.
func (m *modernMember) rejoin() {
	m.epoch, m.told, m.unsure = joinEpoch, nil, false
	clear(m.parts)
}

func (m *modernMember) request() *kmsg.ConsumerGroupHeartbeatRequest {
	r := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	r.Group, r.MemberID, r.MemberEpoch, r.InstanceID, r.RebalanceTimeoutMillis = m.group.id, m.id, m.epoch, m.instance, -1
	return r
}

func (m *modernMember) heartbeat() {
	r := m.request()
	owned := m.owned()
	full := m.epoch == joinEpoch || m.unsure
	m.unsure = false
	if settled := m.told.equal(owned); settled || full {
		r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		for _, tp := range owned {
			r.Topics = append(r.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: tp.topic, Partitions: tp.partitions})
		}
		// It says what it has, so it may not take any more before it hears what the coordinator makes of that.
		m.told, _ = m.told.split(owned.has)
		m.unsure = !settled
	}
	if full {
		r.RebalanceTimeoutMillis = 20_000
		r.SubscribedTopicNames, r.SubscribedTopicRegex = append([]string{}, m.reads...), &m.regex
	}
	m.waiting = true
	m.send(fmt.Sprintf("heartbeat epoch %d has %v", m.epoch, owned), simPatience, true, func(c *Coordinator, reply func(any)) {
		c.ConsumerGroupHeartbeat(&Context{ClientID: m.name, ClientHost: "/h", Version: 1}, r,
			func(resp *kmsg.ConsumerGroupHeartbeatResponse) { reply(resp) })
	}, func(resp any) {
		m.waiting = false
		a, ok := resp.(*kmsg.ConsumerGroupHeartbeatResponse)
		if !ok {
			m.unsure = true
			return
		}
		m.takeAnswer(r.MemberEpoch, a)
	})
}

func (m *modernMember) takeAnswer(sent int32, a *kmsg.ConsumerGroupHeartbeatResponse) {
	if sent != m.epoch {
		return // to somebody that it isn't any more
	}
	m.s.print("%s < %v epoch %d %v", m.name, api.ErrorFor(a.ErrorCode), a.MemberEpoch, a.Assignment)
	switch a.ErrorCode {
	case api.CodeNone:
		m.s.stir = m.s.stir || m.epoch != a.MemberEpoch
		m.epoch = a.MemberEpoch
		if a.Assignment == nil {
			return
		}
		var tps []topicPartitions
		for _, t := range a.Assignment.Topics {
			tps = append(tps, topicPartitions{topic: t.TopicID, partitions: t.Partitions})
		}
		m.told = normalize(tps)
		// It acknowledges at once.
		m.settle()
		if !m.waiting && !m.committing {
			m.later(0, func() {
				if !m.waiting && m.epoch > 0 {
					m.settle()
					m.heartbeat()
				}
			})
		}
	case api.ErrFencedMemberEpoch.Code, api.ErrUnknownMemberID.Code, api.ErrGroupIDNotFound.Code:
		m.s.stats.fenced++
		m.rejoin()
	case api.ErrFencedInstanceID.Code:
		m.die()
	case api.ErrUnreleasedInstanceID.Code:
		// Its former self has yet to be missed.
		m.rejoin()
	default:
		m.unsure = true
		if !m.moved(a.ErrorCode) {
			m.s.fail("%s is answered with %v", m.name, api.ErrorFor(a.ErrorCode))
		}
	}
}

// leave stops reading before it says goodbye, for ever or, if it is static, perhaps for a while.
func (m *modernMember) leave() {
	if m.waiting || m.committing {
		m.later(time.Second, m.leave)
		return
	}
	clear(m.parts)
	r := m.request()
	r.MemberEpoch = leaveEpoch
	if m.instance != nil && m.s.chance(50) {
		r.MemberEpoch = leaveStaticEpoch
	}
	m.send(fmt.Sprintf("leave %d", r.MemberEpoch), simPatience, true, func(c *Coordinator, reply func(any)) {
		c.ConsumerGroupHeartbeat(&Context{Version: 1}, r, func(resp *kmsg.ConsumerGroupHeartbeatResponse) { reply(resp) })
	}, func(any) {})
	m.die()
}

// name is a topic's name by its id.
func (s *simulation) name(id uuid.UUID) string { return strings.TrimRight(string(id[:14]), "\x00") }
