package controller

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
)

// The answers in testdata/answers.txt were given by Apache Kafka 4.4.0: a single combined node, id 1, freshly formatted
// with defaults. To ask again: go test -run TestAnswersAreKafkas -oracle localhost:9092
var (
	oracle = flag.String("oracle", "", "address of a fresh Kafka 4.4.0 to ask instead, whose answers are written down")
	server = flag.String("server", "", "address of a fresh node to hold against the answers, in place of a bare core")
)

// dialogue asks either the oracle or a core.
type dialogue struct {
	t    *testing.T
	conn net.Conn
	w    *world
	ids  map[string][16]byte // of topics created
}

func (d *dialogue) ask(req kmsg.Request) kmsg.Response {
	var resp kmsg.Response
	if d.conn == nil {
		resp = ask[kmsg.Response](d.w, req)
	} else {
		resp = d.roundTrip(req)
	}
	if r, ok := resp.(*kmsg.CreateTopicsResponse); ok {
		for _, t := range r.Topics {
			if t.ErrorCode == 0 {
				d.ids[t.Topic] = t.TopicID
			}
		}
	}
	return resp
}

func (d *dialogue) roundTrip(req kmsg.Request) kmsg.Response {
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("test"))
	if _, err := d.conn.Write(f.AppendRequest(nil, req, 1)); err != nil {
		d.t.Fatal(err)
	}
	var size [4]byte
	if err := d.conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		d.t.Fatal(err)
	}
	if _, err := io.ReadFull(d.conn, size[:]); err != nil {
		d.t.Logf("%T: %v", req, err)
		d.conn.Close()
		if d.conn, err = net.Dial("tcp", *oracle+*server); err != nil {
			d.t.Fatal(err)
		}
		return nil
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(d.conn, body); err != nil {
		d.t.Fatal(err)
	}
	body = body[4:]
	resp := req.ResponseKind()
	if resp.IsFlexible() {
		body = body[1:]
	}
	if err := resp.ReadFrom(body); err != nil {
		d.t.Fatal(err)
	}
	return resp
}

// question is one request of the dialogue.
type question struct {
	name string
	req  func(d *dialogue) kmsg.Request
}

var (
	unknownTags = regexp.MustCompile(`,?"(UnknownTags|Version|ThrottleMillis)":(\{\}|\d+)`)
	idBytes     = regexp.MustCompile(`"TopicID":\[([\d,]+)\]`)
)

// render writes a response as text that two answers to the same question share.
func render(resp kmsg.Response) string {
	if resp == nil {
		return "connection closed"
	}
	switch r := resp.(type) { // Kafka's results come in the order of a hash table
	case *kmsg.CreateTopicsResponse:
		slices.SortFunc(r.Topics, func(a, b kmsg.CreateTopicsResponseTopic) int { return strings.Compare(a.Topic, b.Topic) })
	case *kmsg.CreatePartitionsResponse:
		slices.SortFunc(r.Topics, func(a, b kmsg.CreatePartitionsResponseTopic) int { return strings.Compare(a.Topic, b.Topic) })
	case *kmsg.DeleteTopicsResponse:
		key := func(t kmsg.DeleteTopicsResponseTopic) string {
			return fmt.Sprint(orNull(t.Topic), t.ErrorCode, orNull(t.ErrorMessage))
		}
		slices.SortFunc(r.Topics, func(a, b kmsg.DeleteTopicsResponseTopic) int { return strings.Compare(key(a), key(b)) })
	case *kmsg.AlterClientQuotasResponse:
		key := func(e kmsg.AlterClientQuotasResponseEntry) string { b, _ := json.Marshal(e); return string(b) }
		for i := range r.Entries {
			slices.SortFunc(r.Entries[i].Entity, func(a, b kmsg.AlterClientQuotasResponseEntryEntity) int { return strings.Compare(a.Type, b.Type) })
		}
		slices.SortFunc(r.Entries, func(a, b kmsg.AlterClientQuotasResponseEntry) int { return strings.Compare(key(a), key(b)) })
	case *kmsg.IncrementalAlterConfigsResponse:
		slices.SortFunc(r.Resources, func(a, b kmsg.IncrementalAlterConfigsResponseResource) int {
			return strings.Compare(a.ResourceName, b.ResourceName)
		})
	case *kmsg.AlterConfigsResponse:
		slices.SortFunc(r.Resources, func(a, b kmsg.AlterConfigsResponseResource) int {
			return strings.Compare(a.ResourceName, b.ResourceName)
		})
	case *kmsg.ElectLeadersResponse:
		slices.SortFunc(r.Topics, func(a, b kmsg.ElectLeadersResponseTopic) int { return strings.Compare(a.Topic, b.Topic) })
	case *kmsg.AlterUserSCRAMCredentialsResponse:
		slices.SortFunc(r.Results, func(a, b kmsg.AlterUserSCRAMCredentialsResponseResult) int { return strings.Compare(a.User, b.User) })
	}
	b, err := json.Marshal(resp)
	if err != nil {
		panic(err)
	}
	s := unknownTags.ReplaceAllString(string(b), "")
	s = strings.ReplaceAll(s, "{,", "{")
	s = idBytes.ReplaceAllStringFunc(s, func(m string) string {
		if strings.Trim(m, `"TopicID:[0,]`) == "" {
			return `"TopicID":0`
		}
		return `"TopicID":"some"`
	})
	return s
}

