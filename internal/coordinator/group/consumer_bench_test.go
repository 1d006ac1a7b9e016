package group

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// benchTopics tells a coordinator of one topic.
func benchTopics(c *Coordinator, name string, size int) {
	w := world{img: metadata.EmptyImage()}
	d := w.set(map[string]int{name: size})
	c.MetadataUpdated(d, w.img)
}

// consumer is a member that does as it is told.
type consumer struct {
	req  kmsg.ConsumerGroupHeartbeatRequest
	told []kmsg.ConsumerGroupHeartbeatResponseAssignmentTopic
}

func newConsumer(group, id string, topic string) *consumer {
	c := &consumer{req: kmsg.NewConsumerGroupHeartbeatRequest()}
	c.req.Group, c.req.MemberID, c.req.RebalanceTimeoutMillis = group, id, 60_000
	c.req.SubscribedTopicNames, c.req.Topics = []string{topic}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	return c
}

// beat sends a heartbeat and takes the answer in.
func (c *consumer) beat(tb testing.TB, to *Coordinator) {
	q := c.req
	to.ConsumerGroupHeartbeat(&Context{ClientID: "c", ClientHost: "/10.0.0.1", Version: 1}, &q, func(r *kmsg.ConsumerGroupHeartbeatResponse) {
		if r.ErrorCode != api.CodeNone {
			tb.Fatalf("%s: error %d %s", c.req.MemberID, r.ErrorCode, *r.ErrorMessage)
		}
		c.req.MemberEpoch, c.req.RebalanceTimeoutMillis, c.req.SubscribedTopicNames, c.req.Topics = r.MemberEpoch, -1, nil, nil
		if r.Assignment == nil {
			return
		}
		c.told = r.Assignment.Topics
		c.req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		for _, t := range c.told {
			c.req.Topics = append(c.req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: t.TopicID, Partitions: t.Partitions})
		}
	})
}

func groupState(c *Coordinator, group string) (state string) {
	c.ConsumerGroupDescribe(&Context{}, []string{group}, func(d []kmsg.ConsumerGroupDescribeResponseGroup) { state = d[0].State })
	return state
}

func BenchmarkConsumerHeartbeat(b *testing.B) {
	c := startBench(b)
	benchTopics(c, "orders", 1)
	m := newConsumer("g", "m", "orders")
	m.beat(b, c)
	m.beat(b, c)
	b.ReportAllocs()
	for b.Loop() {
		m.beat(b, c)
	}
}

// BenchmarkThousandMembers has a thousand members join one group, and then one more.
func BenchmarkThousandMembers(b *testing.B) {
	for _, name := range []string{"uniform", "range"} {
		b.Run(name, func(b *testing.B) {
			const members, partitions = 1000, 1000
			rounds := 0
			for b.Loop() {
				c := startBench(b)
				c.cfg.Consumer.AssignmentInterval = 0
				c.cfg.Assignors = []string{name}
				benchTopics(c, "orders", partitions)
				var all []*consumer
				for i := range members {
					m := newConsumer("g", fmt.Sprintf("member-%04d-0123456789ab", i), "orders")
					all = append(all, m)
					m.beat(b, c)
				}
				for groupState(c, "g") != "Stable" {
					rounds++
					for _, m := range all {
						m.beat(b, c)
					}
				}
				last := newConsumer("g", "last", "orders")
				all = append(all, last)
				last.beat(b, c)
				for groupState(c, "g") != "Stable" {
					for _, m := range all {
						m.beat(b, c)
					}
				}
			}
			b.ReportMetric(float64(rounds)/float64(b.N), "rounds/op")
		})
	}
}

// BenchmarkTenThousandConsumerGroups reports what groups with a member that reads a topic of three partitions take in memory.
func BenchmarkTenThousandConsumerGroups(b *testing.B) {
	const groups = 10_000
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		c := startBench(b)
		benchTopics(c, "orders", 3)
		for i := range groups {
			newConsumer(fmt.Sprint("group-", i), "member-0123456789ab", "orders").beat(b, c)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/groups, "B/group")
		runtime.KeepAlive(c)
	}
}

// BenchmarkUniform assigns ten thousand partitions to a thousand members of which one is new.
func BenchmarkUniform(b *testing.B) {
	for _, alike := range []bool{true, false} {
		b.Run(fmt.Sprint("alike=", alike), func(b *testing.B) {
			a := &assignment{alike: alike, size: func(uuid.UUID) int { return 1000 }}
			var topics []uuid.UUID
			for i := range 10 {
				topics = append(topics, testTopic(i))
			}
			for i := range 1000 {
				m := assignee{id: fmt.Sprint("m", i)}
				for j, t := range topics {
					if alike || (i+j)%3 > 0 {
						m.topics = append(m.topics, t)
					}
				}
				a.members = append(a.members, m)
			}
			last := len(a.members) - 1
			all := a.members
			a.members = all[:last]
			for i, t := range uniform(a) {
				all[i].now = t
			}
			a.members = all
			b.ReportAllocs()
			for b.Loop() {
				uniform(a)
			}
		})
	}
}
