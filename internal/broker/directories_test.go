package broker

import (
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/uuid"
)

// assignments collects what a controller is told, and fails the first calls.
type assignments struct {
	mu    sync.Mutex // guards all
	fails int
	got   []*kmsg.AssignReplicasToDirsRequest
}

func (c *assignments) Forward(_ Client, q kmsg.Request, _ time.Time, reply func(kmsg.Response, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fails > 0 {
		c.fails--
		go reply(nil, api.ErrNotController)
		return
	}
	c.got = append(c.got, q.(*kmsg.AssignReplicasToDirsRequest))
	go reply(q.ResponseKind(), nil)
}

func TestDirectoryAssignerTriesUntilItIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &assignments{fails: 2}
		a := NewDirectoryAssigner(3, func() int64 { return 17 }, c, clock.System, slog.New(slog.DiscardHandler))
		topic, one, two := uuid.UUID{1}, uuid.UUID{200}, uuid.UUID{201}
		told := 0
		a.Assign(topic, 1, one, nil)
		a.Assign(topic, 0, two, func() { t.Error("told of what was overtaken") })
		a.Assign(topic, 0, one, func() { told++ })
		a.Assign(topic, 2, two, nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(c.got) != 1 {
			t.Fatalf("%d requests were heard, want 1", len(c.got))
		}
		q := c.got[0]
		if q.BrokerID != 3 || q.BrokerEpoch != 17 || len(q.Directories) != 2 || uuid.UUID(q.Directories[0].ID) != one ||
			len(q.Directories[0].Topics[0].Partitions) != 2 || q.Directories[0].Topics[0].Partitions[0].Partition != 0 {
			t.Errorf("request %+v", q)
		}
		if told != 1 {
			t.Errorf("told %d times", told)
		}
		a.Assign(topic, 0, two, nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(c.got) != 2 || uuid.UUID(c.got[1].Directories[0].ID) != two {
			t.Errorf("a replica that moved: %d requests", len(c.got))
		}
		a.Close()
	})
}
