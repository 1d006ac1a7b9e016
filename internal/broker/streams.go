package broker

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/network"
	"gregor/internal/security"
)

// streamsGroups says whether the cluster has streams groups (KIP-1071) and this broker lets them in.
func (b *Broker) streamsGroups() bool {
	return b.image().Features.Levels["streams.version"] >= 1 &&
		slices.Contains(b.config.Current().GroupCoordinator.RebalanceProtocols, "streams")
}

// topologyTopics are the topics that a topology names, each once.
func topologyTopics(t *kmsg.StreamsGroupHeartbeatRequestTopology) []string {
	var names []string
	seen := make(map[string]bool)
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for i := range t.Subtopologies {
		s := &t.Subtopologies[i]
		for _, name := range s.SourceTopics {
			add(name)
		}
		for _, name := range s.RepartitionSinkTopics {
			add(name)
		}
		for j := range s.RepartitionSourceTopics {
			add(s.RepartitionSourceTopics[j].Topic)
		}
		for j := range s.StateChangelogTopics {
			add(s.StateChangelogTopics[j].Topic)
		}
	}
	return names
}

// checkStreamsHeartbeat says why a client may not send a StreamsGroupHeartbeat.
func (b *Broker) checkStreamsHeartbeat(r *network.Request, q *kmsg.StreamsGroupHeartbeatRequest) error {
	switch {
	case !b.streamsGroups():
		return api.ErrUnsupportedVersion
	case !b.allowsGroup(r, security.Read, q.Group):
		return api.ErrGroupAuthorizationFailed
	case q.Topology == nil:
		return nil
	}
	topics := topologyTopics(q.Topology)
	var internal, invalid []string
	hidden := false
	for _, name := range topics {
		if isInternalTopic(name) {
			internal = append(internal, name)
		}
		if api.CheckTopicName(name) != nil {
			invalid = append(invalid, name)
		}
		hidden = hidden || !b.allowsTopic(r, security.Describe, name)
	}
	switch {
	case internal != nil:
		return api.WithMessage(api.ErrStreamsInvalidTopology,
			"Use of Kafka internal topics %s in a Kafka Streams topology is prohibited.", strings.Join(internal, ","))
	case invalid != nil:
		return api.WithMessage(api.ErrStreamsInvalidTopology, "Topic names %s are not valid topic names.", strings.Join(invalid, ","))
	case hidden:
		return api.ErrTopicAuthorizationFailed
	}
	return nil
}

func (b *Broker) streamsGroupHeartbeat(r *network.Request, q *kmsg.StreamsGroupHeartbeatRequest, reply func(kmsg.Response)) {
	if err := b.checkStreamsHeartbeat(r, q); err != nil {
		resp := kmsg.NewPtrStreamsGroupHeartbeatResponse()
		resp.ErrorCode, resp.Status = api.CodeOf(err), []kmsg.StreamsGroupHeartbeatResponseStatus{}
		if api.CodeOf(err) == api.ErrStreamsInvalidTopology.Code {
			text := api.MessageOf(err)
			resp.ErrorMessage = &text
		}
		reply(resp)
		return
	}
	from := clientOf(r)
	b.groups.StreamsGroupHeartbeat(groupContext(r), q, func(resp *kmsg.StreamsGroupHeartbeatResponse, missing []kmsg.CreateTopicsRequestTopic) {
		if len(missing) > 0 {
			b.createStreamsTopics(r, from, resp, missing)
		}
		reply(resp)
	})
}

// createStreamsTopics has the internal topics of a streams group created, in the name of its member. The answer says what stands in
// the way.
func (b *Broker) createStreamsTopics(r *network.Request, from Client, resp *kmsg.StreamsGroupHeartbeatResponse, missing []kmsg.CreateTopicsRequestTopic) {
	const missingInternalTopics = 3
	detail := func(text string) {
		for i := range resp.Status {
			if resp.Status[i].StatusCode == missingInternalTopics {
				resp.Status[i].StatusDetail += "; " + text
			}
		}
	}
	if !b.allowsQuietly(r, security.Create, security.Cluster, security.ClusterName) {
		var refused []string
		for i := range missing {
			if !b.allowsTopic(r, security.Create, missing[i].Topic) {
				refused = append(refused, missing[i].Topic)
			}
		}
		if refused != nil {
			detail("Unauthorized to CREATE on topics " + strings.Join(refused, ", ") + ".")
			return
		}
	}
	remember := 2 * time.Duration(resp.HeartbeatIntervalMillis) * time.Millisecond
	if failed := b.streamsTopics.create(b, from, missing, remember); len(failed) > 0 {
		const few = 3
		text := strings.Join(failed[:min(few, len(failed))], ", ")
		if len(failed) > few {
			text += fmt.Sprintf(" and %d more", len(failed)-few)
		}
		detail("Creation failed: " + text + ".")
	}
}

// streamsTopics creates the internal topics of streams groups. Members ask with each heartbeat until the topics are there.
type streamsTopics struct {
	mu sync.Mutex // guards the rest
	// inflight are the topics whose creation is under way.
	inflight map[string]bool
	// failed has why a topic couldn't be created, for some time in which it isn't tried again.
	failed map[string]failedCreation
}

type failedCreation struct {
	text  string
	until time.Time
}

