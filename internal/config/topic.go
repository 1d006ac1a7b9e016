package config

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// TimestampType is which time the records of a topic carry.
type TimestampType int8

// The timestamp types, numbered as in a batch's attributes.
const (
	CreateTime    TimestampType = 0
	LogAppendTime TimestampType = 1
)

// Topic is the effective settings of one topic. It never changes.
type Topic struct {
	CleanupDelete  bool
	CleanupCompact bool

	CompressionType string // "producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"
	GzipLevel       int32  // -1 for zlib's own default
	LZ4Level        int32
	ZstdLevel       int32

	SegmentBytes       int32
	SegmentAge         time.Duration
	SegmentJitter      time.Duration
	SegmentIndexBytes  int32
	IndexIntervalBytes int32
	Preallocate        bool
	FileDeleteDelay    time.Duration
	FlushMessages      int64
	FlushInterval      time.Duration

	RetentionBytes      int64         // -1 for no limit
	Retention           time.Duration // negative for no limit
	LocalRetentionBytes int64         // -2: as RetentionBytes
	LocalRetentionMs    int64         // -2: as Retention
	DeleteRetention     time.Duration
	MinCompactionLag    time.Duration
	MaxCompactionLag    time.Duration
	MinCleanableRatio   float64

	MaxMessageBytes             int32
	MaxDecompressedMessageBytes int32
	TimestampType               TimestampType
	// TimestampBeforeMaxMs and TimestampAfterMaxMs are how far a record's CreateTime may lie behind and ahead of the
	// broker's clock. They stay in milliseconds because they bound the difference of two record timestamps.
	TimestampBeforeMaxMs int64
	TimestampAfterMaxMs  int64

	MinInsyncReplicas         int32
	UncleanLeaderElection     bool
	LeaderThrottledReplicas   []string // "partition:broker", or "*"
	FollowerThrottledReplicas []string
	RemoteStorage             bool
	RemoteCopyDisable         bool
	RemoteDeleteOnDisable     bool
	RemoteCopyLagBytes        int64
	RemoteCopyLagMs           int64
	DeadLetterQueue           bool
}

// RetentionMs is the retention time in milliseconds, -1 for no limit.
func (t *Topic) RetentionMs() int64 {
	if t.Retention < 0 {
		return -1
	}
	return t.Retention.Milliseconds()
}

func compileTopic(get func(key string) Value) Topic {
	t := Topic{
		CompressionType: get("compression.type").Text(),
		GzipLevel:       get("compression.gzip.level").Int32(),
		LZ4Level:        get("compression.lz4.level").Int32(),
		ZstdLevel:       get("compression.zstd.level").Int32(),

		SegmentBytes:       get("segment.bytes").Int32(),
		SegmentAge:         get("segment.ms").Millis(),
		SegmentJitter:      get("segment.jitter.ms").Millis(),
		SegmentIndexBytes:  get("segment.index.bytes").Int32(),
		IndexIntervalBytes: get("index.interval.bytes").Int32(),
		Preallocate:        get("preallocate").Bool(),
		FileDeleteDelay:    get("file.delete.delay.ms").Millis(),
		FlushMessages:      get("flush.messages").Int64(),
		FlushInterval:      get("flush.ms").Millis(),

		RetentionBytes:      get("retention.bytes").Int64(),
		Retention:           get("retention.ms").Millis(),
		LocalRetentionBytes: get("local.retention.bytes").Int64(),
		LocalRetentionMs:    get("local.retention.ms").Int64(),
		DeleteRetention:     get("delete.retention.ms").Millis(),
		MinCompactionLag:    get("min.compaction.lag.ms").Millis(),
		MaxCompactionLag:    get("max.compaction.lag.ms").Millis(),
		MinCleanableRatio:   get("min.cleanable.dirty.ratio").Float64(),

		MaxMessageBytes:             get("max.message.bytes").Int32(),
		MaxDecompressedMessageBytes: get("max.decompressed.message.bytes").Int32(),
		TimestampBeforeMaxMs:        get("message.timestamp.before.max.ms").Int64(),
		TimestampAfterMaxMs:         get("message.timestamp.after.max.ms").Int64(),

		MinInsyncReplicas:         get("min.insync.replicas").Int32(),
		UncleanLeaderElection:     get("unclean.leader.election.enable").Bool(),
		LeaderThrottledReplicas:   get("leader.replication.throttled.replicas").List(),
		FollowerThrottledReplicas: get("follower.replication.throttled.replicas").List(),
		RemoteStorage:             get("remote.storage.enable").Bool(),
		RemoteCopyDisable:         get("remote.log.copy.disable").Bool(),
		RemoteDeleteOnDisable:     get("remote.log.delete.on.disable").Bool(),
		RemoteCopyLagBytes:        get("remote.copy.lag.bytes").Int64(),
		RemoteCopyLagMs:           get("remote.copy.lag.ms").Int64(),
		DeadLetterQueue:           get("errors.deadletterqueue.group.enable").Bool(),
	}
	policy := get("cleanup.policy").List()
	t.CleanupDelete = slices.Contains(policy, "delete")
	t.CleanupCompact = slices.Contains(policy, "compact")
	if get("message.timestamp.type").Text() == "LogAppendTime" {
		t.TimestampType = LogAppendTime
	}
	if v := get("internal.segment.bytes"); !v.Null() {
		t.SegmentBytes = v.Int32()
	}
	return t
}

