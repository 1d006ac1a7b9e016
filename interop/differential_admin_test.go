package interop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// newTopic is a topic of a CreateTopics request.
func newTopic(name string, partitions int32, factor int16, configs map[string]*string, assignment ...[]int32) kmsg.CreateTopicsRequestTopic {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, factor
	for _, k := range slices.Sorted(maps.Keys(configs)) {
		t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: k, Value: configs[k]})
	}
	for i, replicas := range assignment {
		t.ReplicaAssignment = append(t.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(i), Replicas: replicas})
	}
	return t
}

func str(s string) *string { return &s }

func diffTopics(t *testing.T, p *pair) {
	type configs = map[string]*string
	// %d is the version of the request, so that each creates a topic of its own.
	for _, c := range []struct {
		name   string
		topics []kmsg.CreateTopicsRequestTopic
	}{
		{"plain", []kmsg.CreateTopicsRequestTopic{newTopic("ct-plain-%d", 3, 1, nil)}},
		{"defaults", []kmsg.CreateTopicsRequestTopic{newTopic("ct-defaults-%d", -1, -1, nil)}},
		{"again", []kmsg.CreateTopicsRequestTopic{newTopic("ct-plain-%d", 3, 1, nil)}},
		{"assigned", []kmsg.CreateTopicsRequestTopic{newTopic("ct-assigned-%d", -1, -1, nil, []int32{1}, []int32{1})}},
		{"assigned and counted", []kmsg.CreateTopicsRequestTopic{newTopic("ct-counted-%d", 2, 1, nil, []int32{1}, []int32{1})}},
		{"assigned and counted partitions", []kmsg.CreateTopicsRequestTopic{newTopic("ct-counted2-%d", 2, -1, nil, []int32{1}, []int32{1})}},
		{"assigned to an unknown broker", []kmsg.CreateTopicsRequestTopic{newTopic("ct-unknown-%d", -1, -1, nil, []int32{7})}},
		{"assigned twice", []kmsg.CreateTopicsRequestTopic{newTopic("ct-twice-%d", -1, -1, nil, []int32{1, 1})}},
		{"assigned to none", []kmsg.CreateTopicsRequestTopic{newTopic("ct-none-%d", -1, -1, nil, []int32{})}},
		{"assigned to a negative broker", []kmsg.CreateTopicsRequestTopic{newTopic("ct-negative-%d", -1, -1, nil, []int32{-1})}},
		{"assigned unevenly", []kmsg.CreateTopicsRequestTopic{newTopic("ct-uneven-%d", -1, -1, nil, []int32{1}, []int32{1, 2})}},
		{"factor 3", []kmsg.CreateTopicsRequestTopic{newTopic("ct-factor-%d", 1, 3, nil)}},
		{"factor 0", []kmsg.CreateTopicsRequestTopic{newTopic("ct-factor-%d", 1, 0, nil)}},
		{"factor -2", []kmsg.CreateTopicsRequestTopic{newTopic("ct-factor-%d", 1, -2, nil)}},
		{"0 partitions", []kmsg.CreateTopicsRequestTopic{newTopic("ct-zero-%d", 0, 1, nil)}},
		{"-2 partitions", []kmsg.CreateTopicsRequestTopic{newTopic("ct-minus-%d", -2, 1, nil)}},
		{"too many partitions", []kmsg.CreateTopicsRequestTopic{newTopic("ct-many-%d", 100000, 1, nil)}},
		{"empty name", []kmsg.CreateTopicsRequestTopic{newTopic("", 1, 1, nil)}},
		{"bad name", []kmsg.CreateTopicsRequestTopic{newTopic("a b", 1, 1, nil)}},
		{"dot", []kmsg.CreateTopicsRequestTopic{newTopic(".", 1, 1, nil)}},
		{"dots", []kmsg.CreateTopicsRequestTopic{newTopic("..", 1, 1, nil)}},
		{"long name", []kmsg.CreateTopicsRequestTopic{newTopic(strings.Repeat("x", 250), 1, 1, nil)}},
		{"collides", []kmsg.CreateTopicsRequestTopic{newTopic("ct.plain-%d", 1, 1, nil), newTopic("ct_plain-%d", 1, 1, nil)}},
		{"metadata topic", []kmsg.CreateTopicsRequestTopic{newTopic("__cluster_metadata", 1, 1, nil)}},
		{"twice the same", []kmsg.CreateTopicsRequestTopic{newTopic("ct-dup-%d", 1, 1, nil), newTopic("ct-dup-%d", 2, 1, nil), newTopic("ct-other-%d", 1, 1, nil)}},
		{"configs", []kmsg.CreateTopicsRequestTopic{newTopic("ct-configs-%d", 1, 1, configs{"retention.ms": str("1000"), "cleanup.policy": str("compact,delete")})}},
		{"unknown config", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"no.such.config": str("1")})}},
		{"bad number", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"retention.ms": str("many")})}},
		{"out of range", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"segment.bytes": str("1")})}},
		{"out of range below", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"retention.ms": str("-2")})}},
		{"bad choice", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"cleanup.policy": str("shred")})}},
		{"bad boolean", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"preallocate": str("perhaps")})}},
		{"bad codec", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"compression.type": str("rar")})}},
		{"null config", []kmsg.CreateTopicsRequestTopic{newTopic("ct-null-%d", 1, 1, configs{"retention.ms": nil})}},
		{"empty config", []kmsg.CreateTopicsRequestTopic{newTopic("ct-empty-%d", 1, 1, configs{"retention.ms": str("")})}},
		{"contradiction", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"min.compaction.lag.ms": str("10"), "max.compaction.lag.ms": str("5")})}},
		{"local retention beyond", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"retention.ms": str("10"), "local.retention.ms": str("50")})}},
		{"remote storage", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"remote.storage.enable": str("true")})}},
		{"min isr above factor", []kmsg.CreateTopicsRequestTopic{newTopic("ct-isr-%d", 1, 1, configs{"min.insync.replicas": str("3")})}},
		{"two bad configs", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"retention.ms": str("x"), "segment.bytes": str("y")})}},
		{"throttled replicas", []kmsg.CreateTopicsRequestTopic{newTopic("ct-throttled-%d", 1, 1, configs{"leader.replication.throttled.replicas": str("0:1,1:1")})}},
		{"bad throttled replicas", []kmsg.CreateTopicsRequestTopic{newTopic("ct-bad-%d", 1, 1, configs{"leader.replication.throttled.replicas": str("zero")})}},
		{"removed config", []kmsg.CreateTopicsRequestTopic{newTopic("ct-old-%d", 1, 1, configs{"message.format.version": str("2.8")})}},
		{"none", nil},
	} {
		for _, validate := range []bool{true, false} {
			name := c.name
			if validate {
				name += ", validate only"
			}
			p.each(t, name, func(s *side, v int16) kmsg.Request {
				r := kmsg.NewPtrCreateTopicsRequest()
				r.TimeoutMillis, r.ValidateOnly = 10000, validate
				for _, topic := range c.topics {
					topic.Topic = strings.ReplaceAll(topic.Topic, "%d", fmt.Sprint(v))
					r.Topics = append(r.Topics, topic)
				}
				return r
			})
		}
	}
	p.both(func(s *side) { s.awaitLeaders(t, "ct-throttled-7") })
	p.each(t, "all metadata after creations", func(s *side, v int16) kmsg.Request { r := kmsg.NewPtrMetadataRequest(); r.Topics = nil; return r })
	p.each(t, "delete", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDeleteTopicsRequest()
		r.TimeoutMillis = 10000
		for _, name := range []string{fmt.Sprintf("ct-plain-%d", v+1), nobody, "", "a b"} {
			r.TopicNames = append(r.TopicNames, name)
			r.Topics = append(r.Topics, kmsg.DeleteTopicsRequestTopic{Topic: &name})
		}
		return r
	})
	p.each(t, "delete twice the same", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDeleteTopicsRequest()
		r.TimeoutMillis = 10000
		for _, name := range []string{fmt.Sprintf("ct-configs-%d", v+1), fmt.Sprintf("ct-configs-%d", v+1)} {
			r.TopicNames = append(r.TopicNames, name)
			r.Topics = append(r.Topics, kmsg.DeleteTopicsRequestTopic{Topic: &name})
		}
		return r
	})
	p.each(t, "delete nothing", func(s *side, v int16) kmsg.Request { return kmsg.NewPtrDeleteTopicsRequest() })
	p.once(t, "delete by id", func(s *side) kmsg.Request {
		r := kmsg.NewPtrDeleteTopicsRequest()
		r.TimeoutMillis = 10000
		r.Topics = []kmsg.DeleteTopicsRequestTopic{{TopicID: s.topicID(t, "ct-assigned-2")}, {TopicID: unknownID}, {}}
		return r
	}, nil)
	p.once(t, "delete by name and id", func(s *side) kmsg.Request {
		r := kmsg.NewPtrDeleteTopicsRequest()
		r.TimeoutMillis = 10000
		r.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: str("ct-assigned-3"), TopicID: s.topicID(t, "ct-assigned-3")}}
		return r
	}, nil)
	p.once(t, "delete by name and by id", func(s *side) kmsg.Request {
		r := kmsg.NewPtrDeleteTopicsRequest()
		r.TimeoutMillis = 10000
		r.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: str("ct-assigned-4")}, {TopicID: s.topicID(t, "ct-assigned-4")}}
		return r
	}, nil)
}

