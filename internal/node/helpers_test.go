package node

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gregor/internal/golden"
)

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// unpack puts a golden archive into a temporary directory.
func unpack(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	for path, data := range golden.Files(t, name, func(string) bool { return true }) {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.HasSuffix(path, ".checkpoint") {
			mode = 0o400
		}
		if err := os.WriteFile(full, data, mode); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, name)
}
