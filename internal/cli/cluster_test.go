package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gregor"
	"gregor/internal/vfs"
)

// session runs command lines against a node of its own.
type session struct {
	t    *testing.T
	addr string
}

func newSession(t *testing.T) *session {
	t.Helper()
	n, err := gregor.Start(t.Context(), gregor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return &session{t, n.Addr()}
}

// do is what a command printed; it fails the test if the command does.
func (s *session) do(stdin, line string) string {
	s.t.Helper()
	out, errs, err := s.try(stdin, line)
	if err != nil {
		s.t.Fatalf("gregor %s: %v\n%s%s", line, err, out, errs)
	}
	return out
}

func (s *session) try(stdin, line string) (stdout, stderr string, err error) {
	return s.run(stdin, line+" --timeout 2m --bootstrap-server "+s.addr)
}

// run is try for a line that says by itself which node is meant.
func (s *session) run(stdin, line string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	root := Root(&Env{FS: vfs.OS, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs})
	root.SetArgs(strings.Fields(line))
	err = root.ExecuteContext(s.t.Context())
	return out.String(), errs.String(), err
}

func (s *session) wants(stdin, line string, parts ...string) {
	s.t.Helper()
	out := s.do(stdin, line)
	for _, p := range parts {
		if !strings.Contains(out, p) {
			s.t.Errorf("gregor %s: no %q in\n%s", line, p, out)
		}
	}
}

func (s *session) fails(line, part string) {
	s.t.Helper()
	out, errs, err := s.try("", line)
	if err == nil || !strings.Contains(err.Error(), part) {
		s.t.Errorf("gregor %s: %v, want an error with %q\n%s%s", line, err, part, out, errs)
	}
}

// The tools against a real node: what a newcomer does on the first day.
func TestFirstDay(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.wants("", "topic create orders -p 3 -c retention.ms=1000000", "orders created: 3 partitions, replication factor 1")
	s.fails("topic create orders", "TOPIC_ALREADY_EXISTS")
	s.wants("", "topic create orders --if-not-exists", "orders exists already")
	s.wants("", "topic create other --dry-run", "would be created")
	s.wants("", "topic list", "orders  3")
	s.fails("topic create bad/name", "INVALID_TOPIC_EXCEPTION")

	s.do("k1:v1\nk2:v2\nk3:NULL\n", "produce orders -s : --null-marker NULL -H a=b -z zstd")
	var got []map[string]any
	for _, line := range strings.Split(strings.TrimSpace(s.do("", "consume orders --from earliest -e -o json")), "\n") {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		got = append(got, m)
	}
	if len(got) != 3 {
		t.Errorf("%v", got)
	}
	s.wants("", "topic describe orders", "retention.ms=1000000", "PARTITION", "Topic orders, id ")
	var rows []topicRow
	if err := json.Unmarshal([]byte(s.do("", "topic describe orders -o json")), &rows); err != nil || len(rows) != 1 || len(rows[0].Partitions) != 3 {
		t.Errorf("%v %+v", err, rows)
	}
	total := int64(0)
	for _, p := range rows[0].Partitions {
		total += *p.End
	}
	if total != 3 {
		t.Errorf("%d records", total)
	}
	s.fails("topic describe nope", "UNKNOWN_TOPIC_OR_PARTITION")
	s.fails("consume nope -e", "UNKNOWN_TOPIC_OR_PARTITION")

	s.wants("", "config alter topic orders retention.ms=5000 --append cleanup.policy=compact", "topic orders: 2 configs changed")
	s.wants("", "config describe topic orders", "delete,compact", "5000")
	s.fails("config alter topic orders retention.ms=x", "INVALID_CONFIG")
	s.wants("", "config alter topic orders --delete cleanup.policy,retention.ms", "2 configs changed")
	s.wants("", "config describe broker 1 --all", "log.retention.hours")

	s.wants("", "topic alter orders -p 4", "orders: 4 partitions")
	s.fails("topic delete orders", "--yes")
	s.wants("", "topic delete orders -y", "orders deleted")
	s.fails("topic delete orders -y", "UNKNOWN_TOPIC_OR_PARTITION")
	s.do("", "topic delete orders -y --if-exists")
}

func TestGroupCommands(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.do("", "topic create orders -p 2")
	var in strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&in, "key-%d:value %d\n", i, i)
	}
	s.do(in.String(), "produce orders -s :")
	if n := strings.Count(s.do("", "consume orders -g billing --from earliest -n 600"), "\n"); n != 600 {
		t.Errorf("%d lines of 600", n)
	}
	s.wants("", "group list", "billing", "classic")
	describe := func() groupDescription {
		t.Helper()
		var d []groupDescription
		if err := json.Unmarshal([]byte(s.do("", "group describe billing -o json")), &d); err != nil || len(d) != 1 {
			t.Fatalf("%v %+v", err, d)
		}
		return d[0]
	}
	sum := func(d groupDescription) (committed, lag int64) {
		for _, p := range d.Partitions {
			committed += *p.Committed
			lag += *p.Lag
		}
		return committed, lag
	}
	if c, _ := sum(describe()); c != 600 {
		t.Errorf("%d committed of 600", c)
	}
	// The rest and no record twice.
	if n := strings.Count(s.do("", "consume orders -g billing --from earliest -e"), "\n"); n != 400 {
		t.Errorf("%d lines of 400", n)
	}
	if c, lag := sum(describe()); c != 1000 || lag != 0 {
		t.Errorf("%d committed, lag %d", c, lag)
	}
	s.wants("", "group reset-offsets billing --all-topics --shift -10", "orders")
	if c, _ := sum(describe()); c != 1000 {
		t.Error("a dry run moved offsets")
	}
	s.do("", "group reset-offsets billing --all-topics --shift -10 --execute")
	if c, lag := sum(describe()); c != 980 || lag != 20 {
		t.Errorf("%d committed, lag %d", c, lag)
	}
	s.do("", "group reset-offsets billing -t orders:1 --to earliest --execute")
	s.fails("group describe nope", "no such group")
	s.wants("", "group delete billing -y", "billing deleted")
	s.fails("group delete billing -y", "GROUP_ID_NOT_FOUND")
}

// A topic goes through JSON into another without loss, from a file too.
func TestCopyTopic(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.do("", "topic create a")
	s.do("", "topic create b")
	s.do(`{"key":null,"value":"v","headers":[{"key":"h","value":null},{"key":"h","valueBase64":"/wA="}],"timestamp":"2026-01-02T03:04:05.678Z"}
{"key":"","value":null}
{"keyBase64":"/w==","valueBase64":"AP8="}
`, "produce a --input json -z lz4")
	first := s.do("", "consume a --from earliest -e -o json")
	file := filepath.Join(t.TempDir(), "a.ndjson")
	if err := os.WriteFile(file, []byte(first), 0o644); err != nil {
		t.Fatal(err)
	}
	s.do("", "produce b --input json --file "+file)
	second := s.do("", "consume b --from earliest -e -o json")
	if strings.ReplaceAll(second, `"topic":"b"`, `"topic":"a"`) != first || strings.Count(first, "\n") != 3 {
		t.Errorf("first\n%s\nthen\n%s", first, second)
	}
	s.wants("", "consume a --from -1 -e --format %o", "2")
	s.wants("", "consume a --from 2026-01-01 -e -n 1", "v")
	if out := s.do("", "consume a --from 1 -n 1 --format %o"); out != "1" {
		t.Errorf("from offset 1: %q", out)
	}
	_, errs, err := s.try("{}\nnonsense\n", "produce a --input json")
	if err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("%v %s", err, errs)
	}
}
