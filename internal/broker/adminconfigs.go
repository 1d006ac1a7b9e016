package broker

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/config"
	"gregor/internal/controller"
	"gregor/internal/metadata"
	"gregor/internal/network"
	"gregor/internal/security"
)

// A change of configs goes two ways (Kafka's ConfigAdminManager): what concerns this broker's own settings is checked here,
// by those settings; the rest is the controller's, which gets only the resources that passed.

// verdict is what is answered about one resource.
type verdict struct {
	code    int16
	message *string
}

// judge finds the resources of a request that go on to the controller, by their places in it, and the errors of the others. A
// resource that is named twice is refused each time.
func judge(named []metadata.Resource, check func(i int) error) (pass []int, errs []error) {
	times := make(map[metadata.Resource]int, len(named))
	for _, r := range named {
		times[r]++
	}
	errs = make([]error, len(named))
	for i, r := range named {
		if times[r] > 1 {
			errs[i] = invalidRequest("Each resource must appear at most once.")
		} else if errs[i] = check(i); errs[i] == nil {
			pass = append(pass, i)
		}
	}
	return pass, errs
}

// verdicts puts together what was found here and what the controller has said of the rest.
func verdicts(named []metadata.Resource, errs []error, said map[metadata.Resource]verdict) []verdict {
	out := make([]verdict, len(named))
	for i, r := range named {
		v, ok := said[r]
		switch {
		case errs[i] != nil:
			v.code, v.message = api.CodeAndMessage(errs[i])
		case !ok:
			v.code = api.CodeUnknownServerError
		}
		out[i] = v
	}
	return out
}

func (b *Broker) incrementalAlterConfigs(from *network.Request, q *kmsg.IncrementalAlterConfigsRequest, reply func(kmsg.Response)) {
	named := make([]metadata.Resource, len(q.Resources))
	for i, r := range q.Resources {
		named[i] = metadata.Resource{Type: int8(r.ResourceType), Name: r.ResourceName}
	}
	pass, errs := judge(named, func(i int) error { return b.checkIncremental(from, &q.Resources[i]) })
	rest := kmsg.NewPtrIncrementalAlterConfigsRequest()
	rest.Version, rest.ValidateOnly = q.Version, q.ValidateOnly
	for _, i := range pass {
		rest.Resources = append(rest.Resources, q.Resources[i])
	}
	finish := func(resp kmsg.Response) {
		said := make(map[metadata.Resource]verdict)
		if r, ok := resp.(*kmsg.IncrementalAlterConfigsResponse); ok {
			for _, x := range r.Resources {
				said[metadata.Resource{Type: int8(x.ResourceType), Name: x.ResourceName}] = verdict{x.ErrorCode, x.ErrorMessage}
			}
		}
		out := q.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
		for i, v := range verdicts(named, errs, said) {
			out.Resources = append(out.Resources, kmsg.IncrementalAlterConfigsResponseResource{ErrorCode: v.code, ErrorMessage: v.message,
				ResourceType: q.Resources[i].ResourceType, ResourceName: q.Resources[i].ResourceName})
		}
		reply(out)
	}
	if len(pass) == 0 {
		finish(nil)
		return
	}
	b.forward(from, rest, finish, func(err error) kmsg.Response { return controller.ErrorResponse(rest, err) })
}

// The operations of IncrementalAlterConfigs.
const (
	opSet      = 0
	opDelete   = 1
	opAppend   = 2
	opSubtract = 3
)

func (b *Broker) checkIncremental(from *network.Request, r *kmsg.IncrementalAlterConfigsRequestResource) error {
	var nulls []string
	seen := make(map[string]bool)
	for _, c := range r.Configs {
		if seen[c.Name] {
			return invalidRequest("Error due to duplicate config keys")
		}
		seen[c.Name] = true
		if c.Op != opDelete && c.Value == nil {
			nulls = append(nulls, c.Name)
		}
	}
	if len(nulls) > 0 {
		return invalidRequest("Null value not supported for : %s", strings.Join(nulls, ", "))
	}
	switch int8(r.ResourceType) {
	case metadata.TopicResource, metadata.ClientMetricsResource, metadata.GroupResource:
		for _, c := range r.Configs {
			if c.Op < opSet || c.Op > opSubtract {
				return api.ErrUnknownServerError // what Kafka makes of it
			}
		}
		return nil
	case metadata.BrokerResource:
		if !b.allowsCluster(from, security.AlterConfigs) {
			return errNotItsSettings
		}
		if err := b.checkNodeName(r.ResourceName); err != nil {
			return err
		}
		settings := maps.Clone(b.image().Configs.Get(metadata.Resource{Type: metadata.BrokerResource, Name: r.ResourceName}))
		if settings == nil {
			settings = make(map[string]string)
		}
		for _, c := range r.Configs {
			if err := alterSetting(settings, c); err != nil {
				return err
			}
		}
		return b.checkDynamic(settings, r.ResourceName)
	case metadata.BrokerLoggerResource:
		if !b.allowsCluster(from, security.AlterConfigs) {
			return errNotItsSettings
		}
		return errNoLoggers
	}
	return invalidRequest("Unknown resource type %d", int8(r.ResourceType))
}

