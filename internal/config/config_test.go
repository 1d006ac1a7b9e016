package config

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// lines reads a test file of tab-separated values, gzipped or not.
func lines(t *testing.T, name string) [][]string {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		s = bufio.NewScanner(z)
	}
	s.Buffer(nil, 1<<20)
	var out [][]string
	for s.Scan() {
		out = append(out, strings.Split(s.Text(), "\t"))
	}
	if s.Err() != nil || len(out) == 0 {
		t.Fatalf("%s: %d lines, %v", name, len(out), s.Err())
	}
	return out
}

// TestTablesAreKafkas compares every declaration with the table that was read from Kafka 4.4.0's own ConfigDefs.
func TestTablesAreKafkas(t *testing.T) {
	tables := map[string]*Table{
		"Broker and controller": BrokerKeys, "Topic": TopicKeys, "Group": GroupKeys, "Client metrics subscription": ClientMetricsKeys,
		"Dynamic broker quotas": BrokerQuotaKeys, "Quota keys for user and client-id entities": ClientQuotaKeys,
		"Quota keys for ip entities": IPQuotaKeys, "Topic-based remote log metadata manager": RemoteMetadataKeys,
	}
	seen := map[string]int{}
	for _, l := range lines(t, "kafka-4.4-keys.tsv") {
		section, name := l[0], l[1]
		internal := strings.HasSuffix(name, " (internal)")
		name = strings.TrimSuffix(name, " (internal)")
		k := tables[section].Lookup(name)
		if k == nil {
			t.Errorf("%s: %s is missing", section, name)
			continue
		}
		seen[section]++
		typ, def, valid, importance := l[2], strings.Trim(l[3], "`"), l[4], l[5]
		if got := strings.ToLower(k.Type.String()); got != typ {
			t.Errorf("%s: type %s, want %s", name, got, typ)
		}
		got, ok := k.DefaultText()
		switch {
		case k.Required():
			got = "(required)"
		case !ok:
			got = "null"
		case got == "":
			got = `""`
		}
		if got != def {
			t.Errorf("%s: default %q, want %q", name, got, def)
		}
		if k.Importance.String() != importance {
			t.Errorf("%s: importance %s, want %s", name, k.Importance, importance)
		}
		if k.Internal() != internal {
			t.Errorf("%s: internal %v, want %v", name, k.Internal(), internal)
		}
		if valid != "" && valid != k.Allowed() && !strings.HasPrefix(name, "controller.quorum.") {
			t.Errorf("%s: allowed %q, want %q", name, k.Allowed(), valid)
		}
		if section == "Broker and controller" {
			mode := "read-only"
			if k.Flags&PerBroker != 0 {
				mode = "per-broker"
			} else if k.Flags&ClusterWide != 0 {
				mode = "cluster-wide"
			}
			if mode != l[6] {
				t.Errorf("%s: update mode %s, want %s", name, mode, l[6])
			}
		}
	}
	for section, table := range tables {
		want := table.Len()
		if table == BrokerKeys {
			want -= len(gregorKeys)
		}
		if seen[section] != want {
			t.Errorf("%s: %d keys in Kafka, %d here", section, seen[section], want)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	for _, table := range []*Table{BrokerKeys, TopicKeys, GroupKeys, ClientMetricsKeys, BrokerQuotaKeys, ClientQuotaKeys, IPQuotaKeys, RemoteMetadataKeys} {
		for i := range table.Keys() {
			k := &table.Keys()[i]
			if len(k.Doc) < 20 || !strings.HasSuffix(k.Doc, ".") {
				t.Errorf("%s: documentation is %q", k.Name, k.Doc)
			}
			k.DefaultValue() // panics when the default doesn't parse
		}
	}
}

// TestParseIsKafkas gives every key some sixty texts and compares value or message with what Kafka 4.4.0's ConfigDef said.
func TestParseIsKafkas(t *testing.T) {
	tables := map[string]*Table{"broker": BrokerKeys, "topic": TopicKeys, "group": GroupKeys, "metrics": ClientMetricsKeys}
	bad := 0
	for _, l := range lines(t, "kafka-4.4-parse.tsv.gz") {
		k := tables[l[0]].Lookup(l[1])
		if k == nil {
			t.Fatalf("%s has no key %s", l[0], l[1])
		}
		want := l[3] + " " + l[4]
		v, err := k.parseOnly(l[2]) // not Parse, which drops duplicates: Kafka's parser does that outside of ConfigDef's types
		if err == nil && k.Valid != nil {
			err = k.Valid.check(k.Name, v)
		}
		got := "ok " + v.String()
		if err != nil {
			got = "bad " + err.Error()
		}
		if got != want {
			if bad++; bad > 20 {
				t.FailNow()
			}
			t.Errorf("%s = %q:\n got %s\nwant %s", l[1], l[2], got, want)
		}
	}
}

var rewrite = flag.Bool("rewrite", false, "write docs/configuration.md anew")

func TestDocumentIsUpToDate(t *testing.T) {
	const page = "../../docs/configuration.md"
	var want bytes.Buffer
	if err := Document(&want); err != nil {
		t.Fatal(err)
	}
	if *rewrite {
		if err := os.WriteFile(page, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s doesn't say what the declarations do (%v): run go test ./internal/config -rewrite", page, err)
	}
}

// TestLongLists: a list may be as long as a request, and is read in one go; comparing each member with all others would take
// minutes here.
func TestLongLists(t *testing.T) {
	var text strings.Builder
	const n = 300_000
	for i := range 2 * n {
		fmt.Fprintf(&text, "%d:%d,", i%n, i%n)
	}
	v, err := TopicKeys.Lookup("leader.replication.throttled.replicas").Parse(strings.TrimSuffix(text.String(), ","))
	if err != nil || len(v.List()) != n || v.List()[n-1] != "299999:299999" {
		t.Fatalf("%d members, %v", len(v.List()), err)
	}
}
