package api

import "strconv"

// Key is the number of an API. The constants have Kafka's names, letter for letter.
type Key int16

// The live keys of Kafka 4.4. 4 to 7 were ZooKeeper's and have no version left.
const (
	Produce                               Key = 0  // append record batches to partitions
	Fetch                                 Key = 1  // read batches (consumers, follower replicas, raft followers)
	ListOffsets                           Key = 2  // offset by timestamp, or earliest, latest, local, tiered
	Metadata                              Key = 3  // topics, partition leaders and live brokers
	OffsetCommit                          Key = 8  // store group offsets
	OffsetFetch                           Key = 9  // read group offsets, several groups at once from v8
	FindCoordinator                       Key = 10 // locate group, transaction or share coordinators
	JoinGroup                             Key = 11 // classic group: join, start a rebalance
	Heartbeat                             Key = 12 // classic group: liveness
	LeaveGroup                            Key = 13 // classic group: leave, several members from v3
	SyncGroup                             Key = 14 // classic group: hand out the leader's assignment
	DescribeGroups                        Key = 15 // classic group: members and state
	ListGroups                            Key = 16 // groups of one coordinator, by state and type
	SaslHandshake                         Key = 17 // choose the SASL mechanism
	ApiVersions                           Key = 18 // negotiate API versions; features; cluster and node identity check from v5
	CreateTopics                          Key = 19 // create topics
	DeleteTopics                          Key = 20 // delete topics by name or ID
	DeleteRecords                         Key = 21 // advance the log start offset
	InitProducerId                        Key = 22 // producer ID and epoch
	OffsetForLeaderEpoch                  Key = 23 // end offset of a leader epoch
	AddPartitionsToTxn                    Key = 24 // enlist partitions in transactions; v4+ broker to coordinator
	AddOffsetsToTxn                       Key = 25 // enlist a group's offsets partition in a transaction
	EndTxn                                Key = 26 // commit or abort; from v5 returns the bumped epoch
	WriteTxnMarkers                       Key = 27 // coordinator writes commit or abort markers to partition leaders
	TxnOffsetCommit                       Key = 28 // offsets inside a transaction
	DescribeAcls                          Key = 29 // list ACLs that match a filter
	CreateAcls                            Key = 30 // add ACLs
	DeleteAcls                            Key = 31 // remove ACLs that match filters
	DescribeConfigs                       Key = 32 // effective configs with source and synonyms
	AlterConfigs                          Key = 33 // replace a resource's configs (legacy)
	AlterReplicaLogDirs                   Key = 34 // move replicas between log dirs of a broker
	DescribeLogDirs                       Key = 35 // log dirs, sizes and lag per replica
	SaslAuthenticate                      Key = 36 // SASL exchange, one token a request
	CreatePartitions                      Key = 37 // add partitions to topics
	CreateDelegationToken                 Key = 38 // issue a delegation token
	RenewDelegationToken                  Key = 39 // extend a token
	ExpireDelegationToken                 Key = 40 // expire a token
	DescribeDelegationToken               Key = 41 // list tokens
	DeleteGroups                          Key = 42 // delete groups
	ElectLeaders                          Key = 43 // preferred or unclean leader election
	IncrementalAlterConfigs               Key = 44 // set, delete, append, subtract single configs
	AlterPartitionReassignments           Key = 45 // start or cancel reassignments
	ListPartitionReassignments            Key = 46 // reassignments in progress
	OffsetDelete                          Key = 47 // delete offsets of a group
	DescribeClientQuotas                  Key = 48 // list quotas
	AlterClientQuotas                     Key = 49 // set or remove quotas
	DescribeUserScramCredentials          Key = 50 // SCRAM mechanisms and iterations per user
	AlterUserScramCredentials             Key = 51 // set or remove SCRAM credentials
	Vote                                  Key = 52 // raft: vote and pre-vote
	BeginQuorumEpoch                      Key = 53 // raft: leader announces its epoch
	EndQuorumEpoch                        Key = 54 // raft: leader resigns
	DescribeQuorum                        Key = 55 // raft: leader, voters, observers and their lag
	AlterPartition                        Key = 56 // partition leader proposes a new ISR
	UpdateFeatures                        Key = 57 // finalise feature levels, with dry run
	Envelope                              Key = 58 // broker forwards a client's request with its principal
	FetchSnapshot                         Key = 59 // raft: download a snapshot
	DescribeCluster                       Key = 60 // brokers or controllers, fenced ones on request
	DescribeProducers                     Key = 61 // active producers of partitions
	BrokerRegistration                    Key = 62 // broker joins the cluster, gets its epoch
	BrokerHeartbeat                       Key = 63 // broker liveness, fencing, offline and cordoned dirs
	UnregisterBroker                      Key = 64 // forget a broker
	DescribeTransactions                  Key = 65 // state of transactions
	ListTransactions                      Key = 66 // transactions of one coordinator, filtered
	AllocateProducerIds                   Key = 67 // coordinator takes a block of producer IDs
	ConsumerGroupHeartbeat                Key = 68 // consumer group (KIP-848): join, poll assignment, leave
	ConsumerGroupDescribe                 Key = 69 // consumer group: members, assignments
	ControllerRegistration                Key = 70 // controller registers endpoints and features
	GetTelemetrySubscriptions             Key = 71 // which metrics to push, how often
	PushTelemetry                         Key = 72 // push client metrics (OTLP)
	AssignReplicasToDirs                  Key = 73 // broker tells which dir each replica is in
	ListConfigResources                   Key = 74 // names of config resources of any type (v0: client metrics only)
	DescribeTopicPartitions               Key = 75 // paged topic description with ELR
	ShareGroupHeartbeat                   Key = 76 // share group: join, assignment, leave
	ShareGroupDescribe                    Key = 77 // share group: members, assignments
	ShareFetch                            Key = 78 // share group: acquire records, piggybacked acknowledgements
	ShareAcknowledge                      Key = 79 // share group: acknowledge records
	AddRaftVoter                          Key = 80 // raft: add a voter
	RemoveRaftVoter                       Key = 81 // raft: remove a voter
	UpdateRaftVoter                       Key = 82 // raft: voter updates endpoints and kraft.version range
	InitializeShareGroupState             Key = 83 // share coordinator: create partition state
	ReadShareGroupState                   Key = 84 // share coordinator: read partition state
	WriteShareGroupState                  Key = 85 // share coordinator: write partition state
	DeleteShareGroupState                 Key = 86 // share coordinator: delete partition state
	ReadShareGroupStateSummary            Key = 87 // share coordinator: start offset and epochs only
	StreamsGroupHeartbeat                 Key = 88 // streams group (KIP-1071): topology, tasks, liveness
	StreamsGroupDescribe                  Key = 89 // streams group: members, tasks, topology
	DescribeShareGroupOffsets             Key = 90 // share group start offsets and lag
	AlterShareGroupOffsets                Key = 91 // reset share group offsets
	DeleteShareGroupOffsets               Key = 92 // delete share group offsets
	StreamsGroupTopologyDescriptionUpdate Key = 93 // streams client sends its topology description (KIP-1331)
	UnregisterController                  Key = 94 // forget a controller (the UnregisterBroker of controllers)
)

