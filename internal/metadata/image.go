package metadata

import (
	"fmt"

	"gregor/internal/message"
)

// Provenance says where an image comes from: the last record that is in it.
type Provenance struct {
	// Offset is that record's offset, -1 for the empty image.
	Offset int64
	// Epoch is the leader's epoch of that record.
	Epoch int32
	// Time is the append time of that record's batch in ms since 1970.
	Time int64
	// BatchAligned says that the record is the last of its batch. Only then can a snapshot be made of the image.
	BatchAligned bool
}

// Image is all metadata of the cluster as of one offset. It is immutable and may be read from any goroutine. No part is nil.
type Image struct {
	Provenance
	Features         *FeaturesImage
	Cluster          *ClusterImage
	Topics           *TopicsImage
	Configs          *ConfigsImage
	ClientQuotas     *ClientQuotasImage
	ProducerIDs      *ProducerIDsImage
	ACLs             *ACLsImage
	SCRAM            *SCRAMImage
	DelegationTokens *DelegationTokensImage
}

// EmptyImage is the image before the first record.
func EmptyImage() *Image {
	return &Image{
		Provenance:       Provenance{Offset: -1, Epoch: -1, Time: -1, BatchAligned: true},
		Features:         &FeaturesImage{Levels: map[string]int16{}},
		Cluster:          &ClusterImage{Brokers: map[int32]*Broker{}, Controllers: map[int32]*Controller{}},
		Topics:           newTopicsImage(),
		Configs:          newConfigsImage(),
		ClientQuotas:     newClientQuotasImage(),
		ProducerIDs:      &ProducerIDsImage{Next: -1},
		ACLs:             newACLsImage(),
		SCRAM:            newSCRAMImage(),
		DelegationTokens: newDelegationTokensImage(),
	}
}

// WriteOptions says how an image becomes records.
type WriteOptions struct {
	// MetadataVersion is the level that the records must be of; any supported one.
	MetadataVersion Version
	// OnLoss is told, once for each thing, what that level has no place for. Nil ignores it.
	OnLoss func(what string)

	told map[string]bool
}

func (o *WriteOptions) lose(what string) {
	if o.OnLoss == nil || o.told[what] {
		return
	}
	if o.told == nil {
		o.told = map[string]bool{}
	}
	o.told[what] = true
	o.OnLoss(what)
}

// Write gives the records of a snapshot of the image to w, in Kafka's order: features with metadata.version first, brokers,
// controllers, topics each followed by its partitions, configs, client quotas, producer ids, ACLs, SCRAM credentials,
// delegation tokens. What the level can't hold is left out. It stops at the first error of w.
func (img *Image) Write(w func(message.Versioned) error, o WriteOptions) error {
	if !o.MetadataVersion.Known() {
		return fmt.Errorf("metadata: write image at offset %d: unsupported metadata.version %d", img.Offset, o.MetadataVersion)
	}
	for _, part := range []func(func(message.Versioned) error, *WriteOptions) error{
		img.Features.write,
		img.Cluster.write,
		img.Topics.write,
		img.Configs.write,
		img.ClientQuotas.write,
		img.ProducerIDs.write,
		func(w func(message.Versioned) error, _ *WriteOptions) error { return writeACLs(img.ACLs, w) },
		func(w func(message.Versioned) error, o *WriteOptions) error { return writeSCRAM(img.SCRAM, w, o) },
		func(w func(message.Versioned) error, o *WriteOptions) error {
			return writeTokens(img.DelegationTokens, w, o)
		},
	} {
		if err := part(w, &o); err != nil {
			return err
		}
	}
	return nil
}
