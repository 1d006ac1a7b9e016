package client

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// listening adds listeners, so that the member waits for them.
func listening(o *coreOptions) {
	o.OnAssigned, o.OnRevoked, o.OnLost = func([]TopicPartition) {}, func([]TopicPartition) {}, func([]TopicPartition) {}
}

// The ways to the states.
func toJoining(r *coreRig) {
	r.poll(true)
	r.step(eventSubscribe{topics: []string{"t1"}})
	r.state(memberJoining)
}

func toReconciling(r *coreRig) {
	toJoining(r)
	r.beat(give(map[byte][]int32{1: {0, 1}}))
	r.state(memberReconciling)
}

func toStable(r *coreRig) {
	toReconciling(r)
	r.callback(callAssigned)
	// The acknowledgement goes out at once, and with it the member is stable.
	r.beat(nil)
	r.state(memberStable)
}

func toPrepareLeaving(r *coreRig) {
	toStable(r)
	r.step(eventUnsubscribe{newTicket()})
	r.state(memberPrepareLeaving)
}

// Each transition that can come about, by its name, is driven through the core; TestMemberTransitionTable has those that Kafka only
// allows.
func TestMemberTransitions(t *testing.T) {
	t.Parallel()
	for name, drive := range map[string]func(r *coreRig){
		"UNSUBSCRIBED to JOINING": toJoining,
		"JOINING to RECONCILING":  toReconciling,
		"RECONCILING to ACKNOWLEDGING": func(r *coreRig) {
			toReconciling(r)
			r.callback(callAssigned)
		},
		"ACKNOWLEDGING to STABLE": toStable,
		"ACKNOWLEDGING to RECONCILING": func(r *coreRig) {
			toReconciling(r)
			r.advance(5 * time.Second)
			// Another target comes while the first is being taken over.
			r.beat(give(map[byte][]int32{1: {0, 1, 2}}))
			r.callback(callAssigned)
		},
		"STABLE to RECONCILING": func(r *coreRig) {
			toStable(r)
			r.advance(5 * time.Second)
			r.beat(give(map[byte][]int32{1: {1, 2}}))
			if got := r.callback(callRevoked); fmt.Sprint(got) != "[t1-0]" {
				r.t.Errorf("revoked %v", got)
			}
			if got := r.callback(callAssigned); fmt.Sprint(got) != "[t1-2]" {
				r.t.Errorf("assigned %v", got)
			}
		},
		"RECONCILING to RECONCILING": func(r *coreRig) {
			toReconciling(r)
			r.advance(5 * time.Second)
			r.beat(give(map[byte][]int32{1: {3}}))
			r.state(memberReconciling)
		},
		"JOINING to FENCED": func(r *coreRig) {
			toJoining(r)
			r.beat(refuse(UnknownMemberID.Code))
		},
		"STABLE to FENCED": func(r *coreRig) {
			toStable(r)
			r.advance(5 * time.Second)
			r.beat(refuse(fencedMemberEpoch))
			r.state(memberFenced)
			if got := r.callback(callLost); len(got) != 2 {
				r.t.Errorf("lost %v", got)
			}
			r.state(memberJoining)
			if req := r.beat(nil); req.MemberEpoch != epochJoin || len(req.Topics) != 0 || req.Topics == nil || req.MemberID != "me" {
				r.t.Errorf("%+v", req)
			}
		},
		"RECONCILING to FENCED": func(r *coreRig) {
			toReconciling(r)
			r.advance(5 * time.Second)
			r.beat(refuse(fencedMemberEpoch))
		},
		"ACKNOWLEDGING to FENCED": func(r *coreRig) {
			toReconciling(r)
			r.advance(5 * time.Second)
			// A heartbeat is under way while the last listener returns.
			req, id := sent[*kmsg.ConsumerGroupHeartbeatRequest](r)
			r.callback(callAssigned)
			r.state(memberAcknowledging)
			r.answerBeat(id, req, refuse(fencedMemberEpoch))
		},
		"FENCED to JOINING": func(r *coreRig) {
			toJoining(r)
			r.beat(refuse(UnknownMemberID.Code))
			r.state(memberJoining)
		},
		"FENCED to UNSUBSCRIBED": func(r *coreRig) {
			toStable(r)
			r.advance(5 * time.Second)
			r.beat(refuse(fencedMemberEpoch))
			r.state(memberFenced)
			m := r.member()
			r.step(eventUnsubscribe{newTicket()})
			if m.state != memberUnsubscribed || len(r.k.parts) != 0 {
				r.t.Errorf("%v", m.state)
			}
		},
		"STABLE to PREPARE_LEAVING": toPrepareLeaving,
		"JOINING to PREPARE_LEAVING": func(r *coreRig) {
			toJoining(r)
			r.step(eventUnsubscribe{newTicket()})
		},
		"RECONCILING to PREPARE_LEAVING": func(r *coreRig) {
			toReconciling(r)
			r.step(eventUnsubscribe{newTicket()})
		},
		"ACKNOWLEDGING to PREPARE_LEAVING": func(r *coreRig) {
			toReconciling(r)
			r.advance(5 * time.Second)
			r.callback(callAssigned) // with a heartbeat under way
			r.state(memberAcknowledging)
			r.step(eventUnsubscribe{newTicket()})
		},
		"PREPARE_LEAVING to LEAVING": func(r *coreRig) {
			toPrepareLeaving(r)
			r.callback(callRevoked)
		},
		"LEAVING to UNSUBSCRIBED": func(r *coreRig) {
			toPrepareLeaving(r)
			r.callback(callRevoked)
			if req := r.beat(nil); req.MemberEpoch != epochLeave {
				r.t.Errorf("%+v", req)
			}
			if _, ok := taken[effectDone](r, nil); !ok || r.k.member != nil {
				r.t.Error("not done")
			}
		},
		"PREPARE_LEAVING to LEAVING to UNSUBSCRIBED when fenced": func(r *coreRig) {
			toPrepareLeaving(r)
			r.advance(5 * time.Second)
			r.beat(refuse(fencedMemberEpoch))
			notSent[*kmsg.ConsumerGroupHeartbeatRequest](r)
			if _, ok := taken[effectDone](r, nil); !ok {
				r.t.Error("not done")
			}
		},
		"LEAVING to STALE": func(r *coreRig) {
			toStable(r)
			m := r.member()
			r.poll(false)
			r.advance(m.k.o.MaxPollInterval - time.Second)
			for len(r.effects) > 0 {
				r.effects = nil
			}
			m.request = 0
			r.advance(2 * time.Second)
			if req, _ := sent[*kmsg.ConsumerGroupHeartbeatRequest](r); req.MemberEpoch != epochLeave {
				r.t.Errorf("%+v", req)
			}
			r.state(memberStale)
		},
		"STALE to JOINING": func(r *coreRig) {
			toStable(r)
			r.poll(false)
			r.effects = nil
			r.advance(r.k.o.MaxPollInterval + time.Second)
			r.state(memberStale)
			r.poll(true)
			r.state(memberStale)
			r.callback(callLost)
			r.state(memberJoining)
		},
		"JOINING to FATAL": func(r *coreRig) {
			toJoining(r)
			r.beat(refuse(groupAuthorizationFailed))
			if e, ok := taken[effectError](r, nil); !ok || !e.fatal {
				r.t.Errorf("%+v", e)
			}
		},
		"STABLE to FATAL": func(r *coreRig) {
			toStable(r)
			r.advance(5 * time.Second)
			r.beat(refuse(FencedInstanceID.Code))
			r.callback(callLost)
		},
		"RECONCILING to FATAL": func(r *coreRig) {
			toReconciling(r)
			r.advance(5 * time.Second)
			r.beat(refuse(unreleasedInstanceID))
		},
		"ACKNOWLEDGING to FATAL": func(r *coreRig) {
			toReconciling(r)
			r.advance(5 * time.Second)
			req, id := sent[*kmsg.ConsumerGroupHeartbeatRequest](r)
			r.callback(callAssigned)
			r.answerBeat(id, req, refuse(unsupportedAssignor))
		},
		"PREPARE_LEAVING to FATAL": func(r *coreRig) {
			toPrepareLeaving(r)
			r.advance(5 * time.Second)
			r.beat(refuse(groupMaxSizeReached))
			if _, ok := taken[effectDone](r, nil); !ok {
				r.t.Error("not done")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newCoreRig(t, listening)
			drive(r)
			for _, want := range strings.Split(strings.TrimSuffix(name, " when fenced"), " to ")[1:] {
				if !slices.ContainsFunc(r.states, func(s string) bool { return strings.HasSuffix(s, " to "+want) }) {
					t.Errorf("went %q", r.states)
				}
			}
			if names := strings.Split(name, " to "); len(names) == 2 && !slices.Contains(r.states, name) {
				t.Errorf("went %q", r.states)
			}
			if e, ok := taken(r, func(e effectError) bool { return strings.Contains(e.err.Error(), "can't become") }); ok {
				t.Error(e.err)
			}
		})
	}
}

