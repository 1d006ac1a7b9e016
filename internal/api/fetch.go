package api

import (
	"fmt"
	"math"

	"gregor/internal/uuid"
)

// NoHighWatermark is the high watermark of a fetch request that does not tell it (before version 18, and of consumers).
const NoHighWatermark = math.MaxInt64

// FetchRequest is a fetch request as it lies in its body: names are slices of it. Decode fills it anew and keeps the memory of
// its slices, so that one value serves many requests without allocating.
type FetchRequest struct {
	Version   int16
	ClusterID []byte // nil: not given; from version 12
	// ReplicaID is the follower's, -1 for a consumer. Version 15 and later have it, with ReplicaEpoch, in a tagged field.
	ReplicaID      int32
	ReplicaEpoch   int64
	MaxWaitMillis  int32
	MinBytes       int32
	MaxBytes       int32
	IsolationLevel int8
	SessionID      int32
	SessionEpoch   int32 // -1 before version 7: no session
	Topics         []FetchTopic
	Forgotten      []ForgottenTopic
	Rack           []byte

	partitions []FetchPartition // of all topics
	forgotten  []int32          // of all forgotten topics
}

// FetchTopic is what a fetch request asks of a topic, which it names up to version 12 and gives the id of from 13.
type FetchTopic struct {
	Name       []byte
	TopicID    uuid.UUID
	Partitions []FetchPartition
}

// FetchPartition is what a fetch request asks of a partition. Fields that the version does not have hold Kafka's defaults.
type FetchPartition struct {
	Partition          int32
	CurrentLeaderEpoch int32 // -1: not given
	FetchOffset        int64
	LastFetchedEpoch   int32 // -1: not given
	LogStartOffset     int64 // of a follower, else -1
	MaxBytes           int32
	ReplicaDirectoryID uuid.UUID
	HighWatermark      int64 // that the follower has, or NoHighWatermark
}

// ForgottenTopic names partitions that leave a fetch session.
type ForgottenTopic struct {
	Name       []byte
	TopicID    uuid.UUID
	Partitions []int32
}

// Decode reads the body of a request. On an error Kafka closes the connection. Bytes left over are ignored.
func (f *FetchRequest) Decode(version int16, body []byte) error {
	if min, max, _ := Fetch.Versions(); version < min || version > max {
		return fmt.Errorf("%s v%d: %w", Fetch, version, ErrUnsupported)
	}
	r := reader{b: body, flexible: Flexible(Fetch, version)}
	f.Version = version
	f.ClusterID = nil
	f.ReplicaID, f.ReplicaEpoch = -1, -1
	if version <= 14 {
		f.ReplicaID = r.int32()
	}
	f.MaxWaitMillis = r.int32()
	f.MinBytes = r.int32()
	f.MaxBytes = r.int32()
	f.IsolationLevel = r.int8()
	f.SessionID, f.SessionEpoch = 0, -1
	if version >= 7 {
		f.SessionID = r.int32()
		f.SessionEpoch = r.int32()
	}
	f.decodeTopics(&r)
	f.Forgotten, f.forgotten = f.Forgotten[:0], f.forgotten[:0]
	if version >= 7 {
		f.decodeForgotten(&r)
	}
	f.Rack = nil
	if version >= 11 {
		f.Rack = r.string("rack_id")
	}
	r.tags(func(tag uint32) bool {
		switch tag {
		case 0:
			f.ClusterID = r.nullableString()
		case 1:
			if version < 15 {
				r.fail(fmt.Errorf("tag %d: %w", tag, errTag))
				break
			}
			f.ReplicaID = r.int32()
			f.ReplicaEpoch = r.int64()
			r.tags(nil)
		default:
			return false
		}
		return true
	})
	if r.err != nil {
		return fmt.Errorf("%s v%d: %w", Fetch, version, r.err)
	}
	return nil
}

