package broker

import (
	crand "crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/controller"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// coreController is a controller in this process whose log commits at once and is published to the world's broker.
type coreController struct {
	mu   sync.Mutex // guards all; one request at a time
	w    *world
	core *controller.Core
	// the log
	end     int64
	base    int64
	pending []message.Versioned
}

func (c *coreController) PrepareAppend(_ int32, records []message.Versioned) (int64, error) {
	if len(c.pending) == 0 {
		c.base = c.end
	}
	c.pending = append(c.pending, records...)
	c.end += int64(len(records))
	return c.end - 1, nil
}

func (c *coreController) SchedulePreparedAppend() {}
func (c *coreController) LogEndOffset() int64     { return c.end }
func (c *coreController) Resign(int32)            {}
func (c *coreController) KRaftVersion() int16     { return 1 }
func (c *coreController) UpgradeKRaftVersion(int32, int16, bool) (int64, error) {
	return -1, nil
}

func (c *coreController) commit() {
	records := c.pending
	c.pending = nil
	if len(records) == 0 {
		return
	}
	var out []message.Message
	for _, r := range records {
		switch r.Message.(type) {
		case *message.BeginTransactionRecord, *message.EndTransactionRecord: // for the loader, which isn't here
		default:
			out = append(out, r.Message)
		}
	}
	c.w.publish(out...)
	configs := c.w.image.Configs // which the node's publisher would do
	c.w.broker.config.Update(configs.Get(metadata.Resource{Type: metadata.BrokerResource}), configs.Get(metadata.Resource{Type: metadata.BrokerResource, Name: "1"}))
	c.core.HandleCommit(time.Now(), c.base, c.end-1, records)
}

func (c *coreController) Forward(_ Client, q kmsg.Request, deadline time.Time, reply func(kmsg.Response, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.Submit(time.Now(), &controller.RequestContext{Principal: "User:ANONYMOUS", Forwarded: true}, q, reply)
	c.commit()
}

// withController gives the world a real controller, with the broker registered and in service.
func (w *world) withController() {
	w.tb.Helper()
	c := &coreController{w: w}
	level := func(name string, v int16) message.Versioned {
		return message.Versioned{Message: &message.FeatureLevelRecord{Name: name, FeatureLevel: v}}
	}
	c.core = controller.NewCore(controller.Options{
		NodeID: 1, ClusterID: "c", Logger: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2)), IDs: crand.Reader,
		Configs: controller.NewConfigSchema(w.broker.config.Current()),
		Bootstrap: []message.Versioned{level("metadata.version", 33), level("eligible.leader.replicas.version", 1), level("group.version", 1),
			level("share.version", 2), level("streams.version", 1), level("transaction.version", 2)},
	}, c)
	w.broker.controller = c
	c.core.HandleLeaderChange(time.Now(), 1, 1)
	c.commit()
	reg := kmsg.NewPtrBrokerRegistrationRequest()
	reg.Version, reg.BrokerID, reg.ClusterID, reg.PreviousBrokerEpoch = reg.MaxVersion(), 1, "c", -1
	me := w.image.Cluster.Broker(1)
	for _, d := range me.LogDirs {
		reg.LogDirs = append(reg.LogDirs, d)
	}
	for name, ep := range me.Listeners {
		reg.Listeners = append(reg.Listeners, kmsg.BrokerRegistrationRequestListener{Name: name, Host: ep.Host, Port: ep.Port})
	}
	for name, r := range metadata.SupportedFeatures(false) {
		reg.Features = append(reg.Features, kmsg.BrokerRegistrationRequestFeature{Name: name, MinSupportedVersion: r.Min, MaxSupportedVersion: r.Max})
	}
	var epoch int64
	c.Forward(Client{}, reg, time.Time{}, func(resp kmsg.Response, _ error) { epoch = resp.(*kmsg.BrokerRegistrationResponse).BrokerEpoch })
	hb := kmsg.NewPtrBrokerHeartbeatRequest()
	hb.Version, hb.BrokerID, hb.BrokerEpoch, hb.CurrentMetadataOffset = hb.MaxVersion(), 1, epoch, c.end
	c.Forward(Client{}, hb, time.Time{}, func(resp kmsg.Response, _ error) {
		if r := resp.(*kmsg.BrokerHeartbeatResponse); r.ErrorCode != 0 || r.IsFenced {
			w.tb.Fatalf("heartbeat: %+v", r)
		}
	})
}

