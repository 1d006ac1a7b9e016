package group

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/metadata"
)

func (n *node) beat(q *kmsg.ConsumerGroupHeartbeatRequest) *kmsg.ConsumerGroupHeartbeatResponse {
	n.Helper()
	return answer(n, func(reply func(*kmsg.ConsumerGroupHeartbeatResponse)) {
		n.ConsumerGroupHeartbeat(&Context{ClientID: "c", ClientHost: "/h", Version: 1}, q, reply)
	})
}

func joinOf(group, member string) *kmsg.ConsumerGroupHeartbeatRequest {
	q := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	q.Group, q.MemberID, q.RebalanceTimeoutMillis = group, member, 60_000
	q.SubscribedTopicNames, q.Topics = []string{"orders"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	return q
}

// The coordinator at all stages of its life.
func TestConsumerGroupOverTheRuntime(t *testing.T) {
	inNode(t, func(n *node) {
		code := func(want *api.Error) {
			n.Helper()
			if r := n.beat(joinOf("g", "m")); r.ErrorCode != want.Code {
				n.Errorf("error %d, want %v", r.ErrorCode, want)
			}
		}
		code(api.ErrCoordinatorNotAvailable)
		n.Start(nodePartitions)
		code(api.ErrNotCoordinator)
		w := world{img: metadata.EmptyImage()}
		n.MetadataUpdated(w.set(map[string]int{"orders": 2}), w.img)
		n.lead()
		r := n.beat(joinOf("g", "m"))
		if r.ErrorCode != 0 || r.MemberEpoch != 2 || r.Assignment == nil || len(r.Assignment.Topics[0].Partitions) != 2 {
			n.Fatalf("got %+v", r)
		}
		// The regular expression is resolved in the background.
		q := joinOf("g", "x")
		re := "or.*"
		q.SubscribedTopicNames, q.SubscribedTopicRegex = nil, &re
		n.beat(q)
		d := answer(n, func(reply func([]kmsg.ConsumerGroupDescribeResponseGroup)) {
			n.ConsumerGroupDescribe(&Context{}, []string{"g", "", "none"}, reply)
		})
		if d[0].Epoch != 3 || len(d[0].Members) != 2 || d[1].ErrorCode != api.ErrInvalidGroupID.Code || d[2].ErrorCode != api.ErrGroupIDNotFound.Code {
			n.Fatalf("got %+v", d)
		}
		// More partitions are seen with the next heartbeat.
		n.MetadataUpdated(w.set(map[string]int{"orders": 3}), w.img)
		time.Sleep(2 * time.Second)
		h := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		h.Group, h.MemberID, h.MemberEpoch, h.RebalanceTimeoutMillis = "g", "m", 2, -1
		if r := n.beat(h); r.ErrorCode != 0 || r.MemberEpoch != 4 {
			n.Fatalf("got %+v", r)
		}
		h.MemberEpoch = 4
		// A coordinator that takes over knows the members, and forgets those who don't come.
		p, _ := n.PartitionFor("g")
		n.Resigned(p, 5)
		synctest.Wait()
		code(api.ErrNotCoordinator)
		n.Elected(p, 6)
		synctest.Wait()
		if r := n.beat(h); r.ErrorCode != 0 {
			n.Fatalf("got %+v", r)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		d = answer(n, func(reply func([]kmsg.ConsumerGroupDescribeResponseGroup)) {
			n.ConsumerGroupDescribe(&Context{}, []string{"g"}, reply)
		})
		if d[0].State != "Empty" {
			n.Fatalf("got %+v", d)
		}
		if s := n.Stats(); s.Groups[[2]string{"Consumer", "Empty"}] != 1 {
			n.Errorf("stats %+v", s)
		}
	})
}

// Many members at once, with topics and regular expressions changing: for the race detector.
func TestConsumerGroupsAtOnce(t *testing.T) {
	inNode(t, func(n *node) {
		w := world{img: metadata.EmptyImage()}
		n.MetadataUpdated(w.set(map[string]int{"orders": 8}), w.img)
		n.lead()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				m := newConsumer(strings.Repeat("g", i%3+1), string(rune('a'+i)), "orders")
				if i%2 == 0 {
					re := "o.*"
					m.req.SubscribedTopicRegex = &re
				}
				for range 30 {
					var answered sync.WaitGroup
					answered.Add(1)
					q := m.req
					n.ConsumerGroupHeartbeat(&Context{Version: 1}, &q, func(r *kmsg.ConsumerGroupHeartbeatResponse) {
						defer answered.Done()
						if r.ErrorCode == 0 {
							m.req.MemberEpoch = r.MemberEpoch
						}
					})
					answered.Wait()
					time.Sleep(500 * time.Millisecond)
				}
			})
		}
		for size := 9; size < 15; size++ {
			time.Sleep(2 * time.Second)
			n.MetadataUpdated(w.set(map[string]int{"orders": size, "other": 1}), w.img)
			n.ListGroups(&Context{Version: 5}, kmsg.NewPtrListGroupsRequest(), func(*kmsg.ListGroupsResponse) {})
		}
		wg.Wait()
	})
}
