package security

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
)

// StandardAuthorizer is the class that "authorizer.class.name" has when ACLs are to be obeyed.
const StandardAuthorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

// Settings are the authorizer's.
type Settings struct {
	SuperUsers []string // type:name
	// AllowUnspoken is "allow.everyone.if.no.acl.found".
	AllowUnspoken bool
}

// ParseSettings reads the values of "super.users" and "allow.everyone.if.no.acl.found"; "" is unset.
func ParseSettings(superUsers, allowUnspoken string) (Settings, error) {
	var s Settings
	for u := range strings.SplitSeq(superUsers, ";") {
		u = strings.TrimSpace(u)
		if u == "" {
			continue
		}
		if kind, _, ok := strings.Cut(u, ":"); !ok || kind == "" {
			return Settings{}, fmt.Errorf("super.users: expected a string in format principalType:principalName but got %s", u)
		}
		s.SuperUsers = append(s.SuperUsers, u)
	}
	s.AllowUnspoken = strings.EqualFold(strings.TrimSpace(allowUnspoken), "true")
	return s, nil
}

// Authorizer decides who may do what by the entries that were loaded last.
type Authorizer struct {
	superUsers    map[string]bool
	allowUnspoken bool
	audit         *slog.Logger
	acls          atomic.Pointer[ACLs] // nil before the first Load
}

// NewAuthorizer makes an authorizer that allows super users everything and can tell of nobody else before the first Load.
// Denials are logged to audit.
func NewAuthorizer(s Settings, audit *slog.Logger) *Authorizer {
	a := &Authorizer{superUsers: make(map[string]bool), allowUnspoken: s.AllowUnspoken, audit: audit}
	for _, u := range s.SuperUsers {
		a.superUsers[u] = true
	}
	return a
}

// Load puts a version of the entries into force.
func (a *Authorizer) Load(acls *ACLs) { a.acls.Store(acls) }

// Ready says whether the authorizer can tell of others than super users.
func (a *Authorizer) Ready() bool { return a.acls.Load() != nil }

// SuperUser says whether a principal may do everything.
func (a *Authorizer) SuperUser(principal string) bool { return a.superUsers[principal] }

// Decides says whether the authorizer can tell what somebody may do: it can of super users always, of others when it is ready.
func (a *Authorizer) Decides(principal string) bool { return a.Ready() || a.SuperUser(principal) }

// Allows says whether the requester may do an operation on a resource, and logs it when it is what the requester asked for and
// may not. Before the first Load only super users may do anything.
func (a *Authorizer) Allows(who Requester, op Operation, t ResourceType, name string) bool {
	ok := a.Would(who, op, t, name)
	if !ok {
		a.audit.Info("denied", "principal", who.Principal, "host", who.Addr, "operation", op, "resource_type", t, "resource", name)
	}
	return ok
}

// Would is Allows for a question that nobody is refused anything by.
func (a *Authorizer) Would(who Requester, op Operation, t ResourceType, name string) bool {
	if a.superUsers[who.Principal] {
		return true
	}
	acls := a.acls.Load()
	if acls == nil {
		return false
	}
	switch acls.decide(who, op, t, name) {
	case allowed:
		return true
	case unspoken:
		return a.allowUnspoken
	}
	return false
}

// nobodys is the name of a resource that has no entries of its own; Kafka asks about one of that name.
const nobodys = "hardcode"

// AllowsSome says whether the requester may do an operation on at least one resource of a type.
func (a *Authorizer) AllowsSome(who Requester, op Operation, t ResourceType) bool {
	if a.Would(who, op, t, nobodys) {
		return true
	}
	acls := a.acls.Load()
	return acls != nil && acls.decideByType(who, op, t)
}

// operations are what can be done with resources of each type, as bits.
var operations = [resourceTypes]int32{
	Topic:           bits(Read, Write, Create, Describe, Delete, Alter, DescribeConfigs, AlterConfigs),
	Group:           bits(Read, Describe, Delete, DescribeConfigs, AlterConfigs),
	Cluster:         bits(Create, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite, Alter, Describe),
	TransactionalID: bits(Describe, Write, TwoPhaseCommit),
	DelegationToken: bits(Describe),
	User:            bits(CreateTokens, DescribeTokens),
}

func bits(ops ...Operation) int32 {
	var b int32
	for _, o := range ops {
		b |= 1 << o
	}
	return b
}

// Operations are the operations that can be done with resources of a type, as bits by their numbers.
func Operations(t ResourceType) int32 { return operations[t] }

// Operations are those that the requester may do on a resource, as bits by their numbers.
func (a *Authorizer) Operations(who Requester, t ResourceType, name string) int32 {
	var b int32
	for o := AnyOperation; o <= TwoPhaseCommit; o++ {
		if operations[t]&(1<<o) != 0 && a.Would(who, o, t, name) {
			b |= 1 << o
		}
	}
	return b
}
