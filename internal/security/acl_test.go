package security

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func entry(t ResourceType, kind PatternType, name, principal, host string, op Operation, p Permission) ACL {
	return ACL{int8(t), name, int8(kind), principal, host, int8(op), int8(p)}
}

func index(entries ...ACL) *ACLs {
	e := new(ACLs).Edit()
	for i := range entries {
		e.Add(&entries[i])
	}
	return e.Done()
}

func authorizer(s Settings, entries ...ACL) *Authorizer {
	a := NewAuthorizer(s, slog.New(slog.DiscardHandler))
	a.Load(index(entries...))
	return a
}

var (
	alice = Requester{"User:alice", netip.MustParseAddr("10.1.2.3")}
	bob   = Requester{"User:bob", netip.MustParseAddr("2001:db8::1")}
)

func TestAllows(t *testing.T) {
	type ask struct {
		who  Requester
		op   Operation
		t    ResourceType
		name string
		want bool
	}
	for name, c := range map[string]struct {
		settings Settings
		entries  []ACL
		asks     []ask
	}{
		"nothing is said":                    {asks: []ask{{alice, Read, Topic, "a", false}}},
		"nothing is said and all is allowed": {settings: Settings{AllowUnspoken: true}, asks: []ask{{alice, Read, Topic, "a", true}}},
		"an entry about somebody else ends that all is allowed": {settings: Settings{AllowUnspoken: true},
			entries: []ACL{entry(Topic, Literal, "a", "User:carol", "*", Read, Allow), entry(Topic, Prefixed, "pre", "User:carol", "1.1.1.1", Write, Deny)},
			asks: []ask{{alice, Read, Topic, "a", false}, {alice, Read, Topic, "b", true}, {alice, Read, Group, "a", true}, {alice, Read, Topic, "pref", false},
				{alice, Read, Topic, "pr", true}}},
		"super user": {settings: Settings{SuperUsers: []string{"User:alice"}}, entries: []ACL{entry(Topic, Literal, "a", "User:alice", "*", All, Deny)},
			asks: []ask{{alice, Read, Topic, "a", true}, {bob, Read, Topic, "a", false}}},
		"deny wins": {entries: []ACL{entry(Topic, Literal, "*", "User:*", "*", All, Allow), entry(Topic, Prefixed, "secret-", "User:alice", "*", Read, Deny)},
			asks: []ask{{alice, Read, Topic, "secret-1", false}, {alice, Write, Topic, "secret-1", true}, {bob, Read, Topic, "secret-1", true}, {alice, Read, Topic, "open", true}}},
		"implied": {entries: []ACL{entry(Topic, Literal, "r", "User:alice", "*", Read, Allow), entry(Topic, Literal, "c", "User:alice", "*", AlterConfigs, Allow),
			entry(Topic, Literal, "x", "User:alice", "*", Create, Allow)},
			asks: []ask{{alice, Describe, Topic, "r", true}, {alice, DescribeConfigs, Topic, "r", false}, {alice, DescribeConfigs, Topic, "c", true},
				{alice, Describe, Topic, "c", false}, {alice, Describe, Topic, "x", false}}},
		"to deny implies nothing": {entries: []ACL{entry(Topic, Literal, "r", "User:alice", "*", Read, Deny), entry(Topic, Literal, "r", "User:alice", "*", Describe, Allow)},
			asks: []ask{{alice, Describe, Topic, "r", true}, {alice, Read, Topic, "r", false}}},
		"hosts": {entries: []ACL{entry(Topic, Literal, "a", "User:alice", "10.1.2.3", Read, Allow), entry(Topic, Literal, "b", "User:alice", "10.1.2.4", Read, Allow),
			entry(Topic, Literal, "a", "User:bob", "2001:db8::1", Read, Allow), entry(Topic, Literal, "b", "User:bob", "2001:db8:0:0:0:0:0:1", Read, Allow),
			entry(Topic, Literal, "net", "User:alice", "10.1.0.0/16", Read, Allow), entry(Topic, Literal, "net", "User:bob", "2001:db8::/32", Read, Allow),
			entry(Topic, Literal, "other", "User:alice", "10.2.0.0/16", Read, Allow), entry(Topic, Literal, "broken", "User:alice", "10.1.0.0/99", Read, Allow)},
			asks: []ask{{alice, Read, Topic, "a", true}, {alice, Read, Topic, "b", false}, {bob, Read, Topic, "a", false}, {bob, Read, Topic, "b", true},
				{alice, Read, Topic, "net", true}, {bob, Read, Topic, "net", true}, {alice, Read, Topic, "other", false}, {alice, Read, Topic, "broken", false}}},
		"principals of any type are everybody": {entries: []ACL{entry(Topic, Literal, "a", "User:*", "*", Read, Allow), entry(Topic, Literal, "b", "Group:*", "*", Read, Allow)},
			asks: []ask{{Requester{"Robot:x", alice.Addr}, Read, Topic, "a", true}, {Requester{"Group:x", alice.Addr}, Read, Topic, "b", false}}},
		"a prefix is no literal": {entries: []ACL{entry(Topic, Prefixed, "*", "User:alice", "*", Read, Allow), entry(Topic, Literal, "lit", "User:alice", "*", Read, Allow)},
			asks: []ask{{alice, Read, Topic, "a", false}, {alice, Read, Topic, "*x", true}, {alice, Read, Topic, "literal", false}}},
	} {
		t.Run(name, func(t *testing.T) {
			a := authorizer(c.settings, c.entries...)
			for _, q := range c.asks {
				if got := a.Allows(q.who, q.op, q.t, q.name); got != q.want {
					t.Errorf("%s %v %v %s: %v, want %v", q.who.Principal, q.op, q.t, q.name, got, q.want)
				}
			}
		})
	}
}

