package controller

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/security"
)

// handle decides on a request.
func (c *Core) handle(rc *RequestContext, req kmsg.Request) (Result, error) {
	switch r := req.(type) {
	case *kmsg.CreateTopicsRequest:
		return c.topics.create(rc, r)
	case *kmsg.DeleteTopicsRequest:
		return c.topics.delete(rc, r)
	case *kmsg.CreatePartitionsRequest:
		return c.topics.createPartitions(rc, r)
	case *kmsg.IncrementalAlterConfigsRequest:
		return c.configs.incrementalAlter(rc, r)
	case *kmsg.AlterConfigsRequest:
		return c.configs.legacyAlter(rc, r)
	case *kmsg.AlterClientQuotasRequest:
		return c.quotas.alter(r)
	case *kmsg.UpdateFeaturesRequest:
		return c.features.update(r)
	case *kmsg.BrokerRegistrationRequest:
		return c.cluster.register(r)
	case *kmsg.BrokerHeartbeatRequest:
		return c.topics.heartbeat(r)
	case *kmsg.UnregisterBrokerRequest:
		return c.topics.unregister(r)
	case *kmsg.AllocateProducerIDsRequest:
		return c.producerIDs.allocate(r)
	case *kmsg.ElectLeadersRequest:
		return c.topics.electLeaders(r)
	case *kmsg.AlterPartitionRequest:
		return c.topics.alterPartition(r)
	case *kmsg.AlterPartitionAssignmentsRequest:
		return c.topics.alterReassignments(r)
	case *kmsg.ListPartitionReassignmentsRequest:
		return c.topics.listReassignments(r)
	case *kmsg.AssignReplicasToDirsRequest:
		return c.topics.assignToDirs(r)
	case *kmsg.ControllerRegistrationRequest:
		return c.cluster.registerController(r)
	case *kmsg.UnregisterControllerRequest:
		return c.cluster.unregisterController(r)
	case *kmsg.AlterUserSCRAMCredentialsRequest:
		return c.scram.alter(r)
	case *kmsg.CreateACLsRequest:
		return c.acls.create(r)
	case *kmsg.DeleteACLsRequest:
		return c.acls.delete(r)
	case *kmsg.CreateDelegationTokenRequest:
		return c.tokens.create(rc, r)
	case *kmsg.RenewDelegationTokenRequest:
		return c.tokens.renew(rc, r)
	case *kmsg.ExpireDelegationTokenRequest:
		return c.tokens.expire(rc, r)
	}
	return Result{}, fmt.Errorf("the controller doesn't serve %T: %w", req, error(api.ErrUnsupportedVersion))
}

// ClusterOperation is what one must be allowed to do on the cluster for a controller to look at a request at all. The requests
// about the quorum, which others answer, are among them.
func ClusterOperation(key api.Key) (op security.Operation, guarded bool) {
	switch key {
	case api.BrokerRegistration, api.BrokerHeartbeat, api.AllocateProducerIds, api.AlterPartition, api.AssignReplicasToDirs,
		api.ControllerRegistration, api.Envelope, api.Fetch, api.FetchSnapshot, api.Vote, api.BeginQuorumEpoch, api.EndQuorumEpoch,
		api.UpdateRaftVoter:
		return security.ClusterAction, true
	case api.UpdateFeatures, api.UnregisterBroker, api.UnregisterController, api.ElectLeaders, api.AlterPartitionReassignments,
		api.AlterUserScramCredentials, api.CreateAcls, api.DeleteAcls, api.AddRaftVoter, api.RemoveRaftVoter, api.DescribeCluster:
		return security.Alter, true
	case api.ListPartitionReassignments, api.DescribeQuorum, api.DescribeAcls:
		return security.Describe, true
	case api.AlterClientQuotas:
		return security.AlterConfigs, true
	}
	return 0, false
}

// Authorize finds out whether whoever sends a request may send it at all.
func (rc *RequestContext) Authorize(req kmsg.Request) error {
	key := api.Key(req.Key())
	if op, guarded := ClusterOperation(key); guarded && !rc.allowed(op, security.Cluster, security.ClusterName) {
		switch key {
		case api.AlterClientQuotas, api.DescribeQuorum, api.AddRaftVoter, api.RemoveRaftVoter, api.ControllerRegistration:
			return api.ErrClusterAuthorizationFailed // the responses that Kafka says no more in
		}
		return api.WithMessage(api.ErrClusterAuthorizationFailed, "%s needs %s permission.", key, op)
	}
	return nil
}

