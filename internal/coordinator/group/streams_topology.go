package group

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
)

// Statuses of a streams group, with Kafka's numbers.
const (
	statusStaleTopology         int8 = 0
	statusMissingSourceTopics   int8 = 1
	statusIncorrectPartitions   int8 = 2
	statusMissingInternalTopics int8 = 3
	statusShutdownApplication   int8 = 4
	statusAssignmentDelayed     int8 = 5
	statusMissingClientTags     int8 = 6
)

// topology is what an application computes, as its members have told: parts that read topics and may keep state, each of which
// runs as one task a partition. It is immutable.
type topology struct {
	epoch int32
	// subtopologies are in rising order of their ids.
	subtopologies []*message.StreamsGroupTopologyValueSubtopology
	// sources has for each topic that is read the subtopology that does.
	sources map[string]string
	// required are all topics that it needs, rising.
	required []string
	// encoded tells topologies apart.
	encoded []byte
}

func newTopology(v *message.StreamsGroupTopologyValue) *topology {
	t := &topology{epoch: v.Epoch, sources: make(map[string]string)}
	for i := range v.Subtopologies {
		t.subtopologies = append(t.subtopologies, &v.Subtopologies[i])
	}
	slices.SortStableFunc(t.subtopologies, func(a, b *message.StreamsGroupTopologyValueSubtopology) int {
		return strings.Compare(a.SubtopologyID, b.SubtopologyID)
	})
	for _, s := range t.subtopologies {
		for _, name := range sourcesOf(s) {
			t.sources[name] = s.SubtopologyID
			t.required = append(t.required, name)
		}
		for i := range s.StateChangelogTopics {
			t.required = append(t.required, s.StateChangelogTopics[i].Name)
		}
	}
	slices.Sort(t.required)
	t.required = slices.Compact(t.required)
	sorted := *v
	sorted.Subtopologies = make([]message.StreamsGroupTopologyValueSubtopology, len(t.subtopologies))
	for i, s := range t.subtopologies {
		sorted.Subtopologies[i] = *s
	}
	t.encoded, _ = sorted.AppendTo(nil, 0) // version 0 has every field
	return t
}

func (t *topology) equal(o *topology) bool { return bytes.Equal(t.encoded, o.encoded) }

// needs says whether a change of the topic matters.
func (t *topology) needs(topic string) bool {
	_, ok := slices.BinarySearch(t.required, topic)
	return ok
}

// sourcesOf are the topics that a subtopology reads.
func sourcesOf(s *message.StreamsGroupTopologyValueSubtopology) []string {
	names := slices.Clone(s.SourceTopics)
	for i := range s.RepartitionSourceTopics {
		names = append(names, s.RepartitionSourceTopics[i].Name)
	}
	return names
}

// topologyRecord is a topology of a request for keeps.
func topologyRecord(t *kmsg.StreamsGroupHeartbeatRequestTopology) *message.StreamsGroupTopologyValue {
	clone := func(ss []string) []string {
		c := make([]string, len(ss))
		for i := range ss {
			c[i] = strings.Clone(ss[i])
		}
		return c
	}
	topics := func(ts []kmsg.TopicInfo) []message.StreamsGroupTopologyValueTopicInfo {
		c := make([]message.StreamsGroupTopologyValueTopicInfo, len(ts))
		for i := range ts {
			c[i] = message.StreamsGroupTopologyValueTopicInfo{
				Name: strings.Clone(ts[i].Topic), Partitions: ts[i].NumPartitions, ReplicationFactor: ts[i].ReplicationFactor,
				TopicConfigs: make([]message.StreamsGroupTopologyValueTopicConfig, len(ts[i].Configs)),
			}
			for j := range ts[i].Configs {
				c[i].TopicConfigs[j] = message.StreamsGroupTopologyValueTopicConfig{
					Key: strings.Clone(ts[i].Configs[j].Key), Value: strings.Clone(ts[i].Configs[j].Value),
				}
			}
		}
		return c
	}
	v := &message.StreamsGroupTopologyValue{Epoch: t.Epoch, Subtopologies: make([]message.StreamsGroupTopologyValueSubtopology, len(t.Subtopologies))}
	for i := range t.Subtopologies {
		s := &t.Subtopologies[i]
		n := message.StreamsGroupTopologyValueSubtopology{
			SubtopologyID: strings.Clone(s.SubtopologyID), SourceTopics: clone(s.SourceTopics), SourceTopicRegex: clone(s.SourceTopicRegex),
			StateChangelogTopics: topics(s.StateChangelogTopics), RepartitionSinkTopics: clone(s.RepartitionSinkTopics),
			RepartitionSourceTopics: topics(s.RepartitionSourceTopics),
			CopartitionGroups:       make([]message.StreamsGroupTopologyValueCopartitionGroup, len(s.CopartitionGroups)),
		}
		for j := range s.CopartitionGroups {
			g := &s.CopartitionGroups[j]
			n.CopartitionGroups[j] = message.StreamsGroupTopologyValueCopartitionGroup{
				SourceTopics: slices.Clone(g.SourceTopics), SourceTopicRegex: slices.Clone(g.SourceTopicRegex),
				RepartitionSourceTopics: slices.Clone(g.RepartitionSourceTopics),
			}
		}
		v.Subtopologies[i] = n
	}
	return v
}