// Transitions that aren't Kafka's are refused, and all others are made.
func TestMemberTransitionTable(t *testing.T) {
	t.Parallel()
	n := 0
	for from := memberUnsubscribed; from <= memberFatal; from++ {
		for to := memberUnsubscribed; to <= memberFatal; to++ {
			m := newConsumerMember(newCoreRig(t).k)
			m.state = from
			ok := m.to(to)
			if ok != slices.Contains(memberTransitions[to], from) || (m.state == to) != (ok || from == to) {
				t.Errorf("%v to %v: %v", from, to, ok)
			}
			if ok {
				n++
			}
		}
	}
	if n != 34 {
		t.Errorf("%d transitions", n)
	}
}

// A heartbeat says only what has changed since the last one, and everything when joining.
func TestHeartbeatSaysWhatChanged(t *testing.T) {
	t.Parallel()
	r := newCoreRig(t, func(o *coreOptions) {
		o.InstanceID, o.Rack, o.ServerAssignor = "static", "rack", "range"
	})
	toJoining(r)
	req := r.beat(give(map[byte][]int32{1: {0, 1}}))
	if req.MemberEpoch != 0 || *req.InstanceID != "static" || *req.RackID != "rack" || *req.ServerAssignor != "range" ||
		req.RebalanceTimeoutMillis != 300_000 || !slices.Equal(req.SubscribedTopicNames, []string{"t1"}) || req.Topics == nil || len(req.Topics) != 0 {
		t.Errorf("joins with %+v", req)
	}
	// Nobody listens, so the assignment is taken over at once.
	req = r.beat(nil)
	if req.MemberEpoch != 1 || req.RackID != nil || req.ServerAssignor != nil || req.RebalanceTimeoutMillis != -1 || req.SubscribedTopicNames != nil ||
		len(req.Topics) != 1 || req.Topics[0].TopicID != topicID(1) || !slices.Equal(req.Topics[0].Partitions, []int32{0, 1}) {
		t.Errorf("acknowledges with %+v", req)
	}
	r.advance(4 * time.Second)
	notSent[*kmsg.ConsumerGroupHeartbeatRequest](r)
	r.advance(time.Second)
	if req = r.beat(nil); req.Topics != nil || req.SubscribedTopicNames != nil || req.SubscribedTopicRegex != nil || *req.InstanceID != "static" {
		t.Errorf("says %+v", req)
	}
	r.step(eventSubscribe{topics: []string{"t2", "t1"}})
	if req = r.beat(refuse(15)); !slices.Equal(req.SubscribedTopicNames, []string{"t1", "t2"}) || req.Topics != nil {
		t.Errorf("says %+v", req)
	}
	// After a failure all is said again, after a pause.
	r.step()
	notSent[*kmsg.ConsumerGroupHeartbeatRequest](r)
	r.advance(200 * time.Millisecond)
	if req = r.beat(nil); req.Topics == nil || req.SubscribedTopicNames == nil || req.RebalanceTimeoutMillis < 0 {
		t.Errorf("says %+v", req)
	}
	// A static member says that it comes back.
	r.step(eventUnsubscribe{newTicket()})
	if req = r.beat(nil); req.MemberEpoch != epochLeaveStatic {
		t.Errorf("leaves with %+v", req)
	}
}