// errNotItsSettings refuses settings of brokers; Kafka has no words for it.
var errNotItsSettings = api.WithMessage(api.ErrClusterAuthorizationFailed, "")

// errNoLoggers refuses what Kafka does with the levels of its loggers (KIP-412): gregor's log has one level, for all.
//
// Differs from Kafka: there are no loggers to describe or to change.
var errNoLoggers = invalidRequest("This broker has no loggers whose levels could be set.")

// alterSetting applies one operation to the settings of a broker.
func alterSetting(settings map[string]string, c kmsg.IncrementalAlterConfigsRequestResourceConfig) error {
	switch c.Op {
	case opSet:
		settings[c.Name] = *c.Value
	case opDelete:
		delete(settings, c.Name)
	case opAppend, opSubtract:
		verb := "append"
		if c.Op == opSubtract {
			verb = "subtract"
		}
		k := config.BrokerKeys.Lookup(c.Name)
		if k == nil {
			return api.WithMessage(api.ErrInvalidConfig, "Unknown config name: %s", c.Name)
		}
		if k.Type != config.List {
			return api.WithMessage(api.ErrInvalidConfig, "Config value %s is not allowed for config key: %s", verb, c.Name)
		}
		text, ok := settings[c.Name]
		if !ok {
			text, _ = k.DefaultText()
		}
		var list []string
		if text != "" {
			list = strings.Split(text, ",")
		}
		for _, item := range strings.Split(*c.Value, ",") {
			at := slices.Index(list, item)
			switch {
			case c.Op == opAppend && at < 0:
				list = append(list, item)
			case c.Op == opSubtract && at >= 0:
				list = slices.Delete(list, at, at+1)
			}
		}
		settings[c.Name] = strings.Join(list, ",")
	default:
		return invalidRequest("Unknown operations type %d", c.Op)
	}
	return nil
}

// checkNodeName refuses the settings of another broker: only it can check them. An empty name stands for all brokers.
func (b *Broker) checkNodeName(name string) error {
	if name == "" {
		return nil
	}
	id, err := strconv.ParseInt(name, 10, 32)
	if err != nil {
		return invalidRequest("Node id must be an integer, but it is: %s", name)
	}
	if int32(id) != b.nodeID {
		return invalidRequest("Unexpected broker id, expected %d, but received %s", b.nodeID, name)
	}
	return nil
}

func (b *Broker) checkDynamic(settings map[string]string, name string) error {
	if err := b.config.Current().ValidateDynamic(settings, name != ""); err != nil {
		// Kafka blames the request, not the setting (KAFKA-13609).
		return invalidRequest("%s", err.Error())
	}
	return nil
}

func (b *Broker) alterConfigs(from *network.Request, q *kmsg.AlterConfigsRequest, reply func(kmsg.Response)) {
	named := make([]metadata.Resource, len(q.Resources))
	for i, r := range q.Resources {
		named[i] = metadata.Resource{Type: int8(r.ResourceType), Name: r.ResourceName}
	}
	pass, errs := judge(named, func(i int) error { return b.checkLegacy(from, &q.Resources[i]) })
	rest := kmsg.NewPtrAlterConfigsRequest()
	rest.Version, rest.ValidateOnly = q.Version, q.ValidateOnly
	for _, i := range pass {
		rest.Resources = append(rest.Resources, q.Resources[i])
	}
	finish := func(resp kmsg.Response) {
		said := make(map[metadata.Resource]verdict)
		if r, ok := resp.(*kmsg.AlterConfigsResponse); ok {
			for _, x := range r.Resources {
				said[metadata.Resource{Type: int8(x.ResourceType), Name: x.ResourceName}] = verdict{x.ErrorCode, x.ErrorMessage}
			}
		}
		out := q.ResponseKind().(*kmsg.AlterConfigsResponse)
		for i, v := range verdicts(named, errs, said) {
			out.Resources = append(out.Resources, kmsg.AlterConfigsResponseResource{ErrorCode: v.code, ErrorMessage: v.message,
				ResourceType: q.Resources[i].ResourceType, ResourceName: q.Resources[i].ResourceName})
		}
		reply(out)
	}
	if len(pass) == 0 {
		finish(nil)
		return
	}
	b.forward(from, rest, finish, func(err error) kmsg.Response { return controller.ErrorResponse(rest, err) })
}

