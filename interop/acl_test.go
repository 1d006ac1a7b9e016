package interop

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/wire"
)

// guarded are the settings of nodes that obey access control lists. Nobody has a name here, but clients have addresses: the nodes
// and the test's own hand come from 127.0.0.1 and may do all, who is looked at comes from guest.
var guarded = []string{
	"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
	"allow.everyone.if.no.acl.found=true",
}

const (
	home  = "127.0.0.1"
	guest = "127.0.0.2"
)

type aclEntry = kmsg.CreateACLsRequestCreation

func allow(kind kmsg.ACLResourceType, name, host string, ops ...kmsg.ACLOperation) []aclEntry {
	var out []aclEntry
	for _, op := range ops {
		out = append(out, aclEntry{ResourceType: kind, ResourceName: name, ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Principal: "User:*",
			Host: host, Operation: op, PermissionType: kmsg.ACLPermissionTypeAllow})
	}
	return out
}

func deny(kind kmsg.ACLResourceType, name, host string, ops ...kmsg.ACLOperation) []aclEntry {
	out := allow(kind, name, host, ops...)
	for i := range out {
		out[i].PermissionType = kmsg.ACLPermissionTypeDeny
	}
	return out
}

func prefixed(entries []aclEntry) []aclEntry {
	for i := range entries {
		entries[i].ResourcePatternType = kmsg.ACLResourcePatternTypePrefixed
	}
	return entries
}

func createACLs(entries ...[]aclEntry) *kmsg.CreateACLsRequest {
	r := kmsg.NewPtrCreateACLsRequest()
	for _, e := range entries {
		r.Creations = append(r.Creations, e...)
	}
	return r
}

func deleteACLs(change func(*kmsg.DeleteACLsRequestFilter)) *kmsg.DeleteACLsRequest {
	r := kmsg.NewPtrDeleteACLsRequest()
	f := kmsg.NewDeleteACLsRequestFilter()
	f.ResourceType, f.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	f.Operation, f.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	change(&f)
	r.Filters = append(r.Filters, f)
	return r
}

func describeACLs(change func(*kmsg.DescribeACLsRequest)) *kmsg.DescribeACLsRequest {
	r := kmsg.NewPtrDescribeACLsRequest()
	r.ResourceType, r.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	r.Operation, r.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	change(r)
	return r
}

// everything allows a host all.
func everything(host string) []aclEntry {
	var out []aclEntry
	for kind := kmsg.ACLResourceTypeTopic; kind <= kmsg.ACLResourceTypeUser; kind++ {
		name := "*"
		if kind == kmsg.ACLResourceTypeCluster {
			name = "kafka-cluster"
		}
		out = append(out, allow(kind, name, host, kmsg.ACLOperationAll)...)
	}
	return out
}

// TestACLs compares what a guest is answered on each API with what Kafka answers, under several lists of what it may do.
func TestACLs(t *testing.T) {
	p := startPair(t, guarded...)
	p.createTopics(t, 1, nil, "a", "b")
	p.warm(t, "a", "b")
	t.Run("Entries", func(t *testing.T) { diffACLs(t, p) })
	p.setACLs(t, everything(home))
	visitor, backdoor := p.from(t, guest, false), p.from(t, guest, true)
	for _, phase := range []struct {
		name    string
		entries []aclEntry
	}{
		{"Nothing", nil},
		{"Describe", concat(allow(kmsg.ACLResourceTypeTopic, "a", guest, kmsg.ACLOperationDescribe), allow(kmsg.ACLResourceTypeGroup, "g", guest, kmsg.ACLOperationDescribe),
			allow(kmsg.ACLResourceTypeCluster, "kafka-cluster", guest, kmsg.ACLOperationDescribe), allow(kmsg.ACLResourceTypeTransactionalId, "t", guest, kmsg.ACLOperationDescribe))},
		{"Read", concat(allow(kmsg.ACLResourceTypeTopic, "a", "127.0.0.0/8", kmsg.ACLOperationRead, kmsg.ACLOperationDescribeConfigs),
			allow(kmsg.ACLResourceTypeGroup, "g", guest, kmsg.ACLOperationRead), allow(kmsg.ACLResourceTypeCluster, "kafka-cluster", guest, kmsg.ACLOperationDescribeConfigs))},
		{"Write", concat(prefixed(allow(kmsg.ACLResourceTypeTopic, "a", guest, kmsg.ACLOperationWrite, kmsg.ACLOperationCreate)),
			allow(kmsg.ACLResourceTypeTransactionalId, "t", guest, kmsg.ACLOperationWrite))},
		{"AllBut", concat(everything(guest), deny(kmsg.ACLResourceTypeTopic, "a", guest, kmsg.ACLOperationRead, kmsg.ACLOperationDelete),
			deny(kmsg.ACLResourceTypeGroup, "g", guest, kmsg.ACLOperationDescribe), deny(kmsg.ACLResourceTypeCluster, "kafka-cluster", guest, kmsg.ACLOperationClusterAction))},
	} {
		t.Run(phase.name, func(t *testing.T) {
			p.setACLs(t, concat(everything(home), phase.entries))
			for _, ask := range brokerQuestions(t) {
				if visitor.served[ask.of.Key()] && (visitor.served[addPartitionsToTxn] || !ask.transactional || phase.name != "AllBut") {
					visitor.each(t, ask.name, ask.build)
				}
			}
			for _, ask := range controllerQuestions() {
				if backdoor.served[ask.of.Key()] && phase.name != "AllBut" {
					backdoor.each(t, "controller: "+ask.name, ask.build)
				}
			}
		})
	}
	t.Logf("%d questions", p.steps+visitor.steps+backdoor.steps)
}

