package controller

import (
	"errors"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/config"
)

// schema is the ConfigSchema of a broker's configuration.
type schema struct {
	static *config.Broker
	// live lays what is set dynamically over it, for describing new topics. It is the controller's own: what others see
	// comes from the committed image.
	live *config.Live
}

// NewConfigSchema makes the controller's view of configuration keys out of server.properties, without dynamic settings: those
// are in the metadata log. It belongs to the controller it is given to.
func NewConfigSchema(static *config.Broker) ConfigSchema {
	return &schema{static: static, live: config.NewLive(static)}
}

func (s *schema) Validate(resourceType int8, name string, after, before map[string]string) error {
	switch resourceType {
	case kindTopic:
		return s.static.ValidateTopic(before, after)
	case kindGroup:
		return s.static.ValidateGroup(after)
	case kindClientMetrics:
		err := config.ValidateClientMetrics(name, after)
		if e, ok := errors.AsType[*config.ConfigError](err); ok && e.InvalidRequest {
			return api.WithMessage(api.ErrInvalidRequest, "%s", e.Text)
		}
		return err
	}
	return nil
}

func key(resourceType int8, name string) *config.Key {
	switch resourceType {
	case kindTopic:
		return config.TopicKeys.Lookup(name)
	case kindBroker:
		return config.BrokerKeys.Lookup(name)
	case kindGroup:
		return config.GroupKeys.Lookup(name)
	case kindClientMetrics:
		return config.ClientMetricsKeys.Lookup(name)
	}
	return nil
}

func (s *schema) IsList(resourceType int8, name string) bool {
	k := key(resourceType, name)
	return k != nil && k.Type == config.List
}

func (s *schema) Default(resourceType int8, name string) (string, bool) {
	if k := key(resourceType, name); k != nil {
		return k.DefaultText()
	}
	return "", false
}

// Known is false for topic and group keys that nobody knows: a newer version may have written them. Broker resources may hold
// the settings of plugins.
func (s *schema) Known(resourceType int8, name string) bool {
	switch resourceType {
	case kindTopic, kindGroup, kindClientMetrics:
		return key(resourceType, name) != nil
	}
	return resourceType == kindBroker
}

func (s *schema) Static(name string) string {
	v := s.static.Value(name)
	if v.Null() {
		return ""
	}
	return v.String()
}

func (s *schema) NewTopic(own, forAll, forThis map[string]string) []kmsg.CreateTopicsResponseTopicConfig {
	s.live.Update(forAll, forThis)
	entries := s.live.Current().DescribeTopic(own, nil)
	out := make([]kmsg.CreateTopicsResponseTopicConfig, len(entries))
	for i, e := range entries {
		c := kmsg.NewCreateTopicsResponseTopicConfig()
		c.Name, c.Value, c.ReadOnly, c.Source, c.IsSensitive = e.Name, e.Value, e.ReadOnly, int8(e.Source), e.Sensitive
		if sent, ok := own[e.Name]; ok && !e.Sensitive {
			c.Value = &sent // to the letter, though it means what is described
		}
		out[i] = c
	}
	slices.SortFunc(out, func(a, b kmsg.CreateTopicsResponseTopicConfig) int { return strings.Compare(a.Name, b.Name) })
	return out
}