// The answers in testdata/admin-answers.txt were given by Apache Kafka 4.4.0: a single combined node, id 1, freshly formatted
// with defaults. To ask again: go test -run TestAdminAnswersAreKafkas -oracle localhost:9092
var oracle = flag.String("oracle", "", "address of a fresh Kafka 4.4.0 to ask instead, whose answers are written down")

// question is one request of a dialogue.
type question struct {
	name string
	req  kmsg.Request
}

func ptr[T any](v T) *T { return &v }

func adminQuestions() []question {
	var out []question
	ask := func(name string, req kmsg.Request, version int16) {
		req.SetVersion(version)
		out = append(out, question{name, req})
	}
	create := func(name string, partitions int32, configs ...string) {
		t := kmsg.CreateTopicsRequestTopic{Topic: name, NumPartitions: partitions, ReplicationFactor: 1}
		for i := 0; i < len(configs); i += 2 {
			t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: configs[i], Value: &configs[i+1]})
		}
		ask("create "+name, &kmsg.CreateTopicsRequest{TimeoutMillis: 10000, Topics: []kmsg.CreateTopicsRequestTopic{t}}, 5)
	}
	type inc = kmsg.IncrementalAlterConfigsRequestResource
	type op = kmsg.IncrementalAlterConfigsRequestResourceConfig
	alter := func(name string, resources ...inc) {
		ask("alter: "+name, &kmsg.IncrementalAlterConfigsRequest{Resources: resources}, 1)
	}
	type old = kmsg.AlterConfigsRequestResource
	type kv = kmsg.AlterConfigsRequestResourceConfig
	legacy := func(name string, resources ...old) {
		ask("legacy alter: "+name, &kmsg.AlterConfigsRequest{Resources: resources}, 2)
	}
	describe := func(name string, kind kmsg.ConfigResourceType, resource string, keys ...string) {
		ask("describe configs: "+name, &kmsg.DescribeConfigsRequest{IncludeSynonyms: true, Resources: []kmsg.DescribeConfigsRequestResource{
			{ResourceType: kind, ResourceName: resource, ConfigNames: keys}}}, 4)
	}
	partitions := func(name string, limit int32, cursor *kmsg.DescribeTopicPartitionsRequestCursor, topics ...string) {
		q := &kmsg.DescribeTopicPartitionsRequest{ResponsePartitionLimit: limit, Cursor: cursor}
		for _, t := range topics {
			q.Topics = append(q.Topics, kmsg.DescribeTopicPartitionsRequestTopic{Topic: t})
		}
		ask("topic partitions: "+name, q, 0)
	}
	quotas := func(name string, strict bool, components ...kmsg.DescribeClientQuotasRequestComponent) {
		ask("quotas: "+name, &kmsg.DescribeClientQuotasRequest{Strict: strict, Components: components}, 1)
	}
	const topic, broker, logger, metrics, group = kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker, kmsg.ConfigResourceTypeBrokerLogger, kmsg.ConfigResourceType(16), kmsg.ConfigResourceType(32)

	create("a", 3, "cleanup.policy", "compact", "retention.ms", "1000")
	create("b", 2)
	create("c.d", 1)

	alter("null value", inc{ResourceType: topic, ResourceName: "b", Configs: []op{{Name: "retention.ms"}}})
	alter("null values", inc{ResourceType: topic, ResourceName: "b", Configs: []op{{Name: "retention.ms"}, {Name: "retention.bytes", Op: 2}}})
	alter("key twice", inc{ResourceType: topic, ResourceName: "b", Configs: []op{{Name: "retention.ms", Value: ptr("1")}, {Name: "retention.ms", Value: ptr("2")}}})
	alter("unknown operation", inc{ResourceType: topic, ResourceName: "b", Configs: []op{{Name: "retention.ms", Op: 9, Value: ptr("1")}}})
	alter("unknown operation of a broker", inc{ResourceType: broker, ResourceName: "1", Configs: []op{{Name: "log.cleaner.threads", Op: 9, Value: ptr("1")}}})
	alter("another broker", inc{ResourceType: broker, ResourceName: "77", Configs: []op{{Name: "log.cleaner.threads", Value: ptr("2")}}})
	alter("broker of no number", inc{ResourceType: broker, ResourceName: "x", Configs: []op{{Name: "log.cleaner.threads", Value: ptr("2")}}})
	alter("broker key that is read-only", inc{ResourceType: broker, ResourceName: "1", Configs: []op{{Name: "broker.rack", Value: ptr("r")}}})
	alter("broker key that doesn't parse", inc{ResourceType: broker, ResourceName: "1", Configs: []op{{Name: "log.cleaner.threads", Value: ptr("many")}}})
	alter("broker key out of range", inc{ResourceType: broker, ResourceName: "1", Configs: []op{{Name: "log.retention.ms", Value: ptr("0")}}})
	alter("threads out of proportion", inc{ResourceType: broker, ResourceName: "", Configs: []op{{Name: "num.io.threads", Value: ptr("100")}}})
	alter("per-broker key for all", inc{ResourceType: broker, ResourceName: "", Configs: []op{{Name: "listener.security.protocol.map", Value: ptr("A:PLAINTEXT")}}})
	alter("append to no list", inc{ResourceType: broker, ResourceName: "1", Configs: []op{{Name: "log.cleaner.threads", Op: 2, Value: ptr("1")}}})
	alter("no cleaner thread", inc{ResourceType: broker, ResourceName: "1", Configs: []op{{Name: "log.cleaner.threads", Value: ptr("0")}}})
	alter("no cleaner thread for all", inc{ResourceType: broker, ResourceName: "", Configs: []op{{Name: "log.cleaner.threads", Value: ptr("0")}}})
	alter("append to unknown", inc{ResourceType: broker, ResourceName: "1", Configs: []op{{Name: "nope", Op: 2, Value: ptr("1")}}})
	alter("unknown type", inc{ResourceType: 3, ResourceName: "m", Configs: []op{{Name: "k", Value: ptr("1")}}})
	alter("resource twice", inc{ResourceType: topic, ResourceName: "b", Configs: []op{{Name: "retention.ms", Value: ptr("1")}}}, inc{ResourceType: topic, ResourceName: "b", Configs: []op{{Name: "retention.bytes", Value: ptr("1")}}})
	alter("one good, one bad", inc{ResourceType: topic, ResourceName: "b", Configs: []op{{Name: "retention.ms", Value: ptr("86400000")}}}, inc{ResourceType: topic, ResourceName: "a", Configs: []op{{Name: "retention.ms"}}})
	alter("for this broker", inc{ResourceType: broker, ResourceName: "1", Configs: []op{{Name: "log.cleaner.threads", Value: ptr("2")}}})
	alter("for all brokers", inc{ResourceType: broker, ResourceName: "", Configs: []op{{Name: "log.retention.ms", Value: ptr("90000000")}}})
	alter("group", inc{ResourceType: group, ResourceName: "g", Configs: []op{{Name: "consumer.session.timeout.ms", Value: ptr("50000")}}})
	alter("metrics", inc{ResourceType: metrics, ResourceName: "m", Configs: []op{{Name: "interval.ms", Value: ptr("1000")}}})
	legacy("unknown type", old{ResourceType: 3, ResourceName: "m"})
	legacy("logger", old{ResourceType: logger, ResourceName: "1"})
	legacy("null value", old{ResourceType: topic, ResourceName: "b", Configs: []kv{{Name: "retention.ms"}}})
	legacy("another broker", old{ResourceType: broker, ResourceName: "7"})

	describe("topic", topic, "a")
	describe("topic with broker settings", topic, "b", "retention.ms", "min.insync.replicas", "no.such")
	describe("unknown topic", topic, "nope")
	describe("bad topic", topic, "a/b")
	describe("empty topic", topic, "")
	describe("broker", broker, "1", "log.cleaner.threads", "log.retention.ms", "log.retention.hours", "num.io.threads", "ssl.keystore.password", "min.insync.replicas", "broker.rack")
	describe("all brokers", broker, "")
	describe("another broker", broker, "7")
	describe("broker of no number", broker, "x")
	describe("logger without broker", logger, "")
	describe("logger of another broker", logger, "8")
	describe("group", group, "g")
	describe("another group", group, "other", "consumer.session.timeout.ms")
	describe("group without name", group, "")
	describe("metrics", metrics, "m")
	describe("unknown metrics", metrics, "n")
	describe("metrics without name", metrics, "")

	ask("cluster", &kmsg.DescribeClusterRequest{EndpointType: 1, IncludeClusterAuthorizedOperations: true}, 1)
	ask("cluster with fenced brokers", &kmsg.DescribeClusterRequest{EndpointType: 1, IncludeFencedBrokers: true}, 2)
	ask("cluster of controllers", &kmsg.DescribeClusterRequest{EndpointType: 2}, 1)
	ask("cluster of what", &kmsg.DescribeClusterRequest{EndpointType: 9}, 1)
	ask("cluster v0", &kmsg.DescribeClusterRequest{EndpointType: 1}, 0)

	partitions("all", 2000, nil)
	partitions("limit", 4, nil)
	partitions("limit at a topic's end", 3, nil)
	partitions("from a cursor", 2, &kmsg.DescribeTopicPartitionsRequestCursor{Topic: "a", Partition: 2})
	partitions("cursor between topics", 2, &kmsg.DescribeTopicPartitionsRequestCursor{Topic: "aa", Partition: 1})
	partitions("zero limit", 0, nil, "a")
	partitions("some", 2000, nil, "b", "a", "nope", "a/b")

	for _, types := range [][]int8{nil, {2}, {4, 8}, {16, 32}} {
		ask(fmt.Sprint("resources ", types), &kmsg.ListConfigResourcesRequest{ResourceTypes: types}, 1)
	}
	ask("resources of unknown type", &kmsg.ListConfigResourcesRequest{ResourceTypes: []int8{3}}, 1)
	ask("resources v0", &kmsg.ListConfigResourcesRequest{}, 0)

	set := func(entity []kmsg.AlterClientQuotasRequestEntryEntity, key string, v float64) {
		ask("set quota "+key, &kmsg.AlterClientQuotasRequest{Entries: []kmsg.AlterClientQuotasRequestEntry{
			{Entity: entity, Ops: []kmsg.AlterClientQuotasRequestEntryOp{{Key: key, Value: v}}}}}, 1)
	}
	set([]kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: ptr("u")}}, "producer_byte_rate", 1000)
	set([]kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user"}}, "consumer_byte_rate", 2000)
	set([]kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: ptr("u")}, {Type: "client-id", Name: ptr("x")}}, "request_percentage", 50)
	user := func(match kmsg.QuotasMatchType, name *string) kmsg.DescribeClientQuotasRequestComponent {
		return kmsg.DescribeClientQuotasRequestComponent{EntityType: "user", MatchType: match, Match: name}
	}
	quotas("exact, strict", true, user(0, ptr("u")))
	quotas("default", true, user(1, nil))
	quotas("none", true, user(0, ptr("nobody")))
	quotas("any user, strict", true, user(2, nil), kmsg.DescribeClientQuotasRequestComponent{EntityType: "client-id", MatchType: 2})
	quotas("exact without name", false, user(0, nil))
	quotas("default with name", false, user(1, ptr("u")))
	quotas("any with name", false, user(2, ptr("u")))
	quotas("unknown match", false, user(7, nil))
	quotas("type twice", false, user(1, nil), user(2, nil))
	quotas("unknown type", false, kmsg.DescribeClientQuotasRequestComponent{EntityType: "planet"})
	quotas("empty type", false, kmsg.DescribeClientQuotasRequestComponent{})
	quotas("ip and user", false, user(2, nil), kmsg.DescribeClientQuotasRequestComponent{EntityType: "ip", MatchType: 2})

	ask("set credential", &kmsg.AlterUserSCRAMCredentialsRequest{Upsertions: []kmsg.AlterUserSCRAMCredentialsRequestUpsertion{
		{Name: "u", Mechanism: 2, Iterations: 8192, Salt: []byte("s"), SaltedPassword: []byte("p")}}}, 0)
	ask("credentials", &kmsg.DescribeUserSCRAMCredentialsRequest{}, 0)
	ask("credentials of some", &kmsg.DescribeUserSCRAMCredentialsRequest{Users: []kmsg.DescribeUserSCRAMCredentialsRequestUser{{Name: "u"}, {Name: "v"}}}, 0)
	ask("credentials twice", &kmsg.DescribeUserSCRAMCredentialsRequest{Users: []kmsg.DescribeUserSCRAMCredentialsRequestUser{{Name: "u"}, {Name: "u"}}}, 0)

	ask("describe acls", &kmsg.DescribeACLsRequest{ResourceType: 1, ResourcePatternType: 1, Operation: 1, PermissionType: 1}, 3)
	ask("create acls", &kmsg.CreateACLsRequest{Creations: []kmsg.CreateACLsRequestCreation{
		{ResourceType: 2, ResourceName: "t", ResourcePatternType: 3, Principal: "User:u", Host: "*", Operation: 3, PermissionType: 3}}}, 3)
	ask("delete acls", &kmsg.DeleteACLsRequest{Filters: []kmsg.DeleteACLsRequestFilter{
		{ResourceType: 1, ResourcePatternType: 1, Operation: 1, PermissionType: 1}}}, 3)
	create("spaced", 1, "retention.ms", " 100 ", "cleanup.policy", "compact, delete", "segment.bytes", "01048576")
	ask("describe acls of an unknown type", &kmsg.DescribeACLsRequest{ResourcePatternType: 1, Operation: 1, PermissionType: 1}, 3)
	ask("describe acls of an unknown pattern", &kmsg.DescribeACLsRequest{ResourceType: 1, Operation: 1, PermissionType: 1}, 1)
	ask("create acls of an unknown operation", &kmsg.CreateACLsRequest{Creations: []kmsg.CreateACLsRequestCreation{
		{ResourceType: 2, ResourceName: "t", ResourcePatternType: 3, Principal: "User:u", Host: "*", PermissionType: 3}}}, 3)
	ask("delete acls of an unknown permission", &kmsg.DeleteACLsRequest{Filters: []kmsg.DeleteACLsRequestFilter{
		{ResourceType: 1, ResourcePatternType: 1, Operation: 1}}}, 3)
	ask("unregister an unknown broker", &kmsg.UnregisterBrokerRequest{BrokerID: 55}, 0)
	return out
}

