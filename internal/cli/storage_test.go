package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gregor/internal/vfs"
)

// storageConfig writes a server.properties of a controller and broker with two directories and returns its path.
func storageConfig(t *testing.T, extra string) (file, dir string) {
	t.Helper()
	dir = t.TempDir()
	file = filepath.Join(dir, "server.properties")
	text := `process.roles=broker,controller
node.id=4
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
log.dirs=` + dir + "/a," + dir + "/b\n" + extra
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file, dir
}

func TestStorage(t *testing.T) {
	file, dir := storageConfig(t, "")
	const id = "MkU3OEVBNTcwNTJENDM2Qg"
	f := func(code int, want string, args ...string) {
		t.Helper()
		got, out, errs := call(t, append([]string{"gregor", "storage"}, args...)...)
		if got != code || !strings.Contains(out+errs, want) {
			t.Errorf("storage %v: exit %d, %s%s; want %d, %q", args, got, out, errs, code, want)
		}
	}
	f(1, dir+"/a does not exist", "info", "-c", file)
	f(1, "one of --standalone, --initial-controllers or --no-initial-controllers is needed", "format", "-c", file, "-t", id)
	f(1, "none of the others can be", "format", "-c", file, "-t", id, "--standalone", "--no-initial-controllers")
	f(1, `required flag(s) "cluster-id" not set`, "format", "-c", file)
	f(1, "unknown metadata.version", "format", "-c", file, "-t", id, "--standalone", "-r", "9.9")
	f(1, "want name=level", "format", "-c", file, "-t", id, "--standalone", "-f", "x")
	f(0, "Formatting dynamic metadata voter directory "+dir+"/a with metadata.version 4.4-IV2.\nFormatting data directory "+dir+"/b with metadata.version 4.4-IV2.\n",
		"format", "--config", file, "--cluster-id", id, "--standalone")
	f(1, "is already formatted", "format", "-c", file, "-t", id, "-s")
	f(0, "All of the log directories are already formatted.", "format", "-c", file, "-t", id, "-s", "-g")
	f(0, "Found log directories:\n  "+dir+"/a\n  "+dir+"/b\n\nFound metadata: {cluster.id="+id+", directory.id=", "info", "-c", file)
	if err := os.Remove(filepath.Join(dir, "b", "meta.properties")); err != nil {
		t.Fatal(err)
	}
	f(1, "Found problem:\n  "+dir+"/b is not formatted.", "info", "-c", file)
	f(0, "metadata.version=21 (3.9)\nkraft.version=1\n", "version-mapping", "-r", "3.9")
	f(0, "eligible.leader.replicas.version=1 requires:\n    metadata.version=23 (4.0-IV1)\n", "feature-dependencies", "-f", "eligible.leader.replicas.version=1")
	f(0, "group.version=1 has no dependencies.", "feature-dependencies", "-f", "group.version=1")
	f(1, "unknown feature: x", "feature-dependencies", "-f", "x=1")
	if code, out, _ := call(t, "gregor", "storage", "random-uuid"); code != 0 || !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{21}\n$`).MatchString(out) {
		t.Errorf("random-uuid: %d %q", code, out)
	}
	if code, out, _ := call(t, "/usr/bin/kafka-storage.sh", "random-uuid"); code != 0 || len(out) != 23 {
		t.Errorf("kafka-storage.sh random-uuid: %d %q", code, out)
	}
}

// call runs the program as its main function does.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(t.Context(), &Env{FS: vfs.OS, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}, args)
	return code, out.String(), errs.String()
}
