package raft

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"gregor/internal/uuid"
)

// naiveLog is a log as a list of the records' epochs.
type naiveLog struct {
	start  int64
	epochs []int32 // of records start, start+1, ...
}

func (l naiveLog) end() int64 { return l.start + int64(len(l.epochs)) }

// has says whether the record before offset has the epoch.
func (l naiveLog) has(offset int64, epoch int32) bool {
	i := offset - 1 - l.start
	return i >= 0 && i < int64(len(l.epochs)) && l.epochs[i] == epoch
}

func drawLog(t *rapid.T, name string) naiveLog {
	n := rapid.IntRange(0, 12).Draw(t, name+" length")
	l := naiveLog{}
	epoch := int32(1)
	for range n {
		epoch += int32(rapid.IntRange(0, 1).Draw(t, name+" step")) * int32(rapid.IntRange(1, 2).Draw(t, name+" jump"))
		l.epochs = append(l.epochs, epoch)
	}
	return l
}

func viewOf(l naiveLog) logView {
	v := newLogView(LogSummary{Start: l.start, End: l.start}, nil)
	for i, e := range l.epochs {
		v.appended(l.start+int64(i), l.start+int64(i), e)
	}
	return v
}

// A follower that asks, truncates as it is told, and asks again ends at a point where the logs agree, without ever cutting off a
// record that the leader has in the same place with the same epoch and everything before it.
func TestDivergenceEndsWhereTheLogsPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// The logs are those of one quorum: what they share of an epoch is the same, so let them part once.
		common := drawLog(t, "common")
		last := int32(1)
		if n := len(common.epochs); n > 0 {
			last = common.epochs[n-1]
		}
		leader, follower := naiveLog{}, naiveLog{}
		leader.epochs = append(append([]int32(nil), common.epochs...), shifted(drawLog(t, "leader"), last, rapid.Bool().Draw(t, "leader goes on in the epoch"))...)
		follower.epochs = append(append([]int32(nil), common.epochs...), shifted(drawLog(t, "follower"), last+20, false)...)
		lv, fv := viewOf(leader), viewOf(follower)
		for range 50 {
			offset, epoch := fv.end, fv.lastEpoch()
			kind, point := lv.validate(offset, epoch)
			if kind == positionValid && offset <= lv.end {
				if offset > 0 && !leader.has(offset, epoch) {
					t.Fatalf("leader %v takes %d@%d for valid", leader.epochs, offset, epoch)
				}
				if offset < common.end() {
					t.Fatalf("follower %v was cut to %d, the logs agree up to %d", follower.epochs, offset, common.end())
				}
				return
			}
			if kind == positionSnapshot {
				t.Fatal("snapshot without one")
			}
			at := fv.truncationPoint(point)
			if at >= fv.end {
				t.Fatalf("told to truncate %v at %d to %v: no progress", follower.epochs, fv.end, point)
			}
			fv.truncate(at)
		}
		t.Fatal("no end")
	})
}

// shifted raises a log's epochs above last, or lets its first epoch be last.
func shifted(l naiveLog, last int32, join bool) []int32 {
	out := make([]int32, len(l.epochs))
	for i, e := range l.epochs {
		out[i] = e + last
		if join {
			out[i]--
		}
	}
	return out
}

func TestEndForEpoch(t *testing.T) {
	v := viewOf(naiveLog{epochs: []int32{1, 1, 1, 3, 3, 6, 6, 6, 6}})
	f := func(epoch int32, want string) {
		t.Helper()
		if got := v.endForEpoch(epoch).String(); got != want {
			t.Errorf("end for epoch %d = %s, want %s", epoch, got, want)
		}
	}
	f(0, "0@0")
	f(1, "3@1")
	f(2, "3@1")
	f(3, "5@3")
	f(5, "5@3")
	f(6, "9@6")
	f(9, "9@6")
	// Behind a snapshot the epochs before it are the snapshot's.
	v.addSnapshot(OffsetAndEpoch{4, 3})
	v.trim(4)
	f(1, "4@3")
	f(3, "5@3")
	if k, p := v.validate(4, 3); k != positionValid {
		t.Errorf("validate at the start = %v %v", k, p)
	}
	if k, p := v.validate(4, 1); k != positionSnapshot || p != (OffsetAndEpoch{4, 3}) {
		t.Errorf("validate with another epoch at the start = %v %v", k, p)
	}
	if k, _ := v.validate(2, 1); k != positionSnapshot {
		t.Errorf("validate before the start = %v", k)
	}
	// An empty log behind a snapshot has the snapshot's epoch.
	v.reset(OffsetAndEpoch{20, 7}, 1, VoterSet{{ReplicaKey: ReplicaKey{ID: 1}}})
	if got := v.endPoint(); got != (OffsetAndEpoch{20, 7}) {
		t.Errorf("end after reset = %v", got)
	}
	if len(v.snapshots) != 1 || v.lastVersion() != 1 || len(v.lastVoters()) != 1 {
		t.Errorf("after reset: %+v", v)
	}
}