func (f *FetchRequest) decodeTopics(r *reader) {
	f.Topics, f.partitions = f.Topics[:0], f.partitions[:0]
	for n := r.array("topics", 2); n > 0 && r.err == nil; n-- {
		var t FetchTopic
		if f.Version >= 13 {
			t.TopicID = r.uuid()
		} else {
			t.Name = r.string("topics.topic")
		}
		first := len(f.partitions)
		for m := r.array("topics.partitions", 16); m > 0 && r.err == nil; m-- {
			f.partitions = append(f.partitions, FetchPartition{
				CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, LogStartOffset: -1, HighWatermark: NoHighWatermark,
			})
			f.partitions[len(f.partitions)-1].decode(r, f.Version)
		}
		t.Partitions = f.partitions[first:len(f.partitions):len(f.partitions)]
		f.Topics = append(f.Topics, t)
		r.tags(nil)
	}
}

func (p *FetchPartition) decode(r *reader, version int16) {
	p.Partition = r.int32()
	if version >= 9 {
		p.CurrentLeaderEpoch = r.int32()
	}
	p.FetchOffset = r.int64()
	if version >= 12 {
		p.LastFetchedEpoch = r.int32()
	}
	if version >= 5 {
		p.LogStartOffset = r.int64()
	}
	p.MaxBytes = r.int32()
	if !r.flexible || len(r.b) > 0 && r.b[0] == 0 {
		r.tags(nil)
		return
	}
	r.tags(func(tag uint32) bool {
		since := int16(17)
		switch tag {
		case 0:
			p.ReplicaDirectoryID = r.uuid()
		case 1:
			p.HighWatermark = r.int64()
			since = 18
		default:
			return false
		}
		if version < since {
			r.fail(fmt.Errorf("topics.partitions: tag %d: %w", tag, errTag))
		}
		return true
	})
}

func (f *FetchRequest) decodeForgotten(r *reader) {
	for n := r.array("forgotten_topics_data", 2); n > 0 && r.err == nil; n-- {
		var t ForgottenTopic
		if f.Version >= 13 {
			t.TopicID = r.uuid()
		} else {
			t.Name = r.string("forgotten_topics_data.topic")
		}
		first := len(f.forgotten)
		for m := r.array("forgotten_topics_data.partitions", 4); m > 0 && r.err == nil; m-- {
			f.forgotten = append(f.forgotten, r.int32())
		}
		t.Partitions = f.forgotten[first:len(f.forgotten):len(f.forgotten)]
		f.Forgotten = append(f.Forgotten, t)
		r.tags(nil)
	}
}

// Reset drops what the request points to and keeps its own memory.
func (f *FetchRequest) Reset() {
	clear(f.Topics)
	clear(f.partitions)
	clear(f.Forgotten)
	*f = FetchRequest{
		Topics: f.Topics[:0], Forgotten: f.Forgotten[:0],
		partitions: f.partitions[:0], forgotten: f.forgotten[:0],
	}
}

// FetchResponse is the response to a fetch request. Build it with AddTopic and Add, which give the fields Kafka's defaults and
// keep the memory of an earlier use.
type FetchResponse struct {
	Version        int16
	ThrottleMillis int32
	ErrorCode      int16
	SessionID      int32
	Topics         []FetchTopicResponse
	// NodeEndpoints are sent from version 16, when there are any.
	NodeEndpoints []NodeEndpoint
}

// FetchTopicResponse is what was fetched of a topic, by name up to version 12 and by id from 13.
type FetchTopicResponse struct {
	Name       string
	TopicID    uuid.UUID
	Partitions []FetchPartitionResponse
}

// FetchPartitionResponse is what was fetched of a partition.
type FetchPartitionResponse struct {
	Partition        int32
	ErrorCode        int16
	HighWatermark    int64
	LastStableOffset int64
	LogStartOffset   int64
	// AbortedTransactions are null on the wire when nil: for readers of uncommitted records.
	AbortedTransactions  []AbortedTransaction
	PreferredReadReplica int32
	Records              Records

	// These are sent from version 12, when they are not nil.
	DivergingEpoch *EpochEndOffset
	CurrentLeader  *LeaderAndEpoch
	SnapshotID     *SnapshotID
}

// AbortedTransaction says that the records of a producer are to be left out from FirstOffset up to its abort marker.
type AbortedTransaction struct {
	ProducerID  int64
	FirstOffset int64
}

