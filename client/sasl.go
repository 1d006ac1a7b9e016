package client

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// SASL is how a client says who it is: Plain, SCRAM or OAuthBearer.
type SASL interface {
	// Mechanism is its name ("PLAIN").
	Mechanism() string
	// begin starts an exchange: each call of the function it returns takes what the broker said (nil at first) and gives what to
	// say; done means that nothing more is to come.
	begin(ctx context.Context) (func(challenge []byte) (response []byte, done bool, err error), error)
}

// Plain is SASL PLAIN: name and password as they are, so only over TLS.
type Plain struct{ User, Password string }

// Mechanism implements SASL.
func (Plain) Mechanism() string { return "PLAIN" }

func (p Plain) begin(context.Context) (func([]byte) ([]byte, bool, error), error) {
	return func([]byte) ([]byte, bool, error) { return []byte("\x00" + p.User + "\x00" + p.Password), true, nil }, nil
}

// SCRAM is SASL SCRAM-SHA-512, or SCRAM-SHA-256: the password isn't sent, and the broker proves that it knows it, too.
type SCRAM struct {
	User, Password string
	SHA256         bool
}

// Mechanism implements SASL.
func (s SCRAM) Mechanism() string {
	if s.SHA256 {
		return "SCRAM-SHA-256"
	}
	return "SCRAM-SHA-512"
}

// The iterations of the password's hash: what Kafka takes as the least, and enough to keep a broker from costing minutes.
const (
	scramFewest = 4096
	scramMost   = 1 << 20
)

var errSCRAM = errors.New("broker's answer is no SCRAM message")

func (s SCRAM) begin(context.Context) (func([]byte) ([]byte, bool, error), error) {
	var random [24]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	return s.exchange(base64.RawStdEncoding.EncodeToString(random[:])), nil
}

// exchange is RFC 5802 with the client's nonce given.
func (s SCRAM) exchange(nonce string) func([]byte) ([]byte, bool, error) {
	newHash := sha512.New
	if s.SHA256 {
		newHash = sha256.New
	}
	step := 0
	first := "n=" + strings.NewReplacer("=", "=3D", ",", "=2C").Replace(s.User) + ",r=" + nonce
	var signature []byte
	return func(challenge []byte) ([]byte, bool, error) {
		step++
		switch step {
		case 1:
			return []byte("n,," + first), false, nil
		case 2:
			var final []byte
			var err error
			final, signature, err = s.prove(newHash, nonce, first, string(challenge))
			return final, false, err
		}
		fields := scramFields(string(challenge))
		if e := fields["e"]; e != "" {
			return nil, false, fmt.Errorf("broker says: %s", e)
		}
		got, err := base64.StdEncoding.DecodeString(fields["v"])
		if err != nil || !hmac.Equal(got, signature) {
			return nil, false, errors.New("broker doesn't know the password")
		}
		return nil, true, nil
	}
}

// prove answers the broker's first message; signature is what the broker has to show.
func (s SCRAM) prove(newHash func() hash.Hash, nonce, first, challenge string) (final, signature []byte, err error) {
	fields := scramFields(challenge)
	salt, err := base64.StdEncoding.DecodeString(fields["s"])
	if err != nil || len(salt) == 0 || !strings.HasPrefix(fields["r"], nonce) || len(fields["r"]) == len(nonce) {
		return nil, nil, errSCRAM
	}
	n, err := strconv.Atoi(fields["i"])
	if err != nil || n < scramFewest || n > scramMost {
		return nil, nil, fmt.Errorf("%w: %q iterations, %d to %d are acceptable", errSCRAM, fields["i"], scramFewest, scramMost)
	}
	salted, err := pbkdf2.Key(newHash, s.Password, salt, n, newHash().Size())
	if err != nil {
		return nil, nil, err
	}
	mac := func(key, text []byte) []byte {
		m := hmac.New(newHash, key)
		m.Write(text)
		return m.Sum(nil)
	}
	clientKey := mac(salted, []byte("Client Key"))
	h := newHash()
	h.Write(clientKey)
	without := "c=biws,r=" + fields["r"]
	text := []byte(first + "," + challenge + "," + without)
	proof := mac(h.Sum(nil), text)
	for i := range proof {
		proof[i] ^= clientKey[i]
	}
	return []byte(without + ",p=" + base64.StdEncoding.EncodeToString(proof)), mac(mac(salted, []byte("Server Key")), text), nil
}

