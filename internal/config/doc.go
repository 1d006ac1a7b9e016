// Package config knows every configuration key of Kafka 4.4 and of gregor, and turns text into typed, checked settings.
//
// A key is one declaration (a row of the tables in keys_*.go): name, type, default, allowed values, importance, whether and
// how it may be changed at run time, whether gregor acts on it yet, and one sentence of documentation. Parsing, validation,
// DescribeConfigs and the answers to AlterConfigs are all produced from the tables.
//
// # Layers
//
// A broker's setting is the first that is found of: dynamic for this broker, dynamic for all brokers, server.properties,
// default. A topic's setting is the topic's own, else that of the broker key which is its synonym (log.retention.ms for
// retention.ms), looked up in the same four layers. Groups have their own layer over the broker's in the same way.
//
// Load reads server.properties and reports all that is wrong with it at once, each with file, line, key and allowed range.
// The result is a Broker: an immutable struct with a field for what code uses, durations and listeners already parsed. Live
// holds the current one and swaps it atomically when a dynamic change arrives, so that hot paths read one pointer.
//
// # Invariants
//
//   - A Broker, Topic or Group never changes after it was made; it may be shared without locks.
//   - Every key is known: it is honoured, or Broker.NotHonoured names it when somebody sets it.
//   - Messages to clients are those of Kafka's ConfigDef ("Invalid value x for configuration y: ..."): tools match on them.
//
// KIPs: 226 (dynamic broker configs), 412 (log levels), 848 and 932 (group configs), 714 (client metrics), 1066 (cordoned
// directories).
package config