func TestBeforeTheFirstLoad(t *testing.T) {
	a := NewAuthorizer(Settings{SuperUsers: []string{"User:alice"}, AllowUnspoken: true}, slog.New(slog.DiscardHandler))
	if !a.Decides("User:alice") || !a.Allows(alice, Read, Topic, "a") {
		t.Error("a super user has to wait")
	}
	if a.Decides("User:bob") || a.Allows(bob, Read, Topic, "a") || a.AllowsSome(bob, Read, Topic) {
		t.Error("somebody else needn't wait")
	}
	a.Load(index())
	if !a.Decides("User:bob") || !a.Allows(bob, Read, Topic, "a") {
		t.Error("not ready after the first load")
	}
}

func TestOperations(t *testing.T) {
	a := authorizer(Settings{}, entry(Topic, Literal, "a", "User:alice", "*", Write, Allow), entry(Cluster, Literal, ClusterName, "User:*", "*", All, Allow),
		entry(Cluster, Literal, ClusterName, "User:bob", "*", Alter, Deny))
	if got, want := a.Operations(alice, Topic, "a"), bits(Write, Describe); got != want {
		t.Errorf("topic: %b, want %b", got, want)
	}
	if got, want := a.Operations(alice, Cluster, ClusterName), Operations(Cluster); got != want {
		t.Errorf("cluster: %b, want %b", got, want)
	}
	if got, want := a.Operations(bob, Cluster, ClusterName), Operations(Cluster)&^bits(Alter); got != want {
		t.Errorf("cluster: %b, want %b", got, want)
	}
}

