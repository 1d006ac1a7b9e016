package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/await"
	"gregor/internal/clock"
	"gregor/internal/golden"
	"gregor/internal/log"
)

// kafkas is what clients saw when Kafka was started on a golden directory.
type kafkas struct {
	After struct {
		ClusterID string `json:"clusterId"`
		Topics    map[string]struct {
			TopicID    string                    `json:"topicId"`
			Internal   bool                      `json:"internal"`
			Configs    map[string]string         `json:"configs"`
			Partitions map[string]kafkaPartition `json:"partitions"`
		} `json:"topics"`
		Groups map[string]struct {
			Type, State, Protocol string
			Members               int
			Offsets               map[string]struct {
				Offset      int64
				Metadata    string
				LeaderEpoch int32 `json:"leaderEpoch"`
			}
		} `json:"groups"`
		Features map[string]int16 `json:"features"`
		LogDirs  map[string][]struct {
			Dir      string
			Replicas []string
		} `json:"logDirs"`
		DynamicConfigs map[string]map[string]string `json:"dynamicConfigs"`
	} `json:"afterKafkaStartedOnIt"`
}

type kafkaPartition struct {
	Leader             int32
	Replicas, ISR      string
	LogStartOffset     int64
	HighWatermark      int64
	LastStableOffset   int64
	MaxTimestampOffset int64
	MaxTimestamp       int64
	Producers          []struct {
		ProducerID            int64 `json:"producerId"`
		Epoch                 int32
		LastSequence          int32
		LastTimestamp         int64
		CoordinatorEpoch      int32
		CurrentTxnStartOffset int64
	}
	Records       []kafkaRecord
	ReadStoppedAt *int64 `json:"readStoppedAt-read_uncommitted"` // a damaged batch, where Kafka's consumer gave up
}

type kafkaRecord struct {
	Offset, Timestamp int64
	Key, Value        *string
	ValueLen          *int
	ValueSha256       string
	Headers           []struct {
		Key      string
		Value    *string
		ValueHex string
	}
	ReadCommitted bool
}

// startGolden starts a node on a golden directory, on ports of the system's choice, at the time at which the directory was
// left: retention and sessions then see it as its makers did.
func startGolden(t *testing.T, name string) (*Node, string) {
	t.Helper()
	dir := filepath.Join(unpack(t, name), "node-1")
	changes := []string{"listeners", "PLAINTEXT://localhost:0,CONTROLLER://localhost:0", "advertised.listeners", "PLAINTEXT://localhost:0,CONTROLLER://localhost:0"}
	c := loadIn(t, dir, filepath.Join(dir, "server.properties"), changes...)
	meta, err := os.ReadFile(filepath.Join(c.MetadataLogDir, log.MetaPropertiesFile))
	if err != nil {
		t.Fatal(err)
	}
	made, err := time.Parse("#Mon Jan _2 15:04:05 MST 2006", strings.Split(string(meta), "\n")[1])
	if err != nil {
		t.Fatal(err)
	}
	n, err := Start(t.Context(), Options{Config: c, Clock: clock.NewManual(made.Add(5 * time.Minute))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		if err := n.Shutdown(ctx); err != nil {
			t.Errorf("%s: shutdown: %v", name, err)
		}
	})
	return n, dir
}

// TestOpensKafkasDirectories starts on what Kafka left and compares what clients see with what they saw of Kafka.
func TestOpensKafkasDirectories(t *testing.T) {
	for _, name := range []string{"single-clean", "single-kill9", "single-deleting", "static-jbod", "static-upgraded", "jbod-future", "meta-trimmed", "legacy-magic"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want kafkas
			golden.Expect(t, name, &want)
			n, dir := startGolden(t, name)
			c, err := client.New(client.Options{Seeds: []string{n.BrokerAddr()}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if n.ClusterID() != want.After.ClusterID {
				t.Errorf("cluster %s, want %s", n.ClusterID(), want.After.ClusterID)
			}
			compareTopics(t, c, &want)
			compareFeatures(t, c, want.After.Features)
			compareGroups(t, c, &want)
			compareDynamic(t, c, want.After.DynamicConfigs)
			for topic, x := range want.After.Topics {
				for id, p := range x.Partitions {
					part, err := strconv.Atoi(id)
					if err != nil {
						t.Fatal(err)
					}
					tp := client.TopicPartition{Topic: topic, Partition: int32(part)}
					compareOffsets(t, c, tp, p)
					if len(p.Records) > 0 {
						compareRecords(t, c, tp, p)
					}
				}
			}
			compareLogDirs(t, n, c, dir, &want) // last, since it may take a while by the clock
		})
	}
}

