package controller

import (
	"fmt"
	"testing"
)

// A controller loses its leadership at every point of its first transaction, with every part of it committed, and takes up what
// is committed: as a standby, and as the leader once more, which aborts what is open and begins anew.
func TestLeadershipIsLostWithinATransaction(t *testing.T) {
	for committed := 0; ; committed++ {
		w := newWorld(t, func(o *Options) { o.MaxRecordsPerBatch = 2 })
		w.hold = true
		w.lead()
		if committed > len(w.log.batches) {
			return
		}
		t.Run(fmt.Sprint(committed), func(t *testing.T) {
			w.t = t
			for w.log.committed < committed {
				b := w.log.batches[w.log.committed]
				w.log.committed++
				w.core.HandleCommit(w.now, b.base, b.base+max(0, int64(len(b.records))-1), b.records)
			}
			w.lose()
			if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
				t.Fatalf("after losing leadership:\n%s", diff(got, want))
			}
			w.lead() // and loses it with the abort not committed
			w.lose()
			if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
				t.Fatalf("after losing leadership again:\n%s", diff(got, want))
			}
			w.hold = false
			w.lead()
			w.up(1)
			w.create("t", 1, 1)
			if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
				t.Fatalf("leading again:\n%s", diff(got, want))
			}
		})
	}
}
