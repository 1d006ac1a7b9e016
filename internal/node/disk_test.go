package node

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gregor/client"
	"gregor/internal/await"
	"gregor/internal/vfs"
)

// TestFailingDirectory fails one of two log directories, and then the other: the node goes on with what is left, tells clients
// and the controller, and gives up when nothing is.
func TestFailingDirectory(t *testing.T) {
	w := newWorld(t, "log.dirs=/d1,/d2\nmetadata.log.dir=/meta\n")
	var broken atomic.Value
	broken.Store("none")
	disk := vfs.Hook(w.fs, func(op vfs.Op) error {
		if op.Kind.Changes() && strings.HasPrefix(op.Path, broken.Load().(string)) {
			return syscall.EIO
		}
		return nil
	})
	w.startOn(t, disk)
	defer shutdown(t, w.node)
	c := w.client(t)
	defer c.Close()
	if _, err := c.CreateTopics(t.Context(), []client.TopicSpec{{Name: "p", Partitions: 4, ReplicationFactor: 1}}, false); err != nil {
		t.Fatal(err)
	}
	in := map[string][]int32{} // partitions by directory
	ds, err := c.DescribeLogDirs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		for _, r := range d.Replicas {
			in[d.Path] = append(in[d.Path], r.Partition)
		}
	}
	if len(in["/d1"]) == 0 || len(in["/d2"]) == 0 {
		t.Fatalf("replicas are not spread: %v", in)
	}
	produce := func(partition int32, patience time.Duration) error {
		p := c.NewProducer(client.ProducerOptions{DisableIdempotence: true, Acks: client.LeaderAck, DeliveryTimeout: patience})
		defer closeProducer(p)
		return p.ProduceSync(t.Context(), &client.Record{Topic: "p", Partition: partition, Value: []byte("v")})
	}
	// A directory is found to fail when something is written to it, and a record that can't be may not come as far in its time.
	tryToWrite := func(dir string) {
		t.Helper()
		if err := produce(in[dir][0], 300*time.Millisecond); err == nil {
			t.Errorf("a record was written to %s, which fails", dir)
		}
	}
	broken.Store("/d2")
	await.True(t, "the failure is found", func() bool {
		tryToWrite("/d2")
		ds, err = c.DescribeLogDirs(t.Context())
		return err != nil || slices.ContainsFunc(ds, func(d client.LogDir) bool { return d.Err != nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		if failed := d.Err != nil; failed != (d.Path == "/d2") {
			t.Errorf("directory %s: %v", d.Path, d.Err)
		}
	}
	if err := produce(in["/d1"][0], await.Patience); err != nil {
		t.Errorf("the other directory: %v", err)
	}
	await.True(t, "the controller knows of the offline directory", func() bool {
		m, err := c.Metadata(t.Context(), []string{"p"})
		return err == nil && m.Topics[0].Partitions[in["/d2"][0]].Leader == -1 && m.Topics[0].Partitions[in["/d1"][0]].Leader == 1
	})
	select {
	case err := <-w.node.Failed():
		t.Fatalf("the node gives up although a directory is left: %v", err)
	default:
	}
	broken.Store("/d")
	await.True(t, "the node gives up without any directory", func() bool {
		tryToWrite("/d1")
		select {
		case err = <-w.node.Failed():
			return true
		default:
			return false
		}
	})
	if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "all log directories are offline") {
		t.Errorf("the node gives up with %v", err)
	}
}