var (
	noise    = regexp.MustCompile(`,?"(UnknownTags|Version|ThrottleMillis)":(\{\}|\d+)`)
	ids      = regexp.MustCompile(`"TopicID":\[([\d,]+)\]`)
	cluster  = regexp.MustCompile(`"ClusterID":"[^"]+"`)
	address  = regexp.MustCompile(`"Host":"[^"]+","Port":\d+`)
	advisory = regexp.MustCompile(`("ErrorCode":(3|100|-1)),"ErrorMessage":"[^"]*"`)
)

// renderAdmin writes a response as text that two answers to the same question share.
func renderAdmin(resp kmsg.Response) string {
	if resp == nil {
		return "connection closed"
	}
	b, err := json.Marshal(sorted(resp))
	if err != nil {
		panic(err)
	}
	s := noise.ReplaceAllString(string(b), "")
	s = strings.ReplaceAll(s, "{,", "{")
	s = cluster.ReplaceAllString(s, `"ClusterID":"c"`)
	s = address.ReplaceAllString(s, `"Host":"h","Port":1`)
	s = advisory.ReplaceAllString(s, `$1,"ErrorMessage":"-"`)
	return ids.ReplaceAllStringFunc(s, func(m string) string {
		if strings.Trim(m, `"TopicID:[0,]`) == "" {
			return `"TopicID":0`
		}
		return `"TopicID":1`
	})
}

