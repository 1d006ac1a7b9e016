package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The types of what a quota is for.
const (
	QuotaUser     = "user"
	QuotaClientID = "client-id"
	QuotaIP       = "ip"
)

// QuotaEntity is whom a quota is for, by type: {QuotaUser: "alice", QuotaClientID: "app"}. A name of "" is the default of its type.
type QuotaEntity map[string]string

// String is the form of Kafka's tools, with the types in order.
func (e QuotaEntity) String() string {
	var parts []string
	for _, t := range sortedKeys(e) {
		name := e[t]
		if name == "" {
			name = "<default>"
		}
		parts = append(parts, t+"="+name)
	}
	return strings.Join(parts, ",")
}

// ClientQuota is an entity's quotas by name ("producer_byte_rate").
type ClientQuota struct {
	Entity QuotaEntity
	Values map[string]float64
}

// QuotaFilter asks for entities with a type: with any name, with the default, or with one name.
type QuotaFilter struct {
	Type    string
	Any     bool
	Default bool
	Name    string
}

// DescribeClientQuotas lists quotas that all filters fit, all if there are none. With strict, an entity may have no types other than
// those of the filters.
func (c *Client) DescribeClientQuotas(ctx context.Context, strict bool, filters ...QuotaFilter) ([]ClientQuota, error) {
	req := kmsg.NewPtrDescribeClientQuotasRequest()
	req.Strict = strict
	for _, f := range filters {
		rc := kmsg.NewDescribeClientQuotasRequestComponent()
		rc.EntityType = f.Type
		switch {
		case f.Any:
			rc.MatchType = kmsg.QuotasMatchTypeAny
		case f.Default:
			rc.MatchType = kmsg.QuotasMatchTypeDefault
		default:
			rc.MatchType, rc.Match = kmsg.QuotasMatchTypeExact, &f.Name
		}
		req.Components = append(req.Components, rc)
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.DescribeClientQuotasResponse) error { return errorOf(r.ErrorCode, r.ErrorMessage) })
	if err != nil {
		return nil, err
	}
	var out []ClientQuota
	for _, r := range resp.Entries {
		q := ClientQuota{QuotaEntity{}, map[string]float64{}}
		for _, e := range r.Entity {
			q.Entity[e.Type] = ""
			if e.Name != nil {
				q.Entity[e.Type] = *e.Name
			}
		}
		for _, v := range r.Values {
			q.Values[v.Key] = v.Value
		}
		out = append(out, q)
	}
	slices.SortFunc(out, func(a, b ClientQuota) int { return strings.Compare(a.Entity.String(), b.Entity.String()) })
	return out, nil
}

// QuotaChange sets an entity's quotas to values and removes others.
type QuotaChange struct {
	Entity QuotaEntity
	Set    map[string]float64
	Remove []string
}

// QuotaResult is what became of one entity.
type QuotaResult struct {
	Entity QuotaEntity
	Err    error
}

// AlterClientQuotas changes quotas, all of an entity's or none. The results are in the order of changes.
func (c *Client) AlterClientQuotas(ctx context.Context, changes []QuotaChange, validateOnly bool) ([]QuotaResult, error) {
	req := kmsg.NewPtrAlterClientQuotasRequest()
	req.ValidateOnly = validateOnly
	for _, ch := range changes {
		re := kmsg.NewAlterClientQuotasRequestEntry()
		for _, t := range sortedKeys(ch.Entity) {
			re.Entity = append(re.Entity, kmsg.AlterClientQuotasRequestEntryEntity{Type: t, Name: orNil(ch.Entity[t])})
		}
		for _, k := range sortedKeys(ch.Set) {
			re.Ops = append(re.Ops, kmsg.AlterClientQuotasRequestEntryOp{Key: k, Value: ch.Set[k]})
		}
		for _, k := range ch.Remove {
			re.Ops = append(re.Ops, kmsg.AlterClientQuotasRequestEntryOp{Key: k, Remove: true})
		}
		req.Entries = append(req.Entries, re)
	}
	resp, err := ask(ctx, c, toAny, req, func(r *kmsg.AlterClientQuotasResponse) error {
		return retriableOf(len(r.Entries), func(i int) int16 { return r.Entries[i].ErrorCode })
	})
	if resp == nil {
		return nil, err
	}
	answers := map[string]error{}
	for _, r := range resp.Entries {
		e := QuotaEntity{}
		for _, x := range r.Entity {
			e[x.Type] = ""
			if x.Name != nil {
				e[x.Type] = *x.Name
			}
		}
		answers[e.String()] = errorOf(r.ErrorCode, r.ErrorMessage)
	}
	var out []QuotaResult
	for _, ch := range changes {
		err, ok := answers[ch.Entity.String()]
		if !ok {
			err = fmt.Errorf("no answer for %v", ch.Entity)
		}
		out = append(out, QuotaResult{maps.Clone(ch.Entity), err})
	}
	return out, nil
}
