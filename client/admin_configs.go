package client

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ResourceType is what a config belongs to, by Kafka's number.
type ResourceType int8

const (
	TopicResource         ResourceType = 2
	BrokerResource        ResourceType = 4
	BrokerLoggerResource  ResourceType = 8
	ClientMetricsResource ResourceType = 16
	GroupResource         ResourceType = 32
)

var resourceNames = map[ResourceType]string{
	TopicResource: "topic", BrokerResource: "broker", BrokerLoggerResource: "broker-logger", ClientMetricsResource: "client-metrics",
	GroupResource: "group",
}

func (t ResourceType) String() string {
	if n, ok := resourceNames[t]; ok {
		return n
	}
	return fmt.Sprintf("resource-%d", int8(t))
}

// ResourceTypeOf finds a type by its name ("topics" is fine, too).
func ResourceTypeOf(name string) (ResourceType, bool) {
	for t, n := range resourceNames {
		if name == n || name == n+"s" {
			return t, true
		}
	}
	return 0, false
}

// Resource is what a config belongs to. A broker's name is its id, or "" for the default of all brokers.
type Resource struct {
	Type ResourceType
	Name string
}

// ConfigEntry is one config and where its value comes from.
type ConfigEntry struct {
	Name      string
	Value     *string // nil if sensitive or unset
	ReadOnly  bool
	Sensitive bool
	Source    ConfigSource
	Type      string // "int", "list"…
	Synonyms  []ConfigSynonym
	Doc       string
}

// ConfigSynonym is one of the places a value may come from, the strongest first.
type ConfigSynonym struct {
	Name   string
	Value  *string
	Source ConfigSource
}

// ConfigSource says where a value comes from, by Kafka's number.
type ConfigSource int8

// The sources that a topic's or broker's value can have.
const (
	TopicConfigSource    ConfigSource = 1
	DynamicBrokerSource  ConfigSource = 2
	DynamicDefaultSource ConfigSource = 3
	StaticBrokerSource   ConfigSource = 4
	DefaultSource        ConfigSource = 5
)

var sourceNames = []string{
	"UNKNOWN", "DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG", "STATIC_BROKER_CONFIG", "DEFAULT_CONFIG",
	"DYNAMIC_BROKER_LOGGER_CONFIG", "DYNAMIC_CLIENT_METRICS_CONFIG", "DYNAMIC_GROUP_CONFIG",
}

// String is Kafka's name.
func (s ConfigSource) String() string {
	if s < 0 || int(s) >= len(sourceNames) {
		return sourceNames[0]
	}
	return sourceNames[s]
}

var configTypes = []string{"unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password"}

// ResourceConfigs are the configs of one resource.
type ResourceConfigs struct {
	Resource
	Entries []ConfigEntry // by name
	Err     error
}

// DescribeConfigs reads configs; keys nil is all. Documentation comes only if asked for.
func (c *Client) DescribeConfigs(ctx context.Context, resources []Resource, keys []string, doc bool) ([]ResourceConfigs, error) {
	var out []ResourceConfigs
	err := c.onBrokersOf(ctx, resources, func(ctx context.Context, to target, some []Resource) error {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.IncludeSynonyms, req.IncludeDocumentation = true, doc
		for _, r := range some {
			rr := kmsg.NewDescribeConfigsRequestResource()
			rr.ResourceType, rr.ResourceName, rr.ConfigNames = kmsg.ConfigResourceType(r.Type), r.Name, keys
			req.Resources = append(req.Resources, rr)
		}
		resp, err := ask(ctx, c, to, req, func(r *kmsg.DescribeConfigsResponse) error {
			return retriableOf(len(r.Resources), func(i int) int16 { return r.Resources[i].ErrorCode })
		})
		if resp == nil {
			return err
		}
		for _, r := range resp.Resources {
			rc := ResourceConfigs{Resource: Resource{ResourceType(r.ResourceType), r.ResourceName}, Err: errorOf(r.ErrorCode, r.ErrorMessage)}
			for _, e := range r.Configs {
				rc.Entries = append(rc.Entries, entryOf(&e))
			}
			slices.SortFunc(rc.Entries, func(a, b ConfigEntry) int { return strings.Compare(a.Name, b.Name) })
			out = append(out, rc)
		}
		return nil
	})
	return out, err
}

