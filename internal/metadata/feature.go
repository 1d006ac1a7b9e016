package metadata

import (
	"fmt"
	"slices"
)

// Names of the features that have levels.
const (
	FeatureMetadataVersion = "metadata.version"
	FeatureKRaft           = "kraft.version"
	FeatureTransaction     = "transaction.version"
	FeatureGroup           = "group.version"
	FeatureELR             = "eligible.leader.replicas.version"
	FeatureShare           = "share.version"
	FeatureStreams         = "streams.version"
)

// FeatureRange is the levels of a feature that a node supports.
type FeatureRange struct {
	Min, Max int16
}

// Feature is one feature of Kafka 4.4 apart from metadata.version.
type Feature struct {
	Name   string
	Levels []FeatureLevel // from 0 upwards
}

// FeatureLevel is one level of a feature.
type FeatureLevel struct {
	Level       int16
	DefaultFrom Version // a cluster that is formatted at this metadata.version or above gets the level
	Needs       Version // the least metadata.version that it works with; zero for any
}

// Features is every feature but metadata.version, in the order in which Kafka writes them.
//
// kraft.version is special: it has no FeatureLevelRecord but lives in a control record.
var Features = []Feature{
	{FeatureKRaft, []FeatureLevel{{0, MinVersion, 0}, {1, V3_9_IV0, 0}}},
	{FeatureTransaction, []FeatureLevel{{0, MinVersion, 0}, {1, V4_0_IV2, 0}, {2, V4_0_IV2, 0}}},
	{FeatureGroup, []FeatureLevel{{0, MinVersion, 0}, {1, V4_0_IV0, 0}}},
	{FeatureELR, []FeatureLevel{{0, MinVersion, 0}, {1, V4_1_IV0, V4_0_IV1}}},
	{FeatureShare, []FeatureLevel{{0, MinVersion, 0}, {1, V4_2_IV0, 0}, {2, V4_4_IV0, 0}}},
	{FeatureStreams, []FeatureLevel{{0, MinVersion, 0}, {1, V4_2_IV1, 0}}},
}

// FeatureByName finds a feature; metadata.version isn't one of them.
func FeatureByName(name string) (Feature, bool) {
	i := slices.IndexFunc(Features, func(f Feature) bool { return f.Name == name })
	if i < 0 {
		return Feature{}, false
	}
	return Features[i], true
}

// Max is the highest level.
func (f Feature) Max() int16 { return f.Levels[len(f.Levels)-1].Level }

// Default is the level that a cluster formatted at that metadata.version gets.
func (f Feature) Default(v Version) int16 {
	var level int16
	for _, l := range f.Levels {
		if v >= l.DefaultFrom {
			level = l.Level
		}
	}
	return level
}

// Check says whether the level exists and works with that metadata.version.
func (f Feature) Check(level int16, v Version) error {
	i := slices.IndexFunc(f.Levels, func(l FeatureLevel) bool { return l.Level == level })
	if i < 0 {
		return fmt.Errorf("%s has no level %d: supported are 0 to %d", f.Name, level, f.Max())
	}
	if need := f.Levels[i].Needs; v < need {
		return fmt.Errorf("%s=%d needs %s at level %d or above, it is %d", f.Name, level, FeatureMetadataVersion, need, v)
	}
	return nil
}

// SupportedFeatures is what a node says in its registration: the range of every feature that it supports. unstable adds
// levels that are not for production.
func SupportedFeatures(unstable bool) map[string]FeatureRange {
	top := LatestProduction
	if unstable {
		top = LatestTesting
	}
	m := map[string]FeatureRange{FeatureMetadataVersion: {int16(MinVersion), int16(top)}}
	for _, f := range Features {
		m[f.Name] = FeatureRange{0, f.Max()}
	}
	return m
}