func topicReq(change func(r *kmsg.CreateTopicsRequest, t *kmsg.CreateTopicsRequestTopic)) func(*dialogue) kmsg.Request {
	return func(*dialogue) kmsg.Request {
		r := createRequest("t", 1, 1)
		r.TimeoutMillis = 10000
		change(r, &r.Topics[0])
		return r
	}
}

func str(s string) *string { return &s }

func topicConfig(kv ...string) (out []kmsg.CreateTopicsRequestTopicConfig) {
	for i := 0; i < len(kv); i += 2 {
		out = append(out, kmsg.CreateTopicsRequestTopicConfig{Name: kv[i], Value: str(kv[i+1])})
	}
	return out
}

func assignment(parts ...[]int32) (out []kmsg.CreateTopicsRequestTopicReplicaAssignment) {
	for i, r := range parts {
		out = append(out, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(i), Replicas: r})
	}
	return out
}

func createQuestions() []question {
	type topic = *kmsg.CreateTopicsRequestTopic
	type req = *kmsg.CreateTopicsRequest
	byHand := func(t topic, parts ...[]int32) {
		t.NumPartitions, t.ReplicationFactor, t.ReplicaAssignment = -1, -1, assignment(parts...)
	}
	f := func(name string, change func(r req, t topic)) question {
		return question{"create: " + name, topicReq(change)}
	}
	return []question{
		f("one", func(r req, t topic) {}),
		f("exists", func(r req, t topic) {}),
		f("validate only", func(r req, t topic) { t.Topic, r.ValidateOnly = "v", true }),
		f("validate only that exists", func(r req, t topic) { r.ValidateOnly = true }),
		f("defaults", func(r req, t topic) { t.Topic, t.NumPartitions, t.ReplicationFactor = "defaults", -1, -1 }),
		f("empty name", func(r req, t topic) { t.Topic = "" }),
		f("dot", func(r req, t topic) { t.Topic = "." }),
		f("two dots", func(r req, t topic) { t.Topic = ".." }),
		f("long name", func(r req, t topic) { t.Topic = strings.Repeat("x", 250) }),
		f("bad character", func(r req, t topic) { t.Topic = "a/b" }),
		f("a.b", func(r req, t topic) { t.Topic = "a.b" }),
		f("a_b collides", func(r req, t topic) { t.Topic = "a_b" }),
		f("metadata topic", func(r req, t topic) { t.Topic = "__cluster_metadata" }),
		f("duplicates", func(r req, t topic) { t.Topic = "dup"; r.Topics = append(r.Topics, *t, *t) }),
		f("zero partitions", func(r req, t topic) { t.Topic, t.NumPartitions = "z", 0 }),
		f("negative partitions", func(r req, t topic) { t.Topic, t.NumPartitions = "z", -2 }),
		f("factor zero", func(r req, t topic) { t.Topic, t.ReplicationFactor = "z", 0 }),
		f("factor -2", func(r req, t topic) { t.Topic, t.ReplicationFactor = "z", -2 }),
		f("factor above brokers", func(r req, t topic) { t.Topic, t.ReplicationFactor = "z", 3 }),
		f("too many partitions", func(r req, t topic) { t.Topic, t.NumPartitions = "z", 10_001 }),
		f("too many records", func(r req, t topic) { t.Topic, t.NumPartitions = "z", 10_000 }),
		f("by hand", func(r req, t topic) { t.Topic = "hand"; byHand(t, []int32{1}, []int32{1}) }),
		f("by hand with partitions", func(r req, t topic) { t.Topic = "z"; byHand(t, []int32{1}); t.NumPartitions = 1 }),
		f("by hand with factor", func(r req, t topic) { t.Topic = "z"; byHand(t, []int32{1}); t.ReplicationFactor = 1 }),
		f("by hand on unknown broker", func(r req, t topic) { t.Topic = "z"; byHand(t, []int32{1, 9}) }),
		f("by hand twice the same", func(r req, t topic) { t.Topic = "z"; byHand(t, []int32{1, 1}) }),
		f("by hand without replicas", func(r req, t topic) { t.Topic = "z"; byHand(t, []int32{}) }),
		f("by hand not from 0", func(r req, t topic) { t.Topic = "z"; byHand(t, []int32{1}); t.ReplicaAssignment[0].Partition = 1 }),
		f("by hand one partition twice", func(r req, t topic) {
			t.Topic = "z"
			byHand(t, []int32{1}, []int32{1})
			t.ReplicaAssignment[1].Partition = 0
		}),
		f("by hand inconsistent", func(r req, t topic) { t.Topic = "z"; byHand(t, []int32{1}, []int32{1, 1}) }),
		f("configs", func(r req, t topic) {
			t.Topic, t.Configs = "conf", topicConfig("cleanup.policy", "compact", "retention.ms", "1000")
		}),
		f("unknown config", func(r req, t topic) { t.Topic, t.Configs = "z", topicConfig("no.such", "1") }),
		f("bad config", func(r req, t topic) { t.Topic, t.Configs = "z", topicConfig("retention.ms", "soon") }),
		f("config out of range", func(r req, t topic) { t.Topic, t.Configs = "z", topicConfig("max.message.bytes", "-1") }),
		f("config not in list", func(r req, t topic) { t.Topic, t.Configs = "z", topicConfig("cleanup.policy", "burn") }),
		f("null config", func(r req, t topic) {
			t.Topic, t.Configs = "z", []kmsg.CreateTopicsRequestTopicConfig{{Name: "retention.ms"}}
		}),
		f("config twice", func(r req, t topic) {
			t.Topic, t.Configs = "twice", topicConfig("retention.ms", "1000", "retention.ms", "2000")
		}),
		f("min compaction lag above max", func(r req, t topic) {
			t.Topic, t.Configs = "z", topicConfig("min.compaction.lag.ms", "10", "max.compaction.lag.ms", "5")
		}),
	}
}

