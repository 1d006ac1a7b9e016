package config

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Group is the effective settings of one group. It never changes.
type Group struct {
	ConsumerSessionTimeout     time.Duration
	ConsumerHeartbeatInterval  time.Duration
	ConsumerAssignmentInterval time.Duration
	ConsumerAssignorOffload    bool

	ShareSessionTimeout     time.Duration
	ShareHeartbeatInterval  time.Duration
	ShareAssignmentInterval time.Duration
	ShareRecordLockDuration time.Duration
	ShareDeliveryCountLimit int32
	ShareMaxRecordLocks     int32  // per partition
	ShareAutoOffsetReset    string // "latest", "earliest" or "by_duration:..."
	ShareIsolationLevel     string
	ShareRenewAcknowledge   bool
	DeadLetterTopic         string
	DeadLetterCopyRecord    bool

	StreamsSessionTimeout        time.Duration
	StreamsHeartbeatInterval     time.Duration
	StreamsAssignmentInterval    time.Duration
	StreamsInitialDelay          time.Duration
	StreamsTaskOffsetInterval    time.Duration
	StreamsStandbyReplicas       int32
	StreamsAcceptableRecoveryLag int64 // records
	StreamsRackAwareTags         []string
	StreamsAssignor              string
}

func compileGroup(get func(key string) Value) Group {
	return Group{
		ConsumerSessionTimeout:       get("consumer.session.timeout.ms").Millis(),
		ConsumerHeartbeatInterval:    get("consumer.heartbeat.interval.ms").Millis(),
		ConsumerAssignmentInterval:   get("consumer.assignment.interval.ms").Millis(),
		ConsumerAssignorOffload:      get("consumer.assignor.offload.enable").Bool(),
		ShareSessionTimeout:          get("share.session.timeout.ms").Millis(),
		ShareHeartbeatInterval:       get("share.heartbeat.interval.ms").Millis(),
		ShareAssignmentInterval:      get("share.assignment.interval.ms").Millis(),
		ShareRecordLockDuration:      get("share.record.lock.duration.ms").Millis(),
		ShareDeliveryCountLimit:      get("share.delivery.count.limit").Int32(),
		ShareMaxRecordLocks:          get("share.partition.max.record.locks").Int32(),
		ShareAutoOffsetReset:         get("share.auto.offset.reset").Text(),
		ShareIsolationLevel:          get("share.isolation.level").Text(),
		ShareRenewAcknowledge:        get("share.renew.acknowledge.enable").Bool(),
		DeadLetterTopic:              get("errors.deadletterqueue.topic.name").Text(),
		DeadLetterCopyRecord:         get("errors.deadletterqueue.copy.record.enable").Bool(),
		StreamsSessionTimeout:        get("streams.session.timeout.ms").Millis(),
		StreamsHeartbeatInterval:     get("streams.heartbeat.interval.ms").Millis(),
		StreamsAssignmentInterval:    get("streams.assignment.interval.ms").Millis(),
		StreamsInitialDelay:          get("streams.initial.rebalance.delay.ms").Millis(),
		StreamsTaskOffsetInterval:    get("streams.task.offset.interval.ms").Millis(),
		StreamsStandbyReplicas:       get("streams.num.standby.replicas").Int32(),
		StreamsAcceptableRecoveryLag: get("streams.acceptable.recovery.lag").Int64(),
		StreamsRackAwareTags:         get("streams.rack.aware.assignment.tags").List(),
		StreamsAssignor:              get("streams.assignor.name").Text(),
	}
}

// groupDefault is the value that a group key has on this broker when the group doesn't set it.
func (b *Broker) groupDefault(key string) Value {
	if key == "streams.assignor.name" { // one name, the first of the broker's list
		if names := b.Value("group.streams.assignors").List(); len(names) > 0 {
			return Value{set: true, typ: String, text: names[0]}
		}
	}
	if s := groupSynonyms[key]; s != "" {
		return b.Value(s)
	}
	return GroupKeys.Lookup(key).DefaultValue()
}

func (b *Broker) groupValue(own map[string]string, key string) Value {
	if v, ok := ownValue(GroupKeys, own, key); ok {
		return v
	}
	return b.groupDefault(key)
}

// GroupWith is the effective settings of a group with these settings of its own (the records of resource type GROUP).
func (b *Broker) GroupWith(own map[string]string) Group {
	if len(own) == 0 {
		return b.Group
	}
	return compileGroup(func(key string) Value { return b.groupValue(own, key) })
}

