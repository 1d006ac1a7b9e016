package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"gregor/internal/message"
)

// TestLivingEqualsReplaying does random things to a cluster of a few brokers and topics, commits, loses and regains
// leadership, and holds the core's state against that of a standby that has only read the log: all of it while active, the
// committed part after leadership was lost.
func TestLivingEqualsReplaying(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mv := rapid.SampledFrom([]int16{7, 12, 13, 17, 23, 29, 30, 33}).Draw(rt, "metadata.version")
		elr := int16(0)
		if mv >= 23 {
			elr = rapid.Int16Range(0, 1).Draw(rt, "elr")
		}
		w := newWorld(t, func(o *Options) {
			o.Bootstrap = bootstrap(mv, elr)
			o.Authorizer = true
			o.MaxRecordsPerBatch = rapid.SampledFrom([]int{20, 10_000}).Draw(rt, "max records per batch")
		})
		a := &actor{w: w, t: rt}
		w.opts.Fatal = func(err error) { rt.Fatalf("fatal: %v", err) }
		w.core = NewCore(w.opts, w.log)
		w.lead()
		w.up(1, 2)
		rt.Repeat(map[string]func(*rapid.T){
			"register":  a.do(a.register),
			"heartbeat": a.do(a.heartbeat),
			"create":    a.do(a.create),
			"delete":    a.do(a.delete),
			"grow":      a.do(a.grow),
			"alter isr": a.do(a.alterISR),
			"elect":     a.do(a.elect),
			"reassign":  a.do(a.reassign),
			"config":    a.do(a.config),
			"misc":      a.do(a.misc),
			"time": func(t *rapid.T) {
				w.pass(time.Duration(rapid.IntRange(0, 12).Draw(t, "s")) * time.Second)
			},
			"commit": func(t *rapid.T) {
				w.hold = rapid.Bool().Draw(t, "hold from now on")
				w.commit()
			},
			"fail over": func(t *rapid.T) {
				if rapid.IntRange(0, 2).Draw(t, "really") > 0 {
					return
				}
				w.lose()
				if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
					t.Fatalf("after losing leadership:\n%s", diff(got, want))
				}
				w.lead()
			},
			"": func(t *rapid.T) {
				if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
					t.Fatalf("living and replaying differ:\n%s", diff(got, want))
				}
				a.checkInvariants(t)
			},
		})
	})
}

// actor makes random requests.
type actor struct {
	w *world
	t *rapid.T
}

func (a *actor) do(f func(t *rapid.T) kmsg.Request) func(*rapid.T) {
	return func(t *rapid.T) {
		if req := f(t); req != nil {
			a.w.send(req, func(kmsg.Response, error) {})
		}
	}
}

func (a *actor) brokerID(t *rapid.T) int32 { return rapid.Int32Range(1, 4).Draw(t, "broker") }

func (a *actor) topic(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "x.y", "x_y"}).Draw(t, "topic")
}

func (a *actor) replicas(t *rapid.T) []int32 {
	return rapid.SliceOfNDistinct(rapid.Int32Range(1, 4), 1, 3, rapid.ID[int32]).Draw(t, "replicas")
}

func (a *actor) epochOf(t *rapid.T, id int32) int64 {
	if b, ok := a.w.core.cluster.brokers.Get(id); ok && rapid.IntRange(0, 9).Draw(t, "stale") > 0 {
		return b.epoch
	}
	return 3
}

func (a *actor) register(t *rapid.T) kmsg.Request {
	id := a.brokerID(t)
	req := brokerRequest(id, rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "rack"))
	req.IncarnationID[1] = rapid.Byte().Draw(t, "incarnation") & 3
	if rapid.Bool().Draw(t, "two directories") {
		req.LogDirs = append(req.LogDirs, dirOf(id, 2))
	}
	if rapid.Bool().Draw(t, "clean") {
		req.PreviousBrokerEpoch = a.epochOf(t, id)
	}
	return req
}

func (a *actor) heartbeat(t *rapid.T) kmsg.Request {
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.BrokerID = a.brokerID(t)
	req.BrokerEpoch = a.epochOf(t, req.BrokerID)
	req.CurrentMetadataOffset = a.w.log.end - 1
	what := rapid.IntRange(0, 9).Draw(t, "what")
	req.WantFence, req.WantShutdown = what == 0, what == 1
	if what == 2 {
		req.OfflineLogDirs = [][16]byte{dirOf(req.BrokerID, 2)}
	}
	if what > 6 {
		req.CordonedLogDirs = [][16]byte{}
	}
	return req
}

