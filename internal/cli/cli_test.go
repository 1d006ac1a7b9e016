package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"gregor/client"
)

// Every command says what it is, and every flag what it does: the help is the manual.
func TestHelp(t *testing.T) {
	t.Parallel()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short help %q", c.CommandPath(), c.Short)
		}
		if c.Runnable() && c.Long == "" && c.Example == "" && len(strings.Fields(c.Short)) < 2 {
			t.Errorf("%s: no help", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			if sub.Name() != "completion" && sub.Name() != "help" {
				walk(sub)
			}
		}
	}
	walk(Root(&Env{}, newServer(), newStorage()))
	for _, c := range []string{"topic", "produce", "consume", "group", "config", "cluster", "broker", "quorum", "feature", "leader", "reassign", "metadata", "dump-log", "version"} {
		out, err := run(t, c, "--help")
		if err != nil || !strings.Contains(out, "Usage:") || !strings.Contains(out, "gregor "+c) {
			t.Errorf("%s --help: %v\n%s", c, err, out)
		}
	}
}

func TestWrongUse(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"frobnicate", "topic create", "topic create a -c x", "topic create a -p 3 --assignment 1:2", "topic alter a", "topic alter", "topic list x",
		"topic list -o xml", "produce", "produce a b", "produce a --compression brotli", "produce a --acks 2", "produce a -H x", "produce a --input xml",
		"consume", "consume a --from then", "consume a -k --format %v", "consume a -g g -p 1", "group describe", "group reset-offsets g",
		"group reset-offsets g --to earliest", "group reset-offsets g --to earliest --shift 3 --all-topics", "config describe", "config describe thing x",
		"config alter topic x", "config alter topic x y", "config describe topic", "config describe topic --default", "dump-log", "version x",
		"topic create a --no-such-flag", "quorum describe x", "quorum describe --status --replication", "quorum add-controller", "quorum remove-controller",
		"quorum remove-controller -i 1 -d x", "feature upgrade", "feature upgrade -f x", "feature disable", "leader elect", "leader elect a:x", "leader elect --topic a",
		"leader elect a --election-type x", "reassign generate a", "reassign generate --broker-list 1", "reassign generate a --broker-list x", "reassign execute",
		"reassign execute --bootstrap-controller x:1 -f x", "broker unregister", "broker unregister x", "cluster unregister",
	} {
		out, err := run(t, strings.Fields(args)...)
		var b bytes.Buffer
		if code := Report(&b, err); code != 2 || !strings.HasPrefix(b.String(), "gregor: ") {
			t.Errorf("%s: exit code %d, %v\n%s", args, code, err, out)
		}
	}
	if Report(&bytes.Buffer{}, nil) != 0 || Report(&bytes.Buffer{}, errors.New("x")) != 1 {
		t.Error("exit codes")
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	out, err := run(t, "version")
	if err != nil || !strings.HasPrefix(out, "gregor 1.0, compatible with Kafka 4.4.0") {
		t.Errorf("%v %q", err, out)
	}
	out, err = run(t, "version", "-o", "json")
	var v map[string]string
	if err != nil || json.Unmarshal([]byte(out), &v) != nil || v["kafka"] != "4.4.0" {
		t.Errorf("%v %q", err, out)
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	f := func(want string, args ...string) {
		t.Helper()
		if got := strings.Join(commandLine(args), " "); got != want {
			t.Errorf("%v: %q, want %q", args, got, want)
		}
	}
	f("topic list", "gregor", "topic", "list")
	f("dump-log --files x", "/usr/bin/kafka-dump-log.sh", "--files", "x")
	f("storage info", "kafka-storage", "info")
	f("quorum --bootstrap-server b:1 describe --status", "kafka-metadata-quorum.sh", "--bootstrap-server", "b:1", "describe", "--status")
	f("metadata shell --snapshot f ls /image", "kafka-metadata-shell", "--snapshot", "f", "ls", "/image")
	f("feature --bootstrap-controller c:1 describe", "kafka-features", "--bootstrap-controller", "c:1", "describe")
	f("leader elect --command-config f --election-type preferred", "kafka-leader-election.sh", "--admin.config", "f", "--election-type", "preferred")
	f("cluster list-endpoints --bootstrap-controller c:1 --command-config=f", "kafka-cluster", "list-endpoints", "-C", "c:1", "--config=f")
	f("reassign execute --bootstrap-server b:1 --move-timeout=500ms --reassignment-json-file f", "kafka-reassign-partitions",
		"--bootstrap-server", "b:1", "--execute", "--timeout", "500", "--reassignment-json-file", "f")
	f("reassign list --move-timeout=7ms", "kafka-reassign-partitions", "--list", "--timeout=7")
	f("reassign list --move-timeout", "kafka-reassign-partitions", "--list", "--timeout")
}

func TestParseStart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	f := func(in string, want start) {
		t.Helper()
		got, err := parseStart(in, now)
		if err != nil || got.at != want.at || got.behind != want.behind || !got.time.Equal(want.time) {
			t.Errorf("%q: %+v %v, want %+v", in, got, err, want)
		}
	}
	f("earliest", start{at: client.Earliest})
	f("latest", start{at: client.Latest})
	f("0", start{})
	f("42", start{at: 42})
	f("-10", start{behind: 10})
	f("1h30m", start{time: now.Add(-90 * time.Minute)})
	f("-15m", start{time: now.Add(-15 * time.Minute)})
	f("2026-01-02T03:04:05Z", start{time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)})
	f("2026-01-02", start{time: time.Date(2026, 1, 2, 0, 0, 0, 0, time.Local)})
	if _, err := parseStart("yesterday", now); err == nil {
		t.Error("nonsense read")
	}
}

