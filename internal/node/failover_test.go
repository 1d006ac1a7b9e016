package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/client"
	"gregor/internal/api"
	"gregor/internal/await"
)

const combined = "broker,controller"

// TestKilledNodes kills nodes that are controller and broker at once, as kill -9 does. Their sessions are long, and somebody finds
// out before they have run out.
func TestKilledNodes(t *testing.T) {
	p := newProcs(t, "broker.session.timeout.ms=30000\ndefault.replication.factor=3\n", combined, combined, combined)
	p.start(1, 2, 3)
	all := p.client(1, 2, 3)
	p.brokers(all, 3)
	for round := range 3 {
		topic := fmt.Sprint("t-", round)
		if _, err := all.CreateTopics(t.Context(), []client.TopicSpec{{Name: topic, Partitions: 30, ReplicationFactor: 3}}, false); err != nil {
			t.Fatal(err)
		}
		active := p.activeController(all, 0)
		victim := active
		if round == 1 {
			victim = p.others(active)[0]
		}
		rest := p.others(victim)
		c := p.client(rest...)
		p.brokers(c, 3)
		begin := time.Now()
		p.nodes[victim].kill()
		p.create(c, rest[0], fmt.Sprint("after-", round))
		created := time.Since(begin)
		p.leadersAmong(c, int32(rest[0]), topic, rest)
		t.Logf("round %d: killed node %d, active controller was %d: a topic created after %v, new leaders after %v", round, victim, active, created, time.Since(begin))

		// Its next life is let in at once.
		begin = time.Now()
		p.start(victim)
		p.brokers(c, 3)
		t.Logf("round %d: back after %v", round, time.Since(begin))
	}
	p.foundOut()
}

// foundOut fails the test if no controller has fenced a broker on evidence.
func (p *procs) foundOut() {
	p.t.Helper()
	for _, n := range p.nodes {
		if strings.Contains(n.log(), "known_to_be_gone=true") {
			return
		}
	}
	p.t.Error("no controller noticed that a broker was gone before its session had run out")
}

// TestKilledBroker: a broker's death is noticed by a controller that lives; and another process gets its id as soon as it is
// dead, but not before.
func TestKilledBroker(t *testing.T) {
	p := newProcs(t, "broker.session.timeout.ms=30000\n", "controller", "broker", "broker", "broker")
	p.start(1, 2, 3, 4)
	c := p.client(2, 3)
	p.brokers(c, 3)
	if _, err := c.CreateTopics(t.Context(), []client.TopicSpec{{Name: "t", Partitions: 30, ReplicationFactor: 3}}, false); err != nil {
		t.Fatal(err)
	}

	// A process that calls itself broker 4 as well, on other ports.
	ports := freePorts(t, 1)
	twin := &proc{t: t, id: 4, dir: filepath.Join(p.dir, "twin"), broker: ports[0]}
	properties, err := os.ReadFile(p.nodes[4].properties())
	if err != nil {
		t.Fatal(err)
	}
	other := strings.NewReplacer(p.nodes[4].dir, twin.dir, fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", p.nodes[4].broker), fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", twin.broker))
	if err := os.MkdirAll(twin.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(twin.properties(), []byte(other.Replace(string(properties))), 0o644); err != nil {
		t.Fatal(err)
	}
	gregor(t, "storage", "format", "--cluster-id", clusterTestID, "--config", twin.properties())
	p.nodes[5] = twin
	p.start(5)
	await.True(t, "the twin is refused", func() bool {
		return strings.Contains(twin.log(), api.ErrDuplicateBrokerRegistration.Message)
	})
	p.brokers(c, 3)

	begin := time.Now()
	p.nodes[4].kill()
	p.leadersAmong(c, 2, "t", []int{2, 3})
	t.Logf("new leaders %v after broker 4 was killed", time.Since(begin))
	p.foundOut()
	await.True(t, "the twin takes its place", func() bool {
		m, err := c.Metadata(t.Context(), []string{})
		return err == nil && slices.ContainsFunc(m.Brokers, func(b client.Broker) bool { return b.ID == 4 && int(b.Port) == twin.broker })
	})
}

// create creates a topic through one broker, again until that works.
func (p *procs) create(c *client.Client, broker int, name string) {
	p.t.Helper()
	p.createWith(c, broker, name, 1)
}

func (p *procs) createWith(c *client.Client, broker int, name string, partitions int32) {
	p.t.Helper()
	await.True(p.t, "topic "+name+" created", func() bool {
		code := p.tryCreate(p.t.Context(), c, broker, name, partitions)
		return code == 0 || code == api.ErrTopicAlreadyExists.Code // by an attempt whose answer was lost
	})
}

// tryCreate asks a broker once to create a topic and returns the error code, -1 without an answer.
func (p *procs) tryCreate(ctx context.Context, c *client.Client, broker int, name string, partitions int32) int16 {
	q := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
	q.Topics, q.TimeoutMillis = append(q.Topics, topic), 30_000
	node := int32(broker)
	resp, err := c.Raw(ctx, &node, q)
	if err != nil {
		return -1
	}
	return resp.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode
}

// leadersAmong waits until a broker knows leaders of all partitions, among those given.
func (p *procs) leadersAmong(c *client.Client, broker int32, topic string, ids []int) {
	p.t.Helper()
	await.True(p.t, "new leaders", func() bool {
		m, err := p.topic(p.t.Context(), c, broker, topic)
		if err != nil || len(m.Partitions) == 0 {
			return false
		}
		for _, x := range m.Partitions {
			found := false
			for _, id := range ids {
				found = found || x.Leader == int32(id)
			}
			if !found {
				return false
			}
		}
		return true
	})
}
