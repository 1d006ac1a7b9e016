package coordinator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gregor/internal/clock"
	"gregor/internal/coordinator/memlog"
)

// A panic in a core reaches the caller as Broken, and nobody gets into the shard any more.
func TestPanicInTheCoreIsRaised(t *testing.T) {
	for _, value := range []any{"half a step", errors.New("half a step"), &Broken{Value: "half a step"}} {
		rt := New(Options[*settingsCore, setting]{
			Name: "test", Topic: "settings", Log: &memlog.Log{}, Codec: settingCodec{}, Clock: clock.System, NewCore: newSettingsCore,
		})
		active := make(chan struct{})
		rt.Load(0, 0)
		go func() {
			for rt.States()["active"] == 0 {
				time.Sleep(time.Millisecond)
			}
			close(active)
		}()
		<-active
		rt.wg.Wait() // the loader has left the shard
		raised := func() (v any) {
			defer func() { v = recover() }()
			rt.Write(0, func(*settingsCore, time.Time) (Result[setting], error) { panic(value) }, func(error) {})
			return nil
		}()
		b, ok := raised.(*Broken)
		if !ok || !strings.Contains(b.Error(), "half a step") {
			t.Fatalf("%v: raised %v", value, raised)
		}
		rt.Write(0, func(*settingsCore, time.Time) (Result[setting], error) {
			t.Error("the shard goes on")
			return Result[setting]{}, nil
		}, func(error) { t.Error("an answer out of a broken shard") })
	}
}
