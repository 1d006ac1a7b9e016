package await

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// failing notes a Fatalf and ends the goroutine as the real one does.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}
func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, looks := time.Now(), 0
		True(t, "the fifth look", func() bool { looks++; return looks == 5 })
		if took := time.Since(begin); took != 4*interval {
			t.Errorf("five looks took %v", took)
		}
		f, done := &failing{}, make(chan struct{})
		go func() {
			defer close(done)
			True(f, "never", func() bool { return false })
			t.Error("goes on without what it waits for")
		}()
		<-done
		if want := "waited 2m0s in vain: never"; f.said != want {
			t.Errorf("said %q, want %q", f.said, want)
		}
	})
}
