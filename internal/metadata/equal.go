package metadata

import (
	"fmt"
	"iter"
	"maps"
	"math"

	"gregor/internal/message"
)

// Diff says how two images differ in content, or "" when they don't. It stops at the first few differences. Where they come
// from (Provenance) is not compared, nor what they share in memory.
func Diff(a, b *Image) string {
	d := &differ{}
	if a.Features.MetadataVersion != b.Features.MetadataVersion {
		d.add("metadata.version: %d, %d", a.Features.MetadataVersion, b.Features.MetadataVersion)
	}
	if !maps.Equal(a.Features.Levels, b.Features.Levels) {
		d.add("feature levels: %v, %v", a.Features.Levels, b.Features.Levels)
	}
	diffMap(d, "broker", maps.All(a.Cluster.Brokers), maps.All(b.Cluster.Brokers), (*Broker).Equal)
	diffMap(d, "controller", maps.All(a.Cluster.Controllers), maps.All(b.Cluster.Controllers), (*Controller).Equal)
	diffMap(d, "topic", a.Topics.byID.All(), b.Topics.byID.All(), func(x, y *Topic) bool {
		if x == y {
			return true
		}
		if x.Name != y.Name || x.ID != y.ID {
			return false
		}
		n := d.n
		diffMap(d, "partition of "+x.Name, x.Partitions(), y.Partitions(), (*Partition).Equal)
		return d.n == n
	})
	diffMap(d, "topic name", a.Topics.byName.All(), b.Topics.byName.All(), func(x, y *Topic) bool { return x.ID == y.ID })
	if a.Topics.partitions != b.Topics.partitions {
		d.add("number of partitions: %d, %d", a.Topics.partitions, b.Topics.partitions)
	}
	diffMap(d, "configs of", a.Configs.All(), b.Configs.All(), maps.Equal[map[string]string])
	diffMap(d, "client quotas of", a.ClientQuotas.byEntity.All(), b.ClientQuotas.byEntity.All(), func(x, y *ClientQuota) bool {
		return maps.EqualFunc(x.Quotas, y.Quotas, func(v, w float64) bool { return math.Float64bits(v) == math.Float64bits(w) })
	})
	if a.ProducerIDs.Next != b.ProducerIDs.Next {
		d.add("next producer id: %d, %d", a.ProducerIDs.Next, b.ProducerIDs.Next)
	}
	diffMap(d, "acl", a.ACLs.All(), b.ACLs.All(), func(x, y ACL) bool { return x == y })
	diffMap(d, "scram credential", a.SCRAM.All(), b.SCRAM.All(), SCRAMCredential.equal)
	diffMap(d, "delegation token", a.DelegationTokens.All(), b.DelegationTokens.All(), DelegationToken.equal)
	return d.text
}

// Equal says whether two images have the same content, wherever they come from.
func Equal(a, b *Image) bool { return Diff(a, b) == "" }

type differ struct {
	n    int
	text string
}

const maxDifferences = 8

func (d *differ) add(format string, args ...any) {
	d.n++
	if d.n <= maxDifferences {
		d.text += fmt.Sprintf(format, args...) + "\n"
	}
}

func diffMap[K comparable, V any](d *differ, what string, a, b iter.Seq2[K, V], same func(V, V) bool) {
	other := maps.Collect(b)
	for k, x := range a {
		y, ok := other[k]
		delete(other, k)
		switch {
		case !ok:
			d.add("%s %v is only in the first: %v", what, k, x)
		case !same(x, y):
			d.add("%s %v: %v, %v", what, k, x, y)
		}
	}
	for k, y := range other {
		d.add("%s %v is only in the second: %v", what, k, y)
	}
}

// Records is the records that Write gives, for tests and tools.
func (img *Image) Records(v Version) ([]message.Versioned, error) {
	var out []message.Versioned
	err := img.Write(func(r message.Versioned) error {
		out = append(out, r)
		return nil
	}, WriteOptions{MetadataVersion: v})
	return out, err
}
