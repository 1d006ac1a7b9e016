package broker

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/await"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// Clients write, read and wait while topics come and go, settings change, records are deleted and retention runs: everybody is
// answered, with errors that send clients on their way, and the disk is not taken for broken.
func TestTopicsComeAndGoUnderLoad(t *testing.T) {
	w := newWorld(t, map[string]string{"log.segment.delete.delay.ms": "1"})
	settings := []string{"segment.bytes", "1048576", "flush.messages", "1", "file.delete.delay.ms", "0"}
	w.topic("stays", 1, settings...)
	w.topic("comes and goes", 2, settings...)
	var stop atomic.Bool
	var wg sync.WaitGroup
	run := func(f func(c *client)) {
		c := w.client()
		wg.Go(func() {
			for !stop.Load() {
				f(c)
			}
		})
	}
	check := func(what string, code int16) {
		if e := api.ErrorFor(code); e != nil && !e.Retriable && e != api.ErrOffsetOutOfRange || code == api.ErrKafkaStorageError.Code {
			t.Errorf("%s: %v", what, e)
			stop.Store(true)
		}
	}
	records := batch(t, plain(), string(make([]byte, 10_000)))
	for _, name := range []string{"stays", "comes and goes"} {
		run(func(c *client) { check("produce", w.produce(c, name, 0, records).ErrorCode) })
		at := int64(0)
		run(func(c *client) {
			q := fetchRequest(12, name, uuid.Zero, 0, at)
			q.MaxWaitMillis, q.MaxBytes = 20, 50_000
			p := call[*kmsg.FetchResponse](c, q).Topics[0].Partitions[0]
			check("fetch", p.ErrorCode)
			if at += int64(len(p.RecordBatches) / 10_000); p.ErrorCode != 0 {
				at = max(p.LogStartOffset, 0)
			}
		})
		run(func(c *client) {
			q := kmsg.NewPtrDeleteRecordsRequest()
			q.Version = 2
			q.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: name, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Offset: -1}}}}
			check("delete records", call[*kmsg.DeleteRecordsResponse](c, q).Topics[0].Partitions[0].ErrorCode)
			w.logs.RunRetention()
			w.logs.Tick()
			time.Sleep(5 * time.Millisecond) // the others are to have something to do
		})
	}
	for i := range 60 {
		old := w.image.Topics.ByName("comes and goes").ID
		if i%2 == 0 {
			w.removeTopic(old)
			w.topic("comes and goes", 2, settings...)
		} else {
			id := uuid.UUID{0: byte(i), 15: 200}
			w.publish(&message.RemoveTopicRecord{TopicID: old}, &message.TopicRecord{Name: "comes and goes", TopicID: id},
				&message.PartitionRecord{TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1},
				&message.PartitionRecord{PartitionID: 1, TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
		}
		size := "20000"
		w.publish(&message.ConfigRecord{ResourceType: metadata.TopicResource, ResourceName: "stays", Name: "retention.bytes", Value: &size})
		before := w.broker.Traffic.ProduceRequests.Load()
		await.True(t, "clients go on", func() bool { return stop.Load() || w.broker.Traffic.ProduceRequests.Load() > before+2 })
	}
	stop.Store(true)
	wg.Wait()
	for _, d := range w.logs.Dirs() {
		if d.Offline != nil {
			t.Errorf("%s is offline: %v", d.Path, d.Offline)
		}
	}
	// Nothing that is gone holds files open: what is left are the logs and indexes of three partitions.
	await.True(t, "at most 18 files are open", func() bool { return w.logs.OpenFiles() <= 3*2*3 })
}