func diffPartitions(t *testing.T, p *pair) {
	p.createTopics(t, 2, nil, "grow")
	for _, validate := range []bool{true, false} {
		for _, c := range []struct {
			name, topic string
			count       int32
			assignment  [][]int32
		}{
			{"as many", "grow", 2, nil}, {"fewer", "grow", 1, nil}, {"zero", "grow", 0, nil}, {"negative", "grow", -1, nil},
			{"unknown topic", nobody, 5, nil}, {"empty name", "", 5, nil}, {"wrong assignment count", "grow", 40, [][]int32{{1}}},
			{"unknown broker", "grow", 41, [][]int32{{9}}}, {"too many replicas", "grow", 41, [][]int32{{1, 1}}}, {"no replicas", "grow", 41, [][]int32{{}}},
			{"too many", "grow", 50000, nil},
		} {
			p.each(t, fmt.Sprintf("%s, validate only %t", c.name, validate), func(s *side, v int16) kmsg.Request {
				r := kmsg.NewPtrCreatePartitionsRequest()
				r.TimeoutMillis, r.ValidateOnly = 10000, validate
				rt := kmsg.NewCreatePartitionsRequestTopic()
				rt.Topic, rt.Count = c.topic, c.count
				for _, a := range c.assignment {
					rt.Assignment = append(rt.Assignment, kmsg.CreatePartitionsRequestTopicAssignment{Replicas: a})
				}
				r.Topics = append(r.Topics, rt)
				return r
			})
		}
		p.each(t, fmt.Sprintf("one more, validate only %t", validate), func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrCreatePartitionsRequest()
			r.TimeoutMillis, r.ValidateOnly = 10000, validate
			rt := kmsg.NewCreatePartitionsRequestTopic()
			rt.Topic, rt.Count = "grow", 3+int32(v)
			if v%2 == 1 {
				rt.Assignment = append(rt.Assignment, kmsg.CreatePartitionsRequestTopicAssignment{Replicas: []int32{1}})
				if validate {
					rt.Count = 3
				}
			}
			r.Topics = append(r.Topics, rt)
			return r
		})
		p.each(t, fmt.Sprintf("twice the same, validate only %t", validate), func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrCreatePartitionsRequest()
			r.TimeoutMillis, r.ValidateOnly = 10000, validate
			rt := kmsg.NewCreatePartitionsRequestTopic()
			rt.Topic, rt.Count = "grow", 100
			r.Topics = append(r.Topics, rt, rt)
			return r
		})
	}
	for _, election := range []int8{0, 1, 2} {
		p.each(t, fmt.Sprintf("elect, type %d", election), func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrElectLeadersRequest()
			r.ElectionType, r.TimeoutMillis = election, 5000
			for topic, partitions := range map[string][]int32{"grow": {0, 77, -1}, nobody: {0}, "": {0}} {
				rt := kmsg.NewElectLeadersRequestTopic()
				rt.Topic, rt.Partitions = topic, partitions
				r.Topics = append(r.Topics, rt)
			}
			return r
		})
		p.each(t, fmt.Sprintf("elect all, type %d", election), func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrElectLeadersRequest()
			r.ElectionType, r.TimeoutMillis, r.Topics = election, 5000, nil
			return r
		})
	}
	p.each(t, "list reassignments", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrListPartitionReassignmentsRequest()
		r.TimeoutMillis, r.Topics = 5000, nil
		return r
	})
	p.each(t, "list some reassignments", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrListPartitionReassignmentsRequest()
		r.TimeoutMillis = 5000
		r.Topics = []kmsg.ListPartitionReassignmentsRequestTopic{{Topic: "grow", Partitions: []int32{0, 5}}, {Topic: nobody, Partitions: []int32{0}}}
		return r
	})
	p.each(t, "reassign", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		r.TimeoutMillis, r.AllowReplicationFactorChange = 5000, v == 0
		part := func(i int32, replicas []int32) kmsg.AlterPartitionAssignmentsRequestTopicPartition {
			return kmsg.AlterPartitionAssignmentsRequestTopicPartition{Partition: i, Replicas: replicas}
		}
		r.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{
			{Topic: "grow", Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{part(0, []int32{1}), part(1, []int32{9}), part(2, []int32{}),
				part(3, nil), part(99, []int32{1}), part(4, []int32{1, 1}), part(5, []int32{1, 9})}},
			{Topic: nobody, Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{part(0, []int32{1})}},
		}
		return r
	})
}

