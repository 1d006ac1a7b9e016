package interop

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/wire"
)

// TestDifferential asks gregor and Kafka the same questions, in every version of each API that Kafka serves, and compares what
// they answer. Both start empty and go through the same states.
func TestDifferential(t *testing.T) {
	p := startPair(t, "log.retention.ms=-1")
	p.createTopics(t, 2, nil, "a", "b")
	p.createTopics(t, 1, nil, "odd") // is not read, since gregor puts in order what Kafka stores as it comes
	p.createTopics(t, 1, map[string]string{"message.timestamp.type": "LogAppendTime"}, "appendtime")
	p.createTopics(t, 1, map[string]string{"cleanup.policy": "compact"}, "compacted")
	p.createTopics(t, 1, map[string]string{"max.message.bytes": "500"}, "small")
	p.createTopics(t, 1, map[string]string{"min.insync.replicas": "2"}, "minisr")
	p.createTopics(t, 1, map[string]string{"message.timestamp.after.max.ms": "1000", "message.timestamp.before.max.ms": "1000"}, "strict")
	for _, sub := range []struct {
		name string
		run  func(*testing.T, *pair)
	}{
		{"ApiVersions", diffAPIVersions},
		{"Metadata", diffMetadata},
		{"Produce", diffProduce},
		{"InitProducerId", diffInitProducerID},
		{"ListOffsets", diffListOffsets},
		{"Fetch", diffFetch},
		{"FetchSessions", diffFetchSessions},
		{"DeleteRecords", diffDeleteRecords},
		{"OffsetForLeaderEpoch", diffOffsetForLeaderEpoch},
		{"DescribeProducers", diffDescribeProducers},
		{"Groups", diffGroups},
		{"Offsets", diffOffsets},
		{"Topics", diffTopics},
		{"Partitions", diffPartitions},
		{"Configs", diffConfigs},
		{"Cluster", diffCluster},
		{"Quotas", diffQuotas},
		{"Frames", diffFrames},
	} {
		t.Run(sub.name, func(t *testing.T) { sub.run(t, p) })
	}
	t.Logf("%d questions", p.steps)
}

const nobody = "no-such-topic"

var unknownID = [16]byte{1, 2, 3}

func diffAPIVersions(t *testing.T, p *pair) {
	p.each(t, "plain", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrApiVersionsRequest()
		r.ClientSoftwareName, r.ClientSoftwareVersion = "probe", "1.0"
		return r
	})
	p.each(t, "bad software name", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrApiVersionsRequest()
		r.ClientSoftwareName, r.ClientSoftwareVersion = "bad name!", ""
		return r
	})
	p.each(t, "other cluster", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrApiVersionsRequest()
		r.ClientSoftwareName, r.ClientSoftwareVersion = "probe", "1.0"
		r.ClusterID, r.NodeID = kmsg.StringPtr("other"), -1
		return r
	})
	p.each(t, "other node", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrApiVersionsRequest()
		r.ClientSoftwareName, r.ClientSoftwareVersion = "probe", "1.0"
		r.ClusterID, r.NodeID = kmsg.StringPtr(clusterID), 77
		return r
	})
}

