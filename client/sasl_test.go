package client

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// The exchange of RFC 7677.
func TestSCRAMVector(t *testing.T) {
	t.Parallel()
	next := SCRAM{User: "user", Password: "pencil", SHA256: true}.exchange("rOprNGfwEbeRWgbNEkqO")
	for i, step := range [][2]string{
		{"", "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"},
		{"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
			"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="},
		{"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", ""},
	} {
		got, done, err := next([]byte(step[0]))
		if err != nil || string(got) != step[1] || done != (i == 2) {
			t.Fatalf("step %d: %q %v %v", i, got, done, err)
		}
	}
}

// A broker that doesn't know the password, or wants too little or too much work, is refused.
func TestSCRAMRefuses(t *testing.T) {
	t.Parallel()
	s := SCRAM{User: "a,b=c", Password: "pencil", SHA256: true}
	for name, answers := range map[string][]string{
		"another nonce": {"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"},
		"same nonce":    {"r=nonce,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"},
		"no salt":       {"r=nonce1,i=4096"},
		"little work":   {"r=nonce1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1"},
		"much work":     {"r=nonce1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999"},
		"nonsense":      {"\x00\xff"},
		"no proof":      {"r=nonce1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "v=AAAA"},
		"an error":      {"r=nonce1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "e=unknown-user"},
	} {
		next := s.exchange("nonce")
		first, _, err := next(nil)
		if err != nil || string(first) != "n,,n=a=2Cb=3Dc,r=nonce" {
			t.Fatalf("%q %v", first, err)
		}
		for i, a := range answers {
			_, _, err = next([]byte(a))
			if (err != nil) != (i == len(answers)-1) {
				t.Errorf("%s: step %d: %v", name, i, err)
			}
		}
	}
}

func TestOAuthBearer(t *testing.T) {
	t.Parallel()
	o := OAuthBearer{Token: func(context.Context) (string, error) { return "token", nil }, Extensions: map[string]string{"b": "2", "a": "1"}}
	next, err := o.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := next(nil)
	if err != nil || string(got) != "n,,\x01auth=Bearer token\x01a=1\x01b=2\x01\x01" {
		t.Errorf("%q %v", got, err)
	}
	if _, _, err := next([]byte(`{"status":"invalid_token"}`)); err == nil || !strings.Contains(err.Error(), "invalid_token") {
		t.Error(err)
	}
	o.Token = func(context.Context) (string, error) { return "", errors.New("no") }
	if _, err := o.begin(t.Context()); err == nil {
		t.Error("no token, no error")
	}
}