const (
	topicResource  = kmsg.ConfigResourceType(2)
	brokerResource = kmsg.ConfigResourceType(4)
	loggerResource = kmsg.ConfigResourceType(8)
	clientMetrics  = kmsg.ConfigResourceType(16)
	groupResource  = kmsg.ConfigResourceType(32)
)

func diffConfigs(t *testing.T, p *pair) {
	p.createTopics(t, 1, map[string]string{"retention.ms": "12345"}, "configured")
	describe := func(name string, kind kmsg.ConfigResourceType, resource string, keys []string) {
		t.Helper()
		for _, with := range []bool{false, true} {
			p.each(t, fmt.Sprintf("describe %s, with all %t", name, with), func(s *side, v int16) kmsg.Request {
				r := kmsg.NewPtrDescribeConfigsRequest()
				r.IncludeSynonyms, r.IncludeDocumentation = with, false
				r.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kind, ResourceName: resource, ConfigNames: keys}}
				return r
			})
		}
	}
	describe("a topic", topicResource, "configured", nil)
	describe("some of a topic", topicResource, "configured", []string{"retention.ms", "cleanup.policy", "no.such.key"})
	describe("nothing of a topic", topicResource, "configured", []string{})
	describe("an unknown topic", topicResource, nobody, nil)
	describe("a bad topic", topicResource, "a b", nil)
	describe("an empty topic", topicResource, "", nil)
	describe("the broker", brokerResource, "1", nil)
	describe("the cluster", brokerResource, "", nil)
	describe("another broker", brokerResource, "7", nil)
	describe("a bad broker", brokerResource, "x", nil)
	describe("another logger", loggerResource, "7", nil)
	describe("a bad logger", loggerResource, "x", nil)
	describe("no logger", loggerResource, "", nil)
	describe("client metrics", clientMetrics, "cm", nil)
	describe("empty client metrics", clientMetrics, "", nil)
	describe("a group", groupResource, "g", nil)
	describe("an empty group", groupResource, "", nil)
	describe("an unknown type", kmsg.ConfigResourceType(99), "x", nil)
	p.each(t, "describe a topic twice", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrDescribeConfigsRequest()
		one := kmsg.DescribeConfigsRequestResource{ResourceType: topicResource, ResourceName: "configured", ConfigNames: []string{"retention.ms"}}
		r.Resources = append(r.Resources, one, one)
		return r
	})

	type change struct {
		key   string
		op    kmsg.IncrementalAlterConfigOp
		value *string
	}
	for _, c := range []struct {
		name     string
		kind     kmsg.ConfigResourceType
		resource string
		changes  []change
	}{
		{"set", topicResource, "configured", []change{{"retention.ms", 0, str("777")}}},
		{"delete", topicResource, "configured", []change{{"retention.ms", 1, nil}}},
		{"delete with value", topicResource, "configured", []change{{"retention.ms", 1, str("5")}}},
		{"append", topicResource, "configured", []change{{"cleanup.policy", 2, str("compact")}}},
		{"append again", topicResource, "configured", []change{{"cleanup.policy", 2, str("compact")}}},
		{"subtract", topicResource, "configured", []change{{"cleanup.policy", 3, str("delete")}}},
		{"subtract the last", topicResource, "configured", []change{{"cleanup.policy", 3, str("compact")}}},
		{"set empty", topicResource, "configured", []change{{"cleanup.policy", 0, str("")}}},
		{"append to a number", topicResource, "configured", []change{{"retention.ms", 2, str("5")}}},
		{"append to an unknown key", topicResource, "configured", []change{{"no.such.key", 2, str("5")}}},
		{"set null", topicResource, "configured", []change{{"retention.ms", 0, nil}}},
		{"append null", topicResource, "configured", []change{{"cleanup.policy", 2, nil}}},
		{"unknown operation", topicResource, "configured", []change{{"retention.ms", 9, str("5")}}},
		{"unknown key", topicResource, "configured", []change{{"no.such.key", 0, str("5")}}},
		{"delete an unknown key", topicResource, "configured", []change{{"no.such.key", 1, nil}}},
		{"bad value", topicResource, "configured", []change{{"retention.ms", 0, str("x")}}},
		{"one key twice", topicResource, "configured", []change{{"retention.ms", 0, str("5")}, {"retention.ms", 0, str("6")}}},
		{"one good and one bad", topicResource, "configured", []change{{"retention.ms", 0, str("5")}, {"segment.bytes", 0, str("x")}}},
		{"min isr", topicResource, "configured", []change{{"min.insync.replicas", 0, str("2")}}},
		{"empty key", topicResource, "configured", []change{{"", 0, str("5")}}},
		{"nothing", topicResource, "configured", nil},
		{"unknown topic", topicResource, nobody, []change{{"retention.ms", 0, str("5")}}},
		{"bad topic", topicResource, "a b", []change{{"retention.ms", 0, str("5")}}},
		{"empty topic", topicResource, "", []change{{"retention.ms", 0, str("5")}}},
		{"broker", brokerResource, "1", []change{{"log.cleaner.threads", 0, str("2")}}},
		{"broker back", brokerResource, "1", []change{{"log.cleaner.threads", 1, nil}}},
		{"broker, read-only", brokerResource, "1", []change{{"log.dirs", 0, str("/x")}}},
		{"broker, bad value", brokerResource, "1", []change{{"log.cleaner.threads", 0, str("x")}}},
		{"broker, out of range", brokerResource, "1", []change{{"log.cleaner.threads", 0, str("-1")}}},
		{"broker, unknown key", brokerResource, "1", []change{{"my.plugin.key", 0, str("x")}}},
		{"broker, cluster-wide key", brokerResource, "1", []change{{"log.retention.ms", 0, str("100000")}}},
		{"cluster", brokerResource, "", []change{{"log.retention.ms", 0, str("86400000")}}},
		{"cluster back", brokerResource, "", []change{{"log.retention.ms", 1, nil}}},
		{"cluster, per-broker key", brokerResource, "", []change{{"listeners", 0, str("PLAINTEXT://:1")}}},
		{"cluster, read-only", brokerResource, "", []change{{"node.id", 0, str("5")}}},
		{"other broker", brokerResource, "7", []change{{"log.cleaner.threads", 0, str("2")}}},
		{"bad broker", brokerResource, "x", []change{{"log.cleaner.threads", 0, str("2")}}},
		{"group", groupResource, "g", []change{{"consumer.session.timeout.ms", 0, str("50000")}}},
		{"group, bad value", groupResource, "g", []change{{"consumer.session.timeout.ms", 0, str("1")}}},
		{"group, unknown key", groupResource, "g", []change{{"no.such.key", 0, str("1")}}},
		{"group without name", groupResource, "", []change{{"consumer.session.timeout.ms", 0, str("50000")}}},
		{"client metrics", clientMetrics, "cm", []change{{"interval.ms", 0, str("5000")}}},
		{"client metrics, bad interval", clientMetrics, "cm", []change{{"interval.ms", 0, str("5")}}},
		{"client metrics, unknown key", clientMetrics, "cm", []change{{"no.such.key", 0, str("5")}}},
		{"client metrics, match", clientMetrics, "cm", []change{{"match", 0, str("client_id=.*,client_software_name=x")}}},
		{"client metrics, bad match", clientMetrics, "cm", []change{{"match", 0, str("nothing=.*")}}},
		{"client metrics without name", clientMetrics, "", []change{{"interval.ms", 0, str("5000")}}},
		{"unknown type", kmsg.ConfigResourceType(99), "x", []change{{"k", 0, str("5")}}},
	} {
		for _, validate := range []bool{true, false} {
			p.each(t, fmt.Sprintf("alter: %s, validate only %t", c.name, validate), func(s *side, v int16) kmsg.Request {
				r := kmsg.NewPtrIncrementalAlterConfigsRequest()
				r.ValidateOnly = validate
				rr := kmsg.IncrementalAlterConfigsRequestResource{ResourceType: c.kind, ResourceName: c.resource}
				for _, ch := range c.changes {
					rr.Configs = append(rr.Configs, kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: ch.key, Op: ch.op, Value: ch.value})
				}
				r.Resources = append(r.Resources, rr)
				return r
			})
		}
		for _, ch := range c.changes[:min(1, len(c.changes))] {
			if ch.op != 0 {
				continue
			}
			p.each(t, "replace: "+c.name, func(s *side, v int16) kmsg.Request {
				r := kmsg.NewPtrAlterConfigsRequest()
				r.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: c.kind, ResourceName: c.resource,
					Configs: []kmsg.AlterConfigsRequestResourceConfig{{Name: ch.key, Value: ch.value}}}}
				return r
			})
		}
	}
	p.each(t, "alter one resource twice", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrIncrementalAlterConfigsRequest()
		one := kmsg.IncrementalAlterConfigsRequestResource{ResourceType: topicResource, ResourceName: "configured",
			Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "retention.ms", Value: str("5")}}}
		r.Resources = append(r.Resources, one, one)
		return r
	})
	p.each(t, "replace all by nothing", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrAlterConfigsRequest()
		r.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: topicResource, ResourceName: "configured"}}
		return r
	})
	describe("a topic at the end", topicResource, "configured", []string{"retention.ms", "cleanup.policy", "min.insync.replicas"})
	describe("the broker at the end", brokerResource, "1", []string{"log.cleaner.threads", "log.retention.ms", "my.plugin.key"})
	describe("the cluster at the end", brokerResource, "", nil)
	describe("a group at the end", groupResource, "g", nil)
	describe("client metrics at the end", clientMetrics, "cm", nil)
	p.each(t, "list resources", func(s *side, v int16) kmsg.Request { return kmsg.NewPtrListConfigResourcesRequest() })
	for _, types := range [][]int8{{2}, {4}, {8}, {16}, {32}, {2, 4, 8, 16, 32}, {99}, {2, 99}, {0}} {
		p.at(t, fmt.Sprintf("list resources of types %d", types), 1, func(s *side) kmsg.Request {
			r := kmsg.NewPtrListConfigResourcesRequest()
			r.ResourceTypes = types
			return r
		}, nil)
	}
}

