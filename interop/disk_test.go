package interop

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/content"
	"gregor/interop/kafka"
	"gregor/interop/node"
)

// TestDisk lets gregor and Kafka take turns on one data directory, handed over after a clean stop and after kill -9. Each must
// see all that the other left: topics, configs, records, producers, groups and their offsets, features, dynamic settings. All the
// while a client writes with idempotence and another commits offsets, and they must not notice who serves them. Each is also ended
// in the middle of a move of a replica between the two log directories, which the next one finishes.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	ports := kafka.FreePorts(t, 2)
	addr := fmt.Sprintf("127.0.0.1:%d", ports[0])
	moving := &moved{topic: "moving", dirs: [2]string{filepath.Join(dir, "data"), filepath.Join(dir, "data2")}}
	kafka.WriteProperties(t, dir, kafka.Properties(1, ports[0], ports[1], strings.Join(moving.dirs[:], ","), append(quick,
		// A move copies this much before it notices that it is too fast.
		"replica.fetch.max.bytes=65536", "alter.log.dirs.replication.quota.window.num=3",
		"log.retention.ms=-1", "log.segment.bytes=1048576", "log.cleaner.enable=false", "offsets.retention.minutes=2147483647",
		// A log start offset that was moved is on disk a moment later, in both.
		"log.flush.start.offset.checkpoint.interval.ms=200", "log.initial.task.delay.ms=500")...))
	node.Run(t, "storage", "format", "--standalone", "-t", clusterID, "-c", filepath.Join(dir, "server.properties"))

	var kill, stop func()
	gregor := func() {
		n := node.Start(t, dir, addr)
		kill, stop = n.Kill, func() { n.Stop(t) }
	}
	real := func() {
		n := kafka.Start(t, dir, addr)
		kill, stop = n.Kill, func() { n.Stop(t) }
	}
	gregor()
	a := admin(t, addr)
	a.create(t, "idempotent", 2)
	a.create(t, "input", 1)
	a.create(t, moving.topic, 1)
	moving.write(t, addr, 1000)
	ctx, end := context.WithCancel(t.Context())
	var load sync.WaitGroup
	steady := &ledger{topic: "idempotent", idempotent: true, acked: map[int64]int64{}}
	load.Go(func() { steady.produce(ctx, t, addr) })
	var commits atomic.Int64
	load.Go(func() { commitUp(ctx, t, addr, &commits) })

	for i, turn := range []struct {
		name  string
		start func()
		kill  bool
	}{
		{"gregor, stopped", nil, false}, {"kafka, stopped", real, false}, {"gregor, killed", gregor, true}, {"kafka, killed", real, true},
		{"gregor again, killed", gregor, true}, {"gregor at last", gregor, false},
	} {
		if turn.start != nil {
			before := t.Failed()
			want := inventoryBefore
			turn.start()
			if got := inventory(t, addr); got != want {
				t.Errorf("%s finds something else than was left:\n%s", turn.name, strings.ReplaceAll(strings.ReplaceAll(diff(got, want), "  gregor:", "  found:"), "  kafka: ", "  left:  "))
			}
			if !before && t.Failed() {
				t.Log(turn.name, "failed first")
			}
			moving.finish(t, addr)
		}
		moving.throttle(t, addr, "1") // holds once all that follows is there
		work(t, addr, i)
		if turn.name == "gregor at last" {
			break
		}
		moving.begin(t, addr)
		inventoryBefore = inventory(t, addr)
		if turn.kill {
			time.Sleep(2 * time.Second)
			kill()
		} else {
			stop()
		}
		moving.interrupted(t)
	}
	end()
	load.Wait()
	steady.check(t, addr)
	t.Logf("%d records acknowledged to the steady producer, %d commits; inventory of %d lines", len(steady.acked), commits.Load(), strings.Count(inventoryBefore, "\n"))
}

// inventoryBefore is what the last node saw before it ended.
var inventoryBefore string

