package gregor_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor"
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
	for {
		q := kmsg.NewPtrFindCoordinatorRequest()
		q.Version, q.CoordinatorKey = 3, "g"
		if ask(t, n.Addr(), q).(*kmsg.FindCoordinatorResponse).ErrorCode == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}

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

	answered := make(chan error, 2)
	for _, q := range []kmsg.Request{fetch, join} {
		c, err := net.Dial("tcp", n.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("gregor-test"))
		if _, err := c.Write(f.AppendRequest(nil, q, 7)); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := c.Read(make([]byte, 1))
			answered <- err
		}()
	}
	select {
	case err := <-answered:
		t.Fatalf("a request was answered at once: %v", err)
	case <-time.After(300 * time.Millisecond): // both are parked by then
	}
	begun := time.Now()
	if err := n.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("close took %v", took)
	}
	for range 2 {
		if err := <-answered; err != nil {
			t.Errorf("a request that waited was not answered: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, ".kafka_cleanshutdown")); err != nil {
		t.Errorf("the stop was not clean: %v", err)
	}
}
