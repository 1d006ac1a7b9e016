package security

import (
	"net/netip"
	"slices"
	"strings"

	"gregor/internal/pmap"
)

// ACLs is an index of access control entries. It is immutable. The zero value has none.
type ACLs struct {
	holders  pmap.Map[holder, *holdings]
	patterns [resourceTypes]patterns[int] // by resource type, how many entries each pattern has
	size     int
}

// resourceTypes bounds the resource types that anybody asks about.
const resourceTypes = int(User) + 1

// holder is a principal and a resource type that it has entries for.
type holder struct {
	principal    string
	resourceType int8
}

// holdings are the entries of a holder, by their pattern.
type holdings = patterns[[]rule]

// pattern names resources of one type.
type pattern struct {
	name string
	kind int8
}

// rule is what an entry says to those that it is about.
type rule struct {
	host       string
	addr       netip.Addr   // what host stands for when it is an address
	hosts      netip.Prefix // what it stands for when it is a range
	operation  Operation
	permission Permission
}

// patterns are values by pattern.
type patterns[V any] struct {
	values   pmap.Map[pattern, V]
	prefixes []prefixLength // in order of length; which there are among the patterns that are prefixes
}

type prefixLength struct{ length, count int }

// of goes through what applies to a resource until yield says no.
func (p *patterns[V]) of(name string, yield func(V) bool) bool {
	if v, ok := p.values.Get(pattern{name, int8(Literal)}); ok && !yield(v) {
		return false
	}
	if name != wildcard {
		if v, ok := p.values.Get(pattern{wildcard, int8(Literal)}); ok && !yield(v) {
			return false
		}
	}
	for _, l := range p.prefixes {
		if l.length > len(name) {
			break
		}
		if v, ok := p.values.Get(pattern{name[:l.length], int8(Prefixed)}); ok && !yield(v) {
			return false
		}
	}
	return true
}

func newPatterns[V any]() patterns[V] {
	return patterns[V]{values: pmap.New[pattern, V](func(p pattern) uint64 { return pmap.Mix(pmap.HashString(p.name) + uint64(uint8(p.kind))) })}
}

func newACLs() *ACLs {
	a := &ACLs{holders: pmap.New[holder, *holdings](func(h holder) uint64 {
		return pmap.Mix(pmap.HashString(h.principal) + uint64(uint8(h.resourceType)))
	})}
	for i := range a.patterns {
		a.patterns[i] = newPatterns[int]()
	}
	return a
}

// Len is the number of entries.
func (a *ACLs) Len() int { return a.size }

// verdict is what the entries say of an action.
type verdict int

const (
	unspoken verdict = iota // there are no entries for the resource
	refused                 // there are, but none allows it
	denied                  // one denies it
	allowed
)

// decide finds out what the entries say.
func (a *ACLs) decide(who Requester, op Operation, t ResourceType, name string) verdict {
	result, addr := refused, plain(who.Addr)
	judge := func(rules []rule) bool {
		for i := range rules {
			r := &rules[i]
			if !r.speaksOf(op) || !r.from(addr) {
				continue
			}
			if r.permission != Allow {
				result = denied
				return false
			}
			result = allowed
		}
		return true
	}
	for _, principal := range [...]string{who.Principal, wildcardPrincipal} {
		if h, ok := a.holders.Get(holder{principal, int8(t)}); ok && !h.of(name, judge) {
			return denied
		}
		if who.Principal == wildcardPrincipal {
			break
		}
	}
	if result == refused && (int(t) < 0 || int(t) >= resourceTypes || a.patterns[t].of(name, func(int) bool { return false })) {
		return unspoken
	}
	return result
}

// plain is an address in the form in which rules have theirs.
func plain(a netip.Addr) netip.Addr { return a.Unmap() }

func (r *rule) from(addr netip.Addr) bool {
	return r.host == wildcard || r.addr.IsValid() && r.addr == addr || r.hosts.IsValid() && r.hosts.Contains(addr.WithZone(""))
}

// speaksOf says whether the rule is about the operation: some, when they are allowed, allow others as well.
func (r *rule) speaksOf(op Operation) bool {
	if r.operation == op || r.operation == All {
		return true
	}
	if r.permission != Allow {
		return false
	}
	switch op {
	case Describe:
		return r.operation == Read || r.operation == Write || r.operation == Delete || r.operation == Alter
	case DescribeConfigs:
		return r.operation == AlterConfigs
	}
	return false
}

// decideByType says whether the requester may do the operation on at least one resource of a type, whatever its name. Other
// than for a resource, an operation implies no others here, as in Kafka.
func (a *ACLs) decideByType(who Requester, op Operation, t ResourceType) bool {
	addr := plain(who.Addr)
	var held []*holdings
	for _, principal := range [...]string{who.Principal, wildcardPrincipal} {
		if h, ok := a.holders.Get(holder{principal, int8(t)}); ok && !slices.Contains(held, h) {
			held = append(held, h)
		}
	}
	speaks := func(rules []rule, p Permission) bool {
		return slices.ContainsFunc(rules, func(r rule) bool {
			return r.permission == p && (r.operation == op || r.operation == All) && r.from(addr)
		})
	}
	deniedBy := func(name string, kind PatternType) bool {
		return slices.ContainsFunc(held, func(h *holdings) bool {
			rules, _ := h.values.Get(pattern{name, int8(kind)})
			return speaks(rules, Deny)
		})
	}
	if deniedBy(wildcard, Literal) {
		return false
	}
	for _, h := range held {
		if rules, _ := h.values.Get(pattern{wildcard, int8(Literal)}); speaks(rules, Allow) {
			return true
		}
	}
	for _, h := range held {
		for p, rules := range h.values.All() {
			if !speaks(rules, Allow) || PatternType(p.kind) == Literal && deniedBy(p.name, Literal) {
				continue
			}
			dominated := slices.ContainsFunc(held, func(o *holdings) bool {
				return slices.ContainsFunc(o.prefixes, func(l prefixLength) bool {
					return l.length <= len(p.name) && deniedBy(p.name[:l.length], Prefixed)
				})
			})
			if !dominated {
				return true
			}
		}
	}
	return false
}

