package security

import (
	"fmt"
	"strings"
)

// Operation is what somebody wants to do. The numbers are those of the wire.
type Operation int8

// The operations that can be asked for, and in entries All, which is every one of them.
const (
	AnyOperation    Operation = 1
	All             Operation = 2
	Read            Operation = 3
	Write           Operation = 4
	Create          Operation = 5
	Delete          Operation = 6
	Alter           Operation = 7
	Describe        Operation = 8
	ClusterAction   Operation = 9
	DescribeConfigs Operation = 10
	AlterConfigs    Operation = 11
	IdempotentWrite Operation = 12
	CreateTokens    Operation = 13
	DescribeTokens  Operation = 14
	TwoPhaseCommit  Operation = 15
)

var operationNames = []string{"UNKNOWN", "ANY", "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION",
	"DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT"}

// String is Kafka's name.
func (o Operation) String() string { return nameOf(operationNames, int8(o)) }

// ResourceType is the type of what somebody wants to do something with. The numbers are those of the wire.
type ResourceType int8

// The types of resources.
const (
	AnyResource     ResourceType = 1
	Topic           ResourceType = 2
	Group           ResourceType = 3
	Cluster         ResourceType = 4
	TransactionalID ResourceType = 5
	DelegationToken ResourceType = 6
	User            ResourceType = 7
)

var resourceNames = []string{"UNKNOWN", "ANY", "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"}

// String is Kafka's name.
func (t ResourceType) String() string { return nameOf(resourceNames, int8(t)) }

// ClusterName is the name of the only resource of type Cluster.
const ClusterName = "kafka-cluster"

// PatternType says how the name in an entry or a filter names resources. The numbers are those of the wire.
type PatternType int8

// The types of patterns. AnyPattern and MatchPattern are for filters only.
const (
	AnyPattern   PatternType = 1
	MatchPattern PatternType = 2
	Literal      PatternType = 3
	Prefixed     PatternType = 4
)

var patternNames = []string{"UNKNOWN", "ANY", "MATCH", "LITERAL", "PREFIXED"}

// String is Kafka's name.
func (t PatternType) String() string { return nameOf(patternNames, int8(t)) }

// Permission says whether an entry denies or allows. The numbers are those of the wire.
type Permission int8

// The permissions. AnyPermission is for filters only.
const (
	AnyPermission Permission = 1
	Deny          Permission = 2
	Allow         Permission = 3
)

var permissionNames = []string{"UNKNOWN", "ANY", "DENY", "ALLOW"}

// String is Kafka's name.
func (p Permission) String() string { return nameOf(permissionNames, int8(p)) }

func nameOf(names []string, n int8) string {
	if n < 0 || int(n) >= len(names) {
		return names[0]
	}
	return names[n]
}

const (
	wildcard          = "*"      // as host or literal name: any
	wildcardPrincipal = "User:*" // everybody, of whatever type
)

// ACL is one access control entry. It is a value: equal entries are the same. The numbers are those of the wire, and may be
// unknown ones.
type ACL struct {
	ResourceType   int8
	ResourceName   string
	PatternType    int8
	Principal      string
	Host           string
	Operation      int8
	PermissionType int8
}

// String shows the entry as Kafka's logs do.
func (a ACL) String() string {
	return fmt.Sprintf("(%v %v %v, principal=%s, host=%s, %v, %v)", ResourceType(a.ResourceType), PatternType(a.PatternType), a.ResourceName,
		a.Principal, a.Host, Operation(a.Operation), Permission(a.PermissionType))
}

// Filter finds entries. Nil is any.
type Filter struct {
	ResourceType   int8
	ResourceName   *string
	PatternType    int8
	Principal      *string
	Host           *string
	Operation      int8
	PermissionType int8
}

// UnknownPattern says whether the filter names resources in a way that isn't known.
func (f *Filter) UnknownPattern() bool {
	return nameOf(resourceNames, f.ResourceType) == resourceNames[0] || nameOf(patternNames, f.PatternType) == patternNames[0]
}

// UnknownEntry says whether the filter has an operation or permission that isn't known.
func (f *Filter) UnknownEntry() bool {
	return nameOf(operationNames, f.Operation) == operationNames[0] || nameOf(permissionNames, f.PermissionType) == permissionNames[0]
}

// Matches says whether the filter finds the entry. MatchPattern finds all entries that would apply to a resource of that name.
func (f *Filter) Matches(a *ACL) bool {
	if f.ResourceType != int8(AnyResource) && f.ResourceType != a.ResourceType ||
		f.Operation != int8(AnyOperation) && f.Operation != a.Operation ||
		f.PermissionType != int8(AnyPermission) && f.PermissionType != a.PermissionType ||
		f.Principal != nil && *f.Principal != a.Principal || f.Host != nil && *f.Host != a.Host {
		return false
	}
	pattern := PatternType(f.PatternType)
	switch {
	case pattern != AnyPattern && pattern != MatchPattern && int8(pattern) != a.PatternType:
		return false
	case f.ResourceName == nil:
		return true
	case pattern != MatchPattern:
		return *f.ResourceName == a.ResourceName
	case PatternType(a.PatternType) == Literal:
		return *f.ResourceName == a.ResourceName || a.ResourceName == wildcard
	}
	return strings.HasPrefix(*f.ResourceName, a.ResourceName)
}
