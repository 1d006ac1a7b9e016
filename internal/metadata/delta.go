package metadata

import (
	"fmt"

	"gregor/internal/message"
)

// Delta is changes on top of an image. It belongs to one goroutine until Apply and is immutable from then on. A part is nil
// when no record touched it.
type Delta struct {
	Features         *FeaturesDelta
	Cluster          *ClusterDelta
	Topics           *TopicsDelta
	Configs          *ConfigsDelta
	ClientQuotas     *ClientQuotasDelta
	ProducerIDs      *ProducerIDsDelta
	ACLs             *ACLsDelta
	SCRAM            *SCRAMDelta
	DelegationTokens *DelegationTokensDelta

	base *Image
}

// NewDelta begins a delta on top of base.
func NewDelta(base *Image) *Delta { return &Delta{base: base} }

// Base is the image that the delta is on top of.
func (d *Delta) Base() *Image { return d.base }

// Empty says whether no record touched anything.
func (d *Delta) Empty() bool {
	return d.Features == nil && d.Cluster == nil && d.Topics == nil && d.Configs == nil && d.ClientQuotas == nil &&
		d.ProducerIDs == nil && d.ACLs == nil && d.SCRAM == nil && d.DelegationTokens == nil
}

// FullDelta is the delta from nothing to img: what a publisher gets that has seen nothing before. It costs little for topics
// and partitions, which it shares with the image.
func FullDelta(img *Image) *Delta {
	empty := EmptyImage()
	d := NewDelta(empty)
	if img.Features.MetadataVersion != 0 || len(img.Features.Levels) > 0 {
		d.Features = &FeaturesDelta{MetadataVersion: img.Features.MetadataVersion, Levels: img.Features.Levels, base: empty.Features}
	}
	if len(img.Cluster.Brokers) > 0 || len(img.Cluster.Controllers) > 0 {
		d.Cluster = &ClusterDelta{Brokers: img.Cluster.Brokers, Controllers: img.Cluster.Controllers, base: empty.Cluster}
	}
	if img.Topics.Len() > 0 {
		d.Topics = fullTopicsDelta(img.Topics)
	}
	if img.Configs.Len() > 0 {
		d.Configs = fullConfigsDelta(img.Configs)
	}
	if img.ClientQuotas.Len() > 0 {
		d.ClientQuotas = fullClientQuotasDelta(img.ClientQuotas)
	}
	if img.ProducerIDs.Next >= 0 {
		d.ProducerIDs = &ProducerIDsDelta{img.ProducerIDs.Next}
	}
	if img.ACLs.Len() > 0 {
		d.ACLs = fullTableDelta(img.ACLs, empty.ACLs)
	}
	if img.SCRAM.Len() > 0 {
		d.SCRAM = fullTableDelta(img.SCRAM, empty.SCRAM)
	}
	if img.DelegationTokens.Len() > 0 {
		d.DelegationTokens = fullTableDelta(img.DelegationTokens, empty.DelegationTokens)
	}
	return d
}

func (d *Delta) features() *FeaturesDelta {
	if d.Features == nil {
		d.Features = &FeaturesDelta{Levels: map[string]int16{}, base: d.base.Features}
	}
	return d.Features
}

func (d *Delta) cluster() *ClusterDelta {
	if d.Cluster == nil {
		d.Cluster = newClusterDelta(d.base.Cluster)
	}
	return d.Cluster
}

func (d *Delta) topics() *TopicsDelta {
	if d.Topics == nil {
		d.Topics = newTopicsDelta(d.base.Topics)
	}
	return d.Topics
}

func (d *Delta) configs() *ConfigsDelta {
	if d.Configs == nil {
		d.Configs = newConfigsDelta(d.base.Configs)
	}
	return d.Configs
}

func (d *Delta) clientQuotas() *ClientQuotasDelta {
	if d.ClientQuotas == nil {
		d.ClientQuotas = newClientQuotasDelta(d.base.ClientQuotas)
	}
	return d.ClientQuotas
}

func (d *Delta) acls() *ACLsDelta {
	if d.ACLs == nil {
		d.ACLs = newTableDelta(d.base.ACLs)
	}
	return d.ACLs
}

func (d *Delta) scram() *SCRAMDelta {
	if d.SCRAM == nil {
		d.SCRAM = newTableDelta(d.base.SCRAM)
	}
	return d.SCRAM
}

func (d *Delta) tokens() *DelegationTokensDelta {
	if d.DelegationTokens == nil {
		d.DelegationTokens = newTableDelta(d.base.DelegationTokens)
	}
	return d.DelegationTokens
}

// Replay adds one record. Any metadata record is accepted; those without meaning for the image (no-ops, transaction
// brackets, the ZooKeeper migration state) change nothing. An error means that the record doesn't fit what came before it; the
// delta is then as it was before the record.
func (d *Delta) Replay(m message.Message) error {
	if err := d.replay(m); err != nil {
		return fmt.Errorf("metadata: replay %s: %w", m.MessageName(), err)
	}
	return nil
}

