package golden

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// Dir is the path of testdata/golden, found upwards from the test's working directory.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		p := filepath.Join(dir, "testdata", "golden", "vectors.txt.gz")
		if _, err := os.Stat(p); err == nil {
			return filepath.Dir(p)
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no testdata/golden in any directory above")
		}
		dir = up
	}
}

// Files returns the files of the archive NAME.tar.gz for whose path want is true, by their path in the archive
// (NAME/node-1/data/...).
func Files(t testing.TB, name string, want func(path string) bool) map[string][]byte {
	t.Helper()
	f, err := os.Open(filepath.Join(Dir(t), name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		path := filepath.ToSlash(filepath.Clean(h.Name))
		if h.Typeflag != tar.TypeReg || !want(path) {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatalf("%s: %s: %v", name, path, err)
		}
		files[path] = b
	}
}

// Expect decodes NAME.expect.json into v. Numbers that go into an interface keep their text (json.Number).
func Expect(t testing.TB, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(Dir(t), name+".expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s.expect.json: %v", name, err)
	}
}