func (b *Broker) checkLegacy(from *network.Request, r *kmsg.AlterConfigsRequestResource) error {
	var nulls []string
	settings := make(map[string]string, len(r.Configs))
	for _, c := range r.Configs {
		if _, twice := settings[c.Name]; twice {
			return invalidRequest("Error due to duplicate config keys")
		}
		settings[c.Name] = ""
		if c.Value == nil {
			nulls = append(nulls, c.Name)
		} else {
			settings[c.Name] = *c.Value
		}
	}
	if len(nulls) > 0 {
		return invalidRequest("Null value not supported for : %s", strings.Join(nulls, ", "))
	}
	switch int8(r.ResourceType) {
	case metadata.TopicResource, metadata.ClientMetricsResource, metadata.GroupResource:
		return nil
	case metadata.BrokerResource:
		if !b.allowsCluster(from, security.AlterConfigs) {
			return errNotItsSettings
		}
		if err := b.checkNodeName(r.ResourceName); err != nil {
			return err
		}
		return b.checkDynamic(settings, r.ResourceName)
	}
	return invalidRequest("Unknown resource type %d", int8(r.ResourceType))
}

func (b *Broker) describeConfigs(r *network.Request, q *kmsg.DescribeConfigsRequest) kmsg.Response {
	return Configs{b.nodeID, b.config, b.image}.Describe(q, func(op security.Operation, t security.ResourceType, name string) bool {
		return b.allows(r, op, t, name)
	})
}

// Configs answers DescribeConfigs on a node, which need not be a broker.
type Configs struct {
	NodeID int32
	Config *config.Live
	Image  func() *metadata.Image
}