func scramFields(message string) map[string]string {
	out := map[string]string{}
	for f := range strings.SplitSeq(message, ",") {
		if k, v, ok := strings.Cut(f, "="); ok {
			out[k] = v
		}
	}
	return out
}

// OAuthBearer is SASL OAUTHBEARER: Token is called for each connection and each time that a session is renewed.
type OAuthBearer struct {
	Token func(ctx context.Context) (string, error)
	// Extensions are said beside the token.
	Extensions map[string]string
}

// Mechanism implements SASL.
func (OAuthBearer) Mechanism() string { return "OAUTHBEARER" }

func (o OAuthBearer) begin(ctx context.Context) (func([]byte) ([]byte, bool, error), error) {
	token, err := o.Token(ctx)
	if err != nil {
		return nil, fmt.Errorf("get a token: %w", err)
	}
	var b bytes.Buffer
	b.WriteString("n,,\x01auth=Bearer " + token)
	for _, k := range sortedKeys(o.Extensions) {
		b.WriteString("\x01" + k + "=" + o.Extensions[k])
	}
	b.WriteString("\x01\x01")
	step := 0
	return func(challenge []byte) ([]byte, bool, error) {
		if step++; step == 1 {
			return b.Bytes(), len(challenge) == 0, nil
		}
		// The broker says what is wrong, and wants one more message before it closes.
		return nil, false, fmt.Errorf("token refused: %s", challenge)
	}, nil
}

// authenticate says who the client is on a new connection.
func (c *conn) authenticate(ctx context.Context, s SASL, timeout time.Duration) error {
	fail := func(err error) error { return fmt.Errorf("authenticate with %s by %s: %w", c.addr, s.Mechanism(), err) }
	hello := kmsg.NewPtrSASLHandshakeRequest()
	hello.Mechanism = s.Mechanism()
	if err := c.choose(hello, 0); err != nil {
		return fail(err)
	}
	greeting := kmsg.NewPtrSASLHandshakeResponse()
	if err := c.roundTrip(ctx, hello, greeting, timeout); err != nil {
		return fail(err)
	}
	if err := errorOf(greeting.ErrorCode, nil); err != nil {
		return fail(fmt.Errorf("%w: the broker has %s", err, strings.Join(greeting.SupportedMechanisms, ", ")))
	}
	next, err := s.begin(ctx)
	if err != nil {
		return fail(err)
	}
	var challenge []byte
	for {
		say, done, err := next(challenge)
		if err != nil {
			return fail(err)
		}
		if say == nil && done {
			return nil
		}
		req := kmsg.NewPtrSASLAuthenticateRequest()
		req.SASLAuthBytes = say
		if err := c.choose(req, 0); err != nil {
			return fail(err)
		}
		resp := kmsg.NewPtrSASLAuthenticateResponse()
		if err := c.roundTrip(ctx, req, resp, timeout); err != nil {
			return fail(err)
		}
		if err := errorOf(resp.ErrorCode, resp.ErrorMessage); err != nil {
			return fail(err)
		}
		if resp.SessionLifetimeMillis > 0 {
			// Before it is over, another connection takes its place (the broker would close this one).
			c.retireAt = time.Now().Add(time.Duration(resp.SessionLifetimeMillis) * time.Millisecond * 85 / 100)
		}
		if challenge = resp.SASLAuthBytes; done {
			return nil
		}
	}
}

// retire has a connection closed when nothing is under way on it any more.
func (c *conn) retire() {
	c.mu.Lock()
	c.retired = true
	idle := len(c.pending) == 0
	c.mu.Unlock()
	if idle {
		c.fail(errOver(c.addr))
	}
}

func errOver(addr string) error {
	return &errConn{"connection to", addr, errors.New("the session is over")}
}