const maxKey = UnregisterController

// String is Kafka's name of the API.
func (k Key) String() string {
	if d := k.def(); d != nil {
		return d.name
	}
	return "ApiKey(" + strconv.Itoa(int(k)) + ")"
}

// def is the row of a key, or nil when there is no such key.
func (k Key) def() *keyDef {
	if k < 0 || k > maxKey || keys[k].name == "" {
		return nil
	}
	return &keys[k]
}

// Listener is the kind of a listener, which decides the APIs that it serves.
type Listener uint8

const (
	// BrokerListener serves clients and other brokers.
	BrokerListener Listener = iota
	// ControllerListener serves the nodes of the cluster and, since KIP-919, admin clients.
	ControllerListener
)

func (l Listener) String() string {
	if l == ControllerListener {
		return "controller"
	}
	return "broker"
}

func (l Listener) bit() listeners { return 1 << l }

type listeners uint8

const (
	onBroker     = listeners(1 << BrokerListener)
	onController = listeners(1 << ControllerListener)
)

// never is the flexible field of keys whose versions all have the old encoding.
const never = 1<<15 - 1

// keyDef is what Kafka 4.4 serves of a key.
type keyDef struct {
	name      string
	min, max  int16 // versions that are accepted
	flexible  int16 // first version with compact lengths and tagged fields (KIP-482)
	listeners listeners
	forward   bool // a broker passes a client's request on to the active controller
}