// fetchByTopicID is the first version of Fetch that names topics by id.
const fetchByTopicID = 13

// ErrorResponse is the response that says that all of a request failed, in the places where its clients look.
func ErrorResponse(req kmsg.Request, err error) kmsg.Response {
	code, text := api.CodeAndMessage(err)
	resp := req.ResponseKind()
	switch out := resp.(type) {
	case *kmsg.CreateTopicsResponse:
		for _, t := range req.(*kmsg.CreateTopicsRequest).Topics {
			out.Topics = append(out.Topics, notCreated(t.Topic, err))
		}
	case *kmsg.DeleteTopicsResponse:
		in := req.(*kmsg.DeleteTopicsRequest)
		for i := range in.TopicNames {
			r := kmsg.NewDeleteTopicsResponseTopic()
			r.Topic, r.ErrorCode, r.ErrorMessage = &in.TopicNames[i], code, text
			out.Topics = append(out.Topics, r)
		}
		for _, t := range in.Topics {
			r := kmsg.NewDeleteTopicsResponseTopic()
			r.Topic, r.TopicID, r.ErrorCode, r.ErrorMessage = t.Topic, t.TopicID, code, text
			out.Topics = append(out.Topics, r)
		}
	case *kmsg.CreatePartitionsResponse:
		for _, t := range req.(*kmsg.CreatePartitionsRequest).Topics {
			r := kmsg.NewCreatePartitionsResponseTopic()
			r.Topic, r.ErrorCode, r.ErrorMessage = t.Topic, code, text
			out.Topics = append(out.Topics, r)
		}
	case *kmsg.IncrementalAlterConfigsResponse:
		for _, x := range req.(*kmsg.IncrementalAlterConfigsRequest).Resources {
			r := kmsg.NewIncrementalAlterConfigsResponseResource()
			r.ResourceType, r.ResourceName, r.ErrorCode, r.ErrorMessage = x.ResourceType, x.ResourceName, code, text
			out.Resources = append(out.Resources, r)
		}
	case *kmsg.AlterConfigsResponse:
		for _, x := range req.(*kmsg.AlterConfigsRequest).Resources {
			r := kmsg.NewAlterConfigsResponseResource()
			r.ResourceType, r.ResourceName, r.ErrorCode, r.ErrorMessage = x.ResourceType, x.ResourceName, code, text
			out.Resources = append(out.Resources, r)
		}
	case *kmsg.AlterClientQuotasResponse:
		for _, e := range req.(*kmsg.AlterClientQuotasRequest).Entries {
			r := kmsg.NewAlterClientQuotasResponseEntry()
			r.ErrorCode, r.ErrorMessage = code, text
			for _, p := range e.Entity {
				x := kmsg.NewAlterClientQuotasResponseEntryEntity()
				x.Type, x.Name = p.Type, p.Name
				r.Entity = append(r.Entity, x)
			}
			out.Entries = append(out.Entries, r)
		}
	case *kmsg.ElectLeadersResponse:
		out.ErrorCode = code
		for _, t := range req.(*kmsg.ElectLeadersRequest).Topics {
			r := kmsg.NewElectLeadersResponseTopic()
			r.Topic = t.Topic
			for _, i := range t.Partitions {
				p := kmsg.NewElectLeadersResponseTopicPartition()
				p.Partition, p.ErrorCode, p.ErrorMessage = i, code, text
				r.Partitions = append(r.Partitions, p)
			}
			out.Topics = append(out.Topics, r)
		}
	case *kmsg.AlterPartitionAssignmentsResponse:
		out.ErrorCode, out.ErrorMessage = code, text
		for _, t := range req.(*kmsg.AlterPartitionAssignmentsRequest).Topics {
			r := kmsg.NewAlterPartitionAssignmentsResponseTopic()
			r.Topic = t.Topic
			for _, x := range t.Partitions {
				p := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
				p.Partition, p.ErrorCode, p.ErrorMessage = x.Partition, code, text
				r.Partitions = append(r.Partitions, p)
			}
			out.Topics = append(out.Topics, r)
		}
	case *kmsg.AlterUserSCRAMCredentialsResponse:
		in := req.(*kmsg.AlterUserSCRAMCredentialsRequest)
		seen := make(map[string]bool)
		add := func(user string) {
			if seen[user] {
				return
			}
			seen[user] = true
			r := kmsg.NewAlterUserSCRAMCredentialsResponseResult()
			r.User, r.ErrorCode, r.ErrorMessage = user, code, text
			out.Results = append(out.Results, r)
		}
		for _, d := range in.Deletions {
			add(d.Name)
		}
		for _, u := range in.Upsertions {
			add(u.Name)
		}
	case *kmsg.CreateACLsResponse:
		for range req.(*kmsg.CreateACLsRequest).Creations {
			r := kmsg.NewCreateACLsResponseResult()
			r.ErrorCode, r.ErrorMessage = code, text
			out.Results = append(out.Results, r)
		}
	case *kmsg.DeleteACLsResponse:
		for range req.(*kmsg.DeleteACLsRequest).Filters {
			r := kmsg.NewDeleteACLsResponseResult()
			r.ErrorCode, r.ErrorMessage = code, text
			out.Results = append(out.Results, r)
		}
	case *kmsg.ListPartitionReassignmentsResponse:
		out.ErrorCode, out.ErrorMessage = code, text
	case *kmsg.UpdateFeaturesResponse:
		out.ErrorCode, out.ErrorMessage = code, text
	case *kmsg.UnregisterBrokerResponse:
		out.ErrorCode, out.ErrorMessage = code, text
	case *kmsg.ControllerRegistrationResponse:
		out.ErrorCode, out.ErrorMessage = code, text
	case *kmsg.UnregisterControllerResponse:
		out.ErrorCode, out.ErrorMessage = code, text
	case *kmsg.DescribeQuorumResponse:
		out.ErrorCode, out.ErrorMessage = code, text
	case *kmsg.VoteResponse:
		out.ErrorCode = code
	case *kmsg.BeginQuorumEpochResponse:
		out.ErrorCode = code
	case *kmsg.EndQuorumEpochResponse:
		out.ErrorCode = code
	case *kmsg.FetchResponse:
		in := req.(*kmsg.FetchRequest)
		out.ErrorCode, out.SessionID = code, in.SessionID
		for _, t := range in.Topics {
			if in.Version >= fetchByTopicID {
				break // from then on the code for all is enough
			}
			r := kmsg.NewFetchResponseTopic()
			r.Topic = t.Topic
			for _, p := range t.Partitions {
				x := kmsg.NewFetchResponseTopicPartition()
				x.Partition, x.ErrorCode, x.HighWatermark, x.LastStableOffset, x.LogStartOffset = p.Partition, code, -1, -1, -1
				x.AbortedTransactions, x.RecordBatches = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}, []byte{}
				r.Partitions = append(r.Partitions, x)
			}
			out.Topics = append(out.Topics, r)
		}
	case *kmsg.FetchSnapshotResponse:
		out.ErrorCode = code
	case *kmsg.UpdateRaftVoterResponse:
		out.ErrorCode = code
	case *kmsg.EnvelopeResponse:
		out.ErrorCode = code
	case *kmsg.DescribeClusterResponse:
		out.ErrorCode, out.ErrorMessage = code, text
	case *kmsg.DescribeACLsResponse:
		out.ErrorCode, out.ErrorMessage = code, text
	case *kmsg.AddRaftVoterResponse:
		out.ErrorCode, out.ErrorMessage = code, text
	case *kmsg.RemoveRaftVoterResponse:
		out.ErrorCode, out.ErrorMessage = code, text
	case *kmsg.BrokerRegistrationResponse:
		out.ErrorCode, out.BrokerEpoch = code, -1
	case *kmsg.BrokerHeartbeatResponse:
		out.ErrorCode, out.IsFenced = code, true
	case *kmsg.AllocateProducerIDsResponse:
		out.ErrorCode = code
	case *kmsg.AlterPartitionResponse:
		out.ErrorCode = code
	case *kmsg.AssignReplicasToDirsResponse:
		out.ErrorCode = code
	case *kmsg.CreateDelegationTokenResponse:
		out.ErrorCode = code
	case *kmsg.RenewDelegationTokenResponse:
		out.ErrorCode = code
	case *kmsg.ExpireDelegationTokenResponse:
		out.ErrorCode = code
	}
	return resp
}
