package replica

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"gregor/internal/clock"
	"gregor/internal/config"
	"gregor/internal/log"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// testStart is what clocks show at first.
var testStart = time.Unix(1_700_000_000, 0)

// world is a manager over a log directory in memory, and the metadata that was published to it.
type world struct {
	t      *testing.T
	fs     *vfs.Mem
	m      *Manager
	image  *metadata.Image
	offset int64
}

func newWorld(t *testing.T) *world { return newWorldOn(t, vfs.NewMem(), nil) }

func newWorldOn(t *testing.T, fs *vfs.Mem, set func(o *Options)) *world {
	t.Helper()
	cfg, err := config.Load(config.NewProperties(map[string]string{"process.roles": "broker,controller", "node.id": "1",
		"log.dirs": "/d", "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "controller.listener.names": "CONTROLLER",
		"controller.quorum.voters": "1@127.0.0.1:9093"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.MkdirAll("/d"); err != nil {
		t.Fatal(err)
	}
	if err := log.WriteMetaProperties(fs, "/d", log.MetaProperties{Version: 1, ClusterID: "c", NodeID: 1, DirectoryID: uuid.UUID{15: 209}}, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	logs, err := log.Open(context.Background(), log.Options{FS: fs, Clock: clock.System, Dirs: []string{"/d"}, NodeID: 1, NoBackground: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = logs.Close(context.Background(), 1) })
	o := Options{NodeID: 1, Logs: logs, Config: config.NewLive(cfg), Logger: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2))}
	if set != nil {
		set(&o)
	}
	return &world{t: t, fs: fs, image: metadata.EmptyImage(), m: New(o)}
}

func (w *world) publish(records ...message.Message) {
	w.t.Helper()
	d := metadata.NewDelta(w.image)
	for _, r := range records {
		w.offset++
		if err := d.Replay(r); err != nil {
			w.t.Fatal(err)
		}
	}
	w.image = d.Apply(metadata.Provenance{Offset: w.offset, BatchAligned: true})
	w.m.Publish(d, w.image)
}

func (w *world) topic(name string, id byte, partitions int) uuid.UUID {
	w.t.Helper()
	topic := uuid.UUID{15: id}
	records := []message.Message{&message.TopicRecord{Name: name, TopicID: topic}}
	for p := range partitions {
		records = append(records, &message.PartitionRecord{PartitionID: int32(p), TopicID: topic, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	}
	w.publish(records...)
	return topic
}

func TestTopicsComeAndGo(t *testing.T) {
	w := newWorld(t)
	first := w.topic("a", 100, 3)
	if p, err := w.m.Partition("a", 2); err != nil || !p.IsLeader() || p.TopicID() != first {
		t.Fatalf("partition %v: %v", p, err)
	}
	old, _ := w.m.Partition("a", 0)
	// Deleted and made anew by one change.
	second := uuid.UUID{15: 101}
	w.publish(&message.RemoveTopicRecord{TopicID: first}, &message.TopicRecord{Name: "a", TopicID: second},
		&message.PartitionRecord{TopicID: second, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	if !old.Gone() || w.m.TopicByID(first) != nil {
		t.Error("the first topic is still there")
	}
	if p, err := w.m.Partition("a", 0); err != nil || p.TopicID() != second || p.Gone() {
		t.Errorf("partition of the new topic: %v, %v", p, err)
	}
	w.publish(&message.RemoveTopicRecord{TopicID: second})
	if n := len(w.m.topics.all()); n != 0 || w.m.Topic([]byte("a")) != nil {
		t.Errorf("%d topics are left", n)
	}
}

// A topic that never had a usable replica leaves nothing behind when it is deleted.
func TestTopicThatCouldNotBeOpenedIsForgotten(t *testing.T) {
	w := newWorld(t)
	// A log of another topic stands in the way.
	if _, err := w.m.logs.GetOrCreate(log.TopicPartition{Topic: "a"}, uuid.UUID{15: 201}, log.DefaultConfig()); err != nil {
		t.Fatal(err)
	}
	id := w.topic("a", 100, 1)
	if _, err := w.m.Partition("a", 0); err == nil {
		t.Fatal("the replica is served")
	}
	w.publish(&message.RemoveTopicRecord{TopicID: id})
	if n := len(w.m.topics.all()); n != 0 {
		t.Errorf("%d topics are left", n)
	}
}

// A coordinator that appends while its topic is deleted is told, whichever comes first.
func TestCoordinatorAppendsToADeletedTopic(t *testing.T) {
	w := newWorld(t)
	id := w.topic("a", 100, 1)
	c := w.m.CoordinatorLog("a")
	p, err := c.partition(0)
	if err != nil {
		t.Fatal(err)
	}
	w.m.topics.remove(w.m.TopicByID(id)) // as if the deletion were half way through
	if _, err := c.appendTo(p, 0, nil); err == nil {
		t.Error("appended")
	}
}

func TestConfigurationReachesTheLogs(t *testing.T) {
	w := newWorld(t)
	w.topic("a", 100, 2)
	size := "12345"
	w.publish(&message.ConfigRecord{ResourceType: metadata.TopicResource, ResourceName: "a", Name: "max.message.bytes", Value: &size})
	for _, p := range w.m.All() {
		if got := p.Log().Config().MaxMessageBytes; got != 12345 {
			t.Errorf("%s: max.message.bytes %d", p.TopicPartition(), got)
		}
	}
}