// create asks the controller for those of the topics that it hasn't been asked for, without waiting. It returns what has gone
// wrong of late with any of them.
func (s *streamsTopics) create(b *Broker, from Client, topics []kmsg.CreateTopicsRequestTopic, remember time.Duration) (failed []string) {
	cfg, now := b.config.Current(), b.clock.Now()
	q := kmsg.NewPtrCreateTopicsRequest()
	q.Version, q.TimeoutMillis = createTopicsVersion, int32(cfg.RequestTimeout.Milliseconds())
	s.mu.Lock()
	if s.inflight == nil {
		s.inflight, s.failed = make(map[string]bool), make(map[string]failedCreation)
	}
	maps.DeleteFunc(s.failed, func(_ string, f failedCreation) bool { return !now.Before(f.until) })
	for _, t := range topics {
		if f, ok := s.failed[t.Topic]; ok {
			failed = append(failed, t.Topic+" ("+f.text+")")
		} else if !s.inflight[t.Topic] {
			s.inflight[t.Topic] = true
			q.Topics = append(q.Topics, t)
		}
	}
	s.mu.Unlock()
	if len(q.Topics) == 0 {
		return failed
	}
	b.controller.Forward(from, q, now.Add(cfg.RequestTimeout), func(resp kmsg.Response, err error) {
		until := b.clock.Now().Add(remember)
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range q.Topics {
			delete(s.inflight, q.Topics[i].Topic)
			if err != nil {
				s.failed[q.Topics[i].Topic] = failedCreation{api.MessageOf(err), until}
			}
		}
		if err != nil {
			b.logger.Warn("creation of internal topics failed", slog.Any("err", err))
			return
		}
		for _, t := range resp.(*kmsg.CreateTopicsResponse).Topics {
			if t.ErrorCode == api.CodeNone {
				b.logger.Info("internal topic created", slog.String("topic", t.Topic))
				continue
			}
			text := api.ErrorFor(t.ErrorCode).Message
			if t.ErrorMessage != nil && *t.ErrorMessage != "" {
				text = *t.ErrorMessage
			}
			s.failed[t.Topic] = failedCreation{text, until}
			b.logger.Warn("creation of an internal topic failed", slog.String("topic", t.Topic), slog.String("err", text))
		}
	})
	return failed
}

func (b *Broker) streamsGroupDescribe(r *network.Request, q *kmsg.StreamsGroupDescribeRequest, reply func(kmsg.Response)) {
	resp := kmsg.NewPtrStreamsGroupDescribeResponse()
	refuse := func(id string, err *api.Error) {
		g := kmsg.NewStreamsGroupDescribeResponseGroup()
		g.Group, g.ErrorCode = id, err.Code
		resp.Groups = append(resp.Groups, g)
	}
	if !b.streamsGroups() {
		for _, id := range q.Groups {
			refuse(id, api.ErrUnsupportedVersion)
		}
		reply(resp)
		return
	}
	ids := b.allowedGroups(r, security.Describe, q.Groups, func(id string) { refuse(id, api.ErrGroupAuthorizationFailed) })
	b.groups.StreamsGroupDescribe(groupContext(r), ids, func(groups []kmsg.StreamsGroupDescribeResponseGroup) {
		const noDescription = 1
		for i := range groups {
			g := &groups[i]
			if g.ErrorCode != api.CodeNone {
				continue
			}
			if !b.seesTopology(r, g.Topology) {
				hidden := kmsg.NewStreamsGroupDescribeResponseGroup()
				text := "The described group uses topics that the client is not authorized to describe."
				hidden.Group, hidden.ErrorCode, hidden.ErrorMessage = g.Group, api.ErrTopicAuthorizationFailed.Code, &text
				*g = hidden
				continue
			}
			if q.IncludeAuthorizedOperations {
				g.AuthorizedOperations = b.operations(r, security.Group, g.Group)
			}
			if q.IncludeTopologyDescription {
				g.TopologyDescriptionStatus = noDescription
			}
		}
		resp.Groups = append(resp.Groups, groups...)
		reply(resp)
	})
}

// seesTopology says whether the client may know of all topics of a topology.
func (b *Broker) seesTopology(r *network.Request, t *kmsg.StreamsGroupDescribeResponseGroupTopology) bool {
	if t == nil {
		return true
	}
	sees := func(name string) bool { return b.allowsQuietly(r, security.Describe, security.Topic, name) }
	infos := func(list []kmsg.TopicInfo) bool {
		return !slices.ContainsFunc(list, func(i kmsg.TopicInfo) bool { return !sees(i.Topic) })
	}
	for i := range t.Subtopologies {
		s := &t.Subtopologies[i]
		if slices.ContainsFunc(slices.Concat(s.SourceTopics, s.RepartitionSinkTopics), func(name string) bool { return !sees(name) }) ||
			!infos(s.RepartitionSourceTopics) || !infos(s.StateChangelogTopics) {
			return false
		}
	}
	return true
}

// streamsTopologyUpdate refuses descriptions of topologies: there is nothing here to store them with, as in a Kafka broker without
// "group.streams.topology.description.plugin.class", and no client is asked for one.
func (b *Broker) streamsTopologyUpdate(r *network.Request, q *kmsg.StreamsGroupTopologyDescriptionUpdateRequest) kmsg.Response {
	resp := kmsg.NewPtrStreamsGroupTopologyDescriptionUpdateResponse()
	if b.streamsGroups() && !b.allowsGroup(r, security.Read, q.Group) {
		resp.ErrorCode = api.ErrGroupAuthorizationFailed.Code
		return resp
	}
	resp.ErrorCode = api.ErrUnsupportedVersion.Code
	if b.streamsGroups() {
		text := "The broker has no streams group topology description plugin configured."
		resp.ErrorMessage = &text
	}
	return resp
}
