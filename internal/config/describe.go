package config

import (
	"maps"
	"slices"
)

// Source is where a value comes from, numbered as in DescribeConfigs.
type Source int8

// The sources of values.
const (
	SourceTopic          Source = 1
	SourceBroker         Source = 2 // dynamic, for this broker
	SourceDefaultBroker  Source = 3 // dynamic, for all brokers
	SourceStatic         Source = 4 // server.properties
	SourceDefault        Source = 5
	SourceBrokerLogger   Source = 6
	SourceClientMetrics  Source = 7
	SourceGroup          Source = 8
	SourceUnknown        Source = 0
	maxDescribedSynonyms        = 8
)

// Synonym is one place that a value could have come from; the first of a list is the one that counts.
type Synonym struct {
	Name   string
	Value  *string // nil when null or sensitive
	Source Source
}

// Entry is one key of a resource as DescribeConfigs tells it.
type Entry struct {
	Name      string
	Value     *string // nil when null or sensitive
	ReadOnly  bool
	Sensitive bool
	Source    Source
	Type      Type
	Doc       string
	Synonyms  []Synonym
}

// wanted says whether the caller asked for the key: no names mean all.
func wanted(names []string, key string) bool { return len(names) == 0 || slices.Contains(names, key) }

// shown is the value for clients.
func shown(v Value, sensitive bool) *string {
	if v.Null() || sensitive {
		return nil
	}
	s := v.String()
	return &s
}

// DescribeBroker describes this broker: every documented key and everything that is set, in name order.
func (b *Broker) DescribeBroker(names []string) []Entry {
	var out []Entry
	for i := range BrokerKeys.keys {
		k := &BrokerKeys.keys[i]
		if _, set := b.layers.get(k.Name); (!k.Internal() || set) && wanted(names, k.Name) {
			out = append(out, b.brokerEntry(k.Name, k, b.Value(k.Name), false))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.layers.merged)) {
		if BrokerKeys.Lookup(name) == nil && wanted(names, name) {
			out = append(out, b.extraEntry(name))
		}
	}
	slices.SortFunc(out, byName)
	return out
}

func byName(x, y Entry) int {
	switch {
	case x.Name < y.Name:
		return -1
	case x.Name > y.Name:
		return 1
	}
	return 0
}

// extraEntry describes a setting that is not a key by itself: one with a listener's prefix, a dynamic-only one, one of a
// plugin. Kafka knows no type for these (UNKNOWN), and shows only values that it knows not to be secret.
func (b *Broker) extraEntry(name string) Entry {
	raw, _ := b.layers.get(name)
	v := Value{set: true, typ: Unknown, text: raw}
	k := lookupBroker(name)
	return b.brokerEntry(name, k, v, false)
}

func (b *Broker) brokerEntry(name string, k *Key, v Value, defaultsOnly bool) Entry {
	e := Entry{Name: name, Type: Unknown, ReadOnly: true, Sensitive: true, Source: SourceDefault}
	if k != nil {
		e.Type, e.Sensitive, e.Doc = k.Type, k.Sensitive(), k.Doc
		e.ReadOnly = k.Name != name || !k.Dynamic()
	}
	e.Value = shown(v, e.Sensitive)
	for _, s := range b.synonyms(name, brokerSynonymNames(name), e.Sensitive) {
		if !defaultsOnly || s.Source == SourceDefaultBroker {
			e.Synonyms = append(e.Synonyms, s)
		}
	}
	if len(e.Synonyms) > 0 {
		e.Source = e.Synonyms[0].Source
	}
	return e
}

// brokerSynonymNames adds, for a key with a listener's prefix, the key without it.
func brokerSynonymNames(name string) []string {
	if base, ok := listenerBase(name); ok {
		if k := lookupBroker(name); k != nil {
			base = k.Name
		}
		return []string{name, base}
	}
	return brokerSynonyms(name)
}

// synonyms lists where the value of a broker key could come from, in the order of precedence, beginning at name itself.
func (b *Broker) synonyms(name string, names []string, sensitive bool) []Synonym {
	out := make([]Synonym, 0, maxDescribedSynonyms)
	add := func(n string, text string, src Source) {
		s := Synonym{Name: n, Source: src}
		if !sensitive {
			s.Value = &text
		}
		out = append(out, s)
	}
	for _, l := range []struct {
		values map[string]string
		src    Source
	}{{b.layers.dynamic, SourceBroker}, {b.layers.dynamicDefault, SourceDefaultBroker}, {b.layers.static, SourceStatic}} {
		for _, n := range names {
			if text, ok := l.values[n]; ok {
				add(n, text, l.src)
			}
		}
	}
	for _, n := range names {
		if k := BrokerKeys.Lookup(n); k != nil {
			if v := k.DefaultValue(); !v.Null() {
				add(n, v.String(), SourceDefault)
			}
		}
	}
	// What is preferred to name itself (a listener's own setting, when the general one is described) is left out.
	if i := slices.IndexFunc(out, func(s Synonym) bool { return s.Name == name }); i >= 0 {
		return out[i:]
	}
	return nil
}