func otherQuestions() []question {
	q := func(name string, req func(d *dialogue) kmsg.Request) question { return question{name, req} }
	part := func(name string, topic string, count int32, assignments [][]int32, validate bool) question {
		return q("partitions: "+name, func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrCreatePartitionsRequest()
			r.TimeoutMillis, r.ValidateOnly = 10000, validate
			t := kmsg.NewCreatePartitionsRequestTopic()
			t.Topic, t.Count = topic, count
			for _, a := range assignments {
				t.Assignment = append(t.Assignment, kmsg.CreatePartitionsRequestTopicAssignment{Replicas: a})
			}
			r.Topics = append(r.Topics, t)
			return r
		})
	}
	alter := func(name string, kind int8, resource string, ops ...any) question {
		return q("config: "+name, func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrIncrementalAlterConfigsRequest()
			x := kmsg.NewIncrementalAlterConfigsRequestResource()
			x.ResourceType, x.ResourceName = kmsg.ConfigResourceType(kind), resource
			for i := 0; i < len(ops); i += 3 {
				c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
				c.Name, c.Op = ops[i].(string), kmsg.IncrementalAlterConfigOp(ops[i+1].(int))
				if v, ok := ops[i+2].(string); ok {
					c.Value = &v
				}
				x.Configs = append(x.Configs, c)
			}
			r.Resources = append(r.Resources, x)
			return r
		})
	}
	legacy := func(name string, kind int8, resource string, kv ...string) question {
		return q("legacy config: "+name, func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrAlterConfigsRequest()
			x := kmsg.NewAlterConfigsRequestResource()
			x.ResourceType, x.ResourceName = kmsg.ConfigResourceType(kind), resource
			for i := 0; i < len(kv); i += 2 {
				x.Configs = append(x.Configs, kmsg.AlterConfigsRequestResourceConfig{Name: kv[i], Value: str(kv[i+1])})
			}
			r.Resources = append(r.Resources, x)
			return r
		})
	}
	feature := func(name string, feature string, level int16, kind int8, validate bool) question {
		return q("feature: "+name, func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrUpdateFeaturesRequest()
			r.TimeoutMillis, r.ValidateOnly = 10000, validate
			u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
			u.Feature, u.MaxVersionLevel, u.UpgradeType = feature, level, kind
			r.FeatureUpdates = append(r.FeatureUpdates, u)
			return r
		})
	}
	elect := func(name string, kind int8, topic string, parts ...int32) question {
		return q("elect: "+name, func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrElectLeadersRequest()
			r.TimeoutMillis, r.ElectionType = 10000, kind
			if topic != "" {
				r.Topics = append(r.Topics, kmsg.ElectLeadersRequestTopic{Topic: topic, Partitions: parts})
			}
			return r
		})
	}
	reassign := func(name, topic string, p int32, replicas []int32) question {
		return q("reassign: "+name, func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrAlterPartitionAssignmentsRequest()
			r.TimeoutMillis = 10000
			x := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
			x.Partition, x.Replicas = p, replicas
			r.Topics = append(r.Topics, kmsg.AlterPartitionAssignmentsRequestTopic{Topic: topic, Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{x}})
			return r
		})
	}
	quota := func(name string, entity []string, key string, value float64, remove bool) question {
		return q("quota: "+name, func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrAlterClientQuotasRequest()
			e := kmsg.NewAlterClientQuotasRequestEntry()
			for i := 0; i < len(entity); i += 2 {
				x := kmsg.NewAlterClientQuotasRequestEntryEntity()
				x.Type = entity[i]
				if entity[i+1] != "<default>" {
					x.Name = str(entity[i+1])
				}
				e.Entity = append(e.Entity, x)
			}
			e.Ops = append(e.Ops, kmsg.AlterClientQuotasRequestEntryOp{Key: key, Value: value, Remove: remove})
			r.Entries = append(r.Entries, e)
			return r
		})
	}
	scramSet := func(name, user string, mechanism int8, iterations int32) question {
		return q("scram: "+name, func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
			r.Upsertions = append(r.Upsertions, kmsg.AlterUserSCRAMCredentialsRequestUpsertion{Name: user, Mechanism: mechanism, Iterations: iterations, Salt: []byte("salt"), SaltedPassword: []byte("password")})
			return r
		})
	}
	scramDrop := func(name, user string, mechanism int8) question {
		return q("scram: "+name, func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
			r.Deletions = append(r.Deletions, kmsg.AlterUserSCRAMCredentialsRequestDeletion{Name: user, Mechanism: mechanism})
			return r
		})
	}
	remove := func(name string, build func(d *dialogue, r *kmsg.DeleteTopicsRequest)) question {
		return q("delete: "+name, func(d *dialogue) kmsg.Request {
			r := kmsg.NewPtrDeleteTopicsRequest()
			r.TimeoutMillis = 10000
			build(d, r)
			return r
		})
	}
	named := func(n string) kmsg.DeleteTopicsRequestTopic { return kmsg.DeleteTopicsRequestTopic{Topic: &n} }
	return []question{
		part("more", "t", 3, nil, false),
		part("as many", "t", 3, nil, false),
		part("fewer", "t", 2, nil, false),
		part("zero", "t", 0, nil, false),
		part("negative", "t", -1, nil, false),
		part("unknown topic", "nope", 3, nil, false),
		part("by hand", "t", 4, [][]int32{{1}}, false),
		part("by hand too few", "t", 9, [][]int32{{1}}, false),
		part("by hand unknown broker", "t", 5, [][]int32{{7}}, false),
		part("by hand other factor", "t", 5, [][]int32{{1, 1}}, false),
		part("by hand empty", "t", 5, [][]int32{{}}, false),
		part("validate only", "t", 20, nil, true),
		part("after validate only", "t", 4, nil, false),
		part("too many", "t", 20_000, nil, false),
		q("partitions: twice", func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrCreatePartitionsRequest()
			r.TimeoutMillis = 10000
			for range 2 {
				t := kmsg.NewCreatePartitionsRequestTopic()
				t.Topic, t.Count = "t", 9
				r.Topics = append(r.Topics, t)
			}
			return r
		}),

		alter("set", kindTopic, "t", "retention.ms", 0, "5000"),
		alter("set bad", kindTopic, "t", "retention.ms", 0, "x"),
		alter("set null", kindTopic, "t", "retention.ms", 0, nil),
		alter("delete", kindTopic, "t", "retention.ms", 1, nil),
		alter("delete what isn't there", kindTopic, "t", "retention.bytes", 1, nil),
		alter("append", kindTopic, "t", "cleanup.policy", 2, "compact"),
		alter("subtract", kindTopic, "t", "cleanup.policy", 3, "delete"),
		alter("append to what is no list", kindTopic, "t", "retention.ms", 2, "1"),
		alter("append null", kindTopic, "t", "cleanup.policy", 2, nil),
		alter("unknown op", kindTopic, "t", "retention.ms", 9, "1"),
		alter("unknown key", kindTopic, "t", "no.such", 0, "1"),
		alter("unknown topic", kindTopic, "nope", "retention.ms", 0, "1"),
		alter("empty topic name", kindTopic, "", "retention.ms", 0, "1"),
		alter("bad topic name", kindTopic, "a/b", "retention.ms", 0, "1"),
		alter("key twice", kindTopic, "t", "retention.ms", 0, "1", "retention.ms", 0, "2"),
		alter("broker", kindBroker, "1", "log.cleaner.threads", 0, "2"),
		alter("all brokers", kindBroker, "", "log.cleaner.threads", 0, "1"),
		alter("broker min isr under elr", kindBroker, "1", "min.insync.replicas", 0, "2"),
		alter("cluster min isr removed under elr", kindBroker, "", "min.insync.replicas", 1, nil),
		alter("cluster min isr", kindBroker, "", "min.insync.replicas", 0, "1"),
		alter("unknown broker", kindBroker, "77", "log.cleaner.threads", 0, "2"),
		alter("broker name no number", kindBroker, "x", "log.cleaner.threads", 0, "2"),
		alter("group", kindGroup, "g", "consumer.session.timeout.ms", 0, "50000"),
		alter("group bad", kindGroup, "g", "consumer.session.timeout.ms", 0, "1"),
		alter("group unknown key", kindGroup, "g", "nope", 0, "1"),
		alter("group without name", kindGroup, "", "consumer.session.timeout.ms", 0, "50000"),
		alter("client metrics", kindClientMetrics, "m", "interval.ms", 0, "1000"),
		alter("client metrics bad", kindClientMetrics, "m", "interval.ms", 0, "1"),
		alter("client metrics unknown key", kindClientMetrics, "m", "nope", 0, "1"),
		alter("unknown resource type", 3, "m", "nope", 0, "1"),
		legacy("set", kindTopic, "t", "retention.ms", "7000"),
		legacy("replace", kindTopic, "t", "retention.bytes", "7000"),
		legacy("nothing", kindTopic, "t"),
		legacy("bad", kindTopic, "t", "retention.ms", "x"),
		legacy("unknown topic", kindTopic, "nope", "retention.ms", "1"),
		legacy("unknown type", 3, "nope", "retention.ms", "1"),

		feature("unknown", "no.such", 1, 1, false),
		feature("to 0 of unknown", "no.such", 0, 2, false),
		feature("too high", "metadata.version", 99, 1, false),
		feature("negative", "group.version", -1, 1, false),
		feature("same", "group.version", 1, 1, false),
		feature("down without saying so", "group.version", 0, 1, false),
		feature("down, validate only", "group.version", 0, 2, true),
		feature("up as down", "share.version", 2, 2, false),
		feature("bad type", "group.version", 1, 7, false),
		feature("metadata down", "metadata.version", 32, 2, false),
		feature("metadata down unsafe", "metadata.version", 32, 3, false),
		feature("metadata below", "metadata.version", 3, 3, false),
		feature("kraft down", "kraft.version", 0, 2, false),
		feature("kraft same", "kraft.version", 1, 1, true),
		feature("elr again", "eligible.leader.replicas.version", 1, 1, false),

		elect("preferred not needed", 0, "t", 0),
		elect("unclean not needed", 1, "t", 0),
		elect("unknown topic", 0, "nope", 0),
		elect("unknown partition", 0, "t", 99),
		elect("all", 0, ""),

		reassign("none in progress", "t", 0, nil),
		reassign("same", "t", 0, []int32{1}),
		reassign("unknown broker", "t", 0, []int32{5}),
		reassign("unknown topic", "nope", 0, []int32{1}),
		reassign("unknown partition", "t", 99, []int32{1}),
		reassign("empty", "t", 0, []int32{}),
		reassign("duplicate", "t", 0, []int32{1, 1}),
		q("reassignments: all", func(*dialogue) kmsg.Request {
			r := kmsg.NewPtrListPartitionReassignmentsRequest()
			r.TimeoutMillis = 10000
			return r
		}),

		quota("set", []string{"user", "u"}, "producer_byte_rate", 1000, false),
		quota("default user", []string{"user", "<default>"}, "consumer_byte_rate", 1000, false),
		quota("user and client", []string{"user", "u", "client-id", "c"}, "request_percentage", 12.5, false),
		quota("remove", []string{"user", "u"}, "producer_byte_rate", 0, true),
		quota("remove what isn't there", []string{"user", "u"}, "producer_byte_rate", 0, true),
		quota("unknown key", []string{"user", "u"}, "no_such", 1, false),
		quota("zero", []string{"user", "u"}, "producer_byte_rate", 0, false),
		quota("fraction", []string{"user", "u"}, "producer_byte_rate", 1.5, false),
		quota("unknown entity", []string{"planet", "mars"}, "producer_byte_rate", 1, false),
		quota("empty name", []string{"user", ""}, "producer_byte_rate", 1, false),
		quota("no entity", nil, "producer_byte_rate", 1, false),
		quota("ip", []string{"ip", "10.0.0.1"}, "connection_creation_rate", 10, false),
		quota("ip with user", []string{"ip", "10.0.0.1", "user", "u"}, "connection_creation_rate", 10, false),
		quota("ip with wrong key", []string{"ip", "10.0.0.1"}, "producer_byte_rate", 10, false),
		quota("ip too large", []string{"ip", "10.0.0.1"}, "connection_creation_rate", 1e10, false),

		scramSet("set", "u", 1, 4096),
		scramSet("too few", "u", 1, 4095),
		scramSet("too many", "u", 1, 16385),
		scramSet("unknown mechanism", "u", 9, 4096),
		scramSet("no user", "", 1, 4096),
		scramDrop("drop", "u", 1),
		scramDrop("drop again", "u", 1),
		scramDrop("drop unknown mechanism", "u", 9),

		remove("unknown", func(d *dialogue, r *kmsg.DeleteTopicsRequest) { r.Topics = append(r.Topics, named("nope")) }),
		remove("unknown id", func(d *dialogue, r *kmsg.DeleteTopicsRequest) {
			r.Topics = append(r.Topics, kmsg.DeleteTopicsRequestTopic{TopicID: [16]byte{1, 2}})
		}),
		remove("neither", func(d *dialogue, r *kmsg.DeleteTopicsRequest) {
			r.Topics = append(r.Topics, kmsg.DeleteTopicsRequestTopic{})
		}),
		remove("both", func(d *dialogue, r *kmsg.DeleteTopicsRequest) {
			r.Topics = append(r.Topics, kmsg.DeleteTopicsRequestTopic{Topic: str("t"), TopicID: d.ids["t"]})
		}),
		remove("name twice", func(d *dialogue, r *kmsg.DeleteTopicsRequest) { r.Topics = append(r.Topics, named("t"), named("t")) }),
		remove("name and its id", func(d *dialogue, r *kmsg.DeleteTopicsRequest) {
			r.Topics = append(r.Topics, named("t"), kmsg.DeleteTopicsRequestTopic{TopicID: d.ids["t"]})
		}),
		remove("id twice", func(d *dialogue, r *kmsg.DeleteTopicsRequest) {
			r.Topics = append(r.Topics, kmsg.DeleteTopicsRequestTopic{TopicID: d.ids["t"]}, kmsg.DeleteTopicsRequestTopic{TopicID: d.ids["t"]})
		}),
		remove("by id", func(d *dialogue, r *kmsg.DeleteTopicsRequest) {
			r.Topics = append(r.Topics, kmsg.DeleteTopicsRequestTopic{TopicID: d.ids["t"]})
		}),
		remove("by name", func(d *dialogue, r *kmsg.DeleteTopicsRequest) { r.Topics = append(r.Topics, named("conf")) }),
		remove("again", func(d *dialogue, r *kmsg.DeleteTopicsRequest) { r.Topics = append(r.Topics, named("conf")) }),
		q("unregister: unknown broker", func(*dialogue) kmsg.Request { r := kmsg.NewPtrUnregisterBrokerRequest(); r.BrokerID = 55; return r }),
	}
}

