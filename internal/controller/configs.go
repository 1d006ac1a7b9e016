package controller

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/security"
	"gregor/internal/timeline"
)

const (
	minInsyncReplicas     = "min.insync.replicas"
	uncleanElectionEnable = "unclean.leader.election.enable"
	cordonedLogDirs       = "cordoned.log.dirs"

	maxConfigValue = 32767 // what a string of the protocol holds
)

// resource names what a config belongs to.
type resource struct {
	kind int8
	name string
}

// The types of resources that have configs.
const (
	kindTopic         int8 = 2
	kindBroker        int8 = 4
	kindBrokerLogger  int8 = 8
	kindClientMetrics int8 = 16
	kindGroup         int8 = 32
)

var kindNames = map[int8]string{
	kindTopic: "TOPIC", kindBroker: "BROKER", kindBrokerLogger: "BROKER_LOGGER", kindClientMetrics: "CLIENT_METRICS", kindGroup: "GROUP",
}

// ConfigSchema is what the controller has to know of configuration keys. It must not change while the controller lives,
// or memory would depend on more than the log.
type ConfigSchema interface {
	// Validate checks the complete settings that a topic, group or client metrics subscription would have, and those it had.
	// An error that isn't a protocol error is answered as INVALID_CONFIG with its text.
	Validate(resourceType int8, name string, after, before map[string]string) error
	// IsList says whether a key of a resource is a list, which can be appended to.
	IsList(resourceType int8, key string) bool
	// Default is the value of a list key that nobody set, for appending to.
	Default(resourceType int8, key string) (value string, ok bool)
	// Known says whether records of this key are to be kept; others are passed over.
	Known(resourceType int8, key string) bool
	// Static is the value of a broker key by server.properties and defaults, "" if it has none.
	Static(key string) string
	// NewTopic describes a topic with these settings of its own, over those set for all brokers and for this one.
	NewTopic(own, forAll, forThis map[string]string) []kmsg.CreateTopicsResponseTopicConfig
}

// configs manages the settings of topics, brokers, groups and client metrics subscriptions.
type configs struct {
	c    *Core
	data *timeline.Map[resource, *timeline.Map[string, string]]
}

func newConfigs(c *Core) *configs {
	return &configs{c: c, data: timeline.NewMap[resource, *timeline.Map[string, string]](c.registry)}
}

func (m *configs) replay(r *message.ConfigRecord) {
	if !m.c.opts.Configs.Known(r.ResourceType, r.Name) {
		return
	}
	res := resource{r.ResourceType, r.ResourceName}
	settings, ok := m.data.Get(res)
	if !ok {
		settings = timeline.NewMap[string, string](m.c.registry)
		m.data.Set(res, settings)
	}
	if r.Value == nil {
		settings.Delete(r.Name)
	} else {
		settings.Set(r.Name, *r.Value)
	}
	if settings.Len() == 0 {
		m.data.Delete(res)
	}
}

func (m *configs) deleteTopic(name string) { m.data.Delete(resource{kindTopic, name}) }

func (m *configs) get(res resource, key string) (string, bool) {
	if settings, ok := m.data.Get(res); ok {
		return settings.Get(key)
	}
	return "", false
}

// all returns the settings of a resource; the caller owns the map.
func (m *configs) all(res resource) map[string]string {
	out := make(map[string]string)
	if settings, ok := m.data.Get(res); ok {
		maps.Insert(out, settings.All())
	}
	return out
}

// topicValue is the effective value of a topic key whose broker synonym has the same name.
func (m *configs) topicValue(topic, key string) string {
	for _, res := range [...]resource{{kindTopic, topic}, {kindBroker, m.c.self}, {kindBroker, ""}} {
		if v, ok := m.get(res, key); ok {
			return v
		}
	}
	return m.c.opts.Configs.Static(key)
}

