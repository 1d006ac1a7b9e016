package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/kafka"
	"gregor/interop/node"
	"gregor/interop/wire"
)

// clusterID is the cluster id of all nodes here.
const clusterID = "MkU3OEVBNTcwNTJENDM2Qk"

// quick are settings that tests want of both: no wait for the first members of a group, and no threads beyond need.
var quick = []string{
	"group.initial.rebalance.delay.ms=0",
	"num.partitions=1",
	"offsets.topic.num.partitions=4",
	"num.io.threads=2",
	"num.network.threads=2",
	"log.cleaner.threads=1",
	"background.threads=1",
}

// startGregor formats and starts a node of gregor in a directory of its own.
func startGregor(tb testing.TB, extra ...string) (n *node.Node, dir string) {
	tb.Helper()
	dir = tb.TempDir()
	ports := kafka.FreePorts(tb, 2)
	kafka.WriteProperties(tb, dir, kafka.Properties(1, ports[0], ports[1], filepath.Join(dir, "data"), slices.Concat(quick, extra)...))
	node.Run(tb, "storage", "format", "--standalone", "-t", clusterID, "-c", filepath.Join(dir, "server.properties"))
	return node.Start(tb, dir, fmt.Sprintf("127.0.0.1:%d", ports[0])), dir
}

// startKafka does the same with the real Kafka.
func startKafka(tb testing.TB, extra ...string) (n *kafka.Node, dir string) {
	tb.Helper()
	dir = tb.TempDir()
	ports := kafka.FreePorts(tb, 2)
	kafka.Format(tb, dir, kafka.Properties(1, ports[0], ports[1], filepath.Join(dir, "data"), slices.Concat(quick, extra)...))
	return kafka.Start(tb, dir, fmt.Sprintf("127.0.0.1:%d", ports[0])), dir
}

// side is one of the two nodes that are compared, and what a test has learned from it.
type side struct {
	name, addr, dir string
	// ports are those in its settings: they differ between the sides.
	ports    []string
	conn     *wire.Conn
	clientID string
	local    string // the address that the connection comes from, "" for any
	// ids maps what a node makes up (topic ids, member ids, ...) to names in the order of their first appearance.
	ids map[string]string
	// kept is what earlier steps have stored for later ones.
	kept map[string]any
}

// pair is a gregor and a Kafka node in the same state.
type pair struct {
	gregor, kafka *side
	// versions are those that Kafka serves, by key.
	versions map[int16][2]int16
	// served are the APIs that gregor has.
	served map[int16]bool
	steps  int
}

// rangePattern is the range of timestamps around now in a message.
var rangePattern = regexp.MustCompile(`within \[-?\d+, \d+\]`)

// needsPattern is how each says what a client isn't allowed: Kafka shows the whole request.
var needsPattern = regexp.MustCompile(`(?s)(Request Request\(.*|[A-Za-z]+) needs ([A-Z_]+) permission\.`)