func diffMetadata(t *testing.T, p *pair) {
	topics := func(names ...string) func(s *side, v int16) kmsg.Request {
		return func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrMetadataRequest()
			r.AllowAutoTopicCreation = false
			for _, n := range names {
				r.Topics = append(r.Topics, kmsg.MetadataRequestTopic{Topic: &n})
			}
			if names == nil {
				r.Topics = nil
			} else if len(names) == 0 {
				r.Topics = []kmsg.MetadataRequestTopic{}
			}
			return r
		}
	}
	p.each(t, "all", topics())
	p.each(t, "none", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrMetadataRequest()
		r.Topics = []kmsg.MetadataRequestTopic{}
		return r
	})
	p.each(t, "two", topics("a", "b"))
	p.each(t, "twice the same", topics("a", "a"))
	p.each(t, "bad names", topics("", ".", "..", "a b", strings.Repeat("x", 250)))
	p.each(t, "with authorized operations", func(s *side, v int16) kmsg.Request {
		r := topics("a")(s, v).(*kmsg.MetadataRequest)
		r.IncludeClusterAuthorizedOperations, r.IncludeTopicAuthorizedOperations = v >= 8 && v <= 10, v >= 8
		return r
	})
	for v := int16(4); v <= p.versions[3][1]; v++ {
		p.at(t, "unknown topic", v, func(s *side) kmsg.Request { return topics(nobody)(s, v) }, nil)
	}
	for v := int16(10); v <= p.versions[3][1]; v++ {
		p.at(t, "by id", v, func(s *side) kmsg.Request {
			r := kmsg.NewPtrMetadataRequest()
			r.Topics = []kmsg.MetadataRequestTopic{{TopicID: s.topicID(t, "a")}, {TopicID: unknownID}}
			return r
		}, nil)
		p.at(t, "neither name nor id", v, func(s *side) kmsg.Request {
			r := kmsg.NewPtrMetadataRequest()
			r.Topics = []kmsg.MetadataRequestTopic{{}}
			return r
		}, nil)
	}
	for v := p.versions[3][0]; v <= p.versions[3][1]; v++ {
		name := fmt.Sprintf("auto-%d", v)
		create := func(s *side) kmsg.Request {
			r := kmsg.NewPtrMetadataRequest()
			r.AllowAutoTopicCreation = true
			r.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
			return r
		}
		p.at(t, "auto-create", v, create, nil)
		p.both(func(s *side) { s.awaitLeaders(t, name) })
		p.at(t, "auto-created", v, create, nil)
	}
	p.each(t, "auto-create of bad names", func(s *side, v int16) kmsg.Request {
		r := topics("bad name", "__consumer_offsets_not", "a.b_c")(s, v).(*kmsg.MetadataRequest)
		r.AllowAutoTopicCreation = false
		if v < 4 {
			r.Topics = r.Topics[:1]
		}
		return r
	})
	describe := func(limit int32, cursor *kmsg.DescribeTopicPartitionsRequestCursor, names ...string) func(s *side, v int16) kmsg.Request {
		return func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrDescribeTopicPartitionsRequest()
			r.ResponsePartitionLimit, r.Cursor = limit, cursor
			for _, n := range names {
				r.Topics = append(r.Topics, kmsg.DescribeTopicPartitionsRequestTopic{Topic: n})
			}
			return r
		}
	}
	cursor := func(topic string, partition int32) *kmsg.DescribeTopicPartitionsRequestCursor {
		return &kmsg.DescribeTopicPartitionsRequestCursor{Topic: topic, Partition: partition}
	}
	p.each(t, "describe", describe(2000, nil, "a", "b"))
	p.each(t, "describe all", describe(2000, nil))
	p.each(t, "describe unsorted, twice and unknown", describe(2000, nil, "b", "a", "a", nobody, "bad name"))
	p.each(t, "describe a page", describe(3, nil, "a", "b"))
	p.each(t, "describe one", describe(1, nil, "a", "b"))
	p.each(t, "describe the next page", describe(2, cursor("a", 1), "a", "b"))
	p.each(t, "describe from a cursor between topics", describe(2000, cursor("aa", 0), "a", "b"))
	p.each(t, "describe from a cursor behind the end", describe(2000, cursor("a", 9), "a", "b"))
	p.each(t, "describe from a negative cursor", describe(2000, cursor("a", -1), "a", "b"))
	p.each(t, "describe none", describe(0, nil, "a"))
	p.each(t, "describe fewer than none", describe(-1, nil, "a"))
}

// produce sets up a Produce request of one batch to each of some partitions.
func produce(t *testing.T, s *side, v int16, acks int16, topic string, partition int32, records []byte) *kmsg.ProduceRequest {
	r := kmsg.NewPtrProduceRequest()
	r.Acks, r.TimeoutMillis = acks, 5000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	if v >= 13 {
		rt.TopicID = unknownID
		if topic != nobody {
			rt.TopicID = s.topicID(t, topic)
		}
	}
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, records
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	return r
}

