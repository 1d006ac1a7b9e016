package controller

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/timeline"
)

// The types of quota entities.
const (
	entityUser     = "user"
	entityClientID = "client-id"
	entityIP       = "ip"
)

// quotaEntity is whom a quota is for, by type: nil if the type isn't part of it, a pointer to "" for the type's default.
// It is comparable through its key.
type quotaEntity string

// entityKey makes a key of the entity's parts: sorted by type, the name with a mark that tells a default from any name.
func entityKey(parts []message.ClientQuotaRecordEntityData) quotaEntity {
	sorted := slices.Clone(parts)
	slices.SortFunc(sorted, func(a, b message.ClientQuotaRecordEntityData) int { return strings.Compare(a.EntityType, b.EntityType) })
	var b strings.Builder
	for _, p := range sorted {
		b.WriteString(p.EntityType)
		if p.EntityName == nil {
			b.WriteString("\x00d\x00")
		} else {
			b.WriteString("\x00n" + *p.EntityName + "\x00")
		}
	}
	return quotaEntity(b.String())
}

// quotas manages client quotas.
type quotas struct {
	c    *Core
	data *timeline.Map[quotaEntity, *timeline.Map[string, float64]]
}

func newQuotas(c *Core) *quotas {
	return &quotas{c: c, data: timeline.NewMap[quotaEntity, *timeline.Map[string, float64]](c.registry)}
}

func (m *quotas) replay(r *message.ClientQuotaRecord) {
	key := entityKey(r.Entity)
	values, ok := m.data.Get(key)
	if !ok {
		values = timeline.NewMap[string, float64](m.c.registry)
		m.data.Set(key, values)
	}
	if !r.Remove {
		values.Set(r.Key, r.Value)
		return
	}
	if values.Delete(r.Key); values.Len() == 0 {
		m.data.Delete(key)
	}
}