// forNewTopic checks the configs that a topic is created with and returns them with their records.
func (m *configs) forNewTopic(t *kmsg.CreateTopicsRequestTopic) (map[string]string, []message.Versioned, error) {
	if len(t.Configs) == 0 {
		return nil, nil, nil
	}
	var nulls []string
	ops := make([]configOp, 0, len(t.Configs))
	settings := make(map[string]string, len(t.Configs))
	for _, c := range t.Configs {
		if c.Value == nil {
			nulls = append(nulls, c.Name)
			continue
		}
		settings[c.Name] = *c.Value
		ops = setOp(ops, configOp{c.Name, opSet, c.Value})
	}
	if len(nulls) > 0 {
		return nil, nil, api.WithMessage(api.ErrInvalidConfig, "Null value not supported for topic configs: %s", strings.Join(nulls, ","))
	}
	records, err := m.incremental(resource{kindTopic, t.Topic}, ops, true, true)
	return settings, records, err
}

func (m *configs) describeNewTopic(own map[string]string) []kmsg.CreateTopicsResponseTopicConfig {
	return m.c.opts.Configs.NewTopic(own, m.all(resource{kindBroker, ""}), m.all(resource{kindBroker, m.c.self}))
}

// configOp is one change of one key.
type configOp struct {
	key   string
	op    int8
	value *string
}

const (
	opSet      int8 = 0
	opUnset    int8 = 1
	opAppend   int8 = 2
	opSubtract int8 = 3
)

var configOpNames = [...]string{"SET", "DELETE", "APPEND", "SUBTRACT"}

// setOp adds an op, in place of an earlier one of the same key: the last one of a request counts.
func setOp(ops []configOp, op configOp) []configOp {
	if i := slices.IndexFunc(ops, func(o configOp) bool { return o.key == op.key }); i >= 0 {
		ops[i] = op
		return ops
	}
	return append(ops, op)
}

// incremental works out the records of a change of some keys of a resource.
func (m *configs) incremental(res resource, ops []configOp, isNew, forwarded bool) ([]message.Versioned, error) {
	var altered []setting
	for _, op := range ops {
		current, exists := m.get(res, op.key)
		var value *string
		if exists {
			value = &current
		}
		switch op.op {
		case opSet:
			value = op.value
		case opUnset:
			value = nil
		case opAppend, opSubtract:
			if !m.c.opts.Configs.IsList(res.kind, op.key) {
				return nil, api.WithMessage(api.ErrInvalidConfig, "Can't %s to key %s because its type is not LIST.", configOpNames[op.op], op.key)
			}
			list := m.listOf(res, op.key, value)
			if op.value == nil {
				return nil, api.WithMessage(api.ErrInvalidRequest, "Null value not supported for : %s:%s", configOpNames[op.op], op.key)
			}
			for _, item := range javaSplit(*op.value) {
				at := slices.Index(list, item)
				switch {
				case op.op == opAppend && at < 0:
					list = append(list, item)
				case op.op == opSubtract && at >= 0:
					list = slices.Delete(list, at, at+1)
				}
			}
			joined := strings.Join(list, ",")
			value = &joined
		default:
			return nil, api.WithMessage(api.ErrInvalidRequest, "Unknown operation type %d for %s", op.op, op.key)
		}
		// A broker is told even of a value that stays, because telling it makes it load its files again (KAFKA-14136).
		if same := exists && value != nil && *value == current || !exists && value == nil; !same || res.kind == kindBroker {
			altered = append(altered, setting{op.key, value})
		}
	}
	if err := m.validate(res, altered, nil, isNew, forwarded); err != nil {
		return nil, err
	}
	return configRecords(res, altered), nil
}