// The server's expression is sent, and taken back with an empty one.
func TestPatternIsSentAndTakenBack(t *testing.T) {
	t.Parallel()
	r := newCoreRig(t)
	r.poll(true)
	r.step(eventSubscribe{pattern: "t.*"})
	if req := r.beat(give(nil)); *req.SubscribedTopicRegex != "t.*" || len(req.SubscribedTopicNames) != 0 {
		t.Errorf("%+v", req)
	}
	r.beat(nil)
	r.step(eventSubscribe{topics: []string{"t1"}})
	if req := r.beat(nil); req.SubscribedTopicRegex == nil || *req.SubscribedTopicRegex != "" || len(req.SubscribedTopicNames) != 1 {
		t.Errorf("%+v", req)
	}
}

// How a consumer closes decides what the group hears.
func TestLeaveOrRemain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		instance string
		how      Leave
		epoch    int32 // 0: nothing is said
	}{
		{"", LeaveDefault, -1}, {"", LeaveGroup, -1}, {"", RemainInGroup, 0},
		{"i", LeaveDefault, -2}, {"i", LeaveGroup, -1}, {"i", RemainInGroup, -2},
	} {
		r := newCoreRig(t, func(o *coreOptions) { o.InstanceID = c.instance })
		toJoining(r)
		r.beat(give(map[byte][]int32{1: {0}}))
		r.beat(nil)
		r.state(memberStable)
		r.step(eventClose{newTicket(), c.how})
		if c.epoch == 0 {
			notSent[*kmsg.ConsumerGroupHeartbeatRequest](r)
		} else if req := r.beat(nil); req.MemberEpoch != c.epoch {
			t.Errorf("%+v: epoch %d", c, req.MemberEpoch)
		}
		if _, ok := taken[effectDone](r, nil); !ok {
			t.Errorf("%+v: not done", c)
		}
	}
}