func (a *actor) create(t *rapid.T) kmsg.Request {
	req := createRequest(a.topic(t), rapid.Int32Range(-1, 4).Draw(t, "partitions"), rapid.Int16Range(-1, 3).Draw(t, "factor"))
	if rapid.Bool().Draw(t, "by hand") {
		req.Topics[0].NumPartitions, req.Topics[0].ReplicationFactor = -1, -1
		n := len(a.replicas(t))
		for i := range rapid.Int32Range(1, 3).Draw(t, "n") {
			r := a.replicas(t)
			req.Topics[0].ReplicaAssignment = append(req.Topics[0].ReplicaAssignment,
				kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: i, Replicas: r[:min(n, len(r))]})
		}
	}
	if rapid.Bool().Draw(t, "config") {
		v := rapid.SampledFrom([]string{"1", "2", "x"}).Draw(t, "value")
		req.Topics[0].Configs = append(req.Topics[0].Configs, kmsg.CreateTopicsRequestTopicConfig{Name: minInsyncReplicas, Value: &v})
	}
	req.ValidateOnly = rapid.IntRange(0, 4).Draw(t, "validate") == 0
	return req
}

func (a *actor) delete(t *rapid.T) kmsg.Request {
	req := kmsg.NewPtrDeleteTopicsRequest()
	name := a.topic(t)
	req.Topics = append(req.Topics, kmsg.DeleteTopicsRequestTopic{Topic: &name})
	return req
}

func (a *actor) grow(t *rapid.T) kmsg.Request {
	req := kmsg.NewPtrCreatePartitionsRequest()
	x := kmsg.NewCreatePartitionsRequestTopic()
	x.Topic, x.Count = a.topic(t), rapid.Int32Range(0, 8).Draw(t, "count")
	req.Topics = append(req.Topics, x)
	return req
}

func (a *actor) alterISR(t *rapid.T) kmsg.Request {
	name := a.topic(t)
	tp, ok := a.w.core.topics.byName.Get(name)
	if !ok {
		return nil
	}
	index := rapid.Int32Range(0, int32(tp.partitions.Len())-1).Draw(t, "partition")
	p, _ := tp.partitions.Get(index)
	req := kmsg.NewPtrAlterPartitionRequest()
	req.BrokerID = p.leader
	req.BrokerEpoch = a.epochOf(t, p.leader)
	part := kmsg.NewAlterPartitionRequestTopicPartition()
	part.Partition, part.LeaderEpoch, part.PartitionEpoch = index, p.leaderEpoch, p.partitionEpoch
	if p.recovery == recovering && rapid.Bool().Draw(t, "recovering") {
		part.LeaderRecoveryState = recovering
	}
	for _, id := range p.replicas {
		if id == p.leader || rapid.Bool().Draw(t, "in") {
			b, _ := a.w.core.cluster.brokers.Get(id)
			if b != nil {
				part.NewEpochISR = append(part.NewEpochISR, kmsg.AlterPartitionRequestTopicPartitionNewEpochISR{BrokerID: id, BrokerEpoch: b.epoch})
			}
		}
	}
	req.Topics = append(req.Topics, kmsg.AlterPartitionRequestTopic{TopicID: tp.id, Partitions: []kmsg.AlterPartitionRequestTopicPartition{part}})
	return req
}

func (a *actor) elect(t *rapid.T) kmsg.Request {
	req := kmsg.NewPtrElectLeadersRequest()
	req.ElectionType = int8(rapid.IntRange(0, 1).Draw(t, "type"))
	return req
}

func (a *actor) reassign(t *rapid.T) kmsg.Request {
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	p.Partition = rapid.Int32Range(0, 3).Draw(t, "partition")
	if rapid.IntRange(0, 3).Draw(t, "cancel") > 0 {
		p.Replicas = a.replicas(t)
	}
	req.Topics = append(req.Topics, kmsg.AlterPartitionAssignmentsRequestTopic{Topic: a.topic(t), Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{p}})
	return req
}

func (a *actor) config(t *rapid.T) kmsg.Request {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType = kmsg.ConfigResourceType(rapid.SampledFrom([]int8{kindTopic, kindBroker}).Draw(t, "type"))
	r.ResourceName = a.topic(t)
	if int8(r.ResourceType) == kindBroker {
		r.ResourceName = rapid.SampledFrom([]string{"", "1", "9"}).Draw(t, "node")
	}
	v := rapid.SampledFrom([]string{"1", "2", "true", "delete,compact"}).Draw(t, "value")
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name = rapid.SampledFrom([]string{minInsyncReplicas, uncleanElectionEnable, "cleanup.policy", "retention.ms"}).Draw(t, "key")
	c.Op, c.Value = kmsg.IncrementalAlterConfigOp(rapid.IntRange(0, 3).Draw(t, "op")), &v
	r.Configs = append(r.Configs, c)
	req.Resources = append(req.Resources, r)
	return req
}

