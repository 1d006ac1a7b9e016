package uuid

import (
	"crypto/rand"
	"testing"
)

func TestTextForm(t *testing.T) {
	f := func(u UUID, want string) {
		t.Helper()
		if got := u.String(); got != want {
			t.Errorf("String of %x = %q, want %q", u[:], got, want)
		}
		if got, err := Parse(want); err != nil || got != u {
			t.Errorf("Parse(%q) = %v, %v", want, got, err)
		}
	}
	f(Zero, "AAAAAAAAAAAAAAAAAAAAAA")
	f(MetadataTopic, "AAAAAAAAAAAAAAAAAAAAAQ")
	f(Lost, "AAAAAAAAAAAAAAAAAAAAAg")
}

func TestParseRefuses(t *testing.T) {
	for _, s := range []string{"", "AAAA", "AAAAAAAAAAAAAAAAAAAAA!", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAA"} {
		if u, err := Parse(s); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", s, u)
		}
	}
}

func TestNewAvoidsReservedAndDash(t *testing.T) {
	for range 2000 {
		u, err := New(rand.Reader)
		if err != nil || u.Reserved() || u.String()[0] == '-' {
			t.Fatalf("New = %v, %v", u, err)
		}
	}
}