// DescribeBrokerDefaults describes the dynamic settings for all brokers (resource BROKER with an empty name).
func (b *Broker) DescribeBrokerDefaults(names []string) []Entry {
	var out []Entry
	for _, name := range slices.Sorted(maps.Keys(b.layers.dynamicDefault)) {
		if !wanted(names, name) {
			continue
		}
		v := Value{set: true, typ: Unknown, text: b.layers.dynamicDefault[name]}
		out = append(out, b.brokerEntry(name, lookupBroker(name), v, true))
	}
	return out
}

// DescribeTopic describes a topic that has these settings of its own.
func (b *Broker) DescribeTopic(own map[string]string, names []string) []Entry {
	var out []Entry
	for i := range TopicKeys.keys {
		k := &TopicKeys.keys[i]
		_, set := own[k.Name]
		if k.Internal() && !set || !wanted(names, k.Name) {
			continue
		}
		e := Entry{Name: k.Name, Type: k.Type, Sensitive: k.Sensitive(), Doc: k.Doc, Source: SourceDefault}
		v := b.topicValue(own, k.Name)
		e.Value = shown(v, e.Sensitive)
		if set {
			e.Synonyms = append(e.Synonyms, Synonym{Name: k.Name, Value: e.Value, Source: SourceTopic})
		}
		if s := topicSynonyms[k.Name]; len(s) > 0 {
			e.Synonyms = append(e.Synonyms, b.synonyms(s[0], brokerSynonyms(s[0]), e.Sensitive)...)
		}
		if len(e.Synonyms) > 0 {
			e.Source = e.Synonyms[0].Source
		}
		out = append(out, e)
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if TopicKeys.Lookup(name) == nil && wanted(names, name) {
			out = append(out, Entry{Name: name, Type: Unknown, Sensitive: true, Source: SourceTopic,
				Synonyms: []Synonym{{Name: name, Source: SourceTopic}}})
		}
	}
	return out
}

// DescribeGroup describes a group that has these settings of its own.
func (b *Broker) DescribeGroup(own map[string]string, names []string) []Entry {
	var out []Entry
	for i := range GroupKeys.keys {
		k := &GroupKeys.keys[i]
		_, set := own[k.Name]
		if k.Internal() && !set || !wanted(names, k.Name) {
			continue
		}
		e := Entry{Name: k.Name, Type: k.Type, Sensitive: k.Sensitive(), Doc: k.Doc, Source: SourceDefault}
		e.Value = shown(b.groupValue(own, k.Name), e.Sensitive)
		s := groupSynonyms[k.Name]
		switch {
		case set:
			e.Synonyms = []Synonym{{Name: k.Name, Value: e.Value, Source: SourceGroup}}
		case s == "":
			e.Synonyms = []Synonym{{Name: k.Name, Value: e.Value, Source: SourceDefault}}
		}
		if s != "" {
			e.Synonyms = append(e.Synonyms, b.synonyms(s, []string{s}, e.Sensitive)...)
		}
		e.Source = e.Synonyms[0].Source
		out = append(out, e)
	}
	return out
}

// DescribeClientMetrics describes a client metrics subscription that has these settings.
func DescribeClientMetrics(own map[string]string, names []string) []Entry {
	var out []Entry
	for i := range ClientMetricsKeys.keys {
		k := &ClientMetricsKeys.keys[i]
		if !wanted(names, k.Name) {
			continue
		}
		e := Entry{Name: k.Name, Type: k.Type, Doc: k.Doc, Source: SourceDefault}
		v := k.DefaultValue()
		if text, ok := own[k.Name]; ok {
			if parsed, err := k.Parse(text); err == nil {
				v, e.Source = parsed, SourceClientMetrics
				e.Synonyms = []Synonym{{Name: k.Name, Value: shown(v, false), Source: e.Source}}
			}
		}
		e.Value = shown(v, false)
		out = append(out, e)
	}
	return out
}
