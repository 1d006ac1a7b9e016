package cli

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gregor"
	"gregor/internal/golden"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/record"
	"gregor/internal/vfs"
)

// unpack writes the metadata of a golden archive to a directory.
func unpack(t testing.TB, archive string) string {
	t.Helper()
	dir := t.TempDir()
	for path, b := range golden.Files(t, archive, func(path string) bool { return strings.Contains(path, metadataDir) }) {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// shell is what a command line printed on standard output.
func shell(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	root := Root(&Env{FS: vfs.OS, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs, Version: "1.0", Revision: "abc"})
	root.SetArgs(append([]string{"metadata", "shell"}, args...))
	err := root.ExecuteContext(t.Context())
	if errs.Len() > 0 {
		t.Logf("standard error: %s", errs.String())
	}
	return out.String(), err
}

// The tree of each golden file is that of Kafka's shell, but for the quotas of defaults.
func TestMetadataShellLikeKafka(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/metadata-shell/*.txt.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v %v", files, err)
	}
	for _, name := range files {
		command, want, _ := strings.Cut(gunzip(t, name), "\n")
		args := strings.Fields(strings.TrimPrefix(command, "$ "))
		archive, _, _ := strings.Cut(args[1], "/")
		args[1] = filepath.Join(unpack(t, archive), args[1])
		got, err := shell(t, "", args...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if strings.Contains(want, "\n  :\n") {
			// Kafka has no name for it, and fails to go on.
			want = strings.Replace(want, "\n  :\n", "\n", 1)
			const quota = "  user(<default>):\n    request_percentage:\n      200.0\n"
			if !strings.Contains(got, quota) {
				t.Errorf("%s: no quota of the default user", name)
			}
			got = strings.Replace(got, quota, "", 1)
		}
		if got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

func gunzip(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Commands print what they print in Kafka's shell.
func TestMetadataShellCommandsLikeKafka(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/metadata-shell/commands.txt")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(unpack(t, "quorum3-clean"), "quorum3-clean/node-103/data", metadataDir, "00000000000000000104-0000000004.checkpoint")
	for _, c := range strings.Split(string(text), "$ ")[1:] {
		line, want, _ := strings.Cut(c, "\n")
		got, err := shell(t, "", append([]string{"--snapshot", file}, strings.Fields(line)...)...)
		if got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", line, got, want)
		}
		// Kafka's doesn't fail for a path that isn't there.
		if missing := strings.Contains(want, "o such file or directory.") || strings.Contains(want, "Is a directory"); (err != nil) != missing {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// A directory shows what its newest snapshot and the log behind it add up to.
func TestMetadataShellDirectory(t *testing.T) {
	t.Parallel()
	for archive, node := range map[string]string{"single-clean": "node-1/data", "meta-trimmed": "node-1/data", "static-jbod": "node-1/meta"} {
		dir := filepath.Join(unpack(t, archive), archive, node)
		whole, err := shell(t, "", "--directory", dir, "tree", "/image")
		if err != nil {
			t.Fatalf("%s: %v", archive, err)
		}
		inner, err := shell(t, "", "--directory", filepath.Join(dir, metadataDir), "tree", "/image")
		if err != nil || inner != whole {
			t.Errorf("%s: another tree by the inner directory: %v", archive, err)
		}
		if archive == "meta-trimmed" {
			continue // its log begins at offset 111
		}
		log, err := shell(t, "", "--snapshot", filepath.Join(dir, metadataDir, "00000000000000000000.log"), "tree", "/image")
		if err != nil || withoutProvenance(log) != withoutProvenance(whole) {
			t.Errorf("%s: the log alone gives another tree than with the snapshot: %v", archive, err)
		}
	}
	if _, err := shell(t, "", "--directory", t.TempDir(), "ls"); err == nil || !strings.Contains(err.Error(), "no snapshot and no log") {
		t.Errorf("an empty directory: %v", err)
	}
	dir := filepath.Join(unpack(t, "meta-trimmed"), "meta-trimmed/node-1/data", metadataDir)
	if err := os.Remove(filepath.Join(dir, "00000000000000000116-0000000001.checkpoint")); err != nil {
		t.Fatal(err)
	}
	if _, err := shell(t, "", "--directory", dir, "ls"); err == nil || !strings.Contains(err.Error(), "the log begins at offset 111") {
		t.Errorf("a log without its snapshot: %v", err)
	}
}

func withoutProvenance(tree string) string {
	before, after, _ := strings.Cut(tree, "provenance:\n")
	_, after, _ = strings.Cut(after, "\n")
	return before + after
}

func TestMetadataShellSession(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(unpack(t, "quorum3-clean"), "quorum3-clean/node-103/data")
	got, err := shell(t, `pwd
cd image/features

ls
cat metadataVersion
cd ../topics/byName/..
pwd
cd /nope
cd /local/version
cat '/local/version' "/local/commitId"
ls "unended
frobnicate
man ls
man nope
cat
history 2
reload
cd
pwd
exit
pwd
`, "--directory", dir)
	if err != nil {
		t.Fatal(err)
	}
	want := `/
finalized_eligible.leader.replicas.version
finalized_group.version
finalized_share.version
finalized_streams.version
finalized_transaction.version
metadataVersion
Optional[4.4-IV2]
/image/topics
cd: /nope: no such directory.
cd: /local/version: not a directory.
1.0
abc
a quote or a backslash at the end of the line leads nowhere
no command "frobnicate": "help" lists those that there are
ls: List metadata nodes.

usage: ls [PATH...]
man: unknown command nope: "help" lists those that there are
usage: cat PATH...
   13  cat
   14  history 2
/image/topics
/
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, err := shell(t, "help\n", "--directory", dir); err != nil || !strings.Contains(got, "tree PATH...") {
		t.Errorf("%v %s", err, got)
	}
	if _, err := shell(t, "", "--directory", dir, "cd", "/"); err == nil {
		t.Error("cd makes no sense as the only command")
	}
	if _, err := shell(t, "", "--directory", dir, "--snapshot", "x", "ls"); err == nil {
		t.Error("two sources")
	}
}

// Over the wire a running cluster shows what its directory does.
func TestMetadataShellCluster(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.do("", "topic create orders -p 3 -c retention.ms=5000")
	s.wants("", "metadata shell find /image/topics/byName", "/image/topics/byName/orders/2\n")
	s.wants("", "metadata shell cat /image/configs/TOPIC:orders/retention.ms /image/topics/byName/orders/0", "5000\n", "PartitionRegistration(replicas=[1], directories=[")
}

// Where the leader's log begins later than the cluster, its snapshot is fetched first.
func TestMetadataShellClusterSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, b := range golden.Files(t, "meta-trimmed", func(string) bool { return true }) {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, string(b))
	}
	data := filepath.Join(dir, "meta-trimmed/node-1/data")
	want, err := shell(t, "", "--directory", data, "tree", "/image/configs")
	if err != nil {
		t.Fatal(err)
	}
	n, err := gregor.Start(t.Context(), gregor.Config{Dir: data, Properties: map[string]string{"advertised.listeners": "PLAINTEXT://localhost:0,CONTROLLER://localhost:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	s := &session{t, n.Addr()}
	if got := s.do("", "metadata shell tree /image/configs"); got != want || !strings.Contains(got, "max.message.bytes") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestGlob(t *testing.T) {
	t.Parallel()
	f := func(glob, name string, want bool) {
		t.Helper()
		re := globPattern(glob)
		got := glob == name
		if re != nil {
			got = re.MatchString(name)
		}
		if got != want {
			t.Errorf("%q matches %q: %t", glob, name, got)
		}
	}
	f("a*", "abc", true)
	f("a*", "ba", false)
	f("a?c", "abc", true)
	f("a?c", "ac", false)
	f("{ab,cd}e", "cde", true)
	f("{ab,cd}e", "abcde", false)
	f("a.c*", "abc", false)
	f("a\\*", "a*", false) // a plain name, as it stands
	f("a\\**", "a*b", true)
	f("a\\**", "ab", false)
	f("{a,{b}}", "{a,{b}}", true)
	f("{a", "{a", true)
	f("a,b", "a,b", true)
	f("clientId(c1)_*", "clientId(c1)_user(alice)", true)
}

func TestSplitWords(t *testing.T) {
	t.Parallel()
	f := func(in string, want ...string) {
		t.Helper()
		got, err := splitWords(in)
		if err != nil || strings.Join(got, "|") != strings.Join(want, "|") || len(got) != len(want) {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
	f("")
	f("  ls \t /a  ", "ls", "/a")
	f(`cat "a b" 'c d'e ""`, "cat", "a b", "c de", "")
	f(`a\ b c\*`, "a b", `c\*`)
	f(`'a\b'`, `a\b`)
	for _, bad := range []string{`"a`, `a\`, `'`} {
		if _, err := splitWords(bad); err == nil {
			t.Errorf("%q", bad)
		}
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	f := func(screen int, want string, names ...string) {
		t.Helper()
		var b bytes.Buffer
		s := newMetaShell(&Env{Stdout: &b}, metadata.EmptyImage())
		s.width = screen
		s.entries("", names)
		s.out.Flush()
		if b.String() != want {
			t.Errorf("%d %v: %q", screen, names, b.String())
		}
	}
	f(0, "a\nb\n", "a", "b")
	f(80, "a  b\n", "a", "b")
	f(12, "alpha  c\nb      d\n", "alpha", "b", "c", "d")
	f(3, "a\nb\n", "a", "b")
	f(10, "a-long-one-here\nb\n", "a-long-one-here", "b")
}

// The names of quotas, and the kinds of nodes that the golden files don't have.
func TestMetadataTree(t *testing.T) {
	t.Parallel()
	d := metadata.NewDelta(metadata.EmptyImage())
	name := func(s string) *string { return &s }
	entity := func(parts ...message.ClientQuotaRecordEntityData) *message.ClientQuotaRecord {
		return &message.ClientQuotaRecord{Entity: parts, Key: "producer_byte_rate", Value: 2e7}
	}
	for _, m := range []message.Message{
		entity(message.ClientQuotaRecordEntityData{EntityType: "user", EntityName: name("a(b)\\c")}, message.ClientQuotaRecordEntityData{EntityType: "client-id"}),
		entity(message.ClientQuotaRecordEntityData{EntityType: "ip", EntityName: name("::1")}),
		&message.DelegationTokenRecord{Owner: "User:o", Requester: "User:r", Renewers: []string{"User:x", "User:y"}, IssueTimestamp: 1, MaxTimestamp: 2, ExpirationTimestamp: 3, TokenID: "t"},
		&message.UserScramCredentialRecord{Name: "alice", Mechanism: 2, Salt: []byte{1, 0xab}, StoredKey: []byte{2}, ServerKey: []byte{3}, Iterations: 4096},
		&message.RegisterBrokerRecord{BrokerID: 3, Features: []message.RegisterBrokerRecordBrokerFeature{{Name: "a", MinSupportedVersion: 1, MaxSupportedVersion: 1}, {Name: "b", MinSupportedVersion: 2, MaxSupportedVersion: 32767}}},
	} {
		if err := d.Replay(m); err != nil {
			t.Fatal(err)
		}
	}
	root := shellRoot(d.Apply(metadata.Provenance{Offset: 5, Epoch: 1, Time: 1000}), "1", "")
	f := func(path, want string) {
		t.Helper()
		var b bytes.Buffer
		if !walk(root, nil, splitPath(path), func(x found) { x.node.print(&b, "") }) || b.String() != want {
			t.Errorf("%s: %q", path, b.String())
		}
	}
	f("/image/clientQuotas", "clientId(<default>)_user(a\\(b\\)\\\\c):\n  producer_byte_rate:\n    2.0E7\nip(::1):\n  producer_byte_rate:\n    2.0E7\n")
	f("/image/delegationToken", "t:\n  DelegationTokenDatatokenId=t(owner=User:o(tokenRequester=User:r(renewers=User:x User:y, issueTimestamp=1, maxTimestamp=2), expiryTimestamp=3\n")
	f("/image/scram/SCRAM-SHA-512/alice", "ScramCredentialData(salt=01ab, storedKey=02, serverKey=03, iterations=4096)\n")
	f("/image/cluster/brokers/3", "BrokerRegistration(id=3, epoch=0, incarnationId=AAAAAAAAAAAAAAAAAAAAAA, listeners=[], supportedFeatures={a: 1, b: 2+}, "+
		"rack=Optional.empty, fenced=false, inControlledShutdown=false, isMigratingZkBroker=false, directories=[], cordonedDirectories=null)\n")
	f("/image/provenance", "offset 5, epoch 1, time 1970-01-01T00:00:01Z[UTC]\n")
	f("/image/features/metadataVersion", "Optional.empty\n")
	f("/local/commitId", "unknown\n")
	for _, path := range []string{"/x", "/image/topics/byName/x", "/image/topics/byId/x", "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAA", "/image/cluster/brokers/x", "/image/cluster/brokers/4",
		"/image/cluster/controllers/1", "/image/configs/TOPIC:x", "/image/configs/NOPE", "/image/acls/byId/x", "/image/acls/byId/AAAAAAAAAAAAAAAAAAAAAA", "/image/scram/SCRAM-SHA-256/alice",
		"/image/delegationToken/x", "/image/features/finalized_x", "/image/features/x", "/image/clientQuotas/x", "/image/clientQuotas/ip(::1)/x", "/image/provenance/x"} {
		if walk(root, nil, splitPath(path), func(found) {}) {
			t.Errorf("%s is there", path)
		}
	}
}

// crcOffset is where a batch has its checksum.
const crcOffset = 17

// Whatever bytes a file has, the loader gives an image or an error.
func FuzzLoadMetadata(f *testing.F) {
	for path, b := range golden.Files(f, "static-upgraded", func(path string) bool { return strings.Contains(path, metadataDir) }) {
		if strings.HasSuffix(path, ".log") || strings.HasSuffix(path, ".checkpoint") {
			f.Add(b[:min(len(b), 4096)])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum would stop nearly all that is tried.
		for rest := b; len(rest) > 0; {
			batch, next, err := record.Next(rest)
			if err != nil {
				break
			}
			binary.BigEndian.PutUint32(batch[crcOffset:], batch.ComputeCRC())
			rest = next
		}
		x := newImageLoader()
		if err := x.batches(b, 1<<62); err != nil {
			return
		}
		shellRoot(x.image(io.Discard), "", "").print(io.Discard, "")
	})
}
