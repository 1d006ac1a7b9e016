package message

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
)

// vector is one line of vectors.txt.gz: bytes that Kafka 4.4.0's own classes wrote.
type vector struct {
	name    string
	key     int16
	version int16
	mode    string
	body    []byte
	extra   []string
}

// recordVectors reads the record lines of testdata/golden/vectors.txt.gz.
func recordVectors(t testing.TB) []vector {
	t.Helper()
	f, err := os.Open("../../testdata/golden/vectors.txt.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []vector
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		p := strings.Split(sc.Text(), "|")
		if p[0] != "rec" {
			continue
		}
		key, err1 := strconv.Atoi(p[2])
		version, err2 := strconv.Atoi(p[3])
		body, err3 := hex.DecodeString(p[5])
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatalf("bad line %q", sc.Text())
		}
		// Kafka's generator adds Data to the names of the headers.
		name := p[1]
		if name == "RequestHeaderData" || name == "ResponseHeaderData" {
			name = strings.TrimSuffix(name, "Data")
		}
		out = append(out, vector{name, int16(key), int16(version), p[4], body, p[6:]})
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestVectors reads and writes every record that Kafka's classes made, at every version, byte for byte, and refuses what
// Kafka refuses.
func TestVectors(t *testing.T) {
	seen := map[string]bool{}
	modes := map[string]int{}
	for _, v := range recordVectors(t) {
		m := New(v.name)
		if m == nil {
			t.Errorf("no message %s", v.name)
			continue
		}
		seen[v.name] = true
		modes[v.mode]++
		if m.APIKey() != v.key {
			t.Errorf("%s has key %d, want %d", v.name, m.APIKey(), v.key)
		}
		rest, err := m.ReadFrom(v.body, v.version)
		if v.mode == "n" {
			if err == nil {
				t.Errorf("%s v%d: null for %s accepted: %x", v.name, v.version, v.extra[0], v.body)
			}
			continue
		}
		if err != nil || len(rest) != 0 {
			t.Errorf("%s v%d %s: read %x: %d bytes left, %v", v.name, v.version, v.mode, v.body, len(rest), err)
			continue
		}
		got, err := m.AppendTo([]byte("x"), v.version)
		if err != nil || !bytes.Equal(got[1:], v.body) {
			t.Errorf("%s v%d %s: wrote\n %x, %v, want\n %x", v.name, v.version, v.mode, got[1:], err, v.body)
		}
		if n := m.Size(v.version); n != len(v.body) {
			t.Errorf("%s v%d %s: Size = %d, want %d", v.name, v.version, v.mode, n, len(v.body))
		}
		if js := m.AppendJSON(nil, v.version); !json.Valid(js) {
			t.Errorf("%s v%d %s: invalid JSON %s", v.name, v.version, v.mode, js)
		}
		if v.mode == "d" {
			fresh, err := New(v.name).AppendTo(nil, v.version)
			if err != nil || !bytes.Equal(fresh, v.body) {
				t.Errorf("%s v%d: defaults are written as %x, %v, want %x", v.name, v.version, fresh, err, v.body)
			}
		}
		for n := range len(v.body) {
			if n > 64 {
				break
			}
			if _, err := m.ReadFrom(v.body[:n], v.version); err == nil {
				t.Errorf("%s v%d %s: the first %d of %d bytes were accepted: %x", v.name, v.version, v.mode, n, len(v.body), v.body)
			}
		}
	}
	for name := range constructors {
		if !seen[name] {
			t.Errorf("no vector for %s", name)
		}
	}
	t.Logf("vectors by mode: %v", modes)
	for _, mode := range []string{"d", "D", "r", "u", "m", "n"} {
		if modes[mode] == 0 {
			t.Errorf("no vector of mode %s", mode)
		}
	}
}