// EpochEndOffset tells a follower where its log and the leader's part (KIP-595).
type EpochEndOffset struct {
	Epoch     int32
	EndOffset int64
}

// SnapshotID names a snapshot that the fetcher has to load first.
type SnapshotID struct {
	EndOffset int64
	Epoch     int32
}

// Reset empties the response and keeps its memory.
func (f *FetchResponse) Reset(version int16) {
	*f = FetchResponse{Version: version, Topics: f.Topics[:0]}
}

// AddTopic appends a topic.
func (f *FetchResponse) AddTopic(name string, id uuid.UUID) *FetchTopicResponse {
	t := grow(&f.Topics)
	*t = FetchTopicResponse{Name: name, TopicID: id, Partitions: t.Partitions[:0]}
	return t
}

// Add appends a partition. Its offsets, but for HighWatermark, and the preferred read replica are -1 until they are set.
func (t *FetchTopicResponse) Add(partition int32) *FetchPartitionResponse {
	p := grow(&t.Partitions)
	*p = FetchPartitionResponse{
		Partition: partition, LastStableOffset: -1, LogStartOffset: -1, PreferredReadReplica: -1,
	}
	return p
}

// AppendParts writes the body of the response to dst. Records in files are not read: they become parts, which stand between
// the bytes of dst. Records in memory are copied to dst.
func (f *FetchResponse) AppendParts(dst []byte, parts []FilePart) ([]byte, []FilePart) {
	w := writer{b: dst, flexible: Flexible(Fetch, f.Version)}
	w.int32(f.ThrottleMillis)
	if f.Version >= 7 {
		w.int16(f.ErrorCode)
		w.int32(f.SessionID)
	}
	w.array(len(f.Topics))
	for i := range f.Topics {
		t := &f.Topics[i]
		if f.Version >= 13 {
			w.uuid(t.TopicID)
		} else {
			w.string(t.Name)
		}
		w.array(len(t.Partitions))
		for j := range t.Partitions {
			parts = t.Partitions[j].write(&w, f.Version, parts)
		}
		w.noTags()
	}
	if f.Version >= 16 && len(f.NodeEndpoints) > 0 {
		w.b = append(w.b, 1)
		w.nodeEndpoints(0, f.NodeEndpoints)
	} else {
		w.noTags()
	}
	return w.b, parts
}

func (p *FetchPartitionResponse) write(w *writer, version int16, parts []FilePart) []FilePart {
	w.int32(p.Partition)
	w.int16(p.ErrorCode)
	w.int64(p.HighWatermark)
	w.int64(p.LastStableOffset)
	if version >= 5 {
		w.int64(p.LogStartOffset)
	}
	if p.AbortedTransactions == nil {
		w.nullArray()
	} else {
		w.array(len(p.AbortedTransactions))
		for _, t := range p.AbortedTransactions {
			w.int64(t.ProducerID)
			w.int64(t.FirstOffset)
			w.noTags()
		}
	}
	if version >= 11 {
		w.int32(p.PreferredReadReplica)
	}
	w.array(p.Records.Size())
	if r := &p.Records; r.File != nil {
		parts = append(parts, FilePart{At: len(w.b), File: r.File, Pos: r.Pos, Len: r.Len, Release: r.Release})
	} else {
		w.b = append(w.b, r.Bytes...)
		if r.Release != nil {
			r.Release.Release()
		}
	}
	if !w.flexible {
		return parts
	}
	n := byte(0)
	for _, set := range [...]bool{p.DivergingEpoch != nil, p.CurrentLeader != nil, p.SnapshotID != nil} {
		if set {
			n++
		}
	}
	w.b = append(w.b, n)
	if e := p.DivergingEpoch; e != nil {
		w.tag(0, 13)
		w.int32(e.Epoch)
		w.int64(e.EndOffset)
		w.noTags()
	}
	if p.CurrentLeader != nil {
		w.currentLeader(1, p.CurrentLeader)
	}
	if s := p.SnapshotID; s != nil {
		w.tag(2, 13)
		w.int64(s.EndOffset)
		w.int32(s.Epoch)
		w.noTags()
	}
	return parts
}
