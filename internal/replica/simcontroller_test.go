package replica

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// serve answers as a broker's handlers do, but without waiting.
func (w *simWorld) serve(l *simBroker, q kmsg.Request) kmsg.Response {
	switch q := q.(type) {
	case *kmsg.ListOffsetsRequest:
		resp := kmsg.NewPtrListOffsetsResponse()
		for _, t := range q.Topics {
			rt := kmsg.NewListOffsetsResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewListOffsetsResponseTopicPartition()
				rp.Partition = p.Partition
				part, err := l.m.Partition(t.Topic, p.Partition)
				if err == nil {
					var found OffsetFound
					found, err = part.Offset(p.Timestamp, Follower, false, p.CurrentLeaderEpoch)
					rp.Offset = found.Offset
				}
				rp.ErrorCode = api.CodeOf(err)
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.FetchRequest:
		return w.serveFetch(l, q)
	}
	panic("no such request")
}

func (w *simWorld) serveFetch(l *simBroker, q *kmsg.FetchRequest) kmsg.Response {
	by := Reader{Follower: q.ReplicaState.ID, BrokerEpoch: q.ReplicaState.Epoch}
	if w.broken == brokenBrokerEpoch {
		by.BrokerEpoch = -1
	}
	var wanted []FetchPartition
	for _, t := range q.Topics {
		for _, p := range t.Partitions {
			spec := FetchSpec{FetchOffset: p.FetchOffset, LogStartOffset: p.LogStartOffset, LeaderEpoch: p.CurrentLeaderEpoch,
				LastFetchedEpoch: p.LastFetchedEpoch, MaxBytes: p.PartitionMaxBytes}
			if w.broken == brokenTruncation || w.broken == brokenComparison {
				spec.LastFetchedEpoch = -1
			}
			wanted = append(wanted, FetchPartition{Key: FetchKey{TopicID: t.TopicID, Partition: p.Partition}, Spec: spec})
		}
	}
	var forgotten []FetchKey
	for _, t := range q.ForgottenTopics {
		for _, p := range t.Partitions {
			forgotten = append(forgotten, FetchKey{TopicID: t.TopicID, Partition: p})
		}
	}
	resp := kmsg.NewPtrFetchResponse()
	ctx, parts := l.m.Sessions().Begin(w.now(), FetchSessionRequest{SessionID: q.SessionID, Epoch: q.SessionEpoch, Privileged: true,
		UsesTopicIDs: true, Forgotten: forgotten}, wanted, nil)
	if err := ctx.Err(); err != nil {
		resp.ErrorCode = err.Code
		return resp
	}
	for i := range parts {
		p := &parts[i]
		if p.Partition == nil || p.Partition.Gone() {
			p.Partition = l.m.TopicByID(p.Key.TopicID).Partition(p.Key.Partition)
		}
		if p.Partition == nil {
			p.Result = FetchResult{Err: api.ErrUnknownTopicID, HighWatermark: -1, LogStartOffset: -1, PreferredReadReplica: -1}
			continue
		}
		p.Partition.Read(p.Spec, &by, ReadLimits{MaxBytes: 1 << 20, MinOne: true, Isolation: log.ReadLogEnd}, &p.Result)
		w.breakState(p.Partition)
	}
	id, err := ctx.Finish(w.now(), parts)
	if err != nil {
		resp.ErrorCode = err.Code
		return resp
	}
	resp.SessionID = id
	topic := kmsg.NewFetchResponseTopic()
	topic.TopicID = simTopic
	for i := range parts {
		r := &parts[i].Result
		if !r.Send {
			r.Release()
			continue
		}
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition, p.HighWatermark, p.LogStartOffset = parts[i].Key.Partition, r.HighWatermark, r.LogStartOffset
		if r.Err != nil {
			p.ErrorCode = r.Err.Code
		}
		if r.Diverging != nil {
			p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = r.Diverging.Epoch, r.Diverging.EndOffset
		}
		var rerr error
		if p.RecordBatches, rerr = r.Slice.Bytes(nil); rerr != nil {
			w.t.Fatal(rerr)
		}
		r.Release()
		topic.Partitions = append(topic.Partitions, p)
	}
	resp.Topics = append(resp.Topics, topic)
	return resp
}

// The controller's model.

func (c *simController) commit(records ...message.Message) int64 {
	d := metadata.NewDelta(c.image)
	for _, r := range records {
		if err := d.Replay(r); err != nil {
			panic(err)
		}
	}
	at := int64(len(c.log))
	c.image = d.Apply(metadata.Provenance{Offset: at, BatchAligned: true})
	c.log = append(c.log, simEntry{records, at})
	return at
}

func (c *simController) active(id int32) bool {
	b := c.image.Cluster.Broker(id)
	return b != nil && b.Active()
}

// register begins a broker's next life. One that may have lost records is not counted on any more. (The real controller can't
// tell a killed process from a power failure, and so gives up on partitions that this one saves.)
func (c *simController) register(id int32) (epoch int64) {
	if c.image.Topics.ByID(simTopic) != nil {
		c.remove(id, c.dirty[id])
	}
	c.dirty[id] = false
	epoch = int64(len(c.log)) + 1
	c.commit(&message.RegisterBrokerRecord{BrokerID: id, BrokerEpoch: epoch, Fenced: true, IncarnationID: uuid.UUID{0: byte(epoch), 1: byte(id)},
		EndPoints: []message.RegisterBrokerRecordBrokerEndpoint{{Name: "PLAINTEXT", Host: "h", Port: uint16(id)}}})
	return epoch
}

func (c *simController) fence(id int32) {
	c.remove(id, false)
	c.commit(&message.BrokerRegistrationChangeRecord{BrokerID: id, BrokerEpoch: c.image.Cluster.Broker(id).Epoch, Fenced: 1})
}

func (c *simController) unfence(id int32) {
	c.commit(&message.BrokerRegistrationChangeRecord{BrokerID: id, BrokerEpoch: c.image.Cluster.Broker(id).Epoch, Fenced: -1})
	if c.image.Topics.ByID(simTopic) == nil {
		return
	}
	for i := range int32(simPartitions) {
		if c.partition(i).Leader < 0 {
			c.change(i, c.partition(i).ISR)
		}
	}
}

func (c *simController) partition(i int32) *metadata.Partition {
	return c.image.Topics.ByID(simTopic).Partition(i)
}

// spare says whether all partitions have another replica than id's with everything.
func (c *simController) spare(id int32) bool {
	if c.image.Topics.ByID(simTopic) == nil {
		return false
	}
	for i := range int32(simPartitions) {
		n := 0
		for _, r := range append(slices.Clone(c.partition(i).ISR), c.elr[i]...) {
			if r != id && !c.dirty[r] {
				n++
			}
		}
		if n == 0 {
			return false
		}
	}
	return true
}

// remove takes a broker out of all ISRs. One that is unclean has perhaps lost records and is not eligible either.
func (c *simController) remove(id int32, unclean bool) {
	for i := range int32(simPartitions) {
		isr := without(c.partition(i).ISR, id)
		if unclean {
			if elr := without(c.elr[i], id); len(isr)+len(elr) > 0 {
				c.elr[i] = elr
			} else {
				isr = c.partition(i).ISR // it is the last that has anything
			}
		}
		c.changeBy(i, isr, id, unclean)
	}
}

func without(s []int32, id int32) []int32 {
	return slices.DeleteFunc(slices.Clone(s), func(x int32) bool { return x == id })
}

func (c *simController) change(i int32, isr []int32) { c.changeBy(i, isr, -1, false) }

// changeBy sets an ISR, keeps those eligible that leave one which is too small, and elects a leader if need be. gone is a broker
// that is on its way out, and lost says that its records may be lost.
func (c *simController) changeBy(i int32, isr []int32, gone int32, lost bool) {
	p := c.partition(i)
	r := message.NewPartitionChangeRecord()
	r.PartitionID, r.TopicID = i, simTopic
	elr := c.elr[i]
	if len(isr) >= simMinISR {
		elr = nil
	} else {
		for _, id := range p.ISR {
			if !slices.Contains(isr, id) && !slices.Contains(elr, id) && !(lost && id == gone) {
				elr = append(slices.Clone(elr), id)
			}
		}
	}
	may := func(id int32) bool { return id != gone && c.active(id) }
	leader := p.Leader
	if leader < 0 || !slices.Contains(isr, leader) || !may(leader) {
		leader = metadata.NoLeader
		for _, id := range p.Replicas {
			if slices.Contains(isr, id) && may(id) {
				leader = id
				break
			}
		}
		if leader == metadata.NoLeader {
			for _, id := range p.Replicas {
				if slices.Contains(elr, id) && may(id) {
					leader = id
					isr, elr = append(slices.Clone(isr), id), without(elr, id)
					break
				}
			}
		}
	}
	if slices.Equal(isr, p.ISR) && leader == p.Leader {
		c.elr[i] = elr
		return
	}
	if !slices.Equal(isr, p.ISR) {
		r.ISR = isr
	}
	if leader != p.Leader {
		r.Leader = leader
	}
	c.elr[i] = elr
	c.commit(r)
}

func (c *simController) alterPartition(w *simWorld, q *kmsg.AlterPartitionRequest) *kmsg.AlterPartitionResponse {
	resp := kmsg.NewPtrAlterPartitionResponse()
	if b := c.image.Cluster.Broker(q.BrokerID); b == nil || b.Epoch != q.BrokerEpoch {
		resp.ErrorCode = api.ErrStaleBrokerEpoch.Code
		return resp
	}
	for _, t := range q.Topics {
		rt := kmsg.NewAlterPartitionResponseTopic()
		rt.TopidID = t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewAlterPartitionResponseTopicPartition()
			rp.Partition = p.Partition
			if err := c.alter(w, q.BrokerID, &p); err != nil {
				rp.ErrorCode = err.Code
			} else {
				now := c.partition(p.Partition)
				rp.LeaderID, rp.LeaderEpoch, rp.PartitionEpoch, rp.ISR = now.Leader, now.LeaderEpoch, now.PartitionEpoch, now.ISR
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (c *simController) alter(w *simWorld, from int32, p *kmsg.AlterPartitionRequestTopicPartition) *api.Error {
	now := c.partition(p.Partition)
	switch {
	case p.LeaderEpoch > now.LeaderEpoch, p.PartitionEpoch > now.PartitionEpoch:
		return api.ErrNotController
	case p.LeaderEpoch < now.LeaderEpoch:
		return api.ErrFencedLeaderEpoch
	case from != now.Leader:
		return api.ErrInvalidRequest
	case p.PartitionEpoch < now.PartitionEpoch:
		return api.ErrInvalidUpdateVersion
	}
	var isr []int32
	for _, b := range p.NewEpochISR {
		r := c.image.Cluster.Broker(b.BrokerID)
		if !r.Active() || b.BrokerEpoch != -1 && b.BrokerEpoch != r.Epoch {
			return api.ErrIneligibleReplica
		}
		isr = append(isr, b.BrokerID)
	}
	w.logf("controller: partition %d gets ISR %v, had %v", p.Partition, isr, now.ISR)
	c.change(p.Partition, isr)
	return nil
}
