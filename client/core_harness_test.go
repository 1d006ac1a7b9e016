package client

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
)

// coreRig drives a consumer's core in virtual time.
type coreRig struct {
	t       *testing.T
	k       *core
	now     time.Time
	effects []any // not yet looked at
	wake    time.Time
	states  []string // "X to Y" of a member
	// leader of a partition, if it isn't broker 1; silent leaves everything to the test.
	leader func(partition int32) int32
	silent bool
}

// stateLog hears of a member's transitions.
type stateLog struct {
	slog.Handler
	r *coreRig
}

func (l stateLog) Enabled(context.Context, slog.Level) bool { return true }
func (l stateLog) Handle(_ context.Context, rec slog.Record) error {
	if rec.Message == "member" {
		at := map[string]string{}
		rec.Attrs(func(a slog.Attr) bool { at[a.Key] = a.Value.String(); return true })
		l.r.states = append(l.r.states, at["from"]+" to "+at["to"])
	}
	return nil
}

func newCoreRig(t *testing.T, change ...func(*coreOptions)) *coreRig {
	r := &coreRig{t: t, now: time.Unix(1_000_000, 0)}
	o := &coreOptions{
		ConsumerOptions: ConsumerOptions{Group: "g", Protocol: ConsumerProtocol, AutoCommit: -1, Reset: ResetEarliest},
		timeout:         time.Minute, requestTimeout: 30 * time.Second, backoffLow: 100 * time.Millisecond, backoffHigh: time.Second,
		metadataMaxAge: 5 * time.Minute,
	}
	o.setDefaults()
	for _, f := range change {
		f(o)
	}
	r.k = newCore(o, slog.New(stateLog{slog.DiscardHandler, r}), func() float64 { return 0.5 }, func() string { return "me" })
	return r
}

// step gives the core events; at the same time everything that isn't about the group is answered.
func (r *coreRig) step(events ...any) {
	r.t.Helper()
	effects, wake := r.k.step(r.now, events...)
	r.wake = wake
	for _, e := range effects {
		if s, ok := e.(effectSend); ok && !r.silent {
			if resp := r.routine(s.req); resp != nil {
				defer r.step(eventResponse{s.id, resp, nil})
				continue
			}
		}
		r.effects = append(r.effects, e)
	}
}

// topicID is the id of a topic of the rig's cluster: "t1" has partitions 0 to 3.
func topicID(n byte) UUID { return UUID{15: n + 10} }

// routine answers what every consumer asks.
func (r *coreRig) routine(req kmsg.Request) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.MetadataRequest:
		resp := kmsg.NewPtrMetadataResponse()
		for n := byte(1); n <= 3; n++ {
			name := fmt.Sprintf("t%d", n)
			t := kmsg.MetadataResponseTopic{Topic: &name, TopicID: topicID(n)}
			for p := range int32(4) {
				leader := int32(1)
				if r.leader != nil {
					leader = r.leader(p)
				}
				t.Partitions = append(t.Partitions, kmsg.MetadataResponseTopicPartition{Partition: p, Leader: leader, LeaderEpoch: 5})
			}
			resp.Topics = append(resp.Topics, t)
		}
		return resp
	case *kmsg.FindCoordinatorRequest:
		return &kmsg.FindCoordinatorResponse{Version: 4, Coordinators: []kmsg.FindCoordinatorResponseCoordinator{{Key: "g", NodeID: 1, Host: "a", Port: 1}}}
	case *kmsg.OffsetFetchRequest:
		resp := kmsg.NewPtrOffsetFetchResponse()
		g := kmsg.OffsetFetchResponseGroup{Group: "g"}
		for _, t := range req.Groups[0].Topics {
			rt := kmsg.OffsetFetchResponseGroupTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				rt.Partitions = append(rt.Partitions, kmsg.OffsetFetchResponseGroupTopicPartition{Partition: p, Offset: 100, LeaderEpoch: -1})
			}
			g.Topics = append(g.Topics, rt)
		}
		resp.Groups = append(resp.Groups, g)
		return resp
	}
	return nil
}

// advance lets time pass.
func (r *coreRig) advance(d time.Duration) {
	r.t.Helper()
	r.now = r.now.Add(d)
	r.step()
}

