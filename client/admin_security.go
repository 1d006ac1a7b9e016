package client

import (
	"cmp"
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// What an ACL is about, by Kafka's numbers. String gives Kafka's names.
type (
	ACLResource   = kmsg.ACLResourceType
	ACLPattern    = kmsg.ACLResourcePatternType
	ACLOperation  = kmsg.ACLOperation
	ACLPermission = kmsg.ACLPermissionType
)

// ACL allows or denies a principal from a host something with resources. In a filter, Any (1) of the numbers and "" of the texts
// stand for everything.
type ACL struct {
	Resource   ACLResource
	Name       string // of the resource; "*" is all
	Pattern    ACLPattern
	Principal  string // "User:alice"; "User:*" is everyone
	Host       string // "*" is every
	Operation  ACLOperation
	Permission ACLPermission
}

// AnyACL is the filter that all ACLs fit.
var AnyACL = ACL{
	Resource: kmsg.ACLResourceTypeAny, Pattern: kmsg.ACLResourcePatternTypeAny, Operation: kmsg.ACLOperationAny,
	Permission: kmsg.ACLPermissionTypeAny,
}

func compareACLs(a, b ACL) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Pattern, b.Pattern),
		cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Permission, b.Permission))
}

// orNil is null in a filter for "".
func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// DescribeACLs lists the ACLs that a filter fits.
func (c *Client) DescribeACLs(ctx context.Context, filter ACL) ([]ACL, error) {
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourceName, req.ResourcePatternType = filter.Resource, orNil(filter.Name), filter.Pattern
	req.Principal, req.Host, req.Operation, req.PermissionType = orNil(filter.Principal), orNil(filter.Host), filter.Operation, filter.Permission
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.DescribeACLsResponse) error { return errorOf(r.ErrorCode, r.ErrorMessage) })
	if err != nil {
		return nil, err
	}
	var out []ACL
	for _, r := range resp.Resources {
		for _, a := range r.ACLs {
			out = append(out, ACL{r.ResourceType, r.ResourceName, r.ResourcePatternType, a.Principal, a.Host, a.Operation, a.PermissionType})
		}
	}
	slices.SortFunc(out, compareACLs)
	return out, nil
}

// ACLResult is what became of one ACL.
type ACLResult struct {
	ACL
	Err error
}

// CreateACLs adds ACLs; one that exists is no error. The results are in the order of acls.
func (c *Client) CreateACLs(ctx context.Context, acls []ACL) ([]ACLResult, error) {
	req := kmsg.NewPtrCreateACLsRequest()
	for _, a := range acls {
		rc := kmsg.NewCreateACLsRequestCreation()
		rc.ResourceType, rc.ResourceName, rc.ResourcePatternType = a.Resource, a.Name, a.Pattern
		rc.Principal, rc.Host, rc.Operation, rc.PermissionType = a.Principal, a.Host, a.Operation, a.Permission
		req.Creations = append(req.Creations, rc)
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.CreateACLsResponse) error {
		if len(r.Results) != len(acls) {
			return fmt.Errorf("%d answers for %d ACLs", len(r.Results), len(acls))
		}
		return retriableOf(len(r.Results), func(i int) int16 { return r.Results[i].ErrorCode })
	})
	if resp == nil || len(resp.Results) != len(acls) {
		return nil, err
	}
	var out []ACLResult
	for i, r := range resp.Results {
		out = append(out, ACLResult{acls[i], errorOf(r.ErrorCode, r.ErrorMessage)})
	}
	return out, nil
}

// DeletedACLs is what became of one filter of DeleteACLs.
type DeletedACLs struct {
	Filter  ACL
	Deleted []ACLResult // an error says that it is still there
	Err     error
}

// DeleteACLs deletes the ACLs that any of the filters fits. The results are in the order of filters.
func (c *Client) DeleteACLs(ctx context.Context, filters []ACL) ([]DeletedACLs, error) {
	req := kmsg.NewPtrDeleteACLsRequest()
	for _, f := range filters {
		rf := kmsg.NewDeleteACLsRequestFilter()
		rf.ResourceType, rf.ResourceName, rf.ResourcePatternType = f.Resource, orNil(f.Name), f.Pattern
		rf.Principal, rf.Host, rf.Operation, rf.PermissionType = orNil(f.Principal), orNil(f.Host), f.Operation, f.Permission
		req.Filters = append(req.Filters, rf)
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.DeleteACLsResponse) error {
		if len(r.Results) != len(filters) {
			return fmt.Errorf("%d answers for %d filters", len(r.Results), len(filters))
		}
		return retriableOf(len(r.Results), func(i int) int16 { return r.Results[i].ErrorCode })
	})
	if resp == nil || len(resp.Results) != len(filters) {
		return nil, err
	}
	var out []DeletedACLs
	for i, r := range resp.Results {
		d := DeletedACLs{Filter: filters[i], Err: errorOf(r.ErrorCode, r.ErrorMessage)}
		for _, m := range r.MatchingACLs {
			a := ACL{m.ResourceType, m.ResourceName, m.ResourcePatternType, m.Principal, m.Host, m.Operation, m.PermissionType}
			d.Deleted = append(d.Deleted, ACLResult{a, errorOf(m.ErrorCode, m.ErrorMessage)})
		}
		slices.SortFunc(d.Deleted, func(a, b ACLResult) int { return compareACLs(a.ACL, b.ACL) })
		out = append(out, d)
	}
	return out, nil
}

