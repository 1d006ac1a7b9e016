package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// kafkasAnswers are what Kafka 4.4.0 answered to DescribeConfigs and AlterConfigs with testdata/describe/server.properties:
// D lines describe resources, A lines are changes that were tried (those before the second round of D lines were made), C
// lines are topics that were to be created.
func kafkasAnswers(t *testing.T) (b *Broker, answers [][]string) {
	t.Helper()
	text, err := os.ReadFile("testdata/describe/server.properties")
	if err != nil {
		t.Fatal(err)
	}
	p, err := ParseProperties("server.properties", text)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = Load(p); err != nil {
		t.Fatal(err)
	}
	// With eligible leader replicas the controller itself sets min.insync.replicas for all brokers (KIP-966).
	l := NewLive(b)
	l.Update(map[string]string{"min.insync.replicas": "1"}, nil)
	return l.Current(), lines(t, "describe/kafka-4.4.tsv.gz")
}

func changed(t *testing.T, b *Broker) *Broker {
	t.Helper()
	l := NewLive(b)
	ignored := l.Update(map[string]string{"min.insync.replicas": "1", "log.retention.ms": "77777", "message.max.bytes": "123456", "leader.replication.throttled.rate": "1000", "plugin.x": "y", "log.cleanup.policy": "compact"},
		map[string]string{"log.roll.ms": "3600000", "log.cleaner.threads": "2", "listener.name.plaintext.max.connections": "50"})
	if len(ignored) > 0 {
		t.Fatalf("ignored %v", ignored)
	}
	return l.Current()
}

func show(p *string) string {
	if p == nil {
		return `\0`
	}
	return *p
}

var sourceNames = map[Source]string{SourceTopic: "DYNAMIC_TOPIC_CONFIG", SourceBroker: "DYNAMIC_BROKER_CONFIG", SourceDefaultBroker: "DYNAMIC_DEFAULT_BROKER_CONFIG",
	SourceStatic: "STATIC_BROKER_CONFIG", SourceDefault: "DEFAULT_CONFIG", SourceClientMetrics: "DYNAMIC_CLIENT_METRICS_CONFIG", SourceGroup: "DYNAMIC_GROUP_CONFIG"}

func TestDescribeIsKafkas(t *testing.T) {
	before, answers := kafkasAnswers(t)
	after := changed(t, before)
	topic := map[string]string{"retention.ms": "1000", "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.25"}
	got := map[string][]Entry{
		"broker0": before.DescribeBroker(nil), "default0": before.DescribeBrokerDefaults(nil), "topic0": before.DescribeTopic(topic, nil),
		"plain0": before.DescribeTopic(nil, nil), "group0": before.DescribeGroup(nil, nil),
		"broker1": after.DescribeBroker(nil), "default1": after.DescribeBrokerDefaults(nil), "topic1": after.DescribeTopic(topic, nil),
		"plain1": after.DescribeTopic(nil, nil), "group1": after.DescribeGroup(map[string]string{"consumer.session.timeout.ms": "50000"}, nil),
		"metrics1": DescribeClientMetrics(map[string]string{"interval.ms": "1000", "match": "client_id=a.*"}, nil),
	}
	have := map[string]string{}
	for label, entries := range got {
		for _, e := range entries {
			if strings.HasPrefix(e.Name, "gregor.") {
				continue
			}
			s := fmt.Sprintf("%s\t%s\t%s\t%v\t%v", show(e.Value), sourceNames[e.Source], e.Type, e.ReadOnly, e.Sensitive)
			for _, y := range e.Synonyms {
				s += fmt.Sprintf("\t%s=%s@%s", y.Name, show(y.Value), sourceNames[y.Source])
			}
			have[label+"\t"+e.Name] = s
		}
	}
	for _, l := range answers {
		if l[0] != "D" {
			continue
		}
		key, want := l[1]+"\t"+l[2], strings.Join(l[3:], "\t")
		s, ok := have[key]
		delete(have, key)
		if !ok {
			t.Errorf("%s is missing", key)
		} else if s != want {
			t.Errorf("%s:\n got %s\nwant %s", key, s, want)
		}
	}
	for key := range have {
		t.Errorf("%s is not described by Kafka", key)
	}
}

// TestRefusalsAreKafkas tries the changes that were tried on Kafka.
func TestRefusalsAreKafkas(t *testing.T) {
	b, answers := kafkasAnswers(t)
	b = changed(t, b)
	topic := map[string]string{"retention.ms": "1000", "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.25"}
	group := map[string]string{"consumer.session.timeout.ms": "50000"}
	with := func(m map[string]string, k, v string) map[string]string {
		out := map[string]string{k: v}
		for a, b := range m {
			if a != k {
				out[a] = b
			}
		}
		return out
	}
	n, described := 0, 0
	for _, l := range answers {
		if l[0] == "D" && l[1] == "broker1" {
			described++
		}
		if l[0] != "A" || described == 0 || l[3] != "SET" {
			continue
		}
		kind, name, k, v, want := l[1], l[2], l[4], l[5], strings.Join(l[7:], "\t")
		var err error
		switch kind {
		case "BROKER":
			if name == "2" || name == "abc" || strings.Contains(want, "DynamicMetricsReporters") || strings.Contains(want, "'max.connections.per.ip.overrides': begin") {
				continue // not a matter of configuration, or about Java classes
			}
			settings := b.layers.dynamic
			if name == "" {
				settings = b.layers.dynamicDefault
			}
			err = b.ValidateDynamic(with(settings, k, v), name != "")
		case "TOPIC":
			if name != "t" {
				continue
			}
			err = b.ValidateTopic(topic, with(topic, k, v))
		case "GROUP":
			if name == "" {
				continue
			}
			err = b.ValidateGroup(with(group, k, v))
		case "CLIENT_METRICS":
			err = ValidateClientMetrics(name, map[string]string{k: v})
		}
		n++
		// Kafka wraps refusals of its running parts in the class names of exceptions.
		want = strings.TrimPrefix(want, "Invalid value org.apache.kafka.common.config.ConfigException: ")
		want = strings.TrimSuffix(want, " for configuration Invalid dynamic configuration")
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s %s: %s=%s:\n got %s\nwant %s", kind, name, k, v, got, want)
		}
		var ce *ConfigError
		if errors.As(err, &ce) && kind == "CLIENT_METRICS" && ce.InvalidRequest != (l[6] == "InvalidRequestException") {
			t.Errorf("%s=%s: invalid request %v, want %s", k, v, ce.InvalidRequest, l[6])
		}
	}
	if n < 100 {
		t.Errorf("only %d changes were compared", n)
	}
}