var idPattern = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// startPair starts both nodes with the same settings.
func startPair(tb testing.TB, extra ...string) *pair {
	tb.Helper()
	kn, kd := startKafka(tb, extra...)
	gn, gd := startGregor(tb, extra...)
	newSide := func(name, addr, dir string) *side {
		s := &side{name: name, addr: addr, dir: dir, clientID: "probe", ids: map[string]string{}, kept: map[string]any{}}
		b, err := os.ReadFile(filepath.Join(dir, "server.properties"))
		if err != nil {
			tb.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindAllStringSubmatch(string(b), -1) {
			if !slices.Contains(s.ports, m[1]) {
				s.ports = append(s.ports, m[1])
			}
		}
		return s
	}
	p := newPair(tb, newSide("gregor", gn.Addr, gd), newSide("kafka", kn.Addr, kd))
	for _, s := range []*side{p.gregor, p.kafka} {
		tb.Cleanup(func() {
			if s.conn != nil {
				s.conn.Close()
			}
		})
	}
	return p
}

// newPair asks two sides what they serve.
func newPair(tb testing.TB, gregor, kafka *side) *pair {
	tb.Helper()
	p := &pair{gregor: gregor, kafka: kafka, versions: map[int16][2]int16{}, served: map[int16]bool{}}
	got, err := p.gregor.do(kmsg.NewPtrApiVersionsRequest())
	if err != nil {
		tb.Fatal(err)
	}
	for _, k := range got.(*kmsg.ApiVersionsResponse).ApiKeys {
		p.served[k.ApiKey] = true
	}
	resp, err := p.kafka.do(kmsg.NewPtrApiVersionsRequest())
	if err != nil {
		tb.Fatal(err)
	}
	for _, k := range resp.(*kmsg.ApiVersionsResponse).ApiKeys {
		p.versions[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
	}
	p.versions[0] = [2]int16{3, p.versions[0][1]}
	return p
}

// controllerAddr is the address of the side's controller listener.
func (s *side) controllerAddr() string {
	for _, port := range s.ports {
		if addr := "127.0.0.1:" + port; addr != s.addr {
			return addr
		}
	}
	panic("no controller listener")
}

// from is the pair as seen from a local address, on its listeners for clients or for controllers.
func (p *pair) from(tb testing.TB, local string, controllers bool) *pair {
	tb.Helper()
	view := func(s *side) *side {
		v := *s
		if v.conn, v.local = nil, local; controllers {
			v.addr = s.controllerAddr()
		}
		tb.Cleanup(func() {
			if v.conn != nil {
				v.conn.Close()
			}
		})
		return &v
	}
	return newPair(tb, view(p.gregor), view(p.kafka))
}

// do sends one request over the side's connection, which is opened when there is none.
func (s *side) do(req kmsg.Request) (kmsg.Response, error) {
	if s.conn == nil {
		c, err := wire.DialFrom(s.local, s.addr, s.clientID)
		if err != nil {
			return nil, err
		}
		s.conn = c
	}
	resp, err := s.conn.Do(req)
	if err != nil {
		s.conn.Close()
		s.conn = nil
	}
	return resp, err
}

// must is do for set-up.
func (s *side) must(tb testing.TB, req kmsg.Request) kmsg.Response {
	tb.Helper()
	resp, err := s.do(req)
	if err != nil {
		tb.Fatalf("%s: request %d v%d: %v", s.name, req.Key(), req.GetVersion(), err)
	}
	return resp
}

// both runs f for both sides at once.
func (p *pair) both(f func(s *side)) {
	var wg sync.WaitGroup
	for _, s := range []*side{p.gregor, p.kafka} {
		wg.Go(func() { f(s) })
	}
	wg.Wait()
}

// each sends the request that build makes in every version that Kafka serves of it, to both nodes, and compares the answers.
func (p *pair) each(t *testing.T, name string, build func(s *side, v int16) kmsg.Request) {
	t.Helper()
	r, ok := p.versions[build(p.kafka, 0).Key()]
	if !ok {
		t.Fatalf("%s: Kafka does not serve request %d", name, build(p.kafka, 0).Key())
	}
	for v := r[0]; v <= r[1]; v++ {
		p.at(t, name, v, func(s *side) kmsg.Request { return build(s, v) }, nil)
	}
}

// once sends the request in the newest version.
func (p *pair) once(t *testing.T, name string, build func(s *side) kmsg.Request, then func(s *side, resp kmsg.Response)) {
	t.Helper()
	p.at(t, name, p.versions[build(p.kafka).Key()][1], build, then)
}

// at sends the request in one version to both nodes, compares the answers and hands them to then. A nil request is not sent.
func (p *pair) at(t *testing.T, name string, v int16, build func(s *side) kmsg.Request, then func(s *side, resp kmsg.Response)) {
	t.Helper()
	p.steps++
	deadline := time.Now().Add(time.Minute)
	answers := p.answers(v, build, then)
	// Kafka's reply to a change may be there before its broker tells of it.
	for answers[p.gregor] != answers[p.kafka] && slices.Contains(descriptions, build(p.kafka).Key()) && time.Now().Before(deadline) {
		time.Sleep(100 * time.Millisecond)
		answers = p.answers(v, build, then)
		if t.Failed() {
			break // one wait for what is wrong is enough
		}
	}
	if g, k := answers[p.gregor], answers[p.kafka]; g != k {
		t.Errorf("%s: request %d v%d\n%s", name, build(p.kafka).Key(), v, diff(g, k))
	}
}

// descriptions are the APIs that tell of what others change, and change nothing: DescribeAcls, DescribeConfigs, DescribeClientQuotas,
// DescribeUserScramCredentials.
var descriptions = []int16{29, 32, 48, 50}

// answers asks both nodes.
func (p *pair) answers(v int16, build func(s *side) kmsg.Request, then func(s *side, resp kmsg.Response)) map[*side]string {
	answers := map[*side]string{}
	var mu sync.Mutex
	p.both(func(s *side) {
		req := build(s)
		req.SetVersion(v)
		resp, err := s.do(req)
		var text string
		if err != nil {
			text = "(" + err.Error() + ")\n"
		} else {
			text = p.render(s, resp)
		}
		mu.Lock()
		answers[s] = text
		mu.Unlock()
		if err == nil && then != nil {
			then(s, resp)
		}
	})
	return answers
}

// diff shows the lines that only one of two texts has.
func diff(gregor, kafka string) string {
	g, k := strings.SplitAfter(gregor, "\n"), strings.SplitAfter(kafka, "\n")
	// The longest common subsequence; the texts are short.
	lcs := make([][]int, len(g)+1)
	for i := range lcs {
		lcs[i] = make([]int, len(k)+1)
	}
	for i := len(g) - 1; i >= 0; i-- {
		for j := len(k) - 1; j >= 0; j-- {
			if g[i] == k[j] {
				lcs[i][j] = lcs[i+1][j+1] + 1
			} else {
				lcs[i][j] = max(lcs[i+1][j], lcs[i][j+1])
			}
		}
	}
	var b strings.Builder
	for i, j := 0, 0; i < len(g) || j < len(k); {
		switch {
		case i < len(g) && j < len(k) && g[i] == k[j]:
			i, j = i+1, j+1
		case j == len(k) || i < len(g) && lcs[i+1][j] >= lcs[i][j+1]:
			fmt.Fprintf(&b, "  gregor: %s\n", strings.TrimSuffix(g[i], "\n"))
			i++
		default:
			fmt.Fprintf(&b, "  kafka:  %s\n", strings.TrimSuffix(k[j], "\n"))
			j++
		}
	}
	return b.String()
}

// render writes an answer as text, one field a line, with all that a node makes up replaced by names. Lists of structs are put
// in order, because Kafka's come out of hash maps.
func (p *pair) render(s *side, resp kmsg.Response) string {
	switch r := resp.(type) {
	case *kmsg.ApiVersionsResponse:
		// What gregor does not serve yet is left out; what it serves must be complete.
		r.ApiKeys = slices.DeleteFunc(r.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return !p.served[k.ApiKey] })
		r.FinalizedFeaturesEpoch = min(r.FinalizedFeaturesEpoch, 1)
	case *kmsg.FetchResponse:
		// Kafka starts a new entry whenever the topic changes on the way through a session, gregor has one for each topic.
		var topics []kmsg.FetchResponseTopic
		for _, t := range r.Topics {
			for _, part := range t.Partitions {
				one := t
				one.Partitions = []kmsg.FetchResponseTopicPartition{part}
				topics = append(topics, one)
			}
		}
		r.Topics = topics
		r.SessionID = min(r.SessionID, 1)
	case *kmsg.DescribeConfigsResponse:
		// gregor has some settings of its own.
		for i := range r.Resources {
			r.Resources[i].Configs = slices.DeleteFunc(r.Resources[i].Configs, func(c kmsg.DescribeConfigsResponseResourceConfig) bool {
				return strings.HasPrefix(c.Name, "gregor.")
			})
		}
	case *kmsg.StreamsGroupHeartbeatResponse:
		// Kafka names them as they come out of a hash map.
		for i := range r.Status {
			if before, names, ok := strings.Cut(r.Status[i].StatusDetail, "are missing: "); ok {
				list := strings.Split(names, ", ")
				slices.Sort(list)
				r.Status[i].StatusDetail = before + "are missing: " + strings.Join(list, ", ")
			}
		}
	case *kmsg.InitProducerIDResponse:
		if first, ok := s.kept["producer"].(int64); ok && r.ProducerID >= 0 {
			r.ProducerID -= first
		}
	case *kmsg.DescribeQuorumResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				part := &r.Topics[i].Partitions[j]
				part.HighWatermark = min(part.HighWatermark, 1)
				part.LeaderEpoch = min(part.LeaderEpoch, 1)
				for k := range part.CurrentVoters {
					part.CurrentVoters[k].LogEndOffset = min(part.CurrentVoters[k].LogEndOffset, 1)
				}
			}
		}
	}
	return s.value(reflect.ValueOf(resp).Elem(), "", "")
}