func compareTopics(t *testing.T, c *client.Client, want *kafkas) {
	t.Helper()
	m, err := c.Metadata(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, topic := range m.Topics {
		got = append(got, topic.Name)
		x := want.After.Topics[topic.Name]
		if topic.ID.String() != x.TopicID || topic.Internal != x.Internal || len(topic.Partitions) != len(x.Partitions) {
			t.Errorf("topic %s: id %s, internal %v, %d partitions; want %s, %v, %d", topic.Name, topic.ID, topic.Internal, len(topic.Partitions), x.TopicID, x.Internal, len(x.Partitions))
		}
		for _, p := range topic.Partitions {
			w := x.Partitions[fmt.Sprint(p.ID)]
			if p.Leader != w.Leader || join(p.Replicas) != w.Replicas || join(p.ISR) != w.ISR {
				t.Errorf("%s-%d: leader %d, replicas %v, ISR %v; want %+v", topic.Name, p.ID, p.Leader, p.Replicas, p.ISR, w)
			}
		}
	}
	slices.Sort(got)
	if all := slices.Sorted(maps.Keys(want.After.Topics)); !slices.Equal(got, all) {
		t.Errorf("topics %v, want %v", got, all)
	}
	for name, x := range want.After.Topics {
		rs, err := c.DescribeConfigs(t.Context(), []client.Resource{{Type: client.TopicResource, Name: name}}, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		own := map[string]string{}
		for _, e := range rs[0].Entries {
			if e.Source == client.TopicConfigSource && e.Value != nil {
				own[e.Name] = *e.Value
			}
		}
		if !maps.Equal(own, x.Configs) {
			t.Errorf("configs of %s: %v, want %v", name, own, x.Configs)
		}
	}
}

func join(ids []int32) string {
	var s []string
	for _, id := range ids {
		s = append(s, fmt.Sprint(id))
	}
	return strings.Join(s, ",")
}

func compareFeatures(t *testing.T, c *client.Client, want map[string]int16) {
	t.Helper()
	fs, err := c.Features(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int16{}
	for _, f := range fs {
		if f.Level > 0 {
			got[f.Name] = f.Level
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("features %v, want %v", got, want)
	}
}

// compareLogDirs waits until the replicas are in the directories where Kafka had them: one may be on its way at first, at a byte a
// second by the clock.
func compareLogDirs(t *testing.T, n *Node, c *client.Client, dir string, want *kafkas) {
	t.Helper()
	for _, d := range want.After.LogDirs["1"] {
		await.True(t, fmt.Sprintf("replicas %v in %s", d.Replicas, d.Dir), func() bool {
			ds, err := c.DescribeLogDirs(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := []string{}
			moves := false
			for _, x := range ds {
				rel, err := filepath.Rel(dir, x.Path)
				for _, r := range x.Replicas {
					if moves = moves || r.Future; err == nil && rel == d.Dir && !r.Future {
						got = append(got, r.String())
					}
				}
			}
			if moves {
				n.o.Clock.(*clock.Manual).Advance(time.Second)
			}
			slices.Sort(got)
			return slices.Equal(got, d.Replicas)
		})
	}
}

func compareGroups(t *testing.T, c *client.Client, want *kafkas) {
	t.Helper()
	gs, err := c.ListGroups(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range gs {
		got = append(got, g.ID)
		if w := want.After.Groups[g.ID]; !strings.EqualFold(g.Type, w.Type) {
			t.Errorf("group %s is %s, want %s", g.ID, g.Type, w.Type)
		}
	}
	slices.Sort(got)
	if all := slices.Sorted(maps.Keys(want.After.Groups)); !slices.Equal(got, all) {
		t.Errorf("groups %v, want %v", got, all)
	}
	for id, w := range want.After.Groups {
		if w.Offsets == nil {
			continue
		}
		os, err := c.GroupOffsets(t.Context(), id, nil, false)
		if err != nil {
			t.Errorf("offsets of %s: %v", id, err)
			continue
		}
		have := map[string]bool{}
		for _, o := range os {
			x, ok := w.Offsets[o.TopicPartition.String()]
			have[o.TopicPartition.String()] = true
			if !ok || o.Offset != x.Offset || o.Metadata != x.Metadata || o.LeaderEpoch != x.LeaderEpoch {
				t.Errorf("offset of %s in %s: %+v, want %+v", id, o.TopicPartition, o, x)
			}
		}
		if len(have) != len(w.Offsets) {
			t.Errorf("offsets of %s: %v, want %v", id, slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(w.Offsets)))
		}
		if strings.EqualFold(w.Type, "Classic") {
			g, err := c.DescribeGroup(t.Context(), id)
			if err != nil || g.State != w.State || g.ProtocolType != w.Protocol || len(g.Members) != w.Members {
				t.Errorf("group %s: %+v, %v; want %+v", id, g, err, w)
			}
		}
	}
}

// compareDynamic compares the dynamic settings of brokers.
func compareDynamic(t *testing.T, c *client.Client, want map[string]map[string]string) {
	t.Helper()
	for resource, settings := range want {
		name, ok := strings.CutPrefix(resource, "BROKER:")
		if !ok {
			continue
		}
		source := client.DynamicBrokerSource
		if name == "" {
			source = client.DynamicDefaultSource
		}
		rs, err := c.DescribeConfigs(t.Context(), []client.Resource{{Type: client.BrokerResource, Name: name}}, nil, false)
		if err != nil {
			t.Errorf("%s: %v", resource, err)
			continue
		}
		got := map[string]string{}
		for _, e := range rs[0].Entries {
			if e.Source == source && e.Value != nil {
				got[e.Name] = *e.Value
			}
		}
		if !maps.Equal(got, settings) {
			t.Errorf("%s: %v, want %v", resource, got, settings)
		}
	}
}

func compareOffsets(t *testing.T, c *client.Client, tp client.TopicPartition, want kafkaPartition) {
	t.Helper()
	ask := func(what string, at int64, committed bool, offset int64) client.PartitionOffset {
		t.Helper()
		os, err := c.ListOffsets(t.Context(), map[client.TopicPartition]int64{tp: at}, committed)
		if err != nil || os[0].Err != nil {
			t.Errorf("%s of %s: %v %v", what, tp, err, os)
			return client.PartitionOffset{}
		}
		if os[0].Offset != offset {
			t.Errorf("%s of %s: %d, want %d", what, tp, os[0].Offset, offset)
		}
		return os[0]
	}
	ask("log start", client.Earliest, false, want.LogStartOffset)
	ask("high watermark", client.Latest, false, want.HighWatermark)
	ask("last stable offset", client.Latest, true, want.LastStableOffset)
	if got := ask("offset of the largest timestamp", client.MaxTimestamp, false, want.MaxTimestampOffset); got.Timestamp != want.MaxTimestamp {
		t.Errorf("largest timestamp of %s: %d, want %d", tp, got.Timestamp, want.MaxTimestamp)
	}
	ps, err := c.DescribeProducers(t.Context(), []client.TopicPartition{tp})
	if err != nil {
		t.Errorf("producers of %s: %v", tp, err)
		return
	}
	got, all := map[int64]string{}, map[int64]string{}
	for _, p := range ps {
		got[p.ProducerID] = fmt.Sprint(p.Epoch, p.LastSequence, p.LastTimestamp, p.CoordinatorEpoch, p.TxnStartOffset)
	}
	for _, p := range want.Producers {
		all[p.ProducerID] = fmt.Sprint(p.Epoch, p.LastSequence, p.LastTimestamp, p.CoordinatorEpoch, p.CurrentTxnStartOffset)
	}
	if !maps.Equal(got, all) {
		t.Errorf("producers of %s: %v, want %v", tp, got, all)
	}
}

func compareRecords(t *testing.T, c *client.Client, tp client.TopicPartition, want kafkaPartition) {
	t.Helper()
	for _, committed := range []bool{false, true} {
		var expect []kafkaRecord
		for _, r := range want.Records {
			if !committed || r.ReadCommitted {
				expect = append(expect, r)
			}
		}
		consumer, err := c.NewConsumer(client.ConsumerOptions{Partitions: map[client.TopicPartition]int64{tp: client.Earliest}, ReadCommitted: committed, MaxWait: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		var got []*client.Record
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		for len(got) < len(expect) {
			rs, err := consumer.Poll(ctx)
			if err != nil {
				t.Errorf("%s, committed %v: after %d of %d records: %v", tp, committed, len(got), len(expect), err)
				break
			}
			got = append(got, rs...)
		}
		cancel()
		closeConsumer(t, consumer)
		if len(got) != len(expect) {
			t.Errorf("%s, committed %v: %d records, want %d", tp, committed, len(got), len(expect))
			continue
		}
		for i, r := range got {
			if d := different(r, expect[i]); d != "" {
				t.Errorf("%s, committed %v, record %d: %s; want %+v", tp, committed, i, d, expect[i])
				break
			}
		}
	}
}

// different says how a record isn't the expected one.
func different(r *client.Record, want kafkaRecord) string {
	same := func(b []byte, s *string) bool { return (b == nil) == (s == nil) && (s == nil || string(b) == *s) }
	sum := sha256.Sum256(r.Value)
	switch {
	case r.Offset != want.Offset:
		return fmt.Sprintf("offset %d", r.Offset)
	case r.Timestamp.UnixMilli() != want.Timestamp && !(want.Timestamp == -1 && r.Timestamp.IsZero()):
		return fmt.Sprintf("timestamp %d", r.Timestamp.UnixMilli())
	case !same(r.Key, want.Key):
		return fmt.Sprintf("key %q", r.Key)
	case want.ValueLen != nil:
		if len(r.Value) != *want.ValueLen || !strings.HasPrefix(hex.EncodeToString(sum[:]), want.ValueSha256) {
			return fmt.Sprintf("value of %d bytes", len(r.Value))
		}
	case !same(r.Value, want.Value):
		return fmt.Sprintf("value %q", r.Value)
	}
	if len(r.Headers) != len(want.Headers) {
		return fmt.Sprintf("headers %v", r.Headers)
	}
	for i, h := range r.Headers {
		w := want.Headers[i]
		if h.Key != w.Key || w.ValueHex == "" && !same(h.Value, w.Value) || w.ValueHex != "" && hex.EncodeToString(h.Value) != w.ValueHex {
			return fmt.Sprintf("header %d is %v", i, h)
		}
	}
	return ""
}

func closeConsumer(t *testing.T, c *client.Consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}