// checkTopology refuses a topology that makes no sense whatever topics there are.
func checkTopology(t *kmsg.StreamsGroupHeartbeatRequestTopology) error {
	invalid := func(format string, a ...any) error {
		return api.WithMessage(api.ErrStreamsInvalidTopology, format, a...)
	}
	if t.Epoch < 0 {
		return api.WithMessage(api.ErrStreamsInvalidTopologyEpoch, "Topology epoch must be non-negative.")
	}
	seen := make(map[string]bool, len(t.Subtopologies))
	for i := range t.Subtopologies {
		s := &t.Subtopologies[i]
		for j := range s.StateChangelogTopics {
			if c := &s.StateChangelogTopics[j]; c.NumPartitions != 0 {
				return invalid("Changelog topic %s must have an undefined partition count, but it is set to %d.", c.Topic, c.NumPartitions)
			}
		}
		if seen[s.SubtopologyID] {
			return invalid("Subtopology %s is there twice.", s.SubtopologyID)
		}
		seen[s.SubtopologyID] = true
		for j := range s.RepartitionSourceTopics {
			if r := &s.RepartitionSourceTopics[j]; r.NumPartitions < 0 {
				return invalid("Repartition topic %s can't have %d partitions.", r.Topic, r.NumPartitions)
			}
		}
		within := func(indexes []int16, n int) bool {
			return !slices.ContainsFunc(indexes, func(i int16) bool { return i < 0 || int(i) >= n })
		}
		for j := range s.CopartitionGroups {
			g := &s.CopartitionGroups[j]
			if !within(g.SourceTopics, len(s.SourceTopics)) || !within(g.RepartitionSourceTopics, len(s.RepartitionSourceTopics)) {
				return invalid("A copartition group of subtopology %s refers to a topic that isn't there.", s.SubtopologyID)
			}
		}
	}
	return nil
}

// configuredTopology is a topology with what follows from the topics that there are. It is immutable.
type configuredTopology struct {
	of *topology
	// subtopologies are in the order of the topology's, nil if source topics are missing or don't fit.
	subtopologies []configuredSubtopology
	// missing are the internal topics that have to be created, in rising order.
	missing []kmsg.CreateTopicsRequestTopic
	// status says why it can't run; nil if it can.
	status *kmsg.StreamsGroupHeartbeatResponseStatus
}

type configuredSubtopology struct {
	of    *message.StreamsGroupTopologyValueSubtopology
	tasks int
	// partitions has how many the internal topics have or will have.
	partitions map[string]int
}

func (t *configuredTopology) ready() bool { return t.status == nil }

func (t *configuredTopology) find(id string) *configuredSubtopology {
	i, ok := slices.BinarySearchFunc(t.subtopologies, id, func(s configuredSubtopology, id string) int {
		return strings.Compare(s.of.SubtopologyID, id)
	})
	if !ok {
		return nil
	}
	return &t.subtopologies[i]
}

// checkTasks refuses tasks that there can't be.
func (t *configuredTopology) checkTasks(ids []kmsg.TaskIDs) error {
	for i := range ids {
		s := t.find(ids[i].SubtopologyID)
		if s == nil {
			return api.WithMessage(api.ErrInvalidRequest, "Subtopology %s does not exist in the topology.", ids[i].SubtopologyID)
		}
		for _, p := range ids[i].Partitions {
			if p < 0 || int(p) >= s.tasks {
				return api.WithMessage(api.ErrInvalidRequest, "Task %d for subtopology %s is invalid. Number of tasks for this subtopology: %d",
					p, ids[i].SubtopologyID, s.tasks)
			}
		}
	}
	return nil
}