// sorted brings lists that come out of a hash table in Kafka into an order.
func sorted(resp kmsg.Response) kmsg.Response {
	switch r := resp.(type) {
	case *kmsg.DescribeConfigsResponse:
		for i := range r.Resources {
			sortBy(r.Resources[i].Configs, func(c kmsg.DescribeConfigsResponseResourceConfig) string { return c.Name })
		}
	case *kmsg.ListConfigResourcesResponse:
		sortBy(r.ConfigResources, func(c kmsg.ListConfigResourcesResponseConfigResource) string { return fmt.Sprint(c.Type, c.Name) })
	case *kmsg.DescribeClientQuotasResponse:
		for i := range r.Entries {
			sortBy(r.Entries[i].Entity, func(e kmsg.DescribeClientQuotasResponseEntryEntity) string { return e.Type })
		}
		sortBy(r.Entries, func(e kmsg.DescribeClientQuotasResponseEntry) string { return e.Values[0].Key })
	case *kmsg.DescribeUserSCRAMCredentialsResponse:
		sortBy(r.Results, func(e kmsg.DescribeUserSCRAMCredentialsResponseResult) string { return e.User })
	case *kmsg.AlterClientQuotasResponse:
		for i := range r.Entries {
			sortBy(r.Entries[i].Entity, func(e kmsg.AlterClientQuotasResponseEntryEntity) string { return e.Type })
		}
	}
	return resp
}

