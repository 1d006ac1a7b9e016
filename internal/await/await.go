package await

import (
	"testing"
	"time"
)

// Patience is how long a test waits for what must come. It is far more than any machine needs: a test that fails for it has
// found something that never comes, and one that passes doesn't get slower by it.
const Patience = 2 * time.Minute

// interval is the pause between two looks.
const interval = time.Millisecond

// True waits until cond holds, and ends the test if it doesn't within Patience. what says what is waited for. It must be called
// on the test's goroutine; in a synctest bubble it takes the bubble's time.
func True(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	late := time.NewTimer(Patience)
	defer late.Stop()
	for !cond() {
		select {
		case <-late.C:
			tb.Fatalf("waited %v in vain: %s", Patience, what)
		case <-time.After(interval):
		}
	}
}