// topologyStatus is an error that isn't the request's: the topology can't run as the topics are.
type topologyStatus struct {
	kmsg.StreamsGroupHeartbeatResponseStatus
}

func (s *topologyStatus) Error() string { return s.StatusDetail }

func incorrectlyPartitioned(format string, a ...any) *topologyStatus {
	return &topologyStatus{kmsg.StreamsGroupHeartbeatResponseStatus{StatusCode: statusIncorrectPartitions, StatusDetail: fmt.Sprintf(format, a...)}}
}

// configureTopology decides how many tasks each subtopology has and how many partitions each internal topic. The error is that
// of a topology that makes no sense; topics that are missing or don't fit are a status.
func configureTopology(t *topology, topics *metadata.TopicsImage) (*configuredTopology, error) {
	done := &configuredTopology{of: t}
	c := topologyConfiguration{topology: t, topics: topics, decided: make(map[string]int)}
	err := c.decide()
	if status, ok := err.(*topologyStatus); ok {
		done.status = &status.StreamsGroupHeartbeatResponseStatus
		return done, nil
	}
	if err != nil {
		return nil, err
	}
	for _, s := range t.subtopologies {
		cs := configuredSubtopology{of: s, partitions: make(map[string]int)}
		for _, name := range sourcesOf(s) {
			n, _ := c.size(name)
			cs.tasks = max(cs.tasks, n)
		}
		for _, infos := range [][]message.StreamsGroupTopologyValueTopicInfo{s.RepartitionSourceTopics, s.StateChangelogTopics} {
			for i := range infos {
				n := int(infos[i].Partitions)
				if n == 0 {
					n = c.decided[infos[i].Name]
				}
				cs.partitions[infos[i].Name] = n
			}
		}
		done.subtopologies = append(done.subtopologies, cs)
	}
	missing, err := c.missing(done.subtopologies)
	if status, ok := err.(*topologyStatus); ok {
		return &configuredTopology{of: t, status: &status.StreamsGroupHeartbeatResponseStatus}, nil
	}
	if done.missing = missing; len(missing) > 0 {
		names := make([]string, len(missing))
		for i := range missing {
			names[i] = missing[i].Topic
		}
		done.status = &kmsg.StreamsGroupHeartbeatResponseStatus{
			StatusCode: statusMissingInternalTopics, StatusDetail: "Internal topics are missing: " + someOf(names),
		}
	}
	return done, nil
}

// someOf names a few.
func someOf(names []string) string {
	const few = 3
	if len(names) > few {
		return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d additional topics", len(names)-few)
	}
	return strings.Join(names, ", ")
}

// topologyConfiguration is a configuration under way.
type topologyConfiguration struct {
	topology *topology
	topics   *metadata.TopicsImage
	// decided has how many partitions internal topics are to have.
	decided map[string]int
	// repartition has the repartition topics, and whether the application has fixed their size; those that it has are fixedWidth
	// wide, or differ.
	repartition map[string]bool
	fixedWidth  int
	fixedDiffer bool
}

// size is how many partitions a topic has or is to have.
func (c *topologyConfiguration) size(topic string) (int, bool) {
	if t := c.topics.ByName(topic); t != nil {
		return t.Len(), true
	}
	n, ok := c.decided[topic]
	return n, ok
}

func (c *topologyConfiguration) decide() error {
	missing := make(map[string]bool)
	for _, s := range c.topology.subtopologies {
		for _, name := range s.SourceTopics {
			if c.topics.ByName(name) == nil {
				missing[name] = true
			}
		}
	}
	if len(missing) > 0 {
		return &topologyStatus{kmsg.StreamsGroupHeartbeatResponseStatus{
			StatusCode: statusMissingSourceTopics, StatusDetail: "Source topics " + someOf(slices.Sorted(maps.Keys(missing))) + " are missing.",
		}}
	}
	if err := c.decideRepartition(); err != nil {
		return err
	}
	c.noteRepartition()
	for _, s := range c.topology.subtopologies {
		for i := range s.CopartitionGroups {
			if err := c.copartition(s, &s.CopartitionGroups[i]); err != nil {
				return err
			}
		}
	}
	for _, s := range c.topology.subtopologies {
		most, any := 0, false
		for _, name := range sourcesOf(s) {
			n, _ := c.size(name)
			most, any = max(most, n), true
		}
		if !any {
			return api.WithMessage(api.ErrStreamsInvalidTopology, "No source topics found for subtopology %s", s.SubtopologyID)
		}
		for i := range s.StateChangelogTopics {
			c.decided[s.StateChangelogTopics[i].Name] = most
		}
	}
	return nil
}

