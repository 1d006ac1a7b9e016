package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Live is the configuration of a running node. Current is for hot paths: one atomic load. Updates come from the metadata log
// and are applied one at a time; values in them that are no longer allowed are ignored, as Kafka does with what it stored
// under older rules.
type Live struct {
	current atomic.Pointer[Broker]
	mu      sync.Mutex // serialises updates; guards onChange
	changed []func(was, now *Broker)
}

// NewLive starts with what Load made.
func NewLive(b *Broker) *Live {
	l := &Live{}
	l.current.Store(b)
	return l
}

// Current is the configuration of this moment.
func (l *Live) Current() *Broker { return l.current.Load() }

// OnChange registers a function that is called after every change, on the goroutine that made it.
func (l *Live) OnChange(f func(was, now *Broker)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = append(l.changed, f)
}

// Update lays the dynamic settings for all brokers and those for this one over server.properties. It returns the keys whose
// values had to be ignored.
func (l *Live) Update(forAll, forThis map[string]string) (ignored []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.current.Load()
	forAll, bad := usable(forAll, false)
	forThis, bad2 := usable(forThis, true)
	ignored = append(bad, bad2...)
	if maps.Equal(forAll, was.layers.dynamicDefault) && maps.Equal(forThis, was.layers.dynamic) {
		return ignored
	}
	now, problems := compile(&layers{static: was.layers.static, props: was.layers.props, dynamicDefault: forAll, dynamic: forThis})
	if len(problems) > 0 {
		for _, p := range problems {
			ignored = append(ignored, p.Key)
		}
		return ignored
	}
	l.current.Store(now)
	for _, f := range l.changed {
		f(was, now)
	}
	return ignored
}

// usable drops what may not be changed at run time or doesn't parse.
func usable(m map[string]string, perBroker bool) (kept map[string]string, dropped []string) {
	kept = make(map[string]string, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		one := map[string]string{name: m[name]}
		if validateDynamic(one, perBroker) != nil {
			dropped = append(dropped, name)
			continue
		}
		kept[name] = m[name]
	}
	return kept, dropped
}

// dynamicSecurityKeys can be changed at run time only under a listener's prefix.
var dynamicSecurityKeys = []string{
	"ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location", "ssl.keystore.password",
	"ssl.keystore.type", "ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type",
}

// clusterLevelListenerKeys may be set for all brokers although they can have a listener's prefix.
var clusterLevelListenerKeys = []string{"max.connection.creation.rate", "max.connections", "num.network.threads"}

// listenerMechanismKeys can have a listener's and a mechanism's prefix.
var listenerMechanismKeys = []string{
	"connections.max.reauth.ms", "sasl.jaas.config", "sasl.login.callback.handler.class", "sasl.login.class", "sasl.server.callback.handler.class",
}

// validateDynamic checks settings that would be dynamic, with Kafka's words.
func validateDynamic(m map[string]string, perBroker bool) error {
	names := slices.Sorted(maps.Keys(m))
	pick := func(text string, f func(name string) bool) error {
		var bad []string
		for _, n := range names {
			if f(n) {
				bad = append(bad, n)
			}
		}
		if len(bad) > 0 {
			return &ConfigError{Text: text + ": [" + strings.Join(bad, ", ") + "]"}
		}
		return nil
	}
	if err := pick("Cannot update these configs dynamically", func(n string) bool {
		k := BrokerKeys.Lookup(n)
		return k != nil && !k.Dynamic()
	}); err != nil {
		return err
	}
	if err := pick("These security configs can be dynamically updated only per-listener using the listener prefix", func(n string) bool {
		return slices.Contains(dynamicSecurityKeys, n)
	}); err != nil {
		return err
	}
	for _, n := range names {
		if k := lookupBroker(n); k != nil {
			if _, err := k.Parse(m[n]); err != nil {
				return err
			}
		}
	}
	if perBroker {
		return nil
	}
	return pick("Cannot update these configs at default cluster level, broker id must be specified", func(n string) bool {
		if base, ok := listenerBase(n); ok {
			return !slices.Contains(clusterLevelListenerKeys, base)
		}
		k := BrokerKeys.Lookup(n)
		return k != nil && k.Flags&PerBroker != 0
	})
}

// ValidateDynamic checks the complete dynamic settings that this broker (perBroker) or all brokers would have, as Kafka's
// broker does before it forwards AlterConfigs to the controller. An error is INVALID_REQUEST with the error's text.
func (b *Broker) ValidateDynamic(settings map[string]string, perBroker bool) error {
	if err := validateDynamic(settings, perBroker); err != nil {
		return err
	}
	next := &layers{static: b.layers.static, props: b.layers.props, dynamic: b.layers.dynamic, dynamicDefault: b.layers.dynamicDefault}
	if perBroker {
		next.dynamic = settings
	} else {
		next.dynamicDefault = settings
	}
	now, problems := compile(next)
	if len(problems) > 0 {
		return &ConfigError{Text: problems[0].toClient()}
	}
	return reconfigurable(b, now)
}

// reconfigurable refuses changes that the running parts of a broker can't make, with Kafka's words.
//
// Differs from Kafka: there these texts are wrapped in "Invalid value <class of the exception>: ... for configuration Invalid
// dynamic configuration".
func reconfigurable(was, now *Broker) error {
	for _, k := range []string{"num.io.threads", "num.network.threads", "num.replica.fetchers", "num.recovery.threads.per.data.dir", "background.threads"} {
		from, to := was.Value(k).Int32(), now.Value(k).Int32()
		bound := ""
		switch {
		case to < from/2:
			bound = "be at least half"
		case to > from*2:
			bound = "not be greater than double"
		default:
			continue
		}
		return &ConfigError{Text: fmt.Sprintf("Dynamic thread count update validation failed for %s=%d, value should %s the current value %d", k, to, bound, from)}
	}
	if err := localWithin("log.retention.ms", now.Topic.RetentionMs(), "log.local.retention.ms", now.Topic.LocalRetentionMs); err != nil {
		return err
	}
	return localWithin("log.retention.bytes", now.Topic.RetentionBytes, "log.local.retention.bytes", now.Topic.LocalRetentionBytes)
}
