package config

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const minimal = `# a combined node
process.roles=broker,controller
node.id=7
controller.quorum.voters=7@localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
log.dirs=/a,/b
`

func load(t *testing.T, text string) (*Broker, error) {
	t.Helper()
	p, err := ParseProperties("server.properties", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return Load(p)
}

func mustLoad(t *testing.T, text string) *Broker {
	t.Helper()
	b, err := load(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLoadMinimal(t *testing.T) {
	b := mustLoad(t, minimal)
	if b.NodeID != 7 || !b.Roles.Combined() || b.Roles.String() != "broker,controller" {
		t.Errorf("node %d, roles %s", b.NodeID, b.Roles)
	}
	if !slices.Equal(b.LogDirs, []string{"/a", "/b"}) || b.MetadataLogDir != "/a" {
		t.Errorf("log dirs %v, metadata in %s", b.LogDirs, b.MetadataLogDir)
	}
	if len(b.AdvertisedListeners) != 1 || b.AdvertisedListeners[0].String() != "PLAINTEXT://localhost:9092" {
		t.Errorf("advertised %v", b.AdvertisedListeners)
	}
	if len(b.AdvertisedControllers) != 1 || b.AdvertisedControllers[0].Port != 9093 || !b.IsController("CONTROLLER") {
		t.Errorf("controllers %v", b.AdvertisedControllers)
	}
	if len(b.QuorumVoters) != 1 || b.QuorumVoters[0].Address() != "localhost:9093" {
		t.Errorf("voters %v", b.QuorumVoters)
	}
	if b.InterBrokerListener != "PLAINTEXT" || b.Topic.Retention != 7*24*time.Hour || b.Topic.SegmentAge != 7*24*time.Hour {
		t.Errorf("inter broker %s, retention %v, segment age %v", b.InterBrokerListener, b.Topic.Retention, b.Topic.SegmentAge)
	}
	if b.Topic.FlushInterval != math.MaxInt64 || b.Topic.TimestampBeforeMaxMs != math.MaxInt64 || !b.Topic.CleanupDelete || b.Topic.CleanupCompact {
		t.Errorf("topic defaults %+v", b.Topic)
	}
	if b.GroupCoordinator.OffsetsRetention != 7*24*time.Hour || b.Group.ConsumerSessionTimeout != 45*time.Second {
		t.Errorf("groups %+v %+v", b.GroupCoordinator, b.Group)
	}
	if got := b.NotHonoured(); len(got) > 0 {
		t.Errorf("not honoured: %v", got)
	}
}

func TestLoadTellsEverythingAtOnce(t *testing.T) {
	_, err := load(t, minimal+`
num.partitions = 0
log.segment.bytes:12
log.dirs=/a
 log.retention.ms = \
   soon
unclean.leader.election.enable=1
listener.name.plaintext.ssl.client.auth=perhaps
`)
	want := []string{
		"server.properties:15: Invalid value perhaps for configuration listener.name.plaintext.ssl.client.auth: String must be one of: required, requested, none (allowed: [required, requested, none])",
		"server.properties:12: Invalid value soon for configuration log.retention.ms: Not a number of type LONG",
		"server.properties:10: Invalid value 12 for configuration log.segment.bytes: Value must be at least 1048576 (allowed: [1048576,...])",
		"server.properties:9: Invalid value 0 for configuration num.partitions: Value must be at least 1 (allowed: [1,...])",
		"server.properties:14: Invalid value 1 for configuration unclean.leader.election.enable: Expected value to be either true or false",
	}
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("got\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
}

func TestLoadCrossChecks(t *testing.T) {
	f := func(change, want string) {
		t.Helper()
		_, err := load(t, minimal+change)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %q: got %v, want %q in it", change, err, want)
		}
	}
	f("node.id=8", "the node id 8 must be included in the set of voters controller.quorum.voters=7")
	f("process.roles=broker", "the node id 7 must not be included in the set of voters")
	f("process.roles=controller", "The listeners config must only contain KRaft controller listeners")
	f("controller.quorum.voters=", "either controller.quorum.bootstrap.servers must contain the set of bootstrap controllers")
	f("controller.listener.names=OTHER", "controller.listener.names must contain at least one value appearing in the 'listeners' configuration")
	f("listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9092", "each listener must have a different port, 9092 is there twice")
	f("listeners=PLAINTEXT://localhost:9092,FOO://:1,CONTROLLER://localhost:9093", "No security protocol defined for listener FOO")
	f("listeners=PLAINTEXT://localhost:x,CONTROLLER://localhost:9093", `port "x" is not a number from 0 to 65535`)
	f("advertised.listeners=PLAINTEXT://0.0.0.0:9092", "cannot use the nonroutable meta-address 0.0.0.0")
	f("advertised.listeners=SSL://a:1", "inter.broker.listener.name must be a listener name defined in advertised.listeners")
	f("inter.broker.listener.name=PLAINTEXT\nsecurity.inter.broker.protocol=PLAINTEXT", "Only one of inter.broker.listener.name and security.inter.broker.protocol")
	f("log.retention.hours=0", "log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
	f("broker.id=3", "You must set `node.id` to the same value as `broker.id`.")
	f("broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms should be less than or equal to half of broker.session.timeout.ms")
	f("log.dirs=/a,/a/", "/a and /a/ are the same directory")
	f("max.connections.per.ip.overrides=a:1,b", `"b" is not host:count`)
	f("early.start.listeners=X", "early.start.listeners contains listener X")
	f("group.consumer.session.timeout.ms=1000", "group.consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms")
	f("group.coordinator.rebalance.protocols=consumer", "Disabling the 'classic' protocol is not supported.")
	f("replica.fetch.wait.max.ms=50000", "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms")
	if _, err := load(t, "node.id=1\nlog.dirs=/x"); err == nil || strings.Count(err.Error(), "Missing required configuration") != 2 {
		t.Errorf("without roles and controller listener: %v", err)
	}
}

func TestUnitsAndSynonyms(t *testing.T) {
	f := func(change string, want time.Duration) {
		t.Helper()
		if got := mustLoad(t, minimal+change).Topic.Retention; got != want {
			t.Errorf("%q: retention %v, want %v", change, got, want)
		}
	}
	f("log.retention.hours=2", 2*time.Hour)
	f("log.retention.hours=2\nlog.retention.minutes=5", 5*time.Minute)
	f("log.retention.hours=2\nlog.retention.minutes=5\nlog.retention.ms=9", 9*time.Millisecond)
	f("log.retention.ms=-7", -time.Millisecond)
	f("log.retention.ms=9223372036854775807", math.MaxInt64)

	b := mustLoad(t, minimal+"log.flush.scheduler.interval.ms=11\nlog.roll.jitter.hours=1")
	if b.Topic.FlushInterval != 11*time.Millisecond || b.Topic.SegmentJitter != time.Hour {
		t.Errorf("flush %v, jitter %v", b.Topic.FlushInterval, b.Topic.SegmentJitter)
	}
}

func TestListeners(t *testing.T) {
	b := mustLoad(t, `process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=c:9093
controller.listener.names=controller
listeners=internal://127.0.0.1:9092,internal://[::1]:9092,External://:9094
advertised.listeners=internal://a:1,external://[fe80::1]:2
listener.security.protocol.map=internal:PLAINTEXT,external:sasl_ssl,controller:PLAINTEXT
inter.broker.listener.name=internal
`)
	if len(b.Listeners) != 3 || b.Listeners[1].Host != "::1" || b.Listeners[2].Name != "EXTERNAL" || !b.Listeners[2].Wildcard() || b.Listeners[2].Protocol != SASLSSL {
		t.Errorf("listeners %v", b.Listeners)
	}
	if got := b.AdvertisedListeners[1].String(); got != "EXTERNAL://[fe80::1]:2" {
		t.Errorf("advertised %s", got)
	}
	if b.InterBrokerListener != "INTERNAL" || b.ControllerListeners[0] != "CONTROLLER" || !b.Listeners[2].Protocol.TLS() || !b.Listeners[2].Protocol.SASL() {
		t.Errorf("inter broker %s", b.InterBrokerListener)
	}
}

func TestNotHonouredAndUnknown(t *testing.T) {
	b := mustLoad(t, minimal+"num.io.threads=8\nqueued.max.requests=7\nplugin.x=1\nssl.keystore.password=\n")
	if got := b.NotHonoured(); !slices.Equal(got, []string{"queued.max.requests", "ssl.keystore.password"}) {
		t.Errorf("not honoured: %v", got)
	}
	if got := b.UnknownKeys(); !slices.Equal(got, []string{"plugin.x"}) {
		t.Errorf("unknown: %v", got)
	}
	if v, ok := b.Raw("plugin.x"); v != "1" || !ok {
		t.Errorf("raw %q %v", v, ok)
	}
	if v := b.ListenerValue("PLAINTEXT", "ssl.client.auth"); v.Text() != "none" {
		t.Errorf("ssl.client.auth %v", v)
	}
}

func TestLive(t *testing.T) {
	l := NewLive(mustLoad(t, minimal+"log.retention.ms=5\nlog.flush.scheduler.interval.ms=44"))
	before := l.Current()
	calls := 0
	l.OnChange(func(was, now *Broker) {
		calls++
		if was != before || now != l.Current() {
			t.Error("OnChange was told of other configurations")
		}
	})
	ignored := l.Update(map[string]string{"log.retention.ms": "7000", "node.id": "3", "log.segment.bytes": "5"}, map[string]string{"log.flush.interval.ms": "8"})
	if !slices.Equal(ignored, []string{"log.segment.bytes", "node.id"}) {
		t.Errorf("ignored %v", ignored)
	}
	now := l.Current()
	if now.Topic.Retention != 7*time.Second || now.Topic.FlushInterval != 8*time.Millisecond || now.FlushSchedulerInterval != 44*time.Millisecond || now.NodeID != 7 {
		t.Errorf("after the update: retention %v, flush %v, scheduler %v", now.Topic.Retention, now.Topic.FlushInterval, now.FlushSchedulerInterval)
	}
	if before.Topic.Retention != 5*time.Millisecond {
		t.Error("the old configuration changed")
	}
	l.Update(map[string]string{"log.retention.ms": "7000"}, map[string]string{"log.flush.interval.ms": "8"})
	if calls != 1 {
		t.Errorf("%d calls for one change", calls)
	}
}

func TestTopicWith(t *testing.T) {
	b := mustLoad(t, minimal+"message.max.bytes=500")
	tc := b.TopicWith(map[string]string{"cleanup.policy": "compact", "retention.ms": "-1", "internal.segment.bytes": "100", "min.insync.replicas": "bad"})
	if !tc.CleanupCompact || tc.CleanupDelete || tc.Retention >= 0 || tc.SegmentBytes != 100 || tc.MaxMessageBytes != 500 || tc.MinInsyncReplicas != 1 || tc.RetentionMs() != -1 {
		t.Errorf("%+v", tc)
	}
	if g := b.GroupWith(map[string]string{"consumer.session.timeout.ms": "50000"}); g.ConsumerSessionTimeout != 50*time.Second || g.ConsumerHeartbeatInterval != 5*time.Second {
		t.Errorf("%+v", g)
	}
}

func TestTieredTopics(t *testing.T) {
	b := mustLoad(t, minimal+"remote.log.storage.system.enable=true")
	f := func(before, after map[string]string, want string) {
		t.Helper()
		got := ""
		if err := b.ValidateTopic(before, after); err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%v: got %q, want %q", after, got, want)
		}
	}
	on := func(kv ...string) map[string]string {
		m := map[string]string{"remote.storage.enable": "true"}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	f(nil, on(), "")
	f(nil, on("cleanup.policy", "compact"), "Remote log storage is unsupported for the compacted topics")
	f(nil, on("retention.ms", "5", "local.retention.ms", "6"), "Invalid value 6 for configuration local.retention.ms: Value must not be more than retention.ms property value: 5")
	f(nil, on("retention.bytes", "5", "local.retention.bytes", "-1"), "Invalid value -1 for configuration local.retention.bytes: Value must not be -1 as retention.bytes value is set as 5.")
	f(nil, on("remote.log.copy.disable", "true", "local.retention.ms", "6"), "When `remote.log.copy.disable` is set to true, the `local.retention.ms` and `retention.ms`")
	f(on(), map[string]string{}, "It is invalid to disable remote storage without deleting remote data.")
	f(on(), map[string]string{"remote.log.delete.on.disable": "true"}, "")
}

func TestJavaDoubles(t *testing.T) {
	f := func(d float64, want string) {
		t.Helper()
		if got := JavaDouble(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	f(0, "0.0")
	f(0.5, "0.5")
	f(1e7, "1.0E7")
	f(9999999, "9999999.0")
	f(0.001, "0.001")
	f(0.0001, "1.0E-4")
	f(math.MaxFloat64, "1.7976931348623157E308")
	f(2147483647, "2.147483647E9")
	f(math.Inf(-1), "-Infinity")
}

// TestLayersAgreeWithNaive compares the precedence of synonyms and layers with a search written the slow way.
func TestLayersAgreeWithNaive(t *testing.T) {
	base := mustLoad(t, minimal)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string, keys ...string) map[string]string {
			m := map[string]string{}
			for _, k := range keys {
				if rapid.Bool().Draw(t, label+k) {
					m[k] = rapid.SampledFrom([]string{"1", "2", "3", "40"}).Draw(t, label+k+"=")
				}
			}
			return m
		}
		static := base.layers.static
		merged := map[string]string{}
		for k, v := range static {
			merged[k] = v
		}
		own := draw("static", "log.retention.ms", "log.retention.minutes", "log.retention.hours")
		for k, v := range own {
			merged[k] = v
		}
		all, this := draw("all", "log.retention.ms"), draw("this", "log.retention.ms")
		b, problems := compile(&layers{static: merged, dynamicDefault: all, dynamic: this})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		want := int64(168 * hourMs)
		num := func(s string) int64 { return map[string]int64{"1": 1, "2": 2, "3": 3, "40": 40}[s] }
		if s, ok := own["log.retention.hours"]; ok {
			want = num(s) * hourMs
		}
		if s, ok := own["log.retention.minutes"]; ok {
			want = num(s) * minuteMs
		}
		for _, m := range []map[string]string{own, all, this} {
			if s, ok := m["log.retention.ms"]; ok {
				want = num(s)
			}
		}
		if got := b.Topic.RetentionMs(); got != want {
			t.Fatalf("retention %d, want %d", got, want)
		}
	})
}

func FuzzParseProperties(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte("a=b\\\n c\nx:y\n!z\n\\u0041=\\t"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParseProperties("f", text)
		if err != nil {
			return
		}
		for k := range p.Map() {
			p.Where(k)
		}
		if b, err := Load(p); err == nil {
			b.DescribeBroker(nil)
		} else if err.Error() == "" {
			t.Error("an error without text")
		}
	})
}

func BenchmarkCurrent(b *testing.B) {
	p, err := ParseProperties("x", []byte(minimal))
	if err != nil {
		b.Fatal(err)
	}
	c, err := Load(p)
	if err != nil {
		b.Fatal(err)
	}
	l := NewLive(c)
	b.ReportAllocs()
	for b.Loop() {
		if l.Current().FetchMaxBytes == 0 {
			b.Fatal("no bound")
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	p, err := ParseProperties("x", []byte(minimal))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Load(p); err != nil {
			b.Fatal(err)
		}
	}
}
