package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/controller"
	"gregor/internal/network"
)

// forwarded is the handler of an API that the active controller serves. When no controller answers in time the response says
// so wherever the request's clients look for it.
func forwarded() handler {
	return later(func(b *Broker, r *network.Request, q kmsg.Request, reply func(kmsg.Response)) {
		b.forward(r, q, reply, func(err error) kmsg.Response { return controller.ErrorResponse(q, err) })
	})
}

// adminHandlers is the table of the APIs that describe or change the cluster.
func adminHandlers() map[api.Key]handler {
	return map[api.Key]handler{
		// Changes of the cluster are the controller's business. What can only be checked here is checked first.
		api.CreateTopics:                forwarded(),
		api.DeleteTopics:                forwarded(),
		api.CreatePartitions:            forwarded(),
		api.ElectLeaders:                forwarded(),
		api.AlterPartitionReassignments: forwarded(),
		api.ListPartitionReassignments:  forwarded(),
		api.UpdateFeatures:              forwarded(),
		api.AlterClientQuotas:           forwarded(),
		api.AlterUserScramCredentials:   forwarded(),
		api.UnregisterBroker:            forwarded(),
		api.UnregisterController:        forwarded(),
		api.DescribeQuorum:              forwarded(),
		api.AddRaftVoter:                forwarded(),
		api.RemoveRaftVoter:             forwarded(),
		api.CreateAcls:                  forwarded(),
		api.DeleteAcls:                  forwarded(),
		api.IncrementalAlterConfigs:     later((*Broker).incrementalAlterConfigs),
		api.AlterConfigs:                later((*Broker).alterConfigs),

		// What describes it is read off the image.
		api.DescribeCluster:              answer((*Broker).describeCluster),
		api.DescribeTopicPartitions:      answer((*Broker).describeTopicPartitions),
		api.DescribeConfigs:              answer((*Broker).describeConfigs),
		api.ListConfigResources:          answer((*Broker).listConfigResources),
		api.DescribeClientQuotas:         answer((*Broker).describeClientQuotas),
		api.DescribeUserScramCredentials: answer((*Broker).describeUserScramCredentials),
		api.DescribeAcls:                 answer((*Broker).describeACLs),

		// Nobody has tokens without authentication.
		api.CreateDelegationToken:   answer((*Broker).tokenRequest),
		api.RenewDelegationToken:    answer((*Broker).tokenRequest),
		api.ExpireDelegationToken:   answer((*Broker).tokenRequest),
		api.DescribeDelegationToken: answer((*Broker).tokenRequest),
	}
}

// nothingToSay is an error message that is there and empty, as Kafka's are in responses whose message may not be null by
// default.
func nothingToSay() *string {
	s := ""
	return &s
}

func invalidRequest(format string, args ...any) error {
	return api.WithMessage(api.ErrInvalidRequest, format, args...)
}