// topicDefault is the value that a topic key has on this broker when the topic doesn't set it.
func (b *Broker) topicDefault(key string) Value {
	v := Value{set: true, typ: Long}
	switch key {
	case "retention.ms":
		if v.num = b.logRetentionMs(); v.num < 0 {
			v.num = -1
		}
		return v
	case "segment.ms":
		v.num = b.inUnits("log.roll.ms", 1, "log.roll.hours", hourMs)
		return v
	case "segment.jitter.ms":
		v.num = b.inUnits("log.roll.jitter.ms", 1, "log.roll.jitter.hours", hourMs)
		return v
	case "flush.ms":
		v.num = b.inUnits("log.flush.interval.ms", 1, "log.flush.scheduler.interval.ms", 1)
		return v
	}
	if s := topicSynonyms[key]; len(s) > 0 {
		return b.Value(s[0])
	}
	return TopicKeys.Lookup(key).DefaultValue()
}

const (
	minuteMs = 60 * 1000
	hourMs   = 60 * minuteMs
)

func (b *Broker) logRetentionMs() int64 {
	if v := b.Value("log.retention.ms"); !v.Null() {
		return v.Int64()
	}
	return b.inUnits("log.retention.minutes", minuteMs, "log.retention.hours", hourMs)
}

// inUnits is the first of two keys when it is set, else the second, each times its unit.
func (b *Broker) inUnits(first string, unit int64, second string, unit2 int64) int64 {
	if v := b.Value(first); !v.Null() {
		return v.Int64() * unit
	}
	return b.Value(second).Int64() * unit2
}

// topicValue is the effective value of a topic key under the topic's own settings.
func (b *Broker) topicValue(own map[string]string, key string) Value {
	if v, ok := ownValue(TopicKeys, own, key); ok {
		return v
	}
	return b.topicDefault(key)
}

// ownValue is what a topic or a group has set of its own, or false. A value that doesn't parse was stored by a version with other
// rules, and is as good as none: better than a log that can't be opened.
func ownValue(keys *Table, own map[string]string, key string) (Value, bool) {
	if text, ok := own[key]; ok {
		if v, err := keys.Lookup(key).Parse(text); err == nil {
			return v, true
		}
	}
	return Value{}, false
}

