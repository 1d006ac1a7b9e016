package broker

import (
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/network"
)

// tokenRequest answers a request about delegation tokens. They stand for whoever asked for them, so Kafka refuses to speak of
// them over a connection that proves nobody's identity, and there are no others yet.
func (b *Broker) tokenRequest(r *network.Request, q kmsg.Request) kmsg.Response {
	return TokensRefused(q, r.Conn.Principal())
}

// TokensRefused is the answer to a request about delegation tokens over a connection on which they are not spoken of.
func TokensRefused(q kmsg.Request, requester string) kmsg.Response {
	code := api.ErrDelegationTokenRequestNotAllowed.Code
	resp := q.ResponseKind()
	switch r := resp.(type) {
	case *kmsg.CreateDelegationTokenResponse:
		r.ErrorCode = code
		r.TokenRequesterPrincipalType, r.TokenRequesterPrincipalName, _ = strings.Cut(requester, ":")
		r.PrincipalType, r.PrincipalName = r.TokenRequesterPrincipalType, r.TokenRequesterPrincipalName
		if in := q.(*kmsg.CreateDelegationTokenRequest); in.OwnerPrincipalName != nil && *in.OwnerPrincipalName != "" {
			r.PrincipalType, r.PrincipalName = "", *in.OwnerPrincipalName
			if in.OwnerPrincipalType != nil {
				r.PrincipalType = *in.OwnerPrincipalType
			}
		}
		r.IssueTimestamp, r.ExpiryTimestamp, r.MaxTimestamp = -1, -1, -1
		r.HMAC = []byte{}
	case *kmsg.RenewDelegationTokenResponse:
		r.ErrorCode, r.ExpiryTimestamp = code, -1
	case *kmsg.ExpireDelegationTokenResponse:
		r.ErrorCode, r.ExpiryTimestamp = code, -1
	case *kmsg.DescribeDelegationTokenResponse:
		r.ErrorCode = code
	}
	return resp
}