// What was processed is committed, then the listener is told, and only then are others' partitions taken over.
func TestCommitThenRevokeThenAssign(t *testing.T) {
	t.Parallel()
	r := newCoreRig(t, listening, func(o *coreOptions) { o.AutoCommit = time.Minute })
	toStable(r)
	p := r.k.parts[TopicPartition{"t1", 0}]
	r.step(eventPolled{polling: false, at: r.now, positions: []consumedPosition{{p.tp, p.gen, 130, 5}}})
	r.advance(5 * time.Second)
	r.beat(give(map[byte][]int32{1: {1, 2}}))
	// Records of the partition may still be in the caller's hands.
	notSent[*kmsg.OffsetCommitRequest](r)
	if _, ok := taken[effectCallback](r, nil); ok {
		t.Fatal("the listener was called while the caller was away")
	}
	if e, ok := taken[effectPurge](r, nil); !ok || e.tps[0] != p.tp {
		t.Fatalf("what is buffered stays: %+v", e)
	}
	r.poll(true)
	req, id := sent[*kmsg.OffsetCommitRequest](r)
	if o := req.Topics[0].Partitions; len(o) != 1 || o[0].Offset != 130 || o[0].LeaderEpoch != 5 || req.Generation != 1 || req.MemberID != "me" {
		t.Errorf("%+v", req)
	}
	if _, ok := taken[effectCallback](r, nil); ok {
		t.Fatal("the listener was called before the commit")
	}
	// The epoch has moved on: tried again.
	resp := kmsg.NewPtrOffsetCommitResponse()
	resp.Topics = []kmsg.OffsetCommitResponseTopic{{Topic: "t1", Partitions: []kmsg.OffsetCommitResponseTopicPartition{{ErrorCode: staleMemberEpoch}}}}
	r.answer(id, resp)
	r.advance(time.Second)
	_, id = sent[*kmsg.OffsetCommitRequest](r)
	r.answer(id, kmsg.NewPtrOffsetCommitResponse())
	if c, ok := taken(r, func(c effectCallback) bool { return c.kind == callAssigned }); ok {
		t.Fatalf("assigned before revoked: %+v", c)
	}
	if got := r.callback(callRevoked); fmt.Sprint(got) != "[t1-0]" {
		t.Errorf("%v", got)
	}
	if got := r.callback(callAssigned); fmt.Sprint(got) != "[t1-2]" {
		t.Errorf("%v", got)
	}
	if req := r.beat(nil); len(req.Topics) != 1 || !slices.Equal(req.Topics[0].Partitions, []int32{1, 2}) {
		t.Errorf("%+v", req)
	}
	r.state(memberStable)
}

// Topics whose names aren't known yet are waited for, and the rest is taken over meanwhile.
func TestUnknownTopicIDs(t *testing.T) {
	t.Parallel()
	r := newCoreRig(t)
	toJoining(r)
	r.beat(give(map[byte][]int32{1: {0}, 9: {0}}))
	if req := r.beat(nil); len(req.Topics) != 1 || req.Topics[0].TopicID != topicID(1) {
		t.Errorf("%+v", req)
	}
	// It says so once, and then waits.
	r.state(memberReconciling)
	notSent[*kmsg.ConsumerGroupHeartbeatRequest](r)
	r.advance(5 * time.Second)
	r.beat(give(map[byte][]int32{1: {0}, 2: {3}}))
	for r.member().state != memberStable {
		r.beat(nil)
	}
	if got := fmt.Sprint(r.k.all()); got != "[t1-0 t2-3]" {
		t.Error(got)
	}
}