var keys = [maxKey + 1]keyDef{
	Produce:                               {name: "Produce", min: 3, max: 13, flexible: 9, listeners: onBroker},
	Fetch:                                 {name: "Fetch", min: 4, max: 18, flexible: 12, listeners: onBroker | onController},
	ListOffsets:                           {name: "ListOffsets", min: 1, max: 11, flexible: 6, listeners: onBroker},
	Metadata:                              {name: "Metadata", min: 0, max: 13, flexible: 9, listeners: onBroker},
	OffsetCommit:                          {name: "OffsetCommit", min: 2, max: 10, flexible: 8, listeners: onBroker},
	OffsetFetch:                           {name: "OffsetFetch", min: 1, max: 10, flexible: 6, listeners: onBroker},
	FindCoordinator:                       {name: "FindCoordinator", min: 0, max: 6, flexible: 3, listeners: onBroker},
	JoinGroup:                             {name: "JoinGroup", min: 0, max: 9, flexible: 6, listeners: onBroker},
	Heartbeat:                             {name: "Heartbeat", min: 0, max: 4, flexible: 4, listeners: onBroker},
	LeaveGroup:                            {name: "LeaveGroup", min: 0, max: 5, flexible: 4, listeners: onBroker},
	SyncGroup:                             {name: "SyncGroup", min: 0, max: 5, flexible: 4, listeners: onBroker},
	DescribeGroups:                        {name: "DescribeGroups", min: 0, max: 6, flexible: 5, listeners: onBroker},
	ListGroups:                            {name: "ListGroups", min: 0, max: 5, flexible: 3, listeners: onBroker},
	SaslHandshake:                         {name: "SaslHandshake", min: 0, max: 1, flexible: never, listeners: onBroker | onController},
	ApiVersions:                           {name: "ApiVersions", min: 0, max: 5, flexible: 3, listeners: onBroker | onController},
	CreateTopics:                          {name: "CreateTopics", min: 2, max: 7, flexible: 5, listeners: onBroker | onController, forward: true},
	DeleteTopics:                          {name: "DeleteTopics", min: 1, max: 6, flexible: 4, listeners: onBroker | onController, forward: true},
	DeleteRecords:                         {name: "DeleteRecords", min: 0, max: 2, flexible: 2, listeners: onBroker},
	InitProducerId:                        {name: "InitProducerId", min: 0, max: 5, flexible: 2, listeners: onBroker},
	OffsetForLeaderEpoch:                  {name: "OffsetForLeaderEpoch", min: 2, max: 4, flexible: 4, listeners: onBroker},
	AddPartitionsToTxn:                    {name: "AddPartitionsToTxn", min: 0, max: 5, flexible: 3, listeners: onBroker},
	AddOffsetsToTxn:                       {name: "AddOffsetsToTxn", min: 0, max: 4, flexible: 3, listeners: onBroker},
	EndTxn:                                {name: "EndTxn", min: 0, max: 5, flexible: 3, listeners: onBroker},
	WriteTxnMarkers:                       {name: "WriteTxnMarkers", min: 1, max: 2, flexible: 1, listeners: onBroker},
	TxnOffsetCommit:                       {name: "TxnOffsetCommit", min: 0, max: 6, flexible: 3, listeners: onBroker},
	DescribeAcls:                          {name: "DescribeAcls", min: 1, max: 3, flexible: 2, listeners: onBroker | onController},
	CreateAcls:                            {name: "CreateAcls", min: 1, max: 3, flexible: 2, listeners: onBroker | onController, forward: true},
	DeleteAcls:                            {name: "DeleteAcls", min: 1, max: 3, flexible: 2, listeners: onBroker | onController, forward: true},
	DescribeConfigs:                       {name: "DescribeConfigs", min: 1, max: 4, flexible: 4, listeners: onBroker | onController},
	AlterConfigs:                          {name: "AlterConfigs", min: 0, max: 2, flexible: 2, listeners: onBroker | onController, forward: true},
	AlterReplicaLogDirs:                   {name: "AlterReplicaLogDirs", min: 1, max: 2, flexible: 2, listeners: onBroker},
	DescribeLogDirs:                       {name: "DescribeLogDirs", min: 1, max: 5, flexible: 2, listeners: onBroker},
	SaslAuthenticate:                      {name: "SaslAuthenticate", min: 0, max: 2, flexible: 2, listeners: onBroker | onController},
	CreatePartitions:                      {name: "CreatePartitions", min: 0, max: 3, flexible: 2, listeners: onBroker | onController, forward: true},
	CreateDelegationToken:                 {name: "CreateDelegationToken", min: 1, max: 3, flexible: 2, listeners: onBroker | onController, forward: true},
	RenewDelegationToken:                  {name: "RenewDelegationToken", min: 1, max: 2, flexible: 2, listeners: onBroker | onController, forward: true},
	ExpireDelegationToken:                 {name: "ExpireDelegationToken", min: 1, max: 2, flexible: 2, listeners: onBroker | onController, forward: true},
	DescribeDelegationToken:               {name: "DescribeDelegationToken", min: 1, max: 3, flexible: 2, listeners: onBroker | onController},
	DeleteGroups:                          {name: "DeleteGroups", min: 0, max: 3, flexible: 2, listeners: onBroker},
	ElectLeaders:                          {name: "ElectLeaders", min: 0, max: 2, flexible: 2, listeners: onBroker | onController, forward: true},
	IncrementalAlterConfigs:               {name: "IncrementalAlterConfigs", min: 0, max: 1, flexible: 1, listeners: onBroker | onController, forward: true},
	AlterPartitionReassignments:           {name: "AlterPartitionReassignments", min: 0, max: 1, flexible: 0, listeners: onBroker | onController, forward: true},
	ListPartitionReassignments:            {name: "ListPartitionReassignments", min: 0, max: 0, flexible: 0, listeners: onBroker | onController, forward: true},
	OffsetDelete:                          {name: "OffsetDelete", min: 0, max: 0, flexible: never, listeners: onBroker},
	DescribeClientQuotas:                  {name: "DescribeClientQuotas", min: 0, max: 1, flexible: 1, listeners: onBroker},
	AlterClientQuotas:                     {name: "AlterClientQuotas", min: 0, max: 1, flexible: 1, listeners: onBroker | onController, forward: true},
	DescribeUserScramCredentials:          {name: "DescribeUserScramCredentials", min: 0, max: 0, flexible: 0, listeners: onBroker | onController},
	AlterUserScramCredentials:             {name: "AlterUserScramCredentials", min: 0, max: 0, flexible: 0, listeners: onBroker | onController, forward: true},
	Vote:                                  {name: "Vote", min: 0, max: 2, flexible: 0, listeners: onController},
	BeginQuorumEpoch:                      {name: "BeginQuorumEpoch", min: 0, max: 1, flexible: 1, listeners: onController},
	EndQuorumEpoch:                        {name: "EndQuorumEpoch", min: 0, max: 1, flexible: 1, listeners: onController},
	DescribeQuorum:                        {name: "DescribeQuorum", min: 0, max: 2, flexible: 0, listeners: onBroker | onController, forward: true},
	AlterPartition:                        {name: "AlterPartition", min: 2, max: 3, flexible: 2, listeners: onController},
	UpdateFeatures:                        {name: "UpdateFeatures", min: 0, max: 2, flexible: 0, listeners: onBroker | onController, forward: true},
	Envelope:                              {name: "Envelope", min: 0, max: 0, flexible: 0, listeners: onController},
	FetchSnapshot:                         {name: "FetchSnapshot", min: 0, max: 1, flexible: 0, listeners: onController},
	DescribeCluster:                       {name: "DescribeCluster", min: 0, max: 2, flexible: 0, listeners: onBroker | onController},
	DescribeProducers:                     {name: "DescribeProducers", min: 0, max: 0, flexible: 0, listeners: onBroker},
	BrokerRegistration:                    {name: "BrokerRegistration", min: 0, max: 4, flexible: 0, listeners: onController},
	BrokerHeartbeat:                       {name: "BrokerHeartbeat", min: 0, max: 2, flexible: 0, listeners: onController},
	UnregisterBroker:                      {name: "UnregisterBroker", min: 0, max: 0, flexible: 0, listeners: onBroker | onController, forward: true},
	DescribeTransactions:                  {name: "DescribeTransactions", min: 0, max: 0, flexible: 0, listeners: onBroker},
	ListTransactions:                      {name: "ListTransactions", min: 0, max: 2, flexible: 0, listeners: onBroker},
	AllocateProducerIds:                   {name: "AllocateProducerIds", min: 0, max: 0, flexible: 0, listeners: onController, forward: true},
	ConsumerGroupHeartbeat:                {name: "ConsumerGroupHeartbeat", min: 0, max: 1, flexible: 0, listeners: onBroker},
	ConsumerGroupDescribe:                 {name: "ConsumerGroupDescribe", min: 0, max: 1, flexible: 0, listeners: onBroker},
	ControllerRegistration:                {name: "ControllerRegistration", min: 0, max: 0, flexible: 0, listeners: onController},
	GetTelemetrySubscriptions:             {name: "GetTelemetrySubscriptions", min: 0, max: 0, flexible: 0, listeners: onBroker},
	PushTelemetry:                         {name: "PushTelemetry", min: 0, max: 0, flexible: 0, listeners: onBroker},
	AssignReplicasToDirs:                  {name: "AssignReplicasToDirs", min: 0, max: 0, flexible: 0, listeners: onController},
	ListConfigResources:                   {name: "ListConfigResources", min: 0, max: 1, flexible: 0, listeners: onBroker},
	DescribeTopicPartitions:               {name: "DescribeTopicPartitions", min: 0, max: 0, flexible: 0, listeners: onBroker},
	ShareGroupHeartbeat:                   {name: "ShareGroupHeartbeat", min: 1, max: 1, flexible: 1, listeners: onBroker},
	ShareGroupDescribe:                    {name: "ShareGroupDescribe", min: 1, max: 1, flexible: 1, listeners: onBroker},
	ShareFetch:                            {name: "ShareFetch", min: 1, max: 2, flexible: 1, listeners: onBroker},
	ShareAcknowledge:                      {name: "ShareAcknowledge", min: 1, max: 2, flexible: 1, listeners: onBroker},
	AddRaftVoter:                          {name: "AddRaftVoter", min: 0, max: 1, flexible: 0, listeners: onBroker | onController, forward: true},
	RemoveRaftVoter:                       {name: "RemoveRaftVoter", min: 0, max: 0, flexible: 0, listeners: onBroker | onController, forward: true},
	UpdateRaftVoter:                       {name: "UpdateRaftVoter", min: 0, max: 0, flexible: 0, listeners: onController},
	InitializeShareGroupState:             {name: "InitializeShareGroupState", min: 0, max: 0, flexible: 0, listeners: onBroker},
	ReadShareGroupState:                   {name: "ReadShareGroupState", min: 0, max: 0, flexible: 0, listeners: onBroker},
	WriteShareGroupState:                  {name: "WriteShareGroupState", min: 0, max: 1, flexible: 0, listeners: onBroker},
	DeleteShareGroupState:                 {name: "DeleteShareGroupState", min: 0, max: 0, flexible: 0, listeners: onBroker},
	ReadShareGroupStateSummary:            {name: "ReadShareGroupStateSummary", min: 0, max: 1, flexible: 0, listeners: onBroker},
	StreamsGroupHeartbeat:                 {name: "StreamsGroupHeartbeat", min: 0, max: 1, flexible: 0, listeners: onBroker},
	StreamsGroupDescribe:                  {name: "StreamsGroupDescribe", min: 0, max: 1, flexible: 0, listeners: onBroker},
	DescribeShareGroupOffsets:             {name: "DescribeShareGroupOffsets", min: 0, max: 1, flexible: 0, listeners: onBroker},
	AlterShareGroupOffsets:                {name: "AlterShareGroupOffsets", min: 0, max: 0, flexible: 0, listeners: onBroker},
	DeleteShareGroupOffsets:               {name: "DeleteShareGroupOffsets", min: 0, max: 0, flexible: 0, listeners: onBroker},
	StreamsGroupTopologyDescriptionUpdate: {name: "StreamsGroupTopologyDescriptionUpdate", min: 0, max: 0, flexible: 0, listeners: onBroker},
	UnregisterController:                  {name: "UnregisterController", min: 0, max: 0, flexible: 0, listeners: onBroker | onController, forward: true},
}

