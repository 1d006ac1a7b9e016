package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gregor/client"
	"gregor/internal/await"
	"gregor/internal/golden"
)

// betterByOther are the cases in which gregor gives, on one of the two directories, what Kafka gives only on the other: whether
// the marker of a clean stop is there makes no difference to what can still be read. See docs/DIFFERENCES.md, Storage.
var betterByOther = map[string]string{
	// Kafka cuts the log at a damaged batch although what lies behind it was synced.
	"crash-unclean/c-bad-crc-active": "crash-marked",
	// Kafka believes an index of garbage, and loses the log's end.
	"crash-marked/c-index-garbage": "crash-unclean",
	// Kafka forgets all producers.
	"crash-marked/c-no-snapshots": "crash-unclean",
}

// timesFromLog are the cases in which Kafka goes by a time index that was lost, and so doesn't find the largest timestamp. gregor
// makes the index anew.
var timesFromLog = map[string]bool{"crash-unclean/c-timeindex-garbage": true, "crash-marked/c-timeindex-garbage": true,
	"crash-marked/c-no-timeindex": true}

// TestOpensDamagedDirectories starts on directories with one kind of crash leftover or damage in each of 26 topics, after a
// crash and with the marker of a clean stop, and compares what a client sees with what Kafka's clients saw of Kafka there.
func TestOpensDamagedDirectories(t *testing.T) {
	for _, name := range []string{"crash-unclean", "crash-marked"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want kafkas
			golden.Expect(t, name, &want)
			for what, other := range betterByOther {
				if topic, ok := strings.CutPrefix(what, name+"/"); ok {
					var w kafkas
					golden.Expect(t, other, &w)
					want.After.Topics[topic] = w.After.Topics[topic]
				}
			}
			n, dir := startGolden(t, name)
			c, err := client.New(client.Options{Seeds: []string{n.BrokerAddr()}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			compareTopics(t, c, &want)
			compareLogDirs(t, n, c, dir, &want)
			for topic, x := range want.After.Topics {
				p := x.Partitions["0"]
				if timesFromLog[name+"/"+topic] {
					for _, r := range p.Records {
						if r.Timestamp > p.MaxTimestamp {
							p.MaxTimestamp, p.MaxTimestampOffset = r.Timestamp, r.Offset
						}
					}
				}
				tp := client.TopicPartition{Topic: topic}
				compareOffsets(t, c, tp, p)
				compareRecords(t, c, tp, p)
				if p.ReadStoppedAt != nil {
					compareDamage(t, c, tp, *p.ReadStoppedAt)
				}
			}
			for _, d := range n.logs.Dirs() {
				if d.Offline != nil {
					t.Errorf("%s is offline: %v", d.Path, d.Offline)
				}
			}
		})
	}
}

// compareDamage reads from the batch on that Kafka's client found damaged: ours must say so, and not go on.
func compareDamage(t *testing.T, c *client.Client, tp client.TopicPartition, at int64) {
	t.Helper()
	for _, committed := range []bool{false, true} {
		consumer, err := c.NewConsumer(client.ConsumerOptions{Partitions: map[client.TopicPartition]int64{tp: at}, ReadCommitted: committed})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		rs, err := consumer.Poll(ctx)
		cancel()
		if len(rs) > 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s, committed %v, from %d on: %d records and %v, want an error", tp, committed, at, len(rs), err)
		}
		closeConsumer(t, consumer)
	}
}
