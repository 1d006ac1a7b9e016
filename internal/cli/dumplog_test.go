package cli

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gregor/internal/golden"
	"gregor/internal/vfs"
)

// run executes a command line and returns what it printed, standard output and error in one.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := Root(&Env{FS: vfs.OS, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Version: "1.0"})
	root.SetArgs(args)
	err := root.Execute()
	return out.String(), err
}

// The output for every golden file is that of Kafka's tool.
func TestDumpLogLikeKafka(t *testing.T) {
	dir := filepath.Join(golden.Dir(t), "dump-log")
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	start, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		t.Chdir(start)
		unpacked := t.TempDir()
		for path, b := range golden.Files(t, name.Name(), func(string) bool { return true }) {
			path = filepath.Join(unpacked, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		root := filepath.Join(dir, name.Name())
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			want, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			command, text, _ := strings.Cut(string(want), "\n")
			args := strings.Fields(strings.TrimPrefix(command, "$ DumpLogSegments"))
			file := args[len(args)-1]
			// Below the node's directory; with one node the golden text leaves its name out.
			node := "node-1"
			if rel, _ := filepath.Rel(root, path); strings.HasPrefix(rel, "node-") {
				node = strings.Split(rel, string(filepath.Separator))[0]
			}
			var base string
			for _, d := range []string{"data", "meta", "d1", "d2"} {
				base = filepath.Join(unpacked, name.Name(), node, d)
				if _, err := os.Stat(filepath.Join(base, file)); err == nil {
					break
				}
			}
			t.Chdir(base)
			got, err := run(t, append([]string{"dump-log"}, args...)...)
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			if got = strings.ReplaceAll(got, unpacked+"/", "DIR/"); got != text {
				t.Errorf("%s: %s", path, firstDifference(got, text))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		a, b := "", ""
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return "line " + string(rune('0'+i%10)) + "\n got " + a + "\nwant " + b
		}
	}
	return "equal"
}
