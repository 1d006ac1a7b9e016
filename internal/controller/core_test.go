package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

func names(records []message.Versioned) []string {
	var out []string
	for _, r := range records {
		out = append(out, fmt.Sprintf("%s v%d", r.Message.MessageName(), r.Version))
	}
	return out
}

// TestActivationWritesWhatKafkaWrites: the records at the start of testdata/golden/dump-log/single-clean.
func TestActivationWritesWhatKafkaWrites(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Registration.Incarnation = uuid.UUID{1}
		o.Registration.Listeners = []kmsg.ControllerRegistrationRequestListener{{Name: "CONTROLLER", Host: "localhost", Port: 9093}}
	})
	w.lead()
	w.pass(0)
	want := []string{"BeginTransactionRecord v0", "FeatureLevelRecord v0", "FeatureLevelRecord v0", "ConfigRecord v0", "EndTransactionRecord v0"}
	if got := names(w.log.batches[1].records); !slices.Equal(got, want) {
		t.Errorf("bootstrap: %v, want %v", got, want)
	}
	r := w.log.batches[1].records[3].Message.(*message.ConfigRecord)
	if r.Name != "min.insync.replicas" || *r.Value != "1" || r.ResourceType != kindBroker || r.ResourceName != "" {
		t.Errorf("config record %+v", r)
	}
	if got := names(w.log.batches[2].records); !slices.Equal(got, []string{"RegisterControllerRecord v0"}) {
		t.Errorf("then %v", got)
	}
	ask[*kmsg.BrokerRegistrationResponse](w, brokerRequest(1, ""))
	hb := kmsg.NewPtrBrokerHeartbeatRequest()
	hb.BrokerID, hb.BrokerEpoch, hb.CurrentMetadataOffset, hb.CordonedLogDirs = 1, w.log.end-1, w.log.end-1, [][16]byte{}
	ask[*kmsg.BrokerHeartbeatResponse](w, hb)
	if got := names(w.log.batches[3].records); !slices.Equal(got, []string{"RegisterBrokerRecord v4"}) {
		t.Errorf("then %v", got)
	}
	if got := names(w.log.batches[4].records); !slices.Equal(got, []string{"BrokerRegistrationChangeRecord v0", "BrokerRegistrationChangeRecord v3"}) {
		t.Errorf("then %v", got)
	}
	w.create("t", 1, 1)
	if got := names(w.log.batches[5].records); !slices.Equal(got, []string{"TopicRecord v0", "PartitionRecord v2"}) {
		t.Errorf("then %v", got)
	}
}

// TestRecordVersionsFollowMetadataVersion writes every record that has versions at each level.
func TestRecordVersionsFollowMetadataVersion(t *testing.T) {
	for mv := int16(7); mv <= 33; mv++ {
		w := newWorld(t, func(o *Options) { o.Bootstrap = bootstrap(mv, 0) })
		w.lead()
		w.up(1, 2)
		w.create("t", 2, 2)
		w.heartbeat(2, true, false)
		w.heartbeat(1, false, true)
		if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
			t.Errorf("metadata.version %d: replayed state differs:\n%s", mv, diff(got, want))
		}
		for _, b := range w.log.batches {
			for _, v := range b.records {
				want := int16(0)
				switch v.Message.(type) {
				case *message.RegisterBrokerRecord:
					want = 1
					if mv >= 8 {
						want = 2
					}
					if mv >= 17 {
						want = 3
					}
					if mv >= 30 {
						want = 4
					}
				case *message.PartitionRecord, *message.PartitionChangeRecord:
					if mv >= 17 {
						want = 1
					}
					if mv >= 23 {
						want = 2
					}
				case *message.BrokerRegistrationChangeRecord:
					want = v.Version
				case *message.BeginTransactionRecord:
					if mv < 13 {
						t.Errorf("metadata.version %d: a transaction", mv)
					}
				}
				if v.Version != want {
					t.Errorf("metadata.version %d: %s v%d, want v%d", mv, v.Message.MessageName(), v.Version, want)
				}
			}
		}
	}
}

// TestReplyMeansCommitted: no answer before its records, and all that it read, are committed.
func TestReplyMeansCommitted(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1)
	w.hold = true
	var answers []string
	note := func(name string) Reply {
		return func(resp kmsg.Response, err error) { answers = append(answers, fmt.Sprintf("%s %v", name, err)) }
	}
	w.send(createRequest("a", 1, 1), note("a"))
	w.send(createRequest("a", 1, 1), note("a again")) // reads what isn't committed
	w.send(createRequest("b", 1, 1), note("b"))
	if len(answers) != 0 {
		t.Fatalf("answered before commit: %v", answers)
	}
	w.commit()
	if want := []string{"a <nil>", "a again <nil>", "b <nil>"}; !slices.Equal(answers, want) {
		t.Fatalf("answers %v, want %v", answers, want)
	}
}