// Describe answers the request. Allowed says what whoever asks may do.
func (c Configs) Describe(q *kmsg.DescribeConfigsRequest, allowed func(security.Operation, security.ResourceType, string) bool) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for i := range q.Resources {
		r := &q.Resources[i]
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		out.ErrorMessage = nothingToSay()
		var entries []config.Entry
		err := mayDescribe(r, allowed)
		if err == nil {
			entries, err = c.entries(r)
		}
		switch {
		case err == error(api.ErrUnknownTopicOrPartition):
			out.ErrorCode = api.ErrUnknownTopicOrPartition.Code
		case err != nil:
			out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(err)
		}
		for _, e := range entries {
			out.Configs = append(out.Configs, describedConfig(q, r, e))
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

// mayDescribe refuses resources whose settings are not for everybody to see.
func mayDescribe(r *kmsg.DescribeConfigsRequestResource, allowed func(security.Operation, security.ResourceType, string) bool) error {
	var refused *api.Error
	kind, name := security.Cluster, security.ClusterName
	switch int8(r.ResourceType) {
	case metadata.TopicResource:
		refused, kind, name = api.ErrTopicAuthorizationFailed, security.Topic, r.ResourceName
	case metadata.GroupResource:
		refused, kind, name = api.ErrGroupAuthorizationFailed, security.Group, r.ResourceName
	case metadata.BrokerResource, metadata.BrokerLoggerResource, metadata.ClientMetricsResource:
		refused = api.ErrClusterAuthorizationFailed
	default:
		return nil // there is none of that type
	}
	if !allowed(security.DescribeConfigs, kind, name) {
		return refused
	}
	return nil
}

// entries describes the settings of one resource, those that were asked for.
func (c Configs) entries(r *kmsg.DescribeConfigsRequestResource) ([]config.Entry, error) {
	current, image := c.Config.Current(), c.Image()
	own := image.Configs.Get(metadata.Resource{Type: int8(r.ResourceType), Name: r.ResourceName})
	switch int8(r.ResourceType) {
	case metadata.TopicResource:
		if err := api.CheckTopicName(r.ResourceName); err != nil {
			return nil, err
		}
		if image.Topics.ByName(r.ResourceName) == nil {
			return nil, api.ErrUnknownTopicOrPartition
		}
		return current.DescribeTopic(own, r.ConfigNames), nil
	case metadata.BrokerResource:
		if r.ResourceName == "" {
			return current.DescribeBrokerDefaults(r.ConfigNames), nil
		}
		id, err := brokerName(r.ResourceName)
		if err != nil {
			return nil, err
		}
		if id != c.NodeID {
			return nil, invalidRequest("Unexpected broker id, expected %d or empty string, but received %s", c.NodeID, r.ResourceName)
		}
		return current.DescribeBroker(r.ConfigNames), nil
	case metadata.BrokerLoggerResource:
		if r.ResourceName == "" {
			return nil, invalidRequest("Broker id must not be empty")
		}
		id, err := brokerName(r.ResourceName)
		if err != nil {
			return nil, err
		}
		if id != c.NodeID {
			return nil, invalidRequest("Unexpected broker id, expected %d but received %s", c.NodeID, r.ResourceName)
		}
		return nil, errNoLoggers
	case metadata.ClientMetricsResource:
		if r.ResourceName == "" {
			return nil, invalidRequest("Client metrics subscription name must not be empty")
		}
		return config.DescribeClientMetrics(own, r.ConfigNames), nil
	case metadata.GroupResource:
		if r.ResourceName == "" {
			return nil, invalidRequest("Group name must not be empty")
		}
		return current.DescribeGroup(own, r.ConfigNames), nil
	}
	return nil, api.ErrInvalidRequest
}

func brokerName(name string) (int32, error) {
	id, err := strconv.ParseInt(name, 10, 32)
	if err != nil {
		return 0, invalidRequest("Broker id must be an integer, but it is: %s", name)
	}
	return int32(id), nil
}

// describedConfig is one setting as the request wants it.
func describedConfig(q *kmsg.DescribeConfigsRequest, r *kmsg.DescribeConfigsRequestResource, e config.Entry) kmsg.DescribeConfigsResponseResourceConfig {
	out := kmsg.NewDescribeConfigsResponseResourceConfig()
	out.Name, out.Value, out.ReadOnly, out.IsSensitive = e.Name, e.Value, e.ReadOnly, e.Sensitive
	out.Source, out.IsDefault = kmsg.ConfigSource(e.Source), e.Source == config.SourceDefault
	out.ConfigType = kmsg.ConfigType(e.Type)
	if q.IncludeDocumentation && e.Doc != "" {
		out.Documentation = &e.Doc
	}
	if q.IncludeSynonyms {
		for _, s := range e.Synonyms {
			x := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
			x.Name, x.Value, x.Source = s.Name, s.Value, kmsg.ConfigSource(s.Source)
			out.ConfigSynonyms = append(out.ConfigSynonyms, x)
		}
	}
	return out
}

// listConfigResources lists what has settings, or could have: all topics and brokers, and the groups and subscriptions that
// do have some.
func (b *Broker) listConfigResources(r *network.Request, q *kmsg.ListConfigResourcesRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.ListConfigResourcesResponse)
	if !b.allowsCluster(r, security.DescribeConfigs) {
		resp.ErrorCode = api.ErrClusterAuthorizationFailed.Code
		return resp
	}
	supported := []int8{metadata.TopicResource, metadata.BrokerResource, metadata.BrokerLoggerResource, metadata.ClientMetricsResource, metadata.GroupResource}
	if q.Version == 0 {
		supported = []int8{metadata.ClientMetricsResource}
	}
	types := q.ResourceTypes
	if len(types) == 0 {
		types = supported
	}
	for _, t := range types {
		if !slices.Contains(supported, t) {
			resp.ErrorCode = api.ErrUnsupportedVersion.Code
			return resp
		}
	}
	image := b.image()
	add := func(t int8, name string) {
		x := kmsg.NewListConfigResourcesResponseConfigResource()
		x.Type, x.Name = t, name
		resp.ConfigResources = append(resp.ConfigResources, x)
	}
	configured := func(t int8) {
		if !slices.Contains(types, t) {
			return
		}
		var names []string
		for res := range image.Configs.All() {
			if res.Type == t {
				names = append(names, res.Name)
			}
		}
		slices.Sort(names)
		for _, n := range names {
			add(t, n)
		}
	}
	configured(metadata.GroupResource)
	configured(metadata.ClientMetricsResource)
	for _, t := range []int8{metadata.BrokerLoggerResource, metadata.BrokerResource} {
		if !slices.Contains(types, t) {
			continue
		}
		for _, id := range image.Cluster.BrokerIDs() {
			if _, ok := image.Cluster.Broker(id).Listeners[r.Conn.Listener()]; ok {
				add(t, strconv.Itoa(int(id)))
			}
		}
	}
	if slices.Contains(types, metadata.TopicResource) {
		for _, t := range sortedTopics(image) {
			add(metadata.TopicResource, t.Name)
		}
	}
	return resp
}

func sortedTopics(image *metadata.Image) []*metadata.Topic {
	out := make([]*metadata.Topic, 0, image.Topics.Len())
	for t := range image.Topics.All() {
		out = append(out, t)
	}
	slices.SortFunc(out, func(x, y *metadata.Topic) int { return strings.Compare(x.Name, y.Name) })
	return out
}
