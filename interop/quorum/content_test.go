package quorum

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// bulk makes metadata of about n bytes: topics with long lists in a setting of theirs.
func (c *cluster) bulk(addr string, n int) {
	c.tb.Helper()
	const each = 30 << 10 // a string in a request has at most 32,767 bytes
	var list strings.Builder
	for i := 0; list.Len() < each; i++ {
		fmt.Fprintf(&list, ",%d:%d", i%10, i)
	}
	value := list.String()[1:]
	for made := 0; made < n; {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Version, req.TimeoutMillis = 7, 10000
		for range 20 {
			t := kmsg.NewCreateTopicsRequestTopic()
			t.Topic, t.NumPartitions, t.ReplicationFactor = fmt.Sprintf("bulk%x", made), 1, 1
			t.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "leader.replication.throttled.replicas", Value: &value}}
			req.Topics = append(req.Topics, t)
			made += each
		}
		c.await("topics with long settings", func() (string, bool) {
			resp, err := ask[*kmsg.CreateTopicsResponse](addr, req, 20*time.Second)
			if err != nil {
				return err.Error(), false
			}
			for _, t := range resp.Topics {
				if t.ErrorCode != noError && t.ErrorCode != topicAlreadyExists {
					return fmt.Sprintf("%s: error %d (%s)", t.Topic, t.ErrorCode, text(t.ErrorMessage)), false
				}
			}
			return "", true
		})
	}
}

// TestLargeSnapshots: a snapshot of megabytes goes from either kind to the other, in pieces, and so does a log of that
// size.
func TestLargeSnapshots(t *testing.T) {
	c := newCluster(t, false, []kind{gregorKind, kafkaKind, gregorKind}, "metadata.log.max.record.bytes.between.snapshots=1048576")
	c.run(c.members...)
	c.leader()
	c.bulk(c.members[0].addr, 3<<20)
	for _, k := range []kind{gregorKind, kafkaKind} {
		led := c.lead(k)
		m := c.members[slices.IndexFunc(c.members, func(m *member) bool { return m.kind != k })]
		c.caughtUp(c.members...) // what is committed must be on both others
		m.kill()
		if err := os.RemoveAll(m.metadataDir()); err != nil {
			t.Fatal(err)
		}
		c.run(m)
		c.caughtUp(m)
		if start := c.logStart(m); start <= 0 {
			t.Errorf("%s has caught up with %s without a snapshot", m, led)
		}
	}
	q, _, ok := c.quorum()
	if !ok {
		t.Fatal("no leader")
	}
	c.caughtUp(c.running()...)
	for _, m := range c.running() {
		m.kill()
	}
	c.compareDirectories(q.HighWatermark)
}

var dumpedTopic = regexp.MustCompile(`"type":"TOPIC_RECORD","version":\d+,"data":\{"name":"([^"]+)"`)

