package replica

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"

	"gregor/internal/uuid"
)

// topicTable finds topics by name and by id. It is cut into shards so that requests on different topics do not write to one
// cache line, and it takes names as bytes so that a look-up by what lies in a request costs no allocation.
type topicTable struct {
	seed   maphash.Seed
	shards [64]topicShard
}

type topicShard struct {
	mu     sync.RWMutex // guards both maps
	byName map[string]*Topic
	byID   map[uuid.UUID]*Topic
	_      [64]byte
}

func newTopicTable() *topicTable {
	t := &topicTable{seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].byName, t.shards[i].byID = make(map[string]*Topic), make(map[uuid.UUID]*Topic)
	}
	return t
}

func (t *topicTable) nameShard(name []byte) *topicShard {
	return &t.shards[maphash.Bytes(t.seed, name)%uint64(len(t.shards))]
}

// idShard goes by the id's own bytes: all ids but the reserved ones are random.
func (t *topicTable) idShard(id uuid.UUID) *topicShard {
	return &t.shards[binary.BigEndian.Uint64(id[8:])%uint64(len(t.shards))]
}

func (t *topicTable) named(name []byte) *Topic {
	s := t.nameShard(name)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[string(name)]
}

func (t *topicTable) withID(id uuid.UUID) *Topic {
	s := t.idShard(id)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byID[id]
}

func (t *topicTable) add(topic *Topic) {
	s := t.idShard(topic.id)
	s.mu.Lock()
	s.byID[topic.id] = topic
	s.mu.Unlock()
	s = t.nameShard([]byte(topic.name))
	s.mu.Lock()
	s.byName[topic.name] = topic
	s.mu.Unlock()
}

// remove takes the topic out, and its name too unless that is another topic's by now.
func (t *topicTable) remove(topic *Topic) {
	s := t.idShard(topic.id)
	s.mu.Lock()
	delete(s.byID, topic.id)
	s.mu.Unlock()
	s = t.nameShard([]byte(topic.name))
	s.mu.Lock()
	if s.byName[topic.name] == topic {
		delete(s.byName, topic.name)
	}
	s.mu.Unlock()
}

// all lists the topics in the order of their ids.
func (t *topicTable) all() []*Topic {
	var out []*Topic
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.RLock()
		for _, topic := range s.byID {
			out = append(out, topic)
		}
		s.mu.RUnlock()
	}
	slices.SortFunc(out, func(a, b *Topic) int { return a.id.Compare(b.id) })
	return out
}