// TestLostLeadershipLeavesNoTrace: what wasn't committed is gone from memory, and who waited is told to ask elsewhere.
func TestLostLeadershipLeavesNoTrace(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1, 2)
	w.create("kept", 2, 2)
	before := w.core.Dump()
	w.hold = true
	var codes []int16
	w.send(createRequest("gone", 2, 2), func(resp kmsg.Response, err error) {
		codes = append(codes, api.CodeOf(err), resp.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode)
	})
	del := kmsg.NewPtrDeleteTopicsRequest()
	name := "kept"
	del.Topics = append(del.Topics, kmsg.DeleteTopicsRequestTopic{Topic: &name})
	w.send(del, func(resp kmsg.Response, err error) { codes = append(codes, api.CodeOf(err)) })
	w.send(brokerRequest(3, ""), func(resp kmsg.Response, err error) { codes = append(codes, api.CodeOf(err)) })
	if w.core.Dump() == before {
		t.Fatal("the requests changed nothing")
	}
	w.lose()
	if after := w.core.Dump(); after != before {
		t.Errorf("state differs:\n%s", diff(before, after))
	}
	if want := []int16{41, 41, 41, 41}; !slices.Equal(codes, want) {
		t.Errorf("codes %v, want %v", codes, want)
	}
	if n := w.core.registry.Len(); n != 0 {
		t.Errorf("%d snapshots are left on a standby", n)
	}
	// It goes on as a standby and as the leader again.
	w.hold = false
	w.lead()
	w.create("gone", 2, 2)
	if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
		t.Errorf("replayed state differs:\n%s", diff(got, want))
	}
}

// TestLeadingAgainIsLosingFirst: who hears of a later epoch of its own has lost the one before, with all that wasn't committed.
func TestLeadingAgainIsLosingFirst(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1, 2)
	w.hold = true
	var codes []int16
	w.send(createRequest("gone", 2, 2), func(resp kmsg.Response, err error) { codes = append(codes, api.CodeOf(err)) })
	w.log.cut()
	w.hold = false
	w.lead()
	if want := []int16{41}; !slices.Equal(codes, want) {
		t.Errorf("codes %v, want %v", codes, want)
	}
	w.create("gone", 2, 2)
	if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
		t.Errorf("replayed state differs:\n%s", diff(got, want))
	}
}

// TestBootstrapIsWrittenAgainWhenItWasLost: leadership lost before the first transaction was committed, or with only its
// beginning committed.
func TestBootstrapIsWrittenAgainWhenItWasLost(t *testing.T) {
	w := newWorld(t, nil)
	w.hold = true
	w.lead()
	w.lose()
	w.hold = false
	w.lead()
	if got := w.core.features.level(); got != 33 {
		t.Fatalf("metadata.version %d", got)
	}

	w = newWorld(t, nil)
	begin, level := message.NewBeginTransactionRecord(), message.NewFeatureLevelRecord()
	level.Name, level.FeatureLevel = "metadata.version", 33
	w.log.epoch = 0
	if _, err := w.log.PrepareAppend(0, []message.Versioned{{Message: begin}, {Message: level}}); err != nil {
		t.Fatal(err)
	}
	w.commit()
	w.lead()
	last := w.log.batches[len(w.log.batches)-1].records
	if got := names(last)[:2]; !slices.Equal(got, []string{"AbortTransactionRecord v0", "BeginTransactionRecord v0"}) {
		t.Errorf("wrote %v", names(last))
	}
	if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
		t.Errorf("replayed state differs:\n%s", diff(got, want))
	}
}

// TestOpenTransactionIsAborted: a predecessor died within one.
func TestOpenTransactionIsAborted(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1)
	w.create("kept", 1, 1)
	before := w.core.Dump()
	w.lose()
	topic := message.NewTopicRecord()
	topic.Name, topic.TopicID = "half", uuid.UUID{7}
	w.log.epoch = w.epoch
	if _, err := w.log.PrepareAppend(w.epoch, []message.Versioned{{Message: message.NewBeginTransactionRecord()}, {Message: topic}}); err != nil {
		t.Fatal(err)
	}
	w.commit()
	if w.core.stable != w.log.end-3 {
		t.Errorf("stable offset %d within a transaction that begins at %d", w.core.stable, w.log.end-2)
	}
	w.lead()
	if after := w.core.Dump(); after != before {
		t.Errorf("state differs:\n%s", diff(before, after))
	}
	w.create("half", 1, 1)
	if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
		t.Errorf("replayed state differs:\n%s", diff(got, want))
	}
}