// TestKafkaReadsWhatGregorWrote: Kafka's tools dump the log and the snapshots that gregor wrote as a leader and as a follower,
// just as they dump those of Kafka's, and show gregor's quorum.
func TestKafkaReadsWhatGregorWrote(t *testing.T) {
	c := newCluster(t, false, []kind{gregorKind, gregorKind, kafkaKind})
	c.run(c.members...)
	h := c.churn(quickly)
	c.lead(gregorKind)
	h.progress(60)
	h.check()
	h.stop()

	led, epoch := c.leader()
	for _, from := range [][]string{{"--bootstrap-server", c.members[0].addr}, {"--bootstrap-server", c.members[2].addr}, {"--bootstrap-controller", c.members[2].controller}} {
		status := c.box.Must(t, "metadata-quorum", append(from, "describe", "--status")...)
		for _, want := range []string{"ClusterId: " + clusterID, fmt.Sprintf("LeaderId: %d", led.id), fmt.Sprintf("LeaderEpoch: %d", epoch), "CurrentVoters: [{"} {
			if !strings.Contains(strings.Join(strings.Fields(status), " "), want) {
				t.Errorf("status from %v has no %q:\n%s", from, want, status)
			}
		}
		for _, m := range c.members {
			if want := fmt.Sprintf(`{"id": %d, "directoryId": "%s", "endpoints": ["CONTROLLER://%s"]}`, m.id, m.directoryID, m.controller); !strings.Contains(status, want) {
				t.Errorf("status from %v has no %s:\n%s", from, want, status)
			}
		}
		replication := c.box.Must(t, "metadata-quorum", append(from, "describe", "--replication")...)
		if n := strings.Count(replication, "Follower"); n != 2 || strings.Count(replication, "Leader ") != 1 {
			t.Errorf("replication from %v:\n%s", from, replication)
		}
	}

	var want []string
	for name := range h.topics {
		want = append(want, name)
	}
	slices.Sort(want)
	c.caughtUp(c.members...)
	hw := int64(0)
	c.await("a high watermark", func() (string, bool) {
		q, _, ok := c.quorum()
		hw = q.HighWatermark
		return "none", ok && hw > 0
	})
	for _, m := range c.members {
		m.kill()
	}
	payloads := map[*member][]string{}
	for _, m := range c.members {
		files, err := filepath.Glob(filepath.Join(m.metadataDir(), "*.log"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s: log files %v, %v", m, files, err)
		}
		out := c.box.Must(t, "dump-log", "--cluster-metadata-decoder", "--files", files[0])
		for line := range strings.Lines(out) {
			var offset int64
			if _, err := fmt.Sscanf(line, "| offset: %d ", &offset); err == nil && offset < hw {
				payloads[m] = append(payloads[m], strings.TrimSpace(line))
			}
		}
		if int64(len(payloads[m])) != hw {
			t.Errorf("%s: the dump has %d records of %d:\n%.2000s", m, len(payloads[m]), hw, out)
			continue
		}
		var got []string
		for _, l := range payloads[m] {
			if f := dumpedTopic.FindStringSubmatch(l); f != nil {
				got = append(got, f[1])
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: topics in the dump %v, want %v", m, got, want)
		}
		if !slices.Equal(payloads[m], payloads[c.members[0]]) {
			t.Errorf("the dumps of %s and %s differ", m, c.members[0])
		}
		snapshots, err := filepath.Glob(filepath.Join(m.metadataDir(), "*.checkpoint"))
		if err != nil || len(snapshots) < 2 { // the first is what formatting left
			t.Fatalf("%s: snapshots %v, %v", m, snapshots, err)
		}
		last := snapshots[len(snapshots)-1]
		out = c.box.Must(t, "dump-log", "--cluster-metadata-decoder", "--files", last)
		for _, want := range []string{"SnapshotHeader", "KRaftVersion", "KRaftVoters", "FEATURE_LEVEL_RECORD", "REGISTER_BROKER_RECORD", "TOPIC_RECORD", "SnapshotFooter"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: the dump of %s has no %s:\n%.3000s", m, filepath.Base(last), want, out)
			}
		}
	}
	c.compareDirectories(hw)
}

// TestLogIsCleaned: leaders of both kinds drop the head of their log, which each does once a minute, and take a node of the
// other kind in that was away for so long with a snapshot.
func TestLogIsCleaned(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false, []kind{gregorKind, kafkaKind, gregorKind, kafkaKind, gregorKind},
		"metadata.log.segment.ms=500", "metadata.max.retention.bytes=20000", "metadata.max.retention.ms=1000")
	c.run(c.members...)
	// Two of five are killed below: there is none to spare then, so the leader that the first to return shall find leads before.
	k, g3 := c.members[1], c.members[2]
	if k == c.lead(kafkaKind) {
		k = c.members[3]
	}
	h := c.churn(200 * time.Millisecond)
	h.progress(5)
	end := max(c.end(g3), c.end(k))
	g3.kill()
	k.kill()
	for _, m := range c.running() {
		c.await(fmt.Sprintf("%s to drop its log up to %d", m, end), func() (string, bool) {
			start := c.logStart(m)
			return fmt.Sprintf("its log begins at %d", start), start > end
		})
	}
	c.run(g3)
	c.caughtUp(g3)
	c.lead(gregorKind)
	c.run(k)
	c.caughtUp(k)
	for _, m := range []*member{g3, k} {
		if start := c.logStart(m); start <= end {
			t.Errorf("the log of %s begins at %d, and not beyond %d with a snapshot", m, start, end)
		}
	}
	h.check()
	h.stop()
}

// end is the leader's word for where the member's log ends.
func (c *cluster) end(m *member) (at int64) {
	c.tb.Helper()
	c.await(fmt.Sprintf("the log end of %s", m), func() (string, bool) {
		q, _, ok := c.quorum()
		for _, v := range q.CurrentVoters {
			if v.ReplicaID == m.id {
				at = v.LogEndOffset
			}
		}
		return "not known", ok && at > 0
	})
	return at
}

// logStart is where the member's log begins: the lowest snapshot is that of the log's start, once the log has been cut.
func (c *cluster) logStart(m *member) int64 {
	lowest, _ := c.snapshots(m)
	return lowest
}

// snapshots are the ends of the member's first and last snapshot, -1 when it has none.
func (c *cluster) snapshots(m *member) (first, last int64) {
	names, _ := filepath.Glob(filepath.Join(m.metadataDir(), "*.checkpoint"))
	first, last = -1, -1
	for _, n := range names {
		var end int64
		if _, err := fmt.Sscanf(filepath.Base(n), "%d-", &end); err != nil {
			continue
		}
		if first < 0 || end < first {
			first = end
		}
		last = max(last, end)
	}
	return first, last
}
