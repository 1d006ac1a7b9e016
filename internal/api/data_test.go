package api

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/uuid"
)

// The hand-written codecs are held against kmsg on everything that Kafka's classes wrote.

func str(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

func (p *ProduceRequest) kmsg() *kmsg.ProduceRequest {
	k := kmsg.NewPtrProduceRequest()
	k.Version, k.Acks, k.TimeoutMillis, k.TransactionID = p.Version, p.Acks, p.TimeoutMillis, str(p.TransactionalID)
	for _, t := range p.Topics {
		kt := kmsg.ProduceRequestTopic{Topic: string(t.Name), TopicID: t.TopicID}
		for _, x := range t.Partitions {
			kt.Partitions = append(kt.Partitions, kmsg.ProduceRequestTopicPartition{Partition: x.Index, Records: x.Records})
		}
		k.Topics = append(k.Topics, kt)
	}
	return k
}

func (f *FetchRequest) kmsg() *kmsg.FetchRequest {
	k := kmsg.NewPtrFetchRequest()
	k.Version, k.ClusterID, k.MaxWaitMillis, k.MinBytes, k.MaxBytes = f.Version, str(f.ClusterID), f.MaxWaitMillis, f.MinBytes, f.MaxBytes
	k.IsolationLevel, k.SessionID, k.SessionEpoch, k.Rack = f.IsolationLevel, f.SessionID, f.SessionEpoch, string(f.Rack)
	if f.Version < 15 {
		k.ReplicaID = f.ReplicaID
	} else {
		k.ReplicaState.ID, k.ReplicaState.Epoch = f.ReplicaID, f.ReplicaEpoch
	}
	for _, t := range f.Topics {
		kt := kmsg.FetchRequestTopic{Topic: string(t.Name), TopicID: t.TopicID}
		for _, x := range t.Partitions {
			kt.Partitions = append(kt.Partitions, kmsg.FetchRequestTopicPartition{
				Partition: x.Partition, CurrentLeaderEpoch: x.CurrentLeaderEpoch, FetchOffset: x.FetchOffset,
				LastFetchedEpoch: x.LastFetchedEpoch, LogStartOffset: x.LogStartOffset, PartitionMaxBytes: x.MaxBytes,
				ReplicaDirectoryID: x.ReplicaDirectoryID, HighWatermark: x.HighWatermark,
			})
		}
		k.Topics = append(k.Topics, kt)
	}
	for _, t := range f.Forgotten {
		k.ForgottenTopics = append(k.ForgottenTopics, kmsg.FetchRequestForgottenTopic{
			Topic: string(t.Name), TopicID: t.TopicID, Partitions: t.Partitions,
		})
	}
	return k
}

func TestProduceAndFetchRequestsAreReadAsByKmsg(t *testing.T) {
	var p ProduceRequest
	var f FetchRequest
	n := 0
	for _, v := range vectors(t) {
		if v.kind != "req" || v.key != Produce && v.key != Fetch {
			continue
		}
		n++
		decode := func(b []byte) (kmsg.Request, error) {
			if v.key == Produce {
				err := p.Decode(v.version, b)
				return p.kmsg(), err
			}
			err := f.Decode(v.version, b)
			return f.kmsg(), err
		}
		got, err := decode(v.bytes)
		if v.mode == "n" {
			if want := strings.ReplaceAll(v.path, "_tagged_fields.", ""); err == nil || !strings.Contains(err.Error(), ": "+want+": null") {
				t.Errorf("%s: %v", v, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", v, err)
			continue
		}
		want := kmsg.RequestForKey(int16(v.key))
		want.SetVersion(v.version)
		if err := want.ReadFrom(v.bytes); err != nil {
			t.Fatal(err)
		}
		forgetUnknownTags(reflect.ValueOf(want))
		if g, w := got.AppendTo(nil), want.AppendTo(nil); !bytes.Equal(g, w) {
			t.Errorf("%s\n got %x\nwant %x", v, g, w)
		}
		for i := range v.bytes {
			if _, err := decode(v.bytes[:i:i]); err == nil {
				t.Errorf("%s: accepted with %d of %d bytes", v, i, len(v.bytes))
				break
			}
		}
	}
	if n < 200 {
		t.Errorf("only %d vectors", n)
	}
}

// forgetUnknownTags removes what the hand-written codecs do not keep.
func forgetUnknownTags(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			forgetUnknownTags(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			forgetUnknownTags(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name == "UnknownTags" {
				v.Field(i).SetZero()
			} else {
				forgetUnknownTags(v.Field(i))
			}
		}
	}
}

func produceResponseOf(k *kmsg.ProduceResponse) *ProduceResponse {
	p := &ProduceResponse{}
	p.Reset(k.Version)
	p.ThrottleMillis = k.ThrottleMillis
	for _, b := range k.Brokers {
		p.NodeEndpoints = append(p.NodeEndpoints, NodeEndpoint{b.NodeID, b.Host, b.Port, b.Rack})
	}
	for _, kt := range k.Topics {
		t := p.AddTopic(kt.Topic, kt.TopicID)
		for _, kp := range kt.Partitions {
			x := t.Add(kp.Partition)
			x.ErrorCode, x.BaseOffset, x.LogAppendTimeMs, x.LogStartOffset = kp.ErrorCode, kp.BaseOffset, kp.LogAppendTime, kp.LogStartOffset
			x.ErrorMessage = kp.ErrorMessage
			for _, e := range kp.ErrorRecords {
				x.RecordErrors = append(x.RecordErrors, RecordError{e.RelativeOffset, e.ErrorMessage})
			}
			if l := kp.CurrentLeader; l.LeaderID != -1 || l.LeaderEpoch != -1 {
				x.CurrentLeader = &LeaderAndEpoch{l.LeaderID, l.LeaderEpoch}
			}
		}
	}
	return p
}

func fetchResponseOf(k *kmsg.FetchResponse) *FetchResponse {
	f := &FetchResponse{}
	f.Reset(k.Version)
	f.ThrottleMillis, f.ErrorCode, f.SessionID = k.ThrottleMillis, k.ErrorCode, k.SessionID
	for _, b := range k.Brokers {
		f.NodeEndpoints = append(f.NodeEndpoints, NodeEndpoint{b.NodeID, b.Host, b.Port, b.Rack})
	}
	for i := range k.Topics {
		kt := &k.Topics[i]
		t := f.AddTopic(kt.Topic, kt.TopicID)
		for j := range kt.Partitions {
			kp := &kt.Partitions[j]
			x := t.Add(kp.Partition)
			x.ErrorCode, x.HighWatermark, x.LastStableOffset, x.LogStartOffset = kp.ErrorCode, kp.HighWatermark, kp.LastStableOffset, kp.LogStartOffset
			x.PreferredReadReplica = kp.PreferredReadReplica
			if kp.AbortedTransactions != nil {
				x.AbortedTransactions = []AbortedTransaction{}
			}
			for _, a := range kp.AbortedTransactions {
				x.AbortedTransactions = append(x.AbortedTransactions, AbortedTransaction{a.ProducerID, a.FirstOffset})
			}
			if kp.RecordBatches == nil {
				kp.RecordBatches = []byte{} // Kafka's broker never writes null, and neither do we
			}
			// Every other partition's records are in a file.
			if j%2 == 0 {
				x.Records.Bytes = kp.RecordBatches
			} else {
				x.Records = Records{File: memFile(append([]byte("..."), kp.RecordBatches...)), Pos: 3, Len: len(kp.RecordBatches)}
			}
			if e := kp.DivergingEpoch; e.Epoch != -1 || e.EndOffset != -1 {
				x.DivergingEpoch = &EpochEndOffset{e.Epoch, e.EndOffset}
			}
			if l := kp.CurrentLeader; l.LeaderID != -1 || l.LeaderEpoch != -1 {
				x.CurrentLeader = &LeaderAndEpoch{l.LeaderID, l.LeaderEpoch}
			}
			if s := kp.SnapshotID; s.Epoch != -1 || s.EndOffset != -1 {
				x.SnapshotID = &SnapshotID{s.EndOffset, s.Epoch}
			}
		}
	}
	return f
}

// memFile is a File in memory.
type memFile []byte

func (m memFile) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(m).ReadAt(p, off)
}
func (m memFile) Fd() (uintptr, bool) { return 0, false }

// splice puts the parts of a response where they belong.
func splice(t *testing.T, b []byte, parts []FilePart) []byte {
	t.Helper()
	var out []byte
	from := 0
	for _, p := range parts {
		out = append(out, b[from:p.At]...)
		from = p.At
		file := make([]byte, p.Len)
		if _, err := p.File.ReadAt(file, p.Pos); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		out = append(out, file...)
	}
	return append(out, b[from:]...)
}

func TestProduceAndFetchResponsesAreWrittenAsByKmsg(t *testing.T) {
	n := 0
	for _, v := range vectors(t) {
		if v.kind != "resp" || v.mode == "n" || v.key != Produce && v.key != Fetch {
			continue
		}
		n++
		k := kmsg.ResponseForKey(int16(v.key))
		k.SetVersion(v.version)
		if err := k.ReadFrom(v.bytes); err != nil {
			t.Fatal(err)
		}
		forgetUnknownTags(reflect.ValueOf(k))
		prefix := []byte("before")
		var got []byte
		switch k := k.(type) {
		case *kmsg.ProduceResponse:
			got = produceResponseOf(k).AppendTo(prefix)
		case *kmsg.FetchResponse:
			b, parts := fetchResponseOf(k).AppendParts(prefix, nil)
			got = splice(t, b, parts)
		}
		if want := k.AppendTo([]byte("before")); !bytes.Equal(got, want) {
			t.Errorf("%s\n got %x\nwant %x", v, got, want)
		}
	}
	if n < 200 {
		t.Errorf("only %d vectors", n)
	}
}

// requestBody is a produce or fetch request for some topics with some partitions each.
func produceBody(version int16, topics, partitions, recordBytes int) []byte {
	r := kmsg.NewPtrProduceRequest()
	r.Version = version
	for i := range topics {
		t := kmsg.ProduceRequestTopic{Topic: "a-topic-of-some-name", TopicID: uuid.UUID{15: byte(i + 1)}}
		for j := range partitions {
			t.Partitions = append(t.Partitions, kmsg.ProduceRequestTopicPartition{Partition: int32(j), Records: make([]byte, recordBytes)})
		}
		r.Topics = append(r.Topics, t)
	}
	return r.AppendTo(nil)
}

func fetchBody(version int16, topics, partitions int) []byte {
	r := kmsg.NewPtrFetchRequest()
	r.Version = version
	for i := range topics {
		t := kmsg.FetchRequestTopic{Topic: "a-topic-of-some-name", TopicID: uuid.UUID{15: byte(i + 1)}}
		for j := range partitions {
			p := kmsg.NewFetchRequestTopicPartition()
			p.Partition = int32(j)
			t.Partitions = append(t.Partitions, p)
		}
		r.Topics = append(r.Topics, t)
	}
	return r.AppendTo(nil)
}

func TestProduceAndFetchDoNotAllocate(t *testing.T) {
	var pq ProduceRequest
	var ps ProduceResponse
	var fq FetchRequest
	var fs FetchResponse
	var file File = memFile("records")
	pb, fb := produceBody(12, 3, 5, 100), fetchBody(18, 3, 5)
	out, parts := make([]byte, 0, 4096), make([]FilePart, 0, 64)
	check := func(what string, f func()) {
		f()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	check("produce request", func() {
		if err := pq.Decode(12, pb); err != nil || len(pq.Topics) != 3 || len(pq.Topics[2].Partitions) != 5 {
			t.Fatal(err, len(pq.Topics))
		}
	})
	check("produce response", func() {
		ps.Reset(12)
		for range 3 {
			x := ps.AddTopic("t", uuid.Zero)
			for i := range 5 {
				x.Add(int32(i)).BaseOffset = 7
			}
		}
		out = ps.AppendTo(out[:0])
	})
	check("fetch request", func() {
		if err := fq.Decode(18, fb); err != nil || len(fq.Topics) != 3 || len(fq.Topics[2].Partitions) != 5 {
			t.Fatal(err, len(fq.Topics))
		}
	})
	check("fetch response", func() {
		fs.Reset(18)
		for range 3 {
			x := fs.AddTopic("", uuid.One)
			for i := range 5 {
				x.Add(int32(i)).Records = Records{File: file, Pos: 1, Len: 3}
			}
		}
		out, parts = fs.AppendParts(out[:0], parts[:0])
	})
}

func BenchmarkProduceRequestDecode(b *testing.B) {
	body := produceBody(12, 1, 1, 100)
	var p ProduceRequest
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Decode(12, body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFetchRequestDecode100Partitions(b *testing.B) {
	body := fetchBody(18, 10, 10)
	var f FetchRequest
	b.ReportAllocs()
	for b.Loop() {
		if err := f.Decode(18, body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFetchResponse100Partitions(b *testing.B) {
	var f FetchResponse
	var file File = memFile(nil)
	out, parts := make([]byte, 0, 64<<10), make([]FilePart, 0, 128)
	b.ReportAllocs()
	for b.Loop() {
		f.Reset(18)
		for range 10 {
			x := f.AddTopic("", uuid.One)
			for i := range 10 {
				x.Add(int32(i)).Records = Records{File: file, Len: 100}
			}
		}
		out, parts = f.AppendParts(out[:0], parts[:0])
	}
}

func BenchmarkDecodeRequestMetadata(b *testing.B) {
	r := kmsg.NewPtrMetadataRequest()
	r.Version = 12
	for range 10 {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr("a-topic-of-some-name")
		r.Topics = append(r.Topics, t)
	}
	body := r.AppendTo(nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeRequest(Metadata, 12, body); err != nil {
			b.Fatal(err)
		}
	}
}