func TestAnswersAreKafkas(t *testing.T) {
	const file = "testdata/answers.txt"
	d := &dialogue{t: t, ids: make(map[string][16]byte)}
	if addr := *oracle + *server; addr != "" {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		d.conn = conn
	} else {
		d.w = newWorld(t, func(o *Options) {
			o.Bootstrap = nil
			for _, f := range []struct {
				name  string
				level int16
			}{{"metadata.version", 33}, {"eligible.leader.replicas.version", 1}, {"group.version", 1}, {"share.version", 2}, {"streams.version", 1}, {"transaction.version", 2}} {
				r := message.NewFeatureLevelRecord()
				r.Name, r.FeatureLevel = f.name, f.level
				o.Bootstrap = append(o.Bootstrap, message.Versioned{Message: r})
			}
		})
		d.w.lead()
		d.w.up(1)
	}
	var said strings.Builder
	wanted := map[string]string{}
	if *oracle == "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(raw), "\n\n") {
			name, answer, _ := strings.Cut(block, "\n")
			wanted[name] = strings.TrimSpace(answer)
		}
	}
	for _, q := range append(createQuestions(), otherQuestions()...) {
		req := q.req(d)
		req.SetVersion(min(req.MaxVersion(), maxVersions[req.Key()]))
		got := render(d.ask(req))
		fmt.Fprintf(&said, "%s\n%s\n\n", q.name, got)
		if *oracle != "" {
			continue
		}
		if want, ok := wanted[q.name]; !ok {
			t.Errorf("%s: Kafka wasn't asked", q.name)
		} else if (!brokersWork[q.name] || *server != "") && ownWords(got) != ownWords(want) {
			t.Errorf("%s:\n got %s\nwant %s", q.name, got, want)
		}
	}
	if *oracle != "" {
		if err := os.WriteFile(file, []byte(strings.TrimSuffix(said.String(), "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// brokersWork are the questions that a broker answers without asking the controller; package broker tests them.
var brokersWork = map[string]bool{
	"config: set null": true, "config: append null": true, "config: unknown op": true, "config: key twice": true,
	"config: unknown broker": true, "config: broker name no number": true, "config: unknown resource type": true,
	"legacy config: unknown type": true,
}

// maxVersions are the highest that 4.4.0 serves, by API key.
var maxVersions = map[int16]int16{19: 7, 20: 6, 37: 3, 33: 2, 44: 1, 43: 2, 45: 1, 46: 0, 49: 1, 51: 0, 57: 2, 64: 0}

// ownWords replaces the sentence that stands for a code without more to say: ours are other words than Kafka's.
func ownWords(s string) string {
	for code := int16(-1); code < 140; code++ {
		if e := api.ErrorFor(code); e != nil {
			quoted, _ := json.Marshal(e.Message)
			s = strings.ReplaceAll(s, string(quoted), fmt.Sprintf(`"<%s>"`, e.Name))
		}
	}
	for name, text := range kafkaWords {
		s = strings.ReplaceAll(s, `"`+text+`"`, fmt.Sprintf(`"<%s>"`, name))
	}
	return s
}

// kafkaWords are Kafka's sentences for the codes that come up here.
var kafkaWords = map[string]string{
	"ELECTION_NOT_NEEDED":        "Leader election not needed for topic partition.",
	"UNKNOWN_TOPIC_OR_PARTITION": "This server does not host this topic-partition.",
	"UNKNOWN_TOPIC_ID":           "This server does not host this topic ID.",
}