func concat(lists ...[]aclEntry) (out []aclEntry) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// setACLs makes the entries those of both nodes, and waits until both of their listeners know.
func (p *pair) setACLs(t *testing.T, entries []aclEntry) {
	t.Helper()
	p.both(func(s *side) {
		// What is missing comes first, so that the nodes themselves are never locked out.
		for _, r := range s.must(t, version(createACLs(entries), 3)).(*kmsg.CreateACLsResponse).Results {
			if r.ErrorCode != 0 {
				t.Errorf("%s: create: code %d", s.name, r.ErrorCode)
			}
		}
		wanted := make(map[string]bool)
		for _, e := range entries {
			wanted[fmt.Sprint(e.ResourceType, e.ResourceName, e.ResourcePatternType, e.Principal, e.Host, e.Operation, e.PermissionType)] = true
		}
		all := version(describeACLs(func(*kmsg.DescribeACLsRequest) {}), 3)
		known := func(s *side) (n int, superfluous []kmsg.DeleteACLsRequestFilter) {
			for _, r := range s.must(t, all).(*kmsg.DescribeACLsResponse).Resources {
				for _, a := range r.ACLs {
					n++
					if wanted[fmt.Sprint(r.ResourceType, r.ResourceName, r.ResourcePatternType, a.Principal, a.Host, a.Operation, a.PermissionType)] {
						continue
					}
					superfluous = append(superfluous, kmsg.DeleteACLsRequestFilter{ResourceType: r.ResourceType, ResourceName: &r.ResourceName,
						ResourcePatternType: r.ResourcePatternType, Principal: &a.Principal, Host: &a.Host, Operation: a.Operation, PermissionType: a.PermissionType})
				}
			}
			return n, superfluous
		}
		controller := *s
		controller.conn, controller.addr = nil, s.controllerAddr()
		defer func() { controller.conn.Close() }()
		for _, listener := range []*side{s, &controller} {
			deadline := time.Now().Add(time.Minute)
			for {
				n, superfluous := known(listener)
				if n == len(wanted) && superfluous == nil {
					break
				}
				if n >= len(wanted) && superfluous != nil {
					q := kmsg.NewPtrDeleteACLsRequest()
					q.Filters = superfluous
					s.must(t, version(q, 3))
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s: %d entries are known, want %d", s.name, n, len(wanted))
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	})
}

func version[R kmsg.Request](r R, v int16) R {
	r.SetVersion(v)
	return r
}

// diffACLs compares what is said about entries themselves.
func diffACLs(t *testing.T, p *pair) {
	p.setACLs(t, everything(home))
	good := aclEntry{ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: "x", ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Principal: "User:x", Host: "*",
		Operation: kmsg.ACLOperationRead, PermissionType: kmsg.ACLPermissionTypeAllow}
	var bad []aclEntry
	for _, change := range []func(*aclEntry){
		func(*aclEntry) {},
		func(e *aclEntry) { e.ResourceName = "*" },
		func(e *aclEntry) { e.ResourceName = "" },
		func(e *aclEntry) { e.ResourceType, e.ResourceName = kmsg.ACLResourceTypeCluster, "cluster" },
		func(e *aclEntry) { e.Principal = "x" },
		func(e *aclEntry) { e.Principal = "" },
		func(e *aclEntry) { e.Principal = ":" },
		func(e *aclEntry) { e.Host = "" },
		func(e *aclEntry) { e.Host = "10.0.0.0/8" },
		func(e *aclEntry) { e.Host = "10.0.0.0/33" },
		func(e *aclEntry) { e.Host = "10.0.0/8" },
		func(e *aclEntry) { e.Host = "300.0.0.0/8" },
		func(e *aclEntry) { e.Host = "2001:db8::/32" },
		func(e *aclEntry) { e.Host = "2001:db8::/129" },
		func(e *aclEntry) { e.Host = "2001:db8::/x" },
		func(e *aclEntry) { e.Host = "host/8" },
		func(e *aclEntry) { e.Operation = kmsg.ACLOperationAlterConfigs },
		func(e *aclEntry) { e.Operation = kmsg.ACLOperationIdempotentWrite },
		func(e *aclEntry) { e.ResourcePatternType = kmsg.ACLResourcePatternTypePrefixed },
	} {
		e := good
		change(&e)
		bad = append(bad, e)
	}
	p.once(t, "create", func(*side) kmsg.Request { return createACLs(bad) }, nil)
	p.each(t, "create again", func(s *side, v int16) kmsg.Request { return createACLs(bad[:2], bad[2:3]) })
	for name, change := range map[string]func(*aclEntry){
		"of type any": func(e *aclEntry) { e.ResourceType = kmsg.ACLResourceTypeAny }, "of an unknown type": func(e *aclEntry) { e.ResourceType = 77 },
		"with pattern match": func(e *aclEntry) { e.ResourcePatternType = kmsg.ACLResourcePatternTypeMatch }, "with pattern any": func(e *aclEntry) { e.ResourcePatternType = kmsg.ACLResourcePatternTypeAny },
		"for any operation": func(e *aclEntry) { e.Operation = kmsg.ACLOperationAny }, "for an unknown operation": func(e *aclEntry) { e.Operation = 77 },
		"of any permission": func(e *aclEntry) { e.PermissionType = kmsg.ACLPermissionTypeAny },
	} {
		e := good
		change(&e)
		p.each(t, "create "+name, func(s *side, v int16) kmsg.Request { return createACLs([]aclEntry{good, e}) })
	}
	x, host := "x", "10.0.0.0/8"
	for name, change := range map[string]func(*kmsg.DescribeACLsRequest){
		"all":  func(*kmsg.DescribeACLsRequest) {},
		"of x": func(q *kmsg.DescribeACLsRequest) { q.ResourceName = &x },
		"that apply to x": func(q *kmsg.DescribeACLsRequest) {
			q.ResourceName, q.ResourcePatternType = &x, kmsg.ACLResourcePatternTypeMatch
		},
		"with a prefix":         func(q *kmsg.DescribeACLsRequest) { q.ResourcePatternType = kmsg.ACLResourcePatternTypePrefixed },
		"of a host":             func(q *kmsg.DescribeACLsRequest) { q.Host = &host },
		"of nobody":             func(q *kmsg.DescribeACLsRequest) { q.Principal = &host },
		"of an operation":       func(q *kmsg.DescribeACLsRequest) { q.Operation = kmsg.ACLOperationIdempotentWrite },
		"of an unknown type":    func(q *kmsg.DescribeACLsRequest) { q.ResourceType = 77 },
		"for unknown operation": func(q *kmsg.DescribeACLsRequest) { q.Operation = 77 },
	} {
		p.each(t, "describe "+name, func(s *side, v int16) kmsg.Request { return describeACLs(change) })
	}
	p.once(t, "delete nothing", func(*side) kmsg.Request {
		return deleteACLs(func(f *kmsg.DeleteACLsRequestFilter) { f.Principal = &host })
	}, nil)
	p.each(t, "delete with an unknown operation", func(*side, int16) kmsg.Request {
		return deleteACLs(func(f *kmsg.DeleteACLsRequestFilter) { f.Principal, f.Operation = &x, 77 })
	})
	user := "User:x"
	p.once(t, "delete what applies to x", func(*side) kmsg.Request {
		return deleteACLs(func(f *kmsg.DeleteACLsRequestFilter) {
			f.ResourceName, f.ResourcePatternType, f.Principal = &x, kmsg.ACLResourcePatternTypeMatch, &user
		})
	}, nil)
}

// addPartitionsToTxn tells whether there are transactions.
const addPartitionsToTxn = 24

// warm has both sides get ready what they would only get ready when it is asked for, and learn the names of ids.
func (p *pair) warm(t *testing.T, topics ...string) {
	t.Helper()
	p.both(func(s *side) {
		s.ids[fmt.Sprintf("%x", unknownID)] = "unknown id"
		for _, n := range topics {
			s.ids[fmt.Sprintf("%x", s.topicID(t, n))] = "id of " + n
		}
		find := version(kmsg.NewPtrFindCoordinatorRequest(), 3)
		find.CoordinatorKey = "g"
		until(t, s.name+": coordinator", func() bool { return s.must(t, find).(*kmsg.FindCoordinatorResponse).ErrorCode == 0 })
		for _, g := range []string{"g", "h"} {
			store := version(commit(g, "", -1, "a", 0, 5), 8)
			until(t, s.name+": first commit of "+g, func() bool {
				return s.must(t, store).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode == 0
			})
		}
		id := version(kmsg.NewPtrInitProducerIDRequest(), 2)
		until(t, s.name+": first producer id", func() bool {
			r := s.must(t, id).(*kmsg.InitProducerIDResponse)
			s.kept["producer"] = r.ProducerID
			return r.ErrorCode == 0
		})
	})
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// question is a request whose answer is compared. What it would change it would change in both.
type question struct {
	name  string
	of    kmsg.Request
	build func(s *side, v int16) kmsg.Request
	// transactional: the answer is about a transaction, unless the guest may not ask.
	transactional bool
}

func plain(r kmsg.Request, name string, build func(s *side, v int16) kmsg.Request) question {
	return question{name: fmt.Sprintf("%s %s", kmsg.NameForKey(r.Key()), name), of: r, build: build}
}

// brokerQuestions are about topics a and b, group g and transaction t, one for each API.
func brokerQuestions(t *testing.T) []question {
	topics := []string{"a", "b", "none"}
	var out []question
	add := func(r kmsg.Request, name string, build func(s *side, v int16) kmsg.Request) {
		out = append(out, plain(r, name, build))
	}
	metadata := kmsg.NewPtrMetadataRequest()
	add(metadata, "all", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrMetadataRequest()
		r.IncludeClusterAuthorizedOperations, r.IncludeTopicAuthorizedOperations = v >= 8 && v <= 10, v >= 8
		return r
	})
	add(metadata, "some", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrMetadataRequest()
		r.IncludeTopicAuthorizedOperations = v >= 8
		for _, n := range topics {
			if v < 4 && n == "none" {
				continue // it would be created
			}
			r.Topics = append(r.Topics, kmsg.MetadataRequestTopic{Topic: &n})
		}
		return r
	})
	add(metadata, "by id", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrMetadataRequest()
		if v < 12 {
			r.Topics = []kmsg.MetadataRequestTopic{}
			return r
		}
		r.Topics = []kmsg.MetadataRequestTopic{{TopicID: s.topicID(t, "a")}, {TopicID: s.topicID(t, "b")}, {TopicID: unknownID}}
		return r
	})
	add(metadata, "create", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrMetadataRequest()
		r.AllowAutoTopicCreation = true
		bad, other := "a bad name", "zz bad name"
		r.Topics = []kmsg.MetadataRequestTopic{{Topic: &bad}, {Topic: &other}}
		return r
	})
	add(kmsg.NewPtrDescribeTopicPartitionsRequest(), "some", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeTopicPartitionsRequest()
		for _, n := range topics {
			r.Topics = append(r.Topics, kmsg.DescribeTopicPartitionsRequestTopic{Topic: n})
		}
		return r
	})
	add(kmsg.NewPtrDescribeTopicPartitionsRequest(), "all", func(s *side, v int16) kmsg.Request { return kmsg.NewPtrDescribeTopicPartitionsRequest() })
	for _, cluster := range []int8{1, 2} {
		add(kmsg.NewPtrDescribeClusterRequest(), fmt.Sprint("endpoints ", cluster), func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrDescribeClusterRequest()
			r.EndpointType, r.IncludeClusterAuthorizedOperations = cluster, true
			return r
		})
	}
	for _, n := range topics[:2] {
		add(kmsg.NewPtrProduceRequest(), n, func(s *side, v int16) kmsg.Request {
			// To a partition that isn't there, so that nothing changes.
			r := produce(t, s, v, 1, n, 7, wire.Batch(nil, wire.Record{Value: []byte("v"), Timestamp: 1}))
			r.Topics = append(r.Topics, produce(t, s, v, 1, nobody, 0, wire.Batch(nil, wire.Record{Value: []byte("v"), Timestamp: 1})).Topics...)
			return r
		})
		add(kmsg.NewPtrFetchRequest(), n, func(s *side, v int16) kmsg.Request {
			r := fetch(t, s, v, n, 0, 0)
			r.MaxWaitMillis = 0
			return r
		})
		add(kmsg.NewPtrFetchRequest(), n+" of a follower", func(s *side, v int16) kmsg.Request {
			r := fetch(t, s, v, n, 7, 0)
			r.MaxWaitMillis = 0
			if r.ReplicaID = 7; v >= 15 {
				r.ReplicaState.ID = 7
			}
			return r
		})
		add(kmsg.NewPtrInitProducerIDRequest(), n, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrInitProducerIDRequest()
			r.ProducerID, r.ProducerEpoch = 5, -1 // wrong together from version 3 on
			return r
		})
	}
	add(kmsg.NewPtrProduceRequest(), "of a transaction", func(s *side, v int16) kmsg.Request {
		batch := func(b *kmsg.RecordBatch) {
			b.Attributes |= 1 << 4
			b.ProducerID, b.ProducerEpoch, b.FirstSequence = 1, 0, 0
		}
		r := produce(t, s, v, -1, "b", 7, wire.Batch(batch, wire.Record{Value: []byte("v"), Timestamp: 1}))
		r.TransactionID = str("u")
		return r
	})
	add(kmsg.NewPtrInitProducerIDRequest(), "of a transaction", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrInitProducerIDRequest()
		r.TransactionalID = str("u")
		r.TransactionTimeoutMillis, r.ProducerID, r.ProducerEpoch = 1000, 5, -1
		if v < 3 {
			r.TransactionalID = str("")
		}
		return r
	})
	out[len(out)-1].transactional = true
	add(kmsg.NewPtrListOffsetsRequest(), "some", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrListOffsetsRequest()
		r.ReplicaID = -1
		for _, n := range topics {
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Timestamp, p.CurrentLeaderEpoch = -1, -1
			r.Topics = append(r.Topics, kmsg.ListOffsetsRequestTopic{Topic: n, Partitions: []kmsg.ListOffsetsRequestTopicPartition{p}})
		}
		return r
	})
	add(kmsg.NewPtrOffsetForLeaderEpochRequest(), "some", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrOffsetForLeaderEpochRequest()
		r.ReplicaID = -1
		for _, n := range topics {
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			r.Topics = append(r.Topics, kmsg.OffsetForLeaderEpochRequestTopic{Topic: n, Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{p}})
		}
		return r
	})
	add(kmsg.NewPtrDeleteRecordsRequest(), "some", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDeleteRecordsRequest()
		r.TimeoutMillis = 1000
		for _, n := range topics {
			r.Topics = append(r.Topics, kmsg.DeleteRecordsRequestTopic{Topic: n, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Partition: 0, Offset: 0}}})
		}
		return r
	})
	add(kmsg.NewPtrDescribeProducersRequest(), "some", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeProducersRequest()
		for _, n := range append(topics, "bad name") {
			r.Topics = append(r.Topics, kmsg.DescribeProducersRequestTopic{Topic: n, Partitions: []int32{0}})
		}
		return r
	})
	add(kmsg.NewPtrDescribeLogDirsRequest(), "a", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeLogDirsRequest()
		r.Topics = []kmsg.DescribeLogDirsRequestTopic{{Topic: "a", Partitions: []int32{0}}}
		return r
	})
	add(kmsg.NewPtrAlterReplicaLogDirsRequest(), "none", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrAlterReplicaLogDirsRequest()
		r.Dirs = []kmsg.AlterReplicaLogDirsRequestDir{{Dir: "/no/such/dir", Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: "a", Partitions: []int32{0}}}}}
		return r
	})
	return append(out, append(groupQuestions(topics), adminQuestions()...)...)
}