// decideRepartition gives a repartition topic as many partitions as the widest source of what writes to it has, unless the
// application has said how many.
func (c *topologyConfiguration) decideRepartition() error {
	counts := make(map[string]int)
	for _, s := range c.topology.subtopologies {
		for i := range s.RepartitionSourceTopics {
			if t := &s.RepartitionSourceTopics[i]; t.Partitions != 0 {
				counts[t.Name] = int(t.Partitions)
			}
		}
	}
	for open := true; open; {
		open = false
		progress := false
		for _, s := range c.topology.subtopologies {
			for _, sink := range s.RepartitionSinkTopics {
				if _, ok := counts[sink]; ok {
					continue
				}
				most, known := 0, false
				for i := range s.RepartitionSourceTopics {
					if n, ok := counts[s.RepartitionSourceTopics[i].Name]; ok {
						most, known = max(most, n), true
					}
				}
				for _, name := range s.SourceTopics {
					if n, ok := c.size(name); ok {
						most, known = max(most, n), true
					}
				}
				if !known {
					open = true
					continue
				}
				counts[sink] = most
				progress = true
			}
		}
		if open && !progress {
			return api.WithMessage(api.ErrStreamsInvalidTopology, "Failed to compute number of partitions for all repartition topics. "+
				"There may be loops in the topology that cannot be resolved.")
		}
	}
	for _, s := range c.topology.subtopologies {
		for i := range s.RepartitionSourceTopics {
			if _, ok := counts[s.RepartitionSourceTopics[i].Name]; !ok {
				return api.WithMessage(api.ErrStreamsInvalidTopology, "Failed to compute number of partitions for all repartition topics, "+
					"because a repartition source topic is never used as a sink topic.")
			}
		}
	}
	maps.Copy(c.decided, counts)
	return nil
}

// noteRepartition finds out what copartition needs to know of all repartition topics.
func (c *topologyConfiguration) noteRepartition() {
	c.repartition = make(map[string]bool)
	for _, s := range c.topology.subtopologies {
		for i := range s.RepartitionSourceTopics {
			t := &s.RepartitionSourceTopics[i]
			c.repartition[t.Name] = c.repartition[t.Name] || t.Partitions != 0
		}
	}
	for name, fixed := range c.repartition {
		if !fixed {
			continue
		}
		n, _ := c.size(name)
		c.fixedDiffer = c.fixedDiffer || c.fixedWidth != 0 && n != c.fixedWidth
		c.fixedWidth = n
	}
}

// copartition makes the repartition topics of a group of topics that are joined as wide as the others.
func (c *topologyConfiguration) copartition(s *message.StreamsGroupTopologyValueSubtopology, g *message.StreamsGroupTopologyValueCopartitionGroup) error {
	internal, external := make(map[string]int), make(map[string]int)
	add := func(name string) {
		n, _ := c.size(name)
		if _, ok := c.repartition[name]; ok {
			internal[name] = n
		} else {
			external[name] = n
		}
	}
	// Requests refer to topics that are there (checkTopology), but what another coordinator has stored may not.
	for _, i := range g.SourceTopics {
		if i >= 0 && int(i) < len(s.SourceTopics) {
			add(s.SourceTopics[i])
		}
	}
	for _, i := range g.RepartitionSourceTopics {
		if i >= 0 && int(i) < len(s.RepartitionSourceTopics) {
			add(s.RepartitionSourceTopics[i].Name)
		}
	}
	if len(internal)+len(external) == 0 {
		return nil
	}
	width, differ, all := 0, false, external
	for _, n := range external {
		differ = differ || width != 0 && n != width
		width = n
	}
	if len(external) == 0 {
		// As in Kafka, topics whose size the application has fixed count wherever in the topology they are.
		width, differ, all = c.fixedWidth, c.fixedDiffer, internal
	}
	if differ {
		return incorrectlyPartitioned("Following topics do not have the same number of partitions: [%s]", counted(all))
	}
	if width == 0 {
		for _, n := range internal {
			width = max(width, n)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(internal)) {
		if c.repartition[name] && internal[name] != width {
			return incorrectlyPartitioned("Number of partitions [%d] of repartition topic [%s] doesn't match number of partitions [%d] of the source topic.",
				internal[name], name, width)
		}
		c.decided[name] = width
	}
	return nil
}

// counted is a list of topics with their sizes, as Java prints a map.
func counted(sizes map[string]int) string {
	var s []string
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		s = append(s, fmt.Sprintf("%s=%d", name, sizes[name]))
	}
	return "{" + strings.Join(s, ", ") + "}"
}