func TestFormatRecord(t *testing.T) {
	t.Parallel()
	r := &client.Record{Topic: "t", Partition: 3, Offset: 9, Timestamp: time.UnixMilli(1700000000123), Key: []byte("k"), Headers: []client.Header{{Key: "a", Value: []byte("b")}, {Key: "n"}}}
	if got := formatRecord(`%t/%p/%o %T %k=%v [%h] 100%% \\ \x%`, r); got != `t/3/9 2023-11-14T22:13:20.123Z k=null [a=b,n=null] 100% \ \x%` {
		t.Error(got)
	}
}

// What consume prints as JSON, produce reads back.
func TestRecordJSON(t *testing.T) {
	t.Parallel()
	o := &produceOptions{topic: "t", partition: -1, input: "json"}
	for _, r := range []*client.Record{
		{Topic: "t", Partition: 2, Offset: 7, Timestamp: time.UnixMilli(1700000000123), Key: []byte("k"), Value: []byte("välue <>")},
		{Topic: "t", Timestamp: time.UnixMilli(5), Key: []byte{}, Headers: []client.Header{{Key: "h", Value: []byte{0xff, 0}}, {Key: "n"}, {Key: "", Value: []byte("x")}}},
		{Topic: "t", Timestamp: time.UnixMilli(5), Key: []byte{0, 1, 0xfe}, Value: []byte{0xff}},
	} {
		line, err := json.Marshal(jsonOf(r))
		if err != nil {
			t.Fatal(err)
		}
		got, err := o.record(line, nil)
		if err != nil {
			t.Fatal(err)
		}
		same := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
		if !same(got.Key, r.Key) || !same(got.Value, r.Value) || !got.Timestamp.Equal(r.Timestamp) || got.Partition != r.Partition || len(got.Headers) != len(r.Headers) {
			t.Errorf("%s: got %+v, want %+v", line, got, r)
		}
		for i, h := range got.Headers {
			if h.Key != r.Headers[i].Key || !same(h.Value, r.Headers[i].Value) {
				t.Errorf("%s: header %+v, want %+v", line, h, r.Headers[i])
			}
		}
	}
	if _, err := o.record([]byte("{"), nil); err == nil {
		t.Error("half an object read")
	}
}

func TestTextRecords(t *testing.T) {
	t.Parallel()
	f := func(o produceOptions, line, key, value string, nullKey, nullValue bool) {
		t.Helper()
		o.input = "text"
		r, err := o.record([]byte(line), nil)
		if err != nil || string(r.Key) != key || string(r.Value) != value || (r.Key == nil) != nullKey || (r.Value == nil) != nullValue {
			t.Errorf("%q: %+v %v", line, r, err)
		}
	}
	f(produceOptions{}, "a:b", "", "a:b", true, false)
	f(produceOptions{}, "", "", "", true, false)
	f(produceOptions{key: "k"}, "v", "k", "v", false, false)
	f(produceOptions{separator: ":"}, "a:b:c", "a", "b:c", false, false)
	f(produceOptions{separator: ":", null: "-"}, "-:b", "", "b", true, false)
	f(produceOptions{separator: ":", null: "-"}, "a:-", "a", "", false, true)
	if _, err := (&produceOptions{input: "text", separator: ":"}).record([]byte("ab"), nil); err == nil {
		t.Error("line without a separator read")
	}
}

func TestParseAssignment(t *testing.T) {
	t.Parallel()
	a, err := parseAssignment("1:2, 2:3")
	if err != nil || len(a) != 2 || a[1][0] != 2 || a[1][1] != 3 {
		t.Errorf("%v %v", a, err)
	}
	if _, err := parseAssignment("1:x"); err == nil {
		t.Error("nonsense read")
	}
}

func TestJavaString(t *testing.T) {
	t.Parallel()
	// What java.lang.String makes of these bytes.
	for in, want := range map[string]string{
		"plain": "plain", "\xff": "\ufffd", "a\xe2\x82b": "a\ufffdb", "\xe2\x82\xac": "€", "\xf0\x9f\x98": "\ufffd", "\xc0\xaf": "\ufffd\ufffd",
		"\xed\xa0\x80": "\ufffd\ufffd\ufffd", "\xf0\x80\x80\x80": "\ufffd\ufffd\ufffd\ufffd", "\x80": "\ufffd",
	} {
		if got := javaString([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func writeFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
