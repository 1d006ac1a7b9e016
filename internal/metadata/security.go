package metadata

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"gregor/internal/message"
	"gregor/internal/pmap"
	"gregor/internal/security"
	"gregor/internal/uuid"
)

// QuotaEntityPart is one part of what a client quota applies to. A nil name is the default of its type.
type QuotaEntityPart struct {
	Type string // user, client-id or ip
	Name *string
}

// QuotaEntity is what a client quota applies to, its parts in the order of their types.
type QuotaEntity []QuotaEntityPart

// Key is a string that equal entities have in common.
func (e QuotaEntity) Key() string {
	var b []byte
	for _, p := range e {
		b = append(binary.AppendUvarint(b, uint64(len(p.Type))), p.Type...)
		if p.Name == nil {
			b = append(b, 0)
		} else {
			b = append(binary.AppendUvarint(append(b, 1), uint64(len(*p.Name))), *p.Name...)
		}
	}
	return string(b)
}

// String shows the entity for logs.
func (e QuotaEntity) String() string {
	var parts []string
	for _, p := range e {
		if p.Name == nil {
			parts = append(parts, p.Type+" default")
		} else {
			parts = append(parts, fmt.Sprintf("%s %q", p.Type, *p.Name))
		}
	}
	return strings.Join(parts, ", ")
}

// ClientQuota is the quotas of one entity by key, such as producer_byte_rate. It is immutable, its map included.
type ClientQuota struct {
	Entity QuotaEntity
	Quotas map[string]float64
}

// ClientQuotasImage is all client quotas. It is immutable.
type ClientQuotasImage struct {
	byEntity pmap.Map[string, *ClientQuota]
}

func newClientQuotasImage() *ClientQuotasImage {
	return &ClientQuotasImage{pmap.New[string, *ClientQuota](pmap.HashString)}
}

// Get returns the quotas of an entity, or nil.
func (c *ClientQuotasImage) Get(e QuotaEntity) *ClientQuota {
	q, _ := c.byEntity.Get(e.Key())
	return q
}

// Len is the number of entities with quotas.
func (c *ClientQuotasImage) Len() int { return c.byEntity.Len() }

// All goes through the entities in an order that depends on them alone.
func (c *ClientQuotasImage) All() iter.Seq[*ClientQuota] { return values(c.byEntity) }

func values[K comparable, V any](m pmap.Map[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range m.All() {
			if !yield(v) {
				return
			}
		}
	}
}