// missing are the internal topics that aren't there yet. Those that are must have the size that is needed.
func (c *topologyConfiguration) missing(subtopologies []configuredSubtopology) ([]kmsg.CreateTopicsRequestTopic, error) {
	wanted := make(map[string]kmsg.CreateTopicsRequestTopic)
	for i := range subtopologies {
		s := &subtopologies[i]
		for _, infos := range [][]message.StreamsGroupTopologyValueTopicInfo{s.of.RepartitionSourceTopics, s.of.StateChangelogTopics} {
			for j := range infos {
				info := &infos[j]
				t := kmsg.NewCreateTopicsRequestTopic()
				t.Topic, t.NumPartitions, t.ReplicationFactor = info.Name, int32(s.partitions[info.Name]), info.ReplicationFactor
				if t.ReplicationFactor == 0 {
					t.ReplicationFactor = -1
				}
				for k := range info.TopicConfigs {
					value := info.TopicConfigs[k].Value
					t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: info.TopicConfigs[k].Key, Value: &value})
				}
				wanted[t.Topic] = t
			}
		}
	}
	for _, name := range c.topology.required {
		t := c.topics.ByName(name)
		if t == nil {
			continue
		}
		if w, ok := wanted[name]; ok && int(w.NumPartitions) != t.Len() {
			return nil, incorrectlyPartitioned("Existing topic %s has different number of partitions: expected %d, found %d", name, w.NumPartitions, t.Len())
		}
		delete(wanted, name)
	}
	var missing []kmsg.CreateTopicsRequestTopic
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		missing = append(missing, wanted[name])
	}
	return missing, nil
}

// describeTopology is the topology's part of StreamsGroupDescribe; configured is nil if it isn't known what the topics are.
func describeTopology(t *topology, configured *configuredTopology) *kmsg.StreamsGroupDescribeResponseGroupTopology {
	d := &kmsg.StreamsGroupDescribeResponseGroupTopology{Epoch: t.epoch, Subtopologies: []kmsg.StreamsGroupDescribeResponseGroupTopologySubtopology{}}
	for _, s := range t.subtopologies {
		var sizes map[string]int
		if configured != nil {
			sizes = configured.find(s.SubtopologyID).partitions
		}
		topics := func(infos []message.StreamsGroupTopologyValueTopicInfo) []kmsg.TopicInfo {
			list := make([]kmsg.TopicInfo, len(infos))
			for i := range infos {
				list[i] = kmsg.TopicInfo{Topic: infos[i].Name, NumPartitions: infos[i].Partitions, ReplicationFactor: infos[i].ReplicationFactor}
				if n, ok := sizes[infos[i].Name]; ok {
					list[i].NumPartitions = int32(n)
				}
				for _, c := range infos[i].TopicConfigs {
					list[i].Configs = append(list[i].Configs, kmsg.TopicInfoConfig{Key: c.Key, Value: c.Value})
				}
			}
			slices.SortFunc(list, func(a, b kmsg.TopicInfo) int { return strings.Compare(a.Topic, b.Topic) })
			return list
		}
		d.Subtopologies = append(d.Subtopologies, kmsg.StreamsGroupDescribeResponseGroupTopologySubtopology{
			SubtopologyID: s.SubtopologyID, SourceTopics: slices.Sorted(slices.Values(s.SourceTopics)),
			RepartitionSinkTopics: slices.Sorted(slices.Values(s.RepartitionSinkTopics)),
			StateChangelogTopics:  topics(s.StateChangelogTopics), RepartitionSourceTopics: topics(s.RepartitionSourceTopics),
		})
	}
	return d
}
