package uuid

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
)

// UUID is a Kafka id. The zero value is Zero, which Kafka uses for "none".
type UUID [16]byte

var (
	// Zero means no id; as a directory id in the metadata it means MIGRATING (KIP-858).
	Zero = UUID{}
	// One is reserved; as a directory id it means UNASSIGNED, and as a topic id it is that of __cluster_metadata.
	One = UUID{15: 1}
	// MetadataTopic is the id of the topic __cluster_metadata.
	MetadataTopic = One
	// Unassigned is the directory id of a replica whose directory the broker has not chosen yet.
	Unassigned = One
	// Lost is the directory id of a replica whose directory is offline or gone.
	Lost = UUID{15: 2}
)

// New makes a random (version 4) id from r, as Kafka's Uuid.randomUuid does: never a reserved one, and never one whose
// text begins with '-', which command lines would take for a flag.
func New(r io.Reader) (UUID, error) {
	for {
		var u UUID
		if _, err := io.ReadFull(r, u[:]); err != nil {
			return Zero, fmt.Errorf("uuid: read random bytes: %w", err)
		}
		u[6] = u[6]&0x0f | 0x40
		u[8] = u[8]&0x3f | 0x80
		if !u.Reserved() && u.String()[0] != '-' {
			return u, nil
		}
	}
}

// Parse reads the 22-character text form. Like Kafka it accepts up to 24 characters, so that padding may be present.
func Parse(s string) (UUID, error) {
	if len(s) > 24 {
		return Zero, fmt.Errorf("uuid: %q is longer than 24 characters", s)
	}
	for len(s) > 0 && s[len(s)-1] == '=' {
		s = s[:len(s)-1]
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return Zero, fmt.Errorf("uuid: %q is not URL-safe base64: %w", s, err)
	}
	if len(b) != 16 {
		return Zero, fmt.Errorf("uuid: %q holds %d bytes, want 16", s, len(b))
	}
	return UUID(b), nil
}

// String is the 22-character text form.
func (u UUID) String() string { return base64.RawURLEncoding.EncodeToString(u[:]) }

// Reserved says whether u is one of the ids 0 to 99, which never name a topic or directory that someone made.
func (u UUID) Reserved() bool {
	return binary.BigEndian.Uint64(u[:8]) == 0 && binary.BigEndian.Uint64(u[8:]) < 100
}

// Compare orders ids as Kafka's Uuid.compareTo does: by signed high half, then by signed low half.
func (u UUID) Compare(o UUID) int {
	for _, at := range []int{0, 8} {
		a, b := int64(binary.BigEndian.Uint64(u[at:])), int64(binary.BigEndian.Uint64(o[at:]))
		switch {
		case a < b:
			return -1
		case a > b:
			return 1
		}
	}
	return 0
}
