package client

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestJudgeRestart(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	// voters makes a quorum led by node 1; behind is for how long the others haven't caught up.
	voters := func(behind ...time.Duration) *Quorum {
		q := &Quorum{LeaderID: 1, Voters: []QuorumReplica{{ID: 1, LogEndOffset: 100, LastFetch: now, LastCaughtUp: now}}}
		for i, d := range behind {
			v := QuorumReplica{ID: int32(i + 2), LogEndOffset: 99, LastCaughtUp: now.Add(-d)}
			if d < 0 {
				v.LastCaughtUp = time.Time{}
			}
			q.Voters = append(q.Voters, v)
		}
		return q
	}
	brokers := func(ids ...int32) (out []ClusterBroker) {
		for _, id := range ids {
			out = append(out, ClusterBroker{Broker: Broker{ID: id}})
		}
		return out
	}
	topic := func(replicas, isr []int32) []Topic {
		return []Topic{{Name: "t", Partitions: []Partition{{ID: 0, Replicas: replicas, ISR: isr}}}}
	}
	s := func(ids ...int32) []int32 { return ids }
	f := func(what string, node int32, st restartState, want string) {
		t.Helper()
		a, err := judgeRestart(node, &st)
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case a.Safe():
			got = "safe"
		default:
			got = strings.TrimPrefix(fmt.Sprint(a.Partitions)+" "+a.Quorum, "[] ")
		}
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	q := voters()
	q.Voters[0].ID, q.LeaderID = 100, 100 // a quorum apart from the brokers
	one := map[string]int{"t": 1}
	two := map[string]int{"t": 2}
	f("three replicas in sync, two needed", 1, restartState{brokers(1, 2, 3), q, topic(s(1, 2, 3), s(1, 2, 3)), two}, "safe")
	f("two in sync, two needed", 1, restartState{brokers(1, 2, 3), q, topic(s(1, 2, 3), s(1, 2)), two},
		"[t-0: 1 of the in-sync replicas [1 2] would be left, min.insync.replicas is 2] ")
	f("the third is not in sync, so it is not missed", 3, restartState{brokers(1, 2, 3), q, topic(s(1, 2, 3), s(1, 2)), two}, "safe")
	f("a broker without partitions", 4, restartState{brokers(1, 2, 3, 4), q, topic(s(1, 2, 3), s(1, 2)), two}, "safe")
	f("two in sync, one needed", 1, restartState{brokers(1, 2), q, topic(s(1, 2), s(2, 1)), one}, "safe")
	f("the only replica in sync", 2, restartState{brokers(1, 2), q, topic(s(1, 2), s(2)), one}, "[t-0: the node has the only in-sync replica] ")
	f("one replica", 1, restartState{brokers(1), q, topic(s(1), s(1)), two}, "[t-0: the node has the only in-sync replica] ")
	f("fewer replicas than min.insync.replicas", 1, restartState{brokers(1, 2), q, topic(s(1, 2), s(1, 2)), map[string]int{"t": 3}},
		"[t-0: 1 of the in-sync replicas [1 2] would be left, min.insync.replicas is 3] ")
	f("nobody's node", 9, restartState{brokers(1), q, nil, nil}, "node 9 is neither a broker nor a voter of the quorum")
	f("no partition, and a lone voter", 100, restartState{brokers(1), q, nil, nil}, "of 1 voters 0 would be left that have caught up, a majority is 1")

	f("three voters that have caught up", 1, restartState{nil, voters(time.Second, time.Second), nil, nil}, "safe")
	f("a follower of three", 2, restartState{nil, voters(time.Second, time.Second), nil, nil}, "safe")
	f("the last but one of three", 2, restartState{nil, voters(time.Second, time.Minute), nil, nil}, "of 3 voters 1 would be left that have caught up, a majority is 2; behind are [3]")
	f("the voter that is behind can go", 3, restartState{nil, voters(time.Second, time.Minute), nil, nil}, "safe")
	f("a voter that never fetched", 1, restartState{nil, voters(time.Second, -1), nil, nil}, "of 3 voters 1 would be left that have caught up, a majority is 2; behind are [3]")
	f("five voters, one behind", 1, restartState{nil, voters(0, 0, 0, time.Hour), nil, nil}, "safe")
	f("five voters, two behind", 1, restartState{nil, voters(0, 0, time.Hour, time.Hour), nil, nil}, "of 5 voters 2 would be left that have caught up, a majority is 3; behind are [4 5]")
	f("two voters", 2, restartState{nil, voters(0), nil, nil}, "of 2 voters 1 would be left that have caught up, a majority is 2")
	led := voters(0, 0)
	led.LeaderID = 7
	f("a leader that is being removed", 2, restartState{nil, led, nil, nil}, "the quorum's leader, node 7, is being removed")
}

func TestSafeToRestartLive(t *testing.T) {
	c := liveClient(t)
	if _, err := c.CreateTopics(t.Context(), []TopicSpec{{Name: "safe-to-restart", Partitions: 2, ReplicationFactor: 1}}, false); err != nil {
		t.Fatal(err)
	}
	b, err := c.Brokers(t.Context())
	if err != nil || len(b) == 0 {
		t.Fatalf("%v %v", b, err)
	}
	a, err := c.SafeToRestart(t.Context(), b[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if !a.Broker || len(b) == 1 && (a.Safe() || len(a.Partitions) != 2 || !a.Partitions[0].Offline || a.Quorum == "") {
		t.Errorf("%+v", a)
	}
}
