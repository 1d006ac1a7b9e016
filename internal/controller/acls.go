package controller

import (
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/security"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// acl is an access control entry without its id.
type acl = security.ACL

// acls manages access control entries. It decides nothing by them: that is the authorizer's business on each broker.
type acls struct {
	c    *Core
	byID *timeline.Map[uuid.UUID, acl]
	ids  *timeline.Map[acl, uuid.UUID]
}

func newACLs(c *Core) *acls {
	return &acls{c: c, byID: timeline.NewMap[uuid.UUID, acl](c.registry), ids: timeline.NewMap[acl, uuid.UUID](c.registry)}
}

func (m *acls) replay(r *message.AccessControlEntryRecord) {
	a := acl{ResourceType: r.ResourceType, ResourceName: r.ResourceName, PatternType: r.PatternType, Principal: r.Principal, Host: r.Host,
		Operation: r.Operation, PermissionType: r.PermissionType}
	m.byID.Set(r.ID, a)
	m.ids.Set(a, r.ID)
}

func (m *acls) replayRemove(r *message.RemoveAccessControlEntryRecord) error {
	a, existed := m.byID.Delete(r.ID)
	if !existed {
		return fmt.Errorf("no ACL has id %s", r.ID)
	}
	m.ids.Delete(a)
	return nil
}

var errNoAuthorizer = api.WithMessage(api.ErrSecurityDisabled, "No Authorizer is configured.")

func (m *acls) create(req *kmsg.CreateACLsRequest) (Result, error) {
	if !m.c.opts.Authorizer {
		return Result{}, errNoAuthorizer
	}
	for _, c := range req.Creations {
		if namesAny(c) {
			return Result{}, api.ErrUnknownServerError // what Kafka makes of it
		}
	}
	resp := req.ResponseKind().(*kmsg.CreateACLsResponse)
	var records []message.Versioned
	made := make(map[acl]bool)
	for _, c := range req.Creations {
		a := acl{ResourceType: int8(c.ResourceType), ResourceName: c.ResourceName, PatternType: int8(c.ResourcePatternType), Principal: c.Principal,
			Host: c.Host, Operation: int8(c.Operation), PermissionType: int8(c.PermissionType)}
		out := kmsg.NewCreateACLsResponseResult()
		err := m.check(&a)
		if out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(err); err == nil {
			out.ErrorMessage = new(string)
		}
		resp.Results = append(resp.Results, out)
		if _, exists := m.ids.Get(a); err != nil || exists || made[a] {
			continue
		}
		made[a] = true
		r := message.NewAccessControlEntryRecord()
		r.ID = m.c.newID()
		r.ResourceType, r.ResourceName, r.PatternType, r.Principal = a.ResourceType, a.ResourceName, a.PatternType, a.Principal
		r.Host, r.Operation, r.PermissionType = a.Host, a.Operation, a.PermissionType
		records = append(records, message.Versioned{Message: r})
	}
	if len(records) > maxRecordsPerUserOp {
		return Result{}, errTooLarge
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

// namesAny says whether an entry has what only a filter can have.
func namesAny(c kmsg.CreateACLsRequestCreation) bool {
	pattern := security.PatternType(c.ResourcePatternType)
	return security.ResourceType(c.ResourceType) == security.AnyResource || pattern == security.AnyPattern || pattern == security.MatchPattern ||
		security.Operation(c.Operation) == security.AnyOperation || security.Permission(c.PermissionType) == security.AnyPermission
}

// check finds out whether an entry may be added. The first two checks are in Kafka's request handler, the others in its controller.
func (m *acls) check(a *acl) error {
	refuse := func(format string, args ...any) error { return api.WithMessage(api.ErrInvalidRequest, format, args...) }
	resourceType, operation := security.ResourceType(a.ResourceType), security.Operation(a.Operation)
	pattern, permission := security.PatternType(a.PatternType), security.Permission(a.PermissionType)
	switch {
	case resourceType == security.Cluster && a.ResourceName != security.ClusterName:
		return refuse("The only valid name for the CLUSTER resource is %s", security.ClusterName)
	case a.ResourceName == "":
		return refuse("Invalid empty resource name")
	case resourceType < security.Topic || resourceType > security.User:
		return refuse("Invalid resourceType %s", resourceType)
	case pattern != security.Literal && pattern != security.Prefixed:
		return refuse("Invalid patternType %s", pattern)
	case operation < security.All || operation > security.TwoPhaseCommit:
		return refuse("Invalid operation %s", operation)
	case permission != security.Deny && permission != security.Allow:
		return refuse("Invalid permissionType %s", permission)
	case !strings.Contains(a.Principal, ":"):
		return refuse("Could not parse principal from `%s` (no colon is present separating the principal type from the principal name)", a.Principal)
	case a.Host == "":
		return refuse("Host pattern cannot be null or empty")
	}
	if strings.Contains(a.Host, "/") {
		if !m.c.features.level().CIDRHosts() {
			return api.WithMessage(api.ErrUnsupportedVersion, "CIDR-based ACL host patterns require metadata version %s or higher.", metadata.V4_4_IV1)
		}
		if _, err := security.ParseRange(a.Host); err != nil {
			return refuse("Invalid CIDR notation '%s': %s", a.Host, err)
		}
	}
	return nil
}

func (m *acls) delete(req *kmsg.DeleteACLsRequest) (Result, error) {
	if !m.c.opts.Authorizer {
		return Result{}, errNoAuthorizer
	}
	resp := req.ResponseKind().(*kmsg.DeleteACLsResponse)
	doomed := make(map[uuid.UUID]bool)
	var records []message.Versioned
	for i := range req.Filters {
		f := &req.Filters[i]
		filter := security.Filter{ResourceType: int8(f.ResourceType), ResourceName: f.ResourceName, PatternType: int8(f.ResourcePatternType),
			Principal: f.Principal, Host: f.Host, Operation: int8(f.Operation), PermissionType: int8(f.PermissionType)}
		out := kmsg.NewDeleteACLsResponseResult()
		if err := checkFilter(&filter); err != nil {
			out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(err)
			resp.Results = append(resp.Results, out)
			continue
		}
		for id, a := range m.byID.All() {
			if !filter.Matches(&a) {
				continue
			}
			if len(records) >= maxRecordsPerUserOp {
				return Result{}, api.WithMessage(api.ErrInvalidRequest, "Cannot remove more than %d acls in a single delete operation.", maxRecordsPerUserOp)
			}
			x := kmsg.NewDeleteACLsResponseResultMatchingACL()
			x.ResourceType, x.ResourceName = kmsg.ACLResourceType(a.ResourceType), a.ResourceName
			x.ResourcePatternType, x.Principal, x.Host = kmsg.ACLResourcePatternType(a.PatternType), a.Principal, a.Host
			x.Operation, x.PermissionType = kmsg.ACLOperation(a.Operation), kmsg.ACLPermissionType(a.PermissionType)
			out.MatchingACLs = append(out.MatchingACLs, x)
			if !doomed[id] {
				doomed[id] = true
				r := message.NewRemoveAccessControlEntryRecord()
				r.ID = id
				records = append(records, message.Versioned{Message: r})
			}
		}
		resp.Results = append(resp.Results, out)
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

func checkFilter(f *security.Filter) error {
	switch {
	case f.UnknownPattern():
		return api.WithMessage(api.ErrInvalidRequest, "Unknown patternFilter.")
	case f.UnknownEntry():
		return api.WithMessage(api.ErrInvalidRequest, "Unknown entryFilter.")
	}
	return nil
}