func diffProduce(t *testing.T, p *pair) {
	old := func(i int) wire.Record {
		return wire.Record{Key: []byte("k"), Value: fmt.Appendf(nil, "v%d", i), Timestamp: 1700000000000 + int64(i)}
	}
	now := time.Now().UnixMilli()
	one := wire.Batch(nil, old(0))
	header := func(edit func(*kmsg.RecordBatch)) []byte { return wire.Batch(edit, old(0), old(1)) }
	corrupt := wire.Batch(nil, old(0))
	corrupt[len(corrupt)-1] ^= 0xff
	cut := wire.Batch(nil, old(0))
	cut = cut[:len(cut)-3]
	bigTransaction := kmsg.StringPtr("t")
	// A message of format 1: offset, size, crc, magic, attributes, timestamp, null key, null value.
	v1 := binary.BigEndian.AppendUint64(nil, 0)
	v1 = binary.BigEndian.AppendUint32(v1, 22)
	v1 = append(v1, 0, 0, 0, 0, 1, 0)
	v1 = binary.BigEndian.AppendUint64(v1, 1700000000000)
	v1 = append(v1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	for _, c := range []struct {
		name      string
		acks      int16
		topic     string
		partition int32
		records   []byte
		txn       *string
	}{
		{"one", -1, "a", 0, one, nil},
		{"acks 1", 1, "a", 0, one, nil},
		{"three", -1, "a", 0, wire.Batch(nil, old(1), old(2), old(3)), nil},
		{"null key and value", -1, "a", 0, wire.Batch(nil, wire.Record{Timestamp: 1700000000005}), nil},
		{"to the other partition", -1, "a", 1, one, nil},
		{"append time", -1, "appendtime", 0, one, nil},
		{"acks 2", 2, "a", 0, one, nil},
		{"acks -2", -2, "a", 0, one, nil},
		{"unknown partition", -1, "a", 7, one, nil},
		{"negative partition", -1, "a", -1, one, nil},
		{"unknown topic", -1, nobody, 0, one, nil},
		{"zero bytes", -1, "a", 0, []byte{}, nil},
		{"garbage", -1, "a", 0, []byte("garbage"), nil},
		{"long garbage", -1, "a", 0, []byte(strings.Repeat("garbage", 30)), nil},
		{"bad checksum", -1, "a", 0, corrupt, nil},
		{"cut", -1, "a", 0, cut, nil},
		{"two batches", -1, "a", 0, append(wire.Batch(nil, old(0)), wire.Batch(nil, old(1))...), nil},
		{"trailing bytes", -1, "a", 0, append(wire.Batch(nil, old(0)), 0, 0, 0), nil},
		{"empty batch", -1, "a", 0, wire.Batch(nil), nil},
		{"magic 3", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Magic = 3 }), nil},
		{"format 1", -1, "a", 0, v1, nil},
		{"count too high", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.NumRecords = 3 }), nil},
		{"count too low", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.NumRecords = 1 }), nil},
		{"count and last delta too low", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.NumRecords, b.LastOffsetDelta = 1, 0 }), nil},
		{"count negative", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.NumRecords, b.LastOffsetDelta = -1, -2 }), nil},
		{"last delta wrong", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.LastOffsetDelta = 5 }), nil},
		{"base offset 5", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.FirstOffset = 5 }), nil},
		{"leader epoch 7", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.PartitionLeaderEpoch = 7 }), nil},
		{"control", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 0x20 }), nil},
		{"append time set by client", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 0x08 }), nil},
		{"delete horizon set by client", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 0x40 }), nil},
		{"attribute bits beyond", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 0x100 }), nil},
		{"codec 5", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 5 }), nil},
		{"codec 7", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 7 }), nil},
		{"gzip of garbage", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 1 }), nil},
		{"snappy of garbage", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 2 }), nil},
		{"lz4 of garbage", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 3 }), nil},
		{"zstd of garbage", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 4 }), nil},
		{"transactional without transaction", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Attributes = 0x10 }), nil},
		{"max time too low", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.MaxTimestamp = 5 }), nil},
		{"record deltas out of order", -1, "odd", 0, header(func(b *kmsg.RecordBatch) {
			b.Records = wire.AppendRecord(wire.AppendRecord(nil, 1, 0, nil, nil), 0, 0, nil, nil)
		}), nil},
		{"record cut", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Records = b.Records[:len(b.Records)-1] }), nil},
		{"record bytes beyond", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Records = append(b.Records, 0) }), nil},
		{"record of negative length", -1, "a", 0, header(func(b *kmsg.RecordBatch) { b.Records = []byte{1, 1} }), nil},
		{"no key in a compacted topic", -1, "compacted", 0, wire.Batch(nil, wire.Record{Value: []byte("v"), Timestamp: now}), nil},
		{"second without key in a compacted topic", -1, "compacted", 0, wire.Batch(nil, old(0), wire.Record{Value: []byte("v"), Timestamp: now}), nil},
		{"key in a compacted topic", -1, "compacted", 0, one, nil},
		{"too large", -1, "small", 0, wire.Batch(nil, wire.Record{Value: make([]byte, 600), Timestamp: now}), nil},
		{"not too large", -1, "small", 0, wire.Batch(nil, wire.Record{Value: make([]byte, 400), Timestamp: now}), nil},
		{"too few in sync", -1, "minisr", 0, one, nil},
		{"too few in sync, acks 1", 1, "minisr", 0, one, nil},
		{"timestamp too old", -1, "strict", 0, one, nil},
		{"timestamp ahead", -1, "strict", 0, wire.Batch(nil, wire.Record{Value: []byte("v"), Timestamp: now + 3600_000}), nil},
		{"second timestamp ahead", -1, "strict", 0, wire.Batch(nil, wire.Record{Timestamp: time.Now().UnixMilli()}, wire.Record{Timestamp: now + 3600_000}), nil},
		{"timestamp far ahead", -1, "a", 0, wire.Batch(nil, wire.Record{Timestamp: now + 2*3600_000}), nil},
		{"timestamp none", -1, "a", 0, wire.Batch(nil, wire.Record{Timestamp: -1}), nil},
		{"timestamp negative", -1, "a", 0, wire.Batch(nil, wire.Record{Timestamp: -5}), nil},
		{"transactional id without transactional batch", -1, "a", 0, one, bigTransaction},
		{"producer id without sequence", -1, "b", 0, header(func(b *kmsg.RecordBatch) { b.ProducerID, b.ProducerEpoch, b.FirstSequence = 900, 0, -1 }), nil},
		{"producer id without epoch", -1, "b", 0, header(func(b *kmsg.RecordBatch) { b.ProducerID, b.ProducerEpoch, b.FirstSequence = 901, -1, 0 }), nil},
		{"internal topic", -1, "__consumer_offsets", 0, one, nil},
	} {
		if c.topic == "__consumer_offsets" {
			p.both(func(s *side) {
				r := kmsg.NewPtrFindCoordinatorRequest()
				r.Version, r.CoordinatorKeys = 4, []string{"g"}
				s.must(t, r)
				s.awaitLeaders(t, c.topic)
			})
		}
		p.each(t, c.name, func(s *side, v int16) kmsg.Request {
			r := produce(t, s, v, c.acks, c.topic, c.partition, c.records)
			r.TransactionID = c.txn
			return r
		})
	}
	batch := func(id int64, epoch int16, sequence int32, n int) []byte {
		var rs []wire.Record
		for i := range n {
			rs = append(rs, old(i))
		}
		return wire.Batch(func(b *kmsg.RecordBatch) { b.ProducerID, b.ProducerEpoch, b.FirstSequence = id, epoch, sequence }, rs...)
	}
	for _, c := range []struct {
		name    string
		records []byte
	}{
		{"first", batch(5000, 0, 0, 2)},
		{"duplicate", batch(5000, 0, 0, 2)},
		{"second", batch(5000, 0, 2, 3)},
		{"duplicate of the first", batch(5000, 0, 0, 2)},
		{"duplicate of the second", batch(5000, 0, 2, 3)},
		{"overlap", batch(5000, 0, 2, 4)},
		{"gap", batch(5000, 0, 9, 1)},
		{"old", batch(5000, 0, 1, 1)},
		{"new epoch, not from 0", batch(5000, 1, 5, 1)},
		{"new epoch", batch(5000, 1, 0, 1)},
		{"old epoch", batch(5000, 0, 5, 1)},
		{"unknown producer, not from 0", batch(5001, 0, 7, 1)},
		{"unknown producer goes on", batch(5001, 0, 8, 1)},
		{"wrap", batch(5002, 0, 2147483646, 2)},
		{"wrapped", batch(5002, 0, 0, 1)},
		{"wrap inside", batch(5003, 0, 2147483646, 4)},
		{"after the wrap inside", batch(5003, 0, 2, 1)},
		{"two batches of a producer", append(batch(5004, 0, 0, 1), batch(5004, 0, 1, 1)...)},
		{"epoch 32767", batch(5005, 32767, 0, 1)},
		{"six", batch(5006, 0, 0, 1)}, {"six", batch(5006, 0, 1, 1)}, {"six", batch(5006, 0, 2, 1)},
		{"six", batch(5006, 0, 3, 1)}, {"six", batch(5006, 0, 4, 1)}, {"six", batch(5006, 0, 5, 1)},
		{"first of six again", batch(5006, 0, 0, 1)},
		{"second of six again", batch(5006, 0, 1, 1)},
	} {
		for _, v := range []int16{9, 12} {
			if v == 12 && !strings.HasPrefix(c.name, "dup") {
				continue
			}
			p.at(t, "idempotent: "+c.name, v, func(s *side) kmsg.Request { return produce(t, s, v, -1, "b", 0, c.records) }, nil)
		}
	}
	p.each(t, "several topics and partitions", func(s *side, v int16) kmsg.Request {
		r := produce(t, s, v, -1, "a", 0, wire.Batch(nil, old(0)))
		r.Topics[0].Partitions = append(r.Topics[0].Partitions, kmsg.ProduceRequestTopicPartition{Partition: 1, Records: wire.Batch(nil, old(0))},
			kmsg.ProduceRequestTopicPartition{Partition: 2, Records: wire.Batch(nil, old(0))})
		r.Topics = append(r.Topics, produce(t, s, v, -1, "b", 1, corrupt).Topics...)
		return r
	})
	p.each(t, "nothing", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrProduceRequest()
		r.Acks = -1
		return r
	})
}

