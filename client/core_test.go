package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A node that asks for quiet gets it, and other nodes are spoken to meanwhile.
func TestThrottledNodeIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		start := time.Now()
		f := &fakeBroker{}
		f.answer = func(key, version int16, id int32, _ []byte) []byte {
			if key == 18 {
				return respond(id, false, apiVersions(version, 0, 18, 0, 4, 60, 0, 1, 3, 0, 9))
			}
			if key == 3 {
				r := kmsg.NewPtrMetadataResponse()
				r.Version = version
				r.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "a", Port: 1}, {NodeID: 2, Host: "b", Port: 1}}
				return respond(id, true, r)
			}
			at = append(at, time.Since(start))
			r := kmsg.NewPtrDescribeClusterResponse()
			r.Version, r.ThrottleMillis = version, 3000
			return respond(id, true, r)
		}
		c := fakeClient(t, f)
		for _, node := range []int32{1, 2, 1} {
			if _, err := c.Raw(t.Context(), &node, kmsg.NewPtrDescribeClusterRequest()); err != nil {
				t.Fatal(err)
			}
		}
		if len(at) != 3 || at[0] != 0 || at[1] != 0 || at[2] != 3*time.Second {
			t.Errorf("requests at %v", at)
		}
		c.Close()
	})
}

// Raw asks for the cluster's brokers again when it is given one that it doesn't know.
func TestRawFindsNewBroker(t *testing.T) {
	t.Parallel()
	brokers := []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "a", Port: 1}}
	f := &fakeBroker{}
	f.answer = func(key, version int16, id int32, _ []byte) []byte {
		switch key {
		case 18:
			return respond(id, false, apiVersions(version, 0, 18, 0, 4, 60, 0, 1, 3, 0, 9))
		case 3:
			r := kmsg.NewPtrMetadataResponse()
			r.Version, r.Brokers = version, brokers
			return respond(id, true, r)
		}
		r := kmsg.NewPtrDescribeClusterResponse()
		r.Version = version
		return respond(id, true, r)
	}
	c := fakeClient(t, f)
	one, two := int32(1), int32(2)
	if _, err := c.Raw(t.Context(), &one, kmsg.NewPtrDescribeClusterRequest()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Raw(t.Context(), &two, kmsg.NewPtrDescribeClusterRequest()); err == nil {
		t.Error("a broker that isn't there was asked")
	}
	brokers = append(brokers, kmsg.MetadataResponseBroker{NodeID: 2, Host: "b", Port: 1})
	if _, err := c.Raw(t.Context(), &two, kmsg.NewPtrDescribeClusterRequest()); err != nil {
		t.Error(err)
	}
}

// A broker that says that it left the cluster sends the client back to its seeds (KIP-1102).
func TestRebootstrapRequired(t *testing.T) {
	t.Parallel()
	n := 0
	f := &fakeBroker{}
	f.answer = func(key, version int16, id int32, _ []byte) []byte {
		if key == 18 {
			return respond(id, false, apiVersions(version, 0, 18, 0, 4, 3, 0, 13))
		}
		r := kmsg.NewPtrMetadataResponse()
		r.Version = version
		if n++; n == 1 {
			r.ErrorCode = rebootstrapRequired.Code
		}
		return respond(id, true, r)
	}
	c := fakeClient(t, f)
	if err := c.Ping(t.Context()); err != nil || n != 2 {
		t.Error(n, err)
	}
}

// Leaders that errors hint at count until metadata is as new; older news are no news.
func TestLeaderHints(t *testing.T) {
	t.Parallel()
	c := fakeClient(t, &fakeBroker{})
	topic := func(leader, epoch int32) *Metadata {
		return &Metadata{Topics: []Topic{{Name: "t", Partitions: []Partition{{ID: 0, Leader: leader, LeaderEpoch: epoch}}}}}
	}
	later := time.Now().Add(time.Hour)
	c.meta.put(topic(1, 5), later)
	tp := TopicPartition{"t", 0}
	leader := func() int32 {
		got, _ := c.meta.get("t")
		return got.Partitions[0].Leader
	}
	if c.meta.hint(tp, 2, 5) || c.meta.hint(tp, -1, 9) || c.meta.hint(TopicPartition{"u", 0}, 2, 9) || leader() != 1 {
		t.Error("old news taken")
	}
	if !c.meta.hint(tp, 2, 6) || leader() != 2 {
		t.Error("news not taken")
	}
	c.meta.put(topic(1, 5), later)
	if leader() != 2 {
		t.Error("metadata of a broker that is behind undid a hint")
	}
	c.meta.put(topic(3, 7), later)
	if leader() != 3 {
		t.Error("newer metadata not taken")
	}
}

// What a size field claims isn't allocated before it is there.
func TestReadBody(t *testing.T) {
	t.Parallel()
	want := bytes.Repeat([]byte("0123456789abcdef"), trustedResponse/16+1000)
	got, err := readBody(bytes.NewReader(want), len(want))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	got, err = readBody(iotest.DataErrReader(bytes.NewReader(want[:100])), 1<<30)
	if !errors.Is(err, io.ErrUnexpectedEOF) || cap(got) > trustedResponse {
		t.Errorf("%d bytes allocated, %v", cap(got), err)
	}
}

func TestTooLargeResponse(t *testing.T) {
	t.Parallel()
	f := &fakeBroker{}
	f.answer = func(_, version int16, id int32, _ []byte) []byte {
		return append(respond(id, false, apiVersions(version, 0)), make([]byte, 5000)...)
	}
	c := fakeClient(t, f, func(o *Options) { o.MaxResponseBytes, o.Timeout = 4000, 100*time.Millisecond })
	if err := c.Ping(t.Context()); !errors.Is(err, context.DeadlineExceeded) || !bytes.Contains([]byte(err.Error()), []byte("response of")) {
		t.Error(err)
	}
}

// What is written without copying batches is what the whole request would be.
func TestProduceParts(t *testing.T) {
	t.Parallel()
	txn := "transaction"
	var buf []byte
	var parts net.Buffers
	for version := int16(9); version <= 13; version++ {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TimeoutMillis = version, -1, 30_000
		if version%2 == 0 {
			req.TransactionID = &txn
		}
		for n := range 3 {
			topic := kmsg.ProduceRequestTopic{Topic: fmt.Sprintf("topic %d", n), TopicID: [16]byte{byte(n)}}
			for p := range n {
				topic.Partitions = append(topic.Partitions, kmsg.ProduceRequestTopicPartition{Partition: int32(p), Records: make([]byte, 1000*p)})
			}
			req.Topics = append(req.Topics, topic)
		}
		want := kmsg.NewRequestFormatter(kmsg.FormatterClientID("me")).AppendRequest(nil, req, 77)
		buf, parts = produceParts(buf, parts[:0], req, "me", 77)
		if got := bytes.Join(parts, nil); !bytes.Equal(got, want) {
			t.Errorf("version %d:\n%x\n%x", version, got, want)
		}
	}
}
