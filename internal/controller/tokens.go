package controller

import (
	"crypto/hmac"
	"crypto/sha512"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/security"
	"gregor/internal/timeline"
)

// tokens manages delegation tokens (KIP-48), kept as the record that made them. A token's secret isn't kept at all: it is
// the HMAC of its id with a key that all nodes are configured with.
type tokens struct {
	c    *Core
	data *timeline.Map[string, *message.DelegationTokenRecord]
}

func newTokens(c *Core) *tokens {
	return &tokens{c: c, data: timeline.NewMap[string, *message.DelegationTokenRecord](c.registry)}
}

func (m *tokens) replay(r *message.DelegationTokenRecord) { m.data.Set(r.TokenID, r) }

func (m *tokens) replayRemove(r *message.RemoveDelegationTokenRecord) { m.data.Delete(r.TokenID) }

func (m *tokens) secret(id string) []byte {
	h := hmac.New(sha512.New, []byte(m.c.opts.TokenSecret))
	h.Write([]byte(id))
	return h.Sum(nil)
}

// bySecret finds the token that a client proves to have.
func (m *tokens) bySecret(secret []byte) (*message.DelegationTokenRecord, bool) {
	for id, r := range m.data.All() {
		if hmac.Equal(m.secret(id), secret) {
			return r, true
		}
	}
	return nil, false
}

// usable is whether tokens may be handled at all.
func (m *tokens) usable() *api.Error {
	switch {
	case m.c.opts.TokenSecret == "":
		return api.ErrDelegationTokenAuthDisabled
	case !m.c.features.level().DelegationTokens():
		return api.ErrUnsupportedVersion
	}
	return nil
}

func (m *tokens) create(rc *RequestContext, req *kmsg.CreateDelegationTokenRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.CreateDelegationTokenResponse)
	requester := rc.Principal
	owner := requester
	if req.OwnerPrincipalName != nil && *req.OwnerPrincipalName != "" {
		owner = "User:" + *req.OwnerPrincipalName
		if req.OwnerPrincipalType != nil {
			owner = *req.OwnerPrincipalType + ":" + *req.OwnerPrincipalName
		}
	}
	resp.PrincipalType, resp.PrincipalName, _ = strings.Cut(owner, ":")
	resp.TokenRequesterPrincipalType, resp.TokenRequesterPrincipalName, _ = strings.Cut(requester, ":")
	fail := func(e *api.Error) (Result, error) {
		resp.ErrorCode = e.Code
		return Result{Response: resp}, nil
	}
	if owner != requester && !rc.allowed(security.CreateTokens, security.User, owner) {
		return fail(api.ErrDelegationTokenAuthorizationFailed)
	}
	if e := m.usable(); e != nil {
		return fail(e)
	}
	now := m.c.now.UnixMilli()
	life := m.c.opts.TokenMaxLifetime.Milliseconds()
	if req.MaxLifetimeMillis > 0 {
		life = min(life, req.MaxLifetimeMillis)
	}
	r := message.NewDelegationTokenRecord()
	for _, w := range req.Renewers {
		if w.PrincipalType != "User" {
			return fail(api.ErrInvalidPrincipalType)
		}
		r.Renewers = append(r.Renewers, "User:"+w.PrincipalName)
	}
	r.Owner, r.Requester, r.TokenID = owner, requester, m.c.newID().String()
	r.IssueTimestamp, r.MaxTimestamp = now, addClamped(now, life)
	r.ExpirationTimestamp = min(r.MaxTimestamp, addClamped(now, m.c.opts.TokenExpiry.Milliseconds()))
	resp.IssueTimestamp, resp.ExpiryTimestamp, resp.MaxTimestamp = r.IssueTimestamp, r.ExpirationTimestamp, r.MaxTimestamp
	resp.TokenID, resp.HMAC = r.TokenID, m.secret(r.TokenID)
	return Result{Records: []message.Versioned{{Message: r}}, Response: resp, Atomic: true}, nil
}

// find returns the token that a request is about, if the caller may change it.
func (m *tokens) find(rc *RequestContext, secret []byte) (*message.DelegationTokenRecord, *api.Error) {
	if e := m.usable(); e != nil {
		return nil, e
	}
	t, ok := m.bySecret(secret)
	if !ok {
		return nil, api.ErrDelegationTokenNotFound
	}
	return t, nil
}

func mayChange(rc *RequestContext, t *message.DelegationTokenRecord) bool {
	return t.Owner == rc.Principal || slices.Contains(t.Renewers, rc.Principal)
}

func expired(t *message.DelegationTokenRecord, now int64) bool {
	return t.MaxTimestamp < now || t.ExpirationTimestamp < now
}

func (m *tokens) renew(rc *RequestContext, req *kmsg.RenewDelegationTokenRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.RenewDelegationTokenResponse)
	now := m.c.now.UnixMilli()
	t, e := m.find(rc, req.HMAC)
	switch {
	case e != nil:
	case expired(t, now):
		e = api.ErrDelegationTokenExpired
	case !mayChange(rc, t):
		e = api.ErrDelegationTokenOwnerMismatch
	}
	if e != nil {
		resp.ErrorCode = e.Code
		return Result{Response: resp}, nil
	}
	life := m.c.opts.TokenExpiry.Milliseconds()
	if req.RenewTimeMillis > 0 {
		life = min(life, req.RenewTimeMillis)
	}
	r := *t
	r.ExpirationTimestamp = min(t.MaxTimestamp, addClamped(now, life))
	resp.ExpiryTimestamp = r.ExpirationTimestamp
	return Result{Records: []message.Versioned{{Message: &r}}, Response: resp, Atomic: true}, nil
}

func (m *tokens) expire(rc *RequestContext, req *kmsg.ExpireDelegationTokenRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.ExpireDelegationTokenResponse)
	now := m.c.now.UnixMilli()
	t, e := m.find(rc, req.HMAC)
	switch {
	case e != nil:
	case !mayChange(rc, t):
		e = api.ErrDelegationTokenOwnerMismatch
	case req.ExpiryPeriodMillis < 0:
		resp.ExpiryTimestamp = now
		return Result{Records: []message.Versioned{removeToken(t)}, Response: resp, Atomic: true}, nil
	case expired(t, now):
		e = api.ErrDelegationTokenExpired
	}
	if e != nil {
		resp.ErrorCode = e.Code
		return Result{Response: resp}, nil
	}
	r := *t
	r.ExpirationTimestamp = min(t.MaxTimestamp, addClamped(now, req.ExpiryPeriodMillis))
	resp.ExpiryTimestamp = r.ExpirationTimestamp
	return Result{Records: []message.Versioned{{Message: &r}}, Response: resp, Atomic: true}, nil
}

// sweep removes the tokens that have expired.
func (m *tokens) sweep(now time.Time) (result Result, more bool) {
	if m.data.Len() == 0 {
		return Result{}, false
	}
	for _, t := range m.data.All() {
		if expired(t, now.UnixMilli()) {
			result.Records = append(result.Records, removeToken(t))
		}
	}
	return result, false
}

func removeToken(t *message.DelegationTokenRecord) message.Versioned {
	r := message.NewRemoveDelegationTokenRecord()
	r.TokenID = t.TokenID
	return message.Versioned{Message: r}
}

func addClamped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