// Edit makes a version of an index from another.
type Edit struct {
	holders  *pmap.Builder[holder, *holdings]
	held     map[holder]*patternsEdit[[]rule]
	patterns [resourceTypes]*patternsEdit[int]
	base     *ACLs
	size     int
}

// patternsEdit collects changes; each value that is touched is copied once.
type patternsEdit[V any] struct {
	base    patterns[V]
	touched map[pattern]V
	lengths map[int]int // by length of a prefix, by how many patterns there are more
}

func editPatterns[V any](p patterns[V]) *patternsEdit[V] {
	return &patternsEdit[V]{base: p, touched: make(map[pattern]V), lengths: make(map[int]int)}
}

func (e *patternsEdit[V]) get(p pattern) (v V, fresh bool) {
	if v, fresh = e.touched[p]; fresh {
		return v, true
	}
	v, _ = e.base.values.Get(p)
	return v, false
}

// set stores a pattern's value; there says whether the pattern has entries, and was whether it had some before.
func (e *patternsEdit[V]) set(p pattern, v V, was, there bool) {
	e.touched[p] = v
	if PatternType(p.kind) != Prefixed || was == there {
		return
	}
	if there {
		e.lengths[len(p.name)]++
	} else {
		e.lengths[len(p.name)]--
	}
}

func (e *patternsEdit[V]) done(empty func(V) bool) patterns[V] {
	b := e.base.values.Builder()
	for p, v := range e.touched {
		if empty(v) {
			b.Delete(p)
		} else {
			b.Set(p, v)
		}
	}
	out := patterns[V]{values: b.Map(), prefixes: e.base.prefixes}
	for length, more := range e.lengths {
		if more == 0 {
			continue
		}
		i, found := slices.BinarySearchFunc(out.prefixes, length, func(l prefixLength, n int) int { return l.length - n })
		out.prefixes = slices.Clone(out.prefixes)
		if !found {
			out.prefixes = slices.Insert(out.prefixes, i, prefixLength{length: length})
		}
		if out.prefixes[i].count += more; out.prefixes[i].count == 0 {
			out.prefixes = slices.Delete(out.prefixes, i, i+1)
		}
	}
	return out
}

// Edit begins a new version.
func (a *ACLs) Edit() *Edit {
	if a.size == 0 {
		a = newACLs()
	}
	return &Edit{holders: a.holders.Builder(), held: make(map[holder]*patternsEdit[[]rule]), base: a, size: a.size}
}

func (e *Edit) holdings(h holder) *patternsEdit[[]rule] {
	p := e.held[h]
	if p == nil {
		if old, ok := e.base.holders.Get(h); ok {
			p = editPatterns(*old)
		} else {
			p = editPatterns(newPatterns[[]rule]())
		}
		e.held[h] = p
	}
	return p
}

func (e *Edit) count(t int8, p pattern, more int) {
	if t < 0 || int(t) >= resourceTypes {
		return // nobody asks about it
	}
	if e.patterns[t] == nil {
		e.patterns[t] = editPatterns(e.base.patterns[t])
	}
	n, _ := e.patterns[t].get(p)
	e.patterns[t].set(p, n+more, n > 0, n+more > 0)
}

func ruleOf(a *ACL) rule {
	r := rule{host: a.Host, operation: Operation(a.Operation), permission: Permission(a.PermissionType)}
	if strings.Contains(a.Host, "/") {
		r.hosts, _ = ParseRange(a.Host) // what isn't one stands for no address
	} else if addr, err := netip.ParseAddr(a.Host); err == nil && HostText(addr) == a.Host {
		r.addr = addr // written in another way it stands for none
	}
	return r
}

// Add adds an entry.
func (e *Edit) Add(a *ACL) {
	held, p := e.holdings(holder{a.Principal, a.ResourceType}), pattern{a.ResourceName, a.PatternType}
	rules, fresh := held.get(p)
	was := len(rules) > 0
	if !fresh {
		rules = append(make([]rule, 0, len(rules)+1), rules...)
	}
	held.set(p, append(rules, ruleOf(a)), was, true)
	e.count(a.ResourceType, p, 1)
	e.size++
}

// Remove takes an entry away that was added before. It says whether it was there.
func (e *Edit) Remove(a *ACL) bool {
	held, p := e.holdings(holder{a.Principal, a.ResourceType}), pattern{a.ResourceName, a.PatternType}
	rules, fresh := held.get(p)
	i := slices.Index(rules, ruleOf(a))
	if i < 0 {
		return false
	}
	if !fresh {
		rules = slices.Clone(rules)
	}
	rules = slices.Delete(rules, i, i+1)
	held.set(p, rules, true, len(rules) > 0)
	e.count(a.ResourceType, p, -1)
	e.size--
	return true
}

// Done is the new version. The edit is over.
func (e *Edit) Done() *ACLs {
	out := &ACLs{patterns: e.base.patterns, size: e.size}
	for h, edit := range e.held {
		p := edit.done(func(r []rule) bool { return len(r) == 0 })
		if p.values.Len() == 0 {
			e.holders.Delete(h)
		} else {
			e.holders.Set(h, &p)
		}
	}
	out.holders = e.holders.Map()
	for t, edit := range e.patterns {
		if edit != nil {
			out.patterns[t] = edit.done(func(n int) bool { return n == 0 })
		}
	}
	return out
}
