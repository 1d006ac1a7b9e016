package broker

import (
	"maps"
	"regexp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/metadata"
	"gregor/internal/network"
)

// softwareName is what the name and version of a client's software must look like (KIP-511).
var softwareName = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?$`)

func (b *Broker) apiVersions(r *network.Request, q *kmsg.ApiVersionsRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.ApiVersionsResponse)
	if q.Version >= 3 && !(softwareName.MatchString(q.ClientSoftwareName) && softwareName.MatchString(q.ClientSoftwareVersion)) {
		resp.ErrorCode = api.ErrInvalidRequest.Code
		return resp
	}
	if q.Version >= 5 && (q.ClusterID == nil) != (q.NodeID < 0) {
		// Half of an identity says nothing (KIP-1242).
		resp.ErrorCode = api.ErrInvalidRequest.Code
		return resp
	}
	if q.Version >= 5 && (q.ClusterID != nil && *q.ClusterID != b.clusterID || q.NodeID >= 0 && q.NodeID != b.nodeID) {
		// KIP-1242: the client has reached another node than it meant to.
		resp.ErrorCode = api.ErrRebootstrapRequired.Code
		return resp
	}
	for _, rng := range b.table.Advertised(nil) {
		resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: int16(rng.Key), MinVersion: rng.Min, MaxVersion: rng.Max})
	}
	supported := metadata.SupportedFeatures(b.config.Current().UnstableFeatureVersions)
	for _, name := range slices.Sorted(maps.Keys(supported)) {
		f := supported[name]
		if f.Min == 0 && q.Version < 4 {
			// Clients before version 4 cannot read a feature whose least level is 0 (KAFKA-17011).
			continue
		}
		resp.SupportedFeatures = append(resp.SupportedFeatures, kmsg.ApiVersionsResponseSupportedFeature{
			Name: name, MinVersion: f.Min, MaxVersion: f.Max})
	}
	img := b.image()
	resp.FinalizedFeaturesEpoch = img.Offset
	levels := maps.Clone(img.Features.Levels)
	levels[metadata.FeatureMetadataVersion] = int16(img.Features.MetadataVersion)
	if v := b.kraft(); v > 0 {
		levels[metadata.FeatureKRaft] = v
	}
	for _, name := range slices.Sorted(maps.Keys(levels)) {
		level := levels[name]
		resp.FinalizedFeatures = append(resp.FinalizedFeatures, kmsg.ApiVersionsResponseFinalizedFeature{
			Name: name, MinVersionLevel: level, MaxVersionLevel: level})
	}
	return resp
}
