package client

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// step names of the trace below; each line is what was done, and what the core wanted then.
func TestGroupCore(t *testing.T) {
	t.Parallel()
	tps := func(s string) (out []TopicPartition) {
		for i := range s {
			out = append(out, TopicPartition{"t", int32(s[i] - '0')})
		}
		return out
	}
	show := func(e groupEffects) string {
		var b strings.Builder
		list := func(name string, tps []TopicPartition) {
			if len(tps) > 0 {
				fmt.Fprintf(&b, "%s %v ", name, tps)
			}
		}
		list("revoke", e.revoke)
		list("lost", e.lost)
		list("assign", e.assign)
		for name, on := range map[string]bool{"join ": e.join, "sync ": e.sync, "heartbeat ": e.heartbeat} {
			if on {
				b.WriteString(name)
			}
		}
		if e.fatal != nil {
			fmt.Fprintf(&b, "fatal %v", e.fatal)
		}
		return strings.TrimSpace(b.String())
	}
	start := time.Unix(1000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	f := func(name string, e groupEffects, want string) {
		t.Helper()
		if got := show(e); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	newCore := func(a Assignor) *groupCore {
		return &groupCore{assignors: []Assignor{a}, session: 10 * time.Second, heartbeat: 3 * time.Second, generation: -1, subscribed: []string{"t"}}
	}

	g := newCore(RangeAssignor{})
	f("first tick joins", g.tick(at(0)), "join")
	f("while joining nothing else", g.tick(at(5)), "")
	f("id given first", g.joined(at(5), "m", 0, "", MemberIDRequired, time.Second), "")
	f("joins again at once", g.tick(at(5)), "join")
	if g.memberID != "m" {
		t.Errorf("member id %q", g.memberID)
	}
	f("joined", g.joined(at(6), "m", 1, "range", nil, time.Second), "sync")
	f("synced", g.synced(at(6), tps("12"), nil, time.Second), "assign [t-1 t-2]")
	f("too early for a heartbeat", g.tick(at(8)), "")
	f("heartbeat", g.tick(at(9)), "heartbeat")
	f("one at a time", g.tick(at(12)), "")
	f("answered", g.beat(at(12), 1, nil, time.Second), "")
	f("next heartbeat", g.tick(at(12)), "heartbeat")
	f("connection lost", g.beat(at(13), 1, &errConn{"read", "x", errTimeout}, time.Second), "")
	f("tried again sooner", g.tick(at(14)), "heartbeat")
	f("rebalance", g.beat(at(14), 1, RebalanceInProgress, time.Second), "")
	f("eager: all revoked, then joined", g.tick(at(14)), "revoke [t-1 t-2] join")
	f("late heartbeat answer", g.beat(at(14), 1, UnknownMemberID, time.Second), "")
	f("joined 2", g.joined(at(15), "m", 2, "range", nil, time.Second), "sync")
	f("rebalance during sync", g.synced(at(15), nil, RebalanceInProgress, time.Second), "")
	f("joins again", g.tick(at(15)), "join")
	f("joined 3", g.joined(at(15), "m", 3, "range", nil, time.Second), "sync")
	f("synced 3", g.synced(at(15), tps("1"), nil, time.Second), "assign [t-1]")
	f("kicked out", g.beat(at(16), 3, UnknownMemberID, time.Second), "lost [t-1]")
	if g.memberID != "" {
		t.Error("old member id kept")
	}
	f("begins anew", g.tick(at(16)), "join")
	f("coordinator loading", g.joined(at(17), "", 0, "", errorFor(14), time.Second), "")
	f("waits", g.tick(at(17)), "")
	f("then tries", g.tick(at(18)), "join")
	f("refused", g.joined(at(18), "", 0, "", errorFor(30), time.Second), "fatal GROUP_AUTHORIZATION_FAILED")
	f("over", g.tick(at(100)), "")

	g = newCore(CooperativeStickyAssignor{})
	f("join", g.tick(at(0)), "join")
	f("joined", g.joined(at(0), "m", 1, "cooperative-sticky", nil, time.Second), "sync")
	f("synced", g.synced(at(0), tps("0123"), nil, time.Second), "assign [t-0 t-1 t-2 t-3]")
	f("heartbeat", g.tick(at(3)), "heartbeat")
	f("rebalance", g.beat(at(3), 1, RebalanceInProgress, time.Second), "")
	f("keeps all while joining", g.tick(at(3)), "join")
	f("joined 2", g.joined(at(4), "m", 2, "cooperative-sticky", nil, time.Second), "sync")
	f("gives up what went", g.synced(at(4), tps("01"), nil, time.Second), "revoke [t-2 t-3]")
	f("and joins once more", g.tick(at(4)), "join")
	f("joined 3", g.joined(at(4), "m", 3, "cooperative-sticky", nil, time.Second), "sync")
	f("unchanged", g.synced(at(4), tps("01"), nil, time.Second), "")
	f("no rejoin", g.tick(at(5)), "")
	f("session over without an answer", g.tick(at(20)), "lost [t-0 t-1] join")
	f("joined 4", g.joined(at(20), "m", 4, "cooperative-sticky", nil, time.Second), "sync")
	f("synced 4", g.synced(at(20), tps("0"), nil, time.Second), "assign [t-0]")
	g.subscribe([]string{"t", "u"})
	f("other topics", g.tick(at(21)), "join")
	f("leave", g.leave(), "revoke [t-0]")
}
