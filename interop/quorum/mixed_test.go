package quorum

import (
	"os"
	"testing"
)

// TestTwoGregorOneKafka: each kind leads in turn and is killed, comes back by the log, and then, with its metadata lost, by a
// snapshot, while topics are created and deleted all along.
func TestTwoGregorOneKafka(t *testing.T) {
	testMixed(t, false, gregorKind, gregorKind, kafkaKind)
}

// TestOneGregorTwoKafka is the same with Kafka in the majority.
func TestOneGregorTwoKafka(t *testing.T) {
	testMixed(t, false, gregorKind, kafkaKind, kafkaKind)
}

// TestStaticVoters is the same with voters that are fixed by controller.quorum.voters.
func TestStaticVoters(t *testing.T) {
	testMixed(t, true, gregorKind, kafkaKind, gregorKind)
}

func testMixed(t *testing.T, static bool, kinds ...kind) {
	c := newCluster(t, static, kinds)
	c.run(c.members...)
	h := c.churn(quickly)
	h.progress(10)
	h.check()
	for _, k := range []kind{kafkaKind, gregorKind} {
		m := c.lead(k)
		h.progress(10)
		m.kill()
		h.progress(10)
		c.run(m)
		c.caughtUp(m)
		h.check()

		// Once more, and now the other kind leads and this one has lost its log.
		m.kill()
		if err := os.RemoveAll(m.metadataDir()); err != nil {
			t.Fatal(err)
		}
		h.progress(10)
		c.run(m)
		c.caughtUp(m)
		h.check()
	}
	h.finish()
}
