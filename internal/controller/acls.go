package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// acl is an access control entry without its id. It is a value: equal entries are the same.
type acl struct {
	resourceType int8
	resourceName string
	patternType  int8
	principal    string
	host         string
	operation    int8
	permission   int8
}

// The values of an ACL's enumerations that matter here.
const (
	anyValue       = 1 // ANY, in a filter
	patternMatch   = 2
	patternLiteral = 3
	patternPrefix  = 4
)

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
	a := acl{r.ResourceType, r.ResourceName, r.PatternType, r.Principal, r.Host, r.Operation, r.PermissionType}
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

func (m *acls) create(rc *RequestContext, req *kmsg.CreateACLsRequest) (Result, error) {
	if !m.c.opts.Authorizer {
		return Result{}, errNoAuthorizer
	}
	if !rc.allowed(opAlter, resourceCluster, clusterName) {
		return Result{}, api.ErrClusterAuthorizationFailed
	}
	resp := req.ResponseKind().(*kmsg.CreateACLsResponse)
	var records []message.Versioned
	made := make(map[acl]bool)
	for _, c := range req.Creations {
		a := acl{int8(c.ResourceType), c.ResourceName, int8(c.ResourcePatternType), c.Principal, c.Host, int8(c.Operation), int8(c.PermissionType)}
		out := kmsg.NewCreateACLsResponseResult()
		err := m.check(a)
		out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(err)
		resp.Results = append(resp.Results, out)
		if _, exists := m.ids.Get(a); err != nil || exists || made[a] {
			continue
		}
		made[a] = true
		r := message.NewAccessControlEntryRecord()
		r.ID = m.c.newID()
		r.ResourceType, r.ResourceName, r.PatternType, r.Principal = a.resourceType, a.resourceName, a.patternType, a.principal
		r.Host, r.Operation, r.PermissionType = a.host, a.operation, a.permission
		records = append(records, message.Versioned{Message: r})
	}
	if len(records) > maxRecordsPerUserOp {
		return Result{}, errTooLarge
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

func (m *acls) check(a acl) error {
	refuse := func(format string, args ...any) error { return api.WithMessage(api.ErrInvalidRequest, format, args...) }
	name := func(kind, value int8, names []string) string {
		if value >= 0 && int(value) < len(names) {
			return names[value]
		}
		return names[0]
	}
	switch {
	case a.resourceType < 2 || a.resourceType > 7:
		return refuse("Invalid resourceType %s", name(0, a.resourceType, []string{"UNKNOWN", "ANY"}))
	case a.patternType != patternLiteral && a.patternType != patternPrefix:
		return refuse("Invalid patternType %s", name(0, a.patternType, []string{"UNKNOWN", "ANY", "MATCH"}))
	case a.operation < 2 || a.operation > 15:
		return refuse("Invalid operation %s", name(0, a.operation, []string{"UNKNOWN", "ANY"}))
	case a.permission < 2 || a.permission > 3:
		return refuse("Invalid permissionType %s", name(0, a.permission, []string{"UNKNOWN", "ANY"}))
	case a.resourceName == "":
		return refuse("Resource name should not be empty")
	case !strings.Contains(a.principal, ":"):
		return refuse("Could not parse principal from `%s` (no colon is present separating the principal type from the principal name)", a.principal)
	case a.host == "":
		return refuse("Host pattern cannot be null or empty")
	}
	if strings.Contains(a.host, "/") {
		if !m.c.features.level().CIDRHosts() {
			return api.WithMessage(api.ErrUnsupportedVersion, "CIDR-based ACL host patterns require metadata version %s or higher.", metadata.V4_4_IV1)
		}
		if _, err := netip.ParsePrefix(a.host); err != nil {
			return refuse("Invalid CIDR notation '%s': %s", a.host, err)
		}
	}
	return nil
}

func (m *acls) delete(rc *RequestContext, req *kmsg.DeleteACLsRequest) (Result, error) {
	if !m.c.opts.Authorizer {
		return Result{}, errNoAuthorizer
	}
	if !rc.allowed(opAlter, resourceCluster, clusterName) {
		return Result{}, api.ErrClusterAuthorizationFailed
	}
	resp := req.ResponseKind().(*kmsg.DeleteACLsResponse)
	doomed := make(map[uuid.UUID]bool)
	var records []message.Versioned
	for i := range req.Filters {
		f := &req.Filters[i]
		out := kmsg.NewDeleteACLsResponseResult()
		if err := checkFilter(f); err != nil {
			out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(err)
			resp.Results = append(resp.Results, out)
			continue
		}
		for id, a := range m.byID.All() {
			if !matches(f, a) {
				continue
			}
			x := kmsg.NewDeleteACLsResponseResultMatchingACL()
			x.ResourceType, x.ResourceName = kmsg.ACLResourceType(a.resourceType), a.resourceName
			x.ResourcePatternType, x.Principal, x.Host = kmsg.ACLResourcePatternType(a.patternType), a.principal, a.host
			x.Operation, x.PermissionType = kmsg.ACLOperation(a.operation), kmsg.ACLPermissionType(a.permission)
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
	if len(records) > maxRecordsPerUserOp {
		return Result{}, api.WithMessage(api.ErrPolicyViolation, "Unable to perform excessively large batch operation.")
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

func checkFilter(f *kmsg.DeleteACLsRequestFilter) error {
	switch {
	case f.ResourceType < 1 || f.ResourceType > 7 || f.ResourcePatternType < 1 || f.ResourcePatternType > 4:
		return api.WithMessage(api.ErrInvalidRequest, "Unknown patternFilter.")
	case f.Operation < 1 || f.Operation > 15 || f.PermissionType < 1 || f.PermissionType > 3:
		return api.WithMessage(api.ErrInvalidRequest, "Unknown entryFilter.")
	}
	return nil
}

// matches is Kafka's AclBindingFilter.matches. MATCH finds all entries that would apply to a resource of that name.
func matches(f *kmsg.DeleteACLsRequestFilter, a acl) bool {
	if f.ResourceType != anyValue && int8(f.ResourceType) != a.resourceType ||
		f.Operation != anyValue && int8(f.Operation) != a.operation ||
		f.PermissionType != anyValue && int8(f.PermissionType) != a.permission ||
		f.Principal != nil && *f.Principal != a.principal || f.Host != nil && *f.Host != a.host {
		return false
	}
	pattern := int8(f.ResourcePatternType)
	if !slices.Contains([]int8{anyValue, patternMatch, a.patternType}, pattern) {
		return false
	}
	switch {
	case f.ResourceName == nil:
		return true
	case pattern != patternMatch:
		return *f.ResourceName == a.resourceName
	case a.patternType == patternLiteral:
		return *f.ResourceName == a.resourceName || a.resourceName == "*"
	}
	return strings.HasPrefix(*f.ResourceName, a.resourceName)
}