func (d *Delta) replay(m message.Message) error {
	switch r := m.(type) {
	case *message.PartitionChangeRecord:
		return d.topics().replayChange(r)
	case *message.PartitionRecord:
		return d.topics().replayPartition(r)
	case *message.TopicRecord:
		d.topics().replayTopic(r)
	case *message.RemoveTopicRecord:
		name, err := d.topics().replayRemove(r.TopicID)
		if err != nil {
			return err
		}
		if res := (Resource{TopicResource, name}); d.Configs != nil || d.base.Configs.Get(res) != nil {
			d.configs().deleteAll(res)
		}
	case *message.ClearElrRecord:
		return d.topics().replayClearELR(r)
	case *message.ConfigRecord:
		d.configs().replay(r)
	case *message.RegisterBrokerRecord:
		d.cluster().Brokers[r.BrokerID] = BrokerFromRecord(r)
	case *message.UnregisterBrokerRecord:
		d.cluster().Brokers[r.BrokerID] = nil
	case *message.BrokerRegistrationChangeRecord:
		return d.cluster().replayChange(r)
	case *message.FenceBrokerRecord:
		return d.cluster().replayChange(&message.BrokerRegistrationChangeRecord{BrokerID: r.ID, BrokerEpoch: r.Epoch, Fenced: 1})
	case *message.UnfenceBrokerRecord:
		return d.cluster().replayChange(&message.BrokerRegistrationChangeRecord{BrokerID: r.ID, BrokerEpoch: r.Epoch, Fenced: -1})
	case *message.RegisterControllerRecord:
		d.cluster().Controllers[r.ControllerID] = ControllerFromRecord(r)
	case *message.UnregisterControllerRecord:
		d.cluster().Controllers[r.ControllerID] = nil
	case *message.FeatureLevelRecord:
		return d.features().replay(r)
	case *message.ClientQuotaRecord:
		d.clientQuotas().replay(r)
	case *message.ProducerIdsRecord:
		if r.NextProducerID < 0 {
			return fmt.Errorf("next producer id %d", r.NextProducerID)
		}
		d.ProducerIDs = &ProducerIDsDelta{r.NextProducerID}
	case *message.AccessControlEntryRecord:
		d.acls().Changed[r.ID] = &ACL{ResourceType: r.ResourceType, ResourceName: r.ResourceName, PatternType: r.PatternType, Principal: r.Principal,
			Host: r.Host, Operation: r.Operation, PermissionType: r.PermissionType}
	case *message.RemoveAccessControlEntryRecord:
		a := d.acls()
		_, inBase := a.base.Get(r.ID)
		now, changed := a.Changed[r.ID]
		if changed && now == nil || !changed && !inBase {
			return fmt.Errorf("no access control entry with id %v", r.ID)
		}
		if inBase {
			a.Changed[r.ID] = nil
		} else {
			delete(a.Changed, r.ID)
		}
	case *message.UserScramCredentialRecord:
		d.scram().Changed[SCRAMKey{r.Mechanism, r.Name}] = &SCRAMCredential{r.Salt, r.StoredKey, r.ServerKey, r.Iterations}
	case *message.RemoveUserScramCredentialRecord:
		d.scram().Changed[SCRAMKey{r.Mechanism, r.Name}] = nil
	case *message.DelegationTokenRecord:
		d.tokens().Changed[r.TokenID] = &DelegationToken{
			r.TokenID, r.Owner, r.Requester, r.Renewers, r.IssueTimestamp, r.MaxTimestamp, r.ExpirationTimestamp,
		}
	case *message.RemoveDelegationTokenRecord:
		d.tokens().Changed[r.TokenID] = nil
	case *message.NoOpRecord, *message.ZkMigrationStateRecord, *message.BeginTransactionRecord, *message.EndTransactionRecord,
		*message.AbortTransactionRecord:
	default:
		return fmt.Errorf("not a metadata record")
	}
	return nil
}

// FinishSnapshot must be called when the records replayed were a whole snapshot: what the base image has and the snapshot did
// not name is gone.
func (d *Delta) FinishSnapshot() {
	d.features().finishSnapshot()
	d.cluster().finishSnapshot()
	d.topics().finishSnapshot()
	d.configs().finishSnapshot()
	d.clientQuotas().finishSnapshot()
	d.acls().finishSnapshot()
	d.scram().finishSnapshot()
	d.tokens().finishSnapshot()
	if d.ProducerIDs == nil {
		d.ProducerIDs = &ProducerIDsDelta{-1}
	}
}

// Apply makes the next image. Parts without change are those of the base image.
func (d *Delta) Apply(p Provenance) *Image {
	img := *d.base
	img.Provenance = p
	if d.Features != nil {
		img.Features = d.Features.apply()
	}
	if d.Cluster != nil {
		img.Cluster = d.Cluster.apply()
	}
	if d.Topics != nil {
		img.Topics = d.Topics.apply()
	}
	if d.Configs != nil {
		img.Configs = d.Configs.apply()
	}
	if d.ClientQuotas != nil {
		img.ClientQuotas = d.ClientQuotas.apply()
	}
	if d.ProducerIDs != nil {
		img.ProducerIDs = &ProducerIDsImage{d.ProducerIDs.Next}
	}
	if d.ACLs != nil {
		img.ACLs = d.ACLs.apply()
	}
	if d.SCRAM != nil {
		img.SCRAM = d.SCRAM.apply()
	}
	if d.DelegationTokens != nil {
		img.DelegationTokens = d.DelegationTokens.apply()
	}
	return &img
}