func groupQuestions(topics []string) []question {
	var out []question
	add := func(r kmsg.Request, name string, build func(s *side, v int16) kmsg.Request) {
		out = append(out, plain(r, name, build))
	}
	groups := []string{"g", "h"}
	for kind := range int8(2) {
		add(kmsg.NewPtrFindCoordinatorRequest(), fmt.Sprint("of kind ", kind), func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrFindCoordinatorRequest()
			r.CoordinatorKey, r.CoordinatorKeys = "forbidden", []string{"forbidden"}
			if r.CoordinatorType = kind; v == 0 && kind > 0 {
				r.CoordinatorType = 0
			}
			return r
		})
		out[len(out)-1].transactional = kind > 0
	}
	for _, g := range groups {
		add(kmsg.NewPtrJoinGroupRequest(), g, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrJoinGroupRequest()
			r.Group, r.ProtocolType, r.SessionTimeoutMillis = g, "consumer", -5 // no such time
			r.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte{}}}
			return r
		})
		add(kmsg.NewPtrSyncGroupRequest(), g, func(s *side, v int16) kmsg.Request {
			r := syncGroup(g, "m", 1)
			return r
		})
		add(kmsg.NewPtrHeartbeatRequest(), g, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrHeartbeatRequest()
			r.Group, r.MemberID = g, "m"
			return r
		})
		add(kmsg.NewPtrLeaveGroupRequest(), g, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrLeaveGroupRequest()
			r.Group, r.MemberID = g, "m"
			r.Members = []kmsg.LeaveGroupRequestMember{{MemberID: "m"}}
			return r
		})
		add(kmsg.NewPtrOffsetCommitRequest(), g, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrOffsetCommitRequest()
			r.Group, r.Generation, r.MemberID = g, 5, "m" // of no such member
			for _, n := range topics[:2] {
				rt := kmsg.OffsetCommitRequestTopic{Topic: n}
				rt.TopicID = s.kept["topic id "+n].([16]byte)
				rt.Partitions = append(rt.Partitions, kmsg.OffsetCommitRequestTopicPartition{Partition: 0}, kmsg.OffsetCommitRequestTopicPartition{Partition: 9})
				r.Topics = append(r.Topics, rt)
			}
			return r
		})
		add(kmsg.NewPtrOffsetFetchRequest(), g, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrOffsetFetchRequest()
			r.Group = g
			one := kmsg.NewOffsetFetchRequestGroup()
			one.Group = g
			for _, n := range topics[:2] {
				r.Topics = append(r.Topics, kmsg.OffsetFetchRequestTopic{Topic: n, Partitions: []int32{0}})
				one.Topics = append(one.Topics, kmsg.OffsetFetchRequestGroupTopic{Topic: n, TopicID: s.kept["topic id "+n].([16]byte), Partitions: []int32{0}})
			}
			r.Groups = append(r.Groups, one)
			return r
		})
		add(kmsg.NewPtrOffsetFetchRequest(), g+" all", func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrOffsetFetchRequest()
			r.Group, r.Topics = g, nil
			if v < 2 {
				r.Topics = []kmsg.OffsetFetchRequestTopic{}
			}
			one := kmsg.NewOffsetFetchRequestGroup()
			one.Group = g
			r.Groups = append(r.Groups, one)
			return r
		})
		add(kmsg.NewPtrOffsetDeleteRequest(), g, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrOffsetDeleteRequest()
			r.Group = g
			for _, n := range topics {
				r.Topics = append(r.Topics, kmsg.OffsetDeleteRequestTopic{Topic: n, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}})
			}
			return r
		})
		add(kmsg.NewPtrConsumerGroupHeartbeatRequest(), g, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrConsumerGroupHeartbeatRequest()
			r.Group, r.MemberID, r.MemberEpoch = g, "m", 5 // no such member
			r.SubscribedTopicNames = []string{"a"}
			return r
		})
		add(kmsg.NewPtrConsumerGroupHeartbeatRequest(), g+" and b", func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrConsumerGroupHeartbeatRequest()
			r.Group, r.MemberID, r.MemberEpoch = g, "m", 5
			r.SubscribedTopicNames = []string{"a", "b"}
			return r
		})
	}
	add(kmsg.NewPtrListGroupsRequest(), "all", func(s *side, v int16) kmsg.Request { return kmsg.NewPtrListGroupsRequest() })
	add(kmsg.NewPtrDescribeGroupsRequest(), "both", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeGroupsRequest()
		r.Groups, r.IncludeAuthorizedOperations = groups, true
		return r
	})
	add(kmsg.NewPtrConsumerGroupDescribeRequest(), "both", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrConsumerGroupDescribeRequest()
		r.Groups, r.IncludeAuthorizedOperations = groups, true
		return r
	})
	add(kmsg.NewPtrDeleteGroupsRequest(), "both", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDeleteGroupsRequest()
		r.Groups = append(r.Groups, "h", "none", "h")
		return r
	})
	return out
}

