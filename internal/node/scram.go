package node

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"

	"gregor/internal/message"
)

const (
	scramSHA256 = 1
	scramSHA512 = 2

	scramDefaultIterations = 4096
	scramMaxIterations     = 16384
	scramSaltBytes         = 32
)

// ParseScram reads a credential in the form of --add-scram, for example SCRAM-SHA-256=[name=alice,password=secret]. Instead of
// the password there may be saltedpassword and salt, both in base64; iterations and salt may be given too.
func ParseScram(arg string, random io.Reader) (*message.UserScramCredentialRecord, error) {
	mechanism, list, ok := strings.Cut(arg, "=")
	if !ok {
		return nil, fmt.Errorf("--add-scram %q: no equals sign after the mechanism", arg)
	}
	var newHash func() hash.Hash
	r := &message.UserScramCredentialRecord{}
	r.Reset()
	switch mechanism {
	case "SCRAM-SHA-256":
		newHash, r.Mechanism = sha256.New, scramSHA256
	case "SCRAM-SHA-512":
		newHash, r.Mechanism = sha512.New, scramSHA512
	default:
		return nil, fmt.Errorf("--add-scram: the mechanism %s is not supported; use SCRAM-SHA-256 or SCRAM-SHA-512", mechanism)
	}
	if !strings.HasPrefix(list, "[") || !strings.HasSuffix(list, "]") {
		return nil, fmt.Errorf("--add-scram: %q is not in brackets", list)
	}
	given := map[string]string{}
	for _, part := range strings.Split(list[1:len(list)-1], ",") {
		k, v, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("--add-scram: no equals sign in %q", part)
		}
		if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
			v = v[1 : len(v)-1]
		}
		given[k] = v
	}
	take := func(k string) (string, bool) {
		v, ok := given[k]
		delete(given, k)
		return v, ok
	}
	name, ok := take("name")
	if !ok {
		return nil, fmt.Errorf("--add-scram: name is missing")
	}
	r.Name, r.Iterations = name, scramDefaultIterations
	if s, ok := take("iterations"); ok {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil || n < scramDefaultIterations || n > scramMaxIterations {
			return nil, fmt.Errorf("--add-scram: iterations is %s, must be between %d and %d", s, scramDefaultIterations, scramMaxIterations)
		}
		r.Iterations = int32(n)
	}
	salt, hasSalt := take("salt")
	password, hasPassword := take("password")
	saltedText, hasSalted := take("saltedpassword")
	for k := range given {
		return nil, fmt.Errorf("--add-scram: %s is unknown", k)
	}
	var err error
	if hasSalt {
		if r.Salt, err = base64.StdEncoding.DecodeString(salt); err != nil {
			return nil, fmt.Errorf("--add-scram: salt: %w", err)
		}
	} else {
		r.Salt = make([]byte, scramSaltBytes)
		if _, err := io.ReadFull(random, r.Salt); err != nil {
			return nil, fmt.Errorf("--add-scram: random salt: %w", err)
		}
	}
	var salted []byte
	switch {
	case hasPassword && hasSalted:
		return nil, fmt.Errorf("--add-scram: only one of password and saltedpassword may be given")
	case hasPassword:
		if salted, err = pbkdf2.Key(newHash, password, r.Salt, int(r.Iterations), newHash().Size()); err != nil {
			return nil, fmt.Errorf("--add-scram: %w", err)
		}
	case !hasSalted:
		return nil, fmt.Errorf("--add-scram: one of password and saltedpassword is needed")
	case !hasSalt:
		return nil, fmt.Errorf("--add-scram: saltedpassword needs salt")
	default:
		if salted, err = base64.StdEncoding.DecodeString(saltedText); err != nil {
			return nil, fmt.Errorf("--add-scram: saltedpassword: %w", err)
		}
	}
	sign := func(text string) []byte {
		m := hmac.New(newHash, salted)
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	h := newHash()
	h.Write(sign("Client Key"))
	r.StoredKey, r.ServerKey = h.Sum(nil), sign("Server Key")
	return r, nil
}