// TopicWith is the effective settings of a topic with these settings of its own (the records of resource type TOPIC).
// Keys that nobody knows are ignored.
func (b *Broker) TopicWith(own map[string]string) Topic {
	if len(own) == 0 {
		return b.Topic
	}
	return compileTopic(func(key string) Value { return b.topicValue(own, key) })
}

// ConfigError is a setting that is refused although each value by itself is allowed; clients see its text.
type ConfigError struct {
	Text string
	// InvalidRequest says that the client's error is INVALID_REQUEST and not INVALID_CONFIG.
	InvalidRequest bool
}

// Error is the text for the client.
func (e *ConfigError) Error() string { return e.Text }

// ValidateTopic checks the settings that a topic would have of its own, against this broker's defaults, as the controller
// does for CreateTopics and AlterConfigs; before is what the topic has now (nil for a new one). Errors are *ValueError or
// *ConfigError, both of which are INVALID_CONFIG with the error's text.
func (b *Broker) ValidateTopic(before, after map[string]string) error {
	names := slices.Sorted(maps.Keys(after))
	for _, k := range names {
		if TopicKeys.Lookup(k) == nil {
			return &ConfigError{Text: "Unknown topic config name: " + k}
		}
	}
	values := make(map[string]Value, len(names))
	for i := range TopicKeys.keys {
		k := &TopicKeys.keys[i]
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
		return b.topicDefault(key)
	}
	if lo, hi := get("min.compaction.lag.ms"), get("max.compaction.lag.ms"); lo.Int64() > hi.Int64() {
		return &ConfigError{Text: "conflict topic config setting min.compaction.lag.ms (" + lo.String() + ") > max.compaction.lag.ms (" + hi.String() + ")"}
	}
	if get("remote.storage.enable").Bool() {
		return b.validateTiered(get)
	}
	if strings.EqualFold(before["remote.storage.enable"], "true") && !get("remote.log.delete.on.disable").Bool() {
		return &ConfigError{Text: "It is invalid to disable remote storage without deleting remote data. " +
			"If you want to keep the remote data and turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. " +
			"If you want to disable remote storage and delete all remote data, please set `remote.storage.enable=false,remote.log.delete.on.disable=true`."}
	}
	return nil
}

// validateTiered checks the settings of a topic with remote storage.
func (b *Broker) validateTiered(get func(string) Value) error {
	if !b.Value("remote.log.storage.system.enable").Bool() {
		return &ConfigError{Text: "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."}
	}
	if slices.Contains(get("cleanup.policy").List(), "compact") {
		return &ConfigError{Text: "Remote log storage is unsupported for the compacted topics"}
	}
	for _, p := range [][2]string{{"retention.bytes", "local.retention.bytes"}, {"retention.ms", "local.retention.ms"}} {
		if err := localWithin(p[0], get(p[0]).Int64(), p[1], get(p[1]).Int64()); err != nil {
			return err
		}
	}
	if get("remote.log.copy.disable").Bool() {
		for _, k := range []string{"retention.bytes", "retention.ms"} {
			if local := get("local." + k).Int64(); local != -2 && local != get(k).Int64() {
				return &ConfigError{Text: "When `remote.log.copy.disable` is set to true, the `local." + k + "` and `" + k +
					"` must be set to the identical value because there will be no more logs copied to the remote storage."}
			}
		}
	}
	return nil
}

// localWithin checks that the part of a log that is kept locally is not larger than the whole.
func localWithin(key string, total int64, localKey string, local int64) error {
	if total <= -1 || local == -2 {
		return nil
	}
	num := func(n int64) string { return Value{set: true, typ: Long, num: n}.String() }
	switch {
	case local == -1:
		return &ValueError{Key: localKey, Value: "-1", Problem: "Value must not be -1 as " + key + " value is set as " + num(total) + "."}
	case local > total:
		return &ValueError{Key: localKey, Value: num(local), Problem: "Value must not be more than " + key + " property value: " + num(total)}
	}
	return nil
}
