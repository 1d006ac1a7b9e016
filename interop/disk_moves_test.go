package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// moved is a replica of broker 1, of partition 0 of its topic, that is made to move between two log directories and is interrupted
// in the middle of it.
type moved struct {
	topic string
	dirs  [2]string
	to    string // where it moves
	next  int    // the number of the next record
}

// movedSize is the size of a record, so that a move takes more fetches than it gets at a byte a second.
const movedSize = 4 << 10

// write appends n numbered records.
func (m *moved) write(t *testing.T, addr string, n int) {
	t.Helper()
	c := franz(t, addr)
	defer c.Close()
	for range n {
		value := strconv.Itoa(m.next)
		m.next++
		c.Produce(t.Context(), &kgo.Record{Topic: m.topic, Value: []byte(value + strings.Repeat(".", movedSize-len(value)))}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Errorf("%s: record %s: %v", m.topic, value, err)
			}
		})
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// throttle sets how fast broker 1 moves replicas.
func (m *moved) throttle(t *testing.T, addr, rate string) {
	t.Helper()
	a := admin(t, addr)
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version = 1
	req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: brokerResource, ResourceName: "1",
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "replica.alter.log.dirs.io.max.bytes.per.second", Value: &rate}}}}
	if r := a.must(t, req).(*kmsg.IncrementalAlterConfigsResponse).Resources[0]; r.ErrorCode != 0 {
		t.Fatalf("throttle of %s: error %d", rate, r.ErrorCode)
	}
}

// places are the directories of the replica and of its future one, and the latter's size; "" for none.
func (m *moved) places(t *testing.T, a *administrator) (current, future string, size int64) {
	t.Helper()
	req := kmsg.NewPtrDescribeLogDirsRequest()
	req.Version = 4
	req.Topics = []kmsg.DescribeLogDirsRequestTopic{{Topic: m.topic, Partitions: []int32{0}}}
	for _, d := range a.must(t, req).(*kmsg.DescribeLogDirsResponse).Dirs {
		if d.ErrorCode != 0 {
			t.Fatalf("log directory %s: error %d", d.Dir, d.ErrorCode)
		}
		for _, topic := range d.Topics {
			for _, p := range topic.Partitions {
				if p.IsFuture {
					future, size = d.Dir, p.Size
				} else {
					current = d.Dir
				}
			}
		}
	}
	return current, future, size
}

// onDisk are the directories of the replica's logs in a log directory, those aside that are being deleted.
func (m *moved) onDisk(t *testing.T, dir string) (logs []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, m.topic+"-0*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if !strings.HasSuffix(f, "-delete") {
			logs = append(logs, filepath.Base(f))
		}
	}
	return logs
}

// begin makes the replica move to the other directory, under a throttle because of which it doesn't get there, and returns once
// something is copied.
func (m *moved) begin(t *testing.T, addr string) {
	t.Helper()
	a := admin(t, addr)
	current, future, _ := m.places(t, a)
	if current == "" || future != "" {
		t.Fatalf("%s-0 is in %q and moves to %q", m.topic, current, future)
	}
	m.to = m.dirs[0]
	if current == m.to {
		m.to = m.dirs[1]
	}
	req := kmsg.NewPtrAlterReplicaLogDirsRequest()
	req.Version = 2
	req.Dirs = []kmsg.AlterReplicaLogDirsRequestDir{{Dir: m.to, Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: m.topic, Partitions: []int32{0}}}}}
	if code := a.must(t, req).(*kmsg.AlterReplicaLogDirsResponse).Topics[0].Partitions[0].ErrorCode; code != 0 {
		t.Fatalf("move %s-0 to %s: error %d", m.topic, m.to, code)
	}
	until(t, "nothing is copied of "+m.topic, func() bool {
		_, future, size := m.places(t, a)
		return future == m.to && size > 0
	})
	m.write(t, addr, 5)
}

// interrupted checks that the node has ended in the middle of the move.
func (m *moved) interrupted(t *testing.T) {
	t.Helper()
	logs := m.onDisk(t, m.to)
	if len(logs) != 1 || !strings.HasSuffix(logs[0], "-future") {
		t.Fatalf("%s in %s after the end of the node, want a future log", logs, m.to)
	}
	segments, err := filepath.Glob(filepath.Join(m.to, logs[0], "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, s := range segments {
		i, err := os.Stat(s)
		if err != nil {
			t.Fatal(err)
		}
		size += i.Size()
	}
	if size == 0 || size >= int64(m.next*movedSize) {
		t.Errorf("%d bytes in %s, want a part of %d", size, logs[0], m.next*movedSize)
	}
}

// finish lets the move go on at full speed and checks that the replica gets there with all its records.
func (m *moved) finish(t *testing.T, addr string) {
	t.Helper()
	a := admin(t, addr)
	m.write(t, addr, 5)
	m.throttle(t, addr, "1000000000")
	var current, future string
	defer func() {
		if t.Failed() {
			t.Logf("%s-0 is in %q and moves to %q; on disk %v and %v", m.topic, current, future, m.onDisk(t, m.dirs[0]), m.onDisk(t, m.dirs[1]))
		}
	}()
	from := m.dirs[0]
	if from == m.to {
		from = m.dirs[1]
	}
	until(t, fmt.Sprintf("%s-0 doesn't get to %s", m.topic, m.to), func() bool {
		current, future, _ = m.places(t, a)
		logs := m.onDisk(t, m.to)
		return current == m.to && future == "" && len(logs) == 1 && logs[0] == m.topic+"-0" && len(m.onDisk(t, from)) == 0
	})
	m.write(t, addr, 5)
	a.awaitLeaders(t, m.topic)
	if end := a.endOffset(t, m.topic, 0); end != int64(m.next) {
		t.Errorf("%s-0 ends at %d, want %d", m.topic, end, m.next)
	}
	franzRecords(t, addr, m.topic, m.next, func(r *kgo.Record) {
		if number := strings.TrimRight(string(r.Value), "."); number != strconv.FormatInt(r.Offset, 10) || len(r.Value) != movedSize {
			t.Errorf("%s-0: record %s of %d bytes at offset %d", m.topic, number, len(r.Value), r.Offset)
		}
	})
}
