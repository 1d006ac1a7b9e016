package client

import (
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// coreMetadata knows the topics that a consumer reads or wants to.
type coreMetadata struct {
	k      *core
	topics map[string]*coreTopic
	names  map[UUID]string
	all    bool                // every topic is wanted, to be matched
	extra  []string            // topics that others of the group want, while this member assigns
	ids    map[UUID]struct{}   // topics known only by id
	told   map[string]struct{} // topics whose error the caller has seen

	stale    bool
	inFlight bool
	failures int
	retryAt  time.Time
	allAt    time.Time // when all topics were listed
}

type coreTopic struct {
	Topic
	at time.Time
}

func (m *coreMetadata) init(k *core) {
	*m = coreMetadata{k: k, topics: map[string]*coreTopic{}, names: map[UUID]string{}, told: map[string]struct{}{}, ids: map[UUID]struct{}{}}
}

// refresh has everything looked up again.
func (m *coreMetadata) refresh() { m.stale = true }

// wanted are the names of all topics that matter.
func (m *coreMetadata) wanted() []string {
	var out []string
	last := ""
	for _, p := range m.k.sorted() {
		if p.tp.Topic != last {
			last = p.tp.Topic
			out = append(out, last)
		}
	}
	out = append(append(out, m.k.topics...), m.extra...)
	slices.Sort(out)
	return slices.Compact(out)
}

func (m *coreMetadata) tick() {
	if m.inFlight {
		return
	}
	missing := false
	if m.all {
		missing = m.allAt.IsZero() || !m.k.now.Before(m.allAt.Add(m.k.o.metadataMaxAge))
		m.k.wakeAt(m.allAt.Add(m.k.o.metadataMaxAge))
	}
	names := m.wanted()
	if !m.stale && !missing {
		for _, n := range names {
			t := m.topics[n]
			if t == nil || t.Err != nil || !m.k.now.Before(t.at.Add(m.k.o.metadataMaxAge)) {
				missing = true
				break
			}
			m.k.wakeAt(t.at.Add(m.k.o.metadataMaxAge))
		}
	}
	if !m.stale && !missing && len(m.ids) == 0 || len(names) == 0 && !m.all && len(m.ids) == 0 || !m.k.due(m.retryAt) {
		return
	}
	m.ask(names)
}

func (m *coreMetadata) ask(names []string) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = m.k.o.CreateTopics
	everything := m.all
	if !everything {
		req.Topics = []kmsg.MetadataRequestTopic{}
		for _, n := range names {
			t := kmsg.NewMetadataRequestTopic()
			t.Topic = &n
			req.Topics = append(req.Topics, t)
		}
	}
	// An id without a name can be asked for only together with no names, so all topics are listed instead, which is rare.
	if len(m.ids) > 0 {
		req.Topics, everything = nil, true
	}
	m.inFlight, m.stale = true, false
	m.k.send(effectSend{node: anyNode, req: req}, func(resp kmsg.Response, err error) {
		m.inFlight = false
		r, err := respondError(resp, err, func(r *kmsg.MetadataResponse) error { return errorOf(r.ErrorCode, nil) })
		if err != nil {
			m.stale = true
			m.later()
			if !Retriable(err) {
				m.k.fail(fmt.Errorf("metadata: %w", err))
			}
			return
		}
		m.take(r, everything)
	})
}

func (m *coreMetadata) later() {
	m.retryAt = m.k.now.Add(m.k.backoff(m.failures))
	m.failures++
}

