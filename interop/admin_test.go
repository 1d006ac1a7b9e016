package interop

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/wire"
)

// administrator sets things up for tests.
type administrator struct{ side }

func admin(tb testing.TB, addr string) *administrator {
	tb.Helper()
	c, err := wire.Dial(addr, "admin")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return &administrator{side{name: addr, addr: addr, conn: c, kept: map[string]any{}}}
}

// create makes a topic and waits for its leaders. configs are keys and values in turn.
func (a *administrator) create(tb testing.TB, topic string, partitions int, configs ...string) {
	tb.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 20000
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = topic, int32(partitions), 1
	for i := 0; i < len(configs); i += 2 {
		t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: configs[i], Value: &configs[i+1]})
	}
	req.Topics = append(req.Topics, t)
	for _, t := range a.must(tb, req).(*kmsg.CreateTopicsResponse).Topics {
		if t.ErrorCode != 0 {
			tb.Fatal(fmt.Errorf("create %s: error %d", t.Topic, t.ErrorCode))
		}
	}
	a.awaitLeaders(tb, topic)
}
