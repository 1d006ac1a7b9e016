package replica

import (
	"errors"
	"testing"
	"time"

	"gregor/internal/api"
	"gregor/internal/vfs"
)

// TestReplicasAreOpenedAgain: a replica that found no room on the disk is there once there is some.
func TestReplicasAreOpenedAgain(t *testing.T) {
	var again func()
	w := newWorldOn(t, vfs.NewMem(), func(o *Options) {
		o.AfterFunc = func(_ time.Duration, f func()) Timer {
			again = f
			return simTimer{}
		}
		o.OneThread = true
	})
	w.fs.SetCapacity(w.fs.Used())
	w.topic("t", 1, 1)
	if _, err := w.m.Partition("t", 0); !errors.Is(err, api.ErrKafkaStorageError) {
		t.Fatalf("on a full disk: %v", err)
	}
	again()
	if _, err := w.m.Partition("t", 0); !errors.Is(err, api.ErrKafkaStorageError) {
		t.Fatalf("on a disk that is full yet: %v", err)
	}
	w.fs.SetCapacity(-1)
	again()
	p, err := w.m.Partition("t", 0)
	if err != nil || !p.IsLeader() {
		t.Fatalf("with room: %v", err)
	}
}

// simTimer is never stopped.
type simTimer struct{}

func (simTimer) Stop() bool               { return false }
func (simTimer) Reset(time.Duration) bool { return false }
