package metadata

import (
	"fmt"
	"maps"
	"slices"

	"gregor/internal/message"
)

// FeaturesImage is the finalized feature levels. It is immutable, its map included.
type FeaturesImage struct {
	// MetadataVersion is zero before the first record of it.
	MetadataVersion Version
	// Levels is the other features whose level isn't 0.
	Levels map[string]int16
}

// Level is the finalized level of a feature; 0 when it has none. kraft.version isn't known here.
func (f *FeaturesImage) Level(name string) int16 {
	if name == FeatureMetadataVersion {
		return int16(f.MetadataVersion)
	}
	return f.Levels[name]
}

// ELREnabled says whether eligible leader replicas are kept.
func (f *FeaturesImage) ELREnabled() bool { return f.Levels[FeatureELR] > 0 }

func (f *FeaturesImage) write(w func(message.Versioned) error, o *WriteOptions) error {
	// metadata.version goes first: it tells a reader how to take what follows.
	level := &message.FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: int16(o.MetadataVersion)}
	if err := w(message.Versioned{Message: level}); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(f.Levels)) {
		if err := w(message.Versioned{Message: &message.FeatureLevelRecord{Name: name, FeatureLevel: f.Levels[name]}}); err != nil {
			return err
		}
	}
	return nil
}

// FeaturesDelta is what changed in the feature levels.
type FeaturesDelta struct {
	// MetadataVersion is the new level, or zero when it isn't named.
	MetadataVersion Version
	// Levels is the new levels of other features; 0 takes a feature away.
	Levels map[string]int16

	base *FeaturesImage
}

func (d *FeaturesDelta) replay(r *message.FeatureLevelRecord) error {
	if r.Name != FeatureMetadataVersion {
		d.Levels[r.Name] = r.FeatureLevel
		return nil
	}
	v := Version(r.FeatureLevel)
	if !v.Known() {
		return fmt.Errorf("%s %d is not supported: supported are %d to %d", FeatureMetadataVersion, v, MinVersion, LatestTesting)
	}
	d.MetadataVersion = v
	return nil
}

func (d *FeaturesDelta) finishSnapshot() {
	for name := range d.base.Levels {
		if _, ok := d.Levels[name]; !ok {
			d.Levels[name] = 0
		}
	}
}

func (d *FeaturesDelta) apply() *FeaturesImage {
	f := &FeaturesImage{MetadataVersion: d.base.MetadataVersion, Levels: maps.Clone(d.base.Levels)}
	if f.Levels == nil {
		f.Levels = map[string]int16{}
	}
	if d.MetadataVersion != 0 {
		f.MetadataVersion = d.MetadataVersion
	}
	for name, level := range d.Levels {
		if level == 0 {
			delete(f.Levels, name)
		} else {
			f.Levels[name] = level
		}
	}
	return f
}

// ProducerIDsImage says which producer ids are given out. It is immutable.
type ProducerIDsImage struct {
	// Next is the first producer id of the next block, or -1 before the first block.
	Next int64
}

func (p *ProducerIDsImage) write(w func(message.Versioned) error, _ *WriteOptions) error {
	if p.Next < 0 {
		return nil
	}
	r := message.NewProducerIdsRecord()
	r.BrokerID, r.NextProducerID = -1, p.Next
	return w(message.Versioned{Message: r})
}

// ProducerIDsDelta is a new block of producer ids.
type ProducerIDsDelta struct {
	Next int64
}
