package api

import "github.com/twmb/franz-go/pkg/kmsg"

// kmsg writes a tagged field whenever it is set. These are the fields whose tags came later than their message's first
// flexible version; a Java client refuses a message that has one too early.

// AppendResponse writes the body of a response of the version that is set in it. Tagged fields that the version does not have
// are reset in r.
func AppendResponse(dst []byte, r kmsg.Response) []byte {
	version := r.GetVersion()
	switch r := r.(type) {
	case *kmsg.ProduceResponse:
		if version < 10 {
			r.Brokers = nil
			for i := range r.Topics {
				for j := range r.Topics[i].Partitions {
					r.Topics[i].Partitions[j].CurrentLeader = kmsg.NewProduceResponseTopicPartitionCurrentLeader()
				}
			}
		}
	case *kmsg.FetchResponse:
		if version < 16 {
			r.Brokers = nil
		}
	case *kmsg.VoteResponse:
		if version < 1 {
			r.NodeEndpoints = nil
		}
	case *kmsg.FetchSnapshotResponse:
		if version < 1 {
			r.NodeEndpoints = nil
		}
	case *kmsg.ShareFetchResponse:
		// Not a tag: records may not be null here, and kmsg writes nil as null.
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				if p := &r.Topics[i].Partitions[j]; p.Records == nil {
					p.Records = []byte{}
				}
			}
		}
	}
	return r.AppendTo(dst)
}

// AppendRequest writes the body of a request of the version that is set in it. Tagged fields that the version does not have
// are reset in r.
func AppendRequest(dst []byte, r kmsg.Request) []byte {
	version := r.GetVersion()
	switch r := r.(type) {
	case *kmsg.FetchRequest:
		if version < 15 {
			r.ReplicaState = kmsg.NewFetchRequestReplicaState()
		}
		if version < 18 {
			unset := kmsg.NewFetchRequestTopicPartition()
			for i := range r.Topics {
				for j := range r.Topics[i].Partitions {
					p := &r.Topics[i].Partitions[j]
					p.HighWatermark = unset.HighWatermark
					if version < 17 {
						p.ReplicaDirectoryID = unset.ReplicaDirectoryID
					}
				}
			}
		}
	case *kmsg.FetchSnapshotRequest:
		if version < 1 {
			unset := kmsg.NewFetchSnapshotRequestTopicPartition()
			for i := range r.Topics {
				for j := range r.Topics[i].Partitions {
					r.Topics[i].Partitions[j].ReplicaDirectoryID = unset.ReplicaDirectoryID
				}
			}
		}
	case *kmsg.BrokerHeartbeatRequest:
		if version < 1 {
			r.OfflineLogDirs = nil
		}
		if version < 2 {
			r.CordonedLogDirs = nil
		}
	}
	return r.AppendTo(dst)
}

// SetDefaults gives a request that was made with kmsg's New or Default the defaults of Kafka where kmsg has others. They are
// what the Java client sends when nobody sets the field.
func SetDefaults(r kmsg.Request) {
	switch r := r.(type) {
	case *kmsg.ProduceRequest:
		r.TimeoutMillis = 0
	case *kmsg.ListOffsetsRequest:
		r.ReplicaID, r.TimeoutMillis = 0, 0
	case *kmsg.MetadataRequest:
		r.AllowAutoTopicCreation = true
	case *kmsg.DeleteTopicsRequest:
		r.TimeoutMillis = 0
	case *kmsg.DeleteRecordsRequest:
		r.TimeoutMillis = 0
	case *kmsg.CreatePartitionsRequest:
		r.TimeoutMillis = 0
	case *kmsg.UpdateFeaturesRequest:
		for i := range r.FeatureUpdates {
			r.FeatureUpdates[i].UpgradeType = 1
		}
	case *kmsg.AddRaftVoterRequest:
		r.TimeoutMillis = 0
	}
}
