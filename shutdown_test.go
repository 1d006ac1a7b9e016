package gregor_test

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor"
	"gregor/internal/await"
)

// Requests that may be parked for as long as their clients like are answered when the node stops, and the stop is a clean one.
func TestCloseAnswersWhoWaits(t *testing.T) {
	dir := t.TempDir()
	n, err := gregor.Start(t.Context(), gregor.Config{Dir: dir, Properties: map[string]string{
		"controlled.shutdown.enable": "false", "group.initial.rebalance.delay.ms": "600000",
		"offsets.topic.num.partitions": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	metadataOf(t, n.Addr(), "a")
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.Version, find.CoordinatorKey = 3, "g"
	await.True(t, "there is a coordinator", func() bool {
		return ask(t, n.Addr(), find).(*kmsg.FindCoordinatorResponse).ErrorCode == 0
	})
	list := kmsg.NewPtrListGroupsRequest()
	list.Version = 5
	await.True(t, "the coordinator has loaded", func() bool {
		return ask(t, n.Addr(), list).(*kmsg.ListGroupsResponse).ErrorCode == 0
	})

	fetch := kmsg.NewPtrFetchRequest()
	fetch.Version, fetch.ReplicaID, fetch.MaxWaitMillis, fetch.MinBytes, fetch.MaxBytes, fetch.SessionEpoch = 12, -1, 600_000, 1, 1<<20, -1
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic = "a"
	part := kmsg.NewFetchRequestTopicPartition()
	part.PartitionMaxBytes = 1 << 20
	topic.Partitions = append(topic.Partitions, part)
	fetch.Topics = append(fetch.Topics, topic)

	join := kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis, join.ProtocolType = 3, "g", 60_000, 600_000, "consumer"
	protocol := kmsg.NewJoinGroupRequestProtocol()
	protocol.Name = "range"
	join.Protocols = append(join.Protocols, protocol)

	// A connection's requests are taken in turn: when the group knows the second's member, the first waits, too.
	c, err := net.Dial("tcp", n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("gregor-test"))
	for i, q := range []kmsg.Request{fetch, join} {
		if _, err := c.Write(f.AppendRequest(nil, q, int32(7+i))); err != nil {
			t.Fatal(err)
		}
	}
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Version, describe.Groups = 5, []string{"g"}
	await.True(t, "the group has a member", func() bool {
		return len(ask(t, n.Addr(), describe).(*kmsg.DescribeGroupsResponse).Groups[0].Members) == 1
	})
	begun := time.Now()
	if err := n.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(begun); took > await.Patience {
		t.Errorf("close took %v", took)
	}
	answers, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	for id := byte(7); id <= 8; id++ {
		if len(answers) < 8 || answers[7] != id {
			t.Fatalf("request %d waited and was not answered: %x is left", id, answers)
		}
		answers = answers[min(4+int(binary.BigEndian.Uint32(answers)), len(answers)):]
	}
	if _, err := os.Stat(filepath.Join(dir, ".kafka_cleanshutdown")); err != nil {
		t.Errorf("the stop was not clean: %v", err)
	}
}
