package broker

import (
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/coordinator"
	"gregor/internal/log"
	"gregor/internal/network"
)

// handler serves the requests of one API.
type handler func(b *Broker, r *network.Request)

// answer is the handler of an API whose response is there at once.
func answer[Q kmsg.Request](f func(b *Broker, r *network.Request, q Q) kmsg.Response) handler {
	return func(b *Broker, r *network.Request) {
		q, err := api.DecodeRequest(r.Key, r.Version, r.Body)
		if err != nil {
			r.Close(err)
			return
		}
		r.Reply(f(b, r, q.(Q)))
	}
}

// later is the handler of an API whose response may have to wait: f calls reply exactly once, then or afterwards.
func later[Q kmsg.Request](f func(b *Broker, r *network.Request, q Q, reply func(kmsg.Response))) handler {
	return func(b *Broker, r *network.Request) {
		q, err := api.DecodeRequest(r.Key, r.Version, r.Body)
		if err != nil {
			r.Close(err)
			return
		}
		f(b, r, q.(Q), func(resp kmsg.Response) { r.Reply(resp) })
	}
}

// Handle serves one request. It implements network.Handler.
func (b *Broker) Handle(r *network.Request) {
	defer func() {
		if v := recover(); v != nil {
			switch v.(type) {
			case *log.Broken, *coordinator.Broken:
				panic(v)
			}
			b.logger.Error("panic in a request handler", slog.String("api", r.Key.String()), slog.Int("version", int(r.Version)),
				slog.String("client_id", r.ClientID), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			// The handler may have replied before it failed, and a request ends only once.
			defer func() { _ = recover() }()
			r.Close(fmt.Errorf("panic: %v", v))
		}
	}()
	h := b.handlers[r.Key]
	if h == nil {
		r.Close(fmt.Errorf("%s: no handler", r.Key))
		return
	}
	h(b, r)
}

// handlers is the table of all APIs that a broker serves.
func handlers() map[api.Key]handler {
	m := adminHandlers()
	maps.Copy(m, map[api.Key]handler{
		api.ApiVersions: answer((*Broker).apiVersions),
		api.Metadata:    answer((*Broker).metadata),

		// Records.
		api.Produce:              (*Broker).produce,
		api.Fetch:                (*Broker).fetch,
		api.ListOffsets:          answer((*Broker).listOffsets),
		api.OffsetForLeaderEpoch: answer((*Broker).offsetForLeaderEpoch),
		api.DeleteRecords:        later((*Broker).deleteRecords),
		api.InitProducerId:       later((*Broker).initProducerID),
		api.DescribeProducers:    answer((*Broker).describeProducers),
		api.DescribeLogDirs:      answer((*Broker).describeLogDirs),
		api.AlterReplicaLogDirs:  answer((*Broker).alterReplicaLogDirs),

		// Groups.
		api.FindCoordinator: answer((*Broker).findCoordinator),
		api.JoinGroup:       later((*Broker).joinGroup),
		api.SyncGroup:       later((*Broker).syncGroup),
		api.Heartbeat:       later((*Broker).heartbeat),
		api.LeaveGroup:      later((*Broker).leaveGroup),
		api.OffsetCommit:    later((*Broker).offsetCommit),
		api.OffsetFetch:     later((*Broker).offsetFetch),
		api.OffsetDelete:    later((*Broker).offsetDelete),
		api.ListGroups:      later((*Broker).listGroups),
		api.DescribeGroups:  later((*Broker).describeGroups),
		api.DeleteGroups:    later((*Broker).deleteGroups),

		api.ConsumerGroupHeartbeat: later((*Broker).consumerGroupHeartbeat),
		api.ConsumerGroupDescribe:  later((*Broker).consumerGroupDescribe),

		api.StreamsGroupHeartbeat:                 later((*Broker).streamsGroupHeartbeat),
		api.StreamsGroupDescribe:                  later((*Broker).streamsGroupDescribe),
		api.StreamsGroupTopologyDescriptionUpdate: answer((*Broker).streamsTopologyUpdate),
	})
	return m
}

// Keys lists the APIs that a broker listener serves.
func Keys() []api.Key { return slices.Sorted(maps.Keys(handlers())) }