func (m *quotas) alter(req *kmsg.AlterClientQuotasRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.AlterClientQuotasResponse)
	var records []message.Versioned
	seen := make(map[quotaEntity]int)
	for i := range req.Entries {
		e := &req.Entries[i]
		entity := make([]message.ClientQuotaRecordEntityData, 0, len(e.Entity))
		for _, p := range e.Entity {
			part := message.ClientQuotaRecordEntityData{EntityType: p.Type, EntityName: p.Name}
			// Of two names of one type the last counts.
			if i := slices.IndexFunc(entity, func(o message.ClientQuotaRecordEntityData) bool { return o.EntityType == p.Type }); i >= 0 {
				entity[i] = part
				continue
			}
			entity = append(entity, part)
		}
		key := entityKey(entity)
		at, twice := seen[key]
		if twice {
			err := api.WithMessage(api.ErrInvalidRequest, "Ignoring duplicate entity %s", entityText(entity))
			resp.Entries[at].ErrorCode, resp.Entries[at].ErrorMessage = api.CodeAndMessage(err)
			continue
		}
		made, err := m.alterOne(entity, key, e.Ops)
		records = append(records, made...)
		out := kmsg.NewAlterClientQuotasResponseEntry()
		out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(err)
		for _, p := range entity {
			x := kmsg.NewAlterClientQuotasResponseEntryEntity()
			x.Type, x.Name = p.EntityType, p.EntityName
			out.Entity = append(out.Entity, x)
		}
		seen[key] = len(resp.Entries)
		resp.Entries = append(resp.Entries, out)
	}
	if len(records) > maxRecordsPerUserOp {
		return Result{}, errTooLarge
	}
	if req.ValidateOnly {
		records = nil
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

func (m *quotas) alterOne(entity []message.ClientQuotaRecordEntityData, key quotaEntity, ops []kmsg.AlterClientQuotasRequestEntryOp) ([]message.Versioned, error) {
	seen := make(map[string]bool)
	for _, op := range ops {
		if seen[op.Key] {
			return nil, api.WithMessage(api.ErrInvalidRequest, "Duplicate quota key %s not updating quota for this entity %s", op.Key, entityText(entity))
		}
		seen[op.Key] = true
	}
	keys, err := quotaKeys(entity)
	if err != nil {
		return nil, err
	}
	current, _ := m.data.Get(key)
	var records []message.Versioned
	for _, op := range ops {
		now, exists := 0.0, false
		if current != nil {
			now, exists = current.Get(op.Key)
		}
		if op.Remove {
			if !exists {
				continue
			}
		} else {
			if err := checkQuota(keys, op.Key, op.Value); err != nil {
				return nil, err
			}
			if exists && now == op.Value {
				continue
			}
		}
		r := message.NewClientQuotaRecord()
		r.Entity, r.Key, r.Remove = entity, op.Key, op.Remove
		if !op.Remove {
			r.Value = op.Value
		}
		records = append(records, message.Versioned{Message: r})
	}
	return records, nil
}

// quotaKeys checks an entity and returns the quotas that it may have.
func quotaKeys(entity []message.ClientQuotaRecordEntityData) (map[string]bool, error) {
	if len(entity) == 0 {
		return nil, api.WithMessage(api.ErrInvalidRequest, "Invalid empty client quota entity")
	}
	names := make(map[string]*string, len(entity))
	for _, p := range entity {
		switch p.EntityType {
		case entityUser, entityClientID, entityIP:
		default:
			return nil, api.WithMessage(api.ErrInvalidRequest, "Unhandled client quota entity type: %s", p.EntityType)
		}
		names[p.EntityType] = p.EntityName
		if p.EntityName != nil && *p.EntityName == "" {
			return nil, api.WithMessage(api.ErrInvalidRequest, "Empty %s not supported", p.EntityType)
		}
	}
	ip, isIP := names[entityIP]
	if !isIP {
		return userQuotas, nil
	}
	if len(names) > 1 {
		return nil, api.WithMessage(api.ErrInvalidRequest, "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
	}
	if ip != nil && !plausibleHost(*ip) {
		return nil, api.WithMessage(api.ErrInvalidRequest, "%s is not a valid IP or resolvable host.", *ip)
	}
	return ipQuotas, nil
}

// userQuotas are the quotas of users and client ids, ipQuotas those of addresses; true for those that are whole numbers.
var (
	userQuotas = map[string]bool{
		"producer_byte_rate": true, "consumer_byte_rate": true, "request_percentage": false, "controller_mutation_rate": false,
	}
	ipQuotas = map[string]bool{"connection_creation_rate": true}
)

func checkQuota(keys map[string]bool, key string, value float64) error {
	whole, known := keys[key]
	switch {
	case !known:
		return api.WithMessage(api.ErrInvalidRequest, "Invalid configuration key %s", key)
	case math.IsNaN(value) || math.IsInf(value, 0):
		return api.WithMessage(api.ErrInvalidRequest, "Quota %s must be a finite number", key)
	case value <= 0:
		return api.WithMessage(api.ErrInvalidRequest, "Quota %s must be greater than 0", key)
	case !whole:
		return nil
	case key == "connection_creation_rate" && value > math.MaxInt32:
		return api.WithMessage(api.ErrInvalidRequest, "Proposed value for %s is too large for an INT.", key)
	case value > math.MaxInt64:
		return api.WithMessage(api.ErrInvalidRequest, "Proposed value for %s is too large for a LONG.", key)
	case math.Abs(math.Mod(value, 1)) > 1e-6:
		return api.WithMessage(api.ErrInvalidRequest, "%s cannot be a fractional value.", key)
	}
	return nil
}

// plausibleHost says whether s is an address or could be a host's name.
//
// Differs from Kafka: Kafka asks the name service, and holds the whole controller up while it does.
func plausibleHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	if len(s) == 0 || len(s) > 253 {
		return false
	}
	for _, part := range strings.Split(strings.TrimSuffix(s, "."), ".") {
		if part == "" || len(part) > 63 || part[0] == '-' || part[len(part)-1] == '-' {
			return false
		}
		for i := range len(part) {
			switch b := part[i]; {
			case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '-', b == '_':
			default:
				return false
			}
		}
	}
	// Only digits and dots is an address, and it didn't parse as one.
	return strings.Trim(s, "0123456789.") != ""
}

// entityText is an entity as Kafka's ClientQuotaEntity prints it.
func entityText(entity []message.ClientQuotaRecordEntityData) string {
	parts := make([]string, len(entity))
	for i, p := range entity {
		name := "null"
		if p.EntityName != nil {
			name = *p.EntityName
		}
		parts[i] = p.EntityType + "=" + name
	}
	return "ClientQuotaEntity(entries={" + strings.Join(parts, ", ") + "})"
}
