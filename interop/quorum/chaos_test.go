package quorum

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestChaos kills, stops, freezes and wipes nodes of both kinds in random order, one at a time, while topics are created and
// deleted. QUORUM_SEED repeats a run, as far as processes can be made to; QUORUM_CHAOS is for how many seconds.
func TestChaos(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if s := os.Getenv("QUORUM_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	seconds, _ := strconv.Atoi(os.Getenv("QUORUM_CHAOS"))
	if seconds == 0 {
		seconds = 20
	}
	t.Logf("QUORUM_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c := newCluster(t, rng.IntN(3) == 0, []kind{gregorKind, kafkaKind, gregorKind})
	c.run(c.members...)
	h := c.churn(quickly)
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		m := c.members[rng.IntN(len(c.members))]
		if rng.IntN(2) == 0 {
			m, _ = c.leader()
		}
		pause := time.Duration(rng.IntN(4000)) * time.Millisecond
		switch op := rng.IntN(6); {
		case op < 2:
			c.freeze(m)
			time.Sleep(pause)
			c.thaw(m)
		case op == 2:
			m.stop()
			time.Sleep(pause / 4)
			c.run(m)
		case op == 3 && m != c.members[0]: // one keeps the whole log, to compare with
			m.kill()
			c.logf("%s loses its log", m)
			if err := os.RemoveAll(m.metadataDir()); err != nil {
				t.Fatal(err)
			}
			h.progress(1) // what is committed is on both others then
			c.run(m)
		default:
			m.kill()
			time.Sleep(pause / 4)
			c.run(m)
		}
		// No other one is disturbed before this one has what is committed.
		c.caughtUp(c.members...)
		h.progress(3)
	}
	h.finish()
}