func diffInitProducerID(t *testing.T, p *pair) {
	// Kafka has no ids to give until its first block has come.
	p.both(func(s *side) {
		for range 100 {
			r := kmsg.NewPtrInitProducerIDRequest()
			r.Version, r.ProducerID, r.ProducerEpoch = 4, -1, -1
			if resp := s.must(t, r).(*kmsg.InitProducerIDResponse); resp.ErrorCode == 0 {
				s.kept["producer"] = resp.ProducerID
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Errorf("%s: no producer id", s.name)
	})
	p.each(t, "idempotent", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrInitProducerIDRequest()
		r.TransactionTimeoutMillis, r.ProducerID, r.ProducerEpoch = 60000, -1, -1
		return r
	})
	p.each(t, "empty transactional id", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrInitProducerIDRequest()
		r.TransactionalID, r.TransactionTimeoutMillis, r.ProducerID, r.ProducerEpoch = kmsg.StringPtr(""), 60000, -1, -1
		return r
	})
	for v := int16(3); v <= p.versions[22][1]; v++ {
		p.at(t, "id without epoch", v, func(s *side) kmsg.Request {
			r := kmsg.NewPtrInitProducerIDRequest()
			r.TransactionTimeoutMillis, r.ProducerID, r.ProducerEpoch = 60000, 3, -1
			return r
		}, nil)
		p.at(t, "id with epoch", v, func(s *side) kmsg.Request {
			r := kmsg.NewPtrInitProducerIDRequest()
			r.TransactionTimeoutMillis, r.ProducerID, r.ProducerEpoch = 60000, 3, 2
			return r
		}, nil)
	}
}