// adminQuestions are those that change the cluster, or would if they were right, and those that describe it.
func adminQuestions() []question {
	var out []question
	add := func(r kmsg.Request, name string, build func(s *side, v int16) kmsg.Request) {
		out = append(out, plain(r, name, build))
	}
	same := func(r kmsg.Request) func(*side, int16) kmsg.Request {
		return func(*side, int16) kmsg.Request { return r }
	}
	add(kmsg.NewPtrCreateTopicsRequest(), "checked only", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrCreateTopicsRequest()
		r.ValidateOnly, r.TimeoutMillis = true, 5000
		r.Topics = append(r.Topics, newTopic("a-new", 1, 1, nil), newTopic("new", 1, 1, nil), newTopic("b", 1, 1, nil))
		return r
	})
	add(kmsg.NewPtrDeleteTopicsRequest(), "a and another", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDeleteTopicsRequest()
		r.TimeoutMillis = 5000
		r.TopicNames = []string{"none"}
		for _, n := range r.TopicNames {
			r.Topics = append(r.Topics, kmsg.DeleteTopicsRequestTopic{Topic: &n})
		}
		if v >= 6 {
			r.Topics = append(r.Topics, kmsg.DeleteTopicsRequestTopic{TopicID: unknownID})
		}
		return r
	})
	add(kmsg.NewPtrCreatePartitionsRequest(), "checked only", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrCreatePartitionsRequest()
		r.ValidateOnly, r.TimeoutMillis = true, 5000
		for _, n := range []string{"a", "b", "none"} {
			r.Topics = append(r.Topics, kmsg.CreatePartitionsRequestTopic{Topic: n, Count: 2})
		}
		return r
	})
	kinds := []struct {
		kind kmsg.ConfigResourceType
		name string
	}{{2, "a"}, {2, "b"}, {4, "1"}, {4, ""}, {16, "c"}, {32, "g"}, {32, "h"}}
	add(kmsg.NewPtrDescribeConfigsRequest(), "all kinds", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeConfigsRequest()
		for _, k := range kinds {
			r.Resources = append(r.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: k.kind, ResourceName: k.name, ConfigNames: []string{"none"}})
		}
		return r
	})
	add(kmsg.NewPtrIncrementalAlterConfigsRequest(), "checked only", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrIncrementalAlterConfigsRequest()
		r.ValidateOnly = true
		for _, k := range kinds {
			r.Resources = append(r.Resources, kmsg.IncrementalAlterConfigsRequestResource{ResourceType: k.kind, ResourceName: k.name})
		}
		return r
	})
	add(kmsg.NewPtrAlterConfigsRequest(), "checked only", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrAlterConfigsRequest()
		r.ValidateOnly = true
		for _, k := range kinds[:5] {
			r.Resources = append(r.Resources, kmsg.AlterConfigsRequestResource{ResourceType: k.kind, ResourceName: k.name})
		}
		return r
	})
	add(kmsg.NewPtrListConfigResourcesRequest(), "all", same(kmsg.NewPtrListConfigResourcesRequest()))
	quotas := kmsg.NewPtrAlterClientQuotasRequest()
	quotas.ValidateOnly = true
	quotas.Entries = []kmsg.AlterClientQuotasRequestEntry{{Entity: []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: str("u")}},
		Ops: []kmsg.AlterClientQuotasRequestEntryOp{{Key: "producer_byte_rate", Value: 1}}}}
	add(quotas, "checked only", same(quotas))
	add(kmsg.NewPtrDescribeClientQuotasRequest(), "all", same(kmsg.NewPtrDescribeClientQuotasRequest()))
	scram := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	scram.Deletions = []kmsg.AlterUserSCRAMCredentialsRequestDeletion{{Name: "nobody", Mechanism: 1}, {Name: "", Mechanism: 1}}
	add(scram, "of nobody", same(scram))
	credentials := kmsg.NewPtrDescribeUserSCRAMCredentialsRequest()
	credentials.Users = []kmsg.DescribeUserSCRAMCredentialsRequestUser{{Name: "nobody"}}
	add(credentials, "of nobody", same(credentials))
	features := kmsg.NewPtrUpdateFeaturesRequest()
	features.FeatureUpdates = []kmsg.UpdateFeaturesRequestFeatureUpdate{{Feature: "no.such.feature", MaxVersionLevel: 1, UpgradeType: 1}}
	add(features, "unknown", same(features))
	elect := kmsg.NewPtrElectLeadersRequest()
	elect.TimeoutMillis, elect.Topics = 5000, []kmsg.ElectLeadersRequestTopic{{Topic: "a", Partitions: []int32{0}}}
	add(elect, "a", same(elect))
	move := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	move.TimeoutMillis = 5000
	move.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: "a", Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{{Partition: 0, Replicas: []int32{7}}}}}
	add(move, "a", same(move))
	add(kmsg.NewPtrListPartitionReassignmentsRequest(), "all", same(kmsg.NewPtrListPartitionReassignmentsRequest()))
	unregister := kmsg.NewPtrUnregisterBrokerRequest()
	unregister.BrokerID = 7
	add(unregister, "unknown", same(unregister))
	add(kmsg.NewPtrDescribeQuorumRequest(), "none", same(kmsg.NewPtrDescribeQuorumRequest()))
	adding := kmsg.NewPtrAddRaftVoterRequest()
	adding.ClusterID, adding.VoterID = str("another"), 7
	add(adding, "to another cluster", same(adding))
	forget := kmsg.NewPtrUnregisterControllerRequest()
	forget.ControllerID = 7
	add(forget, "unknown", same(forget))
	remove := kmsg.NewPtrRemoveRaftVoterRequest()
	remove.VoterID = 7
	add(remove, "unknown", same(remove))
	add(kmsg.NewPtrDescribeACLsRequest(), "none", same(describeACLs(func(q *kmsg.DescribeACLsRequest) { q.Principal = str("User:none") })))
	add(kmsg.NewPtrCreateACLsRequest(), "bad", same(createACLs(allow(kmsg.ACLResourceTypeTopic, "", "*", kmsg.ACLOperationRead))))
	add(kmsg.NewPtrDeleteACLsRequest(), "none", same(deleteACLs(func(f *kmsg.DeleteACLsRequestFilter) { f.Principal = str("User:none") })))
	return out
}