// legacy works out the records that replace all settings of a resource.
func (m *configs) legacy(res resource, settings []setting, forwarded bool) ([]message.Versioned, error) {
	var altered, dropped []setting
	current := m.all(res)
	for _, s := range settings {
		now, exists := current[s.key]
		if same := exists && s.value != nil && *s.value == now || !exists && s.value == nil; !same || res.kind == kindBroker {
			altered = append(altered, s)
		}
	}
	for _, key := range sortedKeys(current) {
		if !slices.ContainsFunc(settings, func(s setting) bool { return s.key == key }) {
			dropped = append(dropped, setting{key, nil})
		}
	}
	if err := m.validate(res, altered, dropped, false, forwarded); err != nil {
		return nil, err
	}
	return configRecords(res, append(altered, dropped...)), nil
}

// setting is a key with the value that it is to have, nil for none.
type setting struct {
	key   string
	value *string
}

func configRecords(res resource, settings []setting) []message.Versioned {
	records := make([]message.Versioned, len(settings))
	for i, s := range settings {
		r := message.NewConfigRecord()
		r.ResourceType, r.ResourceName, r.Name, r.Value = res.kind, res.name, s.key, s.value
		records[i] = message.Versioned{Message: r}
	}
	return records
}

func (m *configs) validate(res resource, altered, dropped []setting, isNew, forwarded bool) error {
	before := m.all(res)
	after := maps.Clone(before)
	for _, s := range altered {
		if err := m.allowed(res, s, before, forwarded); err != nil {
			return err
		}
		switch {
		case s.value == nil:
			delete(after, s.key)
		case utf16Len(*s.value) > maxConfigValue:
			return api.WithMessage(api.ErrInvalidConfig, "The configuration value cannot be added because it exceeds the maximum value size of %d bytes.", maxConfigValue)
		default:
			after[s.key] = *s.value
		}
	}
	for _, s := range dropped {
		if err := m.allowed(res, s, before, forwarded); err != nil {
			return err
		}
		delete(after, s.key)
	}
	if err := m.checkResource(res, after, before); err != nil {
		if api.CodeOf(err) == api.CodeUnknownServerError && !errors.Is(err, error(api.ErrUnknownServerError)) {
			return api.WithMessage(api.ErrInvalidConfig, "%s", err.Error())
		}
		return err
	}
	if isNew {
		return nil
	}
	switch {
	case res.kind == kindBroker && res.name != "":
		return m.c.cluster.nodeExists(res.name)
	case res.kind == kindTopic:
		if _, ok := m.c.topics.byName.Get(res.name); !ok {
			return api.WithMessage(api.ErrUnknownTopicOrPartition, "The topic '%s' does not exist.", res.name)
		}
	}
	return nil
}