func (s *side) value(v reflect.Value, path, field string) string {
	switch v.Kind() {
	case reflect.Struct:
		var b strings.Builder
		t := v.Type()
		if id := v.FieldByName("TopicID"); id.IsValid() {
			// Named by its topic, since lists come in any order.
			if name := topicName(v); name != "" && !id.IsZero() {
				s.ids[fmt.Sprintf("%x", id.Interface())] = "id of " + name
			}
		}
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Name == "Version" && path == "" {
				continue
			}
			b.WriteString(s.value(v.Field(i), path+"."+f.Name, f.Name))
		}
		return b.String()
	case reflect.Pointer:
		if v.IsNil() {
			return path + ": null\n"
		}
		return s.value(v.Elem(), path, field)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if v.IsNil() {
				return path + ": null bytes\n"
			}
			if field == "RecordBatches" || field == "Records" {
				return path + ": " + s.batches(v.Bytes()) + "\n"
			}
			return fmt.Sprintf("%s: %q\n", path, v.Bytes())
		}
		if v.Len() == 0 {
			if v.IsNil() {
				return path + ": none\n"
			}
			return path + ": []\n"
		}
		var items []string
		for i := range v.Len() {
			items = append(items, s.value(v.Index(i), path+"[]", field))
		}
		if v.Type().Elem().Kind() == reflect.Struct {
			slices.Sort(items)
		}
		return strings.Join(items, "")
	case reflect.Array:
		return path + ": " + s.id(fmt.Sprintf("%x", v.Interface())) + "\n"
	case reflect.String:
		return fmt.Sprintf("%s: %q\n", path, s.text(v.String()))
	case reflect.Map, reflect.Interface:
		return ""
	case reflect.Uint16:
		if i := slices.Index(s.ports, strconv.FormatUint(v.Uint(), 10)); field == "Port" && i >= 0 {
			return fmt.Sprintf("%s: PORT%d\n", path, i)
		}
	case reflect.Int32:
		if i := slices.Index(s.ports, strconv.FormatInt(v.Int(), 10)); field == "Port" && i >= 0 {
			return fmt.Sprintf("%s: PORT%d\n", path, i)
		}
	case reflect.Int64:
		if now := time.Now().UnixMilli(); v.Int() > now-86400_000 && v.Int() < now+86400_000 {
			return path + ": NOW\n"
		}
		switch field {
		case "TotalBytes", "UsableBytes":
			return fmt.Sprintf("%s: known %t\n", path, v.Int() > 0)
		}
	}
	if v.Type() == reflect.TypeFor[kmsg.Tags]() {
		return ""
	}
	return fmt.Sprintf("%s: %v\n", path, v.Interface())
}