func diffCluster(t *testing.T, p *pair) {
	for _, kind := range []int8{1, 2, 0, 9} {
		p.each(t, fmt.Sprintf("describe, endpoints of type %d", kind), func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrDescribeClusterRequest()
			r.EndpointType = kind
			r.IncludeClusterAuthorizedOperations, r.IncludeFencedBrokers = v == 1, v >= 2
			return r
		})
	}
	dirs := func(name string, topics []kmsg.DescribeLogDirsRequestTopic) {
		t.Helper()
		p.each(t, name, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrDescribeLogDirsRequest()
			r.Topics = topics
			return r
		})
	}
	dirs("log dirs of some", []kmsg.DescribeLogDirsRequestTopic{{Topic: "b", Partitions: []int32{0, 1, 9}}, {Topic: nobody, Partitions: []int32{0}}})
	dirs("log dirs of none", []kmsg.DescribeLogDirsRequestTopic{})
	dirs("log dirs of no partition", []kmsg.DescribeLogDirsRequestTopic{{Topic: "b"}})
	quorum := func(name string, topic string, partitions ...int32) {
		t.Helper()
		p.each(t, name, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrDescribeQuorumRequest()
			rt := kmsg.DescribeQuorumRequestTopic{Topic: topic}
			for _, i := range partitions {
				rt.Partitions = append(rt.Partitions, kmsg.DescribeQuorumRequestTopicPartition{Partition: i})
			}
			r.Topics = append(r.Topics, rt)
			return r
		})
	}
	quorum("quorum", "__cluster_metadata", 0)
	quorum("quorum of another partition", "__cluster_metadata", 1)
	quorum("quorum of another topic", "b", 0)
	p.each(t, "quorum of nothing", func(s *side, v int16) kmsg.Request { return kmsg.NewPtrDescribeQuorumRequest() })
	for _, c := range []struct {
		name  string
		f     string
		level int16
		kind  int8
		down  bool
	}{
		{"same level", "metadata.version", 33, 1, false}, {"unknown feature", "no.such.feature", 1, 1, false}, {"level too high", "metadata.version", 99, 1, false},
		{"level 0", "metadata.version", 0, 1, false}, {"negative", "metadata.version", -1, 1, false}, {"downgrade without leave", "group.version", 0, 1, false},
		{"safe downgrade", "group.version", 0, 2, true}, {"up again", "group.version", 1, 1, false}, {"kraft", "kraft.version", 1, 1, false},
		{"kraft down", "kraft.version", 0, 2, true}, {"unknown kind of upgrade", "group.version", 1, 7, false},
		{"metadata down", "metadata.version", 30, 2, true},
	} {
		p.each(t, "feature: "+c.name, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrUpdateFeaturesRequest()
			r.TimeoutMillis, r.ValidateOnly = 5000, v == 2
			r.FeatureUpdates = []kmsg.UpdateFeaturesRequestFeatureUpdate{{Feature: c.f, MaxVersionLevel: c.level, UpgradeType: c.kind, AllowDowngrade: c.down}}
			return r
		})
	}
	p.each(t, "feature: none", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrUpdateFeaturesRequest()
		r.TimeoutMillis = 5000
		return r
	})
	p.each(t, "feature: twice", func(s *side, v int16) kmsg.Request {
		r := kmsg.NewPtrUpdateFeaturesRequest()
		r.TimeoutMillis = 5000
		one := kmsg.UpdateFeaturesRequestFeatureUpdate{Feature: "group.version", MaxVersionLevel: 1, UpgradeType: 1}
		r.FeatureUpdates = append(r.FeatureUpdates, one, one)
		return r
	})
	for _, id := range []int32{7, -1} {
		p.each(t, fmt.Sprintf("unregister broker %d", id), func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrUnregisterBrokerRequest()
			r.BrokerID = id
			return r
		})
	}
}

