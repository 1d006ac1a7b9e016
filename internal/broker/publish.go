package broker

import (
	"gregor/internal/metadata"
)

// Publish makes the broker answer from img, d being how it came about. The replica manager must have been given it before.
// It must be called from one goroutine, in order.
func (b *Broker) Publish(d *metadata.Delta, img *metadata.Image) {
	b.published.Store(img)
	b.startGroups(img)
	b.groups.MetadataUpdated(d.Topics, img)
	if d.Topics != nil {
		b.leadGroups(d.Topics)
	}
}

// startGroups lets the group coordinator answer as of the first image: from then on it is known how many partitions its topic
// has, or will have when it is created.
func (b *Broker) startGroups(img *metadata.Image) {
	n := b.config.Current().GroupCoordinator.OffsetsPartitions
	if t := img.Topics.ByName(offsetsTopic); t != nil {
		n = int32(t.Len())
	}
	b.groups.Start(n)
}

// leadGroups tells the group coordinator which partitions of its topic this broker leads from now on, and which topics are gone.
func (b *Broker) leadGroups(d *metadata.TopicsDelta) {
	changes := d.LocalChanges(b.nodeID)
	// One change may delete the topic and make it anew: what is gone goes first.
	for _, lp := range changes.Deleted {
		if lp.Topic == offsetsTopic {
			b.groups.Resigned(lp.Partition, -1)
		}
	}
	for _, lp := range changes.Elected {
		if lp.Topic != offsetsTopic {
			continue
		}
		if p, err := b.replicas.Partition(lp.Topic, lp.Partition); err == nil {
			id := lp.Partition
			p.SetListener(func(hw int64) { b.groups.HighWatermarkUpdated(id, hw) })
		}
		b.groups.Elected(lp.Partition, lp.State.LeaderEpoch)
	}
	for _, lp := range changes.Followers {
		if lp.Topic == offsetsTopic {
			b.groups.Resigned(lp.Partition, lp.State.LeaderEpoch)
		}
	}
	var deleted []string
	for t := range d.DeletedTopics() {
		deleted = append(deleted, t.Name)
	}
	if len(deleted) > 0 {
		b.groups.TopicsDeleted(deleted)
	}
}