func entryOf(e *kmsg.DescribeConfigsResponseResourceConfig) ConfigEntry {
	out := ConfigEntry{Name: e.Name, Value: e.Value, ReadOnly: e.ReadOnly, Sensitive: e.IsSensitive, Source: ConfigSource(e.Source), Type: configTypes[0]}
	if int(e.ConfigType) < len(configTypes) && e.ConfigType >= 0 {
		out.Type = configTypes[e.ConfigType]
	}
	if e.Documentation != nil {
		out.Doc = *e.Documentation
	}
	for _, s := range e.ConfigSynonyms {
		out.Synonyms = append(out.Synonyms, ConfigSynonym{s.Name, s.Value, ConfigSource(s.Source)})
	}
	return out
}

// onBrokersOf splits resources by who must be asked: a single broker's configs only that broker knows.
func (c *Client) onBrokersOf(ctx context.Context, resources []Resource, f func(context.Context, target, []Resource) error) error {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	groups := map[int32][]Resource{}
	for _, r := range resources {
		node := anyNode
		if (r.Type == BrokerResource || r.Type == BrokerLoggerResource) && r.Name != "" && !c.o.Controllers {
			id, err := strconv.ParseInt(r.Name, 10, 32)
			if err != nil {
				return fmt.Errorf("broker id %q is not a number", r.Name)
			}
			node = int32(id)
		}
		groups[node] = append(groups[node], r)
	}
	for _, node := range sortedKeys(groups) {
		if err := f(ctx, toNode(node), groups[node]); err != nil {
			return err
		}
	}
	return nil
}

// AlterOp is what to do with a config.
type AlterOp int8

const (
	SetConfig      AlterOp = 0
	DeleteConfig   AlterOp = 1 // back to the default
	AppendConfig   AlterOp = 2 // add to a list
	SubtractConfig AlterOp = 3 // take out of a list
)

// ConfigChange changes one config.
type ConfigChange struct {
	Name  string
	Op    AlterOp
	Value string // not for DeleteConfig
}

// AlterConfigs changes configs of one resource, all or none.
func (c *Client) AlterConfigs(ctx context.Context, r Resource, changes []ConfigChange, validateOnly bool) error {
	return c.onBrokersOf(ctx, []Resource{r}, func(ctx context.Context, to target, _ []Resource) error {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		req.ValidateOnly = validateOnly
		rr := kmsg.NewIncrementalAlterConfigsRequestResource()
		rr.ResourceType, rr.ResourceName = kmsg.ConfigResourceType(r.Type), r.Name
		for _, ch := range changes {
			rc := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
			rc.Name, rc.Op = ch.Name, kmsg.IncrementalAlterConfigOp(ch.Op)
			if ch.Op != DeleteConfig {
				rc.Value = &ch.Value
			}
			rr.Configs = append(rr.Configs, rc)
		}
		req.Resources = append(req.Resources, rr)
		_, err := ask(ctx, c, to, req, func(resp *kmsg.IncrementalAlterConfigsResponse) error {
			if len(resp.Resources) != 1 {
				return fmt.Errorf("%d answers to one change", len(resp.Resources))
			}
			return errorOf(resp.Resources[0].ErrorCode, resp.Resources[0].ErrorMessage)
		})
		return err
	})
}

// ConfigResources lists what has configs, of the types given or of all.
func (c *Client) ConfigResources(ctx context.Context, types ...ResourceType) ([]Resource, error) {
	req := kmsg.NewPtrListConfigResourcesRequest()
	for _, t := range types {
		req.ResourceTypes = append(req.ResourceTypes, int8(t))
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.ListConfigResourcesResponse) error { return errorOf(r.ErrorCode, nil) })
	if err != nil {
		return nil, err
	}
	var out []Resource
	for _, r := range resp.ConfigResources {
		out = append(out, Resource{ResourceType(r.Type), r.Name})
	}
	return out, nil
}