func diffListOffsets(t *testing.T, p *pair) {
	for _, c := range []struct {
		name      string
		topic     string
		partition int32
		ts        int64
		epoch     int32
		replica   int32
	}{
		{"latest", "a", 0, -1, -1, -1}, {"earliest", "a", 0, -2, -1, -1}, {"max timestamp", "a", 0, -3, -1, -1},
		{"earliest local", "a", 0, -4, -1, -1}, {"latest tiered", "a", 0, -5, -1, -1}, {"earliest pending upload", "a", 0, -6, -1, -1},
		{"beyond the special ones", "a", 0, -7, -1, -1}, {"0", "a", 0, 0, -1, -1}, {"in the middle", "a", 0, 1700000000002, -1, -1},
		{"far ahead", "a", 0, 9999999999999999, -1, -1}, {"current epoch", "a", 0, -1, 0, -1}, {"later epoch", "a", 0, -1, 5, -1},
		{"unknown partition", "a", 9, -1, -1, -1}, {"negative partition", "a", -1, -1, -1, -1}, {"unknown topic", nobody, 0, -1, -1, -1},
		{"empty partition, latest", "b", 1, -1, -1, -1}, {"empty partition, max timestamp", "b", 1, -3, -1, -1}, {"empty partition, 5", "b", 1, 5, -1, -1},
		{"append time, max timestamp", "appendtime", 0, -3, -1, -1}, {"debugger", "a", 0, -1, -1, -2}, {"as a replica", "a", 0, -1, -1, 1}, {"as another replica", "a", 0, -1, -1, 5},
	} {
		for _, isolation := range []int8{0, 1} {
			p.each(t, fmt.Sprintf("%s, isolation %d", c.name, isolation), func(s *side, v int16) kmsg.Request {
				r := kmsg.NewPtrListOffsetsRequest()
				r.ReplicaID, r.IsolationLevel, r.TimeoutMillis = c.replica, isolation, 5000
				rt := kmsg.NewListOffsetsRequestTopic()
				rt.Topic = c.topic
				rp := kmsg.NewListOffsetsRequestTopicPartition()
				rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = c.partition, c.ts, c.epoch
				rt.Partitions = append(rt.Partitions, rp)
				r.Topics = append(r.Topics, rt)
				return r
			})
		}
	}
	p.each(t, "a partition twice", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrListOffsetsRequest()
		r.ReplicaID = -1
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = "a"
		for range 2 {
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Timestamp, rp.CurrentLeaderEpoch = -1, -1
			rt.Partitions = append(rt.Partitions, rp)
		}
		r.Topics = append(r.Topics, rt)
		return r
	})
	p.each(t, "nothing", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrListOffsetsRequest()
		r.ReplicaID = -1
		return r
	})
	p.each(t, "isolation 7", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrListOffsetsRequest()
		r.ReplicaID, r.IsolationLevel = -1, 7
		return r
	})
}

