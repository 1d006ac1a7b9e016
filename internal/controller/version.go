package controller

import (
	"cmp"
	"slices"
	"strconv"

	"gregor/internal/metadata"
)

// VersionRange is what a node supports of a feature.
type VersionRange struct{ Min, Max int16 }

// String is the range as Kafka prints it.
func (r VersionRange) String() string {
	if r.Min == r.Max {
		return strconv.Itoa(int(r.Min))
	}
	return strconv.Itoa(int(r.Min)) + "-" + strconv.Itoa(int(r.Max))
}

func (r VersionRange) contains(v int16) bool { return r.Min <= v && v <= r.Max }

// Feature is a feature's name with the versions that a node supports.
type Feature struct {
	Name string
	VersionRange
}

// SupportedFeatures is what this software supports, by name: what a node puts into its registration.
func SupportedFeatures() []Feature {
	var out []Feature
	for name, r := range metadata.SupportedFeatures(false) {
		out = append(out, Feature{name, VersionRange(r)})
	}
	slices.SortFunc(out, byName)
	return out
}

func byName(a, b Feature) int { return cmp.Compare(a.Name, b.Name) }

// findFeature looks a name up in a list; a feature that isn't there is supported at 0 only.
func findFeature(features []Feature, name string) VersionRange {
	for _, f := range features {
		if f.Name == name {
			return f.VersionRange
		}
	}
	return VersionRange{}
}