func diffQuotas(t *testing.T, p *pair) {
	type entity = kmsg.AlterClientQuotasRequestEntryEntity
	type op = kmsg.AlterClientQuotasRequestEntryOp
	for _, c := range []struct {
		name     string
		entities []entity
		ops      []op
	}{
		{"user", []entity{{Type: "user", Name: str("u")}}, []op{{Key: "producer_byte_rate", Value: 1000}}},
		{"user and client", []entity{{Type: "user", Name: str("u")}, {Type: "client-id", Name: str("c")}}, []op{{Key: "consumer_byte_rate", Value: 1000.5}}},
		{"default user", []entity{{Type: "user"}}, []op{{Key: "request_percentage", Value: 12.5}}},
		{"ip", []entity{{Type: "ip", Name: str("127.0.0.1")}}, []op{{Key: "connection_creation_rate", Value: 100}}},
		{"ip with a rate of users", []entity{{Type: "ip", Name: str("127.0.0.1")}}, []op{{Key: "producer_byte_rate", Value: 100}}},
		{"unknown entity", []entity{{Type: "house", Name: str("x")}}, []op{{Key: "producer_byte_rate", Value: 100}}},
		{"unknown key", []entity{{Type: "user", Name: str("u")}}, []op{{Key: "speed", Value: 100}}},
		{"fraction", []entity{{Type: "user", Name: str("u")}}, []op{{Key: "producer_byte_rate", Value: 1.5}}},
		{"negative", []entity{{Type: "user", Name: str("u")}}, []op{{Key: "producer_byte_rate", Value: -1}}},
		{"zero", []entity{{Type: "user", Name: str("u")}}, []op{{Key: "producer_byte_rate", Value: 0}}},
		{"empty name", []entity{{Type: "user", Name: str("")}}, []op{{Key: "producer_byte_rate", Value: 1}}},
		{"no entity", nil, []op{{Key: "producer_byte_rate", Value: 1}}},
		{"twice the entity", []entity{{Type: "user", Name: str("u")}, {Type: "user", Name: str("v")}}, []op{{Key: "producer_byte_rate", Value: 1}}},
		{"user and ip", []entity{{Type: "user", Name: str("u")}, {Type: "ip", Name: str("127.0.0.1")}}, []op{{Key: "producer_byte_rate", Value: 1}}},
		{"no operation", []entity{{Type: "user", Name: str("u")}}, nil},
		{"remove", []entity{{Type: "user", Name: str("u")}}, []op{{Key: "producer_byte_rate", Remove: true}}},
		{"remove what is not there", []entity{{Type: "user", Name: str("w")}}, []op{{Key: "producer_byte_rate", Remove: true}}},
		{"remove an unknown key", []entity{{Type: "user", Name: str("w")}}, []op{{Key: "speed", Remove: true}}},
	} {
		for _, validate := range []bool{true, false} {
			p.each(t, fmt.Sprintf("alter: %s, validate only %t", c.name, validate), func(s *side, v int16) kmsg.Request {
				r := kmsg.NewPtrAlterClientQuotasRequest()
				r.ValidateOnly = validate
				r.Entries = []kmsg.AlterClientQuotasRequestEntry{{Entity: c.entities, Ops: c.ops}}
				return r
			})
		}
	}
	type component = kmsg.DescribeClientQuotasRequestComponent
	for _, c := range []struct {
		name       string
		components []component
		strict     bool
	}{
		{"all", nil, false}, {"all, strict", nil, true},
		{"user u", []component{{EntityType: "user", MatchType: 0, Match: str("u")}}, false},
		{"user u, strict", []component{{EntityType: "user", MatchType: 0, Match: str("u")}}, true},
		{"default user", []component{{EntityType: "user", MatchType: 1}}, false},
		{"any user", []component{{EntityType: "user", MatchType: 2}}, false},
		{"any ip", []component{{EntityType: "ip", MatchType: 2}}, false},
		{"unknown type of match", []component{{EntityType: "user", MatchType: 7}}, false},
		{"unknown entity", []component{{EntityType: "house", MatchType: 2}}, false},
		{"twice the entity", []component{{EntityType: "user", MatchType: 2}, {EntityType: "user", MatchType: 1}}, false},
		{"user and ip", []component{{EntityType: "user", MatchType: 2}, {EntityType: "ip", MatchType: 2}}, false},
		{"default with a name", []component{{EntityType: "user", MatchType: 1, Match: str("x")}}, false},
		{"exact without a name", []component{{EntityType: "user", MatchType: 0}}, false},
		{"empty entity", []component{{EntityType: "", MatchType: 2}}, false},
	} {
		p.each(t, "describe: "+c.name, func(s *side, v int16) kmsg.Request {
			r := kmsg.NewPtrDescribeClientQuotasRequest()
			r.Components, r.Strict = c.components, c.strict
			return r
		})
	}
}