// groupBounds are the broker's limits for settings of groups: the group key, the broker keys of least and most, and the
// words with which Kafka refuses.
var groupBounds = []struct{ key, least, most string }{
	{"consumer.heartbeat.interval.ms", "group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"},
	{"consumer.session.timeout.ms", "group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"},
	{"consumer.assignment.interval.ms", "group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"},
	{"share.heartbeat.interval.ms", "group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"},
	{"share.session.timeout.ms", "group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"},
	{"share.assignment.interval.ms", "group.share.min.assignment.interval.ms", "group.share.max.assignment.interval.ms"},
	{"share.record.lock.duration.ms", "group.share.min.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"},
	{"share.delivery.count.limit", "group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"},
	{"share.partition.max.record.locks", "group.share.min.partition.max.record.locks", "group.share.max.partition.max.record.locks"},
	{"streams.heartbeat.interval.ms", "group.streams.min.heartbeat.interval.ms", "group.streams.max.heartbeat.interval.ms"},
	{"streams.session.timeout.ms", "group.streams.min.session.timeout.ms", "group.streams.max.session.timeout.ms"},
	{"streams.assignment.interval.ms", "group.streams.min.assignment.interval.ms", "group.streams.max.assignment.interval.ms"},
	{"streams.task.offset.interval.ms", "group.streams.min.task.offset.interval.ms", ""},
	{"streams.num.standby.replicas", "", "group.streams.max.standby.replicas"},
	{"streams.num.warmup.replicas", "", "group.streams.max.warmup.replicas"},
}

// ValidateGroup checks the settings that a group would have of its own against the broker's limits, as the controller does.
// Errors are *ValueError or *ConfigError: INVALID_CONFIG with the error's text.
func (b *Broker) ValidateGroup(after map[string]string) error {
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if GroupKeys.Lookup(k) == nil {
			return &ConfigError{Text: "Unknown group config name: " + k}
		}
	}
	values := map[string]Value{}
	for i := range GroupKeys.keys {
		k := &GroupKeys.keys[i]
		if text, ok := after[k.Name]; ok {
			v, err := k.Parse(text)
			if err != nil {
				return err
			}
			values[k.Name] = v
		}
	}
	get := func(key string) Value {
		if v, ok := values[key]; ok {
			return v
		}
		return b.groupDefault(key)
	}
	for _, g := range groupBounds {
		if _, ok := after[g.key]; !ok {
			continue // the broker's own default was checked when it was set
		}
		v := get(g.key).Int64()
		switch {
		case g.least != "" && g.most != "":
			if lo, hi := b.Value(g.least), b.Value(g.most); v < lo.Int64() || v > hi.Int64() {
				return &ConfigError{Text: g.key + " must be in the range " + lo.String() + " to " + hi.String() + " inclusive."}
			}
		case g.least != "" && v < b.Value(g.least).Int64():
			return &ConfigError{Text: g.key + " must be greater than or equal to " + b.Value(g.least).String()}
		case g.most != "" && v > b.Value(g.most).Int64():
			return &ConfigError{Text: g.key + " must be less than or equal to " + b.Value(g.most).String()}
		}
	}
	for _, kind := range []string{"consumer", "share", "streams"} {
		session, heartbeat := get(kind+".session.timeout.ms").Int64(), get(kind+".heartbeat.interval.ms").Int64()
		if session <= heartbeat {
			return &ConfigError{Text: kind + ".session.timeout.ms must be greater than " + kind + ".heartbeat.interval.ms"}
		}
	}
	if v, ok := values["streams.assignor.name"]; ok {
		if names := b.Value("group.streams.assignors").List(); !slices.Contains(names, v.Text()) {
			return &ConfigError{Text: "streams.assignor.name '" + v.Text() + "' is not a registered task assignor. Registered assignors are: [" + strings.Join(names, ", ") + "]."}
		}
	}
	if strings.HasPrefix(values["errors.deadletterqueue.topic.name"].Text(), "__") {
		return &ConfigError{Text: "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'"}
	}
	return nil
}

// ValidateClientMetrics checks the settings of a client metrics subscription (KIP-714).
func ValidateClientMetrics(name string, after map[string]string) error {
	if name == "" {
		return &ConfigError{Text: "Subscription name can't be empty", InvalidRequest: true}
	}
	for _, k := range slices.Sorted(maps.Keys(after)) {
		key := ClientMetricsKeys.Lookup(k)
		if key == nil {
			return &ConfigError{Text: "Unknown client metrics configuration: " + k, InvalidRequest: true}
		}
		v, err := key.Parse(after[k])
		if err != nil {
			return err
		}
		switch k {
		case "interval.ms":
			if n := v.Int64(); n < 100 || n > 3600000 {
				return &ConfigError{Text: "Invalid value " + strconv.FormatInt(n, 10) + " for interval.ms, interval must be between 100 and 3600000 (1 hour)", InvalidRequest: true}
			}
		case "match":
			if err := validateMatch(v.List()); err != nil {
				return err
			}
		}
	}
	return nil
}

// clientMatchKeys are what a subscription can select clients by.
var clientMatchKeys = []string{"client_instance_id", "client_id", "client_software_name", "client_software_version", "client_source_address", "client_source_port"}

func validateMatch(patterns []string) error {
	for _, p := range patterns {
		name, pattern, ok := strings.Cut(p, "=")
		_, err := regexp.Compile(strings.TrimSpace(pattern))
		if !ok || err != nil || !slices.Contains(clientMatchKeys, strings.TrimSpace(name)) {
			return &ConfigError{Text: "Illegal client matching pattern: " + p}
		}
	}
	return nil
}