func TestNotActiveAnswersNotController(t *testing.T) {
	w := newWorld(t, nil)
	for _, req := range []kmsg.Request{
		kmsg.NewPtrCreateTopicsRequest(), kmsg.NewPtrDeleteTopicsRequest(), kmsg.NewPtrCreatePartitionsRequest(),
		kmsg.NewPtrIncrementalAlterConfigsRequest(), kmsg.NewPtrAlterConfigsRequest(), kmsg.NewPtrAlterClientQuotasRequest(),
		kmsg.NewPtrUpdateFeaturesRequest(), kmsg.NewPtrBrokerRegistrationRequest(), kmsg.NewPtrBrokerHeartbeatRequest(),
		kmsg.NewPtrUnregisterBrokerRequest(), kmsg.NewPtrAllocateProducerIDsRequest(), kmsg.NewPtrElectLeadersRequest(),
		kmsg.NewPtrAlterPartitionRequest(), kmsg.NewPtrAlterPartitionAssignmentsRequest(), kmsg.NewPtrListPartitionReassignmentsRequest(),
		kmsg.NewPtrAssignReplicasToDirsRequest(), kmsg.NewPtrControllerRegistrationRequest(), kmsg.NewPtrUnregisterControllerRequest(),
		kmsg.NewPtrAlterUserSCRAMCredentialsRequest(), kmsg.NewPtrCreateACLsRequest(), kmsg.NewPtrDeleteACLsRequest(),
		kmsg.NewPtrCreateDelegationTokenRequest(), kmsg.NewPtrRenewDelegationTokenRequest(), kmsg.NewPtrExpireDelegationTokenRequest(),
	} {
		answered := 0
		w.core.Submit(w.now, &RequestContext{}, req, func(resp kmsg.Response, err error) {
			answered++
			if resp == nil || api.CodeOf(err) != api.ErrNotController.Code {
				t.Errorf("%T: %v %v", req, resp, err)
			}
		})
		if answered != 1 {
			t.Errorf("%T: answered %d times", req, answered)
		}
	}
}

func TestExpiredRequestsAreRefused(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1)
	rc := &RequestContext{Deadline: w.now.Add(-time.Millisecond)}
	var code int16
	w.core.Submit(w.now, rc, createRequest("t", 1, 1), func(_ kmsg.Response, err error) { code = api.CodeOf(err) })
	if code != api.ErrRequestTimedOut.Code {
		t.Errorf("code %d", code)
	}
	if _, ok := w.core.topics.byName.Get("t"); ok {
		t.Error("the topic was created")
	}
}

// TestSilentBrokerIsFenced: one at a time, exactly when its session ends; a report of its death ends it at once.
func TestSilentBrokerIsFenced(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1, 2, 3)
	w.create("t", 3, 3)
	for range 10 {
		w.pass(time.Second)
		w.heartbeat(1, false, false)
		w.heartbeat(2, false, false)
	}
	b, _ := w.core.cluster.brokers.Get(3)
	if !b.fenced {
		t.Fatal("broker 3 is silent for 10 s and not fenced")
	}
	for i := range int32(3) {
		if p := w.partition("t", i); slices.Contains(p.isr, 3) || p.leader == 3 || len(p.isr) != 2 {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
	b, _ = w.core.cluster.brokers.Get(2)
	w.core.Lost(w.now, 2, b.epoch)
	w.core.Tick(w.now)
	w.settle()
	if b, _ := w.core.cluster.brokers.Get(2); !b.fenced {
		t.Error("broker 2 is known to be dead and not fenced")
	}
	for i := range int32(3) {
		if p := w.partition("t", i); p.leader != 1 || !slices.Equal(p.isr, []int32{1}) {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
}

// TestIdleControllerMovesTheLog: a no-op record every 500 ms, and only then.
func TestIdleControllerMovesTheLog(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	n := len(w.log.batches)
	w.pass(10 * time.Second)
	if got := len(w.log.batches) - n; got != 20 {
		t.Errorf("%d records in 10 s of idling, want 20", got)
	}
}

// TestTenThousandPartitions makes 100 topics of 100 partitions and says how long it took; the aim is a second.
func TestTenThousandPartitions(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1, 2, 3)
	start := time.Now()
	for i := range 100 {
		w.create(fmt.Sprintf("topic-%d", i), 100, 3)
	}
	t.Logf("creating 10,000 partitions took %v", time.Since(start))
	if n := w.core.topics.count.Get(); n != 10_000 {
		t.Errorf("%d partitions", n)
	}
	start = time.Now()
	w.heartbeat(2, true, false)
	t.Logf("fencing a broker of 10,000 partitions took %v", time.Since(start))
}

// TestTooLargeABatchIsRefused before anything is replayed: the quorum would refuse it, too late.
func TestTooLargeABatchIsRefused(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxBatchBytes = 2000 })
	w.lead()
	w.up(1)
	before, end := w.core.Dump(), w.log.end
	resp := ask[*kmsg.CreateTopicsResponse](w, createRequest("large", 100, 1))
	if got := resp.Topics[0].ErrorCode; got != api.ErrPolicyViolation.Code {
		t.Errorf("code %d", got)
	}
	if after := w.core.Dump(); after != before || w.log.end != end {
		t.Errorf("it left a trace:\n%s", diff(before, after))
	}
	// What needn't be atomic is cut into as many batches as it takes.
	w.up(2)
	for i := range 20 {
		w.create(fmt.Sprint("t", i), 5, 2)
	}
	batches := len(w.log.batches)
	w.heartbeat(2, true, false)
	if got := len(w.log.batches) - batches; got < 3 {
		t.Errorf("fencing took %d batches", got)
	}
	if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
		t.Errorf("replayed state differs:\n%s", diff(got, want))
	}
}

func BenchmarkCreateTopic(b *testing.B) {
	w := newWorld(b, nil)
	w.lead()
	w.up(1)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		w.create(fmt.Sprintf("t%d", i), 1, 1)
		i++
	}
}
