package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Where   string // "server.properties:12", "--override" or the file alone
	Key     string
	Text    string
	Allowed string // the allowed values, or ""

	requirement bool   // Kafka shows "requirement failed: " before the text when it refuses a dynamic change
	client      string // what Kafka says instead of the text when it refuses a dynamic change; empty if the same
}

// toClient is the text with which a dynamic change is refused.
func (p Problem) toClient() string {
	if p.client != "" {
		return p.client
	}
	if p.requirement {
		return "requirement failed: " + p.Text
	}
	return p.Text
}

// String is one line for people.
func (p Problem) String() string {
	s := p.Text
	if !strings.Contains(s, p.Key) {
		s = p.Key + ": " + s
	}
	if p.Where != "" {
		s = p.Where + ": " + s
	}
	if p.Allowed != "" {
		s += " (allowed: " + p.Allowed + ")"
	}
	return s
}

// Problems is everything that is wrong with a configuration.
type Problems []Problem

// Error lists the problems, one a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// Load makes the configuration of a node from its properties. When something is wrong the error is a Problems with all of
// it.
func Load(p *Properties) (*Broker, error) {
	static := p.Map()
	// broker.id is the name of before KRaft; each of the two stands in for the other.
	if v, ok := static["broker.id"]; ok && static["node.id"] == "" {
		static["node.id"] = v
	} else if v, ok := static["node.id"]; ok && static["broker.id"] == "" {
		static["broker.id"] = v
	}
	problems := checkStatic(p, static)
	if len(problems) > 0 {
		return nil, problems
	}
	b, problems := compile(&layers{static: static, props: p})
	if len(problems) > 0 {
		return nil, problems
	}
	return b, nil
}

// checkStatic parses every known key and looks for required ones.
func checkStatic(p *Properties, static map[string]string) Problems {
	var problems Problems
	for _, name := range slices.Sorted(maps.Keys(static)) {
		k := lookupBroker(name)
		if k == nil {
			continue
		}
		if _, err := k.Parse(static[name]); err != nil {
			problems = append(problems, Problem{Where: p.Where(name), Key: name, Text: withName(err, k.Name, name), Allowed: k.Allowed()})
		}
	}
	for i := range BrokerKeys.keys {
		k := &BrokerKeys.keys[i]
		if _, ok := static[k.Name]; k.Required() && !ok {
			problems = append(problems, Problem{Where: p.File, Key: k.Name, Text: fmt.Sprintf("Missing required configuration %q which has no default value.", k.Name), Allowed: k.Allowed()})
		}
	}
	return problems
}

// withName puts the name under which a key was set (it may have a listener's prefix) into a message about the key.
func withName(err error, key, name string) string {
	if key == name {
		return err.Error()
	}
	return strings.Replace(err.Error(), key, name, 1)
}

// NotHonoured lists the keys that are set, known, and without effect in gregor so far. Keys that are set to their default
// aren't listed: nothing is lost.
func (b *Broker) NotHonoured() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(b.layers.static)) {
		k := lookupBroker(name)
		if k == nil || k.Honoured() {
			continue
		}
		if v, err := k.Parse(b.layers.static[name]); err == nil && v.String() == k.DefaultValue().String() && !k.Sensitive() {
			continue
		}
		out = append(out, name)
	}
	return out
}

// UnknownKeys lists the keys that are set and that neither Kafka, its authorizer nor gregor knows. Kafka accepts them silently, because
// plugins read them; so do we.
func (b *Broker) UnknownKeys() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(b.layers.static)) {
		isName := func(k Key) bool { return k.Name == name }
		if lookupBroker(name) == nil && !slices.ContainsFunc(authorizerKeys, isName) {
			out = append(out, name)
		}
	}
	return out
}

// compiler reads keys and collects what is wrong.
type compiler struct {
	b        *Broker
	problems Problems
}

func (c *compiler) bad(key, format string, args ...any) {
	c.problems = append(c.problems, Problem{Where: c.b.layers.where(key), Key: key, Text: fmt.Sprintf(format, args...)})
}

func (l *layers) where(key string) string {
	if l.props == nil {
		return ""
	}
	return l.props.Where(key)
}

// compile makes a Broker of layers whose values are all parseable.
func compile(l *layers) (*Broker, Problems) {
	b := &Broker{layers: &layers{dynamic: l.dynamic, dynamicDefault: l.dynamicDefault, static: l.static, props: l.props}}
	// What counts is what is left after synonyms of higher layers have hidden those of lower ones.
	b.layers.merged = l.effective()
	c := &compiler{b: b}
	c.identity()
	c.quorum()
	c.network()
	c.storage()
	c.replication()
	c.coordinators()
	b.MetricsAddress = b.Value("gregor.metrics.address").Text()
	b.Pprof = b.Value("gregor.pprof.enable").Bool()
	b.LogFormat = b.Value("gregor.log.format").Text()
	b.LogLevel = strings.ToLower(b.Value("gregor.log.level").Text())
	c.validate()
	return b, c.problems
}