// SCRAMMechanism is a mechanism of SCRAM by Kafka's number.
type SCRAMMechanism int8

// The mechanisms.
const (
	SCRAMSHA256 SCRAMMechanism = 1
	SCRAMSHA512 SCRAMMechanism = 2
)

// String is the mechanism's name.
func (m SCRAMMechanism) String() string {
	switch m {
	case SCRAMSHA256:
		return "SCRAM-SHA-256"
	case SCRAMSHA512:
		return "SCRAM-SHA-512"
	}
	return fmt.Sprintf("SCRAM-%d", int8(m))
}

func (m SCRAMMechanism) hash() (func() hash.Hash, bool) {
	switch m {
	case SCRAMSHA256:
		return sha256.New, true
	case SCRAMSHA512:
		return sha512.New, true
	}
	return nil, false
}

// SCRAMUser is a user that the cluster keeps passwords of.
type SCRAMUser struct {
	Name        string
	Credentials []SCRAMCredential
	Err         error
}

// SCRAMCredential says how a user's password is kept. The password itself can't be had.
type SCRAMCredential struct {
	Mechanism  SCRAMMechanism
	Iterations int32
}

// DescribeSCRAMUsers lists the users with SCRAM credentials, all or those given. A user without any comes back with an error.
func (c *Client) DescribeSCRAMUsers(ctx context.Context, names ...string) ([]SCRAMUser, error) {
	req := kmsg.NewPtrDescribeUserSCRAMCredentialsRequest()
	for _, n := range names {
		req.Users = append(req.Users, kmsg.DescribeUserSCRAMCredentialsRequestUser{Name: n})
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.DescribeUserSCRAMCredentialsResponse) error { return errorOf(r.ErrorCode, r.ErrorMessage) })
	if err != nil {
		return nil, err
	}
	var out []SCRAMUser
	for _, r := range resp.Results {
		u := SCRAMUser{Name: r.User, Err: errorOf(r.ErrorCode, r.ErrorMessage)}
		for _, i := range r.CredentialInfos {
			u.Credentials = append(u.Credentials, SCRAMCredential{SCRAMMechanism(i.Mechanism), i.Iterations})
		}
		slices.SortFunc(u.Credentials, func(a, b SCRAMCredential) int { return cmp.Compare(a.Mechanism, b.Mechanism) })
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b SCRAMUser) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// SCRAMChange sets or deletes a user's credential of one mechanism.
type SCRAMChange struct {
	User      string
	Mechanism SCRAMMechanism
	// Delete takes the credential away; what follows is not for that.
	Delete bool
	// Password is never sent: only what it is hashed to, with a salt drawn here.
	Password string
	// Iterations of the hash. Default 4096, the least that brokers take.
	Iterations int
}

// SCRAMResult is what became of one user.
type SCRAMResult struct {
	User string
	Err  error
}

// AlterSCRAMUsers changes credentials. Brokers refuse two changes of one user in one call.
func (c *Client) AlterSCRAMUsers(ctx context.Context, changes []SCRAMChange) ([]SCRAMResult, error) {
	req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	for _, ch := range changes {
		if ch.Delete {
			req.Deletions = append(req.Deletions, kmsg.AlterUserSCRAMCredentialsRequestDeletion{Name: ch.User, Mechanism: int8(ch.Mechanism)})
			continue
		}
		newHash, ok := ch.Mechanism.hash()
		if !ok {
			return nil, fmt.Errorf("user %q: there is no mechanism %v", ch.User, ch.Mechanism)
		}
		n := cmp.Or(ch.Iterations, 4096)
		salt := make([]byte, 24)
		rand.Read(salt) // never fails
		salted, err := pbkdf2.Key(newHash, ch.Password, salt, n, newHash().Size())
		if err != nil {
			return nil, fmt.Errorf("user %q: %w", ch.User, err)
		}
		req.Upsertions = append(req.Upsertions, kmsg.AlterUserSCRAMCredentialsRequestUpsertion{
			Name: ch.User, Mechanism: int8(ch.Mechanism), Iterations: int32(n), Salt: salt, SaltedPassword: salted,
		})
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.AlterUserSCRAMCredentialsResponse) error {
		return retriableOf(len(r.Results), func(i int) int16 { return r.Results[i].ErrorCode })
	})
	if resp == nil {
		return nil, err
	}
	var out []SCRAMResult
	for _, r := range resp.Results {
		out = append(out, SCRAMResult{r.User, errorOf(r.ErrorCode, r.ErrorMessage)})
	}
	slices.SortFunc(out, func(a, b SCRAMResult) int { return cmp.Compare(a.User, b.User) })
	return out, nil
}
