package schema

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGeneratedCodeIsCurrent runs the generator twice and compares with what is committed.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	dir := filepath.Join("..", "internal", "message")
	a, err := Sources()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Sources()
	if err != nil {
		t.Fatal(err)
	}
	for name, src := range a {
		if !bytes.Equal(src, b[name]) {
			t.Errorf("%s comes out differently the second time", name)
		}
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(got, src) {
			t.Errorf("%s is not what the schema gives: run go generate ./schema", name)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_gen.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if a[filepath.Base(f)] == nil {
			t.Errorf("%s belongs to no schema file", f)
		}
	}
}

// TestMetadataRecordTypes checks that the 27 record types of the metadata log are there with Kafka's numbers and versions.
func TestMetadataRecordTypes(t *testing.T) {
	want := map[string]string{
		"RegisterBrokerRecord": "0 0-4", "UnregisterBrokerRecord": "1 0", "TopicRecord": "2 0", "PartitionRecord": "3 0-2",
		"ConfigRecord": "4 0", "PartitionChangeRecord": "5 0-2", "FenceBrokerRecord": "7 0", "UnfenceBrokerRecord": "8 0",
		"RemoveTopicRecord": "9 0", "DelegationTokenRecord": "10 0", "UserScramCredentialRecord": "11 0", "FeatureLevelRecord": "12 0",
		"ClientQuotaRecord": "14 0", "ProducerIdsRecord": "15 0", "BrokerRegistrationChangeRecord": "17 0-3",
		"AccessControlEntryRecord": "18 0", "RemoveAccessControlEntryRecord": "19 0", "NoOpRecord": "20 0",
		"ZkMigrationStateRecord": "21 0", "RemoveUserScramCredentialRecord": "22 0", "BeginTransactionRecord": "23 0",
		"EndTransactionRecord": "24 0", "AbortTransactionRecord": "25 0", "RemoveDelegationTokenRecord": "26 0",
		"RegisterControllerRecord": "27 0", "ClearElrRecord": "28 0", "UnregisterControllerRecord": "29 0",
	}
	files, err := ParseAll(Files)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		for _, m := range f.Messages {
			if m.Kind != "metadata" {
				continue
			}
			n++
			if got := strings.TrimSpace(itoa(m.Key) + " " + m.Versions.String()); got != want[m.Name] {
				t.Errorf("%s: %s, want %s", m.Name, got, want[m.Name])
			}
		}
	}
	if n != len(want) {
		t.Errorf("%d metadata records, want %d", n, len(want))
	}
}

func itoa(n int16) string { return Range{n, n}.String() }

func TestParseRefuses(t *testing.T) {
	const msg = "msg M kind=k key=1 v=0-2 flex=1+\n"
	f := func(src, want string) {
		t.Helper()
		_, err := Parse("x.schema", src)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %v, want an error with %q", src, err, want)
		}
	}
	f("field A int8 v=0", "before any msg")
	f("struct S v=0", "before any msg")
	f("doc text", "without an item")
	f("table T", "unknown item")
	f("msg", "without a name")
	f("msg M v=0", "needs kind=")
	f("msg M kind=k v=0+", "closed v=")
	f("msg M kind=k v=2-1 flex=none", "backwards")
	f("msg M kind=k v=x", "bad version")
	f("msg M kind=k v=0 colour=red", "unknown attribute")
	f(msg+"field A", "wants a name, a type and v=")
	f(msg+"field A int8 def=1", "no versions")
	f(msg+"field A int8 v=0+\nfield a int8 v=0+", "there twice")
	f(msg+"field A quux v=0+", "unknown type")
	f(msg+"field A int8 v=0+ null=0+", "can't be null")
	f(msg+"field A string v=0+ null=1+ def=null", "may not be null in all")
	f(msg+"field A int8 v=0+ tag=0/0+", "not flexible")
	f(msg+"field A int8 v=1+ tag=0/2+", "tagged in")
	f(msg+"field A int8 v=1+ tag=0/1+\nfield B int8 v=1+ tag=0/1+", "share tag")
	f(msg+"field A int8 v=0+\nstruct S v=0+\nfield B int8 v=0+", "not used")
	f(msg+"field A S v=0+\nstruct S v=0+\nstruct S v=0+", "there twice")
	f(msg+"struct S", "wants a name and v=")
	_, err := Parse("dir/x.schema", msg+"# comment\n\n  field A []int32 v=0+ null=1+ ign\n  doc what it\n  doc is.\n")
	if err != nil {
		t.Errorf("a good message is refused: %v", err)
	}
}