// work changes something of everything.
func work(t *testing.T, addr string, turn int) {
	t.Helper()
	a := admin(t, addr)
	name := fmt.Sprintf("made-in-%d", turn)
	a.create(t, name, 2, "segment.ms", "3600000", "max.message.bytes", "900000")
	// Old topics are written on, by each in turn and in each codec.
	var topics []string
	for i := range turn + 1 {
		topics = append(topics, fmt.Sprintf("made-in-%d", i))
	}
	for i, topic := range topics {
		c := franz(t, addr, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(franzCodec(codecs[(turn+i)%len(codecs)])),
			kgo.ProducerLinger(2*time.Millisecond))
		for n := range 2000 {
			r := franzRecord(topic, turn*2000+n, 2)
			r.Timestamp = time.Now() // or its producer would be forgotten
			c.Produce(t.Context(), r, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Errorf("%s: %v", topic, err)
				}
			})
		}
		if err := c.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	must := func(req kmsg.Request, check func(kmsg.Response) int16) {
		t.Helper()
		if code := check(a.must(t, req)); code != 0 {
			t.Errorf("turn %d: request %d: error %d", turn, req.Key(), code)
		}
	}
	grow := kmsg.NewPtrCreatePartitionsRequest()
	grow.Version, grow.TimeoutMillis = 2, 10000
	grow.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: name, Count: 3}}
	must(grow, func(r kmsg.Response) int16 { return r.(*kmsg.CreatePartitionsResponse).Topics[0].ErrorCode })
	alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
	alter.Version = 1
	set := func(kind kmsg.ConfigResourceType, resource, key, value string) {
		alter.Resources = append(alter.Resources, kmsg.IncrementalAlterConfigsRequestResource{ResourceType: kind, ResourceName: resource,
			Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: key, Value: &value}}})
	}
	set(topicResource, topics[0], "retention.bytes", fmt.Sprint(1_000_000_000+turn))
	set(brokerResource, "", "log.retention.bytes", fmt.Sprint(2_000_000_000+turn))
	set(brokerResource, "1", "background.threads", fmt.Sprint(1+turn%2))
	set(groupResource, "steady", "consumer.session.timeout.ms", fmt.Sprint(50_000+turn))
	must(alter, func(r kmsg.Response) (code int16) {
		for _, rr := range r.(*kmsg.IncrementalAlterConfigsResponse).Resources {
			code = max(code, rr.ErrorCode)
		}
		return code
	})
	cut := kmsg.NewPtrDeleteRecordsRequest()
	cut.Version, cut.TimeoutMillis = 2, 10000
	cut.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: topics[0], Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Partition: 0, Offset: int64(100 * (turn + 1))}}}}
	must(cut, func(r kmsg.Response) int16 { return r.(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0].ErrorCode })
	quota := kmsg.NewPtrAlterClientQuotasRequest()
	quota.Version = 1
	quota.Entries = []kmsg.AlterClientQuotasRequestEntry{{Entity: []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: str(fmt.Sprintf("u%d", turn))}},
		Ops: []kmsg.AlterClientQuotasRequestEntryOp{{Key: "producer_byte_rate", Value: 1e9}}}}
	must(quota, func(r kmsg.Response) int16 { return r.(*kmsg.AlterClientQuotasResponse).Entries[0].ErrorCode })
	if turn >= 2 {
		gone := fmt.Sprintf("made-in-%d-gone", turn)
		a.create(t, gone, 1)
		del := kmsg.NewPtrDeleteTopicsRequest()
		del.Version, del.TimeoutMillis = 6, 10000
		del.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: &gone}}
		must(del, func(r kmsg.Response) int16 { return r.(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode })
	}
	// A group that has read a bit of each, and one with an offset committed by hand.
	if n := franzGroup(t, addr, name, fmt.Sprintf("read-in-%d", turn), 500); n < 500 {
		t.Errorf("group read %d", n)
	}
	if turn > 0 {
		// Goes on with what the other one has left.
		franzGroup(t, addr, topics[turn-1], fmt.Sprintf("read-in-%d", turn-1), 100)
	}
	for g := range turn + 1 {
		c := commit(fmt.Sprintf("by-hand-%d", g), "", -1, name, 1, int64(turn))
		c.Version = 9
		must(c, func(r kmsg.Response) int16 { return r.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode })
	}
}