// topicName is the topic's name in a struct of an answer, "" when it has none.
func topicName(v reflect.Value) string {
	f := v.FieldByName("Topic")
	if !f.IsValid() {
		return ""
	}
	if f.Kind() == reflect.Pointer {
		if f.IsNil() {
			return ""
		}
		f = f.Elem()
	}
	return f.String()
}

// id names an id that the node made up.
func (s *side) id(id string) string {
	if strings.Trim(id, "0") == "" {
		return "zero"
	}
	name, ok := s.ids[id]
	if !ok {
		name = fmt.Sprintf("id-%d", len(s.ids)+1)
		s.ids[id] = name
	}
	return name
}

// text replaces what differs between nodes in a string.
func (s *side) text(text string) string {
	text = strings.ReplaceAll(text, s.dir, "DIR")
	text = idPattern.ReplaceAllStringFunc(text, s.id)
	for i, port := range s.ports {
		text = strings.ReplaceAll(text, port, fmt.Sprintf("PORT%d", i))
	}
	text = rangePattern.ReplaceAllString(text, "within [RANGE]")
	text = needsPattern.ReplaceAllString(text, "needs $2 permission")
	return text
}

// batches renders records: header and body of each batch, less the checksum, and with times that the node set replaced.
func (s *side) batches(b []byte) string {
	var out strings.Builder
	now := time.Now().UnixMilli()
	recent := func(ts int64) string {
		if ts > now-86400_000 && ts < now+86400_000 {
			return "NOW"
		}
		return strconv.FormatInt(ts, 10)
	}
	for len(b) > 0 {
		var batch kmsg.RecordBatch
		if err := batch.ReadFrom(b); err != nil {
			fmt.Fprintf(&out, "[%d bytes that are no batch: %x]", len(b), b)
			break
		}
		b = b[12+batch.Length:]
		fmt.Fprintf(&out, "[base %d epoch %d attributes %x last %d first-time %s max-time %s producer %d/%d/%d count %d: %x]", batch.FirstOffset,
			batch.PartitionLeaderEpoch, batch.Attributes, batch.LastOffsetDelta, recent(batch.FirstTimestamp), recent(batch.MaxTimestamp),
			batch.ProducerID, batch.ProducerEpoch, batch.FirstSequence, batch.NumRecords, batch.Records)
	}
	return out.String()
}

