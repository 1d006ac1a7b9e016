package quorum

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestDivergence: brokers of both kinds lead and follow each other, and their logs part. A leader whose answers don't reach its
// follower takes records that nobody else gets, and is killed; the follower leads and takes others at the same offsets; when the
// first one is back, it cuts off what it alone has, by leader epochs. Each kind is once the one that cuts, with the follower in
// sync; and once with the follower out of the ISR and elected nevertheless, when records are lost that were committed, which the
// owner of the topic has agreed to. Each kind lets the other out of the ISR and in again.
func TestDivergence(t *testing.T) {
	t.Parallel()
	c := newMeshed(t, []kind{gregorKind, kafkaKind, gregorKind}, "replica.lag.time.max.ms=7000", "auto.leader.rebalance.enable=false", "min.insync.replicas=1")
	c.run(c.members...)
	g, k := c.members[0], c.members[1]
	d := &divergence{cluster: c, want: map[string][]string{}}
	topics := []string{"by-gregor", "by-kafka"} // by the kind that leads it first
	c.create(topics[0], [][]int32{{g.id, k.id}}, nil)
	c.create(topics[1], [][]int32{{k.id, g.id}}, nil)
	c.inSync(topics...)

	// The follower is in sync, and the leader's last records don't reach it.
	for _, leader := range []*member{g, k} {
		topic, follower := topics[0], d.other(leader)
		d.write(topic, "kept", 20)
		for {
			begin := time.Now()
			c.silence(leader, follower)
			lost := d.produce(topic, kgo.LeaderAck(), "lost", 10)
			if time.Since(begin) < 5*time.Second {
				break
			}
			// On a machine as slow as this the follower may be out of the ISR by now, and would not be elected.
			c.mesh.cut(nil)
			d.want[topic] = append(d.want[topic], lost...)
			c.inSync(topics...)
		}
		leader.kill()
		c.mesh.cut(nil)
		d.state(topic, follower, follower.id)
		d.write(topic, "instead", 10) // at offsets of what is lost
		c.run(leader)
		c.inSync(topics...)
		d.compare(topic)
	}

	// Each lets the other out of the ISR, and in again.
	c.preferred()
	d.state(topics[0], g, g.id, g.id, k.id)
	d.state(topics[1], k, k.id, g.id, k.id)
	c.silence(g, k, k, g)
	for i, leader := range []*member{g, k} {
		d.write(topics[i], "alone", 15) // nobody is out of sync as long as there is nothing to have
		d.state(topics[i], leader, leader.id, leader.id)
	}
	c.mesh.cut(nil)
	c.inSync(topics...)
	for _, topic := range topics {
		d.write(topic, "together", 15)
		d.compare(topic)
	}

	// The follower is out of sync, and elected nevertheless.
	for i, leader := range []*member{g, k} {
		d.unclean(topics[i], leader)
		c.inSync(topics...)
		d.compare(topics[i])
		c.preferred()
		d.state(topics[i], leader, leader.id)
	}

	for _, topic := range topics {
		d.write(topic, "last", 10)
		d.compare(topic)
	}
	for _, m := range c.members {
		m.kill()
	}
	for _, topic := range topics {
		c.sameLogs(topic+"-0", []int32{g.id, k.id})
	}
}

// silence takes pairs of members: what the first one says as a broker doesn't reach the second one.
func (c *cluster) silence(pairs ...*member) {
	cuts := map[lane]fault{}
	for i := 0; i < len(pairs); i += 2 {
		cuts[lane{pairs[i].id, pairs[i+1].id, "INTERNAL"}] = swallow
		c.logf("%s can't hear %s", pairs[i+1], pairs[i])
	}
	c.mesh.cut(cuts)
}

// divergence knows what there must be in topics with one partition and two replicas, on the first two members.
type divergence struct {
	*cluster
	want map[string][]string
	n    int
}

func (d *divergence) other(m *member) *member { return d.members[2-m.id] }

// produce writes n records and waits for the acknowledgements, as acks wants them.
func (d *divergence) produce(topic string, acks kgo.Acks, what string, n int) (values []string) {
	d.tb.Helper()
	opts := []kgo.Opt{kgo.SeedBrokers(d.members[0].addr, d.members[1].addr, d.members[2].addr), kgo.RequiredAcks(acks), kgo.MetadataMinAge(50 * time.Millisecond), kgo.ClientID("writer"),
		kgo.RequestTimeoutOverhead(5 * time.Second), kgo.RecordDeliveryTimeout(patience)}
	if acks != kgo.AllISRAcks() {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		d.tb.Fatal(err)
	}
	defer cl.Close()
	d.n++
	for i := range n {
		value := fmt.Sprintf("%s-%d-%d", what, d.n, i)
		if err := cl.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
			d.tb.Fatalf("produce %s to %s: %v", value, topic, err)
		}
		values = append(values, value)
	}
	d.logf("%s: %d records %q", topic, n, what)
	return values
}

// write writes records that will be there.
func (d *divergence) write(topic, what string, n int) {
	d.tb.Helper()
	d.want[topic] = append(d.want[topic], d.produce(topic, kgo.AllISRAcks(), what, n)...)
}

// state waits until a member says who leads a topic, and who is in sync, if that is given.
func (d *divergence) state(topic string, m *member, leader int32, isr ...int32) {
	d.tb.Helper()
	d.await(fmt.Sprintf("%s to be led by %d, ISR %v", topic, leader, isr), func() (string, bool) {
		t, _, err := m.description(topic)
		if err != nil {
			return err.Error(), false
		}
		p := t.Partitions[0]
		slices.Sort(p.ISR)
		return fmt.Sprintf("%s says that %d leads, ISR %v", m, p.Leader, p.ISR), p.Leader == leader && (isr == nil || slices.Equal(p.ISR, isr))
	})
	d.logf("%s is led by %d (-1: nobody)", topic, leader)
}

// unclean has the follower elected, which has not all that is committed, and the leader follow it then.
func (d *divergence) unclean(topic string, leader *member) {
	d.tb.Helper()
	follower := d.other(leader)
	d.silence(leader, follower)
	d.produce(topic, kgo.AllISRAcks(), "lost", 25)
	d.state(topic, leader, leader.id, leader.id)
	leader.kill()
	d.mesh.cut(nil)
	d.state(topic, follower, -1)
	d.box.Must(d.tb, "leader-election", "--bootstrap-server", follower.addr, "--election-type", "unclean", "--topic", topic, "--partition", "0")
	d.state(topic, follower, follower.id)
	d.write(topic, "instead", 10)
	d.run(leader)
}

// compare reads all that there is in a topic and compares it with what must be there.
func (d *divergence) compare(topic string) {
	d.tb.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(d.members[0].addr, d.members[1].addr), kgo.ConsumeTopics(topic), kgo.ClientID("reader"))
	if err != nil {
		d.tb.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	want := d.want[topic]
	for len(want) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			d.tb.Fatalf("%s: %d records are missing: %v", topic, len(want), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if len(want) == 0 || string(r.Value) != want[0] {
				d.tb.Fatalf("%s: offset %d is %q, want %.1q", topic, r.Offset, r.Value, want)
			}
			want = want[1:]
		})
	}
}