func (a *actor) misc(t *rapid.T) kmsg.Request {
	switch rapid.IntRange(0, 6).Draw(t, "what") {
	case 0:
		req := kmsg.NewPtrAllocateProducerIDsRequest()
		req.BrokerID = a.brokerID(t)
		req.BrokerEpoch = a.epochOf(t, req.BrokerID)
		return req
	case 1:
		req := kmsg.NewPtrUnregisterBrokerRequest()
		req.BrokerID = a.brokerID(t)
		return req
	case 2:
		req := kmsg.NewPtrAlterClientQuotasRequest()
		user := rapid.SampledFrom([]string{"u", "v"}).Draw(t, "user")
		e := kmsg.NewAlterClientQuotasRequestEntry()
		e.Entity = []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: &user}}
		e.Ops = []kmsg.AlterClientQuotasRequestEntryOp{{Key: "producer_byte_rate", Value: rapid.Float64Range(0, 3).Draw(t, "rate"), Remove: rapid.Bool().Draw(t, "remove")}}
		req.Entries = append(req.Entries, e)
		return req
	case 3:
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		if rapid.Bool().Draw(t, "delete") {
			req.Deletions = []kmsg.AlterUserSCRAMCredentialsRequestDeletion{{Name: "u", Mechanism: 1}}
		} else {
			req.Upsertions = []kmsg.AlterUserSCRAMCredentialsRequestUpsertion{{Name: "u", Mechanism: 1, Iterations: 4096, Salt: []byte("s"), SaltedPassword: []byte("p")}}
		}
		return req
	case 4:
		req := kmsg.NewPtrCreateACLsRequest()
		req.Creations = []kmsg.CreateACLsRequestCreation{{ResourceType: 2, ResourceName: a.topic(t), ResourcePatternType: 3, Principal: "User:u", Host: "*", Operation: 3, PermissionType: 3}}
		return req
	case 5:
		req := kmsg.NewPtrDeleteACLsRequest()
		name := a.topic(t)
		req.Filters = []kmsg.DeleteACLsRequestFilter{{ResourceType: 2, ResourceName: &name, ResourcePatternType: 1, Operation: 1, PermissionType: 1}}
		return req
	}
	req := kmsg.NewPtrAssignReplicasToDirsRequest()
	req.BrokerID = a.brokerID(t)
	req.BrokerEpoch = a.epochOf(t, req.BrokerID)
	name := a.topic(t)
	if tp, ok := a.w.core.topics.byName.Get(name); ok {
		req.Directories = []kmsg.AssignReplicasToDirsRequestDirectory{{ID: dirOf(req.BrokerID, rapid.IntRange(1, 3).Draw(t, "dir")), Topics: []kmsg.AssignReplicasToDirsRequestDirectoryTopic{
			{TopicID: tp.id, Partitions: []kmsg.AssignReplicasToDirsRequestDirectoryTopicPartition{{Partition: 0}}},
		}}}
	}
	return req
}

// checkInvariants holds the partitions against what must be true of them at all times.
func (a *actor) checkInvariants(t *rapid.T) {
	c := a.w.core
	var leaderless, imbalanced int64
	leads := map[int32]int64{}
	c.topics.each(func(tp *topic, i int32, p *partition) bool {
		at := fmt.Sprintf("%s-%d %+v", tp.name, i, *p)
		switch {
		case hasDuplicates(p.replicas), hasDuplicates(p.isr), hasDuplicates(p.elr):
			t.Fatalf("duplicates: %s", at)
		case !containsAll(p.replicas, p.isr):
			t.Fatalf("ISR outside of the replicas: %s", at)
		case p.hasLeader() && !slices.Contains(p.isr, p.leader):
			t.Fatalf("leader outside of the ISR: %s", at)
		case len(p.directories) != len(p.replicas):
			t.Fatalf("directories don't fit: %s", at)
		case slices.ContainsFunc(p.isr, func(b int32) bool { return slices.Contains(p.elr, b) }):
			t.Fatalf("ISR and ELR overlap: %s", at)
		}
		if !p.hasLeader() {
			leaderless++
		} else {
			leads[p.leader]++
			if b, ok := c.cluster.brokers.Get(p.leader); !ok || b.fenced {
				t.Fatalf("leader out of service: %s", at)
			}
		}
		if !p.hasPreferredLeader() {
			imbalanced++
		}
		return true
	})
	if leaderless != c.topics.leaderless.Get() || imbalanced != c.topics.imbalanced.Get() {
		t.Fatalf("counts %d %d, want %d %d", c.topics.leaderless.Get(), c.topics.imbalanced.Get(), leaderless, imbalanced)
	}
	for id := range int32(5) {
		if n, _ := c.topics.leads.Get(id); n != leads[id] {
			t.Fatalf("broker %d leads %d by count, %d in truth", id, n, leads[id])
		}
	}
}

// FuzzReplay feeds a standby any record that decodes: it may refuse, and must not crash.
func FuzzReplay(f *testing.F) {
	w := newWorld(f, nil)
	w.lead()
	w.up(1, 2)
	w.create("t", 2, 2)
	for _, b := range w.log.batches {
		for _, v := range b.records {
			raw, err := message.AppendMetadataRecord(nil, v.Message, v.Version)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw)
		}
	}
	known := w.log.batches
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := message.ReadMetadataRecord(raw)
		if err != nil {
			return
		}
		opts := w.opts
		opts.Fatal = func(error) {}
		c := NewCore(opts, &fakeLog{epoch: -1})
		for _, b := range known {
			c.HandleCommit(w.now, b.base, b.base+int64(len(b.records))-1, b.records)
		}
		c.HandleCommit(w.now, w.log.end, w.log.end, []message.Versioned{v, {Message: message.NewNoOpRecord()}})
	})
}
