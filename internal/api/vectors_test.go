package api

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// vector is a message as Kafka's own classes wrote it; see testdata/golden/README.md at the root of the repository.
type vector struct {
	kind    string // req or resp
	key     Key
	version int16
	mode    string // d D r u m n
	bytes   []byte
	path    string // of the null in mode n
}

func (v vector) String() string {
	return v.kind + " " + v.key.String() + " v" + strconv.Itoa(int(v.version)) + " " + v.mode + " " + v.path + " " + hex.EncodeToString(v.bytes)
}

var allVectors = sync.OnceValues(func() ([]vector, error) {
	f, err := os.Open("../../testdata/golden/vectors.txt.gz")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	var vs []vector
	s := bufio.NewScanner(z)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		p := strings.Split(s.Text(), "|")
		if p[0] == "rec" {
			continue
		}
		key, err := strconv.Atoi(p[2])
		if err != nil {
			return nil, err
		}
		version, err := strconv.Atoi(p[3])
		if err != nil {
			return nil, err
		}
		b, err := hex.DecodeString(p[5])
		if err != nil {
			return nil, err
		}
		v := vector{kind: p[0], key: Key(key), version: int16(version), mode: p[4], bytes: b}
		if len(p) > 6 && v.mode == "n" {
			v.path = p[6]
		}
		// InitProducerId v6 is unstable: Kafka does not serve it, and neither do we.
		if _, max, _ := v.key.Versions(); v.version > max {
			continue
		}
		vs = append(vs, v)
	}
	return vs, s.Err()
})

func vectors(t testing.TB) []vector {
	t.Helper()
	vs, err := allVectors()
	if err != nil {
		t.Fatal(err)
	}
	if len(vs) < 5000 {
		t.Fatalf("%d vectors", len(vs))
	}
	return vs
}

func TestRequestsOfKafkaAreReadAndWrittenAlike(t *testing.T) {
	for _, v := range vectors(t) {
		if v.kind != "req" || v.mode == "n" {
			continue
		}
		body := append([]byte(nil), v.bytes...)
		r, err := decodeMessage(v.key, v.version, body)
		if err != nil {
			t.Errorf("%s: %v", v, err)
			continue
		}
		setAbsentFields(r, v.version)
		if got := AppendRequest(nil, r); !bytes.Equal(got, v.bytes) {
			t.Errorf("%s\nwritten as %x", v, got)
		}
		// Bytes that follow are no error.
		if _, err := decodeMessage(v.key, v.version, append(body, 1, 2, 3)); err != nil {
			t.Errorf("%s with bytes behind it: %v", v, err)
		}
	}
}

func TestNullsWhereKafkaHasNoneAreRefused(t *testing.T) {
	n := 0
	for _, v := range vectors(t) {
		if v.kind != "req" || v.mode != "n" {
			continue
		}
		n++
		_, err := DecodeRequest(v.key, v.version, v.bytes)
		if err == nil {
			t.Errorf("%s: accepted", v)
			continue
		}
		// The path of the error is that of the null.
		if want := strings.ReplaceAll(v.path, "_tagged_fields.", ""); !strings.Contains(err.Error(), ": "+want+": null") {
			t.Errorf("%s: %v", v, err)
		}
	}
	if n < 700 {
		t.Errorf("only %d vectors", n)
	}
}

func TestRequestsThatAreCutShortAreRefused(t *testing.T) {
	for _, v := range vectors(t) {
		if v.kind != "req" || v.mode == "n" || v.mode == "m" {
			continue
		}
		for i := range v.bytes {
			if i > 64 && i%7 != 0 {
				continue
			}
			if _, err := DecodeRequest(v.key, v.version, v.bytes[:i:i]); err == nil {
				t.Errorf("%s: accepted with %d of %d bytes", v, i, len(v.bytes))
				break
			}
		}
	}
}

func TestResponsesOfKafkaAreReadAndWrittenAlike(t *testing.T) {
	for _, v := range vectors(t) {
		if v.kind != "resp" || v.mode == "n" {
			continue
		}
		r := kmsg.ResponseForKey(int16(v.key))
		r.SetVersion(v.version)
		if err := r.ReadFrom(v.bytes); err != nil {
			t.Errorf("%s: %v", v, err)
			continue
		}
		if got := AppendResponse(nil, r); !bytes.Equal(got, v.bytes) {
			t.Errorf("%s\nwritten as %x", v, got)
		}
	}
}

func TestFlexibleAgreesWithKmsg(t *testing.T) {
	for k := range keys {
		min, max, ok := Key(k).Versions()
		if !ok {
			continue
		}
		for v := min; v <= max; v++ {
			r := kmsg.RequestForKey(int16(k))
			r.SetVersion(v)
			if r.IsFlexible() != Flexible(Key(k), v) {
				t.Errorf("%s v%d: flexible %v", Key(k), v, Flexible(Key(k), v))
			}
		}
	}
}