// fetch sets up a Fetch request of one partition outside of sessions.
func fetch(t *testing.T, s *side, v int16, topic string, partition int32, offset int64) *kmsg.FetchRequest {
	r := kmsg.NewPtrFetchRequest()
	r.ReplicaID, r.MaxWaitMillis, r.MinBytes, r.MaxBytes, r.SessionEpoch = -1, 0, 0, 50<<20, -1
	r.Topics = append(r.Topics, fetchTopic(t, s, v, topic, partition, offset))
	return r
}

func fetchTopic(t *testing.T, s *side, v int16, topic string, partition int32, offset int64) kmsg.FetchRequestTopic {
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic = topic
	if v >= 13 {
		rt.TopicID = unknownID
		if topic != nobody {
			rt.TopicID = s.topicID(t, topic)
		}
	}
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.CurrentLeaderEpoch, rp.LastFetchedEpoch, rp.LogStartOffset, rp.PartitionMaxBytes = partition, offset, -1, -1, -1, 1<<20
	rt.Partitions = append(rt.Partitions, rp)
	return rt
}

func diffFetch(t *testing.T, p *pair) {
	for _, c := range []struct {
		name      string
		topic     string
		partition int32
		offset    int64
		edit      func(r *kmsg.FetchRequest)
	}{
		{"from the start", "a", 1, 0, nil},
		{"inside", "b", 0, 3, nil},
		{"read committed", "b", 0, 0, func(r *kmsg.FetchRequest) { r.IsolationLevel = 1 }},
		{"appended at", "appendtime", 0, 0, nil},
		{"at the end", "b", 1, 0, nil},
		{"beyond the end", "a", 0, 1 << 40, nil},
		{"negative", "a", 0, -1, nil},
		{"unknown partition", "a", 9, 0, nil},
		{"negative partition", "a", -1, 0, nil},
		{"unknown topic", nobody, 0, 0, nil},
		{"one byte", "b", 0, 0, func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].PartitionMaxBytes = 1 }},
		{"zero bytes", "b", 0, 0, func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].PartitionMaxBytes = 0 }},
		{"negative bytes", "b", 0, 0, func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].PartitionMaxBytes = -1 }},
		{"zero bytes in all", "b", 0, 0, func(r *kmsg.FetchRequest) { r.MaxBytes = 0 }},
		{"negative bytes in all", "b", 0, 0, func(r *kmsg.FetchRequest) { r.MaxBytes = -5 }},
		{"some bytes", "b", 0, 0, func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].PartitionMaxBytes = 200 }},
		{"current epoch", "b", 0, 0, func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].CurrentLeaderEpoch = 0 }},
		{"later epoch", "b", 0, 0, func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].CurrentLeaderEpoch = 3 }},
		{"last fetched epoch", "b", 0, 2, func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].LastFetchedEpoch = 0 }},
		{"last fetched epoch ahead", "b", 0, 2, func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].LastFetchedEpoch = 4 }},
		{"last fetched epoch, offset ahead", "b", 0, 2000, func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].LastFetchedEpoch = 0 }},
		{"isolation 9", "b", 0, 0, func(r *kmsg.FetchRequest) { r.IsolationLevel = 9 }},
		{"as an unknown replica", "b", 0, 0, func(r *kmsg.FetchRequest) { r.ReplicaID, r.ReplicaState.ID, r.ReplicaState.Epoch = 5, 5, 1 }},
		{"as the leader itself", "b", 0, 0, func(r *kmsg.FetchRequest) { r.ReplicaID, r.ReplicaState.ID, r.ReplicaState.Epoch = 1, 1, 1 }},
		{"as a debugger", "b", 0, 0, func(r *kmsg.FetchRequest) { r.ReplicaID, r.ReplicaState.ID = -2, -2 }},
		{"as a future replica", "b", 0, 0, func(r *kmsg.FetchRequest) { r.ReplicaID, r.ReplicaState.ID = -3, -3 }},
		{"from a rack", "b", 0, 0, func(r *kmsg.FetchRequest) { r.Rack = "somewhere" }},
		{"after a wait", "b", 1, 0, func(r *kmsg.FetchRequest) { r.MinBytes, r.MaxWaitMillis = 1, 30 }},
		{"at once because of an error", "a", 9, 0, func(r *kmsg.FetchRequest) { r.MinBytes, r.MaxWaitMillis = 1000, 20000 }},
		{"nothing", "b", 0, 0, func(r *kmsg.FetchRequest) { r.Topics = nil }},
		{"unknown cluster", "b", 0, 0, func(r *kmsg.FetchRequest) { r.ClusterID = kmsg.StringPtr("other") }},
	} {
		p.each(t, c.name, func(s *side, v int16) kmsg.Request {
			r := fetch(t, s, v, c.topic, c.partition, c.offset)
			if c.edit != nil {
				c.edit(r)
			}
			return r
		})
	}
	p.each(t, "bounded in all", func(s *side, v int16) kmsg.Request {
		r := fetch(t, s, v, "a", 0, 0)
		r.Topics = append(r.Topics, fetchTopic(t, s, v, "b", 0, 0))
		r.MaxBytes = 150
		return r
	})
}