// inventory is all that clients can see of a node and that must outlive it, as text.
func inventory(t *testing.T, addr string) string {
	t.Helper()
	a := admin(t, addr)
	var b strings.Builder
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version, metadata.Topics = 12, nil
	var mine []string
	topics := a.must(t, metadata).(*kmsg.MetadataResponse).Topics
	slices.SortFunc(topics, func(x, y kmsg.MetadataResponseTopic) int { return strings.Compare(*x.Topic, *y.Topic) })
	type end struct{ start, end int64 }
	ends := map[string]map[int32]end{}
	for _, topic := range topics {
		fmt.Fprintf(&b, "topic %s id %x internal %t partitions %d\n", *topic.Topic, topic.TopicID, topic.IsInternal, len(topic.Partitions))
		a.awaitLeaders(t, *topic.Topic)
		slices.SortFunc(topic.Partitions, func(x, y kmsg.MetadataResponseTopicPartition) int { return int(x.Partition - y.Partition) })
		for _, p := range topic.Partitions {
			fmt.Fprintf(&b, "  partition %d replicas %v isr %v\n", p.Partition, p.Replicas, p.ISR)
		}
		if topic.IsInternal || !strings.HasPrefix(*topic.Topic, "made-in") {
			continue
		}
		mine = append(mine, *topic.Topic)
		ends[*topic.Topic] = map[int32]end{}
		for _, p := range topic.Partitions {
			var found [3]int64
			for i, ts := range []int64{-2, -1, -3} {
				list := kmsg.NewPtrListOffsetsRequest()
				list.Version, list.ReplicaID = 7, -1
				lt := kmsg.NewListOffsetsRequestTopic()
				lt.Topic = *topic.Topic
				lp := kmsg.NewListOffsetsRequestTopicPartition()
				lp.Partition, lp.Timestamp, lp.CurrentLeaderEpoch = p.Partition, ts, -1
				lt.Partitions = append(lt.Partitions, lp)
				list.Topics = append(list.Topics, lt)
				got := a.must(t, list).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
				if got.ErrorCode != 0 {
					t.Errorf("%s-%d: offset for %d: error %d", *topic.Topic, p.Partition, ts, got.ErrorCode)
				}
				found[i] = got.Offset
			}
			ends[*topic.Topic][p.Partition] = end{found[0], found[1]}
			fmt.Fprintf(&b, "  %s-%d from %d to %d, latest record %d\n", *topic.Topic, p.Partition, found[0], found[1], found[2])
		}
	}
	for _, topic := range mine {
		digests := map[int32]*content.Digest{}
		total := 0
		for _, e := range ends[topic] {
			total += int(e.end - e.start)
		}
		franzRecords(t, addr, topic, total, func(r *kgo.Record) {
			if digests[r.Partition] == nil {
				digests[r.Partition] = content.NewDigest()
			}
			var hs []content.Header
			for _, h := range r.Headers {
				hs = append(hs, content.Header{Key: h.Key, Value: h.Value})
			}
			digests[r.Partition].Add(r.Offset, r.Timestamp.UnixMilli(), r.Key, r.Value, hs)
		})
		for _, p := range slices.Sorted(maps.Keys(digests)) {
			fmt.Fprintf(&b, "  %s-%d records %s\n", topic, p, digests[p])
		}
		producers := kmsg.NewPtrDescribeProducersRequest()
		producers.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: topic, Partitions: []int32{0, 1}}}
		for _, p := range a.must(t, producers).(*kmsg.DescribeProducersResponse).Topics[0].Partitions {
			slices.SortFunc(p.ActiveProducers, func(x, y kmsg.DescribeProducersResponseTopicPartitionActiveProducer) int {
				return int(x.ProducerID - y.ProducerID)
			})
			for _, q := range p.ActiveProducers {
				fmt.Fprintf(&b, "  %s-%d producer %d epoch %d sequence %d at %d\n", topic, p.Partition, q.ProducerID, q.ProducerEpoch, q.LastSequence, q.LastTimestamp)
			}
		}
	}
	resources := []kmsg.DescribeConfigsRequestResource{{ResourceType: brokerResource}, {ResourceType: brokerResource, ResourceName: "1"},
		{ResourceType: groupResource, ResourceName: "steady"}}
	for _, topic := range mine {
		resources = append(resources, kmsg.DescribeConfigsRequestResource{ResourceType: topicResource, ResourceName: topic})
	}
	describe := kmsg.NewPtrDescribeConfigsRequest()
	describe.Version, describe.Resources = 4, resources
	for _, r := range a.must(t, describe).(*kmsg.DescribeConfigsResponse).Resources {
		slices.SortFunc(r.Configs, func(x, y kmsg.DescribeConfigsResponseResourceConfig) int { return strings.Compare(x.Name, y.Name) })
		for _, c := range r.Configs {
			if c.Value != nil && c.Source != 4 && c.Source != 5 { // static and default ones are none of the directory's
				fmt.Fprintf(&b, "config %v %q: %s=%s from %v\n", r.ResourceType, r.ResourceName, c.Name, *c.Value, c.Source)
			}
		}
	}
	list := kmsg.NewPtrListGroupsRequest()
	list.Version = 4
	var groups []kmsg.ListGroupsResponseGroup
	until(t, "the groups are not loaded", func() bool {
		r := a.must(t, list).(*kmsg.ListGroupsResponse)
		groups = r.Groups
		return r.ErrorCode == 0
	})
	slices.SortFunc(groups, func(x, y kmsg.ListGroupsResponseGroup) int { return strings.Compare(x.Group, y.Group) })
	for _, g := range groups {
		fmt.Fprintf(&b, "group %s %s %s\n", g.Group, g.ProtocolType, g.GroupState)
		if g.Group == "steady" {
			continue // moves on
		}
		fetch := kmsg.NewPtrOffsetFetchRequest()
		fetch.Version, fetch.Group, fetch.Topics = 7, g.Group, nil
		var lines []string
		for _, topic := range a.must(t, fetch).(*kmsg.OffsetFetchResponse).Topics {
			for _, p := range topic.Partitions {
				lines = append(lines, fmt.Sprintf("  %s: %s-%d at %d, epoch %d, %v\n", g.Group, topic.Topic, p.Partition, p.Offset, p.LeaderEpoch, *p.Metadata))
			}
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, ""))
	}
	quotas := kmsg.NewPtrDescribeClientQuotasRequest()
	quotas.Version = 1
	var lines []string
	for _, e := range a.must(t, quotas).(*kmsg.DescribeClientQuotasResponse).Entries {
		lines = append(lines, fmt.Sprintf("quota %s %s %v\n", e.Entity[0].Type, *e.Entity[0].Name, e.Values))
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	versions := kmsg.NewPtrApiVersionsRequest()
	versions.Version, versions.ClientSoftwareName, versions.ClientSoftwareVersion = 3, "inventory", "1"
	for _, f := range a.must(t, versions).(*kmsg.ApiVersionsResponse).FinalizedFeatures {
		lines = append(lines, fmt.Sprintf("feature %s %d\n", f.Name, f.MaxVersionLevel))
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	return b.String()
}