func (c *ClientQuotasImage) write(w func(message.Versioned) error, _ *WriteOptions) error {
	for q := range c.All() {
		var entity []message.ClientQuotaRecordEntityData
		for _, p := range q.Entity {
			entity = append(entity, message.ClientQuotaRecordEntityData{EntityType: p.Type, EntityName: p.Name})
		}
		for _, key := range slices.Sorted(maps.Keys(q.Quotas)) {
			m := &message.ClientQuotaRecord{Entity: entity, Key: key, Value: q.Quotas[key]}
			if err := w(message.Versioned{Message: m}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ClientQuotaDelta is what changed in the quotas of one entity; nil is a quota that is gone.
type ClientQuotaDelta struct {
	Entity QuotaEntity
	Quotas map[string]*float64
}

// ClientQuotasDelta is what changed in the client quotas, by QuotaEntity.Key.
type ClientQuotasDelta struct {
	Changed map[string]*ClientQuotaDelta

	base *ClientQuotasImage
}

func newClientQuotasDelta(base *ClientQuotasImage) *ClientQuotasDelta {
	return &ClientQuotasDelta{Changed: map[string]*ClientQuotaDelta{}, base: base}
}

func (d *ClientQuotasDelta) entity(key string, e QuotaEntity) *ClientQuotaDelta {
	q := d.Changed[key]
	if q == nil {
		q = &ClientQuotaDelta{Entity: e, Quotas: map[string]*float64{}}
		d.Changed[key] = q
	}
	return q
}

func (d *ClientQuotasDelta) replay(r *message.ClientQuotaRecord) {
	var e QuotaEntity
	for _, p := range r.Entity {
		// A type that comes twice counts once, with its last name.
		i := slices.IndexFunc(e, func(o QuotaEntityPart) bool { return o.Type == p.EntityType })
		if i < 0 {
			e = append(e, QuotaEntityPart{p.EntityType, p.EntityName})
		} else {
			e[i].Name = p.EntityName
		}
	}
	slices.SortFunc(e, func(a, b QuotaEntityPart) int { return cmp.Compare(a.Type, b.Type) })
	q := d.entity(e.Key(), e)
	if r.Remove {
		q.Quotas[r.Key] = nil
	} else {
		v := r.Value
		q.Quotas[r.Key] = &v
	}
}

func (d *ClientQuotasDelta) finishSnapshot() {
	for key, old := range d.base.byEntity.All() {
		q := d.entity(key, old.Entity)
		for name := range old.Quotas {
			if _, ok := q.Quotas[name]; !ok {
				q.Quotas[name] = nil
			}
		}
	}
}

func (d *ClientQuotasDelta) apply() *ClientQuotasImage {
	b := d.base.byEntity.Builder()
	for key, q := range d.Changed {
		m := map[string]float64{}
		if old, ok := d.base.byEntity.Get(key); ok {
			maps.Copy(m, old.Quotas)
		}
		for name, v := range q.Quotas {
			if v == nil {
				delete(m, name)
			} else {
				m[name] = *v
			}
		}
		if len(m) == 0 {
			b.Delete(key)
		} else {
			b.Set(key, &ClientQuota{q.Entity, m})
		}
	}
	return &ClientQuotasImage{b.Map()}
}

func fullClientQuotasDelta(c *ClientQuotasImage) *ClientQuotasDelta {
	d := newClientQuotasDelta(newClientQuotasImage())
	for key, q := range c.byEntity.All() {
		e := d.entity(key, q.Entity)
		for name, v := range q.Quotas {
			e.Quotas[name] = &v
		}
	}
	return d
}

// ACL is one access control entry.
type ACL = security.ACL

// SCRAMKey names a SCRAM credential.
type SCRAMKey struct {
	Mechanism int8 // 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
	User      string
}

// SCRAMCredential is what a broker keeps of a password.
type SCRAMCredential struct {
	Salt, StoredKey, ServerKey []byte
	Iterations                 int32
}

func (c SCRAMCredential) equal(o SCRAMCredential) bool {
	return bytes.Equal(c.Salt, o.Salt) && bytes.Equal(c.StoredKey, o.StoredKey) && bytes.Equal(c.ServerKey, o.ServerKey) &&
		c.Iterations == o.Iterations
}

// DelegationToken is a token without its HMAC, which every node works out from the secret key. Times are ms since 1970.
type DelegationToken struct {
	ID                  string
	Owner               string
	Requester           string
	Renewers            []string
	IssueTimestamp      int64
	MaxTimestamp        int64
	ExpirationTimestamp int64
}

func (t DelegationToken) equal(o DelegationToken) bool {
	return t.ID == o.ID && t.Owner == o.Owner && t.Requester == o.Requester && slices.Equal(t.Renewers, o.Renewers) &&
		t.IssueTimestamp == o.IssueTimestamp && t.MaxTimestamp == o.MaxTimestamp && t.ExpirationTimestamp == o.ExpirationTimestamp
}

// Table is a part of the image that is a plain map. It is immutable.
type Table[K comparable, V any] struct {
	m pmap.Map[K, V]
}

// Get returns the value of k.
func (t *Table[K, V]) Get(k K) (V, bool) { return t.m.Get(k) }

// Len is the number of entries.
func (t *Table[K, V]) Len() int { return t.m.Len() }

// All goes through the entries in an order that depends on the keys alone.
func (t *Table[K, V]) All() iter.Seq2[K, V] { return t.m.All() }

// TableDelta is what changed in a Table; nil is an entry that is gone.
type TableDelta[K comparable, V any] struct {
	Changed map[K]*V

	base *Table[K, V]
}

func newTableDelta[K comparable, V any](base *Table[K, V]) *TableDelta[K, V] {
	return &TableDelta[K, V]{Changed: map[K]*V{}, base: base}
}

func (d *TableDelta[K, V]) finishSnapshot() {
	for k := range d.base.All() {
		if _, ok := d.Changed[k]; !ok {
			d.Changed[k] = nil
		}
	}
}

func (d *TableDelta[K, V]) apply() *Table[K, V] {
	b := d.base.m.Builder()
	for k, v := range d.Changed {
		if v == nil {
			b.Delete(k)
		} else {
			b.Set(k, *v)
		}
	}
	return &Table[K, V]{b.Map()}
}

func fullTableDelta[K comparable, V any](t, empty *Table[K, V]) *TableDelta[K, V] {
	d := newTableDelta(empty)
	for k, v := range t.All() {
		d.Changed[k] = &v
	}
	return d
}

type (
	// ACLsImage is the access control entries by id.
	ACLsImage = Table[uuid.UUID, ACL]
	// SCRAMImage is the SCRAM credentials.
	SCRAMImage = Table[SCRAMKey, SCRAMCredential]
	// DelegationTokensImage is the delegation tokens by id.
	DelegationTokensImage = Table[string, DelegationToken]
	// ACLsDelta is what changed in the access control entries.
	ACLsDelta = TableDelta[uuid.UUID, ACL]
	// SCRAMDelta is what changed in the SCRAM credentials.
	SCRAMDelta = TableDelta[SCRAMKey, SCRAMCredential]
	// DelegationTokensDelta is what changed in the delegation tokens.
	DelegationTokensDelta = TableDelta[string, DelegationToken]
)

func newACLsImage() *ACLsImage { return &ACLsImage{pmap.New[uuid.UUID, ACL](hashUUID)} }

func newSCRAMImage() *SCRAMImage {
	return &SCRAMImage{pmap.New[SCRAMKey, SCRAMCredential](func(k SCRAMKey) uint64 {
		return pmap.Mix(pmap.HashString(k.User) + uint64(uint8(k.Mechanism)))
	})}
}

func newDelegationTokensImage() *DelegationTokensImage {
	return &DelegationTokensImage{pmap.New[string, DelegationToken](pmap.HashString)}
}

func writeACLs(t *ACLsImage, w func(message.Versioned) error) error {
	for id, a := range t.All() {
		m := &message.AccessControlEntryRecord{
			ID: id, ResourceType: a.ResourceType, ResourceName: a.ResourceName, PatternType: a.PatternType, Principal: a.Principal,
			Host: a.Host, Operation: a.Operation, PermissionType: a.PermissionType,
		}
		if err := w(message.Versioned{Message: m}); err != nil {
			return err
		}
	}
	return nil
}

func writeSCRAM(t *SCRAMImage, w func(message.Versioned) error, o *WriteOptions) error {
	if !o.MetadataVersion.SCRAM() {
		if t.Len() > 0 {
			o.lose("SCRAM credentials")
		}
		return nil
	}
	for k, c := range t.All() {
		m := &message.UserScramCredentialRecord{
			Name: k.User, Mechanism: k.Mechanism, Salt: c.Salt, StoredKey: c.StoredKey, ServerKey: c.ServerKey, Iterations: c.Iterations,
		}
		if err := w(message.Versioned{Message: m}); err != nil {
			return err
		}
	}
	return nil
}

func writeTokens(t *DelegationTokensImage, w func(message.Versioned) error, o *WriteOptions) error {
	if !o.MetadataVersion.DelegationTokens() {
		if t.Len() > 0 {
			o.lose("delegation tokens")
		}
		return nil
	}
	for _, k := range t.All() {
		m := &message.DelegationTokenRecord{
			Owner: k.Owner, Requester: k.Requester, Renewers: k.Renewers, IssueTimestamp: k.IssueTimestamp, MaxTimestamp: k.MaxTimestamp,
			ExpirationTimestamp: k.ExpirationTimestamp, TokenID: k.ID,
		}
		if err := w(message.Versioned{Message: m}); err != nil {
			return err
		}
	}
	return nil
}