func diffFetchSessions(t *testing.T, p *pair) {
	for v := int16(7); v <= p.versions[1][1]; v++ {
		session := func(s *side) int32 { id, _ := s.kept["session"].(int32); return id }
		keep := func(s *side, resp kmsg.Response) { s.kept["session"] = resp.(*kmsg.FetchResponse).SessionID }
		// Session ids are random.
		var answers = map[string]int16{}
		ask := func(name string, build func(s *side, r *kmsg.FetchRequest), then func(*side, kmsg.Response)) {
			t.Helper()
			got := map[*side]string{}
			done := make(chan struct{}, 2)
			for _, s := range []*side{p.gregor, p.kafka} {
				go func() {
					defer func() { done <- struct{}{} }()
					r := fetch(t, s, v, "a", 1, 0)
					r.Topics = nil
					build(s, r)
					r.SetVersion(v)
					resp, err := s.do(r)
					if err != nil {
						s.kept["answer"] = err.Error()
						return
					}
					if then != nil {
						then(s, resp)
					}
					s.kept["answer"] = p.render(s, resp)
				}()
			}
			<-done
			<-done
			for _, s := range []*side{p.gregor, p.kafka} {
				got[s] = s.kept["answer"].(string)
			}
			if got[p.gregor] != got[p.kafka] {
				t.Errorf("%s: request 1 v%d\n%s", name, v, diff(got[p.gregor], got[p.kafka]))
			}
			answers[name]++
		}
		topics := func(s *side, r *kmsg.FetchRequest) {
			r.Topics = append(r.Topics, fetchTopic(t, s, v, "a", 1, 0), fetchTopic(t, s, v, "b", 1, 0))
		}
		ask("open", func(s *side, r *kmsg.FetchRequest) { topics(s, r); r.SessionEpoch = 0 }, keep)
		ask("incremental, as before", func(s *side, r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = session(s), 1 }, nil)
		ask("moved on", func(s *side, r *kmsg.FetchRequest) {
			r.SessionID, r.SessionEpoch = session(s), 2
			r.Topics = append(r.Topics, fetchTopic(t, s, v, "a", 1, 1))
		}, nil)
		ask("an unknown partition joins", func(s *side, r *kmsg.FetchRequest) {
			r.SessionID, r.SessionEpoch = session(s), 3
			r.Topics = append(r.Topics, fetchTopic(t, s, v, "a", 9, 1))
		}, nil)
		ask("an unknown partition stays", func(s *side, r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = session(s), 4 }, nil)
		ask("an unknown topic joins", func(s *side, r *kmsg.FetchRequest) {
			r.SessionID, r.SessionEpoch = session(s), 5
			r.Topics = append(r.Topics, fetchTopic(t, s, v, nobody, 0, 1))
		}, nil)
		ask("an unknown topic stays", func(s *side, r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = session(s), 6 }, nil)
		ask("forget", func(s *side, r *kmsg.FetchRequest) {
			r.SessionID, r.SessionEpoch = session(s), 7
			for _, name := range []string{"a", nobody} {
				f := fetchTopic(t, s, v, name, 9, 0)
				forgotten := kmsg.FetchRequestForgottenTopic{Topic: f.Topic, TopicID: f.TopicID, Partitions: []int32{9}}
				if name == nobody {
					forgotten.Partitions = []int32{0}
				}
				r.ForgottenTopics = append(r.ForgottenTopics, forgotten)
			}
		}, nil)
		ask("wrong epoch", func(s *side, r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = session(s), 77 }, nil)
		ask("after a wrong epoch", func(s *side, r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = session(s), 8 }, nil)
		ask("forget all", func(s *side, r *kmsg.FetchRequest) {
			r.SessionID, r.SessionEpoch = session(s), 9
			for _, name := range []string{"a", "b"} {
				f := fetchTopic(t, s, v, name, 1, 0)
				r.ForgottenTopics = append(r.ForgottenTopics, kmsg.FetchRequestForgottenTopic{Topic: f.Topic, TopicID: f.TopicID, Partitions: []int32{1}})
			}
		}, nil)
		ask("unknown session", func(s *side, r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = session(s)+1, 1 }, nil)
		ask("open again", func(s *side, r *kmsg.FetchRequest) { topics(s, r); r.SessionEpoch = 0 }, keep)
		ask("close", func(s *side, r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = session(s), -1 }, nil)
		ask("closed", func(s *side, r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = session(s), 1 }, nil)
		ask("open an empty one", func(s *side, r *kmsg.FetchRequest) { r.SessionEpoch = 0 }, nil)
		ask("no session but an epoch", func(s *side, r *kmsg.FetchRequest) { r.SessionEpoch = 5 }, nil)
		ask("negative epoch", func(s *side, r *kmsg.FetchRequest) { topics(s, r); r.SessionEpoch = -7 }, nil)
	}
}

