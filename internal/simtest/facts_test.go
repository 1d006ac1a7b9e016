package simtest

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// facts is what the committed records say happened, by what replies may tell of.
type facts struct {
	topics        map[uuid.UUID]string // ever created
	names         map[string]bool      // ever created
	removed       map[uuid.UUID]bool
	registrations map[int32][]registration // of a broker, in order
	settings      map[string]bool          // values that were set; the client sets none twice
	partitions    map[partitionState]*metadata.Partition
	blocks        map[int64]bool // next producer ids that were written
	given         map[int64]bool // first producer ids that brokers were given
}

type registration struct {
	offset, epoch int64
	incarnation   uuid.UUID
}

type partitionState struct {
	topic uuid.UUID
	id    int32
	epoch int32 // of the partition
}

func (f *facts) init() {
	*f = facts{
		topics: map[uuid.UUID]string{}, names: map[string]bool{}, removed: map[uuid.UUID]bool{}, registrations: map[int32][]registration{},
		settings: map[string]bool{}, partitions: map[partitionState]*metadata.Partition{}, blocks: map[int64]bool{}, given: map[int64]bool{},
	}
}

// committed notes a committed record.
func (f *facts) committed(offset int64, m message.Message) {
	switch r := m.(type) {
	case *message.TopicRecord:
		f.topics[r.TopicID], f.names[r.Name] = r.Name, true
	case *message.RemoveTopicRecord:
		f.removed[r.TopicID] = true
	case *message.RegisterBrokerRecord:
		f.registrations[r.BrokerID] = append(f.registrations[r.BrokerID], registration{offset, r.BrokerEpoch, r.IncarnationID})
	case *message.ConfigRecord:
		if r.Value != nil {
			f.settings[*r.Value] = true
		}
	case *message.ProducerIdsRecord:
		f.blocks[r.NextProducerID] = true
	}
}

// checkDelta looks at what a committed change did to partitions and brokers.
func (w *world) checkDelta(d *metadata.Delta, img *metadata.Image) {
	if d.Topics != nil {
		for t := range d.Topics.ChangedTopics() {
			for id, p := range t.Changed() {
				w.facts.partitions[partitionState{t.ID, id, p.PartitionEpoch}] = p
				w.checkPartition(img, t, id, p)
			}
		}
	}
	if d.Cluster != nil {
		for id, b := range d.Cluster.Brokers {
			old := d.Base().Cluster.Broker(id)
			if b == nil || old == nil {
				continue
			}
			if b.Epoch < old.Epoch {
				w.fail("offset %d: broker %d goes from epoch %d back to %d", img.Offset, id, old.Epoch, b.Epoch)
			}
			if b.IncarnationID != old.IncarnationID && b.Epoch == old.Epoch {
				w.fail("offset %d: two lives of broker %d have epoch %d", img.Offset, id, b.Epoch)
			}
			if b.Fenced && !old.Fenced || b.Epoch != old.Epoch {
				w.checkFenced(img, id)
			}
		}
	}
}

// checkFenced: a broker out of service leads nothing.
func (w *world) checkFenced(img *metadata.Image, id int32) {
	b := img.Cluster.Broker(id)
	if b == nil || !b.Fenced {
		return
	}
	for t := range img.Topics.All() {
		for i, p := range t.Partitions() {
			if p.Leader == id {
				w.fail("offset %d: broker %d is fenced and leads %s-%d: %+v", img.Offset, id, t.Name, i, *p)
			}
		}
	}
}

func (w *world) checkPartition(img *metadata.Image, t *metadata.TopicDelta, id int32, p *metadata.Partition) {
	bad := func(what string) {
		w.fail("offset %d: %s: %s-%d %+v %+v %+v", img.Offset, what, t.Name, id, p.Assignment, p.InSync, *p)
	}
	twice := func(l []int32) bool {
		for i, x := range l {
			if slices.Contains(l[:i], x) {
				return true
			}
		}
		return false
	}
	within := func(l, of []int32) bool {
		return !slices.ContainsFunc(l, func(x int32) bool { return !slices.Contains(of, x) })
	}
	switch {
	case len(p.Replicas) == 0, twice(p.Replicas), twice(p.ISR), twice(p.ELR):
		bad("replicas, ISR or ELR are empty or have a broker twice")
	case !within(p.ISR, p.Replicas):
		bad("a broker is in the ISR and no replica")
	case p.Leader >= 0 && !slices.Contains(p.ISR, p.Leader):
		bad("the leader is not in the ISR")
	case len(p.Directories) != len(p.Replicas) && len(p.Directories) > 0:
		bad("there are not as many directories as replicas")
	case slices.ContainsFunc(p.ISR, func(x int32) bool { return slices.Contains(p.ELR, x) }):
		bad("a broker is in ISR and ELR")
	}
	if p.Leader >= 0 {
		if b := img.Cluster.Broker(p.Leader); b == nil || b.Fenced {
			bad("the leader is out of service")
		}
	}
	var old *metadata.Partition
	if t.Old != nil {
		old = t.Old.Partition(id)
	}
	if old == nil {
		return
	}
	switch {
	case p.PartitionEpoch < old.PartitionEpoch, p.LeaderEpoch < old.LeaderEpoch:
		bad("an epoch goes back")
	case p.Leader != old.Leader && p.LeaderEpoch == old.LeaderEpoch:
		bad("the leader changes without a new leader epoch")
	}
	// Who is elected where nobody led has what is committed, or is told that it may not have: there was no leader to say that
	// others are in sync. Only changes are looked at that are one.
	if p.PartitionEpoch == old.PartitionEpoch+1 && p.Leader >= 0 && old.Leader < 0 && p.LeaderRecoveryState == metadata.RecoveryDone &&
		!slices.Contains(old.ISR, p.Leader) && !slices.Contains(old.ELR, p.Leader) {
		bad("a replica leads that was not in sync, and isn't told to recover")
	}
}