// Exists says whether the key is live, on whatever listener.
func (k Key) Exists() bool { return k.def() != nil }

// Versions is the range of versions that Kafka 4.4 accepts; ok is false when there is no such key.
func (k Key) Versions() (min, max int16, ok bool) {
	d := k.def()
	if d == nil {
		return 0, 0, false
	}
	return d.min, d.max, true
}

// ServedOn says whether Kafka serves the key on such a listener.
func (k Key) ServedOn(l Listener) bool {
	d := k.def()
	return d != nil && d.listeners&l.bit() != 0
}

// Forwarded says whether a broker passes the request on to the active controller (KIP-590).
func (k Key) Forwarded() bool {
	d := k.def()
	return d != nil && d.forward
}

// Flexible says whether a version has compact lengths and tagged fields (KIP-482), in request and response alike. The request
// header is v2 then and v1 otherwise.
func Flexible(k Key, version int16) bool {
	d := k.def()
	return d != nil && version >= d.flexible
}

// RequestHeaderVersion is the version of the header before a request.
func RequestHeaderVersion(k Key, version int16) int16 {
	if Flexible(k, version) {
		return 2
	}
	return 1
}

// ResponseHeaderVersion is the version of the header before a response. That of ApiVersions is always 0, so that a client can
// read the answer to a version that the server does not know (KIP-511).
func ResponseHeaderVersion(k Key, version int16) int16 {
	if k != ApiVersions && Flexible(k, version) {
		return 1
	}
	return 0
}