func TestSettings(t *testing.T) {
	s, err := ParseSettings(" User:a; Group:b:c ;;", " TRUE ")
	if err != nil || fmt.Sprint(s) != "{[User:a Group:b:c] true}" {
		t.Errorf("%v, %v", s, err)
	}
	for _, bad := range []string{"alice", ":alice", "User:a,b;x"} {
		if _, err := ParseSettings(bad, ""); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestParseRange(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.0/8": "10.0.0.0/8", "10.1.2.3/08": "10.0.0.0/8", "010.1.2.3/32": "10.1.2.3/32", "0.0.0.0/0": "0.0.0.0/0", "2001:db8::/32": "2001:db8::/32",
		"10.0.0.0/33": "Value [33] not in range [0,32]", "300.0.0.0/8": "Value [300] not in range [0,255]", "10.0.0/8": "Could not parse [10.0.0/8]",
		"10.0.0.0/": "Could not parse [10.0.0.0/]", "host/8": "Could not parse [host/8]", "::1/129": "Could not parse [::1/129] - prefix length must be between 0 and 128",
		"::1/x": "Could not parse [::1/x] - invalid prefix length", "::g/12": "Could not parse [::g]",
		"::ffff:1.2.3.4/100": "Could not parse [::ffff:1.2.3.4] - not an IPv6 address", "::1": "Could not parse [::1] - missing prefix length",
	} {
		p, err := ParseRange(text)
		got := p.String()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestHostText(t *testing.T) {
	for in, want := range map[string]string{"1.2.3.4": "1.2.3.4", "::1": "0:0:0:0:0:0:0:1", "::ffff:1.2.3.4": "1.2.3.4", "fe80::ab%eth0": "fe80:0:0:0:0:0:0:ab%eth0"} {
		if got := HostText(netip.MustParseAddr(in)); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// model is the rules without an index.
type model struct {
	settings Settings
	entries  []ACL
}

func (m *model) applies(a *ACL, t ResourceType, name string) bool {
	if a.ResourceType != int8(t) {
		return false
	}
	if PatternType(a.PatternType) == Literal {
		return a.ResourceName == name || a.ResourceName == "*"
	}
	return PatternType(a.PatternType) == Prefixed && strings.HasPrefix(name, a.ResourceName)
}

func (m *model) about(a *ACL, who Requester) bool {
	host := a.Host == "*" || a.Host == HostText(who.Addr)
	if p, err := netip.ParsePrefix(a.Host); err == nil {
		host = p.Contains(who.Addr)
	}
	return host && (a.Principal == who.Principal || a.Principal == "User:*")
}

func (m *model) allows(who Requester, op Operation, t ResourceType, name string) bool {
	implied := map[Operation][]Operation{Describe: {Read, Write, Delete, Alter}, DescribeConfigs: {AlterConfigs}}
	any, yes := false, false
	for i := range m.entries {
		a := &m.entries[i]
		if !m.applies(a, t, name) {
			continue
		}
		any = true
		if !m.about(a, who) {
			continue
		}
		exact := a.Operation == int8(op) || a.Operation == int8(All)
		if Permission(a.PermissionType) == Deny && exact {
			return false
		}
		if Permission(a.PermissionType) == Allow {
			for _, o := range implied[op] {
				exact = exact || a.Operation == int8(o)
			}
			yes = yes || exact
		}
	}
	return yes || !any && m.settings.AllowUnspoken
}

// allowsSome tries the names that could make a difference.
func (m *model) allowsSome(who Requester, op Operation, t ResourceType) bool {
	if m.allows(who, op, t, nobodys) {
		return true
	}
	says := func(p Permission, kind PatternType, name string) bool {
		for i := range m.entries {
			a := &m.entries[i]
			if a.ResourceType == int8(t) && a.PermissionType == int8(p) && a.PatternType == int8(kind) && a.ResourceName == name && m.about(a, who) &&
				(a.Operation == int8(op) || a.Operation == int8(All)) {
				return true
			}
		}
		return false
	}
	if says(Deny, Literal, "*") {
		return false
	}
	if says(Allow, Literal, "*") {
		return true
	}
	for i := range m.entries {
		for _, kind := range []PatternType{Literal, Prefixed} {
			name := m.entries[i].ResourceName
			if !says(Allow, kind, name) || kind == Literal && says(Deny, Literal, name) {
				continue
			}
			dominated := false
			for n := range len(name) {
				dominated = dominated || says(Deny, Prefixed, name[:n+1])
			}
			if !dominated {
				return true
			}
		}
	}
	return false
}

func TestAgainstModel(t *testing.T) {
	names := rapid.SampledFrom([]string{"a", "ab", "abc", "abd", "b", "*", "hardcode", "har", "käse", "kä"})
	hosts := rapid.SampledFrom([]string{"*", "*", "10.1.2.3", "10.0.0.0/8", "2001:db8:0:0:0:0:0:1", "2001:db8::/32", "10.9.9.9", "2001:db8::1"})
	principals := rapid.SampledFrom([]string{"User:alice", "User:bob", "User:*", "Group:alice"})
	types := rapid.SampledFrom([]ResourceType{Topic, Group, Cluster})
	ops := rapid.SampledFrom([]Operation{All, Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs})
	entries := rapid.Custom(func(t *rapid.T) ACL {
		return entry(types.Draw(t, "type"), rapid.SampledFrom([]PatternType{Literal, Prefixed}).Draw(t, "pattern"), names.Draw(t, "name"), principals.Draw(t, "principal"),
			hosts.Draw(t, "host"), ops.Draw(t, "op"), rapid.SampledFrom([]Permission{Deny, Allow, Allow}).Draw(t, "permission"))
	})
	rapid.Check(t, func(t *rapid.T) {
		m := &model{settings: Settings{AllowUnspoken: rapid.Bool().Draw(t, "allow unspoken")}}
		a := NewAuthorizer(m.settings, slog.New(slog.DiscardHandler))
		acls := new(ACLs)
		a.Load(acls)
		for range rapid.IntRange(1, 6).Draw(t, "versions") {
			before := acls
			wasLen := before.Len()
			e := acls.Edit()
			for range rapid.IntRange(0, 8).Draw(t, "changes") {
				if len(m.entries) > 0 && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
					i := rapid.IntRange(0, len(m.entries)-1).Draw(t, "which")
					if !e.Remove(&m.entries[i]) {
						t.Fatalf("%v is not there", m.entries[i])
					}
					m.entries = append(append([]ACL(nil), m.entries[:i]...), m.entries[i+1:]...)
					continue
				}
				x := entries.Draw(t, "entry")
				e.Add(&x)
				m.entries = append(m.entries, x)
			}
			acls = e.Done()
			a.Load(acls)
			if acls.Len() != len(m.entries) || before.Len() != wasLen {
				t.Fatalf("%d entries, want %d; the version before has %d, had %d", acls.Len(), len(m.entries), before.Len(), wasLen)
			}
			for range 8 {
				who := rapid.SampledFrom([]Requester{alice, bob, {"Group:alice", alice.Addr}}).Draw(t, "who")
				op := rapid.SampledFrom([]Operation{Read, Write, Create, Describe, DescribeConfigs, Alter}).Draw(t, "ask")
				rt, name := types.Draw(t, "of"), names.Draw(t, "named")
				if got, want := a.Would(who, op, rt, name), m.allows(who, op, rt, name); got != want {
					t.Fatalf("%s %v %v %s: %v, want %v", who.Principal, op, rt, name, got, want)
				}
				if got, want := a.AllowsSome(who, op, rt), m.allowsSome(who, op, rt); got != want {
					t.Fatalf("%s %v some %v: %v, want %v", who.Principal, op, rt, got, want)
				}
			}
		}
	})
}

func TestRemoveWhatIsNotThere(t *testing.T) {
	x := entry(Topic, Literal, "a", "User:alice", "*", Read, Allow)
	e := index(x).Edit()
	y := x
	y.Host = "10.0.0.1"
	if e.Remove(&y) || !e.Remove(&x) || e.Remove(&x) {
		t.Error("removal by another entry")
	}
	if e.Done().Len() != 0 {
		t.Error("not empty")
	}
}

func TestFilter(t *testing.T) {
	name, other := "abc", "x"
	x := entry(Topic, Prefixed, "ab", "User:alice", "*", Read, Allow)
	lit, wild := entry(Topic, Literal, "abc", "User:alice", "*", Read, Allow), entry(Topic, Literal, "*", "User:alice", "*", Read, Allow)
	base := Filter{ResourceType: 1, PatternType: int8(MatchPattern), Operation: 1, PermissionType: 1, ResourceName: &name}
	for _, a := range []ACL{x, lit, wild} {
		if !base.Matches(&a) {
			t.Errorf("%v is not found", a)
		}
	}
	f := base
	f.PatternType = int8(AnyPattern)
	if f.Matches(&x) || !f.Matches(&lit) || f.Matches(&wild) {
		t.Error("ANY is not about the name itself")
	}
	f.PatternType = int8(Prefixed)
	if f.Matches(&lit) {
		t.Error("a literal is taken for a prefix")
	}
	f = base
	f.Principal = &other
	if f.Matches(&lit) {
		t.Error("the principal doesn't count")
	}
	f = base
	f.Host = &other
	if f.Matches(&lit) {
		t.Error("the host doesn't count")
	}
	if f.UnknownPattern() || f.UnknownEntry() {
		t.Error("known values are unknown")
	}
	f.ResourceType, f.Operation = 99, 0
	if !f.UnknownPattern() || !f.UnknownEntry() {
		t.Error("unknown values are known")
	}
}

func many(n int) []ACL {
	out := make([]ACL, n)
	for i := range out {
		out[i] = entry(Topic, []PatternType{Literal, Prefixed}[i%2], fmt.Sprintf("team-%d.topic-%d", i%97, i), fmt.Sprintf("User:u%d", i%1000), "*", Read, Allow)
	}
	return out
}

func BenchmarkAllows100k(b *testing.B) {
	a := authorizer(Settings{}, many(100_000)...)
	who := Requester{"User:u77", alice.Addr}
	b.ReportAllocs()
	for b.Loop() {
		a.Would(who, Read, Topic, "team-77.topic-77.sub")
	}
}

func BenchmarkEdit100k(b *testing.B) {
	acls := index(many(100_000)...)
	x := entry(Topic, Prefixed, "new", "User:u5", "*", Read, Allow)
	b.ReportAllocs()
	for b.Loop() {
		e := acls.Edit()
		e.Add(&x)
		e.Done()
	}
}