// taken takes the first effect of a kind.
func taken[E any](r *coreRig, ok func(E) bool) (E, bool) {
	for i, e := range r.effects {
		if x, is := e.(E); is && (ok == nil || ok(x)) {
			r.effects = slices.Delete(r.effects, i, i+1)
			return x, true
		}
	}
	var none E
	return none, false
}

// sent takes the first request of a kind that was sent.
func sent[R kmsg.Request](r *coreRig) (req R, id uint64) {
	r.t.Helper()
	s, ok := taken(r, func(s effectSend) bool { _, is := s.req.(R); return is })
	if !ok {
		r.t.Fatalf("no %v was sent", reflect.TypeFor[R]())
	}
	return s.req.(R), s.id
}

func notSent[R kmsg.Request](r *coreRig) {
	r.t.Helper()
	if s, ok := taken(r, func(s effectSend) bool { _, is := s.req.(R); return is }); ok {
		r.t.Fatalf("%+v was sent", s.req)
	}
}

func (r *coreRig) answer(id uint64, resp kmsg.Response) {
	r.t.Helper()
	r.step(eventResponse{id, resp, nil})
}

// poll has the caller come to Poll, stay there or go.
func (r *coreRig) poll(stay bool) {
	r.t.Helper()
	r.step(eventPolled{polling: true, at: r.now})
	if !stay {
		r.step(eventPolled{polling: false, at: r.now})
	}
}

// callback answers a call of a listener.
func (r *coreRig) callback(kind callbackKind) []TopicPartition {
	r.t.Helper()
	c, ok := taken(r, func(c effectCallback) bool { return c.kind == kind })
	if !ok {
		r.t.Fatalf("no callback of kind %d", kind)
	}
	r.step(eventCallbackDone{id: c.id})
	return c.tps
}

func (r *coreRig) member() *consumerMember { return r.k.member.(*consumerMember) }

func (r *coreRig) state(want memberState) {
	r.t.Helper()
	if got := r.member().state; got != want {
		r.t.Fatalf("state %v after %q, want %v", got, r.states, want)
	}
}

// beat takes a heartbeat that was sent and answers it.
func (r *coreRig) beat(change func(*kmsg.ConsumerGroupHeartbeatResponse)) *kmsg.ConsumerGroupHeartbeatRequest {
	r.t.Helper()
	req, id := sent[*kmsg.ConsumerGroupHeartbeatRequest](r)
	r.answerBeat(id, req, change)
	return req
}

func (r *coreRig) answerBeat(id uint64, req *kmsg.ConsumerGroupHeartbeatRequest, change func(*kmsg.ConsumerGroupHeartbeatResponse)) {
	r.t.Helper()
	resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
	resp.MemberID, resp.MemberEpoch, resp.HeartbeatIntervalMillis = &req.MemberID, max(1, req.MemberEpoch), 5000
	if change != nil {
		change(resp)
	}
	r.answer(id, resp)
}

// give assigns partitions of topics 1 to 3.
func give(parts map[byte][]int32) func(*kmsg.ConsumerGroupHeartbeatResponse) {
	return func(r *kmsg.ConsumerGroupHeartbeatResponse) {
		r.Assignment = &kmsg.ConsumerGroupHeartbeatResponseAssignment{}
		for n, ps := range parts {
			r.Assignment.Topics = append(r.Assignment.Topics, kmsg.ConsumerGroupHeartbeatResponseAssignmentTopic{TopicID: topicID(n), Partitions: ps})
		}
	}
}

func refuse(code int16) func(*kmsg.ConsumerGroupHeartbeatResponse) {
	return func(r *kmsg.ConsumerGroupHeartbeatResponse) { r.ErrorCode = code }
}

// records makes a batch of n records from an offset on.
func records(t *testing.T, from int64, n int) []byte {
	t.Helper()
	b := record.NewBuilder(record.BuilderOptions{BaseOffset: from, LeaderEpoch: 5}.NoProducer())
	for i := range n {
		b.Append(1000, nil, fmt.Appendf(nil, "record %d", from+int64(i)), nil)
	}
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return out
}
