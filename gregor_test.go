package gregor_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor"
	"gregor/internal/await"
)

// ask sends one request on a connection of its own and returns the response.
func ask(t *testing.T, addr string, q kmsg.Request) kmsg.Response {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, await.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("gregor-test"))
	if _, err := c.Write(f.AppendRequest(nil, q, 7)); err != nil {
		t.Fatal(err)
	}
	read := func(n int) []byte {
		b := make([]byte, n)
		for got := 0; got < n; {
			m, err := c.Read(b[got:])
			if err != nil {
				t.Fatal(err)
			}
			got += m
		}
		return b
	}
	size := read(4)
	body := read(int(size[0])<<24 | int(size[1])<<16 | int(size[2])<<8 | int(size[3]))[4:]
	resp := q.ResponseKind()
	if resp.IsFlexible() && q.Key() != 18 {
		body = body[1:]
	}
	if err := resp.ReadFrom(body); err != nil {
		t.Fatal(err)
	}
	return resp
}

func metadataOf(t *testing.T, addr string, topics ...string) *kmsg.MetadataResponse {
	t.Helper()
	q := kmsg.NewPtrMetadataRequest()
	q.Version, q.AllowAutoTopicCreation = 12, true
	for _, name := range topics {
		m := kmsg.NewMetadataRequestTopic()
		m.Topic = &name
		q.Topics = append(q.Topics, m)
	}
	return ask(t, addr, q).(*kmsg.MetadataResponse)
}

func TestStartAnswersMetadata(t *testing.T) {
	n, err := gregor.Start(t.Context(), gregor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m := metadataOf(t, n.Addr())
	if len(m.Brokers) != 1 || fmt.Sprintf("%s:%d", m.Brokers[0].Host, m.Brokers[0].Port) != n.Addr() || *m.ClusterID != n.ClusterID() || m.ControllerID != 1 {
		t.Errorf("metadata of the node at %s: %+v", n.Addr(), m)
	}
	if err := n.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	if c, err := net.Dial("tcp", n.Addr()); err == nil {
		c.Close()
		t.Error("somebody still listens")
	}
}

func TestRestartKeepsTopics(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var id [16]byte
	cluster := ""
	for round := range 3 {
		n, err := gregor.Start(t.Context(), gregor.Config{Dir: dir, Properties: map[string]string{"num.partitions": "3"}})
		if err != nil {
			t.Fatal(err)
		}
		var topic kmsg.MetadataResponseTopic
		await.True(t, "the topic, created on demand, is led", func() bool {
			topic = metadataOf(t, n.Addr(), "orders").Topics[0]
			return topic.ErrorCode == 0 && len(topic.Partitions) == 3 && topic.Partitions[2].Leader == 1
		})
		if round == 0 {
			id, cluster = topic.TopicID, n.ClusterID()
		}
		if topic.TopicID != id || n.ClusterID() != cluster {
			t.Errorf("round %d: topic id or cluster id changed", round)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, ".kafka_cleanshutdown")); err != nil {
			t.Errorf("round %d: no marker of a clean stop: %v", round, err)
		}
	}
}

func TestTwoNodesSideBySide(t *testing.T) {
	dir := t.TempDir()
	n, err := gregor.Start(t.Context(), gregor.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	other, err := gregor.Start(t.Context(), gregor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.Addr() == n.Addr() || other.ClusterID() == n.ClusterID() {
		t.Errorf("two nodes at %s, %s", n.Addr(), other.Addr())
	}
	if third, err := gregor.Start(t.Context(), gregor.Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "is in use by another node") {
		if err == nil {
			third.Close()
		}
		t.Errorf("a second node in the same directory: %v", err)
	}
	if m := metadataOf(t, n.Addr()); len(m.Brokers) != 1 {
		t.Errorf("the first node was disturbed: %+v", m)
	}
}

func TestStartTellsWhatIsWrong(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	f := func(c gregor.Config, want string) {
		t.Helper()
		n, err := gregor.Start(t.Context(), c)
		if err == nil {
			n.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	f(gregor.Config{Addr: taken.Addr().String()}, "address already in use")
	f(gregor.Config{Properties: map[string]string{"num.partitions": "0"}}, "Config.Properties: Invalid value 0 for configuration num.partitions: Value must be at least 1")
	f(gregor.Config{Dir: "/proc/nowhere"}, "/proc/nowhere")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := gregor.Start(ctx, gregor.Config{}); err == nil {
		n.Close()
		t.Error("a start that was given up before it began succeeded")
	}
}

func Example() {
	n, err := gregor.Start(context.Background(), gregor.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer n.Close()
	_, port, _ := net.SplitHostPort(n.Addr())
	fmt.Println("a Kafka node serves on a free port:", port != "0")
	// Output: a Kafka node serves on a free port: true
}