func (m *coreMetadata) take(r *kmsg.MetadataResponse, everything bool) {
	bad := false
	seen := map[string]bool{}
	for i := range r.Topics {
		t := topicOf(&r.Topics[i])
		seen[t.Name] = true
		if old := m.topics[t.Name]; t.Err != nil {
			bad = true
			if !Retriable(t.Err) {
				if _, ok := m.told[t.Name]; !ok {
					m.told[t.Name] = struct{}{}
					m.k.fail(fmt.Errorf("topic %q: %w", t.Name, t.Err))
				}
			}
			if old != nil {
				delete(m.names, old.ID)
			}
		} else {
			delete(m.told, t.Name)
			if old != nil && old.ID == t.ID {
				keepNewer(&t, &old.Topic)
			}
			for j := range t.Partitions {
				bad = bad || t.Partitions[j].Leader < 0 && m.k.parts[TopicPartition{t.Name, t.Partitions[j].ID}] != nil
			}
		}
		m.topics[t.Name] = &coreTopic{t, m.k.now}
		if t.ID != (UUID{}) && t.Err == nil {
			m.names[t.ID] = t.Name
		}
	}
	if everything {
		m.allAt = m.k.now
		for name := range m.topics {
			if !seen[name] {
				delete(m.topics, name)
			}
		}
		for id := range m.ids {
			if m.names[id] != "" {
				delete(m.ids, id)
			} else {
				bad = true
			}
		}
		m.matched()
	}
	if bad {
		m.later()
		m.stale = true
	} else {
		// Not again at once, whoever asks.
		m.failures, m.retryAt = 0, m.k.now.Add(m.k.o.backoffLow)
	}
	if m.k.member != nil {
		m.k.member.metadataChanged()
	}
}

// keepNewer takes leaders over from what was known where that is newer.
func keepNewer(t, old *Topic) {
	for i := range min(len(old.Partitions), len(t.Partitions)) {
		if o := &old.Partitions[i]; o.ID == t.Partitions[i].ID && o.LeaderEpoch > t.Partitions[i].LeaderEpoch {
			t.Partitions[i].Leader, t.Partitions[i].LeaderEpoch = o.Leader, o.LeaderEpoch
		}
	}
}

// matched works out which topics the caller's expression fits.
func (m *coreMetadata) matched() {
	if m.k.expression == nil || m.allAt.IsZero() {
		return
	}
	topics := []string{}
	for _, name := range sortedKeys(m.topics) {
		if t := m.topics[name]; t.Err == nil && !t.Internal && m.k.expression.MatchString(name) {
			topics = append(topics, name)
		}
	}
	m.k.topicsMatched(topics)
}

// partition is what is known of a partition that has a leader. If there's nothing it will be asked for.
func (m *coreMetadata) partition(tp TopicPartition) (*Topic, *Partition) {
	t := m.topics[tp.Topic]
	if t == nil || t.Err != nil {
		return nil, nil
	}
	if i := int(tp.Partition); i < len(t.Partitions) && t.Partitions[i].ID == tp.Partition {
		if t.Partitions[i].Leader >= 0 {
			return &t.Topic, &t.Partitions[i]
		}
	}
	m.stale = true
	return nil, nil
}

// hint takes a leader over that an error named.
func (m *coreMetadata) hint(tp TopicPartition, leader, epoch int32) bool {
	t := m.topics[tp.Topic]
	if leader < 0 || t == nil || int(tp.Partition) >= len(t.Partitions) || t.Partitions[tp.Partition].LeaderEpoch >= epoch {
		return false
	}
	p := &t.Partitions[tp.Partition]
	p.Leader, p.LeaderEpoch = leader, epoch
	return true
}

// name is a topic's name by its id; if it isn't known it will be asked for.
func (m *coreMetadata) name(id UUID) string {
	n := m.names[id]
	if n == "" {
		m.ids[id] = struct{}{}
	}
	return n
}

// counts are the numbers of partitions of topics; known is false while some of them are still to be asked for.
func (m *coreMetadata) counts(topics []string) (counts map[string]int32, known bool) {
	counts = map[string]int32{}
	for _, n := range topics {
		t := m.topics[n]
		if t == nil {
			return nil, false
		}
		if t.Err == nil {
			counts[n] = int32(len(t.Partitions))
		}
	}
	return counts, true
}