// allowed refuses changes that the feature levels in force don't permit.
func (m *configs) allowed(res resource, s setting, before map[string]string, forwarded bool) error {
	if res.kind != kindBroker {
		return nil
	}
	switch s.key {
	case minInsyncReplicas:
		// Which replicas are eligible to lead depends on this value: it must be one for the whole cluster, and be there.
		if !m.c.features.elr() {
			return nil
		}
		if res.name != "" {
			return api.WithMessage(api.ErrInvalidConfig, "Broker-level min.insync.replicas cannot be altered while ELR is enabled.")
		}
		if s.value == nil {
			return api.WithMessage(api.ErrInvalidConfig, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.")
		}
	case cordonedLogDirs:
		if !m.c.features.level().CordonedLogDirs() {
			return api.WithMessage(api.ErrInvalidConfig, "The cordoned.log.dirs configuration value cannot be set because it requires metadata.version >= 4.3-IV0")
		}
		// Only the broker knows its directories; what didn't come through one may take names away, not add any.
		if !forwarded && s.value != nil && strings.TrimSpace(*s.value) != "" {
			have := trimmedList(before[cordonedLogDirs])
			for _, dir := range trimmedList(*s.value) {
				if !slices.Contains(have, dir) {
					return api.WithMessage(api.ErrInvalidConfig, "When updating cordoned.log.dirs via controllers,  the new value must be a subset of the current configuration value.")
				}
			}
		}
	}
	return nil
}

func (m *configs) checkResource(res resource, after, before map[string]string) error {
	switch res.kind {
	case kindTopic:
		if res.name == "" {
			return api.WithMessage(api.ErrInvalidRequest, "Default topic resources are not allowed.")
		}
		if err := api.CheckTopicName(res.name); err != nil {
			return err
		}
	case kindBroker:
		if res.name == "" {
			return nil
		}
		id, err := strconv.ParseInt(res.name, 10, 32)
		if err != nil {
			return api.WithMessage(api.ErrInvalidRequest, "Unable to parse broker name as a base 10 number.")
		}
		if id < 0 {
			return api.WithMessage(api.ErrInvalidRequest, "Invalid negative broker ID.")
		}
		return nil
	case kindClientMetrics:
	case kindGroup:
		if res.name == "" {
			return api.WithMessage(api.ErrInvalidRequest, "Default group resources are not allowed.")
		}
	default:
		return api.WithMessage(api.ErrInvalidRequest, "Unknown resource type %s", kindNames[res.kind])
	}
	return m.c.opts.Configs.Validate(res.kind, res.name, after, before)
}

// listOf is the list that a key holds, or that it has by default.
func (m *configs) listOf(res resource, key string, value *string) []string {
	text, ok := "", false
	if value != nil {
		text, ok = *value, true
	} else {
		text, ok = m.c.opts.Configs.Default(res.kind, key)
	}
	if !ok {
		return nil
	}
	return slices.DeleteFunc(strings.Split(text, ","), func(s string) bool { return s == "" })
}

// javaSplit splits at commas as Java does: what is empty at the end is dropped, what is empty elsewhere is not.
func javaSplit(s string) []string {
	parts := strings.Split(s, ",")
	for len(parts) > 1 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	if len(parts) == 1 && parts[0] == "" && s != "" {
		return nil
	}
	return parts
}

func trimmedList(s string) []string {
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// utf16Len is the length of a string as Java counts it.
func utf16Len(s string) int {
	n := 0
	for _, r := range s {
		if r >= 0x10000 {
			n++
		}
		n++
	}
	return n
}

// elrRecords make min.insync.replicas a setting of the cluster when ELR is turned on.
func (m *configs) elrRecords() []message.Versioned {
	var records []message.Versioned
	if _, ok := m.get(resource{kindBroker, ""}, minInsyncReplicas); !ok {
		v := m.c.opts.Configs.Static(minInsyncReplicas)
		records = configRecords(resource{kindBroker, ""}, []setting{{minInsyncReplicas, &v}})
	}
	var named []resource
	for res, settings := range m.data.All() {
		if _, ok := settings.Get(minInsyncReplicas); ok && res.kind == kindBroker && res.name != "" {
			named = append(named, res)
		}
	}
	slices.SortFunc(named, func(a, b resource) int { return strings.Compare(a.name, b.name) })
	for _, res := range named {
		records = append(records, configRecords(res, []setting{{minInsyncReplicas, nil}})...)
	}
	return records
}

func (m *configs) incrementalAlter(rc *RequestContext, req *kmsg.IncrementalAlterConfigsRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	named := make([]resource, len(req.Resources))
	for i, r := range req.Resources {
		named[i] = resource{int8(r.ResourceType), r.ResourceName}
	}
	records := m.each(rc, named, func(i int) ([]message.Versioned, error) {
		var ops []configOp
		for _, c := range req.Resources[i].Configs {
			ops = setOp(ops, configOp{c.Name, int8(c.Op), c.Value})
		}
		return m.incremental(named[i], ops, false, rc.Forwarded)
	}, func(i int, err error) {
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = req.Resources[i].ResourceType, req.Resources[i].ResourceName
		out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(err)
		resp.Resources = append(resp.Resources, out)
	})
	return m.finish(records, req.ValidateOnly, resp)
}

func (m *configs) legacyAlter(rc *RequestContext, req *kmsg.AlterConfigsRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	named := make([]resource, len(req.Resources))
	for i, r := range req.Resources {
		named[i] = resource{int8(r.ResourceType), r.ResourceName}
	}
	records := m.each(rc, named, func(i int) ([]message.Versioned, error) {
		var settings []setting
		for _, c := range req.Resources[i].Configs {
			if i := slices.IndexFunc(settings, func(s setting) bool { return s.key == c.Name }); i >= 0 {
				settings[i].value = c.Value
			} else {
				settings = append(settings, setting{c.Name, c.Value})
			}
		}
		return m.legacy(named[i], settings, rc.Forwarded)
	}, func(i int, err error) {
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = req.Resources[i].ResourceType, req.Resources[i].ResourceName
		out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(err)
		resp.Resources = append(resp.Resources, out)
	})
	return m.finish(records, req.ValidateOnly, resp)
}

// each changes the resources of a request in turn and has each answered, those that are named more than once the first time.
func (m *configs) each(rc *RequestContext, named []resource, change func(i int) ([]message.Versioned, error), answer func(i int, err error)) []message.Versioned {
	times := make(map[resource]int, len(named))
	for _, r := range named {
		times[r]++
	}
	var records []message.Versioned
	for i, r := range named {
		err := m.admit(rc, r, times)
		if err == errAnswered {
			continue
		}
		if err == nil {
			var made []message.Versioned
			made, err = change(i)
			records = append(records, made...)
		}
		answer(i, err)
	}
	return records
}

// errAnswered says that a resource was answered already.
var errAnswered = fmt.Errorf("answered already")

// admit checks a resource of a request before its changes are looked at.
func (m *configs) admit(rc *RequestContext, res resource, times map[resource]int) error {
	n := times[res]
	switch {
	case n < 0:
		return errAnswered
	case kindNames[res.kind] == "":
		return api.WithMessage(api.ErrUnsupportedVersion, "Unknown resource type %d.", res.kind)
	case n > 1:
		times[res] = -1
		return api.WithMessage(api.ErrInvalidRequest, "Duplicate resource.")
	}
	switch res.kind {
	case kindTopic:
		if !rc.allowed(security.AlterConfigs, security.Topic, res.name) {
			return api.ErrTopicAuthorizationFailed
		}
	case kindGroup:
		if !rc.allowed(security.AlterConfigs, security.Group, res.name) {
			return api.ErrGroupAuthorizationFailed
		}
	case kindBroker, kindClientMetrics:
		if !rc.allowed(security.AlterConfigs, security.Cluster, security.ClusterName) {
			return api.ErrClusterAuthorizationFailed
		}
	default:
		return api.WithMessage(api.ErrInvalidRequest, "Unexpected resource type %s.", kindNames[res.kind])
	}
	return nil
}

func (m *configs) finish(records []message.Versioned, validateOnly bool, resp kmsg.Response) (Result, error) {
	if len(records) > maxRecordsPerUserOp {
		return Result{}, errTooLarge
	}
	if validateOnly {
		records = nil
	}
	// A change of min.insync.replicas makes the eligible leader replicas that were chosen by the old value worthless.
	if m.c.features.elr() {
		records = append(records, m.clearELRRecords(records)...)
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

func (m *configs) clearELRRecords(records []message.Versioned) []message.Versioned {
	var out []message.Versioned
	for _, v := range records {
		r, ok := v.Message.(*message.ConfigRecord)
		if !ok || r.Name != minInsyncReplicas || r.ResourceType != kindTopic && r.ResourceType != kindBroker {
			continue
		}
		c := message.NewClearElrRecord()
		if r.ResourceType == kindTopic {
			c.TopicName = r.ResourceName
		}
		out = append(out, message.Versioned{Message: c})
	}
	return out
}