// checkReply holds a reply of a controller against what is committed. end is where its log ended when the request came.
func (w *world) checkReply(p *proc, req kmsg.Request, resp kmsg.Response, end int64) {
	f := &w.facts
	bad := func(what string) {
		w.fail("controller %d replies to a %T with %s, which is not committed: %+v", p.n.id, req, what, resp)
	}
	// fresh says whether a broker's epoch was the latest as far as the controller's log went.
	fresh := func(id int32, epoch int64) {
		known := false
		for _, r := range f.registrations[id] {
			known = known || r.epoch == epoch
			if r.epoch > epoch && r.offset < end {
				w.fail("controller %d serves broker %d in epoch %d, and %d is later: %T", p.n.id, id, epoch, r.epoch, req)
			}
		}
		if !known {
			bad("a broker epoch that was not given")
		}
	}
	switch r := resp.(type) {
	case *kmsg.CreateTopicsResponse:
		for _, t := range r.Topics {
			switch {
			case t.ErrorCode == 0 && !req.(*kmsg.CreateTopicsRequest).ValidateOnly && f.topics[t.TopicID] != t.Topic:
				bad("a new topic")
			case t.ErrorCode == api.CodeOf(api.ErrTopicAlreadyExists) && !f.names[t.Topic]:
				bad("a topic that exists")
			}
		}
	case *kmsg.DeleteTopicsResponse:
		for _, t := range r.Topics {
			if t.ErrorCode == 0 && !f.removed[t.TopicID] {
				bad("a topic that is gone")
			}
		}
	case *kmsg.IncrementalAlterConfigsResponse:
		for i, x := range r.Resources {
			if x.ErrorCode != 0 {
				continue
			}
			for _, c := range req.(*kmsg.IncrementalAlterConfigsRequest).Resources[i].Configs {
				if c.Op == kmsg.IncrementalAlterConfigOpSet && !f.settings[*c.Value] {
					bad("a setting")
				}
			}
		}
	case *kmsg.BrokerRegistrationResponse:
		if r.ErrorCode != 0 {
			return
		}
		q := req.(*kmsg.BrokerRegistrationRequest)
		if !slices.ContainsFunc(f.registrations[q.BrokerID], func(x registration) bool {
			return x.epoch == r.BrokerEpoch && x.incarnation == q.IncarnationID
		}) {
			bad("a registration")
		}
	case *kmsg.BrokerHeartbeatResponse:
		if r.ErrorCode == 0 {
			q := req.(*kmsg.BrokerHeartbeatRequest)
			fresh(q.BrokerID, q.BrokerEpoch)
		}
	case *kmsg.AllocateProducerIDsResponse:
		if r.ErrorCode != 0 {
			return
		}
		q := req.(*kmsg.AllocateProducerIDsRequest)
		fresh(q.BrokerID, q.BrokerEpoch)
		if !f.blocks[r.ProducerIDStart+int64(r.ProducerIDLen)] {
			bad("producer ids")
		}
		if f.given[r.ProducerIDStart] {
			w.fail("controller %d gives producer ids from %d on, again", p.n.id, r.ProducerIDStart)
		}
		f.given[r.ProducerIDStart] = true
	case *kmsg.AlterPartitionResponse:
		q := req.(*kmsg.AlterPartitionRequest)
		if r.ErrorCode != 0 {
			return
		}
		fresh(q.BrokerID, q.BrokerEpoch)
		for _, t := range r.Topics {
			for _, x := range t.Partitions {
				if x.ErrorCode == 0 {
					is := f.partitions[partitionState{t.TopidID, x.Partition, x.PartitionEpoch}]
					if is == nil || is.Leader != x.LeaderID || is.LeaderEpoch != x.LeaderEpoch || !slices.Equal(is.ISR, x.ISR) {
						bad("a partition")
					}
				}
			}
		}
	}
}