func diffDeleteRecords(t *testing.T, p *pair) {
	for _, c := range []struct {
		name, topic string
		partition   int32
		offset      int64
	}{
		{"some", "a", 1, 2}, {"fewer", "a", 1, 1}, {"to the high watermark", "a", 1, -1}, {"beyond", "a", 1, 1 << 40}, {"negative", "a", 1, -2},
		{"unknown partition", "a", 9, 0}, {"unknown topic", nobody, 0, 0}, {"compacted", "compacted", 0, 1}, {"internal", "__consumer_offsets", 0, 0},
	} {
		p.each(t, c.name, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrDeleteRecordsRequest()
			r.TimeoutMillis = 3000
			rt := kmsg.NewDeleteRecordsRequestTopic()
			rt.Topic = c.topic
			rt.Partitions = append(rt.Partitions, kmsg.DeleteRecordsRequestTopicPartition{Partition: c.partition, Offset: c.offset})
			r.Topics = append(r.Topics, rt)
			return r
		})
	}
	p.each(t, "nothing", func(s *side, v int16) kmsg.Request { return kmsg.NewPtrDeleteRecordsRequest() })
	p.each(t, "fetch before the start", func(s *side, v int16) kmsg.Request { return fetch(t, s, v, "a", 1, 0) })
	p.each(t, "fetch the rest", func(s *side, v int16) kmsg.Request { return fetch(t, s, v, "a", 0, 3) })
}

func diffOffsetForLeaderEpoch(t *testing.T, p *pair) {
	for _, c := range []struct {
		name, topic           string
		partition             int32
		current, epoch, owner int32
	}{
		{"epoch 0", "b", 0, -1, 0, -1}, {"later", "b", 0, -1, 5, -1}, {"negative", "b", 0, -1, -1, -1}, {"current", "b", 0, 0, 0, -1},
		{"current ahead", "b", 0, 4, 0, -1}, {"unknown partition", "b", 9, -1, 0, -1}, {"unknown topic", nobody, 0, -1, 0, -1},
		{"empty", "b", 1, -1, 0, -1}, {"as a replica", "b", 0, -1, 0, 1}, {"as a debugger", "b", 0, -1, 0, -2},
	} {
		p.each(t, c.name, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrOffsetForLeaderEpochRequest()
			r.ReplicaID = c.owner
			rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
			rt.Topic = c.topic
			rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			rp.Partition, rp.CurrentLeaderEpoch, rp.LeaderEpoch = c.partition, c.current, c.epoch
			rt.Partitions = append(rt.Partitions, rp)
			r.Topics = append(r.Topics, rt)
			return r
		})
	}
}

func diffDescribeProducers(t *testing.T, p *pair) {
	p.each(t, "producers", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeProducersRequest()
		for topic, partitions := range map[string][]int32{"a": {0, 1, 9, -1}, "b": {0, 1}, nobody: {0}} {
			rt := kmsg.NewDescribeProducersRequestTopic()
			rt.Topic, rt.Partitions = topic, partitions
			r.Topics = append(r.Topics, rt)
		}
		return r
	})
	p.each(t, "producers of a bad name", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeProducersRequest()
		rt := kmsg.NewDescribeProducersRequestTopic()
		rt.Topic, rt.Partitions = "bad name", []int32{0}
		r.Topics = append(r.Topics, rt)
		return r
	})
	p.each(t, "nothing", func(s *side, v int16) kmsg.Request { return kmsg.NewPtrDescribeProducersRequest() })
}