// Voters and versions by offset, as records come, are cut off, and are trimmed.
func TestVotersInForce(t *testing.T) {
	set := func(ids ...int32) VoterSet {
		var s VoterSet
		for _, id := range ids {
			s = append(s, Voter{ReplicaKey: ReplicaKey{ID: id}})
		}
		return s
	}
	v := newLogView(LogSummary{}, set(1))
	v.appended(0, 19, 1)
	at := func(offset int64, want string) {
		t.Helper()
		if got := fmt.Sprint(v.votersAt(offset).IDs(), v.versionAt(offset)); got != want {
			t.Errorf("voters at %d = %s, want %s", offset, got, want)
		}
	}
	at(19, "[1] 0")
	v.control(5, kraftVersionRecord(1))
	v.control(6, votersRecord(set(1, 2)))
	v.control(12, votersRecord(set(1, 2, 3)))
	at(4, "[1] 0")
	at(5, "[1] 1")
	at(6, "[1 2] 1")
	at(19, "[1 2 3] 1")
	v.truncate(12)
	at(19, "[1 2] 1")
	v.control(12, votersRecord(set(2)))
	v.forgetControlBefore(13)
	if len(v.voters) != 1 || v.lastVoters()[0].ID != 2 || v.lastVersion() != 1 {
		t.Errorf("after forgetting: %v %v", v.voters, v.versions)
	}
	if got, ok := v.lastVotersOffset(); !ok || got != 12 {
		t.Errorf("voters' offset %d, %v", got, ok)
	}
}

func TestVoterSet(t *testing.T) {
	dir := func(b byte) uuid.UUID { return uuid.UUID{8: 1, 15: b} }
	voter := func(id int32, d uuid.UUID) Voter {
		return Voter{ReplicaKey: ReplicaKey{id, d}, Endpoints: []Endpoint{{"C", "h", uint16(id)}}, KRaftVersions: KRaftVersions}
	}
	s, err := NewVoterSet([]Voter{voter(3, dir(3)), voter(1, dir(1)), voter(2, uuid.Zero)})
	if err != nil || fmt.Sprint(s.IDs()) != "[1 2 3]" || s.Majority() != 2 {
		t.Fatalf("%v, %v", s, err)
	}
	if _, err := NewVoterSet([]Voter{voter(1, dir(1)), voter(1, dir(2))}); err == nil {
		t.Error("two voters with one id")
	}
	if !s.Has(ReplicaKey{1, dir(1)}) || s.Has(ReplicaKey{1, dir(9)}) || !s.Has(ReplicaKey{2, dir(9)}) || s.Has(ReplicaKey{4, dir(4)}) {
		t.Error("Has")
	}
	if _, ok := s.With(voter(1, dir(9))); ok {
		t.Error("With took an id twice")
	}
	four, ok := s.With(voter(4, dir(4)))
	if !ok || four.Majority() != 3 || len(s) != 3 {
		t.Errorf("With: %v", four)
	}
	if _, ok := s.Without(ReplicaKey{1, dir(9)}); ok {
		t.Error("Without took another directory")
	}
	two, ok := s.Without(ReplicaKey{1, dir(1)})
	if !ok || fmt.Sprint(two.IDs()) != "[2 3]" || len(s) != 3 {
		t.Errorf("Without: %v", two)
	}
	if _, ok := s[:1].Without(ReplicaKey{1, dir(1)}); ok {
		t.Error("Without took the last voter")
	}
	moved := voter(3, dir(3))
	moved.Endpoints = []Endpoint{{"C", "h", 99}}
	u, ok := s.Updated(moved)
	if !ok || u.Equal(s) || !s.Equal(s) {
		t.Errorf("Updated: %v", u)
	}
	if _, ok := s.Updated(voter(3, dir(9))); ok {
		t.Error("Updated took another directory")
	}
	if s.SupportsKRaftVersion(2) || !s.SupportsKRaftVersion(1) {
		t.Error("SupportsKRaftVersion")
	}
	if got := votersFromRecord(votersRecord(s)); !got.Equal(s) {
		t.Errorf("through the record: %v", got)
	}
	if !(VoterSet{s[0]}).IsOnly(s[0].ReplicaKey) || s.IsOnly(s[0].ReplicaKey) {
		t.Error("IsOnly")
	}
}
