package node

import (
	"context"
	"net"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/await"
)

// TestDynamicSettings changes settings of a running broker and sees their effect.
func TestDynamicSettings(t *testing.T) {
	w := newWorld(t, "")
	w.start(t)
	defer shutdown(t, w.node)
	c := w.client(t)
	defer c.Close()
	alter := func(name, key, value string) {
		t.Helper()
		r := client.Resource{Type: client.BrokerResource, Name: name}
		if err := c.AlterConfigs(t.Context(), r, []client.ConfigChange{{Name: key, Value: value}}, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.CreateTopics(t.Context(), []client.TopicSpec{{Name: "p", Partitions: 1, ReplicationFactor: 1}}, false); err != nil {
		t.Fatal(err)
	}
	produce := func(size int) error {
		p := c.NewProducer(client.ProducerOptions{DisableIdempotence: true, Acks: client.LeaderAck, BatchBytes: 1 << 20})
		defer closeProducer(p)
		return p.ProduceSync(t.Context(), &client.Record{Topic: "p", Value: make([]byte, size)})
	}
	if err := produce(5000); err != nil {
		t.Fatal(err)
	}
	alter("", "message.max.bytes", "1000")
	if err := produce(5000); err == nil {
		t.Error("message.max.bytes for all brokers has no effect")
	}
	alter("1", "message.max.bytes", "100000")
	if err := produce(5000); err != nil {
		t.Errorf("message.max.bytes for this broker has no effect: %v", err)
	}
	// One connection more than there are now, by address.
	alter("1", "max.connections.per.ip", "1")
	refused := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		conn, err := w.net.Dial(ctx, "tcp", "127.0.0.1:9092")
		if err != nil {
			return true
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err = conn.Read(make([]byte, 1))
		ne, timeout := err.(net.Error)
		return !(timeout && ne.Timeout()) // an idle connection that is admitted says nothing
	}
	await.True(t, "connections beyond max.connections.per.ip are refused", refused)
	alter("1", "max.connections.per.ip", "100")
	await.True(t, "max.connections.per.ip is raised again", func() bool { return !refused() })
	// The controller hears of directories that are to get no new replicas.
	cordoned := func() int { return len(w.node.loader.Image().Cluster.Broker(1).CordonedLogDirs) }
	alter("1", "cordoned.log.dirs", "*")
	await.True(t, "the controller knows of the cordoned directory", func() bool { return cordoned() == 1 })
	alter("1", "cordoned.log.dirs", "")
	await.True(t, "the controller knows that it isn't cordoned any more", func() bool { return cordoned() == 0 })
	if got := w.node.Config().Topic.MaxMessageBytes; got != 100000 {
		t.Errorf("the node's configuration has message.max.bytes %d", got)
	}
}