// topicID is the id of a topic on this side.
func (s *side) topicID(tb testing.TB, topic string) (id [16]byte) {
	tb.Helper()
	key := "topic id " + topic
	if id, ok := s.kept[key].([16]byte); ok {
		return id
	}
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	req.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	resp := s.must(tb, req).(*kmsg.MetadataResponse)
	if len(resp.Topics) == 1 && resp.Topics[0].ErrorCode == 0 {
		s.kept[key] = resp.Topics[0].TopicID
		return resp.Topics[0].TopicID
	}
	tb.Errorf("%s: no topic %s: %v", s.name, topic, resp.Topics)
	return id
}

// createTopics makes topics on both sides and waits until their leaders are there.
func (p *pair) createTopics(tb testing.TB, partitions int32, configs map[string]string, topics ...string) {
	tb.Helper()
	p.both(func(s *side) {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Version = 7
		req.TimeoutMillis = 10000
		for _, topic := range topics {
			t := kmsg.NewCreateTopicsRequestTopic()
			t.Topic, t.NumPartitions, t.ReplicationFactor = topic, partitions, 1
			for k, v := range configs {
				t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: k, Value: &v})
			}
			req.Topics = append(req.Topics, t)
		}
		for _, t := range s.must(tb, req).(*kmsg.CreateTopicsResponse).Topics {
			if t.ErrorCode != 0 {
				tb.Errorf("%s: create %s: error %d", s.name, t.Topic, t.ErrorCode)
			}
		}
		for _, topic := range topics {
			s.awaitLeaders(tb, topic)
		}
	})
}

// awaitLeaders waits until the metadata name a leader for each partition of a topic and the leader answers to the role.
func (s *side) awaitLeaders(tb testing.TB, topic string) {
	tb.Helper()
	for until := time.Now().Add(20 * time.Second); ; {
		req := kmsg.NewPtrMetadataRequest()
		req.Version = 12
		req.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
		resp := s.must(tb, req).(*kmsg.MetadataResponse)
		ok := len(resp.Topics) == 1 && resp.Topics[0].ErrorCode == 0
		list := kmsg.NewPtrListOffsetsRequest()
		list.Version, list.ReplicaID = 7, -1
		lt := kmsg.NewListOffsetsRequestTopic()
		lt.Topic = topic
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				ok = ok && p.ErrorCode == 0 && p.Leader >= 0
				lp := kmsg.NewListOffsetsRequestTopicPartition()
				lp.Partition, lp.Timestamp, lp.CurrentLeaderEpoch = p.Partition, -1, -1
				lt.Partitions = append(lt.Partitions, lp)
			}
		}
		list.Topics = append(list.Topics, lt)
		if ok {
			for _, t := range s.must(tb, list).(*kmsg.ListOffsetsResponse).Topics {
				for _, p := range t.Partitions {
					ok = ok && p.ErrorCode == 0
				}
			}
		}
		if ok {
			return
		}
		if time.Now().After(until) {
			tb.Fatalf("%s: no leaders for %s", s.name, topic)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