func TestAdminAnswersAreKafkas(t *testing.T) {
	const file = "testdata/admin-answers.txt"
	var c *client
	dial := func() {
		conn, err := net.Dial("tcp", *oracle)
		if err != nil {
			t.Fatal(err)
		}
		c = &client{tb: t, conn: conn}
	}
	var w *world
	want := map[string]string{}
	if *oracle != "" {
		dial()
	} else {
		w = newWorld(t, map[string]string{"offsets.topic.num.partitions": "50"})
		w.withController()
		c = w.client()
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(raw), "\n\n") {
			name, answer, _ := strings.Cut(block, "\n")
			want[name] = strings.TrimSpace(answer)
		}
	}
	var said strings.Builder
	for _, q := range adminQuestions() {
		c.send(q.req)
		resp, err := c.receive(q.req)
		if err != nil {
			resp = nil
		}
		got := renderAdmin(resp)
		// Kafka wraps refusals of its running parts in the class names of exceptions.
		got = strings.ReplaceAll(got, "Invalid value org.apache.kafka.common.config.ConfigException: ", "")
		got = strings.ReplaceAll(got, " for configuration Invalid dynamic configuration", "")
		fmt.Fprintf(&said, "%s\n%s\n\n", q.name, got)
		if err != nil && *oracle == "" {
			c = w.client()
		}
		switch {
		case *oracle != "":
			if err != nil {
				dial()
			}
			time.Sleep(50 * time.Millisecond) // Kafka's broker learns of changes a moment after they are answered, and nothing shows when
		case got != want[q.name]:
			t.Errorf("%s:\n got %s\nwant %s", q.name, got, want[q.name])
		}
	}
	if *oracle != "" {
		if err := os.WriteFile(file, []byte(strings.TrimSuffix(said.String(), "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForwardingSaysWhenNobodyAnswers: the error is where a client of the API looks for it.
func TestForwardingSaysWhenNobodyAnswers(t *testing.T) {
	w := newWorld(t, nil) // its controller refuses
	c := w.client()
	q := kmsg.NewPtrCreateTopicsRequest()
	q.Version, q.Topics = 7, []kmsg.CreateTopicsRequestTopic{{Topic: "t", NumPartitions: 1, ReplicationFactor: 1}}
	if got := call[*kmsg.CreateTopicsResponse](c, q).Topics[0].ErrorCode; got != api.ErrRequestTimedOut.Code {
		t.Errorf("CreateTopics: code %d", got)
	}
	d := kmsg.NewPtrDeleteTopicsRequest()
	d.Version, d.Topics = 6, []kmsg.DeleteTopicsRequestTopic{{TopicID: uuid.UUID{1}}}
	if got := call[*kmsg.DeleteTopicsResponse](c, d).Topics[0].ErrorCode; got != api.ErrRequestTimedOut.Code {
		t.Errorf("DeleteTopics: code %d", got)
	}
	add := kmsg.NewPtrAddRaftVoterRequest()
	add.Version = 1
	if got := call[*kmsg.AddRaftVoterResponse](c, add).ErrorCode; got != api.ErrRequestTimedOut.Code {
		t.Errorf("AddRaftVoter: code %d", got)
	}
	if got := call[*kmsg.RemoveRaftVoterResponse](c, kmsg.NewPtrRemoveRaftVoterRequest()).ErrorCode; got != api.ErrRequestTimedOut.Code {
		t.Errorf("RemoveRaftVoter: code %d", got)
	}
}

func sortBy[T any](s []T, key func(T) string) {
	slices.SortFunc(s, func(a, b T) int { return strings.Compare(key(a), key(b)) })
}
