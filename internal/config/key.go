package config

import "strings"

// Type is the type of a key's value. The numbers are those of ConfigType in DescribeConfigs.
type Type int8

// The types of values, numbered as on the wire.
const (
	Unknown  Type = 0
	Boolean  Type = 1
	String   Type = 2
	Int      Type = 3
	Short    Type = 4
	Long     Type = 5
	Double   Type = 6
	List     Type = 7
	Class    Type = 8
	Password Type = 9
)

var typeNames = [...]string{"UNKNOWN", "BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"}

// String is the name that Kafka prints ("INT").
func (t Type) String() string { return typeNames[t] }

// Importance is how much a key matters, as Kafka's documentation ranks it.
type Importance int8

// The ranks of importance.
const (
	High Importance = iota
	Medium
	Low
)

var importanceNames = [...]string{"high", "medium", "low"}

// String is the rank in lower case.
func (i Importance) String() string { return importanceNames[i] }

// Flags say how a key may be changed and whether we act on it.
type Flags uint8

// The flags of a key. Without PerBroker and ClusterWide a change needs a restart.
const (
	// PerBroker keys may be changed at run time for one broker.
	PerBroker Flags = 1 << iota
	// ClusterWide keys may be changed at run time for one broker and for all.
	ClusterWide
	// Honoured keys have an effect in gregor. The others are known, checked and listed at start when somebody sets them.
	Honoured
	// Internal keys are not documented by Kafka and only described when they are set.
	Internal

	// ReadOnly is the absence of both dynamic scopes; it exists so that rows of the tables can say it.
	ReadOnly Flags = 0
)

// The two defaults that are not text.
const (
	null     = "\x00null"     // there is a default and it is null
	required = "\x00required" // there is no default: the key must be set
)

// Key declares one configuration key.
type Key struct {
	// Name is Kafka's spelling, for example "log.retention.ms".
	Name string
	Type Type
	// Default is the text that is parsed when the key isn't set; see DefaultValue.
	Default string
	// Valid bounds the value; nil allows everything of the type.
	Valid      Rule
	Importance Importance
	Flags      Flags
	// Doc is one sentence for people.
	Doc string
}

// Dynamic says whether the key may be changed without a restart.
func (k *Key) Dynamic() bool { return k.Flags&(PerBroker|ClusterWide) != 0 }

// Honoured says whether gregor acts on the key.
func (k *Key) Honoured() bool { return k.Flags&Honoured != 0 }

// Internal says whether Kafka leaves the key out of its documentation.
func (k *Key) Internal() bool { return k.Flags&Internal != 0 }

// Sensitive says whether the value must never be shown.
func (k *Key) Sensitive() bool { return k.Type == Password }

// Required says whether the key must be set.
func (k *Key) Required() bool { return k.Default == required }

// DefaultText is the default as text; ok is false when it is null or there is none.
func (k *Key) DefaultText() (s string, ok bool) {
	if k.Default == null || k.Default == required {
		return "", false
	}
	return k.Default, true
}

// Allowed describes the allowed values for people ("[1,...]"), or "" when everything of the type is.
func (k *Key) Allowed() string {
	if k.Valid == nil {
		return ""
	}
	return k.Valid.String()
}

// A Table is a set of keys of one kind of resource.
type Table struct {
	keys   []Key
	byName map[string]*Key
}

func newTable(parts ...[]Key) *Table {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	t := &Table{keys: make([]Key, 0, n), byName: make(map[string]*Key, n)}
	for _, p := range parts {
		t.keys = append(t.keys, p...)
	}
	for i := range t.keys {
		k := &t.keys[i]
		if t.byName[k.Name] != nil {
			panic("config: key " + k.Name + " is declared twice")
		}
		t.byName[k.Name] = k
	}
	return t
}

// Lookup finds a key by its exact name, or returns nil.
func (t *Table) Lookup(name string) *Key { return t.byName[name] }

// Keys lists the keys in the order of their declaration. The slice must not be changed.
func (t *Table) Keys() []Key { return t.keys }

// Len is the number of keys.
func (t *Table) Len() int { return len(t.keys) }

// The tables of keys by kind of resource.
var (
	// BrokerKeys are those of server.properties; some may be changed at run time.
	BrokerKeys = newTable(serverKeys, kraftKeys, networkKeys, securityKeys, logKeys, replicationKeys, coordinatorKeys, groupKeys, remoteKeys, gregorKeys)
	// TopicKeys are those of a topic.
	TopicKeys = newTable(topicKeys)
	// GroupKeys are those of a group (resource type GROUP).
	GroupKeys = newTable(groupResourceKeys)
	// ClientMetricsKeys are those of a client metrics subscription.
	ClientMetricsKeys = newTable(clientMetricsKeys)
	// BrokerQuotaKeys are the replication throttles of a broker: dynamic only, never in server.properties.
	BrokerQuotaKeys = newTable(brokerQuotaKeys)
	// ClientQuotaKeys are the quotas of users and client ids.
	ClientQuotaKeys = newTable(clientQuotaKeys)
	// IPQuotaKeys are the quotas of ip addresses.
	IPQuotaKeys = newTable(ipQuotaKeys)
	// RemoteMetadataKeys are those of the topic-based remote log metadata manager, used with the prefix that
	// remote.log.metadata.manager.impl.prefix names.
	RemoteMetadataKeys = newTable(remoteMetadataKeys)
)

// lookupBroker finds the declaration of a broker key, also through a listener prefix (listener.name.x.[mechanism.]key).
func lookupBroker(name string) *Key {
	if k := BrokerKeys.Lookup(name); k != nil {
		return k
	}
	if k := BrokerQuotaKeys.Lookup(name); k != nil {
		return k
	}
	if base, ok := listenerBase(name); ok {
		if k := BrokerKeys.Lookup(base); k != nil {
			return k
		}
		for _, m := range listenerMechanismKeys {
			if strings.HasSuffix(base, "."+m) {
				return BrokerKeys.Lookup(m)
			}
		}
	}
	return nil
}

// listenerBase strips "listener.name.<listener>." from a key.
func listenerBase(name string) (base string, ok bool) {
	rest, ok := strings.CutPrefix(name, "listener.name.")
	if !ok {
		return "", false
	}
	_, base, ok = strings.Cut(rest, ".")
	return base, ok
}