// controllerQuestions are for the listener of a controller, whose clients are other nodes. Who may act for the cluster isn't asked
// them: the answers would be those of a quorum.
func controllerQuestions() []question {
	out := adminQuestions()
	add := func(r kmsg.Request) {
		out = append(out, plain(r, "of a node", func(*side, int16) kmsg.Request { return r }))
	}
	for _, kind := range []int8{1, 2} {
		r := kmsg.NewPtrDescribeClusterRequest()
		r.EndpointType, r.IncludeClusterAuthorizedOperations = kind, true
		add(r)
	}
	add(kmsg.NewPtrVoteRequest())
	add(kmsg.NewPtrBeginQuorumEpochRequest())
	add(kmsg.NewPtrEndQuorumEpochRequest())
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Topics = []kmsg.FetchRequestTopic{{Topic: "__cluster_metadata", TopicID: [16]byte{15: 1}, Partitions: []kmsg.FetchRequestTopicPartition{{}}}}
	add(fetch)
	add(kmsg.NewPtrFetchSnapshotRequest())
	voter := kmsg.NewPtrUpdateRaftVoterRequest()
	voter.ClusterID = str(clusterID)
	add(voter)
	add(kmsg.NewPtrBrokerRegistrationRequest())
	add(kmsg.NewPtrBrokerHeartbeatRequest())
	add(kmsg.NewPtrAlterPartitionRequest())
	add(kmsg.NewPtrAllocateProducerIDsRequest())
	add(kmsg.NewPtrAssignReplicasToDirsRequest())
	add(kmsg.NewPtrControllerRegistrationRequest())
	add(kmsg.NewPtrEnvelopeRequest())
	return out
}
