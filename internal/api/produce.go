package api

import (
	"fmt"

	"gregor/internal/uuid"
)

// ProduceRequest is a produce request as it lies in its body: names and records are slices of it. Decode fills it anew and
// keeps the memory of its slices, so that one value serves many requests without allocating.
type ProduceRequest struct {
	Version         int16
	TransactionalID []byte // nil: null
	Acks            int16
	TimeoutMillis   int32
	Topics          []ProduceTopic

	partitions []ProducePartition // of all topics
}

// ProduceTopic is what a produce request holds for a topic, which it names up to version 12 and gives the id of from 13.
type ProduceTopic struct {
	Name       []byte
	TopicID    uuid.UUID
	Partitions []ProducePartition
}

// ProducePartition is what a produce request holds for a partition.
type ProducePartition struct {
	Index   int32
	Records []byte // nil: null
}

// Decode reads the body of a request. On an error Kafka closes the connection. Bytes left over are ignored.
func (p *ProduceRequest) Decode(version int16, body []byte) error {
	if min, max, _ := Produce.Versions(); version < min || version > max {
		return fmt.Errorf("%s v%d: %w", Produce, version, ErrUnsupported)
	}
	r := reader{b: body, flexible: Flexible(Produce, version)}
	p.Version = version
	p.TransactionalID = r.nullableString()
	p.Acks = r.int16()
	p.TimeoutMillis = r.int32()
	p.Topics, p.partitions = p.Topics[:0], p.partitions[:0]
	for n := r.array("topic_data", 2); n > 0 && r.err == nil; n-- {
		var t ProduceTopic
		if version >= 13 {
			t.TopicID = r.uuid()
		} else {
			t.Name = r.string("topic_data.name")
		}
		first := len(p.partitions)
		for m := r.array("topic_data.partition_data", 5); m > 0 && r.err == nil; m-- {
			index := r.int32()
			records := r.nullableBytes()
			p.partitions = append(p.partitions, ProducePartition{index, records})
			r.tags(nil)
		}
		// The slice of an earlier topic may be of memory that has been outgrown since; it stays valid.
		t.Partitions = p.partitions[first:len(p.partitions):len(p.partitions)]
		p.Topics = append(p.Topics, t)
		r.tags(nil)
	}
	r.tags(nil)
	if r.err != nil {
		return fmt.Errorf("%s v%d: %w", Produce, version, r.err)
	}
	return nil
}

// Reset drops what the request points to and keeps its own memory.
func (p *ProduceRequest) Reset() {
	clear(p.Topics)
	clear(p.partitions)
	*p = ProduceRequest{Topics: p.Topics[:0], partitions: p.partitions[:0]}
}

// ProduceResponse is the response to a produce request. Build it with AddTopic and Add, which give the fields Kafka's defaults
// and keep the memory of an earlier use.
type ProduceResponse struct {
	Version        int16
	Topics         []ProduceTopicResponse
	ThrottleMillis int32
	// NodeEndpoints are sent from version 10, when there are any.
	NodeEndpoints []NodeEndpoint
}

// ProduceTopicResponse is the result for a topic, by name up to version 12 and by id from 13.
type ProduceTopicResponse struct {
	Name       string
	TopicID    uuid.UUID
	Partitions []ProducePartitionResponse
}

// ProducePartitionResponse is the result for a partition.
type ProducePartitionResponse struct {
	Index           int32
	ErrorCode       int16
	BaseOffset      int64
	LogAppendTimeMs int64 // -1: the records have the time of their producer
	LogStartOffset  int64
	RecordErrors    []RecordError
	ErrorMessage    *string
	// CurrentLeader is sent from version 10, when it is not nil.
	CurrentLeader *LeaderAndEpoch
}

// RecordError says why a record made its batch be refused (KIP-467).
type RecordError struct {
	BatchIndex int32
	Message    *string
}

// Reset empties the response and keeps its memory.
func (p *ProduceResponse) Reset(version int16) {
	*p = ProduceResponse{Version: version, Topics: p.Topics[:0]}
}

// AddTopic appends a topic.
func (p *ProduceResponse) AddTopic(name string, id uuid.UUID) *ProduceTopicResponse {
	t := grow(&p.Topics)
	*t = ProduceTopicResponse{Name: name, TopicID: id, Partitions: t.Partitions[:0]}
	return t
}

// Add appends a partition. Its offsets are -1 until they are set.
func (t *ProduceTopicResponse) Add(index int32) *ProducePartitionResponse {
	p := grow(&t.Partitions)
	*p = ProducePartitionResponse{Index: index, BaseOffset: -1, LogAppendTimeMs: -1, LogStartOffset: -1}
	return p
}

// grow appends an element to s and returns it, with what it held when the memory was in use before.
func grow[T any](s *[]T) *T {
	n := len(*s)
	if n < cap(*s) {
		*s = (*s)[:n+1]
	} else {
		var zero T
		*s = append(*s, zero)
	}
	return &(*s)[n]
}

// AppendTo writes the body of the response.
func (p *ProduceResponse) AppendTo(dst []byte) []byte {
	w := writer{b: dst, flexible: Flexible(Produce, p.Version)}
	w.array(len(p.Topics))
	for i := range p.Topics {
		t := &p.Topics[i]
		if p.Version >= 13 {
			w.uuid(t.TopicID)
		} else {
			w.string(t.Name)
		}
		w.array(len(t.Partitions))
		for j := range t.Partitions {
			t.Partitions[j].write(&w, p.Version)
		}
		w.noTags()
	}
	w.int32(p.ThrottleMillis)
	if p.Version >= 10 && len(p.NodeEndpoints) > 0 {
		w.b = append(w.b, 1)
		w.nodeEndpoints(0, p.NodeEndpoints)
	} else {
		w.noTags()
	}
	return w.b
}

func (p *ProducePartitionResponse) write(w *writer, version int16) {
	w.int32(p.Index)
	w.int16(p.ErrorCode)
	w.int64(p.BaseOffset)
	w.int64(p.LogAppendTimeMs)
	if version >= 5 {
		w.int64(p.LogStartOffset)
	}
	if version >= 8 {
		w.array(len(p.RecordErrors))
		for i := range p.RecordErrors {
			e := &p.RecordErrors[i]
			w.int32(e.BatchIndex)
			w.nullableString(e.Message)
			w.noTags()
		}
		w.nullableString(p.ErrorMessage)
	}
	if version >= 10 && p.CurrentLeader != nil {
		w.b = append(w.b, 1)
		w.currentLeader(0, p.CurrentLeader)
	} else {
		w.noTags()
	}
}
